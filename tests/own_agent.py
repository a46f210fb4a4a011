"""The agent's archive with a lock of each folder's own: tests do not wait for each other."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from numalab import agent_archive

_SHIPPED = b'LOCK = "numalab-measure"\n'
# It measures into .../SESSION, its last argument.
_LOCK = """
import hashlib, os, sys
LOCK = "test-" + hashlib.md5(os.path.dirname(sys.argv[-1]).encode()).hexdigest()[:12]
"""


def build(folder: Path) -> Path:
    """Return the archive, made in a folder."""
    plain = agent_archive.build(folder / "plain.pyz")
    own = folder / "own.pyz"
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(own, "w") as target:
        for entry in source.infolist():
            data = source.read(entry)
            if entry.filename == "numalab/agent/trial/lock.py":
                assert _SHIPPED in data
                data = data.replace(_SHIPPED, _LOCK.encode())
            target.writestr(entry, data)
    return own


def lock_of(folder: Path) -> str:
    """Return the name of the lock of what measures into a folder."""
    names: dict = {}
    before, sys.argv = sys.argv, ["agent", f"{folder}/SESSION"]
    try:
        exec(_LOCK, names)
    finally:
        sys.argv = before
    return names["LOCK"]
