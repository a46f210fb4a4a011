"""The processes of a container that a measured command starts.

docker(1), nerdctl(1) and their like only ask an engine, which starts the container below a process
of its own (containerd-shim, or conmon of podman's), bound like the engine and not like the command.
Such a process that has come since the command began is taken for the command's, when it is the
only one.
"""

from __future__ import annotations

import os
from typing import List, Optional, Sequence, Set, Tuple

from .. import kernel
from ..contract import Reason, reason

ENGINES = ("ctr", "docker", "nerdctl", "podman")
_SHIMS = ("conmon", "containerd-shim")  # their names, of which the kernel keeps 15 bytes
_BEFORE = ("env", "sudo", "time")  # words that may stand before a command


def engine(argv: Sequence[str]) -> Optional[str]:
    """Return the name of the container engine that a command line asks, None where it asks none."""
    for word in map(os.path.basename, argv):
        if word in ENGINES:
            return word
        if word not in _BEFORE and "=" not in word:
            return None
    return None


class Started:
    """The containers that start after this object is made."""

    def __init__(self, name: str, proc: str = "/proc") -> None:
        self.name, self.proc = name, proc
        self.before = self._shims()

    def roots(self) -> Tuple[List[int], Optional[Reason]]:
        """Return the first processes of the container, or none and why."""
        new = self._shims() - self.before
        if len(new) > 1:
            return [], reason("several-containers", engine=self.name, number=len(new))
        shims = [pid for pid, _ in new]
        table = kernel.processes(self.proc).values()
        below = sorted(one.pid for one in table if one.parent in shims and not one.ended)
        return below, None if below else reason("container-not-seen", engine=self.name)

    def _shims(self) -> Set[Tuple[int, int]]:
        table = kernel.processes(self.proc).values()
        return {(stat.pid, stat.started) for stat in table if stat.name in _SHIMS}
