"""The process of one trial: it starts the server, warms it, and runs the client on its own CPUs.

It speaks the handshake of ``agent/trial/trial.py``. Only the server carries the cell's binding; the
``ready`` line names its process, which is what the trial proves and counts. Where a cell has
several instances, each has a server and a client of its own, and all clients start together.
Every line printed is a JSON object with ``event``:

- ``server``, one for each instance: title, build, configuration as it was written, what the server
  itself says of it, and how its data directory came to be
- ``ready``: ``pids``, ``warmup_s`` (buffer pool and client), and what the start took
- ``run``, one for each instance: sysbench's output as it came (``lead_s`` of warm-up come first),
  what the server used while it was measured, and ``late_s``, if go came after that had begun
- ``result``: all runs are done; ``end``: the servers have shut down
- ``fault``: why there is no result
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, TextIO, Tuple

from ... import cpulist
from ...errors import Fault
from ...trial import proof
from . import data, remote, wire
from . import server as servers

CLIENT_GRACE_S = 60.0  # beyond its time, for a client to start and to end
ASK_LIMIT_S = 20.0  # for a server to tell its counters
_ROOM_S = 1  # of warm-up, in which the engine proves the placement and starts to count
_RANGE = 5000  # rows that one question of the warm-up reads
_MOST_READERS = 64
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
    """Perform one trial; see the module. The exit status is 0 when everything went well.

    Words: ``--server``, ``--sysbench`` (paths), ``--seats`` (JSON: of each instance ``name`` and
    ``numactl``, the prefix of its server), ``--options`` (JSON: as the driver resolved them).
    """
    asked = dict(zip((word[2:] for word in arguments[::2]), arguments[1::2]))
    try:
        stage = Stage(
            servers.find(os.path.expanduser(asked["server"])),
            os.path.expanduser(asked["sysbench"]),
            json.loads(asked["seats"]),
            json.loads(asked["options"]),
        )
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


class Client:
    """One run of sysbench against one server: a warm-up, then what is measured.

    At the end of the warm-up a checkpoint (``--report-checkpoints``) resets all its counters, the
    latency histogram included: its final report is of the measured time, by sessions, threads and
    caches that are warm.
    """

    def __init__(self, stage: Stage, seat: Seat) -> None:
        self.seat = seat
        self.lead_s, self.time_s = stage.lead_s, stage.options["time_s"]
        self.threads = stage.options["clients"]
        self.output = Path(seat.running.datadir, "client.out")
        self.there = stage.there
        self.late = False
        self.cpu_s = 0.0
        self.status: Optional[int] = None
        self.began = time.monotonic()
        self.measured: Optional[float] = None  # since when
        self.ended = self.began
        self.before: Dict[str, Any] = {}
        self.after: Dict[str, float] = {}
        words = command_line(stage.sysbench, stage.options, self.lead_s, seat.listen)
        if self.there:
            words = remote.command_line(self.there, ["sysbench", *words[1:]])
        with open(self.output, "wb") as file:
            try:
                self.process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                    cwd=seat.running.datadir, preexec_fn=servers.die_with_parent(stage.client_cpus),
                )  # fmt: skip
            except subprocess.SubprocessError:
                where = cpulist.format(stage.client_cpus)
                raise Fault(
                    f"sysbench cannot run on CPUs {where}: they are offline or outside this "
                    "process's cpuset"
                ) from None
            except OSError as error:
                raise Fault(f"{words[0]} cannot be started: {error.strerror}") from None

    def look(self) -> bool:
        """Look once: note what is new; tell whether it has ended. One far too late is killed."""
        if self.status is not None:
            return True
        pid, status, used = os.wait4(self.process.pid, os.WNOHANG)
        if pid:
            self.ended = time.monotonic()
            self.status = self.process.returncode = os.waitstatus_to_exitcode(status)
            self.cpu_s = used.ru_utime + used.ru_stime
            self.after = usage(self.seat.running.pid)
            return True
        if self.measured is None and b"Checkpoint report:" in self.output.read_bytes():
            self.measured = time.monotonic()
            self.before = {
                "server": usage(self.seat.running.pid),
                "client": usage(self.process.pid),
                "status": self.seat.status(),
            }
        if time.monotonic() > self._due() + CLIENT_GRACE_S and not self.late:
            self.late = True
            self.process.kill()
        return False

    def _due(self) -> float:
        return self.began + self.lead_s + self.time_s

    def is_due(self, within_s: float) -> bool:
        """Tell whether its checkpoint or its end is to be expected soon."""
        due = self._due() if self.measured else self.began + self.lead_s
        return time.monotonic() + within_s > due

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        if self.status is None:
            self.process.kill()

    def run(self) -> Dict[str, Any]:
        """Return what it printed, how it ended, and its CPU time (s) while it was measured.

        Of a client on another host the CPU time is the whole run's, by the share of its time.
        """
        text, cpu_s = self._printed(), self.cpu_s - self.before.get("client", {}).get("cpu_s", 0.0)
        if self.there:
            text, cpu_s = remote.cpu_time(text)
            cpu_s *= self.time_s / (self.lead_s + self.time_s)
        run = {
            "clients": self.threads,
            "lead_s": self.lead_s,
            "elapsed_s": round(self.ended - (self.measured or self.began), 4),
            "text": text,
            "exit_status": self.status,
            "client_cpu_s": round(cpu_s, 4),
        }
        used, now = self.before.get("server"), self.after
        if used and now:
            run["server"] = {name: round(now[name] - used[name], 4) for name in used}
        return {**run, "client_cpus": self.there.cpus} if self.there else run

    def _printed(self) -> str:
        return self.output.read_text(errors="replace")

    def check(self) -> None:
        """Raise Fault with the reason when it did not end well, or its server did not survive."""
        server = self.seat.running
        what = "warm-up" if self.measured is None else "measurement"
        if self.status == 0:
            server.check_alive(f"in the {what}")
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(0.3)  # a server that is dying has not ended yet
        server.check_alive(f"in the {what}")
        if self.late:
            either = ""
            try:
                self.seat.status()
            except Fault:
                either = "; the server did not answer either"
            raise Fault(
                f"sysbench did not end within {CLIENT_GRACE_S:.0f} s after its "
                f"{self.lead_s + self.time_s:g} s and was killed{self.seat.of}{either}"
            )
        text = self._printed()
        lines = (remote.cpu_time(text)[0] if self.there else text).splitlines()
        said = [line for line in lines if line.startswith(("FATAL", "ALERT"))] or lines[-1:]
        words = f": {said[0][:300]}" if said else ""
        raise Fault(
            f"sysbench failed in the {what}{self.seat.of} (exit status {self.status}){words}"
        )


class Seat:
    """One instance: its server with its working copy."""

    def __init__(
        self, number: int, seat: Dict[str, Any], stage: Stage, settings: Dict[str, str]
    ) -> None:
        self.number = number
        self.there = stage.there
        self.listen = (self.there.ours, remote.free_port(self.there.ours)) if self.there else None
        self.name = str(seat["name"])
        self.of = f" of {self.name}" if self.name else ""
        self.server, self.options = stage.server, stage.options
        self.copy = data.take(stage.place, number)
        self.config = servers.config_text(self.server, settings)
        Path(self.copy.datadir, servers.CONFIG).write_text(self.config, encoding="utf-8")
        self.running = servers.Running(
            self.server, self.copy.datadir, seat["numactl"], keep_open=(self.copy.lock,),
            name=f"the server{self.of}", listen=self.listen,
        )  # fmt: skip
        os.close(self.copy.lock)  # the server's own descriptor holds the lock as long as it lives

    def wait_until_it_answers(self) -> None:
        """Return when it answers; say what it is in any case."""
        event: Dict[str, Any] = {
            "event": "server",
            "instance": self.name,
            "title": self.server.title,
            "build": self.server.build,
            "config": self.config,
            "data": self.copy.how,
            "data_bytes": self.copy.bytes,
            "data_s": round(self.copy.seconds, 3),
            "client_cpus": self.options["client_cpus"],
            **({"client": f"sysbench {self.there.version}"} if self.there else {}),
        }
        try:
            self.running.wait_until_it_answers()
            with self.running.connect() as session:
                told = session.pairs("SHOW GLOBAL VARIABLES")
                for statement in remote.statements(self.there, data.DATABASE) if self.there else ():
                    session.query(statement)
            event["variables"] = {
                name: value
                for name, value in sorted(told.items())
                if (name.startswith("innodb_") or name in _VARIABLES) and "/" not in value
            }
        finally:
            say(event)

    def stop(self) -> None:
        """Take back what was given to the client, and shut the server down in order."""
        if self.there:
            self.running.check_alive("before it was to shut down")
            with self.running.connect(timeout_s=ASK_LIMIT_S) as session:
                session.query(remote.farewell(self.there))
        self.running.stop()

    def status(self) -> Dict[str, int]:
        """Return the server's own counters; Fault when it does not tell them."""
        try:
            with self.running.connect(timeout_s=ASK_LIMIT_S) as session:
                told = session.pairs("SHOW GLOBAL STATUS")
        except (OSError, wire.Refused) as error:
            self.running.check_alive("while it was asked for its counters")
            raise Fault(
                f"{self.running.name} does not answer when it is asked for its counters: {error}"
            ) from None
        return {name: int(told[name]) for name in _STATUS if told.get(name, "").isdigit()}

    def fill_the_buffer_pool(self) -> None:
        """Read every row and every index entry, by as many sessions as the client will have.

        Where memory is placed by first touch, the pages are then spread over the server's CPUs as
        its sessions are, not all on the node of one thread.
        """
        tables, rows = self.options["tables"], self.options["rows"]
        work: queue.SimpleQueue = queue.SimpleQueue()
        for first in range(1, rows + 1, _RANGE):
            for table in range(1, tables + 1):
                work.put(
                    f"SELECT SUM(LENGTH(pad)) FROM sbtest{table} "
                    f"WHERE id BETWEEN {first} AND {first + _RANGE - 1}"
                )
        for table in range(1, tables + 1):
            work.put(f"SELECT COUNT(k) FROM sbtest{table} FORCE INDEX (k_{table})")
        readers = min(self.options["clients"], _MOST_READERS, work.qsize())

        def read() -> None:
            with self.running.connect() as session:
                session.query(f"USE {data.DATABASE}")
                with contextlib.suppress(queue.Empty):
                    while True:
                        session.query(work.get_nowait())

        try:
            _at_once([read] * readers)
        except (Fault, OSError, wire.Refused) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.running.process.wait(0.3)
            self.running.check_alive("while its buffer pool was filled")
            raise Fault(f"the buffer pool{self.of} could not be filled: {error}") from None


class Stage:
    """The servers of one trial and their clients."""

    def __init__(
        self,
        server: servers.Server,
        sysbench: str,
        seats: List[Dict[str, Any]],
        options: Dict[str, Any],
    ) -> None:
        self.server = server
        self.sysbench = sysbench
        self.asked = seats
        self.options = options
        self.place = data.place(server, options)
        self.client_cpus = cpulist.parse(options["client_cpus"])
        self.there: Optional[remote.Host] = None
        self.seats: List[Seat] = []
        self.clients: List[Client] = []
        self.lead_s = 0
        self.follower = threading.Thread(target=self._follow, daemon=True)
        self.trouble: Optional[BaseException] = None

    def perform(self, heard: TextIO) -> None:
        """The whole trial, from the working copies to the servers' end."""
        began = time.monotonic()
        if self.options.get("client_host"):
            self.there = remote.look(self.options["client_host"])
        settings = servers.settings(self.server, self.options, self.options["server_options"])
        for number, seat in enumerate(self.asked):
            self.seats.append(Seat(number, seat, self, settings))
        # Only now: a server that is started inherits the CPUs, and numactl goes by what it may use.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, self.client_cpus)
        for one in self.seats:
            one.wait_until_it_answers()
        answered = time.monotonic()
        _at_once([seat.fill_the_buffer_pool for seat in self.seats])
        filled = time.monotonic()
        # A host that starts a server slowly also proves and counts slowly.
        self.lead_s = self.options["warmup_s"] + _ROOM_S + int(answered - began) // 4
        for seat in self.seats:
            self.clients.append(Client(self, seat))
        self.follower.start()
        self._warm_up()
        say(
            {
                "event": "ready",
                "pids": [seat.running.pid for seat in self.seats],
                "start_s": round(answered - began, 3),
                "fill_s": round(filled - answered, 3),
                "warmup_s": round(time.monotonic() - answered, 3),
            }
        )
        self._wait_for("go", heard)
        self._measure()
        say({"event": "result"})
        self._wait_for("quit", heard)
        self._end()

    def _warm_up(self) -> None:
        due = self.clients[0].began + self.options["warmup_s"]
        while time.monotonic() < due and self.follower.is_alive():
            time.sleep(min(0.1, max(0.0, due - time.monotonic())))
        for client in self.clients:
            if client.status is not None and client.measured is None:
                say({"event": "warmup", "instance": client.seat.name, **client.run()})
                client.check()

    def _follow(self) -> None:
        """Follow all clients to their ends: they are measured while others count."""
        try:
            waiting = list(self.clients)
            while waiting:
                waiting = [client for client in waiting if not client.look()]
                soon = any(client.is_due(0.2) for client in waiting)
                time.sleep(0.005 if soon else 0.1)  # it is no load beside them
        except BaseException as error:
            self.trouble = error

    def _measure(self) -> None:
        heard = time.monotonic()
        self.follower.join()
        if self.trouble:
            raise self.trouble
        for client in self.clients:
            event = {"event": "run", "instance": client.seat.name, **client.run()}
            if client.measured:
                event["late_s"] = round(max(0.0, heard - client.measured), 3)
            if client.status == 0 and client.before:
                later = client.seat.status()
                earlier = client.before["status"]
                event["status"] = {name: later[name] - value for name, value in earlier.items()}
            say(event)
        for client in self.clients:
            client.check()

    def _end(self) -> None:
        began = time.monotonic()
        _at_once([seat.stop for seat in self.seats])
        if not self.options["writes"]:
            for seat in self.seats:
                data.is_clean(self.place, seat.number)
        say({"event": "end", "stop_s": round(time.monotonic() - began, 3)})

    def kill(self) -> None:
        """End clients and servers at once, those that have not ended."""
        for client in self.clients:
            client.kill()
        if self.follower.is_alive():
            self.follower.join(1.0)
        for seat in self.seats:
            seat.running.kill()

    def _wait_for(self, word: str, heard: TextIO) -> None:
        line = heard.readline()
        if not line:
            raise Lost(f"nobody said {word!r}")
        if line.strip() != word:
            raise Fault(f"{line.strip()!r} was said where {word!r} was expected")


def _at_once(what: Sequence[Callable[[], None]]) -> None:
    """Do several things at the same time, to their end; the first exception of them is raised."""
    errors: List[BaseException] = []

    def guarded(one: Callable[[], None]) -> None:
        try:
            one()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(one,), daemon=True) for one in what]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def command_line(
    sysbench: str,
    options: Dict[str, Any],
    lead_s: int,
    listen: Optional[Tuple[str, int]] = None,
) -> List[str]:
    """Return sysbench's command line, to be started in the server's data directory.

    Its final report is of the time after the first ``lead_s``, whole seconds. With ``listen``, the
    server's address and port, it may be started on another host.

    ``--validate`` is left out (it does nothing for OLTP), the seed is given (0 would mean the
    clock), and keys are drawn uniformly (the default has a few hot rows that measure locks).
    """
    reach = [f"--mysql-socket={servers.SOCKET}", "--mysql-user=root"]
    if listen:
        reach = [f"--mysql-host={listen[0]}", f"--mysql-port={listen[1]}"]
        reach.append(f"--mysql-user={remote.USER}")
    words = [
        sysbench, options["workload"], *reach, f"--mysql-db={data.DATABASE}",
        f"--tables={options['tables']}", f"--table-size={options['rows']}",
        f"--threads={options['clients']}", f"--time={lead_s + options['time_s']}",
        f"--report-checkpoints={lead_s}", "--events=0", "--rand-type=uniform",
        f"--rand-seed={options['seed']}", "--report-interval=1", "--histogram=on",
        "--percentile=95",
    ]  # fmt: skip
    if options["rate"]:
        words.append(f"--rate={options['rate']}")
    return [*words, "run"]


def usage(pid: int) -> Dict[str, float]:
    """Return what a process has used so far: CPU time (s), faults, its threads' switches.

    CPU time and faults (proc_pid_stat(5)) include threads that have ended; context switches are
    those of the living (proc_pid_status(5)): the server keeps its sessions' threads. Empty when
    the process has ended.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return {}
    fields = text.rpartition(")")[2].split()
    stat = proof.parse_stat(text)
    switches = 0
    for tid in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError, ValueError):
            status = Path(f"/proc/{pid}/task/{tid}/status").read_text(errors="replace")
            for line in status.splitlines():
                if "voluntary_ctxt_switches" in line:
                    switches += int(line.rpartition(":")[2])
    cpu_s = stat.ticks / os.sysconf("SC_CLK_TCK")
    with contextlib.suppress(OSError):
        # The process's own clock, in nanoseconds (clock_getcpuclockid(3); CPUCLOCK_SCHED of the
        # kernel's include/linux/posix-timers.h).
        cpu_s = time.clock_gettime((~pid << 3) | 2)
    return {
        "cpu_s": cpu_s,
        "minor_faults": float(fields[7]),
        "major_faults": float(fields[9]),
        "switches": float(switches),
    }


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main(sys.argv[1:]))
