"""Where a running workload's memory and threads really are, and whether that is what was asked.

Memory comes from ``/proc/PID/numa_maps`` (numa(7); ``show_numa_map`` in the kernel's
``fs/proc/task_mmu.c``) of every process of the measured tree. The rule of what counts:

* a mapping without ``file=`` (heap, stack, anonymous memory): all of its pages;
* shared memory of the workload's own making (System V segments, memfd, shared anonymous
  mappings, POSIX shared memory) and huge pages of hugetlbfs: all of their pages;
* a mapping of an ordinary file: only pages that the process made its own by writing
  (``anon=``). numa_maps gives nodes for the mapping as a whole, so these pages count when all
  pages of the mapping are such, or when all are on one node. What cannot be attributed is
  reported as ``mixed_bytes`` and judged neither way.

Pages are weighted by ``kernelpagesize_kB``. Transparent huge pages need no special care: the
kernel counts each as its base pages and prints the base page size. hugetlbfs pages are counted
one by one and carry their own size. Pages that processes share after a fork count once in each
process; a shared-memory segment at the same address in several processes counts once.

Reading numa_maps walks the page tables (about 7 ms a GiB of 4 KiB pages) and holds the mmap lock
of the process meanwhile, so each proof reads it once per process.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from .. import cpulist, kernel, numa_maps
from ..contract import (
    ERROR,
    UNVERIFIED,
    VERIFIED,
    Cell,
    CpuExpectation,
    CpuProof,
    Host,
    MemoryExpectation,
    MemoryProof,
    Proof,
    Reason,
    reason,
    to_json,
)
from ..errors import Fault
from ..plan.kinds import LEAST_WITHIN, MOST_UNEVEN

_COARSE = 0.50  # of its fair share, lumps of huge pages and chance among few pages included

_HUGE = re.compile(r"^([0-9a-f]+)-|^(?:AnonHugePages|ShmemPmdMapped): +[1-9]", re.M)


class _Unprovable(Exception):
    """Why a proof cannot be made; ``absent`` when the workload was not there to be looked at."""

    def __init__(self, why: Reason, absent: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.absent = absent


def _ended(pid: int) -> _Unprovable:
    return _Unprovable(reason("process-ended", pid=pid), absent=True)


# --- reading ----------------------------------------------------------------------------------


def _add(sums: Dict[int, int], more: Mapping[int, int]) -> None:
    for node, size in more.items():
        sums[node] = sums.get(node, 0) + size


class _Interleaved(NamedTuple):
    """A mapping with that policy; ``lump`` is the size of its huge pages, 0 without any."""

    bytes_by_node: Dict[int, int]
    size: int
    lump: int


@dataclass
class _Pages:
    """The workload memory of several processes."""

    pages: Dict[int, int] = field(default_factory=dict)
    interleaved: List[_Interleaved] = field(default_factory=list)
    policies: Dict[str, int] = field(default_factory=dict)
    segments: Dict[Tuple[str, str], Dict[int, int]] = field(default_factory=dict)

    def add(self, mapping: numa_maps.WorkloadMapping, transparent: int) -> None:
        """Add a mapping; ``transparent``: the size of its transparent huge pages, 0 without any."""
        size = sum(mapping.bytes_by_node.values())
        self.policies[mapping.policy] = self.policies.get(mapping.policy, 0) + size
        if "interleave" in mapping.policy:
            # A page's node follows from its offset in its mapping (interleave_nid() in the
            # kernel's mm/mempolicy.c): each mapping can give a node one page too many.
            lump = max(mapping.huge_bytes, transparent)
            self.interleaved.append(_Interleaved(mapping.bytes_by_node, size, lump))
        if mapping.shared:
            segment = self.segments.setdefault((mapping.start, mapping.shared), {})
            for node, part in mapping.bytes_by_node.items():
                segment[node] = max(segment.get(node, 0), part)
        else:
            _add(self.pages, mapping.bytes_by_node)

    def large_interleaved(self) -> List[_Interleaved]:
        """Return the interleaved mappings that are at least half as large as the largest.

        The smaller ones of a JVM prove nothing. Its survivor spaces move through the young
        generation, and pages that lie on a node already stay there when they get the policy
        (numa_setup_pages() in HotSpot's gc/parallel/mutableSpace.cpp calls mbind(2) without
        MPOL_MF_MOVE). Its code cache and tables are touched here and there.
        """
        most = max((one.size for one in self.interleaved), default=0)
        return [one for one in self.interleaved if 2 * one.size >= most]


def _from_numa_maps(
    roots: List[int], members: List[int], expects: MemoryExpectation, proc: str
) -> MemoryProof:
    found = _Pages()
    unit = kernel.huge_page_bytes() if expects.rule == "shares" else 0
    mixed = read = resident = 0
    for pid in members:
        text = _numa_maps(pid, proc)
        if text is None:  # a child that ended has no memory to prove
            if pid in roots:
                raise _ended(pid)
            continue
        try:
            mappings, its_mixed = numa_maps.workload_mappings(text)
        except Fault as fault:
            raise _Unprovable(
                reason("numa-maps-unreadable", pid=pid, why=to_json(fault.reason))
            ) from None
        huge = _huge_mappings(pid, proc) if unit else set()
        for mapping in mappings:
            found.add(mapping, unit if mapping.start in huge else 0)
        status = kernel.meminfo(kernel.read_text(f"{proc}/{pid}/status"))
        resident = max(resident, status.get("VmRSS", 0))
        mixed += its_mixed
        read += 1
    for segment in found.segments.values():
        _add(found.pages, segment)
    large = found.large_interleaved()
    interleaved: Dict[int, int] = {}
    for one in large:
        _add(interleaved, one.bytes_by_node)
    judged = large if expects.policy == "interleave" else found.interleaved
    return MemoryProof(
        ok=None,
        source="numa_maps",
        pages_bytes=found.pages,
        interleaved_bytes=interleaved,
        mixed_bytes=mixed,
        processes=read,
        resident_bytes=resident or None,  # of the largest process, files included
        policies=found.policies,
        page_bytes=os.sysconf("SC_PAGE_SIZE"),
        lumps=sum(one.lump for one in judged),
    )


def _huge_mappings(pid: int, proc: str) -> Set[str]:
    """Return where the mappings begin that hold a transparent huge page now (smaps, proc(5))."""
    found, start = set(), ""
    for match in _HUGE.finditer(kernel.read_text(f"{proc}/{pid}/smaps") or ""):
        start = match[1] or start
        if not match[1]:
            found.add(start)
    return found


def _numa_maps(pid: int, proc: str) -> Optional[str]:
    """Return the numa_maps of a process, None when it has ended."""
    path = f"{proc}/{pid}/numa_maps"
    try:
        return kernel.read(path)
    except PermissionError:
        raise _Unprovable(reason("numa-maps-forbidden", path=path)) from None
    except (FileNotFoundError, ProcessLookupError):
        if os.path.exists(f"{proc}/{pid}/stat"):
            raise _Unprovable(reason("no-numa-maps", path=path)) from None
        return None
    except OSError as error:
        raise _Unprovable(
            reason("numa-maps-unreadable", pid=pid, why=error.strerror or str(error))
        ) from None


def _from_buffers(
    buffers: Mapping[Any, int], members: List[int], expects: MemoryExpectation, proc: str
) -> MemoryProof:
    strange = [str(node) for node in buffers if not str(node).isdigit()]
    if strange:
        size = sum(size for node, size in buffers.items() if str(node) in strange)
        raise _Unprovable(reason("buffers-not-placed", bytes=size, said=", ".join(strange)))
    unit = kernel.huge_page_bytes() if expects.rule == "shares" else 0
    return MemoryProof(
        ok=None,
        source="move_pages",
        pages_bytes={int(node): int(size) for node, size in buffers.items() if size},
        page_bytes=os.sysconf("SC_PAGE_SIZE"),
        lumps=sum(unit * len(_huge_mappings(pid, proc)) for pid in members if unit),
    )


# --- proving ----------------------------------------------------------------------------------


def prove(
    pids: kernel.Pids,
    cell: Cell,
    host: Host,
    *,
    buffers: Optional[Mapping[Any, int]] = None,
    alone: bool = False,
    proc: str = "/proc",
) -> Proof:
    """Compare where a running tree's memory and threads are with what its cell expects.

    ``pids`` is the root of the tree, or several. ``buffers`` are bytes per node as a tool itself
    got them from move_pages(2) for its own buffers; given, they are judged in place of numa_maps.
    ``alone``: they have no children, so that no other process is read, of which large hosts have
    thousands. Never raises for the state of the process.
    """
    roots = kernel.roots_of(pids)
    try:
        found = [kernel.stat_of(f"{proc}/{pid}") for pid in roots] if alone else None
        table = kernel.processes(proc) if found is None else {one.pid: one for one in found if one}
        members = kernel.tree(roots, table)
        for pid in roots:
            if pid not in members:
                raise _ended(pid)
    except _Unprovable as why:
        return unmade(why.why, host, why.absent)
    cpus, cpus_absent = _prove_cpus(members, cell.expects.cpus, proc)
    memory, absent = MemoryProof(True), False
    expects = cell.expects.memory
    if expects.proof != "none":
        try:
            if buffers is not None:
                memory = _from_buffers(buffers, members, expects, proc)
            else:
                memory = _from_numa_maps(roots, members, expects, proc)
            memory, absent = _judged(memory, expects)
        except _Unprovable as why:
            memory, absent = MemoryProof(None, why.why), why.absent
    return _together(memory, cpus, host, absent or cpus_absent)


def unmade(why: Reason, host: Host, absent: bool = True) -> Proof:
    """Return the proof that could not be made, and why; ``absent``: there was nothing to see."""
    return _together(MemoryProof(None, why), CpuProof(None, why), host, absent)


def _together(memory: MemoryProof, cpus: CpuProof, host: Host, absent: bool) -> Proof:
    parts = (memory, cpus)
    ok: Optional[bool] = True
    if any(part.ok is False for part in parts):
        ok = False
    elif any(part.ok is None for part in parts):
        ok = None
    return Proof(
        ok=ok,
        memory=memory,
        cpus=cpus,
        reason=next((part.reason for part in parts if part.ok is ok and part.reason), None),
        absent=absent,
        note=reason("one-visible-node") if host.one_visible_node else None,
    )


def _judged(memory: MemoryProof, expects: MemoryExpectation) -> Tuple[MemoryProof, bool]:
    """Return what was found with shares and verdict, and whether there was nothing to judge."""
    total = sum(memory.pages_bytes.values())
    memory = replace(
        memory,
        anonymous_bytes=total,
        pages_bytes=dict(sorted(memory.pages_bytes.items())),
        interleaved_bytes=dict(sorted(memory.interleaved_bytes.items())),
    )
    if not total:
        return replace(memory, reason=reason("no-anonymous-page")), True
    shares = {node: round(size / total, 6) for node, size in memory.pages_bytes.items()}
    ok, why = _judge_memory(expects, memory)
    return replace(memory, shares=shares, ok=ok, reason=why), False


_Verdict = Tuple[Optional[bool], Optional[Reason]]


def _judge_memory(expects: MemoryExpectation, memory: MemoryProof) -> _Verdict:
    """Return whether memory is as required, None where it cannot tell, with the reason.

    With ``policy: interleave`` only large mappings are judged that the workload itself gave that
    policy, whatever the policy of its other memory is.
    """
    if expects.proof != "required":
        return True, None
    interleaved = expects.policy == "interleave"
    pages = memory.interleaved_bytes if interleaved else memory.pages_bytes
    total = sum(pages.values())
    if not total:
        return False, reason("no-interleaved-memory" if interleaved else "no-anonymous-page")
    shares = {node: size / total for node, size in pages.items()}
    wanted = cpulist.parse(str(expects.nodes))
    if expects.rule not in ("within", "shares"):
        raise Fault(f"a cell expects memory by an unknown rule: {expects.rule!r}")
    outside = _outside(shares, total, wanted)
    if outside:
        return False, outside
    if expects.rule == "within":
        return True, None
    return _spread(shares, total, fair_shares(expects), memory)


def _outside(shares: Mapping[int, float], total: int, wanted: List[int]) -> Optional[Reason]:
    outside = {node: share for node, share in shares.items() if node not in wanted}
    if 1 - sum(outside.values()) >= LEAST_WITHIN:
        return None
    worst = max(outside, key=lambda node: outside[node])
    return reason(
        "memory-outside",
        share=outside[worst],
        bytes=total,
        node=worst,
        nodes=cpulist.format(wanted),
        outside=sum(outside.values()),
        others=len(outside) - 1,
    )


def fair_shares(expects: MemoryExpectation) -> Dict[int, float]:
    """Return the share (of 1) of the pages that each node is to have by the rule ``shares``."""
    weights = {n: (expects.weights or {}).get(n, 1) for n in cpulist.parse(expects.nodes or "")}
    return {node: weight / sum(weights.values()) for node, weight in weights.items()}


def _spread(
    shares: Mapping[int, float], total: int, fair: Mapping[int, float], memory: MemoryProof
) -> _Verdict:
    """Each node has its fair share, within MOST_UNEVEN of it, and never nothing.

    A node may have one huge page of each mapping too many or too few, and pages touched here and
    there fall as by chance: three standard errors of a share of that many pages. Both count up to
    _COARSE of the share; what only they explain beyond that proves nothing either way.
    """
    # Weighted, a node gets as many pages in a row as is its weight; equal weights are one each.
    row = {node: share / min(fair.values()) for node, share in fair.items()}
    doubtful: Optional[Reason] = None
    for node, due in fair.items():
        share = shares.get(node, 0.0)
        chance = 3 * math.sqrt(due * (1 - due) * memory.page_bytes / total)
        lumps = (1 - due) * row[node] * memory.lumps / total
        allowed = min(MOST_UNEVEN * due + chance + lumps, _COARSE * due)
        if share and abs(share - due) <= allowed:
            continue
        said = {"share": share, "bytes": total, "node": node, "fair": due}
        if abs(share - due) > MOST_UNEVEN * due + chance + lumps:
            return False, reason("memory-uneven", **said, points=allowed * 100)
        doubtful = doubtful or reason("memory-too-coarse", **said, lumps=memory.lumps)
    return (True, None) if doubtful is None else (None, doubtful)


def _prove_cpus(members: List[int], expects: CpuExpectation, proc: str) -> Tuple[CpuProof, bool]:
    """Return the proof of the threads' CPUs, and whether no thread was left to look at."""
    allowed: Set[int] = set()
    seen: Set[int] = set()
    threads = 0
    for pid in members:
        for tid in kernel.threads(pid, proc):
            folder = f"{proc}/{pid}/task/{tid}"
            try:
                status = kernel.status(kernel.read(f"{folder}/status"))
                stat = kernel.parse_stat(kernel.read(f"{folder}/stat"))
            except PermissionError as error:
                return CpuProof(None, reason("task-forbidden", path=error.filename)), False
            except (OSError, ValueError):
                continue  # this thread ended while we looked
            if "Cpus_allowed_list" not in status:
                return CpuProof(None, reason("no-allowed-cpus", path=f"{folder}/status")), False
            threads += 1
            allowed.update(cpulist.parse(status["Cpus_allowed_list"]))
            seen.add(stat.last_cpu)
    if not threads:
        return CpuProof(None, reason("process-ended", pid=members[0])), True
    return _judged_cpus(expects, threads, allowed, seen), False


def _judged_cpus(
    expects: CpuExpectation, threads: int, allowed: Set[int], seen: Set[int]
) -> CpuProof:
    found = CpuProof(
        True, threads=threads, allowed=cpulist.format(allowed), seen=cpulist.format(seen)
    )
    if expects.proof != "required":
        return found
    wrong = _wrong_cpus(expects, allowed, seen)
    outside = cpulist.format((allowed | seen) - set(cpulist.parse(str(expects.cpus))))
    return replace(found, ok=wrong is None, reason=wrong, outside=outside)


def _wrong_cpus(expects: CpuExpectation, allowed: Set[int], seen: Set[int]) -> Optional[Reason]:
    """Return how the CPUs of threads contradict what is required of them, or None."""
    if expects.proof != "required":
        return None
    wanted = set(cpulist.parse(str(expects.cpus)))
    for code, cpus in (("cpus-allowed-outside", allowed), ("cpus-seen-outside", seen)):
        if cpus - wanted:
            return reason(code, cpus=cpulist.format(cpus - wanted), wanted=cpulist.format(wanted))
    return None


# --- judging proofs ---------------------------------------------------------------------------


def seen_in_part(proof: Proof, peak_bytes: Optional[int]) -> Optional[Reason]:
    """Say so when a proof saw less than half of what the workload came to hold, else None.

    Memory that comes after the last look may be anywhere: a short program can be looked at once,
    before it has allocated. ``peak_bytes`` is the largest resident memory of any of its processes
    (``ru_maxrss`` of getrusage(2)), None when it is not known.
    """
    seen = proof.memory.resident_bytes
    if peak_bytes is None or seen is None or 2 * seen >= peak_bytes:
        return None
    return reason("seen-in-part", seen=seen, peak=peak_bytes)


def grade(proofs: Iterable[Proof], host: Host) -> Tuple[str, Optional[Reason]]:
    """Return the grade of a trial and its reason, from all proofs that were made of it.

    One failed proof makes it ``error``. Otherwise a proof that could not be made makes it
    ``unverified``, except one that came too early or too late to find the workload, when another
    was made in time. What is left is ``verified``; where only one node is visible the
    reason says that the memory half of it proves nothing. Early proofs are not judged.
    """
    judged = [proof for proof in proofs if not proof.early]
    failed = [proof for proof in judged if proof.ok is False]
    if failed:
        return ERROR, failed[0].reason
    made = any(proof.ok for proof in judged)
    unmade = [proof for proof in judged if proof.ok is None and not (made and proof.absent)]
    if unmade or not made:
        why = unmade[0].reason if unmade else reason("no-proof")
        return UNVERIFIED, reason("not-proven", why=to_json(why))
    return VERIFIED, reason("one-visible-node") if host.one_visible_node else None


def settled(
    proofs: Sequence[Proof], expects: MemoryExpectation, peak_bytes: Optional[int]
) -> List[Proof]:
    """Return the looks at a program that ran by itself as they count once it has ended."""
    found = list(proofs)
    if expects.proof == "required":
        for number, proof in enumerate(found):
            why = seen_in_part(proof, peak_bytes) if proof.ok else None
            if why:
                found[number] = replace(proof, ok=None, reason=why, absent=True)
    # The very first look may come before the program has made itself at home.
    if any(proof.ok is not None for proof in found[1:]) and found[0].memory.ok is not None:
        found[0] = replace(found[0], early=True)
    return found


def again(proof: Proof, cell: Cell, host: Host) -> Proof:
    """Return a recorded proof with all that follows from its figures made again, not settled.

    For a checker that trusts no verdict in a file: bytes by node and CPUs are held against what
    the cell requires, of several instances that of the proof. A Fault for an instance that the
    cell has not.
    """
    if proof.instance is not None:
        if proof.instance not in {one.name for one in cell.instances}:
            raise Fault(reason("unknown-instance", instance=proof.instance))
        cell = cell.of(proof.instance)
    memory, cpus, absent = proof.memory, proof.cpus, proof.absent
    if memory.source is not None:
        plain = replace(memory, ok=None, reason=None, shares={})
        memory, absent = _judged(plain, cell.expects.memory)
    if cpus.threads:
        allowed, seen = (set(cpulist.parse(text)) for text in (cpus.allowed, cpus.seen))
        cpus = _judged_cpus(cell.expects.cpus, cpus.threads, allowed, seen)
    made = _together(memory, cpus, host, absent)
    own = {"when": proof.when, "t_s": proof.t_s, "instance": proof.instance, "cell": proof.cell}
    return replace(made, **own)  # type: ignore[arg-type]
