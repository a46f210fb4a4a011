"""The agent as one file that any host with Python 3.9 can run (zipapp, PEP 441)."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

_START = (
    "import sys\n"
    "if sys.version_info < (3, 9):\n"
    "    sys.exit('numalab: this host has Python %d.%d, the agent needs 3.9 or newer'"
    " % sys.version_info[:2])\n"
    "from numalab.agent.__main__ import main\n"
    "sys.exit(main())\n"
)
_WHEN = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can state


def build(path: Path) -> Path:
    """Write the agent to ``path`` as one executable file and return it.

    It holds ``numalab/agent/`` and nothing of the other half. The same sources give the same
    bytes.
    """
    members = {"__main__.py": _START.encode(), "numalab/__init__.py": b""}
    package = Path(__file__).parent
    for source in (package / "agent").rglob("*"):
        name = source.relative_to(package.parent).as_posix()
        if source.is_file() and "__pycache__" not in name and "/." not in name:
            members[name] = source.read_bytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    with open(temporary, "wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(members):
                entry = zipfile.ZipInfo(name, _WHEN)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, members[name])
    os.chmod(temporary, 0o755)
    temporary.replace(path)
    return path
