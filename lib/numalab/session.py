"""A measuring session at the terminal: the plan, the progress, the results, the notebook."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from numalab import asking, escape, home, launch, progress
from numalab.agent.contract import BASELINE, ERROR, Plan
from numalab.agent.errors import Fault, NotHere
from numalab.agent.trial.events import Event
from numalab.agent.words import units
from numalab.asking import Asked, LeftOut, Settings, check_possible

if TYPE_CHECKING:
    from numalab.runs import Run


class NoBaseline(Fault):
    """A run compares nothing: its baseline could not be measured."""


def run(asked: Asked, settings: Settings) -> Path:
    """Plan, measure, store and show one experiment; return its run directory."""
    from numalab.agent.plan import show as plans

    plan = launch.make_plan(asked.request)
    check_possible(plan, settings)
    folder = launch.new_run_directory(home.runs(), plan.request.host, asked.experiment.name)
    settings.say(f"{asked.experiment.name}: {plans.summary(plan)}")
    _say_once(plans.skipped_lines(plan), "–", settings)
    _say_once(map(str, plan.warnings), "⚠", settings)
    with progress.shown(settings, len(plan.order)) as show:

        def on_event(event: Event) -> None:
            if event["event"] == "plan":  # the run directory is there
                asked.keep(folder)
            show(event)

        try:
            end = launch.measure(
                plan, folder, allow_host_changes=settings.allow_host_changes,
                busy=settings.busy, on_event=on_event, enough=_enough(plan, folder, settings),
            )  # fmt: skip
        except (KeyboardInterrupt, Fault) as error:
            if home.is_run(folder) and not isinstance(error, launch.GivenUp):
                print(f"complete it with: {_resuming(folder, settings)}", file=sys.stderr)
                if plan.tool.name == "service" and isinstance(error, Fault):
                    changed = "a changed service file is another run: measure again"
                    print(
                        f"it keeps the service file that it began with; {changed}", file=sys.stderr
                    )
            raise
    _finish(folder, end, settings, asked.notebook)
    return folder


def _say_once(lines: Iterable[str], mark: str, settings: Settings) -> None:
    """Print what an earlier experiment of this session has not said already."""
    for line in lines:
        if line not in settings.shown:
            settings.shown.add(line)
            settings.say(f"  {mark} {line}")


def resume(
    given: Path, settings: Settings, experiment: Path | None = None, service: str | None = None
) -> Path:
    """Complete an unfinished run from its recorded plan; return its run directory.

    Nothing in the run directory is executed but the programs that its plan names, and these only
    where the run was begun in this checkout, or with ``settings.begun_elsewhere``. A run of a
    user's own experiment is shown by the generic notebook, unless its file is given again. A
    service of a run begun elsewhere must be that of a file of this checkout, or of ``service``.
    """
    from numalab import runs, store

    run = runs.load(given)
    if run.manifest.status == "imported":
        raise Fault(f"{given} was measured elsewhere by hand: it cannot be resumed")
    if run.plan.tool.name == "service" and not (run.complete or launch.begun_here(run.folder)):
        from numalab import services

        services.check_trusted(run.plan, service)
    again = None
    if experiment is not None:
        loaded, own_file = asking.load(experiment)
        if loaded.name != run.manifest.experiment:
            raise Fault(
                f"{given} is a run of {run.manifest.experiment}, not of {loaded.name}",
                "give the file that it was measured by, or none",
            )
        again = Asked(run.plan.request, loaded, own_file)
    if run.complete and (run.folder / store.SUMS).exists():
        settings.say(f"{run.folder}: nothing is left to measure, the run is complete")
        return run.folder
    with progress.shown(settings, len(run.plan.order)) as show:
        end = launch.resume(
            run.folder,
            allow_host_changes=settings.allow_host_changes,
            busy=settings.busy,
            begun_elsewhere=settings.begun_elsewhere or run.complete,
            on_event=show,
            enough=_enough(run.plan, run.folder, settings),
        )
    if again:
        again.keep(run.folder)
    _finish(run.folder, end, settings, again.notebook if again else None)
    return run.folder


def _enough(plan: Plan, folder: Path, settings: Settings) -> Callable[[], bool] | None:
    """Return what says whether a run that adds blocks has decided, or has no time left.

    None for any other run.
    """
    within, budget_s, began = plan.request.until, plan.request.budget_s, time.monotonic()
    if within is None:
        return None

    def enough() -> bool:
        from numalab import runs
        from numalab.analysis import judge

        run = runs.load(folder)
        of, still = judge.undecided(run, within)
        blocks = units.count(len({trial.block for trial in run.trials}), "block")
        shown = ", ".join(still[:3]) + (", …" if len(still) > 3 else "")
        settings.say(f"  {blocks}: {of - len(still)} of {of} comparisons decided"
                     + (f"; open: {shown}" if still else ""))  # fmt: skip
        # Of a run that was resumed, what its trials took before counts too.
        took_s = max(time.monotonic() - began, sum(one.times.total_s for one in run.trials))
        spent = budget_s is not None and took_s > budget_s
        if still and spent:
            settings.say("  the budget is spent")
        return spent or not still

    return enough


def run_all(
    asked: Sequence[Asked], settings: Settings, budget_s: float | None = None
) -> list[Path]:
    """Say what all experiments take, run them one by one; return the run directories.

    What this host cannot offer is left out; what fails is said and the others go on; Fault at the
    end names what failed.
    """
    from numalab import pricing
    from numalab.agent.trial import quiet

    started = time.monotonic()
    folders, failed = [], []
    priced = pricing.price(asked, settings, budget_s)
    settings.say(priced.text(shutil.get_terminal_size((100, 24)).columns) + "\n")
    if not settings.busy:
        quiet.refuse(quiet.busy())
        settings = replace(settings, busy=True)  # once begun it goes on; each run says what it met
    for one in priced.each:
        name = one.name
        try:
            if isinstance(one.why, (LeftOut, NotHere)):
                raise one.why
            folders.append(run(one.asked, settings))
        except (LeftOut, NotHere) as why:
            settings.say(f"{name} left out: {why}")
        except Fault as fault:
            print(escape.terminal(f"✗ {name}: {fault}"), file=sys.stderr)
            failed.append(name)
    spent = units.seconds(time.monotonic() - started)
    settings.say(f"{units.count(len(folders), 'experiment')} in {spent}   →   numalab report")
    for place in _among_published(folders):
        settings.say(place)
    if failed:
        raise Fault(f"not everything could be measured: {', '.join(failed)} failed")
    return folders


def _among_published(folders: Iterable[Path]) -> Iterator[str]:
    """Where this host stands among published machines, if its latencies can be compared."""
    from numalab import runs
    from numalab.analysis import survey

    for run in map(runs.load, folders):
        if run.manifest.experiment == "latency" and (place := survey.position(run)):
            yield place


def _resuming(folder: Path, settings: Settings) -> str:
    allow = " --allow-host-changes" if settings.allow_host_changes else ""
    busy = " --busy" if settings.busy else ""
    return f"numalab run --resume {folder}{allow}{busy}"


def conclude(folder: Path, notebook: Path | None, execute: bool) -> Path | None:
    """Build a run's tables, execute its notebook, seal it; return the executed notebook.

    ``notebook`` is the one that a trusted experiment names; without it the run's own is found.
    """
    from numalab import runs, store

    store.write(runs.load(folder))
    return _executed(folder, notebook) if execute else None


def _executed(folder: Path, notebook: Path | None) -> Path:
    from numalab import store
    from numalab.pages import execute as pages

    try:
        return pages.execute(folder, notebook)
    finally:
        store.seal(folder)


def _finish(folder: Path, end: Event, settings: Settings, notebook: Path | None) -> None:
    """Say what was found before the notebook is executed: it may fail."""
    from numalab import runs, store

    run = runs.load(folder)
    store.write(run)
    executed = None
    try:
        if not settings.as_json:
            _say_results(run, end, settings)
        if settings.notebook:
            executed = _executed(folder, notebook)
    finally:
        if settings.as_json:
            print(json.dumps({**end, "notebook": str(executed) if executed else None}))
        settings.say(f"\n{folder}   →   numalab report")
    if settings.as_json:
        return
    refuse_without_baseline(run)
    if end["status"] != "complete":
        raise Fault(f"the run is {end['status']}", _resuming(folder, settings))


def _say_results(run: Run, end: Event, settings: Settings) -> None:
    from numalab.analysis import claims, recommendation
    from numalab.show import results

    settings.say(progress.grades(end))
    text = results.terminal(run)
    if text:
        settings.say("\n" + text)
    if recommendation.suitable(run):
        settings.say("\n" + recommendation.text(recommendation.of(run)))
    try:
        judged = claims.judge_all(run.experiment.claims, run)
        verdicts = claims.text(judged, every=run.own_experiment)
    except Fault as fault:  # another checkout's experiment, for instance
        verdicts = f"no claim is judged: {fault}"
    if verdicts:
        settings.say("\n" + verdicts)


def refuse_without_baseline(run: Run) -> None:
    """Raise NoBaseline for a run whose baseline always failed, whatever else it measured."""
    for cell in run.plan.cells:
        own = [one for trial in run.trials for one in trial.graded if one.cell == cell.id]
        if cell.role == BASELINE and own and all(one.grade == ERROR for one in own):
            raise NoBaseline(
                f"every trial of the baseline {cell.label} failed: {own[-1].reason}",
                "mend that and measure again",
            )
