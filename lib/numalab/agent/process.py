"""Starting, watching and ending the process tree of one trial.

No process of a trial may outlive it. Four things see to that: the child asks for SIGKILL at its
parent's death (PR_SET_PDEATHSIG, prctl(2)); the agent is the reaper of orphans below it
(PR_SET_CHILD_SUBREAPER), so every descendant stays findable; at a trial's end the whole tree is
frozen, killed and reaped; and the guard (guard.py) does the same when the agent itself was
killed. Output goes to files: a pipe that nobody reads would stop the measured program.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set

from . import placement
from .errors import Fault

TOKEN = "NUMALAB_TRIAL"  # environment variable that marks a trial's processes, for the guard
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
# The gate: the shell waits for a line, then becomes the program. Collectors attach in between.
_GATE = 'read -r _ && exec "$@" </dev/null'

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def adopt_orphans() -> None:
    """Make this process the parent of every orphan below it (Linux 3.4 and newer)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(pid: int, among: Optional[Dict[int, placement.Stat]] = None) -> List[int]:
    """Return the pids below a process, parents before children, siblings by pid; without itself."""
    children: Dict[int, List[int]] = {}
    for one, entry in (placement.processes() if among is None else among).items():
        children.setdefault(entry.parent, []).append(one)
    ordered: List[int] = []
    generation = sorted(children.get(pid, []))
    while generation:
        ordered += generation
        generation = sorted(c for parent in generation for c in children.get(parent, []))
    return ordered


def end(
    find: Callable[[], Iterable[int]], reap: Callable[[Set[int]], None], limit_s: float = 10.0
) -> Set[int]:
    """Kill every process that ``find`` names until it names none; return those that stay.

    They are stopped first, so that none forks while the others die. ``reap`` is called after
    every round with what was found.
    """
    frozen: Set[int] = set()
    for _ in range(50):
        new = set(find()) - frozen
        if not new:
            break
        _signal(new, signal.SIGSTOP)
        frozen |= new
    deadline = time.monotonic() + limit_s
    while True:
        found = set(find())
        if not found or time.monotonic() > deadline:
            return found
        _signal(found, signal.SIGKILL)
        reap(found)
        time.sleep(0.002)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


class Child:
    """A started program: its pid, its output files, and its end with resource usage.

    ``ended`` is None while it runs, then the rusage record: wall time and CPU times in seconds,
    exit status or signal, peak resident memory in bytes, page faults and context switches
    (wait4(2), getrusage(2)).
    """

    def __init__(self, argv: Sequence[str], popen: subprocess.Popen[bytes], gated: bool) -> None:
        self.argv = list(argv)
        self.pid = popen.pid
        self.gated = gated
        self.started = time.monotonic()  # of a gated child: when the gate opened
        self.ended: Optional[Dict[str, Any]] = None
        self._popen = popen
        self._peak_bytes: Optional[int] = None
        self._inherited_bytes = _high_water("self") or 0

    def open_gate(self) -> None:
        """Let a gated child become its program."""
        self.started = time.monotonic()
        self.tell("go")
        self.hang_up()

    def tell(self, line: str) -> None:
        """Write one line to the child's standard input; a child that is gone does not matter."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._popen.stdin.write(line.encode("utf-8") + b"\n")
            self._popen.stdin.flush()

    def hang_up(self) -> None:
        """Close the child's standard input."""
        if self._popen.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._popen.stdin.close()

    def is_program(self) -> bool:
        """Tell whether the pid is the measured program by now, no longer gate or numactl."""
        try:
            with open(f"/proc/{self.pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")[:-1]
        except OSError:
            return False
        given = [os.fsencode(word) for word in self.argv]
        if not words or _GATE.encode() in words[:3]:
            return False
        return not (os.path.basename(given[0]) == b"numactl" and words == given)

    def note_peak(self) -> None:
        """Read the program's peak memory while it runs: see ``_rusage`` for why."""
        if self.is_program():
            peak = _high_water(str(self.pid))
            if peak is not None:
                self._peak_bytes = max(peak, self._peak_bytes or 0)

    def poll(self) -> Optional[Dict[str, Any]]:
        """Return the rusage record when the child has ended, else None; never waits."""
        if self.ended is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                wall = time.monotonic() - self.started
                self._popen.returncode = 0  # tells subprocess that it has been waited for
                self.hang_up()
                self.ended = self._rusage(wall, status, usage)
        return self.ended

    def wait(self, deadline: float) -> Optional[Dict[str, Any]]:
        """Return the rusage record, waiting for the end until a monotonic time, else None."""
        pause = 0.001
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(pause * 2, 0.02)
        return self.ended

    def _rusage(self, wall_s: float, status: int, usage: Any) -> Dict[str, Any]:
        # A process keeps the peak of the memory it was forked with (the agent's own, kernel:
        # exec_mmap keeps signal->maxrss), so a smaller program's peak is known only if seen alive.
        peak: Optional[int] = usage.ru_maxrss * 1024
        reason = None
        if peak is not None and peak <= self._inherited_bytes:
            peak = self._peak_bytes
            if peak is None:
                reason = "it ended before its peak memory could be read"
        return {
            "schema": 1,
            "kind": "rusage",
            "wall_s": round(wall_s, 6),
            "exit_status": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "max_rss_bytes": peak,
            "max_rss_reason": reason,
            "user_s": round(usage.ru_utime, 6),
            "system_s": round(usage.ru_stime, 6),
            "minor_faults": usage.ru_minflt,
            "major_faults": usage.ru_majflt,
            "voluntary_switches": usage.ru_nvcsw,
            "involuntary_switches": usage.ru_nivcsw,
        }


def _high_water(pid: str) -> Optional[int]:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def start(
    argv: Sequence[str],
    *,
    stdout: Path,
    stderr: Path,
    token: str = "",
    talks: bool = False,
    gated: bool = False,
    expendable: bool = False,
    env: Optional[Dict[str, str]] = None,
    cwd: Optional[str] = None,
) -> Child:
    """Start a program in a session of its own, its output going to two files.

    ``talks`` gives it a pipe as standard input (else /dev/null); ``gated`` holds it back until
    ``Child.open_gate``; ``expendable`` makes it the first that the kernel kills when memory runs
    out (oom_score_adj 1000, proc(5)); ``env`` is added to the environment. It dies with the
    thread that calls this. Raises Fault when the program cannot be started.
    """
    parent = os.getpid()

    def before_exec() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(127)
        if expendable:
            descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
            os.write(descriptor, b"1000")
            os.close(descriptor)

    words = ["/bin/sh", "-c", _GATE, "numalab-gate", *argv] if gated else list(argv)
    environment = {**os.environ, **(env or {})}
    if token:
        environment[TOKEN] = token
    with open(stdout, "wb") as out, open(stderr, "wb") as err:
        try:
            popen = subprocess.Popen(
                words,
                stdin=subprocess.PIPE if talks or gated else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                cwd=cwd,
                start_new_session=True,
                preexec_fn=before_exec,
            )
        except (OSError, subprocess.SubprocessError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise Fault(f"{argv[0]} cannot be started: {why}", "is it installed?") from None
    return Child(argv, popen, gated)


def end_trial(child: Optional[Child], keep: Set[int], limit_s: float = 10.0) -> List[int]:
    """Kill whatever lives below this process, but for ``keep``; return the pids that stay alive.

    ``keep`` are children that were there before the trial. The child's own end is collected by
    its ``poll``, that of adopted orphans here.
    """
    me = os.getpid()

    def find() -> List[int]:
        among = placement.processes()
        spared = set(keep)
        for pid in keep:
            spared.update(descendants(pid, among))
        # A dead process that is not our child is its parent's to reap, and gone for us.
        return [
            pid
            for pid in descendants(me, among)
            if pid not in spared and not (among[pid].state == "Z" and among[pid].parent != me)
        ]

    def reap(found: Set[int]) -> None:
        for pid in found:
            if child is not None and pid == child.pid:
                child.poll()
            else:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    return sorted(end(find, reap, limit_s))
