"""The sentence of every code: the one place where a `Reason` becomes words.

Each room has its templates in a module of its own. A template names the reason's fields as
str.format does, with these formats of our own: `{x:size}` bytes in binary units, `{x:percent}` a
share, `{x:seconds}` a length of time, `{x:n block}` a count with its noun ("1 block", "6 blocks"),
`{x:nodes}` and `{x:CPUs}` a list in the kernel's format ("node 0", "nodes 0-1"). A field that is
itself a reason (`{"code", "fields"}`) becomes its sentence. Where a template is not enough, a
function of the fields stands in its place.
"""

from __future__ import annotations

import functools
import importlib
import string
from typing import Any, Callable, Dict, List, Mapping, Union

from . import units

Template = Union[str, Callable[[Mapping[str, Any]], str]]
ROOMS = ("host", "plan", "trial", "drivers", "served", "collectors")


_ADDED: List[Mapping[str, Template]] = []


def add(sentences: Mapping[str, Template]) -> None:
    """Add the templates of a room of the controller."""
    _ADDED.append(sentences)
    templates.cache_clear()


@functools.cache
def templates() -> Dict[str, Template]:
    """Return every code's template; ValueError when two rooms use one code."""
    found: Dict[str, Template] = {}
    rooms = [importlib.import_module(f"{__name__}.{room}").SENTENCES for room in ROOMS]
    for own in (*rooms, *_ADDED):
        twice = sorted(set(own) & set(found))
        if twice:
            raise ValueError(f"the code {twice[0]} stands in two rooms")
        found.update(own)
    return found


def sentence(code: str, fields: Mapping[str, Any]) -> str:
    """Return a reason in words. One that is not known here (a newer agent's) shows its code."""
    template = templates().get(code)
    if template is None:
        said = ", ".join(f"{name} {value}" for name, value in fields.items())
        return code.replace("-", " ") + (f" ({said})" if said else "")
    try:
        if callable(template):
            return template(fields)
        return _Formatter().vformat(template, (), fields)
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError):
        # of damaged fields
        return code.replace("-", " ")


class _Formatter(string.Formatter):
    def get_field(self, field_name: str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        return self.get_value(field_name, args, kwargs), field_name  # no attributes, no indexes

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Mapping) and "code" in value:
            return sentence(str(value["code"]), value.get("fields") or {})
        kind, _, noun = format_spec.partition(" ")
        if kind == "n":
            return units.count(value, noun)
        if format_spec in ("nodes", "CPUs"):
            return units.listed(format_spec[:-1], str(value))
        own = {"size": units.size, "percent": units.percent, "seconds": units.seconds}
        return own[kind](value) if kind in own else super().format_field(value, format_spec)
