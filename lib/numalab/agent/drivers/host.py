"""The witness of the ``host`` experiment: what numactl and lscpu say of this machine.

Nothing is timed. The run's host record holds what the agent read from sysfs; this output stands
beside it, so that a reader can see whether independent tools agree.
"""

from __future__ import annotations

import shutil
from typing import Any, Dict, List

from ..errors import ParseError
from . import lscpu, numactl

NAME = "host"
PROTOCOL = "sampled"

_MARK = "# output of "
_COMMANDS = {"numactl": "numactl --hardware", "lscpu": "lscpu"}


def find(options: Dict[str, Any]) -> Dict[str, Any]:
    """Return what the shell is called and which witnesses are there; it never fails."""
    there = [name for name in _COMMANDS if shutil.which(name)]
    return {"path": "/bin/sh", "version": ", ".join(there) or "no witness installed"}


def prepare(
    options: Dict[str, Any], topology: Dict[str, Any], cpus: str, memory_nodes: str
) -> Dict[str, Any]:
    """Return the options as they are: a witness needs no memory and has nothing to set."""
    return {"options": dict(options), "need_bytes": 0, "notes": []}


def argv(found: Dict[str, Any], options: Dict[str, Any], cell: Dict[str, Any]) -> List[str]:
    """Return the command: each witness that is there, its output under a line that names it."""
    parts = [
        f"echo '{_MARK}{name}'; LC_ALL=C {command} 2>&1"
        for name, command in _COMMANDS.items()
        if shutil.which(name)
    ]
    return [found["path"], "-c", "; ".join(parts) or "true"]


def timing(options: Dict[str, Any]) -> Dict[str, float]:
    """Return the planned seconds: next to nothing."""
    return {"warmup_s": 0.0, "measure_s": 0.1, "setup_s": 0.0}


def parse(text: str) -> List[Dict[str, Any]]:
    """Return the records of both witnesses, each with ``witness``; ParseError as they raise it."""
    outputs: Dict[str, List[str]] = {}
    name = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(_MARK):
            name = line[len(_MARK) :].strip()
            if name not in _COMMANDS:
                raise ParseError(NAME, number, line, "no such witness")
            outputs[name] = []
        elif name is None:
            raise ParseError(NAME, number, line, "it belongs to no witness")
        else:
            outputs[name].append(line)
    parsers = {"numactl": numactl.parse, "lscpu": lscpu.parse}
    return [
        {"witness": name, **record}
        for name, lines in outputs.items()
        for record in parsers[name]("\n".join(lines) + "\n")
    ]


def metrics(records: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Return numactl's node sizes (MiB) and distances as metrics, points "0" and "0-1"."""
    rows = []
    for record in records:
        if record["kind"] in ("node_size", "node_free"):
            reason = None if record["value"] is not None else "numactl says it is not available"
            rows.append(_row(record["kind"], str(record["node"]), record["value"], "MiB", reason))
        elif record["kind"] == "distance":
            point = f"{record['from']}-{record['to']}"
            rows.append(_row("distance", point, record["value"], "1", None))
    return rows


def _row(metric: str, point: str, value: Any, unit: str, reason: Any) -> Dict[str, Any]:
    return {
        "metric": metric,
        "point": point,
        "x": None,
        "y": None,
        "value": value,
        "unit": unit,
        "reason": reason,
    }
