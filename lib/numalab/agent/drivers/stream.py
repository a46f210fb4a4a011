"""STREAM: parser of its output (the C and Fortran programs, versions 5.0 to 5.10), and driver.

Format and rules: J. D. McCalpin, stream.c revisions 5.8 to 5.10 and stream.f
(https://www.cs.virginia.edu/stream/), "Run rules": each array at least four times the sum of
the last-level caches, best of the iterations after the first, validated. Rates are in units of
1,000,000 bytes/s.

Records:

- ``version``: ``text``
- ``setup``: ``array_elements``, ``element_bytes``, ``array_bytes``, ``offset``, ``iterations``,
  ``threads_requested``, ``threads_counted`` (null where the output does not say: a serial build)
- ``kernel``: ``name`` (copy, scale, add, triad), ``value`` (best rate), ``unit`` MB/s,
  ``average_s``, ``minimum_s``, ``maximum_s``
- ``validation``: ``value`` true, false, or null with ``reason``; ``text``
- ``warning``: ``text``
"""

from __future__ import annotations

import os
import re
import shutil
from typing import Any, Dict, List, Optional

from .. import cpulist
from ..errors import Fault
from .reading import Line, Record, lines, refuse

NAME = "stream"
PROTOCOL = "sampled"

_KERNELS = ("Copy", "Scale", "Add", "Triad")
_HEAD = re.compile(
    r"Function\s+(?:Best Rate MB/s|Rate \(MB/s\))\s+Avg time\s+Min time\s+Max time\Z"
)
_KERNEL = re.compile(r"(Copy|Scale|Add|Triad):\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\Z")
_VERSION = re.compile(r"STREAM version \$Revision: ?([\d.]+) ?\$\Z|STREAM Version ([\w. $:]+)\Z")
_VALUES = (
    (
        "element_bytes",
        r"This system uses +(\d+) bytes per (?:array element|DOUBLE PRECISION word)\.",
    ),
    (
        "array_elements",
        r"Array size =\s+(\d+)(?: \(elements\))?(?:, Offset =\s+(\d+)(?: \(elements\))?)?",
    ),
    ("offset", r"Offset\s+=\s+(\d+)"),
    ("iterations", r"Each kernel will be executed (\d+) times\."),
    ("iterations", r"Each test is run +(\d+) times(?:, but only)?"),
    ("iterations", r"You are running each test\s+(\d+)\s+times"),
    ("threads_requested", r"Number of Threads requested =\s+(\d+)"),
    ("threads_counted", r"Number of Threads counted =\s+(\d+)"),
    ("threads_requested", r"Number of Threads =\s+(\d+)"),
)  # fmt: skip
_PATTERNS = [(name, re.compile(pattern + r"\Z")) for name, pattern in _VALUES]
_SAID = re.compile(
    r"(?:-{5,}|Memory per array = .*\(=? ?.*\)\.|Total memory required[ =].*"
    r"|The \*best\* time for each (?:kernel|test) \(excluding the first iteration\)"
    r"|will be used to compute the reported bandwidth\."
    r"|the \*best\* time for each(?: is used\.?| test is used)?"
    r"|only the \*best\* time for each is used\."
    r"|but only the \*best\* time for each(?: test)? is used\.?"
    r"|\*EXCLUDING\* the first and last iterations"
    r"|Printing one line per active thread\.+"
    r"|Your clock granularity/precision appears to be -?\d+ microseconds\.?"
    r"|Your clock granularity appears to be less than one microsecond\."
    r"|Each test below will take on the order of -?\d+ microseconds\."
    r"|\(= -?\d+ clock ticks\)|Increase the size of the arrays if this shows that"
    r"|you are not getting at least 20 clock ticks per test\.?"
    r"|WARNING -- The above is only a rough guideline\."
    r"|For best results, please be sure you know the|precision of your system timer\.?"
    r"|Results Comparison:.*|Expected\s*:.*|Observed\s*:.*|Rel Errors on a, b, c:.*"
    r"|Double precision appears to have \d+ digits of accuracy|Assuming \d+ bytes per DOUBLE"
    r" PRECISION word|The total memory requirement is\s+\d+ MB|--)\Z"
)
_VALID = re.compile(r"Solution Validates(?:: avg error less than (\S+) on all three arrays|!)?\Z")
_FAILED = re.compile(
    r"(?:Failed Validation on (?:array )?[abc]\[\].*|WEIRD: sizeof\(STREAM_TYPE\) = .*"
    r"|Solution Validation (?:failed|Failure).*|VALIDATION FAILED.*)\Z"
)
_FAILED_MORE = re.compile(
    r"(?:Expected Value: .*|For array [abc]\[\], \d+ errors were found\."
    r"|array [abc]: index: .*|Expected \(.*|\s*AvgAbsErr: .*)\Z"
)


def parse(text: str) -> List[Record]:
    """Return the records of one run; ParseError for a line that STREAM does not print.

    The table of the four kernels must be whole. A missing validation line gives a validation
    whose value is null with its reason: such a result is not valid by the run rules.
    """
    out: List[Record] = []
    setup: Dict[str, Optional[int]] = dict.fromkeys(
        ("array_elements", "element_bytes", "array_bytes", "offset", "iterations",
         "threads_requested", "threads_counted")
    )  # fmt: skip
    kernels: List[Record] = []
    validation: Optional[Record] = None
    headed = False
    for line in lines(text, ("stream", "stream.exe", "stream_c.exe", "./stream")):
        row = line.text.strip()
        if not row:
            continue
        match = _VERSION.match(row)
        if match:
            if any(r["kind"] == "version" for r in out):
                refuse(NAME, line, "a second run: give each run's output on its own")
            out.append({"kind": "version", "text": (match[1] or match[2]).strip()})
            continue
        if _value(line, row, setup):
            continue
        if _HEAD.match(row):
            if headed:
                refuse(NAME, line, "a second table: give each run's output on its own")
            headed = True
            continue
        match = _KERNEL.match(row)
        if match:
            if not headed or len(kernels) >= 4 or match[1] != _KERNELS[len(kernels)]:
                refuse(NAME, line, "the kernels are not Copy, Scale, Add, Triad below their head")
            kernels.append(_kernel(line, match))
            continue
        match = _VALID.match(row)
        if match:
            if validation:
                refuse(NAME, line, "a second word about validation")
            validation = {"kind": "validation", "value": True, "text": row}
            continue
        if _FAILED.match(row):
            if validation is None:
                validation = {"kind": "validation", "value": False, "text": row}
            elif validation["value"] is True:
                refuse(NAME, line, "the solution both validates and fails")
            continue
        if validation and validation["value"] is False and _FAILED_MORE.match(row):
            continue
        if row.startswith(("OMP: Warning", "OMP: Info", "libgomp: ")):
            out.append({"kind": "warning", "text": row})
            continue
        if not _SAID.match(row):
            refuse(NAME, line, "this is not a line of STREAM's")
    if len(kernels) != 4:
        refuse(NAME, None, "the table of Copy, Scale, Add and Triad is not complete")
    elements, size = setup["array_elements"], setup["element_bytes"]
    if elements is not None and size is not None:
        setup["array_bytes"] = elements * size
    if validation is None:
        reason = "the output ends before STREAM says whether the solution validates"
        validation = {"kind": "validation", "value": None, "text": None, "reason": reason}
    return [*out, {"kind": "setup", **setup}, *kernels, validation]


def _value(line: Line, row: str, setup: Dict[str, Optional[int]]) -> bool:
    for name, pattern in _PATTERNS:
        match = pattern.match(row)
        if match:
            if setup[name] is not None:
                refuse(NAME, line, f"{name} a second time")
            setup[name] = int(match[1])
            if name == "array_elements" and match.lastindex == 2:
                setup["offset"] = int(match[2])
            return True
    return False


def _kernel(line: Line, match: re.Match[str]) -> Record:
    words = match.groups()[1:]
    # 5.10 prints a rate with one decimal and times with six; older versions four and four.
    forms = {1: 6, 4: 4}
    decimals = len(words[0].partition(".")[2])
    shape = rf"\d+\.\d{{{forms.get(decimals, 6)}}}\Z"
    if decimals not in forms or not re.match(r"\d+\.\d+\Z", words[0]):
        refuse(NAME, line, f"{words[0]!r} is not a rate as STREAM prints it")
    for word in words[1:]:
        if not re.match(shape, word):
            refuse(NAME, line, f"{word!r} is not a time as STREAM prints it")
    rate, average, minimum, maximum = (float(word) for word in words)
    if rate <= 0 or not minimum <= maximum:
        refuse(NAME, line, "a rate that is not above 0, or a shortest time above the longest")
    return {
        "kind": "kernel", "name": match[1].lower(), "value": rate, "unit": "MB/s",
        "average_s": average, "minimum_s": minimum, "maximum_s": maximum,
    }  # fmt: skip


# Driver

_COMPILED_IN = {"mode", "array", "repeat"}  # the probe's options for the same measurement
_OPTIONS = {"path", "threads"} | _COMPILED_IN
_SECONDS = 20.0  # a usual build takes 5 to 30 s; only the plan's estimate hangs on it


def find(options: Dict[str, Any]) -> Dict[str, Any]:
    """Return the path of the official program; its version is in its output only (null here)."""
    for name in (
        [options["path"]] if options.get("path") else ["stream", "stream_c.exe", "stream_c"]
    ):
        path = shutil.which(str(name))
        if path and _is_stream(path):
            return {"path": os.path.abspath(path), "version": None}
    if options.get("path"):
        raise Fault(
            f"{options['path']} is not a STREAM program", "name the compiled stream as path"
        )
    raise Fault(
        "the official STREAM (stream) is not on PATH",
        "compile stream.c from https://www.cs.virginia.edu/stream/ with -fopenmp and a "
        "STREAM_ARRAY_SIZE for this host and put it on PATH, or use the probe",
    )


def _is_stream(path: str) -> bool:
    """Whether a program holds STREAM's words: ImageMagick also installs a program ``stream``."""
    try:
        with open(path, "rb") as program:
            return b"STREAM version" in program.read(64 * 2**20)
    except OSError:
        return False


def prepare(
    options: Dict[str, Any], topology: Dict[str, Any], cpus: str, memory_nodes: str
) -> Dict[str, Any]:
    """Return the resolved options; Fault for a bad one.

    The arrays' size is compiled in and known only from the output: ``need_bytes`` is what the
    run rules ask for (three arrays of four times the caches), and doubts judges the result.
    """
    unknown = set(options) - _OPTIONS
    if unknown:
        raise Fault(f"stream has no option {sorted(unknown)[0]!r}", "known: path, threads")
    if options.get("mode", "stream") != "stream":
        raise Fault(f"STREAM cannot measure {options['mode']!r}", "it has the mode stream only")
    count = len(cpulist.parse(cpus)) or int(topology.get("threads") or 1)
    threads = options.get("threads", "all")
    threads = count if threads == "all" else threads
    if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= 65536:
        raise Fault(f"threads {threads!r} is not a number of threads", "write a number, or all")
    caches = last_level_caches(topology, cpus)
    notes = ["the arrays' size and the repeats are compiled into the program: judged after the run"]
    if caches is None:
        notes.append("the last-level caches are unknown: STREAM's rule (4×) cannot be checked")
    need = 3 * 4 * (caches or 0) or 3 * 80_000_000
    own = {name: options[name] for name in options if name not in _COMPILED_IN}
    resolved = {**own, "threads": threads, "cache_bytes": caches}
    return {"options": resolved, "need_bytes": need, "notes": notes}


def last_level_caches(topology: Dict[str, Any], cpus: str) -> Optional[int]:
    """Return the sum (bytes) of the last-level caches that these CPUs use; null when unknown."""
    wanted = set(cpulist.parse(cpus)) or set(cpulist.parse(topology["allowed"]["cpus"]))
    caches = [c for c in topology.get("caches", []) if c["type"] != "Instruction"]
    if not caches:
        return None
    last = max(cache["level"] for cache in caches)
    used = [c for c in caches if c["level"] == last and wanted & set(cpulist.parse(c["cpus"]))]
    if not used or any(not cache["size_bytes"] for cache in used):
        return None
    return sum(cache["size_bytes"] for cache in used)


def doubts(records: List[Record], options: Dict[str, Any]) -> List[str]:
    """Return what the run rules would say: arrays below four times the caches, not validated."""
    cache_bytes = options.get("cache_bytes")
    setup = next(record for record in records if record["kind"] == "setup")
    size, out = setup["array_bytes"], []
    if size is None or not cache_bytes:
        out.append("whether the arrays are 4× the last-level caches (STREAM's rule) is unknown")
    elif size < 4 * cache_bytes:
        out.append(
            f"the arrays are {size / cache_bytes:.1f}× the last-level caches that the CPUs use: "
            "STREAM's rule (4×) was not met"
        )
    validation = next(record for record in records if record["kind"] == "validation")
    if validation["value"] is not True:
        out.append(f"not validated: {validation.get('reason') or validation['text']}")
    return out


def argv(found: Dict[str, Any], options: Dict[str, Any], cell: Dict[str, Any]) -> List[str]:
    """Return the command line: STREAM takes no arguments."""
    return [found["path"]]


def environment(options: Dict[str, Any], cell: Dict[str, Any]) -> Dict[str, str]:
    """Return what to add to the environment: the threads, one fixed place for each."""
    return {
        "OMP_NUM_THREADS": str(options["threads"]), "OMP_DYNAMIC": "false",
        "OMP_PROC_BIND": "true", "OMP_PLACES": "threads",
    }  # fmt: skip


def timing(options: Dict[str, Any]) -> Dict[str, float]:
    """Return the planned seconds (STREAM decides them by its compiled-in sizes)."""
    return {"warmup_s": 0.0, "measure_s": _SECONDS, "setup_s": 1.0}


def metrics(records: List[Record]) -> List[Record]:
    """Return copy, scale, add and triad (GB/s); null with a reason where not validated."""
    validation = next(record for record in records if record["kind"] == "validation")
    reason = None
    if validation["value"] is not True:
        reason = str(validation.get("reason") or validation["text"])
    return [
        {
            "metric": r["name"], "value": None if reason else float(r["value"]) / 1000,
            "unit": "GB/s", "point": "", "x": None, "y": None, "reason": reason,
        }
        for r in records
        if r["kind"] == "kernel"
    ]  # fmt: skip
