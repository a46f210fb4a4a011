"""Heat maps: node × node (latency, bandwidth, distance) and CPU × CPU (core-to-core latency).

Darker is worse in every matrix, whichever direction is better, on seaborn's ``mako``, which is
perceptually uniform and keeps its order in grey.
"""

from __future__ import annotations

import statistics
import string
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import seaborn
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import FigureBase
from matplotlib.patches import Rectangle

from numalab.agent import cpulist
from numalab.agent.contract import ERROR, MEASURED, UNVERIFIED, VERIFIED, Host
from numalab.agent.errors import Fault
from numalab.tables import number

from . import style
from .frames import to_pandas

ANNOTATED_CPUS = 24  # more CPUs than this leave no room for numbers in the cells
LEAST_SPAN = 0.1  # of the median: a narrower colour scale would paint noise as structure
_LEAST_TYPE = 4.5  # points: numbers that would have to be smaller are left out of their cells
_MOST_REASONS = 6

Pair = tuple[int, int]


def heat_map(
    axes: Axes,
    grid: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    side: float,
    *,
    better: str | None,
    texts: np.ndarray | None = None,
    bar: str = "",
    ends: tuple[float, float] | None = None,
) -> float:
    """Draw a grid of numbers (NaN: none) as a heat map; return the size of the type in its cells.

    ``side`` is the width of a cell in inches. ``texts`` stand in the cells as long as they can be
    read: the size is 0 where they cannot. ``bar`` labels a colour bar, "" has none; ``ends`` are
    those of the colour scale, else the data's.
    """
    known = grid[np.isfinite(grid)]
    low, high = ends or scale_ends(known.tolist())
    size = 0.0
    if texts is not None:
        widest = max((style.text_width(str(one), style.BASE) for one in texts.flat), default=0)
        size = min(style.BASE, style.BASE * (side - 0.04) / max(widest, 0.01), 60 * side)
        size = size if size >= _LEAST_TYPE else 0.0
    frame = pl.DataFrame(grid, schema=[str(place) for place in range(len(columns))], orient="row")
    seaborn.heatmap(
        to_pandas(frame), ax=axes, square=True, vmin=low, vmax=high, cmap=colour_scale(better),
        linewidths=0.8 if len(rows) <= ANNOTATED_CPUS else 0, linecolor="white", fmt="",
        annot=texts if size else None, annot_kws={"fontsize": size, "va": "center_baseline"},
        yticklabels=list(rows), xticklabels=list(columns), cbar=bool(bar) and known.size > 0,
        cbar_kws={"label": bar, "fraction": 0.06, "pad": 0.03, "extend": _extend(known, low, high)},
        rasterized=len(rows) > 2 * ANNOTATED_CPUS,
    )  # fmt: skip
    axes.tick_params(length=0, rotation=0, labelsize=style.SMALL)
    axes.set_facecolor(style.PALE)
    if axes.collections and axes.collections[0].colorbar is not None:
        axes.collections[0].colorbar.outline.set_visible(False)
    return size


def _extend(known: np.ndarray, low: float, high: float) -> str:
    below, above = bool((known < low).any()), bool((known > high).any())
    return {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[below, above]


def scale_ends(known: Sequence[float]) -> tuple[float, float]:
    """Return the ends of a colour scale: the data's, but never closer than ``LEAST_SPAN``."""
    if not known:
        return 0.0, 1.0
    low, high, middle = min(known), max(known), statistics.median(known)
    short = LEAST_SPAN * middle - (high - low)
    return (low - short / 2, high + short / 2) if short > 0 else (low, high)


def colour_scale(better: str | None) -> Colormap:
    """Return seaborn's ``mako``, dark for worse, without its black end, where no step is seen."""
    shades = seaborn.color_palette("mako_r", as_cmap=True)(np.linspace(0, 0.85, 256))
    colours = ListedColormap(shades if better != "higher" else shades[::-1])
    return colours.with_extremes(bad=style.PALE)


# --- node by node -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One pair of nodes: the value to show (None where no trial has one), its grade, and why."""

    value: float | None
    grade: str
    reason: str = ""


@dataclass(frozen=True)
class Panel:
    """A host's matrix by (row, column); ``badge`` of its evidence, ``host`` "" for a run's own."""

    host: str
    entries: Mapping[Pair, Entry]
    badge: str = MEASURED

    @property
    def rows(self) -> list[int]:
        """The nodes of its rows."""
        return sorted({row for row, _ in self.entries})

    @property
    def columns(self) -> list[int]:
        """The nodes of its columns."""
        return sorted({column for _, column in self.entries})

    @property
    def size(self) -> int:
        """The greater of the counts of rows and columns."""
        return max(len(self.rows), len(self.columns))


def pairs(host: str, frame: pl.DataFrame, badge: str = MEASURED) -> Panel:
    """Return measurement rows by CPU node and memory node as a panel.

    A value is the median of the pair's verified trials, of its unverified ones where there is no
    other, None where every trial failed. Rows that name several nodes (interleave) are left out.
    """
    one = pl.col("cpu_nodes", "memory_nodes").str.contains(r"^\d+$")
    entries: dict[Pair, Entry] = {}
    for (row, column), trials in frame.filter(pl.all_horizontal(one)).group_by(
        "cpu_nodes", "memory_nodes", maintain_order=True
    ):
        pair = int(str(row)), int(str(column))
        for grade in (VERIFIED, UNVERIFIED):
            kept = trials.filter((pl.col("grade") == grade) & pl.col("value").is_not_null())
            if len(kept):
                value = statistics.median(kept["value"])
                entries[pair] = Entry(value, grade, kept["reason"][0] or "")
                break
        else:
            entries[pair] = Entry(None, ERROR, trials["reason"][0] or "no reason was recorded")
    return Panel(host, entries, badge)


def node_matrix(frame: pl.DataFrame, title: str, better: str | None) -> style.Picture:
    """Draw a quantity for every pair of CPU node (rows) and memory node (columns).

    ``frame`` holds measurement rows of one metric and point; see ``pairs``. Unverified pairs are
    hatched, × stands where every trial failed, a dash where there is none; letters refer to the
    reasons below. Raises Fault when the frame mixes metrics, points or units, or has no pair.
    """
    style.one_quantity(frame)
    panel = pairs("", frame)
    if not panel.entries:
        raise Fault(
            f"no row for {title!r} names one CPU node and one memory node",
            "a matrix needs trials whose cpu_nodes and memory_nodes hold one node number each",
        )
    return matrices([panel], title, frame["unit"][0], better, "CPUs on node", "memory on node")


def matrices(
    panels: Sequence[Panel], title: str, unit: str, better: str | None, rows: str, columns: str
) -> style.Picture:
    """Draw one matrix per host, side by side, each on a colour scale of its own.

    Darker is worse. ``unit`` "" is a distance without unit. The range of each host's numbers
    stands beside its name. Raises Fault when no panel has a cell.
    """
    panels = [panel for panel in panels if panel.entries]
    if not panels:
        raise Fault(f"there is nothing to draw of {title!r}", "no host has a pair of nodes")
    most = max(panel.size for panel in panels)
    across = min(len(panels), 3 if most <= 4 else 2)
    side = min(0.72, (style.WIDTH / max(across, 1) - 1.0) / most)
    side = side if len(panels) > 1 else min(0.72, (style.WIDTH - 1.5) / most)
    width = style.WIDTH if len(panels) > 1 else min(style.WIDTH, max(side * most + 1.75, 3.4))
    lines = -(-len(panels) // across)
    codes = _codes(panels)
    remarks = _remarks(panels, codes, width)

    def paint(figure: FigureBase) -> None:
        made = figure.subplots(lines, across, squeeze=False)
        for axes in made.flat[len(panels) :]:
            axes.set_axis_off()
        for axes, panel in zip(made.flat, panels):
            _panel(axes, panel, unit, better, side, codes, alone=len(panels) == 1)
            axes.set_xlabel(columns, fontsize=style.SMALL)
            axes.set_ylabel(rows, fontsize=style.SMALL)
        style.title(figure, f"{title} ({unit})" if unit else title)
        style.foot(figure, note="\n".join(remarks))

    tall = sum(
        max(len(one.rows) for one in panels[at : at + across]) * side + 0.8
        for at in range(0, len(panels), across)
    )
    return style.Picture(0.35 + tall + 0.15 * len(remarks), paint, width)


def _panel(
    axes: Axes, panel: Panel, unit: str, better: str | None, side: float,
    codes: Mapping[tuple[str, str], str], *, alone: bool,
) -> None:  # fmt: skip
    rows, columns, entries = panel.rows, panel.columns, panel.entries
    absent = Entry(None, "")
    shown = [[entries.get((row, column), absent) for column in columns] for row in rows]
    grid = np.array([[np.nan if e.value is None else e.value for e in line] for line in shown])
    known = grid[np.isfinite(grid)].tolist()
    digits = 4 if alone and panel.size <= 4 else 3
    texts = np.array(
        [["" if e.value is None else number(e.value, digits) if unit else f"{e.value:.0f}"
          for e in line] for line in shown]
    )  # fmt: skip
    worse = "darker is worse" if better else "darker is more"
    size = heat_map(
        axes, grid, list(map(str, rows)), list(map(str, columns)), side, better=better,
        texts=texts, bar=f"{unit} ({worse})" if alone and panel.size > 1 else "",
    )  # fmt: skip
    for i, line in enumerate(shown):
        for j, entry in enumerate(line):
            _mark(axes, i, j, entry, codes.get((entry.grade, entry.reason)), size or style.TINY)
    if panel.host and known:
        _name_host(axes, panel, unit, sorted({min(known), max(known)}))


def _name_host(axes: Axes, panel: Panel, unit: str, ends: Sequence[float]) -> None:
    """Write above a panel whose it is, from where to where its values go, and its badge."""
    span = f"{' to '.join(number(end) if unit else f'{end:.0f}' for end in ends)} {unit}".strip()
    plain = panel.badge == MEASURED
    axes.set_title(panel.host, fontweight="bold", pad=13)
    axes.text(0, 1.02, span if plain else f"{span} · {panel.badge}", transform=axes.transAxes,
              fontsize=style.SMALL, va="bottom",
              color=style.FAINT if plain else style.VERMILLION)  # fmt: skip


def _mark(axes: Axes, i: int, j: int, entry: Entry, code: str | None, size: float) -> None:
    """Mark a pair that has no value, or whose placement was not proven."""
    if entry.value is None:
        failed = entry.grade == ERROR
        word, colour = ("×", style.VERMILLION) if failed else ("–", style.FAINT)
        axes.add_patch(Rectangle((j, i), 1, 1, facecolor=style.PALE, edgecolor="white",
                                 hatch="xxx" if failed else None))  # fmt: skip
        style.halo(axes.text(j + 0.5, i + 0.5, word, ha="center", va="center", fontsize=size,
                             fontweight="bold", color=colour))  # fmt: skip
    elif entry.grade != VERIFIED:
        axes.add_patch(Rectangle((j, i), 1, 1, facecolor="none", edgecolor="white", hatch="////"))
    if code:
        style.halo(axes.text(j + 0.93, i + 0.06, code, ha="right", va="top", fontsize=style.TINY,
                             fontweight="bold", color=style.VERMILLION))  # fmt: skip


def _codes(panels: Sequence[Panel]) -> dict[tuple[str, str], str]:
    """A letter for each reason why a pair is not verified."""
    met = sorted({(entry.grade, entry.reason) for panel in panels
                  for entry in panel.entries.values() if entry.grade != VERIFIED})  # fmt: skip
    return {key: string.ascii_lowercase[place] if place < 26 else "z+"
            for place, key in enumerate(met)}  # fmt: skip


def _remarks(
    panels: Sequence[Panel], codes: Mapping[tuple[str, str], str], width: float
) -> list[str]:
    lines: list[str] = []
    for (grade, reason), code in list(codes.items())[:_MOST_REASONS]:
        lines += textwrap.wrap(f"{code}  {grade}: {reason}", int(width * 17),
                               subsequent_indent="    ")  # fmt: skip
    if len(codes) > _MOST_REASONS:
        lines.append(f"and {len(codes) - _MOST_REASONS} more reasons, in the run's journal")
    if any(len(panel.entries) < len(panel.rows) * len(panel.columns) for panel in panels):
        lines.append("–  not measured")
    if any(grade == UNVERIFIED for grade, _ in codes):
        lines.append("hatched: the placement could not be proved")
    return lines


# --- core by core -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Segment:
    """CPUs that stand together: their name, the first and one after the last, a new package."""

    name: str
    start: int
    end: int
    package: bool


def core_matrix(
    frame: pl.DataFrame,
    topology: Host | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    title: str = "Core-to-core latency",
) -> style.Picture:
    """Draw the latency between every two CPUs, up to 256 × 256 and beyond.

    ``frame`` holds ``core_latency`` rows: ``x`` and ``y`` (CPU numbers), ``value`` (one way, ns),
    ``grade`` (errors are left out). A cell is the median of its trials; a pair measured in one
    direction is shown in both. With a ``topology``, CPUs are ordered by package, node, shared L3
    and core, and the borders of nodes and packages are drawn; ``groups`` (lists of CPUs) are
    outlined. Numbers stand in the cells up to 24 CPUs.
    """
    style.one_quantity(frame, ("metric", "unit"))
    named = frame.filter(pl.col("x").is_not_null() & pl.col("y").is_not_null())
    cpus = sorted({int(cpu) for cpu in (*named["x"], *named["y"])})
    if not cpus:
        raise Fault("no row names a pair of CPUs", "core_latency rows carry them in x and y")
    order, segments, word = _order(cpus, topology)
    place = {cpu: index for index, cpu in enumerate(order)}
    grid = np.full((len(order), len(order)), np.nan)
    medians = named.filter(pl.col("grade") != ERROR).group_by("x", "y").agg(
        pl.col("value").median()
    )  # fmt: skip
    for x, y, value in medians.drop_nulls().iter_rows():
        grid[place[int(x)], place[int(y)]] = value
    grid = np.where(np.isnan(grid), grid.T, grid)
    np.fill_diagonal(grid, np.nan)
    known = grid[np.isfinite(grid)]
    many = len(order)
    side = min(4.9, max(0.36 * many, 1.3))
    absent = int(np.isnan(grid).sum() - many) // 2
    remarks = [f"grey off the diagonal: {absent} pairs without a valid trial"] if absent else []
    remarks += ["orange: groups that the latencies show"] if groups else []

    def paint(figure: FigureBase) -> None:
        axes = figure.subplots()
        texts = None
        if many <= ANNOTATED_CPUS:
            texts = np.array([[f"{v:.0f}" if np.isfinite(v) else "" for v in row] for row in grid])
        ends = scale_ends(np.percentile(known, (1, 99)).tolist()) if known.size else None
        names = list(map(str, order))
        heat_map(axes, grid, names, names, side / many, better="lower", texts=texts,
                 bar="ns (darker is worse)", ends=ends)  # fmt: skip
        _label_cpus(axes, order, segments, word)
        for group in groups or ():
            _outline(axes, sorted(place[cpu] for cpu in group if cpu in place))
        style.title(figure, f"{title} (ns)")
        style.foot(figure, note=" · ".join(remarks))

    return style.Picture(side + 1.15, paint, min(style.WIDTH, max(side + 2.2, 3.4)))


def _order(cpus: list[int], topology: Host | None) -> tuple[list[int], list[_Segment], str]:
    """CPUs in drawing order, their segments, and what the segments are."""
    if topology is None:
        return cpus, [], "CPU"

    def key(number: int) -> tuple[int, ...]:
        cpu = topology.cpu.get(number)
        levels = (cpu.package, cpu.node, cpu.l3) if cpu else (None, None, None)
        core = cpulist.parse(cpu.siblings)[0] if cpu and cpu.siblings else number
        return (*(-1 if level is None else level for level in levels), core, number)

    order = sorted(cpus, key=key)
    keys = [key(number) for number in order]
    for depth, word in ((2, "node"), (1, "package"), (3, "L3")):
        starts = [0] + [i for i in range(1, len(keys)) if keys[i][:depth] != keys[i - 1][:depth]]
        if 1 < len(starts) <= 32:
            segments: list[_Segment] = []
            for start, end in zip(starts, [*starts[1:], len(keys)], strict=True):
                new = start == 0 or keys[start][0] != keys[start - 1][0]
                name = str(len(segments)) if word == "L3" else str(keys[start][depth - 1])
                segments.append(_Segment(name, start, end, new))
            return order, segments, word
    return order, [], "CPU"


def _label_cpus(axes: Axes, order: Sequence[int], segments: Sequence[_Segment], word: str) -> None:
    many = len(order)
    for one in segments:
        if one.start:
            for line in (axes.axhline, axes.axvline):
                line(one.start, color="white", linewidth=2.2 if one.package else 1.0)
                line(one.start, color=style.INK, linewidth=1.2 if one.package else 0.5)
    if many <= ANNOTATED_CPUS:
        what, small = "CPU", many > 16
    elif segments:
        middle = [(one.start + one.end) / 2 for one in segments]
        axes.set_xticks(middle, [one.name for one in segments])
        axes.set_yticks(middle, [f"{one.name}: {cpulist.brief(order[one.start:one.end], 18)}"
                                 for one in segments])  # fmt: skip
        what, small = f"CPUs of {word}", len(segments) > 16
    else:
        ticks = list(range(0, many, 2 ** max(2, (many // 16).bit_length())))
        for set_ticks in (axes.set_xticks, axes.set_yticks):
            set_ticks([tick + 0.5 for tick in ticks], [str(order[tick]) for tick in ticks])
        what, small = "CPU", False
    axes.set(xlabel=f"to {what}", ylabel=f"from {what}")
    axes.tick_params(labelsize=style.TINY if small else style.SMALL)


def _outline(axes: Axes, places: Sequence[int]) -> None:
    """Draw a square round every unbroken run of a group's places on the diagonal."""
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    for run in runs:
        for colour, width in (("white", 2.6), (style.ORANGE, 1.4)):
            axes.add_patch(
                Rectangle((run[0], run[0]), len(run), len(run), facecolor="none",
                          edgecolor=colour, linewidth=width, clip_on=False)
            )  # fmt: skip
