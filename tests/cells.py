"""A hand-made cell of a plan, for tests that need no more of it than its CPUs."""

from __future__ import annotations

from typing import Any, Optional

from numalab.agent.contract import (
    Cell,
    CpuExpectation,
    Expectation,
    MemoryExpectation,
    MemoryPolicy,
)


def cell(cpus: Optional[str] = None, **fields: Any) -> Cell:
    """Return a cell on these CPUs (None: unbound) that expects nothing of memory."""
    expects = Expectation(MemoryExpectation("none"), CpuExpectation("outcome"))
    return Cell(cpus, "0", MemoryPolicy("default"), expects, **fields)
