"""Any program of the user's own: wall time, exit status, CPU time and peak memory.

Nothing of its output is read. The trial engine writes what wait4(2) and the clock say of it as
one JSON record (raw kind ``rusage``), and that is what ``parse`` reads:

    {"schema": 1, "kind": "rusage", "wall_s": 1.5, "exit_status": 0 or null, "signal": null or 9,
     "max_rss_bytes": 1048576 or null, "max_rss_reason": null or "why", "user_s": 1.2,
     "system_s": 0.1, "minor_faults": 100, "major_faults": 0, "voluntary_switches": 1,
     "involuntary_switches": 2}

Times and faults are those of the whole process tree as far as it was waited for (getrusage(2),
RUSAGE_CHILDREN); ``max_rss_bytes`` is the largest single process. The record that ``parse``
returns is the same.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from typing import Any, Dict, List

from ..errors import Fault, ParseError

NAME = "command"
PROTOCOL = "sampled"
RAW = "rusage"

_OPTIONS = ("argv", "env", "need_bytes", "seconds")
_REALS = ("wall_s", "user_s", "system_s")
_COUNTS = ("minor_faults", "major_faults", "voluntary_switches", "involuntary_switches")
_OPTIONAL = ("exit_status", "signal", "max_rss_bytes")
_KEYS = {"schema", "kind", "max_rss_reason", *_REALS, *_COUNTS, *_OPTIONAL}


def find(options: Dict[str, Any]) -> Dict[str, Any]:
    """Return the program's path; its version is its own affair (null).

    Raises Fault when the program does not exist or may not be executed.
    """
    words = _argv(options)
    path = shutil.which(words[0])
    if path:
        return {"path": os.path.abspath(path), "version": None}
    where = os.path.expanduser(words[0])
    if os.path.isdir(where):
        raise Fault(f"{words[0]} is a directory, not a program", "name the program in it")
    if os.path.exists(where):
        raise Fault(f"{words[0]} may not be executed", f"chmod +x {words[0]}")
    if os.sep in words[0]:
        raise Fault(f"there is no program {words[0]}", "is the path right, seen from here?")
    raise Fault(
        f"there is no program named {words[0]} on PATH",
        f"write ./{words[0]} for one in this directory",
    )


def _argv(options: Dict[str, Any]) -> List[str]:
    words = options.get("argv")
    if not isinstance(words, (list, tuple)) or not words:
        raise Fault("no program is named", "write: numalab run command -- ./program argument")
    for word in words:
        if not isinstance(word, str) or "\0" in word:
            raise Fault(f"{word!r} cannot be a word of a command line", 'quote it: "10"')
    return list(words)


def prepare(
    options: Dict[str, Any], topology: Dict[str, Any], cpus: str, memory_nodes: str
) -> Dict[str, Any]:
    """Return the checked options; ``need_bytes`` is 0 unless the user says what it needs.

    ``env`` is added to the environment; ``seconds`` is about how long one run takes, for the
    estimate only. Raises Fault for an unknown or bad option.
    """
    for name in options:
        if name not in _OPTIONS:
            raise Fault(f"command has no option {name!r}", f"known: {', '.join(_OPTIONS)}")
    resolved: Dict[str, Any] = {"argv": _argv(options)}
    added = options.get("env") or {}
    if not isinstance(added, dict):
        raise Fault(f"env {added!r} is not a mapping", "write {OMP_NUM_THREADS: 8}")
    if added:
        resolved["env"] = {str(name): str(value) for name, value in added.items()}
        for name in resolved["env"]:
            if not name or "=" in name:
                raise Fault(f"env: {name!r} cannot be a variable's name", None)
    need = options.get("need_bytes", 0)
    if isinstance(need, bool) or not isinstance(need, int) or need < 0:
        raise Fault(f"need_bytes {need!r} is not a number of bytes", "leave it out if unknown")
    seconds = options.get("seconds", 0)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e7:
        raise Fault(f"seconds {seconds!r} is not a length of time", "leave it out if unknown")
    if seconds:
        resolved["seconds"] = seconds
    return {"options": resolved, "need_bytes": need, "notes": []}


def argv(found: Dict[str, Any], options: Dict[str, Any], cell: Dict[str, Any]) -> List[str]:
    """Return the program and its words, the program by the path that was found."""
    return [found["path"], *options["argv"][1:]]


def environment(options: Dict[str, Any], cell: Dict[str, Any]) -> Dict[str, str]:
    """Return what to add to the environment."""
    return dict(options.get("env") or {})


def timing(options: Dict[str, Any]) -> Dict[str, float]:
    """Return the planned seconds: 0, not known, unless the user says how long a run takes."""
    return {"setup_s": 0.0, "warmup_s": 0.0, "measure_s": float(options.get("seconds", 0))}


def parse(text: str) -> List[Dict[str, Any]]:
    """Return the one record; ParseError for anything else than what the engine writes."""
    rows = [(n, row) for n, row in enumerate(text.splitlines(), 1) if row.strip()]
    if len(rows) != 1:
        raise ParseError(NAME, 0, "", f"one record is expected, {len(rows)} are there")
    number, row = rows[0]

    def refuse(why: str) -> ParseError:
        return ParseError(NAME, number, row, why)

    try:
        record = json.loads(row)
    except (ValueError, RecursionError):
        raise refuse("this is not JSON") from None
    if not isinstance(record, dict) or record.get("kind") != "rusage":
        raise refuse("this is not a record of kind rusage")
    if record.get("schema") != 1:
        raise refuse(f"schema {record.get('schema')!r} is not known here (1 is)")
    if set(record) != _KEYS:
        raise refuse(f"keys are missing or unknown: {', '.join(sorted(_KEYS ^ set(record)))}")
    for key in (*_REALS, *_COUNTS, *_OPTIONAL):
        value = record[key]
        if value is None and key in _OPTIONAL:
            continue
        allowed = (int, float) if key in _REALS else (int,)
        good = isinstance(value, allowed) and not isinstance(value, bool)
        if not good or not (math.isfinite(value) and value >= 0):
            raise refuse(f"{key} is {value!r}")
    if (record["exit_status"] is None) == (record["signal"] is None):
        raise refuse("a program ends either with a status or by a signal")
    if record["max_rss_reason"] is not None and not isinstance(record["max_rss_reason"], str):
        raise refuse(f"max_rss_reason is {record['max_rss_reason']!r}")
    return [record]


def metrics(records: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Return wall_time, exit_status, CPU times (s), peak memory (B), faults and switches."""
    record = records[0]
    killed = f"it was killed by signal {record['signal']}" if record["signal"] else None
    rows = [
        ("wall_time", record["wall_s"], "s", None),
        ("exit_status", record["exit_status"], "", killed),
        ("user_time", record["user_s"], "s", None),
        ("system_time", record["system_s"], "s", None),
        ("max_rss", record["max_rss_bytes"], "B", record["max_rss_reason"] or "not known"),
        *((name, record[name], "", None) for name in _COUNTS),
    ]
    return [
        {
            "metric": name, "value": None if value is None else float(value), "unit": unit,
            "point": "", "x": None, "y": None, "reason": reason if value is None else None,
        }
        for name, value, unit, reason in rows
    ]  # fmt: skip
