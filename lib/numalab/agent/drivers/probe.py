"""The probe: driver of numalab's own C program.

The source is shipped and compiled on the host by its own compiler (``probe_build``). What the
program measures and how is written at the head of each file of ``agent/probe/``; what it prints
is read by ``probe_output``.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .. import cpulist
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
    reason,
)
from ..errors import Fault
from ..rows import row
from . import options as check
from . import probe_build, probe_output
from .options import Options

_PAGES = ("auto", "default", "base", "thp", "hugetlb")
_OPTIONS = (
    "mode", "array", "bytes", "repeat", "seconds", "threads", "delays", "mixes", "pages",
    "max_cpus", "path",
)  # fmt: skip
_MIB = 1 << 20
_TIMES_CACHES = re.compile(r"(\d+(?:\.\d+)?)\s*x-llc\Z")
_CACHES_UNKNOWN = 1 << 30  # bytes in place of four times the caches: more than most hosts'
_MOST_OF_MEMORY = 0.8
# Buffers of each mode, in sizes of one; those that are chased have the index that builds the chase.
_BUFFERS = {"stream": 3, "latency": 1.0625, "loaded": 2.0625, "bandwidth": 1}

# For estimates only: what one thread does, and how many help.
_TOUCH_BYTES_S, _MOVE_BYTES_S, _HELP = 1.5e9, 8e9, 8


def find(options: Options) -> ToolRecord:
    """Return the probe's path and version; it is compiled when that has not been done yet.

    A probe that is there already is used when the option ``path`` or NUMALAB_PROBE names it.
    Raises Fault when the named one is not a probe, there is no compiler, or compiling fails.
    """
    path = options.get("path") or os.environ.get("NUMALAB_PROBE")
    path = str(path or probe_build.build(probe_build.cache_folder()))
    said = check.answer(path, "--version").split()
    if said[:2] != ["numalab", "probe"] or len(said) != 3:
        raise Fault(f"{path} is not numalab's probe", "unset NUMALAB_PROBE to build it")
    return ToolRecord("probe", said[2], os.path.abspath(path))


class Probe(Driver):
    """STREAM kernels, idle and loaded latency, bandwidth, and latency between cores."""

    name = "probe"
    protocol = HANDSHAKE

    def find(self, options: Options) -> ToolRecord:
        return find(options)

    def prepare(self, options: Options, host: Host, cpus: str, memory_nodes: str) -> Prepared:
        """Return the options that the mode uses, as numbers.

        ``array`` (stream) and ``bytes`` (latency, loaded, bandwidth) are a number of bytes, a
        text like 64MiB, or 4x-llc: four times the sum of the last-level caches that the measuring
        CPUs use, as STREAM's run rules ask. No size takes more than 80 % of what the nodes can
        give; a note says when the rule was not met. Raises Fault for an unknown or bad option,
        and for a mode that needs more CPUs than there are.
        """
        check.known(self.name, options, _OPTIONS)
        mode = check.choice("mode", options.get("mode", "stream"), probe_output.MODES)
        numbers = cpulist.parse(cpus)
        if mode in ("core-to-core", "loaded") and len(numbers) < 2:
            raise Fault(reason("needs-two-cpus", mode=mode))
        if mode == "core-to-core":
            return _core_to_core(options, len(numbers))
        threads = 1 if mode == "latency" else options.get("threads", "all")
        threads = check.threads(threads, cpus, host, one_a_cpu=True)
        if mode == "loaded" and threads < 2:
            raise Fault(reason("needs-two-threads"))
        out: Dict[str, Any] = {
            "mode": mode,
            "threads": threads,
            "pages": check.choice("pages", options.get("pages", "auto"), _PAGES),
        }
        if mode == "stream":
            out["repeat"] = check.whole("repeat", options.get("repeat", 10), 2, 10000)
        else:
            out["seconds"] = check.seconds("seconds", options.get("seconds", 2))
        if mode == "loaded":
            delays = check.several("delays", options.get("delays", [0]))
            out["delays"] = [check.whole("delays", delay, 0, 10**8) for delay in delays]
        if mode == "bandwidth":
            mixes = check.several("mixes", options.get("mixes", ["reads"]))
            out["mixes"] = [check.choice("mixes", mix, probe_output.MIXES) for mix in mixes]
        # Only the caches of the measuring CPU matter to the chase of an idle host.
        measuring = cpulist.format(numbers[:1]) if mode == "latency" else cpus
        name = "array" if mode == "stream" else "bytes"
        out[name], notes = _size(
            name, options.get(name, "4x-llc"), check.last_level_caches(host, measuring),
            _available(host, memory_nodes), _BUFFERS[mode], 65536 * threads,
        )  # fmt: skip
        return Prepared(out, int(_BUFFERS[mode] * out[name]), notes)

    def argv(self, found: ToolRecord, options: Options, cell: Cell) -> List[str]:
        """Return the command line.

        A cell without CPUs of its own (unbound) leaves its threads to the kernel; the threads of
        all others are pinned one to a CPU, in the order that the probe describes.
        """
        mode = options["mode"]
        words = [str(found.path), mode]
        if mode != "core-to-core":
            words += ["--bytes", str(options["array" if mode == "stream" else "bytes"])]
            words += ["--pages", options["pages"], "--pin", "none" if cell.cpus is None else "cpu"]
        if "threads" in options and mode != "latency":
            words += ["--threads", str(options["threads"])]
        if "repeat" in options:
            words += ["--repeats", str(options["repeat"])]
        if "seconds" in options:
            words += ["--seconds", f"{options['seconds']:.6f}".rstrip("0").rstrip(".")]
        if "max_cpus" in options:
            words += ["--max-cpus", str(options["max_cpus"])]
        for name in ("delays", "mixes"):
            if name in options:
                words += [f"--{name}", ",".join(map(str, options[name]))]
        return words

    def timing(self, options: Options) -> Timing:
        """Return the planned seconds; the first touch of the buffers counts as warm-up."""
        mode = options["mode"]
        if mode == "core-to-core":
            pairs = options["cpu_count"] * (options["cpu_count"] - 1) / 2
            return Timing(0.1, 0.0, round(max(options["seconds"], pairs * 300e-6), 3))
        size = options["array" if mode == "stream" else "bytes"]
        if mode == "stream":
            helpers = min(options["threads"], _HELP)
            measure = 10.0 * size * options["repeat"] / (_MOVE_BYTES_S * helpers)
            warmup = 3 * size / (_TOUCH_BYTES_S * helpers)
        else:
            points = len(options.get("delays") or options.get("mixes") or [0])
            measure = max(options["seconds"], 0.15 * points) + 0.1 * points
            warmup = size / _TOUCH_BYTES_S
            if mode != "bandwidth":
                warmup += size / 64 * 25e-9 + 0.5
        return Timing(0.1, round(warmup, 3), round(measure, 3))

    def parse(self, text: str) -> List[Record]:
        return probe_output.parse(text)

    def metrics(self, records: Sequence[Record]) -> List[Row]:
        """Return what was measured; units and points as ``probe_output`` says."""
        ready = [r for r in records if r["kind"] == "placement" and r["when"] == "ready"]
        total = sum(r["bytes"] or 0 for r in ready)  # of all buffers: loaded has one a thread
        return [one for record in records for one in _rows(record, total)]

    def samples(self, records: Sequence[Record]) -> List[Sample]:
        """Return the samples within a run.

        Of stream every repeat of every kernel, the first included; of latency and bandwidth every
        sample.
        """
        out: List[Sample] = []
        kernels = [record for record in records if record["kind"] == "stream"]
        t = 0.0
        for times in zip(*(kernel["times_s"] for kernel in kernels)):
            for kernel, took in zip(kernels, times):
                t += took
                out.append(Sample(t, kernel["kernel"], kernel["bytes"] / took / 1e9, "GB/s"))
        for record in records:
            if record["kind"] == "latency":
                for ns in record["samples_ns"]:
                    t += ns * 1e-9 * record["accesses_per_sample"]
                    out.append(Sample(t, "idle_latency", ns, "ns"))
            elif record["kind"] == "bandwidth":
                for gbs in record["samples_gbs"]:
                    t += check.first_of(records, "setup")["sample_s"]
                    out.append(Sample(t, "bandwidth", gbs, "GB/s", record["mix"]))
        return out


def _core_to_core(options: Options, count: int) -> Prepared:
    out: Dict[str, Any] = {"mode": "core-to-core"}
    if options.get("max_cpus") is not None:
        out["max_cpus"] = check.whole("max_cpus", options["max_cpus"], 2, 8192)
        count = min(count, out["max_cpus"])
    out["seconds"] = check.seconds("seconds", options.get("seconds", 2))
    out["cpu_count"] = count
    return Prepared(out, count * 65536)


def _size(
    name: str,
    asked: Any,
    caches: Optional[int],
    available: Optional[int],
    buffers: float,
    least: int,
) -> Tuple[int, Tuple[Reason, ...]]:
    """Return the size of one buffer in bytes and the notes on it."""
    times = _TIMES_CACHES.match(asked) if isinstance(asked, str) else None
    if times:
        size = int(float(times[1]) * caches) if caches else _CACHES_UNKNOWN
    else:
        size = check.size(name, asked, also=", or 4x-llc")
    why = reason("size-asked-for", asked=asked)
    most = None if available is None else int(_MOST_OF_MEMORY * available / buffers)
    if available is not None and most is not None and size > most:
        why = reason("memory-limits-size", available=available, share=_MOST_OF_MEMORY)
        size = most
    size = max(size // (2 * _MIB) * 2 * _MIB if size >= 64 * _MIB else size // 4096 * 4096, least)
    what = "array" if name == "array" else "buffer"
    if not caches:
        return size, (reason("llc-unknown", what=what, bytes=size),)
    if size < 4 * caches // (2 * _MIB) * (2 * _MIB):
        given = {"what": what, "bytes": size, "times": size / caches, "why": why}
        return size, (reason("below-four-caches", **given),)
    return size, ()


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


def _rows(record: Record, placed_bytes: int) -> List[Row]:
    """Return the metrics of one record, in the order of the output."""
    kind = record["kind"]
    if kind == "setup" and record["mode"] in ("latency", "loaded", "bandwidth"):
        huge = record["transparent_huge_bytes"]
        share = None if huge is None or not placed_bytes else huge / placed_bytes
        share = 1.0 if record["pages"] == "hugetlb" else share
        return [row("huge_page_share", share, "share", "huge-pages-unknown")]
    if kind == "stream":
        return [row(record["kernel"], record["best_gbs"], "GB/s")]
    if kind == "latency":
        return [row("idle_latency", record["median_ns"], "ns")]
    if kind == "loaded":
        point, x = f"delay={record['delay']}", record["delay"]
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
