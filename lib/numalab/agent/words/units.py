"""Numbers for a reader: bytes, shares, lengths of time, counts with their noun."""

from __future__ import annotations

from typing import Union

Number = Union[int, float]


def size(number: Number) -> str:
    """Return bytes in binary units: 512 KiB, 1.2 GiB."""
    value = float(number)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if abs(value) >= 100 or unit == "bytes" else f"{value:.1f} {unit}"


def percent(share: Number) -> str:
    """Return a share of 1 in percent: 2.5 %, less than 0.1 %."""
    value = 100 * share
    return "less than 0.1 %" if 0 < value < 0.1 else f"{value:.3g} %"


def seconds(number: Number) -> str:
    """Return a length of time: 45 s, 11 min, 1 h 20 min, 2 d 3 h."""
    whole = max(0, round(number))
    if whole < 100:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    days, hours = divmod(round(whole / 3600), 24)
    return f"{days} d" + (f" {hours} h" if hours else "")


def count(number: Number, noun: str) -> str:
    """Return a count with its noun: 1 block, 1,140 trials."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def listed(noun: str, numbers: str) -> str:
    """Return a list in the kernel's format after its noun: node 0, nodes 0-1, CPUs 0,4."""
    return f"{noun}{'' if numbers.isdecimal() else 's'} {numbers}"
