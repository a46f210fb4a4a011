"""Bindings compared: every trial, the mean with its interval, and the ratio to the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from numalab import tables
from numalab.agent.contract import BASELINE, CONTROL, ERROR, GRADES, UNVERIFIED, VERIFIED
from numalab.analysis import judge
from numalab.analysis.evidence import BLOCKS_NEEDED

from . import rows, style

LEAST_SPAN = 0.1  # of the middle: a narrower axis would blow up noise
_BAND = "#D0D0D0"
_COUNTS = 0.7  # of the width beside: where the counts start

Row = dict[str, Any]


def bindings_figure(
    summary: pl.DataFrame, ratios: pl.DataFrame, trials: pl.DataFrame, better: str | None
) -> style.Picture:
    """Draw one metric under every binding, best on top; up to 40 cells stay legible.

    ``summary`` is that of ``evidence.summarise``, ``ratios`` that of ``judge.ratios`` and
    ``trials`` the measurement rows, all three of one run, one metric and one point (Fault
    otherwise, and without a row). ``better`` is "higher", "lower" or None. Every trial is a faint
    point (unverified: open; error with a value: a red ×, never in a mean); the marker is the mean
    of the cell with its 95 % interval. In each row a tick marks the mean of that cell's own
    baseline and a grey band the A/A control's interval about it. On the right, the ratio to the
    baseline with its interval. With fewer than 6 blocks there are points only, and a note.
    """
    style.one_quantity(summary)
    chart = _Bindings(summary, ratios, trials, better)
    lines = -(-len(chart.key()) // max(1, style.key_columns(chart.key()))) + 1
    height = rows.height(len(chart.rows), lines) + (0.3 if chart.base else 0.0)
    return style.Picture(height, chart.paint)


class _Bindings:
    """What the chart is painted from."""

    def __init__(
        self, summary: pl.DataFrame, ratios: pl.DataFrame, trials: pl.DataFrame, better: str | None
    ) -> None:
        self.metric, self.unit = style.one_quantity(trials), trials["unit"][0]
        self.trials, self.better = trials, better
        self.blocks = trials["block"].n_unique()
        self.enough = self.blocks >= BLOCKS_NEEDED
        sign = 1 if better == "lower" else -1
        self.rows: list[Row] = sorted(  # cells without a usable value last, by name
            summary.iter_rows(named=True),
            key=lambda row: (row["mean"] is None, sign * (row["mean"] or 0), row["cell"]),
        )
        self.means = {row["cell"]: row["mean"] for row in self.rows}
        self.ratios: dict[str, Row] = {row["cell"]: row for row in ratios.iter_rows(named=True)}
        compared = {row["baseline"] for row in self.ratios.values()}
        self.base = self.means.get(next(iter(compared))) if len(compared) == 1 else None
        self.grades = set(trials.filter(pl.col("value").is_not_null())["grade"])

    def paint(self, figure: FigureBase) -> None:
        axes, beside = rows.panels(figure, list(map(_label, self.rows)), (3.0, 2.0))
        for place, row in enumerate(self.rows):
            self._baseline(axes, place, row)
            self._points(axes, place, row)
            if self.enough and row["mean"] is not None:
                kind = style.family(row["binding"], row["role"])
                rows.mean(axes, place, row, self.blocks, fmt=style.MARKERS[kind],
                          color=style.PALETTE[kind])  # fmt: skip
        self._span(axes)
        if axes.get_xlim()[1] >= 1000:  # numbers this wide would run into each other
            axes.xaxis.set_major_locator(MaxNLocator(5))
        says = f", {self.better} is better" if self.better else ""
        axes.set_xlabel(f"{tables.plain(self.metric)} ({self.unit}){says}")
        if self.base:
            base = self.base
            top = axes.secondary_xaxis("top", functions=(lambda v: v / base, lambda r: r * base))
            top.set_xlabel("against the baseline (ratio)", fontsize=style.SMALL)
            top.tick_params(labelsize=style.SMALL)
        self._ratio_texts(beside)
        style.title(figure, f"{style.words(self.metric)} under each binding")
        style.foot(figure, self.key(), self._remarks(axes))

    def _remarks(self, axes: Axes) -> str:
        said = []
        if not self.enough:
            said.append(style.few(self.blocks))
        elif any(row["decision"] == judge.DIFFERENT for row in self.ratios.values()):
            said.append("bold: differs from its baseline by more than the A/A control does")
        if axes.get_xlim()[0] > 0:
            said.append("the axis does not start at 0")
        return " · ".join(said)

    def _baseline(self, axes: Axes, place: int, row: Row) -> None:
        """The baseline's mean, and the A/A interval about it."""
        ratio = self.ratios.get(row["cell"])
        base = self.means.get(ratio["baseline"] if ratio else row["cell"])
        if base is None or (ratio is None and row["role"] != BASELINE):
            return
        own = (one for one in self.ratios.values() if one["baseline"] == row["cell"])
        known = ratio or next(own, {})
        if self.enough and known.get("aa_low") is not None:
            low, high = base * known["aa_low"], base * known["aa_high"]
            axes.add_patch(
                Rectangle((low, place - 0.5), high - low, 1, facecolor=_BAND, edgecolor="none",
                          zorder=0.5, gid="aa")
            )  # fmt: skip
        axes.plot([base, base], [place - 0.5, place + 0.5], color=style.INK, linewidth=0.8,
                  zorder=1, gid="baseline")  # fmt: skip

    def _points(self, axes: Axes, place: int, row: Row) -> None:
        """Every trial with a value, in running order from the row's top to its bottom."""
        mine = self.trials.filter(
            (pl.col("cell") == row["cell"]) & pl.col("value").is_not_null()
        ).sort("trial")
        mine = mine.with_columns(at=pl.Series(rows.spread(len(mine)), dtype=pl.Float64) + place)
        colour = style.PALETTE[style.family(row["binding"], row["role"])]
        for grade in GRADES:
            spots = mine.filter(pl.col("grade") == grade)
            if len(spots):
                look = style.grade_look(grade, colour)
                if grade == VERIFIED:
                    look["alpha"] = 0.4 if self.enough else 0.9
                axes.scatter(spots["value"], spots["at"], s=14 if grade == ERROR else 9, zorder=2,
                             gid=f"trials-{grade}", **look)  # fmt: skip

    def _span(self, axes: Axes) -> None:
        values = self.trials["value"].drop_nulls().to_list()
        if self.enough:
            values += [row[end] for row in self.rows for end in ("low", "high")
                       if row[end] is not None]  # fmt: skip
        if not values:
            axes.text(0.5, 0.5, "no usable value", transform=axes.transAxes, ha="center")
            return
        low, high = min(values), max(values)
        middle = (low + high) / 2
        half = max((high - low) / 2, LEAST_SPAN / 2 * abs(middle)) * 1.06
        axes.set_xlim(middle - half, middle + half)

    def _ratio_texts(self, beside: Axes) -> None:
        rows.texts(beside, {"ratio to baseline": 0.0, "trials": _COUNTS})
        halves = [(one["high"] - one["low"]) / 2 for one in self.ratios.values()
                  if one["low"] is not None]  # fmt: skip
        decimals = 3 if self.enough and halves and median(halves) < 0.01 else 2
        for place, row in enumerate(self.rows):
            ratio = self.ratios.get(row["cell"])
            bold = self.enough and ratio is not None and ratio["decision"] == judge.DIFFERENT
            rows.text(beside, 0.0, place, self._ratio_words(row, ratio, decimals), gid="ratio",
                      fontweight="bold" if bold else "normal")  # fmt: skip
            count = str(row["n"])
            count += f", {row['n_error']} ×" if row["n_error"] else ""
            count += f", {row['n_unverified']} ○" if row["n_unverified"] else ""
            rows.text(beside, _COUNTS, place, count, gid="count", color=style.FAINT)

    def _ratio_words(self, row: Row, ratio: Row | None, decimals: int) -> str:
        if ratio is None:
            return "1" if row["role"] == BASELINE else "–"
        if ratio["ratio"] is None:
            return "no ratio"
        words = f"{ratio['ratio']:.{decimals}f}"
        if not self.enough or ratio["low"] is None:
            return words
        return f"{words} [{ratio['low']:.{decimals}f}, {ratio['high']:.{decimals}f}]"

    def key(self) -> list[Line2D | Patch]:
        """The key of what is drawn."""
        entries: list[Line2D | Patch] = []
        if VERIFIED in self.grades:
            entries.append(style.point("one trial", markersize=3))
        if UNVERIFIED in self.grades:
            entries.append(style.point("unverified trial", markersize=3, **style.UNVERIFIED_LOOK))
        if ERROR in self.grades:
            entries.append(style.point("error: left out", **style.ERROR_LOOK))
        if self.enough:
            entries.append(style.point("mean, 95 % interval", linestyle="-", color=style.INK))
        entries.append(Line2D([], [], color=style.INK, linewidth=0.8, label="its baseline"))
        if self.enough and any(row["aa_low"] is not None for row in self.ratios.values()):
            entries.append(Patch(facecolor=_BAND, label="A/A interval"))
        return entries


def _label(row: Mapping[str, Any]) -> str:
    text = row["label"] or row["cell"]
    if row["role"] == BASELINE:
        return f"{text} (baseline)"
    return f"{text} (A/A control)" if row["role"] == CONTROL and "control" not in text else text
