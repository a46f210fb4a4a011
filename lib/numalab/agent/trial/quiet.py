"""Is anybody else at work on this host? Asked before the first trial and before each block."""

from __future__ import annotations

import os
import re
import time
from typing import Callable, List, Mapping, Optional, Set

from .. import cpulist, kernel
from ..collectors import cpu
from ..contract import Reason, reason
from ..errors import Fault

LIMIT = 0.05  # of the time of the CPUs that may be used
WAIT_S = 30.0  # how long all blocks of a run together wait for others to end
_LOOK_S = 0.4  # at least 40 ticks of /proc/stat a CPU
PATIENCE_S = 5.0  # before a run is refused: what just ends is nobody's work

# Servers that keep memory and wake up even when nobody asks them: names as in /proc/PID/stat.
_SERVERS = re.compile(
    r"mysqld|mariadbd|postgres|postmaster|oracle|ora_pmon_.*|mongod|mongos|redis-server"
    r"|valkey-server|keydb-server|memcached|sqlservr|db2sysc|clickhouse-serv|cockroach|scylla"
)


def busy(patience_s: Optional[float] = None) -> List[Reason]:
    """Return what else is at work on this host, named, before anything is measured; [] for nothing.

    That is others' use of more than LIMIT of the CPUs for some seconds, and any database
    server: an idle one too, since it wakes up when it likes.
    """
    until = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
    others = others_at_work()
    while others and time.monotonic() < until:
        others = others_at_work()
    return [one for one in (others, servers()) if one]


def others_at_work() -> Optional[Reason]:
    """Return who uses more than LIMIT of the CPUs just now, beside the measuring itself."""
    cpus = cpulist.format(os.sched_getaffinity(0))
    before = cpu.snapshot()
    time.sleep(_LOOK_S)
    after = cpu.snapshot()
    found = cpu.difference(
        before, after, os.getpid(), cpus, _our_own(after.processes), beside=True
    )["disturbance"]
    share = found["other_share"]
    if share is None or share <= LIMIT:
        return None
    names = list(dict.fromkeys(one["name"] for one in found["busiest"]))
    return reason("host-busy", share=round(min(share, 1.0), 3), names=names[:3])


def servers() -> Optional[Reason]:
    """Return the database servers that run on this host and are none of our own, or None."""
    table = kernel.processes()
    ours = _our_own(table)
    names = {one.name for pid, one in table.items() if pid not in ours and not one.ended}
    found = sorted(name for name in names if _SERVERS.fullmatch(name))
    return reason("servers-running", names=", ".join(found)) if found else None


def _our_own(table: Mapping[int, kernel.Stat]) -> Set[int]:
    """This process, all above it (whoever started it waits), and what that one and it started."""
    here, parent = os.getpid(), os.getppid()
    ours = {here, *kernel.descendants(here, table)}
    if parent > 1:
        ours.update(kernel.descendants(parent, table))
    while parent > 1 and parent in table:
        ours.add(parent)
        parent = table[parent].parent
    return ours


def refuse(found: List[Reason]) -> None:
    """Raise Fault for what `busy` found."""
    if found:
        raise Fault(
            reason("nothing-while-busy", reasons=found),
            "wait, stop it, or use --busy to measure anyway (this is recorded)",
        )


class Quiet:
    """Looks before each block whether the host is quiet, and waits for it, up to WAIT_S a run."""

    def __init__(self, known: bool, stopped: Callable[[], bool], wait_s: float = WAIT_S) -> None:
        self.known = known  # that it is busy: then nothing is waited for, and the run says so
        self.stopped = stopped
        self.left_s = wait_s

    def before_block(self) -> List[Reason]:
        """Return what must be said of the trials of the block that begins now."""
        while not self.known:
            began = time.monotonic()
            others = others_at_work()
            if not others:
                break
            self.left_s -= time.monotonic() - began
            if self.left_s <= 0 or self.stopped():
                return [others]
        return []
