"""Rows of metrics, as the drivers and the collectors make them."""

from __future__ import annotations

from typing import Optional, Union

from .contract import Reason, Row, reason

Number = Union[int, float]


def row(
    metric: str,
    value: Optional[Number],
    unit: str,
    why: Union[Reason, str, None] = None,
    *,
    point: str = "",
    x: Optional[Number] = None,
    y: Optional[Number] = None,
    source: str = "tool",
) -> Row:
    """Return a metric's row, its numbers as floats.

    ``why`` says why there is no value (a code without fields may be its text); it is left out
    where there is one. Raises ValueError for a row that has neither.
    """
    if value is None and why is None:
        raise ValueError(f"{metric} has no value and no reason")
    if value is not None:
        why = None
    return Row(
        metric,
        None if value is None else float(value),
        unit,
        point,
        None if x is None else float(x),
        None if y is None else float(y),
        reason(why) if isinstance(why, str) else why,
        source,
    )
