"""What needs long: every experiment in a guest, a fleet of two, a server caught, a boot cut short.

Not in `make test-lab`, but in `make test-lab-all`.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest
import watching

pytestmark = pytest.mark.long

ONE, TWO = "test-one", "test-two"


def test_everything_is_measured_in_a_guest_and_becomes_an_article(numalab, checkout):
    """What a newcomer types first; at the end the guest is gone."""
    numalab("lab", "down", ONE)  # of another test
    shutil.rmtree(checkout / "runs", ignore_errors=True)
    numalab("lab", "run", ONE, "--profile", "smoke")
    assert watching.qemus() == {} and numalab.guest(ONE) is None
    inventory = checkout / "build" / "lab" / "inventory.yml"
    assert not inventory.exists() or ONE not in inventory.read_text()

    manifests = {}
    for path in (checkout / "runs" / ONE).glob("*/manifest.json"):
        manifest = json.loads(path.read_text())
        manifests[manifest["experiment"]] = manifest
        record = json.loads((path.parent / "host.json").read_text())
        assert record["emulated"] and manifest["evidence"] == "counted"
        assert [node["cpus"] for node in record["topology"]["nodes"]] == ["0-3", "4-7"]
    smoke = {
        path.stem
        for path in (checkout / "experiments").glob("*.yml")
        if re.search(r"^  smoke:", path.read_text(), re.M)
        and "name: service" not in path.read_text()  # their programs are in no small guest
    }
    assert set(manifests) == smoke
    assert {manifest["status"] for manifest in manifests.values()} == {"complete"}
    # A private MySQL server under every binding, each proven on two nodes.
    for manifest in (manifests[name] for name in smoke if name.startswith("mysql-")):
        trials = numalab.trials(checkout / "runs" / ONE / manifest["run"])
        assert len(trials) >= 3
        assert {trial["grade"] for trial in trials} == {"verified"}, manifest["run"]
        assert all(trial["tool"]["version"].startswith("MySQL 9") for trial in trials)
    numalab("check", "--all")

    (article,) = (checkout / "build" / "report").rglob("index.html")
    text = " ".join(re.sub(r"<[^>]*>", " ", article.read_text()).split())
    assert "Emulated host: its timings carry no NUMA meaning" in text
    shape = r"2 4 8 2 [\d.]+ 10, 21"  # sockets, cores, threads, nodes, memory, distances
    assert re.search(rf"{ONE} \(counted\) [^|]{{,80}} {shape} ", text)


def test_a_pool_that_innodb_interleaves_against_its_binding_is_caught(numalab, checkout):
    """MySQL 8.4 and newer do so by default, whatever numactl was told."""
    shutil.rmtree(checkout / "runs", ignore_errors=True)
    numalab("lab", "up", ONE)
    numalab(
        "run", "mysql-binding", "--hosts", ONE, "-p", "smoke", "--busy", "-b", "local:0",
        "--set", "innodb_numa_interleave=ON", "--no-collectors", "--no-notebook", status=2,
    )  # fmt: skip
    trials = numalab.trials(numalab.run_of(ONE, "mysql-binding"))
    assert len(trials) == 2 and {trial["grade"] for trial in trials} == {"error"}
    for trial in trials:
        assert "MySQL 9" in trial["tool"]["version"]
        assert trial["reason"]["code"] == "memory-outside"
        assert trial["reason"]["fields"]["node"] == 1


def test_a_fleet_of_which_a_host_is_killed_completes_on_the_second_try(numalab, checkout):
    run = (
        "run", "command", "--hosts", f"{ONE}:{TWO}", "-p", "smoke", "-b", "local",
        "--blocks", "4", "--busy", "--no-collectors", "--", "sleep", "1",
    )  # fmt: skip
    numalab("lab", "up", ONE, TWO)
    first = subprocess.Popen(
        numalab.command(*run), cwd=checkout, env=numalab.environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        status = watching.wait_for(lambda: numalab.measuring(TWO), first)
        os.kill(numalab.guest(TWO)["pid"], signal.SIGKILL)
        code, said = watching.follow(first, numalab.watched)
    finally:
        watching.end(first)
    assert code == 2, said
    assert f"1 of 2 hosts failed: {TWO}" in said
    one = numalab.run_of(ONE, "command")
    assert not (checkout / "runs" / TWO).exists()

    numalab("lab", "up", TWO)
    numalab(*run)
    assert numalab.run_of(ONE, "command") == one, "measured again"
    two = numalab.run_of(TWO, "command")
    assert two.name == status["jobs"][0]["run"], "the run was begun anew"
    assert [trial["trial"] for trial in numalab.trials(two)] == list(range(1, 13))
    numalab("check", str(one), str(two))
    numalab("lab", "down", TWO)
    for folder in (one, two):
        assert (folder / "notebook.ipynb").is_file()


def test_an_interrupted_boot_leaves_no_process(numalab, checkout):
    numalab("lab", "down", ONE, TWO)
    child = subprocess.Popen(
        numalab.command("lab", "up", TWO), cwd=checkout, env=numalab.environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        watching.wait_for(watching.qemus, child)
        time.sleep(2)
        child.send_signal(signal.SIGINT)
        code, _ = watching.follow(child, numalab.watched)
    finally:
        watching.end(child)
    assert code == 130
    assert watching.qemus() == {} and numalab.guest(TWO) is None
