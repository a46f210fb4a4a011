"""What a binding of an experiment file or a command line means: its name and its argument.

The argument of a binding has one of six forms: nothing, nodes, a pair of nodes, a number of cores,
instances, or a list of CPUs. Which binding takes which is said in `kinds`. The id of a cell is a
binding too: "remote:0-1", "cores:8-spread", "cpus:0-31,mem=0".
"""

from __future__ import annotations

import difflib
import re
from typing import Any, List, Mapping, NamedTuple, Sequence, Tuple

from .. import cpulist
from ..errors import Fault

ROOMIEST = "roomiest"  # in place of a node's number: the node with the most memory
UNBOUND = "unbound"  # in place of a node's number: no CPU policy
MOST_INSTANCES = 4  # that "few" means
_WITHIN = ("node", "socket", "packed", "spread")
_COUNTS = ("node", "node-cpus", "few", "doubling")  # of cores, beside a number
_OVER = ("ranges", "nodes", "spread", "unbound")  # how instances divide a host's CPUs
_PAIR = re.compile(r"(\d+)\s*(?:->|→|-)\s*(\d+)\Z")

Argument = Tuple[Any, str]  # as the resolver takes it, and as it is spelt in an id


class Binding(NamedTuple):
    """A binding as asked for: its name, its argument (None: none given), its one spelling."""

    name: str
    argument: Any
    text: str


def split(asked: Any, names: Sequence[str]) -> Tuple[str, Any]:
    """Return the name and the raw argument of a binding; Fault for what is none of `names`."""
    if isinstance(asked, str):
        name, _, argument = asked.strip().partition(":")
        asked = {name.strip(): argument.strip() or None}
    if not isinstance(asked, Mapping) or not all(isinstance(key, str) for key in asked):
        raise Fault(f"{asked!r} is not a binding", f"known bindings: {', '.join(names)}")
    if len(asked) > 1 and "cpus" in asked:  # {cpus: 0-31, mem: 0}
        return "cpus", asked
    if len(asked) != 1:
        raise Fault(f"{asked!r} is not a binding: it must have one name",
                    f"known: {', '.join(names)}")  # fmt: skip
    ((name, argument),) = asked.items()
    first, _, rest = str(argument).partition(":")
    if f"{name}:{first}" in names:  # {interleave: all}, interleave:all:0
        return f"{name}:{first}", rest or None
    if name not in names:
        raise Fault(f"there is no binding {name!r}", suggestion(name, names))
    return name, argument


# --- the forms of an argument -----------------------------------------------------------------


def nothing(name: str, given: Any) -> Argument:
    """Refuse any argument."""
    raise Fault(f"the binding {name!r} takes no argument ({given!r})", f"write: {name}")


def nodes(name: str, given: Any) -> Argument:
    """A node, a list of nodes ("0-1,4"), or the roomiest."""
    if given == ROOMIEST:
        return ROOMIEST, ROOMIEST
    if isinstance(given, bool) or not isinstance(given, (int, str)):
        raise Fault(f"{name}: {given!r} is not a node", f"write {name}: 0")
    numbers = _listed(name, given)
    if not numbers:
        raise Fault(f"the binding {name!r} names no node", f"write {name}: 0, or only {name}")
    return tuple(numbers), cpulist.format(numbers)


def nodes_or_unbound(name: str, given: Any) -> Argument:
    """As `nodes`, or "unbound": no CPU policy."""
    return (UNBOUND, UNBOUND) if given == UNBOUND else nodes(name, given)


def pair(name: str, given: Any) -> Argument:
    """Two nodes ("0->1": CPUs, memory), or a choice of such pairs."""
    text = str(given)
    match = _PAIR.match(text)
    if match:
        here, there = int(match.group(1)), int(match.group(2))
        if here == there:
            raise Fault(f"{name} {text}: node {here} is not remote from itself",
                        f"write local: {here}")  # fmt: skip
        return (here, there), f"{here}-{there}"
    choices = ("every", "nearest", "farthest", ROOMIEST)
    if text not in choices:
        raise Fault(
            f"{name}: {text!r} is neither a pair of nodes nor a choice of them",
            f"a pair is CPUs' node, memory's node: {name}:0-1; {suggestion(text, choices)}",
        )
    return (None, "") if text == "every" else (text, text)


def cores(name: str, given: Any) -> Argument:
    """{count: 8, within: node}, or "8-node": how many cores, and where they are taken."""
    count, within = _counted(name, given, "within", _WITHIN)
    if count not in _COUNTS and not _at_least(1, count):
        raise Fault(
            f"{name}: count {count!r} is not a number of cores",
            f"write {name}: {{count: 8, within: {'|'.join(_WITHIN)}}}; count: node means as many "
            "as the smallest node has, node-cpus as many as it has CPUs, doubling 1, 2, 4 and so "
            "on up to all, few a handful of these",
        )
    return (count, within), f"{count}-{within}"


def instances(name: str, given: Any) -> Argument:
    """{count: 3, over: nodes}, or "3-nodes", "nodes": several servers, and what each has."""
    count, over = _counted(name, given, "over", _OVER)
    count = "few" if count in (None, "") else count
    if count != "few" and not _at_least(2, count):
        raise Fault(
            f"{name}: count {count!r} is not a number of instances from 2",
            f"without count as many as there are nodes, from 2 to {MOST_INSTANCES}",
        )
    return (count, over), over if count == "few" else f"{count}-{over}"


def _counted(name: str, given: Any, key: str, choices: Sequence[str]) -> Tuple[Any, Any]:
    """Return the count and the choice of {count: 8, KEY: node}, or of "8-node"."""
    if isinstance(given, str):
        count, _, last = given.rpartition("-")
        given = {"count": int(count) if count.isdecimal() else count, key: last}
    if not isinstance(given, Mapping):
        example = f"write {name}: {{count: 8, {key}: {'|'.join(choices)}}}"
        raise Fault(f"the binding {name!r} needs a count and where they are placed", example)
    _known_keys(given, ("count", key), name)
    choice = given.get(key)
    if choice not in choices:
        number = 8 if key == "within" else 3
        raise Fault(
            f"{name}: {key} {choice!r} is unknown",
            f"write it like {name}:{number}-{choices[0]}; {suggestion(str(choice), choices)}",
        )
    return given.get("count"), choice


def cpu_list(name: str, given: Any) -> Argument:
    """{cpus: 0-31, mem: 0}, or "0-31,mem=0": CPUs, and the nodes of the memory if it is bound."""
    if not isinstance(given, Mapping):
        listed, _, memory = str("" if given is None else given).partition(",mem=")
        given = {"cpus": listed, "mem": memory or None}
    _known_keys(given, ("cpus", "mem"), name)
    cpus = cpulist.format(_listed(name, given["cpus"]))
    mem = None
    if given.get("mem") is not None:
        mem = cpulist.format(_listed(name, given["mem"]))
    if not cpus or mem == "":
        raise Fault(f"the binding {given!r} names no CPUs or no nodes", "write cpus: 0-31")
    return (cpus, mem), f"{cpus},mem={mem}" if mem else cpus


def _listed(name: str, given: Any) -> List[int]:
    try:
        return cpulist.parse(str(given))
    except Fault as fault:
        raise Fault(f"the binding {name!r}: {fault.what}", fault.hint) from None


def _at_least(least: int, count: Any) -> bool:
    return isinstance(count, int) and not isinstance(count, bool) and count >= least


def _known_keys(given: Mapping[str, Any], known: Sequence[str], name: str) -> None:
    for key in given:
        if key not in known:
            raise Fault(f"{name} has an unknown key {key!r}", suggestion(str(key), known))


def suggestion(word: str, known: Sequence[str]) -> str:
    """Return what may have been meant, and all that is known."""
    near = difflib.get_close_matches(word, known, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"known: {', '.join(known)}"
