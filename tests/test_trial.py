"""One trial: graded right, its output kept and nothing left of it, whatever the tool does."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import re
import time
from datetime import datetime

import pytest

from fake_tool import Fake, alive, mark, plan, with_cells
from numalab.agent import collectors, kernel
from numalab.agent.collectors import memory_model
from numalab.agent.contract import (
    CollectorRequest,
    CpuExpectation,
    CpuProof,
    Expectation,
    MemoryExpectation,
    MemoryPolicy,
    MemoryProof,
    Proof,
    Row,
    Timing,
    reason,
)
from numalab.agent.errors import Fault
from numalab.agent.host import topology
from numalab.agent.trial import folder, process, proof, trial


@pytest.fixture(scope="module")
def here():
    return topology.read()


@pytest.fixture
def measure(tmp_path, here):
    """Make one trial of a behaviour and return (record, metrics, folder)."""
    (tmp_path / "raw").mkdir()
    kernel.adopt_orphans()
    marks = []
    before = kernel.descendants(os.getpid())

    def make(do, protocol="handshake", cell=None, stopped=lambda: False, tool=None, **request):
        marks.append(mark())
        made = with_cells(plan([do], marks[-1], **request), cell or {})
        the_driver = tool or Fake(protocol)
        bench = trial.Bench(made, here, tmp_path, the_driver, the_driver.find({}), 2, stopped)
        record, metrics = trial.measure(bench, made.order[0], 1)
        assert not alive(marks[-1])
        return record, metrics, tmp_path

    yield make
    assert not any(alive(number) for number in marks)
    assert set(kernel.descendants(os.getpid())) <= set(before)
    assert not [p for p in (tmp_path / "raw").iterdir() if p.name.startswith(".")]
    kernel.adopt_orphans(False)


def _raw(folder, record, kind):
    return gzip.decompress((folder / record.raw[kind]).read_bytes()).decode()


def test_a_trial_that_its_group_held_back_is_not_verified(measure, monkeypatch):
    counts = iter([3, 5])
    monkeypatch.setattr(trial.cgroup, "throttled", lambda: next(counts))
    record, _, _ = measure("handshake")
    assert record.grade == "unverified"
    assert record.reason == reason("held-back", times=2) and "2 times" in str(record.reason)


def test_a_good_trial(measure):
    record, metrics, folder = measure("handshake")
    assert record.grade == "verified"
    assert record.exit_status == 0 and record.signal is None and record.attempt == 1
    assert record.raw["stdout"] == "raw/0001-cell-0.stdout.gz"
    assert sorted(record.raw) == ["proof", "rusage", "stderr", "stdout"]
    for name, digest in record.sha256.items():
        assert trial.journal.sha256(folder / name) == digest
    assert '"result"' in _raw(folder, record, "stdout")
    proofs = json.loads(_raw(folder, record, "proof"))["proofs"]
    assert [one["when"] for one in proofs] == ["before", "after"]
    assert json.loads(_raw(folder, record, "rusage"))["kind"] == "rusage"
    assert metrics[0].value == 42
    assert trial.headline(metrics, "speed") == {"metric": "speed", "value": 42.0, "unit": "1/s"}
    assert trial.headline(metrics, "other") is None
    assert trial.headline([Row("speed", None, "1/s")], "speed") is None
    times = record.times
    assert times.measure_s >= 0.015
    assert times.total_s >= times.measure_s + times.start_s
    assert record.started.endswith("Z")


def test_a_trial_s_moments_are_around_its_seconds(measure, monkeypatch):
    """However long it is held up between two readings of the clocks."""
    read = trial._Trial._times

    def late(one):
        time.sleep(0.3)
        return read(one)

    monkeypatch.setattr(trial._Trial, "_times", late)
    record, _, _ = measure("handshake")
    began, ended = (datetime.fromisoformat(one[:-1]) for one in (record.started, record.ended))
    assert (ended - began).total_seconds() >= record.times.total_s - 0.002


def test_the_clock_that_is_put_right_moves_no_moment_of_a_run(monkeypatch):
    before = folder.now_utc()
    monkeypatch.setattr(folder, "datetime", None)  # nobody asks the system's clock again
    assert before <= folder.now_utc() < before[:2] + "99"


def test_a_session_that_takes_a_run_up_begins_after_its_last_trial(monkeypatch):
    monkeypatch.setattr(folder, "_booted", folder._booted)
    folder._begin_after("2020-01-01T00:00:00.000Z")
    assert folder.now_utc() < "2999"
    folder._begin_after("2999-01-01T00:00:00.000Z")  # the clock was put back since
    assert "2999-01-01T00:00:02.000Z" <= folder.now_utc() < "2999-01-01T01"


def test_a_good_sampled_trial_is_looked_at_while_it_runs(measure, monkeypatch):
    here_and_ok = Proof(True, MemoryProof(True), CpuProof(True))
    monkeypatch.setattr(proof, "prove", lambda *given, buffers: here_and_ok)
    record, metrics, folder = measure("sampled", "sampled")
    assert record.grade == "verified" and metrics[0].value == 42
    proofs = json.loads(_raw(folder, record, "proof"))["proofs"]
    assert {one["when"] for one in proofs} == {"running"}
    assert proofs[0]["t_s"] < 0.2 <= proofs[-1]["t_s"]
    assert 0.28 < record.times.measure_s < 5


@pytest.mark.parametrize(
    "seen, wanted, grade",
    [([1], "required", "unverified"), ([1, 60], "required", "verified"), ([1], "none", "verified")],
)
def test_a_program_seen_before_it_held_its_memory_is_not_verified(
    measure, monkeypatch, seen, wanted, grade
):
    looks = []

    def prove(*given, buffers):
        looks.append(seen[min(len(looks), len(seen) - 1)] << 20)
        return Proof(True, MemoryProof(True, resident_bytes=looks[-1]), CpuProof(True))

    rusage = process.Child._rusage
    large = {"max_rss_bytes": 63 << 20}
    monkeypatch.setattr(process.Child, "_rusage", lambda *given: {**rusage(*given), **large})
    monkeypatch.setattr(proof, "prove", prove)
    memory = MemoryExpectation(wanted, "within", "0")
    expects = Expectation(memory, CpuExpectation("outcome"))
    record, _, _ = measure("sampled", "sampled", {"expects": expects})
    assert len(looks) >= 2 and record.grade == grade
    if grade == "unverified":
        assert "seen with 1.0 MiB and came to hold 63.0 MiB" in str(record.reason)


def test_a_program_too_short_to_look_at_is_unverified(measure, monkeypatch):
    def too_late(pid, cell, host, buffers=None):
        ended = reason("process-ended", pid=pid)
        return Proof(None, MemoryProof(None), CpuProof(None), ended, absent=True)

    monkeypatch.setattr(proof, "prove", too_late)
    record, metrics, _ = measure("short", "sampled")
    assert record.grade == "unverified" and record.reason.code == "not-proven"
    assert metrics[0].value == 42


@pytest.mark.parametrize(
    "do, protocol, words",
    [
        ("crash", "handshake", "exit status 3: the buffer is on fire"),
        ("killed", "handshake", "killed by SIGKILL"),
        ("nonsense", "handshake", "'Segmentation fault .cosmic ray.' where a JSON record"),
        ("short", "handshake", "'42' where a JSON|printed '42'"),
        ("wrong-value", "handshake", "fake: line 2 .*not a value"),
        ("status", "sampled", "exit status 7: no such input"),
        ("usage", "sampled", "exit status 1: node 7 is out of range$"),
    ],
)
def test_a_tool_that_fails_is_an_error_with_the_reason(measure, do, protocol, words):
    record, _, folder = measure(do, protocol)
    assert record.grade == "error"
    assert re.search(words, str(record.reason)), record.reason
    assert set(record.raw) >= {"stdout", "stderr", "rusage"}
    assert _raw(folder, record, "stdout") is not None
    if do == "status":
        assert record.exit_status == 7 and _raw(folder, record, "stdout") == "working\n"
    if do == "killed":
        assert record.exit_status is None and record.signal == 9


@pytest.mark.parametrize("do", ["never-ready", "never-result"])
def test_a_tool_that_hangs_is_given_up(measure, do):
    record, _, _ = measure(do, time_limit_s=0.3)
    assert record.grade == "error"
    said = do.partition("-")[2]
    assert f'it did not say "{said}" within 0.3 s' in str(record.reason)
    assert record.signal == 9


def test_a_sampled_tool_that_hangs_is_given_up(measure):
    record, _, _ = measure("never-ready", "sampled", time_limit_s=0.3)
    assert record.grade == "error" and "did not end within" in str(record.reason)


def test_the_limit_is_generous_unless_asked():
    timing = Timing(setup_s=1.0, warmup_s=1.0, measure_s=8.0, total_s=11.0)
    assert trial.limit_s(5, timing) == 5
    assert trial.limit_s(None, timing) == 160
    assert trial.limit_s(None, timing, timed=True) == 1600
    assert trial.limit_s(None, dataclasses.replace(timing, patience_s=300.0)) == 460
    assert trial.limit_s(None, Timing(total_s=1.0)) == 3600


def test_a_tool_that_will_not_quit_is_killed_and_its_result_counts(measure, monkeypatch):
    monkeypatch.setattr(Fake, "quit_s", 0.1)
    record, metrics, _ = measure("stubborn")
    assert record.grade == "verified" and metrics[0].value == 42
    assert [warning.code for warning in record.warnings] == ["tool-did-not-quit"]


@pytest.mark.parametrize("do", ["family", "slow-family"])
def test_grandchildren_die_with_the_trial(measure, do):
    record, _, _ = measure(do)
    assert record.grade == "verified"


def test_a_flood_of_output_does_not_fill_the_disk(measure, monkeypatch):
    monkeypatch.setattr(trial, "OUTPUT_LIMIT_BYTES", 100_000)
    record, _, folder = measure("flood", "sampled")
    assert record.grade == "error" and "printed more than" in str(record.reason)
    assert 0 < len(_raw(folder, record, "stdout")) < 100_000  # what was printed before it was seen


def test_a_tool_may_name_the_processes_that_count(measure, monkeypatch):
    collected = []
    start = collectors.start

    def note(cell, pids, options):
        collected.append(pids)
        return start(cell, pids, options)

    monkeypatch.setattr(collectors, "start", note)
    record, _, folder = measure("parts", collectors=CollectorRequest(perf=False))
    assert record.grade == "verified"
    proofs = json.loads(_raw(folder, record, "proof"))["proofs"]
    assert [one["memory"]["processes"] for one in proofs] == [2, 2]
    ((one, two),) = collected
    assert one != two
    cpu = json.loads(_raw(folder, record, "collect"))["cpu"]
    assert {process["pid"] for process in cpu["processes"]} == {one, two}


@pytest.mark.parametrize(
    ("pids", "words"),
    [("[1]", "named process 1, which is none of its own"), ("[]", "no list of processes"),
     ("7", '"pids": 7, which is no list'), ('["1"]', "no list of processes")],
)  # fmt: skip
def test_a_tool_may_name_only_its_own_processes(measure, pids, words):
    options = {"do": "names", "mark": mark(), "pids": pids}
    record, _, _ = measure("names", cell={"options": options})
    assert record.grade == "error" and words in str(record.reason)


def test_what_holds_nothing_before_it_measures_is_proven_after(measure):
    record, metrics, folder = measure("nothing-yet")
    assert record.grade == "verified" and metrics[0].value == 42
    proofs = json.loads(_raw(folder, record, "proof"))["proofs"]
    assert [one["when"] for one in proofs] == ["after"]


def test_a_wish_to_stop_is_met_at_once_and_leaves_nothing(measure, tmp_path):
    began = time.monotonic()
    with pytest.raises(trial.Stopped):
        measure("never-result", stopped=lambda: time.monotonic() > began + 0.2)
    assert os.listdir(tmp_path / "raw") == []


def test_a_tool_that_cannot_be_started(measure):
    tool = Fake("handshake")
    tool.argv = lambda found, options, cell: ["/no-such-tool"]
    record, metrics, _ = measure("handshake", tool=tool)
    assert record.grade == "error" and "cannot be started" in str(record.reason)
    assert record.raw == {} and metrics == []


def test_a_wrong_placement_is_an_error_and_never_averaged(measure, monkeypatch):
    real, why = proof.prove, reason("cpus-seen-outside", cpus="3", wanted="7")

    def wrong(pid, cell, host, buffers=None):
        return dataclasses.replace(real(pid, cell, host), ok=False, reason=why)

    monkeypatch.setattr(proof, "prove", wrong)
    record, _, _ = measure("handshake")
    assert record.grade == "error" and record.reason == why


def test_a_trial_is_bound_and_the_proof_sees_it(measure, here):
    if kernel.forbidden_calls():
        pytest.skip("no memory policy can be set here")
    cpu = next(iter(here.usable))
    node = next(n.number for n in here.nodes if n.memory_bytes and n.allowed_memory)
    cell = {
        "cpus": str(cpu), "cpu_nodes": str(node), "memory": MemoryPolicy("bind", str(node)),
        "expects": Expectation(
            MemoryExpectation("required", "within", str(node)),
            CpuExpectation("required", str(cpu)),
        ),
    }  # fmt: skip
    for do, protocol in (("handshake", "handshake"), ("sampled", "sampled")):
        record, _, folder = measure(do, protocol, cell)
        assert record.grade == "verified", record.reason
        assert record.bound == {"cpus": str(cpu), "policy": "bind", "nodes": str(node)}
        proofs = json.loads(_raw(folder, record, "proof"))["proofs"]
        made = [one for one in proofs if one["ok"]]  # the last look may come too late
        assert made[-1]["cpus"]["allowed"] == str(cpu)


def test_a_node_without_room_is_said_before_the_start(measure, here):
    node = here.nodes[0].number
    bound = {"memory": MemoryPolicy("bind", str(node)), "need_bytes": 1 << 60}
    record, _, _ = measure("handshake", cell=bound)
    assert record.grade == "error" and record.reason.code == "no-room"
    assert f"not started: it needs 1048576 TiB, node {node} has" in str(record.reason)
    record, _, _ = measure("handshake", cell={"need_bytes": 1 << 60})
    assert record.grade == "verified" and "has to make room" in str(record.warnings[0])


def test_collectors_surround_the_measurement(measure, monkeypatch):
    told = []

    class Collection:
        def stop(self):
            told.append("stop")
            return {
                "disturbance": {"other_share": 0.3, "other_s": 0.9, "busiest": [{"name": "cron"}]}
            }

    def start(cell, pid, options):
        told.append(options)
        assert set(pid) <= set(kernel.descendants(os.getpid()))
        return Collection()

    monkeypatch.setattr(collectors, "start", start)
    asked = CollectorRequest(perf=False)
    for do, protocol in (("handshake", "handshake"), ("sampled", "sampled")):
        record, _, folder = measure(do, protocol, collectors=asked)
        assert json.loads(_raw(folder, record, "collect"))["disturbance"]["other_share"] == 0.3
        assert "others used 30 % of this cell's CPU time (cron)" in map(str, record.warnings)
    measure("crash", collectors=asked)
    assert told == [asked, "stop"] * 3


def test_a_collector_fault_costs_no_process(measure, monkeypatch):
    def start(cell, pid, options):
        raise Fault("perf is broken")

    monkeypatch.setattr(collectors, "start", start)
    record, _, _ = measure("handshake", collectors=CollectorRequest())
    assert record.grade == "error" and "perf is broken" in str(record.reason)


@pytest.mark.parametrize("protocol", ["handshake", "sampled"])
def test_time_is_that_of_the_memory_model_also_where_nothing_is_collected(
    measure, monkeypatch, protocol
):
    def stop(before, cpus):
        return {"counters": {"gave_up": [before["gave_up"], 1]}}

    monkeypatch.setattr(memory_model, "start", lambda: {"gave_up": 0})
    monkeypatch.setattr(memory_model, "stop", stop)
    record, _, _ = measure(protocol, protocol)
    assert record.grade == "error" and record.reason.code == "emulator-lost-time"
    assert "collect" not in record.raw


def test_raw_names_are_safe_for_any_cell():
    assert trial.raw_name(7, "local:0/threads=2", "collect") == (
        "raw/0007-local-0-threads=2.collect.json.gz"
    )
    assert "/" not in trial.raw_name(7, "../../etc: x", "stdout")[4:]


def test_a_tool_may_say_its_fault_with_a_code(measure):
    tool = Fake("handshake")
    given = {"event": "fault", "reason": {"code": "no-such-setting", "fields": {"name": "x"}}}
    tool.argv = lambda found, options, cell: ["/bin/echo", json.dumps(given)]
    record, _, _ = measure("handshake", tool=tool)
    assert record.grade == "error" and record.reason == reason("no-such-setting", name="x")
    tool.argv = lambda found, options, cell: ["/bin/echo", '{"event":"fault","what":"no disk"}']
    record, _, _ = measure("handshake", tool=tool)
    assert str(record.reason) == "no disk"


def test_a_trial_that_measured_something_else_is_unverified_whatever_its_placement(measure):
    class Doubtful(Fake):
        def unverified(self, records, options):
            return reason("client-was-the-limit", client="sysbench", share=0.95)

    record, rows, _ = measure("handshake", tool=Doubtful("handshake"))
    assert record.grade == "unverified" and record.reason.code == "client-was-the-limit"
    assert rows
    assert measure("handshake")[0].grade == "verified"
