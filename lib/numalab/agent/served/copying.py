"""Copies of a data directory: cloned where the file system can (ioctl_ficlone(2))."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from pathlib import Path
from typing import Iterable

_FICLONE = 0x40049409  # linux/fs.h
_WORTH_SYNCING = 1 << 20  # bytes of a file
FULL = (errno.ENOSPC, errno.EDQUOT)


def copy_folder(source: Path, target: Path, files: Iterable[str]) -> bool:
    """Make a folder anew of the files of another; tell whether the file system cloned them all.

    The target appears when it is whole. Raises OSError with the name of the file.
    """
    part = target.with_name(f".{target.name}.part")
    for old in (part, target):
        if old.exists():
            shutil.rmtree(old)
    cloned = True
    try:
        part.mkdir(mode=0o700)
        for directory in sorted(source.rglob("*")):
            if directory.is_dir():
                (part / directory.relative_to(source)).mkdir(mode=0o700)
        for name in files:
            cloned = _copy_file(source / name, part / name, cloned)
        os.rename(part, target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return cloned


def _copy_file(source: Path, target: Path, clone: bool) -> bool:
    """Copy one file, holes left out; tell whether the file system cloned it."""
    from_ = os.open(str(source), os.O_RDONLY)
    to = os.open(str(target), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if clone and _clone(from_, to):
            return True
        size = os.fstat(from_).st_size
        _copy_data(from_, to, size)
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


def _clone(from_: int, to: int) -> bool:
    try:
        fcntl.ioctl(to, _FICLONE, from_)
    except OSError as error:
        if error.errno in FULL:
            raise
        return False
    return True


def _copy_data(from_: int, to: int, size: int) -> None:
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


def sync(folder: Path) -> None:
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
