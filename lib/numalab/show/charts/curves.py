"""Curves: latency under load, scaling with threads, values over time and over the run's order.

Each takes measurement rows (``measurements.parquet``) and summarises them itself. Intervals are
drawn from 6 blocks on; with fewer there are points only, and a note.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import polars as pl
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from numalab.agent.errors import Fault
from numalab.analysis import evidence

from .. import tables
from . import style

MOST_NAMED = 8  # series with a legend entry each; more are named by their family
_LINES = ("-", "--", ":", "-.")


@style.styled
def loaded_latency(measurements: pl.DataFrame) -> style.Picture:
    """Draw latency (ns) against the bandwidth (GB/s) moved meanwhile, one curve per cell.

    Uses the rows ``loaded_latency`` and ``loaded_bandwidth``, joined by cell and point; a curve
    runs from the longest injection delay (``x``) to none, as in Intel MLC's loaded latency. Both
    axes start at 0. Raises Fault where no point has both.
    """
    rows = measurements.filter(
        pl.col("metric").is_in(["loaded_latency", "loaded_bandwidth"])
        & (pl.col("role") != "control")
    )
    summary = evidence.summarise(rows).filter(pl.col("mean").is_not_null())
    both = summary.filter(pl.col("metric") == "loaded_latency").join(
        summary.filter(pl.col("metric") == "loaded_bandwidth"),
        on=["run", "cell", "tool", "point"],
        suffix="_moved",
    )
    if both.is_empty():
        raise Fault(
            "no point has both a loaded latency and its bandwidth",
            "measure latency under load first (experiment latency)",
        )
    blocks = rows["block"].n_unique()
    curves = [
        (key, group.sort("x", descending=True, nulls_last=True))
        for key, group in both.group_by(["run", "cell"], maintain_order=True)
    ]
    curves.sort(key=lambda curve: curve[0])
    figure = style.picture(3.5)
    axes = figure.subplots()
    looks = _looks([cell for (_, cell), _ in curves])
    for (_, cell), group in curves:
        axes.errorbar(
            group["mean_moved"], group["mean"],
            xerr=_reach(group, "_moved", blocks), yerr=_reach(group, "", blocks),
            elinewidth=0.8, capsize=1.5, markeredgecolor="white", markeredgewidth=0.4,
            **looks[cell],
        )  # fmt: skip
    axes.set(xlabel="bandwidth moved meanwhile (GB/s)", ylabel="latency under load (ns)")
    axes.set_xlim(0, None)
    axes.set_ylim(0, None)
    axes.grid()
    style.title(figure, "Latency under load")
    names = {cell: group["label"][0] or cell for (_, cell), group in curves}
    _legend(axes, looks, names)
    style.note(figure, _few(blocks))
    return figure


@style.styled
def scaling(measurements: pl.DataFrame) -> style.Picture:
    """Draw one metric against the number of threads, one curve per binding that was swept.

    The dashed line is ideal: the least thread count's value per thread, times the threads (of
    the best curve). Both axes start at 0. Raises Fault where no binding has two thread counts.
    """
    rows = measurements.filter(pl.col("role") != "control")
    metric = style.one_quantity(rows)
    summary = evidence.summarise(rows).filter(
        pl.col("mean").is_not_null() & pl.col("threads").is_not_null()
    )
    series: Dict[str, pl.DataFrame] = {}
    for (cell,), group in summary.with_columns(
        series=pl.col("cell").str.split("/").list.first()
    ).group_by("series", maintain_order=True):
        if group["threads"].n_unique() > 1:
            series[str(cell)] = group.sort("threads")
    if not series:
        raise Fault(
            f"no binding measured {metric} with two thread counts or more",
            "sweep threads in the experiment file",
        )
    unit = summary["unit"][0]
    blocks = rows["block"].n_unique()
    figure = style.picture(3.5)
    axes = figure.subplots()
    most = max(group["threads"].max() for group in series.values())
    per_thread = max(group["mean"][0] / group["threads"][0] for group in series.values())
    axes.plot([0, most], [0, per_thread * most], color=style.GREY, linestyle=(0, (5, 3)),
              linewidth=0.9, gid="ideal")  # fmt: skip
    looks: Dict[str, Dict[str, Any]] = {}
    if len({style.family(cell) for cell in series}) == 1 and len(series) <= MOST_NAMED:
        # One family only: the colours are free to tell the nodes apart.
        for place, cell in enumerate(series):
            looks[cell] = {"color": style.CYCLE[place], "marker": style.CYCLE_MARKERS[place]}
    else:
        looks = _looks(list(series))
    for cell, group in series.items():
        axes.errorbar(
            group["threads"], group["mean"], yerr=_reach(group, "", blocks), elinewidth=0.8,
            capsize=1.5, markeredgecolor="white", markeredgewidth=0.4, **looks[cell],
        )  # fmt: skip
    top = max(
        value for group in series.values() for value in (group["mean"].max(), group["high"].max())
        if value is not None
    )  # fmt: skip
    axes.set(xlabel="threads", ylabel=f"{tables.plain(metric)} ({unit})")
    axes.set_xlim(0, most * 1.04)
    axes.set_ylim(0, top * 1.25)
    counts = sorted({count for group in series.values() for count in group["threads"].to_list()})
    axes.set_xticks(_apart(counts, most))
    axes.grid()
    style.title(figure, f"{style.words(metric)} against the number of threads")
    names = {cell: _first_label(cell, group) for cell, group in series.items()}
    ideal = Line2D([], [], color=style.GREY, linestyle=(0, (5, 3)), linewidth=0.9,
                   label="ideal: as from the least count")  # fmt: skip
    _legend(axes, looks, names, [ideal])
    style.note(figure, _few(blocks))
    return figure


@style.styled
def against(
    measurements: pl.DataFrame,
    *,
    xlabel: str,
    ideal: bool = False,
    log: bool = False,
    marks: Sequence[Tuple[float, str]] = (),
) -> style.Picture:
    """Draw one metric against a number, one curve per series, every trial as a faint point.

    The rows carry two columns of their own: ``series``, the curve's name, and ``at``, where on
    the x axis. A curve takes the colour of its cells' family, further curves of that family take
    colours that no family needs; the legend has them in the order of their greatest means.
    ``log`` makes the x axis logarithmic (base 2); ``marks`` are dashed upright lines with a word
    each. Raises Fault without a usable value.
    """
    metric = style.one_quantity(measurements)
    rows = measurements.filter(
        pl.col("value").is_not_null() & (pl.col("grade") != "error") & (pl.col("role") != "control")
    )
    if rows.is_empty():
        raise Fault(f"no usable value of {metric}", "see the grades in the run's journal")
    unit, blocks = rows["unit"][0], rows["block"].n_unique()
    names = rows["series"].unique(maintain_order=True).to_list()
    at = rows.select("cell", "series", "at").unique(maintain_order=True)
    summary = evidence.summarise(rows).join(at, on="cell").filter(pl.col("mean").is_not_null())
    looks = _series_looks(rows, names)
    most = dict(summary.group_by("series").agg(pl.col("mean").max()).iter_rows())
    names = sorted(most, key=lambda name: -most[name])
    figure = style.picture(3.4)
    axes = figure.subplots()
    span = max(rows["at"]) - min(rows["at"])
    for place, name in enumerate(names):
        # a little aside of each other, so that intervals do not hide one another
        aside = (place - (len(names) - 1) / 2) * 0.007
        moved = pl.col("at") * 2 ** (aside * 4) if log else pl.col("at") + aside * span
        mine = rows.filter(pl.col("series") == name).with_columns(moved)
        axes.scatter(mine["at"], mine["value"], s=7, color=looks[name]["color"], alpha=0.35,
                     linewidths=0, zorder=2, gid="trials")  # fmt: skip
        curve = summary.filter(pl.col("series") == name).sort("at").with_columns(moved)
        axes.errorbar(
            curve["at"], curve["mean"], yerr=_reach(curve, "", blocks), elinewidth=0.9, capsize=1.5,
            markeredgecolor="white", markeredgewidth=0.4, zorder=3, **looks[name],
        )  # fmt: skip
    places = sorted(summary["at"].unique().to_list())
    for place, word in marks:
        axes.axvline(place, color=style.GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        axes.annotate(word, (place, 1), xycoords=("data", "axes fraction"), xytext=(2, -2),
                      textcoords="offset points", fontsize=style.TINY, color=style.FAINT,
                      va="top")  # fmt: skip
    axes.set(xlabel=xlabel, ylabel=f"{tables.plain(metric)} ({unit})")
    if log and places[0] > 0:
        axes.set_xscale("log", base=2)
        kept = places
    else:
        axes.set_xlim(0, places[-1] * 1.05)
        kept = [float(n) for n in _apart([round(place) for place in places], round(places[-1]))]
    axes.set_xticks(kept, [f"{place:g}" for place in kept])
    axes.xaxis.minorticks_off()
    axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter(style.thousands())
    axes.grid()
    style.title(figure, f"{style.words(metric)} against the {xlabel}")
    _beside(axes, [Line2D([], [], label=name, **looks[name]) for name in names])
    style.note(figure, _few(blocks))
    return figure


def _series_looks(rows: pl.DataFrame, names: Sequence[str]) -> Dict[str, Dict[str, Any]]:
    """The family's colour and marker for its first curve, what no family took for the others."""
    taken: Dict[str, str] = {}  # colour: name
    chosen: Dict[str, Tuple[str, str]] = {}
    for name in names:
        kind = style.family(rows.filter(pl.col("series") == name)["cell"][0])
        if style.PALETTE[kind] not in taken:
            chosen[name] = (style.PALETTE[kind], style.MARKERS[kind])
            taken[style.PALETTE[kind]] = name
    spare = [pair for pair in zip(style.CYCLE, style.CYCLE_MARKERS) if pair[0] not in taken]
    looks = {}
    for place, name in enumerate(n for n in names if n not in chosen):
        chosen[name] = spare[place % len(spare)] if spare else (style.GREY, "x")
    for name in names:
        colour, marker = chosen[name]
        looks[name] = {"color": colour, "marker": marker}
    return looks


@style.styled
def seconds(samples: pl.DataFrame, metric: str, labels: Mapping[str, str]) -> style.Picture:
    """Draw a per-second metric as one small panel per cell, all on the same axes.

    ``samples`` are rows of ``samples.parquet``, ``labels`` the cells to draw in their order with
    their titles. Every trial is a thin line, the median of the trials a strong one, the points
    of a cell (instances) in colours of their own; steps, dips and trends that a mean hides show
    here. Raises Fault where no row has the metric.
    """
    rows = samples.filter((pl.col("metric") == metric) & pl.col("value").is_not_null())
    cells = [cell for cell in labels if cell in set(rows["cell"])]
    if not cells:
        raise Fault(f"no sample of {metric}", "the run's tool or collectors did not record it")
    style.one_quantity(rows, ("unit",))
    widest = max(style.text_width(labels[cell], style.SMALL) for cell in cells)
    columns = min(len(cells), 4 if widest < 1.3 else 3)
    lines = -(-len(cells) // columns)
    figure = style.picture(0.75 + 1.25 * lines)
    panels = list(figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flat)
    for cell, axes in zip(cells, panels):
        mine = rows.filter(pl.col("cell") == cell).sort("t_s")
        points = mine["point"].unique().sort().to_list()
        for number, point in enumerate(points):
            one = len(points) == 1
            colour = style.PALETTE[style.family(cell)] if one else _cycled(number)
            own = mine.filter(pl.col("point") == point)
            for _, trial in own.group_by("trial", maintain_order=True):
                axes.plot(trial["t_s"], trial["value"], color=colour, alpha=0.35, linewidth=0.6)
            middle = (
                own.with_columns(second=pl.col("t_s").round())
                .group_by("second", maintain_order=True)
                .agg(pl.col("value").median(), pl.len())
                .filter(pl.col("len") * 2 >= pl.col("len").max())
            )
            axes.plot(middle["second"], middle["value"], color=colour, linewidth=1.4, gid="median")
        axes.set_title(style.fitted(labels[cell], style.SMALL, 1.7), fontsize=style.SMALL)
        axes.grid(axis="y")
    for axes in panels[len(cells):]:
        axes.set_axis_off()
    for place, axes in enumerate(panels):
        if len(cells) - columns <= place < len(cells):
            axes.xaxis.set_tick_params(labelbottom=True)
            axes.set_xlabel("time in the trial (s)", fontsize=style.SMALL)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        if place % columns == 0:
            axes.set_ylabel(rows["unit"][0], fontsize=style.SMALL)
        axes.yaxis.set_major_formatter(style.thousands())
    panels[0].set_ylim(0, None)
    style.title(figure, f"{style.words(metric)} over time")
    style.note(figure, "thin: every trial; strong: the median of the trials at that second")
    return figure


def _cycled(number: int) -> str:
    return style.CYCLE[number % len(style.CYCLE)]


@style.styled
def over_time(samples: pl.DataFrame, metric: str) -> style.Picture:
    """Draw a per-second metric (rows of ``samples.parquet``) over a trial's time, a line a trial.

    Raises Fault where no row has the metric, or they mix units.
    """
    rows = samples.filter((pl.col("metric") == metric) & pl.col("value").is_not_null())
    if rows.is_empty():
        raise Fault(f"no sample of {metric}", "the run's tool or collectors did not record it")
    style.one_quantity(rows, ("unit",))
    figure = style.picture(3.0)
    axes = figure.subplots()
    looks = _looks(rows["cell"].unique().sort().to_list())
    for (cell, _, _), group in rows.sort("t_s").group_by(
        ["cell", "trial", "point"], maintain_order=True
    ):
        look = {**looks[str(cell)], "marker": None, "alpha": 0.65, "linewidth": 0.9}
        axes.plot(group["t_s"], group["value"], **look)
    unit = rows["unit"][0]
    axes.set(xlabel="time in the trial (s)", ylabel=f"{tables.plain(metric)} ({unit})")
    axes.set_ylim(0, None)
    axes.grid(axis="y")
    style.title(figure, f"{style.words(metric)} over time, every trial")
    _legend(axes, {cell: {**look, "marker": None} for cell, look in looks.items()},
            {cell: cell for cell in looks})  # fmt: skip
    return figure


@style.styled
def run_order(measurements: pl.DataFrame) -> style.Picture:
    """Draw one metric in the order of the trials, relative to its cell's median: drift slopes.

    A cell's several points each have their own median. Blocks are marked, and the median of each
    block is drawn as a step; unverified trials are open, errors red crosses. Raises Fault where
    nothing has a value.
    """
    metric = style.one_quantity(measurements, ("metric",))
    rows = measurements.filter(pl.col("value").is_not_null())
    usable = pl.col("grade") != "error"
    centre = pl.col("value").filter(usable).median().over(["run", "cell", "point", "tool"])
    rows = rows.with_columns(relative=pl.col("value") / centre).filter(
        pl.col("relative").is_finite()
    )
    if rows.is_empty():
        raise Fault(f"no usable value of {metric}", "see the grades in the run's journal")
    figure = style.picture(2.7)
    axes = figure.subplots()
    families = set()
    for (cell, role, grade), group in rows.group_by(
        ["cell", "role", "grade"], maintain_order=True
    ):
        kind = style.family(str(cell), str(role))
        families.add(kind)
        colour = style.PALETTE[kind]
        looks: Dict[str, Any] = {
            "verified": {"color": colour, "marker": style.MARKERS[kind], "linewidths": 0},
            "unverified": {"facecolors": "white", "edgecolors": colour, "linewidths": 0.8,
                           "marker": style.MARKERS[kind]},
            "error": {"color": style.VERMILLION, "marker": "x", "linewidths": 1.1},
        }[str(grade)]  # fmt: skip
        size = 16 if len(rows) <= 150 else 6
        axes.scatter(group["trial"], group["relative"], s=size, zorder=3, gid=f"trials-{grade}",
                     **looks)  # fmt: skip
    blocks = (
        rows.group_by("block")
        .agg(pl.col("trial").min().alias("first"), pl.col("trial").max().alias("last"),
             pl.col("relative").filter(usable).median().alias("middle"))
        .sort("block")
    )  # fmt: skip
    for place, row in enumerate(blocks.iter_rows(named=True)):
        if place % 2 == 0:
            axes.axvspan(row["first"] - 0.5, row["last"] + 0.5, color="#F1F1F1", zorder=0, lw=0)
        if row["middle"] is not None:
            axes.plot([row["first"] - 0.5, row["last"] + 0.5], [row["middle"]] * 2, zorder=2,
                      color=style.INK, linewidth=1.0)  # fmt: skip
    step = max(1, -(-len(blocks) // 15))
    shown = blocks.gather_every(step)
    axes.set_xticks(
        ((shown["first"] + shown["last"]) / 2).to_list(), [str(b) for b in shown["block"]]
    )
    axes.tick_params(axis="x", length=0)
    reach = max(0.02, float((rows["relative"] - 1).abs().max()) * 1.1)  # type: ignore[arg-type]
    axes.set_ylim(1 - reach, 1 + reach)
    axes.set_xlim(blocks["first"].min() - 0.6, blocks["last"].max() + 0.6)
    axes.set(xlabel="block, trials in running order",
             ylabel="value / its cell's\nmedian (ratio)")  # fmt: skip
    axes.grid(axis="y")
    style.title(figure, f"{style.words(metric)} in the order of the trials")
    handles = [
        Line2D([], [], linestyle="none", marker=style.MARKERS[kind], color=style.PALETTE[kind],
               markersize=4, label=kind)
        for kind in style.PALETTE if kind in families
    ]  # fmt: skip
    handles.append(Line2D([], [], color=style.INK, linewidth=1.0, label="median of the block"))
    if (rows["grade"] == "error").any():
        handles.append(Line2D([], [], linestyle="none", marker="x", markersize=4,
                              color=style.VERMILLION, label="error: left out"))  # fmt: skip
    if (rows["grade"] == "unverified").any():
        handles.append(Line2D([], [], linestyle="none", marker="o", markersize=4, color=style.GREY,
                              markerfacecolor="white", label="unverified"))  # fmt: skip
    _beside(axes, handles)
    return figure


def _reach(group: pl.DataFrame, suffix: str, blocks: int) -> Any:
    """Lengths of the error bars below and above, or None where too few blocks give any."""
    if blocks < evidence.BLOCKS_NEEDED or group[f"low{suffix}"].null_count():
        return None
    mean = group[f"mean{suffix}"]
    return [(mean - group[f"low{suffix}"]).to_list(), (group[f"high{suffix}"] - mean).to_list()]


def _looks(cells: Sequence[str]) -> Dict[str, Dict[str, Any]]:
    """Colour and marker by family; cells of one family differ by their lines."""
    met: Dict[str, int] = {}
    looks = {}
    for cell in cells:
        kind = style.family(cell)
        met[kind] = met.get(kind, -1) + 1
        looks[cell] = {
            "color": style.PALETTE[kind],
            "marker": style.MARKERS[kind],
            "linestyle": _LINES[met[kind] % len(_LINES)] if len(cells) <= MOST_NAMED else "-",
        }
        if len(cells) > MOST_NAMED:
            looks[cell].update(linewidth=0.8, markersize=3)
    return looks


def _legend(
    axes: Any,
    looks: Dict[str, Dict[str, Any]],
    names: Dict[str, str],
    further: Sequence[Line2D] = (),
) -> None:
    """One entry per series, or per family where they are many."""
    handles: List[Line2D] = []
    if len(looks) <= MOST_NAMED:
        handles = [Line2D([], [], label=names[cell], **look) for cell, look in looks.items()]
    else:
        families: Dict[str, Tuple[str, int]] = {}
        for cell in looks:
            kind = style.family(cell)
            families[kind] = (cell, families.get(kind, (cell, 0))[1] + 1)
        handles = [
            Line2D([], [], label=f"{kind}: {count} series", **looks[cell])
            for kind, (cell, count) in families.items()
        ]
    _beside(axes, [*handles, *further])


def _beside(axes: Any, handles: Sequence[Line2D]) -> None:
    """Put the legend right of the axes, where it hides nothing."""
    axes.legend(handles=list(handles), loc="upper left", bbox_to_anchor=(1.01, 1.0),
                borderaxespad=0, handlelength=2.2)  # fmt: skip


def _few(blocks: int) -> str:
    needed = evidence.BLOCKS_NEEDED
    if blocks >= needed:
        return f"points are means, bars their 95 % intervals ({blocks} blocks)"
    return f"too few blocks to decide: {blocks} of the {needed} that are needed; no intervals"


def _apart(counts: Sequence[int], most: int) -> List[int]:
    """The thread counts that can be ticks without their numbers touching."""
    kept: List[int] = []
    for count in reversed(counts):
        if not kept or kept[-1] - count >= most * 0.045:
            kept.append(count)
    return kept[::-1]


def _first_label(cell: str, group: pl.DataFrame) -> str:
    """The binding's own label: that of its cell without a sweep, or its id."""
    plain = group.filter(pl.col("cell") == cell)
    return (plain["label"][0] if len(plain) else None) or cell.replace(":", " ")
