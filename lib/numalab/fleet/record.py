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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from numalab import home
from numalab.agent.contract import SCHEMA, Request, from_json, to_json
from numalab.agent.errors import Fault
from numalab.agent.trial import journal


class Record:
    """The record of one command; ``folder`` is where it is."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.asked = asked
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        group = re.sub(r"[^\w.-]+", "-", asked["group"]).strip("-.")
        self.folder = home.root() / "build" / "fleet" / f"{group or 'hosts'}-{digest[:8]}"
        self.data: dict[str, Any] = {}
        self.begun_before = False

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
            self.data["hosts"] = list(dict.fromkeys([*self.data["hosts"], *hosts]))
            journal.write_json(self.folder / "asked.json", self.data)
            yield

    def _read(self) -> bool:
        try:
            self.data = journal.read_json(self.folder / "asked.json")
        except Fault:
            return False  # never begun, or damaged: begin
        return not self.data["complete"]

    def _begin(self, requests: Sequence[Request]) -> None:
        for path in (self.folder / "hosts").iterdir():
            path.unlink()
        now = datetime.now(timezone.utc)
        self.data = {
            "schema": SCHEMA,
            "session": f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
            "began": now.isoformat(timespec="seconds"),
            "complete": False,
            "hosts": [],
            "asked": self.asked,
            "requests": {
                self.key(number, request): to_json(request)
                for number, request in enumerate(requests, 1)
            },
        }

    @staticmethod
    def key(number: int, request: Request) -> str:
        """Return the name that a request has in the session; ``number`` counts from 1."""
        return f"{number}-{request.experiment}"

    def requests(self) -> dict[str, Request]:
        """Return the session's requests by their keys; their host is to be filled in."""
        return {key: from_json(Request, one) for key, one in self.data["requests"].items()}

    def session(self) -> str:
        """The session's name; Fault when this command has begun none."""
        if not self.data and not self._read():
            raise Fault("this command has left nothing running", "was it given the same way?")
        return self.data["session"]

    def hosts(self) -> list[str]:
        """Return all hosts of the session, also those that the inventory no longer names."""
        return self.data["hosts"]

    def close(self) -> None:
        """Note that all is complete: the same command begins anew."""
        self.data["complete"] = True
        journal.write_json(self.folder / "asked.json", self.data)

    # --- per host -----------------------------------------------------------------------------

    def missing(self, host: str) -> dict[str, Request]:
        """Return the requests to a host whose runs have not arrived from it, by their keys."""
        there = {**self.runs(host), **self.left_out(host)}
        return {
            key: replace(one, host=host) for key, one in self.requests().items() if key not in there
        }

    def runs(self, host: str) -> dict[str, Path]:
        """Return the run directories that have arrived from a host, by their requests' keys."""
        known = {key: Path(path) for key, path in self._host(host)["runs"].items()}
        return {key: path for key, path in known.items() if home.is_run(path)}

    def notebooks(self, host: str) -> dict[str, str | None]:
        """Return the executed notebooks of a host's runs."""
        return self._host(host)["notebooks"]

    def left_out(self, host: str) -> dict[str, str]:
        """Return why a request has nothing to measure on a host, by its key."""
        return self._host(host)["left_out"]

    def leave_out(self, host: str, key: str, reason: str) -> None:
        """Note that a request has nothing to measure on a host."""
        entry = self._host(host)
        entry["left_out"][key] = reason
        journal.write_json(self._file(host), entry)

    def concluded(self, host: str, key: str) -> bool:
        """Tell whether a run's tables and notebook are made."""
        return key in self._host(host)["notebooks"]

    def conclude(self, host: str, key: str, notebook: Path | None) -> None:
        """Note that a run's tables and notebook are made."""
        entry = self._host(host)
        entry["notebooks"][key] = str(notebook) if notebook else None
        journal.write_json(self._file(host), entry)

    def forget(self, host: str, key: str) -> None:
        """Let a request be measured anew."""
        entry = self._host(host)
        del entry["runs"][key]
        journal.write_json(self._file(host), entry)

    def _host(self, host: str) -> dict[str, Any]:
        return read_host(self._file(host))

    def _file(self, host: str) -> Path:
        return self.folder / "hosts" / f"{host}.json"


def read_host(path: Path) -> dict[str, Any]:
    """Return what a host's file says, of an empty host where there is none yet."""
    empty = {"schema": SCHEMA, "runs": {}, "notebooks": {}, "left_out": {}}
    return {**empty, **journal.read_json(path)} if path.exists() else empty
