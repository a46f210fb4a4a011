"""The process of one trial: it starts the servers, warms them, and runs the clients.

It speaks the handshake of ``agent/trial/trial.py``. Only a server carries the cell's binding; the
``ready`` line names its process, which is what the trial proves and counts. Where a cell has
several instances, each has a server and a client of its own, and all clients start together.
Every line printed is a JSON object with ``event``:

- ``server``, one for each instance: title, build, configuration as it was written, what the server
  itself says of it, and how its data directory came to be
- ``ready``: ``pids``, ``warmup_s`` (data and client), and what the start took
- ``run``, one for each client: its output as it came (``lead_s`` of warm-up come first), what the
  server used while it was measured, and ``late_s``, if go came after that had begun. A trial of
  several ``phase`` (see `ServedTrial.phases`) has such runs of each: all but the last come before
  ``ready``
- ``result``: all runs are done; ``end``: the servers have shut down
- ``fault``: why there is no result: ``reason``, and ``what`` and ``hint`` in words
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, TextIO, Tuple

from .. import cpulist
from ..collectors import memory_model
from ..contract import ToolRecord, from_json, reason
from ..errors import Fault
from ..trial.events import say
from . import remote
from .client import Client
from .dataset import Copies, Copy, fault_event
from .instance import Binding, Refused, RunningServer

_ROOM_S = 1  # of warm-up, in which the engine proves the placement and starts to count


class NobodyListens(Fault):
    """Whoever started this process is gone."""


def main(
    kind: Callable[..., ServedTrial], arguments: Sequence[str], orders: TextIO = sys.stdin
) -> int:
    """Perform one trial; see the module. The exit status is 0 when everything went well.

    Words: ``--tool`` (JSON of the ToolRecord), ``--instances`` (JSON: of each server ``name`` and
    the arguments of kernel.bind), ``--options`` (JSON: as the driver resolved them).
    """
    asked = {word[2:]: json.loads(value) for word, value in zip(arguments[::2], arguments[1::2])}
    try:
        trial = kind(from_json(ToolRecord, asked["tool"]), asked["instances"], asked["options"])
        try:
            trial.perform(orders)
        finally:
            trial.kill()
    except NobodyListens:
        return 4
    except Fault as fault:
        say({"event": "fault", **fault_event(fault)})
        return 3
    except (OSError, Refused) as error:
        say({"event": "fault", **fault_event(Fault(reason("trial-broke", error=str(error))))})
        return 3
    return 0


class ServedTrial:
    """The servers of one trial and their clients; a subclass says how to start them.

    ``phases`` are loads of the same servers, one after the other; the last is what is counted and
    proven. A client that does not lead (``client_leads``) has no warm-up and starts after go.
    """

    client_program = ""  # on the PATH of a client's host
    client_leads = True
    phases: Tuple[str, ...] = ("",)

    def __init__(
        self,
        found: ToolRecord,
        instances: List[Dict[str, Any]],
        options: Mapping[str, Any],
        data: Copies,
    ) -> None:
        self.found = found
        self.asked = instances
        self.options = options
        self.data = data
        self.client_cpus = cpulist.parse(options["client_cpus"])
        self.there: Optional[remote.ClientHost] = None
        self.servers: List[RunningServer] = []
        self.copies: List[Copy] = []
        self.clients: List[Client] = []
        self.lead_s = 0
        if memory_model.configuration():  # it has the clock from go on: a client's whole life is
            self.client_leads = False  # to be in its time
        self.follower: Optional[threading.Thread] = None
        self.trouble: Optional[BaseException] = None

    def start_server(self, name: str, binding: Binding, copy: Copy) -> RunningServer:
        """Return a bound server started on a working copy, which holds the copy's lock too."""
        raise NotImplementedError

    def start_client(self, server: RunningServer) -> Client:
        """Return a client started against a server, with ``lead_s`` of warm-up."""
        raise NotImplementedError

    def start_clients(self, phase: str) -> Iterator[Client]:
        """Start the clients of a phase: one for each server, where a subclass does not say."""
        return map(self.start_client, self.servers)

    def warm_up(self) -> None:
        """Bring every server to where it can be measured, before any phase."""
        at_once([server.warm for server in self.servers])

    def perform(self, orders: TextIO) -> None:
        """The whole trial, from the working copies to the servers' end."""
        began = time.monotonic()
        self._start_servers()
        answered = time.monotonic()
        self.warm_up()
        filled = time.monotonic()
        # A host that starts a server slowly also proves and counts slowly.
        room_s = _ROOM_S + (int(answered - began) // 4 if self.client_leads else 0)
        self.lead_s = self.options["warmup_s"] + room_s
        for phase in self.phases[:-1]:
            self._begin(phase)
            self._measure(phase)
        self._begin(self.phases[-1])
        say(
            {
                "event": "ready",
                "pids": [server.pid for server in self.servers],
                "start_s": round(answered - began, 3),
                "fill_s": round(filled - answered, 3),
                "warmup_s": round(time.monotonic() - answered, 3),
            }
        )
        _wait_for("go", orders)
        self._measure(self.phases[-1])
        say({"event": "result"})
        _wait_for("quit", orders)
        self._end()

    def _start_servers(self) -> None:
        if self.options.get("client_host"):
            self.there = remote.look(self.options["client_host"], self.client_program)
        for number, one in enumerate(self.asked):
            copy = self.data.take(number)
            self.copies.append(copy)
            try:
                name = one["name"]
                binding = {word: given for word, given in one.items() if word != "name"}
                self.servers.append(self.start_server(name, binding, copy))
            finally:
                os.close(copy.lock)  # the server's own descriptor holds it as long as it lives
        # Only now: a server that is not bound inherits the CPUs.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, self.client_cpus)
        for server, copy in zip(self.servers, self.copies):
            self._introduce(server, copy)

    def _introduce(self, server: RunningServer, copy: Copy) -> None:
        """Wait until a server answers; say what it is in any case."""
        event: Dict[str, Any] = {
            "event": "server",
            "instance": server.name,
            **server.about(),
            "data": copy.how,
            "data_bytes": copy.bytes,
            "data_s": round(copy.seconds, 3),
            "client_cpus": self.options["client_cpus"],
        }
        if self.there:
            event["client"] = f"{self.client_program} {self.there.version}"
        try:
            server.wait_until_it_answers()
            event["variables"] = server.variables()
            if self.there:
                server.admit(self.there)
        finally:
            say(event)

    def _begin(self, phase: str) -> None:
        """Begin a phase: its clients come to where they are to be measured."""
        self.clients = []
        if self.client_leads:
            self._start_clients(phase)
            self._await_lead()

    def _start_clients(self, phase: str) -> None:
        for client in self.start_clients(phase):
            self.clients.append(client)
        self.follower = threading.Thread(target=self._follow, daemon=True)
        self.follower.start()

    def _await_lead(self) -> None:
        assert self.follower
        due = self.clients[0].began + self.options["warmup_s"]
        while time.monotonic() < due and self.follower.is_alive():
            time.sleep(min(0.1, max(0.0, due - time.monotonic())))
        for client in self.clients:
            if client.status is not None and client.measured is None:
                say({"event": "warmup", **client.run()})
                client.check()

    def _follow(self) -> None:
        """Follow all clients to their ends: they are measured while others count."""
        try:
            waiting = list(self.clients)
            while waiting:
                waiting = [client for client in waiting if not client.look()]
                soon = any(client.is_due(0.2) for client in waiting)
                time.sleep(0.005 if soon else 0.1)  # it is no load beside them
        except BaseException as error:
            self.trouble = error

    def _measure(self, phase: str) -> None:
        went = time.monotonic()
        if not self.client_leads:
            self._start_clients(phase)
        assert self.follower
        self.follower.join()
        if self.trouble:
            raise self.trouble
        for client in self.clients:
            event = {"event": "run", **client.run()}
            if client.measured and self.client_leads:
                event["late_s"] = round(max(0.0, went - client.measured), 3)
            counted = client.counted()
            say({**event, "status": counted} if counted else event)
        for client in self.clients:
            client.check()

    def _end(self) -> None:
        began = time.monotonic()
        at_once([functools.partial(self._stop, server) for server in self.servers])
        if not self.options["writes"]:
            for number in range(len(self.servers)):
                self.data.mark_clean(number)
        say({"event": "end", "stop_s": round(time.monotonic() - began, 3)})

    def _stop(self, server: RunningServer) -> None:
        if self.there:
            server.check_alive("before it was to shut down")
            server.dismiss(self.there)
        server.stop()

    def kill(self) -> None:
        """End clients and servers at once, those that have not ended."""
        for client in self.clients:
            client.kill()
        if self.follower:
            self.follower.join(1.0)
        for server in self.servers:
            server.kill()


def _wait_for(word: str, orders: TextIO) -> None:
    line = orders.readline()
    if not line:
        raise NobodyListens(f"nobody said {word!r}")
    if line.strip() != word:
        raise Fault(f"{line.strip()!r} was said where {word!r} was expected")


def at_once(what: Sequence[Callable[[], None]]) -> None:
    """Do several things at the same time, to their end; the first exception of them is raised."""
    errors: List[BaseException] = []

    def guarded(one: Callable[[], None]) -> None:
        try:
            one()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(one,), daemon=True) for one in what]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
