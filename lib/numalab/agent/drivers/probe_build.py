"""The probe's program: one that the agent's archive carries, else compiled by the host's compiler.

The archive carries probes without libraries, for any processor of their architecture, when it was
made where there were compilers for them (``numalab.agent_archive``). One that does not run here is
passed over.
"""

from __future__ import annotations

import hashlib
import os
import pkgutil
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Callable, List, Optional, Tuple

from .. import kernel
from ..errors import Fault

SOURCES = (
    "arch.h", "probe.h", "allocate.c", "bandwidth.c", "core_to_core.c", "fill.c", "json.c",
    "latency.c", "loaded.c", "main.c", "memory.c", "options.c", "selftest.c", "stream.c", "team.c",
    "traffic.c",
)  # fmt: skip
FLAGS = ("-std=gnu11", "-O3", "-Wall", "-Wextra", "-pthread")
_NATIVE = ("-march=native", "-mcpu=native", None)  # the first that gives a working program
_PACKAGE = f"{__package__.rsplit('.', 1)[0]}.probe"
CARRIED = "carried"  # in the name of a program that an archive carries, and of its copies
_BUILD_LIMIT_S = 1200  # emulated hosts need a minute; loaded ones many


def cache_folder() -> str:
    """Return the folder of compiled probes: under XDG_CACHE_HOME, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "numalab")


def build(folder: str) -> str:
    """Put the probe for this host into a folder, once, and return the program's path.

    Its place is named by a hash: of the program that the archive carries; else of the sources, the
    compiler and its flags, and the processor (the program is made for it). Raises Fault: no
    compiler, the first errors, no place to write.
    """
    carried = _carried()
    if carried:
        digest = hashlib.sha256(carried)
        program = os.path.join(folder, f"numalab-probe-{CARRIED}-{digest.hexdigest()[:16]}")
        if _placed(program, lambda work: _unpack(carried, work)):
            return program
    compiler, version = _compiler()
    sources = {name: _source(name) for name in SOURCES}
    digest = hashlib.sha256()
    for part in (version, " ".join(FLAGS), repr(_NATIVE), _processor()):
        digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
    for name, text in sources.items():
        digest.update(name.encode() + b"\0" + text)
    program = os.path.join(folder, f"numalab-probe-{digest.hexdigest()[:16]}")
    _placed(program, lambda work: _compile(compiler, work))
    return program


def _placed(program: str, make: Callable[[str], bool]) -> bool:
    """Let ``make`` put the file ``probe`` into a folder; tell whether ``program`` is it now."""
    if os.access(program, os.X_OK):
        return True
    folder = os.path.dirname(program)
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".probe-", dir=folder) as work:
            if not make(work):
                return False
            os.replace(os.path.join(work, "probe"), program)
    except OSError as error:
        raise Fault(
            f"the probe cannot be built in {folder}: {error.strerror or error}",
            "set XDG_CACHE_HOME to a folder that can be written and executed from",
        ) from None
    return True


def _carried() -> Optional[bytes]:
    """Return the program that the archive has for this machine, None without one."""
    try:
        return pkgutil.get_data(_PACKAGE, f"{CARRIED}-{platform.machine()}")
    except OSError:
        return None


def _unpack(carried: bytes, work: str) -> bool:
    """Write a program that the archive carries; tell whether it runs here."""
    path = Path(work) / "probe"
    path.write_bytes(carried)
    path.chmod(0o755)
    try:
        return not _what_fails(["./probe", "--self-test"], work)
    except OSError:  # not a program of this machine's
        return False


def write_sources(folder: str) -> None:
    """Write the probe's source files into a folder."""
    for name in SOURCES:
        (Path(folder) / name).write_bytes(_source(name))


def _source(name: str) -> bytes:
    data = pkgutil.get_data(_PACKAGE, name)
    if data is None:
        raise Fault(f"the source {name} of the probe is missing", "install numalab anew")
    return data


def _compiler() -> Tuple[List[str], str]:
    """Return the compiler's command and its version: $CC, else the first of cc, gcc, clang."""
    asked = os.environ.get("CC", "").split()
    for command in [asked] if asked else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            try:
                done = subprocess.run(
                    [*command, "--version"], capture_output=True, timeout=60, check=True
                )
            except (OSError, subprocess.SubprocessError):
                continue
            return command, done.stdout.decode("utf-8", "replace")
    what = f"the compiler {' '.join(asked)} (from CC) does not run" if asked else None
    raise Fault(
        what or "there is no C compiler, which the probe needs",
        "install one: apt install gcc libc6-dev (Debian, Ubuntu), dnf install gcc (RHEL, Fedora, "
        "openEuler), zypper install gcc (SUSE), pacman -S gcc (Arch), apk add gcc musl-dev "
        "(Alpine); or name a probe built elsewhere by NUMALAB_PROBE",
    )


def _processor() -> str:
    """Return what tells this processor from others that cannot run its programs."""
    first = (kernel.read_text("/proc/cpuinfo") or "").partition("\n\n")[0]
    wanted = r"^(?:vendor_id|model name|cpu family|model|flags|Features|CPU .*|isa)\s*:.*$"
    return "\n".join([platform.machine(), *re.findall(wanted, first, re.MULTILINE)])


def _compile(compiler: List[str], work: str) -> bool:
    write_sources(work)
    files = [name for name in SOURCES if name.endswith(".c")]
    wrong = ""
    for native in _NATIVE:
        flags = [*FLAGS, native] if native else [*FLAGS]
        now_wrong = _what_fails([*compiler, *flags, *files, "-o", "probe"], work) or _what_fails(
            ["./probe", "--self-test"], work
        )
        if not now_wrong:
            return True
        wrong = now_wrong
    raise Fault(
        f"the probe cannot be built by {' '.join(compiler)}: {wrong}",
        "is the C library's development package installed (libc6-dev, glibc-devel)?",
    )


def _what_fails(command: List[str], work: str) -> str:
    """Run a command in a folder; return its first errors, or "" where it succeeds."""
    try:
        done = subprocess.run(
            command, cwd=work, env={**os.environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_BUILD_LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Fault(f"{command[0]} took longer than {_BUILD_LIMIT_S} s") from None
    if not done.returncode:
        return ""
    said = done.stdout.decode("utf-8", "replace").splitlines()
    errors = [line for line in said if "error" in line] or said
    return " | ".join(errors[:3])[:400] or f"status {done.returncode}"
