"""Which hypervisor or emulator a machine runs on, with the evidence for it."""

from __future__ import annotations

import re
from typing import Dict, Iterator, Optional, Tuple

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
_SIGNS = (  # kind, the code of the evidence, where it is, its pattern; the surest first
    ("tcg", "cpu-names-itself", "cpuinfo", r"(QEMU TCG CPU[^\n]*)"),
    ("tcg", "qemu-implementer", "cpuinfo", r"CPU implementer\t: 0x00"),
    ("tcg", "qemu-timer", "qemu board", r"^BogoMIPS\s*:\s*125\.00"),  # 2 x 62.5 MHz: QEMU's only
    ("tcg", "qemu-manufacturer", "sysinfo", r"^Manufacturer:\s*QEMU"),
    # VirtualBox shows Linux the clock of KVM.
    ("virtualbox", "firmware-names", "firmware", r"(VirtualBox|innotek)"),
    ("virtualbox", "pci-device-of", "pci", r"\t(80ee)"),
    ("kvm", "kvm-clock", "clocks", r"kvm-clock"),
    ("kvm", "device-tree-kvm", "device tree", r"kvm"),
    ("kvm", "kvm-ptp", "ptp", r"^KVM virtual PTP$"),
    ("hyper-v", "hyperv-clock", "clocks", r"hyperv_clocksource"),
    ("xen", "xen-clock", "clocks", r"(?:^|\s)xen(?:\s|$)"),
    ("kvm", "control-program", "sysinfo", r"^VM00 Control Program:\s*(\S*KVM\S*)"),
    ("z/vm", "control-program", "sysinfo", r"^VM00 Control Program:\s*(\S+)"),
    ("xen", "sys-hypervisor", "type", r"(xen)"),
    ("kvm", "firmware-names", "firmware", r"(\bKVM\b|Amazon EC2|Google Compute Engine|OpenStack)"),
    ("kvm", "firmware-names", "firmware", r"(Alibaba Cloud ECS|Nutanix AHV)"),
    ("vmware", "firmware-names", "firmware", r"(VMware)"),
    ("vmware", "pci-device-of", "pci", r"\t(15ad)"),
    ("xen", "pci-device-of", "pci", r"\t(5853)"),
    ("parallels", "pci-device-of", "pci", r"\t(1ab8)"),
    ("hyper-v", "firmware-names", "firmware", r"(Microsoft Corporation.*Virtual Machine)"),
    ("xen", "firmware-names", "firmware", r"(\bXen\b|HVM domU)"),
    ("parallels", "firmware-names", "firmware", r"(Parallels)"),
    ("bhyve", "firmware-names", "firmware", r"(BHYVE)"),
    ("qemu", "firmware-names-qemu", "firmware", r"(?i:(QEMU|\bBochs\b))"),
    ("qemu", "cpu-names-qemu", "cpuinfo", r"^model name\s*:.*QEMU"),
    ("unnamed", "hypervisor-flag", "cpuinfo", r"^flags\s*:.*\bhypervisor\b"),
    ("none", "no-hypervisor-flag", "named machine", r"^flags\s*:"),
)

_NAMED_BY_FIRMWARE = ("vendor", "product", "board", "bios_vendor")


def read(root: str, state: State) -> Dict[str, Setting]:
    """Return ``virt.hypervisor`` and ``virt.evidence`` (reasons as JSON) of a machine.

    "kvm", "xen", …: a guest; "tcg": emulated; "qemu": a QEMU machine that shows no sign of KVM;
    "unnamed": a guest of something that does not say what it is; "none": bare metal, which takes
    the flags of an x86 CPU and a firmware that names itself (some guests lack the flag, as of
    VirtualBox); else None. ``root`` "" is this machine; ``state`` holds its firmware's names and
    its clocks.
    """
    found = list(_signs(_texts(root, state), _cpuid_vendor() if not root else ""))
    if not found:
        unknown = Setting(None, reason("hypervisor-unknown"))
        return {"virt.evidence": unknown, "virt.hypervisor": unknown}
    name = found[0][1]
    return {
        "virt.evidence": Setting([to_json(said) for _, kind, said in found if kind == name]),
        "virt.hypervisor": Setting(name),
    }


def contradicts_itself(state: State) -> bool:
    """Tell whether a recorded hypervisor is not what its evidence, firmware and clocks name.

    What else the evidence came from is not recorded.
    """

    def told(name: str) -> str:
        return str(state[name].value or "") if name in state else ""

    name, evidence = (
        state[key].value if key in state else None for key in ("virt.hypervisor", "virt.evidence")
    )
    if name is None or not isinstance(evidence, list) or not evidence:
        rank = len(_SIGNS)
        if name is not None or evidence:
            return True
    else:
        ranks = [_rank(str(name), one) for one in evidence]
        if None in ranks:
            return True
        rank = min(one for one in ranks if one is not None)
    texts = dict.fromkeys((where for _, _, where, _ in _SIGNS), "")
    texts["firmware"] = " ".join(told(f"dmi.{one}") for one in _NAMED_BY_FIRMWARE)
    texts["clocks"] = told("clock.available")
    surest = next((found for found, _, _ in _signs(texts, "")), len(_SIGNS))
    return rank > surest


def _rank(name: str, evidence: object) -> Optional[int]:
    """The place of a recorded reason among the signs of a hypervisor, -1 for CPUID; None: none."""
    said = evidence if isinstance(evidence, dict) else {}
    if said.get("code") == "cpuid-names":
        named = str((said.get("fields") or {}).get("name"))
        vendors = {vendor.strip(): kind for vendor, kind in _CPUID_VENDORS.items()}
        return -1 if vendors.get(named) == name else None
    places = (n for n, sign in enumerate(_SIGNS) if sign[:2] == (name, said.get("code")))
    return next(places, None)


def _texts(root: str, state: State) -> Dict[str, str]:
    """Where signs are looked for."""

    def text(path: str) -> str:
        return kernel.read_text(f"{root}/{path}", 8192) or ""

    cpuinfo = text("proc/cpuinfo")
    firmware = " ".join(
        [
            *(str(state[f"dmi.{name}"].value or "") for name in _NAMED_BY_FIRMWARE),
            text("proc/device-tree/model"),
            text("proc/device-tree/compatible").replace("\0", " "),
            *re.findall(r"^(?:model|machine)\s*:(.*(?:qemu|QEMU).*)", cpuinfo, re.M),
        ]
    )
    ptp = kernel.list_folder(f"{root}/sys/class/ptp")
    return {
        "cpuinfo": cpuinfo,
        "firmware": firmware,
        "named machine": cpuinfo if firmware.strip() else "",
        "pci": _pci(root),
        "qemu board": cpuinfo if re.search(r"qemu|dummy-virt", firmware, re.I) else "",
        "sysinfo": text("proc/sysinfo"),
        "clocks": str(state["clock.available"].value or ""),
        "device tree": text("proc/device-tree/hypervisor/compatible"),
        "ptp": "\n".join(text(f"sys/class/ptp/{clock}/clock_name") for clock in ptp),
        "type": text("sys/hypervisor/type"),
    }


def _pci(root: str) -> str:
    """The vendors of PCI devices, each after a tab as in /proc/bus/pci/devices."""
    listed = kernel.read_text(f"{root}/proc/bus/pci/devices", 1 << 20)
    if listed:
        return listed
    folder = f"{root}/sys/bus/pci/devices"
    vendors = (kernel.read_text(f"{folder}/{one}/vendor") for one in kernel.list_folder(folder))
    return "".join("\t" + (vendor or "").replace("0x", "") for vendor in vendors)


def _signs(texts: Dict[str, str], vendor: str) -> Iterator[Tuple[int, str, Reason]]:
    """(place among the signs, -1 for CPUID; kind; evidence), the surest first."""
    if vendor in _CPUID_VENDORS:
        yield -1, _CPUID_VENDORS[vendor], reason("cpuid-names", name=vendor.strip())
    for place, (kind, code, where, pattern) in enumerate(_SIGNS):
        match = re.search(pattern, texts[where], re.M)
        if match:
            named = {"name": match.group(1)} if match.groups() else {}
            yield place, kind, reason(code, **named)


def _cpuid_vendor() -> str:
    """The hypervisor's name in CPUID leaf 0x40000000; needs root and the module cpuid."""
    try:
        with open("/dev/cpu/0/cpuid", "rb", buffering=0) as leaves:
            leaves.seek(0x40000000)
            return leaves.read(16)[4:].decode("ascii", "replace").rstrip("\0")
    except OSError:
        return ""
