"""A request becomes a plan: the tool, the cells with sizes as numbers, every trial in its order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .. import cpulist, drivers, kernel
from ..collectors import event_files, memory_model
from ..contract import (
    BASELINE,
    CELL,
    CONTROL,
    SCHEMA,
    Case,
    CaseRequest,
    Cell,
    Driver,
    Host,
    MemoryExpectation,
    Outlay,
    Plan,
    Prepared,
    Reason,
    Request,
    Resolution,
    Skip,
    Sweep,
    SweepRequest,
    Timing,
    ToolRecord,
    reason,
)
from ..errors import Fault, NotHere
from ..host import settings as host_settings
from ..host import tools
from ..paths import published
from . import budget, classes, kinds, resolve
from .budget import FEWEST_BLOCKS as FEWEST_BLOCKS
from .classes import CLASS
from .order import check_host, check_size, trial_order
from .request import check
from .tours import started, toured

TRIAL_OVERHEAD_S = 0.15  # starting the tool, proving the placement, writing the journal
RUN_OVERHEAD_S = 6.0  # looking at the host, tables and the notebook

Unfit = Tuple[Cell, Reason]  # a cell that cannot be measured here, and why


class Environment(NamedTuple):
    """What a plan needs of the host beside its shape; None: not there, or not looked for."""

    root: Optional[str]  # where settings are looked for; None takes every setting to be there
    forbidden: Mapping[str, Reason] = {}  # as of kernel.forbidden_calls
    missing: Tuple[Reason, ...] = ()  # what a run will lack beside
    tool: Optional[ToolRecord] = None  # that is known to be the one
    recorded: Optional[Plan] = None  # that is made again
    own: Optional[Mapping[str, str]] = None  # the host's own settings, where they are known
    unfit: Mapping[str, Reason] = {}  # ids of cells that are known not to be measurable, and why


# Why a cell is left out, where that hangs on the moment and not on the shape of the host.
OF_THE_MOMENT = (
    "binding-forbidden", "settings-absent", "longer-than-limit", "node-too-small",
    "instance-too-big", "host-swaps", "host-panics-without-memory",
    "huge-page-pool-too-small",
    "budget-sweep", "budget-class", "budget-case", "budget-cell",
)  # fmt: skip


def for_lack_of_time(why: Reason) -> bool:
    """Whether a cell is left out, or blocks are, because there is too little time."""
    return why.code.startswith("budget-") or why.code in ("longer-than-limit", "fewer-blocks")


def again(plan: Plan, host: Host) -> Plan:
    """Return the plan that a plan's request gives on a host as it was recorded.

    What only the moment of planning knew is taken from the plan: the tool, the host's own
    settings, and which cells had no room, no permission or no time. Prices and what hangs on
    free memory are those of now.
    """
    unfit = {one.cell: one.reason for one in plan.skipped if one.reason.code in OF_THE_MOMENT}
    then = Environment(None, tool=plan.tool, recorded=plan, own=plan.settings, unfit=unfit)
    request = replace(plan.request, budget_s=None, time_limit_s=None)
    made = make(request, replace(host, root="/of a record"), then)  # nothing of this host is read
    return replace(made, request=plan.request, tool=plan.tool)


def make(request: Request, host: Host, environment: Optional[Environment] = None) -> Plan:
    """Return the plan of a request on a host; nothing is run but the tool's own search.

    Without ``environment`` settings and permissions are looked for when the host is this one
    (``root`` "/"), else taken to be there.
    Raises Fault for a request that is wrong, an explicit binding that the host cannot meet,
    and when no tool of ``prefer`` can be used.
    """
    request = check(request)
    check_host(host)
    host = _without_the_clients_cpus(request, host)
    environment = environment or _environment(request, host)
    found = _resolved(request, host)
    check_size(len(found.cells) * max(1, len(request.cases)))
    cells, unfit = _in_cases(request, found, environment.root)
    cells, forbidden = _permitted(cells, environment)
    tool, driver, cells, unusable = _prepare_with_a_tool(request, host, cells, found, environment)
    unfit += forbidden + unusable
    own = environment.own
    if own is None:
        own = host_settings.own(environment.root or host.root)
    by_id = {cell.id: cell for cell in cells}
    cells = [_marked(_with_differences(cell, by_id), host, own) for cell in cells]
    cells = _with_control(cells) if request.control else cells
    outlay = _outlay(driver, cells, environment)
    fitted = _fitted(request, driver, cells, outlay)
    if fitted.unfit:
        cells, unfit = fitted.cells, [*unfit, *fitted.unfit]
        outlay = _outlay(driver, cells, environment)
    cells, tours = toured(driver, cells)
    looks = request.looks or (budget.looks(fitted.blocks) if request.until is not None else ())
    plan = Plan(
        schema=SCHEMA,
        request=replace(request, blocks=fitted.blocks, looks=looks),
        tool=tool,
        cells=tuple(cells),
        skipped=(*found.skipped, *(Skip(c.binding, c.id, why, c.variant) for c, why in unfit)),
        resolved=_resolutions(request, found, cells, unfit),
        order=trial_order(started(cells, tours), fitted.blocks, request.seed),
        warnings=(),
        # The budget is spent as on a machine: what is measured does not hang on the emulation.
        estimate=_estimate(
            started(cells, tours),
            fitted.blocks,
            outlay,
            driver.calibration(cells),
            memory_model.SLOWER if host.timed else 1,
        ),
        client=host.client,
        outlay=outlay,
        tours=tours,
        settings=own,
        least_s=round(fitted.least_s, 3),
    )
    warnings = (*found.warnings, *_warnings(plan, host), *environment.missing)
    return replace(plan, warnings=(*warnings, *_fewer_blocks(request, fitted)))


def _fitted(
    request: Request, driver: Driver, cells: List[Cell], outlay: Optional[Outlay]
) -> budget.Fitted:
    """Return the cells and blocks that the request's budget has time for."""

    def takes_s(left: Sequence[Cell], blocks: int) -> float:
        trials = started(*toured(driver, left))
        return _estimate(trials, blocks, outlay, driver.calibration(left)).total_s

    cells_first = request.until is not None
    return budget.fit(cells, request.blocks, request.budget_s, takes_s, cells_first=cells_first)


def _fewer_blocks(request: Request, fitted: budget.Fitted) -> List[Reason]:
    if fitted.blocks >= request.blocks:
        return []
    asked, budget_s = request.blocks, request.budget_s
    return [reason("fewer-blocks", blocks=fitted.blocks, asked=asked, budget_s=budget_s)]


def _with_control(cells: List[Cell]) -> List[Cell]:
    """Return the cells with the A/A control, where there can be one, behind its baseline."""
    twin = resolve.control(cells)
    if twin is None:
        return cells
    place = next(n for n, cell in enumerate(cells) if cell.id == twin.baseline) + 1
    return [*cells[:place], twin, *cells[place:]]


def _environment(request: Request, host: Host) -> Environment:
    """Return what this host has, or, for another one, that all is there.

    Raises Fault for a mistake in a file of events: it would be met after the first trial.
    """
    counters = request.collectors is not None and request.collectors.perf
    if counters:
        event_files.groups()
    if host.root != "/":
        return Environment(None)
    forbidden = kernel.forbidden_calls()
    return Environment("/", forbidden, tuple(tools.missing(counters, forbidden)))


def _resolved(request: Request, host: Host) -> resolve.Resolved:
    """Return what all bindings become that a request measures or names."""
    wanted = [*request.bindings, *(b for case in request.cases for b in case.bindings or ())]
    names = [*(b for sweep in request.sweep for b in sweep.bindings), *request.names]
    seed = request.seed if request.pairs == CLASS else None
    return resolve.resolve(wanted, host, request.baseline, names, seed)


def _permitted(cells: List[Cell], environment: Environment) -> Tuple[List[Cell], List[Unfit]]:
    """Return the cells whose memory policies may be set here, and those whose may not."""
    why = environment.forbidden.get("set_mempolicy") or environment.forbidden.get("mbind")
    if not why:
        return cells, []
    barred = [(c, reason("binding-forbidden", why=why)) for c in cells if _has_policy(c)]
    return [cell for cell in cells if not _has_policy(cell)], barred


def _outlay(driver: Driver, cells: Sequence[Cell], environment: Environment) -> Optional[Outlay]:
    """Return what must be prepared here once; for a plan that is made again, nothing."""
    return driver.outlay(cells) if cells and not environment.recorded else None


def with_options(plan: Plan, options: Mapping[str, Any]) -> Plan:
    """Return the plan with options that a calibration gave its request; cells keep their names."""
    tool = replace(plan.request.tool, options={**plan.request.tool.options, **options})
    own = [
        {name: value for name, value in options.items() if name in cell.options}
        for cell in plan.cells
    ]
    return replace(
        plan,
        request=replace(plan.request, tool=tool),
        cells=tuple(
            replace(cell, options={**cell.options, **some}) for cell, some in zip(plan.cells, own)
        ),
    )


def ended_after(plan: Plan, block: int) -> Plan:
    """Return the plan of a run that has decided after this block: what is left of it is dropped."""
    return replace(
        plan,
        request=replace(plan.request, blocks=block),
        order=tuple(entry for entry in plan.order if entry.block <= block),
        estimate=_estimate(list(plan.started.values()), block, plan.outlay),
    )


def _estimate(
    cells: Sequence[Cell],
    blocks: int,
    outlay: Optional[Outlay],
    calibration: Optional[Cell] = None,
    slower: float = 1,
) -> Timing:
    """Return the seconds of a run: of all trials, and as total with what comes before and after."""

    def total(name: str) -> float:
        return slower * blocks * float(sum(getattr(cell.timing, name) for cell in cells))

    setup, warmup, measure = map(total, ("setup_s", "warmup_s", "measure_s"))
    once = RUN_OVERHEAD_S + (outlay.prepare_s if outlay else 0.0) if cells else 0.0
    once += calibration.timing.total_s if calibration else 0.0
    return Timing(*(round(s, 3) for s in (setup, warmup, measure, total("total_s") + once)))


def _without_the_clients_cpus(request: Request, host: Host) -> Host:
    """Return the host without the CPUs that a tool's client has for itself in every cell."""
    driver = drivers.driver(request.tool.prefer[0])
    client = driver.set_aside(request.tool.options, request.bindings, host)
    if client is None:
        return host
    its = set(cpulist.parse(client.cpus or ""))
    cpus = tuple(replace(c, allowed=c.allowed and c.number not in its) for c in host.cpus)
    return replace(host, cpus=cpus, client=client)


def _has_policy(cell: Cell) -> bool:
    return any(one.memory.policy != "default" for one in (cell, *cell.instances))


def settings(plan: Plan) -> Dict[str, List[str]]:
    """Return every host setting that any cell changes, with the values that it is given."""
    found: Dict[str, List[str]] = {}
    for cell in plan.cells:
        for name, value in cell.changes.items():
            if value not in found.setdefault(name, []):
                found[name].append(value)
    return found


def _resolutions(
    request: Request, found: resolve.Resolved, cells: Sequence[Cell], unfit: Sequence[Unfit]
) -> Tuple[Resolution, ...]:
    """Return what each named binding became: cells of the plan, or why there are none.

    A name that is text stands under itself as well where its one spelling is another.
    """
    spelt = {name: resolve.parse(name).text for name in request.names if isinstance(name, str)}
    listed = [(text, text) for text in found.keys]
    listed += [(name, text) for name, text in spelt.items() if name not in found.keys]
    resolutions = []
    for asked, text in listed:
        keys = set(found.keys[text])
        ids = [c.id for c in cells if resolve.key(c) in keys and c.role in (BASELINE, CELL)]
        why = None
        if not ids:
            late = [why for cell, why in unfit if resolve.key(cell) in keys]
            why = found.reasons.get(text) or next(iter(late), None)
            why = why or reason("left-out", profile=request.profile)
        resolutions.append(Resolution(asked, tuple(ids), why))
    return tuple(resolutions)


# --- cases ------------------------------------------------------------------------------------


def _in_cases(
    request: Request, found: resolve.Resolved, root: Optional[str]
) -> Tuple[List[Cell], List[Unfit]]:
    """Return every cell in each case of its binding, and those that this host cannot set.

    Only the first case's cells of the baseline binding are baselines. ``root`` is where settings
    are looked for, None to take them to be there.
    """
    baselines = [cell.id for cell in found.cells if cell.role == BASELINE]
    made: List[Cell] = []
    unfit: List[Unfit] = []
    for case in request.cases or (None,):
        wanted = {**request.changes, **(case.changes if case else {})}
        values, why = _settings_here(wanted, root)
        for cell in _cells_of(case, request, found) if case else found.cells:
            one = replace(cell, changes=values)
            if case:
                first = case is request.cases[0]
                alone = [cell.id] == baselines
                one = replace(
                    one,
                    id=f"{cell.id}/{case.name}",
                    label=case.says + ("" if alone else f", {cell.label}"),
                    role=cell.role if first else CELL,
                    case=Case(case.name, case.says),
                )
            if why:
                unfit.append((one, why))
            else:
                made.append(one)
    return made, unfit


def _settings_here(
    wanted: Mapping[str, str], root: Optional[str]
) -> Tuple[Dict[str, str], Optional[Reason]]:
    """Return settings by their plain names, and why this host lacks some.

    One marked with ``?`` is left out without a word where the host has none of it.
    """
    values = {name.rstrip("?"): value for name, value in wanted.items()}
    absent = [n for n in values if root and not host_settings.path_of(n, Path(root)).exists()]
    lacks = [name for name in absent if name in wanted]
    here = {n: value for n, value in values.items() if n not in absent or n in lacks}
    return here, reason("settings-absent", names=lacks) if lacks else None


def _cells_of(case: CaseRequest, request: Request, found: resolve.Resolved) -> List[Cell]:
    """Return the cells of a case's bindings; without its own those of the experiment."""
    asked = [resolve.parse(binding).text for binding in case.bindings or request.bindings]
    keys = {key for text in asked for key in found.keys[text]}
    cells = [cell for cell in found.cells if resolve.key(cell) in keys]
    if case.bindings:  # a baseline that is only compared with is no part of the case
        return cells
    wanted = {cell.id for cell in cells} | {cell.baseline for cell in cells}
    return [cell for cell in found.cells if cell.id in wanted]


# --- tool and sizes ---------------------------------------------------------------------------


def _prepare_with_a_tool(
    request: Request,
    host: Host,
    cells: Sequence[Cell],
    found: resolve.Resolved,
    environment: Environment,
) -> Tuple[ToolRecord, Driver, List[Cell], List[Unfit]]:
    """Return the first tool that can be used, the cells that it measures, and the others.

    A tool of ``prefer`` is passed over when it is not there, and when it accepts no cell at all
    or no value of a sweep (it lacks an option that is asked for); its record says why.
    """
    passed: List[Fault] = []
    refused: List[Fault] = []  # by tools that are here
    known = environment.tool
    for name in (known.name,) if known else request.tool.prefer:
        driver = drivers.driver(name)
        if environment.recorded:
            driver = driver.of_record(environment.recorded)
        try:
            last = name == request.tool.prefer[-1]
            tool = known or _found(driver, request, host, last)
        except Fault as fault:
            passed.append(fault)
            continue
        try:
            preparation = _Preparation(driver, request, host, found, environment.unfit)
            fit = preparation.all(cells)
        except Fault as fault:
            passed.append(fault)
            refused.append(fault)
            continue
        record = replace(
            tool,
            name=name,
            path=published(tool.path),
            why=tuple(fault.what for fault in passed),
            facts={k: published(v) if isinstance(v, str) else v for k, v in tool.facts.items()},
        )
        return record, driver, fit, preparation.unfit
    passed = refused or passed
    if len(passed) == 1:
        raise passed[0]
    kind = NotHere if all(isinstance(fault, NotHere) for fault in passed) else Fault
    raise kind(
        f"no tool can measure {request.tool.name}: " + "; ".join(fault.what for fault in passed),
        " ".join(fault.hint for fault in passed if fault.hint) or None,
    )


def _found(driver: Driver, request: Request, host: Host, last: bool) -> ToolRecord:
    """Return a driver's tool; in a copied tree the last that is preferred is taken to be there."""
    try:
        return driver.find(request.tool.options)
    except Fault:
        if not last or host.root == "/" or not Path(host.root).is_dir():
            raise
        return ToolRecord(driver.name, why=(str(reason("tool-taken-to-be-there")),))


class _Preparation:
    """Gives cells their options, sizes and timing by the driver; keeps what had to be skipped."""

    def __init__(
        self,
        driver: Driver,
        request: Request,
        host: Host,
        found: resolve.Resolved,
        unfit: Mapping[str, Reason],
    ) -> None:
        self.known_unfit = unfit
        self.driver = driver
        self.request = request
        self.host = host
        self.found = found
        self.any_cpus = kinds.any_cpus(host)
        self.unfit: List[Unfit] = []
        self.faults: List[Fault] = []
        self.ready: Dict[str, Cell] = {}

    def all(self, cells: Sequence[Cell]) -> List[Cell]:
        """Return the cells that can be measured, with those of the sweeps.

        Raises the driver's Fault when it accepts no cell, or no value of a sweep.
        """
        ready = [self.prepare(c) if c.role == BASELINE else c for c in cells]
        linked = resolve.link([cell for cell in ready if cell])
        ready = [c if c.role == BASELINE else self.prepare(c) for c in linked]
        fit = [cell for cell in ready if cell]
        wrong = [fault for fault in self.faults if not isinstance(fault, NotHere)]
        if wrong and not fit:
            raise wrong[0]
        return self._swept(fit)

    def prepare(self, cell: Cell) -> Optional[Cell]:
        """Return a cell complete; None when it cannot be measured here (``unfit`` says why)."""
        if cell.id in self.known_unfit:
            self.unfit.append((cell, self.known_unfit[cell.id]))
            return None
        cpus = cell.cpus or self.any_cpus
        nodes = resolve.first_touch_nodes(self.host, cell)
        try:
            made = self._prepared(self._options(cell), cpus, nodes)
        except Fault as fault:
            self.faults.append(fault)
            self.unfit.append((cell, fault.reason))
            return None
        need = made.need_bytes * max(1, len(cell.instances))
        why = self._why_no_room(cell, made.need_bytes, need, nodes)
        if why:
            self.unfit.append((cell, why))
            return None
        memory = self.driver.expects(made.options, cell, self.host) or cell.expects.memory
        if made.full_node and memory.rule == "shares":  # what the node takes is what is asked
            memory = MemoryExpectation("outcome", why=reason("tool-fills-a-node"))
        notes = [*cell.notes, *made.notes]
        free, _ = resolve.room_bytes(self.host, cell)
        if free is not None and need > free:
            notes.append(reason("page-cache-must-go", need_bytes=need, free_bytes=free))
        threads = made.options.get("threads")
        timing = made.timing or self.driver.timing(made.options)
        total = timing.setup_s + timing.warmup_s + timing.measure_s + TRIAL_OVERHEAD_S
        ready = replace(
            cell,
            options=made.options,
            expects=replace(cell.expects, memory=memory),
            need_bytes=need,
            notes=tuple(notes),
            threads=threads if isinstance(threads, int) else len(cpulist.parse(cpus)),
            timing=replace(timing, total_s=total),
        )
        limit_s = self.request.time_limit_s
        if limit_s is not None and total > limit_s:
            why = reason("longer-than-limit", planned_s=round(total, 1), limit_s=limit_s)
            self.unfit.append((cell, why))
            return None
        self.ready[cell.id] = ready
        return ready

    def _prepared(self, options: Dict[str, Any], cpus: str, nodes: str) -> Prepared:
        """Return what the driver prepares, with no more threads than there is CPU time for."""
        made = self.driver.prepare(options, self.host, cpus, nodes)
        lacks = [name for name in self.driver.resolves if name not in made.options]
        if lacks:
            raise Fault(
                f"the driver of {self.driver.name} resolves no option {lacks[0]!r}",
                "CONTRIBUTING.md tells what its `prepare` must return",
            )
        asked, limit = made.options.get("threads"), self.host.allowed.cpu_time
        if limit is None or not isinstance(asked, int) or asked <= max(1, int(limit)):
            return made
        options = {**options, "threads": max(1, int(limit))}
        try:
            made = self.driver.prepare(options, self.host, cpus, nodes)
        except Fault as fault:
            raise NotHere(reason("cpu-time-too-little", limit=limit, why=fault.reason)) from None
        note = reason("threads-bounded", asked=asked, threads=options["threads"], limit=limit)
        return replace(made, notes=(*made.notes, note))

    def _options(self, cell: Cell) -> Dict[str, Any]:
        options = dict(self.request.tool.options)
        for case in self.request.cases:
            if cell.case and case.name == cell.case.name:
                options.update(case.options)
        if cell.instances:  # each has its part of the host's CPUs, of the load and of the data
            options["instances"] = len(cell.instances)
        if cell.sweep:
            options[cell.sweep.option] = cell.sweep.value
        base = self.ready.get(cell.baseline or "")
        swept = cell.sweep and cell.sweep.option == "threads"
        if cell.cpus is None and base and not swept and "threads" in base.options:
            # Without a CPU policy of its own: the same work as what it is compared with.
            options["threads"] = base.options["threads"]
        if "threads" in options:
            own = self._own_cpus(cell)
            options["threads"] = resolve.thread_count(options["threads"], self.host, own)
        return options

    def _why_no_room(self, cell: Cell, each: int, need: int, nodes: str) -> Optional[Reason]:
        for one in cell.instances:
            _, room = resolve.room_bytes(self.host, one)
            if room is not None and each > room:
                return reason(
                    "instance-too-big", instance=one.name, need_bytes=each, room_bytes=room
                )
        _, room = resolve.room_bytes(self.host, cell)
        if room is not None and need > room:
            return reason("node-too-small", need_bytes=need, nodes=nodes, room_bytes=room)
        return None

    def _own_cpus(self, cell: Cell) -> str:
        """Return the CPUs that "all" or "half" of the threads refers to."""
        base = self.ready.get(cell.baseline or "")
        return cell.cpus or (base and base.cpus) or self.any_cpus

    def _swept(self, cells: Sequence[Cell]) -> List[Cell]:
        """Return the cells, each followed by its copies for the values of the sweeps.

        A value that a cell has anyway makes no copy. A copy is compared with the copy of its
        cell's baseline that has the same value; where the option binds memory (the driver's
        ``binding_options``) and there is none, with the baseline itself. Copies of a baseline
        are compared with nothing: a scaling curve compares numbers of threads, not bindings.
        Raises Fault when the tool accepts no value of a sweep.
        """
        result = {cell.id: [cell] for cell in cells}
        for sweep in self.request.sweep:
            keys = {key for asked in sweep.bindings for key in self._keys(asked)}
            before, made = len(self.faults), 0
            # Baselines first: their copies are what the others are compared with.
            meant = [cell for cell in cells if resolve.key(cell) in keys]
            if CLASS in (sweep.pairs, self.request.pairs):
                meant = classes.thinned(self.host, meant, self.request.seed)
            for cell in sorted(meant, key=lambda c: c.role != BASELINE):
                copies = self._copies(cell, sweep)
                result[cell.id] += copies
                made += len(copies)
                check_size(len(self.ready))
            wrong = [one for one in self.faults[before:] if not isinstance(one, NotHere)]
            if wrong and not made:
                raise wrong[0]
        return [cell for group in result.values() for cell in group]

    def _keys(self, asked: Any) -> List[resolve.Key]:
        text = resolve.parse(asked).text
        why = self.found.reasons.get(text)
        if why and why.code == "binding-impossible":
            raise Fault(why, "name a binding of this host in the sweep")
        return self.found.keys[text]

    def _copies(self, cell: Cell, sweep: SweepRequest) -> List[Cell]:
        copies: List[Cell] = []
        option, own_cpus = sweep.option, self._own_cpus(cell)
        seen = [cell.options.get(option)]
        for value in sweep.values:
            if option == "threads":
                value = resolve.thread_count(value, self.host, own_cpus)
            else:
                value = self.driver.resolve(option, value, self.host)
            if value in seen:
                continue
            seen.append(value)
            one = replace(
                cell,
                id=f"{cell.id}/{option}={value}",
                label=f"{cell.label}, {option} {value}",
                sweep=Sweep(option, value),
                notes=(),
                baseline=self._twin(cell, option, value),
            )
            threads = len(cpulist.parse(own_cpus))
            if option == "threads" and value > threads:
                self.unfit.append((one, reason("threads-beyond-cpus", threads=threads)))
                continue
            ready = self.prepare(one)
            if ready is None:
                continue
            if any(ready.options == other.options for other in (cell, *copies)):
                del self.ready[ready.id]
                continue
            copies.append(ready)
        return copies

    def _twin(self, cell: Cell, option: str, value: Any) -> Optional[str]:
        """Return the id of what a copy of a cell with this value is compared with."""
        base = self.ready.get(cell.baseline or "")
        if base is None:
            return None
        twin = f"{base.id}/{option}={value}"
        if base.options.get(option) == value:
            return base.id
        if twin in self.ready:
            return twin
        # Such an option is no other load: it is itself a way of binding.
        return base.id if option in self.driver.binding_options(self.request.tool.options) else None


# --- notes and warnings -----------------------------------------------------------------------


def _with_differences(cell: Cell, cells: Mapping[str, Cell]) -> Cell:
    """Return a cell with notes on what differs from what it is compared with, beyond one thing."""
    if cell.role == BASELINE:
        return cell
    notes: List[Reason] = []
    base = cells.get(cell.baseline or "")
    if base is None:
        if any(one.role == BASELINE for one in cells.values()):
            notes.append(reason("compared-with-nothing"))
    else:
        if cell.cpus != base.cpus and cell.memory != base.memory:
            notes.append(reason("compared-as-a-whole", cell=base.id))
        if not cell.case:  # to differ in options is what a case is for
            for option, value in differing(cell, base).items():
                its = base.options.get(option)
                notes.append(
                    reason("option-differs", option=option, value=value, cell=base.id, its=its)
                )
    return replace(cell, notes=(*cell.notes, *notes))


def _marked(cell: Cell, host: Host, own: Mapping[str, str]) -> Cell:
    """Return a cell with a note where automatic NUMA balancing may move its pages.

    It moves pages under the default policy alone (vma_policy_mof() in the kernel's
    mm/mempolicy.c): the others have MPOL_F_MOF only where a program asks for it by a flag.
    """
    balancing = cell.changes.get(host_settings.BALANCING, own.get(host_settings.BALANCING, "0"))
    free = [one for one in cell.instances or (cell,) if one.memory.policy == "default"]
    if balancing == "0" or not free or len(host.memory_nodes) < 2:
        return cell
    note = reason("balancing-may-move", name=host_settings.BALANCING, value=balancing)
    return replace(cell, notes=(*cell.notes, note))


def differing(cell: Cell, base: Cell) -> Dict[str, Any]:
    """Return the options of a cell that are not those of another cell, None for one it lacks."""
    names = sorted(set(cell.options) | set(base.options))
    mine, its = cell.options, base.options
    return {name: mine.get(name) for name in names if mine.get(name) != its.get(name)}


def _warnings(plan: Plan, host: Host) -> List[Reason]:
    """Return what should be known of a plan: of its design, then of its host."""
    request, roles = plan.request, {cell.role for cell in plan.cells}
    warnings = []
    if host.timed:
        warnings.append(reason("emulated-timing", times=memory_model.SLOWER))
    if not plan.cells:
        warnings.append(reason("nothing-to-measure"))
    elif BASELINE not in roles and request.cases:
        warnings.append(reason("baseline-not-in-first-case", case=request.cases[0].name))
    if plan.cells and request.control and CONTROL not in roles:
        warnings.append(reason("no-control"))
    if request.blocks < FEWEST_BLOCKS and any(cell.baseline for cell in plan.cells):
        warnings.append(reason("too-few-blocks", blocks=request.blocks, fewest=FEWEST_BLOCKS))
    warnings += _limits_of(host)
    if settings(plan):
        warnings.append(reason("changes-host", settings=settings(plan)))
    return warnings


def _limits_of(host: Host) -> List[Reason]:
    """Return what a host lacks, or does not let this process use."""
    warnings = []
    if len(host.nodes) == 1:
        warnings.append(reason("host-with-one-node"))
    elif len(host.memory_nodes) < 2:
        warnings.append(reason("host-with-one-memory-node"))
    may_use = {*host.usable, *cpulist.parse((host.client and host.client.cpus) or "")}
    barred = any(cpu.online and cpu.number not in may_use for cpu in host.cpus)
    if barred or not all(node.allowed_memory for node in host.nodes):
        limits = {"cpus": cpulist.format(may_use), "nodes": cpulist.format(host.memory_nodes)}
        warnings.append(reason("limited-by-cpuset", **limits))
    allowed = host.allowed
    if allowed.cpu_time is not None:
        warnings.append(reason("limited-cpu-time", limit=allowed.cpu_time))
    if allowed.memory_bytes is not None:
        warnings.append(reason("limited-memory", bytes=allowed.memory_bytes))
    return warnings
