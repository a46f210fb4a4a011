"""Who used the CPUs: per-CPU time, the measured tree's time, and the disturbance by others.

Times are those of ``/proc/stat`` and ``/proc/PID/stat`` (proc_stat(5), proc_pid_stat(5)), whose
resolution is one clock tick (10 ms) per CPU or process and reading.
"""

from __future__ import annotations

import os
import time
from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Optional

from .. import cpulist, kernel
from ..contract import Row, reason
from ..errors import NotHere
from ..rows import row
from .snapshots import read

SOURCE = "cpu"
_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_WAITING = ("idle", "iowait", "steal")  # steal: taken by the hypervisor, nobody here ran
_NAMED = 5  # the busiest other processes that a record names,
_WORTH_NAMING = 0.01  # if they took this share of the cell's CPUs: a record may be published

Ticks = Dict[int, List[int]]  # by CPU, in each of _STATES


class Snapshot(NamedTuple):
    """The time of every CPU and the CPU time of every process, at one moment."""

    at: float  # seconds of the monotonic clock
    cpus: Ticks
    processes: Mapping[int, kernel.Stat]


def per_cpu(root: str = "/") -> Ticks:
    """Return the ticks that each CPU spent in each of the eight states of ``/proc/stat``."""
    found = {}
    for line in read(root, "proc/stat").splitlines():
        name, *ticks = line.split()
        if name.startswith("cpu") and name != "cpu":
            found[int(name[3:])] = [int(tick) for tick in ticks[: len(_STATES)]]
        elif found:
            break  # the CPUs stand together at the top; what follows is long on large hosts
    if not found:
        raise NotHere(reason("no-cpu-times"))
    return found


def busy_share(before: Ticks, after: Ticks, cell_cpus: Optional[str]) -> Optional[float]:
    """Return the share of the cell's CPU time that was used; None when no tick passed."""
    spent = _of_cell(_spent(before, after, 1), cell_cpus)
    total = sum(sum(states.values()) for states in spent.values())
    return _busy(spent) / total if total > 0 else None


def snapshot(root: str = "/") -> Snapshot:
    """Return what the CPUs and the processes have used up to now."""
    processes = kernel.processes(os.path.join(root, "proc"))
    return Snapshot(time.monotonic(), per_cpu(root), processes)


def difference(
    before: Snapshot,
    after: Snapshot,
    pids: kernel.Pids,
    cell_cpus: Optional[str],
    own: Collection[int],
    beside: bool = False,
) -> Dict[str, Any]:
    """Return the record of two snapshots.

    ``pids`` are the roots of the measured tree; ``cell_cpus`` is the cell's CPU list, None for
    all. ``own`` are processes of the measuring itself (the agent, perf), counted neither as the
    workload nor as disturbance by name. With ``beside`` they run on the cell's CPUs by design (a
    client that has none of its own): then the time they used is no disturbance either.
    """
    tick = 1 / os.sysconf("SC_CLK_TCK")
    elapsed = after.at - before.at
    table = after.processes
    members = set(kernel.tree(pids, table))
    with_children = members.union(own)
    handed = _handed_over(before.processes, table)
    ticks = {pid: _used_ticks(before.processes.get(pid), stat) for pid, stat in table.items()}
    for pid in with_children.intersection(table):
        ticks[pid] += _childrens(before.processes.get(pid), table[pid], handed)
    used = {pid: value * tick for pid, value in ticks.items()}
    tree_s = _tree_s(before.processes, table, pids, members, used, handed, tick)
    cpus = _spent(before.cpus, after.cpus, tick)
    of_cell = _of_cell(cpus, cell_cpus)
    busy = _busy(of_cell)
    capacity = elapsed * len(of_cell)
    beside_s = sum(used.get(pid, 0.0) for pid in own if pid not in members) if beside else 0.0
    other_s = None if tree_s is None else max(0.0, busy - tree_s - beside_s)
    least = max(2 * tick, _WORTH_NAMING * capacity)
    others = [pid for pid in used if pid not in with_children and used[pid] >= least]

    def named(some: Collection[int]) -> List[Dict[str, Any]]:
        return [{"pid": pid, "name": table[pid].name, "cpu_s": round(used[pid], 3)} for pid in some]

    return {
        "elapsed_s": round(elapsed, 6),
        "per_cpu": {
            str(cpu): {name: round(value, 3) for name, value in states.items() if value}
            for cpu, states in sorted(cpus.items())
        },
        "processes": named(sorted(members)),
        "tree_s": None if tree_s is None else round(tree_s, 3),
        "disturbance": {
            "cpus": cpulist.format(of_cell),
            "busy_s": round(busy, 3),
            "steal_s": round(sum(states["steal"] for states in of_cell.values()), 3),
            "other_s": None if other_s is None else round(other_s, 3),
            "other_share": None if other_s is None or not capacity else other_s / capacity,
            "busiest": named(sorted(others, key=lambda pid: -used[pid])[:_NAMED]),
        },
    }


def _spent(before: Ticks, after: Ticks, tick: float) -> Dict[int, Dict[str, float]]:
    """Return the time in each state by CPU, of the CPUs that both have."""
    return {
        cpu: dict(zip(_STATES, ((b - a) * tick for a, b in zip(ticks, after[cpu]))))
        for cpu, ticks in before.items()
        if cpu in after
    }


def _of_cell(
    spent: Dict[int, Dict[str, float]], cell_cpus: Optional[str]
) -> Dict[int, Dict[str, float]]:
    wanted = set(cpulist.parse(cell_cpus)) if cell_cpus else set(spent)
    return {cpu: states for cpu, states in spent.items() if cpu in wanted}


def _busy(spent: Dict[int, Dict[str, float]]) -> float:
    return sum(
        value for states in spent.values() for name, value in states.items() if name not in _WAITING
    )


def _used_ticks(earlier: Optional[kernel.Stat], now: kernel.Stat) -> int:
    """Return the ticks that a process used."""
    return now.ticks - (earlier.ticks if earlier and _same(earlier, now) else 0)


def _childrens(earlier: Optional[kernel.Stat], now: kernel.Stat, handed: Mapping[int, int]) -> int:
    """Return the ticks that its children used which ended: they left theirs with it."""
    known = earlier.children_ticks if earlier and _same(earlier, now) else 0
    gained = now.children_ticks - known
    return max(0, gained - handed.get(now.pid, 0))


def _same(earlier: kernel.Stat, now: Optional[kernel.Stat]) -> bool:
    """Whether both are one process, not another one of the same number."""
    return now is not None and earlier.started == now.started


def _handed_over(
    before: Mapping[int, kernel.Stat], after: Mapping[int, kernel.Stat]
) -> Dict[int, int]:
    """Return by process what the children that ended between had used before, in ticks.

    wait4(2) hands over a child's whole time, so that it stands in what the parent gained.
    """
    gone = {pid for pid, stat in before.items() if not _same(stat, after.get(pid))}
    found: Dict[int, int] = {}
    for pid in gone:
        heir = before[pid].parent
        while heir in gone:
            heir = before[heir].parent
        found[heir] = found.get(heir, 0) + before[pid].ticks + before[pid].children_ticks
    return found


def _tree_s(
    before: Mapping[int, kernel.Stat],
    after: Mapping[int, kernel.Stat],
    pids: kernel.Pids,
    members: Collection[int],
    used: Mapping[int, float],
    handed: Mapping[int, int],
    tick: float,
) -> Optional[float]:
    """Return the time of the measured tree, or None when a root had ended and nobody knows.

    When the only root had ended and its parent has waited for it, its time is what the parent
    gained in children's time.
    """
    roots = kernel.roots_of(pids)
    if set(roots) <= set(members):
        return sum(used[pid] for pid in members)
    root = roots[0]
    # its parent is the agent, or a trial's warden
    parent = before[root].parent if root in before else 0
    if len(roots) > 1 or root in after or parent not in before or parent not in after:
        return None  # what the others used would look like a disturbance
    if before[parent].started != after[parent].started:
        return None
    return _childrens(before[parent], after[parent], handed) * tick


def metrics(record: Mapping[str, Any]) -> List[Row]:
    """Return CPU time of the workload (s), and shares (of 1) of the cell's CPUs' time."""
    disturbance = record["disturbance"]
    capacity = record["elapsed_s"] * len(cpulist.parse(disturbance["cpus"]))
    ended, unknown = reason("workload-had-ended"), reason("cell-cpus-unknown")

    def share(name: str, seconds: float) -> Row:
        value = seconds / capacity if capacity else None
        return row(name, value, "share", unknown, source=SOURCE)

    return [
        row("workload_cpu_time", record["tree_s"], "s", ended, source=SOURCE),
        share("cpu_busy_share", disturbance["busy_s"]),
        share("cpu_steal_share", disturbance["steal_s"]),
        row("other_cpu_share", disturbance["other_share"], "share",
            ended if capacity else unknown, source=SOURCE),
    ]  # fmt: skip
