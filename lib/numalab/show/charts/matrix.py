"""Heat maps: node × node (latency, bandwidth) and CPU × CPU (core-to-core latency).

Darker is worse in every matrix, whichever direction is better, on seaborn's ``mako``, which is
perceptually uniform and keeps its order in grey.
"""

from __future__ import annotations

import statistics
import textwrap
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import polars as pl
import seaborn
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.patches import Rectangle

from numalab.agent import cpulist
from numalab.agent.contract import Host
from numalab.agent.errors import Fault

from ..tables import number
from . import style
from .frames import to_pandas

ANNOTATED_CPUS = 24  # more CPUs than this leave no room for numbers in the cells
LEAST_SPAN = 0.1  # of the median: a narrower colour scale would paint noise as structure
_MOST_REASONS = 6


@style.styled
def node_matrix(frame: pl.DataFrame, title: str, better: Optional[str]) -> style.Picture:
    """Draw a quantity for every pair of CPU node (rows) and memory node (columns).

    ``frame`` holds measurement rows of one metric and point: ``cpu_nodes`` and ``memory_nodes``
    (rows that name several nodes, as interleave does, are left out), the number in the column
    that ``value`` names, in ``unit``, ``grade`` and ``reason``. A cell is the median of its
    verified trials; of its unverified ones, hatched, where there is no other; × where every
    trial failed; a dash where there is none. Letters refer to the reasons below. Raises Fault
    when the frame mixes metrics, points or units, or has no pair at all.
    """
    style.one_quantity(frame)
    value, unit = "value", frame["unit"][0]
    cells = pair_cells(frame, value)
    if not cells:
        raise Fault(
            f"no row for {title!r} names one CPU node and one memory node",
            "a matrix needs trials whose cpu_nodes and memory_nodes hold one node number each",
        )
    rows = sorted({row for row, _ in cells})
    columns = sorted({column for _, column in cells})
    many = max(len(rows), len(columns))
    shown = pl.DataFrame(
        {
            str(column): pl.Series(
                [cells.get((row, column), _NO_CELL)[0] for row in rows], dtype=pl.Float64
            )
            for column in columns
        }
    )
    known = [cell[0] for cell in cells.values() if cell[0] is not None]
    lower_is_better = better == "lower"
    digits = 4 if many <= 4 else 3
    codes: Dict[Tuple[str, str], str] = {}
    side = min(0.72, (style.WIDTH - 1.5) / many)
    size = style.BASE if side > 0.5 else style.SMALL if side > 0.36 else style.TINY
    heading = f"{title} ({unit})"
    single = many == 1
    width = min(style.WIDTH, max(side * len(columns) + (0.9 if single else 1.75), 3.4))
    marked = {
        pair: (grade, reason) for pair, (_, grade, reason) in cells.items() if grade != "verified"
    }
    for key in sorted(set(marked.values())):
        codes[key] = chr(ord("a") + len(codes)) if len(codes) < 26 else "z+"
    remarks = _reasons(codes, width)
    if any((row, column) not in cells for row in rows for column in columns):
        remarks.append("–  not measured")
    if marked and any(grade == "unverified" for grade, _ in marked.values()):
        remarks.append("hatched: the placement could not be proved")
    figure = style.picture(side * len(rows) + 1.05 + 0.14 * len(remarks), width)
    axes = figure.subplots()
    low, high = scale_ends(known)
    seaborn.heatmap(
        to_pandas(shown), ax=axes, square=True, cbar=not single and bool(known), vmin=low,
        vmax=high, cmap=colour_scale(lower_is_better), linewidths=0.8, linecolor="white",
        annot=np.array([[number(v, digits) if v is not None else "" for v in shown.row(i)]
                        for i in range(len(rows))]),
        fmt="", annot_kws={"fontsize": size}, yticklabels=[str(row) for row in rows],
        xticklabels=[str(column) for column in columns],
        cbar_kws={"label": f"{unit} (darker is {'worse' if better else 'less'})", "fraction": 0.06, "pad": 0.03},
    )  # fmt: skip
    axes.set(xlabel="memory on node", ylabel="CPUs on node")
    axes.tick_params(length=0, rotation=0)
    axes.set_facecolor("white")
    if axes.collections and axes.collections[0].colorbar is not None:
        axes.collections[0].colorbar.outline.set_visible(False)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            cell = cells.get((row, column), _NO_CELL)
            if cell[0] is None:
                failed = (row, column) in cells
                axes.add_patch(_overlay(j, i, style.PALE, "xxx" if failed else None))
                mark = axes.text(j + 0.5, i + 0.5, "×" if failed else "–", ha="center",
                                 va="center", fontsize=size, fontweight="bold",
                                 color=style.VERMILLION if failed else style.FAINT)  # fmt: skip
                style.halo(mark)
            elif cell[1] != "verified":
                axes.add_patch(_overlay(j, i, "none", "////"))
            if (row, column) in marked:
                corner = axes.text(
                    j + 0.93, i + 0.06, codes[marked[row, column]], ha="right", va="top",
                    fontsize=style.TINY, fontweight="bold", color=style.VERMILLION,
                )  # fmt: skip
                style.halo(corner)
    style.title(figure, heading)
    style.note(figure, "\n".join(remarks))
    return figure


_NO_CELL: Tuple[Optional[float], str, str] = (None, "missing", "")


def pair_cells(
    frame: pl.DataFrame, value: str
) -> Dict[Tuple[int, int], Tuple[Optional[float], str, str]]:
    """Per pair of nodes: the value to show, its grade, and why it is not verified."""
    trials: Dict[Tuple[int, int], List[Tuple[Optional[float], str, str]]] = {}
    for row in frame.iter_rows(named=True):
        pair = (str(row["cpu_nodes"]), str(row["memory_nodes"]))
        if pair[0].isdigit() and pair[1].isdigit():
            grade = row.get("grade") or "verified"
            entry = (row[value], grade, row.get("reason") or "no reason was recorded")
            trials.setdefault((int(pair[0]), int(pair[1])), []).append(entry)
    cells = {}
    for pair, entries in trials.items():
        for wanted in ("verified", "unverified"):
            kept = [e for e in entries if e[1] == wanted and e[0] is not None]
            if kept:
                cells[pair] = (statistics.median(e[0] for e in kept), wanted, kept[0][2])
                break
        else:
            cells[pair] = (None, "error", entries[0][2])
    return cells


def scale_ends(known: Sequence[float]) -> Tuple[float, float]:
    """The ends of the colour scale: the data's, but never closer than ``LEAST_SPAN``."""
    if not known:
        return 0.0, 1.0
    low, high, middle = min(known), max(known), statistics.median(known)
    short = LEAST_SPAN * middle - (high - low)
    return (low - short / 2, high + short / 2) if short > 0 else (low, high)


def colour_scale(lower_is_better: bool) -> Colormap:
    """seaborn's ``mako``, dark for worse, without its black end, where steps are not seen."""
    shades = seaborn.color_palette("mako_r", as_cmap=True)(np.linspace(0, 0.85, 256))
    colours = ListedColormap(shades if lower_is_better else shades[::-1])
    return colours.with_extremes(bad=style.PALE)


def _overlay(column: int, row: int, face: str, hatch: Optional[str]) -> Rectangle:
    return Rectangle((column, row), 1, 1, facecolor=face, edgecolor="white", linewidth=0.8,
                     hatch=hatch)  # fmt: skip


def _reasons(codes: Mapping[Tuple[str, str], str], width: float) -> List[str]:
    lines: List[str] = []
    for (grade, reason), code in list(codes.items())[:_MOST_REASONS]:
        lines += textwrap.wrap(f"{code}  {grade}: {reason}", int(width * 17),
                               subsequent_indent="    ")  # fmt: skip
    if len(codes) > _MOST_REASONS:
        lines.append(f"and {len(codes) - _MOST_REASONS} more reasons, in the run's journal")
    return lines


@style.styled
def core_matrix(
    frame: pl.DataFrame,
    topology: Optional[Host] = None,
    groups: Optional[Sequence[Union[str, Sequence[int]]]] = None,
    title: str = "Core-to-core latency",
) -> style.Picture:
    """Draw the latency between every two CPUs, up to 256 × 256 and beyond.

    ``frame`` holds ``core_latency`` rows: ``x`` and ``y`` (CPU numbers), ``value`` (one way, ns),
    ``grade`` where there are trials (errors are left out). A cell is the median of its trials; a
    pair measured in one direction is shown in both. With a ``topology``, CPUs are ordered by
    package, node, shared L3 and core, and the borders of nodes and packages are drawn; ``groups``
    (lists of CPUs, or kernel CPU lists) are outlined. Numbers stand in the cells up to 24 CPUs.
    """
    style.one_quantity(frame, ("metric", "unit"))
    pairs: Dict[Tuple[int, int], List[float]] = {}
    cpus = set()
    for row in frame.select("x", "y", "value", *_graded(frame)).iter_rows(named=True):
        if row["x"] is None or row["y"] is None:
            continue
        key = (int(row["x"]), int(row["y"]))
        cpus.update(key)
        if row["value"] is not None and row.get("grade") != "error":
            pairs.setdefault(key, []).append(row["value"])
    if not cpus:
        raise Fault("no row names a pair of CPUs", "core_latency rows carry them in x and y")
    order, segments, word = _order(sorted(cpus), topology)
    place = {cpu: index for index, cpu in enumerate(order)}
    grid = np.full((len(order), len(order)), np.nan)
    for (x, y), values in pairs.items():
        grid[place[x], place[y]] = statistics.median(values)
    grid = np.where(np.isnan(grid), grid.T, grid)
    np.fill_diagonal(grid, np.nan)
    known = grid[np.isfinite(grid)]

    many = len(order)
    names = [str(cpu) for cpu in order]
    if many > ANNOTATED_CPUS and segments:
        names = [f"{name}: {_short(order[start:end])}" for name, start, end, _ in segments]
    # What stands beside the matrix: the rows' names, the axis' label, the colour bar.
    beside = max(style.text_width(name, style.SMALL) for name in names) + 1.35
    side = min(4.9, style.WIDTH - beside, max(0.36 * many, 1.3))
    figure = style.picture(side + 1.15, max(side + beside, 3.4))
    axes = figure.subplots()
    colours = colour_scale(lower_is_better=True)
    ends = tuple(np.percentile(known, (1, 99))) if known.size else ()
    low, high = scale_ends(list(ends))
    image = axes.imshow(grid, cmap=colours, vmin=low, vmax=high, interpolation="nearest")
    below = known.size and known.min() < low
    above = known.size and known.max() > high
    extend = {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}
    bar = figure.colorbar(image, ax=axes, label="ns (darker is worse)", fraction=0.05, pad=0.03,
                          extend=extend[int(bool(below)), int(bool(above))])  # fmt: skip
    bar.outline.set_visible(False)
    if many <= ANNOTATED_CPUS:
        for i, j in np.argwhere(np.isfinite(grid)):
            axes.text(j, i, f"{grid[i, j]:.0f}", ha="center", va="center",
                      fontsize=style.SMALL if many <= 16 else style.TINY - 0.5,
                      color="white" if style.is_dark(image.cmap(image.norm(grid[i, j])))
                      else style.INK)  # fmt: skip
    _label_cpus(axes, order, names, segments, word)
    for cpu_list in groups or ():
        named = cpulist.parse(cpu_list) if isinstance(cpu_list, str) else cpu_list
        _outline(axes, sorted(place[cpu] for cpu in named if cpu in place))
    absent = int(np.isnan(grid).sum() - many) // 2
    remarks = []
    if absent:
        remarks.append(f"grey off the diagonal: {absent} pairs without a valid trial")
    if groups:
        remarks.append("orange: groups that the latencies show")
    style.title(figure, f"{title} (ns)")
    style.note(figure, " · ".join(remarks))
    return figure


def _graded(frame: pl.DataFrame) -> List[str]:
    return ["grade"] if "grade" in frame.columns else []


def _order(
    cpus: List[int], topology: Optional[Host]
) -> Tuple[List[int], List[Tuple[str, int, int, bool]], str]:
    """CPUs in drawing order; segments (name, first, end, starts a package); what they are."""
    if topology is None:
        return cpus, [], "CPU"
    places = topology.cpu

    def key(number: int) -> Tuple[int, ...]:
        cpu = places.get(number)
        levels = [cpu.package, cpu.node, cpu.l3] if cpu else [None] * 3
        core = cpulist.parse(cpu.siblings if cpu and cpu.siblings else str(number))[0]
        return (*(-1 if level is None else level for level in levels), core, number)

    order = sorted(cpus, key=key)
    keys = [key(number) for number in order]
    for depth, word in ((2, "node"), (1, "package"), (3, "L3")):
        starts = [0] + [i for i in range(1, len(keys)) if keys[i][:depth] != keys[i - 1][:depth]]
        if 1 < len(starts) <= 32:
            ends = [*starts[1:], len(keys)]
            segments = []
            for start, end in zip(starts, ends):
                new = start == 0 or keys[start][0] != keys[start - 1][0]
                name = str(len(segments)) if word == "L3" else str(keys[start][depth - 1])
                segments.append((name, start, end, new))
            return order, segments, word
    return order, [], "CPU"


def _label_cpus(
    axes: Axes, order: Sequence[int], names: Sequence[str],
    segments: Sequence[Tuple[str, int, int, bool]], word: str,
) -> None:  # fmt: skip
    many = len(order)
    for _, start, _, new in segments:
        if start:
            for line in (axes.axhline, axes.axvline):
                line(start - 0.5, color="white", linewidth=2.2 if new else 1.0)
                line(start - 0.5, color=style.INK, linewidth=1.2 if new else 0.5)
    axes.tick_params(length=0)
    if many <= ANNOTATED_CPUS:
        axes.set_xticks(range(many), names)
        axes.set_yticks(range(many), names)
        axes.set(xlabel="to CPU", ylabel="from CPU")
        size = style.SMALL if many <= 16 else style.TINY
    elif segments:
        middle = [(start + end - 1) / 2 for _, start, end, _ in segments]
        axes.set_xticks(middle, [name for name, *_ in segments])
        axes.set_yticks(middle, names)
        axes.set(xlabel=f"to CPUs of {word}", ylabel=f"from CPUs of {word}")
        size = style.SMALL if len(segments) <= 16 else style.TINY
    else:
        step = next(step for step in (4, 8, 16, 32, 64, 128, 256) if many <= 16 * step)
        ticks = list(range(0, many, step))
        axes.set_xticks(ticks, [str(order[i]) for i in ticks])
        axes.set_yticks(ticks, [str(order[i]) for i in ticks])
        axes.tick_params(length=3)
        axes.set(xlabel="to CPU", ylabel="from CPU")
        size = style.SMALL
    axes.tick_params(labelsize=size)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _short(cpus: Sequence[int]) -> str:
    text = cpulist.format(cpus)
    return text if len(text) <= 18 else text[:17] + "…"


def _outline(axes: Axes, places: Sequence[int]) -> None:
    """Draw a square round every unbroken run of a group's places on the diagonal."""
    runs: List[List[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    for run in runs:
        for colour, width in (("white", 2.6), (style.ORANGE, 1.4)):
            axes.add_patch(
                Rectangle((run[0] - 0.5, run[0] - 0.5), len(run), len(run), facecolor="none",
                          edgecolor=colour, linewidth=width, clip_on=False)
            )  # fmt: skip
