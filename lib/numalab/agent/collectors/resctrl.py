"""Memory traffic per last-level cache from resctrl, where it is mounted (whole host).

``mbm_total_bytes`` and ``mbm_local_bytes`` of each ``mon_data/mon_L3_*`` (the kernel's
Documentation/filesystems/resctrl.rst); with Sub-NUMA Clustering those of ``mon_sub_L3_*``, whose
local is the node. The kernel may print "Unavailable" or "Error" in place of a number. No
monitoring group is made; a run that may change the host mounts it (trial/host_changes.py).

Not tried on hardware: none of the machines at hand monitors memory bandwidth.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .. import kernel
from ..contract import Reason, Row, reason
from ..errors import NotHere
from ..rows import row
from .snapshots import change

SOURCE = "resctrl"
FOLDER = "sys/fs/resctrl/mon_data"
COUNTERS = ("mbm_total_bytes", "mbm_local_bytes")
_RATES = {"local_traffic": "mbm_local_bytes", "traffic_to_node": "mbm_remote_bytes"}


def worth_mounting(root: str = "/") -> bool:
    """Return whether resctrl would count traffic between nodes here, were it mounted."""
    flags = re.search(r"^flags\s*:(.*)$", kernel.read_text(f"{root}/proc/cpuinfo") or "", re.M)
    counts = flags is not None and {"cqm_mbm_local", "cqm_mbm_total"} <= set(flags[1].split())
    return counts and len(kernel.list_nodes(root)) > 1


def snapshot(root: str = "/") -> Dict[str, Dict[str, Any]]:
    """Return ``{domain: {counter: bytes or the kernel's word for why not}}``."""
    folder = os.path.join(root, FOLDER)
    if not os.path.isdir(folder):
        raise NotHere(reason("resctrl-not-mounted"))
    domains: Dict[str, Dict[str, Any]] = {}
    for name in sorted(kernel.list_folder(folder)):
        if not name.startswith("mon_L3_"):
            continue
        inside = sorted(kernel.list_folder(f"{folder}/{name}"))
        parts = [f"{name}/{part}" for part in inside if part.startswith("mon_sub_L3_")]
        for place in parts or [name]:
            texts = {one: kernel.read_text(f"{folder}/{place}/{one}") for one in COUNTERS}
            values = {
                one: int(text) if text.isdigit() else text for one, text in texts.items() if text
            }
            if values:
                domains[place] = values
    if not domains:
        raise NotHere(reason("resctrl-counts-nothing"))
    return domains


def metrics(record: Mapping[str, Any], seconds: Optional[float] = None) -> List[Row]:
    """Return bytes of total, local and remote traffic for each domain, and what came in GB/s from
    its own node and from others, in the seconds between the snapshots."""
    rows = []
    for domain, counters in record.items():
        found = {name: _counted(counters.get(name)) for name in COUNTERS}
        total, local = (value for value, _ in found.values())
        if total is None or local is None:
            found["mbm_remote_bytes"] = None, reason("traffic-unknown")
        elif total < local:  # the two are read one after the other, and some models have errata
            found["mbm_remote_bytes"] = None, reason("less-total-than-local")
        else:
            found["mbm_remote_bytes"] = total - local, None
        rows += [
            row(name, value, "B", why, point=domain, source=SOURCE)
            for name, (value, why) in found.items()
        ]
        for name, of in _RATES.items():
            value, why = found[of]
            if seconds:
                rate = None if value is None else value / seconds / 1e9
                rows.append(row(name, rate, "GB/s", why, point=domain, source=SOURCE))
    return rows


def _counted(pair: Optional[List[Any]]) -> Tuple[Optional[float], Optional[Reason]]:
    """Return what a counter counted between the snapshots, or None and why."""
    if not pair:
        return None, reason("traffic-not-counted")
    words = [word for word in pair if not isinstance(word, int)]
    if words:
        return None, reason("resctrl-says", word=words[0])
    if pair[1] < pair[0]:
        return None, reason("counter-reset")
    return change(pair), None
