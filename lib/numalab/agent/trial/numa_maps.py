"""Parser of /proc/PID/numa_maps.

Format: the kernel's fs/proc/task_mmu.c show_numa_map() and mm/mempolicy.c mpol_to_str();
Documentation/filesystems/proc.rst. One line per mapping: address (hexadecimal, no prefix),
policy, attributes. A policy's name may hold a space ("weighted interleave:0-1",
"prefer (many):0"). Pages are counted in units of kernelpagesize_kB.

Records:

- ``mapping``: ``address`` (text, hexadecimal), ``policy`` (name), ``policy_flags`` (static,
  relative, balancing or null), ``policy_nodes`` (list format or null), ``file`` (or null), the
  flags ``heap``, ``stack``, ``huge`` (true/false), every counter of the line (``anon``, ``dirty``,
  ``mapped``, ``mapmax``, ``swapcache``, ``active``, ``writeback``: pages, null when the line has
  none), ``page_bytes`` (null with ``reason`` where the kernel does not say), ``pages`` (the sum
  over the nodes)
- ``node_pages``, one per mapping and node: ``address``, ``node``, ``pages``, ``page_bytes``,
  ``value`` (bytes; null with ``reason`` when the page size is not known), ``unit`` B
"""

from __future__ import annotations

import re
from typing import Dict, List, Optional

from .. import cpulist
from ..drivers.reading import Line, Record, lines, refuse
from ..errors import Fault

NAME = "numa_maps"

_LINE = re.compile(
    r"(?P<address>[0-9a-f]{1,16}) "
    r"(?P<policy>default|prefer \(many\)|prefer|bind|weighted interleave|interleave|local)"
    r"(?:=(?P<flags>(?:static|relative|balancing)(?:\|(?:static|relative|balancing))*))?"
    r"(?::(?P<nodes>[\d,\-]*))?"
    r"(?P<rest>(?: .*)?)\Z"
)
_COUNTERS = ("anon", "dirty", "mapped", "mapmax", "swapcache", "active", "writeback")
_OCTAL = re.compile(r"\\([0-7]{3})")
_NO_SIZE = "the kernel does not print kernelpagesize_kB for this mapping"


def parse(text: str) -> List[Record]:
    """Return the records of every mapping; ParseError for any other line."""
    out: List[Record] = []
    seen = set()
    sized = "kernelpagesize_kB=" in text
    for line in lines(text, ("cat", "numa_maps")):
        if not line.text.strip():
            continue
        match = _LINE.match(line.text.strip())
        if not match:
            refuse(NAME, line, "this is not a mapping with its memory policy")
        address = match.group("address")
        if address in seen:
            refuse(NAME, line, "a mapping at this address a second time")
        seen.add(address)
        records = _mapping(line, match)
        if sized and records[0]["page_bytes"] is None and len(records) > 1:
            refuse(NAME, line, "the size of its pages is missing: cut short?")
        out.extend(records)
    if not out:
        refuse(NAME, None, "it holds no mapping")
    return out


def _mapping(line: Line, match: re.Match[str]) -> List[Record]:
    nodes = match.group("nodes")
    if nodes is not None:
        try:
            nodes = cpulist.format(cpulist.parse(nodes))
        except Fault as fault:
            refuse(NAME, line, fault.what)
    record: Record = {
        "kind": "mapping", "address": match.group("address"), "policy": match.group("policy"),
        "policy_flags": match.group("flags"), "policy_nodes": nodes, "file": None,
        "heap": False, "stack": False, "huge": False, **dict.fromkeys(_COUNTERS),
    }  # fmt: skip
    pages: Dict[int, int] = {}
    page_bytes: Optional[int] = None
    for word in match.group("rest").split():
        name, equals, value = word.partition("=")
        if not equals and name in ("heap", "stack", "huge"):
            record[name] = True
            continue
        if not equals and re.fullmatch(r"stack:\d+", name):
            record["stack"] = True  # kernels 3.4 to 4.4 name the thread
            continue
        if equals and name == "file" and value:
            record["file"] = _OCTAL.sub(lambda m: chr(int(m.group(1), 8)), value)
            continue
        if not re.fullmatch("[0-9]+", value):
            refuse(NAME, line, f"{word!r} is not an attribute of a mapping")
        node = re.fullmatch("N([0-9]+)", name)
        if name in _COUNTERS and record[name] is None:
            record[name] = int(value)
        elif name == "kernelpagesize_kB" and page_bytes is None and int(value) > 0:
            page_bytes = int(value) * 1024
        elif node and int(node.group(1)) not in pages:
            pages[int(node.group(1))] = int(value)
        else:
            refuse(NAME, line, f"{word!r} is unknown, or there a second time")
    record.update(page_bytes=page_bytes, pages=sum(pages.values()))
    if pages and page_bytes is None:
        record["reason"] = _NO_SIZE
    out = [record]
    for node_number, count in pages.items():
        cell: Record = {
            "kind": "node_pages", "address": record["address"], "node": node_number,
            "pages": count, "page_bytes": page_bytes,
            "value": None if page_bytes is None else count * page_bytes, "unit": "B",
        }  # fmt: skip
        if page_bytes is None:
            cell["reason"] = _NO_SIZE
        out.append(cell)
    return out
