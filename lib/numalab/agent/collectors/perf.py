"""Hardware and software counters of the measured tree, by ``perf stat`` attached to it.

perf is attached to the threads that exist (``-p``) and inherits to those they start; it prints
its counts on SIGINT (perf-stat(1)). What to count is in ``events/*.txt``, one readable file per
processor family. Which of these events the host really has is tried out once, on ``true``; an
event that it has not, or that was not counted, is None with the reason. perf is asked for JSON
(``-j``, perf 5.19 and later), and for CSV (``-x``) where it does not know that.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools
import importlib.resources
import operator
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..errors import Fault, ParseError
from ..trial import proof
from . import Unavailable, perf_stat, read, row

SOURCE = "perf"
TRY_LIMIT_S = 10.0  # for one run of perf on `true`
ATTACH_LIMIT_S = 5.0
END_LIMIT_S = 5.0
# Opening one event on one thread takes about 50 µs, and reading it as long: 20000 are a second
# before and a second after the measurement, and near the usual limit of open files.
MOST_COUNTERS = 20000
_SOFTWARE = (
    "task-clock", "context-switches", "cpu-migrations", "page-faults", "minor-faults",
    "major-faults",
)  # fmt: skip
_SPARED = "not counted by perf: that would cost at each of its many context switches"
_SEPARATOR = ";"  # events with terms (cpu/event=0x44,umask=8/) hold commas
_PR_SET_PDEATHSIG = 1  # prctl(2)
_libc = ctypes.CDLL(None, use_errno=True)


class Event(NamedTuple):
    name: str  # here
    perf_name: str
    unit: str


class Metric(NamedTuple):
    name: str
    unit: str
    formula: str


class Group(NamedTuple):
    """One file of ``events/``."""

    name: str
    processors: Tuple[str, ...]
    events: Tuple[Event, ...]
    metrics: Tuple[Metric, ...]
    notes: str


def parse_group(name: str, text: str) -> Group:
    """Read a file of ``events/`` (its README.txt gives the format). Raises Fault with the line."""
    sections: Dict[str, List[Any]] = {"PROCESSORS": [], "EVENTS": [], "METRICS": [], "NOTES": []}
    section = None
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if line in sections:
            section = line
        elif section == "PROCESSORS" and len(words) == 1:
            sections[section].append(words[0])
        elif section == "EVENTS" and len(words) == 3 and words[0].isidentifier():
            sections[section].append(Event(*words))
        elif section == "METRICS" and len(words) >= 3 and words[0].isidentifier():
            sections[section].append(Metric(words[0], words[1], " ".join(words[2:])))
        elif section == "NOTES":
            sections[section].append(line)
        else:
            raise Fault(f"events/{name}.txt line {number} is not understood: {line!r}")
    return Group(
        name,
        tuple(sections["PROCESSORS"]),
        tuple(sections["EVENTS"]),
        tuple(sections["METRICS"]),
        "\n".join(sections["NOTES"]),
    )


@functools.cache
def groups() -> Tuple[Group, ...]:
    """Return all files of ``events/``, by name."""
    folder = importlib.resources.files(__package__).joinpath("events")
    files = [file for file in folder.iterdir() if file.name.endswith(".txt")]
    return tuple(
        parse_group(file.name[: -len(".txt")], file.read_text(encoding="utf-8"))
        for file in sorted(files, key=lambda file: file.name)
        if file.name != "README.txt"
    )


def processor(root: str = "/") -> Optional[str]:
    """Return the processor's name as PROCESSORS lines have it; None where cpuinfo does not say."""
    fields: Dict[str, str] = {}
    for line in read(root, "proc/cpuinfo", default="").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    if "vendor_id" in fields and fields.get("model", "").isdigit():
        return f"{fields['vendor_id']}-{fields.get('cpu family')}-{int(fields['model']):X}"
    if "CPU implementer" in fields and "CPU part" in fields:
        return f"{fields['CPU implementer']}-{fields['CPU part']}".lower()
    return None


def groups_for(name: Optional[str]) -> List[Group]:
    """Return the groups to count on a processor: the portable one, then its family's if known."""
    portable = [group for group in groups() if group.name == "any"]
    family = [
        group
        for group in groups()
        if group.name != "any"
        and name
        and any(re.fullmatch(pattern, name) for pattern in group.processors)
    ]
    return portable + family[:1]


class Availability(NamedTuple):
    format: str  # "json" or "csv"
    reasons: Dict[str, Optional[str]]  # of each event, None when it counts
    useless: Optional[str] = None  # why perf does not work here at all


@functools.cache
def availability(perf: str, events: Tuple[str, ...]) -> Availability:
    """Try events once on ``true``; remembered, so that a perf that hangs costs its time once."""
    try:
        chosen = None
        for style in ("json", "csv"):
            output = _try_out(perf, style, ["task-clock"])
            if any(entry["event"] == "task-clock" for entry in counts(output)):
                chosen = style
                break
        if chosen is None:
            return Availability("", {}, _why(output))
        reasons: Dict[str, Optional[str]] = {}
        together = _reasons(perf, chosen, events)
        for event in events:
            if event in together:
                reasons[event] = together[event]
            else:  # one unknown name makes perf refuse them all: ask for each alone
                alone = _reasons(perf, chosen, (event,))
                reasons[event] = alone.get(event, "perf does not know this event here")
        return Availability(chosen, reasons)
    except Unavailable as why:
        return Availability("", {}, str(why))


def _reasons(perf: str, style: str, events: Sequence[str]) -> Dict[str, Optional[str]]:
    output = _try_out(perf, style, events)
    return {entry["event"]: entry["reason"] for entry in counts(output)}


def _try_out(perf: str, style: str, events: Sequence[str]) -> str:
    argv = [*_stat(perf, style), "-e", ",".join(events), "true"]
    with tempfile.TemporaryFile() as output:
        try:
            child = _spawn(argv, output, None)
        except OSError as error:
            raise Unavailable(f"{perf} cannot be run: {error.strerror}") from None
        try:
            child.wait(TRY_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{perf} does not end ({TRY_LIMIT_S:.0f} s for `true`)") from None
        finally:
            _kill(child)
        return _text(output)


def _stat(perf: str, style: str) -> List[str]:
    return [perf, "stat", *(["-j"] if style == "json" else ["-x", _SEPARATOR])]


def _spawn(argv: List[str], output: Any, cpus: Optional[List[int]]) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def aside_and_mortal() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(127)
        os.setpriority(os.PRIO_PROCESS, 0, 19)
        if cpus:
            os.sched_setaffinity(0, cpus)

    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=output,
        env={**os.environ, "LC_ALL": "C"},
        start_new_session=True,
        preexec_fn=aside_and_mortal,
    )


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End perf and whatever it started, and wait for it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(END_LIMIT_S)


def _text(output: Any) -> str:
    output.seek(0)
    return output.read(1 << 20).decode("utf-8", "replace")


def _why(output: str) -> str:
    """Say in one line why perf gave no counts, from what it printed."""
    if re.search(r"perf_event_paranoid|[Pp]ermission|not permitted", output):
        level = read("/", "proc/sys/kernel/perf_event_paranoid", default="unknown").strip()
        return f"perf: no permission (kernel.perf_event_paranoid = {level})"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"perf printed no counts: {lines[0][:200]!r}" if lines else "perf printed no counts"


_WORDS = {
    "not supported": "not supported by this processor or virtual machine",
    "not counted": "not counted: the event never ran on a counter",
}


def counts(text: str) -> List[Dict[str, Any]]:
    """Return the events that ``perf stat`` printed: event, value, reason, running_percent,
    user_only.

    What else stands between them (warnings, headers) is passed over; the raw text is kept.
    """
    found = []
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
            name, colon, modifier = record["event"].rpartition(":")
            user_only = bool(colon) and modifier in ("u", "uH")
            value = record["value"]
            found.append(
                {
                    "event": name if user_only else record["event"],
                    "value": value,
                    "reason": _WORDS[record["reason"]] if value is None else None,
                    "running_percent": None if value is None else record.get("running_percent"),
                    "user_only": user_only,
                }
            )
    return found


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
        """Attach and wait until it counts. Raises Unavailable with the reason when it cannot."""
        perf = shutil.which("perf")
        if perf is None:
            raise Unavailable("perf is not installed")
        self._processor = processor(root)
        self._groups = groups_for(self._processor)
        self._events = [event for group in self._groups for event in group.events]
        tried = availability(perf, tuple(dict.fromkeys(event.perf_name for event in self._events)))
        if tried.useless:
            raise Unavailable(tried.useless)
        self._reasons = dict(tried.reasons)
        self._format = tried.format
        if not software:
            self._reasons.update(dict.fromkeys(_SOFTWARE, _SPARED))
        usable = [name for name, reason in self._reasons.items() if reason is None]
        self._child: Optional[subprocess.Popen[bytes]] = None
        self.pid = 0
        self.cpu_s: Optional[float] = None
        if not usable and not software:
            self._argv: List[str] = []
            return
        if not usable:
            raise Unavailable("perf can count none of the events here")
        threads = 0
        for pid in pids:
            with contextlib.suppress(OSError):
                threads += len(os.listdir(f"/proc/{pid}/task"))
        if threads * len(usable) > MOST_COUNTERS:
            raise Unavailable(f"{threads} threads × {len(usable)} events are too many to attach to")
        self._argv = [
            *_stat(perf, tried.format), "-e", ",".join(usable), "-p", ",".join(map(str, pids)),
        ]  # fmt: skip
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (closed by result)
        self._child = _spawn(self._argv, self._output, cpus)
        self.pid = self._child.pid
        try:
            self._wait_until_attached(threads * len(usable))
        except BaseException:
            _kill(self._child)
            self._output.close()
            raise

    def _wait_until_attached(self, expected: int) -> None:
        limit = time.monotonic() + ATTACH_LIMIT_S
        last, unchanged = 0, 0
        while self._child.poll() is None:
            opened = 0
            with contextlib.suppress(OSError):
                for descriptor in os.listdir(f"/proc/{self.pid}/fd"):
                    with contextlib.suppress(OSError):
                        target = os.readlink(f"/proc/{self.pid}/fd/{descriptor}")
                        opened += "perf_event" in target
            # A thread that ended, or events that perf folds, leave fewer than expected: a number
            # that stays is accepted too.
            unchanged = unchanged + 1 if opened and opened == last else 0
            last = opened
            if opened >= expected or unchanged >= 5:
                return
            if time.monotonic() > limit:
                raise Unavailable(f"perf did not attach within {ATTACH_LIMIT_S:.0f} s")
            time.sleep(0.01)
        raise Unavailable(_why(_text(self._output)))

    def interrupt(self) -> None:
        """Stop counting."""
        if self._child is None:
            return
        with contextlib.suppress(OSError, ValueError):
            stat = proof.parse_stat(read("/", f"proc/{self.pid}/stat"))
            self.cpu_s = stat.ticks / os.sysconf("SC_CLK_TCK")
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGINT)

    def result(self) -> Dict[str, Any]:
        """Return the record, after ``interrupt``. Raises Unavailable when perf gives none."""
        if self._child is None:
            return self._record("")
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
            raise Unavailable(f"perf did not end within {END_LIMIT_S:.0f} s of being told to")
        if not counts(raw):
            raise Unavailable(_why(raw))
        return self._record(raw)

    def _record(self, raw: str) -> Dict[str, Any]:
        found = {entry["event"]: entry for entry in counts(raw)}
        events = []
        for event in self._events:
            entry = found.get(event.perf_name) or {
                "value": None,
                "reason": self._reasons[event.perf_name] or "perf printed no line for it",
                "running_percent": None,
                "user_only": False,
            }
            events.append(
                {
                    "event": event.perf_name,
                    "name": event.name,
                    "unit": event.unit,
                    "value": entry["value"],
                    "reason": entry["reason"],
                    "running_percent": entry["running_percent"],
                    "user_only": entry["user_only"],
                }
            )
        return {
            "argv": self._argv,
            "format": self._format,
            "processor": self._processor,
            "groups": [group.name for group in self._groups],
            "raw": raw,
            "events": events,
        }


def metrics(record: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return the counts, and what the groups' formulas make of them.

    A multiplexed count (perf scaled it up from a part of the time) has a value and a reason that
    says how long it was counted; so has one without the kernel's share. What was counted for each
    of several instances has their names as points.
    """
    if "instances" in record:
        return [
            {**one, "point": name, "x": float(number)}
            for number, (name, part) in enumerate(record["instances"].items())
            for one in metrics(part)
        ]
    rows = []
    values: Dict[str, Optional[float]] = {}
    for event in record["events"]:
        reason = event["reason"]
        if event["value"] is not None:
            marks = []
            running = event["running_percent"]
            if running is not None and running < 99.95:
                marks.append(f"multiplexed: counted {running:g} % of the time and scaled")
            if event["user_only"]:
                marks.append("user space only")
            reason = "; ".join(marks) or None
        values[event["name"]] = event["value"]
        rows.append(row(SOURCE, event["name"], event["value"], event["unit"], reason=reason))
    known = {group.name: group for group in groups()}
    for name in record["groups"]:
        for metric in known[name].metrics if name in known else ():
            value, reason = evaluate(metric.formula, values)
            rows.append(row(SOURCE, metric.name, value, metric.unit, reason=reason))
    return rows


_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(
    formula: str, values: Dict[str, Optional[float]]
) -> Tuple[Optional[float], Optional[str]]:
    """Return a formula's value and None, or None and the reason. Raises Fault for a bad formula."""

    def of(node: ast.AST) -> float:
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](of(node.left), of(node.right))
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return node.value
        if isinstance(node, ast.Name):
            value = values.get(node.id)
            if value is None:
                raise LookupError(node.id)
            return value
        raise Fault(f"the formula {formula!r} has more than numbers, names and + - * / ( )")

    try:
        return of(ast.parse(formula, mode="eval").body), None
    except SyntaxError:
        raise Fault(f"the formula {formula!r} cannot be read") from None
    except LookupError as missing:
        return None, f"{missing.args[0]} has no value"
    except ZeroDivisionError:
        return None, f"nothing was counted below the line of {formula}"


def calibrate(
    local_counts: Dict[str, Optional[float]], remote_counts: Dict[str, Optional[float]]
) -> Dict[str, Any]:
    """Judge whether this host's remote-memory events can be believed.

    Both arguments are counts of ``local_dram`` and ``remote_dram``: the first under traffic known
    to be local, the second under traffic known to be remote. Usable means that at most 10 % of
    the first and at least 90 % of the second counted as remote. Returns ``usable``, ``reason``
    (None when usable) and the remote shares ``under_local`` and ``under_remote`` (None: unknown).
    """
    enough = 10000  # counts: below this a share says nothing about gigabytes of traffic
    shares: List[Optional[float]] = []
    reason = None
    for name, found in (("local", local_counts), ("remote", remote_counts)):
        local, remote = found.get("local_dram"), found.get("remote_dram")
        if local is None or remote is None:
            shares.append(None)
            reason = reason or f"no counts under known-{name} traffic"
        elif local + remote < enough:
            shares.append(None)
            reason = reason or f"only {local + remote:.0f} counts under known-{name} traffic"
        else:
            shares.append(remote / (local + remote))
    under_local, under_remote = shares
    if reason is None and under_local is not None and under_local > 0.1:
        reason = f"{under_local:.0%} of known-local traffic counted as remote"
    if reason is None and under_remote is not None and under_remote < 0.9:
        reason = f"only {under_remote:.0%} of known-remote traffic counted as remote"
    return {
        "usable": reason is None,
        "reason": reason,
        "under_local": under_local,
        "under_remote": under_remote,
    }
