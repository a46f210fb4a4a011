"""Reading files that may come from a stranger: a run directory, an archive, an experiment file.

Only regular files inside the given folder are opened, symbolic links are not followed, and sizes
are capped before and while reading: whatever a file holds, reading it ends in bounded time and
memory, with its content or with a Fault that names it. Nothing that is read here is executed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import resource
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import yaml

from numalab.agent.errors import Fault

T = TypeVar("T")
MIB = 1 << 20
# Some ten times what the largest run of a large host holds.
LARGEST_FILE = 256 * MIB
LARGEST_TEXT = 32 * MIB  # a raw output, unpacked
LARGEST_JSON = 32 * MIB
LARGEST_YAML = MIB // 4
MOST_VALUES = 1_500_000  # in one JSON text: each takes some 100 bytes once it is read
MOST_PARSED = 256 * MIB  # of memory that the records of one text take
MOST_READ = 160 * MIB  # of memory that a run's manifest, host and journal take once they are read
DEEPEST = 32  # lists and mappings within each other
MOST_YAML_NODES = 10_000  # as if every alias were written out

NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}"  # of a host, a run, an experiment: one plain folder
RAW = r"raw/[A-Za-z0-9_][A-Za-z0-9_.,:=@+-]{0,199}"
_PIECE = MIB // 16
_AGAIN = "restore it from a copy"


def is_name(text: str) -> bool:
    """Tell whether a text can name a host, a run or an experiment: one folder, nothing else."""
    return re.fullmatch(NAME, text) is not None


def check_name(text: str, what: str) -> str:
    """Return a name that can be that of a folder; Fault for any other."""
    if not is_name(text):
        raise Fault(
            f"{text[:60]!r} cannot name {what}: its results go into a folder of that name",
            "use letters, digits, dots, dashes and underscores",
        )
    return text


@contextmanager
def opened(folder: Path, name: str, largest: int = LARGEST_FILE) -> Iterator[BinaryIO]:
    """Open a regular file below a folder by its relative name; Fault when it is anything else.

    No part of the name may be a symbolic link; a FIFO or a device is refused without waiting for
    it (open(2), O_NONBLOCK).
    """
    where = folder / name
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or ".." in parts:
        raise Fault(f"{name!r} is no name of a file in {folder}")
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in parts:
            directory = os.O_DIRECTORY if step is not parts[-1] else 0
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | directory
            inner = os.open(step, flags, dir_fd=handle)
            os.close(handle)
            handle = inner
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise Fault(f"{where} is no regular file", _AGAIN)
        if found.st_size > largest:
            raise Fault(
                f"{where} has {found.st_size} bytes, {largest} are the most that are read", _AGAIN
            )
        with open(handle, "rb", closefd=False) as file:
            yield file
    except FileNotFoundError:
        hint = "is this a run directory?" if name == "manifest.json" else _AGAIN
        raise Fault(f"{where} is missing", hint) from None
    except OSError as error:
        link = error.errno in (errno.ELOOP, errno.ENOTDIR)
        why = "it is no regular file" if link else error.strerror
        raise Fault(f"{where} cannot be read: {why}", _AGAIN) from None
    finally:
        os.close(handle)


def read_bytes(folder: Path, name: str, largest: int = LARGEST_FILE) -> bytes:
    """Return what a regular file holds, at most ``largest`` bytes; Fault when it is larger."""
    with opened(folder, name, largest) as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise Fault(f"{folder / name} grew beyond {largest} bytes while it was read", _AGAIN)
    return content


def sha256(folder: Path, name: str) -> str:
    """Return the SHA-256 of a regular file, in hex."""
    digest = hashlib.sha256()
    with opened(folder, name) as file:
        for piece in iter(lambda: file.read(MIB), b""):
            digest.update(piece)
    return digest.hexdigest()


def read_gzip(folder: Path, name: str, largest: int = LARGEST_TEXT) -> bytes:
    """Return what one gzip member unpacks to; Fault when it is damaged or larger than allowed."""
    packed = read_bytes(folder, name, largest)
    unpacking = zlib.decompressobj(31)  # gzip's header, and its checksum at the end
    try:
        content = unpacking.decompress(packed, largest + 1)
    except zlib.error as error:
        raise Fault(f"{folder / name} cannot be read: {error}", _AGAIN) from None
    if len(content) > largest:
        raise Fault(f"{folder / name} unpacks to more than {largest} bytes", _AGAIN)
    if not unpacking.eof or unpacking.unused_data:
        raise Fault(f"{folder / name} cannot be read: it is not one whole gzip member", _AGAIN)
    return content


@contextmanager
def little_memory(where: object) -> Iterator[None]:
    """Let this process take at most MOST_PARSED more memory inside the block; Fault for more.

    For parsers of text: what they make of a few million short lines takes gigabytes.
    """
    size = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = (int(size[1]) << 10 if size else 0) + MOST_PARSED
    if before != resource.RLIM_INFINITY:
        most = min(most, before)
    full = False
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    except MemoryError:
        full = True  # what was made is let go before anything is said
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))
    if full:
        raise Fault(f"{where} holds more than fits into memory once it is read")


def check_json(text: bytes, where: object) -> bytes:
    """Return a JSON text that is small and flat enough to be read; Fault for any other."""
    if len(text) > LARGEST_JSON:
        raise Fault(f"{where} has {len(text)} bytes of JSON, {LARGEST_JSON} are read", _AGAIN)
    if text.count(b",") > MOST_VALUES:
        raise Fault(f"{where} holds more than {MOST_VALUES} values", _AGAIN)
    _check_plain(text.replace(rb"\\", b"").replace(rb"\"", b""), where)
    return text


def weight(text: bytes) -> int:
    """Return how much memory a JSON text takes as objects of the contract: about so many bytes.

    An object takes some 420 whatever its text leaves out, any other value some 100.
    """
    return 420 * text.count(b"{") + 100 * text.count(b",") + len(text)


_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))


_ENDLESS = re.compile(rb"\d{26}")  # no float can hold one of 310 digits


def _check_plain(text: bytes, where: object) -> None:
    """Raise Fault when JSON without escaped quotes has unmatched or deep brackets, or huge numbers.

    It goes piece by piece: a list of all strings of a large text would take much memory.
    """
    left, quoted, end = b"", False, b""
    for start in range(0, len(text), _PIECE):
        parts = text[start : start + _PIECE].split(b'"')
        plain = end + b"".join(parts[quoted::2])
        if _ENDLESS.search(plain):
            raise Fault(f"{where} cannot be read: it holds a number of more than 25 digits", _AGAIN)
        left += plain[len(end) :].translate(None, _NO_BRACKET)
        end = plain[-25:]
        quoted ^= len(parts) % 2 == 0
        for _ in range(DEEPEST):
            left = left.replace(b"[]", b"").replace(b"{}", b"")
        if len(left) > DEEPEST:
            break
    if left:
        raise Fault(
            f"{where} cannot be read: its lists and mappings do not match, or stand more than "
            f"{DEEPEST} deep in each other",
            _AGAIN,
        )


def parse_json(text: bytes, where: object) -> Any:
    """Return what a JSON text says; Fault when it is none, too large or too deep."""
    try:
        return json.loads(check_json(text, where))
    except (ValueError, RecursionError) as error:
        raise Fault(f"{where} is not JSON: {error}", _AGAIN) from None


def check_yaml(text: str, where: object) -> str:
    """Return a YAML text that stays small when its aliases are written out; Fault for any other.

    Text that is not YAML at all is left to whoever reads it, who names the line.
    """
    if len(text) > LARGEST_YAML:
        raise Fault(f"{where} has {len(text)} characters, {LARGEST_YAML} are the most")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, ArithmeticError):
        return text
    except RecursionError:
        raise Fault(f"{where} has lists or mappings too deep in each other") from None
    if root is not None and _nodes(root, {}, 0) > MOST_YAML_NODES:
        raise Fault(f"{where} holds more than {MOST_YAML_NODES} values, its aliases written out")
    return text


def _nodes(node: yaml.Node, known: dict[int, int], depth: int) -> int:
    """Count a node with all below it; one that holds itself, or is too deep, counts as too many."""
    if depth > DEEPEST:
        return MOST_YAML_NODES + 1
    if id(node) not in known:
        below = node.value if isinstance(node, yaml.CollectionNode) else []
        inner = [one for item in below for one in (item if isinstance(item, tuple) else [item])]
        known[id(node)] = MOST_YAML_NODES + 1  # what meets it again while it is counted
        known[id(node)] = 1 + sum(_nodes(one, known, depth + 1) for one in inner)
    return known[id(node)]
