"""/proc/PID/numa_maps: the mappings of a process, and on which nodes their pages are.

Format: the kernel's fs/proc/task_mmu.c show_numa_map() and mm/mempolicy.c mpol_to_str();
Documentation/filesystems/proc.rst. One line per mapping: address (hexadecimal, no prefix),
policy, attributes. A policy's name may hold a space ("weighted interleave:0-1",
"prefer (many):0"). Pages are counted in units of kernelpagesize_kB.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from . import cpulist
from .errors import Fault, ParseError

_LINE = re.compile(
    r"(?P<address>[0-9a-f]{1,16}) "
    r"(?P<policy>default|prefer \(many\)|prefer|bind|weighted interleave|interleave|local)"
    r"(?:=(?P<flags>(?:static|relative|balancing)(?:\|(?:static|relative|balancing))*))?"
    r"(?::(?P<nodes>[\d,\-]*))?"
    r"(?P<rest>(?: .*)?)\Z"
)
# Path prefixes of mappings that have file= and yet are memory of the workload: mm/shmem.c and
# ipc/shm.c name them, POSIX shared memory is in /dev/shm.
_SHARED_MEMORY = ("/SYSV", "/memfd:", "/dev/zero", "/anon_hugepage", "/dev/shm/")
COUNTERS = ("anon", "dirty", "mapped", "mapmax", "swapcache", "active", "writeback")
_FLAG = re.compile(r"heap|huge|stack(?::\d+)?")  # kernels 3.4 to 4.4 name the stack's thread
_OCTAL = re.compile(r"\\([0-7]{3})")


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


class WorkloadMapping(NamedTuple):
    """A mapping whose pages count as the workload's memory."""

    start: str
    policy: str  # as the kernel prints it, with flags and nodes: "bind:0"
    shared: str  # the file's name when it is shared memory, else ""
    bytes_by_node: Dict[int, int]
    huge_bytes: int = 0  # the size of its pages of hugetlbfs


def workload_mappings(text: str) -> Tuple[List[WorkloadMapping], int]:
    """Return the mappings of a numa_maps text that count as workload memory, and mixed bytes.

    Only lines that name a node are looked at, since the others hold no page. Raises Fault for a
    line with pages that does not read as numa_maps.
    """
    found: List[WorkloadMapping] = []
    mixed = 0
    for one in mappings([line for line in text.splitlines() if " N" in line]):
        size = one.page_bytes
        if size is None and one.huge:  # before Linux 3.14: any number would be a guess
            raise Fault(f"numa_maps does not say how large the huge pages at {one.address} are")
        size = size or os.sysconf("SC_PAGE_SIZE")
        file, pages = one.file or "", one.pages
        ours = not file or one.huge or file.startswith(_SHARED_MEMORY)
        if not ours:
            written = one.counters.get("anon", 0)
            if len(pages) == 1:
                pages = {node: min(written, number) for node, number in pages.items()}
            elif written != sum(pages.values()):
                mixed += written * size
                continue
            if not written:
                continue
        nodes = {node: number * size for node, number in pages.items()}
        huge = size if one.huge else 0
        shared = file if ours else ""
        found.append(WorkloadMapping(one.address, one.full_policy, shared, nodes, huge))
    return found, mixed
