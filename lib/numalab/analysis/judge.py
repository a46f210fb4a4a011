"""The one judge: do two cells differ in a metric? Tables, claims, recommendation ask it alike.

*Noise.* Values are logarithms with block and cell as factors: value = cell + block + noise. The
noise of all cells of the run is pooled, (cells - 1)(blocks - 1) degrees of freedom where nothing
is missing, so that six blocks are enough to know it. The control is the baseline under another
name; its values are the baseline's too.

*Correction.* The bounds of every ratio hold together, for all that may be named of the metric:
with 95 % no interval of a pair misses its ratio. The pairs that a run is made for (each cell with
its baseline, and with the cell ``unbound`` of its load) share 4 of the 5 %, as in Dunnett, "A
multiple comparison procedure for comparing several treatments with a control", JASA 50, 1955; any
other pair is judged by what is left, as in Tukey's range test (Kramer, Biometrics 12, 1956). A
metric of several points divides the 5 % among them. The critical values come from the run's own
residuals, resampled within each cell (Westfall and Young, "Resampling-based multiple testing",
1993), so that heavy tails, skew, or a cell noisier than others ask for more.

*The A/A rule.* The control decides in both directions alike. Its 99 % interval excludes 1 by more
than 0.5 %: the run drifted, and the metric has no verdicts at this point. Else an effect counts
only where it is greater than what the control itself shows, up or down. Without a control, or
below six blocks, nothing is decided. ``bench/judge.py`` simulates how often all this errs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from scipy import special

from ..agent.contract import CONTROL, Cell, Plan, Reason, dumps, reason
from .evidence import BLOCKS_NEEDED, CONFIDENCE, Grid, deciding_rows, grid, summarise

DIFFERENT, ALIKE = "different", "not-distinguishable"
TOO_FEW, NO_CONTROL, DRIFTED = "too-few-blocks", "no-aa-control", "drifted"
AA, NO_RATIO = "control", "no-ratio"
DECISIONS = (DIFFERENT, ALIKE, TOO_FEW, NO_CONTROL, DRIFTED, AA, NO_RATIO)

DEFAULT = "unbound"
_ANY_PAIR = 0.2  # of the 5 %: what is left for pairs that a run was not made for
AMONG = 0.01  # for the points of one cell, beside the 5 % of the cells
_DRIFT_CONFIDENCE, _DRIFT_EXCESS = 0.99, np.log(1.005)
_EQUIVALENCE = 0.90
_RESAMPLES, _SEED = 1000, 1987
_SURE = 0.90  # how surely `smallest_effect` is seen
_FORESEEN = 15  # simulated runs behind it: each has critical values of its own
_ASSUMED_NOISE = 0.02

Pair = tuple[str, str]


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
        self._place = {name: index for index, name in enumerate(evidence.cells)}
        self._known = np.isfinite(evidence.logs)
        repeated: dict[str, list[str]] = {}
        for control, cell in evidence.controls.items():
            repeated.setdefault(cell, []).append(control)
        self._weights = {name: self._spread([name]) for name in evidence.cells}
        for cell, controls in repeated.items():
            self._weights[cell] = self._spread([cell, *controls])
        self._seen = {
            name: self._known[weights > 0].any(axis=0) for name, weights in self._weights.items()
        }
        self._fit()
        self._planned = {
            frozenset(pair)
            for pair in planned
            if all(name in self._seen and self._seen[name].any() for name in pair)
        }
        self._level = level * share
        self.controls = {
            control: self._control(control, cell) for control, cell in evidence.controls.items()
        }
        self.drifted = any(one.decision == DRIFTED for one in self.controls.values())

    def compare(self, cell: str, other: str) -> Effect:
        """Return what the run says of ``cell`` over ``other``."""
        controls = self.grid.controls
        if controls.get(cell) == other:
            return self.controls[cell]
        refused = self._refused(cell, other)
        if refused:
            return Effect(None, None, None, None, 0, NO_RATIO, reason=refused)
        n = int(np.count_nonzero(self._seen[cell] & self._seen[other]))
        dropped = len(self.grid.blocks) - n
        if n == 0:
            return Effect(None, None, None, None, 0, NO_RATIO, dropped, reason("no-shared-block"))
        weights = self._weights[cell] - self._weights[other]
        log, error = self._estimate(weights)
        if n < BLOCKS_NEEDED or self._freedom < 1:
            return Effect(float(np.exp(log)), None, None, None, n, TOO_FEW, dropped)
        half = self.critical[frozenset((cell, other)) not in self._planned] * error
        alone = _student(self._freedom, _EQUIVALENCE) * error
        said = self._decision(log, half)
        return Effect(float(np.exp(log)), *_ends(log, half), _ends(log, alone), n, said, dropped)

    @property
    def noise(self) -> float | None:
        """The standard deviation of one trial's log value once cell and block are known."""
        return self._noise if self._freedom > 0 else None

    @functools.cached_property
    def wander(self) -> float:
        """The standard deviation of what all trials of a block have in common; 0 without any."""
        count, k = len(self.grid.blocks), len(self.grid.cells)
        if count < 2 or self._freedom < 1:  # of one cell noise and block cannot be told apart
            return 0.0
        centred = self._solver[k:] - self._solver[k:].mean(axis=0)
        spread = float((centred @ self.grid.logs[self._known]).var(ddof=1))
        by_noise = self._noise**2 * float((centred**2).sum()) / (count - 1)
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

    def _decision(self, log: float, half: float) -> str:
        if self.needs_control and not self.aa_known:
            return NO_CONTROL
        if self.drifted:
            return DRIFTED
        return DIFFERENT if abs(log) > max(half, self.aa_shown) else ALIKE

    def _control(self, control: str, cell: str) -> Effect:
        """The A/A ratio with its 99 % interval; ``decision`` is ``drifted`` where it excludes 1."""
        both = self._known[self._place[control]] & self._known[self._place[cell]]
        n = int(both.sum())
        dropped = len(self.grid.blocks) - n
        refused = self._refused(control, cell)
        if refused or n == 0:
            why = refused or reason("no-shared-block")
            return Effect(None, None, None, None, n, NO_RATIO, dropped, why)
        weights = self._spread([control]) - self._spread([cell])
        log, error = self._estimate(weights)
        if n < BLOCKS_NEEDED or self._freedom < 1:
            return Effect(float(np.exp(log)), None, None, None, n, AA, dropped)
        half = _student(self._freedom, _DRIFT_CONFIDENCE) * error
        said = DRIFTED if abs(log) - half > _DRIFT_EXCESS else AA
        ends = _ends(log, half)
        return Effect(float(np.exp(log)), *ends, ends, n, said, dropped)

    def _refused(self, cell: str, other: str) -> Reason | None:
        for name in (cell, other):
            if name in self.grid.bad:
                return self.grid.bad[name]
            if name not in self._place:
                return reason("cell-without-value", cell=name)
        one, two = (self.grid.tools.get(name) for name in (cell, other))
        return reason("different-tools", tools=[one, two]) if one != two else None

    # --- the model: value = cell + block + noise ------------------------------------------------

    def _spread(self, names: Sequence[str]) -> np.ndarray:
        """A contrast's weights for the mean of a cell and its repetitions."""
        counts = np.zeros(len(self.grid.cells))
        for name in names:
            counts[self._place[name]] = self._known[self._place[name]].sum()
        spread: np.ndarray = counts / max(counts.sum(), 1)
        return spread

    def _estimate(self, weights: np.ndarray) -> tuple[float, float]:
        """The logarithm of a ratio, and its standard error."""
        variance = max(float(weights @ self._cov @ weights), 0.0)
        return float(weights @ self._cells), self._noise * float(np.sqrt(variance))

    def _fit(self) -> None:
        """Least squares of cells and blocks; ``_cells`` are known but for a constant."""
        values = self.grid.logs[self._known]
        solver, basis, freedom = _model(self._known.shape, self._known.tobytes())
        self._solver, self._basis = solver, basis
        fitted = solver @ values
        k = len(self.grid.cells)
        where, when = np.nonzero(self._known)
        self._residuals = values - fitted[where] - fitted[k:][when]
        self._cells = fitted[:k]
        self._freedom = freedom
        squares = float(self._residuals @ self._residuals)
        if squares < 1e-20 * max(1.0, float(values @ values)):  # only rounding is left
            squares = 0.0
        self._noise = float(np.sqrt(squares / freedom)) if freedom > 0 else 0.0
        self._cov = solver[:k] @ solver[:k].T

    @functools.cached_property
    def critical(self) -> tuple[float, float]:
        """Critical values of a planned pair and of any pair.

        The run's own residuals are drawn anew within each cell: what is greatest then is chance.
        """
        if self._noise == 0:
            return 1.0, 1.0
        random = np.random.default_rng(_SEED)
        size = max(_RESAMPLES, int(50 / self._level))
        drawn = np.empty((len(self._residuals), size))
        where = np.nonzero(self._known)[0]
        for index in np.unique(where):
            mine = np.flatnonzero(where == index)
            picks = random.integers(0, mine.size, (mine.size, size), dtype=np.int32)
            drawn[mine] = self._residuals[mine][picks]
        explained = np.square(self._basis.T @ drawn).sum(axis=0)
        rest = np.maximum(np.square(drawn).sum(axis=0) - explained, 1e-300)
        estimates = (self._solver[: len(self.grid.cells)] @ drawn) / np.sqrt(rest / self._freedom)
        known = [name for name in self.grid.cells if self._seen[name].any()]
        cells = [name for name in known if name not in self.grid.controls]
        pairs = list(itertools.combinations(cells, 2))
        most, widest = (self._greatest(estimates, some) for some in (self._planned, pairs))
        return _critical_values(most, widest, self._level)

    def _greatest(self, estimates: np.ndarray, pairs: Collection[Iterable[str]]) -> np.ndarray:
        """The greatest |t| of these pairs in each column of ``estimates``."""
        place = {name: at for at, name in enumerate(self._weights)}
        weights = np.array(list(self._weights.values()))
        of_cells, shared = weights @ estimates, weights @ self._cov @ weights.T
        most = np.zeros(estimates.shape[1])
        for one, other in ((place[one], place[other]) for one, other in pairs):
            variance = shared[one, one] + shared[other, other] - 2 * shared[one, other]
            error = np.sqrt(max(float(variance), 1e-300))
            np.maximum(most, np.abs(of_cells[one] - of_cells[other]) / error, out=most)
        return most


def _ends(log: float, half: float) -> tuple[float, float]:
    """The ends of an interval of a ratio."""
    return float(np.exp(log - half)), float(np.exp(log + half))


@functools.lru_cache(maxsize=256)
def _student(freedom: int, confidence: float) -> float:
    return float(special.stdtrit(freedom, (1 + confidence) / 2))


@functools.lru_cache(maxsize=256)
def _model(shape: tuple[int, int], known: bytes) -> tuple[np.ndarray, np.ndarray, int]:
    """The pseudo-inverse of the design of cells and blocks, a basis of it, degrees of freedom."""
    mask = np.frombuffer(known, dtype=bool).reshape(shape)
    where, when = np.nonzero(mask)
    design = np.zeros((len(where), shape[0] + shape[1]))
    rows = np.arange(len(where))
    design[rows, where] = 1
    design[rows, shape[0] + when] = 1
    left, sizes, right = np.linalg.svd(design, full_matrices=False)
    kept = sizes > 1e-9 * sizes.max(initial=1.0)
    basis = left[:, kept]
    solver = (right[kept].T / sizes[kept]) @ basis.T
    return solver, basis, len(where) - int(kept.sum())


def _critical_values(most: np.ndarray, widest: np.ndarray, level: float) -> tuple[float, float]:
    """Where both are exceeded in ``level`` of the draws: for planned pairs, and for any pair."""
    pair = float(np.quantile(widest, 1 - _ANY_PAIR * level, method="higher"))
    if not most.any():
        pair = float(np.quantile(widest, 1 - level, method="higher"))
        return pair, pair
    inside = np.sort(np.where(widest <= pair, most, np.inf))
    place = min(int(np.ceil((1 - level) * len(inside))), int(np.isfinite(inside).sum()) - 1)
    planned = float(inside[place])
    return min(planned, pair), pair


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
    return Judge(grid(rows, plan, point), pairs, share=1 / max(judged, 1))


def among_points(rows: pl.DataFrame, plan: Plan) -> Judge:
    """Return the judge of the points of one cell against each other; ``rows`` are that cell's."""
    return Judge(grid(rows, plan, key="point"), level=AMONG, needs_control=False)


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


# ---------------------------------------------------------------- before a run


@dataclass(frozen=True)
class Foresight:
    """What a planned run can see of one metric.

    ``smallest`` is the least effect (0.03: 3 %, up or down) that it names with 90 % certainty,
    None with too few blocks or no control. ``noise`` is the standard deviation of one trial, of the
    earlier run ``run``; without one it is assumed.
    """

    metric: str
    smallest: float | None
    noise: float
    run: str | None

    def __str__(self) -> str:
        if self.smallest is None:
            needed = f"that takes {BLOCKS_NEEDED} blocks and an A/A control"
            return f"{self.metric}: no effect, however great; {needed}"
        known = f"as in {self.run}" if self.run else "assumed"
        least = f"effects of {100 * self.smallest:.2g} % or more"
        return f"{self.metric}: {least} (noise of a trial {100 * self.noise:.2g} %, {known})"


def smallest_effect(noise: float, cells: int, blocks: int) -> float | None:
    """Return the least effect against the baseline that a run names with 90 % certainty.

    ``noise``: the standard deviation of one trial relative to its value; ``cells``: of the design,
    the baseline and its control included. None where the run could decide nothing.
    """
    if blocks < BLOCKS_NEEDED or cells < 3:
        return None
    names = ("baseline", "control", *(f"cell {n}" for n in range(cells - 2)))
    random = np.random.default_rng(_SEED)
    critical = [
        Judge(
            Grid(names, tuple(range(blocks)), logs, {"control": "baseline"}),
            [(name, "baseline") for name in names[2:]],
        ).critical[0]
        for logs in random.standard_normal((_FORESEEN, cells, blocks))
    ]
    freedom = (cells - 1) * (blocks - 1)
    room = float(np.mean(critical)) + float(special.stdtrit(freedom, _SURE))
    return float(np.expm1(room * noise * np.sqrt(1.5 / blocks)))


def foresee(plan: Plan, earlier_runs: Sequence[Any] = ()) -> tuple[Foresight, ...]:
    """Return, per metric of the plan's experiment, the smallest effect that the run can see.

    ``earlier_runs`` are ``runs.Run`` of this host, oldest first; of those of the same experiment
    the newest tells the noise of the metric.
    """
    told = []
    mine = [run for run in earlier_runs if run.manifest.experiment == plan.request.experiment]
    for metric in plan.request.measure:
        known = (
            (run, found) for run in reversed(mine) if (found := _noise_of(run, metric)) is not None
        )
        run, noise = next(known, (None, _ASSUMED_NOISE))
        smallest = None
        if any(cell.role == CONTROL for cell in plan.cells):
            smallest = smallest_effect(noise, len(plan.cells), plan.request.blocks)
        told.append(Foresight(metric, smallest, noise, run.manifest.run if run else None))
    return tuple(told)


def _noise_of(run: Any, metric: str) -> float | None:
    """The greatest noise of a metric over its points in one run."""
    rows = deciding_rows(run.measurements, metric)
    found = [
        Judge(grid(rows, run.plan, point)).noise
        for point in itertools.islice(rows["point"].unique().sort(), 12)
    ]
    return max((noise for noise in found if noise is not None), default=None)
