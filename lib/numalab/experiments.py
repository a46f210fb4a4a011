"""Experiment files: what to ask of a host, in YAML that a DBA can read."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from numalab import home, untrusted, yaml_file
from numalab.agent.contract import (
    SCHEMA,
    CaseRequest,
    CollectorRequest,
    Measure,
    Request,
    SweepRequest,
    ToolRequest,
)
from numalab.agent.errors import Fault
from numalab.agent.plan import budget, resolve
from numalab.agent.plan.classes import EVERY
from numalab.agent.plan.grammar import suggestion
from numalab.agent.plan.request import check

Binding = str | dict[str, Any]

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s)?\Z")


def duration(text: object) -> float:
    """Return the seconds of a length of time: 90s, 30m, 1h30m; Fault for anything else."""
    match = _DURATION.match(text) if isinstance(text, str) else None
    hours, minutes, seconds = (float(part or 0) for part in (match.groups() if match else "000"))
    if not 0 < (total := 3600 * hours + 60 * minutes + seconds) < 1e7:
        raise Fault(f"{text!r} is no length of time", "write it like 90s, 30m or 1h30m")
    return total


def share(text: str) -> float:
    """Return a share that was written in percent ("3%") as a number; Fault for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", text)
    found = float(match.group(1)) / 100 if match else 0.0
    if not 0.001 <= found <= 1:
        raise Fault(f"{text!r} is no share from 0.1% to 100%", "write it like 3% or 0.5%")
    return found


class Profile(BaseModel):
    """How much to measure; every key that is not named here is an option of the tool."""

    model_config = ConfigDict(extra="allow", frozen=True)

    blocks: int = Field(ge=1)
    bindings: list[Binding] | None = None
    sweep: list[SweepRequest] | None = None
    cases: list[str] | None = None
    time_limit_s: float | None = Field(default=None, gt=0)
    budget: float | None = None  # seconds, of the whole run

    @field_validator("budget", mode="before")
    @classmethod
    def _read_budget(cls, text: object) -> float:
        try:
            return duration(text)
        except Fault as fault:
            raise ValueError(str(fault)) from None

    def options(self) -> dict[str, Any]:
        """Return the options of the tool that this profile sets."""
        return dict(self.model_extra or {})


class Experiment(BaseModel):
    """One experiment file; ``name`` is the file's stem. CONTRIBUTING.md explains the keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    question: str
    priority: int = 0  # the higher, the earlier it runs among all, and the later it is left out
    # In notebooks/; without it the notebook that shows any run.
    notebook: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*\.ipynb$")
    tool: ToolRequest
    bindings: list[Binding] = []
    baseline: Binding | None = None
    control: bool = True
    pairs: Literal["class", "every"] = "class"  # as of `Request`
    measure: dict[str, Measure] = {}
    sweep: list[SweepRequest] = []
    cases: list[CaseRequest] = []
    collectors: CollectorRequest | bool = True
    changes: dict[str, str] = {}
    profiles: dict[str, Profile]
    claims: list[dict[str, Any]] = []

    def profile(self, name: str) -> Profile:
        """Return a profile by name; Fault names those that exist."""
        if name not in self.profiles:
            raise Fault(
                f"experiment {self.name} has no profile {name!r}",
                f"it has {', '.join(self.profiles)}",
            )
        return self.profiles[name]

    def _chosen(self, names: list[str] | None) -> tuple[CaseRequest, ...]:
        """The named cases (all without names), in the file's order; Fault for an unknown name."""
        known = [case.name for case in self.cases]
        for name in names or []:
            if name not in known:
                raise Fault(
                    f"experiment {self.name} has no case {name!r}",
                    suggestion(name, known) if known else "it has no cases",
                )
        return tuple(case for case in self.cases if names is None or case.name in names)

    def _collecting(self, asked: bool | None) -> CollectorRequest | None:
        wanted = self.collectors if asked is None else asked
        if isinstance(wanted, CollectorRequest):
            return wanted
        return CollectorRequest() if wanted else None

    def _sweep(
        self, profile: Profile, bindings: list[Binding] | None, pairs: str | None
    ) -> tuple[SweepRequest, ...]:
        """What is swept; where bindings are asked for, of these alone."""
        sweep = profile.sweep if profile.sweep is not None else self.sweep
        if pairs is not None:
            sweep = [replace(one, pairs=None) for one in sweep]
        return _of_these(sweep, bindings) if bindings else tuple(sweep)

    def _tool(self, profile: Profile, tool: str | None, options: dict[str, Any]) -> ToolRequest:
        prefer = (tool,) if tool else self.tool.prefer or (self.tool.name,)
        of_all = {**self.tool.options, **profile.options(), **options}
        return ToolRequest(name=self.tool.name, prefer=prefer, options=of_all)

    @property
    def headline(self) -> str | None:
        """The first metric of ``measure``: the one that progress lines show."""
        return next(iter(self.measure), None)

    def request(
        self,
        profile: str,
        host: str,
        *,
        seed: int | None = None,
        bindings: list[Binding] | None = None,
        cases: list[str] | None = None,
        blocks: int | None = None,
        tool: str | None = None,
        options: dict[str, Any] | None = None,
        collectors: bool | None = None,
        time_limit_s: float | None = None,
        pairs: str | None = None,
        budget_s: float | None = None,
        until: float | None = None,
    ) -> Request:
        """Return the request that the agent on the host turns into a plan.

        The keyword arguments override the file: ``bindings`` replaces the experiment's list (a
        case that names bindings of its own keeps them), ``cases`` names the cases to measure
        instead of the profile's choice, ``blocks`` replaces the profile's number, ``tool`` the
        order of preference, ``options`` adds to the tool's options; without ``seed`` a fresh one
        is drawn and recorded; ``pairs`` is that of the file, its sweeps included: without it
        ``bindings`` are measured on every node and pair. ``until`` (0.03: 3 %) adds blocks until
        every comparison is decided so finely. The profile's budget is for what the profile asks:
        where bindings, cases, blocks, options, pairs or ``until`` are asked for, only ``budget_s``
        counts.
        """
        chosen = self.profile(profile)
        own = bindings or cases or blocks or options or pairs or until
        if until is not None:
            blocks = blocks or budget.MOST_BLOCKS
        return Request(
            schema=SCHEMA,
            experiment=self.name,
            question=self.question,
            profile=profile,
            host=host,
            tool=self._tool(chosen, tool, options or {}),
            bindings=tuple(bindings or chosen.bindings or self.bindings),
            baseline=self.baseline,
            control=self.control,
            blocks=blocks if blocks is not None else chosen.blocks,
            seed=seed if seed is not None else random.SystemRandom().randrange(1, 2**31),
            sweep=self._sweep(chosen, bindings, pairs),
            cases=self._chosen(cases or chosen.cases),
            names=tuple(dict.fromkeys(_named(self.claims))),
            headline=self.headline,
            measure=self.measure,
            collectors=self._collecting(collectors),
            changes=self.changes,
            time_limit_s=time_limit_s or chosen.time_limit_s,
            pairs=pairs if pairs is not None else EVERY if bindings else self.pairs,
            budget_s=budget_s or (None if own else chosen.budget),
            until=until,
        )


def _of_these(sweep: list[SweepRequest], bindings: list[Binding]) -> tuple[SweepRequest, ...]:
    """Return the sweep of those of its bindings that are among other ones by their name."""
    names = {resolve.parse(binding).name for binding in bindings}
    own = [
        replace(one, bindings=tuple(b for b in one.bindings if resolve.parse(b).name in names))
        for one in sweep
    ]
    return tuple(one for one in own if one.bindings)


def _named(value: Any) -> Iterator[str]:
    """The bindings that claims name: of BINDING/CASE and BINDING/OPTION=VALUE the first part."""
    if isinstance(value, list):
        for one in value:
            yield from _named(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            if key in ("cell", "cells", "against", "among"):
                each = one if isinstance(one, list) else [one]
                yield from (name.partition("/")[0] for name in each if isinstance(name, str))
            elif key in ("holds_if", "relative_to"):
                yield from _named(one)


def names() -> list[str]:
    """Return the names of all experiments of the checkout, sorted."""
    return sorted(path.stem for path in (home.root() / "experiments").glob("*.yml"))


def load(name: str | Path) -> Experiment:
    """Read an experiment by name, or by the path of a file of one's own.

    Raises Fault for an unknown name, malformed YAML (with its line) or a wrong or unknown key.
    """
    path = Path(name)
    if path.suffix not in (".yml", ".yaml"):
        path = home.root() / "experiments" / f"{name}.yml"
        if not untrusted.is_name(str(name)) or not path.is_file():
            hint = yaml_file.ending(str(name)) or suggestion(str(name), names())
            raise Fault(f"there is no experiment {str(name)!r}", hint)
    if not path.exists():
        raise Fault(f"there is no file {path}", f"numalab's own: {', '.join(names())}")
    return _checked(yaml_file.read(path), path.stem, path)


def parse(text: str, name: str, where: Path) -> Experiment:
    """Return the experiment that a YAML text describes; every profile of it can be planned.

    Raises Fault as `load` does; ``where`` is the file that it speaks of.
    """
    return _checked(yaml_file.parse(text, where), name, where)


def _check_claims(loaded: Experiment, where: Path) -> None:
    from numalab.analysis import claims

    try:
        claims.load(loaded.claims)
    except Fault as fault:
        raise Fault(f"{where}: {fault.what}", fault.hint) from None


def _checked(keys: dict[str, Any], name: str, where: Path) -> Experiment:
    try:
        loaded = Experiment(name=name, **keys)
    except ValidationError as error:
        why = yaml_file.explain(error, Experiment.model_fields)
        raise Fault(f"{where}: {why}", "see CONTRIBUTING.md for the keys") from None
    if where.parent != home.root() / "experiments":  # those are tested, and this takes a while
        _check_claims(loaded, where)
    for profile in loaded.profiles:
        try:
            check(loaded.request(profile, "here"))
        except Fault as fault:
            raise Fault(f"{where}, profile {profile}: {fault.what}", fault.hint) from None
    return loaded
