"""A private MySQL or MariaDB server under the cell's binding, asked by sysbench: the driver.

What a trial does is in this package. Only the server is bound; sysbench runs on CPUs of its
own, the same in every cell, which are taken from every other cell where the host has enough.

Records (from what the trial's own process prints, see ``stage.py``):

- ``server``: ``title``, ``build``, ``settings`` (as written), ``data`` (reused, cloned, copied) …
- ``ready``: what the start and the warm-up took
- ``run``: ``instance`` (its name; "" of the only one), ``clients``, ``elapsed_s``,
  ``exit_status``, ``client_cpu_s``; ``server`` (CPU time, faults, context switches) and ``status``
  (the server's counters), both as differences
- every record of ``sysbench`` of that run, with ``instance``
- ``end``: ``stop_s``; ``fault``: ``what``; ``incomplete``: the run has no result
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Dict, List, Optional

from ... import cpulist
from ...drivers import sysbench
from ...drivers.stream import last_level_caches
from ...errors import Fault, ParseError
from ...paths import published
from ...plan import bindings
from . import data, remote, server

NAME = "mysql_server"
PROTOCOL = "handshake"
BINDS_ITSELF = True  # the server alone gets the cell's numactl prefix
SWITCHES_OFTEN = True  # once a query: perf's software events cost 1 in 20 queries, measured
BINDING_OPTIONS = ("innodb_numa_interleave",)
QUIT_S = server.STOP_LIMIT_S + 15

Record = Dict[str, Any]

WORKLOADS = ("oltp_point_select", "oltp_read_only", "oltp_read_write")
_OPTIONS: Dict[str, Any] = {
    "workload": WORKLOADS[0],
    "tables": 4,
    "rows": 25_000,
    "clients": "cpus",
    "time_s": 10,
    "warmup_s": 3,
    "seed": 1,
    "rate": 0,
    "pool": "auto",
    "innodb_numa_interleave": "OFF",
    "client_cpus": "auto",
    "client_host": None,
    "server": None,
    "prefer": list(server.VENDORS),
    "sysbench": None,
    "server_options": {},
}
_FEWEST_CORES = 4  # that a node has, for one of them to be the client's
_CLIENT_SHARE = 4  # one core in so many
_POOL_STEP = 128 << 20
_SERVER_BYTES, _SESSION_BYTES = 320 << 20, 1 << 20  # beside the buffer pool
_FILL_BYTES_S = 300e6  # for estimates only
_START_S, _COPY_BYTES_S = 1.5, 150e6


def find(options: Dict[str, Any]) -> Dict[str, Any]:
    """Return the server's and sysbench's paths and versions; Fault when either is missing."""
    client = sysbench.find({"path": options.get("sysbench")})
    found = server.find(options.get("server"), options.get("prefer") or server.VENDORS)
    used = client["version"]
    if options.get("client_host"):
        used = f"{remote.look(options['client_host']).version} on {options['client_host']}"
    return {
        "path": found.path,
        "version": f"{found.vendor} {found.build}; sysbench {used}",
        "server": found.title,
        "sysbench": client["path"],
        "sysbench_version": client["version"],
    }


def set_aside(
    options: Dict[str, Any], asked: List[Any], topology: Dict[str, Any]
) -> Dict[str, Optional[str]]:
    """Return the client's CPUs: ``{"cpus": list or None, "why": …}``; None: it shares the server's.

    On another host (``host`` names it then) it takes none of this one's.

    They are whole cores, the last quarter of every node's, where every node has four cores at
    least; CPUs that a binding of ``asked`` names are left to the server. So all cells lose alike,
    and no cell's client is nearer to its server than another's.
    """
    host = bindings.Host(topology)
    wanted = str(options.get("client_cpus", "auto"))
    if options.get("client_host"):
        if wanted != "auto":
            raise Fault("client_cpus are this host's, client_host is another", "leave one out")
        return {"cpus": None, "why": None, "host": options["client_host"]}
    if wanted == "share":
        return {"cpus": None, "why": "as asked"}
    if wanted != "auto":
        numbers = cpulist.parse(wanted)
        missing = [n for n in numbers if n not in host.cpus]
        if missing or not numbers:
            raise Fault(
                f"client_cpus: {wanted}: CPUs {cpulist.format(missing) or 'none'} cannot be used",
                f"CPUs that may be used: {cpulist.format(host.cpus)}",
            )
        if len(numbers) == len(host.cpus):
            return {"cpus": None, "why": "all CPUs are the client's"}
        return {"cpus": cpulist.format(numbers), "why": None}
    named = set()
    for binding in map(bindings.parse, asked):
        if binding.name == "cpus":
            named |= set(cpulist.parse(binding.argument[0]))
    taken: List[int] = []
    for node, cpus in host.cpus_of.items():
        cores = host.cores(cpus)
        if len(cores) < _FEWEST_CORES:
            number = f"{len(cores)} core" + ("" if len(cores) == 1 else "s")
            return {
                "cpus": None,
                "why": f"node {node} has {number}: too few for the client to have its own",
            }
        free = [core for core in cores if not named & set(core)]
        for core in free[-max(1, len(cores) // _CLIENT_SHARE) :]:
            taken += core
    if not taken:
        return {"cpus": None, "why": "the bindings name every CPU"}
    return {"cpus": cpulist.format(taken), "why": None}


def prepare(
    options: Dict[str, Any], topology: Dict[str, Any], cpus: str, memory_nodes: str
) -> Dict[str, Any]:
    """Return the resolved options and the memory needed (bytes); Fault for a bad option.

    ``topology`` is the one that ``set_aside`` was applied to: its ``client`` says what came out.
    """
    unknown = set(options) - set(_OPTIONS)
    if unknown:
        raise Fault(
            f"mysql_server has no option {sorted(unknown)[0]!r}", f"known: {', '.join(_OPTIONS)}"
        )
    given = {**_OPTIONS, **options}
    if given["workload"] not in WORKLOADS:
        raise Fault(f"there is no workload {given['workload']!r}", f"known: {', '.join(WORKLOADS)}")
    for name, least in (("tables", 1), ("rows", 1), ("seed", 1), ("warmup_s", 0)):
        _whole(name, given[name], least)
    _whole("time_s", given["time_s"], 1)
    found = server.find(given["server"], given["prefer"])
    client = topology.get("client") or {"cpus": None, "why": None}
    every = bindings.any_cpus(topology)
    notes = []
    interleave = _on_or_off(given["innodb_numa_interleave"])
    if "innodb_numa_interleave" not in found.known:
        if interleave == "ON":
            raise Fault(f"{found.title} was built without libnuma: no innodb_numa_interleave", None)
        interleave = ""
        notes.append(f"{found.title} was built without innodb_numa_interleave")
    resolved = {
        "workload": given["workload"],
        "tables": given["tables"],
        "rows": given["rows"],
        "clients": _clients(given["clients"], topology),
        "time_s": given["time_s"],
        "warmup_s": given["warmup_s"],
        "seed": given["seed"],
        "rate": _rate(given["rate"], topology),
        "innodb_numa_interleave": interleave,
        "client_cpus": client["cpus"] or every,
        "client_shares": client["cpus"] is None and not given["client_host"],
        "server": published(given["server"]),
        "prefer": given["prefer"],
        "server_options": given["server_options"],
        "writes": given["workload"] == "oltp_read_write",
    }
    if given["client_host"]:
        resolved["client_host"] = given["client_host"]
    resolved["pool_bytes"] = _pool(given["pool"], data.table_bytes(resolved))
    server.settings(found, resolved, given["server_options"])  # a Fault here, not in every trial
    if data.known(data.place(found, resolved)) is None:
        need, free = data.disk_bytes(resolved), data.free_bytes()
        if need > free:
            raise Fault(
                f"the data set needs about {data.gigabytes(need)} of disk in "
                f"{data.cache_folder()}, where {data.gigabytes(free)} are free",
                "free some space, let XDG_CACHE_HOME name another disk, or ask for fewer rows",
            )
    if given["client_host"]:
        notes.append(f"the client is on {given['client_host']}: latencies hold the network's")
    elif resolved["client_shares"] or set(cpulist.parse(cpus)) & set(
        cpulist.parse(resolved["client_cpus"])
    ):
        notes.append("client shares CPUs with the server")
    caches = last_level_caches(topology, cpus)
    if caches and data.table_bytes(resolved) < caches:
        notes.append(
            f"the tables ({data.gigabytes(data.table_bytes(resolved))}) fit into the last-level "
            f"caches ({data.gigabytes(caches)}): the distance of memory shows less than it could"
        )
    sessions = resolved["clients"] * _SESSION_BYTES
    need = int(resolved["pool_bytes"] * 1.05) + _SERVER_BYTES + sessions
    return {"options": resolved, "need_bytes": need, "notes": notes}


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Fault(
            f"mysql_server: {name} {value!r} is not a whole number of at least {least}",
            "0 as a seed would mean: from the clock" if name == "seed" else None,
        )
    return value


def _on_or_off(value: Any) -> str:
    # YAML reads a bare ON as true.
    known = {True: "ON", False: "OFF", "ON": "ON", "OFF": "OFF", "on": "ON", "off": "OFF"}
    if not isinstance(value, (bool, str)) or value not in known:
        raise Fault(f"innodb_numa_interleave {value!r} is neither ON nor OFF", None)
    return known[value]


def resolve(option: str, value: Any, topology: Dict[str, Any]) -> Any:
    """Return an option's value as ``prepare`` would resolve it, for the name of a swept cell."""
    if option == "clients":
        return _clients(value, topology)
    if option == "innodb_numa_interleave":
        return _on_or_off(value)
    return value


def _clients(value: Any, topology: Dict[str, Any]) -> int:
    """Return a number of client threads: a number, or a word for the host's usable CPUs."""
    cpus = len(cpulist.parse(bindings.any_cpus(topology)))
    words = {"cpus": cpus, "half-cpus": max(1, cpus // 2), "2x-cpus": 2 * cpus, "4x-cpus": 4 * cpus}
    number = words.get(value, value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 10_000:
        raise Fault(
            f"clients: {value!r} is not a number of client threads",
            f"write a number from 1, or {', '.join(words)}",
        )
    return number


def _rate(value: Any, topology: Dict[str, Any]) -> int:
    """Return transactions a second that each client starts, 0 for as many as it can.

    ``"400/cpu"`` is so many for each of the host's usable CPUs.
    """
    match = re.fullmatch(r"(\d+)/cpu", value) if isinstance(value, str) else None
    if match:
        return int(match[1]) * len(cpulist.parse(bindings.any_cpus(topology)))
    return _whole("rate", value, 0)


def _pool(value: Any, tables: int) -> int:
    """Return the buffer pool's bytes: what the tables need and a quarter more, in whole steps."""
    least = tables + tables // 4 + (64 << 20)
    if value == "auto":
        step = _POOL_STEP * server.pool_instances(least)  # else the server rounds it up by itself
        return -(-least // step) * step
    if isinstance(value, bool) or not isinstance(value, int) or value < tables:
        raise Fault(
            f"pool {value!r} does not hold the tables ({data.gigabytes(tables)})",
            "write a number of bytes that does, or auto: this measures memory, not the disk",
        )
    return value


def expects(
    options: Dict[str, Any], cell: Dict[str, Any], topology: Dict[str, Any]
) -> Optional[Dict[str, Any]]:
    """Return what memory proof a cell needs instead of its binding's own, or None.

    Where InnoDB interleaves its buffer pool and the binding leaves memory alone, the pool itself
    must be interleaved over all nodes that the binding allows.
    """
    bound = cell["memory"]["policy"] in ("bind", "interleave")
    nodes = bindings.Host(topology).memory_nodes
    if options["innodb_numa_interleave"] != "ON" or bound or len(nodes) < 2:
        return None
    return {
        "proof": "required",
        "rule": "shares",
        "nodes": cpulist.format(nodes),
        "within_points": 5,
        "policy": "interleave",
    }


def argv(found: Dict[str, Any], options: Dict[str, Any], cell: Dict[str, Any]) -> List[str]:
    """Return the command line of the trial's own process; the server's prefix is a word of it."""
    words = [sys.executable, "-m", "numalab.agent.served.mysql.stage"]
    words += ["--server", found["path"], "--sysbench", found["sysbench"]]
    seats = cell.get("instances") or [{"name": "", "numactl": cell["numactl"]}]
    seats = [{"name": seat["name"], "numactl": seat["numactl"]} for seat in seats]
    words += ["--seats", json.dumps(seats)]
    return [*words, "--options", json.dumps(options, sort_keys=True)]


def environment(options: Dict[str, Any], cell: Dict[str, Any]) -> Dict[str, str]:
    """Return what the trial's own process needs to find this package."""
    return data.environment()


def timing(options: Dict[str, Any]) -> Dict[str, float]:
    """Return the planned seconds: start and copy, warm-up with filling the pool, measurement."""
    tables = data.table_bytes(options)
    copy = tables / _COPY_BYTES_S if options["writes"] else 0.0
    return {
        "setup_s": _START_S + copy,
        "warmup_s": 0.2 + tables / _FILL_BYTES_S + options["warmup_s"] + 1,
        "measure_s": float(options["time_s"]),
    }


def outlay(cells: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Return what must be there before the first trial: seconds, disk and memory bytes, in words.

    ``prepare_s`` is 0 when every data set is in the cache.
    """
    sets: Dict[str, Dict[str, Any]] = {}
    copies: Dict[str, int] = {}
    for cell in cells:
        options = cell["options"]
        key = f"{options['tables']}x{options['rows']}"
        sets.setdefault(key, options)
        copies[key] = max(copies.get(key, 1), len(cell.get("instances") or ()))
    seconds, disk, words = 0.0, 0, []
    for key, options in sets.items():
        rows = options["tables"] * options["rows"]
        size = data.disk_bytes(options, copies[key])
        words.append(
            f"data set: {rows:,} rows in {options['tables']} tables, {data.gigabytes(size)} of disk"
        )
        disk += size
        found = server.find(options["server"], options["prefer"])
        if data.known(data.place(found, options)) is None:
            seconds += data.load_s(options)
    memory = max((cell["need_bytes"] for cell in cells), default=0)
    words.append(f"{data.gigabytes(memory)} of memory")
    return {
        "prepare_s": round(seconds, 1),
        "disk_bytes": disk,
        "memory_bytes": memory,
        "says": "; ".join(words),
    }


def make_ready(
    cells: List[Dict[str, Any]],
    found: Dict[str, Any],
    tell: Any,
    stopped: Any,
    lock: int,
) -> None:
    """Prepare every data set that the cells need and the cache has not; see ``data.ensure``."""
    done = set()
    for cell in cells:
        options = cell["options"]
        key = (options["tables"], options["rows"])
        if key not in done and not stopped():
            data.ensure(found, options, tell, stopped, lock)
        done.add(key)


# --- reading ----------------------------------------------------------------------------------


def parse(text: str) -> List[Record]:
    """Return the records of one trial's output; ParseError for a line that it does not print."""
    out: List[Record] = []
    events = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
            name = event["event"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ParseError(NAME, number, line, "this is not an event") from None
        events.append(name)
        if name == "run":
            _run(number, line, event, out)
        elif name in ("server", "ready", "result", "end", "fault", "warmup"):
            out.append({**{k: v for k, v in event.items() if k != "event"}, "kind": name})
        else:
            raise ParseError(NAME, number, line, f"the event {name!r} is not known here")
    if "result" not in events:
        out.append({"kind": "incomplete", "reason": "the trial has no result"})
    return out


_RUN = ("instance", "clients", "elapsed_s", "text", "exit_status", "client_cpu_s")


def _run(number: int, line: str, event: Dict[str, Any], out: List[Record]) -> None:
    missing = [key for key in _RUN if key not in event]
    if missing:
        raise ParseError(NAME, number, line, f"the run lacks {missing[0]}")
    run = {k: v for k, v in event.items() if k not in ("event", "text")}
    out.append({**run, "kind": "run"})
    try:
        inner = sysbench.parse(event["text"])
    except ParseError as error:
        if event["exit_status"] == 0:
            raise
        inner = [{"kind": "failure", "level": None, "code": None, "text": str(error)}]
    out += [{**record, "instance": event["instance"]} for record in inner]


def doubts(records: List[Record], options: Dict[str, Any]) -> List[str]:
    """Return what a reader must know of a trial that ended well."""
    said = []
    runs = [r for r in records if r["kind"] == "run"]
    for run in runs:
        if run.get("late_s", 0) > 0.1 * run["elapsed_s"]:
            late = f"{run['late_s']:.1f} s after the measurement"
            said.append(f"{_of(run)}the counters beside it began {late}")
        reads = (run.get("status") or {}).get("Innodb_buffer_pool_reads")
        if reads:
            said.append(
                f"{_of(run)}not warm: the server read {reads} pages from the disk while it was "
                "measured"
            )
    cpus = len(cpulist.parse(options["client_cpus"]))
    if options.get("client_host"):
        cpus = max((run.get("client_cpus", 1) for run in runs), default=1)
    own = cpus * max((run["elapsed_s"] for run in runs), default=0.0)
    used = sum(run["client_cpu_s"] for run in runs)
    if not options["client_shares"] and used > 0.9 * own:
        said.append(f"sysbench was the limit: it used {used / own:.0%} of its own CPUs")
    return said


def failure(records: List[Record], options: Dict[str, Any]) -> Optional[str]:
    """Return why the figures of a trial must not be used, or None.

    A workload that only reads has no reason for an error. One that writes may lose deadlocks,
    which sysbench repeats; more than one in a hundred transactions would be another workload.
    """
    for run in (r for r in records if r["kind"] == "run"):
        final = _final(records, run)
        lost = final.get("reconnects") or 0
        if lost:
            return f"{_of(run)}sysbench lost its connection {lost:.0f} times"
        errors, done = final.get("ignored_errors") or 0, final.get("transactions") or 0
        if errors > (0.01 * done if options["writes"] else 0):
            return f"{_of(run)}sysbench met {errors:.0f} errors in {done:.0f} transactions"
        if not done:
            return f"{_of(run)}sysbench completed no transaction"
    return None


def metrics(records: List[Record]) -> List[Record]:
    """Return the metrics of each instance, its name as the point ("" of the only one).

    queries_per_second, transactions_per_second, latency_avg, latency_p50, latency_p95,
    latency_p99, latency_max (ms, of the full histogram: upper edges of its buckets), errors,
    reconnects, server_cpu_time (s), cpu_per_query (µs), context_switches_per_query, faults,
    pool_reads (pages read from the disk), client_cpu_time (s).
    """
    out: List[Record] = []
    for number, run in enumerate(r for r in records if r["kind"] == "run"):
        own = [r for r in records if r.get("instance") == run["instance"] and r is not run]
        final = _final(records, run)
        why = None
        failed = [r for r in own if r["kind"] in ("failure", "incomplete")]
        if failed:
            why = str(failed[0].get("text") or failed[0].get("reason"))
        queries, used = final.get("queries"), run.get("server")
        rows: List[tuple] = [
            ("queries_per_second", final.get("queries_per_second"), "1/s"),
            ("transactions_per_second", final.get("transactions_per_second"), "1/s"),
            ("latency_avg", final.get("latency_avg"), "ms"),
        ]
        buckets = [r for r in own if r["kind"] == "histogram" and "checkpoint_s" not in r]
        for percent in (50, 95, 99):
            rows.append((f"latency_p{percent}", sysbench.percentile(buckets, percent), "ms"))
        rows.append(("latency_max", final.get("latency_max"), "ms"))
        rows.append(("errors", final.get("ignored_errors"), "count"))
        rows.append(("reconnects", final.get("reconnects"), "count"))
        cpu = used["cpu_s"] if used else None
        rows += [
            ("server_cpu_time", cpu, "s"),
            ("cpu_per_query", _each(cpu, queries, 1e6), "µs"),
            ("context_switches_per_query", _each(used and used["switches"], queries), "1"),
            ("minor_faults", used and used["minor_faults"], "count"),
            ("major_faults", used and used["major_faults"], "count"),
            ("pool_reads", (run.get("status") or {}).get("Innodb_buffer_pool_reads"), "pages"),
            ("client_cpu_time", run["client_cpu_s"], "s"),
        ]
        for name, value, unit in rows:
            reason = None
            if value is None:
                reason = why or "sysbench did not say it"
            out.append(
                {
                    "metric": name, "value": None if value is None else float(value),
                    "unit": unit, "point": run["instance"],
                    "x": float(number) if run["instance"] else None, "y": None, "reason": reason,
                }
            )  # fmt: skip
    return out


def _each(amount: Optional[float], by: Optional[float], scale: float = 1.0) -> Optional[float]:
    return None if amount is None or not by else amount * scale / by


def samples(records: List[Record]) -> List[Record]:
    """Return the per-second series of each run (QPS, TPS, p95 latency), its warm-up left out."""
    out: List[Record] = []
    lead_s = {r["instance"]: r.get("lead_s", 0) for r in records if r["kind"] == "run"}
    for r in records:
        t_s = r["t_s"] - lead_s[r["instance"]] if r["kind"] == "report" else 0
        if t_s <= 0:
            continue
        for field, metric, unit in (
            ("qps", "queries_per_second", "1/s"), ("tps", "transactions_per_second", "1/s"),
            ("latency", "latency_p95", "ms"), ("errors", "errors_per_second", "1/s"),
        ):  # fmt: skip
            if field in r:
                out.append(
                    {
                        "t_s": float(t_s), "metric": metric, "value": float(r[field]),
                        "point": r["instance"], "unit": unit,
                    }
                )  # fmt: skip
    return out


def _final(records: List[Record], run: Record) -> Dict[str, float]:
    return {
        str(r["name"]): float(r["value"])
        for r in records
        if r["kind"] == "result"
        and r.get("instance") == run["instance"]
        and "checkpoint_s" not in r  # the warm-up's
    }


def _of(run: Record) -> str:
    return f"{run['instance']}: " if run["instance"] else ""
