"""Curves: a metric against a number, latency under load, values over time and over the run.

Each takes measurement rows (``measurements.parquet``) and summarises them itself. Intervals are
drawn from 6 blocks on; with fewer there are points only, and a note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from numalab import tables
from numalab.agent.contract import CONTROL, ERROR, GRADES, UNVERIFIED
from numalab.agent.errors import Fault
from numalab.analysis import evidence

from . import style
from .frames import to_pandas

MOST_NAMED = 8  # series with an entry of the key each; more are named by their family
_LINES = ("-", "--", ":", "-.")
_DASHED: dict[str, Any] = {"color": style.GREY, "linestyle": (0, (5, 3)), "linewidth": 0.9}
_EDGE: dict[str, Any] = {"elinewidth": 0.9, "capsize": 1.5, "markeredgecolor": "white",
                         "markeredgewidth": 0.4}  # fmt: skip

Look = dict[str, Any]


def looks_of(series: Mapping[str, str]) -> dict[str, Look]:
    """Return a colour and a marker for each series; ``series`` maps their names to families.

    A family's first series takes the colour of the family, further ones those that no family
    needs, and where these are used up another line.
    """
    first: dict[str, str] = {}
    for name, kind in series.items():
        first.setdefault(kind, name)
    taken = {style.PALETTE[kind] for kind in first}
    spare = [one for one in zip(style.CYCLE, style.CYCLE_MARKERS, strict=True)
             if one[0] not in taken]  # fmt: skip
    looks: dict[str, Look] = {}
    further = 0
    for name, kind in series.items():
        place = -1 if first[kind] == name else further
        further += place >= 0
        if place < 0 or len(series) > MOST_NAMED or not spare:
            colour, marker = style.PALETTE[kind], style.MARKERS[kind]
        else:
            colour, marker = spare[place % len(spare)]
        line = _LINES[(place // max(1, len(spare))) % len(_LINES)] if place >= 0 else "-"
        looks[name] = {"color": colour, "marker": marker, "linestyle": line}
    return looks


def key(series: Mapping[str, str], looks: Mapping[str, Look]) -> list[Line2D]:
    """Return the key of some series: an entry each, or one per family where they are many."""
    if len(series) <= MOST_NAMED:
        return [Line2D([], [], label=name, **looks[name]) for name in series]
    kinds = list(series.values())
    firsts = {kind: next(name for name in series if series[name] == kind) for kind in kinds}
    return [
        Line2D([], [], label=f"{kind}: {kinds.count(kind)} series", **looks[name])
        for kind, name in firsts.items()
    ]


def _families(rows: pl.DataFrame, series: str) -> dict[str, str]:
    """The series of some rows with the family of the first cell of each."""
    found: dict[str, str] = {}
    for name, binding, role in rows.select(series, "binding", "role").iter_rows():
        found.setdefault(name, style.family(binding, role))
    return found


def against(
    measurements: pl.DataFrame,
    *,
    xlabel: str,
    log: bool = False,
    ideal: bool = False,
    marks: Sequence[tuple[float, str]] = (),
) -> style.Picture:
    """Draw one metric against a number, one curve per series, every trial as a faint point.

    The rows carry two columns of their own: ``series``, the curve's name, and ``at``, where on
    the x axis. The key has the series in the order of their greatest means. ``log`` makes the x
    axis logarithmic (base 2); ``ideal`` adds the line of the best curve's least number, times the
    number; ``marks`` are dashed upright lines with a word each. Raises Fault without a value.
    """
    metric = style.one_quantity(measurements)
    rows = measurements.filter(
        pl.col("value").is_not_null() & (pl.col("grade") != ERROR) & (pl.col("role") != CONTROL)
    )
    if rows.is_empty():
        raise Fault(f"no usable value of {metric}", "see the grades in the run's journal")
    unit, blocks = rows["unit"][0], rows["block"].n_unique()
    at = rows.select("cell", "series", "at").unique(maintain_order=True)
    summary = evidence.summarise(rows).join(at, on="cell").filter(pl.col("mean").is_not_null())
    best = summary.group_by("series").agg(pl.col("mean").max()).sort("mean", descending=True)
    families = _families(rows, "series")
    families = {name: families[name] for name in best["series"]}
    looks = looks_of(families)
    span = max(rows["at"]) - min(rows["at"])
    places = sorted(summary["at"].unique())

    def paint(figure: FigureBase) -> None:
        axes = figure.subplots()
        entries = key(families, looks)
        for number, (name, look) in enumerate(looks.items()):
            # a little aside of each other, so that intervals do not hide one another
            aside = (number - (len(looks) - 1) / 2) * (0 if len(looks) > MOST_NAMED else 0.007)
            moved = pl.col("at") * 2 ** (aside * 4) if log else pl.col("at") + aside * span
            mine = rows.filter(pl.col("series") == name).with_columns(moved)
            axes.scatter(mine["at"], mine["value"], s=7, color=look["color"], alpha=0.35,
                         linewidths=0, zorder=2, gid="trials")  # fmt: skip
            curve = summary.filter(pl.col("series") == name).sort("at").with_columns(moved)
            axes.errorbar(curve["at"], curve["mean"], yerr=_arms(curve, blocks), zorder=3, **_EDGE,
                          **look)  # fmt: skip
        if ideal:
            least = summary.filter(pl.col("at") == pl.col("at").min().over("series"))
            slope = max(least["mean"] / least["at"])
            axes.plot([0, places[-1]], [0, slope * places[-1]], gid="ideal", **_DASHED)
            entries.append(Line2D([], [], label="ideal: as from the least number", **_DASHED))
        _upright(axes, marks)
        _numbers(axes, places, log=log)
        _from_zero(axes, xlabel, f"{tables.plain(metric)} ({unit})")
        style.title(figure, f"{style.words(metric)} against the {xlabel}")
        style.beside(axes, entries)
        style.foot(figure, note=style.few(blocks))

    return style.Picture(3.5, paint)


def _upright(axes: Axes, marks: Sequence[tuple[float, str]]) -> None:
    for place, word in marks:
        axes.axvline(place, zorder=1, **_DASHED)
        axes.annotate(word, (place, 1), xycoords=("data", "axes fraction"), xytext=(2, -2),
                      textcoords="offset points", fontsize=style.TINY, color=style.FAINT,
                      va="top")  # fmt: skip


def _numbers(axes: Axes, places: Sequence[float], *, log: bool) -> None:
    """Make the measured numbers the ticks of the x axis, as far as they do not touch."""
    if log and places[0] > 0:
        axes.set_xscale("log", base=2)
    else:
        axes.set_xlim(0, places[-1] * 1.05)
    ticks = places if log else _apart(places)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.minorticks_off()


def loaded_latency(measurements: pl.DataFrame) -> style.Picture:
    """Draw latency (ns) against the bandwidth (GB/s) moved meanwhile, one curve per cell.

    Uses the rows ``loaded_latency`` and ``loaded_bandwidth``, joined by cell and point; traffic of
    several mixes ("2:1 delay=100") has a curve for each. A curve runs from the longest injection
    delay (``x``) to none, as in Intel MLC's loaded latency. Both
    axes start at 0. Raises Fault where no point has both.
    """
    rows = measurements.filter(
        pl.col("metric").is_in(["loaded_latency", "loaded_bandwidth"]) & (pl.col("role") != CONTROL)
    )
    both = _paired(rows, "loaded_latency", "loaded_bandwidth")
    if both.is_empty():
        raise Fault(
            "no point has both a loaded latency and its bandwidth",
            "measure latency under load first (experiment latency)",
        )
    mix = pl.col("point").str.extract(r"^(\S+) delay=")
    both = both.with_columns(series=pl.coalesce("label", "cell"), mix=mix)
    if both["mix"].n_unique() > 1:
        both = both.with_columns(
            series=pl.concat_str("series", "mix", separator=", ", ignore_nulls=True)
        )
    both = both.sort("x", descending=True, nulls_last=True)
    families = _families(both.sort("series"), "series")

    def paint(figure: FigureBase) -> None:
        axes = _draw_pairs(figure, both, families, rows["block"].n_unique())
        axes.set_xlim(0, None)
        _from_zero(axes, "bandwidth moved meanwhile (GB/s)", "latency under load (ns)")
        style.title(figure, "Latency under load")

    return style.Picture(3.5, paint)


def throughput_latency(measurements: pl.DataFrame) -> style.Picture:
    """Draw mean latency (ms) against requests a second: a curve per cell, its points its loads.

    An open point is of a constant rate (``requests_per_second``, ``latency_avg``), the full one of
    saturation (both with ``saturation_`` before). The rows carry a column ``series``, the curve's
    name: cells at several rates share one. The axis of latency is logarithmic. Raises Fault where
    no cell has both metrics of either load.
    """
    rows = measurements.filter((pl.col("role") != CONTROL) & (pl.col("point") == ""))
    loads = [
        _paired(rows, f"{load}latency_avg", f"{load}requests_per_second").with_columns(
            solid=pl.lit(load != "")
        )
        for load in ("", _SATURATED)
    ]
    both = pl.concat(loads).join(rows.select("cell", "series").unique(), on="cell")
    if both.is_empty():
        raise Fault("no cell has both requests per second and their latency",
                    "see the grades in the run's journal")  # fmt: skip
    both = both.sort("mean_moved")
    families = _families(rows, "series")  # in the plan's order: a curve's look is always the same

    def paint(figure: FigureBase) -> None:
        axes = _draw_pairs(figure, both, families, rows["block"].n_unique(), _LOADS)
        axes.set_xlim(0, None)
        axes.xaxis.set_major_formatter(style.thousands())
        axes.set_xlabel("requests per second")
        _log_latency(axes, "mean latency (ms)")
        style.title(figure, "Latency against requests per second")

    return style.Picture(3.5, paint)


_SATURATED = "saturation_"  # before the names of what was measured under such a load
_LOADS = "open: at the constant rate; full: saturated"


def _paired(rows: pl.DataFrame, metric: str, by: str) -> pl.DataFrame:
    """The means of a metric with those of another of the same cell and point, ``…_moved``."""
    means = evidence.summarise(rows).filter(pl.col("mean").is_not_null())
    return means.filter(pl.col("metric") == metric).join(
        means.filter(pl.col("metric") == by), on=["run", "cell", "tool", "point"], suffix="_moved"
    )


def _draw_pairs(
    figure: FigureBase, both: pl.DataFrame, families: Mapping[str, str], blocks: int, note: str = ""
) -> Axes:
    """Draw pairs of ``_paired`` as a curve for each ``series``; those not ``solid`` are open."""
    axes: Axes = figure.subplots()
    looks = looks_of(families)
    for name, look in looks.items():
        curve = both.filter(pl.col("series") == name)
        axes.errorbar(
            curve["mean_moved"], curve["mean"], xerr=_arms(curve, blocks, "_moved"),
            yerr=_arms(curve, blocks), **_EDGE, **look,
        )  # fmt: skip
        if "solid" in curve.columns:
            hollow = curve.filter(~pl.col("solid"))
            axes.plot(hollow["mean_moved"], hollow["mean"], zorder=4, markerfacecolor="white",
                      **{**look, "linestyle": "none"})  # fmt: skip
    style.beside(axes, key(families, looks))
    style.foot(figure, note=" · ".join(filter(None, (note, style.few(blocks)))))
    return axes


PERCENTILES = {"latency_p50": 0.5, "latency_p90": 0.9, "latency_p99": 0.99, "latency_p999": 0.999}


def tail(measurements: pl.DataFrame) -> style.Picture:
    """Draw the latency (ms) that so many requests stay below, from half of them to 99.9 %.

    The x axis is logarithmic in what is left, 1 - p, so that the rare slow requests have room. The
    rows are those of ``PERCENTILES`` at the constant rate, or all with ``saturation_`` before;
    their column ``series`` names the curve of each cell. Raises Fault without a value.
    """
    saturated = measurements["metric"].str.starts_with(_SATURATED).any()
    measurements = measurements.with_columns(pl.col("metric").str.strip_prefix(_SATURATED))
    rows = measurements.filter((pl.col("role") != CONTROL) & (pl.col("point") == ""))
    means = evidence.summarise(rows, list(PERCENTILES)).filter(pl.col("mean").is_not_null())
    if means.is_empty():
        raise Fault("no usable percentile of latency", "see the grades in the run's journal")
    means = means.join(rows.select("cell", "series").unique(), on="cell").with_columns(
        left=1 - pl.col("metric").replace_strict(PERCENTILES, return_dtype=pl.Float64)
    )
    means = means.sort("left", descending=True)
    blocks = rows["block"].n_unique()
    families = _families(rows, "series")
    looks = looks_of(families)

    def paint(figure: FigureBase) -> None:
        axes = figure.subplots()
        for number, (name, look) in enumerate(looks.items()):
            aside = 1 + 0.03 * (number - (len(looks) - 1) / 2)  # so that intervals stand apart
            curve = means.filter(pl.col("series") == name).with_columns(pl.col("left") * aside)
            axes.errorbar(curve["left"], curve["mean"], yerr=_arms(curve, blocks), **_EDGE, **look)
        axes.set_xscale("log")
        axes.set_xlim(0.8, 0.0006)
        axes.set_xticks([1 - share for share in PERCENTILES.values()],
                        [f"{100 * share:g} %" for share in PERCENTILES.values()])  # fmt: skip
        axes.xaxis.minorticks_off()
        axes.set_xlabel("share of the requests that are faster")
        _log_latency(axes, "latency (ms)")
        style.title(figure, "Latency, from the usual request to the slowest")
        style.beside(axes, key(families, looks))
        load = "saturated" if saturated else "at the constant rate"
        style.foot(figure, note=f"{load} · {style.few(blocks)}")

    return style.Picture(3.5, paint)


def _log_latency(axes: Axes, label: str) -> None:
    """Make the y axis a logarithmic one with numbers that a reader can read."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(style.thousands())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(f"{label}, logarithmic")
    axes.grid()


def _from_zero(axes: Axes, xlabel: str, ylabel: str) -> None:
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter(style.thousands())
    axes.grid()


def _arms(curve: pl.DataFrame, blocks: int, suffix: str = "") -> Any:
    """Lengths of the error bars below and above, or None where too few blocks give any."""
    low, high = curve[f"low{suffix}"], curve[f"high{suffix}"]
    if blocks < evidence.BLOCKS_NEEDED or low.null_count():
        return None
    mean = curve[f"mean{suffix}"]
    return [(mean - low).to_list(), (high - mean).to_list()]


def _apart(places: Sequence[float]) -> list[float]:
    """The places that can be ticks without their numbers touching."""
    kept: list[float] = []
    for place in reversed(places):
        if not kept or kept[-1] - place >= places[-1] * 0.045:
            kept.append(place)
    return kept[::-1]


def seconds(
    samples: pl.DataFrame, metric: str, labels: Mapping[str, str], families: Mapping[str, str]
) -> style.Picture:
    """Draw a per-second metric as one small panel per cell, all on the same axes.

    ``samples`` are rows of ``samples.parquet``, ``labels`` the cells to draw in their order with
    their titles, ``families`` those of the cells. Every trial is a thin line, the median of the
    trials a strong one, the points of a cell (instances) in colours of their own; steps, dips and
    trends that a mean hides show here. Raises Fault where no row has the metric.
    """
    rows = samples.filter((pl.col("metric") == metric) & pl.col("value").is_not_null())
    cells = [cell for cell in labels if cell in set(rows["cell"])]
    if not cells:
        raise Fault(f"no sample of {metric}", "the run's tool or collectors did not record it")
    style.one_quantity(rows, ("unit",))
    rows = rows.with_columns(second=pl.col("t_s").round()).sort("t_s")
    columns = min(len(cells), 4)
    lines = -(-len(cells) // columns)

    def paint(figure: FigureBase) -> None:
        panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
        for place, (cell, axes) in enumerate(zip(cells, panels.flat)):
            _second_by_second(axes, rows.filter(pl.col("cell") == cell), families[cell])
            room = style.WIDTH / columns - 0.3
            axes.set_title(style.fitted(labels[cell], style.SMALL, room), fontsize=style.SMALL)
            last = place + columns >= len(cells)
            axes.xaxis.set_tick_params(labelbottom=last)
            axes.set_xlabel("time in the trial (s)" if last else "", fontsize=style.SMALL)
            axes.set_ylabel("" if place % columns else rows["unit"][0], fontsize=style.SMALL)
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.yaxis.set_major_formatter(style.thousands())
            axes.grid(axis="y")
        for axes in panels.flat[len(cells) :]:
            axes.set_axis_off()
        panels[0, 0].set_ylim(0, None)
        style.title(figure, f"{style.words(metric)} over time")
        style.foot(
            figure, note="thin: every trial; strong: the median of the trials at that second"
        )

    return style.Picture(0.75 + 1.25 * lines, paint)


def _second_by_second(axes: Axes, rows: pl.DataFrame, family: str) -> None:
    points = rows["point"].unique().sort().to_list()
    colours = list(style.CYCLE) if len(points) > 1 else [style.PALETTE[family]]
    palette = {point: colours[place % len(colours)] for place, point in enumerate(points)}
    look: dict[str, Any] = {"hue": "point", "palette": palette, "legend": False, "ax": axes}
    seaborn.lineplot(to_pandas(rows), x="t_s", y="value", units="trial", estimator=None, alpha=0.35,
                     linewidth=0.6, **look)  # fmt: skip
    middle = (
        rows.group_by("point", "second", maintain_order=True)
        .agg(pl.col("value").median(), pl.len())
        .filter(pl.col("len") * 2 >= pl.col("len").max())  # a second that half of the trials have
    )
    drawn = len(axes.lines)
    seaborn.lineplot(to_pandas(middle), x="second", y="value", linewidth=1.4, **look)
    for line in axes.lines[drawn:]:
        line.set_gid("median")


def run_order(measurements: pl.DataFrame) -> style.Picture:
    """Draw one metric in the order of the trials, relative to its cell's median: drift slopes.

    A cell's several points each have their own median. Blocks are marked, and the median of each
    block is drawn as a step; unverified trials are open, errors red crosses. Raises Fault where
    nothing has a value.
    """
    metric = style.one_quantity(measurements, ("metric",))
    usable = pl.col("grade") != ERROR
    centre = pl.col("value").filter(usable).median().over(["run", "cell", "point", "tool"])
    rows = measurements.filter(pl.col("value").is_not_null())
    rows = rows.with_columns(relative=pl.col("value") / centre).filter(
        pl.col("relative").is_finite()
    )
    if rows.is_empty():
        raise Fault(f"no usable value of {metric}", "see the grades in the run's journal")
    blocks = (
        rows.group_by("block")
        .agg(pl.col("trial").min().alias("first"), pl.col("trial").max().alias("last"),
             pl.col("relative").filter(usable).median().alias("middle"))
        .sort("block")
    )  # fmt: skip

    def paint(figure: FigureBase) -> None:
        axes = figure.subplots()
        families = set()
        for (binding, role, grade), group in rows.group_by(
            ["binding", "role", "grade"], maintain_order=True
        ):
            kind = style.family(str(binding), str(role))
            families.add(kind)
            look = style.grade_look(str(grade), style.PALETTE[kind], style.MARKERS[kind])
            axes.scatter(group["trial"], group["relative"], s=16 if len(rows) <= 150 else 6,
                         zorder=3, gid=f"trials-{grade}", **look)  # fmt: skip
        _steps(axes, blocks)
        reach = max(0.02, *((rows["relative"] - 1).abs() * 1.1))
        axes.set_ylim(1 - reach, 1 + reach)
        axes.set(xlabel="block, trials in running order",
                 ylabel="value / its cell's\nmedian (ratio)")  # fmt: skip
        axes.grid(axis="y")
        style.title(figure, f"{style.words(metric)} in the order of the trials")
        style.beside(axes, _order_key(families, set(rows["grade"])))

    return style.Picture(2.7, paint)


def _steps(axes: Axes, blocks: pl.DataFrame) -> None:
    """The blocks as bands in turn, with the median of each, and their numbers."""
    for place, (_, first, last, middle) in enumerate(blocks.iter_rows()):
        if place % 2 == 0:
            axes.axvspan(first - 0.5, last + 0.5, color="#F1F1F1", zorder=0, lw=0)
        if middle is not None:
            axes.plot([first - 0.5, last + 0.5], [middle] * 2, zorder=2, color=style.INK,
                      linewidth=1.0)  # fmt: skip
    shown = blocks.gather_every(max(1, -(-len(blocks) // 15)))
    middles = ((shown["first"] + shown["last"]) / 2).to_list()
    axes.set_xticks(middles, [str(block) for block in shown["block"]])
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(blocks["first"][0] - 0.6, blocks["last"][-1] + 0.6)


def _order_key(families: set[str], grades: set[str]) -> list[Line2D]:
    entries = [style.point(kind, kind) for kind in style.PALETTE if kind in families]
    entries.append(Line2D([], [], color=style.INK, linewidth=1.0, label="median of the block"))
    looks = {ERROR: ("error: left out", style.ERROR_LOOK),
             UNVERIFIED: ("unverified", style.UNVERIFIED_LOOK)}  # fmt: skip
    entries += [style.point(looks[grade][0], **looks[grade][1])
                for grade in GRADES if grade in grades and grade in looks]  # fmt: skip
    return entries
