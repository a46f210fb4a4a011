"""Host definitions: ``lab/hosts/NAME.yml``, what a guest's machine looks like."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from numalab import home, yaml_file
from numalab.agent.errors import Fault

from .timing import MOST_CPUS, Timing

_SIZE = re.compile(r"(\d+) ?(MiB|GiB)\Z")
_UNITS = {"MiB": 2**20, "GiB": 2**30}


class Host(BaseModel):
    """One host definition; ``name`` is the file's stem."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    says: str
    arch: Literal["x86_64", "aarch64"]
    image: str = Field(default="", description="of lab/image.yml; without it that of its arch")
    processor: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*$")
    model: str | None = None
    sockets: int = Field(ge=1, le=64)
    nodes: int = Field(ge=1, le=64)
    memory_only: int = Field(default=0, ge=0, description="nodes without CPUs, after the others")
    cores: int = Field(ge=1, description="per node")
    threads: int = Field(default=1, ge=1, le=2, description="per core")
    memory: int = Field(description="bytes per node")
    distances: list[list[int]]
    timing: Timing | None = Field(default=None, description="configured: see lab/timing")
    experiments: list[str] = Field(default=[], description="that lab run measures; else all")
    kernel: str = Field(default="", pattern=r"^[\w.,=:/ -]*$", description="words for the kernel")

    @field_validator("memory", mode="before")
    @classmethod
    def _bytes(cls, given: Any) -> int:
        found = _SIZE.match(str(given))
        if not found:
            raise ValueError("is not a size like 512 MiB or 2 GiB")
        size = int(found.group(1)) * _UNITS[found.group(2)]
        if size < 128 * 2**20:
            raise ValueError("is too little for a node: 128 MiB at least")
        return size

    @model_validator(mode="after")
    def _fits_together(self) -> Host:
        if self.nodes % self.sockets and (self.cores * self.nodes) % self.sockets:
            raise ValueError("the cores do not divide evenly over the sockets")
        if self.nodes > self.sockets and self.nodes % self.sockets:
            raise ValueError("the nodes do not divide evenly over the sockets")
        if {len(self.distances), *map(len, self.distances)} != {self.all_nodes}:
            raise ValueError(
                f"distances: {self.all_nodes} nodes need {self.all_nodes} rows of as many"
            )
        for i, row in enumerate(self.distances):
            for j, distance in enumerate(row):
                # ACPI 6.5, table 5-68: 10 is a node's own; QEMU takes 254 at most
                if (distance != 10) if i == j else not 11 <= distance <= 254:
                    raise ValueError(
                        f"distances: {distance} from node {i} to node {j}: "
                        "a node is 10 from itself and 11 to 254 from others"
                    )
        # CPUID holds 47 bytes; a comma would end QEMU's option
        if self.model and not re.match(r"[ -+\--~]{1,47}\Z", self.model):
            raise ValueError("model: up to 47 ASCII characters, no comma")
        if self.model and self.arch != "x86_64":
            raise ValueError("model: only an x86 CPU can be given a name of its own")
        if self.image and self.image.partition("-")[0] != self.arch:
            raise ValueError(f"image: {self.image} is not of {self.arch}")
        if self.cpus > 255:
            raise ValueError(f"{self.cpus} CPUs: 255 are the most that this machine model takes")
        if self.timing:
            self._check_timing(self.timing)
        if re.search(r"(^| )--( |$)", self.kernel):
            raise ValueError("kernel: -- ends the kernel's words")
        return self

    def _check_timing(self, timing: Timing) -> None:
        listed = timing.memory_gbs if isinstance(timing.memory_gbs, list) else []
        if self.arch != "x86_64" or self.memory_only or self.cpus > MOST_CPUS:
            raise ValueError(
                f"timing: the model takes x86_64, nodes with CPUs only, and {MOST_CPUS} CPUs"
            )
        if len(timing.latency_ns) != self.nodes or len(listed) not in (0, self.nodes):
            raise ValueError(f"timing: {self.nodes} nodes need as many rows and controllers")

    @property
    def cpus(self) -> int:
        """Hardware threads of the whole host."""
        return self.nodes * self.cores * self.threads

    @property
    def all_nodes(self) -> int:
        """Its nodes, those without CPUs too."""
        return self.nodes + self.memory_only

    @property
    def total_memory(self) -> int:
        """Bytes of the whole host."""
        return self.all_nodes * self.memory


def names() -> list[str]:
    """Return the names of all defined hosts, sorted."""
    return sorted(path.stem for path in _folder().glob("*.yml"))


def load(name: str) -> Host:
    """Read a host definition by name; Fault for an unknown name or a wrong or missing key."""
    data = _read(name, ())
    path = _folder() / f"{name}.yml"
    try:
        return Host(**{**data, "name": name})
    except ValidationError as error:
        why = yaml_file.explain(error, [*Host.model_fields, "like"])
        raise Fault(f"{path}: {why}", "see lab/README.md for the keys") from None


def _folder() -> Path:
    return home.root() / "lab" / "hosts"


def _read(name: str, followed: tuple[str, ...]) -> dict[str, Any]:
    """Return a file's keys over those of the host that it is like."""
    path = _folder() / f"{name}.yml"
    if not re.match(r"[a-z0-9][a-z0-9-]{0,62}\Z", name) or not path.is_file():
        near = difflib.get_close_matches(name, names(), n=1)
        who = f"{_folder() / followed[-1]}.yml: " if followed else ""
        raise Fault(
            f"{who}there is no host {name!r} in the lab",
            (f"did you mean {near[0]}? " if near else "") + f"Known: {', '.join(names())}",
        )
    if name in followed:
        raise Fault(
            f"{path}: it is like itself ({' → '.join([*followed, name])})", "end the circle"
        )
    data = yaml_file.read(path)
    like = data.pop("like", None)
    return {**(_read(str(like), (*followed, name)) if like is not None else {}), **data}
