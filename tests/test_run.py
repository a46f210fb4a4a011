"""A run can be killed, stopped, starved and resumed: no trial is lost or doubled."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

import fake_tool
import waiting
from fake_tool import alive, fake_root, mark, plan, with_cells
from numalab.agent import VERSION, drivers, kernel
from numalab.agent.contract import (
    SCHEMA,
    CollectorRequest,
    HostRecord,
    Manifest,
    Reason,
    Skip,
    ToolRecord,
    from_json,
    reason,
    to_json,
)
from numalab.agent.errors import Fault
from numalab.agent.host import settings
from numalab.agent.plan import order
from numalab.agent.trial import host_changes, journal, lock, process, run


@pytest.fixture(autouse=True)
def after_each():
    yield
    kernel.adopt_orphans(False)


class Host:
    """A place to run in: directories, a fake root, a lock that no other test has."""

    def __init__(self, folder, monkeypatch):
        self.root = fake_root(folder / "root")
        self.out = folder / "runs" / "20261120T220511Z-fake"
        self.record = folder / "record.json"
        self.lock = f"numalab-test-{uuid.uuid4()}"
        self.mark = mark()
        self.events = []
        self._monkeypatch = monkeypatch

    def run(self, plan, protocol="handshake", allow=False, emit=None, busy=False, **more):
        self._monkeypatch.setattr(drivers, "driver", lambda name: fake_tool.Fake(protocol),
                                  raising=False)  # fmt: skip
        return run.run(
            plan, self.out, allow_host_changes=allow, emit=emit or self.events.append,
            record=self.record, changes_root=self.root, lock_name=self.lock, busy=busy, **more,
        )  # fmt: skip

    def start(self, plan, **popen):
        popen = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **popen}
        return fake_tool.agent(plan, self.out, self.root, self.record, self.lock, **popen)

    def follow(self, agent):
        """Wait until an agent has ended, as long as it writes; return what it said."""
        return waiting.follow(agent, [self.out])

    def records(self):
        return journal.read(self.out / "journal.ndjson")

    def manifest(self):
        return journal.load(Manifest, self.out / "manifest.json")

    def balancing(self):
        return (self.root / "proc/sys/kernel/numa_balancing").read_text().strip()

    def check_whole(self, plan):
        """Assert that the run is complete and every byte of it is accounted for."""
        records, manifest = self.records(), self.manifest()
        assert [(r.trial, r.cell) for r in records] == [(e.trial, e.cell) for e in plan.order]
        assert manifest.status == "complete" and manifest.ended
        for name, digest in manifest.sha256.items():
            assert journal.sha256(self.out / name) == digest, name
        on_disk = {f"raw/{path.name}" for path in (self.out / "raw").iterdir()}
        in_manifest = {name for name in manifest.sha256 if name.startswith("raw/")}
        assert on_disk == in_manifest
        assert journal.load(HostRecord, self.out / "host.json").after

    def check_clean(self):
        """Assert that no process and no changed setting is left."""
        waiting.wait_for(
            lambda: not alive(self.mark) and not self.record.exists(), tells=waiting.processes
        )
        assert self.balancing() == "1"


@pytest.fixture
def host(tmp_path, monkeypatch):
    host = Host(tmp_path, monkeypatch)
    yield host
    process.end(lambda: alive(host.mark), lambda found: None)


def test_a_whole_run(host):
    made = plan(["handshake", "crash"], host.mark)
    end = host.run(made)
    assert end == {"event": "end", "status": "complete", "verified": 2, "unverified": 0,
                   "error": 2, "dir": str(host.out), "reason": None}  # fmt: skip
    host.check_whole(made)
    assert [e["event"] for e in host.events] == ["plan", *["trial"] * 4, "end"]
    assert host.events[0]["trials"] == 4
    first, second = host.events[1:3]
    assert first["headline"] == {"metric": "speed", "value": 42.0, "unit": "1/s"}
    assert second["headline"] is None and "on fire" in _said(second)
    assert host.events[4]["left_s"] == 0 < first["left_s"]
    manifest = host.manifest()
    assert manifest.run == host.out.name and manifest.host == "here"
    assert manifest.plan == made and manifest.schema == SCHEMA
    emulated = journal.load(HostRecord, host.out / "host.json").emulated
    assert manifest.evidence == ("counted" if emulated else "measured")
    assert manifest.times["total_s"] >= manifest.times["trials_s"] > 0
    assert sorted(os.listdir(host.out)) == ["host.json", "journal.ndjson", "manifest.json", "raw"]
    before = host.manifest()
    assert host.run(made)["status"] == "complete"
    assert host.manifest() == before


def test_a_sampled_run(host):
    made = plan(["short"], host.mark, blocks=1)
    assert host.run(made, "sampled")["error"] == 0
    host.check_whole(made)


def test_host_changes_last_as_long_as_the_run(host):
    made = plan(["handshake"], host.mark, changes={"kernel.numa_balancing": "0"})
    seen = []

    def emit(event):
        seen.append((event["event"], host.balancing()))
        host.events.append(event)

    host.run(made, allow=True, emit=emit)
    assert ("trial", "0") in seen and seen[-1] == ("end", "1")
    (change,) = host.manifest().changes
    assert change.name == "kernel.numa_balancing" and change.restored is True
    assert "1 → 0" in _said(host.events[0])
    files = {str(p.relative_to(host.out)) for p in host.out.rglob("*") if p.is_file()}
    assert files == {"manifest.json", *host.manifest().sha256}
    assert "changes.json" in files


def test_without_leave_nothing_is_changed_and_nothing_measured(host):
    made = plan(["handshake"], host.mark, changes={"kernel.numa_balancing": "0"})
    with pytest.raises(
        Fault, match="permission to set kernel.numa_balancing = 0.*--allow-host-changes"
    ):
        host.run(made)
    assert host.balancing() == "1" and not host.out.exists()


def _with_settings(host, blocks=3):
    return with_cells(
        plan(["handshake"] * 3, host.mark, blocks=blocks),
        {},
        {"changes": {"kernel.numa_balancing": "0", "vm.drop_caches": "3"}},
        {"changes": {"thp.enabled": "never"}},
    )


def _said(event):
    return str(from_json(Reason, event["reason"]))


def test_each_cell_is_measured_under_its_own_settings(host):
    made = _with_settings(host)
    thp = host.root / "sys/kernel/mm/transparent_hugepage/enabled"
    seen = []

    def emit(event):
        host.events.append(event)
        if event["event"] == "trial":
            seen.append((event["trial"] % 3, host.balancing(), thp.read_text().strip("\n")))

    with pytest.raises(Fault, match="vm.drop_caches = 3, thp.enabled = never"):
        host.run(made)
    host.run(made, allow=True, emit=emit)
    # The first trial changes nothing: the file is as it was.
    assert seen[:3] == [(1, "1", "always [madvise] never"), (2, "0", "always [madvise] never"),
                        (0, "1", "never")]  # fmt: skip
    assert set(seen[3:]) == {(1, "1", "madvise"), (2, "0", "madvise"), (0, "1", "never")}
    usual = {"kernel.numa_balancing": "1", "thp.enabled": "madvise"}
    assert [record.settings for record in host.records()] == 3 * [
        usual,
        {**usual, "kernel.numa_balancing": "0", "vm.drop_caches": "3"},
        {**usual, "thp.enabled": "never"},
    ]
    manifest = host.manifest()
    assert manifest.settings == usual
    changed = {change.name: change for change in manifest.changes}
    assert changed["kernel.numa_balancing"].restored is True
    assert changed["vm.drop_caches"].restored is False
    recorded = journal.load(host_changes.Record, host.out / "changes.json").changes
    assert tuple(entry.change for entry in recorded) == manifest.changes
    assert {entry.name: entry.values for entry in recorded}["thp.enabled"] == ("never", "madvise")
    assert thp.read_text() == "madvise\n" and host.balancing() == "1"
    host.check_whole(made)


def test_a_setting_that_somebody_changes_meanwhile_fails_the_trial_and_stays(host):
    made = _with_settings(host)

    def emit(event):
        host.events.append(event)
        if event["event"] == "trial" and event["trial"] == 4:
            (host.root / "proc/sys/kernel/numa_balancing").write_text("2\n")

    host.run(made, allow=True, emit=emit)
    # Set between two trials: the next is measured under what it asks for, and all are.
    assert [record.grade for record in host.records()] == ["verified"] * 9
    assert host.balancing() == "2"
    assert any("numa_balancing was not put back: somebody else set it to 2" in _said(e)
               for e in host.events if e["event"] == "warning")  # fmt: skip

    shutil.rmtree(host.out)
    host.events.clear()
    options = {"do": "meddle", "mark": str(host.root / "proc/sys/kernel/numa_balancing")}
    host.run(with_cells(_with_settings(host), {}, {"options": options}), allow=True)
    middle = [record for record in host.records() if record.cell == "cell:1"]
    assert {record.grade for record in middle} == {"error"}
    name = "kernel.numa_balancing"
    assert middle[0].reason == reason("setting-changed-by-others", name=name, was="0", now="4")
    others = {record.grade for record in host.records() if record.cell != "cell:1"}
    assert others == {"verified"}
    assert host.balancing() == "4"


def test_a_refused_value_is_that_trials_error_and_all_is_put_back(host, monkeypatch):
    write = host_changes._put

    def refuse(path, text, *rest, **named):
        if path.name == "enabled" and text == "never":
            raise OSError(22, "Invalid argument")
        return write(path, text, *rest, **named)

    monkeypatch.setattr(host_changes, "_put", refuse)
    host.run(_with_settings(host), allow=True)
    graded = {(record.cell, record.grade) for record in host.records()}
    assert graded == {("cell:0", "verified"), ("cell:1", "verified"), ("cell:2", "error")}
    assert "thp.enabled cannot be set to never" in str(host.records()[2].reason)
    assert host.balancing() == "1" and not host.record.exists()


def test_what_cannot_be_set_here_is_refused_before_anything_is_measured(host):
    made = _with_settings(host)
    (host.root / "sys/kernel/mm/transparent_hugepage/enabled").unlink()
    with pytest.raises(Fault, match="nothing is measured.*this kernel has no thp.enabled"):
        host.run(made, allow=True)
    assert not host.out.exists() and host.balancing() == "1"


def test_a_resumed_run_keeps_the_values_that_it_began_with(host):
    made = _with_settings(host)

    def stop(event):
        host.events.append(event)
        if event["event"] == "trial" and event["trial"] == 4:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(run.Interrupted):
        host.run(made, allow=True, emit=stop)
    assert host.balancing() == "1" and not host.record.exists()
    (host.root / "proc/sys/kernel/numa_balancing").write_text("2\n")  # an administrator
    host.run(made, allow=True)
    host.check_whole(made)
    of = {record.cell: set() for record in host.records()}
    for record in host.records():
        of[record.cell].add(record.settings["kernel.numa_balancing"])
    assert of == {"cell:0": {"1"}, "cell:1": {"0"}, "cell:2": {"1"}}
    assert host.balancing() == "2"


def test_killed_at_random_moments_it_resumes_without_loss(host):
    """kill -9 of the agent, twelve times; then the run is completed and is as if never killed."""
    made = plan(["handshake", "slow-family", "crash"], host.mark, blocks=8,
                changes={"kernel.numa_balancing": "0"})  # fmt: skip
    own = {"kernel.numa_balancing": "2", "thp.enabled": "never"}
    made = with_cells(made, {"changes": own}, {"changes": {}})
    rng = random.Random(20261121)
    finished = 0
    kills = 0
    for _ in range(12):
        agent = host.start(made)
        # Some die while starting, most in some trial: the time goes on from the plan's event.
        if rng.random() < 0.8:
            while '"event": "plan"' not in (agent.stdout.readline() or '"event": "plan"'):
                pass
        time.sleep(rng.random() * 0.6)
        kills += agent.poll() is None
        agent.kill()
        agent.communicate()
        host.check_clean()
        records = host.records()
        assert [r.trial for r in records] == list(range(1, len(records) + 1))
        assert len(records) >= finished
        finished = len(records)
    assert kills >= 6, "the run ended before it could be killed"
    agent = host.start(made)
    out, err = host.follow(agent)
    assert agent.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["status"] == "complete"
    host.check_whole(made)
    host.check_clean()
    assert max(record.attempt for record in host.records()) >= 2
    times = host.manifest().times  # of the sessions that were killed, too
    assert times["total_s"] >= times["trials_s"]


def _sleeps(mark):
    """Tell whether the tool was told to go on: it sleeps."""
    told = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in alive(mark)]
    return any(words.startswith(b"sleep\0") for words in told)


def test_a_killed_tool_is_an_error_and_the_run_goes_on(host):
    made = plan(["never-result", "handshake"], host.mark, blocks=1)
    agent = host.start(made)
    waiting.wait_for(lambda: _sleeps(host.mark), agent)
    for pid in alive(host.mark):
        os.kill(pid, signal.SIGKILL)
    out, err = host.follow(agent)
    assert agent.returncode == 0, err
    assert [r.grade for r in host.records()] == ["error", "verified"]
    assert host.records()[0].reason.code == "tool-killed"
    host.check_whole(made)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_in_order(host, number):
    made = plan(["handshake", "never-result"], host.mark, blocks=2,
                changes={"kernel.numa_balancing": "0"})  # fmt: skip
    agent = host.start(made)
    for line in agent.stdout:
        if json.loads(line)["event"] == "trial":
            break
    time.sleep(0.2)
    agent.send_signal(number)
    out, err = host.follow(agent)
    assert agent.returncode == 128 + number
    assert "after 1 of 4 trials" in err and "resume" in err and "Traceback" not in err
    end = json.loads(out.splitlines()[-1])
    assert end["event"] == "end" and end["status"] == "stopped" and end["verified"] == 1
    assert host.manifest().status == "stopped"
    host.check_clean()


def test_it_ends_at_the_look_that_is_enough(host):
    made = plan(["handshake", "handshake"], host.mark, blocks=9, until=0.03, looks=(2, 3, 5, 9))
    answers = iter([False, True])
    end = host.run(made, enough=lambda: next(answers))
    assert end["status"] == "complete" and end["verified"] == 6
    assert [event["block"] for event in host.events if event["event"] == "look"] == [2, 3]
    kept = host.manifest().plan
    assert kept.request == replace(made.request, blocks=3) and kept.order == made.order[:6]
    host.check_whole(kept)
    assert host.run(kept, enough=lambda: pytest.fail("asked again"))["status"] == "complete"


def test_stopped_at_a_look_it_looks_again_when_it_is_resumed(host):
    made = plan(["handshake"], host.mark, blocks=3, until=0.03, looks=(2, 3))

    def stop():
        os.kill(os.getpid(), signal.SIGINT)
        return True

    with pytest.raises(run.Interrupted):
        host.run(made, enough=stop)
    assert host.manifest().status == "stopped" and host.manifest().plan == made
    host.run(made)  # nobody answers: all is measured
    assert [event["block"] for event in host.events if event["event"] == "look"] == [2, 2]
    host.check_whole(made)


def test_it_stops_when_nobody_listens_any_more(host):
    made = plan(["handshake"], host.mark, blocks=500)
    agent = host.start(made)
    agent.stdout.readline()
    agent.stdout.close()
    agent.stdout = None
    _, err = host.follow(agent)
    assert "Traceback" not in err and "Exception ignored" not in err
    assert host.manifest().status == "stopped" and len(host.records()) < 500


def test_two_at_once_are_refused_and_the_holder_is_named(host, tmp_path):
    made = plan(["never-result"], host.mark, blocks=1)
    agent = host.start(made)
    agent.stdout.readline()
    with pytest.raises(Fault, match=rf"another numalab measurement is running .*{agent.pid}"):
        host.run(made)
    agent.kill()
    agent.communicate()
    with lock.measurement(host.lock):  # the kernel freed it, after the guard had cleaned up
        assert not alive(host.mark)


def test_a_torn_journal_costs_one_trial(host):
    made = plan(["handshake"], host.mark, blocks=3)
    host.run(made)
    path = host.out / "journal.ndjson"
    path.write_bytes(path.read_bytes()[:-20])
    host.events.clear()
    assert host.run(made)["status"] == "complete"
    assert host.events[0]["reason"]["code"] == "journal-torn"
    assert [e["trial"] for e in host.events if e["event"] == "trial"] == [3]
    host.check_whole(made)


def _damage_middle(host):
    path = host.out / "journal.ndjson"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + "{}\n" + lines[2])


def _damage_raw(host):
    path = host.out / "raw/0001-cell-0.stdout.gz"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")


def _newer(host):
    manifest = to_json(host.manifest())
    (host.out / "manifest.json").write_text(json.dumps({**manifest, "schema": SCHEMA + 1}))


def _alien(host):
    records = host.records()
    (host.out / "journal.ndjson").unlink()
    for record in records:
        journal.append(host.out / "journal.ndjson", dataclasses.replace(record, cell="cell:9"))


def _edited(host):
    path = host.out / "journal.ndjson"
    path.write_text(path.read_text().replace('"grade": "verified"', '"grade": "unverified"', 1))


@pytest.mark.parametrize(
    "damage, words",
    [
        (_damage_middle, "line 2 is not a trial's record"),
        (_damage_raw, "is not what trial 1 wrote"),
        (_newer, "schema version 4.*update this numalab"),
        (_alien, "'cell:9' is not in the plan"),
        (_edited, "line 2 does not follow the line before it"),
        (lambda host: (host.out / "manifest.json").write_text("{"), "cannot be read"),
        (lambda host: (host.out / "manifest.json").unlink(), "is not a run directory"),
    ],
)
def test_a_damaged_run_is_refused(host, damage, words):
    made = plan(["handshake"], host.mark, blocks=3)
    host.run(made)
    damage(host)
    kept = {p: p.read_bytes() for p in host.out.rglob("*") if p.is_file()}
    with pytest.raises(Fault, match=words):
        host.run(plan(["handshake"], host.mark, blocks=3))
    assert {p: p.read_bytes() for p in host.out.rglob("*") if p.is_file()} == kept


def test_another_plan_does_not_go_into_the_same_directory(host):
    host.run(plan(["handshake"], host.mark, blocks=1))
    with pytest.raises(Fault, match="holds a run of another plan"):
        host.run(plan(["handshake"], host.mark, blocks=2))


def test_a_directory_that_holds_something_else_is_left_alone(host):
    host.out.mkdir(parents=True)
    (host.out / "thesis.tex").write_text("x")
    with pytest.raises(Fault, match="is not a run directory"):
        host.run(plan(["handshake"], host.mark))
    assert os.listdir(host.out) == ["thesis.tex"]


@pytest.mark.parametrize(
    "more, words",
    [
        ({"order": (), "skipped": (Skip("remote", "remote", reason("fault", what="one node")),)},
         "nothing to measure.*one node"),
        ({"tool": ToolRecord("fake", "9")}, "made for fake 9, this host has 1"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_run_is_refused(host, more, words):
    with pytest.raises(Fault, match=words):
        host.run(dataclasses.replace(plan(["handshake"], "0"), **more))


def test_why_nothing_can_be_measured_is_said_once():
    one, other = reason("fault", what="one node"), reason("fault", what="no CPUs")
    made = plan(["handshake"], "0")
    skipped = tuple(Skip("remote", "remote", why) for why in (one, one))
    assert run.why_nothing_here(dataclasses.replace(made, skipped=skipped)) == one
    both = dataclasses.replace(made, skipped=(*skipped, Skip("local", "local", other)))
    assert str(run.why_nothing_here(both)) == "one node; no CPUs"


@pytest.mark.parametrize("cells", [0, 1, 7])
def test_more_trials_than_a_run_can_hold_are_refused_at_once(cells):
    some = [fake_tool.cell(n, "handshake", "0") for n in range(cells)]
    with pytest.raises(Fault, match="1,000,000,000 blocks .* more than 16,000 trials.*at most"):
        order.trial_order(some, 1_000_000_000, 1)


def test_when_a_whole_block_fails_alike_it_gives_up(host):
    made = plan(["crash"] * 4, host.mark, blocks=10)
    with pytest.raises(Fault, match="given up after 4 trials.*the buffer is on fire"):
        host.run(made)
    assert len(host.records()) == 4
    assert host.events[-1]["status"] == "stopped" and "on fire" in _said(host.events[-1])
    assert host.manifest().status == "stopped"


def test_one_cell_that_works_keeps_the_run_going(host):
    made = plan(["crash", "crash", "crash", "handshake"], host.mark, blocks=2)
    assert host.run(made)["error"] == 6


def test_other_cpus_than_at_the_start_are_refused(host):
    made = plan(["handshake"], host.mark, blocks=2)
    host.run(made)
    path = host.out / "journal.ndjson"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    record = journal.load(HostRecord, host.out / "host.json")
    fewer = dataclasses.replace(record.topology, cpus=record.topology.cpus[:-1])
    journal.write_json(host.out / "host.json", dataclasses.replace(record, topology=fewer))
    with pytest.raises(Fault, match="begun on a host with other CPUs"):
        host.run(made)


def test_a_full_disk_stops_the_run_and_it_resumes_with_room(host, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=640k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        host.out = small / "20261120T220511Z-fake"
        made = plan(["handshake"], host.mark, blocks=40, changes={"kernel.numa_balancing": "0"})
        filler = small / "filler"
        filler.write_bytes(b"x" * (300 << 10))
        agent = host.start(made)
        out, err = host.follow(agent)
        assert agent.returncode == 2, err
        assert "the disk is full" in err and "resume" in err and "Traceback" not in err
        host.check_clean()
        finished = len(host.records())
        assert 0 < finished < 40
        filler.unlink()
        made_room = host.start(made)
        out, err = host.follow(made_room)
        subprocess.run(["mount", "-o", "remount,size=8m", str(small)], check=False)
        if made_room.returncode != 0:
            assert "the disk is full" in err
            made_room = host.start(made)
            out, err = host.follow(made_room)
        assert made_room.returncode == 0, err
        host.check_whole(made)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=False)


def test_faults_reach_a_person_as_one_message(tmp_path):
    def agent(*words):
        return subprocess.run(
            [sys.executable, "-m", "numalab.agent", *words], capture_output=True, text=True,
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path(run.__file__).parents[3])},
        )  # fmt: skip

    (tmp_path / "plan.json").write_text('{"schema": 7}')
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "part.json").write_text('{"schema": 3}')
    for words, said in (
        (["run", "--plan", "list.json", "--out", "x"], "list.json states no schema version"),
        (["run", "--plan", "part.json", "--out", "x"], "part.json lacks the key 'request'"),
        (["run", "--plan", "nowhere.json", "--out", "x"], "nowhere.json is missing"),
        (["run", "--plan", "plan.json", "--out", "x"], "schema version 7"),
        (["resume", "nowhere"], "manifest.json is missing"),
        (["plan", "plan.json"], "plan.json has schema version 7"),
    ):
        done = agent(*words)
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr.startswith("numalab: ") and said in done.stderr
        assert "Traceback" not in done.stderr
    assert agent("version").stdout == f"{VERSION}\n"
    assert "node" in agent("host").stdout
    assert json.loads(agent("host", "--json").stdout)["topology"]["nodes"]


def test_the_agent_is_one_file_that_old_python_runs(tmp_path):
    from numalab import agent_archive

    path = agent_archive.build(tmp_path / "numalab-agent.pyz")
    first = path.read_bytes()
    assert agent_archive.build(path).read_bytes() == first
    import zipfile

    names = zipfile.ZipFile(path).namelist()
    assert all(n.startswith("numalab/agent/") for n in names if n not in
               ("__main__.py", "numalab/__init__.py"))  # fmt: skip
    pythons = {sys.executable, shutil.which("python3.9"), "/usr/bin/python3"}
    for python in sorted(p for p in pythons if p and Path(p).exists()):
        done = subprocess.run(
            [python, "-I", str(path), "version"], capture_output=True, text=True, cwd="/"
        )
        if "is not installed" in done.stderr or "command not found" in done.stderr:
            continue  # a version manager's stand-in for a Python that is not active
        assert done.stdout == f"{VERSION}\n", done.stderr


def test_beside_others_nothing_begins_and_with_busy_the_run_is_marked(host, monkeypatch):
    others = reason("host-busy", share=0.5, names=["backup"])
    monkeypatch.setattr(run.quiet, "busy", lambda *_: [others])
    wanted = plan(["handshake"], host.mark, blocks=2)
    with pytest.raises(Fault, match="nothing is measured: others use 50 % of the CPUs .backup."):
        host.run(wanted)
    assert not host.out.exists()
    host.run(wanted, busy=True)
    host.check_whole(wanted)
    assert host.manifest().busy == (others,)


def test_a_block_beside_others_is_marked_in_each_of_its_trials(host, monkeypatch):
    others = reason("host-busy", share=0.5, names=["backup"])
    looks = [None, others]
    monkeypatch.setattr(run.quiet, "WAIT_S", 0.0)
    monkeypatch.setattr(run.quiet, "others_at_work", lambda: looks.pop(0))
    host.run(plan(["handshake", "handshake"], host.mark, blocks=2))
    marked = [others in record.warnings for record in host.records()]
    assert marked == [False, False, True, True]


def test_a_trial_during_which_the_hosts_own_setting_changed_is_an_error(host):
    huge = host.root / "sys/kernel/mm/transparent_hugepage/enabled"
    wanted = replace(plan(["handshake"], host.mark, blocks=2), settings={"thp.enabled": "madvise"})

    def change(event):
        if event["event"] == "trial" and event["trial"] == 1:
            huge.write_text("[always] madvise never\n")

    host.run(wanted, emit=change)
    first, second = host.records()
    assert first.grade == "verified" and first.settings == {"thp.enabled": "madvise"}
    assert second.grade == "error" and second.reason.code == "setting-changed-by-others"


@pytest.mark.parametrize("allow", [True, False])
def test_resctrl_is_mounted_for_the_collectors_only_with_leave(host, monkeypatch, allow):
    folder = host.root / "sys/fs/resctrl"
    folder.mkdir(parents=True)
    for node in (0, 1):
        (host.root / f"sys/devices/system/node/node{node}").mkdir(parents=True)
    (host.root / "proc/cpuinfo").write_text("flags : cqm_mbm_total cqm_mbm_local\n")
    monkeypatch.setattr(kernel, "mount", lambda kind, where: (Path(where) / "info").mkdir())
    monkeypatch.setattr(kernel, "unmount", lambda where: (Path(where) / "info").rmdir())
    made = plan(["handshake"], host.mark)
    wanted = CollectorRequest(perf=False, interval_s=0)
    made = replace(made, request=replace(made.request, collectors=wanted))
    host.run(made, allow=allow, busy=True)
    mounted = {record.settings.get(settings.MOUNTED) for record in host.records()}
    assert mounted == ({"1"} if allow else {None})
    assert not (folder / "info").exists()
    changed = {change.name: change.restored for change in host.manifest().changes}
    assert changed == ({settings.MOUNTED: True} if allow else {})
    host.check_clean()
