"""One experiment of the article, over all hosts that ran it: ``article.stream.chart("triad")``.

The methods are those of a run's `View`. Of several hosts, pictures stand on one sheet, matrices
are small multiples, tables are one table. A host whose times mean nothing is left out of what
only times tell. Where nothing is to be shown the text is empty, and a page leaves its place out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence

import polars as pl

from numalab import escape, tables
from numalab.agent.contract import CONFIGURED, CONTROL, ERROR
from numalab.agent.words import units
from numalab.analysis import evidence, judge
from numalab.analysis.evidence import BLOCKS_NEEDED
from numalab.runs import Run
from numalab.show import badge, results
from numalab.show.charts import matrix, placement, style
from numalab.show.chosen import Chosen, listed
from numalab.show.view import Shown, Text, View, better, even_share, worded

# Notes of a cell that bear on every figure of it, not only on what its binding is.
_SPOILS = (
    "below-four-caches", "below-hidden-cache", "llc-hidden", "llc-unknown", "data-below-caches",
    "client-shares-cpus", "client-elsewhere", "memory-only-node",
    "balancing-may-move", "threads-bounded",
)  # fmt: skip
NOTHING = Text("")


class Section:
    """An experiment as an article shows it."""

    def __init__(self, chosen: Chosen, experiment: str) -> None:
        self.chosen, self.experiment = chosen, experiment
        self.views = [View(run) for run in chosen.of(experiment)]

    def headed(self, text: str, *shown: Shown) -> Text:
        """Return a section's heading and text, then what spoils its figures; all or nothing.

        ``shown`` are the pictures and tables of the section: without any there is no section.
        """
        if all(one == NOTHING for one in shown):
            return NOTHING
        return Text("\n\n".join([inspect.cleandoc(text), self.reservations()]))

    def reservations(self) -> Text:
        """Return what spoils the figures of this section, as a note to stand in it; or nothing."""
        said: dict[str, list[str]] = {}
        for view in self.views:
            if any(tells(view.run, metric) for metric in view.run.measures):
                for one in reservations(view.run):
                    said.setdefault(one, []).append(self.chosen.named(view.run.manifest.host))
        lines = [
            f"> - {escape.markdown(f'{listed(list(dict.fromkeys(on)))}: {one}')}"
            for one, on in said.items()
        ]
        return Text(
            "\n".join(["> **Mind when you read these figures:**", ">", *lines]) if lines else ""
        )

    # --- pictures -------------------------------------------------------------------------------

    def chart(self, metric: str, point: str = "", load: str | None = None) -> Shown:
        """As of `View`."""
        return self._shown(lambda view: view.chart(metric, point, load), metric)

    def against(self, metric: str, option: str) -> Shown:
        """As of `View`."""
        return self._shown(lambda view: view.against(metric, option), metric)

    def cores(self, metric: str) -> Shown:
        """As of `View`."""
        return self._shown(lambda view: view.cores(metric), metric)

    def scaling(self, metric: str) -> Shown:
        """As of `View`."""
        return self._shown(lambda view: view.scaling(metric), metric)

    def seconds(self, metric: str, load: str = "") -> Shown:
        """As of `View`."""
        return self._shown(lambda view: view.seconds(metric, load), metric)

    def instances(self, *metrics: str) -> Shown:
        """As of `View`."""
        return self._shown(lambda view: view.instances(*metrics), metrics[0])

    def throughput_latency(self) -> Shown:
        """As of `View`."""
        return self._shown(lambda view: view.throughput_latency(), "latency_avg")

    def tail(self) -> Shown:
        """As of `View`."""
        return self._shown(lambda view: view.tail(), "latency_p50")

    def loaded(self) -> Shown:
        """As of `View`."""
        return self._shown(lambda view: view.loaded(), "loaded_latency")

    def core_matrix(self) -> Shown:
        """As of `View`."""
        return self._shown(lambda view: view.core_matrix(), "core_latency")

    def memory(self) -> Shown:
        """As of `View`."""
        return self._shown(lambda view: view.memory())

    def levels(self, *cases: str) -> Shown:
        """As of `View`."""
        return self._shown(lambda view: view.levels(*cases))

    def matrix(self, metric: str, point: str = "") -> Shown:
        """As of `View`; of several hosts a panel each, with its badge."""
        if len(self.views) < 2:
            return self._shown(lambda view: view.matrix(metric, point), metric)
        panels, unit = [], ""
        for view in self._telling(metric):
            rows = view.run.node_pairs(metric, point or None)
            rows = rows.filter(pl.col("value").is_not_null())
            if rows.select("cpu_nodes", "memory_nodes").n_unique() > 1:
                unit = rows["unit"][0]
                host, kind = view.run.manifest.host, badge.of(view.run)
                panels.append(matrix.pairs(host, worded(rows), kind))
        title = results.title(metric, point)
        if not panels:
            return NOTHING
        title = title[:1].upper() + title[1:]
        direction = better(self.views[0].run, metric)
        return matrix.matrices(panels, title, unit, direction, "CPUs of node", "memory of node")

    def shares(self, metric: str) -> Shown:
        """Draw a share for every case and host: what the kernel did, side by side."""
        frame = self._by_case(metric)
        if frame.is_empty() or not (frame["high"] > 0).any():  # nought everywhere is no picture
            return NOTHING
        kinds = {run.manifest.host: badge.of(run) for run in self._runs()}
        hosts = frame["host"].unique(maintain_order=True)
        names = {host: kinds[host] for host in self.chosen.hosts() if host in hosts}
        by = "by case and host" if len(names) > 1 else "by case"
        return placement.cases(frame, f"{style.words(metric)}, {by}", names)

    # --- tables ---------------------------------------------------------------------------------

    def table(self, metric: str, point: str = "") -> Text:
        """As of `View`; of several hosts one table."""
        shown = self._telling(metric)
        if len(self.views) < 2:
            return self._text(lambda view: view.table(metric, point), metric)
        parts = [
            results.folded(view.run, frame).with_columns(
                host=pl.lit(self.chosen.where(view.run, marked=True))
            )
            for view in shown
            if not (frame := results.table(view.run, metric, point)).is_empty()
        ]
        if not parts:
            return NOTHING
        threads = results.threads_heading(shown[0].run)
        text = results.as_markdown(pl.concat(parts), metric, point, threads=threads, with_host=True)
        return Text(f"{text}\n{badge.line(view.run for view in shown)}")

    def overview(self, *metrics: str) -> Text:
        """As of `View`."""
        return self._text(lambda view: view.overview(*metrics), metrics[0])

    def placement(self) -> Text:
        """As of `View`."""
        return self._text(lambda view: view.placement())

    def traffic(self) -> Text:
        """As of `View`; hosts that count none are left out."""
        return self._text(lambda view: view.traffic())

    def groups(self) -> Text:
        """As of `View`."""
        return self._text(lambda view: view.groups(), "core_latency")

    def by_case(self, metric: str, against: Mapping[str, str] | None = None) -> Text:
        """Return a metric's median for every case (rows) and host (columns), as a table.

        In brackets the least and the most; then how many times that of the case that answers the
        question: ``against`` maps names of cases to those of the cases they are compared with.
        """
        frame = self._by_case(metric)
        if frame.is_empty():
            return NOTHING
        medians = {(row["name"], row["host"]): row["value"] for row in frame.iter_rows(named=True)}
        cases = dict(frame.select("name", "case").iter_rows())
        rows: dict[str, dict[str, str]] = {}
        for record in frame.iter_rows(named=True):
            host, value, unit = record["host"], record["value"], record["unit"]
            said, low, high = (_said(record[name], unit) for name in ("value", "low", "high"))
            if low != high:
                said += f" [{low}, {high}]"
            other = (against or {}).get(record["name"], "")
            base = medians.get((other, host))
            if base:
                said += f" (×{tables.number(value / base)} of: {escape.markdown(cases[other])})"
            rows.setdefault(record["case"], {})[self.chosen.named(host)] = said
        hosts = frame["host"].unique(maintain_order=True)
        names = [self.chosen.named(host) for host in self.chosen.hosts() if host in hosts]
        made = [{"case": case, **{n: of.get(n) for n in names}} for case, of in rows.items()]
        return Text(f"{tables.of_rows(made, marked=names)}\n{badge.line(self._runs())}")

    def recommendation(self) -> Text:
        """As of `View`."""
        return self._text(lambda view: view.recommendation())

    # --- how hosts are put together -------------------------------------------------------------

    def _runs(self) -> list[Run]:
        return [view.run for view in self.views]

    def _telling(self, metric: str | None) -> list[View]:
        """The views on which a metric means something."""
        return [view for view in self.views if metric is None or tells(view.run, metric)]

    def _shown(self, show: Callable[[View], Shown], metric: str | None = None) -> Shown:
        """What each view draws: one picture, or the sheet of all."""
        made = [(view.run, show(view)) for view in self._telling(metric)]
        pictures = [
            (self.chosen.where(run, marked=True), one)
            for run, one in made
            if not isinstance(one, Text)
        ]
        if not pictures:
            return NOTHING
        return pictures[0][1] if len(self.views) == 1 else style.sheet(pictures)

    def _text(self, show: Callable[[View], Text], metric: str | None = None) -> Text:
        made = [(view.run, show(view)) for view in self._telling(metric)]
        made = [(run, one) for run, one in made if "|" in one or "**" in one]  # a table, an advice
        if len(self.views) == 1:
            return made[0][1] if made else NOTHING
        return Text("\n\n".join(self._words(made)))

    def _words(self, made: Sequence[tuple[Run, Text]]) -> list[str]:
        """Texts under the names of their hosts; the same text once."""
        said: dict[str, list[str]] = {}
        for run, one in made:
            said.setdefault(one, []).append(self.chosen.where(run, marked=True))
        return [
            f"**{escape.markdown(listed(which))}**"
            + (f": {one}" if "\n" not in one else f"\n\n{one}")
            for one, which in said.items()
        ]

    def _by_case(self, metric: str) -> pl.DataFrame:
        """Columns case, its name, host, value (the median), low, high, unit, even; in order.

        A host with configured timing is left out beside others: it counts as any emulated one does.

        ``low`` and ``high`` are the least and the most; ``even`` is a node's share where the memory
        is spread alike over several.
        """
        runs = [run for run in self._runs() if tells(run, metric)]
        runs = [run for run in runs if badge.of(run) != CONFIGURED] or runs
        fullest = sorted((_cases(run) for run in runs), key=len, reverse=True)
        order = list(dict.fromkeys(name for cases in fullest for name in cases))
        rows = []
        for run in runs:
            frame = run.tool_rows(metric).filter(
                (pl.col("role") != CONTROL) & (pl.col("grade") != ERROR)
            )
            for case, cells in _cases(run).items():
                values = frame.filter(pl.col("cell").is_in(cells))["value"].drop_nulls()
                if len(values):
                    cell = run.cells[cells[0]]
                    rows.append(
                        {
                            "case": case, "name": cell.case.name if cell.case else "",
                            "host": run.manifest.host, "value": values.median(),
                            "low": values.min(), "high": values.max(), "unit": frame["unit"][0],
                            "even": even_share(cell) if metric == "home_share" else None,
                        }
                    )  # fmt: skip
        hosts = self.chosen.hosts()
        rows.sort(key=lambda row: (order.index(row["case"]), hosts.index(row["host"])))
        return pl.DataFrame(rows, infer_schema_length=None)


def reservations(run: Run) -> Iterator[str]:
    """Yield what spoils a run's figures, whatever its bindings are, a sentence each."""
    yield from (f"{why}; measured all the same" for why in run.manifest.busy)
    for cell in run.plan.cells:
        yield from (str(note) for note in cell.notes if note.code in _SPOILS)
    if run.plan.request.blocks < BLOCKS_NEEDED:
        blocks = units.count(run.plan.request.blocks, "block")
        yield f"{blocks} ({run.manifest.profile}): fewer than {BLOCKS_NEEDED} decide nothing"
        return
    for metric in run.measures:
        if not tells(run, metric):
            continue
        drifted = [
            f"{point}: {words}" if point else words
            for point in run.points(metric)
            for one in judge.of(run.measurements, run.plan, metric, point).controls.values()
            if one.decision == judge.DRIFTED
            for words in [tables.change(one.ratio, one.low, one.high)]
        ]
        if drifted:
            yield (
                f"{results.title(metric)}: the same binding measured twice differs from itself "
                f"({'; '.join(drifted)}): the run drifted, no verdict and no recommendation is "
                "drawn from it"
            )


def tells(run: Run, metric: str) -> bool:
    """Return whether a metric means something on a run's host."""
    rows = run.tool_rows(metric)
    unit = "" if rows.is_empty() else rows["unit"][0]
    if metric in run.measures:
        unit = run.measures[metric].unit
    return rows.is_empty() or evidence.real(run, metric, unit, "tool", run.plan.tool.name)


def _cases(run: Run) -> dict[str, list[str]]:
    """The cells by names that are the same on every host: cases, and bindings without numbers."""
    found: dict[tuple[str, str], list[str]] = {}
    for cell in run.plan.cells:
        if cell.role != CONTROL:
            case = escape.line(cell.case.says) if cell.case else ""
            found.setdefault((case, cell.binding), []).append(cell.id)
    alone = [case for case, _ in found]
    return {
        case if case and alone.count(case) == 1 else ", ".join(filter(None, (case, binding))): cells
        for (case, binding), cells in found.items()
    }


def _said(value: float, unit: str) -> str:
    return f"{value:.1%}" if unit == "share" else tables.number(value)
