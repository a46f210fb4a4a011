"""The agent's one file carries probes: a host needs no compiler."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from numalab import agent_archive
from numalab.agent.errors import Fault

FOLDER = "numalab/agent/probe/"
_FIND = (
    "import importlib, sys, json; sys.path.insert(0, sys.argv[1]); "
    "from numalab.agent import compiled; from numalab.agent.contract import to_json; "
    "program = importlib.import_module(sys.argv[2]).PROGRAM; "
    "print(json.dumps(to_json(compiled.find(program))))"
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return agent_archive.build(tmp_path_factory.mktemp("agent") / "agent.pyz")


def find(archive: Path, place: Path, path: str = "/nowhere", package: str = "numalab.agent.probe"):
    """Let the archive find its program of a package, with only these programs on the PATH."""
    environment = {"PATH": path, "XDG_CACHE_HOME": str(place), "HOME": str(place)}
    done = subprocess.run(
        [sys.executable, "-I", "-c", _FIND, str(archive), package], capture_output=True, text=True,
        env=environment, cwd=place,
    )  # fmt: skip
    return done


def test_a_folder_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(Fault, match="there is no folder"):
        agent_archive.build(tmp_path / "mistyped" / "numalab.pyz")
    assert not (tmp_path / "mistyped").exists()


@pytest.mark.parametrize("package", [one.package for one in agent_archive.PROGRAMS])
def test_a_host_without_a_compiler_has_the_programs_of_the_archive(archive, tmp_path, package):
    if platform.machine() not in agent_archive.carried(archive):
        pytest.skip("no compiler here makes programs without libraries")
    done = find(archive, tmp_path, package=package)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    name = f"{package.replace('.', '/')}/carried-{platform.machine()}"
    program = zipfile.ZipFile(archive).read(name)
    assert found["facts"]["made"] == "carried"
    assert found["facts"]["sha256"] == hashlib.sha256(program).hexdigest()
    assert Path(found["path"]).read_bytes() == program
    first = os.stat(found["path"]).st_mtime_ns
    assert json.loads(find(archive, tmp_path, package=package).stdout) == found
    assert os.stat(found["path"]).st_mtime_ns == first


def test_programs_need_no_library_and_are_of_their_architecture(archive):
    machines = {"x86_64": 62, "aarch64": 183}  # of an ELF file, elf(5)
    each = itertools.product(agent_archive.PROGRAMS, agent_archive.carried(archive))
    for one, arch in each:
        folder = one.package.replace(".", "/")
        program = zipfile.ZipFile(archive).read(f"{folder}/carried-{arch}")
        assert program[:5] == b"\x7fELF\x02" and program[18] == machines[arch]
        start, size, number = struct.unpack_from("<32xQ14xHH", program)
        kinds = [struct.unpack_from("<I", program, start + n * size)[0] for n in range(number)]
        assert number and 3 not in kinds  # PT_INTERP names what loads libraries


@pytest.mark.parametrize("content", [b"not a program", b"#!/bin/sh\nexit 1\n"])
def test_one_that_does_not_run_here_is_passed_over(archive, tmp_path, content):
    broken = tmp_path / "broken.pyz"
    name = f"{FOLDER}carried-{platform.machine()}"
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(broken, "w") as target:
        for entry in source.infolist():
            if entry.filename != name:
                target.writestr(entry, source.read(entry))
        target.writestr(name, content)
    done = find(broken, tmp_path)
    assert "no C compiler" in done.stderr
    if not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("there is no compiler here")
    done = find(broken, tmp_path, os.environ["PATH"])
    assert json.loads(done.stdout)["facts"]["made"] == "compiled here", done.stderr


def test_without_compilers_it_carries_none_and_still_is_the_agent(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = agent_archive.build(tmp_path / "plain.pyz")
    assert agent_archive.carried(made) == []
    assert f"{FOLDER}main.c" in zipfile.ZipFile(made).namelist()
