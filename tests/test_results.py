"""What a run's tables say: nothing of counters that lie, nothing of intervals from two points."""

import dataclasses
import gzip
import json

import polars as pl
import pytest

import frames
from numalab.agent import contract
from numalab.agent.collectors import memory_model
from numalab.agent.contract import (
    COUNTED,
    MEASURED,
    CpuProof,
    Measure,
    MemoryProof,
    Proof,
    reason,
    to_json,
)
from numalab.analysis import judge
from numalab.show import confidence, counters, proofs, results


def _run(tmp_path, rows, cells, emulated=False):
    measure = {"triad": Measure("GB/s", "higher")}
    return frames.run(
        frames.plan(cells, measure=measure), rows, tmp_path,
        host=frames.host_record(emulated=emulated), evidence=COUNTED if emulated else MEASURED,
    )  # fmt: skip


def _counted(counts, cells=None, events=("local_dram", "remote_dram")):
    """Rows of two DRAM events under some cells, ``{cell: (local, remote)}``, three blocks each."""
    cells = cells or frames.two_nodes()
    parts = []
    for cell, of_cell in counts.items():
        for metric, value in zip(events, of_cell, strict=True):
            rows = frames.measurements(cells, metric=metric, blocks=3).filter(
                pl.col("cell") == cell
            )
            parts.append(
                rows.with_columns(
                    source=pl.lit("perf"), value=pl.lit(value, pl.Float64), unit=pl.lit("count")
                )
            )
    return cells, pl.concat(parts)


@pytest.mark.parametrize(
    ("local", "remote", "words"),
    [
        ((1e6, 1e3), (1e3, 1e6), "memory of another node): 0.1% of known-local and 99.9% of known"),
        ((1e6, 5e5), (1e3, 1e6), "memory of another node): 33% of known-local"),
        ((1e6, 1e3), (1e6, 1e6), "memory of another node): only 50% of known-remote"),
        ((None, None), (None, None), "memory of another node): no counts under known-local"),
    ],
)
def test_remote_memory_events_are_believed_only_after_calibration(tmp_path, local, remote, words):
    cells, rows = _counted({"local:0": local, "remote:0-1": remote})
    (line,) = counters.calibration(_run(tmp_path, rows, cells))
    assert words in line
    assert ("are calibrated" in line) == (remote == (1e3, 1e6) and local == (1e6, 1e3))


def test_nodes_of_one_socket_are_calibrated_apart_from_those_of_another(tmp_path):
    """Events that tell sockets apart but not the nodes in one: not "unusable", and not believed."""
    cells = frames.two_nodes()
    (pair,) = [cell for cell in cells if cell.id == "remote:0-1"]
    third = frames.Cell("remote:0-2", 50.0, "local:0", cpus="0-3", cpu_nodes="0",
                        memory={"policy": "bind", "nodes": "2"})  # fmt: skip
    cells.insert(cells.index(pair) + 1, third)
    counts = {"local:0": (1e6, 0), "remote:0-1": (1e6, 0), "remote:0-2": (0, 1e6)}
    cells, rows = _counted(counts, cells, ("local_reads", "remote_reads"))
    cpus = [contract.Cpu(n, True, n // 4, n // 8, 0, None, n, str(n), 0, True, None)
            for n in range(12)]  # fmt: skip
    empty = frames.host_record().topology
    host = frames.host_record(dataclasses.replace(empty, cpus=tuple(cpus)))
    run = frames.run(frames.plan(cells, measure={}), rows, tmp_path, host=host)
    near, far = counters.calibration(run)
    assert "of the same socket" in near and "unusable" in near and "only 0%" in near
    assert "of another socket" in far and "are calibrated" in far and "local_reads" in far


def test_traffic_between_nodes_is_a_table_where_it_was_counted(tmp_path):
    cells = frames.two_nodes()
    rows = frames.measurements(cells, metric="traffic_from_node", blocks=3)
    assert counters.node_traffic(_run(tmp_path, rows, cells)) == ""  # a tool's rows are its own
    rows = rows.with_columns(source=pl.lit("traffic"), point=pl.lit("node 1"), unit=pl.lit("GB/s"))
    table = counters.node_traffic(_run(tmp_path, rows, cells))
    assert "traffic_from_node node 1" in table.replace("\\", "") and "GB/s" in table
    modelled = rows.with_columns(source=pl.lit(memory_model.SOURCE))  # of configured timing
    assert "traffic_from_node" in counters.node_traffic(_run(tmp_path, modelled, cells)).replace(
        "\\", ""
    )


def test_a_host_without_remote_memory_is_not_asked(tmp_path):
    cells, rows = _counted({"local:0": (1e6, 1e3), "remote:0-1": (1e3, 1e6)})
    only_local = [cell for cell in cells if cell.id.startswith("local")]
    assert counters.calibration(_run(tmp_path, rows, only_local)) == []


@pytest.mark.parametrize(("blocks", "has_interval"), [(5, False), (6, True)])
def test_an_interval_needs_six_blocks(tmp_path, blocks, has_interval):
    cells = frames.two_nodes()
    rows = frames.measurements(cells, metric="triad", blocks=blocks)
    table = results.table(_run(tmp_path, rows, cells), "triad")
    assert table["low"].is_not_null().any() == has_interval
    assert table["ratio_low"].is_not_null().any() == has_interval
    remote = table.filter(pl.col("cell") == "remote:0-1").row(0, named=True)
    assert remote["ratio"] == pytest.approx(52 / 80, rel=0.05)
    if not has_interval:
        assert remote["decision"] == judge.TOO_FEW


def test_a_node_without_memory_in_a_look_counts_as_none_there(tmp_path):
    (tmp_path / "raw").mkdir()
    cells = [frames.Cell("unbound", 1.0, role="baseline")]
    plan = frames.plan(cells, blocks=3)
    trials = []
    for item, shares in zip(plan.order, ({0: 1.0}, {0: 0.5, 1: 0.5}, {}), strict=True):
        proof = Proof(True, MemoryProof(True, shares=shares), CpuProof(True, seen="0"))
        name = f"raw/{item.trial}.proof.json.gz"
        text = json.dumps({"proofs": [to_json(proof)]})
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
        why = reason("no-pages") if item.trial == 3 else None
        trials.append(frames.trial(item, raw={"proof": name}, why=why,
                                   grade="unverified" if why else "verified"))  # fmt: skip
    shown = proofs.placement(frames.run(plan, folder=tmp_path, trials=trials))
    assert "node 0: 50.0% to 100.0%, node 1: 0.0% to 50.0%" in shown
    assert "2 verified, 1 unverified" in shown and "no pages" in shown


def _cased(tmp_path, values, emulated=False, **more):
    """A run of one binding in cases, six blocks, each case with one value throughout."""
    cells = [
        frames.Cell("cpus-only:0/empty", 1.0, role="baseline"),
        frames.Cell("cpus-only:0/empty/control", 1.0, "cpus-only:0/empty", role="control"),
        *(frames.Cell(f"cpus-only:0/{name}", 1.0, "cpus-only:0/empty") for name in values),
    ]
    given = {f"cpus-only:0/{name}": float(value) for name, value in values.items()}
    rows = frames.measurements(cells, noise=0.01, **{"tool": "allocation", **more})
    rows = rows.with_columns(
        value=pl.coalesce(
            pl.col("cell").replace_strict(given, default=None, return_dtype=pl.Float64), "value"
        )
    )
    return _run(tmp_path, rows, cells, emulated)


def test_a_metric_that_no_trial_has_is_told_with_those_there_are(tmp_path):
    cells = frames.two_nodes()
    plan = frames.plan(cells, measure={"triadd": Measure("GB/s", "higher")})
    run = frames.run(plan, frames.measurements(cells), tmp_path)
    words = "not measured: triadd: no trial has a metric of this name; there are triad"
    assert results.terminal(run) == words


def test_cases_stand_in_the_order_of_the_plan_with_ratios_where_there_are_any(tmp_path):
    names = [f"case-{number:02}" for number in range(14, 0, -1)]
    run = _cased(tmp_path, dict.fromkeys(names, 3) | {"zero": 0})
    table = results.table(run, "triad")
    assert [row.removeprefix("cpus-only:0/") for row in table["cell"]] == [
        "empty", "empty/control", *names, "zero",
    ]  # fmt: skip
    by_cell = {row["cell"].partition("/")[2]: row for row in table.iter_rows(named=True)}
    assert by_cell["case-07"]["ratio"] == pytest.approx(3, rel=0.02)
    assert by_cell["case-07"]["said"] == "different from cpus-only 0/empty"
    assert by_cell["zero"]["ratio"] is None and by_cell["zero"]["mean"] == 0
    assert by_cell["zero"]["said"] == "no ratio: in some block a value is 0 or less"
    shown = results.terminal(run)
    first = next(line for line in shown.splitlines() if "0/empty " in line)
    assert first.split()[-1] == "1"  # the baseline's own ratio, though its id has a case
    assert len(results.markdown(run, "triad").splitlines()) == 2 + 17


@pytest.mark.parametrize(
    ("metric", "unit", "tool", "real"),
    [("triad", "GB/s", "probe", False), ("allocation_time", "s", "allocation", False),
     ("minor_faults", "count", "allocation", True)],
)  # fmt: skip
def test_no_time_of_an_emulated_host_is_put_into_a_ratio(tmp_path, metric, unit, tool, real):
    run = _cased(tmp_path, {"full": 3}, True, metric=metric, unit=unit, tool=tool)
    row = results.table(run, metric).row(2, named=True)
    assert (row["ratio"] is not None) is real and (row["decision"] == judge.DIFFERENT) is real
    assert ("emulated: no time means anything" in row["said"]) is not real
    assert row["mean"] == 3


def test_a_run_that_drifted_says_so_and_decides_nothing(tmp_path):
    cells = frames.two_nodes(control=84.0)
    run = _run(tmp_path, frames.measurements(cells, noise=0.003), cells)
    table = results.table(run, "triad")
    said = dict(table.select("cell", "said").iter_rows())
    assert said["remote:0-1"] == "the run drifted: nothing is decided"
    assert said["local:0/control"] == "A/A control: the run drifted"
    assert "the run drifted, and nothing is decided" in confidence.markdown(run)
    quiet = _run(tmp_path, frames.measurements(frames.two_nodes()), frames.two_nodes())
    assert "what differs by less is not distinguishable" in confidence.markdown(quiet)


def _eight_nodes():
    """Every pair of eight nodes, 12 on a socket and 32 across, with a control."""
    cells = []
    for here in range(8):
        on = {"cpus": str(here), "cpu_nodes": str(here)}
        for there in range(8):
            far = 10 if here == there else 12 if here // 4 == there // 4 else 32
            of = {"distance": far, "memory": {"policy": "bind", "nodes": str(there)}}
            name, role = (f"local:{here}", "baseline") if here == there else (
                f"remote:{here}-{there}", "cell")  # fmt: skip
            base = None if here == there else f"local:{here}"
            cells.append(frames.Cell(name, 1000 / far, base, role=role, **of, **on))
    return [*cells, frames.Cell("local:0/control", 100, "local:0", role="control", distance=10)]


def test_a_table_of_every_pair_of_many_nodes_has_a_row_for_each_distance(tmp_path):
    cells = _eight_nodes()
    failed = {("remote:3-7", block): "error" for block in range(1, 7)}
    run = _run(tmp_path, frames.measurements(cells, grade=failed), cells)
    table = results.folded(run, results.table(run, "triad"))
    assert sorted(table["label"]) == [
        "local (8 nodes)", "local 0/control",
        "remote at distance 12 (24 pairs)", "remote at distance 32 (32 pairs)",
    ]  # fmt: skip
    far = table.filter(pl.col("label").str.contains("32")).row(0, named=True)
    assert far["mean"] == pytest.approx(1000 / 32, rel=0.02) and far["low"] < far["high"]
    assert far["ratio"] == pytest.approx(10 / 32, rel=0.02)
    assert "31 different from local" in far["said"] and "6 excluded" in far["said"]
    assert len(results.terminal(run).splitlines()) == 1 + 4
    few = _run(tmp_path, frames.measurements(cells[:40]), cells[:40])
    assert results.folded(few, results.table(few, "triad")).height == 40


def test_of_hundreds_of_points_the_odd_ones_are_no_news(tmp_path):
    """With 6 blocks some of 400 pairs of cores look as if they drifted, by chance alone."""
    cells = [frames.Cell("unbound", 50, role="baseline")]

    def said(many):
        rows = [
            frames.measurements(cells, point=str(point), seed=point, noise=0.05, drift=0.1)
            for point in range(many)
        ]
        return confidence.markdown(_run(tmp_path, pl.concat(rows), cells))

    assert "triad" in said(8) and said(400) == "Nothing to warn about."


def test_the_placement_of_many_pairs_keeps_those_apart_that_failed(tmp_path):
    plan = frames.plan(_eight_nodes())
    bad = {"remote:3-6", "remote:3-7"}
    trials = [
        frames.trial(item, grade="error" if item.cell in bad else "verified") for item in plan.order
    ]
    run = frames.run(plan, folder=tmp_path, trials=trials)
    shown = proofs.placement(run).splitlines()
    assert len(shown) == 2 + 5 and sum("12 error" in line for line in shown) == 1
    assert any("distance 32 (30 pairs)" in line and "180 verified" in line for line in shown)
    said = confidence.markdown(run)
    assert "- excluded: blocks 1-6, remote" in said and said.count("excluded") == 2


def test_names_and_reasons_of_a_strangers_output_are_shown_as_text(tmp_path):
    evil = "<script>alert(1)</script>"
    cells = frames.two_nodes()
    rows = frames.measurements(cells, metric=evil, blocks=6)
    missing = frames.measurements(cells, metric=f"{evil}2", blocks=6).with_columns(
        value=pl.lit(None, pl.Float64), reason=pl.lit("tool-said"),
        reason_fields=pl.lit(json.dumps({"text": evil})),
    )  # fmt: skip
    counted = missing.with_columns(source=pl.lit("perf"), metric=pl.lit(evil))
    every = [rows.with_columns(point=pl.lit(evil)), missing, counted]
    run = _run(tmp_path, pl.concat(every), cells)
    run.plan.request.measure.update({evil: Measure("GB/s", "higher")})
    pages = [
        results.overview(run, [evil, f"{evil}2"]), results.markdown(run, f"{evil}3"),
        results.markdown(run, evil, evil), confidence.markdown(run, [evil]), counters.markdown(run),
        counters.shares(run, f"{evil}2"), proofs.placement(run),
    ]  # fmt: skip
    assert not [page for page in pages if "<script>" in page]
    assert sum("&lt;script&gt;" in page for page in pages) >= 5
