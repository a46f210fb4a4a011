"""What a notebook talks to: a run, asked for or opened, with a method for each thing to show."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from numalab import escape, experiments, home, launch, runs, store, tables
from numalab.agent import cpulist
from numalab.agent.contract import CONTROL, ERROR, GRADES, Bound, Cell
from numalab.agent.errors import Fault
from numalab.agent.plan import resolve
from numalab.agent.plan import show as plans
from numalab.agent.plan.kinds import LEAST_WITHIN, MOST_UNEVEN
from numalab.agent.words import units
from numalab.analysis import claims, core_groups, evidence, recommendation
from numalab.show import badge, confidence, counters, proofs, results, witness
from numalab.show.charts import bindings, curves, instances, matrix, placement, style, topology

MEASURE = "measure"
_CURVE = 3  # points: two make no curve
_MOST_ALIKE = 4  # remarks of one kind on a plan; more are counted

# The layouts of the binding ``cores`` as curves: how the cores are taken, one after the other.
_LAYOUTS = {
    "node": "one node first, then the next",
    "packed": "one node first, then the next",
    "spread": "spread from the start",
}


class Text(str):
    """Markdown that a notebook renders, and that reads the same as plain text."""

    def _repr_markdown_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return str(self)

    def _ipython_display_(self) -> None:
        if self:  # an empty one takes no place
            from IPython.display import display

            display({"text/markdown": str(self), "text/plain": str(self)}, raw=True)

    def folded(self, title: str) -> Text:
        """Return it behind a title that opens it; in print it is open. Nothing stays nothing."""
        head = f"<details>\n<summary>{escape.html(title)}</summary>"
        return Text(f"{head}\n\n{self}\n\n</details>" if self else "")


Shown = style.Picture | Text


def experiment(
    name: str,
    *,
    source: str = MEASURE,
    host: str | None = None,
    profile: str = "quick",
    bindings: Sequence[experiments.Binding] | None = None,
) -> View:
    """Measure an experiment on this machine, or open a run that was measured before.

    ``source`` is ``"measure"`` or the path of a run directory (from the current folder, else from
    the checkout's root). ``host``, ``profile`` and ``bindings`` are for measuring; an opened run
    keeps its own. Raises Fault when the run is of another experiment.
    """
    if source != MEASURE:
        view = open_run(source)
        found = view.run.manifest.experiment
        if found != name and view.run.notebook:
            raise Fault(
                f"{source} is a run of {found}, not of {name}",
                "give the notebook a run of its own experiment",
            )
        return view
    request = experiments.load(name).request(
        profile, host or platform.node(), bindings=list(bindings) if bindings else None
    )
    folder = launch.new_run_directory(home.runs(), request.host, name)
    launch.measure(launch.make_plan(request), folder)
    run = runs.load(folder)
    store.write(run)
    return View(run)


def open_run(source: Any) -> View:
    """Open a run directory of any experiment."""
    return View(runs.load(source))


class View:
    """A run, shown: each method is one cell of a notebook."""

    def __init__(self, run: runs.Run) -> None:
        self.run = run

    def _repr_markdown_(self) -> str:
        return str(self.about())

    def __repr__(self) -> str:
        return str(self.about())

    def about(self) -> Text:
        """Return who measured what, where: the host, the plan in a line, the grades."""
        run = self.run
        grades = [trial.grade for trial in run.trials]
        counts = [f"{grades.count(grade)} {grade}" for grade in GRADES if grade in grades]
        served = f"; {escape.markdown(run.server)}" if run.server else ""
        said = units.count(len(grades), "trial") + (f": {', '.join(counts)}" if counts else "")
        lines = [
            f"**{escape.markdown(run.manifest.host)}**: {machine(run)}{served}",
            "",
            f"{escape.markdown(plans.summary(run.plan))}; profile "
            f"{escape.markdown(run.manifest.profile)}, seed {run.manifest.seed}. {said}.",
            "",
            badge.line([run]),
        ]
        if run.host.emulated_why:
            lines[-1] += f" ({escape.markdown(run.host.emulated_why)})"
        skipped = [f"- not measured: {escape.markdown(one)}" for one in skipped_lines(run)]
        return Text("\n".join([*lines, "", *skipped]).strip())

    def plan(self) -> Text:
        """Return the plan's cells as a table: CPUs, memory policy, what placement they require."""
        plan = self.run.plan
        if not plan.cells:
            return Text("Nothing could be planned on this host.")
        in_cases = any(cell.case for cell in plan.cells)
        rows = [
            {
                "cell": label if label == cell.label else f"{label}, such as {cell.label}",
                "CPUs": cell.cpus or "all",
                "memory": " ".join(filter(None, (cell.memory.policy, cell.memory.nodes))),
                "command prefix": _prefix(cell),
                "placement": _expects(cell),
                **({"with": plans.conditions(plan, cell) or "nothing else"} if in_cases else {}),
            }
            for label, (cell, *_) in results.rows_of(plan.cells)
        ]
        shared = plans.common_settings(plan).items()
        notes = [f"every trial ran with {name} = {value}" for name, value in shared]
        notes += [f"{why}; measured all the same" for why in self.run.manifest.busy]
        notes += dict.fromkeys(str(cell.stands_for) for cell in plan.cells if cell.stands_for)
        alike: dict[str, dict[str, None]] = {}
        for note in (note for cell in plan.cells for note in cell.notes):
            alike.setdefault(note.code, {})[str(note)] = None
        for said in map(list, alike.values()):
            notes += said[:_MOST_ALIKE]
            if len(said) > _MOST_ALIKE:
                notes.append(f"and {len(said) - _MOST_ALIKE} more remarks of this kind")
        text = tables.of_rows(rows, marked=("command prefix",))
        return Text(text + "".join(f"\n- {escape.markdown(note)}" for note in notes))

    def topology(self, name: str = "") -> style.Picture:
        """Draw the host: packages, nodes, caches, hardware threads, distances."""
        return self._marked(topology.topology_figure(self.run.host.topology, name))

    def nodes(self) -> Text:
        """Return the host's nodes as a table: CPUs, memory, distances."""
        return Text(tables.of_rows(node_rows(self.run)))

    def state(self, *names: str) -> Text:
        """Return settings before the run (all, or those named), and what changed until after it."""
        from numalab.agent.host import state as states

        before, after = self.run.host.before, self.run.host.after
        rows = [
            {
                "setting": name,
                "value": f"unknown: {setting.reason}"
                if setting.value is None
                else short(setting.value),
            }
            for name, setting in sorted(before.items())
            if not names or name in names
        ]
        if not rows:
            return Text("The settings of this host were not recorded.")
        changed = states.compare(before, after) if after else []
        said = [f"\n- changed during the run: {escape.markdown(one)}" for one in changed]
        return Text(tables.of_rows(rows) + "".join(said))

    def table(self, metric: str, point: str = "", load: str | None = None) -> Text:
        """Return a metric's results per binding, with intervals, ratios and decisions.

        ``load`` chooses the cells of a sweep's value or of a case (``workload=read_write``).
        """
        return self._table(results.markdown(self.run, metric, point, load))

    def chart(self, metric: str, point: str = "", load: str | None = None) -> Shown:
        """Draw a metric by binding: every trial, the mean with its interval, the A/A band."""
        rows = self._rows(metric, point)
        if isinstance(rows, Text):
            return rows
        rows, ratios = results.compared(self.run, metric, point, load)
        if rows.is_empty():
            return Text(f"No trial of this run measured {results.named(metric, point)} at {load}.")
        rows = worded(rows)
        summary = evidence.summarise(rows)
        known = summary.filter((pl.col("role") != CONTROL) & pl.col("mean").is_not_null())
        if known.height < 2:
            return Text(f"This run measured {results.named(metric, point)} under one binding.")
        return self._marked(
            bindings.bindings_figure(summary, ratios, rows, better(self.run, metric))
        )

    def charts(self) -> None:
        """Show the chart of every metric that answers the question."""
        from IPython.display import display

        for metric in self.run.measures:
            display(self.chart(metric, next(iter(self.run.points(metric)), "")))

    def tables(self) -> Text:
        """Return the table of every metric that answers the question."""
        made = [
            self.table(metric, next(iter(self.run.points(metric)), ""))
            for metric in self.run.measures
        ]
        return Text("\n\n".join(made))

    def overview(self, *metrics: str, load: str = "") -> Text:
        """Return several metrics per binding in one table, the best of the first on top."""
        return self._table(results.overview(self.run, metrics, load))

    def against(self, metric: str, option: str) -> Shown:
        """Draw a metric against an option that was swept (client threads), a curve per binding."""
        plain = {resolve.key(cell): cell.label for cell in self._cells() if not cell.sweep}
        places = {
            cell.id: (plain.get(resolve.key(cell), cell.label), float(cell.options[option]))
            for cell in self._cells()
            if (cell.sweep is None or cell.sweep.option == option)
            and isinstance(cell.options.get(option), int)
        }
        words = {"clients": "client threads"}.get(option, tables.plain(option))
        return self._curves(metric, places, xlabel=words, log=True)

    def cores(self, metric: str) -> Shown:
        """Draw a metric against the number of cores: one node filled first, or spread at once."""
        places = {
            cell.id: (_LAYOUTS[cell.layout], float(len(cpulist.parse(cell.cpus))))
            for cell in self._cells()
            if cell.binding == "cores" and cell.layout in _LAYOUTS and cell.cpus
        }
        return self._curves(
            metric, places, xlabel="number of cores", marks=self._full_nodes(places)
        )

    def _full_nodes(self, places: Mapping[str, tuple[str, float]]) -> list[tuple[float, str]]:
        """After how many cores the first node is full, where the curve goes beyond."""
        host, client = self.run.host.topology, self.run.plan.client
        taken = set(cpulist.parse(client.cpus)) if client and client.cpus else set()
        if not host.cpus_of:
            return []
        first = len(host.cores_of(set(host.cpus_of[min(host.cpus_of)]) - taken))
        most = max(at for _, at in places.values())
        return [(first, "one node is full")] if 0 < first < most else []

    def scaling(self, metric: str) -> Shown:
        """Draw a metric against the number of threads, node by node."""
        plain = {resolve.key(cell): cell.label for cell in self._cells() if not cell.sweep}
        places = {
            cell.id: (plain.get(resolve.key(cell), cell.label), float(cell.threads))
            for cell in self._cells()
            if cell.binding == "local"
        }
        return self._curves(metric, places, xlabel="number of threads", ideal=True)

    def _curves(self, metric: str, places: Mapping[str, tuple[str, float]], **look: Any) -> Shown:
        """Draw a metric along a number; ``places`` are the curve and the number of each cell."""
        numbers = sorted({at for _, at in places.values()})
        if len(numbers) < _CURVE:
            at = " and ".join(f"{one:g}" for one in numbers) or "no number"
            return Text(f"Too little for a curve: this run measured {look['xlabel']} {at}.")
        rows = self._rows(metric)
        if isinstance(rows, Text):
            return rows
        table = pl.DataFrame(
            [(name, escape.line(series), at) for name, (series, at) in places.items()],
            schema={"cell": pl.String, "series": pl.String, "at": pl.Float64},
            orient="row",
        )
        rows = rows.filter(pl.col("point") == rows["point"][0])
        rows = rows.join(table, on="cell", how="inner", maintain_order="left")
        if rows.is_empty():
            return Text(f"No trial of these cells measured {results.named(metric)}.")
        return self._marked(curves.against(rows, **look))

    def seconds(self, metric: str, load: str = "") -> Shown:
        """Draw a metric second by second, a panel per binding."""
        labels = self._labels(self.run.load_cells(load))
        families = {cell.id: style.family(cell.binding, cell.role) for cell in self._cells()}
        samples = self.run.samples.filter(pl.col("cell").is_in(list(labels)))
        if not (samples["metric"] == metric).any():
            return Text(f"No trial of this run recorded {results.named(metric)} second by second.")
        return self._marked(curves.seconds(samples, metric, labels, families))

    def instances(self, *metrics: str) -> Shown:
        """Draw what each of several instances did, side by side, layout by layout."""
        labels = self._labels([cell.id for cell in self._cells() if not cell.sweep])
        measured = self.run.measurements.filter(
            (pl.col("point") != "") & pl.col("cell").is_in(list(labels))
            & pl.col("value").is_not_null() & (pl.col("grade") != ERROR)
        )  # fmt: skip
        rows = measured.filter(pl.col("metric").is_in(list(metrics)))
        if rows.is_empty():  # a load that keeps no rate has them of saturation alone
            metrics = tuple(f"saturation_{name}" for name in metrics)
            rows = measured.filter(pl.col("metric").is_in(list(metrics)))
        if rows.is_empty():
            return Text("No trial of this run measured several instances.")
        named = {
            (cell.id, one.name): f"{one.name}: CPUs {one.cpus or 'all'}"
            for cell in self._cells()
            for one in cell.instances
        }
        points = [
            escape.line(named.get((cell, point), point))
            for cell, point in rows.select("cell", "point").iter_rows()
        ]
        rows = worded(rows).with_columns(point=pl.Series(points, dtype=pl.String))
        return self._marked(instances.instances(rows, metrics, labels))

    def throughput_latency(self) -> Shown:
        """Draw mean latency against what was served a second, a curve per binding."""
        both = ("latency_avg", "requests_per_second")
        rows = self._series(*both, *(f"saturation_{name}" for name in both))
        return rows if isinstance(rows, Text) else self._marked(curves.throughput_latency(rows))

    def tail(self) -> Shown:
        """Draw the percentiles of latency up to the slowest requests, a curve per binding."""
        rows = self._series(*curves.PERCENTILES)
        if isinstance(rows, Text):  # a load that keeps no rate has them of saturation alone
            found = self._series(*(f"saturation_{name}" for name in curves.PERCENTILES))
            rows = rows if isinstance(found, Text) else found
        return rows if isinstance(rows, Text) else self._marked(curves.tail(rows))

    def _series(self, *metrics: str) -> pl.DataFrame | Text:
        """Rows of metrics in the plan's order, with a column ``series``; cells at several rates
        share one.
        """
        rows = self.run.measurements.filter(
            pl.col("metric").is_in(metrics) & (pl.col("role") != CONTROL)
            & (pl.col("grade") != ERROR) & pl.col("value").is_not_null()
        )  # fmt: skip
        if rows.is_empty():
            return self._rows(metrics[0])
        plain = {resolve.key(cell): cell.label for cell in self._cells() if not cell.sweep}
        rate = {
            cell.id: plain.get(resolve.key(cell), cell.label)
            for cell in self._cells()
            if cell.sweep and cell.sweep.option == "rate"
        }
        order = {cell: place for place, cell in enumerate(self.run.cells)}
        rows = rows.sort(pl.col("cell").replace_strict(order, return_dtype=pl.Int64))
        names = [escape.line(rate.get(cell, label)) for cell, label in
                 rows.select("cell", pl.coalesce("label", "cell")).iter_rows()]  # fmt: skip
        return worded(rows).with_columns(series=pl.Series(names, dtype=pl.String))

    def matrix(self, metric: str, point: str = "") -> Shown:
        """Draw a metric by CPU node and memory node as an annotated heat map."""
        rows = self._rows(metric)
        if isinstance(rows, Text):
            return rows
        pairs = self.run.node_pairs(metric, point or None)
        ways = pairs["point"].unique().sort().to_list()
        if len(ways) > 1:
            listed = ", ".join(map(escape.markdown, ways))
            said = f"{results.named(metric)} was measured in several ways"
            return Text(f"{said}, and each is a matrix of its own: {listed}.")
        if pairs.select("cpu_nodes", "memory_nodes").n_unique() < 2:
            return Text(f"No trial measured {results.named(metric, point)} between two nodes.")
        title = results.title(metric, point)
        return self._marked(matrix.node_matrix(worded(pairs), title, better(self.run, metric)))

    def core_matrix(self) -> Shown:
        """Draw the core-to-core latencies as a heat map."""
        rows = self._rows("core_latency")
        if isinstance(rows, Text):
            return rows
        host = self.run.host
        if rows["point"].n_unique() < _CURVE:
            return Text("This host has too few hardware threads for a matrix.")
        found = core_groups.from_measurements(self.run.measurements, host)
        outlines = [group for level in found.levels[:-1] for group in level.groups]
        return self._marked(matrix.core_matrix(rows, host.topology, groups=outlines or None))

    def loaded(self) -> Shown:
        """Draw latency against bandwidth while the injected load grows."""
        rows = self._rows("loaded_latency")
        if isinstance(rows, Text):
            return rows
        return self._marked(curves.loaded_latency(worded(self.run.measurements)))

    def order(self, metric: str, point: str | None = None) -> Shown:
        """Draw a metric in the order of the trials: drift shows as a slope.

        Without a point, values of all its points are there, each against its own median.
        """
        rows = self._rows(metric, point)
        return rows if isinstance(rows, Text) else self._marked(curves.run_order(rows))

    def where(self) -> Shown:
        """Draw on which nodes each case's new memory came to lie."""
        rows = self._rows("placed")
        if isinstance(rows, Text):
            return rows
        even = {name: even_share(cell) for name, cell in self.run.cells.items()}
        return self._marked(placement.where(rows, list(self.run.cells), even))

    def memory(self) -> Shown:
        """Draw on which nodes the memory of each cell's program was found by the proof."""
        rows = proofs.proven(self.run)
        if rows.is_empty() or rows["point"].n_unique() < 2:
            return Text("All memory was on one node.")
        rows = rows.filter(pl.col("role") != CONTROL).with_columns(
            label=pl.col("label").map_elements(escape.line, return_dtype=pl.String)
        )
        even = {name: even_share(cell) for name, cell in self.run.cells.items()}
        return self._marked(
            placement.where(rows, list(self.run.cells), even, "Where the program's memory was")
        )

    def faults(self) -> Shown:
        """Draw the minor faults of each case beside its share of huge pages."""
        minor, huge = self._rows("minor_faults"), self._rows("huge_share")
        if isinstance(minor, Text):
            return minor
        if isinstance(huge, Text):
            return huge
        return self._marked(placement.faults(minor, huge, list(self.run.cells)))

    def levels(self, *cases: str) -> Shown:
        """Draw page cache and free memory over time, in the cases named (all without a name)."""
        cells = [
            cell for cell in self._cells() if not cases or (cell.case and cell.case.name in cases)
        ]
        labels = self._labels([cell.id for cell in cells])
        rows = self.run.samples.filter(
            pl.col("metric").is_in(["page_cache", "free"]) & pl.col("cell").is_in(list(labels))
        )
        if rows.is_empty():
            return Text("No trial of these cases lasted long enough for a sample of its memory.")
        homes = {cell.id: cell.cpu_nodes for cell in cells}
        return self._marked(placement.levels(rows, labels, homes))

    def memory_counters(self) -> Text:
        """Return what the kernel's memory management counted, per case."""
        return self._table(counters.memory_counters(self.run))

    def shares(self, *metrics: str) -> Text:
        """Return metrics of the tool per case: median, least and greatest of the blocks."""
        return self._table(counters.shares(self.run, *metrics))

    def groups(self) -> Text:
        """Return the levels of core groups that the core-to-core latencies show."""
        if not evidence.real(self.run, "core_latency", "ns"):
            return Text("Emulated host: its latencies say nothing of groups of cores.")
        return self._table(core_groups.markdown(self.run.measurements, self.run.host))

    def witness(self) -> Text:
        """Return sysfs beside numactl and lscpu: the same figures read by independent tools."""
        return Text(witness.markdown(self.run))

    def counters(self) -> Text:
        """Return what the kernel's and the processor's counters say, per binding."""
        return self._table(counters.markdown(self.run))

    def traffic(self) -> Text:
        """Return what went between nodes, per binding."""
        table = counters.node_traffic(self.run)
        if not table:
            return Text("Traffic between nodes was not counted here: see the counters for why.")
        return self._table(f"Traffic between nodes (medians over the blocks):\n\n{table}")

    def placement(self) -> Text:
        """Return where memory and threads really were, per binding: the proof behind the label."""
        return self._table(proofs.placement(self.run))

    def verdict(self) -> Text:
        """Return the verdict on each claim of the experiment, with its figures."""
        verdicts = self.verdicts()
        return self._table(claims.markdown(verdicts) if verdicts else "No claim is tested here.")

    def verdicts(self, others: Sequence[runs.Run] = ()) -> list[claims.Verdict]:
        """Return the verdict on each claim of the experiment.

        ``others`` are runs beside this one: a claim may need one of the same machine.
        """
        name = self.run.manifest.experiment
        alike = [one for one in others if one.manifest.experiment == name and one is not self.run]
        return claims.judge_all(self.run.experiment.claims, self.run, alike)

    def recommendation(self) -> Text:
        """Return which binding to use here, its gain and cost, and the lines to paste; or none."""
        return Text(recommendation.markdown(recommendation.of(self.run)))

    def confidence(self) -> Text:
        """Return how sure the figures are: A/A control, drift, instability, exclusions."""
        return Text(confidence.markdown(self.run))

    def _cells(self) -> list[Cell]:
        """The plan's cells without the control."""
        return [cell for cell in self.run.plan.cells if cell.role != CONTROL]

    def _labels(self, chosen: Sequence[str]) -> dict[str, str]:
        """The labels of cells, without the control, as a chart may show them."""
        return {cell.id: escape.line(cell.label) for cell in self._cells() if cell.id in chosen}

    def _rows(self, metric: str, point: str | None = None) -> pl.DataFrame | Text:
        """A metric's rows, or the words that stand where a picture of nothing would."""
        rows = self.run.tool_rows(metric, point)
        if rows["value"].is_not_null().any():
            return worded(rows)
        why = "; ".join(map(escape.markdown, evidence.why_missing(rows, metric)))
        said = f"No trial of this run measured {results.named(metric, point or '')}"
        return Text(f"{said}: {why}." if why else f"{said}.")

    def _marked(self, picture: style.Picture) -> style.Picture:
        return style.marked(picture, badge.of(self.run))

    def _table(self, text: str) -> Text:
        """A table with the badge of the run below it; words without a figure as they are."""
        return Text(f"{text.rstrip()}\n\n{badge.line([self.run])}" if "|" in text else text)


def worded(rows: pl.DataFrame) -> pl.DataFrame:
    """Return measurement rows for a chart: labels made harmless, ``reason`` as a sentence."""
    words = {
        (code, fields): escape.line(evidence.row_reason(code, fields))
        for code, fields in rows.select("reason", "reason_fields").unique().iter_rows()
        if code is not None
    }
    labels = {one: escape.line(one) for one in rows["label"].unique() if one is not None}
    reasons = [words.get(one) for one in rows.select("reason", "reason_fields").iter_rows()]
    return rows.with_columns(
        label=pl.col("label").replace(labels), reason=pl.Series(reasons, dtype=pl.String)
    )


def even_share(cell: Cell) -> float | None:
    """Return a node's share of memory that a cell spreads alike over several; None for others."""
    memory = cell.memory
    if memory.policy != "interleave" or not memory.nodes:
        return None
    return 1 / len(cpulist.parse(memory.nodes))


def better(run: runs.Run, metric: str) -> str | None:
    """Return which way a metric is better, as the experiment says; None where it does not."""
    return run.measures[metric].better if metric in run.measures else None


def machine(run: runs.Run) -> str:
    """Return the host in a line of Markdown: model, sockets, cores, hardware threads, nodes."""
    host = run.host.topology
    counts = {
        "socket": host.packages,
        "core": host.cores,
        "hardware thread": host.threads,
        "NUMA node": len(host.nodes),
    }
    model = escape.markdown(host.model or "processor not named")
    return ", ".join([model, *(units.count(n, noun) for noun, n in counts.items() if n)])


def node_rows(run: runs.Run) -> list[dict[str, Any]]:
    """Return the nodes of a run's host as rows of a table."""
    tiers = len({node.tier for node in run.host.topology.nodes}) > 1
    return [
        {
            "node": node.number,
            "CPUs": node.cpus or "none",
            "memory (GiB)": gib(node.memory_bytes),
            "free (GiB)": gib(node.free_bytes),
            "page cache (GiB)": gib(node.page_cache_bytes),
            "distances": " ".join(map(str, node.distances.values())) or "not given",
            **({"memory tier": node.tier} if tiers else {}),
        }
        for node in run.host.topology.nodes
    ]


def skipped_lines(run: runs.Run) -> list[str]:
    """Return one line per reason for which something asked for was not measured."""
    return plans.skipped_lines(run.plan)


def _prefix(cell: Cell) -> str:
    """The words before the command, as Markdown; of several instances those of each."""

    def words(one: Bound) -> str:
        return escape.code(" ".join(one.numactl)) if one.numactl else "none"

    each = [f"{escape.markdown(one.name)}: {words(one)}" for one in cell.instances]
    if len({words(one) for one in cell.instances}) == 1:
        return words(cell.instances[0])
    if len(each) > _MOST_ALIKE:
        each[2:-1] = ["…"]
    return "; ".join(each) or words(cell)


def _expects(cell: Cell) -> str:
    memory = cell.expects.memory
    if memory.proof != "required":
        return {"outcome": "recorded", "none": "not asked"}[memory.proof]
    if memory.rule == "shares":
        how = "by weight" if memory.weights else "even"
        return f"{how} over {memory.nodes}, each ± {MOST_UNEVEN:.0%} of its share"
    return f"≥ {LEAST_WITHIN:.0%} on {memory.nodes}"


def gib(value: int | None) -> float | None:
    """Return bytes in GiB; None stays None."""
    return None if value is None else value / 2**30


def short(value: Any) -> str:
    """Return a setting's value in at most 80 characters."""
    if isinstance(value, Mapping):
        value = [f"{key}: {short(entry)}" for key, entry in value.items()]
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 80 else text[:77] + "…"
