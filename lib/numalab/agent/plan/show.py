"""A plan for a reader: as `numalab plan` prints it, and in a line."""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from .. import cpulist
from ..contract import CONTROL, Bound, Cell, Plan, Reason, Skip, reason
from ..words import units
from ..words.plan import settings as settings_in_words
from .kinds import LEAST_WITHIN, MOST_UNEVEN
from .make import differing, settings
from .resolve import Key, key


def text(plan: Plan, width: int = 100) -> str:
    """Return a plan as ``numalab plan`` prints it, wrapped to ``width`` columns."""
    return _Page(plan, width).text()


_SHOWN_VISITS = 16  # of a tour with more, one of each binding and distance is shown


class _Page:
    """The lines of a printed plan, and what was already said on it."""

    def __init__(self, plan: Plan, width: int) -> None:
        self.plan = plan
        self.width = max(width, 40)
        self.lines: List[str] = []
        labels = max((len(cell.label) for cell in plan.cells), default=0)
        self.column = " " * (min(labels, 30) + 2)
        self.shown: Dict[Key, str] = {}  # the cell that showed a binding
        self.said: Set[str] = set()

    def text(self) -> str:
        """Return the whole page."""
        self._head()
        alike = _alike(self.plan)
        for cell in self.plan.cells:
            if cell.id not in alike:
                self._cell(cell)
                more = list(alike.values()).count(cell.id)
                if more:
                    said = f"and {units.count(more, 'cell')} more like it, on other nodes"
                    self._put(said, self.column + "· ", self.column + "  ")
        if self.plan.skipped:
            self.lines += ["", "skipped:"]
            for line in skipped_lines(self.plan):
                self._put(line, "– ", "  ")
        return "\n".join(self.lines) + "\n"

    def _put(self, line: str, indent: str = "", hang: str = "") -> None:
        room = self.width - len(hang or indent)
        self.lines += textwrap.wrap(
            line if "numactl --" in line else _with_breaks(line, room),  # it is to be pasted
            self.width,
            initial_indent=indent,
            subsequent_indent=hang or indent,
            break_long_words=False,
            break_on_hyphens=False,
        )

    def _head(self) -> None:
        plan, request, tool = self.plan, self.plan.request, self.plan.tool
        self._put(f"{request.experiment} ({request.profile}) on {request.host}")
        if request.question:
            self._put(request.question)
        version = f" {tool.version}" if tool.version else ""
        path = f" ({tool.path})" if tool.path else ""
        why = f", because {'; '.join(tool.why)}" if tool.why else ""
        self._put(f"tool: {tool.name}{version}{path}{why}")
        if plan.client and plan.client.host:
            self._put(f"client: on {plan.client.host}")
        elif plan.client and plan.client.cpus:
            self._put(f"client: CPUs {plan.client.cpus}, in every cell")
        elif plan.client:
            self._put(f"client shares CPUs: {plan.client.why}")
        if plan.outlay:
            once = "prepared"
            if plan.outlay.prepare_s:
                once = f"to be prepared once, about {units.seconds(plan.outlay.prepare_s)}"
            self._put(f"{plan.outlay.says}; {once}")
        self._put(f"plan: {summary(plan)}; seed {request.seed}")
        for tour in plan.tours:
            took = units.seconds(tour.timing.total_s)
            self._put(
                f"{tour.label}: one trial in each block visits them in an order of its own, each "
                f"with its own proof and samples, about {took}"
            )
        for warning in plan.warnings:
            self._put(str(warning), "⚠ ", "  ")
        for name, value in common_settings(plan).items():
            self._put(f"every trial runs with {name} = {value}", "· ", "  ")
        own = [f"{n} = {value}" for n, value in plan.settings.items() if n not in settings(plan)]
        if own:
            self._put(f"every cell holds the host's own {', '.join(own)}", "· ", "  ")

    def _cell(self, cell: Cell) -> None:
        self.lines.append("")
        column = self.column
        label = f"{cell.label:<{len(column)}}"
        if len(cell.label) + 2 > len(column):
            self.lines.append(cell.label)
            label = column
        before = self.shown.get(key(cell))
        if before and (cell.role == CONTROL or cell.sweep):
            before = (cell.baseline if cell.role == CONTROL else None) or before
            threads = units.count(cell.threads, "thread")
            self._put(f"all as {before}; {threads}{_against(cell)}", label, column)
            if cell.stands_for and not self.plan.cell[before].stands_for:
                self._put(str(cell.stands_for), column + "· ", column + "  ")
            return
        if before:  # in another case
            self._put(f"bound as {before}{_against(cell)}", label, column)
        else:
            self._put(_where(cell), label, column)
            self._bindings(cell)
        self.shown.setdefault(key(cell), cell.id)
        special = conditions(self.plan, cell)
        if special:
            self._put(f"with {special}", column)
        for note in map(str, [*filter(None, [cell.stands_for]), *cell.notes]):
            if not (cell.case and note in self.said):
                self._put(note, column + "· ", column + "  ")
            self.said.add(note)

    def _bindings(self, cell: Cell) -> None:
        """How the cell, or each of its instances, is started, and what that must prove."""
        if not cell.instances:
            self._put(" ".join(cell.numactl) or "not bound", self.column)
            self._put(_proof(cell), self.column)
        for one in cell.instances:
            started = " ".join(one.numactl) or "not bound"
            self._put(f"{one.name}: {started}", self.column)
            if one.expects.memory.rule:
                self._put(_proof(one), self.column)


def _alike(plan: Plan) -> Dict[str, str]:
    """Return those cells of large tours that another one shows as well: its id by theirs."""
    found: Dict[str, str] = {}
    for tour in plan.tours:
        first: Dict[Tuple[str, str, Optional[int]], str] = {}
        for cell in (plan.cell[id] for id in tour.visits if len(tour.visits) > _SHOWN_VISITS):
            shown = first.setdefault((cell.binding, cell.role, cell.distance), cell.id)
            if shown != cell.id:
                found[cell.id] = shown
    return found


def conditions(plan: Plan, cell: Cell) -> str:
    """Return what is special about a case's cell in words: its options and its host settings.

    Options are named where they are not those of the cell that it is compared with, or, of that
    cell itself, where the case sets them; settings unless all cells have them.
    """
    if not cell.case:
        return ""
    if cell.baseline in plan.cell:
        options = differing(cell, plan.cell[cell.baseline])
    else:
        cases = {case.name: case.options for case in plan.request.cases}
        options = {name: cell.options.get(name) for name in cases.get(cell.case.name, {})}
    words = {"None": "not set", "True": "yes", "False": "no"}
    said = [f"{name}: {words.get(str(value), value)}" for name, value in options.items()]
    shared = common_settings(plan)
    said += [f"{n} = {value}" for n, value in cell.changes.items() if shared.get(n) != value]
    return ", ".join(said)


def common_settings(plan: Plan) -> Dict[str, str]:
    """Return the host settings under which all cells of a plan are measured."""
    found = [cell.changes.items() for cell in plan.cells]
    return dict(one for one in found[0] if all(one in other for other in found)) if found else {}


def settings_text(plan: Plan) -> str:
    """Return every host setting with its values for a reader: ``vm.swappiness = 0 or 60``."""
    return settings_in_words(settings(plan))


def _with_breaks(line: str, room: int) -> str:
    """Return the line with spaces after commas of words, as lists of CPUs, that are too wide."""
    part = re.compile(rf"(\S{{1,{room - 1}}},)(?=\S)")
    return " ".join(part.sub(r"\1 ", w) if len(w) > room else w for w in line.split(" "))


def skipped_lines(plan: Plan) -> List[str]:
    """Return one line per reason for which something asked for is not measured."""
    return [f"{cells}: {why}" for cells, why in skipped(plan)]


def skipped(plan: Plan) -> List[Tuple[str, str]]:
    """Return what is not measured and why: once for each reason, whichever nodes it is about."""
    alike: Dict[str, List[Skip]] = {}
    for skip in plan.skipped:
        alike.setdefault(str(_about(skip.reason, [0])), []).append(skip)
    found = []
    for skips in alike.values():
        nodes = [skip.reason.fields.get("node") for skip in skips]
        cells = list(dict.fromkeys(skip.cell for skip in skips))
        found.append((_first(cells), str(_about(skips[0].reason, nodes))))
    return found


def _about(why: Reason, nodes: Sequence[Any]) -> Reason:
    """Return a reason that names a node for these nodes; any other as it is."""
    if not isinstance(why.fields.get("node"), int):
        return why
    return replace(why, fields={**why.fields, "node": cpulist.format(nodes)})


def _first(cells: Sequence[str]) -> str:
    """Return the names of cells; of many only some, and how many more there are."""
    if len(cells) <= 9:
        return ", ".join(cells)
    return f"{', '.join(cells[:8])} and {len(cells) - 8} more"


def summary(plan: Plan) -> str:
    """Return the size of a plan in a line: cells by binding, blocks, trials, duration."""
    kinds: Dict[str, int] = {}
    for cell in plan.cells:
        kind = "A/A control" if cell.role == CONTROL else cell.binding
        kinds[kind] = kinds.get(kind, 0) + 1
    listed = ", ".join(kind if n == 1 else f"{n} {kind}" for kind, n in kinds.items())
    cases = {cell.case.name for cell in plan.cells if cell.case}
    if cases:
        listed += f"; {units.count(len(cases), 'case')}"
    cells = units.count(len(plan.cells), "cell") + (f" ({listed})" if listed else "")
    most = "up to " if plan.request.looks else ""
    return (
        f"{cells} × {most}{units.count(plan.request.blocks, 'block')} = "
        f"{units.count(len(plan.order), 'trial')}, about {units.seconds(plan.estimate.total_s)}"
    )


def _where(cell: Cell) -> str:
    cpus = "any allowed CPU"
    if cell.cpus is not None:
        on = f" of {units.listed('node', cell.cpu_nodes)}" if cell.cpu_nodes else ""
        cpus = units.listed("CPU", cell.cpus) + on
    memory = reason(f"memory-{cell.memory.policy}", nodes=cell.memory.nodes)
    distance = f" (distance {cell.distance})" if cell.distance is not None else ""
    rank = f", {' and '.join(cell.rank)}" if cell.rank else ""
    threads = units.count(cell.threads, "thread")
    return f"{cpus}, {threads}; memory {memory}{distance}{rank}{_against(cell)}"


def _against(cell: Cell) -> str:
    return f"; against {cell.baseline}" if cell.baseline else ""


def _proof(cell: Bound) -> str:
    memory, cpus = cell.expects.memory, cell.expects.cpus
    pages = "where its pages are is recorded"
    if memory.rule == "within":
        share = units.percent(LEAST_WITHIN)
        pages = f"at least {share} of its pages on {units.listed('node', memory.nodes or '')}"
    elif memory.rule == "shares":
        which = "its interleaved pages" if memory.policy else "its pages"
        pages = f"{which} on each of {units.listed('node', memory.nodes or '')}, "
        pages += f"{units.percent(MOST_UNEVEN)} more or less than its fair share at most"
    threads = "its threads stay on these CPUs"
    if cpus.proof != "required":
        threads = "where its threads run is recorded"
    return f"proof: {pages}; {threads}"
