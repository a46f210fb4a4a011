"""This host beside published machines, each figure with the name of the tool that made it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl
from matplotlib.figure import FigureBase
from matplotlib.lines import Line2D

from numalab.agent.contract import CONTROL
from numalab.agent.errors import Fault
from numalab.analysis import evidence

from . import rows as rows_of
from . import style

_ROW = 0.36  # inches per machine
_PANELS = (
    # title, our metric, the published experiment
    ("Idle latency (ns), lower is better", "idle_latency", "idle-latency"),
    ("STREAM bandwidth (GB/s), higher is better", "triad", "stream"),
)
_SHOWN = ("local", "remote", "memory-only", "interleave", "unbound")
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
    points: list[_Point]
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


def beside_published(rows_here: pl.DataFrame, published: pl.DataFrame) -> style.Picture:
    """Draw idle latency and STREAM bandwidth by binding: our hosts, then published machines.

    ``rows_here`` are measurement rows of one or more hosts (``idle_latency`` and ``triad``;
    controls are left out), ``published`` what ``article.published`` returns. Each row names its
    tool; a ratio, on the right, is within one machine and one tool only. Solid points were
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
    heights = [0.55 + _ROW * len(machines) for _, machines in panels]

    def paint(figure: FigureBase) -> None:
        parts = figure.subfigures(len(panels), 1, height_ratios=heights, squeeze=False)
        for part, (title, machines) in zip(parts[:, 0], panels, strict=True):
            _panel(part, title, machines)
        style.title(figure, "This host beside published machines")
        style.foot(
            figure, _key(panels),
            "Tools differ in method: compare ratios within a row, not values between rows of"
            " different tools.",
        )  # fmt: skip

    return style.Picture(sum(heights) + 0.8, paint)


def _ours(rows: pl.DataFrame, metric: str) -> list[_Machine]:
    rows = rows.filter((pl.col("metric") == metric) & (pl.col("role") != CONTROL))
    versions = dict(rows.select("tool", "tool_version").iter_rows())
    summary = evidence.summarise(rows).filter(pl.col("mean").is_not_null())
    machines: dict[tuple[str, str], _Machine] = {}
    for row in summary.iter_rows(named=True):
        family = style.family(row["binding"])
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


def _theirs(published: pl.DataFrame, experiment: str) -> list[_Machine]:
    machines: dict[tuple[str, str], _Machine] = {}
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
        exact = quality.startswith("exact")
        machine.points.append(_Point(family, float(row["value"]), exact, cpus))
    return list(machines.values())


def _published_family(binding: str) -> str | None:
    """``cpu0-mem1`` is remote, ``cpu0-mem0`` local, ``interleave`` itself."""
    pair = re.fullmatch(r"cpu(\d+)-mem(\d+)", binding)
    if pair:
        return "local" if pair.group(1) == pair.group(2) else "remote"
    return binding if binding in _SHOWN else None


def _tool_of(note: str) -> str:
    found = _TOOL.match(note)
    return found.group(0) if found else "tool not stated"


def _panel(figure: FigureBase, title: str, machines: list[_Machine]) -> None:
    labels = [f"{machine.name}\n{machine.about}" for machine in machines]
    axes, beside = rows_of.panels(figure, [""] * len(labels), (4.0, 1.0))
    axes.set_yticks(range(len(labels)), labels, fontsize=style.TINY)
    axes.set_title(title, fontweight="bold")
    axes.set_xlim(0, max(point.value for one in machines for point in one.points) * 1.06)
    rows_of.texts(beside, {"remote / local": 0.0})
    for place, machine in enumerate(machines):
        if machine.own:
            axes.axhspan(place - 0.5, place + 0.5, color=style.OWN, zorder=0, lw=0)
        rows_of.text(beside, 0.0, place, machine.ratio(), gid="ratio")
        values = [point.value for point in machine.points]
        axes.plot([min(values), max(values)], [place, place], color="#BBBBBB", linewidth=1,
                  zorder=1)  # fmt: skip
        for point in machine.points:
            colour = style.PALETTE[point.family]
            axes.plot(
                [point.value], [place], marker=style.MARKERS[point.family], zorder=3, color=colour,
                gid=f"point-{point.family}", **style.solid_or_open(point.solid, colour),
            )  # fmt: skip


def _key(panels: list[tuple[str, list[_Machine]]]) -> list[Line2D]:
    points = [point for _, machines in panels for machine in machines for point in machine.points]
    met = {point.family for point in points}
    key = [style.point(family, family) for family in _SHOWN if family in met]
    if not all(point.solid for point in points):
        key.append(style.point("approximate, doubtful or unverified", **style.UNVERIFIED_LOOK))
    return key
