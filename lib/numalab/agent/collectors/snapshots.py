"""What the collectors share: reading a counter's file, and the pairs of two snapshots."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Sequence

from .. import kernel
from ..contract import reason
from ..errors import NotHere


def read(root: str, path: str) -> str:
    """Return the text of a file under a root; NotHere with the reason where it cannot be read."""
    full = os.path.join(root, path)
    try:
        return kernel.read(full)
    except OSError as error:
        raise NotHere(reason("counter-unreadable", path=full, error=error.strerror)) from None


def nodes(root: str = "/") -> List[int]:
    """Return the numbers of the host's nodes, ascending; NotHere where sysfs shows none."""
    found = kernel.list_nodes(root)
    if not found:
        raise NotHere(reason("no-nodes-in-sysfs"))
    return found


def pairs(before: Dict[str, Any], after: Dict[str, Any]) -> Dict[str, Any]:
    """Return what both snapshots hold, each value as ``[before, after]``."""
    return {
        key: pairs(value, after[key]) if isinstance(value, dict) else [value, after[key]]
        for key, value in before.items()
        if key in after
    }


def change(pair: Sequence[float]) -> float:
    """Return after - before."""
    return float(pair[1] - pair[0])
