"""How the modules of the library hang together: none, and no folder, needs itself by a detour."""

import ast
import graphlib
from pathlib import Path

import pytest

LIB = Path(__file__).resolve().parent.parent / "lib"


def _imports(folder):
    """Return each module below a folder with the modules below it that it imports to run.

    Imports inside functions count; those for types alone do not.
    """
    paths = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: _of(path, name, paths) for name, path in paths.items()}


def _of(path, name, paths):
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in _run(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            named = {f"{base}.{alias.name}" for alias in node.names}
            found |= {one if one in paths else base for one in named}
    return found & set(paths) - {name}


def _run(node):
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _run(child)


def _room(module):
    """Return the folder of a module below numalab, or below its agent; None for one of neither."""
    parts = module.split(".")[1:]
    folder = "/".join(parts[: 2 if parts[:1] == ["agent"] else 1])
    return folder if folder not in ("", "agent") and (LIB / "numalab" / folder).is_dir() else None


def _circle(graph):
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return " → ".join(error.args[1])
    return None


def test_no_module_needs_itself_by_a_detour():
    assert _circle(_imports(LIB / "numalab")) is None


def test_no_folder_needs_itself_by_a_detour():
    rooms = {}
    for name, imported in _imports(LIB / "numalab").items():
        own = _room(name)
        if own:
            rooms.setdefault(own, set()).update({_room(one) for one in imported} - {own, None})
    assert {"agent/plan", "agent/trial", "analysis", "show"} <= set(rooms)
    assert _circle(rooms) is None


@pytest.mark.parametrize("late", [False, True])
def test_a_circle_is_seen_by_every_form_of_import(tmp_path, late):
    house = tmp_path / "house"
    (house / "room").mkdir(parents=True)
    (house / "__init__.py").touch()
    (house / "room" / "__init__.py").write_text("from ..lower import x\n")
    (house / "lower.py").write_text(
        "def f():\n    import house.upper\n" if late else "from . import upper\n"
    )
    (house / "upper.py").write_text("from .room import y\n")
    assert _circle(_imports(house))
    (house / "upper.py").write_text("if TYPE_CHECKING:\n    from .room import y\n")
    assert _circle(_imports(house)) is None
