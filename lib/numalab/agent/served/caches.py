"""Data that are large beside a host's caches, so that a server reads memory: "4x-llc"."""

from __future__ import annotations

from ..contract import Host
from ..drivers import options as check
from ..plan.kinds import any_cpus

FOUR_CACHES = "4x-llc"
TIMES_CACHES = 4  # what STREAM's run rules ask of an array: then little of it is in a cache
_LEAST_DATA, _UNKNOWN_CACHES = 256 << 20, 256 << 20
_OF_A_NODE = 4  # the data are at most one part in so many of the smallest node's memory


def four_caches(host: Host) -> int:
    """Return four times the last-level caches of a host in bytes.

    That is 256 MiB at least, and never more than a quarter of the host's smallest node.
    """
    caches = check.caches(host, any_cpus(host))
    sizes = (host.node[n].memory_bytes for n in host.memory_nodes if n in host.cpus_of)
    wanted = TIMES_CACHES * (caches.last or _UNKNOWN_CACHES)
    if caches.hidden:
        wanted = max(wanted, TIMES_CACHES * _UNKNOWN_CACHES)
    return min([max(wanted, _LEAST_DATA), *(size // _OF_A_NODE for size in sizes if size)])
