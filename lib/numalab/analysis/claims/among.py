"""The points of one cell against each other: several instances of a server."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import polars as pl

from ...agent.contract import reason
from .. import judge
from .base import INCONCLUSIVE, Judged, Untestable, cells_named, rows_of
from .base import title as titled
from .margin import Margin, Pair

if TYPE_CHECKING:
    from ...runs import Run


class Among(Margin):
    """The points of one cell against each other, within the same trial.

    The pairs are all ordered pairs of points. ``every`` pair within ``same_within`` means even;
    ``worst`` with ``ratio_at_least`` that some pair is that far apart. An A/A run that drifted in
    the metric decides nothing here either.
    """

    keys: ClassVar = ("among",)

    metric: str
    among: str
    per: str | None = None
    pairs: Literal["every", "worst"] = "every"
    points: list[str] | None = None

    def judged(self, run: Run, others: Sequence[Run]) -> Judged:
        """Return what a run says; or Untestable."""
        cells = cells_named(self.among, run)
        names = tuple(cell.id for cell in cells)
        rows = rows_of(run, self.metric, self.per, names, self.points)
        pairs = []
        for cell in cells:
            mine = rows.filter(pl.col("cell") == cell.id)
            asked = judge.among_points(mine, run.plan)
            points = mine["point"].unique().sort().to_list()
            for one, other in itertools.permutations(points, 2):
                pairs.append(Pair(f"{one} over {other}", asked.compare(one, other)))
        title = f"{titled(self.metric, self.per)} among the points of {self.among}"
        if not pairs:
            raise Untestable(
                "one-point-only", metric=titled(self.metric, self.per), cell=self.among
            )
        # of two points either may be the first: the worst pair is the one farthest apart
        lowest = self.ratio_at_least is None
        for point in rows["point"].unique():
            if judge.of(run.measurements, run.plan, self.metric, point, self.per).drifted:
                return Judged(INCONCLUSIVE, f"{title}: {reason(judge.DRIFTED)}", names)
        return self.decided(pairs, title, names, run, aggregate=self.pairs, lowest=lowest)
