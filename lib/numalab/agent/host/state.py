"""The host's settings and condition that can change a measurement, read before and after it.

Sources: Documentation/admin-guide/{pm/cpufreq,mm/transhuge,mm/multigen_lru,sysctl/vm,
sysctl/kernel,hw-vuln}.rst, Documentation/accounting/psi.rst and
Documentation/ABI/testing/sysfs-devices-system-cpu of the Linux kernel.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from typing import Any, Dict, FrozenSet, List, Optional, Tuple

from .. import kernel
from ..contract import Host, Reason, Setting, State, reason
from ..kernel import CPUS
from . import cgroup, processor, virtualisation
from .dmi import dram_peak

_CLOCK = "sys/devices/system/clocksource/clocksource0"
_FILES = {  # value: the whole text
    "clock.available": f"{_CLOCK}/available_clocksource",
    "clock.source": f"{_CLOCK}/current_clocksource",
    "cpu.isolated": f"{CPUS}/isolated",
    "cpu.nohz_full": f"{CPUS}/nohz_full",
    "cpu.smt": f"{CPUS}/smt/control",
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
_MATCHES = {  # value: the file, what its pattern's group finds, and what that is called
    "cpuset.cpus": ("proc/self/status", r"^Cpus_allowed_list:[ \t]*(\S*)", "CPU list"),
    "cpuset.mems": ("proc/self/status", r"^Mems_allowed_list:[ \t]*(\S*)", "node list"),
    "load.average": ("proc/loadavg", r"^([\d.]+ [\d.]+ [\d.]+)", "load average"),
    "psi.cpu": ("proc/pressure/cpu", r"^some avg10=([\d.]+)", "line some"),
    "psi.io": ("proc/pressure/io", r"^some avg10=([\d.]+)", "line some"),
    "psi.memory": ("proc/pressure/memory", r"^some avg10=([\d.]+)", "line some"),
}
_MEMORY = {  # value: the line of /proc/meminfo
    "memory.available_bytes": "MemAvailable",
    "memory.free_bytes": "MemFree",
    "memory.swap_free_bytes": "SwapFree",
    "memory.swap_total_bytes": "SwapTotal",
    "memory.total_bytes": "MemTotal",
}
_POLICY_FILES = {  # value: the file of every frequency policy
    "cpu.driver": "scaling_driver",
    "cpu.energy_preference": "energy_performance_preference",
    "cpu.governor": "scaling_governor",
    "cpu.max_khz": "scaling_max_freq",
    "cpu.min_khz": "scaling_min_freq",
}
# What moves by itself; everything else is a setting. Throttle counts are told apart.
_NOISE = ("load.", "psi.", "temperature.", "memory.", "throttle.")


def read(root: str = "/") -> State:
    """Return the settings of the machine below ``root`` by their dotted names.

    What cannot be read has the value None and a reason. Sizes are bytes, temperatures degrees
    Celsius, frequencies kHz, PSI values the "some avg10" percentages.
    """
    root = os.fspath(root).rstrip("/")  # "" is this machine: reasons then name plain paths
    state = {name: _file(root, path) for name, path in _FILES.items()}
    state["dram.peak_gb_s"] = dram_peak(root)
    if state["kernel.cmdline"].value is not None:
        state["kernel.cmdline"] = Setting(_kernel_words(state["kernel.cmdline"].value))
    for name in ("cpu.isolated", "cpu.nohz_full"):
        if state[name].value in ("", "(null)"):
            state[name] = Setting("none")
    for name, path in _CHOICES.items():
        found = _file(root, path)
        state[name] = found if found.value is None else Setting(kernel.chosen(found.value))
    for name, (path, pattern, field) in _MATCHES.items():
        state[name] = _matched(root, path, pattern, field)
        if name.startswith(("load", "psi")) and state[name].value is not None:
            numbers = [float(number) for number in state[name].value.split()]
            state[name] = Setting(numbers if name.startswith("load") else numbers[0])
    for reader in (_processor, _frequency, _system, _memory, _heat):
        state.update(reader(root))
    state.update(virtualisation.read(root, state))
    state.update(_numa(root, value(state, "virt.hypervisor")))
    return dict(sorted(state.items()))


def value(state: State, name: str) -> Any:
    """Return one value of a state; None where it is missing or could not be read."""
    return state[name].value if name in state else None


def emulated(host: Host, state: State) -> Tuple[bool, Optional[Reason]]:
    """Return whether the machine is emulated, and why it is taken to be (or None).

    Times measured on such a machine say nothing about nodes. A guest under KVM or another
    hypervisor runs on the hardware and is not emulated, but for a guest of numalab's lab: its
    nodes are made up, whatever runs it. A QEMU machine that shows no sign of KVM counts as
    emulated.
    """
    if value(state, "lab.guest"):
        return True, reason("lab-guest", says=value(state, "lab.guest"))
    if "QEMU TCG" in (host.model or ""):
        return True, reason("cpu-names-itself", name=host.model)
    if value(state, "virt.hypervisor") in ("tcg", "qemu"):
        return True, reason("emulator-shown", evidence=value(state, "virt.evidence") or [])
    return False, None


def compare(before: State, after: State) -> List[Reason]:
    """Return a reason for each setting that differs between two readings of one host.

    Load, pressure, temperature and free memory always move and are not named; throttling is,
    because it changes a measurement.
    """
    found = []
    for name in sorted(set(before) | set(after)):
        old, new = value(before, name), value(after, name)
        if name.startswith("throttle."):
            if old is not None and new is not None and new > old:
                found.append(reason("throttled", count=new - old, level=name.partition(".")[2]))
        elif name.startswith(_NOISE):
            continue
        elif isinstance(old, dict) and isinstance(new, dict):
            found += [
                reason("setting-changed", name=f"{name}, {key}", before=old.get(key),
                       after=new.get(key))
                for key in sorted(set(old) | set(new))
                if old.get(key) != new.get(key)
            ]  # fmt: skip
        elif old != new:
            was, now = (_shown(state, name) for state in (before, after))
            found.append(reason("setting-changed", name=name, before=was, after=now))
    return found


def _shown(state: State, name: str) -> Any:
    """A value, or why there is none."""
    setting = state.get(name) or Setting(None, reason("not-read"))
    return reason("setting-unknown", why=setting.reason) if setting.value is None else setting.value


def _file(root: str, path: str, limit: int = 1 << 20) -> Setting:
    """A file's text without what surrounds it, or why it cannot be read."""
    path = f"{root}/{path}"
    try:
        return Setting(kernel.read(path, limit).strip("\0 \t\r\n"))
    except FileNotFoundError:
        return Setting(None, reason("no-file", path=path))
    except OSError as error:
        return Setting(None, reason("file-unreadable", path=path, error=error.strerror))


def _matched(root: str, path: str, pattern: str, field: str, limit: int = 1 << 20) -> Setting:
    """The part of a file that a pattern's group finds, called ``field`` when it is not there."""
    text = _file(root, path, limit)
    found = re.search(pattern, text.value or "", re.M)
    if found:
        return Setting(found.group(1))
    return Setting(None, text.reason or reason("no-field", path=f"{root}/{path}", field=field))


def _known(found: Any, why: Reason) -> Setting:
    """A value, or the reason where it is None."""
    return Setting(None, why) if found is None else Setting(found)


def _paths(root: str, pattern: str) -> List[str]:
    """What there is below the root by a shell's pattern."""
    return sorted(glob.glob(f"{glob.escape(root)}/{pattern}"))


def _processor(root: str) -> Dict[str, Setting]:
    microcode = _matched(root, "proc/cpuinfo", r"^microcode\s*:\s*(\S+)", "microcode", 8192)
    if microcode.value is None:
        microcode = _file(root, f"{CPUS}/cpu0/microcode/version")
    folder = f"{CPUS}/vulnerabilities"
    paths = _paths(root, f"{folder}/*")
    mitigations = {os.path.basename(path): kernel.read_text(path) for path in paths}
    why = reason("no-file", path=f"{root}/{folder}")
    return {"cpu.microcode": microcode, "cpu.mitigations": _known(mitigations or None, why)}


def _frequency(root: str) -> Dict[str, Setting]:
    policies = _paths(root, f"{CPUS}/cpufreq/policy[0-9]*")
    if not policies:  # before Linux 4.3 the policies lay below the CPUs
        policies = _paths(root, f"{CPUS}/cpu[0-9]*/cpufreq")

    def gathered(file: str) -> Setting:
        """What the policies say: one word, or each word with its number of policies."""
        if not policies:
            return Setting(None, reason("no-frequency-policies"))
        texts = (kernel.read_text(f"{policy}/{file}") for policy in policies)
        counts = Counter(text for text in texts if text is not None)
        if not counts:
            return Setting(None, reason("no-field", path="cpufreq/policy*", field=file))
        if len(counts) == 1:
            return Setting(next(iter(counts)))
        return Setting(", ".join(f"{word} ({n} policies)" for word, n in sorted(counts.items())))

    no_turbo = kernel.read_text(f"{root}/{CPUS}/intel_pstate/no_turbo")
    boost = kernel.read_text(f"{root}/{CPUS}/cpufreq/boost")
    turbo = {"0": "on", "1": "off"}.get(no_turbo or "") or {"1": "on", "0": "off"}.get(boost or "")
    found = {name: gathered(file) for name, file in _POLICY_FILES.items()}
    return {**found, "cpu.turbo": _known(turbo, reason("turbo-unknown"))}


def _numa(root: str, hypervisor: Optional[str]) -> Dict[str, Setting]:
    """Nodes per package (0: a node holds several packages), and the mode that this suggests.

    The mode is an inference: NPS (AMD EPYC, "NUMA nodes per socket") and SNC (Intel Xeon,
    "sub-NUMA clustering") are firmware settings that the kernel does not show.
    """
    packages: Counter[FrozenSet[int]] = Counter()
    spans = False
    for node in kernel.list_nodes(root or "/"):
        cpus = kernel.node_cpus(root, node)
        if not cpus:
            continue
        here = f"{root}/{CPUS}/cpu{min(cpus)}/topology"
        package = kernel.cpu_mask(
            kernel.read_text(f"{here}/package_cpus") or kernel.read_text(f"{here}/core_siblings")
        )
        if package:
            packages[package] += 1
            spans = spans or not cpus <= package
    counts = sorted(set(packages.values()))
    if not counts:
        counted = Setting(None, reason("no-packages-of-nodes"))
    elif len(counts) > 1 and not spans:
        counted = Setting(None, reason("nodes-per-package-differ", counts=counts))
    else:
        counted = Setting(0 if spans else counts[0])
    return {"numa.nodes_per_package": counted, "numa.mode": _mode(root, counted, hypervisor)}


def _mode(root: str, counted: Setting, hypervisor: Optional[str]) -> Setting:
    if counted.value is None:
        return counted
    if hypervisor not in (None, "none"):
        return Setting(None, reason("nodes-of-a-hypervisor"))
    words = processor.read(root or "/").model or ""
    count = counted.value
    if re.search(r"\bEPYC\b|Hygon", words):
        return Setting(f"NPS{count}")
    if "Xeon" in words and count:
        return Setting(f"SNC{count}" if count > 1 else "SNC off")
    return Setting(None, reason("no-named-node-mode"))


def _kernel_words(cmdline: str) -> str:
    """The kernel's own words: what follows "--", and which program is init, is not its business."""
    words = cmdline.split(" -- ")[0].split()
    return " ".join(word for word in words if not re.match(r"(rd)?init=", word))


def _system(root: str) -> Dict[str, Setting]:
    """The distribution, and the CPU quota of this process."""
    places = ("etc/os-release", "usr/lib/os-release")
    found = [_matched(root, p, r'^PRETTY_NAME="?([^"\n]*)', "PRETTY_NAME") for p in places]
    quota = Setting(None, reason("no-cgroup2"))
    its = [at + path for controllers, at, path in cgroup.mounts(root or "/") if not controllers]
    if its:
        quota = _file(root, f"{os.path.relpath(its[0], root or '/')}/cpu.max")
    release = next((one for one in found if one.value is not None), found[0])
    return {"os.release": release, "cgroup.cpu_max": quota}


def _memory(root: str) -> Dict[str, Setting]:
    text = _file(root, "proc/meminfo")
    sizes = kernel.meminfo(text.value)
    return {
        name: _known(
            sizes.get(field),
            text.reason or reason("no-field", path=f"{root}/proc/meminfo", field=field),
        )
        for name, field in _MEMORY.items()
    }


def _heat(root: str) -> Dict[str, Setting]:
    sensors = [(path, "type") for path in _paths(root, "sys/class/thermal/thermal_zone*/temp")]
    sensors += [(path, "name") for path in _paths(root, "sys/class/hwmon/*/temp*_input")]
    degrees: Dict[str, float] = {}
    for path, naming in sensors:
        name = kernel.read_text(f"{os.path.dirname(path)}/{naming}")
        if not name or (naming == "name" and name not in ("coretemp", "k10temp", "zenpower")):
            continue  # other chips may be slow: drivetemp wakes disks
        found = kernel.read_int(path)
        if found is not None:
            degrees[name] = max(degrees.get(name, -300.0), found / 1000)
    state = {"temperature.celsius": _known(degrees or None, reason("no-temperature-sensors"))}
    for level in ("core", "package"):
        files = _paths(root, f"{CPUS}/cpu[0-9]*/thermal_throttle/{level}_throttle_count")
        counts = [kernel.read_int(path) for path in files]
        # Every CPU of a core or package repeats its counter: the highest is a lower bound that
        # grows whenever one of them throttles the most; a sum would count it many times.
        highest = max((count for count in counts if count is not None), default=None)
        state[f"throttle.{level}"] = _known(highest, reason("no-throttle-counters"))
    return state
