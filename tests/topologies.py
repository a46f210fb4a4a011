"""Hand-made topologies: the dict that ``topology.read`` returns, without a sysfs tree on disk.

    topology(nodes=2, cores=4, threads=2)                    # two sockets, SMT by offset
    topology(nodes=4, sockets=2, cores=8, adjacent=True)     # siblings have adjacent numbers

Then change what the test is about, with ``offline``, ``limit`` or by hand.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Optional, Sequence

from hypothesis import strategies as st

from numalab.agent import cpulist

GIB = 1 << 30


def topology(
    nodes: int = 2,
    cores: int = 4,
    threads: int = 1,
    sockets: Optional[int] = None,
    *,
    numbers: Optional[Sequence[int]] = None,
    adjacent: bool = False,
    memory_gib: float = 16,
    far: int = 20,
    cache_mib: int = 16,
) -> Dict[str, Any]:
    """Return a host with ``cores`` per node; ``numbers`` are the nodes' own (default 0, 1, …).

    The CPU numbers of a node are its first threads, then (after those of all nodes) its second;
    with ``adjacent`` the siblings have adjacent numbers. Nodes of a socket are at distance 12.
    """
    numbers = list(numbers if numbers is not None else range(nodes))
    sockets = nodes if sockets is None else sockets
    package = {number: i * sockets // nodes for i, number in enumerate(numbers)}
    total = nodes * cores
    cpus = []
    for core in range(total):
        node = numbers[core // cores]
        its = [core * threads + t if adjacent else core + t * total for t in range(threads)]
        for thread, number in enumerate(its):
            cpus.append(
                {
                    "cpu": number, "online": True, "node": node, "package": package[node],
                    "die": 0, "cluster": None, "core": core % cores, "l3": core // cores,
                    "siblings": cpulist.format(its), "thread": thread, "allowed": True,
                }
            )  # fmt: skip
    cpus.sort(key=lambda cpu: cpu["cpu"])
    result = {
        "schema": 1, "root": "/hand-made", "arch": "x86_64", "model": "Test CPU", "vendor": None,
        "packages": sockets, "dies": sockets, "clusters": None, "cores": total,
        "threads": total * threads, "threads_per_core": threads, "cpus": cpus,
        "nodes": [
            {
                "node": n, "memory_bytes": int(memory_gib * GIB),
                "free_bytes": int(memory_gib * GIB * 0.75),
                "page_cache_bytes": int(memory_gib * GIB * 0.125),
                "distances": {
                    str(m): 10 if m == n else 12 if package[m] == package[n] else far
                    for m in numbers
                },
                "hugepages": [], "allowed_memory": True,
            }
            for n in numbers
        ],
        "pci": [], "offline": "", "possible": None, "available_bytes": None, "problems": [],
    }  # fmt: skip
    _derive(result)
    result["caches"] = [
        {"level": 3, "type": "Unified", "size_bytes": cache_mib << 20, "cpus": node["cpus"]}
        for node in result["nodes"]
    ]
    return result


def offline(host: Dict[str, Any], cpus: Iterable[int]) -> Dict[str, Any]:
    """Take CPUs offline in place: as the kernel does, they also leave their siblings' lists."""
    gone = set(cpus)
    for cpu in host["cpus"]:
        cpu["online"] = cpu["online"] and cpu["cpu"] not in gone
        left = [n for n in cpulist.parse(cpu["siblings"]) if n not in gone]
        cpu["siblings"] = cpulist.format(left) if cpu["online"] else ""
    return _derive(host)


def limit(host: Dict[str, Any], cpus: str, nodes: str) -> Dict[str, Any]:
    """Put this process into a cpuset, in place."""
    allowed = set(cpulist.parse(cpus))
    for cpu in host["cpus"]:
        cpu["allowed"] = cpu["cpu"] in allowed
    for node in host["nodes"]:
        node["allowed_memory"] = node["node"] in cpulist.parse(nodes)
    return _derive(host)


def _derive(host: Dict[str, Any]) -> Dict[str, Any]:
    for node in host["nodes"]:
        its = [c["cpu"] for c in host["cpus"] if c["online"] and c["node"] == node["node"]]
        node["cpus"] = cpulist.format(its)
    host["offline"] = cpulist.format(c["cpu"] for c in host["cpus"] if not c["online"])
    host["allowed"] = {
        "cpus": cpulist.format(c["cpu"] for c in host["cpus"] if c["allowed"]),
        "nodes": cpulist.format(n["node"] for n in host["nodes"] if n["allowed_memory"]),
    }
    return host


@st.composite
def hosts(draw: st.DrawFn) -> Dict[str, Any]:
    """A random host: odd node numbers, offline CPUs, bare nodes, cpusets, missing distances."""
    numbers = sorted(draw(st.sets(st.integers(0, 40), min_size=1, max_size=5)))
    host = topology(
        len(numbers),
        cores=draw(st.integers(1, 4)),
        threads=draw(st.sampled_from([1, 2, 4])),
        sockets=draw(st.integers(1, len(numbers))),
        numbers=numbers,
        adjacent=draw(st.booleans()),
    )
    every = [cpu["cpu"] for cpu in host["cpus"]]
    for node in host["nodes"]:
        kind = draw(st.sampled_from(["plain", "plain", "plain", "no memory", "no cpus", "unread"]))
        if kind == "no memory":
            node.update(memory_bytes=0, free_bytes=0, page_cache_bytes=0)
        elif kind == "unread":
            node.update(memory_bytes=None, free_bytes=None, page_cache_bytes=None)
        elif kind == "no cpus":
            gone = node["node"]
            host["cpus"] = [cpu for cpu in host["cpus"] if cpu["node"] != gone]
        if draw(st.integers(0, 9)) == 0:
            node["distances"] = {}
        else:
            for other in numbers:
                if other != node["node"]:
                    node["distances"][str(other)] = draw(st.sampled_from([12, 20, 32]))
    offline(host, draw(st.sets(st.sampled_from(every), max_size=len(every) - 1)))
    if draw(st.integers(0, 2)) == 0:
        cpus = draw(st.sets(st.sampled_from(every), min_size=1))
        nodes = draw(st.sets(st.sampled_from(numbers), min_size=1))
        limit(host, cpulist.format(cpus), cpulist.format(nodes))
    return _derive(host)
