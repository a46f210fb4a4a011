"""The order of a plan's trials, and what is left of it.

Randomised complete blocks (Fisher, The Design of Experiments, 1935, ch. IV): every block holds
each cell once in a random order of its own, so that slow drift of the host falls on all cells
alike, and results are paired by block.
"""

from __future__ import annotations

import random
from typing import Container, Iterator, List, Optional, Sequence, Tuple

from ..contract import Cell, Host, Plan, Trial
from ..errors import Fault
from ..words import units

MOST_NODES = 1 << 10  # of a Linux kernel: NODES_SHIFT is at most 10
MOST_CPUS = 1 << 14  # above any NR_CPUS
MOST_TRIALS = 16_000  # of one run: its files are read whole


def trial_order(cells: Sequence[Cell], blocks: int, seed: int) -> Tuple[Trial, ...]:
    """Return every trial in running order.

    A block is a permutation of the cells, drawn uniformly from those that do not begin with
    the binding (where there is only one: the cell) that the block before ended with. It
    depends on the seed and on the number and bindings of the cells alone, and is the same in
    every version of Python: ``random.Random(seed).random()`` is what the library promises to
    keep. Raises Fault for more than MOST_TRIALS.
    """
    check_size(len(cells), blocks)
    rng = random.Random(seed)
    order: List[Trial] = []
    last: Optional[Cell] = None
    for block in range(1, blocks + 1):
        first_choices = _not_again(cells, last)
        drawn = sorted((rng.random(), place) for place in range(len(cells)))
        row = [cells[place] for _, place in drawn]
        if row:
            first = first_choices[int(rng.random() * len(first_choices))]
            row = [first] + [cell for cell in row if cell is not first]
            last = row[-1]
        for position, cell in enumerate(row, start=1):
            order.append(Trial(len(order) + 1, block, position, cell.id))
    return tuple(order)


def check_size(cells: int, blocks: int = 1) -> None:
    """Raise Fault for more than MOST_TRIALS; of blocks without cells, too."""
    if blocks * max(1, cells) > MOST_TRIALS:
        most = MOST_TRIALS // max(1, cells)
        raise Fault(
            f"{units.count(blocks, 'block')} of {cells:,} cells are more than {MOST_TRIALS:,} "
            "trials, the most of one run",
            f"ask for at most {units.count(most, 'block')}" if most else "ask for fewer bindings",
        )


def check_host(host: Host) -> None:
    """Raise Fault for a host of more nodes or CPUs than there are: its record may be anybody's."""
    for number, most, what in (
        (len(host.nodes), MOST_NODES, "nodes"),
        (len(host.cpus), MOST_CPUS, "CPUs"),
    ):
        if number > most:
            raise Fault(f"a host of {number:,} {what}: Linux knows at most {most:,}")


def _not_again(cells: Sequence[Cell], last: Optional[Cell]) -> Sequence[Cell]:
    """Return the cells of another binding than the last one, else the other cells, else all."""
    if last is None:
        return cells
    return (
        [cell for cell in cells if cell.binding != last.binding]
        or [cell for cell in cells if cell.id != last.id]
        or cells
    )


def trials(plan: Plan) -> Iterator[Tuple[Trial, Cell]]:
    """Yield every trial of a plan in running order with its cell, or its tour."""
    for trial in plan.order:
        yield trial, plan.started[trial.cell]


def left_s(plan: Plan, done: Container[int] = ()) -> float:
    """Return the planned seconds of those trials whose numbers are not in ``done``."""
    return sum(cell.timing.total_s for trial, cell in trials(plan) if trial.trial not in done)
