"""Whether core-to-core latencies show nodes that the firmware hides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import polars as pl

from ...agent.contract import VERIFIED
from .. import core_groups, evidence
from .base import INCONCLUSIVE, REFUTED, SUPPORTED, Form, Judged, Untestable

if TYPE_CHECKING:
    from ...runs import Run

_METRIC = "core_latency"


class Groups(Form):
    """What is there: ``groups: hidden``: the firmware hides the host's nodes."""

    keys: ClassVar = ("groups",)

    groups: Literal["hidden"]

    def judged(self, run: Run, others: Sequence[Run]) -> Judged:
        """Return what a run says; or Untestable."""
        if not evidence.real(run, _METRIC, "ns"):
            raise Untestable("emulated-times")
        rows = run.measurements.filter(
            (pl.col("metric") == _METRIC)
            & (pl.col("grade") == VERIFIED)
            & pl.col("value").is_finite()
        )
        if rows.is_empty():
            raise Untestable("metric-not-measured", metric="core-to-core latency")
        cells = tuple(rows["cell"].unique().sort().to_list())
        found = core_groups.from_measurements(rows, run.host)
        verdict = {True: SUPPORTED, False: REFUTED, None: INCONCLUSIVE}[found.hidden_nodes]
        return Judged(verdict, str(found.evidence), cells)
