"""The witness of the ``host`` experiment: what numactl and lscpu say of this machine.

Nothing is timed. The run's host record holds what the agent read from sysfs; this output stands
beside it, so that a reader can see whether independent tools agree. Only the forms that are asked
for here are read here: ``numactl --hardware`` (numactl.c, hardware()) and lscpu's summary; all
others are read by ``numalab.logs``, on the controller.

Records, each with ``witness``: ``node_cpus`` (``node``, ``cpus`` in list format), ``node_size``
and ``node_free`` (``node``, ``value`` in MiB or null), ``distance`` (``from``, ``to``, ``value``),
and of lscpu ``field`` (``name``, ``value``).
"""

from __future__ import annotations

import re
import shutil
from typing import Callable, List, Sequence

from .. import cpulist
from ..contract import Cell, Driver, Host, Prepared, Record, Row, Timing, ToolRecord
from ..errors import Fault, ParseError
from ..rows import row
from .options import Options

_MARK = "# output of "
_COMMANDS = {"numactl": "numactl --hardware", "lscpu": "lscpu"}


class HostWitness(Driver):
    """numactl and lscpu, each where it is installed."""

    name = "host"

    def find(self, options: Options) -> ToolRecord:
        """Return the shell and which witnesses are there; it never fails."""
        there = [name for name in _COMMANDS if shutil.which(name)]
        return ToolRecord(self.name, ", ".join(there) or "no witness installed", "/bin/sh")

    def prepare(self, options: Options, host: Host, cpus: str, memory_nodes: str) -> Prepared:
        """Return the options as they are: a witness needs no memory and has nothing to set."""
        return Prepared(dict(options), 0)

    def argv(self, found: ToolRecord, options: Options, cell: Cell) -> List[str]:
        """Return the command: each witness that is there, its output under a line that names it."""
        parts = [
            f"echo '{_MARK}{name}'; LC_ALL=C {command} 2>&1"
            for name, command in _COMMANDS.items()
            if name in (found.version or "").split(", ")
        ]
        return [str(found.path), "-c", "; ".join(parts) or "true"]

    def timing(self, options: Options) -> Timing:
        return Timing(measure_s=0.1)

    def parse(self, text: str) -> List[Record]:
        """Return the records of both witnesses; ParseError for a line that neither prints."""
        out: List[Record] = []
        name, reader = "", None
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith(_MARK):
                name = line[len(_MARK) :].strip()
                if name not in _COMMANDS:
                    raise ParseError(self.name, number, line, "no such witness")
                reader = _numactl() if name == "numactl" else _lscpu
            elif reader is None:
                raise ParseError(self.name, number, line, "it belongs to no witness")
            elif line.strip():
                try:
                    found = reader(line.strip())
                except (ValueError, Fault) as why:
                    raise ParseError(name, number, line, str(why)) from None
                out += ({"witness": name, **record} for record in found)
        return out

    def metrics(self, records: Sequence[Record]) -> List[Row]:
        """Return numactl's node sizes (MiB) and distances as metrics, points "0" and "0-1"."""
        rows = []
        for record in records:
            kind = record["kind"]
            if kind in ("node_size", "node_free"):
                point = str(record["node"])
                rows.append(row(kind, record["value"], "MiB", "numactl-gives-none", point=point))
            elif kind == "distance":
                point = f"{record['from']}-{record['to']}"
                rows.append(row("distance", record["value"], "1", point=point))
        return rows


def _numactl() -> Callable[[str], List[Record]]:
    """Return a reader of the lines of one ``numactl --hardware``."""
    columns: List[int] = []

    def read(line: str) -> List[Record]:
        cpus = re.fullmatch(r"node (\d+) cpus:([-, \d]*?)(?: \(\d+\))?", line)
        if cpus:  # "0 1 2 8", or since numactl 2.0.19 "0-2, 8 (4)"
            numbers = cpulist.parse(re.sub(r"[ ,]+", ",", cpus[2]))
            return [{"kind": "node_cpus", "node": int(cpus[1]), "cpus": cpulist.format(numbers)}]
        memory = re.fullmatch(r"node (\d+) (size|free): (?:(\d+) MB|<not available>)", line)
        if memory:
            value = int(memory[3]) if memory[3] else None
            kind = f"node_{memory[2]}"
            return [{"kind": kind, "node": int(memory[1]), "value": value, "unit": "MiB"}]
        if re.fullmatch(r"node +\d+( +\d+)*", line):
            columns[:] = map(int, line.split()[1:])
            return []
        distances = re.fullmatch(r"(\d+):((?: +\d+)+)", line)
        if distances and len(distances[2].split()) == len(columns):
            return [
                {"kind": "distance", "from": int(distances[1]), "to": to, "value": int(value)}
                for to, value in zip(columns, distances[2].split())
            ]
        if not re.match(r"available: |node distances:|No distance information|No NUMA|numactl: "
                        r"|sh: ", line):  # fmt: skip
            raise ValueError("this is not a line of numactl --hardware")
        return []

    return read


def _lscpu(line: str) -> List[Record]:
    name, colon, value = line.partition(":")
    if not colon:
        raise ValueError("this is not a line of lscpu's summary")
    out: List[Record] = [{"kind": "field", "name": name, "value": value.strip()}]
    node = re.fullmatch(r"NUMA node(\d+) CPU\(s\)", name)
    if node:
        out.append({"kind": "node_cpus", "node": int(node[1]), "cpus": value.strip()})
    return out
