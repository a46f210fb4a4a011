"""What the kernel's memory management did: deltas of ``/proc/vmstat`` (whole host).

The raw record keeps every counter of faults, migration, huge pages, reclaim and compaction that
the kernel has. Those of METRICS and MORE become rows; a kernel that lacks one of METRICS, whose
names have been stable, gives a row without a value. What they count is in the kernel's
Documentation/admin-guide/mm/{transhuge,numaperf}.rst and mm/vmstat.c; pages unless it is events.
"""

from __future__ import annotations

from typing import Any, Dict, List

from . import Unavailable, changes, read, row

SOURCE = "vmstat"
_KEPT = (
    "numa_", "pgfault", "pgmajfault", "pgmigrate_", "thp_", "zone_reclaim", "pgscan", "pgsteal",
    "compact", "allocstall", "kswapd", "pageoutrun", "pswp", "oom_kill", "pgdemote", "pgpromote",
    "htlb_", "workingset_", "drop_", "pginodesteal", "slabs_scanned",
)  # fmt: skip
METRICS = (
    "pgfault",
    "pgmajfault",
    "pgmigrate_success",
    "pgmigrate_fail",
    "numa_pte_updates",
    "numa_hint_faults",
    "numa_hint_faults_local",
    "numa_pages_migrated",
    "thp_fault_alloc",
    "thp_fault_fallback",
    "zone_reclaim_success",
    "zone_reclaim_failed",
    "pgscan_direct",
    "pgscan_kswapd",
    "pgsteal_direct",
    "pgsteal_kswapd",
    "compact_stall",
    "oom_kill",
)
# Since schema 2 of a collection's record. Kernels come and go with these: no row for an absent one.
MORE = (
    "numa_huge_pte_updates",
    "pgsteal_file",
    "pgsteal_anon",
    "pgscan_file",
    "pgscan_anon",
    "pswpin",
    "pswpout",
    "workingset_refault_file",
    "workingset_refault_anon",
    "workingset_activate_file",
    "allocstall_normal",
    "allocstall_movable",
    "pageoutrun",
    "compact_fail",
    "compact_success",
    "thp_collapse_alloc",
    "thp_split_page",
    "thp_migration_success",
    "thp_swpout",
    "drop_pagecache",
)


def snapshot(root: str = "/") -> Dict[str, int]:
    """Return the counters of interest by name."""
    counters = {}
    for line in read(root, "proc/vmstat").splitlines():
        name, _, value = line.partition(" ")
        if name.startswith(_KEPT):
            counters[name] = int(value)
    if not counters:
        raise Unavailable("/proc/vmstat holds none of the counters")
    return counters


def difference(before: Dict[str, int], after: Dict[str, int]) -> Dict[str, List[int]]:
    """Return ``{counter: [before, after]}`` of what both snapshots hold."""
    return {name: [value, after[name]] for name, value in before.items() if name in after}


def metrics(record: Dict[str, Any], schema: int = 2) -> List[Dict[str, Any]]:
    """Return one row for each of METRICS, and of MORE where there is one: counted in between.

    ``schema`` is that of the collection's record: one of schema 1 gives the rows that it always
    gave.
    """
    rows = [
        row(SOURCE, name, changes(record[name]), "count")
        if name in record
        else row(SOURCE, name, None, "count", reason="this kernel has no such counter")
        for name in METRICS
    ]
    more = [name for name in MORE if name in record] if schema > 1 else []
    return rows + [row(SOURCE, name, changes(record[name]), "count") for name in more]
