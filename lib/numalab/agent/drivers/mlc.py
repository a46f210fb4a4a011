"""Intel Memory Latency Checker: parser of its output (versions 3.0 to 3.11), and its driver.

Format: the tool's own output and its readme ("Intel Memory Latency Checker", section "Command
line arguments"); MLC is closed source, so the format is known from outputs of the versions.
Bandwidths are in units of 1,000,000 bytes/s, as MLC says itself. Latencies have one decimal
(two under load): a number of another form is a number cut short.

Records:

- ``version``: ``text`` ("3.11b"); ``command``, ``warning``, ``buffer``, ``pages``: ``text``
- ``idle_latency``: ``from`` (node of the CPU), ``to`` (node of the memory), ``access``, ``value``,
  ``unit`` ns; without nodes from ``mlc --idle_latency`` (then also ``clocks``)
- ``bandwidth``: ``from``, ``to``, ``traffic``, ``value``, ``unit`` MB/s
- ``peak_bandwidth``, ``max_bandwidth``: ``traffic``, ``value``, ``unit`` MB/s
- ``loaded_latency``: ``delay``, ``traffic``, ``access``, ``value``, ``unit`` ns, ``bandwidth``,
  ``bandwidth_unit`` MB/s
- ``cache_latency``: ``transfer`` (text), ``writer``, ``reader`` (nodes; null within a socket),
  ``homed`` (writer, reader or null), ``value`` (null with ``reason`` where MLC prints "-"),
  ``unit`` ns

``access`` is random or sequential (what MLC does unless it is told or says otherwise); ``traffic``
is named as the probe does: reads, 2:1, triad …, or W5 by MLC's number. Of several runs in one text
every record has ``run``, from 1.

MLC's licence forbids shipping it; the driver uses the user's own copy.
"""

from __future__ import annotations

import re
import shutil
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .. import paths
from ..contract import Cell, Driver, Host, Prepared, Record, Row, Timing, ToolRecord, reason
from ..errors import Fault
from ..rows import row
from . import options as check
from .options import Options
from .reading import Line, lines, refuse

NAME = "mlc"

_BANNER = re.compile(r"Intel\(R\) Memory Latency Checker\s*-\s*v(\d+\.\d+[\w.-]*)\Z")
_TITLES = [
    (re.compile(pattern + r"\Z"), section)
    for pattern, section in (
        (r"Measuring idle latencies(?: for (sequential|random) access)?(?: \(in ns\))?\.*", "idle"),
        (r"Measuring Memory Bandwidths between nodes within system", "bandwidth"),
        (r"Measuring Peak (?:Injection )?Memory Bandwidths for the system", "peak"),
        (r"Measuring Maximum Memory Bandwidths for the system", "maximum"),
        (r"Measuring Loaded Latencies for the system", "loaded"),
        (r"Measuring cache-to-cache transfer latency \(in ns\)\.*", "caches"),
    )
]
_TRAFFIC = re.compile(
    r"(?P<label>ALL Reads|\d+:\d+ Reads?-(?:Writes?|NTWrites?|NT Writes?)|Stream-triad[ -]like"
    r"|All NT ?[Ww]rites|[\w:+%.-]+(?: [\w:+%.-]+){0,4}?)\s*:\s*(?P<value>\S+)\Z"
)
_LOCAL = re.compile(r"(?P<what>Local Socket \S+ (?:HIT|HITM)\s+latency)\s+(?P<value>\S+)\Z")
_REMOTE = re.compile(
    r"(?P<what>Remote Socket \S+ (?:HIT|HITM)\s+latency)\s+"
    r"\(data address homed in (?P<home>writer|reader) socket\)\Z"
)
_ITERATION = re.compile(
    r"Each iteration took (?P<clocks>\d+\.\d) (?:core|base frequency) clocks\s*"
    r"\(\s*(?P<ns>\d+\.\d)\s*ns\s*\)\Z"
)
_ROW = re.compile(r"(\d+)\s+(\S.*)\Z")
_HEAD = re.compile(r"(?:Numa node|Socket|Writer Numa Node|Writer Socket)\s+(\d+(?:\s+\d+)*)\Z")
_SAID = re.compile(
    r"(?:Bandwidths are in MB/sec \(1 MB/sec = 1,000,000 Bytes/sec\)"
    r"|Using all the threads from each core if Hyper-threading is enabled"
    r"|Using only one thread from each core if Hyper-threading is enabled"
    r"|Using traffic with the following read-write ratios"
    r"|Will take several minutes to complete as multiple injection rates will be tried to get "
    r"the best bandwidth|=+|Numa node(?:\s+Numa node)*|Memory node|Reader (?:Numa Node|Socket)"
    r"|Inject\s+Latency\s+Bandwidth|Delay\s+\(ns\)\s+MB/sec)\Z"
)
_USING = re.compile(r"Using (?:.* traffic type.*|traffic type .*)\Z")
_REMARKS = [
    (kind, re.compile(pattern + r"\Z"))
    for kind, pattern in (
        ("command", r"Command line parameters:(.*)"),
        ("buffer", r"(Using buffer size of .*)"),
        ("pages", r"(Using (?:large|huge|small) pages.*)"),
        ("warning", r"(?:\*\*\*\s*)?((?:WARNING|Warning|NOTE|Note)[:\s].*)|\*\*\*\s(.*)"),
    )
]
# What is measured where no option asks for others: a table that ends earlier is cut.
_MIXES = ["reads", "3:1", "2:1", "1:1", "triad"]
_DELAYS = [0, 2, 8, 15, 50, 100, 200, 300, 400, 500, 700, 1000, 1300, 1700, 2500, 3500, 5000, 9000,
           20000]  # fmt: skip
_TRAFFIC_KINDS = {"peak": ("peak_bandwidth", 1), "maximum": ("max_bandwidth", 2)}  # and decimals
_MEASURED = {
    "idle_latency", "bandwidth", "peak_bandwidth", "max_bandwidth", "loaded_latency",
    "cache_latency",
}  # fmt: skip


class _Reader:
    """What section of MLC's output is being read, and the table in it."""

    def __init__(self) -> None:
        self.out: List[Record] = []
        self.section = ""
        self.title: Optional[Line] = None
        self.found = 0
        self.columns: List[int] = []
        self.rows: List[int] = []
        self.transfer: Dict[str, str] = {}
        self.listed: List[Any] = []  # the mixes or delays of this section
        self.words: List[str] = []  # of the run's command line
        self.access, self.traffic, self.run = "sequential", "reads", 1
        self.matrix: Optional[Tuple[List[int], List[int]]] = None  # columns and rows of the first
        self.rowless: List[int] = []  # nodes without a row in the matrix that was read last

    def begin_run(self) -> None:
        self.close()
        self.words, self.access, self.matrix, self.rowless = [], "sequential", None, []
        self.run += 1

    def close(self) -> None:
        """Refuse a section that ended before its values."""
        self.close_table()
        if self.section and not self.found:
            refuse(NAME, self.title, "this section has no values: it failed, or is cut short")
        every: Dict[str, List[Any]] = {"loaded": _DELAYS, "peak": _MIXES, "maximum": _MIXES}
        whole = every.get(self.section, [])
        own = any(re.match("-[dg]", word) for word in self.words)
        if (
            0 < len(self.listed) < len(whole)
            and not own
            and self.listed == whole[: len(self.listed)]
        ):
            refuse(NAME, self.title, f"this section ends at {self.listed[-1]}: cut short?")
        homed = {r["homed"] for r in self.out[-self.found :] if r.get("homed")}
        if self.section == "caches" and len(homed) == 1:
            refuse(NAME, self.title, f"only a table homed in the {homed.pop()} socket: cut short?")
        self.section, self.listed = "", []

    def close_table(self) -> None:
        if self.columns and not self.rows:
            refuse(NAME, self.title, "the table of this section has no rows: cut short?")
        missing = [node for node in self.columns if node not in self.rows]
        # A node without CPUs has no row, and a number above those with; one without memory no
        # column.
        if missing and (self.section == "caches" or min(missing) < max(self.rows)):
            refuse(NAME, self.title, f"the table lacks the row of node {missing[0]}: cut short?")
        if self.columns and self.section != "caches":
            self.rowless = [] if self.matrix else missing
            self.matrix = self.matrix or (self.columns, self.rows)
            if self.matrix != (self.columns, self.rows):
                refuse(NAME, self.title, "the rows are not those of the table above: cut short?")
        self.columns, self.rows = [], []

    def add(self, kind: str, value: Optional[float], unit: str, **more: Any) -> None:
        self.found += 1
        record: Record = {"kind": kind, **more, "value": value, "unit": unit, "run": self.run}
        if value is None:
            record["reason"] = "MLC measures nothing here"
        self.out.append(record)

    def read(self, line: Line) -> None:
        said = line.text.strip()
        if self._remark(said) or self._title(line, said):
            return
        match = _ITERATION.match(said)
        if match:
            clocks, value = float(match["clocks"]), float(match["ns"])
            self.add("idle_latency", value, "ns", access=self.access, clocks=clocks)
        elif _USING.match(said):
            self.traffic = _mix(said[len("Using ") :])
        elif _SAID.match(said):
            return
        elif not self.section:
            refuse(NAME, line, "this is not a line of MLC's")
        else:
            readers = {
                "idle": self._matrix, "bandwidth": self._matrix, "peak": self._traffic,
                "maximum": self._traffic, "loaded": self._loaded, "caches": self._caches,
            }  # fmt: skip
            if not readers[self.section](line, said):
                refuse(NAME, line, "this is not a line of this section of MLC's output")

    def _remark(self, said: str) -> bool:
        """Read a line that may stand anywhere and measures nothing."""
        banner = _BANNER.match(said)
        if banner:
            if self.out:
                self.begin_run()
            self.out.append({"kind": "version", "text": banner[1], "run": self.run})
            return True
        for kind, pattern in _REMARKS:
            match = pattern.match(said)
            if match:
                text = (match[1] or match[match.lastindex or 0]).strip()
                self.out.append({"kind": kind, "text": text, "run": self.run})
                if kind == "command":
                    self.words = text.split()
                if "random access" in text or "-r" in self.words:
                    self.access = "random"
                return True
        return False

    def _title(self, line: Line, said: str) -> bool:
        for pattern, section in _TITLES:
            match = pattern.match(said)
            if match:
                self.close()
                self.section, self.title, self.found, self.rowless = section, line, 0, []
                asked = [word[1:] for word in self.words if re.fullmatch(r"-W\d+", word)]
                self.traffic = asked[-1] if asked else "reads"
                if section == "idle":
                    self.access = match[1] or self.access
                return True
        return False

    def _traffic(self, line: Line, said: str) -> bool:
        match = _TRAFFIC.match(said)
        if not match:
            return False
        kind, decimals = _TRAFFIC_KINDS[self.section]
        mix = _mix(match["label"])
        if mix in self.listed:
            refuse(NAME, line, f"{match['label']} a second time")
        self.listed.append(mix)
        self.add(kind, _number(line, match["value"], decimals), "MB/s", traffic=mix)
        return True

    def _loaded(self, line: Line, said: str) -> bool:
        match = re.fullmatch(r"(\d{5,})\s+(\S+?)\s+(\S+)", said)
        if match:
            if self.listed and int(match[1]) <= self.listed[-1]:
                refuse(NAME, line, "the delays do not ascend")
            self.listed.append(int(match[1]))
            self.add(
                "loaded_latency", _number(line, match[2], 2), "ns", delay=int(match[1]),
                traffic=self.traffic, access=self.access, bandwidth=_number(line, match[3]),
                bandwidth_unit="MB/s",
            )  # fmt: skip
        return bool(match)

    def _caches(self, line: Line, said: str) -> bool:
        local, remote = _LOCAL.match(said), _REMOTE.match(said)
        if local:
            self.add(
                "cache_latency", _number(line, local["value"]), "ns", writer=None, reader=None,
                homed=None, transfer=re.sub(r"\s+", " ", local["what"]),
            )  # fmt: skip
        elif remote:
            self.close_table()
            transfer = re.sub(r"\s+", " ", remote["what"])
            self.transfer = {"transfer": transfer, "homed": remote["home"]}
        else:
            return bool(self.transfer) and self._matrix(line, said)
        return True

    def _matrix(self, line: Line, said: str) -> bool:
        head, match = _HEAD.match(said), _ROW.match(said)
        if head and not self.columns:
            self.columns = [int(n) for n in head[1].split()]
            return True
        if not match or not self.columns:
            return False
        node, cells = int(match[1]), match[2].split()
        if len(cells) != len(self.columns):
            refuse(NAME, line, f"{len(cells)} values in a table of {len(self.columns)} columns")
        if self.rows and node <= self.rows[-1]:
            refuse(NAME, line, "the rows of the table do not ascend")
        self.rows.append(node)
        for other, cell in zip(self.columns, cells):
            value = None if cell == "-" else _number(line, cell)
            if self.section == "caches":
                self.add("cache_latency", value, "ns", writer=node, reader=other, **self.transfer)
            elif self.section == "idle":
                pair = {"from": node, "to": other, "access": self.access}
                self.add("idle_latency", value, "ns", **pair)
            else:
                pair = {"from": node, "to": other, "traffic": self.traffic}
                self.add("bandwidth", value, "MB/s", **pair)
        return True


def parse_whole(text: str, without_cpus: Sequence[int] = ()) -> List[Record]:
    """As Mlc.parse, for a text of which nothing else says that it is whole.

    A matrix at its end that lacks rows is refused, unless these nodes are known to be
    ``without_cpus`` (CXL, HBM), which have no rows: by another matrix of the same run, or by the
    caller.
    """
    reader = _read(text)
    lacking = [node for node in reader.rowless if node not in without_cpus]
    if lacking:
        why = f"no row of node {lacking[0]} at the end: cut short? If that node has no CPUs, give"
        refuse(NAME, None, f"{why} the output of numactl --hardware, or of mlc without options,"
               " with it: both show it")  # fmt: skip
    return reader.out


def _read(text: str) -> _Reader:
    reader = _Reader()
    for line in lines(text, ("mlc", "mlc_avx512", "mlc_internal")):
        if line.text.strip():
            reader.read(line)
    reader.close()
    if not any(r["kind"] in _MEASURED for r in reader.out):
        refuse(NAME, None, "it holds no measurement of MLC's")
    if reader.run == 1:
        for record in reader.out:
            del record["run"]
    return reader


def _mix(said: str) -> str:
    """Name a mix of traffic as the probe does: reads, 3:1, 2:1, 1:1, triad; else as MLC does."""
    plain = re.sub(r"\s*traffic type\s*", "", said)
    if plain in ("ALL Reads", "Read-only"):
        return "reads"
    ratio = re.match(r"(\d+:\d+) [Rr]eads?-[Ww]rites?\Z", plain)
    if ratio:
        return ratio[1]
    return "triad" if plain.startswith("Stream-triad") else plain


def _number(line: Line, word: str, decimals: int = 1) -> float:
    if not re.fullmatch(rf"\d+\.\d{{{decimals}}}", word):
        refuse(NAME, line, f"{word!r} is not a value with {decimals} decimals, as MLC prints it")
    return float(word)


# --- the driver -------------------------------------------------------------------------------

_SECONDS = {
    "latency_matrix": 60.0, "bandwidth_matrix": 120.0, "peak_injection_bandwidth": 60.0,
    "loaded_latency": 120.0, "c2c_latency": 30.0,
}  # fmt: skip
_TESTS = tuple(_SECONDS)
_CHASES = ("latency_matrix", "loaded_latency")
_OPTIONS = ("test", "path", "random", "buffer_mib", "time_s")
# What the probe is told for the same measurements: MLC has its own sizes, times and mixes.
_PROBES = ("mode", "bytes", "seconds", "delays", "mixes", "pages", "threads")
_TEST_OF = {
    "latency": "latency_matrix", "bandwidth": "bandwidth_matrix", "loaded": "loaded_latency",
    "core-to-core": "c2c_latency",
}  # fmt: skip


class Mlc(Driver):
    """Intel MLC, where the user has it."""

    name = NAME

    def find(self, options: Options) -> ToolRecord:
        """Return MLC's path and version; Fault with what to do when it is missing."""
        path = shutil.which(paths.here(str(options.get("path") or "mlc")))
        if path is None:
            asked = options.get("path")
            raise Fault(
                f"{asked} is not an executable program" if asked
                else "Intel MLC (mlc) is not on PATH",
                "download it from Intel (its licence forbids that numalab ships it; x86 only) and "
                "put it on PATH or name it as the option path; the probe measures the same "
                "without it",
            )  # fmt: skip
        # --help prints the banner and measures nothing
        said = check.answer(path, "--help")
        match = re.search(r"Memory Latency Checker\s*-\s*v(\d+\.\d+\w*)", said)
        if not match:
            raise Fault(
                f"{path} does not say that it is Intel's MLC", "name the right program as path"
            )
        return ToolRecord(NAME, match[1], path)

    def prepare(self, options: Options, host: Host, cpus: str, memory_nodes: str) -> Prepared:
        """Return the resolved options and the memory needed (bytes); Fault for a bad option."""
        check.known(NAME, [name for name in options if name not in _PROBES], _OPTIONS)
        mode = options.get("mode", "latency")
        if mode not in _TEST_OF:
            raise Fault(f"mlc cannot measure {mode!r}", f"it measures {', '.join(_TEST_OF)}")
        test = check.choice("test", options.get("test", _TEST_OF[mode]), _TESTS)
        buffer_mib = options.get("buffer_mib")
        if buffer_mib is not None:
            check.whole("buffer_mib", buffer_mib, 1)
        need = (buffer_mib or 200) * max(1, host.threads) * 2**20
        notes = [reason("mlc-leaves-prefetchers")]
        own = {name: options[name] for name in options if name not in _PROBES}
        resolved = {**own, "test": test, "random": bool(options.get("random", True))}
        if resolved["random"] and test in _CHASES:
            notes.append(reason("mlc-random-access"))
        if test in ("latency_matrix", "bandwidth_matrix"):
            notes.append(reason("mlc-binds-itself"))
        return Prepared(resolved, 2**28 if test == "c2c_latency" else need, tuple(notes))

    def argv(self, found: ToolRecord, options: Options, cell: Cell) -> List[str]:
        """Return the command line: one test, the prefetchers left alone (-e)."""
        out = [str(found.path), f"--{options['test']}", "-e"]
        if options.get("random") and options["test"] in _CHASES:
            out.append("-r")
        if options.get("buffer_mib"):
            out.append(f"-b{options['buffer_mib']}m")
        if options.get("time_s") and options["test"] != "c2c_latency":
            out.append(f"-t{int(options['time_s'])}")
        return out

    def timing(self, options: Options) -> Timing:
        """Return the planned seconds; MLC decides itself how long a test takes."""
        return Timing(setup_s=1.0, measure_s=_SECONDS[options.get("test", "latency_matrix")])

    def parse(self, text: str) -> List[Record]:
        """Return the records of every section; ParseError for any line that MLC does not print."""
        return _read(text).out

    def metrics(self, records: Sequence[Record]) -> List[Row]:
        """Return idle_latency, bandwidth, loaded_latency, cache_latency … of a parsed output.

        Access and traffic are part of the point, so that only what is alike is compared, and so
        are large pages, random traffic (-U) and, of several, the run.
        """
        out: List[Row] = []
        for r in records:
            if r["kind"] not in _MEASURED:
                continue
            mode, at = _mode(r, records), {}
            place, why = "", reason("tool-said", text=r.get("reason"))
            if "from" in r:
                place, at = f"{r['from']}-{r['to']}", {"x": r["from"], "y": r["to"]}
            elif r["kind"] == "loaded_latency":
                place, at = f"{r['traffic']} delay={r['delay']}", {"x": r["delay"]}
                mode.remove(r["traffic"])
            elif r["kind"] == "cache_latency":
                place = r["transfer"]
                if r["writer"] is not None:
                    place += f" {r['writer']}-{r['reader']} homed in {r['homed']}"
                    at = {"x": r["writer"], "y": r["reader"]}
            at["point"] = " ".join([place, *mode] if place else mode)
            if r["unit"] == "ns":
                out.append(row(r["kind"], r["value"], "ns", why, **at))
            else:
                moved = None if r["value"] is None else r["value"] / 1000
                out.append(row(r["kind"], moved, "GB/s", why, **at))
            if r["kind"] == "loaded_latency":
                out.append(row("loaded_bandwidth", r["bandwidth"] / 1000, "GB/s", **at))
        return out


def _mode(record: Record, records: Sequence[Record]) -> List[str]:
    """Return how a value was measured, in words of its point."""
    run = record.get("run")
    mine = [r for r in records if r.get("run") == run]
    words = " ".join(r["text"] for r in mine if r["kind"] == "command").split()
    out = [record[key] for key in ("traffic", "access") if key in record]
    if "bandwidth" in record["kind"] and "-U" in words:
        out.append("random")
    if any(r["kind"] == "pages" for r in mine) or {"-L", "-h"} & set(words):
        out.append("large pages")
    return [*out, f"run {run}"] if run else out
