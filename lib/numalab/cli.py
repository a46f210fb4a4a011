"""The command line: ``numalab``. Heavy imports stay inside the commands that need them."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from numalab.agent.errors import Fault
from numalab.lab import commands as lab

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
    print(f"numalab: {words}", file=sys.stderr)
    sys.exit(code)


def _width() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=2, ensure_ascii=False))


@app.command()
def host(
    root: Annotated[Path, typer.Option(help="Read a copied sysfs tree instead.")] = Path("/"),
    as_json: Json = False,
) -> None:
    """Show this machine (or a copied sysfs tree): nodes, CPUs, memory, distances, settings."""
    from numalab.agent.host import describe, state, topology

    shape = topology.read(str(root))
    settings = state.read(str(root))
    if as_json:
        emulated, why = state.emulated(shape, settings)
        _print_json(
            {
                "schema": 1,
                "host": platform.node() if root == Path("/") else None,
                "emulated": emulated,
                "emulated_why": why,
                "topology": shape,
                "state": settings,
            }
        )
        return
    found = describe.tools() if root == Path("/") else []
    print(describe.text(shape, settings, found, _width()))


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
    print(output)
    sys.exit(status)


ExperimentName = Annotated[str, typer.Argument(help="Its name (numalab list), or a YAML file.")]
Program = Annotated[
    list[str] | None,
    typer.Argument(help="For 'command': the program and its arguments, after --.", show_default=""),
]
ProfileName = Annotated[
    str, typer.Option("--profile", "-p", help="smoke, quick or full; paper where the file has it.")
]
HostName = Annotated[str | None, typer.Option("--host", help="The name results go under.")]
Bindings = Annotated[
    list[str] | None,
    typer.Option("--binding", "-b", help="Instead of the file's: local, remote:farthest, …"),
]
Cases = Annotated[
    list[str] | None, typer.Option("--case", help="Only this case of the experiment's cases.")
]
Blocks = Annotated[int | None, typer.Option(min=1, help="Instead of the profile's.")]
Seed = Annotated[int | None, typer.Option(help="Of the order of trials; drawn if not given.")]
ToolName = Annotated[str | None, typer.Option("--tool", help="The one tool to measure with.")]
TimeLimit = Annotated[
    float | None, typer.Option(min=0.001, help="Seconds a trial may take; else 10 × the planned.")
]
Options = Annotated[
    list[str] | None, typer.Option("--set", help="An option of the tool: key=value.")
]


@app.command()
def plan(
    experiment: ExperimentName,
    program: Program = None,
    profile: ProfileName = "quick",
    host_name: HostName = None,
    binding: Bindings = None,
    case: Cases = None,
    blocks: Blocks = None,
    seed: Seed = None,
    tool: ToolName = None,
    option: Options = None,
    time_limit: TimeLimit = None,
    request_only: Annotated[
        bool, typer.Option("--request", help="Print the request, for an agent on another host.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what a run would do here: cells, bindings, skipped ones and why, trials, duration."""
    from numalab import launch
    from numalab.agent.plan import make as planning

    request = _request(
        experiment, program, profile, host_name, binding, case, blocks, seed, tool, option,
        time_limit,
    )  # fmt: skip
    if request_only:
        _print_json(request)
        return
    made = launch.make_plan(request)
    if as_json:
        _print_json(made)
    else:
        print(planning.text(made, _width()))


@app.command()
def run(
    experiment: Annotated[
        str | None, typer.Argument(help="Its name (numalab list), or a YAML file.")
    ] = None,
    program: Program = None,
    every: Annotated[bool, typer.Option("--all", help="Every experiment, one by one.")] = False,
    profile: ProfileName = "quick",
    host_name: HostName = None,
    binding: Bindings = None,
    case: Cases = None,
    blocks: Blocks = None,
    seed: Seed = None,
    tool: ToolName = None,
    option: Options = None,
    time_limit: TimeLimit = None,
    collect: Annotated[
        bool, typer.Option("--collectors/--no-collectors", help="Counters beside the tool.")
    ] = True,
    allow_host_changes: Annotated[
        bool,
        typer.Option("--allow-host-changes", help="May set what the experiment asks; put back."),
    ] = False,
    resume: Annotated[
        Path | None, typer.Option(help="Complete an unfinished run directory.")
    ] = None,
    notebook: Annotated[
        bool, typer.Option("--notebook/--no-notebook", help="Execute the notebook after it.")
    ] = True,
    hosts: Annotated[
        str | None, typer.Option("--hosts", help="On these hosts of the inventory: a group.")
    ] = None,
    inventory: Annotated[
        list[Path] | None,
        typer.Option("--inventory", "-i", help="Of Ansible; else fleet/inventory.yml, the lab's."),
    ] = None,
    stop: Annotated[
        bool, typer.Option("--stop", help="With --hosts: end what this command left running.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure: every binding in randomised blocks, each placement proven, results stored."""
    from numalab import session

    given = [bool(experiment), every, resume is not None]
    if sum(given) != 1:
        raise Fault("name one experiment, or --all, or --resume DIR", "numalab list shows them")
    settings = session.Settings(
        allow_host_changes=allow_host_changes, notebook=notebook, as_json=as_json
    )
    if hosts is None and (inventory or stop):
        raise Fault("--inventory and --stop need --hosts", "name a group or a host with it")
    if hosts is not None and (resume is not None or host_name is not None):
        raise Fault(
            "--hosts goes with neither --resume nor --host",
            "the same command completes what is missing, and the inventory names the hosts",
        )
    if resume is not None:
        session.resume(resume, settings)
        return
    if every:
        narrowed = (binding, case, blocks, tool, option, program, time_limit)
        if any(item is not None for item in narrowed):
            raise Fault(
                "--all takes no -b, --case, --blocks, --tool, --set, --time-limit, no program"
            )
        if hosts is None:
            session.run_all(profile, host_name or platform.node(), seed, settings, collect)
            return
        requests = session.all_requests(profile, "", seed, settings, collect)
    else:
        assert experiment is not None
        request = _request(
            experiment, program, profile, host_name, binding, case, blocks, seed, tool, option,
            time_limit, collect,
        )  # fmt: skip
        requests = [(request, _load(experiment))]
        if hosts is None:
            session.run(*requests[0], settings)
            return
    from numalab import fleet

    found = inventory or fleet.inventories()
    if stop:
        said = fleet.stop(requests, hosts, found, settings, seed=seed)
        print("\n".join(f"{host}: {what}" for host, what in said.items()))
    else:
        fleet.run(requests, hosts, found, settings, seed=seed)


def _load(name: str) -> Any:
    from numalab import experiments

    return experiments.load(name)


def _request(
    name: str,
    program: list[str] | None,
    profile: str,
    host_name: str | None,
    binding: list[str] | None,
    case: list[str] | None,
    blocks: int | None,
    seed: int | None,
    tool: str | None,
    option: list[str] | None,
    time_limit: float | None,
    collect: bool = True,
) -> dict[str, Any]:
    loaded = _load(name)
    options = dict(_key_value(text) for text in option or [])
    if program and loaded.tool.name != "command":
        raise Fault(
            f"experiment {loaded.name} measures with its own tool and takes no program",
            f"for a program of your own: numalab run command -- {' '.join(program)}",
        )
    if program:
        options["argv"] = program
    return loaded.request(
        profile,
        host_name or platform.node(),
        seed=seed,
        bindings=[_binding(text) for text in binding] if binding else None,
        cases=case or None,
        blocks=blocks,
        tool=tool,
        options=options,
        collectors=None if collect else False,
        time_limit_s=time_limit,
    )


def _key_value(text: str) -> tuple[str, Any]:
    import yaml

    key, equals, value = text.partition("=")
    if not equals or not key:
        raise Fault(f"--set {text!r} is not key=value", "for instance: --set repeat=50")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise Fault(f"--set {text!r}: the value cannot be read", "quote it as in YAML") from None


_NUMBER = re.compile(r"\d+\Z")


def _binding(text: str) -> str | dict[str, Any]:
    """Read a binding given on the command line: a name, ``name:argument``, or YAML's ``{…}``."""
    if text.lstrip().startswith("{"):
        import yaml

        try:
            data = yaml.safe_load(text)
        except yaml.YAMLError:
            data = None
        if not isinstance(data, dict):
            raise Fault(f"--binding {text!r} cannot be read", 'like {cpus: "0-3", mem: "0"}')
        return data
    name, colon, argument = text.partition(":")
    if not colon:
        return name
    if name == "cores":
        count, _, within = argument.partition("-")
        if not _NUMBER.match(count) or not within:
            raise Fault(f"--binding {text!r} cannot be read", "write it like cores:8-node")
        return {"cores": {"count": int(count), "within": within}}
    if name == "cpus":
        cpus, _, memory = argument.partition("@")
        return {"cpus": cpus, "mem": memory} if memory else {"cpus": cpus}
    return {name: int(argument) if _NUMBER.match(argument) else argument}


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
        print(listing.text(rows, _width()))


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
    from numalab import home, store

    chosen = [*(folders or []), *(home.find_runs() if every else [])]
    if not chosen:
        raise Fault("name a run directory", "numalab list --runs shows them; or use --all")
    results = []
    for given in chosen:
        folder = home.resolve(given)
        if rebuild:
            store.write(folder)
        results.append(checking.check(folder))
    if as_json:
        _print_json([result.as_dict() for result in results])
    else:
        print("\n".join(result.text() for result in results))
    if any(result.faults for result in results):
        sys.exit(1)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="A run directory.")],
    second: Annotated[Path, typer.Argument(help="Another, of the same experiment.")],
    counters: Annotated[bool, typer.Option("--counters", help="The counters too.")] = False,
    as_json: Json = False,
) -> None:
    """Compare two runs or two hosts, cell by cell, with intervals."""
    from numalab import home
    from numalab.analysis import comparison

    frame = comparison.compare_runs(home.resolve(first), home.resolve(second))
    if not counters:
        frame = frame.filter(frame["source"] == "tool")
    if as_json:
        _print_json(frame.to_dicts())
    else:
        print(comparison.text(frame, _width()))


@app.command()
def report(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Run directories; else the newest of each kind.")
    ] = None,
    host_name: HostName = None,
    out: Annotated[Path | None, typer.Option(help="Where the article goes.")] = None,
    engine: Annotated[
        str, typer.Option(help="quarto, nbconvert, or auto: Quarto where it is installed.")
    ] = "auto",
) -> None:
    """Render the performance article over runs: HTML (and PDF by Quarto)."""
    from numalab.pages import report as reporting

    reporting.make(runs, host=host_name, out=out, engine=engine, say=print)


@app.command()
def restore() -> None:
    """Put back host settings that an earlier run changed and could not put back."""
    from numalab.agent.trial import settings as changes

    for line in changes.restore() or ["nothing to put back"]:
        print(line)


@app.command()
def agent(
    file: Annotated[Path, typer.Argument(help="Where it goes, for instance numalab.pyz.")],
) -> None:
    """Write the agent as one file that runs on any host with Python 3.9 and nothing else."""
    from numalab import agent_archive

    print(agent_archive.build(file))


@app.command()
def parse(
    tool: Annotated[str, typer.Argument(help="lscpu, numactl, numastat, mlc, stream, …")],
    file: Annotated[Path, typer.Argument(help="A captured output; - for standard input.")],
    as_json: Json = False,
) -> None:
    """Print what the parser of a tool reads from a captured output."""
    from numalab import listing
    from numalab.agent import drivers

    parser = drivers.parser(tool)
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    records = parser(data.decode("utf-8", errors="replace"))
    if as_json:
        _print_json(records)
    else:
        print(listing.records(records, _width()))


@app.command(name="import")
def import_logs(
    files: Annotated[list[Path], typer.Argument(help="Outputs of tools, captured elsewhere.")],
    host_name: Annotated[str, typer.Option("--host", help="The machine they were measured on.")],
    experiment: Annotated[str, typer.Option(help="The experiment they stand for.")] = "latency",
    cell: Annotated[
        list[str] | None, typer.Option(help="The binding of each file, in order.")
    ] = None,
    note: Annotated[str, typer.Option(help="Where they come from.")] = "",
) -> None:
    """Make a run, graded unverified, of logs measured by hand elsewhere."""
    from numalab.logs import importer

    folder = importer.import_logs(files, host_name, experiment, cell or [], note)
    print(f"{folder}   →   numalab report {folder}")


if __name__ == "__main__":
    main()
