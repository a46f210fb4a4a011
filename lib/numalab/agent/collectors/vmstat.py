"""What the kernel's memory management did: deltas of ``/proc/vmstat`` (whole host).

The raw record keeps every counter of faults, migration, huge pages, reclaim and compaction that
the kernel has. Those of METRICS and MORE become rows; a kernel that lacks one of METRICS, whose
names have been stable, gives a row without a value. What they count is in the kernel's
Documentation/admin-guide/mm/{transhuge,numaperf}.rst and mm/vmstat.c; pages unless it is events.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from .. import kernel
from ..contract import Row, reason
from ..errors import NotHere
from ..rows import row
from .snapshots import change

SOURCE = "vmstat"
_KEPT = (
    "numa_", "pgfault", "pgmajfault", "pgmigrate_", "thp_", "zone_reclaim", "pgscan", "pgsteal",
    "compact", "allocstall", "kswapd", "pageoutrun", "pswp", "oom_kill", "pgdemote", "pgpromote",
    "htlb_", "workingset_", "drop_", "pginodesteal", "slabs_scanned",
)  # fmt: skip
METRICS = (
    "pgfault", "pgmajfault", "pgmigrate_success", "pgmigrate_fail", "numa_pte_updates",
    "numa_hint_faults", "numa_hint_faults_local", "numa_pages_migrated", "thp_fault_alloc",
    "thp_fault_fallback", "zone_reclaim_success", "zone_reclaim_failed", "pgscan_direct",
    "pgscan_kswapd", "pgsteal_direct", "pgsteal_kswapd", "compact_stall", "oom_kill",
)  # fmt: skip
# Kernels come and go with these: no row for an absent one.
MORE = (
    "numa_huge_pte_updates", "pgsteal_file", "pgsteal_anon", "pgscan_file", "pgscan_anon",
    "pswpin", "pswpout", "workingset_refault_file", "workingset_refault_anon",
    "workingset_activate_file", "allocstall_normal", "allocstall_movable", "pageoutrun",
    "compact_fail", "compact_success", "thp_collapse_alloc", "thp_split_page",
    "thp_migration_success", "thp_swpout", "drop_pagecache",
)  # fmt: skip


def snapshot(root: str = "/") -> Dict[str, int]:
    """Return the counters of interest by name."""
    counters = {k: number for k, number in kernel.vmstat(root).items() if k.startswith(_KEPT)}
    if not counters:
        raise NotHere(reason("vmstat-empty"))
    return counters


def metrics(record: Mapping[str, Any]) -> List[Row]:
    """Return one row for each of METRICS, and of MORE where there is one: counted in between."""
    names = [*METRICS, *(name for name in MORE if name in record)]
    return [
        row(name, change(record[name]) if name in record else None, "count", "counter-not-known",
            source=SOURCE)
        for name in names
    ]  # fmt: skip
