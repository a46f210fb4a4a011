"""One metric goes the way of another."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import polars as pl

from ...agent.contract import Cell
from .. import judge
from ..judge import Effect
from .base import (
    INCONCLUSIVE,
    REFUTED,
    SUPPORTED,
    Form,
    Judged,
    Untestable,
    cells_named,
    cpus_of,
    plain_cells,
    rows_of,
    undecided,
)
from .base import title as titled

if TYPE_CHECKING:
    from ...runs import Run


class Follows(Form):
    """One metric goes the way of another.

    For every two cells with as many CPUs each that differ in ``follows``, ``metric`` must differ
    the same way. ``cells`` names the cells; without it they are all of the plain load.
    """

    keys: ClassVar = ("follows",)

    metric: str
    follows: str
    cells: list[str] | None = None

    def judged(self, run: Run, others: Sequence[Run]) -> Judged:
        """Return what a run says; or Untestable."""
        pairs = self._pairs(run)
        names = tuple(dict.fromkeys(cell.id for pair in pairs for cell in pair))
        leads, trails = (
            self._effects(run, metric, pairs, names) for metric in (self.follows, self.metric)
        )
        title = (
            f"{titled(self.metric)} after {titled(self.follows)}, {len(pairs)} pairs with as many "
            "CPUs"
        )
        every = zip(pairs * 2, [*leads, *trails], strict=True)
        for (cell, _), effect in sorted(every, key=lambda both: both[1].n):
            if not effect.decided:
                why = undecided(effect, cell.label, run)
                return Judged(INCONCLUSIVE, f"{title}: {why}", names)
        apart = [place for place, lead in enumerate(leads) if _way(lead)]
        if not apart:
            raise Untestable("nothing-to-follow", metric=titled(self.follows))
        same = [place for place in apart if _way(trails[place]) == _way(leads[place])]
        against = [place for place in apart if _way(trails[place]) == -_way(leads[place])]
        verdict = REFUTED if against else SUPPORTED if len(same) == len(apart) else INCONCLUSIVE
        shown = against or [place for place in apart if place not in same] or same
        place = max(shown, key=lambda place: abs(leads[place].log))
        example = self._worded(pairs[place], leads[place], trails[place])
        because = (
            f"{title}: {len(apart)} differ in {titled(self.follows)}, {titled(self.metric)} goes "
            f"the same way in {len(same)} of them and the other way in {len(against)}; {example}"
        )
        return Judged(verdict, because, names)

    def _pairs(self, run: Run) -> list[tuple[Cell, Cell]]:
        """Return every two of the cells that have as many CPUs each; Untestable without any."""
        named = [cell for name in self.cells or () for cell in cells_named(name, run)]
        cells = plain_cells(run) if self.cells is None else named
        pairs = [
            (one, other)
            for one, other in itertools.combinations(cells, 2)
            if len(cpus_of(one, run)) == len(cpus_of(other, run))
        ]
        if not pairs:
            raise Untestable("no-cells-alike-in-cpus")
        return pairs

    def _worded(self, pair: tuple[Cell, Cell], lead: Effect, trail: Effect) -> str:
        """Return how two cells differ in both metrics."""
        ratio, low, high = trail.figures
        return (
            f"{pair[0].label} over {pair[1].label}: {titled(self.follows)} ratio "
            f"{lead.figures[0]:.3f}, {titled(self.metric)} ratio {ratio:.3f}, 95 % interval "
            f"[{low:.3f}, {high:.3f}] from {trail.n} blocks"
        )

    def _effects(
        self, run: Run, metric: str, pairs: list[tuple[Cell, Cell]], names: Sequence[str]
    ) -> list[Effect]:
        rows = rows_of(run, metric, None, names, None).filter(pl.col("cell").is_in(list(names)))
        points = rows["point"].unique().to_list()
        if len(points) != 1:
            raise Untestable("several-points", metric=titled(metric))
        asked = judge.of(run.measurements, run.plan, metric, points[0])
        return [asked.compare(one.id, other.id) for one, other in pairs]


def _way(effect: Effect) -> int:
    """Return 1 for an effect upwards, -1 for one downwards, 0 where two cells do not differ."""
    return (1 if effect.log > 0 else -1) if effect.different else 0
