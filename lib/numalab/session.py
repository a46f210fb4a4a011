"""A measuring session at the terminal: the plan, the progress, the results, the notebook."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numalab import escape, experiments, home, launch, untrusted
from numalab.agent.contract import BASELINE, ERROR, GRADES, Plan, Reason, Request, from_json
from numalab.agent.errors import Fault, NotHere
from numalab.agent.trial.events import Event
from numalab.agent.words import units


class LeftOut(Fault):
    """An experiment that this host cannot offer or that may not be run: no failure among many."""


class NoBaseline(Fault):
    """A run compares nothing: its baseline could not be measured."""


@dataclass(frozen=True)
class Settings:
    """What the command line said about running, not about measuring."""

    allow_host_changes: bool = False
    busy: bool = False  # measure although others are at work on the host
    notebook: bool = True
    as_json: bool = False
    begun_elsewhere: bool = False
    shown: set[str] = field(default_factory=set)

    def say(self, text: object) -> None:
        """Print text for a person, unless a script reads; control characters are shown as such."""
        if self.as_json:
            return
        try:
            print(escape.terminal(text), flush=True)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # no complaint at exit
            raise Fault("stopped: nobody reads what is printed any more (| head?)") from None


@dataclass(frozen=True)
class Asked:
    """An experiment and what is asked of it; ``own_file`` is the user's own file, as it was read.

    A user's file runs as it is because its user asked. With the run it is kept as data.
    """

    request: Request
    experiment: experiments.Experiment
    own_file: bytes | None = None

    @property
    def notebook(self) -> Path | None:
        """The notebook that the experiment's file names, if it names one."""
        return home.notebook(self.experiment.notebook)

    def keep(self, folder: Path) -> None:
        """Keep a user's own experiment file with its run, as data."""
        from numalab import store

        if self.own_file is not None and home.is_run(folder):
            store.replace(folder, store.EXPERIMENT, self.own_file)


def asked(name: str | Path, profile: str, host: str, **options: Any) -> Asked:
    """Return an experiment by its name or its file with a request; see Experiment.request."""
    loaded, own_file = load(name)
    return Asked(with_service(loaded.request(profile, host, **options)), loaded, own_file)


def with_service(request: Request) -> Request:
    """Return a request whose service, named by its file, is what the file holds.

    Only what a user asks for comes here: a service file is a program.
    """
    named = request.tool.options.get("service")
    if request.tool.name != "service" or isinstance(named, dict):
        return request
    from numalab import services

    if not isinstance(named, str):
        raise Fault(
            "no service is named",
            f"--set service=NAME ({', '.join(services.names())}), or a file of your own: mine.yml",
        )
    options = {**request.tool.options, "service": services.load(named)}
    return replace(request, tool=replace(request.tool, options=options))


def load(name: str | Path) -> tuple[experiments.Experiment, bytes | None]:
    """Return an experiment, and what its file holds where it is not one of the checkout's."""
    path = Path(name)
    loaded = experiments.load(name)
    notebook = home.notebook(loaded.notebook)
    if notebook and not notebook.is_file():
        raise Fault(
            f"there is no notebook {notebook}, which {loaded.name} names",
            "write it, or name none: then the one that shows any run is used",
        )
    known = home.root() / "experiments" / f"{loaded.name}.yml"
    if path.suffix not in (".yml", ".yaml") or (known.exists() and path.samefile(known)):
        return loaded, None
    if loaded.name in experiments.names():
        raise Fault(
            f"{path} has the name of an experiment of this checkout: its results would be taken "
            "for that one's",
            f"give it a name of its own: mv {path} {path.with_name(f'my-{path.name}')}",
        )
    content = untrusted.read_bytes(path.resolve().parent, path.name, untrusted.LARGEST_YAML)
    return loaded, content


def run(asked: Asked, settings: Settings) -> Path:
    """Plan, measure, store and show one experiment; return its run directory."""
    from numalab.agent.plan import show as plans

    plan = launch.make_plan(asked.request)
    check_possible(plan, settings)
    folder = launch.new_run_directory(home.runs(), plan.request.host, asked.experiment.name)
    settings.say(f"{asked.experiment.name}: {plans.summary(plan)}")
    _say_once(plans.skipped_lines(plan), "–", settings)
    _say_once(map(str, plan.warnings), "⚠", settings)
    with _progress(settings, len(plan.order)) as show:

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
            raise
    _finish(folder, end, settings, asked.notebook)
    return folder


def check_possible(plan: Plan, settings: Settings) -> None:
    """Raise NotHere for a plan with nothing to measure, LeftOut for one that may not be run."""
    from numalab.agent.plan import show as plans
    from numalab.agent.trial import run as running

    if not plan.order:
        raise running.nothing_here(plan)
    changed = plans.settings_text(plan)
    if changed and not settings.allow_host_changes:
        raise LeftOut(
            f"this experiment needs permission to set {changed}",
            "allow it with --allow-host-changes: what was set before is put back",
        )


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
        loaded, own_file = load(experiment)
        if loaded.name != run.manifest.experiment:
            raise Fault(
                f"{given} is a run of {run.manifest.experiment}, not of {loaded.name}",
                "give the file that it was measured by, or none",
            )
        again = Asked(run.plan.request, loaded, own_file)
    if run.complete and (run.folder / store.SUMS).exists():
        settings.say(f"{run.folder}: nothing is left to measure, the run is complete")
        return run.folder
    with _progress(settings, len(run.plan.order)) as show:
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


def all_asked(
    profile: str, host: str, seed: int | None, settings: Settings, collect: bool
) -> list[Asked]:
    """Return every experiment that has the profile with its request, by their priority.

    All are read before any is measured: a file with a mistake must not cost the others' time.
    """
    chosen = []
    every = map(experiments.load, experiments.names())
    for loaded in sorted(every, key=lambda one: (-one.priority, one.name)):
        if loaded.tool.name == "service" and "service" not in loaded.tool.options:
            settings.say(f"{loaded.name} is skipped: name one with --set service=NAME")
        elif profile in loaded.profiles:
            collectors = None if collect else False
            request = loaded.request(profile, host, seed=seed, collectors=collectors)
            chosen.append(Asked(with_service(request), loaded))
        else:
            settings.say(f"{loaded.name} has no profile {profile!r}: left out")
    if not chosen:
        raise Fault(f"no experiment has a profile {profile!r}", "numalab list shows what there is")
    return chosen


def _resuming(folder: Path, settings: Settings) -> str:
    allow = " --allow-host-changes" if settings.allow_host_changes else ""
    busy = " --busy" if settings.busy else ""
    return f"numalab run --resume {folder}{allow}{busy}"


def conclude(folder: Path, notebook: Path | None, execute: bool) -> Path | None:
    """Build a run's tables, execute its notebook, seal it; return the executed notebook.

    ``notebook`` is the one that a trusted experiment names; without it the run's own is found.
    """
    from numalab import store

    store.write(folder)
    executed = None
    if execute:
        from numalab.pages import execute as pages

        executed = pages.execute(folder, notebook)
        store.seal(folder)
    return executed


def _finish(folder: Path, end: Event, settings: Settings, notebook: Path | None) -> None:
    executed = conclude(folder, notebook, settings.notebook)
    if settings.as_json:
        print(json.dumps({**end, "notebook": str(executed) if executed else None}))
        return
    from numalab import runs
    from numalab.analysis import claims, recommendation
    from numalab.show import results

    run = runs.load(folder)
    settings.say(grades(end))
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
    settings.say(f"\n{folder}   →   numalab report")
    refuse_without_baseline(run)
    if end["status"] != "complete":
        raise Fault(f"the run is {end['status']}", _resuming(folder, settings))


def refuse_without_baseline(run: Any) -> None:
    """Raise NoBaseline for a run whose baseline always failed, whatever else it measured."""
    for cell in run.plan.cells:
        own = [one for trial in run.trials for one in trial.graded if one.cell == cell.id]
        if cell.role == BASELINE and own and all(one.grade == ERROR for one in own):
            raise NoBaseline(
                f"every trial of the baseline {cell.label} failed: {own[-1].reason}",
                "mend that and measure again",
            )


def grades(end: Event) -> str:
    """Return how many trials have which grade, in a line."""
    graded = [f"{end[grade]} {grade}" for grade in GRADES if end[grade]]
    total = units.count(sum(end[grade] for grade in GRADES), "trial")
    return f"{total}: {', '.join(graded) or 'nothing was measured'}"


# --- progress -------------------------------------------------------------------------------------


@contextmanager
def _progress(settings: Settings, trials: int) -> Iterator[Callable[[Event], None]]:
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
