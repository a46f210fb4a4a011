"""Where the pages of new memory come to lie: driver of the probe's mode ``allocate``.

The program (``agent/probe/allocate.c`` and ``fill.c`` say what it does and how) first fills the
node of its CPUs with page cache, where that is asked for; then, between ``go`` and ``result``, it
maps memory and touches every page of it, so that the collectors count this allocation and next
to nothing else. Where the pages are is what the kernel answers to move_pages(2).

Options: ``scenario`` (SCENARIOS), ``size`` (bytes, "64MiB", or "40%" of the memory of the CPUs'
node), ``at_most`` (of such a share; but never less than 2 % of the node), ``threads`` (1),
``pages`` (system: as the host has it; base; thp: asked for by madvise; hugetlb), ``fill`` (0, a
size, or "node": until nothing is free there), ``drop`` (write 3 to vm.drop_caches after the fill),
``directory`` (of the file that fills: /var/tmp), ``seconds`` (of balance).

Records: ``setup``; ``fill`` (bytes read; free memory and page cache of the node before and
after); ``level`` (``when``: before, after the allocation); ``allocation`` (seconds, faults, huge
pages, bytes that moved, whether the kernel killed the process); ``part`` (``name``: parent,
copied, new of a fork; ``node``, ``bytes``); ``placement`` and ``thread`` as of the probe.
"""

from __future__ import annotations

import functools
import mmap
import os
import re
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from .. import cpulist, kernel
from ..contract import (
    HANDSHAKE,
    Cell,
    Driver,
    Host,
    Prepared,
    Reason,
    Record,
    Row,
    Timing,
    ToolRecord,
    reason,
)
from ..errors import Fault, NotHere
from ..rows import row
from . import options as check
from . import probe
from .options import Options
from .probe_output import (
    BOTH,
    LIST,
    MAPPING,
    NONE,
    READY,
    REAL,
    TEXT,
    WHOLE,
    Keys,
    Line,
    conversation,
    placements,
)  # fmt: skip

SCENARIOS = ("touch", "elsewhere", "fork", "file", "oversubscribe", "balance")
_PAGES = {"system": "default", "base": "base", "thp": "thp", "hugetlb": "hugetlb"}
_OPTIONS = (
    "scenario", "size", "at_most", "threads", "pages", "fill", "drop", "directory", "seconds",
    "path",
)  # fmt: skip
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%\Z")
_HUGE = 2 << 20
DIRECTORY = "/var/tmp"  # the program's own default, too
_NO_PAGE_CACHE = ("tmpfs", "ramfs", "devtmpfs", "zfs")

# A kernel keeps up to 1 % of a node free, of which some is taken before anything spills: a smaller
# share than this could not be told from it.
_LEAST_SHARE = 0.02

# For estimates only. One thread of another host touches so much in a second; the readers of a fill
# bring several times what one thread touches, and the kernel drops it again faster still.
_TOUCH_BYTES_S, _FILLING, _DROPPING = 1.5e9, 4, 16
_TOUCHED, _TOUCH_S = 32 << 20, 0.2


class Allocation(Driver):
    """New memory on an empty or a full node, touched, forked, mapped or run out of."""

    name = "allocation"
    protocol = HANDSHAKE

    def find(self, options: Options) -> ToolRecord:
        """Return the probe's path and version."""
        return probe.find(options)

    def prepare(self, options: Options, host: Host, cpus: str, memory_nodes: str) -> Prepared:
        """Return the options with sizes and nodes as numbers.

        ``home`` is the node of the CPUs, ``other_node`` the nearest other one that has CPUs and
        memory. ``full_node`` says that a node will be full, so that interleaving cannot give it
        an equal share. Raises Fault where there is nothing to see (one node), for an unknown or
        bad option, and for what the host cannot bear.
        """
        check.known(self.name, options, _OPTIONS)
        scenario = check.choice("scenario", options.get("scenario", "touch"), SCENARIOS)
        pages = check.choice("pages", options.get("pages", "system"), tuple(_PAGES))
        if len(host.memory_nodes) < 2:
            raise NotHere(reason("one-memory-node"))
        nodes = host.nodes_of(cpulist.parse(cpus))
        home = nodes[0] if len(nodes) == 1 else None
        filled = home if home is not None and home in host.memory_nodes else host.memory_nodes[0]
        of_node = host.node[filled].memory_bytes
        size = _size("size", options.get("size", "40%"), of_node)
        if options.get("at_most") is not None and size < (of_node or 0):
            most = check.size("at_most", options["at_most"])
            size = min(size, max(most, int(_LEAST_SHARE * (of_node or 0))))
        size = size // _HUGE * _HUGE if size >= 32 * _HUGE else size // 65536 * 65536
        threads = check.threads(options.get("threads", 1), cpus, host, one_a_cpu=True)
        if size < 65536 * threads:
            raise Fault(f"size {size} is less than 64 KiB for each thread", "ask for more")
        out: Dict[str, Any] = {
            "scenario": scenario, "size": size, "pages": pages, "home": home, "threads": threads,
            **_fill(options, host, cpus, home, of_node),
        }  # fmt: skip
        if out["fill"] or scenario == "file":
            folder = _directory(options.get("directory", DIRECTORY), host.root)
            if folder != DIRECTORY:
                out["directory"] = folder
        if scenario not in ("touch", "oversubscribe"):
            out["other_node"], out["other_cpu"] = _other(host, home, cpus)
        if scenario == "balance":
            if host.timed:
                raise NotHere(reason("needs-seconds-of-a-model"))
            out["seconds"] = check.seconds("seconds", options.get("seconds", 5), 0.1, 3600)
        if scenario == "oversubscribe":
            _check_kill(host.root)
        if pages == "hugetlb":
            _check_pool(host, size, memory_nodes)
        # Nothing must be free where running out is what is asked for; a fork copies a part.
        need = {"oversubscribe": 0, "fork": size + size // 4}.get(scenario, size)
        full = out["fill"] == "node" and not out.get("drop")
        return Prepared(out, need, full_node=full, timing=_timing(out, host, filled))

    def argv(self, found: ToolRecord, options: Options, cell: Cell) -> List[str]:
        words = [
            str(found.path), "allocate", "--scenario", options["scenario"],
            "--bytes", str(options["size"]), "--pages", _PAGES[options["pages"]],
            "--threads", str(options["threads"]), "--pin", "none" if cell.cpus is None else "cpu",
        ]  # fmt: skip
        for name in ("home", "other_cpu", "other_node", "seconds", "directory"):
            if options.get(name) is not None:
                words += [f"--{name.replace('_', '-')}", str(options[name])]
        if options["fill"]:
            words += ["--fill", str(options["fill"])]
        if options.get("drop"):
            words.append("--drop")
        return words

    def parse(self, text: str) -> List[Record]:
        """Return the records of one run's output; see the head of this module.

        Raises ParseError with the line that cannot be read, and when ready or result is missing.
        """
        ready, between, result = conversation(text)
        if between:
            raise between[0].wrong('only "ready" and "result" are expected')
        start = ready.check(ready.record, _READY, "ready")
        if start["mode"] != "allocate" or start["scenario"] not in SCENARIOS:
            raise ready.wrong(f"{start['mode']} {start['scenario']} is not known")
        if not all(type(node) is int for node in start["memory_nodes"]):
            raise ready.wrong("memory_nodes: not a list of nodes")
        end = result.check(result.record, _RESULT, "result")
        if start["visit"] or end["visit"]:
            raise ready.wrong("an allocation is no visit of a tour")
        records: List[Record] = [{
            "kind": "setup", "version": start["version"], "threads": start["threads_measuring"],
            **{key: start[key] for key in ("scenario", "bytes", "home", "memory_nodes", "pages")},
            "setup_s": start["setup_s"], "measure_s": end["measure_s"],
        }]  # fmt: skip
        if start["fill"] is not None:
            records.append({"kind": "fill", **ready.check(start["fill"], _FILL, "fill")})
        records.append({
            "kind": "allocation", "seconds": end["allocation_s"],
            **{key: end[key] for key in (
                "minor_faults", "major_faults", "transparent_huge_bytes", "moved_bytes", "killed",
                "touched_bytes",
            )},
        })  # fmt: skip
        for when in ("before", "after"):
            if end[when] is not None:
                level = result.check(end[when], _LEVEL, when)
                records.append({"kind": "level", "when": when, **level})
        parts = _read_parts(result, end["parts"])
        return [*records, *parts, *placements(ready), *placements(result)]

    def metrics(self, records: Sequence[Record]) -> List[Row]:
        """Return the allocation as metrics; shares are of the bytes that were placed.

        ``placed`` (B, point "node N"), ``home_share`` (on the node of the CPUs), ``uneven_share``
        (greatest difference of a node's share from an equal one), ``allocation_time``, faults,
        ``huge_share``; with a fill ``filled_free``, ``filled_usable`` (free, and free above what
        the kernel keeps for itself), ``filled_page_cache`` (B) and ``page_cache_kept`` (share);
        of some scenarios ``moved_share``, ``parent_home_share``, ``copied_home_share``,
        ``new_home_share``, ``out_of_memory_kill`` (0 or 1) and ``touched`` (B).
        """
        setup = check.first_of(records, "setup")
        done = check.first_of(records, "allocation")
        huge = None if done["killed"] else done["transparent_huge_bytes"]
        return [
            row("allocation_time", done["seconds"], "s"),
            *_placed(records, setup),
            row("minor_faults", done["minor_faults"], "count"),
            row("major_faults", done["major_faults"], "count"),
            row("huge_share", None if huge is None else huge / setup["bytes"], "share",
                "huge-pages-unknown"),
            *_filled(records),
            *_of_scenario(records, setup, done),
        ]  # fmt: skip


# --- options ----------------------------------------------------------------------------------


def _size(name: str, asked: Any, of_node: Optional[int], least: int = 65536) -> int:
    share = _SHARE.match(asked) if isinstance(asked, str) else None
    if share and not of_node:
        raise Fault(reason("node-size-unknown", option=name, asked=asked))
    if share:
        asked = float(share[1]) / 100 * (of_node or 0)
    return check.size(name, asked, least, also=", or 40%")


def _fill(
    options: Options, host: Host, cpus: str, home: Optional[int], of_node: Optional[int]
) -> Dict[str, Union[int, str, bool]]:
    """Return the options ``fill``, and ``drop`` where it is set."""
    fill: Union[int, str] = options.get("fill", 0)
    if fill != "node":
        fill = _size("fill", fill, of_node, least=0)
    drop = check.flag("drop", options.get("drop", False))
    if (fill or drop) and home not in host.memory_nodes:
        raise Fault(reason("no-home-node", cpus=cpus))
    if drop and not fill:
        raise Fault("drop: there is nothing to drop without fill", "set fill: node")
    return {"fill": fill, "drop": True} if drop else {"fill": fill}


def _other(host: Host, home: Optional[int], cpus: str) -> Tuple[int, int]:
    """Return the nearest other node with CPUs and memory, and its first CPU."""
    if home is None:
        raise Fault(reason("no-home-node", cpus=cpus))
    others = [n for n in host.memory_nodes if n != home and n in host.cpus_of]
    if not others:
        raise NotHere(reason("no-other-node", node=home))
    node = min(others, key=lambda n: (host.distance(home, n) or 255, n))
    return node, host.cpus_of[node][0]


def _timing(options: Options, host: Host, node: int) -> Timing:
    """Return the planned seconds; filling the node is set-up."""
    speed = _touch_speed() if host.root == "/" else _TOUCH_BYTES_S
    own = host.node[node]
    room = (own.free_bytes or own.memory_bytes or 0) + (own.page_cache_bytes or 0)
    fill = room if options["fill"] == "node" else options["fill"]
    size, scenario = options["size"], options["scenario"]
    if scenario == "oversubscribe":  # as far as it comes
        size = min(size, room)
    if scenario in ("fork", "file"):  # a part is copied; a file is read, and mapped
        size *= 1.5
    threads = min(options["threads"], _FILLING)
    measure = options["seconds"] if scenario == "balance" else size / (speed * threads)
    setup = 0.3 + fill / (speed * _FILLING) + (fill + size) / (speed * _DROPPING)
    return Timing(round(setup, 3), 0.0, round(measure, 3))


@functools.cache
def _touch_speed() -> float:
    """Return how many bytes a second one thread of this host touches for the first time."""
    touched, start = 0, time.perf_counter()
    while touched == 0 or time.perf_counter() < start + _TOUCH_S:
        with mmap.mmap(-1, _TOUCHED) as pages:
            for at in range(0, _TOUCHED, mmap.PAGESIZE):
                pages[at] = 1
        touched += _TOUCHED
    return touched / (time.perf_counter() - start)


def _directory(path: Any, root: str) -> str:
    """Return the folder of the file; Fault where a file's pages are no ordinary page cache."""
    if not isinstance(path, str) or not path.startswith("/"):
        raise Fault(f"directory {path!r} is not the path of a folder", "write it like /var/tmp")
    if root != "/":
        return path
    if not os.path.isdir(path) or not os.access(path, os.W_OK):
        raise Fault(f"directory {path} is not a folder that can be written to", "name another")
    real = os.path.realpath(path)
    mounts = enumerate(kernel.mounts())
    above = [(len(place), number, kind) for number, (place, kind, _) in mounts
             if real == place or real.startswith(place.rstrip("/") + "/")]  # fmt: skip
    kind = max(above)[2] if above else ""
    if kind in _NO_PAGE_CACHE:
        raise Fault(reason("no-page-cache-there", directory=path, kind=kind))
    return path


def _check_kill(root: str) -> None:
    """Raise Fault where running out of memory would do more than kill one process."""
    swaps = kernel.read_text(os.path.join(root, "proc/swaps")) or ""
    if len(swaps.splitlines()) > 1:
        raise NotHere(reason("host-swaps"))
    if kernel.read_int(os.path.join(root, "proc/sys/vm/panic_on_oom")):
        raise NotHere(reason("host-panics-without-memory"))


def _check_pool(host: Host, size: int, memory_nodes: str) -> None:
    pools = [pool for n in cpulist.parse(memory_nodes) for pool in host.node[n].hugepages]
    free = sum(_HUGE * (pool.free or 0) for pool in pools if pool.size_bytes == _HUGE)
    if free < size:
        raise NotHere(
            reason("huge-page-pool-too-small", nodes=memory_nodes, free=free, needed=size)
        )


# --- reading ----------------------------------------------------------------------------------

_READY: Keys = {
    **READY, "nothing_yet": (bool,), "scenario": TEXT, "bytes": WHOLE, "home": WHOLE + NONE,
    "memory_nodes": LIST, "fill": MAPPING + NONE,
}  # fmt: skip
_RESULT: Keys = {
    **BOTH, "transparent_huge_bytes": WHOLE + NONE, "allocation_s": REAL, "minor_faults": WHOLE,
    "major_faults": WHOLE, "before": MAPPING + NONE, "after": MAPPING + NONE,
    "moved_bytes": WHOLE + NONE, "killed": (bool,), "touched_bytes": WHOLE, "parts": MAPPING,
    "measure_s": REAL,
}  # fmt: skip
_FILL: Keys = {
    **dict.fromkeys(
        ("node", "node_bytes", "read_bytes", "free_before", "free_after", "page_cache_before",
         "page_cache_after", "usable_after"), WHOLE,
    ),
    "dropped": (bool,),
}  # fmt: skip
_LEVEL: Keys = {"free": WHOLE, "page_cache": WHOLE}
_PARTS = ("parent", "copied", "new")


def _read_parts(result: Line, parts: Mapping[str, Any]) -> List[Record]:
    """Return a record for the bytes of each part on each node."""
    records: List[Record] = []
    for name, part in parts.items():
        if name not in _PARTS or not isinstance(part, dict):
            raise result.wrong(f"parts: {name!r} is not known")
        for node, size in part.items():
            if not (node.isascii() and node.isdigit()) or type(size) is not int or size < 0:
                raise result.wrong(f"parts: {size!r} bytes on node {node!r}")
            records.append({"kind": "part", "name": name, "node": int(node), "bytes": size})
    return records


def _placed(records: Sequence[Record], setup: Mapping[str, Any]) -> List[Row]:
    home, nodes = setup["home"], setup["memory_nodes"]
    places = [r for r in records if r["kind"] == "placement" and r["when"] == "result"]
    placed = dict.fromkeys(nodes, 0)
    for place in places:
        if place["node"] is not None:
            placed[place["node"]] = placed.get(place["node"], 0) + place["bytes"]
    unknown = [reason("tool-said", text=r["reason"]) for r in places if r["bytes"] is None]
    why = unknown[0] if unknown else reason("no-page-placed")
    total = sum(placed.values())
    uneven = None
    if total and nodes:
        uneven = max(abs(placed[node] / total - 1 / len(nodes)) for node in nodes)
    return [
        *(
            row("placed", size if total else None, "B", why, point=f"node {node}", x=node)
            for node, size in sorted(placed.items())
        ),
        _home_share("home_share", placed, home, why),
        row("uneven_share", uneven, "share", why),
    ]


def _home_share(name: str, placed: Mapping[int, int], home: Optional[int], why: Reason) -> Row:
    """Return the share of the placed bytes that lie on the home node."""
    if home is None:
        return row(name, None, "share", "home-node-unknown")
    total = sum(placed.values())
    return row(name, placed.get(home, 0) / total if total else None, "share", why)


def _filled(records: Sequence[Record]) -> List[Row]:
    """Return what the fill left, and how much page cache the allocation left of it."""
    fill = next((r for r in records if r["kind"] == "fill"), None)
    if fill is None:
        return []
    point = f"node {fill['node']}"
    rows = [
        row(f"filled_{name}", fill[f"{name}_after"], "B", point=point)
        for name in ("free", "usable", "page_cache")
    ]
    levels = {r["when"]: r["page_cache"] for r in records if r["kind"] == "level"}
    kept = None
    if levels.get("before") and "after" in levels and not fill["dropped"]:
        kept = levels["after"] / levels["before"]
    return [*rows, row("page_cache_kept", kept, "share", "page-cache-was-dropped")]


def _of_scenario(
    records: Sequence[Record], setup: Mapping[str, Any], done: Mapping[str, Any]
) -> List[Row]:
    """Return the metrics that only some scenarios have."""
    scenario, rows = setup["scenario"], []
    if scenario in ("file", "balance", "fork"):
        moved = done["moved_bytes"]
        of = setup["bytes"] // 2 if scenario == "fork" else setup["bytes"]
        share = None if moved is None else moved / of
        rows.append(row("moved_share", share, "share", "where-pages-were-unknown"))
    for name in _PARTS if scenario == "fork" else ():
        part = {r["node"]: r["bytes"] for r in records if r["kind"] == "part" and r["name"] == name}
        why = reason("no-page-placed")
        rows.append(_home_share(f"{name}_home_share", part, setup["home"], why))
    if scenario == "oversubscribe":
        rows.append(row("out_of_memory_kill", int(done["killed"]), "count"))
        rows.append(row("touched", done["touched_bytes"], "B"))
    return rows
