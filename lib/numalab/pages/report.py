"""The article over runs: papermill executes it, then it is rendered."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat
import yaml

from numalab import escape, home, runs
from numalab.agent.errors import Fault
from numalab.pages import execute, render

SETTINGS = "_quarto.yml"
ARTICLE = Path(__file__).with_name("article.ipynb")
"""The article of a user's own hosts; the project's stands in report/, with its prose."""


def make(
    chosen: Sequence[str | Path] | None,
    *,
    host: str | None = None,
    out: Path | None = None,
    engine: str = "auto",
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Render the article over runs; return the page's path.

    Where none are chosen, over the newest complete ones of each subject: those measured here, and
    the published ones only where there are no others or their host is named.

    Everything is made below ``out`` (build/report in the checkout); nothing that git tracks
    changes. ``engine`` is "quarto", "nbconvert" or "auto". Raises Fault when there are no runs,
    when a named engine is missing or fails, or when the article's own cells fail; "auto" says why
    Quarto failed and goes on with nbconvert.
    """
    render.checked(engine)
    picked = [runs.load(path) for path in chosen] if chosen else runs.newest(host)
    if not chosen and not host:
        published = {one.resolve() for one in _published_runs(home.root() / "data")}
        picked = [run for run in picked if run.folder.resolve() not in published] or picked
    if not picked:
        where = f"of {host} " if host else ""
        raise Fault(
            f"there are no complete runs {where}to report on", "numalab run --all makes some"
        )
    folder = (out or home.build() / "report").resolve()
    assemble(picked, folder)
    return render.by(engine, folder, say)


def study(
    *,
    out: Path | None = None,
    engine: str = "auto",
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Render the project's own article as it is committed, without measuring or executing.

    Below ``out`` (build/study in the checkout); otherwise as `make`.
    """
    render.checked(engine)
    folder = (out or home.build() / "study").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(
        home.root() / "report",
        folder,
        ignore=shutil.ignore_patterns("_manuscript", ".quarto", "notebooks"),
    )
    shutil.copytree(home.root() / "notebooks", folder / "notebooks")
    settings = yaml.safe_load((folder / SETTINGS).read_text(encoding="utf-8"))
    settings["project"].pop("pre-render", None)  # its notebooks are there
    (folder / SETTINGS).write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    page = render.by(engine, folder, say)
    books = [*sorted(folder.glob("*.ipynb")), *sorted((folder / "notebooks").glob("*.ipynb"))]
    _packed(page.with_name("numalab-notebooks.zip"), folder, books)
    data = home.root() / "data"
    _packed(page.with_name("numalab-data.zip"), data, _published(data))
    return page


def _published_runs(data: Path) -> list[Path]:
    """The run directories of the data package; none where there is no package."""
    try:
        text = (data / "datapackage.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    paths = next(
        one["path"] for one in json.loads(text)["resources"] if one["name"] == "measurements"
    )
    return [(data / path).parent for path in paths]


def _published(data: Path) -> list[Path]:
    """The files of the data package: a user's own runs beside the published ones are no part."""
    folders = [data / "reference", *_published_runs(data)]
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    return [data / "datapackage.json", data / "README.md", *files]


def _packed(archive: Path, root: Path, files: Sequence[Path]) -> None:
    """Put files into an archive, by their paths below ``root``; no time of day gets in."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in files:
            name = zipfile.ZipInfo(path.relative_to(root).as_posix())
            packed.writestr(name, path.read_bytes(), zipfile.ZIP_DEFLATED)


def assemble(picked: Sequence[runs.Run], folder: Path) -> None:
    """Put a Quarto project into a folder: the executed article, its notebooks, its settings."""
    shutil.rmtree(folder / "notebooks", ignore_errors=True)
    (folder / "notebooks").mkdir(parents=True)
    shutil.rmtree(folder / render.OUTPUT, ignore_errors=True)  # an older article is not ours
    source = home.root() / "report"
    for path in (*source.glob("*.css"), *source.glob("*.scss"), *source.glob("*.lua")):
        shutil.copyfile(path, folder / path.name)
    books = []
    for run in picked:
        host, experiment = run.manifest.host, run.manifest.experiment
        name = f"notebooks/{host}-{experiment}.ipynb"
        if (folder / name).exists():
            name = f"notebooks/{host}-{run.name}.ipynb"
        shutil.copyfile(execute.executed(run), folder / name)
        books.append({"notebook": name, "title": f"{render.title(folder / name)} ({host})"})
    settings = yaml.safe_load((source / SETTINGS).read_text(encoding="utf-8"))
    settings["project"] = {"type": "manuscript"}
    settings["manuscript"] = {**settings["manuscript"], "notebooks": books}
    (folder / SETTINGS).write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    execute.run_notebook(
        ARTICLE,
        folder / "index.ipynb",
        {"runs": [execute.from_root(run.folder) for run in picked]},
    )
    _entitle(folder / "index.ipynb", picked)


def _entitle(path: Path, picked: Sequence[runs.Run]) -> None:
    """Name the hosts, and the day of the newest run, in the article's head."""
    book = nbformat.read(path, as_version=4)
    front = yaml.safe_load(book.cells[0].source.strip().strip("-"))
    hosts = dict.fromkeys(escape.markdown(run.manifest.host) for run in picked)
    front["title"] += f" on {', '.join(hosts)}"
    day = max(run.name for run in picked)[:8]
    front["date"] = f"{day[:4]}-{day[4:6]}-{day[6:]}"
    execute.entitle(book, front)
    nbformat.write(book, path)
