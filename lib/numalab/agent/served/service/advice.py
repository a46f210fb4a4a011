"""What a recommendation pastes of a service: its command line, and where it listens."""

from __future__ import annotations

import shlex

from ...contract import Advice, Cell, ToolRecord
from . import description

_FIRST_PORT = 8081
_EACH = "%i"  # of an instance, see `Advice`


def of(found: ToolRecord, cell: Cell) -> Advice:
    """Return the service as a cell started it, in the folders that its unit of systemd has.

    The values of its options are those of one instance. An instance is known by its port where it
    listens on one, else by its number.
    """
    service = description.read(found.facts["service"])
    name = service.name
    options = {option: cell.options[option] for option in service.options}
    values = {
        **found.facts["programs"], **options,
        "here": service.here, "datadir": f"/var/lib/{name}/{_EACH}",
        "rundir": f"/run/{name}/{_EACH}", "socket": f"/run/{name}/{_EACH}/socket", "port": _EACH,
        "cpus": cell.options["cpus"], "connections": cell.options["connections"],
    }  # fmt: skip
    texts = description.texts_of(service, options)
    program = " ".join(map(_quoted, description.words(service.start, values, texts)))
    where = f"unix@{values['socket']}" if service.on_socket else f"127.0.0.1:{_EACH}"
    own = cell.sweep is not None and cell.sweep.option in service.options
    remarks = ["as it was measured: your options, paths and data will differ"]
    if service.files or service.prepare:
        remarks.append(f"{values['datadir']} holds what the service file puts there")
    if "~/" in program:
        remarks.append("systemd knows no ~: write the whole path there")
    return Advice(
        program,
        name,
        "the command line" if own else None,
        (program,),
        tuple(remarks),
        first=_FIRST_PORT if service.has_placeholder("port") else 1,
        address=where if service.load.kind == description.HTTP else "",
        environment=tuple(
            f"{key}={description.filled(text, {**values, **texts})}"
            for key, text in service.environment.items()
        ),
    )


def _quoted(word: str) -> str:
    """A word as a shell takes it; one that begins with the home folder keeps that open."""
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") else shlex.quote(word)
