"""Parser of ``perf stat`` in its three formats: text, CSV (-x) and JSON (-j).

Format: the kernel's tools/perf/util/stat-display.c (functions print_counter_value_*,
print_aggr_id_*, print_metric_*, prepare_interval, print_footer) and perf-stat(1); older forms
from the same file's history (events named "task-clock (msec)", "task-clock-msecs", CSV without
run time).

Records:

- ``event``: ``event``, ``value`` (null with ``reason`` "not counted" or "not supported"),
  ``unit`` (as printed: msec, Joules, MiB …; "" for a plain count), ``running_percent`` (share of
  the time that the counter was on; below 100 the value is scaled up), ``running_ns``,
  ``variance_percent`` (-r), ``interval_s`` (-I), ``aggregate`` (S0, N1, CPU3, S0-D0-C2,
  comm-pid), ``cpus`` (their number), ``cgroup``, ``metric_value`` and ``metric_unit`` (the
  comment beside it)
- ``metric``: a metric of no event of its own (continuation lines, --metric-only): ``name``,
  ``value`` (null with ``reason``), ``unit``, and the fields above that apply
- ``elapsed``, ``user``, ``system``: ``value``, ``unit`` s, ``variance_percent``
- ``run`` (--table): ``value``, ``unit`` s
- ``target``: ``text``, ``runs``; ``started``: ``text``; ``note``: ``text``
"""

from __future__ import annotations

import json
import re
from typing import Dict, List, Optional, Tuple

from ..drivers.reading import Line, Record, lines, refuse

NAME = "perf stat"

_AGGREGATE = (
    r"S\d+-D\d+-L\d+-ID\d+|S\d+-D\d+-CLS\d+|S\d+-D\d+-C\d+|S\d+-C\d+|S\d+-D\d+|S\d+|N\d+|D\d+"
    r"|CPU ?\d+|CPU\(\d+\)|SYS"
)
_GROUP = ",.'\u2019\u00a0\u202f\u066c\u2009"  # thousands separators of the C library's locales
_COUNT = rf"-?\d+(?:[{_GROUP}]\d+)*"
_BAD = r"<not counted>|<not supported>"
_UNITS = {
    "msec", "ns", "us", "sec", "Joules", "J", "C", "%", "B", "Bytes", "bytes", "KB", "MB", "GB",
    "KiB", "MiB", "GiB", "kB", "Cycles", "MHz", "GHz", "W", "mW", "mV", "uV", "mJ", "RPM", "rpm",
    "GB/s", "MB/s", "MiB/s", "KiB/s", "unit", "'C", "mC", "degC",
}  # fmt: skip
_NOISE = re.compile(r"\(\s*\+-\s*(?P<noise>[\d.,]+|nan|-nan|inf)\s*%\s*\)")
_RUNNING = re.compile(r"\(\s*(?P<running>\d+[.,]\d\d)%\s*\)(?P<old>)")
_RUNNING_OLD = re.compile(
    r"\[\s*(?P<running>\d+[.,]\d\d)%\s*\]|\(scaled from (?P<old>\d+[.,]\d\d)%\)"
)
_TIME = re.compile(
    r"(?P<value>\d+[.,]\d+)(?:\s+\+-\s+(?P<error>\d+[.,]\d+))?\s+seconds\s+"
    r"(?P<what>time elapsed|user|sys)(?:\s+\(\s*\+-\s*(?P<noise>[\d.,]+)%\s*\))?\Z"
)
_HEAD = re.compile(r"Performance counter stats for (?P<target>.*?)(?: \((?P<runs>\d+) runs\))?:\Z")
_INTERVAL_HEAD = re.compile(
    r"#\s+time\s+(?P<aggr>(?:cpu|CPU|CPUs|core|cluster|cache|die|socket|node|comm-pid)\s+)?"
    r"(?P<cpus>cpus\s+)?(?P<rest>.*)\Z"
)
_TIMESTAMP = re.compile(r"(?P<time>\d+[.,]\d{9}|summary)(?:\s+|\Z)")
_FIRST = re.compile(rf"(?P<aggr>{_AGGREGATE})\s+")
_THREAD = re.compile(r"(?P<aggr>\S.{0,15}?-\d+)\s+")
_NOTES = (
    "Some events weren't counted. Try disabling the NMI watchdog:",
    "echo 0 > /proc/sys/kernel/nmi_watchdog", "echo 1 > /proc/sys/kernel/nmi_watchdog",
    "perf stat ...",
    "The events in group usually have to be from the same PMU. Try reorganizing the group.",
)  # fmt: skip


def parse(text: str) -> List[Record]:
    """Return the records of one output in any of the formats; ParseError for anything else."""
    rows = [line for line in lines(text, ("perf",)) if line.text.strip()]
    if not rows:
        refuse(NAME, None, "it is empty")
    body = [line for line in rows if not line.text.startswith("# started on ")]
    head: List[Record] = [
        {"kind": "started", "text": line.text[len("# started on ") :]}
        for line in rows
        if line.text.startswith("# started on ")
    ]
    if not body:
        refuse(NAME, None, "it holds no counter: perf failed, or it is cut short")
    if body[0].text.lstrip().startswith("{"):
        return head + _json(body)
    human = any(
        _HEAD.match(line.text.strip()) or _INTERVAL_HEAD.match(line.text.strip()) for line in body
    )
    if not human:
        separator = _separator(body)
        if separator:
            return head + _csv(body, separator)
    return head + _Text(human).parse(body)


# Numbers


def _decimal(tool_line: Line, text: str) -> Optional[float]:
    """Return a number printed without thousands separators, whatever its decimal mark."""
    if text.lstrip("-+") in ("nan", "inf"):
        return None
    match = re.fullmatch(r"[-+]?\d+(?:[.,\u066b]\d+)?(?:e[-+]?\d+)?", text)
    if not match:
        refuse(NAME, tool_line, f"{text!r} is not a number")
    number = float(text.replace(",", ".").replace("\u066b", "."))
    if number in (float("inf"), float("-inf")):
        refuse(NAME, tool_line, f"{text!r} is too large for a number")
    return number


def _count(line: Line, text: str) -> float:
    """Return a count with a locale's thousands separators.

    perf prints a count with no decimals, with two, or (a clock, before 4.x) with six: a mark
    that three digits follow separates thousands, and only the last mark can be a decimal one.
    """
    sign = -1 if text.startswith("-") else 1
    parts = re.split(f"([{_GROUP}])", text.lstrip("-"))
    digits, marks = parts[0::2], parts[1::2]
    if not marks:
        return sign * int(digits[0])
    fraction = ""
    if len(digits[-1]) in (2, 6) and marks[-1] in ".,\u066b":
        fraction = digits.pop()
        last = marks.pop()
        if last in marks:
            refuse(NAME, line, f"{text!r}: the same mark for thousands and decimals")
    # Indian locales group by two above the last three digits.
    grouped = all(len(group) in (2, 3) for group in digits[1:-1])
    long_head = not marks and len(digits) == 1
    if len(set(marks)) > 1 or not grouped or (marks and len(digits[-1]) != 3):
        refuse(NAME, line, f"{text!r} is not a count as perf prints it")
    if not long_head and len(digits[0]) > 3:
        refuse(NAME, line, f"{text!r} is not a count as perf prints it")
    whole = int("".join(digits))
    return sign * float(f"{whole}.{fraction}") if fraction else sign * whole


def _reason(text: str) -> str:
    return text.strip("<>")


def _comment(line: Line, text: str) -> Tuple[Optional[float], str]:
    """Return value and unit of "0.28  insn per cycle", "6.34% of all branches", "2.9 CPI"."""
    match = re.match(r"(?P<value>[-+]?\d+(?:[.,]\d+)?|[-+]?nan|[-+]?inf)\s*(?P<unit>\S.*)?\Z", text)
    if not match or re.search(r"[(\[]", match["unit"] or ""):
        refuse(NAME, line, f"{text!r} is not a metric's value and unit")
    return _decimal(line, match.group("value")), re.sub(r"\s+", " ", match.group("unit") or "")


# Text


class _Text:
    """The human-readable format, one line after the other."""

    def __init__(self, human: bool) -> None:
        self.headed = not human  # a text without its head is all body
        self.out: List[Record] = []
        self.names: Optional[List[str]] = None  # of the columns of --metric-only
        self.header: Optional[Line] = None
        self.interval = False
        self.threads = False
        self.aggregated = False
        self.percore = False

    def parse(self, body: List[Line]) -> List[Record]:
        for line in body:
            self.line(line)
        measured = any(r["kind"] in ("event", "metric", "elapsed") for r in self.out)
        if not measured:
            refuse(NAME, None, "it holds no counter: perf failed, or it is cut short")
        if self.header is not None:
            refuse(NAME, self.header, "a head of metrics without values: cut short?")
        return self.out

    def line(self, line: Line) -> None:
        row = line.text.strip()
        match = _HEAD.match(row)
        if match:
            self.headed, self.interval = True, False
            runs = int(match.group("runs")) if match.group("runs") else 1
            self.out.append({"kind": "target", "text": match.group("target"), "runs": runs})
            return
        match = _INTERVAL_HEAD.match(row)
        if match and line.text.startswith("#"):
            self.headed = self.interval = True
            self.threads = (match.group("aggr") or "").strip() == "comm-pid"
            self.aggregated = bool(match.group("aggr"))
            if not re.match(r"counts\s+(?:unit\s+)?events\Z", match.group("rest")):
                self.header = Line(line.number, match.group("rest"))
            return
        if re.match(r"(?:Error:|event syntax error:|Workload failed:|failed to )", row) and (
            not any(r["kind"] == "target" for r in self.out)
        ):
            refuse(NAME, line, "perf failed and counted nothing")
        if not self.headed:
            return  # what the measured program printed before perf's report began
        if row in _NOTES:
            self.out.append({"kind": "note", "text": row})
            return
        if row.startswith(("# Table of individual measurements:", "# Final result:")):
            return
        match = _TIME.match(row)
        if match:
            kind = {"time elapsed": "elapsed", "user": "user", "sys": "system"}[match["what"]]
            record: Record = {"kind": kind, "value": _decimal(line, match["value"]), "unit": "s"}
            if match["noise"]:
                record["variance_percent"] = _decimal(line, match["noise"])
            self.out.append(record)
            return
        match = re.fullmatch(r"(\d+[.,]\d+) \([-+]\d+[.,]\d+\) #+", row)
        if match:
            self.out.append({"kind": "run", "value": _decimal(line, match[1]), "unit": "s"})
            return
        self.counter(line)

    def counter(self, line: Line) -> None:
        row = line.text.strip()
        where: Record = {}
        match = _TIMESTAMP.match(row)
        if match and (self.interval or re.match(r"\d+[.,]\d{9}\s+\S", row)):
            stamp = match["time"]
            where["interval_s"] = None if stamp == "summary" else _decimal(line, stamp)
            if stamp == "summary":
                where["summary"] = True
            row = row[match.end() :]
        elif self.interval:
            refuse(NAME, line, "an interval's line begins with its time")
        match = _FIRST.match(row + " ")
        if match:
            where["aggregate"] = match["aggr"].replace(" ", "")
            row = row[match.end() :]
        elif self.threads or self._thread_row(row):
            match = _THREAD.match(row)
            if not match:
                refuse(NAME, line, "a thread's name and number are missing")
            where["aggregate"] = match["aggr"].strip()
            row = row[match.end() :]
        if self.header is not None or self.names is not None:
            self.metric_row(line, row, where)
            return
        if self._metric_head(row, where):
            self.header = line
            return
        match = re.match(rf"(\d+)\s+(?=(?:{_COUNT}|{_BAD})\s+\S|#)", row)
        if where.get("aggregate") and match:
            where["cpus"] = int(match[1])
            row = row[match.end() :]
        self.event(line, row, where)

    def _thread_row(self, row: str) -> bool:
        return bool(
            re.match(rf"\S.{{0,15}}?-\d+\s+(?:{_COUNT}|{_BAD})\s+\S", row)
        ) and not re.match(rf"(?:{_COUNT}|{_BAD})\s", row)

    def _metric_head(self, row: str, where: Record) -> bool:
        """Whether a row is the head of --metric-only: names, before any counter."""
        if where or any(r["kind"] in ("event", "metric") for r in self.out):
            return False
        return not re.search(r"\d[.,]\d|#|<not", row) and not re.match(rf"{_COUNT}\s", row)

    def metric_row(self, line: Line, row: str, where: Record) -> None:
        """Read one row of --metric-only: its columns are right-aligned under their names."""
        words = row.split()
        aggregate = str(where.get("aggregate", ""))
        if aggregate and not aggregate.startswith("CPU") and re.fullmatch(r"\d+", words[0] if words
                                                                          else ""):  # fmt: skip
            where["cpus"] = int(words.pop(0))
        if not all(re.fullmatch(r"[-+]?(?:\d+(?:[.,]\d+)?%?|nan|inf)", word) for word in words):
            refuse(NAME, line, "a row of metrics holds only numbers")
        if self.header is not None:
            self.names = _split_head(self.header, len(words))
            self.header = None
        if self.names is None or len(words) != len(self.names) or not words:
            refuse(NAME, line, f"{len(words)} values for {len(self.names or [])} metrics")
        for name, word in zip(self.names, words):
            value = _decimal(line, word.rstrip("%"))
            record: Record = {"kind": "metric", "name": name, "value": value, "unit": name}
            if word.endswith("%"):
                record["unit"] = "% " + name
            if value is None:
                record["reason"] = f"perf printed {word}"
            self.out.append({**record, **where})

    def event(self, line: Line, row: str, where: Record) -> None:
        fields: Record = {}
        noise = _NOISE.search(row)
        if noise:
            fields["variance_percent"] = _decimal(line, noise["noise"])
            row = (row[: noise.start()] + " " + row[noise.end() :]).strip()
        running = None
        for pattern in (_RUNNING, _RUNNING_OLD):
            found = list(pattern.finditer(row))
            if found and not row[found[-1].end() :].strip():
                running = found[-1]
                break
        fields["running_percent"] = 100.0
        if running:
            fields["running_percent"] = _decimal(line, running["running"] or running["old"])
            row = row[: running.start()].rstrip()
        metric = re.match(r"(?P<group>[A-Za-z]\w*(?: \(\w+\))?\s+)?#\s*(?P<comment>\S.*)?\Z", row)
        if metric:
            if not metric["comment"]:
                refuse(NAME, line, "a metric without a value")
            self.metric(line, metric, where, fields)
            return
        match = re.match(
            rf"(?P<count>{_COUNT}|{_BAD})\s+(?P<what>[^\s#].*?)(?:\s+#\s*(?P<comment>.*))?\Z", row
        )
        if not match:
            refuse(NAME, line, "this is not a count and its event")
        unit, event, cgroup = _unit_event(line, match["what"])
        count = match["count"]
        bad = count.startswith("<")
        record: Record = {
            "kind": "event", "event": event, "value": None if bad else _count(line, count),
            "unit": unit,
        }  # fmt: skip
        if bad:
            record["reason"] = _reason(count)
            if not running:
                fields["running_percent"] = None
        record.update(fields)
        record.update(where)
        if cgroup:
            record["cgroup"] = cgroup
        comment = (match["comment"] or "").strip()
        if comment:
            value, metric_unit = _comment(line, comment)
            record.update(metric_value=value, metric_unit=metric_unit)
        self.out.append(record)

    def metric(self, line: Line, match: re.Match[str], where: Record, fields: Record) -> None:
        value, unit = _comment(line, match["comment"].strip())
        record: Record = {"kind": "metric", "name": unit.lstrip("% ") or unit, "value": value}
        record["unit"] = unit
        if value is None:
            record["reason"] = "perf printed no number"
        if match["group"]:
            record["group"] = match["group"].strip()
        self.out.append({**record, **fields, **where})


def _unit_event(line: Line, what: str) -> Tuple[str, str, Optional[str]]:
    """Tell unit, event name and cgroup apart: perf separates all three by blanks only."""
    words = what.split()
    if len(words) == 2 and re.fullmatch(r"\(\w+\)", words[1]):  # task-clock (msec)
        return words[1].strip("()"), words[0], None
    if len(words) == 1:
        old = re.fullmatch(r"(task-clock|cpu-clock)-msecs", words[0])
        if old or re.match(r"(?:task|cpu)-clock(?::\w+)?\Z", words[0]):
            return "msec", old[1] if old else words[0], None  # what perf 3.x leaves unsaid
        return "", words[0], None
    unit = ""
    if words[0] in _UNITS:
        unit = words.pop(0)
    if len(words) > 1 and re.fullmatch(r"\[\w+\]", words[1]):  # event [pmu]
        words[:2] = [" ".join(words[:2])]
    if len(words) == 1:
        return unit, words[0], None
    if re.match(r"[\w.-]+/.*", words[0]) and words[-1].endswith("/") and "," in what:
        return unit, " ".join(words), None  # pmu/event=1, name=x y/
    if len(words) == 2 and re.search(r"/|\.(?:slice|scope|service)\Z", words[1]):
        return unit, words[0], words[1]
    refuse(NAME, line, f"{what!r}: cannot tell a unit from the name of an event")


def _split_head(head: Line, count: int) -> List[str]:
    """Split the head of --metric-only into names: blanks inside them are single.

    Each name is right-aligned in 20 columns; a longer one touches its neighbour, and then the
    columns decide.
    """
    names = re.split(r"\s{2,}", head.text.strip())
    if len(names) == count:
        return names
    names = head.text.split()
    if len(names) == count:
        return names
    refuse(NAME, head, f"the names of {count} metrics cannot be told apart")


# CSV


_RUN_AND_SHARE = re.compile(
    r"(?P<sep>[^\w\s<>.\-]{1,3}|\s)\d+(?P=sep)\d{1,3}[.,]\d\d(?=(?P=sep)|\Z)"
)


def _separator(body: List[Line]) -> Optional[str]:
    """Return the separator that every counter's line of a CSV output shows, or None."""
    found = set()
    for line in body:
        for match in _RUN_AND_SHARE.finditer(line.text):
            before = line.text[: match.start()].split(match["sep"])
            named = any(re.match(r"[^\d\W]", field.strip()) for field in before[1:])
            if named and any(_is_count(field.strip()) for field in before):
                found.add(match["sep"])
                break
    if len(found) == 1:
        return found.pop()
    if found:
        return None
    # Before perf 3.19 a line is "count,event" or "count,unit,event"; --metric-only has a head.
    for sep in (",", ";", "\t", "|"):
        plain = re.compile(
            rf"(?:\S+{re.escape(sep)})?(?:\d+(?:\.\d+)?|{_BAD}){re.escape(sep)}[^\d\W][^\s]*\Z"
        )
        if all(plain.match(line.text.strip()) for line in body):
            return sep
        head = body[0].text.strip().split(sep)
        if len(body) > 1 and len(head) > 1 and head[-1] == "" and _csv_metric_head(head):
            return sep
    return None


def _csv_metric_head(head: List[str]) -> bool:
    names = head[:-1]
    return bool(names) and all(re.match(r"[A-Za-z%]", name) for name in names)


def _csv(body: List[Line], sep: str) -> List[Record]:
    out: List[Record] = []
    head = body[0].text.strip().split(sep)
    if head[-1] == "" and _csv_metric_head(head):
        return _csv_metric_only(body, sep)
    for line in body:
        row = line.text.lstrip()
        if row.startswith("#"):
            continue
        out.append(_csv_row(line, [field.strip() for field in row.split(sep)], sep))
    return out


def _csv_prefix(line: Line, fields: List[str]) -> Record:
    """Take time, aggregate and number of CPUs off the front of a row's fields."""
    where: Record = {}
    if fields and fields[0] == "summary":
        fields.pop(0)
        where["summary"] = True
    if fields and re.fullmatch(r"\d+[.,]\d{9}", fields[0]):
        where["interval_s"] = _decimal(line, fields.pop(0))
    if fields and re.fullmatch(_AGGREGATE, fields[0]):
        where["aggregate"] = fields.pop(0)
    elif len(fields) > 1 and re.fullmatch(r"\S.*-\d+", fields[0]) and not _is_count(fields[0]):
        where["aggregate"] = fields.pop(0)  # comm-pid of --per-thread
    return where


def _is_count(field: str) -> bool:
    return bool(re.fullmatch(rf"-?\d+(?:[.,]\d+)?|{_BAD}", field))


def _csv_row(line: Line, fields: List[str], sep: str) -> Record:
    where = _csv_prefix(line, fields)
    aggregate = str(where.get("aggregate", ""))
    # The number of CPUs stands before the count, or before the empty fields of a metric's row.
    if aggregate and len(fields) > 1 and re.fullmatch(r"\d+", fields[0]):
        lone_metric = not fields[1] and len([field for field in fields[1:] if field]) <= 2
        if _is_count(fields[1]) or lone_metric:
            where["cpus"] = int(fields.pop(0))
    lone = len(fields) >= 4 and not any(fields[:-2]) and bool(fields[-1])
    if lone and re.match(r"(?:[-+]?(?:\d|nan|inf)|\Z)", fields[-2]):
        value = _decimal(line, fields[-2]) if fields[-2] else None
        record: Record = {"kind": "metric", "name": fields[-1], "value": value}
        record["unit"] = fields[-1]
        if value is None:
            record["reason"] = "perf printed no number"
        return {**record, **where}
    if not fields or not _is_count(fields[0]):
        refuse(NAME, line, "this row has no count where perf prints one")
    bad = fields[0].startswith("<")
    number = None if bad else _decimal(line, fields[0])
    if number is not None and re.fullmatch(r"-?\d+", fields[0]):
        number = int(fields[0])
    record = {"kind": "event", "value": number}
    if bad:
        record["reason"] = _reason(fields[0])
    rest = fields[1:]
    # Events may hold the separator: run time and share, which cannot, mark where they end.
    end = next(
        (
            i
            for i in range(1, len(rest) - 1)
            if re.fullmatch(r"\d+", rest[i]) and re.fullmatch(r"\d+[.,]\d\d", rest[i + 1])
        ),
        None,
    )
    if end is None:
        if len(rest) > 1 and re.fullmatch(r"\d+[.,]\d\d%", rest[-1]):
            record["variance_percent"] = _decimal(line, rest.pop()[:-1])
        if len(rest) == 1 and re.match(r"[^\d\W]", rest[0]):
            record.update(event=rest[0], unit="")
        elif (
            len(rest) == 2 and (not rest[0] or rest[0] in _UNITS) and re.match(r"[^\d\W]", rest[1])
        ):
            record.update(event=rest[1], unit=rest[0])
        else:
            refuse(NAME, line, "this row has no run time and share: cut short?")
        return {**record, **where}
    name = rest[:end]
    if len(name) > 1 and re.fullmatch(r"(?:\d+[.,]\d\d|nan|-nan|inf)%", name[-1]):
        record["variance_percent"] = _decimal(line, name.pop()[:-1])
    unit = name.pop(0) if len(name) > 1 else ""
    if unit and unit not in _UNITS:
        if len(name) == 1 and re.fullmatch(r"[\w.%/ ]{1,24}", unit) and not re.search("/", unit):
            pass  # a unit of this processor's own
        else:
            name.insert(0, unit)
            unit = ""
    if len(name) > 1 and name[-1] == "":
        name.pop()  # the empty name of the root cgroup
    if len(name) > 1 and "/" not in name[0]:
        record["cgroup"] = sep.join(name[1:])
        name = name[:1]
    event = sep.join(name)
    if not event:
        refuse(NAME, line, "this row names no event")
    record.update(event=event, unit=unit, running_ns=int(rest[end]))
    record["running_percent"] = _decimal(line, rest[end + 1])
    tail = rest[end + 2 :]
    if len(tail) > 2 and not any(tail[2:]):
        tail = tail[:2]
    if len(tail) > 2 and tail[2] in ("good", "bad", "less good", "nearly bad", "unknown"):
        tail = tail[:2]
    if len(tail) > 2:
        refuse(NAME, line, "more fields than perf prints")
    if len(tail) == 2 and (tail[0] or tail[1]):
        record["metric_value"] = _decimal(line, tail[0]) if tail[0] else None
        record["metric_unit"] = tail[1]
    elif len(tail) == 1 and tail[0]:
        refuse(NAME, line, "a metric without its unit: cut short?")
    return {**record, **where}


def _csv_metric_only(body: List[Line], sep: str) -> List[Record]:
    head = [field.strip() for field in body[0].text.strip().split(sep)][:-1]
    leading = 0
    while leading < len(head) and head[leading] in (
        "time", "socket", "cpus", "die", "cluster", "cache", "core", "node", "cpu", "comm-pid",
    ):  # fmt: skip
        leading += 1
    names = head[leading:]
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
            value = _decimal(line, field.rstrip("%")) if field else None
            record: Record = {"kind": "metric", "name": name, "value": value, "unit": name}
            if value is None:
                record["reason"] = "perf printed no number"
            out.append({**record, **where})
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


def _json(body: List[Line]) -> List[Record]:
    out: List[Record] = []
    heads: List[str] = []
    for line in body:
        row = line.text.strip().rstrip(",")
        if row in ("[", "]") or row.startswith("# "):
            continue
        objects = _objects(line, row)
        # perf 5.18 to 6.3: --metric-only prints one object per name, then one per value.
        if all(set(o) == {"unit"} for o in objects):
            heads = [str(o["unit"]) for o in objects if o["unit"] != "sec"]
            continue
        if len(objects) > 1 or (heads and set(objects[0]) <= {"metric-value", "interval"}):
            out.extend(_json_headless(line, objects, heads))
            continue
        out.extend(_json_object(line, objects[0]))
    if not out:
        refuse(NAME, None, "it holds no counter: cut short?")
    return out


def _objects(line: Line, row: str) -> List[Dict[str, object]]:
    # Two faults of some perf versions: no comma after the core, and nan, which JSON has not.
    row = re.sub(r'("(?:core|cpu)" : "[^"]*")(?=\s*")', r"\1, ", row)
    row = re.sub(r":\s*[-+]?(?:nan|inf)\b", ": null", row)
    decoder = json.JSONDecoder()
    objects: List[Dict[str, object]] = []
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
    if not text or text in ("none",):
        return None
    return _decimal(line, text)


def _json_headless(line: Line, objects: List[Dict[str, object]], heads: List[str]) -> List[Record]:
    where: Record = {}
    values = []
    for item in objects:
        if set(item) == {"interval"}:
            where["interval_s"] = _json_number(line, item["interval"])
        elif set(item) == {"metric-value"}:
            values.append(item["metric-value"])
        else:
            refuse(NAME, line, "several objects in a line, and they are not --metric-only's")
    if len(values) != len(heads):
        refuse(NAME, line, f"{len(values)} values for {len(heads)} metrics")
    out: List[Record] = []
    for name, value in zip(heads, values):
        number = _json_number(line, value)
        record: Record = {"kind": "metric", "name": name, "value": number, "unit": name}
        if number is None:
            record["reason"] = "perf printed no number"
        out.append({**record, **where})
    return out


def _json_object(line: Line, item: Dict[str, object]) -> List[Record]:
    where: Record = {}
    if "interval" in item:
        where["interval_s"] = _json_number(line, item["interval"])
    for place in _PLACES:
        if place in item:
            where["aggregate"] = f"CPU{item[place]}" if place == "cpu" else str(item[place])
    cpus = item.get("aggregate-number", item.get("counters"))
    if cpus is not None:
        number = _json_number(line, cpus)
        where["cpus"] = None if number is None else int(number)
    if item.get("cgroup"):
        where["cgroup"] = item["cgroup"]
    for key, name in (("variance", "variance_percent"), ("pcnt-running", "running_percent")):
        if key in item:
            where[name] = _json_number(line, item[key])
    if "event-runtime" in item:
        number = _json_number(line, item["event-runtime"])
        where["running_ns"] = None if number is None else int(number)
    if "metric-threshold" in item:
        where["metric_threshold"] = item["metric-threshold"]
    if "metricgroup" in item:
        where["group"] = item["metricgroup"]
    if "event" in item:
        return [_json_event(line, item, where)]
    if "metric-value" in item:
        unit = re.sub(r"\s+", " ", str(item.get("metric-unit") or ""))
        value = _json_number(line, item["metric-value"])
        record: Record = {"kind": "metric", "name": unit.lstrip("% ") or unit, "value": value}
        record["unit"] = unit
        if value is None:
            record["reason"] = "perf printed no number"
        return [{**record, **where}]
    others = {key: value for key, value in item.items() if key not in _METADATA}
    if others:  # --metric-only: every other key is a metric's name
        out: List[Record] = []
        for name, value in others.items():
            number = _json_number(line, value)
            record = {"kind": "metric", "name": name, "value": number, "unit": name}
            if number is None:
                record["reason"] = "perf printed no number"
            out.append({**record, **where})
        return out
    if "metricgroup" in item:
        return [{"kind": "metric_group", "name": item["metricgroup"], **where}]
    refuse(NAME, line, "this object holds neither an event nor a metric")


def _json_event(line: Line, item: Dict[str, object], where: Record) -> Record:
    unknown = set(item) - _METADATA
    if unknown:
        refuse(NAME, line, f"unknown key {sorted(unknown)[0]!r}")
    if "counter-value" not in item:
        refuse(NAME, line, "an event without a value: cut short?")
    raw = item["counter-value"]
    record: Record = {"kind": "event", "event": str(item["event"]), "unit": item.get("unit") or ""}
    if isinstance(raw, str) and re.fullmatch(_BAD, raw.strip()):
        record.update(value=None, reason=_reason(raw.strip()))
    else:
        value = _json_number(line, raw)
        if value is None:
            refuse(NAME, line, "the event's value is not a number")
        record["value"] = int(value) if value == int(value) and not record["unit"] else value
    if "metric-value" in item and (item.get("metric-unit") or item["metric-value"] not in (0, 0.0)):
        record["metric_value"] = _json_number(line, item["metric-value"])
        record["metric_unit"] = re.sub(r"\s+", " ", str(item.get("metric-unit") or ""))
    return {**record, **where}
