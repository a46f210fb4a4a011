"""The options of a service with their values as numbers; totals divided among its instances."""

from __future__ import annotations

import math
from typing import Any, Dict, Mapping

from ...contract import Host, reason
from ...drivers import options as check
from ...errors import Fault, NotHere
from ..caches import FOUR_CACHES, four_caches
from ..driver import share
from .description import Option, Service

_WORDS = {"cpus": 1.0, "half-cpus": 0.5, "2x-cpus": 2.0, "4x-cpus": 4.0}
_TRUE = {True: "on", False: "off"}  # YAML reads a bare on as true


def resolved(
    service: Service, given: Mapping[str, Any], host: Host, instances: int
) -> Dict[str, Any]:
    """Return what each instance has of every option; Fault for a value that cannot be meant so.

    ``given`` has the values that take the place of the usual ones.
    """
    return {
        name: _value(name, option, given.get(name, option.value), host, instances)
        for name, option in service.options.items()
    }


def interleaves(service: Service, values: Mapping[str, Any]) -> bool:
    """Tell whether an option that interleaves memory by itself has another value than usually."""
    return any(one.interleaves and values[n] != one.value for n, one in service.options.items())


def word(value: Any) -> Any:
    """Return a value as an option has it: true and false as on and off."""
    return _TRUE[value] if isinstance(value, bool) else value


def _value(name: str, option: Option, given: Any, host: Host, instances: int) -> Any:
    given = word(given)
    if option.places_memory and given != option.value and len(host.memory_nodes) < 2:
        raise NotHere(reason("nothing-to-place", option=name, value=str(given)))
    if option.texts:
        return check.choice(name, str(given), sorted(option.texts))
    if isinstance(given, str) and isinstance(option.value, str) and not _is_number(option.value):
        return given
    number = amount(name, given, host, 1 if option.total else instances)
    if not option.total:
        return number
    if isinstance(number, float):
        return number / instances
    if number < instances:
        raise Fault(f"{name}: {number} cannot be divided among {instances} instances")
    return number // instances


def amount(name: str, given: Any, host: Host, instances: int = 1) -> Any:
    """Return a number: itself, a size ("64MiB") in bytes, or a word for CPUs ("2x-cpus") or bytes

    ("4x-llc"). The CPUs are an instance's part of those that the host's servers may use.
    """
    if given == FOUR_CACHES:
        return four_caches(host) // instances
    if isinstance(given, str) and given in _WORDS:
        return max(1, int(_WORDS[given] * share(host, instances)))
    if isinstance(given, str):
        return check.size(name, given, least=0, also=f", or {', '.join(_WORDS)}")
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not math.isfinite(given):
        raise Fault(f"{name} {given!r} is not a number")
    return given


def need_bytes(service: Service, values: Mapping[str, Any]) -> int:
    """Return the memory of one instance: its options that say so, and what comes on top."""
    parts = [values.get(one, one) if isinstance(one, str) else one for one in service.memory]
    return sum(check.size("memory", part, least=0) for part in parts)


def _is_number(text: str) -> bool:
    if text in _WORDS or text == FOUR_CACHES:
        return True
    try:
        check.size("", text, least=0)
    except Fault:
        return False
    return True
