"""Ansible, as a command: which hosts a pattern names, and playing the fleet's playbooks.

The user's own configuration holds: inventories, ansible.cfg, ANSIBLE_* and ~/.ssh/config. What this
module sets are defaults for what neither the environment nor ansible.cfg sets.
"""

from __future__ import annotations

import configparser
import json
import locale
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numalab import home, untrusted
from numalab.agent.errors import Fault

Event = dict[str, Any]
FAILED = ("failed", "unreachable")  # kinds of events after which a host is out
LOG = "ansible.log"


def hosts(pattern: str, inventories: Sequence[Path]) -> list[str]:
    """Return the names of the hosts that a pattern means.

    Raises Fault when an inventory cannot be read, when there is no such host, and for a name that
    cannot name a folder of results.
    """
    for path in inventories:
        if not Path(path).exists():
            raise Fault(f"there is no inventory {path}", "see fleet/inventory.example.yml")
    done = _run("ansible", [*_given(inventories), "--list-hosts", "--", pattern])
    if done.returncode != 0:
        raise Fault(f"Ansible cannot read the inventory: {_last_words(done.stderr)}", "mend it")
    names = [line.strip() for line in done.stdout.splitlines()[1:]]
    groups, members = _known(inventories)
    unknown = [name for name in _plain_names(pattern) if name not in groups | members]
    if unknown or not names:
        shown = sorted(groups - {"all", "ungrouped"})
        if not inventories and not shown and members <= {"localhost"}:
            raise Fault(
                "there is no inventory, which names the hosts to measure on",
                "copy fleet/inventory.example.yml to fleet/inventory.yml and enter your hosts, or "
                "name one with --inventory; numalab lab up NAME makes one of its guests",
            )
        raise Fault(
            f"the inventory names no host or group {', '.join(unknown) or pattern}",
            f"it has the groups {', '.join(shown)}"
            if shown
            else "copy fleet/inventory.example.yml to fleet/inventory.yml and enter your hosts",
        )
    for name in names:
        if not untrusted.is_name(name):
            raise Fault(
                f"the inventory's host {name!r} cannot name a folder of results",
                "give it a plain name there, and its address as ansible_host",
            )
    return names


def _known(inventories: Sequence[Path]) -> tuple[set[str], set[str]]:
    """Return the inventory's groups that have hosts below them, and its hosts."""
    done = _run("ansible-inventory", [*_given(inventories), "--list"])
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return set(), set()
    groups = {name for name, group in found.items() if group.get("hosts") or group.get("children")}
    members = {host for group in found.values() for host in group.get("hosts", [])}
    return groups | {"all", "ungrouped"}, members | {"localhost"}


def _plain_names(pattern: str) -> list[str]:
    """Return the hosts and groups that a pattern names, without wildcards and regular expressions.

    Format: https://docs.ansible.com/ansible/latest/inventory_guide/intro_patterns.html
    """
    parts = [part.strip().lstrip("!&") for part in re.split(r"[,:]", pattern)]
    return [part for part in parts if part and not set(part) & set("*?[]~")]


def play(
    book: str,
    inventories: Sequence[Path],
    variables: dict[str, Any],
    on_event: Callable[[Event], None],
    folder: Path,
    number: int,
) -> None:
    """Play a playbook of ``fleet/`` on ``number`` hosts at once; ``on_event`` gets every event.

    Events are those of fleet/callback_plugins/numalab_events.py. What Ansible itself says goes
    to ``ansible.log`` in ``folder``. Ctrl-C ends Ansible here and nothing on the hosts. Raises
    Fault when Ansible fails and no event says so.
    """
    given = folder / "variables.json"
    given.write_text(json.dumps(variables), encoding="utf-8")
    command = [_find("ansible-playbook"), *_given(inventories), "-e", f"@{given}"]
    failed = False
    with open(folder / LOG, "ab") as log, _connections() as sockets:
        before = log.tell()
        reading, writing = os.pipe()
        playing = subprocess.Popen(
            [*command, str(home.root() / "fleet" / book)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[writing],
            start_new_session=True,  # Ctrl-C is for this process
            env={**_environment(number, sockets), "NUMALAB_EVENTS_FD": str(writing)},
        )
        os.close(writing)
        try:
            with open(reading, encoding="utf-8", errors="replace") as events:
                for line in events:
                    event = json.loads(line)
                    failed = failed or event["kind"] in FAILED
                    on_event(event)
            code = playing.wait()
        finally:
            if playing.poll() is None:
                _end(playing)
    if code != 0 and not failed:
        said = (folder / LOG).read_bytes()[before:].decode("utf-8", errors="replace")
        raise Fault(f"Ansible failed: {_last_words(said)}", f"all it said: {folder / LOG}")


def _end(playing: subprocess.Popen[bytes]) -> None:
    """End Ansible and the ssh commands below it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(playing.pid, number)
            playing.wait(timeout=3)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    playing.wait()


def _given(inventories: Sequence[Path]) -> list[str]:
    return [part for path in inventories for part in ("-i", str(path))]


def _find(name: str) -> str:
    """The command of this Python's own environment, else the one on PATH."""
    own = Path(sys.executable).parent / name
    found = str(own) if own.is_file() else shutil.which(name)
    if not found:
        raise Fault(
            "a fleet needs Ansible, which is not installed here",
            f"install it with: {sys.executable} -m pip install ansible-core",
        )
    return found


def _run(name: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [_find(name), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env={**_environment(1, None), "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1"},
    )


def _environment(number: int, sockets: Path | None) -> dict[str, str]:
    environment = {
        **os.environ,
        "ANSIBLE_STDOUT_CALLBACK": "numalab_events" if sockets else "default",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_DEPRECATION_WARNINGS": "0",
        "ANSIBLE_LOCALHOST_WARNING": "0",
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).resolve().parents[2]), *filter(None, [os.getenv("PYTHONPATH")])]
        ),
    }
    environment.pop("ANSIBLE_FORCE_COLOR", None)
    if locale.getpreferredencoding(False).lower().replace("-", "") != "utf8":
        environment["LC_ALL"] = "C.UTF-8"  # Ansible refuses others
    defaults = {
        "pipelining": ("ANSIBLE_PIPELINING", "1"),
        "forks": ("ANSIBLE_FORKS", str(max(number, 5))),
        "timeout": ("ANSIBLE_TIMEOUT", "30"),
        # A silent host is given up after two minutes: without this ssh would wait for hours.
        "ssh_extra_args": (
            "ANSIBLE_SSH_EXTRA_ARGS",
            "-o ServerAliveInterval=15 -o ServerAliveCountMax=8",
        ),
        "control_path_dir": ("ANSIBLE_SSH_CONTROL_PATH_DIR", str(sockets or "")),
    }
    configured = _configured()
    for key, (name, value) in defaults.items():
        if value and name not in environment and key not in configured:
            environment[name] = value
    return environment


def _configured() -> set[str]:
    """The keys that the user's ansible.cfg sets: the first file that Ansible would take."""
    candidates = [os.environ.get("ANSIBLE_CONFIG"), "ansible.cfg", "~/.ansible.cfg"]
    for candidate in [*filter(None, candidates), "/etc/ansible/ansible.cfg"]:
        path = Path(candidate).expanduser()
        if path.is_dir():
            path /= "ansible.cfg"
        if path.is_file():
            parser = configparser.ConfigParser(interpolation=None, strict=False)
            try:
                parser.read(path)
            except configparser.Error:
                return set()  # Ansible says what is wrong with it
            return {key for section in parser.sections() for key in parser[section]}
    return set()


@contextmanager
def _connections() -> Iterator[Path]:
    """A private folder of ssh's shared connections, which are closed at the end.

    Its path is short wherever the home directory is: a socket's path holds 107 bytes (unix(7)).
    """
    folder = Path(tempfile.mkdtemp(prefix="numalab-", dir="/tmp"))
    try:
        yield folder
    finally:
        for path in folder.iterdir():
            closing = ["ssh", "-o", f"ControlPath={path}", "-O", "exit", "any"]
            subprocess.run(closing, stdin=subprocess.DEVNULL, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def _last_words(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR", "[ERROR]"))]
    return (errors or lines or ["it said nothing"])[-1]
