"""What each node's memory held before and after: ``/sys/devices/system/node/node*/meminfo``.

Levels in bytes, as the kernel's Documentation/filesystems/proc.rst explains them for
/proc/meminfo: MemFree; FilePages (page cache, shared memory included); AnonPages (of which
AnonHugePages are transparent huge ones); Active(file) and Inactive(file), the page cache that
reclaim may take. They are of the whole host, and the kernel brings them up to date about once a
second (vm.stat_interval) for what each CPU holds back, some hundred pages.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Optional

from . import Unavailable, changes, read, row

SOURCE = "meminfo"
FOLDER = "sys/devices/system/node"
KEPT = ("MemFree", "FilePages", "AnonPages", "AnonHugePages", "Active(file)", "Inactive(file)")
_LINE = re.compile(rf"\b({'|'.join(map(re.escape, KEPT))}):\s+(\d+) kB")
_LEVELS = {"MemFree": "free", "FilePages": "page_cache"}  # also as they were before
_CHANGES = {**_LEVELS, "AnonPages": "anonymous", "AnonHugePages": "anonymous_huge"}


def nodes(root: str = "/") -> List[int]:
    """Return the numbers of the nodes that have memory statistics."""
    try:
        names = os.listdir(os.path.join(root, FOLDER))
    except OSError as error:
        raise Unavailable(f"no NUMA nodes in sysfs ({error.strerror})") from None
    return sorted(int(name[4:]) for name in names if re.fullmatch(r"node\d+", name))


def snapshot(root: str = "/", of: Optional[List[int]] = None) -> Dict[str, Dict[str, int]]:
    """Return the levels of each node (of ``of``, where it is given): ``{"0": {"MemFree": bytes}}``.

    A level that a kernel does not show is left out.
    """
    levels = {}
    for node in nodes(root) if of is None else of:
        found = _LINE.findall(read(root, f"{FOLDER}/node{node}/meminfo"))
        levels[str(node)] = {name: int(number) << 10 for name, number in found}
    if not levels:
        raise Unavailable("no NUMA nodes in sysfs")
    return levels


def difference(before: Dict[str, Any], after: Dict[str, Any]) -> Dict[str, Any]:
    """Return ``{node: {level: [before, after]}}`` of what both snapshots hold."""
    return {
        node: {name: [value, after[node][name]] for name, value in levels.items()}
        for node, levels in before.items()
        if node in after
    }


def metrics(record: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return, for each node, the changes between the snapshots and what was free and cached before.

    ``free_change``, ``page_cache_change``, ``anonymous_change``, ``anonymous_huge_change``,
    ``free_before``, ``page_cache_before``; bytes, with the point "node N".
    """
    rows = []
    for node, levels in record.items():
        wanted = [(f"{_CHANGES[name]}_change", name, changes) for name in _CHANGES]
        wanted += [(f"{_LEVELS[name]}_before", name, lambda pair: pair[0]) for name in _LEVELS]
        for metric, name, of in wanted:
            pair = levels.get(name)
            rows.append(
                row(SOURCE, metric, of(pair) if pair else None, "B", point=f"node {node}",
                    x=float(node), reason=None if pair else f"this kernel shows no {name} by node")
            )  # fmt: skip
    return rows


def samples(levels: Dict[str, Dict[str, int]]) -> List[Any]:
    """Return (metric, point, bytes, unit) of a snapshot: what is free and cached on each node."""
    return [
        (metric, f"node {node}", float(of[name]), "B")
        for node, of in levels.items()
        for name, metric in _LEVELS.items()
        if name in of
    ]
