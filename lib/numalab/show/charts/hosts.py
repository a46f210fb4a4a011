"""Several hosts in one picture: their charts on one sheet, and matrices as small multiples."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from numalab.agent import contract
from numalab.agent.errors import Fault

from ..tables import number
from . import matrix, style

PAGE = 9.0  # inches: what a page of the PDF holds above a caption
EMULATED = "emulated"
_GAP, _HEADING, _LINE = 0.12, 0.3, 0.14  # inches
_LEAST_TYPE = 4.5  # points: numbers that would have to be smaller are left out of their cells


class Sheet:
    """Pictures under one another, or side by side where two fit; one SVG for a notebook.

    They keep their size, unless all together are higher than a page: then all shrink alike.
    """

    def __init__(self, parts: Sequence[Tuple[str, style.Picture]], remark: str = "") -> None:
        self._rows = _rows(parts)
        self._remark = _words(remark, style.SMALL, style.FAINT, _LINE + 0.06) if remark else None

    def svg(self) -> str:
        """Return the sheet as SVG text."""
        placed: List[Tuple[float, float, style.Picture]] = []
        y = 0.0
        for row in self._rows:
            x = tallest = 0.0
            for name, picture in row:
                width, height = map(float, picture.get_size_inches())
                heading = _words(name, style.TITLE, style.INK, _HEADING, "bold", width)
                placed += [(x, y, heading), (x, y + _HEADING, picture)]
                x += width + _GAP
                tallest = max(tallest, height + _HEADING)
            y += tallest + _GAP
        if self._remark:
            placed.append((0.0, y, self._remark))
            y += float(self._remark.get_size_inches()[1])
        scale = min(1.0, PAGE / y)
        parts = [_nested(picture, x, at, place) for place, (x, at, picture) in enumerate(placed)]
        size = f'width="{_pt(style.WIDTH * scale)}pt" height="{_pt(y * scale)}pt"'
        box = f'viewBox="0 0 {_pt(style.WIDTH)} {_pt(y)}"'
        return (
            '<?xml version="1.0" encoding="utf-8"?>\n'
            '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'{size} {box} version="1.1">\n' + "\n".join(parts) + "\n</svg>\n"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Dict[str, str]:
        return {"image/svg+xml": self.svg()}


def _rows(parts: Sequence[Tuple[str, style.Picture]]) -> List[List[Tuple[str, style.Picture]]]:
    rows: List[List[Tuple[str, style.Picture]]] = []
    used = style.WIDTH + 1.0
    for name, picture in parts:
        width = float(picture.get_size_inches()[0])
        if used + width > style.WIDTH + 0.01:
            rows.append([])
            used = 0.0
        rows[-1].append((name, picture))
        used += width + _GAP
    return rows


@style.styled
def _words(
    text: str, size: float, colour: str, height: float, weight: str = "normal",
    width: float = style.WIDTH,
) -> style.Picture:  # fmt: skip
    figure = style.Picture(figsize=(width, height))
    figure.text(0.08 / width, 0.25, text, fontsize=size, color=colour, fontweight=weight)
    return figure


def _pt(inches: float) -> str:
    return f"{inches * 72:.2f}".rstrip("0").rstrip(".")


def _nested(picture: style.Picture, x: float, y: float, place: int) -> str:
    """A picture as an <svg> element inside another; its ids get a name of their own."""
    text = picture.svg()
    text = text[text.index("<svg ") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>part{place}-", text)
    width, height = map(float, picture.get_size_inches())
    at = f'x="{_pt(x)}" y="{_pt(y)}" width="{_pt(width)}" height="{_pt(height)}"'
    return re.sub(r'\A<svg ([^>]*?)width="[^"]*" height="[^"]*"', rf"<svg \1{at}", text)


def sheet(parts: Sequence[Tuple[str, style.Picture]], remark: str = "") -> Sheet:
    return Sheet(parts, remark)


@dataclass(frozen=True)
class Panel:
    """One host's square of numbers; ``cells`` by (row, column), None where a trial failed.

    ``remark`` stands below the name: what is emulated says so there.
    """

    host: str
    cells: Mapping[Tuple[int, int], Optional[float]]
    remark: str = ""


def distance_panel(host: str, topology: contract.Host, remark: str = "") -> Panel:
    """Return a host's SLIT distances (ACPI 6.5, section 5.2.17) as a panel."""
    return Panel(
        host,
        {
            (node.number, other): float(distance)
            for node in topology.nodes
            for other, distance in node.distances.items()
        },
        remark,
    )


def pair_panel(host: str, frame: pl.DataFrame, remark: str = "") -> Panel:
    """Return measurement rows by CPU node and memory node as a panel of medians."""
    pairs = matrix.pair_cells(frame, "value")
    return Panel(host, {pair: cell[0] for pair, cell in pairs.items()}, remark)


@style.styled
def matrices(
    panels: Sequence[Panel], title: str, unit: str, better: Optional[str], rows: str, columns: str
) -> style.Picture:
    """Draw one matrix per host, all of the same size, each on a colour scale of its own.

    Darker is worse. ``unit`` "" is a distance without unit. Numbers stand in the cells as long as
    they can be read; the range of each host's numbers stands beside its name in any case. Raises
    Fault when no panel has a cell.
    """
    panels = [panel for panel in panels if panel.cells]
    if not panels:
        raise Fault(f"there is nothing to draw of {title!r}", "no host has a pair of nodes")
    across = min(len(panels), 3 if max(map(_count, panels)) <= 4 else 2)
    wide = style.WIDTH / max(across, 2)
    sides = [min(wide - 0.55, 2.5, 0.2 + 0.6 * _count(panel)) for panel in panels]
    top, below, head = 0.42, 0.42, 0.32
    lines = [max(sides[at : at + across]) for at in range(0, len(panels), across)]
    height = head + sum(lines) + (top + below) * len(lines)
    figure = style.Picture(figsize=(style.WIDTH, height))
    figure.text(0.08 / style.WIDTH, 1 - 0.18 / height, f"{title} ({unit})" if unit else title,
                fontsize=style.TITLE, fontweight="bold")  # fmt: skip
    for place, panel in enumerate(panels):
        left = (place % across) * wide + 0.42
        side, line = sides[place], place // across
        bottom = height - head - sum(lines[:line]) - (top + below) * line - top - side
        axes = figure.add_axes(
            (left / style.WIDTH, bottom / height, side / style.WIDTH, side / height)
        )
        _matrix(axes, panel, unit, better, side, wide)
        axes.set_ylabel(rows, fontsize=style.TINY)
        axes.set_xlabel(columns, fontsize=style.TINY)
    return figure


def _count(panel: Panel) -> int:
    return max(len({pair[end] for pair in panel.cells}) for end in (0, 1))


def _matrix(axes: Axes, panel: Panel, unit: str, better: Optional[str], side: float, wide: float) -> None:
    rows = sorted({row for row, _ in panel.cells})
    columns = sorted({column for _, column in panel.cells})
    grid = np.full((len(rows), len(columns)), np.nan)
    for (row, column), value in panel.cells.items():
        if value is not None:
            grid[rows.index(row), columns.index(column)] = value
    known = [float(value) for value in grid[np.isfinite(grid)]]
    low, high = matrix.scale_ends(known)
    colours = matrix.colour_scale(lower_is_better=better == "lower")
    image = axes.imshow(grid, cmap=colours, vmin=low, vmax=high, aspect="auto",
                        interpolation="nearest")  # fmt: skip
    cell = side / len(columns)
    texts = {
        (i, j): number(grid[i, j], 3) if unit else f"{grid[i, j]:.0f}"
        for i, j in np.argwhere(np.isfinite(grid))
    }
    size = style.SMALL
    while size >= _LEAST_TYPE and any(
        style.text_width(text, size) > cell - 0.03 for text in texts.values()
    ):
        size -= 0.5
    if size >= _LEAST_TYPE and size / 72 < side / len(rows):
        for (i, j), text in texts.items():
            dark = style.is_dark(image.cmap(image.norm(grid[i, j])))
            axes.text(j, i, text, ha="center", va="center_baseline", fontsize=size,
                      color="white" if dark else style.INK)  # fmt: skip
    for (row, column), value in panel.cells.items():
        if value is None:
            axes.text(columns.index(column), rows.index(row), "×", ha="center", va="center",
                      fontsize=style.SMALL, color=style.VERMILLION)  # fmt: skip
    for count, ticks, names in (
        (len(columns), axes.set_xticks, columns),
        (len(rows), axes.set_yticks, rows),
    ):
        ticks(range(count), [str(name) for name in names])
    axes.tick_params(length=0, labelsize=style.TINY)
    for spine in axes.spines.values():
        spine.set_visible(False)
    span = ""
    if known:
        ends = [number(end, 3) if unit else f"{end:.0f}" for end in (min(known), max(known))]
        span = ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
    room = wide - 0.1
    over = 1 + 0.08 / side
    _fitted(axes, (0, over + 0.15 / side), panel.host, style.BASE, room, fontweight="bold")
    _fitted(axes, (0, over), " · ".join(word for word in (f"{span} {unit}".strip(), panel.remark)
                                        if word), style.SMALL, room,
            color=style.VERMILLION if panel.remark else style.FAINT)  # fmt: skip


def _fitted(
    axes: Axes, where: Tuple[float, float], text: str, size: float, room: float, **look: Any
) -> None:
    while size > _LEAST_TYPE and style.text_width(text, size) > room:
        size -= 0.5
    axes.text(*where, text, transform=axes.transAxes, fontsize=size, va="bottom", **look)


def mark(picture: style.Picture) -> None:
    """Write into a picture's corner that its host is emulated, where no times are shown."""
    width, height = picture.get_size_inches()
    picture.text(1 - 0.08 / width, 1 - 0.06 / height, "emulated host", ha="right", va="top",
                 fontsize=style.SMALL, color=style.VERMILLION)  # fmt: skip


@style.styled
def cases(
    frame: pl.DataFrame, title: str, hosts: Mapping[str, str]
) -> style.Picture:
    """Draw a share for every case (rows) and host (columns): the number, and its bar.

    ``frame`` has the columns case, host, value (of 1), low and high (the least and the most over
    the trials). Cases stand in the order of the frame. Raises Fault for an empty frame.
    """
    if frame.is_empty():
        raise Fault(f"there is nothing to draw of {title!r}", "no run measured it")
    names = frame["case"].unique(maintain_order=True).to_list()
    left = min(3.0, max(style.text_width(name, style.SMALL) for name in names) + 0.2)
    row, head, foot = 0.21, 0.62, 0.34
    height = head + row * len(names) + foot
    figure = style.Picture(figsize=(style.WIDTH, height))
    figure.text(0.08 / style.WIDTH, 1 - 0.18 / height, title, fontsize=style.TITLE,
                fontweight="bold")  # fmt: skip
    wide = (style.WIDTH - left - 0.1) / len(hosts)
    for place, host in enumerate(hosts):
        axes = figure.add_axes(
            ((left + place * wide) / style.WIDTH, foot / height, (wide - 0.14) / style.WIDTH,
             row * len(names) / height)
        )  # fmt: skip
        _bars(axes, frame.filter(pl.col("host") == host), names)
        _fitted(axes, (0, 1 + 0.04), host, style.BASE, wide - 0.1, fontweight="bold")
        if hosts[host] != "measured":
            axes.text(1, 1 + 0.2 / (row * len(names)), hosts[host], transform=axes.transAxes,
                      ha="right", va="bottom", fontsize=style.TINY,
                      color=style.VERMILLION)  # fmt: skip
        axes.set_yticks(range(len(names)), names if place == 0 else [])
        axes.tick_params(axis="y", length=0)
    return figure


def _bars(axes: Axes, frame: pl.DataFrame, names: Sequence[str]) -> None:
    axes.set(xlim=(0, 1), ylim=(len(names) - 0.5, -0.5))
    for label, side in zip(axes.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"]), "lcr"):
        label.label1.set_ha({"l": "left", "c": "center", "r": "right"}[side])
    axes.grid(axis="x")
    known = {record["case"]: record for record in frame.iter_rows(named=True)}
    for place, name in enumerate(names):
        record = known.get(name)
        if record is None or record["value"] is None:
            axes.text(0.02, place, "not measured", fontsize=style.TINY, color=style.FAINT,
                      va="center_baseline", fontstyle="italic")  # fmt: skip
            continue
        value = record["value"]
        axes.barh(place, min(value, 1.0), height=0.62, color=style.SKY, zorder=1)
        if record["high"] > record["low"]:
            axes.plot([record["low"], min(record["high"], 1.0)], [place, place], color=style.INK,
                      linewidth=0.8, zorder=2)  # fmt: skip
        inside = value > 0.6
        end = min(value, 1.0)  # of a share that grew meanwhile: the number says how much
        exact = 0.005 < value < 0.995 or value in (0, 1)
        mark = axes.text(
            end - 0.02 if inside else max(value, record["high"]) + 0.02, place,
            f"{value:.0%}" if exact else f"{value:.1%}", va="center_baseline",
            ha="right" if inside else "left", fontsize=style.TINY, zorder=3,
        )  # fmt: skip
        style.halo(mark)
