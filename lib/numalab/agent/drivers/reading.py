"""Reading captured terminal output: lines without their harmless surroundings, strict numbers.

What is taken off is only what no tool of ours prints: carriage returns, a byte order mark,
colour escapes, a quote prefix that every line carries, Markdown fences, shell prompts, the echo of
the tool's own command line and what `time` adds. Everything else is left for the parser to judge.
"""

from __future__ import annotations

import re
from typing import Iterable, Iterator, List, NamedTuple, NoReturn, Optional, Sequence, Tuple

from ..contract import Record
from ..errors import ParseError

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LONGEST = 32_768
_DEEPEST_QUOTE = 20
_ENDLESS = re.compile(r"\d{200}")
_PROMPTS = (  # each with the command after it
    # user@host:~$   [user@host dir]#   user@host ~ %   bash-5.1$   (venv) user@host:~>
    r"(?:\([\w.-]+\)\s*)?(?:\[?[\w.-]+@[\w.-]+(?:[: ][^\]$#%>]*)?\]?|(?:ba|z|k)?sh-[\d.]+"
    r"|\[[\w.-]+ [^\]]*\])\s?[$#%>](?:\s.*)?",
    r"[A-Za-z][\w.-]*:[~/]\S* [#>](?:\s.*)?",  # SUSE's root: host:~ #
    r"[➜❯╭╰].*",  # usual themes of zsh
    r"[A-Za-z][\w.-]*%",  # zsh: host%
)
_TIMED = (  # what time adds below: of bash and ksh, of zsh, of csh, GNU's, GNU's -v
    r"(?:real|user|sys)\s+(?:\d+m)?\d+[.,]\d+s?",
    r"\S.* [\d.,]+s user [\d.,]+s system \d+% cpu [\d:.,]+ total",
    r"[\d.]+u [\d.]+s [\d:.]+ [\d.]+%\s.*",
    r"[\d.]+user [\d.]+system [\d:.]+elapsed \S+CPU \(.*",
    r"\d+inputs\+\d+outputs \(.*\)pagefaults \d+swaps",
    r"(?:Command being timed|User time|System time|Percent of CPU|Elapsed \(wall|Average \w+ "
    r"|Maximum resident|Major \(|Minor \(|Voluntary context|Involuntary context|Swaps"
    r"|File system \w+puts|Socket messages|Signals delivered|Page size|Exit status).*: .*",
)
_HARMLESS = re.compile(rf"\s*(?:```\w*|{'|'.join(_PROMPTS + _TIMED)})\s*\Z")


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
    for _ in range(_DEEPEST_QUOTE):
        if not any(rows) or not all(row.lstrip().startswith(">") for row in rows if row):
            break
        rows = [re.sub(r"^\s*> ?", "", row) for row in rows]
    harmless = _HARMLESS
    names = "|".join(re.escape(name) for name in commands)
    if names:
        before = r"(?:[^\s=]+=\S* +|sudo +|env +|time +|numactl +-\S+ +)*(?:[\w./~-]*/)?"
        command = rf"{before}(?:{names})"
        given = rf"(?:{command}|(?:sudo +)?cat +[\w./~-]+)"
        prompted = rf"(?:[A-Za-z][\w.-]*%|[$#%>]) *{given}(?:\s.*)?|[$%>]"
        alone = rf"{command}(?:\s+(?:-|\||[12]?>).*)?"
        harmless = re.compile(rf"{_HARMLESS.pattern}|\s*(?:{prompted}|{alone})\Z")
    for n, row in enumerate(rows, 1):
        if len(row) > _LONGEST or _ENDLESS.search(row):
            raise ParseError("captured text", n, row, "no tool prints a line or a number so long")
    return [Line(n, "" if harmless.match(row) else row) for n, row in enumerate(rows, 1)]


def appended(
    rows: Iterable[Line], first: re.Pattern[str], last: re.Pattern[str]
) -> List[List[Line]]:
    """Return the lines of each run in a text, blank ones left out.

    A run begins at a line that ``first`` matches. What stands above it, below the line of the run
    before that ``last`` matches, is a script's, or what the tool prints above its name: it goes
    with the run that begins. A run without such a line was cut: all lines up to the next are its
    own, so that its parser refuses what it cannot read.
    """
    runs: List[List[Line]] = [[]]
    begun, end = False, 0  # how many lines of the run are surely its own
    for line in rows:
        said = line.text.strip()
        if first.match(said):
            if begun:
                end = end or len(runs[-1])
                runs[-1:] = [runs[-1][:end], runs[-1][end:]]
            begun, end = True, 0
        if said:
            runs[-1].append(line)
        if begun and last.match(said):
            end = len(runs[-1])
    return runs


def numbered(runs: Sequence[List[Record]]) -> List[Record]:
    """Return the records of the runs in one text: with ``run``, from 1, where there are several."""
    if len(runs) == 1:
        return runs[0]
    return [{**record, "run": n} for n, one in enumerate(runs, 1) for record in one]


def by_run(records: Sequence[Record]) -> Iterator[Tuple[str, List[Record]]]:
    """Yield the records of each run with its name in a point; of the only one with ""."""
    for run in dict.fromkeys(record.get("run") for record in records):
        own = [record for record in records if record.get("run") == run]
        yield (f"run {run}" if run else ""), own


def refuse(tool: str, line: Optional[Line], why: str) -> NoReturn:
    """Raise ParseError for a line, or for the output as a whole when there is none."""
    raise ParseError(tool, line.number if line else 0, line.text if line else "", why)
