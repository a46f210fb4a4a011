"""What else happened while a trial was measured: counters read before and after, and perf.

The measured program must not notice: counters are read before the measurement and after it, perf
counts in the kernel, and the only thing that runs meanwhile is one thread that wakes every
``interval_s``, outside the cell's CPUs where there are others, at the lowest priority. What the
collecting itself used is in the record as ``self``. A collector that fails costs its own values
and nothing else: the record then holds None for it and the reason under ``reasons``.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from typing import Any, Dict, List, Optional

from ..trial import proof

_UNSET = object()
_LOWEST = 19  # of nice(2)


class Unavailable(Exception):
    """A collector has no values here; the text is the reason."""


def read(root: str, path: str, default: Any = _UNSET) -> str:
    """Return the text of a file under a root; ``default``, if given, where it cannot be read.

    Raises Unavailable with the reason otherwise.
    """
    full = os.path.join(root, path)
    try:
        with open(full, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError as error:
        if default is not _UNSET:
            return default
        raise Unavailable(f"cannot read {full}: {error.strerror}") from None


def row(
    source: str,
    metric: str,
    value: Optional[float],
    unit: str,
    *,
    point: str = "",
    x: Optional[float] = None,
    reason: Optional[str] = None,
) -> Dict[str, Any]:
    """Return one metric row; a row without a value must say why."""
    if value is None and not reason:
        raise ValueError(f"{metric} has no value and no reason")
    return {
        "metric": metric,
        "value": None if value is None else float(value),
        "unit": unit,
        "point": point,
        "x": x,
        "y": None,
        "reason": reason,
        "source": source,
    }


def changes(pair: List[int]) -> float:
    """Return after - before."""
    return float(pair[1] - pair[0])


NODES = "sys/devices/system/node"


def nodes(root: str = "/") -> List[int]:
    """Return the numbers of the host's nodes, ascending; Unavailable where sysfs shows none."""
    try:
        names = os.listdir(os.path.join(root, NODES))
    except OSError as error:
        raise Unavailable(f"no NUMA nodes in sysfs ({error.strerror})") from None
    found = sorted(int(name[4:]) for name in names if re.fullmatch(r"node\d+", name))
    if not found:
        raise Unavailable("no NUMA nodes in sysfs")
    return found


def changes_by_node(before: Dict[str, Any], after: Dict[str, Any]) -> Dict[str, Any]:
    """Return ``{node: {name: [before, after]}}`` of what both snapshots hold."""
    return {
        node: {name: [value, after[node][name]] for name, value in values.items()}
        for node, values in before.items()
        if node in after
    }


from . import cpu, meminfo, numastat, perf, resctrl, vmstat  # noqa: E402  (they use the above)

SCHEMA = 2  # 1: no meminfo, fewer rows of vmstat, samples without their source
_COUNTERS = (numastat, vmstat, meminfo, resctrl)


def aside(cell_cpus: Optional[str]) -> Optional[List[int]]:
    """Return the CPUs we may use that are not the cell's; None where there are none."""
    if not cell_cpus:
        return None
    from .. import cpulist

    others = os.sched_getaffinity(0) - set(cpulist.parse(cell_cpus))
    return sorted(others) or None


def _shares_cpus(cell: Dict[str, Any]) -> bool:
    """Tell whether a tool's client was given CPUs that are the cell's too."""
    from .. import cpulist

    its = set(cpulist.parse((cell.get("options") or {}).get("client_cpus") or ""))
    return bool(its) and (not cell.get("cpus") or bool(its & set(cpulist.parse(cell["cpus"]))))


class Collection:
    """A running collection of one trial; ``start`` makes it, ``stop`` ends it."""

    def __init__(self, cell: Dict[str, Any], pids: proof.Pids, options: Dict[str, Any]) -> None:
        started = time.monotonic()
        self._cell = cell
        self._pids = pids
        self._root = options.get("root") or "/"
        self._reasons: Dict[str, str] = {}
        self._before: Dict[str, Any] = {}
        self._perf: Dict[str, perf.Counting] = {}  # by instance; "" of all
        self._sampler: Optional[_Sampler] = None
        if options.get("perf", True):
            made: Dict[str, Any] = {}
            self._try(made, perf.SOURCE, lambda: self._start_perf(options))
        else:
            self._reasons[perf.SOURCE] = "not asked for"
        for module in (cpu, *_COUNTERS):
            self._try(self._before, module.SOURCE, lambda m=module: m.snapshot(self._root))
        self._started = time.monotonic()
        self._start_s = self._started - started
        if options.get("interval_s"):
            self._sampler = _Sampler(self._root, cell.get("cpus"), float(options["interval_s"]))
            self._sampler.start()

    def _start_perf(self, options: Dict[str, Any]) -> None:
        instances = options.get("instances") or ()
        table = proof.processes(os.path.join(self._root, "proc"))
        roots = dict(zip(instances, proof.roots_of(self._pids))) or {"": self._pids}
        for name, pids in roots.items():
            members = proof.tree(pids, table)
            if not members:
                raise Unavailable("the workload had ended when perf was to be attached")
            where = aside(self._cell.get("cpus"))
            software = bool(options.get("software_events", True))
            self._perf[name] = perf.Counting(members, self._root, where, software)

    def _try(self, into: Dict[str, Any], name: str, what: Any) -> None:
        try:
            into[name] = what()
        except Unavailable as why:
            self._reasons[name] = str(why)
        except Exception as error:  # whatever a strange host does, the trial goes on
            self._reasons[name] = f"{type(error).__name__}: {error}"

    def stop(self) -> Dict[str, Any]:
        """End the collection and return its record (JSON-able). Never raises; takes seconds at
        most, also when perf hangs."""
        for counting in self._perf.values():
            with contextlib.suppress(OSError):
                counting.interrupt()  # first, so that it counts nothing of what follows
        measured_s = time.monotonic() - self._started
        stopping = time.monotonic()
        samples, sampling_s = self._sampler.end() if self._sampler else ([], None)
        after: Dict[str, Any] = {}
        record: Dict[str, Any] = {"schema": SCHEMA, "collected_s": round(measured_s, 6)}
        for module in (*_COUNTERS, cpu):
            name = module.SOURCE
            if name in self._before:
                self._try(after, name, lambda m=module: m.snapshot(self._root))
        for module in _COUNTERS:
            name = module.SOURCE
            if name in after:
                self._try(
                    record,
                    name,
                    lambda m=module, n=name: m.difference(self._before[n], after[n]),
                )
        if cpu.SOURCE in after:
            own = proof.tree(os.getpid(), after["cpu"]["processes"])  # wardens, perf, clients
            self._try(
                record,
                cpu.SOURCE,
                lambda: cpu.difference(
                    self._before["cpu"],
                    after["cpu"],
                    self._pids,
                    self._cell.get("cpus"),
                    own,
                    _shares_cpus(self._cell),
                ),
            )
        found: Dict[str, Any] = {}
        for name, counting in self._perf.items():
            self._try(found, name, counting.result)
            if name in self._reasons:
                self._reasons[perf.SOURCE] = self._reasons.pop(name)
        if "" in found:
            record[perf.SOURCE] = found[""]
        elif found:
            record[perf.SOURCE] = {"instances": found}
        for name in (*(module.SOURCE for module in _COUNTERS), cpu.SOURCE, perf.SOURCE):
            record.setdefault(name, None)
        record["disturbance"] = record["cpu"].pop("disturbance") if record["cpu"] else None
        record["samples"] = samples
        record["self"] = {
            "start_s": round(self._start_s, 6),
            "stop_s": round(time.monotonic() - stopping, 6),
            "sampling_cpu_s": sampling_s,
            "perf_cpu_s": sum(counting.cpu_s or 0.0 for counting in self._perf.values())
            if self._perf
            else None,
        }
        record["reasons"] = self._reasons
        return record


def start(
    cell: Dict[str, Any], pids: proof.Pids, options: Optional[Dict[str, Any]] = None
) -> Collection:
    """Start collecting around a workload that waits to be told to measure (or runs already).

    ``cell`` is as in the plan, ``pids`` the root of the measured tree, or several. Options:
    ``instances``, their names where each is to be counted by itself (``perf``),
    ``perf`` (default true), ``software_events`` (of perf, default true), ``interval_s`` (seconds
    between samples, default none), ``root`` (default "/"). Returns when everything counts; never
    raises.
    """
    return Collection(cell, pids, options or {})


def metrics(record: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return the metric rows of a collection's record, each with its ``source``.

    A collector without values gives one row without a value, named after it, with the reason.
    """
    rows: List[Dict[str, Any]] = []
    schema = record.get("schema", 1)
    for module in (numastat, vmstat, meminfo, cpu, perf, resctrl):
        name = module.SOURCE
        part = record.get(name)
        if module is meminfo and schema < 2:
            continue
        if part is None:
            reason = (record.get("reasons") or {}).get(name, "it was not collected")
            rows.append(row(name, name, None, "", reason=reason))
        elif module is cpu:
            rows += cpu.metrics({**part, "disturbance": record["disturbance"]})
        elif module is vmstat:
            rows += vmstat.metrics(part, schema)
        else:
            rows += module.metrics(part)
    return rows


def samples(record: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return the series: ``t_s`` since the start; per interval pages by node and busy share, and
    at each moment, the first included, ``free`` and ``page_cache`` bytes by node."""
    return list(record.get("samples") or [])


class _Sampler(threading.Thread):
    """Reads numastat and the cell's CPU time every interval, what changed since the last, and
    what each node's memory holds then."""

    def __init__(self, root: str, cell_cpus: Optional[str], interval_s: float) -> None:
        super().__init__(daemon=True, name="numalab-sampler")
        self._root = root
        self._cell_cpus = cell_cpus
        self._interval_s = interval_s
        self._ending = threading.Event()
        self._nodes: List[int] = []
        self._samples: List[Dict[str, Any]] = []
        self._cpu_s = 0.0

    def run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
        others = aside(self._cell_cpus)
        if others:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, others)
        began = time.monotonic()
        with contextlib.suppress(Unavailable):
            self._nodes = nodes(self._root)
        earlier = self._look()
        self._samples += _sampled(0.0, meminfo.SOURCE, meminfo.samples(earlier["memory"]))
        self._cpu_s = time.thread_time()
        due = began + self._interval_s
        while not self._ending.wait(max(0.0, due - time.monotonic())):
            now = self._look()
            self._samples += self._rows(now["at"] - began, earlier, now)
            earlier = now
            self._cpu_s = time.thread_time()
            # A look that came late is not made up for, and looking takes a quarter of the time at
            # most: in an emulated host it can take a tenth of a second.
            done = time.monotonic()
            due = max(due + self._interval_s, done + 3 * (done - now["at"]))

    def _look(self) -> Dict[str, Any]:
        seen: Dict[str, Any] = {"at": time.monotonic(), "nodes": {}, "cpus": {}, "memory": {}}
        with contextlib.suppress(Unavailable, ValueError):
            seen["nodes"] = numastat.snapshot(self._root)
        with contextlib.suppress(Unavailable, ValueError):
            seen["cpus"] = cpu.per_cpu(self._root)
        with contextlib.suppress(Unavailable, ValueError):
            seen["memory"] = meminfo.snapshot(self._root, self._nodes)
        return seen

    def _rows(self, t_s: float, earlier: Dict[str, Any], now: Dict[str, Any]) -> List[Any]:
        pages = [
            (name, f"node {node}", changes(pair), "pages")
            for node, counters in numastat.difference(earlier["nodes"], now["nodes"]).items()
            for name, pair in counters.items()
        ]
        share = cpu.busy_share(earlier["cpus"], now["cpus"], self._cell_cpus)
        busy = [] if share is None else [("cpu_busy_share", "", share, "share")]
        return [
            *_sampled(t_s, numastat.SOURCE, pages),
            *_sampled(t_s, cpu.SOURCE, busy),
            *_sampled(t_s, meminfo.SOURCE, meminfo.samples(now["memory"])),
        ]

    def end(self) -> Any:
        """Return the samples and the CPU time (s) that taking them used."""
        self._ending.set()
        self.join(timeout=2)
        return list(self._samples), round(self._cpu_s, 6)


def _sampled(t_s: float, source: str, rows: List[Any]) -> List[Dict[str, Any]]:
    return [
        {"t_s": round(t_s, 3), "source": source, "metric": metric, "point": point,
         "value": value, "unit": unit}
        for metric, point, value, unit in rows
    ]  # fmt: skip
