"""The QEMU command line of a guest: its machine from the definition, its wiring to 127.0.0.1."""

from __future__ import annotations

import platform
import shlex
from pathlib import Path
from typing import NamedTuple

from .hosts import Host

PROGRAMS = {"x86_64": "qemu-system-x86_64", "aarch64": "qemu-system-aarch64"}


class Wiring(NamedTuple):
    """What one boot of a guest is wired to."""

    accelerator: str  # kvm or tcg
    kernel: Path
    initrd: Path
    disk: Path
    port: int  # on 127.0.0.1, forwarded to the guest's ssh
    key: str  # the public key that may log in, without its type
    console: Path
    timing: Path | None = None  # the library of the memory model
    counters: Path | None = None  # the file that the model counts in
    monitor: bool = False  # on QEMU's standard input and output
    state: Path | None = None  # of a snapshot, to go on from


def native(host: Host) -> bool:
    """Tell whether a host's architecture is this machine's: only then KVM can run it."""
    return platform.machine() == host.arch


def argv(host: Host, wiring: Wiring) -> list[str]:
    """Return the command that boots a guest (qemu(1))."""
    return [
        PROGRAMS[host.arch],
        *("-name", f"numalab-{host.name},debug-threads=on"),  # the model knows vCPUs by their names
        *_machine(host, wiring),
        *_nodes(host),
        *("-kernel", str(wiring.kernel), "-initrd", str(wiring.initrd)),
        *("-append", _kernel_words(host, wiring)),
        # Flushes of the guest reach the file, so that what it synced outlives a killed QEMU.
        *("-drive", f"file={_comma(wiring.disk)},if=virtio,format=qcow2,cache=writeback"),
        *("-netdev", f"user,id=net0,hostfwd=tcp:127.0.0.1:{wiring.port}-:22"),
        *("-device", "virtio-net-pci,netdev=net0,romfile="),
        *("-serial", f"file:{_comma(wiring.console)}"),
        # A guest that reboots or panics ends, and whoever started it sees that.
        *("-nodefaults", "-display", "none", "-no-reboot"),
        *_timing(host, wiring),
        *(("-qmp", "stdio") if wiring.monitor else ()),
        # By a shell's cat: "file:" is newer than QEMU 7.2, "fd:" takes no files since 9.1.
        *(("-incoming", f"exec:cat {shlex.quote(str(wiring.state))}") if wiring.state else ()),
    ]


def _timing(host: Host, wiring: Wiring) -> list[str]:
    """The memory model as a plugin, and its counters as a device that the guest can read."""
    if not (host.timing and wiring.timing and wiring.counters):
        return []
    memory = host.total_memory
    # hw/i386/pc_piix.c: memory of 3.5 GiB and more is split at 3 GiB
    low = 3 << 30 if memory >= 0xE0000000 else memory
    words = host.timing.words(
        vcpus=host.cpus, nodes=host.nodes, sockets=host.sockets,
        node_mib=host.memory >> 20, low_mib=low >> 20,
    )  # fmt: skip
    shared = f"memory-backend-file,id=count,share=on,mem-path={_comma(wiring.counters)},size=1M"
    return [
        *(
            "-plugin",
            ",".join([_comma(wiring.timing), *words, f"counters={_comma(wiring.counters)}"]),
        ),
        # master: so that a snapshot takes it along
        *("-object", shared, "-device", "ivshmem-plain,memdev=count,master=on"),
        *("-rtc", "clock=vm"),
    ]


def _comma(path: Path) -> str:
    return str(path).replace(",", ",,")  # how QEMU's options quote one


def _machine(host: Host, wiring: Wiring) -> list[str]:
    accelerator = wiring.accelerator
    processor = "host" if accelerator == "kvm" else host.processor
    if host.arch == "x86_64":
        machine = "pc"
        if accelerator == "tcg" and "clearcpuid=cx16" not in host.kernel:
            processor += ",-cx16"  # a kernel that uses it meets double faults with QEMU 7.2
        if host.timing:
            processor += ",-erms,-fsrm"  # rep movsb would cost an instruction for each byte
        if host.model:
            processor += f",model-id={host.model}"
    else:
        machine = f"virt,gic-version={'host' if accelerator == 'kvm' else '3'}"
    # A kernel that patches its code as it boots may run what was there before, where vCPUs run at
    # the same time (QEMU 7.2). What becomes a snapshot must not: it boots once, on one thread.
    thread = "single" if wiring.monitor else "multi"
    accelerated = "kvm" if accelerator == "kvm" else f"tcg,thread={thread},tb-size=512"
    return ["-M", machine, "-accel", accelerated, "-cpu", processor, "-smp", _cpus(host)]


def _cpus(host: Host) -> str:
    """-smp: where a socket has several nodes, each is a die (x86) or cluster (aarch64) of it."""
    inner = max(1, host.nodes // host.sockets)
    cores = host.nodes * host.cores // host.sockets // inner
    level = {"x86_64": "dies", "aarch64": "clusters"}[host.arch]
    parts = [f"{host.cpus},sockets={host.sockets}"]
    if inner > 1:
        parts.append(f"{level}={inner}")
    return ",".join([*parts, f"cores={cores}", f"threads={host.threads}"])


def _nodes(host: Host) -> list[str]:
    words = ["-m", f"{host.total_memory >> 20}M"]
    each = host.cores * host.threads
    for node in range(host.all_nodes):
        cpus = f"cpus={node * each}-{node * each + each - 1}," if node < host.nodes else ""
        words += ["-object", f"memory-backend-ram,id=m{node},size={host.memory >> 20}M"]
        words += ["-numa", f"node,nodeid={node},{cpus}memdev=m{node}"]
    for i, row in enumerate(host.distances):
        for j, distance in enumerate(row):
            if i != j:
                words += ["-numa", f"dist,src={i},dst={j},val={distance}"]
    return words


def _kernel_words(host: Host, wiring: Wiring) -> str:
    # The emulated clock is the same on all CPUs; without the word an AMD guest would read HPET.
    machine = {"x86_64": "console=ttyS0 tsc=reliable", "aarch64": "console=ttyAMA0"}[host.arch]
    kernel = (
        f"root=/dev/vda rw rootflags=noatime,noinit_itable {machine} init=/guest-init "
        f"quiet mitigations=off nokaslr nowatchdog oops=panic panic=-1 {host.kernel}"
    ).strip()
    name = "timed" if host.timing else host.name  # one snapshot serves hosts of several names
    return f"{kernel} -- name={name} key={wiring.key} accelerator={wiring.accelerator}"
