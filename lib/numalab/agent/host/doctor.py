"""What is wrong with this host's use of its nodes, right now, and what to type about it.

Every finding has a severity: ``problem`` (it costs time now), ``warning`` (it will, as soon as
somebody allocates or the load returns) or ``note`` (good to know; nothing to act on by itself).
Counters since boot alone are never more than a note, because they stay when the cause is gone.
Nothing is changed.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from typing import Any, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from .. import SCHEMA, cpulist
from ..errors import Fault
from . import describe
from . import state as state_module
from . import survey as survey_module
from . import topology as topology_module
from .describe import size_words as size
from .state import value

IDS = (
    "page-cache", "node-full", "swap-insanity", "memory-away", "bound-apart", "cpuset-apart",
    "interleaved", "bound-to-full", "fragmented", "zone-reclaim", "balancing", "thp-defrag",
    "hugetlb", "governor", "swappiness", "numa-off", "hidden-nodes", "one-node", "memory-less",
    "cpuset",
)  # fmt: skip
SEVERITIES = ("problem", "warning", "note")
MARKS = {"problem": "✗", "warning": "⚠", "note": "–"}

Finding = Dict[str, Any]
Node = Dict[str, Any]
Process = Dict[str, Any]

_FULL, _NEARLY_FULL, _CACHED = 0.05, describe.STARVED_FREE, describe.STARVED_CACHE
_AWAY_BYTES = 64 << 20
_AWAY_SHARE = 0.2
_WANDERED_SHARE, _WANDERED_BYTES, _BUSY_PERCENT = 0.8, 1 << 30, 50.0  # of a process not bound
_SPILLS_NOW, _SPILLS_SHARE = 256, 0.05  # allocations between two looks
_MOVED_BYTES_PER_S = 100e6
_DEFAULT_POLICIES = ("default", "local")


def diagnose(
    topology: Dict[str, Any], state: Dict[str, Any], survey: Dict[str, Any]
) -> List[Finding]:
    """Return the findings, the severest first.

    Each is {"id", "severity", "nodes": [int], "pids": [int], "what", "evidence": [sentence],
    "do": [{"command", "effect"}]}. ``survey`` is what survey.read returned for this topology.
    """
    host = _Host(topology, state, survey)
    found = [
        finding
        for look in (_starved, _swapping, _away, _bound_and_full, _fragmented, _settings, _shape)
        for finding in look(host)
    ]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding["severity"]))


def healthy(findings: Iterable[Finding]) -> bool:
    """Whether there is nothing to act on."""
    return all(finding["severity"] == "note" for finding in findings)


def run(root: str, ignore: Sequence[str], as_json: bool, width: int) -> Tuple[str, int]:
    """Examine the machine below ``root``; return what to print and the exit status.

    The status is 0 when there is nothing to act on and 1 when there is. ``ignore`` are the ids of
    findings that somebody has accepted: they are not shown and do not count. Raises Fault for an
    id that does not exist.
    """
    unknown = sorted(set(ignore) - set(IDS))
    if unknown:
        raise Fault(f"there is no finding {unknown[0]!r} to ignore", "known: " + ", ".join(IDS))
    topology = topology_module.read(root)
    now = state_module.read(root)
    survey = survey_module.read(topology)
    findings = [one for one in diagnose(topology, now, survey) if one["id"] not in ignore]
    status = 0 if healthy(findings) else 1
    if not as_json:
        return text(topology, now, survey, findings, width), status
    emulated, why = state_module.emulated(topology, now)
    record = {
        "schema": SCHEMA, "healthy": not status, "ignored": sorted(ignore),
        "emulated": emulated, "emulated_why": why, "findings": findings, "survey": survey,
        "state": now, "topology": topology,
    }  # fmt: skip
    return json.dumps(record, ensure_ascii=False), status


class _Host:
    """The three readings, and what several looks ask of them."""

    def __init__(self, topology: Dict[str, Any], state: Dict[str, Any], survey: Dict[str, Any]):
        self.topology, self.state, self.survey = topology, state, survey
        self.doubtful = describe.contradicts(topology, state)
        self.nodes: List[Node] = [node for node in survey["nodes"] if node["memory_bytes"]]
        self.by_number = {node["node"]: node for node in self.nodes}
        self.with_cpus = {node["node"] for node in topology["nodes"] if node["cpus"]}
        self.distances = {node["node"]: node["distances"] for node in topology["nodes"]}
        self.vmstat: Dict[str, int] = survey["vmstat"]
        self.now: Dict[str, int] = survey["vmstat_now"] or {}
        self.processes: List[Process] = [p for p in survey["processes"] if p["memory"]]
        self.mglru = _mglru(state)

    def setting(self, name: str) -> Any:
        return value(self.state, name)

    def room(self, node: Node) -> Optional[int]:
        """What a node can still give before another is used."""
        return node["room_bytes"] if node["room_bytes"] is not None else node["free_bytes"]

    def room_share(self, node: Node) -> Optional[float]:
        room = self.room(node)
        return None if room is None else room / node["memory_bytes"]

    def available(self, node: Node) -> Optional[int]:
        """Room and what reclaim can give: page cache and slab, as MemAvailable counts them."""
        room = self.room(node)
        if room is None:
            return None
        return room + (_droppable(node) or 0) + (node["slab_reclaimable_bytes"] or 0) // 2

    def pooled(self, number: int, what: str = "total") -> int:
        """The bytes of a node's hugetlb pools: all of them ("total"), or what is "free"."""
        node = next(one for one in self.topology["nodes"] if one["node"] == number)
        return sum(pool["size_bytes"] * (pool[what] or 0) for pool in node["hugepages"])

    def with_room(self, besides: int) -> List[int]:
        """The nodes that take what another cannot, the nearest first."""
        others = [
            node["node"]
            for node in self.nodes
            if node["node"] != besides and (self.room_share(node) or 0) > _NEARLY_FULL
        ]
        far = self.distances.get(besides, {})
        return sorted(others, key=lambda other: (far.get(str(other), 1 << 20), other))

    def spills_now(self, node: Node) -> Optional[int]:
        """Pages meant for this node that others gave between the two looks, if they matter."""
        now = node["numastat_now"] or {}
        foreign = now.get("numa_foreign", 0)
        asked = now.get("numa_hit", 0) + foreign
        return foreign if foreign >= max(_SPILLS_NOW, _SPILLS_SHARE * asked) else None


def _finding(
    name: str,
    severity: str,
    what: str,
    evidence: Sequence[Optional[str]] = (),
    do: Sequence[Optional[Dict[str, str]]] = (),
    nodes: Iterable[int] = (),
    pids: Iterable[int] = (),
) -> Finding:
    return {
        "id": name, "severity": severity, "nodes": sorted(nodes), "pids": list(pids), "what": what,
        "evidence": [one for one in evidence if one], "do": [one for one in do if one],
    }  # fmt: skip


def _do(command: str, effect: str) -> Dict[str, str]:
    return {"command": command, "effect": effect}


def _mglru(state: Dict[str, Any]) -> bool:
    """Whether the multi-generational LRU reclaims (bit 0, admin-guide/mm/multigen_lru.rst)."""
    text = value(state, "vm.lru_gen") or "0"
    try:
        return bool(int(text, 16) & 1)
    except ValueError:
        return text == "y"


def _droppable(node: Node) -> Optional[int]:
    """Page cache that can be dropped at once: not dirty; some of it may be mapped and stay."""
    if node["page_cache_bytes"] is None:
        return None
    return max(0, node["page_cache_bytes"] - (node["dirty_bytes"] or 0))


def _percent(share: float) -> str:
    if 0 < share < 0.001:
        return "<0.1 %"
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def _nodes(numbers: Iterable[int]) -> str:
    return describe.node_names(sorted(numbers))


def _name(process: Process) -> str:
    return f"{process['name']} ({process['pid']})"


# --- page cache -------------------------------------------------------------------------------


def _starved(host: _Host) -> Iterable[Finding]:
    """Nodes that page cache fills while others have room: the kernel takes theirs, unasked."""
    if len(host.nodes) < 2 or host.doubtful:
        return
    for node in host.nodes:
        number, memory = node["node"], node["memory_bytes"]
        share, room = host.room_share(node), host.room(node)
        cache, files = node["page_cache_bytes"], node["file_pages_bytes"]
        if share is None or share >= _NEARLY_FULL or (files or cache or 0) <= _CACHED * memory:
            continue
        others = host.with_room(number)
        held = f"node {number} has {size(node['free_bytes'])} free and {size(cache)} of page cache"
        if cache is None or cache <= _CACHED * memory or not others:
            why = "no other node has room either, so the kernel reclaims the cache where it is"
            if others:
                why = (
                    f"{size(node['shared_memory_bytes'])} of what fills it is shared memory "
                    "(tmpfs, shm), which cannot be dropped"
                )
            yield _finding("node-full", "note", f"{held}; {why}", nodes=[number])
            continue
        victims = [p for p in host.processes if _lives_on(p, number) and _spilled(p, number)]
        spilling = host.spills_now(node)
        severity = "problem" if spilling or victims else "warning"
        if share >= _FULL:
            severity = "note"
        yield _finding(
            "page-cache",
            severity,
            f"{held}: allocations from its CPUs spill to node {others[0]}"
            + (f" after the next {size(room)}" if room else "")
            + "; the cache stays, because it is reclaimed only when all nodes are short",
            [
                _cache_evidence(node),
                f"{spilling} pages meant for it came from other nodes in "
                f"{host.survey['interval_s']:.1f} s, while this command looked"
                if spilling
                else None,
                _spill_history(node),
                *[
                    f"{_name(p)} runs there and has "
                    f"{size(_outside(p, {number}))} of its {size(_total(p))} elsewhere"
                    for p in victims[:3]
                ],
                f"huge pages to be had there without compaction: {size(node['huge_page_bytes'])}"
                if node["huge_page_bytes"] is not None
                else None,
            ],
            _cache_remedies(host, number),
            nodes=[number],
            pids=[p["pid"] for p in victims],
        )


def _cache_evidence(node: Node) -> str:
    words = f"{size(node['memory_bytes'])} in all; {size(_droppable(node))} of the cache are clean"
    if node["dirty_bytes"]:
        words += f", {size(node['dirty_bytes'])} must be written first"
    if node["shared_memory_bytes"]:
        words += f"; {size(node['shared_memory_bytes'])} of shared memory cannot be dropped"
    if node["room_bytes"] is not None:
        words += f"; {size(node['room_bytes'])} are free above the zones' low watermarks"
    return words


def _spill_history(node: Node) -> Optional[str]:
    counters = node["numastat"]
    foreign, hit = counters.get("numa_foreign", 0), counters.get("numa_hit", 0)
    if not foreign:
        return None
    return (
        f"since boot {_percent(foreign / (hit + foreign))} of the pages meant for it came from "
        f"other nodes (numa_foreign {foreign}, numa_hit {hit})"
    )


def _cache_remedies(host: _Host, number: int) -> List[Optional[Dict[str, str]]]:
    own = f"sys/devices/system/node/node{number}/reclaim"
    reclaims = host.survey["live"] and os.path.exists(f"/{own}")
    node = host.by_number[number]
    mode = 7 if host.mglru else 1
    return [
        _do(
            f"echo '{(_droppable(node) or 0) >> 20}M swappiness=0' > /{own}",
            "frees this node's clean page cache and leaves the other nodes' alone; files are read "
            "from disk again",
        )
        if reclaims
        else None,
        _do(
            "sync; echo 1 > /proc/sys/vm/drop_caches",
            "frees the clean page cache of every node, once. Risk: what was cached is read from "
            "disk again, so a database or file server is slow until it is warm; the cache comes "
            "back",
        ),
        _do(
            f"numactl --cpunodebind={number} --membind={number} PROGRAM",
            "makes the kernel reclaim this node's cache for PROGRAM and not spill. Risk: if "
            "PROGRAM needs more than the node has, it swaps or is killed",
        ),
        _do(
            f"sysctl -w vm.zone_reclaim_mode={mode}",
            "every process reclaims at home before it spills"
            + (" (with MGLRU only 7 does: 1 reclaims nothing)" if mode == 7 else "")
            + ". Risk: stalls while allocating; not for databases and file servers",
        )
        if host.setting("vm.zone_reclaim_mode") in ("0", None)
        else None,
    ]


def _lives_on(process: Process, node: int) -> bool:
    """Whether all CPUs it may use, or all it was seen to use, are of this node."""
    if process["cpu_nodes"] == [node]:
        return True
    return set(process["runs_on"]) == {str(node)} and (process["cpu_percent"] or 0) > 0


def _total(process: Process) -> int:
    return sum(process["memory"].values())


def _outside(process: Process, nodes: Set[int]) -> int:
    return sum(count for node, count in process["memory"].items() if int(node) not in nodes)


def _spilled(process: Process, node: int) -> bool:
    """Whether memory that it left to the kernel to place is on other nodes than its own."""
    away = sum(
        count
        for policy, by_node in process["policies"].items()
        if policy in _DEFAULT_POLICIES
        for other, count in by_node.items()
        if int(other) != node
    )
    return away >= max(_AWAY_BYTES, _AWAY_SHARE * _total(process))


# --- swap -------------------------------------------------------------------------------------


def _swapping(host: _Host) -> Iterable[Finding]:
    """Pages swapped out of a full node while other nodes are free: "swap insanity"."""
    total, free = host.setting("memory.swap_total_bytes"), host.setting("memory.swap_free_bytes")
    if not total or free is None or len(host.nodes) < 2 or host.doubtful:
        return
    used = total - free
    full = [node for node in host.nodes if _is_short(host, node)]
    roomy = [node for node in host.nodes if (host.room_share(node) or 0) > 0.25]
    out = host.now.get("pswpout", 0)
    if not full or not roomy or (used < max(total // 20, _AWAY_BYTES) and not out):
        return
    swapped = sorted(
        (p for p in host.survey["processes"] if (p["swap_bytes"] or 0) >= _AWAY_BYTES),
        key=lambda p: -p["swap_bytes"],
    )[:3]
    yield _finding(
        "swap-insanity",
        "problem" if out else "warning",
        f"{size(used)} are swapped out and {_nodes(n['node'] for n in full)} "
        f"{'is' if len(full) == 1 else 'are'} full, while "
        + ", ".join(f"node {n['node']} has {size(n['free_bytes'])} free" for n in roomy[:3]),
        [
            *[
                f"node {n['node']}: {size(n['anonymous_bytes'])} of processes' memory, "
                f"{size(n['page_cache_bytes'])} of page cache, {size(host.room(n))} of room"
                for n in full[:3]
            ],
            f"{out} pages were swapped out in {host.survey['interval_s']:.1f} s, while this "
            "command looked"
            if out
            else f"since boot {host.vmstat.get('pswpout', 0)} pages went out, "
            f"{host.vmstat.get('pswpin', 0)} came in",
            *[f"{_name(p)} has {size(p['swap_bytes'])} in swap" for p in swapped],
        ],
        [
            _do(
                "numactl --interleave=all PROGRAM",
                "for one large process that fills a node: spreads its memory over all nodes "
                "(MySQL has innodb_numa_interleave=ON for this). Risk: part of it is remote for "
                "every thread",
            ),
            _do(
                "sysctl -w vm.swappiness=1",
                "page cache goes before processes' memory. Risk: with much anonymous memory and "
                "little cache, the kernel kills sooner",
            ),
            _do(
                f"migratepages PID {full[0]['node']} {roomy[0]['node']}",
                "moves a process's memory to the free node at once; it waits while its pages are "
                "copied",
            ),
        ],
        nodes=[n["node"] for n in full],
        pids=[p["pid"] for p in swapped],
    )


def _is_short(host: _Host, node: Node) -> bool:
    """Whether a node has neither room nor much cache to give."""
    share, available = host.room_share(node), host.available(node)
    return (
        share is not None
        and share < _FULL
        and available is not None
        and available < 0.15 * node["memory_bytes"]
    )


# --- processes --------------------------------------------------------------------------------


def _away(host: _Host) -> Iterable[Finding]:
    """Processes whose memory is not where their CPUs are."""
    if len(host.nodes) < 2:
        return
    for process in host.processes:
        finding = _bound_away(host, process) or _wandered(host, process)
        if finding:
            yield finding


def _bound_away(host: _Host, process: Process) -> Optional[Finding]:
    home = set(process["cpu_nodes"] or ())
    if not home or home >= host.with_cpus:
        return None
    # A node without CPUs (CXL, HBM) is nobody's home: memory there is a tier, put there on purpose.
    near = home | (set(host.by_number) - host.with_cpus)
    if not home & set(host.by_number):
        return None  # its own nodes have no memory at all
    away, total = _outside(process, near), _total(process)
    if away < max(_AWAY_BYTES, _AWAY_SHARE * total):
        return None
    kinds = _away_by_kind(process, near)
    kind = max(kinds, key=lambda one: kinds[one])
    policy = max(
        (p for p in process["policies"] if _kind(p) == kind),
        key=lambda p: _sum_outside(process["policies"][p], near),
    )
    limited = set(cpulist.parse(process["allowed_nodes"] or "")) & set(host.by_number)
    where = ", ".join(f"{size(count)} on node {node}" for node, count in process["memory"].items())
    evidence = [f"its memory: {where}", _running(process)]
    name, severity = "memory-away", "warning"
    own = cpulist.format(home)
    remedies = [*_move_home(host, process, home, near), *_restart(process, own)]
    if limited and not limited & home:
        name, why = "cpuset-apart", f"its cpuset allows memory of {_nodes(limited)} only"
    elif kind == "interleave":
        name, severity, why = "interleaved", "note", f"its policy {policy} puts it there"
        over = set(cpulist.parse(policy.rpartition(":")[2])) or set(host.by_number)
        fair = len(over - near) / len(over)
        if away / total > fair + _AWAY_SHARE:
            name, severity = "memory-away", "warning"
            why = (
                f"its policy {policy} would put {_percent(fair)} there, but {_nodes(home)} was "
                "full when it allocated"
            )
            remedies = [
                _do(
                    f"numactl --cpunodebind={own} --interleave={cpulist.format(over)} "
                    f"{process['name']} …",
                    f"started again once {_nodes(home)} has room, it spreads evenly",
                )
            ]
    elif kind in ("bind", "prefer"):
        name, why = "bound-apart", f"its policy {policy} puts it there"
    else:
        why = "it has no memory policy: its node was full when it allocated, or it was moved since"
        if (process["cpu_percent"] or 0) >= _BUSY_PERCENT:
            severity = "problem"
    return _finding(
        name,
        severity,
        f"{_name(process)} runs on CPUs of {_nodes(home)} only, and {_percent(away / total)} of "
        f"its {size(total)} are on other nodes: {why}",
        evidence,
        remedies if severity != "note" else [],
        nodes=home,
        pids=[process["pid"]],
    )


def _wandered(host: _Host, process: Process) -> Optional[Finding]:
    """A process free to run anywhere that runs where its memory is not. Only when it is clear."""
    if process["cpu_nodes"] is not None and set(process["cpu_nodes"]) < host.with_cpus:
        return None
    home = {int(node) for node, share in process["runs_on"].items() if share >= 0.05}
    if not home or home >= host.with_cpus or not home & set(host.by_number):
        return None
    near = home | (set(host.by_number) - host.with_cpus)
    away, total = _away_by_kind(process, near).get("default", 0), _total(process)
    if away < max(_WANDERED_BYTES, _WANDERED_SHARE * total):
        return None
    busy = process["cpu_percent"]
    balancing = host.setting("kernel.numa_balancing") not in (None, "0")
    severity = "note" if balancing or not busy or busy < _BUSY_PERCENT else "warning"
    return _finding(
        "memory-away",
        severity,
        f"{_name(process)} runs on {_nodes(home)} now, and {_percent(away / total)} of its "
        f"{size(total)} are on other nodes"
        + ("; automatic balancing is on and should bring them together" if balancing else ""),
        [_running(process), "it may run on every node: the scheduler moved it, the memory stayed"],
        [*_move_home(host, process, home, near), *_restart(process, cpulist.format(home))]
        if severity != "note"
        else [],
        nodes=home,
        pids=[process["pid"]],
    )


def _kind(policy: str) -> str:
    if "interleave" in policy:
        return "interleave"
    word = re.split(r"[ =:(]", policy)[0]
    return word if word in ("bind", "prefer") else "default"


def _sum_outside(by_node: Dict[str, int], nodes: Set[int]) -> int:
    return sum(count for node, count in by_node.items() if int(node) not in nodes)


def _away_by_kind(process: Process, nodes: Set[int]) -> Dict[str, int]:
    kinds: Dict[str, int] = {}
    for policy, by_node in process["policies"].items():
        kind = _kind(policy)
        kinds[kind] = kinds.get(kind, 0) + _sum_outside(by_node, nodes)
    return kinds


def _running(process: Process) -> Optional[str]:
    busy, where = process["cpu_percent"], process["runs_on"]
    if busy is None or not where:
        return None if busy is None else "it was idle while this command looked"
    spread = ", ".join(f"{_percent(share)} on node {node}" for node, share in where.items())
    return f"it used {busy:.0f} % of a CPU while this command looked: {spread}"


def _move_home(
    host: _Host, process: Process, home: Set[int], near: Set[int]
) -> List[Dict[str, str]]:
    """migratepages(8), where the home nodes can hold what is to come."""
    away = {int(node): count for node, count in process["memory"].items() if int(node) not in near}
    targets = sorted(home & set(host.by_number))
    available = sum(host.available(host.by_number[node]) or 0 for node in targets)
    if host.doubtful or not targets:
        return []
    to = cpulist.format(targets)
    effect = "moves what is there at once; the process waits while its pages are copied"
    if any(policy.startswith("bind") for policy in process["policies"]):
        effect += ", and what it allocates next still follows its policy"
    if available < sum(away.values()):
        effect += f". Only about {size(available)} fit: make room on {_nodes(targets)} first"
    return [_do(f"migratepages {process['pid']} {cpulist.format(away)} {to}", effect)]


def _restart(process: Process, nodes: str) -> List[Dict[str, str]]:
    if process["unit"]:
        return [
            _do(
                f"systemctl edit {process['unit']}",
                f"add [Service] NUMAPolicy=bind NUMAMask={nodes} CPUAffinity=numa (systemd 244), "
                "then restart it. Risk: a bound service that needs more than the node has swaps or "
                "is killed; NUMAPolicy=preferred (one node) spills instead",
            )
        ]
    return [
        _do(
            f"numactl --cpunodebind={nodes} --membind={nodes} {process['name']} …",
            "starts it bound. Risk: if it needs more than the node has, it swaps or is killed; "
            "--preferred spills instead",
        )
    ]


def _bound_and_full(host: _Host) -> Iterable[Finding]:
    """Processes that may only use nodes which have nothing left to give."""
    if len(host.nodes) < 2 or host.doubtful:
        return
    swap = host.setting("memory.swap_free_bytes")
    for process in host.processes:
        bound = _bound_nodes(host, process)
        if not bound:
            continue
        whole = sum(host.by_number[node]["memory_bytes"] for node in bound)
        left = [host.available(host.by_number[node]) for node in bound]
        pooled = sum(host.pooled(node) for node in bound)  # its pages are had in advance
        if None in left or sum(left) >= _FULL * (whole - pooled):
            continue
        elsewhere = host.with_room(min(bound))
        yield _finding(
            "bound-to-full",
            "warning",
            f"{_name(process)} may only use memory of {_nodes(bound)}, where "
            f"{size(sum(left))} of {size(whole)} can still be had: "
            + ("what it allocates next swaps" if swap else "it is killed when it allocates more"),
            [
                f"it holds {size(_total(process))} there",
                f"{size(swap)} of swap are free" if swap else "there is no free swap",
                f"{_nodes(elsewhere)} {'has' if len(elsewhere) == 1 else 'have'} room, and it may "
                "not use it"
                if elsewhere
                else None,
            ],
            [
                _do(
                    f"migratepages OTHER-PID {cpulist.format(bound)} {elsewhere[0]}",
                    "moves another process away from there",
                )
                if elsewhere
                else None,
                _do(
                    f"numactl --cpunodebind={cpulist.format(bound)} "
                    f"--preferred={min(bound)} {process['name']} …",
                    "started so, it spills and is not killed",
                ),
            ],
            nodes=bound,
            pids=[process["pid"]],
        )


def _bound_nodes(host: _Host, process: Process) -> Set[int]:
    """The nodes that most of its memory may only come from; empty when that is all of them."""
    total = _total(process)
    bound: Set[int] = set()
    strict = 0
    for policy, by_node in process["policies"].items():
        if policy.startswith("bind"):
            strict += sum(by_node.values())
            bound |= set(cpulist.parse(policy.rpartition(":")[2]))
    everything = set(host.by_number)
    allowed = set(cpulist.parse(process["allowed_nodes"] or "")) & everything
    if strict < 0.5 * total or not bound & everything:
        bound = allowed
    bound &= everything
    return bound if bound != everything else set()


# --- huge pages -------------------------------------------------------------------------------


def _fragmented(host: _Host) -> Iterable[Finding]:
    """Nodes with free memory in pieces too small for a huge page, where that was felt."""
    enabled, unit = host.setting("thp.enabled"), host.survey["huge_page_bytes"]
    if enabled not in ("always", "madvise") or not unit:
        return
    given = host.vmstat.get("thp_fault_alloc", 0)
    refused = host.vmstat.get("thp_fault_fallback", 0)
    now = host.now.get("thp_fault_fallback", 0)
    pieces = []
    for node in host.nodes:
        free, blocks = node["free_bytes"], node["huge_page_bytes"]
        if free is None or blocks is None or host.doubtful:
            continue
        if free >= max(64 * unit, 0.02 * node["memory_bytes"]) and blocks < 0.05 * free:
            pieces.append(node)
    if not pieces:
        return
    felt = refused >= 1000 and refused >= 0.1 * (given + refused)
    yield _finding(
        "fragmented",
        "problem" if now >= 10 and felt else "warning" if felt else "note",
        f"{_nodes(n['node'] for n in pieces)}: free memory is in pieces too small for huge pages"
        + ("" if felt else "; no program has felt it so far"),
        [
            *[
                f"node {n['node']}: {size(n['huge_page_bytes'])} of {size(n['free_bytes'])} free "
                f"in blocks of {size(unit)} or more"
                for n in pieces[:4]
            ],
            f"since boot {refused} of {given + refused} huge pages asked for in a page fault were "
            "refused (thp_fault_fallback)",
            f"compaction: {host.vmstat.get('compact_stall', 0)} stalls, "
            f"{host.vmstat.get('compact_fail', 0)} of them in vain"
            if "compact_stall" in host.vmstat
            else None,
        ],
        [
            _do(
                f"echo 1 > /sys/devices/system/node/node{pieces[0]['node']}/compact",
                "puts the free memory of that node together; takes CPU time for a moment",
            ),
            _do(
                "sync; echo 1 > /proc/sys/vm/drop_caches",
                "before it, where page cache holds the pieces apart. Risk: files are read from "
                "disk again",
            ),
        ]
        if felt
        else [],
        nodes=[n["node"] for n in pieces],
    )


# --- settings ---------------------------------------------------------------------------------


def _settings(host: _Host) -> Iterable[Finding]:
    several = len(host.nodes) > 1
    if several:
        yield from _zone_reclaim(host)
        yield from _balancing(host)
    yield from _huge_page_settings(host)
    yield from _hugetlb(host, several)
    governor, driver = host.setting("cpu.governor"), host.setting("cpu.driver") or ""
    if governor == "powersave" and "pstate" not in driver:
        yield _finding(
            "governor",
            "warning",
            f"the frequency governor is powersave with the driver {driver or 'unknown'}: every CPU "
            "stays at its lowest frequency",
            do=[_do("cpupower frequency-set -g performance", "full frequency; more power")],
        )
    swappiness = host.setting("vm.swappiness")
    if swappiness == "0" and host.setting("memory.swap_total_bytes") and several:
        yield _finding(
            "swappiness",
            "note",
            "vm.swappiness = 0: a process bound to a full node is killed where it could swap",
            do=[_do("sysctl -w vm.swappiness=1", "as little swapping as possible, but some")],
        )


def _zone_reclaim(host: _Host) -> Iterable[Finding]:
    mode = host.setting("vm.zone_reclaim_mode")
    if mode in (None, "0") or not mode.isdigit():
        return
    done = host.vmstat.get("zone_reclaim_success")
    failed = host.vmstat.get("zone_reclaim_failed")
    history = (
        None
        if done is None
        else f"since boot {done} reclaims of this kind succeeded and {failed} failed"
    )
    back = _do(
        "sysctl -w vm.zone_reclaim_mode=0",
        "the default: a full node spills to the next one at once",
    )
    if host.mglru and int(mode) & 6 != 6:
        yield _finding(
            "zone-reclaim",
            "warning",
            f"vm.zone_reclaim_mode = {mode} reclaims nothing on this kernel: with MGLRU "
            "(lru_gen/enabled) it needs the bits 2 and 4 too",
            ["every allocation on a full node tries it, fails, and spills as with 0", history],
            [
                back,
                _do(
                    "sysctl -w vm.zone_reclaim_mode=7",
                    "really reclaims at home before spilling. Risk: it may write and swap while a "
                    "program allocates",
                ),
            ],
        )
        return
    yield _finding(
        "zone-reclaim",
        "warning",
        f"vm.zone_reclaim_mode = {mode}: a program that allocates on a full node waits while page "
        "cache is reclaimed there, though other nodes are free",
        [history, "it suits programs partitioned by node; databases and file servers lose by it"],
        [back],
    )


def _balancing(host: _Host) -> Iterable[Finding]:
    if host.setting("kernel.numa_balancing") in (None, "0"):
        return
    moved, interval = host.now.get("numa_pages_migrated", 0), host.survey["interval_s"]
    rate = moved * host.survey["page_bytes"] / interval if interval else 0
    faults = host.vmstat.get("numa_hint_faults", 0)
    local = host.vmstat.get("numa_hint_faults_local", 0)
    if rate >= _MOVED_BYTES_PER_S:
        yield _finding(
            "balancing",
            "warning",
            f"automatic balancing (kernel.numa_balancing) moves {rate / 1e6:.0f} MB/s between "
            "nodes now",
            [
                f"since boot {host.vmstat.get('numa_pages_migrated', 0)} pages were moved; "
                + (f"{_percent(local / faults)} of its faults were local" if faults else ""),
                "memory with a bind or interleave policy is not moved; a process bound to CPUs "
                "only has its pages pulled to them",
            ],
            [
                _do(
                    "sysctl -w kernel.numa_balancing=0",
                    "no more moving and no more faults for it. Risk: what is not bound stays where "
                    "it was first touched",
                )
            ],
        )


def _huge_page_settings(host: _Host) -> Iterable[Finding]:
    if host.setting("thp.enabled") in (None, "never") or host.setting("thp.defrag") != "always":
        return
    stalls = host.now.get("compact_stall", 0)
    if stalls >= 10:
        yield _finding(
            "thp-defrag",
            "warning",
            "transparent_hugepage/defrag = always: programs wait for compaction in page faults",
            [f"{stalls} stalls in {host.survey['interval_s']:.1f} s, while this command looked"],
            [
                _do(
                    "echo madvise > /sys/kernel/mm/transparent_hugepage/defrag",
                    "only programs that ask for it wait; others get small pages until khugepaged "
                    "comes by",
                )
            ],
        )


def _hugetlb(host: _Host, several: bool) -> Iterable[Finding]:
    """Pools of hugetlbfs pages: unused ones, and a node that they leave nothing else."""
    lean = any(host.pooled(node["node"]) < 0.5 * node["memory_bytes"] for node in host.nodes)
    for node in host.nodes:
        number, memory = node["node"], node["memory_bytes"]
        held, idle = host.pooled(number), host.pooled(number, "free")
        if host.doubtful or held < 0.5 * memory:
            continue
        severity = "warning"
        if several and held >= 0.9 * memory:
            severity = "warning" if lean else "note"  # alike on all nodes it was meant so
            what = f"hugetlb pages take {size(held)} of the {size(memory)} of node {number}: "
            what += "everything else from its CPUs spills to other nodes"
        elif idle >= 0.5 * memory:
            what = f"{size(idle)} of hugetlb pages on node {number} are reserved and unused: "
            what += "nothing else can have that memory"
        else:
            continue
        yield _finding(
            "hugetlb",
            severity,
            what,
            [f"reserved {size(held)}, of it unused {size(idle)}"],
            [
                _do(
                    f"echo N > /sys/devices/system/node/node{number}/hugepages/"
                    "hugepages-2048kB/nr_hugepages",
                    "reserves N pages on this node; unused ones above N are given back",
                )
            ],
            nodes=[number],
        )


# --- the shape of the machine -----------------------------------------------------------------


def _shape(host: _Host) -> Iterable[Finding]:
    topology = host.topology
    if len(topology["nodes"]) == 1:
        yield from _hidden(host)
    online = cpulist.format(cpu["cpu"] for cpu in topology["cpus"] if cpu["online"])
    every = cpulist.format(node["node"] for node in topology["nodes"])
    allowed = topology["allowed"]
    if allowed["cpus"] != online or allowed["nodes"] != every:
        yield _finding(
            "cpuset",
            "note",
            f"this command may only use CPUs {allowed['cpus'] or 'none'} and memory of "
            f"{_nodes(cpulist.parse(allowed['nodes']))} (a cpuset): what is started from here is "
            "held there",
        )
    bare = [node["node"] for node in topology["nodes"] if node["cpus"] and not node["memory_bytes"]]
    if bare and len(topology["nodes"]) > 1 and not host.doubtful:
        yield _finding(
            "memory-less",
            "note",
            f"{_nodes(bare)} {'has' if len(bare) == 1 else 'have'} CPUs and no memory: all that "
            "runs there is remote (empty slots, or memory taken offline)",
            nodes=bare,
        )


def _hidden(host: _Host) -> Iterable[Finding]:
    topology = host.topology
    packages = topology["packages"] or 1
    groups = len({c["cpus"] for c in topology["caches"] if c["level"] == 3})
    virtual = host.setting("virt.hypervisor") not in (None, "none")
    command_line = (host.setting("kernel.cmdline") or "").split()
    if "numa=off" in command_line:
        yield _finding(
            "numa-off",
            "note" if packages == 1 or virtual else "warning",
            "the kernel was started with numa=off: it sees one node and places memory blindly",
            [f"the machine has {packages} packages" if packages > 1 else None],
            [
                _do(
                    "remove numa=off from the kernel's command line and reboot",
                    "nodes, their memory and distances come back; memory then goes to the node of "
                    "whoever touches it first",
                )
            ],
        )
    elif packages > 1 and not virtual:
        # Elsewhere a kernel may call a cluster of cores a package.
        sure = topology["arch"] == "x86_64"
        yield _finding(
            "hidden-nodes",
            "warning" if sure else "note",
            f"{packages} packages, but one node: the firmware interleaves memory over them, so "
            f"about {_percent((packages - 1) / packages)} of every program's accesses are remote, "
            "and no binding can change it",
            [
                "Node Interleaving is on, or NUMA off, in the firmware's setup (AMD: NPS0)",
                "it is right only where all packages share one memory: on a front-side bus "
                "(before about 2009), or where the kernel takes a cluster of cores for a package",
            ],
            [
                _do(
                    "switch Node Interleaving off (NUMA on; AMD: NPS1) in the firmware's setup",
                    "the kernel then sees the nodes. Risk: a program without a plan for its memory "
                    "can fill one node; numactl --interleave=all gives it back what it had",
                )
            ],
        )
    elif packages > 1 or groups > 1:
        parts = f"{packages} packages" if packages > 1 else f"{groups} groups of cores with an L3"
        yield _finding(
            "one-node",
            "note",
            f"one node with {parts}"
            + (" of a virtual machine" if virtual else "")
            + ": memory is one pool to the kernel; binding CPUs to a group still keeps its "
            "threads on one cache",
        )


# --- as text ----------------------------------------------------------------------------------


def text(
    topology: Dict[str, Any],
    state: Dict[str, Any],
    survey: Dict[str, Any],
    findings: Sequence[Finding],
    width: int = 100,
) -> str:
    """Return the diagnosis as lines of at most ``width`` columns (60 or more), for a terminal."""
    width = max(60, width)
    doubtful = describe.contradicts(topology, state)
    lines = describe.headline(topology, state, width)
    lines += _node_lines(survey)
    lines += _process_lines(survey, width)
    lines += describe.setting_lines(state, width)
    lines += describe.device_lines(topology, width)
    for words in _limits(survey, doubtful):
        lines += describe.marked("–", words, width)
    for finding in findings:
        lines += _finding_lines(finding, width)
    if healthy(findings):
        lines.append("✓ nothing found" + (" in what can be read" if survey["unreadable"] else ""))
    return describe.printable("\n".join(lines))


def _node_lines(survey: Dict[str, Any]) -> List[str]:
    many = len(survey["nodes"]) > 1
    columns = (
        ("memory", 9), ("free", 9), ("cache", 9), ("anon", 9), ("huge free", 11),
        *([("foreign", 9)] if many else []),
    )  # fmt: skip
    lines = ["node" + "".join(f"{name:>{wide}}" for name, wide in columns)]
    for node in survey["nodes"]:
        sizes = [
            node["memory_bytes"], node["free_bytes"], node["page_cache_bytes"],
            node["anonymous_bytes"], node["huge_page_bytes"],
        ]  # fmt: skip
        line = f"{node['node']:>4}" + "".join(
            f"{describe.gib(one):>{wide}}" for one, (_, wide) in zip(sizes, columns)
        )
        counters = node["numastat"]
        foreign = counters.get("numa_foreign")
        if many:
            asked = counters.get("numa_hit", 0) + (foreign or 0)
            line += f"{'?' if foreign is None or not asked else _percent(foreign / asked):>9}"
        lines.append(line)
    return lines


def _process_lines(survey: Dict[str, Any], width: int, most: int = 10) -> List[str]:
    found = [p for p in survey["processes"] if p["memory"]]
    if not found:
        return []
    lines = ["    pid  process           memory  by node               CPUs of  policy"[:width]]
    for process in found[:most]:
        total = _total(process) or 1
        by_node = " ".join(
            f"{node}:{_percent(count / total).replace(' ', '')}"
            for node, count in sorted(process["memory"].items(), key=lambda item: -item[1])[:4]
        )
        cpus = process["cpu_nodes"]
        policies = sorted(process["policies"].items(), key=lambda item: -sum(item[1].values()))
        policy = policies[0][0] if policies else "?"
        where = "?" if cpus is None else cpulist.format(cpus) or "none"
        lines.append(
            f"{process['pid']:>7}  {process['name'][:15]:<15} {describe.gib(_total(process)):>8}  "
            f"{by_node:<20}  {where:<7}  {policy}"[:width]
        )
    if len(found) > most:
        lines.append(f"         and {len(found) - most} more (--json shows them)")
    return lines


def _limits(survey: Dict[str, Any], doubtful: bool) -> Iterable[str]:
    """What this diagnosis could not see."""
    if doubtful:
        yield (
            "the nodes' memory does not add up to the machine's: nothing is concluded from free "
            "memory per node"
        )
    if survey["unreadable"]:
        yield (
            f"{survey['unreadable']} of the processes with {size(survey['least_bytes'])} or more "
            "cannot be read: run it as root to see them"
        )
    if survey["unread"]:
        yield f"{survey['unread']} further processes were left out, to be quick"
    if survey["container"]:
        yield "in a container: the processes of the host are not seen"
    yield from survey["problems"]


def _finding_lines(finding: Finding, width: int) -> List[str]:
    lines = describe.marked(MARKS[finding["severity"]], finding["what"], width)
    for sentence in finding["evidence"]:
        lines += [f"  {line}" for line in describe.marked("·", sentence, width - 2)]
    for remedy in finding["do"]:
        lines.append(f"    {remedy['command']}")
        lines += [f"      {line}" for line in textwrap.wrap(remedy["effect"], width - 6)]
    return lines
