"""The tool ``allocation``: its program on this machine, its driver, and the experiments over it."""

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

import topologies
import waiting
from cells import cell
from corpus import fixture
from numalab import experiments
from numalab.agent import compiled, drivers
from numalab.agent.contract import HugePagePool, ToolRecord
from numalab.agent.drivers import allocation
from numalab.agent.errors import Fault, NotHere, ParseError
from numalab.agent.plan import make as plan
from numalab.agent.probe import PROGRAM

MIB = 1 << 20
ALLOCATION = drivers.driver("allocation")
CPUS = sorted(os.sched_getaffinity(0))
NODES = [p for p in Path("/sys/devices/system/node").glob("node[0-9]*") if (p / "meminfo").exists()]
EXPERIMENTS = ("page-cache", "placement")
OUTPUTS = {
    name: fixture(f"allocation-{name}.ndjson")
    for name in ("full", "dropped", "fork", "file", "killed", "balance")
}


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """The path of a probe compiled for these tests."""
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        pytest.skip("there is no C compiler")
    if not NODES:
        pytest.skip("this kernel shows no NUMA node")
    return compiled.build(PROGRAM, str(tmp_path_factory.mktemp("probe")))


@pytest.fixture
def disk(tmp_path):
    """A folder on a file system that keeps page cache."""
    for folder in (tmp_path, Path("/var/tmp")):
        try:
            return allocation._directory(str(folder), "/")
        except Fault:
            continue
    pytest.skip("no folder here is on a disk")


HOME = int(NODES[0].name[4:]) if NODES else 0
OTHER = ["--other-cpu", str(CPUS[-1]), "--other-node", str(HOME)]


def run(program, *words, ok=True, **more):
    done = subprocess.run(
        [program, "allocate", "--home", str(HOME), *words, "--no-wait"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=waiting.SILENT_S, **more,
    )  # fmt: skip
    assert (done.returncode == 0) is ok, done.stderr
    return ALLOCATION.parse(done.stdout) if ok else done.stderr


def of(records, kind, **wanted):
    return [
        r for r in records
        if r["kind"] == kind and all(r[key] == value for key, value in wanted.items())
    ]  # fmt: skip


def values(records):
    return {(m.metric, m.point): m.value for m in ALLOCATION.metrics(records)}


# --- the program ------------------------------------------------------------------------------


def test_every_page_is_placed_and_counted(program):
    records = run(program, "--bytes", "32MiB", "--pages", "base", "--threads", "1")
    done = of(records, "allocation")[0]
    pages = 32 * MIB // os.sysconf("SC_PAGE_SIZE")
    assert pages <= done["minor_faults"] < 1.05 * pages + 64
    assert done["transparent_huge_bytes"] == 0 and not done["killed"]
    assert sum(r["bytes"] for r in of(records, "placement", when="result")) == 32 * MIB
    assert not of(records, "placement", when="ready")  # nothing is allocated before "go"
    found = values(records)
    assert found["huge_share", ""] == 0
    if len(NODES) == 1:
        assert found["home_share", ""] == 1 and found["uneven_share", ""] == 0


@pytest.mark.skipif(len(CPUS) < 2, reason="this needs 2 CPUs")
def test_threads_touch_each_its_part(program):
    records = run(program, "--bytes", "32MiB", "--pages", "base", "--threads", "2")
    assert sum(r["bytes"] for r in of(records, "placement", when="result")) == 32 * MIB
    assert {r["pinned"] for r in of(records, "thread", when="result")} == set(CPUS[:2])


def test_a_fork_copies_what_the_child_writes(program):
    records = run(program, "--bytes", "32MiB", "--pages", "base", "--scenario", "fork", *OTHER)
    parts = {r["name"]: r["bytes"] for r in of(records, "part")}
    if len(NODES) == 1:
        assert parts == {"parent": 16 * MIB, "copied": 8 * MIB, "new": 16 * MIB}
    done = of(records, "allocation")[0]
    pages = (16 + 8 + 16) * MIB // os.sysconf("SC_PAGE_SIZE")
    assert pages <= done["minor_faults"] < 1.05 * pages + 300  # the child's are counted, too
    assert done["moved_bytes"] == 0


def test_the_pages_of_a_file_are_found(program, disk):
    words = ["--bytes", "16MiB", "--scenario", "file", "--directory", disk]
    records = run(program, *words, *OTHER)
    assert sum(r["bytes"] for r in of(records, "placement", when="result")) == 16 * MIB
    assert of(records, "allocation")[0]["moved_bytes"] == 0
    assert os.listdir(disk) == [] or disk == "/var/tmp"


def test_memory_that_is_read_for_a_while_stays_where_no_other_node_is(program):
    words = ["--bytes", "4MiB", "--scenario", "balance", "--seconds", "0.2"]
    began = time.monotonic()
    records = run(program, *words, *OTHER)
    assert 0.2 <= of(records, "allocation")[0]["seconds"] <= time.monotonic() - began
    if len(NODES) == 1:
        assert of(records, "allocation")[0]["moved_bytes"] == 0


def test_a_child_that_survives_says_where_its_pages_were(program):
    records = run(program, "--bytes", "16MiB", "--scenario", "oversubscribe", "--pages", "base")
    done = of(records, "allocation")[0]
    assert (done["killed"], done["touched_bytes"]) == (False, 16 * MIB)
    assert values(records)["out_of_memory_kill", ""] == 0


def test_a_fill_reads_into_the_page_cache_and_leaves_no_file(program, disk):
    before = set(os.listdir(disk))
    words = ["--bytes", "1MiB", "--fill", "64MiB", "--directory", disk]
    fill = of(run(program, *words), "fill")[0]
    assert fill["read_bytes"] == 64 * MIB and not fill["dropped"]
    assert fill["page_cache_after"] - fill["page_cache_before"] > 32 * MIB
    assert set(os.listdir(disk)) <= before


def test_killed_in_the_middle_it_leaves_no_file_and_no_page_cache(program, disk):
    before = set(os.listdir(disk))
    words = ["--home", str(HOME), "--bytes", "1MiB", "--fill", "256MiB", "--directory", disk]
    with subprocess.Popen(
        [program, "allocate", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        ready = json.loads(process.stdout.readline())
        assert ready["nothing_yet"] is True
        held = _page_cache()
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert set(os.listdir(disk)) <= before
    # The pages go with the last descriptor.
    waiting.wait_for(lambda: held - _page_cache() >= 128 * MIB)


def _page_cache():
    lines = (NODES[0] / "meminfo").read_text().splitlines()
    return next(int(line.split()[3]) * 1024 for line in lines if " FilePages:" in line)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fill", "1MiB", "--directory", "/dev/shm"], "tmpfs"),
        (["--fill", "1MiB", "--directory", "/nowhere"], "No such file"),
        (["--scenario", "fork"], "--other-cpu and --other-node"),
        (["--scenario", "sell"], "no such choice"),
        (["--fill", "much"], "not a size"),
        (["--seconds", "0"], "not a number of seconds"),
    ],
)
def test_the_program_refuses(program, words, said):
    if "/dev/shm" in words and not os.path.ismount("/dev/shm"):
        pytest.skip("/dev/shm is no tmpfs here")
    assert said in run(program, "--bytes", "1MiB", *words, ok=False)


def test_a_fill_needs_a_node(program):
    done = subprocess.run(
        [program, "allocate", "--fill", "1MiB", "--no-wait"], capture_output=True, text=True
    )
    assert done.returncode == 2 and "--home must name the node" in done.stderr


def test_a_node_cannot_be_filled_in_a_folder_that_cannot_be_written(program, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    words = ["--bytes", "1MiB", "--fill", "1MiB", "--directory", str(tmp_path)]
    assert "no file can be made" in run(program, *words, ok=False)


# --- the driver -------------------------------------------------------------------------------


FOUND = ToolRecord("allocation", path="/p")


def prepared(host=None, cpus="0-3", **options):
    host = host or topologies.topology(nodes=2, cores=4, memory_gib=2)
    return ALLOCATION.prepare(options, host, cpus, "0")


def test_it_is_a_measuring_tool():
    assert ALLOCATION.name == "allocation" and "allocation" in drivers.MEASURING


@pytest.mark.parametrize(
    ("memory_gib", "size", "expected"),
    [
        (2, "40%", int(0.8 * 1024) * MIB // (2 * MIB) * 2 * MIB),
        (256, "40%", int(0.4 * 256 * 1024) * MIB // (2 * MIB) * 2 * MIB),
        (0.25, "40%", 102 * MIB),
        (0.25, "120%", 306 * MIB),
        (2, "64MiB", 64 * MIB),
        (2, 70000, 65536),
    ],
)
def test_sizes_follow_the_node(memory_gib, size, expected):
    host = topologies.topology(nodes=2, cores=4, memory_gib=memory_gib)
    ready = prepared(host, size=size)
    assert ready.options["size"] == expected == ready.need_bytes


def test_what_runs_out_of_memory_needs_none():
    assert prepared(scenario="oversubscribe", size="120%").need_bytes == 0
    assert prepared(scenario="fork", size="64MiB").need_bytes == 80 * MIB


def test_the_other_node_is_the_nearest():
    host = topologies.topology(nodes=8, cores=2, sockets=2)
    options = ALLOCATION.prepare({"scenario": "elsewhere"}, host, "10-11", "5").options
    assert (options["home"], options["other_node"], options["other_cpu"]) == (5, 4, 8)


def test_the_command_line():
    options = prepared(scenario="elsewhere", size="64MiB", pages="thp", threads=2).options
    words = ALLOCATION.argv(FOUND, options, cell("0-3"))
    assert words == [
        "/p", "allocate", "--scenario", "elsewhere", "--bytes", str(64 * MIB), "--pages", "thp",
        "--threads", "2", "--pin", "cpu", "--home", "0", "--other-cpu", "4", "--other-node", "1",
    ]  # fmt: skip
    full = prepared(fill="node", drop=True).options
    assert ALLOCATION.argv(FOUND, full, cell())[-3:] == [
        "--fill", "node", "--drop"
    ]  # fmt: skip


def test_a_fill_is_planned_as_set_up():
    big = topologies.topology(2, memory_gib=256)
    assert prepared(big, fill="node", size="64MiB").timing.setup_s > 30
    assert prepared(big, size="64MiB").timing.setup_s < 1
    assert prepared(scenario="balance", seconds=7).timing.measure_s == 7


def test_a_share_of_a_node_has_a_cap_but_stays_large_enough_to_be_seen():
    big = topologies.topology(2, memory_gib=1024)
    assert prepared(big, size="25%", at_most="4GiB").options["size"] == pytest.approx(
        0.02 * 1024 * topologies.GIB, rel=0.001
    )
    assert prepared(size="1.5GiB", at_most="1GiB").options["size"] == topologies.GIB
    assert prepared(size="115%", at_most="1GiB").options["size"] > topologies.GIB


@pytest.mark.parametrize(
    "options",
    [
        {"colour": "red"},
        {"scenario": "sell"},
        {"size": "much"},
        {"size": -1},
        {"size": True},
        {"size": "120"},
        {"pages": "large"},
        {"fill": "all"},
        {"fill": "1 --x"},
        {"drop": True},
        {"drop": "yes", "fill": "node"},
        {"threads": 0},
        {"threads": 5},
        {"threads": True},
        {"scenario": "balance", "seconds": 0},
        {"fill": "node", "directory": "var/tmp"},
        {"pages": "hugetlb", "size": "16MiB"},
    ],
)
def test_bad_options_are_refused(options):
    with pytest.raises(Fault):
        prepared(**options)


@pytest.mark.parametrize("options", [{"fill": "node"}, {"scenario": "elsewhere"}])
def test_cpus_of_several_nodes_have_no_home(options):
    with pytest.raises(Fault, match="bind it to the CPUs of a node"):
        prepared(cpus="0-7", **options)
    assert prepared(cpus="0-7").options["home"] is None


def test_huge_pages_of_the_pool_are_used_where_there_are_any():
    pool = HugePagePool(2 * MIB, total=16, free=9)
    host = topologies.with_node(topologies.topology(nodes=2, cores=4), 0, hugepages=(pool,))
    assert prepared(host, pages="hugetlb", size="16MiB").options["pages"] == "hugetlb"
    with pytest.raises(NotHere, match="18.0 MiB free") as caught:
        prepared(host, pages="hugetlb", size="64MiB")
    assert caught.value.reason.code == "huge-page-pool-too-small"


def test_a_folder_in_memory_is_refused():
    if not os.path.ismount("/dev/shm"):
        pytest.skip("/dev/shm is no tmpfs here")
    with pytest.raises(Fault, match="tmpfs"):
        allocation._directory("/dev/shm", "/")
    with pytest.raises(Fault, match="not a folder"):
        allocation._directory("/nowhere", "/")


def test_nobody_runs_out_of_memory_where_that_would_do_more(tmp_path):
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    allocation._check_kill(str(tmp_path))
    (tmp_path / "proc/swaps").write_text("Filename Type\n")
    allocation._check_kill(str(tmp_path))
    (tmp_path / "proc/sys/vm/panic_on_oom").write_text("1\n")
    with pytest.raises(Fault, match="panics"):
        allocation._check_kill(str(tmp_path))
    (tmp_path / "proc/swaps").write_text("Filename Type\n/dev/sda2 partition\n")
    with pytest.raises(NotHere, match="swaps"):
        allocation._check_kill(str(tmp_path))


# --- reading ----------------------------------------------------------------------------------


def test_a_full_node_of_a_guest():
    found = values(ALLOCATION.parse(OUTPUTS["full"]))
    assert found["home_share", ""] < 0.1 and found["uneven_share", ""] > 0.4
    assert found["page_cache_kept", ""] > 0.98
    assert found["placed", "node 0"] + found["placed", "node 1"] == 50331648
    assert found["filled_usable", "node 0"] < 2 * MIB
    assert ("out_of_memory_kill", "") not in found


def test_dropped_page_cache_was_not_kept():
    rows = ALLOCATION.metrics(ALLOCATION.parse(OUTPUTS["dropped"]))
    (kept,) = [row for row in rows if row.metric == "page_cache_kept"]
    assert kept.value is None and kept.reason.code == "page-cache-was-dropped"


def test_a_fork_in_a_guest():
    found = values(ALLOCATION.parse(OUTPUTS["fork"]))
    assert found["parent_home_share", ""] == 1 and found["moved_share", ""] == 0
    assert found["copied_home_share", ""] == found["new_home_share", ""] == 0
    assert found["home_share", ""] == pytest.approx(0.4)


def test_a_kill_in_a_guest_is_a_result():
    rows = {row.metric: row for row in ALLOCATION.metrics(ALLOCATION.parse(OUTPUTS["killed"]))}
    assert rows["out_of_memory_kill"].value == 1 and rows["touched"].value > 1 << 30
    for name in ("placed", "home_share", "uneven_share"):
        assert rows[name].value is None and "killed" in rows[name].reason.fields["text"]
    assert rows["huge_share"].value is None


def test_balanced_memory_of_a_guest():
    found = values(ALLOCATION.parse(OUTPUTS["balance"]))
    assert found["moved_share", ""] > 0.9 and found["home_share", ""] > 0.9


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_value_is_a_number_or_has_a_reason(name):
    for row in ALLOCATION.metrics(ALLOCATION.parse(OUTPUTS[name])):
        assert (row.value is None) == bool(row.reason)
        assert row.value is None or row.value >= 0


@pytest.mark.parametrize("name", OUTPUTS)
def test_what_is_not_understood_is_refused(name):
    lines = [json.loads(line) for line in OUTPUTS[name].splitlines()]
    for number, record in enumerate(lines):
        for key in record:
            for change in ({}, {key: "?"}, {"surprise": 1}):
                broken = {k: v for k, v in record.items() if k != key or change}
                broken.update(change)
                if broken == record or (change == {key: "?"} and _free_text(key)):
                    continue
                text = [*lines[:number], broken, *lines[number + 1 :]]
                with pytest.raises(ParseError):
                    ALLOCATION.parse("\n".join(map(json.dumps, text)))
    for text in ("", "\n".join(OUTPUTS[name].splitlines()[:1]), "{", "[1]"):
        with pytest.raises(ParseError):
            ALLOCATION.parse(text)


def _free_text(key):
    return key in ("version", "pages", "buffers_reason", "mode")


# --- the experiments --------------------------------------------------------------------------


def planned(name, host, profile="quick", root=None):
    """The plan without the profile's budget: tests/test_budget.py is about that."""
    request = replace(experiments.load(name).request(profile, "h", seed=1), budget_s=None)
    return plan.make(request, host, plan.Environment(root))


def case_of(cell_id):
    return cell_id.partition("/")[2]


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize(("nodes", "memory_gib"), [(2, 2), (8, 0.5), (16, 0.25), (2, 256)])
def test_one_file_serves_every_host(name, nodes, memory_gib):
    host = topologies.topology(nodes=nodes, cores=4, sockets=2, memory_gib=memory_gib)
    made = planned(name, host)
    assert {case_of(skip.cell) for skip in made.skipped} <= {"hugetlb"}
    assert {one.cpu_nodes for one in made.cells} == {"0"}
    assert 12 <= len(made.cells) <= 24
    resolved = {one.asked: one for one in made.resolved}
    named = [
        predicate[key]
        for claim in experiments.load(name).claims
        for predicate in (
            claim["holds_if"] if isinstance(claim["holds_if"], list) else [claim["holds_if"]]
        )
        for key in ("cell", "against")
        if predicate.get(key)
    ]
    assert named
    for binding, _, case in (text.partition("/") for text in named):
        cells = resolved[binding].cells
        assert [one for one in cells if case in ("", case_of(one))], f"{binding}/{case}"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_on_one_node_everything_is_skipped_with_its_reason(name):
    made = planned(name, topologies.topology(nodes=1, cores=4))
    assert made.cells == () and made.order == ()
    assert made.skipped and all("node" in str(skip.reason) for skip in made.skipped)
    assert "one-memory-node" in {skip.reason.code for skip in made.skipped}


def test_a_full_node_takes_no_equal_share_and_bound_memory_stays():
    made = planned("page-cache", topologies.topology(nodes=2, cores=4, memory_gib=2))
    proofs = {one.id: one.expects.memory.proof for one in made.cells}
    assert proofs["interleave:0/even"] == proofs["local:0/bound"] == "required"
    assert proofs["interleave:0/full-even"] == proofs["cpus-only:0/full"] == "outcome"


def test_a_setting_marked_as_optional_is_left_alone_where_there_is_none(tmp_path):
    """Kernels before 5.0 know no watermark boosting, and some no NUMA balancing."""
    for name in ("drop_caches", "zone_reclaim_mode"):
        (tmp_path / "proc/sys/vm").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/sys/vm" / name).write_text("0\n")
    host = topologies.topology(nodes=2, cores=4, memory_gib=2)
    made = planned("page-cache", host, root=str(tmp_path))
    assert plan.settings(made) == {"vm.drop_caches": ["3"], "vm.zone_reclaim_mode": ["0", "1"]}
    assert {"empty", "full", "dropped", "reclaim", "bound"} <= {c.case.name for c in made.cells}
    assert {case_of(skip.cell) for skip in made.skipped} == {
        "reclaim-mglru", "reclaim-7-mglru", "huge", "full-huge"
    }  # fmt: skip


def test_every_trial_begins_alike():
    made = planned("page-cache", topologies.topology(nodes=2, cores=4, memory_gib=2))
    for one in made.cells:
        assert one.changes["vm.drop_caches"] == "3"
        assert one.changes["vm.watermark_boost_factor"] == "0"
