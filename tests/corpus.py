"""Where other people's outputs are: they are read there and never copied into the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
FIXTURES = HERE / "fixtures" / "tools"


def corpus() -> Path | None:
    """Return the folder of the corpus, or None where there is none."""
    named = os.environ.get("NUMALAB_CORPUS")
    for path in [Path(named)] if named else [HERE.parent.parent / "shared" / "corpus"]:
        if (path / "INDEX.tsv").is_file():
            return path
    return None


def read(path: str | Path) -> str:
    """Return a text of the corpus as it is (its ends of lines too); skip where it is absent."""
    root = corpus()
    if root is None:
        pytest.skip("no corpus: set NUMALAB_CORPUS to the folder that holds its INDEX.tsv")
    return (root / path).read_bytes().decode("utf-8", errors="replace")


def fixture(name: str) -> str:
    """Return one of the project's own captured outputs."""
    return (FIXTURES / name).read_text(encoding="utf-8")
