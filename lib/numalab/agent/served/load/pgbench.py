"""pgbench started against a PostgreSQL server, and its output read (versions 13 to 18).

Format: ``src/bin/pgbench/pgbench.c`` of each version (printProgressReport, printResults, doLog).
pgbench has no warm-up and tells no percentiles. So its reports of each second are read, those of
the lead left out; at a fixed rate also its log of transactions, of which a histogram is made here
and appended to its output. Latency then counts from the intended time of the start: ``lag`` is the
part of it that passed before the transaction began.

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
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

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
_PROCESSED = re.compile(r"number of transactions actually processed: (\d+)\Z")
_SUMMARY = re.compile(  # of the whole run, its lead included
    r"(?:number of failed transactions: \d+ \([\d.]+%\)"
    rf"|(?:latency average|latency stddev|initial connection time) = {_NUMBER} ms"
    rf"|rate limit schedule lag: avg {_NUMBER} \(max {_NUMBER}\) ms"
    rf"|tps = {_NUMBER} \((?:without initial connection time"
    r"|(?:in|ex)cluding connections establishing)\))\Z"
)
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
    lag: Optional[float]


def parse(text: str) -> List[Record]:
    """Return the records of a run's output; ParseError for a line that it does not print.

    A run that failed gives ``failure`` records, one that ended early a record ``incomplete``.
    """
    out: List[Record] = []
    seconds: List[_Second] = []
    processed: Optional[int] = None
    ended = False
    first = last = 0.0
    for number, line in enumerate(text.splitlines(), 1):
        said = line.strip()
        progress, total = _PROGRESS.match(said), _PROCESSED.match(said)
        if progress:
            time = float(progress[1])
            first, last = first or time, last or time - 1
            if time <= last:
                raise ParseError(NAME, number, line, "its reports go back in time")
            seconds.append(_second(progress, time - first + 1, time - last))
            last = time
        elif total:
            processed = int(total[1])
        elif _SUMMARY.match(said):
            ended = ended or said.startswith("tps")
        elif out and out[-1]["kind"] == "failure" and line.startswith("\t"):
            out[-1]["text"] += f" {said}"
        elif said and not _HARMLESS.match(said):
            out.append(_record(number, line, said))
    if not any(one["kind"] == "setup" for one in out):
        raise ParseError(NAME, 0, "", "it does not say how long its lead was")
    out += [_report(one) for one in seconds]
    if any(one["kind"] == "failure" for one in out):
        return out
    if ended and processed is not None:
        return out + _results(out, seconds, processed)
    return [*out, {"kind": "incomplete", "reason": "the output ends before the results"}]


def _second(progress: re.Match[str], t_s: float, took_s: float) -> _Second:
    tps, latency, _, failed, lag = (progress[n] for n in range(2, 7))
    delay = None if lag is None else _average(lag)
    return _Second(t_s, took_s, float(tps), _average(latency), int(failed or 0), delay)


def _average(text: str) -> float:
    """Return an average; of nothing it is printed as NaN by some versions."""
    return 0.0 if "nan" in text.lower() else float(text)


def _report(one: _Second) -> Record:
    lag = {} if one.lag is None else {"lag": one.lag}
    record = {"kind": "report", "t_s": round(one.t_s, 3), "requests": one.tps}
    return {**record, "errors": one.failed, "latency": one.latency, **lag}


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


def _results(records: Sequence[Record], seconds: Sequence[_Second], processed: int) -> List[Record]:
    """Return the results of what came after the lead; ParseError where numbers do not agree."""
    lead_s = next(one["lead_s"] for one in records if one["kind"] == "setup")
    reported = sum(one.tps * one.took_s for one in seconds)
    # What ended after the last report is in the total alone; tps have one decimal.
    slack = 0.01 * processed + max((one.tps for one in seconds), default=0.0) + len(seconds)
    if reported > processed + slack:
        raise ParseError(NAME, 0, "", f"reports of {reported:.0f} transactions, but {processed}")
    measured = [one for one in seconds if one.t_s > lead_s + 0.5]
    elapsed = sum(one.took_s for one in measured)
    if not measured:
        return [{"kind": "incomplete", "reason": "no report after its lead"}]
    done = [one.tps * one.took_s for one in measured]
    requests = sum(done)
    weighed = list(zip(measured, done))
    found: Dict[str, Optional[float]] = {
        "requests": round(requests),
        "requests_per_second": requests / elapsed,
        "elapsed": elapsed,
        "errors": sum(one.failed for one in measured),
    }
    if requests:
        found["latency_avg"] = sum(one.latency * n for one, n in weighed) / requests
        found["schedule_lag_avg"] = sum((one.lag or 0.0) * n for one, n in weighed) / requests
    buckets = [one for one in records if one["kind"] == "histogram"]
    found.update((name, percentile(buckets, share)) for name, share in _PERCENTILES.items())
    known = {name: value for name, value in found.items() if value is not None}
    return [{"kind": "result", "name": name, "value": value} for name, value in known.items()]
