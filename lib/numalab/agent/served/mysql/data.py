"""The tables that sysbench asks: how large they are, how they are loaded and checked.

A data set belongs to one server's vendor and version, a number of tables and their rows.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Optional

from ... import kernel
from ...contract import Reason, Tell, ToolRecord, from_json, reason, to_json
from ...errors import Fault
from ...trial import events
from .. import dataset
from ..instance import LOG, out_of_space
from . import server as programs
from . import wire
from .instance import DATABASE, RunningMySQL

ROW_BYTES = 250  # of a row of sysbench's table with both its indexes, in a large table; measured
_TABLE_BYTES = 8 << 20  # of a table beside its rows, at most
_BASE_BYTES = 256 << 20  # of an empty server with its redo log
_LOADING_REDO = 1 << 30
_ROWS_A_SECOND = 60_000  # that a thread of sysbench prepares; for estimates only
_MOST_LOADERS = 32


def table_bytes(options: Mapping[str, Any]) -> int:
    """Return the bytes of the tables, estimated: what the buffer pool must hold."""
    return int(options["tables"]) * (int(options["rows"]) * ROW_BYTES + _TABLE_BYTES)


class SysbenchTables(dataset.DataSet):
    """The tables of resolved options, in a data directory of the server that was found."""

    kind = "mysql"
    module = "numalab.agent.served.mysql.data"  # also where this is __main__

    def __init__(self, found: ToolRecord, options: Mapping[str, Any]) -> None:
        self.found, self.options = found, options
        self.server = programs.find(found.path)
        self.tables, self.rows = int(options["tables"]), int(options["rows"])
        vendor = self.server.vendor.replace(" ", "-").lower()
        super().__init__(f"{vendor}-{self.server.version}-{self.tables}x{self.rows}")

    @property
    def loaders(self) -> int:
        """Threads that load the tables."""
        return min(int(self.options["loaders"]), _MOST_LOADERS)

    @property
    def load_s(self) -> float:
        """Seconds that preparing takes, estimated."""
        return 10.0 + self.tables * self.rows / (_ROWS_A_SECOND * self.loaders)

    def arguments(self) -> str:
        """As of the base."""
        return json.dumps({"found": to_json(self.found), "options": to_json(self.options)})

    def description(self) -> Reason:
        """As of the base."""
        return reason("preparing-tables", tables=self.tables, rows=self.tables * self.rows,
                      title=self.server.title, seconds=self.load_s)  # fmt: skip

    def disk_bytes(self, copies: int = 1) -> int:
        """As of the base: pristine, the copies to work on, the log of a load."""
        logs = copies * int(self.options["redo_bytes"])
        return (1 + copies) * (table_bytes(self.options) + _BASE_BYTES) + logs + _LOADING_REDO

    def fill(self, datadir: Path, scratch: Path, tell: Tell) -> Dict[str, Any]:
        """As of the base: tables made by sysbench, counted and checked."""
        loading = {
            "tables": self.tables, "clients": self.loaders, "writes": True,
            "innodb_numa_interleave": "OFF", "pool_bytes": min(self.options["pool_bytes"], 1 << 30),
            "pool_parts": 1, "redo_bytes": _LOADING_REDO,
        }  # fmt: skip
        tell(events.progress(reason("making-data-directory", title=self.server.title)))
        log = scratch / "initialise.log"
        programs.initialise(self.server, str(datadir), str(log))
        with self._started(datadir, loading, {"innodb_flush_log_at_trx_commit": "0"}) as running:
            with running.connect() as session:
                session.query(f"CREATE DATABASE {DATABASE}")
            self._load(running, scratch / "load.log", tell)
        # As the trials will start it, and with everything merged and purged at its end.
        later = {**loading, "writes": False, "redo_bytes": self.options["redo_bytes"]}
        with (
            self._started(datadir, later, {"innodb_fast_shutdown": "0"}) as running,
            running.connect() as session,
        ):
            for number in range(1, self.tables + 1):
                tell(events.progress(reason("checking-table", number=number, of=self.tables)))
                _check_table(session, f"{DATABASE}.sbtest{number}", self.rows)
        for name in (LOG, programs.CONFIG, "ib_buffer_pool"):
            with contextlib.suppress(FileNotFoundError):
                (datadir / name).unlink()
        log.unlink()
        return {
            "server": self.server.title,
            "build": self.server.build,
            "sysbench": self.found.facts["sysbench_version"],
            "tables": self.tables,
            "rows": self.rows,
        }

    @contextlib.contextmanager
    def _started(
        self, datadir: Path, options: Mapping[str, Any], own: Mapping[str, str]
    ) -> Iterator[RunningMySQL]:
        """A running server with these settings; shut down at the end, or killed on a failure."""
        chosen = {**programs.settings(self.server, options), **own}
        running = RunningMySQL(self.server, str(datadir), chosen, options)
        try:
            running.wait_until_it_answers()
            yield running
            running.stop(limit_s=3600)
        finally:
            running.kill()

    def _load(self, running: RunningMySQL, output: Path, tell: Tell) -> None:
        command = [
            os.path.expanduser(str(self.found.facts["sysbench"])), "oltp_read_write",
            f"--mysql-socket={programs.SOCKET}", "--mysql-user=root", f"--mysql-db={DATABASE}",
            f"--tables={self.tables}", f"--table-size={self.rows}", f"--threads={self.loaders}",
            "--rand-seed=1", "--rand-type=uniform", "prepare",
        ]  # fmt: skip
        what = reason("loading-rows", rows=self.tables * self.rows)
        began = time.monotonic()
        with open(output, "wb") as file:
            loader = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=running.datadir,
                preexec_fn=kernel.die_with_parent(),
            )  # fmt: skip
            try:
                while _still_runs(loader):
                    running.check_alive("while it was loaded")
                    tell(_share_loaded(running, what, table_bytes(self.options), began))
            finally:
                loader.kill()
                loader.wait()
        if loader.returncode:
            raise _why_not_loaded(running, output.read_text(errors="replace"))
        output.unlink()


def _still_runs(process: subprocess.Popen[bytes]) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
        return False
    return True


def _share_loaded(running: RunningMySQL, what: Reason, expected: int, began: float) -> events.Event:
    files = Path(running.datadir, DATABASE).glob("*.ibd")
    share = min(0.99, sum(path.stat().st_size for path in files) / expected)
    spent = time.monotonic() - began
    left: Optional[float] = spent / share - spent if share > 0.05 else None
    return events.progress(what, share, left)


def _why_not_loaded(running: RunningMySQL, text: str) -> Fault:
    lines = [line for line in text.splitlines() if line.startswith(("FATAL", "ALERT"))]
    said = (lines or text.strip().splitlines() or [""])[0][:300]
    full = re.search(r"is full|[Ee]rrcode: 28|error 28\b|No space left", text)
    if full or out_of_space(running.log):
        return dataset.disk_full(said)
    running.check_alive("while it was loaded")
    return Fault(reason("tables-not-loaded", said=said))


def _check_table(session: wire.Connection, table: str, rows: int) -> None:
    counted = session.query(f"SELECT COUNT(*) FROM {table}")[0][0]
    if counted != str(rows):
        raise Fault(reason("rows-missing", table=table, rows=str(counted), wanted=rows))
    said = session.query(f"CHECK TABLE {table}")
    if not said or said[-1][-1] != "OK":
        words = "; ".join(str(row[-1]) for row in said)
        raise Fault(reason("table-damaged", table=table, said=words), "check the disk")


def of_arguments(asked: Mapping[str, Any]) -> SysbenchTables:
    """Return the data set of ``SysbenchTables.arguments``."""
    return SysbenchTables(from_json(ToolRecord, asked["found"]), asked["options"])


if __name__ == "__main__":
    sys.exit(dataset.main(of_arguments, sys.argv[1:]))
