"""The catalogue of findings: each with who should see it, and the looks that find them."""

from __future__ import annotations

from typing import Callable, Dict, Iterator, List, Tuple

from . import machine_findings, memory_findings, process_findings
from .findings import SEVERITIES, Facts, Finding

MEASURING = "measuring"  # it can spoil a measurement, or says what bindings there are
HEALTH = "health"  # it costs time whether or not somebody measures

_BOTH = (MEASURING, HEALTH)
CATALOGUE: Dict[str, Tuple[str, ...]] = {
    # the memory of nodes
    "page-cache": _BOTH,
    "node-full": _BOTH,
    "cache-to-reclaim": (MEASURING,),
    "swap-insanity": (HEALTH,),
    "swap-used": (MEASURING,),
    "fragmented": (HEALTH,),
    "hugetlb": (HEALTH,),
    # processes
    "memory-away": (HEALTH,),
    "bound-apart": (HEALTH,),
    "cpuset-apart": (HEALTH,),
    "interleaved": (HEALTH,),
    "bound-to-full": (HEALTH,),
    # settings
    "zone-reclaim": _BOTH,
    "balancing": (HEALTH,),
    "balancing-on": (MEASURING,),
    "swappiness": (HEALTH,),
    "thp-defrag": (HEALTH,),
    "thp-always": (MEASURING,),
    "thp-never": (MEASURING,),
    "governor": _BOTH,
    "governor-varies": (MEASURING,),
    "cpu-quota": (MEASURING,),
    "load": (MEASURING,),
    # the machine
    "emulated-machine": (MEASURING,),
    "virtual-machine": (MEASURING,),
    "offline-cpus": (MEASURING,),
    "isolated-cpus": (MEASURING,),
    "cpuset": _BOTH,
    "nodes-understated": (MEASURING,),
    "memory-less": _BOTH,
    "cpu-less": (MEASURING,),
    "numa-off": (HEALTH,),
    "hidden-nodes": (HEALTH,),
    "single-node": (HEALTH,),
}
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


def codes(audience: str) -> List[str]:
    """Return the codes of the findings for MEASURING or HEALTH."""
    return [code for code, shown in CATALOGUE.items() if audience in shown]


def examine(facts: Facts, audience: str) -> List[Finding]:
    """Return the findings for MEASURING or HEALTH, the severest first."""
    wanted = codes(audience)
    found = [one for look in LOOKS for one in look(facts) if one.code in wanted]
    return sorted(found, key=lambda one: SEVERITIES.index(one.severity))


def healthy(findings: List[Finding]) -> bool:
    """Return whether there is nothing to act on."""
    return all(one.severity == "note" for one in findings)
