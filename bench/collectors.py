"""What the collectors cost: results with them on, against results with them off.

Pairs of runs, interleaved, in an order that alternates from pair to pair, so that drift and the
order itself cancel. The promise: the 95 % interval of the median ratio includes 1 and is no wider
than ± 2 %. Pairs are added until it is so narrow, wherever it lies, or there are too many. The
interval is that of `evidence.median_interval`; fewer than 6 pairs have none.

    python bench/collectors.py [--pairs 20] [--most 160] [--seconds 1] [--cpus LIST]
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

from numalab.agent import collectors, cpulist  # noqa: E402
from numalab.agent.contract import (  # noqa: E402
    Cell,
    CollectorRequest,
    CpuExpectation,
    Expectation,
    MemoryExpectation,
    MemoryPolicy,
    Reason,
    from_json,
)
from numalab.agent.trial import process  # noqa: E402
from numalab.analysis import evidence  # noqa: E402

WIDEST = 0.02


class Bench:
    """The two workloads, run as the trial engine runs its tools."""

    def __init__(self, folder: Path, cpus: str, seconds: float) -> None:
        self.folder = folder
        self.cpus = cpus
        self.cell = Cell(
            cpus, "", MemoryPolicy("default"),
            Expectation(MemoryExpectation("outcome"), CpuExpectation("required", cpus)),
        )  # fmt: skip
        self.seconds = seconds
        self.passes = 0

    def _start(self, argv: list[str], *, gated: bool) -> process.Child:
        bound = ["taskset", "--cpu-list", self.cpus, *argv]
        return process.start(
            bound,
            stdout=self.folder / "out",
            stderr=self.folder / "err",
            talks=not gated,
            gated=gated,
        )

    def _measure(self, child: process.Child, go: Callable[[], None], on: bool) -> str:
        collection = collectors.start(self.cell, child.pid, CollectorRequest()) if on else None
        go()
        ended = child.wait(time.monotonic() + 60 + 10 * self.seconds)
        if collection:
            record = collection.stop()
            if record["perf"] is None:
                why = from_json(Reason, record["reasons"]["perf"])
                print(f"  (without perf: {why})", file=sys.stderr)
        if ended is None or ended["exit_status"] != 0:
            raise SystemExit(f"{child.argv} failed: {(self.folder / 'err').read_text()[:500]}")
        return (self.folder / "out").read_text()

    def triad(self, on: bool) -> float:
        """Return GB/s, the best of as many passes as fill the time."""
        if not self.passes:
            self.passes = 1
            one = self._triad(20, False)[1]
            self.passes = max(10, round(self.seconds / one * 20))
        return self._triad(self.passes, on)[0]

    def _triad(self, passes: int, on: bool) -> tuple[float, float]:
        child = self._start([str(self.folder / "triad"), str(16 << 20), str(passes)], gated=False)
        while "ready" not in (self.folder / "out").read_text():
            if child.poll():
                raise SystemExit(f"the triad failed: {child.ended}")
            time.sleep(0.02)
        began = time.monotonic()
        output = self._measure(child, lambda: child.write_line("go"), on)
        return float(output.split()[-1]), time.monotonic() - began

    def sysbench(self, on: bool) -> float:
        """Return events per second."""
        threads = len(cpulist.parse(self.cpus))
        seconds = max(1, round(self.seconds))
        argv = ["sysbench", "cpu", f"--threads={threads}", f"--time={seconds}", "run"]
        child = self._start(argv, gated=True)
        output = self._measure(child, child.open_gate, on)
        found = re.search(r"events per second:\s*([\d.]+)", output)
        if not found:
            raise SystemExit("sysbench printed no events per second")
        return float(found[1])


def compare(name: str, run: Callable[[bool], float], pairs: int, most: int) -> bool:
    """Print the median ratio on / off and its interval; return whether the promise holds."""
    run(False)  # warm up, and find the number of passes
    ratios: list[float] = []
    low, high, middle = -math.inf, math.inf, 1.0
    while len(ratios) < most and not (len(ratios) >= pairs and _narrow(low, middle, high)):
        first_on = bool(len(ratios) % 2)
        values = {on: run(on) for on in (first_on, not first_on)}
        ratios.append(values[True] / values[False])
        low, high, _ = evidence.median_interval(ratios) or (-math.inf, math.inf, 0.0)
        middle = statistics.median(ratios)
    said = "kept" if low <= 1 <= high else "NOT KEPT"
    if not _narrow(low, middle, high):
        said = "NOT SHOWN: this machine is too noisy"
    print(
        f"collectors on / off, {name}: {middle:.4f} [{low:.4f}, {high:.4f}], {len(ratios)} pairs: "
        f"{said}",
        flush=True,
    )
    return said == "kept"


def _narrow(low: float, middle: float, high: float) -> bool:
    return max(high - middle, middle - low) <= WIDEST


def main() -> int:
    """Run both; 0 when the promise holds for both."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--pairs", type=int, default=20, help="at least")
    options.add_argument("--most", type=int, default=160, help="pairs at most")
    options.add_argument("--seconds", type=float, default=1.0, help="of one run")
    options.add_argument("--cpus", help="list of CPUs to measure on (default: all allowed)")
    chosen = options.parse_args()
    cpus = chosen.cpus or cpulist.format(os.sched_getaffinity(0))
    if os.getloadavg()[0] > 0.5:
        print(f"(others use this machine: load {os.getloadavg()[0]:.1f})", file=sys.stderr)
    compiler = shutil.which("cc") or shutil.which("gcc")
    kept = []
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), cpus, chosen.seconds)
        if compiler:
            subprocess.run(
                [compiler, "-O3", "-o", f"{name}/triad", str(HERE / "triad.c"), "-lpthread"],
                check=True,
            )
            kept.append(compare("triad", bench.triad, chosen.pairs, chosen.most))
        else:
            print("collectors, triad: not measured, there is no C compiler")
        if shutil.which("sysbench"):
            kept.append(compare("sysbench cpu", bench.sysbench, chosen.pairs, chosen.most))
        else:
            print("collectors, sysbench cpu: not measured, sysbench is not installed")
    return 0 if kept and all(kept) else 1


if __name__ == "__main__":
    raise SystemExit(main())
