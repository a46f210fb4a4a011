"""Parser of ``numactl --hardware`` and ``numactl --show``.

Format: numactl's numactl.c, functions hardware(), print_distances() and show(). Sizes are
printed as bytes >> 20 with the unit "MB": they are MiB. Distances are the ACPI SLIT's
(10 = local; smaller values are reserved, ACPI 6.5 section 5.2.17).

Records:

- ``machine``: ``nodes`` (list format), ``value`` = their number
- ``node_cpus``: ``node``, ``cpus`` (list format, "" for a node without CPUs), ``value``
- ``node_size``, ``node_free``: ``node``, ``value`` (null when not available), ``unit`` MiB
- ``distance``: ``from``, ``to``, ``value`` (no unit: relative to 10)
- ``no_distances``, ``unavailable``: ``reason``
- ``show``: ``name`` (policy, preferred node, interleavemask, physcpubind …), ``value``: text, or
  the set of a mask in list format
"""

from __future__ import annotations

import re
from typing import Dict, List, Optional

from ..agent import cpulist
from ..agent.drivers.reading import Line, Record, lines, refuse
from ..agent.errors import Fault

NAME = "numactl"

_AVAILABLE = re.compile(r"available: (\d+) nodes? \(([\d,\-]*)\)\Z")
_CPUS = re.compile(r"node (\d+) cpus:(.*)\Z")
_MEMORY = re.compile(r"node (\d+) (size|free): (?:(\d+) MB|(<not available>))\Z")
_MASKS = ("physcpubind", "cpubind", "nodebind", "membind", "preferred", "interleavemask")
_SHOW = re.compile(
    r"(policy|preferred node|interleavenode|interleaveweights|" + "|".join(_MASKS) + r"):(.*)\Z"
)
_NUMBERS = re.compile(r"\d+(?: +\d+)*\Z")
_POLICIES = {
    "default", "preferred", "bind", "interleave", "local", "preferred-many", "preferred many",
    "weighted interleave", "weighted-interleave", "prefer",
}  # fmt: skip


def _numbers(line: Line, text: str) -> List[int]:
    """Return the numbers of "0 1 2", or of the compressed "0-3, 8 (5)" with its count checked."""
    text = text.strip()
    counted = re.fullmatch(r"((?:\d+(?:-\d+)?(?:, )?)*)\s*\((\d+)\)", text)
    if counted:
        try:
            numbers = cpulist.parse(counted.group(1))
        except Fault as fault:
            refuse(NAME, line, fault.what)
        if len(numbers) != int(counted.group(2)):
            refuse(NAME, line, f"it names {len(numbers)} CPUs and says {counted.group(2)}")
        return numbers
    if text and not _NUMBERS.match(text):
        refuse(NAME, line, "these are not the numbers of CPUs or nodes")
    numbers = [int(word) for word in text.split()]
    if numbers != sorted(set(numbers)):
        refuse(NAME, line, "the numbers do not ascend")
    return numbers


class _Hardware:
    """What ``numactl --hardware`` said so far."""

    def __init__(self, line: Line, count: int, nodes: List[int]) -> None:
        if count != len(nodes):
            refuse(NAME, line, f"it says {count} nodes and names {len(nodes)}")
        self.line = line
        self.nodes = nodes
        self.cpus: Dict[int, str] = {}
        self.memory: Dict[tuple, Optional[int]] = {}
        self.columns: Optional[List[int]] = None
        self.rows: Dict[int, List[int]] = {}
        self.no_distances = False

    def records(self) -> List[Record]:
        """Return the records; ParseError when a node or a row of distances is missing."""
        out: List[Record] = [
            {"kind": "machine", "nodes": cpulist.format(self.nodes), "value": len(self.nodes)}
        ]
        for node in self.nodes:
            if self.cpus:  # numactl 1.0 and older list the CPUs of no node
                if node not in self.cpus:
                    refuse(NAME, self.line, f"no CPUs are listed for node {node}: cut short?")
                cpus = self.cpus[node]
                count = len(cpulist.parse(cpus))
                out.append({"kind": "node_cpus", "node": node, "cpus": cpus, "value": count})
            for what in ("size", "free"):
                if (node, what) not in self.memory:
                    refuse(NAME, self.line, f"node {node} has no line with its {what}: cut short?")
                value = self.memory[node, what]
                record = {"kind": f"node_{what}", "node": node, "value": value, "unit": "MiB"}
                if value is None:
                    record["reason"] = "not available"
                out.append(record)
        if self.no_distances:
            out.append({"kind": "no_distances", "reason": "no distance information available"})
            return out
        if self.columns is None:
            refuse(NAME, None, "the table of node distances is missing: cut short?")
        if sorted(self.rows) != self.columns or self.columns != self.nodes:
            refuse(NAME, None, "the table of node distances is not complete")
        for source in self.columns:
            for target, distance in zip(self.columns, self.rows[source]):
                out.append({"kind": "distance", "from": source, "to": target, "value": distance})
        return out


def _cpus_line(line: Line, text: str) -> str:
    return cpulist.format(_numbers(line, text))


def _joined(rows: List[Line]) -> List[Line]:
    """Join a list of CPUs that a mailer wrapped: a line of nothing but numbers continues it."""
    out: List[Line] = []
    for line in rows:
        text = line.text.strip()
        before = out[-1].text if out else ""
        if _NUMBERS.match(text) and re.match(r"(node \d+ cpus|physcpubind):", before):
            out[-1] = Line(out[-1].number, before.rstrip() + " " + text)
        else:
            out.append(Line(line.number, text))
    return out


def parse(text: str) -> List[Record]:
    """Return the records of one or both outputs in the text; ParseError for anything else."""
    out: List[Record] = []
    hardware: Optional[_Hardware] = None
    shown: Dict[str, Line] = {}
    in_table = False

    def close() -> None:
        nonlocal hardware
        if hardware:
            out.extend(hardware.records())
            hardware = None

    for line in _joined(lines(text, ("numactl",))):
        row = line.text
        # Under the policy "local" numactl prints no node and no end of line after the label.
        if row.startswith("preferred node: physcpubind:"):
            row = row[len("preferred node: ") :]
            shown["preferred node"] = line
        if not row:
            in_table = in_table and hardware is not None and not hardware.rows
            continue
        if re.fullmatch(r"No NUMA (?:support )?available on this system\.?", row):
            out.append({"kind": "unavailable", "reason": row.rstrip(".")})
            shown.setdefault("unavailable", line)
            continue
        match = _AVAILABLE.match(row)
        if match:
            if hardware or any(r["kind"] == "machine" for r in out):
                refuse(NAME, line, "a second list of the available nodes")
            try:
                nodes = cpulist.parse(match.group(2))
            except Fault as fault:
                refuse(NAME, line, fault.what)
            hardware = _Hardware(line, int(match.group(1)), nodes)
            continue
        match = _SHOW.match(row)
        if match:
            close()
            name, value = match.group(1), match.group(2).strip()
            if name in shown:
                refuse(NAME, line, f"{name} a second time")
            shown[name] = line
            if name in _MASKS:
                value = _cpus_line(line, value)
            elif name == "policy" and value not in _POLICIES:
                refuse(NAME, line, "this is not a memory policy that numactl names")
            elif name == "preferred node" and not re.fullmatch(
                r"current|-?\d+(?: \((?:interleave next|preferred-many)\))?", value
            ):
                refuse(NAME, line, "this is neither a node nor 'current'")
            elif name == "interleavenode" and not re.fullmatch(r"\d+", value):
                refuse(NAME, line, "this is not a node")
            elif name == "interleaveweights" and not re.fullmatch(r"(?:\d+(?::\d+)? *)*", value):
                refuse(NAME, line, "these are not weights")
            out.append({"kind": "show", "name": name, "value": value})
            continue
        if hardware is None:
            refuse(NAME, line, "this belongs to neither numactl --hardware nor --show")
        _hardware_line(hardware, line, in_table)
        in_table = hardware.columns is not None or row == "node distances:"
    close()
    _check_show(shown)
    if not out:
        refuse(NAME, None, "it holds no output of numactl --hardware or --show")
    return out


def _hardware_line(hardware: _Hardware, line: Line, in_table: bool) -> None:
    row = line.text
    match = _CPUS.match(row)
    if match and not in_table:
        node = _known(hardware, line, int(match.group(1)))
        if node in hardware.cpus:
            refuse(NAME, line, f"the CPUs of node {node} a second time")
        hardware.cpus[node] = _cpus_line(line, match.group(2))
        return
    match = _MEMORY.match(row)
    if match and not in_table:
        key = (_known(hardware, line, int(match.group(1))), match.group(2))
        if key in hardware.memory:
            refuse(NAME, line, f"the {key[1]} of node {key[0]} a second time")
        hardware.memory[key] = int(match.group(3)) if match.group(3) else None
        return
    if row == "No distance information available.":
        hardware.no_distances = True
        return
    if row == "node distances:" and hardware.columns is None:
        return
    words = row.split()
    if in_table and hardware.columns is None and words[0] == "node":
        if not all(re.fullmatch(r"\d+", word) for word in words[1:]):
            refuse(NAME, line, "this is not the head of the table of distances")
        hardware.columns = [int(word) for word in words[1:]]
        return
    match = re.fullmatch(r"(\d+): +(\d+(?: +\d+)*)", row)
    if match and hardware.columns is not None:
        source = _known(hardware, line, int(match.group(1)))
        cells = [int(word) for word in match.group(2).split()]
        if source in hardware.rows:
            refuse(NAME, line, f"the distances from node {source} a second time")
        if len(cells) != len(hardware.columns):
            refuse(NAME, line, f"{len(cells)} distances for {len(hardware.columns)} nodes")
        if min(cells) < 10:
            refuse(NAME, line, "a distance below 10 does not exist")
        hardware.rows[source] = cells
        return
    refuse(NAME, line, "this is not a line of numactl --hardware")


def _known(hardware: _Hardware, line: Line, node: int) -> int:
    if node not in hardware.nodes:
        refuse(NAME, line, f"node {node} is not among the available nodes")
    return node


def _check_show(shown: Dict[str, Line]) -> None:
    """Refuse a --show that is cut short: numactl always ends it with these masks."""
    if not shown or "unavailable" in shown:
        return
    for name in ("policy", "preferred node", "physcpubind", "nodebind", "membind"):
        if name not in shown:
            refuse(NAME, None, f"numactl --show has no line {name!r}: cut short?")


def parse_hardware(text: str) -> List[Record]:
    """As parse, for a text that must hold ``numactl --hardware``."""
    return _only(text, {"machine", "unavailable"}, "numactl --hardware")


def parse_show(text: str) -> List[Record]:
    """As parse, for a text that must hold ``numactl --show``."""
    return _only(text, {"show", "unavailable"}, "numactl --show")


def _only(text: str, kinds: set, what: str) -> List[Record]:
    records = parse(text)
    if not any(record["kind"] in kinds for record in records):
        refuse(NAME, None, f"it holds no output of {what}")
    return records
