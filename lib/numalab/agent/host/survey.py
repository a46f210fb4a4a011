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
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from .. import cpulist
from ..errors import Fault
from ..trial import proof
from .topology import meminfo_bytes

_NODE = "sys/devices/system/node"
_LEAST_BYTES = 64 << 20  # a process with less can neither starve a node nor be slowed much
_MOST_PROCESSES = 50
_MOST_THREADS = 256  # of one process, the first ones by number
_INTERVAL_S = 0.2  # at least, between two readings of a counter
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # include/linux/proc_ns.h, PROC_PID_INIT_INO

Counters = Dict[str, int]


def read(
    topology: Dict[str, Any], budget_s: float = 1.0, least_bytes: int = _LEAST_BYTES
) -> Dict[str, Any]:
    """Return what is known of the host whose topology this is (of a live one: during a moment).

    "nodes": one per node of the topology with sizes in bytes; "vmstat" and its growth "vmstat_now"
    within "interval_s" (None for a copied tree); "processes" with at least ``least_bytes`` of
    resident memory, the largest first; "seen", "small", "unreadable", "unread", "alike": numbers
    of processes; "problems": what could not be read.
    """
    root = topology["root"].rstrip("/")
    live = os.path.realpath(topology["root"]) == "/"
    problems: List[str] = []
    began = time.monotonic()
    page = _page_bytes(root, live, topology)
    nodes = [_node(root, node, page) for node in topology["nodes"]]
    zones = _zones(_text(f"{root}/proc/zoneinfo"))
    if not zones:
        problems.append("no /proc/zoneinfo: how much fits before a node counts as full is unknown")
    blocks, largest = _free_blocks(_text(f"{root}/proc/buddyinfo"), page)
    huge = _integer(_text(f"{root}/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"))
    for node in nodes:
        node["room_bytes"] = _room(zones.get(node["node"]), page)
        node["huge_page_bytes"] = _in_blocks(blocks.get(node["node"]), huge)
    vmstat = _counters(_text(f"{root}/proc/vmstat"))
    survey: Dict[str, Any] = {
        "schema": 1, "live": live, "page_bytes": page, "huge_page_bytes": huge,
        "largest_free_block_bytes": largest, "nodes": nodes, "vmstat": vmstat, "vmstat_now": None,
        "interval_s": None, "problems": problems,
    }  # fmt: skip
    end = time.process_time() + budget_s
    survey.update(_processes(root, topology, page, live, began, end, least_bytes))
    if live:
        later = _counters(_text(f"{root}/proc/vmstat"))
        survey["vmstat_now"] = {k: later[k] - v for k, v in vmstat.items() if k in later}
        survey["interval_s"] = time.monotonic() - began
        for node in nodes:
            now = _counters(_text(f"{root}/{_NODE}/node{node['node']}/numastat"))
            node["numastat_now"] = {
                name: now[name] - before for name, before in node["numastat"].items() if name in now
            }
    survey["container"] = live and _link("/proc/self/ns/pid") not in (None, _INITIAL_PID_NAMESPACE)
    return survey


def _text(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def _link(path: str) -> Optional[str]:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _integer(text: Optional[str]) -> Optional[int]:
    return int(text) if text and text.strip().isdigit() else None


def _counters(text: Optional[str]) -> Counters:
    return {name: int(number) for name, number in re.findall(r"^(\w+) (\d+)$", text or "", re.M)}


def _node(root: str, node: Dict[str, Any], page: int) -> Dict[str, Any]:
    here = f"{root}/{_NODE}/node{node['node']}"
    memory = meminfo_bytes(_text(f"{here}/meminfo") or _text(f"{root}/proc/meminfo"))
    file = [memory[name] for name in ("Active(file)", "Inactive(file)") if name in memory]
    cache = sum(file) if len(file) == 2 else node["page_cache_bytes"]
    if len(file) != 2 and cache is not None:
        cache -= memory.get("Shmem", 0)  # FilePages count it, and it cannot be dropped
    anonymous = memory.get("AnonPages")
    return {
        "node": node["node"],
        "memory_bytes": node["memory_bytes"],
        "free_bytes": node["free_bytes"],
        "file_pages_bytes": node["page_cache_bytes"],
        "page_cache_bytes": cache,
        "dirty_bytes": memory.get("Dirty"),
        "mapped_bytes": memory.get("Mapped"),
        "shared_memory_bytes": memory.get("Shmem"),
        "anonymous_bytes": anonymous,
        "slab_reclaimable_bytes": memory.get("SReclaimable"),
        "numastat": _counters(_text(f"{here}/numastat")),
        "numastat_now": None,
    }


def _page_bytes(root: str, live: bool, topology: Dict[str, Any]) -> int:
    """The base page size; of a copied tree as meminfo (kB) and node vmstat (pages) tell it."""
    own = os.sysconf("SC_PAGE_SIZE")
    if live or not topology["nodes"]:
        return own
    node = topology["nodes"][0]
    pages = _counters(_text(f"{root}/{_NODE}/node{node['node']}/vmstat")).get("nr_file_pages")
    if not pages or not node["page_cache_bytes"]:
        return 4096
    ratio = node["page_cache_bytes"] / pages
    return min((4096, 16384, 65536), key=lambda size: abs(size - ratio))


class _Zone(NamedTuple):
    free: int
    low: int
    protection: int


def _zones(text: Optional[str]) -> Dict[int, List[_Zone]]:
    """Each node's zones, in pages: free, low watermark, and what is kept from user memory."""
    found: Dict[int, List[_Zone]] = {}
    for part in re.split(r"^(?=Node \d+, zone)", text or "", flags=re.M):
        head = re.match(r"Node (\d+), zone", part)
        free = re.search(r"^\s+pages free\s+(\d+)", part, re.M)
        low = re.search(r"^\s+low\s+(\d+)$", part, re.M)
        kept = re.search(r"protection: \(([\d, ]*)\)", part)
        if head and free and low:
            numbers = [int(n) for n in kept.group(1).split(",")] if kept else [0]
            zone = _Zone(int(free.group(1)), int(low.group(1)), max(numbers))
            found.setdefault(int(head.group(1)), []).append(zone)
    return found


def _room(zones: Optional[List[_Zone]], page: int) -> Optional[int]:
    """What user memory can still get of a node before the next one is used.

    A zone gives pages while more than its low watermark and its lowmem_reserve stay free
    (mm/page_alloc.c, zone_watermark_ok).
    """
    if zones is None:
        return None
    return page * sum(max(0, zone.free - zone.low - zone.protection) for zone in zones)


def _free_blocks(text: Optional[str], page: int) -> Tuple[Dict[int, Dict[int, int]], int]:
    """Free bytes of each node by block size, and the largest block size there is."""
    found: Dict[int, Dict[int, int]] = {}
    largest = 0
    for node, counts in re.findall(r"^Node (\d+), zone\s+\w+\s+([\d ]+)$", text or "", re.M):
        sizes = found.setdefault(int(node), {})
        for order, count in enumerate(counts.split()):
            largest = max(largest, page << order)
            sizes[page << order] = sizes.get(page << order, 0) + int(count) * (page << order)
    return found, largest


def _in_blocks(blocks: Optional[Dict[int, int]], size: Optional[int]) -> Optional[int]:
    """Free bytes in blocks that hold a huge page; None where blocks never are so large."""
    if blocks is None or not size or size > max(blocks):
        return None
    return sum(count for block, count in blocks.items() if block >= size)


class _Stat(NamedTuple):
    pid: int
    name: str
    parent: int
    ticks: int
    threads: int
    started: int
    pages: int
    last_cpu: int


def _stat(text: Optional[str]) -> Optional[_Stat]:
    """One stat file: placement.Stat lacks the resident pages (field 24) that choose processes."""
    head, closed, tail = (text or "").rpartition(")")
    number, _, name = head.partition("(")
    fields = tail.split()
    if not closed or len(fields) < 37 or fields[0] in "ZX":
        return None
    value = [int(field) for field in fields[1:37]]
    return _Stat(
        int(number), name, value[0], value[10] + value[11], value[16], value[18], value[20],
        value[35],
    )  # fmt: skip


def _processes(
    root: str,
    topology: Dict[str, Any],
    page: int,
    live: bool,
    began: float,
    end: float,
    least_bytes: int,
) -> Dict[str, Any]:
    proc = f"{root}/proc"
    numbers = [name for name in _listing(proc) if name.isdigit()]
    stats = [s for s in (_stat(_text(f"{proc}/{number}/stat")) for number in numbers) if s]
    stats = [s for s in stats if not live or s.pid != os.getpid()]
    large = [s for s in stats if s.pages * page >= least_bytes]
    large.sort(key=lambda s: (-s.pages, s.pid))
    chosen, alike = _without_alike(large, proc, page, least_bytes)
    before = {s.pid: _threads(proc, s.pid) for s in chosen[:_MOST_PROCESSES]}
    node_of = {cpu["cpu"]: cpu["node"] for cpu in topology["cpus"]}
    found: List[Dict[str, Any]] = []
    unreadable = unread = 0
    for position, stat in enumerate(chosen):
        if position >= _MOST_PROCESSES or (found and time.process_time() > end):
            unread += 1
            continue
        entry = _process(proc, stat, page, node_of)
        if entry is None:
            continue  # it ended while we looked
        unreadable += entry["memory"] is None
        found.append(entry)
    if live:
        time.sleep(max(0.0, _INTERVAL_S - (time.monotonic() - began)))
    passed = time.monotonic() - began
    for entry in found:
        first = before.get(entry["pid"], {})
        _note_running(entry, first, _threads(proc, entry["pid"]), node_of, passed, live)
    return {
        "processes": found, "seen": len(stats), "small": len(stats) - len(large), "alike": alike,
        "unreadable": unreadable, "unread": unread, "least_bytes": least_bytes,
    }  # fmt: skip


def _listing(path: str) -> List[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _without_alike(
    large: List[_Stat], proc: str, page: int, least_bytes: int
) -> Tuple[List[_Stat], int]:
    """Leave out children that hold hardly more than the memory they share with a sibling.

    A database may run hundreds of them over one segment; the largest stands for all.
    """
    chosen, alike = [], 0
    families: Set[Tuple[int, str]] = set()
    for stat in large:
        words = (_text(f"{proc}/{stat.pid}/statm") or "").split()
        family = (stat.parent, stat.name)
        if len(words) > 2 and (int(words[1]) - int(words[2])) * page < least_bytes:
            if family in families:
                alike += 1
                continue
            families.add(family)
        chosen.append(stat)
    return chosen, alike


_Threads = Dict[int, Tuple[int, int]]  # number: (ticks, last CPU)


def _threads(proc: str, pid: int) -> _Threads:
    found = {}
    for number in sorted(map(int, filter(str.isdigit, _listing(f"{proc}/{pid}/task"))))[
        :_MOST_THREADS
    ]:
        stat = _stat(_text(f"{proc}/{pid}/task/{number}/stat"))
        if stat:
            found[number] = (stat.ticks, stat.last_cpu)
    return found


def _process(
    proc: str, stat: _Stat, page: int, node_of: Dict[int, Optional[int]]
) -> Optional[Dict[str, Any]]:
    status = _text(f"{proc}/{stat.pid}/status")
    if status is None:
        return None
    lists = dict(re.findall(r"^(Cpus|Mems)_allowed_list:[ \t]*(\S*)", status, re.M))
    swap = re.search(r"^VmSwap:\s*(\d+) kB", status, re.M)
    entry: Dict[str, Any] = {
        "pid": stat.pid,
        "name": stat.name,
        "resident_bytes": stat.pages * page,
        "swap_bytes": int(swap.group(1)) * 1024 if swap else None,
        "unit": _unit(_text(f"{proc}/{stat.pid}/cgroup")),
        "allowed_cpus": lists.get("Cpus"),
        "allowed_nodes": lists.get("Mems"),
        "cpu_nodes": None,
        "memory": None,
        "policies": None,
        "reason": None,
    }
    if entry["allowed_cpus"] is not None:
        allowed = cpulist.parse(entry["allowed_cpus"])
        entry["cpu_nodes"] = sorted({n for n in map(node_of.get, allowed) if n is not None})
    try:
        with open(f"{proc}/{stat.pid}/numa_maps", encoding="utf-8", errors="replace") as file:
            mappings, _ = proof.workload_mappings(file.read())
    except PermissionError:
        entry["reason"] = "no permission to read its numa_maps"
        return entry
    except OSError:
        if not os.path.exists(f"{proc}/{stat.pid}/stat"):
            return None
        entry["reason"] = "it has no numa_maps that can be read"
        return entry
    except Fault as fault:
        entry["reason"] = fault.what
        return entry
    memory: Dict[str, int] = {}
    policies: Dict[str, Dict[str, int]] = {}
    for mapping in mappings:
        of_policy = policies.setdefault(mapping.policy, {})
        for node, size in mapping.bytes_by_node.items():
            for sums in (memory, of_policy):
                sums[str(node)] = sums.get(str(node), 0) + size
    entry["memory"] = {node: memory[node] for node in sorted(memory, key=int) if memory[node]}
    entry["policies"] = policies
    return entry


def _unit(cgroup: Optional[str]) -> Optional[str]:
    """The systemd service a process belongs to, from its cgroup's path."""
    found = re.search(r"/((?!user@)[^/\s]+\.service)(?:/|$)", cgroup or "", re.M)
    return found.group(1) if found else None


def _note_running(
    entry: Dict[str, Any],
    first: _Threads,
    last: _Threads,
    node_of: Dict[int, Optional[int]],
    passed_s: float,
    live: bool,
) -> None:
    """Where its threads ran: by the CPU time each used meanwhile (of a copy: since it started)."""
    used: Dict[str, int] = {}
    for thread, (ticks, cpu) in last.items():
        spent = ticks - first[thread][0] if live and thread in first else 0 if live else ticks
        node = node_of.get(cpu)
        if spent > 0 and node is not None:
            used[str(node)] = used.get(str(node), 0) + spent
    total = sum(used.values())
    entry["threads"] = len(last) or None
    entry["runs_on"] = {n: used[n] / total for n in sorted(used, key=int)} if total else {}
    entry["cpu_percent"] = (
        round(100 * total / os.sysconf("SC_CLK_TCK") / passed_s, 1) if live else None
    )
