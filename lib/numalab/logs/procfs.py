"""Parsers of the kernel's memory counters: meminfo, vmstat, zoneinfo, a node's numastat.

Formats: Documentation/filesystems/proc.rst (meminfo, vmstat, zoneinfo), drivers/base/node.c
(the node's meminfo, vmstat and numastat), mm/vmstat.c (zoneinfo). The kernel's "kB" in meminfo
is 1024 bytes: the unit here is KiB. Counters of vmstat that count pages are not told from those
that count events by the kernel; their unit is null.

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
from typing import List, Optional

from ..agent.drivers.reading import Record, lines, refuse

NAME = "procfs"

_MEMINFO = re.compile(r"(?:Node\s+(\d+)\s+)?([A-Za-z]\w*(?:\(\w+\))?):\s*(\d+)(?:\s+(kB))?\Z")
_VMSTAT = re.compile(r"([a-z]\w*)\s+(-?\d+)\Z")
_NUMASTAT = (
    "numa_hit", "numa_miss", "numa_foreign", "interleave_hit", "local_node", "other_node",
)  # fmt: skip
_ZONE = re.compile(r"Node\s+(\d+),\s+zone\s+(\w+)\Z")
_ZONE_VALUE = re.compile(r"(pages free|vm stats threshold|[a-z]\w*):?\s+(-?\d+)\Z")


def parse_meminfo(text: str) -> List[Record]:
    """Return the records of /proc/meminfo or of one or several nodes' meminfo."""
    out: List[Record] = []
    seen = set()
    for line in lines(text, ("cat",)):
        row = line.text.strip()
        if not row:
            continue
        match = _MEMINFO.match(row)
        if not match:
            refuse("meminfo", line, "this is not a line of meminfo")
        node = int(match.group(1)) if match.group(1) else None
        name, value, unit = match.group(2), int(match.group(3)), match.group(4)
        if not unit and not name.startswith("HugePages_"):
            refuse("meminfo", line, "the unit kB is missing: cut short?")
        if (node, name) in seen:
            refuse("meminfo", line, f"{name} a second time")
        seen.add((node, name))
        unit = "KiB" if unit else "pages"
        out.append({"kind": "meminfo", "node": node, "name": name, "value": value, "unit": unit})
    if not out:
        refuse("meminfo", None, "it is empty")
    return out


def parse_vmstat(text: str) -> List[Record]:
    """Return the records of /proc/vmstat or of a node's vmstat."""
    return _pairs(text, "vmstat", None)


def parse_node_numastat(text: str) -> List[Record]:
    """Return the records of /sys/devices/system/node/nodeN/numastat."""
    records = _pairs(text, "counter", "pages")
    names = tuple(record["name"] for record in records)
    if names != _NUMASTAT:
        refuse("numastat", None, f"a node's numastat has the lines {', '.join(_NUMASTAT)}")
    return [{**record, "node": None} for record in records]


def _pairs(text: str, kind: str, unit: Optional[str]) -> List[Record]:
    tool = "numastat" if kind == "counter" else kind
    out: List[Record] = []
    seen = set()
    for line in lines(text, ("cat",)):
        row = line.text.strip()
        if not row:
            continue
        match = _VMSTAT.match(row)
        if not match:
            refuse(tool, line, "this is not a counter's name and its value")
        name = match.group(1)
        if name in seen:
            refuse(tool, line, f"{name} a second time")
        seen.add(name)
        out.append({"kind": kind, "name": name, "value": int(match.group(2)), "unit": unit})
    if not out:
        refuse(tool, None, "it is empty")
    return out


def parse_zoneinfo(text: str) -> List[Record]:
    """Return the records of /proc/zoneinfo."""
    out: List[Record] = []
    seen = set()
    node = zone = cpu = None
    per_node = False
    for line in lines(text, ("cat",)):
        row = line.text.strip()
        if not row:
            continue
        match = _ZONE.match(row)
        if match:
            node, zone, cpu, per_node = int(match.group(1)), match.group(2), None, False
            if (node, zone) in seen:
                refuse("zoneinfo", line, "this zone a second time")
            seen.add((node, zone))
            continue
        if node is None:
            refuse("zoneinfo", line, "this belongs to no zone")
        if row == "per-node stats":
            per_node = True
            continue
        if row == "pagesets":
            per_node = False
            continue
        match = re.fullmatch(r"cpu: (\d+)(?: pcp: (\d+))?", row)
        if match:
            cpu, per_node = int(match.group(1)), False
            continue
        match = re.fullmatch(r"protection: \(([\d, -]*)\)", row)
        where: Record = {"node": node, "zone": zone}
        if match:
            out.append({"kind": "zone", **where, "name": "protection", "value": match.group(1)})
            continue
        match = _ZONE_VALUE.match(row)
        if not match:
            refuse("zoneinfo", line, "this is not a counter of a zone")
        name, value = match.group(1), int(match.group(2))
        if name == "pages free":
            name, per_node, cpu = "free", False, None
        if per_node:
            out.append({"kind": "node_statistic", "node": node, "name": name, "value": value})
            continue
        if cpu is not None and row.startswith(("count:", "high:", "low:", "batch:", "vm stats",
                                               "high_min:", "high_max:")):  # fmt: skip
            out.append({"kind": "pageset", **where, "cpu": cpu, "name": name, "value": value})
            continue
        cpu = None
        out.append({"kind": "zone", **where, "name": name, "value": value})
    if not out:
        refuse("zoneinfo", None, "it holds no zone")
    return out


def parse(text: str) -> List[Record]:
    """Return the records of whichever of these files the text is, told by its first line."""
    for line in lines(text, ("cat",)):
        row = line.text.strip()
        if not row:
            continue
        if _ZONE.match(row):
            return parse_zoneinfo(text)
        if _MEMINFO.match(row):
            return parse_meminfo(text)
        if row.split()[0] == "numa_hit" and "nr_" not in text:
            return parse_node_numastat(text)
        if _VMSTAT.match(row):
            return parse_vmstat(text)
        refuse(NAME, line, "this begins none of meminfo, vmstat, zoneinfo and a node's numastat")
    refuse(NAME, None, "it is empty")
