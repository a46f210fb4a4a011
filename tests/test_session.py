"""A session at a terminal in odd circumstances: killed, unheard, in ASCII, below strange names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import frames
from numalab import check, experiments, launch, runs, session
from numalab.agent.errors import Fault
from numalab.agent.paths import published
from numalab.agent.plan import make
from numalab.agent.trial import journal
from numalab.analysis import judge
from numalab.pages import execute
from topologies import topology

REPOSITORY = Path(__file__).resolve().parent.parent
# Says that it measures until it is stopped, and leaves a file where it was stopped in order.
AGENT = r"""
import json, os, signal, sys, time
given = dict(zip(sys.argv[2:], sys.argv[3:]))
folder = given["--out"]
assert json.load(open(given["--plan"]))["schema"]
os.makedirs(folder)
open(folder + "/manifest.json", "w").write("{}")
def stop(*_):
    open(folder + "/in-order", "w").close()
    os._exit(130)
signal.signal(signal.SIGINT, stop)
def say(**event):
    try:
        print(json.dumps(event), flush=True)
    except BrokenPipeError:
        stop()
say(event="plan", trials=9, done=0, left_s=1)
for block in range(100_000):
    say(event="trial", trial=1, of=9, block=block, label="local", grade="verified", reason=None,
        headline=None, left_s=1)
    time.sleep(0.01)
"""
SESSION = """
import sys
from numalab import cli, launch
launch.AGENT = (sys.executable, sys.argv.pop(1))
cli.main()
"""


def _started(tmp_path, **options):
    """Start a session whose agent only pretends to measure."""
    agent = tmp_path / "agent.py"
    agent.write_text(AGENT)
    words = ["run", "command", "--host", "here", "--no-notebook", "--busy", "-p", "smoke"]
    return subprocess.Popen(
        [sys.executable, "-c", SESSION, str(agent), *words, "--", "true"],
        env={**os.environ, "NUMALAB_RUNS": str(tmp_path / "runs")}, cwd=REPOSITORY, text=True,
        stdout=subprocess.PIPE, **options,
    )  # fmt: skip


def _until_a_block(session) -> None:
    assert any("block 3" in line for line in session.stdout), session.wait()


def test_a_killed_session_leaves_nothing_beside_its_run(tmp_path):
    session = _started(tmp_path)
    _until_a_block(session)
    session.kill()
    session.wait()
    (run,) = (tmp_path / "runs" / "here").iterdir()
    while not (run / "in-order").exists():  # the agent hears nobody any more
        time.sleep(0.01)
    assert sorted(path.name for path in run.iterdir()) == ["in-order", "manifest.json"]


def test_whoever_reads_the_head_alone_is_told_how_to_go_on(tmp_path):
    session = _started(tmp_path, stderr=subprocess.PIPE)
    _until_a_block(session)
    session.stdout.close()
    said = session.stderr.read()
    (run,) = (tmp_path / "runs" / "here").iterdir()
    assert session.wait() == 2 and (run / "in-order").exists()
    assert f"complete it with: numalab run --resume {run} --busy" in said
    assert "nobody reads" in said and "Traceback" not in said and "Exception ignored" not in said


def test_interrupted_it_stops_the_agent_in_order(tmp_path):
    session = _started(tmp_path, stderr=subprocess.PIPE, start_new_session=True)
    _until_a_block(session)
    session.send_signal(signal.SIGINT)
    session.stdout.read()
    assert "complete it with" in session.stderr.read() and session.wait() == 130
    (run,) = (tmp_path / "runs" / "here").iterdir()
    assert (run / "in-order").exists()


@pytest.mark.parametrize("budget", [None, 600.0])
def test_too_many_blocks_are_refused_at_once(budget):
    asked = experiments.load("stream").request("quick", "here", blocks=10**9, budget_s=budget)
    with pytest.raises(Fault, match="blocks is 1,000,000,000: a run has at most 16,000 trials"):
        make.make(asked, topology())


# --- kernels --------------------------------------------------------------------------------------


def test_a_kernel_that_does_not_start_is_a_fault_in_words(monkeypatch, tmp_path):
    import papermill

    given = {}

    def slow(*_, **options):
        given.update(options)
        raise RuntimeError("Kernel didn't respond in 60 seconds")

    monkeypatch.setattr(papermill, "execute_notebook", slow)
    with pytest.raises(Fault, match=r"run.ipynb: its Jupyter kernel did not start.*60 seconds"):
        execute.run_notebook(execute.GENERIC, tmp_path / "out.ipynb", {"source": "x"})
    assert given["start_timeout"] >= 600  # seconds: on a machine with a load of 20


def test_a_kernel_says_nothing_of_how_it_is_ended(tmp_path, capfd):
    """Jupyter interrupts a kernel before it ends it, and ipykernel calls that an error."""
    import nbformat

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(
        "from IPython import get_ipython\n"
        "get_ipython().kernel.log.error('KeyboardInterrupt caught in kernel')"
    )])  # fmt: skip
    nbformat.write(book, tmp_path / "in.ipynb")
    execute.run_notebook(tmp_path / "in.ipynb", tmp_path / "out.ipynb", {})
    assert "KeyboardInterrupt" not in capfd.readouterr().err


# --- terminals and names --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "terminal",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LANG": "C", "COLUMNS": "40", "TERM": "dumb"},
    ],
)
def test_every_terminal_will_do(tmp_path, terminal):
    folder = frames.sysbench_run(tmp_path / "runs" / "here" / "20261120T220511Z-sysbench-cpu")
    for words in (["check", folder], ["list", "--runs"], ["plan", "command", "--", "true"]):
        done = subprocess.run(
            [sys.executable, "-m", "numalab.cli", *map(str, words)], capture_output=True,
            env={**os.environ, "NUMALAB_RUNS": str(tmp_path / "runs"), **terminal}, cwd=REPOSITORY,
        )  # fmt: skip
        assert done.returncode == 0 and done.stdout and b"Traceback" not in done.stderr, done


STRANGE = os.fsdecode(b"r\xff\xe9")


def test_a_run_below_a_name_that_is_no_utf8_is_checked_like_any_other(tmp_path):
    folder = frames.sysbench_run(tmp_path / STRANGE / "here" / "20261120T220511Z-sysbench-cpu")
    assert check.check(folder).faults == []
    launch._remember(tmp_path / "memo", folder)  # and can be begun there
    for words in (["check", folder], ["check", "--json", folder], ["list", "--runs"]):
        done = subprocess.run(
            [sys.executable, "-m", "numalab.cli", *map(os.fspath, words)], capture_output=True,
            env={**os.environ, "NUMALAB_RUNS": os.fspath(tmp_path / STRANGE)}, cwd=REPOSITORY,
        )  # fmt: skip
        assert done.returncode == 0 and rb"r\udcff\udce9" in done.stdout, done


def test_what_no_file_of_a_run_can_hold_is_refused_before_it_is_measured(tmp_path):
    asked = experiments.load("command").request("smoke", "x", options={"argv": ["true", STRANGE]})
    with pytest.raises(Fault, match="is no UTF-8 text"):
        make.make(asked, topology())
    assert published(f"/opt/{STRANGE}/tool") == "/opt/r??/tool"
    journal.write_json(tmp_path / "record.json", {"schema": 3, "copy": STRANGE})  # of this host
    assert journal.read_json(tmp_path / "record.json")["copy"] == STRANGE


def test_a_line_that_ctrl_c_took_the_head_of_is_passed_over():
    for rest in ("\n", 'ial": 4}\n', "4\n", '"x"\n'):
        agent = SimpleNamespace(stdout=[rest, '{"event": "end"}\n'])
        assert list(launch._events(agent, torn=True)) == [{"event": "end"}]
        with pytest.raises(Fault, match="no progress event"):
            list(launch._events(agent, torn=False))
    late = SimpleNamespace(stdout=['{"event": "end"}\n', "4\n"])
    with pytest.raises(Fault, match="no progress event"):
        list(launch._events(late, torn=True))


def test_a_resumed_run_has_spent_what_its_trials_took_before(tmp_path, monkeypatch):
    folder = frames.sysbench_run(
        tmp_path / "runs" / "here" / "20261120T220511Z-sysbench-cpu", "here"
    )
    made = runs.load(folder).plan
    asked = replace(made.request, until=0.03, budget_s=1.0)  # its trials took 4.5 s each
    monkeypatch.setattr(judge, "undecided", lambda run, within: (1, ["local 0: events"]))
    said: list[str] = []
    enough = session._enough(replace(made, request=asked), folder, SimpleNamespace(say=said.append))
    assert enough() and said[-1] == "  the budget is spent"
    asked = replace(asked, budget_s=600.0)
    enough = session._enough(replace(made, request=asked), folder, SimpleNamespace(say=said.append))
    assert not enough()
