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
from typing import Dict, List, Optional, Tuple

from ..agent.drivers.reading import Line, Record, lines, refuse
from . import procfs

NAME = "numastat"

_COUNTERS = (
    "numa_hit", "numa_miss", "numa_foreign", "interleave_hit", "local_node", "other_node",
)  # fmt: skip
_TITLES = (
    (re.compile(r"Per-node numastat info \(in MBs\):\Z"), "counter"),
    (re.compile(r"Per-node system memory usage \(in MBs\):\Z"), "system_memory"),
    (
        re.compile(r"Per-node process memory usage \(in MBs\)(?: for PID (\d+) \((.*)\))?:?\Z"),
        "process_memory",
    ),
)
_HEAD = re.compile(r"(PID\s+)?((?:node\d+|Node \d+)(?:\s+(?:node\d+|Node \d+))*)?(?:\s*(Total))?\Z")
_RULE = re.compile(r"-{3,}(?:\s+-{3,})*\Z")
_WARNING = re.compile(
    r"(Token \S+ not in hash table\.|Can't read /proc/\d+/numa_maps.*|cannot open .*"
    r"|Ignoring duplicate PID .*|Too many PIDs, skipping .*)\Z"
)


class _Table:
    """One table while it is being read: its kind, the block's columns, and what it has seen."""

    def __init__(self, kind: str, unit: str, pid: Optional[int], command: Optional[str]) -> None:
        self.kind, self.unit, self.pid, self.command = kind, unit, pid, command
        self.columns: List[object] = []
        self.by_pid = False
        self.names: List[str] = []  # rows of the first block; later blocks repeat them
        self.block: List[str] = []
        self.seen: Dict[Tuple[str, object], Line] = {}
        self.sums: Dict[str, float] = {}  # of the nodes' cells so far, by row

    def head(self, line: Line, match: re.Match[str]) -> None:
        self.end_block(line)
        self.by_pid = bool(match.group(1)) or (self.by_pid and not match.group(1))
        self.columns = [int(n) for n in re.findall(r"\d+", match.group(2) or "")]
        if len(set(self.columns)) != len(self.columns):
            refuse(NAME, line, "a node has two columns")
        if match.group(3):
            self.columns.append("Total")

    def end_block(self, line: Optional[Line]) -> None:
        if not self.columns:
            return
        if not self.block:
            refuse(NAME, line, "a head without rows: cut short?")
        if self.names and self.block != self.names:
            refuse(
                NAME, line, "a block of the table has other rows than the block before: cut short?"
            )
        self.names, self.block = self.block, []

    def close(self, line: Optional[Line]) -> None:
        if not self.columns:
            refuse(NAME, line, "a title without a table: cut short?")
        self.end_block(line)
        if self.kind == "counter" and self.unit == "pages" and tuple(self.names) != _COUNTERS:
            refuse(NAME, line, "the table lacks rows: cut short?")
        if self.kind == "process_memory" and self.names[-1] != "Total" and not self.by_pid:
            refuse(NAME, line, "the table lacks its row Total: cut short?")


def parse(text: str) -> List[Record]:
    """Return the records of every table in the text; ParseError for anything else."""
    rows = lines(text, ("numastat",))
    first = next((line for line in rows if line.text), None)
    if first and re.match(r"\s*numa_hit\s+\d+\Z", first.text):
        return procfs.parse_node_numastat(text)
    out: List[Record] = []
    table: Optional[_Table] = None
    for line in rows:
        row = line.text.strip()
        if not row or _RULE.match(row):
            continue
        if _WARNING.match(row):
            out.append({"kind": "warning", "text": row})
            continue
        title = next(((m, kind) for p, kind in _TITLES for m in [p.match(row)] if m), None)
        if title:
            if table:
                table.close(line)
            groups = title[0].groups()
            pid = int(groups[0]) if groups and groups[0] else None
            table = _Table(title[1], "MiB", pid, groups[1] if groups else None)
            continue
        match = _HEAD.match(row)
        if match and (match.group(2) or match.group(3)) and not re.match(r"Total\s*\S", row):
            if table is None or (table.unit == "pages" and _restarts(table, match)):
                if table:
                    table.close(line)
                table = _Table("counter", "pages", None, None)
            table.head(line, match)
            continue
        if table is None or not table.columns:
            refuse(NAME, line, "this belongs to no table of numastat")
        out.extend(_row(table, line, row))
    if table is None:
        refuse(NAME, None, "it holds no table of numastat")
    table.close(None)
    return out


def _restarts(table: _Table, match: re.Match[str]) -> bool:
    """Whether a head begins a new default table (a second capture) and not a further block."""
    nodes = [int(n) for n in re.findall(r"\d+", match.group(2) or "")]
    return bool(nodes) and any(key[1] == nodes[0] for key in table.seen)


def _row(table: _Table, line: Line, row: str) -> List[Record]:
    count = len(table.columns)
    words = row.split()
    if len(words) <= count:
        refuse(NAME, line, f"fewer cells than the {count} columns of the table")
    label = " ".join(words[:-count])
    for word in words[-count:]:
        if not re.fullmatch(r"-?\d+(?:[.,]\d\d)?", word):
            refuse(NAME, line, f"{word!r} is not a number as numastat prints it")
    pid, command = table.pid, table.command
    if table.by_pid and label != "Total":
        match = re.fullmatch(r"(\d+) \((.*?)\)?", label)
        if not match:
            refuse(NAME, line, "this row names no process")
        pid, command = int(match.group(1)), match.group(2)
        label = "Total"
        key = f"{pid}"
    else:
        if not re.fullmatch(r"[A-Za-z]\w*(?:\(\w+\))?", label):
            refuse(NAME, line, "this row has no name of numastat's")
        if table.by_pid:
            pid = command = None
        key = label
    if table.kind == "counter" and label.lower() not in _COUNTERS:
        refuse(NAME, line, f"{label} is not a counter of numastat")
    if key in table.block:
        refuse(NAME, line, f"the row {label} a second time")
    table.block.append(key)
    out: List[Record] = []
    cells: List[float] = []
    for column, word in zip(table.columns, words[-count:]):
        if (key, column) in table.seen:
            refuse(NAME, line, f"the cell of {label} and node {column} a second time")
        table.seen[key, column] = line
        number = float(word.replace(",", "."))
        value = int(number) if re.fullmatch(r"-?\d+", word) else number
        cells.append(number)
        name = label.lower() if table.kind == "counter" else label
        record: Record = {"kind": table.kind, "name": name, "value": value, "unit": table.unit}
        if column == "Total":
            record.update(kind="total", of=table.kind)
        else:
            record["node"] = column
        if table.kind == "process_memory":
            record.update(pid=pid, command=command)
        out.append(record)
    table.sums[key] = table.sums.get(key, 0.0) + sum(
        number for column, number in zip(table.columns, cells) if column != "Total"
    )
    if table.columns[-1] == "Total":
        # Each cell is rounded on its own: half a last digit per node, and one for the sum.
        nodes = sum(1 for name, column in table.seen if name == key and column != "Total")
        digit = 0.01 if re.search(r"[.,]\d\d\Z", words[-1]) else 1.0
        if abs(table.sums[key] - cells[-1]) > digit * (nodes + 1) / 2 + 1e-6:
            refuse(NAME, line, "the Total is not the sum of the nodes")
    return out
