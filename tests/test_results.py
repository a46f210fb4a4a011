"""What a run's tables say: nothing of counters that lie, nothing of intervals from two points."""

import gzip
import json
from types import SimpleNamespace

import polars as pl
import pytest

import frames
from numalab import results, runs, statistics


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
