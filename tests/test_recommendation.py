"""What a run recommends: the binding that its figures clear, or plainly nothing."""

import re
from dataclasses import replace

import polars as pl
import pytest

import mysql_frames
from frames import Cell
from numalab.agent.contract import Measure, MemoryPolicy, ToolRecord, reason
from numalab.analysis import recommendation

ALIKE = {"policy": "default", "nodes": None}


def even(difference=1.0, **options):
    """Unbound with its control, and one binding that is ``difference`` times as fast."""
    cells = [
        Cell("unbound", 1e4, role="baseline", cpus=None, cpu_nodes="0-1", memory=ALIKE),
        Cell("unbound/control", 1e4, "unbound", role="control", cpus=None, memory=ALIKE),
        Cell("local:0", 1e4 * difference, "unbound", cpus=mysql_frames.NODE_CPUS[0]),
    ]
    return mysql_frames.run(cells, **options)


def test_the_best_binding_is_recommended_with_its_gain_its_cost_and_what_equals_it():
    found = recommendation.of(mysql_frames.run(mysql_frames.published_cells()))
    assert found.cell == "local:0"
    assert "270," in found.says or "269," in found.says or "271," in found.says
    gain = float(re.search(r"Bind it: local 0, \+(\d+) % \[\+", found.says).group(1))
    assert gain == pytest.approx(100 * (270 / 80 - 1), rel=0.02)
    assert "all 7 bindings" in found.says and "(A/A)" in found.says
    assert any("32 of 64 hardware threads" in cost for cost in found.costs)
    assert any("node 0 (192 GiB" in cost and "killed" in cost for cost in found.costs)
    assert len(found.alike) == 1 and found.alike[0].startswith("cpus-only 0")


@pytest.mark.parametrize("difference", [1.0, 1.004])
def test_where_nothing_differs_nothing_is_recommended(difference):
    found = recommendation.of(even(difference))
    assert found.cell is None and found.paste == []
    assert "No binding can be told from the default (unbound) here" in found.says
    assert re.search(r"[+-][\d.]+ % \[-", found.says) and "(A/A)" in found.says


def test_a_host_where_every_binding_loses_says_so():
    found = recommendation.of(even(0.7))
    assert found.cell is None and "No binding is better than the default" in found.says


def test_a_gain_within_the_controls_own_difference_is_none():
    """The control differs from its like by 10 %: a gain of 6 % is nothing on this host."""
    for low in (0.9, 1.1):  # in either direction: which of the two is the control is chance
        run = even(1.06, noise=0.003)
        value = pl.col("value") * pl.when(pl.col("role") == "control").then(low).otherwise(1.0)
        run.__dict__["measurements"] = run.measurements.with_columns(value=value)
        assert recommendation.of(run).cell is None
    assert recommendation.of(even(1.06, noise=0.003)).cell == "local:0"


def test_chance_is_not_recommended_however_many_bindings_are_tried():
    base = [
        Cell("unbound", 1e4, role="baseline", cpus=None, memory=ALIKE),
        Cell("unbound/control", 1e4, "unbound", role="control", cpus=None, memory=ALIKE),
    ]
    many = [Cell(f"cores:{n}-node", 1e4, "unbound") for n in range(1, 31)]
    said = [
        recommendation.of(mysql_frames.run([*base, *many], seed=seed, noise=0.05)).cell
        for seed in range(8)
    ]
    assert sum(cell is not None for cell in said) <= 1


def test_what_can_recommend_nothing_says_why():
    cells = [Cell("local:0", 1e4, role="baseline"), Cell("local:0/control", 1e4, role="control")]
    alone = recommendation.of(mysql_frames.run(cells))
    assert alone.says == "This run compares no binding with the default (unbound)."
    made = mysql_frames.run(mysql_frames.published_cells())
    rows = made.measurements
    twice = [rows.with_columns(point=pl.lit(name)) for name in ("first", "second")]
    made.__dict__["measurements"] = pl.concat(twice)
    assert recommendation.of(made).says.endswith("per second has several points, none decides.")
    made.__dict__["measurements"] = rows.clear()
    assert "what the run asks for was not measured" in recommendation.of(made).says


@pytest.mark.parametrize("grade", ["unverified", "error"])
def test_only_verified_trials_count(grade):
    cells = mysql_frames.published_cells()
    bad = {("local:0", block): grade for block in range(1, 7)}
    found = recommendation.of(mysql_frames.run(cells, grade=bad))
    assert found.cell == "cpus-only:0"
    assert recommendation.of(mysql_frames.run(cells, grade=grade)).cell is None


def test_nothing_on_emulated_hosts_from_few_blocks_without_a_control_or_without_a_default():
    cells = mysql_frames.published_cells()
    said = {
        "Emulated host": mysql_frames.run(cells, emulated=True),
        "fewer than 6 decide nothing": mysql_frames.run(cells, blocks=5),
        "no A/A control": mysql_frames.run([c for c in cells if c.role != "control"]),
        "no binding with the default": mysql_frames.run(cells[2:]),
    }
    for words, run in said.items():
        found = recommendation.of(run)
        assert found.cell is None and words in found.says and found.paste == []


@pytest.mark.parametrize(
    ("policy", "nodes", "words"),
    [
        ("bind", "0", "all its memory must fit on node 0 (192 GiB in all)"),
        ("preferred", "1", "what does not fit on node 1 (192 GiB in all) goes to other nodes"),
        ("default", None, "what does not fit on node 0 (192 GiB in all), where it runs, goes"),
        ("interleave", "0-1", "as much memory of each of nodes 0-1 (384 GiB in all)"),
        ("weighted-interleave", "0-1", "memory of nodes 0-1 (384 GiB in all) by the kernel's"),
        ("bind", "0-1", None),
        ("of-another-numalab", "0", None),
    ],
)
def test_each_policy_costs_what_it_does_when_its_nodes_are_full(policy, nodes, words):
    def change(cell):
        chosen = replace(cell, memory=MemoryPolicy(policy, nodes))
        return chosen if cell.id == "local:0" else cell

    made = mysql_frames.changed(even(2.0), change)
    costs = [cost for cost in recommendation.of(made).costs if "node" in cost]
    assert (words is None) == (costs == []) and all(words in cost for cost in costs)


def test_no_line_to_paste_holds_a_policy_that_is_not_known():
    evil = MemoryPolicy("x; touch /tmp/pwned #", "0")
    made = mysql_frames.changed(
        even(2.0), lambda one: replace(one, memory=evil) if one.id == "local:0" else one
    )
    found = recommendation.of(made)
    assert found.cell == "local:0" and found.paste == []
    assert "pwned" not in recommendation.text(found)


def test_data_that_lie_in_the_caches_recommend_nothing():
    small = reason("data-below-caches", tables=1 << 30, caches=1 << 29)
    made = mysql_frames.changed(even(2.0), lambda cell: replace(cell, notes=(small,)))
    found = recommendation.of(made)
    assert found.cell is None and "512 MiB" in found.says and found.says.startswith("Nothing")


def test_a_metric_that_gets_worse_is_a_cost():
    slow = {"latency_p99": {"local:0": 30.0}}
    found = recommendation.of(mysql_frames.run(mysql_frames.published_cells(), others=slow))
    assert any(cost.startswith("latency p99 is 7.") for cost in found.costs)


def test_lower_is_better_turns_everything_round():
    measure = {"latency_p99": Measure("ms", "lower")}
    found = recommendation.of(mysql_frames.run(mysql_frames.published_cells(), measure=measure))
    assert found.cell in ("local:0", "cpus-only:0") and "lower is better" in found.says
    assert re.search(r"Bind it: [a-z ]+-?\w* 0, -\d+ % \[-", found.says)


@pytest.mark.parametrize(("better", "word"), [("higher", "Best"), ("lower", "Nearest")])
def test_what_is_worse_than_the_default_is_never_called_best(better, word):
    found = recommendation.of(even(1.004, measure={"queries_per_second": Measure("1/s", better)}))
    assert found.cell is None and f"{word}" in found.says
    assert ("Best" in found.says) == (word == "Best")


def test_the_other_loads_are_told_too():
    cells = mysql_frames.published_cells()
    writing = [
        Cell(**{**vars(cell), "value": 5e3 if "local:0" in cell.id else 1e4})
        for cell in mysql_frames.published_cells(rest="read-write")
        if cell.role != "control"
    ]
    found = recommendation.of(mysql_frames.run([*cells, *writing]))
    assert found.cell == "local:0"
    (line,) = found.elsewhere
    assert re.match(r"read-write: 0\.(49|50)", line) and line.endswith("a loss")


def lines(policy, nodes, *, tool=None, cpus="0-15,32-47", **options):
    options = {"innodb_numa_interleave": "OFF", **options}
    cells = mysql_frames.published_cells()
    chosen = Cell("interleave:0", 9e5, "unbound", cpus=cpus, cpu_nodes="0",
                  memory={"policy": policy, "nodes": nodes})  # fmt: skip
    cells = [cell for cell in cells if cell.id != "interleave:0"] + [chosen]
    found = recommendation.of(mysql_frames.run(cells, tool=tool, options=options))
    assert found.cell == "interleave:0"
    return {place.where.partition(":")[0]: place for place in found.paste}


@pytest.mark.parametrize(
    ("policy", "nodes", "numactl", "systemd", "docker"),
    [
        (
            "bind", "0", "numactl --physcpubind=0-15,32-47 --membind=0 mysqld",
            ["NUMAPolicy=bind", "NUMAMask=0"],
            "docker run --cpuset-cpus=0-15,32-47 --cpuset-mems=0 IMAGE",
        ),
        (
            "interleave", "0-1", "numactl --physcpubind=0-15,32-47 --interleave=0-1 mysqld",
            ["NUMAPolicy=interleave", "NUMAMask=0-1"],
            "docker run --cpuset-cpus=0-15,32-47 --cap-add=SYS_NICE IMAGE "
            "numactl --interleave=0-1 mysqld",
        ),
        (
            "preferred", "0", "numactl --physcpubind=0-15,32-47 --preferred=0 mysqld",
            ["NUMAPolicy=preferred", "NUMAMask=0"],
            "docker run --cpuset-cpus=0-15,32-47 --cap-add=SYS_NICE IMAGE "
            "numactl --preferred=0 mysqld",
        ),
        (
            "weighted-interleave", "0-1",
            "numactl --physcpubind=0-15,32-47 --weighted-interleave=0-1 mysqld", [],
            "docker run --cpuset-cpus=0-15,32-47 --cap-add=SYS_NICE IMAGE "
            "numactl --weighted-interleave=0-1 mysqld",
        ),
        (
            "default", None, "numactl --physcpubind=0-15,32-47 mysqld", [],
            "docker run --cpuset-cpus=0-15,32-47 IMAGE",
        ),
    ],
)  # fmt: skip
def test_the_lines_to_paste_say_the_measured_policy(policy, nodes, numactl, systemd, docker):
    found = lines(policy, nodes)
    assert found["numactl"].lines == [numactl]
    # an empty assignment first: systemd merges the masks of several
    assert found["systemd"].lines == [
        "[Service]", "CPUAffinity=", "CPUAffinity=0-15,32-47", *systemd,
    ]  # fmt: skip
    assert found["docker"].lines == [docker]
    assert bool(found["docker"].remarks) == (policy not in ("default", "bind"))
    if policy == "weighted-interleave":
        (remark,) = found["systemd"].remarks
        assert remark.endswith(
            "in ExecStart, start the program by numactl --weighted-interleave=0-1"
        )
    assert found["my.cnf"].lines == ["[mysqld]", "innodb_numa_interleave = OFF"]


def test_mariadb_may_lack_the_variable_and_other_programs_have_none():
    mariadb = ToolRecord("mysql_server", "MariaDB 10.11.6", "/usr/sbin/mysqld")
    found = lines("bind", "0", tool=mariadb)
    assert found["my.cnf"].lines == ["[mariadbd]", "innodb_numa_interleave = OFF"]
    assert found["numactl"].lines[0].endswith(" mariadbd")
    assert "my.cnf" not in lines("bind", "0", tool=mariadb, innodb_numa_interleave="")
    found = lines("bind", "0", tool=ToolRecord("stream", "5.10"))
    assert "my.cnf" not in found and found["numactl"].lines[0].endswith(" PROGRAM")


def test_innodbs_own_interleaving_is_a_binding_not_a_load():
    own = Cell("cpus-only:0/innodb_numa_interleave=ON", 9e5, None, cpus="0-15",
               memory={"policy": "default", "nodes": None})  # fmt: skip
    run = mysql_frames.run([*mysql_frames.published_cells(), own])
    last = replace(run.plan.cells[-1], options={"innodb_numa_interleave": "ON"})
    plan = replace(run.plan, cells=(*run.plan.cells[:-1], last))
    measured = run.measurements
    run = replace(run, manifest=replace(run.manifest, plan=plan))
    run.__dict__["measurements"] = measured
    found = recommendation.of(run)
    assert found.cell == own.id and "all 8 bindings" in found.says and found.elsewhere == []
    last = found.paste[-1]
    assert last.where == "my.cnf"
    assert last.lines == ["[mysqld]", "innodb_numa_interleave = ON"]
    assert found.paste[0].lines == ["numactl --physcpubind=0-15 mysqld"]


def test_it_reads_the_same_in_a_notebook_and_at_the_terminal():
    found = recommendation.of(mysql_frames.run(mysql_frames.published_cells()))
    for told in (recommendation.markdown(found), recommendation.text(found)):
        for place in found.paste:
            assert all(line in told.splitlines() or f"    {line}" in told.splitlines()
                       for line in place.lines)  # fmt: skip
        plain = re.sub(r"\\(?=\W)", "", " ".join(told.split()))
        assert found.says in plain and found.costs[0] in plain
    assert all(len(line) <= 100 for line in recommendation.text(found).splitlines())
    assert recommendation.markdown(found).count("```") == 2 * len(found.paste)
    none = recommendation.of(even())
    assert recommendation.text(none, 10_000) == none.says
