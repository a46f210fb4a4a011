"""Intel Memory Latency Checker: parser of its output (versions 3.0 to 3.11), and its driver.

Format: the tool's own output and its readme ("Intel Memory Latency Checker", section "Command
line arguments"); MLC is closed source, so the format is known from outputs of the versions.
Bandwidths are in units of 1,000,000 bytes/s, as MLC says itself. Latencies have one decimal
(two under load): a number of another form is a number cut short.

Records:

- ``version``: ``text`` ("3.11b"); ``command``: ``text``; ``warning``: ``text``;
  ``buffer``: ``text``; ``access``: ``text`` (sequential, random or null: the version does not say)
- ``idle_latency``: ``from`` (node of the CPU), ``to`` (node of the memory), ``value``, ``unit`` ns;
  without nodes from ``mlc --idle_latency`` (then also ``clocks``)
- ``bandwidth``: ``from``, ``to``, ``traffic``, ``value``, ``unit`` MB/s
- ``peak_bandwidth``, ``max_bandwidth``: ``traffic``, ``value``, ``unit`` MB/s
- ``loaded_latency``: ``delay``, ``value``, ``unit`` ns, ``bandwidth``, ``bandwidth_unit`` MB/s
- ``cache_latency``: ``transfer`` (text), ``writer``, ``reader`` (nodes; null within a socket),
  ``homed`` (writer, reader or null), ``value`` (null with ``reason`` where MLC prints "-"),
  ``unit`` ns

MLC's licence forbids shipping it; the driver uses the user's own copy.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any, Dict, List, Optional, Set

from ..errors import Fault
from .reading import Line, Record, lines, refuse

NAME = "mlc"
PROTOCOL = "sampled"

_BANNER = re.compile(r"Intel\(R\) Memory Latency Checker\s*-\s*v(\d+\.\d+\w*)\Z")
_IDLE = re.compile(
    r"Measuring idle latencies(?: for (sequential|random) access)?(?: \(in ns\))?\.*\Z"
)
_BANDWIDTHS = re.compile(r"Measuring Memory Bandwidths between nodes within system\Z")
_PEAK = re.compile(r"Measuring Peak (?:Injection )?Memory Bandwidths for the system\Z")
_MAXIMUM = re.compile(r"Measuring Maximum Memory Bandwidths for the system\Z")
_LOADED = re.compile(r"Measuring Loaded Latencies for the system\Z")
_CACHES = re.compile(r"Measuring cache-to-cache transfer latency \(in ns\)\.*\Z")
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
_NODES_HEAD = re.compile(r"(?:Numa node|Socket)\s+(\d+(?:\s+\d+)*)\Z")
_WRITER_HEAD = re.compile(r"Writer Numa Node\s+(\d+(?:\s+\d+)*)\Z")
_SAID = re.compile(
    r"(?:Bandwidths are in MB/sec \(1 MB/sec = 1,000,000 Bytes/sec\)"
    r"|Using all the threads from each core if Hyper-threading is enabled"
    r"|Using only one thread from each core if Hyper-threading is enabled"
    r"|Using traffic with the following read-write ratios"
    r"|Will take several minutes to complete as multiple injection rates will be tried to get "
    r"the best bandwidth|=+|Numa node|Memory node|Reader Numa Node|Inject\s+Latency\s+Bandwidth"
    r"|Delay\s+\(ns\)\s+MB/sec)\Z"
)
_USING = re.compile(r"Using (?:.* traffic type.*|traffic type .*)\Z")
_BUFFER = re.compile(r"Using buffer size of .*\Z")
_WARNING = re.compile(r"(?:\*\*\*|WARNING|Warning|NOTE|Note)[:\s].*\Z")


class _Reader:
    """What section of MLC's output is being read, and the table in it."""

    def __init__(self) -> None:
        self.out: List[Record] = []
        self.section = ""
        self.title: Optional[Line] = None
        self.found = 0
        self.columns: List[int] = []
        self.rows: List[int] = []
        self.traffic: Optional[str] = None
        self.transfer: Dict[str, str] = {}
        self.labels: Set[str] = set()  # of the traffic measured in this section

    def open(self, line: Line, section: str) -> None:
        self.close()
        self.section, self.title, self.found = section, line, 0
        self.columns, self.rows, self.traffic, self.labels = [], [], None, set()

    def close(self) -> None:
        """Refuse a section that ended before its values."""
        self.close_table()
        if self.section and not self.found:
            refuse(NAME, self.title, "this section has no values: it failed, or is cut short")
        self.section = ""

    def close_table(self) -> None:
        if self.columns and not self.rows:
            refuse(NAME, self.title, "the table of this section has no rows: cut short?")
        # A row may be missing for a node without CPUs; a node without memory has no column.
        if self.section == "caches" and self.columns and self.rows != self.columns:
            refuse(NAME, self.title, "the table of cache latencies lacks rows: cut short?")
        self.columns, self.rows = [], []

    def add(self, record: Record) -> None:
        self.found += 1
        self.out.append(record)


def _number(line: Line, word: str, decimals: int = 1) -> float:
    if not re.fullmatch(rf"\d+\.\d{{{decimals}}}", word):
        refuse(NAME, line, f"{word!r} is not a value with {decimals} decimals, as MLC prints it")
    return float(word)


def parse(text: str) -> List[Record]:
    """Return the records of every section; ParseError for any line that MLC does not print."""
    reader = _Reader()
    for line in lines(text, ("mlc", "mlc_avx512", "mlc_internal")):
        row = line.text.strip()
        if row:
            _line(reader, line, row)
    reader.close()
    if not any(r["kind"] in _MEASURED for r in reader.out):
        refuse(NAME, None, "it holds no measurement of MLC's")
    return reader.out


_MEASURED = {
    "idle_latency", "bandwidth", "peak_bandwidth", "max_bandwidth", "loaded_latency",
    "cache_latency",
}  # fmt: skip


def _line(reader: _Reader, line: Line, row: str) -> None:
    out = reader.out
    match = _BANNER.match(row)
    if match:
        reader.close()
        out.append({"kind": "version", "text": match[1]})
        return
    if row.startswith("Command line parameters:"):
        out.append({"kind": "command", "text": row.split(":", 1)[1].strip()})
        return
    if _BUFFER.match(row):
        out.append({"kind": "buffer", "text": row})
        return
    if _WARNING.match(row):
        out.append({"kind": "warning", "text": row.lstrip("* ")})
        return
    match = _IDLE.match(row)
    if match:
        reader.open(line, "idle")
        out.append({"kind": "access", "text": match[1]})
        return
    for pattern, section in (
        (_BANDWIDTHS, "bandwidth"), (_PEAK, "peak"), (_MAXIMUM, "maximum"), (_LOADED, "loaded"),
        (_CACHES, "caches"),
    ):  # fmt: skip
        if pattern.match(row):
            reader.open(line, section)
            return
    match = _ITERATION.match(row)
    if match:
        value, clocks = float(match["ns"]), float(match["clocks"])
        reader.add({"kind": "idle_latency", "value": value, "unit": "ns", "clocks": clocks})
        return
    if _USING.match(row):
        reader.traffic = row[len("Using ") :].replace(" traffic type", "")
        return
    if _SAID.match(row):
        return
    if not reader.section:
        refuse(NAME, line, "this is not a line of MLC's")
    _measured(reader, line, row)


def _measured(reader: _Reader, line: Line, row: str) -> None:
    section = reader.section
    if section in ("idle", "bandwidth"):
        match = _NODES_HEAD.match(row)
        if match and not reader.columns:
            reader.columns = [int(n) for n in match[1].split()]
            return
        match = _ROW.match(row)
        if match and reader.columns:
            _matrix_row(reader, line, int(match[1]), match[2].split())
            return
    elif section in ("peak", "maximum"):
        match = _TRAFFIC.match(row)
        if match:
            kind = "peak_bandwidth" if section == "peak" else "max_bandwidth"
            # --max_bandwidth prints two decimals, --peak_injection_bandwidth one.
            value = _number(line, match["value"], 2 if section == "maximum" else 1)
            if match["label"] in reader.labels:
                refuse(NAME, line, f"{match['label']} a second time")
            reader.labels.add(match["label"])
            reader.add({"kind": kind, "traffic": match["label"], "value": value, "unit": "MB/s"})
            return
    elif section == "loaded":
        match = re.fullmatch(r"(\d{5,})\s+(\S+?)\s+(\S+)", row)
        if match:
            reader.add(
                {
                    "kind": "loaded_latency", "delay": int(match[1]), "traffic": reader.traffic,
                    "value": _number(line, match[2], 2), "unit": "ns",
                    "bandwidth": _number(line, match[3]), "bandwidth_unit": "MB/s",
                }
            )  # fmt: skip
            return
    elif section == "caches":
        match = _LOCAL.match(row)
        if match:
            what = re.sub(r"\s+", " ", match["what"])
            value = _number(line, match["value"])
            reader.add(
                {
                    "kind": "cache_latency", "transfer": what, "writer": None, "reader": None,
                    "homed": None, "value": value, "unit": "ns",
                }
            )  # fmt: skip
            return
        match = _REMOTE.match(row)
        if match:
            reader.close_table()
            reader.transfer = {"what": re.sub(r"\s+", " ", match["what"]), "home": match["home"]}
            return
        match = _WRITER_HEAD.match(row)
        if match and reader.transfer and not reader.columns:
            reader.columns = [int(n) for n in match[1].split()]
            return
        match = _ROW.match(row)
        if match and reader.columns:
            _matrix_row(reader, line, int(match[1]), match[2].split())
            return
    refuse(NAME, line, "this is not a line of this section of MLC's output")


def _matrix_row(reader: _Reader, line: Line, node: int, cells: List[str]) -> None:
    if len(cells) != len(reader.columns):
        refuse(NAME, line, f"{len(cells)} values in a table of {len(reader.columns)} columns")
    if reader.rows and node <= reader.rows[-1]:
        refuse(NAME, line, "the rows of the table do not ascend")
    reader.rows.append(node)
    for other, cell in zip(reader.columns, cells):
        value = None if cell == "-" else _number(line, cell)
        if reader.section == "caches":
            record: Record = {
                "kind": "cache_latency", "transfer": reader.transfer["what"], "writer": node,
                "reader": other, "homed": reader.transfer["home"], "value": value, "unit": "ns",
            }  # fmt: skip
        elif reader.section == "idle":
            record = {"kind": "idle_latency", "from": node, "to": other, "value": value}
            record["unit"] = "ns"
        else:
            record = {"kind": "bandwidth", "from": node, "to": other, "traffic": reader.traffic}
            record.update(value=value, unit="MB/s")
        if value is None:
            record["reason"] = "MLC measures nothing here"
        reader.add(record)


# Driver

_TESTS = {
    "latency_matrix": (60.0, "idle_latency"),
    "bandwidth_matrix": (120.0, "bandwidth"),
    "peak_injection_bandwidth": (60.0, "peak_bandwidth"),
    "loaded_latency": (120.0, "loaded_latency"),
    "c2c_latency": (30.0, "cache_latency"),
}
_OPTIONS = {"test", "path", "random", "buffer_mib", "time_s"}
# What the probe is told for the same measurements: MLC has its own sizes, times and mixes.
_PROBES = {"mode", "bytes", "seconds", "delays", "mixes", "pages", "threads"}
_TEST_OF = {
    "latency": "latency_matrix", "bandwidth": "bandwidth_matrix", "loaded": "loaded_latency",
    "core-to-core": "c2c_latency",
}  # fmt: skip


def find(options: Dict[str, Any]) -> Dict[str, Any]:
    """Return MLC's path and version; Fault with what to do when it is missing or will not run."""
    wanted = options.get("path") or "mlc"
    path = shutil.which(str(wanted))
    if path is None:
        raise Fault(
            f"{wanted} is not an executable program" if options.get("path") else
            "Intel MLC (mlc) is not on PATH",
            "download it from Intel (its licence forbids that numalab ships it; x86 only) and put "
            "it on PATH or name it as the option path; the probe measures the same without it",
        )  # fmt: skip
    try:  # --help prints the banner and measures nothing
        done = subprocess.run(
            [path, "--help"], capture_output=True, text=True, errors="replace", timeout=20,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Fault(f"{path} does not run: {error}", "check that it is Intel's mlc") from None
    match = re.search(r"Memory Latency Checker\s*-\s*v(\d+\.\d+\w*)", done.stdout + done.stderr)
    if not match:
        raise Fault(f"{path} does not say that it is Intel's MLC", "name the right program as path")
    return {"path": path, "version": match[1]}


def prepare(
    options: Dict[str, Any], topology: Dict[str, Any], cpus: str, memory_nodes: str
) -> Dict[str, Any]:
    """Return the resolved options and the memory needed (bytes); Fault for a bad option."""
    asked, unknown = options, set(options) - _OPTIONS - _PROBES
    if unknown:
        raise Fault(
            f"mlc has no option {sorted(unknown)[0]!r}", f"known: {', '.join(sorted(_OPTIONS))}"
        )
    options = {name: value for name, value in options.items() if name not in _PROBES}
    mode = asked.get("mode", "latency")
    if mode not in _TEST_OF:
        raise Fault(f"mlc cannot measure {mode!r}", f"it measures {', '.join(_TEST_OF)}")
    test = options.get("test", _TEST_OF[mode])
    if test not in _TESTS:
        raise Fault(f"mlc has no test {test!r}", f"known: {', '.join(_TESTS)}")
    buffer_mib = options.get("buffer_mib")
    if buffer_mib is not None and (not isinstance(buffer_mib, int) or buffer_mib < 1):
        raise Fault(f"buffer_mib {buffer_mib!r} is not a whole number of MiB", None)
    threads = max(1, int(topology.get("threads") or 1))
    need = (buffer_mib or 200) * threads * 2**20 if test != "c2c_latency" else 2**28
    notes = ["run with -e: MLC leaves the hardware prefetchers as they are"]
    resolved = {**options, "test": test, "random": bool(options.get("random", True))}
    if resolved["random"] and test in ("latency_matrix", "loaded_latency"):
        notes.append("latency by random access (-r), which the prefetchers do not hide")
    if test in ("latency_matrix", "bandwidth_matrix"):
        notes.append("MLC chooses CPUs and memory of this matrix itself, whatever the binding")
    return {"options": resolved, "need_bytes": need, "notes": notes}


def argv(found: Dict[str, Any], options: Dict[str, Any], cell: Dict[str, Any]) -> List[str]:
    """Return the command line: one test, the prefetchers left alone (-e)."""
    out = [found["path"], f"--{options['test']}", "-e"]
    if options.get("random") and options["test"] in ("latency_matrix", "loaded_latency"):
        out.append("-r")
    if options.get("buffer_mib"):
        out.append(f"-b{options['buffer_mib']}m")
    if options.get("time_s") and options["test"] != "c2c_latency":
        out.append(f"-t{int(options['time_s'])}")
    return out


def timing(options: Dict[str, Any]) -> Dict[str, float]:
    """Return the planned seconds; MLC decides itself how long a test takes."""
    seconds = _TESTS.get(options.get("test", "latency_matrix"), (60.0, ""))[0]
    return {"warmup_s": 0.0, "measure_s": seconds, "setup_s": 1.0}


def metrics(records: List[Record]) -> List[Record]:
    """Return idle_latency, bandwidth, loaded_latency, core_latency … of a parsed output."""
    out: List[Record] = []
    for r in records:
        kind, value = r["kind"], r.get("value")
        at: Record = {"point": "", "x": None, "y": None, "reason": r.get("reason")}
        if kind in ("idle_latency", "bandwidth") and "from" in r:
            at.update(point=f"{r['from']}-{r['to']}", x=float(r["from"]), y=float(r["to"]))
        if kind == "idle_latency":
            out.append({"metric": "idle_latency", "value": value, "unit": "ns", **at})
        elif kind in ("bandwidth", "peak_bandwidth", "max_bandwidth"):
            if kind != "bandwidth":
                at["point"] = _point(str(r["traffic"]))
            gigabytes = None if value is None else float(value) / 1000
            out.append({"metric": kind, "value": gigabytes, "unit": "GB/s", **at})
        elif kind == "loaded_latency":
            at.update(point=f"delay={r['delay']}", x=float(r["delay"]))
            out.append({"metric": "loaded_latency", "value": value, "unit": "ns", **at})
            out.append(
                {**at, "metric": "loaded_bandwidth", "value": r["bandwidth"] / 1000, "unit": "GB/s"}
            )
        elif kind == "cache_latency":
            at["point"] = str(r["transfer"])
            if r["writer"] is not None:
                at["point"] += f" {r['writer']}-{r['reader']} homed in {r['homed']}"
                at.update(x=float(r["writer"]), y=float(r["reader"]))
            out.append({"metric": "cache_latency", "value": value, "unit": "ns", **at})
    return out


def _point(traffic: str) -> str:
    """Name a mix of traffic as the probe does: reads, 3:1, 2:1, 1:1, triad."""
    if traffic == "ALL Reads":
        return "reads"
    ratio = re.match(r"(\d+:\d+) Reads?-Writes?\Z", traffic)
    if ratio:
        return ratio[1]
    return "triad" if traffic.startswith("Stream-triad") else traffic
