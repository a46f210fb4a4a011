"""The collectors: real counters of this host, made-up hosts, and perf binaries that misbehave."""

import contextlib
import importlib.resources
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import waiting
from cells import cell
from corpus import read
from numalab.agent import collectors, kernel
from numalab.agent.collectors import (
    cpu,
    event_files,
    meminfo,
    numastat,
    perf,
    resctrl,
    sampler,
    traffic,
    vmstat,
)
from numalab.agent.collectors.snapshots import pairs
from numalab.agent.contract import CollectorRequest, Row, reason, to_json
from numalab.agent.errors import Fault, NotHere
from numalab.agent.rows import row as make_row

CELL = cell()
FORMULAS = event_files.groups_for(None)[0].formulas
PERF, NO_PERF = CollectorRequest(interval_s=0), CollectorRequest(perf=False, interval_s=0)
BUSY = "import time\nend = time.time() + 3600\nwhile time.time() < end: bytearray(1 << 20)"


@pytest.fixture(autouse=True)
def fresh_perf():
    perf.availability.cache_clear()
    yield
    perf.availability.cache_clear()


@pytest.fixture
def busy():
    child = subprocess.Popen([sys.executable, "-c", BUSY])
    yield child.pid
    child.kill()
    child.wait()


def let_work(pid, seconds):
    """Wait until a process has used that much CPU time since now."""
    hz = os.sysconf("SC_CLK_TCK")
    began = kernel.processes()[pid].ticks
    waiting.wait_for(lambda: kernel.processes()[pid].ticks - began >= seconds * hz, by=pid)


def running(words):
    """Tell whether a process with these words in its command line runs."""
    lines = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry.name}/cmdline") as file:
                lines.append(file.read().replace("\0", " "))
    return any(words in line for line in lines)


def rows_of(record, source):
    return {
        (row.metric, row.point): row
        for row in collectors.metrics(record, FORMULAS)
        if row.source == source
    }


# The whole, here


def test_a_real_collection(busy):
    collection = collectors.start(CELL, busy, CollectorRequest(interval_s=0.1))
    let_work(busy, 0.3)
    record = collection.stop()
    json.dumps(record)
    assert record["cpu"]["tree_s"] >= 0.3
    faults = rows_of(record, "vmstat")["pgfault", ""]
    assert faults.value > 0 and faults.reason is None
    assert record["disturbance"]["other_s"] >= 0
    times = sorted({sample.t_s for sample in collectors.samples(record)})
    assert len(times) >= 2
    assert record["self"]["sampling_cpu_s"] < record["cpu"]["elapsed_s"] / 4
    for row in collectors.metrics(json.loads(json.dumps(record)), FORMULAS):
        assert isinstance(row, Row)
        assert row.value is not None or row.reason, row


def test_the_agents_own_processes_are_not_named_as_others(busy):
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as warden:
        try:
            collection = collectors.start(CELL, busy, NO_PERF)
            let_work(warden.pid, 0.2)
            others = collection.stop()["disturbance"]["busiest"]
        finally:
            warden.kill()
    assert warden.pid not in [process["pid"] for process in others]


def test_numastat_is_what_the_kernel_counts():
    """Between two readings of the kernel's own file, counter by counter.

    How much a page fault adds is the kernel's affair: huge pages and per-CPU lists differ.
    """
    file = Path("/sys/devices/system/node/node0/numastat")
    if not file.exists():
        pytest.skip("no NUMA nodes in this host's sysfs")

    def kernels():
        return {name: int(value) for name, value in map(str.split, file.read_text().splitlines())}

    start = numastat.snapshot()
    before = kernels()
    held = b"x" * (64 << 20)
    end = numastat.snapshot()
    after = kernels()
    assert len(held) == 64 << 20
    rows = [row for row in numastat.metrics(pairs(start, end)) if row.point == "node 0"]
    assert {row.metric for row in rows} == set(before)
    for row in rows:
        name = row.metric
        assert before[name] <= start["0"][name] + row.value <= after[name]


@pytest.mark.parametrize("with_perf", [False, True])
def test_the_time_of_a_workload_that_ended_and_was_waited_for_is_known(with_perf):
    code = "input()\nimport time\nwhile time.process_time() < 0.5: pass"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    collection = collectors.start(CELL, child.pid, PERF if with_perf else NO_PERF)
    child.communicate(b"\n")
    record = collection.stop()
    assert 0.3 < rows_of(record, "cpu")["workload_cpu_time", ""].value < 0.8
    assert record["disturbance"]["other_s"] is not None


def test_without_perf_and_sampling_nothing_runs_meanwhile(busy):
    collection = collectors.start(CELL, busy, NO_PERF)
    record = collection.stop()
    assert record["perf"] is None and record["reasons"]["perf"]["code"] == "not-asked-for"
    assert record["samples"] == [] and record["self"]["sampling_cpu_s"] is None


def test_a_workload_that_is_gone_costs_only_its_own_values():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    record = collectors.start(CELL, child.pid, PERF).stop()
    assert (
        record["perf"] is None and record["reasons"]["perf"]["code"] == "workload-gone-before-perf"
    )
    row = rows_of(record, "cpu")["workload_cpu_time", ""]
    assert row.value is None and row.reason.code == "workload-had-ended"
    assert record["vmstat"]


# Made-up hosts


def make(root, files):
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return str(root)


NODE = "numa_hit {0}\nnuma_miss {1}\nnuma_foreign 0\ninterleave_hit 7\nlocal_node 3\nother_node 4\n"


def test_numastat_deltas_by_node_with_numbers_that_have_gaps(tmp_path):
    nodes = "sys/devices/system/node"
    root = make(tmp_path, {f"{nodes}/node{n}/numastat": NODE.format(10 * n, n) for n in (0, 8)})
    (tmp_path / nodes / "has_cpu").write_text("0,8\n")
    before = numastat.snapshot(root)
    make(tmp_path, {f"{nodes}/node8/numastat": NODE.format(100, 9)})
    record = pairs(before, numastat.snapshot(root))
    assert record["8"]["numa_hit"] == [80, 100]
    values = {(row.metric, row.x): row.value for row in numastat.metrics(record)}
    assert values["numa_hit", 8.0] == 20 and values["numa_miss", 8.0] == 1
    assert values["numa_hit", 0.0] == 0


def test_a_host_without_nodes_or_with_counting_off_says_so(tmp_path):
    with pytest.raises(NotHere, match="no NUMA nodes"):
        numastat.snapshot(str(tmp_path))
    make(tmp_path, {"proc/sys/vm/numa_stat": "0\n"})
    with pytest.raises(NotHere, match="vm.numa_stat is 0"):
        numastat.snapshot(str(tmp_path))


def test_vmstat_keeps_what_matters_and_names_what_the_kernel_lacks(tmp_path):
    root = make(tmp_path, {"proc/vmstat": "nr_free_pages 5\npgfault 100\nnuma_pages_migrated 3\n"})
    before = vmstat.snapshot(root)
    make(tmp_path, {"proc/vmstat": "nr_free_pages 9\npgfault 150\nnuma_pages_migrated 3\n"})
    record = pairs(before, vmstat.snapshot(root))
    assert record == {"pgfault": [100, 150], "numa_pages_migrated": [3, 3]}
    rows = {row.metric: row for row in vmstat.metrics(record)}
    assert rows["pgfault"].value == 50 and rows["numa_pages_migrated"].value == 0
    assert rows["compact_stall"].value is None
    assert rows["compact_stall"].reason.code == "counter-not-known"


def test_vmstat_gives_more_rows_where_the_kernel_counts_more():
    record = {"pgfault": [1, 3], "workingset_refault_file": [5, 9], "drop_pagecache": [0, 1]}
    rows = {row.metric: row.value for row in vmstat.metrics(record)}
    assert rows["workingset_refault_file"] == 4 and rows["drop_pagecache"] == 1
    assert "pswpout" not in rows and rows["pgscan_direct"] is None


def test_what_was_not_collected_has_one_row_that_says_so():
    rows = collectors.metrics({"reasons": {}, "vmstat": {"pgfault": [1, 3]}}, FORMULAS)
    missing = {row.metric: row.reason.code for row in rows if row.source == row.metric}
    assert missing == dict.fromkeys(
        ("numastat", "meminfo", "cpu", "perf", "traffic", "resctrl"), "not-collected"
    )


@pytest.mark.parametrize(
    "damage",
    [{"vmstat": {"pgfault": ["a", 3]}}, {"perf": {"events": [{}]}}, {"numastat": 5},
     {"cpu": {}}, {"reasons": None}, {"resctrl": {"d": []}},
     {"traffic": {"events": [], "raw": "", "seconds": 0, "missing": []}},
     {"traffic": {"events": [["a", "b"]], "raw": "", "seconds": 1, "missing": []}},
     {"traffic": {"events": [["a", "b", "GB/s"]], "raw": 5, "seconds": 1, "missing": []}},
     {"traffic": {"events": [["a", "b", "1/s"]], "seconds": 1e-300, "missing": [], "raw":
      '{"event": "b", "counter-value": "1e300", "unit": ""}'}}],
)  # fmt: skip
def test_a_damaged_record_is_refused(damage):
    with pytest.raises(Fault):
        collectors.metrics({"reasons": {}, "disturbance": None, **damage}, FORMULAS)
    with pytest.raises(Fault):
        collectors.samples({"samples": [{"t_s": 1}]})


MEMINFO = """Node {0} MemTotal:       2000000 kB
Node {0} MemFree:        {1} kB
Node {0} Active(file):   200 kB
Node {0} Inactive(file): 300 kB
Node {0} FilePages:      {2} kB
Node {0} AnonPages:      {3} kB
"""


def test_meminfo_levels_by_node(tmp_path):
    folder = "sys/devices/system/node"
    files = {f"{folder}/node{n}/meminfo": MEMINFO.format(n, 1000, 500, 10) for n in (0, 8)}
    root = make(tmp_path, files)
    before = meminfo.snapshot(root)
    assert before["8"]["Inactive(file)"] == 300 << 10 and set(before) == {"0", "8"}
    make(tmp_path, {f"{folder}/node8/meminfo": MEMINFO.format(8, 200, 800, 510)})
    record = json.loads(json.dumps(pairs(before, meminfo.snapshot(root))))
    rows = {(row.metric, row.point): row for row in meminfo.metrics(record)}
    values = {key[0]: row.value for key, row in rows.items() if key[1] == "node 8"}
    assert values == {
        "free_change": -800 << 10, "page_cache_change": 300 << 10, "anonymous_change": 500 << 10,
        "anonymous_huge_change": None, "free_before": 1000 << 10, "page_cache_before": 500 << 10,
    }  # fmt: skip
    assert rows["free_change", "node 0"].value == 0 and rows["free_change", "node 0"].x == 0
    assert "no AnonHugePages" in str(rows["anonymous_huge_change", "node 0"].reason)
    assert all(row.unit == "B" and row.source == "meminfo" for row in rows.values())
    with pytest.raises(NotHere, match="no NUMA nodes"):
        meminfo.snapshot(str(tmp_path / "nowhere"))


def test_memory_by_node_is_sampled_from_the_start(tmp_path, busy):
    folder = "sys/devices/system/node"
    root = make(tmp_path, {f"{folder}/node4/meminfo": MEMINFO.format(4, 1000, 500, 10)})
    collection = collectors.start(CELL, busy, CollectorRequest(perf=False, interval_s=0.02), root)
    let_work(busy, 0.1)
    make(tmp_path, {f"{folder}/node4/meminfo": MEMINFO.format(4, 700, 800, 10)})
    waiting.wait_for(
        lambda: any(row.value == 700 << 10 for row in list(collection._sampler._samples))
    )
    record = collection.stop()
    series = [(row.t_s, row.metric, row.value) for row in collectors.samples(record)
              if row.point == "node 4" and row.source == "meminfo"]  # fmt: skip
    assert series[:2] == [(0.0, "free", 1000 << 10), (0.0, "page_cache", 500 << 10)]
    assert series[-1][1:] == ("page_cache", 800 << 10) and series[-1][0] > 0.02


def test_a_counter_that_is_no_number_costs_one_collector(tmp_path, busy):
    root = make(tmp_path, {"proc/vmstat": "pgfault many\n", "proc/stat": "cpu0 1 1 1 1 1 1 1 1\n"})
    record = collectors.start(CELL, busy, NO_PERF, root).stop()
    assert record["vmstat"] is None and record["reasons"]["vmstat"]["code"] == "vmstat-empty"
    assert record["cpu"] is not None


def test_disturbance_is_what_the_cells_cpus_did_beyond_the_tree():
    hz = os.sysconf("SC_CLK_TCK")

    def stat(pid, ticks, parent=1, children=0):
        return kernel.Stat(pid, f"p{pid}", "R", parent, pid, ticks, children, pid, 0, 0)

    before = cpu.Snapshot(
        100.0,
        {0: [0] * 8, 1: [0] * 8, 2: [0] * 8},
        {5: stat(5, 0), 6: stat(6, 0), 7: stat(7, hz)},
    )
    after = cpu.Snapshot(
        110.0,
        {0: [9 * hz, 0, 0, hz, 0, 0, 0, 0], 1: [4 * hz, 0, 0, 5 * hz, 0, 0, 0, hz],
         2: [10 * hz] + [0] * 7},
        {5: stat(5, 8 * hz), 6: stat(6, 2 * hz, parent=5, children=hz), 7: stat(7, 3 * hz),
         8: stat(8, hz // 2)},
    )  # fmt: skip
    record = cpu.difference(before, after, 5, "0-1", own=[8])
    assert record["tree_s"] == 11
    other = record["disturbance"]
    assert other["cpus"] == "0-1" and other["busy_s"] == 13 and other["steal_s"] == 1
    assert other["other_s"] == 2 and other["other_share"] == pytest.approx(0.1)
    assert other["busiest"] == [{"pid": 7, "name": "p7", "cpu_s": 2.0}]
    two = cpu.difference(before, after, [5, 7], "0-1", own=[8])
    assert two["tree_s"] == 13 and two["disturbance"]["busiest"] == []
    assert cpu.difference(before, after, [5, 99], "0-1", own=[8])["tree_s"] is None
    after.processes[9] = stat(9, hz // 10)  # half a percent of the two CPUs: nobody's business
    assert cpu.difference(before, after, 5, "0-1", own=[8])["disturbance"] == other
    rows = {row.metric: row.value for row in cpu.metrics(record)}
    assert rows["cpu_busy_share"] == pytest.approx(0.65)
    assert rows["cpu_steal_share"] == pytest.approx(0.05)


def test_what_an_ended_child_had_used_before_is_nobodys_work_now():
    """Its parent gains all of it when it ends, and others at work beside it must still be seen."""
    hz = os.sysconf("SC_CLK_TCK")

    def stat(pid, ticks, parent=1, children=0):
        return kernel.Stat(pid, f"p{pid}", "R", parent, pid, ticks, children, pid, 0, 0)

    def look(at, used, *processes):
        return cpu.Snapshot(
            at, {0: [used, 0, 0, 0, 0, 0, 0, 0]}, {one.pid: one for one in processes}
        )

    before = look(
        0.0, 0,
        stat(5, 0), stat(6, 50 * hz, parent=5), stat(7, 20 * hz, parent=6),  # a tree of three,
        stat(8, 0), stat(9, 100 * hz, parent=8), stat(4, 0),  # the measuring with a child, others
    )  # fmt: skip
    after = look(
        10.0, 10 * hz, stat(5, hz, children=73 * hz), stat(8, 0, children=102 * hz), stat(4, 4 * hz)
    )
    record = cpu.difference(before, after, 5, "0", own=[8, 9], beside=True)
    assert record["tree_s"] == 4
    assert record["disturbance"]["other_s"] == 4
    assert [one["name"] for one in record["disturbance"]["busiest"]] == ["p4"]
    unwaited = look(10.0, 10 * hz, stat(5, hz), stat(8, 0), stat(4, 4 * hz))
    assert cpu.difference(before, unwaited, 5, "0", own=[8, 9])["tree_s"] == 1


def test_resctrl_bytes_by_domain(tmp_path):
    folder = "sys/fs/resctrl/mon_data"
    root = make(
        tmp_path,
        {
            f"{folder}/mon_L3_00/mbm_total_bytes": "1000\n",
            f"{folder}/mon_L3_00/mbm_local_bytes": "900\n",
            f"{folder}/mon_L3_01/mbm_total_bytes": "Unavailable\n",
            f"{folder}/mon_L3_01/mbm_local_bytes": "5\n",
            f"{folder}/mon_L3_02/mon_sub_L3_02/mbm_total_bytes": "5\n",
        },
    )
    before = resctrl.snapshot(root)
    assert set(before) == {"mon_L3_00", "mon_L3_01", "mon_L3_02/mon_sub_L3_02"}
    make(tmp_path, {f"{folder}/mon_L3_00/mbm_total_bytes": "5000\n"})
    make(tmp_path, {f"{folder}/mon_L3_00/mbm_local_bytes": "1900\n"})
    rows = resctrl.metrics(pairs(before, resctrl.snapshot(root)))
    found = {(row.metric, row.point): row for row in rows}
    assert found["mbm_remote_bytes", "mon_L3_00"].value == 3000
    assert found["mbm_total_bytes", "mon_L3_01"].reason.fields == {"word": "Unavailable"}
    assert found["mbm_remote_bytes", "mon_L3_01"].value is None
    assert found["mbm_local_bytes", "mon_L3_02/mon_sub_L3_02"].value is None
    with pytest.raises(NotHere, match="not mounted"):
        resctrl.snapshot(str(tmp_path / "elsewhere"))


# perf that misbehaves


@pytest.fixture
def fake_perf(tmp_path, monkeypatch):
    """Put a shell script named perf first on PATH."""

    def install(script):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        file = folder / "perf"
        file.write_text("#!/bin/sh\n" + script)
        file.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    return install


def why_no_perf(pid):
    record = collectors.start(CELL, pid, PERF).stop()
    assert record["perf"] is None
    (row,) = rows_of(record, "perf").values()
    assert row.value is None and to_json(row.reason) == record["reasons"]["perf"]
    return str(row.reason)


def test_no_perf(monkeypatch, tmp_path, busy):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_no_perf(busy) == "perf is not installed"


def test_a_perf_that_hangs_is_given_up_once_and_leaves_no_process(
    fake_perf, monkeypatch, tmp_path, busy
):
    monkeypatch.setattr(perf, "TRY_LIMIT_S", 1)
    fake_perf(f"echo tried >> {tmp_path}/log; sleep 4712\n")
    assert "does not end" in why_no_perf(busy)
    assert "does not end" in why_no_perf(busy)
    assert (tmp_path / "log").read_text() == "tried\n"  # remembered: not tried again
    assert not running("sleep 4712")


def test_a_perf_that_prints_garbage(fake_perf, busy):
    fake_perf("echo '{\"event\": oops' >&2; echo 12 parrots >&2\n")
    assert "printed no counts" in why_no_perf(busy)


def test_a_perf_without_permission_names_the_sysctl(fake_perf, busy):
    fake_perf("echo 'Consider adjusting /proc/sys/kernel/perf_event_paranoid' >&2; exit 255\n")
    assert "kernel.perf_event_paranoid = " in why_no_perf(busy)


def test_a_perf_that_works_on_true_and_then_never_attaches(fake_perf, monkeypatch, busy):
    monkeypatch.setattr(perf, "ATTACH_LIMIT_S", 0.3)
    fake_perf('case "$*" in *" -p "*) exec sleep 4713;; esac\n'
              "echo '1.0;msec;task-clock;1000;100.00;;' >&2\n")  # fmt: skip
    assert "did not attach" in why_no_perf(busy)


def test_a_perf_that_does_not_end_is_killed(fake_perf, monkeypatch, tmp_path, busy):
    deaf = tmp_path / "deaf"
    forever = f"sleep 4714{os.getpid()}"  # no other run of this test has the same
    fake_perf(
        f"case \"$*\" in *' -p '*) trap '' INT; echo > {deaf}; {forever}; exit;; esac\n"
        "echo '1.0;msec;task-clock;1000;100.00;;' >&2\n"
    )

    def attached(self, child, expected):
        while not deaf.exists():
            time.sleep(0.01)

    monkeypatch.setattr(perf, "END_LIMIT_S", 0.3)
    monkeypatch.setattr(perf.Running, "_wait_until_attached", attached)
    assert "did not end" in why_no_perf(busy)
    # A killed process takes a moment to leave the table.
    waiting.wait_for(lambda: not running(forever), tells=waiting.processes)


@pytest.mark.parametrize("hardware", [False, True])
def test_without_software_events_perf_counts_what_only_the_processor_knows(
    fake_perf, monkeypatch, tmp_path, busy, hardware
):
    said = "5000;;instructions;900;100.00;;" if hardware else "<not supported>;;instructions;0;0;;"
    fake_perf(
        f'case "$*" in *\' -p \'*) echo "$*" >> {tmp_path}/attached; sleep 0.3;; esac\n'
        f"echo '1.0;msec;task-clock;1000;100.00;;' >&2; echo '{said}' >&2\n"
    )
    monkeypatch.setattr(perf.Running, "_wait_until_attached", lambda *_: None)
    collection = collectors.start(CELL, busy, CollectorRequest(interval_s=0, software_events=False))
    time.sleep(0.5)
    rows = rows_of(collection.stop(), "perf")
    assert rows["instructions", ""].value == (5000 if hardware else None)
    assert rows["context_switches", ""].reason.code == "software-event-spared"
    assert rows["ipc", ""].reason.code == "counter-missing"
    if hardware:
        asked = (tmp_path / "attached").read_text()
        assert "instructions" in asked and "task-clock" not in asked
    else:
        assert not (tmp_path / "attached").exists(), "perf was started for nothing"


OLD_PERF = """
case "$*" in *" -j "*) echo 'Error: unknown switch j' >&2; exit 129;; esac
case "$*" in *no_such*) echo 'event syntax error' >&2; exit 129;; esac
echo '' >&2
echo '12.5;msec;task-clock;12500000;100.00;0.9;CPUs utilized' >&2
case "$*" in *cycles*) echo '3000;;cycles:u;900;45.00;;' >&2
echo '<not supported>;;instructions:u;0;100.00;;' >&2
echo '<not counted>;;LLC-load-misses;0;0.00;;' >&2;; esac
"""


def test_a_perf_that_knows_no_json_is_read_as_csv(fake_perf):
    fake_perf(OLD_PERF)
    events = ("task-clock", "cycles", "instructions", "LLC-load-misses")
    found = perf.availability(shutil.which("perf"), events)
    assert found.format == "csv" and found.useless is None
    assert found.reasons["task-clock"] is None and found.reasons["cycles"] is None
    assert found.reasons["instructions"].code == "event-not-supported"
    assert found.reasons["LLC-load-misses"].code == "event-not-counted"


def test_an_unknown_event_does_not_cost_the_others(fake_perf):
    fake_perf(OLD_PERF)
    found = perf.availability(shutil.which("perf"), ("task-clock", "no_such.event"))
    assert found.reasons["task-clock"] is None
    assert found.reasons["no_such.event"].code == "event-not-known"


def test_real_perf_counts_the_workload_only(busy):
    real = shutil.which("perf")
    if real is None:
        pytest.skip("perf is not installed")
    if perf.availability(real, ("task-clock",)).useless:
        pytest.skip(str(perf.availability(real, ("task-clock",)).useless))
    began = time.monotonic()
    collection = collectors.start(CELL, busy, PERF)
    let_work(busy, 0.2)
    record = collection.stop()
    rows = rows_of(record, "perf")
    assert 190 < rows["task_clock", ""].value < 1100 * (time.monotonic() - began)
    assert "task-clock" in record["perf"]["raw"]


def test_perf_keeps_its_counts_when_the_workload_ends_first():
    real = shutil.which("perf")
    if real is None or perf.availability(real, ("task-clock",)).useless:
        pytest.skip("perf is not installed or not permitted")
    child = subprocess.Popen([sys.executable, "-c", "input(); bytearray(1 << 24)"],
                             stdin=subprocess.PIPE)  # fmt: skip
    collection = collectors.start(CELL, child.pid, PERF)
    child.communicate(b"go\n")
    record = collection.stop()
    assert rows_of(record, "perf")["task_clock", ""].value > 0


def test_counts_marks_and_reasons():
    text = (
        "# started on today\n"
        '{"counter-value" : "5.0", "unit" : "", "event" : "cycles:u", "event-runtime" : 10, '
        '"pcnt-running" : 43.00, "metric-value" : 0.0, "metric-unit" : ""}\n'
        "Warning: something\n"
        '{"counter-value" : "<not counted>", "unit" : "", "event" : "instructions", '
        '"event-runtime" : 0, "pcnt-running" : 0.00, "metric-value" : 0.0, "metric-unit" : ""}\n'
    )
    first, second = perf.counts(text).values()
    assert (first.event, first.value, first.user_only) == ("cycles", 5, True)
    assert second.value is None and second.why.code == "event-not-counted"
    events = [{**to_json(first._asdict()), "name": "cycles", "unit": "count"},
              {**to_json(second._asdict()), "name": "instructions", "unit": "count"}]  # fmt: skip
    rows = {row.metric: row for row in perf.metrics({"events": events}, FORMULAS)}
    assert rows["cycles"].value == 5
    assert str(rows["cycles"].reason) == (
        "multiplexed: counted 43 % of the time and scaled; user space only"
    )
    assert rows["ipc"].value is None and rows["ipc"].unit == "instructions/cycle"
    assert str(rows["ipc"].reason) == "instructions has no value"


# The event files


@pytest.mark.parametrize(
    "processor, group",
    [
        ("GenuineIntel-6-4F", "intel_haswell"),
        ("GenuineIntel-6-3E", "intel_ivybridge"),
        ("GenuineIntel-6-55", "intel_skylake"),
        ("GenuineIntel-6-6A", "intel_icelake"),
        ("GenuineIntel-6-8F", "intel_icelake"),
        ("GenuineIntel-6-AF", "intel_sierraforest"),
        ("GenuineIntel-6-DD", "intel_sierraforest"),
        ("AuthenticAMD-23-1", "amd_zen1"),
        ("AuthenticAMD-23-8", "amd_zen1"),
        ("AuthenticAMD-23-18", "amd_zen1"),
        ("AuthenticAMD-23-31", "amd_zen2"),
        ("AuthenticAMD-23-71", "amd_zen2"),
        ("AuthenticAMD-25-1", "amd_zen3"),
        ("AuthenticAMD-25-11", "amd_zen4"),
        ("AuthenticAMD-25-A0", "amd_zen4"),
        ("AuthenticAMD-26-2", "amd_zen4"),
        ("0x41-0xd0c", "arm_neoverse"),
        ("0x48-0xd01", "hisilicon_kunpeng"),
    ],
)
def test_a_processor_finds_its_own_group_and_no_other(processor, group):
    assert [found.name for found in event_files.groups_for(processor)] == ["any", group]
    matching = [
        other.name
        for other in event_files.groups()
        if other.name != "any" and any(re.fullmatch(p, processor) for p in other.processors)
    ]
    assert matching == [group]


@pytest.mark.parametrize("processor", [None, "GenuineIntel-6-9E", "0x48-0xd02", "Loongson"])
def test_a_processor_without_a_verified_event_gets_the_portable_ones(processor):
    assert [found.name for found in event_files.groups_for(processor)] == ["any"]


def test_the_processor_is_read_from_cpuinfo(tmp_path):
    x86 = "processor : 0\nvendor_id : AuthenticAMD\ncpu family : 25\nmodel : 17\nmodel name : E\n"
    assert (
        event_files.processor(make(tmp_path / "a", {"proc/cpuinfo": x86})) == "AuthenticAMD-25-11"
    )
    arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xD0C\n"
    assert event_files.processor(make(tmp_path / "b", {"proc/cpuinfo": arm})) == "0x41-0xd0c"
    assert event_files.processor(str(tmp_path / "c")) is None


def test_every_event_file_reads_and_its_formulas_use_its_own_or_portable_names():
    portable = {event.name for event in event_files.groups_for(None)[0].events}
    for group in event_files.groups():
        own = {event.name for event in group.events}
        assert group.processors and (own or group.traffic) and group.notes
        assert group.name == "any" or not own & portable
        assert {event.unit for event in group.traffic} <= {"GB/s", "1/s"}
        values = dict.fromkeys(own | portable | {"seconds"}, 2.0)
        for text in group.formulas.values():
            value, reason = event_files.evaluate(text.partition(" ")[2], values)
            assert value is not None, reason
    files = importlib.resources.files(collectors).joinpath("events")
    assert len(event_files.groups()) == sum(f.name.endswith(".txt") for f in files.iterdir()) - 1


def test_a_damaged_event_file_names_the_line():
    with pytest.raises(Fault, match="line 3"):
        event_files.parse_group("x", "PROCESSORS\n.*\ntwo words\n")
    with pytest.raises(Fault, match="line 2"):
        event_files.parse_group("x", "EVENTS\ncycles cycles\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("PROCESORS\n.*\n", "line 1 .*the sections are PROCESSORS, EVENTS"),
        ("PROCESSORS\n0x41\nEVENTZ\nx y count\n", "line 3 .*the sections are PROCESSORS"),
        ("0x41-0xd0c\n", "line 1 .*before any section"),
        ("PROCESSORS\n0x41-[\n", "line 2 .*no regular expression"),
        ("TRAFFIC\nx y MB/s\n", "line 2 .*one of GB/s, 1/s"),
        ("METRICS\nx 1/s abs(y)\n", r"line 2 .*more than numbers, names"),
        ("METRICS\nx 1/s (y\n", "line 2 .*cannot be read"),
        ("EVENTS\ny y count\n", "x.txt has no line of PROCESSORS"),
        ("PROCESSORS\n0x1\nEVENTS\ny y count\n", "x.txt has no NOTES"),
        (
            "PROCESSORS\n0x1\nMETRICS\nx 1/s y\nNOTES\nn\n",
            "x needs 'y', which EVENTS does not have",
        ),
    ],
)
def test_a_mistake_in_a_file_of_events_is_told_with_its_line(tmp_path, monkeypatch, text, words):
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "x.txt").write_text(text)
    monkeypatch.setattr(event_files.importlib.resources, "files", lambda _: tmp_path)
    event_files.groups.cache_clear()
    try:
        with pytest.raises(Fault, match=words):
            event_files.groups()
    finally:
        event_files.groups.cache_clear()


@pytest.mark.parametrize(
    "formula",
    [
        "__import__('os')",
        "a ** 2",
        "a.b",
        "(a",
        "-a",
        "'x' * 3",
        "True",
        "1" * 400,
        "a+" * 300 + "a",
    ],
)
def test_a_formula_is_arithmetic_and_nothing_else(formula):
    with pytest.raises(Fault, match="line 2"):
        event_files.parse_group("x", f"METRICS\nm 1/s {formula}\n")
    value, why = event_files.evaluate(formula, {"a": 1.0})  # of a stranger's run
    assert value is None and why.code == "no-formula"


def test_a_formula_over_nothing_has_no_value():
    assert event_files.evaluate("a / (a + b)", {"a": 0.0, "b": 0.0})[0] is None
    assert str(event_files.evaluate("a / b", {"a": 1.0, "b": None})[1]) == "b has no value"


def test_a_formula_whose_value_is_no_number_has_none():
    value, reason = event_files.evaluate("a * 1e300", {"a": 1e300})
    assert value is None and reason.code == "formula-too-large"


def test_the_formulas_of_a_run_outlive_its_event_files(tmp_path):
    files = {"proc/cpuinfo": "vendor_id : GenuineIntel\ncpu family : 6\nmodel : 85\n"}
    recorded = collectors.formulas(make(tmp_path, files))
    assert recorded["ipc"] == "instructions/cycle instructions / cycles"
    assert recorded["remote_dram_share"].startswith("share remote_dram / ")
    names = {"local_dram": 30, "remote_dram": 10, "cycles": 2, "instructions": 3}
    events = [
        {"event": name, "name": name, "unit": "count", "value": value, "why": None,
         "running_percent": 100.0, "user_only": False}
        for name, value in names.items()
    ]  # fmt: skip
    rows = {row.metric: row for row in perf.metrics({"events": events}, recorded)}
    assert rows["remote_dram_share"].value == 0.25 and rows["ipc"].value == 1.5
    old = {"ipc": "cycles/instruction cycles / instructions"}
    rows = {row.metric: row for row in perf.metrics({"events": events}, old)}
    assert rows["ipc"].value == pytest.approx(2 / 3) and rows["ipc"].unit == "cycles/instruction"
    assert "remote_dram_share" not in rows


def test_several_instances_are_counted_each_by_itself():
    events = [{"name": "cycles", "unit": "count", "value": 5, "why": None,
               "running_percent": 100.0, "user_only": False}]  # fmt: skip
    record = {"instances": {"a": {"events": events}, "b": {"events": events}}}
    rows = perf.metrics(record, {"per_cycle": "1 cycles / cycles"})
    assert [(row.metric, row.point, row.x) for row in rows] == [
        ("cycles", "a", 0.0), ("per_cycle", "a", 0.0), ("cycles", "b", 1.0), ("per_cycle", "b", 1.0)
    ]  # fmt: skip


# Calibration


def counted(local, remote):
    return {"local_dram": local, "remote_dram": remote}


def test_an_event_that_tells_local_from_remote_is_usable():
    judged = perf.calibrate(counted(1_000_000, 10_000), counted(20_000, 980_000))
    assert judged["usable"] is True and judged["reason"] is None
    assert judged["under_remote"] == pytest.approx(0.98)


@pytest.mark.parametrize(
    "local, remote, why",
    [
        (counted(500_000, 500_000), counted(0, 1_000_000), "50% of known-local"),
        (counted(1_000_000, 0), counted(1_000_000, 0), "only 0% of known-remote"),
        (counted(None, 5), counted(0, 1_000_000), "no counts under known-local"),
        (counted(1_000_000, 0), counted(3, 5), "only 8 counts under known-remote"),
    ],
)
def test_one_that_does_not_is_unusable_and_says_why(local, remote, why):
    judged = perf.calibrate(local, remote)
    assert judged["usable"] is False and why in str(judged["reason"])


COUNT = st.floats(0, 1e15)


@given(COUNT, COUNT, COUNT, COUNT)
def test_calibration_needs_both_shares(a, b, c, d):
    judged = perf.calibrate(counted(a, b), counted(c, d))
    assert judged["usable"] == (judged["reason"] is None)
    if judged["usable"]:
        assert judged["under_local"] <= 0.1 and judged["under_remote"] >= 0.9


def test_the_sampler_stays_off_the_cells_cpus():
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) > 1:
        assert sampler.other_cpus(str(mine[0])) == mine[1:]
    assert sampler.other_cpus(",".join(map(str, mine))) is None
    assert sampler.other_cpus(None) is None


def test_a_row_without_value_must_say_why():
    with pytest.raises(ValueError):
        make_row("cycles", None, "count", source="perf")


# Traffic between nodes


SPR = "vendor_id : GenuineIntel\ncpu family : 6\nmodel : 143\n"
ZEN4 = "vendor_id : AuthenticAMD\ncpu family : 25\nmodel : 17\n"
NODES = {f"sys/devices/system/node/node{n}/cpulist": f"{n}\n" for n in (0, 1)}


def line_of(node, metric, value, event="unc_upi_txl_flits.all_data", running=100.0):
    """What perf stat -j --per-node prints of a metric's event (util/stat-display.c)."""
    return json.dumps({
        "node": f"N{node}", "aggregate-number": 1, "counter-value": "5.000000", "unit": "",
        "event": event, "event-runtime": 1000, "pcnt-running": running,
        "metric-value": f"{value}", "metric-unit": metric,
    })  # fmt: skip


def of(processor):
    return event_files.groups_for(processor)[1].traffic


def test_metrics_of_perf_become_gigabytes_a_second_of_each_node():
    wanted = of("GenuineIntel-6-8F")[:1]
    raw = "\n".join([
        "some warning", line_of(0, "MB/s  upi_data_transmit_bw", 12500.5),
        line_of(1, "MB/s  upi_data_transmit_bw", 800, running=50.0),
        line_of(1, "MB/s  memory_bandwidth_read", 9000),
    ])  # fmt: skip
    record = {"events": [list(one) for one in wanted], "raw": raw, "seconds": 2.0, "missing": []}
    first, second = traffic.metrics(json.loads(json.dumps(record)))
    assert (first.metric, first.unit, first.point, first.x) == (
        "traffic_from_node", "GB/s", "node 0", 0.0,
    )  # fmt: skip
    assert first.value == pytest.approx(12.5005) and first.reason is None
    assert second.value == pytest.approx(0.8) and second.reason.code == "multiplexed"


def test_perf_without_json_prints_the_same_with_separators():
    """As print_metric_csv and aggr_printout of util/stat-display.c; the third is a metric alone."""
    raw = (
        "N0;1;512;;remote_outbound_data_controller_0;900;100.00;;\n"
        "N0;1;700;;remote_outbound_data_controller_1;900;50.00;3.5;MiB  all_remote_links_outbound\n"
        "N1;1;;;;;;;7.25;MiB  all_remote_links_outbound\n"
    )
    found, why = traffic.parse(raw, of("AuthenticAMD-23-1"))
    assert why is None
    assert found["traffic_from_node"] == [(0, 3.5, "MiB", 50.0), (1, 7.25, "MiB", None)]


def test_metrics_in_outputs_of_others_are_found():
    """The one output of the corpus that has metrics in JSON; none has those of an interconnect."""
    wanted = [event_files.Event("retiring", "tma_retiring", "GB/s")]
    found, _ = traffic.parse(read("perf_stat_json/interval_metric_threshold.json"), wanted)
    assert found["retiring"][0] == (None, 33.623465, "%", None)


def test_amounts_of_the_data_fabric_are_divided_by_the_time():
    wanted = of("AuthenticAMD-23-1")
    raw = line_of(3, "MiB  all_remote_links_outbound", 2000, "remote_outbound_data_controller_0")
    record = {"events": [list(one) for one in wanted], "raw": raw, "seconds": 4.0, "missing": []}
    (row,) = traffic.metrics(record)
    assert row.value == pytest.approx(2000 * (1 << 20) / 4 / 1e9) and row.point == "node 3"


def test_requests_of_several_home_agents_are_added_and_are_no_bytes():
    (wanted,) = traffic.select(of("0x48-0xd01"), frozenset(["rx_outer", "cycles"]))
    raw = "\n".join(
        line_of(1, "", 0, f"hisi_sccl3_hha{n}/rx_outer/").replace("5.0", f"{n + 1}00.0")
        for n in (0, 1)
    )
    record = {"events": [list(wanted)], "raw": raw, "seconds": 2.0, "missing": []}
    (row,) = traffic.metrics(record)
    assert (row.metric, row.value, row.unit) == ("requests_from_other_sockets", 150.0, "1/s")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ('{"node" : "N0", "counter-value" : "<not supported>", "unit" : "", "event" : "x"}',
         "event-not-supported"),
        ("nothing of the kind", "event-without-line"),
    ],
)  # fmt: skip
def test_traffic_that_was_not_counted_is_null_with_its_reason(said, code):
    wanted = of("GenuineIntel-6-8F")[:1]
    missing = ["traffic_to_node", "GB/s", to_json(reason("perf-lists-no", names="a"))]
    record = {"events": [list(one) for one in wanted], "raw": said, "seconds": 2.0,
              "missing": [missing]}  # fmt: skip
    first, second = traffic.metrics(record)
    assert first.value is None and first.reason.code == code
    assert second.value is None and str(second.reason) == "perf list shows no a on this host"


def test_a_unit_that_is_not_known_gives_no_figure():
    wanted = of("GenuineIntel-6-8F")[:1]
    record = {"events": [list(one) for one in wanted], "seconds": 2.0, "missing": [],
              "raw": line_of(0, "furlongs  upi_data_transmit_bw", 3)}  # fmt: skip
    (row,) = traffic.metrics(record)
    assert row.value is None and row.reason.code == "perf-unit-unknown"


def test_perf_list_is_read_as_json_or_as_text():
    text = (
        '[\n{\n\t"MetricName": "upi_data_transmit_bw",\n\t"MetricExpr": "a\\@b\\q"\n},\n'
        '{\n\t"Unit": "hisi_sccl1_hha0",\n\t"EventName": "rx_outer",\n'
        '\t"EventAlias": "x/rx_outer/"\n}\n]'
    )
    assert traffic.listed(text) == {"upi_data_transmit_bw", "rx_outer", "x/rx_outer/"}
    old = "\nMetrics:\n\n  qpi_data_transmit_bw\n       [QPI data transmit bandwidth (MB/sec)]\n"
    assert traffic.listed(old) == {"qpi_data_transmit_bw"}


@pytest.mark.parametrize(
    ("processor", "lines"),
    [
        ("GenuineIntel-6-4F-1", 1), ("GenuineIntel-6-55-4", 3), ("GenuineIntel-6-6A-4", 3),
        ("GenuineIntel-6-8F-4", 3), ("AuthenticAMD-23-1-2", 1), ("AuthenticAMD-23-31-0", 1),
        ("AuthenticAMD-25-1-1", 1),
    ],
)  # fmt: skip
def test_perfs_own_table_of_the_processor_has_what_is_to_be_counted(monkeypatch, processor, lines):
    """perf holds the tables of all processors, and PERF_CPUID says which one to show."""
    real = shutil.which("perf")
    if real is None:
        pytest.skip("perf is not installed")
    monkeypatch.setenv("PERF_CPUID", processor)
    shown = traffic.listed(perf.printed([real, "list", "--no-desc", "metric"]))
    if not shown & {"tma_retiring", "branch_misprediction_ratio", "CPI", "IPC"}:
        pytest.skip("this perf was built without tables of events")
    assert len(traffic.select(of(processor.rpartition("-")[0]), shown)) >= lines


TALKATIVE = """
case "$*" in
"list -j") echo '{list}'; exit;;
list*) printf 'Metrics:\\n\\n  upi_data_transmit_bw\\n'; exit;; esac
case "$*" in *" -p "*) exec sleep 30;; *" -a "*)
echo '{say}' >&2; case "$*" in *true) exit;; *) trap 'exit 0' INT; while :; do sleep 0.05; done;; esac;; esac
echo '1.0;msec;task-clock;1000;100.00;;' >&2
"""  # noqa: E501


@pytest.mark.parametrize(
    "shown", ['[ {"MetricName": "upi_data_transmit_bw"} ]', "  Error: unknown switch `j"]
)
def test_what_perf_lists_is_counted_for_the_whole_host(fake_perf, monkeypatch, tmp_path, shown):
    traffic.available.cache_clear()
    script = TALKATIVE.replace("{list}", shown)
    fake_perf(script.replace("{say}", line_of(1, "MB/s  upi_data_transmit_bw", 4000)))
    monkeypatch.setattr(perf.Running, "_wait_until_attached", lambda *_: time.sleep(0.3))
    root = make(tmp_path / "root", {"proc/cpuinfo": SPR, **NODES})
    counting = traffic.Counting(root).start()
    counting.interrupt()
    record = counting.result()
    assert "--per-node" in record["argv"] and "-a" in record["argv"]
    assert record["argv"][-2:] == ["-M", "upi_data_transmit_bw"]
    rows = {row.metric: row for row in traffic.metrics(record)}
    assert rows["traffic_from_node"].value == 4.0
    assert rows["traffic_to_node"].reason.code == "perf-lists-no"
    traffic.available.cache_clear()


def test_without_permission_for_the_whole_host_it_says_so(fake_perf, tmp_path):
    traffic.available.cache_clear()
    fake_perf(TALKATIVE.replace("{say}", "Consider adjusting perf_event_paranoid"))
    with pytest.raises(NotHere) as why:
        traffic.Counting(make(tmp_path / "root", {"proc/cpuinfo": SPR, **NODES}))
    assert why.value.reason.code == "perf-permission"
    traffic.available.cache_clear()


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"proc/cpuinfo": SPR}, "one-node-no-traffic"),
        ({"proc/cpuinfo": "vendor_id : Unheard\n", **NODES}, "no-traffic-counter-known"),
    ],
)
def test_where_nothing_can_be_counted_perf_is_not_asked(tmp_path, files, code):
    with pytest.raises(NotHere) as why:
        traffic.Counting(make(tmp_path, files))
    assert why.value.reason.code == code


def test_bytes_per_query_are_what_left_the_nodes():
    def rows(*pairs):
        return [make_row(name, value, "1", "x") for name, value in pairs]

    found = traffic.per_query(rows(
        ("traffic_from_node", 1.5), ("traffic_from_node", 0.5), ("traffic_to_node", 9.0),
        ("queries_per_second", 15000.0), ("queries_per_second", 5000.0),
    ))  # fmt: skip
    assert [(row.metric, row.value, row.unit) for row in found] == [
        ("traffic_per_query", pytest.approx(100_000.0), "B")
    ]
    assert traffic.per_query(rows(("traffic_from_node", None), ("queries_per_second", 5.0))) == []
    assert traffic.per_query(rows(("traffic_from_node", 3.0))) == []


def test_remote_reads_are_a_rate_too():
    formulas = dict(event_files.groups_for("AuthenticAMD-25-11")[1].formulas)
    events = [{"name": name, "unit": "count", "value": value, "why": None,
               "running_percent": 100.0, "user_only": False}
              for name, value in (("local_dram", 3e9), ("remote_dram", 1e9))]  # fmt: skip
    rows = {row.metric: row for row in perf.metrics({"events": events}, formulas, seconds=8.0)}
    assert rows["remote_dram_rate"].value == pytest.approx(8.0)
    rows = {row.metric: row for row in perf.metrics({"events": events}, formulas)}
    assert str(rows["remote_dram_rate"].reason) == "seconds has no value"


def test_a_clock_without_a_unit_is_in_nanoseconds():
    new = '{"counter-value" : "2500000.000000", "unit" : "", "event" : "task-clock:u"}'
    assert perf.counts(new)["task-clock"].value == 2.5
    assert perf.counts("2500000;;task-clock;2500000;100.00;;")["task-clock"].value == 2.5
    old = '{"counter-value" : "2.500000", "unit" : "msec", "event" : "task-clock"}'
    assert perf.counts(old)["task-clock"].value == 2.5


def test_an_event_with_terms_is_found_again_without_its_modifier():
    said = '{"counter-value" : "7.0", "unit" : "", "event" : "cpu/event=0x43,umask=0x40/u"}'
    (count,) = perf.counts(said).values()
    assert (count.event, count.user_only) == ("cpu/event=0x43,umask=0x40/", True)


def test_resctrl_is_mounted_only_where_it_counts_between_nodes(tmp_path):
    flags = "flags : fpu cqm_mbm_total cqm_mbm_local\n"
    assert resctrl.worth_mounting(make(tmp_path / "a", {"proc/cpuinfo": flags, **NODES}))
    assert not resctrl.worth_mounting(make(tmp_path / "b", {"proc/cpuinfo": flags}))
    assert not resctrl.worth_mounting(make(tmp_path / "c", {"proc/cpuinfo": "flags : fpu\n"}))


def test_resctrl_tells_gigabytes_a_second_to_each_cache():
    record = {"mon_L3_00": {"mbm_total_bytes": [0, 9_000_000_000],
                            "mbm_local_bytes": [0, 1_000_000_000]}}  # fmt: skip
    rows = {row.metric: row for row in resctrl.metrics(record, 4.0)}
    assert rows["traffic_to_node"].value == 2.0 and rows["local_traffic"].value == 0.25
    assert rows["traffic_to_node"].unit == "GB/s" and rows["traffic_to_node"].point == "mon_L3_00"
