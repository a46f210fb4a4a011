"""Measuring for a fleet: a queue of requests, detached from whoever asked.

A session of the fleet gives a host one *order*: the requests it is to measure, one after the other.
``start`` answers at once; a process of its own measures, and whoever looks at the session's folder
sees how far it is, however often the connection broke in between:

    status.json         the queue (``Status``): each request's state, its last trial (replaced in
                        one piece)
    events.ndjson       every progress event (events.py), each with the "key" of its request
    said.txt            what went wrong beyond that
    working             locked as long as something is measured, for who waits for the end
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
import fcntl
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
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, List, Optional, TextIO, Tuple

from ..contract import GRADES, SCHEMA, Plan, Reason, Request, dumps, from_json, reason
from ..errors import Fault, NotHere
from ..host import topology
from ..plan import make, show
from . import events, journal, lock, process, run
from .events import Event

_KEPT_S = 30 * 24 * 3600.0  # how long a session that nobody came back for keeps its place
_SHOWN = 20  # warnings and errors of a request that the status carries


@dataclass(frozen=True)
class OrderedRequest:
    """A request under the name that the session has for it."""

    key: str
    request: Request


@dataclass(frozen=True)
class Order:
    """What a session of the fleet wants of a host."""

    schema: int
    session: str
    requests: Tuple[OrderedRequest, ...]
    allow_host_changes: bool = False
    busy: bool = False
    source_commit: Optional[str] = None


@dataclass(frozen=True)
class Noted:
    """A warning, or the reason of a failed trial; ``label`` is the cell's, "" for the whole run."""

    label: str
    reason: Reason


@dataclass
class Job:
    """One request in the queue and what has become of it."""

    key: str
    experiment: str
    state: str = "waiting"  # planning, measuring, complete, stopped, left out, failed
    reason: Optional[Reason] = None
    run: Optional[str] = None
    summary: Optional[str] = None  # the size of its plan, for a reader
    skipped: Tuple[str, ...] = ()  # for a reader
    warnings: Tuple[Noted, ...] = ()  # one of each code
    errors: Tuple[Noted, ...] = ()  # one of each code and cell
    trials: Optional[int] = None
    left_s: Optional[float] = None
    last: Optional[Dict[str, Any]] = None  # the event of its last trial
    grades: Optional[Dict[str, int]] = None


@dataclass
class Status:
    """status.json; ``state`` is running or ended, ``archive`` the name of the packed runs."""

    schema: int
    session: str
    jobs: Tuple[Job, ...]
    state: str = "running"
    reason: Optional[Reason] = None
    archive: Optional[str] = None
    pid: Optional[int] = None  # last: fleet/stop.sh takes the last "pid" of the file


@dataclass(frozen=True)
class _Begun:
    """KEY.json: the plan that a request became, and its run."""

    schema: int
    run: str
    plan: Plan


def start(folder: Path, given: Any) -> Dict[str, Any]:
    """Measure an order (JSON) in a process of its own; return the session's status (JSON) at once.

    A session that is at work already is left at it. Fault when another measurement or another
    fleet is at work on this host.
    """
    order = journal.checked(Order, given, "the order")
    for name in (order.session, *(entry.key for entry in order.requests)):
        if not re.fullmatch(r"\w[\w.+-]*", name):
            raise Fault(f"the order names something {name!r}: that is no name of a file")
    if _alive(order.session):
        return journal.read_json(folder / "status.json")
    session = _name(order.session)
    with contextlib.ExitStack() as held:
        queue = held.enter_context(lock.named(_name(), "another fleet measures on this host"))
        own = held.enter_context(lock.named(session, "this session is at work already"))
        with lock.measurement():
            pass  # an honest answer now; each measurement takes the lock for itself
        folder.mkdir(parents=True, exist_ok=True)
        _forget_old(folder)
        work = _Queue(folder, order)
        work.write()
        working = held.enter_context(open(folder / "working", "w"))
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(working, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _detach(work, [queue, own], working)
        return journal.read_json(folder / "status.json")


def _alive(session: str) -> bool:
    """Tell whether a session is at work on this host."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            return any(line.rstrip("\n").endswith(f" @{_name(session)}") for line in file)
    except OSError:
        return False


def _name(session: str = "") -> str:
    return f"{lock.LOCK}-fleet" + (f"/{session}" if session else "")


def _forget_old(folder: Path) -> None:
    """Remove what sessions left here that nobody came back for."""
    for status in folder.parent.glob("*/status.json"):
        with contextlib.suppress(OSError):
            if status.parent != folder and status.stat().st_mtime < time.time() - _KEPT_S:
                shutil.rmtree(status.parent, ignore_errors=True)


def _detach(work: _Queue, held: List[socket.socket], working: TextIO) -> None:
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
        process.close_files([*(mine.fileno() for mine in held), working.fileno()])
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
        self.jobs = tuple(Job(one.key, one.request.experiment) for one in order.requests)
        self.status = Status(SCHEMA, order.session, self.jobs)

    def write(self) -> None:
        """Replace status.json; a full disk leaves the old one, the run itself reports it."""
        temporary = self.folder / ".status.json.part"
        with contextlib.suppress(OSError):
            temporary.write_text(dumps(self.status) + "\n", "utf-8")
            os.replace(temporary, self.folder / "status.json")

    def run(self) -> None:
        self.status.pid = os.getpid()
        if self.order.source_commit:
            os.environ["NUMALAB_SOURCE_COMMIT"] = self.order.source_commit
        try:
            for job, entry in zip(self.jobs, self.order.requests):
                self._one(job, entry.request)
        except (KeyboardInterrupt, run.Interrupted):
            self.status.reason = reason("stopped-here")
            for job in self.jobs:
                if job.state != "complete" and not job.reason:
                    job.state, job.reason = "stopped", reason("stopped-here")
        try:
            self._pack()
        except OSError as error:
            self.status.reason = reason("not-packed", why=str(error))
        self.status.state = "ended"
        self.write()

    def _one(self, job: Job, request: Request) -> None:
        begun = self.folder / f"{job.key}.json"
        job.state = "planning"
        self.write()
        try:
            plan, job.run = self._plan(begun, request)
            job.summary, job.skipped = show.summary(plan), tuple(show.skipped_lines(plan))
            job.warnings = tuple(Noted("", why) for why in plan.warnings)
            job.trials = len(plan.order)
            job.reason = self._left_out(plan)
            if job.reason:
                job.state = "left out"
            else:
                end = run.run(
                    plan,
                    self.folder / "runs" / job.run,
                    allow_host_changes=self.order.allow_host_changes,
                    # Once begun, the queue goes on; its later runs say what they met.
                    busy=self.order.busy or any(one.state == "complete" for one in self.jobs),
                    emit=lambda event: self._event(job, event),
                )
                job.state = end["status"]
        except run.Interrupted:
            raise
        except Fault as fault:
            absent = isinstance(fault, NotHere) and self._among_others
            job.state, job.reason = "left out" if absent else "failed", events.failure(fault)
            if isinstance(fault, journal.CannotComplete):
                begun.unlink(missing_ok=True)  # the next try begins another run
        except OSError as error:
            what = f"{error.filename or 'the system'}: {error.strerror}"
            job.state, job.reason = "failed", reason("fault", what=what)
        except Exception as error:  # one request's bug must not cost the others
            traceback.print_exc()
            sys.stderr.flush()
            kind = type(error).__name__
            job.state, job.reason = "failed", reason("agent-bug", kind=kind, what=str(error))
        self.write()

    def _left_out(self, plan: Plan) -> Optional[Reason]:
        """Return why a plan is not measured although nothing failed, or None."""
        if not plan.order:
            return run.why_nothing_here(plan)
        changes = show.settings_text(plan)
        if changes and not self.order.allow_host_changes and self._among_others:
            return reason("changes-need-permission", settings=changes)
        return None

    @property
    def _among_others(self) -> bool:
        """What cannot be measured here fails by itself, and is left out of several."""
        return len(self.order.requests) > 1

    def _plan(self, begun: Path, request: Request) -> Tuple[Plan, str]:
        """Return the plan of a request and the name of its run: as begun earlier, or made now."""
        if begun.exists():
            earlier = journal.load(_Begun, begun)
            return earlier.plan, earlier.run
        plan = make.make(request, topology.read())
        while True:
            now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
            name = f"{now}-{request.experiment}"
            if not (self.folder / "runs" / name).exists():
                break
            time.sleep(0.2)
        journal.write_json(begun, _Begun(SCHEMA, name, plan))
        return plan, name

    def _event(self, job: Job, event: Event) -> None:
        with contextlib.suppress(OSError), open(self.folder / "events.ndjson", "a") as file:
            file.write(json.dumps({"key": job.key, **event}) + "\n")
        kind = event["event"]
        if kind == "plan":
            job.state, job.left_s = "measuring", event["left_s"]
        elif kind == "warning":
            noted = _noted(event)
            if noted.reason.code not in {one.reason.code for one in job.warnings}:
                job.warnings = (*job.warnings, noted)[:_SHOWN]
        elif kind == "trial":
            job.last, job.left_s = event, event["left_s"]
            if event["grade"] == "error":
                noted = _noted(event)
                if not any(_alike(noted, one) for one in job.errors):
                    job.errors = (*job.errors, noted)[:_SHOWN]
        elif kind == "end":
            job.grades = {name: event[name] for name in GRADES}
        self.write()

    def _pack(self) -> None:
        """Pack what is complete; the host is quiet by now."""
        complete = {job.key: job.run for job in self.jobs if job.state == "complete" and job.run}
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
        self.status.archive = target.name


def _noted(event: Event) -> Noted:
    return Noted(event["label"] or "", from_json(Reason, event["reason"]))


def _alike(one: Noted, other: Noted) -> bool:
    return (one.label, one.reason.code) == (other.label, other.reason.code)
