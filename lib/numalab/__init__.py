"""numalab: what NUMA binding does to real software, measured, proven and published.

A notebook needs one name of this package: ``numalab.experiment``.
"""

from __future__ import annotations

from typing import Any

from numalab.agent import VERSION as __version__

__all__ = ["__version__", "experiment"]


def __getattr__(name: str) -> Any:
    # Polars and matplotlib are loaded by the first notebook call, not by every command.
    if name == "experiment":
        from numalab.show.view import experiment

        return experiment
    raise AttributeError(f"module 'numalab' has no attribute {name!r}")
