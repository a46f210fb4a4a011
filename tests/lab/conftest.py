"""A checkout of one's own with hosts that no user has up, and what is missing to boot them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import lab_processes
import pytest

from numalab.agent.errors import Fault

REPOSITORY = Path(__file__).resolve().parent.parent.parent
# What a checkout shares with this one; build/, where results go, is its own.
_SHARED = ("data", "experiments", "fleet", "notebooks", "report")


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    """NUMALAB_HOME of the tests: guests named test-* are defined here and nowhere else."""
    from numalab.lab import tools

    try:
        tools.need_for_guest("x86_64")
        tools.need_for_image("x86_64")
    except Fault as fault:
        if os.environ.get("NUMALAB_LAB") == "required":
            raise
        pytest.skip(str(fault))
    root = tmp_path_factory.mktemp("checkout")
    for name in _SHARED:
        (root / name).symlink_to(REPOSITORY / name)
    shutil.copytree(REPOSITORY / "lab", root / "lab")
    for name in ("test-one", "test-two"):
        text = "like: intel-2n\nsays: intel-2n for the tests\n"
        (root / "lab" / "hosts" / f"{name}.yml").write_text(text)
    return root


@pytest.fixture(scope="session")
def numalab(checkout):
    """Call numalab in the tests' checkout: numalab("lab", "up", "test-one", status=0)."""
    environment = {
        **os.environ,
        "NUMALAB_HOME": str(checkout),
        "NUMALAB_RUNS": str(checkout / "runs"),
        "PYTHONPATH": str(REPOSITORY / "lib"),
    }

    def call(*words, status=0, seconds=900):
        done = subprocess.run(
            [sys.executable, "-m", "numalab.cli", *words],
            cwd=checkout, env=environment, capture_output=True, text=True, timeout=seconds,
        )  # fmt: skip
        print(done.stdout, done.stderr, sep="\n")
        assert done.returncode == status, (words, done.stdout, done.stderr)
        return done.stdout

    call.environment = environment
    yield call
    subprocess.run(
        [sys.executable, "-m", "numalab.cli", "lab", "down", "test-one", "test-two"],
        cwd=checkout, env=environment, check=True,
    )  # fmt: skip
    assert lab_processes.qemus() == []
