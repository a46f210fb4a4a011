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
report then covers only what came after the last checkpoint. Of several runs in one text every
record has ``run``, from 1.
"""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .. import paths
from ..contract import (
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
from .options import Options
from .reading import Line, appended, by_run, lines, numbered, refuse

NAME = "sysbench"

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
    "threads": "threads",
    "tps": "tps", "reads": "reads", "reads/s": "reads", "writes": "writes", "writes/s": "writes",
    "errors": "errors", "reconnects": "reconnects", "queue length": "queue_length",
    "concurrency": "concurrency", "events": "eps", "events/s": "eps", "deadlocks": "errors",
}  # fmt: skip
# Final results.
# The form of a line, and the name and unit of each number in it.
_FORMS: List[Tuple[str, Sequence[Tuple[str, str]]]] = [
    (
        r"(?:Total operations|Operations performed): (\d+) "
        r"\( *(\d+\.\d\d) (?:per second|ops/sec)\)",
        [("operations", ""), ("operations_per_second", "1/s")],
    ),
    (
        r"(\d+\.\d\d) Mi?B transferred \((\d+\.\d\d) Mi?B/sec\)",
        [("transferred", "MiB"), ("transfer_rate", "MiB/s")],
    ),
    (r"events per second:\s+(\d+\.\d\d)", [("events_per_second", "1/s")]),
    (r"events/s \(eps\):\s+(\d+\.\d{4})", [("throughput", "1/s")]),
    (r"(?:total time|time elapsed):\s+(\d+\.\d{4})s", [("total_time", "s")]),
    (r"total number of events:\s+(\d+)", [("total_events", "")]),
    (r"total time taken by event execution:\s+(\d+\.\d{4})s?", [("execution_time_sum", "s")]),
    (r"Number of unfinished transactions on .*: (\d+)", [("unfinished", "")]),
    *(
        (
            rf"{name}:\s+(\d+)\s*\(\s*(\d+\.\d+) per sec\.\)",
            [(re.sub(r"\W", "_", name), ""), (re.sub(r"\W", "_", name) + "_per_second", "1/s")],
        )
        for name in (
            "transactions", "queries", "read/write requests", "other operations", "deadlocks",
            "ignored errors", "reconnects",
        )
    ),
    *(
        (rf"{name}:\s+(\d+)", [(f"queries_{name}", "")])
        for name in ("read", "write", "other", "total")
    ),
]  # fmt: skip
_RESULTS = [(re.compile(form + r"\Z"), results) for form, results in _FORMS]
# Between two readings of the clock others may run: a load of 100 on a CPU keeps it for 0.3 s.
_BETWEEN_S = 1.0
# The first lines of a final report; tests that print none of the others begin with the time.
_BEGINNINGS = ("operations", "total_time")
_LATENCY = re.compile(
    r"(?:(?P<name>min|avg|max|sum)|(?:approx\.\s+)?(?P<pct>\d+)(?:th|st|nd|rd)? percentile):\s+"
    r"(?P<value>\d+\.\d+)(?P<unit>ms|us|ns|s)?\Z"
)
_FAIRNESS = re.compile(
    r"(?P<name>events|execution time) \(avg/stddev\):\s+(?P<avg>\d+\.\d{4})/(?P<dev>\d+\.\d\d)\Z"
)
_LAST = re.compile(r"execution time \(avg/stddev\): ")
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

    def add(self, line: Line, kind: str, **fields: Any) -> None:
        key = (kind, fields.get("name"))
        if kind in ("result", "fairness"):
            if key in self.seen:
                refuse(NAME, line, f"{fields['name']} a second time")
            self.seen[key] = line
        record: Record = {"kind": kind, **fields}
        if self.checkpoint is not None and kind != "report":
            record["checkpoint_s"] = self.checkpoint
        self.out.append(record)

    def begin_final(self) -> None:
        """What follows is the final report: a checkpoint's, if there was one, has ended."""
        self.checkpoint, self.seen = None, {}

    def read(self, line: Line) -> None:
        said = line.text.strip()
        match = _HEADER.match(said)
        if match:
            self.headed = True
            self.add(line, "version", text=match[1])
        elif said.startswith("WARNING:"):
            self.add(line, "warning", text=said[len("WARNING:") :].strip())
        elif self._failure(line, said) or not self.headed:
            return  # before its header, a wrapper's own words
        elif not (
            (self.failed and _FAILED_DETAIL.match(said))
            or self._option(line, said)
            or self._report(line, said)
            or self._result(line, said)
            or self._step(line, said)
        ):
            refuse(NAME, line, "this is not a line of sysbench's")

    def _failure(self, line: Line, said: str) -> bool:
        match = _FAILURE.match(said)
        if match:
            self.failed = True
            code = _CODE.search(said)
            level = (match["level"] or "error").upper()
            number = int(code[1]) if code else None
            self.add(line, "failure", level=level, text=match["text"] or said, code=number)
        return bool(match)

    def _option(self, line: Line, said: str) -> bool:
        for name, pattern, unit in _OPTIONS:
            match = pattern.match(said)
            if match:
                value = int(match[1]) if re.fullmatch(r"-?\d+", match[1]) else match[1]
                self.add(line, "option", name=name, value=value, unit=unit)
                if name == "thread_yields":
                    self.add(line, "option", name="thread_locks", value=int(match[2]), unit="")
                return True
        return False

    def _report(self, line: Line, said: str) -> bool:
        match = _REPORT.match(said)
        if not match:
            return False
        t_s, rest = float(match["t"]), match["rest"].strip()
        if rest == "Checkpoint report:":
            self.checkpoint, self.seen = t_s, {}
            return True
        # Another thread prints these: one can fall into the midst of a checkpoint's report.
        if self.checkpoint is not None and ("fairness", "execution_time") in self.seen:
            self.begin_final()
        queue, modern, rate = _QUEUE.match(rest), _REPORT_1.match(rest), _RATE.match(rest)
        if queue:
            # A checkpoint's report, printed by another thread, can stand between the two.
            last = next((one for one in reversed(self.out) if one["kind"] == "report"), {})
            if last.get("t_s") != t_s or "queue_length" in last:
                refuse(NAME, line, "a length of the queue without the report that it belongs to")
            last.update(queue_length=int(queue[1]), concurrency=int(queue[2]))
        elif modern:
            fields = {k: _value(text) for k, text in modern.groupdict().items() if text is not None}
            self.add(line, "report", t_s=t_s, **fields, latency_unit="ms")
        elif rate:
            self.add(line, "report", t_s=t_s, mib_per_second=float(rate[1]))
        else:
            self.add(line, "report", t_s=t_s, **_old_report(line, rest))
        return True

    def _result(self, line: Line, said: str) -> bool:
        if said in ("CPU speed:", "SQL statistics:", "OLTP test statistics:") and self.seen:
            if ("result", "total_time") in self.seen:  # the final report after a checkpoint's
                self.begin_final()
            return True
        for pattern, results in _RESULTS:
            match = pattern.match(said)
            if match:
                if results[0][0] in _BEGINNINGS and ("result", "total_time") in self.seen:
                    self.begin_final()
                for (name, unit), text in zip(results, match.groups()):
                    self.add(line, "result", name=name, value=_value(text), unit=unit)
                return True
        match, fair, bucket = _LATENCY.match(said), _FAIRNESS.match(said), _BUCKET.match(said)
        if match:
            name, value = _latency(line, match)
            self.add(line, "result", name=name, value=value, unit="ms")
        elif fair:
            self.add(
                line, "fairness", name=fair["name"].replace(" ", "_"), value=float(fair["avg"]),
                stddev=float(fair["dev"]), unit="s" if fair["name"] == "execution time" else "",
            )  # fmt: skip
        elif bucket:
            value, count = float(bucket[1]), int(bucket[3])
            self.add(line, "histogram", value=value, unit="ms", count=count)
        elif re.fullmatch(r"percentile stats:\s+disabled", said):
            self.add(line, "warning", text="percentile stats: disabled")
        else:
            return False
        return True

    def _step(self, line: Line, said: str) -> bool:
        """Read what sysbench says of its own doings, and what a script prints."""
        if _STEP.match(said):
            self.add(line, "step", text=said)
        elif said in ("Initializing worker threads...", "Threads started!"):
            self.scripting = self.has_header and said != "Threads started!"
        elif said.startswith("Latency histogram"):  # printed once, before the final report
            self.begin_final()
        elif _SAID.match(said):
            pass
        elif self.scripting and not said.startswith("["):
            self.add(line, "script_output", text=said)
        else:
            return False
        return True

    def finish(self) -> List[Record]:
        """Return the records; ParseError where the final report is cut short."""
        out = self.out
        final = {r["name"]: r["value"] for r in _measured(out) if r["kind"] == "result"}
        if {"total_time", "total_events"} <= set(final):
            if not {"latency_min", "latency_avg", "latency_max"} <= set(final):
                refuse(NAME, None, "the final report lacks its latencies: cut short?")
            wrong = _contradiction(final, out)
            if wrong:
                refuse(NAME, None, f"{wrong}: a number of the final report is damaged")
        elif set(final) & {"total_time", "total_events"} or (final and not self.failed):
            refuse(NAME, None, "the final report is not complete: cut short?")
        elif not self.failed and not any(r["kind"] == "step" for r in out):
            if not any(r["kind"] in ("report", "result") for r in out):
                refuse(NAME, None, "it holds neither a result nor a failure of sysbench's")
            why = "the output ends before the final report"
            out.append({"kind": "incomplete", "reason": why})
        return out


def _contradiction(final: Mapping[str, float], records: Sequence[Record]) -> str:
    """Return what does not add up in the results of the final report; "" where all does."""
    parts = [final.get(f"queries_{name}", 0) for name in ("read", "write", "other")]
    if sum(parts) != final.get("queries_total", sum(parts)):
        return "the queries performed are not their total"
    if not final["latency_min"] <= final["latency_avg"] <= final["latency_max"]:
        return "the average latency is not between the lowest and the highest"
    # The report of a checkpoint, or a warm-up, takes a part of the time away.
    if any(r.get("name") in ("checkpoints", "warmup") for r in records) or not final["total_time"]:
        return ""
    least, most = _seconds_of_rates(final)
    seconds = float(final["total_time"])
    early = 0.0 if _is_modern(records) else _BETWEEN_S
    if least > most or not seconds - early - 1e-4 <= most or least > seconds + _BETWEEN_S + 1e-4:
        return f"its rates are of {least:.4f} to {most:.4f} s, not of {seconds} s"
    threads = next((r["value"] for r in records if r.get("name") == "threads"), None)
    shares = [r["value"] for r in records if (r["kind"], r.get("name")) == ("fairness", "events")]
    if threads and shares and abs(threads * shares[-1] / (final["total_events"] or 1) - 1) > 1e-3:
        return f"{threads} threads with {shares[-1]} events each are not all events"
    return ""


def _is_modern(records: Sequence[Record]) -> bool:
    """Whether an output says that it is of version 1.0 or newer."""
    return any(r["kind"] == "version" and r["text"].startswith("1.") for r in records)


def _seconds_of_rates(final: Mapping[str, float]) -> Tuple[float, float]:
    """Return the least and the most seconds that the rates, as they are rounded, may be of.

    All rates are by one other reading of the clock, after that of the total time; before 1.0 also
    by another beginning.
    """
    per_second = [(name[: -len("_per_second")], name) for name in final]
    pairs = [*per_second, ("total_events", "events_per_second"), ("total_events", "throughput"),
             ("transferred", "transfer_rate")]  # fmt: skip
    least, most = 0.0, math.inf
    for name, rate in pairs:
        if name in final and rate in final:
            half = 0.0 if isinstance(final[name], int) else 0.005
            least = max(least, (final[name] - half) / (final[rate] + 0.005))
            if final[rate] > 0.005:
                most = min(most, (final[name] + half) / (final[rate] - 0.005))
    return least, most


def parse(text: str) -> List[Record]:
    """Return the records of a text; ParseError for a line that sysbench does not print.

    A failed run gives ``failure`` records. A run that ends without its final report gives its
    interval reports and a record ``incomplete``; without any report it is a ParseError.
    """
    runs = appended(lines(text, ("sysbench",)), _HEADER, _LAST)
    return numbered([_run(one) for one in runs])


def _run(rows: List[Line]) -> List[Record]:
    reader = _Reader(any(_HEADER.match(line.text.strip()) for line in rows))
    for line in rows:
        reader.read(line)
    return reader.finish()


def _value(text: str) -> float:
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def _latency(line: Line, match: re.Match[str]) -> Tuple[str, float]:
    """Return the name and the value (ms) of a line of the latencies."""
    decimals = len(match["value"].partition(".")[2])
    if decimals != (4 if match["unit"] == "s" else 2):
        refuse(NAME, line, f"{match['value']!r} is not a latency as sysbench prints it")
    scale = {None: 1.0, "ms": 1.0, "us": 1e-3, "ns": 1e-6, "s": 1e3}[match["unit"]]
    name = f"latency_{match['name'] or 'p' + match['pct']}"
    return name, round(float(match["value"]) * scale, 9)


def _old_report(line: Line, rest: str) -> Record:
    """Read a report of sysbench 0.4 and 0.5: "threads: 2, tps: 144.13, reads: 2030.88, …"."""
    record: Record = {}
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
        name = _REPORT_0.get(match[1]) if match else None
        if not match or name is None or name in record:
            refuse(NAME, line, f"{item!r} is not a part of an interval report")
        record[name] = int(float(match[2])) if name == "threads" else float(match[2])
    if "threads" not in record or len(record) < 3:
        refuse(NAME, line, "an interval report without its threads or its values: cut short?")
    return record


# --- the driver -------------------------------------------------------------------------------

_TESTS: Dict[str, Dict[str, Any]] = {
    "cpu": {"cpu_max_prime": 10000},
    "memory": {
        "memory_block_size": "1K", "memory_total_size": "1000T", "memory_scope": "local",
        "memory_oper": "write", "memory_access_mode": "seq",
    },
    "threads": {"thread_yields": 1000, "thread_locks": 8},
}  # fmt: skip
_COMMON = {"test": "cpu", "threads": "all", "time_s": 10, "warmup_s": 2, "seed": 1, "path": None}


class Sysbench(Driver):
    """sysbench's tests of CPUs, memory and threads."""

    name = NAME

    def find(self, options: Options) -> ToolRecord:
        """Return sysbench's path and version, and as ``warmup_option`` whether it has
        --warmup-time (1.1).

        Fault when it is missing, will not run, or is older than 1.0 (another command line).
        """
        wanted = str(options.get("path") or NAME)
        path = shutil.which(paths.here(wanted))
        if path is None:
            raise Fault(
                f"{wanted} is not on PATH", "apt install sysbench (or dnf install sysbench)"
            )
        match = re.search(r"sysbench v?((\d+)\.\d+\S*)", check.answer(path, "--version"))
        if not match:
            raise Fault(
                f"{path} does not say that it is sysbench", "name the right program as path"
            )
        if int(match[2]) < 1:
            raise Fault(f"sysbench {match[1]} is too old", "install sysbench 1.0 or newer")
        facts = {"warmup_option": "--warmup-time" in check.answer(path, "--help")}
        return ToolRecord(NAME, match[1], path, facts=facts)

    def prepare(self, options: Options, host: Host, cpus: str, memory_nodes: str) -> Prepared:
        """Return the resolved options and the memory needed (bytes); Fault for a bad option.

        ``mode`` is what other tools' experiments ask for: Fault, as sysbench measures none of it.
        """
        if "mode" in options:
            raise Fault(
                f"sysbench does not measure {options['mode']!r}",
                f"its tests are {', '.join(_TESTS)}: numalab run sysbench-cpu --set test=…",
            )
        test = check.choice("test", options.get("test", _COMMON["test"]), tuple(_TESTS))
        defaults = {**_COMMON, **_TESTS[test]}
        check.known(f"sysbench {test}", options, defaults)
        resolved = {**defaults, **options}
        resolved["threads"] = check.threads(resolved["threads"], cpus, host)
        for name, least in (("time_s", 1), ("warmup_s", 0), ("seed", 1)):  # seed 0: from the clock
            check.whole(name, resolved[name], least)
        for name, usual in _TESTS[test].items():
            if isinstance(usual, int):
                check.whole(name, resolved[name], 1)
            elif not re.fullmatch(r"[A-Za-z0-9]+", str(resolved[name])):
                raise Fault(f"sysbench: {name} {resolved[name]!r} is not a plain word or number")
        need = 64 * 2**20
        if test == "memory":
            blocks = resolved["threads"] if resolved["memory_scope"] == "local" else 1
            need += _bytes(resolved["memory_block_size"]) * blocks
        return Prepared(resolved, need)

    def argv(self, found: ToolRecord, options: Options, cell: Cell) -> List[str]:
        """Return the command line of one run: warm-up, then the measured period.

        Where sysbench has no --warmup-time (1.0), a checkpoint at the end of the warm-up resets
        all its counters, the latency histogram included: the final report is of the measured
        period.
        """
        warmup, measured = options["warmup_s"], options["time_s"]
        out = [
            str(found.path), options["test"], f"--threads={options['threads']}", "--events=0",
            "--rand-type=uniform", f"--rand-seed={options['seed']}", "--report-interval=1",
            "--histogram=on", "--percentile=95",
        ]  # fmt: skip
        if found.facts.get("warmup_option") and warmup:
            out += [f"--warmup-time={warmup}", f"--time={measured}"]
        else:
            out.append(f"--time={warmup + measured}")
            if warmup:
                out.append(f"--report-checkpoints={warmup}")
        out += [f"--{name.replace('_', '-')}={options[name]}" for name in _TESTS[options["test"]]]
        return [*out, "run"]

    def timing(self, options: Options) -> Timing:
        timed = {**_COMMON, **options}
        return Timing(0.2, float(timed["warmup_s"]), float(timed["time_s"]))

    def parse(self, text: str) -> List[Record]:
        return parse(text)

    def metrics(self, records: Sequence[Record]) -> List[Row]:
        """Return events_per_second, transfer_rate and the latencies of the measured period.

        p50, p95 and p99 are of the histogram (the upper edge of the bucket that holds the
        quantile: sysbench's own definition, about 1.8 % wide); None with the reason where the run
        failed. Of several runs each is a point.
        """
        return [
            replace(one, point=run) for run, own in by_run(records) for one in self._metrics(own)
        ]

    def _metrics(self, records: Sequence[Record]) -> List[Row]:
        own = _measured(records)
        final = {r["name"]: r for r in own if r["kind"] == "result"}
        rows = [("events_per_second", _rate(records, final), "1/s")]
        for name in ("transfer_rate", "transactions_per_second", "queries_per_second"):
            if name in final:
                rows.append((name, final[name]["value"], final[name]["unit"]))
        buckets = [r for r in own if r["kind"] == "histogram"]
        for percent in (50, 95, 99):
            name = f"latency_p{percent}"
            value = percentile(buckets, percent)
            if value is None and name in final:
                value = final[name]["value"]
            if value is not None:
                rows.append((name, value, "ms"))
        if "latency_max" in final:
            rows.append(("latency_max", final["latency_max"]["value"], "ms"))
        why = _unbelievable(records)
        if not why and not (final.get("total_events") or {}).get("value"):
            why = reason("no-event-completed")
        return [
            row(name, None if why else value, unit, why or "no-event-completed")
            for name, value, unit in rows
        ]

    def samples(self, records: Sequence[Record]) -> List[Sample]:
        """Return the per-second series of the measured period."""
        out = []
        for run, own in by_run(records):
            warmed = max((float(r["checkpoint_s"]) for r in own if "checkpoint_s" in r), default=0)
            for r in own:
                if r["kind"] == "report" and r["t_s"] > warmed:
                    out += [
                        Sample(r["t_s"], metric, float(r[field]), unit, run)
                        for field, metric, unit in _SERIES
                        if field in r
                    ]
        return out


_SERIES = (
    ("eps", "events_per_second", "1/s"), ("tps", "transactions_per_second", "1/s"),
    ("qps", "queries_per_second", "1/s"), ("mib_per_second", "transfer_rate", "MiB/s"),
)  # fmt: skip


def _bytes(size: object) -> int:
    match = re.fullmatch(r"(\d+)([KMGT]?)", str(size))
    if not match:
        raise Fault(f"sysbench: {size!r} is not a size", "write it like 1K or 64M")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match[2]]


def _measured(records: Sequence[Record]) -> List[Record]:
    """Return the records of the measured period: those that are not of a checkpoint's report."""
    return [r for r in records if "checkpoint_s" not in r]


def _unbelievable(records: Sequence[Record]) -> Optional[Reason]:
    """Return why the figures of this run cannot be believed, or None."""
    for record in records:
        if record["kind"] == "failure":
            return reason("tool-said", text=record["text"])
        if record["kind"] == "incomplete":
            return reason("output-ends-early")
    asked = any(r["kind"] == "option" and r["name"] == "checkpoints" for r in records)
    if asked and not any("checkpoint_s" in r for r in records):
        return reason("checkpoint-missed")
    return None


def _rate(records: Sequence[Record], final: Mapping[str, Record]) -> Optional[float]:
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


def percentile(buckets: Sequence[Record], percent: float) -> Optional[float]:
    """Return the value (ms) of a histogram's bucket that holds a percentile; None when empty."""
    total = sum(bucket["count"] for bucket in buckets)
    seen = 0
    for bucket in sorted(buckets, key=lambda one: float(one["value"])):
        seen += bucket["count"]
        if seen * 100 >= total * percent:
            return float(bucket["value"])
    return None
