"""Starting, watching and ending the process tree of one trial.

No process of a trial may outlive it, whoever is killed. Each trial has a warden: a process forked
off the agent that starts the program and is the reaper of every orphan below it
(PR_SET_CHILD_SUBREAPER, prctl(2)), so that no descendant can get away, not even one with a
session and an environment of its own. The warden ends the whole tree when the agent says so, or
when the agent's end of a pipe closes, which the kernel does however the agent dies. Should the
warden be killed, the program dies with it (PR_SET_PDEATHSIG) and the agent inherits the orphans.

Output goes to files: a pipe that nobody reads would stop the measured program.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    NoReturn,
    Optional,
    Sequence,
    Set,
)

from .. import kernel
from ..contract import SCHEMA, Reason, from_json, reason, to_json
from ..errors import Fault

_END_S = 10.0  # for killed processes to be gone
_ROUNDS = 200  # of killing them, at least
# The gate: the shell waits for a line, then becomes the program. Collectors attach in between.
_GATE = 'read -r _ && exec "$@" </dev/null'


def close_files(keep_open: Iterable[int]) -> None:
    """Close every file of this process but standard input, output, error and ``keep_open``."""
    kept = {0, 1, 2, *keep_open}
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(entry))


def become_helper(name: bytes, keep_open: Set[int]) -> None:
    """Turn a fork of the agent into a quiet process that only an order or SIGKILL ends.

    Of its files only ``keep_open`` stay: whoever reads the agent's output, and whoever waits for
    a pipe's end, must not wait for the helper.
    """
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)  # not SIG_IGN: a program started here inherits that
    kernel.set_process_name(name)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    close_files(keep_open)


def end(
    find: Callable[[], Iterable[int]], reap: Callable[[Set[int]], None], limit_s: float = _END_S
) -> Set[int]:
    """Kill every process that ``find`` names until it names none; return those that stay.

    They are stopped first, so that none forks while the others die. ``reap`` is called after
    every round with what was found. However long a host stood still meanwhile, nothing is given
    up before it was killed in ``_ROUNDS`` rounds.
    """
    frozen: Set[int] = set()
    for _ in range(50):
        new = set(find()) - frozen
        if not new:
            break
        _signal(new, signal.SIGSTOP)
        frozen |= new
    deadline = time.monotonic() + limit_s
    rounds = 0
    while True:
        found = set(find())
        if not found or (rounds >= _ROUNDS and time.monotonic() > deadline):
            return found
        rounds += 1
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

    def __init__(
        self,
        argv: Sequence[str],
        warden: int,
        orders: int,
        reports: int,
        stdin: Optional[int],
        others: Set[int],
    ) -> None:
        self.argv = list(argv)
        self.warden = warden
        self.pid = 0
        self.bound: Dict[str, str] = {}  # what was in force when it started, as of kernel.bind
        self.started = 0.0  # on the monotonic clock; of a gated child: when the gate opened
        self.ended: Optional[Dict[str, Any]] = None
        self._stdin = stdin
        self._others = others  # what lived below the agent before
        self._orders: Optional[int] = orders
        self._reports = reports
        self._unread = b""
        self._left: Optional[List[int]] = None
        self._peak_bytes: Optional[int] = None
        self._inherited_bytes = _high_water("self") or 0

    def owns(self, pid: int) -> bool:
        """Tell whether a process is one of this trial's: the program, or what it has started."""
        return pid in kernel.descendants(self.warden)

    def open_gate(self) -> None:
        """Let a gated child become its program."""
        self.started = time.monotonic()
        self.write_line("go")
        self.close_stdin()

    def write_line(self, line: str) -> None:
        """Write one line to the child's standard input; a child that is gone does not matter."""
        if self._stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._stdin, line.encode("utf-8") + b"\n")

    def close_stdin(self) -> None:
        """Close the child's standard input."""
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None

    def is_program(self) -> bool:
        """Tell whether the pid is the measured program by now, no longer the gate."""
        try:
            with open(f"/proc/{self.pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")[:-1]
        except OSError:
            return False
        return bool(words) and _GATE.encode() not in words[:3]

    def note_peak(self) -> None:
        """Read the program's peak memory while it runs: see ``_rusage`` for why."""
        if self.is_program():
            peak = _high_water(str(self.pid))
            if peak is not None:
                self._peak_bytes = max(peak, self._peak_bytes or 0)

    def poll(self) -> Optional[Dict[str, Any]]:
        """Return the rusage record when the child has ended, else None; never waits."""
        return self.wait(0.0)

    def wait(self, deadline: float) -> Optional[Dict[str, Any]]:
        """Return the rusage record, waiting for the end until a monotonic time, else None."""
        while self.ended is None and self._report(deadline - time.monotonic()):
            pass
        return self.ended

    def _report(self, timeout_s: float) -> bool:
        """Take in one report of the warden; False when none came in time, or none will come."""
        while b"\n" not in self._unread:
            if not select.select([self._reports], [], [], max(0.0, timeout_s))[0]:
                return False
            piece = os.read(self._reports, 65536)
            if not piece:
                self._warden_is_gone()
                return False
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        report = json.loads(line)
        if "error" in report:
            raise Fault(
                reason("not-started", program=self.argv[0], why=report["error"]), "is it installed?"
            )
        if "refused" in report:
            raise Fault(from_json(Reason, report["refused"]))
        if "bound" in report:
            self.bound = report["bound"]
        if "pid" in report:
            self.pid, self.started = report["pid"], report["began"]
        if "usage" in report:
            self.ended = self._rusage(report["ended"] - self.started, report)
        if "left" in report:
            self._left = report["left"]
        return True

    def _warden_is_gone(self) -> None:
        if self._left is None and self.ended is None and self.pid:
            # Killed by somebody. The program died with it and is ours now, like its orphans.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.warden, 0)
            _signal([self.pid], signal.SIGKILL)
            status, usage = int(signal.SIGKILL), [0.0, 0.0, 0, 0, 0, 0, 0]
            with contextlib.suppress(ChildProcessError):
                _, status, found = os.wait4(self.pid, 0)
                usage = _numbers(found)
            wall_s = time.monotonic() - self.started
            self.ended = self._rusage(wall_s, {"status": status, "usage": usage})

    def _rusage(self, wall_s: float, report: Dict[str, Any]) -> Dict[str, Any]:
        # A process keeps the peak of the memory it was forked with (the agent's own, kernel:
        # exec_mmap keeps signal->maxrss), so a smaller program's peak is known only if seen alive.
        user, system, peak, minor, major, voluntary, involuntary = report["usage"]
        status = report["status"]
        why = None
        if peak <= self._inherited_bytes:
            peak = self._peak_bytes
            if peak is None:
                why = "it ended before its peak memory could be read"
        return {
            "schema": SCHEMA,
            "kind": "rusage",
            "wall_s": round(wall_s, 6),
            "exit_status": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "max_rss_bytes": peak,
            "max_rss_reason": why,
            "user_s": round(user, 6),
            "system_s": round(system, 6),
            "minor_faults": minor,
            "major_faults": major,
            "voluntary_switches": voluntary,
            "involuntary_switches": involuntary,
        }

    def end(self) -> List[int]:
        """Kill the program and everything below it; return the pids that stay alive."""
        self.close_stdin()
        if self._orders is None:
            return []
        os.close(self._orders)  # the order to end
        self._orders = None
        deadline = time.monotonic() + _END_S + 5
        while self._left is None and self._report(deadline - time.monotonic()):
            pass
        os.close(self._reports)
        left = _end_below(self._others) if self._left is None else self._left
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.warden, 0 if not left else os.WNOHANG)
        return left


def _high_water(pid: str) -> Optional[int]:
    return kernel.meminfo(kernel.read_text(f"/proc/{pid}/status")).get("VmHWM")


def _numbers(usage: Any) -> List[float]:
    """The numbers of a getrusage(2) structure that are kept, memory in bytes."""
    return [
        usage.ru_utime, usage.ru_stime, usage.ru_maxrss * 1024, usage.ru_minflt, usage.ru_majflt,
        usage.ru_nvcsw, usage.ru_nivcsw,
    ]  # fmt: skip


def start(
    argv: Sequence[str],
    *,
    stdout: Path,
    stderr: Path,
    talks: bool = False,
    gated: bool = False,
    expendable: bool = False,
    env: Optional[Dict[str, str]] = None,
    keep_open: Iterable[int] = (),
    binding: Optional[Mapping[str, Optional[str]]] = None,
) -> Child:
    """Start a program in a session of its own, its output going to two files.

    ``talks`` gives it a pipe as standard input (else /dev/null); ``gated`` holds it back until
    ``Child.open_gate``; ``expendable`` makes it the first that the kernel kills when memory runs
    out (oom_score_adj 1000, proc(5)); ``env`` is added to the environment. ``keep_open`` are
    descriptors that its warden keeps as long as it lives; ``binding`` are the arguments of
    kernel.bind. Call ``Child.end`` in any case. Raises Fault when the program cannot be started,
    or not so.
    """
    words = ["/bin/sh", "-c", _GATE, "numalab-gate", *argv] if gated else list(argv)
    others = set(kernel.descendants(os.getpid()))
    orders, our_orders = os.pipe()
    our_reports, reports = os.pipe()
    stdin, our_stdin = os.pipe() if talks or gated else (os.open(os.devnull, os.O_RDONLY), None)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    out = os.open(str(stdout), flags, 0o644)
    err = os.open(str(stderr), flags, 0o644)
    wardens = (orders, reports, stdin, out, err)
    warden = os.fork()
    if warden == 0:
        try:
            become_helper(b"numalab-warden", {*wardens, *keep_open})
            popen: Dict[str, Any] = {"stdin": stdin, "stdout": out, "stderr": err}
            popen["env"] = {**os.environ, **(env or {})}
            _guard_program(words, popen, expendable, binding, orders, reports)
        finally:
            os._exit(0)
    for descriptor in wardens:
        os.close(descriptor)
    child = Child(argv, warden, our_orders, our_reports, our_stdin, others)
    try:
        while not child.pid:
            if not child._report(60.0):
                raise Fault(reason("not-started", program=argv[0], why="its warden said nothing"))
    except BaseException:
        child.end()
        raise
    return child


def _expendable() -> None:
    descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    os.write(descriptor, b"1000")
    os.close(descriptor)


def _guard_program(
    words: List[str],
    popen: Dict[str, Any],
    expendable: bool,
    binding: Optional[Mapping[str, Optional[str]]],
    orders: int,
    reports: int,
) -> NoReturn:
    """The warden: start the program, report its end, end everything when the pipe closes."""

    def say(report: Dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(reports, json.dumps(report).encode() + b"\n")

    def settle() -> None:
        if expendable:
            _expendable()
        if binding:
            try:
                say({"bound": kernel.bind(**binding)})
            except Fault as fault:
                say({"refused": to_json(fault.reason)})
                os._exit(127)

    kernel.adopt_orphans()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    before_exec = kernel.die_with_parent(settle)
    began = time.monotonic()
    try:
        program = subprocess.Popen(words, start_new_session=True, preexec_fn=before_exec, **popen)
    except (OSError, subprocess.SubprocessError) as error:
        say({"error": getattr(error, "strerror", None) or str(error)})
        os._exit(0)
    say({"pid": program.pid, "began": began})
    for name in ("stdin", "stdout", "stderr"):
        os.close(popen[name])

    def reap(found: Iterable[int] = ()) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == program.pid:
                    ended = time.monotonic()
                    say({"status": status, "usage": _numbers(usage), "ended": ended})

    _reap_until_ordered(orders, woken, reap)
    say({"left": _end_all_below(reap)})
    os._exit(0)


def _reap_until_ordered(orders: int, woken: int, reap: Callable[[], None]) -> None:
    """Reap whatever ends, until the agent closes its pipe of orders."""
    while True:
        ready = select.select([orders, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            reap()
        if orders in ready:
            return


def _end_all_below(reap: Callable[..., None]) -> List[int]:
    """End every process below this one; return those that cannot be ended."""
    while True:
        left = _end_below(set(), reap)
        reap()
        # A scan of /proc can miss a process whose parent ends meanwhile; the kernel's list cannot.
        if left or not _has_children():
            return left


def _has_children() -> bool:
    """Tell whether this process, which adopts orphans, has any process below it (waitid(2))."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _end_below(keep: Set[int], reap: Optional[Callable[[Set[int]], None]] = None) -> List[int]:
    """Kill whatever lives below this process, but for ``keep``; return the pids that stay."""
    me = os.getpid()

    def find() -> List[int]:
        table = kernel.processes()
        # A dead process that is not our child is its parent's to reap, and gone for us.
        return [
            pid
            for pid in kernel.descendants(me, table)
            if pid not in keep and not (table[pid].state == "Z" and table[pid].parent != me)
        ]

    def reap_found(found: Set[int]) -> None:
        for pid in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    return sorted(end(find, reap or reap_found))
