"""Changes to the host: recorded before they are made, and put back to what was recorded.

The record (value before, value set, path, pid, boot id) is on disk before the first write, so
that whoever survives can put things back: the agent at a run's end, the guard when the agent was
killed (guard.py), or a person with ``numalab restore`` when both were. A value that somebody
else has set since is left alone and said. After a reboot there is nothing to put back.
"""

from __future__ import annotations

import contextlib
import os
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, List, Optional

from . import SCHEMA, journal, only_one
from .errors import Fault

# Writing one of these does something once; there is no value to put back.
ONE_WAY = ("vm.drop_caches", "vm.compact_memory")
_THP = "thp."  # as state.py names them
_NAME = re.compile(r"[a-z][a-z0-9_-]*(\.[A-Za-z0-9_-]+)+\Z")
_BOOT_ID = "proc/sys/kernel/random/boot_id"


def _record_files() -> List[Path]:
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return [Path("/var/lib/numalab/changes.json"), Path(base) / "numalab" / "changes.json"]


def record_file() -> Path:
    """Return where the record lives: /var/lib/numalab for root, else the user's state folder."""
    of_root, of_user = _record_files()
    return of_root if os.access("/var/lib", os.W_OK) else of_user


def _path(name: str, root: Path) -> Path:
    if not _NAME.match(name):
        raise Fault(
            f"{name!r} is not the name of a kernel setting",
            "name it like kernel.numa_balancing or thp.enabled",
        )
    if name.startswith(_THP):
        return root / "sys/kernel/mm/transparent_hugepage" / name[len(_THP) :]
    return root / "proc/sys" / name.replace(".", "/")


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
    """The changes of one run: ``record`` is the file that survives, ``copy`` one in the run."""

    def __init__(self, record: Path, copy: Optional[Path] = None, root: Path = Path("/")) -> None:
        self.record = record
        self.copy = copy
        self.root = root

    def announce(self, wanted: Dict[str, str]) -> List[str]:
        """Return one sentence per change that will be made, before any is made."""
        said = []
        for name, value in wanted.items():
            path = _path(name, self.root)
            if name in ONE_WAY:
                said.append(f"{name} = {value} is about to be written; it cannot be undone")
            else:
                said.append(f"{name}: {self._read(name, path)} → {value} for the time of this run")
        return said

    def _read(self, name: str, path: Path) -> str:
        try:
            return _value(path)
        except OSError as error:
            raise Fault(
                f"{name} cannot be read ({path}: {error.strerror})",
                "this kernel may not have it; take it out of the experiment's changes",
            ) from None

    def apply(self, wanted: Dict[str, str]) -> None:
        """Record and make the changes; on any failure put back what was made and raise Fault.

        What an earlier run left behind is put back first: its record holds the true values.
        """
        if self.record.exists():
            put_back(self.record, self.root)
        entries: List[Dict[str, Any]] = []
        for name, value in wanted.items():
            path = _path(name, self.root)
            entry = {"name": name, "path": str(path), "value": value, "restored": None}
            if name in ONE_WAY:
                entry.update(before=None, reason="it cannot be put back")
            else:
                entry.update(before=self._read(name, path), reason=None)
            entries.append(entry)
        if not entries:
            return
        try:
            self.record.parent.mkdir(parents=True, exist_ok=True)
            self._write(entries)
            for entry in entries:
                self._set(entry)
        except BaseException:
            self.restore()
            raise

    def _write(self, entries: List[Dict[str, Any]]) -> None:
        data = {
            "schema": SCHEMA,
            "boot_id": _boot_id(self.root),
            "pid": os.getpid(),
            "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "copy": str(self.copy) if self.copy else None,
            "changes": entries,
        }
        try:
            journal.write_json(self.record, data)
            if self.copy:
                journal.write_json(self.copy, data)
        except OSError as error:
            raise Fault(
                f"the host is left as it is: {self.record} cannot be written ({error.strerror}), "
                "and no change is made without a record of the value before",
                "run as root",
            ) from None

    def _set(self, entry: Dict[str, Any]) -> None:
        path = Path(entry["path"])
        try:
            path.write_text(entry["value"] + "\n")
        except OSError as error:
            raise Fault(
                f"{entry['name']} cannot be set to {entry['value']} ({path}: {error.strerror})",
                "run as root"
                if isinstance(error, PermissionError)
                else "is that a value that this kernel takes?",
            ) from None
        if entry["name"] in ONE_WAY:
            return
        now = self._read(entry["name"], path)
        if now != entry["value"]:
            raise Fault(f"{entry['name']} was set to {entry['value']} and reads {now}")

    def restore(self) -> List[Dict[str, Any]]:
        """Put everything back; return the changes, each with ``restored`` and ``reason``."""
        return put_back(self.record, self.root)["changes"]


def pending(record: Path) -> Optional[Dict[str, Any]]:
    """Return what an earlier run recorded and nobody has put back yet, or None.

    Raises Fault when the record cannot be read.
    """
    return journal.read_json(record) if record.exists() else None


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
            problem = _put_back_one(entry)
            if problem:
                failed.append(problem)
    if left.get("copy"):
        copy = Path(left["copy"])
        if copy.parent.is_dir():
            # A full disk must not keep the host changed.
            with contextlib.suppress(OSError, Fault):
                journal.write_json(copy, left)
    if failed:
        raise Fault("; ".join(failed), "run `numalab restore` as root")
    record.unlink()
    with contextlib.suppress(OSError):  # where others keep things in it
        record.parent.rmdir()
    return {"rebooted": rebooted, "changes": left["changes"]}


def _put_back_one(entry: Dict[str, Any]) -> Optional[str]:
    path = Path(entry["path"])
    try:
        now = _value(path)
        if now == entry["before"]:
            entry["restored"] = True
        elif now != entry["value"]:
            entry.update(
                restored=False, reason=f"somebody else set it to {now} since: left as it is"
            )
        else:
            path.write_text(entry["before"] + "\n")
            entry["restored"] = True
    except OSError as error:
        entry.update(restored=False, reason=f"{path}: {error.strerror}")
        return (
            f"{entry['name']} could not be put back to {entry['before']} ({path}: {error.strerror})"
        )
    return None


def restore() -> List[str]:
    """Put back what any earlier run left on this host; return what was done, in sentences.

    [] when there was nothing to do. Raises Fault while a measurement runs: it needs its settings.
    """
    said = []
    with only_one.measurement():
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
