"""What each node's memory held before and after: ``/sys/devices/system/node/node*/meminfo``.

Levels in bytes, as the kernel's Documentation/filesystems/proc.rst explains them for
/proc/meminfo: MemFree; FilePages (page cache, shared memory included); AnonPages (of which
AnonHugePages are transparent huge ones); Active(file) and Inactive(file), the page cache that
reclaim may take. They are of the whole host, and the kernel brings them up to date about once a
second (vm.stat_interval) for what each CPU holds back, some hundred pages.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .. import kernel
from ..contract import Row, reason
from ..errors import NotHere
from ..rows import row
from .snapshots import change, nodes, read

SOURCE = "meminfo"
KEPT = ("MemFree", "FilePages", "AnonPages", "AnonHugePages", "Active(file)", "Inactive(file)")
_LEVELS = {"MemFree": "free", "FilePages": "page_cache"}  # also as they were before
_CHANGES = {**_LEVELS, "AnonPages": "anonymous", "AnonHugePages": "anonymous_huge"}


def snapshot(root: str = "/", of: Optional[List[int]] = None) -> Dict[str, Dict[str, int]]:
    """Return the levels of each node (of ``of``, where it is given): ``{"0": {"MemFree": bytes}}``.

    A level that a kernel does not show is left out.
    """
    levels = {}
    for node in nodes(root) if of is None else of:
        shown = kernel.meminfo(read(root, f"{kernel.NODES}/node{node}/meminfo"))
        levels[str(node)] = {name: shown[name] for name in KEPT if name in shown}
    if not levels:
        raise NotHere(reason("no-nodes-in-sysfs"))
    return levels


def metrics(record: Mapping[str, Any]) -> List[Row]:
    """Return, for each node, the changes between the snapshots and what was free and cached before.

    ``free_change``, ``page_cache_change``, ``anonymous_change``, ``anonymous_huge_change``,
    ``free_before``, ``page_cache_before``; bytes, with the point "node N".
    """
    rows = []
    for node, levels in record.items():
        wanted = [(f"{short}_change", name, change) for name, short in _CHANGES.items()]
        wanted += [(f"{short}_before", name, _before) for name, short in _LEVELS.items()]
        for metric, name, of in wanted:
            value = of(levels[name]) if name in levels else None
            why, point = reason("level-not-shown", name=name), f"node {node}"
            rows.append(row(metric, value, "B", why, point=point, x=float(node), source=SOURCE))
    return rows


def _before(pair: Sequence[float]) -> float:
    return float(pair[0])


def levels(snapshot: Mapping[str, Mapping[str, int]]) -> List[Tuple[str, str, float, str]]:
    """Return (metric, point, bytes, unit) of a snapshot: what is free and cached on each node."""
    return [
        (metric, f"node {node}", float(of[name]), "B")
        for node, of in snapshot.items()
        for name, metric in _LEVELS.items()
        if name in of
    ]
