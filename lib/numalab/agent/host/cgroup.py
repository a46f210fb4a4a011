"""What the control groups of this process allow, and whether they held it back (cgroups(7)).

Both versions are read: ``cpu.max``, ``memory.max`` and ``memory.high`` of version 2
(Documentation/admin-guide/cgroup-v2.rst), ``cpu.cfs_quota_us`` and ``memory.limit_in_bytes`` of
version 1. A limit of a group holds for all groups below it, so every group from this process's own
up to the mount is asked. Cpusets are read by ``topology``: the kernel gives them in
/proc/self/status.
"""

from __future__ import annotations

import os
import posixpath
from typing import Iterator, List, Optional, Tuple

from .. import kernel

_USUAL = kernel.Mount("/sys/fs/cgroup", "cgroup2", ())  # where a copied tree does not say
_NO_LIMIT = 1 << 60  # version 1 writes the largest multiple of a page


def cpu_time(root: str = "/") -> Optional[float]:
    """Return how many CPUs' worth of time this process may use; None: as many as it has."""
    found = []
    for folder in _folders(root, "cpu"):
        quota, _, period = (kernel.read_text(f"{folder}/cpu.max") or "").partition(" ")
        if not quota:
            quota = kernel.read_text(f"{folder}/cpu.cfs_quota_us") or ""
            period = kernel.read_text(f"{folder}/cpu.cfs_period_us") or ""
        allowed, every = kernel.integer(quota if quota.isdigit() else None), kernel.integer(period)
        if allowed and every:
            found.append(allowed / every)
    return min(found, default=None)


def memory_left(root: str = "/") -> Optional[int]:
    """Return the bytes that this process can still get under its limits; None without a limit.

    The page cache that its groups hold is counted as free: the kernel drops it at the limit.
    """
    found = []
    for folder in _folders(root, "memory"):
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory.high", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            most = kernel.read_int(f"{folder}/{limit}")  # None for "max"
            if most is None or most >= _NO_LIMIT:
                continue
            stat = kernel.counters(kernel.read_text(f"{folder}/memory.stat"))
            first = "total_" if "total_inactive_file" in stat else ""
            cache = sum(stat.get(f"{first}{name}_file", 0) for name in ("active", "inactive"))
            found.append(max(0, most - (kernel.read_int(f"{folder}/{used}") or 0) + cache))
    return min(found, default=None)


def throttled(root: str = "/") -> Optional[int]:
    """Return how often this process's groups were stopped for using up their CPU time, or None."""
    counts = [
        kernel.counters(kernel.read_text(f"{folder}/cpu.stat")).get("nr_throttled")
        for folder in _folders(root, "cpu")
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def mounts(root: str) -> Iterator[Tuple[str, str, str]]:
    """Yield (controllers, folder of the mount, this process's path below it) of every hierarchy.

    Version 2 has the controllers "".
    """
    own = kernel.own_groups(root)
    for mount in kernel.mounts(root) or [_USUAL]:
        folder = os.path.join(root, mount.place.lstrip("/"))
        if mount.kind == "cgroup2" and "" in own:
            yield "", folder, own[""]
        elif mount.kind == "cgroup":
            for controller in mount.options:
                if controller in own:
                    yield controller, folder, own[controller]


def _folders(root: str, controller: str) -> List[str]:
    """The folders of this process's groups that may limit it, its own first."""
    found = []
    for name, mount, path in mounts(root):
        if name not in ("", controller):
            continue
        path = posixpath.normpath(path)  # above the namespace's root it begins with /..
        while path.strip("/"):
            found.append(mount + path)
            path = posixpath.dirname(path)
        found.append(mount)
    return found
