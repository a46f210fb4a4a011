"""The results store: tidy measurements and time series, derived from a run's raw files.

``measurements.parquet`` has one row per trial, metric and point; ``samples.parquet`` one row per
trial, metric, point and second. Both are derived: the same parsers that the host used rebuild
them from ``raw/`` at any time, and ``numalab check`` compares.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

from numalab.agent import collectors, drivers
from numalab.agent.errors import Fault, ParseError
from numalab.agent.trial import journal

MEASUREMENTS: dict[str, pl.DataType] = {
    "run": pl.String(),
    "host": pl.String(),
    "experiment": pl.String(),
    "profile": pl.String(),
    "trial": pl.Int32(),
    "block": pl.Int32(),
    "position": pl.Int32(),
    "cell": pl.String(),
    "binding": pl.String(),
    "label": pl.String(),
    "role": pl.String(),
    "baseline": pl.String(),
    "cpus": pl.String(),
    "cpu_nodes": pl.String(),
    "memory_policy": pl.String(),
    "memory_nodes": pl.String(),
    "threads": pl.Int32(),
    "distance": pl.Int32(),
    "tool": pl.String(),
    "tool_version": pl.String(),
    "source": pl.String(),
    "metric": pl.String(),
    "point": pl.String(),
    "x": pl.Float64(),
    "y": pl.Float64(),
    "value": pl.Float64(),
    "unit": pl.String(),
    "grade": pl.String(),
    "reason": pl.String(),
}
SAMPLES: dict[str, pl.DataType] = {
    "run": pl.String(),
    "trial": pl.Int32(),
    "cell": pl.String(),
    "source": pl.String(),
    "t_s": pl.Float64(),
    "metric": pl.String(),
    "point": pl.String(),
    "value": pl.Float64(),
    "unit": pl.String(),
}
FILES = ("measurements.parquet", "samples.parquet")


def read_raw(folder: Path, name: str) -> str:
    """Return the text of one raw file of a run; Fault when it is missing or not gzip."""
    try:
        with gzip.open(folder / name, "rb") as file:
            return file.read().decode("utf-8", errors="replace")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise Fault(f"{folder / name} cannot be read: {error}", "restore it from a copy") from None


def read_json(folder: Path, name: str) -> Any:
    """Return what one raw file of a run holds as JSON; Fault when it cannot be read as that."""
    try:
        return json.loads(read_raw(folder, name))
    except ValueError as error:
        raise Fault(f"{folder / name} is not JSON: {error}", "restore it from a copy") from None


def derive(folder: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rebuild (measurements, samples) of a run from its manifest, journal and raw files.

    A trial whose raw output no longer parses has no rows of that source; ``numalab check`` says
    so. Raises Fault when the run directory itself cannot be read.
    """
    manifest = journal.read_json(folder / "manifest.json")
    plan = manifest["plan"]
    cells = {cell["id"]: cell for cell in plan["cells"]}
    measurements: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    for record in journal.read(folder / "journal.ndjson"):
        cell = cells.get(record["cell"])
        if cell is None:
            raise Fault(
                f"{folder}/journal.ndjson: trial {record['trial']} has the cell "
                f"{record['cell']!r}, which is not in the plan",
            )
        head = {"run": manifest["run"], "trial": record["trial"], "cell": cell["id"]}
        common = {
            **head,
            "host": manifest["host"],
            "experiment": manifest["experiment"],
            "profile": manifest["profile"],
            "block": record["block"],
            "position": record["position"],
            "binding": cell["binding"],
            "label": cell["label"],
            "role": cell["role"],
            "baseline": cell["baseline"],
            "cpus": cell["cpus"],
            "cpu_nodes": cell["cpu_nodes"],
            "memory_policy": cell["memory"]["policy"],
            "memory_nodes": cell["memory"]["nodes"],
            "threads": cell["threads"],
            "distance": cell["distance"],
            "tool": record["tool"]["name"],
            "tool_version": record["tool"]["version"],
            "grade": record["grade"],
        }
        driver = drivers.driver(record["tool"]["name"])
        records = _parsed(folder, driver, record)
        collect = record["raw"].get("collect")
        collected = None if collect is None else read_json(folder, collect)
        for row in _trial_rows(driver, records, collected):
            reason = row.get("reason") or record["reason"]
            measurements.append({**common, **row, "reason": reason})
        samples += [{**head, **row} for row in _trial_samples(driver, records, collected)]
    return (
        pl.DataFrame(measurements, schema=MEASUREMENTS),
        pl.DataFrame(samples, schema=SAMPLES),
    )


def _trial_rows(
    driver: Any, records: list[dict[str, Any]], collected: dict[str, Any] | None
) -> Iterator[dict[str, Any]]:
    for row in driver.metrics(records) if records else []:
        yield {**_blank(row), "source": "tool"}
    if collected is not None:
        for row in collectors.metrics(collected):
            yield {**_blank(row), "source": row["source"]}


def _blank(row: dict[str, Any]) -> dict[str, Any]:
    value = row["value"]
    return {
        "metric": row["metric"],
        "point": row.get("point") or "",
        "x": row.get("x"),
        "y": row.get("y"),
        "value": None if value is None else float(value),
        "unit": row["unit"],
        "reason": row.get("reason"),
    }


def _parsed(folder: Path, driver: Any, record: dict[str, Any]) -> list[dict[str, Any]]:
    name = record["raw"].get(getattr(driver, "RAW", "stdout"))
    if name is None:
        return []
    try:
        return driver.parse(read_raw(folder, name))
    except ParseError:
        return []  # the journal holds the reason: the same parser failed on the host


def _trial_samples(
    driver: Any, records: list[dict[str, Any]], collected: dict[str, Any] | None
) -> Iterator[dict[str, Any]]:
    if hasattr(driver, "samples"):
        for row in driver.samples(records):
            yield {**row, "point": row.get("point") or "", "source": "tool"}
    if collected is not None:
        yield from collectors.samples(collected)


def write(folder: Path) -> None:
    """Derive a run's two tables, write them beside its raw files, note their hashes."""
    for name, frame in zip(FILES, derive(folder), strict=True):
        temporary = folder / f".{name}"
        frame.write_parquet(temporary, compression="zstd", statistics=False)
        temporary.replace(folder / name)
    manifest = journal.read_json(folder / "manifest.json")
    manifest["tables"] = {name: journal.sha256(folder / name) for name in FILES}
    journal.write_json(folder / "manifest.json", manifest)


def measurements(folders: Iterable[Path]) -> pl.LazyFrame:
    """Scan the measurements of runs, as one lazy frame; Fault when there are none to scan."""
    return _scan(folders, FILES[0], MEASUREMENTS)


def samples(folders: Iterable[Path]) -> pl.LazyFrame:
    """Scan the time series of runs, as one lazy frame."""
    return _scan(folders, FILES[1], SAMPLES)


def _scan(
    folders: Iterable[Path], name: str, schema: dict[str, pl.DataType]
) -> pl.LazyFrame:
    paths = [folder / name for folder in folders]
    if not paths:
        return pl.LazyFrame(schema=schema)
    for path in paths:
        if not path.is_file():
            raise Fault(
                f"{path} is missing", f"rebuild it with: numalab check --rebuild {path.parent}"
            )
    return pl.scan_parquet(paths)
