"""Waiting in the lab's tests: as long as something goes on, and never past the end of a test."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

# No line of a command, a console or a journal for so long is no progress; the longest silence on a
# quiet machine is the probe's build in a guest, about a minute.
SILENT_S = 900


# In the environment of what a session of the tests starts; guests of others stay alone.
MARK = f"NUMALAB_TESTS={os.getpid()}"


class Stuck(AssertionError):
    """A command made no progress; its text says what it had said until then."""


def qemus(mark=MARK):
    """Return {pid: command line} of living QEMUs whose environment holds a mark."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark.encode() in variables and b"qemu-system" in words[0]:
                found[int(entry.name)] = b" ".join(words).decode()
    return found


def kill_qemus(mark=MARK):
    """End what is left of a session's guests."""
    for pid in qemus(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def run(words, folders, **options):
    """Run a command to its end; return its status and what it said.

    Raises Stuck, with the command ended, when neither it nor any file below ``folders`` (consoles
    of guests, journals and status files of runs) has grown for SILENT_S.
    """
    child = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True, **options,
    )  # fmt: skip
    return follow(child, folders)


def follow(child, folders):
    """As ``run``, of a command that runs already (with its output in a pipe)."""
    said = []
    reader = threading.Thread(target=lambda: said.extend(child.stdout), daemon=True)
    reader.start()
    seen, since = None, time.monotonic()
    try:
        while child.poll() is None:
            now = (len(said), _sizes(folders))
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > SILENT_S:
                raise Stuck(f"no progress for {SILENT_S} s:\n{''.join(said)}")
            time.sleep(0.5)
    finally:
        end(child)
    reader.join(10)
    return child.returncode, "".join(said)


def end(child):
    """End a command with everything in its session; nothing when it has ended."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def wait_for(what, child=None):
    """Return what ``what()`` returns as soon as that is true, while ``child`` (if any) runs."""
    since = time.monotonic()
    while not (found := what()):
        if child is not None and child.poll() is not None:
            raise Stuck(f"it ended with status {child.returncode}:\n{child.stdout.read()}")
        if time.monotonic() - since > SILENT_S:
            raise Stuck(f"{what} did not happen in {SILENT_S} s")
        time.sleep(0.2)
    return found


def _sizes(folders):
    total = 0
    for folder in folders:
        for path in Path(folder).rglob("*"):
            try:
                total += path.stat().st_size if path.is_file() else 1
            except OSError:
                continue  # it was moved while we looked
    return total


def outlive_by_a_moment():
    """Start a process that kills the tests' QEMUs as soon as this one has ended, however it ends.

    It holds the reading end of a pipe whose other end only this process has.
    """
    read_end, write_end = os.pipe()
    os.set_inheritable(read_end, True)
    child = subprocess.Popen(
        [sys.executable, __file__, str(read_end), MARK],
        pass_fds=[read_end], start_new_session=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(read_end)
    return child, write_end


if __name__ == "__main__":
    os.read(int(sys.argv[1]), 1)  # returns at the end of whoever holds the other end
    kill_qemus(sys.argv[2])
