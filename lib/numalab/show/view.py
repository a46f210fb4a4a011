"""What a notebook talks to: one object that asks, shows and judges; and papermill's execution."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from numalab import experiments, home, launch, runs, store
from numalab.agent.errors import Fault
from numalab.agent.plan import make as planning
from numalab.analysis import claims, core_groups, recommendation, results, statistics
from numalab.show import tables
from numalab.show.charts import bindings, curves, instances, matrix, placement, style, topology

MEASURE = "measure"
_Bindings = Sequence[experiments.Binding]


# The bindings ``cores`` as curves: how the cores are taken, one after the other.
_WITHIN = {
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


def experiment(
    name: str,
    *,
    source: str = MEASURE,
    host: str | None = None,
    profile: str = "quick",
    bindings: _Bindings | None = None,
) -> View:
    """Measure an experiment on this machine, or open a run that was measured before.

    ``source`` is ``"measure"`` or the path of a run directory (from the current folder, else from
    the checkout's root). ``host``, ``profile`` and ``bindings`` are for measuring; an opened run
    keeps its own. Raises Fault when the run is of another experiment.
    """
    if source != MEASURE:
        run = runs.load(source)
        if run.manifest["experiment"] != name:
            raise Fault(
                f"{source} is a run of {run.manifest['experiment']}, not of {name}",
                "give the notebook a run of its own experiment",
            )
        return View(run)
    loaded = experiments.load(name)
    request = loaded.request(
        profile, host or platform.node(), bindings=list(bindings) if bindings else None
    )
    folder = launch.new_run_directory(home.runs(), request["host"], name)
    launch.measure(launch.make_plan(request), folder)
    store.write(folder)
    return View(runs.load(folder))


Shown = style.Picture | Text


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
        grades = _count(run)
        lines = [
            f"**{run.manifest['host']}**: {machine(run)}",
            "",
            f"{planning.summary(run.plan)}; profile {run.manifest['profile']}, "
            f"seed {run.manifest['seed']}. {grades}.",
        ]
        if run.host["emulated"]:
            lines += ["", f"**Emulated host** ({run.host['emulated_why']}): timings mean nothing."]
        skipped = planning.skipped_lines(run.plan)
        lines += ["", *(f"- not measured: {line}" for line in skipped)] if skipped else []
        return Text("\n".join(lines))

    def plan(self) -> Text:
        """Return the plan's cells as a table: CPUs, memory policy, what placement they require."""
        rows = [
            {
                "cell": cell["label"],
                "CPUs": cell["cpus"] or "all",
                "memory": _policy(cell),
                "command prefix": _prefix(cell),
                "placement": _expects(cell),
            }
            for cell in self.run.plan["cells"]
        ]
        if any(cell.get("case") for cell in self.run.plan["cells"]):
            for row, cell in zip(rows, self.run.plan["cells"], strict=True):
                row["with"] = planning.terms(self.run.plan, cell) or "nothing else"
        shared = planning.common(self.run.plan).items()
        notes = [f"every trial ran with {name} = {value}" for name, value in shared]
        notes += dict.fromkeys(note for cell in self.run.plan["cells"] for note in cell["notes"])
        text = tables.markdown(pl.DataFrame(rows), {name: name for name in rows[0]}) if rows else ""
        return Text(text + "".join(f"\n- {note}" for note in notes))

    def topology(self) -> style.Picture:
        """Draw the host: packages, nodes, caches, hardware threads, distances."""
        return topology.topology_figure(self.run.host["topology"])

    def nodes(self) -> Text:
        """Return the host's nodes as a table: CPUs, memory, distances."""
        rows = [
            {
                "node": node["node"],
                "CPUs": node["cpus"] or "none",
                "memory (GiB)": _gib(node["memory_bytes"]),
                "free (GiB)": _gib(node["free_bytes"]),
                "page cache (GiB)": _gib(node["page_cache_bytes"]),
                "distances": " ".join(str(d) for d in node["distances"].values()) or "not given",
            }
            for node in self.run.host["topology"]["nodes"]
        ]
        return Text(tables.markdown(pl.DataFrame(rows), {name: name for name in rows[0]}))

    def state(self, *names: str) -> Text:
        """Return settings before the run (all, or those named), and what changed until after it."""
        from numalab.agent.host import state as states

        before, after = self.run.host["before"], self.run.host["after"]
        rows = [
            {
                "setting": name,
                "value": f"unknown: {entry['reason']}"
                if entry["value"] is None
                else short(entry["value"]),
            }
            for name, entry in sorted(before.items())
            if not names or name in names
        ]
        if not rows:
            return Text("The settings of this host were not recorded.")
        text = tables.markdown(pl.DataFrame(rows), {"setting": "setting", "value": "value"})
        changed = states.compare(before, after) if after else []
        return Text(text + "".join(f"\n- changed during the run: {line}" for line in changed))

    def table(self, metric: str, point: str = "", load: str | None = None) -> Text:
        """Return a metric's results per binding, with intervals, ratios and decisions.

        ``load`` chooses the cells of a sweep's value or of a case (``workload=read_write``).
        """
        return Text(results.markdown(self.run, metric, point, load))

    def chart(self, metric: str, point: str = "", load: str | None = None) -> Shown:
        """Draw a metric by binding: every trial, the mean with its interval, the A/A band."""
        rows = self._rows(metric, point)
        if isinstance(rows, Text):
            return rows
        rows, ratios = results.compared(self.run, metric, point, load)
        if rows.is_empty():
            return Text(f"No trial of this run measured {results.title(metric, point)} at {load}.")
        return self._marked(bindings.bindings_figure(statistics.summarise(rows), ratios, rows))

    def overview(self, *metrics: str, load: str = "") -> Text:
        """Return several metrics per binding in one table, the best of the first on top."""
        return Text(results.overview(self.run, metrics, load))

    def against(self, metric: str, option: str) -> Shown:
        """Draw a metric against an option that was swept (client threads), a curve per binding."""
        rows = self._rows(metric, "")
        if isinstance(rows, Text):
            return rows
        places = {
            name: (cell["id"].partition("/")[0], float(cell["options"][option]))
            for name, cell in self.run.cells.items()
            if (cell.get("sweep") or {"option": option})["option"] == option
            and isinstance(cell["options"].get(option), int)
        }
        if len({at for _, at in places.values()}) < 2:
            return Text(f"This run measured one number of {tables.plain(option)}: no curve.")
        plain = {name: cell["label"] for name, cell in self.run.cells.items()}
        words = {"clients": "client threads"}.get(option, tables.plain(option))
        return self._marked(
            curves.against(
                _placed(rows, {n: (plain.get(base, base), at) for n, (base, at) in places.items()}),
                xlabel=words, title=f"{style.words(metric)} against {words}", log=True,
            )
        )  # fmt: skip

    def cores(self, metric: str) -> Shown:
        """Draw a metric against the number of cores: one node filled first, or spread at once."""
        rows = self._rows(metric, "")
        if isinstance(rows, Text):
            return rows
        places = {}
        for name in self.run.cells:
            count, _, within = name.partition("cores:")[2].partition("-")
            if count.isdecimal() and within in _WITHIN:
                places[name] = (_WITHIN[within], float(count))
        if len({at for _, at in places.values()}) < 2:
            return Text("This run measured one number of cores: there is no curve to draw.")
        return self._marked(
            curves.against(
                _placed(rows, places), xlabel="cores of the server", marks=self._full_nodes(places),
                title=f"{style.words(metric)} against the number of cores",
            )
        )  # fmt: skip

    def _full_nodes(self, places: dict[str, tuple[str, float]]) -> list[tuple[float, str]]:
        """After how many cores the first node is full, where the curve goes beyond."""
        cores: dict[int, set[str]] = {}
        for cpu in claims.left_to_cells(self.run.host, self.run.plan)["cpus"]:
            if cpu["online"] and cpu["allowed"] and cpu["node"] is not None:
                cores.setdefault(cpu["node"], set()).add(cpu["siblings"] or str(cpu["cpu"]))
        first = len(cores[min(cores)]) if cores else 0
        most = max(at for _, at in places.values())
        return [(first, "one node is full")] if 0 < first < most else []

    def seconds(self, metric: str, load: str = "") -> Shown:
        """Draw a metric second by second, a panel per binding."""
        labels = {
            name: self.run.cells[name]["label"]
            for name in self.run.load_cells(load)
            if self.run.cells[name]["role"] != "control"
        }
        samples = self.run.samples.filter(pl.col("cell").is_in(list(labels)))
        if not (samples["metric"] == metric).any():
            return Text(f"No trial of this run recorded {tables.plain(metric)} second by second.")
        return self._marked(curves.seconds(samples, metric, labels))

    def instances(self, *metrics: str) -> Shown:
        """Draw what each of several instances did, side by side, layout by layout."""
        labels = {
            name: cell["label"]
            for name, cell in self.run.cells.items()
            if cell["role"] != "control" and not cell.get("sweep")
        }
        rows = self.run.measurements.filter(
            pl.col("metric").is_in(list(metrics)) & (pl.col("point") != "")
            & pl.col("cell").is_in(list(labels)) & pl.col("value").is_not_null()
            & (pl.col("grade") != "error")
        )  # fmt: skip
        if rows.is_empty():
            return Text("No trial of this run measured several instances.")
        seats = [
            (name, seat["name"], f"{seat['name']}: CPUs {seat['cpus'] or 'all'}")
            for name, cell in self.run.cells.items()
            for seat in cell.get("instances") or []
        ]
        named = pl.DataFrame(seats, schema=["cell", "point", "seat"], orient="row")
        rows = rows.join(
            named.cast(pl.String), on=["cell", "point"], how="left", maintain_order="left"
        ).with_columns(point=pl.coalesce("seat", "point"))
        return self._marked(instances.instances(rows, metrics, labels))

    def matrix(self, metric: str, point: str = "") -> Shown:
        """Draw a metric by CPU node and memory node as an annotated heat map."""
        rows = self._rows(metric, point or None)
        if isinstance(rows, Text):
            return rows
        pairs = self.run.node_pairs(metric, point or None)
        if pairs.is_empty():
            return Text(f"No trial measured {results.title(metric, point)} node by node.")
        title = results.title(metric, point)
        return self._marked(matrix.node_matrix(pairs, "value", rows["unit"][0], title))

    def core_matrix(self) -> Shown:
        """Draw the core-to-core latencies as a heat map."""
        rows = self._rows("core_latency")
        if isinstance(rows, Text):
            return rows
        found = self._core_groups()
        outlines = [group for level in found.levels[:-1] for group in level.groups]
        return self._marked(
            matrix.core_matrix(rows, self.run.host["topology"], groups=outlines or None)
        )

    def _core_groups(self) -> core_groups.Groups:
        host = self.run.host
        return core_groups.from_measurements(
            self.run.measurements, host["topology"], virtual=core_groups.is_virtual(host)
        )

    def loaded(self) -> Shown:
        """Draw latency against bandwidth while the injected load grows."""
        rows = self._rows("loaded_latency")
        if isinstance(rows, Text):
            return rows
        return self._marked(curves.loaded_latency(self.run.measurements))

    def scaling(self, metric: str) -> Shown:
        """Draw a metric against the number of threads, node by node."""
        rows = self._rows(metric)
        if isinstance(rows, Text):
            return rows
        local = rows.filter((pl.col("binding") == "local") & (pl.col("role") != "control"))
        if local["threads"].n_unique() < 2:
            return Text("This run measured one number of threads: there is no curve to draw.")
        return self._marked(curves.scaling(local))

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
        return self._marked(placement.where(rows, list(self.run.cells)))

    def faults(self) -> Shown:
        """Draw the minor faults of each case beside its share of huge pages."""
        minor, huge = self._rows("minor_faults"), self._rows("huge_share")
        for rows in (minor, huge):
            if isinstance(rows, Text):
                return rows
        return self._marked(placement.faults(minor, huge, list(self.run.cells)))

    def levels(self, *cases: str) -> Shown:
        """Draw page cache and free memory over time, in the cases named (all without a name)."""
        cells = {
            name: cell
            for name, cell in self.run.cells.items()
            if cell["role"] != "control"
            and (not cases or (cell.get("case") or {}).get("name") in cases)
        }
        rows = self.run.samples.filter(
            pl.col("metric").is_in(["page_cache", "free"]) & pl.col("cell").is_in(list(cells))
        )
        if rows.is_empty():
            return Text("No trial of these cases lasted long enough for a sample of its memory.")
        labels = {name: cell["label"] for name, cell in cells.items()}
        homes = {name: cell["cpu_nodes"] for name, cell in cells.items()}
        return self._marked(placement.levels(rows, labels, homes))

    def memory_counters(self) -> Text:
        """Return what the kernel's memory management counted, per case."""
        return Text(results.memory_counters(self.run))

    def shares(self, *metrics: str) -> Text:
        """Return metrics of the tool per case: median, least and greatest of the blocks."""
        return Text(results.shares(self.run, *metrics))

    def _rows(self, metric: str, point: str | None = None) -> pl.DataFrame | Text:
        """A metric's rows, or the words that stand where a picture of nothing would."""
        rows = self.run.tool_rows(metric, point)
        if rows["value"].is_not_null().any():
            return rows
        reasons = rows["reason"].drop_nulls().unique().sort().to_list()
        why = f": {'; '.join(reasons)}" if reasons else ""
        return Text(f"No trial of this run measured {results.title(metric, point or '')}{why}.")

    def _marked(self, figure: style.Picture) -> style.Picture:
        host = self.run.host
        return style.emulated(figure, host["emulated_why"]) if host["emulated"] else figure

    def groups(self) -> Text:
        """Return the levels of core groups that the core-to-core latencies show."""
        host = self.run.host
        if host["emulated"]:
            return Text("Emulated host: its latencies say nothing of groups of cores.")
        virtual = core_groups.is_virtual(host)
        return Text(core_groups.markdown(self.run.measurements, host["topology"], virtual=virtual))

    def witness(self) -> Text:
        """Return sysfs beside numactl and lscpu: the same figures read by independent tools."""
        return Text(results.witness(self.run))

    def counters(self) -> Text:
        """Return what the kernel's and the processor's counters say, per binding."""
        return Text(results.counters(self.run))

    def placement(self) -> Text:
        """Return where memory and threads really were, per binding: the proof behind the label."""
        return Text(results.placement(self.run))

    def verdict(self) -> Text:
        """Return the verdict on each claim of the experiment, with its figures."""
        return Text(claims.markdown(self.verdicts()))

    def verdicts(self, others: Sequence[runs.Run] = ()) -> list[claims.Verdict]:
        """Return the verdict on each claim of the experiment.

        ``others`` are runs beside this one: a claim may need one of the same machine.
        """
        name = self.run.manifest["experiment"]
        sides = [
            claims.Side(other.measurements, other.host, other.plan)
            for other in others
            if other.manifest["experiment"] == name and other is not self.run
        ]
        return claims.judge_all(
            self.run.experiment.claims, self.run.measurements, self.run.host, self.run.plan, sides
        )

    def recommendation(self) -> Text:
        """Return which binding to use here, its gain and cost, and the lines to paste; or none."""
        return Text(recommendation.markdown(recommendation.of(self.run)))

    def confidence(self) -> Text:
        """Return how sure the figures are: A/A control, drift, instability, exclusions."""
        return Text(results.confidence(self.run))


def _placed(rows: pl.DataFrame, places: dict[str, tuple[str, float]]) -> pl.DataFrame:
    """The rows of these cells with the columns ``series`` and ``at`` that a curve needs."""
    table = pl.DataFrame(
        [(name, *place) for name, place in places.items()],
        schema={"cell": pl.String, "series": pl.String, "at": pl.Float64},
        orient="row",
    )
    return rows.join(table, on="cell", how="inner", maintain_order="left")


def machine(run: runs.Run) -> str:
    """Return the host in a line: model, sockets, cores, hardware threads, nodes."""
    shape = run.host["topology"]
    parts = [shape["model"] or "processor not named"]
    for count, one, many in (
        (shape["packages"], "socket", "sockets"),
        (shape["cores"], "core", "cores"),
        (shape["threads"], "hardware thread", "hardware threads"),
        (len(shape["nodes"]), "NUMA node", "NUMA nodes"),
    ):
        if count:
            parts.append(f"{count} {one if count == 1 else many}")
    return ", ".join(parts)


def _count(run: runs.Run) -> str:
    from numalab.agent.trial.journal import read

    grades = [record["grade"] for record in read(run.folder / "journal.ndjson")]
    said = [f"{grades.count(g)} {g}" for g in ("verified", "unverified", "error") if g in grades]
    many = "1 trial" if len(grades) == 1 else f"{len(grades)} trials"
    return many + (f": {', '.join(said)}" if said else "")


def _prefix(cell: dict[str, Any]) -> str:
    """The words before the command; of several instances those of each."""
    seats = cell.get("instances") or [{"name": "", "numactl": cell["numactl"]}]
    said = [
        f"{seat['name']}: ".removeprefix(": ")
        + (f"`{' '.join(seat['numactl'])}`" if seat["numactl"] else "none")
        for seat in seats
    ]
    return "; ".join(said)


def _policy(cell: dict[str, Any]) -> str:
    memory = cell["memory"]
    return f"{memory['policy']} {memory['nodes']}" if memory["nodes"] else memory["policy"]


def _expects(cell: dict[str, Any]) -> str:
    memory = cell["expects"]["memory"]
    if memory["proof"] != "required":
        return {"outcome": "recorded", "none": "not asked"}[memory["proof"]]
    if memory["rule"] == "within":
        return f"≥ {memory['at_least']:.0%} on {memory['nodes']}"
    return f"even over {memory['nodes']} ± {memory['within_points']} points"


def _gib(value: int | None) -> float | None:
    return None if value is None else value / 2**30


def short(value: Any) -> str:
    """Return a setting's value in at most 80 characters."""
    if isinstance(value, dict):
        value = [f"{key}: {short(entry)}" for key, entry in value.items()]
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 80 else text[:77] + "…"


def execute(folder: Path) -> Path:
    """Execute an experiment's notebook over a run by papermill; return the executed notebook.

    It goes to ``notebook.ipynb`` in the run directory. Raises Fault when a cell fails, with the
    cell's own error.
    """
    run = runs.load(folder)
    source = home.root() / "notebooks" / run.experiment.notebook
    target = folder / "notebook.ipynb"
    parameters = {
        "source": from_root(folder),
        "host": run.manifest["host"],
        "profile": run.manifest["profile"],
    }
    run_notebook(source, target, parameters)
    return target


def from_root(folder: Path) -> str:
    """A path below the root as the root sees it, so that the notebook works on any machine."""
    full, root = folder.resolve(), home.root()
    return full.relative_to(root).as_posix() if full.is_relative_to(root) else str(full)


def run_notebook(source: Path, target: Path, parameters: dict[str, Any]) -> None:
    """Execute any notebook by papermill; an unknown parameter is a Fault (papermill only warns).

    Nothing that differs from one execution to the next stays in the file: no times, no paths.
    """
    if not source.is_file():
        raise Fault(f"there is no notebook {source}", "the experiment's file names it")
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # debugger's noise on 3.11+
    import papermill

    known = papermill.inspect_notebook(str(source))
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise Fault(
            f"{source.name} has no parameter {', '.join(unknown)}",
            f"its parameters are {', '.join(known) or 'none'}",
        )
    try:
        papermill.execute_notebook(
            str(source),
            str(target),
            parameters=parameters,
            kernel_name="python3",
            progress_bar=False,
            cwd=str(home.root()),
            extra_arguments=["--log-level=ERROR"],  # of the kernel: no remarks on its transport
        )
    except papermill.PapermillExecutionError as error:
        raise Fault(
            f"{source.name} failed in cell {error.cell_index}: {error.ename}: {error.evalue}",
            f"the notebook as far as it came: {target}",
        ) from None
    finally:
        if target.is_file():
            _clean(target)


def _clean(path: Path) -> None:
    """Take out of an executed notebook what only tells when and where it was executed."""
    import nbformat

    book = nbformat.read(path, as_version=4)
    book.metadata.pop("papermill", None)
    book.metadata.language_info = {"name": "python"}
    for cell in book.cells:
        for key in ("papermill", "execution", "collapsed"):
            cell.metadata.pop(key, None)
    nbformat.write(book, path)


def execute_in_place(source: Path, parameters: dict[str, Any]) -> None:
    """Execute a committed notebook over other parameters, written into its own parameters cell."""
    import nbformat

    book = nbformat.read(source, as_version=4)
    cell = next(one for one in book.cells if "parameters" in one.metadata.get("tags", []))
    for name, value in parameters.items():
        changed, count = re.subn(
            rf"^{name} = .*?(  #.*)?$",
            lambda match, name=name, value=value: f"{name} = {value!r}{match.group(1) or ''}",
            cell.source,
            flags=re.MULTILINE,
        )
        if count != 1:
            raise Fault(f"{source.name} has no parameter {name}", "see its parameters cell")
        cell.source = changed
    nbformat.write(book, source)
    run_notebook(source, source, {})
