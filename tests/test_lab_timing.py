"""The memory model of emulated hosts: its own tests in C, its configuration, its counters."""

from __future__ import annotations

import os
import platform
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

import sysfs_tree
import topologies
from numalab import experiments
from numalab.agent.collectors import memory_model
from numalab.agent.contract import ToolRecord
from numalab.agent.drivers.probe import Probe
from numalab.agent.host import topology
from numalab.agent.plan import make
from numalab.lab import hosts, qemu, timing_build
from numalab.lab.timing import Timing

SOURCE = Path(__file__).resolve().parent.parent / "lab" / "timing"
MODEL = [SOURCE / f"{name}.c" for name in timing_build._SOURCES if name != "plugin"]
CC = shutil.which("cc") or shutil.which("gcc")
needs_cc = pytest.mark.skipif(CC is None, reason="no C compiler here")


@needs_cc
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_the_model_gives_known_answers_under_the_sanitizers(tmp_path, sanitizers):
    program = tmp_path / "test"
    command = [
        CC,
        "-g",
        "-O1",
        f"-fsanitize={sanitizers}",
        "-o",
        program,
        SOURCE / "test.c",
        *MODEL,
    ]
    made = subprocess.run([*command, "-lpthread", "-ldl"], capture_output=True, text=True)
    if "cannot find" in made.stderr and "san" in made.stderr:
        pytest.skip(f"this compiler has no -fsanitize={sanitizers}")
    assert made.returncode == 0, made.stderr
    done = subprocess.run([program], capture_output=True, text=True)
    if "unexpected memory mapping" in done.stderr:  # of kernels with much address randomisation
        pytest.skip("the thread sanitizer does not run under this kernel's address layout")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "all checks hold\n"


@needs_cc
def test_the_plugin_compiles_without_a_warning(tmp_path):
    flags = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror", *timing_build._FLAGS]
    command = [CC, *flags, "-o", tmp_path / "x.so", *MODEL, SOURCE / "plugin.c"]
    done = subprocess.run([*command, "-ldl", "-lpthread"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_cc
def test_what_the_plugin_declares_of_qemu_is_what_its_header_says(tmp_path):
    """Debian's packages of QEMU bring no header; NUMALAB_QEMU_HEADER names one of its source."""
    header = Path(os.environ.get("NUMALAB_QEMU_HEADER", "/usr/include/qemu-plugin.h"))
    if not header.is_file():
        pytest.skip("no qemu-plugin.h here")
    stub = "typedef struct GArray GArray;\ntypedef struct GByteArray GByteArray;\n"
    (tmp_path / "glib.h").write_text(stub)
    flags = ["-Wall", "-Werror", "-fsyntax-only", "-isystem", tmp_path]
    done = subprocess.run(
        [CC, *flags, f'-DQEMU_PLUGIN_HEADER="{header}"', SOURCE / "plugin.c"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_every_timed_host_is_told_to_the_model_whole():
    timed = [host for host in map(hosts.load, hosts.names()) if host.timing]
    assert {host.name for host in timed} >= {"intel-2n-timed", "amd-8n-timed", "null-2n-timed"}
    for host in timed:
        words = qemu.argv(host, wiring())
        plugin = words[words.index("-plugin") + 1].split(",")
        given = dict(word.partition("=")[::2] for word in plugin[1:])
        assert given["nodes"] == str(host.nodes) and given["vcpus"] == str(host.cpus)
        rows = [[float(ns) for ns in row.split(":")] for row in given["latency_ns"].split("+")]
        assert rows == host.timing.latency_ns


def wiring() -> qemu.Wiring:
    places = {name: Path(f"/x/{name}") for name in ("kernel", "initrd", "disk", "console")}
    return qemu.Wiring(
        "tcg", port=1, key="k", timing=Path("/x/t.so"), counters=Path("/x/c"), **places
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"latency_ns": [[85, 136]]}, "as many rows"), ({"latency_ns": [[85, 0], [1, 85]]}, "above 0"),
     ({"latency": [[1]]}, "latency_ns"), ({"latency_ns": [[1]], "colour": 1}, "colour")],
)  # fmt: skip
def test_a_wrong_timing_names_its_key(wrong, words):
    with pytest.raises(ValidationError, match=words):
        Timing(**wrong)


def a_page(folder: Path, *cpus: dict, **head: int) -> str:
    """A root whose PCI device shows counters: two nodes, a CPU for each mapping."""
    values = {"version": 1, "vcpus": len(cpus), "nodes": 2, "on": 1, "gave_up": 0, "idle_ps": 0,
              "clock_ps": 0, "switches": 1, **head}  # fmt: skip
    page = bytearray(1 << 20)
    struct.pack_into("<8s8Q", page, 0, b"numatime", *values.values())
    for number, counters in enumerate(cpus):
        row = [counters.get(name, 0) for name in memory_model._NAMES]
        row += [
            *counters.get("read", (0, 0)),
            *14 * [0],
            *counters.get("written", (0, 0)),
            *14 * [0],
        ]
        struct.pack_into("<44Q", page, 512 * (number + 1), *row)
    words = b"vcpus=2 latency_ns=85:136+136:85 l1=32/8 l2=256/8 l3=1024/16 counters=/x"
    page[33280 : 33280 + len(words)] = words
    device = folder / "sys/bus/pci/devices/0000:00:04.0"
    device.mkdir(parents=True)
    (device / "resource2").write_bytes(page)
    return str(folder)


def test_the_counters_say_who_read_what_from_where(tmp_path):
    start = memory_model.snapshot(a_page(tmp_path / "a", {}, {}))
    first = {"instructions": 5_000_000, "stall_ps": 1_000_000_000, "read": (6400, 640)}
    second = {"read": (0, 64), "written": (1280, 0)}
    root = a_page(tmp_path / "b", first, second, clock_ps=2_000_000_000)
    measured = memory_model.stop(start, "0", root)
    rows = {(row.metric, row.point): row.value for row in memory_model.metrics(measured)}
    assert rows["instructions", ""] == 5_000_000 and rows["local_reads", ""] == 100
    assert rows["remote_reads", ""] == 10 and rows["ipc", ""] == pytest.approx(0.5)
    assert rows["remote_reads_share", ""] == pytest.approx(10 / 110)
    seconds = 2e-3
    gbs = {key: value * seconds * 1e9 for key, value in rows.items() if key[1]}
    assert gbs["traffic_to_node", "node 0"] == pytest.approx(640 + 1280)
    assert gbs["traffic_from_node", "node 1"] == pytest.approx(640 + 1280)
    assert gbs["traffic_to_node", "node 1"] == 0
    assert gbs["local_dram_reads", "node 0"] == pytest.approx(6400)
    configured = memory_model.configuration(root)
    assert configured["latency_ns"] == "85:136+136:85" and "counters" not in configured


def test_all_cpus_together_tell_near_bytes_from_far_ones(tmp_path):
    first = {"instructions": 5, "stall_ps": 7, "read": (640, 64)}
    second = {"instructions": 6, "stall_ps": 8, "read": (128, 320)}
    assert memory_model.totals(a_page(tmp_path / "a", first, second)) == {
        "instructions": 11, "stall_ps": 15, "idle_ps": 0,
        "near_bytes": 640 + 320, "far_bytes": 64 + 128,
    }  # fmt: skip
    assert memory_model.totals(str(tmp_path)) == {}


def test_a_measurement_in_which_the_emulator_gave_up_is_known(tmp_path):
    before, root = a_page(tmp_path / "a", {}, gave_up=1), a_page(tmp_path / "b", {}, gave_up=2)
    for start, lost in ((before, True), (root, False)):
        measured = memory_model.stop(memory_model.snapshot(start), None, root)
        assert memory_model.lost({memory_model.SOURCE: measured}) is lost
    assert not memory_model.lost({}) and memory_model.stop(None, None, str(tmp_path)) is None


def test_a_timed_hosts_caches_are_the_models(tmp_path):
    machine = sysfs_tree.grid("timed", packages=2, nodes_per_package=1, cores_per_node=2)
    host = topology.read(a_page(sysfs_tree.write(tmp_path, machine), {}, {}, {}, {}))
    assert host.timed and not topology.read(sysfs_tree.shared(machine)).timed
    outer = [(one.size_bytes, one.cpus) for one in host.caches if one.level == 3]
    assert outer == [(1 << 20, "0-1"), (1 << 20, "2-3")]
    assert [one.size_bytes for one in host.caches if one.level == 2] == 4 * [256 << 10]
    assert host.cpu[3].l3 is not None and host.caches[host.cpu[3].l3].cpus == "2-3"


def test_a_timed_host_is_measured_for_a_short_time_of_its_model():
    machine = topologies.topology(cache_mib=1)
    asked = {"bytes": "4x-llc", "seconds": 2, "delays": [0, 100]}
    cpus, node = machine.node[0].cpus, "0"
    for mode in ("latency", "loaded", "bandwidth"):
        given = {"mode": mode, **asked} if mode == "loaded" else {"mode": mode, "seconds": 2}
        made = Probe().prepare(given, replace(machine, timed=True), cpus, node)
        assert made.options["seconds"] <= 0.1
        assert Probe().prepare(given, machine, cpus, node).options["seconds"] == 2


def test_a_turn_is_not_timed_by_the_clock_before_the_models():
    request, machine = experiments.load("latency").request("smoke", "h"), topologies.topology()
    for timed in (False, True):
        cells = make.make(request, replace(machine, timed=timed)).cells
        (cell, *_) = (cell for cell in cells if cell.options["mode"] == "loaded")
        words = Probe().argv(ToolRecord("probe", "1", "probe"), cell.options, cell)
        assert ("--clock-later" in words) == timed


@pytest.mark.parametrize(
    ("experiment", "code"),
    [("core-to-core", "needs-a-finer-model"), ("placement", "needs-seconds-of-a-model")],
)
def test_what_the_model_cannot_tell_is_left_out_and_why(experiment, code):
    request = replace(experiments.load(experiment).request("quick", "h"), budget_s=None)
    machine = topologies.topology()
    there, here = (make.make(request, replace(machine, timed=on)) for on in (False, True))
    assert code not in {one.reason.code for one in there.skipped}
    assert code in {one.reason.code for one in here.skipped}


def test_a_plan_for_a_timed_host_is_a_machines_but_takes_longer():
    request = replace(experiments.load("stream").request("quick", "h", seed=1), budget_s=None)
    machine = topologies.topology()
    plan, timed = (make.make(request, replace(machine, timed=on)) for on in (False, True))
    assert timed.order == plan.order
    trials = plan.estimate.total_s - make.RUN_OVERHEAD_S
    assert timed.estimate.total_s - make.RUN_OVERHEAD_S == pytest.approx(10 * trials, rel=0.01)
    assert [one.code for one in timed.warnings] == ["emulated-timing"]
    assert "model's" in str(timed.warnings[0])


def test_a_library_of_other_flags_is_another(tmp_path, monkeypatch):
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n: >"$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = timing_build.library(print)
    assert made == timing_build.library(print)
    monkeypatch.setattr(timing_build, "_FLAGS", (*timing_build._FLAGS, "-g"))
    assert timing_build.library(print) != made


@pytest.mark.skipif(platform.machine() != "x86_64", reason="an instruction of x86-64")
def test_the_instruction_that_switches_does_nothing_elsewhere(tmp_path):
    root = a_page(tmp_path / "a", {})
    memory_model.switch(True, root)
    memory_model.switch(False, root)
    memory_model.switch(True, str(tmp_path))  # no model there
