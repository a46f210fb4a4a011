"""The article as one HTML page without Quarto: by nbconvert.

It does the part of Quarto's work that a reader would miss: the title block, numbered sections and
captions, cross-references, embedded cells. Code is left out of the article and kept in the
notebooks.
"""

from __future__ import annotations

import re
from base64 import b64encode
from html import escape
from pathlib import Path
from typing import Any

import nbformat
import yaml

from numalab.agent.errors import Fault

_OPTION = re.compile(r"^#\|(.*)$", re.MULTILINE)
_REFERENCE = re.compile(r"(?<![\w/`])@((?:fig|tbl|sec)-[\w-]+)")
_EMBED = re.compile(r"^\{\{<\s*embed\s+(\S+?)#(\S+?)\s*>\}\}[ \t]*$", re.MULTILINE)
_SECTION = re.compile(r"^(###?)[ \t]+(.*?)[ \t]*(?:\{#([\w-]+)[^}]*\})?[ \t]*$", re.MULTILINE)
_NAMES = {"fig": "Figure", "tbl": "Table"}


def render(folder: Path) -> Path:
    """Render ``index.ipynb`` and ``notebooks/*.ipynb`` of a folder; return the article's page.

    The pages go to ``_manuscript/``, as Quarto's would. Raises Fault when the article embeds a
    cell that is not there, or a cell's options cannot be read.
    """
    target = folder / "_manuscript"
    target.mkdir(exist_ok=True)
    links = []
    for path in sorted((folder / "notebooks").glob("*.ipynb")):
        book = nbformat.read(path, as_version=4)
        page = target / f"{path.stem}.html"
        page.write_text(
            _page(_captioned(book, {}), title(path), folder, code=True), encoding="utf-8"
        )
        links.append(f'<li><a href="{page.name}">{escape(title(path))}</a> ({path.stem})</li>')
    book = nbformat.read(folder / "index.ipynb", as_version=4)
    front = _front_matter(book)
    book = _embedded(book, folder)
    body = _captioned(book, _numbers(book))
    page = target / "index.html"
    page.write_text(
        _page(body, str(front.get("title", "numalab")), folder, front=front, footer="".join(links)),
        encoding="utf-8",
    )
    return page


def title(path: Path) -> str:
    """Return a notebook's title: its first heading, else its file's name."""
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown" and cell.source.startswith("# "):
            return cell.source.splitlines()[0][2:].strip()
    return path.stem


def _front_matter(book: Any) -> dict[str, Any]:
    """Take the article's YAML header out of its first raw or Markdown cell."""
    if not book.cells or not book.cells[0].source.startswith("---"):
        return {}
    header = book.cells.pop(0).source.strip().strip("-")
    return yaml.safe_load(header) or {}


def _options(cell: Any) -> dict[str, Any]:
    """Return a code cell's ``#|`` options."""
    if cell.cell_type != "code":
        return {}
    lines = "\n".join(line.strip() for line in _OPTION.findall(cell.source))
    try:
        return yaml.safe_load(lines) or {}
    except yaml.YAMLError as error:
        raise Fault(
            f"these options of a notebook's cell are not YAML: {lines!r} ({error})"
        ) from None


def _embedded(book: Any, folder: Path) -> Any:
    """Replace each ``{{< embed notebooks/x.ipynb#label >}}`` by that labelled cell's outputs."""
    cells = []
    for cell in book.cells:
        if cell.cell_type != "markdown":
            cells.append(cell)
            continue
        # Text and the two groups of each embed take turns.
        text, *rest = _EMBED.split(cell.source)
        cells.append(nbformat.v4.new_markdown_cell(text))
        for path, label, after in zip(rest[::3], rest[1::3], rest[2::3]):
            cells += [_cell(folder, path, label), nbformat.v4.new_markdown_cell(after)]
    book.cells = cells
    return book


def _cell(folder: Path, path: str, label: str) -> Any:
    if not (folder / path).is_file():
        raise Fault(f"the article embeds {path}, which is not there", "see report/index.ipynb")
    for cell in nbformat.read(folder / path, as_version=4).cells:
        if _options(cell).get("label") == label:
            return cell
    raise Fault(f"the article embeds {path}#{label}, and it has no such cell")


def _numbers(book: Any) -> dict[str, str]:
    """Name figures, tables and sections by their numbers, in the order of the text."""
    counts = {"fig": 0, "tbl": 0}
    sections = _Sections()
    numbers = {}
    for cell in book.cells:
        label = _options(cell).get("label", "")
        kind = label.partition("-")[0]
        if kind in _NAMES:
            counts[kind] += 1
            numbers[label] = f"{_NAMES[kind]} {counts[kind]}"
        if cell.cell_type == "markdown":
            for marks, _, identifier in _SECTION.findall(cell.source):
                numbers[identifier] = f"Section {sections.number(marks)}"
    return numbers


class _Sections:
    """Counts sections and their parts, in the order of the text: 1, 2, 2.1, 2.2, 3."""

    def __init__(self) -> None:
        self.section = self.part = 0

    def number(self, marks: str) -> str:
        """Return the number of the next heading with these marks (## or ###)."""
        if marks == "##":
            self.section, self.part = self.section + 1, 0
            return str(self.section)
        self.part += 1
        return f"{self.section}.{self.part}"


def _captioned(book: Any, numbers: dict[str, str]) -> Any:
    """Give sections numbers, labelled cells an anchor and a caption, references their links.

    Without numbers (a notebook of its own) only the captions are set.
    """

    def link(match: re.Match[str]) -> str:
        label = match.group(1)
        return f"[{numbers[label]}](#{label})" if label in numbers else match.group(0)

    sections = _Sections()

    def heading(match: re.Match[str]) -> str:
        marks, words, identifier = match.groups()
        anchor = f'<a id="{identifier}"></a>\n\n' if identifier else ""
        number = f"{sections.number(marks)} " if numbers else ""
        return f"{anchor}{marks} {number}{words}"

    cells = []
    for cell in book.cells:
        if cell.cell_type == "markdown":
            cell.source = _REFERENCE.sub(link, _SECTION.sub(heading, cell.source))
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/markdown" in data:
                data["text/markdown"] = _REFERENCE.sub(link, "".join(data["text/markdown"]))
        options = _options(cell)
        label = options.get("label", "")
        kind = label.partition("-")[0]
        if kind not in _NAMES:
            cells.append(cell)
            continue
        said = str(options.get(f"{kind}-cap", ""))
        number = f"**{numbers[label]}.** " if label in numbers else ""
        words = _REFERENCE.sub(link, number + said)
        for output in cell.outputs:
            if "image/svg+xml" in output.get("data", {}):  # nbconvert has no other way to an alt
                svg = b64encode(output.data.pop("image/svg+xml").encode()).decode()
                source = f"data:image/svg+xml;base64,{svg}"
                output.data["text/html"] = f'<img alt="{escape(said)}" src="{source}">'
        anchor = nbformat.v4.new_markdown_cell(f'<a id="{label}"></a>')
        caption = nbformat.v4.new_markdown_cell(f'<div class="caption">\n\n{words}\n\n</div>')
        # As in print: a table's caption stands above it, a figure's below.
        cells += [anchor, caption, cell] if kind == "tbl" else [anchor, cell, caption]
    book.cells = cells
    return book


def _page(
    book: Any,
    name: str,
    folder: Path,
    *,
    code: bool = False,
    front: dict[str, Any] | None = None,
    footer: str = "",
) -> str:
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(
        template_name="basic",
        exclude_input=not code,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        sanitize_html=False,
    )
    body, _ = exporter.from_notebook_node(book)
    css = (folder / "article.css").read_text(encoding="utf-8")
    head = ""
    if front:
        lines = [front[key] for key in ("subtitle", "author") if key in front]
        below = "".join(f"<p>{escape(str(line))}</p>" for line in lines)
        head = f"<header><h1>{escape(name)}</h1>{below}</header>"
    if footer:
        footer = f"<footer><h2>Notebooks</h2><ul>{footer}</ul></footer>"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)}</title><style>{css}</style></head>"
        f"<body><main>{head}{body}{footer}</main></body></html>\n"
    )
