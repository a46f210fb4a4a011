"""A measuring tool that misbehaves as told, its driver, and small plans that use it.

Run as a program it is an agent with that driver: ``python fake_tool.py PLAN OUT ROOT RECORD LOCK``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Optional

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
esac
"""


def _parse(text: str) -> List[Dict[str, Any]]:
    from numalab.agent.errors import ParseError

    records = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            value = json.loads(line)
            if isinstance(value, dict):
                if value["event"] != "result":
                    continue
                value = value["value"]
            records.append({"kind": "fake", "value": float(value)})
        except (ValueError, KeyError):
            raise ParseError("fake", number, line, "not a value") from None
    return records


def driver(protocol: str) -> SimpleNamespace:
    """A driver as the modules under agent/drivers are; ``options``: {"do": …, "mark": seconds}."""
    return SimpleNamespace(
        NAME="fake",
        PROTOCOL=protocol,
        find=lambda options: {"path": "/bin/sh", "version": "1"},
        argv=lambda found, options, cell: [
            found["path"], "-c", _SCRIPT, "fake", options["do"], options["mark"],
            options.get("pids", ""),
        ],
        timing=lambda options: {"setup_s": 0.0, "warmup_s": 0.0, "measure_s": 0.1},
        parse=_parse,
        metrics=lambda records: [
            {"metric": "speed", "value": r["value"], "unit": "1/s", "point": "", "x": None,
             "y": None, "reason": None}
            for r in records
        ],
    )  # fmt: skip


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


def plan(does: List[str], number: str, blocks: int = 2, **request: Any) -> Dict[str, Any]:
    """A plan with one unbound cell for each behaviour."""
    cells = [
        {
            "id": f"cell:{i}", "binding": "unbound", "label": do, "role": "cell",
            "baseline": None, "cpus": None, "cpu_nodes": "0", "threads": 1,
            "memory": {"policy": "default", "nodes": None}, "distance": None, "rank": [],
            "options": {"do": do, "mark": number}, "numactl": [],
            "expects": {"memory": {"proof": "outcome"}, "cpus": {"proof": "outcome"}},
            "need_bytes": 0, "notes": [],
            "timing": {"setup_s": 0, "warmup_s": 0, "measure_s": 0.1, "total_s": 1.1},
        }
        for i, do in enumerate(does)
    ]  # fmt: skip
    order = [
        {"trial": block * len(cells) + i + 1, "block": block + 1, "position": i + 1,
         "cell": cell["id"]}
        for block in range(blocks)
        for i, cell in enumerate(cells)
    ]  # fmt: skip
    return {
        "schema": 1,
        "request": {
            "schema": 1, "experiment": "fake", "question": "", "profile": "smoke",
            "host": "here", "tool": {"name": "fake", "prefer": ["fake"], "options": {}},
            "bindings": ["unbound"], "baseline": None, "control": False, "blocks": blocks,
            "seed": 1, "sweep": None, "headline": "speed", "collectors": False, "changes": {},
            "time_limit_s": None, **request,
        },
        "tool": {"name": "fake", "version": "1", "path": "/bin/sh", "why": None},
        "cells": cells, "skipped": [], "order": order, "warnings": [],
        "estimate": {"warmup_s": 0, "measure_s": 1, "total_s": 2},
    }  # fmt: skip


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
    plan: Dict[str, Any], out: Path, root: Path, record: Path, lock: str, **popen: Any
) -> subprocess.Popen:
    """Start an agent with the fake tool as a process of its own."""
    plan_file = record.parent / f"plan-{uuid.uuid4()}.json"
    plan_file.write_text(json.dumps(plan))
    here = Path(__file__).resolve()
    return subprocess.Popen(
        [sys.executable, str(here), str(plan_file), str(out), str(root), str(record), lock],
        env={**os.environ, "PYTHONPATH": f"{here.parent.parent / 'lib'}:{here.parent}"},
        **popen,
    )


def main(arguments: Optional[List[str]] = None) -> int:
    from numalab.agent import __main__ as command
    from numalab.agent import drivers
    from numalab.agent.trial import run

    plan_file, out, root, record, lock = arguments or sys.argv[1:]
    loaded = json.loads(Path(plan_file).read_text())
    protocol = "sampled" if loaded["request"]["experiment"] == "sampled" else "handshake"
    drivers.driver = lambda name: driver(protocol)  # type: ignore[attr-defined]

    def start(options: Any) -> None:
        run.run(
            loaded, Path(out), allow_host_changes=True, record=Path(record),
            changes_root=Path(root), lock=lock,
        )  # fmt: skip

    command._run = start
    return command.main(["run", "--plan", plan_file, "--out", out])


if __name__ == "__main__":
    sys.exit(main())
