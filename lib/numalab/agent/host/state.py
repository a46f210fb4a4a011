"""The host's settings and condition that can change a measurement, read before and after it.

Sources: Documentation/admin-guide/{pm/cpufreq,mm/transhuge,mm/multigen_lru,sysctl/vm,
sysctl/kernel,hw-vuln}.rst, Documentation/accounting/psi.rst and
Documentation/ABI/testing/sysfs-devices-system-cpu of the Linux kernel.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Optional, Tuple

from .dmi import dram_peak
from .topology import from_mask, meminfo_bytes, node_cpus

_CPU = "sys/devices/system/cpu"
_CLOCK = "sys/devices/system/clocksource/clocksource0"
_FILES = {  # value: the whole text
    "clock.available": f"{_CLOCK}/available_clocksource",
    "clock.source": f"{_CLOCK}/current_clocksource",
    "cpu.isolated": f"{_CPU}/isolated",
    "cpu.nohz_full": f"{_CPU}/nohz_full",
    "cpu.smt": f"{_CPU}/smt/control",
    "dmi.bios_date": "sys/class/dmi/id/bios_date",
    "dmi.bios_vendor": "sys/class/dmi/id/bios_vendor",
    "dmi.bios_version": "sys/class/dmi/id/bios_version",
    "dmi.board": "sys/class/dmi/id/board_name",
    "dmi.product": "sys/class/dmi/id/product_name",
    "dmi.vendor": "sys/class/dmi/id/sys_vendor",
    "kernel.boot_id": "proc/sys/kernel/random/boot_id",
    "kernel.cmdline": "proc/cmdline",
    "kernel.numa_balancing": "proc/sys/kernel/numa_balancing",
    "kernel.perf_event_paranoid": "proc/sys/kernel/perf_event_paranoid",
    "kernel.release": "proc/sys/kernel/osrelease",
    "kernel.version": "proc/version",
    "lab.guest": "etc/numalab-lab",  # written by the lab's guests (lab/guest-init)
    "vm.lru_gen": "sys/kernel/mm/lru_gen/enabled",
    "vm.min_free_kbytes": "proc/sys/vm/min_free_kbytes",  # the kernel raises it for huge pages
    "vm.nr_hugepages": "proc/sys/vm/nr_hugepages",
    "vm.overcommit_memory": "proc/sys/vm/overcommit_memory",
    "vm.swappiness": "proc/sys/vm/swappiness",
    "vm.watermark_scale_factor": "proc/sys/vm/watermark_scale_factor",
    "vm.zone_reclaim_mode": "proc/sys/vm/zone_reclaim_mode",
}
_CHOICES = {  # value: the word in brackets
    "thp.defrag": "sys/kernel/mm/transparent_hugepage/defrag",
    "thp.enabled": "sys/kernel/mm/transparent_hugepage/enabled",
}
# What moves by itself; everything else is a setting. Throttle counts are told apart.
_NOISE = ("load.", "psi.", "temperature.", "memory.", "throttle.")

Entry = Dict[str, Any]


def read(root: str = "/") -> Dict[str, Entry]:
    """Return {dotted name: {"value": …, "reason": None}} of the machine below ``root``.

    What cannot be read has the value None and a reason. Sizes are bytes, temperatures degrees
    Celsius, frequencies kHz, PSI values the "some avg10" percentages.
    """
    root = os.fspath(root).rstrip("/")  # "" is this machine: reasons then name plain paths
    state = {name: _file(root, path) for name, path in _FILES.items()}
    state["dram.peak_gb_s"] = dram_peak(root)
    state["kernel.cmdline"] = _kernel_words(state["kernel.cmdline"])
    for name in ("cpu.isolated", "cpu.nohz_full"):
        if state[name]["value"] in ("", "(null)"):
            state[name] = _known("none")
    for name, path in _CHOICES.items():
        entry = _file(root, path)
        chosen = re.search(r"\[([^\]]+)\]", entry["value"] or "")
        state[name] = _known(chosen.group(1)) if chosen else entry
    for reader in (_processor, _frequency, _system, _limits, _load, _heat):
        state.update(reader(root))
    state.update(_virtualisation(root, state))
    state.update(_numa(root, value(state, "virt.hypervisor")))
    return dict(sorted(state.items()))


def value(state: Dict[str, Entry], name: str) -> Any:
    """Return one value of a state; None where it is missing or could not be read."""
    return (state.get(name) or {}).get("value")


def emulated(topology: Dict[str, Any], state: Dict[str, Entry]) -> Tuple[bool, Optional[str]]:
    """Return whether the machine is emulated, and why it is taken to be (or None).

    Times measured on such a machine say nothing about nodes. A guest under KVM or another
    hypervisor runs on the hardware and is not emulated, but for a guest of numalab's lab: its
    nodes are made up, whatever runs it. A QEMU machine that shows no sign of KVM counts as
    emulated.
    """
    if value(state, "lab.guest"):
        return True, value(state, "lab.guest")
    if "QEMU TCG" in (topology.get("model") or ""):
        return True, f"the CPU calls itself {topology['model']}"
    if value(state, "virt.hypervisor") in ("tcg", "qemu"):
        return True, "; ".join(value(state, "virt.evidence") or ())
    return False, None


def compare(before: Dict[str, Entry], after: Dict[str, Entry]) -> List[str]:
    """Return one line for each setting that differs between two readings of one host.

    Load, pressure, temperature and free memory always move and are not named; throttling is,
    because it changes a measurement.
    """
    lines = []
    for name in sorted(set(before) | set(after)):
        old, new = value(before, name), value(after, name)
        if name.startswith("throttle."):
            if old is not None and new is not None and new > old:
                where = name.split(".", 1)[1]
                lines.append(f"the CPUs were throttled {new - old} times ({where} counters)")
        elif isinstance(old, dict) and isinstance(new, dict) and not name.startswith(_NOISE):
            lines += [
                f"{name}, {key}: changed from {old.get(key)} to {new.get(key)}"
                for key in sorted(set(old) | set(new))
                if old.get(key) != new.get(key)
            ]
        elif old != new and not name.startswith(_NOISE):
            lines.append(f"{name} changed from {_said(before, name)} to {_said(after, name)}")
    return lines


def _said(state: Dict[str, Entry], name: str) -> str:
    entry = state.get(name) or {"value": None, "reason": "not read"}
    return f"unknown ({entry['reason']})" if entry["value"] is None else str(entry["value"])


def _known(found: Any) -> Entry:
    return {"value": found, "reason": None}


def _unknown(reason: str) -> Entry:
    return {"value": None, "reason": reason}


def _text(path: str, limit: int = 32768) -> Tuple[Optional[str], Optional[str]]:
    """A file's stripped text with None, or None with the reason."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            data = os.read(descriptor, limit)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return None, f"there is no {path}"
    except PermissionError:
        return None, f"no permission to read {path}"
    except OSError as error:
        return None, f"{path} cannot be read: {error.strerror}"
    return data.decode("utf-8", "replace").strip("\0 \t\r\n"), None


def _file(root: str, path: str) -> Entry:
    text, reason = _text(f"{root}/{path}")
    return {"value": text, "reason": reason}


def _list_folder(path: str) -> List[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _by_cpu(root: str, folder: str) -> List[Tuple[int, str]]:
    """(CPU, folder) for every CPU that has this folder, in CPU order."""
    names = [n[3:] for n in _list_folder(f"{root}/{_CPU}") if n[:3] == "cpu" and n[3:].isdigit()]
    return [(cpu, f"{root}/{_CPU}/cpu{cpu}/{folder}") for cpu in sorted(map(int, names))]


def _processor(root: str) -> Dict[str, Entry]:
    text = _text(f"{root}/proc/cpuinfo", 8192)[0] or ""
    found = re.search(r"^microcode\s*:\s*(\S+)", text, re.M)
    microcode = _known(found.group(1)) if found else _file(root, f"{_CPU}/cpu0/microcode/version")
    folder = f"{root}/{_CPU}/vulnerabilities"
    names = _list_folder(folder)
    mitigations = {name: _text(f"{folder}/{name}")[0] for name in names}
    return {
        "cpu.microcode": microcode,
        "cpu.mitigations": _known(mitigations) if names else _unknown(f"there is no {folder}"),
    }


def _frequency(root: str) -> Dict[str, Entry]:
    folder = f"{root}/{_CPU}/cpufreq"
    policies = [f"{folder}/{n}" for n in _list_folder(folder) if n.startswith("policy")]
    if not policies:  # before Linux 4.3 the policies lay below the CPUs
        policies = [path for _, path in _by_cpu(root, "cpufreq") if os.path.isdir(path)]
    absent = _unknown("no cpufreq policies: the kernel does not control the frequency")

    def gather(file: str) -> Entry:
        """What the policies say: one word, or each word with its number of policies."""
        if not policies:
            return absent
        counts: Dict[str, int] = {}
        for policy in policies:
            text = _text(f"{policy}/{file}")[0]
            if text is not None:
                counts[text] = counts.get(text, 0) + 1
        if not counts:
            return _unknown(f"the cpufreq policies have no {file}")
        if len(counts) == 1:
            return _known(next(iter(counts)))
        return _known(", ".join(f"{word} ({n} policies)" for word, n in sorted(counts.items())))

    no_turbo = _text(f"{root}/{_CPU}/intel_pstate/no_turbo")[0]
    boost = _text(f"{folder}/boost")[0]
    if no_turbo in ("0", "1"):
        turbo = _known("on" if no_turbo == "0" else "off")
    elif boost in ("0", "1"):
        turbo = _known("on" if boost == "1" else "off")
    else:
        turbo = _unknown("neither intel_pstate/no_turbo nor cpufreq/boost can be read")
    return {
        "cpu.driver": gather("scaling_driver"),
        "cpu.energy_preference": gather("energy_performance_preference"),
        "cpu.governor": gather("scaling_governor"),
        "cpu.max_khz": gather("scaling_max_freq"),
        "cpu.min_khz": gather("scaling_min_freq"),
        "cpu.turbo": turbo,
    }


def _numa(root: str, hypervisor: Optional[str]) -> Dict[str, Entry]:
    """Nodes per package (0: a node holds several packages), and the mode that this suggests.

    The mode is an inference: NPS (AMD EPYC, "NUMA nodes per socket") and SNC (Intel Xeon,
    "sub-NUMA clustering") are firmware settings that the kernel does not show.
    """
    packages: Dict[frozenset, int] = {}
    spans = False
    for name in _list_folder(f"{root}/sys/devices/system/node"):
        if not re.match(r"node\d+\Z", name):
            continue
        cpus = node_cpus(root, int(name[4:]))
        if not cpus:
            continue
        here = f"{root}/{_CPU}/cpu{min(cpus)}/topology"
        package = from_mask(_text(f"{here}/package_cpus")[0] or _text(f"{here}/core_siblings")[0])
        if package:
            packages[package] = packages.get(package, 0) + 1
            spans = spans or not cpus <= package
    counts = sorted(set(packages.values()))
    if not counts:
        counted = _unknown("no nodes whose CPUs' packages the kernel shows")
    elif spans:
        counted = _known(0)
    elif len(counts) > 1:
        counted = _unknown("it differs between packages: " + ", ".join(map(str, counts)))
    else:
        counted = _known(counts[0])
    return {"numa.nodes_per_package": counted, "numa.mode": _mode(root, counted, hypervisor)}


def _mode(root: str, counted: Entry, hypervisor: Optional[str]) -> Entry:
    if counted["value"] is None:
        return counted
    if hypervisor not in (None, "none"):
        return _unknown("the nodes of a virtual machine are its hypervisor's")
    model = re.search(r"^model name\s*:(.*)", _text(f"{root}/proc/cpuinfo", 8192)[0] or "", re.M)
    words = model.group(1) if model else ""
    count = counted["value"]
    if re.search(r"\bEPYC\b|Hygon", words):
        mode = f"NPS{count}"
    elif "Xeon" in words and count:
        mode = f"SNC{count}" if count > 1 else "SNC off"
    else:
        return _unknown("only AMD EPYC and Intel Xeon have a named firmware mode for nodes")
    return {**_known(mode), "inferred": "from the nodes per package; the setting is not shown"}


def _kernel_words(cmdline: Entry) -> Entry:
    """The kernel's own words: what follows "--", and which program is init, is not its business."""
    if cmdline["value"] is None:
        return cmdline
    words = cmdline["value"].split(" -- ")[0].split()
    return _known(" ".join(word for word in words if not re.match(r"(rd)?init=", word)))


def _system(root: str) -> Dict[str, Entry]:
    text, reason = _text(f"{root}/etc/os-release")
    if text is None:
        text = _text(f"{root}/usr/lib/os-release")[0]
    name = re.search(r'^PRETTY_NAME="?([^"\n]*)', text or "", re.M)
    return {"os.release": _known(name.group(1)) if name else _unknown(reason or "no PRETTY_NAME")}


def _limits(root: str) -> Dict[str, Entry]:
    """The cpuset, cgroup and CPU quota of this process."""
    status, why = _text(f"{root}/proc/self/status")
    lists = dict(re.findall(r"^(Cpus|Mems)_allowed_list:[ \t]*(\S*)", status or "", re.M))
    cgroup, _ = _text(f"{root}/proc/self/cgroup")
    unified = re.search(r"^0::(\S*)", cgroup or "", re.M)
    quota = _unknown("no unified (version 2) cgroup")
    if unified:
        quota = _file(root, f"sys/fs/cgroup{unified.group(1).rstrip('/')}/cpu.max")
    missing = _unknown(why or "no Cpus_allowed_list in /proc/self/status")
    return {
        "cgroup.cpu_max": quota,
        "cpuset.cpus": _known(lists["Cpus"]) if "Cpus" in lists else missing,
        "cpuset.mems": _known(lists["Mems"]) if "Mems" in lists else missing,
    }


def _load(root: str) -> Dict[str, Entry]:
    state: Dict[str, Entry] = {}
    text, reason = _text(f"{root}/proc/loadavg")
    numbers = re.match(r"([\d.]+) ([\d.]+) ([\d.]+)", text or "")
    state["load.average"] = (
        _known([float(number) for number in numbers.groups()]) if numbers else _unknown(
            reason or "/proc/loadavg is not three numbers"
        )
    )  # fmt: skip
    for kind in ("cpu", "io", "memory"):
        text, reason = _text(f"{root}/proc/pressure/{kind}")
        some = re.search(r"^some avg10=([\d.]+)", text or "", re.M)
        state[f"psi.{kind}"] = (
            _known(float(some.group(1))) if some else _unknown(reason or "no line «some»")
        )
    text, reason = _text(f"{root}/proc/meminfo")
    memory = meminfo_bytes(text)
    for name, field in (
        ("memory.available_bytes", "MemAvailable"),
        ("memory.free_bytes", "MemFree"),
        ("memory.swap_free_bytes", "SwapFree"),
        ("memory.swap_total_bytes", "SwapTotal"),
        ("memory.total_bytes", "MemTotal"),
    ):
        found = memory.get(field)
        state[name] = (
            _unknown(reason or f"/proc/meminfo has no {field}") if found is None else _known(found)
        )
    return state


def _heat(root: str) -> Dict[str, Entry]:
    degrees: Dict[str, float] = {}

    def note(name: Optional[str], text: Optional[str]) -> None:
        if name and text and re.match(r"-?\d+\Z", text):
            degrees[name] = max(degrees.get(name, -300.0), int(text) / 1000)

    thermal = f"{root}/sys/class/thermal"
    for zone in _list_folder(thermal):
        if zone.startswith("thermal_zone"):
            note(_text(f"{thermal}/{zone}/type")[0], _text(f"{thermal}/{zone}/temp")[0])
    hardware = f"{root}/sys/class/hwmon"
    for chip in _list_folder(hardware):
        name = _text(f"{hardware}/{chip}/name")[0]
        if name in ("coretemp", "k10temp", "zenpower"):
            for file in _list_folder(f"{hardware}/{chip}"):
                if re.match(r"temp\d+_input\Z", file):
                    note(name, _text(f"{hardware}/{chip}/{file}")[0])
    state = {
        "temperature.celsius": _known(degrees) if degrees else _unknown(
            "no thermal zones and no CPU sensors in sys/class"
        )
    }  # fmt: skip
    counters = [path for _, path in _by_cpu(root, "thermal_throttle") if os.path.isdir(path)]
    for level in ("core", "package"):
        counts = [_text(f"{path}/{level}_throttle_count")[0] for path in counters]
        known = [int(text) for text in counts if text and text.isdigit()]
        # Every CPU of a core or package repeats its counter: the highest is a lower bound that
        # grows whenever one of them throttles the most; a sum would count it many times.
        state[f"throttle.{level}"] = (
            _known(max(known)) if known else _unknown("no thermal_throttle counters (Intel only)")
        )
    return state


_DMI_HYPERVISORS = (  # in what firmware tables say of the vendor and the product
    ("kvm", r"\bKVM\b|Amazon EC2|Google Compute Engine|OpenStack|Alibaba Cloud ECS|Nutanix AHV"),
    ("vmware", r"VMware"),
    ("virtualbox", r"VirtualBox|innotek"),
    ("hyper-v", r"Microsoft Corporation.*Virtual Machine"),
    ("xen", r"\bXen\b|HVM domU"),
    ("parallels", r"Parallels"),
    ("bhyve", r"BHYVE"),
    ("qemu", r"QEMU|\bBochs\b"),
)
_CPUID_VENDORS = {
    "KVMKVMKVM": "kvm",
    "TCGTCGTCGTCG": "tcg",
    "VMwareVMware": "vmware",
    "Microsoft Hv": "hyper-v",
    "XenVMMXenVMM": "xen",
    "bhyve bhyve ": "bhyve",
}


def _virtualisation(root: str, state: Dict[str, Entry]) -> Dict[str, Entry]:
    """The hypervisor with the evidence for it.

    "kvm", "xen", …: a guest; "tcg": emulated; "qemu": a QEMU machine that shows no sign of KVM;
    "unnamed": a guest of something that does not say what it is; "none": bare metal.
    """
    cpuinfo = _text(f"{root}/proc/cpuinfo", 8192)[0] or ""
    tree = f"{root}/proc/device-tree"
    dmi = " ".join(value(state, f"dmi.{n}") or "" for n in ("vendor", "product", "board"))
    bios = value(state, "dmi.bios_vendor") or ""
    firmware = " ".join(
        part
        for part in (
            dmi,
            "" if bios in ("SeaBIOS", "EFI Development Kit II / OVMF") else bios,
            _text(f"{tree}/model")[0],
            (_text(f"{tree}/compatible")[0] or "").replace("\0", " "),
            " ".join(re.findall(r"^(?:model|machine)\s*:(.*(?:qemu|QEMU).*)", cpuinfo, re.M)),
        )
        if part
    )
    clocks = value(state, "clock.available") or ""
    cpu = re.search(r"QEMU TCG CPU[^\n]*", cpuinfo)
    leaf = _cpuid_vendor() if not root else None
    guest = _text(f"{tree}/hypervisor/compatible")[0] or ""
    sysinfo = _text(f"{root}/proc/sysinfo")[0] or ""
    control = re.search(r"^VM00 Control Program:\s*(\S+)", sysinfo, re.M)
    kind = _text(f"{root}/sys/hypervisor/type")[0]
    timer = re.search(r"^BogoMIPS\s*:\s*125\.00", cpuinfo, re.M)  # 2 × 62.5 MHz: QEMU's only
    evidence: List[Tuple[str, str]] = []
    if leaf:
        evidence.append((_CPUID_VENDORS.get(leaf, "unnamed"), f"CPUID names {leaf.strip()}"))
    if cpu:
        evidence.append(("tcg", f"the CPU calls itself {cpu.group(0).strip()}"))
    if "CPU implementer\t: 0x00" in cpuinfo:
        evidence.append(("tcg", "the CPU's implementer is 0x00, as of QEMU's own CPU model"))
    if timer and re.search(r"qemu|dummy-virt", firmware, re.I):
        evidence.append(("tcg", "the timer runs at the 62.5 MHz of QEMU's emulation"))
    if re.search(r"^Manufacturer:\s*QEMU", sysinfo, re.M):
        evidence.append(("tcg", "/proc/sysinfo names QEMU as the manufacturer"))
    if "kvm-clock" in clocks:
        evidence.append(("kvm", "the kernel has KVM's clock source"))
    if "kvm" in guest:
        evidence.append(("kvm", "the device tree names KVM"))
    if any(
        _text(f"{root}/sys/class/ptp/{clock}/clock_name")[0] == "KVM virtual PTP"
        for clock in _list_folder(f"{root}/sys/class/ptp")
    ):
        evidence.append(("kvm", "there is KVM's virtual clock device"))
    if "hyperv_clocksource" in clocks:
        evidence.append(("hyper-v", "the kernel has Hyper-V's clock source"))
    if kind or "xen" in clocks.split():
        evidence.append((kind or "xen", f"/sys/hypervisor names {kind or 'Xen'}"))
    if control:
        name = "kvm" if "KVM" in control.group(1) else control.group(1).lower()
        evidence.append((name, f"/proc/sysinfo names {control.group(1)}"))
    for name, pattern in _DMI_HYPERVISORS:
        found = re.search(pattern, firmware, re.I if name == "qemu" else 0)
        if found:
            said = f"the firmware names {found.group(0)}"
            if name == "qemu":
                said += ", and nothing shows KVM"
            evidence.append((name, said))
            break
    if not evidence and re.search(r"^model name\s*:.*QEMU", cpuinfo, re.M):
        evidence.append(("qemu", "the CPU calls itself QEMU, and nothing shows KVM"))
    flagged = re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.M)
    if not evidence and flagged:
        evidence.append(("unnamed", "the CPU flag hypervisor is set"))
    if evidence:
        name = evidence[0][0]
        return {
            "virt.evidence": _known([said for kind, said in evidence if kind == name]),
            "virt.hypervisor": _known(name),
        }
    if re.search(r"^flags\s*:", cpuinfo, re.M) and not flagged:
        seen = "an x86 CPU without the flag hypervisor"
        return {"virt.evidence": _known([seen]), "virt.hypervisor": _known("none")}
    reason = "nothing names a hypervisor, and this architecture has no flag that tells"
    return {"virt.evidence": _unknown(reason), "virt.hypervisor": _unknown(reason)}


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
