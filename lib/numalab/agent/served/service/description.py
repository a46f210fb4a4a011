"""What a service file holds (`services/README.md` explains it), and how its command lines are made.

The controller reads the file and validates it against these classes (`numalab.services`); the agent
gets it as a mapping in the options of the tool, so that the recorded plan holds the whole service.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ...contract import from_json
from ...drivers import options
from ...errors import Fault

COMMAND, HTTP, PGBENCH = "command", "http", "pgbench"
LOADS = (COMMAND, HTTP, PGBENCH)
NO_BALANCER, HAPROXY = "none", "haproxy"
SIGNALS = ("TERM", "INT", "QUIT", "HUP")
# Words of every command line; `services/README.md` says what they are.
OWN_WORDS = ("here", "datadir", "rundir", "socket", "port", "cpus")
LOAD_WORDS = ("connections", "threads", "rate", "time_s", "lead_s", "seed")
# Options of the tool itself: no option of a service is called so.
TOOL_OPTIONS: Mapping[str, Any] = {
    "service": None,
    "instances": 1,
    "connections": "4x-cpus",
    "rate": "half",
    "rate_is": None,  # how it was calibrated
    "time_s": 10,
    "saturation_s": None,  # as long as time_s
    "warmup_s": 2,
    "balancer": None,  # as the service says
    "seed": 1,
    "client_cpus": "auto",
    "client_shares": None,
    "writes": None,
    "data": None,
    "balancer_cpus": None,
}
MOST_FIGURES = 64
_LISTENS = ("port", "socket")
SIZES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")
_WORD = re.compile(r"\{([a-z][a-z0-9_]*)(?::(KiB|MiB|GiB))?\}")
_BEGUN = re.compile(r"\{([a-z][a-z0-9_]*)")
_LONGEST_LINE, _LAST_CHARACTERS = 2000, 1 << 20  # of an output, that a pattern looks at
_NUMBER = (
    r"([-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?)"
    r"\s?(us|µs|ms|s|[kKMG])?(?![\w.])"
)
_PART = re.compile(r"(#|\*|\s+)")
_UNITS_MS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}
_TIMES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
_UNITS = {"requests_per_second": "1/s", "schedule_lag_avg": "ms"}


class WrongService(Fault):
    """A service that cannot be meant so; ``key`` is the path of the key that is at fault."""

    def __init__(self, key: Tuple[str, ...], what: str, hint: Optional[str] = None) -> None:
        super().__init__(f"{'.'.join(key)}: {what}", hint)
        self.key = key


@dataclass(frozen=True)
class Option:
    """An option with its usual value: for each instance, or a ``total`` that they divide.

    ``texts`` are the values that it may have, each with what is written for it. ``places_memory``:
    it decides itself where memory lies, as a binding does; ``interleaves``: what it gives that
    policy is then proven to be even over all nodes.
    """

    value: Any
    total: bool = False
    texts: Mapping[str, str] = field(default_factory=dict)
    places_memory: bool = False
    interleaves: bool = False


@dataclass(frozen=True)
class Figure:
    """A number that a program prints, or that a counter tells: see ``find_number``.

    ``find`` is a pattern of a line; without it, the number's own name in a JSON object.
    """

    find: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Prepare:
    """How an empty data directory is filled, once: commands, one after the other.

    ``kept``: with these values of options the load leaves the data as they are, so that a working
    copy serves again; None: it never does.
    """

    commands: Tuple[str, ...]
    takes_s: float = 10.0
    disk: Any = "64MiB"
    kept: Optional[Mapping[str, str]] = None


@dataclass(frozen=True)
class Ready:
    """When an instance answers: exactly one of a page, a command that succeeds, a line of its log;

    with none of them, when it accepts a connection.
    """

    http: str = ""
    command: str = ""
    says: str = ""
    within_s: float = 60.0


@dataclass(frozen=True)
class Until:
    """Load runs until a counter grows by less than ``below`` a second, for ``for_s`` on end.

    ``takes_s`` is how long that usually takes, for the plan.
    """

    counter: str
    below: float
    for_s: float = 3.0
    at_most_s: float = 120.0
    takes_s: float = 20.0


@dataclass(frozen=True)
class Warm:
    """What makes an instance warm: a command, then load until a condition holds."""

    command: str = ""
    until: Optional[Until] = None


@dataclass(frozen=True)
class Load:
    """What asks the service: a kind, and what that kind needs.

    ``command`` prints ``figures`` and ends by itself; ``at_rate`` is the same at a constant rate.
    """

    kind: str
    request: str = ""
    command: str = ""
    at_rate: str = ""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    options: str = ""  # more words of pgbench's


@dataclass(frozen=True)
class Counters:
    """Where an instance tells its counters: a page, an answer to a line, or a command's output."""

    http: str = ""
    send: str = ""
    command: str = ""
    metrics: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True)
class Stop:
    """How an instance is ended: a signal to its first process, or a command."""

    signal: str = "TERM"
    command: str = ""
    within_s: float = 60.0


@dataclass(frozen=True)
class Service:
    """One service file. ``name`` is the file's stem, ``here`` its folder ("~" for the home)."""

    name: str
    here: str
    says: str
    needs: Mapping[str, Tuple[str, ...]]
    start: str
    load: Load
    version: str = ""
    options: Mapping[str, Option] = field(default_factory=dict)
    memory: Tuple[Any, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    refuses_root: bool = False
    prepare: Optional[Prepare] = None
    ready: Ready = Ready()
    warm: Warm = Warm()
    balancer: str = NO_BALANCER
    counters: Counters = Counters()
    stop: Stop = Stop()

    @property
    def on_socket(self) -> bool:
        """Whether it listens on a unix socket, else on a port."""
        return self.has_placeholder("socket")

    def has_placeholder(self, word: str) -> bool:
        """Tell whether what starts it, its files or its environment have {word} in them."""
        texts = (self.start, *self.files.values(), *self.environment.values())
        return any(f"{{{word}}}" in text for text in texts)

    @property
    def keeps_a_rate(self) -> bool:
        """Whether its load can ask at a constant rate."""
        return self.load.kind != COMMAND or bool(self.load.at_rate)


def read(given: Any) -> Service:
    """Return a service from its mapping, checked; Fault where it cannot be meant so."""
    service = from_json(Service, given, "the service")
    check(service)
    return service


def check(service: Service) -> None:
    """Raise WrongService for what the types of the fields do not say."""
    if not service.needs:
        raise WrongService(("needs",), "no program is named", "needs: {server: [NAME]}")
    for name, candidates in service.needs.items():
        if not NAME.match(name) or not candidates:
            raise WrongService(("needs", name), "it needs a name of small letters and candidates")
    _check_options(service)
    _check_words(service)
    _check_amounts(service)
    _check_load(service)
    _check_address(service)
    _one_of(("ready",), service.ready, ("http", "command", "says"), may_lack=True)
    asks = ("http", "send", "command")
    _one_of(("counters",), service.counters, asks, may_lack=not service.counters.metrics)
    if service.counters != Counters() and not service.counters.metrics:
        raise WrongService(("counters",), "without `metrics` nothing of it is kept")
    for name, figure in service.counters.metrics.items():
        if figure.find or not service.counters.http:
            _check_pattern(("counters", "metrics", name), figure)
    until = service.warm.until
    if until and until.counter not in service.counters.metrics:
        raise WrongService(
            ("warm", "until", "counter"), f"{until.counter!r} is not among counters.metrics"
        )
    _among(("balancer",), service.balancer, (NO_BALANCER, HAPROXY))
    if service.balancer != NO_BALANCER and service.load.kind != HTTP:
        raise WrongService(("balancer",), "only a load of kind http goes through a balancer")
    _among(("stop", "signal"), service.stop.signal, SIGNALS)
    for name in service.files:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            raise WrongService(("files", name), "it is no name of a file in the data directory")


def _check_options(service: Service) -> None:
    taken = {*service.needs, *OWN_WORDS, *LOAD_WORDS, *TOOL_OPTIONS}
    for name, option in service.options.items():
        key = ("options", name)
        if not NAME.match(name):
            raise WrongService(key, "an option's name has small letters, digits and _")
        if name in taken:
            raise WrongService(key, f"the name {name} has a meaning already")
        if isinstance(option.value, bool) or not isinstance(option.value, (int, float, str)):
            raise WrongService(key, f"{option.value!r} is neither a number nor a text")
        if option.texts and str(option.value) not in option.texts:
            raise WrongService(key, f"{option.value!r} is not among its texts")
        if option.texts and option.total:
            raise WrongService(key, "a word cannot be divided among instances")
    for name in (service.prepare.kept or {}) if service.prepare else ():
        if name not in service.options:
            raise WrongService(("prepare", "kept"), f"there is no option {name!r}")


def _check_amounts(service: Service) -> None:
    """Raise WrongService for a size or a time that cannot be."""
    disk = service.prepare.disk if service.prepare else ()
    for name, given in (("memory", service.memory), ("disk", disk)):
        key = ("prepare", name) if name == "disk" else (name,)
        for one in given if isinstance(given, (list, tuple)) else [given]:
            if isinstance(one, str) and NAME.match(one):
                if one not in service.options:
                    raise WrongService(key, f"there is no option {one!r}")
                continue
            try:
                options.size(name, one, least=0)
            except Fault:
                hint = "write a size like 64MiB, or the name of an option"
                raise WrongService(key, f"{one!r} is no size", hint) from None
    times = [("ready", "within_s", service.ready), ("stop", "within_s", service.stop)]
    if service.warm.until:
        times += [("warm.until", name, service.warm.until) for name in ("for_s", "at_most_s")]
    for above, name, of in times:
        if getattr(of, name) <= 0:
            raise WrongService((*above.split("."), name), "it must be more than 0")


def lines(service: Service) -> Iterator[Tuple[Tuple[str, ...], str, bool]]:
    """Yield every command line: its key, itself, whether it is of the load."""
    yield ("version",), service.version, False
    yield ("start",), service.start, False
    for number, line in enumerate(service.prepare.commands if service.prepare else ()):
        yield ("prepare", "commands", str(number)), line, False
    yield ("ready", "command"), service.ready.command, False
    yield ("warm", "command"), service.warm.command, True
    yield ("load", "command"), service.load.command, True
    yield ("load", "at_rate"), service.load.at_rate, True
    yield ("load", "options"), service.load.options, True
    yield ("counters", "command"), service.counters.command, False
    yield ("stop", "command"), service.stop.command, False
    for name, text in service.environment.items():
        yield ("environment", name), shlex.quote(text), False


def _check_words(service: Service) -> None:
    own = {*service.needs, *service.options, *OWN_WORDS}
    for key, line, of_load in lines(service):
        known = own | set(LOAD_WORDS) if of_load else own | {"connections"}
        try:
            shlex.split(line)
        except ValueError as error:
            raise WrongService(key, f"this is no command line: {error}") from None
        for match in _WORD.finditer(line):
            if match[1] not in known:
                hint = f"known: {', '.join(sorted(known))}; an option gets a name in options"
                raise WrongService(key, f"nothing is called {match[0]}", hint)
        for begun in _BEGUN.finditer(line):
            if begun[1] in known and not _WORD.match(line, begun.start()):
                shown = line[begun.start() : begun.end() + 5]
                hint = f"write {{{begun[1]}}}, or {{{begun[1]}:MiB}} of a number of bytes"
                raise WrongService(key, f"{shown!r} begins a word that is not complete", hint)
    if not shlex.split(service.start):
        raise WrongService(("start",), "it is empty")


def _check_load(service: Service) -> None:
    load = service.load
    _among(("load", "kind"), load.kind, LOADS)
    if load.kind == PGBENCH and "pgbench" not in service.needs:
        hint = "needs: {pgbench: pgbench}"
        raise WrongService(("load", "kind"), "pgbench is not among needs", hint)
    needed = {COMMAND: "command", HTTP: "request"}.get(load.kind)
    if needed and not getattr(load, needed):
        raise WrongService(("load",), f"a load of kind {load.kind} needs the key {needed}")
    if load.kind != COMMAND:
        if load.command or load.at_rate or load.figures:
            raise WrongService(("load",), "command, at_rate and figures are of kind command")
        return
    if "requests_per_second" not in load.figures:
        raise WrongService(
            ("load", "figures"), "requests_per_second is missing",
            'for instance: requests_per_second: "Requests/sec: #"',
        )  # fmt: skip
    if len(load.figures) > MOST_FIGURES:
        raise WrongService(("load", "figures"), f"more than {MOST_FIGURES} are not read")
    for name, figure in load.figures.items():
        _check_pattern(("load", "figures", name), figure)


def _check_address(service: Service) -> None:
    """Raise WrongService for pages without a first /, and for a service that listens anywhere."""
    pages = (("load", "request"), service.load.request), (("ready", "http"), service.ready.http)
    for key, page in (*pages, (("counters", "http"), service.counters.http)):
        if page and not page.startswith("/"):
            raise WrongService(key, f"{page!r} does not begin with /")
    ready, counters = service.ready, service.counters
    connects = not (ready.command or ready.says) or counters.http or counters.send
    if (connects or service.load.kind == HTTP) and not any(map(service.has_placeholder, _LISTENS)):
        hint = "each instance must listen where it is told to: start it on one of them"
        raise WrongService(("start",), "it has neither {port} nor {socket}", hint)


def _check_pattern(key: Tuple[str, ...], figure: Figure) -> None:
    if not NAME.match(key[-1]):
        raise WrongService(key, "a metric's name has small letters, digits and _")
    why = wrong_pattern(figure.find)
    if why:
        raise WrongService(key, f"the pattern {figure.find!r}: {why}")
    its = unit_of(key[-1], figure)
    if figure.unit not in ("", its, *(_UNITS_MS if its == "ms" else ())):
        raise WrongService(key, f"{key[-1]} is in {its}, and {figure.unit!r} cannot become that")


def _among(key: Tuple[str, ...], value: str, names: Sequence[str]) -> None:
    if value not in names:
        raise WrongService(key, f"{value!r} is not known", f"known: {', '.join(names)}")


def _one_of(key: Tuple[str, ...], value: Any, names: Sequence[str], may_lack: bool) -> None:
    given = [name for name in names if getattr(value, name)]
    if len(given) > 1 or not (given or may_lack):
        raise WrongService(key, f"write one of {', '.join(names)}")


# --- command lines ----------------------------------------------------------------------------


def filled(text: str, values: Mapping[str, Any]) -> str:
    """Return a text with ``{name}`` replaced; ``{name:MiB}`` is a number of bytes in whole MiB.

    What is in braces and is no name of ``values`` stays as it is.
    """

    def one(match: re.Match[str]) -> str:
        if match[1] not in values:
            return match[0]
        value = values[match[1]]
        if match[2]:
            return str(max(1, int(value) // SIZES[match[2]]))
        return f"{value:.10g}" if isinstance(value, float) else str(value)

    return _WORD.sub(one, text)


def words(line: str, values: Mapping[str, Any], texts: Mapping[str, str]) -> List[str]:
    """Return the words of a command line, filled.

    A word that is one option alone and has ``texts`` becomes the words of its text: none, or more.
    """
    out: List[str] = []
    for word in shlex.split(line):
        alone = _WORD.fullmatch(word)
        if alone and alone[1] in texts:
            out += shlex.split(texts[alone[1]])
        else:
            out.append(filled(word, {**values, **texts}))
    return out


# --- numbers in outputs -----------------------------------------------------------------------


def unit_of(name: str, figure: Figure) -> str:
    """Return the unit of a metric: what its name says, else as written."""
    return _UNITS.get(name) or ("ms" if name.startswith("latency_") else figure.unit or "count")


def wrong_pattern(pattern: str) -> str:
    """Return what is wrong with a pattern, "" for a good one.

    A good one is read in a time that grows as the text does: it leaves nothing to try twice.
    """
    if pattern.count("#") != 1:
        return "it needs one # where its number is"
    if "\n" in pattern or re.search(r"""[^\s,"]\*|\*[^\s,"]""", pattern):
        return "* is one whole word: only a space, a comma or a quote stands beside it"
    if re.search(r"[\d.]#", pattern):
        return "what stands right before # could be a part of its number"
    return ""


def find_number(pattern: str, text: str, unit: str = "", printed: str = "") -> Optional[float]:
    """Return the number at ``#`` in the last line that fits a pattern; None where none does.

    ``unit`` is the metric's, ``printed`` that of numbers without a unit of their own.
    ``*`` is one word (no space, comma or quote), a space any white space. A time's own unit
    (``us``, ``ms``, ``s``) is turned into that of the metric, where that is one; ``k``, ``M`` and
    ``G`` are thousands.
    """
    parts = [part for part in _PART.split(pattern.strip()) if part]
    known = {"#": _NUMBER, "*": r'[^\s,"]+'}
    at_first = {"#": r"(?<![\w.,+-])", "*": r'(?<![^\s,"])'}  # or it would begin within a word
    regex = re.compile(at_first.get(parts[0], "") + "".join(
        r"\s+" if part.isspace() else known.get(part) or re.escape(part) for part in parts
    ))  # fmt: skip
    found = None
    for line in text[-_LAST_CHARACTERS:].splitlines():
        match = regex.search(line[:_LONGEST_LINE])
        found = match or found
    if not found:
        return None
    value, suffix = float(found[1].replace(",", "")), found[2]
    if suffix is None and printed in _UNITS_MS:
        suffix = printed
    if suffix != unit and suffix in _UNITS_MS and unit in _UNITS_MS:
        return value * _UNITS_MS[suffix] / _UNITS_MS[unit]
    return value * _TIMES.get(suffix or "", 1.0)


def numbers(figures: Mapping[str, Figure], text: str) -> Dict[str, float]:
    """Return the numbers of figures with a pattern that a text holds."""
    found = {
        name: find_number(one.find, text, unit_of(name, one), one.unit)
        for name, one in figures.items()
        if one.find
    }
    return {name: value for name, value in found.items() if value is not None}


def texts_of(service: Service, options: Mapping[str, Any]) -> Dict[str, str]:
    """Return what is written for the options that have texts, by their names."""
    return {n: o.texts[str(options[n])] for n, o in service.options.items() if o.texts}
