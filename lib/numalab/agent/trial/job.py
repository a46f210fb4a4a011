"""Measuring for a fleet: a queue of requests, detached from whoever asked.

A session of the fleet gives a host one *order*: the requests it is to measure, one after the other.
``start`` answers at once; a process of its own measures, and whoever looks at the session's folder
sees how far it is, however often the connection broke in between:

    status.json         the queue, each request's state, its last trial (replaced in one piece)
    events.ndjson       every progress event
    said.txt            what went wrong beyond that
    KEY.json            a request's plan and the name of its run
    runs/RUN/           run directories
    runs.tar            the complete ones and runs.json (which is of which request), packed once
                        nothing is measured any more

The same order given again goes on: what is complete stays, what was begun is completed with its
own plan. One fleet at a time measures on a host: beside the lock that each measurement holds
(lock.py) the queue holds an abstract socket (unix(7)), which outlives neither its owner nor a
reboot.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sys
import tarfile
import time
import traceback
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

from .. import SCHEMA
from ..errors import Fault
from ..host import topology
from ..plan import make as planning
from . import journal, lock, run

Order = Dict[str, Any]
_KEPT_S = 30 * 24 * 3600.0  # how long a session that nobody came back for keeps its place
_SHOWN = 20  # warnings and errors of a request that the status carries


def start(folder: Path, order: Order) -> Dict[str, Any]:
    """Measure an order in a process of its own; return the session's status at once.

    ``order`` is {"schema", "session", "allow_host_changes", "source_commit", "requests": [{"key",
    "request"}]}. A session that is at work already is left at it. Fault when another measurement
    or another fleet is at work on this host.
    """
    _check(order)
    session = order["session"]
    if alive(session):
        return _read_status(folder)
    with contextlib.ExitStack() as held:
        queue = held.enter_context(_held(_name(), "another fleet measures on this host"))
        own = held.enter_context(_held(_name(session), "this session is at work already"))
        with lock.measurement():
            pass  # an honest answer now; each measurement takes the lock for itself
        folder.mkdir(parents=True, exist_ok=True)
        _forget_old(folder)
        work = _Queue(folder, order)
        work.write()
        _detach(work, [queue, own])
        return work.status


def alive(session: str) -> bool:
    """Tell whether a session is at work on this host."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            return any(line.rstrip("\n").endswith(f" @{_name(session)}") for line in file)
    except OSError:
        return False


def _name(session: str = "") -> str:
    return f"{lock.LOCK}-fleet" + (f"/{session}" if session else "")


@contextlib.contextmanager
def _held(name: str, why: str) -> Iterator[socket.socket]:
    deadline = time.monotonic() + 2.0  # for one that has just ended to be gone
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mine:
        while True:
            try:
                mine.bind(b"\0" + name.encode())
                break
            except OSError:
                if time.monotonic() > deadline:
                    holder = lock.holder(b"\0" + name.encode())
                    raise Fault(
                        f"{why} (process {holder})" if holder else why,
                        "wait for it: two at once would measure each other",
                    ) from None
                time.sleep(0.05)
        yield mine


def _check(order: Any) -> None:
    if not isinstance(order, dict) or type(order.get("schema")) is not int:
        raise Fault("this is not an order (it states no schema version)")
    if order["schema"] > SCHEMA:
        raise Fault(
            f"the order has schema version {order['schema']}, this agent reads up to {SCHEMA}",
            "use the same version of numalab on both sides",
        )
    names = [order.get("session"), *(entry.get("key") for entry in order.get("requests") or [])]
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w.+-]*", name):
            raise Fault(f"the order names something {name!r}: that is no name of a file")


def _read_status(folder: Path) -> Dict[str, Any]:
    return journal.read_json(folder / "status.json")


def _forget_old(folder: Path) -> None:
    """Remove what sessions left here that nobody came back for."""
    for status in folder.parent.glob("*/status.json"):
        with contextlib.suppress(OSError):
            if status.parent != folder and status.stat().st_mtime < time.time() - _KEPT_S:
                shutil.rmtree(status.parent, ignore_errors=True)


def _detach(work: _Queue, held: List[socket.socket]) -> None:
    """Fork the queue off, free of the terminal and the connection; return in the parent."""
    said = os.open(work.folder / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    first = os.fork()
    if first:
        os.close(said)
        os.waitpid(first, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    status = 1
    try:
        os.chdir("/")
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, said), (2, said)):
            os.dup2(source, target)
        for entry in os.listdir("/proc/self/fd"):
            if int(entry) > 2 and int(entry) not in {mine.fileno() for mine in held}:
                with contextlib.suppress(OSError):
                    os.close(int(entry))
        for mine in held:
            mine.listen(64)  # now it tells this process's pid
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        work.run()
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


class _Queue:
    def __init__(self, folder: Path, order: Order) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.order = order
        self.jobs: List[Dict[str, Any]] = [
            {
                "key": entry["key"],
                "experiment": entry["request"]["experiment"],
                "state": "waiting",
                "reason": None,
                "run": None,
                "summary": None,
                "skipped": [],
                "warnings": [],
                "errors": [],
                "trials": None,
                "left_s": None,
                "last": None,
                "grades": None,
            }
            for entry in order["requests"]
        ]
        self.status = {
            "schema": SCHEMA,
            "session": order["session"],
            "pid": None,
            "state": "running",
            "reason": None,
            "archive": None,
            "jobs": self.jobs,
        }

    def write(self) -> None:
        """Replace status.json; a full disk leaves the old one, the run itself reports it."""
        temporary = self.folder / ".status.json.part"
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(self.status, ensure_ascii=False) + "\n", "utf-8")
            os.replace(temporary, self.folder / "status.json")

    def run(self) -> None:
        self.status["pid"] = os.getpid()
        if self.order.get("source_commit"):
            os.environ["NUMALAB_SOURCE_COMMIT"] = self.order["source_commit"]
        try:
            for job, entry in zip(self.jobs, self.order["requests"]):
                self._one(job, entry)
        except (KeyboardInterrupt, run.Interrupted):
            self.status["reason"] = "stopped on this host"
            for job in self.jobs:
                if job["state"] != "complete" and not job["reason"]:
                    job.update(state="stopped", reason="stopped on this host")
        try:
            self._pack()
        except OSError as error:
            self.status["reason"] = f"the results could not be packed: {error}"
        self.status["state"] = "ended"
        self.write()

    def _one(self, job: Dict[str, Any], entry: Dict[str, Any]) -> None:
        memo = self.folder / f"{entry['key']}.json"
        job["state"] = "planning"
        self.write()
        try:
            plan, name = self._plan(memo, entry["request"])
            job.update(
                run=name,
                summary=planning.summary(plan),
                skipped=planning.skipped_lines(plan),
                warnings=list(plan["warnings"]),
                trials=len(plan["order"]),
            )
            why = self._left_out(plan)
            if why:
                job.update(state="left out", reason=why)
                self.write()
                return
            end = run.run(
                plan,
                self.folder / "runs" / name,
                allow_host_changes=bool(self.order.get("allow_host_changes")),
                emit=lambda event: self._event(job, event),
            )
            job["state"] = end["status"]
        except run.Interrupted:
            raise
        except Fault as fault:
            job.update(state="failed", reason=str(fault))
            # The agent's own advice: this run cannot be completed, the next try begins another.
            if "new directory" in str(fault):
                memo.unlink(missing_ok=True)
        except OSError as error:
            job.update(state="failed", reason=f"{error.filename or 'the system'}: {error.strerror}")
        except Exception as error:  # one request's bug must not cost the others
            traceback.print_exc()
            sys.stderr.flush()
            kind = type(error).__name__
            job.update(state="failed", reason=f"the agent met a bug of its own: {kind}: {error}")
        self.write()

    def _left_out(self, plan: Dict[str, Any]) -> Optional[str]:
        """Return why a plan is not measured although nothing failed, or None."""
        if not plan["order"]:
            return "; ".join(dict.fromkeys(skip["reason"] for skip in plan["skipped"]))
        sets = planning.settings_text(plan)
        # Asked for by itself it fails; among others it is left out, as `run --all` does.
        if sets and not self.order.get("allow_host_changes") and len(self.order["requests"]) > 1:
            return f"it sets {sets} while it measures, which takes --allow-host-changes"
        return None

    def _plan(self, memo: Path, request: Dict[str, Any]) -> Any:
        """Return the plan of a request and the name of its run: as begun earlier, or made now."""
        if memo.exists():
            begun = journal.read_json(memo)
            return begun["plan"], begun["run"]
        plan = planning.make(request, topology.read())
        while True:
            now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
            name = f"{now}-{request['experiment']}"
            if not (self.folder / "runs" / name).exists():
                break
            time.sleep(0.2)
        journal.write_json(memo, {"schema": SCHEMA, "run": name, "plan": plan})
        return plan, name

    def _event(self, job: Dict[str, Any], event: Dict[str, Any]) -> None:
        with contextlib.suppress(OSError), open(self.folder / "events.ndjson", "a") as file:
            file.write(json.dumps({"key": job["key"], **event}) + "\n")
        kind = event["event"]
        if kind == "plan":
            job.update(state="measuring", left_s=event["left_s"])
        elif kind == "warning":
            _note(job["warnings"], event["text"])
        elif kind == "trial":
            job.update(last=event, left_s=event["left_s"])
            if event["grade"] == "error":
                _note(job["errors"], f"{event['label']}: {event['reason']}")
        elif kind == "end":
            job["grades"] = {name: event[name] for name in ("verified", "unverified", "error")}
        self.write()

    def _pack(self) -> None:
        """Pack what is complete; the host is quiet by now."""
        complete = {job["key"]: job["run"] for job in self.jobs if job["state"] == "complete"}
        if not complete:
            return
        target = self.folder / "runs.tar"
        temporary = self.folder / ".runs.tar.part"
        listed = self.folder / "runs.json"
        journal.write_json(listed, {"schema": SCHEMA, "runs": complete})
        with tarfile.open(temporary, "w") as archive:
            archive.add(listed, arcname=listed.name)
            for name in complete.values():
                archive.add(self.folder / "runs" / name, arcname=name)
        os.replace(temporary, target)
        self.status["archive"] = target.name


def _note(lines: List[str], text: str) -> None:
    """Add a line unless one that differs only in its trial or its numbers is there."""
    if len(lines) < _SHOWN and _kind(text) not in map(_kind, lines):
        lines.append(text)


def _kind(text: str) -> str:
    return re.sub(r"\(.*?\)|[\d.]+", "", text.partition("): ")[2] or text)
