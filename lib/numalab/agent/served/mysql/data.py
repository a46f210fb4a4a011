"""Prepared data sets, kept in a cache: made once, checked, kept pristine, used by copy.

A data set belongs to one server's vendor and version, a number of tables and their rows. Its
folder holds ``pristine/`` (a data directory that no trial ever starts a server on), ``data.json``
(what it is, and the size of every file), and the working copies of the trials: ``work-0/`` …, each
with a lock, and a mark ``work-0.clean`` as long as it is known to be as good as new.

A data set is made in a folder of another name, which is renamed when it is whole and on the disk,
so that a preparation that is killed leaves nothing that could be taken for one. A working copy is
taken by hard work only where it must be: kept after an orderly end of a workload that only reads,
cloned where the file system can (ioctl_ficlone(2)), else copied.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

from ... import SCHEMA
from ...errors import Fault
from ...trial import journal, process
from . import server as servers
from . import wire

DATABASE = "sbtest"
ROW_BYTES = 250  # of a row of sysbench's table with both its indexes, in a large table; measured
_TABLE_BYTES = 8 << 20  # of a table beside its rows, at most
_BASE_BYTES = 256 << 20  # of an empty server with its redo log
_ROWS_A_SECOND = 60_000  # that a thread of sysbench prepares; for estimates only
_MOST_LOADERS = 8
_NOTHING_BYTES = 32 << 20  # free on a disk that a server calls full
_FICLONE = 0x40049409  # linux/fs.h
_WORTH_SYNCING = 1 << 20  # bytes of a file
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ROOM_HINT = "free some space, or let XDG_CACHE_HOME name another disk"

Tell = Callable[[Dict[str, Any]], None]


def cache_folder() -> Path:
    """Return the folder of data sets: under XDG_CACHE_HOME, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "numalab" / "mysql"


def place(server: servers.Server, options: Dict[str, Any]) -> Path:
    """Return the folder of the data set that options ask for, whether it exists or not."""
    vendor = server.vendor.replace(" ", "-").lower()
    return cache_folder() / f"{vendor}-{server.version}-{options['tables']}x{options['rows']}"


def table_bytes(options: Dict[str, Any]) -> int:
    """Return the bytes of the tables, estimated: what the buffer pool must hold."""
    return int(options["tables"]) * (int(options["rows"]) * ROW_BYTES + _TABLE_BYTES)


def disk_bytes(options: Dict[str, Any], copies: int = 1) -> int:
    """Return the bytes on disk, estimated: pristine, the copies to work on, the log of a load."""
    return (1 + copies) * (table_bytes(options) + _BASE_BYTES) + (1 << 30)


def load_s(options: Dict[str, Any]) -> float:
    """Return the seconds that preparing takes, estimated."""
    loaders = min(options["tables"], os.cpu_count() or 1, _MOST_LOADERS)
    return 10.0 + options["tables"] * options["rows"] / (_ROWS_A_SECOND * loaders)


def free_bytes() -> int:
    """Return the bytes that are free where the cache is, or will be."""
    folder = cache_folder()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def known(folder: Path) -> Optional[Dict[str, Any]]:
    """Return what a data set's folder holds, or None when there is no whole data set in it."""
    try:
        record = json.loads((folder / "data.json").read_text(encoding="utf-8"))
        if record["schema"] != SCHEMA:
            return None
        for name, size in record["files"].items():
            if (folder / "pristine" / name).stat().st_size != size:
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record  # type: ignore[no-any-return]


# --- making it --------------------------------------------------------------------------------


def ensure(
    found: Dict[str, Any],
    options: Dict[str, Any],
    tell: Tell,
    stopped: Callable[[], bool],
    lock: int,
) -> None:
    """Make the data set that options ask for, unless it is there; return early when ``stopped``.

    A process of its own makes it, under a warden: however this one ends, nothing of it stays
    alive. ``tell`` gets progress events. Raises Fault with the reason when it cannot be made.
    """
    server = servers.find(found["path"])
    folder = place(server, options)
    if known(folder):
        return
    rows, tables = options["rows"], options["tables"]
    need, free = disk_bytes(options), free_bytes()
    what = f"{tables * rows:,} rows in {tables} tables for {server.title}"
    if free < need:
        raise Fault(
            f"the data set ({what}) needs about {gigabytes(need)} in {cache_folder()}, where "
            f"{gigabytes(free)} are free",
            _ROOM_HINT,
        )
    tell(_progress(f"preparing {what}, once: about {load_s(options):.0f} s", None))
    command = [sys.executable, "-m", __name__, json.dumps({"found": found, "options": options})]
    with tempfile.TemporaryDirectory(prefix="numalab-") as scratch:
        out, err = Path(scratch) / "out", Path(scratch) / "err"
        child = process.start(
            command, stdout=out, stderr=err, env=environment(), keep_open={lock}
        )
        try:
            fault, read = None, 0
            while True:
                ended = child.wait(time.monotonic() + 0.2)
                with open(out, "rb") as file:
                    file.seek(read)
                    whole = file.read().rpartition(b"\n")[0]
                read += len(whole) + 1 if whole else 0
                for line in whole.decode("utf-8", errors="replace").splitlines():
                    event = json.loads(line)
                    if event["event"] == "fault":
                        fault = Fault(event["what"], event["hint"])
                    else:
                        tell(event)
                if ended or stopped():
                    break
        finally:
            left = child.end()
        if left:
            raise Fault(f"these processes cannot be killed: {left}", "look at the kernel's log")
        if fault:
            raise fault
        if ended and (ended["exit_status"] != 0 or not known(folder)):
            said = err.read_text(errors="replace").strip().splitlines()
            status = ended["exit_status"] if ended["signal"] is None else f"{-ended['signal']}"
            why = f": {said[-1]}" if said else ""
            raise Fault(f"the data set could not be prepared (exit status {status}){why}")


def environment() -> Dict[str, str]:
    """Return what a process needs to find this package: its folder, or the zipapp it is in."""
    return {"PYTHONPATH": str(Path(__file__).parents[4]), "PYTHONDONTWRITEBYTECODE": "1"}


def main(arguments: List[str]) -> int:
    """Make one data set; print progress as lines of JSON."""

    def tell(event: Dict[str, Any]) -> None:
        print(json.dumps(event, ensure_ascii=False), flush=True)

    asked = json.loads(arguments[0])
    try:
        make(asked["found"], asked["options"], tell)
    except Fault as fault:
        tell({"event": "fault", "what": fault.what, "hint": fault.hint})
        return 2
    except OSError as error:
        what = f"the data set could not be prepared: {error.strerror}: {error.filename}"
        tell({"event": "fault", "what": what, "hint": _room(error)})
        return 2
    return 0


def make(found: Dict[str, Any], options: Dict[str, Any], tell: Tell) -> None:
    """Make the data set that options ask for, whole or not at all."""
    server = servers.find(found["path"])
    folder = place(server, options)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / ".lock", "is preparing a data set"):
        for old in folder.parent.glob(".making-*"):
            shutil.rmtree(old)
        if known(folder):
            return
        making = folder.parent / f".making-{folder.name}"
        try:
            record = _make(server, found, options, making, tell)
            _sync(making)
            journal.write_json(making / "data.json", record)
            if folder.exists():  # damaged, or of an older form
                shutil.rmtree(folder)
            os.rename(making, folder)
            journal.sync_directory(folder.parent)
        except Fault as fault:
            # A server does not always say what it met: it may only call its directory unusable.
            if shutil.disk_usage(folder.parent).free < _NOTHING_BYTES and "full" not in str(fault):
                raise Fault(f"the disk is full: {fault.what}", _ROOM_HINT) from None
            raise
        finally:
            shutil.rmtree(making, ignore_errors=True)


def _make(
    server: servers.Server, found: Dict[str, Any], options: Dict[str, Any], making: Path, tell: Tell
) -> Dict[str, Any]:
    began = time.monotonic()
    datadir = making / "pristine"
    datadir.mkdir(parents=True, mode=0o700)
    tables, rows = int(options["tables"]), int(options["rows"])
    loaders = min(tables, os.cpu_count() or 1, _MOST_LOADERS)
    loading = {
        "tables": tables, "clients": loaders, "writes": True, "innodb_numa_interleave": "OFF",
        "pool_bytes": min(options["pool_bytes"], 1 << 30),
    }  # fmt: skip
    tell(_progress(f"making a data directory for {server.title}", None))
    servers.initialise(server, str(datadir), str(making / "initialise.log"))
    with _server(server, datadir, loading, {"innodb_flush_log_at_trx_commit": 0}) as running:
        with running.connect() as session:
            session.query(f"CREATE DATABASE {DATABASE}")
        _load(found["sysbench"], options, running, loaders, making, tell)
    # As the trials will start it, and with everything merged and purged at its end.
    trial = {**loading, "writes": False}
    own = {"innodb_fast_shutdown": 0}
    with _server(server, datadir, trial, own) as running, running.connect() as session:
        for number in range(1, tables + 1):
            tell(_progress(f"checking table {number} of {tables}", None))
            _check_table(session, f"{DATABASE}.sbtest{number}", rows)
    for name in (servers.LOG, servers.CONFIG, "ib_buffer_pool"):
        with contextlib.suppress(FileNotFoundError):
            (datadir / name).unlink()
    (making / "initialise.log").unlink()
    files = {
        str(path.relative_to(datadir)): path.stat().st_size
        for path in sorted(datadir.rglob("*"))
        if path.is_file()
    }
    return {
        "schema": SCHEMA,
        "server": server.title,
        "build": server.build,
        "sysbench": found["sysbench_version"],
        "tables": tables,
        "rows": rows,
        "bytes": sum(files.values()),
        "took_s": round(time.monotonic() - began, 1),
        "files": files,
    }


@contextlib.contextmanager
def _server(
    server: servers.Server, datadir: Path, options: Dict[str, Any], own: Dict[str, Any]
) -> Iterator[servers.Running]:
    """A running server with these settings; it is shut down at the end, or killed on a failure."""
    chosen = {**servers.settings(server, options), **{k: str(v) for k, v in own.items()}}
    (datadir / servers.CONFIG).write_text(servers.config_text(server, chosen))
    running = servers.Running(server, str(datadir))
    try:
        running.wait_until_it_answers()
        yield running
        running.stop(limit_s=3600)
    finally:
        running.kill()


def _load(
    sysbench: str,
    options: Dict[str, Any],
    running: servers.Running,
    loaders: int,
    making: Path,
    tell: Tell,
) -> None:
    command = [
        sysbench, "oltp_read_write", f"--mysql-socket={servers.SOCKET}", "--mysql-user=root",
        f"--mysql-db={DATABASE}", f"--tables={options['tables']}",
        f"--table-size={options['rows']}", f"--threads={loaders}", "--rand-seed=1",
        "--rand-type=uniform", "prepare",
    ]  # fmt: skip
    output = making / "load.log"
    began, expected = time.monotonic(), table_bytes(options)
    what = f"loading {options['tables'] * options['rows']:,} rows"
    with open(output, "wb") as file:
        loader = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=running.datadir,
            preexec_fn=servers.die_with_parent(),
        )  # fmt: skip
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    loader.wait(1.0)
                    break
                running.check_alive("while it was loaded")
                loaded = sum(
                    path.stat().st_size for path in Path(running.datadir, DATABASE).glob("*.ibd")
                )
                share = min(0.99, loaded / expected)
                spent = time.monotonic() - began
                left = spent / share - spent if share > 0.05 else None
                tell(_progress(what, share, left))
        finally:
            loader.kill()
            loader.wait()
    if loader.returncode:
        text = output.read_text(errors="replace")
        lines = [line for line in text.splitlines() if line.startswith(("FATAL", "ALERT"))]
        said = (lines or text.strip().splitlines() or [""])[0][:300]
        full = re.search(r"is full|[Ee]rrcode: 28|error 28\b|No space left", text)
        hint = servers.out_of_space(running.log) or ("the disk is full: " if full else "")
        running.check_alive("while it was loaded")
        if hint:
            raise Fault(
                f"the disk is full: the data set does not fit into {cache_folder()} ({said})",
                _ROOM_HINT,
            )
        raise Fault(f"sysbench could not fill the tables: {said}", None)
    output.unlink()


def _check_table(session: wire.Connection, table: str, rows: int) -> None:
    counted = session.query(f"SELECT COUNT(*) FROM {table}")[0][0]
    if counted != str(rows):
        raise Fault(f"{table} has {counted} rows instead of {rows} after it was loaded", None)
    said = session.query(f"CHECK TABLE {table}")
    if not said or said[-1][-1] != "OK":
        words = "; ".join(str(row[-1]) for row in said)
        raise Fault(f"{table} is damaged after it was loaded: {words}", "check the disk")


def _progress(text: str, share: Optional[float], left_s: Optional[float] = None) -> Dict[str, Any]:
    return {
        "event": "progress",
        "text": text,
        "share": None if share is None else round(share, 3),
        "left_s": None if left_s is None else round(left_s, 1),
    }


# --- using it ---------------------------------------------------------------------------------


class Copy(NamedTuple):
    """A data directory to work on; ``how``: reused, cloned (reflink) or copied."""

    datadir: str
    how: str
    bytes: int
    seconds: float
    lock: int  # held as long as its server lives


def take(folder: Path, number: int = 0) -> Copy:
    """Take a data set's working copy by its number, as it was or made anew; Fault when in use."""
    began = time.monotonic()
    work, mark = folder / f"work-{number}", folder / f"work-{number}.clean"
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    lock = os.open(str(folder / f"work-{number}.lock"), flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        how, size = "reused", 0
        if mark.exists() and work.is_dir():
            mark.unlink()
            journal.sync_directory(folder)  # whatever happens from here on, it is not as new
        else:
            how, size = _copy(folder, work)
    except BlockingIOError:
        os.close(lock)
        raise Fault(
            f"the working copy {work} is in use by another server", "wait until that has ended"
        ) from None
    except OSError as error:
        os.close(lock)
        raise Fault(
            f"no working copy of the data set: {error.strerror} ({error.filename or work})",
            _room(error),
        ) from None
    except BaseException:
        os.close(lock)
        raise
    return Copy(str(work), how, size, time.monotonic() - began, lock)


def is_clean(folder: Path, number: int = 0) -> None:
    """Note that a working copy is as good as new: its server ended in order and wrote nothing."""
    (folder / f"work-{number}.clean").touch()


def _copy(folder: Path, work: Path) -> tuple:
    record = known(folder)
    if record is None:
        raise Fault(f"{folder} holds no whole data set", "run it again: it is prepared anew")
    part = work.with_name(f".{work.name}.part")
    for old in (part, work):
        if old.exists():
            shutil.rmtree(old)
    part.mkdir(mode=0o700)
    clone = True
    try:
        for name in record["files"]:
            (part / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            clone = _copy_file(folder / "pristine" / name, part / name, clone)
        for directory in (folder / "pristine").rglob("*"):  # those that hold no file
            if directory.is_dir():
                (part / directory.relative_to(folder / "pristine")).mkdir(
                    parents=True, exist_ok=True, mode=0o700
                )
        os.rename(part, work)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return ("cloned" if clone else "copied"), record["bytes"]


def _copy_file(source: Path, target: Path, clone: bool) -> bool:
    """Copy one file, holes left out; tell whether the file system cloned it."""
    from_ = os.open(str(source), os.O_RDONLY)
    to = os.open(str(target), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        size = os.fstat(from_).st_size
        if clone:
            try:
                fcntl.ioctl(to, _FICLONE, from_)
                return True
            except OSError as error:
                if error.errno in _FULL:
                    raise
        at = 0
        while at < size:
            try:
                start = os.lseek(from_, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # a hole up to the end
                    break
                raise
            at = os.lseek(from_, start, os.SEEK_HOLE)
            os.lseek(from_, start, os.SEEK_SET)
            os.lseek(to, start, os.SEEK_SET)
            while start < at:
                start += os.sendfile(to, from_, None, min(at - start, 1 << 24))
        os.ftruncate(to, size)
        # What is still to be written would be written while it is measured, and what stays in the
        # page cache takes the place of the server's memory on one node.
        if size >= _WORTH_SYNCING:
            os.fsync(to)
        for descriptor in (from_, to):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return False
    except OSError as error:
        error.filename = error.filename or str(target)
        raise
    finally:
        os.close(from_)
        os.close(to)


@contextlib.contextmanager
def locked(path: Path, doing: str) -> Iterator[int]:
    """Hold a lock file; Fault when another process does."""
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Fault(f"another process {doing} ({path.parent})", "wait for its end") from None
        yield descriptor
    finally:
        os.close(descriptor)


def _sync(folder: Path) -> None:
    """Wait until the disk has everything below a folder, and let the page cache forget it."""
    descriptor = os.open(str(folder), os.O_RDONLY)
    try:
        # One call for the file system (syncfs(2)): hundreds of fsync(2) take many times as long.
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(descriptor)
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(str(path), os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def _room(error: OSError) -> Optional[str]:
    return f"the disk is full: {_ROOM_HINT}" if error.errno in _FULL else None


def gigabytes(size: int) -> str:
    """Return a number of bytes in words: 1.2 GiB."""
    return f"{size / 2**30:.1f} GiB"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
