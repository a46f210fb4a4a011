"""A started MySQL or MariaDB server: how it is asked, warmed, and opened to a client elsewhere."""

from __future__ import annotations

import contextlib
import os
import queue
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ...contract import reason
from ...errors import Fault
from ..instance import DYING_S, Binding, Refused, RunningServer
from ..remote import ClientHost
from ..trial import at_once
from . import server as programs
from . import wire

DATABASE = "sbtest"
USER = "numalab"  # of a client on another host
ASK_LIMIT_S = 20.0  # for a server to tell its counters
_RANGE = 5000  # rows whose pages one question of the warm-up reads
_ROWS_OF_A_PAGE = 40  # at least: 16 KiB, 15 of 16 parts filled with rows of 210 bytes, hold 72
_MOST_READERS = 64
_STATUS = (
    "Innodb_buffer_pool_reads", "Innodb_buffer_pool_read_requests", "Innodb_data_reads",
    "Innodb_data_fsyncs", "Innodb_row_lock_waits", "Questions", "Com_select", "Threads_created",
    "Created_tmp_disk_tables", "Innodb_buffer_pool_pages_flushed", "Innodb_os_log_written",
    "Innodb_log_waits", "Innodb_buffer_pool_wait_free",
)  # fmt: skip
# Waits for the disk: of a session for the log's buffer or a free page; for room in the redo log.
WAITS = ("Innodb_log_waits", "Innodb_buffer_pool_wait_free", *programs.WAIT_METRICS)
_METRICS = (
    "SELECT NAME, COUNT FROM information_schema.INNODB_METRICS WHERE NAME IN ("
    + ", ".join(f"'{name}'" for name in programs.WAIT_METRICS)
    + ")"
)
_VARIABLES = (
    "version", "version_comment", "version_compile_machine", "version_malloc_library",
    "version_ssl_library", "thread_handling", "thread_cache_size", "max_connections",
    "table_open_cache", "open_files_limit", "performance_schema", "log_bin", "skip_networking",
    "character_set_server", "collation_server", "transaction_isolation", "tx_isolation",
)  # fmt: skip


class RunningMySQL(RunningServer):
    """A server started with settings of ours; see ``server.settings``."""

    def __init__(
        self,
        server: programs.Server,
        datadir: str,
        settings: Mapping[str, str],
        options: Mapping[str, Any],
        binding: Optional[Binding] = None,
        name: str = "",
        keep_open: Sequence[int] = (),
        listen: Optional[Tuple[str, int]] = None,
    ) -> None:
        self.server, self.options = server, options
        self.config = programs.config_text(server, settings)
        Path(datadir, programs.CONFIG).write_text(self.config, encoding="utf-8")
        words = programs.argv(server, datadir, listen)
        super().__init__(server.title, words, datadir, name, keep_open, listen, binding)

    def connect(self, timeout_s: Optional[float] = None) -> wire.Connection:
        """Return a new session of root's."""
        # The socket's own name may be too long for an address: its folder, by number, never is.
        folder = os.open(self.datadir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return wire.Connection(f"/proc/self/fd/{folder}/{programs.SOCKET}", timeout_s=timeout_s)
        finally:
            os.close(folder)

    def ask(self, timeout_s: float) -> None:
        """As of the base."""
        with self.connect(timeout_s) as session:
            session.query("SELECT 1")

    def about(self) -> Dict[str, Any]:
        """As of the base."""
        return {"title": self.title, "build": self.server.build, "config": self.config}

    def variables(self) -> Dict[str, str]:
        """As of the base."""
        with self.connect() as session:
            values = session.pairs("SHOW GLOBAL VARIABLES")
        return {
            name: value
            for name, value in sorted(values.items())
            if (name.startswith("innodb_") or name in _VARIABLES) and "/" not in value
        }

    def counters(self) -> Dict[str, int]:
        """As of the base."""
        try:
            with self.connect(ASK_LIMIT_S) as session:
                values = session.pairs("SHOW GLOBAL STATUS")
                if self.options["writes"]:
                    values.update(session.pairs(_METRICS))
        except (OSError, Refused) as error:
            self.check_alive("while it was asked for its counters")
            raise self.fault("server-tells-no-counters", error=str(error)) from None
        names = (*_STATUS, *programs.WAIT_METRICS)
        return {name: int(values[name]) for name in names if values.get(name, "").isdigit()}

    def warm(self) -> None:
        """Bring every page that the workload reads into the pool, by the client's sessions.

        Where memory is placed by first touch, the pages are then spread over the server's CPUs as
        its sessions are, not all on the node of one thread. One row of a page brings it in; the
        second index is read by the workload that writes alone.
        """
        tables, rows = range(1, self.options["tables"] + 1), self.options["rows"]
        work: queue.SimpleQueue[str] = queue.SimpleQueue()
        for first in range(1, rows + 1, _RANGE):
            last = min(rows, first + _RANGE - 1)
            some = ",".join(map(str, {*range(first, last, _ROWS_OF_A_PAGE), last}))
            for table in tables:
                work.put(f"SELECT COUNT(pad) FROM sbtest{table} WHERE id IN ({some})")
        if self.options["writes"]:
            for table in tables:
                work.put(f"SELECT COUNT(k) FROM sbtest{table} FORCE INDEX (k_{table})")

        def read() -> None:
            with self.connect() as session:
                session.query(f"USE {DATABASE}")
                with contextlib.suppress(queue.Empty):
                    while True:
                        session.query(work.get_nowait())

        try:
            at_once([read] * min(self.options["clients"], _MOST_READERS, work.qsize()))
        except (Fault, OSError, Refused) as error:
            self.check_alive("while its buffer pool was filled", DYING_S)
            why = reason("pool-not-filled", instance=self.name, error=str(error))
            raise Fault(why) from None

    def admit(self, client: ClientHost) -> None:
        """Make an account that may come from the client's host alone."""
        account = f"'{USER}'@'{client.address}'"
        rights = "SELECT, INSERT, UPDATE, DELETE"
        self._run(
            [_drop_account(client), f"CREATE USER {account}",
             f"GRANT {rights} ON {DATABASE}.* TO {account}"]
        )  # fmt: skip

    def dismiss(self, client: ClientHost) -> None:
        """Take the account away again."""
        self._run([_drop_account(client)])

    def _run(self, statements: List[str]) -> None:
        with self.connect(ASK_LIMIT_S) as session:
            for statement in statements:
                session.query(statement)

    def said(self) -> str:
        """As of the base: the last errors of its log."""
        return programs.error_words(self.log)


def _drop_account(client: ClientHost) -> str:
    return f"DROP USER IF EXISTS '{USER}'@'{client.address}'"
