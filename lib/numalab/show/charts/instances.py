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


def instances(
    rows: pl.DataFrame, metrics: Sequence[str], labels: Mapping[str, str]
) -> style.Picture:
    """Draw up to four metrics in a panel each, a row per instance, grouped by layout.

    The rows' ``point`` names the instance, their ``cell`` the layout; ``labels`` maps the cells to
    draw, in their order, to their titles. Every trial is a faint point, the marker the mean with
    its 95 % interval (from 6 blocks on); all axes start at 0, so that lengths can be compared.
    A metric that no trial measured has no panel. Raises Fault when none was.
    """
    shown = [name for name in metrics if name in set(rows["metric"])][:MOST_METRICS]
    if not shown:
        raise Fault("no instance has a value of its own", "see the grades in the run's journal")
    named: list[tuple[str, str, str]] = []  # what stands there, its cell, its point ("": a title)
    for cell, title in labels.items():
        points = rows.filter(pl.col("cell") == cell)["point"].unique().sort().to_list()
        named += [(title, cell, "")] if points else []
        named += [(point, cell, point) for point in points]
    blocks = rows["block"].n_unique()
    summary = evidence.summarise(rows)

    def paint(figure: FigureBase) -> None:
        made = layout.panels(figure, [name for name, _, _ in named], [1.0] * len(shown))
        for tick, (_, _, point) in zip(made[0].get_yticklabels(), named, strict=True):
            tick.set_fontweight("normal" if point else "bold")
        for axes, metric in zip(made, shown, strict=True):
            of_metric = pl.col("metric") == metric
            _panel(axes, rows.filter(of_metric), summary.filter(of_metric), named, blocks)
        style.title(figure, "The instances compared")
        style.foot(figure, note=f"faint: every trial; {style.few(blocks, 'strong: the mean')}")

    return style.Picture(layout.height(len(named), 2), paint)


def _panel(
    axes: Axes, rows: pl.DataFrame, means: pl.DataFrame, named: Sequence[tuple[str, str, str]],
    blocks: int,
) -> None:  # fmt: skip
    before: list[str] = []
    for place, (_, cell, point) in enumerate(named):
        colour = style.CYCLE[before.count(cell) % len(style.CYCLE)]
        if not point:
            continue
        before.append(cell)
        here = (pl.col("cell") == cell) & (pl.col("point") == point)
        values = rows.filter(here).sort("trial")["value"].to_list()
        axes.scatter(values, [place] * len(values), s=8, color=colour, alpha=0.35, linewidths=0,
                     gid="trials")  # fmt: skip
        for row in means.filter(here & pl.col("mean").is_not_null()).iter_rows(named=True):
            layout.mean(axes, place, row, blocks, fmt="o", color=colour)
            axes.plot([0, row["mean"]], [place, place], color=colour, linewidth=0.8, alpha=0.5,
                      zorder=1)  # fmt: skip
    unit = rows["unit"][0]
    axes.set_xlim(0, max(rows["value"].to_list()) * 1.1)
    axes.set_xlabel(unit if unit not in ("1", "") else "ratio", fontsize=style.SMALL)
    axes.set_title(style.words(rows["metric"][0]), fontsize=style.SMALL, fontweight="bold")
    axes.locator_params(axis="x", nbins=2 if axes.get_xlim()[1] >= 10_000 else 3)
