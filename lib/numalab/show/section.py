"""One experiment of the article, over all hosts that ran it: ``article.stream.chart("triad")``.

The methods are those of a run's `View`. Of several hosts, pictures stand on one sheet, matrices
are small multiples, tables are one table. A host whose times mean nothing is left out of what
only times tell, unless there is no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from numalab.agent.contract import CONTROL, ERROR
from numalab.analysis import evidence, results
from numalab.runs import Run
from numalab.show import badge, escape, tables
from numalab.show.charts import matrix, placement, style
from numalab.show.chosen import Chosen, listed
from numalab.show.view import Shown, Text, View, better, worded


class Section:
    """An experiment as an article shows it."""

    def __init__(self, chosen: Chosen, experiment: str) -> None:
        self.chosen, self.experiment = chosen, experiment
        self.views = [View(run) for run in chosen.of(experiment)]

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

    def loaded(self) -> Shown:
        """As of `View`."""
        return self._shown(lambda view: view.loaded(), "loaded_latency")

    def core_matrix(self) -> Shown:
        """As of `View`."""
        return self._shown(lambda view: view.core_matrix(), "core_latency")

    def levels(self, *cases: str) -> Shown:
        """As of `View`."""
        return self._shown(lambda view: view.levels(*cases))

    def matrix(self, metric: str, point: str = "") -> Shown:
        """As of `View`; of several hosts a panel each, with its badge."""
        if len(self.views) < 2:
            return self._shown(lambda view: view.matrix(metric, point))
        panels, unit = [], ""
        for view in self.views:
            rows = view.run.node_pairs(metric, point or None)
            rows = rows.filter(pl.col("value").is_not_null())
            if not rows.is_empty():
                unit = rows["unit"][0]
                host, kind = view.run.manifest.host, badge.of(view.run)
                panels.append(matrix.pairs(host, worded(rows), kind))
        title = results.title(metric, point)
        if not panels:
            return Text(f"No trial measured {title} node by node.")
        title = title[:1].upper() + title[1:]
        direction = better(self.views[0].run, metric)
        return matrix.matrices(panels, title, unit, direction, "CPUs of node", "memory of node")

    def shares(self, metric: str) -> Shown:
        """Draw a share for every case and host: what the kernel did, side by side."""
        frame = self._by_case(metric)
        if frame.is_empty():
            return self._unmeasured(metric)
        kinds = {run.manifest.host: badge.of(run) for run in self._runs()}
        hosts = frame["host"].unique(maintain_order=True)
        names = {host: kinds[host] for host in self.chosen.hosts() if host in hosts}
        return placement.cases(frame, f"{style.words(metric)}, by case and host", names)

    # --- tables ---------------------------------------------------------------------------------

    def table(self, metric: str, point: str = "") -> Text:
        """As of `View`; of several hosts one table."""
        if len(self.views) < 2:
            return self._text(lambda view: view.table(metric, point), metric)
        shown, remark = self._telling(metric)
        parts = [
            frame.with_columns(host=pl.lit(self.chosen.where(view.run, marked=True)))
            for view in shown
            if not (frame := results.table(view.run, metric, point)).is_empty()
        ]
        if not parts:
            return Text(f"No trial measured {results.title(metric, point)}. {remark}".strip())
        threads = results.threads_heading(shown[0].run)
        text = results.as_markdown(pl.concat(parts), metric, point, threads=threads, with_host=True)
        line = badge.line(view.run for view in shown)
        return Text("\n".join(filter(None, (text, line, remark))))

    def overview(self, *metrics: str) -> Text:
        """As of `View`."""
        return self._text(lambda view: view.overview(*metrics), metrics[0])

    def placement(self) -> Text:
        """As of `View`."""
        return self._text(lambda view: view.placement())

    def traffic(self) -> Text:
        """As of `View`; hosts that count none are left out."""
        made = [(view.run, text) for view in self.views if (text := view.traffic())]
        return Text("\n\n".join(self._words(made)))

    def groups(self) -> Text:
        """As of `View`."""
        return self._text(lambda view: view.groups(), "core_latency")

    def by_case(self, metric: str) -> Text:
        """Return a metric's median for every case (rows) and host (columns), as a table.

        In brackets the least and the most; of counts, then how many times the first case's.
        """
        frame = self._by_case(metric)
        if frame.is_empty():
            return self._unmeasured(metric)
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

    def _telling(self, metric: str | None) -> tuple[list[View], str]:
        """The views on which a metric means something (else all), and who is left out."""
        shown = [view for view in self.views if metric is None or tells(view.run, metric)]
        hidden = [view for view in self.views if view not in shown] if shown else []
        if not hidden:
            return self.views, ""
        left_out = listed([self.chosen.where(view.run) for view in hidden])
        return shown, f"Left out: {left_out} (emulated: times mean nothing)."

    def _shown(self, show: Callable[[View], Shown], metric: str | None = None) -> Shown:
        """What each view shows: one picture, or the sheet of all; words where there is none."""
        if not self.views:
            return self._absent()
        shown, remark = self._telling(metric)
        made = [(view.run, show(view)) for view in shown]
        pictures = [
            (self.chosen.where(run, marked=True), one)
            for run, one in made
            if not isinstance(one, Text)
        ]
        words = self._words([(run, one) for run, one in made if isinstance(one, Text)])
        if len(made) == 1 and not remark:
            return made[0][1]
        if not pictures:
            return Text("\n\n".join(filter(None, [*words, remark])))
        said = " ".join([*(word.replace("**", "") for word in words), remark]).strip()
        return style.sheet(pictures, said)

    def _text(self, show: Callable[[View], Text], metric: str | None = None) -> Text:
        if not self.views:
            return self._absent()
        shown, remark = self._telling(metric)
        made = [(view.run, show(view)) for view in shown]
        if len(made) == 1 and not remark:
            return made[0][1]
        return Text("\n\n".join(filter(None, [*self._words(made), remark])))

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

    def _absent(self) -> Text:
        name = self.experiment
        return Text(f"The {name} experiment was not run; `numalab run {name}` measures it.")

    def _unmeasured(self, metric: str) -> Text:
        if not self.views:
            return self._absent()
        return Text(f"No trial measured {results.title(metric)}.")

    def _by_case(self, metric: str) -> pl.DataFrame:
        """Columns case, host, value (the median), low, high (least and most), unit; in order."""
        told = [run for run in self._runs() if tells(run, metric)]
        fullest = sorted((_cases(run) for run in told), key=len, reverse=True)
        order = list(dict.fromkeys(name for cases in fullest for name in cases))
        rows = []
        for run in told:
            frame = run.tool_rows(metric).filter(
                (pl.col("role") != CONTROL) & (pl.col("grade") != ERROR)
            )
            for case, cells in _cases(run).items():
                values = frame.filter(pl.col("cell").is_in(cells))["value"].drop_nulls()
                if len(values):
                    rows.append(
                        {
                            "case": case, "host": run.manifest.host, "value": values.median(),
                            "low": values.min(), "high": values.max(), "unit": frame["unit"][0],
                        }
                    )  # fmt: skip
        hosts = self.chosen.hosts()
        rows.sort(key=lambda row: (order.index(row["case"]), hosts.index(row["host"])))
        return pl.DataFrame(rows)


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
