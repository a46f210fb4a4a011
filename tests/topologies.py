"""Hand-made hosts: the ``Host`` that ``topology.read`` returns, without a sysfs tree on disk.

    topology(nodes=2, cores=4, threads=2)                    # two sockets, SMT by offset
    topology(nodes=4, sockets=2, cores=8, adjacent=True)     # siblings have adjacent numbers

Then change what the test is about: ``offline``, ``limit``, ``with_node``, ``with_cpu`` and
``without_cpus`` return a new host; other fields go by ``dataclasses.replace``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Iterable, Optional, Sequence

from hypothesis import strategies as st

from numalab.agent import cpulist
from numalab.agent.contract import Allowed, Cache, Cpu, Host, Node

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
) -> Host:
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
        cpus += [
            Cpu(
                number=number, online=True, node=node, package=package[node], die=0, cluster=None,
                core=core % cores, siblings=cpulist.format(its), thread=thread, allowed=True,
                l3=core // cores,
            )
            for thread, number in enumerate(its)
        ]  # fmt: skip
    host = Host(
        root="/hand-made", arch="x86_64", model="Test CPU", vendor=None,
        packages=sockets, dies=sockets, clusters=None, cores=total, threads=total * threads,
        threads_per_core=threads,
        cpus=tuple(sorted(cpus, key=lambda cpu: cpu.number)),
        nodes=tuple(
            Node(
                number=n, cpus="", memory_bytes=int(memory_gib * GIB),
                free_bytes=int(memory_gib * GIB * 0.75),
                page_cache_bytes=int(memory_gib * GIB * 0.125),
                distances={
                    m: 10 if m == n else 12 if package[m] == package[n] else far for m in numbers
                },
            )
            for n in numbers
        ),
        caches=(), pci=(), allowed=Allowed("", ""), offline="", possible=None,
        available_bytes=None,
    )  # fmt: skip
    host = _derive(host)
    caches = tuple(Cache(3, "Unified", cache_mib << 20, node.cpus) for node in host.nodes)
    return replace(host, caches=caches)


def offline(host: Host, cpus: Iterable[int]) -> Host:
    """Return the host with these CPUs offline: they also leave their siblings' lists."""
    gone = set(cpus)

    def changed(cpu: Cpu) -> Cpu:
        online = cpu.online and cpu.number not in gone
        left = [n for n in cpulist.parse(cpu.siblings) if n not in gone]
        return replace(cpu, online=online, siblings=cpulist.format(left) if online else "")

    return _derive(replace(host, cpus=tuple(map(changed, host.cpus))))


def limit(host: Host, cpus: str, nodes: str) -> Host:
    """Return the host as a process in this cpuset sees it."""
    allowed, memory = set(cpulist.parse(cpus)), set(cpulist.parse(nodes))
    return _derive(
        replace(
            host,
            cpus=tuple(replace(cpu, allowed=cpu.number in allowed) for cpu in host.cpus),
            nodes=tuple(replace(n, allowed_memory=n.number in memory) for n in host.nodes),
        )
    )


def with_node(host: Host, number: int, **changes: Any) -> Host:
    """Return the host with fields of one node changed."""
    nodes = (replace(n, **changes) if n.number == number else n for n in host.nodes)
    return replace(host, nodes=tuple(nodes))


def with_cpu(host: Host, number: int, **changes: Any) -> Host:
    """Return the host with fields of one CPU changed."""
    cpus = (replace(cpu, **changes) if cpu.number == number else cpu for cpu in host.cpus)
    return _derive(replace(host, cpus=tuple(cpus)))


def without_cpus(host: Host, node: int) -> Host:
    """Return the host with a node that has no CPUs."""
    return _derive(replace(host, cpus=tuple(cpu for cpu in host.cpus if cpu.node != node)))


def _derive(host: Host) -> Host:
    """What follows from the CPUs and nodes."""
    nodes = tuple(
        replace(
            node,
            cpus=cpulist.format(
                cpu.number for cpu in host.cpus if cpu.online and cpu.node == node.number
            ),
        )
        for node in host.nodes
    )
    return replace(
        host,
        nodes=nodes,
        offline=cpulist.format(cpu.number for cpu in host.cpus if not cpu.online),
        allowed=Allowed(
            cpus=cpulist.format(cpu.number for cpu in host.cpus if cpu.allowed),
            nodes=cpulist.format(node.number for node in nodes if node.allowed_memory),
        ),
    )


@st.composite
def hosts(draw: st.DrawFn) -> Host:
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
    every = [cpu.number for cpu in host.cpus]
    for node in host.nodes:
        kind = draw(st.sampled_from(["plain", "plain", "plain", "no memory", "no cpus", "unread"]))
        if kind == "no cpus":
            host = without_cpus(host, node.number)
        elif kind != "plain":
            size = 0 if kind == "no memory" else None
            sizes = {"memory_bytes": size, "free_bytes": size, "page_cache_bytes": size}
            host = with_node(host, node.number, **sizes)
        kinds = {"tier": draw(st.sampled_from([None, 4, 22])), "weight": draw(st.integers(1, 3))}
        host = with_node(host, node.number, **kinds)
        distances = {}
        if draw(st.integers(0, 9)):
            distances = {
                m: 10 if m == node.number else draw(st.sampled_from([12, 20, 32])) for m in numbers
            }
        host = with_node(host, node.number, distances=distances)
    host = offline(host, draw(st.sets(st.sampled_from(every), max_size=len(every) - 1)))
    if draw(st.integers(0, 2)) == 0:
        cpus = draw(st.sets(st.sampled_from(every), min_size=1))
        nodes = draw(st.sets(st.sampled_from(numbers), min_size=1))
        host = limit(host, cpulist.format(cpus), cpulist.format(nodes))
    return host
