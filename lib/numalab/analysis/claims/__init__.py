"""Claims of an experiment file, and the verdict that a run gives on each.

A claim names its cells, how node pairs are aggregated and its margin; the verdict is *supported*,
*refuted*, *inconclusive* or *not testable here*, with the figures that decided. Only verified
rows count. A predicate has one of the ``FORMS``: a class with its keys, its evidence and its
wording; whether two cells differ is asked of the one judge.
"""

from __future__ import annotations

import difflib
import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl
from pydantic import InstanceOf, ValidationError

from ... import escape, yaml_file
from ...agent.contract import VERIFIED, Reason
from ...agent.errors import Fault
from ...agent.words import units
from .. import evidence
from .among import Among
from .base import (
    INCONCLUSIVE,
    NOT_TESTABLE,
    REFUTED,
    SUPPORTED,
    Form,
    Judged,
    Strict,
    Untestable,
    too_few,
)
from .beside import Beside
from .follows import Follows
from .groups import Groups
from .own_value import OwnValue
from .ratio import Ratio
from .setting import Setting

if TYPE_CHECKING:
    from ...runs import Run

__all__ = [
    "FORMS", "INCONCLUSIVE", "NOT_TESTABLE", "REFUTED", "SUPPORTED", "Claim", "Verdict",
    "judge", "judge_all", "load", "markdown", "text",
]  # fmt: skip

FORMS: tuple[type[Form], ...] = (Setting, Groups, Ratio, Among, Follows, Beside, OwnValue)
_HINT = "CONTRIBUTING.md shows what a claim may say"


class Claim(Strict):
    """A statement, where it comes from, and when a run bears it out (all predicates hold)."""

    id: str
    says: str
    source: str
    holds_if: tuple[InstanceOf[Form], ...]


@dataclass(frozen=True)
class Verdict:
    """What one run says about one claim.

    ``because`` is a sentence with the figures; ``reason`` is there where the claim is not
    testable here.
    """

    claim: str
    says: str
    source: str
    host: str
    verdict: str
    because: str
    cells: tuple[str, ...]
    reason: Reason | None = None


def load(claims: Iterable[Claim | Mapping[str, Any]]) -> list[Claim]:
    """Return the claims of an experiment file; Fault names the claim and key that is wrong."""
    read = [entry if isinstance(entry, Claim) else _read(entry) for entry in claims]
    repeated = [a.id for a, b in itertools.combinations(read, 2) if a.id == b.id]
    if repeated:
        raise Fault(f"two claims are called {repeated[0]}", "give each an id of its own")
    return read


def _read(entry: Any) -> Claim:
    if not isinstance(entry, Mapping):
        raise Fault(f"{entry!r} is no claim", _HINT)
    name, asked = entry.get("id", "without an id"), entry.get("holds_if", [])
    if "holds_if" in entry and asked == []:
        raise Fault(f"claim {name}: holds_if says nothing", _HINT)
    where, known = "", list(Claim.model_fields)
    try:
        forms = []
        for place, given in enumerate(asked if isinstance(asked, list) else [asked]):
            where = f"holds_if.{place}: " if isinstance(asked, list) else "holds_if: "
            form = _form(given, f"claim {name}: {where}")
            known = _keys(form)
            forms.append(form.model_validate(given))
        where, known = "", list(Claim.model_fields)
        given = {**entry, "holds_if": tuple(forms)} if "holds_if" in entry else entry
        return Claim.model_validate(given)
    except ValidationError as error:
        raise Fault(f"claim {name}: {where}{yaml_file.explain(error, known)}", _HINT) from None


def _keys(form: type[Form]) -> list[str]:
    return [one.alias or name for name, one in form.model_fields.items()]


def _form(given: Any, where: str) -> type[Form]:
    """Which form is meant, so that a mistake in it is told of that one alone.

    A key that no form has tells nothing: it is the mistake.
    """
    if isinstance(given, Form):
        return type(given)
    if not isinstance(given, Mapping):
        raise Fault(f"{where}this is no predicate: {given!r}", _HINT)
    every = list(dict.fromkeys(key for form in FORMS for key in _keys(form)))
    unknown = [str(key) for key in given if key not in every]
    if unknown:
        near = difflib.get_close_matches(unknown[0], every, n=1)
        hint = f"did you mean {near[0]}?" if near else _HINT
        raise Fault(f"{where}unknown key {unknown[0]!r}", hint)
    return next((form for form in FORMS if any(key in given for key in form.keys)), Ratio)


def judge_all(
    claims: Iterable[Claim | Mapping[str, Any]], run: Run, others: Sequence[Run] = ()
) -> list[Verdict]:
    """Return the verdict of a run on each claim, in their order; ``others`` as in ``judge``."""
    return [judge(claim, run, others) for claim in load(claims)]


def judge(claim: Claim, run: Run, others: Sequence[Run] = ()) -> Verdict:
    """Return the verdict of one run on a claim.

    ``others`` are runs of the same experiment, among which a predicate may look for its partner.
    A claim of several predicates is refuted when one is, else not testable here when one is not,
    else inconclusive when one is, else supported.
    """
    judged = [_judged(form, run, others) for form in claim.holds_if]
    order = (REFUTED, NOT_TESTABLE, INCONCLUSIVE, SUPPORTED)
    verdict = min((one.verdict for one in judged), key=order.index, default=INCONCLUSIVE)
    deciding = [one for one in judged if verdict in (SUPPORTED, one.verdict)]
    return Verdict(
        claim.id, claim.says, claim.source, run.manifest.host, verdict,
        "; ".join(dict.fromkeys(one.because for one in deciding)),
        tuple(dict.fromkeys(cell for one in judged for cell in one.cells)),
        next((one.reason for one in deciding if one.reason), None),
    )  # fmt: skip


def _judged(form: Form, run: Run, others: Sequence[Run]) -> Judged:
    try:
        found = form.judged(run, others)
    except Untestable as why:
        return Judged(NOT_TESTABLE, str(why.reason), (), why.reason)
    blocks = run.measurements.filter(pl.col("grade") == VERIFIED)["block"].n_unique()
    decided = found.verdict in (SUPPORTED, REFUTED)
    if decided and form.needs_blocks and blocks < evidence.BLOCKS_NEEDED:
        return replace(found, verdict=INCONCLUSIVE, because=too_few(blocks, "this run", run))
    return found


def markdown(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as a Markdown table: claim, source, host, verdict, because."""
    rows = ["| claim | source | host | verdict | because |", "| --- | --- | --- | --- | --- |"]
    for one in verdicts:
        says, source, host, because = map(
            escape.markdown, (one.says, one.source, one.host, one.because)
        )
        rows.append(f"| {says} | {source} | {host} | **{one.verdict}** | {because} |")
    return "\n".join(rows)


def text(verdicts: Sequence[Verdict], width: int = 100, *, every: bool = False) -> str:
    """Return the verdicts as lines for a terminal: figures of what was not found to hold.

    Of claims that cannot be tested here it gives the number, or ``every`` one with its reason.
    """
    shown = [one for one in verdicts if every or one.verdict != NOT_TESTABLE]
    lines = []
    for one in shown:
        lines += textwrap.wrap(f"{one.verdict}: {one.says}", width, subsequent_indent="  ")
        if one.verdict != SUPPORTED:
            lines += textwrap.wrap(one.because, width, initial_indent="  ", subsequent_indent="  ")
    left = len(verdicts) - len(shown)
    if left:
        lines.append(f"not testable here: {units.count(left, 'claim')}; the article says why")
    return "\n".join(lines)
