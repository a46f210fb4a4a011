"""A made-up MySQL run on a two-node host, in the store's schema: its truth is in the arguments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

import polars as pl

import frames
import topologies
from frames import Cell
from numalab import runs
from numalab.agent import contract
from numalab.agent.contract import Measure, Resolution, ToolRecord

MEASURE = {
    "queries_per_second": Measure("1/s", "higher"),
    "latency_p99": Measure("ms", "lower"),
    "cpu_per_query": Measure("µs", "lower"),
}
NODE_CPUS = ("0-15,32-47", "16-31,48-63")
_NODE_CORES = {  # a node has 16 cores, 32 CPUs
    "cores:node-node": "cores:16-node",
    "cores:node-spread": "cores:16-spread",
    "cores:node-cpus-spread": "cores:32-spread",
}
TOPOLOGY = replace(
    topologies.topology(nodes=2, cores=16, threads=2, far=21, memory_gib=192),
    model="Intel Xeon E5-2682 v4",
)


def published_cells(scale: float = 1.0, rest: str = "") -> list[Cell]:
    """The cells of the published study, with its figures as their truth (times ``scale``)."""
    suffix = f"/{rest}" if rest else ""
    bind = {"policy": "bind", "nodes": "0"}
    default = {"policy": "default", "nodes": None}
    both = {"policy": "interleave", "nodes": "0-1"}

    def cell(name: str, value: float, cpus: Optional[str], nodes: str, memory: Dict, **more: Any):
        base = None if name == "unbound" else f"unbound{suffix}"
        return Cell(f"{name}{suffix}", value * scale, base, cpus=cpus, cpu_nodes=nodes,
                    memory=memory, threads=150, **more)  # fmt: skip

    return [
        cell("unbound", 80e3, None, "0-1", default, role="baseline"),
        Cell(f"unbound{suffix}/control", 80e3 * scale, f"unbound{suffix}", role="control",
             cpus=None, cpu_nodes="0-1", memory=default, threads=150),
        cell("local:0", 270e3, NODE_CPUS[0], "0", bind),
        cell("remote:0-1", 190e3, NODE_CPUS[0], "0", {"policy": "bind", "nodes": "1"}),
        cell("interleave:0", 225e3, NODE_CPUS[0], "0", both),
        cell("cpus-only:0", 268e3, NODE_CPUS[0], "0", default),
        cell("cores:32-spread", 120e3, "0-31", "0-1", default),
        cell("one-thread-per-core:0", 170e3, "0-15", "0", bind),
        cell("smt-siblings:0", 170e3, "32-47", "0", bind),
    ]  # fmt: skip


def run(
    cells: Sequence[Cell],
    folder: Path = Path("20261121T162000Z-mysql-binding"),
    *,
    others: Optional[Mapping[str, Mapping[str, float]]] = None,
    emulated: bool = False,
    tool: Optional[ToolRecord] = None,
    measure: Optional[Mapping[str, Measure]] = None,
    options: Optional[Mapping[str, Any]] = None,
    experiment: str = "mysql-binding",
    **measured: Any,
) -> runs.Run:
    """Return a run of these cells: queries per second as given, other metrics derived.

    ``others`` maps a metric to a cell's id to its value; by default latency and CPU per query
    follow from the throughput. ``measured`` goes to ``frames.measurements``.
    """
    parts = [
        frames.measurements(cells, metric="queries_per_second", unit="1/s",
                            experiment=experiment, tool="mysql_server", **measured)
    ]  # fmt: skip
    for name, unit, source, of in (
        ("latency_p99", "ms", "tool", lambda c: 1e3 * c.threads / c.value * 2.1),
        ("cpu_per_query", "µs", "tool", lambda c: 32e6 / c.value),
        ("ipc", "1", "perf", lambda c: 0.16 + 1e-6 * c.value),
    ):
        given = (others or {}).get(name, {})
        other = [Cell(**{**vars(c), "value": given.get(c.id, of(c))}) for c in cells]
        parts.append(
            frames.measurements(other, metric=name, unit=unit, experiment=experiment,
                                **{"tool": "mysql_server", **measured, "source": source,
                                   "seed": measured.get("seed", 0) + 1})
        )  # fmt: skip
    ids = [cell.id for cell in cells]
    plan = frames.plan(
        cells,
        resolved=[Resolution(name, (id_,)) for name, id_ in _NODE_CORES.items() if id_ in ids],
        experiment=experiment,
        measure=measure or MEASURE,
        options={"innodb_numa_interleave": "OFF", **(options or {})},
        tool=tool
        or ToolRecord(
            "mysql_server", "MySQL 8.4.3; sysbench 1.0.20", "/usr/sbin/mysqld",
            facts={"server": "MySQL 8.4.3"},
        ),
    )  # fmt: skip
    return frames.run(
        plan, pl.concat(parts), folder, host=frames.host_record(TOPOLOGY, emulated=emulated)
    )


def changed(made: runs.Run, change: Callable[[contract.Cell], contract.Cell]) -> runs.Run:
    """Return a run whose every cell is what ``change`` makes of it; its tables stay."""
    plan = replace(made.plan, cells=tuple(change(cell) for cell in made.plan.cells))
    other = replace(made, manifest=replace(made.manifest, plan=plan))
    kept = ("measurements", "samples")
    other.__dict__.update({name: made.__dict__[name] for name in kept if name in made.__dict__})
    return other
