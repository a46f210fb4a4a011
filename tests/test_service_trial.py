"""Trials of a service, real ones: the phases, the proofs, and everything that can go wrong."""

import gzip
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from numalab import check, runs, services, store
from numalab.agent import drivers, kernel
from numalab.agent.contract import SCHEMA, Request, from_json
from numalab.agent.errors import Fault
from numalab.agent.host import topology
from numalab.agent.plan import make as planning
from numalab.agent.served import client, private
from numalab.agent.served.load import client as http
from numalab.agent.served.service import instance, loads
from numalab.agent.trial import journal, run

SMALL = Path(__file__).parent / "small_service.py"
DRIVER = drivers.driver("service")
TEXT = f"""\
says: a service for tests
needs: {{python: {sys.executable}, small: {SMALL}}}
options:
  more: ""
start: "{{python}} {{small}} serve unix:{{socket}} {{more}}"
ready: {{http: /, within_s: 60}}
load:
  kind: command
  command: "{{python}} {{small}} ask unix:{{socket}} {{time_s}}"
  figures:
    requests_per_second: "Requests/sec: #"
    latency_avg: "mean latency #"
    requests: "done # requests"
counters:
  http: /counters
  metrics: {{served: count, busy: s}}
"""
AT_RATE = """  at_rate: "{python} {small} ask unix:{socket} {time_s} {rate}"
  figures:"""


def service(*changes, text=TEXT):
    for before, after in changes:
        assert before in text
        text = text.replace(before, after, 1)
    return services.parse(text, Path("/nowhere/small.yml"))


def more(words):
    """A change: the service does more, see small_service.py."""
    return ("{more}", words)


try:
    http.find()
    NO_CLIENT = ""
except Fault as fault:
    NO_CLIENT = str(fault)
needs_client = pytest.mark.skipif(bool(NO_CLIENT), reason=NO_CLIENT or "there is a client")
NO_BALANCER = "" if shutil.which("haproxy", path="/usr/sbin:" + os.environ["PATH"]) else "haproxy"
needs_balancer = pytest.mark.skipif(bool(NO_BALANCER), reason="haproxy is not there")


def web(*changes):
    """The service, asked by our own client."""
    head, tail = TEXT[: TEXT.index("load:")], TEXT[TEXT.index("counters:") :]
    return service(*changes, text=f"{head}load: {{kind: http, request: /page}}\n{tail}")


def plan_of(asked, bindings=("unbound",), **given):
    options = {"service": asked, "time_s": 1, "warmup_s": 0, "connections": 4, **given}
    request = {
        "schema": SCHEMA, "experiment": "small", "profile": "smoke", "host": "here",
        "tool": {"name": "service", "options": options}, "bindings": list(bindings),
        "baseline": bindings[0], "control": False, "blocks": 1, "seed": 1,
        "collectors": {"perf": False}, "headline": "saturation_requests_per_second",
        "measure": {"saturation_requests_per_second": {"unit": "1/s", "better": "higher"}},
    }  # fmt: skip
    return planning.make(from_json(Request, request), topology.read())


def measure(folder, plan, emit=lambda event: None):
    """Measure a plan; return its journal. No process of it is left, and nothing in /tmp."""
    run.run(plan, folder, emit=emit, busy=True, lock_name=f"numalab-test-{os.getpid()}",
            record=folder.parent / "settings.json")  # fmt: skip
    left = [pid for pid in Path("/proc").glob("[0-9]*") if str(SMALL) in words_of(pid)]
    assert not left
    return list(journal.read(folder / "journal.ndjson"))


def words_of(process):
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    with tempfile.TemporaryDirectory(prefix="nl-") as base:
        monkeypatch.setenv("TMPDIR", base)
        monkeypatch.setattr(tempfile, "tempdir", base)
        yield tmp_path / "runs" / "here" / "20261122T120000Z-small"
        assert not os.listdir(base)


def values(folder):
    store.write(runs.load(folder))
    loaded = runs.load(folder)
    frame = loaded.measurements
    return {(row["cell"], row["metric"], row["point"]): row["value"] for row in frame.to_dicts()}


# --- what goes well ------------------------------------------------------------------------------


def test_instances_are_started_proven_asked_and_gone(folder):
    plan = plan_of(service(), ("unbound", "instances:2-unbound"))
    records = measure(folder, plan)
    assert [record.grade for record in records] == ["verified"] * 2, records
    found = values(folder)
    cell = next(id for id, *_ in found if id.startswith("instances"))
    for id in ("unbound", cell):
        assert found[id, "saturation_requests_per_second", ""] > 0
        assert found[id, "saturation_cpu_per_request", ""] > 0
        assert found[id, "requests_per_second", ""] is None
    asked = [found[cell, "saturation_instance_requests", f"instance {n}"] for n in (1, 2)]
    assert sum(asked) == found[cell, "saturation_requests", ""] and min(asked) > 0
    assert found[cell, "saturation_served", "instance 1"] >= asked[0]
    assert not check.check(folder).faults


def test_programs_of_the_home_folder_are_started_and_not_published(folder, monkeypatch):
    """Its place is "~" in every record: also a word that is not the first must be found."""
    home = folder.parent / "home"
    shutil.copytree(SMALL.parent, home, ignore=lambda _, names: set(names) - {SMALL.name})
    monkeypatch.setenv("HOME", str(home))
    plan = plan_of(service((str(SMALL), str(home / SMALL.name))))
    records = measure(folder, plan)
    assert [record.grade for record in records] == ["verified"], records
    out = gzip.decompress((folder / records[0].raw["stdout"]).read_bytes()).decode()
    assert "~/small_service.py" in out and str(home) not in out


def test_a_command_ends_a_service(folder):
    stop = "stop: {command: \"sh -c 'kill $(cat pid)'\", within_s: 20}\ncounters:"
    begun = """start: "sh -c 'echo $$ >pid; exec $0 $*' {python}"""
    started = service(('start: "{python}', begun), ("counters:", stop))
    records = measure(folder, plan_of(started))
    assert [record.grade for record in records] == ["verified"], records


def test_the_rate_is_calibrated_once_and_frozen_in_the_plan(folder):
    plan = plan_of(service(("  figures:", AT_RATE)))
    assert plan.cells[0].options["rate"] == "half"
    events = []
    records = measure(folder, plan, events.append)
    assert [record.grade for record in records] == ["verified"], records
    kept = runs.load(folder).plan
    rate = kept.cells[0].options["rate"]
    how = kept.request.tool.options["rate_is"]
    assert isinstance(rate, int) and rate == kept.request.tool.options["rate"]
    assert how["cell"] == "unbound" and rate == pytest.approx(how["half_of"] / 2, abs=1)
    assert calibrations(events)
    found = values(folder)
    assert found["unbound", "saturation_requests_per_second", ""] > 0
    assert found["unbound", "requests", ""] <= rate
    assert not check.check(folder).faults
    # It has its rate now: nothing is calibrated again, by whichever plan it goes on.
    name = runs.load(folder).trials[0].raw["stdout"]
    for going_on in (kept, plan):
        (folder / "journal.ndjson").unlink()
        again = []
        measure(folder, going_on, again.append)
        assert not calibrations(again) and (folder / name).exists()
        assert runs.load(folder).plan == kept
    with pytest.raises(Fault, match="holds a run of another plan"):
        measure(folder, plan_of(service(("  figures:", AT_RATE)), time_s=2))


def calibrations(events):
    return [one for one in events if (one.get("reason") or {}).get("code") == "calibrating"]


@needs_client
def test_our_own_client_asks_in_both_phases(folder):
    records = measure(folder, plan_of(web(), rate=100))
    assert [record.grade for record in records] == ["verified"], records
    found = values(folder)
    assert found["unbound", "requests_per_second", ""] == pytest.approx(100, rel=0.2)
    assert found["unbound", "saturation_requests_per_second", ""] > 100
    assert found["unbound", "latency_p99", ""] >= found["unbound", "latency_p50", ""] > 0
    assert found["unbound", "cpu_per_request", ""] > 0
    assert not check.check(folder).faults


@needs_client
@needs_balancer
def test_one_client_asks_all_instances_through_the_balancer(folder):
    asked = web(("ready:", "balancer: haproxy\nready:"))
    plan = plan_of(asked, ("unbound", "instances:2-unbound"), rate=50)
    records = measure(folder, plan)
    assert [record.grade for record in records] == ["verified"] * 2, records
    found = values(folder)
    cell = next(id for id, *_ in found if id.startswith("instances"))
    assert found[cell, "balancer_cpu_time", ""] > 0
    each = [found[cell, "instance_requests", f"instance {n}"] for n in (1, 2)]
    assert min(each) > 0 and found[cell, "served", "instance 2"] >= each[1]
    assert not check.check(folder).faults


def test_all_processes_of_an_instance_are_proven_and_counted(folder):
    records = measure(folder, plan_of(service(more("children=3 group"))))
    assert [record.grade for record in records] == ["verified"], records
    proofs = json.loads(gzip.decompress((folder / records[0].raw["proof"]).read_bytes()))["proofs"]
    assert proofs[0]["memory"]["processes"] == 4
    assert proofs[0]["memory"]["anonymous_bytes"] > 3 * (8 << 20)


def test_a_session_that_ends_while_the_processes_are_listed_is_counted(monkeypatch):
    def stat(pid, ticks, parent=1, ended=0):
        return kernel.Stat(pid, "db", "S", parent, 10, ticks, ended, 1, 0, 0)

    # The server is read before it waits for its session; the session is not listed any more.
    torn = {10: stat(10, 1, ended=5)}
    whole = {10: stat(10, 1, ended=125)}
    tables = iter([torn, whole, whole, whole])
    monkeypatch.setattr(kernel, "processes", lambda: next(tables))
    monkeypatch.setattr(instance, "usage", lambda pid: {"cpu_s": 0.01})
    server = object.__new__(instance.RunningService)
    server.pid = 10
    assert server.usage() == {"cpu_s": pytest.approx(0.01 + 125 / os.sysconf("SC_CLK_TCK"))}


def test_it_is_warm_when_a_condition_holds_and_a_doubt_when_it_does_not(folder):
    until = "warm: {until: {counter: busy, below: %s, for_s: 0.5, at_most_s: %s}}\ncounters:"
    calm = measure(folder, plan_of(service(("counters:", until % (1e9, 60)))))
    assert calm[0].grade == "verified" and not codes(calm[0].warnings, "service-not-warm")
    never = folder.with_name("20261122T120001Z-small")
    hot = measure(never, plan_of(service(("counters:", until % (-1e9, 2)))))
    assert hot[0].grade == "verified" and codes(hot[0].warnings, "service-not-warm")


def codes(reasons, code):
    return [one for one in reasons if one.code == code]


# --- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([more("exits=3")], r"refused to start \(exit status 3\): wrong configuration: line 7"),
        ([("within_s: 60", "within_s: 1"), more("late=30")], "did not answer within 1 s"),
        ([('start: "', 'start: "setsid -f ')],
         "exit status 0, where it must stay in the foreground"),
        ([("within_s: 60", "within_s: 1"), more("status=503")],
         r"did not answer within 1 s of its start \(GET / is answered by 503"),
        ([("{http: /, within_s: 60}", "{says: nothing, within_s: 1}")],
         r"its log does not say 'nothing'.*now it listens"),
        ([more("dies=9")], r"died in the measurement \(killed by SIGKILL\): .*out of ideas"),
        ([("{time_s}", "{time_s} x")], "the load's command failed.*exit status 1"),
        ([("Requests/sec: #", "Anfragen: #")], "printed no requests_per_second"),
        ([more("counters=500")], "counters: GET /counters is answered by 500"),
        ([("served: count", "served: count, heap: B")], "does not tell its counter heap"),
        ([("load:", "warm: {command: '{python} -c 1/0'}\nload:")],
         "could not be warmed up: exit status 1.*ZeroDivisionError"),
        ([more("stays"), ("counters:", "stop: {within_s: 1}\ncounters:")],
         "did not shut down within 1 s and was killed"),
        ([("counters:", "stop: {command: sh -c 'echo no; exit 4'}\ncounters:")],
         "was not ended by its command for that: exit status 4: no"),
        ([("counters:", "stop: {command: 'true', within_s: 1}\ncounters:")],
         "did not shut down within 1 s and was killed"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_said_and_nothing_is_left(folder, changes, said):
    records = measure(folder, plan_of(service(*changes)))
    assert [record.grade for record in records] == ["error"]
    assert re.search(said, str(records[0].reason)), str(records[0].reason)


class Dead:
    """What a client asks, and it has ended."""

    name = ""

    def __init__(self, folder, dead=True):
        self.datadir, self.dead = str(folder), dead

    def usage(self):
        return {}

    def counters(self):
        return {}

    def check_alive(self, when, patience_s=0.0):
        if self.dead:
            raise Fault(f"it died {when}")


def followed(asked, kind, seconds):
    """A client whose planned time is nothing, followed to its end."""
    words = [sys.executable, "-c", f"import time; time.sleep({seconds})"]
    one = kind(asked, words, 1, 0, 0, sorted(os.sched_getaffinity(0)), None)
    try:
        while not one.look():
            time.sleep(0.01)
    finally:
        one.kill()
        one.process.wait()
    return one


def test_a_load_of_so_many_requests_takes_the_time_it_needs(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "GRACE_S", 0.0)
    assert followed(Dead(tmp_path, dead=False), loads.CommandLoad, 0.3).status == 0
    assert followed(Dead(tmp_path, dead=False), client.Client, 60).late
    with pytest.raises(Fault, match="it died in the measurement"):
        followed(Dead(tmp_path), loads.CommandLoad, 60)


def test_a_port_that_somebody_took_is_said(folder, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Fault, match=r"another program listens on port \d+. run it again"):
            instance.check_nobody_listens(taken.getsockname()[1], "")
    # One that is taken a moment later is the server's own word.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        records = measure(
            folder, plan_of(service(("unix:{socket} {more}", f"{port} instead={{port}}")))
        )
    assert re.search("refused to start.*Address already in use", str(records[0].reason))


@needs_client
def test_a_service_that_is_ready_but_answers_errors_is_an_error(folder):
    asked = web(("{http: /, within_s: 60}", "{says: now it listens}"), more("status=500"))
    records = measure(folder, plan_of(asked, rate=50))
    assert records[0].grade == "error"
    said = r"the load met ([1-9]\d*) errors in 0 transactions \(answers that are not 2xx: \1\)"
    assert re.search(said, str(records[0].reason))


@needs_client
@needs_balancer
def test_a_balancer_that_dies_is_said_and_the_other_trial_is_made(folder):
    asked = web(("ready:", "balancer: haproxy\nready:"))
    plan = plan_of(asked, ("unbound", "instances:2-unbound"), rate=50, time_s=4)
    killed = []

    def emit(event):
        if event["event"] == "plan":
            threading.Thread(target=kill_one, daemon=True).start()

    def kill_one():
        while not killed:
            for process in Path("/proc").glob("[0-9]*"):
                words = words_of(process).split("\0")
                if "haproxy.cfg" in words and tempfile.gettempdir() in where_of(process):
                    time.sleep(1.5)
                    os.kill(int(process.name), signal.SIGKILL)
                    killed.append(process.name)
            time.sleep(0.05)

    records = measure(folder, plan, emit)
    assert killed and sorted(record.grade for record in records) == ["error", "verified"]
    wrong = next(record for record in records if record.grade == "error")
    assert re.search(r"HAProxy .*died .*killed by SIGKILL", str(wrong.reason)), str(wrong.reason)


def where_of(process):
    try:
        return os.readlink(process / "cwd")
    except OSError:
        return ""


def test_a_service_that_no_node_can_hold_is_left_out_of_the_plan():
    plan = plan_of(service(("options:", "memory: [64TiB]\noptions:")))
    assert not plan.order
    assert [skip.reason.code for skip in plan.skipped] == ["node-too-small"]


def test_what_a_killed_trial_left_is_removed_by_the_next(folder):
    left = private.PrivateFolder()
    Path(left.of(0), "socket").touch()
    mine = private.PrivateFolder()
    assert Path(left.path).exists()  # its trial lives
    os.close(left.lock)
    other = private.PrivateFolder()
    assert not Path(left.path).exists() and Path(mine.path).exists()
    mine.remove()
    other.remove()


def test_a_deep_folder_for_temporary_files_is_too_long_for_sockets(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "deep/" * 30)
    one = private.PrivateFolder()
    try:
        assert len(one.of(0)) < 90
    finally:
        one.remove()
