"""What every form of a claim's predicate shares: its cells, its rows, its verdict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import polars as pl
from pydantic import BaseModel, ConfigDict

from ... import tables
from ...agent import cpulist
from ...agent.contract import CONTROL, VERIFIED, Cell, Reason, reason
from .. import evidence, judge

if TYPE_CHECKING:
    from ...runs import Run

SUPPORTED, REFUTED = "supported", "refuted"
INCONCLUSIVE, NOT_TESTABLE = "inconclusive", "not testable here"


@dataclass(frozen=True)
class Judged:
    """What a run says of one predicate; ``reason`` where it cannot be tested here."""

    verdict: str
    because: str
    cells: tuple[str, ...] = ()
    reason: Reason | None = None


class Untestable(Exception):
    """Why a predicate cannot be tested on this host."""

    def __init__(self, code: str, **fields: object) -> None:
        super().__init__(code)
        self.reason = reason(code, **fields)


class Strict(BaseModel):
    """Data of an experiment file: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Form(Strict, ABC):
    """A form of predicate: what it asks for, the evidence it needs, and how it says the answer.

    ``keys`` are those that only this form has: by them a predicate of an experiment file is
    known to be of this form.
    """

    keys: ClassVar[tuple[str, ...]]
    needs_blocks: ClassVar[bool] = True  # what was measured decides; not what the host was set to

    @abstractmethod
    def judged(self, run: Run, others: Sequence[Run]) -> Judged:
        """Return what a run says; ``others`` are runs of the same experiment. Or Untestable."""


# ---------------------------------------------------------------- cells


def split(name: str) -> tuple[str, str]:
    """Return a claim's name of cells as binding and variant: "local/threads=2", "local"."""
    binding, _, variant = name.partition("/")
    return binding, variant


def cells_named(name: str, run: Run) -> list[Cell]:
    """Return the cells that a claim names, in the plan's order; Untestable when there are none."""
    binding, variant = split(name)
    meant = next((one for one in run.plan.resolved if one.asked == binding), None)
    ids = meant.cells if meant else ()
    found = [cell for cell in run.plan.cells if cell.id in ids and cell.variant == variant]
    if found:
        return found
    _raise_skipped(name, run)
    if meant and meant.reason:
        raise Untestable("cell-skipped", cell=name, why=meant.reason)
    if meant and ids and variant:
        raise Untestable("variant-left-out", variant=variant, profile=run.manifest.profile)
    raise Untestable("cell-not-in-run", cell=name)


def _raise_skipped(name: str, run: Run) -> None:
    binding, variant = split(name)
    kind = binding.partition(":")[0]
    cases = [case.name for case in run.plan.request.cases]
    if cases and variant and variant not in cases:
        raise Untestable("variant-left-out", variant=variant, profile=run.manifest.profile)
    for skip in run.plan.skipped:
        alike = skip.binding in (kind, binding) and skip.variant == variant
        if alike and (binding == kind or skip.cell in (binding, name)):
            raise Untestable("cell-skipped", cell=name, why=skip.reason)


def plain_cells(run: Run) -> list[Cell]:
    """Return the cells of the plain load, without controls and swept copies."""
    return [cell for cell in run.plan.cells if cell.role != CONTROL and not cell.variant]


def partners(cell: Cell, candidates: Sequence[Cell]) -> list[Cell]:
    """Return what a cell is compared with: its baseline, else cells on its CPUs, on its nodes, or
    the only one that there is."""
    for alike in (
        lambda other: other.id == cell.baseline,
        lambda other: other.cpus == cell.cpus and other.threads == cell.threads,
        lambda other: other.cpu_nodes == cell.cpu_nodes,
        lambda other: len(candidates) == 1,
    ):
        found = [other for other in candidates if alike(other) and other.id != cell.id]
        if found:
            return found
    return []


def cpus_of(cell: Cell, run: Run) -> frozenset[int]:
    """Return a cell's CPUs; where it is not bound, all that may be used but a client's own."""
    if cell.cpus is not None:
        return frozenset(cpulist.parse(cell.cpus))
    client = run.plan.client.cpus if run.plan.client else None
    return frozenset(run.host.topology.usable) - frozenset(cpulist.parse(client or ""))


# ---------------------------------------------------------------- rows


def rows_of(
    run: Run, metric: str, per: str | None, names: Sequence[str], points: Sequence[str] | None
) -> pl.DataFrame:
    """Return the verified rows of a metric that may decide; Untestable where it has none.

    So where the data of one of these cells lie in the caches: memory is not what it measured.
    """
    for note in (note for cell in run.plan.cells if cell.id in names for note in cell.notes):
        if note.code == evidence.SMALL_DATA:
            raise Untestable(note.code, **note.fields)
    for one in [metric, *([per] if per else [])]:
        _require(run, one, names)
    rows = evidence.deciding_rows(run.measurements, metric, per, verified=True)
    if points is not None:
        rows = rows.filter(pl.col("point").is_in(list(points)))
        if rows.is_empty():
            raise Untestable("not-measured-at", metric=title(metric, per), points=list(points))
    return rows


def _require(run: Run, metric: str, names: Sequence[str]) -> None:
    rows = run.measurements.filter(pl.col("metric") == metric)
    kinds = rows.select("unit", "source", "tool").unique().rows()
    if not all(evidence.real(run, metric, *kind) for kind in kinds):
        raise Untestable("emulated-times")
    rows = rows.filter(pl.col("cell").is_in(list(names)))
    if rows.is_empty():
        raise Untestable("metric-not-measured", metric=title(metric))
    if rows["value"].is_not_null().sum() == 0:
        why = evidence.why_missing(run.measurements, metric)
        raise Untestable("metric-without-value", metric=title(metric), why=list(map(str, why)))
    if not (rows["grade"] == VERIFIED).any():
        counts = rows.group_by("grade").agg(pl.col("trial").n_unique()).sort("grade")
        raise Untestable("no-verified-trial", counts=dict(counts.iter_rows()))


def points_of(rows: pl.DataFrame, points: Sequence[str] | None) -> list[str]:
    """Return the points that count: those named, else all."""
    return list(points) if points is not None else rows["point"].unique().sort().to_list()


def title(metric: str, per: str | None = None) -> str:
    """Return what is compared, in words."""
    return tables.plain(metric) + (f" per {tables.plain(per)}" if per else "")


def too_few(count: int, name: str, run: Run) -> str:
    """Return the words for fewer blocks than can decide."""
    profile = run.manifest.profile
    tail = f" ({profile} judges no claim)" if profile == "smoke" else ""
    return (
        f"too few blocks: {count} verified for {name}, and fewer than {evidence.BLOCKS_NEEDED}"
        f" decide nothing{tail}"
    )


def undecided(effect: judge.Effect, name: str, run: Run) -> str:
    """Return why the judge decides nothing on a pair."""
    if effect.reason:
        return f"{name}: {effect.reason}"
    if effect.decision == judge.TOO_FEW:
        return too_few(effect.n, name, run)
    return str(reason(effect.decision))
