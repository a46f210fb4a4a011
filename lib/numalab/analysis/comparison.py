"""Two runs or two hosts side by side: ``numalab compare``.

Blocks of two runs have nothing in common, so nothing is paired here (``judge.across``): the
ratio's interval comes from the two runs' own scatter. It says nothing about what differs from one
run to the next (the room, the boot, other tenants); the A/A controls of both runs are considered
for that reason, and a second run of the same host is the better control.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from .. import escape
from ..agent.contract import CONTROL, COUNTED, ERROR, Cell, Reason, reason
from ..agent.errors import Fault
from ..agent.plan.classes import PAIRS
from ..runs import Run, load
from . import evidence, judge

_TEXTS = ("name", "binding", "rank", "cell_a", "cell_b", "source", "metric", "point", "unit",
          "tool_a", "tool_b")  # fmt: skip
_SCHEMA = {
    **dict.fromkeys(_TEXTS, pl.String),
    **dict.fromkeys(("n_a", "n_b"), pl.Int64),
    **dict.fromkeys(("a", "b", "ratio", "low", "high"), pl.Float64),
    **dict.fromkeys(("decision", "reason"), pl.String),
}

_WORDS = {
    judge.DIFFERENT: "different",
    judge.ALIKE: "not distinguishable",
    judge.TOO_FEW: "too few blocks",
    judge.NO_CONTROL: "no A/A control in both",
    judge.DRIFTED: "one of the runs drifted",
}


@dataclass(frozen=True)
class _Kind:
    """What two cells of different hosts have in common."""

    binding: str
    layout: str
    rank: str
    variant: str

    @property
    def name(self) -> str:
        """It in words: "remote nearest/threads=2"."""
        words = [self.binding, self.layout, self.rank]
        tail = f"/{self.variant}" if self.variant else ""
        return " ".join(word for word in words if word) + tail


@dataclass(frozen=True)
class _Series:
    """The values of one cell (or of several, pooled) at one metric and point, by block."""

    cells: tuple[str, ...]
    kinds: tuple[_Kind, ...]
    distance: int | None
    tools: tuple[str, ...]
    unit: str
    values: dict[int, float]  # per block; the geometric mean where cells are pooled
    reason: Reason | None

    @property
    def tool(self) -> str:
        """The tool, or all of them."""
        return " and ".join(self.tools)


_Key = tuple[str, str, str]  # source, metric, point
_Both = tuple["_Series | None", "_Series | None"]


def compare(a: Run, b: Run) -> pl.DataFrame:
    """Return one row per matched cell, metric and point of two runs.

    Cells are matched by id; what is left over by binding and rank (``nearest`` and ``farthest``
    by SLIT distance), all cells of one kind being pooled, so that hosts of different shape can be
    compared. Columns: name (the cell's, or what the cells have in common), binding, rank, cell_a,
    cell_b (several ids where pooled), source, metric, point, unit, tool_a, tool_b, ``n_a``,
    ``n_b`` values used, ``a`` and ``b`` their geometric means (the median where a value is 0 or
    less), ``ratio`` b / a with its interval ``low``, ``high`` (95 %, for all cells of the metric
    together), ``decision`` as of the judge, and
    ``reason``, in words, where there is no ratio: another tool, another unit, a missing cell, an
    emulated host, other evidence. Rows graded error are left out.
    """
    series = _series(a), _series(b)
    matched = {
        key: _matched(*(side.get(key, []) for side in series))
        for key in sorted({*series[0], *series[1]})
    }
    tried: dict[str, int] = {}
    for (_, metric, _), pairs in matched.items():
        tried[metric] = tried.get(metric, 0) + sum(None not in pair for pair in pairs)
    rows = []
    for key, pairs in matched.items():
        _, metric, point = key
        judges: tuple[judge.Judge, judge.Judge] | None = None
        for pair in pairs:
            row = _described(key, pair)
            refused = _refused((a, b), key, pair)
            if refused is None:
                if judges is None:
                    one, other = (judge.of(r.measurements, r.plan, metric, point) for r in (b, a))
                    judges = (one, other)
                left, right = (list(series.values.values()) for series in pair if series)
                found = judge.across(right, left, judges, tried[metric])
                row |= {"ratio": found.ratio, "low": found.low, "high": found.high,
                        "decision": found.decision}  # fmt: skip
                refused = found.reason
            rows.append(row | {"reason": None if refused is None else str(refused)})
    return pl.DataFrame(rows, schema=_SCHEMA)


def compare_runs(first: str | Path, second: str | Path) -> pl.DataFrame:
    """Return ``compare`` of two run directories; Fault when they are of different experiments."""
    a, b = load(first), load(second)
    names = [run.manifest.experiment for run in (a, b)]
    if names[0] != names[1]:
        raise Fault(
            f"{first} is a run of {names[0]}, {second} one of {names[1]}",
            "compare two runs of one experiment",
        )
    return compare(a, b)


def text(frame: pl.DataFrame, width: int | None = None) -> str:
    """Return a comparison as lines; their reasons are cut to a terminal of ``width`` columns."""
    if frame.is_empty():
        return "The two runs have no results to compare."
    lines = [("cell", "metric", "a", "b", "b / a", "")]
    for row in frame.iter_rows(named=True):
        ratio = "–" if row["ratio"] is None else f"{row['ratio']:.3f}"
        if row["low"] is not None:
            ratio += f"  [{row['low']:.3f}, {row['high']:.3f}]"
        metric = f"{row['metric']} {row['point']}".strip() + f" {row['unit']}"
        values = ["–" if row[side] is None else f"{row[side]:.4g}" for side in "ab"]
        said = row["reason"] or _WORDS.get(row["decision"], row["decision"])
        a, b = (escape.line(value) for value in values)
        lines.append(
            (escape.line(row["name"]), escape.line(metric), a, b, ratio, escape.line(said))
        )
    widths = [max(len(line[place]) for line in lines) for place in range(5)]
    most = None if width is None else max(width, sum(widths) + 20)
    return "\n".join(
        "  ".join(
            (*(f"{cell:<{room}}" for cell, room in zip(line, widths, strict=False)), line[5])
        ).rstrip()[:most]
        for line in lines
    )


# ---------------------------------------------------------------- matching


def _series(run: Run) -> dict[_Key, list[_Series]]:
    """Every cell's values by source, metric and point."""
    found: dict[_Key, list[_Series]] = {}
    keys = ["source", "metric", "point", "cell"]
    usable = (pl.col("grade") != ERROR) & pl.col("value").is_finite()
    why = pl.col("reason").is_not_null()
    table = (
        run.measurements.filter(pl.col("role") != CONTROL)
        .group_by(keys, maintain_order=True)
        .agg(
            pl.col("unit").first(),
            pl.col("tool").unique().sort(),
            pl.col("block").filter(usable),
            pl.col("value").filter(usable),
            pl.col("reason").filter(why).first(),
            pl.col("reason_fields").filter(why).first(),
        )
        .sort(keys)
    )
    for row in table.iter_rows(named=True):
        cell = run.plan.cell[row["cell"]]
        code = row["reason"]
        series = _Series(
            (cell.id,), _kinds(cell), cell.distance, tuple(row["tool"]), row["unit"],
            dict(zip(row["block"], row["value"], strict=True)),
            evidence.row_reason(code, row["reason_fields"]) if code else None,
        )  # fmt: skip
        found.setdefault((row["source"], row["metric"], row["point"]), []).append(series)
    return found


def _kinds(cell: Cell) -> tuple[_Kind, ...]:
    """What a cell may be matched as: one that is nearest and farthest stands for each."""
    ranks = cell.rank or (("between",) if cell.binding in PAIRS else ("",))
    return tuple(_Kind(cell.binding, cell.layout, rank, cell.variant) for rank in ranks)


def _matched(one: list[_Series], other: list[_Series]) -> list[_Both]:
    """Cells of one id and distance; of the rest, those of one kind, pooled."""
    mates = {series.cells: series for series in other}
    pairs: list[_Both] = []
    for series in one:
        mate = mates.get(series.cells)
        known = mate and None not in (series.distance, mate.distance)
        if mate and not (known and series.distance != mate.distance):
            pairs.append((series, mate))
    taken = {series.cells for series, _ in pairs if series}
    left, right = (
        _pooled(series for series in side if series.cells not in taken) for side in (one, other)
    )
    kinds = sorted({*left, *right}, key=lambda kind: kind.name)
    return pairs + [(left.get(kind), right.get(kind)) for kind in kinds]


def _pooled(rest: Iterable[_Series]) -> dict[_Kind, _Series]:
    """Cells of one kind as one series: per block their geometric mean."""
    members: dict[_Kind, list[_Series]] = {}
    for series in rest:
        for kind in series.kinds:
            members.setdefault(kind, []).append(series)
    return {kind: _pool(kind, series) for kind, series in members.items()}


def _pool(kind: _Kind, members: list[_Series]) -> _Series:
    blocks = set.intersection(*(set(member.values) for member in members))
    return _Series(
        tuple(cell for member in members for cell in member.cells), (kind,), None,
        tuple(sorted({tool for member in members for tool in member.tools})), members[0].unit,
        {
            block: _middle(np.array([member.values[block] for member in members]))
            for block in sorted(blocks)
        },
        next((member.reason for member in members if member.reason), None),
    )  # fmt: skip


# ---------------------------------------------------------------- the ratio


def _described(key: _Key, pair: _Both) -> dict[str, Any]:
    """What a row says of its two series, without their ratio."""
    shown = pair[0] or pair[1]
    assert shown
    kind = shown.kinds[0]
    alike = len(shown.cells) == 1 and len({series.cells for series in pair if series}) == 1
    row: dict[str, Any] = dict(zip(("source", "metric", "point"), key, strict=True))
    row |= {
        "name": shown.cells[0] if alike else kind.name,
        "binding": kind.binding,
        "rank": " and ".join(one.rank for one in shown.kinds if one.rank) or None,
        "unit": shown.unit,
    }
    for side, series in zip("ab", pair, strict=True):
        values = np.array(list(series.values.values())) if series else np.array([])
        row[f"cell_{side}"] = ", ".join(series.cells) if series else None
        row[f"tool_{side}"] = series.tool if series else None
        row[f"n_{side}"] = len(values)
        row[side] = _middle(values) if len(values) else None
    return row


def _refused(both: tuple[Run, Run], key: _Key, pair: _Both) -> Reason | None:
    """Why two series make no ratio, or None."""
    source, metric, _ = key
    left, right = pair
    if left is None or right is None:
        return reason("only-in-one-run", run="b" if left is None else "a")
    if left.tools != right.tools:
        return reason("different-tools", tools=[left.tool, right.tool])
    if left.unit != right.unit:
        return reason("different-units", one=left.unit, other=right.unit)
    real = [evidence.real(run, metric, left.unit, source, left.tool) for run in both]
    if not all(real):
        return reason("emulated-times")
    if both[0].evidence != both[1].evidence and not evidence.means_something(
        COUNTED, metric, left.unit, source, left.tool
    ):
        return reason("different-evidence", one=both[0].evidence, other=both[1].evidence)
    for side, series in zip("ab", (left, right), strict=True):
        if not series.values:
            if series.reason is None:
                return reason("no-value-in-run", run=side)
            return reason("no-value-in-run-because", run=side, why=series.reason)
    return None


def _middle(values: np.ndarray) -> float:
    """The geometric mean; the median where a value is 0 or less."""
    return float(np.exp(np.log(values).mean()) if (values > 0).all() else np.median(values))
