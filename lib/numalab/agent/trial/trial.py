"""One trial: start the tool under its binding, prove the placement, measure, prove again, grade.

A tool speaks one of two protocols (its driver says which). *handshake*: it prints a line
``{"event":"ready",…}``, waits for ``go``, measures, prints ``{"event":"result",…}`` and waits for
``quit``, so that proofs and collectors stay outside the measured time. ``ready`` may carry
``"pids"``, those of its processes that are to be proven and collected with all that is below them
(else the whole tool), and ``"nothing_yet": true`` when it holds no memory before ``go`` that
could prove anything; both may carry ``"buffers"``, its memory by node. In place of either it may
say ``{"event":"fault"}`` with ``"reason"``, a code with fields, or ``"what"``, a text. *sampled*:
it runs by itself; collectors are attached before its first instruction and its placement is looked
at while it runs, seldom and ever more seldom.

On a *tour* a handshake is made for each of its cells: the driver's line that names the cell, the
tool's ``ready``, proof, ``go``, ``result``, proof; one ``quit`` ends all. Each cell has its own
grade and reason. The collectors look at the tour as a whole, and perf counts nothing.

Whatever goes wrong with the tool makes the trial's grade ``error`` with the reason, keeps its raw
output, and lets the run go on. Only a full disk and a wish to stop end it.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from .. import collectors, kernel, paths
from ..collectors import memory_model
from ..contract import (
    ERROR,
    HANDSHAKE,
    SCHEMA,
    UNVERIFIED,
    VERIFIED,
    Cell,
    Driver,
    Graded,
    Host,
    Plan,
    Proof,
    Reason,
    Record,
    Row,
    Timing,
    ToolRecord,
    Tour,
    Trial,
    TrialRecord,
    TrialTimes,
    from_json,
    reason,
    to_json,
)
from ..drivers import containers
from ..errors import Fault
from ..host import cgroup
from ..plan import kinds, resolve, tours
from . import host_changes, journal, process
from . import proof as proving
from .folder import now_utc

OUTPUT_LIMIT_BYTES = 16 << 20  # of one stream of one trial: a tool gone wild must not fill the disk
_POLL_S = 0.02
_DISTURBED = 0.05  # others' share of the cell's CPU time that is worth a warning
_DISTURBED_S = 0.1  # and at least so much of it: the kernel counts in ticks of 0.01 s
_UNPLANNED_LIMIT_S = 3600.0  # where neither the plan nor the request says how long it may take


class Stopped(Exception):
    """The run was asked to stop; the trial under way does not count."""


class _Failed(Exception):
    """Why the trial's grade is ``error``."""

    def __init__(self, why: Reason) -> None:
        super().__init__(why)
        self.why = why


class Bench(NamedTuple):
    """What all trials of a run have in common."""

    plan: Plan
    host: Host
    folder: Path  # the run directory
    driver: Driver
    found: ToolRecord  # what the driver's find() returned
    lock: int  # the descriptor of the host's measuring lock
    stopped: Callable[[], bool]
    changes: Optional[host_changes.HostChanges] = None  # the settings that cells hold or change


def raw_name(trial: int, cell: str, kind: str) -> str:
    """Return the name of a trial's raw file of one kind, relative to the run directory."""
    plain = re.sub(r"[^A-Za-z0-9_.=-]+", "-", cell)
    suffix = "" if kind in ("stdout", "stderr") else ".json"
    return f"raw/{trial:04d}-{plain}.{kind}{suffix}.gz"


def limit_s(asked: Optional[float], timing: Timing, timed: bool = False) -> float:
    """Return the seconds after which a trial is given up.

    The request's own limit, else ten times what is planned, a minute and the tool's patience
    (longer where memory's timing is emulated, ``timed``), else an hour.
    """
    planned = timing.setup_s + timing.warmup_s + timing.measure_s
    slower = memory_model.SLOWER if timed else 1
    limit_s = slower * (60 + 10 * planned + timing.patience_s)
    return asked or (limit_s if planned else _UNPLANNED_LIMIT_S)


def measure(bench: Bench, entry: Trial, attempt: int) -> Tuple[TrialRecord, List[Row]]:
    """Make one trial of the plan's order; return its record for the journal and its metrics.

    Its raw files are on disk when this returns. Raises Stopped when the run is to stop, and
    journal.DiskFull; in both cases no process of the trial is left.
    """
    return _Trial(bench, entry, attempt).measure()


class _Trial:
    def __init__(self, bench: Bench, entry: Trial, attempt: int) -> None:
        self.bench = bench
        self.driver = bench.driver
        self.entry = entry
        self.attempt = attempt
        self.cell = bench.plan.started[entry.cell]
        self.tour = isinstance(self.cell, Tour)
        visited = tours.order(bench.plan.visited(entry.cell), bench.plan.request.seed, entry.block)
        self.cells = [bench.plan.cell[id] for id in visited]
        self.limit_s = limit_s(bench.plan.request.time_limit_s, self.cell.timing, bench.host.timed)
        self.argv = self.driver.argv(bench.found, self.cell.options, self.cell)
        engine = containers.engine(self.argv)
        self.containers = containers.Started(engine) if engine else None
        self._child: Optional[process.Child] = None
        self.collection: Optional[collectors.Collection] = None
        self.collected: Optional[Mapping[str, Any]] = None
        self.model: Optional[Dict[str, Any]] = None  # the memory model's counters before
        self.proofs: List[Proof] = []
        self.warnings: List[Reason] = []
        self.failure: Optional[Reason] = None
        self.failed: Dict[str, Reason] = {}  # cells that failed by themselves
        self.unverified: Dict[str, Reason] = {}  # by cell, as the driver finds it in the output
        self.held: Set[Optional[str]] = set()  # nodes on which the tool of a tour has a buffer
        self.settings: Dict[str, str] = {}
        self.pids: List[int] = []  # that the tool named; else its whole tree
        self.read_to = 0  # how far the child's standard output has been read, in bytes
        self.proof_s = 0.0
        self.warmup_s = 0.0  # as the tool says, else as planned
        self.start_s = self.measured_s = 0.0
        self.started = now_utc()  # before the other clock, as at the end after it
        self.began = time.monotonic()
        raw = bench.folder / "raw"
        self.stdout = raw / f".{entry.trial:04d}.stdout"
        self.stderr = raw / f".{entry.trial:04d}.stderr"

    @property
    def child(self) -> process.Child:
        assert self._child is not None  # started by now
        return self._child

    def measure(self) -> Tuple[TrialRecord, List[Row]]:
        kills_before = kernel.oom_kills() or 0
        stops_before = cgroup.throttled() or 0
        try:
            try:
                if self.bench.changes:
                    self.settings = self.bench.changes.enforce(self.cell.changes)
                if not self.tour:
                    self._check_room(self.cell)
                if self.driver.protocol == HANDSHAKE:
                    self._start(talks=True)
                    self._converse()
                else:
                    self._start(gated=True)
                    self._accompany()
            except _Failed as failed:
                self.failure = failed.why
            except journal.DiskFull:
                raise
            except Fault as fault:
                self.failure = fault.reason
            finally:
                self._clean_up()
            self._check_settings()
            stops = (cgroup.throttled() or 0) - stops_before
            if stops > 0:
                held_back = reason("held-back", times=stops)
                self.unverified.update((cell.id, held_back) for cell in self.cells)
            if self.failure and (kernel.oom_kills() or 0) > kills_before:
                self.failure = reason("out-of-memory", why=to_json(self.failure))
            return self._conclude()
        finally:
            for path in (self.stdout, self.stderr):
                path.unlink(missing_ok=True)

    # --- before -------------------------------------------------------------------------------

    def _check_room(self, cell: Cell) -> None:
        need, memory = cell.need_bytes, cell.memory
        free, freeable = resolve.room_bytes(_with_fresh_memory(self.bench.host), cell)
        if free is None or free >= need:
            return
        room = {"need": need, "free": free, "nodes": memory.nodes}
        strict = kinds.POLICIES[memory.policy].own_nodes
        if strict and freeable is not None and freeable < need:
            raise _Failed(reason("no-room", **room, freeable=freeable))
        self.warnings.append(reason("little-room", **room))

    def _start(self, talks: bool = False, gated: bool = False) -> None:
        with journal.space_needed(self.stdout):
            self._child = process.start(
                self.argv,
                stdout=self.stdout,
                stderr=self.stderr,
                talks=talks,
                gated=gated,
                expendable=True,
                env=self.driver.environment(self.cell.options, self.cell),
                keep_open={self.bench.lock},
                # A tool that starts what is measured by itself binds it by itself.
                binding=None if self.driver.binds_itself else self.cell.bind_arguments,
            )
        self.deadline = time.monotonic() + self.limit_s

    def _attach(self) -> None:
        asked = self.bench.plan.request.collectors
        if asked:
            asked = replace(
                asked,
                perf=asked.perf and not self.tour,
                software_events=asked.software_events and not self.driver.switches_often,
                instances=tuple(one.name for one in self.cell.instances),
            )
            pids = self.pids or [self.child.pid]
            self.collection = collectors.start(self.cell, pids, asked)
        self.model = memory_model.start()  # last: from here on the clock is the model's

    def _detach(self) -> None:
        collection, self.collection = self.collection, None
        model, self.model = self.model, None
        counted = {}
        if model is not None:
            counted[memory_model.SOURCE] = memory_model.stop(model, self.cell.cpus)
        if collection is not None:
            self.collected = {**collection.stop(), **counted}
        if memory_model.lost(counted) and not self.failure:
            self.failure = reason("emulator-lost-time")

    # --- handshake ----------------------------------------------------------------------------

    def _converse(self) -> None:
        if self.tour:
            self._attach()
            for cell in self.cells:
                self._visit(cell)
            self._detach()
        else:
            self._exchange(self.cell, self.began)
        self.child.write_line("quit")
        self.child.close_stdin()
        quit_s = self.driver.quit_s
        if self.child.wait(time.monotonic() + quit_s) is None:
            self.warnings.append(reason("tool-did-not-quit", limit_s=quit_s))
        else:
            self._check_end()

    def _visit(self, cell: Cell) -> None:
        began = time.monotonic()
        if cell.memory.nodes not in self.held:
            try:
                self._check_room(cell)
            except _Failed as failed:
                self.failed[cell.id] = failed.why
                return
            self.held.add(cell.memory.nodes)
        self.child.write_line(self.driver.visit(cell))
        self._exchange(cell, began)

    def _exchange(self, cell: Cell, began: float) -> None:
        """From "ready" to "result", with the proofs of a cell; ``began``: when waiting began."""
        ready = self._expect("ready")
        self.start_s += time.monotonic() - began
        # A tool's first touch of its memory is warm-up too, as its timing() plans it.
        self.warmup_s += float(ready.get("setup_s") or 0.0) + float(ready.get("warmup_s") or 0.0)
        self.pids = self._named(ready.get("pids"))
        if ready.get("nothing_yet") is not True:
            self._prove(cell, "before", ready.get("buffers"))
        if not self.tour:
            self._attach()
        go = time.monotonic()
        self.child.write_line("go")
        result = self._expect("result")
        self.measured_s += time.monotonic() - go
        if not self.tour:
            self._detach()
        self._prove(cell, "after", result.get("buffers"))

    def _named(self, pids: Any) -> List[int]:
        """Return the processes that the tool names; they must be its own."""
        if pids is None:
            return []
        if not isinstance(pids, list) or not pids or not all(type(pid) is int for pid in pids):
            raise _Failed(reason("pids-unreadable", said=json.dumps(pids)[:80]))
        for pid in pids:
            if not self.child.owns(pid):
                raise _Failed(reason("pid-not-its-own", pid=pid))
        return pids

    def _expect(self, event: str) -> Dict[str, Any]:
        """Return the tool's next record of this event; any other kind of line is a failure."""
        pause = 0.001
        while True:
            ended = self.child.poll() is not None  # first, so that its last words are read
            for line in self._new_lines():
                record = _json_object(line)
                if record is None:
                    raise _Failed(reason("no-json-record", said=line[:80]))
                if record.get("event") == event:
                    return record
                if record.get("event") == "fault":
                    raise _Failed(_fault(record))
            if ended:
                self._check_end()
                raise _Failed(reason("tool-ended", event=event, said=self._last_words()))
            self._check_on_it(f'say "{event}"')
            time.sleep(pause)
            pause = min(pause * 1.5, _POLL_S)

    def _new_lines(self) -> List[str]:
        with open(self.stdout, "rb") as file:
            file.seek(self.read_to)
            text = file.read(1 << 20)
        whole = text[: text.rfind(b"\n") + 1]
        self.read_to += len(whole)
        return [line for line in whole.decode("utf-8", errors="replace").splitlines() if line]

    # --- sampled ------------------------------------------------------------------------------

    def _accompany(self) -> None:
        self._attach()
        self.child.open_gate()
        self.start_s = self.child.started - self.began
        self.deadline = self.child.started + self.limit_s
        pause = 0.001
        while not self.child.is_program() and self.child.poll() is None:
            self._check_on_it("start")
            self.child.wait(time.monotonic() + pause)
        due, step = 0.0, 0.2
        while self.child.poll() is None:
            now = time.monotonic() - self.child.started
            if now >= due:
                took = self._prove(self.cell, "running", None)
                self.child.note_peak()
                # Reading numa_maps holds up page faults: a small part of the time at most, but
                # for the first look, which finds little mapped.
                rest = took * (20 if len(self.proofs) > 1 else 2)
                due, step = max(step, now + rest), step * (2.5 if step == 0.2 else 2)
            self._check_on_it("end")
            self.child.wait(time.monotonic() + pause)
            pause = min(pause * 1.5, _POLL_S)
        ended = self.child.poll() or {}
        self.measured_s = ended["wall_s"]
        self._detach()
        self._check_end()
        peak = ended["max_rss_bytes"]
        self.proofs = proving.settled(self.proofs, self.cell.expects.memory, peak)

    # --- both ---------------------------------------------------------------------------------

    def _prove(self, cell: Cell, when: str, buffers: Optional[Mapping[str, int]]) -> float:
        """Prove the placement, of several instances each against its own binding; return seconds.

        ``buffers`` are bytes by node, of a tool that reports them.
        """
        began = time.monotonic()
        t_s = round(began - self.child.started, 3)
        host, instances = self.bench.host, cell.instances
        if instances:
            if len(self.pids) != len(instances):
                raise _Failed(reason("pids-missing", named=len(self.pids), wanted=len(instances)))
            for pid, one in zip(self.pids, instances):
                proof = proving.prove([pid], cell.of(one.name), host)
                self.proofs.append(replace(proof, when=when, t_s=t_s, instance=one.name))
        else:
            pids, why = self.pids or [self.child.pid], None
            if self.containers:
                pids, why = self.containers.roots()
            alone: Dict[str, Any] = {"alone": True} if self.tour else {}
            if why:
                proof = proving.unmade(why, host)
            else:
                proof = proving.prove(pids, cell, host, buffers=buffers, **alone)
            its = cell.id if self.tour else ""
            self.proofs.append(replace(proof, when=when, t_s=t_s, cell=its))
        took = time.monotonic() - began
        self.proof_s += took
        return took

    def _check_on_it(self, what: str) -> None:
        """Raise Stopped or _Failed when the trial must not go on."""
        if self.bench.stopped():
            raise Stopped
        if time.monotonic() > self.deadline:
            raise _Failed(reason("time-limit", what=what, limit_s=self.limit_s))
        journal.check_space(self.stdout.parent)
        for path in (self.stdout, self.stderr):
            if path.stat().st_size > OUTPUT_LIMIT_BYTES:
                raise _Failed(reason("output-limit", bytes=OUTPUT_LIMIT_BYTES))

    def _check_end(self) -> None:
        ended = self.child.poll() or {}
        number, status = ended["signal"], ended["exit_status"]
        if number is not None:
            name = kernel.signal_name(number)
            raise _Failed(reason("tool-killed", signal=name, said=self._last_words()))
        if not status:
            return
        if self.driver.protocol == HANDSHAKE:
            for record in map(_json_object, self._new_lines()):
                if record and record.get("event") == "fault":
                    raise _Failed(_fault(record))
        raise _Failed(reason("tool-exited", status=status, said=self._last_words()))

    def _last_words(self) -> str:
        records_only = self.driver.protocol == HANDSHAKE  # its stdout is not for people
        for path in (self.stderr,) if records_only else (self.stderr, self.stdout):
            lines = _tail(path).decode("utf-8", errors="replace").split("\n")
            said = [line.strip() for line in lines if line.strip()]
            why = itertools.takewhile(lambda line: not line.lower().startswith("usage:"), said)
            said = (list(why) or said)[-3:]  # a list of options after it explains nothing
            if said:
                return " | ".join(said)[-300:]
        return ""

    def _clean_up(self) -> None:
        try:
            self._detach()  # first: ended by the kill below, perf could say nothing any more
        except Fault as fault:
            self.warnings.append(fault.reason)
        left = self._child.end() if self._child is not None else []
        if self.containers and (pids := self.containers.roots()[0]):
            self.warnings.append(reason("container-left", pids=pids))
        if left:
            raise Fault(
                f"these processes cannot be killed: {left}; they hang inside the kernel",
                "look at the kernel's log; a reboot may be needed",
            )

    def _check_settings(self) -> None:
        """A setting that somebody changed meanwhile is a binding that did not hold."""
        if self.bench.changes:
            try:
                changed = self.bench.changes.changed_by_others()
            except Fault as fault:
                changed = [fault.reason]
            if changed and self.failure is None:
                self.failure, *changed = changed
            self.warnings += changed

    # --- after --------------------------------------------------------------------------------

    def _conclude(self) -> Tuple[TrialRecord, List[Row]]:
        ended = self._child.ended if self._child else None
        raw, sums = self._keep_raw(ended)
        self.warnings += disturbance(self.collected)
        rows = self._read_output(ended)
        graded = [self._graded(cell) for cell in self.cells]
        grade, why = together(graded)
        tool, times = self.bench.plan.tool, self._times()
        record = TrialRecord(
            schema=SCHEMA,
            trial=self.entry.trial,
            block=self.entry.block,
            position=self.entry.position,
            cell=self.entry.cell,
            attempt=self.attempt,
            started=self.started,
            ended=now_utc(),
            grade=grade,
            reason=why,
            argv=paths.recorded(self.argv),
            exit_status=ended["exit_status"] if ended else None,
            signal=ended["signal"] if ended else None,
            times=times,
            tool=ToolRecord(tool.name, tool.version),
            raw=raw,
            sha256=sums,
            warnings=tuple(self.warnings),
            settings=self.settings,
            bound=self._child.bound if self._child else {},
            visits=tuple(graded) if self.tour else (),
        )
        return record, rows

    def _graded(self, cell: Cell) -> Graded:
        failure = self.failure or self.failed.get(cell.id)
        if failure:
            return Graded(cell.id, ERROR, failure)
        proofs = [proof for proof in self.proofs if not self.tour or proof.cell == cell.id]
        grade, why = proving.grade(proofs, self.bench.host)
        if grade == VERIFIED and cell.id in self.unverified:
            return Graded(cell.id, UNVERIFIED, self.unverified[cell.id])
        return Graded(cell.id, grade, why)

    def _keep_raw(self, ended: Optional[Dict[str, Any]]) -> Tuple[Dict[str, str], Dict[str, str]]:
        """Write the raw files; return their names by kind and hashes by name."""
        contents: Dict[str, Any] = {}
        if self._child is not None:
            for path in (self.stdout, self.stderr):  # of far too much the beginning can be read
                if path.stat().st_size > OUTPUT_LIMIT_BYTES:
                    os.truncate(path, OUTPUT_LIMIT_BYTES >> 4)
            contents = {"stdout": self.stdout, "stderr": self.stderr, "rusage": ended}
        if self.proofs:
            contents["proof"] = {"schema": SCHEMA, "cell": self.cell.id, "proofs": self.proofs}
        if self.collected is not None:
            contents["collect"] = self.collected
        raw: Dict[str, str] = {}
        sums: Dict[str, str] = {}
        for kind, content in contents.items():
            name = raw[kind] = raw_name(self.entry.trial, self.cell.id, kind)
            if not isinstance(content, Path):
                content = (json.dumps(to_json(content), ensure_ascii=False) + "\n").encode("utf-8")
            sums[name] = journal.write_gzip(self.bench.folder / name, content)
        return raw, sums

    def _read_output(self, ended: Optional[Dict[str, Any]]) -> List[Row]:
        """Parse what the driver asks for; what cannot be read is a failure of the trial."""
        if self._child is None or len(self.failed) == len(self.cells):
            return []
        if self.driver.output == "rusage":
            text = json.dumps(ended, ensure_ascii=False) + "\n"
        else:
            path = self.stderr if self.driver.output == "stderr" else self.stdout
            text = path.read_bytes().decode("utf-8", errors="replace")
        try:
            records = self.driver.parse(text)
            for cell in self.cells:
                if cell.id not in self.failed:
                    own = [r for r in records if not self.tour or r.get("visit") == cell.id]
                    self._judge(cell, own)
            return self.driver.metrics(records)
        except Fault as fault:
            if self.failure is None:
                self.failure = reason("output-unreadable", why=to_json(fault.reason))
            return []

    def _judge(self, cell: Cell, records: Sequence[Record]) -> None:
        """Ask the driver what it thinks of the output of a cell."""
        if not records and self.tour:
            return  # the tool did not come so far, and the trial has failed
        failure = self.driver.failure(records, cell.options)
        if failure:
            self.failed[cell.id] = failure
        doubt = self.driver.unverified(records, cell.options)
        if doubt:
            self.unverified[cell.id] = doubt
        more = self.driver.doubts(records, cell.options)
        self.warnings += [one for one in more if one not in self.warnings]

    def _times(self) -> TrialTimes:
        # A tool of the handshake warms up before it says "ready".
        started, measured = self.start_s, self.measured_s
        if self.driver.protocol == HANDSHAKE:
            warmup = min(self.warmup_s or self.cell.timing.warmup_s, started)
            started -= warmup
        else:
            warmup = min(self.cell.timing.warmup_s, measured)
            measured -= warmup
        total = time.monotonic() - self.began
        seconds = (started, warmup, measured, self.proof_s, total)
        return TrialTimes(*(round(value, 4) for value in seconds))


def together(graded: Sequence[Graded]) -> Tuple[str, Optional[Reason]]:
    """Return the grade of a trial from those of its cells, see `TrialRecord`."""
    wrong = [one for one in graded if one.grade != VERIFIED]
    if len(graded) == 1 or not wrong:
        return graded[0].grade, graded[0].reason
    if all(one.grade == ERROR for one in graded):
        return ERROR, wrong[0].reason
    why = to_json(wrong[0].reason)
    verified = len(graded) - len(wrong)
    return UNVERIFIED, reason("tour-in-part", verified=verified, cells=len(graded), why=why)


def disturbance(collected: Optional[Mapping[str, Any]]) -> List[Reason]:
    """Return what others took of the cell's CPUs while the collectors looked, if it is much."""
    found = (collected or {}).get("disturbance") or {}
    share = found.get("other_share")
    if share is None or share <= _DISTURBED or found["other_s"] <= _DISTURBED_S:
        return []
    names = [one["name"] for one in found.get("busiest", [])[:3]]
    return [reason("disturbed", share=share, names=names)]


def headline(rows: Sequence[Row], wanted: Optional[str]) -> Optional[Dict[str, Any]]:
    """Return {"metric","value","unit"} of the metric to show for a trial, or None.

    Of a metric with several points it is the median of their values.
    """
    found = [row for row in rows if row.metric == wanted and row.value is not None]
    if not found:
        return None
    values = sorted(float(row.value or 0.0) for row in found)
    middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
    if not math.isfinite(middle):
        return None
    return {"metric": wanted, "value": middle, "unit": found[0].unit}


def _with_fresh_memory(host: Host) -> Host:
    """Return the host with free memory as it is now: two small files per node."""
    nodes = []
    for node in host.nodes:
        path = f"{host.root}/{kernel.NODES}/node{node.number}/meminfo"
        now = _meminfo(path)
        free = now.get("MemFree", node.free_bytes)
        cache = kernel.page_cache(now) if now else node.page_cache_bytes
        nodes.append(replace(node, free_bytes=free, page_cache_bytes=cache))
    available = _meminfo(f"{host.root}/proc/meminfo").get("MemAvailable", host.available_bytes)
    allowed = replace(host.allowed, memory_bytes=cgroup.memory_left(host.root))
    return replace(host, nodes=tuple(nodes), available_bytes=available, allowed=allowed)


def _meminfo(path: str) -> Dict[str, int]:
    return kernel.meminfo(kernel.read_text(path))


def _json_object(line: str) -> Optional[Dict[str, Any]]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _fault(record: Mapping[str, Any]) -> Reason:
    """Return the reason of a tool's fault event."""
    if isinstance(record.get("reason"), dict):
        return from_json(Reason, record["reason"], "the reason that the tool gave")
    return reason("tool-fault", what=str(record.get("what")))


def _tail(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            return file.read()
    except OSError:
        return b""
