"""Parsers of what a MySQL or MariaDB server says: error log, status counters, InnoDB monitor.

Formats: MySQL Reference Manual, "The Error Log" (5.0 to 5.6: ``YYMMDD hh:mm:ss [Level] text``;
5.7: ISO time, thread, level; 8.0: the same with error code and subsystem) and its MariaDB forms
(``YYYY-MM-DD hh:mm:ss thread [Level] text``); "SHOW STATUS"; "InnoDB Standard Monitor and Lock
Monitor Output" (storage/innobase/srv/srv0srv.cc).

Records:

- ``log``: ``time`` (as printed, or null), ``thread`` (or null), ``level`` (Note, Warning, ERROR,
  System, or null), ``code`` (MY-010119, or null), ``subsystem``, ``text``
- ``server``: ``version``, ``socket``, ``port``, ``comment`` (the line that follows a start)
- ``status``: ``name``, ``value`` (a number where it is one, else text; null for NULL)
- ``innodb_section``: ``name``; ``innodb``: ``section``, ``name``, ``value``, ``unit`` (pages, B,
  1/s or ""); ``innodb_monitor``: ``time``, ``average_s``; ``innodb_text``: ``section``, ``text``
"""

from __future__ import annotations

import re

from numalab.agent.contract import Record
from numalab.agent.drivers.reading import Line, lines, refuse

from .lines import Once, filled

_CLIENTS = ("mysql", "mariadb", "mysqladmin", "mysqld", "mysqld_safe", "mariadbd", "cat", "tail")

# --- the error log ----------------------------------------------------------------------------

_TIME = (
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)"
    r"|\d{4}-\d\d-\d\d +\d{1,2}:\d\d:\d\d(?:\.\d+)?|\d{6} +\d{1,2}:\d\d:\d\d)"
)
_ENTRY = re.compile(
    _TIME + r"(?: (?P<thread>\d+|0x[0-9a-f]+|[0-9a-f]{6,16}))?"
    r"(?:\s+\[(?P<level>Note|Warning|ERROR|Error|System)\])?"
    r"(?: \[(?P<code>MY-\d{6})\](?: \[(?P<subsystem>[\w -]+)\])?)?(?:\s+(?P<text>.*))?\Z"
)
_SERVER = re.compile(
    r"Version: '(?P<version>[^']*)'\s+socket: '(?P<socket>[^']*)'\s+port: (?P<port>\d+)"
    r"(?:\s+(?P<comment>.*))?\Z"
)
_BARE = re.compile(r"(?:InnoDB|Version|Number of processes running now|mysqld|Note|Warning):?\b.*")
_NO_ENTRY = dict.fromkeys(("time", "thread", "level", "code", "subsystem"))


def parse_error_log(text: str) -> list[Record]:
    """Return the records of an error log; lines without a time continue the entry above."""
    tool = "mysql error log"
    out: list[Record] = []
    for line in filled(text, _CLIENTS):
        entry, server = _ENTRY.match(line.text), _SERVER.search(line.text)
        if entry:
            thread = entry["thread"]
            number = int(thread) if thread and thread.isdigit() else thread
            said = (entry["text"] or "").strip()
            out.append({"kind": "log", **entry.groupdict(), "text": said, "thread": number})
        elif server is None or server.start():
            # Crash reports, InnoDB's own lines and stack traces carry no time of their own.
            if not out and not _BARE.match(line.text):
                refuse(tool, line, "this does not begin an entry of an error log")
            out.append({"kind": "log", **_NO_ENTRY, "text": line.text})
            continue
        if server:
            out.append({"kind": "server", **server.groupdict(), "port": int(server["port"])})
    if not any(record.get("time") for record in out):
        refuse(tool, None, "it holds no entry with a time")
    return out


# --- status counters --------------------------------------------------------------------------

_STATUS = re.compile(r"(?P<name>[A-Za-z][\w.]*)(?:\t(?P<value>[^\t]*))?\Z")
_BOXED = re.compile(r"\|\s*(?P<name>[A-Za-z][\w.]*)\s*\|(?P<value>[^|]*)\|\Z")
_SPACED = re.compile(r"(?P<name>[A-Z]\w*) {2,}(?P<value>\S.*)\Z")
_VERTICAL = re.compile(r"\*+ \d+\. row \*+\Z")
_PAIR = re.compile(r"(?:Variable_name: (?P<name>\S+)|Value:(?: (?P<value>.*))?)\Z")
_FRAME = re.compile(r"\+[-+]+\+\Z|mysql> .*\Z|Bye\Z|\d+ rows? in set")


def parse_status(text: str) -> list[Record]:
    """Return the records of SHOW GLOBAL STATUS: tab-separated, boxed, or vertical (\\G)."""
    tool = "mysql status"
    out: list[Record] = []
    once = Once(tool)
    name: str | None = None  # of a vertical pair, until its value is read
    for line in lines(text, _CLIENTS):
        row = line.text.strip(" ")
        if not row.strip() or _FRAME.match(row) or _VERTICAL.match(row):
            continue
        vertical = _PAIR.match(row)
        if vertical and vertical["name"]:
            name = vertical["name"]
            continue
        if vertical and name:
            key, value, name = name, vertical["value"] or "", None
        else:
            match = _BOXED.match(row) or _STATUS.match(row) or _SPACED.match(row)
            if not match or name:
                refuse(tool, line, "this is not a variable's name and its value")
            key, value = match["name"], (match["value"] or "").strip()
            if key == "Variable_name":
                continue
            if match["value"] is None and "\t" not in text:
                refuse(tool, line, "a name without a value")
        once.add(line, key, key)
        out.append({"kind": "status", "name": key, "value": _value(value)})
    if not out or name:
        refuse(tool, None, "it holds no variable, or ends within one")
    return out


def _value(text: str) -> object:
    if text == "NULL":
        return None
    if re.fullmatch(r"-?\d+(?:\.\d+)?", text):
        return float(text) if "." in text else int(text)
    return text


# --- InnoDB's monitor -------------------------------------------------------------------------

_MONITOR = re.compile(r"(?P<time>\d.*?)(?: 0x[0-9a-f]+| [0-9a-f]{8,})? INNODB MONITOR OUTPUT\Z")
_AVERAGES = re.compile(r"Per second averages calculated from the last (\d+) seconds?\Z")
_RULE = re.compile(r"[-=]{3,}\Z")
_TITLE = re.compile(r"[A-Z][A-Z/ 0-9]+\Z")
_END = "END OF INNODB MONITOR OUTPUT"
_AFTER = re.compile(r"[-=]{3,}\Z|\d+ rows? in set|\|\Z")  # what may follow it
_CELL = re.compile(r"\A\|? *InnoDB +\|[^|]*\| *|\AInnoDB\t+")  # of the client's table
_BEFORE = ("Type:", "Name:", "Status:", "|", "+", "Type\t", "InnoDB")
_PROMPTS = ("mysql> ", "MariaDB [")
_NUMBER = r"-?\d+(?:\.\d+)?"
_TRAILING = re.compile(rf"([A-Za-z][A-Za-z /_()&:']*?)(?:,? bytes)? ?:? ({_NUMBER})\Z")
_LEADING = re.compile(rf"({_NUMBER}) ([A-Za-z][A-Za-z /_'()-]*?)(/s(?:econd)?)?\Z")
_BYTES = re.compile(r"memory allocated|, bytes|Total large memory|additional pool", re.IGNORECASE)
_PAGES = ("Free buffers", "Database pages", "Old database pages", "Modified db pages",
          "Buffer pool size")  # fmt: skip


def parse_innodb_status(text: str) -> list[Record]:
    """Return the records of SHOW ENGINE INNODB STATUS, bare or vertical (\\G).

    Numbers whose line says what they count are ``innodb`` records; lines of another form (thread
    states, transactions, locks) are kept as ``innodb_text``. A report without its end is refused.
    """
    tool = "innodb status"
    out: list[Record] = []
    section: str | None = None
    ended = False
    # The client's batch mode prints the report's ends of lines as "\\n".
    rows = lines(text.replace("\\n", "\n") if "\\n===" in text else text, _CLIENTS)
    for at, line in enumerate(rows):
        row = line.text.strip()
        if not row or _VERTICAL.match(row) or row.startswith(_PROMPTS):
            continue
        averages = _AVERAGES.match(row)
        if ended:
            if not _AFTER.match(row):
                refuse(tool, line, "the report has ended before this line")
        elif row == _END:
            ended = True
        elif not out:
            out += _head(tool, line, row)
        elif _MONITOR.match(_CELL.sub("", row)):
            refuse(tool, line, "a second report: give each on its own")
        elif averages:
            out[0]["average_s"] = int(averages[1])
        elif _TITLE.match(row) and _ruled(rows, at):
            section = row
            out.append({"kind": "innodb_section", "name": row})
        elif not _RULE.match(row):
            counts = _counts(section, row)
            out += counts or [{"kind": "innodb_text", "section": section, "text": row}]
    if not out or not ended:
        refuse(tool, None, "it lacks the report's head or its end: cut short?")
    return out


def _head(tool: str, line: Line, row: str) -> list[Record]:
    """Return the record of a report's head; none of a line that may stand before it."""
    monitor = _MONITOR.match(_CELL.sub("", row))
    if monitor:
        return [{"kind": "innodb_monitor", "time": monitor["time"].strip()}]
    if not _RULE.match(row.split("\t")[-1]) and not row.startswith(_BEFORE):
        refuse(tool, line, "this stands before the report's head")
    return []


def _ruled(rows: list[Line], at: int) -> bool:
    near = rows[max(0, at - 1) : at] + rows[at + 1 : at + 2]
    return len(near) == 2 and all(_RULE.match(line.text.strip()) for line in near)


def _counts(section: str | None, row: str) -> list[Record]:
    """Return the numbers of a line whose every part says what it counts; else none."""
    if row.startswith("---TRANSACTION") or not re.search(r"\d", row):
        return []
    out: list[Record] = []
    group = ""  # "Pages read ahead 1.00/s, evicted without access 2.00/s": the first word counts
    parts = [" ".join(part.split()) for part in re.split(r"[,;]\s+(?!bytes)", row)]
    for part in parts:
        leading, trailing = _LEADING.match(part), _TRAILING.match(part)
        if leading:
            text, name, unit = leading[1], leading[2].strip(), "1/s" if leading[3] else ""
        elif trailing:
            text, name, unit = trailing[2], trailing[1].strip(" :"), ""
            if group and name[:1].islower():
                name = f"{group} {name}"
            elif len(parts) > 1 and name.startswith(("Pages ", "Number ")):
                group = group or name.split(" ")[0]
            if _BYTES.search(part):
                unit = "B"
            elif section == "BUFFER POOL AND MEMORY" and name in _PAGES:
                unit = "pages"
        else:
            return []
        value = float(text) if "." in text else int(text)
        out.append({"kind": "innodb", "section": section, "name": name, "value": value,
                    "unit": unit})  # fmt: skip
    return out
