"""sysbench: parser of its output (versions 0.4, 0.5, 1.0, 1.1), and driver of its tests.

Format: sysbench's sysbench.c (sb_report_intermediate, sb_report_cumulative, checkpoints),
tests/*/sb_*.c, db_driver.c and lua/internal/sysbench.sql.lua of each version's branch. Latencies
are in ms in every version but the interval reports of some 0.5 builds, which say us. What the
old versions call MB is 1048576 bytes: MiB.

Records:

- ``version``: ``text``; ``warning``, ``step``, ``script_output``: ``text``
- ``option``: ``name``, ``value`` (and ``unit``): threads, seed, warmup, report_interval,
  prime_limit, block_size, total_size, operation, scope, thread_yields, thread_locks …
- ``report``, one per interval: ``t_s``, ``threads``, and of ``tps``, ``qps``, ``reads``,
  ``writes``, ``others``, ``eps``, ``mib_per_second``, ``errors``, ``reconnects``, ``latency``
  (with ``latency_unit`` and ``percentile``), ``queue_length``, ``concurrency`` those that it has
- ``result``: ``name``, ``value``, ``unit``: events_per_second, total_time, total_events,
  operations, operations_per_second, transferred, transfer_rate, transactions,
  transactions_per_second, queries …, ``latency_min`` …, ``latency_p95`` …
- ``fairness``: ``name`` (events, execution_time), ``value`` (average), ``stddev``, ``unit``
- ``histogram``: ``value`` (upper edge of the bucket), ``unit`` ms, ``count``
- ``failure``: ``level`` (FATAL, ALERT …), ``text``, ``code`` (the server's error, or null)
- ``incomplete``: ``reason``: reports, but no final result

Records of a checkpoint's report (``--report-checkpoints``) carry ``checkpoint_s``; the final
report then covers only what came after the last checkpoint.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any, Dict, List, Optional

from .. import cpulist
from ..errors import Fault
from .reading import Line, Record, lines, refuse

NAME = "sysbench"
PROTOCOL = "sampled"

_HEADER = re.compile(
    r"sysbench v?(\d+\.\d+(?:\.\d+)*[\w.+-]*)"
    r"(?::\s+multi-threaded system evaluation benchmark| \(using .*\))?\Z"
)
_NUMBER = r"-?\d+(?:\.\d+)?"
# What says how the test runs: a record "option" each.
_OPTIONS = [
    (name, re.compile(pattern + r"\Z"), unit)
    for name, pattern, unit in (
        ("threads", r"Number of threads: (\d+)", ""),
        ("warmup", r"Warmup time: (\d+)s", "s"),
        ("warmup", r"Warming up for (\d+) seconds\.\.\.", "s"),
        ("transaction_rate", r"Target transaction rate: (\d+)/sec(?:, with jitter .*)?", "1/s"),
        ("report_interval", r"Report intermediate results every (\d+) second\(s\)", "s"),
        ("checkpoints", r"Report checkpoint\(s\) at ([\d, ]+) seconds", "s"),
        ("seed", r"Initializing random number generator from seed \((-?\d+)\)\.?", ""),
        ("random", r"Initializing random number generator from (timer|current time)\.?", ""),
        ("forced_shutdown", r"Forcing shutdown in (\d+) seconds", "s"),
        ("prime_limit", r"Prime numbers limit: (\d+)", ""),
        ("prime_limit", r"Maximum prime number checked in CPU test: (\d+)", ""),
        ("block_size", r"block size: (\d+)KiB", "KiB"),
        ("block_size", r"Memory block size: (\d+)K", "KiB"),
        ("block_size", r"block size: (\d+)B", "B"),
        ("total_size", r"total size: (\d+)MiB", "MiB"),
        ("total_size", r"Memory transfer size: (\d+)M", "MiB"),
        ("operation", r"(?:operation|Memory operations type): (read|write|none)", ""),
        ("scope", r"(?:scope|Memory scope type): (global|local)", ""),
        ("thread_yields", r"Thread yields per test: (\d+) Locks used: (\d+)", ""),
    )
]  # fmt: skip
_SAID = re.compile(
    r"(?:Running the test with following options:|Random number generator seed is 0 and will be "
    r"ignored|Debug mode enabled\.|Additional request validation enabled\.|Validation checks: on\."
    r"|Done\.|Time limit exceeded, exiting\.\.\."
    r"|Event limit exceeded, exiting\.\.\.|\(last message repeated \d+ times\)"
    r"|Reading the script from the standard input:|Running Test(?:\.\.\.)?"
    r"|Doing (?:CPU performance benchmark|memory operations speed test|thread subsystem "
    r"performance test|mutex performance test|OLTP test\.?)"
    r"|Running memory speed test with the following options:|Running mixed OLTP test"
    r"|Running (?:simple|complex) OLTP test|Doing (?:read-only|read only) test"
    r"|Using \w+ distribution.*|Using \"(?:BEGIN|LOCK TABLES.*)\" for starting transactions"
    r"|Using auto_inc on the id column|Not using auto_inc on the id column|Using \d+ test tables"
    r"|Maximum number of requests for OLTP test is limited to \d+|Preparing statements\.*"
    r"|No DB drivers specified, using \w+"
    r"|(?:CPU speed|SQL statistics|OLTP test statistics|General statistics|Throughput"
    r"|Test execution summary|Latency \(ms\)|per-request statistics|response time|Threads fairness"
    r"|queries performed|Verbose per-thread statistics):?|value\s+-+ distribution -+ count"
    r"|thread #\s*\d+: min: .*|total time taken by event execution: \d+\.\d{4}s)\Z"
)
_STEP = re.compile(
    r"(?:Creating table '.*'\.\.\.|Inserting \d+ records into '.*'"
    r"|Creating (?:a )?secondary index(?:es)? on '.*'\.\.\.|Dropping table '.*'\.\.\."
    r"|Creating \d+ records in table '.*'\.\.\.|Table '.*' already exists.*"
    r"|Initializing .* on '.*'.*)\Z"
)
_FAILURE = re.compile(
    r"(?P<level>FATAL|ALERT|PANIC|Error|ERROR|error)(?::| in )\s*(?P<text>.*)\Z"
    r"|(?P<plain>(?:Unknown option|invalid option|Cannot find|sysbench: ).*)\Z"
)
_FAILED_DETAIL = re.compile(r"(?:stack traceback:|\[C\]: .*|\S+\.lua:\d+: .*|\t.*)\Z")
_CODE = re.compile(
    r"\b(?:error|Error:?|MySQL error:|SQL error, errno =|errno =)\s*:?\s*(\d{3,5})\b"
)
# Interval reports.
_REPORT = re.compile(r"\[\s*(?P<t>\d+(?:\.\d+)?)s ?\]\s+(?P<rest>\S.*)\Z")
_REPORT_1 = re.compile(
    r"thds: (?P<threads>\d+) (?:tps: (?P<tps>N) qps: (?P<qps>N) "
    r"\(r/w/o: (?P<reads>N)/(?P<writes>N)/(?P<others>N)\)|eps: (?P<eps>N)) "
    r"lat \(ms, ?(?P<percentile>\d+)%\): (?P<latency>N)"
    r"(?: err/s:? (?P<errors>N) reconn/s: (?P<reconnects>N))?\Z".replace("N", r"-?\d+\.\d\d")
)
_QUEUE = re.compile(r"queue length: (\d+),? concurrency: (\d+)\Z")
_RATE = re.compile(r"(\d+\.\d\d) MiB/sec\Z")
_REPORT_0 = {
    "tps": "tps", "reads": "reads", "reads/s": "reads", "writes": "writes", "writes/s": "writes",
    "errors": "errors", "reconnects": "reconnects", "queue length": "queue_length",
    "concurrency": "concurrency", "events": "eps", "events/s": "eps", "deadlocks": "errors",
}  # fmt: skip
# Final results.
_OPERATIONS = re.compile(
    r"(?:Total operations|Operations performed): (\d+) \( *(\d+\.\d\d) (?:per second|ops/sec)\)\Z"
)
_TRANSFERRED = re.compile(r"(\d+\.\d\d) Mi?B transferred \((\d+\.\d\d) Mi?B/sec\)\Z")
_RATES = re.compile(
    r"(transactions|queries|read/write requests|other operations|deadlocks|ignored errors"
    r"|reconnects):\s+(\d+)\s*\(\s*(\d+\.\d+) per sec\.\)\Z"
)
_QUERIES = re.compile(r"(read|write|other|total):\s+(\d+)\Z")
_TOTALS = (
    ("events_per_second", re.compile(r"events per second:\s+(\d+\.\d\d)\Z"), "1/s"),
    ("throughput", re.compile(r"events/s \(eps\):\s+(\d+\.\d{4})\Z"), "1/s"),
    ("total_time", re.compile(r"(?:total time|time elapsed):\s+(\d+\.\d{4})s\Z"), "s"),
    ("total_events", re.compile(r"total number of events:\s+(\d+)\Z"), ""),
    (
        "execution_time_sum",
        re.compile(r"total time taken by event execution:\s+(\d+\.\d{4})s?\Z"),
        "s",
    ),
    ("unfinished", re.compile(r"Number of unfinished transactions on .*: (\d+)\Z"), ""),
)
_LATENCY = re.compile(
    r"(?:(?P<name>min|avg|max|sum)|(?:approx\.\s+)?(?P<pct>\d+)(?:th|st|nd|rd)? percentile):\s+"
    r"(?P<value>\d+\.\d+)(?P<unit>ms|us|ns|s)?\Z"
)
_FAIRNESS = re.compile(
    r"(?P<name>events|execution time) \(avg/stddev\):\s+(?P<avg>\d+\.\d{4})/(?P<dev>\d+\.\d\d)\Z"
)
_BUCKET = re.compile(r"(\d+\.\d{3}) \|(\**)\s+(\d+)\Z")


class _Reader:
    """One run while it is being read."""

    def __init__(self, has_header: bool) -> None:
        self.out: List[Record] = []
        self.has_header = has_header
        self.headed = not has_header
        self.scripting = False  # a Lua script may print while its threads are prepared
        self.checkpoint: Optional[float] = None
        self.failed = False
        self.seen: Dict[object, Line] = {}  # results of the current report

    def add(self, line: Line, record: Record) -> None:
        key = (record["kind"], record.get("name"))
        if record["kind"] in ("result", "fairness", "option"):
            if key in self.seen and record["kind"] != "option":
                refuse(NAME, line, f"{record['name']} a second time")
            self.seen[key] = line
        if self.checkpoint is not None and record["kind"] != "report":
            record["checkpoint_s"] = self.checkpoint
        self.out.append(record)

    def result(self, line: Line, name: str, text: str, unit: str) -> None:
        value = int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        self.add(line, {"kind": "result", "name": name, "value": value, "unit": unit})


def parse(text: str) -> List[Record]:
    """Return the records of one run; ParseError for a line that sysbench does not print.

    A failed run gives ``failure`` records. A run that ends without its final report gives its
    interval reports and a record ``incomplete``; without any report it is a ParseError.
    """
    rows = lines(text, ("sysbench",))
    reader = _Reader(any(_HEADER.match(line.text.strip()) for line in rows))
    for line in rows:
        row = line.text.strip()
        if row:
            _line(reader, line, row)
    return _finish(reader)


def _finish(reader: _Reader) -> List[Record]:
    out = reader.out
    final = {r["name"] for r in out if r["kind"] == "result" and "checkpoint_s" not in r}
    if "total_time" in final and "total_events" in final:
        if not {"latency_min", "latency_avg", "latency_max"} <= final:
            refuse(NAME, None, "the final report lacks its latencies: cut short?")
        return out
    if final & {"total_time", "total_events"} or (final and not reader.failed):
        refuse(NAME, None, "the final report is not complete: cut short?")
    if reader.failed or any(r["kind"] == "step" for r in out):
        return out
    if any(r["kind"] in ("report", "result") for r in out):
        out.append({"kind": "incomplete", "reason": "the output ends before the final report"})
        return out
    refuse(NAME, None, "it holds neither a result nor a failure of sysbench's")


def _line(reader: _Reader, line: Line, row: str) -> None:
    match = _HEADER.match(row)
    if match:
        if any(r["kind"] == "version" for r in reader.out):
            refuse(NAME, line, "a second run: give each run's output on its own")
        reader.headed = True
        reader.add(line, {"kind": "version", "text": match[1]})
        return
    if row.startswith("WARNING:"):
        reader.add(line, {"kind": "warning", "text": row[len("WARNING:") :].strip()})
        return
    match = _FAILURE.match(row)
    if match:
        reader.failed = True
        code = _CODE.search(row)
        reader.add(
            line,
            {
                "kind": "failure", "level": (match["level"] or "error").upper(),
                "text": match["text"] or row, "code": int(code[1]) if code else None,
            },
        )  # fmt: skip
        return
    if not reader.headed:
        return  # a wrapper's own words before sysbench began
    if reader.failed and _FAILED_DETAIL.match(row):
        return
    if _option(reader, line, row) or _report(reader, line, row) or _result(reader, line, row):
        return
    if _STEP.match(row):
        reader.add(line, {"kind": "step", "text": row})
        return
    if row in ("Initializing worker threads...", "Threads started!"):
        reader.scripting = reader.has_header and row != "Threads started!"
        return
    if row.startswith("Latency histogram"):  # printed once, before the final report
        reader.checkpoint, reader.seen = None, {}
        return
    if _SAID.match(row):
        return
    if reader.scripting and not row.startswith("["):
        reader.add(line, {"kind": "script_output", "text": row})
        return
    refuse(NAME, line, "this is not a line of sysbench's")


def _option(reader: _Reader, line: Line, row: str) -> bool:
    for name, pattern, unit in _OPTIONS:
        match = pattern.match(row)
        if match:
            value: object = int(match[1]) if re.fullmatch(r"-?\d+", match[1]) else match[1]
            reader.add(line, {"kind": "option", "name": name, "value": value, "unit": unit})
            if name == "thread_yields":
                locks = {"kind": "option", "name": "thread_locks", "value": int(match[2])}
                reader.add(line, {**locks, "unit": ""})
            return True
    return False


def _report(reader: _Reader, line: Line, row: str) -> bool:
    match = _REPORT.match(row)
    if not match:
        return False
    t_s, rest = float(match["t"]), match["rest"].strip()
    if rest == "Checkpoint report:":
        reader.checkpoint, reader.seen = t_s, {}
        return True
    # Another thread prints these: one can fall into the midst of a checkpoint's report.
    if reader.checkpoint is not None and ("fairness", "execution_time") in reader.seen:
        reader.checkpoint, reader.seen = None, {}
    record: Record = {"kind": "report", "t_s": t_s}
    modern = _REPORT_1.match(rest)
    if modern:
        for name, text in modern.groupdict().items():
            if text is not None:
                record[name] = float(text) if "." in text else int(text)
        record["latency_unit"] = "ms"
        reader.add(line, record)
        return True
    queue = _QUEUE.match(rest)
    if queue:
        # A checkpoint's report, printed by another thread, can stand between the two.
        last = next((one for one in reversed(reader.out) if one["kind"] == "report"), {})
        if last.get("t_s") == t_s and "queue_length" not in last:
            last.update(queue_length=int(queue[1]), concurrency=int(queue[2]))
            return True
        refuse(NAME, line, "a length of the queue without the report that it belongs to")
    rate = _RATE.match(rest)
    if rate:
        record["mib_per_second"] = float(rate[1])
        reader.add(line, record)
        return True
    _old_report(line, rest, record)
    reader.add(line, record)
    return True


def _old_report(line: Line, rest: str, record: Record) -> None:
    """Read a report of sysbench 0.4 and 0.5: "threads: 2, tps: 144.13, reads: 2030.88, …"."""
    rest = re.sub(r"\AIntermediate results: (\d+) threads, ", r"threads: \1, ", rest)
    rest = re.sub(r"(\d) response time:", r"\1, response time:", rest)
    for item in rest.split(", "):
        match = re.fullmatch(
            rf"response time: (?P<value>{_NUMBER})(?P<unit>ms|us|s) \((?P<pct>\d+)%\)", item
        )
        if match and "latency" not in record:
            record.update(latency=float(match["value"]), latency_unit=match["unit"])
            record["percentile"] = int(match["pct"])
            continue
        match = re.fullmatch(rf"([a-z][a-z/ ]*):\s+({_NUMBER})(?:/s)?", item.rstrip(","))
        if match and match[1] == "threads" and "threads" not in record:
            record["threads"] = int(float(match[2]))
            continue
        name = _REPORT_0.get(match[1]) if match else None
        if not match or name is None or name in record:
            refuse(NAME, line, f"{item!r} is not a part of an interval report")
        record[name] = float(match[2])
    if "threads" not in record or len(record) < 5:
        refuse(NAME, line, "an interval report without its threads or its values: cut short?")


def _result(reader: _Reader, line: Line, row: str) -> bool:
    if row in ("CPU speed:", "SQL statistics:", "OLTP test statistics:") and reader.seen:
        if ("result", "total_time") in reader.seen:  # the final report after a checkpoint's
            reader.checkpoint, reader.seen = None, {}
        return True
    match = _OPERATIONS.match(row)
    if match:
        if ("result", "total_time") in reader.seen:
            reader.checkpoint, reader.seen = None, {}
        reader.result(line, "operations", match[1], "")
        reader.result(line, "operations_per_second", match[2], "1/s")
        return True
    match = _TRANSFERRED.match(row)
    if match:
        reader.result(line, "transferred", match[1], "MiB")
        reader.result(line, "transfer_rate", match[2], "MiB/s")
        return True
    match = _RATES.match(row)
    if match:
        name = re.sub(r"\W", "_", match[1])
        reader.result(line, name, match[2], "")
        reader.result(line, f"{name}_per_second", match[3], "1/s")
        return True
    match = _QUERIES.match(row)
    if match:
        reader.result(line, f"queries_{match[1]}", match[2], "")
        return True
    for name, pattern, unit in _TOTALS:
        match = pattern.match(row)
        if match:
            if name == "total_time" and ("result", name) in reader.seen:
                reader.checkpoint, reader.seen = None, {}  # tests that print no line before it
            reader.result(line, name, match[1], unit)
            return True
    match = _LATENCY.match(row)
    if match:
        decimals = len(match["value"].partition(".")[2])
        if decimals != (4 if match["unit"] == "s" else 2):
            refuse(NAME, line, f"{match['value']!r} is not a latency as sysbench prints it")
        scale = {None: 1.0, "ms": 1.0, "us": 1e-3, "ns": 1e-6, "s": 1e3}[match["unit"]]
        name = f"latency_{match['name'] or 'p' + match['pct']}"
        value = round(float(match["value"]) * scale, 9)
        reader.add(line, {"kind": "result", "name": name, "value": value, "unit": "ms"})
        return True
    if re.fullmatch(r"percentile stats:\s+disabled", row):
        reader.add(line, {"kind": "warning", "text": "percentile stats: disabled"})
        return True
    match = _FAIRNESS.match(row)
    if match:
        unit = "s" if match["name"] == "execution time" else ""
        record: Record = {"kind": "fairness", "name": match["name"].replace(" ", "_")}
        record.update(value=float(match["avg"]), stddev=float(match["dev"]), unit=unit)
        reader.add(line, record)
        return True
    match = _BUCKET.match(row)
    if match:
        value, count = float(match[1]), int(match[3])
        reader.add(line, {"kind": "histogram", "value": value, "unit": "ms", "count": count})
        return True
    return False


# Driver

_TESTS = {
    "cpu": {"cpu_max_prime": 10000},
    "memory": {
        "memory_block_size": "1K", "memory_total_size": "1000T", "memory_scope": "local",
        "memory_oper": "write", "memory_access_mode": "seq",
    },
    "threads": {"thread_yields": 1000, "thread_locks": 8},
}  # fmt: skip
_COMMON = {"test": "cpu", "threads": "all", "time_s": 10, "warmup_s": 2, "seed": 1, "path": None}


def find(options: Dict[str, Any]) -> Dict[str, Any]:
    """Return sysbench's path and version, and whether it has --warmup-time (1.1).

    Fault when it is missing, will not run, or is older than 1.0 (another command line).
    """
    wanted = options.get("path") or "sysbench"
    path = shutil.which(str(wanted))
    if path is None:
        raise Fault(f"{wanted} is not on PATH", "apt install sysbench (or dnf install sysbench)")
    said = []
    for argument in ("--version", "--help"):
        try:
            done = subprocess.run(
                [path, argument], capture_output=True, text=True, errors="replace", timeout=20,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Fault(f"{path} does not run: {error}", "reinstall sysbench") from None
        said.append(done.stdout + done.stderr)
    match = re.search(r"sysbench v?(\d+)\.(\d+)\S*", said[0])
    if not match:
        raise Fault(f"{path} does not say that it is sysbench", "name the right program as path")
    version = match[0].split()[-1].lstrip("v")
    if int(match[1]) < 1:
        raise Fault(f"sysbench {version} is too old", "install sysbench 1.0 or newer")
    return {"path": path, "version": version, "warmup_option": "--warmup-time" in said[1]}


def prepare(
    options: Dict[str, Any], topology: Dict[str, Any], cpus: str, memory_nodes: str
) -> Dict[str, Any]:
    """Return the resolved options and the memory needed (bytes); Fault for a bad option."""
    test = options.get("test", _COMMON["test"])
    if test not in _TESTS:
        raise Fault(f"sysbench has no test {test!r} here", f"known: {', '.join(_TESTS)}")
    known = {**_COMMON, **_TESTS[test]}
    unknown = set(options) - set(known)
    if unknown:
        raise Fault(
            f"sysbench {test} has no option {sorted(unknown)[0]!r}",
            f"known: {', '.join(sorted(known))}",
        )
    resolved = {**known, **options}
    count = len(cpulist.parse(cpus)) or int(topology.get("threads") or 1)
    if resolved["threads"] == "all":
        resolved["threads"] = count
    for name, least in (("threads", 1), ("time_s", 1), ("warmup_s", 0), ("seed", 1)):
        value = resolved[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise Fault(
                f"sysbench: {name} {value!r} is not a whole number of at least {least}",
                "0 as a seed would mean: from the clock" if name == "seed" else None,
            )
    for name in _TESTS[test]:
        if not re.fullmatch(r"[A-Za-z0-9]+", str(resolved[name])):
            raise Fault(f"sysbench: {name} {resolved[name]!r} is not a plain word or number", None)
    need = 64 * 2**20
    if test == "memory":
        blocks = resolved["threads"] if resolved["memory_scope"] == "local" else 1
        need += _bytes(resolved["memory_block_size"]) * blocks
    return {"options": resolved, "need_bytes": need, "notes": []}


def _bytes(size: object) -> int:
    match = re.fullmatch(r"(\d+)([KMGT]?)", str(size))
    if not match:
        raise Fault(f"sysbench: {size!r} is not a size", "write it like 1K or 64M")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match[2]]


def argv(found: Dict[str, Any], options: Dict[str, Any], cell: Dict[str, Any]) -> List[str]:
    """Return the command line of one run: warm-up, then the measured period.

    Where sysbench has no --warmup-time (1.0), a checkpoint at the end of the warm-up resets all
    its counters, the latency histogram included: the final report is of the measured period.
    """
    warmup, measured = options["warmup_s"], options["time_s"]
    out = [
        found["path"], options["test"], f"--threads={options['threads']}", "--events=0",
        "--rand-type=uniform", f"--rand-seed={options['seed']}", "--report-interval=1",
        "--histogram=on", "--percentile=95",
    ]  # fmt: skip
    if found.get("warmup_option") and warmup:
        out += [f"--warmup-time={warmup}", f"--time={measured}"]
    else:
        out.append(f"--time={warmup + measured}")
        if warmup:
            out.append(f"--report-checkpoints={warmup}")
    out += [f"--{name.replace('_', '-')}={options[name]}" for name in _TESTS[options["test"]]]
    return [*out, "run"]


def timing(options: Dict[str, Any]) -> Dict[str, float]:
    """Return the planned seconds."""
    return {
        "warmup_s": float(options.get("warmup_s", _COMMON["warmup_s"])),
        "measure_s": float(options.get("time_s", _COMMON["time_s"])),
        "setup_s": 0.2,
    }


def _measured(records: List[Record]) -> List[Record]:
    """Return the records of the measured period: those that are not of a checkpoint's report."""
    return [r for r in records if "checkpoint_s" not in r]


def metrics(records: List[Record]) -> List[Record]:
    """Return events_per_second, transfer_rate and the latencies of the measured period.

    p50, p95 and p99 are of the histogram (the upper edge of the bucket that holds the quantile:
    sysbench's own definition, about 1.8 % wide); null with the reason where the run failed.
    """
    final = {str(r["name"]): r for r in _measured(records) if r["kind"] == "result"}
    failures = [r for r in records if r["kind"] in ("failure", "incomplete")]
    reason: Optional[str] = None
    if failures:
        reason = str(failures[0].get("text") or failures[0].get("reason"))
    asked = any(r["kind"] == "option" and r["name"] == "checkpoints" for r in records)
    if reason is None and asked and not any("checkpoint_s" in r for r in records):
        reason = "sysbench missed the checkpoint that ends the warm-up: the host was overloaded"
    rows: List[tuple] = [("events_per_second", _rate(records, final), "1/s")]
    for name in ("transfer_rate", "transactions_per_second", "queries_per_second"):
        if name in final:
            rows.append((name, final[name]["value"], final[name]["unit"]))
    buckets = [r for r in _measured(records) if r["kind"] == "histogram"]
    total = final.get("total_events", {}).get("value")
    for percent in (50, 95, 99):
        value = percentile(buckets, percent)
        if value is None and f"latency_p{percent}" in final:
            value = final[f"latency_p{percent}"]["value"]
        if value is not None:
            rows.append((f"latency_p{percent}", value, "ms"))
    if "latency_max" in final:
        rows.append(("latency_max", final["latency_max"]["value"], "ms"))
    out: List[Record] = []
    for name, value, unit in rows:
        why = reason
        if why is None and (value is None or not total):
            why = "no event was completed in the measured period"
        out.append(
            {
                "metric": name, "value": None if why else float(value), "unit": unit, "point": "",
                "x": None, "y": None, "reason": why,
            }
        )  # fmt: skip
    return out


def _rate(records: List[Record], final: Dict[str, Record]) -> Optional[float]:
    for name in ("throughput", "events_per_second", "operations_per_second"):
        if name in final:
            return float(final[name]["value"])
    if "total_time" not in final or "total_events" not in final:
        return None
    began = [
        float(r["value"])
        for r in records
        if r["kind"] == "result" and r["name"] == "total_time" and "checkpoint_s" in r
    ]
    seconds = float(final["total_time"]["value"]) - max(began, default=0.0)
    return float(final["total_events"]["value"]) / seconds if seconds > 0 else None


def percentile(buckets: List[Record], percent: float) -> Optional[float]:
    """Return the value (ms) of a histogram's bucket that holds a percentile; null when empty."""
    total = sum(int(b["count"]) for b in buckets)
    seen = 0
    for bucket in sorted(buckets, key=lambda b: float(b["value"])):
        seen += int(bucket["count"])
        if seen * 100 >= total * percent:
            return float(bucket["value"])
    return None


def samples(records: List[Record]) -> List[Record]:
    """Return the per-second series of the measured period."""
    warmups = [float(r["checkpoint_s"]) for r in records if "checkpoint_s" in r]
    out: List[Record] = []
    for r in records:
        if r["kind"] != "report" or float(r["t_s"]) <= max(warmups, default=0.0):
            continue
        for field, metric, unit in (
            ("eps", "events_per_second", "1/s"), ("tps", "transactions_per_second", "1/s"),
            ("qps", "queries_per_second", "1/s"), ("mib_per_second", "transfer_rate", "MiB/s"),
        ):  # fmt: skip
            if field in r:
                t_s = float(r["t_s"])
                row: Record = {"t_s": t_s, "metric": metric, "point": "", "value": r[field]}
                out.append({**row, "unit": unit})
    return out
