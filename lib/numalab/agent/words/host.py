"""Sentences of the codes of the host room."""

from __future__ import annotations

from typing import Dict

from . import Template, sentence

_PROBLEMS: Dict[str, Template] = {  # of a topology: what could not be read, or contradicts itself
    "no-cpu-folders": "no {folder}/cpu* folders: packages, cores and caches are unknown",
    "cpus-without-folder": "{cpus:CPUs} are online but have no folder in {folder}: left out",
    "maps-overlap": "{level} maps overlap: those of {cpus:CPUs} disagree",
    "package-ids-repeat": "package ids repeat in different groups: numbered in CPU order",
    "packages-unknown": "packages are unknown: no package_cpus, core_siblings or package id",
    "cores-unknown": "cores are unknown: no core_cpus or thread_siblings",
    "die-ids-unknown": "dies are unknown: die ids are all -1",
    "no-die-ids": "dies are unknown: this kernel has no die_id",
    "no-nodes": "no {folder}/node*: this kernel shows no nodes, all is taken as node 0",
    "node-cpus-unread": "{nodes:nodes}: neither cpulist nor cpumap can be read",
    "no-node-meminfo": "{nodes:nodes}: no meminfo",
    "no-node-memory-total": "{nodes:nodes}: no MemTotal in meminfo",
    "no-distances": "{nodes:nodes}: no distance file",
    "distances-do-not-fit": "{nodes:nodes}: the distance file does not hold one number for each "
    "node: ignored",
    "cpus-of-several-nodes": "{cpus:CPUs} are listed by several nodes: each is counted to the "
    "first of them",
    "cpus-of-no-node": "{cpus:CPUs} are online but belong to no node",
    "memory-disagrees": "the nodes' meminfo adds up to {nodes_bytes:size}, /proc/meminfo says "
    "{whole_bytes:size}: memory and free memory per node are doubtful",
    "caches-unnamed": "caches of {cpus:CPUs}: no level or type",
    "cache-sharers-unknown": "caches of {cpus:CPUs}: no list of the CPUs that share one",
    "cache-size-unknown": "caches of {cpus:CPUs}: L{level} without a size",
    "caches-unknown": lambda f: (
        "caches"
        + (f" of CPUs {f['cpus']}" if f["cpus"] else "")
        + " are unknown: no cpu*/cache folders"
    ),
    "modules-as-cores": "some hardware threads of a core have L1 data caches of their own: what "
    "the kernel calls a core here is a module of cores (AMD family 15h), or its maps are wrong",
    "pci-unread": "{count} PCI devices in {folder} have no readable class: left out",
}

_STATE: Dict[str, Template] = {  # why a setting is unknown, and what changed between two readings
    "no-file": "there is no {path}",
    "file-unreadable": "{path} cannot be read: {error}",
    "no-field": "{path} has no {field}",
    "not-read": "not read",
    "setting-unknown": "unknown ({why})",
    "setting-changed": "{name} changed from {before} to {after}",
    "throttled": "the CPUs were throttled {count:n time} ({level} counters)",
    "module-speed-unknown": "the firmware does not state every module's speed",
    "no-memory-modules": "the firmware lists no memory module",
    "no-frequency-policies": "no cpufreq policies: the kernel does not control the frequency",
    "turbo-unknown": "neither intel_pstate/no_turbo nor cpufreq/boost can be read",
    "no-packages-of-nodes": "no nodes whose CPUs' packages the kernel shows",
    "nodes-per-package-differ": "it differs between packages: {counts}",
    "nodes-of-a-hypervisor": "the nodes of a virtual machine are its hypervisor's",
    "no-named-node-mode": "only AMD EPYC and Intel Xeon have a named firmware mode for nodes",
    "no-cgroup2": "no unified (version 2) cgroup",
    "no-temperature-sensors": "no thermal zones and no CPU sensors in sys/class",
    "no-throttle-counters": "no thermal_throttle counters (Intel only)",
}
_VIRTUALISATION: Dict[str, Template] = {  # evidence of a hypervisor or an emulator
    "lab-guest": "{says}",
    "emulator-shown": lambda f: "; ".join(sentence(e["code"], e["fields"]) for e in f["evidence"]),
    "cpuid-names": "CPUID names {name}",
    "cpu-names-itself": "the CPU calls itself {name}",
    "cpu-names-qemu": "the CPU calls itself QEMU, and nothing shows KVM",
    "qemu-implementer": "the CPU's implementer is 0x00, as of QEMU's own CPU model",
    "qemu-timer": "the timer runs at the 62.5 MHz of QEMU's emulation",
    "qemu-manufacturer": "/proc/sysinfo names QEMU as the manufacturer",
    "kvm-clock": "the kernel has KVM's clock source",
    "device-tree-kvm": "the device tree names KVM",
    "kvm-ptp": "there is KVM's virtual clock device",
    "hyperv-clock": "the kernel has Hyper-V's clock source",
    "xen-clock": "the kernel has Xen's clock source",
    "control-program": "/proc/sysinfo names {name}",
    "sys-hypervisor": "/sys/hypervisor names {name}",
    "firmware-names": "the firmware names {name}",
    "firmware-names-qemu": "the firmware names {name}, and nothing shows KVM",
    "hypervisor-flag": "the CPU flag hypervisor is set",
    "no-hypervisor-flag": "an x86 CPU without the flag hypervisor",
    "hypervisor-unknown": "nothing names a hypervisor, and this architecture has no flag that "
    "tells",
}

SENTENCES: Dict[str, Template] = {**_PROBLEMS, **_STATE, **_VIRTUALISATION}
