"""A metric's own value in one cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl
from pydantic import model_validator

from ...agent.contract import reason
from ...agent.words import units
from .. import judge
from ..evidence import BLOCKS_NEEDED, median_interval
from .base import (
    INCONCLUSIVE,
    REFUTED,
    SUPPORTED,
    Form,
    Judged,
    Untestable,
    cells_named,
    points_of,
    rows_of,
    too_few,
)
from .base import title as titled

if TYPE_CHECKING:
    from ...runs import Run

_Series = tuple[str, list[float]]


class OwnValue(Form):
    """A metric's own value in one cell, the median over the blocks.

    ``point`` names the point; without it all count. ``per`` divides by another metric of the same
    trial. Exactly one of ``at_most``, ``at_least`` and ``between`` is given, in the unit of the
    metric (of the quotient). Supported when every interval of the median (by order statistics)
    lies within what is asked, refuted when one lies outside, corrected for their number. A run that
    drifted in the metric decides nothing here either.
    """

    keys: ClassVar = ("at_most", "at_least", "between", "point")

    metric: str
    cell: str
    point: str | None = None
    per: str | None = None
    at_most: float | None = None
    at_least: float | None = None
    between: tuple[float, float] | None = None

    @model_validator(mode="after")
    def _one_margin(self) -> OwnValue:
        given = [one for one in (self.at_most, self.at_least, self.between) if one is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of at_most, at_least, between")
        if self.between and not self.between[0] < self.between[1]:
            raise ValueError("between is [lower, higher]")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest value that hold; infinite where there is no bound."""
        if self.between:
            return self.between
        least = -math.inf if self.at_least is None else self.at_least
        return least, math.inf if self.at_most is None else self.at_most

    def judged(self, run: Run, others: Sequence[Run]) -> Judged:
        """Return what a run says; or Untestable."""
        cells = cells_named(self.cell, run)
        names = tuple(cell.id for cell in cells)
        asked = None if self.point is None else [self.point]
        rows = rows_of(run, self.metric, self.per, names, asked)
        rows = rows.filter(pl.col("cell").is_in(list(names)))
        title = titled(self.metric, self.per)
        series: list[_Series] = []
        for cell in cells:
            for point in points_of(rows, asked):
                at = rows.filter((pl.col("cell") == cell.id) & (pl.col("point") == point))
                values = at.group_by("block").agg(pl.col("value").mean())["value"].to_list()
                name = f"{title} {point}".rstrip() + f", {cell.label}"
                if len(values) < BLOCKS_NEEDED:
                    few = too_few(len(values), name, run)
                    return Judged(INCONCLUSIVE, f"{self.cell}: {few}", names)
                series.append((name, values))
        if not series:
            raise Untestable("metric-not-measured", metric=title)
        for point in points_of(rows, asked):
            if judge.of(run.measurements, run.plan, self.metric, point, self.per).drifted:
                return Judged(INCONCLUSIVE, f"{self.cell}: {reason(judge.DRIFTED)}", names)
        verdict, telling = self._verdict(series)
        unit = "" if self.per else rows["unit"][0]
        return Judged(verdict, self._sentence(telling, len(series), unit, verdict), names)

    def _verdict(self, series: list[_Series]) -> tuple[str, _Series]:
        said = judge.medians_within([values for _, values in series], self.bounds)
        if False in said:
            return REFUTED, series[said.index(False)]
        if None in said:
            return INCONCLUSIVE, [one for one, holds in zip(series, said) if holds is None][-1]
        return SUPPORTED, min(series, key=self._room)

    def _room(self, one: _Series) -> float:
        """How far a median is within the bounds; negative beyond them."""
        middle = float(np.median(one[1]))
        return min(middle - self.bounds[0], self.bounds[1] - middle)

    def _sentence(self, telling: _Series, count: int, unit: str, verdict: str) -> str:
        name, values = telling
        low, high, level = median_interval(values) or (min(values), max(values), 0.0)
        least, greatest = self.bounds
        if self.between:
            asked = f"between {_figure(least, unit)} and {_figure(greatest, unit)}"
        elif self.at_least is not None:
            asked = f"at least {_figure(least, unit)}"
        else:
            asked = f"at most {_figure(greatest, unit)}"
        which = f"of {count} the least favourable, " if count > 1 else ""
        text = (
            f"{which}{name}: median {_figure(float(np.median(values)), unit)}, {level:.1%} interval"
            f" [{_figure(low, unit)}, {_figure(high, unit)}] from {len(values)} blocks;"
            f" the claim asks for {asked}"
        )
        if verdict == INCONCLUSIVE and (high < least or low > greatest):
            text += "; not beyond chance once the number of cells is paid for"
        elif verdict == INCONCLUSIVE:
            text += "; the interval straddles the margin"
        return text


def _figure(value: float, unit: str) -> str:
    if unit in ("B", "bytes"):
        return ("-" if value < 0 else "") + units.size(round(abs(value)))
    if unit == "share":
        return f"{value:.1%}"
    shown = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return shown if unit == "count" else f"{shown} {unit}".rstrip()
