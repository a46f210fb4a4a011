"""The committed pages: they show committed runs, agree with each other, and can be made again."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import zipfile
from pathlib import Path

import nbformat
import pytest
import yaml

import frames
from numalab import asking, check, datapackage, home, runs, session
from numalab.agent.errors import Fault
from numalab.pages import execute, render, report

REPOSITORY = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
OF_RUNS = [path for path in NOTEBOOKS if path.stem != "survey"]  # which is of published figures
ARTICLE = REPOSITORY / "report" / "index.ipynb"
STUDY = sorted((REPOSITORY / "report").glob("*.ipynb"))
BIBLIOGRAPHY = (REPOSITORY / "report" / "references.bib").read_text(encoding="utf-8")
DESCRIPTOR = json.loads((REPOSITORY / "data" / "datapackage.json").read_text())
PUBLISHED = sorted(  # what the descriptor names; a user's own runs lie beside them
    (REPOSITORY / "data" / path).parent
    for resource in DESCRIPTOR["resources"]
    if resource["name"] == "measurements"
    for path in resource["path"]
)


def _parameters(path):
    book = nbformat.read(path, as_version=4)
    (cell,) = (one for one in book.cells if "parameters" in one.metadata.get("tags", []))
    tree = ast.parse(cell.source)
    return {node.targets[0].id: ast.literal_eval(node.value) for node in tree.body}


@pytest.mark.parametrize("path", OF_RUNS, ids=lambda path: path.stem)
def test_a_committed_notebook_opens_with_results_of_a_committed_run(path):
    run = REPOSITORY / _parameters(path)["source"]
    assert run.is_dir(), "publish a run of its experiment first: CONTRIBUTING.md, A result"
    assert json.loads((run / "manifest.json").read_text())["experiment"] == path.stem
    code = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    assert all(cell.execution_count for cell in code), "make notebooks executes it"
    assert all(cell.outputs for cell in code[2:])
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    assert not any("stderr" in str(output.get("name")) for c in code for output in c.outputs)


@pytest.mark.parametrize("path", [*NOTEBOOKS, *STUDY], ids=lambda path: path.stem)
def test_a_committed_page_holds_no_time_and_no_path_of_the_machine_that_made_it(path):
    text = path.read_text()
    assert "papermill" not in json.loads(text)["metadata"]
    assert not re.search(r"iopub|\"start_time\"|duration", text)
    assert str(REPOSITORY) not in text and str(Path.home()) + "/" not in text


def test_the_article_and_its_summary_show_committed_runs():
    runs, *others = [_parameters(path)["runs"] for path in STUDY]
    assert runs and all((REPOSITORY / run / "manifest.json").is_file() for run in runs)
    assert others and all(other == runs for other in others)


# ---------------------------------------------------------------- prose

# A version and what a setting is set to are no figures, and firmware defines the other.
_NAMES = ("MySQL 8.4", "10 is local", "zone_reclaim_mode=1")
_HEAD = ("title", "subtitle", "abstract", "description")  # of a page
_NO_PROSE = re.compile(
    r"`[^`]*`|\{#[^}]*\}|\]\([^)]*\)|<[^>]*>|\$\{?\w+|[@#][\w-]+|"
    + "|".join(map(re.escape, _NAMES))
)


def _prose(path):
    """What an author wrote: head, Markdown cells, texts whose numbers are computed, captions."""
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            yield cell.source
        elif cell.cell_type == "raw":
            head = yaml.safe_load(cell.source.strip().strip("-"))
            yield from (head[key] for key in _HEAD if key in head)
        elif cell.cell_type == "code":
            for node in ast.walk(ast.parse(cell.source)):
                named = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
                if named and node.func.attr in ("say", "headed"):
                    yield ast.literal_eval(node.args[0])
                    given = (one.value for one in node.keywords if one.arg)
                    yield from (str(one.value) for one in given if isinstance(one, ast.Constant))
            yield from re.findall(r'^#\| [a-z]+-cap: "(.+)"$', cell.source, re.MULTILINE)


@pytest.mark.parametrize("path", [*STUDY, report.ARTICLE], ids=lambda path: path.stem)
def test_no_number_in_prose_is_typed_by_hand(path):
    texts = list(_prose(path))
    assert len(texts) > 5
    for text in texts:
        plain = re.sub(r"95 %", "", _NO_PROSE.sub("", text))  # of intervals: what they are
        assert not re.search(r"\d", plain), plain
        # As code stands what a setting may be, one digit, or a name; never a figure.
        assert not re.search(r"`[\d.,% ]{2,}`", text), text


@pytest.mark.parametrize("path", [*STUDY, report.ARTICLE], ids=lambda path: path.stem)
def test_every_figure_has_words_for_who_cannot_see_it_and_every_reference_a_target(path):
    book = nbformat.read(path, as_version=4)
    sources = [cell.source for cell in book.cells if cell.cell_type == "code"]
    figures = [source for source in sources if "#| label: fig-" in source]
    assert figures
    for source in figures:
        assert re.search(r'^#\| fig-cap: ".{20,}"$', source, re.MULTILINE), source
        assert re.search(r'^#\| fig-alt: ".{20,}"$', source, re.MULTILINE), source
    text = "\n".join([*_prose(path), *sources])
    known = set(re.findall(r"\{#([\w-]+)|label: ([\w-]+)", text))
    known = {name for pair in known for name in pair if name}
    cited = re.findall(r"^@\w+\{([\w-]+),", BIBLIOGRAPHY, re.MULTILINE)
    for name in re.findall(r"(?<![\w/])@([a-z][\w-]+)", "\n".join(_prose(path))):
        assert name in known or name in cited, name


def test_the_figure_beside_the_article_is_the_articles(tmp_path):
    render.save_figure(ARTICLE, "fig-swap", tmp_path / "swap.svg")
    made = (tmp_path / "swap.svg").read_text(encoding="utf-8")
    assert "<title>" in made
    committed = (REPOSITORY / "report" / "swap.svg").read_text(encoding="utf-8")
    assert made == committed, "make notebooks saves it anew"


def test_a_users_article_begins_with_what_to_do():
    book = nbformat.read(report.ARTICLE, as_version=4)
    said = [cell for cell in book.cells if "parameters" not in cell.metadata.get("tags", [])]
    first = next(cell for cell in said if cell.cell_type == "markdown")
    assert first.source.startswith("## What to do")
    after = said[said.index(first) + 1]
    assert "article.recommendations()" in after.source


def test_the_study_is_rendered_as_committed_and_loads_nothing_from_elsewhere(tmp_path):
    page = report.study(out=tmp_path / "study", engine="nbconvert")
    html = page.read_text(encoding="utf-8")
    for text in (html, page.with_name("zh.html").read_text(encoding="utf-8")):
        pictures = re.findall(r"<img[^>]*>", text)
        assert pictures and all('src="data:' in one and 'alt="' in one for one in pictures)
        assert not re.search(r"<(script|link|iframe)\b|@import|url\(\s*['\"]?http", text)
        assert ":::" not in text and "{#" not in text and ".unnumbered" not in text
        assert not re.search(r"[^\w/.]@(fig|tbl|sec)-", text)
    assert 'href="zh.html"' in html and 'href="index.pdf"' not in html
    assert html.count('class="caption"') == html.count("<strong>Figure ") + html.count(
        "<strong>Table "
    )
    packed = zipfile.ZipFile(page.with_name("numalab-data.zip")).namelist()
    assert {"datapackage.json", "README.md", "reference/machines.csv"} <= set(packed)
    described = {path.relative_to(REPOSITORY / "data").parts[1] for path in PUBLISHED}
    assert {name.split("/")[1] for name in packed if name.startswith("runs/")} == described


def test_quarto_finds_the_notebooks_beside_the_article_without_a_copy_under_git(tmp_path):
    """What Quarto does before it renders is done in a clone's layout: it does not follow links."""
    settings = yaml.safe_load((REPOSITORY / "report" / "_quarto.yml").read_text())
    shutil.copytree(REPOSITORY / "notebooks", tmp_path / "notebooks")
    shutil.copytree(
        REPOSITORY / "report", tmp_path / "report", ignore=shutil.ignore_patterns("notebooks")
    )
    for _ in range(2):  # rendered again over what the first time left
        subprocess.run(
            shlex.split(settings["project"]["pre-render"]), cwd=tmp_path / "report", check=True
        )
    found = tmp_path / "report" / "notebooks"
    assert not found.is_symlink()
    assert sorted(path.name for path in found.glob("*.ipynb")) == [one.name for one in NOTEBOOKS]
    ignored = (REPOSITORY / "report" / ".gitignore").read_text().split()
    assert "/notebooks/" in ignored


@pytest.mark.parametrize("run", PUBLISHED, ids=lambda run: f"{run.parent.name}-{run.name}")
def test_every_published_run_passes_the_check(run):
    result = check.check(run)
    assert result.faults == []
    assert json.loads((run / "manifest.json").read_text())["status"] == "complete"


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
def test_every_run_that_git_knows_is_described():
    listed = subprocess.run(
        ["git", "-C", str(REPOSITORY), "ls-files", "--", "data/runs"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0 or not listed.stdout:
        pytest.skip("not a git checkout")
    known = {path for path in listed.stdout.splitlines() if path.endswith("/manifest.json")}
    described = {f"{run.relative_to(REPOSITORY).as_posix()}/manifest.json" for run in PUBLISHED}
    assert known == described, "make notebooks describes what git add -f published"


def test_the_article_shows_every_published_host():
    shown = {Path(run).parent.name for run in _parameters(ARTICLE)["runs"]}
    assert shown == {run.parent.name for run in PUBLISHED}, "make notebooks makes it anew"


def test_published_runs_name_no_home_folder():
    for run in PUBLISHED:
        for name in ("manifest.json", "journal.ndjson", "host.json"):
            assert not re.search(r"/root/|/home/", (run / name).read_text()), f"{run.name}/{name}"


def test_the_descriptor_describes_the_tables(tmp_path):
    shutil.copytree(REPOSITORY / "data" / "reference", tmp_path / "reference")
    folders = [tmp_path / "runs" / run.parent.name / run.name for run in PUBLISHED]
    assert datapackage.descriptor(tmp_path, folders) == DESCRIPTOR, "make notebooks writes it"
    for resource in DESCRIPTOR["resources"]:
        paths = resource["path"] if isinstance(resource["path"], list) else [resource["path"]]
        assert all((REPOSITORY / "data" / path).is_file() for path in paths)
        if resource["format"] == "parquet":
            assert all("description" in field for field in resource["schema"]["fields"])


def test_an_unknown_parameter_is_an_error_not_a_warning(tmp_path):
    with pytest.raises(Fault, match="no parameter prfile.*source, host, profile, bindings"):
        execute.run_notebook(NOTEBOOKS[0], tmp_path / "out.ipynb", {"prfile": "smoke"})
    assert not (tmp_path / "out.ipynb").exists()


def test_a_run_of_another_experiment_is_refused_by_the_notebook(tmp_path):
    other = next(run for run in PUBLISHED if run.name.endswith("-host"))
    with pytest.raises(Fault, match="is a run of host, not of stream"):
        execute.run_notebook(
            REPOSITORY / "notebooks" / "stream.ipynb",
            tmp_path / "out.ipynb",
            {"source": home.root().joinpath(other).as_posix()},
        )


def test_papermill_by_hand_shows_any_run(tmp_path):
    import papermill

    run = next(run for run in PUBLISHED if run.name.endswith("-host"))
    book = papermill.execute_notebook(
        str(REPOSITORY / "notebooks" / "host.ipynb"),
        str(tmp_path / "out.ipynb"),
        parameters={"source": run.relative_to(REPOSITORY).as_posix()},
        cwd=str(tmp_path),
        progress_bar=False,
    )
    shown = [o for cell in book.cells for o in cell.get("outputs", [])]
    assert any(run.parent.name in str(output) for output in shown)


def test_an_article_leaves_a_published_run_as_it_is_sealed(tmp_path, monkeypatch):
    folder = frames.sysbench_run(tmp_path / "here" / "20261120T220511Z-sysbench-cpu")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    monkeypatch.setattr(home, "build", lambda: tmp_path / "build")
    monkeypatch.setattr(
        execute, "run_notebook", lambda source, target, parameters: shutil.copy(source, target)
    )
    execute.executed(runs.load(folder))
    session.resume(folder, asking.Settings())  # nothing is left to measure
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert check.check(folder).faults == []


def test_what_was_found_is_said_although_the_notebook_fails(tmp_path, monkeypatch, capsys):
    folder = frames.sysbench_run(tmp_path / "here" / "20261120T220511Z-sysbench-cpu")
    book = nbformat.v4.new_notebook(cells=[
        nbformat.v4.new_code_cell("source = ''", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell("run.placment()"),
    ])  # fmt: skip
    wrong = tmp_path / "wrong.ipynb"
    nbformat.write(book, wrong)
    with pytest.raises(Fault, match="wrong.ipynb cannot be read: No kernel name"):
        execute.run_notebook(wrong, tmp_path / "out.ipynb", {})
    book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, wrong)
    end = {"status": "complete", "verified": 12, "unverified": 0, "error": 0}
    with pytest.raises(
        Fault, match="failed in cell .*papermill .*wrong.ipynb again.ipynb -p source"
    ):
        session._finish(folder, end, asking.Settings(), wrong)
    said = capsys.readouterr().out
    assert "12 trials: 12 verified" in said and "events per second" in said and str(folder) in said
    assert check.check(folder).faults == []


def test_a_run_of_somebody_else_is_shown_without_a_trace_in_it(tmp_path, monkeypatch):
    """As of a plain user, over the runs of a checkout that is root's."""
    folder = frames.sysbench_run(tmp_path / "here" / "20261120T220511Z-sysbench-cpu")
    before = sorted(folder.rglob("*"))
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder and may(path, mode))
    monkeypatch.setattr(home, "build", lambda: tmp_path / "build")
    monkeypatch.setattr(
        execute, "run_notebook", lambda source, target, parameters: shutil.copy(source, target)
    )
    made = execute.executed(runs.load(folder))
    assert made.is_relative_to(tmp_path / "build") and made.is_file()
    assert sorted(folder.rglob("*")) == before
    monkeypatch.setattr(execute, "run_notebook", None)
    assert execute.executed(runs.load(folder)) == made  # not made twice
