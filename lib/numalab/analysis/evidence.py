"""What a run holds on one metric, as the judge needs it; and what should be doubted in it.

The unit of evidence is the block: every block holds each cell once, so cells are compared within
each block and the blocks are the repetitions (Kalibera and Jones, "Rigorous benchmarking in
reasonable time", ISMM 2013: repeat at the level at which the noise arises). Values are compared
as logarithms, because only the geometric mean gives the same answer whichever of two cells is
called the baseline (Fleming and Wallace, "How not to lie with statistics", CACM 29(3), 1986).

Rows graded ``error`` never enter a figure. Rows graded ``unverified`` enter means, and decide
only where a run verified nothing at all. A missing value stays missing: null with its reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from scipy import special, stats

from ..agent.contract import (
    CONFIGURED,
    CONTROL,
    COUNTED,
    UNVERIFIED,
    VERIFIED,
    Plan,
    Reason,
    reason,
)

if TYPE_CHECKING:
    from ..runs import Run

SMALL_DATA = "data-below-caches"  # a cell's note: its data lie in caches, and nothing is judged
BLOCKS_NEEDED = 6
"""Five pairs cannot reach p < 0.05: the sign test's least p-value is 2/2**5 = 0.0625."""

CONFIDENCE = 0.95
NOISY = 0.10
"""Standard deviation over mean above which a result is called unstable (as in pyperf)."""

COUNTER_MISSING = "counter-missing"  # the code of a quotient whose counter has no value

_KERNEL_SOURCES = ("numastat", "vmstat", "meminfo", "placement")
_PLACING_TOOLS = ("allocation",)  # their counts are the kernel's doing, not a speed in disguise
_TIMES = ("s", "ms", "us", "µs", "ns", "min", "h", "cycles")
_SOFTWARE_EVENTS = (
    "page-faults", "minor-faults", "major-faults", "context-switches", "cpu-migrations",
)  # fmt: skip
_USABLE = pl.col("grade").is_in([VERIFIED, UNVERIFIED]) & pl.col("value").is_finite()


# ---------------------------------------------------------------- what the judge is given


@dataclass(frozen=True)
class Grid:
    """One metric at one point: the logarithm of its value in every cell and block of a run.

    ``logs`` has the shape (cells, blocks), NaN where there is no value. ``controls`` maps a
    control to the cell that it repeats. ``bad`` says why a cell has no logarithms at all, ``tools``
    which tool measured each cell.
    """

    cells: tuple[str, ...]
    blocks: tuple[int, ...]
    logs: np.ndarray
    controls: Mapping[str, str] = field(default_factory=dict)
    bad: Mapping[str, Reason] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)


def deciding_rows(
    measurements: pl.DataFrame, metric: str, per: str | None = None, *, verified: bool = False
) -> pl.DataFrame:
    """Return the rows of a metric that may decide: verified ones, of the tool itself if it has any.

    Where nothing is verified (an imported run) they are the unverified ones, unless ``verified``
    asks for no others. ``per`` divides by another metric of the same trial: at the same point where
    that one has points, else by its only value.
    """
    rows = measurements.filter(pl.col("metric").is_in([metric, per] if per else [metric]) & _USABLE)
    if verified or (rows["grade"] == VERIFIED).any():
        rows = rows.filter(pl.col("grade") == VERIFIED)
    value = rows.filter(pl.col("metric") == metric)
    if per:
        by = rows.filter(pl.col("metric") == per).select(
            "run", "cell", "block", "point", pl.col("value").alias("_by")
        )
        same = ["run", "cell", "block"]
        if by.select(same).is_duplicated().any():  # it has points of its own
            same.append("point")
        else:
            by = by.drop("point")
        value = (
            value.join(by, on=same)
            .filter(pl.col("_by") > 0)
            .with_columns(pl.col("value") / pl.col("_by"))
        )
    if "tool" in value["source"]:  # a collector may count what the tool counts too
        value = value.filter(pl.col("source") == "tool")
    return value


def grid(rows: pl.DataFrame, plan: Plan, point: str = "", key: str = "cell") -> Grid:
    """Return rows of one metric (see ``deciding_rows``) at one point as a grid of logarithms.

    ``key`` names the column whose values are compared; with "point" the rows are those of one
    cell, and its points are what is compared.
    """
    if key == "cell":
        rows = rows.filter(pl.col("point") == point)
    names = tuple(rows[key].unique(maintain_order=True).to_list())
    if key == "cell":
        order = {name: place for place, name in enumerate(plan.cell)}
        names = tuple(sorted(names, key=lambda name: order.get(name, len(order))))
    blocks = tuple(rows["block"].unique().sort().to_list())
    place = {name: index for index, name in enumerate(names)}
    when = {block: index for index, block in enumerate(blocks)}
    sums, counts = np.zeros((2, len(names), len(blocks)))
    bad: dict[str, Reason] = {}
    tools: dict[str, str] = {}
    for name, block, value, tool in rows.select(key, "block", "value", "tool").iter_rows():
        tools.setdefault(name, tool)
        if value <= 0:
            bad.setdefault(name, reason("value-not-positive", block=block))
            continue
        sums[place[name], when[block]] += np.log(value)
        counts[place[name], when[block]] += 1
    logs = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    for name in bad:
        logs[place[name]] = np.nan
    controls = {}
    if key == "cell":
        controls = {
            cell.id: cell.baseline
            for cell in plan.cells
            if cell.role == CONTROL and cell.baseline and {cell.id, cell.baseline} <= place.keys()
        }
    return Grid(names, blocks, logs, controls, bad, tools)


def means_something(
    badge: str, metric: str, unit: str = "", source: str = "tool", tool: str = ""
) -> bool:
    """Return whether a metric means something in a run with this badge (``contract.EVIDENCE``).

    On an emulated host ("counted") the kernel's behaviour is real (where pages went, faults,
    reclaim, migrations); times, speeds and hardware counters are not, whoever measured them. Where
    the memory timing is configured, times are the model's, and may be judged.
    """
    if badge != COUNTED:
        return True
    if unit in _TIMES or unit.endswith("/s"):
        return False
    if source in _KERNEL_SOURCES or metric in (*_SOFTWARE_EVENTS, "exit_status"):
        return True
    return source == "tool" and tool in _PLACING_TOOLS


def real(run: Run, metric: str, unit: str = "", source: str = "tool", tool: str = "") -> bool:
    """Return ``means_something`` of a metric of a run; no emulated host is "measured"."""
    badge = COUNTED if run.host.emulated and run.evidence != CONFIGURED else run.evidence
    return means_something(badge, metric, unit, source, tool)


def why_missing(measurements: pl.DataFrame, metric: str) -> tuple[Reason, ...]:
    """Return why a metric has no value in these rows: at most two reasons, () where none stands.

    A quotient of a counter that is missing has that counter's reason with it. Columns ``reason``
    (a code) and ``reason_fields`` (JSON) as in measurements.parquet.
    """
    rows = measurements.filter(
        (pl.col("metric") == metric) & pl.col("value").is_null() & pl.col("reason").is_not_null()
    )
    found = []
    for row in rows.select("reason", "reason_fields").unique().sort(pl.all()).head(2).iter_rows():
        why = row_reason(*row)
        counter = str(why.fields.get("name")) if why.code == COUNTER_MISSING else metric
        deeper = why_missing(measurements, counter) if counter != metric else ()
        found.append(reason("without-counter", name=counter, why=deeper[0]) if deeper else why)
    return tuple(found)


def row_reason(code: str, fields: str | None) -> Reason:
    """Return a row's reason from its two columns."""
    return Reason(code, json.loads(fields) if fields else {})


def median_interval(
    values: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float, float] | None:
    """Return (low, high, confidence reached) of the median of a population, by order statistics.

    The interval from the k-th smallest to the k-th largest value holds the median unless fewer
    than k values fall on one side of it, which is the sign test (David and Nagaraja, Order
    Statistics, 3rd ed. 2003, section 7.1): nothing is assumed of the distribution. k is the
    largest that keeps ``confidence``: of six values it is 1, and their range covers the median
    96.9 times in 100. None where even the range does not reach ``confidence``.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    n = len(ordered)
    reached = [1 - 2 * float(stats.binom.cdf(k - 1, n, 0.5)) for k in range(1, n // 2 + 1)]
    enough = [k for k, level in enumerate(reached, 1) if level >= confidence]
    if not enough:
        return None
    k = enough[-1]
    return float(ordered[k - 1]), float(ordered[n - k]), reached[k - 1]


# ---------------------------------------------------------------- tables of runs

_KEYS = ["run", "host", "experiment", "cell", "tool", "source", "metric", "point"]
_CARRIED = ["binding", "label", "role", "baseline", "threads", "distance", "x", "y", "unit"]


def summarise(
    measurements: pl.DataFrame | pl.LazyFrame, metrics: Sequence[str] | None = None
) -> pl.DataFrame:
    """Return one row per run, host, experiment, cell, metric and point.

    Columns: those keys with ``tool`` and ``source`` (never averaged over), what describes the
    cell (``binding``, ``label``, ``role``, ``baseline``, ``threads``, ``distance``, ``x``, ``y``,
    ``unit``), then ``n`` values used, ``n_unverified`` of them, ``n_error`` rows left out,
    ``median``, ``mean``, ``low`` and ``high``: Student's t interval of the mean at 95 %, null
    when n < 2. A cell without a usable value keeps its row with n = 0 and null figures.
    """
    frame = measurements.lazy()
    if metrics is not None:
        frame = frame.filter(pl.col("metric").is_in(list(metrics)))
    usable = _USABLE.fill_null(False)
    value = pl.col("usable")
    return (
        frame.with_columns(usable=pl.when(usable).then(pl.col("value")))
        .group_by(_KEYS)
        .agg(
            *(pl.col(name).first() for name in _CARRIED),
            n=value.count().cast(pl.Int64),
            n_unverified=(value.is_not_null() & (pl.col("grade") == "unverified")).sum(),
            n_error=(pl.col("grade") == "error").sum(),
            median=value.median(),
            mean=value.mean(),
            _half=value.std() / value.count().sqrt(),
        )
        .with_columns(_half=pl.col("_half") * _student(pl.col("n")))
        .with_columns(
            low=pl.col("mean") - pl.col("_half"),
            high=pl.col("mean") + pl.col("_half"),
        )
        .drop("_half")
        .sort(_KEYS)
        .collect()
    )


def _student(n: pl.Expr) -> pl.Expr:
    """The t quantile of a 95 % interval for n values; null below 2."""

    def quantiles(counts: pl.Series) -> pl.Series:
        freedom = np.maximum(counts.to_numpy() - 1, 1)
        return pl.Series(special.stdtrit(freedom, (1 + CONFIDENCE) / 2))

    return pl.when(n >= 2).then(n.map_batches(quantiles, return_dtype=pl.Float64))


# ---------------------------------------------------------------- what should be doubted


@dataclass(frozen=True)
class Warned:
    """What a careful reader should be told of a run; ``cell`` is None for the run as a whole."""

    cell: str | None
    metric: str
    point: str
    reason: Reason


def warnings(measurements: pl.DataFrame, metrics: Sequence[str] | None = None) -> list[Warned]:
    """Return what a careful reader should be told about the tool's figures of one run.

    In the manner of pyperf's stability warnings, by the code of the reason:
    ``noisy``: coefficient of variation above ``NOISY``;
    ``outlier``: a modified z-score above 3.5 (0.6745 (x - median) / MAD; Iglewicz and Hoaglin,
    "How to detect and handle outliers", 1993), and 2 % or more from the median;
    ``two-modes``: the best split into two groups of three or more has a gap that one normal
    distribution hardly ever shows (Ashman's D above 6; Ashman, Bird and Zepf, AJ 108, 1994), and
    centres 2 % or more apart: something switched between trials;
    ``first-block``: the first block differs from all others alike: the host was not warm;
    ``trend``: Kendall's tau over the running order has p < 0.01, and the slope (the median of the
    slopes of all pairs; Theil 1950, Sen 1968) is 1 % or more over the run;
    ``few-blocks``: fewer than ``BLOCKS_NEEDED`` usable values.
    """
    frame = measurements.filter(_USABLE.fill_null(False) & (pl.col("source") == "tool"))
    if metrics is not None:
        frame = frame.filter(pl.col("metric").is_in(list(metrics)))
    keys = ["metric", "point", "cell"]
    middle = pl.col("value").median().over(keys)
    relative = frame.filter(middle != 0).with_columns(_relative=pl.col("value") / middle)
    found = [
        Warned(cell, metric, point, why)
        for (metric, point, cell), group in relative.sort(keys).group_by(keys, maintain_order=True)
        for why in _cell_warnings(group)
    ]
    for (metric, point), group in relative.group_by("metric", "point", maintain_order=True):
        over_the_run = (_first_block(group), _trend(group))
        found += [Warned(None, metric, point, why) for why in over_the_run if why]
    return sorted(found, key=lambda one: (one.metric, one.point, one.reason.code, one.cell or ""))


def _cell_warnings(group: pl.DataFrame) -> list[Reason]:
    values = group["_relative"].to_numpy()
    found = []
    if len(values) < BLOCKS_NEEDED:
        found.append(reason("few-blocks", values=len(values), needed=BLOCKS_NEEDED))
    if len(values) < 3:
        return found
    variation = np.std(values, ddof=1) / abs(np.mean(values))
    if variation > NOISY:
        found.append(reason("noisy", variation=float(variation)))
    modes = _two_modes(values)
    if modes:
        return [*found, modes]  # the smaller mode is no row of outliers
    far = np.abs(values - 1)  # the median is 1
    odd = (far > 0.02) & (0.6745 * far > 3.5 * max(float(np.median(far)), 1e-9))
    if len(values) >= 5 and odd.any():
        blocks = sorted(group["block"].to_numpy()[odd].tolist())
        worst = float(values[np.argmax(np.where(odd, far, 0))] - 1)
        found.append(reason("outlier", blocks=blocks, away=worst))
    return found


def _two_modes(values: np.ndarray) -> Reason | None:
    """A reason when the values fall into two groups; the least share of a group is three."""
    ordered = np.sort(values)
    n = len(ordered)
    if n < 8:
        return None
    splits = range(3, n - 2)
    within = [np.var(ordered[:k]) * k + np.var(ordered[k:]) * (n - k) for k in splits]
    k = splits[int(np.argmin(within))]
    low, high = ordered[:k], ordered[k:]
    apart = float(high.mean() - low.mean())
    noise = np.sqrt(np.var(low, ddof=1) + np.var(high, ddof=1))
    if apart < 0.02 or np.sqrt(2) * apart <= 6 * noise:
        return None
    return reason("two-modes", low=len(low), high=len(high), apart=apart)


def _first_block(group: pl.DataFrame) -> Reason | None:
    """A reason when the first block's mean over the cells stands apart from all others."""
    means = group.group_by("block").agg(pl.col("_relative").mean()).sort("block")
    values = means["_relative"].to_numpy()
    if len(values) < BLOCKS_NEEDED:
        return None
    first, rest = values[0], values[1:]
    middle = float(np.median(rest))
    spread = float(np.median(np.abs(rest - middle)))
    away = float(first - middle)
    if abs(away) < 0.01 or 0.6745 * abs(away) <= 5 * max(spread, 1e-9):
        return None
    if rest.min() <= first <= rest.max():
        return None
    return reason("first-block", away=away / middle)


def _trend(group: pl.DataFrame) -> Reason | None:
    """A reason when the values, each over its cell's median, change with the running order."""
    y, x = group["_relative"].to_numpy(), group["trial"].to_numpy()
    if len(y) < BLOCKS_NEEDED or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    slope = stats.theilslopes(y, x)[0] * np.ptp(x) / abs(np.median(y))
    p_value = stats.kendalltau(x, y).pvalue
    if p_value >= 0.01 or abs(slope) < 0.01:
        return None
    return reason("trend", change=float(slope), p_value=float(p_value))
