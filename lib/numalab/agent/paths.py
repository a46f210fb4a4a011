"""The cache, and paths as they are published: a person's home folder is "~" in every record."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple


def cache_folder() -> Path:
    """Return the folder of what is made once and kept: under XDG_CACHE_HOME, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "numalab"


def own(paths: Mapping[str, str]) -> Dict[str, str]:
    """Return published paths, by a name each, as this host has them."""
    return {name: here(path) for name, path in paths.items()}


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


def here(path: str) -> str:
    """Return a published path or word as this host has it."""
    return os.path.expanduser(path) if path == "~" or path.startswith("~/") else path


def published_options(options: Mapping[str, Any]) -> Dict[str, Any]:
    """Return a tool's options with its texts, lists of words and ``env`` as they are published.

    What else an option holds stays as it is: a whole service, for instance.
    """

    def one(name: str, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [one("", word) for word in value]
        if name == "env" and isinstance(value, Mapping):
            return {key: one("", word) for key, word in value.items()}
        return published(value) if isinstance(value, str) else value

    return {name: one(name, value) for name, value in options.items()}


def recorded(argv: Sequence[str]) -> Tuple[str, ...]:
    """Return a trial's command line as its record has it, on whichever host this is asked.

    The interpreter that runs a module of ours is ``python3``: where it lies is the host's business.
    """
    words = [published(word) or "" for word in argv]
    ours = len(words) > 2 and words[1] == "-m" and words[2].startswith("numalab.")
    return (("python3" if ours else words[0]), *words[1:])
