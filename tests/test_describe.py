"""What a person is told of a host: complete, in bounds, and with the warnings that matter."""

import io
import json
import os
import stat
import sys
from dataclasses import replace

import pytest

import sysfs_tree
import waiting
from numalab import services
from numalab.agent.contract import SCHEMA, Host, State, from_json, reason
from numalab.agent.errors import Fault
from numalab.agent.host import describe, tools
from numalab.agent.host.tools import Tool

CPU = "sys/devices/system/cpu"


@pytest.fixture(autouse=True)
def utf8(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))


def told(tmp_path, machine, width=100, **changes):
    if not changes:
        root = sysfs_tree.shared(machine)
    else:
        root = sysfs_tree.write(tmp_path, replace(machine, **changes))
    return describe.text(describe.read(str(root)), [], width)


@pytest.mark.parametrize("machine", sysfs_tree.ALL, ids=lambda machine: machine.name)
def test_every_machine_fits_and_shows_every_node(machine):
    facts = describe.read(str(sysfs_tree.shared(machine)))
    for width in (60, 80, 100, 160):
        text = describe.text(facts, [], width)
        lines = text.splitlines()
        assert max(map(len, lines)) <= width
        rows = [line.split()[0] for line in lines]
        for node in machine.nodes:
            assert str(node.number) in rows


def test_the_headline(tmp_path):
    first = told(tmp_path, sysfs_tree.AMD_8N).splitlines()[0]
    assert first.startswith("2 × AMD EPYC 7543 · 64 cores, 128 hardware threads · 8 nodes (NPS4)")
    assert "512 GiB" in first


def test_long_cpu_lists_are_shortened_not_broken(tmp_path):
    machine = sysfs_tree.grid(
        "long", packages=2, nodes_per_package=1, cores_per_node=40, numbering="interleaved"
    )
    nodes = tuple(replace(node, distances=None) for node in machine.nodes)
    for width in (60, 72, 100):
        text = told(tmp_path / str(width), machine, width=width, nodes=nodes)
        assert max(map(len, text.splitlines())) <= width
        rows = [line for line in text.splitlines() if line.endswith("unknown")]
        assert len(rows) == 2 and all("… (40)" in row for row in rows)


def test_distances_as_a_matrix_or_grouped(tmp_path):
    wide = told(tmp_path / "a", sysfs_tree.ARM_16N, width=100)
    assert "10 20 20 20 20 20 20 20 40 40 40 40 40 40 40 40" in wide
    narrow = told(tmp_path / "b", sysfs_tree.ARM_16N, width=70)
    assert "10: 0, 20: 1-7, 40: 8-15" in narrow
    assert "unknown" in told(tmp_path / "c", sysfs_tree.NO_DISTANCES_2N)


@pytest.mark.parametrize(
    ("machine", "files", "warning"),
    [
        (
            sysfs_tree.STARVED_2N,
            {},
            "node 0 has 2.4 GiB free and 116 GiB of page cache: allocations from its CPUs spill to "
            "node 1 after the next 2.4 GiB",
        ),
        (sysfs_tree.CXL_3N, {}, "memory but no CPUs on node 2"),
        (sysfs_tree.POWER_SPARSE, {}, "memory but no CPUs on nodes 252,255"),
        (sysfs_tree.MEMORYLESS_2N, {}, "CPUs and no memory on node 1"),
        (sysfs_tree.INTEL_2N_OFFLINE, {}, "CPUs 5,37,48-49 are offline"),
        (sysfs_tree.INTEL_2N_LIMITED, {}, "may only use CPUs 0-7,32-39 and memory of node 0"),
        (
            sysfs_tree.INTEL_2N,
            {"proc/sys/kernel/numa_balancing": "1"},
            "kernel.numa_balancing = 1: pages that no policy binds may move during a run",
        ),
        (sysfs_tree.INTEL_2N, {"proc/sys/vm/zone_reclaim_mode": "1"}, "zone_reclaim_mode = 1"),
        (
            sysfs_tree.INTEL_2N,
            {f"{CPU}/cpufreq/policy0/scaling_governor": "powersave"},
            "the frequency governor is powersave",
        ),
        (
            sysfs_tree.INTEL_2N,
            {"sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never"},
            "given unasked (always)",
        ),
        (sysfs_tree.INTEL_2N, {"proc/loadavg": "9.0 1 1 1/2 3"}, "load average 9.0"),
        (sysfs_tree.INTEL_2N, {f"{CPU}/isolated": "4-7"}, "CPUs 4-7 are isolated"),
        (
            sysfs_tree.INTEL_2N,
            {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "150000 100000"},
            "CPU quota",
        ),
        (
            sysfs_tree.INTEL_2N,
            {"proc/meminfo": "MemTotal: 999999999 kB\nMemAvailable: 1048576 kB\n"},
            "this machine understates its nodes; 1.0 GiB are available in all",
        ),
        (
            sysfs_tree.INTEL_2N,
            {"sys/class/dmi/id/sys_vendor": "QEMU"},
            "an emulated machine (the firmware names QEMU, and nothing shows KVM)",
        ),
    ],
)
def test_warnings(tmp_path, machine, files, warning):
    root = sysfs_tree.write(tmp_path, replace(machine, files=files))
    facts = describe.read(str(root))
    assert any(warning in str(one.what) for one in describe.warnings(facts))
    assert warning in " ".join(describe.text(facts, []).split())


def test_a_healthy_host_has_no_warnings(tmp_path):
    root = sysfs_tree.write(tmp_path, sysfs_tree.INTEL_2N)
    assert describe.warnings(describe.read(str(root))) == []


def test_a_full_node_without_a_neighbour_to_spill_to(tmp_path):
    nodes = tuple(replace(node, free=1, page_cache=100) for node in sysfs_tree.STARVED_2N.nodes)
    text = told(tmp_path, sysfs_tree.STARVED_2N, nodes=nodes)
    assert "no other node has room either, so the kernel reclaims the cache" in " ".join(
        text.split()
    )
    assert text.count("1.0 G ⚠") == 2


def test_ascii_where_the_terminal_knows_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    root = sysfs_tree.write(tmp_path, sysfs_tree.STARVED_2N)
    found = [Tool("mlc", False, None, reason("tool-unusable", what="absent"))]
    text = describe.text(describe.read(str(root)), found)
    text.encode("ascii")
    assert "2 x Intel Xeon" in text
    assert "! node 0" in text
    assert "- mlc: absent" in text
    assert "?" not in text


def program(folder, name, body):
    path = folder / name
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def searched(limit_s, more=dict):
    with tools.Search(more) as search:
        return search.answers(limit_s)


def test_tools_are_found_with_versions_and_none_can_hang(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    compiler = program(tmp_path, "gcc-12", "echo 'gcc-12 (Debian 1.2.0) 12.2.1'")
    monkeypatch.setenv("CC", str(compiler))
    pid = tmp_path / "pid"
    program(tmp_path, "sysbench", f"echo $$ > {pid}\nwhile :; do :; done\n")
    program(tmp_path, "stream", f": > {tmp_path / 'started'}\n")  # as ImageMagick has one
    program(tmp_path, "mlc", "echo 'Intel(R) Memory Latency Checker - v3.11'\n")
    program(tmp_path, "perf", "exit 1\n")
    found = {os.path.basename(tool.name): tool for tool in searched(limit_s=3)}
    assert found["gcc-12"].version == "12.2.1"
    assert found["sysbench"] == Tool("sysbench", False, None, reason("no-answer-in-time", limit=3))
    assert found["mlc"] == Tool("mlc", True, "3.11", None)
    assert not found["stream"].usable and "not on PATH" in str(found["stream"].why)
    assert not (tmp_path / "started").exists()
    assert found["perf"].version is None
    # It was sent SIGKILL; on a busy host it takes a moment.
    waiting.wait_for(lambda: not waiting.lives(int(pid.read_text())))


def test_a_program_that_is_not_there_says_what_needs_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {tool.name: tool for tool in searched(limit_s=3)}
    assert str(found["numactl"].why) == "numactl is not on PATH: the host experiment asks it"
    assert not any(tool.usable for tool in found.values() if tool.name != "mysql_server")


def test_a_service_is_there_when_its_run_would_find_its_programs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program(tmp_path, "cached", "echo 'cached 1.6.18'\n")
    text = """says: a cache
needs: {server: %s}
version: "{server} --version"
memory: [64MiB]
start: "{server} {port}"
load: {kind: command, command: "{server} {port} {time_s}", figures: {requests_per_second: "all #"}}
"""

    def more():
        for name in ("cached", "forgotten"):
            (tmp_path / "services").mkdir(exist_ok=True)
            (tmp_path / "services" / f"{name}.yml").write_text(text % name)
        monkeypatch.setattr(services.home, "root", lambda: tmp_path)
        return services.tools()

    found = {one.name: one for one in searched(limit_s=3, more=more)}
    assert found["cached"] == Tool("cached", True, "1.6.18")
    assert not found["forgotten"].usable and "forgotten" in str(found["forgotten"].why)


def test_the_tools_are_told_where_no_service_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program(tmp_path, "mlc", "echo 'Intel(R) Memory Latency Checker - v3.11'\n")

    def unreadable():
        raise OSError("the folder of services is gone")

    found = {tool.name: tool for tool in searched(limit_s=30, more=unreadable)}
    assert found["mlc"].usable and {"sysbench", "perf"} < set(found)


def test_a_search_that_nobody_asks_ends_with_what_it_started(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    pid = tmp_path / "pid"
    program(tmp_path, "sysbench", f"echo $$ > {pid}.new; mv {pid}.new {pid}\nwhile :; do :; done\n")
    with pytest.raises(Fault, match="no nodes"), tools.Search():
        waiting.wait_for(pid.exists)
        raise Fault("there are no nodes")
    waiting.wait_for(lambda: not waiting.lives(int(pid.read_text())))


def test_why_perf_cannot_be_used(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    level = tmp_path / "proc/sys/kernel/perf_event_paranoid"
    level.parent.mkdir(parents=True)
    root = str(tmp_path)
    assert tools.perf_use(root) == (False, reason("no-performance-events"))
    level.write_text("4\n")
    assert tools.perf_use(root) == (False, reason("perf-not-permitted", level=4))
    level.write_text("2\n")
    assert tools.perf_use(root) == (True, reason("software-events-only"))
    (tmp_path / "sys/bus/event_source/devices/cpu").mkdir(parents=True)
    assert tools.perf_use(root) == (True, None)


def test_the_line_of_tools(tmp_path):
    found = [
        Tool("numactl", True, "2.0.14"),
        Tool("mlc", False, None, reason("tool-unusable", what="not here")),
        Tool("perf", False, "6.1", reason("perf-not-permitted", level=4)),
    ]
    facts = describe.read(str(sysfs_tree.write(tmp_path, sysfs_tree.ONE_NODE)))
    last = describe.text(facts, found).splitlines()[-1]
    assert last == (
        "✓ numactl 2.0.14   – mlc: not here   – perf 6.1: no permission "
        "(kernel.perf_event_paranoid = 4)"
    )


def test_a_host_as_json():
    data = json.loads(describe.run(str(sysfs_tree.shared(sysfs_tree.INTEL_2N)), True, 100))
    assert from_json(Host, data["topology"]).threads == 64
    assert from_json(State, data["state"])["kernel.release"].value == "6.1.0-test"
    assert (data["schema"], data["host"], data["emulated"]) == (SCHEMA, None, False)
