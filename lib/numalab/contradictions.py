"""Where the files of a run contradict each other, though each of them could be by itself.

Each finding is a (file, sentence). ``numalab check`` asks for them trial by trial, in the order of
the journal.

An honest run passes on any machine: between any two readings of a clock a program can be held up
for any time. So seconds are held only against those that were read around them, never against
those that were read beside them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from numalab import rederived, runs, store, untrusted
from numalab.agent import cpulist
from numalab.agent.collectors import memory_model, numastat, perf
from numalab.agent.contract import (
    ERROR,
    HANDSHAKE,
    VERIFIED,
    Cell,
    HostRecord,
    Record,
    Tour,
    TrialRecord,
)
from numalab.agent.host import settings, state, virtualisation
from numalab.agent.served.driver import ServedDriver
from numalab.agent.trial.folder import RESUMED_S, apart_s

SLACK_S = 1.0  # for what was rounded
_CLOCKS = 1.12  # adjtimex(2) lets the system's clock run 10 % slower than those of CPU time
_ECHOED = ("mode", "bytes", "array_bytes", "seed")  # options that an output repeats
_SECONDS = ("start_s", "fill_s", "warmup_s", "data_s", "stop_s", "elapsed_s", "seconds")
_TWICE = ("rusage", "collect")  # raw files that no two trials can have alike

Found = Iterator[tuple[str, str]]


def _beyond(part_s: float, whole_s: float) -> bool:
    """Tell whether seconds that lie within others, by whatever clock, are more than these."""
    return part_s > _CLOCKS * whole_s + SLACK_S


class Journal:
    """The trials of a run as they come: each is held against itself and those before it."""

    def __init__(self, run: runs.Run) -> None:
        self.run = run
        self._last: TrialRecord | None = None
        self._counted: dict[str, float] = {}  # what the counters had come to then
        self._seen: dict[str, int] = {}  # trials by the hashes of their raw files
        self._behind = _behind(run)

    def of_trial(self, trial: rederived.Trial) -> Found:
        """Yield what contradicts in the raw files of the next trial."""
        if trial.record.grade != ERROR:  # two that failed alike say the same
            yield from self._copied(trial)
            yield from _of_program(trial)
            yield from _of_cells(trial)
        if trial.collected is not None:
            yield from self._counters(trial)
            name = trial.record.raw["collect"]
            yield from ((name, one) for one in _of_collection(self.run, trial))

    def _copied(self, trial: rederived.Trial) -> Found:
        talks = ("stdout",) if trial.driver.protocol == HANDSHAKE else ()
        for kind in (*_TWICE, *talks):
            name = trial.record.raw.get(kind, "")
            digest = trial.record.sha256.get(name)
            if digest is None or not store.read_raw(self.run.folder, name):
                continue
            other = self._seen.setdefault(digest, trial.record.trial)
            if other != trial.record.trial:
                yield name, f"it is that of trial {other}, byte by byte"

    def _counters(self, trial: rederived.Trial) -> Found:
        """Counters of the kernel, and of the memory model, never fall while a machine runs."""
        record, before = trial.record, self._last
        # A session that goes on with a run, perhaps after a restart, begins later than that.
        follows = before is not None and apart_s(before.ended, record.started) < RESUMED_S
        counted: dict[str, float] = {}
        for name, (first, last), behind in self._pairs(trial.collected):
            counted[name] = last
            if _fell(first, last, behind):
                yield record.raw["collect"], f"{name} falls from {first} to {last}"
            if follows and _fell(self._counted.get(name, first), first, behind):
                past = self._counted[name]
                yield record.raw["collect"], f"{name} begins at {first}, and was {past} before"
        self._last, self._counted = record, counted

    def _pairs(self, collected: Mapping[str, Any]) -> Iterator[tuple[str, list[float], int]]:
        model = (collected.get(memory_model.SOURCE) or {}).get("counters") or {}
        of_kernel = collected.get(numastat.SOURCE) or {}
        for part, behind in ((of_kernel, self._behind), (model, 0)):
            yield from ((name, pair, behind) for name, pair in _leaves(part, ()))


def _fell(before: float, now: float, behind: int) -> bool:
    """Tell whether a counter fell, and did not come round (a 32-bit kernel's)."""
    came_round = before < 1 << 32 and before - now > 1 << 31
    return now < before - behind and not came_round


def _behind(run: runs.Run) -> int:
    """Return by how much a reading of numastat may be too low, or too high.

    Linux 4.14 to 5.13 add up a part of 16 bits of each CPU and zone while the CPU may be moving it
    to the node's own (mm/vmstat.c, refresh_cpu_vm_stats); later ones move all, then read.
    """
    release = str(state.value(run.host.before, "kernel.release") or "")
    found = re.match(r"(\d+)\.(\d+)", release)
    moved = found is not None and (4, 14) <= (int(found[1]), int(found[2])) < (5, 14)
    return (4 << 16) * len(run.host.topology.cpus) if moved else 0


def _leaves(part: Any, path: tuple[str, ...]) -> Iterator[tuple[str, list[float]]]:
    if isinstance(part, dict):
        for key, inner in part.items():
            yield from _leaves(inner, (*path, key))
    else:
        yield " ".join(path), part


# --- one program ----------------------------------------------------------------------------------


def _of_program(trial: rederived.Trial) -> Found:
    """Tell where two raw files of a trial cannot be of one program."""
    raw, usage = trial.record.raw, trial.usage
    wall, *used = (usage[name] for name in ("wall_s", "user_s", "system_s"))
    looks, total_s = [proof.t_s for proof in trial.proofs], trial.record.times.total_s
    cpus = len(trial.run.host.topology.cpus)  # one that was offline may have come
    # Its process may have waited at the gate before: its CPU time is of the whole trial.
    if min(wall, *used) < 0 or _beyond(sum(used), cpus * total_s):
        yield raw["rusage"], f"{used} s of CPU time in {total_s} s on {cpus} CPUs cannot be"
    # A program may end when it was just seen to run: its own time is not around its looks.
    if looks != sorted(looks) or (looks and looks[-1] > total_s + SLACK_S):
        yield raw["proof"], f"its looks at {looks} s are not within the trial's {total_s} s"
    if not _memory_agrees(trial):
        yield raw["proof"], f"its memory is where its program ({raw['stdout']}) had none"
    measured = sum(float(one.get("measure_s") or 0.0) for one in trial.events("result"))
    if _beyond(measured, wall):
        yield raw["stdout"], f"it says that it measured for {measured} s of {wall} s"
    for version in trial.versions():
        if version not in str(trial.run.plan.tool.version):
            versions = f"its tool is {trial.run.plan.tool.version}, its output of {version}"
            yield raw["stdout"], f"{versions} (manifest.json)"


def _memory_agrees(trial: rederived.Trial) -> bool:
    """Tell whether the looks saw pages only where the program says that its buffers are."""
    stated = [
        {int(node): size for node, size in one["buffers"].items() if size}
        for kind in ("ready", "result") for one in trial.events(kind)
        if one.get("nothing_yet") is not True and one.get("buffers")
    ]  # fmt: skip
    seen = [
        dict(proof.memory.pages_bytes)
        for proof in trial.proofs
        if proof.when in ("before", "after") and proof.memory.pages_bytes  # a look can fail
    ]
    return not stated or all(one in stated for one in seen)


def _of_collection(run: runs.Run, trial: rederived.Trial) -> Iterator[str]:
    """Tell where what the collectors saw cannot have been while this trial was measured."""
    found, total_s = trial.collected, trial.record.times.total_s
    lasted = found.get("collected_s", 0.0)
    if lasted > total_s + SLACK_S:  # from before its program's start to after its end
        yield f"the collectors looked for {lasted} s of the trial's {total_s} s"
    counted = found.get(perf.SOURCE) or {}
    for part in (counted.get("instances") or {"": counted}).values():
        lines = perf.counts(part["raw"]) if part.get("raw") else {}
        for event in part.get("events", ()):
            line = lines.get(event["event"])
            if event["value"] is not None and (line is None or line.value != event["value"]):
                yield f"perf's {event['event']} is not what its output says"
    model = found.get(memory_model.SOURCE)
    if bool(model) != bool(run.host.timing) and trial.record.grade != ERROR:
        yield "host.json says otherwise whether memory's timing is configured"
    if model and run.host.timing:
        yield from _of_model(run.host, trial.cell, model, lasted)


def _of_model(
    host: HostRecord, cell: Cell, model: Mapping[str, Any], lasted: float
) -> Iterator[str]:
    """Tell where a model of memory's timing counted something else than this cell's run."""
    counters = model["counters"]
    cpus = {f"cpu {cpu.number}" for cpu in host.topology.cpus}
    clock_s = (counters["clock_ps"][1] - counters["clock_ps"][0]) / 1e12
    due = float(host.timing.get("instruction_ns", model["instruction_ns"]))
    if cpus != {key for key in counters if key.startswith("cpu ")}:
        yield "the model counted other CPUs than host.json has"
    if model["cpus"] != cell.cpus or model["instruction_ns"] != due:
        yield "the model's CPUs or its time of an instruction are not those of the cell"
    if _beyond(clock_s, lasted):
        yield f"the model's clock went on for {clock_s:.1f} s of {lasted} s"


# --- what a tool says of itself -------------------------------------------------------------------


def _of_cells(trial: rederived.Trial) -> Found:
    """Tell where a tool's output is of another cell than the trial is, by what it says itself."""
    name = trial.record.raw["stdout"]
    visits = [one.get("visit") for one in trial.events("ready")]
    order = [one for one in trial.visited() if one in visits]
    if isinstance(trial.cell, Tour) and visits != order:
        yield name, f"it visited {', '.join(map(str, visits))}, in another order than is planned"
    for cell in trial.cells():
        for record in trial.own(cell.id):
            yield from ((name, one) for one in _of_record(trial, cell, record))
        yield from ((name, one) for one in _points(trial.own(cell.id), cell.options))
        if trial.driver.protocol == HANDSHAKE:
            yield from ((trial.record.raw["proof"], one) for one in _looks(trial, cell))
        if isinstance(trial.driver, ServedDriver):
            yield from ((name, one) for one in _of_served(trial, cell))


def _looks(trial: rederived.Trial, cell: Cell) -> Iterator[str]:
    """Tell where a trial that came to its end was not looked at as often as every trial is."""
    tour = isinstance(trial.cell, Tour)
    ready = [one for one in trial.events("ready") if not tour or one.get("visit") == cell.id]
    early = any(one.get("nothing_yet") is True for one in ready)
    names: list[str | None] = [one.name for one in cell.instances]
    names = names or [None]
    due = [(when, name) for when in ("before", "after")[early:] for name in names]
    looks = [one for one in trial.proofs if not tour or one.cell == cell.id]
    if [(one.when, one.instance) for one in looks] != due:
        yield f"{cell.label} was not looked at before and after, each of its servers by itself"


def _of_served(trial: rederived.Trial, cell: Cell) -> Iterator[str]:
    """Tell where servers and clients are not those of the cell, or not of one trial."""
    ran = [one for one in trial.records if one.get("kind") == "run"]
    yield from _who_took_part(trial, cell, ran)
    yield from _what_they_used(trial, cell, ran)
    load = (trial.run.plan.tool.facts.get("service") or {}).get("load") or {}
    if any(one["exit_status"] != 0 or (load and one["figures"] != load["figures"]) for one in ran):
        yield "a client's run failed, or was read by other patterns than its service's"
    asked = {one["request"] for one in trial.records if "request" in one}
    if asked and "{" not in load["request"] and asked != {load["request"]}:
        yield f"its clients asked for {', '.join(sorted(asked))}, not {load['request']}"


def _who_took_part(trial: rederived.Trial, cell: Cell, ran: list[Record]) -> Iterator[str]:
    """Tell where servers, clients, phases, balancer or warm-up are not those of the cell."""
    options, service = cell.options, trial.run.plan.tool.facts.get("service") or {}
    names = [one.name for one in cell.instances] or [""]
    balanced = options.get("balancer", "none") != "none"
    phases: list[str | None] = [None]
    if service:
        wanted = {"saturation": options["saturation_s"], "rate": options["rate"]}
        phases = [phase for phase, asked in wanted.items() if asked]
    due = [(phase, name) for phase in phases for name in ([""] if balanced else names)]
    if sorted(map(str, due)) != sorted(str((one.get("phase"), one["instance"])) for one in ran):
        yield "its clients' runs are not one for each phase and server of its cell"
    if [one["instance"] for one in trial.records if one.get("kind") == "server"] != names:
        yield "its servers are not those of its cell"
    kinds = [one.get("kind") for one in trial.records]
    until = (service.get("warm") or {}).get("until")
    if kinds.count("balancer") != balanced or (service and kinds.count("warm") != bool(until)):
        yield "a balancer, or a condition of the warm-up, is not there, or is not its service's"


def _what_they_used(trial: rederived.Trial, cell: Cell, ran: list[Record]) -> Iterator[str]:
    """Tell where parts of a trial took more time, or more CPU time, than the whole."""
    usage, cpus = trial.usage, len(trial.run.host.topology.cpus)
    wall = usage["wall_s"]
    seconds = [one[key] for one in trial.records for key in _SECONDS if key in one]
    if _beyond(max(seconds, default=0.0), wall):
        yield f"a part of it took {max(seconds)} s of {wall} s"
    used = 0.0 if cell.options.get("client_host") else sum(one["client_cpu_s"] for one in ran)
    if used > usage["user_s"] + usage["system_s"] + SLACK_S:
        yield f"its clients used {used:.1f} s of CPU time, the whole trial less"
    for one in ran:  # a server is looked at after its client's end, at any time
        served = (one.get("server") or {}).get("cpu_s") or 0.0
        if _beyond(served, cpus * wall):
            yield f"its server used {served} s of {cpus} CPUs in {wall} s"


def _of_record(trial: rederived.Trial, cell: Cell, record: Record) -> Iterator[str]:
    """Hold one record of a tool's output against its cell."""
    kind, options, facts = record.get("kind"), cell.options, trial.run.plan.tool.facts
    if kind == "setup":
        yield from _of_setup(record, options)
    elif record.get("name") == "prime_limit":  # of sysbench
        if record["value"] != options.get("cpu_max_prime"):
            yield f"it looked for primes up to {record['value']}, not {options['cpu_max_prime']}"
    elif kind == "thread":
        yield from _of_thread(trial, cell, record)
    elif kind in ("server", "balancer"):
        server = facts.get("server")
        title = server if kind == "server" else f"HAProxy {facts.get('balancer_version')}"
        if server and record.get("title") != title:
            yield f"it was {record.get('title')}, manifest.json says {title}"
        if kind == "server":
            yield from _of_server(record, options, facts.get("service") or {})
    elif kind == "warm":
        until = (facts["service"]["warm"] or {}).get("until") or {}
        if any(record[key] != until.get(key) for key in ("counter", "below")):
            yield "it waited for another condition of the warm-up than its service's"


def _of_setup(record: Record, options: Mapping[str, Any]) -> Iterator[str]:
    """Hold what a tool or a client says that it was asked for against its cell's options."""
    due = {key: options[key] for key in _ECHOED if key in options}
    if "phase" in record and "mode" in record:
        due["time_s"] = options["saturation_s" if record["phase"] == "saturation" else "time_s"]
        due["mode"] = "open" if record["rate"] else "closed"
        if record["connections"] > options["connections"] or record["rate"] > options["rate"]:
            yield "it asked for more than its cell does"
    for key, value in due.items():
        if key in record and record[key] != value:
            yield f"its {key} is {record[key]}, its cell's is {value}"


def _of_thread(trial: rederived.Trial, cell: Cell, record: Record) -> Iterator[str]:
    """Hold the CPUs of a thread against its cell's, where the cell is verified.

    Elsewhere its threads may have lost their CPUs (hot-unplug).
    """
    verified = any((one.cell, one.grade) == (cell.id, VERIFIED) for one in trial.record.graded)
    if cell.cpus is None or not verified:
        return
    at = [record["pinned"], record["began_on"], record["ended_on"]]
    if not {one for one in at if one is not None} <= set(cpulist.parse(cell.cpus)):
        yield f"a thread was on the CPUs {at}, its cell has {cell.cpus}"


def _of_server(
    record: Record, options: Mapping[str, Any], service: Mapping[str, Any]
) -> Iterator[str]:
    """Hold how a server was started against its cell's options and its service."""
    config, variables = str(record.get("config")), record.get("variables") or {}
    for key in sorted(set(options) & set(variables)):
        if str(options[key]) != variables[key] or f"{key} = {variables[key]}\n" not in config:
            yield f"its {key} is {variables[key]}, its cell's is {options[key]}"
    words = shlex.split(service.get("start", ""))
    literal = [one for one in words if not set(one) & set("{ ~")]  # ~ and names were replaced
    lost = [one for one in literal if one not in config]
    files: Iterable[str] = (service.get("files") or {}).values()
    if lost or any("{" not in text and text not in config for text in files):
        yield f"it was not started as its service says{': ' + lost[0] if lost else ''}"


def _points(own: list[Record], options: Mapping[str, Any]) -> Iterator[str]:
    """Tell of points of a loaded latency that were asked for, and are not there."""
    loaded = [(one["mix"], one["delay"]) for one in own if one.get("kind") == "loaded"]
    if loaded and "delays" in options and "mixes" in options:
        asked = [(mix, delay) for mix in options["mixes"] for delay in options["delays"]]
        if sorted(loaded) != sorted(asked):
            yield f"it measured {len(loaded)} points, its cell has {len(asked)}"


# --- the run --------------------------------------------------------------------------------------


def of_run(run: runs.Run) -> Found:
    """Yield what manifest.json says of times and changes, and the trials or the host do not."""
    manifest = run.manifest
    for when, known in (("before", run.host.before), ("after", run.host.after)):
        if known is not None and virtualisation.contradicts_itself(known):
            yield "host.json", f"{when}: virt.hypervisor is not what its evidence and firmware name"
    trials_s = sum(one.times.total_s for one in run.trials)
    if manifest.ended and manifest.times.get("total_s", trials_s) < trials_s - SLACK_S:
        yield "manifest.json", f"its trials took {trials_s:.1f} s of {manifest.times['total_s']} s"
    noted = {one.name for one in manifest.changes}
    if (run.folder / "changes.json").exists():
        kept = untrusted.parse_json(
            untrusted.read_bytes(run.folder, "changes.json", untrusted.MIB),
            run.folder / "changes.json",
        )
        due = {(one["name"], one["before"], bool(one["restored"])) for one in kept["changes"]}
        listed = {(one.name, one.before, one.restored) for one in manifest.changes}
        for one in sorted(due - listed, key=str):
            yield "manifest.json", f"changes.json tells of a change of {one[0]} that is not there"
    made = {name for trial in run.trials for name in _changed(run, trial)}
    for name in sorted(made - noted):
        yield "manifest.json", f"{name} was changed for a cell, and no change of it is noted"
    asked = {name for cell in run.plan.started.values() for name in cell.changes}
    for name in sorted(noted - asked - {settings.MOUNTED}):  # that is for the collectors
        yield "manifest.json", f"a change of {name} is noted, which no cell asks for"


def _changed(run: runs.Run, trial: TrialRecord) -> Iterator[str]:
    cell, before = run.plan.started[trial.cell], run.manifest.settings
    for name in cell.changes:
        if name in trial.settings and before.get(name) not in (None, trial.settings[name]):
            yield name
