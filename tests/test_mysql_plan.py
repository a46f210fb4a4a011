"""Plans for a server: the client's CPUs, loads, sizes, instances; without any server running."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

import topologies
from numalab import experiments
from numalab.agent import cpulist
from numalab.agent.contract import (
    SCHEMA,
    MemoryExpectation,
    Request,
    ToolRecord,
    from_json,
    reason,
    to_json,
)
from numalab.agent.errors import Fault
from numalab.agent.plan import kinds, resolve, show
from numalab.agent.plan import make as plan
from numalab.agent.served import dataset, files
from numalab.agent.served.mysql import server
from numalab.agent.served.mysql.data import table_bytes
from test_mysql_server import DRIVER, fake_server

KNOWN = "innodb_buffer_pool_size innodb_numa_interleave innodb_redo_log_capacity log_bin"


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A function that makes a plan with a server that only says what it is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(dataset, "free_bytes", lambda: 1 << 50)
    client = tmp_path / "sysbench"
    client.write_text("#!/bin/sh\necho sysbench 1.0.20\n")
    client.chmod(0o755)

    def make(asked, topology, known=KNOWN, **request):
        path = fake_server(tmp_path / "mysqld", "8.4.3 for Linux on x86_64 (GPL)", known)
        options = {"server": path, "sysbench": str(client), **request.pop("options", {})}
        wanted = {
            "schema": SCHEMA, "experiment": "mysql-binding", "profile": "quick", "host": "h",
            "tool": {"name": "mysql", "prefer": ["mysql_server"], "options": options},
            "bindings": asked, "blocks": 6, "seed": 1, **request,
        }  # fmt: skip
        return plan.make(from_json(Request, wanted), topology)

    return make


def cells(made):
    return {cell.id: cell for cell in made.cells}


def codes(reasons):
    return [one.code for one in reasons]


def test_the_client_has_the_same_cpus_in_every_cell_and_no_bound_cell_has_them(make):
    host = topologies.topology(2, cores=8, threads=2)
    asked = ["local", "remote", "interleave", "cpus-only", "smt-siblings", "unbound",
             {"cores": {"count": "node", "within": "spread"}}]  # fmt: skip
    made = make(asked, host, baseline="local")
    client = made.client.cpus
    assert client == "5-7,13-15,21-23,29-31"  # two fifths of each node's cores, both threads
    assert {cell.options["client_cpus"] for cell in made.cells} == {client}
    for name, cell in cells(made).items():
        shares = not cell.cpus or set(cpulist.parse(cell.cpus)) & set(cpulist.parse(client))
        assert bool(shares) == (name == "unbound")
        assert ("client-shares-cpus" in codes(cell.notes)) == (name == "unbound")
    assert cells(made)["local:0"].cpus == "0-4,16-20"
    notes = [str(note) for note in cells(made)["local:0"].notes]
    assert "6 of the 16 CPUs of node 0 are the client's" in notes
    assert cells(made)["unbound"].threads == 32
    assert cells(made)["cores:5-spread"].cpus == "0-2,8-9"
    assert f"client: CPUs {client}, in every cell" in show.text(made)


def test_a_small_host_shares_its_cpus_and_says_so(make):
    made = make(["local", "unbound"], topologies.topology(2, cores=3), baseline="local")
    assert made.client.cpus is None
    assert made.client.why == reason("few-cores-on-node", node=0, cores=3)
    for cell in made.cells:
        assert cell.options["client_shares"] and cell.options["client_cpus"] == "0-5"
        assert "client-shares-cpus" in codes(cell.notes)
    assert "client shares CPUs: node 0 has 3 cores" in show.text(made)


def test_the_clients_cpus_may_be_named_and_named_cpus_are_the_servers(make):
    host = topologies.topology(2, cores=4)
    made = make(["local", "unbound"], host, options={"client_cpus": "1"})
    assert cells(made)["local:0"].cpus == "0,2-3" and made.client.cpus == "1"
    made = make(["local"], host, options={"client_cpus": "share"})
    assert cells(made)["local:0"].cpus == "0-3" and made.client.cpus is None
    made = make([{"cpus": "2-3"}, "unbound"], host)
    assert made.client.cpus == "1,7"
    with pytest.raises(Fault, match="CPUs 9 cannot be used"):
        make(["local"], host, options={"client_cpus": "9"})
    limited = topologies.limit(topologies.topology(2, cores=4), "0-5", "0-1")
    assert make(["unbound"], limited).client.cpus is None


@pytest.mark.parametrize(
    ("clients", "number"), [(7, 7), ("cpus", 16), ("half-cpus", 8), ("2x-cpus", 32)]
)
def test_clients_are_a_number_or_a_word_for_the_hosts_cpus(make, clients, number):
    made = make(["local"], topologies.topology(2, cores=8), options={"clients": clients})
    assert {cell.options["clients"] for cell in made.cells} == {number}


def test_loads_and_interleaving_are_swept(make):
    sweep = [
        {"option": "clients", "values": ["cpus", 4, "2x-cpus"], "bindings": ["local"]},
        {"option": "innodb_numa_interleave", "values": ["ON"], "bindings": ["cpus-only"]},
    ]
    host = topologies.topology(2)
    made = make(["local", "cpus-only"], host, baseline="local", sweep=sweep, pairs="every")
    found = cells(made)
    assert [name for name in found if "local:0/" in name] == [
        "local:0/control", "local:0/clients=4", "local:0/clients=16",
    ]  # fmt: skip
    swept = found["cpus-only:1/innodb_numa_interleave=ON"]
    assert swept.baseline == "local:1"
    assert swept.options["innodb_numa_interleave"] == "ON"
    assert swept.expects.memory == MemoryExpectation(
        "required", "shares", "0-1", policy="interleave"
    )
    assert found["cpus-only:1"].expects.memory.proof == "outcome"
    with_cxl = topologies.without_cpus(topologies.topology(3), 2)
    found = cells(make(["cpus-only"], with_cxl, options={"innodb_numa_interleave": True}))
    assert {cell.expects.memory.nodes for cell in found.values()} == {"0-2"}
    said = [" ".join(map(str, cell.notes)) for cell in found.values()]
    assert said and all("also node 2, which has memory without CPUs" in one for one in said)
    bound = make(["local"], topologies.topology(2), options={"innodb_numa_interleave": True})
    assert cells(bound)["local:0"].expects.memory.rule == "within"


def test_what_innodb_interleaves_is_proven_under_every_policy_that_only_prefers(make, monkeypatch):
    recorded = kinds.POLICIES["preferred"]
    monkeypatch.setitem(kinds.POLICIES, "preferred-many", recorded)
    monkeypatch.setitem(kinds.KINDS, "either", kinds._node_kind("preferred-many"))
    host, own = topologies.topology(2), {"innodb_numa_interleave": True}
    for binding in ("preferred", "either"):
        found = cells(make(["local", binding], host, baseline="local", options=own))
        proofs = {one.expects.memory.rule for name, one in found.items() if binding in name}
        assert proofs == {"shares"}


def test_a_server_without_libnuma_is_named(make):
    known = KNOWN.replace("innodb_numa_interleave ", "")
    made = make(["local"], topologies.topology(2), known)
    assert made.cells[0].options["innodb_numa_interleave"] == ""
    note = next(n for n in made.cells[0].notes if n.code == "setting-not-built-in")
    assert "built without innodb_numa_interleave" in str(note)
    with pytest.raises(Fault, match="without libnuma"):
        make(["local"], topologies.topology(2), known, options={"innodb_numa_interleave": "ON"})


def test_the_pool_holds_the_data_and_the_node_the_pool(make, monkeypatch):
    host = topologies.topology(2, memory_gib=4)
    made = make(["local"], host, options={"tables": 4, "rows": 1_000_000})
    cell = made.cells[0]
    tables = table_bytes(cell.options)
    assert 1.25 * tables < cell.options["pool_bytes"] < 1.6 * tables
    assert cell.options["pool_bytes"] < cell.need_bytes < 4 << 30
    made = make(["local", "unbound"], host, options={"tables": 4, "rows": 5_000_000})
    assert not cells(made).get("local:0")
    assert "node 0 can hold" in str(made.skipped[0].reason)
    with pytest.raises(Fault, match="does not hold the tables"):
        make(["local"], host, options={"pool": 1 << 20})
    monkeypatch.setattr(dataset, "free_bytes", lambda: 1 << 30)
    with pytest.raises(Fault, match=r"needs about .* of disk .* 1.0 GiB are free"):
        make(["local"], replace(host, root="/"))
    make(["local"], host)  # nobody knows the disk of a copied host


def test_the_outlay_is_told_before_it_begins(make):
    made = make(["local"], topologies.topology(2), options={"tables": 2, "rows": 1_000_000})
    outlay = made.outlay
    assert outlay.prepare_s > 10 and outlay.disk_bytes > 2 * 2 * 250 * 1_000_000
    assert outlay.memory_bytes == made.cells[0].need_bytes
    assert made.estimate.total_s > outlay.prepare_s + made.estimate.measure_s
    text = " ".join(show.text(made).split())
    assert "2,000,000 rows in 2 tables" in text and "to be prepared once" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workload": "oltp_delete"}, "workload 'oltp_delete' is not known"),
        ({"rowz": 5}, "no option 'rowz'"),
        ({"seed": 0}, "from the clock"),
        ({"clients": 0}, "not a number of client threads"),
        ({"clients": "many"}, "not a number of client threads"),
        ({"rows": True}, "rows True is not a whole number"),
        ({"rate": "5/core"}, "rate '5/core'"),
        ({"innodb_numa_interleave": "yes"}, "neither ON nor OFF"),
        ({"server_options": {"nonsense": 1}}, "knows no setting 'nonsense'"),
    ],
)
def test_a_bad_option_is_refused(make, options, words):
    with pytest.raises(Fault, match=words):
        make(["local"], topologies.topology(2), options=options)


# --- sizes ------------------------------------------------------------------------------------


def test_the_data_are_four_times_the_caches_of_the_host_and_fit_its_smallest_node(make):
    def data(host, **options):
        given = {"rows": "4x-llc", "tables": 16, **options}
        made = make(["local", "unbound"], host, options=given)
        its = made.cells[0].options
        return its["tables"] * its["rows"] * 250, made

    four, made = data(topologies.topology(2, cache_mib=105))
    assert 840 << 20 <= four < 860 << 20
    assert not any("data-below-caches" in codes(cell.notes) for cell in made.cells)
    assert 256 << 20 <= data(topologies.topology(2, cache_mib=1))[0] < 275 << 20
    assert 768 << 20 <= data(topologies.topology(2, cache_mib=512, memory_gib=3))[0] < 775 << 20
    capped, made = data(topologies.topology(2, cache_mib=300), data_limit="1500MiB")
    assert 1500 << 20 <= capped < 1510 << 20
    told = {cell.id: "data-below-caches" in codes(cell.notes) for cell in made.cells}
    assert told["unbound"] and not told["local:0"]  # 1200 MiB are four times one node's caches
    note = next(n for n in cells(made)["unbound"].notes if n.code == "data-below-caches")
    assert "600 MiB" in str(note) and "nothing is judged" in str(note)


def test_instances_share_the_data_that_one_server_would_have(make):
    host = topologies.topology(4, cores=8, cache_mib=64)
    sizes = {"rows": "4x-llc", "tables": 16}
    one = make(["unbound"], host, options=sizes)
    asked = [{"instances": {"over": over}} for over in ("nodes", "unbound")]
    four = make(asked, host, baseline="instances:few-nodes", options=sizes)
    rows = [made.cells[0].options["rows"] for made in (one, four)]
    assert rows[0] > 200_000 and abs(rows[0] / rows[1] - 4) < 0.1
    assert not any("data-below-caches" in codes(cell.notes) for cell in four.cells)


def test_a_large_pool_is_divided_and_the_redo_log_holds_what_a_trial_writes(make):
    known = f"{KNOWN} innodb_buffer_pool_instances"
    host = topologies.topology(2, cores=128, threads=2, memory_gib=512)
    sizes = {"tables": 16, "rows": 500_000, "time_s": 8, "warmup_s": 2}
    made = make(["local"], host, known, options={**sizes, "workload": "oltp_read_write"})
    its = made.cells[0].options
    assert its["pool_parts"] == 10 and its["pool_bytes"] % (10 * (128 << 20)) == 0
    assert its["redo_bytes"] == 8 << 30  # as much as is ever set aside
    note = next(n for n in made.cells[0].notes if n.code == "writes-as")
    assert "redo log of 8.0 GiB" in str(note) and "once a second" in str(note)
    small = topologies.topology(2, cores=2)
    its = make(["local"], small, options={**sizes, "workload": "oltp_read_write"}).cells[0].options
    assert its["redo_bytes"] == 1 << 30 and its["pool_parts"] == 1
    assert make(["local"], small, options=sizes).cells[0].options["redo_bytes"] < 1 << 30


def test_thousands_of_sessions_need_as_many_files(make, monkeypatch):
    here = replace(topologies.topology(2, cores=128, threads=2), root="/")
    asked = {"clients": "4x-cpus", "tables": 10}
    monkeypatch.setattr(files, "most", lambda: 1 << 20)
    assert make(["unbound"], here, options=asked).cells[0].options["clients"] == 2048
    monkeypatch.setattr(files, "most", lambda: 4096)
    with pytest.raises(Fault, match="2048 sessions need 45688 open files, and this user may have"):
        make(["unbound"], here, options=asked)


@pytest.mark.parametrize("profile", ["quick", "full"])
def test_every_host_has_the_experiments_within_their_time(tmp_path, make, profile):
    """Nothing is left out, with six blocks at least, on hosts of 2 to 512 CPUs."""
    hosts = [
        topologies.topology(1, cores=2, memory_gib=24, cache_mib=32),
        topologies.topology(2, cores=56, threads=2, memory_gib=256, cache_mib=105),
        topologies.topology(8, cores=4, sockets=2, memory_gib=3),
        topologies.topology(8, cores=16, threads=2, sockets=2, memory_gib=128, cache_mib=64),
        topologies.topology(16, cores=8, sockets=4, memory_gib=64),
        topologies.topology(2, cores=128, threads=2, memory_gib=1024, cache_mib=256),
    ]
    minutes = {"quick": (6, 6, 4), "full": (90, 50, 40)}[profile]
    for host in hosts:
        for name, most in zip(("mysql-binding", "mysql-cores", "mysql-instances"), minutes):
            asked = to_json(experiments.load(name).request(profile, "h", seed=1))
            tool = asked.pop("tool")
            made = make(asked.pop("bindings"), host, options=tool["options"], **asked)
            left_out = [skip for skip in made.skipped if skip.reason.code.startswith("budget")]
            assert made.cells and made.request.blocks >= 6 and not left_out, (name, left_out)
            assert made.estimate.total_s < 60 * most, (name, host.threads)


# --- instances --------------------------------------------------------------------------------


def test_instances_are_bound_one_by_one(make):
    host = topologies.topology(4, cores=4)
    asked = [{"instances": {"over": over}} for over in ("ranges", "nodes", "spread", "unbound")]
    made = make(asked, host, baseline="instances:few-ranges",
                options={"rate": "100/cpu", "client_cpus": "share"})  # fmt: skip
    found = cells(made)
    for cell in made.cells:
        assert cell.numactl == () and cell.options["rate"] == 400  # of 1600
        assert [one.name for one in cell.instances] == [f"instance {n}" for n in range(1, 5)]
    assert found["instances:ranges"].instances[1].cpus == "4-7"
    assert found["instances:ranges"].role == "baseline"
    third = found["instances:nodes"].instances[2]
    assert third.numactl == ("numactl", "--physcpubind=8-11", "--membind=2")
    assert third.expects.memory.nodes == "2"
    assert found["instances:spread"].instances[3].cpus == "3,7,11,15"
    assert found["instances:unbound"].instances[0].numactl == ()
    nodes = found["instances:nodes"]
    assert nodes.need_bytes > 4 * nodes.options["pool_bytes"]
    words = DRIVER.argv(ToolRecord("mysql_server", path="/m"), nodes.options, nodes)
    started = json.loads(words[words.index("--instances") + 1])
    assert started[2] == {
        "name": "instance 3", "cpus": "8-11", "policy": "bind", "nodes": "2"
    }  # fmt: skip


def test_instances_that_a_host_cannot_hold_are_skipped_with_the_reason():
    one = topologies.topology(1, cores=2)
    found = resolve.resolve([{"instances": {"over": "nodes"}}], one)
    assert not found.cells
    assert "1 node with CPUs and memory for 2 instances" in str(found.skipped[0].reason)
    found = resolve.resolve([{"instances": {"over": "ranges", "count": 5}}], one)
    assert not found.cells and "2 CPUs for 5 instances" in str(found.skipped[0].reason)
    for bad in ({"over": "moon"}, {"over": "nodes", "count": 1}, {"count": 2}, "moon"):
        with pytest.raises(Fault):
            resolve.parse({"instances": bad})
    assert resolve.parse("instances:3-nodes").argument == (3, "nodes")


def test_cores_fill_one_node_after_the_other_or_come_in_a_series():
    host = topologies.topology(2, cores=6, threads=2)
    found = resolve.resolve([{"cores": {"count": "doubling", "within": "packed"}}], host).cells
    assert {cell.id: cell.cpus for cell in found} == {
        "cores:1-packed": "0", "cores:2-packed": "0-1", "cores:4-packed": "0-3",
        "cores:6-packed": "0-5", "cores:8-packed": "0-7", "cores:12-packed": "0-11",
    }  # fmt: skip
    assert "cores per node: 6 on 0, 2 on 1" in [str(note) for note in found[4].notes]
    found = resolve.resolve([{"cores": {"count": "few", "within": "spread"}}], host).cells
    assert [cell.id for cell in found] == [f"cores:{n}-spread" for n in (1, 3, 6, 12)]
    found = resolve.resolve(["cores:node-cpus-spread"], host).cells
    assert found[0].cpus == "0-11"  # as many cores as a node has CPUs
    alone = topologies.topology(1, cores=2, threads=2)
    made = resolve.resolve(["cores:node-cpus-spread"], alone)
    assert not made.cells
    assert str(made.skipped[0].reason) == "this host has 2 usable cores, not 4"
    with pytest.raises(Fault, match="has 12 usable cores, not 13"):
        resolve.resolve([{"cores": {"count": 13, "within": "packed"}}], host)


def test_open_files_are_allowed_up_to_the_hard_limit():
    code = (
        "import resource as r; from numalab.agent.served import files\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (100, 200)); files.allow(150)\n"
        "print(*r.getrlimit(r.RLIMIT_NOFILE)); files.allow(180); files.allow(10)\n"
        "print(*r.getrlimit(r.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["150 200", "180 200"]


@pytest.mark.parametrize("interleaves", [True, False])
def test_a_recorded_plan_is_made_again_without_any_server(make, tmp_path, monkeypatch, interleaves):
    """The record may be a stranger's: no program that it names is started."""
    known = KNOWN if interleaves else KNOWN.replace("innodb_numa_interleave ", "")
    host = topologies.topology(nodes=2, cores=8)
    made = make(["local", {"remote": "nearest"}, "unbound"], host, known)
    for program in ("mysqld", "sysbench"):
        (tmp_path / program).write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    server._look_at.cache_clear()
    again = plan.again(made, host)
    assert not (tmp_path / "started").exists()
    assert again.cells == made.cells and again.order == made.order
