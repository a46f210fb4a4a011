"""Whatever is wrong with a run directory, the check says so and names the file."""

import gzip
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from numalab import check, runs, session, store
from numalab.agent.errors import Fault
from numalab.agent.trial import journal
from numalab.logs import importer


@pytest.fixture
def run(monkeypatch, tmp_path):
    """A small run directory that passes the check."""
    monkeypatch.setenv("NUMALAB_RUNS", str(tmp_path / "runs"))
    log = Path(__file__).parent / "fixtures" / "tools" / "sysbench-cpu.txt"
    folder = importer.import_logs([log], "here", "sysbench-cpu", [], "")
    assert check.check(folder).faults == []
    return folder


def _seal(folder):
    """Make the hashes of a run those of its files, as a forger would."""
    manifest = journal.read_json(folder / "manifest.json")
    sums = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in manifest["sha256"]
    }
    journal.write_json(folder / "manifest.json", {**manifest, "sha256": sums})


def test_any_flipped_bit_of_a_raw_file_is_found_and_the_file_named(run):
    (raw,) = (run / "raw").iterdir()
    content = raw.read_bytes()
    for place in range(len(content)):
        raw.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        faults = check.check(run).faults
        assert any(raw.name in fault for fault in faults), f"byte {place}"


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


def test_a_run_passes_under_another_name(run, tmp_path):
    assert check.check(shutil.copytree(run, tmp_path / "downloaded")).faults == []


def _places(data, path=()):
    items = data.items() if isinstance(data, dict) else enumerate(data[:2])
    for key, value in items:
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from _places(value, (*path, key))


@pytest.mark.parametrize("name", ["manifest.json", "host.json", "journal.ndjson"])
@pytest.mark.parametrize("wrong", [None, [], {}, "x", -1, "remove it"])
def test_a_value_of_the_wrong_kind_is_no_crash(run, name, wrong):
    text = (run / name).read_text()
    for path in _places(json.loads(text)):
        data = place = json.loads(text)
        for key in path[:-1]:
            place = place[key]
        if wrong == "remove it":
            del place[path[-1]]
        else:
            place[path[-1]] = wrong
        (run / name).write_text(json.dumps(data) + "\n")
        if name != "manifest.json":
            _seal(run)
        check.check(run)  # a fault or none, but no exception


@pytest.mark.parametrize("key", ["host", "plan", "order"])
def test_a_manifest_that_lacks_something_is_named_by_whoever_reads_it(run, key):
    manifest = json.loads((run / "manifest.json").read_text())
    (manifest["plan"] if key == "order" else manifest).pop(key)
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert any("manifest.json has no" in fault for fault in check.check(run).faults)
    for read in (runs.load, lambda folder: session.resume(folder, session.Settings())):
        with pytest.raises(Fault, match="manifest.json has no"):
            read(run)


@pytest.mark.parametrize("content", [b"", b"garbage", b"null", b"[]", b"{}"])
def test_collected_records_that_are_none_are_a_fault(run, content):
    record = json.loads((run / "journal.ndjson").read_text())
    (run / "raw/collect.json.gz").write_bytes(gzip.compress(content))
    record["raw"]["collect"] = "raw/collect.json.gz"
    (run / "journal.ndjson").write_text(json.dumps(record) + "\n")
    _seal(run)
    assert check.check(run).faults


def _in_a_case(run, changes=(), found=(), grade="verified"):
    """Make the run's only cell one of a case, as a run under host settings records it."""
    manifest = journal.read_json(run / "manifest.json")
    (cell,) = manifest["plan"]["cells"]
    asked = {"vm.zone_reclaim_mode": "1", "vm.drop_caches": "3"}
    manifest["plan"]["request"].update(
        changes={"lru_gen.enabled?": "0x0000"},
        cases=[{"name": "full", "says": "full", "changes": asked}],
    )
    cell.update(case={"name": "full", "says": "full"}, changes={**asked, **dict(changes)})
    manifest["settings"] = {"vm.zone_reclaim_mode": "0"}
    journal.write_json(run / "manifest.json", manifest)
    record = json.loads((run / "journal.ndjson").read_text())
    record["settings"] = {**asked, **dict(found)}
    if grade == "error":
        record.update(grade="error", reason="somebody else set it")
    (run / "journal.ndjson").write_text(json.dumps(record) + "\n")
    store.write(run)
    _seal(run)
    return check.check(run)


def test_a_trial_ran_under_the_settings_of_its_cell(run):
    assert _in_a_case(run).faults == []


@pytest.mark.parametrize(
    ("changes", "found", "words"),
    [
        ({}, {"vm.zone_reclaim_mode": "0"}, "vm.zone_reclaim_mode was 0, not 1"),
        ({}, {"vm.drop_caches": "1"}, "vm.drop_caches was 1, not 3"),
        ({}, {"vm.zone_reclaim_mode": None}, "no record of what vm.zone_reclaim_mode was"),
        ({"vm.zone_reclaim_mode": "7"}, {}, "sets {'vm.zone_reclaim_mode': '7'"),
    ],
)
def test_other_settings_than_the_cells_are_a_fault(run, changes, found, words):
    assert any(words in fault for fault in _in_a_case(run, changes, found).faults)


@pytest.mark.parametrize(
    ("policy", "why", "excused"),
    [("interleave", "a node is full", True), ("interleave", None, False), ("bind", "so", False)],
)
def test_only_interleaving_over_a_full_node_is_excused_from_its_proof(run, policy, why, excused):
    manifest = journal.read_json(run / "manifest.json")
    (cell,) = manifest["plan"]["cells"]
    cell["memory"]["policy"] = policy
    cell["expects"]["memory"] = {"proof": "outcome", **({"why": why} if why else {})}
    journal.write_json(run / "manifest.json", manifest)
    found = check.check(run)
    assert any("requires no proof" in fault for fault in found.faults) is not excused
    assert any("recorded, not required" in line for line in found.warnings) is excused


def test_a_failed_trial_need_not_have_had_its_settings(run):
    assert _in_a_case(run, found={"vm.zone_reclaim_mode": "0"}, grade="error").faults == []


def test_a_setting_that_was_not_put_back_is_a_warning(run):
    manifest = journal.read_json(run / "manifest.json")
    manifest["changes"] = [
        {"name": "vm.swappiness", "before": "60", "values": ["0"], "restored": False,
         "reason": "somebody else set it to 5 since: left as it is"},
        {"name": "vm.drop_caches", "before": None, "restored": False, "reason": "it cannot be"},
    ]  # fmt: skip
    journal.write_json(run / "manifest.json", manifest)
    said = [line for line in check.check(run).warnings if "put back" in line]
    assert said == [
        "vm.swappiness was not put back: somebody else set it to 5 since: left as it is"
    ]
