"""One run of a load generator against one server: a warm-up, then what is measured.

At the end of the warm-up it prints a checkpoint and resets all its counters: its final report is of
the measured time, by sessions, threads and caches that are warm. One that prints no checkpoint has
no warm-up: all of its run is measured.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Protocol, Sequence

from .. import cpulist, kernel
from ..collectors import memory_model
from ..contract import reason
from ..errors import Fault
from . import remote
from .instance import DYING_S, difference, usage

Watched = Mapping[str, Callable[[], Dict[str, float]]]  # what has been used so far, by a name
GRACE_S = 60.0  # beyond its time, for a client to start and to end


class Asked(Protocol):
    """What a client asks: a server, or several behind one address."""

    name: str
    datadir: str

    def usage(self) -> Dict[str, float]:
        """Return what it has used so far."""

    def counters(self) -> Mapping[str, float]:
        """Return its own counters."""

    def check_alive(self, when: str, patience_s: float = 0.0) -> None:
        """Raise Fault when it has ended by itself."""


class Client:
    """A started load generator. A subclass says its ``program`` and what it prints.

    ``words`` are its command line, ``cpus`` those that it may use; with ``there`` it is started on
    that host, where the program is on the PATH. ``watched`` is read when the measurement begins and
    ends: what has grown between is part of the run; without it, what the ``server`` has used. On a
    host whose memory timing is configured, so is what its ``model`` counted.
    ``about`` is part of the run as it is.
    """

    program = ""
    checkpoint: Optional[bytes] = b""  # what it prints when the measurement begins; None: nothing
    complaints: Sequence[str] = ()  # how lines begin that say why it failed
    ends_after_time = True  # it ends after ``time_s``; else only the trial's own limit ends it

    def __init__(
        self,
        server: Asked,
        words: List[str],
        threads: int,
        lead_s: int,
        time_s: int,
        cpus: Sequence[int],
        there: Optional[remote.ClientHost],
        watched: Optional[Watched] = None,
        about: Optional[Mapping[str, Any]] = None,
    ) -> None:
        self.server, self.threads, self.there, self.about = server, threads, there, about or {}
        # The model first: what the other looks cost is in the client's time, and so is counted.
        of_model = {"model": memory_model.totals} if memory_model.configuration() else {}
        self.watched = {**of_model, **(watched or {"server": server.usage})}
        self.lead_s, self.time_s = lead_s, time_s
        self.output = Path(server.datadir, "client.out")
        self.late = False
        self.cpu_s = 0.0
        self.status: Optional[int] = None
        self.began = time.monotonic()
        self.measured: Optional[float] = None  # since when
        self.ended = self.began
        self.client_before: Dict[str, float] = {}
        self.before: Dict[str, Dict[str, float]] = {}
        self.after: Dict[str, Dict[str, float]] = {}
        self.counters_before: Mapping[str, float] = {}
        if there:
            words = remote.command_line(there, [self.program, *words[1:]])
        stay = kernel.die_with_parent(lambda: os.sched_setaffinity(0, cpus))
        if self.checkpoint is None:
            self._begin()
        with open(self.output, "wb") as file:
            try:
                self.process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=server.datadir,
                    preexec_fn=stay,
                )  # fmt: skip
            except subprocess.SubprocessError:
                where = cpulist.format(cpus)
                raise Fault(reason("client-cpus-gone", program=self.program, cpus=where)) from None
            except OSError as error:
                raise Fault(
                    reason("program-does-not-start", program=words[0], error=error.strerror)
                ) from None

    def look(self) -> bool:
        """Look once: note what is new; tell whether it has ended.

        One far too late is killed; Fault where one that may take longer has lost its server.
        """
        if self.status is not None:
            return True
        pid, status, used = os.wait4(self.process.pid, os.WNOHANG)
        if pid:
            self.ended = time.monotonic()
            self.status = self.process.returncode = os.waitstatus_to_exitcode(status)
            self.cpu_s = used.ru_utime + used.ru_stime
            self.after = {name: look() for name, look in self.watched.items()}
            return True
        if self.measured is None and self.begun():
            self._begin()
            self.client_before = usage(self.process.pid)
        if time.monotonic() > self._end_due() + GRACE_S and not self.late:
            if self.ends_after_time:
                self.late = True
                self.process.kill()
            else:
                self.server.check_alive("in the measurement")
        return False

    def begun(self) -> bool:
        """Tell whether its output says that the measurement has begun."""
        return bool(self.checkpoint) and (self.checkpoint or b"") in self.output.read_bytes()

    def _begin(self) -> None:
        self.measured = time.monotonic()
        self.before = {name: look() for name, look in self.watched.items()}
        self.counters_before = self.server.counters()

    def _end_due(self) -> float:
        return self.began + self.lead_s + self.time_s

    def is_due(self, within_s: float) -> bool:
        """Tell whether its checkpoint or its end is to be expected soon."""
        due = self._end_due() if self.measured else self.began + self.lead_s
        return time.monotonic() + within_s > due

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        if self.status is None:
            self.process.kill()

    def run(self) -> Dict[str, Any]:
        """Return what it printed, how it ended, and its CPU time (s) while it was measured.

        Of a client on another host the CPU time is the whole run's, by the share of its time.
        """
        text, cpu_s = self._printed(), self.cpu_s - self.client_before.get("cpu_s", 0.0)
        if self.there:
            text, cpu_s = remote.cpu_time(text)
            cpu_s *= self.time_s / (self.lead_s + self.time_s)
        run = {
            **self.about,
            "instance": self.server.name,
            "clients": self.threads,
            "lead_s": self.lead_s,
            "elapsed_s": round(self.ended - (self.measured or self.began), 4),
            "text": text,
            "exit_status": self.status,
            "client_cpu_s": round(cpu_s, 4),
        }
        for name, before in self.before.items():
            used = difference(self.after.get(name, {}), before)
            if used:
                run[name] = used
        return {**run, "client_cpus": self.there.cpus} if self.there else run

    def counted(self) -> Dict[str, float]:
        """Return how much the server's counters grew since the checkpoint; {} after a failure."""
        if self.status or not self.counters_before:
            return {}
        return difference(self.server.counters(), self.counters_before)

    def _printed(self) -> str:
        return self.output.read_text(errors="replace")

    def check(self) -> None:
        """Raise Fault with the reason when it did not end well, or its server did not survive."""
        phase = "warm-up" if self.measured is None else "measurement"
        self.server.check_alive(f"in the {phase}", 0.0 if self.status == 0 else DYING_S)
        if self.status == 0 and (self.checkpoint is None or not self.lead_s or self.begun()):
            return
        who = {"program": self.program, "instance": self.server.name}
        if self.late:
            answers = False
            with contextlib.suppress(Fault):
                self.server.counters()
                answers = True
            raise Fault(
                reason("client-did-not-end", **who, limit_s=GRACE_S,
                       planned_s=self.lead_s + self.time_s, server_answers=answers)
            )  # fmt: skip
        if self.status == 0:
            raise Fault(reason("client-without-checkpoint", **who))
        text = self._printed()
        lines = (remote.cpu_time(text)[0] if self.there else text).splitlines()
        shown = [line.strip() for line in lines if line.strip()]
        said = [line for line in lines if line.startswith(tuple(self.complaints))][:1]
        said = said or list(dict.fromkeys(shown[:1] + shown[-1:]))  # it may begin with why
        raise Fault(
            reason("client-failed", **who, phase=phase, exit_status=self.status,
                   said=" | ".join(said)[:300])
        )  # fmt: skip
