"""A database server's throughput on this host beside the published study's, CPU set by CPU set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import polars as pl
from matplotlib.lines import Line2D

from numalab.agent import cpulist
from numalab.agent.errors import Fault
from numalab.analysis import evidence

from . import style

THROUGHPUT = "queries_per_second"
_PUBLISHED = "mysql-point-select"
_ROW = 0.21  # inches per CPU set
_BESIDE = 1.75  # inches for the ratios and IPCs
# The study names CPUs, not nodes; its lscpu listing gives the nodes of its host.
_NODES = {"e5-2682-v4": ("0-15,32-47", "16-31,48-63")}
_TOOLS = {"e5-2682-v4": "sysbench 0.5, point select, 100 million rows, 150 threads if not said"}


@dataclass
class _Result:
    """One row: a CPU set with its throughput; ``one_node`` is its CPU count, 0 if over several."""

    label: str
    value: float
    one_node: int
    family: str
    solid: bool = True
    low: Optional[float] = None
    high: Optional[float] = None
    ipc: Optional[float] = None
    doubt: str = ""


@dataclass
class _Machine:
    name: str
    about: str
    results: List[_Result]
    own: bool

    @property
    def reference(self) -> Optional[_Result]:
        """What the ratios are against: most CPUs of one node; None where no such was measured."""
        whole = [result for result in self.results if result.one_node]
        most = max((result.one_node for result in whole), default=0)
        return max((r for r in whole if r.one_node == most), key=lambda r: r.value, default=None)


@style.styled
def server_beside_published(rows_here: pl.DataFrame, published: pl.DataFrame) -> style.Picture:
    """Draw queries per second by CPU set: our hosts, then the published one, each on its own axis.

    ``rows_here`` are measurement rows (``queries_per_second``, and ``ipc`` where it was counted)
    of one load of one or more runs, ``published`` the columns of published.csv. Absolute figures
    of different servers, data and clients do not compare: the ratios, each to the machine's own
    one whole node, do. Open points are approximate or unverified. Raises Fault when empty.
    """
    machines = [*_ours(rows_here), *_theirs(published)]
    if not machines:
        raise Fault("neither these runs nor the published figures hold a server's throughput")
    labels = [result.label for machine in machines for result in machine.results]
    left = max(style.text_width(label, style.SMALL) for label in labels) + 0.26
    top, head, foot, bottom = 0.3, 0.46, 0.3, 0.5
    tall = [_ROW * len(machine.results) for machine in machines]
    height = top + bottom + sum(head + foot + rows for rows in tall)
    figure = style.Picture(figsize=(style.WIDTH, height))
    edge = 0.08 / style.WIDTH
    figure.text(edge, 1 - 0.08 / height, "Queries per second, beside the published study",
                fontsize=style.TITLE, fontweight="bold", va="top")  # fmt: skip
    y = top
    for machine, rows in zip(machines, tall):
        y += head + rows
        axes = figure.add_axes(
            (left / style.WIDTH, 1 - y / height, (style.WIDTH - left - _BESIDE) / style.WIDTH,
             rows / height)
        )  # fmt: skip
        _panel(axes, machine, style.WIDTH - left - _BESIDE)
        figure.text(edge, 1 - (y - rows - 0.3) / height, machine.name, fontsize=style.SMALL,
                    fontweight="bold", va="bottom")  # fmt: skip
        figure.text(edge, 1 - (y - rows - 0.16) / height, machine.about, fontsize=style.TINY,
                    color=style.FAINT, va="bottom")  # fmt: skip
        y += foot
    if any(not result.solid for machine in machines for result in machine.results):
        key = Line2D([], [], linestyle="none", marker="o", markersize=5, color=style.GREY,
                     markerfacecolor="white", label="approximate or unverified")  # fmt: skip
        figure.legend(handles=[key], loc="lower left", bbox_to_anchor=(edge * 0.6, 0.22 / height),
                      borderaxespad=0, handlelength=1.0)  # fmt: skip
    figure.text(
        edge, 0.07 / height, "Servers, data and clients differ: compare the ratios within a"
        " machine, not the values of two.", fontsize=style.SMALL, color=style.FAINT,
    )  # fmt: skip
    return figure


def _ours(rows: pl.DataFrame) -> List[_Machine]:
    rows = rows.filter(pl.col("role") != "control")
    versions = dict(rows.select("tool", "tool_version").iter_rows())
    summary = evidence.summarise(rows).filter(pl.col("mean").is_not_null())
    ipc = {
        (row["run"], row["cell"]): row["mean"]
        for row in summary.filter(pl.col("metric") == "ipc").iter_rows(named=True)
    }
    where = {
        (row["run"], row["cell"]): row
        for row in rows.unique(["run", "cell"], maintain_order=True).iter_rows(named=True)
    }
    machines: Dict[Tuple[str, str], _Machine] = {}
    for row in summary.filter(pl.col("metric") == THROUGHPUT).iter_rows(named=True):
        cell = where[row["run"], row["cell"]]
        cpus = len(cpulist.parse(cell["cpus"])) if cell["cpus"] else None
        one_node = cpus if cpus and (cell["cpu_nodes"] or "").isdecimal() else 0
        count = "all CPUs" if cpus is None else f"{cpus} CPU{'s' if cpus > 1 else ''}"
        machine = machines.setdefault(
            (row["run"], row["tool"]),
            _Machine(f"{row['host']} (this study)", versions.get(row["tool"]) or row["tool"], [],
                     True),
        )  # fmt: skip
        enough = row["n"] >= evidence.BLOCKS_NEEDED
        machine.results.append(
            _Result(
                f"{style.fitted(row['label'] or row['cell'], style.SMALL, 1.35)}: {count}",
                row["mean"], one_node, style.family(row["cell"]), row["n_unverified"] == 0,
                row["low"] if enough else None, row["high"] if enough else None,
                ipc.get((row["run"], row["cell"])),
            )
        )  # fmt: skip
    return list(machines.values())


def _theirs(published: pl.DataFrame) -> List[_Machine]:
    rows = published.filter(pl.col("experiment") == _PUBLISHED)
    ipc = {
        (row["host"], row["binding"]): float(row["value"])
        for row in rows.filter(pl.col("metric") == "ipc").iter_rows(named=True)
    }
    machines: Dict[str, _Machine] = {}
    for row in rows.filter(pl.col("metric") == "qps").iter_rows(named=True):
        cpus = set(cpulist.parse(row["binding"].removeprefix("cpus ")))
        nodes = [set(cpulist.parse(node)) for node in _NODES.get(row["host"], ())]
        over = sum(bool(cpus & node) for node in nodes)
        tool = _TOOLS.get(row["host"], "tool not stated")
        machine = machines.setdefault(
            row["host"], _Machine(f"{row['cpu']} (published)", tool, [], False)
        )
        threads = "" if row["threads"] else "threads not stated"
        doubt = ", ".join(word for word in (row["quality"], threads) if word and word != "exact")
        spread = f" over {over} nodes" if over > 1 else " of one node" if over else ""
        machine.results.append(
            _Result(
                f"{row['binding']}: {len(cpus)}{spread}", float(row["value"]),
                len(cpus) if over == 1 else 0, "local" if over == 1 else "unbound",
                row["quality"] == "exact", ipc=ipc.get((row["host"], row["binding"])), doubt=doubt,
            )
        )  # fmt: skip
    return list(machines.values())


def _panel(axes: Any, machine: _Machine, wide: float) -> None:
    results = sorted(machine.results, key=lambda result: -result.value)
    reference = machine.reference
    axes.set_xlim(0, max(result.high or result.value for result in results) * 1.06)
    axes.set_ylim(len(results) - 0.5, -0.5)
    axes.set_yticks(range(len(results)), [result.label for result in results])
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter(style.thousands())
    axes.grid(axis="x")
    axes.set_xlabel("queries per second", fontsize=style.SMALL, labelpad=1)
    sides = axes.get_yaxis_transform()
    for x, words in ((1.04, "of one node"), (1.36, "IPC"), (1.52, "")):
        axes.text(x, -0.62, words, transform=sides, fontsize=style.TINY, color=style.FAINT,
                  va="bottom")  # fmt: skip
    for place, result in enumerate(results):
        if machine.own:
            axes.axhspan(place - 0.5, place + 0.5, color="#EAF3F8", zorder=0, lw=0)
        colour = style.PALETTE[result.family]
        error = None
        if result.low is not None and result.high is not None:
            error = [[result.value - result.low], [result.high - result.value]]
        axes.plot([0, result.value], [place, place], color=colour, linewidth=0.8, alpha=0.5)
        axes.errorbar(
            [result.value], [place], xerr=error, fmt=style.MARKERS[result.family], color=colour,
            markersize=5.5, markerfacecolor=colour if result.solid else "white",
            markeredgecolor="white" if result.solid else colour,
            markeredgewidth=0.5 if result.solid else 1.1, elinewidth=1.2, capsize=2, zorder=3,
        )  # fmt: skip
        if result.doubt:
            room = (axes.get_xlim()[1] - result.value) / axes.get_xlim()[1] * wide
            beyond = style.text_width(result.doubt, style.TINY) + 0.12 > room
            style.halo(axes.annotate(result.doubt, (result.value, place), fontsize=style.TINY,
                          xytext=(-7 if beyond else 7, 0), textcoords="offset points",
                          ha="right" if beyond else "left", va="center_baseline",
                          color=style.FAINT))  # fmt: skip
        words = "–" if reference is None else f"{result.value / reference.value:.2f}"
        axes.text(1.04, place, words, transform=sides, fontsize=style.SMALL, gid="ratio",
                  va="center_baseline", fontweight="bold" if result is reference else "normal",
                  )  # fmt: skip
        if result.ipc is not None:
            axes.text(1.36, place, f"{result.ipc:.2f}", transform=sides, fontsize=style.SMALL,
                      va="center_baseline", gid="ipc")  # fmt: skip
