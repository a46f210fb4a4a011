"""The guard: a process that cleans up when the agent is killed and cannot.

It is forked off before the first trial and holds the reading end of a pipe whose writing end only
the agent has. The kernel closes that end however the agent dies; then the guard kills the trial's
processes, puts the host's settings back, and ends. When the agent finishes in order it says so
first, and the guard just ends. It sleeps in read(2) meanwhile and uses no CPU time.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
from pathlib import Path
from typing import List, NoReturn, Optional, Set, Tuple

from . import changes, placement, process
from .errors import Fault

_PR_SET_NAME = 15  # linux/prctl.h


class Guard:
    """The agent's end of the pipe."""

    def __init__(self, pid: int, pipe: int, token: str) -> None:
        self.pid = pid
        self.token = token
        self._pipe: Optional[int] = pipe

    def watch(self, pids: List[int]) -> bool:
        """Name the processes to kill, in place of those named before; False: the guard is gone."""
        among = placement.processes()
        return self._say({"watch": [[pid, among[pid].started] for pid in pids if pid in among]})

    def dismiss(self) -> None:
        """Tell the guard that all is in order, and let it end."""
        if self._pipe is not None:
            self._say({"done": True})
            os.close(self._pipe)
            self._pipe = None

    def _say(self, message: object) -> bool:
        assert self._pipe is not None
        line = json.dumps(message).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._pipe, line) :]
        except BrokenPipeError:
            return False
        return True


def start(
    token: str, record: Path, root: Path = Path("/"), keep_open: Optional[Set[int]] = None
) -> Guard:
    """Fork the guard off and return the agent's end of it.

    ``token`` marks the trial's processes (process.TOKEN), ``record`` is the file of recorded
    changes. ``keep_open`` are descriptors that live as long as the guard does (the lock: no other
    measurement may start before this one's remains are gone). Call it while the agent has one
    thread, and before process.adopt_orphans, else the agent becomes the guard's parent.
    """
    reading, writing = os.pipe()
    number_read, number_write = os.pipe()
    middle = os.fork()
    if middle == 0:
        os.setsid()
        guard = os.fork()
        if guard:
            os.write(number_write, str(guard).encode())
            os._exit(0)
        _guard(reading, token, record, root, keep_open or set())
    os.close(reading)
    os.close(number_write)
    os.waitpid(middle, 0)
    with os.fdopen(number_read) as file:
        pid = int(file.read())
    return Guard(pid, writing, token)


def _guard(pipe: int, token: str, record: Path, root: Path, keep_open: Set[int]) -> NoReturn:
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"numalab-guard", 0, 0, 0)
        os.chdir("/")
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):  # whoever reads the agent's output must not wait for the guard
            os.dup2(nothing, standard)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) != pipe and int(name) not in keep_open:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        watched, done = _listen(pipe)
        if not done:
            _kill(token, watched)
            with contextlib.suppress(Fault):  # the record stays, for `numalab restore`
                changes.restore(record, root)
    finally:
        os._exit(0)


def _listen(pipe: int) -> Tuple[Set[Tuple[int, int]], bool]:
    watched: Set[Tuple[int, int]] = set()
    done = False
    with os.fdopen(pipe, "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError):  # cut short by the agent's death
                message = json.loads(line)
                done = done or "done" in message
                watched = {(pid, start) for pid, start in message.get("watch", [])} or watched
    return watched, done


def _kill(token: str, watched: Set[Tuple[int, int]]) -> None:
    mark = f"{process.TOKEN}={token}".encode()

    def find() -> Set[int]:
        among = placement.processes()
        sessions = {pid for pid, start in watched}
        found = set()
        for pid, entry in among.items():
            if pid == os.getpid() or entry.state == "Z":
                continue
            # A session keeps its number reserved while it has members: no stranger can have it.
            if (pid, entry.started) in watched or entry.session in sessions or _has(pid, mark):
                found.add(pid)
        for pid in list(found):
            found.update(p for p in process.descendants(pid, among) if among[p].state != "Z")
        return found

    process.end(find, lambda found: None)


def _has(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False
