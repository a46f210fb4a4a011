"""Claims of an experiment file, and the verdict that a run gives on each.

A claim names its cells, how node pairs are aggregated and its margin; the verdict is *supported*,
*refuted*, *inconclusive* or *not testable here*, with the figures that decided. Only verified
rows count.

How pairs are aggregated. A pair is a cell of the binding ``cell`` and its partner of the binding
``against``; each pair has its own ratio, paired by block (``statistics.paired_ratio``). Where a
metric has several points, each pair counts once per point.

- ``every`` (default): all pairs hold. Supported when each pair's own 95 % interval does, which
  needs no correction (intersection-union test; Berger, Technometrics 24, 1982); refuted when any
  pair refutes it at the 95 % level corrected for the number of pairs (Bonferroni).
- ``worst``: the pair that loses most: the lowest ratio where higher is better, the highest where
  lower is better. "The lowest is at most r" means that some pair is, so it is supported when any
  pair's corrected interval is, and refuted when every pair's own interval lies above r; "the
  lowest is at least r" is the same as ``every``.
- ``median``: per block the median over the pairs of their log ratios, averaged over the blocks;
  the interval resamples blocks.
- ``nearest``, ``farthest``: the median over the pairs that the plan ranks so.

A *level* asks for a value itself, of each cell and point: the median over the blocks, by its
order-statistics interval (``statistics.median_interval``). Supported when every interval lies
within what is asked, refuted when one lies outside (corrected for their number). A *setting* asks
for what the host had before the run.

A verdict that says "there is a difference" counts only where the deciding interval also lies
outside the A/A control's (see ``statistics.effect``).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import polars as pl
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from ..agent import cpulist
from ..agent.errors import Fault
from ..agent.plan import bindings
from ..agent.plan import make as planning
from ..agent.trial import settings
from . import statistics
from .statistics import BLOCKS_NEEDED, Ratio

SUPPORTED = "supported"
REFUTED = "refuted"
INCONCLUSIVE = "inconclusive"
NOT_TESTABLE = "not testable here"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Margin(_Strict):
    """What a ratio must be: exactly one of the three ``ratio_…`` and ``same_within`` is given."""

    ratio_at_most: float | None = Field(None, gt=0)
    ratio_at_least: float | None = Field(None, gt=0)
    ratio_between: tuple[float, float] | None = None
    same_within: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _one_margin(self) -> _Margin:
        margins = ["ratio_at_most", "ratio_at_least", "ratio_between", "same_within"]
        given = [name for name in margins if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(margins)}")
        if self.ratio_between and not 0 < self.ratio_between[0] < self.ratio_between[1]:
            raise ValueError("ratio_between is [lower, higher], both above 0")
        return self

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """The least and the greatest ratio that hold; None where there is no bound."""
        if self.ratio_between:
            return self.ratio_between
        if self.same_within:
            return 1 / (1 + self.same_within), 1 + self.same_within
        return self.ratio_at_least, self.ratio_at_most


class Reference(_Strict):
    """Two bindings whose ratio is what another ratio is divided by."""

    cell: str
    against: str


class Comparison(_Margin):
    """A predicate on the ratio of two bindings.

    ``cell`` and ``against`` are a binding's name (``remote``), any binding as an experiment names
    it (``cores:node-spread``, ``remote:farthest``), one of these and the rest of a swept cell's
    id (``local/threads=2``) or a cell's id. ``per`` divides the metric by another one of the same
    trial (misses per instruction). ``points`` names the points; without it all count.
    ``relative_to`` divides the ratio by that of two other bindings, block by block: is a gap
    wider under one load than under another?
    """

    metric: str
    cell: str
    against: str
    per: str | None = None
    pairs: Literal["every", "median", "worst", "nearest", "farthest"] = "every"
    points: list[str] | None = None
    relative_to: Reference | None = None


class Among(_Margin):
    """A predicate on the points of one cell against each other: several instances of a server.

    The pairs are all ordered pairs of points within the same trial. ``every`` pair within
    ``same_within`` means even; ``worst`` with ``ratio_at_least`` that some pair is that far apart.
    """

    metric: str
    among: str
    per: str | None = None
    pairs: Literal["every", "worst"] = "every"
    points: list[str] | None = None


class Follows(_Strict):
    """A predicate that one metric goes the way of another.

    For every two cells with as many CPUs each that differ in ``follows`` beyond the A/A control,
    ``metric`` must differ the same way, beyond its own. ``cells`` names the cells (as in
    Comparison); without it they are all of the plain load.
    """

    metric: str
    follows: str
    cells: list[str] | None = None


class Beside(_Margin):
    """A predicate on this run beside one of the same machine: ``beside: nodes-shown``.

    For a host whose firmware or kernel hides its nodes. Each cell is compared with the cell on
    the same CPUs of the run in which the nodes are shown and no memory policy was set; blocks of
    two runs have nothing in common, so nothing is paired (``statistics.unpaired``).
    """

    metric: str
    beside: Literal["nodes-shown"]
    per: str | None = None
    pairs: Literal["every"] = "every"
    points: list[str] | None = None


class Presence(_Strict):
    """A predicate on what is there: ``groups: hidden``: the firmware hides the host's nodes."""

    groups: Literal["hidden"]


class Level(_Strict):
    """A predicate on a metric's own value in one cell, the median over the blocks.

    ``cell`` as in ``Comparison``. ``point`` names the point; without it all count. ``per``
    divides by another metric of the same trial: at the same point where it has that, else by its
    only value. Exactly one of ``at_most``, ``at_least`` and ``between`` is given, in the unit of
    the metric (of the quotient).
    """

    metric: str
    cell: str
    point: str | None = None
    per: str | None = None
    at_most: float | None = None
    at_least: float | None = None
    between: tuple[float, float] | None = None

    @model_validator(mode="after")
    def _one_margin(self) -> Level:
        given = [one for one in (self.at_most, self.at_least, self.between) if one is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of at_most, at_least, between")
        if self.between and not self.between[0] < self.between[1]:
            raise ValueError("between is [lower, higher]")
        return self

    @property
    def points(self) -> list[str] | None:
        """The points that count, None for all."""
        return None if self.point is None else [self.point]

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest value that hold; infinite where there is no bound."""
        if self.between:
            return self.between
        least = -np.inf if self.at_least is None else self.at_least
        return least, np.inf if self.at_most is None else self.at_most


class Setting(_Strict):
    """A predicate on what the host was set to before the run: ``is`` as the kernel shows it."""

    setting: str
    value: str = Field(alias="is")

    @field_validator("value", mode="before")
    @classmethod
    def _as_text(cls, given: Any) -> Any:
        return str(given) if type(given) is int else given


_KEYS = (
    ("setting", "Setting"),
    ("groups", "Presence"),
    ("against", "Comparison"),
    ("among", "Among"),
    ("follows", "Follows"),
    ("beside", "Beside"),
)


def _kind(given: Any) -> str:
    """Which predicate is meant, so that a mistake in it is told of that one alone."""
    if not isinstance(given, dict):
        return type(given).__name__
    for key, kind in _KEYS:
        if key in given:
            return kind
    levels = {"at_most", "at_least", "between", "point"}
    return "Level" if levels.intersection(given) else "Comparison"


Predicate = Annotated[
    Annotated[Comparison, Tag("Comparison")]
    | Annotated[Among, Tag("Among")]
    | Annotated[Follows, Tag("Follows")]
    | Annotated[Beside, Tag("Beside")]
    | Annotated[Level, Tag("Level")]
    | Annotated[Setting, Tag("Setting")]
    | Annotated[Presence, Tag("Presence")],
    Discriminator(
        _kind, custom_error_type="predicate", custom_error_message="this is no predicate"
    ),
]


class Claim(_Strict):
    """A statement, where it comes from, and when a run bears it out (all predicates hold)."""

    id: str
    says: str
    source: str
    holds_if: list[Predicate]

    @field_validator("holds_if", mode="before")
    @classmethod
    def _listed(cls, given: Any) -> Any:
        return given if isinstance(given, list) else [given]


@dataclass(frozen=True)
class Verdict:
    """What one run says about one claim; ``because`` is a sentence with the figures."""

    claim: str
    says: str
    source: str
    host: str
    verdict: str
    because: str
    cells: list[str]


@dataclass(frozen=True)
class _Judged:
    verdict: str
    because: str
    cells: tuple[str, ...] = ()


def load(claims: Iterable[Claim | dict[str, Any]]) -> list[Claim]:
    """Return the claims of an experiment file; Fault names the claim and key that is wrong."""
    read = []
    for entry in claims:
        try:
            read.append(entry if isinstance(entry, Claim) else Claim.model_validate(entry))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"] if not _is_model(part))
            name = entry.get("id", "without an id") if isinstance(entry, dict) else repr(entry)
            raise Fault(
                f"claim {name}: {where or 'holds_if'}: {first['msg']}",
                "CONTRIBUTING.md shows what a claim may say",
            ) from None
    repeated = [a.id for a, b in itertools.combinations(read, 2) if a.id == b.id]
    if repeated:
        raise Fault(f"two claims are called {repeated[0]}", "give each an id of its own")
    return read


def _is_model(part: object) -> bool:
    return isinstance(part, str) and (part[:1].isupper() or "[" in part)


class Side(NamedTuple):
    """One run as a verdict needs it."""

    measurements: pl.DataFrame
    host: dict[str, Any]
    plan: dict[str, Any]


def judge_all(
    claims: Iterable[Claim | dict[str, Any]],
    measurements: pl.DataFrame,
    host_record: dict[str, Any],
    plan: dict[str, Any],
    others: Sequence[Side] = (),
) -> list[Verdict]:
    """Return the verdict on each claim, in their order."""
    return [judge(claim, measurements, host_record, plan, others) for claim in load(claims)]


def judge(
    claim: Claim,
    measurements: pl.DataFrame,
    host_record: dict[str, Any],
    plan: dict[str, Any],
    others: Sequence[Side] = (),
) -> Verdict:
    """Return the verdict of one run (its measurements, host record and plan) on a claim.

    ``others`` are runs of the same experiment, among which a predicate may look for its partner.

    A claim of several predicates is refuted when one is, else not testable here when one is not,
    else inconclusive when one is, else supported.
    """
    side = Side(measurements, host_record, plan)
    judged = [_judged(predicate, side, others) for predicate in claim.holds_if]
    verdict = next(
        word
        for word in (REFUTED, NOT_TESTABLE, INCONCLUSIVE, SUPPORTED)
        if any(one.verdict == word for one in judged)
    )
    deciding = judged if verdict == SUPPORTED else [one for one in judged if one.verdict == verdict]
    cells = list(dict.fromkeys(cell for one in judged for cell in one.cells))
    because = "; ".join(dict.fromkeys(one.because for one in deciding))
    return Verdict(claim.id, claim.says, claim.source, host_record["host"], verdict, because, cells)


def _judged(predicate: Predicate, side: Side, others: Sequence[Side]) -> _Judged:
    try:
        if isinstance(predicate, Presence):
            return _presence(side.measurements, side.host)
        if isinstance(predicate, Setting):
            return _setting(predicate, side.host)
        if isinstance(predicate, Level):
            return _level(predicate, side)
        if isinstance(predicate, Among):
            return _among(predicate, side)
        if isinstance(predicate, Follows):
            return _follows(predicate, side)
        if isinstance(predicate, Beside):
            return _beside(predicate, side, others)
        return _comparison(predicate, side)
    except _Untestable as why:
        return _Judged(NOT_TESTABLE, str(why))


def markdown(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as a Markdown table: claim, source, host, verdict, because."""

    def plain(text: str) -> str:
        return " ".join(text.split()).replace("|", "\\|")

    rows = ["| claim | source | host | verdict | because |", "| --- | --- | --- | --- | --- |"]
    for one in verdicts:
        told = (one.says, one.source, one.host, f"**{one.verdict}**", one.because)
        rows.append(f"| {' | '.join(plain(text) for text in told)} |")
    return "\n".join(rows)


# ---------------------------------------------------------------- comparisons


def _comparison(predicate: Comparison, side: Side) -> _Judged:
    pairs = _pairs(predicate, side)
    reference = None
    if predicate.relative_to:
        asked = predicate.model_copy(update=predicate.relative_to.model_dump())
        reference = _pairs(asked, side)
        if reference == pairs:
            raise _Untestable(f"{predicate.cell} is {predicate.relative_to.cell} on this host")
        if len(reference) != len(pairs):
            raise _Untestable(
                f"{predicate.cell} has {len(pairs)} pairs, {predicate.relative_to.cell} has "
                f"{len(reference)}: their ratios do not match"
            )
    every = [cell for pair in [*pairs, *(reference or [])] for cell in pair]
    names = tuple(dict.fromkeys(cell["id"] for cell in every))
    rows = _rows(predicate, side, names)
    title = _title(predicate) + f", {predicate.cell} against {predicate.against}"
    if predicate.relative_to:
        title += f", over {predicate.relative_to.cell} against {predicate.relative_to.against}"
    return _decided(predicate, _paired(predicate, rows, pairs, reference), title, names, side)


def _title(predicate: Comparison | Among | Beside) -> str:
    return predicate.metric + (f" per {predicate.per}" if predicate.per else "")


class _Untestable(Exception):
    """Why a predicate cannot be tested on this host."""


def _pairs(predicate: Comparison, side: Side) -> list[tuple[dict, dict]]:
    """The cells that the predicate names, each with its partner."""
    left = _named(predicate.cell, side)
    right = _named(predicate.against, side)
    if predicate.pairs in ("nearest", "farthest"):
        left = [cell for cell in left if predicate.pairs in cell.get("rank", [])]
        if not left:
            raise _Untestable(f"no {predicate.cell} cell of the plan is ranked {predicate.pairs}")
    pairs = [(cell, partner) for cell in left for partner in _partners(cell, right)]
    if [cell["id"] for cell in left] == [cell["id"] for cell in right]:
        raise _Untestable(f"{predicate.cell} and {predicate.against} are the same on this host")
    one_node = sum(bool(n["memory_bytes"]) for n in side.host["topology"]["nodes"]) == 1
    if pairs and one_node and all(_cpus(a, side) == _cpus(b, side) for a, b in pairs):
        raise _Untestable(
            f"{predicate.cell} and {predicate.against} have the same CPUs and the same memory on "
            "a host that shows one node"
        )
    if not pairs:
        raise _Untestable(
            f"no {predicate.against} cell runs on the same CPUs as a {predicate.cell} cell"
        )
    return pairs


def _named(name: str, side: Side) -> list[dict]:
    """Cells by binding, by binding and the rest of a swept cell's id, or by id."""
    binding, _, rest = name.partition("/")
    cells = [cell for cell in side.plan["cells"] if cell["role"] != "control"]
    found = [
        cell
        for cell in cells
        if cell["id"] == name
        or (cell["binding"] == binding and cell["id"].partition("/")[2] == rest)
    ]
    if found:
        return found
    resolved, why = _resolved(binding, side) if ":" in binding else ([], None)
    wanted = [(_stands_for(one, side.plan), rest) for one in resolved]
    found = [cell for cell in cells if cell["id"].partition("/")[::2] in wanted]
    if found:
        return found
    meant = {binding, *resolved}
    for skipped in side.plan.get("skipped", []):
        cell = str(skipped.get("cell", ""))
        case = cell.partition("/")[2]
        if case and (case != rest or cell.partition(":")[0] != binding.partition(":")[0]):
            continue  # this binding in another case
        if ":" in binding and cell.partition("/")[0] not in meant:
            continue  # this binding with another argument
        if str(skipped["binding"]).partition(":")[0] == binding.partition(":")[0]:
            raise _Untestable(f"{name} was skipped: {skipped['reason']}")
    request = side.plan.get("request") or {}
    cases = [case["name"] for case in request.get("cases") or []]
    if cases and rest and rest not in cases:
        raise _Untestable(f"this run leaves out the case {rest} (profile {request['profile']})")
    if why:
        raise _Untestable(why)
    if rest and any(c["id"].partition("/")[0] in {binding, *meant} for c in cells):
        raise _Untestable(f"this run leaves out {rest} (profile {request.get('profile')})")
    raise _Untestable(f"the run holds no {name} cell")


def _stands_for(cell: str, plan: dict[str, Any]) -> str:
    """The id of the cell that was kept where this one is the same on this host."""
    for skipped in plan.get("skipped", []):
        same = re.fullmatch(r"it is the same as (\S+) on this host", skipped["reason"])
        if same and skipped.get("cell") == cell:
            return same.group(1)
    return cell


def _resolved(binding: str, side: Side) -> tuple[list[str], str | None]:
    """The ids of the cells that a binding's name stands for on this host, or why there are none."""
    try:
        cells, _, _ = bindings.resolve([binding], left_to_cells(side.host, side.plan))
    except Fault as fault:
        return [], fault.what
    except KeyError:  # the record is of a host that nothing can be resolved on
        return [], None
    return [cell["id"] for cell in cells], None


def left_to_cells(host: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    """A host's topology without the CPUs that a tool's client had for itself in every cell."""
    its = set(cpulist.parse((plan.get("client") or {}).get("cpus") or ""))
    cpus = host["topology"]["cpus"]
    mine = [{**cpu, "allowed": cpu["allowed"] and cpu["cpu"] not in its} for cpu in cpus]
    return {**host["topology"], "cpus": mine}


def _partners(cell: dict, candidates: list[dict]) -> list[dict]:
    """What a cell is compared with: its baseline, else cells on its CPUs, on its nodes, or the
    only one that there is."""
    for alike in (
        lambda other: other["id"] == cell.get("baseline"),
        lambda other: other["cpus"] == cell["cpus"] and other["threads"] == cell["threads"],
        lambda other: other["cpu_nodes"] == cell["cpu_nodes"],
        lambda other: len(candidates) == 1,
    ):
        found = [other for other in candidates if alike(other) and other["id"] != cell["id"]]
        if found:
            return found
    return []


def _rows(
    predicate: Comparison | Among | Beside | Level, side: Side, names: Sequence[str]
) -> pl.DataFrame:
    """The verified rows of the metric, divided by ``per`` where asked, the A/A control's too."""
    wanted = [predicate.metric, *([predicate.per] if predicate.per else [])]
    rows = side.measurements.filter(pl.col("metric").is_in(wanted))
    for metric in wanted:
        _require(rows.filter(pl.col("metric") == metric), metric, side, names)
    rows = rows.filter((pl.col("grade") == "verified") & pl.col("value").is_finite())
    value = rows.filter(pl.col("metric") == predicate.metric)
    if predicate.per:
        by = rows.filter(pl.col("metric") == predicate.per).select(
            "run", "cell", "block", "point", pl.col("value").alias("_by")
        )
        same = ["run", "cell", "block"]
        if by.select(same).is_duplicated().any():  # it has points of its own
            same.append("point")
        value = (
            value.join(by, on=same)
            .filter(pl.col("_by") > 0)
            .with_columns(pl.col("value") / pl.col("_by"))
        )
    if predicate.points is not None:
        value = value.filter(pl.col("point").is_in(predicate.points))
        if value.is_empty():
            raise _Untestable(
                f"{predicate.metric} was not measured at {', '.join(predicate.points)}"
            )
    if "tool" in value["source"]:  # a collector may count what the tool counts too
        value = value.filter(pl.col("source") == "tool")
    tools = value.filter(pl.col("source") == "tool")["tool"].unique().sort().to_list()
    if len(tools) > 1:
        raise _Untestable(f"results of different tools make no ratio: {', '.join(tools)}")
    return value


def _require(rows: pl.DataFrame, metric: str, side: Side, names: Sequence[str]) -> None:
    """Raise why a metric's rows can carry no verdict, if they cannot."""
    kinds = rows.select("source", "unit", "tool").unique().rows()
    real = all(statistics.real_when_emulated(one, metric, *of) for one, *of in kinds)
    if side.host.get("emulated") and not (kinds and real):
        raise _Untestable("emulated: timings carry no NUMA meaning")
    rows = rows.filter(pl.col("cell").is_in(list(names)))
    if rows.is_empty():
        raise _Untestable(f"{metric} was not measured")
    if rows["value"].is_not_null().sum() == 0:
        why = statistics.why_missing(side.measurements, metric)
        raise _Untestable(f"{metric} could not be measured{f' ({why})' if why else ''}")
    if not (rows["grade"] == "verified").any():
        counts = rows.group_by("grade").agg(pl.col("trial").n_unique()).sort("grade").rows()
        said = ", ".join(f"{count} graded {grade}" for grade, count in counts)
        raise _Untestable(f"no trial of these cells is verified ({said})")


@dataclass(frozen=True)
class _Pair:
    """One pair at one point: its ratio and the bounds used at each level of confidence."""

    name: str
    ratio: Ratio
    aa: Ratio

    def bounds(self, confidence: float) -> tuple[float, float]:
        """The interval of the pair's ratio at this confidence."""
        return statistics.widened(self.ratio, confidence)

    def beyond_control(self, low: float, high: float) -> bool:
        said = statistics.effect(low, high, self.aa.low, self.aa.high, self.ratio.n)
        return self.aa.n >= BLOCKS_NEEDED and said == statistics.EFFECT


def _paired(
    predicate: Comparison,
    rows: pl.DataFrame,
    cells: list[tuple[dict, dict]],
    reference: list[tuple[dict, dict]] | None,
) -> list[_Pair]:
    points = predicate.points or rows["point"].unique().sort().to_list()
    several = len(points) > 1
    controls = {point: statistics.aa_interval(rows, predicate.metric, point) for point in points}
    pairs = []
    for place, (cell, partner) in enumerate(cells):
        for point in points:
            ratio, control = _ratio(rows, cell["id"], partner["id"], point), controls[point]
            if reference:
                one, other = reference[place]
                ratio = _divided(ratio, _ratio(rows, one["id"], other["id"], point))
                control = _divided_control(control)
            pairs.append(_Pair(cell["label"] + (f" at {point}" if several else ""), ratio, control))
    return pairs


def _divided(ratio: Ratio, by: Ratio) -> Ratio:
    """One ratio over another, in the blocks that have both."""
    if ratio.ratio is None or by.ratio is None:
        return by if ratio.ratio is not None else ratio
    blocks = sorted({*ratio.logs} & {*by.logs})
    return statistics.paired_ratio(
        [float(np.exp(ratio.logs[block])) for block in blocks],
        [float(np.exp(by.logs[block])) for block in blocks],
        blocks,
    )


def _divided_control(control: Ratio) -> Ratio:
    """What two ratios of like cells may be apart: the ends of the A/A interval over each other."""
    if control.low is None or control.high is None:
        return control
    return replace(control, low=control.low / control.high, high=control.high / control.low)


def _decided(
    predicate: Comparison | Among | Beside,
    pairs: list[_Pair],
    title: str,
    names: tuple[str, ...],
    side: Side,
) -> _Judged:
    plan = side.plan
    broken = [pair for pair in pairs if pair.ratio.ratio is None]
    if len(broken) == len(pairs):
        raise _Untestable(f"{title}: {broken[0].ratio.reason}")
    if broken:
        return _Judged(INCONCLUSIVE, f"{title}: {broken[0].name}: {broken[0].ratio.reason}", names)
    if predicate.pairs in ("median", "nearest", "farthest") and len(pairs) > 1:
        pairs = [_median_pair(predicate, pairs)]
    fewest = min(pairs, key=lambda pair: pair.ratio.n)
    if fewest.ratio.n < BLOCKS_NEEDED:
        return _Judged(INCONCLUSIVE, f"{title}: {_too_few(fewest, plan)}", names)
    lowest = _better(predicate, side) == "higher"
    least, greatest = predicate.bounds
    verdicts = []
    if least is not None:
        some = predicate.pairs == "worst" and not lowest
        verdicts.append(_one_sided(pairs, least, True, some, predicate.same_within is not None))
    if greatest is not None:
        some = predicate.pairs == "worst" and lowest
        verdicts.append(_one_sided(pairs, greatest, False, some, predicate.same_within is not None))
    verdict = _all_of([verdict for verdict, _ in verdicts])
    pair = next(pair for said, pair in verdicts if said == verdict)
    if predicate.pairs == "worst":
        order = min if lowest else max
        pair = order(pairs, key=lambda one: one.ratio.ratio)
    return _Judged(verdict, _sentence(title, predicate, pair, len(pairs), verdict), names)


def _ratio(rows: pl.DataFrame, cell: str, partner: str, point: str) -> Ratio:
    return statistics.paired_cells(rows.filter(pl.col("point") == point), cell, partner)


def _median_pair(predicate: Comparison, pairs: list[_Pair]) -> _Pair:
    """All pairs as one: per block the median of the pairs' log ratios, blocks being resampled."""
    shared = sorted(set.intersection(*(set(pair.ratio.logs) for pair in pairs)))
    logs = {block: float(np.median([pair.ratio.logs[block] for pair in pairs])) for block in shared}
    every = set().union(*(pair.ratio.logs for pair in pairs))
    dropped = dict.fromkeys(sorted(every - set(shared)), "a pair has no verified value")
    named = "" if predicate.pairs == "median" else f" {predicate.pairs}"
    name = f"the median of {len(pairs)}{named} pairs"
    if len(logs) < 2:
        return _Pair(name, Ratio(None, None, None, len(logs), dropped, None, logs), pairs[0].aa)
    centre = np.array([list(logs.values())])
    low, high = np.exp(statistics.bootstrap_interval(centre))
    ratio = Ratio(
        float(np.exp(centre.mean())), float(low[0]), float(high[0]), len(logs), dropped, None, logs
    )
    return _Pair(name, ratio, pairs[0].aa)


def _too_few(pair: _Pair, plan: dict[str, Any]) -> str:
    return _too_few_blocks(pair.ratio.n, pair.name, plan)


def _too_few_blocks(count: int, name: str, plan: dict[str, Any]) -> str:
    profile = plan["request"].get("profile")
    tail = f" ({profile} judges no claim)" if profile == "smoke" else ""
    return (
        f"too few blocks: {count} verified for {name}, and fewer than {BLOCKS_NEEDED}"
        f" decide nothing{tail}"
    )


def _better(predicate: Comparison | Among | Beside, side: Side) -> str:
    """Whether higher or lower values are better: as the experiment says, else by the unit."""
    measure = side.plan["request"].get("measure") or {}
    if predicate.metric in measure and predicate.per is None:
        return measure[predicate.metric]["better"]
    rows = side.measurements.filter(pl.col("metric") == predicate.metric)
    return "higher" if rows["unit"][0] in ("GB/s", "MB/s", "1/s") else "lower"


def _one_sided(
    pairs: list[_Pair], bound: float, at_least: bool, some: bool, same: bool
) -> tuple[str, _Pair]:
    """Judge "every (some) pair's ratio is at least (at most) the bound", and the deciding pair.

    The side that needs only one pair is corrected for the number of pairs; the other needs none.
    An equivalence is supported by two one-sided tests at 5 % each, that is by the 90 % interval
    (Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15, 1987).
    """
    plain = statistics.CONFIDENCE
    strict = 1 - (1 - plain) / len(pairs)
    inside = 0.9 if same else plain
    # the claim's side has room for "no difference" when 1 lies on it
    even = bound <= 1 if at_least else bound >= 1
    holds = [_side(pair, bound, at_least, strict if some else inside, even) for pair in pairs]
    fails = [
        _side(pair, bound, not at_least, plain if some else strict, not even) for pair in pairs
    ]
    # the pair that speaks most against "every", or most for "some"
    order = (min if at_least else max) if not some else (max if at_least else min)
    telling = order(pairs, key=lambda pair: pair.ratio.ratio)
    if any(holds) if some else all(holds):
        return SUPPORTED, telling
    if all(fails) if some else any(fails):
        return REFUTED, telling
    return INCONCLUSIVE, telling


def _side(pair: _Pair, bound: float, above: bool, confidence: float, even: bool) -> bool:
    """Whether a pair's interval lies on one side of a bound.

    ``even``: that side has room for "no difference"; where it has none, the interval must lie
    beyond the A/A control's too.
    """
    low, high = pair.bounds(confidence)
    beyond = low >= bound if above else high <= bound
    return beyond and (even or pair.beyond_control(low, high))


def _all_of(verdicts: list[str]) -> str:
    for word in (REFUTED, INCONCLUSIVE):
        if word in verdicts:
            return word
    return SUPPORTED


def _sentence(title: str, predicate: Comparison, pair: _Pair, count: int, verdict: str) -> str:
    ratio = pair.ratio
    which = {"worst": "worst pair, ", "every": ""}.get(predicate.pairs, "")
    if predicate.pairs == "every" and count > 1:
        which = f"of {count} pairs the least favourable, "
    low, high = pair.bounds(statistics.CONFIDENCE)
    text = (
        f"{title}: {which}{pair.name}: ratio {ratio.ratio:.3f}, 95 % interval"
        f" [{low:.3f}, {high:.3f}] from {ratio.n} blocks; the claim asks for {_asked(predicate)}"
    )
    if predicate.same_within and verdict == SUPPORTED:
        inner = pair.bounds(0.9)
        text += f" (90 % interval [{inner[0]:.3f}, {inner[1]:.3f}])"
    if verdict == INCONCLUSIVE:
        text += f"; {_why_open(predicate, pair, low, high)}"
    if ratio.dropped:
        text += f"; {len(ratio.dropped)} blocks left out"
    return text


def _why_open(predicate: Comparison, pair: _Pair, low: float, high: float) -> str:
    least, greatest = predicate.bounds
    straddled = any(bound is not None and low < bound < high for bound in (least, greatest))
    if straddled:
        return "the interval straddles the margin"
    if pair.aa.low is None:
        return f"{pair.aa.reason}, so a difference cannot be told from chance"
    if pair.aa.n < BLOCKS_NEEDED:
        return "the A/A control has too few verified blocks"
    if not pair.beyond_control(low, high):
        return f"not distinguishable from the A/A control [{pair.aa.low:.3f}, {pair.aa.high:.3f}]"
    return "not beyond chance once the number of pairs is paid for"


def _asked(predicate: Comparison) -> str:
    if predicate.same_within:
        return f"the same within {predicate.same_within:.0%}"
    if predicate.ratio_between:
        return "between {:g} and {:g}".format(*predicate.ratio_between)
    if predicate.ratio_at_most:
        return f"at most {predicate.ratio_at_most:g}"
    return f"at least {predicate.ratio_at_least:g}"


# ---------------------------------------------------------------- points of one cell


def _among(predicate: Among, side: Side) -> _Judged:
    cells = _named(predicate.among, side)
    names = tuple(cell["id"] for cell in cells)
    rows = _rows(predicate, side, names)
    controls = {
        point: statistics.aa_interval(rows, predicate.metric, point)
        for point in rows["point"].unique()
    }
    pairs = []
    for cell in cells:
        mine = rows.filter(pl.col("cell") == cell["id"])
        points = mine["point"].unique().sort().to_list()
        at = {point: mine.filter(pl.col("point") == point) for point in points}
        for one, other in itertools.permutations(at, 2):
            ratio = statistics.paired_ratio(
                at[one]["value"].to_list(), at[other]["value"].to_list(),
                at[one]["block"].to_list(), at[other]["block"].to_list(),
            )  # fmt: skip
            pairs.append(_Pair(f"{one} over {other}", ratio, _hull(controls[one], controls[other])))
    if not pairs:
        raise _Untestable(f"{_title(predicate)} has one point only in {predicate.among}")
    title = f"{_title(predicate)} among the points of {predicate.among}"
    return _decided(predicate, pairs, title, names, side)


def _hull(one: Ratio, other: Ratio) -> Ratio:
    """The wider of two A/A controls: the least interval that holds both."""
    if one.low is None or other.low is None or one.n < BLOCKS_NEEDED:
        return one
    if other.n < BLOCKS_NEEDED:
        return other
    return replace(one, low=min(one.low, other.low), high=max(one.high, other.high))


# ---------------------------------------------------------------- one metric after another


def _follows(predicate: Follows, side: Side) -> _Judged:
    if predicate.cells is None:
        plain = (c for c in side.plan["cells"] if c["role"] != "control" and "/" not in c["id"])
        cells = list(plain)
    else:
        cells = [cell for name in predicate.cells for cell in _named(name, side)]
    pairs = [
        (one, other)
        for one, other in itertools.combinations(cells, 2)
        if _cpu_count(one, side) == _cpu_count(other, side)
    ]
    if not pairs:
        raise _Untestable("no two of these cells have as many CPUs")
    names = tuple(dict.fromkeys(cell["id"] for pair in pairs for cell in pair))
    leads, trails = (
        _paired(_against_itself(metric), _rows(_against_itself(metric), side, names), pairs, None)
        for metric in (predicate.follows, predicate.metric)
    )
    title = f"{predicate.metric} after {predicate.follows}, {len(pairs)} pairs with as many CPUs"
    known = [(a, b) for a, b in zip(leads, trails, strict=True) if a.ratio.low and b.ratio.low]
    if len(known) < len(pairs):
        why = next(p.ratio.reason for p in [*leads, *trails] if not p.ratio.low)
        return _Judged(INCONCLUSIVE, f"{title}: {why}", names)
    fewest = min((pair for both in known for pair in both), key=lambda pair: pair.ratio.n)
    if fewest.ratio.n < BLOCKS_NEEDED:
        return _Judged(INCONCLUSIVE, f"{title}: {_too_few(fewest, side.plan)}", names)
    strict = 1 - (1 - statistics.CONFIDENCE) / len(pairs)
    apart = [(a, b) for a, b in known if a.beyond_control(*a.bounds(strict))]
    if not apart:
        raise _Untestable(f"no two of these cells with as many CPUs differ in {predicate.follows}")
    same, against = [], []
    for lead, trail in apart:
        up = lead.ratio.ratio > 1
        low, high = trail.bounds(statistics.CONFIDENCE)
        if trail.beyond_control(low, high) and (low > 1) == up:
            same.append((lead, trail))
        low, high = trail.bounds(strict)
        if trail.beyond_control(low, high) and (low > 1) != up:
            against.append((lead, trail))
    verdict = REFUTED if against else SUPPORTED if len(same) == len(apart) else INCONCLUSIVE
    shown = against or [pair for pair in apart if pair not in same] or same
    lead, trail = max(shown, key=lambda pair: abs(np.log(pair[0].ratio.ratio)))
    low, high = trail.bounds(statistics.CONFIDENCE)
    one, other = pairs[leads.index(lead)]
    because = (
        f"{title}: {len(apart)} differ in {predicate.follows}, {predicate.metric} goes the same "
        f"way in {len(same)} of them and the other way in {len(against)}; {one['label']} over "
        f"{other['label']}: {predicate.follows} ratio {lead.ratio.ratio:.3f}, {predicate.metric} "
        f"ratio {trail.ratio.ratio:.3f}, 95 % interval [{low:.3f}, {high:.3f}] from "
        f"{trail.ratio.n} blocks"
    )
    return _Judged(verdict, because, names)


def _against_itself(metric: str) -> Comparison:
    return Comparison(metric=metric, cell="-", against="-", same_within=1)


def _cpu_count(cell: dict, side: Side) -> int:
    return len(cpulist.parse(_cpus(cell, side)))


def _cpus(cell: dict, side: Side) -> str:
    """A cell's CPUs; those of the host where it is not bound."""
    return cell["cpus"] or bindings.usable_cpus(side.host["topology"])


# ---------------------------------------------------------------- the same machine, nodes shown


@dataclass(frozen=True)
class _Unpaired(_Pair):
    """A cell's values and those of its partner in another run."""

    values: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())

    def bounds(self, confidence: float) -> tuple[float, float]:
        mine, theirs = self.values
        return statistics.unpaired(theirs, mine, confidence)[1:]


def _beside(predicate: Beside, side: Side, others: Sequence[Side]) -> _Judged:
    if len(side.host["topology"]["nodes"]) > 1:
        raise _Untestable("this host shows its nodes: judged is its run with the nodes hidden")
    shown = [other for other in others if _same_machine(side.host, other.host)]
    if not shown:
        raise _Untestable("it needs a run of this machine with its nodes shown beside this one")
    other = shown[-1]
    pairs, names = [], []
    for cell, partner in _same_cpus(side, other):
        rows = _rows(predicate, side, [cell["id"]])
        theirs = _rows(predicate, other, [partner["id"]])
        if rows["tool"][0] != theirs["tool"][0]:
            raise _Untestable("results of different tools make no ratio")
        for point in predicate.points or rows["point"].unique().sort().to_list():
            pairs.append(_across(cell, partner, point, rows, theirs, predicate.metric))
        names.append(cell["id"])
    if not pairs:
        raise _Untestable("no cell of this run is on the CPUs of one of the run with nodes shown")
    title = f"{_title(predicate)}, nodes hidden against shown ({other.host['host']})"
    return _decided(predicate, pairs, title, tuple(names), side)


def _across(
    cell: dict, partner: dict, point: str, rows: pl.DataFrame, theirs: pl.DataFrame, metric: str
) -> _Unpaired:
    values = []
    for frame, name in ((rows, cell["id"]), (theirs, partner["id"])):
        mine = frame.filter((pl.col("cell") == name) & (pl.col("point") == point))
        values.append(tuple(mine["value"].to_list()))
    control = _hull(*(statistics.aa_interval(frame, metric, point) for frame in (rows, theirs)))
    n = min(map(len, values))
    label = cell["label"] + (f" at {point}" if point else "")
    if n < 2 or min(min(one) for one in values) <= 0:
        why = "too few values" if n < 2 else "no ratio: a value is 0 or less"
        return _Unpaired(label, Ratio(None, None, None, n, {}, why), control)
    ratio = Ratio(*statistics.unpaired(values[1], values[0]), n)
    return _Unpaired(label, ratio, control, (values[0], values[1]))


def _same_machine(host: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether another host record is of this machine with more nodes than it shows here."""
    one, two = host["topology"], other["topology"]
    alike = all(one.get(key) == two.get(key) for key in ("model", "packages", "threads"))
    product = [(record.get("before") or {}).get("dmi.product") or {} for record in (host, other)]
    named = [entry.get("value") for entry in product]
    return alike and len(two["nodes"]) > 1 and (None in named or named[0] == named[1])


def _same_cpus(side: Side, other: Side) -> list[tuple[dict, dict]]:
    """Cells of one load on the same CPUs, the partner without a memory policy."""

    def key(cell: dict, of: Side) -> tuple[str, str]:
        return _cpus(cell, of), cell["id"].partition("/")[2]

    free = {
        key(cell, other): cell
        for cell in other.plan["cells"]
        if cell["role"] != "control" and cell["memory"]["policy"] == "default"
    }
    mine = {key(c, side): c for c in side.plan["cells"] if c["role"] != "control"}
    return [(cell, free[at]) for at, cell in mine.items() if at in free]


# ---------------------------------------------------------------- levels and settings


def _level(predicate: Level, side: Side) -> _Judged:
    cells = _named(predicate.cell, side)
    names = tuple(cell["id"] for cell in cells)
    rows = _rows(predicate, side, names)
    rows = rows.filter(pl.col("cell").is_in(list(names)))
    points = predicate.points or rows["point"].unique().sort().to_list()
    title = predicate.metric + (f" per {predicate.per}" if predicate.per else "")
    series = []
    for cell in cells:
        for point in points:
            at = rows.filter((pl.col("cell") == cell["id"]) & (pl.col("point") == point))
            values = at.group_by("block").agg(pl.col("value").mean())["value"].to_list()
            name = f"{title} {point}".rstrip() + f", {cell['label']}"
            if len(values) < BLOCKS_NEEDED:
                few = _too_few_blocks(len(values), name, side.plan)
                return _Judged(INCONCLUSIVE, f"{predicate.cell}: {few}", names)
            series.append((name, values))
    if not series:
        raise _Untestable(f"{title} was not measured in {predicate.cell}")
    strict = 1 - (1 - statistics.CONFIDENCE) / len(series)
    least, greatest = predicate.bounds
    verdict, telling = SUPPORTED, _farthest_out(series, least, greatest)
    for name, values in series:
        low, high, _ = statistics.median_interval(values) or (-np.inf, np.inf, 0.0)
        sure = statistics.median_interval(values, strict)
        if sure and (sure[1] < least or sure[0] > greatest):
            verdict, telling = REFUTED, (name, values)
            break
        if low < least or high > greatest:
            verdict, telling = INCONCLUSIVE, (name, values)
    unit = "" if predicate.per else rows["unit"][0]
    return _Judged(verdict, _level_sentence(predicate, telling, len(series), unit, verdict), names)


def _farthest_out(
    series: list[tuple[str, list[float]]], least: float, greatest: float
) -> tuple[str, list[float]]:
    """The series whose median is nearest to a bound, or beyond it."""

    def room(one: tuple[str, list[float]]) -> float:
        middle = float(np.median(one[1]))
        return min(middle - least, greatest - middle)

    return min(series, key=room)


def _level_sentence(
    predicate: Level, telling: tuple[str, list[float]], count: int, unit: str, verdict: str
) -> str:
    name, values = telling
    low, high, level = statistics.median_interval(values) or (min(values), max(values), 0.0)
    least, greatest = predicate.bounds
    if predicate.between:
        asked = f"between {_figure(least, unit)} and {_figure(greatest, unit)}"
    elif predicate.at_least is not None:
        asked = f"at least {_figure(least, unit)}"
    else:
        asked = f"at most {_figure(greatest, unit)}"
    which = f"of {count} the least favourable, " if count > 1 else ""
    text = (
        f"{which}{name}: median {_figure(float(np.median(values)), unit)}, {level:.1%} interval"
        f" [{_figure(low, unit)}, {_figure(high, unit)}] from {len(values)} blocks;"
        f" the claim asks for {asked}"
    )
    if verdict == INCONCLUSIVE and (high < least or low > greatest):
        text += "; not beyond chance once the number of cells is paid for"
    elif verdict == INCONCLUSIVE:
        text += "; the interval straddles the margin"
    return text


def _figure(value: float, unit: str) -> str:
    if unit in ("B", "bytes"):
        return ("-" if value < 0 else "") + planning.size(round(abs(value)))
    if unit == "share":
        return f"{value:.1%}"
    shown = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{shown} {unit}".rstrip()


# names of the kernel's files where host.json has another for the same
_ALIASES = {"lru_gen.enabled": "vm.lru_gen"}


def _setting(predicate: Setting, host_record: dict[str, Any]) -> _Judged:
    name, before = predicate.setting, host_record.get("before") or {}
    entry = before.get(name) or before.get(_ALIASES.get(name, name))
    if entry is None:
        raise _Untestable(f"{name} was not recorded before the run")
    if entry["value"] is None:
        raise _Untestable(f"{name} is unknown on this host: {entry['reason']}")
    found = str(entry["value"])
    verdict = SUPPORTED if settings.same(name, predicate.value, found) else REFUTED
    return _Judged(
        verdict, f"{name} was {found} before the run; the claim asks for {predicate.value}"
    )


# ---------------------------------------------------------------- presence


def _presence(measurements: pl.DataFrame, host_record: dict[str, Any]) -> _Judged:
    """Judge whether the host hides its nodes, from the core-to-core latencies of the run."""
    from . import core_groups

    if host_record.get("emulated"):
        return _Judged(NOT_TESTABLE, "emulated: timings carry no NUMA meaning")
    rows = measurements.filter(
        (pl.col("metric") == "core_latency")
        & (pl.col("grade") == "verified")
        & pl.col("value").is_finite()
    )
    if rows.is_empty():
        return _Judged(NOT_TESTABLE, "no verified core-to-core latency")
    cells = tuple(rows["cell"].unique().sort().to_list())
    blocks = rows["block"].n_unique()
    if blocks < BLOCKS_NEEDED:
        return _Judged(
            INCONCLUSIVE,
            f"too few blocks: {blocks} verified, and fewer than {BLOCKS_NEEDED} decide nothing",
            cells,
        )
    groups = core_groups.from_measurements(
        rows, host_record["topology"], virtual=core_groups.is_virtual(host_record)
    )
    verdict = {True: SUPPORTED, False: REFUTED, None: INCONCLUSIVE}[groups.hidden_nodes]
    return _Judged(verdict, groups.evidence, cells)
