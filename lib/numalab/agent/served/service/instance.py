"""One started instance of a service: whether it is ready, its counters, its warm-up, its end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ... import kernel
from ...contract import reason
from ...errors import Fault
from ...paths import without_home
from ..balancer import Balancer
from ..dataset import Copy
from ..instance import DYING_S, Binding, Refused, RunningServer, last_words, log_lines, usage
from . import description
from .description import Service

_ASK_LIMIT_S = 5.0
_COMMAND_LIMIT_S = 600.0  # for a command of the warm-up
_MOST_BYTES = 1 << 20  # of an answer
_SETTLING_S = 2.0  # for processes that are ending
_QUIET_S = 0.2  # after which an answer to a line is taken to be whole


class RunningService(RunningServer):
    """An instance, started by its file's command line with ``values`` in the place of words."""

    def __init__(
        self,
        service: Service,
        title: str,
        values: Mapping[str, Any],
        texts: Mapping[str, str],
        copy: Copy,
        binding: Binding,
        name: str,
    ) -> None:
        self.service, self.values, self.texts = service, values, texts
        self.start_limit_s = service.ready.within_s
        self.refuses_root = service.refuses_root
        self.end_signal = signal.Signals[f"SIG{service.stop.signal}"]
        self.ends_well = (0, -self.end_signal, 128 + self.end_signal)
        every = {**values, **texts}
        for file, text in service.files.items():
            Path(copy.datadir, file).write_text(description.filled(text, every), encoding="utf-8")
        self.words = self._words(service.start)
        environment = {k: description.filled(v, every) for k, v in service.environment.items()}
        super().__init__(
            title, self.words, copy.datadir, name, (copy.lock,), None, binding, environment
        )

    @property
    def address(self) -> str:
        """Where it listens: ``unix:PATH``, or HOST:PORT."""
        if self.service.on_socket:
            return f"unix:{self.values['socket']}"
        return f"127.0.0.1:{self.values['port']}"

    def about(self) -> Dict[str, Any]:
        """As of the base: its command line and files, without the home folder."""
        every = {**self.values, **self.texts}
        files = {k: description.filled(v, every) for k, v in self.service.files.items()}
        config = [" ".join(self.words), *(f"# {name}\n{text}" for name, text in files.items())]
        return {"title": self.title, "config": without_home("\n".join(config))}

    def ask(self, timeout_s: float) -> None:
        """As of the base: see `description.Ready`."""
        ready = self.service.ready
        if ready.http:
            self._page(ready.http)
        elif ready.command:
            self._run(ready.command, _ASK_LIMIT_S)
        elif ready.says:
            if not any(ready.says in line for line in log_lines(self.log)):
                raise Refused(f"its log does not say {ready.says!r}")
        else:
            self._connect().close()

    def counters(self) -> Dict[str, float]:
        """As of the base; Fault for one that is missing."""
        counters = self.service.counters
        if not counters.metrics:
            return {}
        try:
            text = self._counters_as_text()
            found = {} if not counters.http else _numbers_of(text)
        except (OSError, Refused, http.client.HTTPException) as error:
            self.check_alive("while it was asked for its counters", DYING_S)
            raise self.fault("server-tells-no-counters", error=str(error)) from None
        found.update(description.numbers(counters.metrics, text))
        missing = sorted(set(counters.metrics) - set(found))
        if missing:
            raise self.fault("server-lacks-counter", counter=missing[0])
        return {name: found[name] for name in counters.metrics}

    def warm(self) -> None:
        """As of the base: the command of the warm-up, where there is one."""
        if not self.service.warm.command:
            return
        try:
            self._run(self.service.warm.command, _COMMAND_LIMIT_S)
        except (OSError, Refused) as error:
            self.check_alive("while it was warmed up", DYING_S)
            raise self.fault("service-not-warmed", error=str(error)) from None

    def stop(self, limit_s: Optional[float] = None) -> None:
        """As of the base, within its own limit."""
        super().stop(limit_s or self.service.stop.within_s)

    def ask_to_end(self, limit_s: float) -> None:
        """As of the base; where its file has a command for that, by this alone."""
        if not self.service.stop.command:
            super().ask_to_end(limit_s)
            return
        try:
            self._run(self.service.stop.command, limit_s)
        except (OSError, Refused) as error:
            raise self.fault("stop-command-failed", error=str(error)) from None

    def kill(self) -> None:
        """As of the base, with all processes below it."""
        below = kernel.descendants(self.pid)
        super().kill()
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def usage(self) -> Dict[str, float]:
        """Return the CPU time (s) of all its processes, also of those that were waited for.

        Faults and switches are left out: those of a process that ends would be lost. Empty when
        the service has ended.
        """
        deadline = time.monotonic() + _SETTLING_S
        while True:
            table = kernel.processes()
            if self.pid not in table:
                return {}
            ended = self._ended_ticks(table)
            cpu_s = sum(ended.values()) / os.sysconf("SC_CLK_TCK")
            cpu_s += sum(usage(pid).get("cpu_s", 0.0) for pid in ended)
            # A child that its parent waits for after the parent was read is in neither sum, and
            # may be in neither list: only the parent's own sum tells. Sessions end together.
            settled = self._ended_ticks(kernel.processes()) == ended
            if settled or time.monotonic() > deadline:
                return {"cpu_s": cpu_s}

    def _ended_ticks(self, table: Mapping[int, kernel.Stat]) -> Dict[int, int]:
        """Return the CPU time of the children that each of its processes waited for, by number."""
        members = self._members(table)
        return {pid: table[pid].children_ticks if pid in table else 0 for pid in members}

    def _members(self, table: Mapping[int, kernel.Stat]) -> Set[int]:
        """Return all its processes, also those that have ended and wait for their parent."""
        return {*kernel.tree([self.pid], table), *kernel.descendants(self.pid, table), self.pid}

    # --- talking ------------------------------------------------------------------------------

    def _words(self, line: str) -> List[str]:
        words = description.words(line, self.values, self.texts)
        return [os.path.expanduser(words[0]), *words[1:]]

    def _run(self, line: str, limit_s: float) -> str:
        """Run a command beside it; Refused with its last words where it fails."""
        try:
            done = subprocess.run(
                self._words(line), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, cwd=self.datadir, timeout=limit_s, text=True,
                errors="replace", preexec_fn=kernel.die_with_parent(lambda: None),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Refused(f"{line.split()[0]} did not end within {limit_s:g} s") from None
        if done.returncode:
            said = last_words(done.stdout.splitlines())
            raise Refused(f"exit status {done.returncode}: {said}")
        return done.stdout

    def _connect(self) -> socket.socket:
        return connect(self.address)

    def _page(self, path: str) -> str:
        """Return a page; Refused for an answer that is not 2xx."""
        page = http.client.HTTPConnection("localhost", timeout=_ASK_LIMIT_S)
        page.sock = self._connect()
        try:
            page.request("GET", path)
            answer = page.getresponse()
            body = answer.read(_MOST_BYTES).decode("utf-8", "replace")
        except http.client.HTTPException as error:
            raise Refused(f"no answer of HTTP: {error!r}") from None
        finally:
            page.close()
        if not 200 <= answer.status < 300:
            raise Refused(f"GET {path} is answered by {answer.status} {answer.reason}")
        return body

    def _counters_as_text(self) -> str:
        counters = self.service.counters
        if counters.http:
            return self._page(counters.http)
        if counters.command:
            return self._run(counters.command, _ASK_LIMIT_S)
        with self._connect() as line:
            line.sendall(counters.send.encode())
            return _all_of(line)


def connect(address: str) -> socket.socket:
    """Return a connection to ``unix:PATH`` or HOST:PORT; OSError where nobody answers."""
    kind, target = _target(address)
    one = socket.socket(kind, socket.SOCK_STREAM)
    one.settimeout(_ASK_LIMIT_S)
    try:
        one.connect(target)
    except OSError:
        one.close()
        raise
    return one


def _target(address: str) -> Tuple[socket.AddressFamily, Any]:
    if address.startswith("unix:"):
        return socket.AF_UNIX, address[5:]
    host, _, port = address.rpartition(":")
    return socket.AF_INET, (host, int(port))


def _all_of(line: socket.socket) -> str:
    """Return what comes until nothing has come for a while."""
    parts: List[bytes] = []
    with contextlib.suppress(socket.timeout):
        while sum(map(len, parts)) < _MOST_BYTES:
            part = line.recv(65536)
            if not part:
                break
            parts.append(part)
            line.settimeout(_QUIET_S)
    return b"".join(parts).decode("utf-8", "replace")


def _numbers_of(text: str) -> Dict[str, float]:
    """Return the numbers of a JSON object; {} of any other text."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    pairs = data.items() if isinstance(data, dict) else ()
    return {k: float(v) for k, v in pairs if isinstance(v, (int, float))}


class Together:
    """All instances of a cell, behind one balancer: what one client takes for its server."""

    name = ""

    def __init__(self, servers: Sequence[RunningService], balancer: Balancer) -> None:
        self.servers, self.balancer = servers, balancer
        self.datadir = balancer.datadir

    def usage(self) -> Dict[str, float]:
        """Return the CPU time (s) of all so far."""
        return {"cpu_s": sum(self.cpu_by_instance().values())}

    def cpu_by_instance(self) -> Dict[str, float]:
        """Return the CPU time (s) of each so far, by its name."""
        return {server.name: server.usage().get("cpu_s", 0.0) for server in self.servers}

    def counters(self) -> Dict[str, float]:
        """Return the counters of each and the balancer's, as METRIC:INSTANCE."""
        found = self.balancer.counters()
        for server in self.servers:
            for metric, value in server.counters().items():
                found[f"{metric}:{server.name}"] = value
        return found

    def check_alive(self, when: str, patience_s: float = 0.0) -> None:
        """Raise Fault when one of them, or the balancer, has ended by itself."""
        for server in (*self.servers, self.balancer):
            server.check_alive(when, patience_s)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def check_nobody_listens(port: int, name: str) -> None:
    """Raise Fault when somebody has taken the port since it was chosen."""
    with contextlib.suppress(OSError):
        connect(f"127.0.0.1:{port}").close()
        raise Fault(reason("port-taken", port=port, instance=name), "run it again")
