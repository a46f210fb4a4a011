"""What a run's tables say: nothing of counters that lie, nothing of intervals from two points."""

import gzip
import json

import polars as pl
import pytest

import frames
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
from numalab.analysis import judge, results


def _run(tmp_path, rows, cells, emulated=False):
    measure = {"triad": Measure("GB/s", "higher")}
    return frames.run(
        frames.plan(cells, measure=measure), rows, tmp_path,
        host=frames.host_record(emulated=emulated), evidence=COUNTED if emulated else MEASURED,
    )  # fmt: skip


def _counted(local, remote):
    """Rows of the two DRAM events under the cells local:0 and remote:0-1, three blocks each."""
    cells = frames.two_nodes()
    parts = []
    for cell, counts in (("local:0", local), ("remote:0-1", remote)):
        for metric, value in zip(("local_dram", "remote_dram"), counts, strict=True):
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
        ((1e6, 1e3), (1e3, 1e6), "are calibrated: 0.1% of known-local and 99.9% of known-remote"),
        ((1e6, 5e5), (1e3, 1e6), "unusable on this host: 33% of known-local"),
        ((1e6, 1e3), (1e6, 1e6), "unusable on this host: only 50% of known-remote"),
        ((None, None), (None, None), "unusable on this host: no counts under known-local"),
    ],
)
def test_remote_memory_events_are_believed_only_after_calibration(tmp_path, local, remote, words):
    cells, rows = _counted(local, remote)
    (line,) = results.calibration(_run(tmp_path, rows, cells))
    assert words in line


def test_a_host_without_remote_memory_is_not_asked(tmp_path):
    cells, rows = _counted((1e6, 1e3), (1e3, 1e6))
    only_local = [cell for cell in cells if cell.id.startswith("local")]
    assert results.calibration(_run(tmp_path, rows, only_local)) == []


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
    shown = results.placement(frames.run(plan, folder=tmp_path, trials=trials))
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
    assert by_cell["zero"]["said"] == "no ratio: a value is 0 or less"
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
    assert "the run drifted, and nothing is decided" in results.confidence(run)
    quiet = _run(tmp_path, frames.measurements(frames.two_nodes()), frames.two_nodes())
    assert "what differs by less is not distinguishable" in results.confidence(quiet)
