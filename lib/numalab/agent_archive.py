"""The agent as one file that any host with Python 3.9 can run (zipapp, PEP 441)."""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

from numalab.agent import compiled, probe
from numalab.agent.errors import Fault
from numalab.agent.paths import cache_folder
from numalab.agent.served import load

_START = (
    "import sys\n"
    "if sys.version_info < (3, 9):\n"
    "    sys.exit('numalab: this host has Python %d.%d, the agent needs 3.9 or newer'"
    " % sys.version_info[:2])\n"
    "from numalab.agent.__main__ import main\n"
    "sys.exit(main())\n"
)
ARCHITECTURES = ("aarch64", "x86_64")  # whose programs an archive may carry
PROGRAMS = (probe.PROGRAM, load.PROGRAM)
# Without libraries: it runs on any Linux of its architecture, whatever C library that has.
_STATIC = (*compiled.FLAGS, "-static", "-s", "-Wl,--build-id=none")
_WHEN = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can state


def build(path: Path) -> Path:
    """Write the agent to ``path`` as one executable file and return it.

    It holds ``numalab/agent/`` and nothing of the other half, and PROGRAMS for each of
    ARCHITECTURES that there is a compiler for here. The same sources and compilers give the same
    bytes. Raises Fault where there is no such folder.
    """
    if not path.parent.is_dir():
        raise Fault(f"there is no folder {path.parent}", "make it, or name another place")
    members = {"__main__.py": _START.encode(), "numalab/__init__.py": b""}
    package = Path(__file__).parent
    for source in (package / "agent").rglob("*"):
        name = source.relative_to(package.parent).as_posix()
        if source.is_file() and "__pycache__" not in name and "/." not in name:
            members[name] = source.read_bytes()
    for arch, program in itertools.product(ARCHITECTURES, PROGRAMS):
        made = _made(program, arch)
        if made:
            members[_member(program, arch)] = made
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


def carried(path: Path) -> list[str]:
    """Return the architectures whose programs an archive carries."""
    names = zipfile.ZipFile(path).namelist()
    return [a for a in ARCHITECTURES if all(_member(one, a) in names for one in PROGRAMS)]


def _member(program: compiled.Program, arch: str) -> str:
    return f"{program.package.replace('.', '/')}/{compiled.CARRIED}-{arch}"


def _made(program: compiled.Program, arch: str) -> bytes | None:
    """Return a program of an architecture, made once; None where no compiler here makes it."""
    compiler = "cc" if arch == platform.machine() else f"{arch}-linux-gnu-gcc"
    if not shutil.which(compiler):
        return None
    version = subprocess.run([compiler, "--version"], capture_output=True).stdout
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{program.name}-", dir=folder) as work:
            compiled.write_sources(program, work)
            digest = hashlib.sha256(version + repr((compiler, _STATIC)).encode())
            files = sorted(Path(work).iterdir())
            for file in files:
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
            made = folder / f"numalab-{program.name}-for-{arch}-{digest.hexdigest()[:16]}"
            if not made.is_file():
                names = [file.name for file in files if file.suffix == ".c"]
                done = subprocess.run(
                    [compiler, *_STATIC, *names, "-o", "program"], cwd=work, capture_output=True
                )
                if done.returncode:  # no static C library, for one
                    return None
                os.replace(Path(work) / "program", made)
            return made.read_bytes()
    except OSError:
        return None
