"""Several instances of a server side by side: what each did with the same load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase

from numalab.agent.errors import Fault
from numalab.analysis import evidence

from . import rows as layout
from . import style

MOST_METRICS = 4
MOST_ROWS = 34  # of a page; more instances share the row of their layout
_FOLDED = "a point: the mean of an instance; numbers: the instances with the least and the most"


def instances(
    rows: pl.DataFrame, metrics: Sequence[str], labels: Mapping[str, str]
) -> style.Picture:
    """Draw up to four metrics in a panel each, a row per instance, grouped by layout.

    The rows' ``point`` names the instance, their ``cell`` the layout; ``labels`` maps the cells to
    draw, in their order, to their titles. Every trial is a faint point, the marker the mean with
    its 95 % interval (from 6 blocks on); all axes start at 0, so that lengths can be compared.
    Where that makes too many rows, a layout has one, with the mean of each instance as a point.
    A metric that no trial measured has no panel. Raises Fault when none was.
    """
    shown = [name for name in metrics if name in set(rows["metric"])][:MOST_METRICS]
    if not shown:
        raise Fault("no instance has a value of its own", "see the grades in the run's journal")
    each = {cell: _points(rows.filter(pl.col("cell") == cell)) for cell in labels}
    each = {cell: points for cell, points in each.items() if points}
    folded = sum(len(points) + 1 for points in each.values()) > MOST_ROWS
    named: list[tuple[str, str, list[str]]] = []  # what stands there, its cell, its points
    for cell, points in each.items():
        named.append((labels[cell], cell, points if folded else []))
        named += [] if folded else [(point, cell, [point]) for point in points]
    blocks = rows["block"].n_unique()
    summary = evidence.summarise(rows).filter(pl.col("mean").is_not_null())

    def paint(figure: FigureBase) -> None:
        made = layout.panels(figure, [name for name, _, _ in named], [1.0] * len(shown))
        for tick, (label, cell, _) in zip(made[0].get_yticklabels(), named, strict=True):
            tick.set_fontweight("bold" if label == labels[cell] else "normal")
        for axes, metric in zip(made, shown, strict=True):
            of_metric = pl.col("metric") == metric
            _panel(axes, rows.filter(of_metric), summary.filter(of_metric), named, blocks)
        style.title(figure, "The instances compared")
        said = f"faint: every trial; {style.few(blocks, 'strong: the mean')}"
        style.foot(figure, note=_FOLDED if folded else said)

    return style.Picture(layout.height(len(named), 2), paint)


def _points(rows: pl.DataFrame) -> list[str]:
    """The instances of a cell in their order: by their number, else by their name."""
    order = rows.group_by("point").agg(pl.col("x").min()).sort("x", "point", nulls_last=True)
    return order["point"].to_list()


def _panel(
    axes: Axes, rows: pl.DataFrame, means: pl.DataFrame,
    named: Sequence[tuple[str, str, list[str]]], blocks: int,
) -> None:  # fmt: skip
    before: list[str] = []
    for place, (_, cell, points) in enumerate(named):
        mine = means.filter((pl.col("cell") == cell) & pl.col("point").is_in(points))
        if len(points) > 1:
            axes.scatter(mine["mean"], [place] * len(mine), s=14, color=style.BLUE, alpha=0.5,
                         linewidths=0, gid="means")  # fmt: skip
            _name_ends(axes, place, mine.sort("mean"))
            continue
        if not points:
            continue
        colour = style.CYCLE[before.count(cell) % len(style.CYCLE)]
        before.append(cell)
        here = (pl.col("cell") == cell) & (pl.col("point") == points[0])
        values = rows.filter(here).sort("trial")["value"].to_list()
        axes.scatter(values, [place] * len(values), s=8, color=colour, alpha=0.35, linewidths=0,
                     gid="trials")  # fmt: skip
        for row in mine.iter_rows(named=True):
            layout.mean(axes, place, row, blocks, fmt="o", color=colour)
            axes.plot([0, row["mean"]], [place, place], color=colour, linewidth=0.8, alpha=0.5,
                      zorder=1)  # fmt: skip
    unit = rows["unit"][0]
    axes.set_xlim(0, max(rows["value"].to_list()) * 1.1)
    axes.set_xlabel(unit if unit not in ("1", "") else "ratio", fontsize=style.SMALL)
    axes.set_title(style.words(rows["metric"][0]), fontsize=style.SMALL, fontweight="bold")
    axes.locator_params(axis="x", nbins=2 if axes.get_xlim()[1] >= 10_000 else 3)


def _name_ends(axes: Axes, place: int, means: pl.DataFrame) -> None:
    """Name the instances with the least and the most, left and right of their points."""
    for row, side in ((means.row(0, named=True), -1), (means.row(-1, named=True), 1)):
        name = row["point"].partition(":")[0].removeprefix("instance ")
        axes.annotate(name, (row["mean"], place), xytext=(5 * side, 0), fontsize=style.TINY,
                      textcoords="offset points", ha="left" if side > 0 else "right",
                      va="center_baseline", color=style.FAINT)  # fmt: skip
