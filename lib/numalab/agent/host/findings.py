"""What can be found wrong with a host: a finding, its remedies, and the facts that it stands on."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Iterable, List, Optional, Set, Tuple

from ..contract import Host, Reason, State
from .state import value
from .survey import ByNode, NodeUse, ProcessUse, Survey

SEVERITIES = ("problem", "warning", "note")
FULL, NEARLY_FULL, CACHED = 0.05, 0.10, 0.30  # shares of a node's memory
AWAY_BYTES, AWAY_SHARE = 64 << 20, 0.2
_SPILLS_NOW, _SPILLS_SHARE = 256, 0.05  # allocations between two looks

# What to type, by the code of its effect (whose sentence, with the risk, is in words/host.py).
REMEDIES = {
    "do-reclaim-node": "echo '{mib}M swappiness=0' > /sys/devices/system/node/node{node}/reclaim",
    "do-drop-caches": "sync; echo 1 > /proc/sys/vm/drop_caches",
    "do-bind-program": "numactl --cpunodebind={node} --membind={node} PROGRAM",
    "do-reclaim-at-home": "sysctl -w vm.zone_reclaim_mode={mode}",
    "do-zone-reclaim-0": "sysctl -w vm.zone_reclaim_mode=0",
    "do-interleave": "numactl --interleave=all PROGRAM",
    "do-swap-less": "sysctl -w vm.swappiness=1",
    "do-migrate-to-free-node": "migratepages PID {node} {to}",
    "do-migrate": "migratepages {pid} {nodes} {to}",
    "do-migrate-some": "migratepages {pid} {nodes} {to}",
    "do-migrate-another": "migratepages OTHER-PID {nodes} {to}",
    "do-edit-service": "systemctl edit {unit}",
    "do-start-bound": "numactl --cpunodebind={nodes} --membind={nodes} {name} …",
    "do-start-preferred": "numactl --cpunodebind={nodes} --preferred={node} {name} …",
    "do-start-interleaved": "numactl --cpunodebind={nodes} --interleave={over} {name} …",
    "do-compact": "echo 1 > /sys/devices/system/node/node{node}/compact",
    "do-governor": "cpupower frequency-set -g performance",
    "do-balancing-off": "sysctl -w kernel.numa_balancing=0",
    "do-defrag-madvise": "echo madvise > /sys/kernel/mm/transparent_hugepage/defrag",
    "do-hugetlb": "echo N > /sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/"
    "nr_hugepages",
    "do-join-cpuset": "echo {nodes} > /sys/fs/cgroup/GROUP/cpuset.mems",
    "do-numa-on": "remove numa=off from the kernel's command line and reboot",
    "do-show-nodes": "switch Node Interleaving off (NUMA on; AMD: NPS1) in the firmware's setup",
}


@dataclass(frozen=True)
class Remedy:
    """What to type, and what that does, with its risk."""

    command: str
    effect: Reason


@dataclass(frozen=True)
class Finding:
    """Something about a host that a person should know.

    ``severity``: "problem" (it costs time now), "warning" (it will, as soon as somebody allocates
    or the load returns) or "note" (good to know; nothing to act on by itself).
    """

    severity: str
    what: Reason
    evidence: Tuple[Reason, ...] = ()
    remedies: Tuple[Remedy, ...] = ()
    nodes: Tuple[int, ...] = ()
    pids: Tuple[int, ...] = ()

    @property
    def code(self) -> str:
        """Which of the catalogue's findings it is."""
        return self.what.code


def finding(
    severity: str,
    code: str,
    *,
    evidence: Iterable[Optional[Reason]] = (),
    remedies: Iterable[Optional[Remedy]] = (),
    nodes: Iterable[int] = (),
    pids: Iterable[int] = (),
    **fields: Any,
) -> Finding:
    """Return a finding; evidence and remedies that are None are left out."""
    return Finding(
        severity, Reason(code, fields), tuple(one for one in evidence if one),
        tuple(one for one in remedies if one), tuple(sorted(nodes)), tuple(pids),
    )  # fmt: skip


def remedy(code: str, **fields: Any) -> Remedy:
    """Return one of REMEDIES."""
    return Remedy(REMEDIES[code].format(**fields), Reason(code, fields))


class Facts:
    """What was read of a host, and what several findings ask of it."""

    def __init__(self, host: Host, state: State, survey: Survey) -> None:
        self.host, self.state, self.survey = host, state, survey
        self.nodes: List[NodeUse] = [node for node in survey.nodes if node.memory_bytes]
        self.by_number = {node.number: node for node in self.nodes}
        self.with_cpus = {node.number for node in host.nodes if node.cpus}
        self.processes: List[ProcessUse] = [one for one in survey.processes if one.memory]

    def setting(self, name: str) -> Any:
        """Return the value of a setting; None where it is unknown."""
        return value(self.state, name)

    @property
    def nodes_bytes(self) -> int:
        """The memory of all nodes, as far as it is known."""
        return sum(node.memory_bytes or 0 for node in self.host.nodes)

    @property
    def doubtful(self) -> bool:
        """Whether the nodes' memory adds up to something else than the whole (by 10 % or more)."""
        return any(one.code == "memory-disagrees" for one in self.host.problems)

    @functools.cached_property
    def mglru(self) -> bool:
        """Whether the multi-generational LRU reclaims (bit 0, admin-guide/mm/multigen_lru.rst)."""
        text = self.setting("vm.lru_gen") or "0"
        try:
            return bool(int(text, 16) & 1)
        except ValueError:
            return bool(text == "y")

    def now(self, counter: str) -> int:
        """Return how often the kernel counted something while the survey was made."""
        return self.survey.vmstat_now.get(counter, 0)

    def since_boot(self, counter: str) -> int:
        """Return how often the kernel counted something since boot."""
        return self.survey.vmstat.get(counter, 0)

    def room(self, node: NodeUse) -> Optional[int]:
        """Return what a node can still give before another is used."""
        return node.free_bytes if node.room_bytes is None else node.room_bytes

    def room_share(self, node: NodeUse) -> Optional[float]:
        """Return that as a share of the node's memory."""
        room = self.room(node)
        return None if room is None or not node.memory_bytes else room / node.memory_bytes

    def droppable(self, node: NodeUse) -> int:
        """Return page cache that can be dropped at once; some of it may be mapped and stay."""
        return max(0, (node.page_cache_bytes or 0) - (node.dirty_bytes or 0))

    def available(self, node: NodeUse) -> Optional[int]:
        """Return room and what reclaim can give: page cache and slab, as MemAvailable does."""
        room = self.room(node)
        if room is None:
            return None
        return room + self.droppable(node) + (node.slab_reclaimable_bytes or 0) // 2

    def pooled(self, number: int) -> Tuple[int, int]:
        """Return the bytes of a node's hugetlb pools: all of them, and the free ones."""
        pools = self.host.node[number].hugepages
        return (
            sum(pool.size_bytes * (pool.total or 0) for pool in pools),
            sum(pool.size_bytes * (pool.free or 0) for pool in pools),
        )

    def with_room(self, besides: int) -> List[int]:
        """Return the nodes that take what another cannot, the nearest first."""
        others = [
            node.number
            for node in self.nodes
            if node.number != besides and (self.room_share(node) or 0) > NEARLY_FULL
        ]
        distances = self.host.node[besides].distances
        return sorted(others, key=lambda other: (distances.get(other, 1 << 20), other))

    def spills_now(self, node: NodeUse) -> int:
        """Return the pages meant for a node that others gave meanwhile; 0: too few to matter."""
        foreign = node.numastat_now.get("numa_foreign", 0)
        asked = node.numastat_now.get("numa_hit", 0) + foreign
        return foreign if foreign >= max(_SPILLS_NOW, _SPILLS_SHARE * asked) else 0


def outside(memory: Optional[ByNode], nodes: Set[int]) -> int:
    """Return the bytes that are on other nodes than these."""
    return sum(size for node, size in (memory or {}).items() if node not in nodes)
