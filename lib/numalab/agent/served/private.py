"""A folder of a trial's own for its servers: its path is short enough for unix sockets (unix(7)).

It goes with the trial. What a trial that was killed left is removed by the next one: its lock is
then held by nobody.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile

from .dataset import Copies, Copy

_LONGEST = 70  # of its own path; sun_path has 108 bytes
_PREFIX = "numalab-served-"
_LOCK = "lock"


class PrivateFolder(Copies):
    """The folder; each server has one inside it, as its data directory where it needs no other."""

    def __init__(self) -> None:
        base = tempfile.gettempdir()
        if len(base) > _LONGEST - len(_PREFIX) - 10:
            base = "/tmp"
        _sweep(base)
        self.path = tempfile.mkdtemp(prefix=_PREFIX, dir=base)
        self.lock = os.open(os.path.join(self.path, _LOCK), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def of(self, name: object) -> str:
        """Return the folder of a server, by its number or name, made when it is not there."""
        path = os.path.join(self.path, str(name))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        return path

    def take(self, number: int = 0) -> Copy:
        """As of the base: an empty directory."""
        return Copy(self.of(number), "empty", 0, 0.0, os.dup(self.lock))

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def _sweep(base: str) -> None:
    for folder in glob.glob(os.path.join(glob.escape(base), _PREFIX + "*")):
        with contextlib.suppress(OSError):
            lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid != os.geteuid():
                    continue
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
