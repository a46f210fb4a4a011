"""Core groups on matrices whose structure is known, with noise, gaps and any CPU numbering."""

from dataclasses import replace

import numpy as np
import pytest

import topologies
from frames import core_latency_frame
from numalab.agent import cpulist
from numalab.agent.contract import SCHEMA, Cache, HostRecord, Setting
from numalab.agent.errors import Fault
from numalab.analysis import core_groups

ARM = [(4, 40.0), (8, 65.0), (64, 120.0), (128, 380.0)]
"""Like the 128-core, two-socket ARM whose 16 nodes of 8 the BIOS hides; clusters of 4."""


def matrix(
    n, levels, noise=0.1, *, outliers=0.0, sampled=1.0, one_way=False, permuted=False, seed=0
):
    """A matrix of (group size, ns) levels, nearest first, and the true CPU of each row."""
    random = np.random.default_rng(seed)
    true = np.zeros((n, n))
    for size, latency in sorted(levels, reverse=True):
        group = np.arange(n) // size
        true[group[:, None] == group[None, :]] = latency
    made = true * np.exp(random.normal(0, noise, (n, n)))
    slow = random.uniform(size=(n, n)) < outliers
    made[slow] *= random.uniform(3, 10, slow.sum())
    measured = np.triu(random.uniform(size=(n, n)) < sampled, 1)
    if not one_way:
        measured |= measured.T
    made[~measured] = np.nan
    order = random.permutation(n) if permuted else np.arange(n)
    return made[np.ix_(order, order)], order.tolist()


def topology(
    n, *, nodes=1, packages=1, dies=None, threads=1, l2=None, l3=None, clusters=None, caches=True
):
    """A host: CPUs in order, counts of groups, sizes of shared caches."""

    def lists(count):
        size = n // count
        return [cpulist.format(range(k * size, (k + 1) * size)) for k in range(count)]

    plain = topologies.topology(nodes=nodes, cores=n // nodes)
    cpus = tuple(
        replace(
            cpu,
            package=cpu.number // (n // packages),
            die=cpu.number // (n // dies) if dies else None,
            cluster=cpu.number // clusters if clusters else None,
            core=cpu.number // threads,
            siblings=lists(n // threads)[cpu.number // threads],
        )
        for cpu in plain.cpus
    )
    sized = ((2, l2 or threads), (3, l3)) if caches else ()
    listed = tuple(
        Cache(level, "Unified", None, shared)
        for level, size in sized
        for shared in (lists(n // size) if size else ())
    )
    return replace(plain, packages=packages, cpus=cpus, caches=listed)


def sizes(found):
    return [len(level.groups) for level in found.levels]


# ---------------------------------------------------------------- levels

HOSTS = {
    "one core complex": (8, [(8, 30)]),
    "two threads a core": (8, [(2, 8), (8, 45)]),
    "Zen 2, one socket": (32, [(4, 25), (32, 95)]),
    "Zen 2 with threads": (64, [(2, 8), (8, 25), (64, 95)]),
    "two Xeons": (64, [(2, 8), (32, 50), (64, 120)]),
    "two EPYCs": (128, [(2, 8), (16, 25), (64, 100), (128, 200)]),
    "ARM": (128, ARM),
}


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize(
    "spoilt",
    [
        {"noise": 0.05},
        {"noise": 0.10, "outliers": 0.02},
        {"noise": 0.10, "permuted": True},
        {"noise": 0.10, "one_way": True},
    ],
    ids=str,
)
def test_the_levels_and_groups_are_found(name, spoilt):
    n, levels = HOSTS[name]
    made, cpus = matrix(n, levels, **spoilt)
    found = core_groups.infer(made, cpus)
    assert sizes(found) == [n // size for size, _ in levels]
    for level, (size, latency) in zip(found.levels, levels, strict=True):
        assert level.groups == [list(range(k, k + size)) for k in range(0, n, size)]
        assert level.latency_ns == pytest.approx(latency, rel=0.1)


@pytest.mark.parametrize("permuted", [False, True])
def test_much_noise_moves_few_cpus(permuted):
    made, cpus = matrix(128, ARM, 0.2, permuted=permuted, outliers=0.02)
    found = core_groups.infer(made, cpus)
    assert sizes(found)[1:] == [16, 2, 1]
    assert found.levels[1].groups == [list(range(k, k + 8)) for k in range(0, 128, 8)]
    assert 30 <= sizes(found)[0] <= 40


def test_sampled_pairs_show_the_large_groups():
    made, cpus = matrix(128, [(16, 50), (64, 110), (128, 300)], 0.1, sampled=0.4, permuted=True)
    found = core_groups.infer(made, cpus)
    assert sizes(found) == [8, 2, 1]
    assert found.levels[0].groups == [list(range(k, k + 16)) for k in range(0, 128, 16)]


def test_few_sampled_pairs_invent_nothing():
    made, cpus = matrix(64, [(64, 60)], 0.2, sampled=0.1)
    assert sizes(core_groups.infer(made, cpus)) == [1]
    nothing = np.full((8, 8), np.nan)
    found = core_groups.infer(nothing, range(8), topology(8, l3=8))
    assert sizes(found) == [1] and np.isnan(found.levels[0].latency_ns)


@pytest.mark.parametrize("n", [3, 4, 5, 6, 8, 12, 16, 32, 64, 128])
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2])
def test_one_flat_group_stays_one(n, noise):
    wrong = 0
    seeds = range(20 if n <= 16 else 3)
    for seed in seeds:
        made, cpus = matrix(n, [(n, 50)], noise, seed=seed, outliers=0.02 * (seed % 2))
        wrong += sizes(core_groups.infer(made, cpus)) != [1]
    assert wrong <= len(seeds) // 20


def test_a_gradient_is_not_a_group():
    """A mesh of 8 × 8 tiles: the latency rises with every hop, without a step."""
    place = np.array([(tile // 8, tile % 8) for tile in range(64)])
    hops = np.abs(place[:, None, :] - place[None, :, :]).sum(axis=2)
    for seed in range(4):
        noise = np.exp(np.random.default_rng(seed).normal(0, 0.03, (64, 64)))
        found = core_groups.infer((45 + 2.0 * hops) * noise, range(64), topology(64, l3=64))
        assert sizes(found) == [1]
        assert found.hidden_nodes is False


def test_a_small_step_is_no_level():
    made, cpus = matrix(64, [(16, 50), (64, 55)], 0.02)
    assert sizes(core_groups.infer(made, cpus)) == [1]


@pytest.mark.parametrize("n", [1, 2])
def test_one_or_two_cpus_show_nothing(n):
    found = core_groups.infer(np.full((n, n), 50.0), range(n), topology(n, l3=n))
    assert sizes(found) == [1]
    assert found.hidden_nodes is None and "too few" in str(found.evidence)


def test_a_step_is_the_same_in_any_unit():
    made, cpus = matrix(32, [(4, 25), (32, 95)], 0.1)
    one, other = core_groups.infer(made, cpus), core_groups.infer(made * 1000, cpus)
    assert [level.groups for level in one.levels] == [level.groups for level in other.levels]


def test_what_is_no_matrix_of_latencies_is_refused():
    with pytest.raises(ValueError, match="shape"):
        core_groups.infer(np.ones((3, 4)), range(3))
    with pytest.raises(ValueError, match="0 ns or less"):
        core_groups.infer(np.array([[0, -1.0], [1, 0]]), range(2))


def test_256_cpus_are_found():
    made, cpus = matrix(256, [(2, 8), (16, 25), (128, 100), (256, 200)], 0.1, permuted=True)
    assert sizes(core_groups.infer(made, cpus)) == [128, 16, 2, 1]


# ---------------------------------------------------------------- hidden nodes


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("permuted", [False, True])
def test_the_arm_that_hides_sixteen_nodes_is_named(noise, permuted):
    made, cpus = matrix(128, ARM, noise, permuted=permuted, seed=3)
    found = core_groups.infer(made, cpus, topology(128, packages=2, l2=4, l3=64))
    assert found.hidden_nodes is True
    assert "16 groups of 8 CPUs" in str(found.evidence)
    assert "0-7 | 8-15 | 16-23" in str(found.evidence)
    assert "2 packages" in str(found.evidence)
    named = {len(level.groups): level for level in found.levels}
    assert named[16].explains is None
    assert named[2].explains == "cache-3"


def test_hidden_nodes_are_named_within_one_socket_too():
    made, cpus = matrix(64, [(8, 50), (64, 110)])
    found = core_groups.infer(made, cpus, topology(64, l3=64))
    assert found.hidden_nodes is True
    assert "8 groups of 8 CPUs" in str(found.evidence) and "admits 1 node" in str(found.evidence)
    assert "level-3 cache" in str(found.evidence)


def test_the_same_host_with_its_nodes_shown_hides_nothing():
    made, cpus = matrix(128, ARM)
    found = core_groups.infer(made, cpus, topology(128, packages=2, nodes=16, l2=4, l3=64))
    assert found.hidden_nodes is False
    names = [level.explains for level in found.levels]
    assert names[:2] == ["cache-2", "node"]


def test_half_of_the_nodes_hidden_is_still_hidden():
    made, cpus = matrix(128, ARM)
    found = core_groups.infer(made, cpus, topology(128, packages=2, nodes=2, l2=4, l3=64))
    assert found.hidden_nodes is True and "2 nodes" in str(found.evidence)


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.2])
@pytest.mark.parametrize(
    ("n", "levels", "host"),
    [
        # Zen: core complexes with a cache of their own inside one node
        (32, [(4, 25), (32, 95)], {"l3": 4}),
        (64, [(8, 25), (64, 100)], {"l3": 8}),
        (64, [(2, 8), (16, 25), (64, 100)], {"threads": 2, "l3": 16}),
        (128, [(2, 8), (16, 25), (64, 100), (128, 200)],
         {"threads": 2, "l3": 16, "packages": 2, "nodes": 2}),
        # one node per four core complexes (NPS4) and the packages above them
        (128, [(8, 25), (16, 70), (64, 100), (128, 200)],
         {"l3": 8, "packages": 2, "nodes": 8}),
        # Kunpeng: clusters of four cores with shared tags, listed or not, the cache per node
        (64, [(4, 40), (32, 60), (64, 130)], {"l3": 32, "clusters": 4, "nodes": 2, "packages": 2}),
        # efficiency cores that share a level-2 cache by four
        (16, [(4, 25), (16, 45)], {"l2": 4, "l3": 16}),
        # two ordinary packages
        (64, [(2, 8), (32, 50), (64, 120)], {"threads": 2, "l3": 32, "nodes": 2, "packages": 2}),
        (64, [(64, 50)], {"l3": 64}),
    ],
)  # fmt: skip
def test_what_caches_threads_and_nodes_explain_is_not_hidden(n, levels, host, noise):
    made, cpus = matrix(n, levels, noise, permuted=True)
    found = core_groups.infer(made, cpus, topology(n, **host))
    assert found.hidden_nodes is False, found.evidence
    expected = sum(size < n for size, _ in levels)
    assert sum(level.explains is not None for level in found.levels[:-1]) == expected


def test_clusters_that_no_kernel_lists_are_doubted_not_named():
    made, cpus = matrix(64, [(4, 40), (32, 60), (64, 130)])
    found = core_groups.infer(made, cpus, topology(64, l3=32, nodes=2, packages=2))
    assert found.hidden_nodes is None and "clusters" in str(found.evidence)


def test_hybrid_parts_are_not_named():
    """Eight threads of four performance cores, eight efficiency cores by four on a cache."""
    true = np.full((16, 16), 45.0)
    true[:8, :8] = 32.0
    for first in range(0, 8, 2):
        true[first : first + 2, first : first + 2] = 8.0
    for first in (8, 12):
        true[first : first + 4, first : first + 4] = 26.0
    shape = topology(16, l3=16)
    pairs = [cpulist.format([cpu // 2 * 2, cpu // 2 * 2 + 1]) for cpu in range(8)]
    fast = tuple(replace(cpu, siblings=its) for cpu, its in zip(shape.cpus, pairs))
    second = ["0-1", "2-3", "4-5", "6-7", "8-11", "12-15"]
    caches = [(2, shared) for shared in second] + [(3, "0-15")]
    shape = replace(shape, cpus=fast + shape.cpus[8:], caches=tuple(
        Cache(level, "Unified", None, shared) for level, shared in caches))  # fmt: skip
    for seed in range(5):
        noise = np.exp(np.random.default_rng(seed).normal(0, 0.08, (16, 16)))
        found = core_groups.infer(true * noise, range(16), shape)
        assert found.hidden_nodes is False, found.evidence


def test_without_cache_information_it_says_that_it_cannot_tell():
    made, cpus = matrix(64, [(8, 40), (64, 110)])
    found = core_groups.infer(made, cpus, topology(64, caches=False))
    assert found.hidden_nodes is None
    assert "no level-3 cache" in str(found.evidence) and "unless" in str(found.evidence)


def test_packages_behind_one_node_are_a_sign_even_without_caches():
    made, cpus = matrix(64, [(32, 50), (64, 140)])
    found = core_groups.infer(made, cpus, topology(64, packages=2, caches=False))
    assert found.hidden_nodes is True
    assert "2 packages" in str(found.evidence) and "interleaved" in str(found.evidence)
    made, cpus = matrix(64, [(64, 50)])
    flat = core_groups.infer(made, cpus, topology(64, packages=2, l3=32))
    assert flat.hidden_nodes is None and "no step" in str(flat.evidence)


def test_small_steps_between_groups_of_caches_are_doubted():
    """AMD with NPS1: quadrants of one I/O die, each of two core complexes."""
    made, cpus = matrix(64, [(8, 25), (16, 85), (64, 105)], 0.03)
    found = core_groups.infer(made, cpus, topology(64, l3=8))
    assert found.hidden_nodes is None and "NPS1" in str(found.evidence)
    made, cpus = matrix(64, [(4, 25), (8, 85), (64, 220)], 0.05)  # dies with memory of their own
    assert core_groups.infer(made, cpus, topology(64, l3=4)).hidden_nodes is True


def test_a_virtual_machine_is_not_named():
    made, cpus = matrix(64, [(8, 25), (64, 110)])
    found = core_groups.infer(made, cpus, topology(64, l3=64), virtual=True)
    assert found.hidden_nodes is None and "virtual" in str(found.evidence)


def test_an_unknown_topology_gives_levels_but_no_verdict():
    made, cpus = matrix(32, [(4, 25), (32, 95)])
    for shape in (None, topology(8, l3=8)):
        found = core_groups.infer(made, cpus, shape)
        assert sizes(found) == [8, 1] and found.hidden_nodes is None


def test_one_thread_per_core_is_enough_to_see_the_groups():
    shape = topology(64, threads=2, l3=16)
    made, _ = matrix(32, [(8, 25), (32, 100)])
    found = core_groups.infer(made, range(0, 64, 2), shape)
    assert found.levels[0].explains == "cache-3"
    assert found.hidden_nodes is False


# ---------------------------------------------------------------- from a run


def test_a_run_becomes_a_matrix_and_a_table():
    made, cpus = matrix(16, [(4, 25), (16, 95)], 0.0)
    numbers = [10 + 3 * cpu for cpu in cpus]
    shape = topology(16, l3=4)
    numbered = tuple(
        replace(cpu, number=number, siblings=str(number))
        for cpu, number in zip(shape.cpus, numbers, strict=True)
    )
    groups = [cpulist.format(numbers[k : k + 4]) for k in range(0, 16, 4)]
    shape = replace(
        shape,
        cpus=numbered,
        caches=tuple(Cache(3, "Unified", None, shared) for shared in groups),
        nodes=(replace(shape.nodes[0], cpus=cpulist.format(numbers)),),
    )
    frame = core_latency_frame(made, numbers, noise=0.05)
    host = HostRecord(SCHEMA, "h", False, None, shape, before={}, after=None)
    found = core_groups.from_measurements(frame, host)
    assert found.levels[0].groups == [numbers[k : k + 4] for k in range(0, 16, 4)]
    assert found.levels[0].explains == "cache-3"
    text = core_groups.markdown(frame, host)
    assert "| 1 | 2" in text and groups[0] in text and "No sign of hidden nodes" in text
    with pytest.raises(Fault):
        core_groups.from_measurements(frame.clear(), host)
    assert core_groups.markdown(frame.clear(), host).startswith("No groups")


def test_the_caches_of_a_virtual_machine_prove_nothing():
    made, cpus = matrix(64, [(8, 50), (64, 110)])
    frame = core_latency_frame(made, cpus)
    host = HostRecord(SCHEMA, "h", False, None, topology(64, l3=64), before={}, after=None)
    assert core_groups.from_measurements(frame, host).hidden_nodes is True
    for said, hidden in (("kvm", None), ("none", True)):
        guest = replace(host, before={"virt.hypervisor": Setting(said)})
        assert core_groups.from_measurements(frame, guest).hidden_nodes is hidden
