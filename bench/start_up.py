"""How long a person waits for `numalab host` and `numalab --help`, and topology takes to read."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "lib"), str(ROOT / "tests")]

import sysfs_tree  # noqa: E402
from numalab.agent.host import topology  # noqa: E402

TIMES = 15


def _median(action) -> float:
    action()  # the first one fills the page cache and writes .pyc files
    times = []
    for _ in range(TIMES):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> bool:
    """Measure, print, and tell whether every goal was met."""
    numalab = str(Path(sys.executable).parent / "numalab")
    with tempfile.TemporaryDirectory() as folder:
        big = sysfs_tree.write(Path(folder), sysfs_tree.BIG_16N)
        # Compiled once, as a user's is, even where the environment forbids to write .pyc files.
        compiled = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/compiled"}
        compiled.pop("PYTHONDONTWRITEBYTECODE", None)

        def run(word: str) -> None:
            subprocess.run([numalab, word], stdout=subprocess.DEVNULL, env=compiled, check=True)

        rows = [
            ("numalab --help", 0.4, lambda: run("--help")),
            ("numalab host", 0.4, lambda: run("host")),
            ("16 nodes, 512 CPUs from sysfs", 0.2, lambda: topology.read(str(big))),
        ]
        met = True
        for name, goal, action in rows:
            seconds = _median(action)
            met &= seconds < goal
            print(f"{name:32} {seconds:6.3f} s   goal < {goal} s   (median of {TIMES})")
    return met


if __name__ == "__main__":
    sys.exit(not main())
