"""Hardware and software counters of the measured tree, by ``perf stat`` attached to it.

perf is attached to the threads that exist (``-p``) and inherits to those they start; it prints
its counts on SIGINT (perf-stat(1)). What to count is in ``events/*.txt`` (``event_files``). Which
of these events the host really has is tried out once, on ``true``; an event that it has not, or
that was not counted, is None with the reason. perf is asked for JSON (``-j``, perf 5.19 and
later), and for CSV (``-x``) where it does not know that.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from typing import IO, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .. import kernel
from ..contract import Reason, Row, from_json, reason, to_json
from ..errors import NotHere, ParseError
from ..rows import row
from . import perf_stat
from .event_files import evaluate, groups_for, processor

SOURCE = "perf"
TRY_LIMIT_S = 10.0  # for one run of perf on `true`
ATTACH_LIMIT_S = 5.0
END_LIMIT_S = 5.0
# Opening one event on one thread takes about 50 µs, and reading it as long: 20000 are a second
# before and a second after the measurement, and near the usual limit of open files.
MOST_COUNTERS = 20000
_MOST_PRINTED = 1 << 24  # bytes; `perf list` prints megabytes
_SOFTWARE = (
    "task-clock", "context-switches", "cpu-migrations", "page-faults", "minor-faults",
    "major-faults",
)  # fmt: skip
SEPARATOR = ";"  # events with terms (cpu/event=0x44,umask=8/) hold commas
FORMATS = {"json": ("-j",), "csv": ("-x", SEPARATOR)}
WHY_NO_COUNT = {"not supported": "event-not-supported", "not counted": "event-not-counted"}


class Count(NamedTuple):
    """What perf printed for one event; ``why`` where there is no value."""

    event: str
    value: Optional[float]
    why: Optional[Reason]
    running_percent: Optional[float]  # below 100: perf scaled the value up
    user_only: bool


def counts(text: str) -> Dict[str, Count]:
    """Return the events that ``perf stat`` printed, by their names for perf.

    What else stands between them (warnings, headers) is passed over; the raw text is kept.
    """
    found = {}
    for line in text.splitlines():
        if not line.startswith(("{", "<")) and not line[:1].isdigit():
            continue
        try:
            records = perf_stat.parse(line)
        except ParseError:
            continue
        for record in records:
            if record["kind"] != "event":
                continue
            # Events with terms end in a slash: cpu/event=0x43,umask=0x40/u
            only = re.fullmatch(r"(.+?)(?::|(?<=/))uH?", record["event"])
            user_only = only is not None
            event, value = only[1] if only else record["event"], record["value"]
            if value is not None and record["unit"] == "ns":
                value = value / 1e6  # of the two clocks, whose unit is ms here
            if value is None:
                why = reason(WHY_NO_COUNT[record["reason"]])
                found[event] = Count(event, None, why, None, user_only)
            else:
                running = record.get("running_percent")
                found[event] = Count(event, value, None, running, user_only)
    return found


# --- what perf can count here -----------------------------------------------------------------


class Availability(NamedTuple):
    """What perf can do here: its format, and of each event why it does not count (None: it does).

    ``useless`` says why perf does not work here at all.
    """

    format: str  # json, csv
    reasons: Dict[str, Optional[Reason]]
    useless: Optional[Reason] = None


@functools.cache
def availability(perf: str, events: Tuple[str, ...]) -> Availability:
    """Try events once on ``true``; remembered, so that a perf that hangs costs its time once."""
    try:
        output = ""
        for style in FORMATS:
            output = _try_out(perf, style, ["task-clock"])
            if "task-clock" in counts(output):
                return Availability(style, _events_available(perf, style, events))
        return Availability("", {}, why_nothing(output))
    except NotHere as why:
        return Availability("", {}, why.reason)


def _events_available(perf: str, style: str, events: Sequence[str]) -> Dict[str, Optional[Reason]]:
    found = counts(_try_out(perf, style, events))
    for event in events:
        if event not in found:  # one unknown name makes perf refuse them all: ask for each alone
            found.update(counts(_try_out(perf, style, [event])))
    unknown = Count("", None, reason("event-not-known"), None, False)
    return {event: found.get(event, unknown).why for event in events}


def _try_out(perf: str, style: str, events: Sequence[str]) -> str:
    return printed([perf, "stat", *FORMATS[style], "-e", ",".join(events), "true"])


def printed(argv: List[str]) -> str:
    """Return all that a command of perf prints that ends by itself. Raises NotHere."""
    with tempfile.TemporaryFile() as output:
        try:
            child = _spawn(argv, output, None)
        except OSError as error:
            raise NotHere(reason("perf-not-run", path=argv[0], error=error.strerror)) from None
        try:
            child.wait(TRY_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise NotHere(reason("perf-hangs", path=argv[0], seconds=TRY_LIMIT_S)) from None
        finally:
            _kill(child)
        return _text(output)


def _spawn(
    argv: List[str], output: IO[bytes], cpus: Optional[List[int]]
) -> subprocess.Popen[bytes]:
    def stand_back() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, 19)
        if cpus:
            os.sched_setaffinity(0, cpus)

    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env={**os.environ, "LC_ALL": "C"},
        start_new_session=True,
        preexec_fn=kernel.die_with_parent(stand_back),
    )


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End perf and whatever it started, and wait for it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(END_LIMIT_S)


def _text(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read(_MOST_PRINTED).decode("utf-8", "replace")


def why_nothing(output: str) -> Reason:
    """Say why perf gave no counts, from what it printed."""
    if re.search(r"perf_event_paranoid|[Pp]ermission|not permitted", output):
        level = kernel.read_text("/proc/sys/kernel/perf_event_paranoid")
        return reason("perf-permission", level=level or "unknown")
    said = [line.strip() for line in output.splitlines() if line.strip()]
    return reason("perf-without-counts", said=said[0][:200] if said else "nothing")


# --- counting ---------------------------------------------------------------------------------


class Running:
    """A ``perf stat`` that counts from now until ``interrupt``.

    Returns from the start when it counts. Raises NotHere when it does not come to that.
    """

    def __init__(self, argv: List[str], cpus: Optional[List[int]], expected: int) -> None:
        self.argv = argv
        self.cpu_s: Optional[float] = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (closed by output)
        self._child = _spawn(argv, self._output, cpus)
        try:
            self._wait_until_attached(self._child, expected)
        except BaseException:
            _kill(self._child)
            self._output.close()
            raise

    def _wait_until_attached(self, child: subprocess.Popen[bytes], expected: int) -> None:
        limit = time.monotonic() + ATTACH_LIMIT_S
        last, unchanged = 0, 0
        folder = f"/proc/{child.pid}/fd"
        while child.poll() is None:
            opened = 0
            for descriptor in kernel.list_folder(folder):
                with contextlib.suppress(OSError):
                    opened += "perf_event" in os.readlink(f"{folder}/{descriptor}")
            # A thread that ended, or events that perf folds, leave fewer than expected: a number
            # that stays is accepted too.
            unchanged = unchanged + 1 if opened and opened == last else 0
            last = opened
            if opened >= expected or unchanged >= 5:
                return
            if time.monotonic() > limit:
                raise NotHere(reason("perf-not-attached", seconds=ATTACH_LIMIT_S))
            time.sleep(0.01)
        raise NotHere(why_nothing(_text(self._output)))

    def interrupt(self) -> None:
        """Stop counting."""
        stat = kernel.stat_of(f"/proc/{self._child.pid}")
        if stat:
            self.cpu_s = stat.ticks / os.sysconf("SC_CLK_TCK")
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGINT)

    def output(self) -> str:
        """Return what it printed, after ``interrupt``. Raises NotHere when it does not end."""
        late = False
        try:
            self._child.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _kill(self._child)
        with self._output:
            raw = _text(self._output)
        if late:
            raise NotHere(reason("perf-does-not-end", seconds=END_LIMIT_S))
        return raw


class Counting:
    """perf attached to processes, counting from now until ``interrupt``.

    Events of threads are opened and closed at every context switch. Without ``software`` only the
    processor's own are counted, because nothing else can count these; where there are none, perf
    is not started.
    """

    def __init__(
        self,
        pids: List[int],
        root: str = "/",
        cpus: Optional[List[int]] = None,
        software: bool = True,
    ) -> None:
        """Attach and wait until it counts. Raises NotHere with the reason when it cannot."""
        perf = shutil.which("perf")
        if perf is None:
            raise NotHere(reason("perf-not-installed"))
        self._processor = processor(root)
        self._groups = groups_for(self._processor)
        self._events = [event for group in self._groups for event in group.events]
        tried = availability(perf, tuple(dict.fromkeys(event.perf_name for event in self._events)))
        if tried.useless:
            raise NotHere(tried.useless)
        self._reasons = dict(tried.reasons)
        self._format = tried.format
        if not software:
            self._reasons.update(dict.fromkeys(_SOFTWARE, reason("software-event-spared")))
        usable = [name for name, why in self._reasons.items() if why is None]
        self._running: Optional[Running] = None
        if usable:
            self._attach(perf, usable, pids, cpus)
        elif software:
            raise NotHere(reason("no-event-counts"))

    def _attach(
        self, perf: str, usable: List[str], pids: List[int], cpus: Optional[List[int]]
    ) -> None:
        threads = sum(len(kernel.threads(pid)) for pid in pids)
        if threads * len(usable) > MOST_COUNTERS:
            raise NotHere(reason("too-many-counters", threads=threads, events=len(usable)))
        words = ["-e", ",".join(usable), "-p", ",".join(map(str, pids))]
        argv = [perf, "stat", *FORMATS[self._format], *words]
        self._running = Running(argv, cpus, threads * len(usable))

    @property
    def cpu_s(self) -> Optional[float]:
        """The CPU time (s) that perf itself used until ``interrupt``."""
        return self._running.cpu_s if self._running else None

    def interrupt(self) -> None:
        """Stop counting."""
        if self._running:
            self._running.interrupt()

    def result(self) -> Dict[str, Any]:
        """Return the record, after ``interrupt``. Raises NotHere when perf gives none."""
        if self._running is None:
            return self._record("")
        raw = self._running.output()
        if not counts(raw):
            raise NotHere(why_nothing(raw))
        return self._record(raw)

    def _record(self, raw: str) -> Dict[str, Any]:
        found = counts(raw)
        events = []
        for event in self._events:
            why = self._reasons[event.perf_name] or reason("event-without-line")
            missing = Count(event.perf_name, None, why, None, False)
            count = found.get(event.perf_name, missing)
            events.append({"name": event.name, "unit": event.unit, **to_json(count._asdict())})
        return {
            "argv": self._running.argv if self._running else [],
            "format": self._format,
            "processor": self._processor,
            "groups": [group.name for group in self._groups],
            "raw": raw,
            "events": events,
        }


# --- reading the record -----------------------------------------------------------------------


def metrics(
    record: Mapping[str, Any], formulas: Mapping[str, str], seconds: Optional[float] = None
) -> List[Row]:
    """Return the counts, and what formulas (unit and formula, by metric) make of them and of the
    ``seconds`` that were counted.

    A multiplexed count (perf scaled it up from a part of the time) has a value and a reason that
    says how long it was counted; so has one without the kernel's share. What was counted for each
    of several instances has their names as points.
    """
    if "instances" not in record:
        return _metrics(record, formulas, seconds)
    return [
        one
        for number, (name, part) in enumerate(record["instances"].items())
        for one in _metrics(part, formulas, seconds, point=name, x=float(number))
    ]


def _metrics(
    record: Mapping[str, Any],
    formulas: Mapping[str, str],
    seconds: Optional[float],
    point: str = "",
    x: Optional[float] = None,
) -> List[Row]:
    rows = []
    values: Dict[str, Optional[float]] = {"seconds": seconds}
    for event in record["events"]:
        name, value = event["name"], event["value"]
        own = event["running_percent"], event["user_only"]
        why = doubt(*own) if event["why"] is None else from_json(Reason, event["why"])
        values[name] = value
        number = None if value is None else float(value)
        rows.append(Row(name, number, event["unit"], point, x, reason=why, source=SOURCE))
    for name, text in formulas.items():
        unit, _, formula = text.partition(" ")
        value, why = evaluate(formula, values)
        rows.append(row(name, value, unit, why, point=point, x=x, source=SOURCE))
    return rows


def doubt(running_percent: Optional[float], user_only: bool = False) -> Optional[Reason]:
    """Return what must be known of a count that has a value."""
    if running_percent is not None and running_percent < 99.95:
        code = "multiplexed-user-only" if user_only else "multiplexed"
        return reason(code, percent=running_percent)
    return reason("user-space-only") if user_only else None


def calibrate(
    local_counts: Mapping[str, Optional[float]],
    remote_counts: Mapping[str, Optional[float]],
    events: Tuple[str, str] = ("local_dram", "remote_dram"),
) -> Dict[str, Any]:
    """Judge whether this host's remote-memory events can be believed.

    Both arguments are counts of the two ``events``: the first under traffic known to be local, the
    second under traffic known to be remote (from the same socket, or from another: many events
    tell only the latter). Usable means that at most 10 % of the first and at least 90 % of the
    second counted as remote. Returns ``usable``, ``reason`` (None when usable) and the remote
    shares ``under_local`` and ``under_remote`` (None: unknown).
    """
    enough = 10000  # counts: below this a share says nothing about gigabytes of traffic
    shares: Dict[str, Optional[float]] = {}
    wrong: List[Reason] = []
    for name, found in (("local", local_counts), ("remote", remote_counts)):
        local, remote = (found.get(event) for event in events)
        shares[name] = None
        if local is None or remote is None:
            wrong.append(reason("traffic-uncounted", traffic=name))
        elif local + remote < enough:
            wrong.append(reason("traffic-too-small", traffic=name, counts=local + remote))
        else:
            shares[name] = remote / (local + remote)
    under_local, under_remote = shares["local"], shares["remote"]
    if under_local is not None and under_local > 0.1:
        wrong.append(reason("local-counts-as-remote", share=under_local))
    if under_remote is not None and under_remote < 0.9:
        wrong.append(reason("remote-counts-as-local", share=under_remote))
    return {
        "usable": not wrong,
        "reason": wrong[0] if wrong else None,
        "under_local": under_local,
        "under_remote": under_remote,
    }
