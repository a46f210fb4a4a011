"""The probe: driver of numalab's own C program, and reader of what it prints.

The source is shipped and compiled on the host by its own compiler (``build``). What the program
measures and how is written at the head of each file of ``agent/probe/``.

Records:

- ``setup``: what the run was: ``mode``, ``version``, ``threads``, pages asked for (``pages``) and
  got (``page_bytes``, ``transparent_huge_bytes``), the mode's own settings (sizes in bytes), and
  ``setup_s``, ``warmup_s``, ``measure_s``
- ``placement``: ``when`` (ready, result), ``node`` and ``bytes`` of the buffers; ``node`` is null
  where the kernel placed bytes on none (``reason``)
- ``thread``: ``when``, ``pinned`` (CPU or null), ``began_on``, ``ended_on``, ``allowed``
- ``stream``: ``kernel``, ``bytes``, ``times_s`` of all repeats, and of all but the first
  ``best_gbs``, ``min_s``, ``avg_s``, ``max_s``
- ``latency``: ``samples_ns``, ``median_ns``, ``min_ns``
- ``loaded``: ``delay`` (loop turns), ``samples_ns``, ``samples_gbs`` and their medians
- ``bandwidth``: ``mix``, ``samples_gbs``, ``median_gbs``
- ``core_latency``: ``from``, ``to``, ``samples_ns``, ``median_ns``, ``min_ns``, ``reason`` (why
  there is no figure, or null)

GB/s are 1e9 bytes a second.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import pkgutil
import platform
import re
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple

from .. import cpulist
from ..errors import Fault, ParseError
from .stream import last_level_caches

NAME = "probe"
PROTOCOL = "handshake"

Record = Dict[str, Any]

SOURCES = (
    "arch.h", "probe.h", "allocate.c", "bandwidth.c", "core_to_core.c", "fill.c", "json.c",
    "latency.c", "loaded.c", "main.c", "memory.c", "options.c", "selftest.c", "stream.c", "team.c",
    "traffic.c",
)  # fmt: skip
FLAGS = ("-std=gnu11", "-O3", "-Wall", "-Wextra", "-pthread")
_NATIVE = ("-march=native", "-mcpu=native", None)  # the first that gives a working program
_BUILD_LIMIT_S = 1200  # emulated hosts need a minute; loaded ones many

MODES = ("stream", "latency", "loaded", "bandwidth", "core-to-core")
_PAGES = ("auto", "default", "base", "thp", "hugetlb")
_MIXES = ("reads", "writes", "1:1", "2:1", "3:1")
_KERNELS = ("copy", "scale", "add", "triad")
_OPTIONS = (
    "mode", "array", "bytes", "repeat", "seconds", "threads", "delays", "mixes", "pages",
    "max_cpus", "path",
)  # fmt: skip
_MIB = 1 << 20
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|x-llc|)\Z")
_WHERE_UNKNOWN = 1 << 30  # bytes, where the caches are not known: more than most hosts' caches
_MOST_OF_MEMORY = 0.8

# For estimates only: what one thread does, and what all of them do at most.
_TOUCH_BYTES_S, _MOVE_BYTES_S, _HELP = 1.5e9, 8e9, 8


# --- the program ------------------------------------------------------------------------------


def find(options: Dict[str, Any]) -> Dict[str, Any]:
    """Return the probe's path and version; it is compiled when that has not been done yet.

    A probe that is there already is used when the option ``path`` or NUMALAB_PROBE names it.
    Raises Fault when the named one is not a probe, there is no compiler, or compiling fails.
    """
    path = options.get("path") or os.environ.get("NUMALAB_PROBE") or build(cache_folder())
    try:
        done = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=20
        )
        said = done.stdout.decode("ascii", "replace").split()
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise Fault(
            f"the probe {path} does not run: {error}", "remove it to build it anew"
        ) from None
    if done.returncode or said[:2] != ["numalab", "probe"] or len(said) != 3:
        raise Fault(f"{path} is not numalab's probe", "unset NUMALAB_PROBE to build it")
    return {"path": os.path.abspath(path), "version": said[2]}


def cache_folder() -> str:
    """Return the folder of compiled probes: under XDG_CACHE_HOME, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "numalab")


def build(folder: str) -> str:
    """Compile the probe for this host into a folder, once, and return the program's path.

    Its place is named by a hash of the sources, the compiler and its flags, and the processor
    (the program is made for it). Raises Fault: no compiler, the first errors, no place to write.
    """
    compiler, version = _compiler()
    sources = {name: _source(name) for name in SOURCES}
    digest = hashlib.sha256()
    for part in (version, " ".join(FLAGS), repr(_NATIVE), _processor()):
        digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
    for name, text in sources.items():
        digest.update(name.encode() + b"\0" + text)
    place = Path(folder) / f"probe-{digest.hexdigest()[:16]}"
    program = place / "probe"
    if os.access(program, os.X_OK):
        return str(program)
    try:
        os.makedirs(folder, exist_ok=True)
        work = tempfile.mkdtemp(prefix=".probe-", dir=folder)
        try:
            for name, text in sources.items():
                (Path(work) / name).write_bytes(text)
            _compile(compiler, work)
            for name in SOURCES:
                os.unlink(os.path.join(work, name))
            os.chmod(work, 0o755)
            with contextlib.suppress(OSError):  # somebody else was faster
                os.rename(work, place)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise Fault(
            f"the probe cannot be built in {folder}: {error.strerror or error}",
            "set XDG_CACHE_HOME to a folder that can be written and executed from",
        ) from None
    if not os.access(program, os.X_OK):
        raise Fault(f"{place} is in the way: it holds no probe", "remove it")
    return str(program)


def _source(name: str) -> bytes:
    data = pkgutil.get_data(f"{__package__.rsplit('.', 1)[0]}.probe", name)
    if data is None:
        raise Fault(f"the source {name} of the probe is missing", "install numalab anew")
    return data


def _compiler() -> Tuple[List[str], str]:
    """Return the compiler's command and its version: $CC, else the first of cc, gcc, clang."""
    asked = os.environ.get("CC", "").split()
    for command in [asked] if asked else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            try:
                done = subprocess.run(
                    [*command, "--version"], capture_output=True, timeout=60, check=True
                )
            except (OSError, subprocess.SubprocessError):
                continue
            return command, done.stdout.decode("utf-8", "replace")
    what = f"the compiler {' '.join(asked)} (from CC) does not run" if asked else None
    raise Fault(
        what or "there is no C compiler, which the probe needs",
        "install one: apt install gcc libc6-dev (Debian, Ubuntu), dnf install gcc (RHEL, Fedora, "
        "openEuler), zypper install gcc (SUSE), pacman -S gcc (Arch), apk add gcc musl-dev "
        "(Alpine); or name a probe built elsewhere by NUMALAB_PROBE",
    )


def _processor() -> str:
    """Return what tells this processor from others that cannot run its programs."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        text = ""
    first = text.split("\n\n", 1)[0]
    wanted = r"^(?:vendor_id|model name|cpu family|model|flags|Features|CPU .*|isa)\s*:.*$"
    return "\n".join([platform.machine(), *re.findall(wanted, first, re.MULTILINE)])


def _compile(compiler: List[str], work: str) -> None:
    files = [name for name in SOURCES if name.endswith(".c")]
    environment = {**os.environ, "LC_ALL": "C"}
    first = None
    for native in _NATIVE:
        flags = [*FLAGS, native] if native else list(FLAGS)
        for command in ([*compiler, *flags, *files, "-o", "probe"], ["./probe", "--self-test"]):
            try:
                done = subprocess.run(
                    command, cwd=work, env=environment, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_BUILD_LIMIT_S,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise Fault(f"{command[0]} took longer than {_BUILD_LIMIT_S} s", None) from None
            if done.returncode:
                said = done.stdout.decode("utf-8", "replace").splitlines()
                errors = [line for line in said if "error" in line] or said
                first = " | ".join(errors[:3])[:400] or f"status {done.returncode}"
                break
        else:
            return
    raise Fault(
        f"the probe cannot be built by {' '.join(compiler)}: {first}",
        "is the C library's development package installed (libc6-dev, glibc-devel)?",
    )


# --- planning ---------------------------------------------------------------------------------


def prepare(
    options: Dict[str, Any], topology: Dict[str, Any], cpus: str, memory_nodes: str
) -> Dict[str, Any]:
    """Return ``{"options", "need_bytes", "notes"}``: the options that the mode uses, as numbers.

    ``array`` (stream) and ``bytes`` (latency, loaded, bandwidth) are a number of bytes, a text
    like 64MiB, or 4x-llc: four times the sum of the last-level caches that the measuring CPUs
    use, as STREAM's run rules ask. No size takes more than 80 % of what the nodes can give; a
    note says when the rule was not met. Raises Fault for an unknown or bad option, and for a
    mode that needs more CPUs than there are.
    """
    for name in options:
        if name not in _OPTIONS:
            raise Fault(f"probe has no option {name!r}", f"known: {', '.join(_OPTIONS)}")
    mode = _choice("mode", options.get("mode", "stream"), MODES)
    numbers = cpulist.parse(cpus)
    out: Dict[str, Any] = {"mode": mode}
    if mode == "core-to-core":
        limit = options.get("max_cpus")
        count = len(numbers)
        if limit is not None:
            out["max_cpus"] = limit = _whole("max_cpus", limit, 2, 8192)
            count = min(count, limit)
        if count < 2:
            raise Fault("core-to-core needs 2 CPUs", None)
        out["seconds"] = _seconds(options.get("seconds", 2))
        out["cpu_count"] = count
        return {"options": out, "need_bytes": count * 65536, "notes": []}

    threads = 1 if mode == "latency" else options.get("threads", "all")
    if threads == "all":
        threads = len(numbers)
    elif threads == "half":
        threads = max(1, len(numbers) // 2)
    out["threads"] = threads = _whole("threads", threads, 1, 8192)
    if threads > len(numbers):
        raise Fault(
            f"{threads} threads on {len(numbers)} CPUs: the probe runs one thread on each CPU",
            f"ask for {len(numbers)} or fewer, or for all",
        )
    if mode == "loaded" and threads < 2:
        raise Fault(
            "loaded latency needs 2 threads: one measures while the others read",
            "bind it to 2 CPUs or more",
        )
    out["pages"] = _choice("pages", options.get("pages", "auto"), _PAGES)
    if mode == "stream":
        out["repeat"] = _whole("repeat", options.get("repeat", 10), 2, 10000)
        buffers: float = 3
    else:
        out["seconds"] = _seconds(options.get("seconds", 2))
        # With the index from which the chase is built.
        buffers = {"latency": 1.0625, "loaded": 2.0625, "bandwidth": 1}[mode]
    if mode == "loaded":
        out["delays"] = [_whole("delays", d, 0, 10**8) for d in _list(options, "delays", [0])]
    if mode == "bandwidth":
        out["mixes"] = [_choice("mixes", m, _MIXES) for m in _list(options, "mixes", ["reads"])]

    # Only the caches of the measuring CPU matter to the chase of an idle host.
    measuring = cpulist.format(numbers[:1]) if mode == "latency" else cpus
    key = "array" if mode == "stream" else "bytes"
    size, notes = _size(
        key, options.get(key, "4x-llc"), last_level_caches(topology, measuring),
        _available(topology, memory_nodes), buffers, 65536 * threads,
    )  # fmt: skip
    out[key] = size
    return {"options": out, "need_bytes": int(buffers * size), "notes": notes}


def _size(
    name: str,
    asked: Any,
    caches: Optional[int],
    available: Optional[int],
    buffers: float,
    least: int,
) -> Tuple[int, List[str]]:
    """Return the size of one buffer in bytes and the notes on it."""
    what, rule = ("array", "STREAM's rule") if name == "array" else ("buffer", "the rule")
    notes = []
    size = _bytes(name, asked, caches)
    most = None if available is None else int(_MOST_OF_MEMORY * available / buffers)
    why = f"{asked} was asked for"
    if most is not None and size > most:
        why = f"the nodes can give {available >> 20} MiB, of which {_MOST_OF_MEMORY:.0%} are used"
        size = most
    size = max(size // (2 * _MIB) * 2 * _MIB if size >= 64 * _MIB else size // 4096 * 4096, least)
    if not caches:
        notes.append(
            f"the last-level caches are unknown: whether the {what} of {size >> 20} MiB is 4× "
            f"as large ({rule}) is unknown"
        )
    elif size < 4 * caches // (2 * _MIB) * (2 * _MIB):
        notes.append(
            f"the {what} of {size / _MIB:.4g} MiB is {size / caches:.2g}× the last-level caches: "
            f"{rule} (4×) was not met: {why}"
        )
    return size, notes


def _bytes(name: str, asked: Any, caches: Optional[int]) -> int:
    match = _SIZE.match(asked) if isinstance(asked, str) else None
    if match and match[2] == "x-llc":
        return int(float(match[1]) * caches) if caches else _WHERE_UNKNOWN
    if match:
        asked = float(match[1]) * _UNITS[match[2]]
    good = isinstance(asked, (int, float)) and not isinstance(asked, bool)
    if not good or not 65536 <= asked < 2**62:
        raise Fault(
            f"{name} {asked!r} is not a size from 64 KiB",
            "write a number of bytes, 64MiB, or 4x-llc",
        )
    return int(asked)


def _available(topology: Dict[str, Any], memory_nodes: str) -> Optional[int]:
    """Return the bytes that these nodes can give (page cache makes room), or None."""
    wanted = set(cpulist.parse(memory_nodes))
    with_memory = {n["node"] for n in topology["nodes"] if n["memory_bytes"] != 0}
    if with_memory <= wanted and topology.get("available_bytes") is not None:
        return int(topology["available_bytes"])
    total = 0
    for node in topology["nodes"]:
        if node["node"] in wanted:
            if node["free_bytes"] is None:
                return None
            total += node["free_bytes"] + (node["page_cache_bytes"] or 0)
    return total


def _choice(name: str, value: Any, known: Tuple[str, ...]) -> str:
    if value not in known:
        raise Fault(f"{name} {value!r} is not known to the probe", f"known: {', '.join(known)}")
    return str(value)


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Fault(f"{name} {value!r} is not a whole number from {least} to {most}", None)
    return value


def _seconds(value: Any) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not 0.001 <= value <= 1e6:
        raise Fault(f"seconds {value!r} is not a length of time", "write a number like 2 or 0.5")
    return float(value)


def _list(options: Dict[str, Any], name: str, default: List[Any]) -> List[Any]:
    value = options.get(name, default)
    if not isinstance(value, list) or not 1 <= len(value) <= 64:
        raise Fault(f"{name} {value!r} is not a list of 1 to 64", f"write {default!r}")
    return value


def argv(found: Dict[str, Any], options: Dict[str, Any], cell: Dict[str, Any]) -> List[str]:
    """Return the command line.

    A cell without CPUs of its own (unbound) leaves its threads to the kernel; the threads of all
    others are pinned one to a CPU, in the order that the probe describes.
    """
    mode = options["mode"]
    words = [found["path"], mode]
    if mode == "core-to-core":
        words += ["--seconds", _text(options["seconds"])]
        return words + (["--max-cpus", str(options["max_cpus"])] if "max_cpus" in options else [])
    words += ["--bytes", str(options["array" if mode == "stream" else "bytes"])]
    words += ["--pages", options["pages"], "--pin", "none" if cell["cpus"] is None else "cpu"]
    if mode != "latency":
        words += ["--threads", str(options["threads"])]
    if mode == "stream":
        words += ["--repeats", str(options["repeat"])]
    else:
        words += ["--seconds", _text(options["seconds"])]
    for name in ("delays", "mixes"):
        if name in options:
            words += [f"--{name}", ",".join(map(str, options[name]))]
    return words


def _text(seconds: float) -> str:
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def timing(options: Dict[str, Any]) -> Dict[str, float]:
    """Return the planned seconds; the first touch of the buffers counts as warm-up."""
    mode = options["mode"]
    if mode == "core-to-core":
        pairs = options["cpu_count"] * (options["cpu_count"] - 1) / 2
        measure = max(options["seconds"], pairs * 300e-6)
        return {"setup_s": 0.1, "warmup_s": 0.0, "measure_s": round(measure, 3)}
    threads = options["threads"]
    size = options["array" if mode == "stream" else "bytes"]
    if mode == "stream":
        moved = 10.0 * size * options["repeat"]
        measure = moved / (_MOVE_BYTES_S * min(threads, _HELP))
        warmup = 3 * size / (_TOUCH_BYTES_S * min(threads, _HELP))
    else:
        points = len(options.get("delays") or options.get("mixes") or [0])
        measure = max(options["seconds"], 0.15 * points) + 0.1 * points
        warmup = size / _TOUCH_BYTES_S
        if mode != "bandwidth":
            warmup += size / 64 * 25e-9 + 0.5
    return {"setup_s": 0.1, "warmup_s": round(warmup, 3), "measure_s": round(measure, 3)}


# --- reading ----------------------------------------------------------------------------------

_REAL, _WHOLE, _WORD = (int, float), (int,), (str,)
_NONE = (type(None),)
_BOTH: Dict[str, Tuple[type, ...]] = {
    "event": _WORD, "mode": _WORD, "buffers": (dict, *_NONE), "buffers_reason": (str, *_NONE),
    "buffer_pages": _WHOLE, "buffer_pages_asked": _WHOLE, "threads": (list,),
}  # fmt: skip
_READY: Dict[str, Tuple[type, ...]] = {
    **_BOTH, "schema": _WHOLE, "version": _WORD, "threads_measuring": _WHOLE, "pages": _WORD,
    "page_bytes": _WHOLE, "transparent_huge_bytes": (int, *_NONE), "setup_s": _REAL,
    "warmup_s": _REAL,
}  # fmt: skip
_RESULT: Dict[str, Tuple[type, ...]] = {**_BOTH, "measure_s": _REAL}
_READY_OF: Dict[str, Dict[str, Tuple[type, ...]]] = {
    "stream": {"array_bytes": _WHOLE, "repeats": _WHOLE},
    "latency": {"bytes": _WHOLE, "stride": _WHOLE, "flushed": (bool,)},
    "loaded": {"bytes": _WHOLE, "stride": _WHOLE, "flushed": (bool,), "delay_turn_ns": _REAL},
    "bandwidth": {"bytes": _WHOLE, "sample_s": _REAL, "stores": _WORD},
    "core-to-core": {"samples": _WHOLE},
}
_RESULT_OF: Dict[str, Dict[str, Tuple[type, ...]]] = {
    "stream": {"kernels": (list,), "relative_error": _REAL},
    "latency": {"samples_ns": (list,), "accesses_per_sample": _WHOLE},
    "loaded": {"delays": (list,)},
    "bandwidth": {"mixes": (list,)},
    "core-to-core": {"rows": _WHOLE},
}
_ROW = {"event": _WORD, "from": _WHOLE, "pairs": (list,)}
_THREAD = {
    "pinned": (int, *_NONE), "began_on": _WHOLE, "ended_on": _WHOLE, "allowed": (str, *_NONE)
}  # fmt: skip


class Line:
    """One line of output, which refuses what it does not understand."""

    def __init__(self, number: int, text: str) -> None:
        self.number, self.text = number, text
        try:
            self.record = json.loads(text, parse_constant=self._no_constant)
        except (ValueError, RecursionError):
            raise self.wrong("this is not JSON") from None
        if not isinstance(self.record, dict):
            raise self.wrong("this is not a record")

    def _no_constant(self, name: str) -> Any:
        raise ValueError(name)

    def wrong(self, why: str) -> ParseError:
        return ParseError(NAME, self.number, self.text, why)

    def check(self, record: Any, keys: Dict[str, Tuple[type, ...]], where: str) -> Record:
        """Return a record that has exactly these keys, of these types, no number below 0."""
        if not isinstance(record, dict):
            raise self.wrong(f"{where} is not a record")
        if set(record) != set(keys):
            odd = ", ".join(sorted(set(keys) ^ set(record)))
            raise self.wrong(f"{where}: keys are missing or unknown: {odd}")
        for key, types in keys.items():
            value = record[key]
            if type(value) not in types:
                raise self.wrong(f"{where}: {key} is {value!r}")
            if isinstance(value, (int, float)) and not (math.isfinite(value) and value >= 0):
                raise self.wrong(f"{where}: {key} is {value!r}")
        return record

    def numbers(self, values: Any, where: str, least: int = 1, zero: bool = False) -> List[float]:
        """Return a list of finite numbers above 0, or also 0."""
        if not isinstance(values, list) or len(values) < least:
            raise self.wrong(f"{where}: a list of {least} numbers or more is expected")
        for value in values:
            good = type(value) in _REAL and math.isfinite(value) and value >= 0
            good = good and (zero or value > 0)
            if not good:
                raise self.wrong(f"{where}: {value!r} is not a number above 0")
        return [float(value) for value in values]


def parse(text: str) -> List[Record]:
    """Return the records of one run's output; see the head of this module.

    Raises ParseError with the line that cannot be read, and when ready or result is missing.
    """
    lines = [Line(n, row) for n, row in enumerate(text.split("\n"), 1) if row]
    events = [line.record.get("event") for line in lines]
    if len(lines) < 2 or events[0] != "ready" or events[-1] != "result":
        first = lines[0] if lines and events[0] != "ready" else None
        if first:
            raise first.wrong('the first line is not "ready"')
        raise ParseError(NAME, 0, "", 'it does not go from "ready" to "result"')
    ready, result = lines[0], lines[-1]
    mode = ready.record.get("mode")
    if mode not in MODES:
        raise ready.wrong(f"the mode {mode!r} is not known")
    start = ready.check(ready.record, {**_READY, **_READY_OF[mode]}, "ready")
    if start["schema"] != 1:
        raise ready.wrong(f"schema {start['schema']} is not known here (1 is)")
    end = result.check(result.record, {**_RESULT, **_RESULT_OF[mode]}, "result")
    if end["mode"] != mode:
        raise result.wrong(f"the mode was {mode} and is now {end['mode']}")
    setup = {
        "kind": "setup", "mode": mode, "version": start["version"],
        "threads": start["threads_measuring"],
        **{key: start[key] for key in ("pages", "page_bytes", "transparent_huge_bytes")},
        **{key: start[key] for key in _READY_OF[mode]},
        "setup_s": start["setup_s"], "warmup_s": start["warmup_s"], "measure_s": end["measure_s"],
    }  # fmt: skip
    rows = lines[1:-1]
    if mode != "core-to-core" and rows:
        raise rows[0].wrong('only "ready" and "result" are expected')
    measured = {
        "stream": _read_stream, "latency": _read_latency, "loaded": _read_loaded,
        "bandwidth": _read_bandwidth,
    }  # fmt: skip
    found = _read_rows(result, rows) if mode == "core-to-core" else measured[mode](result, start)
    places = [*read_place(ready, start), *read_place(result, end)]
    return [setup, *places, *found]


def read_place(line: Line, record: Record) -> Iterable[Record]:
    """Yield the records ``placement`` and ``thread`` of a line that has been checked."""
    when = record["event"]
    if record["buffers"] is None:
        reason = record["buffers_reason"] or "not told"
        yield {"kind": "placement", "when": when, "node": None, "bytes": None, "reason": reason}
    for node, size in (record["buffers"] or {}).items():
        if type(size) is not int or size <= 0:
            raise line.wrong(f"buffers: {size!r} bytes on node {node}")
        known = node.isascii() and node.isdigit()
        if not known and node not in ("not present", "unknown"):
            raise line.wrong(f"buffers: {node!r} is no node")
        yield {
            "kind": "placement", "when": when, "node": int(node) if known else None,
            "bytes": size, "reason": None if known else node,
        }  # fmt: skip
    for thread in record["threads"]:
        if isinstance(thread, dict) and isinstance(thread.get("allowed"), str):
            try:
                cpulist.parse(thread["allowed"])
            except Fault as fault:
                raise line.wrong(f"threads: {fault.what}") from None
        yield {"kind": "thread", "when": when, **line.check(thread, _THREAD, "threads")}


def _read_stream(line: Line, start: Record) -> List[Record]:
    out = []
    keys = {"kernel": _WORD, "bytes": _WHOLE, "times_s": (list,)}
    kernels = [line.check(kernel, keys, "kernels") for kernel in line.record["kernels"]]
    if tuple(kernel["kernel"] for kernel in kernels) != _KERNELS:
        raise line.wrong(f"kernels: not {', '.join(_KERNELS)}")
    for kernel, arrays in zip(kernels, (2, 2, 3, 3)):
        times = line.numbers(kernel["times_s"], kernel["kernel"], max(2, start["repeats"]))
        if kernel["bytes"] != arrays * start["array_bytes"]:
            raise line.wrong(f"{kernel['kernel']}: {kernel['bytes']} bytes are not {arrays} arrays")
        counted = times[1:]
        out.append({
            "kind": "stream", "kernel": kernel["kernel"], "bytes": kernel["bytes"],
            "best_gbs": kernel["bytes"] / min(counted) / 1e9, "min_s": min(counted),
            "avg_s": statistics.fmean(counted), "max_s": max(counted), "times_s": times,
        })  # fmt: skip
    if not line.record["relative_error"] < 1e-13:
        raise line.wrong(f"the arrays were wrong by {line.record['relative_error']}")
    return out


def _read_latency(line: Line, start: Record) -> List[Record]:
    samples = line.numbers(line.record["samples_ns"], "samples_ns", 3)
    return [{
        "kind": "latency", "samples_ns": samples, "median_ns": statistics.median(samples),
        "min_ns": min(samples), "accesses_per_sample": line.record["accesses_per_sample"],
    }]  # fmt: skip


def _read_loaded(line: Line, start: Record) -> List[Record]:
    out = []
    keys = {"delay": _WHOLE, "latency_ns": (list,), "bandwidth_gbs": (list,)}
    for entry in line.record["delays"]:
        point = line.check(entry, keys, "delays")
        ns = line.numbers(point["latency_ns"], "latency_ns")
        # 0: the reading threads were not run during that sample.
        gbs = line.numbers(point["bandwidth_gbs"], "bandwidth_gbs", zero=True)
        out.append({
            "kind": "loaded", "delay": point["delay"], "samples_ns": ns, "samples_gbs": gbs,
            "median_ns": statistics.median(ns), "median_gbs": statistics.median(gbs),
        })  # fmt: skip
    if not out:
        raise line.wrong("delays: there are none")
    return out


def _read_bandwidth(line: Line, start: Record) -> List[Record]:
    out = []
    for entry in line.record["mixes"]:
        point = line.check(entry, {"mix": _WORD, "samples_gbs": (list,)}, "mixes")
        if point["mix"] not in _MIXES:
            raise line.wrong(f"mixes: {point['mix']!r} is not known")
        gbs = line.numbers(point["samples_gbs"], "samples_gbs")
        out.append({
            "kind": "bandwidth", "mix": point["mix"], "samples_gbs": gbs,
            "median_gbs": statistics.median(gbs),
        })  # fmt: skip
    if not out:
        raise line.wrong("mixes: there are none")
    return out


def _read_rows(result: Line, rows: List[Line]) -> List[Record]:
    if len(rows) != result.record["rows"]:
        raise result.wrong(f"{result.record['rows']} rows are told of, {len(rows)} are there")
    out: List[Record] = []
    keys = {"to": _WHOLE, "samples_ns": (list,), "reason": (str, *_NONE)}
    for number, line in enumerate(rows):
        row = line.check(line.record, _ROW, "row")
        if row["event"] != "row" or len(row["pairs"]) != len(rows) - number:
            raise line.wrong(f"this is not row {number + 1} of {len(rows)}")
        for entry in row["pairs"]:
            pair = line.check(entry, keys, "pairs")
            reason = pair["reason"]
            ns = [] if reason else line.numbers(pair["samples_ns"], "samples_ns")
            out.append({
                "kind": "core_latency", "from": row["from"], "to": pair["to"], "samples_ns": ns,
                "median_ns": statistics.median(ns) if ns else None,
                "min_ns": min(ns) if ns else None, "reason": reason,
            })  # fmt: skip
    return out


def metrics(records: List[Record]) -> List[Record]:
    """Return what was measured as rows; units and points as the module's head says."""
    out: List[Record] = []

    def put(
        metric: str, value: Any, unit: str, point: str = "", x: Any = None, y: Any = None,
        reason: Optional[str] = None,
    ) -> None:  # fmt: skip
        out.append({
            "metric": metric, "value": value, "unit": unit, "point": point,
            "x": None if x is None else float(x), "y": None if y is None else float(y),
            "reason": reason,
        })  # fmt: skip

    ready = [r for r in records if r["kind"] == "placement" and r["when"] == "ready"]
    total = sum(r["bytes"] or 0 for r in ready)  # of all buffers: loaded has one a thread
    for record in records:
        kind = record["kind"]
        if kind == "setup" and record["mode"] in ("latency", "loaded", "bandwidth"):
            huge = 1.0 if record["pages"] == "hugetlb" else None
            if record["transparent_huge_bytes"] is not None and total and huge is None:
                huge = record["transparent_huge_bytes"] / total
            unknown = "the kernel does not tell" if huge is None else None
            put("huge_page_share", huge, "share", reason=unknown)
        elif kind == "stream":
            put(record["kernel"], record["best_gbs"], "GB/s")
        elif kind == "latency":
            put("idle_latency", record["median_ns"], "ns")
        elif kind == "loaded":
            point, x = f"delay={record['delay']}", record["delay"]
            put("loaded_latency", record["median_ns"], "ns", point, x)
            drawn = record["median_gbs"] or None
            idle = None if drawn else "the threads that should have read were not run"
            put("loaded_bandwidth", drawn, "GB/s", point, x, reason=idle)
        elif kind == "bandwidth":
            put("bandwidth", record["median_gbs"], "GB/s", record["mix"])
        elif kind == "core_latency":
            one, other = record["from"], record["to"]
            put("core_latency", record["median_ns"], "ns", f"{one}-{other}", one, other,
                record["reason"])  # fmt: skip
    return out


def samples(records: List[Record]) -> List[Record]:
    """Return the samples within a run: ``t_s`` (seconds of measuring), metric, point, value, unit.

    Of stream every repeat of every kernel, the first included; of latency and bandwidth every
    sample.
    """
    out: List[Record] = []
    kernels = [record for record in records if record["kind"] == "stream"]
    t = 0.0
    for times in zip(*(kernel["times_s"] for kernel in kernels)):
        for kernel, took in zip(kernels, times):
            t += took
            out.append({
                "t_s": t, "metric": kernel["kernel"], "point": "", "unit": "GB/s",
                "value": kernel["bytes"] / took / 1e9,
            })  # fmt: skip
    for record in records:
        if record["kind"] == "latency":
            for ns in record["samples_ns"]:
                t += ns * 1e-9 * record["accesses_per_sample"]
                out.append(
                    {"t_s": t, "metric": "idle_latency", "point": "", "value": ns, "unit": "ns"}
                )
        elif record["kind"] == "bandwidth":
            step = next(r["sample_s"] for r in records if r["kind"] == "setup")
            for gbs in record["samples_gbs"]:
                t += step
                out.append({
                    "t_s": t, "metric": "bandwidth", "point": record["mix"], "value": gbs,
                    "unit": "GB/s",
                })  # fmt: skip
    return out
