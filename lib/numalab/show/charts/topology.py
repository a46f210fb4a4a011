"""A host drawn: packages, nodes with their memory, shared caches, cores, hardware threads.

The drawing is laid out in inches on one axes, so that a type size is a size on paper; what does
not fit one by one (more than 64 cores) is drawn as counts and CPU lists.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.patches import FancyBboxPatch, Patch, Rectangle

from numalab import escape
from numalab.agent import cpulist
from numalab.agent.contract import Cache, Cpu, Host, Node
from numalab.agent.words import units

from . import matrix, style

MOST_CORES = 64  # drawn one by one; more become counts
MOST_GROUPS = 24  # shared caches drawn one by one; more become counts
LOW_FREE = 0.1  # of a node's memory: below this an allocation on it will spill to other nodes

_MARGIN, _GAP, _PAD, _LINE = 0.08, 0.08, 0.06, 0.125  # inches
_OFFLINE, _FORBIDDEN = "/" * 8, "x" * 6
_KINDS = {"network": "net", "storage": "disk", "gpu": "GPU"}


@dataclass
class _Group:
    """Cores of one node that share an L3 (all of the node's cores where no L3 is described)."""

    label: str
    cores: list[list[Cpu]]
    lines: list[str] = field(default_factory=list)  # instead of the cores, when they are too many
    columns: int = 1
    core_width: float = 0.0
    core_height: float = 0.0
    width: float = 0.0
    height: float = 0.0


@dataclass
class _Card:
    """One node's box: its groups, in rows, and its devices."""

    node: Node
    rows: list[list[_Group]]
    devices: list[str]
    height: float


@dataclass
class _Band:
    """One package's box: its nodes in rows of so many columns."""

    label: str
    columns: int
    rows: list[list[_Card]]

    @property
    def height(self) -> float:
        """Its height in inches."""
        cards = sum(max(card.height for card in row) + _GAP for row in self.rows)
        return cards + _PAD + 0.17

    def width(self, card_width: float) -> float:
        """Its width in inches, with cards of this width."""
        return self.columns * (card_width + _GAP) + 2 * _PAD


@dataclass
class _Line:
    """Packages side by side."""

    card_width: float
    bands: list[_Band]


def topology_figure(topology: Host, name: str = "") -> style.Picture:
    """Draw a host: a picture 16 cm wide, as high as it needs; ``name`` stands before its model.

    Packages are boxes; in them nodes, with memory in GiB (a bar, all to one scale: used, page
    cache, free) and the names of their PCI devices; in a node the groups that share an L3, and
    the cores with the numbers of their hardware threads. Offline CPUs and what the cpuset
    forbids are hatched. SLIT distances stand below (10 is local; ACPI 6.5, section 5.2.17).
    """
    with style.house_style():  # sizes follow from the width of the texts
        lines = _lines(topology)
    heights = [max(band.height for band in line.bands) for line in lines]
    header, footer = 0.42, _footer_height(topology)
    total = header + sum(heights) + _GAP * len(heights) + footer + _MARGIN

    def paint(figure: FigureBase) -> None:
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, style.WIDTH), ylim=(total, 0))
        axes.set_axis_off()
        inner = style.WIDTH - 2 * _MARGIN
        model = ": ".join(filter(None, (name, topology.model or "processor model unknown")))
        _text(axes, _MARGIN, 0.14, model, style.TITLE, weight="bold", room=inner - 1)
        _text(axes, _MARGIN, 0.31, _counts(topology), style.SMALL, color=style.FAINT, room=inner)
        y = header
        for line, height in zip(lines, heights, strict=True):
            x = _MARGIN
            for band in line.bands:
                _draw_band(axes, band, x, y, line.card_width, height, topology)
                x += band.width(line.card_width) + _GAP
            y += height + _GAP
        _draw_footer(axes, topology, y + 0.04)

    return style.Picture(total, paint, freehand=True)


def _lines(topology: Host) -> list[_Line]:
    """The packages in lines, every card measured."""
    bands = _bands(topology)
    detailed = _core_count(topology) <= MOST_CORES
    merged = len({(cpu.node, cpu.l3) for cpu in topology.cpus}) > MOST_GROUPS
    lines = []
    for row in _band_rows(bands, _columns(bands)):
        across = sum(columns for _, columns, _ in row)
        inner = style.WIDTH - 2 * _MARGIN - _GAP * (len(row) - 1) - 2 * _PAD * len(row)
        width = inner / across - _GAP
        made = []
        for label, columns, members in row:
            cards = [_card(node, topology, width, detailed, merged) for node in members]
            rows = [cards[at : at + columns] for at in range(0, len(cards), columns)]
            made.append(_Band(label, columns, rows))
        lines.append(_Line(width, made))
    return lines


def _draw_band(
    axes: Axes, band: _Band, x: float, y: float, card_width: float, height: float, topology: Host
) -> None:
    width = band.width(card_width)
    largest = max((node.memory_bytes or 0 for node in topology.nodes), default=0)
    _box(axes, x, y, width, height, face="#F4F4F4", edge=style.FAINT)
    _text(axes, x + _PAD, y + 0.11, band.label, style.SMALL, weight="bold", room=width - 2 * _PAD)
    cy = y + 0.17 + _PAD
    for cards in band.rows:
        tallest = max(card.height for card in cards)
        cx = x + _PAD + _GAP / 2
        for card in cards:
            _draw_card(axes, card, cx, cy, card_width, tallest, topology, largest)
            cx += card_width + _GAP
        cy += tallest + _GAP


def _bands(topology: Host) -> list[tuple[str, list[Node]]]:
    """Nodes by the packages that their CPUs are in; nodes without CPUs come last."""
    with_cpus = {cpu.node for cpu in topology.cpus}  # also offline ones, whose package is unknown
    packages: dict[int, set[int]] = {node.number: set() for node in topology.nodes}
    for cpu in topology.cpus:
        if cpu.node in packages and cpu.package is not None:
            packages[cpu.node].add(cpu.package)
    bands: dict[tuple[int, ...], list[Node]] = {}
    for node in topology.nodes:
        bands.setdefault(tuple(sorted(packages[node.number])), []).append(node)
    named = []
    for key in sorted(bands, key=lambda key: (not key, key)):
        if len(key) > 1:
            label = "packages " + " + ".join(map(str, key)) + " in one node"
        elif key:
            label = f"package {key[0]}"
        elif any(node.number in with_cpus for node in bands[key]):
            label = "package unknown"
        else:
            label = "memory without CPUs"
        named.append((label, bands[key]))
    return named


def _columns(bands: Sequence[tuple[str, list[Any]]]) -> int:
    """How many node cards stand side by side: at most 4, leaving few places empty."""
    largest = max((len(members) for _, members in bands), default=1)
    most = min(4, sum(len(members) for _, members in bands) or 1)
    if largest <= most:
        return most
    return min((4, 3), key=lambda columns: -largest % columns)


def _band_rows(
    bands: Sequence[tuple[str, list[Any]]], columns: int
) -> list[list[tuple[str, int, list[Any]]]]:
    rows: list[list[tuple[str, int, list[Any]]]] = []
    free = 0
    for label, members in bands:
        width = min(columns, len(members))
        if width > free:
            rows.append([])
            free = columns
        rows[-1].append((label, width, members))
        free -= width
    return rows


def _core_key(cpu: Cpu) -> Any:
    return cpu.siblings or (cpu.package, cpu.die, cpu.core, cpu.number)


def _core_count(topology: Host) -> int:
    return topology.cores or len({_core_key(cpu) for cpu in topology.cpus})


def _card(
    node: Node, topology: Host, width: float, detailed: bool,
    merged: bool,
) -> _Card:  # fmt: skip
    room = width - 2 * _PAD
    groups = _groups(node, topology, detailed, merged)
    widths = [style.text_width(str(cpu.number), style.SMALL) for cpu in topology.cpus]
    for group in groups:
        _measure(group, room - 2 * _PAD, max(0.2, max(widths, default=0) + 0.08))
    for group in groups:  # boxes of one width stand in columns
        group.width = max(other.width for other in groups)
    rows: list[list[_Group]] = []
    left = 0.0
    for group in groups:
        if not rows or group.width > left:
            rows.append([])
            left = room
        rows[-1].append(group)
        left -= group.width + _PAD
    devices = _devices(node.number, topology, width - 2 * _PAD)
    height = 0.46 + sum(max(g.height for g in row) + _PAD for row in rows)
    height += (_LINE + _PAD if not rows else 0) + _LINE * len(devices)
    return _Card(node, rows, devices, height)


def _groups(node: Node, topology: Host, detailed: bool, merged: bool) -> list[_Group]:
    mine = [cpu for cpu in topology.cpus if cpu.node == node.number]
    several = len({cpu.package for cpu in mine}) > 1
    by_group: dict[Any, dict[Any, list[Cpu]]] = {}
    for cpu in mine:
        cores = by_group.setdefault((cpu.package if several else None, cpu.l3), {})
        cores.setdefault(_core_key(cpu), []).append(cpu)
    groups = []
    for (package, l3), cores in by_group.items():
        label = "no shared L3 known" if l3 is None else _cache(topology.caches[l3], mine)
        if package is not None:
            label = f"package {package} · {label}"
        groups.append(_Group(label, list(cores.values())))
    if merged and len({group.label for group in groups}) == 1 and len(groups) > 1:
        sizes = sorted({len(group.cores) for group in groups})
        label = f"{len(groups)} × {groups[0].label} of {sizes[0]}"
        label += (f" to {sizes[-1]}" if len(sizes) > 1 else "") + " cores"
        groups = [_Group(label, [core for group in groups for core in group.cores])]
        detailed = False
    if not detailed:
        _count_cores(groups)
    return groups


def _cache(cache: Cache, cpus: Sequence[Cpu]) -> str:
    """A shared cache in words: its size, and whether CPUs of other nodes share it."""
    size = f" {cache.size_bytes / 2**20:.4g} MiB" if cache.size_bytes else ", size unknown"
    outside = set(cpulist.parse(cache.cpus)) - {cpu.number for cpu in cpus}
    return f"L3{size}{', shared with other nodes' if outside else ''}"


def _count_cores(groups: Sequence[_Group]) -> None:
    """Say in words what is too much to be drawn."""
    for group in groups:
        cpus = [cpu.number for core in group.cores for cpu in core]
        count = units.count(len(group.cores), "core")
        if len(cpus) > len(group.cores):
            count += f", {units.count(len(cpus), 'thread')}"
        group.lines = [count, *_wrapped_list("CPUs ", cpus)]
        closed = [
            cpu.number for core in group.cores for cpu in core if not (cpu.online and cpu.allowed)
        ]
        if closed:
            group.lines += _wrapped_list("not usable: ", closed)


def _wrapped_list(before: str, cpus: Sequence[int]) -> list[str]:
    text = before + cpulist.format(cpus).replace(",", ", ")
    lines = textwrap.wrap(text, 22)
    return lines if len(lines) <= 4 else [*lines[:3], "…"]


def _measure(group: _Group, room: float, core_width: float) -> None:
    """Set the group's size, and how many of its cores stand side by side in ``room`` inches."""
    label = style.text_width(group.label, style.TINY)
    if group.lines:
        widest = max(style.text_width(line, style.SMALL) for line in group.lines)
        group.width = min(room, max(label, widest)) + 2 * _PAD
        group.height = 0.15 + _LINE * len(group.lines) + _PAD
        return
    threads = max(len(core) for core in group.cores)
    group.core_width = core_width
    group.core_height = 0.12 * threads + 0.06
    fits = max(1, int((room + 0.03) / (group.core_width + 0.03)))
    lines = -(-len(group.cores) // fits)
    group.columns = -(-len(group.cores) // lines)
    cores = group.columns * (group.core_width + 0.03) - 0.03
    group.width = min(room, max(label, cores)) + 2 * _PAD
    group.height = 0.17 + lines * (group.core_height + 0.03) + 0.03


def _devices(node: int | None, topology: Host, room: float) -> list[str]:
    """The PCI devices of a node in lines that fit, by kind: "net: eth0, eth1"."""
    kinds: dict[str, list[str]] = {}
    for device in topology.pci:
        if device.node == node and (device.names or device.kind in _KINDS):
            names = device.names or [device.address]
            kinds.setdefault(_KINDS.get(device.kind, "other"), []).extend(names)
    lines: list[str] = []
    for kind in (*_KINDS.values(), "other"):
        names = kinds.get(kind, [])
        shown = list(names)
        while shown:
            hidden = len(names) - len(shown)
            line = f"{kind}: " + ", ".join(shown) + (f" and {hidden} more" if hidden else "")
            if style.text_width(line, style.TINY) <= room or len(shown) == 1:
                lines.append(line)
                break
            shown.pop()
    return lines


def _draw_card(
    axes: Axes, card: _Card, x: float, y: float, width: float, height: float,
    topology: Host, largest: int,
) -> None:  # fmt: skip
    node = card.node
    _box(axes, x, y, width, height, face="white", edge=style.INK)
    _text(axes, x + _PAD, y + 0.11, f"node {node.number}", style.BASE, weight="bold")
    memory = node.memory_bytes
    size = "memory unknown" if memory is None else f"{_gib(memory)} GiB" if memory else "no memory"
    _text(axes, x + width - _PAD, y + 0.11, size, style.SMALL, align="right")
    _memory_bar(axes, node, topology, x + _PAD, y + 0.21, width - 2 * _PAD, largest)
    gy = y + 0.46
    if not card.rows:
        words = "no CPUs" if node.tier is None else f"no CPUs, memory tier {node.tier}"
        _text(axes, x + _PAD, gy + 0.06, words, style.SMALL, color=style.FAINT, slant="italic")
        gy += _LINE + _PAD
    for row in card.rows:
        gx = x + _PAD
        for group in row:
            _draw_group(axes, group, gx, gy)
            gx += group.width + _PAD
        gy += max(group.height for group in row) + _PAD
    for line in card.devices:
        _text(axes, x + _PAD, gy + 0.05, line, style.TINY, room=width - 2 * _PAD)
        gy += _LINE


def _memory_bar(
    axes: Axes, node: Node, topology: Host,
    x: float, y: float, width: float, largest: int,
) -> None:  # fmt: skip
    memory = node.memory_bytes
    if not memory:
        return
    length = width * memory / largest
    free, cache = node.free_bytes, node.page_cache_bytes
    word = "free"
    if _one_holder(topology):
        word, cache = "available", None
        free = min(memory, topology.available_bytes or 0)
    parts = [] if free is None else [(memory - free - (cache or 0), style.BLUE), (cache, style.SKY)]
    at = x
    for amount, colour in parts:
        step = length * max(0, amount or 0) / memory
        axes.add_patch(Rectangle((at, y), step, 0.08, facecolor=colour, edgecolor="none"))
        at += step
    edge = Rectangle((x, y), length, 0.08, facecolor="none", edgecolor=style.INK, linewidth=0.6)
    if not node.allowed_memory:
        edge.set(hatch=_FORBIDDEN)
    axes.add_patch(edge)
    words = [f"{word} {_gib(free)}" if free is not None else "free unknown"]
    if cache is not None:
        words.append(f"page cache {_gib(cache)}")
    words[-1] += " GiB" if words[-1][-1].isdigit() else ""
    low = free is not None and free < LOW_FREE * memory
    if not node.allowed_memory:
        words = ["not allowed here"]
    _text(axes, x, y + 0.15, ", ".join(words), style.TINY, room=width,
          color=style.VERMILLION if low else style.FAINT,
          weight="bold" if low else "normal")  # fmt: skip


def _draw_group(axes: Axes, group: _Group, x: float, y: float) -> None:
    _box(axes, x, y, group.width, group.height, face="#EAF3F8", edge=style.BLUE, line=0.6)
    room = group.width - 2 * _PAD + 0.02
    _text(axes, x + _PAD, y + 0.075, group.label, style.TINY, color=style.FAINT, room=room)
    for index, line in enumerate(group.lines):
        _text(axes, x + _PAD, y + 0.2 + index * _LINE, line, style.SMALL, room=room)
    if group.lines:
        return
    for index, core in enumerate(group.cores):
        row, column = divmod(index, group.columns)
        cx = x + _PAD + column * (group.core_width + 0.03)
        cy = y + 0.15 + row * (group.core_height + 0.03)
        axes.add_patch(
            Rectangle((cx, cy), group.core_width, group.core_height, facecolor="white",
                      edgecolor=style.FAINT, linewidth=0.5)
        )  # fmt: skip
        for place, cpu in enumerate(sorted(core, key=lambda cpu: (cpu.thread, cpu.number))):
            ty = cy + 0.03 + 0.12 * place
            closed = not (cpu.online and cpu.allowed)
            if closed:
                axes.add_patch(
                    Rectangle((cx, ty), group.core_width, 0.12, facecolor=style.PALE, linewidth=0,
                              hatch=_FORBIDDEN if cpu.online else _OFFLINE)
                )  # fmt: skip
            drawn = _text(
                axes, cx + group.core_width / 2, ty + 0.06, str(cpu.number), style.SMALL,
                align="center", color=style.FAINT if closed or place else style.INK,
            )  # fmt: skip
            if closed:
                style.halo(drawn)


def _cell_size(topology: Host) -> float:
    return 0.27 if len(topology.nodes) <= 8 else 0.19


def _remarks(topology: Host) -> list[str]:
    away = _devices(None, topology, 2.4)
    return ["PCI devices without a node:", *away] if away else []


def _footer_height(topology: Host) -> float:
    many = len(topology.nodes)
    square = 0.42 + _cell_size(topology) * many if many > 1 else 0.3
    return max(square, 0.24 + 0.17 * len(_key(topology)) + _LINE * len(_remarks(topology)))


def _key(topology: Host) -> list[Patch]:
    """The key of the memory bars and of what is hatched."""
    shown: dict[str, dict[str, Any]] = {}
    if any(node.memory_bytes for node in topology.nodes):
        shown["memory in use"] = {"facecolor": style.BLUE}
        if _one_holder(topology):
            shown["available"] = {"facecolor": "white"}
        else:
            shown |= {"page cache": {"facecolor": style.SKY}, "free": {"facecolor": "white"}}
    offline = cpulist.format(cpu.number for cpu in topology.cpus if not cpu.online)
    if offline:
        shown[f"offline: CPUs {offline}"] = {"facecolor": style.PALE, "hatch": _OFFLINE}
    if not all(cpu.allowed or not cpu.online for cpu in topology.cpus) or not all(
        node.allowed_memory for node in topology.nodes
    ):
        shown["not allowed in this cpuset"] = {"facecolor": style.PALE, "hatch": _FORBIDDEN}
    return [
        Patch(label=label, edgecolor=style.INK, linewidth=0.5, **look)
        for label, look in shown.items()
    ]


def _one_holder(topology: Host) -> bool:
    """Whether one node holds all memory, so that MemAvailable is the better word for its rest."""
    return topology.one_visible_node and topology.available_bytes is not None


def _draw_footer(axes: Axes, topology: Host, y: float) -> None:
    cell, many = _cell_size(topology), len(topology.nodes)
    heading = "SLIT distance, node to node (10 = local)"
    if many < 2:
        heading, many = "one node: no distance to another", 0
    _text(axes, _MARGIN, y + 0.06, heading, style.SMALL, weight="bold")
    left = _MARGIN + 0.32
    if many:
        total, square = axes.get_ylim()[0], cell * many
        inset = axes.figure.add_axes(
            (left / style.WIDTH, 1 - (y + 0.32 + square) / total, square / style.WIDTH,
             square / total)
        )  # fmt: skip
        numbers = [node.number for node in topology.nodes]
        grid = [[node.distances.get(other) for other in numbers] for node in topology.nodes]
        names = list(map(str, numbers))
        matrix.heat_map(
            inset, np.array(grid, dtype=float), names, names, cell, better="lower",
            texts=np.array([["–" if one is None else str(one) for one in row] for row in grid]),
        )  # fmt: skip
        inset.xaxis.tick_top()
        inset.tick_params(length=0, pad=1, labelsize=style.SMALL if cell > 0.22 else style.TINY)
    x = max(left + cell * many + 0.35, 3.3)
    key = axes.legend(
        handles=_key(topology), loc="upper left", borderaxespad=0, borderpad=0,
        bbox_to_anchor=(x, y), bbox_transform=axes.transData,
    )  # fmt: skip
    for place, line in enumerate(_remarks(topology)):
        at = y + 0.12 + 0.17 * len(key.get_texts()) + _LINE * place
        _text(axes, x, at, line, style.TINY, color=style.FAINT)


def _counts(topology: Host) -> str:
    counts = {
        "package": topology.packages,
        "NUMA node": len(topology.nodes),
        "core": topology.cores,
        "hardware thread": topology.threads,
    }
    words = [units.count(number, noun) for noun, number in counts.items() if number is not None]
    known = [node.memory_bytes for node in topology.nodes if node.memory_bytes is not None]
    if known and len(known) == len(topology.nodes):
        words.append(f"{_gib(sum(known))} GiB of memory")
    return " · ".join([*words, *([topology.arch] if topology.arch else [])])


def _gib(size: float) -> str:
    value = size / 2**30
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _box(
    axes: Axes, x: float, y: float, width: float, height: float, *, face: str, edge: str,
    line: float = 0.8,
) -> None:  # fmt: skip
    axes.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.04",
                       facecolor=face, edgecolor=edge, linewidth=line)
    )  # fmt: skip


def _text(
    axes: Axes, x: float, y: float, text: str, size: float, *, align: str = "left",
    color: str = style.INK, weight: str = "normal", slant: str = "normal",
    room: float | None = None,
) -> Any:  # fmt: skip
    """Write a line centred on ``y``; one that is wider than ``room`` is cut with an ellipsis."""
    text = escape.line(text)
    if room is not None:
        text = style.fitted(text, size, room, weight)
    return axes.text(x, y, text, fontsize=size, ha=align, va="center_baseline", color=color,
                     fontweight=weight, fontstyle=slant)  # fmt: skip
