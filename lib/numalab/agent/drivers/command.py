"""Any program of the user's own: wall time, exit status, CPU time and peak memory.

Nothing of its output is read. The trial engine writes what wait4(2) and the clock say of it as
one JSON record (raw kind ``rusage``), a ``Usage``; its fields, and ``kind`` and ``schema``, are the
record that ``parse`` returns.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .. import paths
from ..contract import (
    SCHEMA,
    Cell,
    Driver,
    Host,
    Prepared,
    Record,
    Row,
    Timing,
    ToolRecord,
    from_json,
    reason,
    to_json,
)
from ..errors import Fault, ParseError
from ..rows import row
from . import containers
from . import options as check
from .options import Options

_OPTIONS = ("argv", "env", "need_bytes", "seconds")
_COUNTS = ("minor_faults", "major_faults", "voluntary_switches", "involuntary_switches")


@dataclass(frozen=True)
class Usage:
    """What the kernel says of an ended program.

    Times and faults are those of the whole process tree as far as it was waited for
    (getrusage(2), RUSAGE_CHILDREN); ``max_rss_bytes`` is the largest single process.
    """

    schema: int
    kind: str  # rusage
    wall_s: float
    exit_status: Optional[int]  # None where a signal ended it
    signal: Optional[int]
    max_rss_bytes: Optional[int]
    max_rss_reason: Optional[str]  # in words
    user_s: float
    system_s: float
    minor_faults: int
    major_faults: int
    voluntary_switches: int
    involuntary_switches: int


class Command(Driver):
    """Any program."""

    name = "command"
    output = "rusage"

    def find(self, options: Options) -> ToolRecord:
        """Return the program's path; its version is its own affair (None).

        Raises Fault when the program does not exist or may not be executed.
        """
        word = paths.here(_words(options)[0])
        path = shutil.which(word)
        if path:
            return ToolRecord(self.name, None, os.path.abspath(path))
        if os.path.isdir(word):
            raise Fault(f"{word} is a directory, not a program", "name the program in it")
        if os.path.exists(word):
            raise Fault(
                f"{word} is not a program that you may execute",
                "name a program, or a script's interpreter before it: python3 script.py",
            )
        if os.sep in word:
            raise Fault(f"there is no program {word}", "is the path right, seen from here?")
        raise Fault(
            f"there is no program named {word} on PATH",
            f"write ./{word} for one in this directory",
        )

    def prepare(self, options: Options, host: Host, cpus: str, memory_nodes: str) -> Prepared:
        """Return the checked options; ``need_bytes`` is 0 unless the user says what it needs.

        ``env`` is added to the environment; ``seconds`` is about how long one run takes, for the
        estimate only. Raises Fault for an unknown or bad option.
        """
        check.known(self.name, options, _OPTIONS)
        resolved: Dict[str, Any] = {"argv": _words(options)}
        added = options.get("env") or {}
        if not isinstance(added, Mapping):
            raise Fault(f"env {added!r} is not a mapping", "write {OMP_NUM_THREADS: 8}")
        for name in map(str, added):
            if not name or "=" in name:
                raise Fault(f"env: {name!r} cannot be a variable's name")
        if added:
            resolved["env"] = {str(name): str(value) for name, value in added.items()}
        if options.get("seconds"):
            resolved["seconds"] = check.seconds("seconds", options["seconds"], 0, 1e7)
        engine = containers.engine(resolved["argv"])
        where = {"engine": engine, "cpus": cpus, "nodes": memory_nodes}
        return Prepared(
            resolved,
            check.size("need_bytes", options.get("need_bytes", 0), least=0),
            (reason("engine-starts-it", **where),) if engine else (),
        )

    def argv(self, found: ToolRecord, options: Options, cell: Cell) -> List[str]:
        """Return the program and its words, the program by the path that was found."""
        return [str(found.path), *map(paths.here, options["argv"][1:])]

    def environment(self, options: Options, cell: Cell) -> Dict[str, str]:
        return {name: paths.here(v) for name, v in (options.get("env") or {}).items()}

    def timing(self, options: Options) -> Timing:
        """Return the planned seconds: 0, not known, unless the user says how long a run takes."""
        return Timing(measure_s=float(options.get("seconds", 0)))

    def parse(self, text: str) -> List[Record]:
        """Return the one record; ParseError for anything else than what the engine writes."""
        lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
        if len(lines) != 1:
            raise ParseError(self.name, 0, "", f"one record is expected, {len(lines)} are there")
        number, line = lines[0]
        try:
            usage = from_json(Usage, json.loads(line))
        except (ValueError, RecursionError):
            raise ParseError(self.name, number, line, "this is not JSON") from None
        except Fault as fault:
            raise ParseError(self.name, number, line, fault.what) from None
        record: Record = to_json(usage)
        negative = [k for k, v in record.items() if isinstance(v, (int, float)) and v < 0]
        if usage.kind != "rusage" or usage.schema != SCHEMA or negative:
            why = f"{negative[0]} is below 0" if negative else f"no rusage of schema {SCHEMA}"
            raise ParseError(self.name, number, line, why)
        if (usage.exit_status is None) == (usage.signal is None):
            why = "a program ends either with a status or by a signal"
            raise ParseError(self.name, number, line, why)
        return [record]

    def metrics(self, records: Sequence[Record]) -> List[Row]:
        """Return wall_time, exit_status, CPU times (s), peak memory (B), faults and switches."""
        record = records[0]
        return [
            row("wall_time", record["wall_s"], "s"),
            row("exit_status", record["exit_status"], "",
                reason("killed-by-signal", signal=record["signal"])),
            row("user_time", record["user_s"], "s"),
            row("system_time", record["system_s"], "s"),
            row("max_rss", record["max_rss_bytes"], "B", "peak-memory-unknown"),
            *(row(name, record[name], "") for name in _COUNTS),
        ]  # fmt: skip


def _words(options: Options) -> List[str]:
    words = options.get("argv")
    if not isinstance(words, (list, tuple)) or not words:
        raise Fault("no program is named", "write: numalab run command -- ./program argument")
    for word in words:
        if not isinstance(word, str) or "\0" in word:
            raise Fault(f"{word!r} cannot be a word of a command line", 'quote it: "10"')
    return list(words)
