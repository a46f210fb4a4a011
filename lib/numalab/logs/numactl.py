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
from collections.abc import Iterator

from numalab.agent import cpulist
from numalab.agent.contract import Record
from numalab.agent.drivers.reading import Line, refuse

from .lines import Once, cpu_list, filled

NAME = "numactl"

_AVAILABLE = re.compile(r"available: (\d+) nodes? \(([\d,\-]*)\)\Z")
_UNAVAILABLE = re.compile(r"No NUMA (?:support )?available on this system\.?\Z")
_CPUS = re.compile(r"node (\d+) cpus:(.*)\Z")
_MEMORY = re.compile(r"node (\d+) (size|free): (?:(\d+) MB|(<not available>))\Z")
_COLUMNS = re.compile(r"node((?: +\d+)*)\Z")
_DISTANCES = re.compile(r"(\d+): +(\d+(?: +\d+)*)\Z")
_NUMBERS = re.compile(r"\d+(?: +\d+)*\Z")
_COUNTED = re.compile(r"((?:\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*)?)\s*\((\d+)\)\Z")
_MASKS = ("physcpubind", "cpubind", "nodebind", "membind", "preferred", "interleavemask")
_SHOW = re.compile(
    r"(policy|preferred node|interleavenode|interleaveweights|" + "|".join(_MASKS) + r"):(.*)\Z"
)
_VALUES = {  # of --show: what may stand there, and what is wrong with anything else
    "policy": (
        r"default|preferred|bind|interleave|local|preferred[- ]many|weighted[- ]interleave|prefer",
        "this is not a memory policy that numactl names",
    ),
    "preferred node": (
        r"current|-?\d+(?: \((?:interleave next|preferred-many)\))?",
        "this is neither a node nor 'current'",
    ),
    "interleavenode": (r"\d+", "this is not a node"),
    "interleaveweights": (r"(?:\d+(?::\d+)?(?: +\d+(?::\d+)?)*)? *", "these are not weights"),
}
_ALWAYS_SHOWN = ("policy", "preferred node", "physcpubind", "nodebind", "membind")


class _Hardware:
    """What ``numactl --hardware`` said so far."""

    def __init__(self, line: Line, count: int, nodes: list[int]) -> None:
        if count != len(nodes):
            refuse(NAME, line, f"it says {count} nodes and names {len(nodes)}")
        self.line = line
        self.nodes = nodes
        self.once = Once(NAME)
        self.cpus: dict[int, list[int]] = {}
        self.memory: dict[tuple[str, int], int | None] = {}
        self.columns: list[int] | None = None  # of the table of distances
        self.rows: dict[int, list[int]] = {}
        self.in_table = self.no_distances = False

    def read(self, line: Line) -> None:
        """Take in one line; ParseError when it is none of --hardware's."""
        row = line.text
        cpus, memory = (None, None) if self.in_table else (_CPUS.match(row), _MEMORY.match(row))
        columns, distances = _COLUMNS.match(row), _DISTANCES.match(row)
        if cpus:
            node = self._node(line, cpus[1], "the CPUs of node")
            self.cpus[node] = _numbers(line, cpus[2])
        elif memory:
            node = self._node(line, memory[1], f"the {memory[2]} of node")
            self.memory[memory[2], node] = int(memory[3]) if memory[3] else None
        elif row == "No distance information available.":
            self.no_distances = True
        elif row == "node distances:" and self.columns is None:
            self.in_table = True
        elif columns and self.in_table and self.columns is None:
            self.columns = [int(word) for word in columns[1].split()]
        elif distances and self.columns is not None:
            node = self._node(line, distances[1], "the distances from node")
            cells = [int(word) for word in distances[2].split()]
            if len(cells) != len(self.columns):
                refuse(NAME, line, f"{len(cells)} distances for {len(self.columns)} nodes")
            if min(cells) < 10:
                refuse(NAME, line, "a distance below 10 does not exist")
            self.rows[node] = cells
        else:
            refuse(NAME, line, "this is not a line of numactl --hardware")

    def _node(self, line: Line, number: str, what: str) -> int:
        node = int(number)
        if node not in self.nodes:
            refuse(NAME, line, f"node {node} is not among the available nodes")
        self.once.add(line, (what, node), f"{what} {node}")
        return node

    def records(self) -> Iterator[Record]:
        """Yield the records; ParseError when a node or a row of distances is missing."""
        yield {"kind": "machine", "nodes": cpulist.format(self.nodes), "value": len(self.nodes)}
        for node in self.nodes:
            if self.cpus:  # numactl 1.0 and older list the CPUs of no node
                if node not in self.cpus:
                    refuse(NAME, self.line, f"no CPUs are listed for node {node}: cut short?")
                cpus = self.cpus[node]
                listed = cpulist.format(cpus)
                yield {"kind": "node_cpus", "node": node, "cpus": listed, "value": len(cpus)}
            for what in ("size", "free"):
                if (what, node) not in self.memory:
                    refuse(NAME, self.line, f"node {node} has no line with its {what}: cut short?")
                value = self.memory[what, node]
                missing = {"reason": "not available"} if value is None else {}
                yield {"kind": f"node_{what}", "node": node, "value": value, "unit": "MiB",
                       **missing}  # fmt: skip
        if self.no_distances:
            yield {"kind": "no_distances", "reason": "no distance information available"}
            return
        if self.columns is None:
            refuse(NAME, None, "the table of node distances is missing: cut short?")
        if sorted(self.rows) != self.columns or self.columns != self.nodes:
            refuse(NAME, None, "the table of node distances is not complete")
        for source in self.columns:
            for target, distance in zip(self.columns, self.rows[source], strict=True):
                yield {"kind": "distance", "from": source, "to": target, "value": distance}


def parse(text: str) -> list[Record]:
    """Return the records of one or both outputs in the text; ParseError for anything else."""
    out: list[Record] = []
    hardware: _Hardware | None = None
    shown = Once(NAME)
    for line in _joined(filled(text, (NAME,))):
        # Under the policy "local" numactl prints no node and no end of line after the label.
        if line.text.startswith("preferred node: physcpubind:"):
            line = Line(line.number, line.text[len("preferred node: ") :])
            shown.seen.add("preferred node")
        available, show = _AVAILABLE.match(line.text), _SHOW.match(line.text)
        if _UNAVAILABLE.match(line.text):
            out.append({"kind": "unavailable", "reason": line.text.rstrip(".")})
            shown.seen.add("unavailable")
        elif available:
            if hardware or any(record["kind"] == "machine" for record in out):
                refuse(NAME, line, "a second list of the available nodes")
            nodes = cpu_list(NAME, line, available[2])
            hardware = _Hardware(line, int(available[1]), nodes)
        elif show:
            if hardware:
                out.extend(hardware.records())
                hardware = None
            shown.add(line, show[1], show[1])
            out.append({"kind": "show", "name": show[1], "value": _shown(line, *show.groups())})
        elif hardware is None:
            refuse(NAME, line, "this belongs to neither numactl --hardware nor --show")
        else:
            hardware.read(line)
    if hardware:
        out.extend(hardware.records())
    if shown.seen and "unavailable" not in shown.seen:
        for name in _ALWAYS_SHOWN:
            if name not in shown.seen:
                refuse(NAME, None, f"numactl --show has no line {name!r}: cut short?")
    return out or refuse(NAME, None, "it holds no output of numactl --hardware or --show")


def _joined(rows: list[Line]) -> list[Line]:
    """Join a list of CPUs that a mailer wrapped: a line of nothing but numbers continues it."""
    out: list[Line] = []
    for line in rows:
        before = out[-1].text if out else ""
        if _NUMBERS.match(line.text) and re.match(r"(node \d+ cpus|physcpubind):", before):
            out[-1] = Line(out[-1].number, f"{before} {line.text}")
        else:
            out.append(line)
    return out


def _shown(line: Line, name: str, text: str) -> str:
    value = text.strip()
    if name in _MASKS:
        if not value and name in _ALWAYS_SHOWN:
            refuse(NAME, line, "nothing is bound to nothing: cut short?")
        return cpulist.format(_numbers(line, value))
    pattern, wrong = _VALUES[name]
    if not re.fullmatch(pattern, value):
        refuse(NAME, line, wrong)
    return value


def _numbers(line: Line, text: str) -> list[int]:
    """Return the numbers of "0 1 2", or of the compressed "0-3, 8 (5)" with its count checked."""
    text = text.strip()
    counted = _COUNTED.match(text)
    if counted:
        numbers = cpu_list(NAME, line, counted[1])
        if len(numbers) != int(counted[2]):
            refuse(NAME, line, f"it names {len(numbers)} CPUs and says {counted[2]}")
        return numbers
    if text and not _NUMBERS.match(text):
        refuse(NAME, line, "these are not the numbers of CPUs or nodes")
    numbers = [int(word) for word in text.split()]
    if numbers != sorted(set(numbers)):
        refuse(NAME, line, "the numbers do not ascend")
    return numbers
