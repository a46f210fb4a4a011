"""Claims beyond one ratio: gaps compared, points of one cell, metrics that follow, hidden nodes."""

from dataclasses import replace

import polars as pl
import pytest

import mysql_frames
from frames import Cell, host_record, measurements
from numalab.agent.contract import CONFIGURED, COUNTED, Resolution, reason
from numalab.agent.errors import Fault
from numalab.analysis import claims
from numalab.analysis.claims import INCONCLUSIVE, NOT_TESTABLE, REFUTED, SUPPORTED

QPS = "queries_per_second"


def judged(holds_if, run, others=()):
    entry = {"id": "c", "says": "It is so", "source": "somewhere", "holds_if": holds_if}
    (found,) = claims.judge_all([entry], run, others)
    return found


def known(run, *resolved, host=None, **of_manifest):
    """The run with what its plan says of further names, another host, another manifest."""
    plan = replace(run.plan, resolved=(*resolved, *run.plan.resolved))
    manifest = replace(run.manifest, plan=plan, **of_manifest)
    made = replace(run, manifest=manifest, host=host or run.host)
    made.__dict__["measurements"] = run.measurements
    return made


class Anyway(claims.Form):
    """A form that decides whatever it sees."""

    keys = ("anyway",)

    def judged(self, run, others):
        return claims.Judged(SUPPORTED, "because")


def test_no_form_decides_on_fewer_than_six_blocks():
    made = {blocks: mysql_frames.run([Cell("unbound", 1.0)], blocks=blocks) for blocks in (5, 6)}
    found = {blocks: judged(Anyway(), run) for blocks, run in made.items()}
    assert found[6].verdict == SUPPORTED
    assert found[5].verdict == INCONCLUSIVE and "too few blocks: 5" in found[5].because


# ---------------------------------------------------------------- names of bindings


def test_a_binding_is_named_as_the_experiment_names_it():
    """``cores:node-spread`` is ``cores:16-spread`` on a host whose nodes have 16 cores."""
    cells = [
        Cell("cores:16-node", 160.0, role="baseline", cpus="0-15", threads=8),
        Cell("cores:16-node/control", 160.0, "cores:16-node", role="control", cpus="0-15"),
        Cell("cores:16-spread", 80.0, "cores:16-node", cpus="0-7,16-23", threads=8),
        Cell("cores:16-node/clients=4", 160.0, cpus="0-15", threads=4),
        Cell("cores:16-spread/clients=4", 40.0, "cores:16-node/clients=4", threads=4),
    ]
    named = (
        Resolution("cores:node-node", ("cores:16-node", "cores:16-node/clients=4")),
        Resolution("cores:node-spread", ("cores:16-spread", "cores:16-spread/clients=4")),
        Resolution("cores:99-node", (), reason("too-few-cores", usable=32, count=99)),
    )
    run = known(mysql_frames.run(cells), *named)
    asked = {"metric": QPS, "cell": "cores:node-node", "against": "cores:node-spread"}
    found = judged({**asked, "ratio_between": [1.9, 2.1]}, run)
    assert found.verdict == SUPPORTED and found.cells == ("cores:16-node", "cores:16-spread")
    swept = {**asked, "cell": "cores:node-node/clients=4", "against": "cores:node-spread/clients=4"}
    assert judged({**swept, "ratio_between": [3.8, 4.2]}, run).verdict == SUPPORTED
    found = judged({**asked, "cell": "cores:99-node", "ratio_at_most": 1}, run)
    assert found.verdict == NOT_TESTABLE and found.reason.fields["why"]["code"] == "too-few-cores"
    many = {**asked, "cell": "cores:node-node/workload=oltp_read_write", "ratio_at_most": 1}
    found = judged(many, run)
    assert found.verdict == NOT_TESTABLE
    assert "this run leaves out workload=oltp_read_write" in found.because


def test_two_names_of_one_cell_are_not_compared():
    """On a host without a second thread per core, 16 cores of a node are all CPUs of it."""
    cells = [
        Cell("cpus-only:0", 160.0, role="baseline", cpus="0-15"),
        Cell("cpus-only:0/control", 160.0, "cpus-only:0", role="control", cpus="0-15"),
        Cell("cores:16-spread", 80.0, "cpus-only:0", cpus="0-7,16-23"),
    ]
    asked = {"metric": QPS, "cell": "cores:node-node", "against": "cores:node-spread"}
    same = Resolution("cores:node-node", ("cpus-only:0",))
    run = known(
        mysql_frames.run(cells), same, Resolution("cores:node-spread", ("cores:16-spread",))
    )
    found = judged({**asked, "ratio_at_least": 1.9}, run)
    assert found.verdict == SUPPORTED and found.cells == ("cpus-only:0", "cores:16-spread")
    run = known(mysql_frames.run(cells), same, Resolution("cores:node-spread", ("cpus-only:0",)))
    found = judged({**asked, "ratio_at_least": 1.9}, run)
    assert found.verdict == NOT_TESTABLE and "are the same on this host" in found.because


def test_a_host_of_one_node_cannot_say_what_a_node_does_better_than_the_host():
    hidden, _ = hidden_and_shown()
    free = {"policy": "default", "nodes": None}
    cells = [
        Cell("unbound", 8e4, role="baseline", cpus=None, cpu_nodes="0", memory=free),
        Cell("local:0", 8e4, "unbound", cpus="0-63", cpu_nodes="0"),
    ]
    run = known(mysql_frames.run(cells), host=hidden.host)
    asked = {"metric": QPS, "cell": "local", "against": "unbound", "ratio_at_least": 1.1}
    found = judged(asked, run)
    assert found.verdict == NOT_TESTABLE and "one node" in found.because


# ---------------------------------------------------------------- a gap under two loads


def two_loads(narrow, noise=0.01):
    """Local is 2.25 times the spread cell when reading, and ``narrow`` times when writing."""
    cells = []
    for load, ratio in (("", 2.25), ("/workload=read_write", narrow)):
        base = f"local:0{load}"
        cells += [
            Cell(base, 9e4 * ratio, role="baseline" if not load else "cell"),
            Cell(f"cores:32-spread{load}", 9e4, base),
        ]
    cells.append(Cell("local:0/control", 9e4 * 2.25, "local:0", role="control"))
    return mysql_frames.run(cells, noise=noise)


GAP = {
    "metric": QPS,
    "cell": "local/workload=read_write",
    "against": "cores/workload=read_write",
    "relative_to": {"cell": "local", "against": "cores"},
    "ratio_at_most": 0.9,
}


@pytest.mark.parametrize(
    ("narrow", "said"), [(1.4, SUPPORTED), (2.25, REFUTED), (3.0, REFUTED), (2.025, INCONCLUSIVE)]
)
def test_a_gap_is_narrower_under_one_load_than_under_another(narrow, said):
    found = judged(GAP, two_loads(narrow))
    assert found.verdict == said
    assert f"{narrow / 2.25:.2f}"[:3] in found.because
    assert "over local against cores" in found.because


def test_the_control_of_a_gap_is_as_wide_as_two_ratios():
    """A gap 4 % narrower is nothing where like cells differ by 3 % either way."""
    run = two_loads(2.25 * 0.96, noise=0.002)
    away = pl.when(pl.col("role") == "control").then(1 + 0.03 * (-1) ** pl.col("block"))
    value = pl.col("value") * away.otherwise(1.0)
    run.__dict__["measurements"] = run.measurements.with_columns(value=value)
    assert judged({**GAP, "ratio_at_most": 0.99}, run).verdict == INCONCLUSIVE
    quiet = two_loads(2.25 * 0.96, noise=0.002)
    assert judged({**GAP, "ratio_at_most": 0.99}, quiet).verdict == SUPPORTED


def test_a_gap_is_not_compared_with_itself():
    asked = {**GAP, "relative_to": {"cell": GAP["cell"], "against": GAP["against"]}}
    found = judged(asked, two_loads(1.4))
    assert found.verdict == NOT_TESTABLE and "on this host" in found.because


def test_gaps_without_partners_for_each_are_not_compared():
    asked = {**GAP, "relative_to": {"cell": "remote", "against": "cores"}}
    found = judged(asked, two_loads(1.4))
    assert found.verdict == NOT_TESTABLE and "holds no remote cell" in found.because


# ---------------------------------------------------------------- instances in one trial


def instances(values, metric, unit, noise=0.01, control=True, blocks=6):
    cells = [Cell("unbound", 1.0, role="baseline", cpus=None)]
    if control:
        cells.append(Cell("unbound/control", 1.0, "unbound", role="control", cpus=None))
    frame = pl.concat(
        measurements([Cell(**{**vars(cell), "value": value}) for cell in cells], metric=metric,
                     unit=unit, point=f"instance {n}", seed=n, noise=noise, blocks=blocks)
        for n, value in enumerate(values, 1)
    )  # fmt: skip
    run = mysql_frames.run(cells)
    run.__dict__["measurements"] = frame
    return run


EVEN = {"metric": QPS, "among": "unbound", "same_within": 0.05}
UNEVEN = {"metric": "cpu_per_query", "among": "unbound", "pairs": "worst", "ratio_at_least": 2}


@pytest.mark.parametrize(
    ("values", "said"),
    [((100, 101, 99), SUPPORTED), ((100, 100, 80), REFUTED), ((100, 100, 95.2), INCONCLUSIVE)],
)
def test_instances_that_do_the_same_are_even(values, said):
    found = judged(EVEN, instances(values, QPS, "1/s"))
    assert found.verdict == said and "among the points of unbound" in found.because


@pytest.mark.parametrize(
    ("values", "said"),
    [((1000, 800, 200), SUPPORTED), ((210, 200, 205), REFUTED), ((400, 300, 200), INCONCLUSIVE)],
)
def test_instances_that_pay_unequally_are_uneven(values, said):
    found = judged(UNEVEN, instances(values, "cpu_per_query", "µs"))
    assert found.verdict == said
    if said == SUPPORTED:
        assert "instance 1 over instance 3" in found.because


def test_one_instance_or_few_blocks_decide_nothing_among_points():
    assert judged(EVEN, instances((100,), QPS, "1/s")).verdict == NOT_TESTABLE
    assert judged(EVEN, instances((100, 100), QPS, "1/s", blocks=5)).verdict == INCONCLUSIVE
    alone = instances((1000, 200), "cpu_per_query", "µs", control=False)
    assert judged(UNEVEN, alone).verdict == SUPPORTED  # points of one trial need no A/A control


# ---------------------------------------------------------------- one metric after another


FOLLOWS = {"metric": "ipc", "follows": QPS}


def led(ipc, **options):
    """Four cells of 32 CPUs each whose throughputs differ, with their IPCs."""
    cells = mysql_frames.published_cells()
    cells = [cell for cell in cells if "16" not in cell.id and "thread" not in cell.id]
    values = {"ipc": dict(zip(("local:0", "interleave:0", "remote:0-1", "cores:32-spread"), ipc,
                              strict=True))}  # fmt: skip
    return mysql_frames.run(cells, others=values, **options)


def test_ipc_follows_throughput_in_every_pair_that_differs():
    found = judged(FOLLOWS, led((0.42, 0.38, 0.34, 0.29)))
    assert found.verdict == SUPPORTED
    assert "goes the same way in" in found.because and "the other way in 0" in found.because
    assert "unbound" not in found.cells  # it has 64 CPUs, and no other cell has


def test_one_pair_the_other_way_refutes_it_and_one_that_stands_still_leaves_it_open():
    assert judged(FOLLOWS, led((0.42, 0.38, 0.34, 0.40))).verdict == REFUTED
    assert judged(FOLLOWS, led((0.42, 0.42, 0.34, 0.29))).verdict == INCONCLUSIVE


def test_where_throughput_differs_nowhere_there_is_nothing_to_follow():
    cells = [Cell("unbound", 1e4, role="baseline"), Cell("local:0", 1e4, "unbound"),
             Cell("unbound/control", 1e4, "unbound", role="control")]  # fmt: skip
    found = judged(FOLLOWS, mysql_frames.run(cells))
    assert found.verdict == NOT_TESTABLE and "no two of these cells" in found.because
    few = judged({**FOLLOWS, "cells": ["unbound"]}, mysql_frames.run(cells))
    assert few.verdict == NOT_TESTABLE


def test_what_no_counter_counted_is_not_testable_here():
    run = led((0.42, 0.38, 0.34, 0.29))
    lost = pl.col("metric") == "ipc"
    run.__dict__["measurements"] = run.measurements.with_columns(
        value=pl.when(~lost).then(pl.col("value")),
        reason=pl.when(lost).then(pl.lit("counter-missing")).otherwise(pl.col("reason")),
        reason_fields=pl.when(lost).then(pl.lit('{"name": "cycles"}')),
    )
    found = judged(FOLLOWS, run)
    assert found.verdict == NOT_TESTABLE and "cycles has no value" in found.because
    assert judged(FOLLOWS, led((0.4, 0.3, 0.2, 0.1), blocks=5)).verdict == INCONCLUSIVE


# ---------------------------------------------------------------- the nodes hidden


HIDDEN = {"metric": QPS, "beside": "nodes-shown", "same_within": 0.05}


def hidden_and_shown(ratio=1.0, noise=0.01):
    free = {"policy": "default", "nodes": None}

    def cells(value, nodes):
        return [
            Cell("unbound", 8e4, role="baseline", cpus=None, cpu_nodes=nodes, memory=free),
            Cell("unbound/control", 8e4, "unbound", role="control", cpus=None, memory=free),
            Cell("cpus:0-31", value, "unbound", cpus="0-31", cpu_nodes=nodes, memory=free),
        ]

    shown = mysql_frames.run(cells(12e4, "0-1"), noise=noise, host="shown")
    hidden = mysql_frames.run(cells(12e4 * ratio, "0"), noise=noise, seed=7, host="hidden")
    node = replace(mysql_frames.TOPOLOGY.nodes[0], cpus="0-63")
    one = replace(mysql_frames.TOPOLOGY, nodes=(node,))
    return known(hidden, host=host_record(one, host="hidden")), shown


@pytest.mark.parametrize(
    ("ratio", "said"), [(1.0, SUPPORTED), (0.8, REFUTED), (0.955, INCONCLUSIVE)]
)
def test_hidden_nodes_change_nothing_on_the_same_cpus(ratio, said):
    hidden, shown = hidden_and_shown(ratio)
    found = judged(HIDDEN, hidden, [shown])
    assert found.verdict == said and "nodes hidden against shown" in found.because
    assert judged(HIDDEN, shown, [hidden]).verdict == NOT_TESTABLE
    assert "beside this one" in judged(HIDDEN, hidden).because


def test_another_machine_is_no_partner():
    hidden, shown = hidden_and_shown()
    other = replace(shown.host.topology, model="another processor")
    shown = known(shown, host=replace(shown.host, topology=other))
    assert judged(HIDDEN, hidden, [shown]).verdict == NOT_TESTABLE


# ---------------------------------------------------------------- what a file may say


@pytest.mark.parametrize(
    "holds_if",
    [
        {"metric": QPS, "among": "unbound"},
        {"metric": QPS, "among": "unbound", "same_within": 0.1, "ratio_at_most": 2},
        {"metric": QPS, "beside": "the-moon", "same_within": 0.1},
        {"metric": "ipc", "follows": QPS, "ratio_at_most": 1},
        {"metric": QPS, "cell": "a", "against": "b", "relative_to": {}, "same_within": 1},
    ],
)
def test_a_malformed_predicate_is_refused_with_the_claims_name(holds_if):
    with pytest.raises(Fault, match="claim c"):
        claims.load([{"id": "c", "says": "x", "source": "y", "holds_if": holds_if}])


@pytest.mark.parametrize("holds_if", [EVEN, FOLLOWS, HIDDEN, GAP])
def test_no_claim_about_time_is_judged_on_an_emulated_host(holds_if):
    hidden, shown = hidden_and_shown()
    runs = {"among": instances((1, 2), QPS, "1/s"), "follows": led((4.0, 3.0, 2.0, 1.0)),
            "beside": hidden, "relative_to": two_loads(1.4)}  # fmt: skip
    run = next(made for key, made in runs.items() if key in holds_if)
    run = known(run, host=replace(run.host, emulated=True), evidence=COUNTED)
    found = judged(holds_if, run, [shown])
    assert found.verdict == NOT_TESTABLE and found.reason.code == "emulated-times"
    timed = known(run, evidence=CONFIGURED)  # its memory timing is a known answer
    assert judged(holds_if, timed, [shown]).verdict != NOT_TESTABLE
