"""A measuring session at the terminal: the plan, the progress, the results, the notebook."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numalab import experiments, home, launch
from numalab.agent.errors import Fault


class LeftOut(Fault):
    """An experiment that this host cannot offer or that may not be run: no failure among many."""


class NoBaseline(Fault):
    """A run compares nothing: its baseline could not be measured."""


@dataclass(frozen=True)
class Settings:
    """What the command line said about running, not about measuring."""

    allow_host_changes: bool = False
    notebook: bool = True
    as_json: bool = False
    said: set[str] = field(default_factory=set)


def run(request: dict[str, Any], experiment: experiments.Experiment, settings: Settings) -> Path:
    """Plan, measure, store and show one experiment; return its run directory."""
    from numalab.agent.plan import make as planning

    plan = launch.make_plan(request)
    _check_possible(plan, settings)
    folder = launch.new_run_directory(home.runs(), request["host"], experiment.name)
    if not settings.as_json:
        print(f"{experiment.name}: {planning.summary(plan)}", flush=True)
        _say_once(planning.skipped_lines(plan), "–", settings)
        _say_once(plan["warnings"], "⚠", settings)
    with _progress(settings, len(plan["order"])) as show:
        try:
            end = launch.measure(
                plan, folder, allow_host_changes=settings.allow_host_changes, on_event=show
            )
        except KeyboardInterrupt:
            _say_how_to_resume(folder, settings)
            raise
        except Fault as fault:
            if home.is_run(folder):
                _say_how_to_resume(folder, settings)
            raise fault
    _finish(folder, end, settings)
    return folder


def _check_possible(plan: dict[str, Any], settings: Settings) -> None:
    from numalab.agent.plan import make as planning
    from numalab.agent.trial import run as running

    if not plan["order"]:
        why = running.nothing_here(plan)
        raise LeftOut(why.what, why.hint)
    changed = planning.settings_text(plan)
    if changed and not settings.allow_host_changes:
        raise LeftOut(
            f"this experiment sets {changed} while it measures, and may not",
            "allow it with --allow-host-changes: what was set before is put back",
        )


def _say_once(lines: Iterable[str], mark: str, settings: Settings) -> None:
    """Print what an earlier experiment of this session has not said already."""
    for line in lines:
        if line not in settings.said:
            settings.said.add(line)
            print(f"  {mark} {line}")


def resume(given: Path, settings: Settings) -> Path:
    """Complete an unfinished run; return its run directory."""
    from numalab import runs

    folder = home.resolve(given)
    manifest = runs.read_manifest(folder)
    with _progress(settings, len(manifest["plan"]["order"])) as show:
        end = launch.resume(folder, allow_host_changes=settings.allow_host_changes, on_event=show)
    _finish(folder, end, settings)
    return folder


def run_all(
    profile: str, host: str, seed: int | None, settings: Settings, collect: bool
) -> list[Path]:
    """Run every experiment that has the profile, one by one; return the run directories.

    What this host cannot offer is left out; what fails is said and the others go on; Fault at the
    end names what failed.
    """
    started = time.monotonic()
    folders, failed = [], []
    for request, loaded in all_requests(profile, host, seed, settings, collect):
        try:
            folders.append(run(request, loaded, settings))
        except LeftOut as why:
            if not settings.as_json:
                print(f"{loaded.name} left out: {why}", flush=True)
        except Fault as fault:
            print(f"✗ {loaded.name}: {fault}", file=sys.stderr)
            failed.append(loaded.name)
    if not settings.as_json:
        minutes = (time.monotonic() - started) / 60
        print(f"{len(folders)} experiments in {minutes:.1f} min   →   numalab report")
    if failed:
        raise Fault(f"not everything could be measured: {', '.join(failed)} failed")
    return folders


def all_requests(
    profile: str, host: str, seed: int | None, settings: Settings, collect: bool
) -> list[tuple[dict[str, Any], experiments.Experiment]]:
    """Return the requests of every experiment that has the profile, each with its experiment.

    All are read before any is measured: a file with a mistake must not cost the others' time.
    """
    chosen = []
    for name in _in_order(experiments.names()):
        loaded = experiments.load(name)
        if profile in loaded.profiles:
            collectors = None if collect else False
            chosen.append((loaded.request(profile, host, seed=seed, collectors=collectors), loaded))
        elif not settings.as_json:
            print(f"{name} has no profile {profile!r}: left out", flush=True)
    if not chosen:
        raise Fault(f"no experiment has a profile {profile!r}", "numalab list shows what there is")
    return chosen


def _in_order(names: list[str]) -> list[str]:
    """The host first: its page says what the others ran on."""
    return sorted(names, key=lambda name: (name != "host", name))


def _say_how_to_resume(folder: Path, settings: Settings) -> None:
    print(f"complete it with: {_resuming(folder, settings)}", file=sys.stderr)


def _resuming(folder: Path, settings: Settings) -> str:
    leave = " --allow-host-changes" if settings.allow_host_changes else ""
    return f"numalab run --resume {folder}{leave}"


def _finish(folder: Path, end: launch.Event, settings: Settings) -> None:
    from numalab import store

    store.write(folder)
    executed = None
    if settings.notebook:
        from numalab.show import view as notebook

        executed = notebook.execute(folder)
    if settings.as_json:
        print(json.dumps({**end, "notebook": str(executed) if executed else None}))
        return
    from numalab import runs
    from numalab.analysis import recommendation, results

    print(grades(end))
    run = runs.load(folder)
    text = results.terminal(run)
    if text:
        print("\n" + text)
    if recommendation.suitable(run):
        print("\n" + recommendation.text(recommendation.of(run)))
    print(f"\n{folder}   →   numalab report")
    refuse_without_baseline(folder)
    if end["status"] != "complete":
        raise Fault(f"the run is {end['status']}", _resuming(folder, settings))


def refuse_without_baseline(folder: Path) -> None:
    """Raise NoBaseline for a run whose baseline always failed, whatever else it measured."""
    from numalab import runs
    from numalab.agent.trial import journal

    run = runs.load(folder)
    records = journal.read(folder / "journal.ndjson")
    for cell in run.cells.values():
        own = [record for record in records if record["cell"] == cell["id"]]
        if cell["role"] == "baseline" and own and all(r["grade"] == "error" for r in own):
            raise NoBaseline(
                f"every trial of the baseline {cell['label']} failed: {own[-1]['reason']}",
                "mend that and measure again",
            )


def grades(end: launch.Event) -> str:
    """Return how many trials have which grade, in a line."""
    total = end["verified"] + end["unverified"] + end["error"]
    graded = [f"{end[g]} {g}" for g in ("verified", "unverified", "error") if end[g]]
    many = "1 trial" if total == 1 else f"{total} trials"
    return f"{many}: {', '.join(graded) or 'nothing was measured'}"


@contextmanager
def _progress(settings: Settings, trials: int) -> Iterator[Any]:
    """Yield a function that shows one progress event of the agent."""
    if settings.as_json:
        yield lambda event: None
    elif sys.stdout.isatty():
        yield from _bar(trials)
    else:
        yield from _lines()


def _bar(trials: int) -> Iterator[Any]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(30), MofNCompleteColumn(), TextColumn("{task.fields[said]}"))
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task("", total=trials, said="starting")
        worries = _Worries(lambda line: progress.console.print(line, markup=False))

        def show(event: launch.Event) -> None:
            worries(event)
            if event["event"] == "trial":
                progress.update(task, completed=event["trial"], said=said(event))
            elif event["event"] == "progress":
                progress.update(task, said=_preparing(event))

        yield show
        worries.count()


def _lines() -> Iterator[Any]:
    """Progress for a log file: one line a block, besides warnings and errors."""
    worries = _Worries(lambda line: print(line, flush=True))
    blocks: set[int] = set()
    steps: set[str] = set()

    def show(event: launch.Event) -> None:
        worries(event)
        if event["event"] == "trial" and event["block"] not in blocks:
            blocks.add(event["block"])
            print(f"  {event['trial']}/{event['of']}  {said(event)}", flush=True)
        elif event["event"] == "progress" and event["text"] not in steps:
            steps.add(event["text"])
            print(f"  {event['text']}", flush=True)

    yield show
    worries.count()


class _Worries:
    """Prints errors, and of warnings that differ in their numbers only the first."""

    def __init__(self, put: Callable[[str], None]) -> None:
        self.put = put
        self.kinds: Counter[str] = Counter()

    def __call__(self, event: launch.Event) -> None:
        if event["event"] == "trial" and event["grade"] == "error":
            self.put(f"  ✗ {_failure(event)}")
        if event["event"] == "warning":
            kind = re.sub(r"\(.*?\)|[\d.]+", "", event["text"].partition("): ")[2] or event["text"])
            self.kinds[kind] += 1
            if self.kinds[kind] == 1:
                self.put(f"  ⚠ {event['text']}")

    def count(self) -> None:
        """Say how many warnings were like one that was shown."""
        more = sum(count - 1 for count in self.kinds.values())
        if more:
            many = "1 more warning" if more == 1 else f"{more} more warnings"
            self.put(f"  ⚠ {many} like these: the journal holds them")


def _preparing(event: launch.Event) -> str:
    """What is done before the first trial, how far it is, and how long it will take."""
    parts = [event["text"]]
    if event["share"] is not None:
        parts.append(f"{event['share']:.0%}")
    if event["left_s"] is not None:
        parts.append(f"{int(event['left_s']) // 60}:{int(event['left_s']) % 60:02d} left")
    return "  ".join(parts)


def _failure(event: launch.Event) -> str:
    return f"block {event['block']}, {event['label']}: {event['reason']}"


def said(event: launch.Event) -> str:
    """Return what a trial's event says, in a line: block, cell, headline, time left."""
    parts = [f"block {event['block']}", event["label"]]
    headline = event.get("headline")
    if headline and headline["value"] is not None:
        parts.append(f"{headline['value']:.4g} {headline['unit']}")
    left = int(event["left_s"] or 0)
    parts.append(f"{left // 60}:{left % 60:02d} left")
    return "  ".join(parts)
