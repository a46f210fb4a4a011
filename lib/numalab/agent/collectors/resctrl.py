"""Memory traffic per last-level cache from resctrl, where the host has it mounted (whole host).

``mbm_total_bytes`` and ``mbm_local_bytes`` of each ``mon_data/mon_L3_*`` (the kernel's
Documentation/filesystems/resctrl.rst); with Sub-NUMA Clustering those of ``mon_sub_L3_*``, whose
local is the node. The kernel may print "Unavailable" or "Error" in place of a number. Nothing is
mounted and no monitoring group is made: that would change the host.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

from . import Unavailable, changes, read, row

SOURCE = "resctrl"
FOLDER = "sys/fs/resctrl/mon_data"
COUNTERS = ("mbm_total_bytes", "mbm_local_bytes")


def snapshot(root: str = "/") -> Dict[str, Dict[str, Any]]:
    """Return ``{domain: {counter: bytes or the kernel's word for why not}}``."""
    folder = os.path.join(root, FOLDER)
    if not os.path.isdir(folder):
        raise Unavailable("resctrl is not mounted with monitoring")
    domains: Dict[str, Dict[str, Any]] = {}
    for name in sorted(os.listdir(folder)):
        if not name.startswith("mon_L3_"):
            continue
        parts = sorted(n for n in os.listdir(f"{folder}/{name}") if n.startswith("mon_sub_L3_"))
        for place in [f"{name}/{part}" for part in parts] or [name]:
            values: Dict[str, Any] = {}
            for counter in COUNTERS:
                if not os.path.exists(f"{folder}/{place}/{counter}"):
                    continue
                text = read(root, f"{FOLDER}/{place}/{counter}").strip()
                values[counter] = int(text) if text.isdigit() else text
            if values:
                domains[place] = values
    if not domains:
        raise Unavailable("this processor does not monitor memory bandwidth by resctrl")
    return domains


def difference(before: Dict[str, Any], after: Dict[str, Any]) -> Dict[str, Any]:
    """Return ``{domain: {counter: [before, after]}}`` of what both snapshots hold."""
    return {
        domain: {
            name: [value, after[domain][name]]
            for name, value in values.items()
            if name in after[domain]
        }
        for domain, values in before.items()
        if domain in after
    }


def metrics(record: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return bytes of total, local and remote traffic for each domain."""
    rows = []
    for domain, counters in record.items():
        traffic: Dict[str, Optional[float]] = {}
        for name in COUNTERS:
            pair = counters.get(name)
            value, reason = None, "this processor does not count it"
            if pair:
                words = [word for word in pair if not isinstance(word, int)]
                if words:
                    reason = f"resctrl says {words[0]}"
                elif pair[1] < pair[0]:
                    reason = "the counter was reset in between"
                else:
                    value, reason = changes(pair), None
            traffic[name] = value
            rows.append(row(SOURCE, name, value, "B", point=domain, reason=reason))
        total, local = (traffic[name] for name in COUNTERS)
        if total is None or local is None:
            remote, reason = None, "total or local traffic is unknown"
        elif total < local:  # the two are read one after the other, and some models have errata
            remote, reason = None, "less total than local traffic was counted"
        else:
            remote, reason = total - local, None
        rows.append(row(SOURCE, "mbm_remote_bytes", remote, "B", point=domain, reason=reason))
    return rows
