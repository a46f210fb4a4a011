"""Service files: a service of anybody's in YAML; `services/README.md` explains the keys."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from numalab import home, untrusted, yaml_file
from numalab.agent.contract import Plan, reason, to_json
from numalab.agent.errors import Fault
from numalab.agent.host.tools import Question, Tool
from numalab.agent.paths import published
from numalab.agent.plan.grammar import suggestion
from numalab.agent.served.service import description, programs
from numalab.agent.served.service.description import Service, WrongService

_NO_WORDS = ("service", "data", "rate_is")  # options that stand in no command line
_README = "services/README.md explains the keys"


def names() -> list[str]:
    """Return the names of the services of the checkout, sorted."""
    return sorted(path.stem for path in (home.root() / "services").glob("*.yml"))


def tools() -> dict[str, Question]:
    """Return what asks each service of the checkout whether its programs are on this host.

    Files with a mistake are passed over: a run tells of these.
    """
    found: dict[str, Question] = {}
    for name in names():
        with contextlib.suppress(Fault):
            found[name] = partial(tool, _load(name))
    return found


def tool(service: Service) -> Tool:
    """Return whether the programs of a service are on this host, and its version."""
    try:
        _, version = programs.find(service)
    except Fault as fault:
        return Tool(service.name, False, None, reason("tool-unusable", what=fault.what))
    return Tool(service.name, True, version or None)


def load(name: str) -> dict[str, Any]:
    """Return a service, by its name or the path of a file, as the mapping that the agent gets.

    Raises Fault for an unknown name and for a file with a mistake, with its line and key.
    """
    return dict(to_json(_load(name)))


def _load(name: str) -> Service:
    path = Path(name)
    if path.suffix not in (".yml", ".yaml"):
        path = home.root() / "services" / f"{name}.yml"
        if not untrusted.is_name(name) or not path.is_file():
            hint = yaml_file.ending(name) or suggestion(name, names())
            raise Fault(f"there is no service {name!r}", hint)
    if not path.is_file():
        raise Fault(f"there is no file {path}", f"numalab's own: {', '.join(names())}")
    content = untrusted.read_bytes(path.resolve().parent, path.name, untrusted.LARGEST_YAML)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise Fault(f"{path} is not UTF-8 text", "it must be YAML text") from None
    return _parse(text, path)


def parse(text: str, where: Path) -> dict[str, Any]:
    """Return the service that a YAML text describes; see `load`."""
    return dict(to_json(_parse(text, where)))


def _parse(text: str, where: Path) -> Service:
    if not untrusted.is_name(where.stem):
        raise Fault(f"{where}: a service is called as its file", "use letters, digits, . - _")
    keys = _long_form(yaml_file.parse(text, where))
    keys["name"] = where.stem
    keys["here"] = published(str(where.resolve().parent))
    _read_files(keys, where, text)
    plain = json.loads(json.dumps(keys, default=str))
    try:
        return description.read(plain)
    except WrongService as wrong:
        line = yaml_file.line_of(yaml_file.lines(text), wrong.key)
        raise Fault(f"{where}, line {line}, {wrong.what}", wrong.hint or _README) from None
    except Fault as fault:
        raise Fault(_mistakes(plain, where, text) or f"{where}: {fault.what}", _README) from None


def _read_files(keys: dict[str, Any], where: Path, text: str) -> None:
    """Put the text of a file beside the service's in the place of each `{file: PATH}`."""
    files = keys.get("files")
    if not isinstance(files, dict):
        return
    for name, given in files.items():
        if not (isinstance(given, dict) and list(given) == ["file"]):
            continue
        try:
            content = untrusted.read_bytes(
                where.resolve().parent, str(given["file"]), untrusted.LARGEST_YAML
            )
            files[name] = content.decode("utf-8")
        except (Fault, UnicodeDecodeError) as error:
            line = yaml_file.line_of(yaml_file.lines(text), ("files", str(name)))
            said = error.what if isinstance(error, Fault) else f"it is no text: {error}"
            raise Fault(f"{where}, line {line}, files.{name}: {said}", _README) from None


def _mistakes(keys: dict[str, Any], where: Path, text: str) -> str | None:
    """Return every key that is wrong, with its line; None where pydantic finds none.

    Only a wrong file is read so: pydantic needs longer than all else that shows a host.
    """
    from pydantic import TypeAdapter, ValidationError

    for kind in _classes():
        kind.__pydantic_config__ = {"extra": "forbid", "strict": True, "allow_inf_nan": False}
    try:
        TypeAdapter(Service).validate_json(json.dumps(keys))
    except ValidationError as error:
        return yaml_file.at(where, yaml_file.lines(text), error, _known())
    return None


def check_trusted(plan: Plan, named: str | None) -> None:
    """Raise Fault for a plan from elsewhere that starts what no service file of ours says.

    Its service must be the one of the file that is ``named``, or of the checkout's file of that
    name, and the values that it puts into command lines must be numbers, or words of that file.
    """
    said = plan.request.tool.options.get("service")
    name = said.get("name") if isinstance(said, dict) else None
    if named is None and name in names():
        named = str(name)
    ours = load(named) if named is not None else None
    # Where a service lies matters to one that starts something of its folder.
    free = {"here": ""} if "{here}" not in json.dumps(ours) else {}
    if ours is None or not isinstance(said, dict) or {**said, **free} != {**ours, **free}:
        raise Fault(
            f"the run's plan would start the commands of a service {name!r} that is not of this "
            "checkout, or is another there",
            "read its file, and give it: --set service=FILE",
        )
    service = description.read(ours)
    for options in (plan.request.tool.options, *(cell.options for cell in plan.cells)):
        for key, value in options.items():
            if key not in _NO_WORDS and not _is_ours(service, key, value):
                raise Fault(f"the run's plan sets {key} to {value!r}, which no file of ours does")


def _is_ours(service: Service, key: str, value: Any) -> bool:
    """Tell whether a value of a plan is harmless in a command line, or is the service's own."""
    if value is None or isinstance(value, (int, float)):
        return True
    if not isinstance(value, str):
        return False
    option = service.options.get(key)
    own = [*option.texts, option.value] if option else []
    return value in own or re.fullmatch(r"[\w.,:/+-]*", value, re.ASCII) is not None and not option


def _long_form(keys: dict[str, Any]) -> dict[str, Any]:
    """Return the keys with every short form written out."""
    keys = dict(keys)

    def each(name: str, change: Any) -> None:
        if isinstance(keys.get(name), dict):
            keys[name] = {str(key): change(value) for key, value in keys[name].items()}

    each("needs", lambda one: one if isinstance(one, list) else [one])
    each("options", _option)
    each("environment", lambda one: str(one) if isinstance(one, (int, float)) else one)
    if "memory" in keys and not isinstance(keys["memory"], list):
        keys["memory"] = [keys["memory"]]
    if isinstance(keys.get("prepare"), list):
        keys["prepare"] = {"commands": keys["prepare"]}
    if isinstance(keys.get("stop"), str):
        keys["stop"] = {"signal": keys["stop"].removeprefix("SIG")}
    if "balancer" in keys and keys["balancer"] in (None, False):
        keys["balancer"] = description.NO_BALANCER
    for name, inner in (("load", "figures"), ("counters", "metrics")):
        whole = keys.get(name)
        if isinstance(whole, dict) and isinstance(whole.get(inner), dict):
            figures = {str(key): _figure(value, name) for key, value in whole[inner].items()}
            keys[name] = {**whole, inner: figures}
    return keys


def _option(value: Any) -> Any:
    if not isinstance(value, dict):
        return {"value": _word(value)}
    if "total" in value and "value" not in value:
        value = {**value, "value": value["total"], "total": True}
    if isinstance(value.get("texts"), dict):
        value = {**value, "texts": {str(_word(k)): v for k, v in value["texts"].items()}}
    return {**value, "value": _word(value["value"])} if "value" in value else value


def _word(value: Any) -> Any:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _figure(value: Any, of: str) -> Any:
    if not isinstance(value, str):
        return value
    return {"find": value} if "#" in value or of == "load" else {"unit": value}


def _classes() -> Iterator[Any]:
    return (one for one in vars(description).values() if dataclasses.is_dataclass(one))


def _known() -> set[str]:
    return {field.name for kind in _classes() for field in dataclasses.fields(kind)} - {"name"}
