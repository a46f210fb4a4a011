"""The stranger's checker: may this run be published?

It trusts nothing but the raw files: hashes, the schema, every number derived again from raw,
every grade derived again from the recorded proofs, the rules of a run, and implausible values.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from numalab import runs, store
from numalab.agent import drivers
from numalab.agent.errors import Fault, ParseError
from numalab.agent.plan import make as planning
from numalab.agent.trial import journal, settings
from numalab.agent.trial import proof as placement

# What a finished run adds after its manifest is sealed; they are derived, and derived again here.
DERIVED = (*store.FILES, "manifest.json", "notebook.ipynb")
SHOWN = 12  # rows of one table named before "and N more"


@dataclass
class Result:
    """What a check found: faults forbid publishing; warnings are for the reader to weigh."""

    folder: Path
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    trials: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON-able data."""
        return {
            "run": str(self.folder),
            "publishable": not self.faults,
            "trials": self.trials,
            "faults": self.faults,
            "warnings": self.warnings,
        }

    def text(self) -> str:
        """Return the result as lines for the terminal."""
        lines = [f"✗ {fault}" for fault in self.faults]
        lines += [f"⚠ {warning}" for warning in self.warnings]
        if self.faults:
            many = "fault" if len(self.faults) == 1 else "faults"
            lines.append(f"{len(self.faults)} {many}. This run must not be published.")
        else:
            lines.append(f"✓ {self.folder}: {self.trials} trials, every number follows from raw/")
        return "\n".join(lines)


def check(folder: Path) -> Result:
    """Check one run directory; Fault only when it is no run directory at all."""
    result = Result(folder)
    if not folder.is_dir():
        raise Fault(f"{folder} is not a directory", "numalab list --runs shows the runs")
    try:
        _check(result)
    except Fault as fault:
        result.faults.append(str(fault))
    except _UNFIT as error:
        words = str(error).splitlines() or [""]
        kind = type(error).__name__
        result.faults.append(f"the run's files do not fit the schema: {kind} {words[0]}".rstrip())
    return result


# What reading a file that is JSON, but not as the schema says, can end in.
_UNFIT = (LookupError, TypeError, AttributeError, ValueError, pl.exceptions.PolarsError)


def _check(result: Result) -> None:
    folder = result.folder
    manifest = runs.read_manifest(folder)
    plan = manifest["plan"]
    result.faults += _hashes(folder, manifest["sha256"])
    changed = dict(_changed_tables(folder, manifest.get("tables") or {}))
    host = journal.read_json(folder / "host.json")
    records = journal.read(folder / "journal.ndjson")
    result.trials = len(records)
    result.faults += _journal(plan, manifest, records)
    result.faults += _cases(plan)
    for record in records:
        result.faults += _trial(folder, plan, host, record)
        result.faults += _settings(plan, manifest.get("settings") or {}, record)
    derived = store.derive(folder)
    for name, frame in zip(store.FILES, derived, strict=True):
        faults = []
        if name not in changed or _readable(folder / name):
            faults += _same_table(folder, name, frame)
        if name in changed and not faults:  # a byte that no number hangs on, or that none survives
            faults.append(changed[name])
        result.faults += faults
    result.faults += _implausible(derived[0])
    result.warnings += _rules(plan, manifest, host, records)
    result.warnings += _suspicious(derived[0], plan, host)


def _hashes(folder: Path, listed: dict[str, str]) -> Iterator[str]:
    present = {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    }
    needed = {"host.json", *(["journal.ndjson"] if "journal.ndjson" in present else [])}
    for name in sorted(needed - set(listed)):
        yield f"{name}: manifest.json lists no sha256 of it"
    for name, expected in sorted(listed.items()):
        if name not in present:
            yield f"{name}: listed in manifest.json, but missing"
        elif journal.sha256(folder / name) != expected:
            yield f"{name}: sha256 differs from manifest.json"
    for name in sorted(present - set(listed) - set(DERIVED)):
        yield f"{name}: not listed in manifest.json"


def _changed_tables(folder: Path, listed: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the name of each derived table that is not what was derived, and the words for it."""
    for name, expected in sorted(listed.items()):
        if (folder / name).is_file() and journal.sha256(folder / name) != expected:
            yield name, f"{name}: sha256 differs from manifest.json"


def _readable(path: Path) -> bool:
    """Tell whether a changed table can be read; trying it can end the whole process."""
    code = "import sys, polars; polars.read_parquet(sys.argv[1])"
    try:
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, timeout=60)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _journal(
    plan: dict[str, Any], manifest: dict[str, Any], records: list[dict[str, Any]]
) -> Iterator[str]:
    planned = {item["trial"]: item for item in plan["order"]}
    counts = Counter(record["trial"] for record in records)
    for trial, count in sorted(counts.items()):
        if count > 1:
            yield f"journal.ndjson: trial {trial} stands {count} times"
        if trial not in planned:
            yield f"journal.ndjson: trial {trial} is not in the plan"
    for record in records:
        item = planned.get(record["trial"], record)
        for key in ("cell", "block", "position"):
            if record[key] != item[key]:
                yield (
                    f"journal.ndjson: trial {record['trial']} has {key} {record[key]!r}, "
                    f"the plan says {item[key]!r}"
                )
        for name, digest in record["sha256"].items():
            if manifest["sha256"].get(name) != digest:
                yield f"{name}: journal.ndjson and manifest.json disagree on its sha256"
    if manifest["status"] == "complete":
        for trial in sorted(set(planned) - set(counts)):
            yield f"journal.ndjson: trial {trial} is missing, though the run calls itself complete"
    elif manifest["status"] == "running":
        yield "manifest.json: the run never ended (numalab run --resume completes it)"
    for cell in plan["cells"]:
        bound = cell["memory"]["policy"] in ("bind", "interleave")
        if bound and cell["expects"]["memory"]["proof"] != "required" and not _excused(cell):
            yield f"manifest.json: cell {cell['id']} binds memory, but requires no proof of it"
    by_block: dict[int, list[str]] = {}
    for item in plan["order"]:
        by_block.setdefault(item["block"], []).append(item["cell"])
    cells = sorted(cell["id"] for cell in plan["cells"])
    for block, members in sorted(by_block.items()):
        if sorted(members) != cells:
            yield f"manifest.json: block {block} of the plan does not hold every cell once"
    orders = {tuple(members) for members in by_block.values()}
    if len(by_block) > 5 and len(cells) > 2 and len(orders) == 1:
        yield "manifest.json: every block has the same order; trials must be randomised"


def _excused(cell: dict[str, Any]) -> bool:
    """Tell whether interleaving need not be even in a cell: it asks what a full node takes."""
    return cell["memory"]["policy"] == "interleave" and bool(cell["expects"]["memory"].get("why"))


def _trial(
    folder: Path, plan: dict[str, Any], host: dict[str, Any], record: dict[str, Any]
) -> Iterator[str]:
    """Parse a trial's raw output again and grade it again from its recorded proofs."""
    cell = next((cell for cell in plan["cells"] if cell["id"] == record["cell"]), None)
    if cell is None:
        return  # already said
    where = f"trial {record['trial']} ({record['cell']})"
    if record["grade"] not in ("verified", "unverified", "error"):
        yield f"journal.ndjson: {where} has the unknown grade {record['grade']!r}"
    if record["grade"] != "verified" and not record["reason"]:
        yield f"journal.ndjson: {where} is graded {record['grade']} without a reason"
    if record["grade"] == "error":
        return
    driver = drivers.driver(record["tool"]["name"])
    try:
        driver.parse(store.read_raw(folder, record["raw"][getattr(driver, "RAW", "stdout")]))
    except (ParseError, KeyError) as error:
        yield f"{where}: graded {record['grade']}, but its raw output does not parse: {error}"
    if record["grade"] != "verified" or cell["expects"]["memory"]["proof"] == "none":
        return
    if "placement" not in record["raw"]:
        yield f"{where}: graded verified, but no placement proof was recorded"
        return
    recorded = store.read_json(folder, record["raw"]["placement"])
    proofs = [proof for proof in recorded["proofs"] if not proof.get("early")]
    grade, _ = placement.grade(proofs, cell, host["topology"])
    if grade != "verified":
        yield f"{where}: graded verified, but its recorded placement gives {grade}"
    for proof in proofs:
        wrong = placement.contradiction(proof, cell) if proof["ok"] else None
        if wrong:
            yield f"{where}: graded verified, but its recorded placement says: {wrong}"


def _cases(plan: dict[str, Any]) -> Iterator[str]:
    """Hold the settings of every cell against those of its case."""
    request = plan["request"]
    cases = {case["name"]: case["changes"] for case in request.get("cases") or []}
    for cell in plan["cells"]:
        own = (cell.get("case") or {}).get("name")
        if own is not None and own not in cases:
            yield f"manifest.json: cell {cell['id']} is of the case {own!r}, which is not asked for"
        elif "changes" in cell:
            asked = {}
            for name, value in {**(request.get("changes") or {}), **cases.get(own, {})}.items():
                plain = name.rstrip("?")  # "lru_gen.enabled?" is asked for where the host has it
                if plain == name or plain in cell["changes"]:
                    asked[plain] = value
            if cell["changes"] != asked:
                yield (
                    f"manifest.json: cell {cell['id']} sets {cell['changes']}, "
                    f"what is asked for is {asked}"
                )


def _settings(
    plan: dict[str, Any], usual: dict[str, str], record: dict[str, Any]
) -> Iterator[str]:
    """Tell where a trial did not run under the host settings of its cell."""
    cell = next((cell for cell in plan["cells"] if cell["id"] == record["cell"]), None)
    if cell is None or "changes" not in cell or record["grade"] == "error":
        return
    found = record.get("settings") or {}
    for name in planning.settings(plan):
        own = cell["changes"].get(name)
        if own is None and name in settings.ONE_WAY:
            if name in found:
                yield f"trial {record['trial']} ({cell['id']}): {name} was written unasked"
            continue
        wanted = usual.get(name) if own is None else own
        now = found.get(name)
        if wanted is None or now is None:
            yield f"trial {record['trial']} ({cell['id']}): no record of what {name} was"
        elif not settings.same(name, wanted, now):
            yield f"trial {record['trial']} ({cell['id']}): {name} was {now}, not {wanted}"


def _same_table(folder: Path, name: str, derived: pl.DataFrame) -> Iterator[str]:
    try:
        stored = pl.read_parquet(folder / name)
    except (OSError, pl.exceptions.PolarsError) as error:
        yield f"{name}: cannot be read: {str(error).splitlines()[0]}"
        return
    if stored.schema != derived.schema:
        yield f"{name}: its columns differ from the schema"
        return
    if stored.height != derived.height:
        yield f"{name}: {stored.height} rows, raw/ gives {derived.height}"
        return
    differs = pl.any_horizontal(
        stored[column].ne_missing(derived[column]) for column in derived.columns
    )
    rows = stored.select(differs.alias("differs"))["differs"].arg_true().to_list()
    for row in rows[:SHOWN]:
        old, new = stored.row(row, named=True), derived.row(row, named=True)
        columns = [column for column in derived.columns if old[column] != new[column]]
        said = ", ".join(f"{c} {old[c]!r}, its raw file says {new[c]!r}" for c in columns)
        yield f"{name}: trial {new['trial']} {new['metric']} {new['point']}".rstrip() + f": {said}"
    if len(rows) > SHOWN:
        yield f"{name}: {len(rows) - SHOWN} more rows differ"


POSITIVE = ("ns", "GB/s", "1/s", "MiB/s")


def _implausible(measurements: pl.DataFrame) -> Iterator[str]:
    used = measurements.filter(
        (pl.col("source") == "tool") & (pl.col("grade") != "error") & pl.col("value").is_not_null()
    )
    bad = used.filter(pl.col("unit").is_in(POSITIVE) & ~(pl.col("value") > 0))
    infinite = used.filter(~pl.col("value").is_finite())
    for row in pl.concat([bad, infinite]).unique(maintain_order=True).to_dicts():
        yield (
            f"trial {row['trial']} ({row['cell']}): {row['metric']} is {row['value']} "
            f"{row['unit']}, which cannot be"
        )


def _rules(
    plan: dict[str, Any],
    manifest: dict[str, Any],
    host: dict[str, Any],
    records: list[dict[str, Any]],
) -> Iterator[str]:
    if manifest["status"] == "stopped":
        yield "the run was stopped before its end"
    for grade in ("error", "unverified"):
        graded = [record for record in records if record["grade"] == grade]
        reasons = Counter(record["reason"] for record in graded)
        for reason, count in reasons.most_common():
            yield f"{count} of {len(records)} trials {grade}: {reason}"
    blocks = {item["block"] for item in plan["order"]}
    if plan["request"]["control"] and len(plan["cells"]) > 1:
        if len(blocks) < planning.FEWEST_BLOCKS:
            yield f"{len(blocks)} blocks decide nothing ({planning.FEWEST_BLOCKS} or more do)"
        if not any(cell["role"] == "control" for cell in plan["cells"]):
            yield "there is no A/A control"
    for entry in manifest.get("changes") or []:
        if entry["before"] is not None and not entry["restored"]:
            yield f"{entry['name']} was not put back: {entry['reason']}"
    for cell in plan["cells"]:
        if _excused(cell):
            why = cell["expects"]["memory"]["why"]
            yield f"{cell['label']}: where its memory went is recorded, not required: {why}"
    noted = [*(n for cell in plan["cells"] for n in cell["notes"])]
    noted += [warning for record in records for warning in record["warnings"]]
    notes = Counter(note for note in noted if "not met" in note or "not validated" in note)
    for note, count in notes.items():
        yield note if count == 1 else f"{note} ({count} times)"
    if host["after"] is None and manifest["status"] == "complete":
        yield "the host's state after the run was not recorded"
    if host["after"] is not None:
        from numalab.agent.host import state

        yield from state.compare(host["before"], host["after"])


def _suspicious(
    measurements: pl.DataFrame, plan: dict[str, Any], host: dict[str, Any]
) -> Iterator[str]:
    """Warn where DRAM looks faster than its modules, or remote memory than local memory."""
    if host["emulated"] or measurements.is_empty():
        return
    from numalab.analysis import statistics

    peak = (host["before"].get("dram.peak_gb_s") or {}).get("value") or float("inf")
    for row in measurements.filter(
        (pl.col("source") == "tool") & (pl.col("unit") == "GB/s") & (pl.col("value") > peak)
    ).to_dicts():
        yield (
            f"trial {row['trial']} ({row['cell']}): {row['metric']} is {row['value']:.1f} GB/s, "
            f"the memory modules allow {peak} GB/s: it was a cache that was measured"
        )
    speeds = {
        name: measure["better"]
        for name, measure in plan["request"].get("measure", {}).items()
        if measure["unit"] in ("ns", "GB/s")
    }
    remote = {cell["id"]: cell for cell in plan["cells"] if cell["binding"] == "remote"}
    if not speeds or not remote:
        return
    for row in statistics.ratios(measurements, list(speeds)).to_dicts():
        if row["cell"] not in remote or row["low"] is None:
            continue
        higher = speeds[row["metric"]] == "higher"
        if (higher and row["low"] > 1) or (not higher and row["high"] < 1):
            yield (
                f"{remote[row['cell']]['label']}: {row['metric']} is better than local beyond its "
                f"interval ({row['ratio']:.3f} [{row['low']:.3f}, {row['high']:.3f}])"
            )
