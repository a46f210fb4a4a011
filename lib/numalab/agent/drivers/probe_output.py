"""Reader of what the probe prints: a line ``ready``, a line ``result``, rows in between.

On a tour these come once for each visit, and each record has the ``visit`` that it is of.

Records:

- ``setup``: what the run was: ``mode``, ``version``, ``threads``, pages asked for (``pages``) and
  got (``page_bytes``, ``transparent_huge_bytes``), the mode's own settings (sizes in bytes), and
  ``setup_s``, ``warmup_s``, ``measure_s``
- ``placement``: ``when`` (ready, result), ``node`` and ``bytes`` of the buffers; ``node`` is null
  where the kernel placed bytes on none (``reason``)
- ``thread``: ``when``, ``pinned`` (CPU or null), ``began_on``, ``ended_on``, ``allowed``
- ``stream``: ``kernel`` (NAME_nt: with stores that bypass the caches, by the instruction
  ``non_temporal`` of setup; null there: this processor has none), ``bytes``, ``times_s`` of all
  repeats, and of all but the first ``best_gbs``, ``min_s``, ``avg_s``, ``max_s``
- ``latency``: ``samples_ns``, ``median_ns``, ``min_ns``; ``tlb_local`` tells the chase that stays
  within the reach of the TLB from the one that leaves its page with every access
- ``loaded``: ``mix``, ``delay`` (loop turns), ``samples_ns``, ``samples_gbs`` and their medians
- ``bandwidth``: ``mix``, ``samples_gbs``, ``median_gbs``
- ``core_latency``: ``from``, ``to``, ``samples_ns``, ``median_ns``, ``min_ns``, ``round_trips``
  of all samples, ``reason`` (why there is no figure, or null)

GB/s are 1e9 bytes a second.
"""

from __future__ import annotations

import json
import math
import statistics
from typing import Any, Dict, Iterable, List, Mapping, Tuple

from .. import cpulist
from ..contract import Record
from ..errors import Fault, ParseError

MIXES = ("reads", "writes", "1:1", "2:1", "3:1")
_ARRAYS = {"copy": 2, "scale": 2, "add": 3, "triad": 3}  # kernels, and how many each touches
NON_TEMPORAL = tuple(f"{name}_nt" for name in _ARRAYS)
_SCHEMA = 2  # of the program's output

# The keys of each record and the types of their values.
Keys = Mapping[str, Tuple[type, ...]]
WHOLE, REAL, TEXT, LIST, MAPPING = (int,), (int, float), (str,), (list,), (dict,)
NONE = (type(None),)
BOTH: Keys = {
    "event": TEXT, "mode": TEXT, "visit": TEXT + NONE, "buffers": MAPPING + NONE,
    "buffers_reason": TEXT + NONE,
    "buffer_pages": WHOLE, "buffer_pages_asked": WHOLE, "threads": LIST,
}  # fmt: skip
READY: Keys = {
    **BOTH, "schema": WHOLE, "version": TEXT, "threads_measuring": WHOLE, "pages": TEXT,
    "page_bytes": WHOLE, "transparent_huge_bytes": WHOLE + NONE, "setup_s": REAL, "warmup_s": REAL,
}  # fmt: skip
RESULT: Keys = {**BOTH, "measure_s": REAL}
_CHASE: Keys = {"bytes": WHOLE, "stride": WHOLE, "flushed": (bool,)}
_OF_MODE: Dict[str, Tuple[Keys, Keys]] = {  # what ready and result have besides
    "stream": (
        {"array_bytes": WHOLE, "repeats": WHOLE, "non_temporal": TEXT + NONE},
        {"kernels": LIST, "relative_error": REAL},
    ),
    "latency": (
        _CHASE,
        {
            "samples_ns": LIST,
            "tlb_local_samples_ns": LIST,
            "accesses_per_sample": WHOLE,
        },
    ),
    "loaded": (
        {**_CHASE, "delay_turn_ns": REAL + NONE, "injectors": WHOLE, "stores": TEXT},
        {"points": LIST},
    ),
    "bandwidth": ({"bytes": WHOLE, "sample_s": REAL, "stores": TEXT}, {"mixes": LIST}),
    "core-to-core": ({"samples": WHOLE}, {"rows": WHOLE}),
}
MODES = tuple(_OF_MODE)
_THREAD: Keys = {
    "pinned": WHOLE + NONE, "began_on": WHOLE, "ended_on": WHOLE, "allowed": TEXT + NONE
}  # fmt: skip


class Line:
    """One line of output, which refuses what it does not understand."""

    def __init__(self, number: int, text: str) -> None:
        self.number, self.text = number, text
        try:
            self.record = json.loads(text, parse_constant=self._no_constant)
        except (ValueError, RecursionError):
            raise self.wrong("this is not JSON") from None
        if not isinstance(self.record, dict):
            raise self.wrong("this is not a record")

    def _no_constant(self, name: str) -> Any:
        raise ValueError(name)

    def wrong(self, why: str) -> ParseError:
        return ParseError("probe", self.number, self.text, why)

    def check(self, record: Any, keys: Keys, where: str) -> Record:
        """Return a record that has exactly these keys, of these types, no number below 0."""
        if not isinstance(record, dict):
            raise self.wrong(f"{where} is not a record")
        if set(record) != set(keys):
            odd = ", ".join(sorted(set(keys) ^ set(record)))
            raise self.wrong(f"{where}: keys are missing or unknown: {odd}")
        for key, value in record.items():
            number = type(value) in REAL
            if type(value) not in keys[key] or (number and not 0 <= value < math.inf):
                raise self.wrong(f"{where}: {key} is {value!r}")
        return record

    def each(self, name: str, keys: Keys) -> List[Record]:
        """Return the records in a list of this line, of which there must be one at least."""
        found = [self.check(record, keys, name) for record in self.record[name]]
        if not found:
            raise self.wrong(f"{name}: there are none")
        return found

    def numbers(self, values: Any, where: str, least: int = 1, zero: bool = False) -> List[float]:
        """Return a list of finite numbers above 0, or also 0."""
        if not isinstance(values, list) or len(values) < least:
            raise self.wrong(f"{where}: a list of {least} numbers or more is expected")
        for value in values:
            good = type(value) in REAL and 0 <= value < math.inf and (zero or value > 0)
            if not good:
                raise self.wrong(f"{where}: {value!r} is not a number above 0")
        return [float(value) for value in values]


def conversations(text: str) -> List[Tuple[Line, List[Line], Line]]:
    """Return each measurement's line ``ready``, those between, and its line ``result``."""
    found: List[List[Line]] = [[]]
    for number, row in enumerate(text.split("\n"), 1):
        line = Line(number, row) if row else None
        if line and found[-1] and line.record.get("event") == "ready":
            found.append([])
        if line:
            found[-1].append(line)
    return [_conversation(lines) for lines in found]


def conversation(text: str) -> Tuple[Line, List[Line], Line]:
    """Return those of a run that measures once."""
    first, *more = conversations(text)
    if more:
        raise more[0][0].wrong("it measured more than once")
    return first


def _conversation(lines: List[Line]) -> Tuple[Line, List[Line], Line]:
    if lines and lines[0].record.get("event") != "ready":
        raise lines[0].wrong('the first line is not "ready"')
    if len(lines) < 2 or lines[-1].record.get("event") != "result":
        raise ParseError("probe", 0, "", 'it does not go from "ready" to "result"')
    if lines[0].record.get("schema") != _SCHEMA:
        raise lines[0].wrong(f"only schema {_SCHEMA} is known here")
    return lines[0], lines[1:-1], lines[-1]


def parse(text: str) -> List[Record]:
    """Return the records of one run's output; see the head of this module.

    Raises ParseError with the line that cannot be read, and when ready or result is missing.
    """
    measured = conversations(text)
    names = [ready.record.get("visit") for ready, _, _ in measured]
    if len(measured) > 1 and (None in names or len(set(names)) < len(names)):
        raise measured[-1][0].wrong("it measured more than once, and not as visits of a tour")
    return [record for lines in measured for record in _parsed(*lines)]


def _parsed(ready: Line, rows: List[Line], result: Line) -> List[Record]:
    mode = ready.record.get("mode")
    if mode not in MODES:
        raise ready.wrong(f"the mode {mode!r} is not known")
    of_ready, of_result = _OF_MODE[mode]
    start = ready.check(ready.record, {**READY, **of_ready}, "ready")
    end = result.check(result.record, {**RESULT, **of_result}, "result")
    if end["mode"] != mode:
        raise result.wrong(f"the mode was {mode} and is now {end['mode']}")
    if end["visit"] != start["visit"]:
        raise result.wrong(f"the visit was {start['visit']} and is now {end['visit']}")
    if mode != "core-to-core" and rows:
        raise rows[0].wrong('only "ready" and "result" are expected')
    copied = ("mode", "version", "pages", "page_bytes", "transparent_huge_bytes", *of_ready)
    setup = {
        "kind": "setup", "threads": start["threads_measuring"],
        **{key: start[key] for key in copied},
        "setup_s": start["setup_s"], "warmup_s": start["warmup_s"], "measure_s": end["measure_s"],
    }  # fmt: skip
    if mode == "core-to-core":
        found = _core_latencies(result, rows)
    else:
        found = _READERS[mode](result, start)
    records = [setup, *placements(ready), *placements(result), *found]
    return [{**one, "visit": start["visit"]} for one in records] if start["visit"] else records


def placements(line: Line) -> Iterable[Record]:
    """Yield the records ``placement`` and ``thread`` of a line that has been checked."""
    record, when = line.record, line.record["event"]
    if record["buffers"] is None:
        reason = record["buffers_reason"] or "the probe does not say why"
        yield {"kind": "placement", "when": when, "node": None, "bytes": None, "reason": reason}
    for node, size in (record["buffers"] or {}).items():
        if type(size) is not int or size <= 0:
            raise line.wrong(f"buffers: {size!r} bytes on node {node}")
        known = node.isascii() and node.isdigit()
        if not known and node not in ("not present", "unknown"):
            raise line.wrong(f"buffers: {node!r} is no node")
        yield {
            "kind": "placement", "when": when, "node": int(node) if known else None,
            "bytes": size, "reason": None if known else node,
        }  # fmt: skip
    for entry in record["threads"]:
        thread = line.check(entry, _THREAD, "threads")
        try:
            cpulist.parse(thread["allowed"] or "")
        except Fault as fault:
            raise line.wrong(f"threads: {fault.what}") from None
        yield {"kind": "thread", "when": when, **thread}


def _stream(line: Line, start: Record) -> List[Record]:
    out = []
    kernels = line.each("kernels", {"kernel": TEXT, "bytes": WHOLE, "times_s": LIST})
    expected = [*_ARRAYS, *(NON_TEMPORAL if start["non_temporal"] else ())]
    if [kernel["kernel"] for kernel in kernels] != expected:
        raise line.wrong(f"kernels: not {', '.join(expected)}")
    for kernel in kernels:
        name, size = kernel["kernel"], kernel["bytes"]
        arrays = _ARRAYS[name.partition("_")[0]]
        times = line.numbers(kernel["times_s"], name, max(2, start["repeats"]))
        if size != arrays * start["array_bytes"]:
            raise line.wrong(f"{name}: {size} bytes are not {arrays} arrays")
        counted = times[1:]
        out.append({
            "kind": "stream", "kernel": name, "bytes": size, "best_gbs": size / min(counted) / 1e9,
            "min_s": min(counted), "avg_s": statistics.fmean(counted), "max_s": max(counted),
            "times_s": times,
        })  # fmt: skip
    if not line.record["relative_error"] < 1e-13:
        raise line.wrong(f"the arrays were wrong by {line.record['relative_error']}")
    return out


def _latency(line: Line, start: Record) -> List[Record]:
    out = []
    for name, local in (("samples_ns", False), ("tlb_local_samples_ns", True)):
        samples = line.numbers(line.record[name], name, 3)
        out.append({
            "kind": "latency", "tlb_local": local, "samples_ns": samples,
            "median_ns": statistics.median(samples), "min_ns": min(samples),
            "accesses_per_sample": line.record["accesses_per_sample"],
        })  # fmt: skip
    return out


def _loaded(line: Line, start: Record) -> List[Record]:
    out = []
    keys: Keys = {"mix": TEXT, "delay": WHOLE, "latency_ns": LIST, "bandwidth_gbs": LIST}
    for point in line.each("points", keys):
        if point["mix"] not in MIXES:
            raise line.wrong(f"points: the mix {point['mix']!r} is not known")
        ns = line.numbers(point["latency_ns"], "latency_ns")
        # 0: the reading threads were not run during that sample.
        gbs = line.numbers(point["bandwidth_gbs"], "bandwidth_gbs", zero=True)
        out.append({
            "kind": "loaded", "mix": point["mix"], "delay": point["delay"],
            "samples_ns": ns, "samples_gbs": gbs, "median_ns": statistics.median(ns),
            "median_gbs": statistics.median(gbs),
        })  # fmt: skip
    return out


def _bandwidth(line: Line, start: Record) -> List[Record]:
    out = []
    for point in line.each("mixes", {"mix": TEXT, "samples_gbs": LIST}):
        if point["mix"] not in MIXES:
            raise line.wrong(f"mixes: {point['mix']!r} is not known")
        gbs = line.numbers(point["samples_gbs"], "samples_gbs")
        out.append({
            "kind": "bandwidth", "mix": point["mix"], "samples_gbs": gbs,
            "median_gbs": statistics.median(gbs),
        })  # fmt: skip
    return out


def _core_latencies(result: Line, rows: List[Line]) -> List[Record]:
    if len(rows) != result.record["rows"]:
        raise result.wrong(f"{result.record['rows']} rows are announced, {len(rows)} are there")
    out: List[Record] = []
    keys: Keys = {"to": WHOLE, "round_trips": WHOLE, "samples_ns": LIST, "reason": TEXT + NONE}
    for number, line in enumerate(rows):
        row = line.check(line.record, {"event": TEXT, "from": WHOLE, "pairs": LIST}, "row")
        if row["event"] != "row" or len(row["pairs"]) != len(rows) - number:
            raise line.wrong(f"this is not row {number + 1} of {len(rows)}")
        for pair in line.each("pairs", keys):
            reason = pair["reason"]
            ns = [] if reason else line.numbers(pair["samples_ns"], "samples_ns")
            out.append({
                "kind": "core_latency", "from": row["from"], "to": pair["to"],
                "round_trips": pair["round_trips"], "samples_ns": ns,
                "median_ns": statistics.median(ns) if ns else None,
                "min_ns": min(ns) if ns else None, "reason": reason,
            })  # fmt: skip
    return out


_READERS = {"stream": _stream, "latency": _latency, "loaded": _loaded, "bandwidth": _bandwidth}
