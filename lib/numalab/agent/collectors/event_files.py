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
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from .. import kernel
from ..contract import Reason, reason
from ..errors import Fault

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
    """Read a file of ``events/``. Raises Fault with the line that it does not understand."""
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
        if line in ("PROCESSORS", "EVENTS", "METRICS", "TRAFFIC", "NOTES"):
            section = line
        elif section == "PROCESSORS" and len(words) == 1:
            processors.append(words[0])
        elif section in ("EVENTS", "TRAFFIC") and len(words) == 3 and words[0].isidentifier():
            (events if section == "EVENTS" else traffic).append(Event(*words))
        elif section == "METRICS" and len(words) >= 3 and words[0].isidentifier():
            formulas[words[0]] = " ".join(words[1:])
        elif section == "NOTES":
            notes.append(line)
        else:
            raise Fault(f"events/{name}.txt line {number} is not understood: {line!r}")
    return Group(name, tuple(processors), tuple(events), formulas, "\n".join(notes), tuple(traffic))


@functools.cache
def groups() -> Tuple[Group, ...]:
    """Return all files, by name."""
    folder = importlib.resources.files(__package__).joinpath("events")
    texts = {file.name: file for file in folder.iterdir() if file.name.endswith(".txt")}
    return tuple(
        parse_group(name[: -len(".txt")], texts[name].read_text(encoding="utf-8"))
        for name in sorted(texts)
        if name != "README.txt"
    )


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
    """Return a formula's value and None, or None and the reason. Raises Fault for a bad formula."""

    def of(node: ast.AST) -> Any:
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](of(node.left), of(node.right))
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return float(node.value)  # type: ignore[arg-type]
        if isinstance(node, ast.Name):
            value = values.get(node.id)
            if value is None:
                raise LookupError(node.id)
            return value
        raise Fault(f"the formula {formula!r} has more than numbers, names and + - * / ( )")

    try:
        if len(formula) > _LONGEST_FORMULA:
            raise ValueError
        value = of(ast.parse(formula, mode="eval").body)
    except LookupError as missing:
        return None, reason("counter-missing", name=missing.args[0])
    except ZeroDivisionError:
        return None, reason("nothing-counted", formula=formula)
    except (SyntaxError, ValueError, ArithmeticError, MemoryError, RecursionError):
        raise Fault(f"the formula {formula[:80]!r} cannot be read") from None
    if not math.isfinite(value):
        return None, reason("formula-too-large", formula=formula)
    return value, None
