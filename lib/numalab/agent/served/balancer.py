"""HAProxy in front of several instances: one address for a client that should see one service.

How a trial uses it::

    found = balancer.find()                                  # once, on the host under test
    one = balancer.Balancer(found, folder, {"instance 1": "unix:/…/socket"}, "4-5", connections=64)
    one.wait_until_it_answers()
    one.address                                              # what the client asks: unix:…
    one.usage(), one.counters()                              # its CPU time; requests by instance
    one.check_alive("in the measurement"); one.stop()        # or one.kill()

It has one thread, on the CPUs that it is given, and asks the instance with the fewest open requests
(leastconn). It does not look whether instances are well, and tries nothing again: a request that an
instance does not answer is an error that the client counts.

The configuration and the counters are of HAProxy's configuration and management manuals; tried
with 2.6 and 3.0. Since 2.4 it binds itself to the CPUs of one node where nothing else
does: it is told not to, has ``nbthread``, and starts on CPUs that are chosen for it.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import socket
from pathlib import Path
from typing import Dict, Mapping, Optional

from ..contract import ToolRecord
from ..drivers.options import answer
from ..errors import Fault, NotHere
from .instance import RunningServer, last_words, log_lines

NAME = "haproxy"
CONFIG, SOCKET, STATS = "haproxy.cfg", "balancer.sock", "stats.sock"
_OLDEST = (2, 4)  # that knows numa-cpu-mapping
_PLACES = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin"))
_ASK_LIMIT_S = 5.0
_SERVERS_ONLY = b"show stat -1 4 -1\n"  # of any proxy, of type server, any of them
_ANSWERS = ("hrsp_1xx", "hrsp_2xx", "hrsp_3xx", "hrsp_4xx", "hrsp_5xx", "hrsp_other")
_ERRORS = ("econ", "eresp", "hrsp_5xx")  # no connection, no whole answer, the instance's own words


def find(named: Optional[str] = None) -> ToolRecord:
    """Return HAProxy's path and version; NotHere where there is none that can be used."""
    path = shutil.which(named or NAME, path=_PLACES)
    if path is None:
        raise NotHere(
            f"there is no {named or NAME}, which shares the load among instances",
            "apt install haproxy (dnf install haproxy), or measure with balancer=none",
        )
    match = re.search(r"^HA-?Proxy version ((\d+)\.(\d+)[\w.+~-]*)", answer(path, "-v"), re.M)
    if not match:
        raise Fault(f"{path} does not say that it is HAProxy", "name the right program")
    if (int(match[2]), int(match[3])) < _OLDEST:
        raise NotHere(f"HAProxy {match[1]} is too old", "install 2.4 or newer")
    return ToolRecord(NAME, match[1], path)


def config_text(backends: Mapping[str, str], connections: int) -> str:
    """Return the configuration: instances by name, each ``unix:PATH`` or ``HOST:PORT``.

    It is to be read in the folder where the sockets shall be. ``connections`` are the most that
    clients make. Raises Fault for a path that cannot stand there.
    """
    lines = [
        "global",
        "    nbthread 1",
        "    no numa-cpu-mapping",
        f"    maxconn {connections + 10}",
        f"    stats socket unix@{STATS} mode 600 level user",
        "defaults",
        "    mode http",
        "    retries 0",
        "    timeout connect 5s",
        "    timeout client 1h",
        "    timeout server 1h",
        "frontend clients",
        f"    bind unix@{SOCKET} mode 600",
        "    default_backend instances",
        "backend instances",
        "    balance leastconn",
        "    http-reuse always",
    ]
    for number, to in enumerate(backends.values()):
        address = "unix@" + to[len("unix:") :] if to.startswith("unix:") else to
        if not re.fullmatch(r"[\w./:@+,=~\[\]-]+", address):
            raise Fault(f"HAProxy cannot be given the address {to!r}", "use a plain path")
        lines.append(f"    server {_id(number)} {address}")
    return "\n".join([*lines, ""])


def _id(number: int) -> str:
    """Return the name of an instance in HAProxy: its own may have blanks."""
    return f"i{number}"


class Balancer(RunningServer):
    """HAProxy with a folder of its own; a fault names it by its title."""

    ends_well = (-15,)  # SIGTERM ends it at once; it then dies of the same signal

    def __init__(
        self,
        found: ToolRecord,
        folder: str,
        backends: Mapping[str, str],
        cpus: str,
        connections: int,
    ) -> None:
        self.names = list(backends)
        self.config = config_text(backends, connections)
        Path(folder, CONFIG).write_text(self.config, encoding="utf-8")
        super().__init__(
            f"HAProxy {found.version}", [str(found.path), "-db", "-f", CONFIG], folder,
            binding={"cpus": cpus},
        )  # fmt: skip

    @property
    def address(self) -> str:
        """What a client asks: ``unix:PATH``."""
        return f"unix:{os.path.join(self.datadir, SOCKET)}"

    def ask(self, timeout_s: float) -> None:
        """As of the base: it tells its statistics once it listens."""
        self._servers()

    def about(self) -> Dict[str, str]:
        """As of the base."""
        return {"title": self.title, "config": self.config}

    def said(self) -> str:
        """As of the base: its first alert, as those after it only say that it gives up."""
        lines = log_lines(self.log)
        alerts = [line.partition(" : ")[2] for line in lines if line.startswith("[ALERT]")]
        return last_words(alerts[:1] or lines)

    def counters(self) -> Dict[str, float]:
        """Return what each instance answered, and its errors: ``instance_requests:NAME``,

        ``instance_errors:NAME``. Raises Fault when HAProxy does not tell.
        """
        found: Dict[str, float] = {}
        try:
            servers = self._servers()
            for number, name in enumerate(self.names):
                row = servers[_id(number)]
                found[f"instance_requests:{name}"] = sum(float(row[one]) for one in _ANSWERS)
                found[f"instance_errors:{name}"] = sum(float(row[one]) for one in _ERRORS)
        except (OSError, KeyError, ValueError) as error:
            self.check_alive("while it was asked for its counters")
            said = f"{type(error).__name__}: {error}"
            raise self.fault("server-tells-no-counters", error=said) from None
        return found

    def _servers(self) -> Dict[str, Dict[str, str]]:
        """Return the rows of ``show stat`` that are of servers, by their names (management 9.1)."""
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(_ASK_LIMIT_S)
            one.connect(os.path.join(self.datadir, STATS))
            one.sendall(_SERVERS_ONLY)
            text = b"".join(iter(lambda: one.recv(65536), b"")).decode("utf-8", "replace")
        rows = csv.DictReader(text.lstrip("# ").splitlines())
        return {row["svname"]: row for row in rows}
