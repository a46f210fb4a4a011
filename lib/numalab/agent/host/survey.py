"""What a live host says of its memory by node, and of the processes that hold it. Only reads.

Sources: /proc/zoneinfo, /proc/buddyinfo, /proc/vmstat, /proc/PID/{stat,status,numa_maps}
(proc(5)), …/nodeN/{meminfo,numastat} (Documentation/ABI/stable/sysfs-devices-node) of the Linux
kernel. What a file does not say is None, never 0.

Reading numa_maps walks the page tables of a process (about 7 ms a GiB of 4 KiB pages) and holds
its mmap lock for reading meanwhile. So only processes with much memory are read, the largest
first, and no more are begun after ``budget_s`` of this process's own CPU time, which includes
the walk.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Dict, List, Mapping, Optional, Set, Tuple

from .. import cpulist, kernel, numa_maps
from ..contract import Host, Node, Reason, reason
from ..errors import Fault
from ..kernel import NODES, Stat

_LEAST_BYTES = 64 << 20  # a process with less can neither starve a node nor be slowed much
_MOST_PROCESSES = 50
_MOST_THREADS = 256  # of one process, the first ones by number
_INTERVAL_S = 0.2  # at least, between two readings of a counter
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # include/linux/proc_ns.h, PROC_PID_INIT_INO

Counters = Mapping[str, int]
ByNode = Mapping[int, int]  # bytes


@dataclass(frozen=True)
class NodeUse:
    """How the memory of a node is used.

    ``page_cache_bytes`` can be dropped once clean; ``file_pages_bytes`` hold shared memory too,
    which cannot. ``room_bytes``: what user memory can get before another node is used.
    ``huge_page_bytes``: free in blocks that hold a huge page. ``numastat``: pages since boot;
    ``numastat_now`` while this survey was made.
    """

    number: int
    memory_bytes: Optional[int]
    free_bytes: Optional[int]
    file_pages_bytes: Optional[int]
    page_cache_bytes: Optional[int]
    dirty_bytes: Optional[int] = None
    shared_memory_bytes: Optional[int] = None
    anonymous_bytes: Optional[int] = None
    slab_reclaimable_bytes: Optional[int] = None
    room_bytes: Optional[int] = None
    huge_page_bytes: Optional[int] = None
    numastat: Counters = field(default_factory=dict)
    numastat_now: Counters = field(default_factory=dict)


@dataclass(frozen=True)
class ProcessUse:
    """A process with much memory: where it is, by policy, and where the process may run and ran.

    ``memory`` is None where it could not be read (``reason``). ``cpu_nodes`` are those of the CPUs
    it may use; ``runs_on`` has the share of its CPU time by node.
    """

    pid: int
    name: str
    resident_bytes: int
    swap_bytes: Optional[int]
    unit: Optional[str]  # the systemd service it belongs to
    allowed_cpus: Optional[str]
    allowed_nodes: Optional[str]
    cpu_nodes: Optional[Tuple[int, ...]] = None
    memory: Optional[ByNode] = None
    policies: Mapping[str, ByNode] = field(default_factory=dict)
    reason: Optional[Reason] = None
    threads: Optional[int] = None
    runs_on: Mapping[int, float] = field(default_factory=dict)
    cpu_percent: Optional[float] = None

    @property
    def total(self) -> int:
        """The bytes whose node is known."""
        return sum((self.memory or {}).values())


@dataclass(frozen=True)
class Survey:
    """Nodes, counters and the processes with at least ``least_bytes``, the largest first.

    ``vmstat_now`` is what was counted within ``interval_s``; of a copied tree there is neither.
    ``seen``, ``small``, ``alike``, ``unreadable``, ``unread`` are numbers of processes.
    """

    live: bool
    page_bytes: int
    huge_page_bytes: Optional[int]
    nodes: Tuple[NodeUse, ...]
    vmstat: Counters
    problems: Tuple[Reason, ...]
    vmstat_now: Counters = field(default_factory=dict)
    interval_s: Optional[float] = None
    processes: Tuple[ProcessUse, ...] = ()
    least_bytes: int = _LEAST_BYTES
    seen: int = 0
    small: int = 0
    alike: int = 0
    unreadable: int = 0
    unread: int = 0
    container: bool = False


def read(host: Host, budget_s: float = 1.0) -> Survey:
    """Return what is known of this host (of a live one: during a moment)."""
    root = host.root.rstrip("/")
    began = time.monotonic()
    survey = read_nodes(host)
    survey = _with_processes(survey, host, began, time.process_time() + budget_s)
    if not survey.live:
        return survey
    return replace(
        survey,
        vmstat_now=_growth(survey.vmstat, kernel.vmstat(root or "/")),
        interval_s=time.monotonic() - began,
        nodes=tuple(
            replace(node, numastat_now=_growth(node.numastat, _numastat(root, node.number)))
            for node in survey.nodes
        ),
        container=_link("/proc/self/ns/pid") not in (None, _INITIAL_PID_NAMESPACE),
    )


def read_nodes(host: Host) -> Survey:
    """Return the part of a survey that costs next to nothing: no processes, nothing twice."""
    root = host.root.rstrip("/")
    live = os.path.realpath(host.root) == "/"
    page = _page_bytes(root, live, host)
    huge = kernel.read_int(f"{root}/{kernel.HUGE_PAGES}/hpage_pmd_size")
    room = _room(kernel.read_text(f"{root}/proc/zoneinfo"), page)
    huge_page_room = _huge_page_room(kernel.read_text(f"{root}/proc/buddyinfo"), page, huge)
    nodes = tuple(
        _node(root, node, room.get(node.number), huge_page_room.get(node.number))
        for node in host.nodes
    )
    return Survey(
        live=live, page_bytes=page, huge_page_bytes=huge, nodes=nodes,
        vmstat=kernel.vmstat(root or "/"), problems=() if room else (reason("no-zoneinfo"),),
    )  # fmt: skip


# --- nodes ------------------------------------------------------------------------------------


def _link(path: str) -> Optional[str]:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _growth(before: Counters, after: Counters) -> Counters:
    return {name: after[name] - count for name, count in before.items() if name in after}


def _numastat(root: str, node: int) -> Counters:
    return kernel.counters(kernel.read_text(f"{root}/{NODES}/node{node}/numastat"))


def _node(root: str, node: Node, room: Optional[int], huge_page_room: Optional[int]) -> NodeUse:
    text = kernel.read_text(f"{root}/{NODES}/node{node.number}/meminfo")
    memory = kernel.meminfo(text or kernel.read_text(f"{root}/proc/meminfo"))
    files = [memory[name] for name in ("Active(file)", "Inactive(file)") if name in memory]
    cache = sum(files) if len(files) == 2 else node.page_cache_bytes
    return NodeUse(
        number=node.number, memory_bytes=node.memory_bytes, free_bytes=node.free_bytes,
        file_pages_bytes=memory.get("FilePages", memory.get("Cached")), page_cache_bytes=cache,
        dirty_bytes=memory.get("Dirty"), shared_memory_bytes=memory.get("Shmem"),
        anonymous_bytes=memory.get("AnonPages"), slab_reclaimable_bytes=memory.get("SReclaimable"),
        room_bytes=room, huge_page_bytes=huge_page_room, numastat=_numastat(root, node.number),
    )  # fmt: skip


def _page_bytes(root: str, live: bool, host: Host) -> int:
    """The base page size; of a copied tree as meminfo (kB) and node vmstat (pages) tell it."""
    if live or not host.nodes:
        return os.sysconf("SC_PAGE_SIZE")
    here = f"{root}/{NODES}/node{host.nodes[0].number}"
    pages = kernel.counters(kernel.read_text(f"{here}/vmstat")).get("nr_file_pages")
    files = kernel.meminfo(kernel.read_text(f"{here}/meminfo")).get("FilePages")
    if not pages or not files:
        return 4096
    ratio = files / pages
    return min((4096, 16384, 65536), key=lambda size: abs(size - ratio))


def _room(text: Optional[str], page: int) -> Dict[int, int]:
    """What user memory can still get of each node before the next one is used.

    A zone gives pages while more than its low watermark and its lowmem_reserve stay free
    (mm/page_alloc.c, zone_watermark_ok).
    """
    room: Dict[int, int] = {}
    for part in re.split(r"^(?=Node \d+, zone)", text or "", flags=re.M):
        zone = re.match(
            r"Node (?P<node>\d+), zone.*?^\s+pages free\s+(?P<free>\d+).*?^\s+low\s+(?P<low>\d+)$",
            part,
            re.M | re.S,
        )
        if zone:
            node, free, low = map(int, zone.groups())
            kept = re.search(r"protection: \(([\d, ]*)\)", part)
            reserve = max(map(int, kept.group(1).split(","))) if kept else 0
            room[node] = room.get(node, 0) + page * max(0, free - low - reserve)
    return room


def _huge_page_room(text: Optional[str], page: int, huge: Optional[int]) -> Dict[int, int]:
    """Free bytes of each node in blocks that hold a huge page, where blocks can be so large."""
    found: Dict[int, int] = {}
    for node, counts in re.findall(r"^Node (\d+), zone\s+\w+\s+([\d ]+)$", text or "", re.M):
        blocks = {page << order: int(count) for order, count in enumerate(counts.split())}
        if huge and huge <= max(blocks):
            free = sum(size * count for size, count in blocks.items() if size >= huge)
            found[int(node)] = found.get(int(node), 0) + free
    return found


# --- processes --------------------------------------------------------------------------------

_Threads = Mapping[int, Stat]


def _with_processes(survey: Survey, host: Host, began: float, end: float) -> Survey:
    proc = f"{host.root.rstrip('/')}/proc"
    page, least = survey.page_bytes, survey.least_bytes
    stats = [stat for stat in kernel.processes(proc).values() if not stat.ended]
    stats = [stat for stat in stats if not survey.live or stat.pid != os.getpid()]
    large = [stat for stat in stats if stat.resident_pages * page >= least]
    large.sort(key=lambda stat: (-stat.resident_pages, stat.pid))
    chosen = _without_alike(large, proc, page, least)
    before = {stat.pid: _threads(proc, stat.pid) for stat in chosen[:_MOST_PROCESSES]}
    node_of = {cpu.number: cpu.node for cpu in host.cpus}
    found: List[ProcessUse] = []
    begun = 0
    for stat in chosen[:_MOST_PROCESSES]:
        if found and time.process_time() > end:
            break
        begun += 1
        process = _process(proc, stat, page, node_of)
        if process is not None:  # else it ended while we looked
            found.append(process)
    if survey.live:
        time.sleep(max(0.0, _INTERVAL_S - (time.monotonic() - began)))
    passed = time.monotonic() - began if survey.live else None
    found = [
        _with_running(one, before.get(one.pid, {}), _threads(proc, one.pid), node_of, passed)
        for one in found
    ]
    return replace(
        survey, processes=tuple(found), seen=len(stats), small=len(stats) - len(large),
        alike=len(large) - len(chosen), unreadable=sum(process.memory is None for process in found),
        unread=len(chosen) - begun,
    )  # fmt: skip


def _without_alike(large: List[Stat], proc: str, page: int, least_bytes: int) -> List[Stat]:
    """Leave out children that hold hardly more than the memory they share with a sibling.

    A database may run hundreds of them over one segment; the largest stands for all.
    """
    chosen = []
    families: Set[Tuple[int, str]] = set()
    for stat in large:
        words = (kernel.read_text(f"{proc}/{stat.pid}/statm") or "").split()
        family = (stat.parent, stat.name)
        if len(words) > 2 and (int(words[1]) - int(words[2])) * page < least_bytes:
            if family in families:
                continue
            families.add(family)
        chosen.append(stat)
    return chosen


def _threads(proc: str, pid: int) -> _Threads:
    numbers = kernel.threads(pid, proc)[:_MOST_THREADS]
    stats = {number: kernel.stat_of(f"{proc}/{pid}/task/{number}") for number in numbers}
    return {number: stat for number, stat in stats.items() if stat and not stat.ended}


def _process(
    proc: str, stat: Stat, page: int, node_of: Mapping[int, Optional[int]]
) -> Optional[ProcessUse]:
    """A process and its memory; None when it has ended."""
    text = kernel.read_text(f"{proc}/{stat.pid}/status")
    if text is None:
        return None
    status = kernel.status(text)
    allowed = status.get("Cpus_allowed_list")
    cpu_nodes = {node_of.get(cpu) for cpu in cpulist.parse(allowed or "")}
    process = ProcessUse(
        pid=stat.pid, name=stat.name, resident_bytes=stat.resident_pages * page,
        swap_bytes=kernel.meminfo(text).get("VmSwap"),
        unit=_unit(kernel.read_text(f"{proc}/{stat.pid}/cgroup")),
        allowed_cpus=allowed, allowed_nodes=status.get("Mems_allowed_list"),
        cpu_nodes=None if allowed is None else tuple(sorted(n for n in cpu_nodes if n is not None)),
    )  # fmt: skip
    try:
        mappings, _ = numa_maps.workload_mappings(kernel.read(f"{proc}/{stat.pid}/numa_maps"))
    except PermissionError:
        return replace(process, reason=reason("no-permission-for-numa-maps"))
    except OSError:
        if not os.path.exists(f"{proc}/{stat.pid}/stat"):
            return None
        return replace(process, reason=reason("no-readable-numa-maps"))
    except Fault as fault:
        return replace(process, reason=fault.reason)
    policies: Dict[str, Counter[int]] = {}
    for mapping in mappings:
        policies.setdefault(mapping.policy, Counter()).update(mapping.bytes_by_node)
    memory = sum(policies.values(), Counter())  # leaves out nodes with nothing
    return replace(process, memory=dict(sorted(memory.items())), policies=policies)


def _unit(cgroup: Optional[str]) -> Optional[str]:
    """The systemd service a process belongs to, from its cgroup's path."""
    found = re.search(r"/((?!user@)[^/\s]+\.service)(?:/|$)", cgroup or "", re.M)
    return found.group(1) if found else None


def _with_running(
    process: ProcessUse,
    first: _Threads,
    last: _Threads,
    node_of: Mapping[int, Optional[int]],
    passed_s: Optional[float],
) -> ProcessUse:
    """Where its threads ran: by the CPU time each used meanwhile (of a copy: since it started)."""
    used: Counter[int] = Counter()
    for thread, stat in last.items():
        spent = stat.ticks
        if passed_s is not None:
            spent = stat.ticks - first[thread].ticks if thread in first else 0
        node = node_of.get(stat.last_cpu)
        if spent > 0 and node is not None:
            used[node] += spent
    total = sum(used.values())
    seconds = total / os.sysconf("SC_CLK_TCK")
    busy = round(100 * seconds / passed_s, 1) if passed_s else None
    return replace(
        process, threads=len(last) or None,
        runs_on={node: used[node] / total for node in sorted(used)}, cpu_percent=busy,
    )  # fmt: skip
