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

from cells import cell
from numalab.agent import collectors, kernel
from numalab.agent.collectors import (
    cpu,
    event_files,
    meminfo,
    numastat,
    perf,
    resctrl,
    sampler,
    vmstat,
)
from numalab.agent.collectors.snapshots import pairs
from numalab.agent.contract import CollectorRequest, Row, to_json
from numalab.agent.errors import Fault, NotHere
from numalab.agent.rows import row as make_row

CELL = cell()
FORMULAS = event_files.groups_for(None)[0].formulas
PERF, NO_PERF = CollectorRequest(interval_s=0), CollectorRequest(perf=False, interval_s=0)
BUSY = "import time\nend = time.monotonic() + 30\nwhile time.monotonic() < end: bytearray(1 << 20)"


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
    while kernel.processes()[pid].ticks - began < seconds * hz:
        time.sleep(0.02)


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
        ("numastat", "meminfo", "cpu", "perf", "resctrl"), "not-collected"
    )


@pytest.mark.parametrize(
    "damage",
    [{"vmstat": {"pgfault": ["a", 3]}}, {"perf": {"events": [{}]}}, {"numastat": 5},
     {"cpu": {}}, {"reasons": None}, {"resctrl": {"d": []}}],
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
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        time.sleep(0.05)
        if any(row.value == 700 << 10 for row in collection._sampler._samples):
            break
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
    monkeypatch.setattr(perf.Counting, "_wait_until_attached", attached)
    assert "did not end" in why_no_perf(busy)
    patience = time.monotonic() + 5  # a killed process takes a moment to leave the table
    while running(forever) and time.monotonic() < patience:
        time.sleep(0.05)
    assert not running(forever)


@pytest.mark.parametrize("hardware", [False, True])
def test_without_software_events_perf_counts_what_only_the_processor_knows(
    fake_perf, monkeypatch, tmp_path, busy, hardware
):
    said = "5000;;instructions;900;100.00;;" if hardware else "<not supported>;;instructions;0;0;;"
    fake_perf(
        f'case "$*" in *\' -p \'*) echo "$*" >> {tmp_path}/attached; sleep 0.3;; esac\n'
        f"echo '1.0;msec;task-clock;1000;100.00;;' >&2; echo '{said}' >&2\n"
    )
    monkeypatch.setattr(perf.Counting, "_wait_until_attached", lambda *_: None)
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
    collection = collectors.start(CELL, busy, PERF)
    let_work(busy, 0.2)
    record = collection.stop()
    rows = rows_of(record, "perf")
    assert 190 < rows["task_clock", ""].value < 1100 * record["cpu"]["elapsed_s"]
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
        ("GenuineIntel-6-8F", "intel_skylake"),
        ("GenuineIntel-6-AF", "intel_sierraforest"),
        ("AuthenticAMD-23-1", "amd_zen1"),
        ("AuthenticAMD-23-31", "amd_zen1"),
        ("AuthenticAMD-25-1", "amd_zen3"),
        ("AuthenticAMD-25-11", "amd_zen4"),
        ("AuthenticAMD-25-A0", "amd_zen4"),
        ("AuthenticAMD-26-2", "amd_zen4"),
        ("0x41-0xd0c", "arm_neoverse"),
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


@pytest.mark.parametrize("processor", [None, "GenuineIntel-6-9E", "0x48-0xd01", "Loongson"])
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
        assert group.processors and own and group.notes
        assert group.name == "any" or not own & portable
        values = dict.fromkeys(own | portable, 2.0)
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
    with pytest.raises(Fault):
        event_files.evaluate(formula, {"a": 1.0})


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


def traffic(local, remote):
    return {"local_dram": local, "remote_dram": remote}


def test_an_event_that_tells_local_from_remote_is_usable():
    judged = perf.calibrate(traffic(1_000_000, 10_000), traffic(20_000, 980_000))
    assert judged["usable"] is True and judged["reason"] is None
    assert judged["under_remote"] == pytest.approx(0.98)


@pytest.mark.parametrize(
    "local, remote, why",
    [
        (traffic(500_000, 500_000), traffic(0, 1_000_000), "50% of known-local"),
        (traffic(1_000_000, 0), traffic(1_000_000, 0), "only 0% of known-remote"),
        (traffic(None, 5), traffic(0, 1_000_000), "no counts under known-local"),
        (traffic(1_000_000, 0), traffic(3, 5), "only 8 counts under known-remote"),
    ],
)
def test_one_that_does_not_is_unusable_and_says_why(local, remote, why):
    judged = perf.calibrate(local, remote)
    assert judged["usable"] is False and why in str(judged["reason"])


COUNT = st.floats(0, 1e15)


@given(COUNT, COUNT, COUNT, COUNT)
def test_calibration_needs_both_shares(a, b, c, d):
    judged = perf.calibrate(traffic(a, b), traffic(c, d))
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
