"""Recorded text made harmless for where it is shown.

A run directory may come from a stranger. Its texts (host, model, labels, reasons) pass through one
of these functions on their way to a page or a terminal: no tag, no link, no formula and no control
character of theirs has any effect there.
"""

from __future__ import annotations

import html as _html
import re

# C0 and C1 controls, line and paragraph separators, marks that reorder or hide text
# (https://www.unicode.org/reports/tr9/), and halves of surrogate pairs. Tab and line feed are kept.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_MARKDOWN = re.compile(r"([\\`*\[\]{}|$@~^!]|(?<![^\W_])_|_(?![^\W_]))")
_FIRST = re.compile(r"^(\s*)([#+>=:-]|\d+(?=[.)]))")


def terminal(text: object) -> str:
    r"""Return text for a terminal, line feeds kept: a control character shows as \u001b.

    JSON text keeps its meaning: these are JSON's own escapes.
    """
    return _UNSEEN.sub(lambda found: f"\\u{ord(found.group()):04x}", str(text))


def line(text: object) -> str:
    """Return text for one line of a terminal or a chart: as `terminal`, without line feeds."""
    return terminal(" ".join(str(text).split()))


def html(text: object) -> str:
    """Return text for the content or a quoted attribute of an HTML or SVG element."""
    return _html.escape(terminal(text), quote=True)


def markdown(text: object) -> str:
    """Return text for a place within a line of Markdown (also a table's cell)."""
    plain = _html.escape(line(text), quote=False)
    marked = _MARKDOWN.sub(r"\\\1", plain).replace("://", "&#58;//")  # a bare address is no link
    return _FIRST.sub(r"\1\\\2", marked) if not plain[:1].isdigit() else marked


def code(text: object) -> str:
    """Return text as a code span of Markdown, also for a table's cell."""
    return f"`{verbatim(text)}`".replace("|", "\\|")


def verbatim(text: object) -> str:
    """Return text for a line of a code block of Markdown: Quarto's shortcodes work there, too."""
    return re.sub(r"\{(?=\{[<%])", "{ ", line(text)).replace("`", "'")
