"""Symbolic bindings resolved on a host: each becomes CPUs, a memory policy and a numactl prefix.

A *cell* is a CPU set x a memory policy. Everything is resolved from the topology within what
exists: online CPUs of this process's cpuset (``Cpus_allowed``), nodes that have memory and are
in ``Mems_allowed``. A symbolic binding that a host cannot offer is skipped with the reason;
an explicit one (a node, a CPU list or a core count that is named) is a Fault.

Memory policies are those of set_mempolicy(2); the prefix is for numactl(8). "default" is first
touch: a page is placed on the node of the CPU that first writes to it.
"""

from __future__ import annotations

import difflib
import re
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from .. import cpulist
from ..errors import Fault

Cell = Dict[str, Any]
Skip = Dict[str, str]

# These bindings put the CPUs of one node into each cell; the first four take every CPU of it.
_WHOLE_NODE = ("local", "interleave", "preferred", "cpus-only")
_PART_OF_NODE = ("one-thread-per-core", "smt-siblings")
_PER_NODE = (*_WHOLE_NODE, *_PART_OF_NODE, "remote")
NAMES = ("unbound", *_PER_NODE, "cores", "cpus", "instances")
ROOMIEST = "roomiest"
_NO_ROOMIEST = "no node has both CPUs and memory that may be used"
_ALIKE = 0.95  # of the most memory: a node's total lacks what firmware and kernel keep
_WITHIN = ("node", "socket", "packed", "spread")
_COUNTS = ("node", "node-cpus", "few", "doubling")  # of cores, beside a number
_OVER = ("ranges", "nodes", "spread", "unbound")  # how instances divide a host's CPUs
_MOST_INSTANCES = 4  # that "few" means
_PAIR = re.compile(r"(\d+)\s*(?:->|→|-)\s*(\d+)\Z")
_SHARE_ON_NODE = 0.98  # of the pages of a memory policy that admits only these nodes
_SHARE_POINTS = 5  # how far a node's share may be from an equal one under interleaving


class Binding(NamedTuple):
    """A binding as asked for: ``name`` of NAMES, its argument, its one spelling ``text``."""

    name: str
    argument: Any
    text: str


class Host:
    """What may be used of a topology: online and allowed CPUs, allowed nodes with memory.

    ``cpus`` maps a CPU's number to its record; ``cpus_of`` a node's number to its usable CPUs
    (nodes with none are absent); ``memory_nodes`` lists the nodes that can hold pages (a node
    whose memory could not be read counts as one that can).
    """

    def __init__(self, topology: Dict[str, Any]) -> None:
        self.topology = topology
        self.nodes: Dict[int, Dict[str, Any]] = {n["node"]: n for n in topology["nodes"]}
        self.cpus: Dict[int, Dict[str, Any]] = {
            c["cpu"]: c for c in topology["cpus"] if c["online"] and c["allowed"]
        }
        self.cpus_of: Dict[int, List[int]] = {}
        for number in sorted(self.cpus):
            node = self.cpus[number]["node"]
            if node is not None:
                self.cpus_of.setdefault(node, []).append(number)
        self.memory_nodes = [n for n in sorted(self.nodes) if self._why_no_memory(n) is None]

    def why_not(self, node: int, *, cpus: bool = False, memory: bool = False) -> Optional[str]:
        """Return why a node's CPUs or memory cannot be used, or None when they can."""
        if node not in self.nodes:
            return f"node {node} does not exist"
        if cpus and node not in self.cpus_of:
            its = [c for c in self.topology["cpus"] if c["node"] == node]
            if not its:
                return f"node {node} has no CPUs"
            if not any(c["online"] for c in its):
                return f"all CPUs of node {node} are offline"
            return f"no CPU of node {node} is in this process's cpuset"
        return self._why_no_memory(node) if memory else None

    def _why_no_memory(self, node: int) -> Optional[str]:
        if self.nodes[node]["memory_bytes"] == 0:
            return f"node {node} has no memory"
        if not self.nodes[node]["allowed_memory"]:
            return f"the memory of node {node} is outside this process's cpuset"
        return None

    def distance(self, cpu_node: int, memory_node: int) -> Optional[int]:
        """Return the SLIT distance (10 is local) that the firmware gives, or None."""
        return self.nodes[cpu_node]["distances"].get(str(memory_node))

    def cores(self, cpus: Iterable[int]) -> List[List[int]]:
        """Return those CPUs as cores, each the list of its hardware threads, ascending."""
        groups: Dict[str, List[int]] = {}
        for number in sorted(cpus):
            groups.setdefault(self.cpus[number]["siblings"] or str(number), []).append(number)
        return sorted(groups.values())

    def order(self, cpus: Iterable[int]) -> List[int]:
        """Return CPUs with the first hardware thread of every core before the second of any."""
        ranked = [(rank, n) for core in self.cores(cpus) for rank, n in enumerate(core)]
        return [number for _, number in sorted(ranked)]

    def roomiest(self) -> Optional[int]:
        """Return the node with usable CPUs and the most memory, None where there is none.

        Of nodes within 5 % of the most it is the first: the kernel keeps a little of each.
        """
        sizes = {n: self.nodes[n]["memory_bytes"] or 0 for n in self.memory_nodes}
        sizes = {n: size for n, size in sizes.items() if n in self.cpus_of}
        most = max(sizes.values(), default=0)
        return next((n for n, size in sizes.items() if size >= _ALIKE * most), None)

    def nodes_of(self, cpus: Iterable[int]) -> List[int]:
        """Return the nodes of CPUs, ascending."""
        found = {self.cpus[number]["node"] for number in cpus}
        return sorted(node for node in found if node is not None)


def parse(binding: Any) -> Binding:
    """Return what a binding of an experiment file or a command line means.

    ``"local"``, ``{"local": "roomiest"}``, ``{"remote": "0->1"}``,
    ``{"cores": {"count": 8, "within": "node"}}``, ``{"cpus": "0-31", "mem": "0"}``; the id of a
    cell is a binding too (``"remote:0-1"``, ``"cores:8-spread"``, ``"cpus:0-31,mem=0"``). Raises
    Fault for what is none of these.
    """
    if isinstance(binding, str):
        name, _, argument = binding.strip().partition(":")
        name = name.strip()
        if name == "cpus":
            cpus, _, mem = argument.partition(",mem=")
            binding = {"cpus": cpus, "mem": mem} if mem else {"cpus": cpus}
        elif name == "cores" and argument:
            count, _, within = argument.rpartition("-")
            number = int(count) if count.isdecimal() else count
            binding = {"cores": {"count": number, "within": within}}
        elif name == "instances" and argument:
            count, _, over = argument.rpartition("-")
            binding = {"instances": {"count": int(count) if count.isdecimal() else count or "few",
                                     "over": over}}  # fmt: skip
        else:
            binding = {name: argument.strip() or None}
    if not isinstance(binding, dict) or not all(isinstance(key, str) for key in binding):
        raise Fault(f"{binding!r} is not a binding", f"known bindings: {', '.join(NAMES)}")
    if "cpus" in binding:
        _known_keys(binding, ("cpus", "mem"), "the binding 'cpus'")
        cpus = cpulist.format(cpulist.parse(str(binding["cpus"])))
        mem = binding.get("mem")
        mem = None if mem is None else cpulist.format(cpulist.parse(str(mem)))
        if not cpus or mem == "":
            raise Fault(f"the binding {binding!r} names no CPUs or no nodes", "write cpus: 0-31")
        text = f"cpus:{cpus}" + (f",mem={mem}" if mem is not None else "")
        return Binding("cpus", (cpus, mem), text)
    if len(binding) != 1:
        raise Fault(
            f"{binding!r} is not a binding: it must have one name", f"known: {', '.join(NAMES)}"
        )
    ((name, argument),) = binding.items()
    if name not in NAMES:
        raise Fault(f"there is no binding {name!r}", _suggest(name, NAMES))
    if name == "cores":
        return _parse_cores(argument)
    if name == "instances":
        return _parse_instances(argument)
    if argument is None:
        return Binding(name, None, name)
    if name == "unbound":
        raise Fault(f"the binding 'unbound' takes no argument ({argument!r})", "write: unbound")
    if name == "remote":
        text = str(argument)
        pair = _PAIR.match(text)
        if pair:
            here, there = int(pair.group(1)), int(pair.group(2))
            if here == there:
                raise Fault(
                    f"remote {text}: node {here} is not remote from itself",
                    f"write local: {here}",
                )
            return Binding(name, (here, there), f"remote:{here}-{there}")
        choices = ("every", "nearest", "farthest", ROOMIEST)
        if text not in choices:
            raise Fault(
                f"remote: {text!r} is neither a pair of nodes like 0->1 nor a choice of them",
                _suggest(text, choices),
            )
        if text == "every":
            return Binding(name, None, name)
        return Binding(name, text, f"{name}:{text}")
    if name == "interleave" and argument == "all":
        return Binding(name, "all", "interleave:all")
    if argument == ROOMIEST:
        return Binding(name, ROOMIEST, f"{name}:{ROOMIEST}")
    if isinstance(argument, bool) or not isinstance(argument, (int, str)):
        raise Fault(f"{name}: {argument!r} is not a node", f"write {name}: 0")
    nodes = cpulist.parse(str(argument))
    if not nodes:
        raise Fault(f"the binding {name!r} names no node", f"write {name}: 0, or only {name}")
    return Binding(name, tuple(nodes), f"{name}:{cpulist.format(nodes)}")


def _parse_cores(argument: Any) -> Binding:
    example = "write cores: {count: 8, within: node|socket|packed|spread}"
    if not isinstance(argument, dict):
        raise Fault("the binding 'cores' needs a count of cores and where to take them", example)
    _known_keys(argument, ("count", "within"), "the binding 'cores'")
    count, within = argument.get("count"), argument.get("within")
    if within not in _WITHIN:
        raise Fault(f"cores: within {within!r} is unknown", _suggest(str(within), _WITHIN))
    number = isinstance(count, int) and not isinstance(count, bool) and count >= 1
    if count not in _COUNTS and not number:
        raise Fault(
            f"cores: count {count!r} is not a number of cores",
            f"{example}; count: node means as many as the smallest node has, node-cpus as many as "
            "it has CPUs, doubling 1, 2, 4 and so on up to all, few a handful of these",
        )
    return Binding("cores", (count, within), f"cores:{count}-{within}")


def _parse_instances(argument: Any) -> Binding:
    example = f"write instances: {{count: 3, over: {'|'.join(_OVER)}}}"
    if not isinstance(argument, dict):
        raise Fault("the binding 'instances' needs to know over what they are placed", example)
    _known_keys(argument, ("count", "over"), "the binding 'instances'")
    count, over = argument.get("count", "few"), argument.get("over")
    if over not in _OVER:
        raise Fault(f"instances: over {over!r} is unknown", _suggest(str(over), _OVER))
    if count != "few" and (isinstance(count, bool) or not isinstance(count, int) or count < 2):
        raise Fault(
            f"instances: count {count!r} is not a number of instances from 2",
            f"{example}; without count as many as there are nodes, from 2 to {_MOST_INSTANCES}",
        )
    return Binding("instances", (count, over), f"instances:{count}-{over}")


def resolve(
    bindings: Sequence[Any], topology: Dict[str, Any], baseline: Any = None
) -> Tuple[List[Cell], List[Skip], List[str]]:
    """Return the cells of bindings on a topology, what is skipped and why, and warnings.

    The cells come in the order of ``bindings``, nodes ascending, without ``options``; a skip is
    ``{"binding": name, "cell": what was asked, "reason": …}``. ``baseline`` is one of the
    bindings (or a bare name of some of them; of ``cores`` and ``cpus`` the first); one that is
    not among them is added for those cells that are compared with it. Each other cell is
    compared with the baseline cell of its own CPU node; one that has no CPU node of its own
    (``unbound``, ``cores``, ``cpus``) with the baseline cell of the same CPUs, else of the same
    memory policy, else with the first. Cells that are alike on this host are kept once.

    Raises Fault for an unknown binding and for an explicit request that the host cannot meet.
    """
    host = Host(topology)
    wanted = list({b.text: b for b in map(parse, bindings)}.values())
    base = _baseline_bindings(wanted, baseline)
    asked = {b.text for b in wanted}
    wanted = [b for b in base if b.text not in asked] + wanted
    in_base = {b.text for b in base}
    cells: List[Tuple[int, Cell]] = []
    by_id: Dict[str, Cell] = {}
    only_added = set()  # cells of a baseline that nobody listed
    alike: Dict[Tuple[Any, ...], Cell] = {}
    skipped: List[Skip] = []
    for binding in sorted(wanted, key=lambda b: b.text not in in_base):
        references = [cell for _, cell in cells if cell["role"] == "baseline"]
        found, reasons = _resolve_one(host, binding, references)
        skipped += [{"binding": binding.name, "cell": c, "reason": why} for c, why in reasons]
        for cell in found:
            if binding.text in asked:
                only_added.discard(cell["id"])
            known = by_id.get(cell["id"])
            if known:
                for note in cell["notes"]:
                    if note not in known["notes"]:
                        known["notes"].append(note)
                continue
            memory = cell["memory"]
            key = (cell["cpus"], memory["policy"], memory["nodes"], _seats(cell))
            if key in alike:
                reason = f"it is the same as {alike[key]['id']} on this host"
                skipped.append({"binding": cell["binding"], "cell": cell["id"], "reason": reason})
                continue
            cell["role"] = "baseline" if binding.text in in_base else "cell"
            if binding.text not in asked:
                only_added.add(cell["id"])
            by_id[cell["id"]] = alike[key] = cell
            cells.append((wanted.index(binding), cell))
    result = [cell for _, cell in sorted(cells, key=lambda pair: pair[0])]
    link(result)
    needed = {cell["baseline"] for cell in result}
    result = [c for c in result if c["id"] not in only_added or c["id"] in needed]
    warnings = [
        f"the baseline {cell['id']} was added: others are compared with it"
        for cell in result
        if cell["id"] in only_added
    ]
    return result, skipped, warnings


def _seats(cell: Cell) -> Optional[Tuple[str, ...]]:
    """What tells layouts of instances apart that have the same CPUs together."""
    instances = cell.get("instances")
    return tuple(" ".join(one["numactl"]) for one in instances) if instances else None


def _baseline_bindings(wanted: List[Binding], baseline: Any) -> List[Binding]:
    """Return the bindings that are the baseline: of ``wanted``, or one that is not among them."""
    if baseline is None:
        return []
    if baseline in ("cores", "cpus"):
        listed = [b for b in wanted if b.name == baseline][:1]
        if not listed:
            raise Fault(f"the baseline {baseline} is not among the bindings", "add it to them")
        return listed
    base = parse(baseline)
    if all(b.text != base.text for b in wanted) and base.argument is None:
        return [b for b in wanted if b.name == base.name] or [base]
    return [base]


def control(cells: Sequence[Cell]) -> Optional[Cell]:
    """Return the A/A control: the first baseline cell under a second name, or None."""
    for cell in cells:
        if cell["role"] == "baseline":
            return {
                **cell,
                "id": f"{cell['id']}/control",
                "label": f"{cell['label']} (A/A control)",
                "role": "control",
                "baseline": cell["id"],
                "notes": list(cell["notes"]),
            }
    return None


def thread_count(value: Any, topology: Dict[str, Any], cpus: str) -> int:
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
        return len(Host(topology).cores(numbers))
    raise Fault(
        f"threads: {value!r} is not a number of threads",
        _suggest(str(value), ("all", "half", "cores")) + ", or a number from 1",
    )


def placement_order(topology: Dict[str, Any], cpus: str) -> List[int]:
    """Return the CPUs of a list in the order in which threads take them.

    The first hardware thread of every core first, then the second of each, and so on: n threads
    use n cores as long as there are so many.
    """
    return Host(topology).order(cpulist.parse(cpus))


def usable_cpus(topology: Dict[str, Any]) -> str:
    """Return the list of online CPUs that this process may use."""
    return cpulist.format(Host(topology).cpus)


def any_cpus(topology: Dict[str, Any]) -> str:
    """Return the CPUs of what is not bound: those that may be used, and those of a client."""
    client = (topology.get("client") or {}).get("cpus") or ""
    return cpulist.format([*Host(topology).cpus, *cpulist.parse(client)])


def first_touch_nodes(topology: Dict[str, Any], cell: Cell) -> str:
    """Return the nodes where a cell's pages are meant to be, also where none are required.

    Those of its policy; without one the memory nodes of its CPUs, else all that may be used.
    """
    if cell["memory"]["nodes"] is not None:
        return cell["memory"]["nodes"]
    host = Host(topology)
    own = [n for n in cpulist.parse(cell["cpu_nodes"]) if n in host.memory_nodes]
    return cpulist.format(own or host.memory_nodes)


def room_bytes(topology: Dict[str, Any], cell: Cell) -> Tuple[Optional[int], Optional[int]]:
    """Return (bytes free at once, bytes after page cache is dropped) for a cell's policy.

    Interleaving has room until its fullest node is full; a policy that only prefers may use
    every allowed node. Where one node holds all memory of the host, MemAvailable of
    /proc/meminfo is the authority. None where it is unknown.
    """
    host = Host(topology)
    with_memory = [n for n in host.nodes.values() if n["memory_bytes"] != 0]
    available = topology.get("available_bytes")
    if len(with_memory) <= 1 and available is not None:
        return available, available
    policy = cell["memory"]["policy"]
    if policy in ("bind", "interleave"):
        nodes = [host.nodes[n] for n in cpulist.parse(cell["memory"]["nodes"])]
    else:
        nodes = [host.nodes[n] for n in host.memory_nodes]
    free = [n["free_bytes"] for n in nodes]
    cache = [n["page_cache_bytes"] for n in nodes]
    if not nodes or None in free:
        return None, None
    combine = (lambda sizes: len(sizes) * min(sizes)) if policy == "interleave" else sum
    if None in cache:
        return combine(free), None
    return combine(free), combine([f + c for f, c in zip(free, cache)])


# --- one binding ------------------------------------------------------------------------------

Found = Tuple[List[Cell], List[Tuple[str, str]]]


def _resolve_one(host: Host, binding: Binding, baselines: Sequence[Cell]) -> Found:
    """Return the cells of one binding, and (what, reason) for what it skips."""
    name, argument = binding.name, binding.argument
    if name == "unbound":
        usable = any_cpus(host.topology)
        number = len(cpulist.parse(usable))
        note = f"may run on {_count(number, 'allowed CPU')} ({usable})"
        return [_cell(host, "unbound", "unbound", "unbound", None, notes=[note])], []
    if name == "cpus":
        return [_explicit(host, *argument)], []
    if name == "instances":
        return _instances(host, binding)
    if not host.cpus_of:
        reason = "the kernel of this host shows no NUMA nodes with CPUs that may be used"
        if isinstance(argument, tuple) and name != "cores":  # nodes that are named
            raise Fault(f"{binding.text}: {reason}", _what_exists(host))
        return [], [(binding.text, reason)]
    if name == "cores":
        return _cores(host, binding)
    if name == "remote":
        return _remote(host, binding)
    if name == "interleave":
        return _interleave(host, binding, baselines)
    cells: List[Cell] = []
    reasons: List[Tuple[str, str]] = []
    needs_memory = name != "cpus-only"
    if argument == ROOMIEST and host.roomiest() is None:
        return [], [(binding.text, _NO_ROOMIEST)]
    for node in _cpu_nodes(host, binding):
        why = host.why_not(node, cpus=True, memory=needs_memory)
        if why:
            if argument is not None:
                raise Fault(f"{binding.text}: {why}", _what_exists(host))
            reasons.append((f"{name}:{node}", why))
            continue
        cpus = host.cpus_of[node]
        if name in _PART_OF_NODE:
            rank = _PART_OF_NODE.index(name)
            cpus = [core[rank] for core in host.cores(cpus) if len(core) > rank]
        if not cpus:
            reasons.append((f"{name}:{node}", f"no core of node {node} has a second usable thread"))
            continue
        policy = {"preferred": "preferred", "cpus-only": "default"}.get(name, "bind")
        memory = None if policy == "default" else [node]
        label = f"{name.replace('cpus-only', 'CPUs only')} {node}"
        cells.append(
            _cell(host, name, f"{name}:{node}", label, cpus, policy, memory, _limits(host, node))
        )
    return cells, reasons


def _cpu_nodes(host: Host, binding: Binding) -> List[int]:
    """Return the nodes that a binding names, or every node of the host; Fault for no such."""
    if binding.argument is None:
        return sorted(host.nodes)
    if binding.argument == ROOMIEST:
        node = host.roomiest()
        return [] if node is None else [node]
    for node in binding.argument:
        if node not in host.nodes:
            raise Fault(f"{binding.text}: node {node} does not exist", _what_exists(host))
    return list(binding.argument)


def _remote(host: Host, binding: Binding) -> Found:
    argument = binding.argument
    if isinstance(argument, tuple):
        here, there = argument
        why = host.why_not(here, cpus=True) or host.why_not(there, memory=True)
        if why:
            raise Fault(f"{binding.text}: {why}", _what_exists(host))
        return [_pair(host, here, there)], []
    cells: List[Cell] = []
    reasons: List[Tuple[str, str]] = []
    roomiest = host.roomiest()
    for here in host.cpus_of:
        others = [n for n in host.memory_nodes if n != here]
        if argument == ROOMIEST:  # from there to the farthest, else to any
            if here == roomiest and others:
                there = _ranks(host, here).get("farthest", others)
                cells.append(_pair(host, here, there[0]))
        elif argument is None:
            cells += [_pair(host, here, there) for there in others]
        elif others and argument not in _ranks(host, here):
            why = f"the firmware gives no distances from node {here} to every other"
            reasons.append((binding.text, why))
        else:
            cells += [_pair(host, here, n) for n in _ranks(host, here).get(argument, [])[:1]]
    if not cells and not reasons:
        reasons.append((binding.text, _why_one_memory_node(host, "there is no remote memory")))
    return cells, reasons


def _ranks(host: Host, here: int) -> Dict[str, List[int]]:
    """Return the remote memory nodes that are nearest to and farthest from a node.

    Each list is ascending: its first node stands for the rest. Empty where a distance is
    unknown; a single remote node is both without any distance.
    """
    others = [n for n in host.memory_nodes if n != here]
    if len(others) == 1:
        return {"nearest": others, "farthest": others}
    known = {n: host.distance(here, n) for n in others}
    distances = [d for d in known.values() if d is not None]
    if not others or len(distances) < len(others):
        return {}
    return {
        rank: [n for n in others if known[n] == end]
        for rank, end in (("nearest", min(distances)), ("farthest", max(distances)))
    }


def _pair(host: Host, here: int, there: int) -> Cell:
    notes = _limits(host, here)
    rank: List[str] = []
    for name, nodes in _ranks(host, here).items():
        if nodes[0] != there:
            continue
        rank.append(name)
        if len(nodes) > 1:
            how = "near" if name == "nearest" else "far"
            notes.append(
                f"nodes {cpulist.format(nodes)} are equally {how} from node {here}: "
                f"node {there} stands for them"
            )
    own, other = host.distance(here, here), host.distance(here, there)
    if own is not None and other is not None and other <= own:
        notes.append(
            f"the firmware's distance from node {here} to node {there} ({other}) is no longer "
            f"than to itself ({own}): it cannot be true"
        )
    cell_id, label = f"remote:{here}-{there}", f"remote {here}→{there}"
    cell = _cell(host, "remote", cell_id, label, host.cpus_of[here], "bind", [there], notes)
    cell["rank"] = rank
    return cell


def _interleave(host: Host, binding: Binding, baselines: Sequence[Cell]) -> Found:
    if len(host.memory_nodes) < 2:
        return [], [(binding.text, _why_one_memory_node(host, "there is nothing to interleave"))]
    if binding.argument == ROOMIEST and host.roomiest() is None:
        return [], [(binding.text, _NO_ROOMIEST)]
    if binding.argument == "all":
        return [_interleaved(host, "all", None)], []
    if binding.argument is None and baselines:
        cells = []
        for base in baselines:
            node, cpus = _own_node(base), base["cpus"]
            if base["binding"] == "unbound":
                suffix = "all"
            else:
                suffix = base["id"] if node is None else str(node)
            numbers = None if cpus is None else cpulist.parse(cpus)
            cells.append(_interleaved(host, suffix, numbers))
        return cells, []
    cells, reasons = [], []
    for node in _cpu_nodes(host, binding):
        why = host.why_not(node, cpus=True)
        if why and binding.argument is not None:
            raise Fault(f"{binding.text}: {why}", _what_exists(host))
        if why:
            reasons.append((f"interleave:{node}", why))
        else:
            cells.append(_interleaved(host, str(node), host.cpus_of[node]))
    return cells, reasons


def _interleaved(host: Host, where: str, cpus: Optional[List[int]]) -> Cell:
    cell_id, label = f"interleave:{where}", f"interleave {where}"
    return _cell(host, "interleave", cell_id, label, cpus, "interleave", host.memory_nodes)


def _cores(host: Host, binding: Binding) -> Found:
    asked, within = binding.argument
    cores_of = {node: [c[0] for c in host.cores(cpus)] for node, cpus in host.cpus_of.items()}
    total = sum(map(len, cores_of.values()))
    node = min(map(len, cores_of.values()))
    doubling = sorted({2**n for n in range(total.bit_length())} | {node, total})
    wanted = {
        "node": [node],
        "node-cpus": [min(map(len, host.cpus_of.values()))],
        "doubling": doubling,
        "few": sorted({1, max(1, node // 2), node, total}),
    }.get(asked, [asked])
    if asked == wanted[0] and asked > total:
        raise Fault(
            f"{binding.text}: this host has {_count(total, 'usable core')}, not {asked}",
            "ask for fewer, or for count: node",
        )
    cells: List[Cell] = []
    reasons: List[Tuple[str, str]] = []
    for count in wanted:
        found, why = _some_cores(host, cores_of, count, within)
        cells += found
        if why:
            # The name of a series would hide which of its numbers are meant.
            reasons.append((binding.text if len(wanted) == 1 else f"cores:{count}-{within}", why))
    return cells, reasons


def _some_cores(
    host: Host, cores_of: Dict[int, List[int]], count: int, within: str
) -> Tuple[List[Cell], Optional[str]]:
    packages: Dict[Any, List[int]] = {}
    for node, numbers in sorted(cores_of.items()):
        packages.setdefault(host.cpus[numbers[0]]["package"], []).append(node)
    # A node with memory of its own is the better one to pack on: memory is by first touch.
    order = sorted(cores_of, key=lambda n: (n not in host.memory_nodes, n))
    groups = {
        "node": [[node] for node in order],
        "socket": [nodes for package, nodes in packages.items() if package is not None],
        "packed": [order],
        "spread": [sorted(cores_of)],
    }[within]
    take = _one_after_the_other if within == "packed" else _evenly
    for nodes in groups:
        if sum(len(cores_of[n]) for n in nodes) >= count:
            taken = take({n: cores_of[n] for n in nodes}, count)
            break
    else:
        largest = max((sum(len(cores_of[n]) for n in nodes) for nodes in groups), default=0)
        why = f"no {within} has {count} usable cores (the largest has {largest})"
        if within in ("packed", "spread"):
            why = f"this host has {_count(largest, 'usable core')}, not {count}"
        if not groups:
            why = f"which {within} a core belongs to is unknown on this host"
        return [], why
    where = {"node": "one node", "socket": "one socket"}.get(within, within)
    cell_id = f"cores:{count}-{within}"
    label = f"{_count(count, 'core')}, {where}"
    cpus = [number for numbers in taken.values() for number in numbers]
    notes = ["one hardware thread per core; memory by first touch"]
    if len(taken) > 1:
        notes.append("cores per node: " + ", ".join(f"{len(v)} on {n}" for n, v in taken.items()))
    return [_cell(host, "cores", cell_id, label, cpus, notes=notes)], None


def _evenly(available: Dict[int, List[int]], count: int) -> Dict[int, List[int]]:
    """Take ``count`` cores in rounds, one from each node that has one left."""
    taken: Dict[int, List[int]] = {}
    depth = 0
    while count:
        for node, numbers in available.items():
            if count and depth < len(numbers):
                taken.setdefault(node, []).append(numbers[depth])
                count -= 1
        depth += 1
    return taken


def _one_after_the_other(available: Dict[int, List[int]], count: int) -> Dict[int, List[int]]:
    """Take ``count`` cores, all of a node before the first of the next."""
    taken: Dict[int, List[int]] = {}
    for node, numbers in available.items():
        if count > 0:
            taken[node] = numbers[:count]
            count -= len(numbers)
    return taken


def _instances(host: Host, binding: Binding) -> Found:
    """Return one cell of several instances, each with CPUs and a memory policy of its own.

    The cell's ``instances`` are their records (``name``, ``cpus``, ``cpu_nodes``, ``memory``,
    ``numactl``, ``expects``), its own ``cpus`` what they have together. ``ranges`` cuts the CPUs by
    their numbers, ``nodes`` gives each a node with its memory, ``spread`` a part of every node.
    """
    asked, over = binding.argument
    whole = [n for n in host.cpus_of if n in host.memory_nodes]
    count = max(2, min(len(whole), _MOST_INSTANCES)) if asked == "few" else asked
    numbers = sorted(host.cpus)
    if over == "nodes" and len(whole) < count:
        why = f"{_count(len(whole), 'node')} with CPUs and memory for {count} instances"
        return [], [(binding.text, why)]
    if len(numbers) < count:
        why = f"{_count(len(numbers), 'CPU')} for {count} instances"
        return [], [(binding.text, why)]
    parts: List[Optional[List[int]]] = []
    for n in range(count):
        if over == "ranges":
            parts.append(numbers[n * len(numbers) // count : (n + 1) * len(numbers) // count])
        elif over == "nodes":
            parts.append(host.cpus_of[whole[n * len(whole) // count]])
        elif over == "spread":
            parts.append(sorted(c for cpus in host.cpus_of.values() for c in cpus[n::count]))
        else:
            parts.append(None)
    if any(part == [] for part in parts):
        return [], [(binding.text, f"no node has a CPU for each of {count} instances")]
    instances = []
    for n, part in enumerate(parts, 1):
        memory = host.nodes_of(part) if over == "nodes" and part else None
        policy = "default" if memory is None else "bind"
        one = _cell(host, "instances", "", "", part, policy, memory)
        kept = ("cpus", "cpu_nodes", "memory", "numactl", "expects")
        instances.append({"name": f"instance {n}", **{key: one[key] for key in kept}})
    together = sorted({cpu for part in parts for cpu in part or []}) or None
    words = {
        "ranges": "ranges of CPUs", "nodes": "one per node", "spread": "each over all nodes",
        "unbound": "unbound",
    }  # fmt: skip
    cell = _cell(
        host, "instances", f"instances:{over}", f"{count} instances, {words[over]}", together
    )
    # What the cell itself would be bound to binds nobody: each instance has its own.
    cell.update(instances=instances, numactl=[])
    return [cell], []


def _explicit(host: Host, cpus: str, mem: Optional[str]) -> Cell:
    numbers = cpulist.parse(cpus)
    if not host.nodes:
        raise Fault("the kernel of this host shows no NUMA nodes: numactl cannot bind", None)
    known = {c["cpu"]: c for c in host.topology["cpus"]}
    for what, bad in (
        ("do not exist on this host", [n for n in numbers if n not in known]),
        ("are offline", [n for n in numbers if n in known and not known[n]["online"]]),
        ("are outside this process's cpuset", [n for n in numbers if n not in host.cpus]),
    ):
        if bad:
            raise Fault(
                f"cpus: {cpus}: CPUs {cpulist.format(bad)} {what}",
                f"CPUs that may be used: {cpulist.format(host.cpus) or 'none'}",
            )
    nodes = None if mem is None else cpulist.parse(mem)
    for node in nodes or []:
        why = host.why_not(node, memory=True)
        if why:
            raise Fault(f"cpus: {cpus}, mem: {mem}: {why}", _what_exists(host))
    suffix = "" if mem is None else f",mem={mem}"
    label = f"CPUs {cpus}" + ("" if mem is None else f", memory {mem}")
    policy = "default" if nodes is None else "bind"
    return _cell(host, "cpus", f"cpus:{cpus}{suffix}", label, numbers, policy, nodes)


def _cell(
    host: Host,
    binding: str,
    cell_id: str,
    label: str,
    cpus: Optional[List[int]],
    policy: str = "default",
    memory_nodes: Optional[List[int]] = None,
    notes: Sequence[str] = (),
) -> Cell:
    """Return a cell without options; ``cpus`` None is no CPU policy."""
    listed = None if cpus is None else cpulist.format(cpus)
    nodes = None if memory_nodes is None else cpulist.format(memory_nodes)
    cpu_nodes = host.nodes_of(host.cpus if cpus is None else cpus)
    distance = None
    if policy in ("bind", "preferred") and len(cpu_nodes) == 1 and len(memory_nodes or ()) == 1:
        distance = host.distance(cpu_nodes[0], memory_nodes[0])
    prefix = [] if listed is None else [f"--physcpubind={listed}"]
    option = {"bind": "membind", "interleave": "interleave", "preferred": "preferred"}.get(policy)
    if option:
        prefix.append(f"--{option}={nodes}")
    memory: Dict[str, Any] = {"proof": "outcome"}
    if policy == "bind":
        memory = {"rule": "within", "nodes": nodes, "at_least": _SHARE_ON_NODE}
    elif policy == "interleave":  # by pages: equal shares, whatever the sizes of the nodes
        memory = {"rule": "shares", "nodes": nodes, "within_points": _SHARE_POINTS}
    if "rule" in memory:
        memory = {"proof": "required", **memory}
    return {
        "id": cell_id,
        "binding": binding,
        "label": label,
        "role": "cell",
        "baseline": None,
        "cpus": listed,
        "cpu_order": None if listed is None else _in_order(host.order(cpus or [])),
        "cpu_nodes": cpulist.format(cpu_nodes),
        "threads": len(host.cpus if cpus is None else cpus),
        "memory": {"policy": policy, "nodes": nodes},
        "distance": distance,
        "rank": [],
        "sweep": None,
        "numactl": ["numactl", *prefix] if prefix else [],
        "expects": {
            "memory": memory,
            "cpus": {"proof": "outcome"} if cpus is None else {"proof": "required", "cpus": listed},
        },
        "notes": list(notes),
    }


# --- comparisons ------------------------------------------------------------------------------


def _own_node(cell: Cell) -> Optional[int]:
    """Return the node whose CPUs a cell of a per-node binding has, else None."""
    if cell["binding"] not in _PER_NODE or cell["cpus"] is None:
        return None
    return int(cell["cpu_nodes"]) if cell["cpu_nodes"].isdecimal() else None


def link(cells: Sequence[Cell]) -> None:
    """Set the ``baseline`` of every cell: the id of the cell that it is compared with, or None."""
    baselines = [cell for cell in cells if cell["role"] == "baseline"]
    for cell in cells:
        node = _own_node(cell)
        candidates = [b for b in baselines if node is None or _own_node(b) in (node, None)]
        # Of those the one that shares most with the cell: its CPUs, else its memory policy.
        best = max(
            candidates,
            key=lambda b: (b["cpus"] == cell["cpus"], b["memory"] == cell["memory"]),
            default=None,
        )
        cell["baseline"] = best["id"] if best and cell["role"] != "baseline" else None


# --- words ------------------------------------------------------------------------------------


def _limits(host: Host, node: int) -> List[str]:
    every = [c for c in host.topology["cpus"] if c["node"] == node and c["online"]]
    usable = host.cpus_of.get(node, [])
    client = set(cpulist.parse((host.topology.get("client") or {}).get("cpus") or ""))
    its = [c["cpu"] for c in every if c["cpu"] in client]
    if its:
        return [f"{len(its)} of the {len(every)} CPUs of node {node} are the client's"]
    if len(usable) < len(every):
        return [
            f"this process's cpuset allows {len(usable)} of the {len(every)} CPUs of node {node}"
        ]
    return []


def _why_one_memory_node(host: Host, so: str) -> str:
    if len(host.nodes) == 1:
        return f"this host has one node: {so}"
    if len(host.memory_nodes) == 1:
        return f"only node {host.memory_nodes[0]} has memory that may be used: {so}"
    return f"no node has memory that may be used: {so}"


def _what_exists(host: Host) -> str:
    cpus, memory = cpulist.format(host.cpus_of), cpulist.format(host.memory_nodes)
    return (
        f"this host has nodes {cpulist.format(host.nodes) or 'none'}; "
        f"with usable CPUs: {cpus or 'none'}; with usable memory: {memory or 'none'}"
    )


def _known_keys(given: Dict[str, Any], known: Sequence[str], where: str) -> None:
    for key in given:
        if key not in known:
            raise Fault(f"{where} has an unknown key {key!r}", _suggest(str(key), known))


def _suggest(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"known: {', '.join(known)}"


def _in_order(numbers: Sequence[int]) -> str:
    """Return numbers in list format without sorting them: 0,2,4 then 1,3,5 stays so."""
    parts: List[List[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
