"""The machine's shape, from sysfs and procfs under any root: live, or copied from elsewhere.

Sources: Documentation/admin-guide/cputopology.rst, Documentation/ABI/stable/sysfs-devices-node,
Documentation/ABI/testing/sysfs-devices-system-cpu (caches) and sysfs-bus-pci of the Linux kernel.
Membership always comes from the kernel's own lists and maps; nothing is computed from the
values of CPU numbers. What one CPU's list says of a group holds for the whole group, so that a
host with hundreds of CPUs is read once per group and not once per CPU.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, FrozenSet, Iterable, List, Optional, Sequence, Set, Tuple

from .. import SCHEMA, cpulist
from ..errors import Fault

MEMORY_DISAGREES = "the nodes' meminfo adds up to"  # how that problem's line begins

_CPU = "sys/devices/system/cpu"
_NODE = "sys/devices/system/node"
_PCI = "sys/bus/pci/devices"
_MASK = re.compile(r"[0-9a-fA-F]{1,8}(,[0-9a-fA-F]{8})*\Z")
_CPUINFO_BYTES = 16384  # each CPU's part can cost the kernel a measurement: read the first few
_PROC_BYTES = 65536  # of a /proc file; a sysfs attribute is at most a page, lists a little more

# Main ID Register, implementer and part numbers: Arm's and the vendors' reference manuals.
_ARM_VENDORS = {
    0x41: "ARM",
    0x42: "Broadcom",
    0x43: "Cavium",
    0x46: "Fujitsu",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x50: "APM",
    0x51: "Qualcomm",
    0x61: "Apple",
    0x6D: "Microsoft",
    0x70: "Phytium",
    0xC0: "Ampere",
}
_ARM_PARTS = {
    (0x41, 0xC09): "Cortex-A9",
    (0x41, 0xC0F): "Cortex-A15",
    (0x41, 0xD03): "Cortex-A53",
    (0x41, 0xD05): "Cortex-A55",
    (0x41, 0xD07): "Cortex-A57",
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD0B): "Cortex-A76",
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD46): "Cortex-A510",
    (0x41, 0xD47): "Cortex-A710",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4D): "Cortex-A715",
    (0x41, 0xD4E): "Cortex-X3",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x41, 0xD84): "Neoverse-V3",
    (0x41, 0xD85): "Cortex-X925",
    (0x41, 0xD87): "Cortex-A725",
    (0x41, 0xD8E): "Neoverse-N3",
    (0x43, 0x0A1): "ThunderX",
    (0x43, 0x0AF): "ThunderX2",
    (0x46, 0x001): "A64FX",
    (0x48, 0xD01): "Kunpeng-920 (TaiShan v110)",
    (0x48, 0xD02): "Kunpeng (TaiShan v120)",
    (0x4E, 0x004): "Carmel",
    (0x50, 0x000): "X-Gene",
    (0x51, 0xC00): "Falkor",
    (0x70, 0x303): "Phytium FTC310",
    (0x70, 0x660): "Phytium FTC660",
    (0x70, 0x661): "Phytium FTC661",
    (0x70, 0x662): "Phytium FTC662",
    (0x70, 0x663): "Phytium FTC663",
    (0x70, 0x664): "Phytium FTC664",
    (0x70, 0x862): "Phytium FTC862",
    (0xC0, 0xAC3): "AmpereOne",
    (0xC0, 0xAC4): "AmpereOne (1a)",
}
_ARCHES = "x86_64|aarch64|loongarch64|ppc64le|ppc64|s390x|riscv64|mips64|sparc64|ia64|armv7l|i686"


def read(root: str = "/") -> Dict[str, Any]:
    """Return the topology of the machine whose ``sys`` (and ``proc``) lie in ``root``.

    The dictionary can be written as JSON: counts ("packages", "dies", "clusters", "cores",
    "threads", "threads_per_core"; None where the kernel does not say, or the value is mixed),
    "cpus", "nodes", "caches", "pci" (lists of dictionaries), "allowed", "offline" and "possible"
    (kernel list format), sizes in bytes, and "problems": one line for everything that could not
    be read or contradicts itself.

    Raises Fault when ``root`` holds neither sys/devices/system/cpu nor …/node.
    """
    root = os.fspath(root)
    _require(root)
    problems: List[str] = []
    cpu_numbers, online = _cpu_numbers(root, problems)
    meminfo = meminfo_bytes(_read(f"{root}/proc/meminfo", _PROC_BYTES))
    nodes, node_of = _nodes(root, online, meminfo, problems)
    places = _places(root, sorted(online), problems)
    caches = _caches(root, sorted(online), places["core"], problems)
    l3 = {
        cpu: index
        for index, cache in enumerate(caches)
        if cache["level"] == 3 and cache["type"] != "Instruction"
        for cpu in cpulist.parse(cache["cpus"])
    }
    allowed = _allowed(root, online, [node["node"] for node in nodes])
    allowed_cpus = set(cpulist.parse(allowed["cpus"]))
    allowed_nodes = set(cpulist.parse(allowed["nodes"]))
    for node in nodes:
        node["allowed_memory"] = node["node"] in allowed_nodes
    cpus = []
    for cpu in sorted(cpu_numbers):
        siblings, core_id = places["core"].get(cpu, (frozenset([cpu]), None))
        cpus.append(
            {
                "cpu": cpu,
                "online": cpu in online,
                "node": node_of.get(cpu),
                "package": places["package"].get(cpu, (None, None))[1],
                "die": places["die"].get(cpu, (None, None))[1],
                "cluster": places["cluster"].get(cpu, (None, None))[1],
                "core": core_id,
                "siblings": places["text"].get(siblings) or str(cpu),
                "thread": places["rank"].get(cpu, 0),
                "allowed": cpu in allowed_cpus,
                "l3": l3.get(cpu),
            }
        )
    processor = _processor(root)
    _compare_memory(nodes, meminfo, problems)
    widths = {len(group) for group, _ in places["core"].values()}
    return {
        "schema": SCHEMA,
        "root": root,
        **processor,
        "packages": _count(places["package"]),
        "dies": _count(places["die"]),
        "clusters": _count(places["cluster"]),
        "cores": _count(places["core"]),
        "threads": len(online),
        "threads_per_core": widths.pop() if len(widths) == 1 else None,
        "cpus": cpus,
        "nodes": nodes,
        "caches": caches,
        "pci": _pci(root, problems),
        "allowed": allowed,
        "offline": cpulist.format(cpu_numbers - online),
        "possible": _read(f"{root}/{_CPU}/possible"),
        "available_bytes": meminfo.get("MemAvailable"),
        "problems": problems,
    }


def meminfo_bytes(text: Optional[str]) -> Dict[str, int]:
    """Return the values of a meminfo text (/proc's or a node's) in bytes; counts stay counts."""
    values = {}
    for name, number, unit in re.findall(r"(\S+):\s+(\d+)( kB)?", text or ""):
        values[name] = int(number) * 1024 if unit else int(number)
    return values


def from_mask(text: Optional[str]) -> Optional[FrozenSet[int]]:
    """A kernel bitmap: hexadecimal words, highest first, with commas (lib/vsprintf.c, %*pb).

    A bitmap whose size is no multiple of 32 has a shorter highest word; all others have 8 digits.
    """
    if not text or not _MASK.match(text):
        return None
    value = int(text.replace(",", ""), 16)
    numbers = []
    while value:
        lowest = value & -value
        numbers.append(lowest.bit_length() - 1)
        value ^= lowest
    return frozenset(numbers)


def _read(path: str, limit: int = 8192) -> Optional[str]:
    """The stripped text of a small file, or None where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        data = os.read(descriptor, limit)
    except OSError:  # sysfs answers EINVAL or ENXIO for what this machine lacks
        return None
    finally:
        os.close(descriptor)
    return data.decode("utf-8", "replace").strip("\0 \t\r\n")  # NUL: Linux 5.15-rc ends lists so


def _list_folder(path: str) -> List[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _numbered(path: str, prefix: str) -> List[int]:
    """The numbers N of a folder's entries that are named exactly prefix + N, ascending."""
    size = len(prefix)
    names = _list_folder(path)
    return sorted(int(n[size:]) for n in names if n.startswith(prefix) and n[size:].isdigit())


def _integer(text: Optional[str]) -> Optional[int]:
    try:
        return int(text) if text else None
    except ValueError:
        return None


def _identity(text: Optional[str]) -> Optional[int]:
    """A kernel id; its ways to say "unknown" (-1, and 65535 for an x86 cluster) are None."""
    value = _integer(text)
    return None if value is None or value < 0 or value == 0xFFFF else value


def _from_list(text: Optional[str]) -> Optional[FrozenSet[int]]:
    if text is None:
        return None
    try:
        return frozenset(cpulist.parse(text))
    except Fault:
        return None


def _require(root: str) -> None:
    def holds(folder: str) -> bool:
        return os.path.isdir(f"{folder}/{_CPU}") or os.path.isdir(f"{folder}/{_NODE}")

    if holds(root):
        return
    if not os.path.isdir(root):
        raise Fault(f"{root} is not a folder", "name the folder that holds the machine's sys")
    below = [name for name in sorted(_list_folder(root)) if holds(f"{root}/{name}")]
    parent = os.path.dirname(os.path.abspath(root))
    if len(below) == 1:
        hint = f"did you mean {os.path.join(root, below[0])}?"
    elif os.path.basename(os.path.abspath(root)) == "sys" and holds(parent):
        hint = f"did you mean {parent}, the folder that holds this sys?"
    else:
        hint = "name the folder that holds the machine's sys (and proc) folders"
    raise Fault(f"{root} is no root of a machine: it has neither {_CPU} nor {_NODE}", hint)


def _cpu_numbers(root: str, problems: List[str]) -> Tuple[Set[int], Set[int]]:
    """All CPUs that have a folder, and those of them that are online."""
    numbers = set(_numbered(f"{root}/{_CPU}", "cpu"))
    listed = _from_list(_read(f"{root}/{_CPU}/online"))
    if not numbers:  # a copy without the CPUs' folders
        problems.append(f"no {_CPU}/cpu* folders: packages, cores and caches are unknown")
        named = set(listed or ())
        for node in _numbered(f"{root}/{_NODE}", "node"):
            named |= node_cpus(root, node) or frozenset()
        return named, set(named if listed is None else listed)
    if listed:
        lost = listed - numbers
        if lost:
            problems.append(
                f"CPUs {cpulist.format(lost)} are online but have no folder in {_CPU}: left out"
            )
        return numbers, numbers & listed
    # Kernels before 2.6.26 have no list; CPUs that cannot be switched off have no file.
    return numbers, {n for n in numbers if _read(f"{root}/{_CPU}/cpu{n}/online") != "0"}


def _places(root: str, online: Sequence[int], problems: List[str]) -> Dict[str, Dict]:
    """Which CPUs form each core, cluster, die and package.

    Returns {level: {cpu: (CPUs of its group, number of the group or None)}}, with "rank" (a
    CPU's place among its core's CPUs) and "text" (the list format of each core's CPUs).
    """
    present: Set[str] = set()
    for cpu in online:
        present = set(_list_folder(f"{root}/{_CPU}/cpu{cpu}/topology"))
        if present:
            break
    up = frozenset(online)
    levels = (  # the newer name first: both name the same map
        ("core", ("core_cpus", "thread_siblings"), "core_id"),
        ("cluster", ("cluster_cpus",), "cluster_id"),
        ("die", ("die_cpus",), "die_id"),
        ("package", ("package_cpus", "core_siblings"), "physical_package_id"),
    )
    places: Dict[str, Dict] = {}
    for level, names, id_name in levels:
        # The map before the list: where a kernel's two differ, it was the list that was wrong.
        source, parse = next((n for n in names if n in present), None), from_mask
        if source is None:
            source = next((f"{n}_list" for n in names if f"{n}_list" in present), None)
            parse = _from_list
        places[level] = _groups(root, online, up, level, source, parse, id_name, present, problems)
    _drop_what_says_nothing(places, present, problems)
    places["text"], places["rank"] = {}, {}
    for group, _ in places["core"].values():
        if group not in places["text"]:
            places["text"][group] = cpulist.format(group)
            places["rank"].update((cpu, rank) for rank, cpu in enumerate(sorted(group)))
    return places


def _groups(
    root: str,
    online: Sequence[int],
    up: FrozenSet[int],
    level: str,
    source: Optional[str],
    parse: Any,
    id_name: str,
    present: Set[str],
    problems: List[str],
) -> Dict[int, Tuple[FrozenSet[int], Optional[int]]]:
    """One level's groups; several with one id (s390 books, unknown ids) are numbered in order."""
    has_id = id_name in present
    found: Dict[int, Tuple[FrozenSet[int], Optional[int]]] = {}
    if source is None:
        return _groups_by_id(root, online, id_name) if has_id and level == "package" else {}
    groups: List[Tuple[FrozenSet[int], Optional[int]]] = []
    torn: Set[int] = set()
    for cpu in online:
        if cpu in found:
            continue
        here = f"{root}/{_CPU}/cpu{cpu}/topology/"
        group = parse(_read(here + source))
        number = _identity(_read(here + id_name)) if has_id else None
        if group is None:
            continue
        group = (group & up) | {cpu}
        taken = {other for other in group if other in found}
        if taken:  # the maps of two CPUs contradict each other: keep what was said first
            torn |= group
            group -= taken
        groups.append((group, number))
        for other in group:
            found[other] = (group, number)
    if torn:
        problems.append(f"{level} maps overlap: those of CPUs {cpulist.format(torn)} disagree")
        by_id = _groups_by_id(root, online, id_name) if has_id and level == "package" else {}
        if len(by_id) == len(up):
            return by_id
    if level == "core":
        return found
    numbers = [number for _, number in groups]
    per_package = level in ("die", "cluster")  # their ids repeat in every package
    if not per_package and (None in numbers or len(set(numbers)) < len(numbers)):
        if None not in numbers:
            problems.append(f"{level} ids repeat in different groups: numbered in CPU order")
        for index, (group, _) in enumerate(groups):
            for cpu in group:
                found[cpu] = (group, index)
    return found


def _groups_by_id(
    root: str, online: Sequence[int], id_name: str
) -> Dict[int, Tuple[FrozenSet[int], Optional[int]]]:
    """The CPUs of each id, where the maps are missing or contradict each other."""
    members: Dict[int, List[int]] = {}
    for cpu in online:
        number = _identity(_read(f"{root}/{_CPU}/cpu{cpu}/topology/{id_name}"))
        if number is not None:
            members.setdefault(number, []).append(cpu)
    return {cpu: (frozenset(group), number) for number, group in members.items() for cpu in group}


def _drop_what_says_nothing(
    places: Dict[str, Dict], present: Set[str], problems: List[str]
) -> None:
    """Remove dies and clusters that the kernel only fills in (topology.h: id -1, one CPU each)."""
    for level in ("die", "cluster"):
        known = places[level]
        if known and all(number is None for _, number in known.values()):
            cores = {group for group, _ in places["core"].values()}
            if {group for group, _ in known.values()} <= cores | {frozenset([c]) for c in known}:
                places[level] = {}
    cores = {cpu: group for cpu, (group, _) in places["core"].items()}
    if all(cores.get(cpu) == group for cpu, (group, _) in places["cluster"].items()):
        places["cluster"] = {}  # a cluster for each core adds no level
    if not places["package"]:
        problems.append("packages are unknown: no package_cpus, core_siblings or package id")
    if not places["core"]:
        problems.append("cores are unknown: no core_cpus or thread_siblings")
    if not places["die"]:
        problems.append(
            "dies are unknown: "
            + ("die ids are all -1" if "die_id" in present else "this kernel has no die_id")
        )


def _count(level: Dict[int, Tuple[FrozenSet[int], Optional[int]]]) -> Optional[int]:
    return len({group for group, _ in level.values()}) or None


def node_cpus(root: str, node: int) -> Optional[FrozenSet[int]]:
    """The CPUs of a node as the kernel lists them, or None where it has no such list."""
    here = f"{root}/{_NODE}/node{node}/"
    listed = _from_list(_read(here + "cpulist"))
    return from_mask(_read(here + "cpumap")) if listed is None else listed


def _nodes(
    root: str, online: Set[int], meminfo: Dict[str, int], problems: List[str]
) -> Tuple[List[Dict[str, Any]], Dict[int, int]]:
    numbers = _numbered(f"{root}/{_NODE}", "node")
    if not numbers:
        problems.append(f"no {_NODE}/node*: this kernel shows no nodes, all is taken as node 0")
        node = {
            "node": 0,
            "cpus": cpulist.format(online),
            "memory_bytes": meminfo.get("MemTotal"),
            "free_bytes": meminfo.get("MemFree"),
            "page_cache_bytes": _sum(meminfo.get("Cached"), meminfo.get("Buffers")),
            "distances": {},
            "hugepages": _huge_pages(f"{root}/sys/kernel/mm/hugepages"),
        }
        return [node], dict.fromkeys(online, 0)
    nodes, node_of, shared = [], {}, set()
    faults: Dict[str, List[int]] = {}
    for number in numbers:
        here = f"{root}/{_NODE}/node{number}"
        cpus = node_cpus(root, number)
        if cpus is None:
            faults.setdefault("neither cpulist nor cpumap can be read", []).append(number)
            cpus = frozenset()
        cpus &= online
        for cpu in cpus:
            if cpu in node_of:
                shared.add(cpu)
            node_of.setdefault(cpu, number)
        text = _read(f"{here}/meminfo", _PROC_BYTES)
        memory = meminfo_bytes(text)
        if "MemTotal" not in memory:
            why = "no meminfo" if text is None else "no MemTotal in meminfo"
            faults.setdefault(why, []).append(number)
        distances, why = _distances(_read(f"{here}/distance"), numbers)
        if why:
            faults.setdefault(why, []).append(number)
        nodes.append(
            {
                "node": number,
                "cpus": cpulist.format(cpus),
                "memory_bytes": memory.get("MemTotal"),
                "free_bytes": memory.get("MemFree"),
                "page_cache_bytes": memory.get("FilePages"),
                "distances": distances,
                "hugepages": _huge_pages(f"{here}/hugepages"),
            }
        )
    for why, where in faults.items():
        noun = "node" if len(where) == 1 else "nodes"
        problems.append(f"{noun} {cpulist.format(where)}: {why}")
    if shared:
        problems.append(
            f"CPUs {cpulist.format(shared)} are listed by several nodes: "
            "each is counted to the first of them"
        )
    without = online - set(node_of)
    if without:
        problems.append(f"CPUs {cpulist.format(without)} are online but belong to no node")
    return nodes, node_of


def _sum(*values: Optional[int]) -> Optional[int]:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _distances(text: Optional[str], numbers: Sequence[int]) -> Tuple[Dict[str, int], Optional[str]]:
    """SLIT distances (ACPI 6.5, 5.2.17): one per online node, in ascending order of the nodes.

    Returns them with None, or nothing with the reason.
    """
    if not text:
        return {}, "no distance file"
    values = [_integer(word) for word in text.split()]
    if None in values or len(values) != len(numbers):
        return {}, f"distance has {len(values)} values, the machine {len(numbers)} node(s): ignored"
    return {str(other): value for other, value in zip(numbers, values)}, None


def _huge_pages(folder: str) -> List[Dict[str, Optional[int]]]:
    pools = []
    for name in _list_folder(folder):
        size = re.match(r"hugepages-(\d+)kB\Z", name)
        if size:
            pools.append(
                {
                    "size_bytes": int(size.group(1)) * 1024,
                    "total": _integer(_read(f"{folder}/{name}/nr_hugepages")),
                    "free": _integer(_read(f"{folder}/{name}/free_hugepages")),
                }
            )
    return sorted(pools, key=lambda pool: pool["size_bytes"])


def _size(text: Optional[str]) -> Optional[int]:
    match = re.match(r"(\d+)\s*([KMG]?)", text or "")
    if not match or not int(match.group(1)):
        return None
    return int(match.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[match.group(2)]


def _caches(
    root: str, online: Sequence[int], core_of: Dict[int, tuple], problems: List[str]
) -> List[Dict[str, Any]]:
    """Every cache once; each is read at the first CPU that shares it."""
    up = frozenset(online)
    found: Dict[Tuple[int, str, FrozenSet[int]], Optional[int]] = {}
    # CPUs whose cache at this place was read at a CPU that shares it. The number of places is
    # part of the key: CPUs of different kinds number their caches differently.
    covered: Dict[Tuple[int, str], Set[int]] = {}
    unclear: Dict[str, Set[int]] = {}
    without = set()
    done: Set[int] = set()  # threads of a core that share every cache of one that was read
    for cpu in online:
        if cpu in done:
            continue
        core = core_of.get(cpu, (frozenset([cpu]), None))[0]
        here = f"{root}/{_CPU}/cpu{cpu}/cache"
        indexes = [name for name in _list_folder(here) if name.startswith("index")]
        if not indexes:
            without.add(cpu)
        alike = set(core) if indexes else set()
        for index in indexes:
            key = (len(indexes), index)
            if cpu in covered.setdefault(key, set()):
                alike &= covered[key]
                continue
            place = f"{here}/{index}/"
            level = _integer(_read(place + "level"))
            kind = _read(place + "type")
            if level is None or not kind:
                unclear.setdefault("no level or type", set()).add(cpu)
                continue
            sharing = from_mask(_read(place + "shared_cpu_map"))
            if sharing is None:
                sharing = _from_list(_read(place + "shared_cpu_list"))
            if not sharing:  # ia64 leaves the map of its outer caches empty
                unclear.setdefault("no list of the CPUs that share one", set()).add(cpu)
                sharing = core
            sharing = (sharing & up) | {cpu}
            alike &= sharing
            covered[key] |= sharing
            size = _size(_read(place + "size"))
            if size is None:
                unclear.setdefault(f"L{level} without a size", set()).add(cpu)
            found.setdefault((level, kind, sharing), size)
        done |= alike
    for why, cpus in unclear.items():
        problems.append(f"caches of CPUs {cpulist.format(cpus)}: {why}")
    if without:
        who = "" if without == up else f" of CPUs {cpulist.format(without)}"
        problems.append(f"caches{who} are unknown: no cpu*/cache folders")
    if any(
        level == 1 and kind == "Data" and len(sharing) < len(core_of[cpu][0])
        for level, kind, sharing in found
        for cpu in list(sharing)[:1]
        if cpu in core_of
    ):
        problems.append(
            "some hardware threads of a core have L1 data caches of their own: what the kernel "
            "calls a core here is a module of cores (AMD family 15h), or its maps are wrong"
        )
    ordered = sorted(found.items(), key=lambda item: (item[0][0], item[0][1], min(item[0][2])))
    return [
        {"level": level, "type": kind, "size_bytes": size, "cpus": cpulist.format(sharing)}
        for (level, kind, sharing), size in ordered
    ]


_KINDS = {"0x01": "storage", "0x02": "network", "0x03": "gpu", "0x12": "other", "0x0b": "other"}
_INFINIBAND = "0x0c06"
_NAMING = ("net", "nvme", "block", "drm", "infiniband")
_BETWEEN = re.compile(r"(virtio|ata|host|target|end_device|expander|port|phy)[\d:-]|\d+:\d+:")


def _pci(root: str, problems: List[str]) -> List[Dict[str, Any]]:
    """Network, storage, graphics and accelerator functions with their nodes."""
    devices, unread = [], 0
    for address in sorted(_list_folder(f"{root}/{_PCI}")):
        here = f"{root}/{_PCI}/{address}"
        kind_code = _read(f"{here}/class")
        if kind_code is None:
            unread += 1
            continue
        kind = _KINDS.get(kind_code[:4]) or ("network" if kind_code[:6] == _INFINIBAND else None)
        if kind is None:
            continue
        devices.append(
            {
                "address": address,
                "class": kind_code,
                "kind": kind,
                "node": _identity(_read(f"{here}/numa_node")),
                "names": sorted(_names(here, 5)),
            }
        )
    if unread:
        problems.append(f"{unread} PCI devices in {_PCI} have no readable class: left out")
    return devices


def _names(folder: str, depth: int) -> Set[str]:
    """Names of the interfaces that a device's folder, or those between it and them, hold."""
    names: Set[str] = set()
    for entry in _list_folder(folder):
        if entry in _NAMING:
            below = _list_folder(f"{folder}/{entry}")
            names |= {n for n in below if not (entry == "drm" and not n.startswith("card"))}
        elif depth and _BETWEEN.match(entry):
            names |= _names(f"{folder}/{entry}", depth - 1)
    return names


def _allowed(root: str, online: Iterable[int], nodes: Iterable[int]) -> Dict[str, str]:
    """What this process may use (man 7 cpuset); in a copy without /proc: everything."""
    online, nodes = set(online), set(nodes)
    text = _read(f"{root}/proc/self/status", _PROC_BYTES) or ""
    lists = dict(re.findall(r"^(Cpus|Mems)_allowed_list:[ \t]*(\S*)", text, re.M))
    cpus, mems = _from_list(lists.get("Cpus")), _from_list(lists.get("Mems"))
    if cpus is None and mems is None:
        cpus, mems = _cgroup_limits(root)
    return {
        "cpus": cpulist.format(online if not cpus else online & cpus),
        "nodes": cpulist.format(nodes if not mems else nodes & mems),
    }


def _cgroup_limits(root: str) -> Tuple[Optional[FrozenSet[int]], Optional[FrozenSet[int]]]:
    """The cpuset of a copied machine whose /proc/self/status was not copied (man 7 cgroups)."""
    own: Dict[str, str] = {}
    for line in (_read(f"{root}/proc/self/cgroup") or "").splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        own["cgroup2" if not controllers else "cpuset" if "cpuset" in controllers else ""] = path
    for kind in ("cpuset", "cgroup2"):
        own.setdefault(kind, _read(f"{root}/proc/self/cpuset") or "/")
    for line in (_read(f"{root}/proc/mounts", _PROC_BYTES) or "").splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        _, mount, kind, options = fields[:4]
        if kind == "cpuset" or (kind == "cgroup" and "cpuset" in options.split(",")):
            folder = f"{root}{mount}{own['cpuset']}"
            names = (("cpus", "mems"), ("cpuset.cpus", "cpuset.mems"))
        elif kind == "cgroup2":
            folder = f"{root}{mount}{own['cgroup2']}"
            names = (("cpuset.cpus.effective", "cpuset.mems.effective"),)
        else:
            continue
        for cpus, mems in names:
            limits = _from_list(_read(f"{folder}/{cpus}")), _from_list(_read(f"{folder}/{mems}"))
            if limits != (None, None):
                return limits
    return None, None


def _compare_memory(
    nodes: List[Dict[str, Any]], meminfo: Dict[str, int], problems: List[str]
) -> None:
    total = _sum(*(node["memory_bytes"] for node in nodes))
    whole = meminfo.get("MemTotal")
    if total and whole and not 0.9 < total / whole < 1.1:
        problems.append(
            f"{MEMORY_DISAGREES} {total / 2**30:.1f} GiB, /proc/meminfo says "
            f"{whole / 2**30:.1f} GiB: memory and free memory per node are doubtful"
        )


def _processor(root: str) -> Dict[str, Optional[str]]:
    """Architecture, vendor and model name as far as the machine's files tell."""
    text = _read(f"{root}/proc/cpuinfo", _CPUINFO_BYTES) or ""
    fields: Dict[str, str] = {}
    parts: List[Tuple[int, int]] = []
    implementer = None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        name, value = name.strip(), value.strip()
        fields.setdefault(name, value)
        if name == "CPU implementer":
            implementer = _hexadecimal(value)
        elif name == "CPU part" and implementer is not None:
            part = (implementer, _hexadecimal(value) or 0)
            if part not in parts:
                parts.append(part)
    arch = _architecture(root, text, fields)
    model = next(
        (fields[n] for n in ("model name", "Model Name", "cpu model") if fields.get(n)), None
    )
    vendor = fields.get("vendor_id") or fields.get("vendor")
    if parts:
        known = [
            _ARM_PARTS.get(p)
            or f"{_ARM_VENDORS.get(p[0], f'implementer {p[0]:#x}')} part {p[1]:#x}"
            for p in parts
        ]
        model = " + ".join(known)
        vendor = _ARM_VENDORS.get(parts[0][0])
    elif model is None and vendor == "IBM/S390":
        machine = re.search(r"machine\s*[=:]\s*(\w+)", text)
        model = f"IBM/S390 machine {machine.group(1)}" if machine else None
    elif model is None:
        model = next((fields[n] for n in ("cpu", "uarch", "isa") if fields.get(n)), None)
    if model is None:
        model = next(
            (
                words
                for file in ("sys/class/dmi/id", "sys/devices/virtual/dmi/id")
                for words in [_read(f"{root}/{file}/product_name")]
                if words
            ),
            None,
        )
    return {"arch": arch, "model": " ".join(model.split()) if model else None, "vendor": vendor}


def _hexadecimal(text: str) -> Optional[int]:
    try:
        return int(text, 16)
    except ValueError:
        return None


def _architecture(root: str, text: str, fields: Dict[str, str]) -> Optional[str]:
    if os.path.realpath(root) == "/":
        return os.uname().machine
    own = _read(f"{root}/proc/sys/kernel/arch")
    if own:
        return own
    vendor = fields.get("vendor_id") or fields.get("vendor") or ""
    if fields.get("arch") == "IA-64":
        return "ia64"
    if vendor == "IBM/S390":
        return "s390x"
    if "flags" in fields:
        return "x86_64" if "lm" in fields["flags"].split() else "i686"
    if "CPU implementer" in fields:
        return "aarch64" if fields.get("CPU architecture") in ("8", "AArch64") else "armv7l"
    if "loongarch64" in fields.get("ISA", "") or fields.get("CPU Family") == "Loongson-64bit":
        return "loongarch64"
    if fields.get("isa", "").startswith("rv"):
        return "riscv" + fields["isa"][2:4]
    # The compiler's or the package's name: the builder's name in it may be another machine's.
    named = re.search(rf"(?<![a-z0-9])({_ARCHES})\b", _read(f"{root}/proc/version") or "")
    if re.match(r"POWER\d|PPC970|Cell", fields.get("cpu", "")):
        return named.group(1) if named else "ppc64"
    if fields.get("type", "").startswith("sun4"):
        return "sparc64"
    if "cpu model" in fields and "ASEs implemented" in text:
        return "mips64" if "mips64" in fields.get("isa", "") else "mips"
    return named.group(1) if named else None
