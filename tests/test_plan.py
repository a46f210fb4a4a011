"""Plans: the request is checked, the tool is chosen, the trials are in randomised blocks."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import topologies
from numalab.agent import cpulist
from numalab.agent import drivers as tools
from numalab.agent.collectors import event_files
from numalab.agent.contract import (
    SCHEMA,
    Cell,
    CpuExpectation,
    Driver,
    Expectation,
    MemoryExpectation,
    MemoryPolicy,
    Plan,
    Prepared,
    Request,
    Timing,
    ToolRecord,
    from_json,
    reason,
    to_json,
)
from numalab.agent.drivers.probe import Probe
from numalab.agent.errors import Fault, NotHere
from numalab.agent.plan import make as plan
from numalab.agent.plan import order, show

GIB = 1 << 30


class FakeDriver(Driver):
    """A driver that sizes its array by the CPUs and refuses options that it does not know."""

    def __init__(self, name, missing=None, need=GIB, shrink_to=None):
        self.name, self.missing, self.need, self.shrink_to = name, missing, need, shrink_to
        self.known = ("threads", "array", "repeat")
        self.calls = []

    def find(self, options):
        if self.missing:
            raise Fault(self.missing, f"install {self.name}")
        return ToolRecord(self.name, "5.10", f"/usr/bin/{self.name}")

    def prepare(self, options, host, cpus, memory_nodes):
        self.calls.append((dict(options), cpus, memory_nodes))
        for key in options:
            if key not in self.known:
                raise Fault(f"{self.name} has no option {key!r}")
        ready = {"threads": len(cpulist.parse(cpus)), "array": self.need, **options}
        notes = ()
        if self.shrink_to and memory_nodes == "1":
            ready["array"] = self.shrink_to
            notes = (reason("stream-rule-not-met", node=1),)
        return Prepared(ready, ready["array"], notes)

    def timing(self, options):
        return Timing(warmup_s=1.0, measure_s=2.0, setup_s=0.5)


@pytest.fixture
def drivers(monkeypatch):
    """A registry of fake drivers; a test changes what is in it."""
    known = {
        "stream": FakeDriver("stream", missing="stream is not on PATH"),
        "probe": FakeDriver("probe"),
    }

    def driver(name):
        if name not in known:
            raise Fault(f"there is no tool {name!r}", f"known: {', '.join(known)}")
        return known[name]

    monkeypatch.setattr(tools, "driver", driver, raising=False)
    return known


def request(**changes):
    asked = {
        "schema": SCHEMA,
        "experiment": "stream",
        "question": "How much bandwidth is lost?",
        "profile": "quick",
        "host": "here",
        "tool": {"name": "stream", "prefer": ["stream", "probe"], "options": {}},
        "bindings": ["local", "remote", "interleave", "unbound"],
        "baseline": "local",
        "control": True,
        "blocks": 6,
        "seed": 7,
        "pairs": "every",
        **changes,
    }
    return from_json(Request, asked, "the request")


def by_id(made):
    return {cell.id: cell for cell in made.cells}


def codes(reasons):
    return [one.code for one in reasons]


def test_a_plan_holds_all_that_a_run_needs(drivers):
    made = plan.make(request(), topologies.topology(2))
    assert from_json(Plan, json.loads(json.dumps(to_json(made)))) == made
    assert made.schema == SCHEMA
    assert made.request.collectors.perf and made.request.collectors.interval_s == 1.0
    assert made.tool == ToolRecord("probe", "5.10", "/usr/bin/probe", ("stream is not on PATH",))
    assert list(by_id(made)) == [
        "local:0", "local:0/control", "local:1", "remote:0-1", "remote:1-0",
        "interleave:0", "interleave:1", "unbound",
    ]  # fmt: skip
    assert len(made.order) == 48 and made.warnings == ()
    each, once = 3.5 + plan.TRIAL_OVERHEAD_S, plan.RUN_OVERHEAD_S
    assert made.estimate == Timing(24, 48, 96, round(48 * each + once, 3))
    assert made.cells[0].options == {"threads": 4, "array": GIB}
    assert order.left_s(made) == pytest.approx(48 * each)
    assert order.left_s(made, done={1, 2}) == pytest.approx(46 * each)
    assert [trial.trial for trial, _ in order.trials(made)] == list(range(1, 49))
    assert all(trial.cell == cell.id for trial, cell in order.trials(made))


def test_a_driver_that_lacks_what_others_rely_on_is_told_by_name(drivers):
    drivers["stream"].resolves = drivers["probe"].resolves = ("array", "writes")
    with pytest.raises(Fault, match="the driver of probe resolves no option 'writes'"):
        plan.make(request(), topologies.topology(2))


def test_a_mistake_in_a_file_of_events_is_told_before_anything_is_measured(drivers, monkeypatch):
    def wrong():
        raise Fault("events/mine.txt, line 2 ('x y'): it is no line of EVENTS")

    monkeypatch.setattr(event_files, "groups", wrong)
    with pytest.raises(Fault, match="mine.txt, line 2"):
        plan.make(request(), topologies.topology(2))
    assert plan.make(request(collectors=None), topologies.topology(2)).order


def test_the_control_is_the_first_baseline_under_a_second_name(drivers):
    found = by_id(plan.make(request(), topologies.topology(2)))
    twin, first = found["local:0/control"], found["local:0"]
    assert twin.role == "control" and twin.baseline == "local:0"
    same = ("binding", "cpus", "memory", "numactl", "options", "expects", "threads")
    assert all(getattr(twin, key) == getattr(first, key) for key in same)
    assert "local:0/control" not in by_id(plan.make(request(control=False), topologies.topology(2)))


def test_the_first_tool_that_is_there_is_taken(drivers):
    drivers["stream"].missing = None
    assert plan.make(request(), topologies.topology(1)).tool.why == ()
    drivers["stream"].missing = drivers["probe"].missing = "not there"
    with pytest.raises(Fault, match="no tool can measure stream: not there; not there"):
        plan.make(request(), topologies.topology(1))
    drivers["probe"].missing = None  # what a tool that is there says counts, and nothing else
    with pytest.raises(Fault) as said:
        wrong = {"name": "stream", "prefer": ["stream", "probe"], "options": {"arrray": 1}}
        plan.make(request(tool=wrong), topologies.topology(2))
    assert said.value.what == "probe has no option 'arrray'"
    drivers["stream"].missing = None
    drivers["stream"].known = ("threads",)  # passed over: it cannot do what is asked
    asked = {"name": "stream", "prefer": ["stream", "probe"], "options": {"repeat": 5}}
    made = plan.make(request(tool=asked), topologies.topology(1))
    assert (made.tool.name, made.tool.why) == ("probe", ("stream has no option 'repeat'",))
    assert {skip.binding for skip in made.skipped} == {"remote", "interleave"}
    with pytest.raises(Fault, match="there is no tool 'strem'"):
        plan.make(request(tool={"name": "strem"}), topologies.topology(1))


def test_a_tool_that_finds_nothing_to_do_on_this_host_makes_an_empty_plan(drivers, monkeypatch):
    def refuse(*given):
        raise NotHere("pages have no choice of nodes")

    monkeypatch.setattr(drivers["probe"], "prepare", refuse)
    made = plan.make(request(), topologies.topology(1))
    assert made.cells == () and made.order == ()
    assert "pages have no choice of nodes" in {
        skip.reason.fields.get("what") for skip in made.skipped
    }
    assert "nothing of this is measured" in show.text(made)


def test_unbound_runs_the_threads_of_its_baseline(drivers):
    host = topologies.topology(2, cores=4, threads=2)
    assert by_id(plan.make(request(), host))["unbound"].threads == 8
    for word, number in (("half", 4), ("cores", 4), ("all", 8), (3, 3)):
        asked = request(tool={"name": "probe", "options": {"threads": word}})
        found = by_id(plan.make(asked, host))
        assert {cell.threads for cell in found.values()} == {number}
    found = by_id(plan.make(request(baseline="unbound"), host))
    assert found["unbound"].threads == 16 and found["local:0"].threads == 8
    notes = list(map(str, found["local:0"].notes))
    assert "threads is 8 here, 16 in unbound" in notes
    assert any("compared as a whole" in note for note in notes)


def test_the_driver_is_asked_for_the_cells_own_cpus_and_memory(drivers):
    plan.make(request(bindings=["local", "interleave", "cpus-only", "unbound"]),
              topologies.topology(2))  # fmt: skip
    seen = [(cpus, nodes) for _, cpus, nodes in drivers["probe"].calls]
    assert seen == [
        ("0-3", "0"), ("4-7", "1"), ("0-3", "0-1"), ("4-7", "0-1"), ("0-3", "0"), ("4-7", "1"),
        ("0-7", "0-1"),
    ]  # fmt: skip


def test_what_a_node_cannot_hold_is_skipped_and_what_is_smaller_is_said(drivers):
    some = {"free_bytes": GIB // 4, "page_cache_bytes": GIB // 4}
    host = topologies.with_node(topologies.topology(2), 1, **some)
    made = plan.make(request(), host)
    reasons = {skip.cell: str(skip.reason) for skip in made.skipped}
    assert reasons["local:1"] == "it needs 1.0 GiB, but node 1 can hold 512 MiB at most"
    assert set(reasons) == {"local:1", "remote:0-1"}
    found = by_id(made)  # interleaving has just room for half of 1 GiB on each node
    assert str(found["interleave:0"].notes[0]) == (
        "needs 1.0 GiB, free is 512 MiB: page cache must make room first"
    )
    assert found["remote:1-0"].baseline is None
    assert "compared-with-nothing" in codes(found["remote:1-0"].notes)
    drivers["probe"].shrink_to = GIB // 8
    found = by_id(plan.make(request(), host))
    assert found["remote:0-1"].need_bytes == GIB // 8
    assert found["remote:0-1"].notes == (
        reason("stream-rule-not-met", node=1),
        reason("option-differs", option="array", value=GIB // 8, cell="local:0", its=GIB),
    )
    assert str(found["remote:0-1"].notes[1]) == "array is 128 MiB here, 1.0 GiB in local:0"
    rows = reason("option-differs", option="rows", value=100_000_000, cell="local:0", its=2)
    assert str(rows) == "rows is 100000000 here, 2 in local:0"


def test_the_first_baseline_that_can_be_measured_takes_its_place(drivers):
    nothing = {"free_bytes": 0, "page_cache_bytes": 0}
    host = topologies.with_node(topologies.topology(2), 0, **nothing)
    found = by_id(plan.make(request(), host))
    assert found["unbound"].baseline == "local:1" and "local:1/control" in found


def test_an_option_that_the_tool_does_not_know_is_a_fault(drivers):
    with pytest.raises(Fault, match="probe has no option 'arrray'"):
        plan.make(request(tool={"name": "probe", "options": {"arrray": 1}}), topologies.topology(2))


def test_a_sweep_keeps_the_cpus_and_merges_what_is_the_same(drivers):
    sweep = {"option": "threads", "values": [1, 2, "half", "all", 64], "bindings": ["local"]}
    made = plan.make(request(sweep=[sweep]), topologies.topology(2))
    found = by_id(made)
    copies = {name: cell for name, cell in found.items() if cell.sweep}
    assert list(copies) == [f"local:{n}/threads={v}" for n in (0, 1) for v in (1, 2)]
    for name, cell in copies.items():
        base = found[name.partition("/")[0]]
        same = ("cpus", "cpu_order", "memory", "numactl", "expects")
        assert all(getattr(cell, key) == getattr(base, key) for key in same)
        assert cell.threads == cell.options["threads"] == cell.sweep.value
        assert cell.variant == f"threads={cell.threads}"
        assert cell.role == "baseline" and cell.baseline is None
    assert {s.cell for s in made.skipped} == {"local:0/threads=64", "local:1/threads=64"}
    assert made.skipped[-1].reason == reason("threads-beyond-cpus", threads=4)
    found = by_id(plan.make(request(sweep=[sweep]), topologies.topology(1, cores=2)))
    assert [name for name in found if "threads=" in name] == ["local:0/threads=1"]


def test_swept_cells_are_compared_at_the_same_value(drivers):
    sweep = {
        "option": "threads",
        "values": [1, 2, "half", "all"],
        "bindings": ["remote", "unbound", "local"],
    }
    found = by_id(plan.make(request(sweep=[sweep]), topologies.topology(2)))
    assert found["remote:0-1/threads=1"].baseline == "local:0/threads=1"
    assert found["unbound/threads=1"].baseline == "local:0/threads=1"
    assert found["remote:0-1/threads=2"].baseline == "local:0/threads=2"
    assert found["remote:0-1"].baseline == "local:0"
    sweep["bindings"] = ["remote"]
    found = by_id(plan.make(request(sweep=[sweep]), topologies.topology(2)))
    assert found["remote:0-1/threads=1"].baseline is None
    sweep.update(option="repeat", values=[5, 9])
    found = by_id(plan.make(request(sweep=[sweep]), topologies.topology(2)))
    assert found["remote:0-1/repeat=9"].options["repeat"] == 9


def test_a_pair_stands_for_its_class_unless_every_is_asked_for(drivers):
    host = topologies.topology(8, sockets=2, cores=2)
    sweep = {"option": "threads", "values": [1], "bindings": ["local", "remote"]}
    made = plan.make(request(pairs="class", sweep=[sweep]), host)
    kinds = [cell.binding for cell in made.cells if not cell.sweep and cell.role != "control"]
    assert kinds == ["local", "remote", "remote", "interleave", "unbound"]
    assert len([cell for cell in made.cells if cell.sweep]) == 3
    said = {str(cell.stands_for).partition(" ")[2] for cell in made.cells if cell.sweep}
    assert {"stands for 24 pairs at distance 12", "stands for 32 pairs at distance 20"} < said
    printed = " ".join(show.text(made).split())
    assert "stands for 32 pairs at distance 20" in printed
    (local,) = (cell for cell in made.cells if cell.role == "baseline" and not cell.sweep)
    assert dict(resolved(made))["remote"][0] and dict(resolved(made))["local"][0][0] == local.id
    assert len(plan.make(request(pairs="every"), host).cells) == 1 + 8 + 56 + 8 + 1
    for wrong in ("some", ""):
        with pytest.raises(Fault, match=f"pairs is '{wrong}'. write class or every"):
            plan.make(request(pairs=wrong), host)


def test_a_sweep_may_be_of_one_pair_of_each_distance(drivers):
    """As loaded latency beside the matrix of all pairs."""
    host = topologies.topology(8, sockets=2, cores=2)
    sweep = {"option": "repeat", "values": [9], "bindings": ["local", "remote"], "pairs": "class"}
    made = plan.make(request(sweep=[sweep]), host)
    copies = [cell for cell in made.cells if cell.sweep]
    assert len(made.cells) - len(copies) == 74
    assert sorted(cell.distance for cell in copies) == [10, 12, 20]
    assert len({cell.cpu_nodes for cell in copies}) == 1
    assert all(cell.stands_for for cell in copies)
    assert "stands for 32 pairs at distance 20" in " ".join(show.text(made).split())
    assert not any(cell.stands_for for cell in made.cells if not cell.sweep)
    assert {cell.baseline for cell in copies if cell.binding == "remote"} == {
        cell.id for cell in copies if cell.binding == "local"
    }
    with pytest.raises(Fault, match="sweep: pairs is 'every'"):
        plan.make(request(sweep=[{**sweep, "pairs": "every"}]), host)


def test_a_node_that_a_sweep_names_is_measured(drivers):
    sweep = {"option": "threads", "values": [1], "bindings": [{"local": 2}]}
    for seed in range(1, 5):
        asked = request(pairs="class", sweep=[sweep], seed=seed)
        made = plan.make(asked, topologies.topology(4))
        assert [cell.id for cell in made.cells if cell.sweep] == ["local:2/threads=1"]
        assert [cell.id for cell in made.cells][0] == "local:2"


def test_a_swept_cell_may_meet_its_baseline_at_the_baselines_own_value(drivers):
    sweep = {"option": "threads", "values": [2, 4], "bindings": ["local"]}
    asked = request(
        bindings=["one-thread-per-core", "local"], baseline="one-thread-per-core", sweep=[sweep]
    )
    found = by_id(plan.make(asked, topologies.topology(1, cores=4, threads=2)))
    assert found["local:0/threads=4"].baseline == "one-thread-per-core:0"
    assert found["local:0/threads=2"].baseline is None  # that one was not swept


@pytest.mark.parametrize("call", ["set_mempolicy", "mbind"])
def test_where_no_policy_may_be_set_only_what_needs_none_is_left(drivers, call):
    """As in a container whose seccomp profile forbids it: found before the first trial."""
    why = reason("call-forbidden", call=call, error="Operation not permitted")
    made = plan.make(request(), topologies.topology(2), plan.Environment(None, {call: why}))
    assert list(by_id(made)) == ["unbound"]
    said = str(made.skipped[0].reason)
    assert f"may not call {call} (Operation not permitted)" in said and "SYS_NICE" in said
    assert "no-control" in codes(made.warnings)
    made = plan.make(request(), topologies.topology(2), plan.Environment(None))
    assert len(made.cells) == 8


def test_a_cpuset_is_named_in_the_plan(drivers):
    host = topologies.topology(2, cores=4)
    assert "limited-by-cpuset" not in codes(plan.make(request(), host).warnings)
    made = plan.make(request(), topologies.limit(host, cpus="0-5", nodes="0"))
    assert reason("limited-by-cpuset", cpus="0-5", nodes="0") in made.warnings


def test_a_group_that_limits_time_and_memory_bounds_the_plan(drivers):
    """As in a container with cpu.max and memory.max."""
    host = topologies.topology(2, cores=4)
    allowed = replace(host.allowed, cpu_time=2.5, memory_bytes=4 * GIB)
    made = plan.make(request(), replace(host, allowed=allowed))
    assert {cell.threads for cell in made.cells} == {2}
    note = reason("threads-bounded", asked=4, threads=2, limit=2.5)
    assert note in by_id(made)["local:0"].notes
    assert "the time of 2.5 CPUs" in str(note)
    assert {"limited-cpu-time", "limited-memory"} <= set(codes(made.warnings))
    allowed = replace(host.allowed, memory_bytes=GIB // 2)
    made = plan.make(request(), replace(host, allowed=allowed))
    assert made.cells == () and {one.reason.code for one in made.skipped} == {"node-too-small"}


@pytest.mark.parametrize(
    ("cpu_time", "cores", "says"),
    [(1.5, 4, "needs 2 threads"), (1.5, 4, "1.5 CPUs"), (None, 1, "needs 2 CPUs")],
)
def test_what_needs_more_cpus_than_there_are_is_left_out(
    drivers, monkeypatch, cpu_time, cores, says
):
    """Loaded latency takes two; the rest of its experiment is measured all the same."""
    drivers["probe"] = Probe()
    monkeypatch.setattr(Probe, "find", lambda *_: ToolRecord("probe", "1.2"))
    host = topologies.topology(2, cores=cores)
    host = replace(host, allowed=replace(host.allowed, cpu_time=cpu_time))
    tool = {"name": "latency", "prefer": ["probe"], "options": {"mode": "latency"}}
    sweep = [{"option": "mode", "values": ["loaded"], "bindings": ["local"]}]
    made = plan.make(request(bindings=["local"], tool=tool, sweep=sweep), host)
    assert {"local:0", "local:1"} <= set(by_id(made))
    assert not any("loaded" in name for name in by_id(made))
    assert made.skipped and all(says in str(skip.reason) for skip in made.skipped)


def test_a_cell_whose_pages_balancing_may_move_is_marked(drivers, tmp_path):
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    setting = tmp_path / "proc/sys/kernel/numa_balancing"

    def marked(value, nodes=2, **asked):
        setting.write_text(value + "\n")
        here = plan.Environment(str(tmp_path))
        made = plan.make(request(**asked), topologies.topology(nodes), here)
        assert made.settings == {"kernel.numa_balancing": value}
        return {c.id for c in made.cells if "balancing-may-move" in codes(c.notes)}

    wanted = {"bindings": ["local", "interleave", "preferred", "cpus-only", "unbound"]}
    assert marked("1", **wanted) == {"cpus-only:0", "cpus-only:1", "unbound"}
    assert marked("0", **wanted) == set() == marked("1", nodes=1, **wanted)
    off = {"changes": {"kernel.numa_balancing": "0"}}
    assert marked("1", **wanted, **off) == set()


def test_warnings_say_what_this_plan_cannot_decide(drivers):
    asked = request(blocks=2, changes={"kernel.numa_balancing": "0"})
    warnings = plan.make(asked, topologies.topology(1)).warnings
    assert codes(warnings) == ["too-few-blocks", "host-with-one-node", "changes-host"]
    assert str(warnings[0]).startswith("2 blocks can decide nothing, 6 are the fewest")
    assert "--allow-host-changes: kernel.numa_balancing = 0" in str(warnings[2])
    made = plan.make(request(bindings=["unbound"], baseline=None, blocks=1, control=False),
                     topologies.topology(2))  # fmt: skip
    assert made.warnings == ()  # nothing is compared
    host = topologies.with_node(topologies.topology(2), 1, memory_bytes=0)
    assert codes(plan.make(request(), host).warnings) == ["host-with-one-memory-node"]
    made = plan.make(request(bindings=["remote"]), topologies.topology(1))
    assert made.order == () and made.cells == ()
    assert "nothing-to-measure" in codes(made.warnings)


CASES = [
    {"name": "empty", "says": "node empty"},
    {"name": "full", "says": "node full", "options": {"array": 2 * GIB}},
    {"name": "reclaim", "options": {"array": 2 * GIB}, "changes": {"vm.zone_reclaim_mode": "1"}},
    {"name": "bound", "bindings": [{"local": "roomiest"}], "changes": {"vm.swappiness": "0"}},
]


def in_cases(**more):
    asked = {"bindings": [{"cpus-only": "roomiest"}], "baseline": "cpus-only:roomiest"}
    return request(**{"cases": CASES, "changes": {"vm.swappiness": "10"}, **asked, **more})


def test_cases_make_cells_of_their_own_compared_with_the_first(drivers):
    made = plan.make(in_cases(), topologies.topology(2))
    found = by_id(made)
    assert list(found) == [
        "cpus-only:0/empty", "cpus-only:0/empty/control", "cpus-only:0/full",
        "cpus-only:0/reclaim", "local:0/bound",
    ]  # fmt: skip
    assert [cell.label for cell in made.cells] == [
        "node empty", "node empty (A/A control)", "node full", "reclaim", "bound, local 0",
    ]  # fmt: skip
    assert [cell.role for cell in made.cells] == [
        "baseline", "control", "cell", "cell", "cell",
    ]  # fmt: skip
    assert {cell.baseline for cell in made.cells} == {None, "cpus-only:0/empty"}
    reclaim = found["cpus-only:0/reclaim"]
    assert (reclaim.case.name, reclaim.case.says, reclaim.variant) == ("reclaim",) * 3
    assert reclaim.changes == {"vm.swappiness": "10", "vm.zone_reclaim_mode": "1"}
    assert found["local:0/bound"].changes == {"vm.swappiness": "0"}
    assert found["cpus-only:0/empty/control"].changes == {"vm.swappiness": "10"}
    assert found["cpus-only:0/full"].options["array"] == 2 * GIB
    assert found["cpus-only:0/empty"].options["array"] == GIB
    assert plan.settings(made) == {"vm.swappiness": ["10", "0"], "vm.zone_reclaim_mode": ["1"]}
    assert len(made.order) == 30
    assert from_json(Plan, json.loads(json.dumps(to_json(made)))) == made


def test_a_plan_with_cases_says_what_each_is(drivers):
    made = plan.make(in_cases(), topologies.topology(2))
    flat = " ".join(show.text(made, 100).split())
    assert "5 cells (3 cpus-only, A/A control, local; 4 cases) × 6 blocks" in flat
    assert "vm.swappiness = 10 or 0, vm.zone_reclaim_mode = 1" in flat
    assert "node full bound as cpus-only:0/empty; against cpus-only:0/empty" in flat
    assert f"with array: {2 * GIB}, vm.swappiness = 10, vm.zone_reclaim_mode = 1" in flat
    assert "every trial runs with" not in flat  # bound has another swappiness
    assert "node empty (A/A control) all as cpus-only:0/empty; 4 threads" in flat
    assert "numactl --physcpubind=0-3 --membind=0" in flat  # the other binding is shown whole
    terms = {cell.id: show.conditions(made, cell) for cell in made.cells}
    two = plan.make(in_cases(cases=CASES[:3]), topologies.topology(2))
    assert "every trial runs with vm.swappiness = 10" in show.text(two)
    assert [show.conditions(two, cell) for cell in two.cells] == [
        "", "", f"array: {2 * GIB}", f"array: {2 * GIB}, vm.zone_reclaim_mode = 1",
    ]  # fmt: skip
    assert terms["cpus-only:0/empty"] == "vm.swappiness = 10"
    assert terms["local:0/bound"] == "vm.swappiness = 0"


def test_every_node_has_its_own_baseline_in_the_first_case(drivers):
    made = plan.make(in_cases(bindings=["cpus-only"], baseline="cpus-only"),
                     topologies.topology(2))  # fmt: skip
    found = by_id(made)
    assert found["cpus-only:1/full"].baseline == "cpus-only:1/empty"
    assert found["cpus-only:1/full"].label == "node full, CPUs only 1"
    assert [c.id for c in made.cells if c.role == "baseline"] == [
        "cpus-only:0/empty", "cpus-only:1/empty",
    ]  # fmt: skip


def test_a_case_that_this_kernel_cannot_have_is_skipped_with_the_reason(drivers, tmp_path):
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / "proc/sys/vm/swappiness").write_text("60\n")
    here = plan.Environment(str(tmp_path))
    made = plan.make(in_cases(), topologies.topology(2), here)
    assert "cpus-only:0/reclaim" not in by_id(made) and len(made.cells) == 4
    (skip,) = made.skipped
    assert skip.cell == "cpus-only:0/reclaim"
    assert skip.variant == "reclaim"
    assert skip.reason == reason("settings-absent", names=["vm.zone_reclaim_mode"])
    made = plan.make(request(changes={"a.b": "1"}), topologies.topology(2), here)
    assert made.cells == () and {"local", "remote"} <= {s.binding for s in made.skipped}
    assert {str(skip.reason) for skip in made.skipped} == {"this kernel has no a.b"}


def test_a_setting_with_a_question_mark_is_set_where_the_host_has_it(drivers, tmp_path):
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / "proc/sys/vm/swappiness").write_text("60\n")
    (tmp_path / "proc/sys/vm/zone_reclaim_mode").write_text("0\n")
    here = plan.Environment(str(tmp_path))
    wanted = {"vm.swappiness?": "10", "lru_gen.enabled?": "0x0000"}
    cells = by_id(plan.make(in_cases(changes=wanted), topologies.topology(2), here))
    assert cells["cpus-only:0/empty"].changes == {"vm.swappiness": "10"}
    assert cells["local:0/bound"].changes == {"vm.swappiness": "0"}
    cells = by_id(plan.make(in_cases(changes=wanted, cases=[]), topologies.topology(2), here))
    assert cells["cpus-only:0"].changes == {"vm.swappiness": "10"}


def test_interleaving_over_a_node_that_is_filled_need_not_be_even(drivers):
    probe = drivers["probe"]
    prepare = probe.prepare
    probe.prepare = lambda *given: replace(prepare(*given), full_node=True)
    cells = by_id(plan.make(request(bindings=["local", "interleave"]), topologies.topology(2)))
    expected = cells["interleave:0"].expects.memory
    assert expected.proof == "outcome" and expected.why == reason("tool-fills-a-node")
    assert cells["local:0"].expects.memory.proof == "required"


def test_without_the_baseline_in_the_first_case_nothing_is_compared(drivers):
    made = plan.make(in_cases(cases=CASES[3:]), topologies.topology(2))
    assert list(by_id(made)) == ["local:0/bound"]
    assert "baseline-not-in-first-case" in codes(made.warnings)


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        ([{"name": "Full"}], "'Full' cannot name a case"),
        ([{"name": "control"}], "'control' cannot name a case"),
        ([{"says": "full"}], "cases[0] lacks the key 'name'"),
        ([{"name": "a"}, {"name": "a"}], "two cases have the name 'a'"),
        ([{"name": "a", "says": "x"}, {"name": "b", "says": "x"}], "two cases have the says 'x'"),
        ([{"name": "a", "option": {}}], "cases[0] has an unknown key 'option'"),
        ([{"name": "a", "bindings": ["loacl"]}], "did you mean local"),
        (
            [{"name": "a", "changes": {"vm.swappiness": 0}}],
            "changes.vm.swappiness is 0, not of type str",
        ),
        ([{"name": "a", "changes": {"../x": "0"}}], "'../x' is not the name of a kernel setting"),
        (["a"], "cases[0] is 'a', not a mapping"),
    ],
)
def test_a_wrong_case_is_refused(drivers, cases, message):
    with pytest.raises(Fault) as error:
        plan.make(request(cases=cases), topologies.topology(2))
    assert message in str(error.value)


def test_cases_and_a_sweep_are_not_combined(drivers):
    sweep = {"option": "threads", "values": [1], "bindings": ["local"]}
    with pytest.raises(Fault, match="cases and a sweep"):
        plan.make(request(cases=CASES, sweep=[sweep]), topologies.topology(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blokcs": 6}, "the request has an unknown key 'blokcs'"),
        ({"schema": 1}, f"schema 1, this agent knows {SCHEMA}"),
        ({"blocks": 0}, "blocks is 0"),
        ({"blocks": "6"}, "blocks is '6', not of type int"),
        ({"blocks": True}, "blocks is True, not of type int"),
        ({"seed": 1.5}, "seed is 1.5, not of type int"),
        ({"tool": "probe"}, "tool is 'probe', not a mapping"),
        ({"sweep": 7}, "sweep is 7, not a list"),
        ({"bindings": []}, "names no bindings"),
        ({"bindings": "local"}, "bindings is 'local', not a list"),
        ({"bindings": ["loacl"]}, "did you mean local"),
        ({"baseline": "cores"}, "the baseline cores is not among the bindings"),
        ({"baseline": "lokal"}, "did you mean local"),
        ({"tool": {"prefer": ["probe"]}}, "tool lacks the key 'name'"),
        ({"tool": {"name": "probe", "prefer": [1]}}, "tool.prefer[0] is 1"),
        ({"collectors": {"interval_s": 0}}, "interval_s is 0"),
        ({"collectors": {"pref": True}}, "unknown key 'pref'"),
        ({"changes": {"../x": "0"}}, "changes: '../x' is not the name"),
        ({"time_limit_s": -1}, "time_limit_s is -1"),
        ({"sweep": [{"option": "threads", "values": [1]}]}, "sweep[0] lacks the key 'bindings'"),
        (
            {"sweep": [{"option": "threads", "values": [[]], "bindings": ["local"]}]},
            "[] is not a value",
        ),
        (
            {"sweep": [{"option": "threads", "values": [1], "bindings": ["cpus-only"]}]},
            "cpus-only is not among the bindings",
        ),
        (
            {"sweep": [{"option": "threads", "values": ["hlaf"], "bindings": ["local"]}]},
            "did you mean half",
        ),
        (
            {"sweep": [{"option": "thraeds", "values": [1], "bindings": ["local"]}]},
            "probe has no option 'thraeds'",
        ),
        ({"names": ["loacl"]}, "did you mean local"),
        ({"measure": {"triad": {"unit": "GB/s", "better": "bigger"}}}, "write higher or lower"),
    ],
)
def test_a_wrong_request_is_refused(drivers, change, message):
    with pytest.raises(Fault) as error:
        plan.make(request(**change), topologies.topology(2))
    assert message in str(error.value)


def fake(name, binding):
    cpus = CpuExpectation("outcome")
    expects = Expectation(MemoryExpectation("outcome"), cpus)
    return Cell(None, "", MemoryPolicy("default"), expects, id=name, binding=binding)


def test_the_order_of_a_seed_stays_as_it_is():
    """Frozen: another order for the same seed would break resuming a run of an older version."""
    cells = [fake(name, name[0]) for name in ("a1", "a2", "b1", "c1")]
    row = [trial.cell for trial in order.trial_order(cells, 3, seed=20261121)]
    assert " ".join(row) == "a2 b1 c1 a1 c1 a1 a2 b1 c1 a2 a1 b1"


def test_every_first_place_of_a_block_is_as_likely():
    cells = [fake(name, name) for name in "abcd"]
    made = order.trial_order(cells, 4000, seed=1)
    firsts = Counter(trial.cell for trial in made if trial.position == 1)
    seconds = Counter(trial.cell for trial in made if trial.position == 2)
    assert all(880 < n < 1120 for n in [*firsts.values(), *seconds.values()])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=9), st.integers(1, 9), st.integers(0))
def test_every_block_is_a_permutation_and_a_seed_gives_one_order(names, blocks, seed):
    cells = [fake(f"{name}{i}", name) for i, name in enumerate(names)]
    made = order.trial_order(cells, blocks, seed)
    assert made == order.trial_order(cells, blocks, seed)
    assert [trial.trial for trial in made] == list(range(1, blocks * len(cells) + 1))
    binding = {cell.id: cell.binding for cell in cells}
    for block in range(blocks):
        row = made[block * len(cells) : (block + 1) * len(cells)]
        assert {trial.block for trial in row} == {block + 1}
        assert [trial.position for trial in row] == list(range(1, len(cells) + 1))
        assert sorted(trial.cell for trial in row) == sorted(binding)
        if block:
            before, after = made[block * len(cells) - 1].cell, row[0].cell
            assert len(cells) == 1 or before != after
            assert len(set(names)) == 1 or binding[before] != binding[after]


@settings(max_examples=80, deadline=None)
@given(
    topologies.hosts(),
    st.lists(
        st.sampled_from(
            ["unbound", "local", "remote", "interleave", "preferred", "cpus-only",
             "one-thread-per-core", "smt-siblings", "remote:nearest", "cores:node-spread"]
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([None, "local", "unbound", "cpus-only"]),
    st.sampled_from([None, [1, 2, "half", "all"]]),
)  # fmt: skip
def test_a_comparison_changes_one_thing_or_says_that_it_does_not(host, asked, baseline, values):
    sweep = [{"option": "threads", "values": values, "bindings": asked[:2]}] if values else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tools, "driver", FakeDriver, raising=False)
        made = plan.make(request(bindings=asked, baseline=baseline, sweep=sweep), host)
    found = by_id(made)
    assert len(found) == len(made.cells)
    assert len(made.order) == 6 * len(found)
    for cell in found.values():
        base = found.get(cell.baseline)
        assert (base is None) == (cell.baseline is None)
        if base is None:
            continue
        assert base.role == "baseline"
        both = cell.cpus != base.cpus and cell.memory != base.memory
        assert both == ("compared-as-a-whole" in codes(cell.notes))
        if cell.role != "control" and not both:
            assert (cell.cpus, cell.memory) != (base.cpus, base.memory)
    assert all(str(skip.reason) for skip in made.skipped)
    for line in show.text(made, 90).splitlines():
        assert len(line) <= 90 or len(line.split()) <= 2 or "," in line


def test_the_printed_plan_shows_every_cell_and_every_skip(drivers):
    host = topologies.with_node(topologies.topology(3, cores=4, threads=2), 2, memory_bytes=0)
    made = plan.make(request(blocks=5), host)
    shown = show.text(made, 100)
    for cell in made.cells:
        assert cell.label in shown
        assert " ".join(cell.numactl) in shown
    assert "all as local:0; 8 threads; against local:0" in shown
    flat = " ".join(shown.split())
    assert "tool: probe 5.10 (/usr/bin/probe), because stream is not on PATH" in flat
    assert "at least 98 % of its pages on node 1; its threads stay on these CPUs" in flat
    assert "its pages on each of nodes 0-1, 10 % more or less than its fair share at most" in flat
    assert "– local:2: node 2 has no memory" in shown
    assert "⚠ 5 blocks can decide nothing" in shown
    assert "10 cells (2 local, A/A control, 4 remote, 2 interleave, unbound) × 5 blocks" in flat
    assert "= 50 trials, about 3 min; seed 7" in flat


def resolved(made):
    return {one.asked: (one.cells, one.reason) for one in made.resolved}


def test_the_plan_says_what_every_named_binding_became(drivers):
    names = ["remote", "cores:4-node", "local:1", "preferred", "remote:0-9", "smt-siblings"]
    sweep = [{"option": "threads", "values": [1], "bindings": [{"local": 0}]}]
    host = topologies.topology(2)
    became = resolved(plan.make(request(names=names, sweep=sweep), host))
    assert became["local"] == (("local:0", "local:0/threads=1", "local:1"), None)
    assert became["remote"] == (("remote:0-1", "remote:1-0"), None)
    assert became["local:0"] == (("local:0", "local:0/threads=1"), None)
    assert became["local:1"] == (("local:1",), None)
    assert became["preferred"] == ((), reason("left-out", profile="quick"))
    assert became["remote:0-9"][1].code == "binding-impossible"
    assert became["smt-siblings"] == ((), reason("no-second-thread", node=0))


def test_a_binding_that_is_the_same_as_another_became_that_one(drivers):
    names = ["cores:4-node", "cores:node-packed", "instances:ranges"]
    made = plan.make(request(bindings=["cpus-only"], names=names), topologies.topology(2))
    became = resolved(made)
    assert became["cores:4-node"] == became["cores:node-packed"] == (("cpus-only:0",), None)
    assert became["instances:ranges"][1].code == "left-out"


def test_what_a_named_binding_became_holds_in_every_case(drivers, tmp_path):
    made = plan.make(in_cases(names=["cpus-only", "local"]), topologies.topology(2))
    became = resolved(made)
    assert became["cpus-only:roomiest"] == became["cpus-only"]
    assert became["cpus-only"][0] == tuple(f"cpus-only:0/{case['name']}" for case in CASES[:3])
    assert became["local"][0] == ("local:0/bound",)
    here = plan.Environment(str(tmp_path))  # a kernel that has no setting
    became = resolved(plan.make(in_cases(), topologies.topology(2), here))
    assert became["cpus-only:roomiest"][1].code == "settings-absent"


def test_what_is_far_too_much_is_refused_before_it_is_made(drivers, monkeypatch):
    """A request may be a stranger's: a recorded plan is made again where it is checked."""
    many = {"option": "threads", "values": list(range(1, 400)), "bindings": ["local"]}
    with pytest.raises(Fault, match="threads has 399 values"):
        plan.make(request(sweep=[many]), topologies.topology(2))
    monkeypatch.setattr(order, "MOST_TRIALS", 20)
    with pytest.raises(Fault, match="1 block of 56 cells are more than 20 trials"):
        plan.make(request(bindings=["remote"], baseline=None, blocks=1), topologies.topology(8))
    monkeypatch.setattr(plan.resolve, "MOST_CELLS", 10)
    with pytest.raises(Fault, match="remote is more than 10 cells"):
        plan.make(request(bindings=["remote"], baseline=None), topologies.topology(8))
    monkeypatch.setattr(order, "MOST_NODES", 7)
    with pytest.raises(Fault, match="a host of 8 nodes: Linux knows at most 7"):
        plan.make(request(), topologies.topology(8))


def test_every_pair_of_a_host_of_64_nodes_and_4096_cpus_is_planned(drivers):
    made = plan.make(
        request(bindings=["local", "remote"], blocks=2), topologies.topology(64, cores=64)
    )
    assert len(made.cells) == 64 * 64 + 1  # with the control
