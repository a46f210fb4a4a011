"""Where the tests find things that are not in this repository."""

import os
import signal
from pathlib import Path

import pytest

import own_agent
from numalab.agent.trial import quiet

REPOSITORY = Path(__file__).resolve().parent.parent

# A script's background job ignores Ctrl-C, and so would every program that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def quiet_host(monkeypatch):
    """Let runs within a test's process find a quiet host; those of their own are given --busy."""
    monkeypatch.setattr(quiet, "busy", lambda *_: [])
    monkeypatch.setattr(quiet, "others_at_work", lambda: None)


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of real tool outputs: NUMALAB_CORPUS, or shared/corpus beside the checkout."""
    folder = Path(os.environ.get("NUMALAB_CORPUS", REPOSITORY.parent / "shared" / "corpus"))
    if not (folder / "INDEX.tsv").is_file():
        pytest.skip(f"no corpus of real outputs at {folder}; set NUMALAB_CORPUS to read one")
    return folder


@pytest.fixture(scope="session")
def agent(tmp_path_factory) -> Path:
    """The agent's archive with a lock of each folder's own."""
    return own_agent.build(tmp_path_factory.mktemp("agent"))
