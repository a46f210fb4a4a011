"""The Data Package descriptor of data/: what the tables are, column by column.

Format: Data Package version 2 (https://datapackage.org/standard/data-package/).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from numalab import store

COLUMNS = {
    "run": "run directory: STARTED-EXPERIMENT",
    "host": "the host's name",
    "experiment": "experiments/NAME.yml",
    "profile": "smoke, quick, full, or imported",
    "trial": "trial, in running order from 1",
    "block": "randomised block; comparisons are paired by it",
    "position": "position in the block",
    "cell": "CPU set × memory policy × swept option",
    "binding": "symbolic name of the cell's binding",
    "label": "the cell's name for people",
    "role": "baseline, cell, or control (the A/A control)",
    "baseline": "the cell that ratios are against; null for a baseline",
    "cpus": "CPUs of the cell, kernel list format; null: not bound",
    "cpu_nodes": "nodes of those CPUs",
    "memory_policy": "bind, interleave, preferred, default",
    "memory_nodes": "nodes of the memory policy",
    "threads": "threads of the workload",
    "distance": "SLIT distance from the CPUs' node to the memory's; 10 is local",
    "tool": "what measured",
    "tool_version": "its version",
    "source": "who says so: the tool, or perf, numastat, vmstat, cpu, traffic, resctrl",
    "metric": "what was measured",
    "point": "which of several values of the metric; empty for a single one",
    "x": "numeric abscissa of the point: injection delay, CPU, node",
    "y": "numeric ordinate of the point: the other CPU or node",
    "value": "the value; null: missing, with a reason",
    "unit": "its unit",
    "grade": "verified, unverified or error, by the placement proof",
    "reason": "code of why the value is missing, or the trial not plainly verified",
    "reason_fields": "the fields of that reason, as JSON",
    "t_s": "seconds since the measurement began",
}


REFERENCE = (  # tables of data/reference/: name, title, schema
    ("machines", "Figures of machines that others published, with their doubts", "schema"),
    ("published", "Figures of the sources that began this study, with their doubts", "schema"),
    ("hearsay", "Figures whose source nobody can follow: drawn nowhere, counted nowhere", "schema"),
    ("microarchitectures", "The year of each microarchitecture", "microarchitectures"),
)


def descriptor(data: Path, folders: Iterable[Path]) -> dict[str, Any]:
    """Return the descriptor of a data folder: the figures of others, and these runs in it."""
    folders = sorted(folders)
    resources: list[dict[str, Any]] = [
        {
            "name": name,
            "title": title,
            "path": f"reference/{name}.csv",
            "format": "csv",
            "mediatype": "text/csv",
            "encoding": "utf-8",
            "schema": f"reference/{schema}.json",
        }
        for name, title, schema in REFERENCE
    ]
    schemas = (store.MEASUREMENTS, store.SAMPLES)
    for file, schema in zip(store.FILES, schemas, strict=True):
        paths = [f"{folder.relative_to(data).as_posix()}/{file}" for folder in folders]
        if paths:
            resources.append(
                {
                    "name": file.removesuffix(".parquet"),
                    "title": f"{file.removesuffix('.parquet')} of all runs, derived from raw/",
                    "path": paths,
                    "format": "parquet",
                    "mediatype": "application/vnd.apache.parquet",
                    "schema": {"fields": [_field(name, kind) for name, kind in schema.items()]},
                }
            )
    return {
        "$schema": "https://datapackage.org/profiles/2.0/datapackage.json",
        "name": "numalab-results",
        "title": "What NUMA binding does to real software: results",
        "description": "numalab check derives every number again from the runs' raw outputs.",
        "licenses": [{"name": "CC-BY-4.0", "title": "Creative Commons Attribution 4.0"}],
        "resources": resources,
    }


def _field(name: str, kind: Any) -> dict[str, str]:
    types = {pl.String(): "string", pl.Float64(): "number"}
    field = {"name": name, "type": types.get(kind, "integer")}
    return field | ({"description": COLUMNS[name]} if name in COLUMNS else {})


def write(data: Path, folders: Iterable[Path]) -> None:
    """Write ``datapackage.json``, which describes these runs, into a data folder."""
    text = json.dumps(descriptor(data, folders), indent=2, ensure_ascii=False)
    (data / "datapackage.json").write_text(text + "\n", encoding="utf-8")
