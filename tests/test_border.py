"""The border between the halves: the agent needs Python's standard library and nothing else."""

import ast
import sys
from pathlib import Path

import pytest

AGENT = Path(__file__).resolve().parent.parent / "lib" / "numalab" / "agent"
SOURCES = sorted(AGENT.rglob("*.py"))


def _imports(path: Path):
    """Yield the absolute name of every module a file imports, at the top or inside functions."""
    package = ["numalab", "agent", *path.relative_to(AGENT).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1]
            yield ".".join([*base, *([node.module] if node.module else [])])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(AGENT)))
def test_the_agent_imports_the_standard_library_and_itself(path):
    for name in _imports(path):
        if name == "numalab" or name.startswith("numalab."):
            assert name == "numalab.agent" or name.startswith("numalab.agent."), name
        else:
            assert name.partition(".")[0] in sys.stdlib_module_names, name


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(AGENT)))
def test_the_agent_is_written_in_python_3_9(path):
    ast.parse(path.read_text(), feature_version=(3, 9))


def test_the_walk_sees_every_form_of_import(monkeypatch, tmp_path):
    monkeypatch.setattr(sys.modules[__name__], "AGENT", tmp_path)
    (tmp_path / "drivers").mkdir()
    path = tmp_path / "drivers" / "stray.py"
    path.write_text("import polars\ndef f():\n    from ...store import w\n    from . import x\n")
    assert list(_imports(path)) == ["polars", "numalab.store", "numalab.agent.drivers"]
