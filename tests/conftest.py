"""Where the tests find things that are not in this repository."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of real tool outputs: NUMALAB_CORPUS, or shared/corpus beside the checkout."""
    folder = Path(os.environ.get("NUMALAB_CORPUS", REPOSITORY.parent / "shared" / "corpus"))
    if not (folder / "INDEX.tsv").is_file():
        pytest.skip(f"no corpus of real outputs at {folder}; set NUMALAB_CORPUS to read one")
    return folder
