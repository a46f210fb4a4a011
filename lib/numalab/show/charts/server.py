"""A server's throughput on this host beside a published study's, each against its own reference."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase

from numalab import tables
from numalab.agent import cpulist
from numalab.agent.contract import CONTROL
from numalab.agent.errors import Fault
from numalab.agent.words import units
from numalab.analysis import evidence, judge, survey

from . import rows, style

THROUGHPUT = "queries_per_second"
SERVED, SERVED_LATENCY = "saturation_requests_per_second", "saturation_latency_avg"
_PER_NODE = "service-per-node"
_PUBLISHED = "mysql-point-select"
# The study names CPUs, not nodes; its lscpu listing gives the nodes of its host.
_NODES = {"ali-e5-2682v4": ("0-15,32-47", "16-31,48-63")}
_TOOLS = {"ali-e5-2682v4": "sysbench 0.5, point select, 100 million rows, 150 threads if not said"}


@dataclass
class _Result:
    """One row: what was measured and its throughput.

    The ratios are against the result with the greatest ``rank``; 0: it is no reference. ``beside``
    stands in the last column.
    """

    label: str
    value: float
    rank: int
    family: str
    solid: bool = True
    low: float | None = None
    high: float | None = None
    beside: str = ""
    doubt: str = ""


@dataclass
class _Machine:
    """A machine's results, with the kind of evidence they are."""

    name: str
    about: str
    results: list[_Result]
    own: bool
    counts: str = "queries per second"

    @property
    def reference(self) -> _Result | None:
        """What the ratios are against; None where no such was measured."""
        found = [result for result in self.results if result.rank]
        return max(found, key=lambda result: (result.rank, result.value), default=None)


def server_beside_published(rows_here: pl.DataFrame, published: pl.DataFrame) -> style.Picture:
    """Draw queries per second by CPU set: our hosts, then the published one, each on its own axis.

    ``rows_here`` are measurement rows (``queries_per_second``, and ``ipc`` where it was counted)
    of one load of one or more runs, ``published`` what ``article.published`` returns. Absolute
    figures of different servers, data and clients do not compare: the ratios, each to the
    machine's own one whole node, do. Open points are approximate or unverified. Raises Fault when
    empty.
    """
    return _beside(
        [*_ours(rows_here), *_theirs(published)], "Queries per second, beside the published study",
        ("of one node", "IPC"),
    )  # fmt: skip


def service_beside_published(rows_here: pl.DataFrame, published: pl.DataFrame) -> style.Picture:
    """Draw requests per second of one server and of several: our hosts, then the published one.

    ``rows_here`` are measurement rows (``SERVED``, ``SERVED_LATENCY``) of one load. The ratios are
    to the machine's own one unbound server; what splitting alone does the published case does not
    say. Raises Fault when empty.
    """
    return _beside(
        [*_our_services(rows_here), *_their_services(published)],
        "One server, or one per node, beside the published case",
        ("of one server", "mean latency"),
    )  # fmt: skip


def _beside(machines: list[_Machine], title: str, heads: tuple[str, str]) -> style.Picture:
    if not machines:
        raise Fault("neither these runs nor the published figures hold a server's throughput")
    heights = [rows.height(len(machine.results), 1) for machine in machines]
    doubtful = any(not one.solid for machine in machines for one in machine.results)

    def paint(figure: FigureBase) -> None:
        parts = figure.subfigures(len(machines), 1, height_ratios=heights, squeeze=False)
        for part, machine in zip(parts[:, 0], machines, strict=True):
            _panel(part, machine, heads)
        style.title(figure, title)
        key = [style.point("approximate or unverified", **style.UNVERIFIED_LOOK)]
        style.foot(
            figure, key if doubtful else [],
            "Servers, data and clients differ: compare the ratios within a machine, not the"
            " values of two.",
        )  # fmt: skip

    return style.Picture(sum(heights) + 0.7, paint)


def _ours(rows_here: pl.DataFrame) -> list[_Machine]:
    here = rows_here.filter(pl.col("role") != CONTROL)
    versions = dict(here.select("tool", "tool_version").iter_rows())
    summary = evidence.summarise(here).filter(pl.col("mean").is_not_null())
    ipc = summary.filter(pl.col("metric") == "ipc").select("run", "cell", ipc=pl.col("mean"))
    where = here.select("run", "cell", "cpus", "cpu_nodes").unique(maintain_order=True)
    found = summary.filter(pl.col("metric") == THROUGHPUT).join(where, on=["run", "cell"])
    machines: dict[tuple[str, str], _Machine] = {}
    for row in found.join(ipc, on=["run", "cell"], how="left").iter_rows(named=True):
        cpus = len(cpulist.parse(row["cpus"])) if row["cpus"] else 0
        count = units.count(cpus, "CPU") if cpus else "all CPUs"
        about = f"measured: {versions.get(row['tool']) or row['tool']}"
        machine = machines.setdefault(
            (row["run"], row["tool"]), _Machine(f"{row['host']} (this study)", about, [], True)
        )
        enough = row["n"] >= evidence.BLOCKS_NEEDED
        machine.results.append(
            _Result(
                f"{style.fitted(row['label'] or row['cell'], style.SMALL, 1.35)}: {count}",
                row["mean"], cpus if (row["cpu_nodes"] or "").isdecimal() else 0,
                style.family(row["binding"]), row["n_unverified"] == 0,
                row["low"] if enough else None, row["high"] if enough else None,
                _number(row["ipc"]),
            )
        )  # fmt: skip
    return list(machines.values())


def _theirs(published: pl.DataFrame) -> list[_Machine]:
    found = published.filter(pl.col("experiment") == _PUBLISHED)
    ipc = {
        (row["host"], row["binding"]): float(row["value"])
        for row in found.filter(pl.col("metric") == "ipc").iter_rows(named=True)
    }
    machines: dict[str, _Machine] = {}
    for row in found.filter(pl.col("metric") == "qps").iter_rows(named=True):
        cpus = set(cpulist.parse(row["binding"].removeprefix("cpus ")))
        nodes = [set(cpulist.parse(node)) for node in _NODES.get(row["host"], ())]
        over = sum(bool(cpus & node) for node in nodes)
        about = f"published: {_TOOLS.get(row['host'], 'tool not stated')}"
        machine = machines.setdefault(row["host"], _Machine(row["cpu"], about, [], False))
        threads = "" if row["threads"] else "threads not stated"
        exact = row["quality"] == survey.EXACT
        said = "" if exact else (row["note"] or row["quality"]).partition(";")[0]
        doubt = ", ".join(filter(None, (said, threads)))
        spread = f" over {over} nodes" if over > 1 else " of one node" if over else ""
        machine.results.append(
            _Result(
                f"{row['binding']}: {len(cpus)}{spread}", float(row["value"]),
                len(cpus) if over == 1 else 0, "local" if over == 1 else "unbound",
                exact, beside=_number(ipc.get((row["host"], row["binding"]))), doubt=doubt,
            )
        )  # fmt: skip
    return list(machines.values())


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _our_services(rows_here: pl.DataFrame) -> list[_Machine]:
    here = rows_here.filter(pl.col("role") != CONTROL)
    summary = evidence.summarise(here).filter(pl.col("mean").is_not_null())
    late = {
        (row["run"], row["cell"]): row["mean"]
        for row in summary.filter(pl.col("metric") == SERVED_LATENCY).iter_rows(named=True)
    }
    versions = dict(here.select("run", "tool_version").iter_rows())
    machines: dict[str, _Machine] = {}
    for row in summary.filter(pl.col("metric") == SERVED).iter_rows(named=True):
        machine = machines.setdefault(
            row["run"],
            _Machine(
                f"{row['host']} (this study)",
                f"measured: {versions[row['run']]}",
                [],
                True,
                "requests per second",
            ),
        )
        enough = row["n"] >= evidence.BLOCKS_NEEDED
        latency = late.get((row["run"], row["cell"]))
        machine.results.append(
            _Result(
                row["label"] or row["cell"], row["mean"], int(row["cell"] == judge.DEFAULT),
                style.family(row["binding"]), row["n_unverified"] == 0,
                row["low"] if enough else None, row["high"] if enough else None,
                "" if latency is None else f"{tables.number(latency)} ms",
            )
        )  # fmt: skip
    return list(machines.values())


def _their_services(published: pl.DataFrame) -> list[_Machine]:
    found = published.filter(pl.col("experiment") == _PER_NODE)
    late = {
        (row["host"], row["binding"]): f"{row['value']:g} {row['unit']}"
        for row in found.filter(pl.col("metric") == "response_time").iter_rows(named=True)
    }
    machines: dict[str, _Machine] = {}
    for row in found.filter(pl.col("metric") == "throughput").iter_rows(named=True):
        one = row["binding"].startswith("one instance")
        name = f"{row['cpu']} ({row['host']})"
        machine = machines.setdefault(
            row["host"], _Machine(name, "published", [], False, "transactions per second")
        )
        machine.about = f"published: {row['note']}" if one else machine.about
        machine.results.append(
            _Result(
                row["binding"], float(row["value"]), int(one), "unbound" if one else "cores",
                row["quality"] == survey.EXACT,
                beside=late.get((row["host"], row["binding"]), ""),
            )
        )  # fmt: skip
    return list(machines.values())


def _panel(figure: FigureBase, machine: _Machine, heads: tuple[str, str]) -> None:
    results = sorted(machine.results, key=lambda result: -result.value)
    reference = machine.reference
    axes, beside = rows.panels(figure, [result.label for result in results], (3.0, 1.2))
    style.title(figure, machine.name)
    axes.set_title(machine.about, fontsize=style.TINY, color=style.FAINT, pad=12)
    axes.set_xlim(0, max(result.high or result.value for result in results) * 1.06)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(machine.counts, fontsize=style.SMALL, labelpad=1)
    rows.texts(beside, dict(zip(heads, (0.0, 0.6), strict=True)))
    for place, result in enumerate(results):
        _result(axes, place, result, machine.own)
        ratio = "–" if reference is None else f"{result.value / reference.value:.2f}"
        rows.text(beside, 0.0, place, ratio, gid="ratio",
                  fontweight="bold" if result is reference else "normal")  # fmt: skip
        rows.text(beside, 0.6, place, result.beside, gid="beside")


def _result(axes: Axes, place: int, result: _Result, own: bool) -> None:
    if own:
        axes.axhspan(place - 0.5, place + 0.5, color=style.OWN, zorder=0, lw=0)
    colour = style.PALETTE[result.family]
    row = {"mean": result.value, "low": result.low, "high": result.high}
    axes.plot([0, result.value], [place, place], color=colour, linewidth=0.8, alpha=0.5)
    rows.mean(axes, place, row, evidence.BLOCKS_NEEDED, fmt=style.MARKERS[result.family],
              color=colour, **style.solid_or_open(result.solid, colour))  # fmt: skip
    if result.doubt:
        beyond = result.value > 0.6 * axes.get_xlim()[1]
        style.halo(axes.annotate(result.doubt, (result.value, place), fontsize=style.TINY,
                                 xytext=(-7 if beyond else 7, 0), textcoords="offset points",
                                 ha="right" if beyond else "left", va="center_baseline",
                                 color=style.FAINT))  # fmt: skip
