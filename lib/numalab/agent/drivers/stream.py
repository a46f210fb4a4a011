"""STREAM: parser of its output (the C and Fortran programs, versions 5.0 to 5.10), and driver.

Format and rules: J. D. McCalpin, stream.c revisions 5.8 to 5.10 and stream.f
(https://www.cs.virginia.edu/stream/), "Run rules": each array at least four times the sum of
the last-level caches, best of the iterations after the first, validated. Rates are in units of
1,000,000 bytes/s.

Records:

- ``version``: ``text``
- ``setup``: ``array_elements``, ``element_bytes``, ``array_bytes``, ``offset``, ``iterations``,
  ``threads_requested``, ``threads_counted`` (null where the output does not say: a serial build)
- ``kernel``: ``name`` (copy, scale, add, triad), ``value`` (best rate; null with ``reason`` where
  Fortran's column is too narrow for it and holds asterisks), ``unit`` MB/s,
  ``average_s``, ``minimum_s``, ``maximum_s``
- ``validation``: ``value`` true, false, or null with ``reason``; ``text``
- ``warning``: ``text``

Of several runs in one text every record has ``run``, from 1.
"""

from __future__ import annotations

import os
import re
import shutil
from typing import Dict, List, Optional, Sequence

from .. import paths
from ..contract import (
    Cell,
    Driver,
    Host,
    Prepared,
    Reason,
    Record,
    Row,
    Timing,
    ToolRecord,
    reason,
)
from ..errors import Fault
from ..rows import row
from . import options as check
from .options import Options
from .reading import Line, appended, by_run, lines, numbered, refuse

NAME = "stream"

_KERNELS = ("Copy", "Scale", "Add", "Triad")
_HEAD = re.compile(
    r"Function\s+(?:Best Rate MB/s|Rate \(MB/s\))\s+Avg time\s+Min time\s+Max time\Z"
)
_KERNEL = re.compile(r"(Copy|Scale|Add|Triad):\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\Z")
_VERSION = re.compile(r"STREAM [Vv]ersion (?:\$Revision: ?([\d.]+) ?\$|([\w. $:]+))\Z")
_VALUES = (
    (
        "element_bytes",
        r"(?:This system uses|Assuming) +(\d+) bytes per "
        r"(?:array element|DOUBLE PRECISION word)\.?",
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
    r"|(?:(?:but )?only )?[Tt]he \*best[*!] time for each(?: kernel| test)?"
    r"(?: \(excluding the first iteration\))?(?: is used\.?)?"
    r"|will be used to compute the reported bandwidth\."
    r"|\*EXCLUDING[*!] the first and last iterations"
    r"|Printing one line per active thread\.+"
    r"|Your clock granularity/precision appears to be\s+-?\d+ microseconds\.?"
    r"|Your clock granularity appears to be less\s+than one microsecond\.?"
    r"|Each test below will take on the order of -?\d+ microseconds\."
    r"|\(= -?\d+ clock ticks\)|Increase the size of the arrays if this shows that"
    r"|you are not getting at least 20 clock ticks per test\.?"
    r"|WARNING -- The above is only a rough guideline\."
    r"|For best results, please be sure you know the|precision of your system timer\.?"
    r"|Results Comparison:.*|Expected\s*:.*|Observed\s*:.*|Rel Errors on a, b, c:.*"
    r"|Double precision appears to have\s+\d+ digits of accuracy"
    r"|The total memory requirement is\s+\d+ MB|--)\Z"
)
_VALID = re.compile(r"Solution Validates(?:: avg error less than (\S+) on all three arrays|!)?\Z")
_FAILED = re.compile(
    r"(?:Failed Validation on (?:array )?[abc](?:\[\]|\(\)).*|WEIRD: sizeof\(STREAM_TYPE\) = .*"
    r"|Solution Validation (?:failed|Failure).*|VALIDATION FAILED.*)\Z"
)
_FAILED_MORE = re.compile(
    r"(?:Expected Value: .*|(?:Target|Computed)\s+Sum of [abc] is =.*"
    r"|For array [abc]\[\], \d+ errors were found\."
    r"|array [abc]: index: .*|Expected \(.*|\s*AvgAbsErr: .*)\Z"
)

_LAST = re.compile(rf"Triad:|{_VALID.pattern}|{_FAILED.pattern}|{_FAILED_MORE.pattern}")


class _Reader:
    """One run while it is being read; what a script printed above STREAM's name is left out."""

    def __init__(self, named: bool) -> None:
        self.begun = not named
        self.out: List[Record] = []  # versions and warnings
        self.setup: Dict[str, Optional[int]] = dict.fromkeys(
            ("array_elements", "element_bytes", "array_bytes", "offset", "iterations",
             "threads_requested", "threads_counted")
        )  # fmt: skip
        self.kernels: List[Record] = []
        self.validation: Optional[Record] = None
        self.headed = False

    def read(self, line: Line) -> None:
        said = line.text.strip()
        match = _VERSION.match(said)
        if match:
            self.begun = True
            self.out.append({"kind": "version", "text": (match[1] or match[2]).strip()})
        elif _HEAD.match(said):
            if self.headed:
                refuse(NAME, line, "a second table: give each run's output on its own")
            self.headed = True
        elif said.startswith(("OMP: Warning", "OMP: Info", "libgomp: ")):
            self.out.append({"kind": "warning", "text": said})
        elif (
            not (
                self._value(line, said)
                or self._kernel(line, said)
                or self._validated(line, said)
                or _SAID.match(said)
            )
            and self.begun
        ):
            refuse(NAME, line, "this is not a line of STREAM's")

    def _value(self, line: Line, said: str) -> bool:
        for name, pattern in _PATTERNS:
            match = pattern.match(said)
            if match:
                if self.setup[name] is not None:
                    refuse(NAME, line, f"{name} a second time")
                self.setup[name] = int(match[1])
                if name == "array_elements" and match.lastindex == 2:
                    self.setup["offset"] = int(match[2])
                return True
        return False

    def _kernel(self, line: Line, said: str) -> bool:
        match = _KERNEL.match(said)
        if not match:
            return False
        if not self.headed or match[1] not in _KERNELS[len(self.kernels) :][:1]:
            refuse(NAME, line, "the kernels are not Copy, Scale, Add, Triad below their head")
        self.kernels.append(_kernel(line, match))
        return True

    def _validated(self, line: Line, said: str) -> bool:
        failed = self.validation is not None and self.validation["value"] is False
        if _VALID.match(said):
            if self.validation:
                refuse(NAME, line, "a second word about validation")
            self.validation = {"kind": "validation", "value": True, "text": said}
        elif _FAILED.match(said):
            if self.validation and not failed:
                refuse(NAME, line, "the solution both validates and fails")
            if not failed:
                self.validation = {"kind": "validation", "value": False, "text": said}
        else:
            return failed and bool(_FAILED_MORE.match(said))
        return True


def parse(text: str) -> List[Record]:
    """Return the records of a text; ParseError for a line that STREAM does not print.

    The table of the four kernels must be whole. A missing validation line gives a validation
    whose value is null with its reason: such a result is not valid by the run rules.
    """
    rows = lines(text, ("stream", "stream.exe", "stream_c.exe", "./stream"))
    return numbered([_run(one) for one in appended(rows, _VERSION, _LAST)])


def _run(rows: List[Line]) -> List[Record]:
    reader = _Reader(any(_VERSION.match(line.text.strip()) for line in rows))
    for line in rows:
        reader.read(line)
    if len(reader.kernels) != 4:
        refuse(NAME, None, "the table of Copy, Scale, Add and Triad is not complete")
    setup, validation = reader.setup, reader.validation
    if setup["array_elements"] is not None and setup["element_bytes"] is not None:
        setup["array_bytes"] = setup["array_elements"] * setup["element_bytes"]
    if validation is None:
        why = "the output ends before STREAM says whether the solution validates"
        validation = {"kind": "validation", "value": None, "text": None, "reason": why}
    return [*reader.out, {"kind": "setup", **setup}, *reader.kernels, validation]


def _kernel(line: Line, match: re.Match[str]) -> Record:
    words = match.groups()[1:]
    # 5.10 prints a rate with one decimal and times with six; older versions four and four.
    too_wide = re.fullmatch(r"\*+", words[0])
    decimals = 4 if too_wide or re.fullmatch(r"\d+\.\d{4}", words[0]) else 6
    if not too_wide and not re.fullmatch(r"\d+\.\d(?:\d{3})?", words[0]):
        refuse(NAME, line, f"{words[0]!r} is not a rate as STREAM prints it")
    for word in words[1:]:
        if not re.fullmatch(rf"\d*\.\d{{{decimals}}}", word):
            refuse(NAME, line, f"{word!r} is not a time as STREAM prints it")
    average, minimum, maximum = (float(word) for word in words[1:])
    rate = None if too_wide else float(words[0])
    if rate == 0 or not minimum <= average <= maximum:
        refuse(NAME, line, "a rate of 0, or times that are not shortest, average, longest")
    why = {"reason": "the column is too narrow for the rate"} if too_wide else {}
    return {
        "kind": "kernel", "name": match[1].lower(), "value": rate, "unit": "MB/s", **why,
        "average_s": average, "minimum_s": minimum, "maximum_s": maximum,
    }  # fmt: skip


# --- the driver -------------------------------------------------------------------------------

_PROGRAMS = ("stream", "stream_c.exe", "stream_c")
_COMPILED_IN = ("mode", "array", "repeat")  # the probe's options for the same measurement
_SECONDS = 20.0  # a usual build takes 5 to 30 s; only the plan's estimate hangs on it


class Stream(Driver):
    """The official STREAM, where the user has it."""

    name = NAME

    def find(self, options: Options) -> ToolRecord:
        """Return the path of the official program; its version is in its output only."""
        asked = options.get("path")
        for name in [asked] if asked else _PROGRAMS:
            path = shutil.which(paths.here(str(name)))
            if path and _is_stream(path):
                return ToolRecord(NAME, None, os.path.abspath(path))
        if asked:
            raise Fault(f"{asked} is not a STREAM program", "name the compiled stream as path")
        raise Fault(
            "the official STREAM (stream) is not on PATH",
            "compile stream.c from https://www.cs.virginia.edu/stream/ with -fopenmp and a "
            "STREAM_ARRAY_SIZE for this host and put it on PATH, or use the probe",
        )

    def prepare(self, options: Options, host: Host, cpus: str, memory_nodes: str) -> Prepared:
        """Return the resolved options; Fault for a bad one.

        The arrays' size is compiled in and known only from the output: ``need_bytes`` is what the
        run rules ask for (three arrays of four times the caches), and doubts judges the result.
        """
        check.known(NAME, options, ("path", "threads", *_COMPILED_IN))
        if options.get("mode", "stream") != "stream":
            raise Fault(f"STREAM cannot measure {options['mode']!r}", "it has the mode stream only")
        caches = check.caches(host, cpus)
        notes = [reason("size-compiled-in")]
        if caches.last is None:
            notes.append(reason("llc-unknown", what="array"))
        least = max(4 * (caches.last or 0), check.HIDDEN_CACHE if caches.hidden else 0)
        own = {name: options[name] for name in options if name not in _COMPILED_IN}
        threads = check.threads(options.get("threads", "all"), cpus, host)
        resolved = {**own, "threads": threads, "cache_bytes": caches.last}
        resolved["cache_hidden"] = caches.hidden
        return Prepared(resolved, 3 * least or 3 * 80_000_000, tuple(notes))

    def argv(self, found: ToolRecord, options: Options, cell: Cell) -> List[str]:
        """Return the command line: STREAM takes no arguments."""
        return [str(found.path)]

    def environment(self, options: Options, cell: Cell) -> Dict[str, str]:
        """Return what to add to the environment: the threads, one fixed place for each.

        A cell without CPUs of its own (unbound) leaves its threads to the kernel, whatever the
        user's own environment says of places.
        """
        threads = {"OMP_NUM_THREADS": str(options["threads"]), "OMP_DYNAMIC": "false"}
        if cell.cpus is None:
            return {**threads, "OMP_PROC_BIND": "false"}
        return {**threads, "OMP_PROC_BIND": "true", "OMP_PLACES": "threads"}

    def timing(self, options: Options) -> Timing:
        """Return the planned seconds (STREAM decides them by its compiled-in sizes)."""
        return Timing(setup_s=1.0, measure_s=_SECONDS)

    def parse(self, text: str) -> List[Record]:
        return parse(text)

    def metrics(self, records: Sequence[Record]) -> List[Row]:
        """Return copy, scale, add and triad (GB/s); None with a reason where not validated.

        Of several runs each is a point.
        """
        rows = []
        for point, own in by_run(records):
            wrong = _not_validated(own)
            for r in own:
                if r["kind"] == "kernel":
                    why = wrong or reason("tool-said", text=r.get("reason"))
                    value = None if wrong or r["value"] is None else r["value"] / 1000
                    rows.append(row(r["name"], value, "GB/s", why, point=point))
        return rows

    def doubts(self, records: Sequence[Record], options: Options) -> List[Reason]:
        """Return what the run rules say: arrays below four times the caches, not validated."""
        caches = options.get("cache_bytes")
        sizes = [r["array_bytes"] for r in records if r["kind"] == "setup"]
        size = None if None in sizes else min(sizes)
        out = []
        if size is None or not caches:
            out.append(reason("llc-unknown", what="array"))
        elif size < 4 * caches:
            why, times = reason("size-compiled-in"), size / caches
            out.append(reason("below-four-caches", what="array", bytes=size, times=times, why=why))
        elif options.get("cache_hidden") and size < check.HIDDEN_CACHE:
            why = reason("size-compiled-in")
            out.append(reason("below-hidden-cache", what="array", bytes=size, why=why))
        wrong = [_not_validated(own) for _, own in by_run(records)]
        return [*out, *(one for one in wrong if one)]


def _not_validated(records: Sequence[Record]) -> Optional[Reason]:
    validation = check.first_of(records, "validation")
    if validation["value"] is True:
        return None
    return reason("not-validated", text=validation.get("reason") or validation["text"])


def _is_stream(path: str) -> bool:
    """Whether a program holds STREAM's words: ImageMagick also installs a program ``stream``."""
    try:
        with open(path, "rb") as program:
            return b"STREAM version" in program.read(64 * 2**20)
    except OSError:
        return False
