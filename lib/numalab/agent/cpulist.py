"""The kernel's list format for CPUs and nodes: ``0-3,8,10-11``.

Format: Documentation/admin-guide/kernel-parameters.rst, "cpu lists"; an empty string is the
empty set. On reading, strides are accepted too: the kernel's ``0-31:2/4`` (two of every four), and
``0-62:2`` (every second), which lscpu prints and taskset takes.
"""

from __future__ import annotations

import functools
import re
from typing import Iterable, List, Set, Tuple

from .errors import Fault

_N = r"(\d{1,9})"
_PART = re.compile(rf"{_N}(?:-{_N}(?::{_N}(?:/{_N})?)?)?\Z")
_HIGHEST = 1 << 14  # above any kernel's NR_CPUS: a typing error must not fill the memory


def parse(text: str) -> List[int]:
    """Return the numbers that a list names, ascending and without repeats.

    Raises Fault when the text is not in list format.
    """
    return list(_numbers(text))


@functools.lru_cache(maxsize=8192)  # a plan for 512 CPUs asks for the same few thousand lists
def _numbers(text: str) -> Tuple[int, ...]:
    numbers: Set[int] = set()
    named = 0
    for part in text.strip().split(","):
        part = part.strip()
        if not part:
            continue
        match = _PART.match(part)
        if not match:
            raise Fault(
                f"{text!r} is not a list of CPUs or nodes ({part!r} is neither number nor range)",
                "write it like 0-3,8",
            )
        first = int(match.group(1))
        last = int(match.group(2) or first)
        if last < first or last > _HIGHEST:
            raise Fault(
                f"{part!r} in {text!r} is not a range of CPUs or nodes", "write it like 0-3,8"
            )
        named += last - first + 1
        if named > 2 * _HIGHEST:
            raise Fault("a list of CPUs or nodes names more numbers than any host has")
        used, group = int(match.group(3) or 1), int(match.group(4) or 0)
        if not group:
            used, group = 1, used
        if not 0 < used <= group:
            raise Fault(f"{part!r} in {text!r} has an impossible stride", "write it like 0-31:2/4")
        numbers.update(n for n in range(first, last + 1) if (n - first) % group < used)
    return tuple(sorted(numbers))


def format(numbers: Iterable[int]) -> str:
    """Return the shortest list-format text of a set of numbers; "" for the empty set."""
    parts: List[str] = []
    run: List[int] = []
    for number in [*sorted(set(numbers)), None]:
        if run and number is not None and number == run[-1] + 1:
            run.append(number)
            continue
        if run:
            parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
        run = [] if number is None else [number]
    return ",".join(parts)


def brief(numbers: Iterable[int], room: int) -> str:
    """Return numbers as a list, or how many they are where that is longer than ``room``."""
    numbers = list(numbers)
    text = format(numbers)
    return text if len(text) <= room else f"{len(numbers)} CPUs"
