"""What a run has written stays readable, whatever happened to the machine while writing."""

from __future__ import annotations

import gzip
import hashlib
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numalab.agent.contract import SCHEMA, ToolRecord, TrialRecord, TrialTimes, dumps, reason
from numalab.agent.errors import Fault
from numalab.agent.trial import journal


def _record(trial, **more):
    record = TrialRecord(
        schema=SCHEMA, trial=trial, block=1, position=trial, cell="local:0", attempt=1,
        started="", ended="", grade="verified", reason=None, argv=(), exit_status=0, signal=None,
        times=TrialTimes(0.0, 0.0, 1.0, 0.0, 1.0), tool=ToolRecord("fake"), raw={}, sha256={},
    )  # fmt: skip
    return replace(record, **more)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "journal.ndjson"
    for trial in (1, 2, 3):
        journal.append(path, _record(trial, reason=reason("fault", what="Knoten 0 → 1")))
    return path


def test_what_was_appended_is_read(path):
    assert [r.trial for r in journal.read(path)] == [1, 2, 3]
    assert str(journal.read(path)[0].reason) == "Knoten 0 → 1"


def test_no_journal_yet_is_no_record(tmp_path):
    assert journal.read(tmp_path / "journal.ndjson") == []
    assert journal.repair(tmp_path / "journal.ndjson") is None


def test_a_torn_last_line_is_dropped_and_said(path):
    whole = path.read_bytes()
    third = whole.rindex(b"\n", 0, len(whole) - 1) + 1
    for cut in {*range(third, len(whole), 9), len(whole) - 1}:
        path.write_bytes(whole[:cut])
        said = []
        assert [r.trial for r in journal.read(path, said.append)] == [1, 2]
        assert len(said) == (1 if cut > third else 0)
        assert not said or said[0].code == "journal-torn"
        journal.repair(path)
        journal.append(path, _record(3))
        assert [r.trial for r in journal.read(path)] == [1, 2, 3]


def test_other_damage_is_refused_with_its_line(path):
    lines = path.read_bytes().splitlines(keepends=True)
    for damaged in (b"\0" * 40 + b"\n", b"{}\n", b"[1]\n", b"\n", b"[" * 100_000 + b"\n"):
        path.write_bytes(lines[0] + damaged + lines[2])
        with pytest.raises(Fault, match=r"journal.ndjson, line 2 is not a trial's record"):
            journal.read(path)
    path.write_bytes(lines[0] + lines[1].replace(b'"trial": 2', b'"trial": "2"') + lines[2])
    with pytest.raises(Fault, match=r"journal.ndjson, line 2.trial is '2', not of type int"):
        journal.read(path)
    path.write_bytes(b"".join([*lines, lines[1]]))
    with pytest.raises(Fault, match="line 4: trial 2 is there already, in line 2"):
        journal.read(path)


def test_another_schema_is_refused(path):
    journal.append(path, _record(4, schema=SCHEMA + 1))
    with pytest.raises(Fault, match=f"line 4 has schema version {SCHEMA + 1}.*update this numalab"):
        journal.read(path)


def test_each_line_holds_the_hash_of_the_one_before(path):
    lines = path.read_bytes().splitlines()
    records = journal.read(path)
    assert records[0].previous == ""
    for record, before in zip(records[1:], lines):
        assert record.previous == hashlib.sha256(before).hexdigest()


def test_the_hash_is_of_the_whole_line_however_long(path):
    journal.append(path, _record(4, argv=("x" * 300_000,)))
    journal.append(path, _record(5))
    assert [r.trial for r in journal.read(path)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "damage, line",
    [
        (lambda one, two, three: [one.replace(b"verified", b"error"), two, three], 2),
        (lambda one, two, three: [one, three], 2),
        (lambda one, two, three: [two, three], 1),
        (lambda one, two, three: [one, three, two], 2),
        (lambda one, two, three: [one, two.replace(b"local:0", b"local:1"), three], 3),
    ],
)
def test_a_chain_that_does_not_hold_is_refused_with_its_line(path, damage, line):
    path.write_bytes(b"".join(damage(*path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(journal.CannotComplete, match=f"line {line} does not follow the line bef"):
        journal.read(path)


@pytest.fixture(scope="module")
def whole_journal(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "journal.ndjson"
    for number in range(1, 5):
        journal.append(path, _record(number))
    return path.read_bytes()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 300))
def test_any_damage_gives_records_or_a_fault(tmp_path_factory, whole_journal, junk, start, length):
    path = tmp_path_factory.getbasetemp() / "mutated.ndjson"
    path.write_bytes(whole_journal[:start] + junk + whole_journal[start + length :])
    try:
        records = journal.read(path)
    except Fault as fault:
        assert "line" in str(fault)
    else:
        assert all(isinstance(record.trial, int) for record in records)


def test_json_is_replaced_in_one_piece(tmp_path):
    path = tmp_path / "manifest.json"
    journal.write_json(path, {"schema": SCHEMA, "n": 1})
    with pytest.raises(TypeError):
        journal.write_json(path, {"schema": SCHEMA, "n": object()})
    assert journal.read_json(path)["n"] == 1
    assert os.listdir(tmp_path) == ["manifest.json"]


@pytest.mark.parametrize(
    "text, words",
    [
        ("{", "cannot be read"),
        ("[]", "states no schema version"),
        ('{"schema": 99}', "schema version 99.*update"),
        ('{"schema": 1}', "schema version 1.*make it anew"),
        ("[" * 100_000, "cannot be read"),
        (None, "is missing"),
    ],
)
def test_json_that_is_not_ours_is_refused(tmp_path, text, words):
    path = tmp_path / "manifest.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(Fault, match=words):
        journal.read_json(path)


def test_only_a_regular_file_of_a_bearable_size_is_read(tmp_path, monkeypatch):
    path = tmp_path / "manifest.json"
    os.mkfifo(path)
    with pytest.raises(Fault, match="is no regular file"):
        journal.read_json(path)
    path.unlink()
    path.write_text('{"schema": 3, "text": "' + 1000 * "x" + '"}')
    monkeypatch.setattr(journal, "_MOST_BYTES", 1000)
    with pytest.raises(Fault, match="1,025 bytes, more than"):
        journal.read_json(path)


def test_gzip_is_the_same_every_time(tmp_path):
    data = b"Triad: 12345.6\n" * 1000
    (tmp_path / "plain").write_bytes(data)
    first = journal.write_gzip(tmp_path / "a.gz", data)
    second = journal.write_gzip(tmp_path / "b.gz", tmp_path / "plain")
    assert first == second == journal.sha256(tmp_path / "a.gz")
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == data
    assert (tmp_path / "a.gz").read_bytes()[4:8] == b"\0\0\0\0"  # no time (RFC 1952)


def _limited(tmp_path, code):
    """Run code in a process whose files cannot grow beyond 4 KiB (EFBIG, like a full disk)."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    head = f"import sys; sys.path.insert(0, {str(journal.__file__.rsplit('/numalab/')[0])!r})\n"
    head += "from pathlib import Path\nfrom numalab.agent.trial import journal\n"
    done = subprocess.run(
        [sys.executable, "-c", head + code], cwd=tmp_path, preexec_fn=limit,
        capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_full_disk_leaves_the_journal_whole(tmp_path):
    said = _limited(
        tmp_path,
        "import dataclasses, json\n"
        "from numalab.agent.contract import TrialRecord, from_json\n"
        f"record = from_json(TrialRecord, json.loads({dumps(_record(1))!r}))\n"
        "path = Path('journal.ndjson')\n"
        "try:\n"
        "    for n in range(1, 1000):\n"
        "        journal.append(path, dataclasses.replace(record, trial=n))\n"
        "except journal.DiskFull as fault:\n"
        "    print(n, fault)\n",
    )
    failed_at = int(said.split()[0])
    assert "the disk is full" in said and "resume" in said
    content = (tmp_path / "journal.ndjson").read_bytes()
    assert content.endswith(b"\n")
    assert len(journal.read(tmp_path / "journal.ndjson")) == failed_at - 1 > 5


def test_a_full_disk_leaves_the_old_json_and_no_scrap(tmp_path):
    journal.write_json(tmp_path / "manifest.json", {"schema": SCHEMA, "n": 1})
    said = _limited(
        tmp_path,
        "import os\n"
        "for write in (lambda: journal.write_json(Path('manifest.json'), {'a': 'x' * 9000}),\n"
        "              lambda: journal.write_gzip(Path('raw.gz'), os.urandom(9000))):\n"
        "    try:\n"
        "        write()\n"
        "    except journal.DiskFull as fault:\n"
        "        print('full')\n",
    )
    assert said == "full\nfull\n"
    assert journal.read_json(tmp_path / "manifest.json")["n"] == 1
    assert os.listdir(tmp_path) == ["manifest.json"]


def test_a_full_disk_is_seen_without_writing(tmp_path, monkeypatch):
    journal.check_space(tmp_path)
    free = {"f_blocks": 100, "f_bfree": 0, "f_bavail": 0}
    monkeypatch.setattr(journal.os, "statvfs", lambda path: SimpleNamespace(**free))
    with pytest.raises(journal.DiskFull, match="the disk is full"):
        journal.check_space(tmp_path)
    free["f_blocks"] = 0  # a file system that keeps no account of blocks
    journal.check_space(tmp_path)
