"""The errors that reach a person: a fault to act on, what a host lacks, and unreadable output."""

from __future__ import annotations

from typing import Optional, Union

from .reasons import Reason


class Fault(Exception):
    """Something a person must know about: what is wrong and where, and what to do about it.

    ``what`` is one sentence without a final full stop, or a ``Reason`` where the fault may become
    data (a skip, a trial's reason); ``hint`` says what to do, or is None. ``reason`` is the fault
    as data.
    """

    def __init__(self, what: Union[str, Reason], hint: Optional[str] = None) -> None:
        super().__init__(str(what))
        self.what = str(what)
        self.hint = hint
        self._reason = None if isinstance(what, str) else what

    @property
    def reason(self) -> Reason:
        """The fault as a code with fields; a free text has the code ``fault``."""
        return self._reason or Reason("fault", {"what": self.what, "hint": self.hint})

    def __str__(self) -> str:
        stop = "" if self.what.endswith(("?", ".", "…")) else "."
        return f"{self.what}{stop} {self.hint}" if self.hint else self.what


class NotHere(Fault):
    """What is asked for cannot be had on this host, and is not wrong: another host may have it."""


class ParseError(Fault):
    """A tool's output holds a line that its parser does not understand.

    ``line_number`` counts from 1; 0 means that the output as a whole is at fault (for
    instance: it is empty, or a section that must be there is missing).
    """

    def __init__(self, tool: str, line_number: int, line: str, why: str) -> None:
        where = f"line {line_number}" if line_number else "the output as a whole"
        shown = line if len(line) <= 120 else line[:117] + "..."
        quoted = f" ({shown!r})" if line_number else ""
        super().__init__(f"{tool}: {where}{quoted}: {why}")
        self.tool = tool
        self.line_number = line_number
        self.line = line
        self.why = why
