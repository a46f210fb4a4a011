"""Running guests: boot, reach, list and end them.

Each guest has a folder in the cache: ``disk`` (what it changed of the image; it outlives a crash
of the guest or of QEMU and ends with ``lab down``), ``image`` and ``snapshot`` (the name of what
the disk is based on), ``state.json`` (the running QEMU), ``console``, that of the boot before it,
and ``qemu.log``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from numalab.agent import kernel
from numalab.agent.errors import Fault

from . import hosts, image, inventory, qemu, snapshots, ssh, timing_build, tools

_ATTEMPTS = 3  # emulated guests crash now and then, soon after their start
_KVM_SIGN_S = 20.0  # a guest that KVM really runs reaches its init in 2 s
_SIGN, _READY = "numalab-lab: started", "numalab-lab: ready"
# A guest that gets nowhere is given up by what it did, not by how long it took: a loaded machine
# is slow. In CPU seconds of its QEMU: a boot takes 20 to 60, most of them between two lines.
_SILENT_CPU_S = 900.0  # without a line on its console, or an answer of its ssh server
_HANG_S = 40.0  # seconds in which a guest neither ran nor waited for a CPU: one that boots is busy
_CLOCK_OFF_S = 2.0
_STARTING = "it is starting, or hangs"
_TICKS = struct.Struct("<72xQ")  # struct page of lab/timing: ticks_a_second
_FREQUENCY_OFF = 5e-4  # as a share; what the guest times is wrong by as much


# While these are counted no perf that starts or ends makes the kernel patch its own code, which
# guests under QEMU's software emulation (7.2) do not always survive ("Oops: int3").
_HOLD_EVENTS = (
    "E=task-clock,context-switches,cpu-migrations,page-faults,minor-faults,major-faults; "
    "setsid perf stat -e $E sleep infinity </dev/null >/dev/null 2>&1 &"
)


class Guest(NamedTuple):
    """A guest as it is found: ``pid`` is None where no QEMU runs."""

    name: str
    pid: int | None = None
    port: int | None = None
    accelerator: str | None = None
    since: float | None = None  # seconds of the epoch
    why: str | None = None  # why none runs, though a disk is there; or what is wrong with this one

    @property
    def running(self) -> bool:
        """Whether its QEMU is there."""
        return self.pid is not None


def folder(name: str) -> Path:
    """Return a guest's folder in the cache."""
    return image.cache() / "guests" / name


def known() -> list[Guest]:
    """Return every guest that has a folder, running or not, by name."""
    parent = image.cache() / "guests"
    if not parent.is_dir():
        return []
    return [look(path.name) for path in sorted(parent.iterdir()) if (path / "disk").exists()]


def look(name: str) -> Guest:
    """Return a guest as it is now; what its state file says counts only if its QEMU lives."""
    home = folder(name)
    if not (home / "disk").exists():
        return Guest(name)
    try:
        state = json.loads((home / "state.json").read_text())
    except FileNotFoundError:
        return Guest(name, why="it was ended")
    except (OSError, ValueError) as error:
        return Guest(name, why=f"its state cannot be read: {error}")
    if not _is_ours(state):
        return Guest(name, why=f"its QEMU is gone: {_last_words(home)}")
    found = {key: state[key] for key in ("pid", "port", "accelerator", "since")}
    return Guest(name, **found, why=None if _READY in _console(home) else _STARTING)


def up(name: str, say: image.Say) -> Guest:
    """Boot a guest and return it when ssh works; one that runs already is returned as it is.

    A guest whose QEMU died boots again from the disk it left. Raises Fault when it cannot be
    booted; then, and when interrupted, no process stays behind.
    """
    host = hosts.load(name)
    tools.need_for_guest(host.arch)
    home = folder(name)
    home.mkdir(parents=True, exist_ok=True)
    with _locked(name, say):
        home.mkdir(exist_ok=True)
        guest = look(name)
        if guest.running and not guest.why:
            why = _log_in(guest)
            if why:  # it is not ended: it may be measuring
                raise Fault(
                    f"{name} runs (process {guest.pid}), but {why}",
                    f"if it hangs: kill {guest.pid} and numalab lab up {name} keep its disk",
                )
            inventory.write(known())
            return guest
        if guest.running:
            say(f"{name}: {guest.why}; starting it again")
            _end(name)
        fresh = not (home / "disk").exists()
        try:
            _boot(host, say)
        except BaseException:
            _end(name)
            if fresh:  # the console stays, to see why
                for file in ("disk", ".disk", "image", "snapshot"):
                    (home / file).unlink(missing_ok=True)
            inventory.write(known())
            raise
        inventory.write(known())
        return look(name)


def stop(name: str) -> None:
    """End a guest and keep its disk: ``up`` boots it again as it was."""
    with _locked(name, lambda words: None):
        _end(name)
        inventory.write(known())


def down(name: str, say: image.Say) -> bool:
    """End a guest and remove its disk; return whether there was one."""
    home = folder(name)
    if not home.is_dir():
        return False
    with _locked(name, say):
        there = (home / "disk").exists()
        _end(name)
        shutil.rmtree(home)
        inventory.write(known())
    return there


def _boot(host: hosts.Host, say: image.Say) -> None:
    home = folder(host.name)
    fresh = not (home / "disk").exists()
    made = image.ensure(host.image or host.arch, say) if fresh else _old_image(host, say)
    _need_memory(host)
    key = ssh.key_file().with_name("key.pub").read_text().split()[1]
    accelerators = ["tcg"] * _ATTEMPTS
    model = timing_build.library(say) if host.timing else None
    if not model and qemu.native(host) and _kvm_may_work():
        accelerators.insert(0, "kvm")
    if fresh:
        (home / "image").write_text(made.name)
        if not model:
            _make_disk(home, made)
    why = ""
    say(f"booting {host.name}")
    for accelerator in accelerators:
        wiring = qemu.Wiring(
            accelerator, made / "vmlinuz", made / "initrd", home / "disk",
            _free_port(home), key, home / "console", model, home / "counters",
        )  # fmt: skip
        if model and fresh:
            why = _load(host, wiring, say)
        else:
            why = _try(host, wiring, say)
        if accelerator == "kvm":
            _remember_kvm(not why)
        if not why:
            return
        _end(host.name)
        said = f"KVM does not work here ({why}); emulating in software"
        say(f"{host.name}: {said if accelerator == 'kvm' else why}")
    raise Fault(f"{host.name} could not be booted: {why}", f"its console: {home / 'console'}")


def _try(host: hosts.Host, wiring: qemu.Wiring, say: image.Say) -> str:
    """Boot a guest, or load it; return why it is not up, else ""."""
    home = folder(host.name)
    started = time.monotonic()
    child = _start(host, wiring, home)
    loaded = wiring.state is not None
    why = "" if loaded else _wait(child, home, wiring.accelerator)
    guest = look(host.name)
    why = why or _log_in(guest, child) or _prepare(guest, host, loaded)
    if wiring.monitor and not why:
        snapshots.save(child, wiring.disk, host.name, snapshots.digest(host, wiring))
    elif not why:
        kind = "under KVM" if wiring.accelerator == "kvm" else "emulated in software"
        kind += ", from a snapshot" if loaded else ""
        say(f"{host.name} is up after {time.monotonic() - started:.0f} s, {kind}")
    return why


def _load(host: hosts.Host, wiring: qemu.Wiring, say: image.Say) -> str:
    """Load a guest from its snapshot, made first where there is none; return why it is not up."""
    home = folder(host.name)
    mark = snapshots.digest(host, wiring)
    snapshots.folder().mkdir(parents=True, exist_ok=True)
    with image.locked(
        snapshots.folder() / f"{mark}.lock", lambda: say("waiting: another numalab boots its like")
    ):
        made = snapshots.find(mark)
        if made is None:
            say(f"{host.name}: for a snapshot, once; later it is loaded in seconds")
            _make_disk(home, wiring.kernel.parent)
            why = _try(host, wiring._replace(monitor=True), say)
            if why:
                return why
            _end(host.name)
            made = snapshots.find(mark)
            assert made
        (home / "snapshot").write_text(made.name)
    _make_disk(home, made)
    why = _try(host, wiring._replace(state=made / "state"), say)
    if why:
        (home / "snapshot").unlink()
        snapshots.remove_unused(made.name)
    return why


def _old_image(host: hosts.Host, say: image.Say) -> Path:
    """Return the folder of the image under a guest's disk."""
    made = image.cache() / "images" / (folder(host.name) / "image").read_text()
    if not made.is_dir():
        raise Fault(
            f"{host.name} has a disk over an image that is gone ({made.name})",
            f"numalab lab down {host.name} removes the disk",
        )
    if made.name != image.identity(host.image or host.arch):
        say(f"{host.name} boots from its old disk; the image's recipe has changed since")
    return made


def _make_disk(home: Path, base: Path) -> None:
    """Make a guest's disk over that of an image or a snapshot."""
    part = home / ".disk"
    words = ["-q", "-f", "qcow2", "-F", "qcow2", "-b", str(base / "disk"), str(part)]
    done = subprocess.run(["qemu-img", "create", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise Fault(f"{home.name}: its disk was not made: {done.stderr.strip()}")
    part.rename(home / "disk")


def _need_memory(host: hosts.Host) -> None:
    available = kernel.meminfo(kernel.read_text("/proc/meminfo")).get("MemAvailable", 0)
    if available < host.total_memory:
        raise Fault(
            f"{host.name} needs {host.total_memory / 2**30:.1f} GiB of memory, "
            f"{available / 2**30:.1f} GiB are available",
            "end something, another guest for instance, or define a smaller host",
        )


def _start(host: hosts.Host, wiring: qemu.Wiring, home: Path) -> subprocess.Popen[bytes]:
    with suppress(FileNotFoundError):  # the one before says why a guest crashed
        wiring.console.replace(wiring.console.with_name("console.before"))
    wiring.console.write_bytes(b"")
    environment = dict(os.environ)
    if wiring.timing and wiring.counters:
        environment["LD_PRELOAD"] = str(wiring.timing)
        wiring.counters.write_bytes(bytes(1 << 20))
    with open(home / "qemu.log", "wb") as log:
        child = subprocess.Popen(
            qemu.argv(host, wiring),
            stdin=subprocess.PIPE if wiring.monitor else subprocess.DEVNULL,
            stdout=subprocess.PIPE if wiring.monitor else log,
            stderr=log,
            start_new_session=True,  # it stays when the command that started it ends
            # but for one that is to become a snapshot: nobody else talks with its monitor
            preexec_fn=kernel.die_with_parent() if wiring.monitor else None,
            env=environment,
        )
    found = kernel.stat_of(f"/proc/{child.pid}")
    state = {
        "pid": child.pid, "started": found.started if found else None,
        "boot_id": kernel.boot_id(), "port": wiring.port, "accelerator": wiring.accelerator,
        "since": time.time(),
    }  # fmt: skip
    _write(home / "state.json", json.dumps(state))
    return child


class _Patience:
    """How long to wait for a guest: as long as it gets on, however slow the machine is."""

    def __init__(self, pid: int, home: Path) -> None:
        self.pid = pid
        self.home = home
        self.looked = time.monotonic()
        self.used = _used(pid)
        self.lines = -1
        self.ran_at_line = 0.0

    def lost(self) -> str:
        """Return why waiting on is no use, else ""."""
        used = _used(self.pid)
        if used is None:
            return ""
        lines = _console(self.home).count("\n")
        if lines != self.lines:
            self.lines, self.ran_at_line = lines, used.ran
        if used.ran - self.ran_at_line > _SILENT_CPU_S:
            return f"it ran for {_SILENT_CPU_S:.0f} s of CPU time and said nothing"
        if time.monotonic() - self.looked > _HANG_S:
            before, self.looked, self.used = self.used, time.monotonic(), used
            if before is not None and sum(used) - sum(before) < _HANG_S / 20:
                return "it hangs: it neither runs nor waits for a CPU"
        return ""


def _wait(child: subprocess.Popen[bytes], home: Path, accelerator: str) -> str:
    """Wait until the guest's ssh server listens; return why it does not, else ""."""
    began = time.monotonic()
    patience = _Patience(child.pid, home)
    while _READY not in (said := _console(home)):
        if child.poll() is not None:
            return f"it ended while it booted: {_last_words(home)}"
        waited = time.monotonic() - began
        if accelerator == "kvm" and _SIGN not in said and waited > _KVM_SIGN_S:
            return f"no sign of life in {_KVM_SIGN_S:.0f} s"
        why = patience.lost()
        if why:
            return why
        time.sleep(0.2)
    return ""


class _Used(NamedTuple):
    ran: float  # seconds
    waited: float  # for a CPU


def _used(pid: int) -> _Used | None:
    """Return for how long a process ran and waited for a CPU; None where the kernel does not say.

    Source: /proc/<pid>/schedstat in Documentation/scheduler/sched-stats.rst.
    """
    ran = waited = 0
    try:
        for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            words = file.read_text().split()
            ran, waited = ran + int(words[0]), waited + int(words[1])
    except OSError:
        return None
    return _Used(ran / 1e9, waited / 1e9) if ran else None


def _log_in(guest: Guest, child: subprocess.Popen[bytes] | None = None) -> str:
    """Wait until ssh reaches a guest; return why it does not, else ""."""
    if guest.pid is None:
        return guest.why or "it ended"
    patience = _Patience(guest.pid, folder(guest.name))
    while (done := _over_ssh(guest, "true")).returncode != 0:
        if child and child.poll() is not None:
            return f"it ended while it booted: {_last_words(folder(guest.name))}"
        why = patience.lost()
        if why:
            return f"ssh does not answer: {done.stderr.strip()}; {why}"
        time.sleep(0.5)
    return ""


def _prepare(guest: Guest, host: hosts.Host, loaded: bool) -> str:
    """Set the clock where it is wrong, and hold events; return why that cannot be done, else ""."""
    asked = time.time()
    done = _over_ssh(guest, "date +%s.%N")
    if done.returncode == 0 and abs(float(done.stdout) - (asked + time.time()) / 2) > _CLOCK_OFF_S:
        done = _over_ssh(guest, f"date -s @{time.time():.1f}")
    if done.returncode != 0:
        return f"its clock cannot be set: {done.stderr.strip()}"
    if guest.accelerator == "tcg" and not loaded:
        _over_ssh(guest, _HOLD_EVENTS)
    return _prepare_timed(guest) if host.timing else ""


def _prepare_timed(guest: Guest) -> str:
    """Give a host with configured timing its name; return why its clock is wrong, else ""."""
    name = guest.name
    done = _over_ssh(
        guest,
        f"echo {name} >/proc/sys/kernel/hostname; echo 127.0.0.1 localhost {name} >/etc/hosts; "
        f"sed -i 's/^[^ ]*/{name}/' /etc/numalab-lab; echo {_READY} >/dev/console; "
        "dmesg | sed -n 's/.*] tsc: //p'",
    )
    if done.returncode != 0:
        return f"ssh does not answer: {done.stderr.strip()}"
    found = re.findall(r"([0-9.]+) MHz", done.stdout)
    if not found:
        return f"its kernel has not measured its clock: {'; '.join(done.stdout.splitlines())}"
    with open(folder(name) / "counters", "rb") as file:
        ticks: int = _TICKS.unpack_from(file.read(_TICKS.size))[0]
    its, ours = float(found[-1]), ticks / 1e6  # the last is the best that the kernel knows
    if ours and abs(its / ours - 1) > _FREQUENCY_OFF:
        return f"its kernel counts on {its} MHz of its clock, which has {ours:.3f}"
    return ""


def _over_ssh(guest: Guest, command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ssh.command(guest.port, command), capture_output=True, text=True, timeout=30
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess([], 255, "", "no answer in 30 s")


def _end(name: str) -> None:
    """End a guest's QEMU, if it is there, and forget it; the disk stays."""
    file = folder(name) / "state.json"
    try:
        state = json.loads(file.read_text())
    except (OSError, ValueError):
        return
    for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
        if not _is_ours(state):
            break
        os.kill(state["pid"], number)
        deadline = time.monotonic() + patience
        while _is_ours(state) and time.monotonic() < deadline:
            time.sleep(0.05)
    if _is_ours(state):
        raise Fault(f"the QEMU of {name} (process {state['pid']}) does not end", "see to it")
    file.unlink()


def _is_ours(state: dict[str, Any]) -> bool:
    """Tell whether the QEMU that a state names still lives: its number may be another's now."""
    if state["boot_id"] != kernel.boot_id():
        return False
    found = kernel.stat_of(f"/proc/{state['pid']}")
    return found is not None and found.started == state["started"] and not found.ended


def _console(home: Path) -> str:
    try:
        return (home / "console").read_text(errors="replace")
    except FileNotFoundError:
        return ""


def _last_words(home: Path) -> str:
    """What the guest's kernel, else QEMU, said last of its end."""
    found = re.search(r"Kernel panic.*", _console(home))  # every oops ends in one: oops=panic
    if found:
        return f"the guest crashed ({found.group(0).strip()})"
    with suppress(FileNotFoundError):
        lines = (home / "qemu.log").read_text(errors="replace").strip().splitlines()
        errors = [line for line in lines if "warning:" not in line]
        if errors:
            return errors[-1]
    return "it was killed, or shut down from within"


def _free_port(home: Path) -> int:
    """A port that nothing listens on, the one of the last boot if that is one."""
    try:
        last = json.loads((home / "port").read_text())
    except (OSError, ValueError):
        last = 0
    for port in (last, 0):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as QEMU does
            probe.bind(("127.0.0.1", port))
            chosen: int = probe.getsockname()[1]
            _write(home / "port", str(chosen))
            return chosen
    raise Fault("no port is free on 127.0.0.1")


def _kvm_may_work() -> bool:
    """Whether to try KVM: not where it is absent or failed since this machine was booted."""
    if not os.path.exists("/dev/kvm"):
        return False
    try:
        said: Any = json.loads(_kvm_file().read_text())
        return bool(said != {"boot_id": kernel.boot_id(), "works": False})
    except (OSError, ValueError):
        return True


def _remember_kvm(works: bool) -> None:
    _write(_kvm_file(), json.dumps({"boot_id": kernel.boot_id(), "works": works}))


def _kvm_file() -> Path:
    return image.cache() / "kvm.json"


@contextmanager
def _locked(name: str, say: image.Say) -> Iterator[None]:
    lock = folder(name).with_name(f"{name}.lock")
    with image.locked(lock, lambda: say(f"waiting: another numalab works on {name}")):
        yield


def _write(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}")
    part.write_text(text)
    part.replace(path)
