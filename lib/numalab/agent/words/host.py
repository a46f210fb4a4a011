"""Sentences of the codes of the host room."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from . import Template, sentence, units

Fields = Mapping[Any, Any]

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
    "caches-unknown": "caches of {cpus:CPUs} are unknown: no cpu*/cache folders",
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
    "pci-device-of": "a PCI device has the hypervisor's own vendor id {name}",
    "no-hypervisor-flag": "an x86 CPU without the flag hypervisor, and no hypervisor in what the "
    "firmware names",
    "hypervisor-unknown": "nothing names a hypervisor, and nothing says that there is none",
}


def _cache_held(f: Fields) -> str:
    words = f"{units.size(f['memory'])} in all; {units.size(f['clean'])} of the cache are clean"
    if f["dirty"]:
        words += f", {units.size(f['dirty'])} must be written first"
    if f["shared"]:
        words += f"; {units.size(f['shared'])} of shared memory cannot be dropped"
    if f["room"] is not None:
        words += f"; {units.size(f['room'])} are free above the zones' low watermarks"
    return words


def _by_node(f: Fields) -> str:
    return ", ".join(f"{units.size(size)} on node {node}" for node, size in f["by_node"].items())


_AWAY = (
    "{name} ({pid}) runs on CPUs of {home:nodes}, and {share:percent} of its {total:size} are on "
    "other nodes: {why}"
)
_FINDINGS: Dict[str, Template] = {
    "page-cache": "node {node} has {free:size} free and {cache:size} of page cache: allocations "
    "from its CPUs spill to node {to} after the next {room:size}; the cache stays, because it is "
    "reclaimed only when all nodes are short",
    "node-full": "node {node} has {free:size} free and {cache:size} of page cache; {why}",
    "cache-to-reclaim": "node {node} has {free:size} free and {cache:size} of page cache: "
    "allocations there must reclaim it first (vm.drop_caches frees it)",
    "swap-insanity": "{used:size} are swapped out and nothing is left on {full:nodes}, while node "
    "{to} has {free:size} free",
    "swap-used": "{used:size} of swap are in use: memory was short on this host",
    "fragmented": "{on:nodes}: free memory is in pieces too small for huge pages",
    "hugetlb": "hugetlb pages of node {node}: {why}",
    "memory-away": _AWAY,
    "bound-apart": _AWAY,
    "cpuset-apart": _AWAY,
    "interleaved": _AWAY,
    "bound-to-full": "{name} ({pid}) may only use memory of {on:nodes}, where {left:size} of "
    "{whole:size} can still be had: {then}",
    "zone-reclaim": "vm.zone_reclaim_mode = {mode} {why}",
    "balancing": "automatic balancing (kernel.numa_balancing) moves {mb_per_s} MB/s between nodes "
    "now",
    "balancing-on": "kernel.numa_balancing = {mode}: pages that no policy binds may move during a "
    "run, and every cell that has such pages says so",
    "swappiness": "vm.swappiness = 0: a process bound to a full node is killed where it could swap",
    "thp-defrag": "transparent_hugepage/defrag = always: programs wait for compaction in page "
    "faults",
    "thp-always": "transparent huge pages are given unasked (always): two runs can get different "
    "page sizes; what each run got is in its record",
    "thp-never": "transparent huge pages are off (never): latencies will include TLB misses",
    "governor": "the frequency governor is powersave with the driver {driver}: every CPU stays at "
    "its lowest frequency",
    "governor-varies": "the frequency governor is {governor}: times depend on what ran before",
    "cpu-quota": "this cgroup has a CPU quota (cpu.max = {quota}): runs will be throttled",
    "load": "load average {load:.1f} on {threads:n hardware thread}: other work is running",
    "emulated-machine": "an emulated machine ({why}): no time measured here says anything about "
    "hardware",
    "side-cache": "the memory of {on:nodes} is behind a cache of {bytes:size} (persistent memory "
    "or CXL with DRAM as its cache, or HBM in cache mode): what fits in it is as fast as the cache",
    "virtual-machine": "a virtual machine ({name}): its nodes are what the hypervisor shows, and "
    "its neighbours can disturb a run",
    "offline-cpus": "{cpus:CPUs} are offline: no binding uses them",
    "isolated-cpus": "{cpus:CPUs} are isolated: only a process that is bound to them runs there",
    "cpuset": "this command may only use {cpus:CPUs} and memory of {memory:nodes} (a cpuset): "
    "bindings, and what is started from here, stay within them",
    "cpuset-all-remote": "this command may only use {cpus:CPUs} (of {on:nodes}) and memory of "
    "{memory:nodes} (a cpuset): every access to memory is remote, here and in what is started from "
    "here",
    "nodes-understated": "the nodes show {nodes_bytes:size} of memory, /proc/meminfo {whole:size}: "
    "this machine understates its nodes{available}",
    "memory-less": "CPUs and no memory on {on:nodes}: all that runs there is remote (empty slots, "
    "or memory taken offline)",
    "cpu-less": "memory but no CPUs on {on:nodes}: only ever the target of a binding",
    "numa-off": "the kernel was started with numa=off: it sees one node and places memory blindly",
    "hidden-nodes": "{packages} packages, but one node: the firmware interleaves memory over them, "
    "so about {remote:percent} of every program's accesses are remote, and no binding can change "
    "it",
    "single-node": "one node with {packages:n package} and {groups:n group} of cores with an L3: "
    "memory is one pool to the kernel; binding CPUs to a group still keeps its threads on one "
    "cache",
}
_EVIDENCE: Dict[str, Template] = {
    "no-room-elsewhere": "no other node has room either, so the kernel reclaims the cache where it "
    "is",
    "full-of-shared-memory": "{size:size} of what fills it is shared memory (tmpfs, shm), which "
    "cannot be dropped",
    "cache-held": _cache_held,
    "spills-now": "{pages} pages meant for it came from other nodes in {seconds:.1f} s, while this "
    "command looked",
    "spilled": "since boot {share:percent} of the pages meant for it came from other nodes "
    "(numa_foreign {foreign}, numa_hit {hit})",
    "spilled-process": "{name} ({pid}) runs there and has {away:size} of its {total:size} "
    "elsewhere",
    "huge-pages-to-be-had": "huge pages to be had there without compaction: {size:size}",
    "node-held": "node {node}: {anonymous:size} of processes' memory, {cache:size} of page cache, "
    "{room:size} of room",
    "swapping-now": "{pages} pages were swapped out in {seconds:.1f} s, while this command looked",
    "swapped-since-boot": "since boot {went} pages went out, {came} came in",
    "process-in-swap": "{name} ({pid}) has {size:size} in swap",
    "its-memory": lambda f: f"its memory: {_by_node(f)}",
    "by-its-policy": "its policy {policy} puts it there",
    "by-its-cpuset": "its cpuset allows memory of {nodes:nodes} only",
    "interleaved-unevenly": "its policy {policy} would put {share:percent} there, but "
    "{nodes:nodes} was full when it allocated",
    "node-was-full": "it has no memory policy: its node was full when it allocated, or it was "
    "moved since",
    "balancing-should-help": "it may run anywhere and runs there now; automatic balancing is on "
    "and should bring them together",
    "runs-there-now": "it may run anywhere and runs there now",
    "free-to-run-anywhere": "it may run on every node: the scheduler moved it, the memory stayed",
    "was-idle": "it was idle while this command looked",
    "was-running": lambda f: (
        f"it used {f['percent']:.0f} % of a CPU while this command looked: "
        + ", ".join(f"{units.percent(share)} on node {n}" for n, share in f["by_node"].items())
    ),
    "holds-there": "it holds {size:size} there",
    "swap-free": "{size:size} of swap are free",
    "no-swap-free": "there is no free swap",
    "room-not-allowed": "there is room on {nodes:nodes}, and it may not use it",
    "free-blocks": "node {node}: {blocks:size} of {free:size} free in blocks of {unit:size} or "
    "more",
    "huge-pages-refused": "since boot {refused} of {asked} huge pages asked for in a page fault "
    "were refused (thp_fault_fallback)",
    "compaction": "compaction: {stalls} stalls, {vain} of them in vain",
    "not-felt": "no program has felt it so far",
    "then-it-swaps": "what it allocates next swaps",
    "then-it-is-killed": "it is killed when it allocates more",
    "available-in-all": "; {size:size} are available in all",
    "mode-reclaims-nothing": "reclaims nothing on this kernel: with MGLRU (lru_gen/enabled) it "
    "needs the bits 2 and 4 too",
    "reclaims-at-home": "makes a program that allocates on a full node wait while page cache is "
    "reclaimed there, though other nodes are free",
    "hugetlb-crowds": "they take {held:size} of its {memory:size}, and everything else from its "
    "CPUs spills to other nodes",
    "hugetlb-idle": "{idle:size} are reserved and unused, and nothing else can have that memory",
    "hugetlb-reserved": "reserved {held:size}, of it unused {idle:size}",
    "reclaims-since-boot": "since boot {done} reclaims of this kind succeeded and {failed} failed",
    "reclaim-in-vain": "every allocation on a full node tries it, fails, and spills as with 0",
    "who-reclaim-suits": "it suits programs partitioned by node; databases and file servers lose "
    "by it",
    "pages-moved": "since boot {pages} pages were moved",
    "faults-local": "{share:percent} of its faults were local",
    "what-is-not-moved": "memory with a bind or interleave policy is not moved; a process bound to "
    "CPUs only has its pages pulled to them",
    "stalls-now": "{stalls} stalls in {seconds:.1f} s, while this command looked",
    "has-packages": "the machine has {packages} packages",
    "node-interleaving": "Node Interleaving is on, or NUMA off, in the firmware's setup (AMD: "
    "NPS0)",
    "when-one-node-is-right": "it is right only where all packages share one memory: on a "
    "front-side bus (before about 2009), or where the kernel takes a cluster of cores for a "
    "package",
    # what a survey could not see
    "no-zoneinfo": "no /proc/zoneinfo: how much fits before a node counts as full is unknown",
    "no-permission-for-numa-maps": "no permission to read its numa_maps",
    "no-readable-numa-maps": "it has no numa_maps that can be read",
    "memory-not-judged": "the nodes' memory does not add up to the machine's: nothing is concluded "
    "from free memory per node",
    "processes-unreadable": "{count} of the processes with {least:size} or more cannot be read: "
    "run it as root to see them",
    "processes-left-out": "{count} further processes were left out, to be quick",
    "in-a-container": "in a container: the processes of the host are not seen",
}
_REMEDIES: Dict[str, Template] = {
    "do-reclaim-node": "frees this node's clean page cache and leaves the other nodes' alone; "
    "files are read from disk again",
    "do-drop-caches": "frees the clean page cache of every node, once. Risk: what was cached is "
    "read from disk again, so a database or file server is slow until it is warm; the cache comes "
    "back",
    "do-bind-program": "makes the kernel reclaim this node's cache for PROGRAM and not spill. "
    "Risk: if PROGRAM needs more than the node has, it swaps or is killed",
    "do-reclaim-at-home": "every process reclaims at home before it spills (with MGLRU only mode 7 "
    "does). Risk: stalls, writing and swapping while a program allocates; not for databases and "
    "file servers",
    "do-zone-reclaim-0": "the default: a full node spills to the next one at once",
    "do-interleave": "for one large process that fills a node: spreads its memory over all nodes "
    "(MySQL has innodb_numa_interleave=ON for this). Risk: part of it is remote for every thread",
    "do-swap-less": "page cache goes before processes' memory. Risk: with much anonymous memory "
    "and little cache, the kernel kills sooner",
    "do-migrate-to-free-node": "moves a process's memory to the free node at once; it waits while "
    "its pages are copied",
    "do-migrate": "moves what is there at once; the process waits while its pages are copied, and "
    "what it allocates next still follows its policy",
    "do-migrate-some": "moves what is there at once; the process waits while its pages are copied. "
    "Only about {fits:size} fit: make room on {to:nodes} first",
    "do-migrate-another": "moves another process away from there",
    "do-edit-service": "add [Service] NUMAPolicy=bind NUMAMask={nodes} CPUAffinity=numa (systemd "
    "244), then restart it. Risk: a bound service that needs more than the node has swaps or is "
    "killed; NUMAPolicy=preferred (one node) spills instead",
    "do-start-bound": "starts it bound. Risk: if it needs more than the node has, it swaps or is "
    "killed; --preferred spills instead",
    "do-start-preferred": "started so, it spills and is not killed",
    "do-start-interleaved": "started again once {nodes:nodes} has room, it spreads evenly",
    "do-compact": "puts the free memory of that node together; takes CPU time for a moment",
    "do-governor": "full frequency; more power",
    "do-balancing-off": "no more moving and no more faults for it. Risk: what is not bound stays "
    "where it was first touched",
    "do-defrag-madvise": "only programs that ask for it wait; others get small pages until "
    "khugepaged comes by",
    "do-hugetlb": "reserves N pages on this node; unused ones above N are given back",
    "do-join-cpuset": "memory then comes from where the CPUs are. GROUP is in /proc/self/cgroup; "
    "for a systemd unit: systemctl set-property UNIT AllowedMemoryNodes={nodes}; for a container: "
    "docker update --cpuset-mems={nodes} NAME. Risk: with cgroup version 2 the group's memory "
    "moves there at once, and its programs wait meanwhile",
    "do-numa-on": "nodes, their memory and distances come back; memory then goes to the node of "
    "whoever touches it first",
    "do-show-nodes": "the kernel then sees the nodes. Risk: a program without a plan for its "
    "memory can fill one node; numactl --interleave=all gives it back what it had",
}
_TOOLS: Dict[str, Template] = {
    "not-on-path": "{program} is not on PATH: {needed}",
    "no-answer-in-time": "it did not answer within {limit:.3g} s",
    "tool-unusable": "{what}",
    "version-in-results": "its version is in its results",
    "version-unknown": "it does not say its version",
    "no-performance-events": "this kernel has no performance events",
    "perf-not-permitted": "no permission (kernel.perf_event_paranoid = {level})",
    "software-events-only": "software events only: this machine shows no hardware counters",
}

SENTENCES: Dict[str, Template] = {
    **_PROBLEMS, **_STATE, **_VIRTUALISATION, **_FINDINGS, **_EVIDENCE, **_REMEDIES, **_TOOLS,
}  # fmt: skip
