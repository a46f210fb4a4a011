"""A fleet of two guests, one of which is killed in the middle: the second try completes it."""

import json
import os
import signal
import subprocess
import sys
import time

_RUN = (
    "run", "command", "--hosts", "test-one:test-two", "-p", "smoke", "-b", "local", "--blocks", "4",
    "--no-collectors", "--", "sleep", "1",
)  # fmt: skip


def _status(numalab, host):
    """What the host's own status file says, None before there is one."""
    said = numalab("lab", "ssh", host, "--", f"cat ~/.numalab/{host}/*/status.json || true")
    return json.loads(said) if said else None


def test_a_fleet_of_which_a_host_is_killed_completes_on_the_second_try(numalab, checkout):
    numalab("lab", "up", "test-one", "test-two")
    first = subprocess.Popen(
        [sys.executable, "-m", "numalab.cli", *_RUN],
        cwd=checkout, env=numalab.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    while not (status := _status(numalab, "test-two")) or not status["jobs"][0]["last"]:
        assert first.poll() is None and time.monotonic() < deadline, status
        time.sleep(1)
    (pid,) = (
        guest["pid"]
        for guest in json.loads(numalab("lab", "status", "--json"))
        if guest["name"] == "test-two"
    )
    os.kill(pid, signal.SIGKILL)
    said, _ = first.communicate(timeout=600)
    assert first.returncode == 2, said
    assert "1 of 2 hosts failed: test-two" in said
    (one,) = (checkout / "runs" / "test-one").glob("*-command")
    assert not (checkout / "runs" / "test-two").exists()

    numalab("lab", "up", "test-two")
    numalab(*_RUN)
    assert list((checkout / "runs" / "test-one").glob("*-command")) == [one], "measured again"
    (two,) = (checkout / "runs" / "test-two").glob("*-command")
    assert two.name == status["jobs"][0]["run"], "the run was begun anew"
    trials = [json.loads(line)["trial"] for line in (two / "journal.ndjson").open()]
    assert trials == list(range(1, 13))
    numalab("check", str(one), str(two))
    numalab("lab", "down", "test-two")
    for folder in (one, two):
        assert (folder / "notebook.ipynb").is_file()
