"""What each binding becomes on a host: one row of KINDS, and what each memory policy must prove.

A *cell* is a CPU set x a memory policy. Everything is resolved within what may be used: online
CPUs of this process's cpuset (``Cpus_allowed``), nodes that have memory and are in
``Mems_allowed``. A symbolic binding that a host cannot offer is skipped with the reason; an
explicit one (a node, a CPU list or a core count that is named) is a Fault.

Memory policies are those of set_mempolicy(2). "default" is first touch: a page is placed on the
node of the CPU that first writes to it.

Nodes that are memory only (CXL, HBM, persistent memory: `Host.memory_only`) have bindings of their
own: memory-only, interleave:all and interleave:weighted. No other symbolic binding names them.

A binding with a policy of POLICIES is one row of KINDS (and its resolver, where no other's fits).
One with a new policy also has a row in POLICIES, its mode in ``kernel.MODES``, and the sentences
"memory-POLICY" and "full-POLICY" in `words.plan` (in ``Bound.numactl`` its option, where that is
not --POLICY=NODES).
"""

from __future__ import annotations

import collections
import functools
import itertools
from dataclasses import replace
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from .. import cpulist
from ..contract import (
    Bound,
    Cell,
    CpuExpectation,
    Expectation,
    Host,
    Instance,
    MemoryExpectation,
    MemoryPolicy,
    Reason,
    Skip,
    reason,
)
from ..errors import Fault
from ..words import units
from . import grammar
from .grammar import MOST_INSTANCES, ROOMIEST, UNBOUND, Binding

_ALIKE = 0.95  # of the most memory: a node's total lacks what firmware and kernel keep


class Policy(NamedTuple):
    """A memory policy: what its proof expects on its nodes, and what room nodes have for it."""

    expects: MemoryExpectation
    own_nodes: bool  # its pages never leave its nodes
    spread: bool = False  # each of its nodes must hold its share: there is room until one is full


# What a required placement must keep, whatever a plan or a recorded proof says.
LEAST_WITHIN = 0.98  # of the pages are on the nodes they are bound to
MOST_UNEVEN = 0.10  # of its fair share a node may have more or less

_RECORDED = MemoryExpectation("outcome")
_WITHIN = MemoryExpectation("required", "within")
_EVEN = MemoryExpectation("required", "shares")  # by pages, not by node sizes

POLICIES: Dict[str, Policy] = {
    "default": Policy(_RECORDED, own_nodes=False),
    "preferred": Policy(_RECORDED, own_nodes=False),
    "bind": Policy(_WITHIN, own_nodes=True),
    "interleave": Policy(_EVEN, own_nodes=True, spread=True),
    "weighted-interleave": Policy(_EVEN, own_nodes=True, spread=True),
}

Found = Iterator[Union[Cell, Skip]]
_Ranks = Mapping[str, Sequence[int]]  # nodes by "nearest" and "farthest"
Resolver = Callable[[Host, Binding, Sequence[Cell]], Found]


class Kind(NamedTuple):
    """How a binding is asked for and what it becomes.

    ``form`` reads its argument; ``resolve`` gets the host, the binding and the baseline's cells,
    and yields cells and skips.
    """

    form: Callable[[str, Any], grammar.Argument]
    resolve: Resolver
    per_node: bool = False  # each of its cells has the CPUs of one node
    needs_argument: bool = False
    anywhere: bool = False  # also where the kernel shows no nodes with usable CPUs


def of_node(cell: Cell) -> Optional[int]:
    """Return the node whose CPUs a cell of a per-node binding has, else None."""
    if not KINDS[cell.binding].per_node or cell.cpus is None:
        return None
    return int(cell.cpu_nodes) if cell.cpu_nodes.isdecimal() else None


def any_cpus(host: Host) -> str:
    """Return the CPUs of what is not bound: those that may be used, and those of a client."""
    client = (host.client.cpus if host.client else None) or ""
    return cpulist.format([*host.usable, *cpulist.parse(client)])


# --- a cell -----------------------------------------------------------------------------------


def bound(host: Host, cpus: Optional[Sequence[int]], policy: str, memory: Sequence[int]) -> Bound:
    """Return CPUs (None: no CPU policy) and a policy on memory nodes with what they must prove."""
    listed = None if cpus is None else cpulist.format(cpus)
    nodes = cpulist.format(memory) or None
    expects = POLICIES[policy].expects
    if policy == "weighted-interleave":
        expects = replace(expects, weights={n: host.node[n].weight or 1 for n in memory})
    where = CpuExpectation("outcome") if listed is None else CpuExpectation("required", listed)
    return Bound(
        cpus=listed,
        cpu_nodes=cpulist.format(host.nodes_of(host.usable if cpus is None else cpus)),
        memory=MemoryPolicy(policy, nodes),
        expects=Expectation(replace(expects, nodes=nodes) if expects.rule else expects, where),
    )


def cell(
    host: Host,
    binding: Binding,
    suffix: Any,
    label: str,
    cpus: Optional[Sequence[int]],
    policy: str = "default",
    memory: Sequence[int] = (),
    **more: Any,
) -> Cell:
    """Return a cell without options, named by its binding and a suffix."""
    made = bound(host, cpus, policy, memory)
    here, there = made.cpu_nodes, made.memory.nodes or ""
    one_pair = here.isdecimal() and there.isdecimal()
    return Cell(
        **vars(made),
        id=binding.name if suffix == "" else f"{binding.name}:{suffix}",
        binding=binding.name,
        label=label,
        cpu_order=None if cpus is None else _in_order(host.order(cpus)),
        threads=len(host.usable if cpus is None else cpus),
        distance=host.distance(int(here), int(there)) if one_pair else None,
        **more,
    )


def _in_order(numbers: Sequence[int]) -> str:
    """Return numbers in list format without sorting them: 0,2,4 then 1,3,5 stays so."""
    parts: List[List[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


# --- what may be used -------------------------------------------------------------------------


def roomiest(host: Host) -> Optional[int]:
    """Return the node with usable CPUs and the most memory, None where there is none.

    Of nodes within 5 % of the most it is the first: the kernel keeps a little of each.
    """
    sizes = {n: host.node[n].memory_bytes or 0 for n in host.memory_nodes if n in host.cpus_of}
    most = max(sizes.values(), default=0)
    return next((n for n, size in sizes.items() if size >= _ALIKE * most), None)


def _why_no_cpus(host: Host, node: int) -> Optional[Reason]:
    if node not in host.node:
        return reason("no-such-node", node=node)
    if node in host.cpus_of:
        return None
    its = [cpu for cpu in host.cpus if cpu.node == node]
    if not its:
        return reason("node-without-cpus", node=node)
    online = any(cpu.online for cpu in its)
    return reason("cpus-outside-cpuset" if online else "cpus-offline", node=node)


def _why_no_memory(host: Host, node: int) -> Optional[Reason]:
    if node not in host.node:
        return reason("no-such-node", node=node)
    if host.node[node].memory_bytes == 0:
        return reason("node-without-memory", node=node)
    if not host.node[node].allowed_memory:
        return reason("memory-outside-cpuset", node=node)
    return None


def _why_one_memory_node(host: Host) -> Reason:
    if len(host.nodes) == 1:
        return reason("one-node")
    if len(host.memory_nodes) == 1:
        return reason("only-memory-node", node=host.memory_nodes[0])
    if host.memory_only:
        return reason("the-others-are-memory-only", nodes=cpulist.format(host.memory_only))
    return reason("no-memory-node")


def refuse(host: Host, binding: Binding, why: Reason) -> Fault:
    """Return the fault of an explicit binding that this host cannot meet."""
    return Fault(
        reason("binding-impossible", binding=binding.text, why=why),
        f"this host has nodes {cpulist.format(host.node) or 'none'}; with usable CPUs: "
        f"{cpulist.format(host.cpus_of) or 'none'}; with usable memory: "
        f"{cpulist.format(host.memory_nodes) or 'none'}",
    )


def _limits(host: Host, node: int) -> Tuple[Reason, ...]:
    """Say why a cell of a node has not all CPUs of it."""
    every = [cpu.number for cpu in host.cpus if cpu.node == node and cpu.online]
    usable = host.cpus_of.get(node, [])
    its = set(cpulist.parse((host.client.cpus if host.client else None) or "")) & set(every)
    if its:
        return (reason("cpus-of-the-client", taken=len(its), all=len(every), node=node),)
    if len(usable) < len(every):
        return (reason("cpuset-allows-part", usable=len(usable), all=len(every), node=node),)
    return ()


def _nodes_meant(host: Host, binding: Binding) -> List[int]:
    """Return the nodes that a binding names, every node without an argument."""
    if binding.argument is None:
        return sorted(host.node)
    if binding.argument == ROOMIEST:
        node = roomiest(host)
        return [] if node is None else [node]
    for node in binding.argument:
        if node not in host.node:
            raise refuse(host, binding, reason("no-such-node", node=node))
    return list(binding.argument)


# --- resolvers --------------------------------------------------------------------------------


def _skip(binding: Binding, why: Reason, suffix: Any = None) -> Skip:
    """Skip a binding, or the cell of it with this suffix."""
    what = binding.text if suffix is None else f"{binding.name}:{suffix}"
    return Skip(binding.name, what, why)


def _unbound(host: Host, binding: Binding, baselines: Sequence[Cell]) -> Found:
    usable = any_cpus(host)
    note = reason("may-run-on", cpus=usable, count=len(cpulist.parse(usable)))
    yield cell(host, binding, "", "unbound", None, notes=(note,))


def _on_nodes(
    host: Host,
    binding: Binding,
    baselines: Sequence[Cell],
    policy: str,
    thread: Optional[int] = None,
    label: str = "",
) -> Found:
    """CPUs of a node, memory by a policy on it; ``thread`` takes one hardware thread per core."""
    for node in _nodes_meant(host, binding):
        why = _why_no_cpus(host, node)
        if policy != "default":
            why = why or _why_no_memory(host, node)
        if why and binding.argument is not None:
            raise refuse(host, binding, why)
        cpus = host.cpus_of.get(node, [])
        if thread is not None:
            cpus = [core[thread] for core in host.cores_of(cpus) if len(core) > thread]
        if why or not cpus:
            yield _skip(binding, why or reason("no-second-thread", node=node), node)
            continue
        memory = [] if policy == "default" else [node]
        title, notes = f"{label or binding.name} {node}", _limits(host, node)
        yield cell(host, binding, node, title, cpus, policy, memory, notes=notes)


def _pairs(host: Host, binding: Binding, baselines: Sequence[Cell], memory_only: bool) -> Found:
    """CPUs of a node, memory of another one, which is memory only or is not."""
    asked = binding.argument
    targets = host.memory_only if memory_only else host.main_nodes
    if isinstance(asked, tuple):
        here, there = asked
        why = _why_no_cpus(host, here) or _why_no_memory(host, there)
        if not why and there not in targets:
            kind = "remote" if memory_only else "memory-only"
            why = reason("node-of-another-kind", node=there, write=f"{kind}: {here}->{there}")
        if why:
            raise refuse(host, binding, why)
        yield from _pairs_of(host, binding, here, [there], _ranks(host, here, targets))
        return
    none = True
    for here in host.cpus_of:
        ranks = _ranks(host, here, targets)
        others = _others(host, here, targets, asked, ranks)
        if others is None:
            yield _skip(binding, reason("distances-unknown", node=here))
        else:
            yield from _pairs_of(host, binding, here, others, ranks)
        none = none and others == []
    if none and memory_only and len(host.nodes) > 1:
        yield _skip(binding, reason("no-memory-only-node"))
    elif none:
        yield _skip(binding, _why_one_memory_node(host))


def _others(
    host: Host, here: int, targets: Sequence[int], asked: Optional[str], ranks: _Ranks
) -> Optional[List[int]]:
    """Return the nodes that make a pair with one, as asked for; None: no distance says which."""
    others = [n for n in targets if n != here]
    if asked is None:
        return others
    if asked == ROOMIEST:  # from there to the farthest, else to any
        return list(ranks.get("farthest", others)[:1]) if here == roomiest(host) else []
    if others and asked not in ranks:
        return None
    return list(ranks.get(asked, [])[:1])


def _ranks(host: Host, here: int, targets: Sequence[int]) -> _Ranks:
    """Return those of the memory nodes ``targets`` that are nearest to and farthest from a node.

    Each list is ascending: its first node stands for the rest. Empty where a distance is
    unknown; a single one is both without any distance.
    """
    others = [n for n in targets if n != here]
    if len(others) == 1:
        return {"nearest": others, "farthest": others}
    known = {n: host.distance(here, n) for n in others}
    distances = [d for d in known.values() if d is not None]
    if not others or len(distances) < len(others):
        return {}
    ends = {"nearest": min(distances), "farthest": max(distances)}
    return {rank: [n for n in others if known[n] == end] for rank, end in ends.items()}


def _pairs_of(
    host: Host, binding: Binding, here: int, others: Sequence[int], ranks: _Ranks
) -> Iterator[Cell]:
    limits = _limits(host, here)  # asks every CPU of the host: once for all pairs of a node
    for there in others:
        its = {name: nodes for name, nodes in ranks.items() if nodes[0] == there}
        yield _pair(host, binding, here, there, its, limits)


def _pair(
    host: Host, binding: Binding, here: int, there: int, ranks: _Ranks, limits: Sequence[Reason]
) -> Cell:
    notes = list(limits)
    for name, nodes in ranks.items():
        if len(nodes) > 1:
            how = {"nearest": "near", "farthest": "far"}[name]
            alike = cpulist.format(nodes)
            notes.append(reason("equally-far", nodes=alike, how=how, node=here, stands=there))
    own, other = host.distance(here, here), host.distance(here, there)
    if own is not None and other is not None and other <= own:
        notes.append(reason("impossible-distance", here=here, there=there, to=other, own=own))
    if there in host.memory_only:
        of = host.node[there]
        notes.append(
            reason(
                "memory-only-node", node=there, tier=of.tier,
                ns=of.read_latency_ns, mb_s=of.read_bandwidth_mb_s,
            )
        )  # fmt: skip
    label, cpus = f"{binding.name} {here}→{there}", host.cpus_of[here]
    more = {"rank": tuple(ranks), "notes": tuple(notes)}
    return cell(host, binding, f"{here}-{there}", label, cpus, "bind", [there], **more)


def _why_no_interleave(host: Host, name: str) -> Optional[Reason]:
    """Say why a host has nothing to interleave in this way, None where it has."""
    weights = {host.node[n].weight for n in host.memory_nodes}
    if len(host.memory_nodes if name != "interleave" else host.main_nodes) < 2:
        return _why_one_memory_node(host)
    if name == "interleave":
        return None
    if not host.memory_only and (name == "interleave:all" or len(weights) == 1):
        return reason("no-memory-only-node")
    if name == "interleave:all":
        return None
    if None in weights:
        return reason("no-weighted-interleave")
    return reason("weights-are-equal", weight=weights.pop()) if len(weights) == 1 else None


def _interleave(host: Host, binding: Binding, baselines: Sequence[Cell]) -> Found:
    """On the CPUs of a node or of the baseline; over main nodes, or over all that has memory."""
    policy = "weighted-interleave" if binding.name == "interleave:weighted" else "interleave"
    nodes = host.main_nodes if binding.name == "interleave" else host.memory_nodes

    def over_all(where: Any, cpus: Optional[List[int]]) -> Cell:
        return cell(host, binding, where, f"{binding.name} {where}", cpus, policy, nodes)

    missing = _why_no_interleave(host, binding.name)
    if missing:
        yield _skip(binding, missing)
    elif binding.argument == UNBOUND:
        yield over_all(UNBOUND, None)
    elif binding.argument is None and baselines:  # on the CPUs of what it is compared with
        for base in baselines:
            node = of_node(base)
            where = UNBOUND if base.binding == UNBOUND else base.id if node is None else node
            yield over_all(where, None if base.cpus is None else cpulist.parse(base.cpus))
    else:
        for node in _nodes_meant(host, binding):
            why = _why_no_cpus(host, node)
            if why and binding.argument is not None:
                raise refuse(host, binding, why)
            yield _skip(binding, why, node) if why else over_all(node, host.cpus_of[node])


def _cores(host: Host, binding: Binding, baselines: Sequence[Cell]) -> Found:
    asked, within = binding.argument
    cores_of = {node: [c[0] for c in host.cores_of(cpus)] for node, cpus in host.cpus_of.items()}
    total = sum(map(len, cores_of.values()))
    node = min(map(len, cores_of.values()))
    wanted = {
        "node": [node],
        "node-cpus": [min(map(len, host.cpus_of.values()))],
        "doubling": sorted({2**n for n in range(total.bit_length())} | {node, total}),
        "few": sorted({1, max(1, node // 2), node, total}),
    }.get(asked, [asked])
    if asked == wanted[0] and asked > total:
        raise refuse(host, binding, reason("too-few-cores", usable=total, count=asked))
    for count in wanted:
        taken = _take_cores(host, cores_of, count, within)
        if isinstance(taken, Reason):
            # The name of a series would hide which of its numbers are meant.
            yield _skip(binding, taken, None if len(wanted) == 1 else f"{count}-{within}")
            continue
        per_node = collections.Counter(str(host.cpu[number].node) for number in taken)
        notes = [reason("one-thread-per-core")]
        if len(per_node) > 1:
            notes.append(reason("cores-per-node", cores=dict(per_node)))
        where = {"node": "one node", "socket": "one socket"}.get(within, within)
        label = f"{units.count(count, 'core')}, {where}"
        more = {"layout": within, "notes": tuple(notes)}
        yield cell(host, binding, f"{count}-{within}", label, taken, **more)


def _take_cores(
    host: Host, cores_of: Dict[int, List[int]], count: int, within: str
) -> Union[List[int], Reason]:
    """Return the first threads of ``count`` cores, or why there are none."""
    packages: Dict[Any, List[int]] = {}
    for node, numbers in sorted(cores_of.items()):
        packages.setdefault(host.cpu[numbers[0]].package, []).append(node)
    # A node with memory of its own is the better one to pack on: memory is by first touch.
    order = sorted(cores_of, key=lambda n: (n not in host.memory_nodes, n))
    groups = {
        "node": [[node] for node in order],
        "socket": [nodes for package, nodes in packages.items() if package is not None],
        "packed": [order],
        "spread": [sorted(cores_of)],
    }[within]
    if not groups:
        return reason("cores-of-unknown-group", within=within)
    sizes = [sum(len(cores_of[n]) for n in nodes) for nodes in groups]
    for nodes, size in zip(groups, sizes):
        if size >= count:
            if within == "packed":  # one node after the other
                return [cpu for n in nodes for cpu in cores_of[n]][:count]
            rounds = itertools.zip_longest(*(cores_of[n] for n in nodes))  # one of each in turn
            return [cpu for row in rounds for cpu in row if cpu is not None][:count]
    if within in ("packed", "spread"):
        return reason("too-few-cores", usable=sizes[0], count=count)
    return reason("too-few-cores-within", within=within, count=count, largest=max(sizes))


_LAYOUTS = {
    "ranges": "ranges of CPUs",
    "nodes": "one per node",
    "spread": "each over all nodes",
    "unbound": "unbound",
}


def _instances(host: Host, binding: Binding, baselines: Sequence[Cell]) -> Found:
    """One cell of several instances, each with CPUs and a memory policy of its own.

    The cell's own ``cpus`` are what they have together. ``ranges`` cuts the CPUs by their
    numbers, ``nodes`` gives each a node with its memory, ``spread`` a part of every node.
    """
    asked, over = binding.argument
    whole = [n for n in host.cpus_of if n in host.memory_nodes]
    count = max(2, min(len(whole), MOST_INSTANCES)) if asked == "few" else asked
    numbers = sorted(host.usable)
    why = _why_no_instances(host, count, over, len(whole))
    if why:
        yield _skip(binding, why)
        return
    each: List[Instance] = []
    for n in range(count):
        cpus: Optional[List[int]] = None
        memory: List[int] = []
        if over == "nodes":
            memory = [whole[n * len(whole) // count]]
            cpus = host.cpus_of[memory[0]]
        elif over == "ranges":
            cpus = numbers[n * len(numbers) // count : (n + 1) * len(numbers) // count]
        elif over == "spread":
            cpus = sorted(c for its in host.cpus_of.values() for c in its[n::count])
        one = bound(host, cpus, "bind" if over == "nodes" else "default", memory)
        each.append(Instance(**vars(one), name=f"instance {n + 1}"))
    together = sorted({cpu for one in each for cpu in cpulist.parse(one.cpus or "")}) or None
    label = f"{count} instances, {_LAYOUTS[over]}"
    yield cell(host, binding, over, label, together, layout=over, instances=tuple(each))


def _why_no_instances(host: Host, count: int, over: str, nodes: int) -> Optional[Reason]:
    """Say why there is no room for so many instances; ``nodes`` have CPUs and memory."""
    if over == "nodes" and nodes < count:
        return reason("too-few-nodes-for-instances", nodes=nodes, count=count)
    if len(host.usable) < count:
        return reason("too-few-cpus-for-instances", cpus=len(host.usable), count=count)
    if over == "spread" and max(map(len, host.cpus_of.values()), default=0) < count:
        return reason("no-cpu-for-each-instance", count=count)
    return None


def _explicit(host: Host, binding: Binding, baselines: Sequence[Cell]) -> Found:
    cpus, mem = binding.argument
    numbers = cpulist.parse(cpus)
    if not host.nodes:
        raise Fault("the kernel of this host shows no NUMA nodes: nothing can be bound")
    for what, bad in (
        ("do not exist on this host", [n for n in numbers if n not in host.cpu]),
        ("are offline", [n for n in numbers if n in host.cpu and not host.cpu[n].online]),
        ("are outside this process's cpuset", [n for n in numbers if n not in host.usable]),
    ):
        if bad:
            raise Fault(
                f"cpus: {cpus}: CPUs {cpulist.format(bad)} {what}",
                f"CPUs that may be used: {cpulist.format(host.usable) or 'none'}",
            )
    nodes = cpulist.parse(mem or "")
    for why in filter(None, (_why_no_memory(host, node) for node in nodes)):
        raise refuse(host, binding, why)
    label = f"CPUs {cpus}" + (f", memory {mem}" if mem else "")
    suffix, policy = binding.text.partition(":")[2], "bind" if mem else "default"
    yield cell(host, binding, suffix, label, numbers, policy, nodes)


def _node_kind(policy: str, **more: Any) -> Kind:
    return Kind(grammar.nodes, functools.partial(_on_nodes, policy=policy, **more), per_node=True)


KINDS: Dict[str, Kind] = {
    "unbound": Kind(grammar.nothing, _unbound, anywhere=True),
    "local": _node_kind("bind"),
    "interleave": Kind(grammar.nodes_or_unbound, _interleave, per_node=True),
    "interleave:all": Kind(grammar.nodes_or_unbound, _interleave, per_node=True),
    "interleave:weighted": Kind(grammar.nodes_or_unbound, _interleave, per_node=True),
    "preferred": _node_kind("preferred"),
    "cpus-only": _node_kind("default", label="CPUs only"),
    "one-thread-per-core": _node_kind("bind", thread=0),
    "smt-siblings": _node_kind("bind", thread=1),
    "remote": Kind(grammar.pair, functools.partial(_pairs, memory_only=False), per_node=True),
    "memory-only": Kind(grammar.pair, functools.partial(_pairs, memory_only=True), per_node=True),
    "cores": Kind(grammar.cores, _cores, needs_argument=True),
    "cpus": Kind(grammar.cpu_list, _explicit, needs_argument=True, anywhere=True),
    "instances": Kind(grammar.instances, _instances, needs_argument=True, anywhere=True),
}
