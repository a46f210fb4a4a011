"""Synthetic machines: a short description of a NUMA host becomes a sysfs and procfs tree.

Use a ready machine (``INTEL_2N``, ``AMD_8N``, ``ARM_16N`` …), change one with
``dataclasses.replace``, ``offline`` or ``limited``, or make one with ``grid``; then

    root = sysfs_tree.write(tmp_path, sysfs_tree.AMD_8N)
    topology.read(root)

The numbers are made up, the layout is the kernel's (Documentation/ABI/stable/sysfs-devices-node,
Documentation/admin-guide/cputopology.rst).
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from numalab.agent import cpulist

GIB = 1 << 30


@dataclass(frozen=True)
class Cpu:
    """A hardware thread and where it sits; ``core`` is the kernel's core_id in its package."""

    number: int
    node: int
    package: int
    core: int
    die: Optional[int] = None
    cluster: Optional[int] = None
    online: bool = True


@dataclass(frozen=True)
class Node:
    """A NUMA node; memory in GiB (0: memory-less), ``distances`` in the order of the nodes."""

    number: int
    memory: float = 64
    free: float = 60
    page_cache: float = 2  # without the shared memory
    distances: Optional[Sequence[int]] = None
    huge_pages: int = 0
    shared: float = 0


@dataclass(frozen=True)
class Cache:
    """One cache: ``size`` as the kernel writes it ("32768K"; None: no size file)."""

    level: int
    type: str
    size: Optional[str]
    cpus: Tuple[int, ...]


@dataclass(frozen=True)
class Machine:
    """A host. ``files`` are further files by path below the root; None removes one."""

    name: str
    cpus: Tuple[Cpu, ...]
    nodes: Tuple[Node, ...]
    caches: Tuple[Cache, ...] = ()
    arch: str = "x86_64"
    cpuinfo: str = "vendor_id\t: GenuineIntel\nmodel name\t: Synthetic Xeon\n"
    old_kernel: bool = False
    allowed_cpus: Optional[str] = None
    allowed_nodes: Optional[str] = None
    pci: Tuple[Tuple[str, str, int, str], ...] = ()
    files: Mapping[str, Optional[str]] = field(default_factory=dict)

    @property
    def online(self) -> List[int]:
        """Numbers of the online hardware threads, ascending."""
        return sorted(cpu.number for cpu in self.cpus if cpu.online)

    def cpus_of(self, node: int) -> List[int]:
        """Numbers of the online hardware threads of a node, ascending."""
        return sorted(c.number for c in self.cpus if c.online and c.node == node)


def grid(
    name: str,
    *,
    packages: int,
    nodes_per_package: int,
    cores_per_node: int,
    threads: int = 1,
    numbering: str = "siblings last",
    cores_per_l3: Optional[int] = None,
    l3: str = "32768K",
    cores_per_cluster: Optional[int] = None,
    dies: bool = False,
    near: int = 12,
    far: int = 32,
    memory: float = 64,
    **other,
) -> Machine:
    """A regular machine.

    ``numbering``: "siblings last" (thread t of core c is CPU c + t × cores: Intel and AMD),
    "siblings adjacent" (POWER, ARM with SMT), "interleaved" (cores dealt round the packages).
    ``cores_per_l3`` None: no L3 is described. Distances: 10 to itself, ``near`` in the package,
    ``far`` elsewhere.
    """
    count = packages * nodes_per_package
    cores = [(node, core) for node in range(count) for core in range(cores_per_node)]
    order = list(cores)
    if numbering == "interleaved":
        order = [(node, core) for core in range(cores_per_node) for node in range(count)]
    position = {core: place for place, core in enumerate(order)}
    numbers: Dict[Tuple[int, int], List[int]] = {}
    cpus = []
    for node, core in cores:
        place = position[(node, core)]
        in_package = (node % nodes_per_package) * cores_per_node + core
        numbers[(node, core)] = [
            place * threads + t if numbering == "siblings adjacent" else place + t * len(cores)
            for t in range(threads)
        ]
        for number in numbers[(node, core)]:
            cpus.append(
                Cpu(
                    number=number,
                    node=node,
                    package=node // nodes_per_package,
                    core=in_package,
                    die=(node % nodes_per_package) if dies else 0,
                    cluster=in_package // cores_per_cluster if cores_per_cluster else None,
                )
            )
    caches = []
    for core in cores:
        threads_of_core = tuple(sorted(numbers[core]))
        caches.append(Cache(1, "Data", "32K", threads_of_core))
        caches.append(Cache(1, "Instruction", "32K", threads_of_core))
        caches.append(Cache(2, "Unified", "1024K", threads_of_core))
    if cores_per_l3:
        for node in range(count):
            for first in range(0, cores_per_node, cores_per_l3):
                sharing = [
                    number
                    for core in range(first, min(first + cores_per_l3, cores_per_node))
                    for number in numbers[(node, core)]
                ]
                caches.append(Cache(3, "Unified", l3, tuple(sorted(sharing))))

    def distance(a: int, b: int) -> int:
        if a == b:
            return 10
        return near if a // nodes_per_package == b // nodes_per_package else far

    nodes = tuple(
        Node(n, memory, memory * 0.9, memory * 0.05, [distance(n, m) for m in range(count)])
        for n in range(count)
    )
    cpus.sort(key=lambda cpu: cpu.number)
    return Machine(name=name, cpus=tuple(cpus), nodes=nodes, caches=tuple(caches), **other)


def offline(machine: Machine, numbers: Iterable[int]) -> Machine:
    """The machine with these hardware threads offline."""
    gone = set(numbers)
    return replace(
        machine,
        cpus=tuple(replace(c, online=False) if c.number in gone else c for c in machine.cpus),
        caches=tuple(
            replace(cache, cpus=left)
            for cache in machine.caches
            for left in [tuple(n for n in cache.cpus if n not in gone)]
            if left
        ),
    )


def limited(machine: Machine, cpus: str, nodes: str) -> Machine:
    """The machine as seen from a cpuset that allows these CPUs and memory nodes."""
    return replace(machine, allowed_cpus=cpus, allowed_nodes=nodes)


def _bitmask(numbers: Iterable[int], width: int) -> str:
    """The kernel's bitmap format: 32-bit words in hexadecimal, highest first, with commas."""
    value = sum(1 << n for n in numbers)
    words = max(1, -(-width // 32))
    return ",".join(f"{value >> (32 * w) & 0xFFFFFFFF:08x}" for w in range(words - 1, -1, -1))


def _kib(gib: float) -> int:
    return int(gib * (1 << 20))


def write(folder: os.PathLike, machine: Machine) -> Path:
    """Write the machine's tree below ``folder`` and return its root (it holds sys/ and proc/)."""
    root = Path(folder) / machine.name
    files: Dict[str, Optional[str]] = {}
    links: Dict[str, str] = {}
    _system(machine, files)
    _cpus(machine, files, links)
    _nodes(machine, files)
    _pci(machine, files, links)
    files.update(machine.files)
    made = set()
    for path, text in files.items():
        if text is None:
            continue
        parent, _, name = path.rpartition("/")
        if parent not in made:
            os.makedirs(root / parent, exist_ok=True)
            made.add(parent)
        with open(f"{root}/{path}", "w", encoding="utf-8") as out:
            out.write(text if text.endswith("\n") or not text else text + "\n")
    for path, target in links.items():
        os.makedirs((root / path).parent, exist_ok=True)
        os.symlink(target, root / path)
    return root


_shared: Dict[str, Path] = {}
_shared_folder: List[tempfile.TemporaryDirectory] = []  # goes with the process


def shared(machine: Machine) -> Path:
    """The root of a machine's tree that is written once per process: for reading only."""
    if not _shared_folder:
        _shared_folder.append(tempfile.TemporaryDirectory(prefix="numalab-sysfs-"))
    if machine.name not in _shared:
        _shared[machine.name] = write(Path(_shared_folder[0].name), machine)
    return _shared[machine.name]


def _system(machine: Machine, files: Dict[str, Optional[str]]) -> None:
    online = machine.online
    total = sum(node.memory for node in machine.nodes)
    free = sum(node.free for node in machine.nodes)
    cached = sum(node.page_cache for node in machine.nodes)
    files["proc/cpuinfo"] = "\n".join(f"processor\t: {n}\n{machine.cpuinfo}" for n in online)
    files["proc/version"] = f"Linux version 6.1.0-test ({machine.arch}) #1 SMP"
    files["proc/sys/kernel/arch"] = machine.arch
    files["proc/sys/kernel/osrelease"] = "6.1.0-test"
    files["proc/sys/kernel/numa_balancing"] = "0"
    files["proc/sys/kernel/perf_event_paranoid"] = "1"
    files["proc/sys/vm/zone_reclaim_mode"] = "0"
    files["proc/sys/vm/swappiness"] = "60"
    files["proc/cmdline"] = "root=/dev/vda1 quiet"
    files["proc/loadavg"] = "0.10 0.20 0.30 1/200 4242"
    files["proc/meminfo"] = (
        f"MemTotal:       {_kib(total)} kB\nMemFree:        {_kib(free)} kB\n"
        f"MemAvailable:   {_kib(free + cached)} kB\nBuffers:        0 kB\n"
        f"Cached:         {_kib(cached)} kB\nSwapTotal:      0 kB\nSwapFree:       0 kB\n"
        "HugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB\n"
    )
    files["proc/self/status"] = (
        "Name:\ttest\n"
        f"Cpus_allowed_list:\t{machine.allowed_cpus or cpulist.format(online)}\n"
        "Mems_allowed_list:\t"
        f"{machine.allowed_nodes or cpulist.format(n.number for n in machine.nodes)}\n"
    )
    files["sys/kernel/mm/transparent_hugepage/enabled"] = "always [madvise] never"
    files["sys/kernel/mm/transparent_hugepage/defrag"] = (
        "always defer defer+madvise [madvise] never"
    )
    base = "sys/devices/system/cpu"
    everyone = cpulist.format(cpu.number for cpu in machine.cpus)
    files[f"{base}/online"] = cpulist.format(online)
    files[f"{base}/present"] = everyone
    files[f"{base}/possible"] = everyone
    files[f"{base}/offline"] = cpulist.format({c.number for c in machine.cpus} - set(online))


def _cpus(machine: Machine, files: Dict[str, Optional[str]], links: Dict[str, str]) -> None:
    base = "sys/devices/system/cpu"
    width = max(cpu.number for cpu in machine.cpus) + 1
    up = [cpu for cpu in machine.cpus if cpu.online]
    groups: Dict[tuple, List[int]] = {}
    for cpu in up:
        for key in (
            ("package", cpu.package),
            ("die", cpu.package, cpu.die),
            ("cluster", cpu.package, cpu.cluster),
            ("core", cpu.package, cpu.die, cpu.core),
        ):
            groups.setdefault(key, []).append(cpu.number)
    caches_of: Dict[int, List[Cache]] = {cpu.number: [] for cpu in up}
    for cache in machine.caches:
        for number in cache.cpus:
            caches_of[number].append(cache)
    text: Dict[tuple, Tuple[str, str]] = {
        key: (_bitmask(members, width), cpulist.format(members)) for key, members in groups.items()
    }
    shared = {
        cache: (_bitmask(cache.cpus, width), cpulist.format(cache.cpus)) for cache in machine.caches
    }
    # What CPUs share is written once and linked, unless a test overrides a file of it: a large
    # machine would be tens of thousands of files.
    written: Dict[object, Tuple[int, int]] = {}
    own = {path.rpartition("/")[0] for path in machine.files}
    for cpu in machine.cpus:
        here = f"{base}/cpu{cpu.number}"
        if cpu.number:  # the boot CPU has no switch
            files[f"{here}/online"] = "1" if cpu.online else "0"
        if not cpu.online:  # the kernel removes topology, caches and the node link
            continue
        links[f"{here}/node{cpu.node}"] = f"../../node/node{cpu.node}"
        for index, cache in enumerate(caches_of[cpu.number]):
            there = f"{here}/cache/index{index}"
            first, place = written.setdefault(cache, (cpu.number, index))
            if first != cpu.number and there not in own:
                links[there] = f"../../cpu{first}/cache/index{place}"
                continue
            files[f"{there}/level"] = str(cache.level)
            files[f"{there}/type"] = cache.type
            files[f"{there}/size"] = cache.size
            mask, listed = shared[cache]
            files[f"{there}/shared_cpu_map"] = mask
            if not machine.old_kernel:
                files[f"{there}/shared_cpu_list"] = listed
        topology = f"{here}/topology"
        first, _ = written.setdefault((cpu.package, cpu.die, cpu.core), (cpu.number, 0))
        if first != cpu.number and topology not in own:
            links[topology] = f"../cpu{first}/topology"
            continue
        files[f"{topology}/physical_package_id"] = str(cpu.package)
        files[f"{topology}/core_id"] = str(cpu.core)

        def group(names: Sequence[str], key: tuple, topology: str = topology) -> None:
            for name in names:
                mask, listed = text[key]
                files[f"{topology}/{name}"] = mask
                if not machine.old_kernel:
                    files[f"{topology}/{name}_list"] = listed

        core = ("core", cpu.package, cpu.die, cpu.core)
        if machine.old_kernel:
            group(["thread_siblings"], core)
            group(["core_siblings"], ("package", cpu.package))
        else:
            group(["thread_siblings", "core_cpus"], core)
            group(["core_siblings", "package_cpus"], ("package", cpu.package))
            if cpu.die is not None:
                files[f"{topology}/die_id"] = str(cpu.die)
                group(["die_cpus"], ("die", cpu.package, cpu.die))
            if cpu.cluster is not None:
                files[f"{topology}/cluster_id"] = str(cpu.cluster)
                group(["cluster_cpus"], ("cluster", cpu.package, cpu.cluster))


def _nodes(machine: Machine, files: Dict[str, Optional[str]]) -> None:
    base = "sys/devices/system/node"
    width = max(cpu.number for cpu in machine.cpus) + 1
    numbers = [node.number for node in machine.nodes]
    files[f"{base}/online"] = cpulist.format(numbers)
    files[f"{base}/possible"] = cpulist.format(numbers)
    files[f"{base}/has_memory"] = cpulist.format(n.number for n in machine.nodes if n.memory)
    for node in machine.nodes:
        here, cpus = f"{base}/node{node.number}", machine.cpus_of(node.number)
        files[f"{here}/cpumap"] = _bitmask(cpus, width)
        if not machine.old_kernel:
            files[f"{here}/cpulist"] = cpulist.format(cpus)
        if node.distances is not None:
            files[f"{here}/distance"] = " ".join(str(d) for d in node.distances)
        n = node.number
        files[f"{here}/meminfo"] = "".join(
            f"Node {n} {name}: {value} kB\n"
            for name, value in (
                ("MemTotal", _kib(node.memory)),
                ("MemFree", _kib(node.free)),
                ("MemUsed", _kib(node.memory - node.free)),
                ("FilePages", _kib(node.page_cache + node.shared)),
                ("Shmem", _kib(node.shared)),
                ("AnonPages", 0),
            )
        )
        files[f"{here}/numastat"] = (
            "numa_hit 1000\nnuma_miss 0\nnuma_foreign 0\ninterleave_hit 0\n"
            "local_node 1000\nother_node 0\n"
        )
        huge = f"{here}/hugepages/hugepages-2048kB"
        files[f"{huge}/nr_hugepages"] = str(node.huge_pages)
        files[f"{huge}/free_hugepages"] = str(node.huge_pages)
        files[f"{huge}/surplus_hugepages"] = "0"


def _pci(machine: Machine, files: Dict[str, Optional[str]], links: Dict[str, str]) -> None:
    for address, kind, node, name in machine.pci:
        here = f"sys/devices/pci{address[:7]}/{address}"
        files[f"{here}/class"] = kind
        files[f"{here}/numa_node"] = str(node)
        subsystem = {"0x02": "net", "0x01": "nvme"}.get(kind[:4], "drm")
        files[f"{here}/{subsystem}/{name}/uevent"] = ""
        links[f"sys/bus/pci/devices/{address}"] = f"../../../devices/pci{address[:7]}/{address}"


_AMD = "vendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 7543 32-Core Processor\n"
_INTEL = "vendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Gold 6326 CPU @ 2.90GHz\n"
_ARM_64 = "CPU implementer\t: 0x70\nCPU architecture: 8\nCPU part\t: 0x663\n"
_KUNPENG = "CPU implementer\t: 0x48\nCPU architecture: 8\nCPU part\t: 0xd01\n"
_POWER = "cpu\t\t: POWER9, altivec supported\nrevision\t: 2.2 (pvr 004e 1202)\n"

INTEL_2N = grid(
    "intel-2n", packages=2, nodes_per_package=1, cores_per_node=16, threads=2, cores_per_l3=16,
    l3="24576K", far=20, memory=128, cpuinfo=_INTEL,
    pci=(("0000:17:00.0", "0x020000", 0, "eth0"), ("0000:65:00.0", "0x010802", 1, "nvme0")),
)  # fmt: skip
AMD_8N = grid(
    "amd-8n", packages=2, nodes_per_package=4, cores_per_node=8, threads=2, cores_per_l3=4,
    cpuinfo=_AMD,
)  # fmt: skip
ARM_16N = grid(
    "arm-16n", packages=2, nodes_per_package=8, cores_per_node=8, near=20, far=40, memory=16,
    arch="aarch64", cpuinfo=_ARM_64,
)  # fmt: skip
ARM_4N = grid(
    "arm-4n", packages=2, nodes_per_package=2, cores_per_node=32, cores_per_cluster=4,
    cores_per_l3=32, arch="aarch64", cpuinfo=_KUNPENG,
)  # fmt: skip
ONE_NODE = grid(
    "one-node", packages=1, nodes_per_package=1, cores_per_node=4, threads=2, cores_per_l3=4,
    memory=16, cpuinfo=_INTEL,
)  # fmt: skip
INTERLEAVED_2N = grid(
    "interleaved-2n", packages=2, nodes_per_package=1, cores_per_node=4, threads=2,
    numbering="interleaved", cores_per_l3=4, far=21, cpuinfo=_INTEL,
)  # fmt: skip
OLD_KERNEL_4N = grid(
    "old-kernel-4n", packages=4, nodes_per_package=1, cores_per_node=10, threads=2,
    cores_per_l3=10, far=20, old_kernel=True, cpuinfo=_INTEL,
)  # fmt: skip
BIG_16N = grid(
    "big-16n", packages=4, nodes_per_package=4, cores_per_node=16, threads=2, cores_per_l3=8,
    cpuinfo=_AMD,
)  # fmt: skip
CXL_3N = replace(  # node 2 is memory without CPUs behind a CXL link of package 0
    INTEL_2N,
    name="cxl-3n",
    nodes=(
        Node(0, 128, 120, 4, [10, 21, 14]),
        Node(1, 128, 120, 4, [21, 10, 24]),
        Node(2, 256, 255, 0, [14, 24, 10]),
    ),
)
MEMORYLESS_2N = replace(  # all DIMMs sit in package 0
    INTEL_2N,
    name="memoryless-2n",
    nodes=(Node(0, 128, 120, 4, [10, 20]), Node(1, 0, 0, 0, [20, 10])),
)
NO_DISTANCES_2N = replace(
    INTEL_2N,
    name="no-distances-2n",
    nodes=tuple(replace(node, distances=None) for node in INTEL_2N.nodes),
)
STARVED_2N = replace(  # node 0 is full of page cache
    INTEL_2N,
    name="starved-2n",
    nodes=(Node(0, 128, 2.4, 116, [10, 20]), Node(1, 128, 120, 4, [20, 10])),
)
INTEL_2N_OFFLINE = replace(
    offline(INTEL_2N, [5, 37, 48, 49]), name="intel-2n-offline"
)  # a whole core, and single siblings
INTEL_2N_LIMITED = replace(limited(INTEL_2N, "0-7,32-39", "0"), name="intel-2n-limited")


def _power_sparse() -> Machine:
    base = grid(
        "power-sparse", packages=2, nodes_per_package=1, cores_per_node=4, threads=4,
        numbering="siblings adjacent", cores_per_l3=2, l3="10240K", arch="ppc64le", cpuinfo=_POWER,
    )  # fmt: skip
    number = {0: 0, 1: 8}
    return replace(
        base,
        cpus=tuple(replace(c, node=number[c.node], package=number[c.package]) for c in base.cpus),
        nodes=(
            Node(0, 128, 120, 4, [10, 40, 80, 80]),
            Node(8, 128, 120, 4, [40, 10, 80, 80]),
            Node(252, 16, 16, 0, [80, 80, 10, 80]),  # memory of a GPU
            Node(255, 16, 16, 0, [80, 80, 80, 10]),
        ),
    )


def _hybrid() -> Machine:
    """Two cores with two threads each and four cores with one, that share an L2."""
    cpus = [Cpu(n, 0, 0, core=n // 2 * 8, die=0) for n in range(4)]
    cpus += [Cpu(n, 0, 0, core=12 + n, die=0) for n in range(4, 8)]
    caches = [Cache(1, "Data", "48K", pair) for pair in ((0, 1), (2, 3))]
    caches += [Cache(2, "Unified", "1280K", pair) for pair in ((0, 1), (2, 3))]
    caches += [Cache(1, "Data", "32K", (n,)) for n in range(4, 8)]
    caches.append(Cache(2, "Unified", "2M", (4, 5, 6, 7)))
    caches.append(Cache(3, "Unified", "24576K", tuple(range(8))))
    return Machine(
        "hybrid", tuple(cpus), (Node(0, 16, 12, 2, [10]),), tuple(caches), cpuinfo=_INTEL
    )


POWER_SPARSE = _power_sparse()
HYBRID = _hybrid()

ALL = (
    INTEL_2N, AMD_8N, ARM_16N, ARM_4N, ONE_NODE, INTERLEAVED_2N, OLD_KERNEL_4N, CXL_3N,
    MEMORYLESS_2N, NO_DISTANCES_2N, STARVED_2N, INTEL_2N_OFFLINE, INTEL_2N_LIMITED, POWER_SPARSE,
    HYBRID,
)  # fmt: skip


def _pages(machine: Machine, huge: int) -> Machine:
    """The machine with a kernel whose huge pages have this size: 32 MiB with pages of 16 KiB."""
    there = "sys/kernel/mm/transparent_hugepage/hpage_pmd_size"
    return replace(machine, files={**machine.files, there: str(huge)})


def _renumbered(machine: Machine, step: int) -> Machine:
    """The machine with nodes 0, step, 2 × step …"""
    return replace(
        machine,
        cpus=tuple(replace(cpu, node=cpu.node * step) for cpu in machine.cpus),
        nodes=tuple(replace(node, number=node.number * step) for node in machine.nodes),
    )


_XEON_2X112 = grid(
    "xeon-2x112", packages=2, nodes_per_package=1, cores_per_node=56, threads=2, cores_per_l3=56,
    l3="107520K", far=21, memory=512, cpuinfo=_INTEL,
)  # fmt: skip
_EPYC_512 = grid(
    "epyc-512", packages=2, nodes_per_package=4, cores_per_node=32, threads=2, cores_per_l3=8,
    memory=256, cpuinfo=_AMD,
)  # fmt: skip


def _xeon_max() -> Machine:
    """Eight nodes with CPUs and, after them, the eight nodes of their HBM."""
    base = grid(
        "xeon-max-hbm", packages=2, nodes_per_package=4, cores_per_node=14, threads=2,
        cores_per_l3=14, l3="115200K", far=21, memory=128, cpuinfo=_INTEL,
    )  # fmt: skip
    near = [list(node.distances or ()) for node in base.nodes]
    to_hbm = [[{10: 13, 12: 14, 21: 23}[far] for far in row] for row in near]
    nodes = [replace(n, distances=near[i] + to_hbm[i]) for i, n in enumerate(base.nodes)]
    nodes += [Node(8 + i, 16, 16, 0, to_hbm[i] + near[i]) for i in range(8)]
    return replace(base, nodes=tuple(nodes))


LARGE = (  # hosts that nobody here has: 1 and 2 TiB, many nodes, many CPUs
    _XEON_2X112,
    grid(
        "epyc-8x32", packages=2, nodes_per_package=4, cores_per_node=16, threads=2,
        cores_per_l3=8, memory=128, cpuinfo=_AMD,
    ),
    _pages(
        grid(
            "arm-16x8", packages=2, nodes_per_package=8, cores_per_node=8, near=20, far=40,
            memory=128, arch="aarch64", cpuinfo=_ARM_64,
        ),
        512 << 20,
    ),
    _pages(
        grid(
            "arm-2x80", packages=2, nodes_per_package=1, cores_per_node=80, memory=512,
            arch="aarch64", cpuinfo=_ARM_64,
        ),
        32 << 20,
    ),
    _EPYC_512,
    BIG_16N,
    replace(
        _renumbered(_EPYC_512, 8),
        name="epyc-512-cxl",
        nodes=(
            *(
                replace(node, distances=(*(node.distances or ()), 50, 50))
                for node in _renumbered(_EPYC_512, 8).nodes
            ),
            Node(80, 512, 510, 0, [50] * 8 + [10, 60]),
            Node(88, 512, 510, 0, [50] * 8 + [60, 10]),
        ),
    ),
    _xeon_max(),
)  # fmt: skip
