"""The timing of an emulated host: what can be configured. lab/timing says what is modelled."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_CPUS = 32  # that the model takes
Cache = tuple[int, int]  # KiB, ways


class Timing(BaseModel):
    """The ``timing:`` of a host definition. Times are in ns of model time, bandwidths in GB/s.

    ``latency_ns`` has a row for each CPU node with what one dependent load of each memory node
    takes. ``memory_gbs`` is that of a memory controller (one for all nodes, or one for each),
    ``link_gbs`` that of a link between two sockets in one direction; 0 is without limit. The
    caches are scaled down as the guest's memory is: [KiB, ways].
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    latency_ns: list[list[float]]
    memory_gbs: float | list[float] = 10.0
    link_gbs: float = Field(default=5.0, ge=0)
    instruction_ns: float = Field(default=0.2, gt=0)
    l1: Cache = (32, 8)
    l2: Cache = (256, 8)
    l3: Cache = (1024, 16)
    l2_ns: float = Field(default=3.0, ge=0)
    l3_ns: float = Field(default=15.0, ge=0)
    transfer_near_ns: float = Field(default=50.0, ge=0)
    transfer_far_ns: float = Field(default=120.0, ge=0)
    prefetch_lines: int = Field(default=32, ge=0)
    stores: int = Field(default=10, ge=1)
    quantum_ns: float = Field(default=4000.0, gt=0)
    serial: bool = True

    @model_validator(mode="after")
    def _fits_together(self) -> Timing:
        if any(ns <= 0 for row in self.latency_ns for ns in row):
            raise ValueError("latency_ns: a latency is above 0")
        if {len(row) for row in self.latency_ns} != {len(self.latency_ns)}:
            raise ValueError("latency_ns: as many rows as values in each")
        return self

    def words(self, **shape: int) -> list[str]:
        """Return the configuration as KEY=VALUE; ``shape`` is that of the host."""
        given: dict[str, Any] = {**shape, **self.model_dump()}
        given["latency_ns"] = "+".join(":".join(map(_plain, row)) for row in self.latency_ns)
        if isinstance(self.memory_gbs, list):
            given["memory_gbs"] = ":".join(map(_plain, self.memory_gbs))
        for cache in ("l1", "l2", "l3"):
            given[cache] = "{}/{}".format(*given[cache])
        return [f"{key}={_plain(value)}" for key, value in given.items()]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)
