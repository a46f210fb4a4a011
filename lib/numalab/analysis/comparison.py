"""Two runs or two hosts side by side: ``numalab compare``.

Blocks of two runs have nothing in common, so nothing is paired here: the ratio's interval comes
from the two runs' own scatter. It says nothing about what differs from one run to the next (the
room, the boot, other tenants); the A/A controls of both runs are considered for that reason, and
a second run of the same host is the better control.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ..agent.errors import Fault
from . import statistics

_SCHEMA = {
    "binding": pl.String,
    "rank": pl.String,
    "cell_a": pl.String,
    "cell_b": pl.String,
    "source": pl.String,
    "metric": pl.String,
    "point": pl.String,
    "unit": pl.String,
    "tool_a": pl.String,
    "tool_b": pl.String,
    "n_a": pl.Int64,
    "n_b": pl.Int64,
    "a": pl.Float64,
    "b": pl.Float64,
    "ratio": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "decision": pl.String,
    "reason": pl.String,
}


def compare(
    a: pl.DataFrame,
    b: pl.DataFrame,
    *,
    emulated: tuple[bool, bool] = (False, False),
) -> pl.DataFrame:
    """Return one row per matched cell, metric and point of two frames of measurements.

    Cells are matched by id; what is left over by binding and rank (``nearest`` and ``farthest``
    by SLIT distance), all cells of one kind being pooled, so that hosts of different shape can be
    compared. Columns: binding, rank, cell_a, cell_b (several ids where pooled), source, metric,
    point, unit, tool_a, tool_b, ``n_a``, ``n_b`` values used, ``a`` and ``b`` their geometric
    means (the median where a value is 0 or less), ``ratio`` b / a with its 95 % interval ``low``,
    ``high`` (``statistics.unpaired``), ``decision`` as
    ``statistics.effect`` gives it with the hull of the two A/A controls and their inverses, and
    ``reason`` where there is no ratio: another tool, another unit, a missing cell, an emulated
    host (``emulated`` says which of the two is), too few values. Rows graded error are left out.
    """
    one, other = _series(a, "first"), _series(b, "second")
    first, second = _controls(a), _controls(b)
    rows = [
        _row(key, left, right, emulated, _hull(first.get(key), second.get(key)))
        for key in sorted({*one, *other})
        for left, right in _matched(one.get(key, []), other.get(key, []))
    ]
    return pl.DataFrame(rows, schema=_SCHEMA)


def compare_runs(first: str | Path, second: str | Path) -> pl.DataFrame:
    """Return ``compare`` of two run directories; Fault when they are of different experiments."""
    from .. import runs

    a, b = runs.load(first), runs.load(second)
    names = [run.manifest["experiment"] for run in (a, b)]
    if names[0] != names[1]:
        raise Fault(
            f"{first} is a run of {names[0]}, {second} one of {names[1]}",
            "compare two runs of one experiment",
        )
    emulated = (bool(a.host["emulated"]), bool(b.host["emulated"]))
    return compare(a.measurements, b.measurements, emulated=emulated)


def text(frame: pl.DataFrame, width: int = 100) -> str:
    """Return a comparison as lines for a terminal of ``width`` columns; reasons are cut to it."""
    if frame.is_empty():
        return "The two runs have no results to compare."
    head = ("cell", "metric", "a", "b", "b / a", "")
    lines = [head]
    for row in frame.iter_rows(named=True):
        cells = [cell for cell in (row["cell_a"], row["cell_b"]) if cell]
        name = cells[0]
        if len(set(cells)) > 1:
            swept = name.split(", ")[0].partition("/")[1:]  # of a sweep, or the case
            name = f"{row['binding']} {row['rank'] or ''}".strip() + "".join(swept)
        ratio = "–" if row["ratio"] is None else f"{row['ratio']:.3f}"
        if row["low"] is not None:
            ratio += f"  [{row['low']:.3f}, {row['high']:.3f}]"
        metric = f"{row['metric']} {row['point']}".strip() + f" {row['unit']}"
        values = ["–" if row[side] is None else f"{row[side]:.4g}" for side in "ab"]
        lines.append((name, metric, *values, ratio, row["reason"] or row["decision"]))
    widths = [max(len(line[place]) for line in lines) for place in range(5)]
    return "\n".join(
        "  ".join(
            (*(f"{cell:<{room}}" for cell, room in zip(line, widths, strict=False)), line[5])
        ).rstrip()[: max(width, sum(widths) + 20)]
        for line in lines
    )


# ---------------------------------------------------------------- matching


@dataclass(frozen=True)
class _Series:
    """The values of one cell (or of several, pooled) at one metric and point, by block."""

    cells: tuple[str, ...]
    binding: str
    rank: str
    distance: int | None
    tool: str
    unit: str
    values: dict[int, float]  # per block; the geometric mean where cells are pooled
    reason: str | None


def _series(frame: pl.DataFrame, which: str) -> dict[tuple[str, str, str], list[_Series]]:
    """Every cell's values by (source, metric, point)."""
    if frame["run"].n_unique() > 1:
        raise Fault(f"the {which} table holds more than one run", "compare one run with one")
    rows = frame.filter(pl.col("role") != "control")
    ranks = _ranks(rows)
    found: dict[tuple[str, str, str], list[_Series]] = {}
    keys = ["source", "metric", "point", "cell"]
    usable = (pl.col("grade") != "error") & pl.col("value").is_finite()
    table = (
        rows.group_by(keys, maintain_order=True)
        .agg(
            *(pl.col(name).first() for name in ("binding", "distance", "tool", "unit")),
            pl.col("tool").unique().sort().alias("tools"),
            pl.col("block").filter(usable),
            pl.col("value").filter(usable),
            pl.col("reason").drop_nulls().first(),
        )
        .sort(keys)
    )
    for row in table.iter_rows(named=True):
        values = dict(zip(row["block"], row["value"], strict=True))
        series = _Series(
            (row["cell"],), row["binding"], ranks.get(row["cell"], ""), row["distance"],
            " and ".join(row["tools"]), row["unit"], values, row["reason"],
        )  # fmt: skip
        found.setdefault((row["source"], row["metric"], row["point"]), []).append(series)
    return found


def _ranks(rows: pl.DataFrame) -> dict[str, str]:
    """Which remote cells reach the nearest and which the farthest node, by SLIT distance."""
    remote = rows.filter((pl.col("binding") == "remote") & pl.col("distance").is_not_null())
    ranks = {}
    for _, group in remote.group_by("cpu_nodes"):
        nearest, farthest = group["distance"].min(), group["distance"].max()
        for cell, distance in group.select("cell", "distance").unique().iter_rows():
            names = [
                name
                for name, at in (("nearest", nearest), ("farthest", farthest))
                if at == distance
            ]
            ranks[cell] = " and ".join(names) or "between"
    return ranks


def _matched(
    one: list[_Series], other: list[_Series]
) -> list[tuple[_Series | None, _Series | None]]:
    """Cells of one id and distance; of the rest, those of one binding and rank, pooled."""
    mates = {series.cells: series for series in other}
    pairs: list[tuple[_Series | None, _Series | None]] = []
    for series in one:
        mate = mates.get(series.cells)
        if (
            mate
            and None in (series.distance, mate.distance)
            or (mate and series.distance == mate.distance)
        ):
            pairs.append((series, mate))
    taken = {series.cells for series, _ in pairs}
    left = _pooled([series for series in one if series.cells not in taken])
    right = _pooled([series for series in other if series.cells not in taken])
    for kind in sorted({*left, *right}):
        pairs.append((left.get(kind), right.get(kind)))
    return pairs


def _pooled(rest: list[_Series]) -> dict[tuple[str, str, str], _Series]:
    """Cells of one binding, rank and swept option as one series: per block their geometric mean.

    A cell that is both nearest and farthest (a host of two nodes) stands for each.
    """
    kinds: dict[tuple[str, str, str], list[_Series]] = {}
    for series in rest:
        swept = series.cells[0].partition("/")[2]
        for rank in series.rank.split(" and "):
            kinds.setdefault((series.binding, rank, swept), []).append(series)
    pooled = {}
    for kind, members in kinds.items():
        blocks = set.intersection(*(set(member.values) for member in members))
        values = {
            block: _middle(np.array([member.values[block] for member in members]))
            for block in sorted(blocks)
        }
        first = members[0]
        pooled[kind] = _Series(
            tuple(cell for member in members for cell in member.cells), first.binding, kind[1],
            None, " and ".join(sorted({member.tool for member in members})), first.unit, values,
            next((member.reason for member in members if member.reason), None),
        )  # fmt: skip
    return pooled


# ---------------------------------------------------------------- the ratio


def _row(
    key: tuple[str, str, str],
    left: _Series | None,
    right: _Series | None,
    emulated: tuple[bool, bool],
    hull: tuple[float | None, float | None],
) -> dict[str, Any]:
    source, metric, point = key
    shown = left or right
    row: dict[str, Any] = {
        "binding": shown.binding,
        "rank": shown.rank or None,
        "source": source,
        "metric": metric,
        "point": point,
        "unit": shown.unit,
    }
    for side, series in (("a", left), ("b", right)):
        values = np.array(list(series.values.values())) if series else np.array([])
        row[f"cell_{side}"] = ", ".join(series.cells) if series else None
        row[f"tool_{side}"] = series.tool if series else None
        row[f"n_{side}"] = len(values)
        row[side] = _middle(values) if len(values) else None
    row["reason"] = _refused(left, right, source, metric, emulated)
    if row["reason"] is None:
        values = [list(series.values.values()) for series in (left, right)]
        row["ratio"], row["low"], row["high"] = statistics.unpaired(*values)
        blocks = min(row["n_a"], row["n_b"])
        row["decision"] = statistics.effect(row["low"], row["high"], *hull, blocks)
        if row["low"] is None:
            row["reason"] = "one value has no interval"
    return row


def _refused(
    left: _Series | None,
    right: _Series | None,
    source: str,
    metric: str,
    emulated: tuple[bool, bool],
) -> str | None:
    """Why two series make no ratio, or None."""
    if left is None or right is None:
        return f"only in {'b' if left is None else 'a'}"
    if left.tool != right.tool:
        return f"different tools make no ratio: {left.tool} and {right.tool}"
    if left.unit != right.unit:
        return f"different units: {left.unit} and {right.unit}"
    if any(emulated) and not statistics.real_when_emulated(source, metric, left.unit, left.tool):
        which = " and ".join(side for side, flag in zip("ab", emulated, strict=True) if flag)
        return f"emulated ({which}): timings carry no NUMA meaning"
    for side, series in (("a", left), ("b", right)):
        if not series.values:
            return f"no value in {side}" + (f": {series.reason}" if series.reason else "")
        if min(series.values.values()) <= 0:
            return f"no ratio: a value in {side} is 0 or less"
    return None


def _middle(values: np.ndarray) -> float:
    """The geometric mean; the median where a value is 0 or less."""
    return float(np.exp(np.log(values).mean()) if (values > 0).all() else np.median(values))


def _controls(frame: pl.DataFrame) -> dict[tuple[str, str, str], tuple[float, float]]:
    """The A/A interval of every (source, metric, point) of a run that has one."""
    control = frame.filter(pl.col("role") == "control")
    cells = {*control["cell"], *control["baseline"]}
    table = statistics.ratios(frame.filter(pl.col("cell").is_in(list(cells))))
    return {
        (row["source"], row["metric"], row["point"]): (row["aa_low"], row["aa_high"])
        for row in table.filter(pl.col("aa_low").is_not_null()).iter_rows(named=True)
    }


def _hull(
    one: tuple[float, float] | None, other: tuple[float, float] | None
) -> tuple[float | None, float | None]:
    """The least interval that holds both runs' A/A intervals and their inverses."""
    if one is None or other is None:
        return None, None
    # which of two like cells was called the control is chance: a control of 0.9 is one of 1 / 0.9
    far = max(max(high, 1 / low) for low, high in (one, other))
    return 1 / far, far
