"""The one border between polars and pandas.

seaborn 0.13 takes pandas frames, or objects with ``__dataframe__``, which polars 2 no longer
has. Everything that calls seaborn converts here and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    import pandas as pd


def to_pandas(frame: pl.DataFrame) -> pd.DataFrame:
    """Return the same rows as a pandas frame: nulls become NaN, the column order stays.

    Raises TypeError for anything that is not a polars DataFrame (a LazyFrame: collect it first).
    """
    if not isinstance(frame, pl.DataFrame):
        raise TypeError(f"a polars DataFrame is needed here, not {type(frame).__name__}")
    return frame.to_pandas()
