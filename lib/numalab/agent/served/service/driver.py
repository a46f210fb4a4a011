"""A service of anybody's under the cell's binding, asked by a load of its own: the driver."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ... import cpulist
from ...contract import (
    BASELINE,
    Advice,
    Cell,
    Host,
    Outlay,
    Prepared,
    Reason,
    Record,
    Row,
    Sample,
    Timing,
    ToolRecord,
    reason,
    to_json,
)
from ...drivers import options as check
from ...errors import Fault, ParseError
from ...paths import published
from ...rows import row
from .. import balancer
from ..driver import KEPT_RATE, SATURATED, Figure, ServedDriver, each, runs_of, share, why_missing
from ..load import client as load_client
from . import advice, data, description, loads, options, programs
from .description import HAPROXY, HTTP, NO_BALANCER, TOOL_OPTIONS, Service

HALF, NO_RATE = "half", "none"
_START_S = 2.5  # for estimates only; Tomcat with its documents, and the end of all
_FEW_ERRORS = 0.001  # of the requests
_MEANS = ("latency_avg", "schedule_lag_avg")
_USUAL = {  # figures of every load, with their units; null where one does not tell it
    "requests_per_second": "1/s", "errors": "count", "latency_avg": "ms", "latency_p50": "ms",
    "latency_p90": "ms", "latency_p99": "ms", "latency_p999": "ms", "latency_max": "ms",
    "schedule_lag_avg": "ms", "cpu_per_request": "µs",
}  # fmt: skip


class ServiceDriver(ServedDriver):
    """Only the instances are bound; balancer and clients run on CPUs of their own."""

    name = "service"
    module = "numalab.agent.served.service.trial"
    client = "the load"
    series = {
        "requests": ("requests_per_second", "1/s"),
        "latency_p99_ms": ("latency_p99", "ms"),
        "errors": ("errors_per_second", "1/s"),
    }

    def binding_options(self, given: Mapping[str, Any]) -> Tuple[str, ...]:
        """As of the base: the balancer, and options of the service that place memory."""
        own = _service(given).options.items()
        return ("balancer", *(name for name, one in own if one.places_memory))

    def find(self, given: Mapping[str, Any]) -> ToolRecord:
        """Return the programs of the service; Fault when one is missing."""
        service = _service(given)
        paths, version = programs.find(service)
        title = f"{service.name} {version}".strip()
        own = {**loads.program(service.load), **_balancing(service, given)}
        for name, key in (("numalab-load", "load_version"), ("HAProxy", "balancer_version")):
            version += f"; {name} {own[key]}" if key in own else ""
        return ToolRecord(
            self.name,
            f"{service.name} {version}",
            published(next(iter(paths.values()))),
            facts={
                "service": to_json(service),
                "server": title,
                "programs": {name: str(published(path)) for name, path in paths.items()},
                "here": service.here,
                **own,
            },
        )

    # --- planning -----------------------------------------------------------------------------

    def prepare(
        self, given: Mapping[str, Any], host: Host, cpus: str, memory_nodes: str
    ) -> Prepared:
        """Return the resolved options and the memory of one instance; Fault for a bad option."""
        service = _service(given)
        check.known(self.name, given, {**TOOL_OPTIONS, **service.options})
        asked = {**TOOL_OPTIONS, **given}
        for name in ("instances", "time_s", "seed"):
            check.whole(name, asked[name], 1)
        check.whole("warmup_s", asked["warmup_s"], 0)
        instances = asked["instances"]
        rate = _rate(service, asked["rate"])
        saturation_s = asked["saturation_s"]
        saturation_s = asked["time_s"] if saturation_s is None else saturation_s
        if not rate and not saturation_s:
            raise Fault("neither a rate nor a time for saturation: nothing would be measured")
        resolved: Dict[str, Any] = {
            "instances": instances,
            "connections": options.amount("connections", asked["connections"], host),
            "rate": rate,
            "time_s": asked["time_s"],
            "saturation_s": check.whole("saturation_s", saturation_s, 0),
            "warmup_s": asked["warmup_s"],
            "balancer": _balancer(service, asked["balancer"]),
            "seed": asked["seed"],
            "cpus": share(host, instances),
            **self.client_options(asked, host),
            **options.resolved(service, given, host, instances),
        }
        resolved.update(_cpus_of_client_and_balancer(service, resolved))
        resolved["data"] = data.described(service, resolved)
        resolved["writes"] = data.changed(service, resolved)
        if options.interleaves(service, resolved):
            resolved["interleaves"] = True
        if resolved["connections"] < instances:
            raise Fault(f"{resolved['connections']} connections for {instances} instances")
        need = options.need_bytes(service, resolved)
        notes = tuple(self.client_notes(resolved, cpus))
        return Prepared(resolved, need, notes, timing=_timing(service, resolved))

    def interleaves(self, given: Mapping[str, Any]) -> bool:
        """As of the base: an option of the service does."""
        return bool(given.get("interleaves"))

    def data_set(self, found: ToolRecord, given: Mapping[str, Any]) -> Optional[data.PreparedData]:
        """As of the base."""
        return data.PreparedData(found, given) if given["data"] else None

    def resolve(self, option: str, value: Any, host: Host) -> Any:
        """As of the base: true and false of YAML are the words on and off."""
        if option == "balancer":
            return NO_BALANCER if value is False else value
        return options.word(value)

    def outlay(self, cells: Sequence[Cell]) -> Optional[Outlay]:
        """As of the base: the prepared data, of a service that has any."""
        sets: Dict[str, Tuple[data.PreparedData, int]] = {}
        for cell in cells:
            if cell.options["data"]:
                one = data.PreparedData(None, cell.options)
                copies = max(1, len(cell.instances), sets.get(one.name, (one, 0))[1])
                sets[one.name] = (one, copies)
        if not sets:
            return None
        seconds = sum(0.0 if one.record() else one.takes_s for one, _ in sets.values())
        disk = sum(one.disk_bytes(copies) for one, copies in sets.values())
        memory = max(cell.need_bytes for cell in cells)
        says = reason("needs-data", seconds=seconds, bytes=disk, memory=memory)
        return Outlay(round(seconds, 1), disk, memory, says)

    def calibration(self, cells: Sequence[Cell]) -> Optional[Cell]:
        """As of the base: the baseline's saturation, where the rate is a part of its capacity."""
        asking = [cell for cell in cells if cell.options["rate"] == HALF]
        if not asking:
            return None
        cell = next((cell for cell in asking if cell.role == BASELINE), asking[0])
        seconds = cell.options["saturation_s"] or cell.options["time_s"]
        return replace(cell, options={**cell.options, "rate": 0, "saturation_s": seconds})

    def calibrated(self, cell: Cell, rows: Sequence[Row]) -> Mapping[str, Any]:
        """Return the rate: half of the requests a second that the baseline answered."""
        found = [one.value for one in rows if one.metric == "saturation_requests_per_second"]
        capacity = found[0] if found else None
        if not capacity or capacity < 2:
            raise Fault(reason("no-capacity", cell=cell.label))
        rate = max(1, round(capacity / 2))
        return {"rate": rate, "rate_is": {"half_of": round(capacity, 3), "cell": cell.id}}

    # --- reading ------------------------------------------------------------------------------

    def parse_client(self, text: str, run: Record) -> List[Record]:
        """As of the base, by the kind of load and its patterns, which the run tells."""
        try:
            return loads.parse(run["load"], run["figures"], text)
        except (KeyError, TypeError, AttributeError) as error:
            raise ParseError(self.name, 0, "", f"the run's load is unreadable: {error!r}") from None

    def metrics(self, records: Sequence[Record]) -> List[Row]:
        """Return the figures of each phase; those of saturation have that before their names.

        What clients of several instances measured becomes that of the cell: rates, errors and CPU
        times are summed up, means are weighted by the requests, percentiles are those of the
        common histogram, or the worst instance's where a load prints none.
        """
        rows: List[Row] = []
        for phase in loads.PHASES:
            runs = [run for run in runs_of(records) if run.get("phase") == phase]
            prefix = f"{phase}_" if phase == loads.SATURATION else ""
            if not runs:
                why = why_missing(records) or reason(f"no-{phase}")
                rows += [row(prefix + n, None, unit, why) for n, unit in _USUAL.items()]
                continue
            own = [_Own(run, records) for run in runs]
            for name, value, unit in _of_cell(own):
                why = why_missing(own[0].records) or reason(
                    "requests-not-counted" if name.endswith("_per_request") else "client-silent",
                    client=self.client,
                )
                rows.append(row(prefix + name, value, unit, why))
            for name, point, value, unit in _of_instances(own):
                x = int(re.sub(r"\D", "", point) or 1) - 1 if point else None
                rows.append(row(prefix + name, value, unit, why, point=point, x=x))
        return rows

    def samples(self, records: Sequence[Record]) -> List[Sample]:
        """As of the base, of the last phase."""
        last = next((run.get("phase") for run in reversed(runs_of(records))), None)
        return super().samples([r for r in records if r.get("phase", last) == last])

    def failure(self, records: Sequence[Record], given: Mapping[str, Any]) -> Optional[Reason]:
        """Return why the figures of a trial must not be used: errors, nothing done, no figure."""
        for run in runs_of(records):
            own = _Own(run, records)
            who = {"instance": run["instance"]}
            answered = own.requests or own.rate * run["elapsed_s"]
            if own.results.get("errors", 0) > _FEW_ERRORS * answered:
                errors, done = int(own.results["errors"]), int(answered)
                kinds = {
                    kind: int(own.results.get(f"errors_{kind}", 0))
                    for kind in load_client.ERROR_KINDS
                }
                return reason(
                    "client-met-errors", **who, client=self.client, errors=errors,
                    transactions=done, kinds={kind: n for kind, n in kinds.items() if n},
                )  # fmt: skip
            missing = [name for name in run["figures"] if name not in own.results]
            if missing:
                return reason("figure-missing", **who, figure=missing[0])
            if not own.rate:
                return reason("client-did-nothing", **who, client=self.client)
        return None

    def unverified(self, records: Sequence[Record], given: Mapping[str, Any]) -> Optional[Reason]:
        """As of the base; the balancer, or one thread of the client, may be the limit too."""
        for run in runs_of(records):
            used = float((run.get("balancer") or {}).get("cpu_s", 0.0))
            if used > SATURATED * run["elapsed_s"]:
                return reason("balancer-was-the-limit", share=used / run["elapsed_s"])
            busiest = _Own(run, records).results.get("busiest_thread", 0.0)
            if busiest > SATURATED and not given["client_shares"]:
                return reason("client-was-the-limit", client=self.client, share=busiest)
        return super().unverified(records, given)

    def doubts(self, records: Sequence[Record], given: Mapping[str, Any]) -> List[Reason]:
        """As of the base; whether it was warm, and whether the rate was kept."""
        found = super().doubts(records, given)
        for record in records:
            if record["kind"] == "warm" and not record["held"]:
                said = {key: record[key] for key in ("counter", "below", "seconds")}
                found.append(reason("service-not-warm", **said))
            elif record["kind"] == "warm":
                found += _warming(record, runs_of(records))
        at_rate = [run for run in runs_of(records) if run.get("phase") == loads.RATE]
        done = sum(_Own(run, records).results.get("requests_per_second", 0.0) for run in at_rate)
        if at_rate and done < KEPT_RATE * given["rate"]:
            found.append(reason("rate-missed", instance="", asked=given["rate"], done=done))
        return found

    def advice(self, found: ToolRecord, cell: Cell) -> Advice:
        """As of the base."""
        return advice.of(found, cell)


def _warming(warm: Record, runs: Sequence[Record]) -> List[Reason]:
    """Return that an instance was still warming up when it was measured, though it seemed warm."""
    grown: Dict[str, float] = {}
    for run in runs:
        for key, value in (run.get("status") or {}).items():
            metric, _, instance = key.partition(":")
            if metric == warm["counter"]:
                name, rate = instance or run["instance"], value / (run["elapsed_s"] or 1.0)
                grown[name] = max(rate, grown.get(name, 0.0))
    said = {key: warm[key] for key in ("counter", "below")}
    return [
        reason("service-warming", instance=name, grew=rate, **said)
        for name, rate in sorted(grown.items())
        if rate > warm["below"]
    ]


class _Own:
    """A run of a client with its results."""

    def __init__(self, run: Record, records: Sequence[Record]) -> None:
        of = (run["instance"], run.get("phase"))
        self.run = run
        self.records = [
            r for r in records if r is not run and (r.get("instance"), r.get("phase")) == of
        ]
        self.results = load_client.results_of(self.records)
        counted = {**(run.get("status") or {}), **self.results}
        self.requests: Optional[float] = counted.get("answered", counted.get("requests"))
        self.rate = self.results.get("requests_per_second", 0.0)


def _of_cell(runs: Sequence[_Own]) -> List[Figure]:
    """Return what all clients of a phase measured together, and what was used meanwhile."""
    figures: Mapping[str, Any] = runs[0].run["figures"]
    names = dict.fromkeys((*figures, *_USUAL))
    found: List[Figure] = []
    buckets = [bucket for one in runs for bucket in loads.histogram(one.records)]
    for name in names:
        figure = description.Figure(**figures.get(name, {}))
        values = [(one.results.get(name), one.rate) for one in runs]
        unit = _USUAL.get(name) or description.unit_of(name, figure)
        if name != "cpu_per_request":
            found.append((name, _together(name, values, buckets), unit))
    requests = _sum([one.requests for one in runs])
    server = _sum([one.run.get("server", {}).get("cpu_s") for one in runs])
    client = _sum([one.run["client_cpu_s"] for one in runs])
    found += [
        ("cpu_per_request", each(server, requests, 1e6), "µs"),
        ("server_cpu_time", server, "s"),
        ("client_cpu_time", client, "s"),
        ("client_cpu_per_request", each(client, requests, 1e6), "µs"),
    ]
    between = runs[0].run.get("balancer")
    if between:
        found.append(("balancer_cpu_time", between.get("cpu_s"), "s"))
    return found


def _together(
    name: str, values: Sequence[Tuple[Optional[float], float]], buckets: Sequence[Record]
) -> Optional[float]:
    known = [value for value, _ in values if value is not None]
    if len(known) < len(values):
        return None
    if len(values) == 1:
        return known[0]
    if name in _MEANS:
        weight = sum(rate for _, rate in values)
        total = sum((value or 0.0) * rate for value, rate in values)
        return total / weight if weight else None
    if name.startswith("latency_"):
        merged = loads.percentile(buckets, name) if name.startswith("latency_p") else None
        return max(known) if merged is None else merged
    return sum(known)


def _of_instances(runs: Sequence[_Own]) -> List[Tuple[str, str, float, str]]:
    """Return what is known of each instance: metric, its name, value, unit."""
    found: List[Tuple[str, str, float, str]] = []
    for one in runs:
        instance, units = one.run["instance"], one.run["metrics"]
        for key, value in (one.run.get("status") or {}).items():
            metric, _, of = key.partition(":")
            found.append((metric, of or instance, float(value), units.get(metric, "count")))
        for of, cpu_s in (one.run.get("instances") or {}).items():
            found.append(("instance_cpu_time", of, float(cpu_s), "s"))
        for of, count in (one.run.get("requests") or {}).items():
            found.append(("instance_requests", of, float(count), "count"))
        if instance:
            cpu_s = (one.run.get("server") or {}).get("cpu_s")
            found += [("instance_cpu_time", instance, cpu_s, "s")] if cpu_s is not None else []
            if one.requests:
                found.append(("instance_requests", instance, float(one.requests), "count"))
    return found


def _sum(values: Sequence[Optional[float]]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _service(given: Mapping[str, Any]) -> Service:
    service = given.get("service")
    if service is None:
        raise Fault("no service is named", "--set service=NAME, or the path of a service file")
    return description.read(service)


def _balancing(service: Service, given: Mapping[str, Any]) -> Dict[str, str]:
    """Return HAProxy as facts, where a balancer is asked for; NotHere where there is none."""
    if _balancer(service, given.get("balancer")) == NO_BALANCER:
        return {}
    found = balancer.find()
    return {"balancer": str(published(found.path)), "balancer_version": str(found.version)}


def _cpus_of_client_and_balancer(service: Service, resolved: Mapping[str, Any]) -> Dict[str, str]:
    """Return where balancer and client run: the balancer on the last of the client's CPUs.

    The client leaves that one alone in every cell of a service with a balancer, also in those
    without it.
    """
    cpus = cpulist.parse(resolved["client_cpus"])
    if service.balancer == NO_BALANCER or resolved["client_shares"] or len(cpus) < 2:
        return {"balancer_cpus": resolved["client_cpus"]}
    return {"client_cpus": cpulist.format(cpus[:-1]), "balancer_cpus": str(cpus[-1])}


def _rate(service: Service, asked: Any) -> Any:
    """Return the rate: requests a second, 0 for none, or "half" until it is calibrated."""
    if asked in (NO_RATE, 0, False) or (asked == HALF and not service.keeps_a_rate):
        return 0
    if asked == HALF:
        return HALF
    if not service.keeps_a_rate:
        raise Fault(f"the load of {service.name} keeps no rate", "give it a command at_rate")
    return check.whole("rate", asked, 1)


def _balancer(service: Service, asked: Any) -> str:
    if asked is None:
        return service.balancer
    given = NO_BALANCER if asked is False else asked
    check.choice("balancer", given, (NO_BALANCER, HAPROXY))
    if given == HAPROXY and service.load.kind != HTTP:
        raise Fault("only a load of kind http goes through a balancer")
    return str(given)


def _timing(service: Service, resolved: Mapping[str, Any]) -> Timing:
    """Return the planned seconds; a command's own time is not known and taken as asked for."""
    until = service.warm.until
    early = resolved["saturation_s"] if resolved["rate"] else 0
    last = resolved["time_s"] if resolved["rate"] else resolved["saturation_s"]
    warm = (until.takes_s if until else 0.0) + 2 * (resolved["warmup_s"] + 1) + early
    patience_s = service.ready.within_s + (until.at_most_s if until else 0.0)
    return Timing(_START_S, warm, float(last), patience_s=patience_s)
