"""A checkout of one's own with hosts that no user has up, and what is missing to boot them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import watching

from numalab.agent.errors import Fault

REPOSITORY = Path(__file__).resolve().parent.parent.parent
# What a checkout shares with this one; build/, where results go, is its own.
_SHARED = ("data", "experiments", "fleet", "notebooks", "report", "services")
GUESTS = {  # that the tests boot, and the host of the lab that each is like
    "test-one": "intel-2n",
    "test-two": "intel-2n",
    "test-timed": "intel-2n-timed",
    "test-null": "null-2n-timed",
    "test-inverted": "inverted-2n-timed",
    "test-eight": "amd-8n-timed",
    "test-near": "intel-2n-timed",
}
# A host of one's own timing is one small file.
OWN_TIMING = {"test-near": "timing: {latency_ns: [[85, 100], [100, 85]]}\n"}


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
    for name, like in GUESTS.items():
        text = f"like: {like}\nsays: {like} for the tests\n{OWN_TIMING.get(name, '')}"
        (root / "lab" / "hosts" / f"{name}.yml").write_text(text)
    return root


class Numalab:
    """numalab in the tests' checkout."""

    def __init__(self, checkout, consoles):
        self.checkout = checkout
        self.brought_up = set()
        self.watched = (consoles, checkout / "runs", checkout / "build")
        self.environment = {
            **os.environ,
            "NUMALAB_HOME": str(checkout),
            "NUMALAB_RUNS": str(checkout / "runs"),
            "PYTHONPATH": str(REPOSITORY / "lib"),
            "PYTHONUNBUFFERED": "1",
            watching.MARK.partition("=")[0]: watching.MARK.partition("=")[2],
        }

    def command(self, *words):
        """Return the words that call numalab."""
        if words[0] == "lab" and words[1] in ("up", "run"):
            self.brought_up |= GUESTS.keys() & set(words)
        return [sys.executable, "-m", "numalab.cli", *words]

    def __call__(self, *words, status=0):
        """Call numalab to its end: numalab("lab", "up", "test-one", status=0)."""
        got, said = watching.run(
            self.command(*words), self.watched, cwd=self.checkout, env=self.environment
        )
        print(said)
        if got != status:  # a guest that is gone has left its last words
            said += subprocess.run(
                self.command("lab", "status"), cwd=self.checkout, env=self.environment,
                capture_output=True, text=True,
            ).stdout  # fmt: skip
        assert got == status, (words, said)
        return said

    def guest(self, name):
        """Return what numalab lab status says of one guest, None where there is none."""
        guests = json.loads(self("lab", "status", "--json"))
        return next((guest for guest in guests if guest["name"] == name), None)

    def measuring(self, host):
        """Return the status of what measures on a host once a trial has ended there, else None."""
        said = self("lab", "ssh", host, "--", f"cat ~/.numalab/{host}/*/status.json || true")
        status = json.loads(said) if said.startswith("{") else None
        return status if status and status["jobs"][0]["last"] else None

    def run_of(self, host, experiment):
        """Return the one run directory of an experiment on a host."""
        (folder,) = (self.checkout / "runs" / host).glob(f"*-{experiment}")
        return folder

    def trials(self, folder):
        """Return the lines of a run's journal."""
        return [json.loads(line) for line in (folder / "journal.ndjson").open()]


@pytest.fixture(scope="session")
def numalab(checkout):
    """Call numalab in the tests' checkout; no guest outlives the tests, however they end."""
    from numalab.lab import image

    reaper, pipe = watching.outlive_by_a_moment()
    call = Numalab(checkout, image.cache() / "guests")
    try:
        found = json.loads(call("lab", "status", "--json"))
        others = [guest["name"] for guest in found if guest["pid"] and guest["name"] in GUESTS]
        assert not others, f"another session of these tests has {others} up"
        call("lab", "down", *GUESTS)  # disks of a session that was killed
        yield call
        if call.brought_up:  # a guest of another session is not this one's to end
            call("lab", "down", *call.brought_up)
        assert watching.qemus() == {}
    finally:
        os.close(pipe)
        reaper.wait()


@pytest.fixture(scope="module", autouse=True)
def _no_runs_of_other_files(checkout):
    """What another file's tests measured on the same host is not this one's to find."""
    shutil.rmtree(checkout / "runs", ignore_errors=True)


@pytest.fixture(scope="module")
def guest(numalab):
    """A guest of two nodes that is up for the tests that only use it; its name.

    It stays up; where the tests of another file have ended it, it boots again.
    """
    numalab("lab", "up", "test-one")
    return "test-one"
