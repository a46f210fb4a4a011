"""The counters of the memory model that drives an emulated host of the lab with configured timing.

Such a host shows them as the memory of a PCI device (QEMU's ivshmem; the layout is struct page of
lab/timing/timing.h). They are exact, and stand under the names of the hardware counters that they
take the place of. Times are those of the model. The model drives the host's clock only while
something is measured: `switch` starts and stops it, by an instruction that does nothing elsewhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import mmap
import os
import re
import struct
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .. import cpulist
from ..contract import Row
from ..rows import row
from .snapshots import change, pairs

SOURCE = "memory model"
SLOWER = 10  # times as long a trial takes as on a machine, for what the emulator does
_MAGIC = b"numatime"
_BYTES = 1 << 20
_HEAD = struct.Struct("<8s8Q")  # magic; version, vcpus, nodes, on, gave_up, idle_ps, clock_ps, …
_FIRST_CPU, _CPU_BYTES = 512, 512
_MOST_NODES = 16
_CPU = struct.Struct(f"<12Q{2 * _MOST_NODES}Q")
_NAMES = (
    "virtual_ps", "instructions", "loads", "stores", "l1_misses", "l2_misses", "l3_misses",
    "stall_ps", "queue_ps", "transfers", "prefetched", "waits",
)  # fmt: skip
_WORDS_AT, _WORDS_BYTES = 33280, 4096
_VERSION = 1
_LINE = 64
_SWITCH = {True: 1, False: 2}


@functools.cache
def _page(root: str) -> Optional[mmap.mmap]:
    """The counters' page, None where there is none; mapped once."""
    for path in sorted(glob.glob(os.path.join(root, "sys/bus/pci/devices/*/resource2"))):
        with contextlib.suppress(OSError, ValueError), open(path, "r+b") as file:
            page = mmap.mmap(file.fileno(), _BYTES, prot=mmap.PROT_READ)
            if page[: len(_MAGIC)] == _MAGIC and _HEAD.unpack_from(page)[1] == _VERSION:
                return page
    return None


def configuration(root: str = "/") -> Dict[str, str]:
    """Return the timing that this host is configured to, {} where it has none of its own."""
    page = _page(root)
    if page is None:
        return {}
    words = bytes(page[_WORDS_AT : _WORDS_AT + _WORDS_BYTES]).split(b"\0")[0].decode()
    pairs = (word.partition("=") for word in words.split())
    return {key: value for key, _, value in pairs if key != "counters"}


def cache_bytes(root: str = "/") -> Dict[int, int]:
    """Return the sizes of the model's caches by level, {} without a model."""
    words = configuration(root)
    return {n: int(words[f"l{n}"].split("/")[0]) << 10 for n in (1, 2, 3) if f"l{n}" in words}


def switch(on: bool, root: str = "/") -> None:
    """Let the model drive the host's clock, or not; without a model nothing is done.

    The instruction is nopl 0x6e756dXX(%rax), with XX 01 for on and 02 for off.
    """
    if _page(root) is None:
        return
    code = bytes([0x0F, 0x1F, 0x80, _SWITCH[on]]) + b"mun\xc3"  # and return
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as at:
        at.write(code)
        place = ctypes.c_char.from_buffer(at)
        ctypes.CFUNCTYPE(None)(ctypes.addressof(place))()
        del place


def start(root: str = "/") -> Optional[Dict[str, Any]]:
    """Let the model drive the clock; return its counters, None where there is no model."""
    switch(True, root)
    return snapshot(root)


def stop(before: Optional[Dict[str, Any]], cpus: Optional[str], root: str = "/") -> Any:
    """Return the record of a measurement on a cell's CPUs (None: all), and end it."""
    after = snapshot(root)
    switch(False, root)
    if before is None or after is None:
        return None
    return {
        "counters": pairs(before, after),
        "cpus": cpus,
        "instruction_ns": float(configuration(root).get("instruction_ns", 0.2)),
    }


def snapshot(root: str = "/") -> Optional[Dict[str, Any]]:
    """Return the counters: of the host, and of each CPU what it did by memory node."""
    page = _page(root)
    if page is None:
        return None
    copy = bytes(page[:_WORDS_AT])
    _, _, cpus, nodes, _, gave_up, idle_ps, clock_ps, _ = _HEAD.unpack_from(copy)
    found: Dict[str, Any] = {"gave_up": gave_up, "idle_ps": idle_ps, "clock_ps": clock_ps}
    for cpu in range(cpus):
        values = _CPU.unpack_from(copy, _FIRST_CPU + _CPU_BYTES * cpu)
        counters: Dict[str, Any] = dict(zip(_NAMES, values))
        moved = values[len(_NAMES) :]
        counters["read_bytes"] = {str(n): moved[n] for n in range(nodes)}
        counters["written_bytes"] = {str(n): moved[_MOST_NODES + n] for n in range(nodes)}
        found[f"cpu {cpu}"] = counters
    return found


def totals(root: str = "/") -> Dict[str, float]:
    """Return what all CPUs did so far, by which a client's own time can be explained.

    ``near_bytes`` and ``far_bytes`` were read from memory of the CPU's own node and of others. In
    ``idle_ps`` no CPU ran: it waits in real time then, for a disk or for nothing.
    Empty without a model.
    """
    now = snapshot(root)
    if now is None:
        return {}
    cpus = [one for name, one in now.items() if name.startswith("cpu ")]
    each = _cpus_a_node(cpus)
    near = sum(one["read_bytes"][str(n // each)] for n, one in enumerate(cpus))
    return {
        **{name: sum(one[name] for one in cpus) for name in ("instructions", "stall_ps")},
        "idle_ps": now["idle_ps"],
        "near_bytes": near,
        "far_bytes": sum(sum(one["read_bytes"].values()) for one in cpus) - near,
    }


def _cpus_a_node(cpus: Sequence[Mapping[str, Any]]) -> int:
    """Return how many CPUs each node has: the model gives all as many, one after the other."""
    return max(1, len(cpus) // len(cpus[0]["read_bytes"]))


def lost(record: Mapping[str, Any]) -> bool:
    """Tell by a collection's record whether the emulator lost its synchronisation meanwhile."""
    part = record.get(SOURCE)
    return part is not None and change(part["counters"]["gave_up"]) > 0


def metrics(measured: Mapping[str, Any]) -> List[Row]:
    """Return what the cell's CPUs did, and what went between nodes.

    A cycle is the time that the model gives an instruction that waits for nothing.
    """
    record, cpus = measured["counters"], measured["cpus"]
    instruction_ns: float = measured["instruction_ns"]
    every = [int(name[4:]) for name in record if re.fullmatch(r"cpu \d+", name)]
    nodes = [int(node) for node in record["cpu 0"]["read_bytes"]]
    each = _cpus_a_node([record[f"cpu {n}"] for n in every])
    mine = [n for n in every if cpus is None or n in cpulist.parse(cpus)]

    def of(name: str) -> float:
        return sum(change(record[f"cpu {n}"][name]) for n in mine)

    def moved(kind: str, cpu_node: int, node: int) -> float:
        its = [n for n in every if n // each == cpu_node]
        return sum(change(record[f"cpu {n}"][kind][str(node)]) for n in its)

    def read(local: bool) -> float:
        return sum(
            change(record[f"cpu {n}"]["read_bytes"][str(node)])
            for n in mine
            for node in nodes
            if (n // each == node) is local
        )

    busy_ns = of("instructions") * instruction_ns + of("stall_ps") / 1000
    local, remote = read(True) / _LINE, read(False) / _LINE
    rows = [
        row("instructions", of("instructions"), "count", source=SOURCE),
        row("stall_time", of("stall_ps") / 1e12, "s", source=SOURCE),
        row("local_reads", local, "count", source=SOURCE),
        row("remote_reads", remote, "count", source=SOURCE),
        row("remote_reads_share", remote / (local + remote) if local + remote else None, "share",
            "nothing-read", source=SOURCE),
        row("ipc", of("instructions") * instruction_ns / busy_ns if busy_ns else None, "1",
            "nothing-ran", source=SOURCE),
    ]  # fmt: skip
    seconds = change(record["clock_ps"]) / 1e12
    for node in nodes if seconds > 0 else []:
        others = [n for n in nodes if n != node]
        bytes_of = {
            "local_dram_reads": moved("read_bytes", node, node),
            "remote_dram_reads": sum(moved("read_bytes", node, n) for n in others),
            "traffic_to_node": sum(
                moved("read_bytes", node, n) + moved("written_bytes", n, node) for n in others
            ),
            "traffic_from_node": sum(
                moved("read_bytes", n, node) + moved("written_bytes", node, n) for n in others
            ),
        }
        rows += [
            row(name, value / seconds / 1e9, "GB/s", point=f"node {node}", x=float(node),
                source=SOURCE)
            for name, value in bytes_of.items()
        ]  # fmt: skip
    return rows
