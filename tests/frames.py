"""Builders of measurement frames, plans and host records for the tests of the analysis."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import polars as pl

from numalab import runs, store
from numalab.agent import contract
from numalab.agent.contract import MEASURED, Reason, ToolRecord, reason

PROBE = ToolRecord("probe", "1")
SCHEMA = store.MEASUREMENTS
"""The columns of measurements.parquet."""


@dataclass
class Cell:
    """One cell of a made-up plan; ``value`` is its true mean, ``noise`` overrides the frame's."""

    id: str
    value: float
    baseline: Optional[str] = None
    role: str = "cell"
    cpus: Optional[str] = "0-3"
    cpu_nodes: Optional[str] = "0"
    memory: Dict[str, Optional[str]] = field(
        default_factory=lambda: {"policy": "bind", "nodes": "0"}
    )
    threads: int = 4
    distance: Optional[int] = None
    rank: Tuple[str, ...] = ()
    noise: Optional[float] = None

    @property
    def named(self) -> str:
        """The binding with its argument: local:0, cores:8-spread."""
        return self.id.split("/")[0]

    @property
    def binding(self) -> str:
        return self.named.split(":")[0]

    @property
    def variant(self) -> str:
        """What the id says beyond the binding: threads=2, full, or nothing."""
        return "/".join(part for part in self.id.split("/")[1:] if part != "control")

    def planned(self, options: Mapping[str, Any] = {}) -> contract.Cell:
        """Return the cell as the contract has it."""
        policy, nodes = self.memory["policy"], self.memory["nodes"]
        bound = policy in ("bind", "interleave")
        option, swept, value = self.variant.partition("=")
        number = int(value) if value.isdecimal() else value
        return contract.Cell(
            id=self.id,
            binding=self.binding,
            label=self.label,
            role=self.role,
            baseline=self.baseline,
            cpus=self.cpus,
            cpu_nodes=self.cpu_nodes or "",
            memory=contract.MemoryPolicy(policy, nodes),
            expects=contract.Expectation(
                contract.MemoryExpectation("required" if bound else "outcome", nodes=nodes),
                contract.CpuExpectation("required" if self.cpus else "outcome", self.cpus),
            ),
            threads=self.threads,
            distance=self.distance,
            rank=self.rank,
            layout=self.named.partition(":")[2].partition("-")[2]
            if self.binding == "cores" else self.named.partition(":")[2]
            if self.binding == "instances" else "",
            sweep=contract.Sweep(option, number) if swept else None,
            case=contract.Case(option, option) if option and not swept else None,
            options=dict(options),
        )  # fmt: skip

    @property
    def label(self) -> str:
        return self.id.replace(":", " ")


def two_nodes(
    local: float = 80.0,
    remote: float = 52.0,
    interleave: float = 61.0,
    unbound: float = 79.0,
    control: Optional[float] = None,
) -> List[Cell]:
    """Return the cells of a two-node host: local, remote and interleave per node, control."""
    cells = []
    for node, cpus in ((0, "0-3"), (1, "4-7")):
        here, there = str(node), str(1 - node)
        on = {"cpus": cpus, "cpu_nodes": here}
        base = f"local:{node}"
        cells += [
            Cell(
                base,
                local,
                role="baseline",
                distance=10,
                memory={"policy": "bind", "nodes": here},
                **on,
            ),
            Cell(
                f"remote:{here}-{there}",
                remote,
                base,
                distance=21,
                rank=("nearest", "farthest"),
                memory={"policy": "bind", "nodes": there},
                **on,
            ),
            Cell(
                f"interleave:{node}",
                interleave,
                base,
                memory={"policy": "interleave", "nodes": "0-1"},
                **on,
            ),
        ]
    cells.append(
        Cell(
            "unbound",
            unbound,
            "local:0",
            cpus=None,
            cpu_nodes="0-1",
            threads=8,
            memory={"policy": "default", "nodes": None},
        )
    )
    cells.append(
        Cell(
            "local:0/control",
            local if control is None else control,
            "local:0",
            role="control",
            distance=10,
        )
    )
    return cells


def measurements(
    cells: Sequence[Cell],
    *,
    metric: str = "triad",
    unit: str = "GB/s",
    point: str = "",
    blocks: int = 6,
    noise: float = 0.01,
    block_noise: float = 0.0,
    drift: float = 0.0,
    seed: int = 0,
    grade: Union[str, Dict[Tuple[str, int], str]] = "verified",
    **constants: Any,
) -> pl.DataFrame:
    """Return a frame like measurements.parquet: each cell once in each block, in random order.

    ``noise`` and ``block_noise`` are the sigmas of lognormal noise per trial and per block;
    ``drift`` is the relative change over the whole run; ``grade`` is one grade for all rows, or
    a mapping of (cell, block) to the grade of that trial; ``constants`` override columns, for
    instance ``host="b"`` or ``tool="stream"``.
    """
    random = np.random.default_rng(seed)
    trials = len(cells) * blocks
    rows = []
    for block in range(1, blocks + 1):
        shift = random.normal(0, block_noise)
        for position, index in enumerate(random.permutation(len(cells)), 1):
            cell = cells[index]
            trial = (block - 1) * len(cells) + position
            sigma = noise if cell.noise is None else cell.noise
            value = cell.value * np.exp(shift + random.normal(0, sigma))
            value *= 1 + drift * (trial - 1) / max(trials - 1, 1)
            graded = grade if isinstance(grade, str) else grade.get((cell.id, block), "verified")
            rows.append(
                {
                    "run": "20261120T220511Z-stream",
                    "host": "a",
                    "experiment": "stream",
                    "profile": "quick",
                    "trial": trial,
                    "block": block,
                    "position": position,
                    "cell": cell.id,
                    "binding": cell.binding,
                    "label": cell.label,
                    "role": cell.role,
                    "baseline": cell.baseline,
                    "cpus": cell.cpus,
                    "cpu_nodes": cell.cpu_nodes,
                    "memory_policy": cell.memory["policy"],
                    "memory_nodes": cell.memory["nodes"],
                    "threads": cell.threads,
                    "distance": cell.distance,
                    "tool": "probe",
                    "tool_version": "1",
                    "source": "tool",
                    "metric": metric,
                    "point": point,
                    "x": None,
                    "y": None,
                    "value": value,
                    "unit": unit,
                    "grade": graded,
                    "reason": None if graded == "verified" else "graded-by-the-test",
                    "reason_fields": None if graded == "verified" else "{}",
                    **constants,
                }
            )
    return pl.DataFrame(rows, schema=SCHEMA)


def core_latency_frame(
    matrix: np.ndarray,
    cpus: Sequence[int],
    *,
    blocks: int = 6,
    noise: float = 0.02,
    seed: int = 0,
    **constants: Any,
) -> pl.DataFrame:
    """Return a core-to-core run: a row per block and pair of CPUs with x and y; NaN is left out."""
    random = np.random.default_rng(seed)
    parts = []
    cell = Cell("unbound", 1.0, role="baseline", cpus=None, cpu_nodes=None)
    for block in range(1, blocks + 1):
        for i, x in enumerate(cpus):
            for j, y in enumerate(cpus):
                if i < j and np.isfinite(matrix[i, j]):
                    parts.append(
                        (
                            block,
                            f"{x}-{y}",
                            float(x),
                            float(y),
                            matrix[i, j] * np.exp(random.normal(0, noise)),
                        )
                    )
    base = measurements(
        [cell], metric="core_latency", unit="ns", blocks=1, experiment="core-to-core", **constants
    )
    pairs = pl.DataFrame(parts, schema=["block", "point", "x", "y", "value"], orient="row")
    return (
        base.drop("block", "point", "x", "y", "value", "trial", "position")
        .join(pairs, how="cross")
        .with_columns(trial=pl.col("block"), position=pl.lit(1))
        .select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())
    )


def plan(
    cells: Sequence[Cell],
    *,
    blocks: int = 6,
    skipped: Sequence[contract.Skip] = (),
    profile: str = "quick",
    experiment: str = "stream",
    host: str = "a",
    tool: Optional[ToolRecord] = None,
    measure: Optional[Mapping[str, contract.Measure]] = None,
    options: Mapping[str, Any] = {},
    resolved: Sequence[contract.Resolution] = (),
    **request: Any,
) -> contract.Plan:
    """Return a plan of these cells; ``request`` goes to the request.

    What somebody may call a binding is resolved to the cells of that name; ``resolved`` comes
    before that.
    """
    found = tool or PROBE
    random = np.random.default_rng(1)
    order = [
        contract.Trial((block - 1) * len(cells) + place, block, place, cells[index].id)
        for block in range(1, blocks + 1)
        for place, index in enumerate(random.permutation(len(cells)), 1)
    ]
    given = {one.asked: one for one in resolved}
    return contract.Plan(
        schema=contract.SCHEMA,
        request=contract.Request(
            schema=contract.SCHEMA,
            experiment=experiment,
            profile=profile,
            host=host,
            tool=contract.ToolRequest(found.name, (found.name,), dict(options)),
            bindings=tuple(dict.fromkeys(cell.binding for cell in cells)),
            blocks=blocks,
            seed=1,
            measure=dict(measure or {}),
            **request,
        ),
        tool=found,
        cells=tuple(cell.planned(options) for cell in cells),
        skipped=tuple(skipped),
        resolved=tuple({**_resolved(cells), **given}.values()),
        order=tuple(order),
        warnings=(),
        estimate=contract.Timing(total_s=60.0),
    )


def _resolved(cells: Sequence[Cell]) -> Dict[str, contract.Resolution]:
    called: Dict[str, List[str]] = {}
    for cell in cells:
        if cell.role != "control":
            names = [cell.binding, cell.named, *(f"{cell.binding}:{rank}" for rank in cell.rank)]
            for name in dict.fromkeys(names):
                called.setdefault(name, []).append(cell.id)
    return {name: contract.Resolution(name, tuple(ids)) for name, ids in called.items()}


def host_record(
    topology: Optional[contract.Host] = None,
    *,
    host: str = "a",
    emulated: bool = False,
    before: Optional[Mapping[str, Any]] = None,
) -> contract.HostRecord:
    """Return a host record; ``topology`` defaults to an empty one, ``before`` is plain values."""
    empty = contract.Host(
        root="/", arch=None, model=None, vendor=None, packages=None, dies=None, clusters=None,
        cores=None, threads=0, threads_per_core=None, cpus=(), nodes=(), caches=(), pci=(),
        allowed=contract.Allowed("", ""), offline="", possible=None, available_bytes=None,
    )  # fmt: skip
    return contract.HostRecord(
        schema=contract.SCHEMA,
        host=host,
        emulated=emulated,
        emulated_why=reason("emulated-by-the-test") if emulated else None,
        topology=topology or empty,
        before={name: contract.Setting(value) for name, value in (before or {}).items()},
        after=None,
    )


def manifest(plan: contract.Plan, run: str = "20261120T220511Z-stream", **more: Any):
    """Return the manifest of a complete run of a plan; ``more`` overrides its fields."""
    fields = {
        "schema": contract.SCHEMA, "run": run, "host": plan.request.host,
        "experiment": plan.request.experiment, "profile": plan.request.profile,
        "evidence": MEASURED, "seed": plan.request.seed, "started": "2026-11-20T22:05:11Z",
        "ended": "2026-11-20T22:15:11Z", "status": "complete", "agent_version": "0",
        "source_commit": None, "plan": plan,
    }  # fmt: skip
    return contract.Manifest(**{**fields, **more})


def trial(
    item: contract.Trial,
    *,
    grade: str = "verified",
    why: Optional[Reason] = None,
    tool: ToolRecord = PROBE,
    **more: Any,
) -> contract.TrialRecord:
    """Return the journal's record of a planned trial; ``more`` overrides its fields."""
    if why is None and grade != "verified":
        why = reason("graded-by-the-test")
    fields = {
        "schema": contract.SCHEMA, "trial": item.trial, "block": item.block,
        "position": item.position, "cell": item.cell, "attempt": 1,
        "started": "2026-11-20T22:05:11Z", "ended": "2026-11-20T22:05:12Z", "grade": grade,
        "reason": why, "argv": ("probe",), "exit_status": 0, "signal": None,
        "times": contract.TrialTimes(0.1, 0.1, 0.5, 0.1, 1.0), "tool": tool, "raw": {},
        "sha256": {},
    }  # fmt: skip
    return contract.TrialRecord(**{**fields, **more})


def run(
    plan: contract.Plan,
    measured: Optional[pl.DataFrame] = None,
    folder: Path = Path("20261120T220511Z-stream"),
    *,
    host: Optional[contract.HostRecord] = None,
    samples: Optional[pl.DataFrame] = None,
    trials: Optional[Sequence[contract.TrialRecord]] = None,
    **of_manifest: Any,
) -> runs.Run:
    """Return a run of a plan whose tables are these: nothing is read from its folder.

    Without ``trials`` each planned one is there, verified. ``of_manifest`` overrides fields of
    the manifest.
    """
    if trials is None:
        trials = [trial(item, tool=plan.tool) for item in plan.order]
    made = runs.Run(
        folder,
        manifest(plan, folder.name, **of_manifest),
        host or host_record(host=plan.request.host),
        tuple(trials),
    )
    empty = pl.DataFrame(schema=store.SAMPLES)
    made.__dict__["measurements"] = pl.DataFrame(schema=SCHEMA) if measured is None else measured
    made.__dict__["samples"] = empty if samples is None else samples
    return made


def write(run: runs.Run, raw: Optional[Mapping[str, str]] = None) -> Path:
    """Write a run's manifest, host record, journal and raw texts to its folder; return that.

    ``raw`` is text by file name. The journal's hashes and chain, the manifest's hashes and the
    sums are made to fit.
    """
    from dataclasses import replace

    from numalab.agent.trial import journal

    folder = run.folder
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    (folder / "journal.ndjson").unlink(missing_ok=True)
    hashes = {
        name: journal.write_gzip(folder / name, text.encode()) for name, text in (raw or {}).items()
    }
    for one in run.trials:
        own = {name: hashes[name] for name in one.raw.values() if name in hashes}
        journal.append(folder / "journal.ndjson", replace(one, sha256=own))
    journal.write_json(folder / "host.json", run.host)
    sums = {name: journal.sha256(folder / name) for name in ("host.json", "journal.ndjson")}
    journal.write_json(folder / "manifest.json", replace(run.manifest, sha256={**sums, **hashes}))
    store.seal(folder)
    return folder


SYSBENCH = ToolRecord("sysbench", "1.0.20", "/usr/bin/sysbench", facts={"warmup_option": False})
OWN = {"kernel.numa_balancing": "1", "thp.enabled": "madvise", "thp.defrag": "madvise"}


def sysbench_run(folder: Path, host: str = "here", nodes: int = 1, blocks: int = 1) -> Path:
    """Write a whole run of sysbench's CPU test under ``local``, with tables, that passes the check.

    With more nodes it has the cells of every binding of the experiment.
    """
    from dataclasses import replace

    from numalab import experiments, rederived
    from numalab.agent.plan import make
    from topologies import topology

    machine = replace(topology(nodes=nodes, cores=2), root="/")
    asked = experiments.load("sysbench-cpu").request(
        "smoke", host, seed=1, blocks=blocks, bindings=["local"] if nodes == 1 else None
    )
    then = make.Environment(None, tool=SYSBENCH, own=OWN)
    made = make.make(asked, replace(machine, root="/of a record"), then)
    known = host_record(machine, host=host, before=OWN)
    text = (Path(__file__).parent / "fixtures" / "tools" / "sysbench-cpu.txt").read_text()
    text = text.replace("limit: 10000", "limit: 20000")  # as the experiment asks
    raw: Dict[str, str] = {}
    begun = runs.Run(folder, manifest(made, folder.name), known, ())
    records = []
    for number, item in enumerate(made.order):
        own = _raw_of(item, made.cell[item.cell], known.topology, text)
        raw |= dict(own.values())
        one = trial(item, tool=made.tool, raw={kind: name for kind, (name, _) in own.items()},
                    started=_moment(6 * number), ended=_moment(6 * number + 5),
                    times=contract.TrialTimes(0.5, 0.0, 0.0, 0.1, 4.5), settings=OWN,
                    bound={"cpus": "", "policy": ""})  # fmt: skip
        records.append(one)
    write(replace(begun, trials=tuple(records)), raw)  # that the raw files can be read
    due = [rederived.Trial(begun, one).due() for one in records]
    begun = replace(begun, trials=tuple(due))
    times = {**rederived.manifest(begun).times, "total_s": 99.0}
    write(replace(begun, manifest=replace(begun.manifest, times=times)), raw)
    store.write(runs.load(folder))
    return folder


def one_trial_run(folder: Path, host: str = "here") -> Path:
    """Write a run of one trial with one raw file, and its tables: all that readers need of one."""
    text = (Path(__file__).parent / "fixtures" / "tools" / "sysbench-cpu.txt").read_text()
    cell = Cell("unbound", 1.0, role="baseline", cpus=None, cpu_nodes="0", threads=1,
                memory={"policy": "default", "nodes": None})  # fmt: skip
    made = plan([cell], blocks=1, experiment="sysbench-cpu", host=host, tool=SYSBENCH,
                control=False)  # fmt: skip
    raw = "raw/0001-unbound.stdout.gz"
    record = trial(made.order[0], grade="unverified", tool=SYSBENCH, raw={"stdout": raw})
    write(run(made, folder=folder, trials=[record]), {raw: text})
    store.write(runs.load(folder))
    return folder


def _moment(seconds: int) -> str:
    return f"2026-11-20T22:{6 + seconds // 60:02d}:{seconds % 60:02d}.000Z"


def _raw_of(
    item: contract.Trial, cell: contract.Cell, machine: contract.Host, text: str
) -> Dict[str, Tuple[str, str]]:
    """Return the raw files of a trial of sysbench by their kind: name and text."""
    import json

    from numalab.agent import cpulist
    from numalab.agent.trial import proof as placement
    from numalab.agent.trial.trial import raw_name

    nodes = cpulist.parse(cell.memory.nodes or "0")
    allowed = cell.cpus or cpulist.format(machine.usable)
    memory = contract.MemoryProof(
        None, source="numa_maps", pages_bytes=dict.fromkeys(nodes, 8 << 20),
        processes=1, resident_bytes=16 << 20, policies={cell.memory.policy: 8 << 20},
    )  # fmt: skip
    looks = [
        contract.Proof(None, memory, contract.CpuProof(None, None, 3, allowed, allowed),
                       when="running", t_s=t_s)
        for t_s in (0.1, 1.0)
    ]  # fmt: skip
    proofs = [placement.again(one, cell, machine) for one in looks]
    proofs = placement.settled(proofs, cell.expects.memory, 20 << 20)
    usage = {"schema": 3, "kind": "rusage", "wall_s": 3.25, "exit_status": 0, "signal": None,
             "max_rss_bytes": 20 << 20, "max_rss_reason": None, "user_s": 6.0, "system_s": 0.1,
             "minor_faults": 900 + item.trial, "major_faults": 0, "voluntary_switches": 10,
             "involuntary_switches": 20}  # fmt: skip
    sample = {"t_s": 1.0, "metric": "free", "value": 1e9, "unit": "B", "source": "meminfo"}
    hits = [1000 * item.trial, 1000 * item.trial + 900]
    counters = dict.fromkeys(("numa_hit", "local_node"), hits)
    counters |= dict.fromkeys(("numa_miss", "numa_foreign", "interleave_hit", "other_node"), [7, 7])
    collected = {"schema": 3, "collected_s": 3.1, "disturbance": None, "samples": [sample],
                 "numastat": {"0": counters}, "reasons": {}}  # fmt: skip
    contents = {
        "stdout": text,
        "stderr": "",
        "rusage": json.dumps(usage),
        "proof": contract.dumps({"schema": 3, "cell": cell.id, "proofs": proofs}),
        "collect": json.dumps(collected),
    }
    return {kind: (raw_name(item.trial, cell.id, kind), it) for kind, it in contents.items()}
