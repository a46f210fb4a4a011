"""Parser of /proc/PID/numa_maps.

Format: the kernel's fs/proc/task_mmu.c show_numa_map() and mm/mempolicy.c mpol_to_str();
Documentation/filesystems/proc.rst. One line per mapping: address (hexadecimal, no prefix),
policy, attributes. A policy's name may hold a space ("weighted interleave:0-1",
"prefer (many):0"). Pages are counted in units of kernelpagesize_kB.

``parse`` gives, for a captured text, the records

- ``mapping``: the fields of ``Mapping``, every one of COUNTERS (null when the line has none) and
  ``pages``, the sum over the nodes; ``reason`` where pages are there and their size is not
- ``node_pages``, one per mapping and node: ``address``, ``node``, ``pages``, ``page_bytes``,
  ``value`` (bytes; null with ``reason`` when the page size is not known), ``unit`` B
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, Optional, Sequence

from .. import cpulist
from ..contract import Record
from ..drivers.reading import lines as captured_lines
from ..errors import Fault, ParseError

_LINE = re.compile(
    r"(?P<address>[0-9a-f]{1,16}) "
    r"(?P<policy>default|prefer \(many\)|prefer|bind|weighted interleave|interleave|local)"
    r"(?:=(?P<flags>(?:static|relative|balancing)(?:\|(?:static|relative|balancing))*))?"
    r"(?::(?P<nodes>[\d,\-]*))?"
    r"(?P<rest>(?: .*)?)\Z"
)
COUNTERS = ("anon", "dirty", "mapped", "mapmax", "swapcache", "active", "writeback")
_FLAG = re.compile(r"heap|huge|stack(?::\d+)?")  # kernels 3.4 to 4.4 name the stack's thread
_OCTAL = re.compile(r"\\([0-7]{3})")
_NO_SIZE = "the kernel does not print kernelpagesize_kB for this mapping"


@dataclass
class Mapping:
    """One mapping of a process: its policy and where its pages are."""

    address: str  # hexadecimal
    policy: str
    policy_flags: Optional[str] = None  # static, relative, balancing
    policy_nodes: Optional[str] = None  # in list format
    file: Optional[str] = None
    heap: bool = False
    stack: bool = False
    huge: bool = False  # of hugetlbfs
    counters: Dict[str, int] = field(default_factory=dict)  # pages, those of COUNTERS in the line
    page_bytes: Optional[int] = None  # None where the kernel does not say (before Linux 3.14)
    pages: Dict[int, int] = field(default_factory=dict)  # by node

    @property
    def full_policy(self) -> str:
        """The policy as the kernel prints it: bind=static:0."""
        flags = f"={self.policy_flags}" if self.policy_flags else ""
        return self.policy + flags + (f":{self.policy_nodes}" if self.policy_nodes else "")


def parse(text: str) -> List[Record]:
    """Return the records of a captured text; ParseError for a line that is no mapping."""
    records: List[Record] = []
    rows = [line.text for line in captured_lines(text, ("cat", "numa_maps"))]
    found = list(mappings(rows))
    _refuse_cut_paths(found, rows, whole=text.endswith("\n"))
    for one in found:
        size, pages = one.page_bytes, one.pages
        unsized = {"reason": _NO_SIZE} if pages and size is None else {}
        plain = {name: value for name, value in vars(one).items() if name != "counters"}
        counters = {name: one.counters.get(name) for name in COUNTERS}
        total = sum(pages.values())
        records.append({"kind": "mapping", **plain, **counters, "pages": total, **unsized})
        for node, count in pages.items():
            value = None if size is None else count * size
            records.append(
                {"kind": "node_pages", "address": one.address, "node": node, "pages": count,
                 "page_bytes": size, "value": value, "unit": "B", **unsized}
            )  # fmt: skip
    if not records:
        raise ParseError("numa_maps", 0, "", "it holds no mapping")
    return records


def _refuse_cut_paths(found: Sequence[Mapping], rows: Sequence[str], whole: bool) -> None:
    """Refuse a path that was cut: nothing follows it, as in a line of a file without pages.

    It is cut where the text ends with it, without an end of line, and where the same file's next
    or previous mapping has more of it.
    """
    for at, one in enumerate(found):
        if not one.file or one.pages or one.counters:
            continue
        near = [other.file for other in (*found[max(0, at - 1) : at], *found[at + 1 : at + 2])]
        if (at == len(found) - 1 and not whole) or any(
            path and path.startswith(one.file) and path[len(one.file) :] not in ("", " (deleted)")
            for path in near
        ):
            number, row = next((n, r) for n, r in enumerate(rows, 1) if one.address in r[:17])
            raise ParseError("numa_maps", number, row, "the line is cut within its path")


def mappings(lines: Sequence[str]) -> Iterator[Mapping]:
    """Yield every mapping; ParseError for a line that is none. Empty lines are passed over."""
    seen = set()
    sized = any("kernelpagesize_kB=" in line for line in lines)  # else a kernel before 3.14
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue

        def refuse(why: str, at: int = number, text: str = line) -> ParseError:
            return ParseError("numa_maps", at, text, why)

        match = _LINE.match(line.strip())
        if not match:
            raise refuse("this is not a mapping with its memory policy")
        if match["address"] in seen:
            raise refuse("a mapping at this address a second time")
        seen.add(match["address"])
        try:
            found = _mapping(match)
        except ValueError as why:
            raise refuse(str(why)) from None
        if found.pages and sized and found.page_bytes is None:
            raise refuse("the size of its pages is missing: cut short?")
        yield found


def _mapping(match: re.Match[str]) -> Mapping:
    """Return the mapping of a line; ValueError says what is wrong with it."""
    nodes = match["nodes"]
    if nodes is not None:
        try:
            nodes = cpulist.format(cpulist.parse(nodes))
        except Fault as fault:
            raise ValueError(fault.what) from None
    found = Mapping(match["address"], match["policy"], match["flags"], nodes)
    for word in match["rest"].split():
        name, equals, value = word.partition("=")
        if not equals and _FLAG.fullmatch(name):
            setattr(found, name.partition(":")[0], True)
        elif name == "file" and value:
            found.file = _OCTAL.sub(lambda octal: chr(int(octal[1], 8)), value)
        elif re.fullmatch("[0-9]+", value):
            _count(found, word, name, int(value))
        else:
            raise ValueError(f"{word!r} is not an attribute of a mapping")
    return found


def _count(found: Mapping, word: str, name: str, value: int) -> None:
    node = re.fullmatch("N([0-9]+)", name)
    if name in COUNTERS and name not in found.counters:
        found.counters[name] = value
    elif name == "kernelpagesize_kB" and found.page_bytes is None and value > 0:
        found.page_bytes = value * 1024
    elif node and int(node[1]) not in found.pages:
        found.pages[int(node[1])] = value
    else:
        raise ValueError(f"{word!r} is unknown, or there a second time")
