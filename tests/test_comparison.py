"""Two runs side by side: matching, ratios, refusals."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import frames
from frames import Cell, measurements, two_nodes
from numalab.agent.contract import CONFIGURED, COUNTED, MEASURED
from numalab.agent.errors import Fault
from numalab.analysis import comparison, judge


def made(cells, frame=None, evidence=MEASURED, **options):
    """A run of these cells, with a frame of its own where one is given."""
    frame = measurements(cells, **options) if frame is None else frame
    host = frames.host_record(emulated=evidence in (COUNTED, CONFIGURED))
    return frames.run(frames.plan(cells), frame, host=host, evidence=evidence)


def runs(first=None, second=None, **options):
    a = made(first or two_nodes(), seed=1, **options)
    b = made(second or two_nodes(), seed=2, run="second", host="b", **options)
    return a, b


def altered(run, *filters, **columns):
    """The run with rows left out and columns changed."""
    other = replace(run)
    other.__dict__["measurements"] = run.measurements.filter(*filters).with_columns(**columns)
    return other


def row(table: pl.DataFrame, **wanted) -> dict:
    return table.row(by_predicate=pl.all_horizontal(
        pl.col(name) == value for name, value in wanted.items()), named=True)  # fmt: skip


def test_a_faster_host_is_seen_cell_by_cell():
    table = comparison.compare(*runs(second=two_nodes(local=100.0)))
    assert set(table["cell_a"]) == {cell.id for cell in two_nodes() if cell.role != "control"}
    local = row(table, cell_a="local:0", cell_b="local:0")
    assert local["low"] < 1.25 < local["high"] and local["decision"] == judge.DIFFERENT
    remote = row(table, cell_a="remote:0-1")
    assert remote["low"] < 1 < remote["high"] and remote["decision"] == judge.ALIKE
    assert (remote["n_a"], remote["n_b"], remote["reason"]) == (6, 6, None)


def test_a_run_is_itself():
    a, _ = runs()
    table = comparison.compare(a, a)
    assert np.allclose(table["ratio"], 1)
    assert set(table["decision"]) == {judge.ALIKE}


def test_swapping_the_runs_inverts_the_ratio():
    a, b = runs(second=two_nodes(local=95.0))
    there = comparison.compare(a, b).sort("cell_a")
    back = comparison.compare(b, a).sort("cell_a")
    assert np.allclose(there["ratio"], 1 / back["ratio"])
    assert np.allclose(there["low"], 1 / back["high"])
    assert there["decision"].to_list() == back["decision"].to_list()


def test_the_interval_covers_the_true_ratio():
    cells = [Cell("local:0", 100.0, role="baseline")]
    covered = 0
    for seed in range(200):
        a = made(cells, noise=0.05, seed=seed)
        b = made(cells, noise=0.02, seed=10_000 + seed, run="b", blocks=9)
        found = comparison.compare(a, b).row(0, named=True)
        covered += found["low"] <= 1 <= found["high"]
    assert 0.91 <= covered / 200 <= 0.99


def test_either_control_that_wanders_holds_back_an_effect():
    steady, wandering = two_nodes(), two_nodes(local=75.0, control=69.0)
    a, b = runs(first=steady, second=wandering)
    for table in (comparison.compare(a, b), comparison.compare(b, a)):
        found = row(table, cell_a="local:1")
        assert found["high"] < 1 or found["low"] > 1
        assert found["decision"] == judge.DRIFTED
    bare = altered(b, pl.col("role") != "control")
    assert set(comparison.compare(a, bare)["decision"]) == {judge.NO_CONTROL}


def test_few_blocks_show_their_ratio_and_decide_nothing():
    table = comparison.compare(*runs(blocks=3))
    assert set(table["decision"]) == {judge.TOO_FEW}
    assert table["ratio"].is_not_null().all()
    one = comparison.compare(*runs(blocks=1))
    assert one["low"].is_null().all() and set(one["decision"]) == {judge.TOO_FEW}


def test_different_tools_never_make_a_ratio():
    a, b = runs()
    table = comparison.compare(a, altered(b, tool=pl.lit("stream")))
    assert table["ratio"].is_null().all() and table["decision"].is_null().all()
    assert set(table["reason"]) == {"results of different tools make no ratio: probe, stream"}
    assert table["a"].is_not_null().all()


def test_times_of_emulated_hosts_are_not_compared():
    pages = {"metric": "numa_hit", "unit": "pages", "source": "numastat"}
    cells = two_nodes()
    a, b = (
        made(cells, pl.concat([measurements(cells, seed=seed), measurements(cells, seed=seed,
             **pages)]), evidence)
        for seed, evidence in ((1, MEASURED), (2, COUNTED))
    )  # fmt: skip
    table = comparison.compare(a, b)
    times = table.filter(pl.col("metric") == "triad")
    assert times["ratio"].is_null().all() and times["reason"][0].startswith("emulated")
    assert table.filter(pl.col("metric") == "numa_hit")["ratio"].is_not_null().all()


def test_no_ratio_mixes_two_kinds_of_evidence():
    modelled = made(two_nodes(), seed=2, evidence=CONFIGURED)
    table = comparison.compare(made(two_nodes(), seed=1), modelled)
    assert table["ratio"].is_null().all() and "configured" in table["reason"][0]
    alike = comparison.compare(made(two_nodes(), seed=1, evidence=CONFIGURED), modelled)
    assert alike["ratio"].is_not_null().all()


def test_what_is_in_one_run_only_or_has_no_ratio_says_so():
    a, b = runs()
    table = comparison.compare(a, altered(b, pl.col("binding") != "interleave"))
    assert row(table, cell_a="interleave:0, interleave:1")["reason"] == "only in a"
    zero = altered(b, value=pl.lit(0.0))
    found = comparison.compare(a, zero).row(0, named=True)
    assert found["ratio"] is None and "0 or less" in found["reason"] and found["b"] == 0
    units = comparison.compare(a, altered(b, unit=pl.lit("MB/s")))
    assert set(units["reason"]) == {"different units: GB/s and MB/s"}
    failed = made(two_nodes(), grade="error", run="failed")
    found = comparison.compare(a, failed).row(0, named=True)
    assert found["reason"] == "no value in b: graded by the test" and found["n_b"] == 0


def test_error_rows_are_left_out():
    a, b = runs()
    spoilt = altered(
        b,
        grade=pl.when(pl.col("block") == 2).then(pl.lit("error")).otherwise("grade"),
        value=pl.when(pl.col("block") == 2).then(1e9).otherwise("value"),
    )
    table = comparison.compare(a, spoilt)
    assert set(table["n_b"]) == {5} and table["ratio"].max() < 2


def eight_nodes():
    cells = []
    for node in range(8):
        on = {"cpus": str(node), "cpu_nodes": str(node)}
        base = f"local:{node}"
        cells.append(Cell(base, 40.0, role="baseline", distance=10, **on))
        for other in range(8):
            if other != node:
                near = other // 4 == node // 4
                cells.append(Cell(f"remote:{node}-{other}", 36.0 if near else 20.0, base,
                                  distance=12 if near else 32,
                                  rank=("nearest" if near else "farthest",), **on))  # fmt: skip
    return cells


def test_hosts_of_other_shapes_are_matched_by_binding_and_rank():
    table = comparison.compare(*runs(second=eight_nodes()))
    nearest = row(table, binding="remote", rank="nearest")
    farthest = row(table, binding="remote", rank="farthest")
    assert nearest["ratio"] == pytest.approx(36 / 52, rel=0.02)
    assert farthest["ratio"] == pytest.approx(20 / 52, rel=0.02)
    assert len(farthest["cell_b"].split(", ")) == 32 and farthest["n_b"] == 6
    assert nearest["cell_a"] == "remote:0-1, remote:1-0"
    assert row(table, cell_b="local:0")["ratio"] == pytest.approx(0.5, rel=0.02)


def test_the_text_fits_and_names_what_matters():
    text = comparison.text(comparison.compare(*runs(second=two_nodes(local=100.0))), 120)
    lines = text.splitlines()
    assert len(lines) == 8 and all(len(line) <= 120 for line in lines)
    assert any(
        "local:0" in line and "  different" in line and "triad GB/s" in line for line in lines
    )
    whole = comparison.text(comparison.compare(*runs(second=two_nodes(local=100.0)))).splitlines()
    assert all(long.startswith(cut.rstrip()) for long, cut in zip(whole, lines, strict=True))
    assert "no results" in comparison.text(comparison.compare(*runs()).clear())


def test_run_directories_of_other_experiments_are_refused(tmp_path):
    for name in ("stream", "latency"):
        plan = frames.plan(two_nodes(), experiment=name)
        frames.write(frames.run(plan, folder=tmp_path / name))
    with pytest.raises(Fault, match="run of stream.*one of latency"):
        comparison.compare_runs(tmp_path / "stream", tmp_path / "latency")


def test_cases_are_matched_by_name_and_pooled_only_with_their_like():
    def of(node, empty, full):
        base = f"cpus-only:{node}/empty"
        cells = [Cell(base, empty, role="baseline"), Cell(f"cpus-only:{node}/full", full, base)]
        rows = measurements(cells, metric="minor_faults", unit="count", tool="allocation")
        return made(cells, rows, COUNTED)

    same = comparison.compare(of(0, 100.0, 300.0), of(0, 100.0, 600.0))
    ratios = dict(same.select("cell_a", "ratio").iter_rows())
    assert ratios["cpus-only:0/full"] == pytest.approx(2, rel=0.02)
    other = comparison.compare(of(0, 100.0, 300.0), of(1, 100.0, 600.0))
    ratios = dict(other.select("cell_b", "ratio").iter_rows())
    assert ratios["cpus-only:1/full"] == pytest.approx(2, rel=0.02)
    assert ratios["cpus-only:1/empty"] == pytest.approx(1, rel=0.02)
    shown = comparison.text(other)
    assert "cpus-only/full" in shown and "cpus-only/empty" in shown
