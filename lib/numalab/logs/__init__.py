"""Outputs that were captured elsewhere: which parser reads them, and how they become a run.

Forms that the agent itself asks for are read by its own parsers (STREAM, MLC, sysbench, numa_maps,
perf's CSV and JSON), which are named here too. All others have a module here each, with a function
that returns flat records or raises ParseError with the line that it could not read.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from numalab.agent import drivers
from numalab.agent.contract import Record
from numalab.agent.errors import Fault
from numalab.agent.plan.grammar import suggestion

Parse = Callable[[str], list[Record]]


class Parser(NamedTuple):
    """Where a parser is (module and function; no module: the driver of that name), and its help."""

    module: str | None
    function: str
    help: str


PARSERS = {
    "lscpu": Parser("numalab.logs.lscpu", "parse", "lscpu: summary, -e, -p, -C, and their JSON"),
    "numactl": Parser("numalab.logs.numactl", "parse", "numactl --hardware, --show, or both"),
    "numastat": Parser("numalab.logs.numastat", "parse", "numastat, or a node's numastat"),
    "numa_maps": Parser("numalab.logs.numa_maps", "parse", "/proc/PID/numa_maps"),
    "meminfo": Parser("numalab.logs.procfs", "parse_meminfo", "/proc/meminfo, or nodes' meminfo"),
    "vmstat": Parser("numalab.logs.procfs", "parse_vmstat", "/proc/vmstat, or a node's vmstat"),
    "zoneinfo": Parser("numalab.logs.procfs", "parse_zoneinfo", "/proc/zoneinfo"),
    "mlc": Parser("numalab.agent.drivers.mlc", "parse_whole", "Intel Memory Latency Checker 3.x"),
    "stream": Parser(None, "stream", "STREAM 5.x"),
    "perf_stat": Parser("numalab.logs.perf", "parse", "perf stat: text, -x, -j"),
    "sysbench": Parser(None, "sysbench", "sysbench 0.4 to 1.1"),
    "mysql-errlog": Parser("numalab.logs.mysql", "parse_error_log", "MySQL's error log"),
    "mysql-status": Parser("numalab.logs.mysql", "parse_status", "SHOW GLOBAL STATUS"),
    "innodb-status": Parser("numalab.logs.mysql", "parse_innodb_status", "InnoDB's monitor"),
}
_ALIASES = {"perf": "perf_stat", "mysql-errorlog": "mysql-errlog"}


def parser(name: str) -> Parse:
    """Return the parse function of a form by its name, "-" and "_" being the same.

    Raises Fault with the known names.
    """
    plain = name.strip().lower()
    for spelling in (plain, plain.replace("-", "_"), plain.replace("_", "-")):
        known = _ALIASES.get(spelling, spelling)
        if known in PARSERS:
            module, function, _ = PARSERS[known]
            if module is None:
                return drivers.driver(function).parse
            found: Any = getattr(importlib.import_module(module), function)
            return found  # type: ignore[no-any-return]
    raise Fault(f"there is no parser named {name!r}", suggestion(plain, sorted(PARSERS)))


# Marks that only this tool prints; each is searched at the beginnings of lines.
_MARKS = (
    ("mlc", r"Intel\(R\) Memory Latency Checker - v|Measuring idle latencies\b"),
    ("stream", r"STREAM (?:version \$Revision|Version)|Function +Best Rate MB/s"),
    ("innodb-status", r".*INNODB MONITOR OUTPUT$"),
    (
        "sysbench",
        r"sysbench \d+\.\d+\S* (?:\(using|  ?multi-threaded)|sysbench \d+\.\d+\S*: +multi",
    ),
    ("sysbench", r"FATAL: `thread_(?:init|run)' function failed"),
    ("sysbench", r"\[ *\d+s ?\] (?:thds|threads): \d+|Threads fairness:|OLTP test statistics:"),
    ("perf_stat", r"Performance counter stats for |# +time +\w|# started on "),
    ("perf_stat", r'\{"(?:interval|counter-value|socket|core|cpu|node|die|thread)" : '),
    ("perf_stat", r"(?:[^,;]*[,;]){0,3}[\d.]+([,;])\w*\1[^\d\W][\w.:/=-]*\1\d+\1\d+\.\d\d"),
    ("numastat", r"Per-node (?:numastat|process|system)|node0 +node1|numa_hit +\d+( +\d+)+$"),
    ("numastat", r"\A(?:.*[$#>] .*\n)?numa_hit +\d+\nnuma_miss +\d+$"),
    ("numastat", r"node\d+\s*\n\s*numa_hit +\d+$"),
    ("numactl", r"available: \d+ nodes? \(|(?:preferred node: )?physcpubind:"),
    ("zoneinfo", r"Node +\d+, zone +\w+$"),
    ("meminfo", r"(?:Node +\d+ +)?MemTotal: +\d+ kB$"),
    ("numa_maps", r"[0-9a-f]{8,16} (?:default|prefer|bind|interleave|local|weighted interleave)\b"),
    ("vmstat", r"nr_free_pages \d+$"),
    (
        "lscpu",
        r"On-line CPU\(s\) list:|CPU NODE SOCKET CORE|# The following is the parsable format",
    ),
    ("lscpu", r'NAME +ONE-SIZE|.*"(?:lscpu|cpus|caches)": *\['),
    ("mysql-status", r"\|? *(?:Aborted_clients|Uptime|Threads_running)\s"),
    ("mysql-errlog", r"\d{6} +\d+:\d\d:\d\d +(?:mysqld|InnoDB|\[)|\d{4}-\d\d-\d\d[T ].* \[\w+\] "),
)
_COMPILED = [(name, re.compile(rf"^(?:{mark})", re.MULTILINE)) for name, mark in _MARKS]


def detect(text: str) -> str | None:
    """Return the parser's name for a text that bears the marks of exactly one tool, else None."""
    # The marks stand near a line's beginning: a long line costs no more than a short one.
    rows = text.replace("\r\n", "\n").split("\n")
    plain = "\n".join(re.sub(r"^[ \t>]+", "", row[:300]) for row in rows)
    found = {name for name, mark in _COMPILED if mark.search(plain)}
    if found >= {"vmstat", "zoneinfo"}:
        found.discard("vmstat")  # zoneinfo repeats vmstat's names, indented
    if "innodb-status" in found:
        found.discard("mysql-errlog")
    if "numastat" in found:
        found.discard("meminfo")
    return found.pop() if len(found) == 1 else None
