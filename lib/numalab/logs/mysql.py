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
from typing import List, Optional

from ..agent.drivers.reading import Line, Record, lines, refuse

NAME = "mysql"

_CLIENTS = ("mysql", "mariadb", "mysqladmin", "mysqld", "mysqld_safe", "mariadbd", "cat", "tail")
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


def parse_error_log(text: str) -> List[Record]:
    """Return the records of an error log; lines without a time continue the entry above."""
    out: List[Record] = []
    for line in lines(text, _CLIENTS):
        row = line.text.rstrip()
        if not row.strip():
            continue
        match = _ENTRY.match(row.strip())
        if match:
            server = _SERVER.search(match["text"] or "")
            record: Record = {"kind": "log", **match.groupdict()}
            record["text"] = (match["text"] or "").strip()
            thread = match["thread"]
            record["thread"] = int(thread) if thread and thread.isdigit() else thread
            out.append(record)
            if server:
                out.append(_server(server))
            continue
        server = _SERVER.match(row.strip())
        if server:
            out.append(_server(server))
            continue
        if out or _BARE.match(row):
            # Crash reports, InnoDB's own lines and stack traces carry no time of their own.
            record = {"kind": "log", "time": None, "thread": None, "level": None, "code": None}
            out.append({**record, "subsystem": None, "text": row.strip()})
            continue
        refuse("mysql error log", line, "this does not begin an entry of an error log")
    if not any(record.get("time") for record in out):
        refuse("mysql error log", None, "it holds no entry with a time")
    return out


def _server(match: re.Match[str]) -> Record:
    record: Record = {"kind": "server", **match.groupdict()}
    record["port"] = int(match["port"])
    return record


_STATUS = re.compile(r"(?P<name>[A-Za-z][\w.]*)(?:\t(?P<value>[^\t]*))?\Z")
_BOXED = re.compile(r"\|\s*(?P<name>[A-Za-z][\w.]*)\s*\|\s*(?P<value>[^|]*?)\s*\|\Z")
_VERTICAL = re.compile(r"\*+ \d+\. row \*+\Z")


def parse_status(text: str) -> List[Record]:
    """Return the records of SHOW GLOBAL STATUS: tab-separated, boxed, or vertical (\\G)."""
    out: List[Record] = []
    seen = set()
    name: Optional[str] = None
    for line in lines(text, _CLIENTS):
        row = line.text.strip(" ")
        if not row.strip() or re.fullmatch(r"\+[-+]+\+|mysql> .*|Bye", row):
            continue
        if re.match(r"\d+ rows? in set", row) or _VERTICAL.match(row):
            continue
        match = re.fullmatch(r"Variable_name: (\S+)", row)
        if match:
            name = match[1]
            continue
        match = re.fullmatch(r"Value:(?: (.*))?", row)
        if match and name:
            key, value = name, match[1] or ""
            name = None
        else:
            match = _BOXED.match(row) or _STATUS.match(row) or re.fullmatch(
                r"(?P<name>[A-Z]\w*) {2,}(?P<value>\S.*)", row
            )  # fmt: skip
            if not match or name:
                refuse("mysql status", line, "this is not a variable's name and its value")
            key, value = match["name"], match["value"] or ""
            if key == "Variable_name":
                continue
            if match["value"] is None and "\t" not in line.text and "\t" not in text:
                refuse("mysql status", line, "a name without a value")
        if key in seen:
            refuse("mysql status", line, f"{key} a second time")
        seen.add(key)
        out.append({"kind": "status", "name": key, "value": _value(value)})
    if not out or name:
        refuse("mysql status", None, "it holds no variable, or ends within one")
    return out


def _value(text: str) -> object:
    if text == "NULL":
        return None
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"-?\d+\.\d+", text):
        return float(text)
    return text


_MONITOR = re.compile(r"(?P<time>\d.*?)(?: 0x[0-9a-f]+| [0-9a-f]{8,})? INNODB MONITOR OUTPUT\Z")
_AVERAGES = re.compile(r"Per second averages calculated from the last (\d+) seconds?\Z")
_RULE = re.compile(r"[-=]{3,}\Z")
_TITLE = re.compile(r"[A-Z][A-Z/ 0-9]+\Z")
_END = "END OF INNODB MONITOR OUTPUT"
_NUMBER = r"-?\d+(?:\.\d+)?"
_TRAILING = re.compile(rf"([A-Za-z][A-Za-z /_()&:']*?)(?:,? bytes)?\s*:?\s+({_NUMBER})\Z")
_LEADING = re.compile(rf"({_NUMBER}) ([A-Za-z][A-Za-z /_'()-]*?)(/s(?:econd)?)?\Z")
_BYTES = re.compile(r"memory allocated|, bytes|Total large memory|additional pool", re.IGNORECASE)


def parse_innodb_status(text: str) -> List[Record]:
    """Return the records of SHOW ENGINE INNODB STATUS, bare or vertical (\\G).

    Numbers whose line says what they count are ``innodb`` records; lines of another form (thread
    states, transactions, locks) are kept as ``innodb_text``. A report without its end is refused.
    """
    tool = "innodb status"
    out: List[Record] = []
    section: Optional[str] = None
    began = ended = False
    # The client's batch mode prints the report's ends of lines as "\\n".
    rows = lines(text.replace("\\n", "\n") if "\\n===" in text else text, _CLIENTS)
    for at, line in enumerate(rows):
        row = line.text.strip()
        if not row or _VERTICAL.match(row) or row.startswith(("mysql> ", "MariaDB [")):
            continue
        if ended:
            if _RULE.match(row) or re.match(r"\d+ rows? in set", row) or row == "|":
                continue
            refuse(tool, line, "the report has ended before this line")
        if row == _END:
            ended = True
            continue
        match = _MONITOR.match(re.sub(r"\A\|? *InnoDB +\|[^|]*\| *|\AInnoDB\t+", "", row))
        if match:
            if began:
                refuse(tool, line, "a second report: give each on its own")
            began = True
            out.append({"kind": "innodb_monitor", "time": match["time"].strip()})
            continue
        if not began:
            heads = ("Type:", "Name:", "Status:", "|", "+", "Type\t", "InnoDB")
            if _RULE.match(row.split("\t")[-1]) or row.startswith(heads):
                continue
            refuse(tool, line, "this stands before the report's head")
        match = _AVERAGES.match(row)
        if match:
            out[0]["average_s"] = int(match[1])
            continue
        if _RULE.match(row):
            continue
        if _TITLE.match(row) and _ruled(rows, at):
            section = row
            out.append({"kind": "innodb_section", "name": row})
            continue
        out.extend(_innodb(section, row))
    if not began or not ended:
        refuse(tool, None, "it lacks the report's head or its end: cut short?")
    return out


def _ruled(rows: List[Line], at: int) -> bool:
    near = rows[max(0, at - 1) : at] + rows[at + 1 : at + 2]
    return len(near) == 2 and all(_RULE.match(line.text.strip()) for line in near)


def _innodb(section: Optional[str], row: str) -> List[Record]:
    values: List[Record] = []
    prefix = ""
    parts = re.split(r"[,;]\s+(?!bytes)", row)
    if row.startswith("---TRANSACTION") or not re.search(r"\d", row):
        parts = []
    for part in parts:
        match = _LEADING.match(part.strip())
        if match:
            unit = "1/s" if match[3] else ""
            value, name = match[1], match[2].strip()
        else:
            match = _TRAILING.match(part.strip())
            if not match:
                values = []
                break
            value, name, unit = match[2], match[1].strip(" :"), ""
            if not prefix and len(parts) > 1:
                prefix = name.split(" ")[0] if name.startswith(("Pages ", "Number ")) else ""
            elif prefix and name[:1].islower():
                name = f"{prefix} {name}"
            if _BYTES.search(part):
                unit = "B"
            elif section == "BUFFER POOL AND MEMORY" and re.match(
                r"(?:Free buffers|Database pages|Old database pages|Modified db pages"
                r"|Buffer pool size)\Z", name,
            ):  # fmt: skip
                unit = "pages"
        number = float(value) if "." in value else int(value)
        values.append(
            {"kind": "innodb", "section": section, "name": name, "value": number, "unit": unit}
        )
    return values or [{"kind": "innodb_text", "section": section, "text": row}]


def parse(text: str) -> List[Record]:
    """Return the records of whichever of the three forms the text is, by unambiguous marks."""
    if "INNODB MONITOR OUTPUT" in text:
        return parse_innodb_status(text)
    rows = [line for line in lines(text, _CLIENTS) if line.text.strip()]
    if any(_ENTRY.match(line.text.strip()) for line in rows):
        return parse_error_log(text)
    return parse_status(text)
