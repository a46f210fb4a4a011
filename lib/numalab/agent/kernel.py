"""The one reader of /proc and /sys, and the one caller of prctl(2) and set_mempolicy(2).

Formats: proc(5), Documentation/filesystems/proc.rst, Documentation/ABI/stable/sysfs-devices-node
and Documentation/admin-guide/cputopology.rst of the Linux kernel. What cannot be read is None (or
is left out of a mapping), never 0. A ``root`` other than "/" is a copy of another machine's files.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import sys
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

from . import cpulist
from .contract import Reason, reason
from .errors import Fault

CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"
HUGE_PAGES = "sys/kernel/mm/transparent_hugepage"

Pids = Union[int, Sequence[int]]

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36  # linux/prctl.h
_MOST_BYTES = 64 << 20  # of one file: numa_maps of a large server is some MiB
_MASK = re.compile(r"[0-9a-fA-F]{1,8}(,[0-9a-fA-F]{8})*\Z")
_CLONE_NEWUSER = 0x10000000  # linux/sched.h
_NOBODY = "65534 0 1"  # the number that every distribution has for it, and what it is outside
_libc = ctypes.CDLL(None, use_errno=True)


# --- files ------------------------------------------------------------------------------------


def read_bytes(path: str, limit: int = _MOST_BYTES) -> bytes:
    """Return what a file holds, at most ``limit`` bytes of it. Raises OSError."""
    # O_NONBLOCK: a FIFO in a copied tree must not make us wait.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    parts = []
    try:
        while limit > 0:  # one read gives a page of most /proc files
            part = os.read(descriptor, min(limit, 1 << 20))
            if not part:
                break
            parts.append(part)
            limit -= len(part)
    finally:
        os.close(descriptor)
    return b"".join(parts)


def read(path: str, limit: int = _MOST_BYTES) -> str:
    """Return a file's text as it is, at most ``limit`` bytes of it. Raises OSError."""
    return read_bytes(path, limit).decode("utf-8", "replace")


def read_text(path: str, limit: int = _MOST_BYTES) -> Optional[str]:
    """Return a file's text without what surrounds it, or None where it cannot be read."""
    try:
        text = read(path, limit)
    except (OSError, ValueError):  # sysfs answers EINVAL or ENXIO for what this machine lacks
        return None
    return text.strip("\0 \t\r\n")  # NUL: Linux 5.15-rc ends lists so


def read_int(path: str) -> Optional[int]:
    """Return the whole number that a file holds, or None."""
    return integer(read_text(path, 64))


def integer(text: Optional[str]) -> Optional[int]:
    """Return a text as a whole number, or None."""
    try:
        return int(text) if text else None
    except ValueError:
        return None


def list_folder(path: str) -> List[str]:
    """Return the names in a folder, or none where it cannot be read."""
    try:
        return os.listdir(path)
    except OSError:
        return []


def numbered(path: str, prefix: str = "") -> List[int]:
    """Return the numbers N of a folder's entries named exactly prefix + N, ascending."""
    size = len(prefix)
    names = list_folder(path)
    return sorted(int(n[size:]) for n in names if n.startswith(prefix) and n[size:].isdecimal())


# --- formats ----------------------------------------------------------------------------------


def cpu_list(text: Optional[str]) -> Optional[FrozenSet[int]]:
    """Return the numbers of a list ("0-3,8"), or None where it is none."""
    if text is None:
        return None
    try:
        return frozenset(cpulist.parse(text))
    except Fault:
        return None


def cpu_mask(text: Optional[str]) -> Optional[FrozenSet[int]]:
    """Return the numbers of a bitmap: hexadecimal words, highest first (lib/vsprintf.c, %*pb).

    A bitmap whose size is no multiple of 32 has a shorter highest word; all others have 8 digits.
    """
    if not text or not _MASK.match(text):
        return None
    value = int(text.replace(",", ""), 16)
    numbers = []
    while value:
        lowest = value & -value
        numbers.append(lowest.bit_length() - 1)
        value ^= lowest
    return frozenset(numbers)


def chosen(text: str) -> str:
    """Return the value in force of a sysfs choice ("always [madvise] never"), or the text."""
    found = re.search(r"\[([^\]]*)\]", text)
    return found.group(1) if found else " ".join(text.split())


def meminfo(text: Optional[str]) -> Dict[str, int]:
    """Return the values of a meminfo text (/proc's or a node's) in bytes; counts stay counts.

    The sizes in /proc/PID/status (VmRSS, VmHWM, VmSwap) have the same form.
    """
    values = {}
    for name, number, unit in re.findall(r"(\S+):\s+(\d+)( kB)?", text or ""):
        values[name] = int(number) * 1024 if unit else int(number)
    return values


def page_cache(memory: Mapping[str, int]) -> Optional[int]:
    """Return the bytes of files in memory that can be dropped, of a meminfo's values, or None.

    The kernel counts shared memory as file pages too, and that can only be swapped out.
    """
    files = memory.get("FilePages", memory.get("Cached"))
    if files is None:
        return None
    return max(0, files + memory.get("Buffers", 0) - memory.get("Shmem", 0))


def counters(text: Optional[str]) -> Dict[str, int]:
    """Return lines of "name number" (vmstat, numastat) by name."""
    return {name: int(number) for name, number in re.findall(r"^(\w+) (\d+)$", text or "", re.M)}


def status(text: Optional[str]) -> Dict[str, str]:
    """Return the fields of /proc/PID/status as text: Cpus_allowed_list, VmRSS …"""
    return dict(re.findall(r"^(\w+):[ \t]*(.*?)[ \t]*$", text or "", re.M))


# --- the host ---------------------------------------------------------------------------------


def vmstat(root: str = "/") -> Dict[str, int]:
    """Return the counters of /proc/vmstat; none where it cannot be read."""
    return counters(read_text(os.path.join(root, "proc/vmstat")))


def list_nodes(root: str = "/") -> List[int]:
    """Return the numbers of the NUMA nodes that sysfs shows, ascending."""
    return numbered(os.path.join(root, NODES), "node")


def node_cpus(root: str, node: int) -> Optional[FrozenSet[int]]:
    """Return the online CPUs of a node, or None where the kernel does not say."""
    here = f"{root.rstrip('/')}/{NODES}/node{node}/"
    listed = cpu_list(read_text(here + "cpulist"))
    return cpu_mask(read_text(here + "cpumap")) if listed is None else listed


def huge_page_bytes(root: str = "/") -> int:
    """Return the size of a transparent huge page, the unit in which they interleave; 0: none."""
    folder = os.path.join(root, HUGE_PAGES)
    if chosen(read_text(f"{folder}/enabled") or "never") == "never":
        return 0
    return read_int(f"{folder}/hpage_pmd_size") or 0


def boot_id(root: str = "/") -> Optional[str]:
    """Return what names this boot of the machine (random(4)), or None."""
    return read_text(os.path.join(root, "proc/sys/kernel/random/boot_id"))


def oom_kills() -> Optional[int]:
    """Return how many processes the kernel killed for memory since boot (Linux 4.13)."""
    return vmstat().get("oom_kill")


class Mount(NamedTuple):
    """A line of ``/proc/mounts`` (fstab(5)): a file system, where it is, and its kind."""

    place: str
    kind: str
    options: Tuple[str, ...]


def mounts(root: str = "/", file: str = "proc/mounts") -> List[Mount]:
    """Return what is mounted, in the order of mounting; nothing where that cannot be read."""
    found = []
    for line in (read_text(os.path.join(root, file)) or "").splitlines():
        _, place, kind, options = (line.split(" ") + [""] * 4)[:4]
        place = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), place)
        found.append(Mount(place, kind, tuple(options.split(","))))
    return found


def own_groups(root: str = "/") -> Dict[str, str]:
    """Return this process's path in every hierarchy of control groups (cgroups(7)).

    They are by controller; version 2 is "".
    """
    own: Dict[str, str] = {}
    for line in (read_text(os.path.join(root, "proc/self/cgroup")) or "").splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        own.update(dict.fromkeys(controllers.split(","), path))
    return own


# --- processes --------------------------------------------------------------------------------


class Stat(NamedTuple):
    """What numalab uses of ``/proc/PID/stat`` (proc_pid_stat(5)), of a process or a thread."""

    pid: int
    name: str
    state: str
    parent: int
    session: int
    ticks: int  # of CPU time used, user and system, in units of 1 / sysconf(SC_CLK_TCK) s
    children_ticks: int  # the same of children that ended and were waited for
    started: int  # ticks after boot: with the number, it names a process for good
    resident_pages: int
    last_cpu: int
    minor_faults: int = 0
    major_faults: int = 0

    @property
    def ended(self) -> bool:
        """Whether it is dead and only waits for its parent to notice."""
        return self.state in "ZX"


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
        pid=int(number),
        name=name,
        state=fields[0],
        parent=value[0],
        session=value[2],
        ticks=value[10] + value[11],
        children_ticks=value[12] + value[13],
        started=value[18],
        resident_pages=value[20],
        last_cpu=value[35],
        minor_faults=value[6],
        major_faults=value[8],
    )


def stat_of(folder: str) -> Optional[Stat]:
    """Return the stat of the process or thread whose folder this is; None when it has ended."""
    try:
        return parse_stat(read(f"{folder}/stat"))
    except (OSError, ValueError):
        return None


def processes(proc: str = "/proc") -> Dict[int, Stat]:
    """Return every process of the host that can be seen, by number."""
    found = (stat_of(f"{proc}/{pid}") for pid in numbered(proc))
    return {stat.pid: stat for stat in found if stat}


def threads(pid: int, proc: str = "/proc") -> List[int]:
    """Return the numbers of a process's threads, ascending; none when it has ended."""
    return numbered(f"{proc}/{pid}/task")


def roots_of(pids: Pids) -> List[int]:
    """Return the roots of a measured tree as a list."""
    return [pids] if isinstance(pids, int) else list(pids)


def tree(roots: Pids, table: Mapping[int, Stat]) -> List[int]:
    """Return the measured tree, ascending: the roots, their descendants and sessions' members.

    A session that a root leads is included so that a child which left its parent (a server that
    put itself into the background) is still measured. Empty when all roots have ended.
    """
    living = [pid for pid in roots_of(roots) if pid in table and not table[pid].ended]
    led = {pid for pid in living if table[pid].session == pid}
    children = _children(table)
    members: Set[int] = set()
    waiting = [*living, *(stat.pid for stat in table.values() if stat.session in led)]
    while waiting:
        pid = waiting.pop()
        if pid not in members:
            members.add(pid)
            waiting += children.get(pid, [])
    return sorted(pid for pid in members if not table[pid].ended)


def descendants(pid: int, table: Optional[Mapping[int, Stat]] = None) -> List[int]:
    """Return the pids below a process, parents before children, siblings by pid; without itself."""
    children = _children(processes() if table is None else table)
    ordered: List[int] = []
    generation = sorted(children.get(pid, []))
    while generation:
        ordered += generation
        generation = sorted(c for parent in generation for c in children.get(parent, []))
    return ordered


def _children(table: Mapping[int, Stat]) -> Dict[int, List[int]]:
    found: Dict[int, List[int]] = {}
    for stat in table.values():
        found.setdefault(stat.parent, []).append(stat.pid)
    return found


# --- prctl(2) ---------------------------------------------------------------------------------


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def adopt_orphans(adopt: bool = True) -> None:
    """Make this process the parent of every orphan below it (Linux 3.4 and newer), or not."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def die_with_parent(
    then: Optional[Callable[[], None]] = None, by: int = signal.SIGKILL, nobody: bool = False
) -> Callable[[], None]:
    """Return a ``preexec_fn``: the child gets the signal ``by`` when its parent dies.

    The parent is the process (strictly: the thread) that calls this function and starts the child.
    ``then`` is called last, before the child becomes its program. ``nobody``: as root, the child
    is in a user namespace of its own (user_namespaces(7)) in which root is called nobody, for
    programs that refuse root; what it makes is root's outside.
    """
    parent = os.getpid()

    def before_exec() -> None:
        if nobody and os.geteuid() == 0:
            _rename_root()  # first: it takes back the signal of a parent's death (prctl(2))
        _prctl(_PR_SET_PDEATHSIG, by)
        if os.getppid() != parent:  # it died before the line above
            os._exit(127)
        if then:
            then()

    return before_exec


def _rename_root() -> None:
    if _libc.unshare(_CLONE_NEWUSER):
        os.write(2, b"numalab: this program refuses root, and root cannot make a user namespace "
                 b"here: run numalab as a plain user\n")  # fmt: skip
        os._exit(1)
    for name, text in (("setgroups", "deny"), ("uid_map", _NOBODY), ("gid_map", _NOBODY)):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def set_process_name(name: bytes) -> None:
    """Set the name of this process as ps(1) shows it, at most 15 bytes."""
    _libc.prctl(_PR_SET_NAME, ctypes.create_string_buffer(name), 0, 0, 0)


def mount(kind: str, folder: str) -> None:
    """Mount a file system of the kernel's own (mount(2)). Raises OSError."""
    _mounted(_libc.mount(kind.encode(), os.fsencode(folder), kind.encode(), 0, None), folder)


def unmount(folder: str) -> None:
    """Undo ``mount``. Raises OSError, as when something in it is still in use."""
    _mounted(_libc.umount2(os.fsencode(folder), 0), folder)


def _mounted(result: int, folder: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), folder)


# --- the memory-policy system calls -----------------------------------------------------------

MODES = {  # of set_mempolicy(2), uapi/linux/mempolicy.h
    "default": 0, "preferred": 1, "bind": 2, "interleave": 3, "preferred-many": 5,
    "weighted-interleave": 6,
}  # fmt: skip
_CALLS = ("mbind", "get_mempolicy", "set_mempolicy", "move_pages", "perf_event_open")
_GENERIC = (235, 236, 237, 239, 241)  # uapi/asm-generic/unistd.h
_NUMBERS = {  # by uname(2)'s machine
    "aarch64": _GENERIC, "loongarch64": _GENERIC, "riscv64": _GENERIC,
    "ppc64le": (259, 260, 261, 301, 319), "s390x": (268, 269, 270, 310, 331),
    "x86_64": (237, 239, 238, 279, 298),
}  # fmt: skip
_MOST_NODES = 1024  # that a kernel can be built for (NODES_SHIFT)
_WORD = 64
_MODE = 7  # without its flags


def _memory_call(name: str, *arguments: Any) -> None:
    """Make a system call that has no function in libc. Raises OSError."""
    machine = os.uname().machine
    if machine not in _NUMBERS or sys.maxsize < 1 << 32:
        raise OSError(errno.ENOSYS, f"{name}: unknown on {machine}")
    number = _NUMBERS[machine][_CALLS.index(name)]
    if _libc.syscall(ctypes.c_long(number), *arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _nodes(numbers: Iterable[int], most: int) -> Any:
    words = (ctypes.c_ulong * (most // _WORD + 1))()
    for number in numbers:
        words[number // _WORD] |= 1 << number % _WORD
    return words


def _set_policy(mode: int, nodes: Sequence[int]) -> None:
    if not nodes:
        return _memory_call("set_mempolicy", ctypes.c_long(mode), None, ctypes.c_ulong(0))
    mask = _nodes(nodes, max(nodes))
    # The kernel takes one bit less than it is told of (get_nodes() in mm/mempolicy.c).
    bits = ctypes.c_ulong(len(mask) * _WORD + 1)
    return _memory_call("set_mempolicy", ctypes.c_long(mode), mask, bits)


def memory_policy() -> Dict[str, str]:
    """Return this thread's memory policy, ``policy`` and ``nodes`` (a list); Raises OSError."""
    mode, mask = ctypes.c_int(), _nodes((), _MOST_NODES - 1)
    bits, nothing = ctypes.c_ulong(_MOST_NODES + 1), ctypes.c_ulong(0)
    _memory_call("get_mempolicy", ctypes.byref(mode), mask, bits, None, nothing)
    name = {number: name for name, number in MODES.items()}.get(mode.value & _MODE, str(mode.value))
    nodes = [n for n in range(_MOST_NODES) if mask[n // _WORD] >> n % _WORD & 1]
    return {"policy": name, "nodes": cpulist.format(nodes)}


def bind(
    cpus: Optional[str], policy: Optional[str] = None, nodes: Optional[str] = None
) -> Dict[str, str]:
    """Put this thread, and what it will start, on CPUs and under a memory policy.

    ``cpus`` and ``nodes`` are lists, None for those that it has, or needs; ``policy`` is one of
    MODES, None for the default. Returns what the kernel then says is in force: ``cpus``, and
    ``policy`` and ``nodes`` where it says so. Raises Fault when that is not what was asked, as when
    a CPU is offline or a node outside of the cpuset, and when the kernel refuses.
    """
    policy = policy or "default"
    if cpus is not None:
        _bind_cpus(cpulist.parse(cpus))
    in_force = {"cpus": cpulist.format(os.sched_getaffinity(0))}
    wanted = {"policy": policy, "nodes": nodes or ""}
    try:
        if policy != "default" or _policy_now().get("policy", policy) != policy:
            _set_policy(MODES[policy], cpulist.parse(nodes) if nodes else [])
    except OSError as error:
        raise Fault(reason("policy-refused", **wanted, error=error.strerror)) from None
    now = _policy_now()
    if now and now != wanted:
        raise Fault(reason("policy-not-in-force", **wanted, now=now["policy"], on=now["nodes"]))
    return {**in_force, **now}


def _bind_cpus(wanted: Sequence[int]) -> None:
    listed = cpulist.format(wanted)
    try:
        os.sched_setaffinity(0, wanted)
    except OSError as error:
        raise Fault(reason("cpus-refused", cpus=listed, error=error.strerror)) from None
    missing = sorted(set(wanted) - os.sched_getaffinity(0))
    if missing:
        raise Fault(reason("cpus-refused", cpus=cpulist.format(missing), error="not usable here"))


def _policy_now() -> Dict[str, str]:
    try:
        return memory_policy()
    except OSError:  # it can be set, and proven, where it cannot be read
        return {}


def forbidden_calls() -> Dict[str, Reason]:
    """Return the calls for memory policies and counters that this process may not make, and why.

    Each is tried, so that it does nothing, by a child: a filter (seccomp(2)) may kill who calls.
    """
    nothing = (None, ctypes.c_ulong(0))
    harmless = {
        "set_mempolicy": (ctypes.c_long(0), *nothing),
        "mbind": (*nothing, ctypes.c_long(0), *nothing, ctypes.c_ulong(0)),
        "move_pages": (ctypes.c_long(0), ctypes.c_ulong(0), None, None, None, ctypes.c_long(0)),
        "perf_event_open": (None, *[ctypes.c_long(-1)] * 3, ctypes.c_long(0)),  # EFAULT: it may
    }
    found = {}
    for name, arguments in harmless.items():
        status = _status_of(name, arguments)
        if os.WIFSIGNALED(status):
            killed = signal_name(os.WTERMSIG(status))
            found[name] = reason("call-kills", call=name, signal=killed)
        elif os.WEXITSTATUS(status) not in (0, errno.EFAULT):
            error = os.strerror(os.WEXITSTATUS(status))
            found[name] = reason("call-forbidden", call=name, error=error)
    return found


def signal_name(number: int) -> str:
    """Return a signal as readers know it: SIGKILL; "signal 34" for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _status_of(name: str, arguments: Sequence[Any]) -> int:
    """Make a call in a child; return its wait status: exit status is the error's number."""
    pid = os.fork()
    if pid == 0:
        code = errno.EIO
        try:
            _memory_call(name, *arguments)
            code = 0
        except OSError as error:
            code = error.errno or code
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]
