"""The drivers of sysbench, STREAM and MLC: options, command lines, and a real short run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

import topologies
import waiting
from cells import cell
from corpus import fixture
from numalab import logs
from numalab.agent import drivers
from numalab.agent.contract import SAMPLED, Cache, Driver, Timing, ToolRecord
from numalab.agent.drivers.options import caches
from numalab.agent.errors import Fault, ParseError

HOST = replace(
    topologies.topology(nodes=1, cores=4),
    caches=(
        Cache(1, "Data", 32 << 10, "0-1"),
        Cache(3, "Unified", 8 << 20, "0-1"),
        Cache(3, "Unified", 8 << 20, "2-3"),
    ),
)
CELL = cell("0-1", id="local:0")


def program(path, body: str) -> str:
    path.write_text(f"#!{sys.executable}\n{body}\n")
    path.chmod(0o755)
    return str(path)


def prepared(name: str, **options) -> dict:
    return drivers.driver(name).prepare(options, HOST, "0-1", "0").options


def found(name: str, **facts) -> ToolRecord:
    return ToolRecord(name, path="/s", facts=facts)


# sysbench


def test_sysbench_command_line_resets_the_counters_after_the_warm_up():
    driver = drivers.driver("sysbench")
    options = prepared("sysbench", test="cpu", threads="all", time_s=5, warmup_s=2, seed=9)
    assert options["threads"] == 2
    old = driver.argv(found("sysbench", warmup_option=False), options, CELL)
    assert old[:3] == ["/s", "cpu", "--threads=2"] and old[-1] == "run"
    assert {"--time=7", "--report-checkpoints=2", "--rand-seed=9", "--rand-type=uniform",
            "--events=0", "--cpu-max-prime=10000", "--histogram=on"} <= set(old)  # fmt: skip
    new = driver.argv(found("sysbench", warmup_option=True), options, CELL)
    assert {"--time=5", "--warmup-time=2"} <= set(new)
    assert not any("checkpoint" in word for word in new)
    assert driver.timing(options) == Timing(setup_s=0.2, warmup_s=2.0, measure_s=5.0)


@pytest.mark.parametrize(
    "options",
    [
        {"test": "disk"},
        {"seed": 0},
        {"threads": 0},
        {"threads": True},
        {"time_s": 1.5},
        {"warmup_s": -1},
        {"cpu_max_prime": "1 --x"},
        {"cpu_max_prime": "many"},
        {"thread_locks": 8},
        {"colour": "red"},
        {"test": "memory", "memory_block_size": "1X"},
    ],
)
def test_sysbench_refuses_bad_options(options):
    with pytest.raises(Fault):
        prepared("sysbench", **options)


def test_sysbench_says_that_it_measures_nothing_of_other_tools():
    with pytest.raises(Fault, match="sysbench does not measure 'stream'. its tests are cpu, mem"):
        prepared("sysbench", mode="stream", array="4x-llc")


def test_sysbench_memory_needs_its_blocks():
    plan = drivers.driver("sysbench").prepare(
        {"test": "memory", "memory_block_size": "64M", "threads": 4}, HOST, "0-3", "0"
    )
    assert plan.need_bytes >= 4 * 64 * 2**20


@pytest.mark.skipif(not shutil.which("sysbench"), reason="sysbench is not on PATH")
@pytest.mark.parametrize("test", ["cpu", "memory", "threads"])
def test_sysbench_really_runs(test):
    driver = drivers.driver("sysbench")
    tool = driver.find({})
    assert tool.version.startswith("1.")
    options = prepared("sysbench", test=test, threads=1, time_s=1, warmup_s=1)
    line = driver.argv(tool, options, CELL)
    for _ in range(3):  # on an overloaded host sysbench may miss the end of the warm-up
        done = subprocess.run(line, capture_output=True, text=True, timeout=waiting.SILENT_S)
        assert done.returncode == 0
        records = driver.parse(done.stdout)
        metrics = {m.metric: m for m in driver.metrics(records)}
        if metrics["events_per_second"].reason is None:
            break
    for name in ("events_per_second", "latency_p50", "latency_p99", "latency_max"):
        assert metrics[name].value >= 0 and metrics[name].reason is None
    assert metrics["events_per_second"].value > 0
    assert metrics["latency_p50"].value <= metrics["latency_p99"].value
    if test == "memory":
        assert metrics["transfer_rate"].unit == "MiB/s"
    began = max(r["checkpoint_s"] for r in records if "checkpoint_s" in r)
    assert all(sample.t_s > began for sample in driver.samples(records))


def test_sysbench_missing_or_too_old(tmp_path):
    driver = drivers.driver("sysbench")
    with pytest.raises(Fault, match="not on PATH"):
        driver.find({"path": str(tmp_path / "none")})
    with pytest.raises(Fault, match="too old"):
        driver.find({"path": program(tmp_path / "old", "print('sysbench 0.5')")})
    with pytest.raises(Fault, match="does not say"):
        driver.find({"path": program(tmp_path / "other", "print('hello')")})


def test_sysbench_incomplete_run_has_no_value():
    text = fixture("sysbench-cpu.txt")
    driver = drivers.driver("sysbench")
    records = driver.parse(text[: text.index("Latency histogram")])
    assert records[-1]["kind"] == "incomplete"
    assert all(m.value is None and m.reason for m in driver.metrics(records))


def test_sysbench_that_missed_the_end_of_the_warm_up_has_no_value():
    text = fixture("sysbench-cpu.txt")
    began, ended = text.index("[ 1s ] Checkpoint"), text.index("[ 1s ] thds")
    metrics = drivers.driver("sysbench").metrics(
        drivers.driver("sysbench").parse(text[:began] + text[ended:])
    )
    assert all(m.value is None and m.reason.code == "checkpoint-missed" for m in metrics)


def test_sysbench_may_report_an_interval_in_the_midst_of_the_checkpoint():
    driver = drivers.driver("sysbench")
    text = fixture("sysbench-cpu.txt")
    wanted = driver.metrics(driver.parse(text))
    assert all(m.reason is None for m in wanted)
    began, ended = text.index("[ 1s ] Checkpoint"), text.index("[ 1s ] thds")
    checkpoint = text[began:ended].splitlines(keepends=True)
    line, _, rest = text[ended:].partition("\n")
    for at in range(1, len(checkpoint)):
        mixed = [*checkpoint[:at], line + "\n", *checkpoint[at:]]
        records = driver.parse(text[:began] + "".join(mixed) + rest)
        assert driver.metrics(records) == wanted
        assert len(driver.samples(records)) == len(driver.samples(driver.parse(text)))


# STREAM


def test_stream_is_told_from_other_programs_of_that_name(tmp_path, monkeypatch):
    driver = drivers.driver("stream")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Fault, match="not on PATH"):
        driver.find({})
    path = program(tmp_path / "stream", "print('I convert pictures')")
    with pytest.raises(Fault):
        driver.find({})
    with pytest.raises(Fault, match="not a STREAM"):
        driver.find({"path": path})
    program(tmp_path / "stream", "print('STREAM version $Revision: 5.10 $')")
    assert driver.find({}).path == os.path.abspath(path)


def test_stream_threads_environment_and_the_size_rule():
    driver = drivers.driver("stream")
    plan = driver.prepare({}, HOST, "0-1", "0")
    assert plan.options["cache_bytes"] == 8 << 20  # of the one L3 that CPUs 0-1 use
    assert plan.need_bytes == 3 * 4 * (8 << 20)
    bound = driver.environment(plan.options, CELL)
    assert bound["OMP_NUM_THREADS"] == "2" and bound["OMP_PLACES"] == "threads"
    free = driver.environment(plan.options, cell(None))
    assert free["OMP_PROC_BIND"] == "false" and "OMP_PLACES" not in free
    assert caches(HOST, "1-2").last == 16 << 20
    assert caches(replace(HOST, caches=()), "0").last is None
    setup = {"kind": "setup", "array_bytes": 80_000_000}
    valid = {"kind": "validation", "value": True}
    assert driver.doubts([setup, valid], {"cache_bytes": 20_000_000}) == []
    (doubt,) = driver.doubts([setup, valid], {"cache_bytes": 21_000_000})
    assert doubt.code == "below-four-caches" and "3.8×" in str(doubt)
    (doubt,) = driver.doubts([setup, valid], {"cache_bytes": 1 << 20, "cache_hidden": True})
    assert doubt.code == "below-hidden-cache" and "compiled into" in str(doubt)
    (doubt,) = driver.doubts([setup, valid], {})
    assert doubt.code == "llc-unknown" and "unknown" in str(doubt)
    failed = {"kind": "validation", "value": False, "text": "Failed Validation on array a[]"}
    (doubt,) = driver.doubts([setup, failed], {"cache_bytes": 20_000_000})
    assert doubt.code == "not-validated" and "array a[]" in str(doubt)
    for bad in ({"threads": 0}, {"size": 3}):
        with pytest.raises(Fault):
            driver.prepare(bad, HOST, "0-1", "0")


# MLC


def test_mlc_leaves_the_prefetchers_alone(tmp_path):
    driver = drivers.driver("mlc")
    path = program(tmp_path / "mlc", "print('Intel(R) Memory Latency Checker - v3.11b')")
    tool = driver.find({"path": path})
    assert tool == ToolRecord("mlc", "3.11b", path)
    for test in ("latency_matrix", "bandwidth_matrix", "peak_injection_bandwidth",
                 "loaded_latency", "c2c_latency"):  # fmt: skip
        line = driver.argv(tool, prepared("mlc", test=test), CELL)
        assert line[1] == f"--{test}" and "-e" in line
        assert ("-r" in line) == (test in ("latency_matrix", "loaded_latency"))
    with pytest.raises(Fault, match="'nothing' is not known"):
        prepared("mlc", test="nothing")
    with pytest.raises(Fault, match="no option"):
        prepared("mlc", colour="red")
    with pytest.raises(Fault, match="not on PATH|not an executable"):
        driver.find({"path": str(tmp_path / "none")})
    with pytest.raises(Fault, match="does not say"):
        driver.find({"path": program(tmp_path / "fake", "print('x')")})


SERVED = ("mysql_server", "service")


@pytest.mark.parametrize("name", [n for n in drivers.MEASURING if n not in SERVED])
def test_every_driver_is_what_the_engine_calls(name):
    driver = drivers.driver(name)
    assert isinstance(driver, Driver) and driver.name == name
    assert driver is drivers.driver(name)
    assert driver.protocol == (SAMPLED if name not in ("probe", "allocation") else "handshake")
    for method in ("find", "prepare", "argv", "timing", "parse", "metrics"):
        if (name, method) != ("allocation", "timing"):  # it says the time where it prepares
            assert getattr(type(driver), method) is not getattr(Driver, method)


def test_an_unknown_tool_is_refused_with_the_known_names():
    with pytest.raises(Fault, match="no measuring tool named 'lscpu'.*sysbench"):
        drivers.driver("lscpu")


@pytest.mark.parametrize(
    ("mode", "test"),
    [
        ("latency", "latency_matrix"),
        ("bandwidth", "bandwidth_matrix"),
        ("loaded", "loaded_latency"),
    ],
)
def test_mlc_answers_to_what_the_probe_is_asked(mode, test):
    driver = drivers.driver("mlc")
    asked = {"mode": mode, "bytes": "4x-llc", "seconds": 2, "pages": "auto", "delays": [0]}
    ready = driver.prepare(asked, HOST, "0-1", "0").options
    assert ready == {"test": test, "random": True}
    with pytest.raises(Fault, match="cannot measure 'stream'"):
        driver.prepare({"mode": "stream"}, HOST, "0-1", "0")


_CHECKPOINT = """[ 4s ] Checkpoint report:
SQL statistics:
    queries performed:
        read:                            1182
        write:                           0
        other:                           0
        total:                           1182
    transactions:                        1182   (292.52 per sec.)
    queries:                             1182   (292.52 per sec.)
    ignored errors:                      0      (0.00 per sec.)
    reconnects:                          0      (0.00 per sec.)

General statistics:
    total time:                          4.0106s
    total number of events:              1182

Latency (ms):
         min:                                   24.81
         avg:                                 1451.35
         max:                                 2552.01
         95th percentile:                     2449.36
         sum:                              1725651.59

Threads fairness:
    events (avg/stddev):           594.5000/3.50
    execution time (avg/stddev):   862.8258/3.62
""".splitlines()
_REPORT = [
    "[ 4s ] thds: 2 tps: 337.50 qps: 337.50 (r/w/o: 337.50/0.00/0.00) lat (ms,95%): 2493.86 "
    "err/s: 0.00 reconn/s: 0.00",
    "[ 4s ] queue length: 2036, concurrency: 2",
]


@pytest.mark.parametrize("queue", range(len(_CHECKPOINT) + 1))
@pytest.mark.parametrize("report", [0, 1, 2])
def test_a_report_and_its_queue_stand_anywhere_about_a_checkpoint(report, queue):
    """Two threads print: under a fixed load (--rate) a report has two lines."""
    lines = list(_CHECKPOINT)
    lines.insert(queue, _REPORT[1])
    lines.insert(min(report, queue), _REPORT[0])
    head = ["sysbench 1.0.20 (using system LuaJIT 2.1.0-beta3)", "", "Threads started!", ""]
    records = drivers.driver("sysbench").parse("\n".join([*head, *lines, ""]))
    (seen,) = [record for record in records if record["kind"] == "report"]
    assert (seen["qps"], seen["queue_length"], seen["concurrency"]) == (337.5, 2036, 2)
    warm = {r["name"]: r["value"] for r in records if r["kind"] == "result" and "checkpoint_s" in r}
    assert warm["queries"] == 1182


# The host's witnesses


def witnessed(numactl=None, lscpu=None) -> str:
    outputs = {"numactl": numactl, "lscpu": lscpu}
    return "".join(f"# output of {name}\n{text}" for name, text in outputs.items() if text)


@pytest.mark.parametrize(
    ("numactl", "lscpu"),
    [("numactl-hardware.txt", "lscpu.txt"), (None, "lscpu.txt"), ("numactl-hardware.txt", None)],
)
def test_the_witnesses_say_what_the_full_parsers_read(numactl, lscpu):
    driver = drivers.driver("host")
    text = witnessed(numactl and fixture(numactl), lscpu and fixture(lscpu))
    records = driver.parse(text)
    assert {record["witness"] for record in records} == {
        name for name, given in (("numactl", numactl), ("lscpu", lscpu)) if given
    }
    if numactl:
        kinds = ("node_cpus", "node_size", "node_free", "distance")
        keys = ("kind", "node", "from", "to")

        def keyed(found):
            return {
                tuple(r.get(key) for key in keys): r.get("cpus", r.get("value"))
                for r in found
                if r["kind"] in kinds and r.get("witness", "numactl") == "numactl"
            }

        assert keyed(records) == keyed(logs.parser("numactl")(fixture(numactl)))
        rows = {(row.metric, row.point): row.value for row in driver.metrics(records)}
        assert rows["distance", "0-0"] == 10 and rows["node_size", "0"] > 0
    else:
        assert driver.metrics(records) == []
        assert [r["cpus"] for r in records if r["kind"] == "node_cpus"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("available: 1 nodes (0)\n", 1),
        ("# output of cat\n", 1),
        (witnessed(numactl="node 0 cpus: 0 1\nnode 0 sighs: 5 MB\n"), 3),
        (witnessed(numactl="node   0   1\n  0:  10\n"), 3),
        (witnessed(lscpu="Architecture\n"), 2),
    ],
)
def test_a_witness_that_is_not_understood_names_the_line(text, line):
    with pytest.raises(ParseError) as caught:
        drivers.driver("host").parse(text)
    assert caught.value.line_number == line


def test_numactl_may_compress_its_lists_and_know_no_size():
    text = witnessed(numactl="node 0 cpus: 0-2, 8 (4)\nnode 0 size: <not available>\n")
    cpus, size = drivers.driver("host").parse(text)
    assert cpus["cpus"] == "0-2,8" and size["value"] is None
    (row,) = drivers.driver("host").metrics([size])
    assert row.value is None and row.reason.code == "numactl-gives-none"
