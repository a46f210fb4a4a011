"""The whole lab: image, guest, every experiment in it, its article, and nothing left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import lab_processes

HOST = "test-one"


def status(numalab, name=HOST):
    """What numalab lab status says of one guest, None where there is none."""
    guests = json.loads(numalab("lab", "status", "--json"))
    return next((guest for guest in guests if guest["name"] == name), None)


def test_a_guest_is_its_definition_and_survives_what_kills_it(numalab, checkout):
    """Topology as numactl, lscpu and numalab see it; then QEMU is killed, and it boots again."""
    numalab("lab", "down", HOST)  # of another test
    numalab("lab", "up", HOST)
    distances = numalab("lab", "ssh", HOST, "--", "numactl", "--hardware")
    assert re.search(r"^available: 2 nodes \(0-1\)$", distances, re.M)
    assert re.search(r"^ +0: +10 +21 *\n +1: +21 +10 *$", distances, re.M)
    cpus = numalab("lab", "ssh", HOST, "--", "lscpu")
    for said in (
        r"^CPU\(s\): +8$",
        r"^Socket\(s\): +2$",
        r"^Thread\(s\) per core: +2$",
        "E5-2682 v4",
    ):
        assert re.search(said, cpus, re.M), said
    for server in ("mysqld", "mariadbd"):
        assert "Ver" in numalab("lab", "ssh", HOST, "--", server, "--version")
    clock = float(numalab("lab", "ssh", HOST, "--", "date", "+%s.%N"))
    assert abs(clock - time.time()) < 10

    numalab("lab", "ssh", HOST, "--", "echo kept >/root/kept && sync /root/kept")
    before = status(numalab)
    os.kill(before["pid"], signal.SIGKILL)
    while status(numalab)["pid"] is not None:
        time.sleep(0.1)
    assert f"{HOST}  not running: its QEMU is gone" in numalab("lab", "status")
    numalab("lab", "up", HOST)
    after = status(numalab)
    assert after["port"] == before["port"] and after["pid"] != before["pid"]
    assert numalab("lab", "ssh", HOST, "--", "cat", "/root/kept") == "kept\n"
    numalab("lab", "down", HOST)
    assert lab_processes.qemus() == []


def test_everything_is_measured_in_a_guest_and_becomes_an_article(numalab, checkout):
    """What a newcomer types first; at the end the guest is gone."""
    numalab("lab", "run", HOST, "--profile", "smoke", seconds=1500)
    assert lab_processes.qemus() == [] and status(numalab) is None
    inventory = checkout / "build" / "lab" / "inventory.yml"
    assert not inventory.exists() or HOST not in inventory.read_text()

    manifests = {}
    for path in (checkout / "runs" / HOST).glob("*/manifest.json"):
        manifest = json.loads(path.read_text())
        manifests[manifest["experiment"]] = manifest
        record = json.loads((path.parent / "host.json").read_text())
        assert record["emulated"] and "numalab's lab" in record["emulated_why"]
        assert [node["cpus"] for node in record["topology"]["nodes"]] == ["0-3", "4-7"]
    smoke = {
        path.stem
        for path in (checkout / "experiments").glob("*.yml")
        if re.search(r"^  smoke:", path.read_text(), re.M)
    }
    assert set(manifests) == smoke
    assert {manifest["status"] for manifest in manifests.values()} == {"complete"}
    # A private MySQL server under every binding, each proven on two nodes.
    for manifest in (manifests[name] for name in smoke if name.startswith("mysql-")):
        journal = checkout / "runs" / HOST / manifest["run"] / "journal.ndjson"
        records = [json.loads(line) for line in journal.open()]
        assert len(records) >= 3
        assert {record["grade"] for record in records} == {"verified"}, manifest["run"]
        assert all(record["tool"]["version"].startswith("MySQL 9") for record in records)
    numalab("check", "--all")

    (article,) = (checkout / "build" / "report").rglob("index.html")
    text = " ".join(re.sub(r"<[^>]*>", " ", article.read_text()).split())
    assert f"{HOST} (emulated)" in text
    for node in (r"\b0 0-3 [\d. ]+ 10 21\b", r"\b1 4-7 [\d. ]+ 21 10\b"):  # rows of its nodes
        assert re.search(node, text), node


def test_an_interrupted_boot_leaves_no_process(numalab, checkout):
    child = subprocess.Popen(
        [sys.executable, "-m", "numalab.cli", "lab", "up", "test-two"],
        cwd=checkout, env=numalab.environment,
    )  # fmt: skip
    while not lab_processes.qemus():
        assert child.poll() is None
        time.sleep(0.1)
    time.sleep(2)
    child.send_signal(signal.SIGINT)
    assert child.wait(30) == 130
    assert lab_processes.qemus() == [] and status(numalab, "test-two") is None
