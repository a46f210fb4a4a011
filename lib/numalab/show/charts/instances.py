"""Several instances of a server side by side: what each did with the same load."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import polars as pl
from matplotlib.lines import Line2D

from numalab.agent.errors import Fault
from numalab.analysis import evidence

from . import style

_ROW = 0.24  # inches per instance
_GAP = 0.7  # rows between two layouts
MOST_METRICS = 4


@style.styled
def instances(
    measurements: pl.DataFrame, metrics: Sequence[str], labels: Mapping[str, str]
) -> style.Picture:
    """Draw up to four metrics in a panel each, a row per instance, grouped by layout.

    The rows' ``point`` names the instance, their ``cell`` the layout; ``labels`` maps the cells to
    draw, in their order, to their titles. Every trial is a faint point, the marker the mean with
    its 95 % interval (from 6 blocks on); all axes start at 0, so that lengths can be compared.
    A metric that no trial measured has no panel. Raises Fault when none was.
    """
    rows = measurements.filter(
        pl.col("metric").is_in(list(metrics)) & (pl.col("point") != "")
        & pl.col("cell").is_in(list(labels)) & (pl.col("grade") != "error")
        & pl.col("value").is_not_null()
    )  # fmt: skip
    shown = [name for name in metrics if name in set(rows["metric"])][:MOST_METRICS]
    if not shown:
        raise Fault("no instance has a value of its own", "see the grades in the run's journal")
    blocks = rows["block"].n_unique()
    places, titles, end = _places(rows, labels)
    names = [point for _, point in places]
    left = max(
        *(style.text_width(name, style.SMALL) for name in names),
        *(style.text_width(title, style.SMALL, "bold") for title, _ in titles),
    ) + 0.2  # fmt: skip
    top, bottom, gap = 0.62, 0.62, 0.16
    height = top + bottom + _ROW * (end + 0.5)
    figure = style.Picture(figsize=(style.WIDTH, height))
    wide = (style.WIDTH - left - 0.15 - gap * (len(shown) - 1)) / len(shown)
    summary = evidence.summarise(rows)
    for column, metric in enumerate(shown):
        axes = figure.add_axes(
            ((left + column * (wide + gap)) / style.WIDTH, bottom / height, wide / style.WIDTH,
             _ROW * (end + 0.5) / height)
        )  # fmt: skip
        _panel(axes, metric, rows, summary, places, blocks)
        axes.set_ylim(end, -0.5)
        axes.set_yticks(list(places.values()), names if column == 0 else [])
        axes.tick_params(axis="y", length=0)
        if column == 0:
            room = left / wide
            for title, place in titles:
                axes.text(-room + 0.08 / wide, place, title, fontsize=style.SMALL,
                          fontweight="bold", transform=axes.get_yaxis_transform(),
                          va="center_baseline")  # fmt: skip
    edge = 0.08 / style.WIDTH
    figure.text(edge, 1 - 0.08 / height, "The instances compared", fontsize=style.TITLE,
                fontweight="bold", va="top")  # fmt: skip
    needed = evidence.BLOCKS_NEEDED
    words = "faint: every trial; strong: the mean"
    words += (
        f" with its 95 % interval ({blocks} blocks)" if blocks >= needed
        else f"; too few blocks to decide: {blocks} of the {needed} that are needed"
    )  # fmt: skip
    figure.text(edge, 0.07 / height, words, fontsize=style.SMALL, color=style.FAINT)
    return figure


def _places(
    rows: pl.DataFrame, labels: Mapping[str, str]
) -> Tuple[Dict[Tuple[str, str], float], List[Tuple[str, float]], float]:
    """Where each (layout, instance) stands, where the layouts' titles do, and where it ends."""
    places: Dict[Tuple[str, str], float] = {}
    titles: List[Tuple[str, float]] = []
    at = 0.0
    for cell, title in labels.items():
        points = rows.filter(pl.col("cell") == cell)["point"].unique().sort().to_list()
        if not points:
            continue
        titles.append((title, at))
        for point in points:
            at += 1
            places[cell, point] = at
        at += 1 + _GAP
    return places, titles, at - _GAP - 0.5


def _panel(
    axes: Any, metric: str, rows: pl.DataFrame, summary: pl.DataFrame,
    places: Mapping[Tuple[str, str], float], blocks: int,
) -> None:  # fmt: skip
    mine = rows.filter(pl.col("metric") == metric)
    means = summary.filter(pl.col("metric") == metric)
    layouts: Dict[str, int] = {}
    for (cell, point), place in places.items():
        number = layouts[cell] = layouts.get(cell, -1) + 1
        colour = style.CYCLE[number % len(style.CYCLE)]
        here = (pl.col("cell") == cell) & (pl.col("point") == point)
        values = mine.filter(here).sort("trial")["value"]
        axes.scatter(values, [place] * len(values), s=8, color=colour, alpha=0.35, linewidths=0,
                     gid="trials")  # fmt: skip
        for row in means.filter(here).iter_rows(named=True):
            error = None
            if blocks >= evidence.BLOCKS_NEEDED and row["low"] is not None:
                error = [[row["mean"] - row["low"]], [row["high"] - row["mean"]]]
            axes.errorbar([row["mean"]], [place], xerr=error, fmt="o", color=colour, markersize=5,
                          markeredgecolor="white", markeredgewidth=0.5, elinewidth=1.4, capsize=2,
                          zorder=3)  # fmt: skip
            axes.add_line(Line2D([0, row["mean"]], [place, place], color=colour, linewidth=0.8,
                                 alpha=0.5, zorder=1))  # fmt: skip
    unit = mine["unit"][0]
    axes.set_xlim(0, mine["value"].max() * 1.1)  # type: ignore[operator]
    axes.set_xlabel(unit if unit not in ("1", "") else "ratio", fontsize=style.SMALL)
    axes.set_title(style.words(metric), fontsize=style.SMALL, fontweight="bold")
    axes.locator_params(axis="x", nbins=2 if axes.get_xlim()[1] >= 10_000 else 3)
    axes.xaxis.set_major_formatter(style.thousands())
    axes.grid(axis="x")
