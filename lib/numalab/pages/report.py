"""Rendering the article: papermill executes it over the chosen runs, Quarto only renders.

Where Quarto is not installed, the same executed notebook becomes one HTML page by nbconvert.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from numalab import home, runs
from numalab.agent.errors import Fault
from numalab.pages import html
from numalab.show import view

QUARTO_LIMIT_S = 600
SOURCE = "index.ipynb"
SETTINGS = "_quarto.yml"
OUTPUT = "_manuscript"


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
    when a named engine is missing or fails, or when the article's own cells fail; "auto" says why
    Quarto failed and goes on with nbconvert.
    """
    if engine not in ("auto", "quarto", "nbconvert"):
        raise Fault(f"there is no engine {engine!r}", "it is auto, quarto or nbconvert")
    picked = [runs.load(path) for path in chosen] if chosen else runs.newest(host)
    if not picked:
        where = f"of {host} " if host else ""
        raise Fault(
            f"there are no complete runs {where}to report on", "numalab run --all makes some"
        )
    quarto = find_quarto()
    if engine == "quarto" and not quarto:
        raise Fault("Quarto is not installed", "install it, or use --engine nbconvert")
    folder = (out or home.root() / "build" / "report").resolve()
    assemble(picked, folder)
    why = "Quarto is not installed"
    if quarto and engine != "nbconvert":
        try:
            return _by_quarto(quarto, folder, say)
        except Fault as fault:
            if engine == "quarto":
                raise
            say(fault.what)
            why = "Quarto failed"
    page = html.render(folder)
    because = "" if engine == "nbconvert" else f", for {why} (with Quarto there is a PDF too)"
    say(f"rendered by nbconvert{because}")
    say(f"article: {page}")
    return page


def find_quarto() -> str | None:
    """Return the path of Quarto: of the one on PATH, else of the one beside this Python."""
    return shutil.which("quarto") or shutil.which("quarto", path=str(Path(sys.executable).parent))


def assemble(picked: Sequence[runs.Run], folder: Path) -> None:
    """Put a Quarto project into a folder: the executed article, its notebooks, its settings."""
    (folder / "notebooks").mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / OUTPUT, ignore_errors=True)  # an older article must not pass for ours
    source = home.root() / "report"
    shutil.copyfile(source / "article.css", folder / "article.css")
    for old in (folder / "notebooks").glob("*.ipynb"):
        old.unlink()
    books = []
    for run in picked:
        executed = run.folder / "notebook.ipynb"
        if not executed.is_file():
            view.execute(run.folder)
        name = f"notebooks/{run.manifest['host']}-{run.manifest['experiment']}.ipynb"
        if any(book["notebook"] == name for book in books):
            name = f"notebooks/{run.manifest['host']}-{run.name}.ipynb"
        shutil.copyfile(executed, folder / name)
        title = html.title(folder / name)
        books.append({"notebook": name, "title": f"{title} ({run.manifest['host']})"})
    settings = yaml.safe_load((source / SETTINGS).read_text(encoding="utf-8"))
    settings["manuscript"]["notebooks"] = books
    (folder / SETTINGS).write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    view.run_notebook(
        source / SOURCE,
        folder / SOURCE,
        {"runs": [view.from_root(run.folder) for run in picked]},
    )


def _by_quarto(quarto: str, folder: Path, say: Callable[[str], None]) -> Path:
    status, errors = _bounded([quarto, "render", str(folder)])
    page = folder / OUTPUT / "index.html"
    if status != 0 or not page.is_file():
        last = [line for line in errors.splitlines() if line.strip()][-8:]
        without = "" if page.is_file() else " and made no page"
        what = f"Quarto ended with status {status}{without}"
        raise Fault("\n  ".join([what, *last]), "numalab report --engine nbconvert")
    say("rendered by Quarto")
    say(f"article: {page}")
    for pdf in sorted(page.parent.glob("*.pdf")):
        say(f"PDF: {pdf}")
    return page


def _bounded(command: Sequence[str]) -> tuple[int, str]:
    """Run a command and return its exit status and standard error; Fault when it hangs."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "NO_COLOR": "1"},
        start_new_session=True,
    ) as child:
        try:
            _, errors = child.communicate(timeout=QUARTO_LIMIT_S)
        except BaseException as error:
            # quarto is a script around other programs: all of them must go, on Ctrl-C too.
            os.killpg(child.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise Fault(
                    f"Quarto did not finish within {QUARTO_LIMIT_S} s",
                    "numalab report --engine nbconvert",
                ) from None
            raise
    return child.returncode, errors
