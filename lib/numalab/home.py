"""Where a checkout keeps its things: experiments, notebooks, runs, the report."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from numalab.agent.errors import Fault
from numalab.agent.paths import cache_folder
from numalab.agent.words import units


def root() -> Path:
    """Return the checkout's root.

    It is the folder that NUMALAB_HOME names, else the nearest folder at or above the current
    one that holds ``experiments/`` and ``notebooks/``, else the checkout this package was
    installed from. Raises Fault when there is none.
    """
    named = os.environ.get("NUMALAB_HOME")
    if named:
        if not _is_root(Path(named)):
            raise Fault(
                f"NUMALAB_HOME names {named}, which holds no experiments/ and notebooks/",
                "point it at a numalab checkout",
            )
        return Path(named).resolve()
    here = Path.cwd()
    installed_from = Path(__file__).resolve().parents[2]
    for folder in [here, *here.parents, installed_from]:
        if _is_root(folder):
            return folder
    raise Fault(
        f"{here} is not inside a numalab checkout", "go to the checkout or set NUMALAB_HOME"
    )


def _is_root(folder: Path) -> bool:
    return (folder / "experiments").is_dir() and (folder / "notebooks").is_dir()


def resolve(path: str | Path) -> Path:
    """Return a path given by a user: as it stands from here, else from the checkout's root.

    Notebooks name committed runs relative to the root, and papermill and nbval execute them
    from different folders.
    """
    given = Path(path).expanduser()
    if given.is_absolute() or given.exists():
        return given
    return root() / given


def notebook(name: str | None) -> Path | None:
    """Return the checkout's notebook of that name; None where none is named."""
    return root() / "notebooks" / name if name else None


def build() -> Path:
    """Return the folder for what is made here: build/ of the checkout.

    Where this user may not write there, it is a folder of the user's own cache.
    """
    checkout = root()
    own = checkout / "build"
    if os.access(own if own.exists() else checkout, os.W_OK | os.X_OK):
        return own
    digest = hashlib.sha256(os.fsencode(checkout)).hexdigest()
    return cache_folder() / "build" / digest[:8]


def memo(kind: str, of: bytes) -> Path:
    """Return the file that says, outside of a run directory, what this checkout did with it."""
    return build() / kind / hashlib.sha256(of).hexdigest()[:32]


def runs() -> Path:
    """Return the folder of all runs: data/runs/HOST/RUN (NUMALAB_RUNS moves it)."""
    named = os.environ.get("NUMALAB_RUNS")
    return Path(named) if named else root() / "data" / "runs"


def is_run(folder: Path) -> bool:
    """Tell whether a folder is a run directory."""
    return (folder / "manifest.json").is_file()


def refuse_folder_of_runs(folder: Path) -> None:
    """Raise Fault for a folder that is no run itself, but holds some, or those of several hosts."""
    if os.path.lexists(folder / "manifest.json"):
        return
    for below in ("*", "*/*"):
        number = sum(1 for _ in folder.glob(f"{below}/manifest.json"))
        if number:
            raise Fault(
                f"{folder} is not a run directory; it holds {units.count(number, 'run')}",
                f"name them: {folder}/{below}",
            )


def find_runs(host: str | None = None) -> list[Path]:
    """Return the run directories below ``runs()``, oldest first.

    A run's name starts with the second it was started in and ends with its experiment.
    """
    found = [
        path.parent
        for path in runs().glob("*/*/manifest.json")
        if host is None or path.parent.parent.name == host
    ]
    return sorted(found, key=lambda path: (path.name, path.parent.name))
