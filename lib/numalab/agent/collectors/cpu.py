"""Who used the CPUs: per-CPU time, the measured tree's time, and the disturbance by others.

Times are those of ``/proc/stat`` and ``/proc/PID/stat`` (proc_stat(5), proc_pid_stat(5)), whose
resolution is one clock tick (10 ms) per CPU or process and reading.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Optional

from .. import cpulist
from ..trial import proof
from . import Unavailable, read, row

SOURCE = "cpu"
_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_WAITING = ("idle", "iowait", "steal")  # steal: taken by the hypervisor, nobody here ran
_NAMED = 5  # the busiest other processes that a record names,
_WORTH_NAMING = 0.01  # if they took this share of the cell's CPUs: a record may be published


def per_cpu(root: str = "/") -> Dict[int, List[int]]:
    """Return the ticks that each CPU spent in each of the eight states of ``/proc/stat``."""
    found = {}
    for line in read(root, "proc/stat").splitlines():
        name, *ticks = line.split()
        if name.startswith("cpu") and name != "cpu":
            found[int(name[3:])] = [int(tick) for tick in ticks[: len(_STATES)]]
        elif found:
            break  # the CPUs stand together at the top; what follows is long on large hosts
    if not found:
        raise Unavailable("/proc/stat lists no CPU")
    return found


def busy_share(
    before: Dict[int, List[int]], after: Dict[int, List[int]], cell_cpus: Optional[str]
) -> Optional[float]:
    """Return the share of the cell's CPU time that was used; None when no tick passed."""
    wanted = set(cpulist.parse(cell_cpus)) if cell_cpus else set(before)
    used = total = 0
    for cpu in wanted & set(before) & set(after):
        spent = [b - a for a, b in zip(before[cpu], after[cpu])]
        total += sum(spent)
        used += sum(n for name, n in zip(_STATES, spent) if name not in _WAITING)
    return used / total if total > 0 else None


def snapshot(root: str = "/") -> Dict[str, Any]:
    """Return the time of every CPU and the CPU time of every process, at one moment."""
    return {
        "at": time.monotonic(),
        "cpus": per_cpu(root),
        "processes": proof.processes(os.path.join(root, "proc")),
    }


def difference(
    before: Dict[str, Any],
    after: Dict[str, Any],
    pids: proof.Pids,
    cell_cpus: Optional[str],
    own: List[int],
    beside: bool = False,
) -> Dict[str, Any]:
    """Return the record of two snapshots.

    ``pids`` are the roots of the measured tree; ``cell_cpus`` is the cell's CPU list, None for
    all. ``own`` are processes of the measuring itself (the agent, perf), counted neither as the
    workload nor as disturbance by name. With ``beside`` they run on the cell's CPUs by design (a
    client that has none of its own): then the time they used is no disturbance either.
    When the workload had ended and its parent has waited for it, its time is what the parent
    gained in children's time; ``tree_s`` is None when the parent is gone too.
    """
    tick = 1 / os.sysconf("SC_CLK_TCK")
    elapsed = after["at"] - before["at"]
    cpus = {
        cpu: dict(zip(_STATES, ((b - a) * tick for a, b in zip(ticks, after["cpus"][cpu]))))
        for cpu, ticks in before["cpus"].items()
        if cpu in after["cpus"]
    }
    table = after["processes"]
    members = set(proof.tree(pids, table))
    known = set(own)
    used: Dict[int, float] = {}
    for pid, stat in table.items():
        earlier = before["processes"].get(pid)
        same = earlier is not None and earlier.started == stat.started
        ticks = stat.ticks - (earlier.ticks if same and earlier else 0)
        if pid in members or pid in known:
            # Children that ended meanwhile left their time with their parent.
            ticks += stat.children_ticks - (earlier.children_ticks if same and earlier else 0)
        used[pid] = ticks * tick
    wanted = set(cpulist.parse(cell_cpus)) if cell_cpus else set(cpus)
    of_cell = {cpu: states for cpu, states in cpus.items() if cpu in wanted}
    busy = sum(sum(s.values()) - sum(s[name] for name in _WAITING) for s in of_cell.values())
    steal = sum(states["steal"] for states in of_cell.values())
    roots = proof.roots_of(pids)
    tree_s: Optional[float] = sum(used[pid] for pid in members)
    if not members.issuperset(roots):  # what the others used would look like a disturbance
        gone = len(roots) == 1 and roots[0] not in table
        tree_s = _waited_for(before["processes"], table, roots[0], tick) if gone else None
    own_s = sum(used[pid] for pid in known - members if pid in used) if beside else 0.0
    other_s = None if tree_s is None else max(0.0, busy - tree_s - own_s)
    capacity = elapsed * len(of_cell)
    least = max(2 * tick, _WORTH_NAMING * capacity)
    others = sorted(
        (pid for pid in used if pid not in members and pid not in own and used[pid] >= least),
        key=lambda pid: -used[pid],
    )
    return {
        "elapsed_s": round(elapsed, 6),
        "per_cpu": {
            str(cpu): {name: round(value, 3) for name, value in states.items() if value}
            for cpu, states in sorted(cpus.items())
        },
        "processes": [
            {"pid": pid, "name": table[pid].name, "cpu_s": round(used[pid], 3)}
            for pid in sorted(members)
        ],
        "tree_s": None if tree_s is None else round(tree_s, 3),
        "disturbance": {
            "cpus": cpulist.format(of_cell),
            "busy_s": round(busy, 3),
            "steal_s": round(steal, 3),
            "other_s": None if other_s is None else round(other_s, 3),
            "other_share": None if other_s is None or not capacity else other_s / capacity,
            "busiest": [
                {"pid": pid, "name": table[pid].name, "cpu_s": round(used[pid], 3)}
                for pid in others[:_NAMED]
            ],
        },
    }


def _waited_for(
    before: Dict[int, Any], after: Dict[int, Any], root_pid: int, tick: float
) -> Optional[float]:
    parent = before[root_pid].parent if root_pid in before else 0  # the agent or a trial's warden
    if parent not in before or parent not in after:
        return None
    if before[parent].started != after[parent].started:
        return None
    # wait4(2) hands over a child's whole time: what it had used before is to be taken off.
    earlier = proof.tree(root_pid, before)
    used = sum(before[pid].ticks + before[pid].children_ticks for pid in earlier)
    return (after[parent].children_ticks - before[parent].children_ticks - used) * tick


def metrics(record: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return CPU time of the workload (s), and shares (of 1) of the cell's CPUs' time."""
    disturbance = record["disturbance"]
    capacity = record["elapsed_s"] * len(cpulist.parse(disturbance["cpus"]))
    ended = "the workload had ended when its CPU time was to be read"
    empty = None if capacity else "the cell's CPUs are not in /proc/stat"

    def share(value: float) -> Optional[float]:
        return value / capacity if capacity else None

    return [
        row(SOURCE, "workload_cpu_time", record["tree_s"], "s",
            reason=ended if record["tree_s"] is None else None),
        row(SOURCE, "cpu_busy_share", share(disturbance["busy_s"]), "share", reason=empty),
        row(SOURCE, "cpu_steal_share", share(disturbance["steal_s"]), "share", reason=empty),
        row(SOURCE, "other_cpu_share", disturbance["other_share"], "share",
            reason=None if disturbance["other_share"] is not None else empty or ended),
    ]  # fmt: skip
