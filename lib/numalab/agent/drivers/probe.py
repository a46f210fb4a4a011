"""The probe: driver of numalab's own C program.

The source is shipped and compiled on the host by its own compiler (``agent/compiled.py``). What the
program measures and how is written at the head of each file of ``agent/probe/``; what it prints
is read by ``probe_output``.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from .. import compiled, cpulist, kernel
from ..contract import (
    HANDSHAKE,
    Cell,
    Driver,
    Host,
    Prepared,
    Reason,
    Record,
    Row,
    Sample,
    Timing,
    ToolRecord,
    Tour,
    reason,
)
from ..errors import Fault, NotHere
from ..probe import PROGRAM
from ..rows import row
from . import core_choice, probe_output
from . import options as check
from .options import Options

_PAGES = ("auto", "default", "base", "thp", "hugetlb")
_OPTIONS = (
    "mode", "array", "bytes", "repeat", "seconds", "threads", "delays", "mixes", "pages",
    "max_cpus", "path", "tour_s",
)  # fmt: skip
_MIB = 1 << 20
_TIMES_CACHES = re.compile(r"(\d+(?:\.\d+)?)\s*x-llc\Z")
_CACHES_UNKNOWN = 1 << 30  # bytes in place of four times the caches: more than most hosts'
_PAIR_S = 0.004  # of core-to-core latency, on a quiet host
_PAIRS_MISSING = 0.1  # share without a figure from which the picture of a host is not one
_HUGE_WANTED = 0.9  # share of the huge pages asked for with which a chase is one with huge pages
_MOST_OF_MEMORY = 0.8
_ON_TOUR = ("latency", "bandwidth")
_LEAST_VISIT_S = 0.06  # of measuring
_LEAST_POINT_S = 0.15  # of a delay and mix
# Of a configured memory timing: it has no noise, and 1 s of four busy CPUs takes minutes.
_MODEL_S = {"latency": 0.1, "loaded": 0.1, "bandwidth": 0.02}
# For estimates: to move to another cell and prove its placement twice; to warm up for a point.
_VISIT_S, _SETTLE_S = 0.05, 0.02
_START_S = 0.3  # a trial's start and end
# Buffers of each mode, in sizes of one; those that are chased have the index that builds the chase.
_BUFFERS = {"stream": 3, "latency": 1.0625, "loaded": 2.0625, "bandwidth": 1}

# For estimates only: what one thread does, and how many help.
_TOUCH_BYTES_S, _MOVE_BYTES_S, _HELP = 1.5e9, 8e9, 8


def find(options: Options) -> ToolRecord:
    """Return the probe's path and version; it is put there when that has not been done yet.

    A probe that is there already is used when the option ``path`` or NUMALAB_PROBE names it.
    Raises Fault when the named one is not a probe, there is no compiler, or compiling fails.
    """
    return compiled.find(PROGRAM, options.get("path"))


class Probe(Driver):
    """STREAM kernels, idle and loaded latency, bandwidth, and latency between cores."""

    name = "probe"
    protocol = HANDSHAKE

    def find(self, options: Options) -> ToolRecord:
        return find(options)

    def prepare(self, options: Options, host: Host, cpus: str, memory_nodes: str) -> Prepared:
        """Return the options that the mode uses, as numbers.

        ``array`` (stream) and ``bytes`` (latency, loaded, bandwidth) are a number of bytes, a
        text like 64MiB, or 4x-llc: four times the sum of the caches from the second level on that
        the measuring CPUs use (STREAM's run rules ask for the last level; others keep no copy of
        the second in it), and 256 MiB at least where a last level may be hidden. No size takes
        more than 80 % of what the nodes can give; a note says when the rule was not met. Raises
        Fault for an unknown or bad option, and for a mode that needs more CPUs than there are.
        """
        check.known(self.name, options, _OPTIONS)
        mode = check.choice("mode", options.get("mode", "stream"), probe_output.MODES)
        numbers = cpulist.parse(cpus)
        if mode in ("core-to-core", "loaded") and len(numbers) < 2:
            raise NotHere(reason("needs-two-cpus", mode=mode))
        if mode == "core-to-core":
            if host.timed:
                raise NotHere(reason("needs-a-finer-model"))
            return _core_to_core(options, host, numbers)
        threads = 1 if mode == "latency" else options.get("threads", "all")
        threads = check.threads(threads, cpus, host, one_a_cpu=True)
        if mode == "loaded" and threads < 2:
            raise Fault(reason("needs-two-threads"))
        if mode == "loaded" and len(host.cores_of(host.order(numbers)[:threads])) < 2:
            raise NotHere(reason("needs-two-cores"))
        out: Dict[str, Any] = {
            "mode": mode,
            "threads": threads,
            "pages": check.choice("pages", options.get("pages", "auto"), _PAGES),
        }
        huge = kernel.huge_page_bytes(host.root) if out["pages"] in ("auto", "thp") else 0
        if mode in ("latency", "loaded"):
            out["huge_page_bytes"] = huge  # of the pages asked for; 0: the host has none
        out.update(_repetition(options, mode, host.timed))
        # Only the caches of the measuring CPU matter to the chase of an idle host.
        measuring = cpulist.format(numbers[:1]) if mode == "latency" else cpus
        name = "array" if mode == "stream" else "bytes"
        out[name], notes = _size(
            name, options.get(name, "4x-llc"), check.caches(host, measuring),
            _available(host, memory_nodes), _BUFFERS[mode], 65536 * threads, huge or 2 * _MIB,
        )  # fmt: skip
        return Prepared(out, int(_BUFFERS[mode] * out[name]), notes)

    def argv(self, found: ToolRecord, options: Options, cell: Cell) -> List[str]:
        """Return the command line.

        A cell without CPUs of its own (unbound) leaves its threads to the kernel; the threads of
        all others are pinned one to a CPU, in the order that the probe describes.
        """
        mode = options["mode"]
        words = [str(found.path), mode]
        if isinstance(cell, Tour):  # visit() gives the sizes
            words += ["--tour", "--pages", options["pages"]]
        elif mode != "core-to-core":
            words += ["--bytes", str(options["array" if mode == "stream" else "bytes"])]
            words += ["--pages", options["pages"], "--pin", "none" if cell.cpus is None else "cpu"]
        if "threads" in options and mode != "latency" and not isinstance(cell, Tour):
            words += ["--threads", str(options["threads"])]
        if "repeat" in options:
            words += ["--repeats", str(options["repeat"])]
        if "seconds" in options:
            words += ["--seconds", f"{options['seconds']:.6f}".rstrip("0").rstrip(".")]
        if "cpus" in options:
            words += ["--cpus", options["cpus"]]
        if "clock_later" in options:
            words.append("--clock-later")
        for name in ("delays", "mixes"):
            if name in options:
                words += [f"--{name}", ",".join(map(str, options[name]))]
        return words

    def timing(self, options: Options) -> Timing:
        """Return the planned seconds; the first touch of the buffers counts as warm-up."""
        mode = options["mode"]
        if mode == "core-to-core":
            cpus = len(cpulist.parse(options["cpus"]))
            return Timing(0.1, 0.0, round(cpus * (cpus - 1) / 2 * _PAIR_S, 3))
        size = options["array" if mode == "stream" else "bytes"]
        if mode == "stream":
            helpers = min(options["threads"], _HELP)
            measure = 20.0 * size * options["repeat"] / (_MOVE_BYTES_S * helpers)
            warmup = 3 * size / (_TOUCH_BYTES_S * helpers)
        else:
            points = len(options.get("delays") or [0]) * len(options.get("mixes") or [0])
            measure = options["seconds"] + 0.1 * points
            warmup = size / _TOUCH_BYTES_S
            if mode != "bandwidth":
                warmup += size / 64 * 25e-9 + 0.5
        return Timing(0.1, round(warmup, 3), round(measure, 3))

    def tour(self, options: Options) -> str:
        """Return the mode where ``tour_s`` asks for a tour through all cells of that mode."""
        return str(options["mode"]) if "tour_s" in options else ""

    def on_tour(self, cells: Sequence[Cell]) -> Tuple[List[Cell], Timing]:
        """Return the cells with their part of ``tour_s``, or ``seconds`` where that is less."""
        each = max(_LEAST_VISIT_S, cells[0].options["tour_s"] / len(cells))
        each = min(cells[0].options["seconds"], each)
        points = len(cells[0].options.get("mixes") or ["anywhere", "within the TLB's reach"])
        measure = max(each, 0.03 * points) + _SETTLE_S * points + _VISIT_S
        timing = Timing(0.0, 0.0, round(measure, 3), round(measure, 3))
        visits = [
            replace(one, options={**one.options, "seconds": round(each, 3)}, timing=timing)
            for one in cells
        ]
        buffers = {one.memory.nodes: self.timing(one.options).warmup_s for one in cells}
        whole = (0.1, sum(buffers.values()), measure * len(cells))
        return visits, Timing(*(round(s, 3) for s in (*whole, sum(whole) + _START_S)))

    def visit(self, cell: Cell) -> str:
        threads = cell.options["threads"]
        size = cell.options["bytes"]
        return f"visit {cell.id} {cell.cpu_order} {threads} {cell.memory.nodes} {size}"

    def parse(self, text: str) -> List[Record]:
        return probe_output.parse(text)

    def metrics(self, records: Sequence[Record]) -> List[Row]:
        """Return what was measured; units and points as ``probe_output`` says."""
        return [
            replace(one, cell=visit)
            for visit, own in _visits(records)
            for placed_bytes in [_placed(own)]
            for record in own
            for one in _rows(record, placed_bytes)
        ]

    def unverified(self, records: Sequence[Record], options: Options) -> Optional[Reason]:
        """Return why a chase was not with huge pages or not alone, or that pairs are missing."""
        setup, huge = check.first_of(records, "setup"), options.get("huge_page_bytes")
        got, placed = setup["transparent_huge_bytes"], _placed(records)
        known = huge and setup["bytes"] >= huge and got is not None and placed
        if known and got < _HUGE_WANTED * placed:
            return reason("huge-pages-not-got", share=got / placed, pages=setup["pages"])
        if setup["mode"] == "loaded" and any(
            r["pinned"] is None for r in records if r["kind"] == "thread"
        ):
            return reason("chaser-not-alone")
        pairs = [r for r in records if r["kind"] == "core_latency"]
        missing = sum(r["median_ns"] is None for r in pairs)
        if missing > _PAIRS_MISSING * len(pairs):
            return reason("pairs-missing", missing=missing, pairs=len(pairs))
        return None

    def samples(self, records: Sequence[Record]) -> List[Sample]:
        """Return the samples within a run.

        Of stream every repeat of every kernel, the first included; of latency and bandwidth every
        sample.
        """
        return [
            replace(one, cell=visit)
            for visit, own in _visits(records)
            for one in self._samples(own)
        ]

    def _samples(self, records: Sequence[Record]) -> List[Sample]:
        out: List[Sample] = []
        kernels = [record for record in records if record["kind"] == "stream"]
        t = 0.0
        for times in zip(*(one["times_s"] for one in kernels)):
            for one, took in zip(kernels, times):
                t += took
                out.append(Sample(t, one["kernel"], one["bytes"] / took / 1e9, "GB/s"))
        for record in records:
            if record["kind"] == "latency":
                for ns in record["samples_ns"]:
                    t += ns * 1e-9 * record["accesses_per_sample"]
                    out.append(Sample(t, _latency(record), ns, "ns"))
            elif record["kind"] == "bandwidth":
                for gbs in record["samples_gbs"]:
                    t += check.first_of(records, "setup")["sample_s"]
                    out.append(Sample(t, "bandwidth", gbs, "GB/s", record["mix"]))
        return out


def _visits(records: Sequence[Record]) -> Iterator[Tuple[str, List[Record]]]:
    """Yield the records of each visit of a tour with its cell; without a tour all, with ""."""
    for visit, own in itertools.groupby(records, lambda record: record.get("visit", "")):
        yield visit, list(own)


def _latency(record: Record) -> str:
    """Return the metric of a chase, by whether its accesses stay within the reach of the TLB."""
    return "tlb_local_latency" if record["tlb_local"] else "idle_latency"


def _repetition(options: Options, mode: str, timed: bool) -> Dict[str, Any]:
    """Return how often or how long is measured, and at which points.

    ``timed``: the memory's timing is that of a model.
    """
    if mode == "stream":
        return {"repeat": check.whole("repeat", options.get("repeat", 10), 2, 10000)}
    out: Dict[str, Any] = {"seconds": check.seconds("seconds", options.get("seconds", 2))}
    if timed:
        out["seconds"] = min(out["seconds"], _MODEL_S[mode])
    if "tour_s" in options and mode in _ON_TOUR:
        out["tour_s"] = check.seconds("tour_s", options["tour_s"])
    if mode == "loaded":
        delays = check.several("delays", options.get("delays", [0]))
        out["delays"] = [check.whole("delays", delay, 0, 10**8) for delay in delays]
    if mode in ("loaded", "bandwidth"):
        mixes = check.several("mixes", options.get("mixes", ["reads"]))
        out["mixes"] = [check.choice("mixes", mix, probe_output.MIXES) for mix in mixes]
    if mode == "loaded" and timed:
        out["clock_later"] = True  # the model's: it starts with the measurement
    elif mode == "loaded":
        points = len(out["delays"]) * len(out["mixes"])
        out["seconds"] = max(out["seconds"], round(_LEAST_POINT_S * points, 3))
    return out


def _core_to_core(options: Options, host: Host, cpus: List[int]) -> Prepared:
    """Return the CPUs every two of which are measured, as far as ``seconds`` allows."""
    if options.get("max_cpus") is not None:
        cpus = host.order(cpus)[: check.whole("max_cpus", options["max_cpus"], 2, 8192)]
    seconds = check.seconds("seconds", options.get("seconds", 2))
    chosen, notes = core_choice.choose(host, cpus, int(seconds / _PAIR_S))
    out = {"mode": "core-to-core", "seconds": seconds, "cpus": cpulist.format(chosen)}
    return Prepared(out, len(chosen) * 65536, notes)


def _size(
    name: str,
    asked: Any,
    caches: check.Caches,
    available: Optional[int],
    buffers: float,
    least: int,
    unit: int,
) -> Tuple[int, Tuple[Reason, ...]]:
    """Return the size of one buffer in bytes and the notes on it.

    Large ones are whole units (the bytes of a huge page), so that huge pages can hold all of it.
    """
    times = _TIMES_CACHES.match(asked) if isinstance(asked, str) else None
    outer = caches.outer
    if times:
        size = int(float(times[1]) * outer) if outer else _CACHES_UNKNOWN
        size = max(size, check.HIDDEN_CACHE if caches.hidden else 0)
        size = -(-size // unit) * unit if size >= min(64 * _MIB, unit) else size
    else:
        size = check.size(name, asked, also=", or 4x-llc")
    why = reason("size-asked-for", asked=asked)
    most = None if available is None else int(_MOST_OF_MEMORY * available / buffers)
    if available is not None and most is not None and size > most:
        why = reason("memory-limits-size", available=available, share=_MOST_OF_MEMORY)
        size = most
    size = max(size // unit * unit if size >= max(64 * _MIB, unit) else size // 4096 * 4096, least)
    what = "array" if name == "array" else "buffer"
    if not outer:
        return size, (reason("llc-unknown", what=what, bytes=size),)
    if caches.hidden and size < check.HIDDEN_CACHE:
        return size, (reason("below-hidden-cache", what=what, bytes=size, why=why),)
    if size < 4 * outer // 4096 * 4096:
        given = {"what": what, "bytes": size, "times": size / outer, "why": why}
        return size, (reason("below-four-caches", **given),)
    return size, (reason("llc-hidden", what=what, bytes=size),) if caches.hidden else ()


def _available(host: Host, memory_nodes: str) -> Optional[int]:
    """Return the bytes that these nodes can give (page cache makes room), or None."""
    wanted = set(cpulist.parse(memory_nodes))
    with_memory = {node.number for node in host.nodes if node.memory_bytes != 0}
    if with_memory <= wanted and host.available_bytes is not None:
        return host.available_bytes
    total = 0
    for node in host.nodes:
        if node.number in wanted:
            if node.free_bytes is None:
                return None
            total += node.free_bytes + (node.page_cache_bytes or 0)
    return total


def _placed(records: Sequence[Record]) -> int:
    """Return the bytes of all buffers at the start: loaded has two."""
    ready = (r for r in records if r["kind"] == "placement" and r["when"] == "ready")
    return sum(r["bytes"] or 0 for r in ready)


def _rows(record: Record, placed_bytes: int) -> List[Row]:
    """Return the metrics of one record, in the order of the output."""
    kind = record["kind"]
    if kind == "setup" and record["mode"] in ("latency", "loaded", "bandwidth"):
        huge = record["transparent_huge_bytes"]
        share = None if huge is None or not placed_bytes else huge / placed_bytes
        share = 1.0 if record["pages"] == "hugetlb" else share
        return [row("huge_page_share", share, "share", "huge-pages-unknown")]
    if kind == "setup" and record["mode"] == "stream" and not record["non_temporal"]:
        return [row(n, None, "GB/s", "no-non-temporal-stores") for n in probe_output.NON_TEMPORAL]
    if kind == "stream":
        return [row(record["kernel"], record["best_gbs"], "GB/s")]
    if kind == "latency":
        return [row(_latency(record), record["median_ns"], "ns")]
    if kind == "loaded":
        point, x = f"{record['mix']} delay={record['delay']}", record["delay"]
        drawn = record["median_gbs"] or None
        return [
            row("loaded_latency", record["median_ns"], "ns", point=point, x=x),
            row("loaded_bandwidth", drawn, "GB/s", "readers-not-run", point=point, x=x),
        ]
    if kind == "bandwidth":
        return [row("bandwidth", record["median_gbs"], "GB/s", point=record["mix"])]
    if kind == "core_latency":
        one, other = record["from"], record["to"]
        why = reason("tool-said", text=record["reason"])
        point = f"{one}-{other}"
        return [row("core_latency", record["median_ns"], "ns", why, point=point, x=one, y=other)]
    return []
