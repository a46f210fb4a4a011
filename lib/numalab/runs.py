"""A run directory as the analysis sees it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from numalab import experiments, home, store
from numalab.agent.errors import Fault
from numalab.agent.trial import journal


@dataclass(frozen=True)
class Run:
    """One run: its folder, manifest, host record, and the tables derived from its raw files."""

    folder: Path
    manifest: dict[str, Any]
    host: dict[str, Any]

    @property
    def plan(self) -> dict[str, Any]:
        """The plan that was run, as the manifest keeps it."""
        return self.manifest["plan"]

    @property
    def name(self) -> str:
        """STARTED-EXPERIMENT, the folder's name."""
        return self.folder.name

    @property
    def measures(self) -> dict[str, dict[str, str]]:
        """The metrics that answer the question: {name: {"unit", "better"}}."""
        return self.plan["request"].get("measure", {})

    @property
    def server(self) -> str:
        """The server that was measured, with its version; "" where the tool is no client of one."""
        return self.plan["tool"].get("server") or ""

    @property
    def subject(self) -> tuple[str, str, str]:
        """Host, experiment, and who made the server: of runs alike in these the newest counts."""
        return self.manifest["host"], self.manifest["experiment"], self.server.partition(" ")[0]

    @cached_property
    def cells(self) -> dict[str, dict[str, Any]]:
        """The plan's cells by their ids."""
        return {cell["id"]: cell for cell in self.plan["cells"]}

    @cached_property
    def measurements(self) -> pl.DataFrame:
        """measurements.parquet, or the same derived afresh where it is not there yet."""
        return self._table(0)

    @cached_property
    def samples(self) -> pl.DataFrame:
        """samples.parquet, or the same derived afresh where it is not there yet."""
        return self._table(1)

    def _table(self, index: int) -> pl.DataFrame:
        path = self.folder / store.FILES[index]
        if path.is_file():
            return pl.read_parquet(path)
        return store.derive(self.folder)[index]

    @cached_property
    def experiment(self) -> experiments.Experiment:
        """The experiment's file as it stands in the checkout now: its claims are judged by it."""
        return experiments.load(self.manifest["experiment"])

    def tool_rows(self, metric: str, point: str | None = None) -> pl.DataFrame:
        """Return the measurements of one metric of the tool, of one point where named."""
        rows = self.measurements.filter(pl.col("metric") == metric)
        return rows if point is None else rows.filter(pl.col("point") == point)

    def binding_rows(self, metric: str, point: str | None = None) -> pl.DataFrame:
        """Return a metric's rows without the copies that a sweep made of its cells.

        A scaling curve compares numbers of threads, not bindings. Where only copies measured the
        metric (a sweep over modes), they are all there is and are returned.
        """
        return self._plain(self.tool_rows(metric, point))

    def load_cells(self, load: str) -> list[str]:
        """Return the ids of the cells under one load, their controls too; see ``load_of``."""
        return [name for name in self.cells if load_of(name) == load]

    def _plain(self, rows: pl.DataFrame) -> pl.DataFrame:
        copies = [name for name, cell in self.cells.items() if cell.get("sweep") and load_of(name)]
        plain = rows.filter(~pl.col("cell").is_in(copies))
        return plain if plain["value"].is_not_null().any() else rows

    def node_pairs(self, metric: str, point: str | None = None) -> pl.DataFrame:
        """Return a metric's rows that belong to one CPU node and one memory node.

        The cells ``local`` and ``remote`` are such pairs. A tool that measures all pairs by itself
        (MLC) names them in ``x`` (CPU node) and ``y`` (memory node); its rows get ``binding``,
        ``cpu_nodes`` and ``memory_nodes`` of the pair, and the point "".
        """
        rows = self.tool_rows(metric, point).filter(pl.col("role") != "control")
        cells = rows.filter(pl.col("binding").is_in(["local", "remote"]))
        own = rows.filter(pl.col("x").is_not_null() & pl.col("y").is_not_null())
        if not cells.is_empty() or own.is_empty():
            return self._plain(cells)
        node = {"cpu_nodes": "x", "memory_nodes": "y"}
        return own.with_columns(
            *(pl.col(at).cast(pl.Int64).cast(pl.String).alias(name) for name, at in node.items()),
            binding=pl.when(pl.col("x") == pl.col("y")).then(pl.lit("local")).otherwise(
                pl.lit("remote")
            ),
            point=pl.lit(""),
        )


_NO_LOAD = ("innodb_numa_interleave=ON", "innodb_numa_interleave=OFF")


def load_of(cell: str) -> str:
    """Return what a cell's id says beyond its binding: ``threads=2``, ``read-write``, or "".

    InnoDB's own interleaving of its memory is a binding too, though an option sets it.
    """
    rest = cell.split("/")[1:]
    return "/".join(part for part in rest if part != "control" and part not in _NO_LOAD)


_KEYS = ("run", "host", "experiment", "profile", "seed", "status", "plan", "sha256")
_PLAN_KEYS = ("request", "tool", "cells", "order", "skipped")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a run's manifest; Fault when it is missing, incomplete or of a newer schema."""
    path = folder / "manifest.json"
    manifest = journal.read_json(path)
    for where, part, keys in (("", manifest, _KEYS), ("plan.", manifest.get("plan"), _PLAN_KEYS)):
        for key in keys:
            if not isinstance(part, dict) or key not in part:
                raise Fault(f"{path} has no {where}{key}", "restore it from a copy")
    return manifest


def load(path: str | Path) -> Run:
    """Read a run directory; Fault when it is none, is damaged or of a newer schema."""
    folder = home.resolve(path)
    if not folder.is_dir():
        raise Fault(f"{path} is not a run directory", "numalab list --runs shows the runs")
    manifest = read_manifest(folder)
    return Run(folder, manifest, journal.read_json(folder / "host.json"))


def newest(host: str | None = None) -> list[Run]:
    """Return the newest complete run of every subject on every host (or on one host)."""
    chosen: dict[tuple[str, str, str], Run] = {}
    for folder in home.find_runs(host=host):
        try:
            run = load(folder)
        except Fault:
            continue  # numalab list --runs names the damaged ones
        if run.manifest["status"] == "complete":
            chosen[run.subject] = run
    return list(chosen.values())
