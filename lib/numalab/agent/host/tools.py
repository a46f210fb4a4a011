"""The programs that experiments use, as a run would find them on this host.

All are asked at the same time by processes that are killed with whatever they started when not
all have answered in time. Nothing is measured and nothing is compiled.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Callable, Dict, List, Mapping, NoReturn, Optional, Sequence, Tuple

from .. import kernel
from ..contract import Json, Reason, from_json, reason, to_json
from ..drivers import driver
from ..errors import Fault

_LIMIT_S = 1.0
_DRIVERS = ("mysql_server", "sysbench", "stream", "mlc")
_PERF_NEEDED = "hardware counters need it"
_COUNTING = 1 << 38 | 1 << 21  # CAP_PERFMON, CAP_SYS_ADMIN: uapi/linux/capability.h
_ALL_IDS = ["0", "0", "4294967295"]  # the uid_map of the first namespace (user_namespaces(7))
_HARDWARE_COUNTERS = re.compile(r"cpu\Z|cpu_|arm|cpum_cf\Z|.*pmu")  # names of PMUs in sysfs


@dataclass(frozen=True)
class Tool:
    """A program: whether it can be used, its version, and what is to be known of it."""

    name: str
    usable: bool
    version: Optional[str] = None
    why: Optional[Reason] = None


Question = Callable[[], Tool]
Questions = Callable[[], Mapping[str, Question]]


class Search:
    """The search for the tools of this host, and for ``more()``: from ``with`` to its end.

    Two processes ask: one makes the questions of ``more`` while the other's tools answer.
    """

    def __init__(self, more: Questions = dict) -> None:
        self._asked: Tuple[Questions, ...] = (_questions, more)
        self._pids: List[int] = []

    def __enter__(self) -> Search:
        self._reading, writing = os.pipe()
        for questions in self._asked:
            pid = os.fork()
            if pid == 0:
                _reply(writing, questions)
            self._pids.append(pid)
        os.close(writing)
        return self

    def answers(self, limit_s: float = _LIMIT_S) -> List[Tool]:
        """Return the tools; who has not answered in ``limit_s`` from now is said to be late."""
        names, tools = _answers(self._reading, time.monotonic() + limit_s)
        late = reason("no-answer-in-time", limit=limit_s)
        return [tools.get(name) or Tool(name, False, None, late) for name in names]

    def __exit__(self, *_: object) -> None:
        os.close(self._reading)
        for pid in self._pids:
            try:
                os.killpg(pid, signal.SIGKILL)
            except OSError:  # it ended, or has not yet made its group
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _questions() -> Dict[str, Question]:
    by_driver = {name: partial(_by_driver, name) for name in _DRIVERS}
    return {**by_driver, "numactl": _numactl, "compiler": _compiler, "perf": _perf}


def _reply(writing: int, questions: Questions) -> NoReturn:
    """Write a line of JSON with the names, then one for each tool as soon as it is known."""

    def tell(line: Mapping[str, Json]) -> None:
        os.write(writing, (json.dumps(line) + "\n").encode())

    def answer(name: str, question: Question) -> None:
        tell({"name": name, "tool": to_json(question())})

    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        asked = questions()
        tell({"asked": list(asked)})
        threads = [threading.Thread(target=answer, args=one) for one in asked.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        os._exit(0)


def _answers(reading: int, deadline: float) -> Tuple[List[str], Dict[str, Tool]]:
    """Read names and tools until the last one or the deadline."""
    data = b""
    while select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(reading, 65536)
        if not part:
            break
        data += part
    lines = [json.loads(line) for line in data.splitlines()]
    names = [*_questions(), *(name for line in lines for name in line.get("asked", ()))]
    tools = {line["name"]: from_json(Tool, line["tool"]) for line in lines if "tool" in line}
    return list(dict.fromkeys(names)), tools


def _by_driver(name: str) -> Tool:
    """What the driver of a tool finds: what a run would use."""
    try:
        found = driver(name).find({})
    except Fault as fault:
        return Tool(name, False, None, reason("tool-unusable", what=fault.what))
    version = str(found.facts.get("server") or found.version or "") or None
    return Tool(name, True, version, None if version else reason("version-in-results"))


def _numactl() -> Tool:
    # Before 2.0.19 it knows no --version.
    queries = (["dpkg-query", "-W", "-f", "${Version}"], ["rpm", "-q", "--qf", "%{VERSION}"])
    asked = [[*query, "numactl"] for query in queries]
    return _program("numactl", [["numactl", "--version"], *asked], "the host experiment asks it")


def _compiler() -> Tool:
    asked = shlex.split(os.environ.get("CC", ""))[:1]
    there = [name for name in asked or ["cc", "gcc", "clang"] if shutil.which(name)]
    name = there[0] if there else "compiler"
    return _program(name, [[name, "--version"]], "the probe is built with it")


def _perf() -> Tool:
    found = _program("perf", [["perf", "--version"]], _PERF_NEEDED)
    if not found.usable:
        return found
    usable, why = perf_use()
    return Tool(found.name, usable, found.version, why)


def perf_use(root: str = "") -> Tuple[bool, Optional[Reason]]:
    """Return whether perf may count here, and what it cannot (admin-guide/perf-security.rst)."""
    level = kernel.read_int(f"{root}/proc/sys/kernel/perf_event_paranoid")
    if level is None:
        return False, reason("no-performance-events")
    if level > 2 and not _may_always_count(root):
        return False, reason("perf-not-permitted", level=level)
    units = kernel.list_folder(f"{root}/sys/bus/event_source/devices")
    if not any(_HARDWARE_COUNTERS.match(unit) for unit in units):
        return True, reason("software-events-only")
    return True, None


def _may_always_count(root: str) -> bool:
    """Tell of perfmon_capable(): CAP_PERFMON or CAP_SYS_ADMIN, and in no user namespace."""
    status = kernel.status(kernel.read_text(f"{root}/proc/self/status"))
    ids = (kernel.read_text(f"{root}/proc/self/uid_map") or "").split()
    return bool(int(status.get("CapEff", "0"), 16) & _COUNTING) and ids == _ALL_IDS


def missing(counters: bool, forbidden: Mapping[str, Reason]) -> List[Reason]:
    """Return what a run here will lack beside bindings, ``forbidden`` as kernel.forbidden_calls.

    ``counters``: whether hardware counters are asked for.
    """
    found = []
    if "move_pages" in forbidden:
        found.append(reason("no-proof-of-buffers", why=forbidden["move_pages"]))
    if counters:
        usable, why = perf_use()
        if not shutil.which("perf"):
            why = reason("not-on-path", program="perf", needed=_PERF_NEEDED)
        elif usable and "perf_event_open" in forbidden:
            why = forbidden["perf_event_open"]
        if why:
            found.append(reason("counters-missing", why=why))
    return found


def _program(name: str, queries: Sequence[List[str]], needed: str) -> Tool:
    """A program on PATH, its version by the first query that tells one."""
    if not shutil.which(name):
        return Tool(name, False, None, reason("not-on-path", program=name, needed=needed))
    for query in queries:
        if shutil.which(query[0]):
            done = subprocess.run(
                query, capture_output=True, env={**os.environ, "LC_ALL": "C"}, check=False
            )
            # Without what distributions put in brackets: gcc (Debian 12.2.0-1) 12.2.1.
            said = re.sub(r"\([^)]*\)", "", done.stdout.decode("utf-8", "replace"))
            version = re.search(r"\d+\.\d+(?:\.\d+)*", said)
            if version and not done.returncode:
                return Tool(name, True, version.group(0))
    return Tool(name, True, None, reason("version-unknown"))
