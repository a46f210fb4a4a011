"""A made-up run of a service on a host of several nodes: its truth is in the arguments."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import polars as pl

import frames
import topologies
from frames import Cell
from numalab import runs
from numalab.agent.contract import Instance, Measure, ToolRecord, to_json
from numalab.agent.plan.kinds import bound
from numalab.agent.served.service.description import Load, Option, Service

SERVICE = to_json(
    Service(
        name="portal", here="~/services", says="a portal", needs={"server": ("portal",)},
        start="{server} -m {heap:MiB} {use_numa} -s {socket}",
        load=Load(kind="http", request="/"),
        options={
            "heap": Option("1GiB", total=True),
            "use_numa": Option("off", texts={"off": "", "on": "-N"}, places_memory=True),
        },
        environment={"GREETING": "good day"},
    )
)  # fmt: skip
OPTIONS = {
    "service": SERVICE, "connections": 64, "cpus": 4, "balancer": "haproxy",
    "heap": 512 << 20, "use_numa": "off",
}  # fmt: skip
TOOL = ToolRecord(
    "service", "portal 1.2", "/usr/bin/portal",
    facts={"service": SERVICE, "server": "portal 1.2", "programs": {"server": "/usr/bin/portal"}},
)  # fmt: skip
SATURATED, AT_RATE = "saturation_requests_per_second", "requests_per_second"
MEASURE = {
    SATURATED: Measure("1/s", "higher"),
    "latency_p99": Measure("ms", "lower"),
    "cpu_per_request": Measure("µs", "lower"),
}
TAIL = {"p50": 1.0, "p90": 2.0, "p99": 6.0, "p999": 20.0}  # times the median


class ServiceCell(Cell):
    """A cell with the label that a plan gives it."""

    nodes = 2

    @property
    def label(self) -> str:
        over = {"nodes": "one per node", "spread": "each over all nodes", "unbound": "unbound"}
        name = self.named.replace(":", " ")
        if self.binding == "instances":
            name = f"{self.nodes} instances, {over[self.named.partition(':')[2]]}"
        return ", ".join(filter(None, (name, self.variant)))


def topology(nodes: int = 2, cores: int = 8):
    """A host of so many nodes."""
    return topologies.topology(nodes=nodes, cores=cores, threads=1, far=21, memory_gib=64)


def cells(**truth: float) -> List[Cell]:
    """The cells of service-per-node; ``truth`` is requests a second by cell, by default those of
    a host where binding helps and splitting alone helps less."""
    default: Dict[str, Any] = {"policy": "default", "nodes": None}
    both = {"policy": "interleave", "nodes": "0-1"}
    found = {
        "unbound": 4000.0, "interleave:unbound": 4100.0, "instances:nodes": 8000.0,
        "instances:unbound": 5200.0, "instances:spread": 5000.0, "unbound/use_numa=on": 4600.0,
        "unbound/balancer=none": 4300.0,
        **{k if "/" in k else k.replace("_", ":", 1): v for k, v in truth.items()},
    }  # fmt: skip
    made = [
        ServiceCell(id_, value, None if id_ == "unbound" else "unbound", threads=16, cpus=None,
             role="baseline" if id_ == "unbound" else "cell",
             cpu_nodes="0-1", memory=both if "interleave" in id_ else default)
        for id_, value in found.items()
    ]  # fmt: skip
    control = replace(made[0], id="unbound/control", baseline="unbound", role="control")
    return [*made, control]


def run(
    planned: Optional[Sequence[Cell]] = None,
    folder: Path = Path("20261122T130000Z-service-per-node"),
    *,
    nodes: int = 2,
    emulated: bool = False,
    experiment: str = "service-per-node",
    others: Optional[Mapping[str, Mapping[str, float]]] = None,
    options: Optional[Mapping[str, Any]] = None,
    tool: Optional[ToolRecord] = None,
    measure: Optional[Mapping[str, Measure]] = None,
    **measured: Any,
) -> runs.Run:
    """Return a run of these cells: their value is requests a second when saturated.

    The other metrics follow from it; ``others`` maps a metric to a cell's id to its value.
    """
    planned = list(planned or cells())
    for cell in planned:
        cell.nodes = nodes
    host = topology(nodes, cores=max(8, nodes))
    rate = min(cell.value for cell in planned) / 2
    follow = {
        SATURATED: ("1/s", lambda c: c.value),
        "saturation_latency_avg": ("ms", lambda c: 64e3 / c.value),
        AT_RATE: ("1/s", lambda c: rate),
        "latency_avg": ("ms", lambda c: 5e3 / c.value),
        **{f"latency_{name}": ("ms", lambda c, x=x: 4e3 / c.value * x) for name, x in TAIL.items()},
        "cpu_per_request": ("µs", lambda c: 6e5 / c.value),
        "saturation_cpu_per_request": ("µs", lambda c: 5e5 / c.value),
    }
    constants = {"experiment": experiment, "tool": "service", "tool_version": "portal 1.2",
                 **measured}  # fmt: skip
    parts = []
    for place, (metric, (unit, of)) in enumerate(follow.items()):
        given = (others or {}).get(metric, {})
        valued = [_valued(cell, given.get(cell.id, of(cell))) for cell in planned]
        parts.append(frames.measurements(valued, metric=metric, unit=unit, seed=place, **constants))
    several = [cell for cell in planned if cell.binding == "instances"]
    for metric, unit, value in (
        ("instance_requests", "count", 1e5), ("instance_cpu_time", "s", 12.0),
        ("gc_time", "s", 0.4),
    ):  # fmt: skip
        for n in range(1, nodes + 1):
            uneven = [_valued(cell, value / nodes * (1 + 0.02 * n)) for cell in several]
            if uneven:
                parts.append(
                    frames.measurements(uneven, metric=metric, unit=unit, seed=n,
                                        **{"noise": 0.03, **constants, "point": f"instance {n}",
                                           "x": float(n)})
                )  # fmt: skip
    plan = frames.plan(
        planned, experiment=experiment, measure=measure or MEASURE,
        options={**OPTIONS, **(options or {})}, tool=tool or TOOL,
    )  # fmt: skip
    plan = replace(plan, cells=tuple(_with_instances(cell, host, nodes) for cell in plan.cells))
    return frames.run(
        plan, pl.concat(parts), folder, host=frames.host_record(host, emulated=emulated)
    )


def _valued(cell: Cell, value: float) -> Cell:
    """The cell with another value; its label stays."""
    other = copy(cell)
    other.value = value
    return other


def _with_instances(cell: Any, host: Any, nodes: int) -> Any:
    if cell.binding != "instances":
        own = {cell.sweep.option: cell.sweep.value} if cell.sweep else {}
        return replace(cell, options={**cell.options, **own})
    each = []
    for n, node in enumerate(host.nodes):
        cpus = sorted(host.cpus_of[node.number])
        if cell.layout == "spread":
            cpus = sorted(cpu for its in host.cpus_of.values() for cpu in its[n::nodes])
        one = bound(
            host, None if cell.layout == "unbound" else cpus,
            "bind" if cell.layout == "nodes" else "default",
            [node.number] if cell.layout == "nodes" else [],
        )  # fmt: skip
        each.append(Instance(**vars(one), name=f"instance {n + 1}"))
    return replace(cell, instances=tuple(each))
