"""What a user asks for: experiments with their requests, and how they may be measured."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numalab import escape, experiments, home, untrusted
from numalab.agent.contract import Plan, Request
from numalab.agent.errors import Fault


class LeftOut(Fault):
    """An experiment that this host cannot offer or that may not be run: no failure among many."""


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


def ask(name: str | Path, profile: str, host: str, **options: Any) -> Asked:
    """Return an experiment by its name or its file with a request; see Experiment.request."""
    loaded, own_file = load(name)
    return Asked(with_service(loaded.request(profile, host, **options)), loaded, own_file)


def ask_all(
    profile: str, host: str, seed: int | None, settings: Settings, collect: bool
) -> list[Asked]:
    """Return every experiment that has the profile with its request, by their priority.

    All are read before any is measured: a file with a mistake must not cost the others' time.
    """
    chosen = []
    every = map(experiments.load, experiments.names())
    for loaded in sorted(every, key=lambda one: (-one.priority, one.name)):
        _check_notebook(loaded)
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


def load(name: str | Path) -> tuple[experiments.Experiment, bytes | None]:
    """Return an experiment, and what its file holds where it is not one of the checkout's."""
    path = Path(name)
    loaded = experiments.load(name)
    _check_notebook(loaded)
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


def _check_notebook(experiment: experiments.Experiment) -> None:
    """Raise Fault for a notebook that cannot show a run: it is asked to when all is measured."""
    path = home.notebook(experiment.notebook)
    if path is None:
        return
    if not path.is_file():
        raise Fault(
            f"there is no notebook {path}, which {experiment.name} names",
            "write it, or name none: then the one that shows any run is used",
        )
    try:
        book = json.loads(path.read_text(encoding="utf-8"))
        kernel, cells = book["metadata"]["kernelspec"]["name"], book["cells"]
        tagged = [one for one in cells if "parameters" in one["metadata"].get("tags", ())]
        sources = ["".join(one["source"]) for one in tagged]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        kind = type(error).__name__
        raise Fault(f"{path} is no Jupyter notebook ({kind}: {error})", "save it again") from None
    if not kernel or not any(re.search(r"^source\b", text, re.MULTILINE) for text in sources):
        raise Fault(
            f"{path} has no cell tagged `parameters` with `source`: it could show no run",
            "copy that cell from notebooks/stream.ipynb, with its tag",
        )


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
