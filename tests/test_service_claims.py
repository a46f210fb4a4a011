"""The claims on a service per node: the forms that there are can say each of them."""

from dataclasses import replace

import pytest

import service_frames
from frames import host_record
from numalab.analysis import claims
from numalab.analysis.claims import INCONCLUSIVE, NOT_TESTABLE, REFUTED, SUPPORTED
from numalab.show.view import View

SATURATED = service_frames.SATURATED
NODES = "instances:nodes"


def said(run, **holds_if):
    entry = {"id": "c", "says": "It is so", "source": "somewhere", "holds_if": holds_if}
    (found,) = claims.judge_all([entry], run)
    return found


def ratio(cell, against, metric=SATURATED, **margin):
    return {"metric": metric, "cell": cell, "against": against, **margin}


PUBLISHED = [
    ("twice", ratio(NODES, "unbound", ratio_at_least=1.9), SUPPORTED),
    ("at least 80 % more", ratio(NODES, "unbound", ratio_at_least=1.8), SUPPORTED),
    ("half the latency", ratio(NODES, "unbound", "saturation_latency_avg", ratio_at_most=0.5),
     INCONCLUSIVE),
    ("CPU per request", ratio(NODES, "unbound", "cpu_per_request", ratio_at_most=0.45), REFUTED),
    ("binding, not splitting", ratio(NODES, "instances:unbound", ratio_at_least=1.1), SUPPORTED),
    ("splitting alone", ratio("instances:unbound", "unbound", ratio_at_least=1.1), SUPPORTED),
    ("UseNUMA does as well", ratio("unbound/use_numa=on", NODES, same_within=0.05), REFUTED),
    ("hardly any gain", ratio(NODES, "unbound", ratio_between=[0.98, 1.06]), REFUTED),
]  # fmt: skip


@pytest.mark.parametrize(("name", "holds_if", "verdict"), PUBLISHED, ids=[n for n, *_ in PUBLISHED])
def test_each_claim_has_its_verdict_on_a_host_where_the_truth_is_known(name, holds_if, verdict):
    """There nodes do 2.0 times as much as one server, with half of its latency and CPU time."""
    found = said(service_frames.run(), **holds_if)
    assert found.verdict == verdict, found.because


def test_use_numa_that_does_as_well_is_the_same():
    run = service_frames.run(service_frames.cells(**{"unbound/use_numa=on": 8000.0}))
    found = said(run, **ratio("unbound/use_numa=on", NODES, same_within=0.05))
    assert found.verdict == SUPPORTED, found.because


def on_one_node(run):
    """The run as on a host that shows one node: what needs a second one is not there."""
    made = replace(run, host=host_record(service_frames.topology(nodes=1)))
    made.__dict__["measurements"] = run.measurements
    return made


def test_splitting_alone_can_be_tested_on_one_node_and_memory_policies_cannot():
    """Several servers differ from one wherever they are; a policy needs two nodes to differ."""
    run = on_one_node(service_frames.run())
    found = said(run, **ratio("instances:unbound", "unbound", ratio_at_least=1.1))
    assert found.verdict == SUPPORTED, found.because
    for holds_if in (
        ratio("interleave:unbound", "unbound", ratio_at_least=1),
        ratio("unbound/use_numa=on", "unbound", ratio_at_least=1),
    ):
        found = said(run, **holds_if)
        assert found.verdict == NOT_TESTABLE
        assert found.reason.code == "alike-on-one-node"


@pytest.mark.parametrize(("name", "holds_if", "verdict"), PUBLISHED, ids=[n for n, *_ in PUBLISHED])
def test_no_claim_is_judged_on_an_emulated_host(name, holds_if, verdict):
    found = said(service_frames.run(emulated=True), **holds_if)
    assert found.verdict == NOT_TESTABLE and found.reason.code == "emulated-times"


def test_a_metric_that_the_load_has_not_is_not_testable():
    """An objective of 10 ms needs a rate that is searched for: no cell measures that."""
    found = said(service_frames.run(), **ratio(NODES, "unbound", "requests_at_10_ms",
                                               ratio_at_least=1.3))  # fmt: skip
    assert found.verdict == NOT_TESTABLE and found.reason.code == "metric-not-measured"


def test_every_claim_of_the_experiment_has_a_verdict_where_its_cells_are():
    """UseNUMA is a cell of the full profile alone; there all nine are decided or straddle."""
    found = View(service_frames.run()).verdicts()
    assert {one.claim for one in found} == {
        "nodes-eighty-percent-more", "nodes-nearly-double", "nodes-halve-latency",
        "nodes-need-less-cpu", "binding-and-not-splitting", "splitting-alone",
        "splitting-keeps-throughput", "splitting-shortens-tail", "use-numa-as-good",
    }  # fmt: skip
    assert [one.because for one in found if one.verdict == NOT_TESTABLE] == []
    verdicts = {one.claim: one.verdict for one in found}
    assert verdicts["nodes-nearly-double"] == SUPPORTED
    assert verdicts["splitting-keeps-throughput"] == REFUTED
