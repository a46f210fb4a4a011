"""This host beside published machines, each figure with the name of the tool that made it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import polars as pl
from matplotlib.lines import Line2D

from numalab.agent.errors import Fault
from numalab.analysis import evidence

from . import style

_ROW = 0.36  # inches per machine
_PANELS = (
    # title, our metric, the published experiment
    ("Idle latency (ns), lower is better", "idle_latency", "idle-latency"),
    ("STREAM bandwidth (GB/s), higher is better", "triad", "stream"),
)
_SHOWN = ("local", "remote", "interleave", "unbound")
_TOOL = re.compile(r"Intel MLC [\d.]+\w*|STREAM \d[\d.]*")
_DOUBTFUL = "report template"  # the quality of figures whose origin is in doubt


@dataclass
class _Point:
    """``cpus`` is what a remote and a local figure must share to be put into a ratio."""

    family: str
    value: float
    solid: bool
    cpus: str


@dataclass
class _Machine:
    """One row: a machine as one tool saw it."""

    name: str
    about: str
    points: List[_Point]
    own: bool

    def ratio(self) -> str:
        """Remote over local from the same CPUs, of this machine and tool; the range over pairs."""
        local = {point.cpus: point.value for point in self.points if point.family == "local"}
        ratios = [
            point.value / local[point.cpus]
            for point in self.points
            if point.family == "remote" and point.cpus in local
        ]
        if not ratios:
            return "–"
        low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
        return low if low == high else f"{low} to {high}"


@style.styled
def beside_published(rows_here: pl.DataFrame, published: pl.DataFrame) -> style.Picture:
    """Draw idle latency and STREAM bandwidth by binding: our hosts, then published machines.

    ``rows_here`` are measurement rows of one or more hosts (``idle_latency`` and ``triad``;
    sweeps and controls are left out), ``published`` the columns of published.csv. Each row names
    its tool; a ratio, on the right, is within one machine and one tool only. Solid points were
    published as exact or measured here and verified; open ones are approximate, doubtful or
    unverified, and the row's second line says which. Raises Fault when there is nothing to draw.
    """
    panels = [
        (title, [*_ours(rows_here, metric), *_theirs(published, experiment)])
        for title, metric, experiment in _PANELS
    ]
    panels = [(title, machines) for title, machines in panels if machines]
    if not panels:
        raise Fault("neither these runs nor the published figures hold a latency or a bandwidth")
    labels = [
        max(
            style.text_width(machine.name, style.SMALL, "bold"),
            style.text_width(machine.about, style.TINY),
        )
        for _, machines in panels
        for machine in machines
    ]
    left, beside = min(max(labels) + 0.22, 2.9), 1.15
    top, head, foot, bottom = 0.3, 0.3, 0.3, 0.5
    height = top + bottom + sum(head + foot + _ROW * len(machines) for _, machines in panels)
    figure = style.Picture(figsize=(style.WIDTH, height))
    edge = 0.08 / style.WIDTH
    figure.text(edge, 1 - 0.08 / height, "This host beside published machines", va="top",
                fontsize=style.TITLE, fontweight="bold")  # fmt: skip
    y = top
    for title, machines in panels:
        y += head + _ROW * len(machines)
        axes = figure.add_axes(
            (left / style.WIDTH, 1 - y / height, (style.WIDTH - left - beside) / style.WIDTH,
             _ROW * len(machines) / height)
        )  # fmt: skip
        _panel(axes, title, machines, left)
        y += foot
    figure.legend(
        handles=_key(panels), loc="lower left", bbox_to_anchor=(edge * 0.6, 0.24 / height), ncols=6,
        borderaxespad=0, columnspacing=1.3, handlelength=1.0,
    )  # fmt: skip
    figure.text(
        edge, 0.07 / height, "Tools differ in method: compare ratios within a row, not values"
        " between rows of different tools.", fontsize=style.SMALL, color=style.FAINT,
    )  # fmt: skip
    return figure


def _ours(rows: pl.DataFrame, metric: str) -> List[_Machine]:
    rows = rows.filter((pl.col("metric") == metric) & ~pl.col("cell").str.contains("/"))
    versions = dict(rows.select("tool", "tool_version").iter_rows())
    summary = evidence.summarise(rows).filter(pl.col("mean").is_not_null())
    machines: Dict[Tuple[str, str], _Machine] = {}
    for row in summary.iter_rows(named=True):
        family = style.family(row["cell"])
        if family not in _SHOWN:
            continue
        tool = " ".join(filter(None, [row["tool"], versions.get(row["tool"])]))
        machine = machines.setdefault(
            (row["host"], row["tool"]), _Machine(f"{row['host']} (this study)", tool, [], True)
        )
        cpus = row["cell"] if family == "local" else row["baseline"] or ""
        machine.points.append(_Point(family, row["mean"], row["n_unverified"] == 0, cpus))
    for machine in machines.values():
        proved = all(point.solid for point in machine.points)
        machine.about += ": measured, placement " + ("verified" if proved else "partly unverified")
    return list(machines.values())


def _theirs(published: pl.DataFrame, experiment: str) -> List[_Machine]:
    machines: Dict[Tuple[str, str], _Machine] = {}
    rows = published.filter(
        (pl.col("experiment") == experiment) & pl.col("metric").is_in(["latency", "bandwidth"])
    )
    for row in rows.iter_rows(named=True):
        family = _published_family(row["binding"] or "")
        if family is None or row["value"] is None:
            continue
        quality = row["quality"] or "quality unknown"
        tool = row.get("tool") or _tool_of(row["note"] or "")
        words = "doubtful (report template)" if quality == _DOUBTFUL else quality
        machine = machines.setdefault(
            (row["host"], tool),
            _Machine(row["cpu"] or row["host"], f"{tool}: published, {words}", [], False),
        )
        cpus = row["binding"].split("-")[0]
        machine.points.append(_Point(family, float(row["value"]), quality == "exact", cpus))
    return list(machines.values())


def _published_family(binding: str) -> Optional[str]:
    """``cpu0-mem1`` is remote, ``cpu0-mem0`` local, ``interleave`` itself."""
    pair = re.fullmatch(r"cpu(\d+)-mem(\d+)", binding)
    if pair:
        return "local" if pair.group(1) == pair.group(2) else "remote"
    return binding if binding in _SHOWN else None


def _tool_of(note: str) -> str:
    found = _TOOL.match(note)
    return found.group(0) if found else "tool not stated"


def _panel(axes: Any, title: str, machines: List[_Machine], left: float) -> None:
    axes.set_title(title, fontweight="bold")
    largest = max(point.value for machine in machines for point in machine.points)
    axes.set_xlim(0, largest * 1.06)
    axes.set_ylim(len(machines) - 0.5, -0.5)
    axes.set_yticks([])
    axes.grid(axis="x")
    room = (left - 0.08) / (style.WIDTH - left - 1.15)
    axes.text(1.03, 1.02, "remote / local", transform=axes.transAxes, fontsize=style.TINY,
              color=style.FAINT, va="bottom")  # fmt: skip
    sides = axes.get_yaxis_transform()
    for place, machine in enumerate(machines):
        if machine.own:
            axes.axhspan(place - 0.5, place + 0.5, color="#EAF3F8", zorder=0, lw=0)
        axes.text(-room, place - 0.17, machine.name, transform=sides, fontsize=style.SMALL,
                  fontweight="bold", va="center_baseline")  # fmt: skip
        axes.text(-room, place + 0.2, machine.about, transform=sides, fontsize=style.TINY,
                  color=style.FAINT, va="center_baseline")  # fmt: skip
        axes.text(1.03, place, machine.ratio(), transform=sides, fontsize=style.SMALL,
                  va="center_baseline", gid="ratio")  # fmt: skip
        values = [point.value for point in machine.points]
        axes.plot([min(values), max(values)], [place, place], color="#BBBBBB", linewidth=1,
                  zorder=1)  # fmt: skip
        for point in machine.points:
            colour = style.PALETTE[point.family]
            axes.plot(
                [point.value], [place], marker=style.MARKERS[point.family], markersize=5.5,
                zorder=3, color=colour, markerfacecolor=colour if point.solid else "white",
                markeredgecolor="white" if point.solid else colour,
                markeredgewidth=0.5 if point.solid else 1.1, gid=f"point-{point.family}",
            )  # fmt: skip


def _key(panels: List[Tuple[str, List[_Machine]]]) -> List[Line2D]:
    points = [point for _, machines in panels for machine in machines for point in machine.points]
    met = {point.family for point in points}
    key = [
        Line2D([], [], linestyle="none", marker=style.MARKERS[family], markersize=5,
               color=style.PALETTE[family], label=family)
        for family in _SHOWN if family in met
    ]  # fmt: skip
    if not all(point.solid for point in points):
        key.append(
            Line2D([], [], linestyle="none", marker="o", markersize=5, color=style.GREY,
                   markerfacecolor="white", label="approximate, doubtful or unverified")
        )  # fmt: skip
    return key
