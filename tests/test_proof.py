"""The proof: what counts as the workload's memory, what is judged, what is not proven."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import waiting
from numalab.agent import kernel, numa_maps
from numalab.agent.contract import (
    Cell,
    CpuExpectation,
    CpuProof,
    Expectation,
    Instance,
    MemoryExpectation,
    MemoryPolicy,
    MemoryProof,
    Proof,
    dumps,
    from_json,
    reason,
)
from numalab.agent.errors import Fault
from numalab.agent.trial import proof as proving

PAGE = os.sysconf("SC_PAGE_SIZE")
ANYWHERE = MemoryExpectation("outcome")


def nodes(count):
    return SimpleNamespace(one_visible_node=count == 1)


TWO_NODES, ONE_NODE = nodes(2), nodes(1)


def within(nodes):
    return MemoryExpectation("required", "within", nodes)


def spread(nodes, weights=None):
    return MemoryExpectation("required", "shares", nodes, weights=weights)


def cell(memory=ANYWHERE, cpus=None, threads=1):
    wanted = CpuExpectation("required" if cpus else "outcome", cpus)
    expects = Expectation(memory, wanted)
    return Cell(None, "0", MemoryPolicy("default"), expects, id="a", threads=threads)


class Host:
    """A made-up /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def process(self, pid, maps="", *, parent=1, session=None, name="work load) x", threads=None):
        """Add a process; ``threads`` are (allowed list, CPU seen on) pairs."""
        folder = self.root / str(pid)
        folder.mkdir()
        if maps is not None:
            (folder / "numa_maps").write_text(maps)
        (folder / "stat").write_text(self._stat(pid, name, parent, session or pid, 0))
        for number, (allowed, seen) in enumerate(threads or [("0-3", 0)]):
            task = folder / "task" / str(pid + number)
            task.mkdir(parents=True)
            (task / "stat").write_text(self._stat(pid + number, name, parent, pid, seen))
            (task / "status").write_text(f"Name:\tx\nCpus_allowed_list:\t{allowed}\nMems:\t1\n")

    @staticmethod
    def _stat(pid, name, parent, session, last_cpu):
        fields = ["S", parent, pid, session, *[0] * 15, 4711, *[0] * 16, last_cpu, *[0] * 13]
        return f"{pid} ({name}) " + " ".join(map(str, fields)) + "\n"

    def prove(self, pid, wanted, **more):
        return proving.prove(pid, wanted, TWO_NODES, proc=str(self.root), **more)


@pytest.fixture
def host(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel, "huge_page_bytes", lambda: 0)
    return Host(tmp_path)


def anon(node_pages, size_kb=4, start="7f0000000000", extra=""):
    total = sum(node_pages.values())
    nodes = " ".join(f"N{node}={pages}" for node, pages in node_pages.items())
    return (
        f"{start} bind:0{extra} anon={total} dirty={total} active=0 {nodes} "
        f"kernelpagesize_kB={size_kb}\n"
    )


FILE = (
    "7e0000000000 default file=/usr/lib/libc.so.6 mapped=500 mapmax=9 N1=500 kernelpagesize_kB=4\n"
)


def test_membind_that_held_is_verified(host):
    host.process(10, anon({0: 990, 1: 10}))
    proof = host.prove(10, cell(within("0"), "0-3"))
    assert proof.ok is True and proof.reason is None
    assert proof.memory.pages_bytes == {0: 990 * 4096, 1: 10 * 4096}
    assert proof.memory.shares == {0: 0.99, 1: 0.01}
    assert proof.memory.anonymous_bytes == 1000 * 4096
    assert proof.memory.source == "numa_maps"
    assert proving.grade([proof, proof], TWO_NODES) == ("verified", None)


def test_membind_that_did_not_hold_is_an_error_that_says_where_the_pages_are(host):
    host.process(10, anon({0: 880, 1: 120}))
    proof = host.prove(10, cell(within("0")))
    assert proof.ok is False
    assert str(proof.reason) == "12 % of 3.9 MiB on node 1, not 0"
    assert proving.grade([proof], TWO_NODES) == ("error", proof.reason)


def test_a_look_at_less_than_half_of_the_memory_is_known_as_such(host):
    host.process(10, anon({0: 100}))
    proof = host.prove(10, cell(within("0")))
    assert proof.memory.resident_bytes is None
    assert proving.seen_in_part(proof, 1 << 30) is None  # how much there was is not known
    (host.root / "10" / "status").write_text("Name:\tx\nVmHWM:\t9999 kB\nVmRSS:\t    1024 kB\n")
    proof = host.prove(10, cell(within("0")))
    assert proof.memory.resident_bytes == 1 << 20
    assert proving.seen_in_part(proof, 2 << 20) is None
    assert proving.seen_in_part(proof, None) is None
    said = proving.seen_in_part(proof, 63 << 20)
    assert said == reason("seen-in-part", seen=1 << 20, peak=63 << 20)
    assert str(said) == "it was seen with 1.0 MiB and came to hold 63.0 MiB"


def test_nearly_all_pages_must_be_on_the_nodes(host):
    host.process(10, anon({0: 980, 1: 20}))
    host.process(20, anon({0: 979, 1: 21}))
    assert host.prove(10, cell(within("0"))).ok is True
    assert host.prove(20, cell(within("0"))).ok is False
    assert host.prove(20, cell(within("0-1"))).ok is True


@pytest.mark.parametrize(
    "pages, ok", [((50_000, 50_000), True), ((54_000, 46_000), True), ((57_000, 43_000), False)]
)
def test_interleave_holds_within_a_tenth_of_the_fair_share(host, pages, ok):
    host.process(10, anon(dict(enumerate(pages))))
    assert host.prove(10, cell(spread("0-1"))).ok is ok


def test_interleave_counts_pages_outside_and_nodes_without_any(host):
    host.process(10, anon({0: 50_000, 1: 50_000, 2: 20_000}))
    assert host.prove(10, cell(spread("0-1"))).reason.code == "memory-outside"
    host.process(20, anon({0: 50_000}))
    proof = host.prove(20, cell(spread("0-1")))
    assert proof.ok is False and "100 % of" in str(proof.reason)
    assert "its fair share is 50 %" in str(proof.reason)


@pytest.mark.parametrize("size_kb", [4, 64])
@pytest.mark.parametrize("huge", [2 << 20, 512 << 20])
def test_two_of_sixteen_nodes_without_a_page_are_found(host, monkeypatch, size_kb, huge):
    monkeypatch.setattr(kernel, "huge_page_bytes", lambda: huge)
    whole = (8 << 20) // size_kb  # 8 GiB
    host.process(10, anon(dict.fromkeys(range(14), whole // 14), size_kb))
    proof = host.prove(10, cell(spread("0-15")))
    assert proof.ok is False and proof.reason.code == "memory-uneven"
    assert (
        host.prove(10, cell(spread("0-15")), buffers=dict.fromkeys(range(14), 1 << 29)).ok is False
    )
    host.process(20, anon(dict.fromkeys(range(16), whole // 16), size_kb))
    assert host.prove(20, cell(spread("0-15"))).ok is True
    one = {**dict.fromkeys(range(15), whole // 16), 15: whole // 20}
    host.process(30, anon(one, size_kb))
    assert host.prove(30, cell(spread("0-15"))).ok is False


def test_weighted_interleave_has_its_shares_by_weight(host):
    by_weight = spread("0-2", {0: 5, 1: 2, 2: 1})
    host.process(10, anon({0: 50_000, 1: 20_000, 2: 10_000}))
    assert proving.fair_shares(by_weight) == {0: 0.625, 1: 0.25, 2: 0.125}
    assert host.prove(10, cell(by_weight)).ok is True
    assert host.prove(10, cell(spread("0-2"))).ok is False
    host.process(20, anon({0: 27_000, 1: 27_000, 2: 26_000}))
    assert host.prove(20, cell(by_weight)).ok is False


def test_few_pages_need_not_be_spread_evenly_but_must_be_spread(host):
    host.process(10, anon({0: 40, 1: 24}))
    host.process(20, anon({0: 64}))
    host.process(30, anon({0: 5, 3: 4}))
    assert host.prove(10, cell(spread("0-1"))).ok is True
    assert host.prove(20, cell(spread("0-1"))).ok is False
    nothing = host.prove(30, cell(spread("0-3")))
    assert nothing.ok is None and nothing.reason.code == "memory-too-coarse"
    assert proving.grade([nothing], TWO_NODES)[0] == "unverified"


def smaps(host, pid, mappings):
    """Write the smaps of a process: MiB of transparent huge pages by start of mapping."""
    text = "".join(
        f"{start}-7fffffffffff rw-p 00000000 00:00 0\nRss: 9 kB\nAnonHugePages:  {mib * 1024} kB\n"
        for start, mib in mappings.items()
    )
    (host.root / str(pid) / "smaps").write_text(text)


INTERLEAVED = "7f0000000000"


@pytest.mark.parametrize("mib, ok", [(0, False), (50, True)])
def test_transparent_huge_pages_are_spread_one_by_one(host, monkeypatch, mib, ok):
    """25 of them on eight nodes: one node has four, whatever the policy."""
    monkeypatch.setattr(kernel, "huge_page_bytes", lambda: 2 << 20)
    maps = anon({0: 4 * 512, **dict.fromkeys(range(1, 8), 3 * 512)}, start=INTERLEAVED)
    host.process(10, maps.replace("bind:0", "interleave:0-7"))
    smaps(host, 10, {INTERLEAVED: mib})
    assert host.prove(10, cell(spread("0-7"))).ok is ok
    host.process(20, anon({0: 1024}, start=INTERLEAVED).replace("bind:0", "interleave:0-1"))
    smaps(host, 20, {INTERLEAVED: 4})
    assert host.prove(20, cell(spread("0-1"))).ok is False


@pytest.mark.parametrize("mib, ok", [(0, False), (6, True)])
def test_a_tools_own_buffers_may_be_of_huge_pages_too(host, monkeypatch, mib, ok):
    monkeypatch.setattr(kernel, "huge_page_bytes", lambda: 2 << 20)
    host.process(10, anon({0: 1}))
    smaps(host, 10, {INTERLEAVED: mib, "7f1000000000": mib})
    six = {"0": 4 << 20, "1": 4 << 20, "2": 2 << 20, "3": 2 << 20}
    wanted = cell(spread("0-3"))
    assert host.prove(10, wanted, buffers=six).ok is ok
    assert host.prove(10, wanted, buffers={"0": 12 << 20}).ok is False


@pytest.mark.parametrize("old, ok", [({0: 16000, 1: 16400}, True), ({0: 20000, 1: 12400}, False)])
def test_of_what_a_jvm_interleaves_the_old_generation_is_judged(host, old, ok):
    """Its survivor spaces and code lie where they were before they got the policy."""
    survivor, code = {0: 12000, 1: 100}, {0: 4000, 1: 9}
    maps = anon(old) + anon(survivor, start="7f1000000000") + anon(code, start="7f2000000000")
    host.process(10, maps.replace("bind:0", "interleave:0-1"))
    proof = host.prove(10, cell(replace(spread("0-1"), policy="interleave")))
    assert proof.ok is ok and sum(proof.memory.interleaved_bytes.values()) == 32400 * 4096
    assert proof.memory.policies == {"interleave:0-1": 48509 * 4096}


def test_several_large_mappings_are_judged_together(host):
    """A buffer pool comes in chunks."""
    maps = anon({0: 9000, 1: 1000}) + anon({0: 1000, 1: 9000}, start="7f1000000000")
    host.process(10, maps.replace("bind:0", "interleave:0-1"))
    assert host.prove(10, cell(replace(spread("0-1"), policy="interleave"))).ok is True


def test_huge_pages_weigh_what_they_hold(host):
    maps = anon({0: 10}) + anon({1: 10}, size_kb=2048, start="7f1000000000", extra=" huge")
    host.process(10, maps)
    proof = host.prove(10, cell(within("1")))
    assert proof.memory.pages_bytes == {0: 10 * 4096, 1: 10 * 2 << 20}
    assert proof.ok is True


def test_transparent_huge_pages_come_as_base_pages():
    mappings, _ = numa_maps.workload_mappings(anon({0: 512}))
    assert mappings[0].bytes_by_node == {0: 2 << 20}


def test_pages_of_files_do_not_count_but_written_copies_do(host):
    written = "7e1000000000 default file=/bin/x anon=3 dirty=3 mapped=5 N0=5 kernelpagesize_kB=4\n"
    all_written = "7e2000000000 default file=/bin/x anon=4 dirty=4 N0=1 N1=3 kernelpagesize_kB=4\n"
    mixed = (
        "7e3000000000 default file=/bin/x anon=2 dirty=2 mapped=6 N0=3 N1=3 kernelpagesize_kB=4\n"
    )
    host.process(10, FILE + written + all_written + mixed)
    memory = host.prove(10, cell()).memory
    assert memory.pages_bytes == {0: 4 * 4096, 1: 3 * 4096}
    assert memory.mixed_bytes == 2 * 4096


@pytest.mark.parametrize(
    "name",
    [
        "/SYSV00000000\\040(deleted)",
        "/memfd:x\\040y\\040(deleted)",
        "/dev/zero\\040(deleted)",
        "/dev/shm/PostgreSQL.123",
        "/dev/hugepages/pool huge",
    ],
)
def test_shared_memory_is_workload_memory(name):
    line = f"7f0000000000 default file={name} dirty=8 active=0 N1=8 kernelpagesize_kB=4\n"
    mappings, mixed = numa_maps.workload_mappings(line)
    assert [mapping.bytes_by_node for mapping in mappings] == [{1: 8 * 4096}] and mixed == 0


def test_a_shared_segment_counts_once_in_a_tree_and_private_memory_in_each(host):
    segment = "7f5000000000 default file=/SYSV00000000\\040(deleted) dirty={0} N1={0} "
    segment += "kernelpagesize_kB=4\n"
    host.process(10, anon({0: 5}) + segment.format(100))
    host.process(11, anon({0: 7}) + segment.format(60), parent=10)
    memory = host.prove(10, cell()).memory
    assert memory.pages_bytes == {0: 12 * 4096, 1: 100 * 4096}
    assert memory.processes == 2


def test_the_tree_has_descendants_and_those_that_left_for_init(host):
    host.process(10, anon({0: 100}))
    host.process(11, anon({1: 50}), parent=10, session=11)
    host.process(12, anon({1: 50}), parent=11, session=11)
    host.process(13, anon({1: 100}), parent=1, session=10)  # a daemon of the same session
    host.process(99, anon({1: 9999}))
    assert kernel.tree(10, kernel.processes(str(host.root))) == [10, 11, 12, 13]
    proof = host.prove(10, cell(within("0")))
    assert proof.ok is False and proof.memory.shares == {0: 0.333333, 1: 0.666667}


def test_a_child_that_vanishes_is_passed_over_and_the_root_is_not(host, monkeypatch):
    host.process(10, anon({0: 100}))
    host.process(11, anon({1: 50}), parent=10)
    read = kernel.read

    def vanishing(gone):
        def reading(path, *limit):
            if path.endswith(f"/{gone}/numa_maps"):
                shutil.rmtree(host.root / str(gone))
            return read(path, *limit)

        return reading

    monkeypatch.setattr(kernel, "read", vanishing(11))
    proof = host.prove(10, cell(within("0")))
    assert proof.ok is True and proof.memory.processes == 1
    monkeypatch.setattr(kernel, "read", vanishing(10))
    proof = host.prove(10, cell(within("0")))
    assert proof.ok is None and proof.absent is True
    assert proof.reason == reason("process-ended", pid=10)


def test_what_cannot_be_read_is_unproven(host, monkeypatch):
    host.process(10, maps=None)
    proof = host.prove(10, cell(within("0")))
    assert proof.ok is None and proof.reason.code == "no-numa-maps"
    assert proving.grade([proof], TWO_NODES)[0] == "unverified"

    def refused(path, *limit):
        if path.endswith("numa_maps"):
            raise PermissionError(13, "Permission denied", path)
        return read(path, *limit)

    read = kernel.read
    monkeypatch.setattr(kernel, "read", refused)
    proof = host.prove(10, cell(within("0")))
    assert proof.ok is None and proof.reason.code == "numa-maps-forbidden"
    assert proving.grade([proof], ONE_NODE)[0] == "unverified"


def test_a_line_that_is_not_numa_maps_is_unproven(host):
    host.process(10, anon({0: 5}) + "7f00 default gibberish N0=5\n")
    proof = host.prove(10, cell(within("0")))
    assert proof.ok is None and "gibberish" in str(proof.reason)
    with pytest.raises(Fault, match="how large the huge pages"):
        numa_maps.workload_mappings("7f00 default huge dirty=5 N0=5\n")


def test_no_page_at_all_proves_nothing(host):
    host.process(10, FILE)
    proof = host.prove(10, cell(within("1")))
    assert proof.ok is None and proof.reason.code == "no-anonymous-page"


def test_cpus_must_be_within_the_required_set(host):
    host.process(10, anon({0: 5}), threads=[("0-1", 0), ("1", 1)])
    proof = host.prove(10, cell(cpus="0-1"))
    assert proof.ok is True
    assert proof.cpus == CpuProof(True, None, threads=2, allowed="0-1", seen="0-1", outside="")
    host.process(20, anon({0: 5}), threads=[("0-1", 0), ("0-3", 1)])
    proof = host.prove(20, cell(cpus="0-1"))
    assert str(proof.reason) == "threads may run on CPUs 2-3, not only on 0-1"
    host.process(30, anon({0: 5}), threads=[("0-1", 0), ("0-1", 7)])
    proof = host.prove(30, cell(cpus="0-1"))
    assert proof.ok is False and proof.cpus.outside == "7"


def test_outcomes_are_recorded_and_never_wrong(host):
    host.process(10, anon({0: 1, 1: 99}), threads=[("0-63", 40)])
    proof = host.prove(10, cell())
    assert proof.ok is True
    assert proof.memory.shares[1] == 0.99 and proof.cpus.seen == "40"


def test_a_tools_own_report_of_its_buffers_goes_before_numa_maps(host):
    host.process(10, anon({0: 1000}))
    proof = host.prove(10, cell(within("1")), buffers={"1": 1 << 30})
    assert proof.ok is True and proof.memory.source == "move_pages"
    proof = host.prove(10, cell(within("1")), buffers={"0": 1 << 30, "1": 1 << 30})
    assert proof.ok is False and str(proof.reason) == "50 % of 2.0 GiB on node 0, not 1"
    assert host.prove(10, cell(within("1")), buffers={}).ok is None
    assert host.prove(10, cell(within("1")), buffers={"1": 9, "-2": 5}).ok is None


def test_no_memory_proof_asked_for_leaves_the_cpus(host):
    host.process(10, maps=None)
    assert host.prove(10, cell(MemoryExpectation("none"), "0-3")).ok is True
    assert host.prove(10, cell(MemoryExpectation("none"), "0-2")).ok is False


def test_a_proof_is_the_same_when_it_was_written_and_read(host):
    host.process(10, anon({0: 880, 1: 120}))
    proof = replace(host.prove(10, cell(within("0"), "0-3")), when="before", t_s=0.5)
    assert proof.ok is False
    assert from_json(Proof, json.loads(dumps(proof))) == proof


def test_grades():
    good = Proof(True, MemoryProof(True), CpuProof(True))
    bad = replace(good, ok=False, reason=reason("memory-outside"))
    unmade = replace(good, ok=None, reason=reason("numa-maps-forbidden", path="x"))
    late = replace(good, ok=None, reason=reason("process-ended", pid=5), absent=True)
    assert proving.grade([good, bad], TWO_NODES) == ("error", bad.reason)
    assert proving.grade([replace(bad, early=True), good], TWO_NODES) == ("verified", None)
    grade, why = proving.grade([good, unmade], TWO_NODES)
    assert grade == "unverified" and why.code == "not-proven"
    assert str(why).startswith("placement not proven: no permission to read x")
    assert proving.grade([good, late], TWO_NODES) == ("verified", None)
    assert proving.grade([late, late], TWO_NODES)[0] == "unverified"
    assert proving.grade([], TWO_NODES)[0] == "unverified"
    assert proving.grade([good], ONE_NODE) == ("verified", reason("one-visible-node"))
    assert proving.grade([bad], ONE_NODE)[0] == "error"


LINES = st.tuples(st.integers(0, 40), st.integers(1, 1 << 20), st.sampled_from([4, 64, 2048]))


@given(st.lists(LINES, min_size=1, max_size=20))
def test_every_anonymous_page_is_counted_once(lines):
    text = "".join(
        anon({node: pages}, kb, start=f"7f{number:010x}")
        for number, (node, pages, kb) in enumerate(lines)
    )
    mappings, mixed = numa_maps.workload_mappings(FILE + text)
    assert mixed == 0
    for node in {node for node, _, _ in lines}:
        counted = sum(mapping.bytes_by_node.get(node, 0) for mapping in mappings)
        assert counted == sum(pages * kb * 1024 for n, pages, kb in lines if n == node)


@given(st.text(alphabet="0123456789abcdef N=:anon default bind\n\\huge", max_size=300))
def test_any_text_gives_mappings_or_a_fault(text):
    try:
        mappings, mixed = numa_maps.workload_mappings(text)
    except Fault:
        return
    assert mixed >= 0 and all(sum(m.bytes_by_node.values()) >= 0 for m in mappings)


def test_real_texts_are_read_whole(corpus):
    for name in ("numa_maps_full.txt", "numa_maps_weighted_interleave.txt"):
        text = (corpus / "proc_sys" / name).read_text()
        mappings, _ = numa_maps.workload_mappings(text)
        lines = [line for line in text.splitlines() if " N" in line and "file=" not in line]
        assert len([m for m in mappings if not m.shared]) >= len(lines) > 0


@pytest.mark.parametrize(
    "name, node_mib",
    [
        ("interleave-thp", {0: 100, 1: 100}),
        ("hugetlb-bind-1", {1: 64}),
        ("sysv-bind-1", {1: 200}),
        ("memfd-interleave", {0: 100, 1: 100}),
        ("fork-bind-0", {0: 200}),
        ("file-bind-1-not-counted", {1: 0}),
    ],
)
def test_texts_of_a_two_node_machine_agree_with_what_numastat_said_there(name, node_mib):
    """Taken in a 2-node guest beside ``numastat -p`` of the same processes (fork: the parent)."""
    text = (Path(__file__).parent / "fixtures" / "numa_maps" / f"{name}.txt").read_text()
    mappings, _ = numa_maps.workload_mappings(text)
    found = {}
    for mapping in mappings:
        for node, size in mapping.bytes_by_node.items():
            found[node] = found.get(node, 0) + size / (1 << 20)
    assert {n: v for n, v in found.items() if v > 0.3} == pytest.approx(
        {n: v for n, v in node_mib.items() if v > 0.3}, abs=0.3
    )


class TestRealProcess:
    """A process of our own that holds 64 MiB."""

    HOLD = (
        "import sys; b = bytearray(64 << 20); b[::4096] = b'x' * len(b[::4096]); "
        "print('ready', flush=True); sys.stdin.read()"
    )

    @pytest.fixture
    def held(self):
        if not os.path.exists("/proc/self/numa_maps"):
            pytest.skip("this kernel has no numa_maps (CONFIG_NUMA)")
        child = subprocess.Popen(
            [sys.executable, "-c", self.HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdout.readline() == b"ready\n"
        yield child
        child.kill()
        child.communicate()

    def test_its_memory_and_cpus_are_seen(self, held):
        mine = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        proof = proving.prove(held.pid, cell(cpus=mine), ONE_NODE)
        assert proof.ok is True
        assert 64 << 20 <= proof.memory.anonymous_bytes < 200 << 20
        assert proof.cpus.threads >= 1 and proof.cpus.seen

    def test_a_wrong_cpu_set_is_found(self, held):
        proof = proving.prove(held.pid, cell(cpus="4095"), ONE_NODE)
        assert proof.ok is False and "not only on 4095" in str(proof.reason)

    def test_it_has_ended(self, held):
        held.send_signal(signal.SIGKILL)

        def absent():
            proof = proving.prove(held.pid, cell(within("0")), ONE_NODE)
            return proof if proof.absent else None

        proof = waiting.wait_for(absent)
        assert proof.ok is None and proof.absent is True
        assert proving.grade([proof], ONE_NODE)[0] == "unverified"


def _recorded(pages, seen="0-1", lumps=0):
    memory = MemoryProof(True, source="numa_maps", pages_bytes=pages, lumps=lumps)
    return Proof(True, memory, CpuProof(True, threads=1, allowed="0-1", seen=seen))


@pytest.mark.parametrize(
    ("proof", "rule", "words"),
    [
        (_recorded({0: 100}), within("0"), None),
        (_recorded({0: 90, 1: 10}), within("0"), "on node 1, not 0"),
        (_recorded({}), within("0"), "no anonymous page"),
        (_recorded({0: 9 << 30, 1: 1 << 30}), spread("0-1"), "share is 50 %"),
        (_recorded({0: 9 << 30, 1: 1 << 30}, lumps=1 << 40), spread("0-1"), "can be chance"),
        (_recorded({0: 6 << 30, 1: 4 << 30}), spread("0-1"), "share is 50 %"),
        (_recorded({0: 100}, seen="0-2"), within("0"), "seen on CPU 2, not only on 0-1"),
    ],
)
def test_a_recorded_proof_is_judged_by_its_figures_not_by_its_word(proof, rule, words):
    found = proving.again(proof, cell(rule, "0-1"), TWO_NODES)
    if words is None:
        assert found.ok is True and found.memory.shares == {0: 1.0}
    else:
        assert found.ok is not True and words in str(found.reason)


def test_a_recorded_proof_of_an_instance_is_judged_by_that_ones_binding():
    one, two = (
        Instance(
            "0-1", node, MemoryPolicy("bind", node), cell(within(node)).expects, name=f"i{node}"
        )
        for node in ("0", "1")
    )
    several = replace(cell(), instances=(one, two))
    proof = replace(_recorded({1: 100}), instance="i1")
    assert proving.again(proof, several, TWO_NODES).ok is True
    wrong = proving.again(replace(proof, instance="i0"), several, TWO_NODES)
    assert wrong.reason.code == "memory-outside"
    with pytest.raises(Fault, match="x"):
        proving.again(replace(proof, instance="x"), several, TWO_NODES)


def test_several_roots_are_proven_together(host):
    host.process(10, "7f00 bind:0 anon=10 dirty=10 N0=10 kernelpagesize_kB=4\n")
    host.process(11, "7f00 bind:0 anon=10 dirty=10 N0=10 kernelpagesize_kB=4\n", parent=10)
    host.process(20, "7f00 bind:0 anon=60 dirty=60 N1=60 kernelpagesize_kB=4\n")
    host.process(30, "7f00 bind:0 anon=60 dirty=60 N1=60 kernelpagesize_kB=4\n")
    memory = host.prove([10, 20], cell()).memory
    assert memory.processes == 3 and memory.shares == {0: 0.25, 1: 0.75}
    assert host.prove([10], cell(within("0"))).ok is True
    gone = host.prove([10, 40], cell())
    assert gone.ok is None and gone.absent and gone.reason == reason("process-ended", pid=40)
