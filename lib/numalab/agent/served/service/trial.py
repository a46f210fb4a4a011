"""The process of one trial of a service; see `served.trial`.

An instance has a folder of its own, a unix socket or a port of 127.0.0.1, and the cell's binding.
The balancer and the clients are on the client's CPUs: with a balancer one client asks all
instances through it, without one each instance has a client of its own, with its part of the load.
Besides the lines of `served.trial` it prints ``warm``: whether the condition of the warm-up came
to hold. Its runs also have ``phase``, ``load`` (the kind), ``figures`` (what its output holds) and
``metrics`` (the units of the counters).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Union

from ... import paths
from ...contract import ToolRecord, to_json
from ...trial.events import say
from .. import balancer, trial
from ..balancer import Balancer
from ..client import Client
from ..dataset import Copies, Copy
from ..instance import Binding, RunningServer
from ..private import PrivateFolder
from . import data, description, loads
from .description import COMMAND, NO_BALANCER
from .instance import RunningService, Together, check_nobody_listens, free_port

_LOOK_S = 0.5  # at the counters, while a condition of the warm-up is awaited


class ServiceTrial(trial.ServedTrial):
    """The instances of a cell, and the phases of its load."""

    def __init__(
        self, found: ToolRecord, instances: List[Dict[str, Any]], options: Mapping[str, Any]
    ) -> None:
        self.service = description.read(found.facts["service"])
        self.private = PrivateFolder()
        own: Copies = self.private
        if self.service.prepare:
            own = data.PreparedData(found, options)
        super().__init__(found, instances, options, own)
        self.load = self.service.load
        self.client_leads = self.load.kind != COMMAND
        rate = options["rate"]
        self.phases = tuple(
            phase
            for phase, wanted in ((loads.SATURATION, options["saturation_s"]), (loads.RATE, rate))
            if wanted
        )
        self.texts = description.texts_of(self.service, options)
        self.balanced = options["balancer"] != NO_BALANCER
        self.balancer: Optional[Balancer] = None

    def start_server(self, name: str, binding: Binding, copy: Copy) -> RunningServer:
        """As of the base."""
        number = len(self.servers)
        values = {
            **self._common(),
            "datadir": copy.datadir,
            "rundir": self.private.of(number),
            "socket": f"{self.private.of(number)}/socket",
            "port": free_port(),
        }
        check_nobody_listens(values["port"], name)
        return RunningService(
            self.service, self.found.facts["server"], values, self.texts, copy, binding, name
        )

    def _common(self) -> Dict[str, Any]:
        clients = 1 if self.balanced else len(self.asked)
        return {
            **paths.own(self.found.facts["programs"]),
            **{name: self.options[name] for name in self.service.options},
            "here": os.path.expanduser(self.found.facts["here"]),
            "cpus": self.options["cpus"],
            "connections": max(1, self.options["connections"] // clients),
            "threads": max(1, len(self.client_cpus) // clients),
            "seed": self.options["seed"],
            "rate": 0,
            "lead_s": 0,
            "time_s": self.options["time_s"],
        }

    def warm_up(self) -> None:
        """As of the base; then load until the condition of the warm-up holds."""
        super().warm_up()
        if self.balanced:
            self._start_balancer()
        until = self.service.warm.until
        if until:
            began = time.monotonic()
            held = self._load_until(until)
            say({"event": "warm", "held": held, "counter": until.counter, "below": until.below,
                 "seconds": round(time.monotonic() - began, 3)})  # fmt: skip

    def _start_balancer(self) -> None:
        facts = self.found.facts
        found = ToolRecord(
            balancer.NAME, facts["balancer_version"], os.path.expanduser(facts["balancer"])
        )
        backends = {server.name: server.address for server in self._instances()}
        self.balancer = Balancer(
            found, self.private.of("balancer"), backends, self.options["balancer_cpus"],
            self.options["connections"],
        )  # fmt: skip
        try:
            self.balancer.wait_until_it_answers()
        finally:
            say({"event": "balancer", **self.balancer.about()})

    def _instances(self) -> List[RunningService]:
        return self.servers  # type: ignore[return-value]

    def _load_until(self, until: description.Until) -> bool:
        """Ask in a closed loop until a counter of every instance is calm; tell if it came to be."""
        due = time.monotonic() + until.at_most_s
        calm_since: Optional[float] = None
        before, looked = self._counted(until.counter), time.monotonic()
        try:
            while time.monotonic() < due:
                if all(client.look() for client in self.clients):
                    for client in self.clients:
                        client.check()
                    self.clients = []
                    for one in self._clients(loads.SATURATION, 0, int(until.at_most_s)):
                        self.clients.append(one)
                time.sleep(_LOOK_S)
                now, counted = time.monotonic(), self._counted(until.counter)
                growth = max(b - a for a, b in zip(before, counted)) / (now - looked)
                before, looked = counted, now
                if growth >= until.below:
                    calm_since = None
                    continue
                calm_since = calm_since or now
                if now - calm_since >= until.for_s:
                    return True
            return False
        finally:
            for client in self.clients:
                client.kill()
                client.process.wait()
            self.clients = []

    def _counted(self, name: str) -> List[float]:
        return [float(server.counters()[name]) for server in self.servers]

    def start_clients(self, phase: str) -> Iterator[Client]:
        """As of the base: one through the balancer, or one for each instance."""
        time_s = self.options["time_s" if phase == loads.RATE else "saturation_s"]
        return self._clients(phase, self.lead_s if self.client_leads else 0, time_s)

    def _clients(self, phase: str, lead_s: int, time_s: int) -> Iterator[Client]:
        servers = self._instances()
        asked: List[Union[RunningService, Together]] = list(servers)
        if self.balancer:
            asked = [Together(servers, self.balancer)]
        rate = self.options["rate"] if phase == loads.RATE else 0
        metrics = self.service.counters.metrics
        about = {
            "phase": phase,
            "load": self.load.kind,
            "figures": to_json(self.load.figures),
            "metrics": {name: description.unit_of(name, one) for name, one in metrics.items()},
        }
        for one in asked:
            first = servers[0] if isinstance(one, Together) else one
            values = {
                **first.values,
                "rate": max(1, rate // len(asked)) if rate else 0,
                "lead_s": lead_s,
                "time_s": time_s,
            }
            to = self.balancer.address if self.balancer else first.address
            words = loads.command_line(self.load, self.found.facts, values, self.texts, to)
            watched = {"server": one.usage}
            if isinstance(one, Together):
                watched["balancer"] = one.balancer.usage
                watched["instances"] = one.cpu_by_instance
            yield loads.client_class(self.load)(
                one, words, values["threads"], lead_s, time_s, self.client_cpus, None, watched,
                about,
            )  # fmt: skip

    def _end(self) -> None:
        if self.balancer:
            self.balancer.stop()
        super()._end()

    def kill(self) -> None:
        """As of the base, with the balancer and the folder of the trial."""
        super().kill()
        if self.balancer:
            self.balancer.kill()
        self.private.remove()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(trial.main(ServiceTrial, sys.argv[1:]))
