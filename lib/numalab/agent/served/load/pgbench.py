"""pgbench started against a PostgreSQL server, and its output read (versions 13 to 18).

Format: ``src/bin/pgbench/pgbench.c`` of each version (printProgressReport, printResults, doLog).
pgbench has no warm-up and tells no percentiles. So what its reports of each second say of the lead
is taken off its results; at a fixed rate also its log of transactions is read, of which a histogram
is made here and appended to its output. Latency then counts from the intended time of the start:
``lag`` is the part of it that passed before the transaction began.

Records:

- ``setup`` (ours): ``lead_s``, ``time_s``
- ``option``: ``name``, ``value``: what pgbench tells of itself
- ``report``, one each second: ``t_s`` since its start, ``requests`` (transactions a second),
  ``errors`` (transactions that failed), ``latency`` (ms, average), and ``lag`` (ms) in an open loop
- ``result``: ``name``, ``value``: of the measured time requests, requests_per_second, elapsed (s),
  latency_avg (ms), schedule_lag_avg (ms; 0 in a closed loop), errors, and the percentiles
- ``histogram`` (ours): ``ms`` (upper edge of a bucket, at most 1 % above the lower), ``count``
- ``failure``: ``text``; ``incomplete``: it ended before its results
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ...contract import Record
from ...errors import ParseError
from ..client import Client
from .client import percentile

NAME = "pgbench"
_LOG = "pgbench_log"  # the beginning of its log files' names
_LOGGED = 10_000  # transactions a second that a log holds: writing more would be a load itself
_PERCENTILES = {"latency_p50": 0.5, "latency_p90": 0.9, "latency_p99": 0.99, "latency_p999": 0.999}
_NUMBER = r"(\d+(?:\.\d+)?|-?nan|NaN)"
_PROGRESS = re.compile(
    rf"progress: (\d+\.\d+) s, {_NUMBER} tps, lat {_NUMBER} ms stddev {_NUMBER}"
    rf"(?:, (\d+) failed)?(?:, lag {_NUMBER} ms)?\Z"
)
_OPTION = re.compile(
    r"(transaction type|scaling factor|query mode|number of clients|number of threads"
    r"|maximum number of tries|duration|partition method|partitions): (\S.*)\Z"
)
_SUMMARY = (  # of the whole run, its lead included
    ("processed", re.compile(r"number of transactions actually processed: (\d+)\Z")),
    ("failed", re.compile(r"number of failed transactions: (\d+) \([\d.]+%\)\Z")),
    ("latency", re.compile(rf"latency average = {_NUMBER} ms\Z")),
    ("", re.compile(rf"latency stddev = {_NUMBER} ms\Z")),
    ("connecting", re.compile(rf"initial connection time = {_NUMBER} ms\Z")),
    ("lag", re.compile(rf"rate limit schedule lag: avg {_NUMBER} \(max {_NUMBER}\) ms\Z")),
    # Before version 14 there are two, and no time of the connections.
    ("tps", re.compile(
        rf"tps = {_NUMBER} \((?:without initial connection time"
        r"|including connections establishing)\)\Z"
    )),
    ("", re.compile(rf"tps = {_NUMBER} \(excluding connections establishing\)\Z")),
)  # fmt: skip
_FAILURE = re.compile(r"pgbench: (?:error|fatal|detail|hint): (.*)|(.*\baborted\b.*)")
_HARMLESS = re.compile(
    r"pgbench \(.+\)\Z|pgbench: (?:warning|setting random seed)\b.*|(?:WARNING|NOTICE): .*"
)


class PgBench(Client):
    """A run of pgbench, its lead first."""

    program = NAME
    complaints = ("pgbench: error:", "pgbench: fatal:")

    def begun(self) -> bool:
        """As of the base: its report of the lead's last second is there."""
        return measured_from(self._printed(), self.lead_s) is not None

    def run(self) -> Dict[str, Any]:
        """As of the base; what its parser needs is added to its output. Its log is removed."""
        run = super().run()
        setup = {"kind": "setup", "lead_s": self.lead_s, "time_s": self.time_s}
        lines = [json.dumps(setup), run["text"].rstrip("\n")]
        logs = sorted(Path(self.server.datadir).glob(f"{_LOG}.*"))
        since = measured_from(run["text"], self.lead_s)
        if since is not None:
            for ms, count in sorted(histogram(logs, since).items()):
                lines.append(json.dumps({"kind": "histogram", "ms": ms, "count": count}))
        for log in logs:
            log.unlink()
        return {**run, "text": "\n".join(lines) + "\n"}


def command_line(
    program: str,
    words: Sequence[str],
    *,
    connections: int,
    threads: int,
    rate: float,
    lead_s: int,
    time_s: int,
    seed: int = 1,
) -> List[str]:
    """Return the command line of a run; ``rate`` (1/s) 0 is a closed loop.

    ``words`` name the server, its user and database, and the script.
    """
    line = [
        program, "--no-vacuum", f"--client={connections}",
        f"--jobs={max(1, min(threads, connections))}", f"--time={lead_s + time_s}",
        "--progress=1", "--progress-timestamp", f"--random-seed={seed}",
    ]  # fmt: skip
    if rate:
        line += [f"--rate={rate:.10g}", "--log", f"--log-prefix={_LOG}"]
        if rate > _LOGGED:
            line.append(f"--sampling-rate={_LOGGED / rate:.6f}")
    return [*line, *words]


def measured_from(text: str, lead_s: float) -> Optional[float]:
    """Return when (s of the epoch) the lead ended: at its last report; None when it has not."""
    times = [float(one[1]) for one in map(_PROGRESS.match, text.splitlines()) if one]
    # The first report comes after 1 s.
    return next((time for time in times if time - times[0] + 1 > lead_s - 0.5), None)


def histogram(logs: Sequence[Path], since: float) -> Dict[float, int]:
    """Return how many transactions of a log ended after ``since``, by the upper edge (ms) of their

    latency's bucket. Raises ParseError for a line that pgbench does not write.
    """
    counts: Counter[float] = Counter()
    for log in logs:
        for number, line in enumerate(log.read_text(errors="replace").splitlines(), 1):
            words = line.split()
            try:  # client, its transaction, latency, script, seconds, microseconds, lag
                if words[2] in ("failed", "skipped"):
                    continue
                if int(words[4]) + int(words[5]) / 1e6 > since:
                    counts[_upper_edge(int(words[2]))] += 1
            except (IndexError, ValueError):
                raise ParseError(NAME, number, line, "no transaction of its log") from None
    return counts


def _upper_edge(us: int) -> float:
    """Return microseconds as ms, rounded up to three digits."""
    step: int = 10 ** max(0, len(str(us)) - 3)
    return math.ceil(us / step) * step / 1000


# --- reading ----------------------------------------------------------------------------------


class _Second(NamedTuple):
    """A report: when it ended since the start, how long it took, and what happened in it."""

    t_s: float
    took_s: float
    tps: float
    latency: float
    failed: int
    lag: float


def parse(text: str) -> List[Record]:
    """Return the records of a run's output; ParseError for a line that it does not print.

    A run that failed gives ``failure`` records, one that ended early a record ``incomplete``.
    """
    out: List[Record] = []
    seconds: List[_Second] = []
    totals: Dict[str, float] = {}
    first = last = 0.0
    for number, line in enumerate(text.splitlines(), 1):
        said = line.strip()
        progress, total = _PROGRESS.match(said), _total(said)
        if progress:
            time = float(progress[1])
            first, last = first or time, last or time - 1  # the first comes after 1 s
            if time <= last:
                raise ParseError(NAME, number, line, "its reports go back in time")
            seconds.append(_second(progress, time - first + 1, time - last))
            last = time
        elif total:
            totals.update(total)
        elif out and out[-1]["kind"] == "failure" and line.startswith("\t"):
            out[-1]["text"] += f" {said}"
        elif said and not _HARMLESS.match(said):
            out.append(_record(number, line, said))
    if not any(one["kind"] == "setup" for one in out):
        raise ParseError(NAME, 0, "", "it does not say how long its lead was")
    out += [_report(one) for one in seconds]
    if any(one["kind"] == "failure" for one in out):
        return out
    if {"processed", "latency", "tps"} <= set(totals):
        return out + _results(out, seconds, totals)
    return [*out, {"kind": "incomplete", "reason": "the output ends before the results"}]


def _total(said: str) -> Dict[str, float]:
    """Return the number of a line of the summary by its name; {} for any other line."""
    for name, pattern in _SUMMARY:
        match = pattern.match(said)
        if match:
            return {name: _average(match[1])}
    return {}


def _second(progress: re.Match[str], t_s: float, took_s: float) -> _Second:
    tps, latency, _, failed, lag = (progress[n] for n in range(2, 7))
    late = _average(lag) if lag else 0.0
    return _Second(t_s, took_s, float(tps), _average(latency), int(failed or 0), late)


def _average(text: str) -> float:
    """Return an average; of nothing it is printed as NaN by some versions."""
    return 0.0 if "nan" in text.lower() else float(text)


def _report(one: _Second) -> Record:
    record = {"kind": "report", "t_s": round(one.t_s, 3), "requests": one.tps}
    return {**record, "errors": one.failed, "latency": one.latency, "lag": one.lag}


def _record(number: int, line: str, said: str) -> Record:
    option, failure = _OPTION.match(said), _FAILURE.match(said)
    if option:
        return {"kind": "option", "name": option[1], "value": option[2]}
    if failure:
        return {"kind": "failure", "level": "error", "code": None, "text": failure[1] or failure[2]}
    try:
        record: Record = json.loads(said)
        keys = {"setup": {"lead_s", "time_s"}, "histogram": {"ms", "count"}}[record.pop("kind")]
        if set(record) != keys or not all(float(record[key]) >= 0 for key in keys):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ParseError(NAME, number, line, "this is not a line of its own") from None
    return {"kind": "setup" if "lead_s" in record else "histogram", **record}


def _results(
    records: Sequence[Record], seconds: Sequence[_Second], totals: Mapping[str, float]
) -> List[Record]:
    """Return the results of what came after the lead; ParseError where numbers do not agree."""
    setup = next(one for one in records if one["kind"] == "setup")
    processed = totals["processed"]
    _agree(seconds, processed)
    # Its reports count from before the connections, its rate from after them.
    whole_s = totals.get("connecting", 0.0) / 1e3
    whole_s += processed / totals["tps"] if totals["tps"] else 0.0
    lead = [one for one in seconds if one.t_s <= _end_of(setup["lead_s"], seconds)]
    early = [one.tps * one.took_s for one in lead]
    requests = max(0.0, processed - sum(early))
    elapsed_s = whole_s - lead[-1].t_s if lead else 0.0
    if elapsed_s < setup["time_s"] / 2 or not requests:
        return [{"kind": "incomplete", "reason": "nothing was measured after its lead"}]

    def later(mean: float, means: List[float]) -> float:
        """Return what a mean is without the lead."""
        whole = mean * processed - sum(one * n for one, n in zip(means, early))
        return max(0.0, whole / requests)

    found: Dict[str, Optional[float]] = {
        "requests": round(requests),
        "requests_per_second": requests / elapsed_s,
        "elapsed": elapsed_s,
        "errors": totals.get("failed", 0.0) - sum(one.failed for one in lead),
        "latency_avg": later(totals["latency"], [one.latency for one in lead]),
        "schedule_lag_avg": later(totals.get("lag", 0.0), [one.lag for one in lead]),
    }
    buckets = [one for one in records if one["kind"] == "histogram"]
    found.update((name, percentile(buckets, share)) for name, share in _PERCENTILES.items())
    known = {name: value for name, value in found.items() if value is not None}
    return [{"kind": "result", "name": name, "value": value} for name, value in known.items()]


def _agree(seconds: Sequence[_Second], processed: float) -> None:
    """Raise ParseError where the reports hold more transactions than were processed.

    What ended after the last report is in the total alone; tps have one decimal.
    """
    reported = sum(one.tps * one.took_s for one in seconds)
    if reported > 1.01 * processed + max((one.tps for one in seconds), default=0.0):
        why = f"reports of {reported:.0f} transactions, but {processed:.0f}"
        raise ParseError(NAME, 0, "", why)


def _end_of(lead_s: float, seconds: Sequence[_Second]) -> float:
    """Return when the lead ended: see `measured_from`."""
    return next((one.t_s for one in seconds if one.t_s > lead_s - 0.5), 0.0)
