"""The whole way on this machine: measure everything in smoke, check, tamper, render."""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

import waiting
from numalab import check, experiments, runs, store
from numalab.agent.errors import Fault
from numalab.agent.trial import journal
from numalab.analysis import judge

REPOSITORY = Path(__file__).resolve().parent.parent


def _changes_host(name):
    loaded = experiments.load(name)
    return bool(loaded.changes or any(case.changes for case in loaded.cases))


# A service's programs are on few machines; tests/test_service_trial.py and others measure them.
EXPERIMENTS = [
    name
    for name in experiments.names()
    if not _changes_host(name) and experiments.load(name).tool.name != "service"
]
LEFT_OUT = [name for name in experiments.names() if _changes_host(name)]


def _numalab(*arguments, runs_in, **options):
    return subprocess.run(
        [sys.executable, "-m", "numalab.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "NUMALAB_RUNS": str(runs_in), "NO_COLOR": "1"},
        **options,
    )


def _measured(*arguments, runs_in):
    """Run a command that measures, however long it takes, as soon as nobody else measures here."""
    before = set(runs_in.glob("*/*"))
    for attempt in range(9):
        for begun in set(runs_in.glob("*/*")) - before:
            shutil.rmtree(begun)
        time.sleep(5 * attempt)  # whoever measures on this machine: that is theirs to finish
        measuring = subprocess.Popen(
            [sys.executable, "-m", "numalab.cli", *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY,
            env={**os.environ, "NUMALAB_RUNS": str(runs_in), "NO_COLOR": "1"},
            start_new_session=True,
        )  # fmt: skip
        said = waiting.follow(measuring, [runs_in], end=_end)
        if "another numalab measurement" not in said[1]:
            return subprocess.CompletedProcess(arguments, measuring.returncode, *said)
    pytest.skip("another numalab measurement is running on this machine, and does not end")


def _end(measuring):
    if measuring.poll() is None:
        os.killpg(measuring.pid, signal.SIGKILL)
        measuring.wait()


def _tracked_state():
    done = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=no"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    return done.stdout if done.returncode == 0 else None


@pytest.fixture(scope="session")
def measured(tmp_path_factory):
    """The folder of all experiments' smoke runs on this machine, measured once a session."""
    before = _tracked_state()
    folder = tmp_path_factory.mktemp("runs")
    done = _measured(
        "run", "--all", "--profile", "smoke", "--host", "here", "--seed", "7", "--busy",
        runs_in=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert _tracked_state() == before, "a run changed tracked files"
    return folder


def _run(measured, experiment):
    (found,) = (path for path in (measured / "here").iterdir() if path.name.endswith(experiment))
    return found


@pytest.fixture
def copy(measured, tmp_path):
    """Return a function that copies an experiment's run, to be tampered with."""

    def make(experiment="sysbench-cpu"):
        return Path(shutil.copytree(_run(measured, experiment), tmp_path / "copy" / "run"))

    return make


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_leaves_a_complete_run_that_passes_the_check(measured, experiment):
    run = runs.load(_run(measured, experiment))
    assert run.manifest.status == "complete"
    assert (run.folder / "notebook.ipynb").is_file()
    result = check.check(run.folder)
    assert result.faults == []
    assert result.trials == len(run.plan.order) > 0


def test_what_would_change_this_host_is_left_out_without_leave(measured):
    assert LEFT_OUT
    found = [path.name.partition("-")[2] for path in (measured / "here").iterdir()]
    assert not set(found) & set(LEFT_OUT)


def test_what_was_measured_is_there_with_units_and_grades(measured):
    for experiment in EXPERIMENTS:
        run = runs.load(_run(measured, experiment))
        for metric, measure in run.measures.items():
            every = run.tool_rows(metric)
            rows = every.filter(pl.col("value").is_not_null())
            if metric.endswith("_nt") and rows.is_empty():
                continue  # the official STREAM has no such kernels, and not every processor stores
            # Two threads that a loaded machine does not let run at once have no figure, but a row
            # with a grade and the reason.
            prevented = (
                every.height and set(every["reason"]) == {"tool-said"}
                and set(every["grade"]) == {"unverified"}
            )  # fmt: skip
            assert rows.height > 0 or (experiment == "core-to-core" and prevented), (
                f"{experiment} has no {metric}"
            )
            assert set(every["unit"]) == {measure.unit}
            assert set(rows["grade"]) <= {"verified", "unverified"}


def test_a_required_placement_is_verified_with_its_proof(measured):
    run = runs.load(_run(measured, "stream"))
    local = run.measurements.filter(pl.col("binding") == "local")
    assert set(local["grade"]) == {"verified"}
    proofs = list((run.folder / "raw").glob("*local*.proof.json.gz"))
    assert proofs
    recorded = json.loads(gzip.decompress(proofs[0].read_bytes()))
    assert recorded["proofs"][0]["memory"]["anonymous_bytes"] > 0


def test_smoke_judges_no_claim_and_says_why(measured):
    run = runs.load(_run(measured, "stream"))
    ratios = judge.ratios(run.measurements, run.plan, ["triad"])
    assert set(ratios["decision"].drop_nulls()) <= {judge.TOO_FEW, judge.AA}


def test_the_tables_are_derived_again_to_the_letter(measured):
    for experiment in EXPERIMENTS:
        folder = _run(measured, experiment)
        for name, derived in zip(store.FILES, store.derive(runs.load(folder)), strict=True):
            assert pl.read_parquet(folder / name).equals(derived)


def test_one_changed_byte_of_any_file_is_found_and_the_file_named(copy):
    folder = copy()
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        content = path.read_bytes()
        middle = len(content) // 2
        changed = bytes([content[middle] ^ 1])
        path.write_bytes(content[:middle] + changed + content[middle + 1 :])
        faults = check.check(folder).faults
        path.write_bytes(content)
        assert any(path.name in fault for fault in faults), f"{path.name} passed when tampered with"
    assert check.check(folder).faults == []


def test_one_changed_number_is_found_with_its_trial_and_both_values(copy):
    folder = copy()
    path = folder / "measurements.parquet"
    frame = pl.read_parquet(path)
    row = frame.with_row_index().filter(pl.col("metric") == "events_per_second").row(0, named=True)
    changed = pl.when(pl.int_range(pl.len()) == row["index"]).then(pl.col("value") * 1.001)
    frame.with_columns(value=changed.otherwise(pl.col("value"))).write_parquet(path)
    (fault,) = check.check(folder).faults
    assert "measurements.parquet" in fault and f"trial {row['trial']}" in fault
    assert f"{row['value']!r}" in fault


def test_a_raw_file_rewritten_with_its_hash_no_longer_matches_the_journal(copy):
    folder = copy()
    manifest = json.loads((folder / "manifest.json").read_text())
    name = next(name for name in manifest["sha256"] if "stdout" in name)
    text = gzip.decompress((folder / name).read_bytes())
    text = text.replace(b"events per second:", b"events per second: 9")
    manifest["sha256"][name] = journal.write_gzip(folder / name, text)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    store.seal(folder)
    assert any(name in fault for fault in check.check(folder).faults)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "manifest.json").unlink(), "manifest.json"),
        (lambda f: (f / "manifest.json").write_text("{"), "manifest.json"),
        (lambda f: (f / "host.json").unlink(), "host.json"),
        (lambda f: (f / "journal.ndjson").write_text(""), "journal.ndjson"),
        (lambda f: (f / "measurements.parquet").write_bytes(b"PAR1"), "measurements.parquet"),
        (lambda f: (f / "raw" / "stray.gz").write_bytes(b""), "stray.gz"),
        (lambda f: _newer(f), "schema version 99"),
    ],
)
def test_damage_is_named(copy, damage, words):
    folder = copy()
    damage(folder)
    try:
        said = check.check(folder).faults
    except Fault as fault:
        said = [str(fault)]
    assert any(words in line for line in said), said


def _newer(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["schema"] = 99
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_verified_grade_without_its_proof_is_found(copy):
    folder = copy("stream")
    for path in (folder / "raw").glob("*.proof.json.gz"):
        path.unlink()
    assert any("proof" in fault for fault in check.check(folder).faults)


def test_the_command_says_what_check_finds_and_exits_by_it(copy, measured):
    folder = copy()
    good = _numalab("check", folder, runs_in=measured)
    assert good.returncode == 0 and "✓" in good.stdout
    (folder / "host.json").write_text("{}")
    bad = _numalab("check", folder, runs_in=measured)
    assert bad.returncode == 1
    assert "host.json" in bad.stdout and "must not be published" in bad.stdout


def test_the_article_is_one_readable_page(measured, tmp_path):
    done = _numalab("report", "--engine", "nbconvert", "--out", tmp_path / "r", runs_in=measured)
    assert done.returncode == 0, done.stderr
    assert "nbconvert" in done.stdout
    page = (tmp_path / "r" / "_manuscript" / "index.html").read_text()
    for experiment in EXPERIMENTS:
        assert f"here-{experiment}.html" in page
    text = re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)
    assert "Figure 1." in text and "Table 1." in text
    assert not re.search(r"@(fig|tbl|sec)-", text), "a cross-reference was left as it is written"
    assert "Traceback" not in text and "{{<" not in text
    triad = runs.load(_run(measured, "stream")).tool_rows("triad").filter(
        pl.col("cell") == "local:0"
    )["value"].mean()  # fmt: skip
    assert f"{triad:.3g}"[:3] in text, "the article does not show this host's own figure"


def test_two_runs_compare(measured):
    stream = _run(measured, "stream")
    done = _numalab("compare", stream, stream, runs_in=measured)
    assert done.returncode == 0, done.stderr
    assert "triad" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "steam"], "did you mean stream"),
        (["run", "stream", "--profile", "slow"], "smoke, quick, full"),
        (["run", "stream", "-b", "remte"], "remte"),
        (["run", "stream", "-b", "local:99"], "99"),
        (["run", "stream", "--set", "arry=1"], "arry"),
        (["run", "command", "--", "no-such-program"], "no-such-program"),
        (["run", "stream", "--tool", "mlc"], "mlc"),
        (["run"], "name one experiment"),
        (["check", "no/such/run"], "no/such/run"),
        (["parse", "lscpu", "no-such-file"], "no-such-file"),
        (["parse", "no-such-tool", "README.md"], "no-such-tool"),
        (["parse", "stream", "README.md"], "stream"),
        (["host", "--root", "no-such-folder"], "no-such-folder"),
        (["report", "--engine", "latex"], "latex"),
        (["import", "README.md", "--host", "x"], "README.md"),
    ],
)
def test_bad_input_gets_one_clear_message_and_a_status(arguments, words, tmp_path):
    done = _numalab(*arguments, runs_in=tmp_path)
    assert done.returncode not in (0, None)
    assert words in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 12
    assert list(tmp_path.iterdir()) == [], "something was left behind"


def test_a_users_own_experiment_file_is_kept_with_its_run_as_data(tmp_path):
    own = tmp_path / "mine.yml"
    own.write_text((REPOSITORY / "experiments" / "command.yml").read_text() + "\n# mine\n")
    done = _measured(
        "run", own, "-p", "smoke", "-b", "local", "--host", "here", "--no-notebook", "--json",
        "--busy", "--", "sleep", "0.2", runs_in=tmp_path / "runs",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs" / "here").iterdir()
    assert folder.name.endswith("-mine")
    assert (folder / store.EXPERIMENT).read_text() == own.read_text()
    run = runs.load(folder)
    assert run.own_experiment and run.notebook is None and run.experiment.name == "mine"
    assert check.check(folder).faults == []
    own.unlink()
    resume = ("run", "--resume", folder, "--no-notebook", "--busy")
    again = _measured(*resume, runs_in=tmp_path / "runs")
    assert again.returncode == 0, again.stderr


def test_a_run_whose_baseline_always_failed_does_not_pass_for_a_result(tmp_path):
    done = _measured(
        "run", "command", "-p", "smoke", "--no-notebook", "--busy", "--", "sh", "-c",
        "echo it is broken >&2; exit 1", runs_in=tmp_path / "runs",
    )  # fmt: skip
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "failed" in done.stderr and "it is broken" in done.stderr


def test_a_refused_run_leaves_nothing_and_says_what_to_do(tmp_path):
    """On whatever machine: a process that is called like a database server is enough."""
    name = "import time, pathlib; pathlib.Path('/proc/self/comm').write_text('mysqld'); "
    starter = "import os, sys, subprocess\nif os.fork() == 0:\n os.setsid()\n child = "
    starter += "subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=1)\n"
    starter += " child.wait()\n"
    program = name + "import os; print(os.getpid(), flush=True); time.sleep(600)"
    started = subprocess.Popen(
        [sys.executable, "-c", starter, program], stdout=subprocess.PIPE, text=True
    )
    pid = int(started.stdout.readline())
    started.wait()
    try:
        done = _measured("run", "command", "-p", "smoke", "--", "true", runs_in=tmp_path / "runs")
    finally:
        os.kill(pid, 9)
    assert done.returncode == 2 and "nothing is measured: " in done.stderr
    assert "a database server runs on this host: " in done.stderr and "mysqld" in done.stderr
    assert "--busy" in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*/*"))


@pytest.mark.parametrize("word", ["own program", "own interpreter"])
def test_a_run_of_ones_own_program_holds_on_another_machine(tmp_path, monkeypatch, word):
    """Where the home folder and Python lie is of no account there, and of no interest."""
    home = tmp_path / "alice"
    home.mkdir()
    (home / "data").write_text("words")
    program = home / "program"
    program.write_text('#!/bin/sh\nexec cat "$1" "$OF"\n')
    program.chmod(0o755)
    argv = [program, home / "data"] if word == "own program" else [sys.executable, "-c", "pass"]
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("OF", str(home / "data"))
    done = _measured(
        "run", "command", "-p", "smoke", "-b", "unbound", "--blocks", "1", "--busy",
        "--no-collectors", "--no-notebook", "--", *argv, runs_in=tmp_path / "runs",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").glob("*/*-command")
    assert {trial.exit_status for trial in runs.load(folder).trials} == {0}
    monkeypatch.setenv("HOME", str(tmp_path / "bob"))
    monkeypatch.setattr(sys, "executable", "/elsewhere/python3")
    assert check.check(folder).faults == []
    assert not [path for path in folder.rglob("*.*json") if str(home).encode() in path.read_bytes()]


def test_a_run_that_is_given_up_is_not_to_be_completed(tmp_path):
    done = _measured(
        "run", "command", "-p", "smoke", "--busy", "--no-notebook", "--", "false",
        runs_in=tmp_path / "runs",
    )  # fmt: skip
    assert done.returncode == 2 and "given up after" in done.stderr
    assert "measure again into a new directory" in done.stderr
    assert "--resume" not in done.stderr and ".." not in done.stderr
