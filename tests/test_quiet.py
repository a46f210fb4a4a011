"""Whoever else is at work on a host is seen, named, and a run does not begin beside them."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from numalab.agent import kernel
from numalab.agent.contract import reason
from numalab.agent.errors import Fault
from numalab.agent.trial import quiet

TICK = 1 / os.sysconf("SC_CLK_TCK")


@pytest.fixture(autouse=True)
def quiet_host():
    """Look at the host as it is, or as a test makes it up."""


@pytest.fixture
def host(monkeypatch):
    """A made-up host: the ticks that each CPU and process used between two looks."""
    made = SimpleNamespace(cpus={}, processes={})
    looks = iter(range(10_000))
    count = len(os.sched_getaffinity(0))

    def stat(pid, name, ticks, parent=1):
        return kernel.Stat(pid, name, "S", parent, pid, ticks, 0, 1, 100, 0)

    def snapshot(root="/"):
        look = next(looks)
        cpus = {
            cpu: [look * made.cpus.get("busy", 0), 0, 0, look * 100, 0, 0, 0, 0]
            for cpu in os.sched_getaffinity(0)
        }
        ours = {os.getpid(): stat(os.getpid(), "agent", look * made.cpus.get("ours", 0))}
        table = {
            pid: stat(pid, name, look * ticks) for pid, (name, ticks) in made.processes.items()
        }
        return quiet.cpu.Snapshot(look * 100 * TICK, cpus, {**ours, **table})

    made.count = count
    monkeypatch.setattr(quiet.cpu, "snapshot", snapshot)
    monkeypatch.setattr(quiet.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(quiet, "PATIENCE_S", 0.01)
    monkeypatch.setattr(kernel, "processes", lambda proc="/proc": snapshot().processes)
    return made


def test_a_quiet_host_is_quiet(host):
    host.cpus["busy"] = 4
    assert quiet.busy() == []
    quiet.refuse([])


def test_others_on_the_cpus_are_named_and_refused(host):
    host.cpus["busy"] = 40
    host.processes[99999] = ("backup", 40 * host.count)
    found = quiet.busy()
    assert found == [reason("host-busy", share=pytest.approx(0.4), names=["backup"])]
    with pytest.raises(Fault, match=r"nothing is measured: others use 40 % of the CPUs \(backup"):
        quiet.refuse(found)
    with pytest.raises(Fault, match="--busy"):
        quiet.refuse(found)


def test_what_the_measuring_itself_uses_is_no_disturbance(host):
    host.cpus.update(busy=40, ours=40 * host.count)
    assert quiet.busy() == []


@pytest.mark.parametrize("name", ["mysqld", "postgres", "ora_pmon_prod", "mongod", "valkey-server"])
def test_an_idle_database_server_is_named_too(host, name):
    host.processes[99999] = (name, 0)
    assert str(quiet.busy()[0]) == f"a database server runs on this host: {name}"
    host.processes[99999] = ("mysqldump-notes", 0)
    assert quiet.busy() == []


def test_a_server_of_our_own_is_none_of_theirs():
    program = "import time, pathlib; pathlib.Path('/proc/self/comm').write_text('mysqld'); "
    child = subprocess.Popen(
        [sys.executable, "-c", program + "print('x', flush=True); time.sleep(600)"],
        stdout=subprocess.PIPE,
    )
    try:
        child.stdout.readline()
        assert kernel.processes()[child.pid].name == "mysqld"
        assert child.pid in quiet._our_own(kernel.processes())
    finally:
        child.kill()
        child.communicate()


def test_a_real_look_sees_real_work_and_says_whose():
    """A process that is none of our own, since nobody above it is us."""
    burn = f"import os\nif os.fork() == 0:\n os.setsid()\n open({str(os.devnull)!r})\n"
    burn += " print(os.getpid(), flush=True)\n while True: pass\n"
    starter = subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE, text=True)
    pid = int(starter.stdout.readline())
    starter.wait()
    try:
        if pid in quiet._our_own(kernel.processes()):
            pytest.skip("whoever started the tests adopts orphans")
        if 1 / len(os.sched_getaffinity(0)) <= 2 * quiet.LIMIT:
            pytest.skip("one busy process is little here")
        for _ in range(60):
            before, began = kernel.stat_of(f"/proc/{pid}").ticks, time.monotonic()
            found = quiet.others_at_work()
            used_s = (kernel.stat_of(f"/proc/{pid}").ticks - before) / os.sysconf("SC_CLK_TCK")
            whole_s = (time.monotonic() - began) * len(os.sched_getaffinity(0))
            if used_s > 2 * quiet.LIMIT * whole_s:  # on a busy machine it may get less
                assert found and found.fields["share"] > quiet.LIMIT
                return
        pytest.skip("the busy process was given no time")
    finally:
        os.kill(pid, 9)


def test_a_block_waits_for_others_and_then_says_so(monkeypatch):
    seen = reason("host-busy", share=0.5, names=["x"])
    looks = [seen, seen, None]
    monkeypatch.setattr(quiet, "others_at_work", lambda: looks.pop(0))
    assert quiet.Quiet(False, lambda: False).before_block() == [] and looks == []
    monkeypatch.setattr(quiet, "others_at_work", lambda: seen)
    waiting = quiet.Quiet(False, lambda: False, wait_s=0.0)
    assert waiting.before_block() == [seen] == waiting.before_block()
    assert quiet.Quiet(True, lambda: False).before_block() == []  # the run as a whole says it
