"""A measuring tool that misbehaves as told, its driver, and small plans that use it.

Run as a program it is an agent with that driver: ``python fake_tool.py PLAN OUT ROOT RECORD LOCK``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from numalab.agent.contract import (
    SCHEMA,
    Cell,
    CpuExpectation,
    Driver,
    Expectation,
    MemoryExpectation,
    MemoryPolicy,
    Plan,
    Record,
    Request,
    Row,
    Timing,
    ToolRecord,
    ToolRequest,
    Tour,
    Trial,
    dumps,
    from_json,
)
from numalab.agent.errors import ParseError

_SCRIPT = r"""
do=$1 mark=$2
say_ready() { echo '{"event":"ready"}'; read -r go; }
say_result() { echo "{\"event\":\"result\",\"value\":$1}"; }
daemon() { setsid env -i sleep "$mark" & env -i setsid sleep "$mark" & sleep 0.03; }
case $do in
handshake) say_ready; sleep 0.02; say_result 42; read -r quit;;
parts) sleep "$mark" & one=$!; sleep "$mark" & two=$!
  echo "{\"event\":\"ready\",\"pids\":[$one,$two]}"; read -r go; say_result 42; read -r quit;;
names) echo "{\"event\":\"ready\",\"pids\":$3}"; read -r go;;
nothing-yet) echo '{"event":"ready","nothing_yet":true}'; read -r go; say_result 42; read -r quit;;
meddle) say_ready; echo 4 > "$mark"; say_result 42; read -r quit;;
never-ready) sleep "$mark";;
never-result) say_ready; sleep "$mark";;
crash) say_ready; echo 'the buffer is on fire' >&2; exit 3;;
nonsense) echo 'Segmentation fault (cosmic ray)'; sleep "$mark";;
killed) say_ready; kill -9 $$;;
wrong-value) say_ready; say_result '"many"'; read -r quit;;
stubborn) trap '' TERM INT HUP; say_ready; say_result 42; while :; do sleep "$mark"; done;;
family) say_ready; daemon; (sleep "$mark" &) ; say_result 42; read -r quit;;
slow-family) daemon; say_ready; sleep 0.08; say_result 42; read -r quit;;
sampled) sleep 0.3; echo 42;;
short) echo 42;;
status) echo working; echo 'no such input' >&2; exit 7;;
usage) printf 'node 7 is out of range\nusage: fake [-i]\n  -i nodes\n' >&2; exit 1;;
flood) yes;;
tour) while read -r word name && [ "$word" = visit ]; do
  [ "$name" = "$3" ] && exit 3
  echo "{\"event\":\"ready\",\"visit\":\"$name\"}"; read -r go
  echo "{\"event\":\"result\",\"visit\":\"$name\",\"value\":42}"; done;;
esac
"""


class Fake(Driver):
    """``options``: {"do": what, "mark": seconds, "pids": what it names}."""

    name = "fake"

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol

    def find(self, options: Mapping[str, Any]) -> ToolRecord:
        return ToolRecord("fake", "1", "/bin/sh")

    def argv(self, found: ToolRecord, options: Mapping[str, Any], cell: Cell) -> List[str]:
        words = [options["do"], options["mark"], options.get("pids", "")]
        return [str(found.path), "-c", _SCRIPT, "fake", *words]

    def parse(self, text: str) -> List[Record]:
        records: List[Record] = []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                value, visit = json.loads(line), ""
                if isinstance(value, dict):
                    if value["event"] != "result":
                        continue
                    value, visit = value["value"], value.get("visit", "")
                records.append({"kind": "fake", "value": float(value), "visit": visit})
            except (ValueError, KeyError):
                raise ParseError("fake", number, line, "not a value") from None
        return records

    def metrics(self, records: Sequence[Record]) -> List[Row]:
        return [Row("speed", one["value"], "1/s", cell=one["visit"]) for one in records]

    def visit(self, cell: Cell) -> str:
        return f"visit {cell.id}"


def mark() -> str:
    """A sleep in seconds that nobody else sleeps: leftovers are found by it."""
    return f"30{os.getpid()}.{int.from_bytes(os.urandom(4), 'big')}"


def alive(number: str) -> List[int]:
    """The processes that still have the mark on their command line."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if number.encode() in words and state not in "ZX":
                found.append(int(name))
    return found


def cell(number: int, do: str, mark: str, **fields: Any) -> Cell:
    """An unbound cell whose tool does one thing."""
    anywhere = Expectation(MemoryExpectation("outcome"), CpuExpectation("outcome"))
    given: Dict[str, Any] = {
        "cpus": None, "cpu_nodes": "0", "memory": MemoryPolicy("default"), "expects": anywhere,
        "id": f"cell:{number}", "binding": "unbound", "label": do,
        "options": {"do": do, "mark": mark}, "timing": Timing(measure_s=0.1, total_s=1.1),
    }  # fmt: skip
    return Cell(**{**given, **fields})


def plan(
    does: List[str],
    number: str,
    blocks: int = 2,
    changes: Optional[Dict[str, str]] = None,
    **request: Any,
) -> Plan:
    """A plan with one unbound cell for each behaviour; ``changes`` are those of all cells."""
    cells = tuple(cell(i, do, number, changes=changes or {}) for i, do in enumerate(does))
    order = tuple(
        Trial(block * len(cells) + i + 1, block + 1, i + 1, one.id)
        for block in range(blocks)
        for i, one in enumerate(cells)
    )
    asked: Dict[str, Any] = {
        "schema": SCHEMA, "experiment": "fake", "profile": "smoke", "host": "here",
        "tool": ToolRequest("fake", ("fake",)), "bindings": ("unbound",), "control": False,
        "blocks": blocks, "seed": 1, "headline": "speed", "collectors": None,
        "changes": changes or {}, **request,
    }  # fmt: skip
    return Plan(
        schema=SCHEMA, request=Request(**asked), tool=ToolRecord("fake", "1", "/bin/sh"),
        cells=cells, skipped=(), resolved=(), order=order, warnings=(),
        estimate=Timing(measure_s=1.0, total_s=2.0),
    )  # fmt: skip


def tour(cells: int, number: str, blocks: int = 2, crash: str = "", **request: Any) -> Plan:
    """A plan of one tour through some cells; the tool ends when it is sent to ``crash``."""
    made = plan(["tour"] * cells, number, blocks, **request)
    free = {field.name: getattr(made.cells[0], field.name) for field in fields(Cell)}
    options = {**made.cells[0].options, "pids": crash}
    visits = tuple(cell.id for cell in made.cells)
    one = Tour(**{**free, "id": "tour:fake", "options": options, "visits": visits})
    order = tuple(Trial(block, block, 1, one.id) for block in range(1, blocks + 1))
    return replace(made, tours=(one,), order=order)


def with_cells(made: Plan, *fields: Mapping[str, Any]) -> Plan:
    """A plan whose cells have other fields, in order."""
    cells = [replace(cell, **more) for cell, more in zip(made.cells, fields)]
    return replace(made, cells=tuple(cells) + made.cells[len(cells) :])


def fake_root(folder: Path, numa_balancing: str = "1") -> Path:
    """A root with the settings that the tests change, and a boot id."""
    for name, text in {
        "proc/sys/kernel/numa_balancing": numa_balancing,
        "proc/sys/kernel/random/boot_id": "11111111-2222-3333-4444-555555555555",
        "proc/sys/vm/drop_caches": "0",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


def agent(
    plan: Plan, out: Path, root: Path, record: Path, lock: str, **popen: Any
) -> subprocess.Popen:
    """Start an agent with the fake tool as a process of its own."""
    plan_file = record.parent / f"plan-{uuid.uuid4()}.json"
    plan_file.write_text(dumps(plan))
    here = Path(__file__).resolve()
    return subprocess.Popen(
        [sys.executable, str(here), str(plan_file), str(out), str(root), str(record), lock],
        env={**os.environ, "PYTHONPATH": f"{here.parent.parent / 'lib'}:{here.parent}"},
        **popen,
    )


def main(arguments: Optional[List[str]] = None) -> int:
    from numalab.agent import __main__ as command
    from numalab.agent import drivers
    from numalab.agent.trial import quiet, run

    quiet.others_at_work = lambda *_: None  # as conftest has it: no look takes time from trials
    plan_file, out, root, record, lock = arguments or sys.argv[1:]
    loaded = from_json(Plan, json.loads(Path(plan_file).read_text()))
    protocol = "sampled" if loaded.request.experiment == "sampled" else "handshake"
    drivers.driver = lambda name: Fake(protocol)  # type: ignore[attr-defined]

    def start(options: Any) -> None:
        run.run(
            loaded, Path(out), allow_host_changes=True, record=Path(record),
            changes_root=Path(root), lock_name=lock, busy=True,
        )  # fmt: skip

    command._run = start
    return command.main(["run", "--plan", plan_file, "--out", out])


if __name__ == "__main__":
    sys.exit(main())
