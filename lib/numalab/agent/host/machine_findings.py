"""Findings about a machine's settings, its shape, and what of it may be used."""

from __future__ import annotations

from typing import Iterator

from .. import cpulist
from ..contract import reason
from ..cpulist import format as listed
from .findings import Facts, Finding, finding, remedy
from .state import emulated

_MOVED_BYTES_PER_S = 100e6


# --- settings ---------------------------------------------------------------------------------


def memory_settings(facts: Facts) -> Iterator[Finding]:
    """Balancing, reclaim, swappiness: what moves or frees memory unasked."""
    if facts.setting("kernel.numa_balancing") not in (None, "0"):
        yield finding("warning", "balancing-on", mode=facts.setting("kernel.numa_balancing"))
        yield from _balancing_now(facts)
    mode = facts.setting("vm.zone_reclaim_mode")
    if mode not in (None, "0") and mode.isdecimal() and len(facts.nodes) > 1:
        yield _zone_reclaim(facts, mode)
    swap = facts.setting("memory.swap_total_bytes")
    if facts.setting("vm.swappiness") == "0" and swap and len(facts.nodes) > 1:
        yield finding("note", "swappiness", remedies=[remedy("do-swap-less")])


def _zone_reclaim(facts: Facts, mode: str) -> Finding:
    history = None
    if "zone_reclaim_success" in facts.survey.vmstat:
        done, failed = (facts.since_boot(f"zone_reclaim_{how}") for how in ("success", "failed"))
        history = reason("reclaims-since-boot", done=done, failed=failed)
    back = remedy("do-zone-reclaim-0")
    idle = facts.mglru and int(mode) & 6 != 6
    if idle:
        evidence = [reason("reclaim-in-vain"), history]
    else:
        evidence = [history, reason("who-reclaim-suits")]
    return finding(
        "warning", "zone-reclaim", evidence=evidence,
        remedies=[back, remedy("do-reclaim-at-home", mode=7)] if idle else [back], mode=mode,
        why=reason("mode-reclaims-nothing" if idle else "reclaims-at-home"),
    )  # fmt: skip


def _balancing_now(facts: Facts) -> Iterator[Finding]:
    interval = facts.survey.interval_s
    moved = facts.now("numa_pages_migrated") * facts.survey.page_bytes
    if not interval or moved / interval < _MOVED_BYTES_PER_S:
        return
    faults, local = facts.since_boot("numa_hint_faults"), facts.since_boot("numa_hint_faults_local")
    evidence = [
        reason("pages-moved", pages=facts.since_boot("numa_pages_migrated")),
        reason("faults-local", share=local / faults) if faults else None,
        reason("what-is-not-moved"),
    ]
    yield finding(
        "warning", "balancing", evidence=evidence, remedies=[remedy("do-balancing-off")],
        mb_per_s=round(moved / interval / 1e6),
    )  # fmt: skip


def huge_page_settings(facts: Facts) -> Iterator[Finding]:
    """Transparent huge pages that come unasked, never, or only after waiting."""
    enabled = facts.setting("thp.enabled")
    if enabled in ("always", "never"):
        yield finding("warning", f"thp-{enabled}")
    stalls = facts.now("compact_stall")
    if enabled not in (None, "never") and facts.setting("thp.defrag") == "always" and stalls >= 10:
        yield finding(
            "warning", "thp-defrag",
            evidence=[reason("stalls-now", stalls=stalls, seconds=facts.survey.interval_s)],
            remedies=[remedy("do-defrag-madvise")],
        )  # fmt: skip


def processor_settings(facts: Facts) -> Iterator[Finding]:
    """What changes speed from run to run: frequency, quota, other work."""
    governor, driver = facts.setting("cpu.governor"), facts.setting("cpu.driver") or ""
    if governor == "powersave" and "pstate" not in driver:
        yield finding(
            "warning", "governor", driver=driver or "unknown", remedies=[remedy("do-governor")]
        )
    elif governor not in (None, "performance"):
        yield finding("warning", "governor-varies", governor=governor)
    quota = facts.setting("cgroup.cpu_max")
    if quota and not quota.startswith("max"):
        yield finding("warning", "cpu-quota", quota=quota)
    load = facts.setting("load.average")
    if load and load[0] > max(0.5, 0.1 * facts.host.threads):
        yield finding("warning", "load", load=load[0], threads=facts.host.threads)


# --- the machine ------------------------------------------------------------------------------


def kind_of_machine(facts: Facts) -> Iterator[Finding]:
    """An emulated or virtual machine: what its times and nodes are worth."""
    is_emulated, why = emulated(facts.host, facts.state)
    hypervisor = facts.setting("virt.hypervisor")
    if is_emulated:
        yield finding("warning", "emulated-machine", why=why)
    elif hypervisor not in (None, "none"):
        yield finding("warning", "virtual-machine", name=hypervisor)


def what_may_be_used(facts: Facts) -> Iterator[Finding]:
    """CPUs and memory that no binding reaches."""
    host = facts.host
    if host.offline:
        yield finding("note", "offline-cpus", cpus=host.offline)
    online = listed(cpu.number for cpu in host.cpus if cpu.online)
    of_cpus = {cpu.node for cpu in host.cpus if cpu.online and cpu.allowed}
    home = {node for node in facts.by_number if node in of_cpus}
    allowed = set(cpulist.parse(host.allowed.nodes))
    if home and allowed and allowed <= facts.with_cpus - home:
        join = remedy("do-join-cpuset", nodes=listed(home))
        yield finding(
            "warning", "cpuset-all-remote", nodes=home, cpus=host.allowed.cpus, on=listed(home),
            memory=host.allowed.nodes, remedies=[join],
        )  # fmt: skip
    elif host.allowed.cpus != online or host.allowed.nodes != listed(host.node):
        yield finding("note", "cpuset", cpus=host.allowed.cpus, memory=host.allowed.nodes)
    isolated = facts.setting("cpu.isolated")
    if isolated not in (None, "none"):
        yield finding("note", "isolated-cpus", cpus=isolated)


def shape(facts: Facts) -> Iterator[Finding]:
    """Nodes without memory or CPUs, hidden ones, and sizes that contradict each other."""
    host = facts.host
    if facts.doubtful:
        known = host.available_bytes
        yield finding(
            "warning", "nodes-understated", nodes_bytes=facts.nodes_bytes,
            whole=facts.setting("memory.total_bytes"),
            available="" if known is None else reason("available-in-all", size=known),
        )  # fmt: skip
    bare = [node.number for node in host.nodes if node.cpus and node.memory_bytes == 0]
    if bare and len(host.nodes) > 1 and not facts.doubtful:
        yield finding("note", "memory-less", nodes=bare, on=listed(bare))
    with_cpus = {cpu.node for cpu in host.cpus}  # also offline ones
    targets = [n.number for n in host.nodes if n.number not in with_cpus and n.memory_bytes]
    if targets:
        yield finding("note", "cpu-less", nodes=targets, on=listed(targets))
    for size in sorted({node.side_cache_bytes for node in host.nodes if node.side_cache_bytes}):
        behind = [node.number for node in host.nodes if node.side_cache_bytes == size]
        yield finding("note", "side-cache", nodes=behind, on=listed(behind), bytes=size)
    if len(host.nodes) == 1:
        yield from _one_node(facts)


def _one_node(facts: Facts) -> Iterator[Finding]:
    packages = facts.host.packages or 1
    groups = len({cache.cpus for cache in facts.host.caches if cache.level == 3})
    virtual = facts.setting("virt.hypervisor") not in (None, "none")
    if "numa=off" in (facts.setting("kernel.cmdline") or "").split():
        yield finding(
            "note" if packages == 1 or virtual else "warning", "numa-off",
            evidence=[reason("has-packages", packages=packages) if packages > 1 else None],
            remedies=[remedy("do-numa-on")],
        )  # fmt: skip
    elif packages > 1 and not virtual:
        # Elsewhere a kernel may call a cluster of cores a package.
        severity = "warning" if facts.host.arch == "x86_64" else "note"
        yield finding(
            severity, "hidden-nodes", packages=packages, remote=(packages - 1) / packages,
            evidence=[reason("node-interleaving"), reason("when-one-node-is-right")],
            remedies=[remedy("do-show-nodes")],
        )  # fmt: skip
    elif packages > 1 or groups > 1:
        yield finding("note", "single-node", packages=packages, groups=groups)
