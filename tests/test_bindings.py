"""Bindings on hosts of every shape: what they become, what is skipped, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import topologies
from numalab.agent import cpulist, kernel, words
from numalab.agent.contract import (
    CpuExpectation,
    Expectation,
    MemoryExpectation,
    reason,
)
from numalab.agent.errors import Fault
from numalab.agent.plan import grammar, kinds, resolve

SYMBOLIC = [
    "unbound",
    "local",
    "remote",
    "memory-only",
    "interleave",
    "interleave:all",
    "interleave:weighted",
    "preferred",
    "cpus-only",
    "one-thread-per-core",
    "smt-siblings",
    {"remote": "nearest"},
    {"remote": "farthest"},
    {"cores": {"count": "node", "within": "node"}},
    {"cores": {"count": "node", "within": "socket"}},
    {"cores": {"count": "node", "within": "spread"}},
]


def cells(host, *asked, baseline="local"):
    made = resolve.resolve(list(asked), host, baseline)
    return {cell.id: cell for cell in made.cells}, {s.cell: s.reason for s in made.skipped}


def test_local_remote_and_interleave_on_two_nodes():
    found, skipped = cells(
        topologies.topology(2, cores=4, threads=2), "local", "remote", "interleave", "unbound"
    )
    assert list(found) == [
        "local:0", "local:1", "remote:0-1", "remote:1-0", "interleave:0", "interleave:1", "unbound",
    ]  # fmt: skip
    assert not skipped
    local, remote, both = found["local:1"], found["remote:1-0"], found["interleave:1"]
    assert local.cpus == remote.cpus == both.cpus == "4-7,12-15"
    assert local.threads == 8 and local.cpu_nodes == "1"
    assert local.numactl == ("numactl", "--physcpubind=4-7,12-15", "--membind=1")
    assert remote.numactl == ("numactl", "--physcpubind=4-7,12-15", "--membind=0")
    assert both.numactl == ("numactl", "--physcpubind=4-7,12-15", "--interleave=0-1")
    assert found["unbound"].numactl == () and found["unbound"].cpus is None
    assert (local.distance, remote.distance, both.distance) == (10, 20, None)
    assert remote.label == "remote 1→0" and remote.rank == ("nearest", "farthest")
    assert local.role == "baseline" and local.baseline is None
    assert remote.baseline == both.baseline == "local:1"
    assert found["unbound"].baseline == "local:0"


def test_what_each_policy_must_prove():
    host = topologies.topology(2)
    found, _ = cells(
        host, "local", "interleave", "preferred", "cpus-only", "unbound", {"cpus": "0-1"}
    )
    bound, recorded = CpuExpectation("required", "0-3"), MemoryExpectation("outcome")
    assert found["local:0"].expects == Expectation(
        MemoryExpectation("required", "within", "0"), bound
    )
    assert found["interleave:0"].expects.memory == MemoryExpectation("required", "shares", "0-1")
    for name in ("preferred:0", "cpus-only:0"):
        assert found[name].expects == Expectation(recorded, bound)
    assert found["unbound"].expects == Expectation(recorded, CpuExpectation("outcome"))
    assert found["preferred:0"].numactl[-1] == "--preferred=0"
    assert found["cpus-only:0"].numactl == ("numactl", "--physcpubind=0-3")
    assert found["cpus:0-1"].baseline == "local:0"


def test_nearest_and_farthest_take_one_node_for_each_cpu_node():
    host = topologies.topology(8, sockets=2, cores=1, far=32)
    found, _ = cells(host, "local", {"remote": "nearest"}, {"remote": "farthest"})
    pairs = {name: cell.rank for name, cell in found.items() if name.startswith("remote")}
    assert pairs["remote:0-1"] == ("nearest",) and pairs["remote:0-4"] == ("farthest",)
    assert pairs["remote:5-4"] == ("nearest",) and pairs["remote:5-0"] == ("farthest",)
    assert len(pairs) == 16
    assert str(found["remote:0-4"].notes[0]) == (
        "nodes 4-7 are equally far from node 0: node 4 stands for them"
    )
    every, _ = cells(host, "remote", baseline=None)
    assert len(every) == 56
    assert {name for name, cell in every.items() if cell.rank} == set(pairs)


def test_without_distances_nearest_is_skipped_and_every_pair_is_not():
    host = topologies.with_node(topologies.topology(3), 1, distances={})
    found, skipped = cells(host, {"remote": "nearest"}, baseline=None)
    assert list(found) == ["remote:0-1", "remote:2-0"]
    assert skipped == {"remote:nearest": reason("distances-unknown", node=1)}
    assert len(cells(host, "remote", baseline=None)[0]) == 6
    # One of two is known: the nearest cannot be known either.
    host = topologies.with_node(host, 0, distances={0: 10, 1: 20})
    assert list(cells(host, {"remote": "nearest"}, baseline=None)[0]) == ["remote:2-0"]


def test_the_only_other_node_is_nearest_without_distances():
    host = topologies.topology(2)
    for node in (0, 1):
        host = topologies.with_node(host, node, distances={})
    found, skipped = cells(host, {"remote": "farthest"}, baseline=None)
    assert list(found) == ["remote:0-1", "remote:1-0"] and not skipped
    assert found["remote:0-1"].distance is None


def test_distances_that_cannot_be_true_are_named():
    found, _ = cells(topologies.topology(2, far=10), "remote", baseline=None)
    assert found["remote:0-1"].notes[0].code == "impossible-distance"


def test_a_one_node_host_skips_what_needs_two_nodes():
    found, skipped = cells(topologies.topology(1), "local", "remote", "interleave", "unbound")
    assert list(found) == ["local:0", "unbound"]
    assert skipped == {"remote": reason("one-node"), "interleave": reason("one-node")}


def test_a_kernel_without_numa_leaves_only_unbound():
    host = topologies.topology(1)
    host = replace(host, nodes=(), cpus=tuple(replace(cpu, node=None) for cpu in host.cpus))
    found, skipped = cells(host, "unbound", "local", "remote", "interleave", "cores:node-spread")
    assert list(found) == ["unbound"] and found["unbound"].cpu_nodes == ""
    assert set(skipped) == {"local", "remote", "interleave", "cores:node-spread"}
    assert {why.code for why in skipped.values()} == {"no-usable-cpus"}
    with pytest.raises(Fault, match="nothing can be bound"):
        cells(host, {"cpus": "0"})
    with pytest.raises(Fault, match="shows no NUMA nodes.*this host has nodes none"):
        cells(host, {"local": 0})


def with_cxl(**of_it):
    """Two nodes, and the memory-only node 252, nearer to node 0 than node 8 is."""
    host = topologies.without_cpus(topologies.topology(3, numbers=[0, 8, 252]), 252)
    host = topologies.with_node(host, 252, **of_it)
    return topologies.with_node(host, 0, distances={0: 10, 8: 20, 252: 14})


def test_memory_without_cpus_is_neither_local_nor_remote():
    host = with_cxl()
    assert (host.memory_only, host.main_nodes) == ([252], [0, 8])
    found, skipped = cells(host, "local", "remote", "memory-only", "interleave")
    assert list(found) == [
        "local:0", "local:8", "remote:0-8", "remote:8-0", "memory-only:0-252",
        "memory-only:8-252", "interleave:0", "interleave:8",
    ]  # fmt: skip
    assert found["remote:0-8"].rank == ("nearest", "farthest")
    far = found["memory-only:0-252"]
    assert far.binding == "memory-only" and far.baseline == "local:0"
    assert far.numactl[-1] == "--membind=252" and far.cpus == found["local:0"].cpus
    assert far.label == "memory-only 0→252" and far.distance == 14
    assert found["interleave:8"].memory.nodes == "0,8"
    assert skipped == {"local:252": reason("node-without-cpus", node=252)}
    nearest, _ = cells(host, {"remote": "nearest"}, {"memory-only": "nearest"})
    assert {"remote:0-8", "memory-only:0-252"} <= set(nearest)
    for asked, hint in (("remote:0->252", "memory-only: 0->252"), ("memory-only:0->8", "remote:")):
        with pytest.raises(Fault, match=f"another kind of memory: write {hint}"):
            cells(host, asked)
    # What spills to it is no room for ordinary memory.
    here = cells(topologies.with_node(host, 252, free_bytes=1 << 50), "cpus-only:0")[0]
    assert resolve.room_bytes(host, here["cpus-only:0"]) == (24 << 30, 28 << 30)


def test_what_is_known_of_memory_without_cpus_is_said():
    known = {"tier": 22, "read_latency_ns": 250, "read_bandwidth_mb_s": 28000}
    found, _ = cells(with_cxl(**known), "memory-only")
    assert str(found["memory-only:0-252"].notes[0]) == (
        "node 252 has memory without CPUs, in the kernel's memory tier 22; by the firmware: reads "
        "250 ns and 28000 MB/s"
    )
    found, _ = cells(with_cxl(), "memory-only")
    assert str(found["memory-only:0-252"].notes[0]) == "node 252 has memory without CPUs"


def test_a_node_whose_cpus_are_offline_or_not_allowed_is_no_memory_only_node():
    host = topologies.topology(3, cores=2)
    for limited in (topologies.offline(host, [2, 3]), topologies.limit(host, "0-1,4-5", "0-2")):
        found, skipped = cells(limited, "local", "remote", "memory-only", "interleave")
        assert not limited.memory_only and "remote:0-1" in found
        assert found["interleave:0"].memory.nodes == "0-2"
        assert skipped["memory-only"] == reason("no-memory-only-node")


def test_interleaving_over_all_memory_has_a_name_of_its_own():
    host = with_cxl()
    found, _ = cells(host, "local", "interleave", "interleave:all")
    assert found["interleave:all:0"].numactl[-1] == "--interleave=0,8,252"
    assert found["interleave:all:0"].binding == "interleave:all"
    assert found["interleave:0"].numactl[-1] == "--interleave=0,8"
    for asked in ("interleave:all:8", {"interleave:all": 8}, {"interleave": "all:8"}):
        assert resolve.parse(asked) == grammar.Binding("interleave:all", (8,), "interleave:all:8")
    assert resolve.parse({"interleave": "all"}).text == "interleave:all"
    unbound, _ = cells(host, "interleave:unbound", "interleave:all:unbound", baseline=None)
    assert [cell.numactl for cell in unbound.values()] == [
        ("numactl", "--interleave=0,8"), ("numactl", "--interleave=0,8,252"),
    ]  # fmt: skip
    _, skipped = cells(topologies.topology(2), "interleave:all", "interleave:weighted")
    assert set(skipped.values()) == {reason("no-memory-only-node")}


def test_weighted_interleaving_is_there_where_the_kernel_has_it():
    def weighted(*weights):
        host = with_cxl()
        for node, weight in zip((0, 8, 252), weights):
            host = topologies.with_node(host, node, weight=weight)
        return host, *cells(host, "local", "interleave:weighted")

    host, found, _ = weighted(5, 5, 2)
    cell = found["interleave:weighted:0"]
    assert cell.numactl[-1] == "--weighted-interleave=0,8,252"
    assert cell.expects.memory == MemoryExpectation(
        "required", "shares", "0,8,252", weights={0: 5, 8: 5, 252: 2}
    )
    host = topologies.with_node(host, 252, free_bytes=2 << 30, page_cache_bytes=0)
    assert resolve.room_bytes(host, cell)[0] == 12 << 30  # in 12 pages, 2 are on node 252
    *_, skipped = weighted(1, 1, 1)
    assert skipped["interleave:weighted"] == reason("weights-are-equal", weight=1)
    *_, skipped = weighted()
    assert skipped["interleave:weighted"] == reason("no-weighted-interleave")
    # also without memory-only nodes, once somebody has set weights
    host = topologies.with_node(topologies.topology(2), 0, weight=3)
    host = topologies.with_node(host, 1, weight=1)
    assert "interleave:weighted:1" in cells(host, "local", "interleave:weighted")[0]


def thinned(host, *asked, seed=1, names=(), baseline="local"):
    made = resolve.resolve(list(asked), host, baseline, names, seed)
    return {cell.id: cell for cell in made.cells}


def test_a_node_and_a_pair_of_each_distance_stand_for_those_alike():
    host = topologies.topology(8, sockets=2, cores=1, far=32)
    found = thinned(host, "local", "remote", "interleave", "unbound", "cores:2-spread", seed=3)
    count = [cell.binding for cell in found.values()]
    assert count == ["local", "remote", "remote", "interleave", "unbound", "cores"]
    nodes = {cell.cpu_nodes for cell in found.values() if cell.binding in ("local", "remote")}
    assert len(nodes) == 1
    (node,) = nodes
    assert {cell.baseline for cell in found.values()} == {None, f"local:{node}"}
    said = {str(cell.stands_for) for cell in found.values() if cell.binding == "remote"}
    assert {text.partition(" ")[2] for text in said} == {
        "stands for 24 pairs at distance 12", "stands for 32 pairs at distance 32",
    }  # fmt: skip
    assert str(found[f"local:{node}"].stands_for) == f"node {node} stands for nodes 0-7"
    assert found["unbound"].stands_for is None
    again = thinned(host, "local", "remote", "interleave", "unbound", "cores:2-spread", seed=3)
    assert again == found
    drawn = {next(iter(thinned(host, "local", "remote", seed=seed))) for seed in range(30)}
    assert len(drawn) > 3
    nearest = thinned(host, "local", "remote:nearest", "remote:farthest", seed=3)
    assert sorted(cell.distance for cell in nearest.values()) == [10, 12, 32]


def test_as_few_cpu_nodes_as_see_every_distance_are_taken():
    host = topologies.topology(4)
    for node, row in enumerate(([10, 12, 20, 30], [12, 10, 20, 20], [20] * 2 + [10, 20])):
        host = topologies.with_node(host, node, distances=dict(enumerate(row)))
    host = topologies.with_node(host, 3, distances={0: 31, 1: 20, 2: 20, 3: 10})
    for seed in range(10):
        found = thinned(host, "local", "remote", seed=seed)
        remote = [cell for cell in found.values() if cell.binding == "remote"]
        assert sorted(cell.distance for cell in remote) == [12, 20, 30, 31]
        assert {cell.cpu_nodes for cell in remote} == {"0", "3"}
        assert all(cell.baseline == f"local:{cell.cpu_nodes}" for cell in remote)


@pytest.mark.parametrize(
    ("rows", "cpu_nodes", "classes"),
    [
        # as numactl --hardware printed them: eight nodes of which some have a direct link
        (
            "10 16 16 16 28 28 22 28/16 10 16 16 28 28 28 22/16 16 10 16 22 28 28 28/"
            "16 16 16 10 28 22 28 28/28 28 22 28 10 16 16 16/28 28 28 22 16 10 16 16/"
            "22 28 28 28 16 16 10 16/28 22 28 28 16 16 16 10",
            1, {16: 24, 22: 8, 28: 24},
        ),
        ("10 11 21 21/11 10 21 21/21 21 10 11/21 21 11 10", 1, {11: 4, 21: 8}),
        # four nodes in a row: no node sees all distances
        ("10 16 32 33/16 10 25 32/32 25 10 16/33 32 16 10", 2, {16: 4, 25: 2, 32: 4, 33: 2}),
        (
            "10 39 38 37 36/39 10 38 37 36/38 38 10 37 36/37 37 37 10 36/36 36 36 36 10",
            1, {36: 8, 37: 6, 38: 4, 39: 2},
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_distances_of_real_machines_are_all_seen(rows, cpu_nodes, classes, seed):
    table = [list(map(int, row.split())) for row in rows.split("/")]
    host = topologies.topology(len(table), cores=1)
    for node, row in enumerate(table):
        host = topologies.with_node(host, node, distances=dict(enumerate(row)))
    found = thinned(host, "local", "remote", seed=seed).values()
    remote = {cell.distance: cell for cell in found if cell.binding == "remote"}
    assert {far: cell.stands_for.fields["pairs"] for far, cell in remote.items()} == classes
    assert len(found) == len(classes) + cpu_nodes
    assert len({cell.cpu_nodes for cell in found}) == cpu_nodes


def test_what_is_asked_for_by_its_number_is_measured():
    host = topologies.topology(4)
    for seed in range(5):
        found = thinned(host, {"local": 2}, "remote", seed=seed)
        assert list(found) == ["local:2", found["local:2"] and list(found)[1]]
        assert list(found)[1].startswith("remote:2-")
        found = thinned(host, "local", "remote:1->3", "remote", names=["local:0"], seed=seed)
        assert {"local:0", "local:1", "remote:1-3"} <= set(found)


def test_pairs_whose_distance_is_unknown_stand_for_each_other():
    host = topologies.topology(3)
    for node in range(3):
        host = topologies.with_node(host, node, distances={})
    (pair,) = (c for c in thinned(host, "local", "remote").values() if c.binding == "remote")
    assert str(pair.stands_for).endswith("stands for 6 pairs of unknown distance")


def test_memory_only_nodes_of_two_kinds_are_two_classes():
    host = topologies.topology(4)
    for node, tier in ((2, 4), (3, 22)):
        host = topologies.with_node(topologies.without_cpus(host, node), node, tier=tier)
    found = thinned(host, "local", "memory-only")
    assert [cell.memory.nodes for cell in found.values() if cell.binding == "memory-only"] == [
        "2", "3",
    ]  # fmt: skip


def test_cpus_without_memory_have_no_local_cell():
    host = topologies.with_node(topologies.topology(3), 1, memory_bytes=0, free_bytes=0)
    found, skipped = cells(host, "local", "remote", "interleave", "cpus-only")
    assert skipped == {"local:1": reason("node-without-memory", node=1)}
    assert [name for name in found if name.startswith("remote")] == [
        "remote:0-2", "remote:1-0", "remote:1-2", "remote:2-0",
    ]  # fmt: skip
    # Its remote cells have nothing on the same CPUs to be compared with.
    assert found["remote:1-0"].baseline is None and found["cpus-only:1"].baseline is None
    assert found["interleave:0"].memory.nodes == "0,2" and "interleave:1" not in found


def test_offline_cpus_and_a_cpuset_are_respected():
    host = topologies.topology(2, cores=4, threads=2)
    host = topologies.offline(host, [0, 9, 3, 11])
    host = topologies.limit(host, "0-11", "0")
    found, skipped = cells(host, "local", "remote", "one-thread-per-core", "smt-siblings")
    assert found["local:0"].cpus == "1-2,8,10"
    assert found["one-thread-per-core:0"].cpus == "1-2,8"
    assert found["smt-siblings:0"].cpus == "10"
    assert found["remote:1-0"].cpus == "4-7" and "remote:0-1" not in found
    assert skipped["local:1"] == reason("memory-outside-cpuset", node=1)
    host = topologies.limit(host, "1,2", "0-1")
    found, skipped = cells(host, "local")
    assert skipped["local:1"] == reason("cpus-outside-cpuset", node=1)
    assert found["local:0"].notes == (reason("cpuset-allows-part", usable=2, all=4, node=0),)


def test_threads_take_the_first_hardware_thread_of_every_core_first():
    host = topologies.topology(2, cores=2, threads=4, adjacent=True)
    assert host.order(range(8)) == [0, 4, 1, 5, 2, 6, 3, 7]
    found, _ = cells(host, "local", "one-thread-per-core", "smt-siblings")
    assert found["local:1"].cpus == "8-15"
    assert found["local:1"].cpu_order == "8,12,9,13,10,14,11,15"
    assert found["one-thread-per-core:1"].cpus == "8,12"
    assert found["smt-siblings:1"].cpus == "9,13"
    assert resolve.thread_count("cores", host, "0-7") == 2
    assert resolve.thread_count("half", host, "0") == 1
    with pytest.raises(Fault, match="did you mean half"):
        resolve.thread_count("halve", host, "0-7")


def test_cores_packed_and_spread_have_the_same_number_and_memory_policy():
    host = topologies.topology(4, sockets=2, cores=4, threads=2)
    asked = [{"cores": {"count": 4, "within": w}} for w in ("node", "socket", "spread")]
    found, _ = cells(host, *asked, baseline="cores")
    assert {name: cell.cpus for name, cell in found.items()} == {
        "cores:4-node": "0-3",
        "cores:4-socket": "0-1,4-5",
        "cores:4-spread": "0,4,8,12",
    }
    assert {cell.threads for cell in found.values()} == {4}
    assert len({cell.memory for cell in found.values()}) == 1
    assert [cell.baseline for cell in found.values()] == [None, "cores:4-node", "cores:4-node"]
    _, skipped = cells(host, "cores:6-node", "cores:10-socket", baseline=None)
    assert skipped == {
        "cores:6-node": reason("too-few-cores-within", within="node", count=6, largest=4),
        "cores:10-socket": reason("too-few-cores-within", within="socket", count=10, largest=8),
    }
    found, _ = cells(host, "cores:6-spread", baseline=None)
    assert found["cores:6-spread"].cpus == "0-1,4-5,8,12"
    host = topologies.offline(host, [4, 20, 5, 21, 6])  # node 1 keeps 7,23 and 22
    found, _ = cells(host, "cores:node-node", "cores:node-spread", baseline=None)
    assert {name: cell.cpus for name, cell in found.items()} == {
        "cores:2-node": "0-1",
        "cores:2-spread": "0,7",
    }
    with pytest.raises(Fault, match="this host has 14 usable cores, not 17"):
        cells(host, "cores:17-spread", baseline=None)


def test_interleave_follows_the_cpus_of_the_baseline():
    host = topologies.topology(2, cores=2)
    found, _ = cells(host, "unbound", "interleave", "local", baseline="unbound")
    assert found["interleave:unbound"].numactl == ("numactl", "--interleave=0-1")
    assert found["interleave:unbound"].expects.cpus == CpuExpectation("outcome")
    assert {found[n].baseline for n in ("interleave:unbound", "local:0", "local:1")} == {"unbound"}
    found, _ = cells(host, {"cpus": "1-2", "mem": 0}, "interleave", baseline="cpus")
    assert found["interleave:cpus:1-2,mem=0"].cpus == "1-2"
    assert found["interleave:cpus:1-2,mem=0"].baseline == "cpus:1-2,mem=0"
    found, _ = cells(host, "interleave", baseline=None)
    assert list(found) == ["interleave:0", "interleave:1"]


def test_a_baseline_that_is_not_listed_is_added_for_those_that_need_it():
    host = topologies.topology(3)
    made = resolve.resolve([{"remote": "0->1"}], host, "local")
    assert [cell.id for cell in made.cells] == ["local:0", "remote:0-1"]
    assert made.warnings == [reason("baseline-added", cell="local:0")]
    made = resolve.resolve([{"local": 1}, "unbound"], host, "local")
    assert [(c.id, c.baseline) for c in made.cells] == [("local:1", None), ("unbound", "local:1")]
    assert not made.warnings
    made = resolve.resolve(["local"], host, "local:1")
    assert {c.id: c.role for c in made.cells} == {
        "local:0": "cell", "local:1": "baseline", "local:2": "cell",
    } and not made.warnings  # fmt: skip
    assert not resolve.resolve(["remote"], topologies.topology(1), "local").cells


def test_cells_that_are_alike_are_kept_once():
    host = topologies.topology(2, cores=2)
    found, skipped = cells(
        host, "one-thread-per-core", {"cpus": "0-1", "mem": "0"}, "local", "local:0"
    )
    assert list(found) == ["local:0", "local:1"]
    assert skipped["one-thread-per-core:1"] == reason("same-as", cell="local:1")
    assert skipped["cpus:0-1,mem=0"] == reason("same-as", cell="local:0")


@pytest.mark.parametrize(
    "asked",
    ["unbound", "local:1", "remote:1-0", "interleave:1", "cores:2-spread", "cpus:0-2,mem=1"],
)
def test_the_id_of_a_cell_is_a_binding(asked):
    found, _ = cells(topologies.topology(2), asked, baseline=None)
    assert list(found) == [asked]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("remot", "no binding 'remot'. did you mean remote"),
        ({"remote": "nearst"}, "did you mean nearest"),
        ({"remote": "1->1"}, "not remote from itself"),
        ({"remote": "0->7"}, "node 7 does not exist. this host has nodes 0-1"),
        ({"local": 5}, "local:5: node 5 does not exist"),
        ({"local": 1.5}, "is not a node"),
        ({"local": ""}, "names no node"),
        ({"local": "x"}, "the binding 'local': 'x' is not a list of CPUs or nodes"),
        ({"cpus": "6-9"}, "CPUs 8-9 do not exist on this host"),
        ({"cpus": "1"}, "CPUs 1 are offline"),
        ({"cpus": "0,7"}, "CPUs 7 are outside this process's cpuset"),
        ({"cpus": "0", "mem": "3"}, "node 3 does not exist"),
        ({"cpus": "0", "memory": "0"}, "unknown key 'memory'. did you mean mem"),
        ({"cpus": ""}, "names no CPUs"),
        ({"cores": 4}, "needs a count"),
        ({"cores": {"count": 0, "within": "node"}}, "count 0 is not a number of cores"),
        ({"cores": {"count": 2, "within": "sockets"}}, "did you mean socket"),
        ("remote:0", "a pair is CPUs' node, memory's node: remote:0-1; known: every, nearest"),
        ("cores:8", "within '8' is unknown. write it like cores:8-node; known: node, socket"),
        ("instances:3", "over '3' is unknown. write it like instances:3-ranges"),
        ({"cores": {"count": 9, "within": "node"}}, "has 6 usable cores, not 9"),
        ({"local": 0, "remote": 1}, "must have one name"),
        ({"unbound": 0}, "takes no argument"),
        (None, "is not a binding"),
    ],
)
def test_what_cannot_be_is_refused_with_a_hint(asked, message):
    host = topologies.limit(topologies.offline(topologies.topology(2), [1]), "0-6", "0-1")
    with pytest.raises(Fault) as error:
        cells(host, asked, baseline=None)
    assert message in str(error.value)


def test_an_explicit_node_that_cannot_be_used_is_a_fault():
    host = topologies.with_node(topologies.topology(2), 1, memory_bytes=0)
    for asked in ({"local": 1}, {"remote": "0->1"}, {"cpus": "0", "mem": "1"}):
        with pytest.raises(Fault, match="node 1 has no memory"):
            cells(host, asked, baseline=None)


def test_room_follows_the_policy():
    host = topologies.topology(2, memory_gib=16)
    host = topologies.with_node(host, 0, free_bytes=100, page_cache_bytes=10)
    host = topologies.with_node(host, 1, free_bytes=30, page_cache_bytes=100)
    found, _ = cells(host, "local", "remote:0-1", "interleave:0", "preferred:0", "unbound")
    room = {name: resolve.room_bytes(host, cell) for name, cell in found.items()}
    assert room["local:0"] == (100, 110) and room["remote:0-1"] == (30, 130)
    assert room["interleave:0"] == (60, 220)
    assert room["preferred:0"] == room["unbound"] == (130, 240)
    host = topologies.with_node(host, 1, free_bytes=None)
    assert resolve.room_bytes(host, found["remote:0-1"]) == (None, None)
    # the authority where one node holds everything
    one = replace(topologies.topology(1), available_bytes=77)
    assert resolve.room_bytes(one, cells(one, "local")[0]["local:0"]) == (77, 77)


@settings(max_examples=150, deadline=None)
@given(
    topologies.hosts(),
    st.lists(st.sampled_from(SYMBOLIC), min_size=1, max_size=6),
    st.sampled_from([None, "local", "unbound", "cpus-only", "interleave", "remote"]),
    st.sampled_from([None, 1, 2, 3]),
)
def test_on_any_host_cells_stay_within_what_may_be_used(host, asked, baseline, seed):
    made = resolve.resolve(asked, host, baseline, seed=seed)
    found, skipped = made.cells, made.skipped
    usable, with_memory = set(host.usable), set(host.memory_nodes)
    node_of = {cpu.number: cpu.node for cpu in host.cpus}
    by_id = {cell.id: cell for cell in found}
    assert len(by_id) == len(found)
    policies = [(cell.cpus, cell.memory) for cell in found]
    assert len(set(policies)) == len(policies)
    for cell in found:
        cpus = set(cpulist.parse(cell.cpus or ""))
        assert cpus <= usable and (cpus or cell.cpus is None)
        if cpus:
            assert cell.cpu_nodes == cpulist.format(node_of[c] for c in cpus)
            assert cpulist.parse(cell.cpu_order) == sorted(cpus)
            assert cell.threads == len(cpus)
        if cell.memory.nodes is not None:
            assert set(cpulist.parse(cell.memory.nodes)) <= with_memory
        if cell.binding == "local":
            assert cell.cpu_nodes == cell.memory.nodes
        if cell.binding == "remote":
            assert cell.cpu_nodes != cell.memory.nodes
        if set(cpulist.parse(cell.memory.nodes or "")) & set(host.memory_only):
            assert cell.binding in ("memory-only", "interleave:all", "interleave:weighted")
        required = cell.expects.memory.proof == "required"
        assert required == (cell.memory.policy in ("bind", "interleave", "weighted-interleave"))
        if cell.baseline is not None:
            base = by_id[cell.baseline]
            assert base.role == "baseline" and cell.role == "cell"
            if cell.binding in ("local", "remote", "preferred") and base.cpus is not None:
                assert base.cpu_nodes == cell.cpu_nodes  # the client's node is fixed
            if cell.binding in ("remote", "preferred") and base.binding == "local":
                assert base.cpus == cell.cpus
    assert all(str(skip.reason) and skip.cell for skip in skipped)
    for binding in map(resolve.parse, asked):  # nothing vanishes without a word
        names = {cell.binding for cell in found} | {skip.binding for skip in skipped}
        assert binding.name in names


@settings(max_examples=100, deadline=None)
@given(topologies.hosts(), st.integers(1, 1000))
def test_on_any_host_every_class_is_seen_and_only_once(host, seed):
    asked = ["local", "remote", "memory-only", "interleave", "cpus-only", "unbound"]
    every = {cell.id: cell for cell in resolve.resolve(asked, host, "local").cells}
    thin = thinned(host, *asked, seed=seed)

    def seen(cells):
        return [
            (c.binding, c.distance, _tier(host, c)) if c.memory.policy == "bind" else c.binding
            for c in cells
            if c.binding != "local"  # a second node's own is there to be compared with
        ]

    assert set(thin) <= set(every)
    assert set(seen(every.values())) == set(seen(thin.values()))
    assert len(set(seen(thin.values()))) == len(seen(thin.values()))
    for cell in thin.values():
        assert cell.stands_for or cell.notes == every[cell.id].notes
        if cell.binding in ("remote", "memory-only"):
            own = f"local:{cell.cpu_nodes}"
            assert cell.baseline == (own if own in every else None)


def _tier(host, cell):
    if cell.binding != "memory-only":
        return None
    return host.node[int(cell.memory.nodes)].tier


def test_the_roomiest_node_is_the_first_of_those_with_the_most_memory():
    def found(asked):
        return [cell.id for cell in resolve.resolve([asked], host).cells]

    host = topologies.topology(3)
    most = int(15.5 * (1 << 30))  # the kernel keeps some of it
    host = topologies.with_node(host, 0, memory_bytes=most)
    for name in ("local", "cpus-only", "preferred", "interleave"):
        assert found({name: "roomiest"}) == found(f"{name}:roomiest") == [f"{name}:0"]
    assert found({"remote": "roomiest"}) == ["remote:0-1"]
    host = topologies.with_node(host, 0, memory_bytes=8 << 30)
    assert found("local:roomiest") == ["local:1"]
    host = topologies.with_node(host, 1, memory_bytes=0)
    host = topologies.with_node(host, 2, allowed_memory=False)
    assert found("local:roomiest") == ["local:0"]
    host = topologies.with_node(host, 0, memory_bytes=0)
    made = resolve.resolve(["cpus-only:roomiest"], host)
    assert not made.cells and made.skipped[0].reason == reason("no-roomiest-node")
    assert not found({"remote": "roomiest"})


def test_names_are_looked_up_and_become_no_cells():
    host = topologies.topology(2)
    names = ["remote", "cores:node-node", "cores:9-spread", {"remote": "0->7"}]
    made = resolve.resolve(["local"], host, "local", names)
    assert [cell.id for cell in made.cells] == ["local:0", "local:1"] and not made.skipped
    assert len(made.keys["remote"]) == 2 and len(made.keys["cores:node-node"]) == 1
    assert made.keys["cores:9-spread"] == made.keys["remote:0-7"] == []
    assert made.reasons["remote:0-7"].code == "binding-impossible"
    assert str(made.reasons["remote:0-7"]) == "remote:0-7: node 7 does not exist"


def test_two_cells_never_share_a_name():
    host = topologies.topology(2, cores=2, threads=2)
    made = resolve.resolve(
        ["one-thread-per-core", "interleave", {"interleave": 0}], host, "one-thread-per-core"
    )
    ids = [cell.id for cell in made.cells]
    assert len(set(ids)) == len(ids) == 4
    assert [(skip.cell, skip.reason.code) for skip in made.skipped] == [
        ("interleave:0", "name-taken")
    ]


def test_a_new_binding_with_a_known_policy_is_one_row(monkeypatch):
    def first_cpu(host, binding, baselines):
        for node, cpus in host.cpus_of.items():
            yield kinds.cell(host, binding, node, f"first CPU {node}", cpus[:1], "bind", [node])

    row = kinds.Kind(grammar.nodes, first_cpu, per_node=True)
    monkeypatch.setitem(kinds.KINDS, "first-cpu", row)
    found, _ = cells(topologies.topology(2), "local", "first-cpu", "interleave")
    assert found["first-cpu:1"].numactl == ("numactl", "--physcpubind=4", "--membind=1")
    assert found["first-cpu:1"].baseline == "local:1"
    assert resolve.parse({"first-cpu": 0}).text == "first-cpu:0"


@pytest.mark.parametrize("over", ["ranges", "nodes", "spread", "unbound"])
def test_instances_divide_a_host(over):
    host = topologies.topology(2, cores=3)
    found, skipped = cells(host, {"instances": {"over": over}}, baseline=None)
    (cell,) = found.values()
    assert (cell.id, cell.layout, cell.numactl) == (f"instances:{over}", over, ())
    assert [one.name for one in cell.instances] == ["instance 1", "instance 2"] and not skipped
    cpus = [one.cpus for one in cell.instances]
    assert (
        cpus
        == {
            "ranges": ["0-2", "3-5"],
            "nodes": ["0-2", "3-5"],
            "spread": ["0,2-3,5", "1,4"],
            "unbound": [None, None],
        }[over]
    )
    policies = {one.memory.policy for one in cell.instances}
    assert policies == ({"bind"} if over == "nodes" else {"default"})
    _, skipped = cells(host, {"instances": {"over": over, "count": 9}}, baseline=None)
    assert skipped[f"instances:9-{over}"].code in (
        "too-few-nodes-for-instances", "too-few-cpus-for-instances",
    )  # fmt: skip


def test_each_policy_has_its_mode_and_its_sentences():
    for policy in kinds.POLICIES:
        assert policy in kernel.MODES
        assert {f"memory-{policy}", f"full-{policy}"} <= set(words.templates())
