"""Changes to the host: recorded before they are made, and put back to what was recorded.

The record (every setting that the run will touch, with its value before, the values it will be
given, pid, boot id) is on disk before the first write, so that whoever survives can put things
back: the agent at a run's end, the guard when the agent was killed (guard.py), or a person with
``numalab restore`` when both were. A value that somebody else has set meanwhile is left alone and
said. After a reboot there is nothing to put back.

Names: those of sysctl(8) (``vm.zone_reclaim_mode``), ``thp.enabled`` and the like for files of
/sys/kernel/mm/transparent_hugepage, ``lru_gen.enabled`` for /sys/kernel/mm/lru_gen (the
multi-generational LRU; Documentation/admin-guide/mm/multigen_lru.rst).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from .. import SCHEMA
from ..errors import Fault
from . import journal, lock

# Writing one of these does something once; there is no value to put back.
ONE_WAY = ("vm.drop_caches", "vm.compact_memory")
_FOLDERS = {
    "thp": "sys/kernel/mm/transparent_hugepage",  # as state.py names them
    "lru_gen": "sys/kernel/mm/lru_gen",
}
_NAME = re.compile(r"[a-z][a-z0-9_-]*(\.[A-Za-z0-9_-]+)+\Z")
_BOOT_ID = "proc/sys/kernel/random/boot_id"


def _record_files() -> List[Path]:
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return [Path("/var/lib/numalab/changes.json"), Path(base) / "numalab" / "changes.json"]


def record_file() -> Path:
    """Return where the record lives: /var/lib/numalab for root, else the user's state folder."""
    of_root, of_user = _record_files()
    return of_root if os.access("/var/lib", os.W_OK) else of_user


def path_of(name: str, root: Path = Path("/")) -> Path:
    """Return the file of a setting; Fault for what is not a setting's name."""
    if not _NAME.match(name):
        raise Fault(
            f"{name!r} is not the name of a kernel setting",
            "name it like kernel.numa_balancing, thp.enabled or lru_gen.enabled",
        )
    first, _, rest = name.partition(".")
    if first in _FOLDERS:
        return root / _FOLDERS[first] / rest.replace(".", "/")
    return root / "proc/sys" / name.replace(".", "/")


def absent(name: str, root: Path = Path("/")) -> Optional[str]:
    """Return why a setting cannot be set on this host at all, None where its file is there."""
    path = path_of(name, root)
    return None if path.exists() else f"this kernel has no {name} (there is no {path})"


def same(name: str, wanted: str, now: str) -> bool:
    """Tell whether a setting that reads ``now`` is what was ``wanted``.

    Of lru_gen.enabled the kernel shows only the parts (bits) that the processor can do, and the
    first bit alone says whether it is on.
    """
    if " ".join(wanted.split()) == now:
        return True
    try:
        asked, found = int(wanted, 0), int(now, 0)
    except ValueError:
        return False
    if name == "lru_gen.enabled":
        return asked & 1 == found & 1 and not found & ~asked
    return asked == found


def _value(path: Path) -> str:
    text = path.read_text().strip()
    chosen = re.search(r"\[([^\]]*)\]", text)  # sysfs shows "always [madvise] never"
    return chosen.group(1) if chosen else " ".join(text.split())


def _boot_id(root: Path) -> Optional[str]:
    try:
        return (root / _BOOT_ID).read_text().strip()
    except OSError:
        return None


class HostChanges:
    """The changes of one run: ``record`` is the file that survives, ``copy`` one in the run.

    ``begin`` records, then ``enforce`` sets what each trial needs and ``meddled`` finds what
    somebody else changed; ``restore`` ends it.
    """

    def __init__(self, record: Path, copy: Optional[Path] = None, root: Path = Path("/")) -> None:
        self.record = record
        self.copy = copy
        self.root = root
        self.usual: Dict[str, str] = {}
        self._held: Dict[str, str] = {}  # what each setting read after we last touched it
        self._entries: List[Dict[str, Any]] = []

    def refuse(self, names: Sequence[str]) -> None:
        """Raise Fault when one of these settings does not exist here or may not be written."""
        missing = [why for why in (absent(name, self.root) for name in names) if why]
        if missing:
            raise Fault(
                f"nothing is measured: {'; '.join(missing)}",
                "take it out of the experiment's changes, or write its name with a ? at the end: "
                "then it is set where there is one",
            )
        barred = [
            f"{name} ({path_of(name, self.root)})"
            for name in names
            if not os.access(path_of(name, self.root), os.W_OK)
        ]
        if barred:
            raise Fault(
                f"nothing is measured: these settings may not be written: {', '.join(barred)}",
                "run as root, and in no container: there /proc/sys is read-only",
            )

    def announce(self, wanted: Dict[str, List[str]]) -> List[str]:
        """Return one sentence per setting that will be changed, before any is."""
        said = []
        for name, values in wanted.items():
            listed = " or ".join(values)
            if name in ONE_WAY:
                said.append(f"{name} = {listed} is about to be written; it cannot be undone")
            else:
                said.append(f"{name}: {self._read(name)} → {listed} for the time of this run")
        return said

    def _read(self, name: str) -> str:
        path = path_of(name, self.root)
        try:
            return _value(path)
        except OSError as error:
            raise Fault(
                f"{name} cannot be read ({path}: {error.strerror})",
                "this kernel may not have it; take it out of the experiment's changes",
            ) from None

    def read(self, names: Sequence[str]) -> Dict[str, str]:
        """Return the values of those settings that can be read; Fault when one cannot be."""
        return {name: self._read(name) for name in names if name not in ONE_WAY}

    def begin(self, wanted: Dict[str, List[str]], usual: Optional[Dict[str, str]] = None) -> None:
        """Record the value of every setting that will be changed; change nothing yet.

        ``wanted`` holds all values that each will be given. ``usual`` is what a setting has while
        a trial does not name it: by default its value now; a resumed run gives the values that it
        began with. What an earlier run left behind is put back first: its record holds the true
        values. Raises Fault when a setting cannot be read or the record cannot be written.
        """
        put_back(self.record, self.root)
        entries = []
        for name, values in wanted.items():
            entry = {"name": name, "values": list(values), "restored": None, "theirs": None}
            if name in ONE_WAY:
                entry.update(before=None, reason="it cannot be put back")
            else:
                before = self._read(name)
                self._held[name] = before
                self.usual[name] = (usual or {}).get(name, before)
                entry.update(before=before, reason=None)
                entry["values"].append(self.usual[name])
            entry["values"] = list(dict.fromkeys(entry["values"]))
            entries.append(entry)
        self._entries = entries
        if entries:
            self._write()

    def enforce(self, wanted: Dict[str, str]) -> Dict[str, str]:
        """Set every recorded setting for a trial that asks for ``wanted``; return what is in force.

        A setting that ``wanted`` does not name gets its usual value; one that can only be written
        is written when it is named. Raises Fault when the kernel refuses a value.
        """
        self._note_theirs()
        for entry in self._entries:
            name = entry["name"]
            if name in ONE_WAY:
                continue
            value = wanted.get(name, self.usual[name])
            if not same(name, value, self._held[name]):
                self._set(name, value)
                now = self._held[name] = self._read(name)
                if not same(name, value, now):
                    raise Fault(f"{name} was set to {value} and reads {now}")
        for name in ONE_WAY:
            if name in wanted:
                os.sync()  # what is not written yet cannot be dropped
                self._set(name, wanted[name])
        once = {name: wanted[name] for name in ONE_WAY if name in wanted}
        return {**self._held, **once}

    def meddled(self) -> List[str]:
        """Return one sentence for each setting that is not as the last ``enforce`` left it.

        Its new value is somebody else's, and is what will be there in the end.
        """
        return self._note_theirs()

    def _note_theirs(self) -> List[str]:
        said = []
        for entry in self._entries:
            name = entry["name"]
            if name in ONE_WAY:
                continue
            now, held = self._read(name), self._held[name]
            if now != held:
                said.append(f"somebody else set {name} from {held} to {now} meanwhile")
                entry["theirs"] = self._held[name] = now
        if said:
            self._write()
        return said

    def _write(self) -> None:
        data = {
            "schema": SCHEMA,
            "boot_id": _boot_id(self.root),
            "pid": os.getpid(),
            "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "copy": str(self.copy) if self.copy else None,
            "changes": self._entries,
        }
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
        path = path_of(name, self.root)
        try:
            path.write_text(value + "\n")
        except OSError as error:
            raise Fault(
                f"{name} cannot be set to {value} ({path}: {error.strerror})",
                "run as root"
                if isinstance(error, PermissionError)
                else "is that a value that this kernel takes?",
            ) from None

    def restore(self) -> List[Dict[str, Any]]:
        """Put everything back; return the changes, each with ``restored`` and ``reason``."""
        with contextlib.suppress(Fault):  # what cannot be read cannot be told from ours
            self._note_theirs()
        self._entries = []
        return put_back(self.record, self.root)["changes"]


def pending(record: Path) -> Optional[Dict[str, Any]]:
    """Return what an earlier run recorded and nobody has put back yet, or None.

    Raises Fault when the record cannot be read, and when it is another user's: whoever may write
    it could have root write any value into any setting.
    """
    try:
        descriptor = os.open(str(record), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Fault(f"{record} cannot be read: {error.strerror}", "run as root") from None
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
        owner = os.fstat(file.fileno()).st_uid
        if owner not in (0, os.geteuid()):
            raise Fault(
                f"{record} belongs to user {owner}: what it says is not followed",
                "run `numalab restore` as that user, or remove the file",
            )
        try:
            data = json.load(file)
        except ValueError as error:
            raise Fault(
                f"{record} cannot be read: {error}",
                "it says which settings a run changed: look at them, then remove it",
            ) from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise Fault(f"{record} is not a record of this version's", "use the numalab that wrote it")
    return data


def _for_the_run(data: Dict[str, Any]) -> Dict[str, Any]:
    """Return a record without the path of its copy: runs are published, and it names a home."""
    return {key: value for key, value in data.items() if key != "copy"}


def put_back(record: Path, root: Path = Path("/")) -> Dict[str, Any]:
    """Put back the recorded values and remove the record.

    Returns {"rebooted": bool, "changes": [...]}, each change with ``restored`` true, or false
    and a ``reason``. A change that could not be put back keeps the record in place: Fault.
    """
    left = pending(record)
    if left is None:
        return {"rebooted": False, "changes": []}
    rebooted = left["boot_id"] != _boot_id(root)
    failed = []
    for entry in left["changes"]:
        if entry["before"] is None:
            entry["restored"] = False
        elif rebooted:
            entry.update(restored=False, reason="the host was rebooted since: nothing to put back")
        else:
            problem = _put_back_one(entry, root)
            if problem:
                failed.append(problem)
    if left.get("copy"):
        copy = Path(left["copy"])
        if copy.parent.is_dir():
            # A full disk must not keep the host changed.
            with contextlib.suppress(OSError, Fault):
                journal.write_json(copy, _for_the_run(left))
    if failed:
        raise Fault("; ".join(failed), "run `numalab restore` as root")
    record.unlink()
    with contextlib.suppress(OSError):  # where others keep things in it
        record.parent.rmdir()
    return {"rebooted": rebooted, "changes": left["changes"]}


def _put_back_one(entry: Dict[str, Any], root: Path) -> Optional[str]:
    name, theirs = entry["name"], entry.get("theirs")
    path = path_of(name, root)  # never a path from the file
    target = entry["before"] if theirs is None else theirs
    try:
        now = _value(path)
        if now != target:
            ours = [*(entry.get("values") or [entry.get("value", "")]), entry["before"]]
            if any(same(name, value, now) for value in ours):
                path.write_text(target + "\n")
            else:
                theirs = now
        entry["restored"] = theirs is None
        if theirs is not None:
            entry["reason"] = f"somebody else set it to {theirs} since: left as it is"
    except OSError as error:
        entry.update(restored=False, reason=f"{path}: {error.strerror}")
        return f"{name} could not be put back to {target} ({path}: {error.strerror})"
    return None


def restore() -> List[str]:
    """Put back what any earlier run left on this host; return what was done, in sentences.

    [] when there was nothing to do. Raises Fault while a measurement runs: it needs its settings.
    """
    said = []
    with lock.measurement():
        for record in _record_files():
            done = put_back(record)
            if done["rebooted"]:
                said.append("the host was rebooted since it was changed: nothing to put back")
                continue
            for entry in done["changes"]:
                if entry["restored"]:
                    said.append(f"{entry['name']} is {entry['before']} again")
                else:
                    said.append(f"{entry['name']}: {entry['reason']}")
    return said
