"""What doctor finds on hosts made up for it, what it does not find, and what it says to type."""

import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

import sysfs_tree
from numalab.agent import kernel, words
from numalab.agent.errors import Fault
from numalab.agent.host import catalogue, describe, doctor, survey, topology
from numalab.agent.host.findings import REMEDIES

GIB, MIB, KB = 1 << 30, 1 << 20, 1024
PAGE = 4096


@pytest.fixture(autouse=True)
def utf8(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))


def node_files(number, total, free, cache, *, anon=0.0, dirty=0.0, shmem=0.0, low=0.1, numastat=""):
    """The files of one node, sizes in GiB: meminfo as of Linux 5.x, and its zone."""
    kb = {
        "MemTotal": total, "MemFree": free, "MemUsed": total - free, "Active(file)": cache / 2,
        "Inactive(file)": cache / 2, "Dirty": dirty, "FilePages": cache + shmem, "Mapped": 0,
        "AnonPages": anon, "Shmem": shmem, "SReclaimable": 0.2,
    }  # fmt: skip
    meminfo = "".join(f"Node {number} {k}: {int(v * MIB)} kB\n" for k, v in kb.items())
    files = {f"sys/devices/system/node/node{number}/meminfo": meminfo}
    if numastat:
        files[f"sys/devices/system/node/node{number}/numastat"] = numastat
    pages = GIB // PAGE
    zone = (
        f"Node {number}, zone   Normal\n  pages free     {int(free * pages)}\n"
        f"        min      100\n        low      {int(low * pages)}\n        high     999\n"
        "        protection: (0, 0, 0, 0)\n"
    )
    return files, zone


def machine(name, nodes, base=sysfs_tree.INTEL_2N, processes=(), buddy="", **files):
    """A machine whose nodes are (total, free, cache, options) in GiB."""
    made, zones = {}, ""
    for number, (total, free, cache, options) in enumerate(nodes):
        some, zone = node_files(number, total, free, cache, **options)
        made.update(some)
        zones += zone
    whole, free = sum(n[0] for n in nodes), sum(n[1] for n in nodes)
    made["proc/meminfo"] = (
        f"MemTotal: {int(whole * MIB)} kB\nMemFree: {int(free * MIB)} kB\nMemAvailable: "
        f"{int((free + sum(n[2] for n in nodes)) * MIB)} kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
    )
    made["proc/zoneinfo"] = zones
    made["proc/vmstat"] = "numa_hit 5\npswpin 0\npswpout 0\n"
    if buddy:
        made["proc/buddyinfo"] = buddy
        made["sys/kernel/mm/transparent_hugepage/hpage_pmd_size"] = "2097152"
    for one in processes:
        made.update(one)
    made.update({path.replace("__", "/"): text for path, text in files.items()})
    shape = tuple(
        replace(node, memory=total, free=free, page_cache=cache)
        for node, (total, free, cache, _) in zip(base.nodes, nodes)
    )
    return replace(base, name=name, nodes=shape, files=made)


def process(pid, name, maps, *, cpus="0-63", mems="0-1", runs_on=(0,), swap=0, unit=None, parent=1):
    """The files of a process; ``maps`` are (policy, {node: GiB}), one mapping each."""
    resident = int(sum(sum(nodes.values()) for _, nodes in maps) * GIB // PAGE)
    lines = [
        f"7f{place:04x}000000 {policy} anon=1 dirty=1 "
        + " ".join(f"N{node}={int(gib * GIB // PAGE)}" for node, gib in nodes.items())
        + " kernelpagesize_kB=4"
        for place, (policy, nodes) in enumerate(maps)
    ]

    def stat(number, cpu):
        fields = ["S", str(parent), "1", "1"] + ["0"] * 7 + ["500", "100", "0", "0", "20", "0"]
        fields += [str(len(runs_on)), "0", "4242", "0", str(resident)] + ["0"] * 14 + [str(cpu)]
        return f"{number} ({name}) " + " ".join([*fields, "0", "0"])

    here = f"proc/{pid}"
    files = {
        f"{here}/stat": stat(pid, runs_on[0]),
        f"{here}/statm": f"{2 * resident} {resident} 100 1 0 1 0",
        f"{here}/status": f"Name:\t{name}\nVmSwap:\t{int(swap * MIB)} kB\n"
        f"Cpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{mems}\n",
        f"{here}/cgroup": f"0::/system.slice/{unit}\n" if unit else "0::/\n",
        f"{here}/numa_maps": "\n".join(lines) + "\n",
    }
    for place, cpu in enumerate(runs_on):
        files[f"{here}/task/{pid + place}/stat"] = stat(pid + place, cpu)
    return files


def examine(tmp_path, made):
    facts = doctor.read(str(sysfs_tree.write(tmp_path, made)))
    findings = doctor.diagnose(facts)
    for one in findings:
        said = [one.what, *one.evidence, *(remedy.effect for remedy in one.remedies)]
        assert not [r.code for r in said if str(r) == r.code.replace("-", " ")]
    return findings, doctor.text(facts, [], 100), facts.survey


def found(findings):
    return {finding.code: finding.severity for finding in findings}


def commands(finding):
    return " | ".join(one.command for one in finding.remedies)


def what(finding):
    return str(finding.what)


def evidence(finding):
    return [str(one) for one in finding.evidence]


CFD = [(64, 1.2, 58, {"dirty": 0.5}), (64, 50, 8, {})]  # a node full of page cache
EASY = [(64, 40, 20, {}), (64, 50, 8, {})]


@pytest.mark.parametrize("ready", sysfs_tree.ALL, ids=lambda m: m.name)
def test_a_quiet_machine_has_nothing_to_act_on(ready):
    root = str(sysfs_tree.shared(ready))
    output, status = doctor.run(root, [], False, 100)
    allowed = {"starved-2n": ["page-cache"]}.get(ready.name, [])
    data = json.loads(doctor.run(root, [], True, 100)[0])
    serious = [one["id"] for one in data["findings"] if one["severity"] != "note"]
    if not ready.name.startswith(("old-kernel", "starved")):
        assert serious == [] and status == 0 and "✓ nothing found" in output
    assert set(serious) <= {*allowed, "numa-off"}


def test_a_node_full_of_page_cache(tmp_path):
    findings, text, seen = examine(tmp_path, machine("cfd", CFD))
    assert found(findings) == {"page-cache": "warning"}
    one = findings[0]
    assert one.nodes == (0,)
    assert what(one).startswith("node 0 has 1.2 GiB free and 58.0 GiB of page cache: ")
    assert "spill to node 1 after the next 1.1 GiB" in what(one)
    assert "57.5 GiB of the cache are clean, 512 MiB must be written first" in evidence(one)[0]
    assert "sync; echo 1 > /proc/sys/vm/drop_caches" in commands(one)
    assert "--membind=0" in commands(one)
    assert "sysctl -w vm.zone_reclaim_mode=1" in commands(one)
    assert all("Risk" in str(do.effect) for do in one.remedies)
    assert abs(seen.nodes[0].room_bytes - 1.1 * GIB) < MIB


def test_with_mglru_only_mode_7_reclaims(tmp_path):
    made = machine("mglru", CFD, sys__kernel__mm__lru_gen__enabled="0x0007")
    made.files["proc/sys/vm/zone_reclaim_mode"] = "1"
    findings, _, _ = examine(tmp_path, made)
    assert found(findings) == {"page-cache": "warning", "zone-reclaim": "warning"}
    (mode,) = [one for one in findings if one.code == "zone-reclaim"]
    assert "reclaims nothing on this kernel" in what(mode)
    assert "vm.zone_reclaim_mode=7" in commands(mode)


def test_zone_reclaim_that_works_is_told_otherwise(tmp_path):
    made = machine("reclaim", EASY)
    made.files["proc/sys/vm/zone_reclaim_mode"] = "1"
    findings, _, _ = examine(tmp_path, made)
    assert found(findings) == {"zone-reclaim": "warning"}
    assert "wait while page cache is reclaimed" in what(findings[0])


def test_a_victim_of_the_full_node_makes_it_a_problem(tmp_path):
    solver = process(77, "nfr", [("default", {0: 2, 1: 6})], cpus="0-15,32-47", runs_on=(3, 40))
    findings, text, _ = examine(tmp_path, machine("victim", CFD, processes=[solver]))
    assert found(findings) == {"page-cache": "problem", "memory-away": "warning"}
    assert findings[0].pids == (77,)
    assert any("nfr (77) runs there and has 6.0 GiB of its 8.0 GiB elsewhere" in e
               for e in evidence(findings[0]))  # fmt: skip
    away = findings[1]
    assert "75 % of its 8.0 GiB are on other nodes" in what(away)
    assert "migratepages 77 1 0" in commands(away)
    assert " 77  nfr" in text and "1:75% 0:25%" in text


def test_cache_on_every_node_or_on_one_node_is_no_finding(tmp_path):
    full = (64, 1.2, 58, {})
    findings, _, _ = examine(tmp_path / "a", machine("both", [full, full]))
    assert found(findings) == {"node-full": "note"} or set(found(findings)) == {"node-full"}
    assert catalogue.healthy(findings)
    findings, _, _ = examine(tmp_path / "b", machine("one", [full], sysfs_tree.ONE_NODE))
    assert findings == []


def test_shared_memory_is_not_taken_for_page_cache(tmp_path):
    nodes = [(64, 1.2, 2, {"shmem": 56}), (64, 50, 8, {})]
    findings, _, _ = examine(tmp_path, machine("shm", nodes))
    assert found(findings) == {"node-full": "note"}
    assert "56.0 GiB of what fills it is shared memory" in what(findings[0])
    # `numalab host` says the same
    root = str(tmp_path / "shm")
    assert "node-full" in found(describe.warnings(describe.read(root)))


def test_nodes_that_do_not_add_up_are_not_judged(tmp_path):
    made = machine("odd", CFD, proc__meminfo=f"MemTotal: {300 * MIB} kB\nMemAvailable: 99 kB\n")
    findings, text, _ = examine(tmp_path, made)
    assert findings == []
    assert "nothing is concluded from free memory" in text


SWAPPED = f"MemTotal: {128 * MIB} kB\nSwapTotal: {16 * MIB} kB\nSwapFree: {9 * MIB} kB\n"


def test_swap_insanity(tmp_path):
    nodes = [(64, 0.2, 1, {"anon": 61}), (64, 40, 2, {"anon": 20})]
    server = process(9, "mysqld", [("default", {0: 60, 1: 20})], swap=6, runs_on=(0, 20))
    made = machine("insane", nodes, processes=[server], proc__meminfo=SWAPPED)
    findings, _, _ = examine(tmp_path / "a", made)
    assert found(findings) == {"swap-insanity": "warning"}
    said = " ".join([what(findings[0]), *evidence(findings[0])])
    assert "7.0 GiB are swapped out and nothing is left on node 0, " in said
    assert "node 0, while node 1 has 40.0 GiB free" in said
    assert "mysqld (9) has 6.0 GiB in swap" in said
    assert "numactl --interleave=all" in commands(findings[0])
    # swap used long ago, and room everywhere now
    findings, _, _ = examine(tmp_path / "b", machine("past", EASY, proc__meminfo=SWAPPED))
    assert findings == []


def test_memory_bound_away_from_the_cpus(tmp_path):
    apart = process(5, "job", [("bind:1", {1: 4})], cpus="0-15,32-47", unit="job.service")
    findings, _, _ = examine(tmp_path, machine("apart", EASY, processes=[apart]))
    assert found(findings) == {"bound-apart": "warning"}
    assert "its policy bind:1 puts it there" in what(findings[0])
    assert "systemctl edit job.service" in commands(findings[0])
    assert "NUMAPolicy=bind NUMAMask=0" in str(findings[0].remedies[-1].effect)


@pytest.mark.parametrize(
    ("name", "maps", "settings"),
    [
        ("spread", [("default", {0: 4, 1: 4})], {"runs_on": (0, 16)}),
        ("at home", [("default", {0: 8})], {"cpus": "0-15,32-47"}),
        ("little away", [("default", {0: 8, 1: 1})], {"cpus": "0-15,32-47"}),
        ("small", [("default", {1: 0.05})], {"cpus": "0-15,32-47"}),
        ("one thread, some away", [("default", {0: 4, 1: 4})], {"runs_on": (0,)}),
        ("bound to both", [("bind:0-1", {0: 4, 1: 4})], {"runs_on": (0, 20)}),
    ],
)
def test_processes_that_are_as_they_should_be(tmp_path, name, maps, settings):
    made = machine("fine", EASY, processes=[process(5, "work", maps, **settings)])
    findings, _, _ = examine(tmp_path, made)
    assert findings == []


def test_interleaving_is_somebodys_will(tmp_path):
    one = process(5, "mysqld", [("interleave:0-1", {0: 4, 1: 4})], cpus="0-15,32-47")
    findings, _, _ = examine(tmp_path, machine("will", EASY, processes=[one]))
    assert found(findings) == {"interleaved": "note"}
    assert catalogue.healthy(findings) and findings[0].remedies == ()


def test_interleaving_that_a_full_node_made_uneven(tmp_path):
    one = process(5, "mysqld", [("interleave:0-1", {0: 0.4, 1: 7.6})], cpus="0-15,32-47")
    findings, _, _ = examine(tmp_path, machine("uneven", EASY, processes=[one]))
    assert found(findings) == {"memory-away": "warning"}
    assert "interleave:0-1 would put 50 % there, but node 0 was full" in what(findings[0])
    assert "--interleave=0-1 mysqld" in commands(findings[0])


def test_a_cpuset_that_parts_cpus_from_memory(tmp_path):
    one = process(5, "pod", [("default", {1: 4})], cpus="0-15", mems="1")
    findings, _, _ = examine(tmp_path, machine("pod", EASY, processes=[one]))
    assert found(findings) == {"cpuset-apart": "warning"}


def test_a_cpuset_of_ones_own_that_makes_every_access_remote(tmp_path):
    apart = sysfs_tree.limited(machine("apart", EASY), "0-15", "1")
    (one,), _, _ = examine(tmp_path / "apart", apart)
    assert (one.code, one.severity, one.nodes) == ("cpuset-all-remote", "warning", (0,))
    assert commands(one) == "echo 0 > /sys/fs/cgroup/GROUP/cpuset.mems"
    assert "CPUs 0-15 (of node 0) and memory of node 1" in what(one)
    # memory of its own node too: nothing to act on
    near = sysfs_tree.limited(machine("near", EASY), "0-15", "0-1")
    assert found(examine(tmp_path / "near", near)[0]) == {"cpuset": "note"}
    # memory without CPUs is a tier, chosen on purpose
    tiers = [(128, 60, 20, {}), (128, 60, 20, {}), (256, 200, 4, {})]
    tier = sysfs_tree.limited(machine("tier", tiers, sysfs_tree.CXL_3N), "0-15", "2")
    assert "cpuset-all-remote" not in found(examine(tmp_path / "tier", tier)[0])


def test_a_process_that_wandered_off(tmp_path):
    one = process(5, "java", [("default", {1: 16})], runs_on=(0, 1, 2))
    findings, _, _ = examine(tmp_path, machine("off", EASY, processes=[one]))
    assert found(findings) == {"memory-away": "note"}  # of a copy nobody knows what is busy


def test_memory_without_cpus_is_a_tier_and_not_away(tmp_path):
    nodes = [(128, 60, 20, {}), (128, 60, 20, {}), (256, 200, 4, {})]
    one = process(5, "tiered", [("default", {0: 8, 2: 8})], cpus="0-15,32-47", mems="0-2")
    made = machine("tiers", nodes, sysfs_tree.CXL_3N, processes=[one])
    findings, _, _ = examine(tmp_path, made)
    assert findings == []


def test_bound_to_a_node_with_nothing_left(tmp_path):
    nodes = [(64, 0.5, 0.5, {"anon": 62}), (64, 50, 8, {})]
    one = process(5, "solver", [("bind:0", {0: 60})], cpus="0-15,32-47")
    findings, _, _ = examine(tmp_path / "a", machine("tight", nodes, processes=[one]))
    assert found(findings) == {"bound-to-full": "warning"}
    assert "it is killed when it allocates more" in what(findings[0])
    # the same with page cache that can go
    nodes = [(64, 0.5, 20, {"anon": 42}), (64, 50, 8, {})]
    one = process(5, "solver", [("bind:0", {0: 40})], cpus="0-15,32-47")
    findings, _, _ = examine(tmp_path / "b", machine("loose", nodes, processes=[one]))
    assert "bound-to-full" not in found(findings)


FINE = "Node 0, zone   Normal   10 10 10 10 10 10 10 10 10 4 20000\n"
PIECES = "Node 0, zone   Normal   9000000 500000 90000 10 0 0 0 0 0 0 1\n"


def test_free_memory_in_pieces(tmp_path):
    nodes = [(64, 40, 20, {}), (64, 50, 8, {})]
    felt = "thp_fault_alloc 1000\nthp_fault_fallback 5000\ncompact_stall 90\ncompact_fail 80\n"
    findings, _, _ = examine(tmp_path / "a", machine("p", nodes, buddy=PIECES, proc__vmstat=felt))
    assert found(findings) == {"fragmented": "warning"}
    assert "5000 of 6000 huge pages" in " ".join(evidence(findings[0]))
    assert "node0/compact" in commands(findings[0])
    findings, _, _ = examine(tmp_path / "b", machine("q", nodes, buddy=PIECES))
    assert found(findings) == {"fragmented": "note"}
    findings, _, _ = examine(tmp_path / "c", machine("r", nodes, buddy=FINE, proc__vmstat=felt))
    assert findings == []


def test_hugetlb_pools(tmp_path):
    pool = "sys/devices/system/node/node0/hugepages/hugepages-2048kB"
    made = machine("pool", EASY)
    made.files.update({f"{pool}/nr_hugepages": "30000", f"{pool}/free_hugepages": "0"})
    findings, _, _ = examine(tmp_path / "a", made)
    assert found(findings) == {"hugetlb": "warning"}
    assert "spills to other nodes" in what(findings[0])
    other = "sys/devices/system/node/node1/hugepages/hugepages-2048kB"
    made = machine("alike", EASY)
    for one in (pool, other):
        made.files.update({f"{one}/nr_hugepages": "30000", f"{one}/free_hugepages": "0"})
    findings, _, _ = examine(tmp_path / "alike", made)
    assert found(findings) == {"hugetlb": "note"}
    made = machine("idle", EASY)
    made.files.update({f"{pool}/nr_hugepages": "20000", f"{pool}/free_hugepages": "20000"})
    findings, _, _ = examine(tmp_path / "b", made)
    assert "reserved and unused" in what(findings[0])


def test_nodes_that_the_firmware_hides(tmp_path):
    base = sysfs_tree.grid(
        "hidden", packages=2, nodes_per_package=1, cores_per_node=8, cores_per_l3=8,
        cpuinfo="vendor_id\t: GenuineIntel\nmodel name\t: Xeon\nflags\t\t: fpu\n",
    )  # fmt: skip
    base = replace(base, cpus=tuple(replace(cpu, node=0) for cpu in base.cpus))
    base = replace(base, nodes=(sysfs_tree.Node(0, 128, 100, 4, [10]),))
    findings, _, _ = examine(tmp_path / "a", base)
    assert found(findings) == {"hidden-nodes": "warning"}
    assert "about 50 %" in what(findings[0])
    arm = replace(base, arch="aarch64", cpuinfo="CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n")
    findings, _, _ = examine(tmp_path / "arm", arm)
    assert found(findings) == {"hidden-nodes": "note"}
    off = replace(base, files={"proc/cmdline": "quiet numa=off"})
    findings, _, _ = examine(tmp_path / "b", off)
    assert found(findings) == {"numa-off": "warning"}
    guest = base.cpuinfo.replace("fpu", "fpu hypervisor")
    findings, _, _ = examine(tmp_path / "c", replace(base, cpuinfo=guest))
    assert found(findings) == {"single-node": "note"}


def test_what_is_accepted_does_not_count(tmp_path):
    root = str(sysfs_tree.write(tmp_path, machine("cfd", CFD)))
    assert doctor.run(root, [], False, 100)[1] == 1
    output, status = doctor.run(root, ["page-cache"], False, 100)
    assert status == 0 and "nothing found" in output
    with pytest.raises(Fault, match="no finding 'cache' to ignore"):
        doctor.run(root, ["cache"], False, 100)


def test_every_finding_and_remedy_has_its_words():
    assert {*catalogue.MEASURING, *catalogue.HEALTH, *REMEDIES} <= set(words.templates())


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_text_fits(tmp_path, width):
    solver = process(77, "nfr", [("default", {0: 2, 1: 6})], cpus="0-15,32-47")
    root = str(sysfs_tree.write(tmp_path, machine("cfd", CFD, processes=[solver])))
    output, status = doctor.run(root, [], False, width)
    assert status == 1
    typed = {do["command"] for f in json.loads(doctor.run(root, [], True, width)[0])["findings"]
             for do in f["do"]}  # fmt: skip
    for line in output.splitlines():
        assert len(line) <= width or line.strip() in typed  # a command is never broken
    assert "✗ node 0 has 1.2 GiB free" in output
    for command in typed:
        assert command in output


def test_unreadable_processes_are_counted(tmp_path, monkeypatch):
    solver = process(77, "nfr", [("default", {0: 2, 1: 6})])
    root = sysfs_tree.write(tmp_path, machine("closed", EASY, processes=[solver]))
    real = kernel.read

    def closed(path, *limit):
        if path.endswith("numa_maps"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *limit)

    monkeypatch.setattr(kernel, "read", closed)
    facts = doctor.read(str(root))
    assert facts.survey.unreadable == 1
    text = doctor.text(facts, [], 100)
    assert "1 of the processes with 64.0 MiB or more cannot be read: run it as root" in text


def test_small_processes_are_not_opened(tmp_path, monkeypatch):
    files = [process(100 + n, "small", [("default", {0: 0.01})]) for n in range(300)]
    files.append(process(50, "large", [("default", {0: 1})]))
    root = sysfs_tree.write(tmp_path, machine("many", EASY, processes=files))
    opened = []
    real = kernel.read

    def watched(path, *limit):
        opened.append(path)
        return real(path, *limit)

    monkeypatch.setattr(kernel, "read", watched)
    seen = survey.read(topology.read(root))
    assert (seen.seen, seen.small, len(seen.processes)) == (301, 300, 1)
    assert [path for path in opened if path.endswith("numa_maps")] == [f"{root}/proc/50/numa_maps"]


def test_what_there_was_no_time_for_is_counted(tmp_path):
    files = [process(100 + n, f"p{n}", [("default", {0: 1 + n})]) for n in range(5)]
    root = sysfs_tree.write(tmp_path, machine("hurry", EASY, processes=files))
    seen = survey.read(topology.read(root), budget_s=0)
    assert [one.pid for one in seen.processes] == [104]  # the largest in any case
    assert seen.unread == 4


def test_siblings_over_one_segment_are_read_once(tmp_path):
    shared = int(8 * GIB // PAGE)
    files = []
    for pid in range(200, 220):
        one = process(pid, "postgres", [("interleave:0-1", {0: 4, 1: 4})], parent=199)
        one[f"proc/{pid}/statm"] = f"{2 * shared} {shared} {shared - 100} 1 0 1 0"
        files.append(one)
    root = sysfs_tree.write(tmp_path, machine("pg", EASY, processes=files))
    seen = survey.read(topology.read(root))
    assert (len(seen.processes), seen.alike) == (1, 19)


def test_lowmem_reserve_and_watermarks_are_not_room():
    text = (
        "Node 0, zone      DMA\n  per-node stats\n      nr_inactive_anon 2293\n"
        "  pages free     3840\n        boost    0\n        min      17\n        low      21\n"
        "        high     25\n        protection: (0, 3019, 14155, 14155, 14155)\n"
        "Node 0, zone   Normal\n  pages free     5000\n        min      1000\n"
        "        low      1250\n        high     1500\n        protection: (0, 0, 0, 0, 0)\n"
        "  pagesets\n    cpu: 0\n              count: 0\n              high:  378\n"
        "Node 0, zone  Movable\n  pages free     0\n        min      0\n        low      0\n"
        "        protection: (0, 0, 0, 0, 0)\n"
    )
    assert survey._room(text, 4096) == {0: 4096 * 3750}


def test_this_machine(tmp_path):
    """The live host: the numbers are the kernel's, nobody is disturbed, and it is quick."""
    done = subprocess.run(
        [sys.executable, "-m", "numalab.agent", "doctor", "--json"], capture_output=True, text=True
    )
    assert done.returncode in (0, 1), done.stderr
    data = json.loads(done.stdout)
    assert done.returncode == (0 if data["healthy"] else 1)
    assert data["survey"]["live"] and data["survey"]["interval_s"] >= 0.2
    assert data["survey"]["seen"] > 0
    if shutil.which("numastat"):
        told = subprocess.run(["numastat", "-m"], capture_output=True, text=True).stdout
        rows = {line.split()[0]: line.split()[1:] for line in told.splitlines() if line.split()}
        for place, node in enumerate(data["survey"]["nodes"]):
            assert abs(float(rows["MemTotal"][place]) * MIB - node["memory_bytes"]) < MIB


@pytest.mark.skipif(not os.path.exists("/proc/self/numa_maps"), reason="no numa_maps here")
def test_a_process_of_ours_is_seen_as_numastat_sees_it():
    holder = subprocess.Popen(
        [sys.executable, "-c", "b = bytearray(200 << 20); print(1, flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        holder.stdout.readline()
        seen = survey.read(topology.read(), budget_s=60)
        (ours,) = [p for p in seen.processes if p.pid == holder.pid]
        total = ours.total
        assert 200 * MIB <= total < 230 * MIB
        if shutil.which("numastat"):
            told = subprocess.run(
                ["numastat", "-p", str(holder.pid)], capture_output=True, text=True
            ).stdout
            row = next(line.split() for line in told.splitlines() if line.startswith("Private"))
            heap = next(line.split() for line in told.splitlines() if line.startswith("Heap"))
            assert abs(total / MIB - float(row[-1]) - float(heap[-1])) < 16  # it counts files too
    finally:
        holder.communicate("\n")


def test_the_command_line_and_its_status(tmp_path):
    from typer.testing import CliRunner

    from numalab import cli

    root = str(sysfs_tree.write(tmp_path, machine("cfd", CFD)))
    done = CliRunner().invoke(cli.app, ["doctor", "--root", root])
    assert done.exit_code == 1 and "node 0 has 1.2 GiB free" in done.output
    done = CliRunner().invoke(cli.app, ["doctor", "--root", root, "--ignore", "page-cache"])
    assert done.exit_code == 0
    run = [sys.executable, "-m", "numalab.agent", "doctor"]
    done = subprocess.run([*run, "--root", "/nowhere"], capture_output=True, text=True)
    assert done.returncode == 2 and "is not a folder" in done.stderr
    done = subprocess.run([*run, "--ignore", "x"], capture_output=True, text=True)
    assert done.returncode == 2 and "no finding 'x'" in done.stderr
