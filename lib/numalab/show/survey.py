"""The survey of published machines as a notebook, the article and the command line show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import polars as pl

from numalab import runs, tables
from numalab.agent.contract import ERROR, PUBLISHED
from numalab.agent.errors import Fault
from numalab.agent.words import units
from numalab.analysis import survey as analysis
from numalab.analysis.survey import BANDWIDTH, LATENCY, OTHER, SAME
from numalab.runs import Run
from numalab.show import badge
from numalab.show.charts import survey as charts
from numalab.show.view import Shown, Text

if TYPE_CHECKING:
    from rich.table import Table

_TABLE_WIDTH = 78  # columns of a terminal; below it a table's cells break within words
_INTEL = pl.col("vendor") == "Intel"


class Survey:
    """What others published of real machines, and where the user's own hosts stand among them.

    ``own`` are runs of the experiment ``latency``, or their directories; those that cannot be
    compared (an emulated host, one node, another tool than the probe) are drawn nowhere.
    """

    def __init__(self, own: Sequence[str | Path | Run] = ()) -> None:
        self.rows = analysis.load()
        self.runs = [one if isinstance(one, Run) else runs.load(one) for one in own]
        for run in self.runs:
            if run.manifest.experiment != "latency":
                raise Fault(
                    f"{run.folder} is a run of {run.manifest.experiment}",
                    "a host's place is by its latencies: numalab run latency",
                )
        self.own = [own for own in map(analysis.own, self.runs) if own]

    @cached_property
    def latency_ratios(self) -> pl.DataFrame:
        """One row per machine, tool and class of memory: ``ratio``, ``price`` and ``how``."""
        frame = analysis.machines(analysis.ratios(self.rows, LATENCY))
        return frame.with_columns(how=_how("access"))

    @cached_property
    def bandwidth_ratios(self) -> pl.DataFrame:
        """The same of bandwidths."""
        frame = analysis.machines(analysis.ratios(self.rows, BANDWIDTH))
        return frame.with_columns(how=_how("load"))

    def overview(self) -> Text:
        """Return what the survey holds, in two lines."""
        many, figures = self.rows["machine"].n_unique(), self.rows.height
        with_other = analysis.counted(analysis.ratios(self.rows, LATENCY)).filter(
            pl.col("class") == OTHER
        )
        return Text(
            f"{figures:,} figures of {many} machines, each with its source and its "
            f"doubts. On {units.count(with_other.height, 'machine')} one named tool timed both "
            f"local memory and the other socket's. *{badge.MEANING[PUBLISHED].capitalize()}.*"
        )

    def claims(self) -> Text:
        """Return what the survey says of the claims: counts over machines, with intervals."""
        rows = [
            {
                "claim": one.says,
                "asked of the ratio": one.asked,
                "holds on": f"{one.holds} of {one.of}" if one.of else "none measured",
                "so": one.verdict,
                "share (95 %)": f"{one.share[0]:.0%} to {one.share[1]:.0%}" if one.of else "–",
                "median ratio": tables.interval(one.median, *(one.interval or (None, None))),
            }
            for one in analysis.counts(self.rows)
        ]
        return Text(tables.of_rows(rows) + f"\n*{badge.MEANING[PUBLISHED].capitalize()}.*")

    def seeds(self) -> Text:
        """Return what the survey says of three sayings of the study's own sources."""
        counts = {one.claim: one for one in analysis.counts(self.rows)}
        twice, third = counts["remote-latency-nearly-double"], counts["remote-third-lost"]
        other = self.latency_ratios.filter(pl.col("class") == OTHER)
        seed = (pl.col("machine") == "ali-e5-2682v4") & pl.col("access").ne_missing(analysis.CACHED)
        said = median(other.filter(seed)["ratio"])
        cached = other.filter(pl.col("access") == analysis.CACHED)
        intel, rest = (
            " to ".join(map(tables.number, sorted(part["value"].to_list())[:: part.height - 1]))
            for part in (cached.filter(_INTEL), cached.filter(~_INTEL))
        )
        return Text(
            f"- *Nearly twice as long*: {_so(twice)}. The article that says so measured "
            f"{said:.2f} on its own E5-2682 v4: its machine is better than its words.\n"
            f"- *About a third less bandwidth*: {_so(third)}. The saying is careful: half of these "
            f"machines lose {1 - (third.median or 0):.0%} or more.\n"
            f"- *Between nodes Intel is far faster than the others*: by that author's tool, which "
            f"partly measures caches, {intel} ns to the other socket on Intel, {rest} ns on the "
            "others. So it is, in these figures."
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers for a script."""
        return {
            "figures": self.rows.height,
            "machines": self.rows["machine"].n_unique(),
            "microarchitectures": analysis.by_microarchitecture(self.rows).to_dicts(),
            "claims": [{**vars(one), "verdict": one.verdict} for one in analysis.counts(self.rows)],
            "own": [
                {"host": run.manifest.host, "position": analysis.position(run)} for run in self.runs
            ],
        }

    def print(self) -> None:
        """Print the other socket's price by microarchitecture, the claims and one's own hosts."""
        from rich.console import Console

        console = Console(highlight=False)
        rows = analysis.by_microarchitecture(self.rows).to_dicts()
        if console.width < _TABLE_WIDTH:
            console.print("the other socket's memory against local", markup=False)
            for row in rows:
                console.print(_line(row), markup=False)
        else:
            console.print(_table(rows))
        console.print("\n" + self._counted(), markup=False)
        lines = [*map(str, analysis.counts(self.rows)), *self._places()]
        console.print("\n" + "\n".join(filter(None, lines)), markup=False)
        console.print(f"{badge.MEANING[PUBLISHED]}; data/reference/README.md", markup=False)

    def _counted(self) -> str:
        """Say what the table counts, and whose machines it leaves to the charts."""
        ratios = analysis.ratios(self.rows, LATENCY).filter(pl.col("class") == OTHER)
        counted = analysis.counted(ratios)["vendor"].unique()
        drawn = sorted(set(ratios["vendor"].drop_nulls()) - set(counted))
        words = (
            "These rows count latencies beyond the caches and bandwidths by all threads of a "
            "node, where one named tool measured local memory and the other socket's."
        )
        if drawn:
            words += (
                f" Latencies of {', '.join(drawn)} were published too, but partly of caches: they "
                "are in the charts of the page (notebooks/survey.ipynb), not in these rows."
            )
        return words

    def latency(self) -> Shown:
        """Draw the other socket's latency against local, by microarchitecture."""
        frame = self.latency_ratios.filter(pl.col("class") == OTHER)
        return charts.strips(
            frame, "ratio", "Latency of the other socket's memory", "times the local latency",
            by="how", here=self._here(OTHER), marks=self._claimed(LATENCY),
        )  # fmt: skip

    def price(self) -> Shown:
        """Draw what the other socket costs in ns, by microarchitecture."""
        frame = self.latency_ratios.filter(pl.col("class") == OTHER)
        return charts.strips(
            frame, "price", "Price of the other socket", "ns more than local memory",
            by="how", here=self._prices(),
        )  # fmt: skip

    def bandwidth(self) -> Shown:
        """Draw the other socket's bandwidth against local, by microarchitecture."""
        frame = self.bandwidth_ratios.filter(pl.col("class") == OTHER)
        return charts.strips(
            frame, "ratio", "Bandwidth of the other socket's memory", "of the local bandwidth",
            by="how", marks=self._claimed(BANDWIDTH),
        )  # fmt: skip

    def years(self) -> Shown:
        """Draw what the other socket costs in latency and bandwidth, by year."""
        other = pl.col("class") == OTHER
        latency = self.latency_ratios.filter(other)
        here = self._here(OTHER)
        return charts.over_years(
            [
                (latency, "ratio", "latency / local", list(here.values())),
                (latency, "price", "latency − local (ns)", list(self._prices().values())),
                (self.bandwidth_ratios.filter(other), "ratio", "bandwidth / local", []),
            ]
        )

    def same_socket(self) -> Shown:
        """Draw the latency of the other nodes of one socket."""
        frame = self.latency_ratios.filter(pl.col("class") == SAME)
        return charts.strips(
            frame, "ratio", "Latency of another node of the same socket",
            "times the local latency", by="how", here=self._here(SAME),
        )  # fmt: skip

    def placed(self) -> Shown:
        """Draw one's own hosts among the published machines; empty where none can be compared."""
        if self._here(OTHER):
            return self.latency()
        return self.same_socket() if self._here(SAME) else Text("")

    def same_socket_bandwidth(self) -> Shown:
        """Draw the bandwidth of the other nodes of one socket."""
        frame = self.bandwidth_ratios.filter(pl.col("class") == SAME)
        return charts.strips(
            frame, "ratio", "Bandwidth of another node of the same socket",
            "of the local bandwidth", by="how",
        )  # fmt: skip

    def without_cpus(self) -> Text:
        """Return what is published of memory without CPUs (CXL, HBM) and can be followed."""
        frame = pl.concat([self.latency_ratios, self.bandwidth_ratios])
        found = frame.filter(pl.col("class").is_in(analysis.WITHOUT_CPUS)).to_dicts()
        lines = [
            f"- {row['processor']}: {row['class'].upper()} has {row['ratio']:.2f} times the "
            f"bandwidth of the memory beside it ({row['how']})."
            for row in found
        ]
        if not any(row["class"] == "cxl" for row in found):
            lines.append(
                "- CXL: every figure that was found comes from a source that nobody can follow. "
                "A measurement of yours would be the first."
            )
        return Text("\n".join(lines))

    def distances(self) -> Shown:
        """Draw the firmware's distances against measured ratios."""
        here = {run.manifest.host: _own_distances(run) for run in self.runs if analysis.own(run)}
        return charts.distances(
            analysis.distances(self.rows), {k: v for k, v in here.items() if not v.is_empty()}
        )

    def core_to_core(self) -> Shown:
        """Draw the latency between cores by class."""
        frame = analysis.core_to_core(self.rows)
        return charts.strips(
            frame, "value", "From core to core", "one way, ns (median of the pairs)", by="pair",
            colours=charts.LEVELS, log=True,
            note="Where in memory the line lies is not known: on EPYC pairs of one socket may be"
            " timed across sockets.",
        )  # fmt: skip

    def loaded(self) -> Shown:
        """Draw all curves of latency under load."""
        return charts.loaded(analysis.loaded(self.rows))

    def servers(self) -> Shown:
        """Draw what bindings did to workloads."""
        return charts.servers(analysis.servers(self.rows))

    def positions(self) -> Text:
        """Return where each host stands, a line each; nothing where it cannot be compared."""
        return Text("\n\n".join(filter(None, map(analysis.position, self.runs))))

    def _places(self) -> Iterator[str]:
        for run in self.runs:
            yield analysis.position(run) or (
                f"{run.manifest.host}: nothing to compare it with (that needs the probe's "
                "latencies of two nodes, on a machine that is not emulated)"
            )

    def _here(self, kind: str) -> dict[str, float]:
        return {own.host: own.far[kind] / own.local for own in self.own if kind in own.far}

    def _prices(self) -> dict[str, float]:
        return {own.host: own.far[OTHER] - own.local for own in self.own if OTHER in own.far}

    def _claimed(self, what: str) -> dict[str, float]:
        """The first claim's threshold, as the experiment file says it."""
        first = next(one for one in analysis.counts(self.rows) if one.what == what)
        return {f"claimed: {first.asked}": first.bound}


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    """What the other socket costs by microarchitecture, for a terminal."""
    from rich.table import Table

    table = Table(box=None, title="the other socket's memory against local", title_justify="left")
    heads = ("microarchitecture", "year", "machines", "latency", "more, ns", "bandwidth")
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left")
    for row in rows:
        span = f"{row['least']:.2f} to {row['most']:.2f}" if row["machines"] > 1 else ""
        table.add_row(
            row["microarchitecture"],
            str(row["year"] or ""),
            str(row["machines"]),
            f"{row['ratio']:.2f} × {span:>12}",
            f"{row['price']:.0f}",
            tables.number(row["bandwidth"], 2),
        )
    return table


def _line(row: dict[str, Any]) -> str:
    """One microarchitecture of that table in words, for a narrow terminal."""
    year = f"{row['year']}, " if row["year"] else ""
    bandwidth = tables.number(row["bandwidth"], 2)
    return (
        f"- {row['microarchitecture']} ({year}{units.count(row['machines'], 'machine')}): latency "
        f"{row['ratio']:.2f} ×, {row['price']:.0f} ns more; bandwidth {bandwidth} ×"
    )


def _so(count: analysis.Count) -> str:
    """A count in words."""
    return (
        f"{count.asked} on {count.holds} of {count.of} machines "
        f"({count.share[0]:.0%} to {count.share[1]:.0%}), median "
        + tables.interval(count.median, *(count.interval or (None, None)))
    )


def _how(what: str) -> pl.Expr:
    """A tool with the way in which it measured."""
    tool = pl.col("tool").str.replace(r"^.*\(author's\)$", "author's program")
    return pl.concat_str(tool, pl.concat_str(pl.lit(", "), what).fill_null(""))


def _own_distances(run: Run) -> pl.DataFrame:
    """A host's distances and ratios, pair by pair."""
    rows = run.node_pairs("idle_latency").filter(
        (pl.col("grade") != ERROR) & pl.col("distance").is_not_null()
    )
    local = rows.filter(pl.col("binding") == "local")["value"].median()
    return (
        rows.filter(pl.col("binding") != "local")
        .group_by("cpu_nodes", "memory_nodes", maintain_order=True)
        .agg(said=pl.col("distance").first() / 10, ratio=pl.col("value").median() / local)
    )
