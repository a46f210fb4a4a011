"""Durable files of a run: the journal, JSON written in one piece, raw output as gzip.

What is on disk after a crash is either the old or the new content, never a mixture: JSON and
gzip files are written beside their place and renamed (rename(2) is atomic), and the journal is
only appended to, one fsync per line. A full disk is a Fault that leaves earlier content intact.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import IO, Any, Callable, Dict, Iterator, List, Optional, Union

from .. import SCHEMA
from ..errors import Fault

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFull(Fault):
    """No space left for what must be written."""


@contextlib.contextmanager
def space_needed(path: Union[str, Path]) -> Iterator[None]:
    """Turn "no space left" (or quota or file-size limit reached) inside the block into DiskFull."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        raise DiskFull(
            f"the disk is full: {path} could not be written ({os.strerror(error.errno)})",
            "what was measured before is intact; free some space, then resume the run",
        ) from None


def sync_directory(folder: Path) -> None:
    """Make the names inside a directory durable (fsync(2), "does not necessarily ensure...")."""
    descriptor = os.open(str(folder), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(path: Path, fill: Callable[[IO[bytes]], None]) -> None:
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
    """Write a JSON file so that a crash leaves the old or the new one; Fault on a full disk."""
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    _replace(path, lambda file: file.write(text.encode("utf-8")) and None)


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


def append(path: Path, record: Dict[str, Any]) -> None:
    """Append one record as a line and wait until the disk has it.

    When it cannot be written whole, the journal is cut back to what it was. DiskFull when
    there is no space.
    """
    line = (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8")
    new = not path.exists()
    with space_needed(path):
        descriptor = os.open(
            str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
        )
        try:
            before = os.fstat(descriptor).st_size
            try:
                rest = memoryview(line)
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


def read(
    path: Union[str, Path], on_torn: Optional[Callable[[str], None]] = None
) -> List[Dict[str, Any]]:
    """Return the records of a journal, in order; [] when there is no journal yet.

    A last line without its line feed is a write that a crash cut short: it is left out and
    ``on_torn`` is told in one sentence. Raises Fault, with the line's number, for any other
    damage, for a trial that stands there twice, and for a newer schema version.
    """
    path = Path(path)
    records, torn = _records(path)
    if torn is not None and on_torn is not None:
        on_torn(
            f"{path}: the last line (after {len(records)} whole ones) was cut short by a crash "
            "and is left out; its trial will be measured again"
        )
    return records


def repair(path: Path) -> Optional[str]:
    """Cut off a torn last line, so that the next append starts a line; return what was cut."""
    if not path.exists():
        return None
    _, torn = _records(path)
    if torn is None:
        return None
    with open(path, "rb+") as file:
        file.truncate(path.stat().st_size - len(torn))
        os.fsync(file.fileno())
    return torn.decode("utf-8", errors="replace")


def _records(path: Path) -> tuple[List[Dict[str, Any]], Optional[bytes]]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], None
    except OSError as error:
        raise Fault(f"{path} cannot be read: {error.strerror}", "restore it from a copy") from None
    *lines, last = content.split(b"\n")
    records: List[Dict[str, Any]] = []
    seen: Dict[int, int] = {}
    for number, line in enumerate(lines, 1):
        record = _record(path, number, line)
        trial = record["trial"]
        if trial in seen:
            raise Fault(
                f"{path}, line {number}: trial {trial} is there already, in line {seen[trial]}",
                "the journal was edited or two runs were mixed; restore it from a copy",
            )
        seen[trial] = number
        records.append(record)
    return records, last or None


def _record(path: Path, number: int, line: bytes) -> Dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8"))
    except ValueError:
        record = None
    if (
        not isinstance(record, dict)
        or type(record.get("trial")) is not int
        or type(record.get("schema")) is not int
    ):
        shown = line[:60].decode("utf-8", errors="replace")
        raise Fault(
            f"{path}, line {number} is not a trial's record ({shown!r})",
            "the journal is damaged; restore it from a copy, or measure again into a new directory",
        )
    if record["schema"] > SCHEMA:
        raise Fault(
            f"{path}, line {number} has schema version {record['schema']}, "
            f"this numalab reads up to {SCHEMA}",
            "update numalab",
        )
    return record


def read_json(path: Path) -> Dict[str, Any]:
    """Return one of a run's JSON files; Fault when missing, damaged or of a newer schema."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Fault(f"{path} is missing", "is this a run directory?") from None
    except (OSError, ValueError) as error:
        raise Fault(f"{path} cannot be read: {error}", "restore it from a copy") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if type(schema) is not int:
        raise Fault(f"{path} states no schema version", "it is not one of numalab's files")
    if schema > SCHEMA:
        raise Fault(
            f"{path} has schema version {schema}, this numalab reads up to {SCHEMA}",
            "update numalab",
        )
    return data
