"""Rendering of executed notebooks: by Quarto, else as plain pages by nbconvert."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import nbformat
import yaml

from numalab.agent import idle
from numalab.agent.errors import Fault

QUARTO_IDLE_S = 120  # without any CPU time: it may be as slow as the machine is
OUTPUT = "_manuscript"
_NAMES = {"fig": "Figure", "tbl": "Table"}
_REFERENCE = re.compile(r"(?<![\w/`])@((?:fig|tbl|sec)-[\w-]+)")
_SECTION = re.compile(r"^(##+ .*?)[ \t]*\{#([\w-]+)\}[ \t]*$", re.MULTILINE)
_CITED = re.compile(r"\[(@[\w-]+(?:; @[\w-]+)*)\]|(?<![\w/`.])(@[\w-]+)")
_ENTRY = re.compile(r"^@\w+\{([\w-]+),\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\s*(\w+) = \{(.*)\},?$", re.MULTILINE)
_ONLY_QUARTO = re.compile(r"(?:- )?\[[^\]]*\]\(index\.pdf\)(?: · )?")
_OPTION = re.compile(r'^#\| *([\w-]+): *"?(.*?)"?$', re.MULTILINE)


def find_quarto() -> str | None:
    """Return the path of Quarto: of the one on PATH, else of the one beside this Python."""
    return shutil.which("quarto") or shutil.which("quarto", path=str(Path(sys.executable).parent))


def checked(engine: str) -> str | None:
    """Return Quarto's path where this engine may use it; Fault for one that is not there."""
    if engine not in ("auto", "quarto", "nbconvert"):
        raise Fault(f"there is no engine {engine!r}", "it is auto, quarto or nbconvert")
    quarto = find_quarto() if engine != "nbconvert" else None
    if engine == "quarto" and not quarto:
        raise Fault("Quarto is not installed", "install it, or use --engine nbconvert")
    return quarto


def by(engine: str, folder: Path, say: Callable[[str], None]) -> Path:
    """Render a Quarto project by "quarto", "nbconvert" or "auto", and say by which of them."""
    quarto, why = checked(engine), "Quarto is not installed"
    if quarto:
        try:
            return by_quarto(quarto, folder, say)
        except Fault as fault:
            if engine == "quarto":
                raise
            say(fault.what)
            why = "Quarto failed"
    page = by_nbconvert(folder)
    because = "" if engine == "nbconvert" else f", for {why} (with Quarto there is a PDF too)"
    say(f"rendered by nbconvert{because}")
    say(f"article: {page}")
    return page


def by_quarto(quarto: str, folder: Path, say: Callable[[str], None]) -> Path:
    """Render a Quarto project; return the article's page. Fault when Quarto fails or hangs."""
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
            errors = _until_idle(child)
        except BaseException:
            # quarto is a script around other programs: all of them must go, on Ctrl-C too.
            os.killpg(child.pid, signal.SIGKILL)
            raise
    return child.returncode, errors


def _until_idle(child: subprocess.Popen[str]) -> str:
    """Return what a child says on standard error until it ends; Fault when it does nothing."""
    watch = idle.Idle(child.pid)
    while True:
        try:
            return child.communicate(timeout=min(1.0, QUARTO_IDLE_S))[1]
        except subprocess.TimeoutExpired:
            if watch.for_s() >= QUARTO_IDLE_S:
                raise Fault(
                    f"Quarto did nothing for {QUARTO_IDLE_S} s",
                    "numalab report --engine nbconvert",
                ) from None


def by_nbconvert(folder: Path) -> Path:
    """Render ``index.ipynb`` and ``notebooks/*.ipynb`` of a folder; return the article's page.

    The pages are nbconvert's, with captions and our stylesheet; the code stands in those of the
    notebooks. They go where Quarto's would.
    """
    target = folder / OUTPUT
    target.mkdir(exist_ok=True)
    css = (folder / "article.css").read_text(encoding="utf-8")
    links = []
    for path in sorted((folder / "notebooks").glob("*.ipynb")):
        name = escape(title(path))
        body = _body(nbformat.read(path, as_version=4), code=True)
        (target / f"{path.stem}.html").write_text(_page(name, css, body), encoding="utf-8")
        links.append(f'<li><a href="{path.stem}.html">{name}</a> ({path.stem})</li>')
    foot = f"<footer><h2>Notebooks</h2><ul>{''.join(links)}</ul></footer>"
    for path in sorted(folder.glob("*.ipynb")):
        book = nbformat.read(path, as_version=4)
        _cite(book, folder / "references.bib")
        front = yaml.safe_load(book.cells.pop(0).source.strip().strip("-"))
        known = [key for key in ("title", "subtitle", "author", "date", "abstract") if key in front]
        if isinstance(front.get("author"), list):  # as Quarto has it for who is no person
            front["author"] = ", ".join(one["name"]["literal"] for one in front["author"])
        name, *below = (escape(str(front[key])) for key in known)
        head = f"<header><h1>{name}</h1>{''.join(f'<p>{line}</p>' for line in below)}</header>"
        page = _page(name, css, head + _body(book, code=False) + foot, front.get("lang", "en"))
        (target / f"{path.stem}.html").write_text(page, encoding="utf-8")
    return target / "index.html"


def _cite(book: Any, bibliography: Path) -> None:
    """Turn citations into links to a list of references, and drop what only Quarto makes."""
    text = bibliography.read_text(encoding="utf-8") if bibliography.is_file() else ""
    entries = {
        key: {name: re.sub(r"[{}\\\\]", "", value) for name, value in _FIELD.findall(fields)}
        for key, fields in _ENTRY.findall(text)
    }

    def link(found: re.Match[str]) -> str:
        keys = re.findall(r"@([\w-]+)", found[0])
        if not set(keys) <= set(entries):
            return found[0]
        names = [entries[key].get("author", entries[key]["title"]) for key in keys]
        said = ", ".join(f"[{n}](#ref-{key})" for n, key in zip(names, keys, strict=True))
        return f"({said})" if found[1] else said

    listed = "\n".join(
        f'- <a id="ref-{key}"></a>'
        + ". ".join(one[name] for name in ("author", "title", "year", "url") if name in one)
        for key, one in entries.items()
    )
    for cell in book.cells:
        texts = [(cell, "source")] if cell.cell_type == "markdown" else []
        texts += [(out.data, "text/markdown") for out in cell.get("outputs", []) if "data" in out]
        for place, name in texts:
            if name in place:
                place[name] = _ONLY_QUARTO.sub("", _CITED.sub(link, "".join(place[name])))
    if listed:
        book.cells.append(nbformat.v4.new_markdown_cell(f"## References\n\n{listed}"))


def title(path: Path) -> str:
    """Return a notebook's title: its first heading, else its file's name."""
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown" and cell.source.startswith("# "):
            return str(cell.source).splitlines()[0][2:].strip()
    return path.stem


def save_figure(notebook: Path, label: str, path: Path) -> None:
    """Save a labelled picture of an executed notebook as a file, for pages that are no notebook."""
    for cell in nbformat.read(notebook, as_version=4).cells:
        if _options(cell).get("label") == label:
            for output in cell.outputs:
                path.write_text(output.data["image/svg+xml"], encoding="utf-8")


def _body(book: Any, *, code: bool) -> str:
    from nbconvert import HTMLExporter

    _caption(book)
    exporter = HTMLExporter(
        template_name="basic",
        extra_template_basedirs=_templates(),
        extra_template_paths=_templates(),
        exclude_input=not code,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
    )
    return str(exporter.from_notebook_node(book)[0])


def _templates() -> list[str]:
    """Where nbconvert's templates lie.

    It looks below the prefix of Python alone, though its package may come from elsewhere.
    """
    conf = ("templates", "basic", "conf.json")
    files = importlib.metadata.files("nbconvert") or []
    found = [Path(one.locate()).resolve() for one in files if one.parts[-3:] == conf]
    return [str(one.parents[1]) for one in found]


def _caption(book: Any) -> None:
    """Give labelled cells an anchor and a caption, and make references links to them."""
    named: dict[str, str] = {}
    for cell in book.cells:
        label = _options(cell).get("label", "")
        kind = _NAMES.get(label.partition("-")[0])
        if kind and cell.outputs:
            number = sum(name.startswith(kind) for name in named.values()) + 1
            named[label] = f"{kind} {number}"
        texts = [cell.source] if cell.cell_type == "markdown" else []
        texts += [
            "".join(one.get("data", {}).get("text/markdown", "")) for one in cell.get("outputs", [])
        ]
        heads = [found for text in texts for found in _SECTION.findall(text)]
        named.update((anchor, head.strip("# ")) for head, anchor in heads)

    def linked(text: str) -> str:
        text = _SECTION.sub(r'<a id="\2"></a>\n\n\1', text)
        return _REFERENCE.sub(
            lambda found: f"[{named[found[1]]}](#{found[1]})" if found[1] in named else found[0],
            text,
        )

    cells = []
    for cell in book.cells:
        options = _options(cell)
        label = options.get("label", "")
        if cell.cell_type == "markdown":
            cell.source = linked(cell.source)
        for output in cell.get("outputs", []):
            if "text/markdown" in output.get("data", {}):
                output.data["text/markdown"] = linked("".join(output.data["text/markdown"]))
        if label in named:
            said = options.get(f"{label[:3]}-cap", "")
            alt = escape(options.get("fig-alt", said))
            for output in cell.outputs:
                if "image/svg+xml" in output.get("data", {}):  # nbconvert gives it no alt text
                    svg = b64encode(output.data.pop("image/svg+xml").encode()).decode()
                    source = f"data:image/svg+xml;base64,{svg}"
                    output.data["text/html"] = f'<img alt="{alt}" src="{source}">'
            said = linked(said)
            cells.append(
                nbformat.v4.new_markdown_cell(
                    f'<div class="caption" id="{label}">\n\n**{named[label]}.** {said}\n\n</div>'
                )
            )
        cells.append(cell)
    book.cells = cells


def _options(cell: Any) -> dict[str, str]:
    """A code cell's ``#|`` options."""
    return dict(_OPTION.findall(cell.source)) if cell.cell_type == "code" else {}


def _page(name: str, css: str, body: str, lang: str = "en") -> str:
    return (
        f'<!DOCTYPE html>\n<html lang="{lang}"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name}</title><style>{css}</style></head><body><main>{body}</main></body></html>\n"
    )
