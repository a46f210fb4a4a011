"""An emulated host with configured timing, booted and loaded many times: does it ever fail?

    bench/timed_hosts.py [--boots 20] [--loads 50] [--host intel-2n-timed]

Each time a program in the guest watches that the clock of its CPUs never goes back, while the
memory model is switched on and off. Half a minute each on a quiet machine; not in `make bench`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "lib"))

from numalab.agent.errors import Fault  # noqa: E402
from numalab.lab import guests, snapshots, ssh  # noqa: E402

SOURCE = ROOT / "tests" / "lab" / "known" / "clock.c"
WATCH = "cat >clock.c && gcc -O2 -pthread -o clock clock.c && ./clock"


def once(name: str) -> str:
    """Bring a host up, watch its clock, end it; return why that failed, else ""."""
    began = time.monotonic()
    said: list[str] = []
    try:
        guest = guests.up(name, said.append)
        done = subprocess.run(
            ssh.command(guest.port, WATCH), stdin=SOURCE.open(), capture_output=True
        )
        why = "" if done.returncode == 0 else f"status {done.returncode}: {done.stderr.decode()}"
        said.append(done.stdout.decode().strip())
    except Fault as fault:
        why = str(fault)
    finally:
        guests.down(name, lambda words: None)
    # `up` tries three times, and says why one did not do.
    tried = [line for line in said if line.startswith(f"{name}: ") and "once" not in line]
    why = why or "; ".join(tried)
    print(f"{time.monotonic() - began:4.0f} s  {why or said[-1]}", flush=True)
    return why


def main() -> int:
    """Boot and load as often as asked; return 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--boots", type=int, default=20)
    parser.add_argument("--loads", type=int, default=50)
    parser.add_argument("--host", default="intel-2n-timed")
    given = parser.parse_args()
    failed = 0
    for what, count in (("boots", given.boots), ("loads", given.loads)):
        for number in range(count):
            if what == "boots":  # without a snapshot it boots
                snapshots.remove_unused("*")
            print(f"{what} {number + 1}/{count}", end="  ", flush=True)
            failed += bool(once(given.host))
    print(f"{given.boots} boots and {given.loads} loads: {failed} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
