"""Ratios, intervals, decisions, drift and warnings, against known distributions and SciPy."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from frames import Cell, measurements, two_nodes
from numalab.analysis import statistics
from numalab.analysis.statistics import Ratio

POSITIVE = st.floats(min_value=0.1, max_value=1e6)
PAIRS = st.lists(st.tuples(POSITIVE, POSITIVE), min_size=2, max_size=12)


def close(one: Ratio, other: Ratio, tolerance: float = 1e-9) -> bool:
    return all(
        math.isclose(a, b, rel_tol=tolerance)
        for a, b in ((one.ratio, other.ratio), (one.low, other.low), (one.high, other.high))
    )


# ---------------------------------------------------------------- intervals


@pytest.mark.parametrize(
    ("blocks", "draw", "least"),
    [
        (6, lambda random, shape: random.normal(size=shape), 0.925),
        (15, lambda random, shape: random.normal(size=shape), 0.925),
        (10, lambda random, shape: random.uniform(-1, 1, size=shape), 0.925),
        # heavy tails and skew: the docstring says how far short it falls
        (15, lambda random, shape: random.standard_t(5, size=shape), 0.88),
        (10, lambda random, shape: random.exponential(size=shape) - 1, 0.88),
    ],
)
def test_the_interval_covers_the_truth_as_often_as_it_says(blocks, draw, least):
    values = draw(np.random.default_rng(blocks), (600, blocks))
    low, high = statistics.bootstrap_interval(values)
    covered = np.mean((low <= 0) & (high >= 0))
    assert least <= covered <= 0.98


def test_without_the_expansion_six_blocks_would_cover_too_little():
    values = np.random.default_rng(6).normal(size=(400, 6))
    plain = stats.bootstrap(
        (values,), np.mean, axis=-1, method="BCa", n_resamples=1999,
        rng=np.random.default_rng(1), vectorized=True,
    ).confidence_interval  # fmt: skip
    assert np.mean((plain.low <= 0) & (plain.high >= 0)) < 0.91


def test_the_interval_is_scipys_at_the_expanded_confidence():
    for seed in range(5):
        logs = np.sort(np.random.default_rng(seed).normal(size=9))
        low, high = statistics.bootstrap_interval(logs)
        sign = -1 if ((logs - logs.mean()) ** 3).sum() < 0 else 1
        expected = stats.bootstrap(
            (np.sort(sign * logs),), np.mean, method="BCa", n_resamples=statistics.RESAMPLES,
            confidence_level=statistics.expanded_confidence(0.95, 9),
            rng=np.random.default_rng(statistics.SEED), vectorized=True,
        ).confidence_interval  # fmt: skip
        ends = sorted(sign * end for end in expected)
        # SciPy's own ties are at the mercy of rounding, which moves its ends by this much
        assert (low[0], high[0]) == pytest.approx(ends, abs=0.01 * (ends[1] - ends[0]))


def test_the_expansion_fades_with_the_number_of_values():
    sizes = [2, 3, 6, 15, 100, 10000]
    expanded = [statistics.expanded_confidence(0.95, n) for n in sizes]
    assert expanded == sorted(expanded, reverse=True)
    assert expanded[-1] == pytest.approx(0.95, abs=1e-4)
    with pytest.raises(ValueError):
        statistics.expanded_confidence(0.95, 1)


def test_rows_do_not_influence_each_other():
    values = np.random.default_rng(0).normal(size=(40, 7))
    together = statistics.bootstrap_interval(values)
    alone = [statistics.bootstrap_interval(row) for row in values]
    assert np.allclose(together[0], [low[0] for low, _ in alone], rtol=1e-12)
    assert np.allclose(together[1], [high[0] for _, high in alone], rtol=1e-12)


# ---------------------------------------------------------------- paired ratios


def test_a_ratio_is_the_geometric_mean_of_the_blocks_ratios():
    found = statistics.paired_ratio([2, 8, 4], [1, 1, 1])
    assert found.ratio == pytest.approx(4)
    assert found.n == 3
    assert found.low < 4 < found.high


@settings(max_examples=25, deadline=None)
@given(PAIRS, st.floats(min_value=0.01, max_value=100))
def test_scaling_both_changes_nothing_and_scaling_one_scales_the_ratio(pairs, factor):
    cell, base = zip(*pairs, strict=True)
    plain = statistics.paired_ratio(cell, base)
    both = statistics.paired_ratio([factor * v for v in cell], [factor * v for v in base])
    one = statistics.paired_ratio([factor * v for v in cell], base)
    assert close(plain, both, 1e-5)
    assert one.ratio == pytest.approx(factor * plain.ratio, rel=1e-6)
    assert one.low == pytest.approx(factor * plain.low, rel=1e-5)
    assert one.high == pytest.approx(factor * plain.high, rel=1e-5)


@settings(max_examples=25, deadline=None)
@given(PAIRS, st.randoms())
def test_the_order_of_rows_changes_nothing(pairs, random):
    blocks = list(range(1, len(pairs) + 1))
    shuffled = blocks.copy()
    random.shuffle(shuffled)
    cell, base = zip(*pairs, strict=True)
    plain = statistics.paired_ratio(cell, base, blocks)
    moved = statistics.paired_ratio([cell[block - 1] for block in shuffled], base, shuffled, blocks)
    assert close(plain, moved)


@settings(max_examples=25, deadline=None)
@given(PAIRS)
def test_swapping_cell_and_baseline_inverts_the_ratio(pairs):
    cell, base = zip(*pairs, strict=True)
    there, back = statistics.paired_ratio(cell, base), statistics.paired_ratio(base, cell)
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.low <= there.ratio * (1 + 1e-9)
    assert there.low == pytest.approx(1 / back.high, rel=1e-5)
    assert there.high == pytest.approx(1 / back.low, rel=1e-5)


def test_equal_values_give_an_interval_of_no_width():
    found = statistics.paired_ratio([3.0] * 6, [2.0] * 6)
    assert (found.low, found.ratio, found.high) == pytest.approx((1.5, 1.5, 1.5))


def test_missing_values_drop_their_block_and_say_so():
    found = statistics.paired_ratio([1, None, 3, 4], [1, 2, float("nan"), 4], [1, 2, 3, 5])
    assert found.n == 2
    assert found.dropped == {2: "the value is missing", 3: "baseline: the value is missing"}
    apart = statistics.paired_ratio([1, 2], [1, 2], [1, 2], [2, 3])
    assert apart.n == 1
    assert apart.ratio == pytest.approx(2)
    assert apart.low is None and apart.reason == "one block has no interval"
    assert set(apart.dropped) == {1, 3}


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_zero_or_less_has_no_ratio(bad):
    found = statistics.paired_ratio([1, bad, 1], [1, 1, 1])
    assert found.ratio is None and found.n == 0
    assert "block 2" in found.reason
    assert statistics.paired_ratio([], []).reason.startswith("no block holds both")
    with pytest.raises(ValueError):
        statistics.paired_ratio([1, 2], [1, 2], [1])


# ---------------------------------------------------------------- decisions


@pytest.mark.parametrize(
    ("interval", "control", "blocks", "said"),
    [
        ((0.8, 0.9), (0.95, 1.05), 6, statistics.EFFECT),
        ((1.1, 1.2), (0.95, 1.05), 6, statistics.EFFECT),
        ((0.9, 0.96), (0.95, 1.05), 6, statistics.NO_EFFECT),  # overlaps the control
        ((0.9, 1.01), (0.99, 1.0), 6, statistics.NO_EFFECT),
        ((0.99, 1.01), (1.02, 1.03), 6, statistics.NO_EFFECT),  # 1 is inside: no effect
        ((0.8, 0.9), (0.95, 1.05), 5, statistics.TOO_FEW),
        ((None, None), (0.95, 1.05), 6, statistics.TOO_FEW),
        ((0.8, 0.9), (None, None), 6, statistics.NO_CONTROL),
    ],
)
def test_an_effect_lies_outside_the_control_and_one(interval, control, blocks, said):
    assert statistics.effect(*interval, *control, blocks) == said


# ---------------------------------------------------------------- tables


def test_summarise_gives_the_figures_of_a_cell():
    frame = measurements(two_nodes(), blocks=8)
    values = frame.filter(pl.col("cell") == "remote:0-1")["value"].to_numpy()
    for made in (statistics.summarise(frame), statistics.summarise(frame.lazy(), ["triad"])):
        row = made.row(by_predicate=pl.col("cell") == "remote:0-1", named=True)
        low, high = stats.t.interval(0.95, 7, values.mean(), stats.sem(values))
        assert (row["n"], row["n_error"], row["n_unverified"]) == (8, 0, 0)
        assert row["median"] == pytest.approx(np.median(values))
        assert (row["mean"], row["low"], row["high"]) == pytest.approx((values.mean(), low, high))
    assert statistics.summarise(frame, ["copy"]).is_empty()


def test_error_rows_are_never_averaged_in_and_unverified_ones_are_counted():
    grades = {("local:0", 1): "error", ("local:0", 2): "unverified", ("remote:0-1", 3): "error"}
    frame = measurements(two_nodes(), blocks=7, grade=grades)
    spoilt = frame.with_columns(
        value=pl.when(pl.col("grade") == "error").then(1e9).otherwise("value")
    )
    row = statistics.summarise(spoilt).row(by_predicate=pl.col("cell") == "local:0", named=True)
    assert (row["n"], row["n_error"], row["n_unverified"]) == (6, 1, 1)
    assert row["high"] < 100
    ratio = statistics.ratios(spoilt).row(by_predicate=pl.col("cell") == "remote:0-1", named=True)
    assert (ratio["n"], ratio["n_unverified"]) == (5, 1)
    assert ratio["ratio"] < 1 and ratio["decision"] == statistics.TOO_FEW
    assert "block 1: baseline graded error" in ratio["dropped"]
    assert "block 3: graded error" in ratio["dropped"]


def test_a_cell_without_a_value_keeps_its_row():
    frame = measurements([Cell("local:0", 1.0)], grade="error")
    row = statistics.summarise(frame).row(0, named=True)
    assert (row["n"], row["n_error"], row["mean"], row["low"]) == (0, 6, None, None)
    one = statistics.summarise(measurements([Cell("local:0", 1.0)], blocks=1)).row(0, named=True)
    assert (one["n"], one["low"], one["high"]) == (1, None, None)


def test_the_table_of_ratios_agrees_with_the_single_ratio():
    frame = measurements(two_nodes(), blocks=9, noise=0.05)
    table = statistics.ratios(frame)
    assert set(table["cell"]) == {cell.id for cell in two_nodes() if cell.baseline}
    for row in table.iter_rows(named=True):
        one, other = (
            frame.filter(pl.col("cell") == name).sort("block")["value"]
            for name in (row["cell"], row["baseline"])
        )
        alone = statistics.paired_ratio(one.to_list(), other.to_list())
        assert (row["ratio"], row["low"], row["high"]) == pytest.approx(
            (alone.ratio, alone.low, alone.high)
        )
        assert row["reason"] is None
    control = statistics.aa_interval(frame, "triad")
    assert np.allclose(table["aa_low"], control.low)
    said = dict(table.select("cell", "decision").iter_rows())
    assert said["remote:0-1"] == said["interleave:1"] == statistics.EFFECT
    assert said["local:0/control"] == statistics.CONTROL


def test_shuffled_rows_and_other_runs_change_no_ratio():
    frame = measurements(two_nodes(), blocks=6)
    other = measurements(two_nodes(remote=10), blocks=6, seed=1, run="other", host="b")
    both = pl.concat([frame, other]).sample(fraction=1, shuffle=True, seed=3)
    alone = statistics.ratios(frame)
    among = statistics.ratios(both).filter(pl.col("host") == "a")
    assert among.drop("ratio", "low", "high", "aa_low", "aa_high").equals(
        alone.drop("ratio", "low", "high", "aa_low", "aa_high")
    )
    for name in ("ratio", "low", "high"):
        assert np.allclose(among[name], alone[name])


def test_what_makes_no_ratio_says_why():
    cells = [Cell("local:0", 5.0, role="baseline"), Cell("remote:0-1", 3.0, "local:0")]
    frame = measurements(cells)
    there = pl.col("cell") == "remote:0-1"
    zero = frame.with_columns(value=pl.when(there & (pl.col("block") == 2)).then(0.0)
                              .otherwise("value"))  # fmt: skip
    missing = frame.with_columns(value=pl.when(~there).then("value"),
                                 reason=pl.when(there).then(pl.lit("no permission")))  # fmt: skip
    tools = frame.with_columns(tool=pl.when(there).then(pl.lit("mlc")).otherwise("tool"))
    for spoilt, why in (
        (zero, "0 or less"),
        (missing, "no block holds both"),
        (tools, "different tools: mlc and probe"),
        (frame.filter(there), "no block holds both"),
        (frame.filter(pl.col("block") == 1), "one block has no interval"),
    ):
        row = statistics.ratios(spoilt).row(0, named=True)
        assert why in row["reason"]
        assert row["low"] is None
        assert (row["ratio"] is None) == (row["decision"] is None)
    dropped = statistics.ratios(missing).row(0, named=True)["dropped"]
    assert "block 1: the value is missing: no permission" in dropped


def test_without_a_control_nothing_counts_as_an_effect():
    frame = measurements(two_nodes()).filter(pl.col("role") != "control")
    assert set(statistics.ratios(frame)["decision"]) == {statistics.NO_CONTROL}
    assert "no A/A control" in statistics.aa_interval(frame, "triad").reason


def test_the_pairing_removes_what_blocks_have_in_common():
    frame = measurements(two_nodes(), blocks=10, noise=0.005, block_noise=0.2)
    ratios = statistics.ratios(frame)
    remote = ratios.row(by_predicate=pl.col("cell") == "remote:0-1", named=True)
    assert math.log(remote["high"] / remote["low"]) < 0.02
    assert remote["low"] < 52 / 80 < remote["high"]


# ---------------------------------------------------------------- drift and warnings


def test_drift_is_found_with_its_size_and_not_without():
    steady = measurements(two_nodes(), blocks=8, noise=0.01)
    rising = measurements(two_nodes(), blocks=8, noise=0.01, drift=0.10)
    assert statistics.drifts(steady)["drifting"].to_list() == [False]
    row = statistics.drifts(rising).row(0, named=True)
    assert row["drifting"] and row["low"] < row["percent"] < row["high"]
    assert row["percent"] == pytest.approx(9.5, abs=1)
    assert statistics.drift([1, 2], [1, 2]).reason == "too few trials to see a trend"
    assert statistics.drift([5] * 8, range(8)).percent == 0


def test_theil_sen_shrugs_off_an_outlier():
    values = [100 + i for i in range(20)]
    values[10] = 10_000
    assert statistics.drift(values, range(20)).percent == pytest.approx(100 * 19 / 110, rel=0.05)


def kinds(frame: pl.DataFrame) -> set:
    return set(statistics.warnings(frame)["kind"])


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
    assert kinds(one_cell(modes)) == {"two modes"}
    assert "first block" in kinds(one_cell(cold))
    assert kinds(one_cell(calm[:4])) == {"few blocks"}
    assert "drift" in kinds(one_cell(calm * np.linspace(1, 1.1, 12)))
    text = statistics.warnings(one_cell(outlier))["text"][0]
    assert "block 8" in text and "+30 %" in text


def test_warnings_of_an_empty_frame_are_an_empty_table():
    empty = measurements(two_nodes(), blocks=2).clear()
    for table in (statistics.warnings(empty), statistics.drifts(empty), statistics.ratios(empty)):
        assert table.is_empty()
    assert statistics.summarise(empty).is_empty()


@pytest.mark.parametrize(
    ("n", "kth", "level"), [(6, 1, 0.96875), (8, 1, 0.9921875), (9, 2, 0.9609375), (15, 4, 0.9648)]
)
def test_the_interval_of_a_median_is_between_order_statistics(n, kth, level):
    values = list(range(n, 0, -1))
    low, high, reached = statistics.median_interval(values)
    assert (low, high) == (kth, n + 1 - kth) and reached == pytest.approx(level, abs=1e-4)
    assert statistics.median_interval([1.0] * 5) is None
    assert statistics.median_interval(values[:6], 0.975) is None


def test_the_interval_of_a_median_covers_it_as_often_as_it_says():
    rng = np.random.default_rng(7)
    samples = rng.exponential(size=(4000, 9))  # the median is log 2
    ends = np.array([statistics.median_interval(row)[:2] for row in samples])
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
    assert statistics.real_when_emulated(*given) is real


def test_a_quotient_without_its_counter_tells_why_the_counter_is_missing():
    rows = pl.DataFrame(
        {
            "metric": ["ipc", "instructions", "cycles"],
            "value": [None, None, 5.0],
            "reason": ["instructions has no value", "not supported", None],
        }
    )
    assert statistics.why_missing(rows, "ipc") == "no instructions: not supported"
    assert statistics.why_missing(rows, "instructions") == "not supported"
    assert statistics.why_missing(rows, "cycles") == ""
