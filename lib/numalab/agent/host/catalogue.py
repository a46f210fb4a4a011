"""The catalogue of findings: each with who should see it, and the looks that find them."""

from __future__ import annotations

from typing import Callable, Iterator, List, Tuple

from . import machine_findings, memory_findings, process_findings
from .findings import SEVERITIES, Facts, Finding

MEASURING = (  # what can spoil a measurement, or says what bindings there are
    "page-cache", "node-full", "cache-to-reclaim", "swap-used", "zone-reclaim", "balancing-on",
    "thp-always", "thp-never", "governor", "governor-varies", "cpu-quota", "load",
    "emulated-machine", "virtual-machine", "offline-cpus", "isolated-cpus", "cpuset",
    "cpuset-all-remote", "nodes-understated", "memory-less", "cpu-less", "side-cache",
)  # fmt: skip
HEALTH = (  # what costs time whether or not somebody measures
    "page-cache", "node-full", "swap-insanity", "fragmented", "hugetlb", "memory-away",
    "bound-apart", "cpuset-apart", "interleaved", "bound-to-full", "zone-reclaim", "balancing",
    "swappiness", "thp-defrag", "governor", "cpuset", "cpuset-all-remote", "memory-less",
    "numa-off", "hidden-nodes", "single-node",
)  # fmt: skip
LOOKS: Tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    machine_findings.kind_of_machine,
    machine_findings.what_may_be_used,
    machine_findings.shape,
    memory_findings.full_of_cache,
    memory_findings.swapping,
    process_findings.memory_away,
    process_findings.bound_to_full,
    memory_findings.fragmented,
    memory_findings.hugetlb,
    machine_findings.memory_settings,
    machine_findings.huge_page_settings,
    machine_findings.processor_settings,
)


def examine(facts: Facts, wanted: Tuple[str, ...]) -> List[Finding]:
    """Return the findings with these codes (MEASURING or HEALTH), the severest first."""
    found = [one for look in LOOKS for one in look(facts) if one.code in wanted]
    return sorted(found, key=lambda one: SEVERITIES.index(one.severity))


def healthy(findings: List[Finding]) -> bool:
    """Return whether there is nothing to act on."""
    return all(one.severity == "note" for one in findings)
