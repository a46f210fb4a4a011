"""The command line: ``numalab``. Heavy imports stay inside the commands that need them."""

from __future__ import annotations

import errno
import inspect
import io
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from numalab import escape
from numalab.agent.contract import to_json
from numalab.agent.errors import Fault
from numalab.lab import commands as lab

if TYPE_CHECKING:
    from numalab import asking
    from numalab.agent.host.tools import Question

app = typer.Typer(
    name="numalab",
    help="Measure what NUMA binding does to real software, prove every binding, publish it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(lab.app)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for a script.")]


def main() -> None:
    """Run the command line; every fault becomes one message and a non-zero exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without our signs shows "?"
    try:
        app()
    except Fault as fault:
        _fail(str(fault), 2)
    except KeyboardInterrupt:
        _fail("interrupted; what was measured before stays", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # no complaint at exit
        sys.exit(141)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            _fail("no space left on the disk; what was measured before stays. Free some space", 2)
        place = f": {error.filename}" if error.filename else ""
        _fail(f"{error.strerror or error}{place}", 2)


def _fail(words: str, code: int) -> None:
    print(escape.terminal(f"numalab: {words}"), file=sys.stderr)
    sys.exit(code)


def _width() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def _print(text: object) -> None:
    print(escape.terminal(text))


def _print_json(data: Any) -> None:
    _print(json.dumps(to_json(data), indent=2, ensure_ascii=False))


@app.command()
def host(
    root: Annotated[Path, typer.Option(help="Read a copied sysfs tree instead.")] = Path("/"),
    as_json: Json = False,
) -> None:
    """Show this machine (or a copied sysfs tree): nodes, CPUs, memory, distances, settings."""
    from numalab.agent.host import describe

    def services() -> Mapping[str, Question]:
        from numalab import services

        return services.tools()

    _print(describe.run(str(root), as_json, _width(), services))


@app.command()
def doctor(
    root: Annotated[Path, typer.Option(help="Read a copied tree instead.")] = Path("/"),
    ignore: Annotated[
        list[str] | None, typer.Option(help="The id of a finding that is accepted (see --json).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Find what is wrong with this machine's use of its nodes, and what to type. Changes nothing.

    Exit status: 0 nothing found, 1 something to act on (notes do not count), 2 it could not run.
    """
    from numalab.agent.host import doctor as examination

    output, status = examination.run(str(root), ignore or [], as_json, _width())
    _print(output)
    sys.exit(status)


ExperimentName = Annotated[
    str | None, typer.Argument(help="Its name (numalab list), or a YAML file.", show_default=False)
]
HostName = Annotated[str | None, typer.Option("--host", help="The name results go under.")]


@dataclass(frozen=True)
class Wanted:
    """What is to be measured, by the options that `plan` and `run` share."""

    program: Annotated[
        list[str] | None,
        typer.Argument(
            help="For 'command': the program and its arguments, after --.", show_default=False
        ),
    ] = None
    profile: Annotated[
        str,
        typer.Option("--profile", "-p", help="smoke, quick or full; paper where the file has it."),
    ] = "quick"
    host_name: HostName = None
    binding: Annotated[
        list[str] | None,
        typer.Option("--binding", "-b", help="Instead of the file's: local, remote:farthest, …"),
    ] = None
    case: Annotated[
        list[str] | None, typer.Option(help="Only this case of the experiment's cases.")
    ] = None
    blocks: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Instead of the profile's.")
    ] = None
    seed: Annotated[
        int | None, typer.Option(help="Of the order of trials; drawn if not given.")
    ] = None
    tool: Annotated[str | None, typer.Option(help="The one tool to measure with.")] = None
    option: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the tool: key=value.")
    ] = None
    time_limit: Annotated[
        float | None,
        typer.Option(min=0.001, help="Seconds that a trial may take; by default 10 × the planned."),
    ] = None
    pairs: Annotated[
        str | None,
        typer.Option(help="every: all nodes and pairs of nodes; class: one for each distance."),
    ] = None
    budget: Annotated[
        str | None,
        typer.Option(help="The whole run must fit into it (30m, 2h); shows what is left out."),
    ] = None
    until: Annotated[
        str | None,
        typer.Option(
            help="3%: add blocks until all comparisons differ or are alike within 3 %; ends with "
            "--budget, or --blocks (48)."
        ),
    ] = None
    every: Annotated[bool, typer.Option("--all", help="Every experiment, one by one.")] = False

    @property
    def narrowed(self) -> bool:
        """Whether anything is asked that is of one experiment."""
        own = (self.program, self.binding, self.case, self.blocks, self.tool, self.option)
        return any(item is not None for item in (*own, self.time_limit, self.pairs, self.until))

    @property
    def host(self) -> str:
        """The name that results go under; Fault for one that cannot be a folder's."""
        from numalab import untrusted

        return untrusted.check_name(self.host_name or platform.node(), "a host")

    @property
    def budget_s(self) -> float | None:
        """The seconds that the whole may take, where that was said."""
        from numalab import experiments

        return None if self.budget is None else experiments.duration(self.budget)

    @property
    def service(self) -> str | None:
        """The service file of a resumed run, the one option that may be set for it."""
        options = dict(_key_value(text) for text in self.option or [])
        if set(options) - {"service"}:
            raise Fault("--resume follows the recorded plan: of --set it takes only service=FILE")
        return options.get("service")

    def of_all(self, settings: asking.Settings, collect: bool = True) -> list[asking.Asked]:
        """Return what is wanted of every experiment that has the profile."""
        from numalab import asking

        if self.narrowed:
            raise Fault(
                "--all cannot be used with -b, --case, --blocks, --tool, --set, --time-limit, "
                "--pairs, --until or a program"
            )
        return asking.ask_all(self.profile, self.host, self.seed, settings, collect)

    def of(self, name: str, collect: bool = True) -> asking.Asked:
        """Return what is wanted of an experiment."""
        from numalab import asking, experiments

        loaded, _ = asking.load(name)
        options = dict(_key_value(text) for text in self.option or [])
        if self.program and loaded.tool.name != "command":
            raise Fault(
                f"experiment {loaded.name} measures with its own tool and takes no program",
                f"for a program of your own: numalab run command -- {' '.join(self.program)}",
            )
        if self.program:
            options["argv"] = self.program
        if "argv" in options:  # the file's seconds are of its own program
            options.setdefault("seconds", 0)
        return asking.ask(
            name,
            self.profile,
            self.host,
            seed=self.seed,
            bindings=[_binding(text) for text in self.binding] if self.binding else None,
            cases=self.case or None,
            blocks=self.blocks,
            tool=self.tool,
            options=options,
            collectors=None if collect else False,
            time_limit_s=self.time_limit,
            pairs=self.pairs,
            budget_s=self.budget_s,
            until=None if self.until is None else experiments.share(self.until),
        )


def _with_wanted(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `Wanted`, after its first parameter."""
    own = inspect.signature(command, eval_str=True).parameters
    shared = inspect.signature(Wanted, eval_str=True).parameters

    def asked(**given: Any) -> None:
        wanted = Wanted(**{name: given.pop(name) for name in shared})
        command(wanted=wanted, **given)

    first, *rest = [one for name, one in own.items() if name != "wanted"]
    parameters = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (first, *shared.values(), *rest)
    ]
    asked.__name__, asked.__doc__ = command.__name__, command.__doc__
    asked.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    asked.__annotations__ = {one.name: one.annotation for one in parameters}
    return asked


@app.command()
@_with_wanted
def plan(
    experiment: ExperimentName = None,
    request_only: Annotated[
        bool, typer.Option("--request", help="Print the request, for an agent on another host.")
    ] = False,
    root: Annotated[Path, typer.Option(help="For a copied sysfs tree instead.")] = Path("/"),
    as_json: Json = False,
    *,
    wanted: Wanted,
) -> None:
    """Show what a run would do here: cells, bindings, skipped ones and why, trials, duration."""
    from numalab import asking, launch, pricing, runs
    from numalab.agent.plan import show
    from numalab.analysis import judge

    if (experiment is not None) == wanted.every:
        raise Fault("name one experiment, or --all", "numalab list shows them")
    if experiment is None:
        if request_only:
            raise Fault("--request is of one experiment", "name it")
        settings = asking.Settings(allow_host_changes=True, as_json=as_json)
        priced = pricing.price(wanted.of_all(settings), settings, wanted.budget_s, root)
        if as_json:
            _print_json(priced.as_dict())
        else:
            _print(priced.text(_width()))
            setting = [one.name for one in priced.each if one.plan and show.settings_text(one.plan)]
            if setting:
                _print(f"only with --allow-host-changes, else left out: {', '.join(setting)}")
        return
    request = wanted.of(experiment).request
    if request_only:
        _print_json(request)
        return
    made = launch.make_plan(request, root)
    if as_json:
        _print_json(made)
    else:
        _print(show.text(made, _width()))
        earlier = runs.newest(request.host) if root == Path("/") else []
        foreseen = judge.foresee(made, earlier) if made.cells else ()
        if foreseen:
            _print("\n".join(["this run can see:", *map(str, foreseen)]))
    if not made.order:  # as of `run`
        sys.exit(2)


@app.command()
@_with_wanted
def run(
    experiment: ExperimentName = None,
    collect: Annotated[
        bool, typer.Option("--collectors/--no-collectors", help="Counters beside the tool.")
    ] = True,
    allow_host_changes: Annotated[
        bool,
        typer.Option("--allow-host-changes", help="May set what the experiment asks; put back."),
    ] = False,
    busy: Annotated[
        bool,
        typer.Option(
            "--busy", help="Measure even if other programs use the CPUs; this is recorded."
        ),
    ] = False,
    resume: Annotated[
        Path | None, typer.Option(help="Complete an unfinished run directory.")
    ] = None,
    own_file: Annotated[
        Path | None,
        typer.Option("--experiment", help="With --resume: your file that it was measured by."),
    ] = None,
    begun_elsewhere: Annotated[
        bool,
        typer.Option("--begun-elsewhere", help="With --resume: trust the run's recorded plan."),
    ] = False,
    notebook: Annotated[
        bool, typer.Option("--notebook/--no-notebook", help="Execute the notebook after it.")
    ] = True,
    hosts: Annotated[
        str | None, typer.Option(help="On these hosts of the inventory: a group.")
    ] = None,
    inventory: Annotated[
        list[Path] | None,
        typer.Option("--inventory", "-i", help="Of Ansible; else fleet/inventory.yml, the lab's."),
    ] = None,
    stop: Annotated[
        bool, typer.Option("--stop", help="With --hosts: end what this command left running.")
    ] = False,
    as_json: Json = False,
    *,
    context: typer.Context,
    wanted: Wanted,
) -> None:
    """Measure: every binding in randomised blocks, each placement proven, results stored."""
    if resume is not None:
        _check_resumed(context)
    _check_together(experiment, resume, own_file, begun_elsewhere, hosts, inventory, stop, wanted)
    from numalab import asking, session

    settings = asking.Settings(
        allow_host_changes=allow_host_changes,
        busy=busy,
        notebook=notebook,
        as_json=as_json,
        begun_elsewhere=begun_elsewhere,
    )
    if resume is not None:
        session.resume(resume, settings, own_file, wanted.service)
        return
    if wanted.every:
        asked = wanted.of_all(settings, collect)
    else:
        asked = [wanted.of(str(experiment), collect)]
    if hosts is not None:
        if wanted.every:
            from numalab import pricing

            asked = pricing.shared(asked, wanted.budget_s)
        _on_hosts(asked, hosts, inventory, settings, wanted.seed, stop)
    elif wanted.every:
        session.run_all(asked, settings, wanted.budget_s)
    else:
        session.run(asked[0], settings)


# What a resumed run obeys; the rest its plan says. Others are refused with words of their own.
_WITH_RESUME = ("resume", "own_file", "begun_elsewhere", "allow_host_changes", "busy", "notebook",
                "as_json", "option", "hosts", "inventory", "stop")  # fmt: skip


def _check_resumed(context: typer.Context) -> None:
    """Raise Fault for words that say nothing to a resumed run: it goes on as its plan says."""
    given = [
        one for one in context.command.params
        if one.name and one.name not in _WITH_RESUME
        and getattr(context.get_parameter_source(one.name), "name", "") == "COMMANDLINE"
    ]  # fmt: skip
    hint = "it goes on as its plan says: numalab run --resume DIR"
    if any(one.name in ("experiment", "program") for one in given):
        raise Fault("a resumed run takes no program and no experiment's name", hint)
    if given:
        names = ", ".join("/".join([one.opts[0], *one.secondary_opts]) for one in given)
        raise Fault(f"--resume cannot be used with {names}", hint)


def _check_together(
    experiment: str | None,
    resume: Path | None,
    own_file: Path | None,
    begun_elsewhere: bool,
    hosts: str | None,
    inventory: list[Path] | None,
    stop: bool,
    wanted: Wanted,
) -> None:
    """Raise Fault for options of ``run`` that do not go together."""
    if sum([experiment is not None, wanted.every, resume is not None]) != 1:
        raise Fault("name one experiment, or --all, or --resume DIR", "numalab list shows them")
    if resume is None and (own_file or begun_elsewhere):
        raise Fault("--experiment and --begun-elsewhere need --resume")
    if hosts is None and (inventory or stop):
        raise Fault("--inventory and --stop need --hosts", "name a group or a host with it")
    if hosts is not None and (resume is not None or wanted.host_name is not None):
        raise Fault(
            "--hosts cannot be used with --resume or --host",
            "the same command completes what is missing, and the inventory names the hosts",
        )
    if hosts is not None and wanted.until is not None:
        raise Fault(
            "--until cannot be used with --hosts", "give each host its --blocks or --budget"
        )


def _on_hosts(
    asked: list[asking.Asked],
    group: str,
    inventory: list[Path] | None,
    settings: asking.Settings,
    seed: int | None,
    stop: bool,
) -> None:
    from numalab import fleet

    found = inventory or fleet.inventories()
    if stop:
        outcome = fleet.stop(asked, group, found, settings, seed=seed)
        _print("\n".join(f"{host}: {what}" for host, what in outcome.items()))
    else:
        fleet.run(asked, group, found, settings, seed=seed)


def _key_value(text: str) -> tuple[str, Any]:
    import yaml

    key, equals, value = text.partition("=")
    if not equals or not key:
        raise Fault(f"--set {text!r} is not key=value", "for instance: --set repeat=50")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise Fault(f"--set {text!r}: the value cannot be read", "quote it as in YAML") from None


def _binding(text: str) -> str | dict[str, Any]:
    """Read a binding given on the command line: ``name:argument`` or YAML's ``{…}``.

    ``cpus:0-3@1`` is short for the CPUs 0-3 with memory of node 1.
    """
    if not text.lstrip().startswith("{"):
        return text.replace("@", ",mem=") if text.startswith("cpus:") else text
    import yaml

    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise Fault(f"--binding {text!r} cannot be read", 'like {cpus: "0-3", mem: "0"}')
    return data


@app.command(name="list")
def list_runs(
    runs: Annotated[bool, typer.Option("--runs", help="The runs, not the experiments.")] = False,
    as_json: Json = False,
) -> None:
    """List the experiments, or with --runs the run directories and how they ended."""
    from numalab import listing

    rows = listing.run_rows() if runs else listing.experiment_rows()
    if as_json:
        _print_json(rows)
    else:
        _print(listing.text(rows, _width()))


@app.command()
def check(
    folders: Annotated[list[Path] | None, typer.Argument(help="Run directories.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every run in data/runs.")] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="First derive the tables again from raw/.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a run as a stranger would: hashes, every number from raw, proof, run rules."""
    from numalab import check as checking
    from numalab import home, runs, store

    chosen = [*(folders or []), *(home.find_runs() if every else [])]
    if not chosen:
        raise Fault("name a run directory", "numalab list --runs shows them; or use --all")
    found = [home.resolve(given) for given in chosen]
    for folder in found:
        checking.refuse_no_run(folder)
    results = []
    for folder in found:
        if rebuild:
            store.write(runs.load(folder))
        results.append(checking.check(folder))
    if as_json:
        _print_json([result.as_dict() for result in results])
    else:
        _print("\n".join(result.text() for result in results))
    if any(result.faults for result in results):
        sys.exit(1)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="A run directory (numalab list --runs).")],
    second: Annotated[
        Path, typer.Argument(help="Another, of the same experiment, here or on another host.")
    ],
    counters: Annotated[bool, typer.Option("--counters", help="The counters too.")] = False,
    as_json: Json = False,
) -> None:
    """Compare two runs, of one host or of two, cell by cell, with intervals."""
    from numalab import home
    from numalab.analysis import comparison

    frame = comparison.compare_runs(home.resolve(first), home.resolve(second))
    if not counters:
        frame = frame.filter(frame["source"] == "tool")
    if as_json:
        _print_json(frame.to_dicts())
    else:
        _print(comparison.text(frame, _width() if sys.stdout.isatty() else None))


@app.command()
def report(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Run directories; else the newest of each kind.")
    ] = None,
    host_name: Annotated[
        str | None, typer.Option("--host", help="Only the runs of this host.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where the article goes.")] = None,
    engine: Annotated[
        str, typer.Option(help="quarto, nbconvert, or auto: Quarto where it is installed.")
    ] = "auto",
    study: Annotated[
        bool, typer.Option("--study", help="numalab's own article instead, as it is committed.")
    ] = False,
) -> None:
    """Render the article over your runs: HTML (and PDF by Quarto)."""
    from numalab.pages import report as reporting

    if study:
        if runs or host_name:
            raise Fault("--study takes no runs", "its runs are the published ones")
        reporting.study(out=out, engine=engine, say=_print)
        return
    reporting.make(runs, host=host_name, out=out, engine=engine, say=_print)


@app.command()
def survey(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Latency runs of your hosts; else the newest of this host."),
    ] = None,
    host_name: HostName = None,
    out: Annotated[Path | None, typer.Option(help="Where the page goes.")] = None,
    notebook: Annotated[
        bool, typer.Option("--notebook/--no-notebook", help="Draw the charts, on a page.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Show what others published of real machines, and where your hosts stand among them."""
    from numalab import runs
    from numalab.show import survey as published

    name = host_name or platform.node()
    if folders:
        own = [runs.load(folder) for folder in folders]
    else:
        newest = runs.newest(name)
        own = [run for run in newest if run.manifest.experiment == "latency"]
    found = published.Survey(own)
    if as_json:
        _print_json(found.as_dict())
        return
    found.print()
    if not own:
        _print(f"{name}: no complete run of latency, so it is not placed (numalab run latency)")
    if notebook:
        from numalab.pages import survey as pages

        _print(f"\n{pages.make(found.runs, out)}")


@app.command()
def restore() -> None:
    """Put back host settings that an earlier run changed and could not put back."""
    from numalab.agent.trial import host_changes

    done = host_changes.restore()
    _print("\n".join(map(str, done)) or "nothing to put back")


@app.command()
def agent(
    file: Annotated[Path, typer.Argument(help="Where it goes, for instance numalab.pyz.")],
) -> None:
    """Write the agent as one file that runs on any host with Python 3.9 and nothing else."""
    from numalab import agent_archive

    _print(agent_archive.build(file))
    carried = " and ".join(agent_archive.carried(file)) or "none: its hosts need a compiler"
    typer.echo(f"probes in it: {carried}", err=True)


@app.command()
def parse(
    tool: Annotated[str, typer.Argument(help="lscpu, numactl, numastat, mlc, stream, …")],
    file: Annotated[Path, typer.Argument(help="A captured output; - for standard input.")],
    as_json: Json = False,
) -> None:
    """Print what the parser of a tool reads from a captured output."""
    from numalab import listing, logs, untrusted

    parser = logs.parser(tool)
    if str(file) != "-" and not file.is_file():
        raise Fault(f"{file} is not a file that can be read", "name a captured output, or - for it")
    if str(file) == "-":
        data = sys.stdin.buffer.read(untrusted.LARGEST_TEXT)
    else:
        data = untrusted.read_bytes(file.resolve().parent, file.name, untrusted.LARGEST_TEXT)
    with untrusted.little_memory(file):
        records = parser(data.decode("utf-8", errors="replace"))
        if as_json:
            _print_json(records)
        else:
            _print(listing.records(records, _width()))


@app.command(name="import")
def import_logs(
    files: Annotated[list[Path], typer.Argument(help="Outputs of tools, captured elsewhere.")],
    host_name: Annotated[str, typer.Option("--host", help="The machine they were measured on.")],
    experiment: Annotated[
        str | None, typer.Option(help="The experiment they stand for; else the one that fits.")
    ] = None,
    cell: Annotated[
        list[str] | None, typer.Option(help="The binding of each file, in order.")
    ] = None,
    note: Annotated[str, typer.Option(help="Where they come from.")] = "",
) -> None:
    """Make a run, graded unverified, of logs measured by hand elsewhere."""
    from numalab import runs
    from numalab.logs import importer

    folder = importer.import_logs(files, host_name, experiment, cell or [], note)
    run = runs.load(folder)
    for trial in run.trials:
        for warning in trial.warnings:
            _print(f"⚠ trial {trial.trial}: {warning}")
    if experiment is None:
        _print(f"it stands for the experiment {run.manifest.experiment}")
    _print(f"{folder}   →   numalab report {folder}")


if __name__ == "__main__":
    main()
