"""How often the judge errs, and what it sees: simulated runs whose truth is known.

Null runs: nothing differs between cells. A run errs when the judge calls any pair different: any
two cells (a table, a claim of any form, the recommendation all ask for pairs of cells; the median
of several pairs, or a gap over a gap, is named only where one of its pairs is), or any two of four
instances of one cell. Goal: in at most 6 % of 4,000 runs, over 5, 9 and 20 cells, 6, 10 and 15
blocks, and five kinds of noise. Two null runs beside each other (`numalab compare`): the same goal.

Power: one cell differs from the baseline by 2, 5 or 10 %, at a noise of 2 %. Goal: 5 % is seen by 6
blocks of 5 and of 9 cells in at least 90 % of the runs.

    python bench/judge.py [--runs 4000]
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small matrices: threads only wait here
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lib"))

from numalab.analysis import judge
from numalab.analysis.evidence import Grid

MOST_ERRORS, LEAST_POWER = 0.06, 0.90
CELLS, BLOCKS, EFFECTS = (5, 9, 20), (6, 10, 15), (0.02, 0.05, 0.10)
NOISE = 0.02
INSTANCES = 4
Random = np.random.Generator
Draw = Callable[[Random, int, int], np.ndarray]


def normal(random: Random, cells: int, blocks: int) -> np.ndarray:
    """Normal noise of the logarithms."""
    return NOISE * random.standard_normal((cells, blocks))


def log_normal(random: Random, cells: int, blocks: int) -> np.ndarray:
    """Skewed: most trials are a little fast, few much slower, as where others interrupt."""
    wait = np.exp(random.standard_normal((cells, blocks)))
    return -np.log1p(NOISE * wait / math.sqrt((math.e - 1) * math.e))


def heavy_tailed(random: Random, cells: int, blocks: int) -> np.ndarray:
    """Student's t with three degrees of freedom."""
    return NOISE * random.standard_t(3, (cells, blocks)) / math.sqrt(3)


def drifting(random: Random, cells: int, blocks: int) -> np.ndarray:
    """The host slows down by 10 % over the run, and wanders; trials in random blocks."""
    trials = cells * blocks
    way = 0.10 * np.arange(trials) / trials + NOISE / 4 * random.standard_normal(trials).cumsum()
    return in_random_blocks(random, way, cells, blocks) + normal(random, cells, blocks) / 2


def bimodal(random: Random, cells: int, blocks: int) -> np.ndarray:
    """The host switches between two speeds, 8 % apart, once in ten trials."""
    switched = (random.random(cells * blocks) < 0.1).cumsum() % 2
    return (
        in_random_blocks(random, 0.08 * switched, cells, blocks) + normal(random, cells, blocks) / 4
    )


def in_random_blocks(random: Random, way: np.ndarray, cells: int, blocks: int) -> np.ndarray:
    """Values by trial as the cells of randomised blocks get them."""
    order = random.permuted(np.tile(np.arange(cells), (blocks, 1)), axis=1)
    values = np.empty((blocks, cells))
    np.put_along_axis(values, order, way.reshape(blocks, cells), axis=1)
    return values.T


def uneven(random: Random, cells: int, blocks: int) -> np.ndarray:
    """One cell is three times as noisy as the others."""
    noise = normal(random, cells, blocks)
    noise[-1] *= 3
    return noise


KINDS: tuple[Draw, ...] = (normal, log_normal, heavy_tailed, drifting, bimodal)


def judged(logs: np.ndarray) -> judge.Judge:
    """Return the judge of a run: a baseline with its control, the default, and other bindings."""
    names = ("baseline", "control", "unbound", *(f"cell {n}" for n in range(3, len(logs))))
    pairs = [(name, base) for name in names[2:] for base in ("baseline", "unbound")]
    grid = Grid(names, tuple(range(logs.shape[1])), logs, {"control": "baseline"})
    return judge.Judge(grid, [(one, other) for one, other in pairs if one != other])


def errs(logs: np.ndarray, instances: np.ndarray) -> bool:
    """Whether a null run names any difference."""
    found = judged(logs)
    names = found.grid.cells
    if any(found.compare(one, other).different for one, other in itertools.combinations(names, 2)):
        return True
    points = tuple(f"instance {n}" for n in range(len(instances)))
    among = judge.Judge(
        Grid(points, tuple(range(instances.shape[1])), instances), level=judge.AMONG,
        needs_control=False,
    )  # fmt: skip
    pairs = itertools.combinations(points, 2)
    return not found.drifted and any(among.compare(*pair).different for pair in pairs)


def errs_beside(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two null runs side by side name any difference."""
    judges = (judged(one), judged(other))
    rows = [place for place in range(len(one)) if place != 1]
    return any(
        judge.across(np.exp(one[row]), np.exp(other[row]), judges, len(rows)).different
        for row in rows
    )


def null_runs(kind: Draw, runs: int, random: Random) -> tuple[float, float]:
    """Print how many null runs of one kind of noise err; return the shares, alone and beside."""
    designs = list(itertools.product(CELLS, BLOCKS))
    each = math.ceil(runs / len(designs))
    wrong, beside, shown = 0, 0, []
    for cells, blocks in designs:
        mine = 0
        for _ in range(each):
            logs = kind(random, cells, blocks)
            mine += errs(logs, kind(random, INSTANCES, blocks))
            beside += errs_beside(logs, kind(random, cells, blocks))
        wrong += mine
        shown.append(f"{mine / each:6.1%}")
    total = each * len(designs)
    name = kind.__name__.replace("_", "-")
    print(f"{name:<13}{''.join(shown)}  all {wrong / total:5.1%}  two runs {beside / total:5.1%}",
          flush=True)  # fmt: skip
    return wrong / total, beside / total


def power(kind: Draw, effect: float, cells: int, blocks: int, random: Random) -> float:
    """Return the share of runs that name a cell which differs by ``effect``."""
    seen, runs = 0, 400
    for number in range(runs):
        logs = kind(random, cells, blocks)
        logs[-1] += math.log1p(effect) * (-1) ** number
        seen += judged(logs).compare(f"cell {cells - 1}", "baseline").different
    return seen / runs


def main() -> bool:
    """Simulate, print, and tell whether every goal was met."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=4000, help="null runs in all")
    asked = options.parse_args()
    random = np.random.default_rng(1908)
    heads = "".join(f"{cells:>3}×{blocks:<2}" for cells, blocks in itertools.product(CELLS, BLOCKS))
    print(f"null runs that name a difference (goal: at most {MOST_ERRORS:.0%}), cells×blocks")
    print(f"{'':<13}{heads}")
    shares = [null_runs(kind, math.ceil(asked.runs / len(KINDS)), random) for kind in KINDS]
    wrong, beside = (float(np.mean(side)) for side in zip(*shares, strict=True))
    print(f"{'all':<13}{'':<54}      {wrong:5.1%}           {beside:5.1%}")
    print("beyond the goal, for the record: cells whose noise differs")
    null_runs(uneven, asked.runs // len(KINDS), random)
    print(f"\npower at {NOISE:.0%} noise, by effect")
    print(f"(goal: 5 % is seen in {LEAST_POWER:.0%} of the runs by 6 blocks of 5 and of 9 cells)")
    kept = wrong <= MOST_ERRORS and beside <= MOST_ERRORS
    for cells, blocks in itertools.product(CELLS, BLOCKS):
        found = {effect: power(normal, effect, cells, blocks, random) for effect in EFFECTS}
        said = ", ".join(f"{effect:.0%}: {share:4.0%}" for effect, share in found.items())
        least = judge.smallest_effect(NOISE, cells, blocks)
        print(f"{cells:>3} cells, {blocks:>2} blocks  {said}  foreseen: {least:.1%}", flush=True)
        if blocks == 6 and cells <= 9:
            kept &= found[0.05] >= LEAST_POWER
    for kind in KINDS[1:]:
        found = {effect: power(kind, effect, 9, 6, random) for effect in EFFECTS}
        said = ", ".join(f"{effect:.0%}: {share:4.0%}" for effect, share in found.items())
        print(f"  9 cells,  6 blocks  {said}  {kind.__name__.replace('_', '-')}", flush=True)
    print("kept" if kept else "NOT KEPT")
    return kept


if __name__ == "__main__":
    sys.exit(not main())
