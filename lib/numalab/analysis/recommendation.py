"""Which binding to use on a host, by its own results; or that none can be told from the default.

The default is the cell ``unbound``: the kernel's own choice of CPUs and memory. Every other cell
of the same load is compared with it, paired by block, verified trials only. The intervals are
widened for the number of bindings compared (Bonferroni), because the best of many looks better
than it is; a binding is recommended only where its interval also lies beyond the A/A control's.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from numalab.agent import cpulist
from numalab.agent.plan import bindings
from numalab.analysis import results, statistics
from numalab.analysis.statistics import BLOCKS_NEEDED, Ratio
from numalab.runs import Run, load_of
from numalab.show import tables

DEFAULT = "unbound"


@dataclass(frozen=True)
class Lines:
    """What to paste in one place: ``where`` names it, ``remarks`` say what to mind."""

    where: str
    lines: list[str]
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Recommendation:
    """``cell`` is the id of the recommended cell, None where nothing is recommended.

    ``says`` is a sentence with the figures that decided; ``costs``, ``alike`` (bindings that
    cannot be told from the recommended one) and ``elsewhere`` (the same binding under the run's
    other loads) are sentences as well; ``paste`` is empty where nothing is recommended.
    """

    cell: str | None
    says: str
    costs: list[str] = field(default_factory=list)
    alike: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    paste: list[Lines] = field(default_factory=list)


@dataclass(frozen=True)
class _Compared:
    """One cell against another in the metric that decides; bounds widened for ``tried``."""

    cell: dict[str, Any]
    ratio: Ratio
    low: float | None
    high: float | None

    def words(self) -> str:
        return f"{self.cell['label']} {tables.interval(self.ratio.ratio, self.low, self.high)}"


def suitable(run: Run) -> bool:
    """Say whether a run compares bindings with the default at all, in a metric that decides."""
    loads = _loads(run)
    compared = any(len(cells) > 1 and _default(cells) is not None for cells in loads.values())
    # several points (instances, pairs of nodes) are not one figure that decides
    headline = next(iter(run.measures), None)
    return compared and headline is not None and len(results.points(run, headline)) == 1


def of(run: Run) -> Recommendation:
    """Return what a run recommends for its host."""
    if not suitable(run):
        return Recommendation(None, "This run compares no binding with the default (unbound).")
    if run.host["emulated"]:
        return Recommendation(
            None, "Emulated host: its timings carry no NUMA meaning, so nothing is recommended."
        )
    judge = _Judge(run)
    first = next(load for load, cells in _loads(run).items() if _default(cells) is not None)
    cells = _loads(run)[first]
    default = _default(cells)
    others = [cell for cell in cells if cell is not default]
    compared = [judge.compare(cell, default, len(others)) for cell in others]
    usable = [one for one in compared if one.low is not None and one.ratio.n >= BLOCKS_NEEDED]
    what = f"{judge.words} of {default['label']}"
    if not usable:
        return Recommendation(None, _too_few(judge, compared))
    if judge.far is None:
        return Recommendation(
            None,
            "Nothing is recommended: this run has no A/A control with "
            f"{BLOCKS_NEEDED} verified blocks, so a gain cannot be told from chance.",
        )
    best = max(usable, key=lambda one: judge.sign * (one.ratio.ratio or 0))
    if not judge.gains(best):
        worse = [one for one in usable if judge.loses(one)]
        if len(worse) == len(usable):
            text = "No binding does better than the default here: each does worse. The best is "
        else:
            text = "No binding can be told from the default here. The best is "
        return Recommendation(
            None,
            f"{text}{best.words()} times the {what}; {judge.control_words()}, "
            f"{best.ratio.n} blocks{_widened(len(others))}.",
        )
    mean, base = judge.mean(best.cell), judge.mean(default)
    says = (
        f"Use {best.words()} times the {what} ({tables.number(mean)} against "
        f"{tables.number(base)} {judge.unit}; {judge.better} is better); "
        f"{judge.control_words()}, {best.ratio.n} blocks{_widened(len(others))}."
    )
    return Recommendation(
        best.cell["id"],
        says,
        list(_costs(run, judge, best.cell, default)),
        [
            one.words()
            for one in usable
            if one is not best and not judge.differ(one.cell, best.cell, len(usable))
        ],
        list(_elsewhere(run, judge, best.cell, first)),
        paste(run, best.cell),
    )


# ---------------------------------------------------------------- the comparison


class _Judge:
    """The run's first measure, verified rows only, and its A/A control."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.metric = next(iter(run.measures))
        self.point = results.points(run, self.metric)[0]
        self.better = run.measures[self.metric]["better"]
        self.unit = run.measures[self.metric]["unit"]
        self.words = tables.plain(self.metric)
        self.sign = 1 if self.better == "higher" else -1
        self.rows = _verified(run, self.metric, self.point)
        control = statistics.aa_interval(self.rows, self.metric, self.point)
        self.control = control
        # Which of two like cells was called the control is chance: 0.9 is as far off as 1 / 0.9.
        self.far = None
        if control.low is not None and control.n >= BLOCKS_NEEDED:
            self.far = max(control.high, 1 / control.low)

    def compare(self, cell: dict[str, Any], other: dict[str, Any], tried: int) -> _Compared:
        ratio = statistics.paired_cells(self.rows, cell["id"], other["id"])
        if ratio.low is None:
            return _Compared(cell, ratio, None, None)
        confidence = 1 - (1 - statistics.CONFIDENCE) / max(tried, 1)
        return _Compared(cell, ratio, *statistics.widened(ratio, confidence))

    def gains(self, one: _Compared) -> bool:
        return one.low > self.far if self.sign > 0 else one.high < 1 / self.far

    def loses(self, one: _Compared) -> bool:
        return one.high < 1 / self.far if self.sign > 0 else one.low > self.far

    def differ(self, cell: dict[str, Any], other: dict[str, Any], tried: int) -> bool:
        one = self.compare(cell, other, tried)
        return one.low is not None and (self.gains(one) or self.loses(one))

    def mean(self, cell: dict[str, Any]) -> float | None:
        return self.rows.filter(pl.col("cell") == cell["id"])["value"].mean()

    def control_words(self) -> str:
        shown = tables.interval(self.control.ratio, self.control.low, self.control.high)
        return f"the A/A control shows {shown} where nothing differs"


def _verified(run: Run, metric: str, point: str) -> pl.DataFrame:
    rows = run.tool_rows(metric).filter(
        (pl.col("grade") == "verified") & pl.col("value").is_finite()
    )
    if "tool" in rows["source"]:  # a collector may count what the tool counts too
        rows = rows.filter(pl.col("source") == "tool")
    return rows.filter(pl.col("point") == point)


def _too_few(judge: _Judge, compared: Sequence[_Compared]) -> str:
    most = max((one.ratio.n for one in compared), default=0)
    return (
        f"Nothing is recommended: at most {most} verified blocks hold both a binding and the "
        f"default, and fewer than {BLOCKS_NEEDED} decide nothing (profile "
        f"{judge.run.manifest['profile']})."
    )


def _widened(tried: int) -> str:
    return f"; intervals hold for all {tried} bindings compared at once" if tried > 1 else ""


# ---------------------------------------------------------------- loads


def _loads(run: Run) -> dict[str, list[dict[str, Any]]]:
    """The cells that bear the same load, without controls; the plain load first."""
    loads: dict[str, list[dict[str, Any]]] = {"": []}
    for cell in run.cells.values():
        if cell["role"] != "control":
            loads.setdefault(load_of(cell["id"]), []).append(cell)
    return {load: cells for load, cells in loads.items() if cells}


def _default(cells: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    return next((cell for cell in cells if cell["binding"] == DEFAULT), None)


# ---------------------------------------------------------------- what it costs


def _costs(
    run: Run, judge: _Judge, cell: dict[str, Any], default: dict[str, Any]
) -> Iterator[str]:
    shape = run.host["topology"]
    usable = len(cpulist.parse(bindings.usable_cpus(shape)))
    if cell["cpus"] is not None:
        mine = len(cpulist.parse(cell["cpus"]))
        if mine < usable:
            yield f"it may run on {mine} of {usable} hardware threads; the others stay free"
    policy, nodes = cell["memory"]["policy"], cell["memory"]["nodes"]
    if policy in ("bind", "preferred"):
        sizes = {n["node"]: n["memory_bytes"] for n in shape["nodes"]}
        held = [sizes.get(number) for number in cpulist.parse(nodes)]
        if len(held) < sum(1 for size in sizes.values() if size):
            size = "" if None in held else f" ({tables.number(sum(held) / 2**30)} GiB in all)"
            yield (
                f"all its memory must fit on node {nodes}{size}: what does not is reclaimed, "
                "swapped or killed, never placed on another node"
                if policy == "bind"
                else f"what does not fit on node {nodes}{size} goes to other nodes, unnoticed"
            )
    for name, measure in run.measures.items():
        if name == judge.metric:
            continue
        rows = _verified(run, name, judge.point)
        ratio = statistics.paired_cells(rows, cell["id"], default["id"])
        control = statistics.aa_interval(rows, name, judge.point)
        said = statistics.effect(ratio.low, ratio.high, control.low, control.high, ratio.n)
        worse = said == statistics.EFFECT and (ratio.ratio > 1) == (measure["better"] == "lower")
        if worse:
            shown = tables.interval(ratio.ratio, ratio.low, ratio.high)
            yield f"{tables.plain(name)} is {shown} times that of {default['label']}"


def _elsewhere(run: Run, judge: _Judge, chosen: dict[str, Any], first: str) -> Iterator[str]:
    """The same binding under the run's other loads."""
    name = chosen["id"].removesuffix(f"/{first}" if first else "")
    for load, cells in _loads(run).items():
        default = _default(cells)
        mine = next((cell for cell in cells if cell["id"] == f"{name}/{load}"), None)
        if load == first or default is None or mine is None:
            continue
        one = judge.compare(mine, default, 1)
        if one.low is None or one.ratio.n < BLOCKS_NEEDED:
            verdict = "too few verified blocks to say"
        else:
            verdict = tables.interval(one.ratio.ratio, one.low, one.high)
            if judge.loses(one):
                verdict += ", a loss"
            elif not judge.gains(one):
                verdict += ", not distinguishable"
        yield f"{load.replace('=', ' ')}: {verdict}"


# ---------------------------------------------------------------- lines to paste


def paste(run: Run, cell: dict[str, Any]) -> list[Lines]:
    """Return the lines that put a program under a cell's binding, place by place.

    Their meaning: numactl(8); systemd.exec(5) (``CPUAffinity=`` assignments are merged until an
    empty one; ``NUMAPolicy=`` is default, preferred, bind, interleave or local, of systemd 243 or
    newer, with its nodes in ``NUMAMask=``, for preferred a single one); docker-run(1)
    (``--cpuset-mems`` confines memory to nodes, which is membind; it has no other policy).
    """
    server = _server(run)
    program = {"mysql": "mysqld", "mariadb": "mariadbd"}.get(server or "", "PROGRAM")
    unit = {"mysql": "mysql", "mariadb": "mariadb"}.get(server or "", "NAME")
    found = []
    policy, nodes = cell["memory"]["policy"], cell["memory"]["nodes"]
    if cell["numactl"]:
        found.append(Lines("numactl", [" ".join([*cell["numactl"], program])]))
        found.append(Lines(f"systemd: systemctl edit {unit}.service", _systemd(cell),
                           [] if policy == "default" else ["systemd 243 or newer"]))  # fmt: skip
        found.append(_docker(cell, program))
    interleave = cell.get("options", {}).get("innodb_numa_interleave")
    if server and interleave in ("ON", "OFF"):  # "": the server was built without it
        found.append(_my_cnf(interleave, server, policy, nodes))
    return found


def _systemd(cell: dict[str, Any]) -> list[str]:
    lines = ["[Service]"]
    if cell["cpus"] is not None:
        lines += ["CPUAffinity=", f"CPUAffinity={cell['cpus']}"]
    if cell["memory"]["policy"] != "default":
        lines += [f"NUMAPolicy={cell['memory']['policy']}", f"NUMAMask={cell['memory']['nodes']}"]
    return lines


def _docker(cell: dict[str, Any], program: str) -> Lines:
    policy, nodes = cell["memory"]["policy"], cell["memory"]["nodes"]
    words = ["docker", "run"]
    if cell["cpus"] is not None:
        words.append(f"--cpuset-cpus={cell['cpus']}")
    if policy == "default":
        return Lines("docker", [" ".join([*words, "IMAGE"])])
    if policy == "bind":
        return Lines("docker", [" ".join([*words, f"--cpuset-mems={nodes}", "IMAGE"])])
    words += ["--cap-add=SYS_NICE", "IMAGE", "numactl", f"--{policy}={nodes}", program]
    return Lines(
        "docker",
        [" ".join(words)],
        [
            f"docker has no memory policy {policy}: --cpuset-mems can only confine; numactl must "
            "be in the image, and its system call needs SYS_NICE (Docker 18.09 or newer)"
        ],
    )


def _server(run: Run) -> str | None:
    """``mysql`` or ``mariadb`` where the run measured such a server, else None."""
    tool = run.plan["tool"]
    if not tool["name"].startswith("mysql"):
        return None
    said = f"{tool.get('version') or ''} {tool.get('path') or ''}".lower()
    return "mariadb" if "mariadb" in said else "mysql"


def _my_cnf(value: str, server: str, policy: str, nodes: str | None) -> Lines:
    """InnoDB's own interleaving as it was in the cell; left out, it may be on by default."""
    lines = ["[mariadbd]" if server == "mariadb" else "[mysqld]"]
    lines.append(f"innodb_numa_interleave = {value}")
    if server == "mariadb":
        return Lines("my.cnf", lines, ["some builds of MariaDB lack it, and refuse the line"])
    remark = "MySQL 8.4 and newer turn it on by default"
    if value == "OFF" and policy == "bind":
        remark += f"; then the buffer pool lies on all nodes, whatever binds it to node {nodes}"
    return Lines("my.cnf", lines, [remark])


# ---------------------------------------------------------------- for a reader


def markdown(found: Recommendation) -> str:
    """Return a recommendation as Markdown, the lines to paste in code blocks."""
    parts = [f"**{found.says}**" if found.cell else found.says]
    for title, sentences in _lists(found):
        parts.append(f"{title}\n\n" + "\n".join(f"- {one}" for one in sentences))
    for place in found.paste:
        remarks = f" ({'; '.join(place.remarks)})" if place.remarks else ""
        parts.append(f"{place.where}{remarks}:\n\n```\n" + "\n".join(place.lines) + "\n```")
    return "\n\n".join(parts)


def text(found: Recommendation, width: int = 100) -> str:
    """Return a recommendation as lines for a terminal; lines to paste are never broken."""
    lines = textwrap.wrap(found.says, width)
    for title, sentences in _lists(found):
        lines.append(title)
        for one in sentences:
            lines += textwrap.wrap(one, width, initial_indent="  - ", subsequent_indent="    ")
    for place in found.paste:
        lines.append(f"{place.where}:")
        lines += [f"    {line}" for line in place.lines]
        for remark in place.remarks:
            lines += textwrap.wrap(f"({remark})", width, initial_indent="  ",
                                   subsequent_indent="   ")  # fmt: skip
    return "\n".join(lines)


def _lists(found: Recommendation) -> Iterator[tuple[str, list[str]]]:
    for title, sentences in (
        ("What it costs:", found.costs),
        ("Not distinguishable from it:", found.alike),
        ("The same binding under the other loads of this run:", found.elsewhere),
    ):
        if sentences:
            yield title, sentences
