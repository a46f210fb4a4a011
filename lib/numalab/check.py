"""The stranger's checker: may this run be published?

It trusts nothing but the raw files: hashes, the schema, every number derived again from raw with
the formulas that the run recorded, every grade derived again from the recorded proofs, the rules
of a run, and implausible values.
"""

from __future__ import annotations

import dataclasses
import io
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from numalab import contradictions, escape, home, launch, rederived, runs, store, untrusted
from numalab.agent.contract import (
    ERROR,
    MEASURED,
    NOT_RECORDED,
    PUBLISHED,
    UNVERIFIED,
    VERIFIED,
    Manifest,
    Plan,
    Reason,
    TrialRecord,
)
from numalab.agent.errors import Fault
from numalab.agent.host import settings, state
from numalab.agent.plan import make as planning
from numalab.agent.trial.folder import apart_s
from numalab.agent.words import units

# A tool's own rule was not kept.
DOUBTS = ("below-four-caches", "below-hidden-cache", "not-validated")
SHOWN = 12  # rows of one table named before "and N more"
MOST_FOUND, LONGEST = 200, 600  # findings of a kind before "there is more"; characters of one
MOST_BYTES = 4 << 30  # of the files of a run
UNLISTED = (*store.SEALED, store.SUMS)  # not in the manifest's hashes, or only in part


@dataclass
class Result:
    """What a check found: faults forbid publishing; warnings are for the reader to weigh.

    ``remedy`` says, where another version made the run, which faults may be due to that, and how
    to find out. They stay faults: what a run says of its version decides nothing here.
    """

    folder: Path
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    trials: int = 0
    remedy: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON-able data."""
        return {
            "run": str(self.folder),
            "publishable": not self.faults,
            "trials": self.trials,
            "faults": self.faults,
            "warnings": self.warnings,
            "remedy": self.remedy,
        }

    def text(self) -> str:
        """Return the result for the terminal: one line for each finding, whatever is in it."""
        lines = [f"✗ {escape.line(fault)}" for fault in self.faults]
        lines += [f"⚠ {escape.line(warning)}" for warning in self.warnings]
        if self.faults:
            many = "fault" if len(self.faults) == 1 else "faults"
            lines.append(f"{len(self.faults)} {many}. This run must not be published.")
            lines += [escape.line(self.remedy)] if self.remedy else []
        else:
            where = escape.line(self.folder)
            lines.append(f"✓ {where}: {self.trials} trials, every number follows from raw/")
        return "\n".join(lines)


class _Unfinished(Fault):
    """The run is to be completed first: until then its files need not fit each other."""


def check(folder: Path) -> Result:
    """Check one run directory; Fault only when it is no run directory at all."""
    result = Result(folder)
    refuse_no_run(folder)
    for find in (_files, _contents):
        try:
            find(result)
        except _Unfinished as fault:
            result.faults = [str(fault)]
            break
        except Fault as fault:
            result.faults.append(str(fault))
        except (ArithmeticError, LookupError, ValueError, TypeError, AttributeError) as error:
            kind = type(error).__name__
            result.faults.append(f"{folder}: what it says cannot be ({kind}: {str(error)[:80]})")
    result.faults = list(dict.fromkeys(result.faults))
    return result


def refuse_no_run(folder: Path) -> None:
    """Raise Fault for what is no folder, and for a folder that holds runs and is none itself."""
    if not folder.is_dir():
        raise Fault(f"{folder} is not a directory", "numalab list --runs shows the runs")
    home.refuse_folder_of_runs(folder)


def _note(found: list[str], more: Iterable[str]) -> None:
    """Add findings to others, long ones cut; Fault where there are too many to be read."""
    for one in more:
        if len(found) >= MOST_FOUND:
            raise Fault(f"there is more: after {MOST_FOUND} findings no others are looked for")
        found.append(one if len(one) <= LONGEST else f"{one[:LONGEST]}…")


def _contents(result: Result) -> None:
    run = runs.load(result.folder)
    result.trials = len(run.trials)
    store.check_size(run)
    _note(result.faults, _order(run))
    independent = len(result.faults)
    try:
        if run.manifest.status == "imported":
            _note(result.faults, _imported(run))
        else:
            _note(result.faults, _records(run))
            journal = contradictions.Journal(run)
            for trial in run.trials:
                with store.understood(run.folder, trial.trial):
                    _note(result.faults, _trial(run, trial, journal))
            _note(result.faults, (f"{name}: {one}" for name, one in contradictions.of_run(run)))
        if _summed(run.folder):
            _note(result.faults, _tables(run))
    finally:  # many findings end the check
        result.remedy = _remedy(run, len(result.faults) - independent)
    if run.own_experiment:
        run.experiment  # Fault where the file is none  # noqa: B018
        if rederived.of_this_repository(run):
            said = f"it is another {run.manifest.experiment} than that of the commit that it names"
            _note(result.faults, [f"{store.EXPERIMENT}: {said}"])
    _note(result.faults, _implausible(run.measurements))
    _note(result.warnings, _rules(run))
    _note(result.warnings, _suspicious(run))


def _remedy(run: runs.Run, derived: int) -> str | None:
    """Say how to ask the code that made a run, where faults hang on what today's code makes of it.

    Hashes, chain and order hang on no version; plan, records and tables are made again.
    """
    made, here = run.manifest.source_commit or "", launch.source_commit()
    commit = made.removesuffix("-dirty")
    if not derived or made == here or not re.fullmatch("[0-9a-f]{40}", commit):
        return None
    return (
        f"{derived} of them may be due to another version: the run names {made}, and here is "
        f"{here or 'none that git knows'}. Check with the code that made it (git worktree add "
        f"../then {commit}, and numalab check there): only faults that it does not find are due to "
        "the version. If git does not know the commit, all stay faults."
    )


# --- hashes ---------------------------------------------------------------------------------------


def _files(result: Result) -> None:
    """Hold every file against its hash: raw/ and the host's files, then what the run added."""
    folder, faults = result.folder, result.faults
    runs.check_folder(folder)
    entries = [one for part in ("", "raw") for one in _entries(folder / part)]
    for one in entries:
        if one.is_dir() and one != folder / "raw":
            _note(faults, [f"{one.relative_to(folder)}: a run has no such folder"])
    files = [one for one in entries if not one.is_dir()]
    if sum(one.stat().st_size for one in files) > MOST_BYTES:
        raise Fault(f"{folder}: its files have more than {MOST_BYTES} bytes", "is it a run?")
    present = {one.relative_to(folder).as_posix() for one in files}
    manifest = runs.read_manifest(folder)
    _refuse_unfinished(folder, manifest)
    listed = dict(manifest.sha256)
    for name in ("host.json", "journal.ndjson"):
        if name in present and name not in listed:
            faults.append(f"{name}: manifest.json lists no sha256 of it")
    _note(faults, _differing(folder, listed, present, "manifest.json"))
    strange = sorted(present - set(listed) - set(UNLISTED))
    _note(faults, (f"{name}: not listed in manifest.json" for name in strange))
    if not _summed(folder):
        raise Fault(
            f"{folder / store.SUMS} is missing, which is written with the tables",
            f"make them from raw/: numalab check --rebuild {shlex.quote(str(folder))}",
        )
    sums = store.sums(folder)
    for name in sorted(present & set(store.SEALED) - set(sums)):
        faults.append(f"{name}: not listed in {store.SUMS}")
    tables = set(store.FILES)  # a changed table is named with the numbers that were changed
    faults += _differing(folder, {n: sums[n] for n in sums if n not in tables}, present, store.SUMS)


def _summed(folder: Path) -> bool:
    return os.path.lexists(folder / store.SUMS)


def _refuse_unfinished(folder: Path, manifest: Manifest) -> None:
    if manifest.status not in ("running", "stopped") or _summed(folder):
        return
    name, of = "journal.ndjson", len(manifest.plan.order)
    begun = os.path.lexists(folder / name)
    done = untrusted.read_bytes(folder, name).count(b"\n") if begun else 0
    raise _Unfinished(
        f"{folder} is unfinished ({done} of {of} trials)",
        f"complete it: numalab run --resume {shlex.quote(str(folder))}",
    )


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _differing(
    folder: Path, listed: dict[str, str], present: set[str], where: str
) -> Iterator[str]:
    for name, expected in sorted(listed.items()):
        if name not in present:
            yield f"{name}: listed in {where}, but missing"
        elif untrusted.sha256(folder, name) != expected:
            yield f"{name}: sha256 differs from {where}"


# --- trials ---------------------------------------------------------------------------------------


def _order(run: runs.Run) -> Iterator[str]:
    """Tell where the trials are not those of the plan, or did not follow each other."""
    manifest = run.manifest
    for trial in run.trials:
        for name, digest in trial.sha256.items():
            if manifest.sha256.get(name) != digest:
                yield f"{name}: journal.ndjson and manifest.json disagree on its sha256"
        if set(trial.sha256) != set(trial.raw.values()):
            yield f"journal.ndjson: trial {trial.trial} has other hashes than raw files"
    if manifest.status == "complete":
        measured = {trial.trial for trial in run.trials}
        for missing in sorted({item.trial for item in run.plan.order} - measured):
            yield f"journal.ndjson: trial {missing} is missing in a run that is called complete"
        if manifest.ended is None:
            yield "manifest.json: the run is called complete, but has no end"
    elif manifest.status == "running":
        yield "manifest.json: the run never ended (numalab run --resume completes it)"
    if manifest.status == "imported":  # its moments are those of files
        return
    if run.trials:
        yield from _moments(manifest, run.trials)


def _moments(manifest: Manifest, trials: Sequence[TrialRecord]) -> Iterator[str]:
    """Tell where the moments of a run go back in time."""
    before = manifest.started
    if _earlier(trials[0].started, before):
        yield f"manifest.json: the run started {before}, after its first trial"
    for trial in trials:
        for name, moment in (("started", trial.started), ("ended", trial.ended)):
            if _earlier(moment, before):
                yield f"journal.ndjson: trial {trial.trial} {name} {moment}, before {before}"
            before = moment
    if manifest.ended and _earlier(manifest.ended, before):
        yield f"manifest.json: the run ended {manifest.ended}, before its last trial"


def _earlier(one: str, other: str) -> bool:
    return apart_s(other, one) < -contradictions.SLACK_S


def _imported(run: runs.Run) -> Iterator[str]:
    """Tell where what somebody measured by hand is called more than that."""
    if run.evidence != PUBLISHED:
        yield f"manifest.json: figures from elsewhere are called {run.evidence}"
    for trial in run.trials:
        if any(one.grade == VERIFIED for one in trial.graded):
            yield f"journal.ndjson: trial {trial.trial} is verified in a run that was imported"
    for cell in run.plan.cells:
        if cell.memory.policy != NOT_RECORDED:
            yield f"manifest.json: cell {cell.id} says under which policy it was measured elsewhere"


def _records(run: runs.Run) -> Iterator[str]:
    """Hold manifest.json and host.json against what follows from the rest of the run."""
    for name, recorded, due in (
        ("host.json", run.host, rederived.host), ("manifest.json", run.manifest, rederived.manifest)
    ):  # fmt: skip
        try:
            yield from (f"{name}: {one}" for one in rederived.differences(recorded, due(run)))
        except (Fault, *store.NONSENSE) as error:
            yield f"{name}: nothing follows from what it says ({error})"
    for name in settings.HELD:
        if name not in run.plan.settings and state.value(run.host.before, name) is not None:
            yield f"manifest.json: no cell says under which {name} it was measured"


def _trial(run: runs.Run, record: TrialRecord, journal: contradictions.Journal) -> Iterator[str]:
    """Hold a trial's record and its proofs against its cell and its raw files."""
    where = f"trial {record.trial} ({record.cell})"
    try:
        trial = rederived.Trial(run, record)
        due = trial.due()
    except Fault as fault:
        yield f"journal.ndjson: {where}: {fault}"
        return
    for one in rederived.differences(record, due, rest="manifest.json and the raw files"):
        yield f"journal.ndjson: {where}: {one}"
    yield from (f"journal.ndjson: {where}: {one}" for one in _spent(trial))
    yield from (f"journal.ndjson: {where}: {one}" for one in _settings(run, record))
    yield from (f"{name}: {where}: {one}" for name, one in journal.of_trial(trial))
    if record.grade == ERROR:
        return
    for cell in trial.cells():
        recorded, again = trial.proofs_again(cell)
        for one in rederived.differences(recorded, again, "proof"):
            yield f"{record.raw['proof']}: {where}: {one}"


def _spent(trial: rederived.Trial) -> Iterator[str]:
    """Tell where the seconds of a trial cannot be."""
    record = trial.record
    times, lasted = record.times, apart_s(record.started, record.ended)
    if min(dataclasses.astuple(times)) < 0:
        yield "its times hold negative seconds"
    parts = times.start_s + times.warmup_s + times.measure_s
    for what, part, whole in (
        ("its phases", parts, times.total_s), ("it", times.total_s, lasted),
    ):  # fmt: skip
        if part > whole + contradictions.SLACK_S:
            yield f"{what} took {part:.3f} s of {whole:.3f} s"
    if trial.usage and trial.usage["wall_s"] > times.total_s + contradictions.SLACK_S:
        yield f"its program ran for {trial.usage['wall_s']} s of {times.total_s} s"


def _settings(run: runs.Run, trial: TrialRecord) -> Iterator[str]:
    """Tell where a trial did not run under the host settings of its cell."""
    cell = run.plan.started[trial.cell]
    if trial.grade == ERROR:
        return
    for name in sorted({*planning.settings(run.plan), *run.plan.settings}):
        own, now = cell.changes.get(name), trial.settings.get(name)
        if own is None and name in settings.ONE_WAY:
            if now is not None:
                yield f"{name} was written unasked"
            continue
        wanted = own
        if wanted is None:
            wanted = run.manifest.settings.get(name, run.plan.settings.get(name))
        if wanted is None or now is None:
            yield f"no record of what {name} was"
        elif not settings.same(name, wanted, now):
            yield f"{name} was {now}, not {wanted}"


# --- tables ---------------------------------------------------------------------------------------


def _tables(run: runs.Run) -> Iterator[str]:
    """Hold the two tables against what is derived from raw/ now."""
    listed = store.sums(run.folder)
    for name, derived in zip(store.FILES, (run.measurements, run.samples), strict=True):
        stored = untrusted.read_bytes(run.folder, name)
        same = stored == store.parquet(derived)
        faults = [] if same else list(_differences(name, stored, derived))
        if not faults and listed.get(name) != untrusted.sha256(run.folder, name):
            faults = [f"{name}: sha256 differs from {store.SUMS}"]  # a byte on which nothing hangs
        yield from faults


def _differences(name: str, stored: bytes, derived: pl.DataFrame) -> Iterator[str]:
    table = _read_apart(stored, derived.height)
    if table is None:
        yield f"{name}: cannot be read"
        return
    if table.schema != derived.schema:
        yield f"{name}: its columns differ from the schema"
        return
    if table.height != derived.height:
        yield f"{name}: {table.height} rows, raw/ gives {derived.height}"
        return
    differs = pl.any_horizontal(
        table[column].ne_missing(derived[column]) for column in derived.columns
    )
    rows = table.select(differs.alias("differs"))["differs"].arg_true().to_list()
    for row in rows[:SHOWN]:
        old, new = table.row(row, named=True), derived.row(row, named=True)
        columns = [column for column in derived.columns if old[column] != new[column]]
        other = ", ".join(f"{c} {old[c]!r}, its raw file says {new[c]!r}" for c in columns)
        yield (
            f"{name}: trial {new['trial']} {new['metric']} {new['point']}".rstrip() + f": {other}"
        )
    if len(rows) > SHOWN:
        yield f"{name}: {len(rows) - SHOWN} more rows differ"


_READ = """
import io, sys, polars
table = polars.read_parquet(io.BytesIO(sys.stdin.buffer.read()), n_rows=int(sys.argv[1]))
table.write_ipc(sys.stdout.buffer)
"""
_READ_S, _READ_AT_MOST_S = 60, 3600  # of CPU time; and in all, however busy the machine
_READ_BYTES = 400 << 20


def _read_apart(stored: bytes, rows: int) -> pl.DataFrame | None:
    """Read a Parquet file that somebody made in a process with little memory; None if that fails.

    A damaged or malicious one can claim any size, and can end the process that reads it.
    """
    largest = (64 << 20) + 1024 * rows

    def confine() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        resource.setrlimit(resource.RLIMIT_CPU, (_READ_S, _READ_S))
        resource.setrlimit(resource.RLIMIT_DATA, (_READ_BYTES, _READ_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    with tempfile.TemporaryFile() as table:
        try:
            done = subprocess.run(
                [sys.executable, "-c", _READ, str(rows + 1)],
                input=stored, stdout=table, stderr=subprocess.DEVNULL, timeout=_READ_AT_MOST_S,
                preexec_fn=confine, env={**os.environ, "POLARS_MAX_THREADS": "1"},
            )  # fmt: skip
            table.seek(0)
            return pl.read_ipc(io.BytesIO(table.read())) if done.returncode == 0 else None
        except (subprocess.TimeoutExpired, OSError, pl.exceptions.PolarsError):
            return None


# --- values and rules -----------------------------------------------------------------------------

POSITIVE = ("ns", "GB/s", "1/s", "MiB/s")


def _implausible(measurements: pl.DataFrame) -> Iterator[str]:
    used = measurements.filter(
        (pl.col("source") == "tool") & (pl.col("grade") != ERROR) & pl.col("value").is_not_null()
    )
    bad = used.filter(pl.col("unit").is_in(POSITIVE) & ~(pl.col("value") > 0))
    infinite = used.filter(~pl.col("value").is_finite())
    for row in pl.concat([bad, infinite]).unique(maintain_order=True).to_dicts():
        yield (
            f"trial {row['trial']} ({row['cell']}): {row['metric']} is {row['value']} "
            f"{row['unit']}, which cannot be"
        )


def _rules(run: runs.Run) -> Iterator[str]:
    """Tell where a run is weaker than it could be, though all of it is true."""
    if run.manifest.status == "stopped":
        yield "the run was stopped before its end"
    yield from _left_out(run)
    yield from _weak_design(run.plan)
    yield from map(str, run.manifest.busy)
    for change in run.manifest.changes:
        if change.before is not None and not change.restored:
            yield f"{change.name} was not put back: {change.reason}"
    for cell in run.plan.cells:
        excuse = cell.expects.memory.why  # interleaving need not be even: what a full node takes
        if excuse is not None and cell.memory.policy == "interleave":
            yield f"{cell.label}: where its memory went is recorded, not required: {excuse}"
    yield from _doubts(run)
    known = set(run.measurements["metric"])
    for metric in run.plan.request.measure:
        if run.trials and metric not in known:
            yield f"{metric} is asked for, and no trial gave it; its tool's metrics: {_few(known)}"
    if run.host.after is not None:
        yield from map(str, state.compare(run.host.before, run.host.after))
    elif run.manifest.status == "complete":
        yield "the host's state after the run was not recorded"


def _left_out(run: runs.Run) -> Iterator[str]:
    """Say how many trials are not verified, and why."""
    graded = [one for trial in run.trials for one in trial.graded]
    what = "trials" if len(graded) == len(run.trials) else "cells of trials"
    for grade in (ERROR, UNVERIFIED):
        reasons = [one.reason for one in graded if one.grade == grade and one.reason]
        for text, count in _counted(reasons):
            yield f"{count} of {len(graded)} {what} {grade}: {text}"


def _weak_design(plan: Plan) -> Iterator[str]:
    """Say why a plan can decide nothing, where it compares cells."""
    if not plan.request.control or len(plan.cells) <= 1:
        return
    blocks = len({item.block for item in plan.order})
    if blocks < planning.FEWEST_BLOCKS:
        few = units.count(blocks, "block")
        yield f"{few} can decide nothing ({planning.FEWEST_BLOCKS} or more can)"
    if not any(cell.role == "control" for cell in plan.cells):
        yield "there is no A/A control"


def _few(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:12]) + (" …" if len(listed) > 12 else "") or "none"


def _doubts(run: runs.Run) -> Iterator[str]:
    """Say which rules of their tool the trials did not keep, each once."""
    noted = [note for cell in run.plan.cells for note in cell.notes]
    noted += [warning for trial in run.trials for warning in trial.warnings]
    for text, count in _counted([note for note in noted if note.code in DOUBTS]):
        yield text if count == 1 else f"{text} ({count} times)"


def _counted(reasons: Sequence[Reason]) -> list[tuple[str, int]]:
    """Return the first sentence of each code, and how many there are, the most first."""
    first: dict[str, str] = {}
    for why in reasons:
        first.setdefault(why.code, str(why))
    counts = Counter(why.code for why in reasons)
    return [(first[code], count) for code, count in counts.most_common()]


def _suspicious(run: runs.Run) -> Iterator[str]:
    """Warn where DRAM looks faster than its modules, or remote memory than local memory."""
    if run.evidence != MEASURED or run.measurements.is_empty():
        return
    peak = state.value(run.host.before, "dram.peak_gb_s") or float("inf")
    for row in run.measurements.filter(
        (pl.col("source") == "tool") & (pl.col("unit") == "GB/s") & (pl.col("value") > peak)
    ).to_dicts():
        yield (
            f"trial {row['trial']} ({row['cell']}): {row['metric']} is {row['value']:.1f} GB/s, "
            f"the memory modules allow {peak} GB/s: it was a cache that was measured"
        )
    speeds = {name: one for name, one in run.measures.items() if one.unit in ("ns", "GB/s")}
    if not speeds or not any(cell.binding == "remote" for cell in run.plan.cells):
        return
    from numalab.analysis import judge  # it imports scipy, which few checks need

    for row in judge.ratios(run.measurements, run.plan, list(speeds)).to_dicts():
        if row["binding"] != "remote" or row["decision"] != judge.DIFFERENT:
            continue
        if (row["ratio"] > 1) == (speeds[row["metric"]].better == "higher"):
            yield (
                f"{row['label']}: {row['metric']} is better than local beyond its interval "
                f"({row['ratio']:.3f} [{row['low']:.3f}, {row['high']:.3f}])"
            )
