"""The page of the survey: its notebook executed over the user's own hosts, and rendered."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import nbformat

from numalab import home
from numalab.pages import execute, render
from numalab.runs import Run

NAME = "survey"


def make(own: Sequence[Run], out: Path | None = None) -> Path:
    """Execute notebooks/survey.ipynb over runs of one's own; return the page's path.

    Everything is made below ``out`` (build/survey in the checkout).
    """
    folder = (out or home.build() / NAME).resolve()
    shutil.rmtree(folder / "notebooks", ignore_errors=True)
    (folder / "notebooks").mkdir(parents=True)
    for css in (home.root() / "report").glob("*.css"):
        shutil.copyfile(css, folder / css.name)
    book = folder / "notebooks" / f"{NAME}.ipynb"
    execute.run_notebook(
        home.root() / "notebooks" / book.name,
        book,
        {"own": [execute.from_root(run.folder) for run in own]},
    )
    _with_front_matter(book, folder / "index.ipynb")
    return render.by_nbconvert(folder)


def _with_front_matter(source: Path, target: Path) -> None:
    """Make the heading of a notebook the title of a page."""
    book = nbformat.read(source, as_version=4)
    heading, _, rest = book.cells[0].source.partition("\n")
    book.cells[0].source = rest.strip()
    front = {"title": heading.lstrip("# "), "subtitle": "numalab", "author": "published by others"}
    execute.entitle(book, front)
    nbformat.write(book, target)
