"""bench/known.py: is what was found what was counted? Its arithmetic; it measures in guests."""

import importlib.util
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from numalab import experiments
from numalab.analysis import judge
from numalab.lab import hosts

ROOT = Path(__file__).resolve().parent.parent
_spec = importlib.util.spec_from_file_location("bench_known", ROOT / "bench" / "known.py")
known = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(known)


def effect(decision):
    return judge.Effect(1.0, None, None, None, 6, decision)


def trials(time, stall, wobble=0.0, instructions=50_000.0):
    """Six blocks of a cell; every second pair of blocks is slower by ``wobble``."""
    return {
        block: known.Cost(
            *[time * (1 + wobble * ((block - 1) // 2 % 2))] * 2, instructions, stall, 0.5
        )
        for block in range(1, 7)
    }


LOCAL = trials(100_000.0, 20_000.0)


def said(mine, decision=judge.DIFFERENT, smallest=0.02, control=False):
    return known.compare(mine, LOCAL, effect(decision), smallest, control)


def test_a_query_costs_what_was_counted_while_the_client_measured(monkeypatch):
    counted = {"instructions": 4e6, "stall_ps": 6e9, "near_bytes": 300, "far_bytes": 100}
    records = [
        {"kind": "run", "clients": 2, "elapsed_s": 4.2, "model": counted},
        {"kind": "result", "name": "queries_per_second", "value": 90, "checkpoint_s": 1},
        {"kind": "result", "name": "queries_per_second", "value": 100},
        {"kind": "result"},
    ]
    monkeypatch.setattr(known.store, "read_raw", lambda folder, name: "")
    monkeypatch.setattr(
        known.drivers, "driver", lambda name: SimpleNamespace(parse=lambda text: records)
    )
    run = SimpleNamespace(
        folder=None,
        plan=SimpleNamespace(tool=SimpleNamespace(name="mysql")),
        cells={
            "local:0": SimpleNamespace(options={"time_s": 4}, cpus="0-3"),
            "cores:1": SimpleNamespace(options={"time_s": 4}, cpus="2"),
        },
    )
    # 400 queries in 4 s of two clients, who wait for a CPU where there is but one.
    for cell, time, passed in (("local:0", 2e7, 2.1e7), ("cores:1", 1e7, 1.05e7)):
        trial = SimpleNamespace(raw={"stdout": ""}, cell=cell)
        assert known.cost(run, trial) == known.Cost(time, passed, 10_000.0, 15_000.0, 0.25)


def test_what_the_model_counts_is_what_the_client_must_find():
    held, words = said(trials(105_000.0, 25_000.0))
    assert held and "counted +5.00%  equal +5.00%  found +5.00%" in words
    held, words = said(trials(107_000.0, 25_000.0))
    assert not held and "not what was counted" in words


def test_stall_is_set_against_as_many_instructions():
    """A tenth more instructions, which take their time and stall as often: no memory cost that."""
    held, words = said(trials(115_500.0, 27_500.0, instructions=55_000.0))
    assert held and "counted +5.00%  equal +5.00%  found +15.50%" in words


@pytest.mark.parametrize(("wobble", "holds"), [(0.004, True), (0.012, False)])
def test_repetitions_agree_within_a_hundredth(wobble, holds):
    held, words = said(trials(105_000.0, 25_000.0, wobble))
    assert held is holds and ("repetitions differ" in words) is not holds


def test_an_effect_greater_than_what_the_run_sees_must_be_found():
    of_five = trials(105_000.0, 25_000.0)
    assert said(of_five, judge.ALIKE, smallest=0.06)[0]
    held, words = said(of_five, judge.ALIKE, smallest=0.02)
    assert not held and "not seen" in words


def test_nothing_is_found_where_nothing_was_planted():
    assert said(trials(100_000.0, 20_000.0), judge.ALIKE)[0]
    held, words = said(trials(100_000.0, 20_000.0), judge.DIFFERENT)
    assert not held and "not there" in words


def test_of_the_control_only_the_repetitions_count():
    assert said(trials(100_500.0, 25_000.0), judge.AA, control=True)[0]


def test_the_mean_is_that_of_logarithms():
    two = [known.Cost(1.0, 1.0, 1.0, 1.0, 0.0), known.Cost(4.0, 1.0, 1.0, 1.0, 0.0)]
    assert known.mean(two).time == pytest.approx(math.sqrt(4.0))


def test_spread_cores_are_set_against_as_many_packed_ones():
    def base_of(id, baseline):
        return known.base_of(SimpleNamespace(id=id, baseline=baseline))

    assert base_of("cores:4-spread", "cores:8-packed") == "cores:4-packed"
    assert base_of("cores:4-packed", "cores:8-packed") == ""
    assert base_of("remote:0-1", "local:0") == "local:0"


def test_every_part_has_its_experiment_and_a_host_with_configured_timing():
    for name, part in known.PARTS.items():
        file = experiments.load(ROOT / "bench" / "known" / f"{part.experiment}.yml")
        assert file.profiles[part.profile].blocks == 2 * known.REPETITIONS, name
        assert hosts.load(part.host).timing, name
        assert part.beside in ("", *known.PARTS)
