"""A plan fits itself into a time: what is left out first, and why.

In this order, and only as far as needed: values of sweeps, the last of the list first; cells that
differ from another one in nothing but the nodes (same binding, same distance: a class); blocks
beyond FEWEST_BLOCKS; cases, the last first, while two are left; where there are no cases other
cells, the last first, while two are left to compare, and never what runs without a binding. A
seventh block adds only precision, a case answers a question of its own: hence blocks go before
cases. What does not fit even then is left out as a whole: half an answer would pass for one. A run
that adds blocks until it has decided goes without blocks first: it may not need them.
"""

from __future__ import annotations

import collections
import math
from typing import (
    Callable,
    Dict,
    Hashable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from .. import cpulist
from ..contract import BASELINE, CONTROL, Cell, Reason, reason

FEWEST_BLOCKS = 6  # the signed-rank test of 5 pairs cannot reach p < 0.05
MOST_BLOCKS = 48  # of a run that adds blocks until it has decided, where nothing else is said

Price = Callable[[Sequence[Cell], int], float]  # seconds of a run with these cells and blocks


class Fitted(NamedTuple):
    """What is left of a plan, what is not and why, and the least that it could be cut to."""

    cells: List[Cell]
    blocks: int
    unfit: List[Tuple[Cell, Reason]]
    least_s: float


def looks(blocks: int) -> Tuple[int, ...]:
    """Return after which blocks a run of at most so many looks whether all is decided.

    From FEWEST_BLOCKS on, half as many again from look to look, as nearly as whole blocks allow.
    """
    steps = max(round(math.log(blocks / FEWEST_BLOCKS, 1.5)), 1) if blocks > FEWEST_BLOCKS else 0
    grown = (blocks / FEWEST_BLOCKS) ** (1 / max(steps, 1))
    return tuple(round(FEWEST_BLOCKS * grown**n) for n in range(steps)) + (blocks,)


def fit(
    cells: Sequence[Cell], blocks: int, budget_s: Optional[float], price: Price, cells_first: bool
) -> Fitted:
    """Return as much of a plan as fits into a budget; without one nothing is left out.

    With ``cells_first`` the blocks are those that there is time for, and no cell goes for more.
    """
    if cells_first and budget_s is not None:
        while blocks > FEWEST_BLOCKS and price(cells, blocks) > budget_s:
            blocks -= 1
    (last,) = collections.deque(_steps(list(cells), blocks), maxlen=1)
    least_s = price(last.cells, last.blocks)
    if budget_s is None:
        return Fitted(list(cells), blocks, [], least_s)
    for step in _steps(list(cells), blocks):
        if price(step.cells, step.blocks) <= budget_s:
            return _said(cells, step, budget_s, least_s)
    why = reason("budget-too-small", budget_s=budget_s, least_s=round(least_s, 1))
    return Fitted([], blocks, [(cell, why) for cell in cells], least_s)


class _Step(NamedTuple):
    cells: List[Cell]
    blocks: int
    left_out: Dict[str, str]  # the code of the reason by the cell's id; grows with the next step


def _steps(cells: List[Cell], blocks: int) -> Iterator[_Step]:
    """Yield the plan as it is, then ever less of it."""
    gone: Dict[str, str] = {}
    yield _Step(cells, blocks, {})
    for code, groups in (
        ("budget-sweep", _variants(cells, lambda cell: cell.sweep and cell.variant)),
        ("budget-class", _likes(cells)),
    ):
        for group in groups:
            cells = _without(cells, group, code, gone)
            yield _Step(cells, blocks, gone)
    while blocks > FEWEST_BLOCKS:
        blocks -= 1
        yield _Step(cells, blocks, gone)
    first = next((cell.case.name for cell in cells if cell.case), None)
    cases = _variants(cells, lambda cell: cell.case and cell.case.name != first and cell.variant)
    for group in cases[:-1]:
        cells = _without(cells, group, "budget-case", gone)
        yield _Step(cells, blocks, gone)
    compared = sum(cell.role != CONTROL for cell in cells)
    users = collections.Counter(cell.baseline for cell in cells)  # what is compared with each
    for cell in reversed(cells):
        free = cell.cpus is None and cell.memory.policy == "default"
        stays = cell.role == CONTROL or cell.case or free or users[cell.id] > 0
        if compared > 2 and not stays:
            cells = _without(cells, [cell], "budget-cell", gone)
            compared, users[cell.baseline] = compared - 1, users[cell.baseline] - 1
            yield _Step(cells, blocks, gone)


def _variants(cells: Sequence[Cell], of: Callable[[Cell], Hashable]) -> List[List[Cell]]:
    """Return the cells that have something in common, the last such group first."""
    groups: Dict[Hashable, List[Cell]] = {}
    for cell in cells:
        if of(cell):
            groups.setdefault(of(cell), []).append(cell)
    return list(groups.values())[::-1]


def _likes(cells: Sequence[Cell]) -> Iterator[List[Cell]]:
    """Yield the cells that others of their class stand for, one by one, the last first.

    Cells with a baseline that stays anyway stand for their class; a baseline goes when nothing
    that is compared with it is left.
    """
    stays: Dict[Hashable, Cell] = {}
    ids = {cell.baseline for cell in cells if cell.role == CONTROL}
    kept: Set[str] = set()
    for cell in sorted(cells, key=lambda one: (one.role != BASELINE, one.id not in ids)):
        its = _class(cell)
        if its not in stays or (cell.baseline in kept and stays[its].baseline not in kept):
            if its in stays:
                kept.remove(stays[its].id)
            stays[its] = cell
            kept.add(cell.id)
    ids |= {one.id for one in stays.values()} | {one.baseline for one in stays.values()}
    more = [cell for cell in reversed(cells) if cell.id not in ids and cell.role != CONTROL]
    for cell in sorted(more, key=lambda one: one.role == BASELINE):
        yield [cell]


def _class(cell: Cell) -> Hashable:
    """What a cell shares with those that it can stand for."""
    size = len(cpulist.parse(cell.cpus)) if cell.cpus is not None else None
    alone = cell.id if cell.role == CONTROL else ""
    memory = (cell.memory.policy, len(cpulist.parse(cell.memory.nodes or "")))
    return (cell.binding, cell.distance, cell.rank, cell.layout, size, memory, cell.variant, alone)


def _without(
    cells: Sequence[Cell], group: Sequence[Cell], code: str, gone: Dict[str, str]
) -> List[Cell]:
    """Return the other cells, and remember why these are gone."""
    ids = {cell.id for cell in group}
    gone.update(dict.fromkeys(ids, code))
    return [cell for cell in cells if cell.id not in ids]


def _said(cells: Sequence[Cell], step: _Step, budget_s: float, least_s: float) -> Fitted:
    """Return a step with a reason for every cell that it lacks."""
    unfit = []
    for cell in cells:
        code = step.left_out.get(cell.id)
        if code:
            like = next((c.id for c in step.cells if _class(c) == _class(cell)), None)
            fields = {"cell": like} if code == "budget-class" else {}
            unfit.append((cell, reason(code, budget_s=budget_s, **fields)))
    return Fitted(list(step.cells), step.blocks, unfit, least_s)
