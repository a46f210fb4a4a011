"""Taking in what was fetched from a host: verified first, then put in its place in one step.

The playbook calls it: ``python -m numalab.fleet.receive RECORD RUNS HOST`` reads the archive
``RECORD/incoming/HOST.tar`` and puts every run into ``RUNS/HOST/RUN``.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

from numalab.agent.errors import Fault
from numalab.agent.trial import journal
from numalab.fleet.record import read_host

_AGAIN = "give the same command again"


def accept(record: Path, runs: Path, host: str) -> dict[str, Path]:
    """Take in a host's archive; return the run directories by their requests' keys.

    A run goes to its place by one rename(2) after every file in it has the hash that the
    host wrote down: a cut transfer never looks like a run. Raises Fault when anything differs;
    runs that were verified before stay.
    """
    archive = record / "incoming" / f"{host}.tar"
    # Deeper than RUNS/HOST/RUN: nothing here is taken for a run (home.find_runs).
    incoming = runs / ".incoming" / f"{host}-{os.getpid()}" / "runs"
    taken: dict[str, Path] = {}
    try:
        incoming.mkdir(parents=True)
        _extract(archive, incoming)
        listed = journal.read_json(incoming / "runs.json")["runs"]
        for key, name in listed.items():
            if not re.fullmatch(r"\w[\w.+-]*", name):
                raise Fault(f"{name!r} cannot name a run", "what arrived is not of numalab")
            _verify(incoming / name, name, host)
            taken[key] = _place(incoming / name, runs / host / name)
            _note(record / "hosts" / f"{host}.json", key, taken[key])
        archive.unlink()
    finally:
        shutil.rmtree(incoming.parent, ignore_errors=True)
        if (runs / ".incoming").is_dir() and not any((runs / ".incoming").iterdir()):
            (runs / ".incoming").rmdir()
    return taken


def _extract(archive: Path, target: Path) -> None:
    """Unpack regular files only, and none outside of ``target``."""
    try:
        with tarfile.open(archive, "r:") as members:
            for member in members:
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts:
                    raise Fault(f"{archive} holds a file {member.name!r}", "it is not of numalab")
                if member.isdir():
                    (target / path).mkdir(parents=True, exist_ok=True)
                elif member.isfile():
                    (target / path).parent.mkdir(parents=True, exist_ok=True)
                    source = members.extractfile(member)
                    assert source is not None
                    with open(target / path, "wb") as file:
                        shutil.copyfileobj(source, file)
                else:
                    raise Fault(f"{archive}: {member.name!r} is no file", "it is not of numalab")
    except (tarfile.TarError, EOFError) as error:
        raise Fault(f"what arrived is damaged: {error}", _AGAIN) from None
    except OSError as error:
        raise Fault(f"{error.filename or archive}: {error.strerror or error}", _AGAIN) from None


def _verify(folder: Path, name: str, host: str) -> None:
    manifest = journal.read_json(folder / "manifest.json")
    for key, expected in (("run", name), ("host", host), ("status", "complete")):
        if manifest.get(key) != expected:
            raise Fault(
                f"{name}: its manifest states {key} {manifest.get(key)!r}, not {expected!r}", _AGAIN
            )
    sums: dict[str, Any] = manifest["sha256"]
    needed = {"host.json", "journal.ndjson"}
    for one in journal.read(folder / "journal.ndjson"):
        needed.update(one["sha256"])
    for file in sorted(needed | set(sums)):
        path = folder / file
        if file not in sums or not path.is_file() or journal.sha256(path) != sums[file]:
            raise Fault(f"{name}/{file} is missing or is not what the host wrote", _AGAIN)


def _place(source: Path, target: Path) -> Path:
    if target.exists():
        manifests = [journal.sha256(folder / "manifest.json") for folder in (source, target)]
        if manifests[0] != manifests[1]:
            raise Fault(f"{target} is another run already", "is the host's clock right?")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    os.rename(source, target)
    journal.sync_directory(target.parent)
    return target


def _note(path: Path, key: str, folder: Path) -> None:
    entry = read_host(path)
    entry["runs"][key] = str(folder)
    entry["notebooks"].pop(key, None)
    journal.write_json(path, entry)


def main() -> int:
    """Take in one host's archive; return the exit status."""
    record, runs, host = sys.argv[1:]
    try:
        accept(Path(record), Path(runs), host)
    except Fault as fault:
        print(f"numalab: {fault}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
