"""Parser of numastat's tables.

Format: numactl's numastat.c (tables of any number of node columns, broken into blocks by the
screen's width) and, for one node, the kernel's /sys/devices/system/node/nodeN/numastat.
The default table counts pages; every other table is in units of 1048576 bytes which numastat
calls MB: they are MiB (the HugePages_ rows too: numastat multiplies them by the page size).

Records, one per cell of a node's column:

- ``counter``: ``node``, ``name`` (numa_hit …), ``value``, ``unit`` pages or MiB
- ``system_memory``: ``node``, ``name`` (MemTotal …), ``value``, ``unit`` MiB
- ``process_memory``: ``node``, ``name`` (Huge, Heap, Stack, Private, Total), ``value``, ``unit``
  MiB, ``pid``, ``command`` (null in a row of the sum over several processes, whose name is Total)
- ``total``: as one of these (``of`` says which), with the Total column's value, no node
- ``warning``: ``text``
"""

from __future__ import annotations

import re

from numalab.agent.contract import Record
from numalab.agent.drivers.reading import Line, refuse

from . import procfs
from .lines import Once, filled

NAME = "numastat"

_TITLE = re.compile(
    r"Per-node (numastat info|system memory usage|process memory usage) \(in MBs\)"
    r"(?: for PID (?P<pid>\d+) \((?P<command>.*)\))?:?\Z"
)
_KINDS = {
    "numastat info": "counter",
    "system memory usage": "system_memory",
    "process memory usage": "process_memory",
}
_HEAD = re.compile(r"(PID\s+)?((?:node\d+|Node \d+)(?:\s+(?:node\d+|Node \d+))*)?(?:\s*(Total))?\Z")
_RULE = re.compile(r"-{3,}(?:\s+-{3,})*\Z")
_NUMBER = re.compile(r"-?\d+(?:[.,]\d\d)?\Z")
_WARNING = re.compile(
    r"(Token \S+ not in hash table\.|Can't read /proc/\d+/numa_maps.*|cannot open .*"
    r"|Ignoring duplicate PID .*|Too many PIDs, skipping .*)\Z"
)
_OF_TITLED = ("Huge", "Heap", "Stack", "Private", "Total", "MemTotal")  # rows of -p and -m
Column = int | str  # a node's number, or Total


class _Table:
    """One table while it is being read: its kind, the block's columns, and what it has seen."""

    def __init__(self, kind: str, unit: str, pid: int | None, command: str | None) -> None:
        self.kind, self.unit, self.pid, self.command = kind, unit, pid, command
        self.columns: list[Column] = []
        self.by_pid = False
        self.names: list[str] = []  # rows of the first block; later blocks repeat them
        self.block: list[str] = []
        self.once = Once(NAME)
        self.digit = 1.0  # what the last digit of a cell stands for
        self.cells: dict[tuple[str, Column], float] = {}

    def head(self, line: Line, match: re.Match[str]) -> None:
        """Begin a block."""
        self.end_block(line)
        self.by_pid = self.by_pid or bool(match[1])
        self.columns = list(_nodes(match))
        if len(set(self.columns)) != len(self.columns):
            refuse(NAME, line, "a node has two columns")
        if match[3]:
            self.columns.append("Total")

    def end_block(self, line: Line | None) -> None:
        if not self.columns:
            return
        if not self.block:
            refuse(NAME, line, "a head without rows: cut short?")
        if self.names and self.block != self.names:
            why = "a block of the table has other rows than the block before: cut short?"
            refuse(NAME, line, why)
        self.names, self.block = self.block, []

    def close(self, line: Line | None) -> None:
        """End the table; ParseError when it lacks something."""
        if not self.columns:
            refuse(NAME, line, "a title without a table: cut short?")
        self.end_block(line)
        if self.unit == "pages" and tuple(self.names) != procfs.COUNTERS:
            refuse(NAME, line, "the table lacks rows: cut short?")
        if self.kind == "process_memory" and self.names[-1] != "Total" and not self.by_pid:
            refuse(NAME, line, "the table lacks its row Total: cut short?")
        sums = {"MemTotal": ("MemFree", "MemUsed")} if self.kind == "system_memory" else {
            "Total": tuple(name for name in self.names if name != "Total")}  # fmt: skip
        for key, parts in sums.items():
            for column in {column for name, column in self.cells if name == key}:
                cells = [self.cells[part, column] for part in parts if part in self.names]
                if len(cells) == len(parts):
                    self._add_up(line, cells, self.cells[key, column], f"{key} of node {column}")

    def restarts(self, match: re.Match[str]) -> bool:
        """Whether a head begins a new default table (a second capture), no further block."""
        nodes = _nodes(match)
        return bool(nodes) and any(column == nodes[0] for _, column in self.cells)

    def row(self, line: Line) -> list[Record]:
        """Return the records of a row."""
        words, count = line.text.split(), len(self.columns)
        if len(words) <= count:
            refuse(NAME, line, f"fewer cells than the {count} columns of the table")
        label, words = " ".join(words[:-count]), words[-count:]
        for word in words:
            if not _NUMBER.match(word):
                refuse(NAME, line, f"{word!r} is not a number as numastat prints it")
        key, name, process = self._label(line, label)
        if key in self.block:
            refuse(NAME, line, f"the row {name} a second time")
        self.block.append(key)
        out: list[Record] = []
        for column, word in zip(self.columns, words, strict=True):
            self.once.add(line, (key, column), f"the cell of {name} and node {column}")
            number = float(word.replace(",", "."))
            digit = 0.01 if re.search(r"[.,]", word) else 1.0
            if self.cells and digit != self.digit:
                refuse(NAME, line, f"{word!r} has other decimals than the cells above: cut short?")
            self.digit = digit
            self.cells[key, column] = number
            value = int(word) if word.lstrip("-").isdecimal() else number
            place = {"kind": "total", "of": self.kind} if column == "Total" else {
                "kind": self.kind, "node": column}  # fmt: skip
            out.append({**place, "name": name, "value": value, "unit": self.unit, **process})
        if self.columns[-1] == "Total":
            cells = [n for (row, at), n in self.cells.items() if row == key and at != "Total"]
            self._add_up(line, cells, self.cells[key, "Total"], "the Total")
        return out

    def _label(self, line: Line, label: str) -> tuple[str, str, Record]:
        """Return a row's key in the table, the name of its records, and whose they are."""
        process: Record = {"pid": self.pid, "command": self.command}
        if self.by_pid and label != "Total":
            match = re.fullmatch(r"(\d+) \((.*?)\)?", label)
            if not match:
                refuse(NAME, line, "this row names no process")
            return match[1], "Total", {"pid": int(match[1]), "command": match[2]}
        if not re.fullmatch(r"[A-Za-z]\w*(?:\(\w+\))?", label):
            refuse(NAME, line, "this row has no name of numastat's")
        if self.kind != "counter":
            if label.lower() in procfs.COUNTERS:
                refuse(NAME, line, "a counter in another table: is its title missing?")
            return label, label, process if self.kind == "process_memory" else {}
        if label in _OF_TITLED:
            why = "the title above this table is missing: it begins with Per-node, and says of what"
            refuse(NAME, line, why)
        if label.lower() not in procfs.COUNTERS:
            refuse(NAME, line, f"{label} is not a counter of numastat")
        return label, label.lower(), {}

    def _add_up(self, line: Line | None, cells: list[float], total: float, what: str) -> None:
        # Each cell is rounded on its own: half a last digit for each, and for the sum.
        if abs(sum(cells) - total) > self.digit * (len(cells) + 1) / 2 + 1e-6:
            refuse(NAME, line, f"{what} is not the sum of its parts")


def parse(text: str) -> list[Record]:
    """Return the records of every table in the text; ParseError for anything else."""
    rows = filled(text, (NAME,))
    if rows and re.match(r"numa_hit\s+\d+\Z", rows[0].text):
        return procfs.parse_node_numastat(text)
    ends = [len(row) for row in text.split("\n")[-2:]]
    if len(ends) == 2 and 0 < ends[1] < ends[0]:  # it has no end of line, and columns are even
        refuse(NAME, rows[-1], "the last line is shorter than the one above: cut short?")
    return _tables(rows)


def _tables(rows: list[Line]) -> list[Record]:
    """Return the records of tables that follow each other, with what numastat warns of between."""
    out: list[Record] = []
    table: _Table | None = None
    for line in rows:
        title, head = _TITLE.match(line.text), _HEAD.match(line.text)
        if _RULE.match(line.text):
            continue
        if _WARNING.match(line.text):
            out.append({"kind": "warning", "text": line.text})
        elif title:
            if table:
                table.close(line)
            pid = int(title["pid"]) if title["pid"] else None
            table = _Table(_KINDS[title[1]], "MiB", pid, title["command"])
        elif head and (head[2] or head[3]):
            if table is None or (table.unit == "pages" and table.restarts(head)):
                if table:
                    table.close(line)
                table = _Table("counter", "pages", None, None)
            table.head(line, head)
        elif table is None or not table.columns:
            refuse(NAME, line, "this belongs to no table of numastat")
        else:
            out.extend(table.row(line))
    if table is None:
        refuse(NAME, None, "it holds no table of numastat")
    table.close(None)
    return out


def _nodes(head: re.Match[str]) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", head[2] or "")]
