"""Guests without a guest: QEMU, qemu-img and ssh are small programs that pretend."""

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import waiting
from numalab.agent.errors import Fault
from numalab.cli import app
from numalab.lab import guests, hosts, image, inventory, ssh
from small_host import DEFINITION

REPOSITORY = Path(__file__).resolve().parent.parent
# Boots by what the file "plan" says, line by line and boot by boot: ready, panic, silent, broken.
QEMU = """
    import json, os, struct, sys, time
    folder = os.path.dirname(os.path.realpath(__file__))
    said = open(next(w[5:] for w in sys.argv if w.startswith("file:")), "a", buffering=1)
    open(folder + "/boots", "a").write(" ".join(sys.argv) + "\\n")
    boots = len(open(folder + "/boots").read().splitlines())
    plan = open(folder + "/plan").read().split()
    does = plan[min(boots, len(plan)) - 1]
    if "-plugin" in sys.argv:
        counters = sys.argv[sys.argv.index("-plugin") + 1].split("counters=")[1]
        ticks = open(folder + "/ticks").read().split()
        with open(counters, "r+b") as page:
            page.seek(72)
            page.write(struct.pack("<Q", int(ticks[min(boots, len(ticks)) - 1])))
    open(folder + "/reached", "a").write(f"{os.getpid()} {' '.join(sys.argv)}\\n")
    if does == "broken":
        sys.exit("qemu-system-x86_64: cannot set up guest memory")
    if does != "silent":
        said.write("numalab-lab: started\\n")
    if does == "panic":
        said.write("Kernel panic - not syncing: Attempted to kill init\\n")
        sys.exit(0)
    if does == "ready":
        said.write("numalab-lab: ready\\n")
    for line in sys.stdin if "-qmp" in sys.argv else ():
        order = json.loads(line)
        if order["execute"] == "migrate":
            open(order["arguments"]["uri"].split(">")[1], "w").write("state")
        print(json.dumps({"return": {"status": "completed"}}), flush=True)
        if order["execute"] == "quit":
            sys.exit(0)
    time.sleep(600)
"""
SSH = """
    import os, sys, time
    folder = os.path.dirname(os.path.realpath(__file__))
    port = sys.argv[sys.argv.index("-p") + 1]
    for line in open(folder + "/reached") if os.path.exists(folder + "/reached") else ():
        pid, _, argv = line.partition(" ")
        lives = os.path.exists(f"/proc/{pid}") and open(f"/proc/{pid}/cmdline").read()
        if lives and f":{port}-:22" in argv:
            break
    else:
        sys.exit(255)
    open(folder + "/asked", "a").write(sys.argv[-1] + "\\n")
    if "date +" in sys.argv[-1]:
        off = float(open(folder + "/off").read()) if os.path.exists(folder + "/off") else 0
        print(time.time() + off)
    if "dmesg" in sys.argv[-1]:
        print(open(folder + "/clock").read())
"""
IMG = "import sys; open(sys.argv[-1], 'w').write('over ' + sys.argv[sys.argv.index('-b') + 1])"
KEYGEN = """
    import sys
    for end in ("", ".pub"):
        open(sys.argv[-1] + end, "w").write("ssh-ed25519 AAAAkey numalab-lab")
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A checkout with one small host, its image, and a pretended QEMU; ends what was left."""
    for name in ("experiments", "notebooks", "lab/hosts", "bin"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("image.yml", "guest-init", "image-steps"):
        (tmp_path / "lab" / name).write_bytes((REPOSITORY / "lab" / name).read_bytes())
    for name in ("small", "other"):
        (tmp_path / "lab" / "hosts" / f"{name}.yml").write_text(DEFINITION)
    monkeypatch.setenv("NUMALAB_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # no real QEMU, no mmdebstrap
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "lib"))
    monkeypatch.setattr(guests, "_kvm_may_work", lambda: False)
    told = {"qemu-system-x86_64": QEMU, "qemu-img": IMG, "ssh": SSH, "ssh-keygen": KEYGEN}
    for name, text in told.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!{sys.executable} -S\n{textwrap.dedent(text)}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    built = image.cache() / "images" / image.identity("x86_64")
    built.mkdir(parents=True)
    plan(tmp_path, "ready")
    (tmp_path / "bin" / "clock").write_text(
        "Detected 2000.0 MHz\nRefined calibration: 2500.000 MHz"
    )
    yield tmp_path
    for pid in qemus(tmp_path):
        os.kill(pid, signal.SIGKILL)


def plan(lab, *boots):
    (lab / "bin" / "plan").write_text(" ".join(boots))


def boots(lab):
    return (lab / "bin" / "boots").read_text().splitlines()


def qemus(lab):
    """The pids of living QEMUs of this test, by the path of their program."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(lab / "bin" / "qemu-system-x86_64") in words:
                found.append(int(entry.name))
    return found


def command(*words):
    return CliRunner().invoke(app, ["lab", *words], catch_exceptions=False)


def kill(guest):
    os.kill(guest.pid, signal.SIGKILL)
    waiting.wait_for(lambda: not guests.look(guest.name).running)


def test_a_guest_comes_up_is_listed_and_leaves_nothing(lab):
    said = []
    guest = guests.up("small", said.append)
    assert guest.running and guest.accelerator == "tcg" and guest.why is None
    assert qemus(lab) == [guest.pid]
    assert "small is up after" in said[-1] and "emulated in software" in said[-1]
    listed = yaml.safe_load(inventory.path().read_text())["lab"]["hosts"]["small"]
    assert listed["ansible_host"] == "127.0.0.1" and listed["ansible_port"] == guest.port
    assert listed["ansible_ssh_private_key_file"] == str(ssh.key_file())
    assert f"127.0.0.1:{guest.port}  pid {guest.pid}  tcg  since" in command("status").output
    assert guests.down("small", said.append) is True
    assert qemus(lab) == [] and guests.known() == [] and not inventory.path().exists()
    assert not guests.folder("small").exists()
    assert guests.down("small", said.append) is False


def test_a_guest_that_is_up_is_left_alone(lab):
    first = guests.up("small", print)
    assert guests.up("small", print) == first
    assert len(boots(lab)) == 1


def test_a_guest_that_does_not_answer_is_not_ended(lab, monkeypatch):
    guest = guests.up("small", print)
    monkeypatch.setattr(guests._Patience, "lost", lambda self: "it waited long enough")
    (lab / "bin" / "ssh").write_text("#!/bin/sh\necho refused >&2\nexit 255\n")
    with pytest.raises(
        Fault, match=rf"small runs .*ssh does not answer: refused.* kill {guest.pid}"
    ):
        guests.up("small", print)
    assert guests.look("small") == guest


def test_a_guest_that_was_left_while_it_booted_is_started_again(lab):
    first = guests.up("small", print)
    (guests.folder("small") / "console").write_text("numalab-lab: started\n")
    assert "starting, or hangs" in command("status").output
    second = guests.up("small", print)
    assert second.pid != first.pid and qemus(lab) == [second.pid]


def test_the_inventory_holds_every_running_guest(lab):
    guests.up("small", print)
    guests.up("other", print)
    assert sorted(yaml.safe_load(inventory.path().read_text())["lab"]["hosts"]) == [
        "other",
        "small",
    ]
    guests.down("small", print)
    assert list(yaml.safe_load(inventory.path().read_text())["lab"]["hosts"]) == ["other"]


def test_a_killed_guest_boots_again_from_its_disk_at_its_port(lab):
    first = guests.up("small", print)
    disk = guests.folder("small") / "disk"
    disk.write_text("an unfinished run")
    kill(first)
    found = guests.look("small")
    assert not found.running and "its QEMU is gone" in found.why
    assert "not running: its QEMU is gone: it was killed" in command("status").output
    second = guests.up("small", print)
    assert second.pid != first.pid and second.port == first.port
    assert disk.read_text() == "an unfinished run"


def test_a_guest_whose_image_has_changed_boots_from_its_old_disk_and_says_so(lab):
    kill(guests.up("small", print))
    (lab / "lab" / "guest-init").write_text("#!/bin/sh\n")
    said = []
    guests.up("small", said.append)
    assert any("the image's recipe has changed since" in line for line in said)


def test_a_guest_whose_image_is_gone_says_what_to_do(lab):
    kill(guests.up("small", print))
    next((image.cache() / "images").iterdir()).rmdir()
    with pytest.raises(Fault, match=r"over an image that is gone .* numalab lab down small"):
        guests.up("small", print)
    guests.down("small", print)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"boot_id": "of another boot"}, "its QEMU is gone"),
        ({"started": 1}, "its QEMU is gone"),
        ("{", "its state cannot be read"),
        (None, "it was ended"),
    ],
)
def test_a_state_that_is_not_true_any_more_is_seen_through(lab, change, said):
    guest = guests.up("small", print)
    file = guests.folder("small") / "state.json"
    before = file.read_text()
    if change is None:
        file.unlink()
    else:
        file.write_text(
            change if isinstance(change, str) else json.dumps({**json.loads(before), **change})
        )
    found = guests.look("small")
    assert not found.running and said in found.why
    os.kill(guest.pid, signal.SIGKILL)


def test_a_process_that_took_over_the_number_is_not_ended(lab):
    guest = guests.up("small", print)
    kill(guest)
    bystander = subprocess.Popen(["/bin/sleep", "600"])
    file = guests.folder("small") / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "pid": bystander.pid}))
    guests.down("small", print)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_a_guest_that_crashes_is_started_again(lab):
    plan(lab, "panic", "panic", "ready")
    said = []
    assert guests.up("small", said.append).running
    assert sum("the guest crashed (Kernel panic - not syncing" in line for line in said) == 2
    assert "Kernel panic" in (guests.folder("small") / "console.before").read_text()


def test_a_guest_that_always_crashes_fails_with_its_last_words(lab):
    plan(lab, "panic")
    with pytest.raises(Fault, match=r"could not be booted: .*Kernel panic.* its console: /"):
        guests.up("small", print)
    assert len(boots(lab)) == 3 and qemus(lab) == [] and guests.known() == []
    assert not inventory.path().exists()


def test_a_guest_that_hangs_is_started_again(lab, monkeypatch):
    monkeypatch.setattr(guests, "_HANG_S", 1.0)
    plan(lab, "silent", "ready")
    said = []
    guest = guests.up("small", said.append)
    assert "small: it hangs: it neither runs nor waits for a CPU" in said
    assert qemus(lab) == [guest.pid]


def test_a_qemu_that_does_not_start_is_quoted(lab):
    plan(lab, "broken")
    with pytest.raises(Fault, match="cannot set up guest memory"):
        guests.up("small", print)


def test_kvm_is_tried_and_left_when_the_guest_stays_silent(lab, monkeypatch):
    monkeypatch.setattr(guests, "_kvm_may_work", lambda: not guests._kvm_file().exists())
    monkeypatch.setattr(guests.qemu, "native", lambda host: True)
    monkeypatch.setattr(guests, "_KVM_SIGN_S", 0.5)
    plan(lab, "silent", "ready")
    said = []
    guest = guests.up("small", said.append)
    assert guest.accelerator == "tcg"
    assert "KVM does not work here (no sign of life in 0 s)" in said[1]
    assert json.loads(guests._kvm_file().read_text())["works"] is False
    assert ["-accel kvm" in one for one in boots(lab)] == [True, False]
    assert qemus(lab) == [guest.pid]


def test_kvm_that_failed_is_tried_again_after_a_reboot_only(lab, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(lab / "cache"))
    monkeypatch.setattr(guests.os.path, "exists", lambda path: True)
    assert guests._kvm_may_work()
    guests._remember_kvm(False)
    assert not guests._kvm_may_work()
    monkeypatch.setattr(guests.kernel, "boot_id", lambda: "another")
    assert guests._kvm_may_work()


def test_a_wrong_clock_is_set(lab):
    (lab / "bin" / "off").write_text("-86400")
    guests.up("small", print)
    asked = (lab / "bin" / "asked").read_text()
    assert "date -s @" in asked


def test_too_little_memory_is_said_before_the_boot(lab, monkeypatch):
    host = hosts.load("small").model_copy(update={"memory": 2**50})
    monkeypatch.setattr(hosts, "load", lambda name: host)
    with pytest.raises(Fault, match=r"small needs .* GiB of memory, .* GiB are available"):
        guests.up("small", print)
    assert guests.known() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_boot_leaves_no_process(lab, number):
    plan(lab, "silent")
    text = "from numalab.lab import guests; guests._kvm_may_work = lambda: False; "
    text += "import sys; sys.argv[0] = 'numalab'; from numalab.cli import main; main()"
    child = subprocess.Popen(
        [sys.executable, "-c", text, "lab", "up", "small"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    waiting.wait_for(lambda: (guests.folder("small") / "state.json").exists(), child)
    child.send_signal(number)
    _, errors = waiting.follow(child)
    assert child.returncode == 130 and "Traceback" not in errors
    assert qemus(lab) == [] and guests.known() == []


def test_an_interrupted_second_boot_keeps_the_disk(lab, monkeypatch):
    kill(guests.up("small", print))

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(guests, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        guests.up("small", print)
    assert qemus(lab) == []
    assert [guest.name for guest in guests.known()] == ["small"]


def test_commands_on_guests_that_are_not_there_say_so(lab):
    assert "no guest is up" in command("status").output
    assert "small was not up" in command("down", "small").output
    with pytest.raises(Fault, match=r"small is not running. numalab lab up small"):
        command("ssh", "small")
    with pytest.raises(Fault, match="there is no host 'smal'.*Known: .*small"):
        command("down", "small", "smal")
    with pytest.raises(Fault, match="name the guests to end, or --all"):
        command("down")
    with pytest.raises(Fault, match="there is no host 'smal'"):
        command("ssh", "smal")


def test_several_guests_come_up_though_one_fails(lab):
    plan(lab, "panic", "panic", "panic", "ready")
    with pytest.raises(Fault, match="not every guest is up: small failed"):
        command("up", "small", "other")
    assert [guest.name for guest in guests.known()] == ["other"]
    assert "other is down" in command("down", "--all").output


def test_a_definition_of_another_machine_needs_another_qemu(lab):
    (lab / "lab" / "hosts" / "arm.yml").write_text(DEFINITION.replace("x86_64", "aarch64"))
    with pytest.raises(Fault, match="not installed.* qemu-system-arm"):
        guests.up("arm", print)


def test_the_hosts_are_listed(lab):
    output = command("list").output
    assert "small\n    pretended\n    x86_64, 2 × 0.125 GiB, 2 CPUs, 1 sockets" in output
    assert [one["name"] for one in json.loads(command("list", "--json").output)] == [
        "other",
        "small",
    ]


def test_a_guest_is_given_up_by_what_it_did_and_not_by_how_long_it_took(tmp_path, monkeypatch):
    used = guests._Used(0.0, 0.0)
    monkeypatch.setattr(guests, "_used", lambda pid: used)
    console = tmp_path / "console"
    console.write_text("one\n")
    patience = guests._Patience(1, tmp_path)
    assert patience.lost() == ""
    used = guests._Used(guests._SILENT_CPU_S, 1e6)  # it waited for a CPU for eleven days
    assert patience.lost() == ""
    console.write_text("one\ntwo\n")
    used = guests._Used(2 * guests._SILENT_CPU_S, 1e6)
    assert patience.lost() == "", "a line on its console is progress"
    used = guests._Used(3 * guests._SILENT_CPU_S + 1, 1e6)
    assert "said nothing" in patience.lost()


def test_a_guest_that_neither_runs_nor_waits_hangs(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr(guests, "_used", lambda pid: guests._Used(5.0, 5.0))
    monkeypatch.setattr(guests.time, "monotonic", lambda: now)
    patience = guests._Patience(1, tmp_path)
    assert patience.lost() == ""
    now = guests._HANG_S + 1
    assert "hangs" in patience.lost()


# --- snapshots of hosts with configured timing ----------------------------------------------------


@pytest.fixture
def timed(lab, monkeypatch):
    """Two hosts of one shape, each with a timing of its own: small and other."""
    model = lab / "model.so"
    model.touch()
    monkeypatch.setattr(guests.timing_build, "library", lambda say: model)
    for name, far in (("small", 136), ("other", 100)):
        timing = {"latency_ns": [[85, far], [far, 85]]}
        definition = {**yaml.safe_load(DEFINITION), "timing": timing}
        (lab / "lab" / "hosts" / f"{name}.yml").write_text(yaml.safe_dump(definition))
    (lab / "bin" / "ticks").write_text("2500100000")
    return lab


def loaded(lab):
    """For each start of QEMU: whether it loaded a snapshot."""
    return ["-incoming" in boot for boot in boots(lab)]


def test_a_timed_host_is_booted_once_and_loaded_afterwards(timed):
    first = command("up", "small")
    assert first.exit_code == 0 and loaded(timed) == [False, True], first.output
    assert "from a snapshot" in first.output
    (made,) = [path for path in (image.cache() / "snapshots").iterdir() if path.is_dir()]
    assert {path.name for path in made.iterdir()} == {"disk", "state"}
    assert (guests.folder("small") / "disk").read_text() == f"over {made}/disk"
    assert command("down", "small").exit_code == 0
    assert command("up", "small").exit_code == 0 and loaded(timed) == [False, True, True]
    assert command("up", "other").exit_code == 0, "one that differs in its timing only"
    assert loaded(timed) == [False, True, True, True]
    assert "latency_ns=85:100+100:85" in boots(timed)[-1]


@pytest.mark.parametrize("what", ["qemu", "model", "key", "shape"])
def test_a_snapshot_is_made_anew_when_what_it_depends_on_changes(timed, monkeypatch, what):
    command("up", "small")
    command("down", "small")
    (before,) = (image.cache() / "snapshots").glob("small-*")
    if what == "qemu":
        with open(timed / "bin" / "qemu-system-x86_64", "a") as file:
            file.write("# another\n")
    elif what == "model":
        (timed / "model2.so").touch()
        monkeypatch.setattr(guests.timing_build, "library", lambda say: timed / "model2.so")
    elif what == "key":
        (image.cache() / "key.pub").write_text("ssh-ed25519 other")
    else:
        path = timed / "lab" / "hosts" / "small.yml"
        path.write_text(path.read_text().replace("128 MiB", "256 MiB"))
    command("up", "small")
    assert loaded(timed) == [False, True, False, True]
    (after,) = (image.cache() / "snapshots").glob("small-*")
    assert after != before


def test_a_snapshot_whose_clock_is_not_this_machines_is_made_anew(timed):
    (timed / "bin" / "ticks").write_text("2500100000 2400000000 2500100000")
    said = command("up", "small").output
    assert "its kernel counts on 2500.0 MHz of its clock, which has 2400.000" in said
    assert loaded(timed) == [False, True, False, True]


def test_a_guest_whose_kernel_has_not_measured_its_clock_is_not_used(timed):
    (timed / "bin" / "clock").write_text("Fast TSC calibration failed\n")
    with pytest.raises(Fault, match="not measured its clock: Fast TSC calibration failed"):
        command("up", "small")
    assert loaded(timed) == [False, False, False] and qemus(timed) == []


def test_a_guest_whose_clock_stays_wrong_is_given_up(timed):
    (timed / "bin" / "ticks").write_text("2400000000")
    with pytest.raises(Fault, match="which has 2400.000"):
        command("up", "small")
    assert loaded(timed) == [False, False, False] and qemus(timed) == []
    assert not list((image.cache() / "snapshots").glob("small-*"))


def test_a_kill_while_a_snapshot_is_made_leaves_no_process(timed):
    plan(timed, "silent")
    child = os.fork()
    if child == 0:
        guests.up("small", lambda words: None)
        os._exit(0)
    waiting.wait_for(lambda: qemus(timed), child)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    waiting.wait_for(lambda: qemus(timed) == [])
