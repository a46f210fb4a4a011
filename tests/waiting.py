"""Waiting in tests: as long as something goes on, however long a busy machine takes for it.

No wait ends because the whole took long: it ends when what it waits for can no longer come, since
the process that should bring it is gone, or when nothing was seen of it for SILENT_S.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from pathlib import Path

# What takes a second on a quiet machine has come long before, on one that is very slow.
SILENT_S = 600


class Stuck(AssertionError):
    """What was waited for did not come; the text says what was seen until then."""


def wait_for(what, by=None, *, progress=None, tells=None, silent_s=SILENT_S, every_s=0.02):
    """Return what ``what()`` returns as soon as that is true.

    ``by`` is who brings it about: a process (its pid, or what has ``poll``). Raises Stuck when that
    has ended without, or when ``progress()`` has returned the same for ``silent_s``; ``tells()``
    is then asked what else to say.
    """
    seen, since = None, time.monotonic()
    while True:
        ended = _ended(by)  # before it is asked: the last that it did counts
        if found := what():
            return found
        now = progress() if progress else None
        if now != seen:
            seen, since = now, time.monotonic()
        silent = time.monotonic() - since > silent_s
        if ended or silent:
            why = f"{ended} and it has not come" if ended else f"nothing happened for {silent_s} s"
            raise Stuck(f"{why}\n{tells() if tells else ''}")
        time.sleep(every_s)


def end_at_once(child):
    """Kill a process that still runs."""
    if child.poll() is None:
        child.kill()
        child.wait()


def follow(child, folders=(), silent_s=SILENT_S, end=end_at_once):
    """Read what a command (in text mode) says until it ends; return (stdout, stderr).

    Raises Stuck, and ends it by ``end(child)``, when neither its output nor any file below
    ``folders`` (journals and status files of runs) has grown for ``silent_s``. A stream that is no
    pipe reads "".
    """
    if child.stdin is not None and not child.stdin.closed:
        child.stdin.close()
    said = [[], []]
    readers = [
        threading.Thread(target=_read, args=(stream, lines), daemon=True)
        for stream, lines in zip((child.stdout, child.stderr), said)
        if stream is not None
    ]
    for reader in readers:
        reader.start()

    def ended():
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.5)
        return child.returncode is not None

    def seen():
        return [len(lines) for lines in said], sizes(folders)

    def told():
        return "".join(said[0] + said[1])

    try:
        wait_for(ended, progress=seen, tells=told, silent_s=silent_s, every_s=0)
        # To the end of its output, which whoever it left behind may hold open.
        wait_for(
            lambda: not any(reader.is_alive() for reader in readers), progress=seen,
            tells=lambda: f"it has ended, but not its output:\n{told()}", silent_s=silent_s,
            every_s=0.005,
        )  # fmt: skip
    finally:
        end(child)
    return "".join(said[0]), "".join(said[1])


def sizes(folders):
    """Return a number that grows with the files below some folders."""
    total = 0
    for folder in folders:
        for within, names, files in os.walk(folder):  # what was moved meanwhile is passed over
            total += len(names)
            for name in files:
                with contextlib.suppress(OSError):
                    total += os.stat(os.path.join(within, name)).st_size
    return total


def lives(pid):
    """Tell whether there is a process of this number, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def processes():
    """Return the table of all processes, for a message."""
    words = ["ps", "-eo", "pid,ppid,sid,stat,wchan:20,etime,args"]
    return subprocess.run(words, capture_output=True, text=True).stdout


def _ended(by):
    """Return "" while a process lives, then how it ended."""
    if isinstance(by, int):
        return "" if lives(by) else f"process {by} has ended"
    status = None if by is None else by.poll()
    return "" if status is None else f"it has ended ({status})"


def _read(stream, lines):
    with stream:
        lines.extend(stream)
