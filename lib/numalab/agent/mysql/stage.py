"""The process of one trial: it starts the server, warms it, and runs the client on its own CPUs.

It speaks the handshake of ``agent/trial.py``. Only the server carries the cell's binding; the
``ready`` line names its process, which is what the trial proves and counts. Every line printed is
a JSON object with ``event``:

- ``server``: title, build, settings as they were written, what the server itself says of them,
  and how its data directory came to be
- ``ready``: ``pids``, ``warmup_s`` (buffer pool and client), and what the start took
- ``run``, one for each number of client threads, in the order in which they ran: sysbench's output
  as it came, and what the server used meanwhile
- ``result``: all runs are done; ``end``: the server has shut down
- ``fault``: why there is no result
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, TextIO

from .. import cpulist, placement
from ..errors import Fault
from . import data, wire
from . import server as servers

CLIENT_GRACE_S = 30.0  # beyond its time, for a client to start and to end
_RANGE = 5000  # rows that one question of the warm-up reads
_STATUS = (
    "Innodb_buffer_pool_reads", "Innodb_buffer_pool_read_requests", "Innodb_data_reads",
    "Innodb_data_fsyncs", "Innodb_row_lock_waits", "Questions", "Com_select", "Threads_created",
    "Created_tmp_disk_tables",
)  # fmt: skip
_VARIABLES = (
    "version", "version_comment", "version_compile_machine", "version_malloc_library",
    "version_ssl_library", "thread_handling", "thread_cache_size", "max_connections",
    "table_open_cache", "open_files_limit", "performance_schema", "log_bin", "skip_networking",
    "character_set_server", "collation_server", "transaction_isolation", "tx_isolation",
)  # fmt: skip


class Lost(Fault):
    """Whoever started this process is gone."""


def main(arguments: Sequence[str], heard: TextIO = sys.stdin) -> int:
    """Perform one trial; see the module. The exit status is 0 when everything went well."""
    asked = {
        name: json.loads(value) if name in ("options", "prefix") else value
        for name, value in zip((a[2:] for a in arguments[::2]), arguments[1::2])
    }
    try:
        stage = Stage(asked["server"], asked["sysbench"], asked["prefix"], asked["options"])
        try:
            stage.perform(heard)
        finally:
            stage.kill()
    except Lost:
        return 4
    except Fault as fault:
        say({"event": "fault", "what": fault.what, "hint": fault.hint})
        return 3
    except (OSError, wire.Refused) as error:
        say({"event": "fault", "what": f"the trial's own process failed: {error}", "hint": None})
        return 3
    return 0


def say(event: Dict[str, Any]) -> None:
    """Print one event."""
    print(json.dumps(event, ensure_ascii=False), flush=True)


class Stage:
    """One server, its working copy, and its client."""

    def __init__(
        self, server: str, sysbench: str, prefix: List[str], options: Dict[str, Any]
    ) -> None:
        self.server = servers.find(os.path.expanduser(server))
        self.sysbench = os.path.expanduser(sysbench)
        self.prefix = prefix
        self.options = options
        self.place = data.place(self.server, options)
        self.client_cpus = cpulist.parse(options["client_cpus"])
        self.running: Optional[servers.Running] = None
        self.client: Optional[subprocess.Popen] = None

    def perform(self, heard: TextIO) -> None:
        """The whole trial, from the working copy to the server's end."""
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, self.client_cpus)
        began = time.monotonic()
        running = self._start()
        answered = time.monotonic()
        self._fill_the_buffer_pool()
        filled = time.monotonic()
        if self.options["warmup_s"]:
            self._run_client(max(self.options["clients"]), self.options["warmup_s"], "warm-up")
        ready = time.monotonic()
        say(
            {
                "event": "ready",
                "pids": [running.pid],
                "start_s": round(answered - began, 3),
                "fill_s": round(filled - answered, 3),
                "warmup_s": round(ready - answered, 3),
            }
        )
        self._wait_for("go", heard)
        for order, clients in enumerate(self._order(), 1):
            self._measure(order, clients)
        say({"event": "result"})
        self._wait_for("quit", heard)
        self._end()

    def _start(self) -> servers.Running:
        copy = data.take(self.place)
        chosen = servers.settings(self.server, self.options, self.options["server_options"])
        text = servers.config_text(self.server, chosen)
        Path(copy.datadir, servers.CONFIG).write_text(text, encoding="utf-8")
        self.running = servers.Running(
            self.server, copy.datadir, self.prefix, keep_open=(copy.lock,)
        )
        os.close(copy.lock)  # the server's own descriptor holds the lock as long as it lives
        event: Dict[str, Any] = {
            "event": "server",
            "title": self.server.title,
            "build": self.server.build,
            "config": text,
            "data": copy.how,
            "data_bytes": copy.bytes,
            "data_s": round(copy.seconds, 3),
            "client_cpus": self.options["client_cpus"],
        }
        try:
            self.running.wait_until_it_answers()
            with self.running.connect() as session:
                told = session.pairs("SHOW GLOBAL VARIABLES")
        except Fault:
            say(event)
            raise
        event["variables"] = {
            name: value
            for name, value in sorted(told.items())
            if (name.startswith("innodb_") or name in _VARIABLES) and "/" not in value
        }
        say(event)
        return self.running

    def _order(self) -> List[int]:
        """The numbers of client threads in this block's order: the same for all its trials."""
        order = list(self.options["clients"])
        random.Random(f"{self.options['seed']}/{os.environ.get('NUMALAB_BLOCK')}").shuffle(order)
        return order

    # --- warming --------------------------------------------------------------------------------

    def _fill_the_buffer_pool(self) -> None:
        """Read every row and every index entry, by as many sessions as the client will have.

        Where memory is placed by first touch, the pages are then spread over the server's CPUs as
        its sessions are, not all on the node of one thread.
        """
        tables, rows = self.options["tables"], self.options["rows"]
        sessions = min(max(self.options["clients"]), 64, max(1, tables * rows // _RANGE))
        work: queue.SimpleQueue = queue.SimpleQueue()
        for first in range(1, rows + 1, _RANGE):
            for table in range(1, tables + 1):
                last = first + _RANGE - 1
                work.put(
                    f"SELECT SUM(LENGTH(pad)) FROM sbtest{table} "
                    f"WHERE id BETWEEN {first} AND {last}"
                )
        for table in range(1, tables + 1):
            work.put(f"SELECT COUNT(k) FROM sbtest{table} FORCE INDEX (k_{table})")
        faults: List[BaseException] = []

        def read() -> None:
            try:
                assert self.running is not None
                with self.running.connect() as session:
                    session.query(f"USE {data.DATABASE}")
                    while not faults:
                        session.query(work.get_nowait())
            except queue.Empty:
                pass
            except (Fault, OSError, wire.Refused) as error:
                faults.append(error)

        threads = [threading.Thread(target=read, daemon=True) for _ in range(sessions)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if faults:
            assert self.running is not None
            time.sleep(0.05)  # a server that is dying has not ended yet
            self.running.check_alive("while its buffer pool was filled")
            raise Fault(f"the buffer pool could not be filled: {faults[0]}")

    # --- measuring ------------------------------------------------------------------------------

    def _measure(self, order: int, clients: int) -> None:
        assert self.running is not None
        status, used = self._status(), usage(self.running.pid)
        began = time.monotonic()
        run = self._run_client(clients, self.options["time_s"], "measurement", check=False)
        elapsed = time.monotonic() - began
        event = {
            "event": "run",
            "clients": clients,
            "order": order,
            "elapsed_s": round(elapsed, 4),
            **run,
        }
        if self.running.process.poll() is None:
            after, status_after = usage(self.running.pid), self._status()
            event["server"] = {name: round(after[name] - used[name], 4) for name in used}
            event["status"] = {name: status_after[name] - status[name] for name in status}
        say(event)
        self._check_client(run, clients, "measurement")

    def _run_client(
        self, clients: int, seconds: float, what: str, check: bool = True
    ) -> Dict[str, Any]:
        """Run sysbench to its end; return its output, its exit status and its CPU time (s)."""
        assert self.running is not None
        command = command_line(self.sysbench, self.options, clients, seconds)
        output = Path(self.running.datadir, "client.out")
        with open(output, "wb") as file:
            try:
                self.client = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                    cwd=self.running.datadir,
                    preexec_fn=servers.die_with_parent(self.client_cpus),
                )  # fmt: skip
            except OSError as error:
                raise Fault(f"{self.sysbench} cannot be started: {error.strerror}") from None
        deadline = time.monotonic() + seconds + CLIENT_GRACE_S
        cpu_s, late = 0.0, False
        while True:
            pid, status, used = os.wait4(self.client.pid, os.WNOHANG)
            if pid:
                self.client.returncode = os.waitstatus_to_exitcode(status)
                cpu_s = used.ru_utime + used.ru_stime
                break
            if time.monotonic() > deadline and not late:
                late = True
                self.client.kill()
            time.sleep(0.01)
        run = {
            "text": output.read_text(errors="replace"),
            "exit_status": self.client.returncode,
            "client_cpu_s": round(cpu_s, 4),
        }
        if late:
            self._say_why(run)
            self.running.check_alive(f"in the {what}")
            raise Fault(
                f"sysbench with {clients} threads did not end within {CLIENT_GRACE_S:.0f} s after "
                f"the {seconds:g} s of the {what} and was killed"
            )
        if check:
            self._check_client(run, clients, what)
        return run

    @staticmethod
    def _say_why(run: Dict[str, Any]) -> None:
        say({"event": "client", "text": run["text"], "exit_status": run["exit_status"]})

    def _check_client(self, run: Dict[str, Any], clients: int, what: str) -> None:
        assert self.running is not None
        if run["exit_status"] == 0:
            return
        if what == "warm-up":
            self._say_why(run)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.running.process.wait(0.3)  # a server that is dying has not ended yet
        self.running.check_alive(f"in the {what}")
        said = [line for line in run["text"].splitlines() if line.startswith(("FATAL", "ALERT"))]
        said = said or run["text"].strip().splitlines()[-1:]
        words = f": {said[0][:300]}" if said else ""
        raise Fault(
            f"sysbench with {clients} threads failed in the {what} "
            f"(exit status {run['exit_status']}){words}"
        )

    def _status(self) -> Dict[str, int]:
        assert self.running is not None
        with self.running.connect(timeout_s=60) as session:
            told = session.pairs("SHOW GLOBAL STATUS")
        return {name: int(told[name]) for name in _STATUS if told.get(name, "").isdigit()}

    # --- the end --------------------------------------------------------------------------------

    def _end(self) -> None:
        assert self.running is not None
        began = time.monotonic()
        self.running.stop()
        if not self.options["writes"]:
            data.is_clean(self.place)
        say({"event": "end", "stop_s": round(time.monotonic() - began, 3)})

    def kill(self) -> None:
        """End the client and the server at once, if they have not ended."""
        if self.client is not None and self.client.returncode is None:
            self.client.kill()
        if self.running is not None:
            self.running.kill()

    def _wait_for(self, word: str, heard: TextIO) -> None:
        line = heard.readline()
        if not line:
            raise Lost(f"nobody said {word!r}")
        if line.strip() != word:
            raise Fault(f"{line.strip()!r} was said where {word!r} was expected")


def command_line(
    sysbench: str, options: Dict[str, Any], clients: int, seconds: float
) -> List[str]:
    """Return sysbench's command line, to be started in the server's data directory.

    ``--validate`` is left out (it does nothing for OLTP), the seed is given (0 would mean the
    clock), and keys are drawn uniformly (the default has a few hot rows that measure locks).
    """
    words = [
        sysbench, options["workload"], f"--mysql-socket={servers.SOCKET}", "--mysql-user=root",
        f"--mysql-db={data.DATABASE}", f"--tables={options['tables']}",
        f"--table-size={options['rows']}", f"--threads={clients}", f"--time={seconds:g}",
        "--events=0", "--rand-type=uniform", f"--rand-seed={options['seed']}",
        "--report-interval=1", "--histogram=on", "--percentile=95",
    ]  # fmt: skip
    if options["rate"]:
        words.append(f"--rate={options['rate']}")
    return [*words, "run"]


def usage(pid: int) -> Dict[str, float]:
    """Return what a process has used so far: CPU time (s), faults, its threads' switches.

    CPU time and faults (proc_pid_stat(5)) include threads that have ended; context switches are
    those of the living (proc_pid_status(5)): the server keeps its sessions' threads.
    """
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        text = file.read()
    fields = text.rpartition(")")[2].split()
    stat = placement.parse_stat(text)
    switches = 0
    for tid in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError, ValueError):
            status = Path(f"/proc/{pid}/task/{tid}/status").read_text(errors="replace")
            for line in status.splitlines():
                if "voluntary_ctxt_switches" in line:
                    switches += int(line.rpartition(":")[2])
    return {
        "cpu_s": stat.ticks / os.sysconf("SC_CLK_TCK"),
        "minor_faults": float(fields[7]),
        "major_faults": float(fields[9]),
        "switches": float(switches),
    }


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main(sys.argv[1:]))
