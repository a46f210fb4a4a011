"""Summarising 1,000 runs with 1,000,000 measurement rows: seconds and peak memory."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "lib"), str(ROOT / "tests")]

RUNS, ROWS = 1000, 1000
GOAL_S, GOAL_BYTES = 2.0, 1 << 30


def make(folder: Path) -> None:
    """Write the runs' tables: ten cells, ten metrics, ten blocks each."""
    import numpy as np
    import polars as pl

    from numalab import store

    random = np.random.default_rng(1)
    cells, metrics = 10, 10
    index = np.arange(ROWS)
    fixed = {
        "trial": index // metrics + 1,
        "block": index // (metrics * cells) + 1,
        "position": index // metrics % cells + 1,
        "cell": [f"remote:0-{i // metrics % cells}" for i in index],
        "metric": [f"metric{i % metrics}" for i in index],
    }
    texts = {"host": "h", "experiment": "stream", "profile": "full", "binding": "remote"}
    texts |= {"label": "remote", "role": "cell", "tool": "probe", "tool_version": "1"}
    texts |= {"source": "tool", "point": "", "unit": "GB/s", "grade": "verified"}
    for number in range(RUNS):
        columns = {name: [value] * ROWS for name, value in texts.items()} | fixed
        columns |= {"run": [f"run{number}"] * ROWS, "value": random.lognormal(4, 0.05, ROWS)}
        blank = {name: [None] * ROWS for name in store.MEASUREMENTS if name not in columns}
        frame = pl.DataFrame(columns | blank, schema_overrides=store.MEASUREMENTS)
        target = folder / f"run{number}"
        target.mkdir()
        frame.select(list(store.MEASUREMENTS)).write_parquet(target / store.FILES[0])


def summarise(folder: Path) -> None:
    """Summarise in a process of its own; print seconds and peak resident bytes."""
    import polars as pl

    from numalab import store
    from numalab.analysis import evidence

    began = time.perf_counter()
    frame = evidence.summarise(pl.scan_parquet(sorted(folder.glob(f"*/{store.FILES[0]}"))))
    seconds = time.perf_counter() - began
    assert frame["n"].sum() == RUNS * ROWS
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def main() -> bool:
    """Measure, print, and tell whether the goals were met."""
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        done = subprocess.run(
            [sys.executable, __file__, folder], capture_output=True, text=True, check=True
        )
    seconds, peak = map(float, done.stdout.split())
    print(
        f"{RUNS} runs, {RUNS * ROWS:,} rows summarised in {seconds:.2f} s (goal < {GOAL_S}), "
        f"peak {peak / 2**20:.0f} MiB (goal < {GOAL_BYTES >> 20})"
    )
    return seconds < GOAL_S and peak < GOAL_BYTES


if __name__ == "__main__":
    if len(sys.argv) == 2:
        summarise(Path(sys.argv[1]))
    else:
        sys.exit(not main())
