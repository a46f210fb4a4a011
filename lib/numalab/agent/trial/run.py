"""A whole run: every trial of a plan into a run directory, stoppable and resumable anywhere.

One measurement at a time runs on a host: two would measure each other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from .. import drivers, kernel
from ..collectors import resctrl
from ..contract import (
    ERROR,
    Cell,
    Change,
    Manifest,
    Plan,
    Reason,
    Setting,
    State,
    Trial,
    TrialRecord,
    reason,
    to_json,
)
from ..errors import Fault, NotHere
from ..host import settings, state, topology
from ..plan import make, order, show
from . import events, guard, host_changes, journal, lock, quiet, trial
from .events import Event
from .folder import RunFolder

_ENOUGH = 3  # failures alike, and at least a block of them, before a run is given up


class Interrupted(Fault):
    """The run was stopped by a signal; ``number`` is the signal's."""

    def __init__(self, what: str, hint: str, number: int) -> None:
        super().__init__(what, hint)
        self.number = number


def run(
    plan: Plan,
    out: Path,
    *,
    allow_host_changes: bool = False,
    busy: bool = False,
    emit: Callable[[Event], None] = events.say,
    enough: Callable[[], bool] = lambda: False,
    record: Optional[Path] = None,
    changes_root: Path = Path("/"),
    lock_name: str = lock.LOCK,
) -> Event:
    """Measure what a plan holds and a run directory does not yet; return the last event.

    ``out`` is made, or holds an unfinished run of the same plan. ``emit`` gets every progress
    event; ``enough`` says, after each block of ``looks``, whether the run ends there. With ``busy``
    it measures although others are at work on the host, and the run says so.
    ``record`` and ``changes_root`` are where host changes are recorded and made,
    ``lock_name`` is what only one measurement of a host can hold. Raises Interrupted after SIGINT
    or SIGTERM, Fault for everything a person must act on; what was measured stays in both cases.
    """
    if not plan.order:
        raise nothing_here(plan)
    with lock.measurement(lock_name) as held:
        changes = host_changes.HostChanges(
            record or host_changes.record_file(), Path(os.path.abspath(out)) / "changes.json",
            changes_root,
        )  # fmt: skip
        one = _Run(plan, Path(os.path.abspath(out)), changes, emit, enough, held)
        return one.run(allow_host_changes, busy)


def resume(folder: Path, **options: Any) -> Event:
    """Complete an unfinished run directory; see ``run``."""
    return run(journal.load(Manifest, folder / "manifest.json").plan, folder, **options)


def nothing_here(plan: Plan) -> NotHere:
    """Return why nothing of a plan can be measured on its host, or in its time."""
    # Last comes what was skipped although its binding exists here: that says most.
    lines = show.skipped_lines(plan)[::-1]
    late = any(make.for_lack_of_time(skip.reason) for skip in plan.skipped)
    return NotHere(reason("no-time-here" if late else "nothing-here"), "; ".join(lines) or None)


def why_nothing_here(plan: Plan) -> Reason:
    """Return the reasons for which everything was skipped, each once."""
    found: List[Reason] = []
    for skip in plan.skipped:
        if skip.reason not in found:
            found.append(skip.reason)
    return found[0] if len(found) == 1 else reason("several-reasons", reasons=to_json(found))


class _Run:
    def __init__(
        self,
        plan: Plan,
        out: Path,
        changes: host_changes.HostChanges,
        emit: Callable[[Event], None],
        enough: Callable[[], bool],
        lock: int,
    ) -> None:
        self.plan = plan
        self.wanted = make.settings(plan)  # every host setting with its values
        self.usual: Dict[str, str] = {}  # of settings that no cell names, while the run lasts
        self.out = out
        self.host_changes = changes
        self.lock = lock
        self._emit = emit
        self._enough = enough
        self.signal: Optional[int] = None
        self.reader_gone = False  # nobody reads the events any more
        self.began = time.monotonic()
        self.guard: Optional[guard.Guard] = None
        self.changed: List[Change] = []
        self.busy: List[Reason] = []  # what else is at work on this host
        self.allowed_busy = False

    def emit(self, event: Event) -> None:
        try:
            self._emit(event)
        except BrokenPipeError:
            self.reader_gone = True  # whoever started us is gone: stop in order

    def warn(self, why: Reason) -> None:
        self.emit(events.warning(why))

    def stopped(self) -> bool:
        return self.signal is not None or self.reader_gone

    def run(self, allow_host_changes: bool, busy: bool) -> Event:
        self._check_permission(allow_host_changes)
        self.allowed_busy = busy
        begun = self.out.exists()
        if not begun:  # a run that is refused leaves no directory
            self._check_quiet(busy)
        self.folder = RunFolder(self.plan, self.out, self.warn)
        self.plan = self.folder.plan
        if self.folder.complete:
            self._emit_plan()
            return self._end("complete")
        if begun:
            self._check_quiet(busy)
        self._find_tool()
        kernel.adopt_orphans()
        try:
            with self._signals():
                return self._measure()
        finally:
            kernel.adopt_orphans(False)
            try:
                self._restore_host()
            finally:
                if self.guard:
                    self.guard.dismiss()

    # --- before the first trial ---------------------------------------------------------------

    def _check_permission(self, allow_host_changes: bool) -> None:
        # Without its changes it would be another experiment, and resumed with them a mixture.
        if self.wanted and not allow_host_changes:
            raise Fault(
                reason("changes-not-allowed", settings=show.settings_text(self.plan)),
                "allow it with --allow-host-changes (what was set before is put back), or take "
                "`changes` out of the experiment",
            )
        if allow_host_changes and self.plan.request.collectors:
            root = self.host_changes.root
            folder = settings.path_of(settings.MOUNTED, root)
            if os.access(folder, os.W_OK) and resctrl.worth_mounting(str(root)):
                self.usual[settings.MOUNTED] = "1"
                self.wanted = {**self.wanted, settings.MOUNTED: ["1"]}
        self.host_changes.refuse(list(self.wanted))

    def _check_quiet(self, busy: bool) -> None:
        self.busy = quiet.busy(0.0 if busy else None)
        if not busy:
            quiet.refuse(self.busy)

    def _find_tool(self) -> None:
        tool = self.plan.tool
        self.driver = drivers.driver(tool.name)
        self.found = self.driver.find(self.plan.request.tool.options)
        if self.found.version != tool.version:
            raise journal.CannotComplete(
                f"the plan was made for {tool.name} {tool.version}, this host has "
                f"{self.found.version}: results of two versions do not go into one run",
                "make the plan anew and measure into a new directory",
            )

    def _clear_leftovers(self) -> None:
        """Put back what an earlier run left changed, before this host is looked at."""
        record = self.host_changes.record
        if self.wanted:
            for change in host_changes.put_back(record, self.host_changes.root):
                if change.restored:
                    self.warn(reason("leftover-put-back", name=change.name))
            return
        try:
            if host_changes.pending(record):
                self.warn(reason("leftovers-pending"))
        except Fault as fault:  # it changes nothing itself: the record is for `numalab restore`
            self.warn(fault.reason)

    def _look_at_host(self) -> None:
        self.host = topology.read()
        self.folder.look_at(self.host, self._state())

    def _state(self) -> State:
        """The host's state, and every setting that the run changes under its own name."""
        own = self.host_changes.read(list(self.wanted))
        return dict(sorted({**{name: Setting(own[name]) for name in own}, **state.read()}.items()))

    def _make_ready(self) -> None:
        """Let the tool prepare what its trials need, where it has anything to prepare."""
        wanted = {id for entry in self.plan.order for id in self.plan.visited(entry.cell)}
        cells = [cell for cell in self.plan.cells if cell.id in wanted]
        self.driver.make_ready(cells, self.found, self._pass_on, self.stopped, self.lock)
        if self.stopped():
            raise trial.Stopped
        cell = self.driver.calibration(cells)
        if cell:
            self._calibrate(cell)

    def _calibrate(self, cell: Cell) -> None:
        """Measure a cell before the first trial, and freeze in the plan what that gives."""
        self.emit(events.progress(reason("calibrating", cell=cell.label)))
        with tempfile.TemporaryDirectory(prefix="numalab-") as scratch:
            Path(scratch, "raw").mkdir()
            entry = Trial(1, 1, 1, cell.id)
            plan = replace(self.plan, cells=(cell,), tours=(), order=(entry,))
            record, rows = trial.measure(self._bench(plan, Path(scratch)), entry, 1)
        if record.grade == ERROR:
            raise Fault(reason("not-calibrated", cell=cell.label, why=to_json(record.reason)))
        self.plan = make.with_options(self.plan, self.driver.calibrated(cell, rows))
        self.folder.keep(self.plan)

    def _bench(self, plan: Plan, out: Path) -> trial.Bench:
        return trial.Bench(
            plan, self.host, out, self.driver, self.found, self.lock, self.stopped,
            self.host_changes,
        )  # fmt: skip

    def _pass_on(self, event: Any) -> None:
        self.emit(to_json(event))

    def _record_settings(self) -> None:
        if not self.wanted:
            return
        for change in self.host_changes.announce(self.wanted):
            self.warn(change)
        self.guard = guard.start(self.host_changes.record, self.host_changes.root, {self.lock})
        began_with = {name: v for name, v in self.folder.manifest.settings.items() if v is not None}
        self.host_changes.begin(self.wanted, {**began_with, **self.usual})

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def note(number: int, frame: Any) -> None:
            self.signal = number

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        earlier = {
            number: signal.signal(number, note)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) is not signal.SIG_IGN  # as nohup(1) sets it
        }
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    # --- the trials ---------------------------------------------------------------------------

    def _measure(self) -> Event:
        status = "stopped"
        failure: Optional[Fault] = None
        try:
            self.folder.clear_half_finished()
            self._clear_leftovers()
            self._look_at_host()
            self.folder.update(status="running", ended=None)
            for why in self.busy:
                self.warn(why)
            known = {why.code for why in self.busy}
            earlier = [why for why in self.folder.manifest.busy if why.code not in known]
            self.folder.update(busy=(*earlier, *self.busy))
            self._make_ready()
            self.host_changes.keep(self.plan.settings, self.wanted)
            self._record_settings()
            self.folder.update(settings=self.host_changes.usual)
            self._emit_plan()
            self._trials()
            status = "complete"
        except trial.Stopped:
            pass
        except Fault as fault:
            failure = fault
        except OSError as error:  # of the run directory: those of the tool are the trial's
            failure = Fault(f"{error.filename or self.out}: {error.strerror}")
        try:
            self._restore_host()
            after = self._state()
            self.folder.close(status, after, self.changed, time.monotonic() - self.began)
        except Fault as fault:
            failure = failure or fault
        event = self._end(status, events.failure(failure) if failure else None)
        if failure:
            raise failure
        if status == "stopped":
            raise self._interrupted()
        return event

    def _trials(self) -> None:
        bench = self._bench(self.plan, self.out)
        wait_s = 0.0 if self.allowed_busy else quiet.WAIT_S
        others = quiet.Quiet(bool(self.busy), self.stopped, wait_s)
        at_work: Dict[int, List[Reason]] = {}  # by block
        of = len(self.plan.order)
        block = len([entry for entry in self.plan.order if entry.block == 1])
        measured: List[TrialRecord] = []
        spent = planned = 0.0
        for entry, cell in order.trials(self.plan):
            if entry.trial in self.folder.done:
                continue
            if self.stopped():
                raise trial.Stopped
            if self._decided(entry):
                break
            if entry.block not in at_work:
                at_work[entry.block] = others.before_block()
            record, rows = trial.measure(bench, entry, self.folder.note_attempt(entry.trial))
            record = replace(record, warnings=(*record.warnings, *at_work[entry.block]))
            self.folder.add(record)
            measured.append(record)
            spent += record.times.total_s
            planned += cell.timing.total_s
            left = order.left_s(self.plan, self.folder.done) * (spent / planned if planned else 1.0)
            for why in record.warnings:
                self.emit(events.warning(why, entry.trial, cell.label))
            wanted = None if record.grade == ERROR else self.plan.request.headline
            headline = trial.headline(rows, wanted)
            self.emit(events.trial(record, of, cell.label, headline, left))
            if len(self.folder.records) < of:
                _give_up_early(measured, max(block, _ENOUGH))

    def _decided(self, entry: Trial) -> bool:
        """Whether the run ends before this trial, the first of its block: all is decided."""
        last = entry.block - 1
        if entry.position > 1 or last not in self.plan.request.looks:
            return False
        self.emit(events.look(last))
        enough = self._enough()
        if self.stopped():
            raise trial.Stopped
        if not enough:
            return False
        self.plan = make.ended_after(self.plan, last)
        self.folder.keep(self.plan)
        return True

    def _restore_host(self) -> None:
        if self.guard and self.host_changes.record.exists():
            put_back = self.host_changes.restore()
            self.changed += put_back
            for change in put_back:
                if not change.restored and change.before is not None:
                    why = to_json(change.reason)
                    self.warn(reason("setting-not-put-back", name=change.name, why=why))

    # --- the end ------------------------------------------------------------------------------

    def _interrupted(self) -> Interrupted:
        number = self.signal or signal.SIGPIPE
        why = kernel.signal_name(number) if self.signal else "the end of whoever started it"
        return Interrupted(
            f"stopped by {why} after {len(self.folder.records)} of {len(self.plan.order)} trials",
            f"what was measured stays; resume {self.out} to complete it",
            number,
        )

    def _emit_plan(self) -> None:
        done = self.folder.done
        left = order.left_s(self.plan, done)
        self.emit(events.plan(len(self.plan.order), len(done), left))

    def _end(self, status: str, why: Optional[Reason] = None) -> Event:
        event = events.end(status, self.folder.records, str(self.out), why)
        self.emit(event)
        return event


def _give_up_early(measured: Sequence[TrialRecord], enough: int) -> None:
    """Raise Fault when the first trials of a session all failed for reasons of one code."""
    if len(measured) != enough:
        return
    codes = {one.reason.code if one.grade == ERROR and one.reason else None for one in measured}
    if len(codes) == 1 and None not in codes:
        raise journal.CannotComplete(
            reason("given-up", trials=enough, why=to_json(measured[-1].reason)),
            "once the cause is gone, measure again into a new directory",
        )
