"""Parser of what ``perf stat`` prints for programs: CSV (-x) and JSON (-j).

Format: the kernel's tools/perf/util/stat-display.c (functions print_counter_value_*,
print_aggr_id_*, print_metric_*, prepare_interval, print_footer) and perf-stat(1); older forms
from the same file's history (CSV without run time). The text for people is read by ``logs.perf``.

Records:

- ``event``: ``event``, ``value`` (null with ``reason`` "not counted" or "not supported"),
  ``unit`` (as printed: msec, Joules, MiB …; "" for a plain count; ns for a clock that has none
  printed), ``running_percent`` (share of the time that the counter was on; below 100 the value is
  scaled up), ``running_ns``,
  ``variance_percent`` (-r), ``interval_s`` (-I), ``aggregate`` (S0, N1, CPU3, S0-D0-C2,
  comm-pid), ``cpus`` (their number), ``cgroup``, ``metric_value`` and ``metric_unit`` (the
  comment beside it)
- ``metric``: a metric of no event of its own (--metric-only): ``name``, ``value`` (null with
  ``reason``), ``unit``, and the fields above that apply; ``group`` is the head that it stands
  under, with the type of the cores where there are several ("TopdownL1 (cpu_atom)")
- ``metric_group``: ``name``, such a head
- ``started``: ``text``

Of several reports in one text (--append) every record has ``run``, from 1.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Dict, List, Optional

from ..contract import Record
from ..drivers.reading import Line, lines, numbered, refuse

NAME = "perf stat"

AGGREGATE = (
    r"S\d+-D\d+-L\d+-ID\d+|S\d+-D\d+-CLS\d+|S\d+-D\d+-C\d+|S\d+-C\d+|S\d+-D\d+|S\d+|N\d+|D\d+"
    r"|CPU ?\d+|CPU\(\d+\)|SYS"
)
BAD = r"<not counted>|<not supported>"
UNITS = {
    "msec", "ns", "us", "sec", "Joules", "J", "C", "%", "B", "Bytes", "bytes", "KB", "MB", "GB",
    "KiB", "MiB", "GiB", "kB", "Cycles", "MHz", "GHz", "W", "mW", "mV", "uV", "mJ", "RPM", "rpm",
    "GB/s", "MB/s", "MiB/s", "KiB/s", "unit", "'C", "mC", "degC",
}  # fmt: skip
_STARTED = "# started on "
_CLOCK = re.compile(r"(?:software/)?(?:task|cpu)-clock(?:[:/]\w*)?\Z")
_HEAD = re.compile(r"\s*Performance counter stats for ")
_END = re.compile(r"\d seconds (?:time elapsed|user|sys)")
_JUDGED = ("good", "bad", "less good", "nearly bad", "unknown")  # the last field: a threshold


def parse(text: str, separator: Optional[str] = None) -> List[Record]:
    """Return the records of one output of -x or -j; ParseError for anything else.

    Without the ``separator`` of -x it is what the lines show.
    """

    def read(body: List[Line]) -> List[Record]:
        found = separator or separator_of(body)
        if found is None and not is_json(body):
            refuse(NAME, body[0], "this is neither perf's CSV nor its JSON")
        return of_program(body, found)

    return each_report(text, read)


def each_report(text: str, read: Callable[[List[Line]], List[Record]]) -> List[Record]:
    """Return what ``read`` makes of every report in a text; ParseError when there is none.

    With --append, or on a terminal, several follow each other: their records have ``run``.
    """
    parts: List[List[Line]] = [[]]
    for line in lines(text, ("perf stat", "perf")):
        part = parts[-1]
        if line.text.startswith(_STARTED):
            parts.append([line])
        elif _HEAD.match(line.text) and any(_HEAD.match(other.text) for other in part):
            # What stands below the last line of a report was printed by the next program.
            ends = [at for at, other in enumerate(part, 1) if _END.search(other.text)]
            at = ends[-1] if ends else len(part)
            parts[-1:] = [part[:at], [*part[at:], line]]
        elif line.text.strip() and not line.text.startswith("perf version "):
            part.append(line)
    out: List[List[Record]] = []
    for part in filter(None, parts):
        found: List[Record] = []
        if part[0].text.startswith(_STARTED):
            found.append({"kind": "started", "text": part.pop(0).text[len(_STARTED) :]})
        if not part:
            refuse(NAME, None, "it holds no counter: perf failed, or it is cut short")
        out.append(found + read(part))
    return numbered(out) if out else refuse(NAME, None, "it is empty")


def is_json(body: List[Line]) -> bool:
    """Return whether a report is JSON."""
    return body[0].text.lstrip().startswith("{")


def of_program(body: List[Line], separator: Optional[str]) -> List[Record]:
    """Return the records of a report in JSON, or in CSV with this separator."""
    found = _json(body) if is_json(body) or separator is None else _csv(body, separator)
    group = None  # a head is of all metrics below it, down to the next event
    for record in found:
        if record["kind"] == "event":
            group = None
            record["unit"] = record["unit"] or clock_unit(record["event"], record["value"])
        elif record["kind"] == "metric_group":
            group = record["name"]
        elif group:
            record.setdefault("group", group)
    return found


def clock_unit(event: str, value: Optional[float]) -> str:
    """Return the unit of a count that has none printed: only the two clocks have one.

    perf 6.17 and later print a clock as the kernel counts it, in ns; perf before 4.x printed ms,
    with decimals.
    """
    if value is None or not _CLOCK.match(event):
        return ""
    return "ns" if isinstance(value, int) else "msec"


def decimal(line: Line, text: str) -> Optional[float]:
    """Return a number printed without thousands separators, whatever its decimal mark."""
    if text.lstrip("-+") in ("nan", "inf"):
        return None
    match = re.fullmatch(r"[-+]?\d+(?:[.,\u066b]\d+)?(?:e[-+]?\d+)?", text)
    if not match:
        refuse(NAME, line, f"{text!r} is not a number")
    number = float(text.replace(",", ".").replace("\u066b", "."))
    if number in (float("inf"), float("-inf")):
        refuse(NAME, line, f"{text!r} is too large for a number")
    return number


def metric(
    name: str,
    value: Optional[float],
    unit: str,
    where: Record,
    why: str = "perf printed no number",
) -> Record:
    """Return the record of a metric that belongs to no event."""
    record: Record = {"kind": "metric", "name": name, "value": value, "unit": unit}
    return {**record, **({"reason": why} if value is None else {}), **where}


# CSV


_RUN_AND_SHARE = re.compile(
    r"(?P<sep>[^\w\s<>.\-]{1,3}|\s)\d+(?P=sep)\d{1,3}[.,]\d\d(?=(?P=sep)|\Z)"
)


def separator_of(body: List[Line]) -> Optional[str]:
    """Return the separator that every counter's line of a CSV output shows, or None."""
    found = set()
    for line in body:
        for match in _RUN_AND_SHARE.finditer(line.text):
            before = line.text[: match.start()].split(match["sep"])
            named = any(re.match(r"[^\d\W]", field.strip()) for field in before[1:])
            if named and any(_is_count(field.strip()) for field in before):
                found.add(match["sep"])
                break
    if found:
        return found.pop() if len(found) == 1 else None
    # Before perf 3.19 a line is "count,event" or "count,unit,event"; --metric-only has a head.
    for sep in (",", ";", "\t", "|"):
        plain = re.compile(
            rf"(?:\S+{re.escape(sep)})?(?:\d+(?:\.\d+)?|{BAD}){re.escape(sep)}[^\d\W][^\s]*\Z"
        )
        if all(plain.match(line.text.strip()) for line in body):
            return sep
        if len(body) > 1 and _metric_names(body[0], sep):
            return sep
    return None


def _metric_names(head: Line, sep: str) -> List[str]:
    """Return the names in a head of --metric-only, whose last field is empty; else none."""
    names = head.text.strip().split(sep)
    is_head = names.pop() == "" and names and all(re.match(r"[A-Za-z%]", name) for name in names)
    return [name.strip() for name in names] if is_head else []


def _csv(body: List[Line], sep: str) -> List[Record]:
    names = _metric_names(body[0], sep)
    if names:
        return _csv_metrics(body, names, sep)
    out = [
        _csv_row(line, [field.strip() for field in line.text.lstrip().split(sep)], sep)
        for line in body
        if not line.text.lstrip().startswith("#")
    ]
    if len({"running_ns" in record for record in out if record["kind"] == "event"}) > 1:
        refuse(NAME, None, "some rows have no run time and share: cut short?")
    return out


def _csv_prefix(line: Line, fields: List[str]) -> Record:
    """Take time and aggregate off the front of a row's fields."""
    where: Record = {}
    if fields and fields[0] == "summary":
        fields.pop(0)
        where["summary"] = True
    if fields and re.fullmatch(r"\d+[.,]\d{9}", fields[0]):
        where["interval_s"] = decimal(line, fields.pop(0))
    if fields and re.fullmatch(AGGREGATE, fields[0]):
        where["aggregate"] = fields.pop(0)
    elif len(fields) > 1 and re.fullmatch(r"\S.*-\d+", fields[0]) and not _is_count(fields[0]):
        where["aggregate"] = fields.pop(0)  # comm-pid of --per-thread
    return where


def _is_count(field: str) -> bool:
    return bool(re.fullmatch(rf"-?\d+(?:[.,]\d+)?|{BAD}", field))


def _csv_row(line: Line, fields: List[str], sep: str) -> Record:
    """Read: prefix, CPUs, count, unit, event, cgroup, variance, run time, share, metric, unit."""
    where = _csv_prefix(line, fields)
    # The number of CPUs stands before the count, or before the empty fields of a metric's row.
    lone = len(fields) > 3 and not fields[1] and re.fullmatch(r"\d*", fields[2])
    counted = len(fields) > 1 and re.fullmatch(r"\d+", fields[0])
    if where.get("aggregate") and counted and (lone or _is_count(fields[1])):
        where["cpus"] = int(fields.pop(0))
    if len(fields) > 3 and not fields[0]:
        return _csv_lone(line, fields, where)
    if not fields or not _is_count(fields[0]):
        refuse(NAME, line, "this row has no count where perf prints one")
    count, rest = fields[0], fields[1:]
    record: Record = {"kind": "event"}
    if count.startswith("<"):
        record.update(value=None, reason=count.strip("<>"))
    else:
        whole = re.fullmatch(r"-?\d+", count)
        record["value"] = int(count) if whole else decimal(line, count)
    # Events may hold the separator: run time and share, which cannot, mark where they end.
    for end in range(1, len(rest) - 1):
        if re.fullmatch(r"\d+", rest[end]) and re.fullmatch(r"\d+[.,]\d\d", rest[end + 1]):
            record.update(_csv_name(line, rest[:end], sep), running_ns=int(rest[end]))
            record["running_percent"] = decimal(line, rest[end + 1])
            return {**record, **_csv_comment(line, rest[end + 2 :]), **where}
    return {**record, **_csv_short(line, rest), **where}


def _csv_lone(line: Line, fields: List[str], where: Record) -> Record:
    """Read a row without a count: run time and share (or neither), then a metric or a head."""
    if fields[-1] in _JUDGED:
        where["metric_threshold"] = fields.pop()
    if re.fullmatch(r"\d+", fields[1]) and re.fullmatch(r"\d+[.,]\d\d", fields[2]):
        where["running_ns"], share = int(fields[1]), decimal(line, fields[2])
        where["running_percent"], fields = share, [""] + fields[3:]
        if not any(fields[:-1]) and fields[-1]:
            return {"kind": "metric_group", "name": fields[-1], **where}
    value, name = fields[-2], fields[-1]
    if any(fields[:-2]) or not re.match(r"[A-Za-z%/]", name):
        refuse(NAME, line, "this row has neither a count nor one metric: cut short?")
    unit = re.sub(r"\s+", " ", name)
    number = decimal(line, value) if value else None
    return metric(unit.lstrip("% ") or unit, number, unit, where)


def _csv_short(line: Line, rest: List[str]) -> Record:
    """Return event and unit of a row without run time and share (before perf 3.19)."""
    found: Record = {}
    if len(rest) > 1 and re.fullmatch(r"\d+[.,]\d\d%", rest[-1]):
        found["variance_percent"] = decimal(line, rest.pop()[:-1])
    unit = rest.pop(0) if len(rest) == 2 else ""
    if len(rest) != 1 or not re.match(r"[^\d\W]", rest[0]) or (unit and unit not in UNITS):
        refuse(NAME, line, "this row has no run time and share: cut short?")
    return {**found, "event": rest[0], "unit": unit}


def _csv_name(line: Line, name: List[str], sep: str) -> Record:
    """Return unit, event, cgroup and variance, which stand between the count and the run time."""
    found: Record = {}
    if len(name) > 1 and re.fullmatch(r"(?:\d+[.,]\d\d|nan|-nan|inf)%", name[-1]):
        found["variance_percent"] = decimal(line, name.pop()[:-1])
    unit = name.pop(0) if len(name) > 1 else ""
    own = len(name) == 1 and re.fullmatch(r"[\w.% ]{1,24}", unit)  # of this processor alone
    if unit and unit not in UNITS and not own:
        name.insert(0, unit)
        unit = ""
    if len(name) > 1 and name[-1] == "":
        name.pop()  # the empty name of the root cgroup
    if len(name) > 1 and "/" not in name[0]:
        found["cgroup"] = sep.join(name[1:])
        name = name[:1]
    event = sep.join(name)
    if not event:
        refuse(NAME, line, "this row names no event")
    return {**found, "event": event, "unit": unit}


def _csv_comment(line: Line, tail: List[str]) -> Record:
    """Return the metric beside an event; its threshold, and fields without a value, are left."""
    if len(tail) > 2 and any(tail[2:]) and tail[2] not in _JUDGED:
        refuse(NAME, line, "more fields than perf prints")
    if len(tail) == 1 and tail[0]:
        refuse(NAME, line, "a metric without its unit: cut short?")
    if len(tail) < 2 or not (tail[0] or tail[1]):
        return {}
    value = decimal(line, tail[0]) if tail[0] else None
    return {"metric_value": value, "metric_unit": tail[1]}


def _csv_metrics(body: List[Line], names: List[str], sep: str) -> List[Record]:
    """Read --metric-only: a head, then rows of values."""
    while names and names[0] in (
        "time", "socket", "cpus", "die", "cluster", "cache", "core", "node", "cpu", "comm-pid",
    ):  # fmt: skip
        names = names[1:]
    out: List[Record] = []
    for line in body[1:]:
        fields = [field.strip() for field in line.text.strip().split(sep)]
        if fields and fields[-1] == "":
            fields.pop()
        where = _csv_prefix(line, fields)
        if "aggregate" in where and len(fields) == len(names) + 1:
            if not re.fullmatch(r"\d+", fields[0]):
                refuse(NAME, line, "the number of CPUs is missing")
            where["cpus"] = int(fields.pop(0))
        if len(fields) != len(names):
            refuse(NAME, line, f"{len(fields)} values for {len(names)} metrics")
        for name, field in zip(names, fields):
            value = decimal(line, field.rstrip("%")) if field else None
            out.append(metric(name, value, name, where))
    if not out:
        refuse(NAME, body[0], "a head of metrics without values: cut short?")
    return out


# JSON

_PLACES = ("core", "die", "socket", "node", "cpu", "thread", "cluster", "cache")
_METADATA = {
    "interval", "counter-value", "unit", "event", "event-runtime", "pcnt-running", "metric-value",
    "metric-unit", "metric-threshold", "metricgroup", "aggregate-number", "counters", "cgroup",
    "variance", *_PLACES,
}  # fmt: skip
_NUMBERS = (
    ("interval", "interval_s", float), ("counters", "cpus", int), ("aggregate-number", "cpus", int),
    ("variance", "variance_percent", float), ("pcnt-running", "running_percent", float),
    ("event-runtime", "running_ns", int),
)  # fmt: skip
_TEXTS = (("metric-threshold", "metric_threshold"), ("metricgroup", "group"))


def _json(body: List[Line]) -> List[Record]:
    out: List[Record] = []
    heads: List[str] = []
    for line in body:
        row = line.text.strip().rstrip(",")
        if row in ("[", "]") or row.startswith("# "):
            continue
        objects = _objects(line, row)
        # perf 5.18 to 6.3: --metric-only prints one object per name, then one per value.
        if all(set(one) == {"unit"} for one in objects):
            heads = [str(one["unit"]) for one in objects if one["unit"] != "sec"]
        elif len(objects) > 1 or (heads and set(objects[0]) <= {"metric-value", "interval"}):
            out.extend(_json_headed(line, objects, heads))
        else:
            out.extend(_json_object(line, objects[0]))
    if not out:
        refuse(NAME, None, "it holds no counter: cut short?")
    return out


def _objects(line: Line, row: str) -> List[Dict[str, Any]]:
    # Faults of some versions of perf: a comma too many, none after the core, and nan.
    row = re.sub(r",\s*\}", "}", row)
    row = re.sub(r'("(?:core|cpu)" : "[^"]*")(?=\s*")', r"\1, ", row)
    row = re.sub(r":\s*[-+]?(?:nan|inf)\b", ": null", row)
    decoder = json.JSONDecoder()
    objects: List[Dict[str, Any]] = []
    at = 0
    while at < len(row):
        try:
            item, at = decoder.raw_decode(row, at)
        except (ValueError, RecursionError):
            refuse(NAME, line, "this is not a JSON object: cut short?")
        if not isinstance(item, dict) or not item:
            refuse(NAME, line, "this is not an object of perf stat -j")
        if any(isinstance(value, (dict, list)) for value in item.values()):
            refuse(NAME, line, "an object of perf stat -j holds only texts and numbers")
        objects.append(item)
        while at < len(row) and row[at] in " ,\t":
            at += 1
    return objects


def _json_number(line: Line, value: object) -> Optional[float]:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        number = float(value)
        return number if abs(number) != float("inf") and number == number else None
    text = str(value).strip().rstrip("%")
    return decimal(line, text) if text and text != "none" else None


def _json_headed(line: Line, objects: List[Dict[str, Any]], heads: List[str]) -> List[Record]:
    where: Record = {}
    values = []
    for item in objects:
        if set(item) == {"interval"}:
            where["interval_s"] = _json_number(line, item["interval"])
        elif set(item) == {"metric-value"}:
            values.append(_json_number(line, item["metric-value"]))
        else:
            refuse(NAME, line, "several objects in a line, and they are not --metric-only's")
    if len(values) != len(heads):
        refuse(NAME, line, f"{len(values)} values for {len(heads)} metrics")
    return [metric(name, value, name, where) for name, value in zip(heads, values)]


def _json_object(line: Line, item: Dict[str, Any]) -> List[Record]:
    where = _json_place(line, item)
    if "event" in item:
        return [_json_event(line, item, where)]
    if "metric-value" in item:
        unit = re.sub(r"\s+", " ", str(item.get("metric-unit") or ""))
        value = _json_number(line, item["metric-value"])
        return [metric(unit.lstrip("% ") or unit, value, unit, where)]
    others = {key: value for key, value in item.items() if key not in _METADATA}
    if others:  # --metric-only: every other key is a metric's name
        return [metric(k, _json_number(line, value), k, where) for k, value in others.items()]
    if "metricgroup" in item:
        return [{"kind": "metric_group", "name": item["metricgroup"], **where}]
    refuse(NAME, line, "this object holds neither an event nor a metric")


def _json_place(line: Line, item: Dict[str, Any]) -> Record:
    """Return when, where and for how long the value of an object was counted."""
    where: Record = {}
    for key, name, kind in _NUMBERS:
        if item.get(key) is not None or (key in item and name != "cpus"):
            number = _json_number(line, item[key])
            where[name] = None if number is None else kind(number)
    for place in _PLACES:
        if place in item:
            where["aggregate"] = f"CPU{item[place]}" if place == "cpu" else str(item[place])
    where.update({name: item[key] for key, name in _TEXTS if key in item})
    if item.get("cgroup"):
        where["cgroup"] = item["cgroup"]
    return where


def _json_event(line: Line, item: Dict[str, Any], where: Record) -> Record:
    unknown = set(item) - _METADATA
    if unknown:
        refuse(NAME, line, f"unknown key {sorted(unknown)[0]!r}")
    if "counter-value" not in item:
        refuse(NAME, line, "an event without a value: cut short?")
    raw = item["counter-value"]
    record: Record = {"kind": "event", "event": str(item["event"]), "unit": item.get("unit") or ""}
    if isinstance(raw, str) and re.fullmatch(BAD, raw.strip()):
        record.update(value=None, reason=raw.strip().strip("<>"))
    else:
        value = _json_number(line, raw)
        if value is None:
            refuse(NAME, line, "the event's value is not a number")
        record["value"] = int(value) if value == int(value) and not record["unit"] else value
    if "metric-value" in item and (item.get("metric-unit") or item["metric-value"] not in (0, 0.0)):
        record["metric_value"] = _json_number(line, item["metric-value"])
        record["metric_unit"] = re.sub(r"\s+", " ", str(item.get("metric-unit") or ""))
    return {**record, **where}
