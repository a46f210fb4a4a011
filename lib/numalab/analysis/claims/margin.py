"""Predicates on ratios: what a ratio must be, and how many pairs are judged together.

How pairs are aggregated. A pair is a cell of one binding and its partner of another; where a
metric has several points, each pair counts once per point.

- ``every`` (default): all pairs hold; refuted when one does not.
- ``worst``: the pair that loses most: the lowest ratio where higher is better, the highest where
  lower is better. "The lowest is at most r" means that some pair is; "the lowest is at least r"
  is the same as ``every``.
- ``median``: the median of the pairs' ratios, with the medians of their bounds.
- ``nearest``, ``farthest``: the median over the pairs that the plan ranks so.

The judge's bounds hold for all pairs together, so that any of them may decide. "The same" is shown
by each pair's own 90 % interval within the margin. A side of the margin that has no room for "no
difference" needs the judge to call the pair different.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from .. import judge
from ..judge import Effect
from .base import INCONCLUSIVE, REFUTED, SUPPORTED, Form, Judged, Untestable, undecided

if TYPE_CHECKING:
    from ...runs import Run

_MARGINS = ("ratio_at_most", "ratio_at_least", "ratio_between", "same_within")


@dataclass(frozen=True)
class Pair:
    """One pair of cells (or points) by its name for readers, and what the judge says of it."""

    name: str
    effect: Effect


class Margin(Form):
    """What a ratio must be: exactly one of ``ratio_…`` and ``same_within`` is given."""

    ratio_at_most: float | None = Field(None, gt=0)
    ratio_at_least: float | None = Field(None, gt=0)
    ratio_between: tuple[float, float] | None = None
    same_within: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _one_margin(self) -> Margin:
        if sum(getattr(self, name) is not None for name in _MARGINS) != 1:
            raise ValueError(f"give exactly one of {', '.join(_MARGINS)}")
        if self.ratio_between and not 0 < self.ratio_between[0] < self.ratio_between[1]:
            raise ValueError("ratio_between is [lower, higher], both above 0")
        return self

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """The least and the greatest ratio that hold; None where there is no bound."""
        if self.ratio_between:
            return self.ratio_between
        if self.same_within:
            return 1 / (1 + self.same_within), 1 + self.same_within
        return self.ratio_at_least, self.ratio_at_most

    def decided(
        self, pairs: list[Pair], title: str, names: tuple[str, ...], run: Run,
        *, aggregate: str, lowest: bool = True,
    ) -> Judged:  # fmt: skip
        """Return the verdict on these pairs; ``lowest``: the worst one has the lowest ratio."""
        broken = [pair for pair in pairs if pair.effect.ratio is None]
        if broken and len(broken) == len(pairs):
            raise Untestable("no-pair-has-a-ratio", what=title, why=broken[0].effect.reason)
        if not broken:
            pairs = _aggregated(pairs, aggregate)
        for pair in broken or sorted(pairs, key=lambda pair: pair.effect.n):
            if pair.effect.inner is None or pair.effect.decision == judge.DRIFTED:
                why = undecided(pair.effect, pair.name, run)
                return Judged(INCONCLUSIVE, f"{title}: {why}", names)
        some = aggregate == "worst"
        verdicts = list(self._by_bound(pairs, some and lowest, some and not lowest))
        verdict = next(
            (word for word in (REFUTED, INCONCLUSIVE) if any(word == said for said, _ in verdicts)),
            SUPPORTED,
        )
        shown = next(pair for said, pair in verdicts if said == verdict)
        if some:
            shown = (min if lowest else max)(pairs, key=lambda pair: pair.effect.ratio or 0)
        because = self._sentence(title, aggregate, shown, len(pairs), verdict)
        return Judged(verdict, because, names)

    def _by_bound(
        self, pairs: list[Pair], lowest: bool, highest: bool
    ) -> Iterator[tuple[str, Pair]]:
        """Judge each side of the margin; ``lowest``, ``highest``: of this pair alone."""
        least, greatest = self.bounds
        same = self.same_within is not None
        if least is not None:
            yield _one_sided(pairs, least, True, highest, same)
        if greatest is not None:
            yield _one_sided(pairs, greatest, False, lowest, same)

    def _sentence(self, title: str, aggregate: str, pair: Pair, count: int, verdict: str) -> str:
        effect = pair.effect
        ratio, low, high = effect.figures
        which = {"worst": "worst pair, "}.get(aggregate, "")
        if aggregate == "every" and count > 1:
            which = f"of {count} pairs the least favourable, "
        text = (
            f"{title}: {which}{pair.name}: ratio {ratio:.3f}, 95 % interval"
            f" [{low:.3f}, {high:.3f}] from {effect.n} blocks;"
            f" the claim asks for {self._asked()}"
        )
        if self.same_within and verdict == SUPPORTED and effect.inner:
            text += f" (90 % interval [{effect.inner[0]:.3f}, {effect.inner[1]:.3f}])"
        if verdict == INCONCLUSIVE:
            text += f"; {self._why_open(effect)}"
        if effect.dropped:
            text += f"; {effect.dropped} blocks left out"
        return text

    def _why_open(self, effect: Effect) -> str:
        _, low, high = effect.figures
        if any(bound is not None and low < bound < high for bound in self.bounds):
            return "the interval straddles the margin"
        if effect.decision == judge.NO_CONTROL:
            return "no A/A control with enough blocks, so a difference cannot be told from chance"
        return "not distinguishable from what the A/A control shows where nothing differs"

    def _asked(self) -> str:
        if self.same_within:
            return f"the same within {self.same_within:.0%}"
        if self.ratio_between:
            return "between {:g} and {:g}".format(*self.ratio_between)
        if self.ratio_at_most:
            return f"at most {self.ratio_at_most:g}"
        return f"at least {self.ratio_at_least:g}"


def _aggregated(pairs: list[Pair], aggregate: str) -> list[Pair]:
    """Return the pairs that are judged: those given, or one that is their median."""
    if aggregate not in ("median", "nearest", "farthest") or len(pairs) == 1:
        return pairs
    named = "" if aggregate == "median" else f" {aggregate}"
    name = f"the median of {len(pairs)}{named} pairs"
    return [Pair(name, judge.middle([pair.effect for pair in pairs]))]


def _one_sided(
    pairs: list[Pair], bound: float, at_least: bool, some: bool, same: bool
) -> tuple[str, Pair]:
    """Judge "every (some) pair's ratio is at least (at most) the bound"; and the telling pair."""
    # the claim's side has room for "no difference" when 1 lies on it
    even = bound <= 1 if at_least else bound >= 1
    holds = [_on_side(pair.effect, bound, at_least, even, same) for pair in pairs]
    fails = [_on_side(pair.effect, bound, not at_least, not even, False) for pair in pairs]
    # the pair that speaks most against "every", or most for "some"
    order: Any = min if at_least != some else max
    telling = order(pairs, key=lambda pair: pair.effect.ratio)
    if any(holds) if some else all(holds):
        return SUPPORTED, telling
    if all(fails) if some else any(fails):
        return REFUTED, telling
    return INCONCLUSIVE, telling


def _on_side(effect: Effect, bound: float, above: bool, even: bool, same: bool) -> bool:
    """Whether a pair's interval lies on one side of a bound, and may be said to."""
    _, low, high = effect.figures
    if same and effect.inner:
        low, high = effect.inner
    return (low >= bound if above else high <= bound) and (even or effect.different)
