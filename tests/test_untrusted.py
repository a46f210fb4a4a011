"""A stranger's run directory is data: each of these was an attack that worked once, or could."""

import gzip
import io
import json
import os
import resource
import subprocess
import sys
import tarfile
import threading
import zlib
from pathlib import Path

import polars as pl
import pytest

import frames
import topologies
from numalab import asking, check, escape, experiments, launch, runs, session, store, untrusted
from numalab.agent import cpulist
from numalab.agent.contract import Reason, to_json
from numalab.agent.errors import Fault
from numalab.agent.trial import journal
from numalab.fleet import receive
from numalab.pages import execute

REPOSITORY = Path(__file__).resolve().parent.parent
EVIL = "<script>alert(1)</script>\x1b[2J\x9b31m\u202e`$|"


@pytest.fixture
def run(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("NUMALAB_RUNS", str(tmp_path / "runs"))
    return frames.one_trial_run(tmp_path / "runs" / "here" / "20261120T220511Z-sysbench-cpu")


def forge(folder: Path, **fields) -> None:
    """Change the manifest, with every hash made to fit."""
    manifest = json.loads((folder / "manifest.json").read_text())
    journal.write_json(folder / "manifest.json", {**manifest, **fields})
    store.seal(folder)


def refused(folder: Path, words: str) -> None:
    """A run is neither loaded, checked, resumed nor listed as one; each says why, in short time."""
    started = cpu_s()
    for read in (runs.load, lambda one: session.resume(one, asking.Settings())):
        with pytest.raises(Fault, match=words):
            read(folder)
    assert check.check(folder).faults
    assert cpu_s() - started < 20


def cpu_s() -> float:
    """The CPU time of this process and its children: it hangs on nothing that runs beside."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


# --- names and paths -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["experiment", "host", "run"])
@pytest.mark.parametrize(
    "name",
    ["../../victim", "/tmp/evil.yml", "..", ".", "", "a/b", "a b", "x\x00", "é", "-x", "a\n"],
)
def test_a_name_in_a_manifest_is_that_of_one_folder_or_file(run, key, name):
    forge(run, **{key: name})
    refused(run, "manifest.json")


def test_an_experiments_name_is_never_taken_for_a_path(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = REPOSITORY / "experiments" / "sysbench-cpu.yml"
    (tmp_path / "evil.yml").write_text(source.read_text())
    forge(run, experiment="evil.yml")
    loaded = runs.load(run)
    assert loaded.notebook is None
    with pytest.raises(Fault, match="experiments/evil.yml"):
        loaded.experiment  # noqa: B018


@pytest.mark.parametrize(
    "name", ["raw/../../../etc/passwd", "/etc/passwd", "manifest.json", "raw/a/b", "raw/.x", "raw/"]
)
def test_a_raw_file_is_one_of_the_runs_own(run, name):
    forge(run, sha256={name: "0" * 64})
    refused(run, "no raw file of the run|does not fit")
    frames.one_trial_run(run)
    (record,) = (json.loads(line) for line in (run / "journal.ndjson").read_text().splitlines())
    record["raw"]["stdout"] = name
    (run / "journal.ndjson").write_text(json.dumps(record) + "\n")
    refused(run, "no raw file of the run")


@pytest.mark.parametrize("name", ["manifest.json", "raw/0001-unbound.stdout.gz", "raw", "x.part"])
def test_a_link_is_not_followed(run, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    if (run / name).exists():
        (run / name).rename(elsewhere)
    (run / name).symlink_to(elsewhere)
    refused(run, "no regular file|cannot be read")


def test_what_is_written_into_a_run_follows_no_link(run, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in (store.FILES[0], f".{store.FILES[0]}.part", store.SUMS):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(victim)
    store.replace(run, store.FILES[0], b"new")
    store.replace(run, store.SUMS, b"new")
    assert victim.read_text() == "precious"
    assert not (run / store.FILES[0]).is_symlink()


def test_a_host_that_is_no_name_is_refused_before_a_folder_is_made(tmp_path):
    for host, experiment in (("../../victim", "stream"), ("here", "../x"), ("", "stream")):
        with pytest.raises(Fault, match="cannot name"):
            launch.new_run_directory(tmp_path / "runs", host, experiment)
    assert not (tmp_path / "runs").exists()


# --- nothing is executed -------------------------------------------------------------------------


def test_resume_starts_no_program_of_a_run_that_was_not_begun_here(run, tmp_path):
    manifest = json.loads((run / "manifest.json").read_text())
    plan = manifest["plan"]
    plan["tool"]["name"] = plan["request"]["tool"]["name"] = "command"
    argv = ["touch", str(tmp_path / "done")]
    plan["request"]["tool"]["options"] = plan["cells"][0]["options"] = {"argv": argv}
    forge(run, plan=plan, status="running")
    (run / "journal.ndjson").unlink()
    with pytest.raises(Fault, match="not begun here.*--begun-elsewhere"):
        session.resume(run, asking.Settings(notebook=False))
    assert not (tmp_path / "done").exists()


def test_what_was_measured_elsewhere_by_hand_is_not_resumed(run):
    forge(run, status="imported")
    with pytest.raises(Fault, match="cannot be resumed"):
        session.resume(run, asking.Settings(begun_elsewhere=True))


def test_a_run_keeps_its_users_experiment_file_as_data(run):
    text = (REPOSITORY / "experiments" / "sysbench-cpu.yml").read_text()
    own = text.replace("notebook: sysbench-cpu.ipynb", "notebook: evil.ipynb")
    assert own != text
    run = frames.sysbench_run(run.parent / "20261120T220512Z-mine")
    (run / store.EXPERIMENT).write_text(own)
    plan = json.loads((run / "manifest.json").read_text())["plan"]
    plan["request"]["experiment"] = "mine"
    forge(run, experiment="mine", plan=plan)
    store.write(runs.load(run))
    loaded = runs.load(run)
    assert loaded.own_experiment and loaded.notebook is None
    assert loaded.experiment.name == "mine" and loaded.experiment.claims
    assert check.check(run).faults == []
    (run / store.EXPERIMENT).write_text(own + "wrong_key: 1\n")
    store.seal(run)
    assert any("wrong_key" in fault for fault in check.check(run).faults)


def test_another_file_than_the_runs_own_does_not_resume_it(run):
    with pytest.raises(Fault, match="is a run of sysbench-cpu, not of stream"):
        session.resume(run, asking.Settings(), REPOSITORY / "experiments" / "stream.yml")


def test_a_runs_notebook_is_replaced_and_never_written_through(run, tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (run / execute.EXECUTED).unlink(missing_ok=True)
    os.link(victim, run / execute.EXECUTED)
    written = []
    monkeypatch.setattr(execute, "_memo", lambda made: tmp_path / "memo")
    monkeypatch.setattr(
        execute, "run_notebook", lambda source, target, _: written.append(target.write_text("new"))
    )
    execute.execute(run)
    assert written and victim.read_text() == "mine"


def test_a_huge_notebook_of_a_stranger_is_refused_before_it_is_read(run):
    with open(run / execute.EXECUTED, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(Fault, match="notebook.ipynb"):
        execute.executed(runs.load(run))


# --- what is shown -------------------------------------------------------------------------------


def test_no_control_character_reaches_a_terminal(run):
    cell = json.loads((run / "manifest.json").read_text())["plan"]
    cell["cells"][0]["label"] = EVIL
    forge(run, plan=cell, profile=EVIL)
    for command in (["check", str(run)], ["check", "--json", str(run)], ["list", "--runs"],
                    ["list", "--runs", "--json"], ["check", f"no{EVIL}where"]):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "numalab.cli", *command], capture_output=True, cwd=REPOSITORY
        )
        said = (done.stdout + done.stderr).decode()
        assert not {one for one in said if not one.isprintable() and one != "\n"}, command


@pytest.mark.parametrize("kind", [escape.terminal, escape.line, escape.html, escape.markdown])
def test_escaped_text_has_no_control_character(kind):
    shown = kind("a\x00\x07\x1b[31m\x7f\x85\x9b\u2028\u202e\u2066\ufeff\ud800b")
    assert all(one.isprintable() for one in shown)


def test_escaped_text_has_no_effect():
    assert escape.html('<a href="x">&\'') == "&lt;a href=&quot;x&quot;&gt;&amp;&#x27;"
    for text in ("<b>", "a|b", "[x](y)", "![x](y)", "`x`", "$x$", "{{< embed x >}}", "@fig-x"):
        shown = escape.markdown(text)
        assert "<" not in shown and shown != text
    assert escape.markdown("see http://example.org/x") == "see http&#58;//example.org/x"
    assert escape.markdown("# a\n\n- b") == "\\# a - b"
    for text in ("local:0", "innodb_numa_interleave=ON", "remote:0-1", "2 threads", "node 0"):
        assert escape.markdown(text) == text, "what reads the same stays the same"
    for text in ("{{< env HOME >}}", "{{{< env HOME >}}}", "{{% env HOME %}}"):
        for shown in (escape.code(text), escape.verbatim(text)):
            assert "{{<" not in shown and "{{%" not in shown, "Quarto would take it for its own"
    assert escape.code("docker inspect -f '{{.Id}}'") == "`docker inspect -f '{{.Id}}'`"
    assert json.loads(escape.terminal(json.dumps({"x": EVIL}, ensure_ascii=False))) == {"x": EVIL}


# --- sizes ---------------------------------------------------------------------------------------


def confined(*command: str) -> str:
    """Run a command; return what it said, provided that it took under 512 MiB and a minute."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, sys.executable, "-m", "numalab.cli", *command],
        capture_output=True, text=True, errors="replace", cwd=REPOSITORY,
    )  # fmt: skip
    *said, figures = done.stdout.splitlines()
    status, kib, seconds = figures.split()
    assert status in ("1", "2"), done.stdout
    assert "Traceback" not in done.stdout
    assert int(kib) < 512 * 1024, f"{int(kib) >> 10} MiB"
    assert float(seconds) < 60
    return "\n".join(said)


def bounded() -> None:
    """Give a command a minute of CPU time."""
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))


MEASURED = """
import resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
sys.stdout.buffer.write(done.stdout)
print()
print(done.returncode, used.ru_maxrss, used.ru_utime + used.ru_stime)
"""


def packed_zeros(mib: int, wrap: bytes = b"") -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [packer.compress(wrap), *(packer.compress(bytes(1 << 20)) for _ in range(mib))]
    return b"".join([*parts, packer.flush()])


def raw_of(folder: Path) -> Path:
    (raw,) = (folder / "raw").iterdir()
    return raw


def with_collected(folder: Path, content: bytes) -> None:
    from dataclasses import replace

    (folder / "raw" / "collect.json.gz").write_bytes(gzip.compress(content))
    (one,) = runs.load(folder).trials
    (folder / "journal.ndjson").unlink()
    named = replace(one, raw={**one.raw, "collect": "raw/collect.json.gz"})
    journal.append(folder / "journal.ndjson", named)
    store.seal(folder)


def a_wide_parquet(rows: int) -> bytes:
    """A small file of many equal rows."""
    table = pl.DataFrame({"value": pl.repeat(1.0, rows, eager=True)})
    file = io.BytesIO()
    table.write_parquet(file, compression="zstd", row_group_size=rows)
    return file.getvalue()


def with_many(folder: Path, file: str, place: str, item: str) -> None:
    """Put 300,000 wrong items into a list or mapping of a file."""
    before, after = (folder / file).read_text().split(f'"{place}":', 1)
    opened, closed = ("[", "]") if after.lstrip().startswith("[") else ("{", "}")
    assert after.lstrip().startswith(opened)
    rows = (item if opened == "[" else f'"k{number}":{item}' for number in range(300_000))
    many = opened + ",".join(rows) + ","
    end = after.lstrip()[1:]
    if end.lstrip().startswith(closed):
        many = many[:-1]
    (folder / file).write_text(f'{before}"{place}":{many}{end}')


BOMBS = {
    "CPUs without a field": lambda f: with_many(f, "host.json", "cpus", "{}"),
    "cells without a field": lambda f: with_many(f, "manifest.json", "cells", "{}"),
    "warnings that are numbers": lambda f: with_many(f, "manifest.json", "warnings", "1"),
    "settings that are numbers": lambda f: with_many(f, "host.json", "before", "1"),
    "gzip": lambda f: raw_of(f).write_bytes(packed_zeros(640)),
    "gzip members": lambda f: raw_of(f).write_bytes(gzip.compress(b"") * 1_000_000),
    "manifest of another size": lambda f: os.truncate(f / "manifest.json", 1 << 40),
    "journal of another size": lambda f: os.truncate(f / "journal.ndjson", 1 << 40),
    "raw file of another size": lambda f: os.truncate(raw_of(f), 1 << 40),
    "sums of another size": lambda f: os.truncate(f / store.SUMS, 1 << 40),
    "deep manifest": lambda f: (f / "manifest.json").write_text("[" * 10_000_000),
    "deep closed manifest": lambda f: (f / "manifest.json").write_text(
        '{"schema": ' + "[" * 100_000 + "]" * 100_000 + "}"
    ),
    "wide manifest": lambda f: (f / "manifest.json").write_text(
        '{"schema": 3, "x": [' + "{}," * 9_000_000 + "{}]}"
    ),
    "escaped manifest": lambda f: (f / "manifest.json").write_text('{"x": "' + '\\"' * 15_000_000),
    "deep host": lambda f: (f / "host.json").write_text('{"a":' * 3_000_000),
    "long journal": lambda f: (f / "journal.ndjson").write_text("{}\n" * 30_000_000),
    "wide journal": lambda f: (f / "journal.ndjson").write_text("[" + "1," * 60_000_000 + "1]\n"),
    "deep collected": lambda f: with_collected(f, b"[" * 20_000_000),
    "wide collected": lambda f: with_collected(f, b'{"x": [' + b"[]," * 8_000_000 + b"[]]}"),
    "many samples": lambda f: with_collected(
        f, b'{"samples": [' + b'{"t_s":0},' * 900_000 + b'{"t_s":0}]}'
    ),
    "wide parquet": lambda f: (f / store.FILES[0]).write_bytes(a_wide_parquet(200_000_000)),
    "aliases": lambda f: (f / store.EXPERIMENT).write_text(
        "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 90))
    ),
    "merged keys": lambda f: (f / store.EXPERIMENT).write_text(
        "a0: &a0 {x: 1}\n"
        + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 60))
    ),
    "deep experiment": lambda f: (f / store.EXPERIMENT).write_text("a: " + "[" * 100_000),
    "own alias": lambda f: (f / store.EXPERIMENT).write_text("a: &a [*a]\n"),
    "large experiment": lambda f: (f / store.EXPERIMENT).write_text("a: b\n" * 1_000_000),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_in_bounded_time_and_memory(run, bomb):
    BOMBS[bomb](run)
    manifest = run / "manifest.json"
    if manifest.stat().st_size < untrusted.MIB:  # make the hashes fit: they do not stop anybody
        data = json.loads(manifest.read_text()) if "manifest" not in bomb else {}
        for name in data.get("sha256", {}):
            if (run / name).stat().st_size < 1 << 30:
                data["sha256"][name] = journal.sha256(run / name)
        if data:
            journal.write_json(manifest, data)
    if bomb != "sums of another size":
        (run / store.SUMS).unlink()
    said = confined("check", str(run))
    assert "must not be published" in said


def test_the_largest_text_that_is_read_fits_too(run):
    raw_of(run).write_bytes(gzip.compress(("é😀" * (untrusted.LARGEST_TEXT // 6)).encode()))
    confined("check", str(run))


@pytest.mark.parametrize("name", ["manifest.json", "host.json", "journal.ndjson", store.SUMS])
def test_a_fifo_is_not_waited_for(run, name):
    (run / name).unlink()
    os.mkfifo(run / name)
    said = confined("check", str(run))
    assert "no regular file" in said


def test_a_socket_and_a_device_are_refused(run, tmp_path):
    with pytest.raises(Fault, match="no regular file"):
        untrusted.read_bytes(Path("/dev"), "zero")
    (run / "raw" / "zero").symlink_to("/dev/zero")
    refused(run, "no regular file")


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / "grows"
    path.write_bytes(b"x" * 100)
    ended = threading.Event()

    def grow():
        with open(path, "ab") as file:
            while not ended.is_set():
                file.write(b"x" * 4096)
                file.flush()

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        for _ in range(50):
            try:
                assert len(untrusted.read_bytes(tmp_path, "grows", 100_000)) <= 100_000
            except Fault as fault:
                assert "most that are read" in str(fault) or "grew" in str(fault)
    finally:
        ended.set()
        writer.join()


def test_a_parquet_file_that_claims_more_than_it_holds_is_read_apart():
    stored = a_wide_parquet(200_000_000)
    assert len(stored) < 1 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    table = check._read_apart(stored, 5)
    assert table is None or table.height <= 6
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024


def test_an_experiment_file_with_a_few_aliases_is_read():
    assert experiments.load("mysql-binding").profiles
    text = "a: &a [1, 2]\nb: *a\nc: {<<: {d: *a}}\n"
    assert untrusted.check_yaml(text, "x") == text


# --- values that no run holds --------------------------------------------------------------------


def many(text: str) -> str:
    return "[" + ",".join([text] * 1_400_000) + "]"


def stuffed(folder: Path, name: str, place: list[str], value: str) -> None:
    """Put a JSON text into a file of a run."""
    data = json.loads((folder / name).read_text())
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = "@"
    (folder / name).write_text(json.dumps(data).replace('"@"', value))


def with_warnings(folder: Path) -> None:
    stuffed(folder, "journal.ndjson", ["warnings"], many('{"code":""}'))
    with open(folder / "journal.ndjson", "a") as file:
        file.write("\n")


def with_nodes(folder: Path, nodes: int, pairs: str, bindings: list) -> None:
    """Make the host one of so many nodes, each with a CPU, and ask for bindings on it."""
    host = json.loads((folder / "host.json").read_text())
    host["topology"] = to_json(topologies.topology(nodes, cores=1))
    for node in host["topology"]["nodes"]:
        node["distances"] = {}
    (folder / "host.json").write_text(json.dumps(host))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["plan"]["request"] |= {"pairs": pairs, "bindings": bindings}
    (folder / "manifest.json").write_text(json.dumps(manifest))


FULL = {
    "pairs": lambda f: with_nodes(f, 1500, "every", ["remote"]),
    "pairs of a class": lambda f: with_nodes(f, 1000, "class", ["remote"]),
    "pairs that fit": lambda f: with_nodes(f, 120, "every", ["remote"]),
    "cases": lambda f: stuffed(
        f, "manifest.json", ["plan", "request", "cases"], many('{"name":""}')
    ),
    "warnings": with_warnings,
    "settings": lambda f: stuffed(
        f, "host.json", ["before"],
        "{" + ",".join(f'"{n:x}":{{"value":0}}' for n in range(1_200_000)) + "}",
    ),
    "digits": lambda f: stuffed(f, "host.json", ["topology", "threads"], "9" * 4000),
}  # fmt: skip


@pytest.mark.parametrize("what", FULL)
def test_a_run_of_more_values_than_a_run_holds_is_refused(run, what):
    FULL[what](run)
    data = json.loads((run / "manifest.json").read_text())
    if what != "cases":
        for name in data["sha256"]:
            data["sha256"][name] = journal.sha256(run / name)
        journal.write_json(run / "manifest.json", data)
    store.seal(run)
    assert "must not be published" in confined("check", str(run))


def test_a_raw_file_that_many_trials_name_counts_each_time(run, monkeypatch):
    loaded = runs.load(run)
    size = sum(len(store.read_raw(run, name)) for one in loaded.trials for name in one.raw.values())
    monkeypatch.setattr(store, "MOST_RAW_BYTES", size)
    store.check_size(loaded)
    monkeypatch.setattr(store, "MOST_RAW_BYTES", size - 1)
    with pytest.raises(Fault, match="more than a run ever measures"):
        store.check_size(loaded)


def test_findings_are_cut_where_nobody_reads_them(run):
    plan = json.loads((run / "manifest.json").read_text())["plan"]
    plan["request"]["changes"] = {f"vm.{'x' * n}": "1" for n in range(1, 300)}
    forge(run, plan=plan, sha256={f"raw/{n}": "0" * 64 for n in range(5000)})
    faults = check.check(run).faults
    assert len(faults) <= check.MOST_FOUND + 20 and max(map(len, faults)) <= check.LONGEST + 1


@pytest.mark.parametrize("proofs", [b"{}", b"[]", b"0", b'{"proofs": 1}', b'{"proofs": [1]}'])
def test_a_proof_that_is_none_is_a_fault(run, proofs):
    from dataclasses import replace

    (run / "raw" / "proof.json.gz").write_bytes(gzip.compress(proofs))
    (one,) = runs.load(run).trials
    plan = json.loads((run / "manifest.json").read_text())["plan"]
    plan["cells"][0]["expects"]["memory"]["proof"] = "required"
    forge(run, plan=plan)
    (run / "journal.ndjson").unlink()
    named = replace(one, raw={**one.raw, "proof": "raw/proof.json.gz"}, grade="verified")
    journal.append(run / "journal.ndjson", named)
    assert any("raw/proof.json.gz" in fault for fault in check.check(run).faults)


def test_a_finding_is_one_line_of_the_terminal(run):
    forged = f"x\n✓ {run}: 9 trials, every number follows from raw/"
    plan = json.loads((run / "manifest.json").read_text())["plan"]
    plan["cells"][0]["memory"]["policy"] = "bind"
    plan["cells"][0]["expects"]["memory"]["proof"] = "none"
    for item in (*plan["cells"], *plan["order"]):
        item["cell" if "cell" in item else "id"] = forged
    forge(run, plan=plan, profile=forged)
    said = subprocess.run(
        [sys.executable, "-m", "numalab.cli", "check", str(run)], capture_output=True, text=True
    ).stdout
    assert not [line for line in said.splitlines() if line.startswith("✓")]
    listed = subprocess.run(
        [sys.executable, "-m", "numalab.cli", "list", "--runs"], capture_output=True, text=True
    ).stdout
    assert not [line for line in listed.splitlines() if line.startswith("✓")]


@pytest.mark.parametrize("fields", [{"need_bytes": 10**400}, {"share": 10**400}, {"blocks": "x"}])
@pytest.mark.parametrize("code", ["page-cache-must-go", "disturbed", "too-few-blocks", "spilled"])
def test_a_sentence_of_damaged_fields_is_its_code(code, fields):
    assert str(Reason(code, fields)).startswith(code.split("-")[0])


@pytest.mark.parametrize(
    "text", ["0-999999999999", "0-16385," * 9, "9" * 5000, "0-16000," * 1000, "1-2:" + "9" * 5000]
)
def test_a_list_of_cpus_without_end_is_refused_at_once(text):
    started = cpu_s()
    with pytest.raises(Fault):
        cpulist.parse(text)
    assert cpu_s() - started < 1


def test_folders_that_no_run_has_are_not_entered(run):
    deep = run / "x"
    for _ in range(300):
        deep = deep / "d"
    deep.mkdir(parents=True)
    assert any("no such folder" in fault for fault in check.check(run).faults)


@pytest.mark.parametrize(
    "value",
    ["1" * 5000, "0x" + "f" * 5000, "2026-13-99", "!!int x", '!!int ""', "!!bool x", "!!float x",
     "!!timestamp x", "!!timestamp [1]", '"\\UFFFFFFFF"', "2026-01-01T00:00:00+99:99"],
)  # fmt: skip
def test_a_value_that_yaml_itself_cannot_make_is_a_fault(value):
    text = (REPOSITORY / "experiments" / "sysbench-cpu.yml").read_text()
    with pytest.raises(Fault, match="x.yml"):
        experiments.parse(text.replace("blocks: 2", f"blocks: {value}"), "x", Path("x.yml"))


@pytest.mark.parametrize(
    "form, line",
    [("vmstat", "a{} 1\n"), ("perf_stat", "1,,e{},1,100.00,,\n"), ("numa_maps", "{:012x} default "
      "anon=1 N0=1\n"), ("lscpu", "{},0,0,0\n")],
)  # fmt: skip
def test_a_log_of_a_million_lines_is_refused(tmp_path, form, line):
    head = "# The following is the parsable format\n# CPU,Core,Socket,Node\n"
    rows = "".join(line.format(number) for number in range(1_000_000))
    (tmp_path / "log").write_text((head if form == "lscpu" else "") + rows)
    assert "more than fits into memory" in confined("parse", form, str(tmp_path / "log"))


# --- archives ------------------------------------------------------------------------------------


def an_archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for member, content in members:
            archive.addfile(member, io.BytesIO(content))


def a_member(name: str, content: bytes = b"", **fields) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for key, value in fields.items():
        setattr(member, key, value)
    return member, content


def a_sparse_archive(path: Path) -> None:
    """An archive of a few bytes whose member unpacks to 100 GB."""
    with open(path.with_suffix(".big"), "wb") as file:
        file.truncate(100_000_000_000)
    packed = ["tar", "--sparse", "-cf", path, "-C", path.parent, path.with_suffix(".big").name]
    subprocess.run(packed, check=True)
    path.with_suffix(".big").unlink()


def a_long_header(path: Path) -> None:
    """An archive that begins with 600 MB of what describes a file (pax)."""
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 600_000_000
    path.write_bytes(header.tobuf())
    os.truncate(path, 600_001_024)


def a_described_archive(path: Path, *described: tuple[str, str], times: int = 1) -> None:
    """An archive whose member has words of our own about it (pax), so many times in a row."""
    content = b""
    for key, value in described:
        size = len(key) + len(value.encode()) + 3
        size += len(str(size + len(str(size))))
        content += f"{size} {key}={value}\n".encode()
    head = tarfile.TarInfo("head")
    head.type, head.size = tarfile.XHDTYPE, len(content)
    words = head.tobuf() + content + bytes(-len(content) % 512)
    path.write_bytes(words * times + tarfile.TarInfo("x").tobuf() + bytes(1024))


def a_size_beyond_any(path: Path) -> None:
    """An archive whose long name has 2**70 bytes (base-256 of GNU tar)."""
    header = bytearray(tarfile.TarInfo("x").tobuf())
    header[124:136] = b"\x80" + (1 << 70).to_bytes(11, "big")
    header[156:157] = tarfile.GNUTYPE_LONGNAME
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path.write_bytes(bytes(header) + bytes(1024))


ARCHIVES = {
    "a size beyond any": a_size_beyond_any,
    "a path outside": lambda p: an_archive(p, a_member("../../victim", b"x")),
    "an absolute path": lambda p: an_archive(p, a_member("/tmp/victim", b"x")),
    "a link": lambda p: an_archive(p, a_member("x", type=tarfile.SYMTYPE, linkname="/etc")),
    "a hard link": lambda p: an_archive(p, a_member("x", type=tarfile.LNKTYPE, linkname="/etc/x")),
    "a FIFO": lambda p: an_archive(p, a_member("x", type=tarfile.FIFOTYPE)),
    "a sparse file": a_sparse_archive,
    "a file twice": lambda p: an_archive(p, a_member("x", b"1"), a_member("x", b"2")),
    "no list": lambda p: an_archive(p, a_member("x", b"1")),
    "a list of paths": lambda p: an_archive(
        p, a_member("runs.json", b'{"schema": 3, "runs": {"1-x": "../../victim"}}')
    ),
    "a list that is none": lambda p: an_archive(p, a_member("runs.json", b"[" * 100_000)),
    "a long header": a_long_header,
    "a name with a zero": lambda p: a_described_archive(p, ("path", "a\0b")),
    "a name of colours": lambda p: a_described_archive(p, ("path", "\x1b[2J\u202e" + "b" * 255)),
    "a deep name": lambda p: a_described_archive(p, ("path", "a/" * 1500 + "b")),
    "a size below zero": lambda p: a_described_archive(p, ("size", "-1024")),
    "a map of no numbers": lambda p: a_described_archive(
        p, ("GNU.sparse.map", "x"), ("GNU.sparse.size", "1")
    ),
    "thousands of headers": lambda p: a_described_archive(p, ("comment", "x"), times=20_000),
    "folders without end": lambda p: an_archive(
        p, *(a_member(f"d{number}", type=tarfile.DIRTYPE) for number in range(5000))
    ),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_an_archive_of_something_else_is_refused(tmp_path, kind):
    record, target = tmp_path / "record", tmp_path / "runs"
    (record / "incoming").mkdir(parents=True)
    (record / "hosts").mkdir()
    ARCHIVES[kind](record / "incoming" / "one.tar")
    done = subprocess.run(
        [sys.executable, "-m", "numalab.fleet.receive", str(record), str(target), "one"],
        capture_output=True, text=True, cwd=REPOSITORY, preexec_fn=bounded,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr) < 900
    assert not {one for one in done.stderr if not one.isprintable() and one != "\n"}
    assert list(target.glob("*")) == [] and not (tmp_path / "victim").exists()
    with pytest.raises(Fault):
        receive.accept(record, target, "../one")


@pytest.mark.parametrize("more", [None, ".git/config", "experiment.yml", "raw/0009-x.gz"])
def test_of_a_host_nothing_is_taken_in_that_its_manifest_does_not_name(run, tmp_path, more):
    (run / "samples.parquet").unlink()
    (run / "measurements.parquet").unlink()
    (run / store.SUMS).unlink()
    if more:
        (run / more).parent.mkdir(exist_ok=True)
        (run / more).write_text("[core]\n")
    record, target = tmp_path / "record", tmp_path / "taken"
    (record / "incoming").mkdir(parents=True)
    (record / "hosts").mkdir()
    host = json.loads((run / "manifest.json").read_text())["host"]
    with tarfile.open(record / "incoming" / f"{host}.tar", "w") as archive:
        listed = json.dumps({"schema": 3, "runs": {"1-x": run.name}}).encode()
        archive.addfile(a_member("runs.json", listed)[0], io.BytesIO(listed))
        archive.add(run, run.name)
    if more is None:
        assert receive.accept(record, target, host) == {"1-x": target / host / run.name}
        return
    with pytest.raises(Fault, match="which its manifest does not name"):
        receive.accept(record, target, host)
    assert list(target.glob("*")) == []
