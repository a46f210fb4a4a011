"""The cache, and paths as they are published: a person's home folder is "~" in every record."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, Mapping, Optional


def cache_folder() -> Path:
    """Return the folder of what is made once and kept: under XDG_CACHE_HOME, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "numalab"


def own(paths: Mapping[str, str]) -> Dict[str, str]:
    """Return published paths, by a name each, as this host has them."""
    return {name: os.path.expanduser(path) for name, path in paths.items()}


def without_home(text: str) -> str:
    """Return a text with the home folder as "~", wherever it stands in it."""
    home = os.path.expanduser("~")
    return text.replace(home + "/", "~/") if home != "/" else text


def published(path: Optional[str]) -> Optional[str]:
    """Return a path or word of a command line with the home folder, where it begins so, as "~".

    Bytes that are no UTF-8 become "?": no file of a run could hold them.
    """
    home = os.path.expanduser("~")
    if path and home != "/" and (path == home or path.startswith(home + "/")):
        path = "~" + path[len(home) :]
    return path and path.encode("utf-8", "replace").decode("utf-8")
