"""Parsers of the kernel's memory counters: meminfo, vmstat, zoneinfo, a node's numastat.

Formats: Documentation/filesystems/proc.rst (meminfo, vmstat, zoneinfo), drivers/base/node.c
(the node's meminfo, vmstat and numastat), mm/vmstat.c (zoneinfo). The kernel's "kB" in meminfo
is 1024 bytes: the unit here is KiB. The kernel does not say which counters of vmstat count pages
and which count events; their unit is null.

Records:

- ``meminfo``: ``name``, ``value``, ``unit`` (KiB, or pages for the HugePages_ counts), ``node``
  (null in /proc/meminfo)
- ``vmstat``: ``name``, ``value``, ``unit`` null
- ``counter`` (node numastat): ``name``, ``value``, ``unit`` pages, ``node`` null (the file does
  not say its node)
- ``zone``: ``node``, ``zone``, ``name``, ``value`` (``protection``: the list as text)
- ``pageset``: ``node``, ``zone``, ``cpu``, ``name``, ``value``
- ``node_statistic``: ``node``, ``name``, ``value`` (zoneinfo's "per-node stats")
"""

from __future__ import annotations

import re

from numalab.agent.contract import Record
from numalab.agent.drivers.reading import refuse

from .lines import Once, filled

COUNTERS = (
    "numa_hit", "numa_miss", "numa_foreign", "interleave_hit", "local_node", "other_node",
)  # fmt: skip
_MEMINFO = re.compile(r"(?:Node\s+(\d+)\s+)?([A-Za-z]\w*(?:\(\w+\))?):\s*(\d+)(?:\s+(kB))?\Z")
_COUNTER = re.compile(r"([a-z]\w*)\s+(-?\d+)\Z")
_ZONE = re.compile(r"Node\s+(\d+),\s+zone\s+(\w+)\Z")
_ZONE_CPU = re.compile(r"cpu: (\d+)(?: pcp: (\d+))?\Z")
_PROTECTION = re.compile(r"protection: \(([\d, -]*)\)\Z")
_ZONE_VALUE = re.compile(r"(pages free|vm stats threshold|[a-z]\w*):?\s+(-?\d+)\Z")
_OF_PAGESET = ("count:", "high:", "low:", "batch:", "vm stats", "high_min:", "high_max:")


def parse_meminfo(text: str) -> list[Record]:
    """Return the records of /proc/meminfo or of one or several nodes' meminfo."""
    out: list[Record] = []
    once = Once("meminfo")
    for line in filled(text, ("cat",)):
        match = _MEMINFO.match(line.text) or refuse(
            "meminfo", line, "this is not a line of meminfo"
        )
        node, name, value, unit = match.groups()
        if not unit and not name.startswith("HugePages_"):
            refuse("meminfo", line, "the unit kB is missing: cut short?")
        record: Record = {"kind": "meminfo", "node": int(node) if node else None, "name": name}
        once.add(line, (record["node"], name), name)
        out.append({**record, "value": int(value), "unit": "KiB" if unit else "pages"})
    return out or refuse("meminfo", None, "it is empty")


def parse_vmstat(text: str) -> list[Record]:
    """Return the records of /proc/vmstat or of a node's vmstat."""
    return [{"kind": "vmstat", **pair, "unit": None} for pair in _pairs(text, "vmstat")]


def parse_node_numastat(text: str) -> list[Record]:
    """Return the records of /sys/devices/system/node/nodeN/numastat."""
    pairs = _pairs(text, "numastat")
    if tuple(pair["name"] for pair in pairs) != COUNTERS:
        refuse("numastat", None, f"a node's numastat has the lines {', '.join(COUNTERS)}")
    return [{"kind": "counter", **pair, "unit": "pages", "node": None} for pair in pairs]


def _pairs(text: str, tool: str) -> list[Record]:
    out: list[Record] = []
    once = Once(tool)
    for line in filled(text, ("cat",)):
        match = _COUNTER.match(line.text) or refuse(
            tool, line, "this is not a counter's name and its value"
        )
        once.add(line, match[1], match[1])
        out.append({"name": match[1], "value": int(match[2])})
    return out or refuse(tool, None, "it is empty")


def parse_zoneinfo(text: str) -> list[Record]:
    """Return the records of /proc/zoneinfo."""
    out: list[Record] = []
    once = Once("zoneinfo")
    where: Record = {}  # the node and the zone
    cpu: int | None = None  # whose pageset it is
    of_node = False
    for line in filled(text, ("cat",)):
        row = line.text
        zone, its_cpu, protection = _ZONE.match(row), _ZONE_CPU.match(row), _PROTECTION.match(row)
        if zone:
            where = {"node": int(zone[1]), "zone": zone[2]}
            once.add(line, (where["node"], where["zone"]), "this zone")
            cpu, of_node = None, False
        elif not where:
            refuse("zoneinfo", line, "this belongs to no zone")
        elif row in ("per-node stats", "pagesets"):
            of_node = row != "pagesets"
        elif its_cpu:
            cpu, of_node = int(its_cpu[1]), False
        elif protection:
            out.append({"kind": "zone", **where, "name": "protection", "value": protection[1]})
        else:
            match = _ZONE_VALUE.match(row) or refuse(
                "zoneinfo", line, "this is not a counter of a zone"
            )
            name, value = match[1], int(match[2])
            if name == "pages free":
                name, of_node, cpu = "free", False, None
            record = {"name": name, "value": value}
            if of_node:
                out.append({"kind": "node_statistic", "node": where["node"], **record})
            elif cpu is not None and row.startswith(_OF_PAGESET):
                out.append({"kind": "pageset", **where, "cpu": cpu, **record})
            else:
                cpu = None
                out.append({"kind": "zone", **where, **record})
    return out or refuse("zoneinfo", None, "it holds no zone")
