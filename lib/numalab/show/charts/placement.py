"""Where pages went, what a full node does over time, and what that costs in faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from numalab.agent.errors import Fault

from . import style

GIB = 1 << 30
_ROW = 0.22  # inches per cell
_NARROW = 0.05  # of the bar: a narrower piece carries no number
_LABEL = 48  # characters of a cell's name
_PANEL = 1.25  # inches: height of a panel over time
_COLUMNS = 3
# The node of the CPUs is blue; the others take these in turn, so that neighbours differ.
_OTHERS = (style.VERMILLION, style.ORANGE, "#B34D00", "#F2C14E")


@style.styled
def where(rows: pl.DataFrame, order: Sequence[str]) -> style.Picture:
    """Draw the share of each node in every cell's new memory: stacked bars, cells in ``order``.

    ``rows`` are the measurement rows of the metric ``placed`` of one run (points "node N"); the
    bar is the mean over the blocks and each block's share of the CPUs' own node is a dot, so that
    a spread can be seen. A cell without a value says why. Fault without a row.
    """
    style.one_quantity(rows, ("metric", "unit"))
    cells = _in_order(rows, order)
    shares = _shares(rows)
    height = _ROW * len(cells) + 1.05
    left = max(style.text_width(label, style.SMALL) for _, label in cells) + 0.16
    figure = style.Picture(figsize=(style.WIDTH, height))
    axes = figure.add_axes(
        (left / style.WIDTH, 0.6 / height, (style.WIDTH - left - 0.22) / style.WIDTH,
         _ROW * len(cells) / height)
    )  # fmt: skip
    seen: dict[str, Any] = {}
    for place, (cell, _) in enumerate(cells):
        mine = shares.filter(pl.col("cell") == cell)
        if mine.is_empty():
            _say_why(axes, place, rows.filter(pl.col("cell") == cell))
            continue
        _bar(axes, place, mine, seen)
        _dots(axes, place, mine)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.set_yticks(range(len(cells)), [label for _, label in cells])
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("share of the new memory")
    _heading(figure, height, "Where new memory went")
    names = sorted(seen, key=lambda name: name != _HOME)
    handles: list[Any] = [Patch(facecolor=seen[name], label=name) for name in names]
    handles.append(
        Line2D([], [], linestyle="none", marker="o", markersize=3.2, markerfacecolor="white",
               markeredgecolor=style.INK, markeredgewidth=0.6,
               label="one block: share of the CPUs' node")
    )  # fmt: skip
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.05 / style.WIDTH, 0.05 / height),
        ncols=3, borderaxespad=0, columnspacing=1.4, handlelength=1.2,
    )  # fmt: skip
    return figure


_HOME, _AWAY = "the CPUs' own node", "other nodes (their number in the bar)"


def _in_order(rows: pl.DataFrame, order: Sequence[str]) -> list[tuple[str, str]]:
    labels = dict(rows.select("cell", "label").unique().iter_rows())
    return [(cell, _short(labels[cell] or cell)) for cell in order if cell in labels]


def _short(label: str) -> str:
    return label if len(label) <= _LABEL else label[: _LABEL - 1] + "…"


def _fitting(label: str, width: float) -> str:
    """Return as much of a label as stands in a width in inches."""
    cut = label
    while style.text_width(cut, style.SMALL) > width:
        label = label[:-1]
        cut = label.rstrip() + "…"
    return cut


def _shares(rows: pl.DataFrame) -> pl.DataFrame:
    """Each block's share of every node; ``home`` says whether it is that of the CPUs."""
    used = rows.filter((pl.col("grade") != "error") & pl.col("value").is_not_null())
    node = pl.col("point").str.strip_prefix("node ").cast(pl.Int64)
    return used.with_columns(
        node=node,
        home=node.cast(pl.String) == pl.col("cpu_nodes"),
        share=pl.col("value") / pl.col("value").sum().over("cell", "block"),
    ).filter(pl.col("share").is_finite())


def _bar(axes: Any, place: int, shares: pl.DataFrame, seen: dict[str, Any]) -> None:
    means = (
        shares.group_by("node", "home").agg(pl.col("share").mean())
        .sort(pl.col("home").not_(), "node")
    )  # fmt: skip
    start, others = 0.0, 0
    for row in means.iter_rows(named=True):
        colour = style.BLUE if row["home"] else _OTHERS[others % len(_OTHERS)]
        others += not row["home"]
        if not row["share"]:
            continue
        seen.setdefault(_HOME if row["home"] else _AWAY, colour)
        axes.barh(place, row["share"], left=start, height=0.72, color=colour, edgecolor="white",
                  linewidth=0.6, gid=f"node-{row['node']}")  # fmt: skip
        if row["share"] >= _NARROW:
            axes.text(start + row["share"] / 2, place, str(row["node"]), ha="center",
                      va="center_baseline", fontsize=style.TINY,
                      color="white" if style.is_dark(colour) else style.INK)  # fmt: skip
        start += row["share"]


def _dots(axes: Any, place: int, shares: pl.DataFrame) -> None:
    own = shares.group_by("block").agg(
        pl.col("share").filter(pl.col("home")).sum().alias("share")
    ).sort("block")  # fmt: skip
    values = own["share"].to_list()
    spread = np.linspace(-0.22, 0.22, len(values)) if len(values) > 1 else [0.0]
    axes.scatter(values, [place + y for y in spread], s=7, facecolors="white",
                 edgecolors=style.INK, linewidths=0.5, zorder=3, clip_on=False,
                 gid="blocks")  # fmt: skip


def _say_why(axes: Any, place: int, rows: pl.DataFrame) -> None:
    reasons = rows["reason"].drop_nulls().unique().sort().to_list()
    text = reasons[0] if reasons else "no usable value"
    axes.text(0.01, place, text, fontsize=style.SMALL, va="center_baseline", color=style.FAINT,
              gid="reason")  # fmt: skip


def _heading(figure: style.Picture, height: float, text: str) -> None:
    figure.text(0.08 / style.WIDTH, 1 - 0.08 / height, text, fontsize=style.TITLE,
                fontweight="bold", va="top")  # fmt: skip


@style.styled
def levels(samples: pl.DataFrame, cells: Mapping[str, str], homes: Mapping[str, str]) -> Any:
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
    across = min(_COLUMNS, len(shown))
    down = -(-len(shown) // across)
    figure = style.picture(_PANEL * down + 0.75)
    grid = figure.subplots(down, across, sharey=True, squeeze=False)
    for panel, cell in zip(grid.flat, shown):
        _panel(panel, used.filter(pl.col("cell") == cell), homes[cell])
        panel.set_title(_fitting(cells[cell], style.WIDTH / across - 0.45), fontsize=style.SMALL)
    for panel in grid.flat[len(shown) :]:
        panel.set_visible(False)
    for panel in grid[:, 0]:
        panel.set_ylabel("GiB", fontsize=style.SMALL)
    grid[0, 0].set_ylim(bottom=0)
    style.title(figure, "Page cache and free memory while new memory is touched")
    lines = [
        Line2D([], [], color=colour, linestyle=dash, label=f"{what}, {whose}")
        for whose, colour in (("CPUs' node", style.BLUE), ("other nodes", style.VERMILLION))
        for what, dash in (("page cache", "-"), ("free", ":"))
    ]
    figure.legend(handles=lines, loc="outside lower left", ncols=4, handlelength=1.8)
    for place, panel in enumerate(grid.flat[: len(shown)]):
        if place + across >= len(shown):
            panel.set_xlabel("seconds since the first touch", fontsize=style.SMALL)
    return figure


def _panel(axes: Any, rows: pl.DataFrame, home: str) -> None:
    own = pl.col("point") == f"node {home}"
    summed = (
        rows.with_columns(own=own).group_by("trial", "metric", "own", "t_s")
        .agg(pl.col("value").sum()).sort("t_s")
    )  # fmt: skip
    for (_, metric, mine), line in summed.group_by("trial", "metric", "own", maintain_order=True):
        axes.plot(
            line["t_s"], line["value"] / GIB, color=style.BLUE if mine else style.VERMILLION,
            linestyle="-" if metric == "page_cache" else ":", linewidth=0.9, alpha=0.75,
            marker="." if line.height < 2 else None, gid=f"{metric}-{'own' if mine else 'others'}",
        )  # fmt: skip
    axes.grid(axis="y")
    axes.set_xlim(left=0)


@style.styled
def faults(minor: pl.DataFrame, huge: pl.DataFrame, order: Sequence[str]) -> style.Picture:
    """Draw minor faults (a logarithmic axis) beside the share of huge pages, cells in ``order``.

    ``minor`` and ``huge`` are the measurement rows of ``minor_faults`` and ``huge_share`` of one
    run. Every block is a dot, the line its range, the tick its median. Fault without a row.
    """
    style.one_quantity(minor)
    style.one_quantity(huge)
    cells = _in_order(minor, order)
    height = _ROW * len(cells) + 1.0
    left = max(style.text_width(label, style.SMALL) for _, label in cells) + 0.16
    room = style.WIDTH - left - 0.22
    figure = style.Picture(figsize=(style.WIDTH, height))
    panels = []
    for start, share in ((0.0, 0.58), (0.64, 0.36)):
        panels.append(
            figure.add_axes(
                ((left + start * room) / style.WIDTH, 0.6 / height, share * room / style.WIDTH,
                 _ROW * len(cells) / height),
                sharey=panels[0] if panels else None,
            )
        )  # fmt: skip
    for axes, rows, colour in zip(panels, (minor, huge), (style.VERMILLION, style.BLUE)):
        used = rows.filter((pl.col("grade") != "error") & pl.col("value").is_not_null())
        for place, (cell, _) in enumerate(cells):
            values = used.filter(pl.col("cell") == cell).sort("block")["value"].to_list()
            if values and not max(values) and axes is panels[0]:
                axes.text(0.01, place, "0", transform=axes.get_yaxis_transform(),
                          fontsize=style.SMALL, va="center_baseline", gid="none")  # fmt: skip
            elif values:
                _range(axes, place, values, colour)
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
    first, second = panels
    first.set_xscale("log")
    low, high = first.get_xlim()
    first.set_xlim(low / 1.4, high * 1.4)
    first.set_xlabel("minor faults (count, logarithmic)")
    second.set_xlim(-0.04, 1.04)
    second.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    second.set_xlabel("huge pages' share")
    second.tick_params(labelleft=False)
    first.set_ylim(len(cells) - 0.5, -0.5)
    first.set_yticks(range(len(cells)), [label for _, label in cells])
    _heading(figure, height, "Minor faults and huge pages of the same memory")
    figure.text(0.08 / style.WIDTH, 0.07 / height,
                "dots: blocks · tick: median · line: range of the blocks",
                fontsize=style.SMALL, color=style.FAINT)  # fmt: skip
    return figure


def _range(axes: Any, place: int, values: list[float], colour: str) -> None:
    spread = np.linspace(-0.25, 0.25, len(values)) if len(values) > 1 else [0.0]
    axes.plot([min(values), max(values)], [place, place], color=colour, linewidth=1.2,
              gid="range")  # fmt: skip
    axes.scatter(values, [place + y for y in spread], s=8, color=colour, alpha=0.55, linewidths=0,
                 clip_on=False, gid="blocks")  # fmt: skip
    middle = float(np.median(values))
    axes.plot([middle, middle], [place - 0.33, place + 0.33], color=style.INK, linewidth=1.1,
              gid="median")  # fmt: skip
