"""The article over runs: what its notebooks (report/, pages/article.ipynb) compute.

An author's prose stands in the notebook; every number in it comes from here. What these hosts have
nothing to say of is empty, and a page leaves its place out.
"""

from __future__ import annotations

import inspect
import math
import re
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from numalab import escape, experiments, runs, tables
from numalab.agent.contract import CONFIGURED, CONTROL, ERROR, PUBLISHED
from numalab.agent.errors import Fault
from numalab.analysis import claims, judge, recommendation, survey
from numalab.analysis.evidence import BLOCKS_NEEDED
from numalab.runs import Run
from numalab.show import badge, confidence, proofs, results
from numalab.show.charts import server
from numalab.show.chosen import Chosen, listed
from numalab.show.section import NOTHING, Section, reservations, tells
from numalab.show.survey import Survey
from numalab.show.view import Shown, Text, View, gib, short, skipped_lines, worded

# Of all that a host record holds, what a reader of the article looks for; the rest is in host.json.
SETTINGS = (
    "cpu.driver", "cpu.governor", "cpu.isolated", "cpu.microcode", "cpu.smt", "cpu.turbo",
    "dmi.bios_version", "dmi.product", "dram.peak_gb_s", "kernel.cmdline",
    "kernel.numa_balancing", "kernel.release", "numa.mode", "os.release",
    "thp.enabled", "virt.hypervisor", "vm.lru_gen", "vm.swappiness", "vm.zone_reclaim_mode",
)  # fmt: skip

_MARKS = {claims.SUPPORTED: "●", claims.REFUTED: "○", claims.INCONCLUSIVE: "–"}
_Shown = TypeVar("_Shown")
_NAME = re.compile(r"\$\{?(\w+)")


def article(paths: Sequence[str | Path]) -> Article:
    """Open the article over these run directories."""
    return Article([runs.load(path) for path in paths])


class Article:
    """The chosen runs; an attribute for each experiment (``article.mysql_binding``)."""

    def __init__(self, chosen: Sequence[Run]) -> None:
        self.chosen = Chosen(chosen)
        self.runs = self.chosen.runs
        self.views = [View(run) for run in self.runs]

    def __getattr__(self, name: str) -> Section:
        experiment = name.replace("_", "-")
        known = {run.manifest.experiment for run in self.__dict__.get("runs", ())}
        if name.startswith("_") or experiment not in known | set(experiments.names()):
            raise AttributeError(f"there is no experiment {experiment}")
        return Section(self.chosen, experiment)

    # --- prose and its numbers ------------------------------------------------------------------

    def say(self, text: str, **numbers: object) -> Text:
        """Return prose whose ``$names`` are computed; a paragraph that lacks one is left out.

        A number is absent (None) where no run of this article has it. A heading under which nothing
        is left goes as well.
        """
        absent = {name for name, value in numbers.items() if value is None}
        kept: list[str] = []
        for part in inspect.cleandoc(text).split("\n\n"):
            if absent.isdisjoint(_NAME.findall(part)):
                while kept and 0 < _level(part) <= _level(kept[-1]):
                    kept.pop()  # a heading with nothing below it
                kept.append(string.Template(part).substitute(numbers))
        while numbers and kept and _level(kept[-1]):
            kept.pop()
        return Text("\n\n".join(kept))

    def value(
        self, experiment: str, metric: str, cell: str, against: str = "", host: str = ""
    ) -> str | None:
        """Return a number for prose: a cell's median, from the least host to the most.

        ``cell`` is a cell's id without the numbers of nodes; ``against`` divides by another one.
        Shares are in per cent. Hosts with the best evidence alone are asked; None where none has a
        value.
        """
        found: dict[str, list[float]] = {}
        unit = ""
        for run in self.chosen.of(experiment):
            if (host and run.manifest.host != host) or not tells(run, metric):
                continue
            mine, base = (_median(run, metric, one) for one in (cell, against))
            if mine is None or (against and not base):
                continue
            unit = "" if against else str(run.tool_rows(metric)["unit"][0])
            found.setdefault(badge.of(run), []).append(mine / base if against and base else mine)
        values = next((found[kind] for kind in badge.MEANING if kind in found), [])
        if not values:
            return None
        said = [_amount(one, unit) for one in values]
        low, high = said[values.index(min(values))], said[values.index(max(values))]
        return low if low == high else f"{low} to {high}"

    def split(self, experiment: str, cell: str) -> str | None:
        """Return on which nodes a cell's memory was found, for prose: ``93 : 7`` in per cent.

        Of more than two nodes it is the least and the most; of several hosts each is named.
        """
        found: dict[str, str] = {}
        for run in self.chosen.of(experiment):
            rows = proofs.proven(run)
            if rows.is_empty():
                continue
            mine = rows.filter(pl.col("cell").is_in(_cells(run, cell)))
            nodes = mine.group_by("point").agg(pl.col("value").mean()).sort("point")
            shares = [100 * share for share in nodes["value"].to_list()]
            if len(shares) > 2:
                ends = dict.fromkeys(f"{share:.0f}" for share in (min(shares), max(shares)))
                found[run.manifest.host] = "–".join(ends)
            elif len(shares) > 1:
                found[run.manifest.host] = " : ".join(f"{share:.0f}" for share in shares)
        if len(found) < 2:
            return next(iter(found.values()), None)
        return ", ".join(f"{said} ({escape.markdown(host)})" for host, said in found.items())

    def verdict(self, claim: str) -> str | None:
        """Return our verdict on a claim, host by host; None where no host could test it."""
        found: dict[str, list[str]] = {}
        for one in self._verdicts():
            if one.claim == claim and one.verdict != claims.NOT_TESTABLE:
                found.setdefault(one.verdict, []).append(self.chosen.named(one.host))
        said = [f"**{word}** on {escape.markdown(listed(on))}" for word, on in found.items()]
        return ", ".join(said) or None

    def badge(self, experiment: str = "") -> str | None:
        """Return the badge of an experiment's evidence; without one that of published figures."""
        kinds = dict.fromkeys(badge.of(run) for run in self.chosen.of(experiment))
        return " ".join(map(badge.mark, kinds if experiment else [PUBLISHED])) or None

    def only(self, kind: str) -> Article:
        """Return the article over the runs with one badge alone."""
        return Article([run for run in self.runs if badge.of(run) == kind])

    def on(self, experiment: str) -> str | None:
        """Return the hosts of an experiment, each with the badge of its evidence.

        Where there are other hosts, those with configured timing are left out, as of verdicts.
        """
        shown = _without_configured(self.chosen.of(experiment), badge.of)
        hosts = dict.fromkeys(run.manifest.host for run in shown)
        said = [f"{escape.markdown(one)} {badge.mark(self.chosen.badge(one))}" for one in hosts]
        return listed(said) if said else None

    # --- what was found -------------------------------------------------------------------------

    def findings(self) -> Text:
        """Return, for each experiment that compares, what its first measure shows: a line each."""
        findings = [one for run in self.runs for one in self._finding(run)]
        lines = [f"- **{where}**: {words}." for where, words, least in findings if not least]
        alike = [f"{where} ({least})" for where, _, least in findings if least]
        if alike:  # one line for all that saw nothing
            lines.append(
                f"- **{_ALIKE}**: {'; '.join(alike)}. In brackets is what would have been seen."
            )
        return Text("\n".join(lines))

    def _finding(self, run: Run) -> Iterable[tuple[str, str, str]]:
        """Yield what a run shows: where, in which words, and the least effect if it saw none."""
        metric = next(iter(run.measures), None)
        if metric is None or len(run.cells) < 2 or not tells(run, metric):
            return
        said: dict[tuple[str, str], list[str]] = {}
        for point in run.points(metric)[:_MOST_POINTS]:
            for words, least in _found(run, metric, point):
                said.setdefault((words, least), []).append(point)
        for (words, least), points in said.items():
            what = results.title(metric, "" if len(said) == 1 else listed(points))
            where = f"{run.manifest.experiment}, {what}, {self.chosen.where(run, marked=True)}"
            yield escape.markdown(where), escape.markdown(words), escape.markdown(least)

    def _verdicts(self) -> list[claims.Verdict]:
        """Where there are other hosts, those with configured timing decide no claim."""
        found: dict[tuple[str, str, str], claims.Verdict] = {}
        for view in _without_configured(self.views, lambda view: badge.of(view.run)):
            of_server = self.chosen.where(view.run).removeprefix(view.run.manifest.host)
            for verdict in view.verdicts(self.runs):
                if verdict.verdict != claims.NOT_TESTABLE:  # each server of a host has its own
                    verdict = replace(verdict, says=verdict.says + of_server)
                found[verdict.claim, verdict.says, verdict.host] = verdict
        return list(found.values())

    def counts(self) -> dict[str, int]:
        """Return how many runs, trials, hosts, claims, and claims with a verdict there are."""
        verdicts = self._verdicts()
        tested = {one.says for one in verdicts if one.verdict in _DECIDED}
        return {
            "runs": len(self.runs),
            "trials": sum(len(run.plan.order) for run in self.runs),
            "hosts": len(self.chosen.hosts()),
            "claims": len({one.says for one in verdicts}),
            "decided": len(tested),
        }

    def claims(self) -> Text:
        """Return the claims that were decided somewhere, with the verdict per host, as a table."""
        verdicts = self._verdicts()
        judged = {one.host for one in verdicts if one.verdict in _DECIDED}
        names = {host: self.chosen.named(host) for host in self.chosen.hosts() if host in judged}
        rows = [
            {
                "claim": says,
                **{
                    name: _word(by_host[host].verdict) if host in by_host else "–"
                    for host, name in names.items()
                },
                "source": next(iter(by_host.values())).source,
            }
            for says, by_host in _by_claim(verdicts).items()
            if any(one.verdict in _DECIDED for one in by_host.values())
        ]
        if not rows:
            return NOTHING
        text = tables.of_rows(rows, marked=names.values())
        shown = (run for run in self.runs if run.manifest.host in judged)
        return Text(f"{text}\n{badge.line(shown)}")

    def claim_details(self) -> Text:
        """Return the figures behind each verdict that the claims' table gives in a word."""
        lines: list[str] = []
        for says, by_host in _by_claim(self._verdicts()).items():
            found: dict[tuple[str, str], list[str]] = {}
            for host in self.chosen.hosts():
                one = by_host.get(host)
                if one and one.verdict in _DECIDED:
                    found.setdefault((one.verdict, one.because), []).append(self.chosen.named(host))
            if found:
                source = escape.markdown(next(iter(by_host.values())).source)
                lines += ["", f"**{escape.markdown(says)}** ({source})", ""]
            for (verdict, because), where in found.items():
                lines.append(escape.markdown(f"{listed(where)}: {verdict}: {because}"))
                lines[-1] = f"- {lines[-1]}"
        if lines:
            lines.insert(0, _MEDIANS)
        return Text("\n".join(lines))

    def recommendations(self) -> Text:
        """Return what each experiment that compares bindings recommends; a gain before none."""
        found = [
            (self.chosen.where(run, marked=True), run.manifest.experiment, recommendation.of(run))
            for run in self.runs
            if recommendation.suitable(run)
        ]
        parts = [
            f"**{escape.markdown(f'{experiment}, {where}')}.** {recommendation.markdown(advice)}"
            for where, experiment, advice in found
            if advice.cell
        ]
        none: dict[str, list[str]] = {}
        for where, experiment, advice in found:
            if not advice.cell:
                none.setdefault(advice.says, []).append(f"{experiment} on {where}")
        parts += [
            f"**{escape.markdown(listed(which))}.** {escape.markdown(says)}"
            for says, which in none.items()
        ]
        return Text("\n\n".join(parts) or "No run of this article compares bindings.")

    def sights(self) -> Text:
        """Return the smallest effect that each run could see in its timed metrics, as a table.

        A run's first metric is the one that decides; the others are in each run's own notebook.
        """
        rows = [
            {
                "experiment": run.manifest.experiment,
                "host": self.chosen.where(run, marked=True),
                "metric": results.title(one.metric),
                "smallest effect seen": _percent(one.smallest),
                "noise of a trial": _percent(one.noise),
            }
            for run in self.runs
            if run.plan.request.blocks >= BLOCKS_NEEDED
            for one in judge.sights(run)
            if one.noise and one.smallest and one.metric == next(iter(run.measures))
            if run.measures[one.metric].unit not in ("share", "count") and tells(run, one.metric)
        ]
        return Text(tables.of_rows(rows)) if rows else NOTHING

    def untested(self) -> Text:
        """Return the claims that nothing here decides, a line each with the reason, and what else
        was left out.
        """
        skipped: dict[str, list[str]] = {}
        for run in self.runs:
            where = f"{run.manifest.experiment} on {self.chosen.where(run)}"
            for line in skipped_lines(run):
                skipped.setdefault(line, []).append(where)
        lines = [f"not measured: {what} ({listed(where)})" for what, where in skipped.items()]
        for says, by_host in _by_claim(self._verdicts()).items():
            if not any(one.verdict in _DECIDED for one in by_host.values()):
                why: dict[str, list[str]] = {}
                for one in by_host.values():
                    why.setdefault(one.because, []).append(one.host)
                said = [f"{listed(on)}: {because}" for because, on in why.items()]
                lines.append(f"{says} ({'; '.join(said)})")
        return Text("\n".join(f"- {escape.markdown(line)}" for line in lines))

    def survey(self) -> Text:
        """Return where these hosts stand among the published machines, a line each."""
        found = [escape.markdown(said) for run in self.runs if (said := survey.position(run))]
        return Text("\n".join(f"- {one}" for one in found))

    def among_published(self) -> Shown:
        """Draw these hosts' latency among those of the published machines; or nothing."""
        return Survey([run for run in self.runs if run.manifest.experiment == "latency"]).placed()

    # --- the hosts ------------------------------------------------------------------------------

    def machines(self) -> Text:
        """Return the hosts as a table, a line each."""
        rows = []
        for host in self.chosen.hosts():
            record = self.chosen.records[host]
            shape = record.topology
            memory = [node.memory_bytes for node in shape.nodes]
            distances = {d for node in shape.nodes for d in node.distances.values()}
            release = record.before.get("kernel.release")
            rows.append(
                {
                    "host": self.chosen.named(host),
                    "processor": shape.model or "not named",
                    "sockets": shape.packages,
                    "cores": shape.cores,
                    "threads": shape.threads,
                    "nodes": len(shape.nodes),
                    "memory (GiB)": gib(sum(one or 0 for one in memory))
                    if None not in memory
                    else None,
                    "distances": ", ".join(map(str, sorted(distances))) or "not given",
                    "kernel": release.value if release else None,
                }
            )
        return Text(tables.of_rows(rows))

    def topology(self) -> Any:
        """Show every host drawn; of several each under its name."""
        from IPython.display import display

        views = {view.run.manifest.host: view for view in self.views}
        hosts = self.chosen.hosts()
        for host in hosts:
            display(views[host].topology(self.chosen.named(host) if len(hosts) > 1 else ""))

    def settings(self) -> Text:
        """Return, side by side, the settings of every host that bear most on a measurement."""
        hosts = self.chosen.hosts()
        if len(hosts) == 1:
            return self.views[-1].state(*SETTINGS)
        before = {host: self.chosen.records[host].before for host in hosts}
        known = {
            (name, host): before[host][name].value
            for name in SETTINGS
            for host in hosts
            if name in before[host] and before[host][name].value is not None
        }
        rows = [
            {
                "setting": name,
                **{
                    self.chosen.named(host): short(known[name, host])
                    if (name, host) in known
                    else "unknown"
                    for host in hosts
                },
            }
            for name in SETTINGS
            if name != "kernel.cmdline" and any((name, host) in known for host in hosts)
        ]
        if not rows:
            return Text("The settings of these hosts were not recorded.")
        lines = [
            f"\n- kernel command line of {escape.markdown(host)}: "
            + escape.code(known["kernel.cmdline", host])
            for host in hosts
            if known.get(("kernel.cmdline", host))
        ]
        return Text(tables.of_rows(rows) + "".join(lines))

    # --- beside what others published -----------------------------------------------------------

    def server_beside_published(self, experiment: str = "mysql-binding") -> Shown:
        """Draw a server's throughput by CPU set on these hosts and on the published one."""
        frames = [self.runs[0].measurements.clear()] + [
            run.measurements.filter(
                pl.col("metric").is_in([server.THROUGHPUT, "ipc"])
                & pl.col("cell").is_in(run.load_cells(""))
            )
            for run in self.chosen.of(experiment)
            if not run.host.emulated and len(run.host.topology.nodes) > 1
        ]
        return server.server_beside_published(worded(pl.concat(frames)), published())

    def service_beside_published(self, experiment: str = "service-per-node") -> Shown:
        """Draw one server and several on these hosts, and the published case; or nothing."""
        frames = [
            run.measurements.filter(
                pl.col("metric").is_in([server.SERVED, server.SERVED_LATENCY])
                & pl.col("cell").is_in(run.load_cells("")) & (pl.col("grade") != ERROR)
            )
            for run in self.chosen.of(experiment)
            if tells(run, server.SERVED)
        ]  # fmt: skip
        shown = [frame for frame in frames if frame["value"].is_not_null().any()]
        if not shown:
            return NOTHING
        return server.service_beside_published(worded(pl.concat(shown)), published())

    def quoted(
        self, experiment: str, metric: str, binding: str, against: str = "", host: str = ""
    ) -> str:
        """Return a published number for prose; ``against`` divides by another binding's.

        Raises Fault for one that is not in the table: no host can be the reason.
        """
        rows = published().filter(
            (pl.col("experiment") == experiment) & (pl.col("metric") == metric)
        )
        if host:
            rows = rows.filter(pl.col("host") == host)
        mine, base = (
            rows.filter(pl.col("binding") == one)["value"].to_list() for one in (binding, against)
        )
        if not mine or (against and not base):
            asked = " ".join(filter(None, (experiment, metric, host, binding, against)))
            raise Fault(f"no published figure is {asked}", "see data/reference/published.csv")
        return tables.number(mine[-1] / base[-1]) if against else f"{mine[-1]:,.10g}"

    def quoted_ratio(self, machine: str) -> str | None:
        """Return a published machine's latency of the other socket over its local one."""
        frame = survey.counted(survey.ratios(survey.load(), survey.LATENCY)).filter(
            (pl.col("machine") == machine) & (pl.col("class") == survey.OTHER)
        )
        return None if frame.is_empty() else f"{frame['ratio'][0]:.2f}"

    def missed_share(self, host: str) -> str:
        """Return which share of a published host's pages came from another node than asked for.

        That is ``numa_miss`` of ``numa_hit`` and ``numa_miss`` (numastat(8)), over all nodes and
        since the host was booted. Raises Fault for a host without them.
        """
        rows = published().filter((pl.col("experiment") == "numastat") & (pl.col("host") == host))
        hit, missed = (
            sum(rows.filter(pl.col("metric") == name)["value"].to_list())
            for name in ("numa_hit", "numa_miss")
        )
        if not hit:
            raise Fault(f"no published figure is numastat of {host}", "see data/reference")
        return _amount(missed / (hit + missed), "share")

    def published_table(self, experiment: str) -> Text:
        """Return what others published of an experiment: a line per binding, a column per metric.

        Figures that are not exact are marked.
        """
        rows = published().filter(pl.col("experiment") == experiment)
        made: dict[tuple[str, str], dict[str, str]] = {}
        for row in rows.iter_rows(named=True):
            said = tables.number(row["value"])
            unit = "" if row["unit"] in ("1", "1/s") else f" ({row['unit']})"
            if row["quality"] != survey.EXACT:
                said = f"≈ {said}"
            line = made.setdefault((row["cpu"], row["binding"]), {})
            head = tables.plain(row["metric"]) + unit
            line[head] = f"{line[head]}; {said}" if head in line else said
        if not made:
            return NOTHING
        heads = dict.fromkeys(head for line in made.values() for head in line)
        several = rows["cpu"].n_unique() > 1
        table = tables.of_rows(
            [
                {**({"machine": cpu} if several else {}), "binding": binding,
                 **{head: line.get(head) for head in heads}}
                for (cpu, binding), line in made.items()
            ]
        )  # fmt: skip
        meaning = badge.MEANING[PUBLISHED].capitalize()
        return Text(f"{table}\n*{meaning}; ≈ approximate or read from a picture.*")

    # --- how it was done ------------------------------------------------------------------------

    def methods(self) -> Text:
        """Return the tools, versions, sizes, seeds and blocks of every run."""
        rows = [
            {
                "experiment": run.manifest.experiment,
                "host": run.manifest.host,
                "evidence": badge.of(run),
                "tool": " ".join(filter(None, (run.plan.tool.name, run.plan.tool.version))),
                "profile": run.manifest.profile,
                "blocks": run.plan.request.blocks,
                "cells": len(run.plan.cells),
                "seed": str(run.manifest.seed),
                "run": run.name,
            }
            for run in self.runs
        ]
        notes = dict.fromkeys(
            f"{run.manifest.experiment}, {self.chosen.where(run)}: {note}"
            for run in self.runs
            for note in [*reservations(run), *_stands_for(run), *_page_sizes(run)]
        )
        return Text(
            tables.of_rows(rows) + "".join(f"\n- {escape.markdown(note)}" for note in notes)
        )

    def confidence(self) -> Text:
        """Return what a careful reader should know of each run: A/A, drift, noise, exclusions."""
        parts = []
        for run in self.runs:
            names = [name for name in run.measures if tells(run, name)]
            said = confidence.markdown(run, names)
            if names or said.startswith("- "):  # of times that mean nothing: only what was excluded
                where = f"{run.manifest.experiment}, {self.chosen.where(run, marked=True)}"
                parts += [f"**{escape.markdown(where)}**", said]
        return Text("\n\n".join(parts))


def _without_configured(
    shown: Sequence[_Shown], badge_of: Callable[[_Shown], str]
) -> Sequence[_Shown]:
    """Return what comes from hosts without configured timing; all where there is nothing else."""
    return [one for one in shown if badge_of(one) != CONFIGURED] or shown


def published() -> pl.DataFrame:
    """Return the figures of the study's own sources, with their doubts, a binding a row."""
    rows = survey.load()
    rows = rows.join(survey.load(("published.csv",)), on="machine", how="semi")
    part = pl.col("metric").str.extract_groups(r"^(?:(.*): )?(.*)$")
    pair = pl.concat_str(pl.lit("cpu"), "cpu_node", pl.lit("-mem"), "mem_node")
    mixed = pl.when(pl.col("class") == "interleaved").then(pl.lit("interleave"))
    return rows.select(
        "tool", "threads", "value", "unit", "quality",
        host="machine_id", cpu=pl.coalesce("processor", "machine_id"), note="notes",
        experiment=pl.coalesce(part.struct[0], "experiment"),
        binding=pl.coalesce(mixed, pair, "cpu_node", "mem_node"),
        metric=part.struct[1].replace({"idle latency": "latency"}),
    )  # fmt: skip


_MEDIANS = (
    "A median's interval goes from one measured value to another: it has the least confidence "
    "above 95 % that so few blocks allow."
)
_DECIDED = (claims.SUPPORTED, claims.REFUTED)
_ALIKE = "No binding differs from its baseline by more than the noise"
_MOST_POINTS = 12  # of a finding: hundreds of pairs of cores are for a picture


def _found(run: Run, metric: str, point: str) -> Iterable[tuple[str, str]]:
    """What a metric shows at one point, in a sentence without its end; if nothing, what it sees."""
    frame = results.table(run, metric, point).filter(pl.col("mean").is_not_null())
    cells = frame.filter(pl.col("role") != CONTROL)
    if cells.height < 2:
        return
    unit = cells["unit"][0]
    if unit in ("share", "count"):  # counted: a ratio would lose what is 0
        ends = [cells.sort("mean").row(place, named=True) for place in (0, -1)]
        said = [f"{_amount(one['mean'], unit)} ({one['label']})" for one in ends]
        apart = ends[0]["mean"] != ends[1]["mean"]
        yield (" to ".join(said) if apart else f"{said[0]} and all others"), ""
        return
    decisions = set(cells["decision"].drop_nulls())
    different = cells.filter(pl.col("decision") == judge.DIFFERENT)
    if judge.DRIFTED in decisions:
        yield "the run drifted, nothing is decided", ""
    elif not different.is_empty():
        row = max(different.iter_rows(named=True), key=lambda row: abs(math.log(row["ratio"])))
        base = run.cells[str(run.cells[row["cell"]].baseline)].label
        change = tables.change(row["ratio"], row["ratio_low"], row["ratio_high"])
        yield f"{row['label']} differs most: {change} against {base}", ""
    elif judge.ALIKE in decisions:
        least = next(one.smallest for one in judge.sights(run) if one.metric == metric)
        yield _ALIKE, f"effects of {_percent(least) or 'any size'} or more"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{tables.number(100 * share, 2)} %"


def _amount(value: float, unit: str) -> str:
    if unit != "share":
        return tables.number(value)
    return f"{value:.1%}" if 0 < value < 0.005 else f"{value:.0%}"  # little is not nothing


def _level(text: str) -> int:
    """The level of a heading; 0 for any other text."""
    return len(text) - len(text.lstrip("#")) if text.lstrip("#").startswith(" ") else 0


def _cells(run: Run, address: str) -> list[str]:
    """The cells of an address: their ids without the numbers of nodes, ``cpus-only/full``."""
    return [
        one.id
        for one in run.plan.cells
        if one.role != CONTROL and re.sub(r":[\d-]+(?=/|$)", "", one.id) == address
    ]


def _median(run: Run, metric: str, cell: str) -> float | None:
    """The median of a metric in the cell binding/case; None without a value."""
    binding, _, case = cell.partition("/")
    mine = _cells(run, cell)
    rows = run.tool_rows(metric).filter(pl.col("cell").is_in(mine) & (pl.col("grade") != ERROR))
    middle = rows["value"].median()
    return middle if isinstance(middle, float) else None


def _stands_for(run: Run) -> Iterable[str]:
    return (str(cell.stands_for) for cell in run.plan.cells if cell.stands_for)


def _page_sizes(run: Run) -> Iterable[str]:
    """The share of the probe's buffer that the kernel put on huge pages, as it was asked to."""
    shares = run.tool_rows("huge_page_share")["value"].drop_nulls().to_list()
    if shares:
        low, high = f"{min(shares):.0%}", f"{max(shares):.0%}"
        span = low if low == high else f"{low} to {high}"
        yield f"{span} of the buffer was on huge pages"


def _by_claim(verdicts: Sequence[claims.Verdict]) -> dict[str, dict[str, claims.Verdict]]:
    """Verdicts by what they say and host; of several runs on a host the last one counts."""
    found: dict[str, dict[str, claims.Verdict]] = {}
    for verdict in verdicts:
        found.setdefault(verdict.says, {})[verdict.host] = verdict
    return found


def _word(verdict: str) -> str:
    """A verdict in a table of many: a mark, and what was decided in a word."""
    return f"{_MARKS[verdict]} {verdict}" if verdict in _MARKS else "not testable"
