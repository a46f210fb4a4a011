"""Experiment files: what to ask of a host, in YAML that a DBA can read."""

from __future__ import annotations

import difflib
import random
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from numalab import home
from numalab.agent import SCHEMA
from numalab.agent.errors import Fault

Binding = str | dict[str, Any]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tool(_Strict):
    """What measures: a name, the drivers that can do it in order of preference, their options."""

    name: str
    prefer: list[str] = Field(min_length=1)
    options: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _prefer_itself(cls, data: Any) -> Any:
        if isinstance(data, dict) and "name" in data and "prefer" not in data:
            return {**data, "prefer": [data["name"]]}
        return data


class Measure(_Strict):
    """A metric that answers the question: its unit and which direction is good."""

    unit: str
    better: Literal["higher", "lower"]


class Sweep(_Strict):
    """More cells: each binding named here again for each value of one option of the tool."""

    option: str
    values: list[Any] = Field(min_length=1)
    bindings: list[Binding] = Field(min_length=1)


class Case(_Strict):
    """One state of the host and the tool under which bindings are measured.

    ``says`` is its name for readers; ``bindings`` are those measured in it (all of the
    experiment's); ``options`` override the tool's; ``changes`` are set while its trials run.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.+-]*$")
    says: str = ""
    bindings: list[Binding] | None = None
    options: dict[str, Any] = {}
    changes: dict[str, str] = {}


class Profile(BaseModel):
    """How much to measure; every key that is not named here is an option of the tool."""

    model_config = ConfigDict(extra="allow", frozen=True)

    blocks: int = Field(ge=1)
    bindings: list[Binding] | None = None
    sweep: list[Sweep] | None = None
    cases: list[str] | None = None
    time_limit_s: float | None = Field(default=None, gt=0)

    def options(self) -> dict[str, Any]:
        """Return the options of the tool that this profile sets."""
        return dict(self.model_extra or {})


class Experiment(_Strict):
    """One experiment file; ``name`` is the file's stem."""

    name: str
    question: str
    notebook: str
    tool: Tool
    bindings: list[Binding] = []
    baseline: Binding | None = None
    control: bool = True
    measure: dict[str, Measure] = {}
    sweep: list[Sweep] = []
    cases: list[Case] = []
    collectors: dict[str, Any] | bool = True
    changes: dict[str, str] = {}
    profiles: dict[str, Profile]
    claims: list[dict[str, Any]] = []

    @model_validator(mode="after")
    def _cases_are_there(self) -> Experiment:
        known = [case.name for case in self.cases]
        for name, profile in self.profiles.items():
            for case in profile.cases or []:
                if case not in known:
                    raise ValueError(
                        f"profile {name} names the case {case!r}, which is none of {known}"
                    )
            if known and (self.sweep if profile.sweep is None else profile.sweep):
                raise ValueError("an experiment has cases and a sweep: write its values as cases")
        return self

    def profile(self, name: str) -> Profile:
        """Return a profile by name; Fault names those that exist."""
        if name not in self.profiles:
            raise Fault(
                f"experiment {self.name} has no profile {name!r}",
                f"it has {', '.join(self.profiles)}",
            )
        return self.profiles[name]

    def _chosen(self, names: list[str] | None) -> list[Case]:
        """The named cases (all without names), in the file's order; Fault for an unknown name."""
        known = [case.name for case in self.cases]
        for name in names or []:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise Fault(
                    f"experiment {self.name} has no case {name!r}",
                    (f"did you mean {near[0]}? " if near else "")
                    + (f"it has {', '.join(known)}" if known else "it has no cases"),
                )
        return [case for case in self.cases if names is None or case.name in names]

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
    ) -> dict[str, Any]:
        """Return the request that the agent on the host turns into a plan (JSON-able).

        The keyword arguments override the file: ``bindings`` replaces the experiment's list (a
        case that names bindings of its own keeps them), ``cases`` names the cases to measure
        instead of the profile's choice, ``blocks`` replaces the profile's number, ``tool`` the
        order of preference, ``options`` adds to the tool's options; without ``seed`` a fresh one
        is drawn and recorded.
        """
        chosen = self.profile(profile)
        sweep = chosen.sweep if chosen.sweep is not None else self.sweep
        return {
            "schema": SCHEMA,
            "experiment": self.name,
            "question": self.question,
            "profile": profile,
            "host": host,
            "tool": {
                "name": self.tool.name,
                "prefer": [tool] if tool else list(self.tool.prefer),
                "options": {**self.tool.options, **chosen.options(), **(options or {})},
            },
            "bindings": bindings or chosen.bindings or self.bindings,
            "baseline": self.baseline,
            "control": self.control,
            "blocks": blocks if blocks is not None else chosen.blocks,
            "seed": seed if seed is not None else random.SystemRandom().randrange(1, 2**31),
            "sweep": [] if bindings else [one.model_dump() for one in sweep],
            "cases": [one.model_dump() for one in self._chosen(cases or chosen.cases)],
            "headline": self.headline,
            "measure": {name: measure.model_dump() for name, measure in self.measure.items()},
            "collectors": self.collectors if collectors is None else collectors,
            "changes": dict(self.changes),
            "time_limit_s": time_limit_s or chosen.time_limit_s,
        }


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice: the last would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, (str, int, float, bool)):
                continue
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


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
    if not path.is_file():
        known = names()
        near = difflib.get_close_matches(str(name), known, n=1)
        raise Fault(
            f"there is no experiment {str(name)!r}",
            (f"did you mean {near[0]}? " if near else "") + f"Known: {', '.join(known)}",
        )
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise Fault(f"{path}{where}: {problem}", "the file must be YAML") from None
    except UnicodeDecodeError:
        raise Fault(f"{path} is not UTF-8 text", "an experiment file is YAML text") from None
    if not isinstance(data, dict):
        raise Fault(f"{path} holds no mapping of keys", "see any file in experiments/")
    try:
        return Experiment(name=path.stem, **{str(key): value for key, value in data.items()})
    except (ValidationError, TypeError) as error:
        raise Fault(f"{path}: {_explain(error)}", "see CONTRIBUTING.md for the keys") from None


def _explain(error: ValidationError | TypeError) -> str:
    if isinstance(error, TypeError):
        return "it may not set 'name': the file's own name is the experiment's"
    parts = []
    for item in error.errors():
        place = ".".join(str(step) for step in item["loc"])
        message = item["msg"][0].lower() + item["msg"][1:]
        if item["type"] == "extra_forbidden":
            near = difflib.get_close_matches(str(item["loc"][-1]), Experiment.model_fields, n=1)
            message = "unknown key" + (f", did you mean {near[0]}?" if near else "")
        parts.append(f"{place}: {message}")
    return "; ".join(dict.fromkeys(parts))
