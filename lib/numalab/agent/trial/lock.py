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

from .. import kernel
from ..errors import Fault

LOCK = "numalab-measure"
_LOCK_WAIT_S = 15.0  # for the guard of an agent that was killed to finish its work


@contextlib.contextmanager
def measurement(name: str = LOCK) -> Iterator[int]:
    """Hold the lock; yield its descriptor. Fault, with the holder's pid, when another has it."""
    what = "another numalab measurement is running on this host"
    with named(name, what, _LOCK_WAIT_S, living_s=0.0) as mine:
        mine.listen(64)
        yield mine.fileno()


@contextlib.contextmanager
def named(
    name: str, why: str, dying_s: float = 2.0, living_s: float = 2.0
) -> Iterator[socket.socket]:
    """Hold the socket of a name, which tells its owner's pid once it listens.

    Another process that has it is waited for, ``living_s`` seconds while it is alive (it may be
    about to end), ``dying_s`` when only its guard or warden is still cleaning up. Then Fault with
    ``why``.
    """
    address = b"\0" + name.encode()
    began = time.monotonic()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mine:
        while True:
            try:
                mine.bind(address)
                break
            except OSError:
                owner = _living_holder(address)
                if time.monotonic() - began > (living_s if owner else dying_s):
                    raise Fault(
                        f"{why} (process {owner})" if owner else why,
                        "wait for it: two at once would measure each other",
                    ) from None
                time.sleep(0.05)
        yield mine


def _living_holder(address: bytes) -> int:
    """Return the pid of the process that listens at a socket's address (unix(7)).

    0 when it cannot be told, or is dead.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.setblocking(False)
        try:
            other.connect(address)
            credentials = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except OSError:
            return 0
    owner: int = struct.unpack("3i", credentials)[0]
    found = kernel.stat_of(f"/proc/{owner}")
    return owner if found and not found.ended else 0
