"""Where the services' pages and threads are on two nodes. Not in `make test-lab`: long.

Their programs are in an image of their own, that of lab/hosts/services-2n.yml.
"""

import gzip
import json
import shutil

import pytest

pytestmark = pytest.mark.long

HOST = "test-services"
CPUS = ("0-3", "4-7")  # of its nodes


@pytest.fixture(scope="module")
def host(numalab, checkout):
    """A guest with the services' programs; no second guest lives beside it."""
    (checkout / "lab" / "hosts" / f"{HOST}.yml").write_text("like: services-2n\n")
    numalab("lab", "down", "test-one", "test-two")
    numalab("lab", "up", HOST)
    yield HOST
    numalab("lab", "down", HOST)


def test_no_packaged_server_runs_by_itself(numalab, host):
    """It would be a load beside every measurement."""
    numalab(
        "lab", "ssh", host, "--",
        "! pgrep -l 'java|haproxy|postgres|valkey|memcached' && "
        "which java valkey-server memcached /usr/lib/postgresql/*/bin/postgres && haproxy -v",
    )  # fmt: skip


def proofs(numalab, host, experiment, *words):
    """Run an experiment's smoke on the guest; return {cell: its last proof of every instance}."""
    shutil.rmtree(numalab.checkout / "runs" / host, ignore_errors=True)
    numalab(
        "run", experiment, "--hosts", host, "-p", "smoke", "--busy", "--no-notebook",
        "--no-collectors", "--time-limit", "1800", *words,
    )  # fmt: skip
    folder = numalab.run_of(host, experiment)
    numalab("check", str(folder))
    found = {}
    for trial in numalab.trials(folder):
        # Where CPUs are emulated the balancer may be the limit: that is no matter of placement.
        held = trial["grade"] == "verified" or trial["reason"]["code"] == "balancer-was-the-limit"
        assert held, (trial["cell"], trial["reason"])
        with gzip.open(folder / trial["raw"]["proof"]) as file:
            every = json.load(file)["proofs"]
        assert all(one["ok"] for one in every), (trial["cell"], every)
        found[trial["cell"]] = {one["instance"]: one for one in every}
    return found


def each_on_its_node(instances):
    """Tell that the first instance is whole on node 0, the second on node 1."""
    assert len(instances) == 2
    for node, (name, proof) in enumerate(sorted(instances.items())):
        assert proof["memory"]["shares"][str(node)] > 0.98, (name, proof["memory"])
        assert proof["cpus"]["allowed"] == CPUS[node], (name, proof["cpus"])
        assert proof["cpus"]["threads"] >= 1


def even(shares):
    """Tell that both nodes have about as much."""
    return set(shares) == {"0", "1"} and all(0.4 < share < 0.6 for share in shares.values())


def test_valkey(numalab, host):
    found = proofs(
        numalab, host, "service", "--set", "service=valkey", "--set", "keys=20000", "--set",
        "requests=20000", "-b", "unbound", "-b", "instances:nodes", "-b", "interleave:unbound",
    )  # fmt: skip
    each_on_its_node(found["instances:nodes"])
    (one,) = found["interleave:unbound"].values()
    assert even(one["memory"]["shares"])


def test_memcached(numalab, host):
    found = proofs(
        numalab, host, "service", "--set", "service=memcached", "-b", "unbound", "-b",
        "instances:nodes",
    )  # fmt: skip
    each_on_its_node(found["instances:nodes"])


def test_tomcat(numalab, host):
    """Heap, code and threads of a JVM on its node; its own policy where it places by itself."""
    found = proofs(numalab, host, "service-per-node")
    each_on_its_node(found["instances:nodes"])

    found = proofs(
        numalab, host, "service-per-node", "-b", "unbound", "--set", "use_numa=on", "--set",
        "balancer=none",
    )  # fmt: skip
    for instances in found.values():
        (memory,) = (proof["memory"] for proof in instances.values())
        size = sum(memory["interleaved_bytes"].values())
        assert size > 32 << 20, "the old generation"
        assert even({node: part / size for node, part in memory["interleaved_bytes"].items()})
        near = {policy[-1] for policy in memory["policies"] if policy.startswith("prefer")}
        assert near == {"0", "1"}, "new objects"


def test_postgresql(numalab, host):
    """Its shared buffers, and the private memory of every process, are where they must be."""
    found = proofs(
        numalab, host, "postgresql-binding", "-b", "local:0", "-b", "remote:0-1", "-b",
        "interleave:0",
    )  # fmt: skip
    memory = {cell: one["memory"] for cell, each in found.items() for one in each.values()}
    assert memory["local:0"]["shares"]["0"] > 0.98
    assert memory["remote:0-1"]["shares"]["1"] > 0.98
    assert even(memory["interleave:0"]["shares"])
    for cell, one in memory.items():
        assert one["anonymous_bytes"] > 32 << 20, (cell, "without its tables")


def test_postgresql_in_huge_pages(numalab, host):
    """Its shared buffers are then of hugetlbfs, and are counted all the same."""
    numalab("lab", "ssh", host, "--", "sysctl -qw vm.nr_hugepages=256")
    try:
        found = proofs(
            numalab, host, "postgresql-binding", "-b", "local:0", "--set", "huge_pages=on",
        )  # fmt: skip
    finally:
        numalab("lab", "ssh", host, "--", "sysctl -qw vm.nr_hugepages=0")
    for instances in found.values():
        (memory,) = (proof["memory"] for proof in instances.values())
        assert memory["shares"]["0"] > 0.98
        assert memory["anonymous_bytes"] > 32 << 20, "without its tables"
