"""The probe's C sources."""

from ..compiled import Program

PROGRAM = Program(
    "probe",
    __name__,
    (
        "arch.h", "probe.h", "allocate.c", "bandwidth.c", "core_to_core.c", "fill.c", "json.c",
        "latency.c", "loaded.c", "main.c", "memory.c", "options.c", "selftest.c", "stream.c",
        "team.c", "traffic.c",
    ),
)  # fmt: skip
