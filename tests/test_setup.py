"""The files that set a machine up agree with each other, and name no index."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    tomllib = None

REPOSITORY = Path(__file__).resolve().parent.parent
# conda's name of a package, where it differs from PyPI's
CONDA_NAMES = {"matplotlib": "matplotlib-base"}
# what only conda can bring: not Python packages, or the interpreter itself
CONDA_ONLY = {"python", "pip", "quarto", "c-compiler"}


def _project() -> dict:
    if tomllib is None:
        pytest.skip("tomllib needs Python 3.11; the same test runs there")
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def _requirements() -> dict[str, str]:
    """Name → version bounds of everything that pyproject asks for, extras included."""
    project = _project()
    lines = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
    return dict(re.match(r"([\w.-]+)(.*)", line).groups() for line in lines)


def _locked() -> dict[str, set[str]]:
    versions: dict[str, set[str]] = {}
    for line in (REPOSITORY / "requirements.lock").read_text().splitlines():
        match = re.match(r"([\w.-]+)==([\w.!+]+)", line)
        if match:
            versions.setdefault(match.group(1), set()).add(match.group(2))
    return versions


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:4])


def test_the_conda_environment_asks_for_what_pyproject_asks_for():
    environment = yaml.safe_load((REPOSITORY / "environment.yml").read_text())
    asked = dict(re.match(r"([\w-]+)(.*)", item).groups() for item in environment["dependencies"])
    expected = {CONDA_NAMES.get(name, name): bound for name, bound in _requirements().items()}
    assert {n: b for n, b in asked.items() if n not in CONDA_ONLY} == expected
    assert asked["python"] == _project()["requires-python"]


def test_the_lock_holds_every_requirement_within_its_bounds():
    locked = _locked()
    for name, bound in _requirements().items():
        assert name in locked, f"{name} is not in requirements.lock: make lock"
        least = _version(bound)
        for version in locked[name]:
            assert _version(version) >= least, f"{name} {version} is locked, {bound} is asked for"


def test_the_lock_hashes_every_package_and_names_no_index():
    text = (REPOSITORY / "requirements.lock").read_text()
    entries = re.split(r"\n(?=\S)", text.strip())
    assert len(entries) > 50
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text and "index-url" not in text


def test_versions_are_stated_once():
    from numalab.agent import VERSION

    assert _project()["version"] == VERSION
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert citation["version"] == VERSION


def test_ci_runs_the_command_of_the_readme():
    readme = (REPOSITORY / "README.md").read_text()
    assert "make test" in readme and "make run" in readme
    assert "make test" in (REPOSITORY / ".ci" / "run").read_text()


def test_shell_scripts_parse():
    for script in (REPOSITORY / "scripts").iterdir():
        if script.read_text().startswith("#!/bin/sh"):
            subprocess.run(["sh", "-n", str(script)], check=True)


def test_the_command_starts_without_the_heavy_libraries():
    heavy = "{'polars', 'scipy', 'matplotlib', 'pandas', 'pydantic', 'papermill'}"
    code = f"import sys, numalab.cli; sys.exit(' '.join({heavy} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, f"numalab.cli imports {done.stderr.strip()} at start"
