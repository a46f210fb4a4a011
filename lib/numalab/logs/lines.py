"""What the parsers of captured outputs share: lines that hold something, and what stands once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from numalab.agent import cpulist
from numalab.agent.drivers.reading import Line, lines, refuse
from numalab.agent.errors import Fault


def filled(text: str, commands: Iterable[str]) -> list[Line]:
    """Return the lines of a captured text that are not empty, without the blanks around them.

    ``commands`` are the names under which the tool is called.
    """
    stripped = [Line(number, row.strip()) for number, row in lines(text, commands)]
    return [line for line in stripped if line.text]


class Once:
    """What was seen already: the second time is refused."""

    def __init__(self, tool: str) -> None:
        self.tool = tool
        self.seen: set[Hashable] = set()

    def add(self, line: Line, key: Hashable, what: object) -> None:
        """Note a key; ParseError when it is there already, naming ``what``."""
        if key in self.seen:
            refuse(self.tool, line, f"{what} a second time")
        self.seen.add(key)


def cpu_list(tool: str, line: Line, text: str) -> list[int]:
    """Return the numbers of a list in the kernel's format; ParseError when it is none."""
    try:
        return cpulist.parse(text)
    except Fault as fault:
        refuse(tool, line, fault.what)
