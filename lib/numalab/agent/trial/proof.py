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
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from .. import cpulist
from ..errors import Fault
from . import numa_maps

MIB = 1 << 20

Pids = Union[int, Sequence[int]]

# Path prefixes of mappings that have file= and yet are memory of the workload: mm/shmem.c and
# ipc/shm.c name them, POSIX shared memory is in /dev/shm.
_SHARED_MEMORY = ("/SYSV", "/memfd:", "/dev/zero", "/anon_hugepage", "/dev/shm/")


class _Unprovable(Exception):
    """Why a proof cannot be made; ``absent`` when the workload was not there to be looked at."""

    def __init__(self, why: str, absent: bool = False) -> None:
        super().__init__(why)
        self.absent = absent


class Stat(NamedTuple):
    """What numalab uses of ``/proc/PID/stat`` (proc_pid_stat(5))."""

    pid: int
    name: str
    state: str
    parent: int
    session: int
    ticks: int  # of CPU time used, user and system, in units of 1 / sysconf(SC_CLK_TCK) s
    children_ticks: int  # the same of children that ended and were waited for
    started: int  # ticks after boot: with the number, it names a process for good
    last_cpu: int


def parse_stat(text: str) -> Stat:
    """Read one ``stat`` file of a process or a thread.

    Raises ValueError when it is cut short, as that of a process just ending can be.
    """
    head, closed, tail = text.rpartition(")")
    number, opened, name = head.partition("(")
    fields = tail.split()
    if not closed or not opened or len(fields) < 37:
        raise ValueError("not a /proc/PID/stat file")
    value = [int(field) for field in fields[1:37]]  # value[0] is field 4, the parent
    return Stat(
        int(number), name, fields[0], value[0], value[2],
        value[10] + value[11], value[12] + value[13], value[18], value[35],
    )  # fmt: skip


def processes(proc: str = "/proc") -> Dict[int, Stat]:
    """Return every process of the host that can be seen, by number."""
    found = {}
    for name in os.listdir(proc):
        if name.isdigit():
            try:
                stat = parse_stat(_read(f"{proc}/{name}/stat"))
            except (OSError, ValueError):
                continue  # it ended while we looked
            found[stat.pid] = stat
    return found


def roots_of(pids: Pids) -> List[int]:
    """Return the roots of a measured tree as a list."""
    return [pids] if isinstance(pids, int) else list(pids)


def tree(roots: Pids, table: Dict[int, Stat]) -> List[int]:
    """Return the measured tree, ascending: the roots, their descendants and sessions' members.

    A session that a root leads is included so that a child which left its parent (a server that
    put itself into the background) is still measured. Empty when all roots have ended.
    """
    living = [pid for pid in roots_of(roots) if pid in table and table[pid].state not in "ZX"]
    children: Dict[int, List[int]] = {}
    for stat in table.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    members: Set[int] = set()
    led = {pid for pid in living if table[pid].session == pid}
    waiting = [*living, *(stat.pid for stat in table.values() if stat.session in led)]
    while waiting:
        pid = waiting.pop()
        if pid not in members:
            members.add(pid)
            waiting += children.get(pid, [])
    return sorted(pid for pid in members if table[pid].state not in "ZX")


class _Mapping(NamedTuple):
    start: str
    policy: str
    shared: str  # the file's name when it is shared memory, else ""
    bytes_by_node: Dict[int, int]


def workload_mappings(text: str) -> Tuple[List[_Mapping], int]:
    """Return the mappings of a numa_maps text that count as workload memory, and mixed bytes.

    Only lines that name a node are looked at, since the others hold no page. Raises Fault for a
    line with pages that does not read as numa_maps.
    """
    with_pages = "\n".join(line for line in text.splitlines() if " N" in line)
    mappings: List[_Mapping] = []
    mixed = 0
    records = numa_maps.parse(with_pages) if with_pages else []
    nodes: Dict[str, Dict[int, int]] = {}
    for record in records:
        if record["kind"] == "node_pages":
            nodes.setdefault(record["address"], {})[record["node"]] = record["pages"]
    for record in records:
        pages = nodes.get(record["address"])
        if record["kind"] != "mapping" or not pages:
            continue
        size = record["page_bytes"]
        if size is None and record["huge"]:  # before Linux 3.14: any number would be a guess
            raise Fault(
                f"numa_maps does not say how large the huge pages at {record['address']} are"
            )
        size = size or os.sysconf("SC_PAGE_SIZE")
        file = record["file"] or ""
        ours = not file or record["huge"] or file.startswith(_SHARED_MEMORY)
        if not ours:
            written = record["anon"] or 0
            if len(pages) == 1:
                pages = {node: min(written, number) for node, number in pages.items()}
            elif written != record["pages"]:
                mixed += written * size
                continue
            if not written:
                continue
        mappings.append(
            _Mapping(
                record["address"],
                _policy(record),
                file if ours else "",
                {node: number * size for node, number in pages.items()},
            )
        )
    return mappings, mixed


def _policy(mapping: Dict[str, Any]) -> str:
    flags, nodes = mapping["policy_flags"], mapping["policy_nodes"]
    return mapping["policy"] + (f"={flags}" if flags else "") + (f":{nodes}" if nodes else "")


def prove(
    pids: Pids,
    cell: Dict[str, Any],
    topology: Dict[str, Any],
    *,
    buffers: Optional[Dict[str, int]] = None,
    proc: str = "/proc",
) -> Dict[str, Any]:
    """Compare where a running tree's memory and threads are with what its cell expects.

    ``pids`` is the root of the tree, or several. ``cell`` and ``topology`` are as in the plan.
    ``buffers`` are bytes per node as a tool itself
    got them from move_pages(2) for its own buffers; given, they are judged in place of numa_maps.

    Returns a record whose ``ok`` is True (all that is required holds, all that is an outcome is
    recorded), False (a required placement does not hold, ``reason`` says how) or None (the proof
    could not be made, ``reason`` says why; ``absent`` is True when the workload was not there to
    be looked at: not started yet, ended, or without a page of its own). Its parts ``memory`` and
    ``cpus`` carry an ``ok`` of the same meaning. Sizes are in bytes, shares are of 1. Never
    raises for the state of the process.
    """
    expects = cell.get("expects") or {}
    absent = False
    try:
        table = processes(proc)
        roots = roots_of(pids)
        members = tree(roots, table)
        for pid in roots:
            if pid not in members:
                raise _Unprovable(f"process {pid} has ended", absent=True)
            if table[pid].name == "numactl":
                raise _Unprovable("numactl has not yet started the workload", absent=True)
        cpus = _prove_cpus(members, expects.get("cpus") or {"proof": "outcome"}, proc)
        memory = _prove_memory(
            roots,
            members,
            expects.get("memory") or {"proof": "outcome"},
            buffers,
            cell.get("threads") or 1,
            proc,
        )
        absent = bool(cpus.pop("absent", False) or memory.pop("absent", False))
    except _Unprovable as why:
        absent = why.absent
        memory = cpus = {"ok": None, "reason": str(why)}
    parts = (memory, cpus)
    if any(part["ok"] is False for part in parts):
        ok: Optional[bool] = False
    elif any(part["ok"] is None for part in parts):
        ok = None
    else:
        ok = True
    reasons = [part["reason"] for part in parts if part["ok"] is ok and part["reason"]]
    return {
        "ok": ok,
        "reason": "; ".join(dict.fromkeys(reasons)) or None if ok is not True else None,
        "absent": absent,
        "memory": memory,
        "cpus": cpus,
        "note": "one visible node" if _one_visible_node(topology) else None,
    }


def _one_visible_node(topology: Dict[str, Any]) -> bool:
    nodes = topology.get("nodes") or []
    return len([node for node in nodes if node.get("memory_bytes") != 0]) == 1


def _prove_memory(
    roots: List[int],
    members: List[int],
    expects: Dict[str, Any],
    buffers: Optional[Dict[str, int]],
    threads: int,
    proc: str,
) -> Dict[str, Any]:
    if expects["proof"] == "none":
        return {"ok": True, "reason": None, "source": None}
    try:
        if buffers is not None:
            found = _from_buffers(buffers, threads)
        else:
            found = _from_numa_maps(roots, members, proc)
    except _Unprovable as why:
        return {"ok": None, "reason": str(why), "absent": why.absent}
    pages, lumps = found["pages_bytes"], found["lumps"]
    total = sum(pages.values())
    found["anonymous_bytes"] = total
    interleaved = {str(node): size for node, size in sorted(found["interleaved_bytes"].items())}
    found["interleaved_bytes"] = interleaved
    if not total:
        reason = "the workload holds no anonymous page"
        return {"ok": None, "reason": reason, "absent": True, **found}
    shares = {node: size / total for node, size in sorted(pages.items())}
    found["pages_bytes"] = {str(node): pages[node] for node in sorted(pages)}
    found["shares"] = {str(node): round(share, 6) for node, share in shares.items()}
    wrong = None
    if expects["proof"] == "required":
        judged = _of_policy(expects, found)
        if judged is None:
            wrong = "no memory of the workload has the policy interleave"
        else:
            wrong = _misplaced(expects, *judged, lumps)
    return {"ok": wrong is None, "reason": wrong, **found}


def _of_policy(
    expects: Dict[str, Any], memory: Dict[str, Any]
) -> Optional[Tuple[Dict[int, float], int]]:
    """Return shares by node and all bytes of what is judged; None when there is no such memory.

    That is all memory of the workload, or (``policy: interleave``) only what the workload itself
    gave that policy, whatever the policy of its other memory is.
    """
    kind = "interleaved_bytes" if expects.get("policy") == "interleave" else "pages_bytes"
    pages = {int(node): size for node, size in (memory.get(kind) or {}).items()}
    total = sum(pages.values())
    return ({node: size / total for node, size in pages.items()}, total) if total else None


def _from_buffers(buffers: Dict[str, int], threads: int) -> Dict[str, Any]:
    strange = [node for node in buffers if not str(node).isdigit()]
    if strange:
        raise _Unprovable(
            f"the tool could not place {sum(buffers[node] for node in strange)} bytes of its own "
            f"buffers (move_pages said {', '.join(map(str, strange))})"
        )
    pages = {int(node): int(size) for node, size in buffers.items() if size}
    # Every thread goes round the nodes by itself, and all of them begin at the same one.
    return {
        "source": "move_pages",
        "pages_bytes": pages,
        "interleaved_bytes": {},
        "lumps": threads * _huge_page_bytes(),
    }


def _from_numa_maps(roots: List[int], members: List[int], proc: str) -> Dict[str, Any]:
    pages: Dict[int, int] = {}
    policies: Dict[str, int] = {}
    interleaved: Dict[int, int] = {}
    segments: Dict[Tuple[str, str], Dict[int, int]] = {}
    mixed = 0
    read = 0
    huge = _huge_page_bytes()
    lumps = resident = 0
    for pid in members:
        try:
            text = _read(f"{proc}/{pid}/numa_maps")
            mappings, its_mixed = workload_mappings(text)
        except PermissionError:
            raise _Unprovable(
                f"no permission to read {proc}/{pid}/numa_maps (run as the owner of the workload "
                "or as root)"
            ) from None
        except (FileNotFoundError, ProcessLookupError):
            if not os.path.exists(f"{proc}/{pid}/stat"):
                if pid in roots:
                    raise _Unprovable(f"process {pid} has ended", absent=True) from None
                continue  # a child that ended has no memory to prove
            raise _Unprovable(
                f"there is no {proc}/{pid}/numa_maps: this kernel was built without NUMA "
                "(CONFIG_NUMA)"
            ) from None
        except (OSError, Fault) as error:
            raise _Unprovable(f"process {pid}: {error}") from None
        read += 1
        resident = max(resident, _resident_bytes(f"{proc}/{pid}/status"))
        mixed += its_mixed
        for mapping in mappings:
            size = sum(mapping.bytes_by_node.values())
            policies[mapping.policy] = policies.get(mapping.policy, 0) + size
            if huge and size >= huge:
                lumps += huge  # one per mapping, see _misplaced
            if mapping.policy.startswith("interleave"):
                for node, part in mapping.bytes_by_node.items():
                    interleaved[node] = interleaved.get(node, 0) + part
            if mapping.shared:
                segment = segments.setdefault((mapping.start, mapping.shared), {})
                for node, size in mapping.bytes_by_node.items():
                    segment[node] = max(segment.get(node, 0), size)
            else:
                for node, size in mapping.bytes_by_node.items():
                    pages[node] = pages.get(node, 0) + size
    for segment in segments.values():
        for node, size in segment.items():
            pages[node] = pages.get(node, 0) + size
    return {
        "source": "numa_maps",
        "pages_bytes": pages,
        "interleaved_bytes": interleaved,
        "mixed_bytes": mixed,
        "processes": read,
        "resident_bytes": resident or None,  # of the largest process, files included
        "policies": policies,
        "lumps": lumps,
    }


def _resident_bytes(status: str) -> int:
    try:
        found = re.search(r"^VmRSS:\s*(\d+) kB$", _read(status), re.MULTILINE)
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else 0


def seen_in_part(proof: Dict[str, Any], peak_bytes: Optional[int]) -> Optional[str]:
    """Say so when a proof saw less than half of what the workload came to hold, else None.

    Memory that comes after the last look may be anywhere: a short program can be looked at once,
    before it has allocated. ``peak_bytes`` is the largest resident memory of any of its processes
    (``ru_maxrss`` of getrusage(2)), None when it is not known.
    """
    seen = proof["memory"].get("resident_bytes")
    if peak_bytes is None or seen is None or 2 * seen >= peak_bytes:
        return None
    return f"it was seen with {_amount(seen)} and came to hold {_amount(peak_bytes)}"


def _huge_page_bytes() -> int:
    """Return the size of a transparent huge page, the unit in which they interleave; 0: none."""
    folder = "/sys/kernel/mm/transparent_hugepage"
    try:
        if "[never]" in _read(f"{folder}/enabled"):
            return 0
        return int(_read(f"{folder}/hpage_pmd_size"))
    except (OSError, ValueError):
        return 0


def _misplaced(
    expects: Dict[str, Any], shares: Dict[int, float], total: int, lumps: int
) -> Optional[str]:
    """Say what is wrong with a required placement, or return None.

    ``lumps`` are bytes of huge pages that may be one too many on a node, or one too few, when
    their number is no multiple of the nodes'.
    """
    wanted = cpulist.parse(str(expects["nodes"]))
    named = cpulist.format(wanted)
    amount = _amount(total)
    if expects["rule"] == "within":
        outside = {node: share for node, share in shares.items() if node not in wanted}
        if 1 - sum(outside.values()) >= expects["at_least"]:
            return None
        worst = max(outside, key=lambda node: outside[node])
        others = f" ({_percent(sum(outside.values()))} outside in all)" if len(outside) > 1 else ""
        return f"{_percent(outside[worst])} of {amount} on node {worst}, not {named}{others}"
    if expects["rule"] == "shares":
        fair = 1 / len(wanted)
        # Few pages cannot be spread evenly: pages touched here and there fall as by chance, so
        # three standard errors of a share of that many pages are added to the tolerance.
        number = total / os.sysconf("SC_PAGE_SIZE")
        uneven = 3 * math.sqrt(fair * (1 - fair) / number) + (1 - fair) * lumps / total
        tolerance = expects["within_points"] / 100 + uneven
        off = {
            node: shares.get(node, 0.0) - (fair if node in wanted else 0.0)
            for node in {*wanted, *shares}
        }
        worst = max(sorted(off), key=lambda node: abs(off[node]))
        if abs(off[worst]) <= tolerance:
            return None
        right = f"{_percent(fair)} ± {tolerance * 100:.2g} points" if worst in wanted else "0 %"
        return f"{_percent(shares.get(worst, 0.0))} of {amount} on node {worst}, not {right}"
    raise Fault(f"a cell expects memory by an unknown rule: {expects['rule']!r}")


def _prove_cpus(members: List[int], expects: Dict[str, Any], proc: str) -> Dict[str, Any]:
    allowed: Set[int] = set()
    seen: Set[int] = set()
    threads = 0
    for pid, tid in _threads(members, proc):
        try:
            status = _read(f"{proc}/{pid}/task/{tid}/status")
            stat = parse_stat(_read(f"{proc}/{pid}/task/{tid}/stat"))
        except PermissionError as error:
            return {"ok": None, "reason": f"no permission to read {error.filename}"}
        except (OSError, ValueError):
            continue  # this thread ended while we looked
        listed = re.search(r"^Cpus_allowed_list:\s*(\S+)$", status, re.MULTILINE)
        if listed is None:
            return {
                "ok": None,
                "reason": f"{proc}/{pid}/task/{tid}/status has no Cpus_allowed_list",
            }
        threads += 1
        allowed.update(cpulist.parse(listed[1]))
        seen.add(stat.last_cpu)
    if not threads:
        return {"ok": None, "reason": f"process {members[0]} has ended", "absent": True}
    found = {
        "threads": threads,
        "allowed": cpulist.format(allowed),
        "seen": cpulist.format(seen),
        "outside": "",
    }
    if expects["proof"] != "required":
        return {"ok": True, "reason": None, **found}
    wanted = set(cpulist.parse(str(expects["cpus"])))
    found["outside"] = cpulist.format((allowed | seen) - wanted)
    wrong = None
    if allowed - wanted:
        wrong = f"threads may run on CPU {cpulist.format(allowed - wanted)}"
    elif seen - wanted:
        wrong = f"threads were seen on CPU {found['outside']}"
    if wrong:
        wrong += f", not only on {cpulist.format(wanted)}"
    return {"ok": wrong is None, "reason": wrong, **found}


def _threads(members: List[int], proc: str) -> Iterator[Tuple[int, str]]:
    for pid in members:
        try:
            numbers = os.listdir(f"{proc}/{pid}/task")
        except OSError:
            continue  # this process ended while we looked
        for tid in numbers:
            yield pid, tid


def grade(
    proofs: List[Dict[str, Any]], cell: Dict[str, Any], topology: Dict[str, Any]
) -> Tuple[str, Optional[str]]:
    """Return the grade of a trial and its reason, from all proofs that were made of it.

    One failed proof makes it ``error``. Otherwise a proof that could not be made makes it
    ``unverified``, except one that came too early or too late to find the workload, when another
    was made in time. What is left is ``verified``; where only one node is visible the
    reason says that the memory half of it proves nothing.
    """
    failed = [proof for proof in proofs if proof["ok"] is False]
    if failed:
        return "error", failed[0]["reason"]
    made = [proof for proof in proofs if proof["ok"] is True]
    unmade = [
        proof for proof in proofs if proof["ok"] is None and not (made and proof.get("absent"))
    ]
    if unmade:
        return "unverified", f"placement not proven: {unmade[0]['reason']}"
    if not made:
        return "unverified", "placement not proven: no proof was made"
    if _one_visible_node(topology):
        return "verified", "verified: one visible node"
    return "verified", None


def of_instance(cell: Dict[str, Any], name: str) -> Dict[str, Any]:
    """Return a cell of several instances as the one of that name has it: its own binding."""
    return {**cell, **next(one for one in cell["instances"] if one["name"] == name)}


def contradiction(proof: Dict[str, Any], cell: Dict[str, Any]) -> Optional[str]:
    """Judge a recorded proof again from its own figures; say what forbids its ``ok``, or None.

    For a checker that does not trust the verdict in a file: bytes per node and CPUs seen are held
    against what the cell requires; of several instances, what the one of the proof requires.
    """
    if "instance" in proof:
        cell = of_instance(cell, proof["instance"])
    expects, memory = cell["expects"], proof.get("memory") or {}
    if expects["memory"]["proof"] == "required":
        judged = _of_policy(expects["memory"], memory)
        if judged is None:
            return "it names no page of the workload"
        wrong = _misplaced(expects["memory"], *judged, memory.get("lumps", 0))
        if wrong:
            return wrong
    if expects["cpus"]["proof"] == "required":
        cpus = proof.get("cpus") or {}
        seen = cpulist.parse(f"{cpus.get('seen') or ''},{cpus.get('allowed') or ''}")
        outside = set(seen) - set(cpulist.parse(expects["cpus"]["cpus"]))
        if outside:
            return f"threads on CPUs {cpulist.format(outside)}, outside {expects['cpus']['cpus']}"
    return None


def metrics(proof: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return a proof's memory as rows: ``memory_share`` of each node (of 1), and its bytes."""
    memory = proof["memory"]
    shares = memory.get("shares")
    if not shares:
        return [
            {"metric": "memory_share", "value": None, "unit": "share", "point": "", "x": None,
             "y": None, "reason": memory.get("reason") or "no placement of memory was asked for",
             "source": "placement"},
        ]  # fmt: skip
    rows = []
    for node, share in shares.items():
        for metric, value, unit in (
            ("memory_share", share, "share"),
            ("memory_bytes", float(memory["pages_bytes"][node]), "B"),
        ):
            rows.append(
                {"metric": metric, "value": value, "unit": unit, "point": f"node {node}",
                 "x": float(node), "y": None, "reason": None, "source": "placement"}
            )  # fmt: skip
    return rows


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def _percent(share: float) -> str:
    percent = share * 100
    return "less than 0.1 %" if 0 < percent < 0.1 else f"{percent:.3g} %"


def _amount(size: int) -> str:
    if size < MIB:
        return f"{size / 1024:.0f} KiB"
    return f"{size / MIB:.0f} MiB" if size < 10240 * MIB else f"{size / 1024 / MIB:.0f} GiB"
