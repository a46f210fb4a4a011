"""Which binding to use on a host, by its own results; or that none can be told from the default.

The default is the cell ``unbound``: the kernel's own choice of CPUs and memory. Every other cell
of the same load is compared with it by the judge, whose bounds hold for all of them together: the
best of many looks better than it is. Verified trials only.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import polars as pl
from scipy import stats

from .. import escape, tables
from ..agent import cpulist
from ..agent.contract import CONTROL, VERIFIED, Bound, Cell, Host, reason
from ..agent.plan import kinds
from ..agent.words import units
from ..runs import Run
from . import evidence, judge
from .evidence import BLOCKS_NEEDED, SMALL_DATA
from .judge import DEFAULT, Effect
from .paste import Lines, paste


@dataclass(frozen=True)
class Recommendation:
    """``cell`` is the id of the recommended cell, None where nothing is recommended.

    ``says`` is a sentence with the figures that decided; ``costs``, ``alike`` (bindings that
    cannot be told from the recommended one), ``elsewhere`` (the same binding under the run's
    other loads) and ``parts`` (what of the gain is splitting, and what binding) are sentences as
    well; ``paste`` is empty where nothing is recommended.
    """

    cell: str | None
    says: str
    costs: list[str] = field(default_factory=list)
    alike: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    paste: list[Lines] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)


def suitable(run: Run) -> bool:
    """Say whether a run compares bindings with the default at all, in a metric that decides."""
    return _unsuitable(run) is None


def _unsuitable(run: Run) -> str | None:
    if not any(len(cells) > 1 and _default(cells) is not None for cells in _loads(run).values()):
        return "This run compares no binding with the default (unbound)."
    headline = next(iter(run.measures), "")
    found = len(run.points(headline)) if headline else 0
    if found > 1:  # instances, pairs of nodes
        return f"Nothing is recommended: {tables.plain(headline)} has several points, none decides."
    return None if found else "Nothing is recommended: what the run asks for was not measured."


def of(run: Run) -> Recommendation:
    """Return what a run recommends for its host."""
    unsuitable = _unsuitable(run)
    if unsuitable:
        return Recommendation(None, unsuitable)
    headline = _Headline(run)
    if not evidence.real(run, headline.metric, headline.unit):
        return Recommendation(
            None, "Emulated host: its timings carry no NUMA meaning, so nothing is recommended."
        )
    load, cells, default = _with_default(run)
    others = [cell for cell in cells if cell is not default and not _without_balancer(cell)]
    effects = {cell.id: headline.judge.compare(cell.id, default.id) for cell in others}
    refused = _refused(run, headline, default, list(effects.values()))
    if refused:
        return Recommendation(None, refused)
    usable = [cell for cell in others if effects[cell.id].decided]
    best = max(usable, key=lambda cell: headline.sign * (effects[cell.id].ratio or 0))
    figures = f"{_words(best, effects[best.id])} {headline.words}"
    ground = f"{headline.control_words()}, {effects[best.id].n} blocks{_together(len(others))}"
    better = f"{headline.better} is better"
    if not headline.gains(effects[best.id]):
        text = f"No binding can be told from the default ({default.label}) here"
        if all(headline.loses(effects[cell.id]) for cell in usable):
            text = f"No binding is better than the default ({default.label}) here: all are worse"
        nearest = "Best" if effects[best.id].log * headline.sign > 0 else "Nearest to it"
        return Recommendation(None, f"{text}. {nearest}: {figures} ({better}); {ground}.")
    mean, base = (tables.number(headline.mean(cell)) for cell in (best, default))
    return Recommendation(
        best.id,
        f"{_do(best)}: {figures} against the default ({default.label}): {mean} against {base} "
        f"{headline.unit}, {better}; {ground}.",
        list(_costs(run, headline, best, default)),
        [
            _words(cell, effects[cell.id])
            for cell in usable
            if cell is not best and not headline.judge.compare(cell.id, best.id).different
        ],
        list(_elsewhere(run, headline, best, load)),
        paste(run.plan.tool, best),
        list(_parts(headline, cells, best, default)),
    )


def _do(cell: Cell) -> str:
    """What a cell does to the default, in an imperative: not all of them bind."""
    if cell.numactl or any(one.numactl for one in cell.instances):
        return "Bind it"
    return "Split it" if cell.instances else "Set it"


class _Headline:
    """The run's first measure, and its judge."""

    def __init__(self, run: Run) -> None:
        self.metric, measure = next(iter(run.measures.items()))
        self.point = run.points(self.metric)[0]
        self.better, self.unit = measure.better, measure.unit
        self.words = tables.plain(self.metric)
        self.sign = 1 if self.better == "higher" else -1
        self.rows = evidence.deciding_rows(run.measurements, self.metric)
        self.judge = judge.of(run.measurements, run.plan, self.metric, self.point)

    def gains(self, effect: Effect) -> bool:
        return effect.different and effect.log * self.sign > 0

    def loses(self, effect: Effect) -> bool:
        return effect.different and not self.gains(effect)

    def mean(self, cell: Cell) -> float:
        """Return the geometric mean of a cell and its control: so the judge's ratio has it."""
        twice = [again for again, of in self.judge.grid.controls.items() if of == cell.id]
        mine = pl.col("cell").is_in([cell.id, *twice]) & (pl.col("point") == self.point)
        return float(stats.gmean(self.rows.filter(mine)["value"].to_numpy()))

    def control_words(self) -> str:
        control = next(one for one in self.judge.controls.values() if one.low is not None)
        shown = tables.change(control.ratio, control.low, control.high)
        return f"the same binding measured twice (A/A) differs by {shown}"


def _refused(run: Run, headline: _Headline, default: Cell, effects: Sequence[Effect]) -> str | None:
    """Why nothing can be recommended, whatever the figures; None when something can."""
    small = next((note for note in default.notes if note.code == SMALL_DATA), None)
    if small:
        return f"Nothing is recommended: {small}."
    if not (headline.rows["grade"] == VERIFIED).any():
        return "Nothing is recommended: no trial's placement is verified."
    said = {effect.decision for effect in effects}
    if said & {judge.DIFFERENT, judge.ALIKE}:
        return None
    if judge.DRIFTED in said:
        return (
            "Nothing is recommended: the run drifted, its A/A control differs from itself. "
            "Run it again on a quiet host."
        )
    if judge.NO_CONTROL in said:
        return (
            f"Nothing is recommended: this run has no A/A control with {BLOCKS_NEEDED} verified "
            "blocks, so a gain cannot be told from chance."
        )
    most = max((effect.n for effect in effects), default=0)
    return (
        f"Nothing is recommended: at most {most} verified blocks hold both a binding and the "
        f"default, and fewer than {BLOCKS_NEEDED} decide nothing (profile {run.manifest.profile})."
    )


def _words(cell: Cell, effect: Effect) -> str:
    return f"{cell.label}, {tables.change(effect.ratio, effect.low, effect.high)}"


def _together(tried: int) -> str:
    return f"; intervals hold for all {tried} bindings compared at once" if tried > 1 else ""


# ---------------------------------------------------------------- loads


def _loads(run: Run) -> dict[str, list[Cell]]:
    """The cells that bear the same load, without controls; the plain load first."""
    loads: dict[str, list[Cell]] = {"": []}
    for cell in run.plan.cells:
        if cell.role != CONTROL:
            loads.setdefault(run.load_of(cell), []).append(cell)
    return {load: cells for load, cells in loads.items() if cells}


def _with_default(run: Run) -> tuple[str, list[Cell], Cell]:
    """The first load under which the default was measured, its cells, and the default."""
    return next(
        (load, cells, default)
        for load, cells in _loads(run).items()
        if (default := _default(cells)) is not None
    )


def _default(cells: Sequence[Cell]) -> Cell | None:
    return next((cell for cell in cells if cell.binding == DEFAULT), None)


def _without_balancer(cell: Cell) -> bool:
    """Whether it is the default asked directly: a control of what the balancer costs."""
    return cell.sweep is not None and cell.sweep.option == "balancer"


def _same_binding(cell: Cell, other: Cell) -> bool:
    """Whether two cells differ in their load only."""
    return (cell.binding, cell.layout, cell.cpus, cell.memory) == (
        other.binding, other.layout, other.cpus, other.memory,
    )  # fmt: skip


# ---------------------------------------------------------------- what it costs


def _instances_cost(shape: Host, cell: Cell) -> Iterator[str]:
    """What several instances cost that one does not."""
    yield (
        f"{units.count(len(cell.instances), 'server')} share nothing: sessions, caches and "
        "connections are divided among them, or each has its own"
    )
    if all(one.memory.policy == "bind" for one in cell.instances):
        rooms = {node.number: node.memory_bytes for node in shape.nodes}
        each = [rooms.get(int(one.memory.nodes or "-1")) for one in cell.instances]
        known = [size for size in each if size is not None]
        room = f" ({tables.number(min(known) / 2**30)} GiB on the smallest)" if known else ""
        yield (
            f"all memory of an instance must fit on its node{room}: what does not is reclaimed, "
            "swapped or killed, never placed on another node"
        )


def _memory_costs(shape: Host, cell: Bound) -> Iterator[str]:
    """What a memory policy costs: its room, and what becomes of what does not fit."""
    policy, nodes = cell.memory.policy, cell.memory.nodes
    if policy == "default":  # first touch: bound to CPUs, it is on their nodes
        nodes = cell.cpu_nodes if cell.cpus is not None else None
    numbers = cpulist.parse(nodes or "")
    rule = kinds.POLICIES.get(policy)
    if rule is None:  # of a run that somebody else's numalab measured
        return
    with_memory = {node.number: node.memory_bytes for node in shape.nodes if node.memory_bytes != 0}
    if not nodes or (set(with_memory) <= set(numbers) and not rule.spread):
        return
    held = [with_memory.get(number) for number in numbers]
    known = [size for size in held if size is not None]
    size = f" ({tables.number(sum(known) / 2**30)} GiB in all)" if len(known) == len(held) else ""
    yield str(reason(f"full-{policy}", nodes=nodes, size=size))


def _costs(run: Run, headline: _Headline, cell: Cell, default: Cell) -> Iterator[str]:
    shape = run.host.topology
    if cell.cpus is not None:
        mine, usable = len(cpulist.parse(cell.cpus)), len(shape.usable)
        if mine < usable:
            yield f"it may run on {mine} of {usable} hardware threads; the others stay free"
    yield from _instances_cost(shape, cell) if cell.instances else _memory_costs(shape, cell)
    for name, measure in run.measures.items():
        if name == headline.metric:
            continue
        asked = judge.of(run.measurements, run.plan, name, headline.point)
        effect = asked.compare(cell.id, default.id)
        if effect.different and (effect.log > 0) == (measure.better == "lower"):
            shown = tables.interval(effect.ratio, effect.low, effect.high)
            yield f"{tables.plain(name)} is {shown} times that of {default.label}"


def _parts(headline: _Headline, cells: Sequence[Cell], best: Cell, default: Cell) -> Iterator[str]:
    """What several bound instances gain over several unbound ones; what a balancer takes."""
    split = next((c for c in cells if c.instances and c.layout == "unbound"), None)
    if best.instances and split and split is not best:
        alone = headline.judge.compare(split.id, default.id)
        more = headline.judge.compare(best.id, split.id)
        if alone.decided and more.decided:
            yield (
                f"splitting without binding ({split.label}): "
                f"{tables.change(alone.ratio, alone.low, alone.high)} over the default"
            )
            yield (
                f"binding on top of it: {tables.change(more.ratio, more.low, more.high)}"
                + ("" if more.different else ", not distinguishable: the split is the gain")
            )
    for cell in filter(_without_balancer, cells):
        effect = headline.judge.compare(best.id, cell.id)
        if effect.decided:
            yield (
                f"against {cell.label}: {tables.change(effect.ratio, effect.low, effect.high)}"
                + ("" if effect.different else ", not distinguishable")
            )


def _elsewhere(run: Run, headline: _Headline, chosen: Cell, first: str) -> Iterator[str]:
    """The same binding under the run's other loads."""
    for load, cells in _loads(run).items():
        default = _default(cells)
        mine = next((cell for cell in cells if _same_binding(cell, chosen)), None)
        if load == first or default is None or mine is None:
            continue
        effect = headline.judge.compare(mine.id, default.id)
        if not effect.decided:
            verdict = "too few verified blocks to say"
        else:
            verdict = tables.interval(effect.ratio, effect.low, effect.high)
            if headline.loses(effect):
                verdict += ", a loss"
            elif not headline.gains(effect):
                verdict += ", not distinguishable"
        yield f"{load.replace('=', ' ')}: {verdict}"


# ---------------------------------------------------------------- for a reader


_LONG = 24  # lines to paste: more are folded


def markdown(found: Recommendation) -> str:
    """Return a recommendation as Markdown, the lines to paste in code blocks."""
    says = escape.markdown(found.says)
    parts = [f"**{says}**" if found.cell else says]
    for title, sentences in _lists(found):
        parts.append(f"{title}\n\n" + "\n".join(f"- {escape.markdown(one)}" for one in sentences))
    for place in found.paste:
        remarks = "; ".join(map(escape.markdown, place.remarks))
        lines = "\n".join(map(_pasted, place.lines))
        block = f"```\n{lines}\n```"
        if len(place.lines) > _LONG:
            summary = f"<summary>{escape.html(place.where)}</summary>"
            parts += [f"<details>\n{summary}", *filter(None, [remarks]), block, "</details>"]
        else:
            where = escape.markdown(place.where)
            parts.append(f"{where}{f' ({remarks})' if remarks else ''}:\n\n{block}")
    return "\n\n".join(parts)


def _pasted(line: str) -> str:
    """A line for a code block of Markdown, with its indentation."""
    indent = len(line) - len(line.lstrip(" "))
    return " " * indent + escape.verbatim(line)


def text(found: Recommendation, width: int = 100) -> str:
    """Return a recommendation as lines for a terminal; lines to paste are never broken."""
    lines = textwrap.wrap(found.says, width)
    for title, sentences in _lists(found):
        lines.append(title)
        for one in sentences:
            lines += textwrap.wrap(one, width, initial_indent="  - ", subsequent_indent="    ")
    for place in found.paste:
        lines.append(f"{place.where}:")
        lines += [f"    {line}" for line in place.lines]
        for remark in place.remarks:
            lines += textwrap.wrap(f"({remark})", width, initial_indent="  ",
                                   subsequent_indent="   ")  # fmt: skip
    return "\n".join(lines)


def _lists(found: Recommendation) -> Iterator[tuple[str, list[str]]]:
    for title, sentences in (
        ("Where the gain comes from:", found.parts),
        ("What it costs:", found.costs),
        ("Not distinguishable from it:", found.alike),
        ("The same binding under the other loads of this run:", found.elsewhere),
    ):
        if sentences:
            yield title, sentences
