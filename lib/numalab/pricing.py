"""What all experiments together would take here, and how they share a time that was given."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numalab.agent.contract import Host, Plan, reason, to_json
from numalab.agent.errors import Fault
from numalab.agent.host import topology
from numalab.agent.plan import make, show
from numalab.agent.words import units
from numalab.asking import Asked, LeftOut, Settings, check_possible

_UNPRICED_S = 60.0  # of a request without a budget, where a budget is shared
# All experiments of a profile take at most three quarters of an hour, or ten hours, on any host;
# here without what installing the tools takes.
PROFILE_S = {"quick": 42 * 60.0, "full": 9.75 * 3600.0}


@dataclass(frozen=True)
class Priced:
    """An experiment with its plan, or why it is left out; ``seconds`` is what it adds to all."""

    asked: Asked
    plan: Plan | None
    why: Fault | None = None
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.asked.experiment.name

    @property
    def left_out(self) -> list[tuple[str, str]]:
        """What of it is not measured ("" for itself) and why, once for each reason."""
        if self.plan is None:
            return [("", str(self.why))]
        fewer = [("", str(one)) for one in self.plan.warnings if one.code == "fewer-blocks"]
        return [*fewer, *show.skipped(self.plan)]


@dataclass(frozen=True)
class All:
    """Every experiment with its price, in the order in which they run."""

    each: Sequence[Priced]
    budget_s: float | None

    @property
    def seconds(self) -> float:
        """The planned seconds of all, what several need prepared counted once."""
        return sum(one.seconds for one in self.each)

    def text(self, width: int) -> str:
        """Return every experiment's trials and time, what is left out and why, and the total."""
        wide = max(len(one.name) for one in self.each) + 2
        lines: list[str] = []
        said: set[str] = set()
        for one in self.each:
            lines.append(f"{one.name:<{wide}}{_size(one)}")
            for what, why in one.left_out:
                parts = [what, "same reason as above" if why in said else why]
                said.add(why)
                lines += textwrap.wrap(
                    ": ".join(filter(None, parts)), width, initial_indent=" " * wide + "– ",
                    subsequent_indent=" " * wide + "  ", break_on_hyphens=False,
                )  # fmt: skip
        trials = sum(len(one.plan.order) for one in self.each if one.plan)
        total = f"{units.count(trials, 'trial')}, about {units.seconds(self.seconds)}"
        if self.budget_s is not None:
            total += f" of {units.seconds(self.budget_s)}"
        return "\n".join([*lines, f"{'all':<{wide}}{total}"])

    def as_dict(self) -> dict[str, Any]:
        """Return the same for a script."""
        return {
            "seconds": round(self.seconds, 1),
            "budget_s": self.budget_s,
            "experiments": [
                {
                    "experiment": one.name,
                    "trials": len(one.plan.order) if one.plan else 0,
                    "blocks": one.plan.request.blocks if one.plan and one.plan.order else 0,
                    "seconds": round(one.seconds, 1),
                    "why": str(one.why) if one.why else None,
                    "skipped": to_json(one.plan.skipped) if one.plan else [],
                    "warnings": [str(warning) for warning in one.plan.warnings] if one.plan else [],
                }
                for one in self.each
            ],
        }


def _size(one: Priced) -> str:
    if one.plan is None or one.why is not None:
        return "left out"
    blocks = units.count(one.plan.request.blocks, "block")
    trials = units.count(len(one.plan.order), "trial")
    return f"{trials} in {blocks}, about {units.seconds(one.seconds)}"


def price(
    asked: Sequence[Asked],
    settings: Settings,
    budget_s: float | None = None,
    root: Path = Path("/"),
) -> All:
    """Return what each experiment would take on this host, or on that of a copied tree.

    Those of least priority are left out as a whole until the others fit: into the profile's time
    as they are; into a budget when each is cut to its least, and these share what remains by what
    they would use of it. Time that is left then goes to those that lack it.
    """
    host = topology.read(str(root))
    each = _priced(asked, settings, host)
    total_s = budget_s or PROFILE_S.get(asked[0].request.profile)
    if total_s is not None:
        each = _cut(each, settings, host, total_s, to_their_least=budget_s is not None)
        _give_the_rest(each, settings, host, total_s)
    return All(each, budget_s)


def _cut(
    each: Sequence[Priced], settings: Settings, host: Host, total_s: float, to_their_least: bool
) -> list[Priced]:
    """Return as much of each as there is time for."""
    if sum(_needed(one, total_s) for one in each) <= total_s:
        return list(each)
    chosen = [one for one in each if one.seconds or _needed(one, total_s)]
    while sum(_least(one) if to_their_least else _needed(one, total_s) for one in chosen) > total_s:
        chosen.remove(min(chosen, key=lambda one: one.asked.experiment.priority))
    chosen = [one for one in chosen if one.seconds]
    wanted = sum(one.seconds - _least(one) for one in chosen)
    share = min(1.0, (total_s - sum(map(_least, chosen))) / wanted) if wanted else 0.0
    smaller = [
        _with_budget(one, _least(one) + share * (one.seconds - _least(one))) for one in chosen
    ]
    fitted = {one.name: one for one in _priced(smaller, settings, host)}
    late = LeftOut(reason("budget-for-others", budget_s=total_s))
    for one in each:
        if one.seconds and one.name not in fitted:
            fitted[one.name] = Priced(one.asked, None, late)
    return [fitted.get(one.name, one) for one in each]


def _give_the_rest(each: list[Priced], settings: Settings, host: Host, total_s: float) -> None:
    """Give the time that is left to those that lack it, in place and one after another.

    What is left out as a whole comes first, for nothing else answers its question.
    """
    lacking = [one for one in each if _lacks_time(one)]
    for one in sorted(lacking, key=lambda one: (one.seconds > 0, -one.asked.experiment.priority)):
        rest_s = max(0.0, total_s - sum(other.seconds for other in each))
        (more,) = _priced([_with_budget(one, one.seconds + rest_s)], settings, host)
        if one.plan is None and not more.seconds:
            continue  # what is said of it already says more
        own_s, its_s = (p.plan.estimate.total_s if p.plan else 0.0 for p in (one, more))
        each[each.index(one)] = replace(more, seconds=one.seconds + its_s - own_s)


def _lacks_time(one: Priced) -> bool:
    if one.plan is None:
        return one.why is not None and make.for_lack_of_time(one.why.reason)
    reasons = [*one.plan.warnings, *(skip.reason for skip in one.plan.skipped)]
    return any(map(make.for_lack_of_time, reasons))


def shared(asked: Sequence[Asked], budget_s: float | None = None) -> list[Asked]:
    """Return requests to hosts that are not seen from here, each with its part of a budget.

    Without one they keep their own, unless these add up to more than the profile may take.
    """
    total = sum(one.request.budget_s or _UNPRICED_S for one in asked)
    budget_s = budget_s or min(total, PROFILE_S.get(asked[0].request.profile, total))
    if budget_s == total:
        return list(asked)
    return [
        replace(
            one,
            request=replace(
                one.request, budget_s=budget_s * (one.request.budget_s or _UNPRICED_S) / total
            ),
        )
        for one in asked
    ]


def _priced(asked: Sequence[Asked], settings: Settings, host: Host) -> list[Priced]:
    """Return the plans; what several need prepared is in the price of the first of them."""
    found = []
    prepared: set[str] = set()
    for one in asked:
        plan = None
        try:
            plan = make.make(one.request, host)
            check_possible(plan, settings)
        except Fault as fault:
            if plan and (plan.order or not plan.skipped):
                plan = None  # the fault alone says why
            found.append(Priced(one, plan, fault))
            continue
        seconds = plan.estimate.total_s
        if plan.outlay:
            seconds -= plan.outlay.prepare_s if str(plan.outlay.says) in prepared else 0
            prepared.add(str(plan.outlay.says))
        found.append(Priced(one, plan, seconds=seconds))
    return found


def _needed(one: Priced, total_s: float) -> float:
    """Return the seconds of its own share, or its least where that is too short for it.

    What takes a third of all the time by itself takes none from the others.
    """
    least_s = one.plan.least_s if one.plan and _lacks_time(one) else 0.0
    return one.seconds or (least_s if least_s < total_s / 3 else 0.0)


def _least(one: Priced) -> float:
    return min(one.seconds, one.plan.least_s if one.plan else 0.0)


def _with_budget(one: Priced, seconds: float) -> Asked:
    """Return what is asked with the budget by which it adds so many seconds to all."""
    if one.plan:
        seconds += one.plan.estimate.total_s - one.seconds  # of data that another one prepares
    return replace(one.asked, request=replace(one.asked.request, budget_s=seconds + 0.01))
