"""Open files: a session of a server is one, and a large host's clients have thousands."""

from __future__ import annotations

import contextlib
import os
import resource

from .. import kernel
from ..contract import reason
from ..errors import Fault

_MOST_FILES = "/proc/sys/fs/nr_open"


def most() -> int:
    """Return how many files a process of this user may open at once, the limit raised."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    host = kernel.integer(kernel.read_text(_MOST_FILES)) or 1 << 20
    return host if limit == resource.RLIM_INFINITY or os.geteuid() == 0 else min(limit, host)


def check(need: int, sessions: int) -> None:
    """Raise Fault where fewer than ``need`` files may be open: sessions would be refused."""
    limit = most()
    if need > limit:
        raise Fault(
            reason("too-few-open-files", need=need, sessions=sessions, limit=limit),
            f"raise the hard limit (ulimit -Hn, LimitNOFILE=) to {need}, or ask for fewer clients",
        )


def allow(need: int) -> None:
    """Let this process and those that it starts open ``need`` files, as far as the host lets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard):
        hard = max(need, soft)
    for wanted in ((max(soft, need), max(hard, need)), (min(max(soft, need), hard), hard)):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, wanted)
            return
