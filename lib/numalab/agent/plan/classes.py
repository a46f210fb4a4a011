"""Nodes and pairs of nodes that are alike: which one stands for the others.

A host of 16 nodes has 240 pairs of nodes, but few distances between them. One node stands for all
in `local` and whatever else has the CPUs of one node; one pair for all of its distance (SLIT) in
`remote`, and of its distance and memory tier in `memory-only`. Comparisons hold the CPUs: the
pairs are of one CPU node, or of as few as see every class.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Collection, Dict, List, Sequence, Tuple

from .. import cpulist
from ..contract import BASELINE, Cell, Host, Reason, reason
from . import kinds

CLASS, EVERY = "class", "every"  # of `Request.pairs`

Class = Tuple[Any, ...]


def thinned(
    host: Host, cells: Sequence[Cell], seed: int, asked: Collection[str] = ()
) -> List[Cell]:
    """Return the cells without those for which another stands; that one says so.

    Only cells of bindings with the CPUs of one node are thinned, and none whose id is in
    ``asked``: these stand for others first. A baseline stays where a cell that stays has its
    CPUs. What is chosen depends on the seed and the cells alone, and is the same in every
    version of Python.
    """
    alike: Dict[Class, List[Cell]] = {}
    for cell in cells:
        if kinds.of_node(cell) is not None:
            alike.setdefault(_class(host, cell), []).append(cell)
    draw = random.Random(seed).random
    order = sorted({cell.cpu_nodes for its in alike.values() for cell in its}, key=int)
    order = [node for _, node in sorted((draw(), node) for node in order)]
    chosen: Dict[str, Cell] = {}
    open_classes = dict(alike)
    based = {cell.cpu_nodes for cell in cells if cell.role == BASELINE}
    named = {cell.cpu_nodes for cell in cells if cell.id in asked}
    while open_classes:  # the node that sees most of what no other has shown yet
        seen = {n: sum(_on(n, its) != [] for its in open_classes.values()) for n in order}
        node = max(order, key=lambda n: (seen[n] > 0, n in based, n in named, seen[n]))
        for name, its in list(open_classes.items()):
            here = _on(node, its)
            if here:  # first what is asked for, then what the plan ranks as nearest or farthest
                one = min(here, key=lambda cell: (cell.id not in asked, not cell.rank, draw()))
                why = _stands_for(one, its) if len(its) > 1 else None
                chosen[one.id] = replace(one, stands_for=why)
                del open_classes[name]
    gone = {cell.id for its in alike.values() for cell in its} - {*chosen, *asked}
    stay = {cell.id: chosen.get(cell.id, cell) for cell in cells if cell.id not in gone}
    alone = {cell.cpu_nodes for cell in stay.values()}
    alone -= {cell.cpu_nodes for cell in stay.values() if cell.role == BASELINE}
    for cell in cells:  # what cells of a second node are compared with
        if cell.role == BASELINE and cell.cpu_nodes in alone:
            stay[cell.id] = cell
            alone.remove(cell.cpu_nodes)
    return [stay[cell.id] for cell in cells if cell.id in stay]


def _on(node: str, cells: Sequence[Cell]) -> List[Cell]:
    return [cell for cell in cells if cell.cpu_nodes == node]


def _is_pair(cell: Cell) -> bool:
    return cell.binding in ("remote", "memory-only")


def _class(host: Host, cell: Cell) -> Class:
    if not _is_pair(cell):
        return (cell.binding,)
    tier = host.node[int(cell.memory.nodes or "")].tier
    return (cell.binding, cell.distance, tier if cell.binding == "memory-only" else None)


def _stands_for(cell: Cell, alike: Sequence[Cell]) -> Reason:
    if not _is_pair(cell):
        nodes = cpulist.format(int(one.cpu_nodes) for one in alike)
        return reason("stands-for-nodes", node=int(cell.cpu_nodes), nodes=nodes)
    return reason(
        "stands-for-pairs", here=int(cell.cpu_nodes), there=int(cell.memory.nodes or ""),
        pairs=len(alike), distance=cell.distance,
    )  # fmt: skip
