"""The article's pieces: each method is one cell of report/index.ipynb.

Everything an article says of a host is computed here from runs; no figure in its prose is typed
by hand. What was not measured is said in its place, with the reason.

Of several hosts, machines come before emulated ones. An emulated host is marked wherever it is
named. Its times and speeds stand in matrices, marked; everywhere else they are left out as long
as a machine measured the same, and nothing is concluded from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from numalab import home, runs
from numalab.agent.plan import make as planning
from numalab.analysis import claims, recommendation, results, statistics
from numalab.show import tables
from numalab.show.charts import hosts as several
from numalab.show.charts import reference, server, style
from numalab.show.view import Text, View, short

# Of all that a host record holds, what a reader of the article looks for; the rest is in host.json.
SETTINGS = (
    "cpu.driver", "cpu.governor", "cpu.isolated", "cpu.microcode", "cpu.smt", "cpu.turbo",
    "dmi.bios_version", "dmi.product", "dram.peak_gb_s", "kernel.cmdline",
    "kernel.numa_balancing", "kernel.release", "numa.mode", "os.release",
    "thp.enabled", "virt.hypervisor", "vm.lru_gen", "vm.swappiness", "vm.zone_reclaim_mode",
)  # fmt: skip


_MEANINGLESS = "emulated: times mean nothing"


class Article:
    """The chosen runs, of each host its machines first, as an article tells them."""

    def __init__(self, chosen: Sequence[runs.Run]) -> None:
        self.runs = sorted(chosen, key=lambda run: bool(run.host["emulated"]))  # stable
        self.views = [View(run) for run in self.runs]
        self._records = {run.manifest["host"]: run.host for run in self.runs}  # the newest

    def hosts(self) -> list[str]:
        """Return the names of the hosts: machines first, then by the number of their nodes."""
        return sorted(self._records, key=lambda host: (self._emulated(host), self._size(host)))

    def _size(self, host: str) -> int:
        return len(self._records[host]["topology"]["nodes"])

    def _emulated(self, host: str) -> bool:
        return bool(self._records[host]["emulated"])

    def _named(self, host: str) -> str:
        return f"{host} (emulated)" if self._emulated(host) else host

    def _where(self, run: runs.Run, *, marked: bool = False) -> str:
        """A run's host; with its server where the host measured the same with another."""
        host = run.manifest["host"]
        alike = [other for other in self.runs if other.subject[:2] == run.subject[:2]]
        name = self._named(host) if marked else host
        return f"{name}, {run.server}" if run.server and len(alike) > 1 else name

    def _of(self, experiment: str) -> list[View]:
        """The views of an experiment, one per host and server, in the order of the hosts."""
        order = {host: place for place, host in enumerate(self.hosts())}
        found = [view for view in self.views if view.run.manifest["experiment"] == experiment]
        return sorted(found, key=lambda view: order[view.run.manifest["host"]])

    def _absent(self, experiment: str) -> Text:
        return Text(
            f"The {experiment} experiment was not run; `numalab run {experiment}` measures it."
        )

    def summary(self) -> Text:
        """Return the abstract: what was measured where, and what came of the claims."""
        trials = sum(len(run.plan["order"]) for run in self.runs)
        kinds = {run.manifest["experiment"] for run in self.runs}
        names = self.hosts()
        lines = [
            f"{_count(len(kinds), 'experiment')}, {_count(trials, 'trial')} in randomised "
            f"blocks, on {_listed(names)}. Each trial's placement was proven while it ran, or it "
            "says why not."
        ]
        emulated = [host for host in names if self._emulated(host)]
        if emulated:
            verb, word = ("is", "a host") if len(emulated) == 1 else ("are", "hosts")
            lines.append(
                f"{_listed(emulated)} {verb} {word} emulated in software: what the kernel did "
                "there (where memory went, what was reclaimed) is real, times and speeds are not, "
                "and nothing is concluded from them."
            )
        for view in self.views:
            lines += self._finding(view)
        verdicts = self._verdicts()
        counts = [verdict.verdict for verdict in verdicts]
        if counts:
            claimed = len({(verdict.claim, verdict.says) for verdict in verdicts})
            said = [f"{counts.count(word)} {word}" for word in dict.fromkeys(sorted(counts))]
            of = f"Of {_count(claimed, 'claim')} judged"
            if len(names) > 1:
                of = f"{_count(claimed, 'claim')}, judged on {_count(len(names), 'host')}"
            lines.append(f"{of}: {_listed(said)} (@tbl-claims).")
        return Text("\n\n".join(lines))

    def _finding(self, view: View) -> Iterable[str]:
        """The one sentence of an experiment that a reader should take away."""
        run = view.run
        if not run.measures or len(run.cells) < 2:
            return
        metric = next(iter(run.measures))
        if not self._tells(view, "table", metric):
            return
        frame = results.table(run, metric, results.points(run, metric)[0])
        different = frame.filter(pl.col("decision") == statistics.EFFECT)
        what = f"{run.manifest['experiment']}, {results.title(metric)}, {self._where(run)}"
        if not different.is_empty():
            unlike_one = (pl.col("ratio").log().abs()).arg_max()
            row = different.row(different.select(unlike_one).item(), named=True)
            ratio = tables.interval(row["ratio"], row["ratio_low"], row["ratio_high"])
            yield f"- {what}: {row['label']} differs most from its baseline: ratio {ratio}."
        elif (frame["n"] >= statistics.BLOCKS_NEEDED).any():
            yield f"- {what}: no binding can be told from its baseline beyond the A/A control."

    def _verdicts(self) -> list[claims.Verdict]:
        found: dict[tuple[str, str, str], claims.Verdict] = {}
        for view in self.views:
            server = self._where(view.run).removeprefix(view.run.manifest["host"])
            for verdict in view.verdicts(self.runs):
                if verdict.verdict != claims.NOT_TESTABLE:  # each server of a host has its own
                    verdict = replace(verdict, says=verdict.says + server)
                found[verdict.claim, verdict.says, verdict.host] = verdict
        return list(found.values())

    def claims(self) -> Text:
        """Return the verdict on every claim, per host: the article's first table."""
        verdicts = self._verdicts()
        if not verdicts:
            return Text("No claim belongs to these runs.")
        if len(self.hosts()) == 1:
            return Text(claims.markdown(verdicts))
        rows = []
        for says, by_host in _by_claim(verdicts).items():
            row = {"claim": says}
            for host in self.hosts():
                verdict = by_host.get(host)
                row[self._named(host)] = _word(verdict.verdict) if verdict else "not run"
            rows.append(row)
        return Text(tables.markdown(pl.DataFrame(rows), {name: name for name in rows[0]}))

    def claim_details(self) -> Text:
        """Return the figures behind each verdict that the claims' table gives in a word."""
        lines: list[str] = []
        for says, by_host in _by_claim(self._verdicts()).items():
            reasons: dict[tuple[str, str], list[str]] = {}
            for host in self.hosts():
                one = by_host.get(host)
                if one and one.verdict != claims.NOT_TESTABLE:  # the next section has those
                    reasons.setdefault((one.verdict, one.because), []).append(host)
            if reasons:
                lines += ["", f"**{says}** ({next(iter(by_host.values())).source})", ""]
            for (verdict, because), where in reasons.items():
                lines.append(f"- {_listed(where)}: {verdict}: {because}")
        return Text("\n".join(lines).strip() or "No claim could be tested.")

    def machines(self) -> Text:
        """Return the hosts as a table, a line each."""
        rows = []
        for host in self.hosts():
            record = self._records[host]
            shape, before = record["topology"], record["before"]
            memory = [node["memory_bytes"] for node in shape["nodes"]]
            distances = {d for node in shape["nodes"] for d in node["distances"].values()}
            rows.append(
                {
                    "host": self._named(host),
                    "processor": shape["model"] or "not named",
                    "sockets": shape["packages"],
                    "cores": shape["cores"],
                    "threads": shape["threads"],
                    "nodes": len(shape["nodes"]),
                    "memory (GiB)": None if None in memory else sum(memory) / 2**30,
                    "distances": ", ".join(map(str, sorted(distances))) or "not given",
                    "kernel": (before.get("kernel.release") or {}).get("value"),
                }
            )
        return Text(tables.markdown(pl.DataFrame(rows), {name: name for name in rows[0]}))

    def _any(self, host: str) -> runs.Run:
        return next(run for run in self.runs if run.manifest["host"] == host)

    def topology(self) -> Any:
        """Show every host drawn; of several each under its name."""
        names = self.hosts()
        pictures = [View(self._any(host)).topology() for host in names]
        for host, picture in zip(names, pictures, strict=True):
            if self._emulated(host):
                several.mark(picture)
        if len(names) == 1:
            return pictures[0]
        from IPython.display import display

        for host, picture in zip(names, pictures, strict=True):
            display(several.Sheet([(self._named(host), picture)]))
        return None

    def nodes(self) -> Text:
        """Return the nodes of every host."""
        rows = []
        for host in self.hosts():
            for node in self._records[host]["topology"]["nodes"]:
                rows.append(
                    {
                        "host": self._named(host),
                        "node": node["node"],
                        "CPUs": node["cpus"] or "none",
                        "memory (GiB)": _gib(node["memory_bytes"]),
                        "free (GiB)": _gib(node["free_bytes"]),
                        "page cache (GiB)": _gib(node["page_cache_bytes"]),
                        "distances": " ".join(map(str, node["distances"].values())) or "not given",
                    }
                )
        left_out = "host" if len(self.hosts()) == 1 else "distances"  # a figure shows them
        heads = [name for name in rows[0] if name != left_out]
        return Text(tables.markdown(pl.DataFrame(rows), {name: name for name in heads}))

    def distances(self) -> style.Picture | Text:
        """Draw the firmware's distances of every host with several nodes, one matrix each."""
        panels = [
            several.distance_panel(
                host,
                self._records[host]["topology"],
                "emulated" if self._emulated(host) else "",
            )
            for host in self.hosts()
            if self._size(host) > 1
        ]
        if not any(panel.cells for panel in panels):
            return Text("No host here has two nodes with a distance between them.")
        return several.matrices(panels, "SLIT distances", "", "from node", "to node")

    def settings(self) -> Text:
        """Return, side by side, the settings of every host that bear most on a measurement."""
        names = self.hosts()
        if len(names) == 1:
            return View(self._any(names[0])).state(*SETTINGS)
        rows = []
        for name in SETTINGS:
            entries = [self._records[host]["before"].get(name) or {} for host in names]
            if name == "kernel.cmdline" or all(entry.get("value") is None for entry in entries):
                continue
            row = {"setting": name}
            for host, entry in zip(names, entries, strict=True):
                value = entry.get("value")
                row[self._named(host)] = "unknown" if value is None else short(value)
            rows.append(row)
        if not rows:
            return Text("The settings of these hosts were not recorded.")
        text = tables.markdown(pl.DataFrame(rows), {name: name for name in rows[0]})
        lines = []
        for host in names:
            given = (self._records[host]["before"].get("kernel.cmdline") or {}).get("value")
            lines += [f"\n- kernel command line of {host}: `{given}`"] if given else []
        return Text(text + "".join(lines) + "\n\nWhy a value is unknown: each run's host.json.")

    def show(self, experiment: str, method: str, *arguments: str) -> Any:
        """Return what an experiment's notebook shows; of several hosts side by side.

        Matrices become small multiples, other pictures one sheet, tables one table. What only
        times tell is left to machines, unless there are none.
        """
        views = self._of(experiment)
        if not views:
            return self._absent(experiment)
        if method == "matrix" and len(views) > 1:
            return self._matrices(views, *arguments)
        shown = [view for view in views if self._tells(view, method, *arguments)] or views
        hidden = [view for view in views if view not in shown]
        names = [self._where(view.run, marked=True) for view in shown]
        remark = ""
        if hidden:
            left_out = _listed([self._where(view.run) for view in hidden])
            remark = f"Left out: {left_out} ({_MEANINGLESS})."
        if method == "table" and len(views) > 1:
            return self._table(shown, names, remark, *arguments)
        made = [getattr(view, method)(*arguments) for view in shown]
        if len(made) == 1 and not remark:
            return made[0]
        pictures = [
            (name, one) for name, one in zip(names, made, strict=True) if not isinstance(one, Text)
        ]
        said_by: dict[str, list[str]] = {}
        for name, one in zip(names, made, strict=True):
            if isinstance(one, Text):
                said_by.setdefault(str(one), []).append(name)
        words = [
            f"**{_listed(which)}**" + (f": {one}" if "\n" not in one else f"\n\n{one}")
            for one, which in said_by.items()
        ]
        if not pictures:
            return Text("\n\n".join([*words, *([remark] if remark else [])]))
        said = " ".join([*[word.replace("**", "") for word in words], remark]).strip()
        return several.Sheet(pictures, said)

    def _tells(self, view: View, method: str, metric: str = "", *rest: str) -> bool:
        """Whether what is shown means something on the view's host."""
        run = view.run
        if not run.host["emulated"]:
            return True
        if method in ("loaded", "scaling", "core_matrix", "groups"):
            return False
        unit = run.measures.get(metric, {}).get("unit")
        tool = run.plan["tool"]["name"]
        return unit is None or statistics.real_when_emulated("tool", metric, unit, tool)

    def _matrices(self, views: Sequence[View], metric: str, point: str = "") -> Any:
        panels, unit = [], ""
        for view in views:
            rows = view.run.node_pairs(metric, point or None)
            rows = rows.filter(pl.col("value").is_not_null())
            if not rows.is_empty():
                unit = rows["unit"][0]
                remark = "" if self._tells(view, "matrix", metric) else _MEANINGLESS
                panels.append(several.pair_panel(view.run.manifest["host"], rows, remark))
        title = results.title(metric, point)
        if not panels:
            return Text(f"No trial measured {title} node by node.")
        title = title[:1].upper() + title[1:]
        return several.matrices(panels, title, unit, "CPUs of node", "memory of node")

    def _table(
        self,
        views: Sequence[View],
        names: Sequence[str],
        remark: str,
        metric: str,
        point: str = "",
    ) -> Text:
        frames = [results.table(view.run, metric, point) for view in views]
        parts = [
            frame.with_columns(pl.lit(name).alias("host"))
            for name, frame in zip(names, frames, strict=True)
            if not frame.is_empty()
        ]
        if not parts:
            return Text(f"No trial measured {results.title(metric, point)}. {remark}".strip())
        threads = results.threads_heading(views[0].run)
        text = results.as_markdown(
            pl.concat(parts), metric, point, threads=threads, with_host=True
        )
        return Text(f"{text}\n{remark}" if remark else text)

    def shares(self, experiment: str, metric: str) -> Any:
        """Draw a share for every case and host: what the kernel did, side by side."""
        frame = self._by_case(experiment, metric)
        if frame.is_empty():
            return self._unmeasured(experiment, metric)
        names = [host for host in self.hosts() if host in set(frame["host"])]
        return several.cases(
            frame,
            f"{style.words(metric)}, by case and host",
            names,
            [host for host in names if self._emulated(host)],
        )

    def by_case(self, experiment: str, metric: str) -> Text:
        """Return a metric's median for every case (rows) and host (columns), as a table.

        In brackets the least and the most; of counts, then how many times the first case's.
        """
        frame = self._by_case(experiment, metric)
        if frame.is_empty():
            return self._unmeasured(experiment, metric)
        rows: dict[str, dict[str, str]] = {}
        first: dict[str, float] = {}
        for record in frame.iter_rows(named=True):
            host, value, unit = record["host"], record["value"], record["unit"]
            said, low, high = (_said(record[name], unit) for name in ("value", "low", "high"))
            if low != high:
                said += f" [{low}, {high}]"
            base = first.setdefault(host, value)
            if unit == "count" and base and f"{value / base:.2f}" != "1.00":
                said += f" (×{tables.number(value / base)})"
            rows.setdefault(record["case"], {})[self._named(host)] = said
        names = [self._named(host) for host in self.hosts() if host in set(frame["host"])]
        listed = [
            {"case": case, **{name: found.get(name) for name in names}}
            for case, found in rows.items()
        ]
        return Text(
            tables.markdown(pl.DataFrame(listed), {name: name for name in ("case", *names)})
        )

    def _unmeasured(self, experiment: str, metric: str) -> Text:
        if not self._of(experiment):
            return self._absent(experiment)
        return Text(f"No trial measured {results.title(metric)}.")

    def _by_case(self, experiment: str, metric: str) -> pl.DataFrame:
        """Columns case, host, value (the median), low, high (least and most), unit; in order."""
        told = [view for view in self._of(experiment) if self._tells(view, "table", metric)]
        fullest = sorted((_cases(view.run) for view in told), key=len, reverse=True)
        order = list(dict.fromkeys(name for cases in fullest for name in cases))
        rows = []
        for view in told:
            run = view.run
            frame = run.tool_rows(metric).filter(
                (pl.col("role") != "control") & (pl.col("grade") != "error")
            )
            for case, cells in _cases(run).items():
                values = frame.filter(pl.col("cell").is_in(cells))["value"].drop_nulls()
                if len(values):
                    rows.append(
                        {
                            "case": case,
                            "host": run.manifest["host"],
                            "value": values.median(),
                            "low": values.min(),
                            "high": values.max(),
                            "unit": frame["unit"][0],
                        }
                    )
        hosts = self.hosts()
        rows.sort(key=lambda row: (order.index(row["case"]), hosts.index(row["host"])))
        return pl.DataFrame(rows)

    def not_tested(self) -> Text:
        """Return plainly what could not be tested on these hosts, and why."""
        lines = []
        for host in self.hosts():
            nodes = [
                node for node in self._records[host]["topology"]["nodes"] if node["memory_bytes"]
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
            where = f"{view.run.manifest['experiment']} on {self._where(view.run)}"
            for line in planning.skipped_lines(view.run.plan):
                skipped.setdefault(line, []).append(where)
        lines += [f"- {what} ({_listed(where)})" for what, where in skipped.items()]
        untestable: dict[tuple[str, str], list[str]] = {}
        for verdict in self._verdicts():
            if verdict.verdict == claims.NOT_TESTABLE:
                key = (verdict.host, verdict.because)
                untestable.setdefault(key, []).append(verdict.claim)
        lines += [
            f"- {'claim' if len(which) == 1 else 'claims'} {_listed(which)} on {host}: {because}"
            for (host, because), which in untestable.items()
        ]
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
            f"**{view.run.manifest['experiment']}, {self._where(view.run)}**: "
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
            f"{run.manifest['experiment']}, {self._where(run)}: {note}"
            for run in self.runs
            for note in [*_reservations(run), *_page_sizes(run)]
        )
        text = tables.markdown(pl.DataFrame(rows), {name: name for name in rows[0]})
        return Text(text + "".join(f"\n- {note}" for note in notes))

    def confidence(self) -> Text:
        """Return what a careful reader should know of each run: A/A, drift, noise, exclusions."""
        parts = []
        for view in self.views:
            run = view.run
            told = [name for name in run.measures if self._tells(view, "table", name)]
            said = results.confidence(run, told)
            if told or said.startswith("- "):  # of times that mean nothing: only what was excluded
                parts.append(
                    f"**{run.manifest['experiment']}, {self._where(run, marked=True)}**"
                )
                parts.append(said)
        return Text("\n\n".join(parts))


def open_article(paths: Sequence[str | Path]) -> Article:
    """Open the article over these run directories."""
    return Article([runs.load(path) for path in paths])


def published() -> pl.DataFrame:
    """Return data/reference/published.csv: the published machines' figures and their doubts."""
    path = home.root() / "data" / "reference" / "published.csv"
    return pl.read_csv(path, infer_schema_length=None)


# Notes of a cell that bear on every figure of it, not only on what its binding is.
_RESERVATIONS = ("not met", "client shares CPUs", "the client is on", "last-level caches")


def _reservations(run: runs.Run) -> Iterable[str]:
    for cell in run.plan["cells"]:
        yield from (note for note in cell["notes"] if any(word in note for word in _RESERVATIONS))


def _page_sizes(run: runs.Run) -> Iterable[str]:
    """The share of the probe's buffer that the kernel put on huge pages, as it was asked to."""
    shares = run.tool_rows("huge_page_share")["value"].drop_nulls()
    if len(shares):
        low, high = f"{shares.min():.0%}", f"{shares.max():.0%}"
        span = low if low == high else f"{low} to {high}"
        yield f"{span} of the buffer was on huge pages"


def _by_claim(verdicts: Sequence[claims.Verdict]) -> dict[str, dict[str, claims.Verdict]]:
    """Verdicts by what they say and host; of several runs on a host the last one counts."""
    found: dict[str, dict[str, claims.Verdict]] = {}
    for verdict in verdicts:
        found.setdefault(verdict.says, {})[verdict.host] = verdict
    return found


def _said(value: float, unit: str) -> str:
    return f"{value:.1%}" if unit == "share" else tables.number(value)


def _word(verdict: str) -> str:
    """A verdict in a table of many: what was decided stands out."""
    return f"**{verdict}**" if verdict in (claims.SUPPORTED, claims.REFUTED) else verdict


def _cases(run: runs.Run) -> dict[str, list[str]]:
    """The cells by names that are the same on every host: cases, and bindings without numbers."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, cell in run.cells.items():
        if cell["role"] != "control":
            case = cell.get("case")
            found.setdefault((case["says"] if case else "", cell["binding"]), []).append(name)
    alone = [case for case, _ in found]
    return {
        case if case and alone.count(case) == 1 else ", ".join(filter(None, (case, binding))): cells
        for (case, binding), cells in found.items()
    }


def _gib(value: int | None) -> float | None:
    return None if value is None else value / 2**30


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
