"""Taking in what was fetched from a host: verified first, then put in its place in one step.

The playbook calls it: ``python -m numalab.fleet.receive RECORD RUNS HOST`` reads the archive
``RECORD/incoming/HOST.tar`` and puts every run into ``RUNS/HOST/RUN``.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tarfile
from pathlib import Path, PurePosixPath

from numalab import escape, untrusted
from numalab.agent.errors import Fault
from numalab.agent.trial import journal
from numalab.fleet.record import read_host

_AGAIN = "give the same command again"
_NOT_OURS = "what arrived is not of numalab"
MOST_FILES, MOST_BYTES = 1_000_000, 16 << 30  # of one archive
MOST_FOLDERS, DEEPEST = 1000, 4  # of one archive: RUN/raw/FILE is what there is
MOST_MEMORY = 512 << 20  # of the process that takes an archive in


def accept(record: Path, runs: Path, host: str) -> dict[str, Path]:
    """Take in a host's archive; return the run directories by their requests' keys.

    A run goes to its place by one rename(2) after it was loaded and every file in it has the hash
    that the host wrote down: a cut transfer never looks like a run. Raises Fault when anything
    differs; runs that were verified before stay.
    """
    untrusted.check_name(host, "a host")
    archive = record / "incoming" / f"{host}.tar"
    # Deeper than RUNS/HOST/RUN: nothing here is taken for a run (home.find_runs).
    incoming = runs / ".incoming" / f"{host}-{os.getpid()}" / "runs"
    taken: dict[str, Path] = {}
    for left in (runs / ".incoming").glob(f"{host}-*"):  # of a process that was killed
        if not Path("/proc", left.name.removeprefix(f"{host}-")).exists():
            shutil.rmtree(left, ignore_errors=True)
    try:
        incoming.mkdir(parents=True)
        _extract(archive, incoming)
        for key, name in _listed(incoming).items():
            _verify(incoming / name, name, host)
            taken[key] = _place(incoming / name, runs / host / name)
            _note(record / "hosts" / f"{host}.json", key, taken[key])
        archive.unlink()
    finally:
        shutil.rmtree(incoming.parent, ignore_errors=True)
        if (runs / ".incoming").is_dir() and not any((runs / ".incoming").iterdir()):
            (runs / ".incoming").rmdir()
    return taken


def _listed(incoming: Path) -> dict[str, str]:
    """Return the names of the runs that an archive holds, by their requests' keys."""
    text = untrusted.read_bytes(incoming, "runs.json", untrusted.MIB)
    data = untrusted.parse_json(text, "runs.json")
    listed = data.get("runs") if isinstance(data, dict) else None
    if not isinstance(listed, dict):
        raise Fault("runs.json lists no runs", _NOT_OURS)
    for name in listed.values():
        if not isinstance(name, str) or not untrusted.is_name(name):
            raise Fault(f"{name!r} cannot name a run", _NOT_OURS)
    return listed


def _extract(archive: Path, target: Path) -> None:
    """Unpack plain files only, none outside of ``target``, and no more than a host measures."""
    count = total = 0
    folders: set[PurePosixPath] = set()
    try:
        with tarfile.open(archive, "r:") as members:
            for member in members:
                path = PurePosixPath(member.name)
                deep = len(path.parts) > DEEPEST
                if path.is_absolute() or ".." in path.parts or "\0" in member.name or deep:
                    raise Fault(f"{archive} holds a file {member.name[:80]!r}", _NOT_OURS)
                folders.add(path if member.isdir() else path.parent)
                if len(folders) > MOST_FOLDERS:
                    raise Fault(f"{archive} holds more folders than a host makes", _NOT_OURS)
                if member.isdir():
                    (target / path).mkdir(parents=True, exist_ok=True)
                    continue
                if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
                    raise Fault(f"{archive}: {member.name!r} is no plain file", _NOT_OURS)
                count, total = count + 1, total + member.size
                fits = 0 <= member.size <= untrusted.LARGEST_FILE
                if count > MOST_FILES or total > MOST_BYTES or not fits:
                    raise Fault(f"{archive} holds more than a host measures", _NOT_OURS)
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                source = members.extractfile(member)
                assert source is not None
                with open(target / path, "xb") as file:
                    shutil.copyfileobj(source, file)
                members.members.clear()  # type: ignore[attr-defined]  # it keeps all it has seen
    except (tarfile.TarError, EOFError, ValueError, RecursionError, OverflowError) as error:
        # The last three are tarfile's own: on headers of no number, of thousands in a row, of
        # sizes beyond any.
        raise Fault(f"what arrived is damaged: {error}", _AGAIN) from None
    except MemoryError:
        raise Fault(f"{archive} claims more than fits into memory", _NOT_OURS) from None
    except OSError as error:
        raise Fault(f"{error.filename or archive}: {error.strerror or error}", _AGAIN) from None


def _verify(folder: Path, name: str, host: str) -> None:
    from numalab import runs

    run = runs.load(folder)
    manifest = run.manifest
    for key, found, expected in (
        ("run", manifest.run, name),
        ("host", manifest.host, host),
        ("status", manifest.status, "complete"),
    ):
        if found != expected:
            raise Fault(f"{name}: its manifest states {key} {found!r}, not {expected!r}", _AGAIN)
    sums = manifest.sha256
    needed = {"host.json", "journal.ndjson", *(file for one in run.trials for file in one.sha256)}
    for file in sorted(needed | set(sums)):
        if file not in sums or untrusted.sha256(folder, file) != sums[file]:
            raise Fault(f"{name}/{file} is missing or is not what the host wrote", _AGAIN)
    there = {one.relative_to(folder).as_posix() for one in folder.rglob("*")}
    for file in sorted(there - set(sums) - {"manifest.json", "raw"}):
        raise Fault(f"{name} holds {file!r}, which its manifest does not name", _NOT_OURS)


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
    entry.runs[key] = str(folder)
    entry.notebooks.pop(key, None)
    journal.write_json(path, entry)


def main() -> int:
    """Take in one host's archive; return the exit status."""
    record, runs, host = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    try:
        accept(Path(record), Path(runs), host)
    except Fault as fault:
        print(escape.line(f"numalab: {fault}"), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
