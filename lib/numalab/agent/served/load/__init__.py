"""numalab-load: our own HTTP client, a small C program beside the probe, and how it is started.

It asks a server at a constant rate (an open loop: latency counts from the intended send time, so
that a server which stands still is seen), or as fast as it answers (a closed loop). What it does
and prints is written at the head of each C file; ``client`` starts and reads it. ``pgbench`` is the
client of PostgreSQL, started and read in the same way.
"""

from ...compiled import Program

PROGRAM = Program(
    "load",
    __name__,
    ("load.h", "answer.c", "histogram.c", "main.c", "options.c", "selftest.c", "worker.c"),
)
