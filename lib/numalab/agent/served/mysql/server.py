"""Private servers: which programs the host has, their configuration, their start and their end.

Nothing of an installed server is touched: no option file is read but our own, the data directory
is ours, and there is no network (but for a client on another host, see ``remote``), only a unix
socket in the data directory itself. Its path is
relative (the server works in its data directory), so that it always fits into the 108 bytes of a
socket's address (unix(7)), however deep the cache lies.

Settings are those of the MySQL Reference Manual, "Server System Variables" and "InnoDB Startup
Options and System Variables", and of the MariaDB Server documentation; each is written only where
the server knows it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ...errors import Fault
from . import wire

SOCKET = "socket"  # in the data directory
LOG = "numalab-server.log"
CONFIG = "numalab.cnf"
START_LIMIT_S = 180.0
STOP_LIMIT_S = 60.0
_INITIALISE_LIMIT_S = 900.0
_FOLDERS = (
    "/usr/sbin", "/usr/libexec", "/usr/bin", "/usr/local/sbin", "/usr/local/bin",
    "/usr/local/libexec", "/usr/local/mysql/bin", "/usr/local/mariadb/bin", "/opt/mysql/bin",
)  # fmt: skip
_INSTALL = (
    "apt install mariadb-server-core (Debian, Ubuntu), dnf install mariadb-server (RHEL, Fedora, "
    "openEuler), or name a server's program: --set server=/path/to/mysqld"
)
_PROGRAMS = ("mysqld", "mariadbd")
VENDORS = ("mysql", "mariadb")
_MOST_OTHERS = 80  # sessions beside the client's: those that fill the buffer pool, and our own
_PR_SET_PDEATHSIG = 1  # prctl(2)
_libc = ctypes.CDLL(None, use_errno=True)


class Server(NamedTuple):
    """One server's program. ``known`` are the variables that it has, with underscores."""

    path: str
    vendor: str  # MySQL, MariaDB, Percona Server
    version: str  # 10.11.19
    build: str  # 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)
    known: Dict[str, str]

    @property
    def title(self) -> str:
        """Vendor and version."""
        return f"{self.vendor} {self.version}"

    @property
    def is_mariadb(self) -> bool:
        """Whether it goes by MariaDB's ways, not MySQL's."""
        return self.vendor == "MariaDB"


def find(wanted: Optional[str] = None, prefer: Sequence[str] = VENDORS) -> Server:
    """Return the server to use: the program that ``wanted`` names, else the first of ``prefer``.

    ``wanted`` is a path, "mysql" or "mariadb" (Percona Server counts as mysql); without it the
    vendors are tried in the order of ``prefer``. Fault when there is none, or it will not run.
    """
    if wanted and "/" in wanted:
        return _look_at(os.path.expanduser(wanted))
    vendors = [wanted] if wanted else list(prefer)
    for vendor in vendors:
        if vendor not in VENDORS:
            raise Fault(
                f"server {vendor!r} is neither a path nor a vendor", f"known: {', '.join(VENDORS)}"
            )
    folders = [*os.environ.get("PATH", os.defpath).split(os.pathsep), *_FOLDERS]
    there: Dict[str, Server] = {}
    faults: List[Fault] = []
    seen: Set[str] = set()
    for folder in folders:
        for name in _PROGRAMS:
            path = os.path.join(folder, name)
            real = os.path.realpath(path)
            if real in seen or not os.access(path, os.X_OK) or not os.path.isfile(path):
                continue
            seen.add(real)
            try:
                found = _look_at(path)
            except Fault as fault:
                faults.append(fault)
                continue
            there.setdefault("mariadb" if found.is_mariadb else "mysql", found)
    for vendor in vendors:
        if vendor in there:
            return there[vendor]
    if faults:
        raise faults[0]
    other = next(iter(there.values()), None)
    if other:
        raise Fault(f"there is no {vendors[0]} server here, only {other.title}", _INSTALL)
    raise Fault("there is no MySQL or MariaDB server on this host", _INSTALL)


@functools.cache
def _look_at(path: str) -> Server:
    said = _ask(path, ["--no-defaults", "--version"])
    # What it is: version, who built it (MariaDB 11.8 and newer), system; an appeal may follow.
    match = re.search(r"\bVer ((\S+)(?: from .+?)? for .+?)\s*(?:\(-- .*)?$", said, re.MULTILINE)
    number = match and re.match(r"\d+\.\d+\.\d+", match[2])
    if not match or not number:
        raise Fault(f"{path} does not say that it is a MySQL or MariaDB server", _INSTALL)
    vendor = "MariaDB" if "MariaDB" in match[0] else "MySQL"
    if "Percona" in match[0]:
        vendor = "Percona Server"
    version = number[0]
    least = (10, 4) if vendor == "MariaDB" else (5, 7)
    if tuple(int(part) for part in version.split(".")[:2]) < least:
        raise Fault(
            f"{path} is {vendor} {version}", f"use {least[0]}.{least[1]} or newer: {_INSTALL}"
        )
    text = _ask(path, ["--no-defaults", *_as_user(), "--verbose", "--help"])
    known: Dict[str, str] = {}
    table = re.split(r"^-{20,}[ -]*$", text, maxsplit=1, flags=re.MULTILINE)[-1]
    for line in table.splitlines():
        words = line.split(None, 1)
        if words and re.fullmatch(r"[a-z][a-z0-9-]*", words[0]):
            known[words[0].replace("-", "_")] = words[1].strip() if len(words) > 1 else ""
    if "innodb_buffer_pool_size" not in known:
        raise Fault(f"{path} does not list its variables by --verbose --help", _INSTALL)
    return Server(path, vendor, version, match[1], known)


def _ask(path: str, words: List[str]) -> str:
    try:
        done = subprocess.run(
            [path, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=60, cwd="/", env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Fault(f"{path} does not run: {error}", _INSTALL) from None
    return done.stdout


def _as_user() -> List[str]:
    """A server that root starts wants to be told so; the data directory is root's then."""
    return ["--user=root"] if os.geteuid() == 0 else []


# --- configuration ----------------------------------------------------------------------------


def settings(
    server: Server, options: Dict[str, Any], own: Optional[Dict[str, Any]] = None
) -> Dict[str, str]:
    """Return every variable that is set, in the order of the configuration file.

    ``options`` are the resolved options of ``tools.mysql_server``; ``own`` the user's settings,
    which win. Fault for a setting of the user's that this server does not know.
    """
    writes = options["writes"]
    sessions = options["clients"] + _MOST_OTHERS
    pool = options["pool_bytes"]
    wanted: Dict[str, Any] = {
        # no network, nothing that other hosts or other programs could reach
        "skip_networking": "ON", "mysqlx": "OFF", "skip_name_resolve": "ON",
        # the buffer pool holds all the data, and nothing is loaded into it but by the warm-up
        "innodb_buffer_pool_size": pool,
        "innodb_buffer_pool_instances": pool_instances(pool),
        "innodb_buffer_pool_dump_at_shutdown": "OFF",
        "innodb_buffer_pool_load_at_startup": "OFF",
        "innodb_numa_interleave": options["innodb_numa_interleave"],
        "innodb_dedicated_server": "OFF", "large_pages": "OFF",
        "innodb_adaptive_hash_index": "OFF",
        # input and output: as little as a server that keeps its data may do
        "innodb_flush_method": "O_DIRECT", "innodb_doublewrite": "OFF",
        "innodb_flush_log_at_trx_commit": 2, "innodb_use_native_aio": "ON",
        "innodb_io_capacity": 2000, "innodb_io_capacity_max": 4000,
        "innodb_read_io_threads": 4, "innodb_write_io_threads": 4, "innodb_purge_threads": 4,
        "innodb_log_buffer_size": 64 << 20,
        "innodb_fast_shutdown": 2 if writes else 1,
        "skip_log_bin": None,
        # sessions: one thread each, and none of them is started while it is measured
        "thread_handling": "one-thread-per-connection", "max_connections": sessions,
        "back_log": sessions, "thread_cache_size": sessions,
        "table_open_cache": max(2000, options["tables"] * sessions),
        "table_definition_cache": max(2000, 2 * options["tables"]),
        "max_prepared_stmt_count": 1 << 20,
        # nothing that measures, logs or remembers beside
        "performance_schema": "OFF", "query_cache_type": "OFF", "query_cache_size": 0,
        "general_log": "OFF", "slow_query_log": "OFF", "event_scheduler": "OFF",
        "innodb_status_output": "OFF",
        "character_set_server": "utf8mb4", "collation_server": "utf8mb4_general_ci",
    }  # fmt: skip
    redo = (1 << 30) if writes else (96 << 20)
    if "innodb_redo_log_capacity" in server.known:
        wanted["innodb_redo_log_capacity"] = redo
    else:
        wanted["innodb_log_file_size"] = redo
    if options.get("client_host"):
        wanted["skip_networking"] = "OFF"  # where it listens is on the command line
        wanted["ssl" if server.is_mariadb else "tls_version"] = "OFF" if server.is_mariadb else "''"
    if not server.is_mariadb:
        wanted["secure_file_priv"] = "NULL"  # else a folder must exist that only packages make
    if server.is_mariadb and int(server.version.split(".")[0]) >= 11:
        wanted.pop("innodb_flush_method")  # the default is the same, the name is deprecated
    result = {
        name: "" if value is None else str(value)
        for name, value in wanted.items()
        if name in server.known or name.replace("skip_", "", 1) in server.known
    }
    for name, value in (own or {}).items():
        plain = name.replace("-", "_")
        if plain not in server.known:
            raise Fault(
                f"{server.title} knows no setting {name!r}", "see its --verbose --help for all"
            )
        if plain in _FIXED:
            raise Fault(f"server_options: {name} is numalab's to set", "leave it out")
        result[plain] = {True: "ON", False: "OFF"}.get(value, str(value))
    return result


def pool_instances(pool_bytes: int) -> int:
    """Return into how many parts a buffer pool is divided, where the server can: one a GiB."""
    return max(1, min(8, pool_bytes >> 30))


_FIXED = (
    "datadir", "socket", "port", "skip_networking", "user", "pid_file", "log_error",
    "innodb_numa_interleave", "bind_address",
)  # fmt: skip


def config_text(server: Server, chosen: Dict[str, str]) -> str:
    """Return the configuration file; paths are on the command line, so that it holds none."""
    lines = [f"# {server.title}: {server.build}", "[mysqld]"]
    lines += [name if value == "" else f"{name} = {value}" for name, value in chosen.items()]
    return "\n".join([*lines, ""])


def argv(server: Server, datadir: str, listen: Optional[Tuple[str, int]] = None) -> List[str]:
    """Return the server's command line for a data directory that holds its configuration.

    ``listen`` is the address and the port for a client on another host.
    """
    network = [f"--bind-address={listen[0]}", f"--port={listen[1]}"] if listen else []
    return [
        server.path,
        f"--defaults-file={datadir}/{CONFIG}",
        *_as_user(),
        *_base_folder(server),
        f"--datadir={datadir}",
        f"--socket={SOCKET}",
        "--pid-file=pid",
        f"--tmpdir={datadir}",
        *network,
    ]


def _base_folder(server: Server) -> List[str]:
    """A server unpacked somewhere finds its messages only when told where it is."""
    base = os.path.dirname(os.path.dirname(os.path.realpath(server.path)))
    inside = base not in ("/usr", "/", "") and os.path.isdir(os.path.join(base, "share"))
    return [f"--basedir={base}"] if inside else []


# --- a new data directory ---------------------------------------------------------------------


def initialise(server: Server, datadir: str, log: str) -> None:
    """Fill a data directory with what an empty server needs: root may come in, by the socket."""
    if server.is_mariadb:
        command = [
            _installer(server), "--no-defaults", "--auth-root-authentication-method=normal",
            "--skip-test-db", "--skip-name-resolve",
        ]  # fmt: skip
    else:
        command = [server.path, "--no-defaults", "--initialize-insecure"]
        command += [f"--{name}" for name in ("skip-log-bin", "innodb-doublewrite=OFF")]
        if "secure_file_priv" in server.known:
            command.append("--secure-file-priv=NULL")
    command += [*_as_user(), *_base_folder(server), f"--datadir={datadir}", f"--tmpdir={datadir}"]
    with open(log, "wb") as file:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=datadir,
                timeout=_INITIALISE_LIMIT_S, preexec_fn=die_with_parent(),
                env={**os.environ, "TMPDIR": datadir, "LC_ALL": "C"},
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Fault(f"{server.title} cannot make its data directory: {error}") from None
    if done.returncode:
        raise Fault(
            f"{server.title} cannot make its data directory (exit status {done.returncode})"
            + last_words(log),
            out_of_space(log),
        )


def _installer(server: Server) -> str:
    here = os.path.dirname(os.path.realpath(server.path))
    near = [here, os.path.join(os.path.dirname(here), "scripts"), os.path.join(here, "../bin")]
    search = os.pathsep.join([*near, os.environ.get("PATH", os.defpath), *_FOLDERS])
    for name in ("mariadb-install-db", "mysql_install_db"):
        path = shutil.which(name, path=search)
        if path:
            return path
    raise Fault(
        f"mariadb-install-db, which makes a data directory for {server.path}, is missing",
        "it comes with the server's package: install that again",
    )


# --- a running server -------------------------------------------------------------------------


def die_with_parent(cpus: Optional[Sequence[int]] = None) -> Callable[[], None]:
    """Return what a child does before it becomes its program: die when we do; stay on CPUs."""
    parent = os.getpid()

    def before_exec() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(127)
        if cpus:
            os.sched_setaffinity(0, cpus)

    return before_exec


class Running:
    """A started server. ``stop`` or ``kill`` it in any case."""

    def __init__(
        self,
        server: Server,
        datadir: str,
        prefix: Sequence[str] = (),
        keep_open: Sequence[int] = (),
        name: str = "the server",
        listen: Optional[Tuple[str, int]] = None,
    ) -> None:
        self.server = server
        self.datadir = datadir
        self.name = name
        self.log = os.path.join(datadir, LOG)
        self.socket = os.path.join(datadir, SOCKET)
        words = [*prefix, *argv(server, datadir, listen)]
        with open(self.log, "wb") as log:
            try:
                self.process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=datadir,
                    pass_fds=tuple(keep_open), preexec_fn=die_with_parent(),
                )  # fmt: skip
            except (OSError, subprocess.SubprocessError) as error:
                raise Fault(f"{words[0]} cannot be started: {error}") from None
        self.pid = self.process.pid

    def connect(self, timeout_s: Optional[float] = None) -> wire.Connection:
        """Return a new session; Fault with the server's last words when it is not there."""
        # The socket's own name may be too long for an address: its folder, by number, never is.
        folder = os.open(self.datadir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return wire.Connection(f"/proc/self/fd/{folder}/{SOCKET}", timeout_s=timeout_s)
        finally:
            os.close(folder)

    def wait_until_it_answers(self, limit_s: float = START_LIMIT_S) -> None:
        """Return when it has answered a question; Fault when it ends or takes too long."""
        deadline = time.monotonic() + limit_s
        while True:
            if self.process.poll() is not None:
                raise Fault(
                    f"{self.name} ({self.server.title}) refused to start ({self._how_it_ended()})"
                    f"{last_words(self.log)}",
                    out_of_space(self.log),
                )
            try:
                with self.connect(timeout_s=limit_s) as session:
                    session.query("SELECT 1")
                return
            except (OSError, wire.Refused):
                if time.monotonic() > deadline:
                    raise Fault(
                        f"{self.name} ({self.server.title}) did not answer within {limit_s:g} s of "
                        f"its start{last_words(self.log)}"
                    ) from None
            time.sleep(0.01)

    def check_alive(self, when: str) -> None:
        """Raise Fault when it has ended by itself."""
        if self.process.poll() is not None:
            raise Fault(
                f"{self.name} ({self.server.title}) died {when} ({self._how_it_ended()})"
                f"{last_words(self.log)}",
                out_of_space(self.log),
            )

    def _how_it_ended(self) -> str:
        status = self.process.returncode
        if status is None or status >= 0:
            return f"exit status {status}"
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-status).name}"
        return f"killed by signal {-status}"

    def stop(self, limit_s: Optional[float] = None) -> None:
        """Shut it down in order; Fault when it had to be killed, or did not end well.

        Without a limit it has STOP_LIMIT_S seconds.
        """
        limit_s = limit_s or STOP_LIMIT_S
        self.check_alive("before it was to shut down")
        self.process.terminate()
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Fault(
                f"{self.name} ({self.server.title}) did not shut down within {limit_s:g} s and was "
                f"killed{last_words(self.log)}"
            ) from None
        if self.process.returncode:
            raise Fault(
                f"{self.name} ({self.server.title}) did not shut down in order "
                f"({self._how_it_ended()}){last_words(self.log)}"
            )

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)


_STAMP = re.compile(
    r"\A(?:\d{4}-\d\d-\d\d[T ] ?\d{1,2}:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?|\d{6} +[\d:]+)\s+"
    r"(?:\d+\s+)?"
)


def last_words(log: str, number: int = 2) -> str:
    """Return ": …", the last errors of a server's log, else its last lines; "" of an empty one."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.path.getsize(log) - (64 << 10)))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    lines = [_STAMP.sub("", line).strip() for line in lines]
    lines = list(itertools.takewhile(lambda line: not line.startswith("usage:"), lines))  # numactl
    errors = [line for line in lines if re.match(r"\[ERROR\]|ERROR\b|FATAL", line)]
    follow = re.compile(r"Abort|initialization failed|init func")
    first = [line for line in errors if not follow.search(line)]
    said = (first or errors)[:number] or [line for line in lines if line][-number:]
    # A person's home folder is not for a record that may be published.
    home = os.path.expanduser("~")
    text = " | ".join(said)
    if home != "/":
        text = text.replace(home + "/", "~/")
    return f": {text[:400]}" if text else ""


def out_of_space(log: str) -> Optional[str]:
    """Return a hint when a server's log says that its disk is full, else None."""
    with contextlib.suppress(OSError):
        text = Path(log).read_bytes()[-(64 << 10) :].decode("utf-8", errors="replace")
        if re.search(r"No space left|[Dd]isk is full|\bENOSPC\b|[Ee]rr(no|or):? 28\b", text):
            return "the disk is full: free some space, or let XDG_CACHE_HOME name another disk"
    return None
