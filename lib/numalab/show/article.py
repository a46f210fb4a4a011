"""The article over runs: what its notebook, report/index.ipynb, computes.

Everything an article says of a host is computed here from runs; its fixed prose stands in the
notebook. What was not measured is said in its place, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from numalab import experiments, runs
from numalab.agent.words import units
from numalab.analysis import claims, judge, recommendation, results, survey
from numalab.runs import Run
from numalab.show import badge, escape, tables
from numalab.show.charts import matrix, reference, server
from numalab.show.chosen import Chosen, listed
from numalab.show.section import Section, tells
from numalab.show.view import Shown, Text, View, gib, node_rows, short, skipped_lines, worded

# Of all that a host record holds, what a reader of the article looks for; the rest is in host.json.
SETTINGS = (
    "cpu.driver", "cpu.governor", "cpu.isolated", "cpu.microcode", "cpu.smt", "cpu.turbo",
    "dmi.bios_version", "dmi.product", "dram.peak_gb_s", "kernel.cmdline",
    "kernel.numa_balancing", "kernel.release", "numa.mode", "os.release",
    "thp.enabled", "virt.hypervisor", "vm.lru_gen", "vm.swappiness", "vm.zone_reclaim_mode",
)  # fmt: skip

# Notes of a cell that bear on every figure of it, not only on what its binding is.
_RESERVATIONS = (
    "below-four-caches", "below-hidden-cache", "llc-hidden", "llc-unknown", "data-below-caches",
    "client-shares-cpus", "client-elsewhere", "memory-only-node",
    "balancing-may-move", "threads-bounded",
)  # fmt: skip


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

    # --- what was found -------------------------------------------------------------------------

    def summary(self) -> Text:
        """Return what was measured where, what stands out, and what came of the claims."""
        trials = sum(len(run.plan.order) for run in self.runs)
        kinds = {run.manifest.experiment for run in self.runs}
        hosts = self.chosen.hosts()
        lines = [
            f"{units.count(len(kinds), 'experiment')}, {units.count(trials, 'trial')} in "
            f"randomised blocks, on {escape.markdown(listed(list(map(self.chosen.named, hosts))))}."
        ]
        lines += [found for run in self.runs for found in self._finding(run)]
        verdicts = self._verdicts()
        if verdicts:
            claimed = len({(verdict.claim, verdict.says) for verdict in verdicts})
            words = [verdict.verdict for verdict in verdicts]
            said = [f"{words.count(word)} {word}" for word in sorted(set(words))]
            on = f", judged on {units.count(len(hosts), 'host')}" if len(hosts) > 1 else " judged"
            lines.append(f"{units.count(claimed, 'claim')}{on}: {listed(said)} (@tbl-claims).")
        return Text("\n\n".join(lines))

    def _finding(self, run: Run) -> Iterable[str]:
        """The one sentence of an experiment that a reader should take away."""
        metric = next(iter(run.measures), None)
        if metric is None or len(run.cells) < 2 or not tells(run, metric):
            return
        points = results.points(run, metric)
        if not points:
            return
        frame = results.table(run, metric, points[0])
        different = frame.filter(pl.col("decision") == judge.DIFFERENT)
        what = f"{run.manifest.experiment}, {results.title(metric)}, " + self.chosen.where(
            run, marked=True
        )
        what = escape.markdown(what)
        if not different.is_empty():
            row = different.sort(pl.col("ratio").log().abs()).row(-1, named=True)
            ratio = tables.interval(row["ratio"], row["ratio_low"], row["ratio_high"])
            label = escape.markdown(row["label"])
            yield f"- {what}: {label} differs most from its baseline: ratio {ratio}."
        elif (frame["decision"] == judge.ALIKE).any():
            yield f"- {what}: no binding can be told from its baseline beyond the A/A control."

    def _verdicts(self) -> list[claims.Verdict]:
        found: dict[tuple[str, str, str], claims.Verdict] = {}
        for view in self.views:
            of_server = self.chosen.where(view.run).removeprefix(view.run.manifest.host)
            for verdict in view.verdicts(self.runs):
                if verdict.verdict != claims.NOT_TESTABLE:  # each server of a host has its own
                    verdict = replace(verdict, says=verdict.says + of_server)
                found[verdict.claim, verdict.says, verdict.host] = verdict
        return list(found.values())

    def claims(self) -> Text:
        """Return the verdict on every claim, per host: the article's first table."""
        verdicts = self._verdicts()
        if not verdicts:
            return Text("No claim belongs to these runs.")
        if len(self.chosen.hosts()) == 1:
            return Text(f"{claims.markdown(verdicts)}\n\n{badge.line(self.runs)}")
        names = {host: self.chosen.named(host) for host in self.chosen.hosts()}
        rows = [
            {
                "claim": says,
                **{
                    name: _word(by_host[host].verdict) if host in by_host else "not run"
                    for host, name in names.items()
                },
            }
            for says, by_host in _by_claim(verdicts).items()
        ]
        text = tables.of_rows(rows, marked=names.values())
        return Text(f"{text}\n{badge.line(self.runs)}")

    def claim_details(self) -> Text:
        """Return the figures behind each verdict that the claims' table gives in a word."""
        lines: list[str] = []
        for says, by_host in _by_claim(self._verdicts()).items():
            found: dict[tuple[str, str], list[str]] = {}
            for host in self.chosen.hosts():
                one = by_host.get(host)
                if one and one.verdict != claims.NOT_TESTABLE:  # the next section has those
                    found.setdefault((one.verdict, one.because), []).append(self.chosen.named(host))
            if found:
                source = escape.markdown(next(iter(by_host.values())).source)
                lines += ["", f"**{escape.markdown(says)}** ({source})", ""]
            for (verdict, because), where in found.items():
                lines.append(escape.markdown(f"{listed(where)}: {verdict}: {because}"))
                lines[-1] = f"- {lines[-1]}"
        return Text("\n".join(lines).strip() or "No claim could be tested.")

    def recommendations(self) -> Text:
        """Return what each experiment that compares bindings recommends for its host."""
        parts = [
            f"**{escape.markdown(f'{view.run.manifest.experiment}, {self._on(view.run)}')}**: "
            f"{view.recommendation()}"
            for view in self.views
            if recommendation.suitable(view.run)
        ]
        return Text("\n\n".join(parts) or "No run of this article compares bindings.")

    def _on(self, run: Run) -> str:
        return self.chosen.where(run, marked=True)

    def not_tested(self) -> Text:
        """Return plainly what could not be tested on these hosts, and why."""
        one_node = [
            self.chosen.named(host)
            for host, record in self.chosen.records.items()
            if record.topology.one_visible_node
        ]
        lines = [f"only one NUMA node with memory: {listed(one_node)}"] if one_node else []
        skipped: dict[str, list[str]] = {}
        for run in self.runs:
            where = f"{run.manifest.experiment} on {self.chosen.where(run)}"
            for line in skipped_lines(run):
                skipped.setdefault(line, []).append(where)
        lines += [f"{what} ({listed(where)})" for what, where in skipped.items()]
        untestable: dict[tuple[str, str], list[str]] = {}
        for verdict in self._verdicts():
            if verdict.verdict == claims.NOT_TESTABLE:
                key = (verdict.host, verdict.because)
                untestable.setdefault(key, []).append(verdict.claim)
        lines += [
            f"{'claim' if len(which) == 1 else 'claims'} {listed(which)} on {host}: {because}"
            for (host, because), which in untestable.items()
        ]
        said = [f"- {escape.markdown(line)}" for line in lines]
        return Text("\n".join(said) or "Every binding and claim could be tested.")

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
        views = {view.run.manifest.host: view for view in self.views}
        hosts = self.chosen.hosts()
        if len(hosts) == 1:
            return views[hosts[0]].topology()
        from IPython.display import display

        for host in hosts:
            display(views[host].topology(self.chosen.named(host)))
        return None

    def nodes(self) -> Text:
        """Return the nodes of every host."""
        one = len(self.chosen.hosts()) == 1
        views = {view.run.manifest.host: view for view in self.views}
        rows = [
            {
                **({} if one else {"host": self.chosen.named(host)}),
                **{name: value for name, value in row.items() if one or name != "distances"},
            }
            for host in self.chosen.hosts()
            for row in node_rows(views[host].run)
        ]
        return Text(tables.of_rows(rows))

    def distances(self) -> Shown:
        """Draw the firmware's distances of every host with several nodes, one matrix each."""
        panels = [
            matrix.distances(host, self.chosen.records[host].topology, self.chosen.badge(host))
            for host in self.chosen.hosts()
            if self.chosen.size(host) > 1
        ]
        if not any(panel.entries for panel in panels):
            return Text("No host here has two nodes with a distance between them.")
        return matrix.matrices(panels, "SLIT distances", "", "lower", "from node", "to node")

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

    def published(self) -> Shown:
        """Draw these hosts beside the published machines, each with its tool's name."""
        frames = [
            rows
            for run in self.runs
            if not run.host.emulated
            for rows in (run.node_pairs("idle_latency"), run.binding_rows("triad"))
        ]
        return reference.beside_published(self._together(frames), published())

    def server(self, experiment: str = "mysql-binding") -> Shown:
        """Draw a server's throughput by CPU set on these hosts and on the published one."""
        frames = [
            run.measurements.filter(
                pl.col("metric").is_in([server.THROUGHPUT, "ipc"])
                & pl.col("cell").is_in(run.load_cells(""))
            )
            for run in self.chosen.of(experiment)
            if not run.host.emulated
        ]
        return server.server_beside_published(self._together(frames), published())

    def _together(self, frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
        if not frames:
            return self.runs[0].measurements.clear()
        return worded(pl.concat(frames))

    def published_table(self, *experiments: str) -> Text:
        """Return the published figures that stand beside ours, with their doubts.

        Without ``experiments`` those of memory (idle-latency, stream).
        """
        chosen = list(experiments) or ["idle-latency", "stream"]
        rows = published().filter(pl.col("experiment").is_in(chosen))
        heads = {"machine": "cpu", "experiment": "experiment", "binding": "binding"}
        heads |= {"metric": "metric"} if experiments else {}
        heads |= {"value": "value", "unit": "unit", "quality": "quality"}
        notes = rows.filter(pl.col("note").is_not_null()).unique(
            ["cpu", "note"], keep="first", maintain_order=True
        )
        doubts = [
            f"\n- {escape.markdown(row['cpu'])}: {escape.markdown(row['note'])}"
            for row in notes.to_dicts()
        ]
        line = f"\n\n*{badge.MEANING['published'].capitalize()}.*"
        return Text(tables.markdown(rows, heads) + "".join(doubts) + line)

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
            for note in [*_reservations(run), *_page_sizes(run)]
        )
        return Text(
            tables.of_rows(rows) + "".join(f"\n- {escape.markdown(note)}" for note in notes)
        )

    def confidence(self) -> Text:
        """Return what a careful reader should know of each run: A/A, drift, noise, exclusions."""
        parts = []
        for run in self.runs:
            told = [name for name in run.measures if tells(run, name)]
            said = results.confidence(run, told)
            if told or said.startswith("- "):  # of times that mean nothing: only what was excluded
                parts.append(
                    f"**{escape.markdown(f'{run.manifest.experiment}, {self._on(run)}')}**"
                )
                parts.append(said)
        return Text("\n\n".join(parts))


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


def _reservations(run: Run) -> Iterable[str]:
    yield from (f"{why}; measured all the same" for why in run.manifest.busy)
    for cell in run.plan.cells:
        if cell.stands_for:
            yield str(cell.stands_for)
        yield from (str(note) for note in cell.notes if note.code in _RESERVATIONS)


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
    """A verdict in a table of many: what was decided stands out."""
    return f"**{verdict}**" if verdict in (claims.SUPPORTED, claims.REFUTED) else verdict
