"""One emulated host of two nodes: what it is, what is proven in it, and what a kill does to it."""

import gzip
import json
import os
import re
import signal
import subprocess
import time

import watching


def test_a_session_ends_its_own_guests_only():
    marks = ["NUMALAB_TESTS=one", "NUMALAB_TESTS=two"]
    words = ["qemu-system-pretended", "60"]
    own, other = (
        subprocess.Popen(words, executable="/bin/sleep", env=dict([mark.split("=")]))
        for mark in marks
    )
    try:
        watching.wait_for(lambda: list(watching.qemus(marks[0])) == [own.pid])
        watching.kill_qemus(marks[0])
        assert own.wait() == -signal.SIGKILL
        assert list(watching.qemus(marks[1])) == [other.pid] and other.poll() is None
    finally:
        other.kill()
        own.kill()
        other.wait()


def test_a_guest_is_its_definition(numalab, guest):
    """Topology as numactl and lscpu see it, the servers, and a clock that is right."""
    distances = numalab("lab", "ssh", guest, "--", "numactl", "--hardware")
    assert re.search(r"^available: 2 nodes \(0-1\)$", distances, re.M)
    assert re.search(r"^ +0: +10 +21 *\n +1: +21 +10 *$", distances, re.M)
    cpus = numalab("lab", "ssh", guest, "--", "lscpu")
    for said in (
        r"^CPU\(s\): +8$",
        r"^Socket\(s\): +2$",
        r"^Thread\(s\) per core: +2$",
        "E5-2682 v4",
    ):
        assert re.search(said, cpus, re.M), said
    for server in ("mysqld", "mariadbd"):
        assert "Ver" in numalab("lab", "ssh", guest, "--", server, "--version")
    clock = float(numalab("lab", "ssh", guest, "--", "date", "+%s.%N"))
    assert abs(clock - time.time()) < 10


def test_a_server_is_proven_under_every_kind_of_binding(numalab, guest):
    """A private MySQL server per trial: its pages and its threads are where they must be."""
    numalab(
        "run", "mysql-binding", "--hosts", guest, "-p", "smoke", "--busy", "-b", "local:0", "-b",
        "remote:0-1", "-b", "interleave:0", "--no-collectors", "--no-notebook",
    )  # fmt: skip
    folder = numalab.run_of(guest, "mysql-binding")
    trials = {trial["cell"]: trial for trial in numalab.trials(folder)}
    assert set(trials) == {"local:0", "local:0/control", "remote:0-1", "interleave:0"}
    assert {trial["grade"] for trial in trials.values()} == {"verified"}
    assert all(trial["tool"]["version"].startswith("MySQL 9") for trial in trials.values())
    shares = {cell: _shares(folder, trial) for cell, trial in trials.items()}
    assert shares["local:0"]["0"] > 0.98 and shares["remote:0-1"]["1"] > 0.98
    assert all(0.4 < share < 0.6 for share in shares["interleave:0"].values())


def _shares(folder, trial):
    """The shares of a trial's pages by node, as its last proof saw them."""
    with gzip.open(folder / trial["raw"]["proof"]) as file:
        return json.load(file)["proofs"][-1]["memory"]["shares"]


def test_a_run_whose_host_is_killed_completes_on_the_second_try(numalab, guest):
    """A fleet of one host: QEMU dies in the middle; booted again, the same run goes on."""
    run = (
        "run", "command", "--hosts", guest, "-p", "smoke", "--busy", "-b", "local", "--blocks", "4",
        "--no-collectors", "--", "sleep", "2",
    )  # fmt: skip
    numalab("lab", "ssh", guest, "--", "echo kept >/root/kept && sync /root/kept")
    before = numalab.guest(guest)
    child = subprocess.Popen(
        numalab.command(*run), cwd=numalab.checkout, env=numalab.environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        status = watching.wait_for(lambda: numalab.measuring(guest), child)
        os.kill(before["pid"], signal.SIGKILL)
        code, said = watching.follow(child, numalab.watched)
    finally:
        watching.end(child)
    assert code == 2, said
    assert f"1 of 1 hosts failed: {guest}" in said
    assert not list((numalab.checkout / "runs" / guest).glob("*-command"))
    assert f"{guest}  not running: its QEMU is gone" in numalab("lab", "status")

    numalab("lab", "up", guest)
    after = numalab.guest(guest)
    assert after["port"] == before["port"] and after["pid"] != before["pid"]
    assert numalab("lab", "ssh", guest, "--", "cat", "/root/kept") == "kept\n"
    numalab(*run)
    folder = numalab.run_of(guest, "command")
    assert folder.name == status["jobs"][0]["run"], "the run was begun anew"
    trials = numalab.trials(folder)
    assert [trial["trial"] for trial in trials] == list(range(1, 13))
    numalab("check", str(folder))
    assert (folder / "notebook.ipynb").is_file()
