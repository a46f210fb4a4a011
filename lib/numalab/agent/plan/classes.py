"""Nodes and pairs of nodes that are alike: which one stands for the others.

A host of 16 nodes has 240 pairs of nodes, but few distances between them. One node stands for all
in `local` and whatever else has the CPUs of one node; one pair for all of its distance (SLIT) in
`remote`, and of its distance and memory tier in `memory-only`. Comparisons hold the CPUs: the
pairs are of one CPU node, or of as few as see every class.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Collection, Dict, List, Mapping, Sequence, Set, Tuple

from .. import cpulist
from ..contract import BASELINE, Cell, Host, Reason, reason
from . import kinds

CLASS, EVERY = "class", "every"  # of `Request.pairs`
PAIRS = ("remote", "memory-only")  # the bindings to the memory of another node

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
    chosen = _representatives(cells, alike, seed, asked)
    gone = {cell.id for its in alike.values() for cell in its} - {*chosen, *asked}
    stay = {cell.id: cell for cell in cells if cell.id not in gone}
    _keep_baselines(stay, cells)
    for its in alike.values():
        one = next(cell for cell in its if cell.id in chosen)
        if not one.stands_for and any(cell.id not in stay for cell in its):
            notes = tuple(note for note in one.notes if note.code != "equally-far")
            stay[one.id] = replace(one, stands_for=_stands_for(host, one, its), notes=notes)
    return [stay[cell.id] for cell in cells if cell.id in stay]


def _keep_baselines(stay: Dict[str, Cell], cells: Sequence[Cell]) -> None:
    """Add what cells of a second node are compared with."""
    alone = {cell.cpu_nodes for cell in stay.values()}
    alone -= {cell.cpu_nodes for cell in stay.values() if cell.role == BASELINE}
    for cell in cells:
        if cell.role == BASELINE and cell.cpu_nodes in alone:
            stay[cell.id] = cell
            alone.remove(cell.cpu_nodes)


def _representatives(
    cells: Sequence[Cell], alike: Mapping[Class, List[Cell]], seed: int, asked: Collection[str]
) -> Set[str]:
    """Return the id of a cell of each class, on as few CPU nodes as see every class."""
    draw = random.Random(seed).random
    order = sorted({cell.cpu_nodes for its in alike.values() for cell in its}, key=int)
    order = [node for _, node in sorted((draw(), node) for node in order)]
    chosen: Set[str] = set()
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
                chosen.add(one.id)
                del open_classes[name]
    return chosen


def _on(node: str, cells: Sequence[Cell]) -> List[Cell]:
    return [cell for cell in cells if cell.cpu_nodes == node]


def _is_pair(cell: Cell) -> bool:
    return cell.binding in PAIRS


def _class(host: Host, cell: Cell) -> Class:
    if not _is_pair(cell):
        return (cell.binding,)
    return (cell.binding, *_distance_class(host, int(cell.cpu_nodes), int(cell.memory.nodes or "")))


def _distance_class(host: Host, here: int, there: int) -> Class:
    tier = host.node[there].tier if there in host.memory_only else None
    return (host.distance(here, there), tier)


def _stands_for(host: Host, cell: Cell, alike: Sequence[Cell]) -> Reason:
    here = int(cell.cpu_nodes)
    if not _is_pair(cell):
        nodes = cpulist.format(int(one.cpu_nodes) for one in alike)
        return reason("stands-for-nodes", node=here, nodes=nodes)
    there = int(cell.memory.nodes or "")
    others = host.memory_only if there in host.memory_only else host.main_nodes
    pairs = [(a, b) for a in host.cpus_of for b in others if a != b]
    mine = _distance_class(host, here, there)
    count = sum(_distance_class(host, *pair) == mine for pair in pairs)
    return reason("stands-for-pairs", here=here, there=there, pairs=count, distance=cell.distance)
