"""The programs of a service on this host, and its version."""

from __future__ import annotations

import glob
import os
import re
import shutil
from typing import Dict, List, Mapping, Sequence, Tuple

from ...contract import reason
from ...drivers import options as check
from ...errors import Fault, NotHere
from . import description
from .description import Service

_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def find(service: Service) -> Tuple[Dict[str, str], str]:
    """Return the paths of the programs that a service needs here, by name, and its version.

    Raises NotHere when one is missing, and Fault when its version cannot be told.
    """
    _check_here(service)
    programs = {name: _program(service, name, c) for name, c in service.needs.items()}
    return programs, _version(service, programs)


def _check_here(service: Service) -> None:
    """Raise NotHere for a service that names files beside its own, on a host without its folder."""
    here = os.path.expanduser(service.here)
    named = [line for _, line, _ in description.lines(service)] + list(service.files.values())
    if any("{here}" in text for text in named) and not os.path.isdir(here):
        raise NotHere(
            reason("service-folder-missing", service=service.name, folder=service.here),
            "put it there on that host; what stands under `files` is carried to every host",
        )


def _program(service: Service, name: str, candidates: Sequence[str]) -> str:
    """Return the path of the first candidate that this host has; a pattern means its last match."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_FOLDERS])
    for one in candidates:
        one = description.filled(one, {"here": os.path.expanduser(service.here)})
        if os.sep not in one:
            found = shutil.which(one, path=path)
        else:
            matches = glob.glob(os.path.expanduser(one))
            found = max(matches, key=_natural, default=None)
        if found:
            return os.path.abspath(found)
    raise NotHere(
        reason("program-missing", service=service.name, needs=name, candidates=list(candidates)),
        "install one, or write its path into the service file",
    )


def _natural(path: str) -> List[Tuple[int, str]]:
    return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", path)]


def _version(service: Service, programs: Mapping[str, str]) -> str:
    """Return the number in what its command for the version prints; "" without such a command."""
    if not service.version:
        return ""
    values = {**programs, "here": os.path.expanduser(service.here)}
    words = description.words(service.version, values, {})
    said = check.answer(words[0], *words[1:])
    found = re.search(r"\d+(?:\.\d+)+(?:[-.~+]?\w+)*", said)
    if not found:
        first = (said.strip().splitlines() or [""])[0][:80]
        raise Fault(f"{' '.join(words)} tells no version: {first!r}", "mend `version` of the file")
    return found[0]
