"""The process of one trial of a MySQL server that sysbench asks; see ``served.trial``."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ...contract import ToolRecord
from .. import files, remote, trial
from ..client import Client
from ..dataset import Copy
from ..instance import Binding, RunningServer
from . import server as programs
from .data import SysbenchTables
from .instance import DATABASE, USER, RunningMySQL


class Sysbench(Client):
    """A run of sysbench; ``--report-checkpoints`` ends its warm-up."""

    program = "sysbench"
    checkpoint = b"Checkpoint report:"
    complaints = ("FATAL", "ALERT")


class MySQLTrial(trial.ServedTrial):
    """Each server on a working copy of the tables, each sysbench with the same options."""

    client_program = Sysbench.program

    def __init__(
        self, found: ToolRecord, instances: List[Dict[str, Any]], options: Mapping[str, Any]
    ) -> None:
        self.server = programs.find(found.path)
        self.sysbench = os.path.expanduser(str(found.facts["sysbench"]))
        self.settings = programs.settings(self.server, options, options["server_options"])
        files.allow(programs.open_files(options))
        super().__init__(found, instances, options, SysbenchTables(found, options))

    def start_server(self, name: str, binding: Binding, copy: Copy) -> RunningServer:
        """As of the base."""
        ours = self.there.ours if self.there else None
        return RunningMySQL(
            self.server, copy.datadir, self.settings, self.options, binding, name,
            keep_open=(copy.lock,), listen=(ours, remote.free_port(ours)) if ours else None,
        )  # fmt: skip

    def start_client(self, server: RunningServer) -> Client:
        """As of the base."""
        words = command_line(self.sysbench, self.options, self.lead_s, server.listen)
        clients, time_s = self.options["clients"], self.options["time_s"]
        return Sysbench(server, words, clients, self.lead_s, time_s, self.client_cpus, self.there)


def command_line(
    sysbench: str,
    options: Mapping[str, Any],
    lead_s: int,
    listen: Optional[Tuple[str, int]] = None,
) -> List[str]:
    """Return sysbench's command line, to be started in the server's data directory.

    Its final report is of the time after the first ``lead_s``, whole seconds. With ``listen``, the
    server's address and port, it may be started on another host.

    ``--validate`` is left out (it does nothing for OLTP), the seed is given (0 would mean the
    clock), and keys are drawn uniformly (the default has a few hot rows that measure locks).
    """
    reach = [f"--mysql-socket={programs.SOCKET}", "--mysql-user=root"]
    if listen:
        reach = [f"--mysql-host={listen[0]}", f"--mysql-port={listen[1]}", f"--mysql-user={USER}"]
    words = [
        sysbench, options["workload"], *reach, f"--mysql-db={DATABASE}",
        f"--tables={options['tables']}", f"--table-size={options['rows']}",
        f"--threads={options['clients']}", f"--time={lead_s + options['time_s']}",
        f"--report-checkpoints={lead_s}", "--events=0", "--rand-type=uniform",
        f"--rand-seed={options['seed']}", "--report-interval=1", "--histogram=on",
        "--percentile=95",
    ]  # fmt: skip
    if options["rate"]:
        words.append(f"--rate={options['rate']}")
    return [*words, "run"]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(trial.main(MySQLTrial, sys.argv[1:]))
