"""Paths as they are published: a person's home folder is "~" in every record."""

from __future__ import annotations

import os
from typing import Optional


def published(path: Optional[str]) -> Optional[str]:
    """Return a path or word of a command line with the home folder, where it begins so, as "~"."""
    home = os.path.expanduser("~")
    if path and home != "/" and (path == home or path.startswith(home + "/")):
        return "~" + path[len(home) :]
    return path
