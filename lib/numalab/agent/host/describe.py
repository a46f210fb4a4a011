"""A host in words: what a person should see before anything is measured, and the tools at hand."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import textwrap
from contextlib import nullcontext
from typing import Dict, List, Optional, Sequence, Set, Tuple

from .. import cpulist
from ..contract import SCHEMA, Host, Json, Node, State, to_json
from ..words import units
from . import catalogue, state, survey, topology
from . import tools as tools_module
from .findings import Facts, Finding
from .state import value
from .tools import Tool

MARKS = {"problem": "✗", "warning": "⚠", "note": "–"}
_ASCII = str.maketrans(
    {"·": "|", "×": "x", "✓": "+", "⚠": "!", "✗": "X", "–": "-", "…": "...", "→": "->", "°": ""}
)


def read(root: str) -> Facts:
    """Return what a person should see of the machine below ``root``; Fault where there is none.

    Processes are not looked at, and nothing is read twice: it is quick.
    """
    host = topology.read(root)
    return Facts(host, state.read(root), survey.read_nodes(host))


def run(root: str, as_json: bool, width: int, more: tools_module.Questions = dict) -> str:
    """Return the machine below ``root`` as text for a terminal, or as JSON: shape and state.

    The text of this machine tells which programs are here, also those of ``more()``.
    """
    live = os.path.realpath(root) == "/"
    with tools_module.Search(more) if live and not as_json else nullcontext() as search:
        facts = read(root)
        tools = search.answers() if search else []
    if not as_json:
        return text(facts, tools, width)
    named = {"host": platform.node() if live else None}
    return json.dumps({**named, **as_record(facts)}, indent=2, ensure_ascii=False)


def as_record(facts: Facts) -> Dict[str, Json]:
    """Return shape and state of a host, and whether it is emulated, as JSON."""
    emulated, why = state.emulated(facts.host, facts.state)
    return {
        "schema": SCHEMA, "emulated": emulated, "emulated_why": to_json(why),
        "topology": to_json(facts.host), "state": to_json(facts.state),
    }  # fmt: skip


def warnings(facts: Facts) -> List[Finding]:
    """Return everything about this host that can spoil a measurement, the severest first."""
    return catalogue.examine(facts, catalogue.MEASURING)


def text(facts: Facts, tools: Sequence[Tool], width: int = 100) -> str:
    """Return the host as lines of at most ``width`` columns (60 or more), for a terminal.

    ``tools`` are empty for a machine that is only a copied tree. Only ASCII is used where
    standard output cannot show more.
    """
    width = max(60, width)
    found = warnings(facts)
    filled = [one for one in found if one.code in ("page-cache", "node-full", "cache-to-reclaim")]
    full = {node for one in filled for node in one.nodes}
    lines = headline(facts, width)
    lines += _node_table(facts.host.nodes, full, width)
    lines += _labelled("caches", _cache_words(facts.host), width)
    lines += device_lines(facts.host, width)
    lines += setting_lines(facts.state, width)
    for one in found:
        lines += marked(MARKS[one.severity], str(one.what), width)
    for problem in facts.host.problems:
        if problem.code != "memory-disagrees":  # it is a warning above
            lines += marked("–", str(problem), width)
    if tools:
        lines += _join([_tool_words(tool) for tool in tools], "   ", width)
    return printable("\n".join(lines))


def printable(words: str) -> str:
    """Return the text as standard output can show it: in ASCII where it knows no more."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    if encoding in ("utf8", "utf16", "utf32"):
        return words
    return words.translate(_ASCII).encode("ascii", "replace").decode("ascii")


# --- the headline -----------------------------------------------------------------------------


def headline(facts: Facts, width: int) -> List[str]:
    """Return a host's first lines: processors, cores, nodes, memory, system."""
    host, settings = facts.host, facts.state
    parts = [f"{'?' if host.packages is None else host.packages} × {_short_model(host)}"]
    if host.arch not in (None, "x86_64"):
        parts.append(str(host.arch))
    if host.cores == host.threads:
        parts.append(_count(host.threads, "core"))
    else:
        threads = _count(host.threads, "hardware thread")
        parts.append(f"{_count(host.cores, 'core')}, {threads}")
    mode = value(settings, "numa.mode")
    nodes = _count(len(host.nodes), "node")
    parts.append(f"{nodes} ({mode})" if mode and mode != "SNC off" else nodes)
    total = value(settings, "memory.total_bytes") if facts.doubtful else facts.nodes_bytes
    if total:
        parts.append(units.size(total))
    kernel = value(settings, "kernel.release")
    system = [value(settings, "os.release"), f"kernel {kernel}" if kernel else None]
    parts.append(", ".join(words for words in system if words))
    return _join([part for part in parts if part], " · ", width)


def _count(count: Optional[int], noun: str) -> str:
    return f"? {noun}s" if count is None else units.count(count, noun)


def _short_model(host: Host) -> str:
    filler = (
        r"\((?:R|TM|tm|architected)\)|\s+\d+-Core Processor|\bCPU\b|\bProcessor\b|@.*|, altivec.*"
    )
    model = re.sub(filler, " ", host.model or host.vendor or "unknown processor")
    return " ".join(model.split())


# --- the table of nodes -----------------------------------------------------------------------

_FIXED = 30  # columns of the table but for CPUs and distances


def gib(count: Optional[int]) -> str:
    """Return bytes for a column of a table: GiB with one digit after the point."""
    return "?" if count is None else f"{count / 2**30:.1f} G" if count else "none"


def _node_table(nodes: Sequence[Node], full: Set[int], width: int) -> List[str]:
    """The nodes with their distances: as a matrix, or by value where that is too wide."""
    cells = [[str(node.distances.get(to.number, "?")) for to in nodes] for node in nodes]
    digits = max(len(cell) for row in cells for cell in row)
    unknown = "unknown" if len(nodes) > 1 else "–"
    shown = [" ".join(cell.rjust(digits) for cell in row) for row in cells]
    longest = max(len(node.cpus) for node in nodes)
    if _FIXED + min(longest, 24) + len(shown[0]) > width:
        shown = [_grouped(node) for node in nodes]
    shown = [text if node.distances else unknown for node, text in zip(nodes, shown)]
    room = max(12, width - _FIXED - max(len("distances"), min(24, max(map(len, shown)))))
    column = max(4, min(longest, room))
    lines = [f"node   {'CPUs':<{column}}  {'memory':>8}  {'free  ':>10} distances"]
    for node, distances in zip(nodes, shown):
        free = gib(node.free_bytes) + (" ⚠" if node.number in full else "  ")
        cpus = _short_list(node.cpus, room)
        row = f"{node.number:>4}   {cpus:<{column}}  {gib(node.memory_bytes):>8}  {free:>10} "
        lines += textwrap.wrap(row + distances, width, subsequent_indent=" " * len(row))
    return [line.replace("\xa0", " ") for line in lines]


def _short_list(listed: str, room: int) -> str:
    """A CPU list that fits: its beginning and how many CPUs it names."""
    if len(listed) <= room:
        return listed or "none"
    count = f"… ({len(cpulist.parse(listed))})"
    return listed[: max(0, room - len(count))].rpartition(",")[0] + "," + count


def _grouped(node: Node) -> str:
    """Distances by value, for rows that are too long: 10: 0, 20: 1-7, 40: 8-15."""
    groups: Dict[int, List[int]] = {}
    for number, distance in node.distances.items():
        groups.setdefault(distance, []).append(number)
    return ", ".join(
        f"{distance}:\xa0{cpulist.format(groups[distance])}" for distance in sorted(groups)
    )


# --- labelled lines ---------------------------------------------------------------------------


def _cache_words(host: Host) -> List[str]:
    kinds: Dict[Tuple[int, str, int], List[int]] = {}
    for cache in host.caches:
        if cache.type != "Instruction":
            key = (cache.level, cache.type, cache.size_bytes or 0)
            kinds.setdefault(key, []).append(len(cpulist.parse(cache.cpus)))
    words = []
    for (level, kind, size), shared in sorted(kinds.items()):
        letter = "d" if kind == "Data" and level == 1 else ""
        few, many = min(shared), max(shared)
        each = f"{few}" if few == many else f"{few}-{many}"
        word = f"L{level}{letter} {units.size(size) if size else '?'} × {len(shared)}"
        words.append(word + (f" ({each} threads each)" if many > 1 else ""))
    return words


def device_lines(host: Host, width: int) -> List[str]:
    """Return the devices with their nodes as lines, where there are several nodes."""
    words = [
        f"{' '.join(device.names)}: {'no node' if device.node is None else f'node {device.node}'}"
        for device in host.pci
        if device.names and device.kind in ("network", "storage", "gpu")
    ]
    return _labelled("devices", words if len(host.nodes) > 1 else [], width)


_SETTINGS = (
    ("governor", "cpu.governor"),
    ("turbo", "cpu.turbo"),
    ("SMT", "cpu.smt"),
    ("THP", "thp.enabled"),
    ("numa_balancing", "kernel.numa_balancing"),
    ("zone_reclaim_mode", "vm.zone_reclaim_mode"),
    ("swappiness", "vm.swappiness"),
    ("clock", "clock.source"),
)


def setting_lines(settings: State, width: int) -> List[str]:
    """Return the settings that matter for placement as lines."""
    found = [(label, value(settings, name)) for label, name in _SETTINGS]
    words = [
        f"{label} {word.replace('not', 'not ') if label == 'SMT' else word}"
        for label, word in found
        if word is not None
    ]
    return _labelled("settings", words, width)


def _tool_words(tool: Tool) -> str:
    words = f"{tool.name} {tool.version or ''}".strip()
    if tool.usable:
        return f"✓ {words}" + (f" ({tool.why})" if tool.why else "")
    return f"– {words}: {tool.why}"


# --- lines ------------------------------------------------------------------------------------


def _labelled(label: str, words: Sequence[str], width: int) -> List[str]:
    """A label and what belongs to it; further lines begin below the first word."""
    if not words:
        return []
    start = f"{label:<8}   "
    lines = _join(words, " · ", width - len(start))
    return [(start if not index else " " * len(start)) + line for index, line in enumerate(lines)]


def _join(words: Sequence[str], between: str, width: int) -> List[str]:
    """Words in lines that break only between words, unless one alone is too long."""
    lines = [""]
    for word in words:
        if not lines[-1]:
            lines[-1] = word
        elif len(lines[-1]) + len(between) + len(word) > width:
            lines.append(word)
        else:
            lines[-1] += between + word
    return [part for line in lines for part in textwrap.wrap(line, width) or [line]]


def marked(mark: str, sentence: str, width: int) -> List[str]:
    """Return a sentence with a sign before it as lines of at most ``width`` columns."""
    return textwrap.wrap(f"{mark} {sentence}", width, subsequent_indent="  ")
