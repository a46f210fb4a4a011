"""Prepared data sets, kept in a cache: made once, checked, kept pristine, used by copy.

The folder of a data set holds ``pristine/`` (a data directory that no trial ever starts a server
on), ``data.json`` (what it is, and the size of every file), and the working copies of the trials:
``work-0/`` …, each with a lock, and a mark ``work-0.clean`` as long as it is known to be as good as
new.

A data set is made in a folder of another name, which is renamed when it is whole and on the disk,
so that a preparation that is killed leaves nothing that could be taken for one. A working copy is
taken by hard work only where it must be: kept after an orderly end of a workload that only reads,
else made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional

from ..contract import SCHEMA, Reason, Tell, from_json, reason, to_json
from ..errors import Fault
from ..paths import cache_folder
from ..trial import events, journal, process
from .copying import FULL, copy_folder, sync

_NOTHING_BYTES = 32 << 20  # free on a disk that a server calls full
_ROOM_HINT = "free some space, or let XDG_CACHE_HOME name another disk"


class Copy(NamedTuple):
    """A data directory to work on; ``how``: reused, cloned (reflink) or copied."""

    datadir: str
    how: str
    bytes: int
    seconds: float
    lock: int  # held as long as its server lives


def environment() -> Dict[str, str]:
    """Return what a process needs to find this package: its folder, or the zipapp it is in."""
    return {"PYTHONPATH": str(Path(__file__).parents[3]), "PYTHONDONTWRITEBYTECODE": "1"}


class Copies:
    """Where the servers of a trial get their data directories: by number, from 0."""

    def take(self, number: int = 0) -> Copy:
        """Take a data directory; Fault when it cannot be had."""
        raise NotImplementedError

    def mark_clean(self, number: int = 0) -> None:
        """Note that its server ended well and wrote nothing."""


class DataSet(Copies):
    """One data set, whether it exists or not; a subclass says how it is filled and how large it is.

    ``kind`` is the folder below the cache, ``name`` that of the data set in it; ``module`` is what
    ``python -m`` starts with ``arguments`` to make it (see ``main``).
    """

    kind = ""
    module = ""

    def __init__(self, name: str) -> None:
        self.folder = cache_folder() / self.kind / name

    # --- what a kind of server says -----------------------------------------------------------

    def fill(self, datadir: Path, scratch: Path, tell: Tell) -> Dict[str, Any]:
        """Fill an empty data directory; return what is to be remembered of it."""
        raise NotImplementedError

    def arguments(self) -> str:
        """Return, as JSON, what makes this data set in another process."""
        raise NotImplementedError

    def description(self) -> Reason:
        """Return what it holds, and how long it takes to make."""
        raise NotImplementedError

    def disk_bytes(self, copies: int = 1) -> int:
        """Return the bytes on disk with so many working copies, estimated."""
        raise NotImplementedError

    # --- making it ----------------------------------------------------------------------------

    def record(self) -> Optional[Dict[str, Any]]:
        """Return what its folder holds, or None when there is no whole data set in it."""
        try:
            record = json.loads((self.folder / "data.json").read_text(encoding="utf-8"))
            if record["schema"] != SCHEMA:
                return None
            for name, size in record["files"].items():
                if (self.folder / "pristine" / name).stat().st_size != size:
                    return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return record  # type: ignore[no-any-return]

    def check_room(self) -> None:
        """Raise Fault when it is not there and its disk has no room for it."""
        need, free = self.disk_bytes(), free_bytes()
        if free < need and self.record() is None:
            raise Fault(
                reason("data-needs-disk", need=need, free=free, folder=str(cache_folder())),
                f"{_ROOM_HINT}, or ask for less data",
            )

    def ensure(self, tell: Tell, stopped: Callable[[], bool], lock: int) -> None:
        """Make it, unless it is there; return early when ``stopped``.

        A process of its own makes it, under a warden: however this one ends, nothing of it stays
        alive. ``tell`` gets progress events. Raises Fault with the reason when it cannot be made.
        """
        if self.record():
            return
        self.check_room()
        tell(events.progress(self.description()))
        command = [sys.executable, "-m", self.module, self.arguments()]
        with tempfile.TemporaryDirectory(prefix="numalab-") as scratch:
            out, err = Path(scratch) / "out", Path(scratch) / "err"
            child = process.start(
                command, stdout=out, stderr=err, env=environment(), keep_open={lock}
            )
            try:
                ended = _follow(child, out, tell, stopped)
            finally:
                left = child.end()
            if left:
                raise Fault(f"these processes cannot be killed: {left}", "look at the kernel's log")
            if ended and (ended["exit_status"] != 0 or not self.record()):
                said = err.read_text(errors="replace").strip().splitlines()
                raise Fault(
                    reason(
                        "data-not-made",
                        exit_status=ended["exit_status"],
                        signal=ended["signal"],
                        said=said[-1] if said else "",
                    )
                )

    def make(self, tell: Tell) -> None:
        """Make it in this process, whole or not at all."""
        parent = self.folder.parent
        parent.mkdir(parents=True, exist_ok=True)
        with _locked(parent / ".lock"):
            for old in parent.glob(".making-*"):
                shutil.rmtree(old)
            if self.record():
                return
            making = parent / f".making-{self.folder.name}"
            try:
                datadir, began = making / "pristine", time.monotonic()
                datadir.mkdir(parents=True, mode=0o700)
                record = self.fill(datadir, making, tell)
                sizes = {
                    str(path.relative_to(datadir)): path.stat().st_size
                    for path in sorted(datadir.rglob("*"))
                    if path.is_file()
                }
                took_s = round(time.monotonic() - began, 1)
                record.update(schema=SCHEMA, took_s=took_s, bytes=sum(sizes.values()), files=sizes)
                sync(making)
                journal.write_json(making / "data.json", record)
                if self.folder.exists():  # damaged, or of an older form
                    shutil.rmtree(self.folder)
                os.rename(making, self.folder)
                journal.sync_directory(parent)
            except Fault as fault:
                # A server may not say what it met: it may only call its directory unusable.
                nothing_free = shutil.disk_usage(parent).free < _NOTHING_BYTES
                if nothing_free and fault.reason.code != "no-disk-left-for-data":
                    raise disk_full(fault.what) from None
                raise
            finally:
                shutil.rmtree(making, ignore_errors=True)

    # --- using it -----------------------------------------------------------------------------

    def take(self, number: int = 0) -> Copy:
        """Take a working copy by its number, as it was or made anew; Fault when in use."""
        began = time.monotonic()
        work, mark = self.folder / f"work-{number}", self.folder / f"work-{number}.clean"
        try:
            lock = _lock(self.folder / f"work-{number}.lock")
        except BlockingIOError:
            why = reason("copy-in-use", folder=str(work))
            raise Fault(why, "wait until that has ended") from None
        try:
            how, size = "reused", 0
            if mark.exists() and work.is_dir():
                mark.unlink()
                journal.sync_directory(self.folder)  # from here on, it is not as new
            else:
                record = self.record()
                if record is None:
                    raise Fault(reason("no-data-set", folder=str(self.folder)), "run it again")
                cloned = copy_folder(self.folder / "pristine", work, record["files"])
                how, size = "cloned" if cloned else "copied", record["bytes"]
        except OSError as error:
            os.close(lock)
            why = reason("no-copy", error=error.strerror, file=str(error.filename or work))
            raise Fault(why, _room(error)) from None
        except BaseException:
            os.close(lock)
            raise
        return Copy(str(work), how, size, time.monotonic() - began, lock)

    def mark_clean(self, number: int = 0) -> None:
        """Note that a working copy is as good as new: its server ended well and wrote nothing."""
        (self.folder / f"work-{number}.clean").touch()


def main(data: Callable[[Mapping[str, Any]], DataSet], arguments: List[str]) -> int:
    """Make one data set; print progress as lines of JSON. The exit status is 0 when it is there."""
    try:
        data(json.loads(arguments[0])).make(events.say)
        return 0
    except Fault as fault:
        said = fault
    except OSError as error:
        why = f"{error.strerror}: {error.filename}"
        said = Fault(reason("data-not-made", exit_status=None, signal=None, said=why), _room(error))
    events.say({"event": "fault", **fault_event(said)})
    return 2


def fault_event(fault: Fault) -> Dict[str, Any]:
    """Return a fault as fields of an event: as data and in words."""
    return {"reason": to_json(fault.reason), "what": fault.what, "hint": fault.hint}


def _follow(
    child: process.Child, out: Path, tell: Tell, stopped: Callable[[], bool]
) -> Optional[Mapping[str, Any]]:
    """Pass progress on until the child has ended; return how, or None when ``stopped``.

    Raises Fault when it says one.
    """
    read = 0
    while True:
        ended = child.wait(time.monotonic() + 0.2)
        with open(out, "rb") as file:
            file.seek(read)
            whole = file.read().rpartition(b"\n")[0]
        read += len(whole) + 1 if whole else 0
        for line in whole.decode("utf-8", errors="replace").splitlines():
            event = json.loads(line)
            if event["event"] == "fault":
                raise Fault(from_json(Reason, event["reason"]), event["hint"])
            tell(event)
        if ended or stopped():
            return ended


def free_bytes() -> int:
    """Return the bytes that are free where the cache is, or will be."""
    folder = cache_folder()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def disk_full(said: str) -> Fault:
    """Return the fault of a disk that is full, with the words of whoever met it."""
    return Fault(reason("no-disk-left-for-data", said=said), _ROOM_HINT)


def _room(error: OSError) -> Optional[str]:
    return f"the disk is full: {_ROOM_HINT}" if error.errno in FULL else None


def _lock(path: Path) -> int:
    """Return the descriptor of a lock file that is held; BlockingIOError when another holds it."""
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        descriptor = _lock(path)
    except BlockingIOError:
        why = reason("data-being-made", folder=str(path.parent))
        raise Fault(why, "wait for its end") from None
    try:
        yield
    finally:
        os.close(descriptor)
