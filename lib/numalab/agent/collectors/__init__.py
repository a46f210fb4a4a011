"""What else happened while a trial was measured: counters read before and after, and perf.

The measured program must not notice: counters are read before the measurement and after it, perf
counts in the kernel, and the only thing that runs meanwhile is one thread that wakes every
``interval_s``, outside the cell's CPUs where there are others, at the lowest priority. What the
collecting itself used is in the record as ``self``. A collector that fails costs its own values
and nothing else: the record then holds None for it and the reason under ``reasons``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Union

from .. import cpulist, kernel
from ..contract import (
    SCHEMA,
    Cell,
    CollectorRequest,
    Reason,
    Row,
    Sample,
    from_json,
    reason,
    to_json,
)
from ..errors import Fault, NotHere
from ..rows import row
from . import cpu, meminfo, memory_model, numastat, perf, resctrl, traffic, vmstat
from .event_files import formulas
from .sampler import Sampler, other_cpus
from .snapshots import pairs
from .traffic import per_query

__all__ = ["Collection", "formulas", "metrics", "per_query", "samples", "start"]

_COUNTERS = (numastat, vmstat, meminfo, resctrl)
_SOURCES = (  # as their rows stand
    "numastat", "vmstat", "meminfo", "cpu", "perf", "traffic", "resctrl",
)  # fmt: skip


class Collection:
    """A running collection of one trial; ``start`` makes it, ``stop`` ends it."""

    def __init__(
        self, cell: Cell, pids: kernel.Pids, asked: CollectorRequest, root: str = "/"
    ) -> None:
        started = time.monotonic()
        self._cell, self._pids, self._root = cell, pids, root
        self._reasons: Dict[str, Reason] = {}
        self._perf: Dict[str, perf.Counting] = {}  # by instance; "" of all
        self._traffic: Optional[traffic.Counting] = None
        self._sampler: Optional[Sampler] = None
        if asked.perf:
            between = self._try(traffic.SOURCE, lambda: traffic.Counting(root))
            self._try(perf.SOURCE, lambda: self._start_perf(asked))
            if between:
                free = other_cpus(cell.cpus)
                self._traffic = self._try(traffic.SOURCE, lambda: between.start(free))
        else:
            self._reasons[perf.SOURCE] = self._reasons[traffic.SOURCE] = reason("not-asked-for")
        self._before = self._snapshots()
        self._started = time.monotonic()
        self._start_s = self._started - started
        if asked.interval_s:
            self._sampler = Sampler(root, cell.cpus, asked.interval_s)
            self._sampler.start()

    def _snapshots(self) -> Dict[str, Any]:
        readers: Dict[str, Callable[[str], Any]] = {
            module.SOURCE: module.snapshot for module in (cpu, *_COUNTERS)
        }
        return {
            name: self._try(name, functools.partial(read, self._root))
            for name, read in readers.items()
            if name not in self._reasons
        }

    def _start_perf(self, asked: CollectorRequest) -> None:
        table = kernel.processes(os.path.join(self._root, "proc"))
        roots: Dict[str, kernel.Pids] = dict(zip(asked.instances, kernel.roots_of(self._pids)))
        for name, pids in (roots or {"": self._pids}).items():
            members = kernel.tree(pids, table)
            if not members:
                raise NotHere(reason("workload-gone-before-perf"))
            free = other_cpus(self._cell.cpus)
            self._perf[name] = perf.Counting(members, self._root, free, asked.software_events)

    def _try(self, name: str, what: Callable[[], Any]) -> Any:
        """Return what a collector gives; None, and the reason is kept, where it fails."""
        try:
            return what()
        except Fault as fault:
            self._reasons[name] = fault.reason
        except Exception as error:  # whatever a strange host does, the trial goes on
            said = f"{type(error).__name__}: {error}"
            self._reasons[name] = reason("collector-failed", error=said)
        return None

    def stop(self) -> Dict[str, Any]:
        """End the collection and return its record (JSON-able). Never raises; takes seconds at
        most, also when perf hangs."""
        programs: List[Union[perf.Counting, traffic.Counting]] = [*self._perf.values()]
        if self._traffic:
            programs.append(self._traffic)
        for counting in programs:
            with contextlib.suppress(OSError):
                counting.interrupt()  # first, so that it counts nothing of what follows
        measured_s = time.monotonic() - self._started
        stopping = time.monotonic()
        series, sampling_s = self._sampler.end() if self._sampler else ([], None)
        before, after = self._before, self._snapshots()
        record: Dict[str, Any] = {"schema": SCHEMA, "collected_s": round(measured_s, 6)}
        for module in _COUNTERS:
            both = before.get(module.SOURCE) and after.get(module.SOURCE)
            record[module.SOURCE] = pairs(before[module.SOURCE], both) if both else None
        used = after.get(cpu.SOURCE) and self._try(cpu.SOURCE, lambda: self._cpu_record(after))
        record["disturbance"] = used.pop("disturbance") if used else None
        record[cpu.SOURCE] = used or None
        found = {name: self._try(perf.SOURCE, one.result) for name, one in self._perf.items()}
        counted = {name: result for name, result in found.items() if result is not None}
        instances = {"instances": counted} if counted else None
        record[perf.SOURCE] = found.get("") if "" in found else instances
        between = self._traffic
        record[traffic.SOURCE] = between and self._try(traffic.SOURCE, between.result)
        record["samples"] = to_json(series)
        own = [counting.cpu_s or 0.0 for counting in programs]
        record["self"] = {
            "start_s": round(self._start_s, 6),
            "stop_s": round(time.monotonic() - stopping, 6),
            "sampling_cpu_s": sampling_s,
            "perf_cpu_s": sum(own) if own else None,
        }
        record["reasons"] = to_json(self._reasons)
        return record

    def _cpu_record(self, after: Dict[str, Any]) -> Dict[str, Any]:
        now: cpu.Snapshot = after[cpu.SOURCE]
        own = kernel.tree(os.getpid(), now.processes)  # the trial's warden, perf, clients
        return cpu.difference(
            self._before[cpu.SOURCE], now, self._pids, self._cell.cpus, own,
            _shares_cpus(self._cell),
        )  # fmt: skip


def _shares_cpus(cell: Cell) -> bool:
    """Tell whether a tool's client was given CPUs that are the cell's too."""
    its = set(cpulist.parse(cell.options.get("client_cpus") or ""))
    return bool(its) and (not cell.cpus or bool(its & set(cpulist.parse(cell.cpus))))


def start(cell: Cell, pids: kernel.Pids, asked: CollectorRequest, root: str = "/") -> Collection:
    """Start collecting around a workload that waits to be told to measure (or runs already).

    ``pids`` is the root of the measured tree, or several; where ``asked`` names instances, each
    root is counted by itself. Returns when everything counts; never raises.
    """
    return Collection(cell, pids, asked, root)


def metrics(record: Mapping[str, Any], formulas: Mapping[str, str]) -> List[Row]:
    """Return the metric rows of a collection's record, each with its ``source``.

    ``formulas`` are those that were recorded with the run. A collector without values gives one
    row without a value, named after it, with the reason. Raises Fault for a damaged record.
    """
    seconds = record.get("collected_s")
    makers: Dict[str, Callable[[Any], List[Row]]] = {
        **{module.SOURCE: module.metrics for module in (numastat, vmstat, meminfo, traffic)},
        resctrl.SOURCE: lambda part: resctrl.metrics(part, seconds),
        cpu.SOURCE: lambda part: cpu.metrics({**part, "disturbance": record["disturbance"]}),
        perf.SOURCE: lambda part: perf.metrics(part, formulas, seconds),
    }
    rows: List[Row] = []
    try:
        for name in _SOURCES:
            part = record.get(name)
            if part is not None:
                rows += makers[name](part)
            else:
                why = record["reasons"].get(name, {"code": "not-collected", "fields": {}})
                rows.append(row(name, None, "", from_json(Reason, why), source=name))
        if record.get(memory_model.SOURCE):
            rows += memory_model.metrics(record[memory_model.SOURCE])
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise Fault(f"the record of the collectors is damaged ({error!r})") from None
    return rows


def samples(record: Mapping[str, Any]) -> List[Sample]:
    """Return the series: per interval pages by node and busy share, and at each moment, the first
    included, ``free`` and ``page_cache`` bytes by node. Raises Fault for a damaged record."""
    try:
        return [Sample(**one) for one in record["samples"]]
    except (LookupError, TypeError) as error:
        raise Fault(f"the samples of the collectors are damaged ({error!r})") from None
