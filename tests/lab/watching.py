"""Waiting in the lab's tests: as long as something goes on, and never past the end of a test."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import waiting

# No line of a command, a console or a journal for so long is no progress; the longest silence on a
# quiet machine is the probe's build in a guest, about a minute.
SILENT_S = 900


# In the environment of what a session of the tests starts; guests of others stay alone.
MARK = f"NUMALAB_TESTS={os.getpid()}"


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

    Raises waiting.Stuck, with the command ended, when neither it nor any file below ``folders``
    (consoles of guests, journals and status files of runs) has grown for SILENT_S.
    """
    child = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True, **options,
    )  # fmt: skip
    return follow(child, folders)


def follow(child, folders):
    """As ``run``, of a command that runs already (with its output in a pipe)."""
    said, _ = waiting.follow(child, folders, SILENT_S, end)
    return child.returncode, said


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

    def said():
        return child.stdout.read() if child is not None and child.poll() is not None else ""

    return waiting.wait_for(what, child, tells=said, silent_s=SILENT_S, every_s=0.2)


def outlive_by_a_moment():
    """Start a process that kills the tests' QEMUs as soon as this one has ended, however it ends.

    It holds the reading end of a pipe whose other end only this process has.
    """
    read_end, write_end = os.pipe()
    os.set_inheritable(read_end, True)
    child = subprocess.Popen(
        [sys.executable, __file__, str(read_end), MARK],
        pass_fds=[read_end], start_new_session=True, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(waiting.__file__).parent)},
    )  # fmt: skip
    os.close(read_end)
    return child, write_end


if __name__ == "__main__":
    os.read(int(sys.argv[1]), 1)  # returns at the end of whoever holds the other end
    kill_qemus(sys.argv[2])
