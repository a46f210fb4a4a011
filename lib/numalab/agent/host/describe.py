"""A host in words: what a person should see before anything is measured, and the tools at hand."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from .. import cpulist
from .state import emulated, value
from .topology import MEMORY_DISAGREES

_ASCII = str.maketrans(
    {"·": "|", "×": "x", "✓": "+", "⚠": "!", "✗": "X", "–": "-", "…": "...", "→": "->", "°": ""}
)
STARVED_FREE, STARVED_CACHE = 0.10, 0.30  # shares of a node's memory


def text(
    topology: Dict[str, Any],
    state: Dict[str, Any],
    tools: Sequence[Dict[str, Any]],
    width: int = 100,
) -> str:
    """Return the host as lines of at most ``width`` columns (60 or more), for a terminal.

    ``tools`` is what ``tools()`` returned, or empty for a machine that is only a copied tree.
    Only ASCII is used where standard output cannot show more.
    """
    width = max(60, width)
    lines = headline(topology, state, width)
    lines += _node_table(topology, contradicts(topology, state), width)
    lines += _labelled("caches", _cache_words(topology), width)
    lines += device_lines(topology, width)
    lines += setting_lines(state, width)
    for warning in warnings(topology, state):
        lines += marked("⚠", warning, width)
    for problem in topology["problems"]:
        if not problem.startswith(MEMORY_DISAGREES):  # it is a warning above
            lines += marked("–", problem, width)
    if tools:
        lines += _join([_tool_words(tool) for tool in tools], "   ", width)
    return printable("\n".join(lines))


def printable(words: str) -> str:
    """Return the text as standard output can show it."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    return words if encoding in ("utf8", "utf16", "utf32") else plain(words)


def plain(words: str) -> str:
    """Return the text with its signs replaced by ASCII, for terminals that know no more."""
    return words.translate(_ASCII).encode("ascii", "replace").decode("ascii")


def warnings(topology: Dict[str, Any], state: Dict[str, Any]) -> List[str]:
    """Return one sentence for everything about this host that can spoil a measurement."""
    found = [*_machine_warnings(topology, state), *_node_warnings(topology, state)]
    balancing = value(state, "kernel.numa_balancing")
    if balancing not in (None, "0"):
        found.append(
            f"kernel.numa_balancing = {balancing}: pages will move during a run; "
            "fixed in a run with --allow-host-changes"
        )
    reclaim = value(state, "vm.zone_reclaim_mode")
    if reclaim not in (None, "0"):
        found.append(
            f"vm.zone_reclaim_mode = {reclaim}: a full node reclaims its page cache before "
            "memory of another node is used"
        )
    governor = value(state, "cpu.governor")
    if governor not in (None, "performance"):
        found.append(f"the frequency governor is {governor}: times depend on what ran before")
    huge = value(state, "thp.enabled")
    if huge == "always":
        found.append(
            "transparent huge pages are given unasked (always): two runs can get different page "
            "sizes; what each run got is in its record"
        )
    elif huge == "never":
        found.append("transparent huge pages are off (never): latencies will include TLB misses")
    quota = value(state, "cgroup.cpu_max")
    if quota and not quota.startswith("max"):
        found.append(f"this cgroup has a CPU quota (cpu.max = {quota}): runs will be throttled")
    load = value(state, "load.average")
    if load and load[0] > max(0.5, 0.1 * topology["threads"]):
        found.append(
            f"load average {load[0]:.1f} on {topology['threads']} hardware threads: "
            "other work is running"
        )
    total, free = value(state, "memory.swap_total_bytes"), value(state, "memory.swap_free_bytes")
    if total and free is not None and total - free > total // 20:
        found.append(
            f"{size_words(total - free)} of swap are in use: memory was short on this host"
        )
    return found


def _machine_warnings(topology: Dict[str, Any], state: Dict[str, Any]) -> Iterable[str]:
    is_emulated, why = emulated(topology, state)
    hypervisor = value(state, "virt.hypervisor")
    if is_emulated:
        yield f"an emulated machine ({why}): no time measured here says anything about hardware"
    elif hypervisor not in (None, "none"):
        named = "" if hypervisor == "unnamed" else f" ({hypervisor})"
        yield (
            f"a virtual machine{named}: its nodes are what the hypervisor shows, and its "
            "neighbours can disturb a run"
        )
    if topology["offline"]:
        yield f"CPUs {topology['offline']} are offline: no binding uses them"
    online = cpulist.format(cpu["cpu"] for cpu in topology["cpus"] if cpu["online"])
    nodes = cpulist.format(node["node"] for node in topology["nodes"])
    allowed = topology["allowed"]
    if allowed["cpus"] != online or allowed["nodes"] != nodes:
        yield (
            f"this process may only use CPUs {allowed['cpus'] or 'none'} and memory of "
            f"{node_names(cpulist.parse(allowed['nodes']))} (cpuset): bindings stay within them"
        )
    isolated = value(state, "cpu.isolated")
    if isolated not in (None, "none"):
        yield f"CPUs {isolated} are isolated: only a process that is bound to them runs there"


def _node_warnings(topology: Dict[str, Any], state: Dict[str, Any]) -> Iterable[str]:
    nodes = topology["nodes"]
    doubtful = contradicts(topology, state)
    if doubtful:
        available = topology["available_bytes"]
        yield (
            f"the nodes show {size_words(_total(nodes))} of memory, /proc/meminfo "
            f"{size_words(value(state, 'memory.total_bytes'))}: this machine understates its nodes"
            + (f"; {size_words(available)} are available in all" if available is not None else "")
        )
    bare = [node["node"] for node in nodes if node["memory_bytes"] == 0]
    if bare:
        verb = "has" if len(bare) == 1 else "have"
        yield (
            f"{node_names(bare)} {verb} no memory: what the CPUs there allocate lands on other "
            "nodes"
        )
    targets = [node["node"] for node in nodes if not node["cpus"] and node["memory_bytes"]]
    if targets:
        verb = "has" if len(targets) == 1 else "have"
        yield f"{node_names(targets)} {verb} memory but no CPUs: only ever the target of a binding"
    for node in nodes:
        if not doubtful and _starved(node):
            others = [
                other
                for other in nodes
                if (other["free_bytes"] or 0) > STARVED_FREE * (other["memory_bytes"] or 0)
            ]
            others.sort(key=lambda other: node["distances"].get(str(other["node"]), 1 << 20))
            where = "must reclaim it first (vm.drop_caches frees it)"
            if others:
                where = f"will spill to node {others[0]['node']} (numalab doctor)"
            yield (
                f"node {node['node']} has {size_words(node['free_bytes'])} free and "
                f"{size_words(node['page_cache_bytes'])} of page cache: allocations there {where}"
            )


def _starved(node: Dict[str, Any]) -> bool:
    """Whether page cache fills a node: little is free, and much of the memory is cache."""
    memory, free, cache = node["memory_bytes"], node["free_bytes"], node["page_cache_bytes"]
    if not memory or free is None or cache is None:
        return False
    return free < STARVED_FREE * memory and cache > STARVED_CACHE * memory


def node_names(numbers: Sequence[int]) -> str:
    """Return "node 3" or "nodes 0-2"."""
    return f"node{'' if len(numbers) == 1 else 's'} {cpulist.format(numbers)}"


def contradicts(topology: Dict[str, Any], state: Dict[str, Any]) -> bool:
    """Whether the nodes' memory adds up to something else than the whole (by 10 % or more)."""
    total, whole = _total(topology["nodes"]), value(state, "memory.total_bytes")
    return bool(total and whole and not 0.9 < total / whole < 1.1)


def _total(nodes: Sequence[Dict[str, Any]]) -> Optional[int]:
    known = [node["memory_bytes"] for node in nodes if node["memory_bytes"] is not None]
    return sum(known) if known else None


def size_words(count: Optional[int]) -> str:
    """Bytes for a person: binary units, three significant digits or fewer after the point."""
    if count is None:
        return "?"
    amount, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if amount >= 100 else f"{amount:.3g} {unit}"


def _plural(count: Optional[int], one: str, many: Optional[str] = None) -> str:
    if count is None:
        return f"? {many or one + 's'}"
    return f"{count} {one if count == 1 else many or one + 's'}"


def _short_model(topology: Dict[str, Any]) -> str:
    model = topology["model"] or topology["vendor"] or "unknown processor"
    filler = (
        r"\((?:R|TM|tm|architected)\)|\s+\d+-Core Processor|\bCPU\b|\bProcessor\b|@.*|, altivec.*"
    )
    model = re.sub(filler, " ", model)
    return " ".join(model.split())


def headline(topology: Dict[str, Any], state: Dict[str, Any], width: int) -> List[str]:
    """Return a host's first lines: processors, cores, nodes, memory, system."""
    return _join(_headline(topology, state), " · ", width)


def _headline(topology: Dict[str, Any], state: Dict[str, Any]) -> List[str]:
    packages = topology["packages"]
    parts = [f"{'?' if packages is None else packages} × {_short_model(topology)}"]
    if topology["arch"] not in (None, "x86_64"):
        parts.append(topology["arch"])
    threads = topology["threads"]
    if topology["cores"] == threads:
        parts.append(_plural(threads, "core"))
    else:
        parts.append(f"{_plural(topology['cores'], 'core')}, {_plural(threads, 'hardware thread')}")
    mode = value(state, "numa.mode")
    nodes = _plural(len(topology["nodes"]), "node")
    parts.append(f"{nodes} ({mode})" if mode and mode != "SNC off" else nodes)
    total = _total(topology["nodes"])
    if contradicts(topology, state):
        total = value(state, "memory.total_bytes")
    if total:
        parts.append(size_words(total))
    system = [part for part in (value(state, "os.release"), value(state, "kernel.release")) if part]
    if value(state, "kernel.release"):
        system[-1] = f"kernel {system[-1]}"
    if system:
        parts.append(", ".join(system))
    return parts


def _short_list(listed: str, room: int) -> str:
    """A CPU list that fits: its beginning and how many CPUs it names."""
    if len(listed) <= room:
        return listed or "none"
    count = f"… ({len(cpulist.parse(listed))})"
    return listed[: max(0, room - len(count))].rpartition(",")[0] + "," + count


def _node_table(topology: Dict[str, Any], doubtful: bool, width: int) -> List[str]:
    nodes = topology["nodes"]
    numbers = [str(node["node"]) for node in nodes]
    cells = [[_distance(node, number) for number in numbers] for node in nodes]
    digits = max(len(cell) for row in cells for cell in row)
    rows = []
    for node in nodes:
        free = gib(node["free_bytes"]) + (" ⚠" if _starved(node) and not doubtful else "  ")
        rows.append([str(node["node"]), gib(node["memory_bytes"]), free, node["cpus"]])
    spread = len(numbers) * (digits + 1) - 1
    fixed = 4 + 3 + 2 + 8 + 2 + 10 + 1  # all but CPUs and distances, and what is between
    whole = fixed + min(max(len(row[3]) for row in rows), 24) + spread <= width
    unknown = "unknown" if len(nodes) > 1 else "–"
    shown = [
        unknown
        if not node["distances"]
        else " ".join(f"{cell:>{digits}}" for cell in row)
        if whole
        else _grouped(node)
        for node, row in zip(nodes, cells)
    ]
    tail = max(9, min(24, max(map(len, shown)))) if not whole else max(9, spread)
    room = max(12, width - fixed - tail)
    column = max(4, min(room, max(len(_short_list(row[3], room)) for row in rows)))
    lines = [f"node   {'CPUs':<{column}}  {'memory':>8}  {'free  ':>10} distances"]
    for row, distances in zip(rows, shown):
        cpus = _short_list(row[3], room)
        start = f"{row[0]:>4}   {cpus:<{column}}  {row[1]:>8}  {row[2]:>10} "
        parts = textwrap.wrap(distances, max(9, width - fixed - column))
        first, *more = (part.replace("\xa0", " ") for part in parts)
        lines += [start + first, *(" " * len(start) + line for line in more)]
    return lines


def gib(count: Optional[int]) -> str:
    """Bytes for a column of a table: GiB with one digit after the point."""
    return "?" if count is None else f"{count / 2**30:.1f} G" if count else "none"


def _distance(node: Dict[str, Any], number: str) -> str:
    return str(node["distances"].get(number, "?"))


def _grouped(node: Dict[str, Any]) -> str:
    """Distances by value, for rows that are too long: 10: 0, 20: 1-7, 40: 8-15."""
    groups: Dict[int, List[int]] = {}
    for number, distance in node["distances"].items():
        groups.setdefault(distance, []).append(int(number))
    return ", ".join(f"{far}:\xa0{cpulist.format(groups[far])}" for far in sorted(groups))


def _cache_words(topology: Dict[str, Any]) -> List[str]:
    kinds: Dict[Tuple[int, str, Optional[int]], List[int]] = {}
    for cache in topology["caches"]:
        key = (cache["level"], cache["type"], cache["size_bytes"])
        kinds.setdefault(key, []).append(len(cpulist.parse(cache["cpus"])))
    words = []
    for (level, kind, size), shared in sorted(
        kinds.items(), key=lambda item: (item[0][0], item[0][1], item[0][2] or 0)
    ):
        if kind == "Instruction":
            continue
        letter = "d" if kind == "Data" and level == 1 else ""
        few, many = min(shared), max(shared)
        each = f"{few}" if few == many else f"{few}-{many}"
        word = f"L{level}{letter} {size_words(size)} × {len(shared)}"
        words.append(word + (f" ({each} threads each)" if many > 1 else ""))
    return words


def device_lines(topology: Dict[str, Any], width: int) -> List[str]:
    """Return the devices with their nodes as lines, where there are several nodes."""
    return _labelled("devices", _device_words(topology), width)


def _device_words(topology: Dict[str, Any]) -> List[str]:
    words: List[str] = []
    if len(topology["nodes"]) == 1:
        return words
    for device in topology["pci"]:
        if device["names"] and device["kind"] in ("network", "storage", "gpu"):
            node = "no node" if device["node"] is None else f"node {device['node']}"
            words.append(f"{' '.join(device['names'])}: {node}")
    return words


def setting_lines(state: Dict[str, Any], width: int) -> List[str]:
    """Return the settings that matter for placement as lines."""
    return _labelled("settings", _setting_words(state), width)


def _setting_words(state: Dict[str, Any]) -> List[str]:
    words = []
    for label, name in (
        ("governor", "cpu.governor"),
        ("turbo", "cpu.turbo"),
        ("SMT", "cpu.smt"),
        ("THP", "thp.enabled"),
        ("numa_balancing", "kernel.numa_balancing"),
        ("zone_reclaim_mode", "vm.zone_reclaim_mode"),
        ("swappiness", "vm.swappiness"),
        ("clock", "clock.source"),
    ):
        found = value(state, name)
        if found is not None:
            words.append(f"{label} {found.replace('not', 'not ') if name == 'cpu.smt' else found}")
    return words


def _labelled(label: str, words: Sequence[str], width: int) -> List[str]:
    return _join([f"{label:<8}", *words], " · ", width, first="   ") if words else []


def _join(words: Sequence[str], between: str, width: int, first: Optional[str] = None) -> List[str]:
    """Words in lines that break only between words; ``first`` follows the first word."""
    lines, line, indent = [], "", ""
    for index, word in enumerate(words):
        if not index:
            line = word
            continue
        gap = first if index == 1 and first is not None else between
        if first is not None:
            indent = " " * (len(words[0]) + len(first))
        if len(line) + len(gap) + len(word) > width:
            lines.append(line.rstrip())
            line = indent + word
        else:
            line += gap + word
    return [part for line in [*lines, line] for part in _fold(line, width, indent)]


def _fold(line: str, width: int, indent: str) -> List[str]:
    if len(line) <= width:
        return [line]
    return textwrap.wrap(line, width, subsequent_indent=indent)


def marked(mark: str, sentence: str, width: int) -> List[str]:
    """Return a sentence with a sign before it as lines of at most ``width`` columns."""
    return textwrap.wrap(f"{mark} {sentence}", width, subsequent_indent="  ")


_TOOLS = (  # name, programs (the first found counts), ways to ask for the version, why it matters
    ("numactl", ("numactl",), (("--version",),), "bindings need it"),
    ("compiler", ("gcc", "cc", "clang"), (("--version",),), "the probe is built with it"),
    ("sysbench", ("sysbench",), (("--version",),), "the sysbench experiments need it"),
    ("stream", ("stream",), (), "bandwidth comes from the probe"),
    ("mlc", ("mlc",), (), "latency comes from the probe"),
    ("mysqld", ("mysqld", "mariadbd"), (("--version",),), "the MySQL experiments need it"),
    ("perf", ("perf",), (("--version",),), "no hardware counters"),
)
_PARANOID = "/proc/sys/kernel/perf_event_paranoid"
_SERVER_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec", "/usr/local/mysql/bin")


def tools(limit_s: float = 0.25) -> List[Dict[str, Any]]:
    """Return the programs that experiments use, as found on this host.

    Each is {"name", "path", "version", "usable", "why"}: ``why`` says what is missing, or why a
    version is unknown. All version commands run at the same time; one that has not answered
    within ``limit_s`` is killed. STREAM and MLC are never started: they would measure.
    """
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SERVER_FOLDERS])
    found, asked = [], []
    for name, programs, questions, purpose in _TOOLS:
        path = next((p for p in (shutil.which(n, path=search) for n in programs) if p), None)
        tool = {"name": name, "path": path, "version": None, "usable": bool(path), "why": purpose}
        found.append(tool)
        if path:
            tool["name"] = os.path.basename(path) if name in ("compiler", "mysqld") else name
            tool["why"] = None if questions else "its version is read from its results"
            asked += [(tool, _start([path, *question])) for question in questions]
            if name == "numactl":  # before 2.0.19 it knows no --version
                asked += [(tool, _start(argv)) for argv in _package_queries("numactl")]
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and any(_runs(process) for _, process in asked):
        time.sleep(0.002)
    for tool, process in asked:
        answer = _finish(process)
        version = re.search(r"\d+\.\d+(?:\.\d+)*", _without_brackets(answer or ""))
        if tool["name"] in ("mysqld", "mariadbd") and version:  # either may be called mysqld
            tool["name"] = "MariaDB" if "MariaDB" in str(answer) else "MySQL"
        if tool["version"] is None and version:
            tool["version"] = version.group(0)
    for tool in found:
        if tool["path"] and tool["version"] is None and tool["why"] is None:
            tool["why"] = f"it did not tell its version within {limit_s:g} s"
        if tool["name"] == "perf" and tool["path"]:
            tool["usable"], tool["why"] = _perf_use()
    return found


def _without_brackets(answer: str) -> str:
    """A version's line without what distributions put in brackets: gcc (Debian 12.2.0-1) 12.2.0."""
    return re.sub(r"\([^)]*\)", "", answer)


def _package_queries(package: str) -> List[List[str]]:
    queries = (
        ["dpkg-query", "-W", "-f", "${Version}", package],
        ["rpm", "-q", "--qf", "%{VERSION}", package],
    )
    return [query for query in queries if shutil.which(query[0])][:1]


def _start(argv: List[str]) -> Optional[subprocess.Popen]:
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError:
        return None


def _runs(process: Optional[subprocess.Popen]) -> bool:
    return process is not None and process.poll() is None


def _finish(process: Optional[subprocess.Popen]) -> Optional[str]:
    """The output of a program that ended well; one that still runs is killed with its children."""
    if process is None:
        return None
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            process.kill()
        process.wait()
    try:
        # A child that left the group may hold the pipe open: take what is there, never wait.
        os.set_blocking(process.stdout.fileno(), False)
        output = process.stdout.read() or b""
    finally:
        process.stdout.close()
    return output.decode("utf-8", "replace") if process.returncode == 0 else None


def _perf_use() -> Tuple[bool, Optional[str]]:
    """Whether perf may count here (Documentation/admin-guide/perf-security.rst)."""
    try:
        with open(_PARANOID, encoding="ascii") as file:
            paranoid = int(file.read())
    except (OSError, ValueError):
        return False, "this kernel has no performance events"
    if paranoid > 2 and os.geteuid() != 0:
        return False, f"no permission (kernel.perf_event_paranoid = {paranoid})"
    try:
        units = os.listdir("/sys/bus/event_source/devices")
    except OSError:
        units = []
    if not any(re.match(r"cpu\Z|cpu_|arm|cpum_cf\Z|.*pmu", unit) for unit in units):
        return True, "software events only: this machine shows no hardware counters"
    return True, None


def _tool_words(tool: Dict[str, Any]) -> str:
    if not tool["path"]:
        return f"– {tool['name']} ({tool['why']})"
    words = f"{tool['name']} {tool['version'] or ''}".strip()
    if not tool["usable"]:
        return f"– {words}: {tool['why']}"
    return f"✓ {words}" + (f" ({tool['why']})" if tool["why"] else "")
