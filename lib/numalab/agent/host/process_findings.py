"""Findings about processes whose memory is not where their CPUs are, or can grow no more."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from .. import cpulist
from ..contract import Reason, reason
from ..cpulist import format as listed
from .findings import (
    AWAY_BYTES,
    AWAY_SHARE,
    FULL,
    Facts,
    Finding,
    Remedy,
    finding,
    outside,
    remedy,
)
from .survey import ProcessUse

_WANDERED_SHARE, _WANDERED_BYTES, _BUSY_PERCENT = 0.8, 1 << 30, 50.0  # of a process not bound


def memory_away(facts: Facts) -> Iterator[Finding]:
    """Processes whose memory is not where their CPUs are."""
    for process in facts.processes if len(facts.nodes) > 1 else ():
        found = _bound_away(facts, process) or _wandered(facts, process)
        if found:
            yield found


def _bound_away(facts: Facts, process: ProcessUse) -> Optional[Finding]:
    home = set(process.cpu_nodes or ())
    if not home or home >= facts.with_cpus:
        return None
    # A node without CPUs (CXL, HBM) is nobody's home: memory there is a tier, put there on purpose.
    near = home | (set(facts.by_number) - facts.with_cpus)
    if not home & set(facts.by_number):
        return None  # its own nodes have no memory at all
    away = outside(process.memory, near)
    if away < max(AWAY_BYTES, AWAY_SHARE * process.total):
        return None
    code, severity, why, remedies = _why_away(facts, process, home, near, away)
    where = reason("its-memory", by_node=dict(process.memory or {}))
    return finding(
        severity, code, why=why, evidence=[where, _running(process)], remedies=remedies,
        **_apart(process, home, away),
    )  # fmt: skip


def _apart(process: ProcessUse, home: Set[int], away: int) -> Dict[str, Any]:
    return {
        "nodes": home, "pids": [process.pid], "name": process.name, "pid": process.pid,
        "home": listed(home), "share": away / process.total, "total": process.total,
    }  # fmt: skip


def _why_away(
    facts: Facts, process: ProcessUse, home: Set[int], near: Set[int], away: int
) -> Tuple[str, str, Reason, List[Remedy]]:
    """The finding's code and severity, why memory is on other nodes, and what to do."""
    own = listed(home)
    kinds = _away_by_kind(process, near)
    kind = max(kinds, key=kinds.__getitem__)
    of_kind = [policy for policy in process.policies if _kind(policy) == kind]
    policy = max(of_kind, key=lambda one: outside(process.policies[one], near))
    by_policy = reason("by-its-policy", policy=policy)
    home_again = [*_move_home(facts, process, home, near), _restart(process, own)]
    limited = set(cpulist.parse(process.allowed_nodes or "")) & set(facts.by_number)
    if limited and not limited & home:
        why = reason("by-its-cpuset", nodes=listed(limited))
        return "cpuset-apart", "warning", why, home_again
    if kind == "interleave":
        over = set(_policy_nodes(policy)) or set(facts.by_number)
        fair = len(over - near) / len(over)
        if away / process.total <= fair + AWAY_SHARE:
            return "interleaved", "note", by_policy, []
        why = reason("interleaved-unevenly", policy=policy, share=fair, nodes=own)
        again = remedy("do-start-interleaved", nodes=own, over=listed(over), name=process.name)
        return "memory-away", "warning", why, [again]
    if kind in ("bind", "prefer"):
        return "bound-apart", "warning", by_policy, home_again
    busy = (process.cpu_percent or 0) >= _BUSY_PERCENT
    return "memory-away", "problem" if busy else "warning", reason("node-was-full"), home_again


def _wandered(facts: Facts, process: ProcessUse) -> Optional[Finding]:
    """A process free to run anywhere that runs where its memory is not. Only when it is clear."""
    if process.cpu_nodes is not None and set(process.cpu_nodes) < facts.with_cpus:
        return None
    home = {node for node, share in process.runs_on.items() if share >= 0.05}
    if not home or home >= facts.with_cpus or not home & set(facts.by_number):
        return None
    near = home | (set(facts.by_number) - facts.with_cpus)
    away = _away_by_kind(process, near).get("default", 0)
    if away < max(_WANDERED_BYTES, _WANDERED_SHARE * process.total):
        return None
    balancing = facts.setting("kernel.numa_balancing") not in (None, "0")
    act = not balancing and (process.cpu_percent or 0) >= _BUSY_PERCENT
    why = reason("balancing-should-help" if balancing else "runs-there-now")
    evidence = [_running(process), reason("free-to-run-anywhere")]
    remedies = [*_move_home(facts, process, home, near), _restart(process, listed(home))]
    return finding(
        "warning" if act else "note", "memory-away", why=why, evidence=evidence,
        remedies=remedies if act else [], **_apart(process, home, away),
    )  # fmt: skip


def _kind(policy: str) -> str:
    if "interleave" in policy:
        return "interleave"
    word = re.split(r"[ =:(]", policy)[0]
    return word if word in ("bind", "prefer") else "default"


def _policy_nodes(policy: str) -> List[int]:
    return cpulist.parse(policy.rpartition(":")[2])


def _away_by_kind(process: ProcessUse, nodes: Set[int]) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for policy, by_node in process.policies.items():
        kinds[_kind(policy)] += outside(by_node, nodes)
    return kinds


def _running(process: ProcessUse) -> Optional[Reason]:
    if process.cpu_percent is None:
        return None
    if not process.runs_on:
        return reason("was-idle")
    return reason("was-running", percent=process.cpu_percent, by_node=dict(process.runs_on))


def _move_home(facts: Facts, process: ProcessUse, home: Set[int], near: Set[int]) -> List[Remedy]:
    """migratepages(8), where the home nodes can hold what is to come."""
    away = {node: size for node, size in (process.memory or {}).items() if node not in near}
    targets = home & set(facts.by_number)
    if facts.doubtful or not targets:
        return []
    fits = sum(facts.available(facts.by_number[node]) or 0 for node in targets)
    code = "do-migrate" if fits >= sum(away.values()) else "do-migrate-some"
    return [remedy(code, pid=process.pid, nodes=listed(away), to=listed(targets), fits=fits)]


def _restart(process: ProcessUse, nodes: str) -> Remedy:
    if process.unit:
        return remedy("do-edit-service", unit=process.unit, nodes=nodes)
    return remedy("do-start-bound", nodes=nodes, name=process.name)


def bound_to_full(facts: Facts) -> Iterator[Finding]:
    """Processes that may only use nodes which have nothing left to give."""
    if len(facts.nodes) < 2 or facts.doubtful:
        return
    swap = facts.setting("memory.swap_free_bytes") or 0
    for process in facts.processes:
        bound = _bound_nodes(facts, process)
        left = [facts.available(facts.by_number[node]) for node in bound]
        whole = sum(facts.by_number[node].memory_bytes or 0 for node in bound)
        pooled = sum(facts.pooled(node)[0] for node in bound)  # its pages are had in advance
        known = [size for size in left if size is not None]
        if not bound or len(known) < len(left) or sum(known) >= FULL * (whole - pooled):
            continue
        nodes, elsewhere = listed(bound), facts.with_room(min(bound))
        remedies = [remedy("do-start-preferred", nodes=nodes, node=min(bound), name=process.name)]
        if elsewhere:
            remedies.insert(0, remedy("do-migrate-another", nodes=nodes, to=elsewhere[0]))
        evidence = [
            reason("holds-there", size=process.total),
            reason("swap-free", size=swap) if swap else reason("no-swap-free"),
            reason("room-not-allowed", nodes=listed(elsewhere)) if elsewhere else None,
        ]
        yield finding(
            "warning", "bound-to-full", evidence=evidence, remedies=remedies, nodes=bound,
            pids=[process.pid], name=process.name, pid=process.pid, on=nodes, left=sum(known),
            whole=whole, then=reason("then-it-swaps" if swap else "then-it-is-killed"),
        )  # fmt: skip


def _bound_nodes(facts: Facts, process: ProcessUse) -> Set[int]:
    """The nodes that most of its memory may only come from; empty when that is all of them."""
    bound: Set[int] = set()
    strict = 0
    for policy, by_node in process.policies.items():
        if policy.startswith("bind"):
            strict += sum(by_node.values())
            bound |= set(_policy_nodes(policy))
    everything = set(facts.by_number)
    if strict < 0.5 * process.total or not bound & everything:
        bound = set(cpulist.parse(process.allowed_nodes or ""))
    bound &= everything
    return bound if bound != everything else set()
