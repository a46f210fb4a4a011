"""Rendering the article: papermill executes it over the chosen runs, Quarto only renders.

Where Quarto is not installed, the same executed notebook becomes one HTML page by nbconvert.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from numalab import home, html_page, notebook, runs
from numalab.agent.errors import Fault

QUARTO_LIMIT_S = 600
SOURCE = "index.ipynb"


def make(
    chosen: Sequence[str | Path] | None,
    *,
    host: str | None = None,
    out: Path | None = None,
    engine: str = "auto",
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Render the article over runs (else over the newest complete ones); return the page's path.

    Everything is made below ``out`` (build/report in the checkout); nothing that git tracks
    changes. ``engine`` is "quarto", "nbconvert" or "auto". Raises Fault when there are no runs,
    when a named engine is missing, or when the article's own cells fail.
    """
    if engine not in ("auto", "quarto", "nbconvert"):
        raise Fault(f"there is no engine {engine!r}", "it is auto, quarto or nbconvert")
    picked = [runs.load(path) for path in chosen] if chosen else runs.newest(host)
    if not picked:
        where = f"of {host} " if host else ""
        raise Fault(
            f"there are no complete runs {where}to report on", "numalab run --all makes some"
        )
    if engine == "quarto" and not shutil.which("quarto"):
        raise Fault("quarto is not on PATH", "install it, or use --engine nbconvert")
    folder = (out or home.root() / "build" / "report").resolve()
    assemble(picked, folder)
    if engine == "quarto" or (engine == "auto" and shutil.which("quarto")):
        return _by_quarto(folder, say)
    page = html_page.render(folder)
    say("rendered by nbconvert, for Quarto is not on PATH (with Quarto there is a PDF too)")
    say(f"article: {page}")
    return page


def assemble(picked: Sequence[runs.Run], folder: Path) -> None:
    """Put a Quarto project into a folder: the executed article, its notebooks, its settings."""
    (folder / "notebooks").mkdir(parents=True, exist_ok=True)
    source = home.root() / "report"
    for name in ("_quarto.yml", "article.css"):
        shutil.copyfile(source / name, folder / name)
    for old in (folder / "notebooks").glob("*.ipynb"):
        old.unlink()
    for run in picked:
        executed = run.folder / "notebook.ipynb"
        if not executed.is_file():
            notebook.execute(run.folder)
        shutil.copyfile(executed, folder / "notebooks" / f"{_slug(run)}.ipynb")
    notebook.run_notebook(
        source / SOURCE,
        folder / SOURCE,
        {"runs": [notebook.from_root(run.folder) for run in picked]},
    )


def _slug(run: runs.Run) -> str:
    return f"{run.manifest['host']}-{run.manifest['experiment']}"


def _by_quarto(folder: Path, say: Callable[[str], None]) -> Path:
    command = ["quarto", "render", str(folder)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=QUARTO_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise Fault(f"quarto did not finish within {QUARTO_LIMIT_S} s") from None
    page = folder / "_manuscript" / "index.html"
    if done.returncode != 0 or not page.is_file():
        last = [line for line in done.stderr.splitlines() if line.strip()][-8:]
        raise Fault("quarto failed:\n  " + "\n  ".join(last), "numalab report --engine nbconvert")
    say("rendered by Quarto")
    say(f"article: {page}")
    for pdf in sorted(page.parent.glob("*.pdf")):
        say(f"PDF: {pdf}")
    return page
