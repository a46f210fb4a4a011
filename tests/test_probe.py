"""The probe: its program, its conversation, its driver, and the driver of any command."""

import itertools
import json
import os
import platform
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import zipfile
from dataclasses import astuple, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cross_compiling
import sysfs_tree
import topologies
import waiting
from cells import cell
from numalab.agent import compiled, cpulist, kernel, numa_maps
from numalab.agent.contract import SCHEMA, Cache, ToolRecord
from numalab.agent.drivers import core_choice, driver, probe_output
from numalab.agent.drivers.options import caches as caches_of
from numalab.agent.errors import Fault, ParseError
from numalab.agent.host import topology
from numalab.agent.probe import PROGRAM

HOST = topologies.topology(nodes=1)
PROBE, COMMAND = driver("probe"), driver("command")

SOURCE = Path(compiled.__file__).resolve().parent / "probe"
C_FILES = sorted(str(path) for path in SOURCE.glob("*.c"))
ALLOWED = cpulist.format(os.sched_getaffinity(0))
TWO = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="this needs 2 CPUs, this process may use one"
)
MODES = {
    "stream": ["--bytes", "1MiB", "--repeats", "4"],
    "latency": ["--bytes", "1MiB", "--seconds", "0.3"],
    "loaded": ["--bytes", "1MiB", "--seconds", "0.1", "--delays", "0,500"],
    "bandwidth": ["--bytes", "1MiB", "--seconds", "0.1", "--mixes", "reads,2:1"],
    "core-to-core": ["--seconds", "0.05", "--max-cpus", "2"],
}
ALL_MODES = [pytest.param(m, marks=TWO if m in ("loaded", "core-to-core") else ()) for m in MODES]


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """The path of a probe compiled for these tests."""
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        pytest.skip("there is no C compiler")
    return compiled.build(PROGRAM, str(tmp_path_factory.mktemp("probe")))


def run(program, *words, **more):
    return subprocess.run(
        [program, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=waiting.SILENT_S, **more,
    )  # fmt: skip


class Talk:
    """A probe that waits to be talked to; it is killed at the end."""

    def __init__(self, *words):
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def hear(self):
        assert select.select([self.process.stdout], [], [], waiting.SILENT_S)[0], "it says nothing"
        return json.loads(self.process.stdout.readline())

    def say(self, line):
        self.process.stdin.write(line.encode() + b"\n")


@pytest.fixture(scope="session")
def outputs(program):
    """What each mode prints, as text."""
    usable = [m for m in MODES if len(os.sched_getaffinity(0)) > 1 or m in ("stream", "latency")]
    texts = {}
    for mode in usable:
        done = run(program, mode, *MODES[mode], "--no-wait")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        texts[mode] = done.stdout
    return texts


# --- the program ------------------------------------------------------------------------------


def test_every_source_is_named_for_shipping():
    assert sorted(PROGRAM.sources) == sorted(
        p.name for p in SOURCE.iterdir() if p.suffix in (".c", ".h")
    )


def test_it_compiles_without_a_warning_and_checks_itself(program, tmp_path):
    words = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror", "-O1", "-std=gnu11"]
    compiler = compiled.compiler(PROGRAM)[0]
    target = tmp_path / "strict"
    subprocess.run([*compiler, *words, "-pthread", *C_FILES, "-o", target], check=True)
    for path in (program, str(target)):
        done = run(path, "--self-test")
        assert (done.returncode, done.stdout) == (0, "self-test: ok\n"), done.stderr


def test_sanitizers_find_nothing(tmp_path):
    target = tmp_path / "checked"
    flags = ["-std=gnu11", "-O1", "-g", "-fsanitize=address,undefined", "-pthread"]
    flags.append("-fno-sanitize-recover=all")
    built = subprocess.run(
        [*compiled.compiler(PROGRAM)[0], *flags, *C_FILES, "-o", target],
        capture_output=True,
        text=True,
    )
    if built.returncode:
        pytest.skip(f"this compiler has no sanitizers: {built.stderr[:100]}")
    done = run(str(target), "--self-test")
    assert (done.returncode, done.stderr) == (0, "")
    for mode in ("stream", "latency"):
        done = run(str(target), mode, *MODES[mode], "--no-wait")
        assert (done.returncode, done.stderr) == (0, ""), mode
        assert PROBE.parse(done.stdout)
    if {"mbind", "move_pages"} & set(kernel.forbidden_calls()):
        return  # a tour binds its buffers
    cpu, node = min(os.sched_getaffinity(0)), cpulist.parse(topology.read().allowed.nodes)[0]
    visits = [f"visit {name} {cpu} 1 {node} {size}MiB" for name, size in zip("abc", (1, 2, 2))]
    for mode in ("latency", "bandwidth"):  # b needs another buffer, c the one of b
        done = subprocess.run(
            [target, mode, "--tour", "--seconds", "0.02", "--no-wait"],
            input="\n".join([*visits, "quit", ""]), capture_output=True, text=True,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), mode
        assert {row.cell for row in PROBE.metrics(PROBE.parse(done.stdout))} == set("abc")


def test_it_compiles_for_aarch64(tmp_path):
    cross_compiling.self_test_for_aarch64(C_FILES, tmp_path / "arm")


def test_the_generic_fallback_is_right_too(tmp_path):
    target = tmp_path / "generic"
    words = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-DPROBE_GENERIC", "-pthread"]
    subprocess.run([*compiled.compiler(PROGRAM)[0], *words, *C_FILES, "-o", target], check=True)
    assert run(str(target), "--self-test").stdout == "self-test: ok\n"
    done = run(str(target), "bandwidth", *MODES["bandwidth"], "--no-wait")
    assert PROBE.parse(done.stdout)[0]["stores"] == "ordinary"


COMPILERS = {
    "native": (None, ["-march=native"], "objdump", "movnt"),
    "x86-64": (None, [], "objdump", "movnt"),
    "aarch64": ("aarch64-linux-gnu-gcc", [], "aarch64-linux-gnu-objdump", "stnp"),
}


@pytest.mark.parametrize("kind", COMPILERS)
@pytest.mark.parametrize("level", ["-O2", "-O3"])
def test_the_stores_of_each_stream_kernel_are_what_its_name_says(kind, level, tmp_path):
    compiler, flags, objdump, instruction = COMPILERS[kind]
    if compiler is None and platform.machine() != "x86_64":
        pytest.skip("this is no x86-64 machine")
    for tool in (compiler or "sh", objdump):
        if not shutil.which(tool):
            pytest.skip(f"there is no {tool}")
    command = [compiler] if compiler else compiled.compiler(PROGRAM)[0]
    words = ["-std=gnu11", level, *flags, "-c", str(SOURCE / "stream.c")]
    subprocess.run([*command, *words, "-o", tmp_path / "stream.o"], check=True)
    text = subprocess.run(
        [objdump, "-dr", "--no-show-raw-insn", tmp_path / "stream.o"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    body = r"^[0-9a-f]+ <(\w+)[.\w]*>:\n(.*?)(?=\n\n|\Z)"  # a copy for constants has a suffix
    functions = dict(re.findall(body, text, re.DOTALL | re.MULTILINE))
    for name in ("copy", "scale", "add", "triad"):
        assert not re.search(r"mem(cpy|move)|\bcall|\bbl\b", functions[name]), name
        assert instruction not in functions[name]
        assert instruction in functions[f"{name}_nt"]
        assert not re.search(r"mem(cpy|move)", functions[f"{name}_nt"])


def test_many_repeats_of_stream_are_validated_too(program):
    words = ["--bytes", "64KiB", "--threads", "1", "--repeats", "400", "--no-wait"]
    done = run(program, "stream", *words)  # the values are infinite after 260 rounds
    assert (done.returncode, done.stderr) == (0, "")
    assert len(PROBE.parse(done.stdout)[-1]["times_s"]) == 400


@pytest.mark.parametrize("pages", ["thp", "auto"])
def test_a_buffer_begins_where_a_huge_page_can(program, pages):
    size = kernel.read_int("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
    if not size or not Path("/proc/self/maps").exists():
        pytest.skip("this kernel has no transparent huge pages")
    with Talk(program, "latency", "--bytes", "8MiB", "--pages", pages) as talk:
        talk.hear()
        starts = [
            int(begin, 16)
            for begin, end in re.findall(
                r"^([0-9a-f]+)-([0-9a-f]+) rw-p 0+ 00:00 0",
                Path(f"/proc/{talk.process.pid}/maps").read_text(), re.MULTILINE,
            )
            if int(end, 16) - int(begin, 16) == 8 << 20
        ]  # fmt: skip
    assert any(start % size == 0 for start in starts)


@TWO
def test_nobody_loads_the_core_that_measures(program):
    cpus = sorted(os.sched_getaffinity(0))
    siblings = kernel.cpu_list(
        kernel.read_text(f"/sys/devices/system/cpu/cpu{cpus[0]}/topology/thread_siblings_list")
    )
    others = [cpu for cpu in cpus[1:] if cpu not in (siblings or ())]
    done = run(
        program, "loaded", "--bytes", "8MiB", "--seconds", "0.1", "--mixes", "reads,3:1",
        "--delays", "0", "--no-wait",
    )  # fmt: skip
    if not others:
        assert done.returncode == 2 and "2 cores" in done.stderr
        return
    records = PROBE.parse(done.stdout)
    assert records[0]["injectors"] == len(others)
    assert [r["mix"] for r in records if r["kind"] == "loaded"] == ["reads", "3:1"]
    points = {row.point for row in PROBE.metrics(records) if row.metric == "loaded_latency"}
    assert points == {"reads delay=0", "3:1 delay=0"}
    assert records[0]["delay_turn_ns"] > 0
    later = run(
        program, "loaded", "--bytes", "1MiB", "--seconds", "0.1", "--clock-later", "--no-wait"
    )
    assert PROBE.parse(later.stdout)[0]["delay_turn_ns"] is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no mode is named"),
        (["sream"], "mode sream: no such choice"),
        (["stream", "--bogus"], "unknown option --bogus"),
        (["stream", "extra"], "unknown option extra"),
        (["stream", "--bytes"], "--bytes needs a value"),
        (["stream", "--bytes", "-1"], "--bytes -1: not a size"),
        (["stream", "--bytes", "1e9"], "--bytes 1e9: not a size"),
        (["stream", "--bytes", "99999999999999999999"], "not a size"),
        (["stream", "--bytes", "99999999999GiB"], "not a size"),
        (["stream", "--bytes", "8"], "the least for"),
        (["stream", "--repeats", "1"], "--repeats 1: not a whole number from 2"),
        (["stream", "--repeats=0x10"], "not a whole number"),
        (["stream", "--threads", "9999999999999999999999"], "not a whole number"),
        (["stream", "--threads", "8000"], "may be used"),
        (["stream", "--no-wait=1"], "--no-wait takes no value"),
        (["stream", "--delays", "1"], "--delays is no option of stream"),
        (["latency", "--threads", "2"], "--threads is no option of latency"),
        (["latency", "--seconds", "inf"], "not a number of seconds"),
        (["latency", "--seconds", "0"], "not a number of seconds"),
        (["latency", "--seconds", "1.2.3"], "not a number of seconds"),
        (["latency", "--stride", "100"], "not a power of two"),
        (["latency", "--pages", "2m"], "--pages 2m: no such choice"),
        (["latency", "--cpus", "0,0"], "not a list of CPUs, each once"),
        (["latency", "--cpus", "0-"], "not a list of CPUs"),
        (["latency", "--cpus", "8191"], "CPU 8191 is not among those that may be used"),
        (["latency", "--memory-node", "1023"], "--memory-node 1023 cannot be used"),
        (["loaded", "--threads", "1"], "loaded needs 2 threads"),
        (["loaded", "--delays", "1,,2"], "--delays : not a whole number"),
        (["bandwidth", "--mixes", "reads,4:1"], "--mixes 4:1: no such mix"),
        (["core-to-core", "--max-cpus", "1"], "not a whole number from 2"),
    ],
)
def test_bad_arguments_are_refused(program, words, says):
    done = run(program, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("probe: ") and says in done.stderr
    assert done.stderr.count("\n") == 1


def test_random_arguments_never_crash_it(program):
    rng = random.Random(7)
    options = re.findall(r"^  (--[a-z-]+)", run(program, "--help").stdout, re.MULTILINE)
    values = ["", "0", "1", "-1", "0-1", ",", "64KiB", "x" * 300, "\x80", "1:1", "reads", "%s%n"]
    assert len(options) >= 14
    for _ in range(150):
        words = [rng.choice([*MODES, "x", ""])]
        for _ in range(rng.randrange(1, 5)):
            words.append(rng.choice([*options, *values, f"{rng.choice(options)}={values[3]}"]))
        done = subprocess.run(
            [program, *(w.encode("utf-8", "surrogateescape") for w in words)],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=waiting.SILENT_S,
        )  # fmt: skip
        assert done.returncode in (0, 2, 3), (words, done.returncode, done.stderr)
        assert (done.returncode == 0) == (not done.stderr), words


def test_too_little_memory_is_said(program):
    done = run(program, "latency", "--bytes", "100000GiB", "--no-wait", "--stride", "1MiB")
    assert done.returncode == 3
    assert "not enough memory" in done.stderr


def test_an_empty_pool_of_huge_pages_is_said(program):
    pool = Path("/proc/sys/vm/nr_hugepages")
    if not pool.exists() or int(pool.read_text()):
        pytest.skip("this host has a pool of huge pages")
    done = run(program, "latency", "--bytes", "4MiB", "--pages", "hugetlb", "--no-wait")
    assert done.returncode in (3, 5)
    assert "huge pages" in done.stderr or "hugetlb" in done.stderr


# --- the conversation -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ALL_MODES)
def test_it_waits_to_be_told(program, mode):
    with Talk(program, mode, *MODES[mode]) as talk:
        ready = talk.hear()
        assert (ready["event"], ready["mode"]) == ("ready", mode)
        assert not select.select([talk.process.stdout], [], [], 0.3)[0], "it did not wait"
        talk.say("go")
        record = talk.hear()
        while record["event"] == "row":
            record = talk.hear()
        assert record["event"] == "result"
        assert talk.process.poll() is None
        talk.say("quit")
        assert talk.process.wait(waiting.SILENT_S) == 0


def test_the_end_of_its_input_ends_it(program):
    for told in ("", "quit\n", "go\n"):
        done = subprocess.run(
            [program, "stream", *MODES["stream"]], input=told, capture_output=True, text=True,
            timeout=waiting.SILENT_S,
        )  # fmt: skip
        assert done.returncode == 0
        assert done.stdout.count("\n") == (2 if told == "go\n" else 1)


def test_another_word_is_refused(program):
    done = subprocess.run(
        [program, "stream", *MODES["stream"]], input="start\n", capture_output=True, text=True
    )
    assert done.returncode == 2
    assert '"go" was expected on standard input, not "start"' in done.stderr


def test_the_time_limit_ends_it(program):
    with Talk(program, "stream", *MODES["stream"], "--time-limit", "0.4") as talk:
        # It was told nothing; on a slow machine it may not even get to say "ready".
        assert talk.process.wait(waiting.SILENT_S) == 4
        assert b"result" not in talk.process.stdout.read()
        assert b"time limit" in talk.process.stderr.read()


def test_it_dies_with_its_parent(program):
    script = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen([{program!r}, 'stream', '--bytes', '1MiB'], "
        "stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "p.stdout.readline()\nprint(p.pid, flush=True)\ntime.sleep(3600)\n"
    )
    # A second holder of the pipe: only the signal, not the end of input, can end the probe.
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    waiting.wait_for(lambda: not waiting.lives(child), tells=waiting.processes)


def test_the_placement_that_it_reports_is_that_of_numa_maps(program):
    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("this kernel has no numa_maps")
    with Talk(program, "stream", "--bytes", "8MiB", "--pages", "base") as talk:
        ready = talk.hear()
        if ready["buffers"] is None:
            pytest.skip(f"move_pages: {ready['buffers_reason']}")
        text = Path(f"/proc/{talk.process.pid}/numa_maps").read_text()
        largest = max(
            (m for m in numa_maps.workload_mappings(text)[0]),
            key=lambda mapping: sum(mapping.bytes_by_node.values()),
        )
        assert {str(n): size for n, size in largest.bytes_by_node.items()} == ready["buffers"]
        assert sum(ready["buffers"].values()) == 3 * 8 << 20
        assert ready["transparent_huge_bytes"] == 0


def test_threads_are_where_they_were_put(program):
    cpus = sorted(os.sched_getaffinity(0))[::-1][:2]
    words = ["--cpus", ",".join(map(str, cpus)), *MODES["stream"], "--no-wait"]
    records = PROBE.parse(run(program, "stream", *words).stdout)
    threads = [r for r in records if r["kind"] == "thread" and r["when"] == "result"]
    assert [t["pinned"] for t in threads] == cpus
    assert [t["allowed"] for t in threads] == [str(cpu) for cpu in cpus]
    assert all(t["began_on"] == t["ended_on"] == t["pinned"] for t in threads)
    records = PROBE.parse(run(program, "stream", "--pin", "none", *words[2:]).stdout)
    assert {(r["pinned"], r["allowed"]) for r in records if r["kind"] == "thread"} == {
        (None, ALLOWED)
    }


# --- the driver -------------------------------------------------------------------------------


def test_building_is_done_once(program):
    folder = Path(program).parent
    before = os.stat(program).st_mtime_ns
    assert compiled.build(PROGRAM, str(folder)) == program
    assert os.stat(program).st_mtime_ns == before
    assert list(folder.iterdir()) == [Path(program)]


def test_no_compiler_names_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(Fault, match="no C compiler.*apt install gcc.*dnf install gcc"):
        compiled.build(PROGRAM, str(tmp_path / "cache"))
    monkeypatch.setenv("CC", "no-such-cc -m64")
    with pytest.raises(Fault, match="no-such-cc -m64 .from CC. does not run"):
        compiled.build(PROGRAM, str(tmp_path / "cache"))


def test_a_failing_compiler_is_quoted(monkeypatch, tmp_path):
    fake = tmp_path / "badcc"
    fake.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo bad 1 && exit 0\n'
        "echo 'x.c:1: fatal error: stdio.h: No such file' >&2; exit 1\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("CC", str(fake))
    with pytest.raises(Fault, match="stdio.h: No such file.*libc6-dev"):
        compiled.build(PROGRAM, str(tmp_path / "cache"))
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_compiler_without_march_native_still_builds(monkeypatch, tmp_path):
    fake = tmp_path / "oldcc"
    fake.write_text(
        '#!/bin/sh\nfor w; do case "$w" in *=native) echo "error: unknown $w" >&2; exit 1;; '
        'esac; done\nexec cc "$@"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("CC", str(fake))
    path = compiled.build(PROGRAM, str(tmp_path / "cache"))
    assert run(path, "--self-test").returncode == 0


def test_it_is_built_from_within_a_zip_file(tmp_path):
    archive = tmp_path / "agent.zip"
    package = SOURCE.parent
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("numalab/__init__.py", "")
        for path in package.rglob("*"):
            if path.suffix in (".py", ".c", ".h", ".txt"):
                file.write(path, Path("numalab/agent") / path.relative_to(package))
    code = (
        f"import sys; sys.path.insert(0, {str(archive)!r})\n"
        "from numalab.agent import compiled, probe\n"
        "from numalab.agent.served import load\n"
        "assert '.zip' in compiled.__file__\n"
        "for one in (probe.PROGRAM, load.PROGRAM):\n"
        "    for name in one.sources: assert compiled._source(one, name)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_a_named_probe_is_used_and_checked(program, monkeypatch, tmp_path):
    found = PROBE.find({"path": program})
    assert (found.version, found.path, found.facts["made"]) == ("1.2", program, "named")
    monkeypatch.setenv("NUMALAB_PROBE", program)
    assert PROBE.find({}).path == program
    with pytest.raises(Fault, match="is not numalab's probe"):
        PROBE.find({"path": "/bin/true"})
    with pytest.raises(Fault, match="does not run"):
        PROBE.find({"path": str(tmp_path / "none")})


GIB = 1 << 30


@pytest.fixture(scope="module")
def amd(tmp_path_factory):
    return topology.read(sysfs_tree.write(tmp_path_factory.mktemp("amd"), sysfs_tree.AMD_8N))


def _node(host, number):
    return host.node[number].cpus, str(number)


def test_sizes_follow_the_caches_and_the_memory(amd):
    cpus, node = _node(amd, 0)
    found = caches_of(amd, cpus)
    caches = found.outer
    assert caches == found.last + 16 * (512 << 10)  # the L2 of 16 cores
    ready = PROBE.prepare({"mode": "stream", "array": "4x-llc"}, amd, cpus, node)
    assert ready.options["array"] == 4 * caches
    assert ready.need_bytes == 12 * caches
    assert ready.notes == ()
    half = PROBE.prepare({"mode": "latency", "bytes": "1.5x-llc"}, amd, cpus, node)
    one = caches_of(amd, cpus.partition("-")[0]).outer
    assert 0 <= half.options["bytes"] - 1.5 * one < 2 << 20  # whole huge pages
    everywhere = amd.allowed.cpus
    whole = PROBE.prepare({"mode": "stream"}, amd, everywhere, amd.allowed.nodes)
    assert whole.options["array"] >= 4 * caches_of(amd, everywhere).outer

    nodes = tuple(replace(one, free_bytes=caches, page_cache_bytes=0) for one in amd.nodes)
    small = replace(amd, nodes=nodes)
    tight = PROBE.prepare({"mode": "stream"}, small, cpus, node)
    assert tight.need_bytes <= 0.8 * caches
    (note,) = tight.notes
    assert note.code == "below-four-caches" and note.fields["why"]["code"] == "memory-limits-size"
    assert "was not met: the nodes can give" in str(note)

    blind = replace(small, caches=tuple(replace(c, size_bytes=None) for c in amd.caches))
    (note,) = PROBE.prepare({"mode": "bandwidth"}, blind, cpus, node).notes
    assert note.code == "llc-unknown" and "caches are unknown" in str(note)


@pytest.fixture(scope="module")
def arm():
    """As Ampere Altra or Graviton: cores with an L2 of 1 MiB each, and nothing behind them."""
    return topology.read(sysfs_tree.shared(sysfs_tree.ARM_16N))


@pytest.mark.parametrize("mode", ["latency", "loaded", "bandwidth", "stream"])
def test_a_cache_that_the_kernel_does_not_list_is_thought_of(arm, mode):
    cpus, node = _node(arm, 0)
    name = "array" if mode == "stream" else "bytes"
    one = PROBE.prepare({"mode": mode}, arm, cpus, node)
    assert one.options[name] == 256 << 20  # 4 x 8 MiB would lie in a system-level cache
    (note,) = one.notes
    assert note.code == "llc-hidden" and "256" in str(note)
    small = PROBE.prepare({"mode": mode, name: "64MiB"}, arm, cpus, node)
    assert [one.code for one in small.notes] == ["below-hidden-cache"]
    if mode != "latency":  # that has one CPU
        whole = PROBE.prepare({"mode": mode}, arm, arm.allowed.cpus, arm.allowed.nodes)
        assert whole.options[name] == 4 * 128 << 20


def test_an_l3_of_one_core_is_a_last_level(amd):
    own = [Cache(level, "Unified", 1 << 20, amd.cpu[0].siblings) for level in (1, 2, 3)]
    assert not caches_of(replace(amd, caches=tuple(own)), "0").hidden
    assert caches_of(replace(amd, caches=tuple(own[:2])), "0").hidden
    alone = topologies.topology(nodes=1, cores=1)
    assert not caches_of(replace(alone, caches=tuple(own[:2])), "0").hidden  # none to share with


def test_buffers_are_whole_huge_pages(tmp_path):
    root = sysfs_tree.write(tmp_path, sysfs_tree.ARM_16N)
    huge = root / "sys/kernel/mm/transparent_hugepage/hpage_pmd_size"
    huge.write_text(f"{512 << 20}\n")  # base pages of 64 KiB
    host = topology.read(str(root))
    ready = PROBE.prepare({"mode": "latency"}, host, *_node(host, 0))
    assert (ready.options["bytes"], ready.options["huge_page_bytes"]) == (512 << 20, 512 << 20)
    base = PROBE.prepare({"mode": "latency", "pages": "base"}, host, *_node(host, 0))
    assert (base.options["bytes"], base.options["huge_page_bytes"]) == (256 << 20, 0)


def _told(**changes):
    """Records of a chase over a buffer of 256 MiB."""
    setup = {"kind": "setup", "mode": "latency", "pages": "auto", "bytes": 256 << 20,
             "transparent_huge_bytes": 256 << 20, **changes}  # fmt: skip
    placed = {"kind": "placement", "when": "ready", "node": 0, "bytes": 256 << 20}
    return [setup, placed]


def test_a_chase_that_got_half_of_its_huge_pages_is_unverified():
    asked = {"huge_page_bytes": 2 << 20}
    assert PROBE.unverified(_told(), asked) is None
    half = _told(transparent_huge_bytes=128 << 20)
    why = PROBE.unverified(half, asked)
    assert why.code == "huge-pages-not-got" and "50 %" in str(why)
    assert PROBE.unverified(half, {"huge_page_bytes": 0}) is None  # the host gives none to anybody
    assert PROBE.unverified(_told(transparent_huge_bytes=None), asked) is None
    assert PROBE.unverified(half, {"huge_page_bytes": 512 << 20}) is None  # it could hold none


def test_latency_under_load_without_bound_threads_is_unverified():
    thread = {"kind": "thread", "when": "ready", "pinned": None}
    assert PROBE.unverified([*_told(mode="loaded"), thread], {}).code == "chaser-not-alone"
    assert PROBE.unverified([*_told(mode="loaded"), {**thread, "pinned": 3}], {}) is None
    assert PROBE.unverified([*_told(), thread], {}) is None


def test_loaded_latency_needs_two_cores(amd):
    first = next(cpu.siblings for cpu in amd.cpus if cpu.number == 0)
    with pytest.raises(Fault, match="needs 2 cores"):
        PROBE.prepare({"mode": "loaded"}, amd, first, "0")
    PROBE.prepare({"mode": "loaded"}, amd, f"{first},1", "0")


def _levels(host, chosen):
    """Which relations there are between two of these CPUs."""
    found = set()
    for one, other in itertools.combinations([host.cpu[number] for number in chosen], 2):
        same = [
            name
            for name in ("siblings", "l3", "node", "package")
            if getattr(one, name) is not None and getattr(one, name) == getattr(other, name)
        ]
        found.add(same[0] if same else "none")
    return found


@pytest.mark.parametrize("machine", [sysfs_tree.AMD_8N, sysfs_tree.BIG_16N], ids=lambda m: m.name)
@pytest.mark.parametrize("pairs", [250, 500, 2000])
def test_a_sample_of_cores_still_sees_every_level(machine, pairs):
    host = topology.read(sysfs_tree.shared(machine))
    usable = sorted(host.usable)
    chosen, (note,) = core_choice.choose(host, usable, pairs)
    assert len(chosen) * (len(chosen) - 1) / 2 <= pairs
    assert len(set(chosen)) == len(chosen) and chosen == core_choice.choose(host, usable, pairs)[0]
    assert _levels(host, chosen) == {"siblings", "l3", "node", "package", "none"}
    assert set(host.nodes_of(chosen)) == set(host.node)
    assert note.fields["cores"] + note.fields["siblings"] == len(chosen)
    whole = len(host.cores_of(usable)) == note.fields["cores"]
    assert note.code == ("first-threads-only" if whole else "cores-sampled")


def test_few_cpus_are_measured_all_and_many_by_their_cores(amd):
    intel = topology.read(sysfs_tree.shared(sysfs_tree.INTEL_2N))  # 64 CPUs of 32 cores
    chosen, notes = core_choice.choose(intel, sorted(intel.usable), 2016)
    assert (sorted(chosen), notes) == (sorted(intel.usable), ())
    chosen, (note,) = core_choice.choose(amd, sorted(amd.usable), 10**6)  # 128 CPUs of 64 cores
    assert len(amd.cores_of(chosen)) == 64 and len(chosen) == 68
    assert str(note).startswith("every two of 64 cores by their first hardware thread, 4 of them")
    asked = PROBE.prepare({"mode": "core-to-core", "seconds": 10}, amd, amd.allowed.cpus, "0")
    assert cpulist.parse(asked.options["cpus"]) == chosen
    assert PROBE.timing(asked.options).measure_s <= 10
    for seconds in (0.001, 1, 35):
        asked = PROBE.prepare({"mode": "core-to-core", "seconds": seconds}, amd, "0-127", "0")
        count = len(cpulist.parse(asked.options["cpus"]))
        assert count == 2 or PROBE.timing(asked.options).measure_s <= seconds


def test_pairs_without_a_figure_leave_the_picture_unverified():
    pair = {"kind": "core_latency", "median_ns": 40.0}
    lost = {**pair, "median_ns": None}
    setup = {"kind": "setup", "mode": "core-to-core", "transparent_huge_bytes": 0}
    assert PROBE.unverified([setup, *[pair] * 9, lost], {}) is None
    why = PROBE.unverified([setup, *[pair] * 8, lost, lost], {})
    assert why.code == "pairs-missing" and str(why).startswith("2 of 10 pairs")
    row = {**lost, "from": 0, "to": 1, "reason": "they never ran at the same time"}
    (found,) = PROBE.metrics([setup, row])
    assert (found.metric, found.value, found.point) == ("core_latency", None, "0-1")
    assert str(found.reason) == "they never ran at the same time"


def test_only_the_options_of_the_mode_are_kept(amd):
    cpus, node = _node(amd, 1)
    everything = {
        "bytes": "64MiB", "array": "64MiB", "seconds": 0.3, "delays": [0, 9], "mixes": ["1:1"],
        "repeat": 3, "threads": "half",
    }  # fmt: skip
    kept = {
        mode: set(PROBE.prepare({**everything, "mode": mode}, amd, cpus, node).options)
        for mode in probe_output.MODES
    }
    shared = {"mode", "threads", "pages"}
    assert kept["stream"] == shared | {"array", "repeat"}
    assert kept["latency"] == shared | {"bytes", "seconds", "huge_page_bytes"}
    assert kept["loaded"] == kept["latency"] | {"delays", "mixes"}
    assert kept["bandwidth"] == shared | {"bytes", "seconds", "mixes"}
    assert kept["core-to-core"] == {"mode", "seconds", "cpus"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"arrray": 1}, "probe has no option 'arrray'"),
        ({"mode": "sream"}, "mode 'sream' is not known"),
        ({"array": "64MB"}, "array '64MB' is not a size"),
        ({"array": True}, "is not a size"),
        ({"array": float("nan")}, "is not a size"),
        ({"array": 12}, "is not a size of at least 65536"),
        ({"threads": 0}, "threads 0 is not"),
        ({"threads": 9999}, "is not a whole number|threads on"),
        ({"threads": 500}, "500 threads on"),
        ({"repeat": 1}, "repeat 1 is not"),
        ({"mode": "latency", "seconds": -1}, "seconds -1 is not"),
        ({"mode": "latency", "pages": "2m"}, "pages '2m' is not known"),
        ({"mode": "loaded", "delays": []}, "is not a list"),
        ({"mode": "loaded", "threads": 1}, "needs 2 threads"),
        ({"mode": "bandwidth", "mixes": ["4:1"]}, "mixes '4:1' is not known"),
        ({"mode": "core-to-core", "max_cpus": 1}, "max_cpus 1 is not"),
    ],
)
def test_bad_options_are_refused(amd, options, says):
    with pytest.raises(Fault, match=says):
        PROBE.prepare(options, amd, *_node(amd, 0))


@pytest.mark.parametrize("mode", ALL_MODES)
def test_what_the_driver_asks_for_is_understood_and_read(program, mode):
    here = topology.read()
    asked = {
        "mode": mode, "array": "1MiB", "bytes": "1MiB", "repeat": 3, "seconds": 0.05,
        "delays": [0, 200], "mixes": ["1:1", "writes"], "max_cpus": 2,
    }  # fmt: skip
    options = PROBE.prepare(asked, here, ALLOWED, here.allowed.nodes).options
    assert all(seconds >= 0 for seconds in astuple(PROBE.timing(options)))
    for cpus in (ALLOWED, None):
        words = PROBE.argv(ToolRecord("probe", path=program), options, cell(cpus))
        done = run(*words, "--no-wait")
        assert done.returncode == 0, done.stderr
        records = PROBE.parse(done.stdout)
        rows = PROBE.metrics(records)
        expected = {
            "stream": ["copy", "scale", "add", "triad", *probe_output.NON_TEMPORAL],
            "latency": ["huge_page_share", "idle_latency", "tlb_local_latency"],
            "loaded": ["huge_page_share"] + ["loaded_latency", "loaded_bandwidth"] * 4,
            "bandwidth": ["huge_page_share"] + ["bandwidth"] * 2,
            "core-to-core": ["core_latency"],
        }[mode]
        assert sorted(row.metric for row in rows) == sorted(expected)
        for row in rows:
            if row.metric == "core_latency" and row.value is None:
                # So busy a machine is no fault of ours.
                assert re.search("did not answer|had other work", str(row.reason))
            elif row.metric in probe_output.NON_TEMPORAL and row.value is None:
                assert row.reason.code == "no-non-temporal-stores"
                assert records[0]["non_temporal"] is None
            elif row.metric == "loaded_bandwidth" and row.value is None:
                assert row.reason.code == "readers-not-run"  # as busy a machine
            else:
                assert row.reason is None
                assert row.value > 0 or row.metric == "huge_page_share"
        for sample in PROBE.samples(records):
            assert sample.value > 0 and sample.t_s > 0


def test_stream_counts_as_stream_does():
    ready = {
        "event": "ready", "schema": 2, "version": "1.2", "mode": "stream", "threads_measuring": 1,
        "visit": None, "non_temporal": "movnt", "array_bytes": 8000, "repeats": 3,
        "pages": "auto", "page_bytes": 4096,
        "transparent_huge_bytes": 0, "buffers": {"0": 24000}, "buffers_reason": None,
        "buffer_pages": 6, "buffer_pages_asked": 6, "threads": [], "setup_s": 0, "warmup_s": 0,
    }  # fmt: skip
    kernels = [
        {"kernel": name, "bytes": 8000 * arrays, "times_s": [1e-9, 4e-6, 2e-6]}
        for variant in ("", "_nt")
        for name, arrays in (("copy", 2), ("scale", 2), ("add", 3), ("triad", 3))
        for name in [name + variant]
    ]
    result = {
        "event": "result", "mode": "stream", "visit": None, "kernels": kernels, "relative_error": 0,
        "buffers": {"0": 24000}, "buffers_reason": None, "buffer_pages": 6,
        "buffer_pages_asked": 6, "threads": [], "measure_s": 1,
    }  # fmt: skip

    def text():
        return f"{json.dumps(ready)}\n{json.dumps(result)}\n"

    values = {row.metric: row.value for row in PROBE.metrics(PROBE.parse(text()))}
    # The first repeat is not counted: 16000 bytes in 2 microseconds are 8 GB/s.
    ordinary = {"copy": 8.0, "scale": 8.0, "add": 12.0, "triad": 12.0}
    assert values == pytest.approx({**ordinary, **{f"{n}_nt": v for n, v in ordinary.items()}})
    kernels[3]["bytes"] = 16000
    with pytest.raises(ParseError, match="triad: 16000 bytes are not 3 arrays"):
        PROBE.parse(text())
    kernels[3]["bytes"] = 24000
    result["relative_error"] = 0.5
    with pytest.raises(ParseError, match="arrays were wrong"):
        PROBE.parse(text())
    result["relative_error"] = 0
    ready["non_temporal"] = None  # a processor without such stores
    with pytest.raises(ParseError, match="kernels: not copy, scale, add, triad"):
        PROBE.parse(text())
    del kernels[4:]
    absent = [row for row in PROBE.metrics(PROBE.parse(text())) if row.value is None]
    assert [row.metric for row in absent] == list(probe_output.NON_TEMPORAL)
    assert {row.reason.code for row in absent} == {"no-non-temporal-stores"}


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_output_is_refused_or_read(outputs, data):
    text = data.draw(st.sampled_from(sorted(outputs.values())))
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    new = data.draw(st.text(st.sampled_from('{}[]",:-0123456789.einulNa \n\x00'), max_size=6))
    try:
        records = PROBE.parse(text[:start] + new + text[end:])
    except ParseError:
        return
    for row in PROBE.metrics(records):
        assert (row.value is None) == (row.reason is not None)
        least = 0 if row.metric == "huge_page_share" else 5e-324  # a time is never 0
        assert row.value is None or least <= row.value < float("inf")
    PROBE.samples(records)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_cut_output_is_refused(outputs, mode):
    text = outputs[mode]
    for cut in {0, 1, 50, text.index("\n"), text.index("\n") + 1, len(text) // 2, len(text) - 2}:
        with pytest.raises(ParseError):
            PROBE.parse(text[:cut])
    for old, new in (
        ('"event":"ready"', '"event":"set"'),
        ('"schema":2', '"schema":3'),
        (f'"mode":"{mode}"', '"mode":"x"'),
        ('"page_bytes"', '"pages_bytes"'),
    ):
        with pytest.raises(ParseError):
            PROBE.parse(text.replace(old, new))
    with pytest.raises(ParseError, match="not JSON"):
        PROBE.parse(text.replace(":1,", ":NaN,", 1))


def test_a_pair_that_did_not_answer_is_null_with_its_reason(outputs):
    if "core-to-core" not in outputs:
        pytest.skip("this needs 2 CPUs")
    for pair in PROBE.parse(outputs["core-to-core"]):
        if pair["kind"] == "core_latency":
            least = 0 if pair["reason"] else 9 * 1000  # round trips, or it is no figure
            assert pair["round_trips"] >= least and len(pair["samples_ns"]) in (0, 9)
    silent = re.sub(r'"samples_ns":\[[^]]*\],"reason":(null|"[^"]*")',
                    '"samples_ns":[],"reason":"no answer"', outputs["core-to-core"])  # fmt: skip
    (row,) = PROBE.metrics(PROBE.parse(silent))
    assert (row.value, str(row.reason)) == (None, "no answer")
    assert row.point == f"{int(row.x)}-{int(row.y)}"


# --- any command ------------------------------------------------------------------------------


def test_a_program_is_found_or_what_is_wrong_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").write_text("x")
    for words, says in (
        ([], "no program is named"),
        (["no-such-program"], "no program named no-such-program on PATH"),
        (["./gone"], "there is no program ./gone"),
        (["./plain"], "./plain is not a program that you may execute"),
        (["."], "is a directory"),
        (["sh", 5], "5 cannot be a word"),
        ("sh -c true", "no program is named"),
    ):
        with pytest.raises(Fault, match=re.escape(says)):
            COMMAND.find({"argv": words})
    (tmp_path / "plain").chmod(0o755)
    assert COMMAND.find({"argv": ["./plain", "a"]}).path == str(tmp_path / "plain")


def test_a_command_keeps_its_words_and_environment():
    asked = {"argv": ["sh", "-c", "true"], "env": {"OMP_NUM_THREADS": 8}, "seconds": 3}
    options = COMMAND.prepare(asked, HOST, "0", "0").options
    found = COMMAND.find(options)
    assert COMMAND.argv(found, options, cell()) == [found.path, "-c", "true"]
    assert COMMAND.environment(options, cell()) == {"OMP_NUM_THREADS": "8"}
    assert COMMAND.timing(options).measure_s == 3
    for bad in ({"argw": []}, {"env": [1]}, {"env": {"A=": "1"}}, {"seconds": "x"}):
        with pytest.raises(Fault):
            COMMAND.prepare({**asked, **bad}, HOST, "0", "0")


RUSAGE = {
    "schema": SCHEMA, "kind": "rusage", "wall_s": 1.5, "exit_status": 0, "signal": None,
    "max_rss_bytes": 4096, "max_rss_reason": None, "user_s": 1.0, "system_s": 0.25,
    "minor_faults": 10, "major_faults": 0, "voluntary_switches": 1, "involuntary_switches": 2,
}  # fmt: skip


def test_what_the_engine_says_of_a_command_is_read():
    values = {r.metric: r for r in COMMAND.metrics(COMMAND.parse(json.dumps(RUSAGE) + "\n"))}
    assert values["wall_time"].value == 1.5 and values["wall_time"].unit == "s"
    assert values["exit_status"].value == 0
    killed = {**RUSAGE, "exit_status": None, "signal": 9, "max_rss_bytes": None,
              "max_rss_reason": "it was gone"}  # fmt: skip
    values = {r.metric: r for r in COMMAND.metrics(COMMAND.parse(json.dumps(killed)))}
    assert values["exit_status"].value is None
    assert str(values["exit_status"].reason) == "it was killed by signal 9"
    assert values["max_rss"].reason.code == "peak-memory-unknown"


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 1}, {"kind": "x"}, {"wall_s": -1}, {"wall_s": "1"}, {"wall_s": None},
        {"signal": 9}, {"exit_status": None}, {"minor_faults": 1.5}, {"more": 1},
        {"user_s": float("nan")}, {"exit_status": True}, {"max_rss_reason": 3},
    ],
)  # fmt: skip
def test_a_strange_record_of_a_command_is_refused(change):
    with pytest.raises(ParseError):
        COMMAND.parse(json.dumps({**RUSAGE, **change}))
    for text in ("", "{", "[]", "1", json.dumps(RUSAGE) + "\n" + json.dumps(RUSAGE)):
        with pytest.raises(ParseError):
            COMMAND.parse(text)
