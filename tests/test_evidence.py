"""What a run holds on a metric: the grid, summaries, warnings, what is real on emulated hosts."""

import json

import numpy as np
import polars as pl
import pytest
from scipy import stats

import frames
from frames import Cell, measurements, two_nodes
from numalab.agent.contract import CONFIGURED, COUNTED, MEASURED, Reason, reason
from numalab.analysis import evidence

# ---------------------------------------------------------------- what the judge is given


def test_a_grid_has_the_logarithms_of_every_cell_and_block():
    cells = two_nodes()
    rows = measurements(cells, grade={("unbound", 3): "error", ("local:1", 2): "unverified"})
    grid = evidence.grid(evidence.deciding_rows(rows, "triad"), frames.plan(cells))
    assert grid.cells == tuple(cell.id for cell in cells) and grid.blocks == (1, 2, 3, 4, 5, 6)
    assert grid.controls == {"local:0/control": "local:0"}
    missing = {(grid.cells[cell], grid.blocks[block])
               for cell, block in zip(*np.nonzero(np.isnan(grid.logs)), strict=True)}  # fmt: skip
    assert missing == {("unbound", 3), ("local:1", 2)}
    value = rows.filter((pl.col("cell") == "remote:0-1") & (pl.col("block") == 4))["value"][0]
    assert grid.logs[grid.cells.index("remote:0-1"), 3] == pytest.approx(np.log(value))


def test_the_order_of_rows_changes_nothing():
    cells = two_nodes()
    rows = measurements(cells)
    shuffled = rows.sample(fraction=1, shuffle=True, seed=3)
    one, other = (evidence.grid(frame, frames.plan(cells)) for frame in (rows, shuffled))
    assert one.cells == other.cells and np.array_equal(one.logs, other.logs)


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_zero_or_less_in_one_block_takes_the_whole_cell(bad):
    cells = two_nodes()
    spoilt = (pl.col("cell") == "unbound") & (pl.col("block") == 2)
    rows = measurements(cells).with_columns(value=pl.when(spoilt).then(bad).otherwise("value"))
    grid = evidence.grid(rows, frames.plan(cells))
    assert grid.bad == {"unbound": reason("value-not-positive", block=2)}
    assert np.isnan(grid.logs[grid.cells.index("unbound")]).all()


def test_unverified_rows_decide_only_where_nothing_is_verified():
    cells = two_nodes()
    mixed = measurements(cells, grade={("unbound", 3): "unverified"})
    assert set(evidence.deciding_rows(mixed, "triad")["grade"]) == {"verified"}
    imported = measurements(cells, grade="unverified")
    assert evidence.deciding_rows(imported, "triad").height == imported.height
    assert evidence.deciding_rows(imported, "triad", verified=True).is_empty()


def test_the_tool_counts_before_a_collector_does():
    own = measurements(two_nodes())
    both = pl.concat([own, own.with_columns(source=pl.lit("perf"), value=pl.lit(1.0))])
    assert set(evidence.deciding_rows(both, "triad")["source"]) == {"tool"}


# ---------------------------------------------------------------- tables


def test_summarise_gives_the_figures_of_a_cell():
    frame = measurements(two_nodes(), blocks=8)
    values = frame.filter(pl.col("cell") == "remote:0-1")["value"].to_numpy()
    for made in (evidence.summarise(frame), evidence.summarise(frame.lazy(), ["triad"])):
        row = made.row(by_predicate=pl.col("cell") == "remote:0-1", named=True)
        low, high = stats.t.interval(0.95, 7, values.mean(), stats.sem(values))
        assert (row["n"], row["n_error"], row["n_unverified"]) == (8, 0, 0)
        assert row["median"] == pytest.approx(np.median(values))
        assert (row["mean"], row["low"], row["high"]) == pytest.approx((values.mean(), low, high))
    assert evidence.summarise(frame, ["copy"]).is_empty()


def test_error_rows_are_never_averaged_in_and_unverified_ones_are_counted():
    grades = {("local:0", 1): "error", ("local:0", 2): "unverified", ("remote:0-1", 3): "error"}
    frame = measurements(two_nodes(), blocks=7, grade=grades)
    spoilt = frame.with_columns(
        value=pl.when(pl.col("grade") == "error").then(1e9).otherwise("value")
    )
    row = evidence.summarise(spoilt).row(by_predicate=pl.col("cell") == "local:0", named=True)
    assert (row["n"], row["n_error"], row["n_unverified"]) == (6, 1, 1)
    assert row["high"] < 100


def test_a_cell_without_a_value_keeps_its_row():
    frame = measurements([Cell("local:0", 1.0)], grade="error")
    row = evidence.summarise(frame).row(0, named=True)
    assert (row["n"], row["n_error"], row["mean"], row["low"]) == (0, 6, None, None)
    one = evidence.summarise(measurements([Cell("local:0", 1.0)], blocks=1)).row(0, named=True)
    assert (one["n"], one["low"], one["high"]) == (1, None, None)


# ---------------------------------------------------------------- drift and warnings


def test_a_trend_is_found_with_its_size_and_not_without():
    steady = measurements(two_nodes(), blocks=8, noise=0.01)
    rising = measurements(two_nodes(), blocks=8, noise=0.01, drift=0.10)
    assert "trend" not in kinds(steady)
    (trend,) = (one for one in evidence.warnings(rising) if one.reason.code == "trend")
    assert trend.cell is None and trend.reason.fields["change"] == pytest.approx(0.095, abs=0.01)
    assert "+9" in str(trend.reason) and "not in a steady state" in str(trend.reason)


def test_a_trend_shrugs_off_an_outlier():
    values = [100 + i for i in range(20)]
    values[10] = 10_000
    rising = evidence._trend(one_cell(values).with_columns(_relative=pl.col("value") / 100))
    assert rising.fields["change"] == pytest.approx(19 / 110, rel=0.05)
    assert evidence._trend(one_cell([5] * 8).with_columns(_relative=pl.col("value"))) is None


def kinds(frame: pl.DataFrame) -> set:
    return {one.reason.code for one in evidence.warnings(frame)}


def one_cell(values) -> pl.DataFrame:
    frame = measurements([Cell("local:0", 1.0)], blocks=len(values))
    return frame.sort("block").with_columns(value=pl.Series([float(value) for value in values]))


def test_a_quiet_run_raises_no_warning():
    assert kinds(measurements(two_nodes(), blocks=15, noise=0.004)) == set()


def test_each_kind_of_instability_is_named():
    random = np.random.default_rng(4)
    calm = 100 * np.exp(random.normal(0, 0.003, 12))
    noisy = 100 * np.exp(random.normal(0, 0.3, 12))
    outlier = calm.copy()
    outlier[7] *= 1.3
    modes = calm * np.where(np.arange(12) % 3 == 0, 1.1, 1)
    cold = calm.copy()
    cold[0] *= 0.9
    assert "noisy" in kinds(one_cell(noisy))
    assert kinds(one_cell(outlier)) == {"outlier"}
    assert kinds(one_cell(modes)) == {"two-modes"}
    assert "first-block" in kinds(one_cell(cold))
    assert kinds(one_cell(calm[:4])) == {"few-blocks"}
    assert "trend" in kinds(one_cell(calm * np.linspace(1, 1.1, 12)))
    (found,) = evidence.warnings(one_cell(outlier))
    assert found.cell == "local:0" and found.reason.fields["blocks"] == [8]
    assert "block 8" in str(found.reason) and "+30 %" in str(found.reason)


def test_warnings_of_an_empty_frame_are_none():
    empty = measurements(two_nodes(), blocks=2).clear()
    assert evidence.warnings(empty) == [] and evidence.summarise(empty).is_empty()


@pytest.mark.parametrize(
    ("n", "kth", "level"), [(6, 1, 0.96875), (8, 1, 0.9921875), (9, 2, 0.9609375), (15, 4, 0.9648)]
)
def test_the_interval_of_a_median_is_between_order_statistics(n, kth, level):
    values = list(range(n, 0, -1))
    low, high, reached = evidence.median_interval(values)
    assert (low, high) == (kth, n + 1 - kth) and reached == pytest.approx(level, abs=1e-4)
    assert evidence.median_interval([1.0] * 5) is None
    assert evidence.median_interval(values[:6], 0.975) is None


def test_the_interval_of_a_median_covers_it_as_often_as_it_says():
    rng = np.random.default_rng(7)
    samples = rng.exponential(size=(4000, 9))  # the median is log 2
    ends = np.array([evidence.median_interval(row)[:2] for row in samples])
    inside = (ends[:, 0] <= np.log(2)) & (np.log(2) <= ends[:, 1])
    assert 0.95 < inside.mean() < 0.972


@pytest.mark.parametrize(
    ("given", "real"),
    [
        (("numastat", "numa_miss", "pages", "probe"), True),
        (("meminfo", "free_change", "B", "probe"), True),
        (("tool", "home_share", "share", "allocation"), True),
        (("tool", "allocation_time", "s", "allocation"), False),
        (("tool", "fill_speed", "MiB/s", "allocation"), False),
        (("tool", "events", "count", "sysbench"), False),
        (("cpu", "cpu_busy_share", "share", "allocation"), False),
        (("perf", "instructions", "count", "allocation"), False),
        (("perf", "page-faults", "count", "allocation"), True),
    ],
)
def test_the_unit_says_what_is_real_when_emulated(given, real):
    source, metric, unit, tool = given
    assert evidence.means_something(COUNTED, metric, unit, source, tool) is real
    for badge in (MEASURED, CONFIGURED):  # a configured host's time is the model's
        assert evidence.means_something(badge, metric, unit, source, tool)


def test_no_emulated_host_is_measured():
    plan, host = frames.plan(two_nodes()), frames.host_record(emulated=True)
    claimed = frames.run(plan, host=host, evidence=MEASURED)
    assert not evidence.real(claimed, "triad", "GB/s")
    assert evidence.real(frames.run(plan, host=host, evidence=CONFIGURED), "triad", "GB/s")


def test_a_quotient_without_its_counter_tells_why_the_counter_is_missing():
    rows = pl.DataFrame(
        {
            "metric": ["ipc", "instructions", "cycles"],
            "value": [None, None, 5.0],
            "reason": [evidence.COUNTER_MISSING, "not-supported", None],
            "reason_fields": [json.dumps({"name": "instructions"}), "{}", None],
        }
    )
    absent = Reason("not-supported")
    assert evidence.why_missing(rows, "instructions") == (absent,)
    assert evidence.why_missing(rows, "ipc") == (
        reason("without-counter", name="instructions", why=absent),
    )
    assert str(evidence.why_missing(rows, "ipc")[0]).startswith("no instructions: ")
    assert evidence.why_missing(rows, "cycles") == ()
