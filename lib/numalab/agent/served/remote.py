"""A client on another host: reached by ssh(1), it asks the server over TCP.

Only then has a private server a network address: the one that the client's host sees of us, a port
that was free, and an account that may come from that host alone, reads and writes nothing but the
test data, and ends with the trial. The connection is not encrypted: it carries random rows, and
encrypting them would be measured.
"""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
from typing import Any, List, NamedTuple, Tuple

from ..contract import reason
from ..errors import Fault

_LOOK_LIMIT_S = 30.0
# A name for ssh's configuration, where a user belongs that a record should not show.
_NAME = re.compile(r"[A-Za-z0-9][\w.:-]*\Z", re.ASCII)
_SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
_LOOK = (
    'echo "connection=$SSH_CONNECTION"; echo "cpus=$(getconf _NPROCESSORS_ONLN)"; '
    'echo "version=$({program} --version)"'
)
# The client's CPU time, by the shell that waited for it: `times` (POSIX) has its children's last.
_RUN = '"$@"; status=$?; times; exit $status'
_TIMES = re.compile(
    r"^(?:\d+m[\d.]+s \d+m[\d.]+s\n)(?P<user>\d+m[\d.]+s) (?P<system>\d+m[\d.]+s)\n?\Z",
    re.MULTILINE,
)


class ClientHost(NamedTuple):
    """The client's host: its CPUs, its load generator, its address and ours as it sees them."""

    name: str
    cpus: int
    version: str
    address: str
    ours: str


def look(host: Any, program: str) -> ClientHost:
    """Return what the client's host is; Fault with ssh's words when it cannot be used."""
    if not isinstance(host, str) or not _NAME.match(host):
        raise Fault(
            f"client_host {host!r} is not the name of a host", "user and port go to ~/.ssh/config"
        )
    try:
        done = subprocess.run(
            [*_SSH, host, _LOOK.format(program=program)], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=_LOOK_LIMIT_S,
        )  # fmt: skip
    except FileNotFoundError:
        raise Fault("a client on another host needs ssh here", "install openssh-client") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Fault(reason("client-host-silent", host=host, error=str(error))) from None
    answers = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    addresses = answers.get("connection", "").split()
    version = re.search(r"\d+\.\d+\.\d+", answers.get("version", ""))
    if done.returncode == 255 or len(addresses) != 4:
        said = done.stderr.strip().splitlines()
        raise Fault(
            reason("client-host-unusable", host=host, said=said[-1] if said else "no words"),
            f"`ssh -o BatchMode=yes {host} true` must work from the server's host, as this user",
        )
    if not version:
        raise Fault(
            reason("client-host-without-program", host=host, program=program), "install it there"
        )
    here, there = (address.partition("%")[0] for address in addresses[::2])
    return ClientHost(host, int(answers["cpus"]), version[0], there, here)


def free_port(address: str) -> int:
    """Return a TCP port of our address that nobody listens on; Fault when it is not ours."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as one:
            one.bind((address, 0))
            return int(one.getsockname()[1])
    except OSError as error:
        raise Fault(
            reason("address-not-ours", address=address, error=error.strerror),
            "an address that a gateway translates does not do",
        ) from None


def command_line(client: ClientHost, words: List[str]) -> List[str]:
    """Return the command line, here, of a command there; its output ends with its CPU time."""
    there = ["sh", "-c", _RUN, "sh", *words]
    return [*_SSH, client.name, " ".join(map(shlex.quote, there))]


def cpu_time(output: str) -> Tuple[str, float]:
    """Return a command's output without its CPU time, and that time (s; 0 where it is missing)."""
    found = _TIMES.search(output)
    if not found:
        return output, 0.0
    return output[: found.start()], sum(map(_seconds, (found["user"], found["system"])))


def _seconds(text: str) -> float:
    minutes, _, seconds = text[:-1].partition("m")
    return 60 * int(minutes) + float(seconds)
