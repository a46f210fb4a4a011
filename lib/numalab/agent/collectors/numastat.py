"""Page allocations per node: deltas of ``/sys/devices/system/node/node*/numastat``.

Meaning of the counters, in pages (the kernel's Documentation/admin-guide/numastat.rst):
numa_hit: allocated on the node that was asked for; numa_miss: allocated here although another
node was asked for; numa_foreign: asked for here and allocated elsewhere; interleave_hit: placed
here by an interleave policy; local_node, other_node: asked for by a CPU of this node, of another.
They count the whole host. Before Linux 5.14 a read may lag by up to vm.stat_interval.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping

from .. import kernel
from ..contract import Row, reason
from ..errors import NotHere
from ..rows import row
from .snapshots import change, nodes, read

SOURCE = "numastat"


def snapshot(root: str = "/") -> Dict[str, Dict[str, int]]:
    """Return the counters of each node: ``{"0": {"numa_hit": pages, …}, …}``."""
    if kernel.read_text(os.path.join(root, "proc/sys/vm/numa_stat")) == "0":
        raise NotHere(reason("numa-stat-off"))
    return {
        str(node): kernel.counters(read(root, f"{kernel.NODES}/node{node}/numastat"))
        for node in nodes(root)
    }


def metrics(record: Mapping[str, Any]) -> List[Row]:
    """Return one row per node and counter: pages counted between the snapshots."""
    return [
        row(name, change(pair), "pages", point=f"node {node}", x=float(node), source=SOURCE)
        for node, counters in record.items()
        for name, pair in counters.items()
    ]
