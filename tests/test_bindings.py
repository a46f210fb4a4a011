"""Bindings on hosts of every shape: what they become, what is skipped, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import topologies
from numalab.agent import cpulist
from numalab.agent.errors import Fault
from numalab.agent.plan import bindings

SYMBOLIC = [
    "unbound",
    "local",
    "remote",
    "interleave",
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
    found, skipped, _ = bindings.resolve(list(asked), host, baseline)
    return {cell["id"]: cell for cell in found}, {s["cell"]: s["reason"] for s in skipped}


def test_local_remote_and_interleave_on_two_nodes():
    found, skipped = cells(
        topologies.topology(2, cores=4, threads=2), "local", "remote", "interleave", "unbound"
    )
    assert list(found) == [
        "local:0", "local:1", "remote:0-1", "remote:1-0", "interleave:0", "interleave:1", "unbound",
    ]  # fmt: skip
    assert not skipped
    local, remote, both = found["local:1"], found["remote:1-0"], found["interleave:1"]
    assert local["cpus"] == remote["cpus"] == both["cpus"] == "4-7,12-15"
    assert local["threads"] == 8 and local["cpu_nodes"] == "1"
    assert local["numactl"] == ["numactl", "--physcpubind=4-7,12-15", "--membind=1"]
    assert remote["numactl"] == ["numactl", "--physcpubind=4-7,12-15", "--membind=0"]
    assert both["numactl"] == ["numactl", "--physcpubind=4-7,12-15", "--interleave=0-1"]
    assert found["unbound"]["numactl"] == [] and found["unbound"]["cpus"] is None
    assert (local["distance"], remote["distance"], both["distance"]) == (10, 20, None)
    assert remote["label"] == "remote 1→0" and remote["rank"] == ["nearest", "farthest"]
    assert local["role"] == "baseline" and local["baseline"] is None
    assert remote["baseline"] == both["baseline"] == "local:1"
    assert found["unbound"]["baseline"] == "local:0"


def test_what_each_policy_must_prove():
    host = topologies.topology(2)
    found, _ = cells(
        host, "local", "interleave", "preferred", "cpus-only", "unbound", {"cpus": "0-1"}
    )
    bound = {"proof": "required", "cpus": "0-3"}
    assert found["local:0"]["expects"] == {
        "memory": {"proof": "required", "rule": "within", "nodes": "0", "at_least": 0.98},
        "cpus": bound,
    }
    assert found["interleave:0"]["expects"]["memory"] == {
        "proof": "required", "rule": "shares", "nodes": "0-1", "within_points": 5,
    }  # fmt: skip
    for name in ("preferred:0", "cpus-only:0"):
        assert found[name]["expects"] == {"memory": {"proof": "outcome"}, "cpus": bound}
    assert found["unbound"]["expects"] == {
        "memory": {"proof": "outcome"},
        "cpus": {"proof": "outcome"},
    }
    assert found["preferred:0"]["numactl"][-1] == "--preferred=0"
    assert found["cpus-only:0"]["numactl"] == ["numactl", "--physcpubind=0-3"]
    assert found["cpus:0-1"]["baseline"] == "local:0"


def test_nearest_and_farthest_take_one_node_for_each_cpu_node():
    host = topologies.topology(8, sockets=2, cores=1, far=32)
    found, _ = cells(host, "local", {"remote": "nearest"}, {"remote": "farthest"})
    pairs = {name: cell["rank"] for name, cell in found.items() if name.startswith("remote")}
    assert pairs["remote:0-1"] == ["nearest"] and pairs["remote:0-4"] == ["farthest"]
    assert pairs["remote:5-4"] == ["nearest"] and pairs["remote:5-0"] == ["farthest"]
    assert len(pairs) == 16
    assert any(
        "nodes 4-7 are equally far from node 0: node 4 stands for them" in n
        for n in found["remote:0-4"]["notes"]
    )
    every, _ = cells(host, "remote", baseline=None)
    assert len(every) == 56
    assert {name for name, cell in every.items() if cell["rank"]} == set(pairs)


def test_without_distances_nearest_is_skipped_and_every_pair_is_not():
    host = topologies.topology(3)
    host["nodes"][1]["distances"] = {}
    found, skipped = cells(host, {"remote": "nearest"}, baseline=None)
    assert list(found) == ["remote:0-1", "remote:2-0"]
    assert skipped == {
        "remote:nearest": "the firmware gives no distances from node 1 to every other"
    }
    assert len(cells(host, "remote", baseline=None)[0]) == 6
    del host["nodes"][0]["distances"]["2"]  # one of two: the nearest cannot be known either
    assert list(cells(host, {"remote": "nearest"}, baseline=None)[0]) == ["remote:2-0"]


def test_the_only_other_node_is_nearest_without_distances():
    host = topologies.topology(2)
    for node in host["nodes"]:
        node["distances"] = {}
    found, skipped = cells(host, {"remote": "farthest"}, baseline=None)
    assert list(found) == ["remote:0-1", "remote:1-0"] and not skipped
    assert found["remote:0-1"]["distance"] is None


def test_distances_that_cannot_be_true_are_named():
    found, _ = cells(topologies.topology(2, far=10), "remote", baseline=None)
    assert "it cannot be true" in found["remote:0-1"]["notes"][0]


def test_a_one_node_host_skips_what_needs_two_nodes():
    found, skipped = cells(topologies.topology(1), "local", "remote", "interleave", "unbound")
    assert list(found) == ["local:0", "unbound"]
    assert skipped == {
        "remote": "this host has one node: there is no remote memory",
        "interleave": "this host has one node: there is nothing to interleave",
    }


def test_a_kernel_without_numa_leaves_only_unbound():
    host = topologies.topology(1)
    host["nodes"] = []
    for cpu in host["cpus"]:
        cpu["node"] = None
    found, skipped = cells(host, "unbound", "local", "remote", "interleave", "cores:node-spread")
    assert list(found) == ["unbound"] and found["unbound"]["cpu_nodes"] == ""
    assert set(skipped) == {"local", "remote", "interleave", "cores:node-spread"}
    assert set(skipped.values()) == {
        "the kernel of this host shows no NUMA nodes with CPUs that may be used"
    }
    with pytest.raises(Fault, match="numactl cannot bind"):
        cells(host, {"cpus": "0"})
    with pytest.raises(Fault, match="shows no NUMA nodes.*this host has nodes none"):
        cells(host, {"local": 0})


def test_memory_without_cpus_is_remote_memory_and_never_local():
    host = topologies.topology(3, numbers=[0, 8, 252])
    host["cpus"] = [cpu for cpu in host["cpus"] if cpu["node"] != 252]
    host["nodes"][2]["cpus"] = ""
    found, skipped = cells(host, "local", "remote", "interleave")
    assert [name for name in found if name.startswith("remote")] == [
        "remote:0-8", "remote:0-252", "remote:8-0", "remote:8-252",
    ]  # fmt: skip
    assert found["interleave:8"]["memory"]["nodes"] == "0,8,252"
    assert skipped == {"local:252": "node 252 has no CPUs"}


def test_cpus_without_memory_have_no_local_cell():
    host = topologies.topology(3)
    host["nodes"][1].update(memory_bytes=0, free_bytes=0, page_cache_bytes=0)
    found, skipped = cells(host, "local", "remote", "interleave", "cpus-only")
    assert skipped == {"local:1": "node 1 has no memory"}
    assert [name for name in found if name.startswith("remote")] == [
        "remote:0-2", "remote:1-0", "remote:1-2", "remote:2-0",
    ]  # fmt: skip
    # Its remote cells have nothing on the same CPUs to be compared with.
    assert found["remote:1-0"]["baseline"] is None and found["cpus-only:1"]["baseline"] is None
    assert found["interleave:0"]["memory"]["nodes"] == "0,2" and "interleave:1" not in found


def test_offline_cpus_and_a_cpuset_are_respected():
    host = topologies.topology(2, cores=4, threads=2)
    topologies.offline(host, [0, 9, 3, 11])
    topologies.limit(host, "0-11", "0")
    found, skipped = cells(host, "local", "remote", "one-thread-per-core", "smt-siblings")
    assert found["local:0"]["cpus"] == "1-2,8,10"
    assert found["one-thread-per-core:0"]["cpus"] == "1-2,8"
    assert found["smt-siblings:0"]["cpus"] == "10"
    assert found["remote:1-0"]["cpus"] == "4-7" and "remote:0-1" not in found
    assert skipped["local:1"] == "the memory of node 1 is outside this process's cpuset"
    topologies.limit(host, "1,2", "0-1")
    found, skipped = cells(host, "local")
    assert skipped["local:1"] == "no CPU of node 1 is in this process's cpuset"
    assert found["local:0"]["notes"] == ["this process's cpuset allows 2 of the 4 CPUs of node 0"]


def test_threads_take_the_first_hardware_thread_of_every_core_first():
    host = topologies.topology(2, cores=2, threads=4, adjacent=True)
    assert bindings.placement_order(host, "0-7") == [0, 4, 1, 5, 2, 6, 3, 7]
    found, _ = cells(host, "local", "one-thread-per-core", "smt-siblings")
    assert found["local:1"]["cpus"] == "8-15"
    assert found["local:1"]["cpu_order"] == "8,12,9,13,10,14,11,15"
    assert found["one-thread-per-core:1"]["cpus"] == "8,12"
    assert found["smt-siblings:1"]["cpus"] == "9,13"
    assert bindings.thread_count("cores", host, "0-7") == 2
    assert bindings.thread_count("half", host, "0") == 1
    with pytest.raises(Fault, match="did you mean half"):
        bindings.thread_count("halve", host, "0-7")


def test_cores_packed_and_spread_have_the_same_number_and_memory_policy():
    host = topologies.topology(4, sockets=2, cores=4, threads=2)
    asked = [{"cores": {"count": 4, "within": w}} for w in ("node", "socket", "spread")]
    found, _ = cells(host, *asked, baseline="cores")
    assert {name: cell["cpus"] for name, cell in found.items()} == {
        "cores:4-node": "0-3",
        "cores:4-socket": "0-1,4-5",
        "cores:4-spread": "0,4,8,12",
    }
    assert {cell["threads"] for cell in found.values()} == {4}
    assert len({str(cell["memory"]) for cell in found.values()}) == 1
    assert [cell["baseline"] for cell in found.values()] == [None, "cores:4-node", "cores:4-node"]
    _, skipped = cells(host, "cores:6-node", "cores:10-socket", baseline=None)
    assert skipped == {
        "cores:6-node": "no node has 6 usable cores (the largest has 4)",
        "cores:10-socket": "no socket has 10 usable cores (the largest has 8)",
    }
    found, _ = cells(host, "cores:6-spread", baseline=None)
    assert found["cores:6-spread"]["cpus"] == "0-1,4-5,8,12"
    topologies.offline(host, [4, 20, 5, 21, 6])  # node 1 keeps 7,23 and 22
    found, _ = cells(host, "cores:node-node", "cores:node-spread", baseline=None)
    assert {name: cell["cpus"] for name, cell in found.items()} == {
        "cores:2-node": "0-1",
        "cores:2-spread": "0,7",
    }
    with pytest.raises(Fault, match="this host has 14 usable cores, not 17"):
        cells(host, "cores:17-spread", baseline=None)


def test_interleave_follows_the_cpus_of_the_baseline():
    host = topologies.topology(2, cores=2)
    found, _ = cells(host, "unbound", "interleave", "local", baseline="unbound")
    assert found["interleave:all"]["numactl"] == ["numactl", "--interleave=0-1"]
    assert found["interleave:all"]["expects"]["cpus"] == {"proof": "outcome"}
    assert {found[n]["baseline"] for n in ("interleave:all", "local:0", "local:1")} == {"unbound"}
    found, _ = cells(host, {"cpus": "1-2", "mem": 0}, "interleave", baseline="cpus")
    assert found["interleave:cpus:1-2,mem=0"]["cpus"] == "1-2"
    assert found["interleave:cpus:1-2,mem=0"]["baseline"] == "cpus:1-2,mem=0"
    found, _ = cells(host, "interleave", baseline=None)
    assert list(found) == ["interleave:0", "interleave:1"]


def test_a_baseline_that_is_not_listed_is_added_for_those_that_need_it():
    host = topologies.topology(3)
    found, _, warnings = bindings.resolve([{"remote": "0->1"}], host, "local")
    assert [cell["id"] for cell in found] == ["local:0", "remote:0-1"]
    assert warnings == ["the baseline local:0 was added: others are compared with it"]
    found, _, warnings = bindings.resolve([{"local": 1}, "unbound"], host, "local")
    assert [(c["id"], c["baseline"]) for c in found] == [("local:1", None), ("unbound", "local:1")]
    assert not warnings
    found, _, warnings = bindings.resolve(["local"], host, "local:1")
    assert {c["id"]: c["role"] for c in found} == {
        "local:0": "cell", "local:1": "baseline", "local:2": "cell",
    } and not warnings  # fmt: skip
    found, _, _ = bindings.resolve(["remote"], topologies.topology(1), "local")
    assert not found


def test_cells_that_are_alike_are_kept_once():
    host = topologies.topology(2, cores=2)
    found, skipped = cells(
        host, "one-thread-per-core", {"cpus": "0-1", "mem": "0"}, "local", "local:0"
    )
    assert list(found) == ["local:0", "local:1"]
    assert skipped["one-thread-per-core:1"] == "it is the same as local:1 on this host"
    assert skipped["cpus:0-1,mem=0"] == "it is the same as local:0 on this host"


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
        ({"local": "x"}, "is not a list of CPUs or nodes"),
        ({"cpus": "6-9"}, "CPUs 8-9 do not exist on this host"),
        ({"cpus": "1"}, "CPUs 1 are offline"),
        ({"cpus": "0,7"}, "CPUs 7 are outside this process's cpuset"),
        ({"cpus": "0", "mem": "3"}, "node 3 does not exist"),
        ({"cpus": "0", "memory": "0"}, "unknown key 'memory'. did you mean mem"),
        ({"cpus": ""}, "names no CPUs"),
        ({"cores": 4}, "needs a count"),
        ({"cores": {"count": 0, "within": "node"}}, "count 0 is not a number of cores"),
        ({"cores": {"count": 2, "within": "sockets"}}, "did you mean socket"),
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
    host = topologies.topology(2)
    host["nodes"][1].update(memory_bytes=0)
    for asked in ({"local": 1}, {"remote": "0->1"}, {"cpus": "0", "mem": "1"}):
        with pytest.raises(Fault, match="node 1 has no memory"):
            cells(host, asked, baseline=None)


def test_room_follows_the_policy():
    host = topologies.topology(2, memory_gib=16)
    host["nodes"][0].update(free_bytes=100, page_cache_bytes=10)
    host["nodes"][1].update(free_bytes=30, page_cache_bytes=100)
    found, _ = cells(host, "local", "remote:0-1", "interleave:0", "preferred:0", "unbound")
    room = {name: bindings.room_bytes(host, cell) for name, cell in found.items()}
    assert room["local:0"] == (100, 110) and room["remote:0-1"] == (30, 130)
    assert room["interleave:0"] == (60, 220)
    assert room["preferred:0"] == room["unbound"] == (130, 240)
    host["nodes"][1]["free_bytes"] = None
    assert bindings.room_bytes(host, found["remote:0-1"]) == (None, None)
    one = topologies.topology(1)
    one["available_bytes"] = 77  # the authority where one node holds everything
    assert bindings.room_bytes(one, cells(one, "local")[0]["local:0"]) == (77, 77)


@settings(max_examples=150, deadline=None)
@given(
    topologies.hosts(),
    st.lists(st.sampled_from(SYMBOLIC), min_size=1, max_size=6),
    st.sampled_from([None, "local", "unbound", "cpus-only", "interleave", "remote"]),
)
def test_on_any_host_cells_stay_within_what_may_be_used(host, asked, baseline):
    found, skipped, _ = bindings.resolve(asked, host, baseline)
    usable = {c["cpu"] for c in host["cpus"] if c["online"] and c["allowed"]}
    with_memory = {
        n["node"] for n in host["nodes"] if n["allowed_memory"] and n["memory_bytes"] != 0
    }
    node_of = {c["cpu"]: c["node"] for c in host["cpus"]}
    by_id = {cell["id"]: cell for cell in found}
    assert len(by_id) == len(found)
    policies = [(cell["cpus"], str(cell["memory"])) for cell in found]
    assert len(set(policies)) == len(policies)
    for cell in found:
        cpus = set(cpulist.parse(cell["cpus"] or ""))
        assert cpus <= usable and (cpus or cell["cpus"] is None)
        if cpus:
            assert cell["cpu_nodes"] == cpulist.format(node_of[c] for c in cpus)
            assert cpulist.parse(cell["cpu_order"]) == sorted(cpus)
            assert cell["threads"] == len(cpus)
        if cell["memory"]["nodes"] is not None:
            assert set(cpulist.parse(cell["memory"]["nodes"])) <= with_memory
        if cell["binding"] == "local":
            assert cell["cpu_nodes"] == cell["memory"]["nodes"]
        if cell["binding"] == "remote":
            assert cell["cpu_nodes"] != cell["memory"]["nodes"]
        required = cell["expects"]["memory"]["proof"] == "required"
        assert required == (cell["memory"]["policy"] in ("bind", "interleave"))
        if cell["baseline"] is not None:
            base = by_id[cell["baseline"]]
            assert base["role"] == "baseline" and cell["role"] == "cell"
            if cell["binding"] in ("local", "remote", "preferred") and base["cpus"] is not None:
                assert base["cpu_nodes"] == cell["cpu_nodes"]  # the client's node is fixed
            if cell["binding"] in ("remote", "preferred") and base["binding"] == "local":
                assert base["cpus"] == cell["cpus"]
    assert all(skip["reason"] and skip["cell"] for skip in skipped)
    for binding in map(bindings.parse, asked):  # nothing vanishes without a word
        names = {cell["binding"] for cell in found} | {skip["binding"] for skip in skipped}
        assert binding.name in names


def test_the_roomiest_node_is_the_first_of_those_with_the_most_memory():
    host = topologies.topology(3)
    host["nodes"][0].update(memory_bytes=int(15.5 * (1 << 30)))  # the kernel keeps some of it
    for name in ("local", "cpus-only", "preferred", "interleave"):
        cells, skipped, _ = bindings.resolve([{name: "roomiest"}], host)
        assert [cell["id"] for cell in cells] == [f"{name}:0"] and not skipped
        assert bindings.resolve([f"{name}:roomiest"], host)[0] == cells
    host["nodes"][0].update(memory_bytes=8 << 30)
    assert bindings.resolve(["local:roomiest"], host)[0][0]["id"] == "local:1"
    host["nodes"][1].update(memory_bytes=0)
    host["nodes"][2]["allowed_memory"] = False
    assert bindings.resolve(["local:roomiest"], host)[0][0]["id"] == "local:0"
    host["nodes"][0].update(memory_bytes=0)
    cells, skipped, _ = bindings.resolve(["cpus-only:roomiest"], host)
    assert not cells and "no node has both CPUs and memory" in skipped[0]["reason"]
    assert not bindings.resolve([{"remote": "roomiest"}], host)[0]
    found = bindings.resolve([{"remote": "roomiest"}], topologies.topology(3))[0]
    assert [cell["id"] for cell in found] == ["remote:0-1"]
