"""A whole run: every trial of a plan into a run directory, stoppable and resumable anywhere.

A trial is finished when its line stands in the journal; everything else about it (raw files
without a line, temporary files) is removed and made again on resume. One measurement at a time
runs on a host: two would measure each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

from .. import SCHEMA, VERSION, drivers
from ..errors import Fault, NotHere
from ..host import state, topology
from ..plan import make as planning
from . import guard, journal, process, settings, trial
from . import lock as only_one

Event = Dict[str, Any]


class Interrupted(Fault):
    """The run was stopped by a signal; ``number`` is the signal's."""

    def __init__(self, what: str, hint: str, number: int) -> None:
        super().__init__(what, hint)
        self.number = number


def say(event: Event) -> None:
    """Print one progress event as a line of JSON on standard output."""
    try:
        print(json.dumps(event, ensure_ascii=False), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def run(
    plan: Dict[str, Any],
    out: Path,
    *,
    allow_host_changes: bool = False,
    emit: Callable[[Event], None] = say,
    record: Optional[Path] = None,
    changes_root: Path = Path("/"),
    lock: str = only_one.LOCK,
) -> Event:
    """Measure what a plan holds and a run directory does not yet; return the last event.

    ``out`` is made, or holds an unfinished run of the same plan. ``emit`` gets every progress
    event. ``record`` and ``changes_root`` are where host changes are recorded and made, ``lock``
    is the name that only one measurement of a host can hold. Raises Interrupted after SIGINT or
    SIGTERM, Fault for everything a person must act on; what was measured stays in both cases.
    """
    _check_plan(plan)
    out = Path(os.path.abspath(out))
    with only_one.measurement(lock) as held:
        one = _Run(plan, out, allow_host_changes, emit, record or settings.record_file())
        return one.run(changes_root, held)


def resume(folder: Path, **options: Any) -> Event:
    """Complete an unfinished run directory; see ``run``."""
    return run(journal.read_json(folder / "manifest.json")["plan"], folder, **options)


def _check_plan(plan: Any) -> None:
    if not isinstance(plan, dict) or type(plan.get("schema")) is not int:
        raise Fault("this is not a plan (it states no schema version)", "make one with: plan")
    if plan["schema"] > SCHEMA:
        raise Fault(
            f"the plan has schema version {plan['schema']}, this agent reads up to {SCHEMA}",
            "use the same version of numalab on both sides",
        )
    for key in ("request", "tool", "cells", "order"):
        if key not in plan:
            raise Fault(f"the plan has no {key!r}", "make it anew")
    if not plan["order"]:
        raise nothing_here(plan)


def nothing_here(plan: Dict[str, Any]) -> NotHere:
    """Return why nothing of a plan can be measured on its host."""
    # Last comes what was skipped although its binding exists here: that says most.
    reasons = planning.skipped_lines({"skipped": plan.get("skipped", [])})[::-1]
    return NotHere("there is nothing to measure on this host", "; ".join(reasons) or None)


class _Run:
    def __init__(
        self,
        plan: Dict[str, Any],
        out: Path,
        allow_host_changes: bool,
        emit: Callable[[Event], None],
        record: Path,
    ) -> None:
        self.plan = plan
        self.request = plan["request"]
        self.wanted = planning.settings(plan)
        self.out = out
        self.allowed = allow_host_changes
        self._emit = emit
        self.record = record
        self.signal: Optional[int] = None
        self.deaf = False  # nobody reads the events any more
        self.began = time.monotonic()
        self.guard: Optional[guard.Guard] = None
        self.changed: List[Dict[str, Any]] = []
        self.before = 0.0  # seconds that earlier sessions took

    def emit(self, event: Event) -> None:
        try:
            self._emit(event)
        except BrokenPipeError:
            self.deaf = True  # whoever started us is gone: stop in order

    def warn(self, text: str) -> None:
        self.emit({"event": "warning", "text": text})

    def stopped(self) -> bool:
        return self.signal is not None or self.deaf

    # --- the directory ------------------------------------------------------------------------

    def _open(self) -> None:
        """Make the run directory, or take up the one that is there."""
        manifest = self.out / "manifest.json"
        if manifest.exists():
            self.manifest = journal.read_json(manifest)
            for key in ("plan", "run", "status", "started"):
                if key not in self.manifest:
                    raise Fault(f"{manifest} has no {key!r}", "restore it from a copy")
            if _canonical(self.manifest["plan"]) != _canonical(self.plan):
                raise Fault(
                    f"{self.out} holds a run of another plan",
                    "give another directory; runs are never overwritten",
                )
            self.before = float((self.manifest.get("times") or {}).get("total_s") or 0.0)
            self.changed = list(self.manifest.get("changes") or [])
        else:
            ours = re.compile(r"\.manifest\.json\.part|\.?host\.json(\.part)?|raw")
            if self.out.exists() and (
                not self.out.is_dir()
                or any(not ours.fullmatch(name) for name in os.listdir(self.out))
            ):
                raise Fault(
                    f"{self.out} exists and is not a run directory", "give another directory"
                )
            self.manifest = {
                "schema": SCHEMA,
                "run": self.out.name,
                "host": self.request["host"],
                "experiment": self.request["experiment"],
                "profile": self.request["profile"],
                "seed": self.request["seed"],
                "started": _now(),
                "ended": None,
                "status": "running",
                "agent_version": VERSION,
                "source_commit": os.environ.get("NUMALAB_SOURCE_COMMIT") or None,
                "tools": {self.plan["tool"]["name"]: self.plan["tool"]["version"]},
                "plan": self.plan,
                "changes": [],
                "settings": {},
                "times": {},
                "sha256": {},
            }
            with journal.space_needed(self.out):
                (self.out / "raw").mkdir(parents=True, exist_ok=True)
        self._read_journal()

    def _read_journal(self) -> None:
        path = self.out / "journal.ndjson"
        self.records = journal.read(path, on_torn=self.warn)
        journal.repair(path)
        order = {entry["trial"]: entry for entry in self.plan["order"]}
        for record in self.records:
            planned = order.get(record["trial"])
            if planned is None or planned["cell"] != record.get("cell"):
                raise Fault(
                    f"{path}: trial {record['trial']} of cell {record.get('cell')!r} is not in "
                    "the plan",
                    "the journal belongs to another run; restore it from a copy",
                )
            for name, digest in (record.get("sha256") or {}).items():
                if not (self.out / name).is_file() or journal.sha256(self.out / name) != digest:
                    raise Fault(
                        f"{self.out / name} is missing or is not what trial {record['trial']} "
                        "wrote",
                        "restore it from a copy, or measure again into a new directory",
                    )
        self.done = {record["trial"] for record in self.records}

    def _clear_half_finished(self) -> None:
        kept = {name for record in self.records for name in record.get("sha256") or {}}
        for path in (self.out / "raw").iterdir():
            if f"raw/{path.name}" not in kept and re.match(r"\.?\d{4}", path.name):
                path.unlink()

    def _attempt(self, number: int) -> int:
        """Return which attempt at a trial this is, and note it for a resume."""
        path = self.out / "current.json"
        attempt = 1
        if path.exists():
            with contextlib.suppress(ValueError, KeyError, OSError):
                last = json.loads(path.read_text())
                if last["trial"] == number:
                    attempt = last["attempt"] + 1
        with journal.space_needed(path):
            path.write_text(json.dumps({"schema": SCHEMA, "trial": number, "attempt": attempt}))
        return attempt

    # --- the host -----------------------------------------------------------------------------

    def _look_at_host(self) -> None:
        self.topology = topology.read()
        now = self._state()
        emulated, why = state.emulated(self.topology, now)
        path = self.out / "host.json"
        self.host = {
            "schema": SCHEMA,
            "host": self.request["host"],
            "emulated": emulated,
            "emulated_why": why,
            "topology": self.topology,
            "before": now,
            "after": None,
        }
        if path.exists() and self.records:
            first = journal.read_json(path)
            if _shape(first["topology"]) != _shape(self.topology):
                raise Fault(
                    f"{self.out} was begun on a host with other CPUs or nodes than this one",
                    "resume it where it was begun, or measure again into a new directory",
                )
            for line in state.compare(first["before"], now):
                self.warn(f"since this run was begun: {line}")
            self.host.update(topology=first["topology"], before=first["before"])
        journal.write_json(path, self.host)

    def _state(self) -> Dict[str, Any]:
        """The host's state, and every setting that the run changes under its own name."""
        own = {
            name: {"value": value, "reason": None}
            for name, value in self.host_changes.read(list(self.wanted)).items()
        }
        return dict(sorted({**own, **state.read()}.items()))

    def _find_tool(self) -> None:
        tool = self.plan["tool"]
        self.driver = drivers.driver(tool["name"])
        self.found = self.driver.find(self.request["tool"].get("options") or {})
        if self.found["version"] != tool["version"]:
            raise Fault(
                f"the plan was made for {tool['name']} {tool['version']}, this host has "
                f"{self.found['version']}: results of two versions do not go into one run",
                "make the plan anew and measure into a new directory",
            )

    def _make_ready(self, lock: int) -> None:
        """Let the tool prepare what its trials need, where it has anything to prepare."""
        if hasattr(self.driver, "make_ready"):
            wanted = {entry["cell"] for entry in self.plan["order"]}
            cells = [cell for cell in self.plan["cells"] if cell["id"] in wanted]
            self.driver.make_ready(cells, self.found, self.emit, self.stopped, lock)
            if self.stopped():
                raise trial.Stopped

    def _check_leave(self) -> None:
        # Without its changes it would be another experiment, and resumed with them a mixture.
        if self.wanted and not self.allowed:
            raise Fault(
                f"nothing is measured: this experiment sets {planning.settings_text(self.plan)} "
                "while it measures, and may not",
                "allow it with --allow-host-changes (what was set before is put back), or take "
                "`changes` out of the experiment",
            )
        self.host_changes.refuse(list(self.wanted))

    def _clear_leftovers(self) -> None:
        """Put back what an earlier run left changed, before this host is looked at."""
        if self.wanted:
            for entry in settings.put_back(self.record, self.host_changes.root)["changes"]:
                if entry["restored"]:
                    self.warn(f"an earlier run had left {entry['name']} changed: put back")
        elif settings.pending(self.record):
            self.warn("an earlier run left host settings changed: `numalab restore` puts them back")

    def _record_settings(self, lock: int) -> None:
        if not self.wanted:
            return
        for line in self.host_changes.announce(self.wanted):
            self.warn(line)
        self.guard = guard.start(self.record, self.host_changes.root, {lock})
        self.host_changes.begin(self.wanted, self.manifest.get("settings"))
        self.manifest["settings"] = self.host_changes.usual

    # --- the run ------------------------------------------------------------------------------

    def run(self, changes_root: Path, lock: int) -> Event:
        self.host_changes = settings.HostChanges(
            self.record, self.out / "changes.json", changes_root
        )
        self._check_leave()
        self._open()
        if self.manifest["status"] == "complete" and len(self.done) == len(self.plan["order"]):
            self._emit_plan()
            return self._end("complete")
        self._find_tool()
        process.adopt_orphans()
        try:
            with self._signals():
                return self._measure(lock)
        finally:
            process.adopt_orphans(False)
            try:
                self._restore_host()
            finally:
                if self.guard:
                    self.guard.dismiss()

    def _restore_host(self) -> None:
        if self.guard and self.record.exists():
            put_back = self.host_changes.restore()
            self.changed += put_back
            for entry in put_back:
                if not entry["restored"] and entry["before"] is not None:
                    self.warn(f"{entry['name']} was not put back: {entry['reason']}")

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def note(number: int, frame: Any) -> None:
            self.signal = number

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        earlier = {
            number: signal.signal(number, note)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) is not signal.SIG_IGN  # as nohup(1) sets it
        }
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    def _measure(self, lock: int) -> Event:
        status = "stopped"
        failure: Optional[Fault] = None
        try:
            self._clear_half_finished()
            self._clear_leftovers()
            self._look_at_host()
            self.manifest.update(status="running", ended=None)
            journal.write_json(self.out / "manifest.json", self.manifest)
            self._make_ready(lock)
            self._record_settings(lock)
            journal.write_json(self.out / "manifest.json", self.manifest)
            bench = trial.Bench(
                self.plan,
                self.topology,
                self.out,
                self.driver,
                self.found,
                lock,
                self.stopped,
                self.host_changes if self.wanted else None,
            )
            self._emit_plan()
            self._trials(bench)
            status = "complete"
        except trial.Stopped:
            pass
        except Fault as fault:
            failure = fault
        except OSError as error:  # of the run directory: those of the tool are the trial's
            failure = Fault(f"{error.filename or self.out}: {error.strerror}")
        try:
            self._restore_host()
            self._finish(status)
        except Fault as fault:
            failure = failure or fault
        event = self._end(status, failure)
        if failure:
            raise failure
        if status == "stopped":
            raise self._interrupted()
        return event

    def _interrupted(self) -> Interrupted:
        number = self.signal or signal.SIGPIPE
        why = signal.Signals(number).name if self.signal else "the end of whoever started it"
        return Interrupted(
            f"stopped by {why} after {len(self.done)} of {len(self.plan['order'])} trials",
            f"what was measured stays; resume {self.out} to complete it",
            number,
        )

    def _trials(self, bench: trial.Bench) -> None:
        first_reasons: List[Optional[str]] = []
        first_block = len([e for e in self.plan["order"] if e["block"] == 1])
        spent = planned = 0.0
        for entry, cell in planning.trials(self.plan):
            if entry["trial"] in self.done:
                continue
            if self.stopped():
                raise trial.Stopped
            record, metrics = trial.measure(bench, entry, self._attempt(entry["trial"]))
            journal.append(self.out / "journal.ndjson", record)
            self.records.append(record)
            self.done.add(entry["trial"])
            spent += record["times"]["total_s"]
            planned += cell["timing"]["total_s"]
            left = planning.left_s(self.plan, self.done) * (spent / planned if planned else 1.0)
            for text in record["warnings"]:
                self.warn(f"trial {entry['trial']} ({cell['label']}): {text}")
            self.emit(
                {
                    "event": "trial",
                    "trial": entry["trial"],
                    "of": len(self.plan["order"]),
                    "block": entry["block"],
                    "label": cell["label"],
                    "grade": record["grade"],
                    "reason": record["reason"],
                    "headline": None
                    if record["grade"] == "error"
                    else trial.headline(metrics, self.request.get("headline")),
                    "left_s": round(left, 1),
                }
            )
            first_reasons.append(record["reason"] if record["grade"] == "error" else None)
            self._give_up_early(first_reasons, first_block)

    def _give_up_early(self, reasons: List[Optional[str]], first_block: int) -> None:
        """Raise Fault when a whole block of trials, and at least three, all failed alike."""
        enough = max(first_block, 3)
        if len(reasons) != enough or len(self.done) == len(self.plan["order"]):
            return
        alike = {re.sub(r"\d+(\.\d+)?", "N", reason) if reason else None for reason in reasons}
        if len(alike) == 1 and None not in alike:
            raise Fault(
                f"given up after {enough} trials, which all failed alike: {reasons[-1]}",
                "once the cause is gone, measure again into a new directory",
            )

    # --- the end ------------------------------------------------------------------------------

    def _emit_plan(self) -> None:
        self.emit(
            {
                "event": "plan",
                "trials": len(self.plan["order"]),
                "done": len(self.done),
                "left_s": round(planning.left_s(self.plan, self.done), 1),
            }
        )

    def _finish(self, status: str) -> None:
        self.host["after"] = self._state()
        journal.write_json(self.out / "host.json", self.host)
        sums = {"host.json": journal.sha256(self.out / "host.json")}
        for name in ("journal.ndjson", "changes.json"):
            if (self.out / name).exists():
                sums[name] = journal.sha256(self.out / name)
        for record in sorted(self.records, key=lambda record: record["trial"]):
            sums.update(record["sha256"])
        names = ("start_s", "warmup_s", "measure_s", "proof_s")
        times = {name: sum(r["times"][name] for r in self.records) for name in names}
        times["trials_s"] = sum(r["times"]["total_s"] for r in self.records)
        times["total_s"] = self.before + time.monotonic() - self.began
        self.manifest.update(
            status=status,
            ended=_now(),
            changes=self.changed,
            times={name: round(value, 3) for name, value in times.items()},
            sha256=sums,
        )
        journal.write_json(self.out / "manifest.json", self.manifest)
        with contextlib.suppress(FileNotFoundError):
            if status == "complete":
                (self.out / "current.json").unlink()

    def _end(self, status: str, failure: Optional[Fault] = None) -> Event:
        grades = [record["grade"] for record in self.records]
        event = {
            "event": "end",
            "status": status,
            **{grade: grades.count(grade) for grade in ("verified", "unverified", "error")},
            "dir": str(self.out),
        }
        if failure:
            event["reason"] = str(failure)
        self.emit(event)
        return event


def _canonical(plan: Dict[str, Any]) -> str:
    return json.dumps(plan, sort_keys=True)


def _shape(host: Dict[str, Any]) -> Any:
    """What must not change within a run: the processor, online CPUs and their nodes, the nodes."""
    cpus = [(cpu["cpu"], cpu["node"]) for cpu in host["cpus"] if cpu["online"]]
    return host["model"], cpus, [node["node"] for node in host["nodes"]]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
