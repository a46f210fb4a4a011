"""numalab-load beside wrk: its own CPU time for a request, and a server that stands still.

Pairs of a run of each in a closed loop against the same server (nginx where there is one, else a
small server in Python), in an order that alternates. Goals: at most 1.2 times wrk's CPU time for a
request; requests a second that differ from wrk's by at most 10 % (nginx only); and of a server that
stands still for 2 s of 8, a p99 within 5 % of what the server itself says. wrk's p99 stands beside
it: a client that waits for its answers does not see what it did not ask.

    python bench/load.py [--pairs 6] [--seconds 3] [--connections 16]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "lib"), str(ROOT / "tests")]

from http_server import Frozen  # noqa: E402
from numalab.agent.served.load import client  # noqa: E402

GOAL_CPU, GOAL_RATE, GOAL_P99 = 1.2, 0.10, 0.05
RATE, SECONDS, LEAD_S = 1000, 8, 1
NGINX = """\
daemon off; worker_processes 1; pid {0}/pid; error_log stderr crit;
events {{ worker_connections 1024; }}
http {{
    access_log off; keepalive_requests 1000000000;
    client_body_temp_path {0}/1; proxy_temp_path {0}/2; fastcgi_temp_path {0}/3;
    uwsgi_temp_path {0}/4; scgi_temp_path {0}/5;
    server {{ listen 127.0.0.1:{1}; location / {{ return 200 "{2}"; }} }}
}}
"""


@contextlib.contextmanager
def serving() -> Iterator[tuple[str, str]]:
    """Yield a server's name and address."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    with Frozen(1e9, 0) as plain, tempfile.TemporaryDirectory() as folder:
        if not nginx:
            yield "a server in Python", plain.to
            return
        port = int(plain.to.rpartition(":")[2]) ^ 1  # beside one that was free
        Path(folder, "conf").write_text(NGINX.format(folder, port, "x" * 1000))
        started = subprocess.Popen([nginx, "-p", folder, "-c", f"{folder}/conf"])
        try:
            time.sleep(1)
            yield "nginx", f"127.0.0.1:{port}"
        finally:
            started.terminate()
            started.wait()


def run(words: list[str]) -> tuple[str, float]:
    """Run a client to its end; return what it printed and its CPU time (s)."""
    with tempfile.TemporaryFile("w+") as out:
        started = subprocess.Popen(words, stdout=out)
        _, status, used = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
        if started.returncode:
            sys.exit(f"{words[0]} failed: exit status {started.returncode}")
        out.seek(0)
        return out.read(), used.ru_utime + used.ru_stime


def by_load(program: str, to: str, connections: int, seconds: int) -> tuple[float, float]:
    """Return requests a second and µs of CPU a request, of a closed loop."""
    words = client.command_line(
        program, to, "/", connections=connections, threads=1, rate=0, lead_s=0, time_s=seconds
    )
    text, cpu_s = run(words)
    results = client.results_of(client.parse(text))
    return results["requests_per_second"], cpu_s * 1e6 / results["requests"]


def by_wrk(wrk: str, to: str, connections: int, seconds: int) -> tuple[float, float, str]:
    """Return the same of wrk, and its own words for its p99."""
    words = [wrk, "-t1", f"-c{connections}", f"-d{seconds}", "--latency", f"http://{to}/"]
    text, cpu_s = run(words)
    number = int(re.search(r"(\d+) requests in", text)[1])  # type: ignore[index]
    rate = float(re.search(r"Requests/sec:\s*([\d.]+)", text)[1])  # type: ignore[index]
    p99 = re.search(r"99%\s+(\S+)", text)[1]  # type: ignore[index]
    return rate, cpu_s * 1e6 / number, p99


def against_wrk(program: str, wrk: str, asked: argparse.Namespace) -> bool:
    """Compare what both cost, and what both say of one server."""
    with serving() as (name, to):
        ours, theirs = [], []
        for pair in range(asked.pairs):
            turns = [
                lambda: ours.append(by_load(program, to, asked.connections, asked.seconds)),
                lambda: theirs.append(by_wrk(wrk, to, asked.connections, asked.seconds)),
            ]
            for turn in turns[:: -1 if pair % 2 else 1]:
                turn()
    cost = statistics.median(a[1] / b[1] for a, b in zip(ours, theirs))
    rate = statistics.median(a[0] / b[0] for a, b in zip(ours, theirs))
    middle = [statistics.median(one[1] for one in runs) for runs in (ours, theirs)]
    print(f"{name}, {asked.pairs} pairs of {asked.seconds} s, {asked.connections} connections")
    print(f"CPU of a request: {middle[0]:.1f} µs, wrk {middle[1]:.1f} µs: {cost:.2f} times"
          f" (goal at most {GOAL_CPU})")  # fmt: skip
    print(f"requests a second: {rate:.3f} times wrk's (goal within {GOAL_RATE:.0%} with nginx)")
    return cost <= GOAL_CPU and (name != "nginx" or abs(rate - 1) <= GOAL_RATE)


def at_a_rate(program: str) -> None:
    """Print what a request costs the client at constant rates."""
    with serving() as (name, to):
        for rate in (1000, 4000):
            words = client.command_line(
                program, to, "/", connections=16, threads=1, rate=rate, lead_s=0, time_s=3
            )
            text, cpu_s = run(words)
            results = client.results_of(client.parse(text))
            done, busy = results["requests"], results["busiest_thread"]
            print(f"at {rate}/s ({name}): {cpu_s * 1e6 / done:.1f} µs of CPU a request, "
                  f"its thread is busy for {busy:.0%}")  # fmt: skip


def of_a_frozen_server(program: str, wrk: str | None) -> bool:
    """Compare the p99 of a server that stands still with what it says itself."""
    with Frozen(LEAD_S + 2, 2) as server:
        words = client.command_line(
            program, server.to, "/", connections=16, threads=1, rate=RATE, lead_s=LEAD_S,
            time_s=SECONDS,
        )  # fmt: skip
        results = client.results_of(client.parse(run(words)[0]))
        truth = (server.gap() - 0.01 * SECONDS) * 1e3
    wrong = results["latency_p99"] / truth - 1
    print(f"a server that stands still 2 s of {SECONDS}, asked {RATE} times a second:")
    print(f"p99 {results['latency_p99']:.0f} ms, in truth {truth:.0f} ms: {wrong:+.1%}"
          f" (goal within {GOAL_P99:.0%}); p90 {results['latency_p90']:.0f} ms")  # fmt: skip
    if wrk:
        with Frozen(2, 2) as server:
            print(f"wrk, as fast as it is answered: p99 {by_wrk(wrk, server.to, 16, SECONDS)[2]}")
    return abs(wrong) <= GOAL_P99


def main() -> bool:
    """Measure, print, and tell whether every goal was met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=16)
    asked = parser.parse_args()
    program, wrk = str(client.find().path), shutil.which("wrk")
    met = of_a_frozen_server(program, wrk)
    at_a_rate(program)
    if not wrk:
        print("not compared: there is no wrk (apt install wrk)")
        return met
    return against_wrk(program, wrk, asked) and met


if __name__ == "__main__":
    sys.exit(not main())
