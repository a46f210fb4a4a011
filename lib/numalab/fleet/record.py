"""What a command asked of a fleet, and what has arrived from each host.

One folder per command, ``build/fleet/GROUP-KEY``, so that the same command finds what it began:

    asked.json        the command, its session's name, the hosts, the requests with their seeds
    hosts/HOST.json   {"runs": {key: folder}, "notebooks": {key: file or null},
                       "left_out": {key: reason}}
    ansible.log       what Ansible said
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from numalab import home
from numalab.agent.contract import SCHEMA, Request
from numalab.agent.errors import Fault
from numalab.agent.trial import journal


@dataclass
class Session:
    """asked.json: a command, and what makes its runs alike on all hosts."""

    schema: int
    session: str
    began: str
    asked: Mapping[str, Any]
    requests: Dict[str, Request]  # by key; their host is to be filled in
    hosts: Tuple[str, ...] = ()
    complete: bool = False


@dataclass
class HostEntry:
    """hosts/HOST.json: what came of each request on a host, by its key."""

    schema: int = SCHEMA
    runs: Dict[str, str] = field(default_factory=dict)
    notebooks: Dict[str, Optional[str]] = field(default_factory=dict)
    left_out: Dict[str, str] = field(default_factory=dict)


class Record:
    """The record of one command; ``folder`` is where it is."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self.asked = asked
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        group = re.sub(r"[^\w.-]+", "-", asked["group"]).strip("-.")
        self.folder = home.build() / "fleet" / f"{group or 'hosts'}-{digest[:8]}"
        self._session: Session | None = None
        self.begun_before = False

    @property
    def session(self) -> Session:
        """What this command began; Fault when it has begun nothing."""
        if self._session is None and not self._read():
            raise Fault("this command has left nothing running", "was it given the same way?")
        assert self._session is not None
        return self._session

    @contextmanager
    def opened(self, requests: Sequence[Request], hosts: Sequence[str]) -> Iterator[None]:
        """Take up what the same command began and did not complete, else begin.

        ``hosts`` are those that the command names today. Raises Fault while another process does
        the same.
        """
        (self.folder / "hosts").mkdir(parents=True, exist_ok=True)
        with open(self.folder / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Fault(
                    "this command is at work already, in another terminal", "wait for it there"
                ) from None
            self.begun_before = self._read()
            if not self.begun_before:
                self._begin(requests)
            self.session.hosts = tuple(dict.fromkeys([*self.session.hosts, *hosts]))
            self._write()
            yield

    def _read(self) -> bool:
        try:
            found = journal.load(Session, self.folder / "asked.json")
        except Fault:
            return False  # never begun, or damaged: begin
        if not found.complete:
            self._session = found
        return not found.complete

    def _begin(self, requests: Sequence[Request]) -> None:
        for path in (self.folder / "hosts").iterdir():
            path.unlink()
        now = datetime.now(timezone.utc)
        self._session = Session(
            SCHEMA,
            f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
            now.isoformat(timespec="seconds"),
            self.asked,
            {key_of(number, request): request for number, request in enumerate(requests, 1)},
        )

    def _write(self) -> None:
        journal.write_json(self.folder / "asked.json", self.session)

    def close(self) -> None:
        """Note that all is complete: the same command begins anew."""
        self.session.complete = True
        self._write()

    # --- per host -----------------------------------------------------------------------------

    def host(self, name: str) -> HostEntry:
        """Return what has come of a host so far."""
        return read_host(self._file(name))

    def missing(self, host: str) -> dict[str, Request]:
        """Return the requests to a host whose runs have not arrived from it, by their keys."""
        there = {**self.runs(host), **self.host(host).left_out}
        requests = self.session.requests.items()
        return {key: replace(one, host=host) for key, one in requests if key not in there}

    def runs(self, host: str) -> dict[str, Path]:
        """Return the run directories that have arrived from a host, by their requests' keys."""
        known = {key: Path(path) for key, path in self.host(host).runs.items()}
        return {key: path for key, path in known.items() if home.is_run(path)}

    def leave_out(self, host: str, key: str, reason: str) -> None:
        """Note that a request has nothing to measure on a host."""
        with self._changed(host) as entry:
            entry.left_out[key] = reason

    def concluded(self, host: str, key: str) -> bool:
        """Tell whether a run's tables and notebook are made."""
        return key in self.host(host).notebooks

    def conclude(self, host: str, key: str, notebook: Path | None) -> None:
        """Note that a run's tables and notebook are made."""
        with self._changed(host) as entry:
            entry.notebooks[key] = str(notebook) if notebook else None

    def forget(self, host: str, key: str) -> None:
        """Let a request be measured anew."""
        with self._changed(host) as entry:
            del entry.runs[key]

    @contextmanager
    def _changed(self, host: str) -> Iterator[HostEntry]:
        entry = self.host(host)
        yield entry
        journal.write_json(self._file(host), entry)

    def _file(self, host: str) -> Path:
        return self.folder / "hosts" / f"{host}.json"


def key_of(number: int, request: Request) -> str:
    """Return the name that a request has in a session; ``number`` counts from 1."""
    return f"{number}-{request.experiment}"


def read_host(path: Path) -> HostEntry:
    """Return what a host's file says, of an empty host where there is none yet."""
    return journal.load(HostEntry, path) if path.exists() else HostEntry()
