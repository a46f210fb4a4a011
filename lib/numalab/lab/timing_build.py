"""The memory model of emulated hosts, built by this machine's own compiler when it is needed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from numalab import home
from numalab.agent.errors import Fault

from . import image

_SOURCES = ("plugin", "config", "counters", "calendar", "model", "clock", "sync")
_FLAGS = ("-shared", "-fPIC", "-O2", "-fvisibility=hidden")


def library(say: image.Say) -> Path:
    """Return the library that QEMU preloads and loads as a plugin; built when it is not there.

    Raises Fault without a C compiler, or with what the compiler said.
    """
    folder = home.root() / "lab" / "timing"
    sources = [folder / f"{name}.c" for name in _SOURCES]
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    for path in (*sources, folder / "timing.h"):
        digest.update(path.read_bytes())
    made = image.cache() / "timing" / f"{digest.hexdigest()[:16]}.so"
    if made.is_file():
        return made
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise Fault(
            "a host with configured timing needs a C compiler on this machine", "apt install gcc"
        )
    say("building the memory model of emulated hosts")
    made.parent.mkdir(parents=True, exist_ok=True)
    part = made.with_suffix(f".{os.getpid()}")
    command = [compiler, *_FLAGS, "-o", str(part), *map(str, sources), "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        part.unlink(missing_ok=True)
        raise Fault(f"lab/timing was not built: {done.stderr.strip()[-500:]}", f"by: {compiler}")
    part.replace(made)
    return made
