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
from numalab.session import Asked, LeftOut, Settings, check_possible

_UNPRICED_S = 60.0  # of a request without a budget, where a budget is shared


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
    def left_out(self) -> list[str]:
        """What of it is not measured and why, one line a reason."""
        if self.plan is None:
            return [str(self.why)]
        fewer = [str(one) for one in self.plan.warnings if one.code == "fewer-blocks"]
        return [*fewer, *show.skipped_lines(self.plan)]


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
            new = [line for line in one.left_out if line not in said]
            if len(new) < len(one.left_out):
                new.append("and what was said above" if new else "for what was said above")
            said.update(new)
            for line in new:
                lines += textwrap.wrap(
                    line, width, initial_indent=" " * wide + "– ",
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

    With a budget those of least priority are left out as a whole, until it holds the least that
    each of the others can be cut to; these share what remains by what they would use of it.
    """
    host = topology.read(str(root))
    each = _priced(asked, settings, host)
    if budget_s is None or sum(one.seconds for one in each) <= budget_s:
        return All(each, budget_s)
    chosen = [one for one in each if one.seconds]
    while sum(map(_least, chosen)) > budget_s:
        chosen.remove(min(chosen, key=lambda one: one.asked.experiment.priority))
    wanted = sum(one.seconds - _least(one) for one in chosen)
    share = (budget_s - sum(map(_least, chosen))) / wanted if wanted else 0.0
    smaller = [_with_budget(one, share) for one in chosen]
    fitted = {one.name: one for one in _priced(smaller, settings, host)}
    late = LeftOut(reason("budget-for-others", budget_s=budget_s))
    for one in each:
        if one.seconds and one.name not in fitted:
            fitted[one.name] = Priced(one.asked, None, late)
    return All([fitted.get(one.name, one) for one in each], budget_s)


def shared(asked: Sequence[Asked], budget_s: float) -> list[Asked]:
    """Return requests to hosts that are not seen from here, each with its part of a budget."""
    total = sum(one.request.budget_s or _UNPRICED_S for one in asked)
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


def _least(one: Priced) -> float:
    return min(one.seconds, one.plan.least_s if one.plan else 0.0)


def _with_budget(one: Priced, share: float) -> Asked:
    """Return what is asked with the least time for it and a share of what it would use beyond."""
    seconds = _least(one) + share * (one.seconds - _least(one))
    return replace(one.asked, request=replace(one.asked.request, budget_s=seconds + 0.01))
