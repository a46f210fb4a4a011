"""This run beside one of the same machine that shows its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import polars as pl

from ...agent.contract import CONTROL, Cell, HostRecord
from .. import judge
from .base import Judged, Untestable, cpus_of, points_of, rows_of
from .base import title as titled
from .margin import Margin, Pair

if TYPE_CHECKING:
    from ...runs import Run


class Beside(Margin):
    """This run beside one of the same machine: ``beside: nodes-shown``.

    For a host whose firmware or kernel hides its nodes. Each cell is compared with the cell on
    the same CPUs of the run in which the nodes are shown and no memory policy was set; blocks of
    two runs have nothing in common, so nothing is paired (``judge.across``).
    """

    keys: ClassVar = ("beside",)

    metric: str
    beside: Literal["nodes-shown"]
    per: str | None = None
    pairs: Literal["every"] = "every"
    points: list[str] | None = None

    def judged(self, run: Run, others: Sequence[Run]) -> Judged:
        """Return what a run says; or Untestable."""
        if len(run.host.topology.nodes) > 1:
            raise Untestable("nodes-are-shown")
        shown = [other for other in others if _same_machine(run.host, other.host)]
        if not shown:
            raise Untestable("no-run-with-nodes-shown")
        other = shown[-1]
        matched = _same_cpus(run, other)
        if not matched:
            raise Untestable("no-cell-on-same-cpus")
        rows = rows_of(run, self.metric, self.per, [c.id for c, _ in matched], self.points)
        theirs = rows_of(other, self.metric, self.per, [c.id for _, c in matched], self.points)
        tools = sorted({*rows["tool"], *theirs["tool"]})
        if len(tools) > 1:
            raise Untestable("different-tools", tools=tools)
        points = points_of(rows, self.points)
        pairs = []
        for cell, partner in matched:
            for point in points:
                pairs.append(self._pair((run, rows, cell), (other, theirs, partner), point,
                                        len(matched) * len(points)))  # fmt: skip
        title = f"{titled(self.metric, self.per)}, nodes hidden against shown ({other.host.host})"
        names = tuple(cell.id for cell, _ in matched)
        return self.decided(pairs, title, names, run, aggregate=self.pairs)

    def _pair(
        self, mine: tuple[Run, pl.DataFrame, Cell], theirs: tuple[Run, pl.DataFrame, Cell],
        point: str, tried: int,
    ) -> Pair:  # fmt: skip
        values: list[list[float]] = []
        for _, rows, cell in (mine, theirs):
            at = rows.filter((pl.col("cell") == cell.id) & (pl.col("point") == point))
            values.append(at["value"].to_list())
        label = mine[2].label + (f" at {point}" if point else "")
        ours, other = (
            judge.of(run.measurements, run.plan, self.metric, point, self.per)
            for run in (mine[0], theirs[0])
        )
        return Pair(label, judge.across(values[0], values[1], (ours, other), tried))


def _same_machine(host: HostRecord, other: HostRecord) -> bool:
    """Whether another host record is of this machine with more nodes than it shows here."""
    one, two = host.topology, other.topology
    alike = (one.model, one.packages, one.threads) == (two.model, two.packages, two.threads)
    product = [record.before.get("dmi.product") for record in (host, other)]
    named = [setting.value if setting else None for setting in product]
    return alike and len(two.nodes) > 1 and (None in named or named[0] == named[1])


def _same_cpus(run: Run, other: Run) -> list[tuple[Cell, Cell]]:
    """Cells of one load on the same CPUs, the partner without a memory policy."""
    free = {
        (cpus_of(cell, other), cell.variant): cell
        for cell in other.plan.cells
        if cell.role != CONTROL and cell.memory.policy == "default"
    }
    mine = {(cpus_of(cell, run), cell.variant): cell
            for cell in run.plan.cells if cell.role != CONTROL}  # fmt: skip
    return [(cell, free[at]) for at, cell in mine.items() if at in free]
