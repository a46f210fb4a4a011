"""The command line: what it refuses, with words that say what to do instead."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import frames
import sysfs_tree
from numalab import check, cli, home, store
from numalab.agent.errors import Fault
from numalab.agent.trial import journal


def told(*words: str) -> str:
    """Return what a command that must be refused says."""
    fault = CliRunner().invoke(cli.app, list(words)).exception
    assert isinstance(fault, Fault), fault
    return str(fault)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """A small run of a host called here."""
    monkeypatch.setenv("NUMALAB_RUNS", str(tmp_path / "runs"))
    return frames.sysbench_run(home.runs() / "here" / "20261120T220511Z-sysbench-cpu")


# --- check ----------------------------------------------------------------------------------------


def test_a_folder_of_runs_is_no_bad_run(run):
    host = run.parent
    assert told("check", str(host)) == (
        f"{host} is not a run directory; it holds 1 run. name them: {host}/*"
    )
    frames.sysbench_run(host / "20261121T220511Z-sysbench-cpu")
    assert f"it holds 2 runs. name them: {host}/*" in told("check", "--all", str(host))
    assert f"it holds 2 runs. name them: {host.parent}/*/*" in told("check", str(host.parent))
    assert "it holds 2 runs" in told("check", "--rebuild", str(run), str(host))


def test_a_folder_of_runs_is_nothing_to_compare(run):
    assert f"{run.parent} is not a run directory; it holds 1 run" in told(
        "compare", str(run.parent), str(run)
    )
    assert "here is a host: name one of its runs" in told("compare", "here", str(run))
    assert "is a host" not in told("compare", "nowhere", str(run))


@pytest.mark.parametrize("status", ["running", "stopped"])
def test_the_check_of_an_unfinished_run_says_how_to_complete_it(run, status):
    manifest = json.loads((run / "manifest.json").read_text())
    order = manifest["plan"]["order"]
    for name in (store.SUMS, *store.FILES):
        (run / name).unlink()
    (run / "current.json").write_text("{}")
    manifest |= {"status": status, "ended": None, "sha256": {}}
    journal.write_json(run / "manifest.json", manifest)
    found = check.check(run)
    assert found.faults == [
        f"{run} is unfinished ({len(order)} of {len(order)} trials). "
        f"complete it: numalab run --resume {run}"
    ]
    (run / "journal.ndjson").unlink()
    assert f"unfinished (0 of {len(order)} trials)" in check.check(run).faults[0]


def test_a_run_without_tables_is_told_how_to_make_them(run):
    for name in (store.SUMS, *store.FILES):
        (run / name).unlink()
    (fault,) = check.check(run).faults
    assert f"{store.SUMS} is missing" in fault and f"numalab check --rebuild {run}" in fault
    assert CliRunner().invoke(cli.app, ["check", "--rebuild", str(run)]).exit_code == 0


# --- plan and run ---------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_name_that_is_no_folder_is_refused_at_once(command):
    assert "'../x' cannot name a host" in told(command, "stream", "--host", "../x")


def test_the_plan_of_nothing_ends_as_its_run_would(tmp_path):
    root = str(
        sysfs_tree.write(
            tmp_path, sysfs_tree.grid("one", packages=1, nodes_per_package=1, cores_per_node=2)
        )
    )
    asked = ["plan", "latency", "--root", root, "-b"]
    assert CliRunner().invoke(cli.app, [*asked, "local"]).exit_code == 0
    nothing = CliRunner().invoke(cli.app, [*asked, "remote"])
    assert nothing.exit_code == 2 and "this host has one node" in nothing.output
    assert CliRunner().invoke(cli.app, [*asked, "remote", "--json"]).exit_code == 2


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--blocks", "3", "-p", "full"], "--resume cannot be used with --profile, --blocks"),
        (["-p", "quick"], "--resume cannot be used with --profile"),
        (["--tool", "probe", "-b", "local"], "--resume cannot be used with --binding, --tool"),
        (["--no-collectors"], "--resume cannot be used with --collectors/--no-collectors"),
        (["--", "sleep", "1"], "a resumed run takes no program"),
        (["stream"], "a resumed run takes no program and no experiment's name"),
    ],
)
def test_what_says_nothing_to_a_resumed_run_is_refused(run, words, named):
    assert named in told("run", "--resume", str(run), *words)


def test_a_resumed_run_takes_what_is_of_the_session(run, monkeypatch):
    given = []
    monkeypatch.setattr("numalab.session.resume", lambda *words: given.append(words))
    words = ["--busy", "--no-notebook", "--begun-elsewhere", "--set", "service=valkey", "--json"]
    done = CliRunner().invoke(cli.app, ["run", "--resume", str(run), *words])
    assert done.exit_code == 0 and given[0][0] == run and given[0][3] == "valkey"
