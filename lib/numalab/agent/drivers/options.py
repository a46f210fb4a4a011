"""What the drivers ask of their options and of the programs they run: one place for each check.

Every check returns the value or raises Fault, which says what may be written instead.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import Any, Iterable, List, Mapping, Optional, Sequence

from .. import cpulist, kernel
from ..contract import Cache, Host, reason
from ..errors import Fault

Options = Mapping[str, Any]  # of one tool, by name

MOST_THREADS = 65536
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|TiB|)\Z")
_ANSWER_LIMIT_S = 20
HIDDEN_CACHE = 256 << 20  # 4 x the largest system-level caches of Arm servers but a few (16-64 MiB)


def known(tool: str, options: Iterable[str], names: Iterable[str]) -> None:
    """Refuse an option that is not among ``names``."""
    unknown, names = sorted(set(options) - set(names)), sorted(names)
    if unknown:
        raise Fault(f"{tool} has no option {unknown[0]!r}", f"known: {', '.join(names)}")


def choice(name: str, value: Any, names: Sequence[str]) -> str:
    """Return one of some words."""
    if value not in names:
        raise Fault(f"{name} {value!r} is not known", f"known: {', '.join(names)}")
    return str(value)


def whole(name: str, value: Any, least: int, most: int = 2**31 - 1) -> int:
    """Return a whole number between two limits."""
    if type(value) is not int or not least <= value <= most:
        raise Fault(f"{name} {value!r} is not a whole number from {least} to {most}")
    return value


def flag(name: str, value: Any) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise Fault(f"{name} {value!r} is neither true nor false")
    return value


def seconds(name: str, value: Any, least: float = 0.001, most: float = 1e6) -> float:
    """Return a length of time in seconds."""
    if type(value) not in (int, float) or not least <= value <= most:
        raise Fault(
            f"{name} {value!r} is not a number of seconds from {least:g} to {most:g}",
            "write a number like 2 or 0.5",
        )
    return float(value)


def size(name: str, value: Any, least: int = 65536, also: str = "") -> int:
    """Return a size in bytes: a number of them, or a text like "64MiB".

    ``also`` is what else its driver understands, for the message.
    """
    match = _SIZE.match(value) if isinstance(value, str) else None
    number = float(match[1]) * _UNITS[match[2]] if match else value
    if type(number) not in (int, float) or not least <= number < 2**62:
        raise Fault(
            f"{name} {value!r} is not a size of at least {least} bytes",
            f"write a number of bytes or 64MiB{also}",
        )
    return int(number)


def several(name: str, value: Any) -> List[Any]:
    """Return a list of 1 to 64 values."""
    if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= 64:
        raise Fault(f"{name} {value!r} is not a list of 1 to 64 values", "write it like [0, 100]")
    return list(value)


def threads(value: Any, cpus: str, host: Host, one_a_cpu: bool = False) -> int:
    """Return a number of threads: a number, or "all" or "half" of the cell's CPUs.

    With ``one_a_cpu`` there cannot be more threads than CPUs.
    """
    count = len(cpulist.parse(cpus)) or host.threads
    named = {"all": count, "half": max(1, count // 2)}
    number = whole("threads", named.get(value, value) if isinstance(value, str) else value,
                   1, MOST_THREADS)  # fmt: skip
    if one_a_cpu and number > count:
        raise Fault(reason("too-many-threads", threads=number, cpus=count))
    return number


@dataclass(frozen=True)
class Caches:
    """What the data caches of some CPUs hold, in bytes; None where the kernel does not say.

    ``last`` is the sum of the last-level caches that they use, which STREAM's run rules ask for;
    ``outer`` that of all from the second level on, which is what can hold their data where the
    last level keeps no copy of the second (victim caches: AMD, Intel since Skylake-SP, Arm).
    ``hidden``: the last level that the kernel lists is the second or first and belongs to one
    core each, on a host with several. Behind it there may be one that it does not list: the
    system-level cache of Arm servers (Ampere Altra, Graviton, Neoverse meshes), the L3 that a
    hypervisor conceals.
    """

    last: Optional[int]
    outer: Optional[int]
    hidden: bool


def caches(host: Host, cpus: str) -> Caches:
    """Return the caches that these CPUs use ("": all that are allowed)."""
    wanted = set(cpulist.parse(cpus)) or set(cpulist.parse(host.allowed.cpus))
    data = [cache for cache in host.caches if cache.type != "Instruction"]
    level = max((cache.level for cache in data), default=0)
    used = [cache for cache in data if wanted & set(cpulist.parse(cache.cpus))]
    last = [cache for cache in used if cache.level == level]
    outer = [cache for cache in used if cache.level >= 2] or last
    hidden = level < 3 and _of_one_core_each(host, last)
    return Caches(_sum(last), _sum(outer) if _sum(last) else None, hidden)


def _of_one_core_each(host: Host, caches: Sequence[Cache]) -> bool:
    """Whether no two cores share one of these caches, on a host with several."""
    cores = {cpu.number: cpu.siblings or str(cpu.number) for cpu in host.cpus if cpu.online}
    sharing = [{cores[n] for n in cpulist.parse(one.cpus) if n in cores} for one in caches]
    return len(set(cores.values())) > 1 and all(len(its) == 1 for its in sharing)


def _sum(found: Sequence[Cache]) -> Optional[int]:
    sizes = [cache.size_bytes or 0 for cache in found]
    return sum(sizes) if sizes and all(sizes) else None


def answer(path: str, *words: str) -> str:
    """Return what a program prints on stdout and stderr; Fault where it does not run, or dies."""
    try:
        done = subprocess.run(
            [path, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", timeout=_ANSWER_LIMIT_S,
        )  # fmt: skip
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise Fault(f"{path} does not run: {error}", "install it anew, or name another") from None
    if done.returncode < 0:
        by = kernel.signal_name(-done.returncode)
        raise Fault(
            f"{path} {' '.join(words)} was killed by {by}",
            "install one that runs on this processor, or name another",
        )
    return done.stdout


def first_of(records: Sequence[Mapping[str, Any]], kind: str) -> Mapping[str, Any]:
    """Return the first record of a kind, which must be there."""
    return next(record for record in records if record["kind"] == kind)
