"""Parsers on generated and on damaged input: the records back, or a clear ParseError."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpus import FIXTURES, corpus, fixture
from numalab import logs
from numalab.agent import cpulist
from numalab.agent.drivers import sysbench
from numalab.agent.errors import ParseError

FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
BRIEF = settings(FEW, max_examples=15)


# What a value is of, and what a shorter text may say that the whole one does not.
OF = (
    "kind", "name", "event", "node", "from", "to", "delay", "traffic", "writer", "reader", "homed",
    "aggregate", "interval_s", "t_s", "address", "pid", "label", "cpu", "point",
)  # fmt: skip
ONLY_CUT = ("validation", "setup", "note", "script_output")


def outcome(tool: str, text: str) -> list[dict] | None:
    """Return the records, or None for a ParseError; any other exception fails the test."""
    try:
        records = logs.parser(tool)(text)
    except ParseError as error:
        assert str(error) and error.why
        assert error.line_number >= 0
        return None
    assert records and all(isinstance(record["kind"], str) for record in records)
    return records


def said(records: list[dict]) -> set[tuple]:
    """Return every value with what it is of; none of an output that says it is not complete."""
    if any(record["kind"] == "incomplete" for record in records):
        return set()
    return {
        (*(str(record.get(key)) for key in OF), str(record.get("value")))
        for record in records
        if record["kind"] not in ONLY_CUT and record.get("name") not in ("flags", "preferred")
    }


# Generated from records, parsed back


@st.composite
def machines(draw):
    """Nodes (numbers with gaps, some without CPUs or memory) and a symmetric distance table."""
    nodes = sorted(draw(st.sets(st.integers(0, 300), min_size=1, max_size=6)))
    pool = list(range(draw(st.integers(0, 40))))
    cpus = {node: [c for c in pool if c % len(nodes) == i] for i, node in enumerate(nodes)}
    sizes = {node: draw(st.integers(0, 2**22)) for node in nodes}
    table = {(a, b): 10 if a == b else draw(st.integers(11, 254)) for a in nodes for b in nodes}
    return nodes, cpus, sizes, table


@FEW
@given(machines(), st.booleans())
def test_numactl_hardware_round_trip(machine, trailing):
    nodes, cpus, sizes, table = machine
    end = " \n" if trailing else "\n"
    text = f"available: {len(nodes)} nodes ({cpulist.format(nodes)})\n"
    for node in nodes:
        text += f"node {node} cpus:" + "".join(f" {c}" for c in cpus[node]) + "\n"
        text += f"node {node} size: {sizes[node]} MB\nnode {node} free: {sizes[node] // 2} MB\n"
    text += "node distances:\nnode  " + "".join(f"{n: 4d} " for n in nodes).rstrip() + end
    for a in nodes:
        text += f"{a: 4d}: " + " ".join(f"{table[a, b]: 4d}" for b in nodes) + end
    found = logs.parser("numactl")(text)
    assert {(r["from"], r["to"]): r["value"] for r in found if r["kind"] == "distance"} == table
    assert {r["node"]: r["value"] for r in found if r["kind"] == "node_size"} == sizes
    back = {r["node"]: cpulist.parse(r["cpus"]) for r in found if r["kind"] == "node_cpus"}
    assert back == cpus
    short = text.rstrip().rsplit(" ", 1)[0]
    if len(nodes) > 1:
        assert outcome("numactl", short) is None


@FEW
@given(st.integers(1, 20), st.integers(1, 8), st.booleans(), st.randoms(use_true_random=False))
def test_numastat_tables_of_any_width(nodes, width, in_mib, rng):
    names = ["Heap", "Stack", "Private", "Total"] if in_mib else [
        "numa_hit", "numa_miss", "numa_foreign", "interleave_hit", "local_node", "other_node",
    ]  # fmt: skip
    cells = {(row, n): rng.randrange(10**9) for row in names for n in range(nodes)}
    if in_mib:
        cells |= {("Total", n): sum(cells[row, n] for row in names[:-1]) for n in range(nodes)}
    columns = [*range(nodes), *(["Total"] if in_mib else [])]
    text = "\nPer-node process memory usage (in MBs) for PID 7 (a b)\n" if in_mib else ""
    for start in range(0, len(columns), width):
        block = columns[start : start + width]
        heads = [c if c == "Total" else (f"Node {c}" if in_mib else f"node{c}") for c in block]
        text += " " * 17 + " ".join(f"{head:>15}" for head in heads) + "\n"
        for row in names:
            total = sum(cells[row, n] for n in range(nodes))
            numbers = [total if c == "Total" else cells[row, c] for c in block]
            shown = [f"{x / 100:>15.2f}" if in_mib else f"{x:>15}" for x in numbers]
            text += f"{row:<17}" + " ".join(shown) + "\n"
    found = logs.parser("numastat")(text)
    scale = 100 if in_mib else 1
    back = {(r["name"], r["node"]): round(r["value"] * scale) for r in found if "node" in r}
    assert back == cells


@FEW
@given(st.lists(st.lists(st.integers(1, 99999), min_size=1, max_size=6), min_size=1, max_size=6))
def test_mlc_matrix_round_trip_and_ragged_rows_are_refused(rows):
    columns = len(rows[0])
    text = "Measuring idle latencies (in ns)...\n\t\tNuma node\nNuma node\t"
    text += "\t".join(f"{n:6d}" for n in range(columns)) + "\t\n"
    for n, row in enumerate(rows):
        text += f"{n:8d}\t" + "\t".join(f"{x / 10:6.1f}" for x in row) + "\t\n"
    found = outcome("mlc", text)
    if any(len(row) != columns for row in rows) or len(rows) < columns:
        assert found is None
    else:
        back = {(r["from"], r["to"]): r["value"] for r in found if r["kind"] == "idle_latency"}
        assert back == {(i, j): x / 10 for i, row in enumerate(rows) for j, x in enumerate(row)}


@FEW
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["cycles:u", "page-faults", "uncore_imc_0/cas_count_read/", "r1a8"]),
            st.one_of(st.none(), st.integers(0, 10**15)),
            st.floats(0, 100),
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([None, "S1", "N12", "CPU3", "S0-D1-C17"]),
    st.sampled_from([None, 1.000123456]),
)
def test_perf_stat_says_the_same_in_text_csv_and_json(events, place, interval):
    text = (
        "#   time counts unit events\n" if interval else " Performance counter stats for 'x':\n\n"
    )
    csv, json = "", ""
    counted = place and not place.startswith("CPU")
    for event, count, share in events:
        shown = "<not counted>" if count is None else f"{count:,}"
        stamp = f"{interval:.9f}" if interval else ""
        front = f"{place:<6} {4 if counted else '':>4} " if place else ""
        text += f"{stamp:>16} {front}{shown:>18}      {event:<25}  ({share:.2f}%)\n"
        fields = [stamp] if interval else []
        fields += ([place, "4"] if counted else [place]) if place else []
        fields += ["<not counted>" if count is None else str(count), "", event, "77"]
        csv += ";".join([*fields, f"{share:.2f}", "", ""]) + "\n"
        parts = [f'"interval" : {stamp}'] if interval else []
        if counted:
            key = {"S": "socket", "N": "node"}[place[0]] if "-" not in place else "core"
            parts += [f'"{key}" : "{place}", "aggregate-number" : 4']
        elif place:
            parts += [f'"cpu" : "{place[3:]}"']
        value = "<not counted>" if count is None else f"{count}.000000"
        parts += [f'"counter-value" : "{value}", "unit" : "", "event" : "{event}"']
        parts += [f'"event-runtime" : 77, "pcnt-running" : {share:.2f}']
        json += "{" + ", ".join(parts) + "}\n"
    text += "" if interval else "\n       1.001234567 seconds time elapsed\n"
    keys = ("event", "value", "reason", "running_percent", "aggregate", "interval_s", "cpus")
    read = [
        [
            {key: r.get(key) for key in keys}
            for r in logs.parser("perf-stat")(form)
            if r["kind"] == "event"
        ]
        for form in (text, csv, json)
    ]
    assert read[0] == read[1] == read[2]
    assert [r["value"] for r in read[0]] == [count for _, count, _ in events]


@FEW
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**47),
            st.sampled_from(["default", "bind:0-1", "weighted interleave:0,2", "prefer (many):1"]),
            st.dictionaries(st.integers(0, 9), st.integers(1, 10**6), max_size=4),
            st.sampled_from([4, 64, 2048, 1048576]),
        ),
        min_size=1,
        max_size=10,
        unique_by=lambda row: row[0],
    )
)
def test_numa_maps_bytes_per_node(rows):
    text = ""
    expected: dict[int, int] = {}
    for address, policy, pages, size in rows:
        text += f"{address:08x} {policy}"
        if pages:
            text += f" anon={sum(pages.values())} " + " ".join(
                f"N{n}={k}" for n, k in pages.items()
            )
            text += f" kernelpagesize_kB={size}"
        text += "\n"
        for node, count in pages.items():
            expected[node] = expected.get(node, 0) + count * size * 1024
    found: dict[int, int] = {}
    for record in logs.parser("numa_maps")(text):
        if record["kind"] == "node_pages":
            found[record["node"]] = found.get(record["node"], 0) + record["value"]
    assert found == expected


@FEW
@given(st.lists(st.integers(1, 10**7), min_size=4, max_size=4), st.integers(1, 10**9))
def test_stream_round_trip(times, elements):
    text = f"This system uses 8 bytes per array element.\nArray size = {elements} (elements), "
    text += "Offset = 0 (elements)\n"
    text += "Function    Best Rate MB/s  Avg time     Min time     Max time\n"
    for name, t in zip(("Copy", "Scale", "Add", "Triad"), times):
        text += (
            f"{name + ':':<12}{t / 10:12.1f}  {t / 1e6:11.6f}  {t / 1e6:11.6f}  {t / 1e6:11.6f}\n"
        )
    text += "Solution Validates: avg error less than 1.000000e-13 on all three arrays\n"
    found = [r for r in logs.parser("stream")(text) if r["kind"] == "kernel"]
    assert [r["value"] for r in found] == [t / 10 for t in times]


@FEW
@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=30), st.integers(0, 100))
def test_histogram_percentiles_are_of_the_right_bucket(counts, percent):
    buckets = [{"value": float(i + 1), "count": c} for i, c in enumerate(counts)]
    values = sysbench.percentile(buckets, percent)
    total = sum(counts)
    if total and percent:
        below = sum(c for i, c in enumerate(counts) if i + 1 < values)
        upto = sum(c for i, c in enumerate(counts) if i + 1 <= values)
        assert below * 100 < total * percent <= upto * 100


# Damaged real outputs


def samples() -> list[tuple[str, str]]:
    """Return (tool, text) of our own fixtures and of the corpus where it is."""
    out = []
    for path in sorted(FIXTURES.iterdir()):
        text = fixture(path.name)
        tool = logs.detect(text)
        if tool:
            out.append((path.name, tool, text))
    root = corpus()
    for path in sorted(root.glob("*/*.*")) if root else []:
        if path.parent.name in ("sysfs", "source") or path.stat().st_size > 40_000:
            continue
        text = path.read_bytes().decode("utf-8", errors="replace")
        tool = logs.detect(text)
        if tool:
            out.append((f"{path.parent.name}/{path.name}", tool, text))
    return [(tool, name, text) for name, tool, text in out]


SAMPLES = samples()
REPRESENTATIVE = {}
for _tool, _name, _text in SAMPLES:
    REPRESENTATIVE.setdefault(_tool, []).append(_text)


def damage(rng: random.Random, text: str) -> str:
    """Return a text with one thing done to it that happens to captured output."""
    rows = text.split("\n")
    at = rng.randrange(len(rows))
    kind = rng.randrange(9)
    if kind == 0:
        return text[: rng.randrange(len(text) + 1)]
    if kind == 1:
        del rows[at]
    elif kind == 2:
        rows.insert(at, rows[rng.randrange(len(rows))])
    elif kind == 3:
        rows[at] = rows[at][: rng.randrange(len(rows[at]) + 1)]
    elif kind == 4:
        place = rng.randrange(len(text) + 1)
        return (
            text[:place] + rng.choice('0123456789 \t:,.()<>-{}"%\x00\ufffdé\u2028') + text[place:]
        )
    elif kind == 5:
        rng.shuffle(rows)
    elif kind == 6:
        rows.insert(at, "some other program's line: 42 (x)")
    elif kind == 7:
        words = rows[at].split(" ")
        words[rng.randrange(len(words))] = rng.choice(
            ["", "nan", "-", "1e999", "99999999999999999999"]
        )
        rows[at] = " ".join(words)
    else:
        place = rng.randrange(len(text) + 1)
        return text[:place] + text[place + rng.randrange(1, 50) :]
    return "\n".join(rows)


@pytest.mark.parametrize("tool", sorted(REPRESENTATIVE))
def test_damaged_output_gives_records_or_a_parse_error(tool):
    rng = random.Random(f"damage {tool}")
    texts = [text for text in REPRESENTATIVE[tool] if len(text) < 12_000]
    for _ in range(220):
        text = rng.choice(texts)
        for _ in range(rng.choice([1, 1, 1, 3])):
            text = damage(rng, text) if text else text
        outcome(tool, text)


@pytest.mark.parametrize("tool", sorted(logs.PARSERS))
@BRIEF
@given(st.text(max_size=300))
def test_any_text_at_all(tool, text):
    outcome(tool, text)


@pytest.mark.parametrize("tool", sorted(logs.PARSERS))
@BRIEF
@given(st.data())
def test_lines_of_the_format_in_any_order(tool, data):
    texts = REPRESENTATIVE.get(tool) or sum(REPRESENTATIVE.values(), [])
    rows = sorted({row for text in texts for row in text.split("\n")[:60]})
    chosen = data.draw(st.lists(st.sampled_from(rows), max_size=12))
    outcome(tool, "\n".join(chosen))


@pytest.mark.parametrize("tool", sorted(set(logs.PARSERS) - {"mysql-errlog"}))
def test_other_tools_output_is_refused(tool):  # but by the error log, which may hold any line
    for other, texts in REPRESENTATIVE.items():
        if other != tool:
            assert outcome(tool, texts[0]) is None, (tool, other)


@BRIEF
@given(st.text(max_size=400))
def test_detection_never_fails(text):
    assert logs.detect(text) in {*logs.PARSERS, None}


def wholes(tool: str) -> list[tuple[str, set[tuple]]]:
    """Return outputs of a tool and what they say; not a file of sysfs, which has no head."""
    texts = [text for text in REPRESENTATIVE.get(tool, ()) if len(text) < 30_000]
    found = [
        (text, outcome(tool, text))
        for text in texts
        if not re.search("^numa_hit +\\d+$", text, re.M)
    ]
    return [(text, said(records)) for text, records in found if records]


TABLES = ("mlc", "numastat", "perf_stat", "stream", "sysbench")
WHOLE = {tool: wholes(tool) for tool in ("lscpu", "numactl", *TABLES)}


@pytest.mark.parametrize("tool", sorted(WHOLE))
@FEW
@given(st.data())
def test_an_output_that_is_cut_says_nothing_that_the_whole_does_not(tool, data):
    text, whole = data.draw(st.sampled_from(WHOLE[tool]))
    end = data.draw(st.integers(0, len(text)))
    if tool in ("lscpu", "numactl", "perf_stat"):  # texts and lists have any length
        end = text.rfind("\n", 0, end) + 1
    found = outcome(tool, text[:end])
    assert found is None or said(found) <= whole


@pytest.mark.parametrize("tool", TABLES)
@FEW
@given(st.data())
def test_lines_that_are_lost_change_no_value(tool, data):
    text, whole = data.draw(st.sampled_from(WHOLE[tool]))
    rows = text.split("\n")
    first = data.draw(st.integers(0, len(rows) - 1))
    last = data.draw(st.integers(first, min(first + 5, len(rows))))
    found = outcome(tool, "\n".join(rows[:first] + rows[last:]))
    assert found is None or said(found) <= whole


def test_numbers_cut_short_at_the_end_are_not_taken_for_numbers():
    """Where a format prints a fixed number of decimals, a lost digit is noticed."""
    for name, tool in (("numastat-p.txt", "numastat"), ("numactl-hardware.txt", "numactl")):
        text = fixture(name).rstrip()
        assert outcome(tool, text) is not None
        assert outcome(tool, text[:-1]) is None
    text = fixture("sysbench-mutex.txt").rstrip()
    assert outcome("sysbench", text) is not None
    for cut in range(1, 60):
        found = outcome("sysbench", text[:-cut])
        assert found is None or sysbench.Sysbench().metrics(found)[0].value is not None


LONG = 6_000
SLOW = [  # lines that a pattern could match in very many ways
    "a== " * 40 + "!", "=" * LONG, "a=" * (LONG // 2), "a= " * (LONG // 3), " " * LONG + "x",
    "sudo " * (LONG // 5), "numactl -a " * (LONG // 11), "a/" * (LONG // 2), "$ " * (LONG // 2),
    "root@a:" * (LONG // 7), "[a@b " * (LONG // 5), "1u 1s " * (LONG // 6), "1" * 190 + "x",
    "a" + " " * LONG + "x", "|a|" + " " * LONG + "x", "| a | 1 " * (LONG // 8),
    "0, " * (LONG // 3) + "x", "0" * 40 + "x", "0-1" * 40, "node 0 cpus: " + "0" * 40 + "x",
    "physcpubind: " + "0" * 40 + "x", "interleaveweights: " + "0" * 40 + "x",
    "a, bytes " * (LONG // 9), "a" + ": " * (LONG // 2), "1 a" + " /s" * (LONG // 3),
]  # fmt: skip
PARSES = r"""
import json, resource, sys
from numalab import logs
from numalab.agent.errors import ParseError

resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
for line in json.load(sys.stdin):
    for name in logs.PARSERS:
        for text in (line, ">" + line, "\n".join([line] * 20)):
            try:
                logs.parser(name)(text)
            except ParseError:
                pass
for name in logs.PARSERS:
    try:
        logs.parser(name)("\n".join([">" * 32_000] * 20))
    except ParseError:
        pass
print("all")
"""


def test_no_line_takes_a_parser_long():
    """In CPU time: two minutes for all of them, which take seconds."""
    done = subprocess.run(
        [sys.executable, "-c", PARSES], input=json.dumps(SLOW), capture_output=True, text=True
    )
    assert done.stdout == "all\n", (done.returncode, done.stderr)
