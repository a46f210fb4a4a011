"""What `make run` costs beside measuring: its own time, as a share of the whole.

Runs every experiment in the quick profile and renders the article, as `make run` does after the
installs. Goals: the time that is neither planned warm-up nor measurement is under 20 % of the
total, and the report takes under 60 s. Warm-up includes a tool's first touch of its memory.

    python bench/overhead.py [--profile quick] [EXPERIMENT ...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lib"))

from numalab import runs

GOAL_SHARE, GOAL_REPORT_S = 0.20, 60.0


def main() -> bool:
    """Measure, print, and tell whether both goals were met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help="default: all")
    parser.add_argument("--profile", default="quick")
    asked = parser.parse_args()
    numalab = str(Path(sys.executable).parent / "numalab")
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMALAB_RUNS": folder}
        began = time.monotonic()
        for names in [[name] for name in asked.experiments] or [["--all"]]:
            run = [numalab, "run", *names, "--profile", asked.profile, "--host", "bench"]
            subprocess.run(run, env=environment, check=True)
        measured = time.monotonic()
        report = [numalab, "report", "--out", str(Path(folder) / "report")]
        subprocess.run(report, env=environment, check=True)
        ended = time.monotonic()
        useful = 0.0
        for path in sorted(Path(folder).glob("bench/*/manifest.json")):
            times = runs.read_manifest(path.parent).times
            useful += times["warmup_s"] + times["measure_s"]
            print(f"{path.parent.name}: " + ", ".join(f"{k} {v:.1f}" for k, v in times.items()))
    total, report_s = ended - began, ended - measured
    share = 1 - useful / total
    print(f"total {total:.0f} s, of it not warm-up or measurement {share:.1%} (goal < 20 %)")
    print(f"report {report_s:.1f} s (goal < {GOAL_REPORT_S:.0f})")
    return share < GOAL_SHARE and report_s < GOAL_REPORT_S


if __name__ == "__main__":
    sys.exit(not main())
