"""One trial: start the tool under its binding, prove the placement, measure, prove again, grade.

A tool speaks one of two protocols (its driver says which). *handshake*: it prints a line
``{"event":"ready",…}``, waits for ``go``, measures, prints ``{"event":"result",…}`` and waits for
``quit``, so that proofs and collectors stay outside the measured time. ``ready`` may carry
``"pids"``, those of its processes that are to be proven and collected with all that is below them
(else the whole tool), and ``"nothing_yet": true`` when it holds no memory before ``go`` that
could prove anything; both may carry ``"buffers"``, its memory by node. *sampled*: it runs by
itself; collectors are attached before its first instruction and its placement is looked at while
it runs, seldom and ever more seldom.

Whatever goes wrong with the tool makes the trial's grade ``error`` with the reason, keeps its raw
output, and lets the run go on. Only a full disk and a wish to stop end it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import signal
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from .. import SCHEMA, collectors
from ..errors import Fault
from ..host import topology as topology_module
from ..paths import published
from ..plan import bindings
from ..plan import make as planning
from . import journal, process, settings
from . import proof as placement

OUTPUT_LIMIT_BYTES = 64 << 20  # of one stream of one trial: a tool gone wild must not fill the disk
_POLL_S = 0.02
_QUIT_S = 10.0  # for a tool to end after "quit"
_DISTURBED = 0.05  # others' share of the cell's CPU time that is worth a warning
_DISTURBED_S = 0.1  # and at least so much of it: the kernel counts in ticks of 0.01 s
_UNPLANNED_LIMIT_S = 3600.0  # where neither the plan nor the request says how long it may take


class Stopped(Exception):
    """The run was asked to stop; the trial under way does not count."""


class _Failed(Exception):
    """Why the trial's grade is ``error``."""


class Bench(NamedTuple):
    """What all trials of a run have in common."""

    plan: Dict[str, Any]
    topology: Dict[str, Any]
    folder: Path  # the run directory
    driver: ModuleType
    found: Dict[str, Any]  # what the driver's find() returned
    lock: int  # the descriptor of the host's measuring lock
    stopped: Callable[[], bool]
    host: Optional[settings.HostChanges] = None  # recorded, where cells change host settings


def raw_name(trial: int, cell: str, kind: str) -> str:
    """Return the name of a trial's raw file of one kind, relative to the run directory."""
    plain = re.sub(r"[^A-Za-z0-9_.=-]+", "-", cell)
    suffix = "" if kind in ("stdout", "stderr") else ".json"
    return f"raw/{trial:04d}-{plain}.{kind}{suffix}.gz"


def limit_s(plan: Dict[str, Any], timing: Dict[str, float]) -> float:
    """Return the seconds after which a trial is given up.

    The request's own limit, else ten times what is planned and a minute, else an hour.
    """
    asked = plan["request"].get("time_limit_s")
    if asked:
        return float(asked)
    planned = sum(float(value or 0) for value in timing.values())
    return 60 + 10 * planned if planned else _UNPLANNED_LIMIT_S


def measure(
    bench: Bench, entry: Dict[str, Any], attempt: int
) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    """Make one trial of the plan's order; return its record for the journal and its metrics.

    Its raw files are on disk when this returns. Raises Stopped when the run is to stop, and
    journal.DiskFull; in both cases no process of the trial is left.
    """
    return _Trial(bench, entry, attempt).measure()


class _Trial:
    def __init__(self, bench: Bench, entry: Dict[str, Any], attempt: int) -> None:
        self.bench = bench
        self.entry = entry
        self.attempt = attempt
        self.cell = next(c for c in bench.plan["cells"] if c["id"] == entry["cell"])
        self.options = self.cell["options"]
        self.timing = bench.driver.timing(self.options)
        # A tool that starts what is measured by itself binds it by itself.
        prefix = [] if getattr(bench.driver, "BINDS_ITSELF", False) else self.cell["numactl"]
        self.argv = [*prefix, *bench.driver.argv(bench.found, self.options, self.cell)]
        self.child: Optional[process.Child] = None
        self.collection: Optional[collectors.Collection] = None
        self.collected: Optional[Dict[str, Any]] = None
        self.proofs: List[Dict[str, Any]] = []
        self.warnings: List[str] = []
        self.failure: Optional[str] = None
        self.settings: Dict[str, str] = {}
        self.pids: List[int] = []  # that the tool named; else its whole tree
        self.read_to = 0  # how far the child's standard output has been read, in bytes
        self.proof_s = 0.0
        self.warmup_s = float(self.timing.get("warmup_s") or 0.0)  # as planned, else as it was
        self.marks: Dict[str, float] = {}  # moments on the monotonic clock
        raw = bench.folder / "raw"
        self.stdout = raw / f".{entry['trial']:04d}.stdout"
        self.stderr = raw / f".{entry['trial']:04d}.stderr"

    def measure(self) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
        began = datetime.now(timezone.utc)
        self.marks["begin"] = time.monotonic()
        kills_before = _out_of_memory_kills()
        try:
            try:
                self._set_host()
                self._check_room()
                if self.bench.driver.PROTOCOL == "handshake":
                    self._start(talks=True)
                    self._converse()
                else:
                    self._start(gated=True)
                    self._accompany()
            except _Failed as why:
                self.failure = str(why)
            except journal.DiskFull:
                raise
            except Fault as fault:
                self.failure = str(fault)
            finally:
                self._clean_up()
            self._check_host()
            killed = _out_of_memory_kills() > kills_before
            record, metrics = self._conclude(began, killed)
        finally:
            for path in (self.stdout, self.stderr):
                path.unlink(missing_ok=True)
        return record, metrics

    # --- before -------------------------------------------------------------------------------

    def _set_host(self) -> None:
        if self.bench.host:
            self.settings = self.bench.host.enforce(
                planning.settings_of(self.bench.plan, self.cell)
            )

    def _check_host(self) -> None:
        """A setting that somebody changed meanwhile is a binding that did not hold."""
        if self.bench.host:
            try:
                meddled = self.bench.host.meddled()
            except Fault as fault:
                meddled = [str(fault)]
            if meddled and self.failure is None:
                self.failure = "; ".join(meddled)
            elif meddled:
                self.warnings += meddled

    def _check_room(self) -> None:
        need = self.cell.get("need_bytes") or 0
        free, freeable = bindings.room_bytes(_with_fresh_memory(self.bench.topology), self.cell)
        if free is None or free >= need:
            return
        where = self.cell["memory"]["nodes"]
        where = f"node {where}" if where else "the host"
        strict = self.cell["memory"]["policy"] in ("bind", "interleave")
        if strict and freeable is not None and freeable < need:
            raise _Failed(
                f"not started: it needs {_gigabytes(need)}, {where} has {_gigabytes(free)} free "
                f"({_gigabytes(freeable)} with the page cache dropped)"
            )
        self.warnings.append(
            f"{where} has {_gigabytes(free)} free of the {_gigabytes(need)} needed: the page "
            "cache there has to make room"
        )

    def _start(self, talks: bool = False, gated: bool = False) -> None:
        environment = getattr(self.bench.driver, "environment", None)
        with journal.space_needed(self.stdout):
            self.child = process.start(
                self.argv,
                stdout=self.stdout,
                stderr=self.stderr,
                talks=talks,
                gated=gated,
                expendable=True,
                env=environment(self.options, self.cell) if environment else None,
                keep_open={self.bench.lock},
            )
        self.limit_s = limit_s(self.bench.plan, self.timing)
        self.deadline = time.monotonic() + self.limit_s

    def _attach(self) -> None:
        assert self.child is not None
        asked = self.bench.plan["request"].get("collectors")
        if asked:
            if getattr(self.bench.driver, "SWITCHES_OFTEN", False):
                asked = {**asked, "software_events": False}
            if "instances" in self.cell:
                asked = {**asked, "instances": [one["name"] for one in self.cell["instances"]]}
            self.collection = collectors.start(self.cell, self.pids or self.child.pid, asked)

    def _detach(self) -> None:
        collection, self.collection = self.collection, None
        if collection is not None:
            self.collected = collection.stop()

    # --- handshake ----------------------------------------------------------------------------

    def _converse(self) -> None:
        assert self.child is not None
        ready = self._expect("ready")
        self.marks["ready"] = time.monotonic()
        # A tool's first touch of its memory is warm-up too, as its timing() plans it.
        spent = float(ready.get("setup_s") or 0.0) + float(ready.get("warmup_s") or 0.0)
        self.warmup_s = spent or self.warmup_s
        self.pids = self._named(ready.get("pids"))
        if ready.get("nothing_yet") is not True:
            self._prove("before", ready.get("buffers"))
        self._attach()
        self.marks["go"] = time.monotonic()
        self.child.tell("go")
        result = self._expect("result")
        self.marks["end"] = time.monotonic()
        self._detach()
        self._prove("after", result.get("buffers"))
        self.child.tell("quit")
        self.child.hang_up()
        quit_s = getattr(self.bench.driver, "QUIT_S", _QUIT_S)
        if self.child.wait(time.monotonic() + quit_s) is None:
            self.warnings.append(f"it did not end within {quit_s:.0f} s of `quit` and was killed")
        else:
            self._check_end()

    def _named(self, pids: Any) -> List[int]:
        """Return the processes that the tool names; they must be its own."""
        assert self.child is not None
        if pids is None:
            return []
        if not isinstance(pids, list) or not pids or not all(type(pid) is int for pid in pids):
            raise _Failed(f'it said "pids": {json.dumps(pids)[:80]}, which is no list of processes')
        for pid in pids:
            if not self.child.owns(pid):
                raise _Failed(f"it named process {pid}, which is none of its own")
        return pids

    def _expect(self, event: str) -> Dict[str, Any]:
        """Return the tool's next record of this event; any other kind of line is a failure."""
        assert self.child is not None
        while True:
            ended = self.child.poll() is not None  # first, so that its last words are read
            for line in self._new_lines():
                try:
                    record = json.loads(line)
                except ValueError:
                    record = None
                if not isinstance(record, dict):
                    raise _Failed(f"it printed {line[:80]!r} where a JSON record was expected")
                if record.get("event") == event:
                    return record
                if record.get("event") == "fault":
                    raise _Failed(str(record.get("what")))
            if ended:
                self._check_end()
                raise _Failed(f'it ended without saying "{event}"{self._last_words()}')
            self._check_on_it(f'say "{event}"')
            time.sleep(_POLL_S)

    def _new_lines(self) -> List[str]:
        with open(self.stdout, "rb") as file:
            file.seek(self.read_to)
            text = file.read(1 << 20)
        whole = text[: text.rfind(b"\n") + 1]
        self.read_to += len(whole)
        return [line for line in whole.decode("utf-8", errors="replace").splitlines() if line]

    # --- sampled ------------------------------------------------------------------------------

    def _accompany(self) -> None:
        assert self.child is not None
        self._attach()
        self.child.open_gate()
        self.marks["ready"] = self.marks["go"] = self.child.started
        self.deadline = self.child.started + self.limit_s
        pause = 0.001
        while not self.child.is_program() and self.child.poll() is None:
            self._check_on_it("start")
            self.child.wait(time.monotonic() + pause)
        due, step = 0.0, 0.2
        while self.child.poll() is None:
            now = time.monotonic() - self.child.started
            if now >= due:
                took = self._prove("running", None)
                self.child.note_peak()
                # Reading numa_maps holds up page faults: a small part of the time at most, but
                # for the first look, which finds little mapped.
                rest = took * (20 if len(self.proofs) > 1 else 2)
                due, step = max(step, now + rest), step * (2.5 if step == 0.2 else 2)
            self._check_on_it("end")
            self.child.wait(time.monotonic() + pause)
            pause = min(pause * 1.5, _POLL_S)
        self.marks["end"] = self.child.started + self.child.ended["wall_s"]
        self._detach()
        self._check_end()
        if self.cell["expects"]["memory"]["proof"] == "required":
            self._discount_looks_at_a_part()
        # The very first look may come before the program has made itself at home.
        later = [proof for proof in self.proofs[1:] if proof["ok"] is not None]
        if later and self.proofs[0]["memory"]["ok"] is not None:
            self.proofs[0]["early"] = True

    def _discount_looks_at_a_part(self) -> None:
        assert self.child is not None and self.child.ended is not None
        for proof in self.proofs:
            why = placement.seen_in_part(proof, self.child.ended["max_rss_bytes"])
            if proof["ok"] and why:
                proof.update(ok=None, reason=why, absent=True)

    # --- both ---------------------------------------------------------------------------------

    def _prove(self, when: str, buffers: Optional[Dict[str, int]]) -> float:
        assert self.child is not None
        began = time.monotonic()
        pids, topology = self.pids or self.child.pid, self.bench.topology
        head = {"when": when, "t_s": round(began - self.child.started, 3)}
        instances = self.cell.get("instances")
        if instances:  # each against its own binding
            if len(self.pids) != len(instances):
                raise _Failed(f"it named {len(self.pids)} processes for {len(instances)} instances")
            for pid, one in zip(self.pids, instances):
                own = placement.of_instance(self.cell, one["name"])
                proof = placement.prove(pid, own, topology)
                self.proofs.append({**head, "instance": one["name"], **proof})
        else:
            proof = placement.prove(pids, self.cell, topology, buffers=buffers)
            self.proofs.append({**head, **proof})
        took = time.monotonic() - began
        self.proof_s += took
        return took

    def _check_on_it(self, what: str) -> None:
        """Raise Stopped or _Failed when the trial must not go on."""
        if self.bench.stopped():
            raise Stopped
        if time.monotonic() > self.deadline:
            raise _Failed(
                f"it did not {what} within {self.limit_s:g} s and was killed "
                "(the request's time_limit_s sets the limit)"
            )
        for path in (self.stdout, self.stderr):
            if path.stat().st_size > OUTPUT_LIMIT_BYTES:
                raise _Failed(f"it printed more than {OUTPUT_LIMIT_BYTES >> 20} MiB and was killed")

    def _check_end(self) -> None:
        assert self.child is not None and self.child.ended is not None
        number, status = self.child.ended["signal"], self.child.ended["exit_status"]
        if number is not None:
            raise _Failed(f"it was killed by {_signal_name(number)}{self._last_words()}")
        if status and self.bench.driver.PROTOCOL == "handshake":
            for line in self._new_lines():
                with contextlib.suppress(ValueError, AttributeError):
                    if json.loads(line).get("event") == "fault":
                        raise _Failed(str(json.loads(line).get("what")))
        if status:
            raise _Failed(f"it ended with exit status {status}{self._last_words()}")

    def _last_words(self) -> str:
        records_only = self.bench.driver.PROTOCOL == "handshake"  # its stdout is not for people
        for path in (self.stderr,) if records_only else (self.stderr, self.stdout):
            lines = _tail(path).decode("utf-8", errors="replace").split("\n")
            said = [line.strip() for line in lines if line.strip()]
            why = itertools.takewhile(lambda line: not line.lower().startswith("usage:"), said)
            said = (list(why) or said)[-3:]  # a list of options after it explains nothing
            if said:
                return f": {' | '.join(said)[-300:]}"
        return ""

    def _clean_up(self) -> None:
        try:
            self._detach()  # first: ended by the kill below, perf could say nothing any more
        except Fault as fault:
            self.warnings.append(str(fault))
        left = self.child.end() if self.child is not None else []
        if left:
            raise Fault(
                f"these processes cannot be killed: {left}; they hang inside the kernel",
                "look at the kernel's log; a reboot may be needed",
            )

    # --- after --------------------------------------------------------------------------------

    def _conclude(
        self, began: datetime, out_of_memory: bool
    ) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
        ended = self.child.ended if self.child else None
        if self.failure and out_of_memory:
            self.failure += " (the kernel ran out of memory and killed a process meanwhile)"
        raw: Dict[str, str] = {}
        sums: Dict[str, str] = {}

        def keep(kind: str, content: Any) -> None:
            name = raw_name(self.entry["trial"], self.cell["id"], kind)
            if not isinstance(content, Path):
                content = (json.dumps(content, ensure_ascii=False) + "\n").encode("utf-8")
            raw[kind] = name
            sums[name] = journal.write_gzip(self.bench.folder / name, content)

        if self.child is not None:
            keep("stdout", self.stdout)
            keep("stderr", self.stderr)
            keep("rusage", ended)
        if self.proofs:
            keep("placement", {"schema": SCHEMA, "cell": self.cell["id"], "proofs": self.proofs})
        if self.collected is not None:
            keep("collect", self.collected)
            self._warn_of_disturbance()
        metrics = self._read_output(ended)
        if self.failure:
            grade, reason = "error", self.failure
        else:
            judged = [proof for proof in self.proofs if not proof.get("early")]
            grade, reason = placement.grade(judged, self.cell, self.bench.topology)
        record = {
            "schema": SCHEMA,
            **{key: self.entry[key] for key in ("trial", "block", "position", "cell")},
            "attempt": self.attempt,
            "started": _stamp(began),
            "ended": _stamp(datetime.now(timezone.utc)),
            "grade": grade,
            "reason": reason,
            # Where our own interpreter lies is this host's business.
            "argv": [
                "python3" if word == sys.executable else published(word) for word in self.argv
            ],
            "exit_status": ended["exit_status"] if ended else None,
            "signal": ended["signal"] if ended else None,
            "times": self._times(),
            "tool": {
                "name": self.bench.plan["tool"]["name"],
                "version": self.bench.plan["tool"]["version"],
            },
            "raw": raw,
            "sha256": sums,
            "warnings": self.warnings,
        }
        if self.bench.host:
            record["settings"] = self.settings
        return record, metrics

    def _read_output(self, ended: Optional[Dict[str, Any]]) -> List[Dict[str, Any]]:
        """Parse what the driver asks for; what cannot be read is a failure of the trial."""
        if self.child is None:
            return []
        driver = self.bench.driver
        kind = getattr(driver, "RAW", "stdout")
        if kind == "rusage":
            text = json.dumps(ended, ensure_ascii=False) + "\n"
        else:
            path = self.stderr if kind == "stderr" else self.stdout
            text = path.read_bytes().decode("utf-8", errors="replace")
        try:
            records = driver.parse(text)
            if hasattr(driver, "failure") and self.failure is None:
                self.failure = driver.failure(records, self.cell["options"])
            if hasattr(driver, "doubts"):
                self.warnings += driver.doubts(records, self.cell["options"])
            return driver.metrics(records)
        except Fault as fault:
            if self.failure is None:
                self.failure = str(fault)
            return []

    def _warn_of_disturbance(self) -> None:
        assert self.collected is not None
        disturbance = self.collected.get("disturbance") or {}
        share = disturbance.get("other_share")
        if share is not None and share > _DISTURBED and disturbance["other_s"] > _DISTURBED_S:
            names = ", ".join(p["name"] for p in disturbance.get("busiest", [])[:3])
            self.warnings.append(
                f"others used {share:.0%} of this cell's CPU time"
                + (f" ({names})" if names else "")
            )

    def _times(self) -> Dict[str, float]:
        """Return the seconds of each phase; a phase that was not reached is 0."""
        marks, now = self.marks, time.monotonic()
        measured = marks["end"] - marks["go"] if "end" in marks else 0.0
        started = marks["ready"] - marks["begin"] if "ready" in marks else 0.0
        if self.bench.driver.PROTOCOL == "handshake":  # it warms up before it says "ready"
            warmup = min(self.warmup_s, started)
            started -= warmup
        else:
            warmup = min(self.warmup_s, measured)
            measured -= warmup
        times = {
            "start_s": started,
            "warmup_s": warmup,
            "measure_s": measured,
            "proof_s": self.proof_s,
            "total_s": now - marks["begin"],
        }
        return {name: round(value, 4) for name, value in times.items()}


def headline(metrics: List[Dict[str, Any]], wanted: Optional[str]) -> Optional[Dict[str, Any]]:
    """Return {"metric","value","unit"} of the metric to show for a trial, or None.

    Of a metric with several points it is the median of their values.
    """
    rows = [m for m in metrics if m["metric"] == wanted and m["value"] is not None]
    if not rows:
        return None
    values = sorted(float(m["value"]) for m in rows)
    middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
    if not math.isfinite(middle):
        return None
    return {"metric": wanted, "value": middle, "unit": rows[0]["unit"]}


def _with_fresh_memory(topology: Dict[str, Any]) -> Dict[str, Any]:
    """Return the topology with free memory as it is now: two small files per node."""
    root = topology["root"]
    nodes = []
    for node in topology["nodes"]:
        now = _meminfo(f"{root}/sys/devices/system/node/node{node['node']}/meminfo")
        fresh = {"free_bytes": now.get("MemFree"), "page_cache_bytes": now.get("FilePages")}
        nodes.append({**node, **{key: value for key, value in fresh.items() if value is not None}})
    available = _meminfo(f"{root}/proc/meminfo").get("MemAvailable")
    return {
        **topology,
        "nodes": nodes,
        "available_bytes": topology["available_bytes"] if available is None else available,
    }


def _meminfo(path: str) -> Dict[str, int]:
    try:
        return topology_module.meminfo_bytes(Path(path).read_text())
    except OSError:
        return {}


def _out_of_memory_kills() -> int:
    try:
        match = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return int(match.group(1)) if match else 0


def _tail(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            return file.read()
    except OSError:
        return b""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
