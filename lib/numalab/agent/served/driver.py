"""The base of the tools that bind only a server, which a client asks from CPUs of its own.

Records (from what the trial's own process prints, see ``trial``):

- ``server``: ``title``, ``build``, ``settings`` (as written), ``data`` (reused, cloned, copied) …
- ``ready``: what the start and the warm-up took
- ``run``: ``instance`` (its name; "" of the only one), ``clients``, ``elapsed_s``,
  ``exit_status``, ``client_cpu_s``; as differences, ``server`` (CPU time, faults, context
  switches), ``status`` (the server's counters) and, where memory timing is configured, ``model``
- every record of the client of that run, with ``instance``
- ``end``: ``stop_s``; ``fault``: ``reason``; ``incomplete``: the run has no result
"""

from __future__ import annotations

import json
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .. import cpulist
from ..contract import (
    HANDSHAKE,
    Cell,
    ClientCpus,
    Driver,
    Host,
    MemoryExpectation,
    Reason,
    Record,
    Row,
    Sample,
    Tell,
    ToolRecord,
    dumps,
    reason,
)
from ..errors import Fault, ParseError
from ..plan import resolve
from ..plan.kinds import POLICIES, any_cpus
from ..rows import row
from . import dataset
from .instance import STOP_LIMIT_S

_FEWEST_CORES = 4  # that a node has, for one of them to be the client's
SATURATED = 0.9  # of the client's own CPUs: then it is the client that is measured
KEPT_RATE = 0.95  # of what was asked for: less is another load
_EVENTS = ("server", "ready", "result", "end", "fault", "warmup", "warm", "balancer")
_RUN = ("instance", "clients", "elapsed_s", "text", "exit_status", "client_cpu_s")

Figure = Tuple[str, Optional[float], str]  # metric, value, unit


class ServedDriver(Driver):
    """A driver that starts private servers and their clients by a process of its own.

    A subclass says ``module`` (what ``python -m`` starts for a trial), ``client`` (the client's
    name), ``client_share`` where its client needs another part of the CPUs, ``series`` (fields of
    the client's ``report`` records: metric and unit), and the methods that raise
    NotImplementedError.
    """

    protocol = HANDSHAKE
    binds_itself = True  # the server alone is bound
    switches_often = True  # once a query: perf's software events cost 1 in 20 queries, measured
    quit_s = STOP_LIMIT_S + 15
    resolves = ("warmup_s", "writes", "client_cpus", "client_shares")
    module = ""
    client = ""
    client_share = 0.4  # of every node's cores, that are the client's
    series: Mapping[str, Tuple[str, str]] = {}

    def parse_client(self, text: str, run: Record) -> List[Record]:
        """Return the records of a client's output in a run; ParseError."""
        raise NotImplementedError

    def figures(self, run: Record, own: Sequence[Record]) -> List[Figure]:
        """Return the metrics of a run, ``own`` being all other records of its instance."""
        raise NotImplementedError

    def interleaves(self, options: Mapping[str, Any]) -> bool:
        """Tell whether the server itself interleaves its memory over all nodes."""
        return False

    def data_set(self, found: ToolRecord, options: Mapping[str, Any]) -> Optional[dataset.DataSet]:
        """Return the prepared data that a server with these options needs, or None."""
        return None

    # --- planning -----------------------------------------------------------------------------

    def set_aside(
        self, options: Mapping[str, Any], bindings: Sequence[Any], host: Host
    ) -> Optional[ClientCpus]:
        """Return the client's CPUs.

        They are whole cores, the last ``client_share`` of every node's, where every node has four
        cores at least; CPUs that a binding names are left to the server. So all cells lose alike,
        and no cell's client is nearer to its server than another's.
        """
        wanted = str(options.get("client_cpus", "auto"))
        if options.get("client_host"):
            if wanted != "auto":
                raise Fault("client_cpus are this host's, client_host is another", "leave one out")
            return ClientCpus(None, host=options["client_host"])
        if wanted == "share":
            return ClientCpus(None, reason("client-shares-as-asked"))
        if wanted != "auto":
            return _named_cpus(wanted, host)
        named = set()
        for binding in map(resolve.parse, bindings):
            if binding.name == "cpus":
                named |= set(cpulist.parse(binding.argument[0]))
        taken: List[int] = []
        for node, cpus in host.cpus_of.items():
            cores = host.cores_of(cpus)
            if len(cores) < _FEWEST_CORES:
                return ClientCpus(None, reason("few-cores-on-node", node=node, cores=len(cores)))
            free = [core for core in cores if not named & set(core)]
            for core in free[-max(1, int(len(cores) * self.client_share)) :]:
                taken += core
        if not taken:
            return ClientCpus(None, reason("bindings-name-every-cpu"))
        return ClientCpus(cpulist.format(taken))

    def client_options(self, options: Mapping[str, Any], host: Host) -> Dict[str, Any]:
        """Return the resolved options that say where the client runs (see ``set_aside``)."""
        own = host.client.cpus if host.client else None
        elsewhere = options.get("client_host")
        resolved: Dict[str, Any] = {
            "client_cpus": own or any_cpus(host),
            "client_shares": own is None and not elsewhere,
        }
        return {**resolved, "client_host": elsewhere} if elsewhere else resolved

    def client_notes(self, options: Mapping[str, Any], cpus: str) -> List[Reason]:
        """Return what is to be known of the client in a cell of these CPUs."""
        if options.get("client_host"):
            return [reason("client-elsewhere", host=options["client_host"])]
        common = set(cpulist.parse(cpus)) & set(cpulist.parse(options["client_cpus"]))
        return [reason("client-shares-cpus")] if options["client_shares"] or common else []

    def expects(
        self, options: Mapping[str, Any], cell: Cell, host: Host
    ) -> Optional[MemoryExpectation]:
        """Return the memory proof where the server interleaves by itself, else None.

        Where the binding leaves memory alone, what it interleaves must be on all nodes that may be
        used.
        """
        policy = POLICIES.get(cell.memory.policy)
        bound = policy is None or policy.expects.proof == "required"
        nodes = host.memory_nodes
        if not self.interleaves(options) or bound or len(nodes) < 2:
            return None
        return MemoryExpectation("required", "shares", cpulist.format(nodes), policy="interleave")

    def make_ready(
        self,
        cells: Sequence[Cell],
        found: ToolRecord,
        tell: Tell,
        stopped: Callable[[], bool],
        lock: int,
    ) -> None:
        """Prepare every data set that the cells need and the cache has not."""
        for cell in cells:
            if stopped():
                return
            data = self.data_set(found, cell.options)
            if data:
                data.ensure(tell, stopped, lock)

    # --- starting -----------------------------------------------------------------------------

    def argv(self, found: ToolRecord, options: Mapping[str, Any], cell: Cell) -> List[str]:
        """Return the command line of the trial's own process; a word of it has the bindings."""
        servers = [{"name": one.name, **one.bind_arguments} for one in cell.instances]
        servers = servers or [{"name": "", **cell.bind_arguments}]
        words = [sys.executable, "-m", self.module, "--tool", dumps(found)]
        words += ["--instances", json.dumps(servers)]
        return [*words, "--options", json.dumps(options, sort_keys=True)]

    def environment(self, options: Mapping[str, Any], cell: Cell) -> Dict[str, str]:
        """Return what the trial's own process needs to find this package."""
        return dataset.environment()

    # --- reading ------------------------------------------------------------------------------

    def parse(self, text: str) -> List[Record]:
        """Return the records of one trial's output; ParseError for a line that it never prints."""
        out: List[Record] = []
        ended = False
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            try:
                event = json.loads(line)
                name = event.pop("event")
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise ParseError(self.name, number, line, "this is not an event") from None
            ended = ended or name == "result"
            if name == "run":
                missing = [key for key in _RUN if key not in event]
                if missing:
                    raise ParseError(self.name, number, line, f"the run lacks {missing[0]}")
                out += self._run(event)
            elif name in _EVENTS:
                out.append({**event, "kind": name})
            else:
                raise ParseError(self.name, number, line, f"the event {name!r} is not known here")
        if not ended:
            out.append({"kind": "incomplete", "reason": "the trial has no result"})
        return out

    def _run(self, event: Dict[str, Any]) -> List[Record]:
        text, instance = event.pop("text"), event["instance"]
        try:
            inner = self.parse_client(text, event)
        except ParseError as error:
            if event["exit_status"] == 0:
                raise
            inner = [{"kind": "failure", "level": None, "code": None, "text": str(error)}]
        if any("kind" not in one for one in inner):
            raise ParseError(self.name, 0, "", "a record of its client has no kind")
        own = {"instance": instance, **({"phase": event["phase"]} if "phase" in event else {})}
        return [{**event, "kind": "run"}, *({**one, **own} for one in inner)]

    def doubts(self, records: Sequence[Record], options: Mapping[str, Any]) -> List[Reason]:
        """Return what a reader must know of a trial that ended well."""
        return [
            reason("counters-began-late", instance=run["instance"], late_s=run["late_s"])
            for run in runs_of(records)
            if run.get("late_s", 0) > 0.1 * run["elapsed_s"]
        ]

    def unverified(self, records: Sequence[Record], options: Mapping[str, Any]) -> Optional[Reason]:
        """Return that the client was the limit, if it was: its CPUs were busy, all in all."""
        cpus = len(cpulist.parse(options["client_cpus"]))
        for phase in {run.get("phase"): None for run in runs_of(records)}:
            runs = [run for run in runs_of(records) if run.get("phase") == phase]
            if options.get("client_host"):
                cpus = max(run.get("client_cpus", 1) for run in runs)
            own = cpus * max(run["elapsed_s"] for run in runs)
            used = sum(run["client_cpu_s"] for run in runs)
            if not options["client_shares"] and used > SATURATED * own:
                return reason("client-was-the-limit", client=self.client, share=used / own)
        return None

    def metrics(self, records: Sequence[Record]) -> List[Row]:
        """Return the metrics of each instance, its name as the point ("" of the only one)."""
        out: List[Row] = []
        for number, run in enumerate(runs_of(records)):
            instance = run["instance"]
            own = [r for r in records if r.get("instance") == instance and r is not run]
            why = why_missing(own) or reason("client-silent", client=self.client)
            x = number if instance else None
            out += [
                row(name, value, unit, why, point=instance, x=x)
                for name, value, unit in self.figures(run, own)
            ]
        return out

    def samples(self, records: Sequence[Record]) -> List[Sample]:
        """Return the per-second series of each run, its warm-up left out."""
        lead_s = {run["instance"]: run.get("lead_s", 0) for run in runs_of(records)}
        return [
            Sample(float(t_s), metric, float(r[field]), unit, r["instance"])
            for r in records
            if r["kind"] == "report"
            for t_s in [r["t_s"] - lead_s[r["instance"]]]
            if t_s > 0
            for field, (metric, unit) in self.series.items()
            if field in r
        ]


def share(host: Host, instances: int) -> int:
    """Return how many of the host's usable CPUs are one server's part, at least 1."""
    return max(1, len(cpulist.parse(any_cpus(host))) // instances)


def runs_of(records: Sequence[Record]) -> List[Record]:
    """Return the runs among the records of a trial."""
    return [record for record in records if record["kind"] == "run"]


def usage_figures(run: Record, queries: Optional[float]) -> List[Figure]:
    """Return what server and client used while so many queries were measured."""
    used: Mapping[str, float] = run.get("server") or {}
    cpu_s = used.get("cpu_s")
    return [
        ("server_cpu_time", cpu_s, "s"),
        ("cpu_per_query", each(cpu_s, queries, 1e6), "µs"),
        ("context_switches_per_query", each(used.get("switches"), queries), "1"),
        ("minor_faults", used.get("minor_faults"), "count"),
        ("major_faults", used.get("major_faults"), "count"),
        ("client_cpu_time", run["client_cpu_s"], "s"),
    ]


def each(amount: Optional[float], by: Optional[float], scale: float = 1.0) -> Optional[float]:
    """Return an amount for each of so many, times ``scale``; None where either is not known."""
    return None if amount is None or not by else amount * scale / by


def why_missing(own: Sequence[Record]) -> Optional[Reason]:
    """Return why records of a run lack a figure, as far as they say it."""
    for record in own:
        if record["kind"] == "failure":
            return reason("tool-said", text=record["text"])
        if record["kind"] == "incomplete":
            return reason("output-ends-early")
    return None


def _named_cpus(wanted: str, host: Host) -> ClientCpus:
    numbers = cpulist.parse(wanted)
    missing = [number for number in numbers if number not in host.usable]
    if missing or not numbers:
        raise Fault(
            f"client_cpus: {wanted}: CPUs {cpulist.format(missing) or 'none'} cannot be used",
            f"CPUs that may be used: {cpulist.format(host.usable)}",
        )
    if len(numbers) == len(host.usable):
        return ClientCpus(None, reason("all-cpus-are-the-clients"))
    return ClientCpus(cpulist.format(numbers))
