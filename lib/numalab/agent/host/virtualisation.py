"""Which hypervisor or emulator a machine runs on, with the evidence for it."""

from __future__ import annotations

import os
import re
from typing import Dict, Iterator, List, Optional, Tuple

from .. import kernel
from ..contract import Reason, Setting, State, reason, to_json

_CPUID_VENDORS = {
    "KVMKVMKVM": "kvm",
    "TCGTCGTCGTCG": "tcg",
    "VMwareVMware": "vmware",
    "Microsoft Hv": "hyper-v",
    "XenVMMXenVMM": "xen",
    "bhyve bhyve ": "bhyve",
}
_SIGNS = (  # kind, the code of the evidence, where it is, its pattern; those of emulators first
    ("tcg", "cpu-names-itself", "cpuinfo", r"(QEMU TCG CPU[^\n]*)"),
    ("tcg", "qemu-implementer", "cpuinfo", r"CPU implementer\t: 0x00"),
    ("tcg", "qemu-timer", "qemu board", r"^BogoMIPS\s*:\s*125\.00"),  # 2 x 62.5 MHz: QEMU's only
    ("tcg", "qemu-manufacturer", "sysinfo", r"^Manufacturer:\s*QEMU"),
    ("kvm", "kvm-clock", "clocks", r"kvm-clock"),
    ("kvm", "device-tree-kvm", "device tree", r"kvm"),
    ("kvm", "kvm-ptp", "ptp", r"^KVM virtual PTP$"),
    ("hyper-v", "hyperv-clock", "clocks", r"hyperv_clocksource"),
    ("xen", "xen-clock", "clocks", r"(?:^|\s)xen(?:\s|$)"),
    ("kvm", "control-program", "sysinfo", r"^VM00 Control Program:\s*(\S*KVM\S*)"),
    ("z/vm", "control-program", "sysinfo", r"^VM00 Control Program:\s*(\S+)"),
)
_FIRMWARE = (  # in what firmware tables say of the vendor and the product; the first that fits
    ("kvm", r"\bKVM\b|Amazon EC2|Google Compute Engine|OpenStack|Alibaba Cloud ECS|Nutanix AHV"),
    ("vmware", r"VMware"),
    ("virtualbox", r"VirtualBox|innotek"),
    ("hyper-v", r"Microsoft Corporation.*Virtual Machine"),
    ("xen", r"\bXen\b|HVM domU"),
    ("parallels", r"Parallels"),
    ("bhyve", r"BHYVE"),
    ("qemu", r"(?i:QEMU|\bBochs\b)"),
)
_NEUTRAL_BIOS = ("SeaBIOS", "EFI Development Kit II / OVMF")  # of QEMU, with and without KVM


def read(root: str, state: State) -> Dict[str, Setting]:
    """Return ``virt.hypervisor`` and ``virt.evidence`` (reasons as JSON) of a machine.

    "kvm", "xen", …: a guest; "tcg": emulated; "qemu": a QEMU machine that shows no sign of KVM;
    "unnamed": a guest of something that does not say what it is; "none": bare metal. ``root`` ""
    is this machine; ``state`` holds its firmware's names and its clocks.
    """
    texts = _texts(root, state)
    found = list(_signs(root, texts))
    flags = re.search(r"^flags\s*:(.*)", texts["cpuinfo"], re.M)
    flagged = flags is not None and "hypervisor" in flags.group(1).split()
    if not found and re.search(r"^model name\s*:.*QEMU", texts["cpuinfo"], re.M):
        found = [("qemu", reason("cpu-names-qemu"))]
    if not found and flagged:
        found = [("unnamed", reason("hypervisor-flag"))]
    if not found and flags:
        found = [("none", reason("no-hypervisor-flag"))]
    if not found:
        unknown = Setting(None, reason("hypervisor-unknown"))
        return {"virt.evidence": unknown, "virt.hypervisor": unknown}
    name = found[0][0]
    return {
        "virt.evidence": Setting([to_json(said) for kind, said in found if kind == name]),
        "virt.hypervisor": Setting(name),
    }


def _texts(root: str, state: State) -> Dict[str, str]:
    """Where signs are looked for."""

    def text(path: str) -> str:
        return kernel.read_text(f"{root}/{path}", 8192) or ""

    def named(name: str) -> str:
        return str(state[name].value or "")

    cpuinfo = text("proc/cpuinfo")
    bios = named("dmi.bios_vendor")
    firmware: List[str] = [
        *(named(f"dmi.{name}") for name in ("vendor", "product", "board")),
        "" if bios in _NEUTRAL_BIOS else bios,
        text("proc/device-tree/model"),
        text("proc/device-tree/compatible").replace("\0", " "),
        *re.findall(r"^(?:model|machine)\s*:(.*(?:qemu|QEMU).*)", cpuinfo, re.M),
    ]
    joined = " ".join(part for part in firmware if part)
    ptp = kernel.list_folder(f"{root}/sys/class/ptp")
    return {
        "cpuinfo": cpuinfo,
        "firmware": joined,
        "qemu board": cpuinfo if re.search(r"qemu|dummy-virt", joined, re.I) else "",
        "sysinfo": text("proc/sysinfo"),
        "clocks": named("clock.available"),
        "device tree": text("proc/device-tree/hypervisor/compatible"),
        "ptp": "\n".join(text(f"sys/class/ptp/{clock}/clock_name") for clock in ptp),
    }


def _signs(root: str, texts: Dict[str, str]) -> Iterator[Tuple[str, Reason]]:
    """(kind, evidence), the surest first."""
    leaf = _cpuid_vendor() if not root else None
    if leaf:
        yield _CPUID_VENDORS[leaf], reason("cpuid-names", name=leaf.strip())
    for kind, code, where, pattern in _SIGNS:
        match = re.search(pattern, texts[where], re.M)
        if match:
            yield kind, reason(code, **({"name": match.group(1)} if match.groups() else {}))
    own = kernel.read_text(f"{root}/sys/hypervisor/type")
    if own:
        yield own, reason("sys-hypervisor", name=own)
    for kind, pattern in _FIRMWARE:
        match = re.search(pattern, texts["firmware"])
        if match:
            code = "firmware-names-qemu" if kind == "qemu" else "firmware-names"
            yield kind, reason(code, name=match.group(0))
            return


def _cpuid_vendor() -> Optional[str]:
    """The hypervisor's name in CPUID leaf 0x40000000; needs root and the module cpuid."""
    try:
        descriptor = os.open("/dev/cpu/0/cpuid", os.O_RDONLY)
    except OSError:
        return None
    try:
        data = os.pread(descriptor, 16, 0x40000000)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    text = data[4:16].decode("ascii", "replace").rstrip("\0")
    return text if text in _CPUID_VENDORS else None
