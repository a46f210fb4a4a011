"""The one judge: what it names, what it leaves, and that all who ask it hear the same."""

import dataclasses
import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import frames
from frames import Cell, measurements, two_nodes
from numalab.agent.contract import Measure
from numalab.agent.plan import budget
from numalab.analysis import judge, recommendation
from numalab.analysis.evidence import Grid
from numalab.analysis.judge import ALIKE, DIFFERENT, DRIFTED, Judge
from numalab.show import results


def grid(cells=5, blocks=6, noise=0.02, seed=0, shifts=(), control=True):
    """A grid of like cells (the first two baseline and control) but for ``shifts`` (logs)."""
    logs = noise * np.random.default_rng(seed).standard_normal((cells, blocks))
    logs[cells - len(shifts) :] += np.array(shifts).reshape(-1, 1) if shifts else 0
    names = ("baseline", "control", *(f"cell{n}" for n in range(2, cells)))
    return Grid(names, tuple(range(1, blocks + 1)), logs,
                {"control": "baseline"} if control else {})  # fmt: skip


def judged(evidence, **options):
    return Judge(evidence, [(name, "baseline") for name in evidence.cells[2:]], **options)


def ratio_row(frame, cells, name):
    return judge.ratios(frame, frames.plan(cells)).row(
        by_predicate=pl.col("cell") == name, named=True
    )


# ---------------------------------------------------------------- the ratio


def test_a_ratio_is_the_geometric_mean_over_the_blocks():
    logs = np.log([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [2.0, 8.0, 4.0]])
    found = judged(Grid(("baseline", "control", "cell2"), (1, 2, 3), logs,
                        {"control": "baseline"})).compare("cell2", "baseline")  # fmt: skip
    assert found.ratio == pytest.approx(4) and found.n == 3


def test_the_baseline_counts_under_both_its_names():
    logs = np.log([[1.0] * 6, [1.21] * 6, [2.0] * 6])
    found = judged(Grid(("baseline", "control", "cell2"), tuple(range(6)), logs,
                        {"control": "baseline"})).compare("cell2", "baseline")  # fmt: skip
    assert found.ratio == pytest.approx(2 / 1.1)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.floats(min_value=-3, max_value=3))
def test_swapping_inverts_and_scaling_all_changes_nothing(seed, scale):
    plain = grid(seed=seed, shifts=(0.1, 0.3))
    one = judged(plain).compare("cell4", "baseline")
    back = judged(plain).compare("baseline", "cell4")
    assert one.ratio == pytest.approx(1 / back.ratio) and one.decision == back.decision
    assert (one.low, one.high) == pytest.approx((1 / back.high, 1 / back.low))
    scaled = dataclasses.replace(plain, logs=plain.logs + scale)
    other = judged(scaled).compare("cell4", "baseline")
    assert dataclasses.astuple(other)[:3] == pytest.approx(dataclasses.astuple(one)[:3], rel=1e-6)


def test_what_blocks_have_in_common_is_no_noise():
    cells = two_nodes()
    frame = measurements(cells, blocks=10, noise=0.005, block_noise=0.2)
    row = ratio_row(frame, cells, "remote:0-1")
    assert math.log(row["high"] / row["low"]) < 0.02 and row["low"] < 52 / 80 < row["high"]


def test_equal_values_give_an_interval_of_no_width():
    logs = np.log([[2.0] * 6, [2.0] * 6, [3.0] * 6])
    found = judged(Grid(("baseline", "control", "cell2"), tuple(range(6)), logs,
                        {"control": "baseline"})).compare("cell2", "baseline")  # fmt: skip
    assert (found.low, found.ratio, found.high) == pytest.approx((1.5, 1.5, 1.5))
    assert found.decision == DIFFERENT


# ---------------------------------------------------------------- decisions


@pytest.mark.parametrize(("seed", "sign"), [(seed, sign) for seed in range(5) for sign in (1, -1)])
def test_a_clear_effect_is_named_and_its_like_are_not(seed, sign):
    found = judged(grid(cells=9, seed=seed, shifts=(sign * 0.12,)))
    assert found.compare("cell8", "baseline").decision == DIFFERENT
    assert [found.compare(f"cell{n}", "baseline").decision for n in range(2, 8)] == [ALIKE] * 6


def test_fewer_than_six_blocks_or_no_control_decide_nothing():
    few = judged(grid(blocks=5, shifts=(0.5,))).compare("cell4", "baseline")
    assert few.decision == judge.TOO_FEW and few.low is None and few.ratio > 1.4
    bare = judged(grid(shifts=(0.5,), control=False)).compare("cell4", "baseline")
    assert bare.decision == judge.NO_CONTROL and bare.low > 1
    missing = grid(blocks=6, shifts=(0.5,))
    missing.logs[1, 2] = np.nan  # five blocks of the control
    assert judged(missing).compare("cell4", "baseline").decision == judge.NO_CONTROL


@pytest.mark.parametrize("sign", [1, -1])
def test_a_control_that_differs_from_its_like_withholds_every_verdict(sign):
    wandering = grid(noise=0.002, shifts=(0.5,))
    wandering.logs[1] += sign * 0.02
    found = judged(wandering)
    assert found.drifted and found.compare("cell4", "baseline").decision == DRIFTED
    assert found.compare("control", "baseline").decision == DRIFTED
    steady = grid(noise=0.002, shifts=(0.5,))
    steady.logs[1] += sign * 0.004  # less than half a percent beyond chance
    assert judged(steady).compare("cell4", "baseline").decision == DIFFERENT


@pytest.mark.parametrize("sign", [1, -1])
def test_an_effect_is_greater_than_what_the_control_shows_in_either_direction(sign):
    """No drift is proven, but what a like cell shows by chance is no effect in another one."""
    evidence = grid(cells=20, blocks=15, noise=0.016)
    evidence.logs[[0, 1, 19]] -= evidence.logs[[0, 1, 19]].mean(axis=1, keepdims=True)
    evidence.logs[1] += sign * 0.019
    evidence.logs[19] += sign * 0.019 / 2 + 0.018
    found = judged(evidence)
    effect = found.compare("cell19", "baseline")
    assert not found.drifted and effect.low > 1
    assert effect.decision == ALIKE


def test_a_noisy_cell_names_no_difference_for_its_noise():
    named = 0
    for seed in range(60):
        evidence = grid(cells=9, seed=seed)
        evidence.logs[8] *= 4
        named += judged(evidence).compare("cell8", "baseline").different
    assert named <= 6


@pytest.mark.parametrize(("cells", "blocks"), [(3, 6), (5, 6), (9, 15)])
def test_a_cell_ten_times_noisier_is_judged_by_its_own_blocks(cells, blocks):
    named = found = 0
    for seed in range(60):
        evidence = grid(cells, blocks, seed=seed, shifts=(0.1, 0.0)[-(cells - 2) :])
        evidence.logs[-1] *= 10
        judge_of = judged(evidence)
        effect = judge_of.compare(f"cell{cells - 1}", "baseline")
        named += effect.different
        found += judge_of.noisier == (f"cell{cells - 1}",)
        if cells > 3:  # the others are judged by their own noise
            assert judge_of.compare(f"cell{cells - 2}", "baseline").low > 1
    assert named <= (2 if cells > 3 else 7)  # of 3 cells one pair has 4.5 % for itself
    assert cells == 3 or found >= 55


def test_the_interval_of_a_noisier_cell_is_that_of_its_differences():
    evidence = grid(5, 8, seed=3)
    evidence.logs[4] *= 20
    evidence.logs[4, 2] = np.nan
    found = judged(evidence).compare("cell4", "baseline")
    apart = np.delete(evidence.logs[4] - evidence.logs[:2].mean(axis=0), 2)
    alone = stats.t.interval(0.9, 6, apart.mean(), stats.sem(apart))
    assert found.n == 7 and found.inner == pytest.approx(tuple(np.exp(alone)))
    wide = stats.t.ppf(1 - 0.045 / 3 / 2, 6) * stats.sem(apart)
    assert math.log(found.high / found.low) == pytest.approx(2 * wide)


def test_of_cells_with_the_same_noise_hardly_any_is_called_noisier():
    alike = [judged(grid(9, 6, seed=seed)).noisier for seed in range(300)]
    assert sum(map(bool, alike)) <= 3


def test_counts_that_never_vary_but_in_one_cell_are_compared_as_they_are():
    logs = np.zeros((5, 6))
    logs[3] += 0.1
    logs[4] = 0.02 * np.random.default_rng(1).standard_normal(6)
    names = ("baseline", "control", "cell2", "cell3", "cell4")
    found = judged(Grid(names, tuple(range(6)), logs, {"control": "baseline"}))
    assert found.noisier == ("cell4",) and found.noise == 0
    assert found.compare("cell3", "baseline").different
    assert found.compare("cell2", "baseline").decision == ALIKE


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 12))
def test_lost_trials_leave_the_estimates_of_least_squares(seed, lost):
    evidence = grid(5, 8, seed=seed)
    random = np.random.default_rng(seed)
    evidence.logs.flat[random.choice(40, lost, replace=False)] = np.nan
    found = judged(evidence)
    if found.noisier:
        return
    where, when = np.nonzero(np.isfinite(evidence.logs))
    both = np.hstack([np.eye(5)[where], np.eye(8)[when]])
    values = evidence.logs[where, when]
    fitted = both @ np.linalg.lstsq(both, values, rcond=None)[0]
    freedom = len(values) - np.linalg.matrix_rank(both)
    assert found.noise == pytest.approx(math.sqrt(((values - fitted) ** 2).sum() / freedom))


def test_a_missing_value_costs_one_block_and_keeps_the_others():
    evidence = grid(blocks=8, seed=1, shifts=(0.3,))
    evidence.logs[4, 2] = evidence.logs[2, 5] = np.nan
    found = judged(evidence).compare("cell4", "baseline")
    assert (found.n, found.dropped, found.decision) == (7, 1, DIFFERENT)
    assert found.ratio == pytest.approx(math.exp(0.3), rel=0.05)


def test_any_other_pair_pays_more_than_those_that_the_run_is_made_for():
    found = judged(grid(cells=9, shifts=(0.05,)))
    planned, other = found.compare("cell8", "baseline"), found.compare("cell8", "cell3")
    assert planned.high / planned.low < other.high / other.low


def test_a_gap_over_a_gap_is_bounded_by_both():
    found = judged(grid(cells=9, shifts=(0.4, 0.2, 0.0)))
    one, other = found.compare("cell6", "baseline"), found.compare("cell7", "baseline")
    gap = one.over(other)
    assert gap.ratio == pytest.approx(one.ratio / other.ratio) and gap.different
    assert gap.low == pytest.approx(one.low / other.high)
    assert not one.over(one).different
    few = judged(grid(blocks=5)).compare("cell4", "baseline")
    assert one.over(few).decision == judge.TOO_FEW


def test_the_median_of_ratios_lies_within_the_medians_of_their_bounds():
    found = judged(grid(cells=9, shifts=(0.4, 0.3, 0.2)))
    effects = [found.compare(f"cell{n}", "baseline") for n in (6, 7, 8)]
    middle = judge.middle(effects)
    assert middle.ratio == pytest.approx(math.exp(0.3), rel=0.03) and middle.different
    assert middle.low < middle.ratio < middle.high
    assert judge.middle(effects[:1]) is effects[0]


# ---------------------------------------------------------------- of runs


def test_the_table_of_ratios():
    cells = two_nodes()
    frame = measurements(cells, blocks=9, noise=0.02)
    table = judge.ratios(frame, frames.plan(cells))
    assert set(table["cell"]) == {cell.id for cell in cells if cell.baseline}
    said = dict(table.select("cell", "decision").iter_rows())
    assert said["remote:0-1"] == said["interleave:1"] == DIFFERENT
    assert said["local:0/control"] == judge.AA and said["unbound"] == ALIKE
    control = table.row(by_predicate=pl.col("role") == "control", named=True)
    assert set(table["aa_low"]) == {control["low"]} and set(table["aa_high"]) == {control["high"]}
    shuffled = judge.ratios(frame.sample(fraction=1, shuffle=True, seed=3), frames.plan(cells))
    for name in ("ratio", "low", "high"):
        assert np.allclose(shuffled[name], table[name])


def test_what_makes_no_ratio_says_why():
    cells = [Cell("local:0", 5.0, role="baseline"), Cell("remote:0-1", 3.0, "local:0")]
    frame = measurements(cells)
    there = pl.col("cell") == "remote:0-1"
    second = there & (pl.col("block") == 2)
    for spoilt, code in (
        (frame.with_columns(value=pl.when(second).then(0.0).otherwise("value")),
         "value-not-positive"),
        (frame.with_columns(tool=pl.when(there).then(pl.lit("mlc")).otherwise("tool")),
         "different-tools"),
        (frame.filter(there), "cell-without-value"),
        (frame.filter(there == (pl.col("block") > 3)), "no-shared-block"),
    ):  # fmt: skip
        row = ratio_row(spoilt, cells, "remote:0-1")
        assert row["reason"] == code and row["decision"] == judge.NO_RATIO
        assert row["ratio"] is None and row["low"] is None
    one = ratio_row(frame.filter(pl.col("block") == 1), cells, "remote:0-1")
    assert one["decision"] == judge.TOO_FEW and one["low"] is None and one["ratio"] < 1
    assert judge.ratios(frame.clear(), frames.plan(cells)).is_empty()


def test_points_of_one_metric_share_what_chance_may_err():
    cells = two_nodes()
    one = measurements(cells, point="reads")
    more = [measurements(cells, point=f"{n} threads", seed=n) for n in range(1, 8)]
    plan = frames.plan(cells)
    alone = judge.of(one, plan, "triad", "reads").compare("remote:0-1", "local:0")
    among = judge.of(pl.concat([one, *more]), plan, "triad", "reads").compare(
        "remote:0-1", "local:0"
    )
    assert among.ratio == alone.ratio and among.high / among.low > alone.high / alone.low


def test_the_table_and_the_recommendation_say_the_same():
    """The asymmetric case: the A/A ratio is far below 1, the gain a little above its inverse."""
    cells = [
        Cell("unbound", 100.0, role="baseline", cpus=None),
        Cell("unbound/control", 100.0, "unbound", role="control", cpus=None),
        Cell("local:0", 106.0, "unbound"),
        Cell("interleave:0", 100.0, "unbound"),
    ]
    measure = {"triad": Measure("GB/s", "higher")}
    for seed in range(12):
        for wander in (0.9, 0.97, 1.0, 1.03, 1.1):
            frame = measurements(cells, noise=0.02, seed=seed)
            value = pl.col("value") * pl.when(pl.col("role") == "control").then(wander).otherwise(1)
            run = frames.run(frames.plan(cells, measure=measure), frame.with_columns(value=value))
            table = results.table(run, "triad")
            said = dict(table.select("cell", "decision").iter_rows())
            named = recommendation.of(run).cell is not None
            gains = [row["cell"] for row in table.iter_rows(named=True)
                     if row["decision"] == DIFFERENT and row["ratio"] > 1]  # fmt: skip
            assert named == bool(gains), said


# ---------------------------------------------------------------- what a run sees


def test_the_smallest_effect_is_seen_as_often_as_it_says():
    smallest = judged(grid(noise=0)).smallest_effect(0.02)
    assert 0.035 < smallest < 0.05  # 5 % at 2 % noise is seen
    seen = [
        judged(grid(seed=seed, shifts=(math.log1p(smallest),))).compare("cell4", "baseline")
        for seed in range(200)
    ]
    assert 0.84 <= np.mean([one.different for one in seen]) <= 0.97
    assert judged(grid(blocks=5, noise=0)).smallest_effect(0.02) is None
    assert judged(grid(control=False)).smallest_effect() is None
    more = judged(grid(cells=9, noise=0)).smallest_effect(0.02)
    assert more > smallest > judged(grid(blocks=15, noise=0)).smallest_effect(0.02)
    assert judged(grid(noise=0)).smallest_effect(0.04) > 1.9 * smallest


def test_a_run_says_the_smallest_effect_that_it_could_see():
    cells = two_nodes()
    plan = frames.plan(cells, measure={"triad": Measure("GB/s", "higher")}, blocks=9)
    frame = measurements(cells, blocks=9, noise=0.01)
    (told,) = judge.sights(frames.run(plan, frame))
    assert told.noise == pytest.approx(0.01, rel=0.3) and not told.noisier
    assert told.smallest == pytest.approx(judge.smallest_effect(plan, told.noise), rel=0.15)
    loud = next(cell for cell in cells if cell.id == "interleave:1")
    loud.noise = 0.2
    (told,) = judge.sights(frames.run(plan, measurements(cells, blocks=9, noise=0.01)))
    assert told.noisier == (loud.id,) and told.smallest < 0.03
    assert loud.id in str(told)
    few = frames.run(plan, measurements(cells, blocks=5))
    assert judge.sights(few)[0].smallest is None


# ---------------------------------------------------------------- several looks


def looking(frame, cells, blocks, looks, within=0.03):
    plan = frames.plan(cells, blocks=blocks, measure={"triad": Measure("GB/s", "higher")},
                       until=within, looks=looks)  # fmt: skip
    return frames.run(plan, frame.filter(pl.col("block") <= blocks))


def test_what_looks_may_spend_adds_up_to_all():
    plan = frames.plan(two_nodes(), blocks=48, looks=budget.looks(48))
    shares = [judge.share_of_look(plan, look) for look in plan.request.looks]
    assert plan.request.looks == (6, 9, 14, 21, 32, 48) and sum(shares) == pytest.approx(1)
    assert shares[0] == pytest.approx(6 / 48) and min(shares) > 0
    assert judge.share_of_look(plan, 7) == shares[1]  # before a look: as at it
    assert judge.share_of_look(frames.plan(two_nodes()), 6) == 1


def test_a_run_is_decided_when_all_differs_or_is_alike():
    cells = [
        Cell("unbound", 100.0, role="baseline", cpus=None),
        Cell("unbound/control", 100.0, "unbound", role="control", cpus=None),
        Cell("local:0", 120.0, "unbound"),
        Cell("interleave:0", 100.0, "unbound"),
    ]
    frame = measurements(cells, blocks=30, noise=0.02)
    early, late = (looking(frame, cells, blocks, (6, 13, 30)) for blocks in (6, 30))
    assert judge.undecided(early, 0.03) == (2, ["triad: interleave 0 over unbound"])
    assert judge.undecided(early, 0.2) == (2, [])
    assert judge.undecided(late, 0.03) == (2, [])
    bare = looking(frame.filter(pl.col("role") != "control"), cells, 30, (6, 13, 30))
    assert len(judge.undecided(bare, 0.03)[1]) == 2  # without a control nothing is ever decided


def test_a_look_asks_for_more_than_a_run_that_is_looked_at_once():
    cells = two_nodes()
    frame = measurements(cells, blocks=9)
    once = judge.of(frame, frames.plan(cells, blocks=9), "triad")
    often = judge.of(frame, frames.plan(cells, blocks=9, looks=(6, 9, 14)), "triad")
    assert often.level == pytest.approx(once.level * 3 / 14)
    one, other = (found.compare("remote:0-1", "local:0") for found in (once, often))
    assert one.ratio == other.ratio and one.high / one.low < other.high / other.low


def test_runs_that_are_looked_at_often_err_no_more_often():
    looks, wrong = (6, 9, 14, 20), 0
    for seed in range(60):
        whole = grid(5, looks[-1], seed=seed)
        for earlier, look in zip((0, *looks), looks, strict=False):
            cut = dataclasses.replace(whole, logs=whole.logs[:, :look], blocks=tuple(range(look)))
            found = judged(cut, share=(look - earlier) / looks[-1])
            if any(found.compare(*pair).different for pair in found.planned):
                wrong += 1
                break
    assert wrong <= 6


# ---------------------------------------------------------------- before a run


def test_a_plan_foresees_by_the_hosts_own_noise_where_it_is_known():
    cells = two_nodes()
    plan = frames.plan(cells, measure={"triad": Measure("GB/s", "higher")})
    (assumed,) = judge.foresee(plan)
    assert assumed.run is None and assumed.smallest == pytest.approx(0.051, abs=0.003)
    earlier = frames.run(plan, measurements(cells, noise=0.001, blocks=15))
    other = frames.run(frames.plan(cells, experiment="latency"), measurements(cells, noise=0.5))
    (known,) = judge.foresee(plan, [earlier, other])
    assert known.run == earlier.manifest.run and known.noise == pytest.approx(0.001, rel=0.3)
    assert known.smallest < 0.004
    bare = frames.plan([cell for cell in cells if cell.role != "control"],
                       measure=plan.request.measure)  # fmt: skip
    assert judge.foresee(bare)[0].smallest is None
    assert str(assumed).startswith("triad: effects of 5.1 % or more") and "assumed" in str(assumed)
    assert earlier.manifest.run in str(known)
    assert "no effect of any size" in str(judge.foresee(bare)[0])
