"""Host settings come back to what they were, whoever was killed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import waiting
from fake_tool import fake_root
from numalab.agent.contract import reason
from numalab.agent.errors import Fault
from numalab.agent.host import settings
from numalab.agent.trial import host_changes, lock

LIB = str(Path(host_changes.__file__).resolve().parents[3])


@pytest.fixture
def root(tmp_path):
    return fake_root(tmp_path / "root")


@pytest.fixture
def host(root, tmp_path):
    return host_changes.HostChanges(
        tmp_path / "state" / "changes.json", tmp_path / "copy.json", root
    )


def _apply(host, wanted):
    host.begin({name: [value] for name, value in wanted.items()})
    return host.enforce(wanted)


def _balancing(root):
    return (root / "proc/sys/kernel/numa_balancing").read_text().strip()


def test_a_change_is_recorded_made_and_put_back(host, root, tmp_path):
    _apply(host, {"kernel.numa_balancing": "0"})
    assert _balancing(root) == "0"
    left = host_changes.pending(host.record)
    assert left.pid == os.getpid() and left.boot_id.startswith("1111")
    assert left.changes[0].before == "1" and left.changes[0].values == ("0", "1")
    (entry,) = host.restore()
    assert entry.restored is True
    assert _balancing(root) == "1"
    assert host_changes.pending(host.record) is None
    assert json.loads((tmp_path / "copy.json").read_text())["changes"][0]["restored"] is True
    assert host.restore() == []


def test_the_hosts_own_values_are_held_and_a_change_of_them_is_seen(host, root):
    own = settings.own(str(root))
    assert own == {"kernel.numa_balancing": "1", "thp.enabled": "madvise"}
    host.keep(own, ())
    assert host.enforce({}) == own and host.changed_by_others() == []
    (root / "sys/kernel/mm/transparent_hugepage/enabled").write_text("[always] madvise never")
    for _ in range(2):  # it stays another state than the one that the cells declare
        (why,) = host.changed_by_others()
        assert str(why) == "somebody else set thp.enabled from madvise to always meanwhile"
    assert not host.record.exists(), "nothing was changed, so there is nothing to put back"
    with pytest.raises(Fault, match="thp.enabled was madvise when this was planned and is always"):
        host.keep(own, ())
    host.keep(own, ("thp.enabled",))  # a case changes it: it is not the host's own
    assert host.enforce({}) == {"kernel.numa_balancing": "1"}


def test_the_record_is_there_before_the_change(host, root, monkeypatch):
    seen = []
    write = host_changes._put

    def spy(path, text, *rest, **named):
        if path.name == "numa_balancing":
            seen.append(host_changes.pending(host.record).changes[0].before)
        return write(path, text, *rest, **named)

    monkeypatch.setattr(host_changes, "_put", spy)
    _apply(host, {"kernel.numa_balancing": "0"})
    assert seen == ["1"]


def test_transparent_huge_pages_by_the_word_in_brackets(host, root):
    path = root / "sys/kernel/mm/transparent_hugepage/enabled"
    (said,) = host.announce({"thp.enabled": ["never"]})
    assert str(said) == "thp.enabled: madvise → never for the time of this run"
    _apply(host, {"thp.enabled": "never"})
    assert path.read_text() == "never\n"
    host.restore()
    assert path.read_text() == "madvise\n"


def test_what_cannot_be_put_back_is_announced(host, root):
    (said,) = host.announce({"vm.drop_caches": ["3"]})
    assert "cannot be undone" in str(said)
    _apply(host, {"vm.drop_caches": "3"})
    assert (root / "proc/sys/vm/drop_caches").read_text() == "3\n"
    (entry,) = host.restore()
    assert entry.restored is False and entry.reason.code == "setting-cannot-be-put-back"
    assert (root / "proc/sys/vm/drop_caches").read_text() == "3\n"


@pytest.mark.parametrize("name", ["../etc/passwd", "kernel", "kernel/../x.y", "kernel.a b", ""])
def test_a_name_that_is_none_is_refused(host, name):
    with pytest.raises(Fault, match="is not the name of a kernel setting"):
        _apply(host, {name: "0"})


def test_what_cannot_be_read_or_written_is_refused_before_anything_is_changed(host, root):
    with pytest.raises(Fault, match="kernel.nonesuch cannot be read"):
        _apply(host, {"kernel.numa_balancing": "0", "kernel.nonesuch": "1"})
    assert _balancing(root) == "1" and not host.record.exists()
    with pytest.raises(Fault, match="this kernel has no kernel.nonesuch.*with a . at the end"):
        host.refuse(["kernel.numa_balancing", "kernel.nonesuch"])
    host.refuse(["kernel.numa_balancing", "vm.drop_caches"])


def test_what_may_not_be_written_is_named(host, root, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path.name != "numa_balancing")
    with pytest.raises(Fault, match=r"written: kernel.numa_balancing \(.*run as root"):
        host.refuse(["kernel.numa_balancing", "vm.drop_caches"])


def test_a_refused_value_leaves_the_record_to_put_the_others_back(host, root, monkeypatch):
    write = host_changes._put

    def refuse(path, text, *rest, **named):
        if path.name == "enabled" and text == "sometimes":
            raise OSError(22, "Invalid argument")
        return write(path, text, *rest, **named)

    monkeypatch.setattr(host_changes, "_put", refuse)
    with pytest.raises(Fault, match="thp.enabled cannot be set to sometimes.*a value that this"):
        _apply(host, {"kernel.numa_balancing": "0", "thp.enabled": "sometimes"})
    assert _balancing(root) == "0"
    assert all(entry.restored for entry in host.restore())
    assert _balancing(root) == "1" and not host.record.exists()


def test_a_kernel_that_says_yes_and_does_no_is_found_out(host, root, monkeypatch):
    write = host_changes._put

    def ignore(path, text, *rest, **named):
        return write(path, "1" if path.name == "numa_balancing" else text, *rest, **named)

    monkeypatch.setattr(host_changes, "_put", ignore)
    with pytest.raises(Fault, match="was set to 0 and reads 1"):
        _apply(host, {"kernel.numa_balancing": "0"})


def test_no_record_no_change(host, root):
    host.record.parent.write_text("a file where the folder should be")
    with pytest.raises((Fault, OSError)):
        _apply(host, {"kernel.numa_balancing": "0"})
    assert _balancing(root) == "1"


def test_what_somebody_else_set_since_is_left(host, root):
    _apply(host, {"kernel.numa_balancing": "0"})
    (root / "proc/sys/kernel/numa_balancing").write_text("2\n")
    (entry,) = host.restore()
    assert entry.restored is False and entry.reason == reason("setting-is-theirs", value="2")
    assert _balancing(root) == "2"


def test_after_a_reboot_nothing_is_put_back_and_said(host, root, capsys):
    _apply(host, {"kernel.numa_balancing": "0"})
    (root / "proc/sys/kernel/random/boot_id").write_text("another\n")
    (entry,) = host.restore()
    assert entry.restored is False and entry.reason.code == "host-rebooted"
    assert _balancing(root) == "0"
    assert host_changes.pending(host.record) is None


def test_the_next_run_records_the_true_value(host, root, tmp_path):
    """An agent and its guard both died: the next run must not take the changed value for true."""
    _apply(host, {"kernel.numa_balancing": "0"})
    following = host_changes.HostChanges(host.record, tmp_path / "copy2.json", root)
    _apply(following, {"kernel.numa_balancing": "0"})
    assert host_changes.pending(host.record).changes[0].before == "1"
    following.restore()
    assert _balancing(root) == "1"


def test_a_damaged_record_is_said(host):
    host.record.parent.mkdir()
    host.record.write_text("{")
    with pytest.raises(Fault, match="cannot be read"):
        host.restore()


def test_restore_by_hand_says_what_it_did(root, tmp_path, monkeypatch):
    name = f"numalab-test-{os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setattr(lock.measurement.__wrapped__, "__defaults__", (name,))
    record = tmp_path / "changes.json"
    monkeypatch.setattr(host_changes, "_record_files", lambda: [tmp_path / "none.json", record])
    monkeypatch.setattr(host_changes.put_back, "__defaults__", (root,))
    assert host_changes.restore() == []
    _apply(host_changes.HostChanges(record, None, root), {"kernel.numa_balancing": "0"})
    with lock.measurement(name), pytest.raises(Fault, match="another numalab measurement"):
        host_changes.restore()
    assert _balancing(root) == "0"
    assert [str(done) for done in host_changes.restore()] == ["kernel.numa_balancing is 1 again"]
    assert _balancing(root) == "1"


def test_each_trial_has_its_own_settings_and_the_others_as_they_were(host, root):
    thp = root / "sys/kernel/mm/transparent_hugepage/enabled"
    host.begin({"kernel.numa_balancing": ["0", "2"], "thp.enabled": ["never"]})
    left = host_changes.pending(host.record).changes
    assert {entry.name: (entry.before, entry.values) for entry in left} == {
        "kernel.numa_balancing": ("1", ("0", "2", "1")),
        "thp.enabled": ("madvise", ("never", "madvise")),
    }
    assert _balancing(root) == "1"  # recorded, not changed
    assert host.enforce({"kernel.numa_balancing": "0"}) == {
        "kernel.numa_balancing": "0", "thp.enabled": "madvise",
    }  # fmt: skip
    assert host.enforce({"thp.enabled": "never"}) == {
        "kernel.numa_balancing": "1", "thp.enabled": "never",
    }  # fmt: skip
    assert (_balancing(root), thp.read_text()) == ("1", "never\n")
    host.enforce({"kernel.numa_balancing": "2"})
    assert (_balancing(root), thp.read_text()) == ("2", "madvise\n")
    assert host.changed_by_others() == []
    assert all(entry.restored for entry in host.restore())
    assert (_balancing(root), thp.read_text()) == ("1", "madvise\n")


def test_what_can_only_be_written_is_written_for_each_trial_that_names_it(host, root):
    drop = root / "proc/sys/vm/drop_caches"
    host.begin({"vm.drop_caches": ["3"]})
    for wanted, expected in (({}, "0"), ({"vm.drop_caches": "3"}, "3"), ({}, "0")):
        drop.write_text("0\n")
        assert host.enforce(wanted) == wanted
        assert drop.read_text().strip() == expected


@pytest.mark.parametrize("theirs", ["2", "0"])
def test_what_somebody_else_sets_during_the_run_is_said_and_stays(host, root, theirs):
    host.begin({"kernel.numa_balancing": ["0", "4"]})
    host.enforce({"kernel.numa_balancing": "4"})
    (root / "proc/sys/kernel/numa_balancing").write_text(theirs + "\n")
    (said,) = host.changed_by_others()
    assert str(said) == f"somebody else set kernel.numa_balancing from 4 to {theirs} meanwhile"
    assert host.changed_by_others() == []
    assert host.enforce({"kernel.numa_balancing": "4"}) == {"kernel.numa_balancing": "4"}
    assert host_changes.pending(host.record).changes[0].theirs == theirs
    (entry,) = host.restore()
    assert entry.restored is False and f"set it to {theirs} since" in str(entry.reason)
    assert _balancing(root) == theirs


def test_a_resumed_run_goes_on_with_the_values_that_it_began_with(host, root):
    (root / "proc/sys/kernel/numa_balancing").write_text("2\n")
    host.begin({"kernel.numa_balancing": ["0"]}, {"kernel.numa_balancing": "1"})
    assert host.enforce({}) == {"kernel.numa_balancing": "1"}
    assert host.restore()[0].restored is True
    assert _balancing(root) == "2"  # as this session found it


def test_the_parts_of_the_lru_that_a_processor_lacks_are_no_difference():
    assert settings.same("lru_gen.enabled", "0x0007", "0x0001")
    assert settings.same("lru_gen.enabled", "0x0000", "0x0000")
    assert not settings.same("lru_gen.enabled", "0x0007", "0x0000")
    assert not settings.same("lru_gen.enabled", "0x0000", "0x0007")
    assert not settings.same("lru_gen.enabled", "0x0001", "0x0007")
    assert settings.same("vm.swappiness", "010", "010") and not settings.same("a.b", "never", "0")


def test_names_lead_to_files(tmp_path):
    for name, path in {
        "vm.zone_reclaim_mode": "proc/sys/vm/zone_reclaim_mode",
        "thp.khugepaged.defrag": "sys/kernel/mm/transparent_hugepage/khugepaged/defrag",
        "lru_gen.enabled": "sys/kernel/mm/lru_gen/enabled",
    }.items():
        assert settings.path_of(name, tmp_path) == tmp_path / path
        why = settings.absent(name, tmp_path)
        assert str(why) == f"this kernel has no {name} (there is no {tmp_path / path})"


def test_a_record_cannot_lead_astray(host, root, tmp_path):
    """Whoever can write the record must not have root write where no setting is."""
    _apply(host, {"kernel.numa_balancing": "0"})
    record = json.loads(host.record.read_text())
    victim = tmp_path / "victim"
    victim.write_text("0\n")
    host.record.write_text(json.dumps({**record, "path": str(victim)}))
    with pytest.raises(Fault, match="has an unknown key 'path'"):
        host_changes.put_back(host.record, root)
    record["changes"][0]["name"] = "../../victim"
    host.record.write_text(json.dumps(record))
    with pytest.raises(Fault, match="is not the name of a kernel setting"):
        host_changes.put_back(host.record, root)
    assert victim.read_text() == "0\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_record_is_not_followed(host, root):
    _apply(host, {"kernel.numa_balancing": "0"})
    os.chown(host.record, 12345, -1)
    with pytest.raises(Fault, match="belongs to user 12345"):
        host_changes.put_back(host.record, root)
    assert _balancing(root) == "0"
    link = host.record.with_name("link.json")
    link.symlink_to(host.record)
    with pytest.raises(Fault, match="cannot be read"):
        host_changes.put_back(link, root)


def _damaged(path, how):
    path.unlink(missing_ok=True)
    if how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    else:
        path.write_bytes(how)


@pytest.mark.parametrize(
    "how", ["pipe", "folder", b"", b"{", b"null", b"[" * 100_000, b"\xff\xfe", b'{"schema": 3}']
)
def test_a_damaged_record_is_named_and_keeps_no_other_from_being_put_back(
    host, root, tmp_path, monkeypatch, how
):
    _apply(host, {"kernel.numa_balancing": "0"})
    damaged = tmp_path / "damaged.json"
    _damaged(damaged, how)
    with pytest.raises(Fault, match=r"damaged.json (cannot be read|is no regular file)"):
        host_changes.pending(damaged)
    monkeypatch.setattr(host_changes, "_record_files", lambda: [damaged, host.record])
    put_back = host_changes.put_back
    monkeypatch.setattr(host_changes, "put_back", lambda record: put_back(record, root))
    monkeypatch.setattr(lock, "measurement", contextlib.nullcontext)
    with pytest.raises(Fault, match=r"damaged.json"):
        host_changes.restore()
    assert _balancing(root) == "1" and not host.record.exists()


def test_one_strange_name_in_a_record_keeps_no_other_setting_from_being_put_back(host, root):
    _apply(host, {"kernel.numa_balancing": "0"})
    record = json.loads(host.record.read_text())
    record["changes"].insert(0, {**record["changes"][0], "name": "../../victim"})
    host.record.write_text(json.dumps(record))
    with pytest.raises(Fault, match="is not the name of a kernel setting"):
        host_changes.put_back(host.record, root)
    assert _balancing(root) == "1" and host.record.exists()


_AGENT = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from numalab.agent.trial import guard, host_changes
root, record = Path(sys.argv[2]), Path(sys.argv[3])
watchman = guard.start(record, root)
host = host_changes.HostChanges(record, None, root)
host.begin({"kernel.numa_balancing": ["0"]})
host.enforce({"kernel.numa_balancing": "0"})
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
    return waiting.wait_for(lambda: _state_of(pid) is None, tells=waiting.processes)


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
    assert host_changes.put_back(tmp_path / "record.json", root)[0].restored
    assert _balancing(root) == "1"


def _pretend_to_mount(monkeypatch, refuse=None):
    def mount(kind, folder):
        if refuse:
            raise OSError(refuse, os.strerror(refuse), folder)
        (Path(folder) / "info").mkdir()

    monkeypatch.setattr(host_changes.kernel, "mount", mount)
    monkeypatch.setattr(
        host_changes.kernel, "unmount", lambda folder: (Path(folder) / "info").rmdir()
    )


def test_resctrl_is_mounted_for_a_run_and_unmounted_after_it(host, root, monkeypatch):
    _pretend_to_mount(monkeypatch)
    folder = root / "sys/fs/resctrl"
    folder.mkdir(parents=True)
    host.begin({settings.MOUNTED: ["1"]}, {settings.MOUNTED: "1"})
    assert host.enforce({}) == {settings.MOUNTED: "1"} and (folder / "info").is_dir()
    (entry,) = host.restore()
    assert (entry.name, entry.before, entry.restored) == (settings.MOUNTED, "0", True)
    assert not (folder / "info").exists()


def test_resctrl_that_was_mounted_stays(host, root, monkeypatch):
    _pretend_to_mount(monkeypatch)
    info = root / "sys/fs/resctrl/info"
    info.mkdir(parents=True)
    host.begin({settings.MOUNTED: ["1"]}, {settings.MOUNTED: "1"})
    host.enforce({})
    host.restore()
    assert info.is_dir()


def test_a_kernel_that_does_not_mount_resctrl_stops_no_trial(host, root, monkeypatch):
    _pretend_to_mount(monkeypatch, refuse=errno.EBUSY)
    (root / "sys/fs/resctrl").mkdir(parents=True)
    host.begin({settings.MOUNTED: ["1"]}, {settings.MOUNTED: "1"})
    assert host.enforce({}) == {settings.MOUNTED: "0"}
    host.restore()
