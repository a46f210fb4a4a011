"""Numbers and polars frames as text: Markdown tables for notebooks and the article."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import polars as pl

from numalab import escape
from numalab.agent.errors import Fault

MISSING = "–"
Source = str | tuple[str, str, str]
_CAPITALS = frozenset({"cpu", "gc", "ipc", "jit", "tlb"})


_NAMES = {  # where the words of the name alone say little
    "home_share": "share on the CPUs' own node",
    "huge_share": "share in huge pages",
    "uneven_share": "distance from an even share",
}


def plain(metric: str) -> str:
    """Return a metric's name for people: ``idle_latency`` is idle latency, ``ipc`` IPC.

    Of a server that was asked as fast as it answers, ``saturation_…`` is … when saturated.
    """
    if metric.startswith("saturation_"):
        return f"{plain(metric.removeprefix('saturation_'))} when saturated"
    words = " ".join(word.upper() if word in _CAPITALS else word for word in metric.split("_"))
    return _NAMES.get(metric, words)


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with at least ``digits`` significant figures and thousands separators.

    The digits before the point are never rounded away: 123456 stays 123,456. Null and NaN are
    shown as a dash, never as 0.
    """
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    # Rounding may carry into a new digit (9.996 is 10.0 in three figures), so round first.
    exponent = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    if exponent < -4:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def interval(value: float | None, low: float | None, high: float | None, digits: int = 3) -> str:
    """Return ``0.65 [0.63, 0.66]``: as many decimals as the interval's half width makes sensible.

    One significant figure of the half width, but never fewer than two decimals' worth below 10
    nor more than ``digits + 2`` figures; without an interval the value alone, to ``digits``
    significant figures.
    """
    if value is None or low is None or high is None or not all(map(math.isfinite, (low, high))):
        return number(value, digits)
    half = (high - low) / 2
    scale = max(abs(value), abs(low), abs(high))
    if half <= 0 or scale == 0:
        return f"{number(value, digits)} [{number(low, digits)}, {number(high, digits)}]"
    most = digits + 1 - math.floor(math.log10(scale))
    least = 2 if abs(value) < 10 else 0  # also where an end is far away: 0.05 is not 0
    decimals = max(0, min(most, max(least, -math.floor(math.log10(half)))))
    return f"{value:,.{decimals}f} [{low:,.{decimals}f}, {high:,.{decimals}f}]"


def change(ratio: float | None, low: float | None, high: float | None) -> str:
    """Return a ratio as a change in per cent with its interval: ``+38 % [+31, +46]``.

    Below 10 % with a decimal; a change by more than ten times is told as a ratio.
    """
    if ratio is None or not 0.1 <= ratio <= 10:
        return f"×{interval(ratio, low, high)}"
    digits = 0 if abs(ratio - 1) >= 0.1 else 1
    said, *ends = (
        f"{100 * (one - 1):+.{digits}f}" for one in (ratio, low, high) if one is not None
    )
    return f"{said} %" + (f" [{', '.join(ends)}]" if len(ends) == 2 else "")


def of_rows(rows: Sequence[Mapping[str, Any]], marked: Collection[str] = ()) -> str:
    """Return records as a Markdown table, a column for each key of the first; see ``markdown``."""
    heads = {name: name for name in rows[0]}
    return markdown(pl.DataFrame(rows, infer_schema_length=None), heads, marked=marked)


def markdown(
    frame: pl.DataFrame,
    columns: Mapping[str, Source],
    digits: int = 3,
    marked: Collection[str] = (),
) -> str:
    """Return the frame as a Markdown pipe table, one line per row, in the frame's order.

    ``columns`` maps each heading (with its unit: ``"triad (GB/s)"``) to a column's name, or to
    (value, low, high), which becomes one cell ``0.65 [0.63, 0.66]``. Numbers stand to the right,
    whole numbers unchanged, others to ``digits`` significant figures; null is a dash. Texts are
    escaped, but not those under the headings ``marked``, which are Markdown already. Raises
    Fault for a column that the frame does not have.
    """
    wanted = [name for source in columns.values() for name in _names(source)]
    absent = sorted(set(wanted) - set(frame.columns))
    if absent:
        raise Fault(
            f"the table needs columns that the frame does not have: {', '.join(absent)}",
            f"it has: {', '.join(frame.columns)}",
        )
    rule = ["--:" if _is_numeric(frame, source) else ":--" for source in columns.values()]
    lines = [[escape.markdown(heading) for heading in columns], rule]
    for row in frame.iter_rows(named=True):
        lines.append(
            [_cell(row, source, digits, heading in marked) for heading, source in columns.items()]
        )
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def _names(source: Source) -> Sequence[str]:
    return (source,) if isinstance(source, str) else source


def _is_numeric(frame: pl.DataFrame, source: Source) -> bool:
    return frame.schema[_names(source)[0]].is_numeric()


def _cell(row: Mapping[str, Any], source: Source, digits: int, marked: bool) -> str:
    if not isinstance(source, str):
        value, low, high = (row[name] for name in source)
        return interval(value, low, high, digits)
    value = row[source]
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return number(value, digits)
    if value is None or value == "":
        return MISSING
    return str(value) if marked else escape.markdown(value)
