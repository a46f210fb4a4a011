"""numalab-load started against a server, and its output read.

How a trial uses it::

    found = client.find()                                    # once, on the host under test
    words = client.command_line(found.path, "unix:web.sock", "/page?user=#1000#", connections=16,
                                threads=1, rate=500.0, lead_s=3, time_s=10, seed=1)
    one = client.HttpLoad(server, words, 1, 3, 10, cpus, there)
    records = client.parse(one.run()["text"])                # what a driver's parse_client returns
    client.results_of(records)["latency_p99"]

The program starts in the server's data directory, so that a unix socket may have a relative name.

Records (the program prints them as JSON, a line each, and they are what it printed):

- ``setup``: ``version``, ``mode`` (open, closed), ``rate`` (1/s; 0: closed), ``connections``,
  ``threads``, ``lead_s``, ``time_s``, ``timeout_s``, ``seed``, ``request``
- ``report``, one each second: ``t_s`` since the start of the lead, ``requests`` (1/s), ``errors``,
  and ``latency_p99_ms`` where anything was answered
- ``measured``: ``t_s``: the lead ended
- ``result``: ``name`` and ``value`` (see RESULTS), of the measured time alone; those in ms only
  where anything was answered
- ``histogram``: ``ms`` (upper edge of the bucket, at most 0.1 % above its lower one), ``count``
- ``failure``: ``text``, as of other clients; ``incomplete``: it ended before its results

Open loop: every request that was due in the measured time is counted, also when it was sent later
because all connections were busy. Closed loop: what was answered in that time.
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ... import compiled
from ...contract import Record, ToolRecord
from ...errors import ParseError
from ..client import Client
from . import PROGRAM

NAME = "numalab-load"
TIMEOUT_S = 10.0  # for an answer; below client.GRACE_S, as the last may begin at the very end
RESULTS: Mapping[str, str] = {  # each name: its unit
    "requests": "count",  # that were due in the measured time and answered by 2xx
    "answered": "count",  # answered by 2xx in that time, whenever they were due
    "requests_per_second": "1/s",  # of these
    "errors": "count",  # all of the next five
    "errors_status": "count",  # answers that are not 2xx
    "errors_protocol": "count",  # what is no answer of HTTP/1.1
    "errors_reset": "count",  # connections that ended before the answer did
    "errors_timeout": "count",
    "errors_connect": "count",  # connections that could not be made again
    "reconnects": "count",  # the server closed a connection between two answers: no error
    "latency_avg": "ms",  # of answers by 2xx, from the intended send time on
    "latency_min": "ms",
    "latency_p50": "ms",
    "latency_p90": "ms",
    "latency_p99": "ms",
    "latency_p999": "ms",
    "latency_max": "ms",
    "schedule_lag_avg": "ms",  # from the intended to the real send time (0 in a closed loop)
    "schedule_lag_max": "ms",
    "bytes": "bytes",  # of answers, headers included
    "client_cpu": "s",  # of the whole program, while it measured
    "busiest_thread": "1",  # the highest share of one CPU that a thread of it used: 1, its limit
}
ERROR_KINDS = ("status", "protocol", "reset", "timeout", "connect")
_PERCENTILES = ("latency_p50", "latency_p90", "latency_p99", "latency_p999")
_NUMBER = (int, float)
_KEYS: Mapping[str, Mapping[str, Any]] = {  # of each kind of record: its keys and their types
    "setup": {
        "version": str, "mode": str, "rate": _NUMBER, "connections": int, "threads": int,
        "lead_s": _NUMBER, "time_s": _NUMBER, "timeout_s": _NUMBER, "seed": int, "request": str,
    },
    "report": {"t_s": _NUMBER, "requests": int, "errors": int, "latency_p99_ms": _NUMBER},
    "measured": {"t_s": _NUMBER},
    "result": {"name": str, "value": _NUMBER},
    "histogram": {"ms": _NUMBER, "count": int},
}  # fmt: skip
_MAY_LACK = {"latency_p99_ms"}


class HttpLoad(Client):
    """A run of numalab-load, its warm-up (lead) first."""

    program = NAME
    checkpoint = b'"kind":"measured"'
    complaints = (f"{NAME}:",)


def find(named: Optional[str] = None) -> ToolRecord:
    """Return the program, built when that has not been done yet; see ``compiled.find``.

    ``named``, or NUMALAB_LOAD, is the path of one that is there already.
    """
    return compiled.find(PROGRAM, named)


def command_line(
    program: str,
    to: str,
    request: str,
    *,
    connections: int,
    threads: int,
    rate: float,
    lead_s: float,
    time_s: float,
    seed: int = 1,
    timeout_s: float = TIMEOUT_S,
) -> List[str]:
    """Return the command line of a run.

    ``to`` is ``unix:PATH`` or ``ADDRESS:PORT``, ``request`` what is asked for by GET, in which
    ``#N#`` becomes a random whole number below N. ``rate`` is in requests a second, 0 for a closed
    loop of all connections. There are fewer ``threads`` where they would have less than eight
    connections each: an arrival waits for those of its own thread. The program refuses what it
    cannot use, with a message.
    """
    threads = max(1, min(threads, connections // 8))
    return [
        program, "--to", to, "--request", request, "--connections", str(connections),
        "--threads", str(threads), "--rate", f"{rate:.10g}", "--lead-s", f"{lead_s:g}",
        "--time-s", f"{time_s:g}", "--timeout-s", f"{timeout_s:g}", "--seed", str(seed),
    ]  # fmt: skip


# --- reading ----------------------------------------------------------------------------------


def parse(text: str) -> List[Record]:
    """Return the records of a run's output; ParseError for a line that it does not print.

    A run that failed gives ``failure`` records, one that ended early a record ``incomplete``.
    """
    out: List[Record] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(f"{NAME}:"):
            why = line[len(NAME) + 1 :].strip()
            out.append({"kind": "failure", "level": "error", "code": None, "text": why})
        elif line.strip():
            out.append(_record(number, line))
    if not out:
        raise ParseError(NAME, 0, "", "it is empty")
    order = [one["kind"] for one in out if one["kind"] != "failure"]
    if order and (order[0] != "setup" or order.count("setup") != 1):
        raise ParseError(NAME, 0, "", "it does not begin with its setup, once")
    results = results_of(out)
    lacking = _lacking(results)
    if not lacking:
        _agree(out, results)
    elif len(order) == len(out):  # it did not fail
        if results:
            raise ParseError(NAME, 0, "", f"the result {lacking[0]} is missing: cut short?")
        out.append({"kind": "incomplete", "reason": "the output ends before the results"})
    return out


def _lacking(results: Mapping[str, float]) -> List[str]:
    """Return the results that are not there; where nothing was answered, no latencies are due."""
    due = [name for name in RESULTS if results.get("requests") != 0 or RESULTS[name] != "ms"]
    return [name for name in due if name not in results]


def _record(number: int, line: str) -> Record:
    """Return the record of a line, with exactly the keys of its kind."""
    try:
        record: Record = json.loads(line)
        keys = _KEYS[record["kind"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ParseError(NAME, number, line, "this is not a line of its own") from None
    for key, kind in keys.items():
        value = record.get(key)
        if key not in record and key in _MAY_LACK:
            continue
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ParseError(NAME, number, line, f"{key} is missing or of another type")
        if kind is not str and not 0 <= value < 2**63:
            raise ParseError(NAME, number, line, f"{key} is not a finite number from 0 on")
    unknown = sorted(set(record) - set(keys) - {"kind"})
    if unknown:
        raise ParseError(NAME, number, line, f"{unknown[0]} is not known here")
    if record["kind"] == "result" and record["name"] not in RESULTS:
        raise ParseError(NAME, number, line, f"the result {record['name']} is not known here")
    return record


def _agree(records: Sequence[Record], results: Mapping[str, float]) -> None:
    """Raise ParseError where numbers that depend on each other do not agree."""
    kinds = [one["kind"] for one in records]
    buckets = [one for one in records if one["kind"] == "histogram"]
    counted = sum(one["count"] for one in buckets)
    errors = sum(value for name, value in results.items() if name.startswith("errors_"))
    setup = records[kinds.index("setup")]
    done = results["requests_per_second"] * setup["time_s"]
    wrong = ""
    if kinds.count("measured") != 1 or kinds.count("result") != len(results):
        wrong = "a result, or the end of the lead, stands there more than once, or not at all"
    elif counted != results["requests"]:
        wrong = f"the histogram counts {counted} requests, the result {results['requests']}"
    elif errors != results["errors"]:
        wrong = "the errors are not their sum"
    elif abs(done - results["answered"]) > 1e-6 * done:
        wrong = "answers and time do not give the requests per second"
    elif setup["rate"] == 0 and results["answered"] != results["requests"]:
        wrong = "in a closed loop what was answered is what was asked"
    elif counted:
        for name in _PERCENTILES:
            share = float(f"0.{name[9:]}")
            if percentile(buckets, share) != results[name]:
                wrong = f"the histogram gives another {name}"
    if wrong:
        raise ParseError(NAME, 0, "", wrong)


def results_of(records: Sequence[Record]) -> Dict[str, float]:
    """Return the results among a run's records, by name."""
    return {one["name"]: one["value"] for one in records if one["kind"] == "result"}


def percentile(buckets: Sequence[Record], share: float) -> Optional[float]:
    """Return the upper edge (ms) of the bucket that holds a quantile; None when all are empty.

    ``buckets`` may be those of several clients: so is the percentile of all instances of a cell
    made.
    """
    total, seen = sum(one["count"] for one in buckets), 0
    for one in sorted(buckets, key=lambda bucket: float(bucket["ms"])):
        seen += one["count"]
        # Rounded as the program does: 0.999 * 1000 is not 999 exactly.
        if one["count"] and seen >= math.ceil(round(share * total, 6)):
            return float(one["ms"])
    return None
