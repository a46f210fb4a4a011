"""Findings about the memory of nodes: page cache, swap, fragments, pools of huge pages."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator, List

from ..contract import Reason, reason
from ..cpulist import format as listed
from .findings import (
    AWAY_BYTES,
    AWAY_SHARE,
    CACHED,
    FULL,
    NEARLY_FULL,
    Facts,
    Finding,
    Remedy,
    finding,
    outside,
    remedy,
)
from .survey import NodeUse, ProcessUse

_DEFAULT_POLICIES = ("default", "local")


# --- page cache -------------------------------------------------------------------------------


def full_of_cache(facts: Facts) -> Iterator[Finding]:
    """Nodes that page cache fills while others have room: the kernel takes theirs, unasked."""
    for node in [] if facts.doubtful else facts.nodes:
        memory, share = node.memory_bytes or 0, facts.room_share(node)
        cache, files = node.page_cache_bytes, node.file_pages_bytes
        if share is None or share >= NEARLY_FULL or (files or cache or 0) <= CACHED * memory:
            continue
        free = facts.room(node) if node.free_bytes is None else node.free_bytes
        held: Dict[str, Any] = {"node": node.number, "free": free, "cache": cache or 0}
        others = facts.with_room(node.number)
        if len(facts.nodes) == 1:
            yield finding("warning", "cache-to-reclaim", nodes=[node.number], **held)
        elif not others:
            why = reason("no-room-elsewhere")
            yield finding("note", "node-full", nodes=[node.number], why=why, **held)
        elif cache is None or cache <= CACHED * memory:
            why = reason("full-of-shared-memory", size=node.shared_memory_bytes or 0)
            yield finding("note", "node-full", nodes=[node.number], why=why, **held)
        else:
            yield _spilling(facts, node, others[0], held)


def _spilling(facts: Facts, node: NodeUse, to: int, held: Dict[str, Any]) -> Finding:
    victims = [one for one in facts.processes if _is_victim(one, node.number)]
    spills = facts.spills_now(node)
    severity = "problem" if spills or victims else "warning"
    if (facts.room_share(node) or 0) >= FULL:
        severity = "note"
    evidence = list(_cache_evidence(facts, node, spills))
    for one in victims[:3]:
        away = outside(one.memory, {node.number})
        evidence.append(
            reason("spilled-process", name=one.name, pid=one.pid, total=one.total, away=away)
        )
    return finding(
        severity, "page-cache", evidence=evidence, remedies=_cache_remedies(facts, node),
        nodes=[node.number], pids=[one.pid for one in victims], to=to, room=facts.room(node) or 0,
        **held,
    )  # fmt: skip


def _cache_evidence(facts: Facts, node: NodeUse, spills: int) -> Iterator[Reason]:
    yield reason(
        "cache-held", memory=node.memory_bytes, clean=facts.droppable(node),
        dirty=node.dirty_bytes, shared=node.shared_memory_bytes, room=node.room_bytes,
    )  # fmt: skip
    if spills:
        yield reason("spills-now", pages=spills, seconds=facts.survey.interval_s)
    foreign, hit = (node.numastat.get(name, 0) for name in ("numa_foreign", "numa_hit"))
    if foreign:
        yield reason("spilled", share=foreign / (hit + foreign), foreign=foreign, hit=hit)
    if node.huge_page_bytes is not None:
        yield reason("huge-pages-to-be-had", size=node.huge_page_bytes)


def _cache_remedies(facts: Facts, node: NodeUse) -> Iterator[Remedy]:
    number = node.number
    if facts.survey.live and os.path.exists(f"/sys/devices/system/node/node{number}/reclaim"):
        yield remedy("do-reclaim-node", node=number, mib=facts.droppable(node) >> 20)
    yield remedy("do-drop-caches")
    yield remedy("do-bind-program", node=number)
    if facts.setting("vm.zone_reclaim_mode") in ("0", None):
        yield remedy("do-reclaim-at-home", mode=7 if facts.mglru else 1)


def _is_victim(process: ProcessUse, node: int) -> bool:
    """Whether a process lives on a node and memory that it let the kernel place is elsewhere."""
    ran_there = set(process.runs_on) == {node} and (process.cpu_percent or 0) > 0
    away = sum(
        outside(by_node, {node})
        for policy, by_node in process.policies.items()
        if policy in _DEFAULT_POLICIES
    )
    return (process.cpu_nodes == (node,) or ran_there) and away >= max(
        AWAY_BYTES, AWAY_SHARE * process.total
    )


# --- swap -------------------------------------------------------------------------------------


def swapping(facts: Facts) -> Iterator[Finding]:
    """Pages swapped out of a full node while other nodes are free: "swap insanity"."""
    total, free = (facts.setting(f"memory.swap_{name}_bytes") for name in ("total", "free"))
    if not total or free is None:
        return
    used = total - free
    if used > total // 20:
        yield finding("warning", "swap-used", used=used)
    if len(facts.nodes) < 2 or facts.doubtful:
        return
    full = [node for node in facts.nodes if _is_short(facts, node)]
    roomy = [node for node in facts.nodes if (facts.room_share(node) or 0) > 0.25]
    out = facts.now("pswpout")
    if not full or not roomy or (used < max(total // 20, AWAY_BYTES) and not out):
        return
    swapped = _most_in_swap(facts)
    remedies = [
        remedy("do-interleave"),
        remedy("do-swap-less"),
        remedy("do-migrate-to-free-node", node=full[0].number, to=roomy[0].number),
    ]
    numbers = [node.number for node in full]
    yield finding(
        "problem" if out else "warning", "swap-insanity", remedies=remedies,
        evidence=_swap_evidence(facts, full, swapped), nodes=numbers,
        pids=[one.pid for one in swapped], used=used, full=listed(numbers),
        to=roomy[0].number, free=roomy[0].free_bytes,
    )  # fmt: skip


def _most_in_swap(facts: Facts) -> List[ProcessUse]:
    swapped = [one for one in facts.survey.processes if (one.swap_bytes or 0) >= AWAY_BYTES]
    return sorted(swapped, key=lambda one: -(one.swap_bytes or 0))[:3]


def _swap_evidence(
    facts: Facts, full: List[NodeUse], swapped: List[ProcessUse]
) -> Iterator[Reason]:
    for node in full[:3]:
        yield reason("node-held", node=node.number, anonymous=node.anonymous_bytes or 0,
                     cache=node.page_cache_bytes or 0, room=facts.room(node))  # fmt: skip
    if facts.now("pswpout"):
        seconds = facts.survey.interval_s
        yield reason("swapping-now", pages=facts.now("pswpout"), seconds=seconds)
    else:
        went, came = facts.since_boot("pswpout"), facts.since_boot("pswpin")
        yield reason("swapped-since-boot", went=went, came=came)
    for one in swapped:
        yield reason("process-in-swap", name=one.name, pid=one.pid, size=one.swap_bytes)


def _is_short(facts: Facts, node: NodeUse) -> bool:
    """Whether a node has neither room nor much cache to give."""
    share, available = facts.room_share(node), facts.available(node)
    if share is None or available is None:
        return False
    return share < FULL and available < 0.15 * (node.memory_bytes or 0)


# --- huge pages -------------------------------------------------------------------------------


def fragmented(facts: Facts) -> Iterator[Finding]:
    """Nodes with free memory in pieces too small for a huge page, where that was felt."""
    unit = facts.survey.huge_page_bytes
    if facts.setting("thp.enabled") not in ("always", "madvise") or not unit or facts.doubtful:
        return
    pieces = [node for node in facts.nodes if _in_pieces(node, unit)]
    if not pieces:
        return
    given, refused = facts.since_boot("thp_fault_alloc"), facts.since_boot("thp_fault_fallback")
    felt = refused >= 1000 and refused >= 0.1 * (given + refused)
    severity = "note"
    if felt:
        severity = "problem" if facts.now("thp_fault_fallback") >= 10 else "warning"
    evidence = [
        reason("free-blocks", node=node.number, blocks=node.huge_page_bytes, free=node.free_bytes,
               unit=unit)
        for node in pieces[:4]
    ]  # fmt: skip
    evidence.append(reason("huge-pages-refused", refused=refused, asked=given + refused))
    if not felt:
        evidence.append(reason("not-felt"))
    if "compact_stall" in facts.survey.vmstat:
        stalls, vain = facts.since_boot("compact_stall"), facts.since_boot("compact_fail")
        evidence.append(reason("compaction", stalls=stalls, vain=vain))
    remedies = [remedy("do-compact", node=pieces[0].number), remedy("do-drop-caches")]
    numbers = [node.number for node in pieces]
    yield finding(
        severity, "fragmented", evidence=evidence, remedies=remedies if felt else [],
        nodes=numbers, on=listed(numbers),
    )  # fmt: skip


def _in_pieces(node: NodeUse, unit: int) -> bool:
    free, blocks = node.free_bytes, node.huge_page_bytes
    if free is None or blocks is None:
        return False
    return free >= max(64 * unit, 0.02 * (node.memory_bytes or 0)) and blocks < 0.05 * free


def hugetlb(facts: Facts) -> Iterator[Finding]:
    """Pools of hugetlbfs pages: unused ones, and a node that they leave nothing else."""
    if facts.doubtful:
        return
    several = len(facts.nodes) > 1
    lean = any(facts.pooled(n.number)[0] < 0.5 * (n.memory_bytes or 0) for n in facts.nodes)
    for node in facts.nodes:
        memory, (held, idle) = node.memory_bytes or 0, facts.pooled(node.number)
        severity = "warning"
        if several and held >= 0.9 * memory:
            severity = "warning" if lean else "note"  # alike on all nodes it was meant so
            why = reason("hugetlb-crowds", held=held, memory=memory)
        elif held >= 0.5 * memory and idle >= 0.5 * memory:
            why = reason("hugetlb-idle", idle=idle)
        else:
            continue
        yield finding(
            severity, "hugetlb", node=node.number, why=why, nodes=[node.number],
            evidence=[reason("hugetlb-reserved", held=held, idle=idle)],
            remedies=[remedy("do-hugetlb", node=node.number)],
        )  # fmt: skip
