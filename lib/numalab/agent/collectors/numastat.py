"""Page allocations per node: deltas of ``/sys/devices/system/node/node*/numastat``.

Meaning of the counters, in pages (the kernel's Documentation/admin-guide/numastat.rst):
numa_hit: allocated on the node that was asked for; numa_miss: allocated here although another
node was asked for; numa_foreign: asked for here and allocated elsewhere; interleave_hit: placed
here by an interleave policy; local_node, other_node: asked for by a CPU of this node, of another.
They count the whole host. Before Linux 5.14 a read may lag by up to vm.stat_interval.
"""

from __future__ import annotations

from typing import Any, Dict, List

from . import NODES, Unavailable, changes, changes_by_node, nodes, read, row

SOURCE = "numastat"


def snapshot(root: str = "/") -> Dict[str, Dict[str, int]]:
    """Return the counters of each node: ``{"0": {"numa_hit": pages, …}, …}``."""
    if read(root, "proc/sys/vm/numa_stat", default="1").strip() == "0":
        raise Unavailable("the kernel does not count: vm.numa_stat is 0")
    counters: Dict[str, Dict[str, int]] = {}
    for node in nodes(root):
        text = read(root, f"{NODES}/node{node}/numastat")
        counters[str(node)] = {
            name: int(value) for name, value in map(str.split, text.splitlines())
        }
    return counters


difference = changes_by_node


def metrics(record: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return one row per node and counter: pages counted between the snapshots."""
    return [
        row(SOURCE, name, changes(pair), "pages", point=f"node {node}", x=float(node))
        for node, counters in record.items()
        for name, pair in counters.items()
    ]
