"""How large data, buffer pool and redo log are, and how long they take: by host and load.

A host's CPUs are divided among the servers of a cell: each has its part of the load and the data.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, Tuple

from ...contract import Host, Timing, reason
from ...drivers import options as check
from ...errors import Fault
from ..caches import FOUR_CACHES, TIMES_CACHES, four_caches
from .data import ROW_BYTES, table_bytes

_CHUNK = 128 << 20  # innodb_buffer_pool_chunk_size
_POOL_PARTS_FROM = 1 << 30  # a smaller pool is never divided
_MOST_POOL_PARTS = 64
# A CPU of oltp_read_write writes 12 to 18 MB/s of redo (MariaDB 10.11, measured); a server's log
# is then a bottleneck before all CPUs of a large host have written as much as the most.
_REDO_BYTES_S = 18 << 20
_LEAST_REDO, _MOST_REDO = 1 << 30, 8 << 30
_READING_REDO = 96 << 20
# Seconds and rates are measured; for estimates only.
_START_S, _MYSQL_START_S, _COPY_BYTES_S = 0.7, 1.5, 300e6
_FILL_BYTES_S, _MOST_FILL_BYTES_S = 600e6, 6e9  # by one CPU, by all


def rows(given: Mapping[str, Any], host: Host) -> int:
    """Return the rows of each table: a number, or as many as "4x-llc" makes on this host.

    Then the tables of all servers together are four times the last-level caches of the host, but
    256 MiB at least, ``data_limit`` at most, and never more than a quarter of its smallest node.
    """
    if given["rows"] != FOUR_CACHES:
        return check.whole("rows", given["rows"], 1)
    most = check.size("data_limit", given["data_limit"])
    each: int = min(four_caches(host), most) // given["instances"]
    thousands: int = -(-each // (given["tables"] * ROW_BYTES * 1000))
    return max(1, thousands) * 1000


def below_caches(options: Mapping[str, Any], host: Host, cpus: str) -> Mapping[str, int]:
    """Return tables and caches (bytes) where the tables are not four times the caches of these

    CPUs; nothing where they are, or where the caches are not known.
    """
    tables = options["instances"] * options["tables"] * options["rows"] * ROW_BYTES
    caches = check.caches(host, cpus).last
    small = caches is not None and tables < TIMES_CACHES * caches
    return {"tables": tables, "caches": caches or 0} if small else {}


def pool(value: Any, tables: int, cpus: int) -> Tuple[int, int]:
    """Return the buffer pool's bytes and into how many parts it is divided, where the server can.

    The bytes: what the tables need and a quarter more, in whole steps. The parts: as MySQL 8.4
    has them by itself ("innodb_buffer_pool_instances" of its manual): two chunks, four CPUs each.
    """
    automatic = value == "auto"
    least = tables + tables // 4 + (64 << 20) if automatic else value
    if isinstance(least, bool) or not isinstance(least, int) or least < tables:
        raise Fault(
            reason("pool-too-small", asked=str(value), tables=tables),
            "write a number of bytes that does, or auto: this measures memory, not the disk",
        )
    parts = max(1, min(_MOST_POOL_PARTS, least // (2 * _CHUNK), cpus // 4))
    parts = parts if least >= _POOL_PARTS_FROM else 1
    step = _CHUNK * parts if automatic else 1  # else the server rounds it up by itself
    return -(-least // step) * step, parts


def redo(options: Mapping[str, Any], cpus: int) -> int:
    """Return the bytes of redo log: what a trial that writes may write, so that none waits."""
    if not options["writes"]:
        return _READING_REDO
    seconds: int = options["warmup_s"] + options["time_s"] + 2
    wanted = cpus * _REDO_BYTES_S * seconds
    return min(_MOST_REDO, max(_LEAST_REDO, -(-wanted // _LEAST_REDO) * _LEAST_REDO))


def clients(value: Any, cpus: int) -> int:
    """Return a number of client threads: a number, or a word for the CPUs that are one's part."""
    words = {"cpus": cpus, "half-cpus": max(1, cpus // 2), "2x-cpus": 2 * cpus, "4x-cpus": 4 * cpus}
    number = words.get(value, value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 10_000:
        raise Fault(
            f"clients: {value!r} is not a number of client threads",
            f"write a number from 1, or {', '.join(words)}",
        )
    return number


def rate(value: Any, cpus: int) -> int:
    """Return transactions a second that a client starts, 0 for as many as it can.

    ``"400/cpu"`` is so many for each of the CPUs that are its part.
    """
    match = re.fullmatch(r"(\d+)/cpu", value) if isinstance(value, str) else None
    return int(match[1]) * cpus if match else check.whole("rate", value, 0)


def timing(options: Mapping[str, Any], cpus: int, mariadb: bool) -> Timing:
    """Return the planned seconds on so many CPUs: start and copy, filling the pool, measurement."""
    start_s = _START_S if mariadb else _MYSQL_START_S
    tables = options["instances"] * table_bytes(options)
    copy_s = tables / _COPY_BYTES_S if options["writes"] else 0.0
    fill_s = tables / min(_MOST_FILL_BYTES_S, cpus * _FILL_BYTES_S)
    warmup_s = fill_s + options["warmup_s"] + 1
    return Timing(start_s + copy_s, warmup_s, float(options["time_s"]))
