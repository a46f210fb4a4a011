"""The queue that measures for a fleet: detached, one at a time, nothing lost when it is cut off."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import waiting
from numalab.agent.contract import (
    SCHEMA,
    Reason,
    Request,
    Skip,
    ToolRequest,
    from_json,
    reason,
    to_json,
)
from numalab.agent.errors import Fault, NotHere
from numalab.agent.trial import events, job, journal, lock


@pytest.fixture
def place(tmp_path, monkeypatch):
    # Other tests measure at the same time: each has a lock of its own.
    held = lock.measurement
    monkeypatch.setattr(lock, "measurement", lambda name="": held(f"test-job-{os.getpid()}"))
    yield tmp_path
    for path in tmp_path.glob("*/status.json"):
        pid = json.loads(path.read_text())["pid"]
        if pid and Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGKILL)


def request(*argv: str, blocks: int = 1, **more) -> Request:
    asked = Request(
        schema=SCHEMA, experiment="command", profile="smoke", host="one",
        tool=ToolRequest("command", ("command",), {"argv": list(argv)}), bindings=("unbound",),
        blocks=blocks, seed=1, control=False, collectors=None,
    )  # fmt: skip
    return replace(asked, **more)


def waits_for(hold: Path) -> Request:
    """A request whose program ends when a file is gone, which is made here."""
    hold.touch()
    return request("sh", "-c", f"while [ -e {hold} ]; do sleep 0.1; done")


def order(session: str, *requests: Request) -> job.Order:
    listed = (job.OrderedRequest(f"{n}-command", one) for n, one in enumerate(requests, 1))
    return job.Order(SCHEMA, session, tuple(listed), busy=True)


def start(agent: Path, folder: Path, given: object):
    return subprocess.run(
        [sys.executable, str(agent), "job", "start", str(folder)],
        input=given if isinstance(given, str) else json.dumps(to_json(given)),
        capture_output=True, text=True, timeout=waiting.SILENT_S,
    )  # fmt: skip


def status_of(folder: Path) -> job.Status:
    return from_json(job.Status, json.loads((folder / "status.json").read_text()))


def await_end(folder: Path) -> job.Status:
    def ended() -> job.Status | None:
        status = status_of(folder)
        return status if status.state == "ended" else None

    last = _await(folder, ended)
    waiting.wait_for(lambda: not waiting.lives(last.pid))  # it holds its lock until then
    return last


def _await(folder: Path, what):
    return waiting.wait_for(
        what, status_of(folder).pid, progress=lambda: waiting.sizes([folder]),
        tells=lambda: status_of(folder),
    )  # fmt: skip


def test_a_second_fleet_is_refused_and_the_same_one_finds_its_own(place, agent):
    hold = place / "hold"
    given = order("first", waits_for(hold))
    done = start(agent, place / "first", given)
    assert done.returncode == 0, done.stderr
    pid = waiting.wait_for(lambda: status_of(place / "first").pid)
    again = start(agent, place / "first", given)
    assert again.returncode == 0 and json.loads(again.stdout)["state"] == "running"
    other = start(agent, place / "second", order("second", request("true")))
    assert other.returncode == 2
    assert f"another fleet measures on this host (process {pid})" in other.stderr
    hold.unlink()
    ended = await_end(place / "first")
    assert ended.jobs[0].state == "complete" and ended.archive == "runs.tar"
    assert ended.jobs[0].grades["error"] == 0 and ended.jobs[0].last["event"] == "trial"
    assert start(agent, place / "second", order("second", request("true"))).returncode == 0
    await_end(place / "second")


FOLLOW = Path(__file__).parents[1] / "fleet" / "follow.sh"


def follow(folder: Path, path: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["/bin/sh", str(FOLLOW)], cwd=folder, env={"SESSION": "first", "PATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def children(pid: int) -> set[str]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
        return {Path(f"/proc/{child}/comm").read_text().strip() for child in listed}
    return set()


def test_who_waits_for_the_end_sleeps_until_it_comes(place, agent):
    """A host under test must stay quiet: nothing asks there again and again."""
    hold = place / "hold"
    given = order("first", waits_for(hold))
    assert start(agent, place / "first", given).returncode == 0
    with follow(place / "first", os.environ["PATH"]) as one:
        waiting.wait_for(lambda: children(one.pid) == {"flock"}, one.pid)
        hold.unlink()
        said, _ = one.communicate()
    while said.startswith("numalab=measuring"):  # ten seconds were over
        said, _ = follow(place / "first", os.environ["PATH"]).communicate()
    assert said.startswith("numalab=ended\n")
    assert json.loads(said.splitlines()[-1])["state"] == "ended"
    await_end(place / "first")


@pytest.mark.parametrize("has_flock", [True, False])
def test_the_host_is_asked_the_same_without_locks(place, agent, has_flock):
    tools = place / "bin"
    tools.mkdir()
    for name in ["grep", "cat", "tail", "sleep"] + ["flock"] * has_flock:
        (tools / name).symlink_to(shutil.which(name))
    hold = place / "hold"
    given = order("first", waits_for(hold))
    assert start(agent, place / "first", given).returncode == 0
    said, why = follow(place / "first", str(tools)).communicate()
    assert said.startswith("numalab=measuring\n") and why == ""
    os.kill(status_of(place / "first").pid, signal.SIGKILL)
    waiting.wait_for(lambda: not job._alive("first"))
    said, _ = follow(place / "first", str(tools)).communicate()
    assert said.startswith("numalab=gone\n")


def test_a_request_that_fails_does_not_cost_the_others(place, agent):
    bad = replace(request("true"), tool=ToolRequest("none-such", ("none-such",)))
    assert start(agent, place / "first", order("first", bad, request("true"))).returncode == 0
    status = await_end(place / "first")
    assert [one.state for one in status.jobs] == ["failed", "complete"]
    assert "none-such" in str(status.jobs[0].reason)
    assert status.archive == "runs.tar"


def test_a_stopped_queue_goes_on_with_the_plan_that_it_began(place, agent):
    hold = place / "hold"
    hold.touch()
    once = f"[ -e {place}/once ] || {{ touch {place}/once; exit 0; }}"
    words = f"{once}; while [ -e {hold} ]; do sleep 0.1; done"
    given = order("first", request("sh", "-c", words, blocks=2))
    assert start(agent, place / "first", given).returncode == 0
    _await(place / "first", lambda: status_of(place / "first").jobs[0].last)
    os.kill(status_of(place / "first").pid, signal.SIGTERM)
    stopped = await_end(place / "first")
    assert stopped.reason == reason("stopped-here") and stopped.jobs[0].state == "stopped"
    hold.unlink()
    assert start(agent, place / "first", given).returncode == 0
    status = await_end(place / "first")
    assert status.jobs[0].state == "complete" and status.jobs[0].run == stopped.jobs[0].run
    records = journal.read(place / "first" / "runs" / status.jobs[0].run / "journal.ndjson")
    assert [record.trial for record in records] == [1, 2]


def _queue(place: Path, *requests: Request) -> job._Queue:
    return job._Queue(place, order("first", *requests))


def test_what_has_nothing_to_measure_on_a_host_is_left_out_and_no_failure(place, monkeypatch):
    plan = job.make.make(request("true"), job.topology.read())
    why = reason("fault", what="one node")
    empty = replace(plan, order=(), cells=(), skipped=(Skip("remote", "remote:farthest", why),))
    monkeypatch.setattr(job.make, "make", lambda asked, host: empty)
    queue = _queue(place, request("true"))
    queue._one(queue.jobs[0], request("true"))
    assert (queue.jobs[0].state, queue.jobs[0].reason) == ("left out", why)


def test_what_sets_the_host_without_leave_is_left_out_of_many_and_fails_alone(place):
    asked = request("true", changes={"vm.swappiness": "10"})
    for requests, state in (((asked, asked), "left out"), ((asked,), "failed")):
        queue = _queue(place, *requests)
        queue._one(queue.jobs[0], asked)
        assert queue.jobs[0].state == state
        assert "vm.swappiness" in str(queue.jobs[0].reason)
        assert "--allow-host-changes" in str(queue.jobs[0].reason)


def test_what_a_host_lacks_the_tool_for_is_left_out_of_many_and_fails_alone(place, monkeypatch):
    def lacking(options):
        raise NotHere("it has no Tomcat", "install it")

    monkeypatch.setattr(job.make.drivers.driver("command"), "find", lacking)
    for others, state in ((1, "left out"), (0, "failed")):
        queue = _queue(place, *[request("true")] * (1 + others))
        queue._one(queue.jobs[0], request("true"))
        assert queue.jobs[0].state == state
        assert str(queue.jobs[0].reason) == "it has no Tomcat. install it"


def test_a_run_that_cannot_be_completed_is_begun_anew_the_next_time(place, monkeypatch):
    faults = [Fault("the disk is full", "free some space"), journal.CannotComplete("damaged")]
    for fault, kept in zip(faults, (True, False)):

        def fail(*given, fault=fault, **more):
            raise fault

        monkeypatch.setattr(job.run, "run", fail)
        queue = _queue(place, request("true"))
        queue._one(queue.jobs[0], request("true"))
        assert queue.jobs[0].state == "failed" and fault.what in str(queue.jobs[0].reason)
        assert (place / "1-command.json").exists() is kept


def test_warnings_and_errors_are_shown_once_of_each_kind(place):
    queue = _queue(place, request("true"))
    one = queue.jobs[0]
    for trial in range(1, 40):
        why = reason("disturbed", share=trial / 100, names=["cron"])
        queue._event(one, events.warning(why, trial, f"local:{trial}"))
    queue._event(one, events.warning(reason("journal-torn", path="x", lines=3)))
    assert [(noted.label, noted.reason.code) for noted in one.warnings] == [
        ("local:1", "disturbed"), ("", "journal-torn"),
    ]  # fmt: skip
    for trial in range(1, 80):
        failed = {
            "event": "trial", "trial": trial, "label": f"local:{trial % 30}", "grade": "error",
            "left_s": 0.0, "reason": to_json(reason("tool-exited", status=trial, said="")),
        }  # fmt: skip
        queue._event(one, failed)
    assert len(one.errors) == 20 and len({noted.label for noted in one.errors}) == 20
    assert str(one.errors[0].reason) == "it ended with exit status 1"
    lines = (place / "events.ndjson").read_text().splitlines()
    first = json.loads(lines[0])
    assert first["key"] == "1-command"
    assert from_json(Reason, first["reason"]).code == "disturbed"
    assert len(lines) == 39 + 1 + 79


def test_the_last_pid_of_the_status_is_the_queues_own(place):
    """fleet/stop.sh signals it; a reason may name other processes."""
    queue = _queue(place, request("true"))
    queue.jobs[0].reason = reason("process-ended", pid=1)
    queue.status.pid = 4711
    queue.write()
    words = ["sed", "-n", 's/.*"pid": \\([0-9]*\\).*/\\1/p', str(place / "status.json")]
    script = (Path(__file__).parent.parent / "fleet" / "stop.sh").read_text()
    assert " ".join(words[:2]) + f" '{words[2]}' status.json" in script
    assert subprocess.run(words, capture_output=True, text=True).stdout == "4711\n"


@pytest.mark.parametrize(
    ("given", "words"),
    [("{", "not JSON"), ('{"schema": 99}', "schema version"), ("[]", "order"),
     (f'{{"schema": {SCHEMA}, "session": "../x", "requests": []}}', "no name of a file"),
     (f'{{"schema": {SCHEMA}, "session": "x", "requests": [{{}}]}}', "lacks the key 'key'")],
)  # fmt: skip
def test_what_is_no_order_is_refused(place, agent, given, words):
    done = start(agent, place / "x", given)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr
