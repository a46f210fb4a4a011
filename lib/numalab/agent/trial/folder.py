"""A run directory while it is being measured: made, taken up again, filled and closed.

A trial is finished when its line stands in the journal; everything else about it (raw files
without a line, temporary files) is removed and made again on resume.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

from .. import VERSION, collectors
from ..collectors import memory_model
from ..contract import (
    CONFIGURED,
    COUNTED,
    MEASURED,
    SCHEMA,
    Change,
    Host,
    HostRecord,
    Manifest,
    Plan,
    Reason,
    State,
    TrialRecord,
    dumps,
)
from ..errors import Fault
from ..host import state
from ..plan import make
from . import journal

RESUMED_S = 2.0  # from a run's last trial to the next one, by a session that takes it up, at least
_OURS = re.compile(r"\.manifest\.json\.part|\.?host\.json(\.part)?|raw")  # before a manifest is


class RunFolder:
    """The files of one run; ``host`` is None until ``look_at`` has been called."""

    def __init__(self, plan: Plan, path: Path, warn: Callable[[Reason], None]) -> None:
        """Make the directory, or take up the unfinished run of the same plan that is there.

        Raises Fault for a directory of anything else and for a damaged run.
        """
        self.path = path
        self.plan = plan
        self._warn = warn
        self.records: List[TrialRecord] = []
        self.done: Set[int] = set()  # the numbers of the trials in the journal
        self.host: Optional[HostRecord] = None
        if (path / "manifest.json").exists():
            self.manifest = journal.load(Manifest, path / "manifest.json")
            _begin_after(self.manifest.started)
            kept = self.manifest.plan.request.tool.options
            asked = plan.request.tool.options
            found = {name: kept[name] for name in kept if kept[name] != asked.get(name)}
            self.plan = make.with_options(plan, found) if found else plan  # by a calibration
            if dumps(self.manifest.plan) != dumps(self.plan):
                raise Fault(
                    f"{path} holds a run of another plan",
                    "give another directory; runs are never overwritten",
                )
        else:
            self._refuse_other_content()
            self.manifest = _new_manifest(plan, path.name)
            with journal.space_needed(path):
                (path / "raw").mkdir(parents=True, exist_ok=True)
        self._read_journal()
        # A session that was killed wrote no times, but its trials.
        trials_s = sum(record.times.total_s for record in self.records)
        self.earlier_s = max(self.manifest.times.get("total_s", 0.0), trials_s)

    def _refuse_other_content(self) -> None:
        if self.path.exists() and not (
            self.path.is_dir() and all(_OURS.fullmatch(name) for name in os.listdir(self.path))
        ):
            raise Fault(f"{self.path} exists and is not a run directory", "give another directory")

    def _read_journal(self) -> None:
        path = self.path / "journal.ndjson"
        self.records = journal.read(path, on_torn=self._warn)
        journal.repair(path)
        cells = {entry.trial: entry.cell for entry in self.plan.order}
        for record in self.records:
            if cells.get(record.trial) != record.cell:
                raise Fault(
                    f"{path}: trial {record.trial} of cell {record.cell!r} is not in the plan",
                    "the journal belongs to another run; restore it from a copy",
                )
            for name, digest in record.sha256.items():
                file = self.path / name
                if not file.is_file() or journal.sha256(file) != digest:
                    raise journal.CannotComplete(
                        f"{file} is missing or is not what trial {record.trial} wrote"
                    )
            self.done.add(record.trial)
        if self.records:
            _begin_after(max(record.ended for record in self.records))

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        whole = len(self.records) == len(self.plan.order)
        return whole and self.manifest.status == "complete"

    def keep(self, plan: Plan) -> None:
        """Keep a plan in place of that which the run began with: shortened, or calibrated."""
        self.plan = plan
        self.update(plan=plan)

    def clear_half_finished(self) -> None:
        """Remove what trials left that did not come to their line in the journal."""
        kept = {name for record in self.records for name in record.sha256}
        for path in (self.path / "raw").iterdir():
            if f"raw/{path.name}" not in kept and re.match(r"\.?\d{4}", path.name):
                path.unlink()

    def look_at(self, host: Host, now: State) -> None:
        """Write host.json; of a run that goes on keep how the host was when it began.

        Raises CannotComplete where the host has other CPUs or nodes than then.
        """
        emulated, why = state.emulated(host, now)
        path = self.path / "host.json"
        timing = memory_model.configuration()
        of = self.plan.request.host
        self.host = HostRecord(SCHEMA, of, emulated, why, host, now, None, timing)
        if path.exists() and self.records:
            first = journal.load(HostRecord, path)
            if _shape(first.topology) != _shape(host):
                raise journal.CannotComplete(
                    f"{self.path} was begun on a host with other CPUs or nodes than this one",
                    "resume it where it was begun, or measure again into a new directory",
                )
            for change in state.compare(first.before, now):
                self._warn(change)
            self.host = replace(self.host, topology=first.topology, before=first.before)
        else:
            self.manifest = replace(
                self.manifest,
                evidence=CONFIGURED if timing else COUNTED if emulated else MEASURED,
                formulas=collectors.formulas() if self.plan.request.collectors else {},
            )
        journal.write_json(path, self.host)

    def update(self, **fields: Any) -> None:
        """Change fields of the manifest, and write it."""
        self.manifest = replace(self.manifest, **fields)
        journal.write_json(self.path / "manifest.json", self.manifest)

    def note_attempt(self, trial: int) -> int:
        """Return which attempt at a trial this is, and note it for a resume."""
        path = self.path / "current.json"
        attempt = 1
        with contextlib.suppress(ValueError, KeyError, OSError):
            last = json.loads(path.read_text())
            if last["trial"] == trial:
                attempt = last["attempt"] + 1
        with journal.space_needed(path):
            path.write_text(json.dumps({"schema": SCHEMA, "trial": trial, "attempt": attempt}))
        return attempt

    def add(self, record: TrialRecord) -> None:
        """Write a trial into the journal: from here on it is finished."""
        self.records.append(journal.append(self.path / "journal.ndjson", record))
        self.done.add(record.trial)

    def close(self, status: str, after: State, changes: Sequence[Change], session_s: float) -> None:
        """Write host.json and the manifest with times and the hash of every file.

        ``session_s`` are the seconds of this session; those of earlier ones are added.
        """
        assert self.host is not None
        self.host = replace(self.host, after=after)
        journal.write_json(self.path / "host.json", self.host)
        sums: Dict[str, str] = {}
        for name in ("host.json", "journal.ndjson", "changes.json"):
            if (self.path / name).exists():
                sums[name] = journal.sha256(self.path / name)
        for record in sorted(self.records, key=lambda record: record.trial):
            sums.update(record.sha256)
        phases = ("start_s", "warmup_s", "measure_s", "proof_s")
        times = {name: sum(getattr(r.times, name) for r in self.records) for name in phases}
        times["trials_s"] = sum(record.times.total_s for record in self.records)
        times["total_s"] = self.earlier_s + session_s
        self.update(
            status=status,
            ended=now_utc(),
            changes=(*self.manifest.changes, *changes),
            times={name: round(value, 3) for name, value in times.items()},
            sha256=sums,
        )
        if status == "complete":
            (self.path / "current.json").unlink(missing_ok=True)


def _new_manifest(plan: Plan, name: str) -> Manifest:
    request = plan.request
    return Manifest(
        schema=SCHEMA,
        run=name,
        host=request.host,
        experiment=request.experiment,
        profile=request.profile,
        evidence=MEASURED,
        seed=request.seed,
        started=now_utc(),
        ended=None,
        status="running",
        agent_version=VERSION,
        source_commit=os.environ.get("NUMALAB_SOURCE_COMMIT") or None,
        plan=plan,
    )


def _shape(host: Host) -> Any:
    """What must not change within a run: the processor, online CPUs and their nodes, the nodes."""
    cpus = [(cpu.number, cpu.node) for cpu in host.cpus if cpu.online]
    return host.model, cpus, [node.number for node in host.nodes]


def _up() -> timedelta:
    """Return how long the machine has been running, with the time that it was suspended."""
    return timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME))


_booted = datetime.now(timezone.utc) - _up()


def _begin_after(moment: str) -> None:
    """Let what ``now_utc`` returns from here on be RESUMED_S after a moment, at least."""
    global _booted
    with contextlib.suppress(ValueError, TypeError, OverflowError):  # no moment: the check says so
        _booted = max(_booted, _moment(moment) + timedelta(seconds=RESUMED_S) - _up())


def now_utc() -> str:
    """Return the time in UTC, as all files of a run state it: 2026-11-21T12:00:00.000Z.

    The system's clock is read once in a process: when it is put right, a run's moments stay in
    order, and as far apart as they were.
    """
    moment = _booted + _up()
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(text: str) -> datetime:
    """Return what ``now_utc`` wrote as a time; ValueError for another form."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def apart_s(earlier: str, later: str) -> float:
    """Return the seconds between two moments that ``now_utc`` wrote; ValueError for others."""
    return (_moment(later) - _moment(earlier)).total_seconds()
