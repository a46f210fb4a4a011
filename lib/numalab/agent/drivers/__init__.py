"""The tools: one module each. Parsers for any captured output, drivers for what is measured.

A new tool is one file here with ``NAME`` and ``parse`` (and a driver's functions), and one line
in PARSERS (and MEASURING). A module of another room has a line in _ELSEWHERE. Everything is
imported when it is first asked for.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from ..errors import Fault

Parse = Callable[[str], List[Dict[str, Any]]]


class Parser(NamedTuple):
    """Where a parser is: module (see _ELSEWHERE), function in it, and one line of help."""

    module: str
    function: str
    help: str


PARSERS: Dict[str, Parser] = {
    "lscpu": Parser("lscpu", "parse", "lscpu: summary, -e, -p, -C, and their JSON"),
    "numactl": Parser("numactl", "parse", "numactl --hardware, --show, or both"),
    "numactl-hardware": Parser("numactl", "parse_hardware", "numactl --hardware"),
    "numactl-show": Parser("numactl", "parse_show", "numactl --show"),
    "numastat": Parser("numastat", "parse", "numastat in all its forms, or a node's numastat"),
    "numa_maps": Parser("numa_maps", "parse", "/proc/PID/numa_maps"),
    "meminfo": Parser("procfs", "parse_meminfo", "/proc/meminfo, or nodes' meminfo"),
    "vmstat": Parser("procfs", "parse_vmstat", "/proc/vmstat, or a node's vmstat"),
    "zoneinfo": Parser("procfs", "parse_zoneinfo", "/proc/zoneinfo"),
    "mlc": Parser("mlc", "parse", "Intel Memory Latency Checker 3.x"),
    "stream": Parser("stream", "parse", "STREAM 5.x"),
    "perf_stat": Parser("perf_stat", "parse", "perf stat: text, -x, -j"),
    "sysbench": Parser("sysbench", "parse", "sysbench 0.4 to 1.1"),
    "mysql-errlog": Parser("mysql", "parse_error_log", "MySQL's or MariaDB's error log"),
    "mysql-status": Parser("mysql", "parse_status", "SHOW GLOBAL STATUS"),
    "innodb-status": Parser("mysql", "parse_innodb_status", "SHOW ENGINE INNODB STATUS"),
}
_ALIASES = {"perf": "perf_stat", "mysql-errorlog": "mysql-errlog"}
MEASURING = (
    "allocation", "command", "host", "mlc", "mysql_server", "probe", "stream", "sysbench",
)  # fmt: skip
# those that are not of this package
_ELSEWHERE = {
    "mysql_server": "served.mysql.driver",
    "numa_maps": "trial.numa_maps",
    "perf_stat": "collectors.perf_stat",
}


def _module(name: str) -> Any:
    if name in _ELSEWHERE:
        return importlib.import_module(f"{__name__.rpartition('.')[0]}.{_ELSEWHERE[name]}")
    return importlib.import_module(f"{__name__}.{name}")


def parser(name: str) -> Parse:
    """Return the parse function of a tool by its name, "-" and "_" being the same.

    Raises Fault with the known names.
    """
    plain = name.strip().lower()
    for known in (plain, plain.replace("-", "_"), plain.replace("_", "-")):
        known = _ALIASES.get(known, known)
        if known in PARSERS:
            entry = PARSERS[known]
            return getattr(_module(entry.module), entry.function)  # type: ignore[no-any-return]
    raise Fault(f"there is no parser named {name!r}", f"known: {', '.join(sorted(PARSERS))}")


def driver(name: str) -> Any:
    """Return the module of a measuring tool by its name; Fault with the known names."""
    if name not in MEASURING:
        raise Fault(f"there is no measuring tool named {name!r}", f"known: {', '.join(MEASURING)}")
    return _module(name)


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
    ("numastat", r"\Anuma_hit +\d+\nnuma_miss +\d+$"),
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


def detect(text: str) -> Optional[str]:
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
