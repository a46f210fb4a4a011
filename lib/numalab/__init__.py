"""numalab: what NUMA binding does to real software, measured, proven and published.

A notebook needs one name of this package: ``numalab.experiment``, ``numalab.open_run`` or, the
article's, ``numalab.article`` and ``numalab.survey``.
"""

from __future__ import annotations

from typing import Any

from numalab.agent import VERSION as __version__

__all__ = ["__version__", "article", "experiment", "open_run", "survey"]


def __getattr__(name: str) -> Any:
    # Polars and matplotlib are loaded by the first notebook call, not by every command.
    if name in ("experiment", "open_run"):
        from numalab.show import view

        return getattr(view, name)
    if name == "article":
        from numalab.show.article import article

        return article
    if name == "survey":
        from numalab.show.survey import Survey

        return Survey
    raise AttributeError(f"module 'numalab' has no attribute {name!r}")
