"""Small C programs of the agent's own: one that its archive carries, else compiled on the host.

The archive carries programs without libraries, for any processor of their architecture, when it
was made where there were compilers for them (``numalab.agent_archive``). One that does not run here
is passed over. Every such program answers ``--self-test`` with status 0 when it works.
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
from typing import Callable, List, NamedTuple, Optional, Tuple

from . import kernel
from .contract import ToolRecord
from .drivers.options import answer
from .errors import Fault
from .paths import cache_folder, here

FLAGS = ("-std=gnu11", "-O3", "-Wall", "-Wextra", "-pthread")
_NATIVE = ("-march=native", "-mcpu=native", None)  # the first that gives a working program
CARRIED = "carried"  # in the name of a program that an archive carries, and of its copies
_BUILD_LIMIT_S = 1200  # emulated hosts need a minute; loaded ones many


class Program(NamedTuple):
    """A program: its name, the package that holds its sources, and all of these (.c and .h)."""

    name: str
    package: str
    sources: Tuple[str, ...]

    @property
    def variable(self) -> str:
        """The environment's variable that names one built elsewhere."""
        return f"NUMALAB_{self.name.upper()}"


def find(program: Program, named: Optional[str] = None) -> ToolRecord:
    """Return a program's path and version; it is built when that has not been done yet.

    One that is there already is used when ``named``, or the environment's variable, names it.
    Raises Fault when that is another program, there is no compiler, or compiling fails.
    """
    named = named or os.environ.get(program.variable)
    path = here(named) if named else build(program)
    said = answer(path, "--version").split()
    if said[:2] != ["numalab", program.name] or len(said) != 3:
        raise Fault(f"{path} is not numalab's {program.name}", f"unset {program.variable}")
    facts = {"sha256": hashlib.sha256(kernel.read_bytes(path)).hexdigest()}
    made = CARRIED if CARRIED in os.path.basename(path) else "compiled here"
    facts["made"] = "named" if named else made
    return ToolRecord(program.name, said[2], os.path.abspath(path), facts=facts)


def build(program: Program, folder: Optional[str] = None) -> str:
    """Put a program for this host into a folder (the cache's), once, and return its path.

    Its place is named by a hash: of the program that the archive carries; else of the sources, the
    compiler and its flags, and the processor (the program is made for it). Raises Fault: no
    compiler, the first errors, no place to write.
    """
    folder = folder or str(cache_folder())
    begins = os.path.join(folder, f"numalab-{program.name}")
    carried = _carried(program)
    if carried:
        digest = hashlib.sha256(carried)
        path = f"{begins}-{CARRIED}-{digest.hexdigest()[:16]}"
        if _placed(program, path, lambda work: _unpack(carried, work)):
            return path
    command, version = compiler(program)
    digest = hashlib.sha256()
    for part in (version, " ".join(FLAGS), repr(_NATIVE), _processor()):
        digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
    for name in program.sources:
        digest.update(name.encode() + b"\0" + _source(program, name))
    path = f"{begins}-{digest.hexdigest()[:16]}"
    _placed(program, path, lambda work: _compile(program, command, work))
    return path


def _placed(program: Program, path: str, make: Callable[[str], bool]) -> bool:
    """Let ``make`` put the file ``program`` into a folder; tell whether ``path`` is it now."""
    if os.access(path, os.X_OK):
        return True
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{program.name}-", dir=folder) as work:
            if not make(work):
                return False
            os.replace(os.path.join(work, "program"), path)
    except OSError as error:
        raise Fault(
            f"numalab-{program.name} cannot be built in {folder}: {error.strerror or error}",
            "set XDG_CACHE_HOME to a folder that can be written and executed from",
        ) from None
    return True


def _carried(program: Program) -> Optional[bytes]:
    """Return the program that the archive has for this machine, None without one."""
    try:
        return pkgutil.get_data(program.package, f"{CARRIED}-{platform.machine()}")
    except OSError:
        return None


def _unpack(carried: bytes, work: str) -> bool:
    """Write a program that the archive carries; tell whether it runs here."""
    path = Path(work) / "program"
    path.write_bytes(carried)
    path.chmod(0o755)
    try:
        return not _what_fails(["./program", "--self-test"], work)
    except OSError:  # not a program of this machine's
        return False


def write_sources(program: Program, folder: str) -> None:
    """Write a program's source files into a folder."""
    for name in program.sources:
        (Path(folder) / name).write_bytes(_source(program, name))


def _source(program: Program, name: str) -> bytes:
    data = pkgutil.get_data(program.package, name)
    if data is None:
        raise Fault(
            f"a source of numalab-{program.name} is missing: {name}", "install numalab anew"
        )
    return data


def compiler(program: Program) -> Tuple[List[str], str]:
    """Return the compiler's command and its version: $CC, else the first of cc, gcc, clang.

    Raises Fault where ``program`` cannot be built for want of one.
    """
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
        what or f"there is no C compiler, which numalab-{program.name} needs",
        "install one: apt install gcc libc6-dev (Debian, Ubuntu), dnf install gcc (RHEL, Fedora, "
        "openEuler), zypper install gcc (SUSE), pacman -S gcc (Arch), apk add gcc musl-dev "
        f"(Alpine); or name one built elsewhere by {program.variable}",
    )


def _processor() -> str:
    """Return what tells this processor from others that cannot run its programs."""
    first = (kernel.read_text("/proc/cpuinfo") or "").partition("\n\n")[0]
    wanted = r"^(?:vendor_id|model name|cpu family|model|flags|Features|CPU .*|isa)\s*:.*$"
    return "\n".join([platform.machine(), *re.findall(wanted, first, re.MULTILINE)])


def _compile(program: Program, command: List[str], work: str) -> bool:
    write_sources(program, work)
    files = [name for name in program.sources if name.endswith(".c")]
    wrong = ""
    for native in _NATIVE:
        flags = [*FLAGS, native] if native else [*FLAGS]
        now_wrong = _what_fails([*command, *flags, *files, "-o", "program"], work) or _what_fails(
            ["./program", "--self-test"], work
        )
        if not now_wrong:
            return True
        wrong = now_wrong
    raise Fault(
        f"numalab-{program.name} cannot be built by {' '.join(command)}: {wrong}",
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
