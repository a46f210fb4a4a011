"""The guard: a process that puts the host's settings back when the agent is killed and cannot.

It is forked off before the first change and holds the reading end of a pipe whose writing end only
the agent has. The kernel closes that end however the agent dies; then the guard restores what was
recorded and ends. When the agent finishes in order it says so first, and the guard just ends. It
sleeps in read(2) meanwhile and uses no CPU time. (A trial's processes have a guard of their own,
the warden of process.py.)
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Iterable, Optional

from ..errors import Fault
from . import host_changes, process


class Guard:
    """The agent's end of the pipe."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self._pipe: Optional[int] = pipe

    def dismiss(self) -> None:
        """Tell the guard that all is in order, and let it end."""
        if self._pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._pipe, b"done\n")
            os.close(self._pipe)
            self._pipe = None
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)


def start(record: Path, root: Path = Path("/"), keep_open: Iterable[int] = ()) -> Guard:
    """Fork the guard off and return the agent's end of it.

    ``record`` is the file of recorded changes (host_changes.py), ``root`` where they were made.
    ``keep_open`` are descriptors that live as long as the guard does (the lock: no other
    measurement may start on a host that is still changed). Returns when the guard is ready; Fault
    when it does not start.
    """
    reading, writing = os.pipe()
    up, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            process.become_helper(b"numalab-guard", {reading, ready, *keep_open})
            os.chdir("/")
            os.write(ready, b"r")
            os.close(ready)
            with os.fdopen(reading, "rb") as file:
                if file.read() != b"done\n":
                    with contextlib.suppress(Fault):  # the record stays, for `numalab restore`
                        host_changes.put_back(record, root)
        finally:
            os._exit(0)
    os.close(reading)
    os.close(ready)
    there = os.read(up, 1)
    os.close(up)
    if not there:
        raise Fault("the process that is to put the host's settings back did not start")
    return Guard(pid, writing)
