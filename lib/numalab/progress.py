"""What a run reports while it measures, in lines for a person."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numalab import escape
from numalab.agent.contract import ERROR, GRADES, Reason, from_json
from numalab.agent.trial.events import Event
from numalab.agent.words import units
from numalab.asking import Settings


@contextmanager
def shown(settings: Settings, trials: int) -> Iterator[Callable[[Event], None]]:
    """Yield a function that shows one progress event of the agent."""
    if settings.as_json:
        yield lambda event: None
    elif sys.stdout.isatty():
        yield from _bar(trials)
    else:
        yield from _lines(settings.say)


def _bar(trials: int) -> Iterator[Callable[[Event], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    doing = TextColumn("{task.fields[doing]}", markup=False)
    with Progress(BarColumn(30), MofNCompleteColumn(), doing, transient=True) as progress:
        task = progress.add_task("", total=trials, doing="starting")
        worries = Worries(lambda line: progress.console.print(escape.terminal(line), markup=False))

        def show(event: Event) -> None:
            worries(event)
            if event["event"] == "trial":
                progress.update(task, completed=event["trial"], doing=trial_line(event))
            elif event["event"] == "progress":
                progress.update(task, doing=_preparing(event))

        yield show
        worries.count()


def _lines(put: Callable[[str], None]) -> Iterator[Callable[[Event], None]]:
    """Progress for a log file: one line a block, besides warnings and errors."""
    worries = Worries(put)
    seen: set[Any] = set()

    def show(event: Event) -> None:
        worries(event)
        if event["event"] == "trial" and event["block"] not in seen:
            seen.add(event["block"])
            put(f"  {event['trial']}/{event['of']}  {trial_line(event)}")
        elif event["event"] == "progress" and str(reason_of(event)) not in seen:
            seen.add(str(reason_of(event)))
            put(f"  {reason_of(event)}")

    yield show
    worries.count()


class Worries:
    """Prints errors, and of warnings with one code only the first."""

    def __init__(self, put: Callable[[str], None]) -> None:
        self.put = put
        self.codes: Counter[str] = Counter()

    def __call__(self, event: Event) -> None:
        if event["event"] == "trial" and event["grade"] == ERROR:
            self.put(f"  ✗ block {event['block']}, {event['label']}: {reason_of(event)}")
        if event["event"] == "warning":
            code = event["reason"]["code"]
            self.codes[code] += 1
            if self.codes[code] == 1:
                self.put(f"  ⚠ {warning_line(event)}")

    def count(self) -> None:
        """Say how many warnings were like one that was shown."""
        more = sum(count - 1 for count in self.codes.values())
        if more:
            self.put(f"  ⚠ {units.count(more, 'more warning')} like these: the journal holds them")


def reason_of(event: Event) -> Reason | None:
    """Return the reason of an event."""
    return None if event["reason"] is None else from_json(Reason, event["reason"])


def warning_line(event: Event) -> str:
    """Return what a warning's event says, with its trial."""
    of = f"trial {event['trial']} ({event['label']}): " if event["trial"] is not None else ""
    return f"{of}{reason_of(event)}"


def trial_line(event: Event) -> str:
    """Return what a trial's event says, in a line: block, cell, headline, time left."""
    parts = [f"block {event['block']}", escape.line(event["label"])]
    headline = event["headline"]
    if headline and headline["value"] is not None:
        parts.append(f"{headline['value']:.4g} {headline['unit']}")
    parts.append(_left(event["left_s"]))
    return "  ".join(parts)


def grades(end: Event) -> str:
    """Return how many trials have which grade, in a line."""
    graded = [f"{end[grade]} {grade}" for grade in GRADES if end[grade]]
    total = units.count(sum(end[grade] for grade in GRADES), "trial")
    return f"{total}: {', '.join(graded) or 'nothing was measured'}"


def _preparing(event: Event) -> str:
    """What is done before the first trial, how far it is, and how long it will take."""
    parts = [escape.line(reason_of(event))]
    if event["share"] is not None:
        parts.append(f"{event['share']:.0%}")
    if event["left_s"] is not None:
        parts.append(_left(event["left_s"]))
    return "  ".join(parts)


def _left(seconds: float | None) -> str:
    left = int(seconds or 0)
    return f"{left // 60}:{left % 60:02d} left"
