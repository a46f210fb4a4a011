"""What a run's tables say: nothing of counters that lie, nothing of intervals from two points."""

import gzip
import json
from types import SimpleNamespace

import polars as pl
import pytest

import frames
from numalab import runs
from numalab.analysis import results, statistics


def _run(tmp_path, rows, cells):
    plan = frames.plan(cells)
    manifest = {"plan": plan, "host": "h", "experiment": "stream"}
    run = runs.Run(tmp_path, manifest, frames.host_record())
    run.__dict__["measurements"] = rows
    return run


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
        assert remote["decision"] == statistics.TOO_FEW


def test_a_node_without_memory_in_a_look_counts_as_none_there(tmp_path):
    (tmp_path / "raw").mkdir()
    lines = []
    for trial, shares in enumerate(({"0": 1.0}, {"0": 0.5, "1": 0.5}, None), 1):
        proof = {"memory": {"shares": shares}, "cpus": {"seen": "0"}}
        name = f"raw/{trial}.placement.json.gz"
        (tmp_path / name).write_bytes(gzip.compress(json.dumps({"proofs": [proof]}).encode()))
        lines.append(
            {"schema": 1, "trial": trial, "cell": "unbound", "grade": "verified", "reason": None,
             "raw": {"placement": name}}
        )  # fmt: skip
    (tmp_path / "journal.ndjson").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = SimpleNamespace(folder=tmp_path, cells={"unbound": {"label": "unbound"}})
    assert "node 0: 50.0% to 100.0%, node 1: 0.0% to 50.0%" in results.placement(run)


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
    run = _run(tmp_path, rows, cells)
    run.host["emulated"] = emulated
    return run


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
    shown = results.terminal(run) if run.measures else results._terminal_table(run, "triad", "")
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
    assert (row["ratio"] is not None) is real and (row["decision"] == statistics.EFFECT) is real
    assert ("emulated: no time means anything" in row["said"]) is not real
    assert row["mean"] == 3
