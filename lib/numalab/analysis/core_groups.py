"""Levels of core groups, inferred from a core-to-core latency matrix.

A host's cores come in groups within groups: hardware threads of a core, cores that share a cache,
a die or node, a socket, the whole host. Each level has its own latency. This module finds the
levels that a measured matrix shows, says which of them the firmware's topology explains, and
whether what is left over looks like nodes that the firmware does not admit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl
from scipy.cluster.hierarchy import cophenet, linkage

from .. import escape
from ..agent import cpulist
from ..agent.contract import Cpu, Host, HostRecord, Reason, reason
from ..agent.errors import Fault
from .words import CORE_GROUPS

LEAST_STEP = 1.15
"""Two levels differ by this factor at least: a mesh's or ring's own gradient stays below it."""

_CLUSTER_CORES = 4
"""Cores in the largest core cluster known to share no cache that firmware lists (Kunpeng 920)."""

_SHUFFLES = 24
_SEED = 1958

Partition = list[list[int]]

_CACHES = ("cache-2", "cache-3", "cache-4")


@dataclass(frozen=True)
class Level:
    """CPUs that reach each other at one latency, or faster: a partition into groups.

    ``latency_ns`` is the median latency of the pairs that share a group of this level and of no
    nearer one. ``explains`` is what the firmware knows as the same partition, a code of
    ``words.CORE_GROUPS`` (None: it knows no such).
    """

    latency_ns: float
    groups: list[list[int]]
    explains: str | None

    @property
    def name(self) -> str | None:
        """What readers call it, None where the firmware knows no such groups."""
        return CORE_GROUPS[self.explains] if self.explains else None


@dataclass(frozen=True)
class Groups:
    """The levels, nearest first, and what they say about nodes.

    ``hidden_nodes``: True: the host seems to hide its nodes; False: the matrix gives no sign of
    it; None: it cannot be told. ``evidence`` says why.
    """

    levels: list[Level]
    hidden_nodes: bool | None
    evidence: Reason


def infer(
    matrix: np.ndarray,
    cpus: Sequence[int],
    topology: Host | None = None,
    *,
    virtual: bool = False,
) -> Groups:
    """Infer the levels of core groups and whether the host seems to hide its nodes.

    ``matrix``: shape (n, n), latencies in ns, NaN where a pair was not measured, the diagonal
    ignored; ``cpus``: the n CPU numbers of its rows; ``topology``: what the firmware says of the
    host (None: nothing); ``virtual``: the host is known to be a virtual machine, whose caches and
    nodes are made up. Raises ValueError for a matrix of another shape or with latencies <= 0.

    Method. The tree is built by average linkage (UPGMA; Sokal and Michener, Univ. Kansas Sci.
    Bull. 38, 1958) on the logarithms of the latencies, since noise and steps are both relative.
    Cuts of the tree are found by binary segmentation: the cut that explains most of the variance
    is kept when (1) it explains more than cuts of shuffled matrices do (a permutation test that
    repeats the clustering, so that the choice of the cut is paid for; for a few CPUs, a
    simulation of pure noise instead), (2) the step is a factor of ``LEAST_STEP`` or more, and (3)
    the groups are compact: nearly every CPU is nearer to its own group than to any other
    (Rousseeuw's silhouette, J. Comput. Appl. Math. 20, 1987), which a gradient is not. Both sides
    of a kept cut are searched again. Groups are called hidden nodes only when they lie within the
    visible nodes and neither shared caches, clusters, hardware threads nor kinds of cores explain
    them.
    """
    logs = _symmetric(matrix, len(cpus))
    measured = [int(cpu) for cpu in cpus]
    everything = [list(range(len(measured)))]
    singles = [[index] for index in range(len(measured))]
    partitions = [*_search(logs, everything, singles), everything]
    known = _firmware(topology, measured)
    levels = []
    nearer: Partition = singles
    for partition in partitions:
        within = _pairs_within(partition) & ~_pairs_within(nearer)
        seen = logs[within & np.isfinite(logs)]
        levels.append(
            Level(
                latency_ns=round(float(np.exp(np.median(seen))), 1) if seen.size else float("nan"),
                groups=[[measured[i] for i in group] for group in _ordered(partition, measured)],
                explains=_explanation(partition, known),
            )
        )
        nearer = partition
    hidden, evidence = _hidden(levels[:-1], partitions[:-1], known, topology, logs, virtual)
    return Groups(levels, hidden, evidence)


def from_measurements(measurements: pl.DataFrame, host: HostRecord) -> Groups:
    """Infer the levels from a run's ``core_latency`` rows: each pair's median over the blocks.

    ``x`` and ``y`` name the two CPUs. Rows graded error are left out. Raises Fault when no row
    names a pair.
    """
    rows = measurements.filter(
        (pl.col("metric") == "core_latency")
        & (pl.col("grade") != "error")
        & (pl.col("value") > 0)
        & pl.col("x").is_not_null()
        & pl.col("y").is_not_null()
    )
    if rows.is_empty():
        raise Fault(
            "the run holds no core-to-core latency", "measure it with numalab run core-to-core"
        )
    pairs = rows.group_by("x", "y").agg(pl.col("value").median())
    cpus = sorted({int(cpu) for cpu in [*pairs["x"], *pairs["y"]]})
    place = {cpu: index for index, cpu in enumerate(cpus)}
    matrix = np.full((len(cpus), len(cpus)), np.nan)
    for x, y, value in pairs.iter_rows():
        matrix[place[int(x)], place[int(y)]] = value
    hypervisor = host.before.get("virt.hypervisor")
    virtual = hypervisor is not None and hypervisor.value not in (None, "none")
    return infer(matrix, cpus, host.topology, virtual=virtual)


def markdown(measurements: pl.DataFrame, host: HostRecord) -> str:
    """Return the levels as a Markdown table, with what they say about hidden nodes."""
    try:
        found = from_measurements(measurements, host)
    except Fault as fault:
        return f"No groups: {escape.markdown(fault.what)}."
    lines = ["| level | latency (ns) | groups | CPUs | what the firmware calls them |",
             "| ---: | ---: | ---: | --- | --- |"]  # fmt: skip
    for number, level in enumerate(found.levels, 1):
        shown = " · ".join(cpulist.brief(group, 40) for group in level.groups[:8])
        more = f" · … {len(level.groups) - 8} more" if len(level.groups) > 8 else ""
        name = level.name or "nothing it lists"
        lines.append(
            f"| {number} | {level.latency_ns:.1f} | {len(level.groups)} | {shown}{more} | {name} |"
        )
    heading = {
        True: "This host seems to hide its nodes",
        False: "No sign of hidden nodes",
        None: "Whether nodes are hidden cannot be told",
    }[found.hidden_nodes]
    return "\n".join([*lines, "", f"{heading}: {escape.markdown(str(found.evidence))}."])


# ---------------------------------------------------------------- the tree and its cuts


def _symmetric(matrix: np.ndarray, n: int) -> np.ndarray:
    """Logarithms, both directions of a pair made one, NaN on the diagonal."""
    matrix = np.array(matrix, dtype=float)
    if matrix.shape != (n, n):
        raise ValueError(f"a matrix of shape {matrix.shape} for {n} CPUs")
    np.fill_diagonal(matrix, np.nan)
    if np.any(matrix <= 0):
        raise ValueError("a latency of 0 ns or less is no measurement")
    logs = np.log(matrix)
    there, back = logs, logs.T
    low, high = np.fmin(there, back), np.fmax(there, back)
    # an interrupt only ever slows a measurement: far apart, the faster direction is the true one
    both: np.ndarray = np.where(high - low > np.log(1.5), low, (low + high) / 2)
    return both


def _search(logs: np.ndarray, upper: Partition, items: Partition) -> list[Partition]:
    """Return the partitions between ``items`` (finer) and ``upper`` (coarser), finest first."""
    found = _best_cut(logs, upper, items)
    if found is None:
        return []
    return [*_search(logs, found, items), found, *_search(logs, upper, found)]


def _best_cut(logs: np.ndarray, upper: Partition, items: Partition) -> Partition | None:
    """Return the partition between the two that the latencies show best, or None."""
    blocks = _blocks(logs, upper, items)
    matrices = [matrix for matrix, _ in blocks]
    if sum(len(matrix) - 1 for matrix in matrices) < 2:
        return None
    if sum(_upper_values(matrix).size for matrix in matrices) < 3:
        return None
    trees = [_tree(matrix) for matrix in matrices]
    explained, height, step = _cut(matrices, trees)
    if step < np.log(LEAST_STEP):
        return None
    divided = {items[member][0] for _, members in blocks for member in members}
    partition = [group for group in upper if divided.isdisjoint(group)]  # one item each
    for (matrix, members), tree in zip(blocks, trees, strict=True):
        for group in _settled(matrix, _flat(tree, len(members), height), height):
            partition.append(sorted(cpu for item in group for cpu in items[members[item]]))
    if _compact(logs, partition, upper) and _beyond_chance(matrices, explained):
        return partition
    return None


def _blocks(
    logs: np.ndarray, upper: Partition, items: Partition
) -> list[tuple[np.ndarray, list[int]]]:
    """For each upper group of two items or more: the items' mean latencies, and which they are."""
    belongs = np.zeros((len(items), len(logs)))
    for index, item in enumerate(items):
        belongs[index, item] = 1
    known = np.isfinite(logs)
    sums = belongs @ np.where(known, logs, 0.0) @ belongs.T
    counts = belongs @ known.astype(float) @ belongs.T
    with np.errstate(invalid="ignore", divide="ignore"):
        means = sums / counts
    np.fill_diagonal(means, np.nan)
    home = {cpu: place for place, group in enumerate(upper) for cpu in group}
    members: dict[int, list[int]] = {}
    for index, item in enumerate(items):
        members.setdefault(home[item[0]], []).append(index)
    return [
        (means[np.ix_(inside, inside)], inside) for inside in members.values() if len(inside) > 1
    ]


def _tree(matrix: np.ndarray) -> np.ndarray:
    """SciPy's average linkage of a symmetric matrix; missing pairs are filled in first."""
    if len(matrix) == 2:
        return np.array([[0.0, 1.0, np.nan_to_num(matrix[0, 1]), 2.0]])
    rows, columns = np.triu_indices(len(matrix), 1)
    pairs = matrix[rows, columns]
    missing = np.isnan(pairs)
    if missing.any():
        pairs = _filled(matrix)[rows, columns]
    low = pairs.min()
    tree: np.ndarray = linkage(pairs - low, "average")
    if missing.any():  # a mean over the tree is a better guess than the best way round
        for _ in range(2):
            pairs[missing] = cophenet(tree)[missing] + low
            low = pairs.min()
            tree = linkage(pairs - low, "average")
    tree[:, 2] += low
    return tree


def _filled(matrix: np.ndarray) -> np.ndarray:
    """Estimate pairs that were not measured by the best way round over one other item.

    In a hierarchy the latency of (i, j) is that of the farther of (i, k) and (k, j) for the k
    nearest to either (the ultrametric inequality); without any such k it is the median.
    """
    latency = np.where(np.isnan(matrix), np.inf, matrix)
    around = np.full_like(matrix, np.inf)
    for k in range(len(matrix)):
        np.minimum(around, np.maximum(latency[:, k, None], latency[None, k, :]), out=around)
    filled = np.where(np.isnan(matrix), around, matrix)
    known = matrix[np.isfinite(matrix)]
    filled[~np.isfinite(filled)] = np.median(known) if known.size else 0.0
    np.fill_diagonal(filled, np.nan)
    return filled


def _cut(matrices: list[np.ndarray], trees: list[np.ndarray]) -> tuple[float, float, float]:
    """Return the best cut of all trees at one height: share of variance, height, step.

    In average linkage a merge's height is the mean over the pairs that it joins, so the means
    below and above every cut follow from the merges alone.
    """
    heights = np.concatenate([tree[:, 2] for tree in trees])
    weights = np.concatenate([_merge_pairs(tree) for tree in trees])
    order = np.argsort(heights, kind="stable")
    heights, weights = heights[order], weights[order]
    values = np.concatenate([_upper_values(matrix) for matrix in matrices])
    total = np.var(values) * weights.sum()
    below = np.cumsum(weights)[:-1]
    above = weights.sum() - below
    sums = np.cumsum(weights * heights)
    mean_below = sums[:-1] / below
    mean_above = (sums[-1] - sums[:-1]) / above
    gained = below * above / (below + above) * (mean_above - mean_below) ** 2
    # a cut between two merges of one height would be no cut of the tree
    gained[np.diff(heights) <= 1e-9] = 0
    best = int(np.argmax(gained))
    share = float(min(1.0, gained[best] / total)) if total > 1e-12 else 0.0
    return share, float(heights[best : best + 2].mean()), float(mean_above[best] - mean_below[best])


def _merge_pairs(tree: np.ndarray) -> np.ndarray:
    """How many pairs of items each merge of a tree joins."""
    n = len(tree) + 1
    sizes = np.concatenate([np.ones(n), tree[:, 3]])
    joined: np.ndarray = sizes[tree[:, 0].astype(int)] * sizes[tree[:, 1].astype(int)]
    return joined


def _upper_values(matrix: np.ndarray) -> np.ndarray:
    values: np.ndarray = matrix[np.triu_indices(len(matrix), 1)]
    known: np.ndarray = values[np.isfinite(values)]
    return known


def _flat(tree: np.ndarray, n: int, height: float) -> Partition:
    """The groups of a tree cut at a height."""
    members: dict[int, list[int]] = {index: [index] for index in range(n)}
    for step, (a, b, at, _) in enumerate(tree):
        if at <= height and int(a) in members and int(b) in members:
            members[n + step] = members.pop(int(a)) + members.pop(int(b))
    return list(members.values())


def _settled(matrix: np.ndarray, groups: Partition, height: float) -> Partition:
    """Move items between groups until no move brings more near pairs together.

    A tree never takes a merge back, so one odd pair misplaces two items for good. The local
    search maximises the sum of (height - latency) over all pairs that share a group: correlation
    clustering (Bansal, Blum and Chawla, Machine Learning 56, 2004).
    """
    worth = np.nan_to_num(height - matrix)
    np.fill_diagonal(worth, 0.0)
    n = len(matrix)
    home = np.empty(n, dtype=int)
    for index, group in enumerate(groups):
        home[group] = index
    sums = worth @ (home[:, None] == np.arange(n)[None, :])  # n labels: room for new singles
    for _ in range(20):
        moved = False
        for item in range(n):
            old, new = home[item], int(np.argmax(sums[item]))
            if sums[item, new] > sums[item, old] + 1e-9:
                sums[:, old] -= worth[:, item]
                sums[:, new] += worth[:, item]
                home[item] = new
                moved = True
        if not moved:
            break
    return [np.flatnonzero(home == label).tolist() for label in np.unique(home)]


def _beyond_chance(matrices: list[np.ndarray], explained: float) -> bool:
    """Whether a cut explains more than the best cuts of matrices without structure do."""
    sizes = tuple(sorted(len(matrix) for matrix in matrices))
    if explained <= _noise_share(sizes):
        return False
    values = np.concatenate([_upper_values(matrix) for matrix in matrices])
    if len(values) < 45:
        return True  # so few pairs have too few orders for a permutation test
    random = np.random.default_rng(_SEED)
    by_chance = 0.0
    for _ in range(_SHUFFLES):
        shuffled = _with_values(matrices, random.permutation(values))
        by_chance = max(by_chance, _cut(shuffled, [_tree(matrix) for matrix in shuffled])[0])
    # 24 shuffles show the middle of what chance does: ask for a tenth of the rest beyond it
    return explained > by_chance + 0.1 * (1 - by_chance)


@lru_cache(maxsize=256)
def _noise_share(sizes: tuple[int, ...]) -> float:
    """The share of variance that the best cut of pure noise explains in 1 of 500 matrices."""
    random = np.random.default_rng(_SEED)
    pairs = sum(size * (size - 1) // 2 for size in sizes)
    few = pairs < 200 and len(sizes) <= 4
    shares = []
    for _ in range(1500 if few else _SHUFFLES):
        noise = _with_values([np.zeros((size, size)) for size in sizes], random.normal(size=pairs))
        shares.append(_cut(noise, [_tree(matrix) for matrix in noise])[0])
    # many pairs: the share hardly varies, and its far tail is five deviations at the most
    return float(np.quantile(shares, 0.998) if few else np.mean(shares) + 5 * np.std(shares))


def _with_values(matrices: list[np.ndarray], values: np.ndarray) -> list[np.ndarray]:
    """The same matrices, missing pairs included, with other values."""
    made = []
    used = 0
    for matrix in matrices:
        rows, columns = np.triu_indices(len(matrix), 1)
        known = np.isfinite(matrix[rows, columns])
        rows, columns = rows[known], columns[known]
        new = np.full(matrix.shape, np.nan)
        new[rows, columns] = new[columns, rows] = values[used : used + len(rows)]
        used += len(rows)
        made.append(new)
    return made


def _compact(logs: np.ndarray, partition: Partition, upper: Partition) -> bool:
    """Whether nearly every CPU is clearly nearer to its own group than to the next one."""
    belongs = np.zeros((len(logs), len(partition)))
    home = np.zeros(len(logs), dtype=int)
    for index, group in enumerate(partition):
        belongs[group, index] = 1
        home[group] = index
    parent = {cpu: place for place, group in enumerate(upper) for cpu in group}
    parents = np.array([parent[group[0]] for group in partition])
    known = np.isfinite(logs)
    counts = known.astype(float) @ belongs
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(known, logs, 0.0) @ belongs / counts
    rows = np.arange(len(logs))
    own = means[rows, home]
    others = np.where(np.isnan(means), np.inf, means)
    others[rows, home] = np.inf
    others[parents[None, :] != parents[home][:, None]] = np.inf
    nearest = others.min(axis=1)
    judged = np.isfinite(own) & np.isfinite(nearest)
    if not judged.any():
        return False
    margin = nearest[judged] - own[judged]
    return bool(np.mean(margin > 0) >= 0.9 and np.median(margin) >= np.log(LEAST_STEP) / 2)


# ---------------------------------------------------------------- what the firmware says


def _firmware(topology: Host | None, measured: list[int]) -> dict[str, Partition]:
    """The partitions of the measured CPUs that the topology knows, by their codes."""
    if topology is None:
        return {}
    place = {cpu: index for index, cpu in enumerate(measured)}
    rows = topology.cpu

    def keyed(key: Callable[[Cpu], tuple[Hashable, ...]]) -> Partition | None:
        groups: dict[tuple[Hashable, ...], list[int]] = {}
        for number, index in place.items():
            if number not in rows or key(rows[number])[-1] is None:
                return None
            groups.setdefault(key(rows[number]), []).append(index)
        return list(groups.values())

    known: dict[str, Partition | None] = {
        "core": keyed(lambda cpu: (cpu.siblings,)),
        "cluster": keyed(lambda cpu: (cpu.package, cpu.die, cpu.cluster)),
    }
    for code in _CACHES:
        lists = [
            cpulist.parse(cache.cpus)
            for cache in topology.caches
            if cache.level == int(code[-1]) and cache.type != "Instruction"
        ]
        known[code] = _listed(lists, place)
    known["node"] = _listed([cpulist.parse(node.cpus) for node in topology.nodes], place)
    known["die"] = keyed(lambda cpu: (cpu.package, cpu.die))
    known["package"] = keyed(lambda cpu: (cpu.package,))
    known["kind"] = _kinds_of_core(topology, measured)
    return {name: partition for name, partition in known.items() if partition}


def _listed(lists: list[list[int]], place: dict[int, int]) -> Partition | None:
    """A partition from CPU lists; None unless it covers every measured CPU once."""
    groups = [[place[cpu] for cpu in cpus if cpu in place] for cpus in lists]
    groups = [group for group in groups if group]
    covered = sorted(index for group in groups for index in group)
    return groups if covered == list(range(len(place))) else None


def _kinds_of_core(topology: Host, measured: list[int]) -> Partition | None:
    """Hybrid hosts: CPUs told apart by threads per core and by cores on a level-2 cache."""
    second: dict[int, int] = {}
    for cache in topology.caches:
        if cache.level == 2 and cache.type != "Instruction":
            cpus = cpulist.parse(cache.cpus)
            cores = {topology.cpu[cpu].siblings for cpu in cpus if cpu in topology.cpu}
            second.update(dict.fromkeys(cpus, len(cores)))
    kinds: dict[tuple[int | None, int | None], list[int]] = {}
    for index, number in enumerate(measured):
        cpu = topology.cpu.get(number)
        threads = len(cpulist.parse(cpu.siblings)) if cpu and cpu.siblings else None
        kinds.setdefault((threads, second.get(number)), []).append(index)
    return list(kinds.values()) if len(kinds) > 1 else None


def _explanation(partition: Partition, known: dict[str, Partition]) -> str | None:
    if len(partition) == 1:
        return "all"
    return next((code for code, its in known.items() if _alike(partition, its)), None)


def _alike(one: Partition, other: Partition) -> bool:
    """Whether two partitions pair the same CPUs, but for a tenth (Jaccard index of the pairs)."""
    a, b = _pairs_within(one), _pairs_within(other)
    either = (a | b).sum()
    return bool(either and (a & b).sum() / either >= 0.9)


def _pairs_within(partition: Partition) -> np.ndarray:
    n = sum(len(group) for group in partition)
    home = np.empty(n, dtype=int)
    for index, group in enumerate(partition):
        home[group] = index
    together = home[:, None] == home[None, :]
    np.fill_diagonal(together, False)
    return np.triu(together)


def _ordered(partition: Partition, measured: list[int]) -> Partition:
    """Groups by their least CPU number, and CPUs by number within."""
    groups = [sorted(group, key=measured.__getitem__) for group in partition]
    return sorted(groups, key=lambda group: measured[group[0]])


# ---------------------------------------------------------------- hidden nodes


def _hidden(
    levels: list[Level],
    partitions: list[Partition],
    known: dict[str, Partition],
    topology: Host | None,
    logs: np.ndarray,
    virtual: bool,
) -> tuple[bool | None, Reason]:
    """Whether levels that no cache explains are finer than the nodes, and the evidence."""
    visible = known.get("node")
    if len(logs) < 4:
        return None, reason("too-few-cpus-for-groups", cpus=len(logs))
    if visible is None or topology is None:
        return None, reason("cpus-without-node")
    # One without CPUs (CXL memory, for instance) groups no cores.
    nodes = len([node for node in topology.nodes if node.cpus]) or len(visible)
    package = known.get("package", [])
    packages = topology.packages or len(package) or 1
    finer, merged = _below_nodes(levels, partitions, visible, package)
    if not finer:
        if packages > nodes:
            return None, reason("no-step-between-packages", nodes=nodes, packages=packages)
        return False, reason("latencies-explained", levels=levels, nodes=nodes)
    groups = [_described(level, partition, logs) for level, partition in finer]
    if virtual:
        return None, reason("groups-of-virtual-machine", groups=groups, nodes=nodes)
    if merged:
        return True, reason("packages-merged", groups=groups, nodes=nodes, packages=packages)
    if "kind" in known and packages == 1:
        return False, reason("kinds-of-core", groups=groups)
    doubt = _doubts([partition for _, partition in finer], known, logs)
    if doubt:
        return None, reason("groups-doubted", groups=groups, nodes=nodes, why=doubt)
    caches = {code[-1]: len(known[code]) for code in _CACHES if code in known}
    return True, reason("nodes-hidden", groups=groups, nodes=nodes, caches=caches)


def _below_nodes(
    levels: list[Level], partitions: list[Partition], visible: Partition, package: Partition
) -> tuple[list[tuple[Level, Partition]], bool]:
    """The levels finer than the nodes that nothing explains, and whether packages are among them.

    Packages of one node are merged by the firmware, even if each also shares a cache.
    """
    packages = next((one for one in partitions if package and _alike(one, package)), None)
    finer = [
        (level, partition)
        for level, partition in zip(levels, partitions, strict=True)
        if (level.explains in (None, "die") or partition is packages) and _finer(partition, visible)
    ]
    return finer, any(partition is packages for _, partition in finer)


def _doubts(
    partitions: list[Partition], known: dict[str, Partition], logs: np.ndarray
) -> Reason | None:
    """Why each of some partitions that nothing explains may be something else than nodes."""
    doubts = [_doubt(partition, known, logs) for partition in partitions]
    return doubts[-1] if all(doubts) else None


def _doubt(partition: Partition, known: dict[str, Partition], logs: np.ndarray) -> Reason | None:
    """Why groups that nothing listed explains may be something else than nodes, or None."""
    third = known.get("cache-3")
    if third is None:
        return reason("no-level-3-cache")
    threads = known.get("core")
    per_core = np.median([len(group) for group in threads]) if threads else 1
    if np.median([len(group) for group in partition]) / per_core <= _CLUSTER_CORES:
        return reason("may-be-clusters", cores=_CLUSTER_CORES)
    if len(third) > len(partition) and _finer(third, partition):
        outside = logs[np.isfinite(logs) & ~_pairs_within(partition)]
        inside = logs[np.isfinite(logs) & _pairs_within(partition) & ~_pairs_within(third)]
        if inside.size and np.median(outside) - np.median(inside) < np.log(1.5):
            return reason("may-be-quadrants")
    return None


def _finer(partition: Partition, coarse: Partition) -> bool:
    """Whether a partition divides the groups of another (but for a CPU in twenty)."""
    home = {cpu: index for index, group in enumerate(coarse) for cpu in group}
    inside = 0
    for group in partition:
        homes = [home[cpu] for cpu in group]
        inside += max(homes.count(index) for index in set(homes))
    return len(partition) > len(coarse) and inside >= 0.95 * len(home)


def _described(level: Level, partition: Partition, logs: np.ndarray) -> dict[str, Any]:
    """One level for a reader: its groups, their latency, and that to what lies outside."""
    outside = logs[np.isfinite(logs) & np.triu(~_pairs_within(partition), 1)]
    sizes = [len(group) for group in level.groups]
    return {
        "count": len(level.groups),
        "least_cpus": min(sizes),
        "most_cpus": max(sizes),
        "first": [cpulist.format(group) for group in level.groups[:3]],
        "explains": level.explains,
        "latency_ns": level.latency_ns,
        "outside_ns": float(np.exp(np.median(outside))),
    }
