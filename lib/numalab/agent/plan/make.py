"""A request becomes a plan: the tool, the cells with sizes as numbers, every trial in its order.

Design of the trials: randomised complete blocks (Fisher, The Design of Experiments, 1935,
ch. IV). Every block holds each cell once in a random order of its own, so that slow drift of
the host falls on all cells alike, and results are paired by block.
"""

from __future__ import annotations

import copy
import difflib
import random
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from .. import SCHEMA, cpulist, drivers
from ..errors import Fault, NotHere
from ..paths import published
from ..trial import settings as changes
from . import bindings

Cell = Dict[str, Any]
Plan = Dict[str, Any]

FEWEST_BLOCKS = 6  # the signed-rank test of 5 pairs cannot reach p < 0.05
TRIAL_OVERHEAD_S = 1.0  # starting the tool, proving the placement, reading the result
_NUMACTL = "numactl is not installed (apt install numactl, or dnf install numactl)"
_NUMBER = (int, float)

# key: (types, default); a default of ... is a key that must be there
_KEYS: Dict[str, Tuple[Any, Any]] = {
    "schema": (int, ...),
    "experiment": (str, ...),
    "question": (str, ""),
    "profile": (str, ...),
    "host": (str, ...),
    "tool": (dict, ...),
    "bindings": (list, ...),
    "baseline": ((str, dict, type(None)), None),
    "control": (bool, True),
    "blocks": (int, ...),
    "seed": (int, ...),
    "sweep": ((dict, list, type(None)), None),
    "cases": (list, []),
    "headline": ((str, type(None)), None),
    "measure": (dict, {}),
    "collectors": ((bool, dict), True),
    "changes": (dict, {}),
    "time_limit_s": ((*_NUMBER, type(None)), None),
}
_TOOL_KEYS = {"name": (str, ...), "prefer": (list, []), "options": (dict, {})}
_CASE_KEYS = {
    "name": (str, ...),
    "says": (str, ""),
    "bindings": ((list, type(None)), None),
    "options": (dict, {}),
    "changes": (dict, {}),
}
_CASE_NAME = re.compile(r"[a-z0-9][a-z0-9_.+-]*\Z")
_SWEEP_KEYS = {"option": (str, ...), "values": (list, ...), "bindings": (list, ...)}
_COLLECTOR_KEYS = {"perf": (bool, True), "interval_s": (_NUMBER, 1.0)}


def make(
    request: Dict[str, Any], topology: Dict[str, Any], environment: Optional[Dict[str, Any]] = None
) -> Plan:
    """Return the plan of a request on a topology; nothing is run but the tool's own search.

    ``environment`` is ``{"numactl": path or None, "root": where settings are, or None}``; without
    it they are looked for when the topology is this host's own (``root`` "/"), else numactl and
    every setting are taken to be there.
    Raises Fault for a request that is wrong, an explicit binding that the host cannot meet,
    and when no tool of ``prefer`` can be used.
    """
    request = check(request)
    topology = _set_aside(request, topology)
    wanted = [*request["bindings"]]
    wanted += [one for case in request["cases"] for one in case["bindings"] or []]
    cells, skipped, warnings = bindings.resolve(wanted, topology, request["baseline"])
    if environment is None and topology["root"] == "/":
        environment = {"numactl": shutil.which("numactl"), "root": "/"}
    cells, absent = _in_cases(request, topology, cells, (environment or {}).get("root"))
    skipped += absent
    if environment is not None and not environment["numactl"]:
        skipped += [_skip(cell, _NUMACTL) for cell in cells if cell["numactl"]]
        cells = [cell for cell in cells if not cell["numactl"]]

    tool, cells, unfit = _prepare_with_a_tool(request, topology, cells)
    skipped += unfit
    _say_differences(cells)
    first = next(iter(request["cases"]), None)
    if first and cells and not any(cell["role"] == "baseline" for cell in cells):
        warnings.append(
            f"nothing is compared: the baseline is not measured in the first case, {first['name']}"
        )
    if request["control"]:
        twin = bindings.control(cells)
        if twin:
            first = next(i for i, cell in enumerate(cells) if cell["id"] == twin["baseline"])
            cells.insert(first + 1, twin)
        elif cells:
            warnings.append("no A/A control: no baseline cell exists on this host")
    warnings += _warnings(request, topology, cells)
    order = trial_order(cells, request["blocks"], request["seed"])
    blocks = request["blocks"]
    estimate = {
        key: round(blocks * sum(cell["timing"][key] for cell in cells), 3)
        for key in ("warmup_s", "measure_s", "total_s")
    }
    plan = {
        "schema": SCHEMA,
        "request": request,
        "tool": tool,
        "cells": cells,
        "skipped": skipped,
        "order": order,
        "warnings": warnings,
        "estimate": estimate,
    }
    if "client" in topology:
        plan["client"] = topology["client"]
    driver = drivers.driver(tool["name"])
    if cells and hasattr(driver, "outlay"):
        plan["outlay"] = driver.outlay(cells)
        estimate["total_s"] = round(estimate["total_s"] + plan["outlay"]["prepare_s"], 3)
    return plan


def _set_aside(request: Dict[str, Any], topology: Dict[str, Any]) -> Dict[str, Any]:
    """Return the topology without the CPUs that a tool's client has for itself in every cell.

    Its ``client`` then says which these are, or why there are none (``set_aside`` of the driver).
    """
    driver = drivers.driver(request["tool"]["prefer"][0])
    if not hasattr(driver, "set_aside"):
        return topology
    client = driver.set_aside(request["tool"]["options"], request["bindings"], topology)
    its = set(cpulist.parse(client["cpus"] or ""))
    cpus = [{**c, "allowed": c["allowed"] and c["cpu"] not in its} for c in topology["cpus"]]
    return {**topology, "cpus": cpus, "client": client}


def trial_order(cells: Sequence[Cell], blocks: int, seed: int) -> List[Dict[str, Any]]:
    """Return every trial in running order: ``{"trial", "block", "position", "cell"}``, from 1.

    A block is a permutation of the cells, drawn uniformly from those that do not begin with
    the binding (where there is only one: the cell) that the block before ended with. It
    depends on the seed and on the number and bindings of the cells alone, and is the same in
    every version of Python: ``random.Random(seed).random()`` is what the library promises to
    keep.
    """
    rng = random.Random(seed)
    order: List[Dict[str, Any]] = []
    last: Optional[Cell] = None
    for block in range(1, blocks + 1):
        first_choices = list(cells)
        for key in ("binding", "id"):
            different = [c for c in cells if last is None or c[key] != last[key]]
            if different:
                first_choices = different
                break
        rest = sorted(((rng.random(), i, cell) for i, cell in enumerate(cells)), key=_draw)
        row = [cell for _, _, cell in rest]
        if row:
            first = first_choices[int(rng.random() * len(first_choices))]
            row = [first] + [cell for cell in row if cell is not first]
            last = row[-1]
        for position, cell in enumerate(row, start=1):
            trial = len(order) + 1
            order.append({"trial": trial, "block": block, "position": position, "cell": cell["id"]})
    return order


def _draw(item: Tuple[float, int, Cell]) -> Tuple[float, int]:
    return item[:2]


def trials(plan: Plan) -> Iterator[Tuple[Dict[str, Any], Cell]]:
    """Yield every trial of a plan in running order with its cell."""
    cells = {cell["id"]: cell for cell in plan["cells"]}
    for entry in plan["order"]:
        yield entry, cells[entry["cell"]]


def left_s(plan: Plan, done: Any = ()) -> float:
    """Return the planned seconds of those trials whose numbers are not in ``done``."""
    return sum(
        cell["timing"]["total_s"] for entry, cell in trials(plan) if entry["trial"] not in done
    )


def settings_of(plan: Plan, cell: Cell) -> Dict[str, str]:
    """Return the host settings under which a cell's trials run, by name."""
    return cell["changes"] if "changes" in cell else dict(plan["request"].get("changes") or {})


def settings(plan: Plan) -> Dict[str, List[str]]:
    """Return every host setting that any cell changes, with the values that it is given."""
    found: Dict[str, List[str]] = {}
    for cell in plan["cells"]:
        for name, value in settings_of(plan, cell).items():
            if value not in found.setdefault(name, []):
                found[name].append(value)
    return found


def settings_text(plan: Plan) -> str:
    """Return every host setting with its values for a reader: ``vm.swappiness = 0 or 60``."""
    return ", ".join(f"{name} = {' or '.join(v)}" for name, v in settings(plan).items())


# --- the request ------------------------------------------------------------------------------


def check(request: Any) -> Dict[str, Any]:
    """Return a request with its defaults filled in; Fault names the first thing that is wrong."""
    request = _keys(request, _KEYS, "the request")
    if request["schema"] != SCHEMA:
        raise Fault(
            f"the request has schema {request['schema']}, this agent knows {SCHEMA}",
            "use the same version of numalab on both sides",
        )
    request["tool"] = tool = _keys(request["tool"], _TOOL_KEYS, "tool")
    tool["prefer"] = tool["prefer"] or [tool["name"]]
    if not all(isinstance(name, str) for name in tool["prefer"]):
        raise Fault(f"tool: prefer {tool['prefer']!r} is not a list of names", "write [probe]")
    if not request["bindings"]:
        raise Fault(
            "the request names no bindings: there is nothing to measure",
            f"known: {', '.join(bindings.NAMES)}",
        )
    if request["blocks"] < 1:
        raise Fault(f"blocks is {request['blocks']}, but must be 1 or more", "6 or more decide")
    limit = request["time_limit_s"]
    if limit is not None and limit <= 0:
        raise Fault(f"time_limit_s is {limit}, but must be above 0", "leave it out for no limit")
    if request["collectors"] is True:
        request["collectors"] = {}
    if isinstance(request["collectors"], dict):
        collectors = _keys(request["collectors"], _COLLECTOR_KEYS, "collectors")
        if collectors["interval_s"] <= 0:
            raise Fault(
                f"collectors: interval_s is {collectors['interval_s']}, but must be above 0",
                "the usual one is 1.0",
            )
        request["collectors"] = collectors
    _check_changes(request["changes"], "changes")
    request["cases"] = _checked_cases(request["cases"])
    if request["cases"] and _sweeps(request):
        raise Fault("the request has cases and a sweep", "write the sweep's values as cases")
    names = {bindings.parse(b).name for b in request["bindings"]}
    if request["baseline"] not in (None, "cores", "cpus"):
        names.add(bindings.parse(request["baseline"]).name)
    for sweep in _sweeps(request):
        _keys(sweep, _SWEEP_KEYS, "sweep")
        for value in sweep["values"]:
            if isinstance(value, bool) or not isinstance(value, (*_NUMBER, str)):
                raise Fault(f"sweep: {value!r} is not a value", "write numbers or words")
        for asked in map(bindings.parse, sweep["bindings"]):
            if asked.name not in names:
                raise Fault(f"sweep: {asked.text} is not among the bindings", "add it to bindings")
    return request


def _check_changes(given: Dict[Any, Any], where: str) -> None:
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise Fault(f"{where}: {name!r}: {value!r} is not a text", 'write it like "0"')
        changes.path_of(name.rstrip("?"))


def _present(values: Dict[str, str], root: Optional[str]) -> Dict[str, str]:
    """Return settings by their plain names; one marked with ``?`` only where the host has it."""
    found = {}
    for name, value in values.items():
        plain = name.rstrip("?")
        if plain == name or not root or not changes.absent(plain, Path(root)):
            found[plain] = value
    return found


def _checked_cases(given: List[Any]) -> List[Dict[str, Any]]:
    cases = []
    for entry in given:
        case = _keys(entry, _CASE_KEYS, "a case")
        name = case["name"]
        if not _CASE_NAME.match(name) or name == "control":
            raise Fault(
                f"{name!r} cannot name a case",
                "use small letters, digits and _ . + -; control is the A/A control's",
            )
        case["says"] = case["says"] or name
        for other in cases:
            for key in ("name", "says"):
                if other[key] == case[key]:
                    raise Fault(f"two cases have the {key} {case[key]!r}", "each needs its own")
        _check_changes(case["changes"], f"case {name}: changes")
        for binding in case["bindings"] or []:
            bindings.parse(binding)
        cases.append(case)
    return cases


def _sweeps(request: Dict[str, Any]) -> List[Dict[str, Any]]:
    sweep = request["sweep"]
    return [sweep] if isinstance(sweep, dict) else list(sweep or [])


def _keys(given: Any, known: Dict[str, Tuple[Any, Any]], where: str) -> Dict[str, Any]:
    if not isinstance(given, dict):
        raise Fault(f"{where} is {_shown(given)}, not a mapping of keys", None)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise Fault(f"{where} has an unknown key {key!r}", hint + f"known: {', '.join(known)}")
    result = {}
    for key, (types, default) in known.items():
        if key not in given and default is ...:
            raise Fault(f"{where} lacks the key {key!r}", None)
        value = given.get(key, default)
        allowed = types if isinstance(types, tuple) else (types,)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            names = " or ".join(_WORDS[t] for t in allowed if t is not float or int not in allowed)
            raise Fault(f"{where}: {key} is {_shown(value)}, but must be {names}", None)
        result[key] = value.copy() if isinstance(value, (dict, list)) else value
    return result


_WORDS = {
    int: "a number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
    type(None): "nothing",
}


def _shown(value: Any) -> str:
    return textwrap.shorten(repr(value), 60, placeholder="…")


# --- cases ------------------------------------------------------------------------------------


def _in_cases(
    request: Dict[str, Any], topology: Dict[str, Any], cells: List[Cell], root: Optional[str]
) -> Tuple[List[Cell], List[Dict[str, str]]]:
    """Return every cell in each case of its binding, and the skips of what this host cannot set.

    Only the first case's cells of the baseline binding are baselines. ``root`` is where settings
    are looked for, None to take them to be there.
    """
    values = _present(request["changes"], root)
    for cell in cells:
        cell.update(case=None, changes=dict(values))
    if not request["cases"]:
        why = _absent(values, root)
        return ([], [_skip(cell, why) for cell in cells]) if why else (cells, [])
    baselines = [cell["id"] for cell in cells if cell["role"] == "baseline"]
    made: List[Cell] = []
    skipped: List[Dict[str, str]] = []
    for case in request["cases"]:
        first = case is request["cases"][0]
        ids = _asked_for(request, topology, case["bindings"])
        values = _present({**request["changes"], **case["changes"]}, root)
        why = _absent(values, root)
        for cell in cells:
            if cell["id"] not in ids:
                continue
            alone = [cell["id"]] == baselines
            one = {
                **copy.deepcopy(cell),
                "id": f"{cell['id']}/{case['name']}",
                "label": case["says"] + ("" if alone else f", {cell['label']}"),
                "role": cell["role"] if first else "cell",
                "case": {"name": case["name"], "says": case["says"]},
                "changes": values,
            }
            if why:
                skipped.append(_skip(one, why))
            else:
                made.append(one)
    return made, skipped


def _absent(values: Dict[str, str], root: Optional[str]) -> str:
    """Return which of these settings the host lacks, in words; "" when it has all."""
    if not root:
        return ""
    return "; ".join(filter(None, (changes.absent(name, Path(root)) for name in values)))


def _asked_for(
    request: Dict[str, Any], topology: Dict[str, Any], asked: Optional[List[Any]]
) -> Set[str]:
    """Return the ids of the cells of a case's bindings; those of the experiment where None."""
    found = bindings.resolve(asked or request["bindings"], topology, request["baseline"])[0]
    if asked:  # a baseline that is only compared with is no part of the case
        own = {cell["id"] for cell in bindings.resolve(asked, topology)[0]}
        found = [cell for cell in found if cell["role"] != "baseline" or cell["id"] in own]
    return {cell["id"] for cell in found}


# --- tool and sizes ---------------------------------------------------------------------------


def _prepare_with_a_tool(
    request: Dict[str, Any], topology: Dict[str, Any], cells: List[Cell]
) -> Tuple[Dict[str, Any], List[Cell], List[Dict[str, str]]]:
    """Return the plan's record of the first tool that can be used, the cells, and the skips.

    A tool of ``prefer`` is passed over when it is not there, and when it accepts no cell at all
    or no value of a sweep (it lacks an option that is asked for); the record says why.
    """
    asked = request["tool"]
    passed: List[Fault] = []
    for name in asked["prefer"]:
        driver = drivers.driver(name)
        try:
            found = driver.find(asked["options"])
        except Fault as fault:
            passed.append(fault)
            continue
        maker = _Preparation(driver, request, topology)
        own = copy.deepcopy(cells)
        own = [c for c in own if c["role"] != "baseline" or maker.prepare(c)]
        bindings.link(own)
        own = [c for c in own if c["role"] == "baseline" or maker.prepare(c)]
        try:
            wrong = [fault for fault in maker.faults if not isinstance(fault, NotHere)]
            if wrong and not own:
                raise wrong[0]
            own = maker.sweep(own)
        except Fault as fault:
            passed.append(fault)
            continue
        why = "; ".join(fault.what for fault in passed) or None
        shown = {k: published(v) if isinstance(v, str) else v for k, v in found.items()}
        record = {**shown, "name": name, "why": why}
        return record, own, maker.skipped
    if len(passed) == 1:
        raise passed[0]
    raise Fault(
        f"no tool can measure {asked['name']}: " + "; ".join(fault.what for fault in passed),
        " ".join(fault.hint for fault in passed if fault.hint) or None,
    )


class _Preparation:
    """Gives cells their options, sizes and timing by the driver; keeps what had to be skipped."""

    def __init__(self, driver: Any, request: Dict[str, Any], topology: Dict[str, Any]) -> None:
        self.driver = driver
        self.request = request
        self.topology = topology
        self.usable = bindings.any_cpus(topology)
        self.skipped: List[Dict[str, str]] = []
        self.faults: List[Fault] = []
        self._ready: Dict[str, Cell] = {}

    def prepare(self, cell: Cell) -> bool:
        """Complete a cell in place; False (and a skip) when it cannot be measured here."""
        options = dict(self.request["tool"]["options"])
        for case in self.request["cases"]:
            if cell["case"] and case["name"] == cell["case"]["name"]:
                options.update(case["options"])
        base = self._ready.get(cell["baseline"])
        if cell["sweep"]:
            options[cell["sweep"]["option"]] = cell["sweep"]["value"]
        swept = cell["sweep"] and cell["sweep"]["option"] == "threads"
        if cell["cpus"] is None and base and not swept and "threads" in base["options"]:
            # Without a CPU policy of its own: the same work as what it is compared with.
            options["threads"] = base["options"]["threads"]
        cpus = cell["cpus"] or self.usable
        nodes = bindings.first_touch_nodes(self.topology, cell)
        try:
            if "threads" in options:
                options["threads"] = bindings.thread_count(
                    options["threads"], self.topology, self._own_cpus(cell)
                )
            ready = self.driver.prepare(options, self.topology, cpus, nodes)
        except Fault as fault:
            self.faults.append(fault)
            self.skipped.append(_skip(cell, str(fault)))
            return False
        instances = cell.get("instances") or []
        for one in instances:
            _, room = bindings.room_bytes(self.topology, one)
            if room is not None and ready["need_bytes"] > room:
                needed = f"{one['name']} needs {size(ready['need_bytes'])}"
                self.skipped.append(_skip(cell, f"{needed}, its memory is {size(room)} at most"))
                return False
        need = ready["need_bytes"] * max(1, len(instances))
        free, room = bindings.room_bytes(self.topology, cell)
        if room is not None and need > room:
            where = f"nodes {nodes}" if "," in nodes or "-" in nodes else f"node {nodes}"
            reason = f"it needs {size(need)}, but {where} can hold {size(room)} at most"
            self.skipped.append(_skip(cell, reason))
            return False
        cell["options"] = ready["options"]
        if hasattr(self.driver, "expects"):
            memory = self.driver.expects(ready["options"], cell, self.topology)
            if memory:
                cell["expects"] = {**cell["expects"], "memory": memory}
        if ready.get("full_node") and cell["expects"]["memory"].get("rule") == "shares":
            # What the node takes is what is asked.
            why = "the tool fills a node, which can take no equal share then"
            cell["expects"] = {**cell["expects"], "memory": {"proof": "outcome", "why": why}}
        cell["need_bytes"] = need
        cell["notes"] += ready["notes"]
        if free is not None and need > free:
            cell["notes"].append(
                f"needs {size(need)}, free is {size(free)}: page cache must make room first"
            )
        threads = cell["options"].get("threads")
        cell["threads"] = threads if isinstance(threads, int) else len(cpulist.parse(cpus))
        timing = self.driver.timing(cell["options"])
        cell["timing"] = {k: timing.get(k, 0.0) for k in ("setup_s", "warmup_s", "measure_s")}
        cell["timing"]["total_s"] = sum(cell["timing"].values()) + TRIAL_OVERHEAD_S
        self._ready[cell["id"]] = cell
        return True

    def _own_cpus(self, cell: Cell) -> str:
        """Return the CPUs that "all" or "half" of the threads refers to."""
        if cell["cpus"] is not None:
            return cell["cpus"]
        base = self._ready.get(cell["baseline"])
        return (base and base["cpus"]) or self.usable

    def sweep(self, cells: List[Cell]) -> List[Cell]:
        """Return the cells, each followed by its copies for the values of the sweeps.

        A value that a cell has anyway makes no copy. A copy is compared with the copy of its
        cell's baseline that has the same value; where the option binds memory (the driver's
        BINDING_OPTIONS) and there is none, with the baseline itself. Copies of a baseline are
        compared with nothing: a scaling curve compares numbers of threads, not bindings, and
        shows them as they are.
        Raises Fault when the tool accepts no value of a sweep.
        """
        result = {cell["id"]: [cell] for cell in cells}
        for sweep in _sweeps(self.request):
            option = sweep["option"]
            swept, _, _ = bindings.resolve(sweep["bindings"], self.topology)
            ids = {cell["id"] for cell in swept}
            before, made = len(self.faults), 0
            # Baselines first: their copies are what the others are compared with.
            for cell in sorted(cells, key=lambda c: c["role"] != "baseline"):
                if cell["id"] in ids:
                    copies = self._copies(cell, option, sweep["values"])
                    result[cell["id"]] += copies
                    made += len(copies)
            if not made and len(self.faults) > before:
                raise self.faults[before]
        return [cell for group in result.values() for cell in group]

    def _copies(self, cell: Cell, option: str, values: Sequence[Any]) -> List[Cell]:
        copies: List[Cell] = []
        own_cpus = self._own_cpus(cell)
        seen = [cell["options"].get(option)]
        for value in values:
            if option == "threads":
                value = bindings.thread_count(value, self.topology, own_cpus)
            elif hasattr(self.driver, "resolve"):
                value = self.driver.resolve(option, value, self.topology)
            suffix = f"/{option}={value}"
            one = {
                **cell,
                "id": cell["id"] + suffix,
                "label": f"{cell['label']}, {option} {value}",
                "sweep": {"option": option, "value": value},
                "notes": [],
                "baseline": None,
            }
            if value in seen:
                continue
            seen.append(value)
            if option == "threads" and value > len(cpulist.parse(own_cpus)):
                threads = _count(len(cpulist.parse(own_cpus)), "hardware thread")
                reason = f"its CPUs have {threads}"
                self.skipped.append(_skip(one, reason))
                continue
            base = self._ready.get(cell["baseline"])
            if base:
                twin = self._ready.get(base["id"] + suffix)
                if base["options"].get(option) == value:
                    twin = base
                if twin is None and option in getattr(self.driver, "BINDING_OPTIONS", ()):
                    twin = base  # the option is no other load: it is itself a way of binding
                one["baseline"] = twin["id"] if twin else None
            if not self.prepare(one):
                continue
            if any(one["options"] == other["options"] for other in [cell, *copies]):
                del self._ready[one["id"]]
                continue
            copies.append(one)
        return copies


def _skip(cell: Cell, reason: str) -> Dict[str, str]:
    return {"binding": cell["binding"], "cell": cell["id"], "reason": reason}


def _say_differences(cells: Sequence[Cell]) -> None:
    """Note what differs between a cell and what it is compared with, beyond one of the two."""
    by_id = {cell["id"]: cell for cell in cells}
    for cell in cells:
        if cell["role"] == "baseline":
            continue
        base = by_id.get(cell["baseline"])
        if base is None:
            if any(c["role"] == "baseline" for c in cells):
                cell["notes"].append("compared with nothing: no baseline cell matches it")
            continue
        if cell["cpus"] != base["cpus"] and cell["memory"] != base["memory"]:
            cell["notes"].append(
                f"compared as a whole with {base['id']}: CPUs and memory policy both differ"
            )
        if cell["case"]:
            continue  # to differ in options is what a case is for: ``terms`` shows them
        for option, mine in differing(cell, base).items():
            its = base["options"].get(option)
            cell["notes"].append(f"{option} is {mine} here, {its} in {base['id']}")


def differing(cell: Cell, base: Cell) -> Dict[str, Any]:
    """Return the options of a cell that are not those of another cell, None for one it lacks."""
    names = sorted(set(cell["options"]) | set(base["options"]))
    mine, its = cell["options"], base["options"]
    return {name: mine.get(name) for name in names if mine.get(name) != its.get(name)}


def terms(plan: Plan, cell: Cell) -> str:
    """Return what is special about a case's cell in words: its options and its host settings.

    Options are named where they are not those of the cell that it is compared with, or, of that
    cell itself, where the case sets them; settings unless all cells have them (``common``).
    """
    base = next((one for one in plan["cells"] if one["id"] == cell["baseline"]), None)
    cases = {case["name"]: case for case in plan["request"].get("cases") or []}
    if base is not None:
        options = differing(cell, base)
    else:
        own = cases.get((cell.get("case") or {}).get("name"), {}).get("options") or {}
        options = {name: cell["options"].get(name) for name in own}
    words = {None: "not set", True: "yes", False: "no"}
    said = [
        f"{name}: {words[value] if value is None or isinstance(value, bool) else value}"
        for name, value in options.items()
    ]
    shared = common(plan)
    said += [
        f"{name} = {value}"
        for name, value in settings_of(plan, cell).items()
        if shared.get(name) != value
    ]
    return ", ".join(said)


def common(plan: Plan) -> Dict[str, str]:
    """Return the host settings under which all cells of a plan are measured."""
    found = [settings_of(plan, cell).items() for cell in plan["cells"]]
    return dict(one for one in found[0] if all(one in other for other in found)) if found else {}


def _warnings(
    request: Dict[str, Any], topology: Dict[str, Any], cells: Sequence[Cell]
) -> List[str]:
    warnings = []
    if not cells:
        warnings.append("nothing of this can be measured on this host, for the reasons below")
    elif request["blocks"] < FEWEST_BLOCKS and any(cell["baseline"] for cell in cells):
        warnings.append(
            f"{_count(request['blocks'], 'block')} can decide nothing, {FEWEST_BLOCKS} are the "
            "fewest: results are shown as points and no claim is judged"
        )
    memory_nodes = bindings.Host(topology).memory_nodes
    if len(topology["nodes"]) == 1:
        warnings.append(
            "this host has one NUMA node: remote memory, interleaving and everything else that "
            "needs a second node cannot be tested here"
        )
    elif len(memory_nodes) < 2:
        warnings.append(
            "fewer than two nodes have memory that may be used: local and remote memory cannot "
            "be compared on the same CPUs here"
        )
    what = settings_text({"request": request, "cells": cells})
    if what:
        warnings.append(f"changes the host while it measures, with --allow-host-changes: {what}")
    return warnings


# --- for a reader -----------------------------------------------------------------------------


def text(plan: Plan, width: int = 100) -> str:
    """Return a plan as ``numalab plan`` prints it, wrapped to ``width`` columns."""
    request, tool, cells = plan["request"], plan["tool"], plan["cells"]
    lines: List[str] = []

    def put(line: str, indent: str = "", hang: str = "") -> None:
        lines.extend(
            textwrap.wrap(
                line,
                max(width, 40),
                initial_indent=indent,
                subsequent_indent=hang or indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )

    put(f"{request['experiment']} ({request['profile']}) on {request['host']}")
    if request["question"]:
        put(request["question"])
    version = f" {tool['version']}" if tool.get("version") else ""
    path = f" ({tool['path']})" if tool.get("path") else ""
    why = f", because {tool['why']}" if tool["why"] else ""
    put(f"tool: {tool['name']}{version}{path}{why}")
    if plan.get("client"):
        cpus, why = plan["client"]["cpus"], plan["client"]["why"]
        if plan["client"].get("host"):
            put(f"client: on {plan['client']['host']}")
        else:
            put(f"client: CPUs {cpus}, in every cell" if cpus else f"client shares CPUs: {why}")
    if plan.get("outlay"):
        seconds = plan["outlay"]["prepare_s"]
        once = f"; to be prepared once, about {duration(seconds)}" if seconds else "; prepared"
        put(plan["outlay"]["says"] + once)
    put(f"plan: {summary(plan)}; seed {request['seed']}")
    for warning in plan["warnings"]:
        put(warning, "⚠ ", "  ")
    for name, value in common(plan).items():
        put(f"every trial runs with {name} = {value}", "· ", "  ")
    labels = max((len(cell["label"]) for cell in cells), default=0)
    column = " " * (min(labels, 30) + 2)
    shown: Dict[str, str] = {}
    said: Set[str] = set()
    for cell in cells:
        lines.append("")
        label = f"{cell['label']:<{len(column)}}"
        if len(cell["label"]) + 2 > len(column):
            lines.append(cell["label"])
            label = column
        if cell["role"] == "control" or cell["sweep"]:
            first = cell["baseline"] if cell.get("case") else cell["id"].partition("/")[0]
            threads = _count(cell["threads"], "thread")
            put(f"all as {first}; {threads}{_against(cell)}", label, column)
            continue
        binding = cell["id"].partition("/")[0]
        if binding in shown:  # in another case
            put(f"bound as {shown[binding]}{_against(cell)}", label, column)
        else:
            put(_where(cell), label, column)
            for one in cell.get("instances") or [cell]:
                name = f"{one['name']}: " if "name" in one else ""
                put(name + (" ".join(one["numactl"]) or "started without numactl"), column)
                if not name or one["memory"]["policy"] == "bind":
                    put(_proof(one), column)
        shown.setdefault(binding, cell["id"])
        special = terms(plan, cell) if cell.get("case") else ""
        if special:
            put(f"with {special}", column)
        for note in cell["notes"]:
            if note in said and cell.get("case"):
                continue
            said.add(note)
            put(note, column + "· ", column + "  ")
    if plan["skipped"]:
        lines += ["", "skipped:"]
        for line in skipped_lines(plan):
            put(line, "– ", "  ")
    return "\n".join(lines) + "\n"


def skipped_lines(plan: Plan) -> List[str]:
    """Return one line per reason for which something asked for is not measured."""
    reasons: Dict[str, List[str]] = {}
    for skip in plan["skipped"]:
        reasons.setdefault(skip["reason"], []).append(skip.get("cell") or "something")
    return [f"{', '.join(cells)}: {reason}" for reason, cells in reasons.items()]


def summary(plan: Plan) -> str:
    """Return the size of a plan in a line: cells by binding, blocks, trials, duration."""
    kinds: Dict[str, int] = {}
    for cell in plan["cells"]:
        kind = "A/A control" if cell["role"] == "control" else cell["binding"]
        kinds[kind] = kinds.get(kind, 0) + 1
    listed = ", ".join(kind if n == 1 else f"{n} {kind}" for kind, n in kinds.items())
    cases = {cell["case"]["name"] for cell in plan["cells"] if cell.get("case")}
    if cases:
        listed += f"; {_count(len(cases), 'case')}"
    blocks = plan["request"]["blocks"]
    cells = _count(len(plan["cells"]), "cell") + (f" ({listed})" if listed else "")
    total = duration(plan["estimate"]["total_s"])
    return (
        f"{cells} × {_count(blocks, 'block')} = {_count(len(plan['order']), 'trial')}, "
        f"about {total}"
    )


def duration(seconds: float) -> str:
    """Return a length of time for a reader: 45 s, 11 min, 1 h 20 min, 2 d 3 h."""
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    days, hours = divmod(round(whole / 3600), 24)
    return f"{days} d" + (f" {hours} h" if hours else "")


def size(number: int) -> str:
    """Return a number of bytes for a reader, in binary units: 512 KiB, 1.2 GiB."""
    value = float(number)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value >= 100 or unit == "bytes" else f"{value:.1f} {unit}"


def _where(cell: Cell) -> str:
    if cell["cpus"] is None:
        cpus = f"any allowed CPU, {_count(cell['threads'], 'thread')}"
    else:
        number = "CPU" if cell["cpus"].isdecimal() else "CPUs"
        nodes = cell["cpu_nodes"]
        on = f" of node{'' if nodes.isdecimal() else 's'} {nodes}" if nodes else ""
        cpus = f"{number} {cell['cpus']}{on}, {_count(cell['threads'], 'thread')}"
    nodes = cell["memory"]["nodes"]
    memory = {
        "bind": f"only on node {nodes}",
        "interleave": f"interleaved over nodes {nodes}",
        "preferred": f"on node {nodes} while it has room",
        "default": "by first touch",
    }[cell["memory"]["policy"]]
    distance = f" (distance {cell['distance']})" if cell["distance"] is not None else ""
    rank = f", {' and '.join(cell['rank'])}" if cell["rank"] else ""
    return f"{cpus}; memory {memory}{distance}{rank}{_against(cell)}"


def _against(cell: Cell) -> str:
    return f"; against {cell['baseline']}" if cell["baseline"] else ""


def _proof(cell: Cell) -> str:
    memory, cpus = cell["expects"]["memory"], cell["expects"]["cpus"]
    if memory.get("rule") == "within":
        pages = f"at least {100 * memory['at_least']:.0f} % of its pages on node {memory['nodes']}"
    elif memory.get("rule") == "shares":
        number = len(cpulist.parse(memory["nodes"]))
        which = "its interleaved pages" if memory.get("policy") else "its pages"
        pages = f"{100 / number:.0f} ± {memory['within_points']} % of {which} on each node"
    else:
        pages = "where its pages are is recorded"
    threads = "its threads stay on these CPUs"
    if cpus["proof"] != "required":
        threads = "where its threads run is recorded"
    return f"proof: {pages}; {threads}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
