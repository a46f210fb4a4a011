"""What of a run's records follows from the rest of the run, made again by the code that made it.

``numalab check`` holds each record against what is made here, field by field: the plan against
its request, seed and host; a trial's record against its cell, its program's end and its proofs.
What nothing else in the run says (a number in a raw file, how much memory was free) is taken as
it is recorded.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from numalab import experiments, home, runs, store, untrusted
from numalab.agent import cpulist, drivers, paths
from numalab.agent.collectors import event_files, memory_model
from numalab.agent.contract import (
    CONFIGURED,
    COUNTED,
    ERROR,
    HANDSHAKE,
    MEASURED,
    SAMPLED,
    UNVERIFIED,
    VERIFIED,
    Cell,
    Cpu,
    Graded,
    Host,
    HostRecord,
    Manifest,
    Plan,
    Proof,
    Reason,
    Record,
    Tour,
    TrialRecord,
    TrialTimes,
    dumps,
    reason,
    to_json,
)
from numalab.agent.errors import Fault, ParseError
from numalab.agent.host import state
from numalab.agent.plan import make, tours
from numalab.agent.trial import proof as placement_proof
from numalab.agent.trial import trial as trials

MOST_LOOKS = 100_000  # at the placement of one trial: two at every pair of 200 nodes
_SIZES = ("array", "bytes", "size")  # options that free memory may limit
_NEARLY = 0.1  # how far such a size may be from what the recorded memory gives
_NOTES_OF_THE_MOMENT = ("page-cache-must-go",)
_EVENTS = "lib/numalab/agent/collectors/events"
EMULATOR = "emulator-lost-time"
# Failures of a trial whose program ended well: the host, not the program, tells of them.
_UNSEEN = ("setting-changed-by-others", "setting-unreadable", EMULATOR, "no-room")


def differences(
    recorded: Any, due: Any, where: str = "", rest: str = "the rest of the run"
) -> Iterator[str]:
    """Yield where a record differs from what follows from the rest: the place, and both values."""
    recorded, due = to_json(recorded), to_json(due)
    if type(recorded) is type(due) is dict:
        for key in {**due, **recorded}:
            yield from differences(
                recorded.get(key), due.get(key), f"{where}.{key}".lstrip("."), rest
            )
    elif type(recorded) is type(due) is list and len(recorded) == len(due):
        for place, (one, other) in enumerate(zip(recorded, due, strict=True), 1):
            yield from differences(one, other, f"{where} {_name(one) or place}", rest)
    elif recorded != due:
        yield f"{where} is {_short(recorded)}, but {_short(due)} follows from {rest}"


def _name(item: Any) -> str | None:
    found = item.get("id") or item.get("asked") if isinstance(item, dict) else None
    return str(found) if found else None


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:119]}…"


# --- the plan, the host, the manifest -------------------------------------------------------------


def plan(run: runs.Run) -> Plan:
    """Return the plan made again; prices, warnings and what hangs on free memory as recorded."""
    recorded = run.plan
    made = make.again(recorded, run.host.topology)
    skips, due = ({(one.cell, one.reason.code) for one in p.skipped} for p in (recorded, made))
    became, asked = ([(one.asked, one.cells) for one in p.resolved] for p in (recorded, made))
    return replace(
        made,
        cells=tuple(_as_then(one, recorded.cell) for one in made.cells),
        tours=tuple(_as_then(one, recorded.started) for one in made.tours),
        skipped=recorded.skipped if skips == due else made.skipped,
        resolved=recorded.resolved if became == asked else made.resolved,
        warnings=recorded.warnings,
        estimate=recorded.estimate,
        outlay=recorded.outlay,
        least_s=recorded.least_s,
        settings={
            name: one.value if (one := run.host.before.get(name)) else value
            for name, value in recorded.settings.items()
        },
    )


def _as_then(made: Any, recorded: Mapping[str, Cell]) -> Any:
    """Return a cell that was made again with what only the moment of planning knew."""
    then = recorded.get(made.id)
    if then is None:
        return made
    options = dict(made.options)
    for name in _SIZES:
        if name in options and _near(options[name], then.options.get(name)):
            options[name] = then.options[name]
    if "huge_page_bytes" in options:  # of that host, and of nothing that is recorded
        options["huge_page_bytes"] = then.options.get("huge_page_bytes")
    same = _codes(made.notes) == _codes(then.notes)
    return replace(
        made,
        options=options,
        timing=then.timing,
        notes=then.notes if same else made.notes,
        need_bytes=then.need_bytes if _near(made.need_bytes, then.need_bytes) else made.need_bytes,
    )


def _near(due: Any, recorded: Any) -> bool:
    return type(due) is type(recorded) is int and abs(due - recorded) <= _NEARLY * due


def _codes(notes: Iterable[Reason]) -> list[str]:
    return [note.code for note in notes if note.code not in _NOTES_OF_THE_MOMENT]


def host(run: runs.Run) -> HostRecord:
    """Return the host's record with what follows from its CPUs and its state."""
    recorded = run.host
    emulated, why = state.emulated(recorded.topology, recorded.before)
    if not emulated:  # what the machine is does not change in a run
        emulated, why = state.emulated(recorded.topology, recorded.after or {})
    shape = replace(_shape(recorded.topology), timed=bool(recorded.timing))
    due = {"vcpus": str(len(shape.cpus))}
    if len(shape.nodes) > 1:  # else the kernel may have been told to see none of the nodes
        due["nodes"] = str(len(shape.nodes))
    timing = (
        {key: due.get(key, value) for key, value in recorded.timing.items()}
        if recorded.timing
        else recorded.timing
    )
    return replace(recorded, emulated=emulated, emulated_why=why, topology=shape, timing=timing)


def _shape(recorded: Host) -> Host:
    """Return a topology whose counts and lists are those of its CPUs."""
    online = [cpu for cpu in recorded.cpus if cpu.online]
    cores = {cpu.siblings for cpu in online}
    sizes = {len(cpulist.parse(one)) for one in cores}
    return replace(
        recorded,
        packages=_distinct(recorded.packages, [cpu.package for cpu in online]),
        cores=len(cores) if recorded.cores and "" not in cores else recorded.cores,
        threads=len(online),
        threads_per_core=sizes.pop() if recorded.threads_per_core and len(sizes) == 1
        else recorded.threads_per_core,
        cpus=tuple(_threaded(cpu) for cpu in recorded.cpus),
        nodes=tuple(
            replace(
                node, cpus=cpulist.format(c.number for c in online if c.node == node.number)
            )
            for node in recorded.nodes
        ),
        offline=cpulist.format(cpu.number for cpu in recorded.cpus if not cpu.online),
    )  # fmt: skip


def _distinct(recorded: int | None, found: Sequence[int | None]) -> int | None:
    return recorded if recorded is None or None in found else len(set(found))


def _threaded(cpu: Cpu) -> Cpu:
    siblings = cpulist.parse(cpu.siblings)
    return replace(cpu, thread=siblings.index(cpu.number) if cpu.number in siblings else cpu.thread)


def manifest(run: runs.Run) -> Manifest:
    """Return the manifest with what follows from its plan, the host's record and the trials."""
    recorded, asked = run.manifest, run.plan.request
    made = plan(run)
    phases = ("start_s", "warmup_s", "measure_s", "proof_s")
    times = {name: sum(getattr(one.times, name) for one in run.trials) for name in phases}
    times["trials_s"] = sum(one.times.total_s for one in run.trials)
    for name, value in times.items():  # a sum's last digit hangs on the version of Python
        near = math.isclose(recorded.times.get(name, -1.0), value, abs_tol=2e-3)
        times[name] = recorded.times[name] if near else round(value, 3)
    return replace(
        recorded,
        experiment=asked.experiment,
        profile=asked.profile,
        seed=asked.seed,
        status="complete" if len(run.trials) == len(run.plan.order) else recorded.status,
        evidence=CONFIGURED if run.host.timing else COUNTED if run.host.emulated else MEASURED,
        plan=replace(made, request=_as_in_file(run)),
        settings={name: _before(run, name, value) for name, value in recorded.settings.items()},
        times={**recorded.times, **times} if recorded.ended else recorded.times,
        formulas=_formulas(run),
    )


def _before(run: runs.Run, name: str, recorded: str | None) -> str | None:
    known = run.host.before.get(name)
    return recorded if known is None or not isinstance(known.value, str) else known.value


def _formulas(run: runs.Run) -> dict[str, str]:
    """Return a run's formulas, those left out that no file of events of its commit gives a metric.

    All of them where that commit is not known here, or files of it were changed: they are recorded
    so that a run outlives its files.
    """
    recorded = dict(run.manifest.formulas)
    known = _events(run.manifest.source_commit or "") if recorded else None
    return recorded if known is None else dict(one for one in recorded.items() if one in known)


@cache
def _events(commit: str) -> set[tuple[str, str]] | None:
    """Return every formula that the files of events of a commit give a metric, with the metric."""
    listed = _committed(commit, f"{_EVENTS}/")
    if listed is None:
        return None
    found: set[tuple[str, str]] = set()
    for name in listed.splitlines():
        if name.endswith(".txt") and name != "README.txt":
            try:
                group = event_files.parse_group(name, _committed(commit, f"{_EVENTS}/{name}") or "")
            except Fault:  # written for another version
                return None
            found |= set(group.formulas.items())
    return found


def _as_in_file(run: runs.Run) -> Any:
    """Return the request with what no option of the command line changes as its file says it."""
    recorded = run.plan.request
    made = [_written(file, recorded) for file in _files(run)]
    return recorded if recorded in made or not made else made[0]


def _written(file: experiments.Experiment, recorded: Any) -> Any:
    cases = {one.name: replace(one, says=one.says or one.name) for one in file.cases}
    every = file.request(recorded.profile, recorded.host, seed=recorded.seed)
    return replace(
        recorded,
        question=every.question,
        headline=every.headline,
        measure=every.measure,
        baseline=every.baseline,
        control=every.control,
        changes=every.changes,
        names=every.names,
        cases=tuple(cases.get(one.name, one) for one in recorded.cases),
    )


def _files(run: runs.Run) -> Iterator[experiments.Experiment]:
    """Yield the experiment that a run was made by, where it can be told: the first counts most.

    Its own file; else that of the commit that it names; else, where that commit is not known here
    or files of it were changed, that of this checkout.
    """
    name, commit = run.manifest.experiment, run.manifest.source_commit or ""
    if run.own_experiment:
        yield run.experiment
        return
    known = name in experiments.names()
    path = f"experiments/{name}.yml"
    text = _committed(commit.removesuffix("-dirty"), path) if known else None
    if text is not None:
        try:
            yield experiments.parse(text, name, home.root() / "experiments" / f"{name}.yml")
        except Fault:  # written for another version
            text = None
    if known and (text is None or commit.endswith("-dirty")):
        yield experiments.load(name)


def of_this_repository(run: runs.Run) -> bool:
    """Tell whether the commit that a run names, or this checkout, has an experiment of its name."""
    name, commit = run.manifest.experiment, run.manifest.source_commit or ""
    listed = _committed(commit.removesuffix("-dirty"), "experiments/")
    known = experiments.names() if listed is None else listed.replace(".yml", "").split()
    return name in known


_GIT_S = 600


@cache
def _committed(commit: str, path: str) -> str | None:
    """Return a file, or a folder's list, as a commit of this checkout has it; None if unknown.

    Fault where git does not answer: a run must not be judged by other files for that.
    """
    if re.fullmatch("[0-9a-f]{40}", commit) is None:
        return None
    command = ["git", "show", f"{commit}:{path}"]
    try:
        done = subprocess.run(command, cwd=home.root(), capture_output=True, timeout=_GIT_S)
    except OSError:
        return None
    except subprocess.TimeoutExpired:
        raise Fault(f"{' '.join(command)} did not end within {_GIT_S} s", "try again") from None
    return done.stdout.decode("utf-8", errors="replace") if done.returncode == 0 else None


# --- a trial --------------------------------------------------------------------------------------


class Trial:
    """A recorded trial with its raw files, read once; Fault where one cannot be read."""

    def __init__(self, run: runs.Run, record: TrialRecord) -> None:
        self.run = run
        self.record = record
        self.cell = run.plan.started[record.cell]
        self.driver = drivers.driver(run.plan.tool.name)
        self.usage = self._json("rusage")
        self.collected = self._json("collect")
        self.records, self.unread = self._parsed()
        self.proofs = self._proofs()

    def _json(self, kind: str) -> Any:
        name = self.record.raw.get(kind)
        return None if name is None else store.read_json(self.run.folder, name)

    def _parsed(self) -> tuple[list[Record], Reason | None]:
        name = self.record.raw.get(self.driver.output)
        if name is None:
            return [], reason("output-unreadable", why="there is none")
        text = store.read_raw(self.run.folder, name)
        try:
            with untrusted.little_memory(self.run.folder / name):
                return self.driver.parse(text), None
        except ParseError as error:
            return [], reason("output-unreadable", why=to_json(error.reason))

    def _proofs(self) -> list[Proof]:
        found = self._json("proof")
        if found is None:
            return []
        name = self.record.raw["proof"]
        listed = found.get("proofs") if isinstance(found, dict) else None
        if not isinstance(listed, list) or len(listed) > MOST_LOOKS:
            raise Fault(f"{name} holds no proofs, or too many")
        if found.get("cell") != self.record.cell:
            raise Fault(f"{name} is of the cell {str(found.get('cell'))[:60]!r}")
        return [runs.validated(Proof, json.dumps(one).encode(), name) for one in listed]

    # --- what follows ---------------------------------------------------------------------------

    def due(self) -> TrialRecord:
        """Return the record as it follows from the plan, the raw files and the proofs."""
        record, tool = self.record, self.run.plan.tool
        graded = [self.grade(one) for one in self.visited()]
        grade, why = trials.together(graded)
        ended = self.usage or {}
        return replace(
            record,
            attempt=max(1, record.attempt),
            argv=self._argv(),
            tool=replace(tool, path=None, why=(), facts={}),
            raw={kind: trials.raw_name(record.trial, record.cell, kind) for kind in self._kinds()},
            exit_status=ended.get("exit_status"),
            signal=ended.get("signal"),
            grade=grade,
            reason=why,
            visits=tuple(graded) if isinstance(self.cell, Tour) else (),
            bound=self._bound(),
            times=self._times(),
            warnings=self._warnings(),
        )

    def _kinds(self) -> list[str]:
        """The raw files that there must be, in the order in which they are written."""
        needed = ["stdout", "stderr", "rusage"]
        if any(one.grade == VERIFIED for one in self.record.graded):
            needed.append("proof")
        collects = self.run.plan.request.collectors is not None
        if collects:
            needed.append("collect")
        missing = needed if self.record.grade != ERROR else []
        kinds = dict.fromkeys([*self.record.raw, *missing])
        return [one for one in kinds if one != "collect" or collects]

    def _argv(self) -> tuple[str, ...]:
        tool, cell = self.run.plan.tool, self.cell
        return paths.recorded(self.driver.argv(replace(tool, why=()), cell.options, cell))

    def _bound(self) -> dict[str, str]:
        record, cell = self.record, self.cell
        if self.driver.binds_itself or (record.grade == ERROR and not record.bound):
            return {}
        usable = cpulist.format(self.run.host.topology.usable)
        due = {"cpus": usable if cell.cpus is None else cell.cpus}
        if "policy" in record.bound:  # not every kernel tells it
            due |= {"policy": cell.memory.policy, "nodes": cell.memory.nodes or ""}
        return due

    def _times(self) -> TrialTimes:
        recorded = self.record.times
        if self.record.grade == ERROR or self.usage is None:
            return recorded
        if self.driver.protocol == SAMPLED:
            wall = float(self.usage["wall_s"])
            warmup = min(self.cell.timing.warmup_s, wall)
            return replace(recorded, warmup_s=round(warmup, 4), measure_s=round(wall - warmup, 4))
        stated = sum(
            float(one.get(name) or 0.0)
            for one in self.events("ready")
            for name in ("setup_s", "warmup_s")
        )
        warmup = min(stated or self.cell.timing.warmup_s, recorded.start_s + recorded.warmup_s)
        near = abs(warmup - recorded.warmup_s) < 2e-4  # both were rounded
        return recorded if near else replace(recorded, warmup_s=round(warmup, 4))

    def events(self, kind: str) -> list[Record]:
        """Return what a tool of the handshake said of one kind, in order."""
        name = self.record.raw.get("stdout")
        if self.driver.protocol != HANDSHAKE or name is None:
            return []
        lines = store.read_raw(self.run.folder, name).splitlines()
        return [one for one in map(_object, lines) if one.get("event") == kind]

    def _warnings(self) -> tuple[Reason, ...]:
        """Return the warnings, those that follow from the raw files made again."""
        if self.record.grade == ERROR:
            return self.record.warnings
        due = trials.disturbance(self.collected)
        for cell in self.cells():
            due += self.driver.doubts(self.own(cell.id), cell.options)
        codes = {"disturbed", *(one.code for one in due)}
        recorded = [one for one in self.record.warnings if one.code in codes]
        if sorted(map(dumps, recorded)) == sorted(map(dumps, due)):
            return self.record.warnings
        return (*(one for one in self.record.warnings if one.code not in codes), *due)

    # --- grades ---------------------------------------------------------------------------------

    def visited(self) -> list[str]:
        """Return the cells that it measures, in the order in which it has to."""
        plan, record = self.run.plan, self.record
        return tours.order(plan.visited(record.cell), plan.request.seed, record.block)

    def cells(self) -> list[Cell]:
        """Return the cells for which the trial is worth something."""
        return [self.run.cells[one.cell] for one in self.record.graded if one.grade != ERROR]

    def versions(self) -> set[str]:
        """Return the versions of itself that the tool's output names."""
        found = (one.get("text") if one.get("kind") == "version" else one.get("version")
                 for one in self.records if one.get("kind") in ("version", "setup"))  # fmt: skip
        return {one for one in found if isinstance(one, str)}

    def own(self, cell: str) -> list[Record]:
        """Return the records of the output that are of one cell."""
        tour = isinstance(self.cell, Tour)
        return [one for one in self.records if not tour or one.get("visit") == cell]

    def proofs_again(self, cell: Cell) -> tuple[list[Proof], list[Proof]]:
        """Return a cell's proofs as they are recorded, and as they follow from their figures."""
        tour = isinstance(self.cell, Tour)
        recorded = [proof for proof in self.proofs if not tour or proof.cell == cell.id]
        due = [placement_proof.again(proof, cell, self.run.host.topology) for proof in recorded]
        if self.driver.protocol == SAMPLED and self.usage is not None:
            due = placement_proof.settled(due, cell.expects.memory, self.usage.get("max_rss_bytes"))
        return recorded, due

    def grade(self, id: str) -> Graded:
        """Return what the trial is worth for a cell, by its raw output, its end and its proofs.

        A failure of which nothing else can tell is taken as it is recorded.
        """
        recorded = next(one for one in self.record.graded if one.cell == id)
        due = self._by_output_and_proofs(id)
        code = recorded.reason.code if recorded.reason else ""
        if code and recorded.grade == ERROR:  # of several reasons the first one counted
            seen = due.grade == ERROR or self._failed
            unseen = code in _UNSEEN and (code != EMULATOR or not self.collected)
            late = code == "time-limit" and self.record.times.total_s >= self._limit_s
            return recorded if seen or unseen or late or not self.record.raw else due
        if (due.grade, recorded.grade, code) == (VERIFIED, UNVERIFIED, "held-back"):
            return recorded
        return due

    @property
    def _limit_s(self) -> float:
        """The seconds after which it is given up; just then its program may end by itself."""
        asked, host = self.run.plan.request.time_limit_s, self.run.host
        return trials.limit_s(asked, self.cell.timing, bool(host.timing))

    @property
    def _failed(self) -> bool:
        """Whether the program did not end well by itself."""
        ended = self.usage or {}
        return ended.get("signal") is not None or ended.get("exit_status") != 0

    def _by_output_and_proofs(self, id: str) -> Graded:
        cell, ended = self.run.cells[id], self.usage or {}
        own = self.own(id)
        if self.run.host.timing and memory_model.lost(self.collected or {}):
            return Graded(id, ERROR, reason(EMULATOR))
        quit_late = any(one.code == "tool-did-not-quit" for one in self.record.warnings)
        if ended.get("signal") is not None and not quit_late:
            return Graded(id, ERROR, reason("tool-killed", signal=ended["signal"], said=""))
        if ended.get("exit_status") not in (0, None):
            return Graded(id, ERROR, reason("tool-exited", status=ended["exit_status"], said=""))
        if self.unread or not own:
            nothing = reason("output-unreadable", why="nothing in it is of this cell")
            return Graded(id, ERROR, self.unread or nothing)
        failure = self.driver.failure(own, cell.options)
        if failure:
            return Graded(id, ERROR, failure)
        grade, why = placement_proof.grade(self.proofs_again(cell)[1], self.run.host.topology)
        doubt = self.driver.unverified(own, cell.options) if grade == VERIFIED else None
        return Graded(id, UNVERIFIED, doubt) if doubt else Graded(id, grade, why)


def _object(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
