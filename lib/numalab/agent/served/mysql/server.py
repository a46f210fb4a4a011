"""Private servers: which programs the host has, their configuration and their command lines.

Nothing of an installed server is touched: no option file is read but our own, the data directory
is ours, and there is no network (but for a client on another host, see ``remote``), only a unix
socket in the data directory itself. Its path is relative (the server works in its data directory),
so that it always fits into the 108 bytes of a socket's address (unix(7)), however deep the cache
lies.

Settings are those of the MySQL Reference Manual, "Server System Variables" and "InnoDB Startup
Options and System Variables", and of the MariaDB Server documentation; each is written only where
the server knows it.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ... import kernel
from ...contract import reason
from ...errors import Fault
from ..instance import last_words, log_lines, out_of_space

WAIT_METRICS = ("buffer_flush_sync_waits", "log_on_file_space_waits")  # INNODB_METRICS
SOCKET = "socket"  # in the data directory
CONFIG = "numalab.cnf"
PROGRAMS = ("mysqld", "mariadbd")
FOLDERS = (  # where a server's program may lie, beside those of PATH
    "/usr/sbin", "/usr/libexec", "/usr/bin", "/usr/local/sbin", "/usr/local/bin",
    "/usr/local/libexec", "/usr/local/mysql/bin", "/usr/local/mariadb/bin", "/opt/mysql/bin",
)  # fmt: skip
VENDORS = ("mysql", "mariadb")
INSTALL = (
    "apt install mariadb-server-core (Debian, Ubuntu), dnf install mariadb-server (RHEL, Fedora, "
    "openEuler), or name a server's program: --set server=/path/to/mysqld"
)
_LEAST = {"MariaDB": (10, 4)}  # the oldest version that is driven, MySQL's is the other
_LEAST_MYSQL = (5, 7)
_INITIALISE_LIMIT_S = 900.0
_MOST_OTHERS = 80  # sessions beside the client's: those that fill the buffer pool, and our own


class Server(NamedTuple):
    """One server's program. ``known`` are the variables that it has, with underscores."""

    path: str
    vendor: str  # MySQL, MariaDB, Percona Server
    version: str  # 10.11.19
    build: str  # 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)
    known: Mapping[str, str]

    @property
    def title(self) -> str:
        """Vendor and version."""
        return f"{self.vendor} {self.version}"

    @property
    def is_mariadb(self) -> bool:
        """Whether it goes by MariaDB's ways, not MySQL's."""
        return self.vendor == "MariaDB"


# --- programs ---------------------------------------------------------------------------------


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
    there: Dict[str, Server] = {}
    faults: List[Fault] = []
    for path in programs():
        try:
            found = _look_at(path)
        except Fault as fault:
            faults.append(fault)
        else:
            there.setdefault("mariadb" if found.is_mariadb else "mysql", found)
    for vendor in vendors:
        if vendor in there:
            return there[vendor]
    if faults:
        raise faults[0]
    if there:
        other = next(iter(there.values())).title
        raise Fault(reason("only-another-server", wanted=vendors[0], title=other), INSTALL)
    raise Fault(reason("no-mysql-server"), INSTALL)


def programs() -> Iterator[str]:
    """Yield the paths of the servers' programs on this host, each program once."""
    seen = set()
    for folder in [*os.environ.get("PATH", os.defpath).split(os.pathsep), *FOLDERS]:
        for name in PROGRAMS:
            path = os.path.join(folder, name)
            real = os.path.realpath(path)
            if real not in seen and os.access(path, os.X_OK) and os.path.isfile(path):
                seen.add(real)
                yield path


@functools.cache
def _look_at(path: str) -> Server:
    # What it is: version, who built it (MariaDB 11.8 and newer), system; an appeal may follow.
    version_line = re.compile(r"\bVer ((\S+)(?: from .+?)? for .+?)\s*(?:\(-- .*)?$", re.MULTILINE)
    help_text = _answer(path, ["--no-defaults", *_as_user(), "--verbose", "--help"])
    match = version_line.search(help_text) or version_line.search(
        _answer(path, ["--no-defaults", "--version"])
    )
    number = match and re.match(r"\d+\.\d+\.\d+", match[2])
    if not match or not number:
        raise Fault(f"{path} does not say that it is a MySQL or MariaDB server", INSTALL)
    vendor = "MariaDB" if "MariaDB" in match[0] else "MySQL"
    if "Percona" in match[0]:
        vendor = "Percona Server"
    version, least = number[0], _LEAST.get(vendor, _LEAST_MYSQL)
    if tuple(int(part) for part in version.split(".")[:2]) < least:
        raise Fault(
            f"{path} is {vendor} {version}", f"use {least[0]}.{least[1]} or newer: {INSTALL}"
        )
    known = _variables(help_text)
    if "innodb_buffer_pool_size" not in known:
        raise Fault(f"{path} does not list its variables by --verbose --help", INSTALL)
    return Server(path, vendor, version, match[1], known)


def _variables(text: str) -> Dict[str, str]:
    """Return the table at the end of --verbose --help: variables and their values."""
    table = re.split(r"^-{20,}[ -]*$", text, maxsplit=1, flags=re.MULTILINE)[-1]
    rows = re.findall(r"^([a-z][a-z0-9-]*)(?:[ \t]+(.*))?$", table, re.MULTILINE)
    return {name.replace("-", "_"): value.strip() for name, value in rows}


def _answer(path: str, words: List[str]) -> str:
    try:
        done = subprocess.run(
            [path, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=60, cwd="/", env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Fault(f"{path} does not run: {error}", INSTALL) from None
    return done.stdout


def _as_user() -> List[str]:
    """A server that root starts must have this permission; the data directory is root's then."""
    return ["--user=root"] if os.geteuid() == 0 else []


# --- configuration ----------------------------------------------------------------------------

_ALWAYS: Mapping[str, Any] = {
    # no network, nothing that other hosts or other programs could reach
    "skip_networking": "ON", "mysqlx": "OFF", "skip_name_resolve": "ON",
    # nothing is loaded into the buffer pool but by the warm-up
    "innodb_buffer_pool_dump_at_shutdown": "OFF", "innodb_buffer_pool_load_at_startup": "OFF",
    "innodb_dedicated_server": "OFF", "large_pages": "OFF", "innodb_adaptive_hash_index": "OFF",
    # input and output: as little as a server that keeps its data may do
    "innodb_flush_method": "O_DIRECT", "innodb_doublewrite": "OFF",
    "innodb_flush_log_at_trx_commit": 2, "innodb_use_native_aio": "ON",
    "innodb_io_capacity": 2000, "innodb_io_capacity_max": 4000,
    "innodb_read_io_threads": 4, "innodb_write_io_threads": 4, "innodb_purge_threads": 4,
    "innodb_log_buffer_size": 64 << 20, "skip_log_bin": None,
    # sessions: one thread each
    "thread_handling": "one-thread-per-connection", "max_prepared_stmt_count": 1 << 20,
    # nothing that measures, logs or remembers beside
    "performance_schema": "OFF", "query_cache_type": "OFF", "query_cache_size": 0,
    "general_log": "OFF", "slow_query_log": "OFF", "event_scheduler": "OFF",
    "innodb_status_output": "OFF",
    "character_set_server": "utf8mb4", "collation_server": "utf8mb4_general_ci",
}  # fmt: skip
# A trial that writes: pages are flushed when the redo log is full, which it should not become. One
# that only reads fills its pool from the page cache: the disk is read for the first trial alone.
_WRITING: Mapping[str, Any] = {
    "innodb_adaptive_flushing": "OFF", "innodb_max_dirty_pages_pct": 90,
    "innodb_max_dirty_pages_pct_lwm": 0, "innodb_monitor_enable": ";".join(WAIT_METRICS),
}  # fmt: skip
_FIXED = (
    "datadir", "socket", "port", "skip_networking", "user", "pid_file", "log_error",
    "innodb_numa_interleave", "bind_address",
)  # fmt: skip


def settings(
    server: Server, options: Mapping[str, Any], own: Optional[Mapping[str, Any]] = None
) -> Dict[str, str]:
    """Return every variable that is set, in the order of the configuration file.

    ``options`` are the driver's resolved options; ``own`` the user's settings, which win. Fault for
    a setting of the user's that this server does not know.
    """
    wanted = {**_ALWAYS, **_by_size(options), **_by_vendor(server, options)}
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


def _by_size(options: Mapping[str, Any]) -> Dict[str, Any]:
    """The buffer pool holds all the data, and no session is started while it is measured."""
    sessions, cached = _sessions(options), _open_tables(options)
    return {
        "innodb_buffer_pool_size": options["pool_bytes"],
        "innodb_buffer_pool_instances": options["pool_parts"],
        "innodb_numa_interleave": options["innodb_numa_interleave"],
        "innodb_fast_shutdown": 2 if options["writes"] else 1,
        "max_connections": sessions,
        "back_log": sessions,
        "thread_cache_size": sessions,
        "table_open_cache": cached,
        "table_definition_cache": max(2000, 2 * options["tables"]),
        "open_files_limit": open_files(options),
        **(_WRITING if options["writes"] else {"innodb_flush_method": "fsync"}),
    }


def _sessions(options: Mapping[str, Any]) -> int:
    return int(options["clients"]) + _MOST_OTHERS


def _open_tables(options: Mapping[str, Any]) -> int:
    """Every session has every table open."""
    return max(2000, int(options["tables"]) * _sessions(options))


def open_files(options: Mapping[str, Any]) -> int:
    """Return the files that a server asks for; with fewer it allows fewer sessions and tables.

    By the MySQL Reference Manual, "open_files_limit": 10 + max_connections + 2 x table_open_cache;
    and what InnoDB has open of its own.
    """
    return 1000 + _sessions(options) + 2 * _open_tables(options)


def _by_vendor(server: Server, options: Mapping[str, Any]) -> Dict[str, Any]:
    redo, known = options["redo_bytes"], server.known
    if "innodb_redo_log_capacity" in known:
        chosen: Dict[str, Any] = {"innodb_redo_log_capacity": redo}
    else:  # of each of its files
        number = known.get("innodb_log_files_in_group", "1")
        chosen = {"innodb_log_file_size": redo // (int(number) if number.isdecimal() else 1)}
    if server.is_mariadb and not options["writes"]:
        chosen["innodb_data_file_buffering"] = "ON"  # what flush_method was, since 11.0
    if not server.is_mariadb:
        chosen["secure_file_priv"] = "NULL"  # else a folder must exist that only packages make
    if options.get("client_host"):
        chosen["skip_networking"] = "OFF"  # where it listens is on the command line
        chosen["ssl" if server.is_mariadb else "tls_version"] = "OFF" if server.is_mariadb else "''"
    return chosen


def config_text(server: Server, chosen: Mapping[str, str]) -> str:
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
    """Return where a server is that was unpacked somewhere: else it misses its messages."""
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
                timeout=_INITIALISE_LIMIT_S, preexec_fn=kernel.die_with_parent(),
                env={**os.environ, "TMPDIR": datadir, "LC_ALL": "C"},
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            why = reason("no-data-directory", title=server.title, said=str(error))
            raise Fault(why) from None
    if done.returncode:
        said = f"exit status {done.returncode}: {error_words(log)}"
        raise Fault(reason("no-data-directory", title=server.title, said=said), out_of_space(log))


def _installer(server: Server) -> str:
    here = os.path.dirname(os.path.realpath(server.path))
    near = [here, os.path.join(os.path.dirname(here), "scripts"), os.path.join(here, "../bin")]
    search = os.pathsep.join([*near, os.environ.get("PATH", os.defpath), *FOLDERS])
    for name in ("mariadb-install-db", "mysql_install_db"):
        path = shutil.which(name, path=search)
        if path:
            return path
    raise Fault(
        f"mariadb-install-db, which makes a data directory for {server.path}, is missing",
        "it comes with the server's package: install that again",
    )


# --- its log ----------------------------------------------------------------------------------

_STAMP = re.compile(
    r"\A(?:\d{4}-\d\d-\d\d[T ] ?\d{1,2}:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?|\d{6} +[\d:]+)\s+"
    r"(?:\d+\s+)?"
)
_ERROR = re.compile(r"\[ERROR\]|ERROR\b|FATAL")
_CONSEQUENCE = re.compile(r"Abort|initialization failed|init func")


def error_words(log: str) -> str:
    """Return the last errors of a server's log without their times, else its last lines."""
    lines = [_STAMP.sub("", line).strip() for line in log_lines(log)]
    errors = [line for line in lines if _ERROR.match(line)]
    causes = [line for line in errors if not _CONSEQUENCE.search(line)]
    return last_words((causes or errors)[:2] or lines)
