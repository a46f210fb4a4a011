"""Prepared data of a service: an empty directory filled by its file's commands, once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional

from ... import kernel, paths
from ...contract import Reason, Tell, ToolRecord, from_json, reason, to_json
from ...drivers import options as check
from ...errors import Fault
from .. import dataset
from ..instance import last_words
from ..private import PrivateFolder
from . import description
from .description import Service

_LIMIT_S = 3600.0


class PreparedData(dataset.DataSet):
    """The data of a service with certain options; another version or option is another data set."""

    kind = "services"
    module = "numalab.agent.served.service.data"

    def __init__(self, found: Optional[ToolRecord], options: Mapping[str, Any]) -> None:
        """``options`` are those of a cell; without ``found`` it can only be looked for."""
        self.found, self.options = found, options
        self.name: str = options["data"]["name"]
        if not re.fullmatch(r"[\w.+-]{1,120}", self.name) or self.name.startswith("."):
            raise Fault(f"{self.name!r} cannot be the name of a data set")
        self.takes_s: float = options["data"]["takes_s"]
        super().__init__(self.name)

    def record(self) -> Optional[Dict[str, Any]]:
        """As of the base; data of another version of the service are none."""
        record = super().record()
        other = record and self.found and record["version"] != self.found.version
        return None if other else record

    def arguments(self) -> str:
        """As of the base."""
        return json.dumps({"found": to_json(self.found), "options": to_json(self.options)})

    def description(self) -> Reason:
        """As of the base."""
        return reason("preparing-data", data=self.name, seconds=self.takes_s)

    def disk_bytes(self, copies: int = 1) -> int:
        """As of the base."""
        size: int = self.options["data"]["bytes"]
        return (1 + copies) * size

    def fill(self, datadir: Path, scratch: Path, tell: Tell) -> Dict[str, Any]:
        """As of the base: run the commands; Fault with the words of one that fails."""
        assert self.found
        service = description.read(self.found.facts["service"])
        assert service.prepare
        private = PrivateFolder()
        try:
            self._fill(service, datadir, private.of(0))
        finally:
            private.remove()
        return {"version": self.found.version}

    def _fill(self, service: Service, datadir: Path, rundir: str) -> None:
        assert self.found and service.prepare
        values = {
            **paths.own(self.found.facts["programs"]), **self.options,
            "here": os.path.expanduser(self.found.facts["here"]), "datadir": str(datadir),
            "rundir": rundir, "socket": f"{rundir}/socket", "port": 0,
            "cpus": self.options["cpus"], "connections": self.options["connections"],
        }  # fmt: skip
        texts = description.texts_of(service, self.options)
        for name, text in service.files.items():
            filled = description.filled(text, {**values, **texts})
            (datadir / name).write_text(filled, encoding="utf-8")
        for line in service.prepare.commands:
            words = description.words(line, values, texts)
            _run(words, datadir, kernel.die_with_parent(nobody=service.refuses_root))


def _run(words: List[str], datadir: Path, begin: Callable[[], None]) -> None:
    try:
        done = subprocess.run(
            [os.path.expanduser(words[0]), *words[1:]], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=datadir, timeout=_LIMIT_S,
            text=True, errors="replace", preexec_fn=begin,
        )  # fmt: skip
        said, status = last_words(done.stdout.splitlines()), done.returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        said, status = str(error), 1
    if status:
        raise Fault(reason("data-command-failed", command=words[0], said=said))


def described(service: Service, options: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """Return what the cell's options say of its data set; None of a service without data."""
    if not service.prepare:
        return None
    lines = " ".join(service.prepare.commands)
    used = {name: options[name] for name in service.options if f"{{{name}" in lines}
    disk = service.prepare.disk
    parts = disk if isinstance(disk, (list, tuple)) else [disk]
    made_of = json.dumps([service.prepare.commands, used, to_json(service.files)], sort_keys=True)
    return {
        "name": f"{service.name}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}",
        "takes_s": service.prepare.takes_s,
        "bytes": sum(check.size("disk", options.get(one, one), least=0) for one in parts),
    }


def changed(service: Service, options: Mapping[str, Any]) -> bool:
    """Tell whether the load of a cell may change the data."""
    kept = service.prepare.kept if service.prepare else None
    return kept is None or any(str(options[name]) != value for name, value in kept.items())


def made_of(given: Mapping[str, Any]) -> PreparedData:
    """Return the data set that `PreparedData.arguments` named."""
    return PreparedData(from_json(ToolRecord, given["found"]), given["options"])


if __name__ == "__main__":
    sys.exit(dataset.main(made_of, sys.argv[1:]))
