"""Durable files of a run: the journal, JSON written in one piece, raw output as gzip.

What is on disk after a crash is either the old or the new content, never a mixture: JSON and
gzip files are written beside their place and renamed (rename(2) is atomic), and the journal is
only appended to, one fsync per line. A full disk is a Fault that leaves earlier content intact.

The journal's lines are a chain: each holds, as ``previous``, the SHA-256 of the bytes of the line
before (without its line feed), the first an empty text. A line that was changed, removed or put
in between breaks it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gzip
import hashlib
import json
import os
import shutil
import stat
from pathlib import Path
from typing import IO, Any, Callable, Dict, Iterator, List, Optional, Tuple, Type, Union

from ..contract import SCHEMA, Reason, T, TrialRecord, dumps, from_json, reason, to_json
from ..errors import Fault

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MOST_BYTES = 256 << 20  # of one file that is read whole
_FROM_A_COPY = "restore it from a copy, or measure again into a new directory"


class DiskFull(Fault):
    """No space left for what must be written."""


class CannotComplete(Fault):
    """A run that cannot be completed any more: only a new one can be measured."""

    STATUS = 3  # with which the agent's command ends

    def __init__(self, what: Union[str, Reason], hint: str = _FROM_A_COPY) -> None:
        super().__init__(what, hint)


# --- writing ----------------------------------------------------------------------------------


@contextlib.contextmanager
def space_needed(path: Union[str, Path]) -> Iterator[None]:
    """Turn "no space left" (or quota or file-size limit reached) inside the block into DiskFull."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        raise DiskFull(
            reason("disk-full", path=str(path), why=os.strerror(error.errno)),
            "what was measured before is intact; free some space, then resume the run",
        ) from None


def check_space(folder: Path) -> None:
    """Raise DiskFull where nothing more can be written: a tool that cannot answer only waits."""
    found = os.statvfs(folder)
    free = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    with space_needed(folder):
        if found.f_blocks and not free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def sync_directory(folder: Path) -> None:
    """Make the names inside a directory durable (fsync(2), "does not necessarily ensure...")."""
    descriptor = os.open(str(folder), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(path: Path, fill: Callable[[IO[bytes]], Any]) -> None:
    temporary = path.parent / f".{path.name}.part"
    with space_needed(path):
        try:
            with open(temporary, "wb") as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_directory(path.parent)


def write_json(path: Path, data: Any) -> None:
    """Write values of the contract, or plain JSON, so that a crash leaves the old or the new file.

    Fault on a full disk.
    """
    text = json.dumps(to_json(data), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    # Half a pair of surrogates, of a path that is no UTF-8, becomes JSON's own escape of it.
    _replace(path, lambda file: file.write(text.encode("utf-8", "backslashreplace")))


def write_gzip(path: Path, source: Union[bytes, Path]) -> str:
    """Write bytes, or the content of a file, as gzip; return the SHA-256 of the .gz file in hex.

    The same content gives the same bytes: no time and no name go into the gzip header (RFC
    1952). Fault on a full disk.
    """

    def fill(file: IO[bytes]) -> None:
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
            if isinstance(source, bytes):
                packed.write(source)
            else:
                with open(source, "rb") as plain:
                    shutil.copyfileobj(plain, packed, 1 << 20)

    _replace(path, fill)
    return sha256(path)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


# --- reading ----------------------------------------------------------------------------------


def _read_bytes(path: Path) -> bytes:
    """Return the content of a regular file; Fault for anything else, and for an endless one.

    FileNotFoundError when there is none.
    """
    try:
        # Opening a FIFO must not wait for somebody to write into it.
        descriptor = os.open(str(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise Fault(f"{path} is no regular file", "restore it from a copy")
            if found.st_size > _MOST_BYTES:
                raise Fault(f"{path} has {found.st_size:,} bytes, more than such a file can have")
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Fault(f"{path} cannot be read: {error.strerror}", "restore it from a copy") from None


def read_json(path: Path) -> Dict[str, Any]:
    """Return one of our JSON files; Fault when missing, damaged or of another schema."""
    try:
        data = json.loads(_read_bytes(path).decode("utf-8"))
    except FileNotFoundError:
        raise Fault(f"{path} is missing") from None
    except (ValueError, RecursionError) as error:
        raise Fault(f"{path} cannot be read: {error}", "restore it from a copy") from None
    return _of_this_schema(data, str(path))


def load(kind: Type[T], path: Path) -> T:
    """Return one of our JSON files as a class of the contract; Fault as ``read_json``."""
    return from_json(kind, read_json(path), str(path))


def checked(kind: Type[T], data: Any, where: str) -> T:
    """Return JSON as a class of the contract; Fault for another schema and as ``from_json``."""
    return from_json(kind, _of_this_schema(data, where), where)


def _of_this_schema(data: Any, where: str) -> Dict[str, Any]:
    schema = data.get("schema") if isinstance(data, dict) else None
    if type(schema) is not int:
        raise Fault(f"{where} states no schema version", "it is not one of numalab's files")
    if schema != SCHEMA:
        raise Fault(
            f"{where} has schema version {schema}, this numalab reads {SCHEMA}",
            "update this numalab" if schema > SCHEMA else "an older numalab wrote it: make it anew",
        )
    return data  # type: ignore[no-any-return]


# --- the journal ------------------------------------------------------------------------------


def append(path: Path, record: TrialRecord) -> TrialRecord:
    """Append a record as a line, chained to the one before, and wait until the disk has it.

    Returns the record as it was written. When it cannot be written whole, the journal is cut back
    to what it was. DiskFull when there is no space.
    """
    new = not path.exists()
    with space_needed(path):
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(str(path), flags, 0o644)
        try:
            before = os.fstat(descriptor).st_size
            record = dataclasses.replace(
                record, previous=_link(_last_line(descriptor, before)) if before else ""
            )
            try:
                rest = memoryview((dumps(record) + "\n").encode("utf-8"))
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)
        if new:
            sync_directory(path.parent)
    return record


def _link(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _last_line(descriptor: int, size: int) -> bytes:
    reach = 1 << 16
    while True:
        start = max(0, size - reach)
        _, found, last = os.pread(descriptor, size - start, start)[:-1].rpartition(b"\n")
        if found or not start:
            return last
        reach *= 2


def read(
    path: Union[str, Path], on_torn: Optional[Callable[[Reason], None]] = None
) -> List[TrialRecord]:
    """Return the records of a journal, in order; [] when there is no journal yet.

    A last line without its line feed is a write that a crash cut short: it is left out and
    ``on_torn`` gets a reason. Raises Fault, with the line's number, for any other damage, for a
    trial that stands there twice, for a line that does not follow the one before it, and for
    another schema version.
    """
    records, torn = _records(Path(path))
    if torn and on_torn is not None:
        on_torn(reason("journal-torn", path=str(path), lines=len(records)))
    return records


def repair(path: Path) -> Optional[str]:
    """Cut off a torn last line, so that the next append starts a line; return what was cut."""
    _, torn = _records(path)
    if not torn:
        return None
    with open(path, "rb+") as file:
        file.truncate(path.stat().st_size - len(torn))
        os.fsync(file.fileno())
    return torn.decode("utf-8", errors="replace")


def _records(path: Path) -> Tuple[List[TrialRecord], bytes]:
    """Return the records and what stands after the last line feed."""
    try:
        *lines, torn = _read_bytes(path).split(b"\n")
    except FileNotFoundError:
        return [], b""
    records: List[TrialRecord] = []
    seen: Dict[int, int] = {}
    previous = ""
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        record = _record(where, line)
        if record.trial in seen:
            raise CannotComplete(
                f"{where}: trial {record.trial} is there already, in line {seen[record.trial]}"
            )
        if record.previous != previous:
            raise CannotComplete(
                f"{where} does not follow the line before it: one of the two was changed, or a "
                "line between them is missing"
            )
        seen[record.trial] = number
        records.append(record)
        previous = _link(line)
    return records, torn


def _record(where: str, line: bytes) -> TrialRecord:
    try:
        data = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or "trial" not in data:
        shown = line[:60].decode("utf-8", errors="replace")
        raise CannotComplete(f"{where} is not a trial's record ({shown!r})")
    return checked(TrialRecord, data, where)
