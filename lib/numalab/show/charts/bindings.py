"""Bindings compared: every trial, the mean with its interval, and the ratio to the baseline."""

from __future__ import annotations

from statistics import median
from typing import Any, Dict, List, Mapping, Optional, Tuple

import polars as pl
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from numalab.analysis import judge
from numalab.analysis.evidence import BLOCKS_NEEDED

from .. import tables
from . import style

LEAST_SPAN = 0.1  # of the middle: a narrower axis would blow up noise
_ROW = 0.2  # inches per binding
_COUNTS = 0.62  # of the width beside: where the counts start
_BESIDE = 2.2  # inches for the ratios and counts beside the points


@style.styled
def bindings_figure(
    summary: pl.DataFrame, ratios: pl.DataFrame, trials: pl.DataFrame, better: Optional[str]
) -> style.Picture:
    """Draw one metric under every binding, best on top; up to 40 cells stay legible.

    ``summary`` and ``ratios`` are those of ``numalab.analysis.statistics`` and ``trials`` the
    measurement rows, all three of one run, one metric and one point (Fault otherwise, and without
    a row). Every trial is a faint point (unverified: open; error with a value: a red ×, never in a
    mean); the marker is the mean of the cell with its 95 % interval. In each row a tick marks
    the mean of that cell's own baseline and a grey band the A/A control's interval about it:
    what differs by less does not differ. On the right, the ratio to the baseline, paired by
    block, with its interval. With fewer than 6 blocks there are points only, and a note.
    """
    metric = style.one_quantity(trials)
    style.one_quantity(summary)
    unit = trials["unit"][0]
    blocks = trials["block"].n_unique()
    enough = blocks >= BLOCKS_NEEDED
    lower_is_better = better == "lower"
    rows = _sorted_rows(summary, lower_is_better)
    means = {row["cell"]: row["mean"] for row in rows}
    ratio_of = {row["cell"]: row for row in ratios.iter_rows(named=True)}
    baselines = {row["baseline"] for row in ratio_of.values()}

    base = means.get(next(iter(baselines))) if len(baselines) == 1 else None
    key = _key(enough, set(trials.filter(pl.col("value").is_not_null())["grade"]), ratio_of)
    key_columns = len(key) if len(key) <= 4 else 3
    labels = [_label(row) for row in rows]

    # The places are fixed in inches: rows keep their height however many there are.
    top, bottom = 0.72 if base else 0.46, 0.66 + 0.16 * -(-len(key) // key_columns)
    left = max(style.text_width(label, style.SMALL) for label in labels) + 0.16
    height = _ROW * len(rows) + top + bottom
    figure = style.Picture(figsize=(style.WIDTH, height))
    box = (bottom / height, _ROW * len(rows) / height)
    end = style.WIDTH - _BESIDE
    axes = figure.add_axes((left / style.WIDTH, box[0], (end - left) / style.WIDTH, box[1]))
    beside = figure.add_axes(
        ((end + 0.12) / style.WIDTH, box[0], (_BESIDE - 0.12) / style.WIDTH, box[1]), sharey=axes
    )
    _bands(axes, rows, ratio_of, means, enough)
    _trials(axes, rows, trials, faint=enough)
    if enough:
        _means(axes, rows)
    _span(axes, rows, trials, enough)
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.xaxis.set_major_formatter(style.thousands())
    if axes.get_xlim()[1] >= 10_000:  # numbers this wide would run into each other
        axes.xaxis.set_major_locator(MaxNLocator(5))
    words = tables.plain(metric)
    axes.set_xlabel(f"{words} ({unit})" + (f", {better} is better" if better else ""))
    if base:
        _ratio_axis(axes, base)
    _ratio_texts(beside, rows, ratio_of, enough)
    remarks = ["the axis does not start at 0"] if axes.get_xlim()[0] > 0 else []
    if not enough:
        remarks.insert(
            0, f"too few blocks to decide: {blocks} of the {BLOCKS_NEEDED} that are needed"
        )
    elif any(row["decision"] == judge.DIFFERENT for row in ratio_of.values()):
        remarks.insert(0, "bold: differs from its baseline by more than the A/A control does")
    edge = 0.08 / style.WIDTH
    figure.text(edge, 1 - 0.08 / height, f"{style.words(metric)} under each binding",
                fontsize=style.TITLE, fontweight="bold", va="top")  # fmt: skip
    figure.legend(
        handles=key, loc="lower left", bbox_to_anchor=(edge * 0.6, 0.2 / height), ncols=key_columns,
        borderaxespad=0, columnspacing=1.4, handlelength=1.4,
    )  # fmt: skip
    figure.text(edge, 0.07 / height, " · ".join(remarks), fontsize=style.SMALL, color=style.FAINT)
    return figure


def _sorted_rows(summary: pl.DataFrame, lower_is_better: bool) -> List[Dict[str, Any]]:
    """Best first; cells without a usable value last, by name."""
    rows = list(summary.iter_rows(named=True))
    sign = 1 if lower_is_better else -1
    return sorted(
        rows, key=lambda row: (row["mean"] is None, sign * (row["mean"] or 0), row["cell"])
    )


def _label(row: Mapping[str, Any]) -> str:
    text = row["label"] or row["cell"]
    if row["role"] == "control" and "control" not in text:
        text += " (A/A control)"
    elif row["role"] == "baseline":
        text += " (baseline)"
    return text if len(text) <= 34 else text[:33] + "…"


def _bands(
    axes: Any, rows: List[Dict[str, Any]], ratio_of: Mapping[str, Mapping[str, Any]],
    means: Mapping[str, Optional[float]], enough: bool,
) -> None:  # fmt: skip
    """Per row: the baseline's mean, and the A/A interval about it."""
    for place, row in enumerate(rows):
        ratio = ratio_of.get(row["cell"])
        base = means.get(ratio["baseline"] if ratio else row["cell"])
        if base is None or (ratio is None and row["role"] != "baseline"):
            continue
        known = ratio or next(
            (other for other in ratio_of.values() if other["baseline"] == row["cell"]), {}
        )
        if enough and known.get("aa_low") is not None:
            low, high = base * known["aa_low"], base * known["aa_high"]
            axes.add_patch(
                Rectangle((low, place - 0.5), high - low, 1, facecolor="#D0D0D0", edgecolor="none",
                          zorder=0.5, gid="aa")
            )  # fmt: skip
        axes.plot([base, base], [place - 0.5, place + 0.5], color=style.INK, linewidth=0.8,
                  zorder=1, gid="baseline")  # fmt: skip


def _trials(axes: Any, rows: List[Dict[str, Any]], trials: pl.DataFrame, faint: bool) -> None:
    """Every trial with a value, in running order from the row's top to its bottom."""
    for place, row in enumerate(rows):
        mine = trials.filter((pl.col("cell") == row["cell"]) & pl.col("value").is_not_null())
        mine = mine.sort("trial")
        colour = style.PALETTE[style.family(row["cell"], row["role"])]
        step = 0.5 / max(len(mine) - 1, 1)
        for grade in ("verified", "unverified", "error"):
            spots = [
                (one["value"], place - (0.25 if len(mine) > 1 else 0) + step * index)
                for index, one in enumerate(mine.iter_rows(named=True))
                if one["grade"] == grade
            ]
            if not spots:
                continue
            looks: Dict[str, Any] = {
                "verified": {"color": colour, "alpha": 0.4 if faint else 0.9, "linewidths": 0},
                "unverified": {"facecolors": "white", "edgecolors": colour, "linewidths": 0.7},
                "error": {"color": style.VERMILLION, "marker": "x", "linewidths": 1.1},
            }[grade]
            size = 14 if grade == "error" else 9
            axes.scatter(*zip(*spots), s=size, zorder=2, gid=f"trials-{grade}", **looks)


def _means(axes: Any, rows: List[Dict[str, Any]]) -> None:
    for place, row in enumerate(rows):
        if row["mean"] is None:
            continue
        kind = style.family(row["cell"], row["role"])
        error = None
        if row["low"] is not None:
            error = [[row["mean"] - row["low"]], [row["high"] - row["mean"]]]
        axes.errorbar(
            [row["mean"]], [place], xerr=error, fmt=style.MARKERS[kind], color=style.PALETTE[kind],
            markersize=5, markeredgecolor="white", markeredgewidth=0.5, elinewidth=1.6,
            capsize=2.2, zorder=3,
        )  # fmt: skip


def _span(axes: Any, rows: List[Dict[str, Any]], trials: pl.DataFrame, enough: bool) -> None:
    values = [v for v in trials["value"].to_list() if v is not None]
    if enough:
        values += [row[end] for row in rows for end in ("low", "high") if row[end] is not None]
    if not values:
        axes.text(0.5, 0.5, "no usable value", transform=axes.transAxes, ha="center")
        return
    low, high = min(values), max(values)
    middle = (low + high) / 2
    half = max((high - low) / 2, LEAST_SPAN / 2 * abs(middle)) * 1.06
    axes.set_xlim(middle - half, middle + half)


def _ratio_axis(axes: Any, base: float) -> None:
    """A second scale on top, where all cells are compared with the same baseline."""
    top = axes.secondary_xaxis("top", functions=(lambda v: v / base, lambda r: r * base))
    top.set_xlabel("against the baseline (ratio)", fontsize=style.SMALL)
    top.tick_params(labelsize=style.SMALL)


def _ratio_texts(
    beside: Any, rows: List[Dict[str, Any]], ratio_of: Mapping[str, Mapping[str, Any]], enough: bool
) -> None:
    beside.set_xlim(0, 1)
    beside.set_axis_off()
    halves = [
        (ratio["high"] - ratio["low"]) / 2
        for ratio in ratio_of.values()
        if ratio["low"] is not None
    ]
    decimals = 3 if enough and halves and median(halves) < 0.01 else 2
    for x, text in ((0.0, "ratio to baseline"), (_COUNTS, "trials")):
        beside.text(x, -0.6, text, fontsize=style.TINY, color=style.FAINT, va="bottom")
    for place, row in enumerate(rows):
        ratio = ratio_of.get(row["cell"])
        words, weight = _ratio_words(row, ratio, enough, decimals)
        beside.text(0.0, place, words, fontsize=style.SMALL, va="center_baseline",
                    fontweight=weight, gid="ratio")  # fmt: skip
        count = str(row["n"])
        if row["n_error"]:
            count += f", {row['n_error']} ×"
        if row["n_unverified"]:
            count += f", {row['n_unverified']} ○"
        beside.text(_COUNTS, place, count, fontsize=style.SMALL, va="center_baseline",
                    color=style.FAINT, gid="count")  # fmt: skip


def _ratio_words(
    row: Mapping[str, Any], ratio: Optional[Mapping[str, Any]], enough: bool, decimals: int
) -> Tuple[str, str]:
    if ratio is None:
        return ("1", "normal") if row["role"] == "baseline" else ("–", "normal")
    if ratio["ratio"] is None:
        return "no ratio", "normal"
    words = f"{ratio['ratio']:.{decimals}f}"
    if not enough or ratio["low"] is None:
        return words, "normal"
    words += f" [{ratio['low']:.{decimals}f}, {ratio['high']:.{decimals}f}]"
    return words, "bold" if ratio["decision"] == judge.DIFFERENT else "normal"


def _key(
    enough: bool, grades: set, ratio_of: Mapping[str, Mapping[str, Any]]
) -> List[Any]:  # fmt: skip
    def point(label: str, **look: Any) -> Line2D:
        return Line2D([], [], linestyle="none", label=label, **look)

    key: List[Any] = []
    if "verified" in grades:
        key.append(point("one trial", marker="o", markersize=3, color=style.GREY))
    if "unverified" in grades:
        key.append(point("unverified trial", marker="o", markersize=3, markerfacecolor="white",
                         color=style.GREY))  # fmt: skip
    if "error" in grades:
        key.append(point("error: left out", marker="x", markersize=4, color=style.VERMILLION))
    if enough:
        key.append(Line2D([], [], marker="o", markersize=4.5, color=style.INK, linewidth=1.4,
                          label="mean, 95 % interval"))  # fmt: skip
    key.append(Line2D([], [], color=style.INK, linewidth=0.8, label="its baseline"))
    if enough and any(row["aa_low"] is not None for row in ratio_of.values()):
        key.append(Patch(facecolor="#D0D0D0", label="A/A interval"))
    return key
