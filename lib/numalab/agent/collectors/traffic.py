"""Traffic between nodes, of the whole host, by ``perf stat -a --per-node``.

What to count is in TRAFFIC of ``events/*.txt``: metrics of perf (``-M``; UPI and QPI, AMD's data
fabric) and events of the home agents (HiSilicon), of each name the first that ``perf list`` shows.
perf's metrics and their units: the kernel's tools/perf/pmu-events, and generic_metric() of
tools/perf/util/stat-shadow.c, which prints a metric's unit before its name. These counters belong
to the socket and not to a process: reading them needs root, or kernel.perf_event_paranoid of 0 or
less, and what others on the host do is in them.

Not tried on hardware: none of the machines at hand shows these counters. Selection is tested on
perf's own tables and parsing on perf's formats.
"""

from __future__ import annotations

import functools
import math
import re
import shutil
import time
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from .. import kernel
from ..contract import Reason, Row, from_json, reason, to_json
from ..errors import NotHere, ParseError
from ..rows import row
from . import perf, perf_stat
from .event_files import Event, groups_for, processor

SOURCE = "traffic"
PER_QUERY = "traffic_per_query"
_COUNT = "1/s"  # the unit of a line of TRAFFIC that names an event
_NO_LIMIT = 1 << 30
_GB = 1e9
_RATES = {"GB/s": 1e9, "MB/s": 1e6, "MiB/s": 1 << 20}  # bytes per second
_AMOUNTS = {"GB": 1e9, "MB": 1e6, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1, "Bytes": 1}


class Found(NamedTuple):
    """What perf printed of one metric or event for one node; ``unit`` is perf's."""

    node: Optional[int]
    value: float
    unit: str
    running_percent: Optional[float]


def listed(text: str) -> FrozenSet[str]:
    """Return the metrics and events that ``perf list`` shows: by -j (perf 6.2 on), else as text."""
    # Its JSON is not always JSON: some versions escape formulas wrongly.
    found = re.findall(r'"(?:MetricName|EventName|EventAlias)":\s*"([^"\\]+)"', text)
    return frozenset(found) or frozenset(re.findall(r"^  ([\w.:/,=-]+)", text, re.MULTILINE))


def select(wanted: Iterable[Event], shown: FrozenSet[str]) -> Tuple[Event, ...]:
    """Return the first shown line of each name."""
    chosen: Dict[str, Event] = {}
    for event in wanted:
        if event.perf_name in shown:
            chosen.setdefault(event.name, event)
    return tuple(chosen.values())


def parse(text: str, wanted: Iterable[Event]) -> Tuple[Dict[str, List[Found]], Optional[Reason]]:
    """Return what perf printed of each wanted one, by its name here; and why one has no count.

    What else stands between (warnings, the events below a metric) is passed over.
    """
    found: Dict[str, List[Found]] = {event.name: [] for event in wanted}
    why: Optional[Reason] = None
    for line in text.splitlines():
        try:
            records = perf_stat.parse(line, perf.SEPARATOR)
        except ParseError:
            continue
        for record in records:
            if record["kind"] == "event" and record["value"] is None:
                why = why or reason(perf.WHY_NO_COUNT[record["reason"]])
            for event in wanted:
                value, unit = _of(record, event)
                if value is not None:
                    node = re.fullmatch(r"N(\d+)", record.get("aggregate") or "")
                    place = int(node[1]) if node else None
                    running = record.get("running_percent")
                    found[event.name].append(Found(place, value, unit, running))
    return found, why


def _of(record: Mapping[str, Any], event: Event) -> Tuple[Optional[float], str]:
    """Return a record's value of an event or metric, and perf's unit of it; None of another's."""
    if event.unit == _COUNT:
        # perf may print it with its counting unit: hisi_sccl1_hha0/rx_outer/
        own = record["kind"] == "event" and event.perf_name in re.split(r"/", record["event"])
        return (record["value"], _COUNT) if own else (None, "")
    if record["kind"] == "metric":
        words, value = str(record["unit"]).split(), record["value"]
    else:
        words, value = str(record.get("metric_unit", "")).split(), record.get("metric_value")
    if not words or words[-1] != event.perf_name:
        return None, ""
    return value, " ".join(words[:-1])


class Available(NamedTuple):
    """What can be counted here, and why the others cannot, by name."""

    style: str
    events: Tuple[Event, ...]
    reasons: Dict[str, Reason]


@functools.cache
def available(program: str, wanted: Tuple[Event, ...]) -> Available:
    """Select what perf shows and try it on ``true``, once. Raises NotHere."""
    tried = perf.availability(program, ("task-clock",))
    if tried.useless:
        raise NotHere(tried.useless)
    text = perf.printed([program, "list", "-j"])
    if '"MetricName"' not in text and '"EventName"' not in text:  # it does not know -j
        text = perf.printed([program, "list", "--no-desc"])
    chosen = select(wanted, listed(text))
    reasons: Dict[str, Reason] = {}
    usable = []
    for event in chosen:
        text = perf.printed([*_command(program, tried.format, [event]), "true"])
        found, why = parse(text, [event])
        if found[event.name]:
            usable.append(event)
        else:
            reasons[event.name] = why or perf.why_nothing(text)
    for event in wanted:
        if event.name not in {one.name for one in chosen}:
            names = " or ".join(one.perf_name for one in wanted if one.name == event.name)
            reasons[event.name] = reason("perf-lists-no", names=names)
    return Available(tried.format, tuple(usable), reasons)


def _command(program: str, style: str, events: Iterable[Event]) -> List[str]:
    metrics = [event.perf_name for event in events if event.unit != _COUNT]
    others = [event.perf_name for event in events if event.unit == _COUNT]
    argv = [program, "stat", *perf.FORMATS[style], "-a", "--per-node"]
    # Ungrouped: a metric of the data fabric has more events than there are counters.
    argv += ["--metric-no-group", "-M", ",".join(metrics)] if metrics else []
    return [*argv, "-e", ",".join(others)] if others else argv


class Counting:
    """perf counting the whole host, from ``start`` until ``interrupt``; NotHere where it cannot."""

    def __init__(self, root: str = "/") -> None:
        """Find what can be counted; on a host's first time this takes seconds."""
        if len(kernel.list_nodes(root)) < 2:
            raise NotHere(reason("one-node-no-traffic"))
        self._wanted = [one for group in groups_for(processor(root)) for one in group.traffic]
        if not self._wanted:
            raise NotHere(reason("no-traffic-counter-known"))
        program = shutil.which("perf")
        if program is None:
            raise NotHere(reason("perf-not-installed"))
        self._here = available(program, tuple(self._wanted))
        if not self._here.events:
            raise NotHere(next(iter(self._here.reasons.values())))
        self._argv = _command(program, self._here.style, self._here.events)
        self._seconds = 0.0

    def start(self, cpus: Optional[List[int]] = None) -> Counting:
        """Count from now, perf itself on these CPUs; return this counting."""
        self._running = perf.Running(self._argv, cpus, _NO_LIMIT)
        self._began = time.monotonic()
        return self

    @property
    def cpu_s(self) -> Optional[float]:
        """The CPU time (s) that perf itself used until ``interrupt``."""
        return self._running.cpu_s

    def interrupt(self) -> None:
        """Stop counting."""
        self._seconds = time.monotonic() - self._began
        self._running.interrupt()

    def result(self) -> Dict[str, Any]:
        """Return the record, after ``interrupt``. Raises NotHere when perf gives none."""
        raw = self._running.output()
        return {
            "argv": self._argv,
            "raw": raw,
            "seconds": round(self._seconds, 6),
            "events": [list(event) for event in self._here.events],
            "missing": [
                [name, next(one.unit for one in self._wanted if one.name == name), to_json(why)]
                for name, why in self._here.reasons.items()
            ],
        }


def metrics(record: Mapping[str, Any]) -> List[Row]:
    """Return what the record tells of each node: GB/s, of requests their number per second."""
    events = [Event(*event) for event in record["events"]]
    if not record["seconds"] > 0:
        raise ValueError(f"seconds is {record['seconds']}")
    found, why = parse(record["raw"], events)
    rows: List[Row] = []
    for event in events:
        for node in dict.fromkeys(one.node for one in found[event.name]):
            of_node = [one for one in found[event.name] if one.node == node]
            rows.append(_row(event, node, of_node, record["seconds"]))
        if not found[event.name]:
            missing = why or reason("event-without-line")
            rows.append(row(event.name, None, event.unit, missing, source=SOURCE))
    for name, unit, code in record["missing"]:
        rows.append(row(name, None, unit, from_json(Reason, code), source=SOURCE))
    return rows


def _row(event: Event, node: Optional[int], found: List[Found], seconds: float) -> Row:
    point, x = ("", None) if node is None else (f"node {node}", float(node))
    total = 0.0
    for one in found:  # several of the same node: one of each counting unit, such as a link
        each = one.value / seconds if one.unit == _COUNT else _bytes_per_s(one, seconds)
        if each is None:
            why = reason("perf-unit-unknown", unit=one.unit)
            return row(event.name, None, event.unit, why, point=point, x=x, source=SOURCE)
        total += each if one.unit == _COUNT else each / _GB
    if not math.isfinite(total):
        raise ValueError(f"{event.name} is {total}")
    shares = [one.running_percent for one in found if one.running_percent is not None]
    doubt = perf.doubt(min(shares)) if shares else None
    return Row(event.name, total, event.unit, point, x, reason=doubt, source=SOURCE)


def _bytes_per_s(one: Found, seconds: float) -> Optional[float]:
    if one.unit in _RATES:
        return one.value * _RATES[one.unit]
    return one.value * _AMOUNTS[one.unit] / seconds if one.unit in _AMOUNTS else None


def per_query(rows: Iterable[Row]) -> List[Row]:
    """Return the bytes that went between nodes for each query, of a trial with both; else none.

    What left the nodes counts, or, where only that is counted, what came to them.
    """
    known = [one for one in rows if one.value is not None]
    queries = sum(one.value or 0.0 for one in known if one.metric == "queries_per_second")
    for name in ("traffic_from_node", "traffic_to_node"):
        rates = [one.value or 0.0 for one in known if one.metric == name]
        if rates and queries:
            return [row(PER_QUERY, sum(rates) * _GB / queries, "B", source=SOURCE)]
    return []
