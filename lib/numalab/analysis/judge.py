"""The one judge: do two cells differ in a metric? Tables, claims, recommendation ask it alike.

*Noise.* Values are logarithms with block and cell as factors: value = cell + block + noise, a
two-way layout (Scheffé, The Analysis of Variance, 1959, chapter 4). What the host does to a whole
block falls out. The noise is estimated from all cells together, with (cells - 1)(blocks - 1)
degrees of freedom where nothing is missing, so that six blocks are enough to know it. A lost trial
costs its degree of freedom. The control is the baseline under another name; its values are the
baseline's too.

*A cell noisier than the others* neither lends its noise nor borrows theirs: its pairs are judged by
the differences within their own blocks alone (paired t). An F test asks whether a cell's values
scatter more than those of all others (leaving a group out: Cook and Weisberg, Residuals and
Influence in Regression, 1982), at 0.1 % for all cells together; the noisiest goes first, and the
rest are asked again. The A/A pair is never left out: what it shows is chance. Smaller differences
in noise widen the bounds of all (below).
One that is three times as noisy is often not told from the others by few blocks: 9 in 100 null runs
with such a cell name a difference, of like cells 4 to 6 (``bench/judge.py``). To part it off sooner
costs the power that like cells need.

*Correction.* The bounds of every ratio hold together, for all that may be named of the metric:
with 95 % none of them misses its ratio. The pairs that a run is made for (each cell with its
baseline, and with the cell ``unbound`` of its load) share 4.5 of the 5 % equally, all pairs share
the rest (Dunn, "Multiple comparisons among means", JASA 56, 1961). A metric of several points
divides the 5 % among them. That is Student's t; what the run's own noise makes of it is seen from
its residuals, drawn anew within each cell (Westfall and Young, Resampling-Based Multiple Testing,
1993; a cell's scatter is first moved a quarter of the way to that of all, since few blocks show it
badly): pairs that share a baseline need less, heavy tails or uneven noise need more.

*Several looks.* A run that adds blocks until it has decided is judged after each of
``request.looks``, and what is named at any of them counts. The 5 % are spent in proportion to the
blocks: of N at most, the look after block n, where the one before came after block m, has
(n - m) / N of them (Lan and DeMets, "Discrete sequential boundaries for clinical trials",
Biometrika 70, 1983; with this share Kim and DeMets, Biometrika 74, 1987). The shares of all looks
are added, as if no look knew of the one before, so that nothing hangs on the kind of noise.

*The A/A rule.* The control decides in both directions alike. Its 99 % interval excludes 1 by more
than 0.5 %: the run drifted, and the metric has no verdicts at this point. Else an effect counts
only where it is greater than what the control itself shows, up or down. Without a control, or
below six blocks, nothing is decided.

``bench/judge.py`` simulates how often all this errs, and what it sees.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from scipy import special

from ..agent.contract import CONTROL, Cell, Plan, Reason, dumps, reason
from .evidence import (
    BLOCKS_NEEDED,
    CONFIDENCE,
    Grid,
    deciding_rows,
    grid,
    median_interval,
    real,
    summarise,
)

if TYPE_CHECKING:
    from ..runs import Run

DIFFERENT, ALIKE = "different", "not-distinguishable"
TOO_FEW, NO_CONTROL, DRIFTED = "too-few-blocks", "no-aa-control", "drifted"
AA, NO_RATIO = "control", "no-ratio"
DECISIONS = (DIFFERENT, ALIKE, TOO_FEW, NO_CONTROL, DRIFTED, AA, NO_RATIO)

DEFAULT = "unbound"
_ANY_PAIR = 0.1  # of the 5 %: what is left for pairs that a run was not made for
AMONG = 0.01  # for the points of one cell, beside the 5 % of the cells
_DRIFT_CONFIDENCE, _DRIFT_EXCESS = 0.99, np.log(1.005)
_EQUIVALENCE = 0.90
_NOISIER = 0.001  # the chance that of like cells any is called noisier than the others
_SURE = 0.90  # how surely the smallest effect is seen
_ASSUMED_NOISE = 0.02
_RESAMPLES, _SEED = 1000, 1987
_SHRUNK = 0.25  # of a cell's own scatter, which few blocks show badly, towards that of all

Pair = tuple[str, str]
Rows = tuple[int, ...]


@dataclass(frozen=True)
class Effect:
    """What the judge says of one cell over another (``ratio`` = cell / other).

    ``low`` and ``high`` are the bounds that hold for all pairs together; ``inner`` is the 90 %
    interval of this pair alone, by which two cells may be called the same (two one-sided tests at
    5 %; Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15, 1987). They are None below
    ``BLOCKS_NEEDED`` blocks. ``n`` counts the blocks that hold both, ``dropped`` those of the run
    that do not. ``decision`` is one of ``DECISIONS``; ``reason`` says why there is no ratio.
    """

    ratio: float | None
    low: float | None
    high: float | None
    inner: tuple[float, float] | None
    n: int
    decision: str
    dropped: int = 0
    reason: Reason | None = None

    @property
    def different(self) -> bool:
        """Whether the two differ, as far as this run can say."""
        return self.decision == DIFFERENT

    @property
    def figures(self) -> tuple[float, float, float]:
        """The ratio and its bounds; NaN for what is not known."""
        known = (self.ratio, self.low, self.high)
        ratio, low, high = (np.nan if one is None else one for one in known)
        return ratio, low, high

    @property
    def log(self) -> float:
        """The logarithm of the ratio, NaN where there is none."""
        return float(np.log(self.figures[0]))

    @property
    def decided(self) -> bool:
        """Whether the run could decide at all; ``not-distinguishable`` is a decision too."""
        return self.decision in (DIFFERENT, ALIKE)

    def over(self, other: Effect) -> Effect:
        """Return this ratio over another one: is a gap wider here than there?

        Both intervals hold together, so their ends over each other bound the quotient.
        """
        if self.ratio is None or other.ratio is None:
            return other if other.ratio is None else self
        n, dropped = min(self.n, other.n), max(self.dropped, other.dropped)
        undecided = next((one for one in (self, other) if not one.decided), None)
        ratio = self.ratio / other.ratio
        if undecided or self.inner is None or other.inner is None:
            said = undecided.decision if undecided else TOO_FEW
            return Effect(ratio, None, None, None, n, said, dropped)
        (_, low, high), (_, least, most) = self.figures, other.figures
        low, high = low / most, high / least
        inner = (self.inner[0] / other.inner[1], self.inner[1] / other.inner[0])
        said = DIFFERENT if low > 1 or high < 1 else ALIKE
        return Effect(ratio, low, high, inner, n, said, dropped)


def middle(effects: Sequence[Effect]) -> Effect:
    """Return the median of several ratios; the medians of bounds that hold together bound it."""
    if len(effects) == 1:
        return effects[0]
    undecided = next((one for one in effects if not one.decided), None)
    known = [one.ratio for one in effects if one.ratio is not None]
    ratio = _median(known) if known else None
    n, dropped = min(one.n for one in effects), max(one.dropped for one in effects)
    if undecided:
        return Effect(ratio, None, None, None, n, undecided.decision, dropped, undecided.reason)
    low, high = (_median([one.figures[end] for one in effects]) for end in (1, 2))
    inner = [one.inner for one in effects if one.inner]
    alone = (_median([low for low, _ in inner]), _median([high for _, high in inner]))
    said = DIFFERENT if low > 1 or high < 1 else ALIKE
    return Effect(ratio, low, high, alone, n, said, dropped)


def _median(ratios: Sequence[float]) -> float:
    return float(np.exp(np.median(np.log(ratios))))


class Judge:
    """Judges the pairs of one grid: ``planned`` pairs, and any other.

    ``share`` is the share of the 5 % that is spent here; ``level`` replaces 5 % (for points of one
    cell). ``needs_control`` False: there is no A/A control by nature, and its rule is left out.

    ``noise`` is the standard deviation of one trial's log value once cell and block are known, None
    where that cannot be told; ``noisier`` names the cells that it does not hold for.
    """

    def __init__(
        self,
        evidence: Grid,
        planned: Iterable[Pair] = (),
        *,
        share: float = 1.0,
        level: float = 1 - CONFIDENCE,
        needs_control: bool = True,
    ) -> None:
        self.grid = evidence
        self.needs_control = needs_control
        self.level = level * share
        self._known = np.isfinite(evidence.logs)
        own: dict[str, Rows] = {name: (place,) for place, name in enumerate(evidence.cells)}
        self._rows = dict(own)  # of what bears a name: the baseline has its control's too
        for control, cell in evidence.controls.items():
            self._rows[cell] += own[control]
        self._fit()
        seen = [name for name in evidence.cells if self._known[list(self._rows[name])].any()]
        self.planned = list({frozenset(p): p for p in planned if set(p) <= set(seen)}.values())
        self._is_planned = {frozenset(pair) for pair in self.planned}
        others = len(set(seen) - set(evidence.controls))
        self._pairs = max(others * (others - 1) // 2, 1)
        self.controls = {
            control: self._control(own[control], own[cell])
            for control, cell in evidence.controls.items()
        }
        self.drifted = any(one.decision == DRIFTED for one in self.controls.values())

    def compare(self, cell: str, other: str) -> Effect:
        """Return what the run says of ``cell`` over ``other``."""
        if self.grid.controls.get(cell) == other:
            return self.controls[cell]
        refused = self._refused(cell, other)
        if refused:
            return Effect(None, None, None, None, 0, NO_RATIO, reason=refused)
        rows = self._rows[cell], self._rows[other]
        n, dropped = self._shared(*rows)
        if n == 0:
            return Effect(None, None, None, None, 0, NO_RATIO, dropped, reason("no-shared-block"))
        log, error, freedom = self._contrast(*rows)
        if n < BLOCKS_NEEDED or freedom < 1:
            return Effect(float(np.exp(log)), None, None, None, n, TOO_FEW, dropped)
        half = self._critical((cell, other), freedom) * error
        alone = _student(freedom, 1 - _EQUIVALENCE) * error
        said = self._decision(log, half)
        return Effect(float(np.exp(log)), *_ends(log, half), _ends(log, alone), n, said, dropped)

    def smallest_effect(self, noise: float | None = None) -> float | None:
        """Return the least effect that every planned pair shows with 90 % certainty (0.03: 3 %).

        Pairs of cells noisier than the others are left out. ``noise`` replaces that of the run.
        None where nothing can be decided.
        """
        sizes = []
        for pair in self.planned:
            rows = self._rows[pair[0]], self._rows[pair[1]]
            if self._shared(*rows)[0] < BLOCKS_NEEDED or self._noisier[list(sum(rows, ()))].any():
                continue
            _, error, freedom = self._contrast(*rows)
            if noise is not None:
                error = noise * float(np.linalg.norm(self._weights(*rows)))
            least = max(self._critical(pair, freedom) * error, self.aa_shown)
            sizes.append(least + float(special.stdtrit(freedom, _SURE)) * error)
        if not sizes or self.drifted or not (self.aa_known or not self.needs_control):
            return None
        return float(np.expm1(max(sizes)))

    @functools.cached_property
    def wander(self) -> float:
        """The standard deviation of what all trials of a block have in common; 0 without any."""
        count, k = len(self.grid.blocks), len(self.grid.cells)
        if count < 2 or self.noise is None:  # of one cell noise and block cannot be told apart
            return 0.0
        centred = self._model.solver[k:] - self._model.solver[k:].mean(axis=0)
        spread = float((centred @ self.grid.logs[self._fitted]).var(ddof=1))
        by_noise = self.noise**2 * float((centred**2).sum()) / (count - 1)
        return float(np.sqrt(max(spread - by_noise, 0.0)))

    @functools.cached_property
    def aa_known(self) -> bool:
        """Whether there is a control with enough blocks."""
        return any(one.n >= BLOCKS_NEEDED for one in self.controls.values())

    @functools.cached_property
    def aa_shown(self) -> float:
        """The greatest logarithm of an A/A ratio, up or down; no effect is less than rounding."""
        shown = [abs(one.log) for one in self.controls.values() if one.ratio]
        return max([1e-9, *shown])

    @property
    def noisier(self) -> tuple[str, ...]:
        """The cells that are noisier than the others."""
        return tuple(np.array(self.grid.cells, dtype=object)[self._noisier])

    def _decision(self, log: float, half: float) -> str:
        if self.needs_control and not self.aa_known:
            return NO_CONTROL
        if self.drifted:
            return DRIFTED
        return DIFFERENT if abs(log) > max(half, self.aa_shown) else ALIKE

    def _critical(self, pair: Pair, freedom: int) -> float:
        """How many standard errors a pair's bounds are from its ratio."""
        chance, number = self.level, self._pairs
        if self.planned:
            mine = frozenset(pair) in self._is_planned
            chance *= 1 - _ANY_PAIR if mine else _ANY_PAIR
            number = len(self.planned) if mine else self._pairs
        own = self._noisier[list(self._rows[pair[0]] + self._rows[pair[1]])].any()
        return _student(freedom, chance / number) * (1.0 if own else self._stretch)

    @functools.cached_property
    def _stretch(self) -> float:
        """By how much the run's own noise widens (or narrows) bounds that hold together.

        What is greatest among all planned ratios where the residuals are drawn anew, within each
        cell, over what Student's t has for as many.
        """
        pairs = self.planned or list(itertools.combinations(self.grid.cells, 2))
        weights = np.array([self._weights(self._rows[a], self._rows[b]) for a, b in pairs])
        sizes = np.linalg.norm(weights, axis=1) if pairs else np.zeros(0)
        if not self.noise or not sizes.any():
            return 1.0
        random = np.random.default_rng(_SEED)
        drawn = np.empty((len(self._residuals), _RESAMPLES))
        common = np.square(self._residuals).mean()
        for cell in self._model.cells:
            own = self._residuals[cell.values]
            own = own * (common / (np.square(own).mean() or common)) ** (_SHRUNK / 2)
            drawn[cell.values] = own[random.integers(0, len(own), (len(own), _RESAMPLES))]
        rest = np.square(drawn).sum(axis=0) - np.square(self._model.basis.T @ drawn).sum(axis=0)
        noise = np.sqrt(np.maximum(rest, 1e-300) / self._model.freedom)
        most = (np.abs(weights @ drawn)[sizes > 0] / sizes[sizes > 0, None] / noise).max(axis=0)
        usual = _student(self._model.freedom, (1 - CONFIDENCE) / np.count_nonzero(sizes))
        return float(np.quantile(most, CONFIDENCE)) / usual

    def _control(self, control: Rows, cell: Rows) -> Effect:
        """The A/A ratio with its 99 % interval; ``decision`` is ``drifted`` where it excludes 1."""
        n, dropped = self._shared(control, cell)
        refused = self._refused(*(self.grid.cells[rows[0]] for rows in (control, cell)))
        if refused or n == 0:
            why = refused or reason("no-shared-block")
            return Effect(None, None, None, None, n, NO_RATIO, dropped, why)
        log, error, freedom = self._contrast(control, cell)
        if n < BLOCKS_NEEDED or freedom < 1:
            return Effect(float(np.exp(log)), None, None, None, n, AA, dropped)
        half = _student(freedom, 1 - _DRIFT_CONFIDENCE) * error
        said = DRIFTED if abs(log) - half > _DRIFT_EXCESS else AA
        ends = _ends(log, half)
        return Effect(float(np.exp(log)), *ends, ends, n, said, dropped)

    def _refused(self, cell: str, other: str) -> Reason | None:
        for name in (cell, other):
            if name in self.grid.bad:
                return self.grid.bad[name]
            if name not in self._rows:
                return reason("cell-without-value", cell=name)
        one, two = (self.grid.tools.get(name) for name in (cell, other))
        return reason("different-tools", tools=[one, two]) if one != two else None

    def _shared(self, one: Rows, two: Rows) -> tuple[int, int]:
        """How many blocks hold both of two cells (by their rows), and how many do not."""
        both = self._known[list(one)].any(axis=0) & self._known[list(two)].any(axis=0)
        return int(both.sum()), int((~both).sum())

    # --- the model: value = cell + block + noise ------------------------------------------------

    def _contrast(self, one: Rows, two: Rows) -> tuple[float, float, int]:
        """The logarithm of a ratio (of rows over rows), its standard error, its freedom."""
        if self._noisier[list(one + two)].any():  # by the differences of the pair's own blocks
            left, right = (np.ma.masked_invalid(self.grid.logs[list(rows)]) for rows in (one, two))
            apart = (left.mean(axis=0) - right.mean(axis=0)).compressed()
            error = apart.std(ddof=1) / np.sqrt(len(apart)) if len(apart) > 1 else 0.0
            return float(apart.mean()), float(error), len(apart) - 1
        weights = self._weights(one, two)
        error = (self.noise or 0.0) * float(np.linalg.norm(weights))
        return float(weights @ self.grid.logs[self._fitted]), error, self._model.freedom

    def _weights(self, one: Rows, two: Rows) -> np.ndarray:
        """The weight of each value that was fitted in the logarithm of a ratio."""
        weights: np.ndarray = self._mean(one) - self._mean(two)
        return weights

    def _mean(self, rows: Rows) -> np.ndarray:
        """The weight of each value in the mean of a cell and its repetitions."""
        if rows not in self._means:
            counts = self._fitted[list(rows)].sum(axis=1)
            shares = counts / max(counts.sum(), 1)
            self._means[rows] = shares @ self._model.solver[list(rows)]
        return self._means[rows]

    def _fit(self) -> None:
        """Least squares of cells and blocks, leaving out the cells noisier than the others."""
        self._noisier = np.zeros(len(self.grid.cells), dtype=bool)
        paired = np.zeros(len(self.grid.cells), dtype=bool)  # of an A/A pair: chance by definition
        for rows in self._rows.values():
            paired[list(rows)] |= len(rows) > 1
        while True:
            self._fitted = self._known & ~self._noisier[:, None]
            model = _model(self._fitted.shape, self._fitted.tobytes())
            values = self.grid.logs[self._fitted]
            fitted = model.solver @ values
            k = len(self.grid.cells)
            where, when = np.nonzero(self._fitted)
            residuals = values - fitted[where] - fitted[k:][when]
            squares = float(residuals @ residuals)
            if squares < 1e-20 * max(1.0, float(values @ values)):  # only rounding is left
                squares = 0.0
            fitted_cells = np.array([where[cell.values[0]] for cell in model.cells], dtype=int)
            worst = _noisiest(model, residuals, squares, ~paired[fitted_cells])
            if worst is None:
                break
            self._noisier[fitted_cells[worst]] = True
        self._model, self._residuals = model, residuals
        self._means: dict[Rows, np.ndarray] = {}
        self.noise = float(np.sqrt(squares / model.freedom)) if model.freedom > 0 else None


def _ends(log: float, half: float) -> tuple[float, float]:
    """The ends of an interval of a ratio."""
    return float(np.exp(log - half)), float(np.exp(log + half))


@functools.lru_cache(maxsize=4096)
def _student(freedom: int, chance: float) -> float:
    """What |t| exceeds with this chance."""
    return float(special.stdtrit(freedom, 1 - chance / 2))


class _Own(NamedTuple):
    """The values of one cell in a model, and what they alone add to its sum of squares."""

    values: np.ndarray
    extra: np.ndarray  # the quadratic form of their residuals
    freedom: int


class _Model(NamedTuple):
    """A design of cells and blocks: its pseudo-inverse, a basis of it, its freedom, its cells."""

    solver: np.ndarray
    basis: np.ndarray
    freedom: int
    cells: tuple[_Own, ...]


@functools.lru_cache(maxsize=256)
def _model(shape: tuple[int, int], known: bytes) -> _Model:
    mask = np.frombuffer(known, dtype=bool).reshape(shape)
    where, when = np.nonzero(mask)
    design = np.zeros((len(where), shape[0] + shape[1]))
    rows = np.arange(len(where))
    design[rows, where] = 1
    design[rows, shape[0] + when] = 1
    left, sizes, right = np.linalg.svd(design, full_matrices=False)
    kept = sizes > 1e-9 * sizes.max(initial=1.0)
    basis = left[:, kept]
    cells = []
    for cell in np.unique(where):
        mine = np.flatnonzero(where == cell)
        free = np.eye(len(mine)) - basis[mine] @ basis[mine].T
        cells.append(_Own(mine, np.linalg.pinv(free, 1e-9, hermitian=True),
                          int(np.linalg.matrix_rank(free, 1e-9, hermitian=True))))  # fmt: skip
    solver = (right[kept].T / sizes[kept]) @ basis.T
    return _Model(solver, basis, len(where) - int(kept.sum()), tuple(cells))


def _noisiest(
    model: _Model, residuals: np.ndarray, squares: float, asked: np.ndarray
) -> int | None:
    """Return which of the cells asked for scatters more than all others together, or None.

    What a cell's values add to the others' sum of squares has an F distribution where the noise is
    the same. Nothing is asked of fewer than three cells, or where one has a single value.
    """
    freedom = np.array([cell.freedom for cell in model.cells])
    if len(freedom) < 3 or squares == 0 or freedom.min() < 1 or freedom.max() >= model.freedom:
        return None
    own = np.array([residuals[c.values] @ c.extra @ residuals[c.values] for c in model.cells])
    rest = np.maximum(squares - own, 1e-14 * squares) / (model.freedom - freedom)
    chance = np.where(
        asked, special.fdtrc(freedom, model.freedom - freedom, own / freedom / rest), 1.0
    )
    worst = int(np.argmin(chance))
    return worst if chance[worst] < _NOISIER / len(freedom) else None


# ---------------------------------------------------------------- judges of a run


def planned_pairs(plan: Plan) -> list[Pair]:
    """Return the pairs that a run is made for: with the baseline, and with the default."""
    cells = [cell for cell in plan.cells if cell.role != CONTROL]
    pairs = [(cell.id, cell.baseline) for cell in cells if cell.baseline]
    for cell in cells:
        default = default_of(cell, cells)
        if default is not None and default.id != cell.id:
            pairs.append((cell.id, default.id))
    return pairs


def default_of(cell: Cell, cells: Iterable[Cell]) -> Cell | None:
    """Return the cell without any binding under the same load, or None.

    An option that itself places memory (swept) is no load: its default is the plain one.
    """
    defaults = [one for one in cells if one.binding == DEFAULT and one.role != CONTROL]
    alike = [one for one in defaults if one.variant == cell.variant]
    return next(iter(alike or [one for one in defaults if not one.variant and cell.sweep]), None)


def of(
    measurements: pl.DataFrame, plan: Plan, metric: str, point: str = "", per: str | None = None
) -> Judge:
    """Return the judge of a metric of a run at one point; ``per`` divides it by another metric."""
    rows = deciding_rows(measurements, metric, per)
    pairs = planned_pairs(plan)
    compared = {name for pair in pairs for name in pair}
    judged = rows.filter(pl.col("cell").is_in(list(compared)))["point"].n_unique()
    share = share_of_look(plan, measurements["block"].max()) / max(judged, 1)
    return Judge(grid(rows, plan, point), pairs, share=share)


def among_points(rows: pl.DataFrame, plan: Plan) -> Judge:
    """Return the judge of the points of one cell against each other; ``rows`` are that cell's."""
    share = share_of_look(plan, rows["block"].max())
    return Judge(grid(rows, plan, key="point"), share=share, level=AMONG, needs_control=False)


def share_of_look(plan: Plan, blocks: Any) -> float:
    """Return what of the 5 % the next look at a run of so many blocks may spend; 1 for one look."""
    looks = plan.request.looks or (1,)
    place = next((n for n, look in enumerate(looks) if look >= (blocks or 0)), len(looks) - 1)
    return (looks[place] - (looks[place - 1] if place else 0)) / looks[-1]


def undecided(run: Run, within: float) -> tuple[int, list[str]]:
    """Return how many comparisons a run is made for, and which of them are open, in words.

    Decided is what differs, and what is shown to be the same within ``within`` (0.03: 3 %). A
    metric that means nothing on this host, or has no ratio, is no comparison.
    """
    count, still = 0, []
    for metric, measure in run.plan.request.measure.items():
        rows = deciding_rows(run.measurements, metric)
        kinds = rows.select("source", "tool").unique().rows()
        if not all(real(run, metric, measure.unit, *kind) for kind in kinds):
            continue
        for point in rows["point"].unique().sort():
            found = of(run.measurements, run.plan, metric, point)
            for cell, other in found.planned:
                effect = found.compare(cell, other)
                if effect.decision == NO_RATIO:
                    continue
                count += 1
                _, low, high = effect.figures
                same = effect.decided and 1 / (1 + within) <= low and high <= 1 + within
                if not (effect.different or same):
                    labels = (run.cells[name].label for name in (cell, other))
                    still.append(f"{metric} {point}".rstrip() + ": {} over {}".format(*labels))
    return count, still


def across(
    mine: Sequence[float], theirs: Sequence[float], judges: tuple[Judge, Judge], tried: int
) -> Effect:
    """Return what two runs say of one cell (mine / theirs): nothing is paired.

    ``mine`` and ``theirs`` are its values by block, ``judges`` those of the metric in both runs.
    Welch's t interval on the logarithms (Biometrika 34, 1947), corrected for the ``tried`` pairs of
    the two runs (Bonferroni); two runs are taken to differ by at least as much as two blocks of one
    run do (the host wanders). The A/A rule applies to the controls of both.
    """
    n = min(len(mine), len(theirs))
    if n == 0 or min(*mine, *theirs) <= 0:
        why = reason("cell-without-value") if n == 0 else reason("value-not-positive")
        return Effect(None, None, None, None, n, NO_RATIO, reason=why)
    one, two = np.log(mine), np.log(theirs)
    log = float(one.mean() - two.mean())
    if n < BLOCKS_NEEDED:
        return Effect(float(np.exp(log)), None, None, None, n, TOO_FEW)
    parts = np.array([values.var(ddof=1) / len(values) for values in (one, two)])
    parts = np.append(parts, [found.wander**2 for found in judges])
    degrees = np.array([len(one), len(two), len(judges[0].grid.blocks), len(judges[1].grid.blocks)])
    error = float(np.sqrt(parts.sum()))
    freedom = 1.0
    if error > 1e-12:
        freedom = float(parts.sum() ** 2 / (parts**2 / (degrees - 1)).sum())
    sure = 1 - (1 - CONFIDENCE) / max(tried, 1)
    half, alone = (
        float(special.stdtrit(freedom, (1 + level) / 2)) * error for level in (sure, _EQUIVALENCE)
    )
    if not all(found.aa_known for found in judges):
        said = NO_CONTROL
    elif any(found.drifted for found in judges):
        said = DRIFTED
    else:
        least = max(half, *(found.aa_shown for found in judges))
        said = DIFFERENT if abs(log) > least else ALIKE
    return Effect(float(np.exp(log)), *_ends(log, half), _ends(log, alone), n, said)


def medians_within(
    series: Sequence[Sequence[float]], bounds: tuple[float, float]
) -> list[bool | None]:
    """Return whether the median of each of several series lies within bounds; None: not known.

    It lies within where its 95 % interval does (by order statistics), and beyond where one that is
    corrected for the number of series does: each series may refute what is said of all.
    """
    least, greatest = bounds
    said: list[bool | None] = []
    for values in series:
        low, high, _ = median_interval(values) or (-np.inf, np.inf, 0.0)
        within = True if least <= low and high <= greatest else None
        strict = median_interval(values, 1 - (1 - CONFIDENCE) / len(series))
        beyond = strict is not None and (strict[1] < least or strict[0] > greatest)
        said.append(False if beyond else within)
    return said


def ratios(
    measurements: pl.DataFrame,
    plan: Plan,
    metrics: Sequence[str] | None = None,
    point: str | None = None,
) -> pl.DataFrame:
    """Return one row per cell with a baseline, metric and point: its ratio to that, judged.

    Columns: those of the cell as in ``evidence.summarise``; ``ratio`` to the baseline (its control
    included), ``low`` and ``high`` (95 %, for all pairs together; of the control itself 99 %),
    ``n`` blocks used, ``dropped`` blocks left out, ``aa_low`` and ``aa_high`` (the A/A control's
    interval), ``decision`` (one of ``DECISIONS``), ``reason`` and ``reason_fields`` (the code why
    there is no ratio, and its fields as JSON). ``measurements`` are those of one run; ``point``
    chooses one point.
    """
    heads = summarise(measurements, metrics).filter(
        pl.col("baseline").is_not_null() & (pl.col("n") > 0)
    )
    if point is not None:
        heads = heads.filter(pl.col("point") == point)
    if "tool" in heads["source"]:  # a collector may count what the tool counts too
        own = heads.filter(pl.col("source") == "tool")["metric"].unique().to_list()
        heads = heads.filter((pl.col("source") == "tool") | ~pl.col("metric").is_in(own))
    judges: dict[Pair, Judge] = {}
    rows: list[dict[str, Any]] = []
    for row in heads.iter_rows(named=True):
        key = (row["metric"], row["point"])
        if key not in judges:
            judges[key] = of(measurements, plan, *key)
        found = judges[key].compare(row["cell"], row["baseline"])
        aa = next((one for one in judges[key].controls.values() if one.low is not None), None)
        rows.append(
            {
                "ratio": found.ratio, "low": found.low, "high": found.high, "n": found.n,
                "dropped": found.dropped, "aa_low": aa and aa.low, "aa_high": aa and aa.high,
                "decision": found.decision, "reason": found.reason and found.reason.code,
                "reason_fields": found.reason and dumps(found.reason.fields),
            }
        )  # fmt: skip
    floats = dict.fromkeys(("ratio", "low", "high", "aa_low", "aa_high"), pl.Float64)
    texts = dict.fromkeys(("decision", "reason", "reason_fields"), pl.String)
    schema = {**floats, **dict.fromkeys(("n", "dropped"), pl.Int64), **texts}
    figures = pl.DataFrame(rows, schema=schema)
    kept = [name for name in heads.columns if name not in ("median", "mean", *schema)]
    return pl.concat([heads.select(kept), figures], how="horizontal")


# ---------------------------------------------------------------- what a run sees


@dataclass(frozen=True)
class Sight:
    """The smallest effect that a run sees in a metric, or a planned one can see.

    ``smallest`` is the least effect (0.03: 3 %, up or down) that every comparison the run is made
    for names with 90 % certainty, at the point of the metric where that is greatest; None where
    nothing can be decided. ``noise`` is the standard deviation of one trial, as in the run ``run``;
    without one it is assumed. ``noisier`` names the cells that are noisier and left out of it.
    """

    metric: str
    smallest: float | None
    noise: float | None
    run: str | None
    noisier: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.smallest is None:
            needed = f"this needs {BLOCKS_NEEDED} blocks and an A/A control that did not drift"
            return f"{self.metric}: no effect of any size; {needed}"
        known = f"as in {self.run}" if self.run else "assumed"
        least = f"effects of {100 * self.smallest:.2g} % or more"
        noise = f"noise of a trial {100 * (self.noise or 0):.2g} %, {known}"
        apart = (
            f"; only larger effects in noisier cells: {', '.join(self.noisier)}"
            if self.noisier
            else ""
        )
        return f"{self.metric}: {least} ({noise}){apart}"


def sights(run: Run) -> tuple[Sight, ...]:
    """Return the smallest effect that a run could see, per metric that it was made for."""
    return tuple(_sight(run, metric) for metric in run.plan.request.measure)


def _sight(run: Run, metric: str) -> Sight:
    points = deciding_rows(run.measurements, metric)["point"].unique().sort()
    judges = [of(run.measurements, run.plan, metric, point) for point in points]
    seen = [(one.smallest_effect(), one) for one in judges if one.noise is not None]
    if not seen or any(size is None for size, _ in seen):
        noise = max((one.noise or 0.0 for _, one in seen), default=None)
        return Sight(metric, None, noise, run.manifest.run)
    size, worst = max(seen, key=lambda one: one[0] or 0.0)
    noisier = tuple(dict.fromkeys(cell for one in judges for cell in one.noisier))
    return Sight(metric, size, worst.noise, run.manifest.run, noisier)


def foresee(plan: Plan, earlier_runs: Sequence[Run] = ()) -> tuple[Sight, ...]:
    """Return, per metric of the plan's experiment, the smallest effect that the run can see.

    ``earlier_runs`` are of this host, oldest first; of those of the same experiment the newest
    tells the noise of the metric and its points.
    """
    sights = []
    mine = [run for run in earlier_runs if run.manifest.experiment == plan.request.experiment]
    for metric in plan.request.measure:
        sights.append(Sight(metric, smallest_effect(plan, _ASSUMED_NOISE), _ASSUMED_NOISE, None))
        for run in reversed(mine):
            known = _sight(run, metric)
            if known.noise is not None:
                points = deciding_rows(run.measurements, metric)["point"].n_unique()
                least = smallest_effect(plan, known.noise, points)
                sights[-1] = Sight(metric, least, known.noise, known.run)
                break
    return tuple(sights)


def smallest_effect(plan: Plan, noise: float, points: int = 1) -> float | None:
    """Return the smallest effect that a run of a plan can see where a trial has this noise.

    ``points``: at how many points the metric is measured. None where it could decide nothing.
    """
    blocks = plan.request.blocks
    cells = tuple(cell.id for cell in plan.cells)
    controls = {c.id: c.baseline for c in plan.cells if c.role == CONTROL and c.baseline}
    empty = Grid(cells, tuple(range(blocks)), np.zeros((len(cells), blocks)), controls)
    share = share_of_look(plan, blocks) / points
    return Judge(empty, planned_pairs(plan), share=share).smallest_effect(noise)
