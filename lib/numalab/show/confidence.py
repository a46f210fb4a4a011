"""How sure a run's figures are, as Markdown: the A/A control, warnings, exclusions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from numalab import escape, tables
from numalab.agent import cpulist
from numalab.agent.contract import ERROR
from numalab.agent.words import units
from numalab.analysis import evidence, judge
from numalab.analysis.evidence import BLOCKS_NEEDED
from numalab.runs import Run
from numalab.show.results import MOST_POINTS, named

_MOST_ALIKE = 4  # warnings of one kind about one metric; more are counted


def markdown(run: Run, only: Sequence[str] | None = None) -> str:
    """Return how sure the figures are, as Markdown: A/A control, warnings, exclusions.

    ``only`` are the metrics to speak of; else all that answer the question.
    """
    metrics = list(run.measures) if only is None else list(only)
    # Of thousands of points hundreds are far from the others by chance alone.
    few = [metric for metric in metrics if len(run.points(metric)) <= MOST_POINTS]
    parts = [
        f"- A/A control, {named(metric, point)}: {_control_words(control)}"
        for metric in few
        for point in run.points(metric)
        for control in judge.of(run.measurements, run.plan, metric, point).controls.values()
        if control.n >= BLOCKS_NEEDED
    ]
    if run.plan.request.blocks < BLOCKS_NEEDED:
        blocks = units.count(run.plan.request.blocks, "block")
        parts.append(f"- {blocks}: shown, not judged (fewer than {BLOCKS_NEEDED} decide nothing)")
    # What is counted needs no warm host and no quiet one.
    timed = [name for name in few if _unit(run, name) not in ("share", "count")]
    parts += [*_warnings(run, timed), *_exclusions(run)]
    return "\n".join(parts) or "Nothing to warn about."


def _warnings(run: Run, metrics: Sequence[str]) -> Iterator[str]:
    """Yield what is doubtful about metrics: those beyond a few of a kind only counted."""
    alike: dict[tuple[str, str], list[evidence.Warned]] = {}
    for one in evidence.warnings(run.measurements, metrics):
        if one.reason.code != "few-blocks" or run.plan.request.blocks >= BLOCKS_NEEDED:
            alike.setdefault((one.metric, one.reason.code), []).append(one)
    for (metric, kind), warnings in alike.items():
        for one in warnings[:_MOST_ALIKE]:
            label = escape.markdown(run.cells[one.cell].label) + ": " if one.cell else ""
            yield f"- {label}{named(metric, one.point)}: {escape.markdown(one.reason)}"
        if len(warnings) > _MOST_ALIKE:
            more = len(warnings) - _MOST_ALIKE
            yield f"- {named(metric)}: {more} more of this kind ({kind})"


def _unit(run: Run, metric: str) -> str:
    if metric in run.measures:
        return run.measures[metric].unit
    rows = run.tool_rows(metric)
    return "" if rows.is_empty() else str(rows["unit"][0])


def _exclusions(run: Run) -> Iterator[str]:
    """Yield what was excluded and why: a line for each cell, those beyond a few only counted."""
    cells: dict[str, list[str]] = {}
    for cell, trials in run.graded.items():
        blocks: dict[str, list[int]] = {}
        for trial, graded in trials:
            if graded.grade == ERROR:
                blocks.setdefault(str(graded.reason), []).append(trial.block)
        for why, of in blocks.items():
            word = "block" if len(of) == 1 else "blocks"
            said = f"{word} {cpulist.format(of)}, {run.cells[cell].label}"
            cells.setdefault(why, []).append(said)
    for why, all_said in cells.items():
        for said in all_said[:_MOST_ALIKE]:
            yield f"- excluded: {escape.markdown(said)}: {escape.markdown(why)}"
        if len(all_said) > _MOST_ALIKE:
            more = units.count(len(all_said) - _MOST_ALIKE, "more binding")
            yield f"- excluded: {more} for the same reason: {escape.markdown(why)}"


def _control_words(control: judge.Effect) -> str:
    shown = tables.interval(control.ratio, control.low, control.high)
    said = (
        "the run drifted, and nothing is decided"
        if control.decision == judge.DRIFTED
        else "what differs by less is not distinguishable"
    )
    return f"{shown} over {control.n} blocks: {said}"
