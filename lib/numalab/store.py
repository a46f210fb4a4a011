"""The results store: tidy measurements and time series, derived from a run's raw files.

``measurements.parquet`` has one row per trial, cell, metric and point; ``samples.parquet`` one row
per trial, cell, metric, point and second. What the collectors saw of a tour is of no one cell and
is only in raw/. Both are for readers: the analysis derives them from ``raw/``
itself, by the parsers that the host used, so that no number is taken from a table that somebody
made. ``SHA256SUMS`` (sha256sum(1)) holds the hashes of what the manifest cannot hash.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from numalab import untrusted
from numalab.agent import collectors, drivers
from numalab.agent.contract import Graded, Reason, Row, Sample, TrialRecord, to_json
from numalab.agent.errors import Fault, ParseError

if TYPE_CHECKING:
    from numalab.runs import Run

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
    "reason_fields": pl.String(),
}
"""Columns of the measurements; ``reason`` is a code, ``reason_fields`` its fields as JSON."""
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
NOTEBOOK = "notebook.ipynb"
EXPERIMENT = "experiment.yml"  # a user's own experiment file, kept with its run as data
SUMS = "SHA256SUMS"
SEALED = ("manifest.json", "host.json", "journal.ndjson", *FILES, NOTEBOOK, EXPERIMENT)
NONSENSE = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError)
"""What reading values that are of the right type, but make no sense, may end in."""
MOST_ROWS = 1_500_000  # of one run: all pairs of 512 CPUs in ten blocks
MOST_RAW_BYTES = 128 << 20  # of one run, unpacked

_HEAD = ["trial", "cell"]  # what a row belongs to
_ROW = ("source", "metric", "point", "x", "y", "value", "unit", "reason", "reason_fields")
_SAMPLE = ("source", "t_s", "metric", "point", "value", "unit")


def read_raw(folder: Path, name: str) -> str:
    """Return the text of one raw file of a run; Fault when it is missing or no gzip file."""
    return untrusted.read_gzip(folder, name).decode("utf-8", errors="replace")


def read_json(folder: Path, name: str) -> Any:
    """Return what one raw file of a run holds as JSON; Fault when it cannot be read as that."""
    return untrusted.parse_json(untrusted.read_gzip(folder, name), folder / name)


def check_size(run: Run) -> None:
    """Raise Fault when the raw files that the trials of a run name are more than is ever measured.

    One that many trials name counts each time: it is read as often.
    """
    sizes: dict[str, int] = {}
    total = 0
    for name in (name for trial in run.trials for name in trial.raw.values()):
        if name not in sizes:
            sizes[name] = len(untrusted.read_gzip(run.folder, name))
        total += sizes[name]
        if total > MOST_RAW_BYTES:
            raise Fault(f"{run.folder} holds more than a run ever measures", "is it one?")


@contextlib.contextmanager
def understood(folder: Path, trial: int) -> Iterator[None]:
    """Turn what reading JSON that is not what its tool writes may end in into a Fault."""
    try:
        yield
    except NONSENSE as error:
        kind = type(error).__name__
        raise Fault(
            f"{folder}: the raw files of trial {trial} do not hold what their tool writes "
            f"({kind}: {str(error)[:60]})",
            "restore them from a copy",
        ) from None


def derive(run: Run) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rebuild (measurements, samples) of a run from its journal and its raw files.

    A trial whose raw output no longer parses has no rows of that source; ``numalab check`` says
    so. Raises Fault when a raw file cannot be read, or the run holds more than is ever measured.
    """
    rows, samples, unpacked = _Columns(_ROW), _Columns(_SAMPLE), 0
    for trial in run.trials:
        raw = _Raw(run, trial)
        unpacked += raw.unpacked
        with understood(run.folder, trial.trial):
            why = {one.cell: one.reason for one in trial.graded}
            for row in raw.rows():
                cell = row.cell or trial.cell
                rows.add(trial.trial, cell, row, row.reason or why[cell])
            for sample in raw.samples():
                samples.add(trial.trial, sample.cell or trial.cell, sample)
        if len(rows) + len(samples) > MOST_ROWS or unpacked > MOST_RAW_BYTES:
            raise Fault(f"{run.folder} holds more than a run ever measures", "is it one?")
    try:
        heads = pl.DataFrame(
            [_head(run, trial, one) for trial in run.trials for one in trial.graded],
            schema={name: MEASUREMENTS[name] for name in MEASUREMENTS if name not in _ROW},
        )
        return rows.joined(heads, MEASUREMENTS), samples.joined(heads, SAMPLES)
    except (TypeError, OverflowError, pl.exceptions.PolarsError) as error:
        words = (str(error).splitlines() or [""])[0]
        raise Fault(f"{run.folder}: its numbers do not fit the tables: {words}") from None


def _head(run: Run, trial: TrialRecord, graded: Graded) -> dict[str, Any]:
    cell = run.plan.cell[graded.cell]
    return {
        "run": run.manifest.run,
        "host": run.manifest.host,
        "experiment": run.manifest.experiment,
        "profile": run.manifest.profile,
        "trial": trial.trial,
        "block": trial.block,
        "position": trial.position,
        "cell": cell.id,
        "binding": cell.binding,
        "label": cell.label,
        "role": cell.role,
        "baseline": cell.baseline,
        "cpus": cell.cpus,
        "cpu_nodes": cell.cpu_nodes,
        "memory_policy": cell.memory.policy,
        "memory_nodes": cell.memory.nodes,
        "threads": cell.threads,
        "distance": cell.distance,
        "tool": trial.tool.name,
        "tool_version": trial.tool.version,
        "grade": graded.grade,
    }


class _Raw:
    """The raw files of one trial, read once: what its driver and the collectors make of them."""

    def __init__(self, run: Run, trial: TrialRecord) -> None:
        self.run = run
        self.trial = trial
        self.unpacked = 0
        self.driver = drivers.driver(trial.tool.name)
        self.records: list[dict[str, Any]] = []
        self.collected: Any = None
        output = trial.raw.get(self.driver.output)
        collect = None if trial.visits else trial.raw.get("collect")
        if output is not None:
            text = read_raw(run.folder, output)
            self.unpacked += len(text)
            # Where it fails the journal holds the reason: the same parser failed on the host.
            with (
                contextlib.suppress(ParseError),
                understood(run.folder, trial.trial),
                untrusted.little_memory(run.folder / output),
            ):
                self.records = self.driver.parse(text)
        if collect is not None:
            packed = untrusted.read_gzip(run.folder, collect)
            self.unpacked += len(packed)
            self.collected = untrusted.parse_json(packed, run.folder / collect)

    def rows(self) -> Iterator[Row]:
        found = self.driver.metrics(self.records) if self.records else []
        if self.collected is not None:
            found = [*found, *collectors.metrics(self.collected, self.run.manifest.formulas)]
        yield from [*found, *collectors.per_query(found)]

    def samples(self) -> Iterator[Sample]:
        yield from self.driver.samples(self.records)
        if self.collected is not None:
            yield from collectors.samples(self.collected)


class _Columns:
    """Rows collected column by column: a tenth of what as many dictionaries would take."""

    def __init__(self, names: Iterable[str]) -> None:
        self.of: dict[str, list[Any]] = {name: [] for name in (*_HEAD, *names)}

    def __len__(self) -> int:
        return len(self.of["trial"])

    def add(self, trial: int, cell: str, row: Row | Sample, why: Reason | None = None) -> None:
        own = {
            "trial": trial,
            "cell": cell,
            "reason": why and why.code,
            "reason_fields": why and json.dumps(to_json(why.fields), ensure_ascii=False),
        }
        for name, values in self.of.items():
            values.append(own[name] if name in own else getattr(row, name))

    def joined(self, heads: pl.DataFrame, schema: dict[str, pl.DataType]) -> pl.DataFrame:
        """Return the rows as a table, with what the heads know of their trials."""
        rows = pl.DataFrame(self.of, schema={name: schema[name] for name in self.of})
        heads = heads.select(name for name in heads.columns if name in schema)
        joined = rows.join(heads, on=_HEAD, how="left", maintain_order="left")
        return joined.select(list(schema))


def parquet(frame: pl.DataFrame) -> bytes:
    """Return a table as it is written: the same table gives the same bytes."""
    file = io.BytesIO()
    frame.write_parquet(file, compression="zstd", statistics=False)
    return file.getvalue()


def write(run: Run) -> None:
    """Derive a run's two tables, write them beside its raw files, and seal the run."""
    for name, frame in zip(FILES, (run.measurements, run.samples), strict=True):
        replace(run.folder, name, parquet(frame))
    seal(run.folder)


def seal(folder: Path) -> None:
    """Write SHA256SUMS over a run's files as they are now; raw files are in its manifest."""
    present = [name for name in SEALED if os.path.lexists(folder / name)]
    lines = [f"{untrusted.sha256(folder, name)}  {name}\n" for name in present]
    replace(folder, SUMS, "".join(lines).encode())


def sums(folder: Path) -> dict[str, str]:
    """Return what SHA256SUMS lists: hashes by file; Fault where it is missing or damaged."""
    text = untrusted.read_bytes(folder, SUMS, untrusted.MIB).decode("utf-8", errors="replace")
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = re.fullmatch(r"([0-9a-f]{64}) [ *](\S+)", line)
        if match is None or match[2] not in SEALED:
            raise Fault(f"{folder / SUMS}, line {number} is no hash of a file of a run")
        found[match[2]] = match[1]
    return found


def replace(folder: Path, name: str, content: bytes) -> None:
    """Write a run's file so that a crash leaves the old one or the new one, never a mixture.

    A link that a stranger left in its place is replaced, not followed.
    """
    temporary = folder / f".{name}.part"
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(temporary, flags, 0o644), "wb") as file:
        file.write(content)
    temporary.replace(folder / name)
