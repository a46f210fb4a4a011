"""The kinds of load: how each asks a service, and what its output says.

A kind is started against one instance, or against the balancer in front of all. Its records are
those of `served.client`; `results` are the numbers of the measured time, by metric.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ...contract import Record
from ...errors import Fault
from ...paths import published
from ..client import Client
from ..load import client as http
from ..load import pgbench
from . import description
from .description import COMMAND, HTTP, PGBENCH, Load

SATURATION, RATE = "saturation", "rate"
PHASES = (SATURATION, RATE)


class CommandLoad(Client):
    """A program that prints its figures and ends by itself: all of its run is measured.

    How long that takes is its own matter: it may do a fixed number of requests.
    """

    program = "the load's command"
    checkpoint = None
    ends_after_time = False


def client_class(load: Load) -> type[Client]:
    """Return the class of a kind's clients."""
    return {COMMAND: CommandLoad, HTTP: http.HttpLoad, PGBENCH: pgbench.PgBench}[load.kind]


def program(load: Load) -> Dict[str, str]:
    """Return our own program that a kind of load needs, by the name of its fact; {} without one."""
    if load.kind == HTTP:
        found = http.find()
        return {"load_program": str(published(found.path)), "load_version": str(found.version)}
    return {}


def command_line(
    load: Load,
    facts: Mapping[str, Any],
    values: Mapping[str, Any],
    texts: Mapping[str, str],
    to: str,
) -> List[str]:
    """Return a kind's command line in one phase.

    ``values`` hold what the words of a command line mean, ``rate`` (0: a closed loop) among them;
    ``to`` is the address, ``unix:PATH`` or HOST:PORT.
    """
    if load.kind == HTTP:
        request = description.filled(load.request, {**values, **texts})
        return http.command_line(
            os.path.expanduser(facts["load_program"]), to, request,
            connections=values["connections"], threads=values["threads"], rate=values["rate"],
            lead_s=values["lead_s"], time_s=values["time_s"], seed=values["seed"],
        )  # fmt: skip
    if load.kind == PGBENCH:
        return pgbench.command_line(
            values["pgbench"], description.words(load.options, values, texts),
            connections=values["connections"], threads=values["threads"], rate=values["rate"],
            lead_s=values["lead_s"], time_s=values["time_s"], seed=values["seed"],
        )  # fmt: skip
    line = load.at_rate if values["rate"] else load.command
    return description.words(line, values, texts)


def parse(kind: str, figures: Mapping[str, Any], text: str) -> List[Record]:
    """Return the records of a client's output; ParseError.

    ``figures`` are those of the service, as the output of the trial has them.
    """
    if kind == HTTP:
        return http.parse(text)
    if kind == PGBENCH:
        return pgbench.parse(text)
    if kind != COMMAND:
        raise Fault(f"the kind of load {kind!r} is not known")
    known = {name: description.Figure(**figure) for name, figure in figures.items()}
    wrong = [one.find for one in known.values() if description.wrong_pattern(one.find)]
    if wrong or len(known) > description.MOST_FIGURES:
        raise Fault("the patterns of the load's figures are not those of a service")
    found = description.numbers(known, text)
    return [{"kind": "result", "name": name, "value": value} for name, value in found.items()]


def histogram(records: Sequence[Record]) -> List[Record]:
    """Return the buckets of the latency histogram among a run's records."""
    return [one for one in records if one["kind"] == "histogram"]


def percentile(buckets: Sequence[Record], name: str) -> Optional[float]:
    """Return a percentile (ms) by its metric's name, ``latency_p999``; None without buckets."""
    return http.percentile(buckets, float(f"0.{name[9:]}"))
