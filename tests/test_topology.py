"""The topology of synthetic machines whose truth is known, and of damaged or odd trees."""

import os
import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import sysfs_tree
from numalab.agent import cpulist
from numalab.agent.contract import Allowed, HugePagePool, PciDevice, dumps
from numalab.agent.errors import Fault
from numalab.agent.host import describe, topology
from numalab.agent.plan import kinds, resolve

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


def read(tmp_path, machine):
    if machine in sysfs_tree.ALL:
        return topology.read(sysfs_tree.shared(machine))
    return topology.read(sysfs_tree.write(tmp_path, machine))


def truth_of_cores(machine):
    cores = {}
    for cpu in machine.cpus:
        if cpu.online:
            cores.setdefault((cpu.package, cpu.die, cpu.core), set()).add(cpu.number)
    return {cpulist.format(core) for core in cores.values()}


def cores_of(found):
    return {cpu.siblings for cpu in found.cpus if cpu.online}


@pytest.mark.parametrize("machine", sysfs_tree.ALL, ids=lambda machine: machine.name)
def test_every_machine_is_read_as_it_was_described(tmp_path, machine):
    found = read(tmp_path, machine)
    dumps(found)
    online = [cpu for cpu in machine.cpus if cpu.online]
    assert found.threads == len(online)
    assert found.packages == len({cpu.package for cpu in online})
    assert cores_of(found) == truth_of_cores(machine)
    assert found.cores == len(cores_of(found))
    by_number = {cpu.number: cpu for cpu in found.cpus}
    assert sorted(by_number) == sorted(cpu.number for cpu in machine.cpus)
    for cpu in machine.cpus:
        seen = by_number[cpu.number]
        assert seen.online is cpu.online
        if cpu.online:
            assert (seen.node, seen.package, seen.core) == (
                cpu.node,
                cpu.package,
                cpu.core,
            )
            assert cpulist.parse(seen.siblings)[seen.thread] == cpu.number
    for node, seen in zip(machine.nodes, found.nodes):
        assert seen.number == node.number
        assert seen.cpus == cpulist.format(machine.cpus_of(node.number))
        assert seen.memory_bytes == node.memory * sysfs_tree.GIB
        assert seen.free_bytes == pytest.approx(node.free * sysfs_tree.GIB, abs=1024)
        assert list(seen.distances.values()) == list(node.distances or [])
    assert len(found.nodes) == len(machine.nodes)
    assert {(c.level, c.type, c.cpus) for c in found.caches} == {
        (c.level, c.type, cpulist.format(c.cpus)) for c in machine.caches
    }


def test_sizes_and_sharers_of_caches(tmp_path):
    found = read(tmp_path, sysfs_tree.AMD_8N)
    last = [cache for cache in found.caches if cache.level == 3]
    assert len(last) == 16
    assert {cache.size_bytes for cache in last} == {32 << 20}
    of_cpu_64 = found.caches[found.cpus[64].l3]
    assert of_cpu_64.cpus == "0-3,64-67"
    assert all(cpu.l3 is None for cpu in read(tmp_path, sysfs_tree.ARM_16N).cpus)


def test_caches_in_megabytes_and_without_a_size(tmp_path):
    machine = replace(
        sysfs_tree.ONE_NODE,
        name="sizes",
        caches=(
            sysfs_tree.Cache(2, "Unified", "2M", tuple(range(4))),
            sysfs_tree.Cache(3, "Unified", None, tuple(range(8))),
            sysfs_tree.Cache(4, "Unified", "9" * 5000 + "K", tuple(range(8))),
        ),
    )
    found = read(tmp_path, machine)
    assert [cache.size_bytes for cache in found.caches] == [2 << 20, None, None]
    assert any("L3 without a size" in problem for problem in map(str, found.problems))


def test_cpus_that_number_their_caches_differently(tmp_path):
    """CPU 1 lacks the cache that is CPU 0's first: its indexes are one lower."""
    cpus = tuple(sysfs_tree.Cpu(n, 0, 0, core=n) for n in range(3))
    caches = (
        sysfs_tree.Cache(1, "Data", "32K", (0,)),
        sysfs_tree.Cache(1, "Instruction", "32K", (2,)),
        sysfs_tree.Cache(2, "Unified", "1M", (0, 1, 2)),
        sysfs_tree.Cache(3, "Unified", "8M", (0, 1, 2)),
    )
    node = (sysfs_tree.Node(0, distances=[10]),)
    found = read(tmp_path, sysfs_tree.Machine("odd", cpus, node, caches))
    assert [(c.level, c.cpus) for c in found.caches] == [
        (1, "0"),
        (1, "2"),
        (2, "0-2"),
        (3, "0-2"),
    ]


def test_clusters_dies_and_mixed_threads(tmp_path):
    assert read(tmp_path, sysfs_tree.ARM_4N).clusters == 32
    assert read(tmp_path, sysfs_tree.INTEL_2N).clusters is None
    hybrid = read(tmp_path, sysfs_tree.HYBRID)
    assert (hybrid.cores, hybrid.threads, hybrid.threads_per_core) == (6, 8, None)
    with_dies = sysfs_tree.grid(
        "dies", packages=2, nodes_per_package=2, cores_per_node=2, threads=2, dies=True
    )
    assert read(tmp_path, with_dies).dies == 4
    old = read(tmp_path, sysfs_tree.OLD_KERNEL_4N)
    assert old.dies is None
    assert "dies are unknown: this kernel has no die_id" in map(str, old.problems)


def test_ids_that_only_say_unknown(tmp_path):
    """arm64 without dies: die_id is -1 and each CPU is alone in its map."""
    machine = sysfs_tree.ARM_4N
    files = {}
    for cpu in machine.cpus:
        files[f"{CPU}/cpu{cpu.number}/topology/die_id"] = "-1"
        files[f"{CPU}/cpu{cpu.number}/topology/die_cpus"] = f"{1 << cpu.number % 32:x}" + (
            ",00000000" * (cpu.number // 32)
        )
        files[f"{CPU}/cpu{cpu.number}/topology/physical_package_id"] = "-1"
    found = read(tmp_path, replace(machine, files=files))
    assert found.dies is None
    assert {cpu.die for cpu in found.cpus} == {None}
    assert {cpu.package for cpu in found.cpus} == {0, 1}


def test_package_ids_that_repeat_are_numbered(tmp_path):
    """s390 counts its sockets anew in every book."""
    machine = sysfs_tree.INTEL_2N
    files = {f"{CPU}/cpu{c.number}/topology/physical_package_id": "7" for c in machine.cpus}
    found = read(tmp_path, replace(machine, files=files))
    assert found.packages == 2
    assert {cpu.package for cpu in found.cpus} == {0, 1}
    assert any("ids repeat" in problem for problem in map(str, found.problems))


def test_a_map_counts_more_than_a_wrong_list(tmp_path):
    machine = sysfs_tree.INTEL_2N
    wrong = {f"{CPU}/cpu{c.number}/topology/core_cpus_list": "0" for c in machine.cpus}
    assert cores_of(read(tmp_path, replace(machine, files=wrong))) == truth_of_cores(machine)


def test_overlapping_package_maps_fall_back_to_the_ids(tmp_path):
    machine = sysfs_tree.INTEL_2N
    files = {}
    for name in ("package_cpus", "core_siblings"):
        files[f"{CPU}/cpu16/topology/{name}"] = "ffff0001,ffff0000"  # CPU 32 is of package 0
    found = read(tmp_path, replace(machine, files=files))
    assert {cpu.number: cpu.package for cpu in found.cpus} == {
        cpu.number: cpu.package for cpu in machine.cpus
    }
    assert any("package maps overlap" in problem for problem in map(str, found.problems))


def test_a_list_that_ends_with_a_nul(tmp_path):
    files = {f"{NODE}/node0/cpulist": "0-15,32-47\n\0"}
    found = read(tmp_path, replace(sysfs_tree.INTEL_2N, files=files))
    assert found.nodes[0].cpus == "0-15,32-47"


def test_structure_does_not_depend_on_cpu_numbers(tmp_path):
    """The same machine with its CPUs renumbered at random is the same machine."""
    machine = sysfs_tree.grid(
        "shuffled", packages=2, nodes_per_package=2, cores_per_node=3, threads=2, cores_per_l3=3
    )
    for seed in range(8):
        order = [cpu.number for cpu in machine.cpus]
        random.Random(seed).shuffle(order)
        shuffled = replace(
            machine,
            name=f"shuffled-{seed}",
            cpus=tuple(replace(cpu, number=order[cpu.number]) for cpu in machine.cpus),
            caches=tuple(
                replace(cache, cpus=tuple(sorted(order[n] for n in cache.cpus)))
                for cache in machine.caches
            ),
        )
        found = read(tmp_path, shuffled)
        assert cores_of(found) == truth_of_cores(shuffled)
        for cpu in shuffled.cpus:
            seen = found.cpus[cpu.number]
            assert (seen.node, seen.package) == (cpu.node, cpu.package)
            assert cpu.number in cpulist.parse(found.caches[seen.l3].cpus)


def test_offline_cpus_have_no_place(tmp_path):
    found = read(tmp_path, sysfs_tree.INTEL_2N_OFFLINE)
    assert found.offline == "5,37,48-49"
    assert found.cpus[5].node is None
    assert found.cpus[5].allowed is False
    assert found.cpus[16].siblings == "16"
    assert found.threads_per_core is None


def test_a_node_whose_cpus_are_all_offline_is_not_memory_only(tmp_path):
    """The kernel lists online CPUs alone; the links of the others stay in the node's folder."""
    of_node_1 = [cpu.number for cpu in sysfs_tree.INTEL_2N.cpus if cpu.node == 1]
    machine = sysfs_tree.offline(sysfs_tree.INTEL_2N, of_node_1)
    found = read(tmp_path, replace(machine, name="no-links"))
    assert found.memory_only == [1]  # nothing tells: a copy without the links
    links = {f"{NODE}/node1/cpu{number}/online": "0" for number in of_node_1}
    found = read(tmp_path, replace(machine, files=links))
    assert found.memory_only == [] and found.main_nodes == [0, 1]
    assert not found.node[1].cpus and found.cpu[of_node_1[0]].node == 1


def test_the_kind_of_memory_of_each_node(tmp_path):
    tiers, weights = "sys/devices/virtual/memory_tiering", "sys/kernel/mm/mempolicy"
    files = {
        f"{tiers}/memory_tier4/nodelist": "0-1",
        f"{tiers}/memory_tier22/nodelist": "2",
        f"{NODE}/node0/access0/initiators/read_latency": "90",
        f"{NODE}/node2/access0/initiators/read_latency": "120",  # of an accelerator beside it
        f"{NODE}/node2/access1/initiators/read_latency": "250",
        f"{NODE}/node2/access1/initiators/read_bandwidth": "28000",
        **{f"{weights}/weighted_interleave/node{n}": w for n, w in enumerate("552")},
    }
    found = read(tmp_path, replace(sysfs_tree.CXL_3N, files=files))
    assert found.memory_only == [2]
    assert [node.tier for node in found.nodes] == [4, 4, 22]
    assert [node.weight for node in found.nodes] == [5, 5, 2]
    assert [node.read_latency_ns for node in found.nodes] == [90, None, 250]
    assert found.node[2].read_bandwidth_mb_s == 28000
    assert found.node[2].side_cache_bytes is None
    found = read(tmp_path, replace(sysfs_tree.CXL_3N, name="an-old-kernel"))
    node = found.node[2]
    assert (node.tier, node.weight, node.read_latency_ns) == (None, None, None)


def test_a_cache_in_front_of_a_nodes_memory(tmp_path):
    """Optane's memory mode, HBM in cache mode: Documentation/admin-guide/mm/numaperf.rst."""
    cache = f"{NODE}/node0/memory_side_cache"
    files = {
        f"{cache}/index1/size": str(16 << 30),
        f"{cache}/index2/size": str(96 << 30),
        f"{cache}/index1/line_size": "64",
    }
    root = sysfs_tree.write(tmp_path, replace(sysfs_tree.CXL_3N, files=files))
    found = topology.read(root)
    assert [node.side_cache_bytes for node in found.nodes] == [96 << 30, None, None]
    shown = " ".join(describe.run(root, False, 100).split())
    assert "the memory of node 0 is behind a cache of 96.0 GiB" in shown


def test_offline_cpus_without_a_global_list(tmp_path):
    files = dict.fromkeys((f"{CPU}/online", f"{CPU}/offline", f"{CPU}/possible"))
    found = read(tmp_path, replace(sysfs_tree.INTEL_2N_OFFLINE, files=files))
    assert found.offline == "5,37,48-49"
    assert found.possible is None


def test_limits_of_the_cpuset(tmp_path):
    found = read(tmp_path, sysfs_tree.INTEL_2N_LIMITED)
    assert found.allowed == Allowed("0-7,32-39", "0")
    assert [node.allowed_memory for node in found.nodes] == [True, False]
    assert cpulist.format(c.number for c in found.cpus if c.allowed) == "0-7,32-39"


def test_a_copy_without_proc_allows_everything(tmp_path):
    root = sysfs_tree.write(tmp_path, sysfs_tree.INTEL_2N)
    before = topology.read(root).problems
    shutil.rmtree(root / "proc")
    found = topology.read(root)
    assert found.allowed == Allowed("0-63", "0-1")
    assert found.problems == before
    assert (found.arch, found.model, found.available_bytes) == (None, None, None)


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc/self/cpuset": "/job",
            "proc/mounts": "none /dev/cpuset cpuset rw 0 0",
            "dev/cpuset/job/cpus": "0-3",
            "dev/cpuset/job/mems": "1",
        },
        {
            "proc/self/cgroup": "3:cpuset:/job\n0::/",
            "proc/mounts": "none /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0",
            "sys/fs/cgroup/cpuset/job/cpuset.cpus": "0-3",
            "sys/fs/cgroup/cpuset/job/cpuset.mems": "1",
        },
        {
            "proc/self/cgroup": "0::/job",
            "proc/mounts": "none /sys/fs/cgroup cgroup2 rw 0 0",
            "sys/fs/cgroup/job/cpuset.cpus.effective": "0-3",
            "sys/fs/cgroup/job/cpuset.mems.effective": "1",
        },
    ],
    ids=["cpuset", "cgroup", "cgroup2"],
)
def test_limits_of_a_copy_that_holds_the_cgroup_files(tmp_path, files):
    files = {**files, "proc/self/status": None}
    found = read(tmp_path, replace(sysfs_tree.INTEL_2N, files=files))
    assert found.allowed == Allowed("0-3", "1")


def test_shared_memory_is_no_page_cache_that_could_make_room(tmp_path):
    """A database's shared memory fills a node: a plan must not count it as room."""
    gib = sysfs_tree.GIB
    full = replace(sysfs_tree.INTEL_2N.nodes[0], free=1, page_cache=2, shared=100)
    nodes = (full, *sysfs_tree.INTEL_2N.nodes[1:])
    found = read(tmp_path, replace(sysfs_tree.INTEL_2N, nodes=nodes))
    assert found.nodes[0].page_cache_bytes == 2 * gib
    local = kinds.bound(found, found.cpus_of[0], "bind", [0])
    assert resolve.room_bytes(found, local) == (1 * gib, 3 * gib)


def test_a_kernel_without_nodes_has_one(tmp_path):
    root = sysfs_tree.write(tmp_path, sysfs_tree.INTEL_2N)
    shutil.rmtree(root / NODE)
    found = topology.read(root)
    assert [node.number for node in found.nodes] == [0]
    assert found.nodes[0].memory_bytes == 256 * sysfs_tree.GIB
    assert found.nodes[0].cpus == "0-63"
    assert any("no nodes" in problem for problem in map(str, found.problems))


def test_nodes_without_cpu_folders(tmp_path):
    root = sysfs_tree.write(tmp_path, sysfs_tree.INTEL_2N)
    shutil.rmtree(root / CPU)
    found = topology.read(root)
    assert (found.threads, found.cores, found.packages) == (64, None, None)
    assert found.nodes[1].cpus == "16-31,48-63"


def test_what_is_missing_is_null_and_named(tmp_path):
    files = {f"{NODE}/node1/meminfo": None, f"{NODE}/node0/distance": "10 20 30"}
    found = read(tmp_path, replace(sysfs_tree.INTEL_2N, files=files))
    assert found.nodes[1].memory_bytes is None
    assert found.nodes[0].distances == {}
    assert "node 1: no meminfo" in map(str, found.problems)
    assert "node 0: the distance file does not hold one number for each node: ignored" in map(
        str, found.problems
    )
    missing = read(tmp_path, sysfs_tree.NO_DISTANCES_2N)
    assert "nodes 0-1: no distance file" in map(str, missing.problems)


def test_contradictions_are_named(tmp_path):
    files = {
        f"{NODE}/node1/cpulist": "0-63",
        "proc/meminfo": "MemTotal: 999999999 kB\nMemAvailable: 5 kB\n",
    }
    found = read(tmp_path, replace(sysfs_tree.INTEL_2N, files=files))
    assert any("listed by several nodes" in problem for problem in map(str, found.problems))
    assert "memory-disagrees" in {problem.code for problem in found.problems}
    assert found.available_bytes == 5 * 1024


def test_modules_that_a_kernel_calls_cores(tmp_path):
    """AMD family 15h: two cores with an L1 data cache each are shown as threads of one."""
    base = sysfs_tree.ONE_NODE
    caches = tuple(sysfs_tree.Cache(1, "Data", "16K", (c.number,)) for c in base.cpus)
    found = read(tmp_path, replace(base, name="modules", caches=caches))
    assert found.cores == 4
    assert any("module of cores" in problem for problem in map(str, found.problems))


def test_huge_pages_and_devices(tmp_path):
    nodes = tuple(replace(node, huge_pages=12) for node in sysfs_tree.INTEL_2N.nodes)
    found = read(tmp_path, replace(sysfs_tree.INTEL_2N, nodes=nodes))
    assert found.nodes[1].hugepages == (HugePagePool(2 << 20, 12, 12),)
    assert found.pci == (
        PciDevice("0000:17:00.0", "0x020000", "network", 0, ("eth0",)),
        PciDevice("0000:65:00.0", "0x010802", "storage", 1, ("nvme0",)),
    )


def test_a_disk_behind_a_controller_and_a_device_without_a_node(tmp_path):
    machine = replace(
        sysfs_tree.ONE_NODE,
        pci=(("0000:00:1f.2", "0x010601", -1, "unused"),),
        files={
            "sys/devices/pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sda/x": ""
        },
    )
    (disk,) = read(tmp_path, machine).pci
    assert disk.node is None
    assert "sda" in disk.names


@pytest.mark.parametrize(
    ("cpuinfo", "arch", "model", "vendor"),
    [
        (
            "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n",
            "aarch64",
            "Neoverse-N1",
            "ARM",
        ),
        (
            "CPU implementer\t: 0x48\nCPU architecture: 8\nCPU part\t: 0xd01\n",
            "aarch64",
            "Kunpeng-920 (TaiShan v110)",
            "HiSilicon",
        ),
        (
            "CPU implementer\t: 0x70\nCPU architecture: 8\nCPU part\t: 0x663\n",
            "aarch64",
            "Phytium FTC663",
            "Phytium",
        ),
        (
            "CPU implementer\t: 0x99\nCPU architecture: 8\nCPU part\t: 0x1\n",
            "aarch64",
            "implementer 0x99 part 0x1",
            None,
        ),
        (
            "CPU Family\t: Loongson-64bit\nModel Name\t: Loongson-3C5000\n",
            "loongarch64",
            "Loongson-3C5000",
            None,
        ),
        ("cpu\t\t: POWER9, altivec supported\n", "ppc64", "POWER9, altivec supported", None),
        (
            "vendor_id\t: AuthenticAMD\nmodel name\t: AMD  EPYC\nflags\t: fpu lm\n",
            "x86_64",
            "AMD EPYC",
            "AuthenticAMD",
        ),
        ("vendor_id : IBM/S390\nprocessor 0: machine = 2964\n", "s390x", "IBM/S390 machine 2964",
         "IBM/S390"),
        ("vendor     : GenuineIntel\narch       : IA-64\n", "ia64", None, "GenuineIntel"),
        ("isa\t\t: rv64imafdc\nuarch\t\t: sifive,u74-mc\n", "riscv64", "sifive,u74-mc", None),
        ("something\t: else\n", None, None, None),
    ],
)  # fmt: skip
def test_processors_of_many_kinds(tmp_path, cpuinfo, arch, model, vendor):
    files = {"proc/version": None, "proc/sys/kernel/arch": None}
    machine = replace(sysfs_tree.ONE_NODE, cpuinfo=cpuinfo, files=files)
    found = read(tmp_path, machine)
    assert (found.arch, found.model, found.vendor) == (arch, model, vendor)


def test_a_folder_that_is_no_machine(tmp_path):
    root = sysfs_tree.write(tmp_path / "dumps", sysfs_tree.ONE_NODE)
    with pytest.raises(Fault, match="neither sys/devices/system/cpu nor") as fault:
        topology.read(tmp_path / "dumps")
    assert f"did you mean {root}?" in str(fault.value)
    with pytest.raises(Fault, match=f"did you mean {root}"):
        topology.read(root / "sys")
    with pytest.raises(Fault, match="is not a folder"):
        topology.read(tmp_path / "nowhere")
    sysfs_tree.write(tmp_path / "dumps", sysfs_tree.INTEL_2N)
    with pytest.raises(Fault) as fault:
        topology.read(tmp_path / "dumps")
    assert "did you mean" not in str(fault.value)


def test_garbage_is_no_crash(tmp_path):
    """Every file of a machine in turn holds nonsense: the rest is still read."""
    root = sysfs_tree.write(tmp_path, replace(sysfs_tree.ONE_NODE, caches=()))
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and "cpu0" in str(path)]
    files += [path for path in sorted(root.rglob("*")) if path.is_file() and "node0/" in str(path)]
    assert len(files) > 20
    for path in files:
        good = path.read_text()
        for nonsense in ("", "banana\n", "-1\n", "\0\0", "zz,00000001\n", "9" * 30):
            path.write_text(nonsense)
            dumps(topology.read(root))
        path.write_text(good)


def test_a_big_machine_costs_few_system_calls(tmp_path, monkeypatch):
    """The budget of 0.2 s for 512 CPUs in 16 nodes, counted instead of timed."""
    root = sysfs_tree.write(tmp_path, sysfs_tree.BIG_16N)
    opened = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda *args, **more: opened.append(1) or real(*args, **more))
    found = topology.read(root)
    assert (found.threads, found.cores, len(found.nodes)) == (512, 256, 16)
    assert len(opened) < 9 * 512


def _dumps():
    folder = os.environ.get("NUMALAB_SYSFS_DUMPS")
    if not folder:
        return []
    return sorted(sys.parent for sys in Path(folder).glob("**/sys") if (sys.parent / CPU).is_dir())


@pytest.mark.parametrize("root", _dumps() or [None], ids=lambda root: root and root.name)
def test_real_machines(root):
    if root is None:
        pytest.skip("set NUMALAB_SYSFS_DUMPS to a folder of copied sysfs trees to read them all")
    found = topology.read(root)
    dumps(found)
    online = {cpu.number for cpu in found.cpus if cpu.online}
    assert online and found.threads == len(online)
    for cpu in found.cpus:
        if cpu.online:
            assert cpulist.parse(cpu.siblings)[cpu.thread] == cpu.number
    for node in found.nodes:
        assert set(cpulist.parse(node.cpus)) <= online
    if shutil.which("hwloc-calc") is None:
        return
    environment = {**os.environ, "HWLOC_FSROOT": str(root), "HWLOC_THISSYSTEM": "0",
                   "HWLOC_COMPONENTS": "linux,stop"}  # fmt: skip

    def count(kind):
        command = ["hwloc-calc", "--disallowed", "-N", kind, "all"]
        return int(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)

    assert count("pu") == found.threads
    modules = any("module of cores" in problem for problem in map(str, found.problems))
    if found.cores is not None and not modules:
        assert count("core") == found.cores
