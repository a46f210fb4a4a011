"""Where pages went, what a full node does over time, and what that costs in faults."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from numalab.agent import cpulist
from numalab.agent.contract import ERROR, MEASURED
from numalab.agent.errors import Fault

from . import rows as layout
from . import style
from .frames import to_pandas

GIB = 1 << 30
_NARROW = 0.05  # of the bar: a narrower piece carries no number
_PANEL = 1.25  # inches: height of a panel over time
_COLUMNS = 3
_ACROSS = 100  # letters of a small title that stand side by side
# The node of the CPUs is blue; the others take these in turn, so that neighbours differ.
_OTHERS = (style.VERMILLION, style.ORANGE, "#B34D00", "#F2C14E")
_OWN, _AWAY = "the CPUs' own nodes", "other nodes (their number in the bar)"
_USED = (pl.col("grade") != ERROR) & pl.col("value").is_not_null()


def where(
    rows: pl.DataFrame,
    order: Sequence[str],
    even: Mapping[str, float | None] | None = None,
    title: str = "Where new memory went",
) -> style.Picture:
    """Draw the share of each node in every cell's new memory: stacked bars, cells in ``order``.

    ``even`` are the shares that a node has of cells whose memory is spread alike: marked.

    ``rows`` are the measurement rows of the metric ``placed`` of one run (points "node N"); the
    bar is the mean over the blocks and each block's share of the CPUs' own node is a dot, so that
    a spread can be seen. A cell without a value says why. Fault without a row.
    """
    style.one_quantity(rows, ("metric", "unit"))
    cells = _in_order(rows, order)
    shares = _shares(rows)

    def paint(figure: FigureBase) -> None:
        (axes,) = layout.panels(figure, list(cells.values()))
        seen: dict[str, Any] = {}
        for place, cell in enumerate(cells):
            mine = shares.filter(pl.col("cell") == cell)
            if mine.is_empty():
                reasons = rows.filter(pl.col("cell") == cell)["reason"].drop_nulls()
                said = reasons[0] if len(reasons) else "no usable value"
                layout.text(axes, 0.01, place, style.fitted(said, style.SMALL, 3.0),
                            color=style.FAINT, gid="reason")  # fmt: skip
            else:
                _bar(axes, place, mine, seen)
                _dots(axes, place, mine)
                _mark_even(axes, place, (even or {}).get(cell))
        layout.percent(axes)
        axes.set_xlabel("share of the memory")
        style.title(figure, title)
        names = sorted(seen, key=lambda name: name != _OWN)
        marked = [one for cell in cells if (one := (even or {}).get(cell))]
        style.foot(
            figure,
            [*(Patch(facecolor=seen[name], label=name) for name in names),
             *([_even_key(marked)] if marked else []),
             style.point("one block: share of the CPUs' node", markersize=3.2, color=style.INK,
                         **style.UNVERIFIED_LOOK)],
        )  # fmt: skip

    return style.Picture(layout.height(len(cells), 2), paint)


def _mark_even(axes: Axes, place: int, share: float | None) -> None:
    if share:
        axes.plot([share, share], [place - 0.45, place + 0.45], color=style.BLACK, linewidth=1.4,
                  zorder=4, gid="even")  # fmt: skip


def _even_key(shares: Sequence[float]) -> Line2D:
    said = " or ".join(f"1/{1 / share:.0f}" for share in sorted(set(shares), reverse=True))
    return Line2D([], [], color=style.BLACK, linewidth=1.4, label=f"an even share, {said}")


def _in_order(rows: pl.DataFrame, order: Sequence[str]) -> dict[str, str]:
    labels = dict(rows.select("cell", "label").unique().iter_rows())
    return {cell: labels[cell] or cell for cell in order if cell in labels}


def _shares(rows: pl.DataFrame) -> pl.DataFrame:
    """Each block's share of every node; ``own`` says whether it is that of the CPUs."""
    node = pl.col("x").cast(pl.Int64)
    return (
        rows.filter(_USED)
        .with_columns(
            node=node,
            own=pl.struct(node=node, cpus="cpu_nodes").map_elements(
                lambda row: row["node"] in cpulist.parse(row["cpus"] or ""), return_dtype=pl.Boolean
            ),
            share=pl.col("value") / pl.col("value").sum().over("cell", "block"),
        )
        .filter(pl.col("share").is_finite())
    )


def _bar(axes: Axes, place: int, shares: pl.DataFrame, seen: dict[str, Any]) -> None:
    means = shares.group_by("node", "own").agg(pl.col("share").mean())
    start, others = 0.0, 0
    for node, own, share in means.sort(pl.col("own").not_(), "node").iter_rows():
        colour = style.BLUE if own else _OTHERS[others % len(_OTHERS)]
        others += not own
        if not share:
            continue
        seen.setdefault(_OWN if own else _AWAY, colour)
        axes.barh(place, share, left=start, height=0.72, color=colour, edgecolor="white",
                  linewidth=0.6, gid=f"node-{node}")  # fmt: skip
        if share >= _NARROW:
            axes.text(start + share / 2, place, str(node), ha="center", va="center_baseline",
                      fontsize=style.TINY,
                      color="white" if style.is_dark(colour) else style.INK)  # fmt: skip
        start += share


def _dots(axes: Axes, place: int, shares: pl.DataFrame) -> None:
    own = shares.group_by("block").agg(pl.col("share").filter(pl.col("own")).sum()).sort("block")
    at = [place + y for y in layout.spread(len(own))]
    axes.scatter(own["share"], at, s=7, facecolors="white", edgecolors=style.INK, linewidths=0.5,
                 zorder=3, clip_on=False, gid="blocks")  # fmt: skip


def faults(minor: pl.DataFrame, huge: pl.DataFrame, order: Sequence[str]) -> style.Picture:
    """Draw minor faults (logarithmic) and the share of huge pages of the same memory, by cell.

    Every block is a dot, the line their range, the tick their median.
    """
    cells = _in_order(pl.concat([minor, huge]), order)

    def paint(figure: FigureBase) -> None:
        axes = first, second = layout.panels(figure, list(cells.values()), (1.6, 1.0))
        looks = zip(axes, (minor, huge), (style.VERMILLION, style.BLUE), strict=True)
        for one, rows, colour in looks:
            for place, cell in enumerate(cells):
                mine = rows.filter(_USED & (pl.col("cell") == cell)).sort("block")
                values = mine["value"].to_list()
                if values and not max(values) and one is first:  # a logarithm has no place for it
                    one.text(0.01, place, "0", transform=one.get_yaxis_transform(),
                             fontsize=style.SMALL, va="center_baseline", gid="none")  # fmt: skip
                elif values:
                    _range(one, place, values, colour)
        first.set_xscale("log")
        first.margins(x=0.1)
        first.xaxis.set_major_formatter(style.thousands())
        first.xaxis.set_minor_formatter("")
        first.set_xlabel("minor faults (count, logarithmic)")
        layout.percent(second)
        second.set_xlabel("huge pages' share")
        style.title(figure, "Minor faults and huge pages of the same memory")
        style.foot(figure, note="dots: blocks · tick: median · line: range of the blocks")

    return style.Picture(layout.height(len(cells), 1), paint)


def _range(axes: Axes, place: int, values: list[float], colour: str) -> None:
    axes.plot([min(values), max(values)], [place, place], color=colour, linewidth=1.2, gid="range")
    at = [place + y for y in layout.spread(len(values))]
    axes.scatter(values, at, s=8, color=colour, alpha=0.55, linewidths=0, clip_on=False,
                 gid="blocks")  # fmt: skip
    middle = float(np.median(values))
    axes.plot([middle, middle], [place - 0.33, place + 0.33], color=style.INK, linewidth=1.1,
              gid="median")  # fmt: skip


def levels(
    samples: pl.DataFrame, cells: Mapping[str, str], homes: Mapping[str, str]
) -> style.Picture:
    """Draw page cache and free memory of each node while memory is allocated, a panel per cell.

    ``samples`` are the rows of ``samples.parquet`` with the metrics ``page_cache`` and ``free``
    (bytes, points "node N"); ``cells`` maps the cells to draw to their labels, ``homes`` to the
    node of their CPUs. Every block is a line; of several other nodes the sum is drawn. Fault
    without a row.
    """
    used = samples.filter(
        pl.col("metric").is_in(["page_cache", "free"]) & pl.col("cell").is_in(list(cells))
    )
    if used.is_empty():
        raise Fault("there is no row to draw", "the collectors of the run took no samples")
    shown = [cell for cell in cells if cell in set(used["cell"])]
    down = -(-len(shown) // _COLUMNS)
    across = -(-len(shown) // down)
    home = pl.col("cell").replace_strict(dict(homes), return_dtype=pl.String)
    whose = pl.when(pl.col("point") == pl.concat_str(pl.lit("node "), home))
    summed = (
        used.with_columns(whose=whose.then(pl.lit("CPUs' node")).otherwise(pl.lit("other nodes")))
        .group_by("cell", "trial", "metric", "whose", "t_s")
        .agg(pl.col("value").sum() / GIB)
        .sort("t_s")
    )
    colours = {"CPUs' node": style.BLUE, "other nodes": style.VERMILLION}
    dashes = {"page_cache": "", "free": (1, 1)}

    def paint(figure: FigureBase) -> None:
        grid = figure.subplots(down, across, sharey=True, squeeze=False)
        for place, (axes, cell) in enumerate(zip(grid.flat, shown)):
            mine = summed.filter(pl.col("cell") == cell)
            seaborn.lineplot(
                to_pandas(mine), x="t_s", y="value", hue="whose", style="metric", units="trial",
                estimator=None, palette=colours, dashes=dashes, hue_order=list(colours),
                style_order=list(dashes), linewidth=0.9, alpha=0.75, legend=False, ax=axes,
                marker="." if mine["t_s"].n_unique() < 2 else None,
            )  # fmt: skip
            axes.grid(axis="y")
            axes.set_xlim(left=0)
            last = place + across >= len(shown)
            axes.set_xlabel("seconds since the first touch" if last else "", fontsize=style.SMALL)
            axes.set_ylabel("" if place % across else "GiB", fontsize=style.SMALL)
            axes.set_title(textwrap.fill(cells[cell], _ACROSS // across), fontsize=style.SMALL)
        for axes in grid.flat[len(shown) :]:
            axes.set_axis_off()
        grid[0, 0].set_ylim(bottom=0)
        style.title(figure, "Page cache and free memory while new memory is touched")
        style.foot(
            figure,
            [Line2D([], [], color=colour, linestyle=":" if dash else "-",
                    label=f"{what.replace('_', ' ')}, {whose}")
             for whose, colour in colours.items() for what, dash in dashes.items()],
        )  # fmt: skip

    return style.Picture(_PANEL * down + 0.75, paint)


def cases(frame: pl.DataFrame, title: str, hosts: Mapping[str, str]) -> style.Picture:
    """Draw a share for every case (rows) and host (columns): the number, and its bar.

    ``frame`` has the columns case, host, value (of 1), low and high (the least and the most over
    the trials), even (a node's share where memory is spread alike, else null); ``hosts`` maps the
    hosts to the badges of their evidence. Cases stand in the order of the frame. Raises Fault for
    an empty frame.
    """
    if frame.is_empty():
        raise Fault(f"there is nothing to draw of {title!r}", "no run measured it")
    names = frame["case"].unique(maintain_order=True).to_list()

    def paint(figure: FigureBase) -> None:
        made = layout.panels(figure, names, [1.0] * len(hosts))
        for axes, (host, kind) in zip(made, hosts.items(), strict=True):
            mine = frame.filter(pl.col("host") == host)
            _bars(axes, {row["case"]: row for row in mine.iter_rows(named=True)}, names)
            axes.set_title(host, fontweight="bold", pad=11)
            axes.text(0, 1.01, kind, transform=axes.transAxes, fontsize=style.TINY, va="bottom",
                      color=style.FAINT if kind == MEASURED else style.VERMILLION)  # fmt: skip
        style.title(figure, title)
        even = frame["even"].drop_nulls().to_list()
        style.foot(figure, [_even_key(even)] if even else [])

    return style.Picture(layout.height(len(names), 2), paint)


def _bars(axes: Axes, known: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> None:
    layout.percent(axes)
    for place, name in enumerate(names):
        record = known.get(name)
        if record is None or record["value"] is None:
            axes.text(0.02, place, "not measured", fontsize=style.TINY, color=style.FAINT,
                      va="center_baseline", fontstyle="italic")  # fmt: skip
            continue
        value, low, high = record["value"], record["low"], record["high"]
        axes.barh(place, min(value, 1.0), height=0.62, color=style.SKY, zorder=1)
        if high > low:
            axes.plot([low, min(high, 1.0)], [place, place], color=style.INK, linewidth=0.8,
                      zorder=2)  # fmt: skip
        _mark_even(axes, place, record["even"])
        inside = value > 0.6
        end = min(value, 1.0) - 0.02 if inside else max(value, high) + 0.02
        style.halo(axes.text(end, place, layout.share(value), va="center_baseline",
                             ha="right" if inside else "left", fontsize=style.TINY,
                             zorder=3))  # fmt: skip
