"""A run's results as tables: one frame for the terminal, the notebooks and the article."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from numalab import escape, tables
from numalab.agent.contract import BASELINE, CONTROL, Cell
from numalab.agent.plan.classes import PAIRS
from numalab.agent.words import units
from numalab.analysis import evidence, judge
from numalab.analysis.evidence import BLOCKS_NEEDED
from numalab.runs import Run

_DECISIONS = {
    judge.DIFFERENT: "different from {baseline}",
    judge.ALIKE: "not distinguishable from {baseline}",
    judge.TOO_FEW: "too few blocks to decide",
    judge.NO_CONTROL: "no A/A control to decide by",
    judge.DRIFTED: "the run drifted: nothing is decided",
    judge.AA: "A/A control: what chance alone does here",
}
_EMULATED = "emulated: no time means anything"
_DRIFTED_CONTROL = "A/A control: the run drifted"
MOST_ROWS = 40  # of a table with a row for each cell: a page still shows them
MOST_POINTS = 12  # the hundreds of pairs of cores are for the picture


def table(run: Run, metric: str, point: str = "", load: str | None = None) -> pl.DataFrame:
    """Return one row per cell: label, threads, n, mean with interval, ratio with interval, said.

    Columns: cell, label, role, threads, n, mean, low, high, unit, ratio, ratio_low, ratio_high,
    decision (of ``judge.DECISIONS``), real (whether it means anything on this host) and said (the
    decision in words, with what was excluded).
    Cells stand in the order of the plan. On an emulated host a time or a speed has no ratio. Fewer
    than six values have no interval here: they could decide nothing, and an interval of two points
    would only look like knowledge. ``load`` chooses the cells under one load (``threads=2``);
    without it all but the copies of a sweep are there.
    """
    rows, ratios = compared(run, metric, point, load)
    summary = evidence.summarise(rows)
    figures = ("ratio", "decision", "reason", "reason_fields")
    ratios = ratios.select(
        "cell", *figures, pl.col("low").alias("ratio_low"), pl.col("high").alias("ratio_high")
    )
    order = {cell: place for place, cell in enumerate(run.cells)}
    joined = summary.join(ratios, on="cell", how="left").sort(
        pl.col("cell").replace_strict(order, return_dtype=pl.Int64)
    )
    said = [_said(run, row) for row in joined.iter_rows(named=True)]
    means = [_real(run, row) for row in joined.iter_rows(named=True)]
    real = pl.Series("real", means, pl.Boolean)
    judged = ("ratio", "ratio_low", "ratio_high", "decision")
    return joined.with_columns(
        pl.Series("said", said, pl.String),
        real,
        *(pl.when(pl.col("n") >= BLOCKS_NEEDED).then(pl.col(name)) for name in ("low", "high")),
        *(pl.when(real).then(pl.col(name)) for name in judged),
    ).select(
        "cell", "label", "role", "threads", "n", "n_error", "n_unverified", "mean", "low", "high",
        "unit", "ratio", "ratio_low", "ratio_high", "decision", "real", "said",
    )  # fmt: skip


def rows_of(
    cells: Iterable[Cell], apart: Mapping[str, Hashable] | None = None
) -> list[tuple[str, list[Cell]]]:
    """Return the rows of a table about cells: each one's label, and the cells that share it.

    Every cell has its own. Where that makes more than MOST_ROWS, nodes of ``local`` and pairs of
    nodes at one distance share a row, but for the control. ``apart`` is what else must be alike,
    by a cell's id.
    """
    listed = list(cells)
    found: dict[Hashable, list[Cell]] = {}
    for cell in listed:
        key: Hashable = cell.id
        many = len(listed) > MOST_ROWS and cell.role != CONTROL
        if many and cell.binding in ("local", *PAIRS):
            more = (apart or {}).get(cell.id)
            key = (cell.binding, cell.distance, cell.variant, cell.layout, more)
        found.setdefault(key, []).append(cell)
    return [(_row_label(mine), mine) for mine in found.values()]


def _row_label(cells: Sequence[Cell]) -> str:
    first, count = cells[0], len(cells)
    if count == 1:
        return first.label
    what = first.binding
    if first.binding in PAIRS and first.distance is not None:
        what += f" at distance {first.distance}"
    variant = first.label.partition(", ")[2]
    said = f"{what} ({units.count(count, 'pair' if first.binding in PAIRS else 'node')})"
    return ", ".join(filter(None, (said, variant)))


def folded(run: Run, frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows of ``table`` as few as ``rows_of`` makes them.

    A row of several cells has their median, and the least and the most in place of an interval.
    """
    rows = []
    for label, cells in rows_of(run.cells[id] for id in frame["cell"]):
        mine = frame.filter(pl.col("cell").is_in([cell.id for cell in cells]))
        row = mine.row(0, named=True)
        if len(cells) > 1:
            for name, low, high in (("mean", "low", "high"), ("ratio", "ratio_low", "ratio_high")):
                row |= {name: mine[name].median(), low: mine[name].min(), high: mine[name].max()}
            row |= {"label": label, "n": mine["n"].sum(), "said": _said_of_all(run, cells, mine)}
        rows.append(row)
    return pl.DataFrame(rows, schema=frame.schema)


def _said_of_all(run: Run, cells: Sequence[Cell], mine: pl.DataFrame) -> str:
    parts = ["median [least, most]"]
    if not mine["real"].all():
        parts.append(_EMULATED)
    baseline = next((run.cells[cell.baseline].binding for cell in cells if cell.baseline), "")
    for decision, count in mine["decision"].drop_nulls().value_counts(sort=True).iter_rows():
        if baseline:
            words = _DECISIONS.get(decision, "without a ratio")
            parts.append(f"{count} {words.format(baseline=baseline)}")
    for name, word in (("n_error", "excluded"), ("n_unverified", "unverified")):
        if mine[name].sum():
            parts.append(f"{mine[name].sum()} {word}")
    return "; ".join(parts)


def compared(
    run: Run, metric: str, point: str = "", load: str | None = None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return a metric's rows under one load (see ``table``), and their ``judge.ratios``."""
    if load is None:
        rows = run.binding_rows(metric, point)
    else:
        mine = pl.col("cell").is_in(run.load_cells(load))
        rows = run.tool_rows(metric, point).filter(mine)
    ratios = judge.ratios(run.measurements, run.plan, [metric], point)
    return rows, ratios.filter(pl.col("cell").is_in(rows["cell"].unique().to_list()))


def _real(run: Run, row: dict[str, Any]) -> bool:
    return evidence.real(run, row["metric"], row["unit"], row["source"], row["tool"])


def _said(run: Run, row: dict[str, Any]) -> str:
    parts = []
    if not _real(run, row):
        parts.append(_EMULATED)
    elif row["baseline"] is not None and row["decision"] is not None:
        if row["reason"]:
            parts.append(str(evidence.row_reason(row["reason"], row["reason_fields"])))
        elif row["role"] == CONTROL and row["decision"] == judge.DRIFTED:
            parts.append(_DRIFTED_CONTROL)
        else:
            baseline = run.cells[row["baseline"]].label
            parts.append(_DECISIONS[row["decision"]].format(baseline=baseline))
    if row["n_error"]:
        parts.append(f"{row['n_error']} excluded")
    if row["n_unverified"]:
        parts.append(f"{row['n_unverified']} unverified")
    return "; ".join(parts)


def overview(run: Run, metrics: Sequence[str], load: str = "") -> str:
    """Return several metrics' means per binding as one Markdown table; best of the first on top.

    Where the first metric has points (instances of a server), each has a row, in their order. A
    metric of which no trial has a value is named below the table, with the reason.
    """
    rows = run.measurements.filter(
        pl.col("metric").is_in(list(metrics)) & pl.col("cell").is_in(run.load_cells(load))
    )
    means = evidence.summarise(rows).filter(pl.col("mean").is_not_null())
    means = means.sort("source", descending=True).unique(  # the tool's own before a collector's
        ["metric", "cell", "point"], keep="first", maintain_order=True
    )
    lines, columns, frame = [], {}, None
    for name in metrics:
        mine = means.filter(pl.col("metric") == name)
        if mine.is_empty():
            why = "; ".join(map(escape.markdown, evidence.why_missing(run.measurements, name)))
            lines.append(f"- not measured: {named(name)}{f' ({why})' if why else ''}")
            continue
        columns[title(name) + _in(mine["unit"][0])] = name
        keys = ["cell", "point"] if (mine["point"] != "").any() else ["cell"]
        mine = mine.select(*keys, pl.col("mean").alias(name))
        if frame is None:
            frame = mine if "point" in keys else mine.with_columns(point=pl.lit(""))
        else:
            frame = frame.join(mine, on=keys, how="left")
    if frame is None:
        return "\n".join(lines) or "Nothing was measured."
    frame = frame.with_columns(
        label=pl.col("cell").replace_strict({name: cell.label for name, cell in run.cells.items()})
    )
    heads = {"binding": "label"}
    if (frame["point"] != "").any():
        order = {name: place for place, name in enumerate(run.cells)}
        frame = frame.sort(pl.col("cell").replace_strict(order), "point")
        heads["instance"] = "point"
    else:
        first = next(iter(columns.values()))
        lower = first in run.measures and run.measures[first].better == "lower"
        frame = frame.sort(first, descending=not lower, nulls_last=True)
    return "\n".join([tables.markdown(frame, heads | columns), *lines])


def markdown(run: Run, metric: str, point: str = "", load: str | None = None) -> str:
    """Return ``table`` as Markdown, ``folded``, with the unit in the heading."""
    frame = folded(run, table(run, metric, point, load))
    if frame.is_empty():
        return f"No trial measured {named(metric)}."
    return as_markdown(frame, metric, point, threads=threads_heading(run))


def as_markdown(
    frame: pl.DataFrame,
    metric: str,
    point: str = "",
    *,
    threads: str = "threads",
    with_host: bool = False,
) -> str:
    """Return rows of ``table`` as Markdown; ``with_host`` begins with their column host."""
    return tables.markdown(
        frame,
        {
            **({"host": "host"} if with_host else {}),
            "binding": "label",
            threads: "threads",
            "n": "n",
            title(metric, point) + _in(frame["unit"][0]): ("mean", "low", "high"),
            "ratio": ("ratio", "ratio_low", "ratio_high"),
            "": "said",
        },
    )


def threads_heading(run: Run) -> str:
    """Return what a cell's ``threads`` are: the tool's own threads, else its CPUs."""
    own = any("threads" in cell.options for cell in run.cells.values())
    return "threads" if own or not any(cell.options for cell in run.cells.values()) else "CPUs"


def _in(unit: str) -> str:
    """A unit as a heading shows it: " (ms)"; nothing for a bare number."""
    return "" if unit in ("1", "") else f" ({unit})"


def title(metric: str, point: str = "") -> str:
    """Return a metric's name for people: ``idle_latency`` is "idle latency"."""
    return tables.plain(metric) + (f", {point}" if point else "")


def named(metric: str, point: str = "") -> str:
    """Return ``title`` for a line of Markdown: a stranger's raw output may name its metrics."""
    return escape.markdown(title(metric, point))


def terminal(run: Run) -> str:
    """Return the results as text for the terminal: a table per metric and point that was asked."""
    parts = []
    for metric in run.measures:
        at = run.points(metric)
        if not at:
            parts += _nowhere(run, metric)
        elif len(at) <= MOST_POINTS:
            parts += [_terminal_table(run, metric, point) for point in at]
    return "\n\n".join(part for part in parts if part)


def _nowhere(run: Run, metric: str) -> list[str]:
    """What to say of a metric that no trial has a row of: it may be misspelt.

    Nothing where the tool measured nothing at all: the trials' own errors say why.
    """
    of_tool = run.measurements.filter(pl.col("source") == "tool")
    names = ", ".join(of_tool["metric"].unique().sort().to_list())
    said = f"not measured: {metric}: no trial has a metric of this name; there are {names}"
    return [escape.terminal(said)] if names else []


def _terminal_table(run: Run, metric: str, point: str) -> str:
    frame = folded(run, table(run, metric, point))
    if frame.is_empty():
        return ""
    why = "; ".join(map(str, evidence.why_missing(run.measurements, metric)))
    if why and frame["mean"].is_null().all() and not frame["n_error"].sum():
        return escape.terminal(f"not measured: {title(metric, point)} ({why})")
    unit = frame["unit"][0]
    name = title(metric, point) + ("" if unit == "1" else f" {unit}")
    lines = [("binding", name, "ratio", "")]
    for row in frame.iter_rows(named=True):
        value = tables.number(row["mean"])
        if row["label"] != run.cells[row["cell"]].label:  # of several
            value = tables.interval(row["mean"], row["low"], row["high"])
        elif row["low"] is not None:
            value += f" ± {tables.number((row['high'] - row['low']) / 2, 2)}"
        ratio = tables.interval(row["ratio"], row["ratio_low"], row["ratio_high"])
        own = row["role"] == BASELINE and not run.cells[row["cell"]].sweep
        shown = "1" if own else ratio
        lines.append((row["label"], value, shown, row["said"]))
    widths = [max(len(line[place]) for line in lines) for place in range(3)]
    a, b, c = widths
    return escape.terminal(
        "\n".join(
            f"{line[0]:<{a}}  {line[1]:>{b}}  {line[2]:<{c}}  {line[3]}".rstrip() for line in lines
        )
    )
