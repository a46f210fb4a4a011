"""A private server: started under a binding in a data directory of its own, asked, ended.

It dies with the process that started it. What a kind of server says (how it is asked, what its log
means, how it becomes warm) is a subclass's.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .. import idle, kernel
from ..contract import reason
from ..errors import Fault
from ..paths import without_home

if TYPE_CHECKING:
    from .remote import ClientHost

LOG = "numalab-server.log"
START_IDLE_S = 180.0
STOP_LIMIT_S = 60.0
_LOG_BYTES = 64 << 10  # at its end, that are looked at
DYING_S = 0.3  # for a server that is dying to have ended
Binding = Mapping[str, Optional[str]]  # the arguments of kernel.bind


class Refused(Exception):
    """A server's own words, when it does not do what it was asked."""


class RunningServer:
    """A started server. ``stop`` or ``kill`` it in any case.

    ``name`` is that of one of several ("instance 2"), "" of the only one. ``listen`` is the address
    and port for a client on another host. A ``binding`` that cannot be had is the last word of
    its log. ``environment`` is added to its own.
    """

    start_limit_s: Optional[float] = None  # in all, where somebody gave it one
    refuses_root = False
    end_signal = signal.SIGTERM
    ends_well: Sequence[int] = (0,)  # the exit statuses after that signal

    def __init__(
        self,
        title: str,
        words: Sequence[str],
        datadir: str,
        name: str = "",
        keep_open: Sequence[int] = (),
        listen: Optional[Tuple[str, int]] = None,
        binding: Optional[Binding] = None,
        environment: Optional[Mapping[str, str]] = None,
    ) -> None:
        self.title, self.datadir, self.name, self.listen = title, datadir, name, listen
        self.log = os.path.join(datadir, LOG)

        def settle() -> None:
            try:
                kernel.bind(**(binding or {"cpus": None}))
            except Fault as fault:
                os.write(2, f"numalab: {fault.what}\n".encode())
                os._exit(1)

        with open(self.log, "wb") as log:
            try:
                self.process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=datadir,
                    pass_fds=tuple(keep_open),
                    preexec_fn=kernel.die_with_parent(settle, nobody=self.refuses_root),
                    env={**os.environ, **(environment or {})},
                    start_new_session=True,  # some signal their whole group when they end
                )  # fmt: skip
            except (OSError, subprocess.SubprocessError) as error:
                raise Fault(
                    reason("program-does-not-start", program=words[0], error=str(error))
                ) from None
        self.pid = self.process.pid

    # --- what a kind of server says -----------------------------------------------------------

    def ask(self, timeout_s: float) -> None:
        """Ask it anything. Raises OSError or Refused as long as it does not answer."""
        raise NotImplementedError

    def about(self) -> Dict[str, Any]:
        """Return what is known of it before it answers: title, build, configuration."""
        return {"title": self.title}

    def variables(self) -> Dict[str, str]:
        """Return its settings as it tells them itself, without paths."""
        return {}

    def counters(self) -> Mapping[str, float]:
        """Return its own counters; Fault when it does not tell them."""
        return {}

    def warm(self) -> None:
        """Bring its data into memory."""

    def admit(self, client: ClientHost) -> None:
        """Let a client come in from another host."""
        raise NotImplementedError

    def dismiss(self, client: ClientHost) -> None:
        """Take back what ``admit`` gave."""
        raise NotImplementedError

    def said(self) -> str:
        """Return the last errors of its log, without times and home folders; "" without any."""
        return last_words(log_lines(self.log))

    # --- its life -----------------------------------------------------------------------------

    def fault(self, code: str, **fields: Any) -> Fault:
        """Return a fault of this server, with its last words; a full disk is its hint."""
        who = {"instance": self.name, "title": self.title}
        return Fault(reason(code, **who, said=self.said(), **fields), out_of_space(self.log))

    def wait_until_it_answers(self) -> None:
        """Return when it has answered; Fault when it ends, or hangs.

        A large data set on a slow disk takes its time: as long as its log grows or it uses CPU
        time, it is starting. It has ``start_limit_s`` in all only where somebody said so.
        """
        started, watch = time.monotonic(), idle.Idle(self.pid, self.log)
        limit_s = self.start_limit_s or START_IDLE_S
        while True:
            if self.process.poll() is not None:
                ended = self._how_it_ended()
                if self.process.returncode == 0:
                    ended += ", where it must stay in the foreground"
                raise self.fault("server-refused-to-start", ended=ended)
            try:
                self.ask(limit_s)
                return
            except (OSError, Refused) as error:
                in_all = self.start_limit_s is not None
                if (time.monotonic() - started if in_all else watch.for_s()) > limit_s:
                    code = "server-did-not-answer" if in_all else "server-hangs"
                    raise self.fault(code, limit_s=limit_s, error=str(error)) from None
            time.sleep(0.01)

    def check_alive(self, when: str, patience_s: float = 0.0) -> None:
        """Raise Fault when it has ended by itself; one that is dying may take ``patience_s``."""
        if patience_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)
        if self.process.poll() is not None:
            raise self.fault("server-died", when=when, ended=self._how_it_ended())

    def _how_it_ended(self) -> str:
        status = self.process.returncode
        if status is None or status >= 0:
            return f"exit status {status}"
        return f"killed by {kernel.signal_name(-status)}"

    def stop(self, limit_s: Optional[float] = None) -> None:
        """Shut it down in order; Fault when it had to be killed, or did not end well.

        Without a limit it has STOP_LIMIT_S seconds.
        """
        limit_s = limit_s or STOP_LIMIT_S
        self.check_alive("before it was to shut down")
        self.ask_to_end(limit_s)
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self.fault("server-did-not-shut-down", limit_s=limit_s) from None
        if self.process.returncode not in self.ends_well:
            raise self.fault("server-shut-down-badly", ended=self._how_it_ended())

    def ask_to_end(self, limit_s: float) -> None:
        """Begin its shutting down; Fault where it cannot be asked within the limit."""
        self.process.send_signal(self.end_signal)

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)

    def usage(self) -> Dict[str, float]:
        """Return what it has used so far: see ``usage``."""
        return usage(self.pid)


def usage(pid: int) -> Dict[str, float]:
    """Return what a process has used so far: CPU time (s), faults, its threads' switches.

    CPU time and faults (proc_pid_stat(5)) include threads that have ended; context switches are
    those of the living (proc_pid_status(5)). Empty when the process has ended.
    """
    stat = kernel.stat_of(f"/proc/{pid}")
    if stat is None:
        return {}
    switches = 0
    for tid in kernel.threads(pid):
        status = kernel.status(kernel.read_text(f"/proc/{pid}/task/{tid}/status"))
        for kind in ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"):
            switches += kernel.integer(status.get(kind)) or 0
    cpu_s = stat.ticks / os.sysconf("SC_CLK_TCK")
    with contextlib.suppress(OSError):
        # The process's own clock, in nanoseconds (clock_getcpuclockid(3); CPUCLOCK_SCHED of the
        # kernel's include/linux/posix-timers.h).
        cpu_s = time.clock_gettime((~pid << 3) | 2)
    return {
        "cpu_s": cpu_s,
        "minor_faults": float(stat.minor_faults),
        "major_faults": float(stat.major_faults),
        "switches": float(switches),
    }


def difference(after: Mapping[str, float], before: Mapping[str, float]) -> Dict[str, float]:
    """Return how much each number of ``before`` has grown; empty when either is."""
    return {name: round(after[name] - before[name], 4) for name in before} if after else {}


# --- logs -------------------------------------------------------------------------------------


def log_lines(log: str) -> List[str]:
    """Return the last lines of a log; none of one that cannot be read."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.path.getsize(log) - _LOG_BYTES))
            return file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return []


def last_words(lines: Sequence[str]) -> str:
    """Return the last two lines that are not empty as one text that may be published."""
    said = [line.strip() for line in lines if line.strip()][-2:]
    return without_home(" | ".join(said))[:400]


def out_of_space(log: str) -> Optional[str]:
    """Return a hint when a server's log says that its disk is full, else None."""
    full = r"No space left|[Dd]isk is full|\bENOSPC\b|[Ee]rr(no|or):? 28\b"
    if re.search(full, "\n".join(log_lines(log))):
        return "the disk is full: free some space, or let XDG_CACHE_HOME name another disk"
    return None
