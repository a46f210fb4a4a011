"""Reading captured terminal output: lines without their harmless surroundings, strict numbers.

What is taken off is only what no tool of ours prints: carriage returns, a byte order mark,
colour escapes, a quote prefix that every line carries, Markdown fences, shell prompts and the
echo of the tool's own command line. Everything else is left for the parser to judge.
"""

from __future__ import annotations

import re
from typing import Iterable, List, NamedTuple, NoReturn, Optional

from ..contract import Record
from ..errors import ParseError

__all__ = ["Line", "Record", "lines", "refuse"]

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_FENCE = re.compile(r"\s*```\w*\s*\Z")
_LONGEST = 32_768
_ENDLESS = re.compile(r"\d{200}")
# user@host:~$ cmd   [user@host dir]# cmd   bash-5.1$ cmd   (venv) user@host:~$ cmd
_HOST_PROMPT = re.compile(
    r"\s*(?:\([\w.-]+\)\s*)?"
    r"(?:\[?[\w.-]+@[\w.-]+(?:[: ][^\]$#%>]*)?\]?|(?:ba|z|k)?sh-[\d.]+|\[[\w.-]+ [^\]]*\])"
    r"\s?[$#%>](?:\s.*)?\Z"
)


class Line(NamedTuple):
    """One line of the text: its number in the text as captured (from 1) and its content."""

    number: int
    text: str


def lines(text: str, commands: Iterable[str] = ()) -> List[Line]:
    """Return the lines of a captured text; prompts, fences and command echoes become blank.

    ``commands`` are the names under which the tool is called: a line such as
    ``$ sudo numactl -H`` or ``lscpu -e`` is the echo of a command and not output. ParseError for
    a number of hundreds of digits or an endless line: nothing that a tool prints.
    """
    rows = text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    rows = [re.sub(r"\A\^C", "", _COLOUR.sub("", row)).rstrip() for row in rows]
    while any(rows) and all(row.lstrip().startswith(">") for row in rows if row):
        rows = [re.sub(r"^\s*> ?", "", row) for row in rows]
    echo = None
    names = "|".join(re.escape(name) for name in commands)
    if names:
        command = rf"(?:\S+=\S* +|sudo +|env +|time +|numactl +-\S+ +)*(?:[\w./~-]*/)?(?:{names})"
        echo = re.compile(
            rf"\s*(?:[$#%>] *{command}(?:\s.*)?|[$%>]|{command}(?:\s+(?:-|\||[12]?>).*)?)\Z"
        )

    def noise(row: str) -> bool:
        if _FENCE.match(row) or _HOST_PROMPT.match(row):
            return True
        return bool(echo and echo.match(row))

    for n, row in enumerate(rows, 1):
        if len(row) > _LONGEST or _ENDLESS.search(row):
            raise ParseError("captured text", n, row, "no tool prints a line or a number so long")
    return [Line(n, "" if noise(row) else row) for n, row in enumerate(rows, 1)]


def refuse(tool: str, line: Optional[Line], why: str) -> NoReturn:
    """Raise ParseError for a line, or for the output as a whole when there is none."""
    raise ParseError(tool, line.number if line else 0, line.text if line else "", why)
