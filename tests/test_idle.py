"""What hangs is told from what is slow by the work of its processes, not by a clock alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from numalab import launch, rederived
from numalab.agent import idle
from numalab.agent.errors import Fault
from numalab.agent.served import instance


@pytest.fixture
def look_often(monkeypatch):
    monkeypatch.setattr(idle, "_LOOK_S", 0.0)


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves itself."""
    now = [0.0]
    monkeypatch.setattr(idle.time, "monotonic", lambda: now[0])
    return now


def test_a_log_that_grows_is_work(tmp_path, clock):
    log = tmp_path / "log"
    watch = idle.Idle(-1, str(log))
    clock[0] = 100
    assert watch.for_s() == 100
    log.write_text("recovering")
    clock[0] = 200
    assert watch.for_s() == 0
    clock[0] = 210
    assert watch.for_s() == 10


def test_cpu_time_is_work_and_waiting_is_none(monkeypatch, clock):
    used = [7.0]
    monkeypatch.setattr(idle, "cpu_s", lambda session: used[0])
    watch = idle.Idle(-1)
    clock[0], used[0] = 100, 7.0 + idle.LEAST_CPU_S / 2
    assert watch.for_s() == 100
    clock[0], used[0] = 200, 7.0 + idle.LEAST_CPU_S
    assert watch.for_s() == 0


def test_the_cpu_time_of_a_session_is_that_of_all_its_processes():
    burn = "sum(range(3_000_000)); print(flush=True)"
    words = f"import subprocess, sys; {burn}; subprocess.run([sys.executable, '-c', {burn!r}]); "
    child = subprocess.Popen(
        [sys.executable, "-c", words + "sys.stdin.read()"], start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdin and child.stdout
    child.stdout.readline()
    child.stdout.readline()
    assert idle.cpu_s(child.pid) > 0
    child.stdin.close()
    child.wait()
    assert idle.cpu_s(child.pid) == 0


class Silent(instance.RunningServer):
    def ask(self, timeout_s):
        raise OSError("nobody listens")


def test_a_server_that_does_nothing_hangs(tmp_path, monkeypatch, look_often):
    monkeypatch.setattr(instance, "START_IDLE_S", 0.2)
    one = Silent("sleep", ["sleep", "600"], str(tmp_path))
    try:
        with pytest.raises(Fault, match="did nothing for 0.2 s .nobody listens"):
            one.wait_until_it_answers()
    finally:
        one.kill()


def test_a_git_that_does_not_answer_is_no_checkout_without_git(monkeypatch):
    def hang(command, timeout, **more):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(Fault, match="git describe .*did not end within"):
        launch.source_commit()
    with pytest.raises(Fault, match="git show .*did not end within"):
        rederived._committed("0" * 40, str(Path("experiments") / "none.yml"))
