"""The article's two renderings: Quarto as a bounded child, and the page that nbconvert makes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import yaml

import frames
from numalab import runs
from numalab.agent.errors import Fault
from numalab.pages import execute, render, report

ROOT = Path(__file__).resolve().parent.parent
INSTALL = ROOT / "scripts" / "install-quarto"
FRONT = '---\ntitle: "On <nodes>"\nsubtitle: "A study"\nauthor: "We"\n---'
TABLE = "| cell | note |\n|:---|---:|\n| local 0 | 0-7 \\| 16-23 |\n"
PICTURE = '<svg xmlns="http://www.w3.org/2000/svg"><circle r="1"/></svg>'


# ---------------------------------------------------------------- notebooks


def md(text: str):
    return nbformat.v4.new_markdown_cell(text)


def shown(source: str, **data: str):
    """A code cell with one displayed output; ``svg`` and ``markdown`` stand for their types."""
    kinds = {"svg": "image/svg+xml", "markdown": "text/markdown", "plain": "text/plain"}
    output = nbformat.v4.new_output(
        "display_data", {kinds[kind]: value for kind, value in data.items()}
    )
    return nbformat.v4.new_code_cell(source, outputs=[output])


def figure(label: str, caption: str = "A picture.", **data: str):
    source = f'#| label: fig-{label}\n#| fig-cap: "{caption}"\nsecret_call()'
    return shown(source, **(data or {"svg": PICTURE}))


def table(label: str, caption: str = "A table.", text: str = TABLE):
    return shown(f'#| label: tbl-{label}\n#| tbl-cap: "{caption}"\nsecret_call()', markdown=text)


def write(path: Path, *cells) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells)), path)


def page(folder: Path, *cells) -> str:
    """Render an article of these cells and return its HTML."""
    write(folder / "index.ipynb", nbformat.v4.new_raw_cell(FRONT), *cells)
    (folder / "article.css").write_text("main { color: black }", encoding="utf-8")
    return render.by_nbconvert(folder).read_text(encoding="utf-8")


def test_the_title_block_comes_from_the_yaml_header(tmp_path):
    html = page(tmp_path, md("Text."))
    assert "<title>On &lt;nodes&gt;</title>" in html
    assert "<h1>On &lt;nodes&gt;</h1><p>A study</p><p>We</p>" in html
    assert "subtitle:" not in html
    assert "main { color: black }" in html


def test_figures_and_tables_are_numbered_apart_and_code_is_left_out(tmp_path):
    html = page(tmp_path, table("a", "First."), figure("b", "Second."), figure("c", "Third."))
    for words in ("Table 1.</strong> First.", "Figure 1.</strong> Second.", "Figure 2.</strong>"):
        assert words in html
    assert html.index("First.") < html.index("<table")
    assert html.count("data:image/svg+xml") == 2 and '<img alt="Second."' in html
    assert "secret_call" not in html


def test_references_are_links_wherever_they_stand(tmp_path):
    html = page(
        tmp_path,
        md("## Method {#sec-method}\n\nSee @fig-b, @tbl-a and @sec-result; mail me@fig-b.org."),
        md("## Result {#sec-result}\n\nAs in @sec-method."),
        shown("prose()", markdown="As @fig-b shows."),
        table("a", "Beside @fig-b."),
        figure("b"),
    )
    assert html.count('<a href="#fig-b">Figure 1</a>') == 3
    assert '<a href="#tbl-a">Table 1</a>' in html
    assert '<a href="#sec-result">Result</a>' in html
    assert "me@fig-b.org" in html
    for label in ("fig-b", "tbl-a", "sec-method", "sec-result"):
        assert html.count(f'id="{label}"') == 1
    assert "{#sec" not in html


def test_a_reference_to_nothing_stays_as_it_was_written(tmp_path):
    assert "@fig-none" in page(tmp_path, md("See @fig-none."), figure("a"))


def test_a_pipe_in_a_table_stays_in_its_cell(tmp_path):
    html = page(tmp_path, table("a"))
    assert "0-7 | 16-23" in html
    assert html.count("<td") == 2


def test_a_labelled_cell_that_shows_words_keeps_its_caption(tmp_path):
    html = page(tmp_path, figure("a", "Load.", plain="No trial measured it."))
    assert "No trial measured it." in html
    assert "Figure 1.</strong> Load." in html


def test_what_shows_nothing_leaves_no_caption_and_counts_as_no_figure(tmp_path):
    empty = nbformat.v4.new_code_cell('#| label: fig-none\n#| fig-cap: "Nothing."\nsecret_call()')
    html = page(tmp_path, empty, figure("a", "Something."))
    assert "Nothing." not in html and "Figure 1.</strong> Something." in html


def test_alternative_text_is_not_the_caption_where_there_is_one(tmp_path):
    cell = figure("a", "The caption.")
    cell.source = cell.source.replace("secret", '#| fig-alt: "A bar for each case."\nsecret', 1)
    assert '<img alt="A bar for each case."' in page(tmp_path, cell)


def test_citations_are_links_to_the_references(tmp_path):
    entry = "@online{smith,\n  author = {Smith, {Jo}},\n  title = {On it},\n  year = {2010}\n}\n"
    (tmp_path / "references.bib").write_text(entry, encoding="utf-8")
    html = page(tmp_path, md("Said by @smith, and again [@smith]; mail a@smith."))
    assert html.count('<a href="#ref-smith">Smith, Jo</a>') == 2
    assert 'id="ref-smith"' in html and "Smith, Jo. On it. 2010" in html
    assert "a@smith" in html


def test_other_pages_of_the_article_are_rendered_in_their_language(tmp_path):
    front = nbformat.v4.new_raw_cell(FRONT.replace('author: "We"', 'author: "We"\nlang: zh'))
    write(tmp_path / "zh.ipynb", front, md("Text."))
    page(tmp_path, md("[zh](zh.html)"))
    said = (tmp_path / "_manuscript" / "zh.html").read_text(encoding="utf-8")
    assert '<html lang="zh">' in said and "Text." in said


def test_every_hosts_notebooks_are_linked_with_their_code(tmp_path):
    for host in ("a", "b"):
        write(tmp_path / "notebooks" / f"{host}-stream.ipynb", md("# STREAM <1>"), figure("x"))
    html = page(tmp_path, md("Text."))
    for host in ("a", "b"):
        assert f'<a href="{host}-stream.html">STREAM &lt;1&gt;</a> ({host}-stream)' in html
        other = (tmp_path / "_manuscript" / f"{host}-stream.html").read_text(encoding="utf-8")
        assert "secret_call" in other


# ---------------------------------------------------------------- assembling


def a_run(folder: Path, host: str, experiment: str = "stream") -> runs.Run:
    write(folder / "notebook.ipynb", md(f"# About {experiment}"))
    return frames.run(frames.plan([], experiment=experiment, host=host), folder=folder)


@pytest.fixture
def stubbed(monkeypatch):
    """Executes no notebook: the article is copied with its parameters as they are."""

    def copy(source, target, parameters):
        write(target, nbformat.v4.new_raw_cell(FRONT), md(f"Over {len(parameters['runs'])} runs."))

    monkeypatch.setattr(execute, "run_notebook", copy)
    monkeypatch.setattr(execute, "executed", lambda run: run.folder / "notebook.ipynb")


def test_the_project_names_every_notebook_and_drops_old_ones(tmp_path, stubbed):
    picked = [
        a_run(tmp_path / "1-stream", "a"),
        a_run(tmp_path / "2-stream", "b"),
        a_run(tmp_path / "3-stream", "a"),
    ]
    folder = tmp_path / "report"
    write(folder / "notebooks" / "old-host.ipynb", md("# Old"))
    (folder / "_manuscript").mkdir()
    (folder / "_manuscript" / "index.pdf").write_bytes(b"old")
    report.assemble(picked, folder)
    settings = yaml.safe_load((folder / "_quarto.yml").read_text(encoding="utf-8"))
    listed = settings["manuscript"]["notebooks"]
    assert [book["title"] for book in listed] == [f"About stream ({host})" for host in "aba"]
    assert sorted(book["notebook"] for book in listed) == sorted(
        f"notebooks/{path.name}" for path in (folder / "notebooks").iterdir()
    )
    assert len(listed) == 3
    assert not (folder / "_manuscript").exists()
    assert settings["execute"]["enabled"] is False


def test_a_notebook_that_came_with_a_run_is_made_anew(tmp_path, monkeypatch):
    evil = md("# <script>alert(1)</script>")
    run = a_run(tmp_path / "1-stream", "a")
    write(run.folder / "notebook.ipynb", evil)
    made = []
    monkeypatch.setattr(execute, "execute", lambda folder, aside: made.append((folder, aside)))
    monkeypatch.setattr(execute.home, "root", lambda: tmp_path)
    execute.executed(run)
    assert made == [(run.folder, True)]


def test_a_run_names_no_notebook_that_is_executed(tmp_path, monkeypatch):
    run = a_run(tmp_path / "1-mine", "a", "mine")
    shown = []

    def note(source, target, parameters):
        shown.append(source)
        target.write_text("{}")

    monkeypatch.setattr(execute.runs, "load", lambda folder: run)
    monkeypatch.setattr(execute, "run_notebook", note)
    execute.execute(run.folder)
    assert shown == [execute.GENERIC] and execute.GENERIC.is_file()


def test_the_generic_notebook_shows_any_run(tmp_path):
    folder = frames.sysbench_run(tmp_path / "here" / "20261120T220511Z-sysbench-cpu")
    target = tmp_path / "out.ipynb"
    execute.run_notebook(execute.GENERIC, target, {"source": str(folder)})
    book = nbformat.read(target, as_version=4)
    said = "".join(str(output) for cell in book.cells for output in cell.get("outputs", []))
    assert "A/A control" in said and "| local 0" in said


# ---------------------------------------------------------------- Quarto as a child

SUCCEEDS = (
    'mkdir -p "$2/_manuscript"; : >"$2/_manuscript/index.pdf"; echo Q >"$2/_manuscript/index.html"'
)
FAILS = "echo reading >&2; echo 'ERROR: no such format' >&2; exit 3"
HANGS = 'sleep 300 & echo $! >"$2/child"; wait'
NOTHING = "exit 0"


@pytest.fixture
def article(tmp_path, stubbed, monkeypatch):
    """Makes an article by the given engine, with a quarto of these shell commands on PATH."""
    run = a_run(tmp_path / "1-stream", "vm")
    monkeypatch.setattr(report.runs, "load", lambda path: run)
    said: list[str] = []

    def make(commands: str | None, engine: str = "auto"):
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
        if commands is not None:
            fake(tmp_path / "bin" / "quarto", commands)
        return report.make(["x"], out=tmp_path / "out", engine=engine, say=said.append), said

    return make


def fake(path: Path, commands: str) -> None:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{commands}\n", encoding="utf-8")
    path.chmod(0o755)


def test_quarto_renders_where_it_is_on_path(article):
    made, said = article(SUCCEEDS)
    assert made.read_text(encoding="utf-8") == "Q\n"
    assert said[0] == "rendered by Quarto"
    assert any(line.startswith("PDF: ") for line in said)


def test_quarto_is_found_beside_this_python(article, tmp_path):
    fake(tmp_path / "venv" / "quarto", SUCCEEDS)
    _, said = article(None)
    assert said[0] == "rendered by Quarto"


@pytest.mark.parametrize("commands, what", [(FAILS, "no such format"), (NOTHING, "made no page")])
def test_a_quarto_that_fails_is_a_fault_when_it_was_asked_for(article, commands, what):
    with pytest.raises(Fault, match=what) as caught:
        article(commands, "quarto")
    assert caught.value.hint == "numalab report --engine nbconvert"


def test_a_quarto_that_fails_is_named_and_nbconvert_goes_on(article):
    made, said = article(FAILS)
    assert "no such format" in said[0] and "status 3" in said[0]
    assert said[1].startswith("rendered by nbconvert, for Quarto failed")
    assert "Over 1 runs." in made.read_text(encoding="utf-8")


def test_a_quarto_that_hangs_is_ended_with_its_children(article, tmp_path, monkeypatch):
    monkeypatch.setattr(render, "QUARTO_IDLE_S", 0.5)
    with pytest.raises(Fault, match="did nothing for 0.5 s"):
        article(HANGS, "quarto")
    child = int((tmp_path / "out" / "child").read_text())
    assert ended(child)


def ended(process: int) -> bool:
    """Wait until a process is gone or a zombie that nobody has reaped yet; False after 5 s."""
    for _ in range(100):
        try:
            fields = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            return True
        if fields.rpartition(")")[2].split()[0] in "ZX":
            return True
        time.sleep(0.05)
    return False


def test_without_quarto_nbconvert_renders_and_says_so(article):
    made, said = article(None)
    assert said[0].startswith("rendered by nbconvert, for Quarto is not installed")
    assert made.is_file()


def test_an_engine_that_is_not_there_is_a_fault(article):
    with pytest.raises(Fault, match="Quarto is not installed"):
        article(None, "quarto")
    with pytest.raises(Fault, match="no engine"):
        article(None, "word")


# ---------------------------------------------------------------- installing Quarto


@pytest.fixture
def install(tmp_path):
    """Runs install-quarto over a bin folder whose pip is these shell commands."""
    bin_folder = tmp_path / ".venv" / "bin"

    def run(pip: str, **environment: str) -> tuple[str, int]:
        count = tmp_path / "count"
        fake(bin_folder / "pip", f'echo "$1" >>{count}\n{pip}')
        path = f"{tmp_path / 'path'}:/usr/bin:/bin"
        done = subprocess.run(
            [INSTALL, bin_folder],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": path, **environment},
        )
        assert done.returncode == 0
        assert done.stderr == ""
        calls = count.read_text().split() if count.exists() else []
        return done.stdout, calls.count("install")

    return run


def quarto_script(folder: str) -> str:
    return f"printf '#!/bin/sh\\necho 1.9.1\\n' >{folder}/quarto; chmod +x {folder}/quarto"


def test_an_installed_quarto_is_left_alone(install, tmp_path):
    fake(tmp_path / "path" / "quarto", "exit 1")
    assert install("exit 0") == ("", 0)


def test_pip_installs_quarto_once(install, tmp_path):
    said, calls = install(quarto_script(str(tmp_path / ".venv" / "bin")))
    assert (said, calls) == ("numalab: installed Quarto 1.9.1\n", 1)
    assert install("exit 1") == ("", 1)


@pytest.mark.parametrize(
    "pip, why",
    [
        ("echo '  Error downloading Quarto: no route'; echo 'ERROR: x' >&2; exit 1", "no route"),
        ("echo 'ERROR: No matching distribution' >&2; exit 1", "No matching distribution"),
        ("exit 7", "status 7"),
        ("sleep 60", "did not finish within 1 s"),
        ("exit 0", "does not start"),
    ],
)
def test_a_failure_is_said_in_one_line_and_tried_once(install, pip, why):
    for _ in range(2):
        said, calls = install(pip, QUARTO_INSTALL_LIMIT="1")
        assert why in said
        assert said.count("\n") == 1
        assert said.endswith("the article is rendered by nbconvert\n")
        assert calls == 1


def test_the_pages_need_no_templates_below_this_pythons_prefix(monkeypatch):
    """As where the packages are found by PYTHONPATH: nbconvert printed Jupyter's paths then."""
    from nbconvert.exporters import templateexporter

    monkeypatch.setattr(templateexporter, "jupyter_path", lambda *words: [])
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# told")])
    assert "told" in render._body(book, code=True)


def test_an_article_is_of_what_was_measured_here_and_not_of_the_published_runs(
    tmp_path, monkeypatch
):
    data, made = tmp_path / "data", []
    theirs, mine = (
        a_run(data / "runs" / host / f"20261120T220511Z-{name}", host, name)
        for host, name in (("theirs", "stream"), ("mine", "latency"))
    )
    described = {"name": "measurements", "path": ["runs/theirs/20261120T220511Z-stream/x.parquet"]}
    (data / "datapackage.json").write_text(json.dumps({"resources": [described]}))
    found = [theirs, mine]
    monkeypatch.setattr(report.home, "root", lambda: tmp_path)
    monkeypatch.setattr(report.runs, "newest", lambda host: list(found))
    monkeypatch.setattr(report, "assemble", lambda picked, folder: made.append(picked))
    monkeypatch.setattr(report.render, "by", lambda engine, folder, say: folder)
    report.make(None)
    report.make(None, host="theirs")
    found.remove(mine)
    report.make(None)
    assert made == [[mine], [theirs, mine], [theirs]]
