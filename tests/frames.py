"""Builders of measurement frames, plans and host records for the tests of the analysis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np
import polars as pl

SCHEMA = {
    "run": pl.String,
    "host": pl.String,
    "experiment": pl.String,
    "profile": pl.String,
    "trial": pl.Int32,
    "block": pl.Int32,
    "position": pl.Int32,
    "cell": pl.String,
    "binding": pl.String,
    "label": pl.String,
    "role": pl.String,
    "baseline": pl.String,
    "cpus": pl.String,
    "cpu_nodes": pl.String,
    "memory_policy": pl.String,
    "memory_nodes": pl.String,
    "threads": pl.Int32,
    "distance": pl.Int32,
    "tool": pl.String,
    "tool_version": pl.String,
    "source": pl.String,
    "metric": pl.String,
    "point": pl.String,
    "x": pl.Float64,
    "y": pl.Float64,
    "value": pl.Float64,
    "unit": pl.String,
    "grade": pl.String,
    "reason": pl.String,
}
"""The columns of measurements.parquet."""


@dataclass
class Cell:
    """One cell of a made-up plan; ``value`` is its true mean, ``noise`` overrides the frame's."""

    id: str
    value: float
    baseline: Optional[str] = None
    role: str = "cell"
    cpus: Optional[str] = "0-3"
    cpu_nodes: Optional[str] = "0"
    memory: Dict[str, Optional[str]] = field(
        default_factory=lambda: {"policy": "bind", "nodes": "0"}
    )
    threads: int = 4
    distance: Optional[int] = None
    rank: Tuple[str, ...] = ()
    noise: Optional[float] = None

    @property
    def binding(self) -> str:
        return self.id.split("/")[0].split(":")[0]


def two_nodes(
    local: float = 80.0,
    remote: float = 52.0,
    interleave: float = 61.0,
    unbound: float = 79.0,
    control: Optional[float] = None,
) -> List[Cell]:
    """Return the cells of a two-node host: local, remote and interleave per node, control."""
    cells = []
    for node, cpus in ((0, "0-3"), (1, "4-7")):
        here, there = str(node), str(1 - node)
        on = {"cpus": cpus, "cpu_nodes": here}
        base = f"local:{node}"
        cells += [
            Cell(
                base,
                local,
                role="baseline",
                distance=10,
                memory={"policy": "bind", "nodes": here},
                **on,
            ),
            Cell(
                f"remote:{here}-{there}",
                remote,
                base,
                distance=21,
                rank=("nearest", "farthest"),
                memory={"policy": "bind", "nodes": there},
                **on,
            ),
            Cell(
                f"interleave:{node}",
                interleave,
                base,
                memory={"policy": "interleave", "nodes": "0-1"},
                **on,
            ),
        ]
    cells.append(
        Cell(
            "unbound",
            unbound,
            "local:0",
            cpus=None,
            cpu_nodes="0-1",
            threads=8,
            memory={"policy": "default", "nodes": None},
        )
    )
    cells.append(
        Cell(
            "local:0/control",
            local if control is None else control,
            "local:0",
            role="control",
            distance=10,
        )
    )
    return cells


def measurements(
    cells: Sequence[Cell],
    *,
    metric: str = "triad",
    unit: str = "GB/s",
    point: str = "",
    blocks: int = 6,
    noise: float = 0.01,
    block_noise: float = 0.0,
    drift: float = 0.0,
    seed: int = 0,
    grade: Union[str, Dict[Tuple[str, int], str]] = "verified",
    **constants: Any,
) -> pl.DataFrame:
    """Return a frame like measurements.parquet: each cell once in each block, in random order.

    ``noise`` and ``block_noise`` are the sigmas of lognormal noise per trial and per block;
    ``drift`` is the relative change over the whole run; ``grade`` is one grade for all rows, or
    a mapping of (cell, block) to the grade of that trial; ``constants`` override columns, for
    instance ``host="b"`` or ``tool="stream"``.
    """
    random = np.random.default_rng(seed)
    trials = len(cells) * blocks
    rows = []
    for block in range(1, blocks + 1):
        shift = random.normal(0, block_noise)
        for position, index in enumerate(random.permutation(len(cells)), 1):
            cell = cells[index]
            trial = (block - 1) * len(cells) + position
            sigma = noise if cell.noise is None else cell.noise
            value = cell.value * np.exp(shift + random.normal(0, sigma))
            value *= 1 + drift * (trial - 1) / max(trials - 1, 1)
            graded = grade if isinstance(grade, str) else grade.get((cell.id, block), "verified")
            rows.append(
                {
                    "run": "20261120T220511Z-stream",
                    "host": "a",
                    "experiment": "stream",
                    "profile": "quick",
                    "trial": trial,
                    "block": block,
                    "position": position,
                    "cell": cell.id,
                    "binding": cell.binding,
                    "label": cell.id.replace(":", " "),
                    "role": cell.role,
                    "baseline": cell.baseline,
                    "cpus": cell.cpus,
                    "cpu_nodes": cell.cpu_nodes,
                    "memory_policy": cell.memory["policy"],
                    "memory_nodes": cell.memory["nodes"],
                    "threads": cell.threads,
                    "distance": cell.distance,
                    "tool": "probe",
                    "tool_version": "1",
                    "source": "tool",
                    "metric": metric,
                    "point": point,
                    "x": None,
                    "y": None,
                    "value": value,
                    "unit": unit,
                    "grade": graded,
                    "reason": None if graded == "verified" else f"graded {graded} by the test",
                    **constants,
                }
            )
    return pl.DataFrame(rows, schema=SCHEMA)


def core_latency_frame(
    matrix: np.ndarray,
    cpus: Sequence[int],
    *,
    blocks: int = 6,
    noise: float = 0.02,
    seed: int = 0,
    **constants: Any,
) -> pl.DataFrame:
    """Return a core-to-core run: a row per block and pair of CPUs with x and y; NaN is left out."""
    random = np.random.default_rng(seed)
    parts = []
    cell = Cell("unbound", 1.0, role="baseline", cpus=None, cpu_nodes=None)
    for block in range(1, blocks + 1):
        for i, x in enumerate(cpus):
            for j, y in enumerate(cpus):
                if i < j and np.isfinite(matrix[i, j]):
                    parts.append(
                        (
                            block,
                            f"{x}-{y}",
                            float(x),
                            float(y),
                            matrix[i, j] * np.exp(random.normal(0, noise)),
                        )
                    )
    base = measurements(
        [cell], metric="core_latency", unit="ns", blocks=1, experiment="core-to-core", **constants
    )
    pairs = pl.DataFrame(parts, schema=["block", "point", "x", "y", "value"], orient="row")
    return (
        base.drop("block", "point", "x", "y", "value", "trial", "position")
        .join(pairs, how="cross")
        .with_columns(trial=pl.col("block"), position=pl.lit(1))
        .select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())
    )


def plan(
    cells: Sequence[Cell],
    *,
    blocks: int = 6,
    skipped: Sequence[Dict[str, str]] = (),
    profile: str = "quick",
) -> Dict[str, Any]:
    """Return a plan that holds what the analysis reads of it."""
    return {
        "schema": 1,
        "request": {"experiment": "stream", "profile": profile, "blocks": blocks},
        "tool": {"name": "probe", "version": "1"},
        "cells": [
            {
                "id": cell.id,
                "binding": cell.binding,
                "label": cell.id.replace(":", " "),
                "role": cell.role,
                "baseline": cell.baseline,
                "cpus": cell.cpus,
                "cpu_nodes": cell.cpu_nodes,
                "threads": cell.threads,
                "memory": dict(cell.memory),
                "distance": cell.distance,
                "rank": list(cell.rank),
            }
            for cell in cells
        ],
        "skipped": list(skipped),
        "warnings": [],
    }


def host_record(
    topology: Optional[Dict[str, Any]] = None, *, host: str = "a", emulated: bool = False
) -> Dict[str, Any]:
    """Return a host record; ``topology`` defaults to an empty one."""
    return {
        "schema": 1,
        "host": host,
        "emulated": emulated,
        "emulated_why": "QEMU TCG" if emulated else None,
        "topology": topology or {"nodes": [], "cpus": [], "caches": [], "packages": None},
        "before": {},
        "after": None,
    }
