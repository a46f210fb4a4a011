"""Tours: cells that one trial visits in one process, so that a matrix takes one trial a block."""

from __future__ import annotations

import random
from typing import Dict, Hashable, List, Sequence, Tuple

from .. import cpulist
from ..contract import (
    Cell,
    CpuExpectation,
    Driver,
    Expectation,
    MemoryExpectation,
    MemoryPolicy,
    Tour,
)

# What the process is started under: nothing, since it binds itself anew for each visit.
_FREE = Expectation(MemoryExpectation("none"), CpuExpectation("outcome"))


def toured(driver: Driver, cells: Sequence[Cell]) -> Tuple[List[Cell], Tuple[Tour, ...]]:
    """Return the cells, those that a tour visits with the options of a visit, and the tours.

    A tour visits cells that have CPUs and are bound to the memory of one node, under the same
    settings of the host; one cell alone is an ordinary trial.
    """
    groups: Dict[Tuple[str, Hashable], List[Cell]] = {}
    for cell in cells:
        name = driver.tour(cell.options)
        if name and cell.cpus is not None and (cell.memory.nodes or "").isdecimal():
            case = f"/{cell.case.name}" if cell.case else ""
            under = tuple(sorted(cell.changes.items()))
            groups.setdefault((f"tour:{name}{case}", under), []).append(cell)
    visited: Dict[str, Cell] = {}
    tours: List[Tour] = []
    for (id, _), group in groups.items():
        if len(group) > 1:
            visits, tour = _tour(driver, id, group)
            visited.update({cell.id: cell for cell in visits})
            tours.append(tour)
    return [visited.get(cell.id, cell) for cell in cells], tuple(tours)


def started(cells: Sequence[Cell], tours: Sequence[Tour]) -> List[Cell]:
    """Return what trials are made of: the tours, and the cells that none of them visits."""
    visited = {id for tour in tours for id in tour.visits}
    return [*tours, *(cell for cell in cells if cell.id not in visited)]


def _tour(driver: Driver, id: str, group: Sequence[Cell]) -> Tuple[List[Cell], Tour]:
    visits, timing = driver.on_tour(group)
    nodes = sorted({node for cell in visits for node in cpulist.parse(cell.cpu_nodes)})
    held = {cell.memory.nodes: 0 for cell in visits}
    for cell in visits:
        held[cell.memory.nodes] = max(held[cell.memory.nodes], cell.need_bytes)
    tour = Tour(
        cpus=None,
        cpu_nodes=cpulist.format(nodes),
        memory=MemoryPolicy("default"),
        expects=_FREE,
        id=id,
        binding="tour",
        label=f"{id.replace(':', ' of ', 1)}, {len(visits)} cells",
        case=visits[0].case,
        options=visits[0].options,
        changes=visits[0].changes,
        need_bytes=sum(held.values()),
        timing=timing,
        visits=tuple(cell.id for cell in visits),
    )
    return visits, tour


def order(visits: Sequence[str], seed: int, block: int) -> List[str]:
    """Return the visits of a tour in their order in a block, drawn anew for each block."""
    rng = random.Random(seed * 1_000_003 + block)
    return [id for _, id in sorted((rng.random(), id) for id in visits)]
