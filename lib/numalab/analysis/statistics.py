"""What the numbers of a run say, and how surely: ratios, intervals, drift, warnings.

The unit of evidence is the block: every block holds each cell once, so a cell and its baseline
are compared within each block and the blocks are the repetitions (Kalibera and Jones,
"Rigorous benchmarking in reasonable time", ISMM 2013: report a ratio with its interval, and
repeat at the level at which the noise arises). Ratios are averaged as logarithms, because only
the geometric mean gives the same answer whichever of the two is called the baseline (Fleming and
Wallace, "How not to lie with statistics", CACM 29(3), 1986).

Rows graded ``error`` never enter a figure. Rows graded ``unverified`` do, and are counted beside
it (``n_unverified``). A missing value stays missing: null with its reason.
"""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from scipy import special, stats

from ..agent.plan.make import FEWEST_BLOCKS

BLOCKS_NEEDED = FEWEST_BLOCKS
"""Five pairs cannot reach p < 0.05: the sign test's least p-value is 2/2**5 = 0.0625."""

CONFIDENCE = 0.95
RESAMPLES = 9999
SEED = 1987

EFFECT = "effect"
NO_EFFECT = "no effect shown"
TOO_FEW = "too few blocks"
NO_CONTROL = "no A/A control"
CONTROL = "control"

_REAL_SOURCES = ("numastat", "vmstat", "meminfo", "placement")
_PLACING_TOOLS = ("allocation",)  # their counts are the kernel's doing, not a speed in disguise
_TIMES = ("s", "ms", "us", "µs", "ns", "min", "h", "cycles")
_SOFTWARE_EVENTS = (
    "page-faults", "minor-faults", "major-faults", "context-switches", "cpu-migrations",
)  # fmt: skip

_USABLE = pl.col("grade").is_in(["verified", "unverified"]) & pl.col("value").is_finite()


# ---------------------------------------------------------------- intervals


def expanded_confidence(confidence: float, n: int) -> float:
    """Return the nominal confidence at which a bootstrap of n values covers ``confidence``.

    A bootstrap of few values is too narrow: it divides by n instead of n - 1 and uses normal
    instead of t quantiles; at n = 6 a nominal 95 % interval covers only about 87 %. Hesterberg,
    "What teachers should know about the bootstrap", The American Statistician 69(4), 2015,
    section 4.2 ("expanded percentile interval"): use the tail probability
    Phi(sqrt(n / (n - 1)) * t(alpha / 2, n - 1)).
    """
    if n < 2:
        raise ValueError("an interval needs two values")
    tail = special.ndtr(np.sqrt(n / (n - 1)) * special.stdtrit(n - 1, (1 - confidence) / 2))
    # below a quarter of one resample the tail is the sample's extreme anyway
    return float(1 - 2 * max(tail, 0.25 / RESAMPLES))


def bootstrap_interval(
    values: np.ndarray, confidence: float = CONFIDENCE
) -> tuple[np.ndarray, np.ndarray]:
    """Return the BCa bootstrap interval of the mean, one for each row of ``values``.

    ``values``: shape (rows, n), n >= 2. Returns two arrays of shape (rows,). Method:
    bias-corrected and accelerated percentiles, Efron, "Better bootstrap confidence intervals",
    JASA 82(397), 1987, as in ``scipy.stats.bootstrap``, at the confidence of
    ``expanded_confidence``. Rows whose values are all the same get an interval of no width. In
    simulation a 95 % interval of 6 to 15 normal values covers the truth 94 to 96 times in 100; of
    heavy-tailed or skewed ones, about 90.

    Every row uses the same seeded resamples, and is first sorted, scaled to whole numbers and
    turned to a skew of one sign. So the answer depends neither on the order of the blocks nor on
    the other rows nor on the rounding of sums, follows a change of scale exactly, and swaps its
    ends when all signs are turned.
    """
    values = np.sort(np.atleast_2d(np.asarray(values, dtype=float)), axis=-1)
    rows, n = values.shape
    nominal = expanded_confidence(confidence, n)
    centre = values.mean(axis=-1)
    low, high = centre.copy(), centre.copy()
    spread = values[:, -1] - values[:, 0]
    varied = np.flatnonzero(spread > 1e-12 * np.maximum(1.0, np.abs(values).max(axis=-1)))
    away = values[varied] - centre[varied, None]
    sign = np.where((away**3).sum(axis=-1) < 0, -1.0, 1.0)
    unit = spread[varied] / 2**24
    grid = np.sort(np.rint(away * (sign / unit)[:, None]), axis=-1)
    # the grid's own mean is not quite 0: what rounding took is given back to both ends
    shift = centre[varied] - grid.mean(axis=-1) * sign * unit
    step = max(1, int(8e6 / (RESAMPLES * n)))  # at most 64 MB of resamples at a time
    for start in range(0, len(varied), step):
        part = slice(start, start + step)
        ends = np.stack(_bca(grid[part], nominal)) * (sign * unit)[part] + shift[part]
        low[varied[part]], high[varied[part]] = ends.min(axis=0), ends.max(axis=0)
    return low, high


def _bca(values: np.ndarray, nominal: float) -> tuple[np.ndarray, np.ndarray]:
    """One call of SciPy's BCa; where it is undefined, the percentile interval."""
    with python_warnings.catch_warnings():
        python_warnings.simplefilter("ignore")  # a degenerate row comes back as nan, seen below
        result = stats.bootstrap(
            (values,),
            np.mean,
            axis=-1,
            vectorized=True,
            confidence_level=nominal,
            n_resamples=RESAMPLES,
            method="BCa",
            rng=np.random.default_rng(SEED),
        )
    low, high = result.confidence_interval
    tail = (1 - nominal) / 2
    plain = np.quantile(result.bootstrap_distribution, [tail, 1 - tail], axis=-1)
    return np.where(np.isnan(low), plain[0], low), np.where(np.isnan(high), plain[1], high)


# ---------------------------------------------------------------- paired ratios


@dataclass(frozen=True)
class Ratio:
    """A cell's value over its baseline's, paired by block.

    ``ratio`` is the geometric mean of the per-block ratios, ``low`` and ``high`` its interval;
    all three are None when there is none, and ``reason`` says why. ``n`` counts the blocks used,
    ``dropped`` maps each block left out to why, ``logs`` maps each block used to the logarithm of
    its ratio.
    """

    ratio: float | None
    low: float | None
    high: float | None
    n: int
    dropped: dict[int, str] = field(default_factory=dict)
    reason: str | None = None
    logs: dict[int, float] = field(default_factory=dict, repr=False)


def paired_ratio(
    values: Sequence[float | None],
    baseline_values: Sequence[float | None],
    blocks: Sequence[int] | None = None,
    baseline_blocks: Sequence[int] | None = None,
    *,
    confidence: float = CONFIDENCE,
) -> Ratio:
    """Return the ratio of a cell to its baseline, paired by block, with a BCa interval.

    ``blocks`` names the block of each value (default: 1, 2, …), ``baseline_blocks`` that of each
    baseline value (default: as ``blocks``). A block in which either value is missing (None or
    not finite) is dropped and named; a value of 0 or less in any block means that no ratio
    exists, since leaving such blocks out would bias it. Two values in one block are averaged.
    Method: see ``bootstrap_interval``; the values are the logarithms of the per-block ratios.
    """
    blocks = range(1, len(values) + 1) if blocks is None else blocks
    baseline_blocks = blocks if baseline_blocks is None else baseline_blocks
    cell, why_cell = _by_block(values, blocks)
    base, why_base = _by_block(baseline_values, baseline_blocks)
    dropped = {}
    logs = {}
    for block in sorted({*cell, *base, *why_cell, *why_base}):
        if block not in cell:
            dropped[block] = why_cell.get(block, "the cell has no value in this block")
        elif block not in base:
            dropped[block] = "baseline: " + why_base.get(block, "no value in this block")
        elif min(*cell[block], *base[block]) <= 0:
            return Ratio(
                None, None, None, 0, dropped,
                f"no ratio: a value in block {block} is 0 or less",
            )  # fmt: skip
        else:
            logs[block] = float(np.mean(np.log(cell[block])) - np.mean(np.log(base[block])))
    if not logs:
        return Ratio(None, None, None, 0, dropped, "no block holds both the cell and its baseline")
    ratio = float(np.exp(np.mean(list(logs.values()))))
    if len(logs) == 1:
        return Ratio(ratio, None, None, 1, dropped, "one block has no interval", logs)
    low, high = np.exp(bootstrap_interval(np.array([list(logs.values())]), confidence=confidence))
    return Ratio(ratio, float(low[0]), float(high[0]), len(logs), dropped, None, logs)


def _by_block(
    values: Sequence[float | None], blocks: Sequence[int]
) -> tuple[dict[int, list[float]], dict[int, str]]:
    if len(values) != len(blocks):
        raise ValueError(f"{len(values)} values for {len(blocks)} blocks")
    good: dict[int, list[float]] = {}
    for value, block in zip(values, blocks, strict=True):
        if value is not None and np.isfinite(value):
            good.setdefault(int(block), []).append(float(value))
    missing = {int(block): "the value is missing" for block in blocks if int(block) not in good}
    return good, missing


def widened(ratio: Ratio, confidence: float) -> tuple[float, float]:
    """Return a ratio's bounds at another confidence: BCa, and at least Student's t beyond 95 %.

    A bootstrap of six blocks ends at their extremes, which all lie on one side of the truth once
    in 32 times: it has no tail for a level corrected for many comparisons. The ratio has two
    blocks or more.
    """
    logs = np.array([list(ratio.logs.values())])
    low, high = (float(end[0]) for end in bootstrap_interval(logs, confidence))
    if confidence > CONFIDENCE:
        n = logs.size
        half = special.stdtrit(n - 1, (1 + confidence) / 2) * logs.std(ddof=1) / np.sqrt(n)
        low, high = min(low, logs.mean() - half), max(high, logs.mean() + half)
    return float(np.exp(low)), float(np.exp(high))


def unpaired(
    a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float | None, float | None]:
    """Return the ratio b / a of two sets of positive values that share no blocks, with its bounds.

    Welch's t interval on the logarithms (Welch, Biometrika 34, 1947); no bounds below two values.
    """
    one, other = np.log(a), np.log(b)
    difference = other.mean() - one.mean()
    ratio = float(np.exp(difference))
    if min(len(one), len(other)) < 2:
        return ratio, None, None
    parts = np.array([np.var(one, ddof=1) / len(one), np.var(other, ddof=1) / len(other)])
    error = parts.sum()
    if error < 1e-24:
        return ratio, ratio, ratio
    freedom = error**2 / (parts**2 / np.array([len(one) - 1, len(other) - 1])).sum()
    half = special.stdtrit(freedom, (1 + confidence) / 2) * np.sqrt(error)
    return ratio, float(np.exp(difference - half)), float(np.exp(difference + half))


def effect(
    low: float | None,
    high: float | None,
    aa_low: float | None,
    aa_high: float | None,
    blocks: int,
) -> str:
    """Return whether a ratio's interval shows an effect, given the A/A control's interval.

    ``effect`` only where [low, high] lies wholly outside both the A/A interval and 1: the A/A
    ratio is what this host and this tool show where nothing differs. ``too few blocks`` below
    ``BLOCKS_NEEDED``; ``no A/A control`` where there is none to compare with; otherwise
    ``no effect shown``, which is not a proof that there is none (``same_within`` of a claim asks
    for that).
    """
    if blocks < BLOCKS_NEEDED or low is None or high is None:
        return TOO_FEW
    if aa_low is None or aa_high is None:
        return NO_CONTROL
    return EFFECT if high < min(1.0, aa_low) or low > max(1.0, aa_high) else NO_EFFECT


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


def real_when_emulated(source: str, metric: str, unit: str = "", tool: str = "") -> bool:
    """Return whether a metric means something on an emulated host.

    The kernel's behaviour there is real (where pages went, faults, reclaim, migrations); times,
    speeds and hardware counters are not, whoever measured them.
    """
    if unit in _TIMES or unit.endswith("/s"):
        return False
    if source in _REAL_SOURCES or metric in (*_SOFTWARE_EVENTS, "exit_status"):
        return True
    return source == "tool" and tool in _PLACING_TOOLS


def paired_cells(rows: pl.DataFrame, cell: str, other: str) -> Ratio:
    """Return ``paired_ratio`` of two cells' rows (cell, block, value) of one metric and point."""
    one, base = (rows.filter(pl.col("cell") == name) for name in (cell, other))
    return paired_ratio(
        one["value"].to_list(), base["value"].to_list(),
        one["block"].to_list(), base["block"].to_list(),
    )  # fmt: skip


def why_missing(measurements: pl.DataFrame, metric: str) -> str:
    """Return why a metric has no value in these rows, in words; "" where no reason stands.

    A quotient of a counter that is missing ("instructions has no value") has that counter's reason.
    """
    rows = measurements.filter(pl.col("value").is_null())
    reasons = rows.filter(pl.col("metric") == metric)["reason"].drop_nulls().unique().sort()
    said = []
    for reason in reasons.head(2):
        counter = reason.removesuffix(" has no value")
        deeper = why_missing(measurements, counter) if counter not in (reason, metric) else ""
        said.append(f"no {counter}: {deeper}" if deeper else reason)
    return "; ".join(said)


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


def ratios(measurements: pl.DataFrame, metrics: Sequence[str] | None = None) -> pl.DataFrame:
    """Return one row per cell with a baseline, metric and point: the paired ratio and a decision.

    Columns: those of the cell as in ``summarise``; ``ratio``, ``low``, ``high`` (BCa, 95 %),
    ``n`` blocks used, ``n_unverified`` of them with an unverified value on either side,
    ``dropped`` ("block 2: graded error; …", null when none), ``aa_low`` and ``aa_high`` (the A/A
    control's interval for the same metric and point; where there are several controls, the hull),
    ``decision`` as ``effect`` returns it (``control`` for the control itself, null where there is
    no ratio) and ``reason``, which says why there is no ratio or no interval. Zero or negative
    values have no ratio; results of different tools are never put into one.
    """
    frame = measurements
    if metrics is not None:
        frame = frame.filter(pl.col("metric").is_in(list(metrics)))
    keys = [*_KEYS, "baseline"]
    frame = frame.with_columns(_value=pl.when(_USABLE.fill_null(False)).then(pl.col("value")))
    cells = frame.filter(pl.col("baseline").is_not_null())
    per_block = ["_value", "grade", "reason"]
    heads = cells.group_by(keys, maintain_order=True).agg(
        *(pl.col(name).first() for name in _CARRIED if name != "baseline")
    )
    base = frame.select(
        "run", "host", "experiment", "source", "metric", "point", "block",
        pl.col("cell").alias("baseline"), pl.col("tool").alias("base_tool"),
        *(pl.col(name).alias(f"base_{name}") for name in per_block),
    )  # fmt: skip
    shared = ["run", "host", "experiment", "source", "metric", "point", "baseline"]
    pairs = cells.select(*keys, "block", *per_block).join(
        heads.select(keys).join(base, on=shared, how="inner"),
        on=[*keys, "block"], how="full", coalesce=True, nulls_equal=True,
    )  # fmt: skip
    why = (
        pl.when(pl.col("grade").is_null())
        .then(pl.lit("no trial of the cell"))
        .when(pl.col("grade") == "error")
        .then(_because("graded error", "reason"))
        .when(pl.col("_value").is_null())
        .then(_because("the value is missing", "reason"))
        .when(pl.col("base_grade").is_null())
        .then(pl.lit("no trial of the baseline"))
        .when(pl.col("base_grade") == "error")
        .then(_because("baseline graded error", "base_reason"))
        .when(pl.col("base__value").is_null())
        .then(_because("the baseline's value is missing", "base_reason"))
    )
    used = pl.col("why").is_null()
    positive = (pl.col("_value") > 0) & (pl.col("base__value") > 0)
    collected = (
        pairs.with_columns(why=why)
        .group_by([*keys, "block"])
        .agg(
            pl.col("why").first(),
            _log=(pl.col("_value").log() - pl.col("base__value").log()).mean(),
            _positive=positive.all(),
            _tools=(pl.col("tool") != pl.col("base_tool")).any(),
            _base_tool=pl.col("base_tool").first(),
            _unverified=(
                (pl.col("grade") == "unverified") | (pl.col("base_grade") == "unverified")
            ).any(),
        )
        .sort("block")
        .group_by(keys)
        .agg(
            _logs=pl.col("_log").filter(used),
            _bad=(used & ~pl.col("_positive")).any(),
            _tools=pl.col("_tools").any(),
            _base_tool=pl.col("_base_tool").drop_nulls().first(),
            n_unverified=(used & pl.col("_unverified")).sum(),
            dropped=(pl.format("block {}: {}", "block", "why").filter(~used)).str.join("; "),
        )
        .with_columns(dropped=pl.when(pl.col("dropped") != "").then(pl.col("dropped")))
    )
    table = heads.join(collected, on=keys, how="left", nulls_equal=True).sort(keys)
    table = table.with_columns(
        reason=pl.when(pl.col("_tools"))
        .then(pl.format("different tools: {} and {}", "tool", "_base_tool"))
        .when(pl.col("_bad"))
        .then(pl.lit("no ratio: a value is 0 or less"))
        .when(pl.col("_logs").list.len() == 0)
        .then(pl.lit("no block holds both the cell and its baseline"))
        .when(pl.col("_logs").list.len() == 1)
        .then(pl.lit("one block has no interval"))
    )
    table = table.with_columns(
        n=pl.when(pl.col("_tools") | pl.col("_bad"))
        .then(0)
        .otherwise(pl.col("_logs").list.len())
        .cast(pl.Int64)
    )
    ratio, low, high = _ratio_columns(table["_logs"].to_list(), table["n"].to_list())
    table = table.with_columns(
        pl.Series("ratio", ratio, pl.Float64),
        pl.Series("low", low, pl.Float64),
        pl.Series("high", high, pl.Float64),
    )
    comparable = ["run", "host", "experiment", "tool", "source", "metric", "point"]
    control = (
        table.filter((pl.col("role") == "control") & (pl.col("n") >= BLOCKS_NEEDED))
        .group_by(comparable)
        .agg(aa_low=pl.col("low").min(), aa_high=pl.col("high").max())
    )
    table = table.join(control, on=comparable, how="left", maintain_order="left")
    decision = [
        None if row["ratio"] is None
        else CONTROL if row["role"] == "control"
        else effect(row["low"], row["high"], row["aa_low"], row["aa_high"], row["n"])
        for row in table.iter_rows(named=True)
    ]  # fmt: skip
    return table.with_columns(pl.Series("decision", decision, pl.String)).select(
        *_KEYS, *_CARRIED, "ratio", "low", "high", "n", "n_unverified", "dropped",
        "aa_low", "aa_high", "decision", "reason",
    )  # fmt: skip


def _because(what: str, column: str) -> pl.Expr:
    reason = pl.col(column)
    return (
        pl.when(reason.is_null()).then(pl.lit(what)).otherwise(pl.format(f"{what}: {{}}", reason))
    )


def _ratio_columns(
    logs: list[list[float]], counts: list[int]
) -> tuple[list[float | None], list[float | None], list[float | None]]:
    """Ratios and intervals of many rows; rows of one length share the work of the bootstrap."""
    ratio: list[float | None] = [None] * len(logs)
    low, high = ratio.copy(), ratio.copy()
    by_length: dict[int, list[int]] = {}
    for index, count in enumerate(counts):
        if count:
            by_length.setdefault(count, []).append(index)
    for count, rows in by_length.items():
        values = np.array([logs[index] for index in rows])
        bounds = np.exp(bootstrap_interval(values)) if count > 1 else None
        for place, index in enumerate(rows):
            ratio[index] = float(np.exp(values[place].mean()))
            if bounds is not None:
                low[index], high[index] = float(bounds[0][place]), float(bounds[1][place])
    return ratio, low, high


def aa_interval(measurements: pl.DataFrame, metric: str, point: str = "") -> Ratio:
    """Return the ratio of a run's A/A control to its baseline: the same cell under two names.

    Its interval is what chance and order alone do on this host. Without a control, or with a
    frame of several runs, the Ratio is empty and says so.
    """
    rows = measurements.filter(
        (pl.col("metric") == metric) & (pl.col("point") == point)
        & (pl.col("grade") != "error")
    )  # fmt: skip
    controls = rows.filter(pl.col("role") == "control")
    if rows["run"].n_unique() > 1:
        return Ratio(None, None, None, 0, reason="an A/A ratio belongs to one run")
    if controls.is_empty():
        return Ratio(None, None, None, 0, reason="the run holds no A/A control for this metric")
    first = controls["cell"].sort()[0]
    control = controls.filter(pl.col("cell") == first)
    base = rows.filter(pl.col("cell") == control["baseline"][0])
    return paired_ratio(
        control["value"].to_list(), base["value"].to_list(),
        control["block"].to_list(), base["block"].to_list(),
    )  # fmt: skip


# ---------------------------------------------------------------- drift and warnings


@dataclass(frozen=True)
class Drift:
    """A trend over the running order, in percent of the median over the whole run."""

    percent: float | None
    low: float | None
    high: float | None
    p_value: float | None
    n: int
    reason: str | None = None


def drift(values: Sequence[float], order: Sequence[float]) -> Drift:
    """Return how much the values change from the first to the last of the running order.

    The slope is the median of the slopes of all pairs with its 95 % interval (Theil, Proc. KNAW
    53, 1950; Sen, JASA 63(324), 1968); the p-value is Kendall's tau's. Values and order have the
    same length; values that are not finite are left out.
    """
    y, x = np.asarray(values, dtype=float), np.asarray(order, dtype=float)
    keep = np.isfinite(y) & np.isfinite(x)
    y, x = y[keep], x[keep]
    if len(y) < BLOCKS_NEEDED or np.ptp(x) == 0:
        return Drift(None, None, None, None, len(y), "too few trials to see a trend")
    middle = np.median(y)
    if middle == 0:
        return Drift(None, None, None, None, len(y), "the median is 0: no percentage")
    if np.ptp(y) == 0:
        return Drift(0.0, 0.0, 0.0, 1.0, len(y))
    slope, _, low, high = stats.theilslopes(y, x, CONFIDENCE)
    scale = 100 * np.ptp(x) / abs(middle)
    p_value = stats.kendalltau(x, y).pvalue
    return Drift(*(float(v * scale) for v in (slope, low, high)), float(p_value), len(y))


def drifts(measurements: pl.DataFrame, metrics: Sequence[str] | None = None) -> pl.DataFrame:
    """Return the drift of each metric and point over each run.

    Every value is first divided by its cell's median, so that all cells together show the trend.
    Columns: run, host, experiment, metric, point, ``percent``, ``low``, ``high``, ``p_value``,
    ``n``, ``drifting`` (p < 0.01 and at least 1 % over the run), ``reason``.
    """
    keys = ["run", "host", "experiment", "tool", "source", "metric", "point"]
    rows = []
    for key, group in _normalised(measurements, metrics).group_by(keys, maintain_order=True):
        found = drift(group["_relative"].to_list(), group["trial"].to_list())
        drifting = (
            None if found.p_value is None else found.p_value < 0.01 and abs(found.percent) >= 1
        )
        rows.append((*key, found.percent, found.low, found.high, found.p_value, found.n, drifting,
                     found.reason))  # fmt: skip
    floats = dict.fromkeys(["percent", "low", "high", "p_value"], pl.Float64)
    schema = {**dict.fromkeys(keys, pl.String), **floats, "n": pl.Int64, "drifting": pl.Boolean,
              "reason": pl.String}  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row").sort(keys)


def _normalised(measurements: pl.DataFrame, metrics: Sequence[str] | None) -> pl.DataFrame:
    """Usable rows with ``_relative``: the value over the median of its cell, metric and point."""
    frame = measurements.filter(_USABLE.fill_null(False))
    if metrics is not None:
        frame = frame.filter(pl.col("metric").is_in(list(metrics)))
    middle = pl.col("value").median().over(_KEYS)
    return frame.filter(middle != 0).with_columns(_relative=pl.col("value") / middle)


NOISY = 0.10
"""Standard deviation over mean above which a result is called unstable (as in pyperf)."""


def warnings(measurements: pl.DataFrame, metrics: Sequence[str] | None = None) -> pl.DataFrame:
    """Return what a careful reader should be told about a run, in plain language.

    Columns: run, host, experiment, cell (null for the run as a whole), metric, point, ``kind``,
    ``text``. Kinds, in the manner of pyperf's stability warnings:
    ``noisy``: coefficient of variation above ``NOISY``;
    ``outlier``: a modified z-score above 3.5 (0.6745 (x - median) / MAD; Iglewicz and Hoaglin,
    "How to detect and handle outliers", 1993), and 2 % or more from the median;
    ``two modes``: the best split into two groups of three or more has a gap that one normal
    distribution hardly ever shows (Ashman's D above 6; Ashman, Bird and Zepf, AJ 108, 1994), and
    centres 2 % or more apart: something switched between trials;
    ``first block``: the first block differs from all others alike: the host was not warm;
    ``drift``: see ``drifts``;
    ``few blocks``: fewer than ``BLOCKS_NEEDED`` usable values.
    """
    rows: list[tuple] = []
    relative = _normalised(measurements, metrics)
    for key, group in relative.group_by(_KEYS, maintain_order=True):
        run, host, experiment, cell, _, _, metric, point = key
        for kind, text in _cell_warnings(group):
            rows.append((run, host, experiment, cell, metric, point, kind, text))
    keys = [name for name in _KEYS if name != "cell"]
    for key, group in relative.group_by(keys, maintain_order=True):
        run, host, experiment, _, _, metric, point = key
        text = _first_block(group)
        if text:
            rows.append((run, host, experiment, None, metric, point, "first block", text))
    for row in drifts(measurements, metrics).filter("drifting").iter_rows(named=True):
        text = (
            f"{row['metric']} changed by {row['percent']:+.1f} % over the run"
            f" (p = {row['p_value']:.2g}): the host was not in a steady state"
        )
        rows.append((*(row[name] for name in ("run", "host", "experiment")), None, row["metric"],
                     row["point"], "drift", text))  # fmt: skip
    names = ["run", "host", "experiment", "cell", "metric", "point", "kind", "text"]
    table = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row")
    return table.sort(["run", "metric", "point", "kind", "cell"])


def _cell_warnings(group: pl.DataFrame) -> list[tuple[str, str]]:
    values = group["_relative"].to_numpy()
    found = []
    if len(values) < BLOCKS_NEEDED:
        found.append((
            "few blocks",
            f"{len(values)} usable values: fewer than {BLOCKS_NEEDED} decide nothing",
        ))  # fmt: skip
    if len(values) < 3:
        return found
    variation = np.std(values, ddof=1) / abs(np.mean(values))
    if variation > NOISY:
        found.append((
            "noisy",
            f"the standard deviation is {variation:.0%} of the mean: more blocks or a quieter"
            " host are needed",
        ))  # fmt: skip
    modes = _two_modes(values)
    if modes:
        found.append(("two modes", modes))
        return found  # the smaller mode is no row of outliers
    far = np.abs(values - 1)  # the median is 1
    spread = np.median(far)
    if len(values) >= 5:
        odd = (far > 0.02) & (0.6745 * far > 3.5 * max(spread, 1e-9))
        blocks = sorted(group["block"].to_numpy()[odd].tolist())
        if blocks:
            worst = values[np.argmax(np.where(odd, far, 0))]
            where = "block" if len(blocks) == 1 else "blocks"
            found.append((
                "outlier",
                f"{where} {', '.join(map(str, blocks))} far from the others"
                f" (up to {100 * (worst - 1):+.0f} % of the median)",
            ))  # fmt: skip
    return found


def _two_modes(values: np.ndarray) -> str | None:
    """A sentence when the values fall into two groups; the least share of a group is three."""
    ordered = np.sort(values)
    n = len(ordered)
    if n < 8:
        return None
    splits = range(3, n - 2)
    within = [np.var(ordered[:k]) * k + np.var(ordered[k:]) * (n - k) for k in splits]
    k = splits[int(np.argmin(within))]
    low, high = ordered[:k], ordered[k:]
    apart = high.mean() - low.mean()
    noise = np.sqrt(np.var(low, ddof=1) + np.var(high, ddof=1))
    if apart < 0.02 or np.sqrt(2) * apart <= 6 * noise:
        return None
    return (
        f"two groups of values, {len(low)} low and {len(high)} high, {100 * apart:.0f} % apart:"
        " something switched between trials"
    )


def _first_block(group: pl.DataFrame) -> str | None:
    """A sentence when the first block's mean over the cells stands apart from all others."""
    means = group.group_by("block").agg(pl.col("_relative").mean()).sort("block")
    values = means["_relative"].to_numpy()
    if len(values) < BLOCKS_NEEDED:
        return None
    first, rest = values[0], values[1:]
    middle = np.median(rest)
    spread = np.median(np.abs(rest - middle))
    away = first - middle
    if abs(away) < 0.01 or 0.6745 * abs(away) <= 5 * max(spread, 1e-9):
        return None
    if rest.min() <= first <= rest.max():
        return None
    return f"the first block is {100 * away / middle:+.1f} % from the others: the host was not warm"
