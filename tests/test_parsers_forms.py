"""Forms that some versions print and others do not, damage that must be seen, labels kept."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from corpus import fixture
from numalab import cli, logs
from numalab.agent import cpulist, drivers
from numalab.agent.errors import ParseError


def parse(tool: str, text: str) -> list[dict]:
    return logs.parser(tool)(text)


def of_kind(found: list[dict], kind: str, *keys: str) -> list[tuple]:
    return [tuple(r.get(key) for key in keys) for r in found if r["kind"] == kind]


def refused(tool: str, text: str, why: str) -> None:
    with pytest.raises(ParseError, match=why):
        parse(tool, text)


# perf

HEAD = " Performance counter stats for 'x':\n\n"
TAIL = "\n       1.001234567 seconds time elapsed\n"


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        ("5,012,345      task-clock", (5012345, "ns")),
        ("5,012,345      task-clock:u", (5012345, "ns")),
        ("5.012345      task-clock", (5.012345, "msec")),
        ("5,012.34 msec task-clock", (5012.34, "msec")),
        ("0      cpu-clock", (0, "ns")),
        ("7      page-faults", (7, "")),
    ],
)
def test_a_clock_without_a_unit_is_in_ns_when_it_is_whole(count, expected):
    found = parse("perf", f"{HEAD}  {count}\n{TAIL}")
    assert of_kind(found, "event", "value", "unit") == [expected]


def test_a_clock_without_a_unit_is_in_ns_in_the_other_forms_too():
    found = parse("perf", "5012345,,task-clock,5012345,100.00,0.9,CPUs utilized\n")
    assert of_kind(found, "event", "value", "unit") == [(5012345, "ns")]
    text = '{"counter-value" : "5012345.000000", "unit" : "", "event" : "task-clock", '
    found = parse("perf", text + '"event-runtime" : 5012345, "pcnt-running" : 100.00}\n')
    assert of_kind(found, "event", "value", "unit") == [(5012345, "ns")]


TOPDOWN = """12.5,msec,task-clock,12500000,100.00,0.9,CPUs utilized
4411,,cpu_atom/cycles/,9000000,42.00,1.2,GHz
<not counted>,,cpu_core/cycles/,0,0.00,,
,9000000,100.00,,,,TopdownL1 (cpu_atom)
,,,,,17.5,%  tma_bad_speculation
,8000000,57.00,,,24.0,%  tma_frontend_bound
,7000000,90.00,,,,TopdownL1 (cpu_core)
,,,,,61.0,%  tma_backend_bound
"""


def test_topdown_rows_of_csv_belong_to_their_type_of_core():
    found = parse("perf", TOPDOWN)
    assert of_kind(found, "metric", "name", "value", "group", "running_percent") == [
        ("tma_bad_speculation", 17.5, "TopdownL1 (cpu_atom)", None),
        ("tma_frontend_bound", 24.0, "TopdownL1 (cpu_atom)", 57.0),
        ("tma_backend_bound", 61.0, "TopdownL1 (cpu_core)", None),
    ]
    assert of_kind(found, "event", "event", "value")[1] == ("cpu_atom/cycles/", 4411)


def test_topdown_rows_with_a_time_a_socket_and_a_threshold():
    rows = TOPDOWN.replace("12.5,msec", "1.000100200,S0,8,12.5,msec").splitlines()
    rows = [rows[0], *(f"1.000100200,S0,8,{row}" for row in rows[1:])]
    found = parse("perf", "\n".join(rows) + ",bad\n")
    assert of_kind(found, "metric", "value", "aggregate", "cpus", "interval_s") == [
        (value, "S0", 8, 1.0001002) for value in (17.5, 24.0, 61.0)
    ]
    assert found[-1]["metric_threshold"] == "bad"


def test_topdown_groups_of_the_other_forms():
    text = """{"counter-value" : "9", "unit" : "", "event" : "cpu_core/cycles/", }
{"event-runtime" : 7000, "pcnt-running" : 90.00, "metricgroup" : "TopdownL1 (cpu_core)"}
{"metric-value" : "61.000000", "metric-unit" : "%  tma_backend_bound", }
"""
    group = ("tma_backend_bound", 61.0, "TopdownL1 (cpu_core)")
    assert of_kind(parse("perf", text), "metric", "name", "value", "group") == [group]
    text = f"""{HEAD}      4,411   cpu_core/cycles/   #  1.200 GHz
      TopdownL1 (cpu_core)   #     17.5 %  tma_bad_speculation
                             #     61.0 %  tma_backend_bound
{TAIL}"""
    found = of_kind(parse("perf", text), "metric", "name", "value", "group")
    assert found[-1] == group and found[0][2] == group[2]


@pytest.mark.parametrize(
    "row",
    [
        ",,,,,17.5", ",9000000,100.00,,,17.5,%  tma,4", ",9000000,100.00,,,1x.5,%  tma",
        ",,,17.5,,,%  tma", ",9000000,100.00,,,,",
    ],
)  # fmt: skip
def test_a_damaged_topdown_row_is_refused(row):
    refused("perf", TOPDOWN + row + "\n", "row|number|fields")


@pytest.mark.parametrize("form", ["text", "csv", "json"])
def test_appended_reports_keep_which_run_they_are_of(form):
    one = "# started on Mon Jan  5 10:11:12 2026\n\n" + {
        "text": HEAD + "  1,234   cycles\n" + TAIL,
        "csv": "1234,,cycles,99,100.00,,\n",
        "json": '{"counter-value" : "1234.000000", "unit" : "", "event" : "cycles"}\n',
    }[form]  # fmt: skip
    found = parse("perf", one + one.replace("234", "235"))
    assert of_kind(found, "event", "run", "value") == [(1, 1234), (2, 1235)]
    assert of_kind(found, "started", "run") == [(1,), (2,)]
    assert "run" not in parse("perf", one)[0]


def test_the_echo_of_the_command_and_the_version_of_perf_are_passed_over():
    text = "perf version 6.17.g0739473694c4\n/opt/perf stat -a -x , -e {cycles} -- sleep 1\n"
    found = parse(
        "perf", text + "1.001092774,22065603430,,cpu-clock,22065611881,100.00,22.0,CPUs\n"
    )
    assert of_kind(found, "event", "value", "unit") == [(22065603430, "ns")]


def test_reports_of_a_terminal_have_the_next_programs_output_between():
    one = HEAD + "  1,234   cycles\n" + TAIL
    found = parse("perf", one + "\nhello from the second program: 7\n\n" + one)
    assert of_kind(found, "event", "run") == [(1,), (2,)]
    refused("perf", one + "\n  1,2x4   cycles\n", "not a count")


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("12,345,678", "12,35,678"), ("12,345,678", "12,345678"), ("12,345,678", "12345,678"),
        ("12,345,678", "12345678"), ("12,345,678", "12.345,678"), ("12,345,678", "12,345,67"),
        ("(33.30%)", "(33.3%)"), ("0.52 ", "0.5.2 "), ("cycles ", "cycles 12 "),
    ],
)  # fmt: skip
def test_a_damaged_number_in_a_table_of_perf_is_refused(good, bad):
    text = f"""{HEAD}  12,345,678   cycles                 (33.30%)
   6,543,210   instructions   #  0.52  insn per cycle   (33.30%)
{TAIL}"""
    assert len(of_kind(parse("perf", text), "event")) == 2
    assert good in text
    refused("perf", text.replace(good, bad, 1), "perf stat")


def test_a_text_of_perf_without_its_last_lines_is_refused():
    whole = (
        f"{HEAD}  12,345   cycles\n{TAIL}\n 0.500000000 seconds user\n 0.010000000 seconds sys\n"
    )
    assert parse("perf", whole)
    rows = whole.rstrip("\n").split("\n")
    for cut in (-1, -4):
        refused("perf", "\n".join(rows[:cut]), "last lines")


# lscpu


def test_lists_with_a_stride():
    assert cpulist.parse("0-62:2") == list(range(0, 63, 2))
    assert cpulist.parse("0-7:2/4,9") == [0, 1, 4, 5, 9]
    found = parse(
        "lscpu",
        "CPU(s): 8\nOn-line CPU(s) list: 0-7\nNUMA node(s): 2\n"
        "NUMA node0 CPU(s): 0-6:2\nNUMA node1 CPU(s): 1-7:2\n",
    )
    assert of_kind(found, "node", "cpus") == [("0,2,4,6",), ("1,3,5,7",)]
    for wrong in ("0-6:0", "0-6:2:2", "0:2"):
        refused("lscpu", f"CPU(s): 8\nOn-line CPU(s) list: {wrong}\n", "list|stride")


def test_a_cache_of_unknown_size_has_no_size():
    text = "Architecture: aarch64\nCPU(s): 4\nOn-line CPU(s) list: 0-3\nL1d cache: unknown size\n"
    (cache,) = (r for r in parse("lscpu", text) if r["kind"] == "cache")
    assert cache["value"] is None and cache["reason"]


# What stands around an output

PROMPTS = (
    "host:~ # {}", "user@host:~> {}", "host% {}", "user@host ~ % {}", "host:/srv/a b # ", "➜  ~ {}",
    "❯ {}", "[user@host ~]$ {}", "root@host:~# {}", "bash-5.1# {}", "$ {}",
)  # fmt: skip


@pytest.mark.parametrize("prompt", PROMPTS[:4] + PROMPTS[5:])
@pytest.mark.parametrize("name", ["numactl-hardware.txt", "lscpu.txt", "sysbench-threads.txt"])
def test_prompts_of_other_shells_are_passed_over(prompt, name):
    tool = logs.detect(fixture(name))
    framed = prompt.format(tool) + "\n" + fixture(name) + prompt.format("") + "\n"
    assert parse(tool, framed) == parse(tool, fixture(name))


NODE = "numa_hit 3\nnuma_miss 0\nnuma_foreign 0\ninterleave_hit 1\nlocal_node 3\nother_node 0\n"


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        ("$ cat saved.txt", fixture("numactl-hardware.txt")),
        ("$ sudo cat /proc/812/numa_maps", "00400000 default anon=1 N0=1 kernelpagesize_kB=4\n"),
        ("# cat /sys/devices/system/node/node0/numastat", NODE),
    ],
)
def test_a_file_that_is_shown_by_cat_is_read(shown, text):
    tool = logs.detect(text)
    assert logs.detect(f"{shown}\n{text}") == tool
    assert len(parse(tool, f"{shown}\n{text}")) == len(parse(tool, text))


TIMES = (
    "\nreal\t0m12.345s\nuser\t1m2.003s\nsys\t0m0,120s\n",
    "\nreal 12.34\nuser 1.20\nsys 0.01\n",
    "./stream  62.01s user 0.12s system 512% cpu 12.345 total\n",
    "62.0u 0.1s 0:12.34 503.4% 0+0k 0+0io 0pf+0w\n",
    "62.01user 0.12system 0:12.34elapsed 503%CPU (0avgtext+0avgdata 20680maxresident)k\n"
    "0inputs+8outputs (0major+790minor)pagefaults 0swaps\n",
    '\tCommand being timed: "stream"\n\tUser time (seconds): 62.01\n'
    "\tElapsed (wall clock) time (h:mm:ss or m:ss): 0:12.34\n\tAverage total size (kbytes): 0\n"
    "\tMaximum resident set size (kbytes): 20680\n\tPage size (bytes): 4096\n\tExit status: 0\n",
)


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("name", ["numactl-hardware.txt", "lscpu.txt", "sysbench-threads.txt"])
def test_lines_of_time_are_passed_over(times, name):
    text = fixture(name)
    tool = logs.detect(text)
    assert parse(tool, text + times) == parse(tool, text)


# MLC

MLC = """Intel(R) Memory Latency Checker - v3.4
Command line parameters: {}

Using large pages
Measuring idle latencies (in ns)...
\tMemory node
 Socket\t     0\t     1\t
     0\t  71.4\t 122.8\t
     1\t 123.0\t  71.9\t

Measuring Loaded Latencies for the system
Using all the threads from each core if Hyper-threading is enabled
Inject\tLatency\tBandwidth
Delay\t(ns)\tMB/sec
==========================
{}
Measuring cache-to-cache transfer latency (in ns)...
Local Socket L2->L2 HIT  latency\t35.1
Local Socket L2->L2 HITM latency\t39.2
Remote Socket L2->L2 HITM latency (data address homed in writer socket)
\t\tReader Socket
Writer Socket\t     0\t     1\t
     0\t     -\t 101.1\t
     1\t 102.2\t     -\t
Remote Socket L2->L2 HITM latency (data address homed in reader socket)
\t\tReader Socket
Writer Socket\t     0\t     1\t
     0\t     -\t 103.1\t
     1\t 104.2\t     -\t
"""
DELAYS = (0, 2, 8, 15, 50, 100, 200, 300, 400, 500, 700, 1000, 1300, 1700, 2500, 3500, 5000, 9000,
          20000)  # fmt: skip
LOADED = "".join(f" {d:05d}\t{300 - n}.25\t{90000 - 4000 * n}.5\n" for n, d in enumerate(DELAYS))


def mlc_points(text: str) -> set[tuple[str, str]]:
    return {(row.metric, row.point) for row in drivers.driver("mlc").metrics(parse("mlc", text))}


def test_older_headings_of_mlc_and_its_large_pages():
    found = parse("mlc", MLC.format("", LOADED))
    matrix = of_kind(found, "idle_latency", "from", "to", "value")
    assert matrix == [(0, 0, 71.4), (0, 1, 122.8), (1, 0, 123.0), (1, 1, 71.9)]
    pairs = of_kind(found, "cache_latency", "writer", "reader", "value")
    assert (0, 1, 101.1) in pairs and (1, 1, None) in pairs
    assert of_kind(found, "pages", "text") == [("Using large pages",)]


@pytest.mark.parametrize(
    ("words", "pair", "loaded"),
    [
        ("", "0-1 sequential", "reads delay=8 sequential"),
        ("-r", "0-1 random", "reads delay=8 random"),
        ("-W5", "0-1 sequential", "W5 delay=8 sequential"),
        ("-r -W2", "0-1 random", "W2 delay=8 random"),
    ],
)
def test_access_and_traffic_are_part_of_what_mlc_measured(words, pair, loaded):
    text = MLC.format(words, LOADED)
    found = mlc_points(text)
    assert ("idle_latency", f"{pair} large pages") in found
    assert ("loaded_latency", f"{loaded} large pages") in found
    plain = mlc_points(text.replace("Using large pages\n", ""))
    assert ("idle_latency", pair) in plain and ("loaded_latency", loaded) in plain
    warning = "*** So, enabling random access for latency measurements\n"
    warned = text.replace("Measuring idle", warning + "Measuring idle")
    assert ("idle_latency", "0-1 random large pages") in mlc_points(warned)


def test_the_mix_of_a_matrix_of_bandwidths_is_in_its_points():
    text = """Intel(R) Memory Latency Checker - v3.9
Measuring Memory Bandwidths between nodes within system
Using {} traffic type
\t\tNuma node
Numa node\t     0\t
       0\t99000.1\t
"""
    for said, mix in (("Read-only", "reads"), ("2:1 Read-Write", "2:1"), ("All NT writes", None)):
        ((_, point),) = mlc_points(text.format(said))
        assert point == f"0-0 {mix or said}"


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (" 122.8\t", " 12 2.8\t"), (" 122.8\t", " 1228\t"), ("  71.9\t", "  71.\t"),
        ("     1\t 123.0\t  71.9\t\n", ""), (" 00300\t", " 0300\t"), (" 00300\t", " 00003\t"),
        (" 20000\t282.25\t18000.5\n", ""), ("293.25", "293.2"), ("  71.4\t", "  7l.4\t"),
        ("     1\t 102.2\t     -\t\n", ""),
    ],
)  # fmt: skip
def test_damage_in_a_table_of_mlc_is_refused(good, bad):
    text = MLC.format("", LOADED)
    assert good in text
    if good.startswith("     1\t 123.0"):  # the same would be said of a node without CPUs
        text = text[: text.index("\nMeasuring Loaded")]
    refused("mlc", text.replace(good, bad, 1), "mlc")


def test_a_single_delay_that_was_asked_for_is_no_cut_table():
    text = MLC.format("--loaded_latency -d0", LOADED[: LOADED.index("\n") + 1])
    assert len(of_kind(parse("mlc", text), "loaded_latency")) == 1
    refused("mlc", MLC.format("", LOADED[: LOADED.index("\n") + 1]), "ends at 0: cut short")


def test_matrices_of_one_run_have_the_same_rows():
    half = "\n".join(MLC.format("", LOADED).split("\n")[:8])
    second = half[half.index("Measuring idle") :].replace(
        "idle latencies (in ns)...", "Memory Bandwidths between nodes within system"
    )
    with_row = half + "\n     1\t 123.0\t  71.9\t\n" + second
    refused("mlc", with_row + "\n", "not those of the table above")
    assert parse("mlc", half + "\n" + second + "\n")  # both lack node 1: it has no CPUs
    refused("mlc", half + "\n", "no row of node 1")


# STREAM

FORTRAN = """----------------------------------------------
 Double precision appears to have 16 digits of accuracy
 Assuming 8 bytes per DOUBLE PRECISION word
----------------------------------------------
 ----------------------------------------------
 STREAM Version $Revision: 5.6 $
 ----------------------------------------------
 Array size =   30000000
 Offset     =          0
 The total memory requirement is     686 MB
 You are running each test  10 times
 --
 The *best* time for each test is used
 *EXCLUDING* the first and last iterations
 ----------------------------------------------
 Number of Threads =           12
 ----------------------------------------------
 Printing one line per active thread....
 ----------------------------------------------------
 Your clock granularity appears to be less than one microsecond
 Your clock granularity/precision appears to be      1 microseconds
 ----------------------------------------------------
Function     Rate (MB/s)  Avg time   Min time  Max time
Copy:      41000.1234      0.0118      0.0117      0.0120
Scale:     41100.5000      0.0118      0.0117      0.0121
Add:       **********      0.0071      0.0070      0.0073
Triad:     45000.2500      0.0161      0.0160      0.0164
 ----------------------------------------------------
 Solution Validates!
 ----------------------------------------------------
"""


def test_stream_of_fortran():
    assert logs.detect(FORTRAN) == "stream"
    found = parse("stream", FORTRAN)
    (setup,) = (r for r in found if r["kind"] == "setup")
    assert (setup["array_bytes"], setup["threads_requested"]) == (240_000_000, 12)
    assert of_kind(found, "version", "text") == [("5.6",)]
    rows = {row.metric: row for row in drivers.driver("stream").metrics(found)}
    assert rows["triad"].value == pytest.approx(45.00025)
    assert rows["add"].value is None and "too narrow" in str(rows["add"].reason)
    failed = FORTRAN.replace(
        " Solution Validates!",
        " Failed Validation on array a()\n Target   Sum of a is =    1.2D+15\n"
        " Computed Sum of a is =    1.1D+15",
    )
    assert of_kind(parse("stream", failed), "validation", "value") == [(False,)]


def test_runs_of_stream_that_were_appended_are_told_apart():
    second = FORTRAN.replace("45000.2500", "46000.2500")
    for one in (FORTRAN, FORTRAN[FORTRAN.index(" STREAM") :]):
        found = parse("stream", one + "\nreal\t0m1.2s\n" + second)
        triads = [r for r in found if r.get("name") == "triad"]
        assert [(r["run"], r["value"]) for r in triads] == [(1, 45000.25), (2, 46000.25)]
    rows = [r for r in drivers.driver("stream").metrics(found) if r.metric == "triad"]
    assert [(r.point, r.value) for r in rows] == [
        ("run 1", pytest.approx(45.00025)), ("run 2", pytest.approx(46.00025)),
    ]  # fmt: skip
    assert {r.point for r in drivers.driver("stream").metrics(parse("stream", FORTRAN))} == {""}
    cut = second[: second.index(" Solution")]
    wrong = drivers.driver("stream").metrics(parse("stream", FORTRAN + cut))
    assert [r.value is None for r in wrong if r.metric == "triad"] == [False, True]
    refused("stream", FORTRAN + second[: second.index("Triad")], "not complete")


def test_what_a_script_prints_above_a_run_of_stream_is_passed_over():
    text = "Mon Jan  5 cd /opt/stream\nIteration: 1\n" + FORTRAN
    assert parse("stream", text) == parse("stream", FORTRAN)
    assert len(parse("stream", text + "Iteration: 2\n" + FORTRAN)) == 14
    refused("stream", FORTRAN + "Iteration: 2\n", "not a line of STREAM")


# numastat

PROCESS = """
Per-node process memory usage (in MBs) for PID 4711 (postgres)
                           Node 0          Node 1           Total
                  --------------- --------------- ---------------
Huge                         0.00            0.00            0.00
Heap                        12.34            1.16           13.50
Stack                        0.05            0.01            0.06
Private                    100.20           50.10          150.30
----------------  --------------- --------------- ---------------
Total                      112.59           51.27          163.86
"""


def test_totals_of_numastat_add_up():
    assert len(parse("numastat", PROCESS)) == 15
    for good, bad in (("112.59", "12.59"), ("1.16", "1.61"), ("163.86", "183.86")):
        refused("numastat", PROCESS.replace(good, bad), "not the sum")
    system = fixture("numastat-m.txt")
    assert parse("numastat", system)
    (used,) = (line for line in system.splitlines() if line.startswith("MemUsed"))
    words = used.split()
    other = used.replace(words[1], f"{float(words[1]) + 7:.2f}").replace(
        words[-1], f"{float(words[-1]) + 7:.2f}"
    )
    refused("numastat", system.replace(used, other), "MemTotal of node .* is not the sum")


def test_numastat_without_its_title_is_told_what_is_missing():
    refused("numastat", PROCESS.split("\n", 2)[2], "title above this table is missing")


# sysbench


@pytest.mark.parametrize(
    "what", ["total number of events:", "transferred (", "min:", "events (avg/stddev):"]
)
def test_results_of_sysbench_that_do_not_add_up_are_refused(what):
    text = fixture("sysbench-memory.txt")
    (row,) = (line for line in text.splitlines() if what in line)
    at = row.index(":" if ":" in what else "(") + 1
    digit = re.search(r"\d", row[at:])
    damaged = row[: at + digit.start()] + "9" + row[at + digit.start() :]  # a digit too many
    refused("sysbench", text.replace(row, damaged), "final report is damaged")


def test_queries_of_sysbench_add_up():
    text = """sysbench 1.0.20 (using system LuaJIT 2.1.0-beta3)

SQL statistics:
    queries performed:
        read:                            140
        write:                           40
        other:                           20
        total:                           200
    transactions:                        10     (5.00 per sec.)
    queries:                             200    (100.00 per sec.)

General statistics:
    total time:                          2.0000s
    total number of events:              10

Latency (ms):
         min:                                    1.00
         avg:                                    2.00
         max:                                    3.00
"""
    assert parse("sysbench", text)
    for good, bad in (("  140", "  141"), ("  10 ", "  70 "), ("2.0000s", "9.0000s")):
        refused("sysbench", text.replace(good, bad, 1), "final report is damaged")


@pytest.mark.parametrize(
    "version, rate, read",
    [
        ("1.0.20", 10 / 2.00, True),
        ("1.0.20", 10 / 2.09, True),  # held up for 90 ms between its two readings of the clock
        ("1.0.20", 10 / 2.95, True),
        ("1.0.20", 10 / 3.20, False),  # so long is a damaged number
        ("1.0.20", 10 / 1.90, False),  # the rate's reading is the later one
        ("0.5", 10 / 1.90, True),  # its clocks began apart, too
        ("0.5", 10 / 0.90, False),
    ],
)
def test_rates_of_sysbench_are_by_another_reading_of_the_clock(version, rate, read):
    text = f"""sysbench {version}: multi-threaded system evaluation benchmark

General statistics:
    total time:                          2.0000s
    total number of events:              10
    transactions:                        10     ({rate:.2f} per sec.)

Latency (ms):
         min:                                    1.00
         avg:                                    2.00
         max:                                    3.00
"""
    if read:
        assert parse("sysbench", text)
    else:
        refused("sysbench", text, "final report is damaged")


def test_runs_of_sysbench_that_were_appended_are_told_apart():
    one = fixture("sysbench-memory.txt").replace(
        "Threads started!", "Threads started!\n\n[ 1s ] 512.25 MiB/sec"
    )
    found = parse("sysbench", one + "\n16 threads:\n" + one)
    assert {r["run"] for r in found} == {1, 2}
    driver = drivers.driver("sysbench")
    rows, alone = driver.metrics(found), driver.metrics(parse("sysbench", one))
    assert [(r.point, r.value) for r in rows] == [
        (f"run {run}", r.value) for run in (1, 2) for r in alone
    ]
    assert {sample.point for sample in driver.samples(found)} == {"run 1", "run 2"}


def test_of_appended_runs_one_without_its_last_line_keeps_all_of_its_own():
    """Nothing of a run that was cut may be taken for a script's words, or for the next run's."""
    whole = fixture("sysbench-memory.txt")
    begun = whole[: whole.index("Threads started!")] + "Threads started!\n[ 1s ] 512.25 MiB/sec\n"
    found = parse("sysbench", begun + whole)
    assert of_kind(found, "incomplete", "run") == [(1,)]
    assert of_kind(found, "report", "run") == [(1,)]
    assert of_kind(found, "version", "run") == [(1,), (2,)]
    refused("sysbench", begun + "16 threads:\n" + whole, "not a line of sysbench")
    for last in ("Copy:", "Triad:"):
        refused("stream", FORTRAN[: FORTRAN.index(last)] + FORTRAN, "second time")
    unchecked = FORTRAN[: FORTRAN.index(" Solution")]
    assert of_kind(parse("stream", unchecked + FORTRAN), "validation", "run", "value") == [
        (1, None), (2, True),
    ]  # fmt: skip


# numa_maps

MAPS = """00400000 default file=/opt/db/bin/server mapped=3 N0=3 kernelpagesize_kB=4
7f0000000000 bind:0 anon=8 dirty=8 N0=8 kernelpagesize_kB=4
7f1000000000 default file=/opt/db/lib/libaio.so.1 mapped=2 N1=2 kernelpagesize_kB=4
7f1000010000 default file=/opt/db/lib/libaio.so.1
"""


def test_a_line_of_numa_maps_that_is_cut_in_its_path_is_refused():
    assert len(of_kind(parse("numa_maps", MAPS), "mapping")) == 4
    refused("numa_maps", MAPS[:-4], "cut within its path")  # by the end of the text
    refused("numa_maps", MAPS.replace("libaio.so.1\n", "liba\n"), "cut within its path")
    cut = MAPS.replace("libaio.so.1 mapped=2 N1=2 kernelpagesize_kB=4", "libaio")
    refused("numa_maps", cut, "cut within its path")
    deleted = MAPS.replace("libaio.so.1 mapped", "libaio.so.1\\040(deleted) mapped")
    assert parse("numa_maps", deleted)


def test_parse_names_the_parser_that_was_meant_and_the_file_that_is_missing(tmp_path):
    said = CliRunner().invoke(cli.app, ["parse", "lscpuu", "x"])
    assert "did you mean lscpu?" in str(said.exception)
    missing = CliRunner().invoke(cli.app, ["parse", "lscpu", str(tmp_path / "none")])
    assert "is not a file that can be read" in str(missing.exception)
