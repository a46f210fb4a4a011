"""The ratio of two bindings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from ...agent.contract import Cell
from .. import judge
from .base import Judged, Strict, Untestable, cells_named, cpus_of, partners, points_of, rows_of
from .base import title as titled
from .margin import Margin, Pair

if TYPE_CHECKING:
    from ...runs import Run

Cells = list[tuple[Cell, Cell]]


class Reference(Strict):
    """Two bindings whose ratio is what another ratio is divided by."""

    cell: str
    against: str


class Ratio(Margin):
    """The ratio of two bindings.

    ``cell`` and ``against`` are bindings as an experiment names them (``remote``,
    ``cores:node-spread``), or such a name, "/" and a swept value or a case (``local/threads=2``).
    ``per`` divides the metric by another one of the same trial (misses per instruction).
    ``points`` names the points; without it all count. ``relative_to`` divides the ratio by that of
    two other bindings: is a gap wider under one load than under another? ``better`` says which way
    is better where the experiment does not measure the metric; ``pairs: worst`` needs to know.
    """

    keys: ClassVar = ("against",)

    metric: str
    cell: str
    against: str
    per: str | None = None
    pairs: Literal["every", "median", "worst", "nearest", "farthest"] = "every"
    points: list[str] | None = None
    relative_to: Reference | None = None
    better: Literal["higher", "lower"] | None = None

    def judged(self, run: Run, others: Sequence[Run]) -> Judged:
        """Return what a run says; or Untestable."""
        pairs = self._pairs(run, self.cell, self.against)
        title = f"{titled(self.metric, self.per)}, {self.cell} against {self.against}"
        reference: Cells = []
        if self.relative_to:
            reference = self._reference(run, pairs)
            title += f", over {self.relative_to.cell} against {self.relative_to.against}"
        names = tuple(dict.fromkeys(c.id for pair in [*pairs, *reference] for c in pair))
        rows = rows_of(run, self.metric, self.per, names, self.points)
        points = points_of(rows, self.points)
        lowest = self._higher_is_better(run) if self.pairs == "worst" else True
        found: dict[tuple[int, str], Pair] = {}
        for point in points:
            asked = judge.of(run.measurements, run.plan, self.metric, point, self.per)
            for place, (cell, partner) in enumerate(pairs):
                effect = asked.compare(cell.id, partner.id)
                if reference:
                    one, other = reference[place]
                    effect = effect.over(asked.compare(one.id, other.id))
                name = cell.label + (f" at {point}" if len(points) > 1 else "")
                found[place, point] = Pair(name, effect)
        ordered = [found[place, point] for place in range(len(pairs)) for point in points]
        judged = self.decided(ordered, title, names, run, aggregate=self.pairs, lowest=lowest)
        alike = [str(cell.stands_for) for cell, _ in pairs if cell.stands_for]
        return replace(judged, because="; ".join([judged.because, *dict.fromkeys(alike)]))

    def _higher_is_better(self, run: Run) -> bool:
        measure = run.plan.request.measure.get(self.metric) if self.per is None else None
        better = self.better or (measure and measure.better)
        if not better:
            raise Untestable("direction-unknown", metric=titled(self.metric, self.per))
        return better == "higher"

    def _pairs(self, run: Run, cell: str, against: str) -> Cells:
        """The cells that are named, each with its partner."""
        left, right = cells_named(cell, run), cells_named(against, run)
        if self.pairs in ("nearest", "farthest"):
            left = [one for one in left if self.pairs in one.rank]
            if not left:
                raise Untestable("no-cell-of-rank", cell=cell, rank=self.pairs)
        if [one.id for one in left] == [one.id for one in right]:
            raise Untestable("same-cells", cell=cell, other=against)
        pairs = [(one, partner) for one in left for partner in partners(one, right)]
        if not pairs:
            raise Untestable("no-partner", cell=cell, other=against)
        shows_one = run.host.topology.one_visible_node
        if shows_one and all(_alike(a, b, run) for a, b in pairs):
            raise Untestable("alike-on-one-node", cell=cell, other=against)
        return pairs

    def _reference(self, run: Run, pairs: Cells) -> Cells:
        assert self.relative_to
        found = self._pairs(run, self.relative_to.cell, self.relative_to.against)
        if found == pairs:
            raise Untestable("same-cells", cell=self.cell, other=self.relative_to.cell)
        if len(found) != len(pairs):
            raise Untestable(
                "pairs-do-not-match", cell=self.cell, pairs=len(pairs),
                other=self.relative_to.cell, others=len(found),
            )  # fmt: skip
        return found


def _alike(one: Cell, other: Cell, run: Run) -> bool:
    """Whether two cells differ in nothing but the placement of their memory."""
    split = len(one.instances) != len(other.instances)  # several servers differ from one anywhere
    return cpus_of(one, run) == cpus_of(other, run) and not split
