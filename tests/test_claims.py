"""Verdicts on claims: every rule on runs whose truth is known."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import frames
import topologies
from frames import Cell, core_latency_frame, host_record, measurements, plan, two_nodes
from numalab import experiments
from numalab.agent.contract import Cache, CaseRequest, Measure, Resolution, Setting, Skip, reason
from numalab.agent.errors import Fault
from numalab.analysis import claims
from numalab.analysis.claims import INCONCLUSIVE, NOT_TESTABLE, REFUTED, SUPPORTED
from numalab.analysis.claims.ratio import Ratio

REMOTE = {"metric": "triad", "cell": "remote", "against": "local"}
MEASURE = {"triad": Measure("GB/s", "higher"), "idle_latency": Measure("ns", "lower")}


def verdict(holds_if, frame=None, host=None, planned=None) -> claims.Verdict:
    cells = two_nodes()
    planned = planned or plan(cells)
    if not planned.request.measure:
        planned = replace(planned, request=replace(planned.request, measure=MEASURE))
    run = frames.run(planned, measurements(cells) if frame is None else frame, host=host)
    (found,) = claims.judge_all(
        [{"id": "c", "says": "It is so", "source": "somewhere", "holds_if": holds_if}], run
    )
    return found


def four_pairs(ratios, **options):
    """Local on node 0 and remote pairs with the given true ratios, as frame and plan."""
    cells = [Cell("local:0", 100.0, role="baseline"),
             Cell("local:0/control", 100.0, "local:0", role="control")]  # fmt: skip
    for node, ratio in enumerate(ratios, 1):
        rank = ("nearest",) if node == 1 else ("farthest",) if node == len(ratios) else ()
        cells.append(Cell(f"remote:0-{node}", 100.0 * ratio, "local:0", rank=rank, distance=20))
    return measurements(cells, noise=0.004, **options), plan(cells)


@pytest.mark.parametrize("pairs", ["every", "worst", "median", "nearest", "farthest"])
@pytest.mark.parametrize(
    ("margin", "said"),
    [
        ({"ratio_at_most": 0.75}, SUPPORTED),
        ({"ratio_at_most": 0.60}, REFUTED),
        ({"ratio_at_most": 0.65}, INCONCLUSIVE),
        ({"ratio_at_least": 0.60}, SUPPORTED),
        ({"ratio_at_least": 0.75}, REFUTED),
        ({"ratio_between": [0.6, 0.7]}, SUPPORTED),
        ({"ratio_between": [0.7, 0.8]}, REFUTED),
        ({"same_within": 0.05}, REFUTED),
    ],
)
def test_the_margin_decides(pairs, margin, said):
    found = verdict({**REMOTE, "pairs": pairs, **margin})
    assert found.verdict == said
    assert "0.6" in found.because and "6 blocks" in found.because
    assert set(found.cells) == {"local:0", "remote:0-1", "local:1", "remote:1-0"}
    assert found.host == "a" and found.claim == "c"


@pytest.mark.parametrize(
    ("pairs", "margin", "said"),
    [
        # ratios 0.9, 0.8, 0.8 and 0.6
        ("every", {"ratio_at_most": 0.95}, SUPPORTED),
        ("every", {"ratio_at_most": 0.7}, REFUTED),
        ("every", {"ratio_at_least": 0.5}, SUPPORTED),
        ("every", {"ratio_at_least": 0.7}, REFUTED),
        ("worst", {"ratio_at_most": 0.7}, SUPPORTED),
        ("worst", {"ratio_at_most": 0.5}, REFUTED),
        ("worst", {"ratio_at_least": 0.7}, REFUTED),
        ("worst", {"ratio_at_least": 0.5}, SUPPORTED),
        ("worst", {"ratio_between": [0.55, 0.65]}, SUPPORTED),
        ("worst", {"ratio_between": [0.75, 0.85]}, REFUTED),
        ("median", {"ratio_between": [0.75, 0.85]}, SUPPORTED),
        ("median", {"ratio_at_most": 0.7}, REFUTED),
        ("nearest", {"ratio_between": [0.85, 0.95]}, SUPPORTED),
        ("farthest", {"ratio_at_most": 0.65}, SUPPORTED),
        ("farthest", {"ratio_at_least": 0.7}, REFUTED),
    ],
)
def test_pairs_are_aggregated_as_documented(pairs, margin, said):
    frame, planned = four_pairs([0.9, 0.8, 0.8, 0.6])
    assert verdict({**REMOTE, "pairs": pairs, **margin}, frame, None, planned).verdict == said


def test_the_worst_pair_is_the_highest_where_lower_is_better():
    frame, planned = four_pairs([1.1, 1.4, 1.8], metric="idle_latency", unit="ns")
    latency = {**REMOTE, "metric": "idle_latency", "pairs": "worst"}
    assert verdict({**latency, "ratio_at_least": 1.6}, frame, None, planned).verdict == SUPPORTED
    assert verdict({**latency, "ratio_at_most": 1.6}, frame, None, planned).verdict == REFUTED
    measure = {"idle_latency": Measure("ns", "higher")}
    other = replace(planned, request=replace(planned.request, measure=measure))
    assert verdict({**latency, "ratio_at_most": 1.2}, frame, None, other).verdict == SUPPORTED


def test_which_way_a_metric_is_better_is_never_guessed():
    """Its unit says nothing: the experiment does, or the claim itself."""
    frame, planned = four_pairs([1.1, 1.4, 1.8], metric="bus_cycles", unit="ns")
    asked = {**REMOTE, "metric": "bus_cycles", "pairs": "worst", "ratio_at_least": 1.6}
    found = verdict(asked, frame, None, planned)
    assert found.verdict == NOT_TESTABLE and found.reason.code == "direction-unknown"
    found = verdict({**asked, "better": "lower"}, frame, None, planned)
    assert found.verdict == SUPPORTED


@pytest.mark.parametrize("name", experiments.names())
def test_every_claim_that_asks_for_the_worst_pair_says_which_way_is_better(name):
    experiment = experiments.load(name)
    for claim in claims.load(experiment.claims):
        for form in claim.holds_if:
            if isinstance(form, Ratio) and form.pairs == "worst":
                assert form.better or form.metric in experiment.measure, claim.id


def test_many_pairs_do_not_find_a_worst_one_by_chance():
    """Every pair is at the margin, and of 40 some 95 % interval lies off it by chance."""
    found = []
    for seed in range(12):
        frame, planned = four_pairs([0.98] * 40, seed=seed)
        asked = {**REMOTE, "pairs": "worst", "ratio_at_most": 0.98}
        found.append(verdict(asked, frame, None, planned).verdict)
    assert found.count(SUPPORTED) <= 2


def test_the_same_needs_the_interval_within_the_margin():
    same = {"metric": "triad", "cell": "unbound", "against": "local", "same_within": 0.05}
    assert verdict(same).verdict == SUPPORTED
    noisy = measurements(two_nodes(), noise=0.2)
    assert verdict(same, noisy).verdict == INCONCLUSIVE


def test_equivalence_is_rarely_shown_at_the_edge_of_the_margin():
    cells = two_nodes(unbound=80.0 * 1.05)
    asked = {"metric": "triad", "cell": "unbound", "against": "local", "same_within": 0.05}
    found = [verdict(asked, measurements(cells, noise=0.02, seed=seed)) for seed in range(60)]
    assert sum(one.verdict == SUPPORTED for one in found) <= 8  # 5 % of 60, and chance


def test_fewer_than_six_verified_blocks_decide_nothing():
    asked = {**REMOTE, "ratio_at_most": 0.75}
    smoke = verdict(asked, measurements(two_nodes(), blocks=2), None,
                    plan(two_nodes(), profile="smoke"))  # fmt: skip
    assert smoke.verdict == INCONCLUSIVE
    assert "too few blocks" in smoke.because and "smoke judges no claim" in smoke.because
    for grade in ("error", "unverified"):
        frame = measurements(two_nodes(), grade={("remote:0-1", 2): grade})
        found = verdict(asked, frame)
        assert found.verdict == INCONCLUSIVE and "5 verified for remote 0-1" in found.because
        longer = measurements(two_nodes(), blocks=7, grade={("remote:0-1", 2): grade})
        assert verdict(asked, longer).verdict == SUPPORTED


def test_only_verified_rows_count():
    found = verdict(
        {**REMOTE, "ratio_at_most": 0.75}, measurements(two_nodes(), grade="unverified")
    )
    assert found.verdict == NOT_TESTABLE
    assert "no trial of these cells is verified (24 graded unverified)" in found.because
    poisoned = measurements(two_nodes(), blocks=7, grade={("remote:0-1", 4): "error"}).with_columns(
        value=pl.when(pl.col("grade") == "error").then(1e6).otherwise("value")
    )
    assert verdict({**REMOTE, "ratio_at_most": 0.75}, poisoned).verdict == SUPPORTED


def test_a_difference_must_lie_beyond_the_control():
    asked = {"metric": "triad", "cell": "unbound", "against": "local", "ratio_at_most": 0.99}
    cells = two_nodes(unbound=78.0, control=77.0)  # the control differs as much: order, not binding
    found = verdict(asked, measurements(cells, noise=0.003), None, plan(cells))
    assert found.verdict == INCONCLUSIVE and "A/A control" in found.because
    assert "the run drifted" in found.because
    alone = {"metric": "triad", "cell": "local", "at_least": 10}
    found = verdict(alone, measurements(cells, noise=0.003), None, plan(cells))
    assert found.verdict == INCONCLUSIVE and "local: the run drifted" in found.because
    cells = two_nodes(unbound=78.0)
    assert verdict(alone, measurements(cells, noise=0.003), None, plan(cells)).verdict == SUPPORTED
    assert verdict(asked, measurements(cells, noise=0.003), None, plan(cells)).verdict == SUPPORTED
    bare = measurements(cells, noise=0.003).filter(pl.col("role") != "control")
    found = verdict(asked, bare, None, plan(cells))
    assert found.verdict == INCONCLUSIVE and "no A/A control" in found.because


def test_refuting_never_slower_needs_a_difference_too():
    asked = {"metric": "triad", "cell": "unbound", "against": "local", "ratio_at_least": 1.0}
    cells = two_nodes(unbound=78.0, control=77.0)
    assert (
        verdict(asked, measurements(cells, noise=0.003), None, plan(cells)).verdict == INCONCLUSIVE
    )
    cells = two_nodes(unbound=70.0)
    assert verdict(asked, measurements(cells, noise=0.003), None, plan(cells)).verdict == REFUTED


def test_a_verdict_says_what_its_pair_stands_for():
    frame, planned = four_pairs([0.6])
    why = reason("stands-for-pairs", here=0, there=1, pairs=56, distance=20)
    cells = [replace(c, stands_for=why) if c.binding == "remote" else c for c in planned.cells]
    planned = replace(planned, cells=tuple(cells))
    found = verdict({**REMOTE, "ratio_at_most": 0.8}, frame, planned=planned)
    assert found.verdict == SUPPORTED
    assert found.because.endswith("; 0→1 stands for 56 pairs at distance 20")


def test_what_the_plan_skipped_cannot_be_tested():
    cells = [cell for cell in two_nodes() if cell.binding != "remote"]
    absent = Resolution("remote", (), reason("one-memory-node", node=0))
    planned = plan(cells, resolved=[absent])
    found = verdict({**REMOTE, "ratio_at_most": 0.75}, measurements(cells), None, planned)
    assert found.verdict == NOT_TESTABLE and found.reason.code == "cell-skipped"
    assert found.reason.fields["why"]["code"] == "one-memory-node"
    assert found.because.startswith("remote was skipped: ")
    found = verdict({**REMOTE, "cell": "preferred", "ratio_at_most": 1}, None, None, plan(cells))
    assert found.verdict == NOT_TESTABLE and "holds no preferred cell" in found.because


def test_no_time_is_judged_on_an_emulated_host_but_placement_is():
    host = host_record(emulated=True)
    found = verdict({**REMOTE, "ratio_at_most": 0.75}, None, host)
    assert found.verdict == NOT_TESTABLE
    assert found.reason.code == "emulated-times"
    pages = measurements(two_nodes(), metric="numa_other", unit="pages", source="numastat")
    found = verdict({**REMOTE, "metric": "numa_other", "ratio_at_most": 0.75}, pages, host)
    assert found.verdict == SUPPORTED


def test_counters_per_instruction():
    cells = two_nodes(local=1e6, remote=1e6, interleave=1.5e6, unbound=1e6)
    misses = measurements(cells, metric="LLC-load-misses", unit="", source="perf")
    work = measurements(
        two_nodes(local=1e9, remote=1e9, interleave=1e9, unbound=1e9),
        metric="instructions", unit="", source="perf", seed=9,
    )  # fmt: skip
    asked = {"metric": "LLC-load-misses", "per": "instructions", "cell": "interleave",
             "against": "local", "ratio_at_least": 1.05}  # fmt: skip
    found = verdict(asked, pl.concat([misses, work]))
    assert found.verdict == SUPPORTED and "LLC-load-misses per instructions" in found.because
    assert verdict(asked, misses).because == "instructions was not measured"
    absent = misses.with_columns(value=pl.lit(None, pl.Float64), reason=pl.lit("not-supported"),
        reason_fields=pl.lit("{}"))  # fmt: skip
    found = verdict(asked, pl.concat([absent, work]))
    assert found.verdict == NOT_TESTABLE and "not supported" in found.because


def test_zeros_and_other_tools_make_no_ratio():
    zeros = measurements(two_nodes(local=1.0)).with_columns(value=pl.lit(0.0))
    found = verdict({**REMOTE, "ratio_at_most": 0.75}, zeros)
    assert found.verdict == NOT_TESTABLE and "0 or less" in found.because
    mixed = measurements(two_nodes()).with_columns(
        tool=pl.when(pl.col("binding") == "remote").then(pl.lit("mlc")).otherwise("tool")
    )
    found = verdict({**REMOTE, "ratio_at_most": 0.75}, mixed)
    assert found.verdict == NOT_TESTABLE and "different tools" in found.because


def test_points_are_chosen_or_all_counted():
    reads = measurements(two_nodes(), metric="bandwidth", point="reads")
    writes = measurements(two_nodes(remote=79.0), metric="bandwidth", point="writes", seed=1)
    both = pl.concat([reads, writes])
    asked = {**REMOTE, "metric": "bandwidth", "ratio_at_most": 0.75}
    assert verdict({**asked, "points": ["reads"]}, both).verdict == SUPPORTED
    assert verdict(asked, both).verdict == REFUTED
    found = verdict({**asked, "points": ["2:1"]}, both)
    assert found.verdict == NOT_TESTABLE and "2:1" in found.because


def test_partners_run_on_the_same_cpus():
    asked = {"metric": "triad", "cell": "interleave", "against": "remote", "ratio_at_least": 1.1}
    found = verdict(asked)
    assert found.verdict == SUPPORTED
    assert set(found.cells) == {"interleave:0", "remote:0-1", "interleave:1", "remote:1-0"}


def test_swept_cells_are_named_and_do_not_mix_with_the_others():
    cells = [*two_nodes(), Cell("local:0/threads=2", 40.0, threads=2, cpus="0-3")]
    frame, planned = measurements(cells), plan(cells)
    asked = {"metric": "triad", "cell": "local/threads=2", "against": "local:0",
             "ratio_at_most": 0.6}  # fmt: skip
    assert verdict(asked, frame, None, planned).verdict == SUPPORTED
    assert verdict({**REMOTE, "ratio_at_most": 0.75}, frame, None, planned).verdict == SUPPORTED


def test_several_predicates_all_have_to_hold():
    holds = {**REMOTE, "ratio_at_most": 0.75}
    fails = {**REMOTE, "ratio_at_most": 0.5}
    open_ = {**REMOTE, "ratio_at_most": 0.65}
    absent = {**REMOTE, "metric": "IPC", "ratio_at_most": 1}
    for predicates, said in (
        ([holds, holds], SUPPORTED),
        ([holds, fails, absent, open_], REFUTED),
        ([holds, absent, open_], NOT_TESTABLE),
        ([holds, open_], INCONCLUSIVE),
    ):
        assert verdict(predicates).verdict == said


@pytest.mark.parametrize(
    ("holds_if", "named"),
    [
        ({**REMOTE}, "exactly one"),
        ({**REMOTE, "ratio_at_most": 1, "same_within": 0.1}, "exactly one"),
        ({**REMOTE, "ratio_between": [2, 1]}, "ratio_between"),
        ({**REMOTE, "ratio_at_most": -1}, "ratio_at_most"),
        ({**REMOTE, "ratio_at_most": 1, "pair": "worst"}, "pair"),
        ({"groups": "shown"}, "groups"),
    ],
)
def test_a_malformed_claim_is_a_fault_that_names_it(holds_if, named):
    with pytest.raises(Fault) as caught:
        claims.load([{"id": "mine", "says": "s", "source": "x", "holds_if": holds_if}])
    assert "claim mine" in caught.value.what


def test_two_claims_of_one_id_are_a_fault():
    entry = {"id": "twice", "says": "s", "source": "x", "holds_if": {"groups": "hidden"}}
    with pytest.raises(Fault, match="twice"):
        claims.load([entry, entry])


# ---------------------------------------------------------------- presence


def hiding_host(nodes: int):
    host = topologies.topology(nodes=nodes, cores=32 // nodes)
    return replace(host, packages=1, caches=(Cache(3, "Unified", None, "0-31"),),
                   cpus=tuple(replace(cpu, package=0, die=None) for cpu in host.cpus))  # fmt: skip


@pytest.mark.parametrize(("nodes", "said"), [(1, SUPPORTED), (4, REFUTED)])
def test_hidden_nodes_are_judged_by_the_latencies(nodes, said):
    group = np.arange(32) // 8
    matrix = np.where(group[:, None] == group[None, :], 50.0, 110.0)
    frame = core_latency_frame(matrix, range(32))
    host = host_record(hiding_host(nodes))
    found = verdict({"groups": "hidden"}, frame, host)
    assert found.verdict == said and "groups" in found.because or said == REFUTED
    assert found.cells == ("unbound",)
    few = frame.filter(pl.col("block") < 5)
    assert verdict({"groups": "hidden"}, few, host).verdict == INCONCLUSIVE
    emulated = host_record(hiding_host(nodes), emulated=True)
    assert verdict({"groups": "hidden"}, frame, emulated).verdict == NOT_TESTABLE
    assert verdict({"groups": "hidden"}, frame.clear(), host).verdict == NOT_TESTABLE
    host = host_record(hiding_host(nodes), before={"virt.hypervisor": "kvm"})
    assert verdict({"groups": "hidden"}, frame, host).verdict in (INCONCLUSIVE, REFUTED)


# ---------------------------------------------------------------- as text


def test_the_table_of_verdicts_is_markdown():
    text = claims.markdown([verdict({**REMOTE, "ratio_at_most": 0.75})])
    head, rule, row = text.splitlines()
    assert head.count("|") == rule.count("|") == row.count("|")
    assert "**supported**" in row and "It is so" in row


def test_a_terminal_shows_the_figures_of_what_was_not_found():
    kept, refuted, unknown = (
        verdict({**REMOTE, "ratio_at_most": 0.75}),
        verdict({**REMOTE, "ratio_at_most": 0.01}),
        verdict({**REMOTE, "cell": "interleave:weighted", "ratio_at_most": 0.75}),
    )
    assert claims.text([kept]) == "supported: It is so"
    says, *figures = claims.text([refuted]).splitlines()
    assert says == "refuted: It is so" and "interval" in " ".join(figures)
    assert claims.text([unknown]) == "not testable here: 1 claim; the article says why"
    says, why = claims.text([unknown], every=True).splitlines()
    assert says == "not testable here: It is so" and "interleave:weighted" in why


# ---------------------------------------------------------------- levels and settings


def cased(values, metric="numa_miss", unit="pages", source="numastat", point="node 1", **more):
    """Cells of one binding in cases, each with the same list of values in every block."""
    cells = [
        Cell(f"cpus-only:0/{name}", 1.0, None if not i else "cpus-only:0/empty",
             "control" if "control" in name else "cell" if i else "baseline")
        for i, name in enumerate(values)
    ]  # fmt: skip
    blocks = max(map(len, values.values()))
    frame = measurements(
        cells, metric=metric, unit=unit, source=source, point=point, blocks=blocks, **more
    )
    by_cell = {f"cpus-only:0/{name}": list(of) for name, of in values.items()}
    frame = frame.with_columns(
        value=pl.struct("cell", "block").map_elements(
            lambda row: float(by_cell[row["cell"]][row["block"] - 1]), return_dtype=pl.Float64
        )
    )
    return frame, plan(cells)


FULL = {"empty": [0, 0, 0, 1, 0, 0], "full": [199, 200, 190, 205, 199, 198]}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"cell": "cpus-only/full", "at_least": 190}, SUPPORTED),
        ({"cell": "cpus-only/full", "at_least": 195}, INCONCLUSIVE),
        ({"cell": "cpus-only/full", "at_least": 210}, REFUTED),
        ({"cell": "cpus-only:0/full", "at_most": 205}, SUPPORTED),
        ({"cell": "cpus-only/full", "at_most": 180}, REFUTED),
        ({"cell": "cpus-only/full", "between": [100, 300]}, SUPPORTED),
        ({"cell": "cpus-only/full", "between": [300, 400]}, REFUTED),
        ({"cell": "cpus-only/empty", "at_most": 1}, SUPPORTED),
        ({"cell": "cpus-only/empty", "at_most": 0}, INCONCLUSIVE),
        ({"cell": "cpus-only/empty", "at_least": 2}, REFUTED),
    ],
)
def test_a_level_is_judged_by_the_median_and_its_interval(asked, said):
    frame, planned = cased(FULL)
    asked = {"metric": "numa_miss", "point": "node 1", **asked}
    found = verdict(asked, frame, None, planned)
    assert found.verdict == said
    assert "96.9% interval" in found.because and "from 6 blocks" in found.because
    assert found.cells == (f"cpus-only:0/{asked['cell'].rpartition('/')[2]}",)
    # Counters are real where times are not.
    assert verdict(asked, frame, host_record(emulated=True), planned).verdict == said


def test_a_level_says_its_figures():
    frame, planned = cased(FULL)
    asked = {"metric": "numa_miss", "point": "node 1", "cell": "cpus-only/full", "at_least": 195}
    assert verdict(asked, frame, None, planned).because == (
        "numa miss node 1, cpus-only 0/full: median 199 pages, 96.9% interval [190 pages, "
        "205 pages] from 6 blocks; the claim asks for at least 195 pages; "
        "the interval straddles the margin"
    )


def test_five_blocks_decide_no_level():
    frame, planned = cased({"empty": [0] * 5, "full": [200] * 5})
    asked = {"metric": "numa_miss", "cell": "cpus-only/full", "at_least": 100}
    found = verdict(asked, frame, None, planned)
    assert found.verdict == INCONCLUSIVE and "5 verified" in found.because


def test_a_level_per_another_metric_and_of_every_point():
    pages, planned = cased({"empty": [5] * 6, "full": [50] * 6}, unit="B")
    both = pl.concat([
        pages,
        pages.with_columns(metric=pl.lit("size"), value=pl.lit(100.0), point=pl.lit("")),
        pages.with_columns(point=pl.lit("node 0"), value=pl.col("value") + 40),
    ])  # fmt: skip
    asked = {"metric": "numa_miss", "per": "size", "cell": "cpus-only/full", "point": "node 1"}
    found = verdict({**asked, "between": [0.4, 0.6]}, both, None, planned)
    assert found.verdict == SUPPORTED and "numa miss per size node 1" in found.because
    del asked["point"]
    found = verdict({**asked, "at_least": 0.45}, both, None, planned)
    assert found.verdict == SUPPORTED and "of 2 the least favourable" in found.because
    found = verdict({**asked, "at_least": 0.6}, both, None, planned)
    assert found.verdict == INCONCLUSIVE  # 96.9 % is not enough for two
    assert "not beyond chance once the number of cells is paid for" in found.because
    of_points = both.with_columns(
        point=pl.when(pl.col("metric") == "size").then(pl.lit("node 1")).otherwise("point")
    )
    more = pl.concat([of_points, of_points.filter(pl.col("metric") == "size").with_columns(
        point=pl.lit("node 0"), value=pl.lit(900.0))])  # fmt: skip
    found = verdict({**asked, "point": "node 0", "at_most": 0.11}, more, None, planned)
    assert found.verdict == SUPPORTED and "0.1," in found.because


def test_a_level_of_a_time_is_not_judged_on_an_emulated_host():
    frame, planned = cased(FULL, "allocation_time", "s", "tool", tool="allocation", point="")
    asked = {"metric": "allocation_time", "cell": "cpus-only/full", "at_least": 1}
    emulated = host_record(emulated=True)
    assert verdict(asked, frame, None, planned).verdict == SUPPORTED
    assert verdict(asked, frame, emulated, planned).verdict == NOT_TESTABLE
    frame, planned = cased(FULL, "minor_faults", "count", "tool", tool="allocation", point="")
    asked["metric"] = "minor_faults"
    assert verdict(asked, frame, emulated, planned).verdict == SUPPORTED
    asked["metric"] = "events"  # a count in a fixed time is a speed
    frame, planned = cased(FULL, "events", "count", "tool", tool="sysbench", point="")
    assert verdict(asked, frame, emulated, planned).verdict == NOT_TESTABLE


def test_what_a_level_cannot_find_is_said():
    frame, planned = cased(FULL)
    asked = {"metric": "numa_miss", "cell": "cpus-only/full", "at_least": 1}
    absent = verdict({**asked, "metric": "nonesuch"}, frame, None, planned)
    assert absent.verdict == NOT_TESTABLE and "nonesuch was not measured" in absent.because
    elsewhere = verdict({**asked, "point": "node 7"}, frame, None, planned)
    assert elsewhere.verdict == NOT_TESTABLE and "not measured at node 7" in elsewhere.because
    skips = (
        Skip("cpus-only", "cpus-only:0/other", reason("one-node"), "other"),
        Skip("cpus-only", "cpus-only:0/off", reason("settings-absent", names=["lru_gen.enabled"]),
             "off"),
    )  # fmt: skip
    planned = replace(planned, skipped=skips)
    skipped = verdict({**asked, "cell": "cpus-only/off"}, frame, None, planned)
    assert skipped.verdict == NOT_TESTABLE and skipped.reason.code == "cell-skipped"
    assert skipped.reason.fields["why"]["code"] == "settings-absent"
    assert "lru_gen.enabled" in skipped.because
    nothing = verdict({**asked, "cell": "remote/none"}, frame, None, planned)
    assert nothing.because == "the run holds no remote/none cell"
    cases = (CaseRequest("empty"), CaseRequest("full"))
    planned = replace(planned, request=replace(planned.request, cases=cases))
    twice = [{**asked, "cell": "cpus-only/none"}, {**asked, "cell": "cpus-only/none"}]
    nothing = verdict(twice, frame, None, planned)
    assert nothing.because == "this run leaves out none (profile quick)"


def test_cases_are_compared_with_each_other():
    empty = [100, 101, 99, 100, 102, 98]
    frame, planned = cased({"empty": empty, "empty/control": empty[::-1],
                            "full": [300] * 6})  # fmt: skip
    asked = {"metric": "numa_miss", "cell": "cpus-only/full", "against": "cpus-only/empty",
             "ratio_at_least": 2}  # fmt: skip
    found = verdict(asked, frame, None, planned)
    assert found.verdict == SUPPORTED
    assert found.cells == ("cpus-only:0/full", "cpus-only:0/empty")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("vm.zone_reclaim_mode", "0", SUPPORTED),
        ("vm.zone_reclaim_mode", 0, SUPPORTED),
        ("vm.zone_reclaim_mode", "1", REFUTED),
        ("lru_gen.enabled", "0x0007", SUPPORTED),
        ("lru_gen.enabled", "0x0000", REFUTED),
        ("thp.enabled", "always", NOT_TESTABLE),
        ("vm.nonesuch", "1", NOT_TESTABLE),
    ],
)
def test_a_setting_is_what_the_host_had_before(name, value, said):
    before = {"vm.zone_reclaim_mode": Setting("0"), "vm.lru_gen": Setting("0x0003"),
              "thp.enabled": Setting(None, reason("no-such-setting"))}  # fmt: skip
    host = replace(host_record(emulated=True), before=before)
    found = verdict({"setting": name, "is": value}, None, host)
    assert found.verdict == said
    if said in (SUPPORTED, REFUTED):
        shown = "0x0003" if name == "lru_gen.enabled" else "0"
        assert found.because == (f"{name} was {shown} before the run; the claim asks for {value}")


@pytest.mark.parametrize(
    ("holds_if", "words"),
    [
        ({"metric": "a", "cell": "b", "at_most": 1, "at_least": 0}, "exactly one of at_most"),
        ({"metric": "a", "cell": "b", "between": [2, 1]}, "between is"),
        ({"metric": "a", "cel": "b", "at_most": 1}, "unknown key 'cel'. did you mean cell?"),
        (
            {"metric": "a", "cell": "b", "against": "c", "at_most": 1},
            "at_most: unknown key, did you mean ratio_at_most?",
        ),
        ({"metric": "a", "cell": "b"}, "holds_if: against: this key is missing"),
        ({"setting": "vm.swappiness", "iz": "1"}, "unknown key 'iz'"),
        ({"seting": "vm.swappiness", "is": "1"}, "unknown key 'seting'. did you mean setting?"),
        ([{"metric": "a", "cell": "b", "at_mots": 1}], "holds_if.0: unknown key 'at_mots'"),
        ([], "claim c: holds_if says nothing"),
        ("numa_miss", "this is no predicate"),
    ],
)
def test_a_mistake_in_a_predicate_is_told_of_that_predicate(holds_if, words):
    with pytest.raises(Fault) as error:
        verdict(holds_if)
    assert words in str(error.value)
