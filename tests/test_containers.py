"""What a container's engine starts is proven, not the client that asked it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from numalab.agent.contract import SCHEMA, Request, from_json
from numalab.agent.drivers import containers
from numalab.agent.host import topology
from numalab.agent.plan import make
from numalab.agent.trial import journal, run

# An engine: it starts what it is told by a process named containerd-shim, as docker's does.
ENGINE = """
    import ctypes, os, sys
    here = sys.argv[1]
    for line in open(os.path.join(here, "asked")):
        words = line.split()
        shim = os.fork()
        if shim == 0:
            ctypes.CDLL(None).prctl(15, b"containerd-shim", 0, 0, 0)
            program = os.fork()
            if program == 0:
                os.execvp(words[1], words[1:])
            os._exit(os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))
        with open(words[0], "w") as said:
            said.write(str(os.waitstatus_to_exitcode(os.waitpid(shim, 0)[1])))
"""
CLIENT = """
    import os, sys, time
    answer = {here!r} + "/answer-" + str(os.getpid())
    with open({here!r} + "/asked", "w") as engine:
        engine.write(" ".join([answer, *sys.argv[sys.argv.index("IMAGE") + 1:]]) + "\\n")
    while not (os.path.exists(answer) and open(answer).read()):
        time.sleep(0.01)
    sys.exit(int(open(answer).read()))
"""
HOLD = "import time; held = bytearray(30 << 20); time.sleep(0.8)"


@pytest.fixture
def docker(tmp_path):
    """A docker(1) whose engine runs apart from us; its path."""
    os.mkfifo(tmp_path / "asked")
    client = tmp_path / "docker"
    text = textwrap.dedent(CLIENT.format(here=str(tmp_path)))
    client.write_text(f"#!{sys.executable}\n{text}")
    client.chmod(0o755)
    (tmp_path / "hold.py").write_text(HOLD)
    # It reopens the queue when a client has closed it: O_RDWR keeps it open.
    code = textwrap.dedent(ENGINE).replace(
        'open(os.path.join(here, "asked"))', 'os.fdopen(os.open(here + "/asked", os.O_RDWR))'
    )
    engine = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], start_new_session=True,
        preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0),
    )  # fmt: skip
    yield client
    engine.kill()
    engine.wait()


def measure(folder, client, binding="cpus-only", **options):
    words = [str(client), "run", "IMAGE", sys.executable, str(folder / "hold.py")]
    asked = {
        "schema": SCHEMA, "experiment": "command", "profile": "smoke", "host": "here",
        "tool": {"name": "command", "prefer": ["command"], "options": {"argv": words}},
        "bindings": [binding], "baseline": binding, "control": False, "blocks": 1, "seed": 1,
        "collectors": None,
    }  # fmt: skip
    plan = make.make(from_json(Request, asked), topology.read())
    out = folder / "run"
    run.run(plan, out, emit=lambda event: None, lock_name=f"numalab-test-{os.getpid()}",
            record=folder / "settings.json", **options)  # fmt: skip
    (record,) = journal.read(out / "journal.ndjson")
    return plan, record


def test_the_command_lines_of_clients_are_known():
    for words in (["docker", "run"], ["/usr/bin/podman", "run"], ["sudo", "A=1", "nerdctl"]):
        assert containers.engine(words) == os.path.basename(words[-1] if len(words) > 2 else
                                                            words[0])  # fmt: skip
    for words in (["sh", "docker"], ["./dockerd"], ["numactl", "docker"]):
        assert containers.engine(words) is None


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU is the whole host")
def test_a_container_is_proven_and_not_its_client(docker, tmp_path):
    """The client is bound to one CPU; the container, which its engine starts, is not."""
    cpu = min(os.sched_getaffinity(0))
    plan, record = measure(tmp_path, docker, {"cpus": str(cpu)})
    assert [one.code for one in plan.cells[0].notes] == ["engine-starts-it"]
    assert f"--cpuset-cpus={cpu}" in str(plan.cells[0].notes[0])
    assert record.bound["cpus"] == str(cpu)
    assert record.grade == "error" and record.reason.code == "cpus-allowed-outside"


def test_a_container_where_it_must_be_is_verified(docker, tmp_path):
    _, record = measure(tmp_path, docker, "unbound")
    assert record.grade == "verified", record.reason


def test_a_client_without_a_container_proves_nothing(tmp_path):
    client = tmp_path / "docker"
    client.write_text("#!/bin/sh\nexec sleep 0.5\n")
    client.chmod(0o755)
    _, record = measure(tmp_path, client, "unbound")
    assert record.grade == "unverified"
    assert "no container was seen that docker started" in str(record.reason)


def test_of_two_new_containers_none_is_taken(tmp_path):
    def proc(*processes):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for pid, name, parent in processes:
            (folder / str(pid)).mkdir(parents=True)
            rest = " ".join(["0"] * 48)
            (folder / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} {rest}\n")
        return str(folder)

    shim, other = (10, "containerd-shim", 1), (20, "containerd-shim", 1)
    started = containers.Started("docker", proc(shim, (11, "old", 10)))
    started.proc = proc(shim, (11, "old", 10), other, (21, "new", 20), (22, "its child", 21))
    assert started.roots() == ([21], None)
    started.proc = proc(shim, other, (30, "conmon", 1), (21, "new", 20), (31, "new", 30))
    pids, why = started.roots()
    assert pids == [] and why.code == "several-containers"
