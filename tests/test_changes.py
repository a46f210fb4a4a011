"""Host settings come back to what they were, whoever was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fake_tool import fake_root
from numalab.agent import changes, only_one
from numalab.agent.errors import Fault

LIB = str(Path(changes.__file__).resolve().parents[2])


@pytest.fixture
def root(tmp_path):
    return fake_root(tmp_path / "root")


@pytest.fixture
def host(root, tmp_path):
    return changes.HostChanges(tmp_path / "state" / "changes.json", tmp_path / "copy.json", root)


def _balancing(root):
    return (root / "proc/sys/kernel/numa_balancing").read_text().strip()


def test_a_change_is_recorded_made_and_put_back(host, root, tmp_path):
    host.apply({"kernel.numa_balancing": "0"})
    assert _balancing(root) == "0"
    left = changes.pending(host.record)
    assert left["pid"] == os.getpid() and left["boot_id"].startswith("1111")
    assert left["changes"][0]["before"] == "1" and left["changes"][0]["value"] == "0"
    (entry,) = host.restore()
    assert entry["restored"] is True
    assert _balancing(root) == "1"
    assert changes.pending(host.record) is None
    assert json.loads((tmp_path / "copy.json").read_text())["changes"][0]["restored"] is True
    assert host.restore() == []


def test_the_record_is_there_before_the_change(host, root, monkeypatch):
    seen = []
    write = Path.write_text

    def spy(path, text, *rest, **named):
        if path.name == "numa_balancing":
            seen.append(changes.pending(host.record)["changes"][0]["before"])
        return write(path, text, *rest, **named)

    monkeypatch.setattr(Path, "write_text", spy)
    host.apply({"kernel.numa_balancing": "0"})
    assert seen == ["1"]


def test_transparent_huge_pages_by_the_word_in_brackets(host, root):
    path = root / "sys/kernel/mm/transparent_hugepage/enabled"
    assert host.announce({"thp.enabled": "never"}) == [
        "thp.enabled: madvise → never for the time of this run"
    ]
    host.apply({"thp.enabled": "never"})
    assert path.read_text() == "never\n"
    host.restore()
    assert path.read_text() == "madvise\n"


def test_what_cannot_be_put_back_is_announced(host, root):
    (said,) = host.announce({"vm.drop_caches": "3"})
    assert "cannot be undone" in said
    host.apply({"vm.drop_caches": "3"})
    assert (root / "proc/sys/vm/drop_caches").read_text() == "3\n"
    (entry,) = host.restore()
    assert entry["restored"] is False and "cannot be put back" in entry["reason"]
    assert (root / "proc/sys/vm/drop_caches").read_text() == "3\n"


@pytest.mark.parametrize("name", ["../etc/passwd", "kernel", "kernel/../x.y", "kernel.a b", ""])
def test_a_name_that_is_none_is_refused(host, name):
    with pytest.raises(Fault, match="is not the name of a kernel setting"):
        host.apply({name: "0"})


def test_one_failure_puts_the_others_back(host, root):
    with pytest.raises(Fault, match="kernel.nonesuch cannot be read"):
        host.apply({"kernel.numa_balancing": "0", "kernel.nonesuch": "1"})
    assert _balancing(root) == "1"
    unwritable = root / "proc/sys/kernel/stubborn"
    unwritable.mkdir()
    with pytest.raises(Fault, match="kernel.stubborn cannot be read"):
        host.apply({"kernel.numa_balancing": "0", "kernel.stubborn": "1"})
    assert _balancing(root) == "1" and not host.record.exists()


def test_a_kernel_that_says_yes_and_does_no_is_found_out(host, root, monkeypatch):
    write = Path.write_text

    def ignore(path, text, *rest, **named):
        return write(path, "1\n" if path.name == "numa_balancing" else text, *rest, **named)

    monkeypatch.setattr(Path, "write_text", ignore)
    with pytest.raises(Fault, match="was set to 0 and reads 1"):
        host.apply({"kernel.numa_balancing": "0"})
    assert not host.record.exists()


def test_no_record_no_change(host, root):
    host.record.parent.write_text("a file where the folder should be")
    with pytest.raises((Fault, OSError)):
        host.apply({"kernel.numa_balancing": "0"})
    assert _balancing(root) == "1"


def test_what_somebody_else_set_since_is_left(host, root):
    host.apply({"kernel.numa_balancing": "0"})
    (root / "proc/sys/kernel/numa_balancing").write_text("2\n")
    (entry,) = host.restore()
    assert entry["restored"] is False and "somebody else set it to 2" in entry["reason"]
    assert _balancing(root) == "2"


def test_after_a_reboot_nothing_is_put_back_and_said(host, root, capsys):
    host.apply({"kernel.numa_balancing": "0"})
    (root / "proc/sys/kernel/random/boot_id").write_text("another\n")
    (entry,) = host.restore()
    assert entry["restored"] is False and "rebooted" in entry["reason"]
    assert _balancing(root) == "0"
    assert changes.pending(host.record) is None


def test_the_next_run_records_the_true_value(host, root, tmp_path):
    """An agent and its guard both died: the next run must not take the changed value for true."""
    host.apply({"kernel.numa_balancing": "0"})
    following = changes.HostChanges(host.record, tmp_path / "copy2.json", root)
    following.apply({"kernel.numa_balancing": "0"})
    assert changes.pending(host.record)["changes"][0]["before"] == "1"
    following.restore()
    assert _balancing(root) == "1"


def test_a_damaged_record_is_said(host):
    host.record.parent.mkdir()
    host.record.write_text("{")
    with pytest.raises(Fault, match="cannot be read"):
        host.restore()


def test_restore_by_hand_says_what_it_did(root, tmp_path, monkeypatch):
    lock = f"numalab-test-{os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setattr(only_one.measurement.__wrapped__, "__defaults__", (lock,))
    record = tmp_path / "changes.json"
    monkeypatch.setattr(changes, "_record_files", lambda: [tmp_path / "none.json", record])
    monkeypatch.setattr(changes.put_back, "__defaults__", (root,))
    assert changes.restore() == []
    changes.HostChanges(record, None, root).apply({"kernel.numa_balancing": "0"})
    with only_one.measurement(lock), pytest.raises(Fault, match="another numalab measurement"):
        changes.restore()
    assert _balancing(root) == "0"
    assert changes.restore() == ["kernel.numa_balancing is 1 again"]
    assert _balancing(root) == "1"


_AGENT = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from numalab.agent import changes, guard
root, record = Path(sys.argv[2]), Path(sys.argv[3])
watchman = guard.start(record, root)
host = changes.HostChanges(record, None, root)
host.apply({"kernel.numa_balancing": "0"})
print(watchman.pid, flush=True)
if sys.argv[4] == "finish":
    host.restore()
    (root / "proc/sys/kernel/numa_balancing").write_text("7")
    watchman.dismiss()
else:
    time.sleep(60)
"""


def _agent(tmp_path, root, what):
    script = [sys.executable, "-c", _AGENT, LIB, str(root), str(tmp_path / "record.json"), what]
    agent = subprocess.Popen(script, stdout=subprocess.PIPE, cwd=tmp_path)
    return agent, int(agent.stdout.readline())


def _end(agent):
    agent.kill()
    # Whoever reads the agent's output sees its end at once: the guard does not hold it open.
    assert agent.stdout.read() == b""
    agent.wait()
    agent.stdout.close()


def _gone(pid):
    deadline = time.monotonic() + 15
    while _state_of(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    return _state_of(pid) is None


def _state_of(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None
    return None if state == "Z" else state


def test_the_guard_restores_after_a_killed_agent(tmp_path, root):
    agent, watchman = _agent(tmp_path, root, "wait")
    assert _balancing(root) == "0"
    assert Path(f"/proc/{watchman}/comm").read_text() == "numalab-guard\n"
    for nuisance in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(watchman, nuisance)
    time.sleep(0.05)
    assert _state_of(watchman) is not None
    _end(agent)
    assert _gone(watchman)
    assert _balancing(root) == "1"
    assert not (tmp_path / "record.json").exists()


def test_the_guard_does_nothing_when_the_agent_is_done(tmp_path, root):
    agent, watchman = _agent(tmp_path, root, "finish")
    assert agent.wait() == 0
    agent.stdout.close()
    assert _gone(watchman)
    assert _balancing(root) == "7"


def test_restore_mends_what_is_left_when_the_guard_was_killed_too(tmp_path, root):
    agent, watchman = _agent(tmp_path, root, "wait")
    os.kill(watchman, signal.SIGKILL)
    _end(agent)
    assert _gone(watchman)
    assert _balancing(root) == "0"
    assert changes.put_back(tmp_path / "record.json", root)["changes"][0]["restored"]
    assert _balancing(root) == "1"
