"""What the harness costs a server: queries per second through it, against sysbench by hand.

Pairs of a trial by the engine (collectors on, placement proven) and of the same server, started
with the same settings on the same data, as warm, and asked by the same sysbench command from a
shell, in an order that alternates. Goals: the median ratio is at least 0.98; and a run of this
profile's lengths spends at least 70 % of its time in planned warm-up and measurement.

    python bench/mysql.py [--pairs 12] [--seconds 6] [--rows 125000] [--blocks 10] [--server PATH]
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

from numalab.agent import drivers  # noqa: E402
from numalab.agent.contract import (  # noqa: E402
    SCHEMA,
    Cell,
    Manifest,
    Reason,
    Request,
    ToolRecord,
    ToolRequest,
    from_json,
)
from numalab.agent.errors import Fault  # noqa: E402
from numalab.agent.host import topology  # noqa: E402
from numalab.agent.plan import make as planning  # noqa: E402
from numalab.agent.served.mysql import data, instance, server, trial, wire  # noqa: E402
from numalab.agent.trial import journal, run  # noqa: E402

GOAL_RATIO, GOAL_SHARE = 0.98, 0.70
WARMUP_S = 2
_DRIVER = drivers.driver("mysql_server")


def through_the_harness(request: Request, folder: Path) -> dict[str, float]:
    """Make one run of one trial; return its queries per second and its times (s)."""
    made = planning.make(request, topology.read())
    values: list[float] = []

    def note(event: dict) -> None:
        if event["event"] == "trial":
            if event["grade"] == "error":
                raise Fault(from_json(Reason, event["reason"]))
            values.append(event["headline"]["value"])

    run.run(made, folder, emit=note)
    return {"qps": values[0], **journal.load(Manifest, folder / "manifest.json").times}


def by_hand(found: ToolRecord, cell: Cell) -> float:
    """Start the same server by its command line, ask it by sysbench's; return what that says."""
    options = cell.options
    mine = server.find(found.path)
    copy = data.SysbenchTables(found, options).take()
    chosen = server.settings(mine, options, options["server_options"])
    Path(copy.datadir, server.CONFIG).write_text(server.config_text(mine, chosen))
    with open(Path(copy.datadir) / "by-hand.log", "wb") as log:
        started = subprocess.Popen(
            [*cell.numactl, *server.argv(mine, copy.datadir)], cwd=copy.datadir, stdout=log,
            stderr=log, stdin=subprocess.DEVNULL, pass_fds=(copy.lock,),
        )  # fmt: skip
    os.close(copy.lock)
    try:
        os.chdir(copy.datadir)
        while True:
            with contextlib.suppress(OSError, wire.Refused):
                wire.Connection(server.SOCKET).close()
                break
            time.sleep(0.05)
        with wire.Connection(server.SOCKET) as session:  # as warm as the engine's
            session.query(f"USE {instance.DATABASE}")
            for number in range(1, options["tables"] + 1):
                session.query(f"SELECT SUM(LENGTH(pad)) FROM sbtest{number}")
                session.query(f"SELECT COUNT(k) FROM sbtest{number} FORCE INDEX (k_{number})")
        command = trial.command_line(str(found.facts["sysbench"]), options, WARMUP_S + 1)
        bound = ["taskset", "--cpu-list", options["client_cpus"], *command]
        done = subprocess.run(bound, capture_output=True, text=True, check=True)
        started.terminate()
        started.wait()
    finally:
        os.chdir("/")
        started.kill()
    records = drivers.driver("sysbench").parse(done.stdout)
    measured = [r for r in records if "checkpoint_s" not in r]
    return next(r["value"] for r in measured if r.get("name") == "queries_per_second")


def main() -> bool:
    """Measure, print, and tell whether both goals were met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--rows", type=int, default=125_000, help="of each of 8 tables")
    parser.add_argument("--blocks", type=int, default=10, help="trials of the run that is timed")
    parser.add_argument("--server", default=None)
    asked = parser.parse_args()
    options = {"tables": 8, "rows": asked.rows, "clients": "cpus", "time_s": asked.seconds,
               "warmup_s": WARMUP_S, "server": asked.server}  # fmt: skip
    try:
        found = _DRIVER.find(options)
    except Fault as fault:
        print(f"not measured: {fault}")
        return True
    request = Request(
        SCHEMA, "bench", "bench", "bench", ToolRequest("mysql", ("mysql_server",), options),
        ("cpus-only",), blocks=1, seed=1, control=False, headline="queries_per_second",
    )  # fmt: skip
    cell = planning.make(request, topology.read()).cells[0]
    ratios: list[float] = []
    with tempfile.TemporaryDirectory(prefix="numalab-bench-") as folder:
        through_the_harness(request, Path(folder) / "prepares-the-data")
        for number in range(asked.pairs):
            qps: dict[str, float] = {}
            for way in ("harness", "hand")[:: 1 if number % 2 else -1]:
                if way == "hand":
                    qps[way] = by_hand(found, cell)
                    continue
                qps[way] = through_the_harness(request, Path(folder) / str(number))["qps"]
            ratios.append(qps["harness"] / qps["hand"])
            print(f"{qps['harness']:10.0f} {qps['hand']:10.0f}  {ratios[-1]:.3f}", flush=True)
        times = through_the_harness(replace(request, blocks=asked.blocks), Path(folder) / "blocks")
    ratio = statistics.median(ratios)
    spread = statistics.stdev(map(math.log, ratios)) if len(ratios) > 1 else 0.0
    share = (times["warmup_s"] + times["measure_s"]) / times["total_s"]
    print(found.version)
    print(
        f"through the harness / by hand: median {ratio:.3f} of {len(ratios)} pairs, "
        f"spread {spread:.3f} (goal >= {GOAL_RATIO})"
    )
    print(
        f"warm-up and measurement: {share:.0%} of a run of {asked.blocks} trials "
        f"(goal >= {GOAL_SHARE:.0%})"
    )
    return ratio >= GOAL_RATIO and share >= GOAL_SHARE


if __name__ == "__main__":
    sys.exit(not main())
