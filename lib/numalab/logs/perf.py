"""Parser of ``perf stat`` in its form for people; its CSV and JSON are read by the agent's parser.

Format: the kernel's tools/perf/util/stat-display.c (print_counter_value_std, print_metric_std,
prepare_interval, print_footer) and perf-stat(1); older forms from the same file's history (events
named "task-clock (msec)", "task-clock-msecs").

Records: those of ``agent.collectors.perf_stat`` (metrics of continuation lines are ``metric``
records too, with their ``group``), and

- ``elapsed``, ``user``, ``system``: ``value``, ``unit`` s, ``variance_percent``
- ``run`` (--table): ``value``, ``unit`` s
- ``target``: ``text``, ``runs``; ``note``: ``text``
"""

from __future__ import annotations

import re

from numalab.agent.collectors import perf_stat
from numalab.agent.collectors.perf_stat import AGGREGATE, BAD, NAME, UNITS, decimal
from numalab.agent.contract import Record
from numalab.agent.drivers.reading import Line, refuse

_GROUP = ",.'\u2019\u00a0\u202f\u066c\u2009"  # thousands separators of the C library's locales
_COUNT = rf"-?\d+(?:[{_GROUP}]\d+)*"
_NOISE = re.compile(r"\(\s*\+-\s*(?P<noise>[\d.,]+|nan|-nan|inf)\s*%\s*\)")
_RUNNING = re.compile(r"\(\s*(\d+[.,]\d\d)%\s*\)\s*\Z")
_RUNNING_OLD = re.compile(r"(?:\[\s*(\d+[.,]\d\d)%\s*\]|\(scaled from (\d+[.,]\d\d)%\))\s*\Z")
_TIME = re.compile(
    r"(?P<value>\d+[.,]\d+)(?:\s+\+-\s+(?P<error>\d+[.,]\d+))?\s+seconds\s+"
    r"(?P<what>time elapsed|user|sys)(?:\s+\(\s*\+-\s*(?P<noise>[\d.,]+)%\s*\))?\Z"
)
_TIMES = {"time elapsed": "elapsed", "user": "user", "sys": "system"}
_RUN = re.compile(r"(\d+[.,]\d+) \([-+]\d+[.,]\d+\) #+\Z")
_HEAD = re.compile(r"Performance counter stats for (?P<target>.*?)(?: \((?P<runs>\d+) runs\))?:\Z")
_INTERVAL_HEAD = re.compile(
    r"#\s+time\s+(?P<aggr>(?:cpu|CPU|CPUs|core|cluster|cache|die|socket|node|comm-pid)\s+)?"
    r"(?P<cpus>cpus\s+)?(?P<rest>.*)\Z"
)
_TIMESTAMP = re.compile(r"(?P<time>\d+[.,]\d{9}|summary)(?:\s+|\Z)")
_PLACE = re.compile(rf"(?P<aggr>{AGGREGATE})\s+")
_THREAD = re.compile(r"(?P<aggr>\S.{0,15}?-\d+)\s+")
_FAILED = re.compile(r"(?:Error:|event syntax error:|Workload failed:|failed to )")
_METRIC = re.compile(r"(?P<group>[A-Za-z]\w*(?: \(\w+\))?\s+)?#\s*(?P<comment>\S.*)?\Z")
_EVENT = re.compile(
    rf"(?P<count>{_COUNT}|{BAD})\s+(?P<what>[^\s#].*?)(?:\s+#\s*(?P<comment>.*))?\Z"
)
_NOTES = (
    "Some events weren't counted. Try disabling the NMI watchdog:",
    "echo 0 > /proc/sys/kernel/nmi_watchdog", "echo 1 > /proc/sys/kernel/nmi_watchdog",
    "perf stat ...",
    "The events in group usually have to be from the same PMU. Try reorganizing the group.",
)  # fmt: skip
_HEADINGS = ("# Table of individual measurements:", "# Final result:")


def parse(text: str) -> list[Record]:
    """Return the records of an output in any of the formats; ParseError for anything else."""
    return perf_stat.each_report(text, _report)


def _report(body: list[Line]) -> list[Record]:
    rows = [line.text.strip() for line in body]
    headed = any(_HEAD.match(row) or _INTERVAL_HEAD.match(row) for row in rows)
    separator = None if headed else perf_stat.separator_of(body)
    if separator or perf_stat.is_json(body):
        return perf_stat.of_program(body, separator)
    return _Report(headed).read(body)


class _Report:
    """A report for people, one line after the other."""

    def __init__(self, headed: bool) -> None:
        self.began = not headed  # a text without its head is all body
        self.out: list[Record] = []
        self.header: Line | None = None  # of --metric-only, until its first row is read
        self.names: list[str] | None = None  # of its columns
        self.interval = False
        self.threads = False
        self.group: str | None = None  # the head that metrics stand under
        self.grouping = {0, 2, 3}  # digits between two marks that all counts so far allow

    def read(self, body: list[Line]) -> list[Record]:
        for line in body:
            self._line(line, line.text.strip())
        if not any(r["kind"] in ("event", "metric", "elapsed") for r in self.out):
            refuse(NAME, None, "it holds no counter: perf failed, or it is cut short")
        if self.header is not None:
            refuse(NAME, self.header, "a head of metrics without values: cut short?")
        kinds = {r["kind"] for r in self.out}
        # Without -I perf ends with the time elapsed, and tells user before sys.
        whole = self.interval or "elapsed" in kinds or "target" not in kinds
        if not whole or len(kinds & {"user", "system"}) == 1:
            refuse(NAME, None, "the last lines, which tell the time, are missing: cut short?")
        return self.out

    def _line(self, line: Line, row: str) -> None:
        if self._head(line, row):
            return
        if _FAILED.match(row) and not any(r["kind"] == "target" for r in self.out):
            refuse(NAME, line, "perf failed and counted nothing")
        if not self.began or row.startswith(_HEADINGS):
            return  # what the measured program printed before perf's report began
        time, run = _TIME.match(row), _RUN.match(row)
        if row in _NOTES:
            self.out.append({"kind": "note", "text": row})
        elif time:
            record: Record = {"kind": _TIMES[time["what"]], "value": decimal(line, time["value"])}
            if time["noise"]:
                record["variance_percent"] = decimal(line, time["noise"])
            self.out.append({**record, "unit": "s"})
        elif run:
            self.out.append({"kind": "run", "value": decimal(line, run[1]), "unit": "s"})
        else:
            self._counter(line, row)

    def _head(self, line: Line, row: str) -> bool:
        """Read a head: of a report, or of its intervals."""
        match = _HEAD.match(row)
        if match:
            self.began, self.interval = True, False
            runs = int(match["runs"] or 1)
            self.out.append({"kind": "target", "text": match["target"], "runs": runs})
            return True
        match = _INTERVAL_HEAD.match(row)
        if not match or not line.text.startswith("#"):
            return False
        self.began = self.interval = True
        self.threads = (match["aggr"] or "").strip() == "comm-pid"
        if not re.match(r"counts\s+(?:unit\s+)?events\Z", match["rest"]):
            self.header = Line(line.number, match["rest"])
        return True

    def _counter(self, line: Line, row: str) -> None:
        where: Record = {}
        match = _TIMESTAMP.match(row)
        if match and (self.interval or re.match(r"\d+[.,]\d{9}\s+\S", row)):
            summary = match["time"] == "summary"
            where["interval_s"] = None if summary else decimal(line, match["time"])
            if summary:
                where["summary"] = True
            row = row[match.end() :]
        elif self.interval:
            refuse(NAME, line, "an interval's line begins with its time")
        row = self._place(line, row, where)
        if self.header is not None or self.names is not None:
            self._metric_row(line, row, where)
        elif self._is_metric_head(row, where):
            self.header = line
        else:
            match = re.match(rf"(\d+)\s+(?=(?:{_COUNT}|{BAD})\s+\S|#)", row)
            if where.get("aggregate") and match:
                where["cpus"] = int(match[1])
                row = row[match.end() :]
            self._event(line, row, where)

    def _place(self, line: Line, row: str, where: Record) -> str:
        """Take the socket, node, CPU … or the thread off the front of a row; return the rest."""
        match = _PLACE.match(row + " ")
        if match:
            where["aggregate"] = match["aggr"].replace(" ", "")
            return row[match.end() :]
        of_thread = re.match(rf"\S.{{0,15}}?-\d+\s+(?:{_COUNT}|{BAD})\s+\S", row)
        if self.threads or (of_thread and not re.match(rf"(?:{_COUNT}|{BAD})\s", row)):
            match = _THREAD.match(row)
            if not match:
                refuse(NAME, line, "a thread's name and number are missing")
            where["aggregate"] = match["aggr"].strip()
            return row[match.end() :]
        return row

    def _is_metric_head(self, row: str, where: Record) -> bool:
        """Whether a row is the head of --metric-only: names, before any counter."""
        if where or any(r["kind"] in ("event", "metric") for r in self.out):
            return False
        return not re.search(r"\d[.,]\d|#|<not", row) and not re.match(rf"{_COUNT}\s", row)

    def _metric_row(self, line: Line, row: str, where: Record) -> None:
        """Read one row of --metric-only: its columns are right-aligned under their names."""
        words = row.split()
        place = str(where.get("aggregate", ""))
        if place and not place.startswith("CPU") and words and words[0].isdecimal():
            where["cpus"] = int(words.pop(0))
        if not all(re.fullmatch(r"[-+]?(?:\d+[.,]\d+%?|nan|inf)", word) for word in words):
            refuse(NAME, line, "a row of metrics holds only numbers")
        if self.header is not None:
            self.names = _split_head(self.header, len(words))
            self.header = None
        if self.names is None or len(words) != len(self.names) or not words:
            refuse(NAME, line, f"{len(words)} values for {len(self.names or [])} metrics")
        for name, word in zip(self.names, words):
            unit = f"% {name}" if word.endswith("%") else name
            value = decimal(line, word.rstrip("%"))
            self.out.append(perf_stat.metric(name, value, unit, where, f"perf printed {word}"))

    def _event(self, line: Line, row: str, where: Record) -> None:
        fields: Record = {"running_percent": 100.0}
        noise = _NOISE.search(row)
        if noise:
            fields["variance_percent"] = decimal(line, noise["noise"])
            row = (row[: noise.start()] + " " + row[noise.end() :]).strip()
        running = _RUNNING.search(row) or _RUNNING_OLD.search(row)
        if running:
            fields["running_percent"] = decimal(line, running[running.lastindex or 0])
            row = row[: running.start()].rstrip()
        alone = _METRIC.match(row)
        if alone:
            self._metric(line, alone, {**fields, **where})
            return
        match = _EVENT.match(row)
        if not match:
            refuse(NAME, line, "this is not a count and its event")
        self.group = None
        unit, event, cgroup = _unit_event(line, match["what"])
        if re.match(r"[\d.,]+\Z", event):
            refuse(NAME, line, "a count without its event: cut short?")
        count = match["count"]
        record: Record = {"kind": "event", "event": event, "unit": unit}
        if count.startswith("<"):
            record.update(value=None, reason=count.strip("<>"))
            if not running:
                fields["running_percent"] = None
        else:
            value = record["value"] = self._count(line, count)
            record["unit"] = unit or perf_stat.clock_unit(event, value)
            if isinstance(value, float) and not record["unit"]:
                refuse(NAME, line, f"{count!r}: a plain count has no decimals")
        record.update(fields, **where)
        if cgroup:
            record["cgroup"] = cgroup
        if match["comment"] and match["comment"].strip():
            record["metric_value"], record["metric_unit"] = _comment(line, match["comment"].strip())
        self.out.append(record)

    def _count(self, line: Line, text: str) -> float:
        """Return a count with a locale's thousands separators.

        perf prints a count with no decimals, with two, or (a clock, before 4.x) with six: a mark
        that three digits follow separates thousands, and only the last mark can be a decimal one.
        """
        sign = -1 if text.startswith("-") else 1
        parts = re.split(f"([{_GROUP}])", text.lstrip("-"))
        digits, marks = parts[0::2], parts[1::2]
        fraction = ""
        if marks and len(digits[-1]) in (2, 6) and marks[-1] in ".,\u066b":
            fraction = digits.pop()
            last = marks.pop()
            if last in marks:
                refuse(NAME, line, f"{text!r}: the same mark for thousands and decimals")
        # Groups have three digits; in India two, above the last three; in some locales all.
        first, inner = len(digits[0]), {len(group) for group in digits[1:-1]}
        if len(digits) == 1:
            allowed = {0, 2, 3} if first < 4 or fraction else {0}
        elif len(digits[-1]) != 3 or len(set(marks)) > 1 or first > 3:
            allowed = set()
        else:
            allowed = {2, 3} if not inner else inner if len(inner) == 1 else set()
            allowed -= {2} if first == 3 else set()
        self.grouping &= allowed
        if not self.grouping:
            refuse(NAME, line, f"{text!r} is not a count as perf prints it, or as it did above")
        whole = int("".join(digits))
        return sign * float(f"{whole}.{fraction}") if fraction else sign * whole

    def _metric(self, line: Line, match: re.Match[str], fields: Record) -> None:
        if not match["comment"]:
            refuse(NAME, line, "a metric without a value")
        value, unit = _comment(line, match["comment"].strip())
        self.group = (match["group"] or "").strip() or self.group
        if self.group:
            fields["group"] = self.group
        self.out.append(perf_stat.metric(unit.lstrip("% ") or unit, value, unit, fields))


def _comment(line: Line, text: str) -> tuple[float | None, str]:
    """Return value and unit of "0.28  insn per cycle", "6.34% of all branches", "2.9 CPI"."""
    number = r"(?P<value>[-+]?\d+(?:[.,]\d+)?|[-+]?nan|[-+]?inf)"
    match = re.match(number + r"\s*(?P<unit>[^\s\d.,].*)?\Z", text)
    if not match or re.search(r"[(\[]", match["unit"] or ""):
        refuse(NAME, line, f"{text!r} is not a metric's value and unit")
    return decimal(line, match["value"]), re.sub(r"\s+", " ", match["unit"] or "")


def _unit_event(line: Line, what: str) -> tuple[str, str, str | None]:
    """Return unit, event name and cgroup, which perf separates by blanks only."""
    words = what.split()
    if len(words) == 2 and re.fullmatch(r"\(\w+\)", words[1]):  # task-clock (msec)
        return words[1].strip("()"), words[0], None
    if len(words) == 1:
        old = re.fullmatch(r"(task-clock|cpu-clock)-msecs", words[0])
        return ("msec", old[1], None) if old else ("", words[0], None)
    unit = words.pop(0) if words[0] in UNITS else ""
    if len(words) > 1 and re.fullmatch(r"\[\w+\]", words[1]):  # event [pmu]
        words[:2] = [" ".join(words[:2])]
    if len(words) == 1:
        return unit, words[0], None
    if re.match(r"[\w.-]+/.*", words[0]) and words[-1].endswith("/") and "," in what:
        return unit, " ".join(words), None  # pmu/event=1, name=x y/
    if len(words) == 2 and re.search(r"/|\.(?:slice|scope|service)\Z", words[1]):
        return unit, words[0], words[1]
    refuse(NAME, line, f"{what!r}: it is not clear what is a unit and what an event")


def _split_head(head: Line, count: int) -> list[str]:
    """Split the head of --metric-only into names: blanks inside them are single.

    Each name is right-aligned in 20 columns; a longer one touches its neighbour, and then the
    columns decide.
    """
    for names in (re.split(r"\s{2,}", head.text.strip()), head.text.split()):
        if len(names) == count:
            return names
    refuse(NAME, head, f"the head does not name {count} metrics")
