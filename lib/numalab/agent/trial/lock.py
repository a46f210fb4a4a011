"""One measurement at a time on a host: two would measure each other.

The lock is the name of an abstract socket (unix(7)): it outlives neither the processes that hold
it nor a reboot. It is per network namespace: containers with networks of their own do not see
each other's.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from typing import Iterator

from ..errors import Fault
from . import proof

LOCK = "numalab-measure"
_LOCK_WAIT_S = 15.0  # for the guard of an agent that was killed to finish its work


@contextlib.contextmanager
def measurement(name: str = LOCK) -> Iterator[int]:
    """Hold the lock; yield its descriptor. Fault, with the holder's pid, when another has it."""
    address = b"\0" + name.encode()
    deadline = time.monotonic() + _LOCK_WAIT_S
    mine = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        while True:
            try:
                mine.bind(address)
                break
            except OSError:
                owner = holder(address)
                # A dead agent's guard or warden is still cleaning up.
                if owner and not _lives(owner):
                    owner = 0
                if owner or time.monotonic() > deadline:
                    who = f" (process {owner})" if owner else ""
                    raise Fault(
                        f"another numalab measurement is running on this host{who}",
                        "wait for it: two at once would measure each other",
                    ) from None
                time.sleep(0.05)
        mine.listen(64)
        yield mine.fileno()
    finally:
        mine.close()


def holder(address: bytes) -> int:
    """Return the pid of the process that listens at a socket's address (unix(7)).

    0 when it cannot be told.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.setblocking(False)
        try:
            other.connect(address)
            credentials = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except OSError:
            return 0
    return struct.unpack("3i", credentials)[0]


def _lives(pid: int) -> bool:
    entry = proof.processes().get(pid)
    return entry is not None and entry.state not in "ZX"
