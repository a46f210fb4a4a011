"""A private MySQL or MariaDB server under the cell's binding, asked by sysbench: the driver."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ... import cpulist
from ...contract import (
    Advice,
    Cell,
    Host,
    Outlay,
    Plan,
    Prepared,
    Reason,
    Record,
    ToolRecord,
    reason,
)
from ...drivers import options as check
from ...drivers import sysbench
from ...errors import Fault
from ...paths import published
from .. import files, remote
from ..driver import KEPT_RATE, Figure, ServedDriver, runs_of, share, usage_figures
from . import server, sizes
from .data import SysbenchTables, table_bytes
from .instance import WAITS

WORKLOADS = ("oltp_point_select", "oltp_read_only", "oltp_read_write")
_INTERLEAVE = "innodb_numa_interleave"
_OPTIONS: Mapping[str, Any] = {
    "workload": WORKLOADS[0],
    "tables": 4,
    "rows": 25_000,
    "data_limit": "2GiB",
    "instances": 1,
    "clients": "cpus",
    "time_s": 10,
    "warmup_s": 3,
    "seed": 1,
    "rate": 0,
    "pool": "auto",
    _INTERLEAVE: "OFF",
    "client_cpus": "auto",
    "client_host": None,
    "server": None,
    "prefer": list(server.VENDORS),
    "sysbench": None,
    "server_options": {},
}
_SERVER_BYTES, _SESSION_BYTES = 320 << 20, 1 << 20  # beside the buffer pool
_COPY_BYTES_S = 300e6  # for estimates only
_WORDS = {True: "ON", False: "OFF", "ON": "ON", "OFF": "OFF", "on": "ON", "off": "OFF"}


class MySQL(ServedDriver):
    """Only the server is bound; sysbench runs on CPUs of its own, the same in every cell."""

    name = "mysql_server"
    module = "numalab.agent.served.mysql.trial"
    client = "sysbench"
    # What sysbench needs to ask MariaDB's point selects as fast as it answers is 0.35 of the CPU
    # time of both, MySQL's 0.26; measured.
    client_share = 0.4
    series = {
        "qps": ("queries_per_second", "1/s"),
        "tps": ("transactions_per_second", "1/s"),
        "latency": ("latency_p95", "ms"),
        "errors": ("errors_per_second", "1/s"),
    }
    recorded: Optional[server.Server] = None  # of a plan that is made again

    def of_record(self, plan: Plan) -> MySQL:
        """As of the base: the server is as the plan says, none is looked for."""
        made = MySQL()
        interleaves = any(cell.options.get(_INTERLEAVE) for cell in plan.cells)
        known = {_INTERLEAVE: ""} if interleaves else {}
        vendor, _, version = str(plan.tool.facts.get("server") or "").rpartition(" ")
        made.recorded = server.Server("", vendor, version, "", known)
        return made

    def find(self, options: Mapping[str, Any]) -> ToolRecord:
        """Return the server's and sysbench's paths and versions; Fault when either is missing."""
        client = sysbench.Sysbench().find({"path": options.get("sysbench")})
        found = _server(options)
        used = str(client.version)
        if options.get("client_host"):
            host = options["client_host"]
            used = f"{remote.look(host, self.client).version} on {host}"
        return ToolRecord(
            self.name,
            f"{found.vendor} {found.build}; sysbench {used}",
            published(found.path),
            facts={
                "server": found.title,
                "sysbench": published(client.path),
                "sysbench_version": client.version,
            },
        )

    def binding_options(self, options: Mapping[str, Any]) -> Tuple[str, ...]:
        """As of the base."""
        return (_INTERLEAVE,)

    # --- planning -----------------------------------------------------------------------------

    def prepare(
        self, options: Mapping[str, Any], host: Host, cpus: str, memory_nodes: str
    ) -> Prepared:
        """Return the resolved options and the memory needed; Fault for a bad option.

        ``host`` is the one that ``set_aside`` was applied to: its ``client`` says what came out.
        """
        check.known(self.name, options, _OPTIONS)
        given = {**_OPTIONS, **options}
        check.choice("workload", given["workload"], WORKLOADS)
        if given["seed"] == 0:
            raise Fault("seed 0 would mean: from the clock", "write a number from 1")
        for name in ("tables", "instances", "time_s", "seed"):
            check.whole(name, given[name], 1)
        check.whole("warmup_s", given["warmup_s"], 0)
        found, part = self.recorded or _server(given), share(host, given["instances"])
        kept = ("workload", "tables", "instances", "time_s", "warmup_s", "seed", "prefer")
        resolved: Dict[str, Any] = {
            **{name: given[name] for name in kept},
            "rows": sizes.rows(given, host),
            "clients": sizes.clients(given["clients"], part),
            "rate": sizes.rate(given["rate"], part),
            "loaders": min(given["tables"], len(host.usable) or 1),
            _INTERLEAVE: _interleave(given[_INTERLEAVE], found),
            "server": published(given["server"]),
            "server_options": given["server_options"],
            "writes": given["workload"] == "oltp_read_write",
            **self.client_options(given, host),
        }
        pool_bytes, parts = sizes.pool(given["pool"], table_bytes(resolved), part)
        resolved.update(pool_bytes=pool_bytes, pool_parts=parts)
        resolved["redo_bytes"] = sizes.redo(resolved, part)
        if not self.recorded:
            server.settings(found, resolved, given["server_options"])  # a Fault here, not later
        if host.root == "/":
            files.check(server.open_files(resolved), resolved["clients"])
            _tables(resolved).check_room()
        timing = sizes.timing(resolved, len(cpulist.parse(cpus)), found.is_mariadb)
        sessions = resolved["clients"] * _SESSION_BYTES
        need = int(pool_bytes * 1.05) + _SERVER_BYTES + sessions
        return Prepared(resolved, need, self._notes(resolved, found, host, cpus), timing=timing)

    def _notes(
        self, options: Mapping[str, Any], found: server.Server, host: Host, cpus: str
    ) -> Tuple[Reason, ...]:
        """Return what a reader must know of a cell of these CPUs."""
        notes = self.client_notes(options, cpus)
        if not options[_INTERLEAVE]:
            notes.insert(0, reason("setting-not-built-in", title=found.title, setting=_INTERLEAVE))
        if options[_INTERLEAVE] == "ON" and host.memory_only:
            nodes = cpulist.format(host.memory_only)
            notes.append(reason("interleaves-over-memory-only", setting=_INTERLEAVE, nodes=nodes))
        small = sizes.below_caches(options, host, cpus)
        if small:
            notes.append(reason("data-below-caches", **small))
        if options["writes"]:
            notes.append(reason("writes-as", redo=options["redo_bytes"]))
        return tuple(notes)

    def resolve(self, option: str, value: Any, host: Host) -> Any:
        """Return an option's value as ``prepare`` would resolve it, to name a swept cell."""
        if option == "clients":
            return sizes.clients(value, share(host, 1))
        return _on_or_off(value) if option == _INTERLEAVE else value

    def interleaves(self, options: Mapping[str, Any]) -> bool:
        """As of the base: InnoDB does, its buffer pool."""
        return bool(options[_INTERLEAVE] == "ON")

    def data_set(self, found: ToolRecord, options: Mapping[str, Any]) -> SysbenchTables:
        """As of the base."""
        return SysbenchTables(found, options)

    def outlay(self, cells: Sequence[Cell]) -> Optional[Outlay]:
        """Return what must be there before the first trial; no seconds when all of it is."""
        sets: Dict[Any, List[Cell]] = {}
        for cell in cells:
            sets.setdefault((cell.options["tables"], cell.options["rows"]), []).append(cell)
        seconds, disk, said = 0.0, 0, []
        for (tables, rows), users in sets.items():
            data = _tables(users[0].options)
            copies = max(max(1, len(cell.instances)) for cell in users)
            size = data.disk_bytes(copies)
            disk += size
            if not data.record():
                seconds += data.load_s + copies * table_bytes(data.options) / _COPY_BYTES_S
            said.append({"rows": tables * rows, "tables": tables, "bytes": size})
        memory = max((cell.need_bytes for cell in cells), default=0)
        says = reason("needs-tables", sets=said, memory=memory)
        return Outlay(round(seconds, 1), disk, memory, says)

    # --- reading ------------------------------------------------------------------------------

    def parse_client(self, text: str, run: Record) -> List[Record]:
        """Return the records of sysbench."""
        return sysbench.parse(text)

    def doubts(self, records: Sequence[Record], options: Mapping[str, Any]) -> List[Reason]:
        """As of the base; whether the disk was measured too, and whether the rate was kept."""
        found = super().doubts(records, options)
        for run in runs_of(records):
            who = {"instance": run["instance"]}
            if _pool_reads(run):
                found.append(reason("not-warm", **who, pages=_pool_reads(run)))
            # No page is flushed ahead of time: it is when the redo log fills up.
            waits, pages = _disk_waits(run), _counted(run, "Innodb_buffer_pool_pages_flushed")
            if waits or pages:
                found.append(reason("waited-for-disk", **who, waits=waits or 0, pages=pages or 0))
            done = final_results(records, run).get("transactions_per_second") or 0.0
            if done < KEPT_RATE * options["rate"]:
                found.append(reason("rate-missed", **who, asked=options["rate"], done=done))
        return found

    def failure(self, records: Sequence[Record], options: Mapping[str, Any]) -> Optional[Reason]:
        """Return why the figures of a trial must not be used, or None.

        A workload that only reads has no reason for an error. One that writes may lose deadlocks,
        which sysbench repeats; more than one in a hundred transactions would be another workload.
        """
        for run in runs_of(records):
            final = final_results(records, run)
            who = {"instance": run["instance"], "client": self.client}
            lost = final.get("reconnects") or 0
            if lost:
                return reason("client-lost-connection", **who, times=int(lost))
            errors, done = final.get("ignored_errors") or 0, final.get("transactions") or 0
            if errors > (0.01 * done if options["writes"] else 0):
                counts = {"errors": int(errors), "transactions": int(done)}
                return reason("client-met-errors", **who, **counts)
            if not done:
                return reason("client-did-nothing", **who)
        return None

    def figures(self, run: Record, own: Sequence[Record]) -> List[Figure]:
        """Return throughput, latencies (ms, of the full histogram: upper edges of its buckets),

        errors, what server and client used, and the pages that the server read from the disk.
        """
        final = final_results(own, run)
        buckets = [r for r in own if r["kind"] == "histogram" and "checkpoint_s" not in r]
        return [
            ("queries_per_second", final.get("queries_per_second"), "1/s"),
            ("transactions_per_second", final.get("transactions_per_second"), "1/s"),
            ("latency_avg", final.get("latency_avg"), "ms"),
            *(
                (f"latency_p{percent}", sysbench.percentile(buckets, percent), "ms")
                for percent in (50, 95, 99)
            ),
            ("latency_max", final.get("latency_max"), "ms"),
            ("errors", final.get("ignored_errors"), "count"),
            ("reconnects", final.get("reconnects"), "count"),
            *usage_figures(run, final.get("queries")),
            ("pool_reads", _pool_reads(run), "pages"),
            ("pages_flushed", _counted(run, "Innodb_buffer_pool_pages_flushed"), "pages"),
            ("fsyncs", _counted(run, "Innodb_data_fsyncs"), "count"),
            ("disk_waits", _disk_waits(run), "count"),
        ]

    def advice(self, found: ToolRecord, cell: Cell) -> Advice:
        """Return the server's names, and InnoDB's own interleaving as it was in the cell.

        Left out of my.cnf, it may be on by default.
        """
        mariadb = "mariadb" in f"{found.version or ''} {found.path or ''}".lower()
        program, service = ("mariadbd", "mariadb") if mariadb else ("mysqld", "mysql")
        value = cell.options.get(_INTERLEAVE)
        if value not in ("ON", "OFF"):  # "": the server was built without it
            return Advice(program, service)
        lines = (f"[{program}]", f"{_INTERLEAVE} = {value}")
        remark = "MySQL 8.4 and newer turn it on by default"
        if mariadb:
            remark = "some builds of MariaDB lack it, and refuse the line"
        elif value == "OFF" and cell.memory.policy == "bind":
            remark += (
                "; then the buffer pool lies on all nodes, whatever binds it to node "
                f"{cell.memory.nodes}"
            )
        return Advice(program, service, "my.cnf", lines, (remark,))


def final_results(records: Sequence[Record], run: Record) -> Dict[str, float]:
    """Return the results of a run's final report, without those of its warm-up."""
    return {
        str(r["name"]): float(r["value"])
        for r in records
        if r["kind"] == "result"
        and r.get("instance") == run["instance"]
        and "checkpoint_s" not in r
    }


def _counted(run: Record, name: str) -> Optional[int]:
    """Return how much one of the server's counters grew while it was measured."""
    status: Mapping[str, int] = run.get("status") or {}
    return status.get(name)


def _pool_reads(run: Record) -> Optional[int]:
    """Return the pages that the server read from the disk while it was measured."""
    return _counted(run, "Innodb_buffer_pool_reads")


def _disk_waits(run: Record) -> Optional[int]:
    """Return how often a session waited for the disk: for room in the redo log or the pool."""
    known = [n for n in (_counted(run, name) for name in WAITS) if n is not None]
    return sum(known) if known else None


def _server(options: Mapping[str, Any]) -> server.Server:
    return server.find(options.get("server"), options.get("prefer") or server.VENDORS)


def _tables(options: Mapping[str, Any]) -> SysbenchTables:
    return SysbenchTables(ToolRecord(MySQL.name, path=_server(options).path), options)


def _on_or_off(value: Any) -> str:
    if not isinstance(value, (bool, str)) or value not in _WORDS:  # YAML reads a bare ON as true
        raise Fault(f"{_INTERLEAVE} {value!r} is neither ON nor OFF")
    return _WORDS[value]


def _interleave(value: Any, found: server.Server) -> str:
    """Return ON or OFF, and "" where the server cannot interleave."""
    wanted = _on_or_off(value)
    if _INTERLEAVE in found.known:
        return wanted
    if wanted == "ON":
        raise Fault(f"{found.title} was built without libnuma: no {_INTERLEAVE}")
    return ""
