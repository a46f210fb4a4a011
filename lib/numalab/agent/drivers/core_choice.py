"""Which CPUs core-to-core latency is measured between: all, one of each core, or a sample."""

from __future__ import annotations

import math
import random
from typing import Dict, List, Optional, Sequence, Tuple

from ..contract import Host, Reason, reason

_ALL = 64  # CPUs whose every pair is measured; of more, one hardware thread of each core
_WITH_SIBLING = 4  # cores at most whose second hardware thread is measured as well then
_SEED = 1


def choose(
    host: Host, cpus: Sequence[int], most_pairs: int
) -> Tuple[List[int], Tuple[Reason, ...]]:
    """Return usable CPUs, every two of which make ``most_pairs`` pairs at most, and notes on them.

    A sample of cores is drawn with a fixed seed, so that every block and every run of a host
    measures the same pairs. It has cores of every node, of every cache that cores share, two of
    one such cache, and some cores with both their hardware threads, as far as there is room. At
    least 2 CPUs are returned.
    """
    most = max(2, int((1 + math.sqrt(1 + 8 * most_pairs)) / 2))
    if len(cpus) <= min(_ALL, most):
        return host.order(cpus), ()
    cores = host.cores_of(cpus)
    both = min(_WITH_SIBLING, most // 8, sum(len(core) > 1 for core in cores))
    firsts = _spread(host, cores)[: max(2, most - both)]
    siblings = [core[1] for core in firsts if len(core) > 1][:both]
    chosen = sorted([core[0] for core in firsts] + siblings)
    found = {"cores": len(firsts), "of": len(cores), "siblings": len(siblings)}
    if len(firsts) == len(cores):
        return chosen, (reason("first-threads-only", **found),)
    return chosen, (reason("cores-sampled", seed=_SEED, **found),)


def _spread(host: Host, cores: Sequence[List[int]]) -> List[List[int]]:
    """Return the cores in an order of which every beginning is spread as evenly as can be."""
    nodes: Dict[Optional[int], Dict[object, List[List[int]]]] = {}
    for core in random.Random(_SEED).sample(cores, len(cores)):
        cpu = host.usable[core[0]]
        shared = (cpu.package, cpu.die, cpu.cluster if cpu.l3 is None else cpu.l3)
        nodes.setdefault(cpu.node, {}).setdefault(shared, []).append(core)
    ranked = [
        (_rank(node, cache, turn), core)
        for node, caches in enumerate(nodes.values())
        for cache, sharing in enumerate(caches.values())
        for turn, core in enumerate(sharing)
    ]
    return [core for _, core in sorted(ranked, key=lambda one: one[0])]


def _rank(node: int, cache: int, turn: int) -> Tuple[int, int]:
    """Return when a node's cache gives its next core.

    First every node gives one; then every node a second one of the same cache and one of another,
    in the one order on every second node and in the other on the rest; then each cache in turn.
    """
    if cache + turn <= 1:
        return 0, 1 + (node + cache) % 2 if cache + turn else 0
    return 1 + turn, cache
