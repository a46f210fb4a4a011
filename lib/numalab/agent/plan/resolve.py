"""Bindings become cells on a host, each linked to the baseline's cell that it is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from .. import cpulist
from ..contract import BASELINE, CONTROL, Bound, Cell, Host, Reason, Skip, reason
from ..errors import Fault
from . import classes, grammar, kinds
from .grammar import ROOMIEST, Binding
from .kinds import KINDS


def parse(asked: Any) -> Binding:
    """Return what a binding of an experiment file or a command line means.

    ``"local"``, ``{"local": "roomiest"}``, ``{"remote": "0->1"}``,
    ``{"cores": {"count": 8, "within": "node"}}``, ``{"cpus": "0-31", "mem": "0"}``; the id of a
    cell is a binding too (``"remote:0-1"``, ``"cores:8-spread"``, ``"cpus:0-31,mem=0"``). Raises
    Fault for what is none of these.
    """
    name, given = grammar.split(asked, list(KINDS))
    kind = KINDS[name]
    if given is None and not kind.needs_argument:
        return Binding(name, None, name)
    argument, spelt = kind.form(name, given)
    return Binding(name, argument, f"{name}:{spelt}" if spelt else name)


Key = Tuple[Any, ...]
MOST_CELLS = 1 << 16  # of all bindings: every pair of 256 nodes


def key(cell: Cell) -> Key:
    """Return what tells the bindings of two cells apart; cases and swept values share one."""
    return (cell.cpus, cell.memory, tuple((one.cpus, one.memory) for one in cell.instances))


@dataclass
class Resolved:
    """What bindings became: the cells in the order of the bindings, the skips, the warnings.

    ``keys`` holds the cells of every binding by its spelling, ``reasons`` the first reason for
    which something of it was skipped; ``looked_at`` counts cells and skips of all bindings.
    """

    cells: List[Cell] = field(default_factory=list)
    skipped: List[Skip] = field(default_factory=list)
    warnings: List[Reason] = field(default_factory=list)
    keys: Dict[str, List[Key]] = field(default_factory=dict)
    reasons: Dict[str, Reason] = field(default_factory=dict)
    looked_at: int = 0


def resolve(
    bindings: Sequence[Any],
    host: Host,
    baseline: Any = None,
    names: Iterable[Any] = (),
    seed: Optional[int] = None,
) -> Resolved:
    """Return the cells of bindings on a host, without options, and what is skipped.

    Nodes ascend within a binding. ``baseline`` is one of the bindings (or a bare name of some of
    them; of those that need an argument the first); one that is not among them is added for those
    cells that are compared with it. Cells that are alike on this host are kept once. ``names``
    are further bindings, which become no cells: ``keys`` and ``reasons`` say what they are here.
    With a ``seed`` one node or pair stands for those alike (`classes`), but where one is named.

    Raises Fault for an unknown binding and for an explicit request that the host cannot meet.
    """
    wanted = list({b.text: b for b in map(parse, bindings)}.values())
    asked = {b.text for b in wanted}
    base = _baseline_bindings(wanted, baseline)
    wanted = [b for b in base if b.text not in asked] + wanted
    in_base = {b.text for b in base}
    made = Resolved()
    kept = _different_cells(made, host, wanted, in_base)
    if isinstance(baseline, str):  # also a bare name that no binding has by itself
        made.keys.setdefault(baseline, [k for b in base for k in made.keys[b.text]])
    named = list(map(parse, names))
    _look_up(made, host, named, [cell for cell in kept.values() if cell.role == BASELINE])
    if seed is not None:
        fixed = {k for b in (*wanted, *named) if _is_one(b) for k in made.keys[b.text]}
        its = [cell.id for cell in kept.values() if key(cell) in fixed]
        stay = classes.thinned(host, [*kept.values()], seed, its)
        kept = {key(cell): cell for cell in stay}
    _keep_in_order(made, wanted, asked, kept)
    return made


def _different_cells(
    made: Resolved, host: Host, wanted: List[Binding], in_base: Set[str]
) -> Dict[Key, Cell]:
    """Return the cells of bindings, the baselines first, each that is alike only once."""
    kept: Dict[Key, Cell] = {}
    ids: Dict[str, Key] = {}
    for binding in sorted(wanted, key=lambda b: b.text not in in_base):
        baselines = [cell for cell in kept.values() if cell.role == BASELINE]
        found, skips = _found(made, host, binding, baselines)
        made.skipped += skips
        for cell in found:
            same = kept.get(key(cell))
            if same is None and ids.setdefault(cell.id, key(cell)) != key(cell):
                made.skipped.append(Skip(cell.binding, cell.id, reason("name-taken")))
            elif same is None:
                role = BASELINE if binding.text in in_base else cell.role
                kept[key(cell)] = replace(cell, role=role)
            elif same.id == cell.id:
                more = tuple(note for note in cell.notes if note not in same.notes)
                kept[key(cell)] = replace(same, notes=same.notes + more)
            else:
                made.skipped.append(Skip(cell.binding, cell.id, reason("same-as", cell=same.id)))
    return kept


def _look_up(
    made: Resolved, host: Host, named: Iterable[Binding], baselines: Sequence[Cell]
) -> None:
    """Note what bindings are here that are named and not measured, or why they are nothing."""
    for binding in named:
        if binding.text not in made.keys:
            try:
                _found(made, host, binding, baselines)
            except Fault as fault:
                made.keys[binding.text], made.reasons[binding.text] = [], fault.reason


def _is_one(binding: Binding) -> bool:
    """Whether a binding names its nodes, so that no other may stand for them."""
    return isinstance(binding.argument, tuple) or binding.argument == ROOMIEST


def _keep_in_order(
    made: Resolved, wanted: List[Binding], asked: Iterable[str], kept: Dict[Key, Cell]
) -> None:
    """Fill in the cells as the bindings were asked for; of an added baseline those needed."""
    in_order = [k for b in wanted for k in made.keys[b.text] if k in kept]
    listed = {k for text in asked for k in made.keys[text] if k in kept}
    linked = link([kept[k] for k in dict.fromkeys(in_order)])
    needed = {cell.baseline for cell in linked}
    made.cells = [c for c in linked if key(c) in listed or c.id in needed]
    made.warnings += [
        reason("baseline-added", cell=cell.id) for cell in made.cells if key(cell) not in listed
    ]


def _found(
    made: Resolved, host: Host, binding: Binding, baselines: Sequence[Cell]
) -> Tuple[List[Cell], List[Skip]]:
    """Return the cells of a binding and what of it is skipped; note both under its spelling."""
    kind, why = KINDS[binding.name], None
    if not host.cpus_of and not kind.anywhere:
        why = reason("no-usable-cpus")
        if kind.per_node and isinstance(binding.argument, tuple):  # nodes are named
            raise kinds.refuse(host, binding, why)
    elif binding.argument == ROOMIEST and kinds.roomiest(host) is None:
        why = reason("no-roomiest-node")
    cells: List[Cell] = []
    skipped = [Skip(binding.name, binding.text, why)] if why else []
    for one in () if why else kind.resolve(host, binding, baselines):
        if isinstance(one, Cell):
            cells.append(one)
        else:
            skipped.append(one)
        if made.looked_at + len(cells) + len(skipped) > MOST_CELLS:
            raise Fault(f"{binding.text} is more than {MOST_CELLS:,} cells here", "name its nodes")
    made.looked_at += len(cells) + len(skipped)
    made.keys[binding.text] = [key(cell) for cell in cells]
    for one in skipped[:1]:
        made.reasons[binding.text] = one.reason
    return cells, skipped


def _baseline_bindings(wanted: List[Binding], baseline: Any) -> List[Binding]:
    """Return the bindings that are the baseline: of ``wanted``, or one that is not among them."""
    if baseline is None:
        return []
    if isinstance(baseline, str) and baseline in KINDS and KINDS[baseline].needs_argument:
        listed = [b for b in wanted if b.name == baseline][:1]
        if not listed:
            raise Fault(f"the baseline {baseline} is not among the bindings", "add it to them")
        return listed
    base = parse(baseline)
    if all(b.text != base.text for b in wanted) and base.argument is None:
        return [b for b in wanted if b.name == base.name] or [base]
    return [base]


# --- comparisons ------------------------------------------------------------------------------


def link(cells: Sequence[Cell]) -> List[Cell]:
    """Return the cells, each with the id of the baseline's cell that it is compared with, or None.

    That is the baseline of its own CPU node; of several, and for a cell that has no CPU node of
    its own, the one of the same CPUs, else of the same memory policy, else the first.
    """
    baselines = [cell for cell in cells if cell.role == BASELINE]
    linked = []
    for cell in cells:
        node = kinds.of_node(cell)
        best = max(
            (b for b in baselines if node is None or kinds.of_node(b) in (node, None)),
            key=lambda b: (b.cpus == cell.cpus, b.memory == cell.memory),
            default=None,
        )
        of = best.id if best and cell.role != BASELINE else None
        linked.append(replace(cell, baseline=of))
    return linked


def control(cells: Sequence[Cell]) -> Optional[Cell]:
    """Return the A/A control: the first baseline cell under a second name, or None."""
    for cell in cells:
        if cell.role == BASELINE:
            return replace(
                cell,
                id=f"{cell.id}/control",
                label=f"{cell.label} (A/A control)",
                role=CONTROL,
                baseline=cell.id,
            )
    return None


# --- what a driver or a trial asks about a cell -----------------------------------------------


def thread_count(value: Any, host: Host, cpus: str) -> int:
    """Return a number of threads for a CPU list: a number, or a word that depends on it.

    ``all`` is one thread on each hardware thread of the list, ``cores`` one on each core,
    ``half`` half of ``all`` (at least 1). Raises Fault for anything else.
    """
    numbers = cpulist.parse(cpus)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if value == "all":
        return len(numbers)
    if value == "half":
        return max(1, len(numbers) // 2)
    if value == "cores":
        return len(host.cores_of(numbers))
    raise Fault(
        f"threads: {value!r} is not a number of threads",
        grammar.suggestion(str(value), ("all", "half", "cores")) + ", or a number from 1",
    )


def first_touch_nodes(host: Host, cell: Bound) -> str:
    """Return the nodes where a cell's pages are meant to be, also where none are required.

    Those of its policy; without one the memory nodes of its CPUs, else all that may be used.
    """
    if cell.memory.nodes is not None:
        return cell.memory.nodes
    own = [n for n in cpulist.parse(cell.cpu_nodes) if n in host.memory_nodes]
    return cpulist.format(own or host.main_nodes or host.memory_nodes)


def room_bytes(host: Host, cell: Bound) -> Tuple[Optional[int], Optional[int]]:
    """Return (bytes free at once, bytes after page cache is dropped) for a cell's policy.

    A policy that only prefers may use every allowed node that has CPUs: what spills to a node
    that is memory only is another kind of memory. Where one node holds all memory of the
    host, MemAvailable of /proc/meminfo is the authority. No more than the limit of this process's
    control group. None where it is unknown.
    """
    free, freeable = _room_bytes(host, cell)
    limit = host.allowed.memory_bytes
    if limit is None:
        return free, freeable
    least = [limit if size is None else min(size, limit) for size in (free, freeable)]
    return least[0], least[1]


def _room_bytes(host: Host, cell: Bound) -> Tuple[Optional[int], Optional[int]]:
    with_memory = [node for node in host.nodes if node.memory_bytes != 0]
    if len(with_memory) <= 1 and host.available_bytes is not None:
        return host.available_bytes, host.available_bytes
    policy = kinds.POLICIES[cell.memory.policy]
    numbers = host.main_nodes or host.memory_nodes
    if policy.own_nodes:
        numbers = cpulist.parse(cell.memory.nodes or "")
    nodes = [host.node[n] for n in numbers]
    free = [node.free_bytes for node in nodes if node.free_bytes is not None]
    cache = [node.page_cache_bytes for node in nodes if node.page_cache_bytes is not None]
    weights = cell.expects.memory.weights or {}

    def room(sizes: Sequence[int]) -> int:
        if not policy.spread:
            return sum(sizes)
        pages = [weights.get(number, 1) for number in numbers]  # of each node in a round
        return min(size * sum(pages) // its for size, its in zip(sizes, pages))

    if not nodes or len(free) < len(nodes):
        return None, None
    if len(cache) < len(nodes):
        return room(free), None
    return room(free), room([f + c for f, c in zip(free, cache)])
