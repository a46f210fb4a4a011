"""Whatever is wrong with a run directory, the check says so and names the file."""

import gzip
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import frames
from numalab import asking, check, launch, rederived, runs, session, store
from numalab.agent.contract import (
    Change,
    Manifest,
    Measure,
    Plan,
    reason,
)
from numalab.agent.errors import Fault
from numalab.agent.trial import journal


@pytest.fixture
def run(monkeypatch, tmp_path) -> Path:
    """A small run directory that passes the check."""
    monkeypatch.setenv("NUMALAB_RUNS", str(tmp_path / "runs"))
    folder = frames.sysbench_run(tmp_path / "runs" / "here" / "20261120T220511Z-sysbench-cpu")
    assert check.check(folder).faults == []
    return folder


def seal(folder):
    """Make every hash of a run that of its file, as a forger would."""
    manifest = json.loads((folder / "manifest.json").read_text())
    sums = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in manifest["sha256"]
    }
    journal.write_json(folder / "manifest.json", {**manifest, "sha256": sums})
    store.seal(folder)


def change(folder, of_manifest=lambda one: one, of_trial=lambda one: one):
    """Write a run anew with another manifest and other trials; return its check."""
    loaded = runs.load(folder)
    manifest = of_manifest(loaded.manifest)
    (folder / "journal.ndjson").unlink()
    for one in loaded.trials:
        journal.append(folder / "journal.ndjson", of_trial(one))
    journal.write_json(folder / "manifest.json", manifest)
    store.write(runs.load(folder))
    seal(folder)
    return check.check(folder)


def with_plan(manifest: Manifest, **fields) -> Manifest:
    return replace(manifest, plan=replace(manifest.plan, **fields))


def with_request(plan: Plan, **fields) -> Plan:
    return replace(plan, request=replace(plan.request, **fields))


# --- versions ------------------------------------------------------------------------------------


def test_a_run_that_another_version_planned_is_told_how_to_ask_that_version(run, monkeypatch):
    """Today's planner needs more memory than the one that made the run did."""
    again = rederived.make.again

    def plans_otherwise(plan, host):
        made = again(plan, host)
        return replace(made, cells=tuple(replace(one, label="new") for one in made.cells))

    monkeypatch.setattr(rederived.make, "again", plans_otherwise)
    commit = "0123456789" * 4
    found = change(run, lambda one: replace(one, source_commit=commit))
    planned = [fault for fault in found.faults if "plan.cells" in fault]
    assert planned and found.faults == planned and not found.as_dict()["publishable"]
    assert f"{len(planned)} of them may be due to another version" in found.remedy
    assert f"git worktree add ../then {commit}" in found.text()
    raw = next((run / "raw").glob("*.stdout.gz"))
    raw.write_bytes(gzip.compress(b"x"))
    assert any(raw.name in fault and "sha256" in fault for fault in check.check(run).faults)
    for same in (None, launch.source_commit(), "$(touch x)"):
        assert change(run, lambda one, same=same: replace(one, source_commit=same)).remedy is None
    monkeypatch.undo()
    assert check.check(run).remedy is None


# --- bytes ---------------------------------------------------------------------------------------


def test_any_flipped_bit_of_a_raw_file_is_found_and_the_file_named(run):
    raw = max((run / "raw").iterdir(), key=lambda path: path.stat().st_size)
    content = raw.read_bytes()
    for place in range(0, len(content), len(content) // 20):
        raw.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        faults = check.check(run).faults
        assert any(raw.name in fault for fault in faults), f"byte {place}"


@pytest.mark.parametrize("name", ["manifest.json", "host.json", "journal.ndjson", store.SUMS])
def test_any_flipped_bit_of_a_recorded_file_is_found(run, name):
    content = (run / name).read_bytes()
    for place in range(0, len(content), max(1, len(content) // 20)):
        changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        (run / name).write_bytes(changed)
        assert check.check(run).faults, f"byte {place}"


@pytest.mark.parametrize("name", store.FILES)
def test_any_flipped_bit_of_a_table_is_found_even_where_reading_would_end_the_process(run, name):
    content = (run / name).read_bytes()
    for place in range(0, len(content), len(content) // 5):
        (run / name).write_bytes(
            content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        )
        assert any(name in fault for fault in check.check(run).faults), f"byte {place}"
    (run / name).unlink()
    assert any(name in fault for fault in check.check(run).faults)


def test_a_changed_number_is_named_with_both_values_though_its_hash_was_made_to_fit(run):
    table = pl.read_parquet(run / store.FILES[0])
    changed = pl.when(pl.col("metric") == "events_per_second").then(pl.col("value") * 1.001)
    table.with_columns(value=changed.otherwise("value")).write_parquet(run / store.FILES[0])
    store.seal(run)
    fault, *_ = check.check(run).faults
    value = table.filter(pl.col("metric") == "events_per_second")["value"][0]
    assert "measurements.parquet" in fault and "trial 1" in fault and f"{value!r}" in fault


def test_no_number_is_taken_from_a_table(run):
    table = pl.read_parquet(run / store.FILES[0])
    table.with_columns(value=pl.lit(1e9)).write_parquet(run / store.FILES[0])
    assert not (runs.load(run).measurements["value"] == 1e9).any()


def test_a_run_passes_under_another_name(run, tmp_path):
    assert check.check(shutil.copytree(run, tmp_path / "downloaded")).faults == []


@pytest.mark.parametrize("name", ["manifest.json", "host.json", "journal.ndjson", *store.FILES])
def test_every_file_stands_in_the_sums(run, name):
    lines = (run / store.SUMS).read_text().splitlines(keepends=True)
    (run / store.SUMS).write_text("".join(line for line in lines if name not in line))
    assert any(name in fault and store.SUMS in fault for fault in check.check(run).faults)
    (run / store.SUMS).unlink()
    assert any(f"{store.SUMS} is missing" in fault for fault in check.check(run).faults)


def test_a_changed_notebook_is_named(run):
    (run / store.NOTEBOOK).write_text("{}")
    store.seal(run)
    assert check.check(run).faults == []
    (run / store.NOTEBOOK).write_text("{ }")
    assert check.check(run).faults == [f"notebook.ipynb: sha256 differs from {store.SUMS}"]


# --- values that do not fit ----------------------------------------------------------------------


def _places(data, path=()):
    items = data.items() if isinstance(data, dict) else enumerate(data[:2])
    for key, value in items:
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from _places(value, (*path, key))


@pytest.mark.parametrize("name", ["manifest.json", "host.json", "journal.ndjson"])
def test_a_value_of_the_wrong_kind_is_no_crash(run, name):
    text, end, rest = (run / name).read_text().partition("\n" if name.endswith("ndjson") else "\0")
    for number, path in enumerate(_places(json.loads(text))):
        wrong = [None, [], {}, "x", -1, "remove it"][number % 6]
        data = place = json.loads(text)
        for key in path[:-1]:
            place = place[key]
        if wrong == "remove it":
            del place[path[-1]]
        else:
            place[path[-1]] = wrong
        (run / name).write_text(json.dumps(data) + end + rest)
        if name != "manifest.json":
            seal(run)
        check.check(run)  # a fault or none, but no exception


def test_a_key_too_many_is_refused(run):
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["plan"]["cells"][0]["command"] = "true"
    journal.write_json(run / "manifest.json", manifest)
    with pytest.raises(Fault, match="does not fit the schema: plan.cells.0.command"):
        runs.load(run)


@pytest.mark.parametrize(("schema", "words"), [(1, "measure again"), (99, "update numalab")])
def test_another_schema_version_is_named_before_anything_else(run, schema, words):
    for name in ("manifest.json", "host.json"):
        data = json.loads((run / name).read_text())
        data.pop("host")
        journal.write_json(run / name, {**data, "schema": schema})
    with pytest.raises(Fault, match=f"schema version {schema}.*{words}"):
        runs.load(run)


@pytest.mark.parametrize("key", ["host", "plan", "order"])
def test_a_manifest_that_lacks_something_is_named_by_whoever_reads_it(run, key):
    manifest = json.loads((run / "manifest.json").read_text())
    (manifest["plan"] if key == "order" else manifest).pop(key)
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert any("manifest.json does not fit" in fault for fault in check.check(run).faults)
    for read in (runs.load, lambda folder: session.resume(folder, asking.Settings())):
        with pytest.raises(Fault, match=f"manifest.json does not fit the schema: .*{key}"):
            read(run)


@pytest.mark.parametrize("content", [b"", b"garbage", b"null", b"[]", b"{}"])
def test_collected_records_that_are_none_are_a_fault(run, content):
    (name,) = (run / "raw").glob("0001-*.collect.json.gz")
    name.write_bytes(gzip.compress(content))
    seal(run)
    assert any("0001-" in fault for fault in check.check(run).faults)


# --- the journal ---------------------------------------------------------------------------------


@pytest.fixture
def many(tmp_path) -> Path:
    """A run of four trials, journal and hashes only."""
    made = frames.plan(frames.two_nodes()[:2], blocks=2)
    return frames.write(frames.run(made, folder=tmp_path / "20261120T220511Z-stream"))


def test_a_line_that_was_changed_removed_or_moved_breaks_the_chain(many):
    path = many / "journal.ndjson"
    lines = path.read_text().splitlines(keepends=True)
    changed = lines[1].replace('"verified"', '"error"')
    for forged in (
        [lines[0], changed, *lines[2:]],
        [lines[0], *lines[2:]],
        [lines[0], lines[2], lines[1], lines[3]],
        [*lines[1:]],
    ):
        path.write_text("".join(forged))
        seal(many)
        with pytest.raises(Fault, match="does not follow the line before it"):
            runs.load(many)
        assert any("does not follow" in fault for fault in check.check(many).faults)


def test_a_last_line_that_a_crash_cut_short_is_left_out(many):
    text = (many / "journal.ndjson").read_text()
    (many / "journal.ndjson").write_text(text[:-20])
    assert len(runs.load(many).trials) == 3


def test_a_trial_that_was_not_planned_is_refused(many):
    records = runs.load(many).trials
    for forged in (
        replace(records[0], trial=9),
        replace(records[0], cell="unbound"),
        replace(records[0], block=2),
    ):
        (many / "journal.ndjson").unlink()
        journal.append(many / "journal.ndjson", forged)
        with pytest.raises(Fault, match="journal.ndjson"):
            runs.load(many)


# --- settings, proofs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"kernel.numa_balancing": "0"}, "kernel.numa_balancing was 0, not 1"),
        ({"kernel.numa_balancing": None}, "no record of what kernel.numa_balancing was"),
    ],
)
def test_every_cell_holds_the_hosts_own_settings(run, found, words):
    def of_trial(trial):
        settings = {name: value for name, value in {**trial.settings, **found}.items() if value}
        return replace(trial, settings=settings)

    faults = change(run, of_trial=of_trial).faults
    assert len(faults) == 2 and all(words in fault for fault in faults)


def test_a_plan_says_under_which_settings_it_was_measured(run):
    faults = change(run, lambda manifest: with_plan(manifest, settings={})).faults
    assert any("no cell says under which kernel.numa_balancing" in fault for fault in faults)


def test_a_run_beside_others_says_so(run):
    busy = (reason("host-busy", share=0.4, names=["backup"]),)
    found = change(run, lambda manifest: replace(manifest, busy=busy))
    assert "others use 40 % of the CPUs (backup)" in found.warnings


def test_a_recorded_tolerance_is_not_even_read(run):
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["plan"]["cells"][0]["expects"]["memory"]["within_points"] = 100.0
    journal.write_json(run / "manifest.json", manifest)
    seal(run)
    assert any("within_points" in fault for fault in check.check(run).faults)


def test_verified_needs_its_proof(run):
    for path in (run / "raw").glob("*.proof.json.gz"):
        path.unlink()

    def of_trial(one):
        raw = {kind: name for kind, name in one.raw.items() if kind != "proof"}
        return replace(one, raw=raw, sha256={n: one.sha256[n] for n in raw.values()})

    manifest = json.loads((run / "manifest.json").read_text())
    kept = {name: it for name, it in manifest["sha256"].items() if "proof" not in name}
    faults = change(run, lambda one: replace(one, sha256=kept), of_trial).faults
    assert any('grade is "verified", but "unverified" follows' in fault for fault in faults)


def test_a_setting_that_was_not_put_back_is_a_warning(run):
    theirs = reason("setting-is-theirs", value="5")
    changes = (
        Change("vm.swappiness", "60", False, theirs),
        Change("vm.drop_caches", None, False, reason("setting-cannot-be-put-back")),
    )
    found = change(run, lambda manifest: replace(manifest, changes=changes))
    said = [line for line in found.warnings if "put back" in line]
    assert said == [f"vm.swappiness was not put back: {theirs}"]


def test_a_metric_that_no_trial_gave_is_said(run):
    def asking(manifest):
        request = manifest.plan.request
        measure = {**request.measure, "evnts_per_second": Measure("1/s", "higher")}
        return replace(
            manifest, plan=replace(manifest.plan, request=replace(request, measure=measure))
        )

    (said,) = [one for one in change(run, asking).warnings if "no trial gave" in one]
    assert "evnts_per_second" in said and "events_per_second" in said
