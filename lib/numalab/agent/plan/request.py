"""Whether a request makes sense, beyond the types of its fields."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Mapping, Set, Tuple

from ..contract import SCHEMA, CaseRequest, Request, SweepRequest, dumps
from ..errors import Fault
from ..host import settings
from ..paths import published_options
from .classes import CLASS, EVERY
from .kinds import KINDS
from .order import MOST_TRIALS
from .resolve import parse

MOST_VALUES = 256  # of a sweep
_CASE_NAME = re.compile(r"[a-z0-9][a-z0-9_.+-]*\Z")


def check(request: Request) -> Request:
    """Return a request whose tool and cases have all names, with "~" for the home folder.

    Fault says what is wrong first.
    """
    if request.schema != SCHEMA:
        raise Fault(
            f"the request has schema {request.schema}, this agent knows {SCHEMA}",
            "use the same version of numalab on both sides",
        )
    try:
        dumps(request).encode("utf-8")
    except UnicodeEncodeError as error:
        raise Fault(
            f"{error.object[max(0, error.start - 20) : error.end + 20]!r} is no UTF-8 text, and no "
            "file of a run can hold it",
            "give it another name",
        ) from None
    except (TypeError, ValueError) as error:
        raise Fault(
            f"a value is neither text nor a number that a file of a run can hold: {error}",
            "a date, for instance, needs quotes, and there is no infinite number",
        ) from None
    if not request.bindings:
        raise Fault("the request names no bindings: there is nothing to measure",
                    f"known: {', '.join(KINDS)}")  # fmt: skip
    _check_values(request)
    _check_changes(request.changes, "changes")
    if request.cases and request.sweep:
        raise Fault("the request has cases and a sweep", "write the sweep's values as cases")
    names = {parse(binding).name for binding in request.bindings}
    base = request.baseline
    bare = isinstance(base, str) and base in KINDS and KINDS[base].needs_argument
    if base is not None and not bare:
        names.add(parse(base).name)
    for sweep in request.sweep:
        _check_sweep(sweep, names)
    for name in request.names:
        parse(name)
    tool = request.tool
    return replace(
        request,
        tool=replace(
            tool,
            prefer=tool.prefer or (tool.name,),
            options=published_options(tool.options),
        ),
        cases=_checked_cases(request.cases),
    )


def _check_values(request: Request) -> None:
    if request.blocks < 1:
        raise Fault(f"blocks is {request.blocks}, but must be 1 or more", "6 or more decide")
    if request.blocks > MOST_TRIALS:
        raise Fault(
            f"blocks is {request.blocks:,}: a run has at most {MOST_TRIALS:,} trials", "15 are many"
        )
    limit = request.time_limit_s
    if limit is not None and limit <= 0:
        raise Fault(f"time_limit_s is {limit}, but must be above 0", "leave it out for no limit")
    if request.budget_s is not None and request.budget_s <= 0:
        raise Fault(f"budget_s is {request.budget_s}, but must be above 0", "leave it out for none")
    if request.collectors and request.collectors.interval_s <= 0:
        raise Fault(f"collectors: interval_s is {request.collectors.interval_s}, but must be above "
                    "0", "the usual one is 1.0")  # fmt: skip
    if request.pairs not in (CLASS, EVERY):
        raise Fault(f"pairs is {request.pairs!r}", f"write {CLASS} or {EVERY}")
    for name, measure in request.measure.items():
        if measure.better not in ("higher", "lower"):
            raise Fault(f"measure.{name}.better is {measure.better!r}", "write higher or lower")


def _check_sweep(sweep: SweepRequest, names: Set[str]) -> None:
    if sweep.pairs not in (CLASS, None):
        raise Fault(f"sweep: pairs is {sweep.pairs!r}", f"write {CLASS}, or leave it out")
    if len(sweep.values) > MOST_VALUES:
        raise Fault(
            f"sweep: {sweep.option} has {len(sweep.values):,} values", f"{MOST_VALUES} are the most"
        )
    if not sweep.values or not sweep.bindings:
        raise Fault(f"sweep: {sweep.option} has no values or no bindings", "name at least one")
    for value in sweep.values:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise Fault(f"sweep: {value!r} is not a value", "write numbers or words")
    for asked in map(parse, sweep.bindings):
        if asked.name not in names:
            raise Fault(f"sweep: {asked.text} is not among the bindings", "add it to bindings")


def _check_changes(changes: Mapping[str, str], where: str) -> None:
    for name in changes:
        try:
            settings.path_of(name.rstrip("?"))
        except Fault as fault:
            raise Fault(f"{where}: {fault.what}", fault.hint) from None


def _checked_cases(given: Tuple[CaseRequest, ...]) -> Tuple[CaseRequest, ...]:
    cases = tuple(
        replace(case, says=case.says or case.name, options=published_options(case.options))
        for case in given
    )
    for number, case in enumerate(cases):
        if not _CASE_NAME.match(case.name) or case.name == "control":
            raise Fault(
                f"{case.name!r} cannot name a case",
                "use small letters, digits and _ . + -; control is the A/A control's",
            )
        for other in cases[:number]:
            for key, one, its in (("name", case.name, other.name), ("says", case.says, other.says)):
                if one == its:
                    raise Fault(f"two cases have the {key} {one!r}", "each needs its own")
        _check_changes(case.changes, f"case {case.name}: changes")
        for binding in case.bindings or ():
            parse(binding)
    return cases
