"""`make bench`: every measured promise, one after the other; fails when a goal was missed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCHES = ("start_up", "store", "judge", "probe", "collectors", "load", "mysql", "overhead")


def main() -> int:
    """Run every bench in a process of its own; return 1 when one missed its goal."""
    missed = []
    for name in BENCHES:
        print(f"\n== {name}", flush=True)
        done = subprocess.run([sys.executable, str(HERE / f"{name}.py")])
        if done.returncode:
            missed.append(name)
    print(f"\nmissed or failed: {', '.join(missed)}" if missed else "\nall goals met")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
