"""The files ``events/*.txt``: what perf is asked to count, and what is computed from the counts.

There is one readable file for each processor family; ``events/README.txt`` gives their format.
"""

from __future__ import annotations

import ast
import functools
import importlib.resources
import math
import operator
import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

from .. import kernel
from ..contract import Reason, reason
from ..errors import Fault

_SECTIONS = ("PROCESSORS", "EVENTS", "METRICS", "TRAFFIC", "NOTES")
_TRAFFIC_UNITS = ("GB/s", "1/s")
_README = "events/README.txt explains the format"
_LONGEST_FORMULA = 500  # characters: a recorded formula may come from a stranger


class Event(NamedTuple):
    """A line of EVENTS or of TRAFFIC: its name here, its name for perf, and its unit."""

    name: str
    perf_name: str
    unit: str


class Group(NamedTuple):
    """One file. ``formulas`` are by metric: its unit, a blank, and the formula."""

    name: str
    processors: Tuple[str, ...]
    events: Tuple[Event, ...]
    formulas: Mapping[str, str]
    notes: str
    traffic: Tuple[Event, ...] = ()


def parse_group(name: str, text: str) -> Group:
    """Read a file of ``events/``. Raises Fault with the first line that is wrong."""
    processors: List[str] = []
    events: List[Event] = []
    formulas: Dict[str, str] = {}
    traffic: List[Event] = []
    notes: List[str] = []
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        why = None
        if line in _SECTIONS:
            section = line
        elif len(words) == 1 and line.isalpha() and line.isupper() and section != "NOTES":
            why = f"the sections are {', '.join(_SECTIONS)}"
        elif section == "PROCESSORS" and len(words) == 1:
            processors.append(words[0])
            why = _why_no_pattern(words[0])
        elif section in ("EVENTS", "TRAFFIC") and len(words) == 3 and words[0].isidentifier():
            (events if section == "EVENTS" else traffic).append(Event(*words))
            if section == "TRAFFIC" and words[2] not in _TRAFFIC_UNITS:
                why = f"a unit of TRAFFIC is one of {', '.join(_TRAFFIC_UNITS)}"
        elif section == "METRICS" and len(words) >= 3 and words[0].isidentifier():
            formulas[words[0]] = " ".join(words[1:])
            why = _why_no_formula(" ".join(words[2:]))
        elif section == "NOTES":
            notes.append(line)
        else:
            why = f"it is no line of {section}" if section else "it stands before any section"
        if why:
            raise Fault(f"events/{name}.txt, line {number} ({line!r}): {why}", _README)
    return Group(name, tuple(processors), tuple(events), formulas, "\n".join(notes), tuple(traffic))


@functools.cache
def groups() -> Tuple[Group, ...]:
    """Return all files, by name. Raises Fault for the first mistake in any of them."""
    folder = importlib.resources.files(__package__).joinpath("events")
    texts = {file.name: file for file in folder.iterdir() if file.name.endswith(".txt")}
    found = tuple(
        parse_group(name[: -len(".txt")], texts[name].read_text(encoding="utf-8"))
        for name in sorted(texts)
        if name != "README.txt"
    )
    everywhere = {event.name for group in found for event in group.events if group.name == "any"}
    for group in found:
        _refuse_unfinished(group, {"seconds", *everywhere})
    return found


def _refuse_unfinished(group: Group, everywhere: Set[str]) -> None:
    file = f"events/{group.name}.txt"
    if not group.processors:
        raise Fault(f"{file} has no line of PROCESSORS: it would never be used", _README)
    if not group.notes:
        raise Fault(f"{file} has no NOTES: what do its numbers mean, and what not?", _README)
    known = everywhere | {event.name for event in group.events}
    for metric, formula in group.formulas.items():
        unknown = sorted(_names(formula.partition(" ")[2]) - known)
        if unknown:
            raise Fault(
                f"{file}: {metric} needs {unknown[0]!r}, which EVENTS does not have", _README
            )


def _why_no_pattern(text: str) -> Optional[str]:
    try:
        re.compile(text)
    except re.error as error:
        return f"this is no regular expression: {error}"
    return None


def _why_no_formula(formula: str) -> Optional[str]:
    try:
        _names(formula)
    except Fault as fault:
        return fault.what
    return None


def processor(root: str = "/") -> Optional[str]:
    """Return the processor's name as PROCESSORS lines have it; None where cpuinfo does not say."""
    fields: Dict[str, str] = {}
    text = kernel.read_text(os.path.join(root, "proc/cpuinfo")) or ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    if "vendor_id" in fields and fields.get("model", "").isdigit():
        return f"{fields['vendor_id']}-{fields.get('cpu family')}-{int(fields['model']):X}"
    if "CPU implementer" in fields and "CPU part" in fields:
        return f"{fields['CPU implementer']}-{fields['CPU part']}".lower()
    return None


def groups_for(name: Optional[str]) -> List[Group]:
    """Return the groups to count on a processor: the portable one, then its family's if known."""
    portable = [group for group in groups() if group.name == "any"]
    family = [
        group
        for group in groups()
        if group.name != "any" and any(re.fullmatch(one, name or "") for one in group.processors)
    ]
    return portable + family[:1]


def formulas(root: str = "/") -> Dict[str, str]:
    """Return the formulas that hold on this host, by metric, to be recorded with a run.

    Each is written as in its file: the metric's unit, a blank, and the formula.
    """
    found: Dict[str, str] = {}
    for group in groups_for(processor(root)):
        found.update(group.formulas)
    return found


_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(
    formula: str, values: Mapping[str, Optional[float]]
) -> Tuple[Optional[float], Optional[Reason]]:
    """Return a formula's value and None, or None and the reason, as for one that is no formula."""

    def of(node: ast.AST) -> Any:
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](of(node.left), of(node.right))
        if isinstance(node, ast.Constant):
            return float(node.value)  # type: ignore[arg-type]
        assert isinstance(node, ast.Name)
        value = values.get(node.id)
        if value is None:
            raise LookupError(node.id)
        return value

    try:
        value = of(_read(formula))
    except Fault as fault:
        return None, reason("no-formula", what=fault.what)
    except LookupError as missing:
        return None, reason("counter-missing", name=missing.args[0])
    except ZeroDivisionError:
        return None, reason("nothing-counted", formula=formula)
    except ArithmeticError:
        return None, reason("formula-too-large", formula=formula)
    if not math.isfinite(value):
        return None, reason("formula-too-large", formula=formula)
    return value, None


def _read(formula: str) -> ast.expr:
    """Return a formula as a tree of operators, numbers and names; Fault for one that is none."""
    try:
        if len(formula) > _LONGEST_FORMULA:
            raise ValueError
        tree = ast.parse(formula, mode="eval").body
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr)]
        for node in nodes:
            if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
                continue
            if isinstance(node, ast.Constant) and type(node.value) in (int, float):
                float(node.value)  # type: ignore[arg-type]
            elif not isinstance(node, ast.Name):
                more = f"the formula {formula!r} has more than numbers, names and + - * / ( )"
                raise Fault(more)
    except (SyntaxError, ValueError, ArithmeticError, MemoryError, RecursionError):
        raise Fault(f"the formula {formula[:80]!r} cannot be read") from None
    return tree


def _names(formula: str) -> Set[str]:
    return {node.id for node in ast.walk(_read(formula)) if isinstance(node, ast.Name)}
