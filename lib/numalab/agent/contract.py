"""What crosses the border between the two halves, or is handed from room to room: typed values.

Every value is a frozen dataclass. On the host it is built and passed as it is; on disk it is the
JSON of its fields (`to_json`, `from_json`); on the controller pydantic validates the same classes
once, where a run is loaded. CPUs and nodes are written in the kernel's list format ("0-3,8").
Sizes are in bytes and times in seconds unless a field's name says otherwise. A value that is not
known is None, and a `Reason` says why where that is not plain.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from dataclasses import dataclass, field
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from .errors import Fault
from .reasons import Reason as Reason

SCHEMA = 3

# What kind of evidence a figure is; a badge that travels with it.
MEASURED, COUNTED, CONFIGURED, PUBLISHED = "measured", "counted", "configured", "published"
EVIDENCE = (MEASURED, COUNTED, CONFIGURED, PUBLISHED)
VERIFIED, UNVERIFIED, ERROR = "verified", "unverified", "error"
GRADES = (VERIFIED, UNVERIFIED, ERROR)
BASELINE, CELL, CONTROL = "baseline", "cell", "control"  # the roles of a cell
NOT_RECORDED = "not recorded"  # the memory policy of what was measured elsewhere

T = TypeVar("T")
Json = Any


def reason(code: str, **fields: Any) -> Reason:
    """Return a reason by its code and fields; a field may be a reason itself."""
    return Reason(code, to_json(fields))


# --- the host ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cpu:
    """One hardware thread as the kernel numbers it; ids are None where the kernel has none."""

    number: int
    online: bool
    node: Optional[int]
    package: Optional[int]
    die: Optional[int]
    cluster: Optional[int]
    core: Optional[int]
    siblings: str  # the hardware threads of its core, itself included
    thread: int  # its place among them, from 0
    allowed: bool  # by this process's cpuset
    l3: Optional[int]  # index into Host.caches


@dataclass(frozen=True)
class HugePagePool:
    """The reserved huge pages of one size on one node."""

    size_bytes: int
    total: Optional[int]
    free: Optional[int]


@dataclass(frozen=True)
class Node:
    """One NUMA node; `distances` are SLIT distances by node number (10 is local).

    `tier` is N of the kernel's memory_tierN (the smaller, the faster); latency and bandwidth are
    what the firmware (ACPI HMAT) says of reads by the nearest CPUs; `weight` is its share of
    weighted interleaving, in pages a round; `side_cache_bytes` is the largest cache in front of its
    memory (DRAM before persistent memory, HBM in cache mode), which is no processor's.
    """

    number: int
    cpus: str
    memory_bytes: Optional[int]
    free_bytes: Optional[int]
    page_cache_bytes: Optional[int]  # that can be dropped: shared memory is none
    distances: Mapping[int, int]
    hugepages: Tuple[HugePagePool, ...] = ()
    allowed_memory: bool = True
    tier: Optional[int] = None
    read_latency_ns: Optional[int] = None
    read_bandwidth_mb_s: Optional[int] = None
    weight: Optional[int] = None
    side_cache_bytes: Optional[int] = None


@dataclass(frozen=True)
class Cache:
    """One cache and the CPUs that share it; `type` is Data, Instruction or Unified."""

    level: int
    type: str
    size_bytes: Optional[int]
    cpus: str


@dataclass(frozen=True)
class PciDevice:
    """A device whose node matters: storage, network, accelerator."""

    address: str
    class_id: str
    kind: str
    node: Optional[int]
    names: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Allowed:
    """What this process's control groups allow: its cpuset, and limits on time and memory."""

    cpus: str
    nodes: str
    cpu_time: Optional[float] = None  # as many CPUs' worth of it; None: without a limit
    memory_bytes: Optional[int] = None  # that it can still get; None: without a limit


@dataclass(frozen=True)
class ClientCpus:
    """The CPUs that the client of a served experiment has for itself in every cell.

    `cpus` is None where it has none of its own (`why`) or runs on another host (`host`).
    """

    cpus: Optional[str]
    why: Optional[Reason] = None
    host: Optional[str] = None


@dataclass(frozen=True)
class Host:
    """The shape of a machine, as the kernel shows it, and what of it may be used.

    Counts are None where the kernel does not say, or the value is mixed. `problems` has a line
    for everything that could not be read or contradicts itself.
    """

    root: str
    arch: Optional[str]
    model: Optional[str]
    vendor: Optional[str]
    packages: Optional[int]
    dies: Optional[int]
    clusters: Optional[int]
    cores: Optional[int]
    threads: int
    threads_per_core: Optional[int]
    cpus: Tuple[Cpu, ...]
    nodes: Tuple[Node, ...]
    caches: Tuple[Cache, ...]
    pci: Tuple[PciDevice, ...]
    allowed: Allowed
    offline: str
    possible: Optional[str]
    available_bytes: Optional[int]
    problems: Tuple[Reason, ...] = ()
    client: Optional[ClientCpus] = None  # whose CPUs are no longer `allowed` in `cpus`
    timed: bool = False  # emulated with a configured memory timing: its seconds are a model's

    @functools.cached_property
    def node(self) -> Dict[int, Node]:
        """The nodes by number."""
        return {one.number: one for one in self.nodes}

    @functools.cached_property
    def cpu(self) -> Dict[int, Cpu]:
        """All CPUs by number."""
        return {one.number: one for one in self.cpus}

    @functools.cached_property
    def usable(self) -> Dict[int, Cpu]:
        """The CPUs that are online and allowed, by number."""
        return {one.number: one for one in self.cpus if one.online and one.allowed}

    @functools.cached_property
    def cpus_of(self) -> Dict[int, List[int]]:
        """The usable CPUs of each node, ascending; nodes without any are absent."""
        found: Dict[int, List[int]] = {}
        for number in sorted(self.usable):
            node = self.usable[number].node
            if node is not None:
                found.setdefault(node, []).append(number)
        return found

    @functools.cached_property
    def memory_nodes(self) -> List[int]:
        """The nodes that can hold pages, ascending (also those whose memory could not be read)."""
        return sorted(n.number for n in self.nodes if n.memory_bytes != 0 and n.allowed_memory)

    @functools.cached_property
    def memory_only(self) -> List[int]:
        """The nodes of `memory_nodes` that have no CPU, not even an offline one: CXL, HBM …"""
        with_cpus = {cpu.node for cpu in self.cpus}
        return [number for number in self.memory_nodes if number not in with_cpus]

    @functools.cached_property
    def main_nodes(self) -> List[int]:
        """The nodes of `memory_nodes` that have CPUs, usable or not."""
        return [number for number in self.memory_nodes if number not in self.memory_only]

    @property
    def one_visible_node(self) -> bool:
        """Whether only one node with memory can be seen, so that placement can prove nothing."""
        return len([node for node in self.nodes if node.memory_bytes != 0]) == 1

    def distance(self, cpu_node: int, memory_node: int) -> Optional[int]:
        """Return the SLIT distance (10 is local) that the firmware gives, or None."""
        return self.node[cpu_node].distances.get(memory_node)

    def cores_of(self, cpus: Iterable[int]) -> List[List[int]]:
        """Return usable CPUs as cores, each the list of its hardware threads, ascending."""
        groups: Dict[str, List[int]] = {}
        for number in sorted(cpus):
            groups.setdefault(self.usable[number].siblings or str(number), []).append(number)
        return sorted(groups.values())

    def order(self, cpus: Iterable[int]) -> List[int]:
        """Return CPUs with the first hardware thread of every core before the second of any."""
        ranked = [(rank, n) for core in self.cores_of(cpus) for rank, n in enumerate(core)]
        return [number for _, number in sorted(ranked)]

    def nodes_of(self, cpus: Iterable[int]) -> List[int]:
        """Return the nodes of usable CPUs, ascending."""
        found = {self.usable[number].node for number in cpus}
        return sorted(node for node in found if node is not None)


@dataclass(frozen=True)
class Setting:
    """The value of one setting of the host, or why it could not be read."""

    value: Any
    reason: Optional[Reason] = None


State = Mapping[str, Setting]  # by name: "vm.zone_reclaim_mode", "thp.enabled", "cpu.governor" …


@dataclass(frozen=True)
class HostRecord:
    """host.json: the machine of a run, and its state before and after."""

    schema: int
    host: str
    emulated: bool
    emulated_why: Optional[Reason]
    topology: Host
    before: State
    after: Optional[State]
    timing: Mapping[str, str] = field(default_factory=dict)  # of memory, where it is configured


# --- the request and the plan -----------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """A metric of an experiment: its unit, and which way is better ("higher", "lower")."""

    unit: str
    better: str


@dataclass(frozen=True)
class ToolRequest:
    """The tool asked for, those that may stand in for it, and its options."""

    name: str
    prefer: Tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepRequest:
    """More cells: an option of the tool, value by value, for some of the bindings.

    `pairs` "class": for one node and pair of each distance, where the request has every one.
    """

    option: str
    values: Tuple[Any, ...]
    bindings: Tuple[Any, ...]
    pairs: Optional[str] = None


@dataclass(frozen=True)
class CaseRequest:
    """A state of the host under which bindings are measured; no bindings are all of them."""

    name: str
    says: str = ""
    bindings: Optional[Tuple[Any, ...]] = None
    options: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CollectorRequest:
    """What the collectors do; the last two are set by the trial, not by an experiment."""

    perf: bool = True
    interval_s: float = 1.0
    software_events: bool = True
    instances: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """What is asked of a host: an experiment in one profile, independent of any topology.

    `pairs` is "class" (one node, and one pair of each distance, stand for all those alike) or
    "every".
    """

    schema: int
    experiment: str
    profile: str
    host: str
    tool: ToolRequest
    bindings: Tuple[Any, ...]
    blocks: int
    seed: int
    question: str = ""
    baseline: Any = None
    control: bool = True
    sweep: Tuple[SweepRequest, ...] = ()
    cases: Tuple[CaseRequest, ...] = ()
    names: Tuple[Any, ...] = ()  # bindings that claims and charts name; resolved, not measured
    headline: Optional[str] = None
    measure: Mapping[str, Measure] = field(default_factory=dict)
    collectors: Optional[CollectorRequest] = CollectorRequest()  # None: no collectors
    changes: Mapping[str, str] = field(default_factory=dict)
    time_limit_s: Optional[float] = None
    pairs: str = "class"
    budget_s: Optional[float] = None  # of the whole run: what does not fit is left out, and said
    until: Optional[float] = None  # blocks are added until all differs or is alike within it
    looks: Tuple[int, ...] = ()  # the blocks after which that is asked; planned with the blocks


@dataclass(frozen=True)
class MemoryPolicy:
    """A policy of set_mempolicy(2): default (first touch), bind, interleave, preferred,

    weighted-interleave.
    """

    policy: str
    nodes: Optional[str] = None


@dataclass(frozen=True)
class MemoryExpectation:
    """Where a workload's memory must be (`proof` required), or that it is recorded or ignored.

    `rule` within: nearly all of the pages on `nodes`; shares: its part on each of `nodes`, equal
    ones, or by `weights`. How nearly is a constant of `plan.kinds`: no plan can widen it. With
    `policy` only large mappings that have that policy are judged. `why` says why a placement is
    only an outcome.
    """

    proof: str  # required, outcome, none
    rule: Optional[str] = None
    nodes: Optional[str] = None
    weights: Optional[Mapping[int, int]] = field(default=None, hash=False)  # pages in turn, by node
    policy: Optional[str] = None
    why: Optional[Reason] = None


@dataclass(frozen=True)
class CpuExpectation:
    """The CPUs that all threads must stay on (`proof` required), or that they are recorded."""

    proof: str  # required, outcome
    cpus: Optional[str] = None


@dataclass(frozen=True)
class Expectation:
    """What the placement proof of a cell expects."""

    memory: MemoryExpectation
    cpus: CpuExpectation


@dataclass(frozen=True)
class Bound:
    """A CPU set x a memory policy: what a process is started under."""

    cpus: Optional[str]  # None: no CPU policy
    cpu_nodes: str
    memory: MemoryPolicy
    expects: Expectation

    @property
    def bind_arguments(self) -> Dict[str, Optional[str]]:
        """The arguments of `kernel.bind`, which puts a program under this binding."""
        return {"cpus": self.cpus, "policy": self.memory.policy, "nodes": self.memory.nodes}

    @property
    def numactl(self) -> Tuple[str, ...]:
        """The words with which a reader starts a program so, by numactl(8); () for no binding."""
        words = [] if self.cpus is None else [f"--physcpubind={self.cpus}"]
        if self.memory.nodes is not None:
            option = {"bind": "membind"}.get(self.memory.policy, self.memory.policy)
            words.append(f"--{option}={self.memory.nodes}")
        return ("numactl", *words) if words else ()


@dataclass(frozen=True)
class Instance(Bound):
    """One of several servers of a cell, with a binding of its own."""

    name: str = ""


@dataclass(frozen=True)
class Sweep:
    """The value of the swept option of a cell."""

    option: str
    value: Any


@dataclass(frozen=True)
class Case:
    """The case that a cell belongs to."""

    name: str
    says: str


@dataclass(frozen=True)
class Timing:
    """Planned seconds of one trial.

    `patience_s` is how much longer it may take at most: it is part of its limit, not of its price.
    """

    setup_s: float = 0.0
    warmup_s: float = 0.0
    measure_s: float = 0.0
    total_s: float = 0.0
    patience_s: float = 0.0


@dataclass(frozen=True)
class Cell(Bound):
    """One line of the design: a binding, with the tool's options, in a case of the host."""

    id: str = ""
    binding: str = ""  # the name of the binding that it came from
    label: str = ""
    role: str = CELL  # baseline, cell, control
    baseline: Optional[str] = None  # the id of the cell that it is compared with
    cpu_order: Optional[str] = None  # first hardware threads before second ones
    threads: int = 1
    distance: Optional[int] = None
    rank: Tuple[str, ...] = ()  # "nearest", "farthest" of its CPU node's remote pairs
    stands_for: Optional[Reason] = None  # the nodes or pairs that are alike and not measured
    layout: str = ""  # how cores or instances are laid out: packed, spread, node, ranges …
    sweep: Optional[Sweep] = None
    case: Optional[Case] = None
    instances: Tuple[Instance, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)
    need_bytes: int = 0
    timing: Timing = Timing()
    notes: Tuple[Reason, ...] = ()

    @property
    def numactl(self) -> Tuple[str, ...]:
        """As of `Bound`; several instances are each bound by themselves."""
        return () if self.instances else super().numactl

    @property
    def variant(self) -> str:
        """Its case's name, or "OPTION=VALUE" of its sweep; "" for the binding as it is."""
        if self.sweep:
            return f"{self.sweep.option}={self.sweep.value}"
        return self.case.name if self.case else ""

    def of(self, instance: str) -> Cell:
        """Return the cell as one of its instances has it: with that one's own binding."""
        one = next(one for one in self.instances if one.name == instance)
        return dataclasses.replace(
            self, cpus=one.cpus, cpu_nodes=one.cpu_nodes, memory=one.memory, expects=one.expects,
            instances=(),
        )  # fmt: skip


@dataclass(frozen=True)
class Tour(Cell):
    """Cells that one trial visits in one process, in an order drawn for each block.

    As a cell it is what that process is started under; it binds itself anew for each visit.
    """

    visits: Tuple[str, ...] = ()  # ids of cells


@dataclass(frozen=True)
class Skip:
    """Something asked for that is not measured on this host, and why."""

    binding: str
    cell: str  # the cell's id, or what was asked for
    reason: Reason
    variant: str = ""  # as of `Cell`


@dataclass(frozen=True)
class Resolution:
    """What a binding that somebody named became on this host: cells, or why there are none.

    The cells are those of the plan in every case and with every swept value, without the control.
    """

    asked: str  # its one spelling, as `Binding.text` gives it
    cells: Tuple[str, ...] = ()
    reason: Optional[Reason] = None


@dataclass(frozen=True)
class Trial:
    """A trial in the plan's order; all count from 1."""

    trial: int
    block: int
    position: int
    cell: str  # or the id of a tour


@dataclass(frozen=True)
class ToolRecord:
    """The tool that measures: its version, place, what else it says of itself, why not another."""

    name: str
    version: Optional[str] = None
    path: Optional[str] = None
    why: Tuple[str, ...] = ()  # what was said of each tool that was passed over
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outlay:
    """What must be prepared once before the first trial, and what that costs."""

    prepare_s: float
    disk_bytes: int
    memory_bytes: int
    says: Reason


@dataclass(frozen=True)
class Plan:
    """A request resolved on a host: cells with sizes as numbers, and every trial in its order."""

    schema: int
    request: Request
    tool: ToolRecord
    cells: Tuple[Cell, ...]  # also those that a tour visits
    skipped: Tuple[Skip, ...]
    resolved: Tuple[Resolution, ...]
    order: Tuple[Trial, ...]
    warnings: Tuple[Reason, ...]
    estimate: Timing
    client: Optional[ClientCpus] = None
    outlay: Optional[Outlay] = None
    tours: Tuple[Tour, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)  # the host's own, that cells hold
    least_s: float = 0.0  # the smallest budget that leaves anything of it

    @functools.cached_property
    def cell(self) -> Dict[str, Cell]:
        """The cells by id."""
        return {cell.id: cell for cell in self.cells}

    @functools.cached_property
    def started(self) -> Dict[str, Cell]:
        """What a trial can be of, by id: the tours, and the cells that no tour visits."""
        visited = {id for tour in self.tours for id in tour.visits}
        alone = (cell for cell in self.cells if cell.id not in visited)
        return {one.id: one for one in (*self.tours, *alone)}

    def visited(self, id: str) -> Tuple[str, ...]:
        """Return the ids of the cells that a trial of a tour, or of a cell, measures."""
        one = self.started[id]
        return one.visits if isinstance(one, Tour) else (id,)


# --- a trial ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One value of a metric; `value` None has a reason. `point`, `x`, `y` place it in a series."""

    metric: str
    value: Optional[float]
    unit: str
    point: str = ""
    x: Optional[float] = None
    y: Optional[float] = None
    reason: Optional[Reason] = None
    source: str = "tool"
    cell: str = ""  # the cell that it is of, where a tour measured it


@dataclass(frozen=True)
class Sample:
    """One value of a series, `t_s` after the measurement began."""

    t_s: float
    metric: str
    value: Optional[float]
    unit: str
    point: str = ""
    source: str = "tool"
    cell: str = ""  # as of `Row`


@dataclass(frozen=True)
class MemoryProof:
    """Where the pages of a workload were. Shares are of 1, by node.

    `interleaved_bytes` are those of its large mappings that have this policy.
    """

    ok: Optional[bool]
    reason: Optional[Reason] = None
    source: Optional[str] = None  # numa_maps, move_pages
    pages_bytes: Mapping[int, int] = field(default_factory=dict)
    interleaved_bytes: Mapping[int, int] = field(default_factory=dict)
    shares: Mapping[int, float] = field(default_factory=dict)
    anonymous_bytes: Optional[int] = None
    mixed_bytes: int = 0
    processes: int = 0
    resident_bytes: Optional[int] = None
    policies: Mapping[str, int] = field(default_factory=dict)
    page_bytes: int = 4096  # of an ordinary page of that host
    lumps: int = 0  # bytes of huge pages that may be one too many on a node: one a mapping


@dataclass(frozen=True)
class CpuProof:
    """Where the threads of a workload might run and were seen."""

    ok: Optional[bool]
    reason: Optional[Reason] = None
    threads: int = 0
    allowed: str = ""
    seen: str = ""
    outside: str = ""


@dataclass(frozen=True)
class Proof:
    """One look at a running workload: True holds, False does not, None could not be made.

    `absent`: there was nothing to look at (not started, ended, no page of its own). `early`: it
    came before the program had its memory and is not judged.
    """

    ok: Optional[bool]
    memory: MemoryProof
    cpus: CpuProof
    reason: Optional[Reason] = None
    absent: bool = False
    early: bool = False
    when: str = ""  # before, running, after
    t_s: float = 0.0
    instance: Optional[str] = None
    note: Optional[Reason] = None
    cell: str = ""  # that was visited, on a tour


@dataclass(frozen=True)
class TrialTimes:
    """Seconds of each phase of a trial; 0 for one that was not reached."""

    start_s: float
    warmup_s: float
    measure_s: float
    proof_s: float
    total_s: float


@dataclass(frozen=True)
class Graded:
    """What a trial is worth for one cell."""

    cell: str
    grade: str
    reason: Optional[Reason] = None


@dataclass(frozen=True)
class TrialRecord:
    """A line of the journal. `previous` is the sha256 of the line before: the lines are a chain.

    Of a tour, `visits` are its cells in the order in which it visited them; its own grade is
    `error` where no visit can be used, and `verified` where all are.
    `bound` is what the kernel said was in force when the program started: `cpus`, `policy` and
    `nodes`; empty where the tool binds what it starts by itself.
    """

    schema: int
    trial: int
    block: int
    position: int
    cell: str
    attempt: int
    started: str
    ended: str
    grade: str
    reason: Optional[Reason]
    argv: Tuple[str, ...]
    exit_status: Optional[int]
    signal: Optional[int]
    times: TrialTimes
    tool: ToolRecord
    raw: Mapping[str, str]
    sha256: Mapping[str, str]
    warnings: Tuple[Reason, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    visits: Tuple[Graded, ...] = ()
    bound: Mapping[str, str] = field(default_factory=dict)
    previous: str = ""

    @property
    def graded(self) -> Tuple[Graded, ...]:
        """Every cell that it measured, with its own grade."""
        return self.visits or (Graded(self.cell, self.grade, self.reason),)


@dataclass(frozen=True)
class Change:
    """A setting that the run changed, and whether it was put back."""

    name: str
    before: Optional[str]
    restored: bool
    reason: Optional[Reason] = None


@dataclass(frozen=True)
class Manifest:
    """manifest.json: what was asked, what it became, and the hash of every file it stands on.

    `evidence` is one of EVIDENCE; `formulas` are those by which derived counters are computed
    from raw ones, by metric, as they were when the run was made; `sha256` is by file.
    """

    schema: int
    run: str
    host: str
    experiment: str
    profile: str
    evidence: str
    seed: int
    started: str
    ended: Optional[str]
    status: str  # running, stopped, complete, imported
    agent_version: str
    source_commit: Optional[str]
    plan: Plan
    settings: Mapping[str, Optional[str]] = field(default_factory=dict)  # before the run
    changes: Tuple[Change, ...] = ()
    busy: Tuple[Reason, ...] = ()  # what else was at work when it began, and was allowed to be
    times: Mapping[str, float] = field(default_factory=dict)
    formulas: Mapping[str, str] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)


# --- a driver ---------------------------------------------------------------------------------

Record = Dict[str, Any]  # one flat record of a parsed output
HANDSHAKE, SAMPLED = "handshake", "sampled"  # the protocols between a trial and its tool
Tell = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Prepared:
    """Options with every size as a number, and the memory that a trial needs with them."""

    options: Mapping[str, Any]
    need_bytes: int
    notes: Tuple[Reason, ...] = ()
    full_node: bool = False  # the tool fills a node: its placement is the outcome
    timing: Optional[Timing] = None  # where it depends on the host; else `Driver.timing` gives it


@dataclass(frozen=True)
class Advice:
    """Names and lines that a recommendation pastes: of the program, its service, its own file.

    In ``program`` and ``address`` (where a balancer finds it; "": none is used) ``%i`` is what
    tells several instances apart: numbers from ``first``. ``environment`` is KEY=VALUE.
    """

    program: str = "PROGRAM"
    service: str = "NAME"
    file: Optional[str] = None
    lines: Tuple[str, ...] = ()
    remarks: Tuple[str, ...] = ()
    first: int = 1
    address: str = ""
    environment: Tuple[str, ...] = ()


class Driver:
    """A tool that measures. A subclass sets `name` and `protocol` and says the first six methods;

    the others have defaults that fit a tool which runs by itself and reports on stdout.
    """

    name = ""
    protocol = SAMPLED
    output = "stdout"  # what `parse` reads: stdout, stderr, rusage (a JSON record)
    binds_itself = False  # it starts what is measured, and binds that
    switches_often = False  # perf then counts no software events: they cost at each switch
    quit_s = 10.0  # how long it may take to end after "quit"
    resolves: Sequence[str] = ()  # options that what `prepare` returns must hold

    def find(self, options: Mapping[str, Any]) -> ToolRecord:
        """Return the tool that is there; Fault when none can be used."""
        raise NotImplementedError

    def of_record(self, plan: Plan) -> Driver:
        """Return a driver that plans again what a recorded plan holds.

        The plan may be a stranger's: it looks at no program, and starts none.
        """
        return self

    def prepare(
        self, options: Mapping[str, Any], host: Host, cpus: str, memory_nodes: str
    ) -> Prepared:
        """Return the options resolved for a cell of these CPUs and nodes; Fault for a bad one."""
        raise NotImplementedError

    def timing(self, options: Mapping[str, Any]) -> Timing:
        """Return the planned seconds of a trial with resolved options (`total_s` is ignored).

        Not asked where `prepare` gave them.
        """
        raise NotImplementedError

    def tour(self, options: Mapping[str, Any]) -> str:
        """Return the tour that cells with these resolved options are visited on; "": on none."""
        return ""

    def on_tour(self, cells: Sequence[Cell]) -> Tuple[List[Cell], Timing]:
        """Return the cells of a tour with the options of a visit, and the timing of all visits.

        The timing of each cell is that of its own visit. A tool that tours is one process, says
        "ready" once for each visit, and its records have the `visit` (a cell's id) that they are
        of, as its rows and samples have `cell`.
        """
        raise NotImplementedError

    def binding_options(self, options: Mapping[str, Any]) -> Tuple[str, ...]:
        """Return the options that themselves place memory, or are compared as a binding is."""
        return ()

    def visit(self, cell: Cell) -> str:
        """Return the line that sends the tool to a cell of its tour."""
        raise NotImplementedError

    def argv(self, found: ToolRecord, options: Mapping[str, Any], cell: Cell) -> List[str]:
        """Return the command line; it is started under the cell's binding."""
        raise NotImplementedError

    def parse(self, text: str) -> List[Record]:
        """Return an output as flat records; ParseError with the line that it could not read."""
        raise NotImplementedError

    def metrics(self, records: Sequence[Record]) -> List[Row]:
        """Return the metric rows of parsed records."""
        raise NotImplementedError

    def samples(self, records: Sequence[Record]) -> List[Sample]:
        """Return the series within parsed records."""
        return []

    def environment(self, options: Mapping[str, Any], cell: Cell) -> Dict[str, str]:
        """Return variables to add to the tool's environment."""
        return {}

    def set_aside(
        self, options: Mapping[str, Any], bindings: Sequence[Any], host: Host
    ) -> Optional[ClientCpus]:
        """Return the CPUs that a client has for itself in every cell; None without a client."""
        return None

    def expects(
        self, options: Mapping[str, Any], cell: Cell, host: Host
    ) -> Optional[MemoryExpectation]:
        """Return where memory must be because of an option of `binding_options`, or None."""
        return None

    def resolve(self, option: str, value: Any, host: Host) -> Any:
        """Return a swept option's value with words ("doubling") as numbers."""
        return value

    def outlay(self, cells: Sequence[Cell]) -> Optional[Outlay]:
        """Return what must be prepared before the first trial, and its price."""
        return None

    def make_ready(
        self,
        cells: Sequence[Cell],
        found: ToolRecord,
        tell: Tell,
        stopped: Callable[[], bool],
        lock: int,
    ) -> None:
        """Prepare what `outlay` named."""

    def calibration(self, cells: Sequence[Cell]) -> Optional[Cell]:
        """Return a cell to measure once before the first trial, or None.

        Its rows are for `calibrated`; they are no results.
        """
        return None

    def calibrated(self, cell: Cell, rows: Sequence[Row]) -> Mapping[str, Any]:
        """Return the options that what was measured gives all cells; Fault where it gives none.

        They become part of the request too, so that the recorded plan holds them.
        """
        raise NotImplementedError

    def failure(self, records: Sequence[Record], options: Mapping[str, Any]) -> Optional[Reason]:
        """Return why a trial with this output must not be believed, or None."""
        return None

    def unverified(self, records: Sequence[Record], options: Mapping[str, Any]) -> Optional[Reason]:
        """Return why a trial that ended well did not measure what its cell is about, or None.

        Its grade is then `unverified` with this reason, whatever its placement was.
        """
        return None

    def doubts(self, records: Sequence[Record], options: Mapping[str, Any]) -> List[Reason]:
        """Return what should be known of a trial with this output."""
        return []

    def advice(self, found: ToolRecord, cell: Cell) -> Advice:
        """Return how what was measured is put under a cell's binding for good."""
        return Advice()


# --- JSON -------------------------------------------------------------------------------------


def to_json(value: Any) -> Json:
    """Return a value of the contract as what json.dump writes: objects, lists and plain values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


def dumps(value: Any) -> str:
    """Return a value of the contract as one line of JSON."""
    return json.dumps(to_json(value), ensure_ascii=False, allow_nan=False)


def from_json(kind: Type[T], data: Json, where: str = "") -> T:
    """Return the JSON of a class of the contract as that class.

    Raises Fault, with the place, for a key that is unknown or missing and for a value of another
    type.
    """
    found: T = _read(kind, data, where or kind.__name__)
    return found


@functools.cache
def _hints(kind: Any) -> Dict[str, Any]:
    return get_type_hints(kind)


def _read(kind: Any, data: Json, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return data
    if origin is Union:  # Optional
        return None if data is None else _read(arguments[0], data, where)
    if dataclasses.is_dataclass(kind):
        return _read_fields(kind, data, where)
    if origin is tuple:
        if not isinstance(data, (list, tuple)):
            raise _wrong(where, data, "a list")
        return tuple(_read(arguments[0], item, f"{where}[{n}]") for n, item in enumerate(data))
    if origin is not None:  # Mapping
        if not isinstance(data, Mapping):
            raise _wrong(where, data, "a mapping")
        return {
            _read_key(arguments[0], key, where): _read(arguments[1], item, f"{where}.{key}")
            for key, item in data.items()
        }
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise _wrong(where, data, f"of type {kind.__name__}")
    if kind is float and not math.isfinite(data):
        raise _wrong(where, data, "a finite number")
    return data


def _read_fields(kind: Any, data: Json, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise _wrong(where, data, "a mapping")
    hints = _hints(kind)
    unknown = sorted(set(map(str, data)) - set(hints))
    if unknown:
        raise Fault(f"{where} has an unknown key {unknown[0]!r}", f"known: {', '.join(hints)}")
    for one in dataclasses.fields(kind):
        needed = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        if needed and one.name not in data:
            raise Fault(f"{where} lacks the key {one.name!r}")
    return kind(**{name: _read(hints[name], data[name], f"{where}.{name}") for name in data})


def _read_key(kind: Any, key: Any, where: str) -> Any:
    if kind is not int:
        return key
    try:
        return int(key)
    except ValueError:
        raise _wrong(where, key, "a number as a key") from None


def _wrong(where: str, data: Any, wanted: str) -> Fault:
    shown = repr(data)
    return Fault(f"{where} is {shown[:60]}{'…' if len(shown) > 60 else ''}, not {wanted}")
