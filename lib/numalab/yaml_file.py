"""A YAML file that a person writes: read strictly, with plain words for what is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from numalab import untrusted
from numalab.agent.errors import Fault

if TYPE_CHECKING:
    from pydantic import ValidationError


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice (the last would silently win), and numbers without end."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number: int = super().construct_yaml_int(node)
        if abs(number) >= 1 << 64:
            raise yaml.constructor.ConstructorError(
                None, None, "a number is too large", node.start_mark
            )
        return number

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, (str, int, float, bool)):
                continue
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def ending(name: str) -> str | None:
    """Return what to say of a name without .yml that means a file; None where there is no such."""
    there = Path(name).is_file()
    if Path(f"{name}.yml").is_file() or (there and not Path(name).suffix):
        return f"a file of your own is named with its ending .yml: {name}.yml"
    return f"{name} is a file, but its name does not end in .yml" if there else None


def read(path: Path) -> dict[str, Any]:
    """Return the keys of a file; Fault as `parse`, and for what is no file of text."""
    content = untrusted.read_bytes(path.resolve().parent, path.name, untrusted.LARGEST_YAML)
    try:
        return parse(content.decode("utf-8"), path)
    except UnicodeDecodeError:
        raise Fault(f"{path} is not UTF-8 text", "it must be YAML text") from None


def parse(text: str, where: Path) -> dict[str, Any]:
    """Return the keys of a YAML text; ``where`` is the file that a Fault speaks of.

    Raises Fault for malformed YAML (with its line), a key that stands twice, a value without end,
    anything but a mapping, and the key ``name``: a thing is called as its file.
    """
    try:
        data = yaml.load(untrusted.check_yaml(text, where), Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise Fault(f"{where}{line}: {problem}", "the file must be YAML") from None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        # of YAML's own constructors: a number of 5,000 digits, the 13th month
        raise Fault(f"{where}: a value cannot be read: {str(error)[:80]}", "quote it") from None
    if not isinstance(data, dict):
        raise Fault(f"{where} holds no mapping of keys", "see any other file of that folder")
    if "name" in data:
        raise Fault(f"{where}: it may not set 'name'", "the file's own name is its name")
    return {str(key): value for key, value in data.items()}


def explain(error: ValidationError, known: Iterable[str]) -> str:
    """Return what pydantic found in a file, each fault with its key; ``known`` are the keys."""
    parts = []
    for item in error.errors():
        place = ".".join(str(step) for step in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        message = message[0].lower() + message[1:]
        if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            near = difflib.get_close_matches(str(item["loc"][-1]), list(known), n=1)
            message = "unknown key" + (f", did you mean {near[0]}?" if near else "")
        elif item["type"] == "missing":
            message = "this key is missing"
        parts.append(f"{place}: {message}" if place else message)
    return "; ".join(dict.fromkeys(parts))


Lines = dict[tuple[str, ...], int]


def lines(text: str) -> Lines:
    """Return the line (from 1) of every key of a YAML text, by its path."""
    found: Lines = {}

    def note(node: yaml.Node, path: tuple[str, ...]) -> None:
        if isinstance(node, yaml.MappingNode):
            below = [(str(key.value), key, value) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            below = [(str(number), value, value) for number, value in enumerate(node.value)]
        else:
            return
        for step, key, value in below:
            found[path + (step,)] = key.start_mark.line + 1
            note(value, path + (step,))

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None:
        note(root, ())
    return found


def line_of(known: Lines, path: Iterable[object]) -> int:
    """Return the line of a key, or of the nearest one around it; 1 where there is none."""
    steps = tuple(map(str, path))
    while steps and steps not in known:
        steps = steps[:-1]
    return known.get(steps, 1)


def at(where: Path, known: Lines, error: ValidationError, keys: Iterable[str]) -> str:
    """Return what pydantic found in a file, with the line of the first fault."""
    line = line_of(known, error.errors()[0]["loc"])
    return f"{where}, line {line}, {explain(error, keys)}"
