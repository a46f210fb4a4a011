"""The one row layout: a row for each case or binding, panels of numbers side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase

from . import style

ROW = 0.21  # inches
HEAD = 0.3  # inches: a title
FOOT = 0.55  # inches: the numbers of an axis and its name
_LONGEST = 2.9  # inches of a label


def height(rows: int, entries: int = 0) -> float:
    """Return the height in inches of a picture of rows, with so many lines of a key below it."""
    return HEAD + ROW * (rows + 0.6) + FOOT + 0.17 * entries


def panels(
    figure: FigureBase, labels: Sequence[str], widths: Sequence[float] = (1.0,)
) -> list[Axes]:
    """Return axes side by side whose rows are shared; row 0 is on top, the labels left of it."""
    made = figure.subplots(1, len(widths), sharey=True, width_ratios=widths, squeeze=False)[0]
    made[0].set_yticks(
        range(len(labels)), [style.fitted(one, style.SMALL, _LONGEST) for one in labels]
    )
    made[0].set_ylim(len(labels) - 0.5, -0.5)
    for axes in made:
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_formatter(style.thousands())
        axes.grid(axis="x")
    return list(made)


def texts(axes: Axes, heads: Mapping[str, float]) -> None:
    """Make axes a place for columns of text, whose heads stand at these x (0 to 1)."""
    axes.set(xlim=(0, 1))
    axes.set_axis_off()
    for head, x in heads.items():
        axes.text(x, -0.6, head, fontsize=style.TINY, color=style.FAINT, va="bottom")


def text(axes: Axes, x: float, place: float, words: str, **look: Any) -> None:
    """Write a number or a word into a row."""
    axes.text(x, place, words, fontsize=style.SMALL, va="center_baseline", **look)


def spread(count: int, reach: float = 0.25) -> list[float]:
    """Return where the trials of a row stand about its middle, the first on top."""
    return list(np.linspace(-reach, reach, count)) if count > 1 else [0.0] * count


def mean(axes: Axes, place: float, row: Mapping[str, Any], blocks: int, **look: Any) -> None:
    """Draw the mean of a row of ``evidence.summarise`` with its interval."""
    look = {"markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.5,
            "elinewidth": 1.4, "capsize": 2.2, "zorder": 3, **look}  # fmt: skip
    axes.errorbar([row["mean"]], [place], xerr=style.reach(row, blocks), **look)


def percent(axes: Axes) -> None:
    """Make the x axis one of shares, from 0 to 100 %."""
    axes.set_xlim(-0.03, 1.03)
    axes.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])


def share(value: float) -> str:
    """Return a share for a narrow place."""
    return f"{value:.0%}" if 0.005 < value < 0.995 or value in (0, 1) else f"{value:.1%}"
