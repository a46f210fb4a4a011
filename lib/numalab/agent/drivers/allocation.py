"""Where the pages of new memory come to lie: driver of the probe's mode ``allocate``.

The program (``agent/probe/allocate.c`` and ``fill.c`` say what it does and how) first fills the
node of its CPUs with page cache, where that is asked for; then, between ``go`` and ``result``, it
maps memory and touches every page of it, so that the collectors count this allocation and next
to nothing else. Where the pages are is what the kernel answers to move_pages(2).

Options: ``scenario`` (SCENARIOS), ``size`` (bytes, "64MiB", or "40%" of the memory of the CPUs'
node), ``threads`` (1), ``pages`` (system: as the host has it; base; thp: asked for by madvise;
hugetlb), ``fill`` (0, a size, or "node": until nothing is free there), ``drop`` (write 3 to
vm.drop_caches after the fill), ``directory`` (of the file that fills: /var/tmp), ``seconds`` (of
balance).

Records: ``setup``; ``fill`` (bytes read; free memory and page cache of the node before and
after); ``level`` (``when``: before, after the allocation); ``allocation`` (seconds, faults, huge
pages, bytes that moved, whether the kernel killed the process); ``part`` (``name``: parent,
copied, new of a fork; ``node``, ``bytes``); ``placement`` and ``thread`` as of the probe.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Optional, Tuple

from .. import cpulist
from ..errors import Fault, NotHere, ParseError
from ..plan import bindings
from . import probe

NAME = "allocation"
PROTOCOL = "handshake"

Record = Dict[str, Any]

SCENARIOS = ("touch", "elsewhere", "fork", "file", "oversubscribe", "balance")
_PAGES = {"system": "default", "base": "base", "thp": "thp", "hugetlb": "hugetlb"}
_OPTIONS = (
    "scenario", "size", "threads", "pages", "fill", "drop", "directory", "seconds", "path",
)  # fmt: skip
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%\Z")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|TiB|)\Z")
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_HUGE = 2 << 20
DIRECTORY = "/var/tmp"  # the program's own default, too
_NO_PAGE_CACHE = ("tmpfs", "ramfs", "devtmpfs", "zfs")

# For estimates only: bytes a second that one thread touches or reads. A host whose memory is
# emulated is ten times slower, hence the wide limit of a trial.
_TOUCH_BYTES_S, _READ_BYTES_S, _READERS = 5e8, 5e8, 8


def find(options: Dict[str, Any]) -> Dict[str, Any]:
    """Return the probe's path and version, as ``probe.find``."""
    return probe.find(options)


def prepare(
    options: Dict[str, Any], topology: Dict[str, Any], cpus: str, memory_nodes: str
) -> Dict[str, Any]:
    """Return ``{"options", "need_bytes", "notes", …}``: sizes and nodes as numbers.

    ``home`` is the node of the CPUs, ``other_node`` the nearest other one that has CPUs and
    memory. The key ``full_node`` says that a node will be full, so that interleaving cannot give
    it an equal share. Raises Fault where there is nothing to see (one node), for an unknown or
    bad option, and for what the host cannot bear.
    """
    for name in options:
        if name not in _OPTIONS:
            raise Fault(f"allocation has no option {name!r}", f"known: {', '.join(_OPTIONS)}")
    scenario = _choice("scenario", options.get("scenario", "touch"), SCENARIOS)
    pages = _choice("pages", options.get("pages", "system"), tuple(_PAGES))
    drop = options.get("drop", False)
    if not isinstance(drop, bool):
        raise Fault(f"drop {drop!r} is neither true nor false", None)
    host = bindings.Host(topology)
    if len(host.memory_nodes) < 2:
        raise NotHere(
            "fewer than two nodes have memory that may be used: pages have no choice of nodes", None
        )
    nodes = host.nodes_of(cpulist.parse(cpus))
    home = nodes[0] if len(nodes) == 1 else None
    measure = home if home in host.memory_nodes else host.memory_nodes[0]
    size = _size("size", options.get("size", "40%"), host.nodes[measure]["memory_bytes"])
    size = size // _HUGE * _HUGE if size >= 32 * _HUGE else size // 65536 * 65536
    fill = options.get("fill", 0)
    if fill != "node":
        fill = _size("fill", fill, host.nodes[measure]["memory_bytes"], least=0)
    out: Dict[str, Any] = {
        "scenario": scenario, "size": size, "pages": pages, "home": home, "fill": fill,
        "threads": options.get("threads", 1),
    }  # fmt: skip
    threads = out["threads"]
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise Fault(f"threads {threads!r} is not a number from 1", None)
    if threads > len(cpulist.parse(cpus)):
        raise Fault(f"{threads} threads on {len(cpulist.parse(cpus))} CPUs", "ask for fewer")
    if size < 65536 * threads:
        raise Fault(f"size {size} is less than 64 KiB for each thread", "ask for more")
    if fill or drop:
        if home is None or home not in host.memory_nodes:
            raise Fault(
                f"there is no one node to fill: these CPUs ({cpus}) are not all of one node with "
                "memory",
                "bind it to the CPUs of a node",
            )
        if drop and not fill:
            raise Fault("drop: there is nothing to drop without fill", "set fill: node")
        if drop:
            out["drop"] = True
    if fill or scenario == "file":
        folder = _directory(options.get("directory", DIRECTORY), topology["root"])
        if folder != DIRECTORY:
            out["directory"] = folder
    if scenario not in ("touch", "oversubscribe"):
        out["other_node"], out["other_cpu"] = _other(host, home)
    if scenario == "balance":
        out["seconds"] = _seconds(options.get("seconds", 5))
    if scenario == "oversubscribe":
        _check_kill(topology["root"])
    if pages == "hugetlb":
        _check_pool(host, size, memory_nodes)
    ready: Dict[str, Any] = {"options": out, "need_bytes": _need(scenario, size), "notes": []}
    ready["full_node"] = fill == "node" and not drop
    return ready


def _need(scenario: str, size: int) -> int:
    """Return the bytes that must be there; none where running out is what is asked for."""
    return {"oversubscribe": 0, "fork": size + size // 4}.get(scenario, size)


def _choice(name: str, value: Any, known: Tuple[str, ...]) -> str:
    if value not in known:
        raise Fault(f"{name} {value!r} is not known to allocation", f"known: {', '.join(known)}")
    return str(value)


def _seconds(value: Any) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not 0.1 <= value <= 3600:
        raise Fault(f"seconds {value!r} is not a length of time", "write a number from 0.1")
    return float(value)


def _size(name: str, asked: Any, of_node: Optional[int], least: int = 65536) -> int:
    share = _SHARE.match(asked) if isinstance(asked, str) else None
    plain = _SIZE.match(asked) if isinstance(asked, str) else None
    if share:
        if not of_node:
            raise Fault(f"{name} {asked}: how much memory the node has is unknown", "name a size")
        asked = float(share[1]) / 100 * of_node
    elif plain:
        asked = float(plain[1]) * _UNITS[plain[2]]
    good = isinstance(asked, (int, float)) and not isinstance(asked, bool)
    if not good or not least <= asked < 2**62:
        raise Fault(f"{name} {asked!r} is not a size", "write a number of bytes, 64MiB, or 40%")
    return int(asked)


def _other(host: bindings.Host, home: Optional[int]) -> Tuple[int, int]:
    """Return the nearest other node with CPUs and memory, and its first CPU."""
    if home is None:
        raise Fault(
            "there is no one node to be away from: the CPUs are of several nodes",
            "bind it to the CPUs of a node",
        )
    others = [n for n in host.memory_nodes if n != home and n in host.cpus_of]
    if not others:
        raise NotHere(f"no node but {home} has CPUs and memory", None)
    node = min(others, key=lambda n: (host.distance(home, n) or 255, n))
    return node, host.cpus_of[node][0]


def _directory(path: Any, root: str) -> str:
    """Return the folder of the file; Fault where a file's pages are no ordinary page cache."""
    if not isinstance(path, str) or not path.startswith("/"):
        raise Fault(f"directory {path!r} is not the path of a folder", "write it like /var/tmp")
    if root != "/":
        return path
    if not os.path.isdir(path) or not os.access(path, os.W_OK):
        raise Fault(f"directory {path} is not a folder that can be written to", "name another")
    real = os.path.realpath(path)
    best = ("", "")
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            for line in file:
                _, place, kind = line.split()[:3]
                inside = real == place or real.startswith(place.rstrip("/") + "/")
                if inside and len(place) >= len(best[0]):
                    best = (place, kind)
    except (OSError, ValueError):
        return path
    if best[1] in _NO_PAGE_CACHE:
        raise Fault(
            f"directory {path} is on {best[1]}, which keeps no sparse file in the page cache",
            "set the option directory to a folder on a disk",
        )
    return path


def _check_kill(root: str) -> None:
    """Raise Fault where running out of memory would do more than kill one process."""

    def text(path: str) -> str:
        try:
            with open(os.path.join(root, path), encoding="utf-8") as file:
                return file.read()
        except OSError:
            return ""

    if len(text("proc/swaps").splitlines()) > 1:
        raise NotHere(
            "this host swaps: memory beyond a node's would push others' memory to the disk",
            "swapoff -a for the time of the run",
        )
    if text("proc/sys/vm/panic_on_oom").strip() not in ("", "0"):
        raise NotHere("this host panics when memory runs out (vm.panic_on_oom)", None)


def _check_pool(host: bindings.Host, size: int, memory_nodes: str) -> None:
    wanted = cpulist.parse(memory_nodes)
    pools = [pool for n in wanted for pool in host.nodes[n].get("hugepages") or []]
    free = sum(pool["size_bytes"] * pool["free"] for pool in pools if pool["size_bytes"] == _HUGE)
    if free < size:
        raise NotHere(
            f"the pool of huge pages of node {memory_nodes} has {free >> 20} MiB free, "
            f"{size >> 20} MiB are needed",
            "reserve some: vm.nr_hugepages",
        )


def argv(found: Dict[str, Any], options: Dict[str, Any], cell: Dict[str, Any]) -> List[str]:
    """Return the command line."""
    words = [
        found["path"], "allocate", "--scenario", options["scenario"],
        "--bytes", str(options["size"]), "--pages", _PAGES[options["pages"]],
        "--threads", str(options["threads"]), "--pin", "none" if cell["cpus"] is None else "cpu",
    ]  # fmt: skip
    for name in ("home", "other_cpu", "other_node", "seconds", "directory"):
        if options.get(name) is not None:
            words += [f"--{name.replace('_', '-')}", str(options[name])]
    if options["fill"]:
        words += ["--fill", str(options["fill"])]
    if options.get("drop"):
        words.append("--drop")
    return words


def timing(options: Dict[str, Any]) -> Dict[str, float]:
    """Return the planned seconds; filling the node is set-up."""
    fill = 4 * options["size"] if options["fill"] == "node" else options["fill"]
    measure = options["size"] / (_TOUCH_BYTES_S * min(options["threads"], _READERS))
    if options["scenario"] == "balance":
        measure = options["seconds"]
    return {
        "setup_s": round(0.1 + fill / _READ_BYTES_S, 3),
        "warmup_s": 0.0,
        "measure_s": round(measure, 3),
    }


# --- reading ----------------------------------------------------------------------------------

_WHOLE, _REAL, _WORD, _NONE = (int,), (int, float), (str,), (type(None),)
_BOTH: Dict[str, Tuple[type, ...]] = {
    "event": _WORD, "mode": _WORD, "buffers": (dict, *_NONE), "buffers_reason": (str, *_NONE),
    "buffer_pages": _WHOLE, "buffer_pages_asked": _WHOLE, "threads": (list,),
    "transparent_huge_bytes": (int, *_NONE),
}  # fmt: skip
_READY: Dict[str, Tuple[type, ...]] = {
    **_BOTH, "schema": _WHOLE, "version": _WORD, "threads_measuring": _WHOLE,
    "nothing_yet": (bool,), "scenario": _WORD, "bytes": _WHOLE, "home": (int, *_NONE),
    "memory_nodes": (list,), "fill": (dict, *_NONE), "pages": _WORD, "page_bytes": _WHOLE,
    "setup_s": _REAL, "warmup_s": _REAL,
}  # fmt: skip
_RESULT: Dict[str, Tuple[type, ...]] = {
    **_BOTH, "allocation_s": _REAL, "minor_faults": _WHOLE, "major_faults": _WHOLE,
    "before": (dict, *_NONE), "after": (dict, *_NONE), "moved_bytes": (int, *_NONE),
    "killed": (bool,), "touched_bytes": _WHOLE, "parts": (dict,), "measure_s": _REAL,
}  # fmt: skip
_FILL: Dict[str, Tuple[type, ...]] = {
    "node": _WHOLE, "node_bytes": _WHOLE, "read_bytes": _WHOLE, "free_before": _WHOLE,
    "free_after": _WHOLE, "page_cache_before": _WHOLE, "page_cache_after": _WHOLE,
    "usable_after": _WHOLE, "dropped": (bool,),
}  # fmt: skip
_LEVEL: Dict[str, Tuple[type, ...]] = {"free": _WHOLE, "page_cache": _WHOLE}
_PARTS = ("parent", "copied", "new")


def parse(text: str) -> List[Record]:
    """Return the records of one run's output; see the head of this module.

    Raises ParseError with the line that cannot be read, and when ready or result is missing.
    """
    lines = [probe.Line(n, row) for n, row in enumerate(text.split("\n"), 1) if row]
    if [line.record.get("event") for line in lines] != ["ready", "result"]:
        raise ParseError(NAME, 0, "", 'it does not go from "ready" to "result"')
    ready, result = lines
    start = ready.check(ready.record, _READY, "ready")
    if start["schema"] != 1:
        raise ready.wrong(f"schema {start['schema']} is not known here (1 is)")
    if start["mode"] != "allocate" or start["scenario"] not in SCENARIOS:
        raise ready.wrong(f"{start['mode']} {start['scenario']} is not known")
    nodes = start["memory_nodes"]
    if not all(type(node) is int for node in nodes):
        raise ready.wrong("memory_nodes: not a list of nodes")
    end = result.check(result.record, _RESULT, "result")
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
    for name, part in end["parts"].items():
        if name not in _PARTS or not isinstance(part, dict):
            raise result.wrong(f"parts: {name!r} is not known")
        for node, size in part.items():
            if not (node.isascii() and node.isdigit()) or type(size) is not int or size < 0:
                raise result.wrong(f"parts: {size!r} bytes on node {node!r}")
            records.append({"kind": "part", "name": name, "node": int(node), "bytes": size})
    return [*records, *probe.read_place(ready, start), *probe.read_place(result, end)]


def metrics(records: List[Record]) -> List[Dict[str, Any]]:
    """Return the allocation as metrics; shares are of the bytes that were placed.

    ``placed`` (B, point "node N"), ``home_share`` (on the node of the CPUs), ``uneven_share``
    (greatest difference of a node's share from an equal one), ``allocation_time``, faults,
    ``huge_share``; with a fill ``filled_free``, ``filled_usable`` (free, and free above what the
    kernel keeps for itself), ``filled_page_cache`` (B) and ``page_cache_kept`` (share); of some
    scenarios ``moved_share``, ``parent_home_share``, ``copied_home_share``, ``new_home_share``,
    ``out_of_memory_kill`` (0 or 1) and ``touched`` (B).
    """
    setup = next(r for r in records if r["kind"] == "setup")
    done = next(r for r in records if r["kind"] == "allocation")
    fill = next((r for r in records if r["kind"] == "fill"), None)
    levels = {r["when"]: r for r in records if r["kind"] == "level"}
    home, scenario = setup["home"], setup["scenario"]
    places = [r for r in records if r["kind"] == "placement" and r["when"] == "result"]
    placed = dict.fromkeys(setup["memory_nodes"], 0)
    for place in places:
        if place["node"] is not None:
            placed[place["node"]] = placed.get(place["node"], 0) + place["bytes"]
    why = next((r["reason"] for r in places if r["bytes"] is None), "no page was placed")
    total = sum(placed.values())
    no_home = "the CPUs are not all of one node"
    rows = [_row("allocation_time", done["seconds"], "s")]
    for node, size in sorted(placed.items()):
        rows.append(_row("placed", size if total else None, "B", why, f"node {node}", node))
    rows.append(_share("home_share", placed, home, why if home is not None else no_home))
    even = 1 / len(setup["memory_nodes"]) if setup["memory_nodes"] else None
    uneven = None
    if total and even:
        uneven = max(abs(placed[node] / total - even) for node in setup["memory_nodes"])
    rows.append(_row("uneven_share", uneven, "share", why))
    rows.append(_row("minor_faults", done["minor_faults"], "count"))
    rows.append(_row("major_faults", done["major_faults"], "count"))
    huge, held = done["transparent_huge_bytes"], setup["bytes"]
    known = huge is not None and not done["killed"]
    rows.append(_row("huge_share", huge / held if known else None, "share", "it is not known"))
    if fill:
        for name in ("free", "usable", "page_cache"):
            point = f"node {fill['node']}"
            rows.append(_row(f"filled_{name}", fill[f"{name}_after"], "B", None, point))
        before, after = (levels[when]["page_cache"] for when in ("before", "after"))
        kept = after / before if before and not fill["dropped"] else None
        rows.append(_row("page_cache_kept", kept, "share", "it was dropped before"))
    if scenario in ("file", "balance", "fork"):
        moved = done["moved_bytes"]
        of = held // 2 if scenario == "fork" else held
        share = None if moved is None else moved / of
        rows.append(_row("moved_share", share, "share", "where its pages were is not known"))
    for name in _PARTS if scenario == "fork" else ():
        part = {r["node"]: r["bytes"] for r in records if r["kind"] == "part" and r["name"] == name}
        rows.append(_share(f"{name}_home_share", part, home, "no page was placed"))
    if scenario == "oversubscribe":
        rows.append(_row("out_of_memory_kill", int(done["killed"]), "count"))
        rows.append(_row("touched", done["touched_bytes"], "B"))
    return rows


def _share(name: str, placed: Dict[int, int], home: Optional[int], why: str) -> Dict[str, Any]:
    total = sum(placed.values())
    known = total and home is not None
    return _row(name, placed.get(home, 0) / total if known else None, "share", why)  # type: ignore


def _row(
    metric: str,
    value: Optional[float],
    unit: str,
    reason: Optional[str] = None,
    point: str = "",
    x: Optional[float] = None,
) -> Dict[str, Any]:
    return {
        "metric": metric, "value": None if value is None else float(value), "unit": unit,
        "point": point, "x": None if x is None else float(x), "y": None,
        "reason": reason if value is None else None,
    }  # fmt: skip
