"""The probe against independent programs that measure the same, run in turn.

STREAM: the four kernels with ordinary stores over those of reference_stream.c (OpenMP, static
arrays, the same compiler and flags, the same array size and threads, base pages on both sides, no
memcpy); goal: the median ratio of copy and triad is at least 0.97. NUMALAB_STREAM names an official
stream binary to compare with instead; its array size is read from its output and used for both, and
scale stands for copy, of which its compiler may have made a call of memcpy.

Idle latency: the probe over reference_chase.c, same buffer, same page size, same CPU; goal: the
median ratio is within 5 % of 1. With huge and with base pages.

Each pair runs in an order that alternates; the interval is that of `evidence.median_interval`.

    python bench/probe.py [--pairs 12] [--array BYTES] [--bytes BYTES]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

from numalab.agent import compiled, cpulist, drivers  # noqa: E402
from numalab.agent.contract import Driver  # noqa: E402
from numalab.agent.probe import PROGRAM  # noqa: E402
from numalab.analysis import evidence  # noqa: E402

LEAST_STREAM, WIDEST_LATENCY = 0.97, 0.05
Result = dict[str, float]


def ask(words: list[str], environment: dict[str, str]) -> str:
    """Return the output of a program; it must succeed."""
    done = subprocess.run(
        words, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{words[0]} failed: {done.stderr.strip()}")
    return done.stdout


def compare(
    ours: Callable[[], Result], reference: Callable[[], Result], pairs: int
) -> dict[str, list[float]]:
    """Return the ratios ours / reference by name, one for each pair of runs."""
    ratios: dict[str, list[float]] = {}
    for pair in range(pairs):
        if pair % 2:
            theirs, mine = reference(), ours()
        else:
            mine, theirs = ours(), reference()
        for name in theirs:
            ratios.setdefault(name, []).append(mine[name] / theirs[name])
    return ratios


def say(what: str, ratios: list[float], good: bool, goal: str) -> bool:
    """Print one result against its goal and return whether it was met."""
    found = evidence.median_interval(ratios)
    interval = f"[{found[0]:.3f}, {found[1]:.3f}]" if found else "[too few pairs]"
    print(
        f"{what:<38} {statistics.median(ratios):6.3f}  {interval}  "
        f"{len(ratios)} pairs  {'ok' if good else 'MISSED'} ({goal})",
        flush=True,
    )
    return good


def values(driver: Driver, output: str) -> Result:
    """Return the metrics in an output of a tool, those without a value left out."""
    rows = driver.metrics(driver.parse(output))
    return {row.metric: row.value for row in rows if row.value is not None}


def by_probe(path: str, words: list[str]) -> Result:
    """Return what the probe measures."""
    return values(drivers.driver("probe"), ask([path, *words, "--no-wait"], {}))


def compile_reference(source: str, target: Path, *flags: str) -> str:
    """Compile a reference with the probe's compiler and flags."""
    compiler = compiled.compiler(PROGRAM)[0]
    common = ["-O3", "-march=native", *flags]
    subprocess.run([*compiler, *common, str(HERE / source), "-o", str(target)], check=True)
    return str(target)


def bench_stream(path: str, work: Path, array: int, pairs: int) -> bool:
    """Compare copy (or scale) and triad; return whether both goals were met."""
    cpus = sorted(os.sched_getaffinity(0))
    openmp = {
        "OMP_NUM_THREADS": str(len(cpus)), "OMP_PROC_BIND": "true",
        "OMP_PLACES": ",".join(f"{{{cpu}}}" for cpu in cpus),
    }  # fmt: skip
    official = os.environ.get("NUMALAB_STREAM")
    if official:
        records = drivers.driver("stream").parse(ask([official], openmp))
        array = next(int(r["array_bytes"]) for r in records if r["kind"] == "setup")
    else:
        program = compile_reference(
            "reference_stream.c",
            work / "stream",
            "-fopenmp",
            f"-DELEMENTS={array // 8}",
            "-fno-tree-loop-distribute-patterns",
        )

    def reference() -> Result:
        if official:
            return values(drivers.driver("stream"), ask([official], openmp))
        printed = ask([program], openmp).split()
        return {n: float(v) for n, v in zip(("copy", "scale", "add", "triad"), printed)}

    words = [
        "stream", "--bytes", str(array), "--repeats", "10", "--pages", "default",
        "--cpus", cpulist.format(cpus),
    ]  # fmt: skip
    ratios = compare(lambda: by_probe(path, words), reference, pairs)
    name = f"official {official}" if official else "OpenMP reference"
    print(f"probe / {name}, arrays of {array / 2**20:.0f} MiB, {len(cpus)} threads")
    met = [
        say(kernel, found, statistics.median(found) >= LEAST_STREAM, f"at least {LEAST_STREAM}")
        for kernel, found in ratios.items()
        if kernel in ("scale" if official else "copy", "triad")
    ]
    return all(met)


def bench_latency(path: str, work: Path, size: int, pairs: int) -> bool:
    """Compare idle latency with huge and with base pages; return whether both goals were met."""
    program = compile_reference("reference_chase.c", work / "chase")
    cpu = str(min(os.sched_getaffinity(0)))
    print(f"idle latency, probe / reference, {size / 2**20:.0f} MiB, CPU {cpu}")
    met = True
    for pages, theirs in (("thp", "huge"), ("base", "base")):
        words = ["latency", "--bytes", str(size), "--pages", pages, "--seconds", "1"]

        def ours(words: list[str] = words) -> Result:
            return by_probe(path, words)

        def reference(theirs: str = theirs) -> Result:
            chase = ["taskset", "-c", cpu, program, str(size), theirs, "10"]
            return {"idle_latency": float(ask(chase, {}).split()[0])}

        ratios = compare(ours, reference, pairs)["idle_latency"]
        good = abs(statistics.median(ratios) - 1) <= WIDEST_LATENCY
        met = say(f"{theirs} pages", ratios, good, f"within {WIDEST_LATENCY:.0%}") and met
    return met


def main() -> int:
    """Run both comparisons; return 1 when a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--array", type=int, default=160_000_000, help="bytes of a STREAM array")
    parser.add_argument("--bytes", type=int, default=128 << 20, help="bytes of the chase's buffer")
    asked = parser.parse_args()
    path = str(drivers.driver("probe").find({}).path)
    with tempfile.TemporaryDirectory(prefix="numalab-bench-") as folder:
        work = Path(folder)
        met = [
            bench_stream(path, work, asked.array, asked.pairs),
            bench_latency(path, work, asked.bytes, asked.pairs),
        ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
