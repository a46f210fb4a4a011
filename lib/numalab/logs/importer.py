"""Runs made of logs that somebody measured by hand elsewhere: graded unverified, never more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from numalab import experiments, home, launch, logs, runs, store, untrusted
from numalab.agent import VERSION, cpulist, drivers
from numalab.agent.contract import (
    NOT_RECORDED,
    PUBLISHED,
    SCHEMA,
    UNVERIFIED,
    Allowed,
    Cell,
    CpuExpectation,
    Expectation,
    Host,
    HostRecord,
    Manifest,
    MemoryExpectation,
    MemoryPolicy,
    Node,
    Plan,
    Reason,
    Record,
    Timing,
    ToolRecord,
    Trial,
    TrialRecord,
    TrialTimes,
    reason,
    to_json,
)
from numalab.agent.drivers import mlc
from numalab.agent.errors import Fault
from numalab.agent.trial import journal

ELSEWHERE = reason("measured-elsewhere")
_TESTS = {"prime_limit": "cpu", "operation": "memory", "thread_yields": "threads"}  # of sysbench
_ASKED_AS = {"cache_latency": "core_latency"}  # MLC's, between sockets: as core-to-core asks
_SHAPES = ("lscpu", "numactl")  # describe the host; everything else is a measurement


class _Log(NamedTuple):
    """A captured output: its file, its text, and the name of the form that it has."""

    path: Path
    text: str
    form: str


def import_logs(
    files: Sequence[Path], host: str, experiment: str | None, labels: Sequence[str], note: str
) -> Path:
    """Make a run directory of captured outputs; return it.

    Each output of a measuring tool becomes one trial, graded unverified, in a cell of its own
    named by ``labels`` (in order; else by its file). Outputs of lscpu and ``numactl --hardware``
    describe the host; ``note`` says where all of them come from. Without an ``experiment`` it is
    the one that asks for what they measure. Raises Fault for a file that no parser recognises or
    can read, and for an experiment that asks for something else.
    """
    found = [_read(path) for path in files]
    shapes = {log.form: log.text for log in found if log.form in _SHAPES}
    measured = [log for log in found if log.form not in _SHAPES]
    tool = _only_tool(measured)
    if labels and len(labels) != len(measured):
        raise Fault(
            f"{len(labels)} cells are named for {len(measured)} measurements",
            "give --cell once per measurement, in the order of the files, or not at all",
        )
    machine = _host(shapes, note)
    parse = logs.parser(tool)
    if tool == "mlc":  # a matrix has no rows of these nodes: it is whole all the same
        without_cpus = [node.number for node in machine.nodes if not node.cpus]
        parse = partial(mlc.parse_whole, without_cpus=without_cpus)
    with untrusted.little_memory("what is imported"):
        parsed = [parse(log.text) for log in measured]
    loaded = _experiment(experiment, tool, parsed)
    folder = launch.new_run_directory(home.runs(), host, loaded.name)
    (folder / "raw").mkdir(parents=True)
    version = next((r["text"] for r in parsed[0] if r["kind"] == "version"), None)
    names = labels or [log.path.stem for log in measured]
    rules = {"cache_bytes": _cache_bytes(shapes)} if tool == "stream" else {}
    cells = tuple(_cell(place, name, rules) for place, name in enumerate(names, 1))
    plan = _plan(loaded, host, ToolRecord(tool, version), cells, note)
    for trial, log, records in zip(plan.order, measured, parsed, strict=True):
        _write_trial(folder, trial, plan.tool, log, drivers.driver(tool).doubts(records, rules))
    record = HostRecord(SCHEMA, host, False, None, machine, {}, None)
    journal.write_json(folder / "host.json", to_json(record))
    _write_manifest(folder, plan)
    store.write(runs.load(folder))
    return folder


def _read(path: Path) -> _Log:
    if not path.is_file():
        raise Fault(f"{path} is not a file that can be read")
    real = path.resolve()
    data = untrusted.read_bytes(real.parent, real.name, untrusted.LARGEST_TEXT)
    text = data.decode("utf-8", errors="replace")
    form = logs.detect(text)
    if form is None:
        raise Fault(
            f"{path}: no parser recognises this output",
            "numalab imports what mlc, stream and sysbench print; outputs of lscpu and numactl "
            "beside them describe the host",
        )
    if form not in (*_SHAPES, *drivers.MEASURING):
        raise Fault(f"{path} is an output of {form}, which is no measurement to import")
    return _Log(path, text, form)


def _only_tool(measured: Sequence[_Log]) -> str:
    names = sorted({log.form for log in measured})
    if not names:
        raise Fault(
            "none of these files holds a measurement",
            "give at least one output of mlc, stream or sysbench",
        )
    if len(names) > 1:
        raise Fault(
            f"these files come from several tools: {', '.join(names)}",
            "results of different tools never stand in one run; import each tool's by itself",
        )
    return names[0]


def _experiment(
    asked: str | None, tool: str, parsed: Sequence[Sequence[Record]]
) -> experiments.Experiment:
    """Return the experiment that logs of a tool stand for: it must ask for what they measure.

    Of several that do it is the one of the highest priority, unless ``asked`` names one.
    """
    rows = [row for one in parsed for row in drivers.driver(tool).metrics(one)]
    metrics = {_ASKED_AS.get(row.metric, row.metric) for row in rows}
    tests = {_TESTS[r["name"]] for one in parsed for r in one if r.get("name") in _TESTS}

    def fits(one: experiments.Experiment) -> bool:
        own = tool in (one.tool.name, *one.tool.prefer) or tool == "mlc"
        of_test = tool != "sysbench" or {one.tool.options.get("test")} == tests
        return own and of_test and bool(metrics & set(one.measure))

    if asked and fits(experiments.load(asked)):
        return experiments.load(asked)
    known = [experiments.load(name) for name in experiments.names()]
    fitting = [one for one in known if fits(one)]
    if asked and fitting:
        raise Fault(
            f"{asked} does not ask for what these logs of {tool} measure",
            f"leave --experiment out, or name {' or '.join(one.name for one in fitting)}",
        )
    if not asked and not fitting:
        raise Fault(
            f"no experiment asks for what these logs of {tool} measure: {', '.join(metrics)}",
            "name the one that they shall stand for with --experiment",
        )
    return max(fitting, key=lambda one: one.priority) if fitting else experiments.load(str(asked))


def _cell(place: int, label: str, options: dict[str, Any]) -> Cell:
    expects = Expectation(MemoryExpectation("none"), CpuExpectation("outcome"))
    memory = MemoryPolicy(NOT_RECORDED)
    return Cell(
        None, "", memory, expects, f"imported:{place}", "imported", label, options=options
    )  # fmt: skip


def _plan(
    loaded: experiments.Experiment,
    host: str,
    tool: ToolRecord,
    cells: tuple[Cell, ...],
    note: str,
) -> Plan:
    request = loaded.request(next(iter(loaded.profiles)), host, seed=0, blocks=1)
    request = replace(request, profile="imported", control=False, bindings=())
    order = tuple(Trial(place, 1, place, cell.id) for place, cell in enumerate(cells, 1))
    return Plan(
        schema=SCHEMA,
        request=request,
        tool=tool,
        cells=cells,
        skipped=(),
        resolved=(),
        order=order,
        warnings=(ELSEWHERE, reason("imported-from", note=note or "no source was given")),
        estimate=Timing(),
    )


def _write_trial(
    folder: Path, trial: Trial, tool: ToolRecord, log: _Log, doubts: Sequence[Reason]
) -> None:
    name = f"raw/{trial.trial:04d}-imported.stdout.gz"
    digest = journal.write_gzip(folder / name, log.text.encode("utf-8"))
    when = datetime.fromtimestamp(log.path.stat().st_mtime, timezone.utc).isoformat()
    record = TrialRecord(
        schema=SCHEMA,
        trial=trial.trial,
        block=trial.block,
        position=trial.position,
        cell=trial.cell,
        attempt=1,
        started=when,
        ended=when,
        grade=UNVERIFIED,
        reason=ELSEWHERE,
        argv=(),
        exit_status=None,
        signal=None,
        times=TrialTimes(0.0, 0.0, 0.0, 0.0, 0.0),
        tool=tool,
        raw={"stdout": name},
        sha256={name: digest},
        warnings=tuple(doubts),
    )
    journal.append(folder / "journal.ndjson", record)


def _write_manifest(folder: Path, plan: Plan) -> None:
    now = datetime.now(timezone.utc).isoformat()
    names = ["host.json", "journal.ndjson"]
    names += sorted(f"raw/{path.name}" for path in (folder / "raw").iterdir())
    manifest = Manifest(
        schema=SCHEMA,
        run=folder.name,
        host=plan.request.host,
        experiment=plan.request.experiment,
        profile=plan.request.profile,
        evidence=PUBLISHED,
        seed=0,
        started=now,
        ended=now,
        status="imported",
        agent_version=VERSION,
        source_commit=None,
        plan=plan,
        sha256={name: journal.sha256(folder / name) for name in names},
    )
    journal.write_json(folder / "manifest.json", to_json(manifest))


def _cache_bytes(shapes: dict[str, str]) -> int | None:
    """Return the sum of the last-level caches, where lscpu gives it (since util-linux 2.34)."""
    records = logs.parser("lscpu")(shapes["lscpu"]) if "lscpu" in shapes else []
    sums = {r["name"]: r["value"] for r in records if r["kind"] == "cache" and r["scope"] == "all"}
    return sums.get("L3") or sums.get("L2")


def _host(shapes: dict[str, str], note: str) -> Host:
    """Return the host as captured outputs of lscpu and numactl describe it; the rest is None."""
    fields: dict[str, Any] = {}
    if "lscpu" in shapes:
        records = logs.parser("lscpu")(shapes["lscpu"])
        fields = {r["name"]: r["value"] for r in records if r["kind"] == "field"}
    nodes = _nodes(logs.parser("numactl")(shapes["numactl"]) if "numactl" in shapes else [])
    cpus = [cpu for node in nodes for cpu in cpulist.parse(node.cpus)]
    return Host(
        root="",
        arch=fields.get("architecture"),
        model=fields.get("model_name"),
        vendor=fields.get("vendor"),
        packages=fields.get("sockets"),
        dies=None,
        clusters=None,
        cores=None,
        threads=fields.get("cpus") or len(cpus),
        threads_per_core=fields.get("threads_per_core"),
        cpus=(),
        nodes=nodes,
        caches=(),
        pci=(),
        allowed=Allowed(cpulist.format(cpus), cpulist.format(node.number for node in nodes)),
        offline="",
        possible=None,
        available_bytes=None,
        problems=(reason("imported-from", note=note or "no source was given"),),
    )


def _nodes(records: Sequence[Record]) -> tuple[Node, ...]:
    """Return the nodes that numactl --hardware lists, ascending."""
    values = {(r["kind"], r["node"]): r for r in records if "node" in r}
    nodes = []
    for number in sorted(node for kind, node in values if kind == "node_size"):
        size, free = values["node_size", number]["value"], values["node_free", number]["value"]
        row = [r for r in records if r["kind"] == "distance" and r["from"] == number]
        nodes.append(
            Node(
                number=number,
                cpus=values.get(("node_cpus", number), {"cpus": ""})["cpus"],
                memory_bytes=None if size is None else size << 20,
                free_bytes=None if free is None else free << 20,
                page_cache_bytes=None,
                distances={r["to"]: r["value"] for r in row},
            )
        )
    return tuple(nodes)
