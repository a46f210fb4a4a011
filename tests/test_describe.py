"""What a person is told of a host: complete, in bounds, and with the warnings that matter."""

import io
import os
import stat
import sys
from dataclasses import replace

import pytest

import sysfs_tree
from numalab.agent.host import describe, state, topology

CPU = "sys/devices/system/cpu"


@pytest.fixture(autouse=True)
def utf8(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))


def told(tmp_path, machine, width=100, **changes):
    if not changes:
        root = sysfs_tree.shared(machine)
    else:
        root = sysfs_tree.write(tmp_path, replace(machine, **changes))
    return describe.text(topology.read(root), state.read(root), [], width)


@pytest.mark.parametrize("machine", sysfs_tree.ALL, ids=lambda machine: machine.name)
def test_every_machine_fits_and_shows_every_node(machine):
    root = sysfs_tree.shared(machine)
    shape, condition = topology.read(root), state.read(root)
    for width in (60, 80, 100, 160):
        text = describe.text(shape, condition, [], width)
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
            "node 0 has 2.4 GiB free and 116 GiB of page cache: allocations there will spill to "
            "node 1 (numalab doctor)",
        ),
        (sysfs_tree.CXL_3N, {}, "node 2 has memory but no CPUs"),
        (sysfs_tree.POWER_SPARSE, {}, "nodes 252,255 have memory but no CPUs"),
        (sysfs_tree.MEMORYLESS_2N, {}, "node 1 has no memory"),
        (sysfs_tree.INTEL_2N_OFFLINE, {}, "CPUs 5,37,48-49 are offline"),
        (sysfs_tree.INTEL_2N_LIMITED, {}, "may only use CPUs 0-7,32-39 and memory of node 0"),
        (
            sysfs_tree.INTEL_2N,
            {"proc/sys/kernel/numa_balancing": "1"},
            "kernel.numa_balancing = 1: pages will move during a run; fixed in a run with "
            "--allow-host-changes",
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
            "this machine understates its nodes; 1 GiB are available in all",
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
    shape, condition = topology.read(root), state.read(root)
    found = describe.warnings(shape, condition)
    assert any(warning in line for line in found)
    shown = " ".join(describe.text(shape, condition, []).split())
    assert f"⚠ {warning.split(' (')[0]}" in shown or warning in shown


def test_a_healthy_host_has_no_warnings(tmp_path):
    root = sysfs_tree.write(tmp_path, sysfs_tree.INTEL_2N)
    assert describe.warnings(topology.read(root), state.read(root)) == []


def test_a_full_node_without_a_neighbour_to_spill_to(tmp_path):
    nodes = tuple(replace(node, free=1, page_cache=100) for node in sysfs_tree.STARVED_2N.nodes)
    text = told(tmp_path, sysfs_tree.STARVED_2N, nodes=nodes)
    assert "must reclaim it first" in text
    assert text.count("1.0 G ⚠") == 2


def test_ascii_where_the_terminal_knows_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    root = sysfs_tree.write(tmp_path, sysfs_tree.STARVED_2N)
    tools = [{"name": "mlc", "path": None, "version": None, "usable": False, "why": "absent"}]
    text = describe.text(topology.read(root), state.read(root), tools)
    text.encode("ascii")
    assert "2 x Intel Xeon" in text
    assert "! node 0" in text
    assert "- mlc (absent)" in text
    assert "?" not in text


def program(folder, name, body):
    path = folder / name
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_tools_are_found_with_versions_and_none_can_hang(tmp_path, monkeypatch):
    monkeypatch.setattr(describe, "_SERVER_FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path, "gcc", "echo 'gcc (Debian 12.2.0-14) 12.2.1'\n")
    program(tmp_path, "mariadbd", "echo 'mariadbd  Ver 10.11.6-MariaDB for Linux'\n")
    pid = tmp_path / "pid"
    program(tmp_path, "sysbench", f"echo $$ > {pid}\nwhile :; do :; done\n")
    started = tmp_path / "started"
    program(tmp_path, "mlc", f": > {started}\n")
    program(tmp_path, "stream", f": > {started}\n")
    program(tmp_path, "perf", "exit 1\n")
    found = {tool["name"]: tool for tool in describe.tools(limit_s=0.5)}
    assert found["gcc"]["version"] == "12.2.1"
    assert found["MariaDB"]["version"] == "10.11.6"
    assert found["numactl"] == {
        "name": "numactl",
        "path": None,
        "version": None,
        "usable": False,
        "why": "bindings need it",
    }
    assert found["sysbench"]["usable"] is True
    assert found["sysbench"]["version"] is None
    assert "within 0.5 s" in found["sysbench"]["why"]
    assert found["mlc"]["usable"] and found["stream"]["usable"]
    assert not started.exists()
    if pid.exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


def test_why_perf_cannot_be_used(tmp_path, monkeypatch):
    monkeypatch.setattr(describe, "_PARANOID", str(tmp_path / "paranoid"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert describe._perf_use() == (False, "this kernel has no performance events")
    (tmp_path / "paranoid").write_text("4\n")
    assert describe._perf_use() == (
        False,
        "no permission (kernel.perf_event_paranoid = 4)",
    )
    (tmp_path / "paranoid").write_text("2\n")
    assert describe._perf_use()[0] is True


def test_the_line_of_tools(tmp_path):
    root = sysfs_tree.write(tmp_path, sysfs_tree.ONE_NODE)
    tools = [
        {"name": "numactl", "path": "/n", "version": "2.0.14", "usable": True, "why": None},
        {"name": "mlc", "path": None, "version": None, "usable": False, "why": "no latency"},
        {"name": "perf", "path": "/p", "version": "6.1", "usable": False, "why": "no permission"},
    ]
    last = describe.text(topology.read(root), state.read(root), tools).splitlines()[-1]
    assert last == "✓ numactl 2.0.14   – mlc (no latency)   – perf 6.1: no permission"
