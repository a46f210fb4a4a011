"""The article over runs: papermill executes it, then it is rendered."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from numalab import home, runs
from numalab.agent.errors import Fault
from numalab.pages import execute, render

SOURCE = "index.ipynb"
SETTINGS = "_quarto.yml"


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
    quarto = render.find_quarto()
    if engine == "quarto" and not quarto:
        raise Fault("Quarto is not installed", "install it, or use --engine nbconvert")
    folder = (out or home.build() / "report").resolve()
    assemble(picked, folder)
    why = "Quarto is not installed"
    if quarto and engine != "nbconvert":
        try:
            return render.by_quarto(quarto, folder, say)
        except Fault as fault:
            if engine == "quarto":
                raise
            say(fault.what)
            why = "Quarto failed"
    page = render.by_nbconvert(folder)
    because = "" if engine == "nbconvert" else f", for {why} (with Quarto there is a PDF too)"
    say(f"rendered by nbconvert{because}")
    say(f"article: {page}")
    return page


def assemble(picked: Sequence[runs.Run], folder: Path) -> None:
    """Put a Quarto project into a folder: the executed article, its notebooks, its settings."""
    shutil.rmtree(folder / "notebooks", ignore_errors=True)
    (folder / "notebooks").mkdir(parents=True)
    shutil.rmtree(folder / render.OUTPUT, ignore_errors=True)  # an older article is not ours
    source = home.root() / "report"
    shutil.copyfile(source / "article.css", folder / "article.css")
    books = []
    for run in picked:
        host, experiment = run.manifest.host, run.manifest.experiment
        name = f"notebooks/{host}-{experiment}.ipynb"
        if (folder / name).exists():
            name = f"notebooks/{host}-{run.name}.ipynb"
        shutil.copyfile(execute.executed(run), folder / name)
        books.append({"notebook": name, "title": f"{render.title(folder / name)} ({host})"})
    settings = yaml.safe_load((source / SETTINGS).read_text(encoding="utf-8"))
    settings["project"].pop("pre-render", None)  # its notebooks are there
    settings["manuscript"]["notebooks"] = books
    (folder / SETTINGS).write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    execute.run_notebook(
        source / SOURCE,
        folder / SOURCE,
        {"runs": [execute.from_root(run.folder) for run in picked]},
    )
