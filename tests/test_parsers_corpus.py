"""Every output of the corpus parses, and gives the numbers that a reader sees in it."""

from __future__ import annotations

import pytest

from corpus import corpus, fixture, read
from numalab import logs
from numalab.agent import cpulist, drivers
from numalab.agent.errors import Fault, ParseError

# What parses each folder of the corpus; None: told by the file's name.
FOLDERS = {
    "lscpu": "lscpu", "lscpu_table": "lscpu", "numactl_hardware": "numactl",
    "numactl_show": "numactl", "numastat": "numastat", "numastat_process": "numastat",
    "mlc": "mlc", "stream": "stream", "perf_stat": "perf-stat", "perf_stat_interval": "perf-stat",
    "perf_stat_per_socket_node": "perf-stat", "perf_stat_csv": "perf-stat",
    "perf_stat_json": "perf-stat", "sysbench_oltp": "sysbench", "sysbench_legacy": "sysbench",
    "sysbench_cpu_memory": "sysbench", "sysbench_failed": "sysbench", "mysql": None,
    "proc_sys": None,
}  # fmt: skip
BY_NAME = (
    ("numa_maps", "numa_maps"), ("zoneinfo", "zoneinfo"), ("vmstat", "vmstat"),
    ("meminfo", "meminfo"), ("numastat", "numastat"), ("errlog", "mysql-errlog"),
    ("show_global", "mysql-status"), ("innodb", "innodb-status"),
)  # fmt: skip


def tool_of(path: str) -> str:
    folder, name = path.split("/", 1)
    return FOLDERS[folder] or next(tool for mark, tool in BY_NAME if mark in name)


def indexed() -> list[str]:
    root = corpus()
    if root is None:
        return []
    rows = (root / "INDEX.tsv").read_text(encoding="utf-8").splitlines()[1:]
    paths = [row.split("\t")[0] for row in rows]
    return [path for path in paths if path.split("/")[0] in FOLDERS]


# Its last line, which tells the time, was cut off where it was posted (so says the index).
CUT = {"perf_stat/percore_a_A.txt": "\n       1.001234567 seconds time elapsed\n"}


def text_of(path: str) -> str:
    return read(path) + CUT.get(path, "")


def records(path: str) -> list[dict]:
    return logs.parser(tool_of(path))(text_of(path))


def pick(found: list[dict], **wanted) -> dict:
    """Return the only record with these values."""
    hits = [r for r in found if all(r.get(k) == v for k, v in wanted.items())]
    assert len(hits) == 1, (wanted, hits)
    return hits[0]


def value(found: list[dict], **wanted):
    return pick(found, **wanted)["value"]


@pytest.mark.parametrize("path", indexed() or ["absent"])
def test_every_file_parses_and_is_flat(path):
    if path == "absent":
        read("INDEX.tsv")
    found = records(path)
    assert found
    for record in found:
        assert isinstance(record["kind"], str)
        assert not any(isinstance(cell, (dict, list)) for cell in record.values())
        if "value" in record and record["value"] is None and record["kind"] != "status":
            assert record["reason"]


@pytest.mark.parametrize("path", indexed() or ["absent"])
def test_a_text_is_detected_as_its_own_tool_or_not_at_all(path):
    if path == "absent":
        read("INDEX.tsv")
    found = logs.detect(read(path))
    if found is not None:
        own = tool_of(path)
        assert logs.parser(found) == logs.parser(own) or found in own


@pytest.mark.parametrize("path", indexed() or ["absent"])
def test_line_ends_prompts_and_quotes_change_nothing(path):
    if path == "absent":
        read("INDEX.tsv")
    text = text_of(path)
    parse = logs.parser(tool_of(path))
    plain = parse(text)
    assert parse(text.replace("\r\n", "\n").replace("\n", "\r\n")) == plain
    assert parse("\n\nuser@host:~$ cat it\n" + text + "\nuser@host:~$ \n") == plain
    if not text.startswith(("#", "{")) and "\\n" not in text:
        quoted = "".join(f"> {line}\n" for line in text.splitlines())
        assert parse(quoted) == plain


# lscpu


@pytest.mark.parametrize(
    ("name", "cpus", "sockets", "cores", "threads", "nodes"),
    [
        ("epyc7451_2s_8nodes", 96, 2, 24, 2, 8),
        ("epyc7h12_2s_8nodes", 128, 2, 64, 1, 8),
        ("epyc9354p_nps4", 64, 1, 32, 2, 4),
        ("power8_lpar_be", 32, 1, 4, 8, 1),
        ("phytium_2s_16nodes", 128, 2, 64, 1, 16),
        ("thunderx2_2s_224cpu", 224, 2, 28, 4, 2),
        ("xeon_e5-4650v3_4s", 48, 4, 12, 1, 4),
        ("loongson_3a6000_1node", 8, 1, 8, 1, 1),
        ("qemu_vm_2s_2nodes", 2, 2, 1, 1, 2),
        ("locale_ja_i7", 16, 1, 8, 2, 1),
        ("grace_1s", 72, 1, 72, 1, 1),
    ],
)
def test_lscpu_counts(name, cpus, sockets, cores, threads, nodes):
    found = records(f"lscpu/{name}.txt")
    expected = {
        "cpus": cpus, "sockets": sockets, "cores_per_socket": cores,
        "threads_per_core": threads, "nodes": nodes,
    }  # fmt: skip
    assert {key: value(found, kind="field", name=key) for key in expected} == expected
    lists = [r["cpus"] for r in found if r["kind"] == "node"]
    assert len(lists) == nodes
    assert sum(len(cpulist.parse(cpus)) for cpus in lists) == cpus


def test_lscpu_details():
    found = records("lscpu/epyc9354p_nps4.txt")
    assert pick(found, kind="node", node=2)["cpus"] == "16-23,48-55"
    l3 = pick(found, kind="cache", name="L3")
    assert (l3["value"], l3["instances"], l3["scope"]) == (256 << 20, 8, "all")
    assert value(found, name="bogomips") == 6499.44
    old = pick(records("lscpu/xeon_e5-4650v3_4s.txt"), kind="cache", name="L3")
    assert (old["value"], old["instances"], old["scope"]) == (30720 << 10, None, "one")
    comma = records("lscpu/locale_decimal_comma_ryzen.txt")
    assert value(comma, name="max_mhz") == 4409.0000
    grace = records("lscpu/grace_1s.txt")
    assert pick(grace, kind="cache", name="L1d")["value"] == int(4.5 * 2**20)
    flags = value(grace, name="flags").split()
    assert flags[0] == "fp" and flags[-1] == "bti" and "sm3" in flags and "sm4" in flags
    mailed = value(records("lscpu/thunderx2_2s_224cpu.txt"), name="flags")
    assert mailed.endswith("cpuid asimdrdm")
    ja = records("lscpu/locale_ja_i7.txt")
    assert value(ja, kind="cache", name="L3") == 30 << 20
    assert value(ja, name="bogomips") == 6835.2
    assert pick(ja, label="モデル")["name"] is None


def test_lscpu_tables():
    found = records("lscpu_table/extended_decimal_comma.txt")
    assert [r["cpu"] for r in found] == list(range(12))
    assert pick(found, cpu=7)["core"] == 1
    assert pick(found, cpu=0)["max_mhz"] == 4600.0
    assert pick(found, cpu=11)["L1d"] == 5 and pick(found, cpu=11)["L3"] == 0
    parsed = records("lscpu_table/parse_e5606.txt")
    assert [(r["cpu"], r["L2"], r["L3"]) for r in parsed] == [(n, n, 0) for n in range(4)]
    summary = records("lscpu_table/json_4cpu.json")
    assert value(summary, name="threads_per_core") == 2
    assert value(summary, name="mhz") == 1915.969


def test_own_lscpu_forms_agree():
    text, tree = (
        logs.parser("lscpu")(fixture("lscpu.txt")),
        logs.parser("lscpu")(fixture("lscpu.json")),
    )
    for name in ("cpus", "online", "threads_per_core", "cores_per_socket", "sockets", "flags"):
        assert value(text, kind="field", name=name) == value(tree, kind="field", name=name)
    caches = {r["name"]: r for r in logs.parser("lscpu")(fixture("lscpu-caches.txt"))}
    for record in text:
        if record["kind"] == "cache":
            assert record["value"] == caches[record["name"]]["all_bytes"]
    table = logs.parser("lscpu")(fixture("lscpu-extended.txt"))
    same = logs.parser("lscpu")(fixture("lscpu-extended.json"))
    assert [r["cpu"] for r in table] == [r["cpu"] for r in same]
    assert [r["L1d"] for r in table] == [r["L1d"] for r in same]
    assert len(table) == value(text, name="cpus")


def test_lscpu_german_and_french():
    german = """Architektur:                         x86_64
CPU Operationsmodus:                 32-bit, 64-bit
Byte-Reihenfolge:                    Little Endian
CPU(s):                              8
Liste der Online-CPU(s):             0-7
Anbieterkennung:                     GenuineIntel
Modellname:                          Some CPU
Prozessorfamilie:                    6
Modell:                              142
Thread(s) pro Kern:                  2
Kern(e) pro Sockel:                  4
Sockel:                              1
Stepping:                            10
Maximale Taktfrequenz der CPU:       4000,0000
BogoMIPS:                            3999,93
L1d Cache:                           128 KiB (4 Instanzen)
L3 Cache:                            8 MiB (1 Instanz)
NUMA-Knoten:                         1
NUMA-Knoten0 CPU(s):                 0-7
"""
    found = logs.parser("lscpu")(german)
    for name, number in (("cpus", 8), ("threads_per_core", 2), ("cores_per_socket", 4),
                         ("sockets", 1), ("nodes", 1), ("bogomips", 3999.93)):  # fmt: skip
        assert value(found, kind="field", name=name) == number
    assert value(found, name="online") == "0-7" and pick(found, kind="node")["cpus"] == "0-7"
    assert value(found, kind="cache", name="L1d") == 128 << 10
    french = "Processeur(s) :  4\nListe de processeur(s) en ligne : 0-3\nNœud(s) NUMA : 1\n"
    assert value(logs.parser("lscpu")(french), name="cpus") == 4


# numactl


def distances(found: list[dict]) -> dict:
    return {(r["from"], r["to"]): r["value"] for r in found if r["kind"] == "distance"}


def test_numactl_hardware():
    found = records("numactl_hardware/kunpeng920_4n_mail_wrapped.txt")
    assert pick(found, kind="node_cpus", node=1)["cpus"] == "32-63"
    assert value(found, kind="node_free", node=3) == 250749
    assert distances(found)[1, 3] == 24
    cxl = records("numactl_hardware/qemu_cxl_3n.txt")
    assert pick(cxl, kind="node_cpus", node=2) == {
        "kind": "node_cpus", "node": 2, "cpus": "", "value": 0,
    }  # fmt: skip
    assert value(cxl, kind="node_size", node=2) == 256
    chain = distances(records("numactl_hardware/vm_5n_asymmetric_chain.txt"))
    assert (chain[0, 1], chain[4, 0], len(chain)) == (39, 36, 25)
    sparse = records("numactl_hardware/hgdb_8n.txt")
    assert value(sparse, kind="node_size", node=0) == 0
    assert pick(sparse, kind="node_cpus", node=7)["cpus"] == "56-63,120-127"
    assert distances(sparse)[0, 6] == 22
    assert (
        pick(records("numactl_hardware/percona_007.txt"), node=1, kind="node_cpus")["value"] == 12
    )


@pytest.mark.parametrize(
    "path", [p for p in indexed() if p.startswith("numactl_hardware/")] or ["absent"]
)
def test_numactl_nodes_share_no_cpu_and_are_nearest_to_themselves(path):
    found = records(path) if path != "absent" else read("INDEX.tsv")
    cpus = [c for r in found if r["kind"] == "node_cpus" for c in cpulist.parse(r["cpus"])]
    assert len(cpus) == len(set(cpus))
    table = distances(found)
    assert all(table[a, a] == 10 for a, b in table)
    assert all(table[a, b] > 10 for a, b in table if a != b)


def test_numactl_show():
    found = records("numactl_show/xeon_e5-2695v4_2n.txt")
    assert value(found, name="physcpubind") == "0-35" and value(found, name="membind") == "0-1"
    assert value(found, name="policy") == "default"
    local = logs.parser("numactl")(fixture("numactl-show-local.txt"))
    assert value(local, name="policy") == "local" and value(local, name="physcpubind") == "0-1"
    interleave = logs.parser("numactl")(fixture("numactl-show-interleave.txt"))
    assert value(interleave, name="interleavemask") == "0"
    assert value(interleave, name="preferred node") == "0 (interleave next)"
    both = fixture("numactl-hardware.txt") + "\n" + fixture("numactl-show.txt")
    kinds = {r["kind"] for r in logs.parser("numactl")(both)}
    assert {"machine", "distance", "show"} <= kinds


def test_numactl_sparse_nodes_compressed_and_without_memory():
    text = """available: 3 nodes (0,8,252)
node 0 cpus: 0-3, 8 (5)
node 0 size: 100 MB
node 0 free: 50 MB
node 8 cpus: 4-7 (4)
node 8 size: <not available>
node 8 free: <not available>
node 252 cpus: (0)
node 252 size: 7 MB
node 252 free: 7 MB
No distance information available.
"""
    found = logs.parser("numactl")(text)
    assert pick(found, kind="node_cpus", node=0)["cpus"] == "0-3,8"
    assert pick(found, kind="node_size", node=8)["reason"] == "not available"
    assert pick(found, kind="no_distances")
    with pytest.raises(ParseError, match="names 5 CPUs"):
        logs.parser("numactl")(text.replace("(5)", "(6)"))


# numastat and the kernel's counters


def test_numastat():
    found = records("numastat/8n_wide_start.txt")
    assert len(found) == 48
    assert value(found, node=4, name="numa_hit") == 12265903
    assert value(found, node=7, name="other_node") == 67555
    for node in range(8):
        hit, miss, local, other = (
            value(found, node=node, name=n)
            for n in ("numa_hit", "numa_miss", "local_node", "other_node")
        )
        assert local + other == hit + miss
    compact = records("numastat_process/c_openstack.txt")
    assert pick(compact, name="numa_hit", node=0)["unit"] == "MiB"
    assert value(compact, kind="total", name="other_node") == 447


def test_numastat_processes():
    found = records("numastat_process/mp_llama_2n.txt")
    private = pick(found, kind="process_memory", name="Private", node=1)
    assert private["value"] == 383083.54 and private["pid"] == 659855
    assert private["command"] == "llama-sweep-ben"
    assert value(found, kind="system_memory", name="MemFree", node=1) == 1745.54
    assert value(found, kind="total", of="system_memory", name="KReclaimable") == 1425.27
    four = records("numastat_process/p_epyc7a53_4n.txt")
    assert value(four, name="Heap", node=3) == 2050.13
    token = records("numastat_process/m_2n_token.txt")
    assert sum(r["kind"] == "warning" for r in token) == 6
    several = logs.parser("numastat")(fixture("numastat-p-pattern.txt"))
    rows = [r for r in several if r["kind"] == "process_memory"]
    assert [r["command"] for r in rows] == ["sleep", "sleep", None]
    assert rows[2]["value"] == pytest.approx(rows[0]["value"] + rows[1]["value"], abs=0.011)


def test_numastat_in_blocks():
    rows = ("numa_hit", "numa_miss", "numa_foreign", "interleave_hit", "local_node", "other_node")
    text = ""
    for block in ((0, 1, 2), (3, 4, 5), (6,)):
        text += " " * 20 + "".join(f"{f'node{n}':>16}" for n in block) + "\n"
        for at, row in enumerate(rows):
            text += f"{row:<20}" + "".join(f"{n * 100 + at:>16}" for n in block) + "\n"
        text += "\n"
    found = logs.parser("numastat")(text)
    assert len(found) == 42 and value(found, node=5, name="local_node") == 504
    with pytest.raises(ParseError):
        logs.parser("numastat")(text[: text.rindex("local_node")])


def test_numa_maps():
    found = records("proc_sys/numa_maps_weighted_interleave.txt")
    cells = {(r["address"], r["node"]): r["value"] for r in found if r["kind"] == "node_pages"}
    assert cells["007c0000", 0] == 54829 * 4096 and cells["7f3f60dfe000", 1] == 10922 * 4096
    heap = pick(found, kind="mapping", address="007c0000")
    assert (heap["policy"], heap["policy_nodes"], heap["heap"], heap["anon"]) == (
        "weighted interleave", "0-1", True, 65794,
    )  # fmt: skip
    full = records("proc_sys/numa_maps_full.txt")
    assert sum(r["kind"] == "mapping" for r in full) == 213
    assert sum(r["kind"] == "node_pages" for r in full) == 174
    first = pick(full, kind="mapping", address="55a9e753c000")
    assert first["file"] == "/usr/lib/systemd/systemd" and first["mapmax"] == 2
    odd = (
        "7f00 prefer (many):0,2 file=/tmp/a\\040b\\040(deleted) huge dirty=2 N2=2 "
        "kernelpagesize_kB=2048\n7f01 bind=static|balancing:1 stack:77 anon=1 N1=1 "
        "kernelpagesize_kB=64\n7f02 prefer=relative:3\n"
    )
    many, bound, last = (r for r in logs.parser("numa_maps")(odd) if r["kind"] == "mapping")
    assert (many["policy"], many["file"], many["page_bytes"]) == (
        "prefer (many)", "/tmp/a b (deleted)", 2 << 20,
    )  # fmt: skip
    assert (bound["policy_flags"], bound["stack"]) == ("static|balancing", True)
    assert last["pages"] == 0
    old = logs.parser("numa_maps")("00400000 default anon=3 N0=3\n")
    assert old[1]["value"] is None and "kernelpagesize" in old[1]["reason"]


def test_kernel_counters():
    meminfo = records("proc_sys/128arm-2pa2n8cluster4co_node1_meminfo.txt")
    total = pick(meminfo, name="MemTotal")
    assert (total["value"], total["unit"], total["node"]) == (132117940, "KiB", 1)
    used = value(meminfo, name="MemUsed")
    assert total["value"] - value(meminfo, name="MemFree") == used
    assert pick(meminfo, name="HugePages_Free")["unit"] == "pages"
    node = records("proc_sys/64amd64-4p2n4ca2co_node5_numastat.txt")
    assert value(node, name="local_node") == 1237280
    vmstat = records("proc_sys/nvidiagpu_node0_vmstat.txt")
    assert value(vmstat, name="numa_other") == 29481
    zones = records("proc_sys/zoneinfo_2n.txt")
    assert value(zones, kind="zone", node=0, zone="DMA32", name="free") == 606010
    assert value(zones, kind="node_statistic", node=0, name="nr_active_file") == 130748
    assert value(zones, kind="pageset", node=0, zone="DMA32", cpu=1, name="count") == 243
    assert value(zones, kind="zone", node=0, zone="DMA", name="start_pfn") == 1


# MLC


def matrix(found: list[dict], kind: str) -> dict:
    return {(r["from"], r["to"]): r["value"] for r in found if r["kind"] == kind}


def test_mlc_full_run():
    found = records("mlc/broadwell_mlc.txt")
    assert pick(found, kind="version")["text"] == "3.1a"
    assert matrix(found, "idle_latency")[1, 0] == 141.1
    assert matrix(found, "bandwidth")[2, 3] == 18850.3
    assert value(found, kind="peak_bandwidth", traffic="2:1") == 126626.7
    loaded = [r for r in found if r["kind"] == "loaded_latency"]
    assert len(loaded) == 19
    assert (loaded[6]["delay"], loaded[6]["value"], loaded[6]["bandwidth"]) == (200, 91.29, 70055.4)
    hitm = pick(found, kind="cache_latency", writer=2, reader=3, homed="reader")
    assert hitm["value"] == 98.9
    assert pick(found, writer=0, reader=0, homed="writer")["reason"]
    assert value(found, transfer="Local Socket L2->L2 HITM latency") == 39.2
    assert sum(r["kind"] == "cache_latency" for r in found) == 2 + 2 * 16


def test_mlc_versions_and_single_tests():
    cascade = records("mlc/cascadelake_mlc.txt")
    assert {r["access"] for r in cascade if r["kind"] == "idle_latency"} == {"random"}
    assert sum(r["kind"] == "warning" for r in cascade) == 2
    granite = records("mlc/xeon6980p_2n.txt")
    assert {r["access"] for r in granite if r["kind"] == "idle_latency"} == {"sequential"}
    assert matrix(granite, "idle_latency")[0, 1] == 449.2
    assert value(granite, kind="peak_bandwidth", traffic="reads") == 1108235.0
    assert matrix(records("mlc/epyc9354p_nps1_latency_matrix.txt"), "idle_latency") == {
        (0, 0): 113.0
    }
    nps4 = matrix(records("mlc/epyc9354p_nps4_latency_matrix.txt"), "idle_latency")
    assert len(nps4) == 16 and nps4[3, 2] == 114.7
    wide = records("mlc/bandwidth_matrix_U.txt")
    assert matrix(wide, "bandwidth")[1, 1] == 247393.3
    assert pick(wide, kind="command")["text"] == "--bandwidth_matrix -U"
    (across,) = (
        row for row in drivers.driver("mlc").metrics(wide) if row.point == "0-1 reads random"
    )
    assert (across.value, across.unit) == (pytest.approx(120.2426), "GB/s")


def test_mlc_memory_only_nodes_and_cut_values():
    text = (
        "Intel(R) Memory Latency Checker - v3.11\nMeasuring idle latencies (in ns)...\n"
        "\t\tNuma node\nNuma node\t     0\t     1\t     2\t\n"
        "       0\t  81.0\t 140.1\t 250.5\t\n       1\t 140.0\t  81.1\t 251.5\t\n"
    )
    # The agent knows that its own output is whole; of another's only a second matrix says so.
    assert len(matrix(drivers.driver("mlc").parse(text), "idle_latency")) == 6
    again = text.split("\n", 1)[1].replace(
        "idle latencies (in ns)...", "Memory Bandwidths between nodes within system"
    )
    assert len(matrix(logs.parser("mlc")(text + again), "idle_latency")) == 6
    for bad in (text, text[:-3], text.replace("140.1\t", ""), text.replace("81.1", "81.12"),
                text.replace("81.1", "-81.1"), text[:130]):  # fmt: skip
        with pytest.raises(ParseError):
            logs.parser("mlc")(bad)
    alone = (
        "Intel(R) Memory Latency Checker - v3.9a\nCommand line parameters: --idle_latency\n\n"
        "Using buffer size of 200.000MiB\n"
        "Each iteration took 213.4 base frequency clocks (\t 71.2\tns)\n"
    )
    assert value(logs.parser("mlc")(alone), kind="idle_latency") == 71.2
    highest = (
        "Intel(R) Memory Latency Checker - v3.5\nCommand line parameters: --max_bandwidth\n\n"
        "Measuring Maximum Memory Bandwidths for the system\n"
        "Will take several minutes to complete as multiple injection rates will be tried to get "
        "the best bandwidth\nUsing traffic with the following read-write ratios\n"
        "ALL Reads        :\t216876.52\t\n3:1 Reads-Writes :\t181793.35\t\n"
        "2:1 Reads-Writes :\t178793.35\t\n1:1 Reads-Writes :\t160000.00\t\n"
        "Stream-triad like:\t186000.10\t\n"
    )
    twice = logs.parser("mlc")(highest + "\n$ ./mlc --max_bandwidth\n" + highest)
    found = [(r["run"], r["value"]) for r in twice if r["kind"] == "max_bandwidth"]
    assert found[::5] == [(1, 216876.52), (2, 216876.52)] and len(found) == 10
    points = [row.point for row in drivers.driver("mlc").metrics(twice)]
    assert points[0] == "reads run 1" and points[-1] == "triad run 2"


# STREAM


def test_stream():
    found = records("stream/v5.10_2thr.txt")
    assert value(found, kind="kernel", name="triad") == 14586.1
    assert pick(found, name="add")["minimum_s"] == 0.016692
    setup = pick(found, kind="setup")
    assert (setup["array_elements"], setup["array_bytes"], setup["threads_counted"]) == (
        10_000_000, 80_000_000, 2,
    )  # fmt: skip
    assert value(found, kind="validation") is True
    assert pick(records("stream/v5.10_julia_serial.txt"), kind="setup")["threads_counted"] is None
    offset = pick(records("stream/v5.10_kunpeng916_64thr_30times.txt"), kind="setup")
    assert (offset["offset"], offset["iterations"]) == (4096, 30)


@pytest.mark.parametrize("path", [p for p in indexed() if p.startswith("stream/")] or ["absent"])
def test_stream_rates_agree_with_times(path):
    found = records(path) if path != "absent" else read("INDEX.tsv")
    setup = pick(found, kind="setup")
    for kernel in (r for r in found if r["kind"] == "kernel"):
        arrays = 2 if kernel["name"] in ("copy", "scale") else 3
        rate = arrays * setup["array_bytes"] / kernel["minimum_s"] / 1e6
        assert rate == pytest.approx(kernel["value"], rel=1e-3)


OLD_STREAM = """-------------------------------------------------------------
STREAM version $Revision: 5.9 $
-------------------------------------------------------------
This system uses 8 bytes per DOUBLE PRECISION word.
-------------------------------------------------------------
Array size = 2000000, Offset = 0
Total memory required = 45.8 MB.
Each test is run 10 times, but only
the *best* time for each is used.
-------------------------------------------------------------
Number of Threads requested = 4
-------------------------------------------------------------
Printing one line per active thread....
Printing one line per active thread....
-------------------------------------------------------------
Your clock granularity/precision appears to be 1 microseconds.
Each test below will take on the order of 1546 microseconds.
   (= 1546 clock ticks)
Increase the size of the arrays if this shows that
you are not getting at least 20 clock ticks per test.
-------------------------------------------------------------
WARNING -- The above is only a rough guideline.
For best results, please be sure you know the
precision of your system timer.
-------------------------------------------------------------
Function      Rate (MB/s)   Avg time     Min time     Max time
Copy:       20034.2531       0.0016       0.0016       0.0017
Scale:      19998.1023       0.0016       0.0016       0.0017
Add:        21034.9831       0.0023       0.0023       0.0024
Triad:      21230.0201       0.0023       0.0023       0.0024
-------------------------------------------------------------
Solution Validates
-------------------------------------------------------------
"""


def test_stream_older_and_failing():
    found = logs.parser("stream")(OLD_STREAM)
    assert value(found, name="copy") == 20034.2531 and value(found, kind="validation") is True
    failed = OLD_STREAM.replace(
        "Solution Validates",
        "Failed Validation on array a[], AvgRelAbsErr > epsilon (1.000000e-13)\n"
        "     Expected Value: 1.15e+18, AvgAbsErr: 2.0e+02, AvgRelAbsErr: 1.7e-03\n"
        "     For array a[], 2000000 errors were found.",
    )
    found = logs.parser("stream")(failed)
    assert value(found, kind="validation") is False
    metrics = drivers.driver("stream").metrics(found)
    assert all(row.value is None and "Failed" in str(row.reason) for row in metrics)
    cut = logs.parser("stream")(OLD_STREAM[: OLD_STREAM.index("Solution")])
    assert value(cut, kind="validation") is None
    with pytest.raises(ParseError):
        logs.parser("stream")(OLD_STREAM[: OLD_STREAM.index("Triad:")])


# perf stat


def test_perf_stat_text():
    found = records("perf_stat/cmd_o_file.txt")
    assert value(found, event="cycles") == 93026790157
    clock = pick(found, event="task-clock")
    assert (clock["value"], clock["unit"], clock["metric_value"]) == (18003.70, "msec", 1.0)
    assert value(found, kind="metric", name="stalled cycles per insn") == 0.0
    assert value(found, kind="elapsed") == 18.005087828 and value(found, kind="user") == 18.004352
    many = records("perf_stat/aarch64_pid_multiplexed.txt")
    assert pick(many, event="L1-dcache-stores")["running_percent"] == 48.51
    assert pick(many, event="cache-misses")["metric_value"] == 6.169
    wsl = records("perf_stat/wsl2_not_supported.txt")
    assert pick(wsl, event="branches")["reason"] == "not supported"
    assert value(wsl, event="branches") is None
    noisy = records("perf_stat/r100_user.txt")
    assert pick(noisy, kind="target")["runs"] == 100
    assert pick(noisy, event="page-faults:u")["variance_percent"] == 0.21
    assert pick(noisy, kind="elapsed")["variance_percent"] == 0.09
    core = pick(records("perf_stat/percore_a_A.txt"), aggregate="S0-D0-C3")
    assert core["value"] == 1233659 and core["event"] == "cpu/event=cpu-cycles,percore/"


def test_perf_stat_aggregates_and_intervals():
    nodes = records("perf_stat_per_socket_node/per_node_interval.txt")
    assert value(nodes, interval_s=2.002040063, aggregate="N1") == 2185577
    assert all(r["cpus"] == 20 for r in nodes)
    only = records("perf_stat_per_socket_node/per_socket_metric_only_interval.txt")
    assert [r["value"] for r in only] == [3.2, 2.9, 4.3, 3.0, 3.7]
    steps = records("perf_stat_interval/ipc_comment.txt")
    assert pick(steps, interval_s=2.001516426, event="instructions")["metric_value"] == 0.87


def test_perf_stat_csv_and_json():
    found = records("perf_stat_csv/per_socket_fixed.csv")
    assert value(found, event="instructions") == 88766
    assert value(found, kind="metric") == 1.27
    assert {r["aggregate"] for r in found} == {"S0"} and {r["cpus"] for r in found} == {1}
    assert value(records("perf_stat_csv/arm64_ldspec.csv"), event="ld_spec") == 235733
    assert value(records("perf_stat_csv/default_events.csv"), kind="metric") == 0.04
    lines = records("perf_stat_json/interval_v1_numbers.json")
    assert value(lines, event="cycles:u") == 143761
    assert pick(lines, event="branch-misses:u")["reason"] == "not counted"
    late = records("perf_stat_json/interval_metric_threshold.json")
    assert pick(late, kind="metric", name="tma_frontend_bound")["metric_threshold"] == "bad"
    only = records("perf_stat_json/metric_only_per_socket.json")
    assert value(only, name="insn per cycle") == 2.14


@pytest.mark.parametrize("form", ["", "-node", "-A", "-r", "-I", "-thread"])
def test_perf_stat_forms_of_one_version_name_the_same_events(form):
    keys = []
    for kind in ("text", "csv", "json"):
        found = logs.parser("perf-stat")(fixture(f"perf{form}-{kind}.txt"))
        events = [r for r in found if r["kind"] == "event"]
        keys.append([(r["event"], r["unit"], r.get("aggregate"), r.get("reason")) for r in events])
        assert events
    assert keys[0] == keys[1] == keys[2]


@pytest.mark.parametrize(
    ("count", "unit", "expected"),
    [
        ("1,234,567", "", 1234567), ("1.234.567", "", 1234567),
        ("1\u202f234\u202f567", "", 1234567),
        ("1'234'567", "", 1234567), ("18.003,70", "msec", 18003.70), ("1,234", "", 1234),
        ("12.34", "Joules", 12.34), ("2.164300", "msec", 2.1643), ("1234567", "", 1234567),
        ("12,34,567", "", 1234567), ("0", "", 0),
    ],
)  # fmt: skip
def test_perf_stat_locales(count, unit, expected):
    text = f"{HEAD}  {count} {unit} {'' if unit else 'some-'}event\n{TAIL}"
    assert value(logs.parser("perf-stat")(text), kind="event") == pytest.approx(expected)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|", ":", "#", "!!"])
def test_perf_stat_any_separator(separator):
    rows = [["12", "", "cycles:u", "99", "50.00", "0.5", "GHz"],
            ["3.5", "msec", "cpu/event=1,percore/", "99", "100.00", "", ""]]  # fmt: skip
    if separator == ":":
        rows[0][2] = "cycles"
    text = "\n".join(separator.join(row) for row in rows)
    found = logs.parser("perf-stat")(text)
    assert [r["value"] for r in found] == [12, 3.5]
    assert found[0]["running_percent"] == 50.0 and found[1]["event"] == "cpu/event=1,percore/"


# sysbench


def test_sysbench_results():
    found = records("sysbench_cpu_memory/v1.0.18_memory_1K_32thr.txt")
    assert value(found, name="operations_per_second") == 12298798.17
    assert value(found, name="transfer_rate") == 12010.55
    assert value(found, kind="option", name="threads") == 32
    assert value(found, name="latency_max") == 7.01
    newer = records("sysbench_cpu_memory/v1.1_cpu_p99.txt")
    assert value(newer, name="latency_p99") == 0.64 and value(newer, name="throughput") == 6459.1925
    old = records("sysbench_legacy/v0.4_memory.txt")
    assert pick(old, name="transfer_rate") == {
        "kind": "result", "name": "transfer_rate", "value": 74681.96, "unit": "MiB/s",
    }  # fmt: skip
    assert value(old, name="latency_max") == 0.02
    oltp = records("sysbench_oltp/v1.0.18_ro_m5.12xlarge_64thr.txt")
    assert value(oltp, name="transactions_per_second") == 27964.12
    assert value(oltp, name="queries_total") == value(oltp, name="queries_read") + value(
        oltp, name="queries_other"
    )
    explained = records("sysbench_oltp/v1.1.0_point_select_8thr_explain.txt")
    assert value(explained, name="queries_read") == 112612103


def test_sysbench_reports():
    found = records("sysbench_oltp/v1.0.12_ro_1thr_1s_reports.txt")
    reports = [r for r in found if r["kind"] == "report"]
    assert [r["t_s"] for r in reports] == list(range(1, 901))
    assert reports[12]["qps"] == 10256.90 and reports[12]["latency"] == 1.61
    mean = sum(r["tps"] for r in reports) / 900
    assert mean == pytest.approx(value(found, name="transactions_per_second"), rel=1e-3)
    micro = records("sysbench_legacy/v0.5_oltp_100thr.txt")
    first = next(r for r in micro if r["kind"] == "report")
    assert (first["latency"], first["latency_unit"], first["errors"]) == (12174.77, "us", 0.6)
    assert value(micro, name="ignored_errors") == 413


@pytest.mark.parametrize(
    ("name", "code"),
    [("super_read_only_1290", 1290), ("prepare_1064", 1064), ("connect_1135", 1135)],
)
def test_sysbench_failures_are_never_a_success(name, code):
    found = records(f"sysbench_failed/{name}.txt")
    assert any(r["kind"] == "failure" and r["code"] == code for r in found)
    metrics = drivers.driver("sysbench").metrics(found)
    assert metrics and all(row.value is None and row.reason for row in metrics)


def test_sysbench_measured_period_is_what_follows_the_checkpoint():
    for test in ("cpu", "threads"):
        found = logs.parser("sysbench")(fixture(f"sysbench-{test}.txt"))
        warm = [r for r in found if "checkpoint_s" in r]
        assert pick(warm, name="total_events")["value"] > 0
        final = [r for r in found if "checkpoint_s" not in r]
        events = value(final, name="total_events")
        buckets = [r for r in final if r["kind"] == "histogram"]
        assert sum(r["count"] for r in buckets) == pytest.approx(events, abs=4)
        metrics = {row.metric: row.value for row in drivers.driver("sysbench").metrics(found)}
        seconds = value(final, name="total_time") - pick(warm, name="total_time")["value"]
        assert metrics["events_per_second"] == pytest.approx(events / seconds, rel=0.02)
        p50, p95, p99, top = (metrics[f"latency_{name}"] for name in ("p50", "p95", "p99", "max"))
        assert 0 < p50 <= p95 <= p99 <= top * 1.02
        assert p95 == pytest.approx(value(final, name="latency_p95"), rel=0.03)


# MySQL


def test_mysql():
    log = records("mysql/errlog_8.0.32_datadir_permission.txt")
    failed = pick(log, code="MY-013276")
    assert failed["level"] == "ERROR" and "Permission denied" in failed["text"]
    old = records("mysql/errlog_5.0_several_starts.txt")
    assert {r["version"] for r in old if r["kind"] == "server"} == {"5.0.45-log"}
    assert any("unknown variable" in r.get("text", "") for r in old)
    status = records("mysql/show_global_status_tab.txt")
    assert value(status, name="Bytes_sent") == 43255
    assert value(status, name="Rpl_status") is None and value(status, name="Ssl_cipher") == ""
    innodb = records("mysql/innodb_status_5.5.txt")
    assert value(innodb, name="History list length") == 11
    assert pick(innodb, name="Free buffers")["unit"] == "pages"
    maria = records("mysql/innodb_status_mariadb_11.7.txt")
    assert value(maria, name="Database pages") == 5447241
    assert value(maria, name="Log sequence number") == 188663282876
    boxed = "+---+---+\n| Variable_name | Value |\n+---+---+\n| Uptime | 77 |\n+---+---+\n"
    assert logs.parser("mysql-status")(boxed) == [{"kind": "status", "name": "Uptime", "value": 77}]


# The registry


def test_parsers_are_found_by_their_names():
    for name in [*logs.PARSERS, "numa-maps", "perf-stat", "PERF_STAT", "mysql_status"]:
        assert callable(logs.parser(name))
    with pytest.raises(Fault, match="known: .*lscpu"):
        logs.parser("nonesuch")
    with pytest.raises(Fault, match="no measuring tool"):
        drivers.driver("lscpu")
    assert logs.detect("nothing that we know") is None


# Forms that other versions print


HEAD = " Performance counter stats for 'x':\n\n"
TAIL = "\n       1.001234567 seconds time elapsed\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            " 1,000 cycles   #  0.5 GHz   [83.33%]\n",
            {"running_percent": 83.33, "metric_value": 0.5},
        ),
        (" 0.851820 task-clock (msec)\n", {"unit": "msec", "event": "task-clock"}),
        (" 1000.123456 task-clock-msecs\n", {"unit": "msec", "event": "task-clock"}),
        (" <not counted>  cpu_atom/cycles/  (0.00%)\n", {"value": None, "reason": "not counted"}),
        (" 12.34 Joules power/energy-pkg/\n", {"unit": "Joules", "value": 12.34}),
        (" 1,234 cycles    /user.slice/a\n", {"cgroup": "/user.slice/a"}),
        (" 5 branches   ( +-  nan% )\n", {"variance_percent": None, "value": 5}),
        ("S0-D0-C1    2   1,234 cycles\n", {"aggregate": "S0-D0-C1", "cpus": 2}),
        ("   my prog-77     1,234 cycles\n", {"aggregate": "my prog-77"}),
    ],
)
def test_perf_stat_lines_of_other_versions(text, expected):
    event = pick(logs.parser("perf-stat")(HEAD + text + TAIL), kind="event")
    assert {key: event[key] for key in expected} == expected


@pytest.mark.parametrize(
    "text",
    [
        "Error:\nThe cycles event is not supported.\n",
        "event syntax error: 'foo'\n",
        HEAD,
        HEAD + " 1,234 cycles\n",
        HEAD + " 1,234 cycles\n" + TAIL + " 0.010000000 seconds user\n",
        HEAD + " 1.23 cycles 4\n" + TAIL,
        HEAD + " 1,23,4 cycles\n" + TAIL,
        HEAD + " 1,234,567,890 cycles\n 12,34,567 instructions\n" + TAIL,
        HEAD + " 1,234 cycles\n 12345 instructions\n" + TAIL,
        HEAD + " 12.34 cycles\n" + TAIL,
        HEAD + " 100 cycles  # 0.5 GHz (66.5%)\n" + TAIL,
        '{"counter-value" : "1.0", "unit" : "", "event" : "cycles", "surprise" : 1}\n',
        '{"unit" : "GHz"}{"unit" : "CPI"}\n{"metric-value" : "0.5"}\n',
    ],
)
def test_perf_stat_refuses(text):
    with pytest.raises(ParseError):
        logs.parser("perf-stat")(text)


def test_lscpu_of_unusual_machines():
    parse = logs.parser("lscpu")
    table = (
        "CPU NODE BOOK SOCKET CORE L1d:L1i:L2d:L2i ONLINE CONFIGURED POLARIZATION ADDRESS\n"
        "0   0    0    0      0    0:0:0:0         yes    yes        horizontal   0\n"
        "2   -    -    -      -    :::             no     yes        horizontal   1\n"
    )
    first, second = parse(table)
    assert (first["L2i"], first["polarization"], first["online"]) == (0, "horizontal", True)
    assert (second["node"], second["L2i"], second["online"]) == (None, None, False)
    assert parse("# CPU,Core,Socket,Node,,L1d\n0,0,0,,,0\n")[0]["node"] is None
    power = parse(
        "CPU(s):                160\nOn-line CPU(s) list:   0,8,16,24\n"
        "Off-line CPU(s) list:  1-7,9-15,17-23,25-159\nNUMA node(s): 3\n"
        "NUMA node0 CPU(s): 0,8\nNUMA node8 CPU(s): 16,24\nNUMA node252 CPU(s):\n"
    )
    assert value(power, name="offline") == "1-7,9-15,17-23,25-159"
    assert [(r["node"], r["cpus"]) for r in power if r["kind"] == "node"] == [
        (0, "0,8"), (8, "16,24"), (252, ""),
    ]  # fmt: skip
    big_little = parse(
        "CPU(s): 6\n  On-line CPU(s) list: 0-5\nVendor ID: ARM\n  Model name: Cortex-A53\n"
        "    Core(s) per socket: 4\n  Model name: Cortex-A72\n    Core(s) per socket: 2\n"
    )
    assert value(big_little, name="cores_per_socket", cpu_type=1) == 2
    for wrong in ("NUMA node(s): 2\nNUMA node0 CPU(s): 0-3\n", "CPU(s): 8\nCPU(s): 8\n",
                  "CPU(s): 4\nOn-line CPU(s) list: 0-9\n", "L3 cache: 12 apples\nCPU(s): 4\n",
                  "NUMA node0 CPU(s): 0-3\nNUMA node1 CPU(s): 3-4\n"):  # fmt: skip
        with pytest.raises(ParseError):
            parse(wrong)
