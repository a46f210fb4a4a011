"""The machine's shape, from sysfs and procfs under any root: live, or copied from elsewhere.

Sources: Documentation/admin-guide/cputopology.rst, Documentation/ABI/stable/sysfs-devices-node,
Documentation/ABI/testing/sysfs-devices-system-cpu (caches), sysfs-bus-pci,
sysfs-kernel-mm-memory-tiers and sysfs-kernel-mm-mempolicy-weighted-interleave of the Linux kernel.
Membership always comes from the kernel's own lists and maps; nothing is computed from the
values of CPU numbers. What one CPU's list says of a group holds for the whole group, so that a
host with hundreds of CPUs is read once per group and not once per CPU.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import (
    AbstractSet,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from .. import cpulist, kernel
from ..collectors import memory_model
from ..contract import Allowed, Cache, Cpu, Host, HugePagePool, Node, PciDevice, Reason, reason
from ..errors import Fault
from ..kernel import CPUS, NODES
from . import cgroup, processor

_PCI = "sys/bus/pci/devices"
_TIERS = "sys/devices/virtual/memory_tiering"
_WEIGHTS = "sys/kernel/mm/mempolicy/weighted_interleave"
_OF_A_CPU = ((1, "Data"), (2, "Unified"))  # caches of the memory model

Problems = List[Reason]


class _Group(NamedTuple):
    """CPUs that form one core, cluster, die or package, and its number where it has one."""

    cpus: FrozenSet[int]
    number: Optional[int]


_Level = Dict[int, _Group]  # by CPU


def read(root: str = "/") -> Host:
    """Return the shape of the machine whose ``sys`` (and ``proc``) lie in ``root``.

    What could not be read or contradicts itself is in its ``problems``. Raises Fault when
    ``root`` holds neither sys/devices/system/cpu nor …/node.
    """
    root = os.fspath(root)
    _require(root)
    problems: Problems = []
    numbers, online = _cpu_numbers(root, problems)
    meminfo = kernel.meminfo(kernel.read_text(f"{root}/proc/meminfo"))
    nodes, node_of = _nodes(root, online, meminfo, problems)
    levels = _levels(root, sorted(online), problems)
    caches = _modelled_caches(root, nodes) or _caches(
        root, sorted(online), levels["core"], problems
    )
    allowed = _allowed(root, online, {node.number for node in nodes})
    _compare_memory(nodes, meminfo, problems)
    allowed_nodes = set(cpulist.parse(allowed.nodes))
    widths = {len(core.cpus) for core in levels["core"].values()}
    known = processor.read(root)
    return Host(
        root=root, arch=known.arch, model=known.model, vendor=known.vendor,
        packages=_count(levels["package"]), dies=_count(levels["die"]),
        clusters=_count(levels["cluster"]), cores=_count(levels["core"]), threads=len(online),
        threads_per_core=widths.pop() if len(widths) == 1 else None,
        cpus=_cpus(numbers, online, node_of, levels, caches, set(cpulist.parse(allowed.cpus))),
        nodes=tuple(replace(n, allowed_memory=n.number in allowed_nodes) for n in nodes),
        caches=caches, pci=_pci(root, problems), allowed=allowed,
        offline=cpulist.format(numbers - online),
        possible=kernel.read_text(f"{root}/{CPUS}/possible"),
        available_bytes=meminfo.get("MemAvailable"), problems=tuple(problems),
        timed=bool(memory_model.configuration(root)),
    )  # fmt: skip


def _require(root: str) -> None:
    def holds(folder: str) -> bool:
        return os.path.isdir(f"{folder}/{CPUS}") or os.path.isdir(f"{folder}/{NODES}")

    if holds(root):
        return
    if not os.path.isdir(root):
        raise Fault(f"{root} is not a folder", "name the folder that holds the machine's sys")
    below = [name for name in sorted(kernel.list_folder(root)) if holds(f"{root}/{name}")]
    parent = os.path.dirname(os.path.abspath(root))
    if len(below) == 1:
        hint = f"did you mean {os.path.join(root, below[0])}?"
    elif os.path.basename(os.path.abspath(root)) == "sys" and holds(parent):
        hint = f"did you mean {parent}, the folder that holds this sys?"
    else:
        hint = "name the folder that holds the machine's sys (and proc) folders"
    raise Fault(f"{root} is no root of a machine: it has neither {CPUS} nor {NODES}", hint)


# --- CPUs -------------------------------------------------------------------------------------


def _cpu_numbers(root: str, problems: Problems) -> Tuple[Set[int], Set[int]]:
    """All CPUs that have a folder, and those of them that are online."""
    numbers = set(kernel.numbered(f"{root}/{CPUS}", "cpu"))
    listed = kernel.cpu_list(kernel.read_text(f"{root}/{CPUS}/online"))
    if not numbers:  # a copy without the CPUs' folders
        problems.append(reason("no-cpu-folders", folder=CPUS))
        named = set(listed or ())
        for node in kernel.list_nodes(root):
            named |= kernel.node_cpus(root, node) or frozenset()
        return named, set(named if listed is None else listed)
    if listed:
        lost = listed - numbers
        if lost:
            problems.append(reason("cpus-without-folder", cpus=cpulist.format(lost), folder=CPUS))
        return numbers, numbers & listed
    # Kernels before 2.6.26 have no list; CPUs that cannot be switched off have no file.
    states = {n: kernel.read_text(f"{root}/{CPUS}/cpu{n}/online") for n in numbers}
    return numbers, {n for n in numbers if states[n] != "0"}


def _cpus(
    numbers: Iterable[int],
    online: Set[int],
    node_of: Mapping[int, int],
    levels: Mapping[str, _Level],
    caches: Sequence[Cache],
    allowed: Set[int],
) -> Tuple[Cpu, ...]:
    l3 = {
        cpu: index
        for index, cache in enumerate(caches)
        if cache.level == 3 and cache.type != "Instruction"
        for cpu in cpulist.parse(cache.cpus)
    }
    siblings = {core: cpulist.format(core.cpus) for core in set(levels["core"].values())}
    thread = {cpu: place for core in siblings for place, cpu in enumerate(sorted(core.cpus))}

    def number_in(level: str, cpu: int) -> Optional[int]:
        group = levels[level].get(cpu)
        return group.number if group else None

    found = []
    for cpu in sorted(numbers):
        core = siblings[levels["core"][cpu]] if cpu in levels["core"] else str(cpu)
        found.append(
            Cpu(number=cpu, online=cpu in online, node=node_of.get(cpu),
                package=number_in("package", cpu), die=number_in("die", cpu),
                cluster=number_in("cluster", cpu), core=number_in("core", cpu),
                siblings=core, thread=thread.get(cpu, 0), allowed=cpu in allowed, l3=l3.get(cpu))
        )  # fmt: skip
    return tuple(found)


def _identity(text: Optional[str]) -> Optional[int]:
    """A kernel id; its ways to say "unknown" (-1, and 65535 for an x86 cluster) are None."""
    value = kernel.integer(text)
    return None if value is None or value < 0 or value == 0xFFFF else value


_LEVELS = {  # level: its id, and the names of its map (the newer first: both name the same map)
    "core": ("core_id", "core_cpus", "thread_siblings"),
    "cluster": ("cluster_id", "cluster_cpus"),
    "die": ("die_id", "die_cpus"),
    "package": ("physical_package_id", "package_cpus", "core_siblings"),
}


def _levels(root: str, online: Sequence[int], problems: Problems) -> Dict[str, _Level]:
    """Which CPUs form each core, cluster, die and package."""
    listings = (kernel.list_folder(f"{root}/{CPUS}/cpu{cpu}/topology") for cpu in online)
    present = next((names for names in listings if names), [])
    levels: Dict[str, _Level] = {}
    for level, (id_name, *maps) in _LEVELS.items():
        # The map before the list: where a kernel's two differ, it was the list that was wrong.
        sources = [name for name in [*maps, *(f"{one}_list" for one in maps)] if name in present]
        if not sources:
            levels[level] = _by_id(root, online, id_name) if level == "package" else {}
            continue
        levels[level], torn = _by_map(root, online, sources[0], id_name)
        if torn:
            problems.append(reason("maps-overlap", level=level, cpus=cpulist.format(torn)))
        if level == "package":
            ids = _by_id(root, online, id_name) if torn else {}
            complete = len(ids) == len(online)
            levels[level] = ids if complete else _numbered(levels[level], problems)
    _drop_what_says_nothing(levels)
    for level, code in (("package", "packages-unknown"), ("core", "cores-unknown")):
        if not levels[level]:
            problems.append(reason(code))
    if not levels["die"]:
        problems.append(reason("die-ids-unknown" if "die_id" in present else "no-die-ids"))
    return levels


def _numbers(path: str) -> Optional[FrozenSet[int]]:
    """The CPUs in a file that holds a list or, by its name, a map."""
    parse = kernel.cpu_list if path.endswith("_list") else kernel.cpu_mask
    return parse(kernel.read_text(path))


def _by_map(root: str, online: Sequence[int], source: str, id_name: str) -> Tuple[_Level, Set[int]]:
    """Groups by the CPUs' maps, and the CPUs whose maps contradict each other."""
    up = frozenset(online)
    found: _Level = {}
    torn: Set[int] = set()
    for cpu in online:
        if cpu in found:
            continue
        here = f"{root}/{CPUS}/cpu{cpu}/topology/"
        listed = _numbers(here + source)
        if listed is None:
            continue
        cpus = (listed & up) | {cpu}
        taken = cpus & found.keys()
        if taken:  # keep what was said first
            torn |= cpus
            cpus -= taken
        number = _identity(kernel.read_text(here + id_name))
        found.update(dict.fromkeys(cpus, _Group(cpus, number)))
    return found, torn


def _by_id(root: str, online: Sequence[int], id_name: str) -> _Level:
    """The CPUs of each id, for where the maps are missing or contradict each other."""
    members: Dict[int, List[int]] = {}
    for cpu in online:
        number = _identity(kernel.read_text(f"{root}/{CPUS}/cpu{cpu}/topology/{id_name}"))
        if number is not None:
            members.setdefault(number, []).append(cpu)
    groups = [_Group(frozenset(cpus), number) for number, cpus in members.items()]
    return {cpu: group for group in groups for cpu in group.cpus}


def _numbered(level: _Level, problems: Problems) -> _Level:
    """Packages whose ids are unknown, or repeat (s390 books), are numbered in CPU order."""
    groups = list(dict.fromkeys(level.values()))
    ids = {group.number for group in groups}
    if None not in ids:
        if len(ids) == len(groups):
            return level
        problems.append(reason("package-ids-repeat"))
    return {
        cpu: _Group(group.cpus, index) for index, group in enumerate(groups) for cpu in group.cpus
    }


def _drop_what_says_nothing(levels: Dict[str, _Level]) -> None:
    """Remove dies and clusters that the kernel only fills in (topology.h: id -1, one CPU each)."""
    cores = {group.cpus for group in levels["core"].values()}
    for level in ("die", "cluster"):
        known = levels[level]
        added = {group.cpus for group in known.values()} - cores - {frozenset([c]) for c in known}
        if not added and all(group.number is None for group in known.values()):
            levels[level] = {}
    if all(
        cpu in levels["core"] and levels["core"][cpu].cpus == group.cpus
        for cpu, group in levels["cluster"].items()
    ):
        levels["cluster"] = {}  # a cluster for each core adds no level


def _count(level: _Level) -> Optional[int]:
    return len({group.cpus for group in level.values()}) or None


# --- nodes ------------------------------------------------------------------------------------


def _nodes(
    root: str, online: Set[int], meminfo: Mapping[str, int], problems: Problems
) -> Tuple[List[Node], Dict[int, int]]:
    """The nodes, and the node of each CPU."""
    numbers = kernel.list_nodes(root)
    if not numbers:
        problems.append(reason("no-nodes", folder=NODES))
        node = Node(
            number=0, cpus=cpulist.format(online), memory_bytes=meminfo.get("MemTotal"),
            free_bytes=meminfo.get("MemFree"), page_cache_bytes=kernel.page_cache(meminfo),
            distances={}, hugepages=_huge_pages(f"{root}/sys/kernel/mm/hugepages"),
        )  # fmt: skip
        return [node], dict.fromkeys(online, 0)
    nodes: List[Node] = []
    node_of: Dict[int, int] = {}
    shared: Set[int] = set()
    faults: Dict[str, List[int]] = {}
    tiers = _tiers(root)
    for number in numbers:
        node, codes = _node(root, number, numbers, online)
        nodes.append(replace(node, tier=tiers.get(number)))
        for code in codes:
            faults.setdefault(code, []).append(number)
        for cpu in cpulist.parse(node.cpus):
            if node_of.setdefault(cpu, number) != number:
                shared.add(cpu)
    problems += [reason(code, nodes=cpulist.format(where)) for code, where in faults.items()]
    if shared:
        problems.append(reason("cpus-of-several-nodes", cpus=cpulist.format(shared)))
    without = online - set(node_of)
    if without:
        problems.append(reason("cpus-of-no-node", cpus=cpulist.format(without)))
    for node in nodes:  # an offline CPU is in no list, but keeps its link: its node has CPUs
        links = () if node.cpus else kernel.numbered(f"{root}/{NODES}/node{node.number}", "cpu")
        for cpu in links:
            node_of.setdefault(cpu, node.number)
    return nodes, node_of


def _tiers(root: str) -> Dict[int, int]:
    """The memory tier of each node; empty where the kernel has none (before 6.1)."""
    return {
        node: number
        for number in kernel.numbered(f"{root}/{_TIERS}", "memory_tier")
        for node in kernel.cpu_list(
            kernel.read_text(f"{root}/{_TIERS}/memory_tier{number}/nodelist")
        )
        or ()
    }


def _node(
    root: str, number: int, numbers: Sequence[int], online: AbstractSet[int]
) -> Tuple[Node, List[str]]:
    """One node, and the codes of what could not be read of it."""
    here = f"{root}/{NODES}/node{number}"
    codes = []
    cpus = kernel.node_cpus(root, number)
    if cpus is None:
        codes.append("node-cpus-unread")
    text = kernel.read_text(f"{here}/meminfo")
    memory = kernel.meminfo(text)
    if "MemTotal" not in memory:
        codes.append("no-node-meminfo" if text is None else "no-node-memory-total")
    # SLIT (ACPI 6.5, 5.2.17): one per online node, in ascending order of the nodes.
    words = kernel.read_text(f"{here}/distance")
    values = [kernel.integer(word) for word in (words or "").split()]
    distances = {to: value for to, value in zip(numbers, values) if value is not None}
    if not words:
        codes.append("no-distances")
    elif not len(distances) == len(values) == len(numbers):
        codes.append("distances-do-not-fit")
        distances = {}
    node = Node(
        number=number, cpus=cpulist.format((cpus or frozenset()) & online),
        memory_bytes=memory.get("MemTotal"), free_bytes=memory.get("MemFree"),
        page_cache_bytes=kernel.page_cache(memory), distances=distances,
        hugepages=_huge_pages(f"{here}/hugepages"),
        weight=kernel.read_int(f"{root}/{_WEIGHTS}/node{number}"),
        # access1 is of CPUs alone; access0 may be of an accelerator (numaperf.rst)
        read_latency_ns=_of_firmware(here, "read_latency"),
        read_bandwidth_mb_s=_of_firmware(here, "read_bandwidth"),
        side_cache_bytes=_side_cache(here),
    )  # fmt: skip
    return node, codes


def _of_firmware(node: str, name: str) -> Optional[int]:
    found = (kernel.read_int(f"{node}/access{n}/initiators/{name}") for n in (1, 0))
    return next((value for value in found if value), None)


def _side_cache(node: str) -> Optional[int]:
    """The size of the largest memory-side cache of a node (numaperf.rst); None without any."""
    folder = f"{node}/memory_side_cache"
    levels = kernel.numbered(folder, "index")
    sizes = [kernel.read_int(f"{folder}/index{level}/size") or 0 for level in levels]
    return max(sizes, default=0) or None


def _huge_pages(folder: str) -> Tuple[HugePagePool, ...]:
    pools = []
    for name in kernel.list_folder(folder):
        size = re.match(r"hugepages-(\d+)kB\Z", name)
        if size:
            total = kernel.read_int(f"{folder}/{name}/nr_hugepages")
            free = kernel.read_int(f"{folder}/{name}/free_hugepages")
            pools.append(HugePagePool(int(size.group(1)) * 1024, total, free))
    return tuple(sorted(pools, key=lambda pool: pool.size_bytes))


def _compare_memory(nodes: Sequence[Node], meminfo: Mapping[str, int], problems: Problems) -> None:
    total = sum(node.memory_bytes or 0 for node in nodes)
    whole = meminfo.get("MemTotal")
    if total and whole and not 0.9 < total / whole < 1.1:
        problems.append(reason("memory-disagrees", nodes_bytes=total, whole_bytes=whole))


# --- caches -----------------------------------------------------------------------------------


def _size(text: Optional[str]) -> Optional[int]:
    match = re.match(r"(\d{1,15})\s*([KMG]?)(?!\d)", text or "")
    if not match or not int(match.group(1)):
        return None
    return int(match.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[match.group(2)]


def _caches(
    root: str, online: Sequence[int], core_of: _Level, problems: Problems
) -> Tuple[Cache, ...]:
    """Every cache once; each is read at the first CPU that shares it."""
    up = frozenset(online)
    found: Dict[Tuple[int, str, FrozenSet[int]], Cache] = {}
    # CPUs whose cache at this place was read at a CPU that shares it. The number of places is
    # part of the key: CPUs of different kinds number their caches differently.
    covered: Dict[Tuple[int, str], Set[int]] = {}
    unclear: Dict[Tuple[str, Optional[int]], Set[int]] = {}
    without = set()
    modules = False
    for cpu in online:
        core = core_of[cpu].cpus if cpu in core_of else frozenset([cpu])
        here = f"{root}/{CPUS}/cpu{cpu}/cache"
        indexes = [name for name in kernel.list_folder(here) if name.startswith("index")]
        if not indexes:
            without.add(cpu)
        for index in indexes:
            seen = covered.setdefault((len(indexes), index), set())
            if cpu in seen:
                continue
            level = kernel.read_int(f"{here}/{index}/level")
            kind = kernel.read_text(f"{here}/{index}/type")
            if level is None or not kind:
                unclear.setdefault(("caches-unnamed", None), set()).add(cpu)
                continue
            sharing = _numbers(f"{here}/{index}/shared_cpu_map")
            if sharing is None:
                sharing = _numbers(f"{here}/{index}/shared_cpu_list")
            if not sharing:  # ia64 leaves the map of its outer caches empty
                unclear.setdefault(("cache-sharers-unknown", None), set()).add(cpu)
            size = _size(kernel.read_text(f"{here}/{index}/size"))
            if size is None:
                unclear.setdefault(("cache-size-unknown", level), set()).add(cpu)
            sharing = ((sharing or core) & up) | {cpu}
            seen |= sharing
            modules |= level == 1 and kind == "Data" and len(sharing) < len(core)
            cache = Cache(level, kind, size, cpulist.format(sharing))
            found.setdefault((level, kind, sharing), cache)
    for (code, of_level), cpus in unclear.items():
        problems.append(reason(code, cpus=cpulist.format(cpus), level=of_level))
    if without:
        problems.append(reason("caches-unknown", cpus=cpulist.format(without)))
    if modules:
        problems.append(reason("modules-as-cores"))
    return tuple(found[key] for key in sorted(found, key=lambda key: (*key[:2], min(key[2]))))


def _modelled_caches(root: str, nodes: Sequence[Node]) -> Tuple[Cache, ...]:
    """Those of a configured memory timing; what the processor says of its own is not modelled.

    Two levels belong to a CPU each, the third to a node.
    """
    sizes = memory_model.cache_bytes(root)
    cpus = [str(cpu) for node in nodes for cpu in cpulist.parse(node.cpus)]
    own = [Cache(n, kind, sizes[n], cpu) for n, kind in _OF_A_CPU for cpu in cpus if sizes]
    return (*own, *(Cache(3, "Unified", sizes[3], node.cpus) for node in nodes if sizes))


# --- devices ----------------------------------------------------------------------------------

_KINDS = {"0x01": "storage", "0x02": "network", "0x03": "gpu", "0x12": "other", "0x0b": "other"}
_INFINIBAND = "0x0c06"
_NAMING = ("net", "nvme", "block", "drm", "infiniband")
_BETWEEN = re.compile(r"(virtio|ata|host|target|end_device|expander|port|phy)[\d:-]|\d+:\d+:")


def _pci(root: str, problems: Problems) -> Tuple[PciDevice, ...]:
    """Network, storage, graphics and accelerator functions with their nodes."""
    devices, unread = [], 0
    for address in sorted(kernel.list_folder(f"{root}/{_PCI}")):
        here = f"{root}/{_PCI}/{address}"
        class_id = kernel.read_text(f"{here}/class")
        if class_id is None:
            unread += 1
            continue
        kind = _KINDS.get(class_id[:4]) or ("network" if class_id[:6] == _INFINIBAND else None)
        if kind is not None:
            node = _identity(kernel.read_text(f"{here}/numa_node"))
            names = tuple(sorted(_names(here, 5)))
            devices.append(PciDevice(address, class_id, kind, node, names))
    if unread:
        problems.append(reason("pci-unread", count=unread, folder=_PCI))
    return tuple(devices)


def _names(folder: str, depth: int) -> Set[str]:
    """Names of the interfaces that a device's folder, or those between it and them, hold."""
    names: Set[str] = set()
    for entry in kernel.list_folder(folder):
        if entry in _NAMING:
            below = kernel.list_folder(f"{folder}/{entry}")
            names |= {name for name in below if entry != "drm" or name.startswith("card")}
        elif depth and _BETWEEN.match(entry):
            names |= _names(f"{folder}/{entry}", depth - 1)
    return names


# --- limits -----------------------------------------------------------------------------------


def _allowed(root: str, online: Set[int], nodes: Set[int]) -> Allowed:
    """What this process may use (man 7 cpuset); in a copy without /proc: everything."""
    status = kernel.status(kernel.read_text(f"{root}/proc/self/status"))
    cpus = kernel.cpu_list(status.get("Cpus_allowed_list"))
    memory = kernel.cpu_list(status.get("Mems_allowed_list"))
    if cpus is None and memory is None:
        cpus, memory = _cgroup_limits(root)
    return Allowed(
        cpus=cpulist.format(online if not cpus else online & cpus),
        nodes=cpulist.format(nodes if not memory else nodes & memory),
        cpu_time=cgroup.cpu_time(root), memory_bytes=cgroup.memory_left(root),
    )  # fmt: skip


def _cgroup_limits(root: str) -> Tuple[Optional[FrozenSet[int]], Optional[FrozenSet[int]]]:
    """The cpuset of a copied machine whose /proc/self/status was not copied (man 7 cgroups)."""
    path, own = kernel.read_text(f"{root}/proc/self/cpuset") or "/", kernel.own_groups(root)
    cpuset, cgroup2 = own.get("cpuset", path), own.get("", path)
    for place, kind, options in kernel.mounts(root):
        if kind == "cgroup2":
            before, after = f"{root}{place}{cgroup2}/cpuset.", ".effective"
        elif kind == "cgroup" and "cpuset" in options:
            before, after = f"{root}{place}{cpuset}/cpuset.", ""
        elif kind == "cpuset":
            before, after = f"{root}{place}{cpuset}/", ""
        else:
            continue
        cpus = kernel.cpu_list(kernel.read_text(f"{before}cpus{after}"))
        mems = kernel.cpu_list(kernel.read_text(f"{before}mems{after}"))
        if cpus is not None or mems is not None:
            return cpus, mems
    return None, None
