"""The thread that looks at the counters while a trial is measured."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

from .. import cpulist, kernel
from ..contract import Sample
from ..errors import NotHere
from . import cpu, meminfo, numastat
from .snapshots import change, pairs

_LOWEST = 19  # of nice(2)


def other_cpus(cell_cpus: Optional[str]) -> Optional[List[int]]:
    """Return the CPUs we may use that are not the cell's; None where there are none."""
    if not cell_cpus:
        return None
    return sorted(os.sched_getaffinity(0) - set(cpulist.parse(cell_cpus))) or None


class _Look(NamedTuple):
    """What the counters said at one moment; empty where they cannot be read."""

    at: float
    nodes: Any
    cpus: Any
    memory: Any


class Sampler(threading.Thread):
    """Reads numastat and the cell's CPU time every interval, what changed since the last, and
    what each node's memory holds then."""

    def __init__(self, root: str, cell_cpus: Optional[str], interval_s: float) -> None:
        super().__init__(daemon=True, name="numalab-sampler")
        self._root = root
        self._cell_cpus = cell_cpus
        self._interval_s = interval_s
        self._ending = threading.Event()
        self._nodes: List[int] = []
        self._samples: List[Sample] = []
        self._cpu_s = 0.0

    def run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
        others = other_cpus(self._cell_cpus)
        if others:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, others)
        began = time.monotonic()
        self._nodes = kernel.list_nodes(self._root)
        earlier = self._look()
        self._keep(0.0, meminfo.SOURCE, meminfo.levels(earlier.memory))
        self._cpu_s = time.thread_time()
        due = began + self._interval_s
        while not self._ending.wait(max(0.0, due - time.monotonic())):
            now = self._look()
            self._compare(now.at - began, earlier, now)
            earlier = now
            self._cpu_s = time.thread_time()
            # A look that came late is not made up for, and looking takes a quarter of the time at
            # most: in an emulated host it can take a tenth of a second.
            done = time.monotonic()
            due = max(due + self._interval_s, done + 3 * (done - now.at))

    def _look(self) -> _Look:
        at = time.monotonic()
        return _Look(
            at,
            _or_nothing(lambda: numastat.snapshot(self._root)),
            _or_nothing(lambda: cpu.per_cpu(self._root)),
            _or_nothing(lambda: meminfo.snapshot(self._root, self._nodes)),
        )

    def _compare(self, t_s: float, earlier: _Look, now: _Look) -> None:
        pages = [
            (name, f"node {node}", change(pair), "pages")
            for node, counters in pairs(earlier.nodes, now.nodes).items()
            for name, pair in counters.items()
        ]
        self._keep(t_s, numastat.SOURCE, pages)
        share = cpu.busy_share(earlier.cpus, now.cpus, self._cell_cpus)
        if share is not None:
            self._keep(t_s, cpu.SOURCE, [("cpu_busy_share", "", share, "share")])
        self._keep(t_s, meminfo.SOURCE, meminfo.levels(now.memory))

    def _keep(self, t_s: float, source: str, rows: List[Tuple[str, str, float, str]]) -> None:
        for metric, point, value, unit in rows:
            self._samples.append(Sample(round(t_s, 3), metric, value, unit, point, source))

    def end(self) -> Tuple[List[Sample], float]:
        """Return the samples and the CPU time (s) that taking them used."""
        self._ending.set()
        self.join(timeout=2)
        return list(self._samples), round(self._cpu_s, 6)


def _or_nothing(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (NotHere, ValueError):
        return {}
