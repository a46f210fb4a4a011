"""Changes to the host: recorded before they are made, and put back to what was recorded.

The record (every setting that the run will touch, with its value before, the values it will be
given, pid, boot id) is on disk before the first write, so that whoever survives can put things
back: the agent at a run's end, the guard when the agent was killed (guard.py), or a person with
``numalab restore`` when both were. A value that somebody else has set meanwhile is left alone and
said. After a reboot there is nothing to put back.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from .. import kernel
from ..contract import SCHEMA, Change, Reason, from_json, reason, to_json
from ..errors import Fault
from ..host import settings
from . import journal, lock


@dataclass
class RecordedSetting:
    """One setting in the record: what it was before, and what became of it."""

    name: str
    before: Optional[str]  # None of a setting that can only be written
    values: Tuple[str, ...]  # all that the run gives it
    theirs: Optional[str] = None  # what somebody else has set meanwhile
    restored: Optional[bool] = None  # None: nobody has tried yet
    reason: Optional[Reason] = None

    @property
    def change(self) -> Change:
        """The same as the manifest holds it."""
        return Change(self.name, self.before, bool(self.restored), self.reason)


@dataclass(frozen=True)
class Record:
    """The file of recorded settings; ``copy`` is the path of a second one, in the run."""

    schema: int
    boot_id: Optional[str]
    pid: int
    since: str
    copy: Optional[str]
    changes: Tuple[RecordedSetting, ...]


def _record_files() -> List[Path]:
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return [Path("/var/lib/numalab/changes.json"), Path(base) / "numalab" / "changes.json"]


def record_file() -> Path:
    """Return where the record lives: /var/lib/numalab for root, else the user's state folder."""
    of_root, of_user = _record_files()
    return of_root if os.access("/var/lib", os.W_OK) else of_user


# --- the changes of a run ---------------------------------------------------------------------


class HostChanges:
    """The changes of one run: ``record`` is the file that survives, ``copy`` one in the run.

    ``begin`` records, then ``enforce`` sets what each trial needs and ``changed_by_others`` finds
    what somebody else changed; ``restore`` ends it.
    """

    def __init__(self, record: Path, copy: Optional[Path] = None, root: Path = Path("/")) -> None:
        self.record = record
        self.copy = copy
        self.root = root
        self.usual: Dict[str, str] = {}
        self.kept: Dict[str, str] = {}  # the host's own values, which the run does not touch
        self._held: Dict[str, str] = {}  # what each setting read after we last touched it
        self._entries: List[RecordedSetting] = []

    def refuse(self, names: Sequence[str]) -> None:
        """Raise Fault when one of these settings does not exist here or may not be written."""
        missing = [str(why) for why in (settings.absent(name, self.root) for name in names) if why]
        if missing:
            raise Fault(
                f"nothing is measured: {'; '.join(missing)}",
                "take it out of the experiment's changes, or write its name with a ? at the end: "
                "then it is set where there is one",
            )
        paths = {name: settings.path_of(name, self.root) for name in names}
        barred = [
            f"{name} ({path})" for name, path in paths.items() if not os.access(path, os.W_OK)
        ]
        if barred:
            raise Fault(
                f"nothing is measured: these settings may not be written: {', '.join(barred)}",
                "run as root, and in no container: there /proc/sys is read-only",
            )

    def keep(self, declared: Mapping[str, str], wanted: Collection[str]) -> None:
        """Hold every trial to the host's own values that a plan declares; ``wanted`` are changed.

        Raises Fault when one is another already: cells of one run hold the same.
        """
        now = settings.own(str(self.root))
        self.kept = {name: value for name, value in declared.items() if name not in wanted}
        for name, value in self.kept.items():
            if now.get(name) != value:
                raise Fault(
                    reason("setting-not-as-planned", name=name, planned=value, now=now.get(name)),
                    "set it back, or plan anew: a run's cells all hold the same value",
                )

    def announce(self, wanted: Mapping[str, Sequence[str]]) -> List[Reason]:
        """Return one reason per setting that will be changed, before any is."""
        return [
            reason("setting-will-be-written", name=name, values=list(values))
            if name in settings.ONE_WAY
            else reason("setting-will-change", name=name, now=self._read(name), values=list(values))
            for name, values in wanted.items()
        ]

    def _read(self, name: str) -> str:
        path = settings.path_of(name, self.root)
        try:
            return settings.value(path)
        except OSError as error:
            raise Fault(
                reason("setting-unreadable", name=name, path=str(path), why=error.strerror),
                "this kernel may not have it; take it out of the experiment's changes",
            ) from None

    def read(self, names: Sequence[str]) -> Dict[str, str]:
        """Return the values of those settings that can be read; Fault when one cannot be."""
        return {name: self._read(name) for name in names if name not in settings.ONE_WAY}

    def begin(
        self, wanted: Mapping[str, Sequence[str]], usual: Optional[Mapping[str, str]] = None
    ) -> None:
        """Record the value of every setting that will be changed; change nothing yet.

        ``wanted`` holds all values that each will be given. ``usual`` is what a setting has while
        a trial does not name it: by default its value now; a resumed run gives the values that it
        began with. What an earlier run left behind is put back first: its record holds the true
        values. Raises Fault when a setting cannot be read or the record cannot be written.
        """
        put_back(self.record, self.root)
        entries = []
        for name, values in wanted.items():
            if name in settings.ONE_WAY:
                why = reason("setting-cannot-be-put-back")
                entries.append(RecordedSetting(name, None, tuple(values), reason=why))
                continue
            before = self._held[name] = self._read(name)
            self.usual[name] = (usual or {}).get(name, before)
            given = dict.fromkeys([*values, self.usual[name]])
            entries.append(RecordedSetting(name, before, tuple(given)))
        self._entries = entries
        if entries:
            self._write()

    def enforce(self, wanted: Mapping[str, str]) -> Dict[str, str]:
        """Set every recorded setting for a trial that asks for ``wanted``; return what is in force.

        A setting that ``wanted`` does not name gets its usual value; one that can only be written
        is written when it is named. Raises Fault when the kernel refuses a value.
        """
        self.changed_by_others()
        for name in self.usual:
            value = wanted.get(name, self.usual[name])
            if not settings.same(name, value, self._held[name]):
                self._set(name, value)
                now = self._held[name] = self._read(name)
                if name != settings.MOUNTED and not settings.same(name, value, now):
                    raise Fault(reason("setting-not-taken", name=name, value=value, now=now))
        once = {name: wanted[name] for name in settings.ONE_WAY if name in wanted}
        for name, value in once.items():
            os.sync()  # what is not written yet cannot be dropped
            self._set(name, value)
        return {**self.kept, **self._held, **once}

    def changed_by_others(self) -> List[Reason]:
        """Return one reason for each setting that is not as the last ``enforce`` left it.

        Its new value is somebody else's, and is what will be there in the end.
        """
        now = settings.own(str(self.root)) if self.kept else {}
        found = [
            reason("setting-changed-by-others", name=name, was=value, now=now.get(name))
            for name, value in self.kept.items()
            if now.get(name) != value
        ]
        theirs = False
        for entry in self._entries:
            if entry.name in settings.ONE_WAY:
                continue
            value, held = self._read(entry.name), self._held[entry.name]
            if value != held:
                found.append(
                    reason("setting-changed-by-others", name=entry.name, was=held, now=value)
                )
                entry.theirs = self._held[entry.name] = value
                theirs = True
        if theirs:
            self._write()
        return found

    def _write(self) -> None:
        data = Record(
            schema=SCHEMA,
            boot_id=kernel.boot_id(str(self.root)),
            pid=os.getpid(),
            since=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            copy=str(self.copy) if self.copy else None,
            changes=tuple(self._entries),
        )
        try:
            self.record.parent.mkdir(parents=True, exist_ok=True)
            journal.write_json(self.record, data)
            if self.copy:
                journal.write_json(self.copy, _for_the_run(data))
        except OSError as error:
            raise Fault(
                f"the host is left as it is: {self.record} cannot be written ({error.strerror}), "
                "and no change is made without a record of the value before",
                "run as root",
            ) from None

    def _set(self, name: str, value: str) -> None:
        path = settings.path_of(name, self.root)
        try:
            _put(path, value)
        except OSError as error:
            if name == settings.MOUNTED:
                return  # the collectors alone want it, and their rows say that it is not there
            forbidden = isinstance(error, PermissionError)
            raise Fault(
                reason(
                    "setting-refused", name=name, value=value, path=str(path), why=error.strerror
                ),
                "run as root" if forbidden else "is that a value that this kernel takes?",
            ) from None

    def restore(self) -> List[Change]:
        """Put everything back; return what became of each setting."""
        with contextlib.suppress(Fault):  # what cannot be read cannot be told from ours
            self.changed_by_others()
        self._entries = []
        return put_back(self.record, self.root)


# --- putting back -----------------------------------------------------------------------------


def pending(record: Path) -> Optional[Record]:
    """Return what an earlier run recorded and nobody has put back yet, or None.

    Raises Fault when the record cannot be read, and when it is another user's: whoever may write
    it could have root write any value into any setting.
    """
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(str(record), flags)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Fault(f"{record} cannot be read: {error.strerror}", "run as root") from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise Fault(f"{record} is no regular file", "look what it is, then remove it")
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
        owner = found.st_uid
        if owner not in (0, os.geteuid()):
            raise Fault(
                f"{record} belongs to user {owner}: what it says is not followed",
                "run `numalab restore` as that user, or remove the file",
            )
        try:
            return from_json(Record, json.load(file), str(record))
        except (ValueError, RecursionError, Fault) as error:
            raise Fault(
                f"{record} cannot be read: {error}",
                "it says which settings a run changed: look at them, then remove it",
            ) from None


def _for_the_run(data: Record) -> Record:
    """Return a record without the path of its copy: runs are published, and it names a home."""
    return replace(data, copy=None)


def put_back(record: Path, root: Path = Path("/")) -> List[Change]:
    """Put back the recorded values and remove the record; return what became of each setting.

    A change that could not be put back keeps the record in place: Fault.
    """
    left = pending(record)
    if left is None:
        return []
    rebooted = left.boot_id != kernel.boot_id(str(root))
    failed = []
    for entry in left.changes:
        if entry.before is None:
            entry.restored = False
        elif rebooted:
            entry.restored, entry.reason = False, reason("host-rebooted")
        else:
            problem = _put_back_one(entry, entry.before, root)
            if problem:
                failed.append(problem)
    if left.copy and Path(left.copy).parent.is_dir():
        # A full disk must not keep the host changed.
        with contextlib.suppress(OSError, Fault):
            journal.write_json(Path(left.copy), _for_the_run(left))
    if failed:
        raise Fault("; ".join(map(str, failed)), "run `numalab restore` as root")
    record.unlink()
    with contextlib.suppress(OSError):  # where others keep things in it
        record.parent.rmdir()
    return [entry.change for entry in left.changes]


def _put_back_one(entry: RecordedSetting, before: str, root: Path) -> Optional[Reason]:
    """Put one setting back; return why that was not possible."""
    try:
        path = settings.path_of(entry.name, root)  # never a path from the file
    except Fault as fault:
        entry.restored, entry.reason = False, fault.reason
        return fault.reason
    target = before if entry.theirs is None else entry.theirs
    try:
        now = settings.value(path)
        if now != target:
            if any(settings.same(entry.name, value, now) for value in (*entry.values, before)):
                _put(path, target)
            else:
                entry.theirs = now
    except OSError as error:
        entry.restored = False
        entry.reason = reason(
            "setting-not-restored",
            name=entry.name, value=target, path=str(path), why=error.strerror,
        )  # fmt: skip
        return entry.reason
    entry.restored = entry.theirs is None
    if entry.theirs is not None:
        entry.reason = reason("setting-is-theirs", value=entry.theirs)
    return None


def restore() -> List[Reason]:
    """Put back what any earlier run left on this host; return what was done.

    [] when there was nothing to do. Raises Fault while a measurement runs: it needs its settings.
    """
    done: List[Reason] = []
    failed: List[Fault] = []
    with lock.measurement():
        for record in _record_files():
            try:
                changes = put_back(record)
            except Fault as fault:  # the other record is put back all the same
                failed.append(fault)
                continue
            for change in changes:
                if change.restored:
                    one = reason("setting-put-back", name=change.name, value=change.before)
                elif change.reason and change.reason.code == "host-rebooted":
                    one = change.reason  # the same for all: said once
                else:
                    one = reason("setting-left", name=change.name, why=to_json(change.reason))
                if one not in done:
                    done.append(one)
    if failed:
        raise failed[0]
    return done


def _put(path: Path, value: str) -> None:
    """Write a setting by one write(2), never emptied first: killed in between, it keeps a value."""
    if path.name == "resctrl":
        if value == "1":
            return kernel.mount("resctrl", str(path))
        return kernel.unmount(str(path))
    data = (value + "\n").encode()
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, data)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            with contextlib.suppress(OSError):  # files of the kernel have no length
                os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)
