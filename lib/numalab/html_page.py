"""The article as one HTML page without Quarto: by nbconvert.

It does the part of Quarto's work that a reader would miss: the title block, numbered captions,
cross-references, embedded cells. Code is left out of the article and kept in the notebooks.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

import nbformat
import yaml

from numalab.agent.errors import Fault

_LABEL = re.compile(r"^#\|\s*(label|fig-cap|tbl-cap|output|echo):\s*(.*?)\s*$", re.MULTILINE)
_REFERENCE = re.compile(r"(?<![\w/])@((?:fig|tbl|sec)-[\w-]+)")
_EMBED = re.compile(r"^\{\{<\s*embed\s+(\S+?)#(\S+?)\s*>\}\}\s*$", re.MULTILINE)
_SECTION = re.compile(r"^(#+\s+.*?)\s*\{#(sec-[\w-]+)[^}]*\}\s*$", re.MULTILINE)
_NAMES = {"fig": "Figure", "tbl": "Table", "sec": "Section"}


def render(folder: Path) -> Path:
    """Render ``index.ipynb`` and ``notebooks/*.ipynb`` of a folder; return the article's page.

    The pages go to ``_manuscript/``, as Quarto's would.
    """
    target = folder / "_manuscript"
    target.mkdir(exist_ok=True)
    links = []
    for path in sorted((folder / "notebooks").glob("*.ipynb")):
        book = nbformat.read(path, as_version=4)
        page = target / f"{path.stem}.html"
        title = _title(book) or path.stem
        page.write_text(_page(_captioned(book, {}), title, folder, code=True), encoding="utf-8")
        links.append((page.name, title, path.stem))
    book = nbformat.read(folder / "index.ipynb", as_version=4)
    front = _front_matter(book)
    numbers = _numbers(book)
    body = _captioned(_embedded(book, folder), numbers)
    listed = "".join(f'<li><a href="{n}">{t}</a> ({s})</li>' for n, t, s in links)
    page = target / "index.html"
    page.write_text(
        _page(body, front.get("title", "numalab"), folder, front=front, footer=listed),
        encoding="utf-8",
    )
    return page


def _front_matter(book: Any) -> dict[str, Any]:
    """Take the article's YAML header out of its first raw or Markdown cell."""
    if not book.cells or not book.cells[0].source.startswith("---"):
        return {}
    header = book.cells.pop(0).source.strip().strip("-")
    return yaml.safe_load(header) or {}


def _title(book: Any) -> str | None:
    for cell in book.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("# "):
            return cell.source.splitlines()[0][2:].strip()
    return None


def _options(cell: Any) -> dict[str, str]:
    if cell.cell_type != "code":
        return {}
    return {key: value.strip("\"'") for key, value in _LABEL.findall(cell.source)}


def _numbers(book: Any) -> dict[str, str]:
    """Number figures and tables in the order of the text, sections by their headings."""
    counts: dict[str, int] = {}
    numbers = {}
    for cell in book.cells:
        label = _options(cell).get("label", "")
        kind = label.partition("-")[0]
        if kind in ("fig", "tbl"):
            counts[kind] = counts.get(kind, 0) + 1
            numbers[label] = f"{_NAMES[kind]} {counts[kind]}"
        if cell.cell_type == "markdown":
            for heading in re.findall(r"^## .*$", cell.source, re.MULTILINE):
                counts["sec"] = counts.get("sec", 0) + 1
                match = _SECTION.match(heading)
                if match:
                    numbers[match.group(2)] = f"{_NAMES['sec']} {counts['sec']}"
    return numbers


def _embedded(book: Any, folder: Path) -> Any:
    """Replace ``{{< embed notebooks/x.ipynb#label >}}`` by the labelled cell with its outputs."""
    cells = []
    for cell in book.cells:
        match = _EMBED.search(cell.source) if cell.cell_type == "markdown" else None
        if not match:
            cells.append(cell)
            continue
        path, label = match.groups()
        if not (folder / path).is_file():
            raise Fault(f"the article embeds {path}, which is not there", "see report/index.ipynb")
        other = nbformat.read(folder / path, as_version=4)
        found = [one for one in other.cells if _options(one).get("label") == label]
        if not found:
            raise Fault(f"the article embeds {path}#{label}, and it has no such cell")
        cells.append(found[0])
    book.cells = cells
    return book


def _captioned(book: Any, numbers: dict[str, str]) -> Any:
    """Give labelled cells an anchor and a caption; turn references into links."""
    def link(match: re.Match[str]) -> str:
        label = match.group(1)
        return f"[{numbers[label]}](#{label})" if label in numbers else match.group(0)

    def heading(match: re.Match[str]) -> str:
        number = numbers.get(match.group(2), "").partition(" ")[2]
        marks, _, words = match.group(1).partition(" ")
        return f'<a id="{match.group(2)}"></a>\n\n{marks} {number}. {words}'

    cells = []
    for cell in book.cells:
        options = _options(cell)
        if cell.cell_type == "markdown":
            cell.source = _REFERENCE.sub(link, _SECTION.sub(heading, cell.source))
        label = options.get("label")
        kind = (label or "").partition("-")[0]
        caption = options.get(f"{kind}-cap", "")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/markdown" in data:
                data["text/markdown"] = _REFERENCE.sub(link, "".join(data["text/markdown"]))
        if not label:
            cells.append(cell)
            continue
        number = numbers.get(label, "")
        words = f"<b>{number}.</b> {caption}" if number else caption
        line = f'<p class="caption" id="{label}">{words}</p>'
        made = nbformat.v4.new_markdown_cell(_REFERENCE.sub(link, line))
        # As in print: a table's caption stands above it, a figure's below.
        cells += [made, cell] if kind == "tbl" else [cell, made]
    book.cells = cells
    return book


def _page(
    book: Any,
    title: str,
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
        subtitle = escape(str(front.get("subtitle", "")))
        head = f"<header><h1>{escape(title)}</h1><p>{subtitle}</p></header>"
    if footer:
        footer = f"<footer><h2>Notebooks</h2><ul>{footer}</ul></footer>"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{css}</style></head>"
        f"<body><main>{head}{body}{footer}</main></body></html>\n"
    )
