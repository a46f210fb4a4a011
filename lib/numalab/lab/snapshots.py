"""Snapshots of emulated hosts with configured timing: booted once, loaded afterwards.

A snapshot is a folder of the cache, ``snapshots/NAME-DIGEST``: ``disk`` and ``state`` (QEMU's
migration stream) of one moment, when ssh worked and the memory model had not run yet. The digest is
that of all that the guest was started from. The memory model is not in it: hosts that differ in
their timing only share one. Of its clocks QEMU keeps how far they were, so that the guest's go on
from there; their speed is that of this machine's counter, which ``guests`` compares.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from numalab.agent.errors import Fault

from . import image, qemu, tools
from .hosts import Host

_SPEED = 1 << 40  # bytes a second; QEMU's own limit is for networks
_NOWHERE = Path("/PLACE")


def digest(host: Host, wiring: qemu.Wiring) -> str:
    """Return what tells snapshots apart: a hash of the QEMU program, image, key and machine."""
    placeless = wiring._replace(
        disk=_NOWHERE, console=_NOWHERE, counters=_NOWHERE, port=0, monitor=False, state=None
    )
    words = qemu.argv(host.model_copy(update={"name": ""}), placeless)
    at = words.index("-plugin")
    words[at + 1] = str(wiring.timing)
    found = hashlib.sha256(json.dumps(words).encode())
    program = tools.find(qemu.PROGRAMS[host.arch])
    if program:
        found.update(Path(program).read_bytes())
    return found.hexdigest()[:16]


def folder() -> Path:
    """Return where snapshots are."""
    return image.cache() / "snapshots"


def find(mark: str) -> Path | None:
    """Return the snapshot of a digest, None where there is none."""
    return next(folder().glob(f"*-{mark}"), None)


def save(child: subprocess.Popen[bytes], disk: Path, name: str, mark: str) -> Path:
    """End a guest whose monitor is on its standard input and output, and keep what it was.

    Its disk moves there. Returns the snapshot's folder; raises Fault when QEMU cannot save it.
    """
    made = folder() / f"{name}-{mark}"
    part = folder() / f".{made.name}"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        _ask(child, "qmp_capabilities")
        _ask(child, "migrate-set-parameters", {"max-bandwidth": _SPEED})
        _ask(child, "migrate", {"uri": f"exec:cat >{shlex.quote(str(part / 'state'))}"})
        while (answer := _ask(child, "query-migrate"))["status"] != "completed":
            if answer["status"] in ("failed", "cancelled"):
                _fail(answer.get("error-desc", answer["status"]))
            time.sleep(0.1)
        _ask(child, "quit")
        child.wait()
        disk.rename(part / "disk")
        remove_unused(f"{name}-{'[0-9a-f]' * 16}")  # of other images, keys, QEMUs
        part.rename(made)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return made


def remove_unused(name: str) -> None:
    """Remove snapshots, by their folders' names (a pattern), that no guest's disk is based on."""
    used = {path.read_text() for path in (image.cache() / "guests").glob("*/snapshot")}
    for path in folder().glob(name):
        if path.name not in used:
            shutil.rmtree(path, ignore_errors=True)


def _ask(child: subprocess.Popen[bytes], command: str, given: dict[str, Any] | None = None) -> Any:
    """Ask QEMU's monitor (docs/interop/qmp-spec: JSON, a line each); return what it answers."""
    assert child.stdin and child.stdout
    with suppress(BrokenPipeError):
        order = json.dumps({"execute": command, "arguments": given or {}})
        child.stdin.write(order.encode() + b"\n")
        child.stdin.flush()
    for line in child.stdout:
        answer = json.loads(line)
        if "error" in answer:
            _fail(answer["error"]["desc"])
        if "return" in answer:  # else it is the greeting, or an event
            return answer["return"]
    _fail("QEMU ended")


def _fail(why: str) -> NoReturn:
    raise Fault(f"no snapshot could be made: {why}", f"is there room in {folder()}?")
