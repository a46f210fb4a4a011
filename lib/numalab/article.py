"""The article's pieces: each method is one cell of report/index.ipynb.

Everything an article says of a host is computed here from runs; no figure in its prose is typed
by hand. What was not measured is said in its place, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from numalab import claims, home, recommendation, results, runs, statistics
from numalab.agent import plan as planning
from numalab.charts import reference, server, tables
from numalab.notebook import Text, View, machine

# Of all that a host record holds, what a reader of the article looks for; the rest is in host.json.
SETTINGS = (
    "cpu.driver", "cpu.governor", "cpu.isolated", "cpu.microcode", "cpu.smt", "cpu.turbo",
    "dmi.bios_version", "dmi.product", "dram.peak_gb_s", "kernel.cmdline",
    "kernel.numa_balancing", "kernel.release", "numa.mode", "os.release",
    "thp.enabled", "virt.hypervisor", "vm.lru_gen", "vm.swappiness", "vm.zone_reclaim_mode",
)  # fmt: skip


class Article:
    """The chosen runs, newest last of an experiment and host, as an article tells them."""

    def __init__(self, chosen: Sequence[runs.Run]) -> None:
        self.runs = list(chosen)
        self.views = [View(run) for run in self.runs]

    def hosts(self) -> list[str]:
        """Return the names of the hosts, in the order of the runs."""
        return list(dict.fromkeys(run.manifest["host"] for run in self.runs))

    def _of(self, experiment: str) -> list[View]:
        return [view for view in self.views if view.run.manifest["experiment"] == experiment]

    def _absent(self, experiment: str) -> Text:
        return Text(
            f"The {experiment} experiment was not run; `numalab run {experiment}` measures it."
        )

    def summary(self) -> Text:
        """Return the abstract: what was measured where, and what came of the claims."""
        trials = sum(len(run.plan["order"]) for run in self.runs)
        names = self.hosts()
        lines = [
            f"{_count(len(self.runs), 'experiment')}, {_count(trials, 'trial')} in randomised "
            f"blocks, on {_listed(names)}. Each trial's placement was proven while it ran, or it "
            "says why not."
        ]
        for view in self.views:
            lines += self._finding(view)
        counts = [verdict.verdict for verdict in self._verdicts()]
        if counts:
            said = [f"{counts.count(word)} {word}" for word in dict.fromkeys(sorted(counts))]
            lines.append(f"Of {len(counts)} claims judged: {_listed(said)} (@tbl-claims).")
        return Text("\n\n".join(lines))

    def _finding(self, view: View) -> Iterable[str]:
        """The one sentence of an experiment that a reader should take away."""
        run = view.run
        if not run.measures or len(run.cells) < 2 or run.host["emulated"]:
            return
        metric = next(iter(run.measures))
        frame = results.table(run, metric, results.points(run, metric)[0])
        different = frame.filter(pl.col("decision") == statistics.EFFECT)
        what = f"{run.manifest['experiment']}, {results.title(metric)}, {run.manifest['host']}"
        if not different.is_empty():
            unlike_one = (pl.col("ratio").log().abs()).arg_max()
            row = different.row(different.select(unlike_one).item(), named=True)
            ratio = tables.interval(row["ratio"], row["ratio_low"], row["ratio_high"])
            yield f"- {what}: {row['label']} differs most from its baseline: ratio {ratio}."
        elif (frame["n"] >= statistics.BLOCKS_NEEDED).any():
            yield f"- {what}: no binding can be told from its baseline beyond the A/A control."

    def _verdicts(self) -> list[claims.Verdict]:
        return [verdict for view in self.views for verdict in view.verdicts(self.runs)]

    def claims(self) -> Text:
        """Return the verdict on every claim, per host: the article's first table."""
        verdicts = self._verdicts()
        return Text(claims.markdown(verdicts) if verdicts else "No claim belongs to these runs.")

    def machines(self) -> Text:
        """Return the hosts in a line each."""
        rows = []
        for host in self.hosts():
            run = self._any(host)
            emulated = ". **Emulated: its timings mean nothing**" if run.host["emulated"] else ""
            rows.append(f"- **{host}**: {machine(run)}{emulated}")
        return Text("\n".join(rows))

    def _any(self, host: str) -> runs.Run:
        return next(run for run in self.runs if run.manifest["host"] == host)

    def topology(self) -> Any:
        """Draw the first host; the other hosts' drawings stand in their own notebooks."""
        return View(self._any(self.hosts()[0])).topology()

    def nodes(self) -> Text:
        """Return the nodes of the first host."""
        return View(self._any(self.hosts()[0])).nodes()

    def settings(self) -> Text:
        """Return the settings of the first host that bear most on a measurement."""
        return View(self._any(self.hosts()[0])).state(*SETTINGS)

    def show(self, experiment: str, method: str, *arguments: str) -> Any:
        """Return what an experiment's notebook shows; of several hosts one after the other."""
        views = self._of(experiment)
        if not views:
            return self._absent(experiment)
        shown = [getattr(view, method)(*arguments) for view in views]
        if len(shown) == 1:
            return shown[0]
        names = [Text(f"**{view.run.manifest['host']}**") for view in views]
        if all(isinstance(one, Text) for one in shown):
            pairs = zip(names, shown, strict=True)
            return Text("\n\n".join(f"{name}\n\n{one}" for name, one in pairs))
        from IPython.display import display

        for name, one in zip(names, shown, strict=True):
            display(name, one)
        return None

    def not_tested(self) -> Text:
        """Return plainly what could not be tested on these hosts, and why."""
        lines = []
        for host in self.hosts():
            nodes = [
                node for node in self._any(host).host["topology"]["nodes"] if node["memory_bytes"]
            ]
            if len(nodes) < 2:
                lines.append(
                    f"**{host} shows one NUMA node with memory.** Nothing remote exists on it: no "
                    "binding could be compared with memory of another node, and numa_maps can only "
                    "say that all pages are on the one visible node. What this article shows of it "
                    "is a baseline and a check of the method (the A/A control)."
                )
        skipped: dict[str, list[str]] = {}
        for view in self.views:
            where = f"{view.run.manifest['experiment']} on {view.run.manifest['host']}"
            for line in planning.skipped_lines(view.run.plan):
                skipped.setdefault(line, []).append(where)
        lines += [f"- {what} ({_listed(where)})" for what, where in skipped.items()]
        untestable = [v for v in self._verdicts() if v.verdict == claims.NOT_TESTABLE]
        lines += [f"- claim {v.claim} on {v.host}: {v.because}" for v in untestable]
        return Text("\n".join(_spaced(lines)) or "Every binding and claim could be tested.")

    def published(self) -> Any:
        """Draw these hosts beside the published machines, each with its tool's name."""
        return reference.beside_published(self._own_figures(), published())

    def _own_figures(self) -> pl.DataFrame:
        frames = []
        for view in self.views:
            if not view.run.host["emulated"]:
                frames.append(view.run.node_pairs("idle_latency"))
                frames.append(view.run.tool_rows("triad"))
        return pl.concat(frames) if frames else self.runs[0].measurements.clear()

    def server(self, experiment: str = "mysql-binding") -> Any:
        """Draw a server's throughput by CPU set on these hosts and on the published one."""
        frames = [
            view.run.measurements.filter(
                pl.col("metric").is_in([server.THROUGHPUT, "ipc"])
                & pl.col("cell").is_in(view.run.load_cells(""))
            )
            for view in self._of(experiment)
            if not view.run.host["emulated"]
        ]
        own = pl.concat(frames) if frames else self.runs[0].measurements.clear()
        return server.server_beside_published(own, published())

    def recommendations(self) -> Text:
        """Return what each experiment that compares bindings recommends for its host."""
        parts = [
            f"**{view.run.manifest['experiment']}, {view.run.manifest['host']}**: "
            f"{view.recommendation()}"
            for view in self.views
            if recommendation.suitable(view.run)
        ]
        return Text("\n\n".join(parts) or "No run of this article compares bindings.")

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
        doubts = [f"\n- {row['cpu']}: {row['note']}" for row in notes.to_dicts()]
        return Text(tables.markdown(rows, heads) + "".join(doubts))

    def methods(self) -> Text:
        """Return the tools, versions, sizes, seeds and blocks of every run."""
        rows = [
            {
                "experiment": run.manifest["experiment"],
                "host": run.manifest["host"],
                "tool": " ".join(filter(None, map(run.plan["tool"].get, ("name", "version")))),
                "profile": run.manifest["profile"],
                "blocks": run.plan["request"]["blocks"],
                "cells": len(run.plan["cells"]),
                "seed": str(run.manifest["seed"]),
                "run": run.name,
            }
            for run in self.runs
        ]
        notes = dict.fromkeys(
            f"{run.manifest['experiment']}, {run.manifest['host']}: {note}"
            for run in self.runs
            for note in [*_rules_not_met(run), *_page_sizes(run)]
        )
        text = tables.markdown(pl.DataFrame(rows), {name: name for name in rows[0]})
        return Text(text + "".join(f"\n- {note}" for note in notes))

    def confidence(self) -> Text:
        """Return what a careful reader should know of each run: A/A, drift, noise, exclusions."""
        parts = []
        for view in self.views:
            run = view.run
            if run.measures:
                parts.append(f"**{run.manifest['experiment']}, {run.manifest['host']}**")
                parts.append(results.confidence(run))
        return Text("\n\n".join(parts))


def open_article(paths: Sequence[str | Path]) -> Article:
    """Open the article over these run directories."""
    return Article([runs.load(path) for path in paths])


def published() -> pl.DataFrame:
    """Return data/reference/published.csv: the published machines' figures and their doubts."""
    path = home.root() / "data" / "reference" / "published.csv"
    return pl.read_csv(path, infer_schema_length=None)


def _rules_not_met(run: runs.Run) -> Iterable[str]:
    for cell in run.plan["cells"]:
        yield from (note for note in cell["notes"] if "not met" in note)


def _page_sizes(run: runs.Run) -> Iterable[str]:
    """The share of the probe's buffer that the kernel put on huge pages, as it was asked to."""
    shares = run.tool_rows("huge_page_share")["value"].drop_nulls()
    if len(shares):
        low, high = f"{shares.min():.0%}", f"{shares.max():.0%}"
        span = low if low == high else f"{low} to {high}"
        yield f"{span} of the buffer was on huge pages"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _listed(words: Sequence[str]) -> str:
    words = list(words)
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _spaced(lines: list[str]) -> Iterable[str]:
    """Paragraphs need an empty line around them; list items stay together."""
    for place, line in enumerate(lines):
        if place and not (line.startswith("- ") and lines[place - 1].startswith("- ")):
            yield ""
        yield line
