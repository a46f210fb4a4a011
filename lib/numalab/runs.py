"""A run directory as the analysis sees it: read and validated in one place, here.

A run directory may come from a stranger. Its files are data: they fit the classes of the contract
or the run is refused, names in them name nothing outside of it, and nothing in it is executed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from numalab import experiments, home, store, untrusted
from numalab.agent import contract, drivers
from numalab.agent.contract import Cell, Graded, HostRecord, Manifest, Measure, Plan, TrialRecord
from numalab.agent.errors import Fault
from numalab.agent.plan.classes import PAIRS

T = TypeVar("T")
MOST_TRIALS, LARGEST_JOURNAL = 100_000, 64 * untrusted.MIB
_RECORDED = (
    ("manifest.json", untrusted.LARGEST_JSON),
    ("host.json", untrusted.LARGEST_JSON),
    ("journal.ndjson", LARGEST_JOURNAL),
)
STATUS = ("running", "stopped", "complete", "imported")
_VERSIONED = (Manifest, HostRecord, TrialRecord)
_FROM_A_COPY = "restore it from a copy"


@dataclass(frozen=True)
class Run:
    """One run: its folder, manifest, host record and trials, and the tables derived from raw/."""

    folder: Path
    manifest: Manifest
    host: HostRecord
    trials: tuple[TrialRecord, ...]

    @property
    def plan(self) -> Plan:
        """The plan that was run, as the manifest keeps it."""
        return self.manifest.plan

    @property
    def evidence(self) -> str:
        """What kind of evidence its figures are: measured, counted, configured, published."""
        return self.manifest.evidence

    @property
    def complete(self) -> bool:
        """Whether every planned trial is there."""
        ended = self.manifest.status in ("complete", "imported")
        return ended and len(self.trials) == len(self.plan.order)

    @property
    def name(self) -> str:
        """STARTED-EXPERIMENT, the folder's name."""
        return self.folder.name

    @property
    def measures(self) -> dict[str, Measure]:
        """The metrics that answer the question, by name."""
        return dict(self.plan.request.measure)

    @property
    def server(self) -> str:
        """The server that was measured, with its version; "" where the tool is no client of one."""
        return str(self.plan.tool.facts.get("server") or "")

    @property
    def subject(self) -> tuple[str, str, str]:
        """Host, experiment, and who made the server: of runs alike in these the newest counts."""
        return self.manifest.host, self.manifest.experiment, self.server.partition(" ")[0]

    @property
    def cells(self) -> dict[str, Cell]:
        """The plan's cells by their ids."""
        return self.plan.cell

    @cached_property
    def graded(self) -> dict[str, list[tuple[TrialRecord, Graded]]]:
        """The trials of each cell that has any, with what each is worth for it; in plan's order."""
        found: dict[str, list[tuple[TrialRecord, Graded]]] = {cell: [] for cell in self.cells}
        for trial in self.trials:
            for one in trial.graded:
                found[one.cell].append((trial, one))
        return {cell: trials for cell, trials in found.items() if trials}

    @cached_property
    def measurements(self) -> pl.DataFrame:
        """The measurements, derived from raw/; columns are store.MEASUREMENTS."""
        return self._tables[0]

    @cached_property
    def samples(self) -> pl.DataFrame:
        """The time series, derived from raw/; columns are store.SAMPLES."""
        return self._tables[1]

    @cached_property
    def _tables(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        return store.derive(self)

    @property
    def own_experiment(self) -> bool:
        """Whether it is a run of a user's own experiment file, which is kept with it as data."""
        return (self.folder / store.EXPERIMENT).exists()

    @property
    def notebook(self) -> str | None:
        """The checkout's notebook that shows it; None where only the generic one may."""
        known = not self.own_experiment and self.manifest.experiment in experiments.names()
        return self.experiment.notebook if known else None

    @cached_property
    def experiment(self) -> experiments.Experiment:
        """The experiment whose claims are judged: the checkout's as it is now, or the run's own.

        Of a run's own file nothing but data is used: never its notebook's path. Raises Fault for
        an experiment that this checkout does not have.
        """
        name = self.manifest.experiment
        if not self.own_experiment:
            return experiments.load(home.root() / "experiments" / f"{name}.yml")
        text = untrusted.read_bytes(self.folder, store.EXPERIMENT, untrusted.LARGEST_YAML)
        where = self.folder / store.EXPERIMENT
        return experiments.parse(text.decode("utf-8", errors="replace"), name, where)

    def tool_rows(self, metric: str, point: str | None = None) -> pl.DataFrame:
        """Return the measurements of one metric of the tool, of one point where named."""
        rows = self.measurements.filter(pl.col("metric") == metric)
        return rows if point is None else rows.filter(pl.col("point") == point)

    def points(self, metric: str) -> list[str]:
        """Return the points a metric was measured at, by their x; [""] for a scalar."""
        rows = self.tool_rows(metric).select("point", "x").unique(maintain_order=True).sort("x")
        return rows["point"].unique(maintain_order=True).to_list()

    def binding_rows(self, metric: str, point: str | None = None) -> pl.DataFrame:
        """Return a metric's rows without the copies that a sweep made of its cells.

        A scaling curve compares numbers of threads, not bindings. Where only copies measured the
        metric (a sweep over modes), they are all there is and are returned.
        """
        return self._without_copies(self.tool_rows(metric, point))

    def load_of(self, cell: Cell) -> str:
        """Return the load that a cell is under: its case or swept value, or "" without any.

        An option that itself places memory is a binding, not a load.
        """
        if cell.sweep and cell.sweep.option in self._binding_options:
            return ""
        return cell.variant

    @cached_property
    def _binding_options(self) -> tuple[str, ...]:
        options = self.plan.request.tool.options
        return drivers.driver(self.plan.tool.name).binding_options(options)

    def load_cells(self, load: str) -> list[str]:
        """Return the ids of the cells under one load, their controls too; see ``load_of``."""
        return [cell.id for cell in self.plan.cells if self.load_of(cell) == load]

    def _without_copies(self, rows: pl.DataFrame) -> pl.DataFrame:
        copies = [cell.id for cell in self.plan.cells if cell.sweep and self.load_of(cell)]
        plain = rows.filter(~pl.col("cell").is_in(copies))
        return plain if plain["value"].is_not_null().any() else rows

    def node_pairs(self, metric: str, point: str | None = None) -> pl.DataFrame:
        """Return a metric's rows that belong to one CPU node and one memory node.

        The cells ``local``, ``remote`` and ``memory-only`` are such pairs. A tool that measures
        all pairs by itself (MLC) names them in ``x`` (CPU node) and ``y`` (memory node); its rows
        get ``binding``, ``cpu_nodes`` and ``memory_nodes`` of the pair, and as point what else is
        in theirs (how it was measured).
        """
        rows = self.tool_rows(metric).filter(pl.col("role") != contract.CONTROL)
        pair = pl.col("x").is_not_null() & pl.col("y").is_not_null()
        mode = pl.col("point").str.replace(r"^\d+-\d+ ?", "")
        rows = rows.with_columns(point=pl.when(pair).then(mode).otherwise("point"))
        rows = rows if point is None else rows.filter(pl.col("point") == point)
        cells = rows.filter(pl.col("binding").is_in(["local", *PAIRS]))
        own = rows.filter(pair)
        if not cells.is_empty() or own.is_empty():
            return self._without_copies(cells)
        node = {"cpu_nodes": "x", "memory_nodes": "y"}
        memory_only = self.host.topology.memory_only
        return own.with_columns(
            *(pl.col(at).cast(pl.Int64).cast(pl.String).alias(name) for name, at in node.items()),
            binding=pl.when(pl.col("x") == pl.col("y"))
            .then(pl.lit("local"))
            .when(pl.col("y").cast(pl.Int64).is_in(memory_only))
            .then(pl.lit("memory-only"))
            .otherwise(pl.lit("remote")),
        )


# --- reading a run ------------------------------------------------------------------------------


def load(path: str | Path) -> Run:
    """Read and validate a run directory.

    Raises Fault when it is none, holds anything but plain files, does not fit the schema, names
    anything outside of it, or was changed after it was written.
    """
    folder = home.resolve(path)
    if not folder.is_dir():
        hint = "numalab list --runs shows the runs"
        if untrusted.is_name(folder.name) and (home.runs() / folder.name).is_dir():
            hint = f"{folder.name} is a host: name one of its runs ({hint})"
        raise Fault(f"{path} is not a run directory", hint)
    home.refuse_folder_of_runs(folder)
    check_folder(folder)
    texts = [untrusted.read_bytes(folder, name, most) for name, most in _RECORDED[:2]]
    began = os.path.lexists(folder / _RECORDED[2][0])
    texts.append(untrusted.read_bytes(folder, *_RECORDED[2]) if began else b"")
    if sum(map(untrusted.weight, texts)) > untrusted.MOST_READ:
        raise Fault(f"{folder} holds more than a run ever does", _FROM_A_COPY)
    manifest = _manifest(folder, texts[0])
    host = validated(HostRecord, texts[1], str(folder / "host.json"))
    trials = _journal(folder, texts[2])
    _consistent(folder, manifest, host, trials)
    return Run(folder, manifest, host, trials)


def read_manifest(folder: Path) -> Manifest:
    """Return a run's manifest, validated by itself."""
    return _manifest(folder, untrusted.read_bytes(folder, *_RECORDED[0]))


def _manifest(folder: Path, text: bytes) -> Manifest:
    manifest = validated(Manifest, text, str(folder / "manifest.json"))
    where = folder / "manifest.json"
    for name, what in (
        (manifest.run, "a run"),
        (manifest.host, "a host"),
        (manifest.experiment, "an experiment"),
    ):
        try:
            untrusted.check_name(name, what)
        except Fault as fault:
            raise Fault(f"{where}: {fault.what}", _FROM_A_COPY) from None
    _among(manifest.status, STATUS, f"{where}: status")
    _among(manifest.evidence, contract.EVIDENCE, f"{where}: evidence")
    for name in manifest.sha256:
        if name not in ("host.json", "journal.ndjson", "changes.json"):
            _raw_name(name, where)
    return manifest


def check_folder(folder: Path) -> None:
    """Raise Fault when a run directory holds a link, a FIFO or a device."""
    for inside in (folder, folder / "raw"):
        if not os.path.lexists(inside):
            continue
        for entry in os.scandir(inside):
            mode = entry.stat(follow_symlinks=False).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise Fault(f"{entry.path} is no regular file", "a run holds nothing else")


@cache
def _validator(kind: Any) -> SchemaValidator:
    """Return the validator of a class of the contract: no key too many, no type but its own.

    It gives up at the first wrong item of a list or mapping: errors take more memory than values.
    """
    for one in vars(contract).values():
        if dataclasses.is_dataclass(one):
            strict = {"extra": "forbid", "strict": True, "allow_inf_nan": False}
            one.__pydantic_config__ = strict  # type: ignore[union-attr]
    schema: Any = TypeAdapter(kind).core_schema
    _fail_fast(schema)
    return SchemaValidator(schema)


def _fail_fast(schema: Any) -> None:
    if isinstance(schema, list):
        for one in schema:
            _fail_fast(one)
    elif isinstance(schema, dict):
        if schema.get("type") in ("list", "tuple", "set", "frozenset", "dict"):
            schema["fail_fast"] = True
        for value in schema.values():
            _fail_fast(value)


def validated(kind: type[T], text: bytes, where: str) -> T:
    """Return a JSON text as a class of the contract; Fault where it does not fit."""
    untrusted.check_json(text, where)
    if untrusted.weight(text) > untrusted.MOST_READ:
        raise Fault(f"{where} holds more values than are read", _FROM_A_COPY)
    try:
        value: T = _validator(kind).validate_json(text)  # type: ignore[arg-type]
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        if found[0]["type"] == "json_invalid":
            raise Fault(f"{where} cannot be read: {found[0]['msg']}", _FROM_A_COPY) from None
        if kind in _VERSIONED:
            data = untrusted.parse_json(text, where)
            _check_schema(data.get("schema") if isinstance(data, dict) else None, where)
        said = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in found[:3]]
        raise Fault(f"{where} does not fit the schema: {'; '.join(said)}", _FROM_A_COPY) from None
    if isinstance(value, _VERSIONED):
        _check_schema(value.schema, where)
    return value


def _check_schema(schema: Any, where: str) -> None:
    if type(schema) is not int:
        raise Fault(f"{where} states no schema version", "it is not one of numalab's files")
    if schema != contract.SCHEMA:
        raise Fault(
            f"{where} has schema version {schema}, this numalab reads {contract.SCHEMA}",
            "update numalab" if schema > contract.SCHEMA else "measure again",
        )


def _journal(folder: Path, content: bytes) -> tuple[TrialRecord, ...]:
    """Return the records of the journal; a last line that a crash cut short is left out."""
    where = folder / "journal.ndjson"
    if content.count(b"\n") > MOST_TRIALS:
        raise Fault(f"{where} has more lines than any run", _FROM_A_COPY)
    *lines, _ = content.split(b"\n")
    records, previous = [], ""
    for number, line in enumerate(lines, 1):
        record = validated(TrialRecord, line, f"{where}, line {number}")
        if record.previous != previous:
            raise Fault(
                f"{where}, line {number} does not follow the line before it: one of the two was "
                "changed, or a line between them is missing",
                _FROM_A_COPY,
            )
        previous = hashlib.sha256(line).hexdigest()
        records.append(record)
    return tuple(records)


def _consistent(
    folder: Path, manifest: Manifest, host: HostRecord, trials: Iterable[TrialRecord]
) -> None:
    """Raise Fault where the files of a run contradict each other in what everything hangs on."""
    plan, where = manifest.plan, folder / "manifest.json"
    for name in (plan.request.host, host.host):
        if name != manifest.host:
            said = f"manifest.json and host.json name two hosts: {manifest.host!r} and {name!r}"
            raise Fault(f"{folder}: {said}", _FROM_A_COPY)
    if len(plan.cell) != len(plan.cells):
        raise Fault(f"{where}: two cells have one id", _FROM_A_COPY)
    named = [*(cell.baseline for cell in plan.cells), *(id for t in plan.tours for id in t.visits)]
    unknown = [id for id in named if id is not None and id not in plan.cell]
    unknown += [item.cell for item in plan.order if item.cell not in plan.started]
    if unknown:
        raise Fault(
            f"{where} names the cell {unknown[0]!r}, which is not in its plan", _FROM_A_COPY
        )
    tours = {tour.id for tour in plan.tours}
    if tours & set(plan.cell) or len(tours) < len(plan.tours):
        raise Fault(f"{where}: two cells or tours have one id", _FROM_A_COPY)
    _consistent_trials(folder / "journal.ndjson", plan, trials)


def _consistent_trials(where: Path, plan: Plan, trials: Iterable[TrialRecord]) -> None:
    """Raise Fault where a journal's line is not what the plan says of its trial."""
    planned = {item.trial: item for item in plan.order}
    seen: set[int] = set()
    for trial in trials:
        item = planned.get(trial.trial)
        if item is None or trial.trial in seen:
            why = "stands there twice" if item else "is not in the plan"
            raise Fault(f"{where}: trial {trial.trial} {why}", _FROM_A_COPY)
        if (trial.cell, trial.block, trial.position) != (item.cell, item.block, item.position):
            raise Fault(
                f"{where}: trial {trial.trial} is of cell {trial.cell!r}, block {trial.block}, "
                f"position {trial.position}; the plan says {item.cell!r}, {item.block}, "
                f"{item.position}",
                _FROM_A_COPY,
            )
        seen.add(trial.trial)
        if sorted(one.cell for one in trial.graded) != sorted(plan.visited(trial.cell)):
            raise Fault(f"{where}: trial {trial.trial} is not of its tour's cells", _FROM_A_COPY)
        for grade in (trial.grade, *(one.grade for one in trial.visits)):
            _among(grade, contract.GRADES, f"{where}: grade of trial {trial.trial}")
        for name in (*trial.raw.values(), *trial.sha256):
            _raw_name(name, where)
        _among(trial.tool.name, drivers.MEASURING, f"{where}: tool of trial {trial.trial}")


def _raw_name(name: str, where: Path) -> None:
    if re.fullmatch(untrusted.RAW, name) is None:
        raise Fault(f"{where} names {name[:60]!r}, which is no raw file of the run", _FROM_A_COPY)


def _among(value: str, known: Iterable[str], what: str) -> None:
    if value not in known:
        raise Fault(f"{what} is {value[:60]!r}, not {' or '.join(known)}", _FROM_A_COPY)


def newest(host: str | None = None) -> list[Run]:
    """Return the newest complete run of every subject on every host (or on one host)."""
    chosen: dict[tuple[str, str, str], Run] = {}
    for folder in home.find_runs(host=host):
        try:
            run = load(folder)
        except Fault:
            continue  # numalab list --runs names the damaged ones
        if run.complete:
            chosen[run.subject] = run
    return list(chosen.values())
