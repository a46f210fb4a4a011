"""A run's results as tables: one frame for the terminal, the notebooks and the article."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from .. import runs, store
from ..agent import cpulist, drivers
from ..agent.collectors import memory_model, perf
from ..agent.contract import (
    BASELINE,
    CONTROL,
    ERROR,
    VERIFIED,
    Cell,
    Graded,
    Node,
    Proof,
    Record,
    TrialRecord,
)
from ..agent.plan.classes import PAIRS
from ..agent.words import units
from ..runs import Run
from ..show import escape, tables
from . import evidence, judge
from .evidence import BLOCKS_NEEDED

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
_MOST_POINTS = 12  # the hundreds of pairs of cores are for the picture
_MOST_ALIKE = 4  # warnings of one kind about one metric; more are counted


def points(run: Run, metric: str) -> list[str]:
    """Return the points a metric was measured at, in the order of their x; [""] for a scalar."""
    rows = run.tool_rows(metric).select("point", "x").unique(maintain_order=True).sort("x")
    return rows["point"].unique(maintain_order=True).to_list()


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
        at = points(run, metric)
        if len(at) <= _MOST_POINTS:
            parts += [_terminal_table(run, metric, point) for point in at]
    return "\n\n".join(part for part in parts if part)


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


def counters(run: Run) -> str:
    """Return the counters' medians per binding as Markdown; what is missing is named once."""
    rows = run.measurements.filter(
        pl.col("source").is_in(["perf", "traffic", "numastat", "vmstat", "resctrl"])
        & (pl.col("grade") != ERROR)
    )
    if rows.is_empty():
        return "No counters were collected in this run."
    medians = _medians(rows)
    parts = [table for table in [_median_table(run, medians)] if table]
    # A quotient of counters that are missing has no reason of its own to tell.
    absent = medians.filter(
        pl.col("value").is_null() & (pl.col("reason") != evidence.COUNTER_MISSING)
    )
    for why, group in absent.group_by("reason", "reason_fields", maintain_order=True):
        names = ", ".join(group["name"].unique(maintain_order=True).to_list())
        parts.append(f"- not counted here: {escape.markdown(names)}: {_escaped(why)}\n")
    parts += calibration(run)
    return "\n".join(parts) or "Every counter stood still."


_BETWEEN_NODES = (pl.col("source") == "traffic") | (
    pl.col("source").is_in(["perf", "resctrl", memory_model.SOURCE]) & (pl.col("unit") == "GB/s")
)


def _medians(rows: pl.DataFrame) -> pl.DataFrame:
    """The median of each counter (with its point) in each cell, and the first reason."""
    named = rows.with_columns(
        name=pl.concat_str(
            pl.col("metric"),
            pl.when(pl.col("point") != "").then(" " + pl.col("point")).otherwise(pl.lit("")),
        )
    )
    return named.group_by("source", "name", "unit", "cell", maintain_order=True).agg(
        pl.col("value").median(),
        pl.col("reason").drop_nulls().first(),
        pl.col("reason_fields").drop_nulls().first(),
    )


def _median_table(run: Run, medians: pl.DataFrame) -> str:
    """A row per counter that did not stand still everywhere, a column per cell; "" without any."""
    measured = medians.filter(pl.col("value").is_not_null())
    moving = measured.group_by("name").agg(pl.col("value").abs().max().alias("most"))
    shown = measured.join(moving.filter(pl.col("most") > 0), on="name", how="semi")
    if shown.is_empty():
        return ""
    order = [cell for cell in run.cells if cell in set(shown["cell"])]
    wide = shown.pivot(on="cell", index=["source", "name", "unit"], values="value")
    columns = {"source": "source", "counter": "name", "unit": "unit"}
    columns |= {run.cells[cell].label: cell for cell in order}
    return tables.markdown(wide, columns)


_MEMORY_COUNTERS = (
    "numa_miss", "numa_foreign", "interleave_hit", "zone_reclaim_success", "zone_reclaim_failed",
    "pgscan_direct", "pgscan_kswapd", "thp_fault_alloc", "thp_fault_fallback", "numa_hint_faults",
    "numa_pages_migrated", "oom_kill",
)  # fmt: skip


def memory_counters(run: Run) -> str:
    """Return what the kernel's memory management counted in each cell, as Markdown.

    Medians over the blocks; of counters that each node has, the sum over the nodes. Counters that
    stood still everywhere are left out.
    """
    rows = run.measurements.filter(
        pl.col("metric").is_in(_MEMORY_COUNTERS)
        & pl.col("source").is_in(["numastat", "vmstat"])
        & (pl.col("grade") != ERROR)
        & pl.col("value").is_not_null()
    )
    medians = (
        rows.group_by("cell", "metric", "block")
        .agg(pl.col("value").sum())
        .group_by("cell", "metric")
        .agg(pl.col("value").median().round().cast(pl.Int64))
    )
    moved = medians.group_by("metric").agg(pl.col("value").max())
    shown = [
        name for name in _MEMORY_COUNTERS
        if name in set(moved.filter(pl.col("value") > 0)["metric"])
    ]  # fmt: skip
    if not shown:
        return "No counter of the kernel's memory management moved in this run."
    return _cell_table(run, medians, shown)


def shares(run: Run, *metrics: str) -> str:
    """Return metrics of the tool in each cell as Markdown: median [least, greatest] of the blocks.

    Bytes are shown in MiB. Cells that have none of them are left out; a value that is missing says
    why below the table.
    """
    in_mib = pl.col("unit") == "B"
    rows = run.measurements.filter(
        pl.col("metric").is_in(metrics) & (pl.col("source") == "tool") & (pl.col("grade") != ERROR)
    ).with_columns(
        value=pl.when(in_mib).then(pl.col("value") / 2**20).otherwise(pl.col("value")),
    )
    texts = (
        rows.filter(pl.col("value").is_not_null())
        .group_by("cell", "metric")
        .agg(
            pl.col("value").median(),
            pl.col("value").min().alias("low"),
            pl.col("value").max().alias("high"),
        )
        .with_columns(
            value=pl.struct("value", "low", "high").map_elements(_ranged, return_dtype=pl.String)
        )
    )
    if texts.is_empty():
        return f"No trial of this run measured {', '.join(map(escape.markdown, metrics))}."
    shown = [name for name in metrics if name in set(texts["metric"])]
    sized = set(rows.filter(in_mib)["metric"])
    headings = {name: f"{name} (MiB)" if name in sized else name for name in shown}
    text = _cell_table(
        run, texts.with_columns(pl.col("metric").replace(headings)), list(headings.values())
    )
    absent = rows.filter(pl.col("value").is_null())
    for (cell, *why), group in absent.group_by(
        "cell", "reason", "reason_fields", maintain_order=True
    ):
        names = ", ".join(group["metric"].unique(maintain_order=True).to_list())
        label = escape.markdown(run.cells[cell].label)
        text += f"- {label}: no {escape.markdown(names.replace('_', ' '))}: {_escaped(why)}\n"
    return text


def _escaped(why: Sequence[Any]) -> str:
    """A row's reason (code, fields) for a line of Markdown."""
    code, fields = why
    return (
        "no reason recorded" if code is None else escape.markdown(evidence.row_reason(code, fields))
    )


def _ranged(row: dict[str, float]) -> str:
    value, low, high = row["value"], row["low"], row["high"]
    if low == high:
        return tables.number(value)
    return f"{tables.number(value)} [{tables.number(low)}, {tables.number(high)}]"


def _cell_table(run: Run, long: pl.DataFrame, metrics: Sequence[str]) -> str:
    """One row per cell in the plan's order, one column per metric."""
    order = [cell for cell in run.cells if cell in set(long["cell"])]
    wide = long.pivot(on="metric", index="cell", values="value")
    places = pl.col("cell").replace_strict(
        {c: n for n, c in enumerate(order)}, return_dtype=pl.Int64
    )
    labels = {cell: run.cells[cell].label for cell in order}
    wide = wide.sort(places).with_columns(pl.col("cell").replace_strict(labels))
    heads = {name.replace("_", " "): name for name in metrics}
    return tables.markdown(wide, {"case": "cell", **heads}, marked=heads)


_REMOTE_EVENTS = (("local_dram", "remote_dram"), ("local_reads", "remote_reads"))


def calibration(run: Run) -> list[str]:
    """Return whether the remote-memory events can be believed, as Markdown; [] if not in question.

    Cells whose memory was proven local and remote are traffic of known kind: the events must
    count next to nothing of the first and next to all of the second as remote. Nodes of the same
    socket are asked apart from those of another: many events tell only the latter.
    """
    kinds: dict[str, list[str]] = {}
    for cell in run.cells.values():
        if cell.binding in ("local", "remote"):
            kinds.setdefault(_kind_of_traffic(run, cell), []).append(cell.id)
    if "local" not in kinds:
        return []
    said = []
    for events in _REMOTE_EVENTS:
        counts = run.measurements.filter(
            pl.col("metric").is_in(events)
            & (pl.col("source") == "perf")
            & (pl.col("grade") == VERIFIED)
        )
        known = {kind: _summed(counts, cells) for kind, cells in kinds.items()}
        for kind in [kind for kind in known if kind != "local" and known[kind] and known["local"]]:
            found = perf.calibrate(known["local"], known[kind], events)
            names = f"{' and '.join(events)}, memory {kind}"
            if found["usable"]:
                said.append(
                    f"- the remote-memory events are calibrated ({names}): "
                    f"{found['under_local']:.1%} of known-local and {found['under_remote']:.1%} "
                    "of known-remote traffic counted as remote\n"
                )
            else:
                said.append(
                    f"- the remote-memory events are unusable on this host ({names}): "
                    f"{found['reason']}\n"
                )
    return said


def _kind_of_traffic(run: Run, cell: Cell) -> str:
    """Return local, or where from the cell's CPUs its memory is: by the sockets of the nodes."""
    if cell.binding == "local":
        return "local"
    packages = [
        {one.package for one in run.host.topology.cpus if str(one.node) == node}
        for node in (cell.cpu_nodes, cell.memory.nodes)
    ]
    if any(len(found) != 1 or None in found for found in packages):
        return "of another node"
    return "of the same socket" if packages[0] == packages[1] else "of another socket"


def _summed(counts: pl.DataFrame, cells: Sequence[str]) -> dict[str, float | None]:
    sums = counts.filter(pl.col("cell").is_in(cells)).group_by("metric")
    value = pl.col("value")
    return dict(sums.agg(pl.when(value.is_not_null().any()).then(value.sum()).first()).iter_rows())


def node_traffic(run: Run) -> str:
    """Return what went between nodes in each cell, as Markdown: medians over the blocks.

    "" where nothing was counted. Rates of the whole host, but those of perf are of the measured
    processes alone.
    """
    return _median_table(
        run, _medians(run.measurements.filter(_BETWEEN_NODES & (pl.col("grade") != ERROR)))
    )


def placement(run: Run) -> str:
    """Return where memory and threads were seen, per cell, as Markdown."""
    rows = []
    proofs: dict[str, list[Proof]] = {}
    for trial in run.trials:
        for proof in _proofs(run, trial):
            proofs.setdefault(proof.cell or trial.cell, []).append(proof)
    by_cell = dict(_by_cell(run))
    apart = {
        id: tuple(dict.fromkeys((one.grade, str(one.reason or "")) for _, one in of))
        for id, of in by_cell.items()
    }
    for label, cells in rows_of((run.cells[id] for id in by_cell), apart):
        looks = [look for cell in cells for look in proofs.get(cell.id, [])]
        graded = [one for cell in cells for _, one in by_cell[cell.id]]
        grades = [one.grade for one in graded]
        rows.append(
            {
                "label": label,
                "memory": _memory_seen(cells, proofs),
                "cpus": cpulist.format({n for one in looks for n in cpulist.parse(one.cpus.seen)}),
                "grade": ", ".join(f"{grades.count(g)} {g}" for g in dict.fromkeys(grades)),
                "reason": "; ".join(dict.fromkeys(str(o.reason) for o in graded if o.reason)),
            }
        )
    if not rows:
        return "No trial was run."
    heads = {"binding": "label", "memory was on": "memory", "threads seen on CPUs": "cpus"}
    return tables.markdown(pl.DataFrame(rows), heads | {"grade": "grade", "why": "reason"})


def _memory_seen(cells: Sequence[Cell], proofs: Mapping[str, Sequence[Proof]]) -> str:
    """Each node's share of the pages; of several cells that of the nodes which each is bound to."""
    each = {one.name: one for one in cells[0].instances}
    found = [
        (each.get(one.instance or "", cell), one.memory.shares)
        for cell in cells
        for one in proofs.get(cell.id, [])
        if one.memory.shares
    ]
    if len(cells) > 1 or (each and all(one.memory.nodes for one in each.values())):
        own = [
            sum(shares.get(node, 0.0) for node in cpulist.parse(bound.memory.nodes or ""))
            for bound, shares in found
        ]
        whose = "its" if len(cells) > 1 else "each on its"
        return f"{whose} own node: {_range(own)}" if own else ""
    looks = [shares for _, shares in found]
    # A look that found memory, but none on a node, found 0 there.
    nodes = sorted({node for shares in looks for node in shares})
    return ", ".join(f"node {n}: {_range([shares.get(n, 0.0) for shares in looks])}" for n in nodes)


def proven(run: Run) -> pl.DataFrame:
    """Return where each cell's memory was found, a row per trial and node; as measurement rows.

    The metric ``placed`` in shares of 1, of the last look at each trial; points "node N", whose
    number is ``x``.
    """
    rows = []
    for trial in run.trials:
        last = {proof.cell or trial.cell: proof for proof in _proofs(run, trial)}
        for cell, proof in last.items():
            for node, share in proof.memory.shares.items():
                rows.append(
                    {
                        "metric": "placed", "unit": "share", "cell": cell, "block": trial.block,
                        "label": run.cells[cell].label, "role": run.cells[cell].role,
                        "cpu_nodes": run.cells[cell].cpu_nodes, "point": f"node {node}",
                        "x": float(node), "value": share, "grade": trial.grade, "reason": None,
                    }
                )  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


def _proofs(run: Run, trial: TrialRecord) -> list[Proof]:
    """The proofs of a trial's placement, as they were recorded."""
    if "proof" not in trial.raw:
        return []
    name = trial.raw["proof"]
    listed = store.read_json(run.folder, name)["proofs"]
    return [runs.validated(Proof, json.dumps(one).encode(), name) for one in listed]


def _range(shares: list[float]) -> str:
    low, high = f"{min(shares):.1%}", f"{max(shares):.1%}"
    return low if low == high else f"{low} to {high}"


def _by_cell(run: Run) -> list[tuple[str, list[tuple[TrialRecord, Graded]]]]:
    """The trials of each cell that has any, with what each is worth for it, in the plan's order."""
    found: dict[str, list[tuple[TrialRecord, Graded]]] = {cell: [] for cell in run.cells}
    for trial in run.trials:
        for one in trial.graded:
            found[one.cell].append((trial, one))
    return [(cell, trials) for cell, trials in found.items() if trials]


def confidence(run: Run, only: Sequence[str] | None = None) -> str:
    """Return how sure the figures are, as Markdown: A/A control, warnings, exclusions.

    ``only`` are the metrics to speak of; else all that answer the question.
    """
    metrics = list(run.measures) if only is None else list(only)
    # Of thousands of points hundreds are far from the others by chance alone.
    few = [metric for metric in metrics if len(points(run, metric)) <= _MOST_POINTS]
    parts = [
        f"- A/A control, {named(metric, point)}: {_control_words(control)}"
        for metric in few
        for point in points(run, metric)
        for control in judge.of(run.measurements, run.plan, metric, point).controls.values()
        if control.n >= BLOCKS_NEEDED
    ]
    if run.plan.request.blocks < BLOCKS_NEEDED:
        blocks = units.count(run.plan.request.blocks, "block")
        parts.append(f"- {blocks}: shown, not judged (fewer than {BLOCKS_NEEDED} decide nothing)")
    # What is counted needs no warm host and no quiet one.
    timed = [name for name in few if _unit(run, name) not in ("share", "count")]
    parts += [*_warnings(run, timed), *_exclusions(run)]
    return "\n".join(parts) or "Nothing to warn about."


def _warnings(run: Run, metrics: Sequence[str]) -> Iterator[str]:
    """Yield what is doubtful about metrics: those beyond a few of a kind only counted."""
    alike: dict[tuple[str, str], list[evidence.Warned]] = {}
    for one in evidence.warnings(run.measurements, metrics):
        if one.reason.code != "few-blocks" or run.plan.request.blocks >= BLOCKS_NEEDED:
            alike.setdefault((one.metric, one.reason.code), []).append(one)
    for (metric, kind), warnings in alike.items():
        for one in warnings[:_MOST_ALIKE]:
            label = escape.markdown(run.cells[one.cell].label) + ": " if one.cell else ""
            yield f"- {label}{named(metric, one.point)}: {escape.markdown(one.reason)}"
        if len(warnings) > _MOST_ALIKE:
            more = len(warnings) - _MOST_ALIKE
            yield f"- {named(metric)}: {more} more of this kind ({kind})"


def _unit(run: Run, metric: str) -> str:
    if metric in run.measures:
        return run.measures[metric].unit
    rows = run.tool_rows(metric)
    return "" if rows.is_empty() else str(rows["unit"][0])


def _exclusions(run: Run) -> Iterator[str]:
    """Yield what was excluded and why: a line for each cell, those beyond a few only counted."""
    cells: dict[str, list[str]] = {}
    for cell, trials in _by_cell(run):
        blocks: dict[str, list[int]] = {}
        for trial, graded in trials:
            if graded.grade == ERROR:
                blocks.setdefault(str(graded.reason), []).append(trial.block)
        for why, of in blocks.items():
            word = "block" if len(of) == 1 else "blocks"
            said = f"{word} {cpulist.format(of)}, {run.cells[cell].label}"
            cells.setdefault(why, []).append(said)
    for why, all_said in cells.items():
        for said in all_said[:_MOST_ALIKE]:
            yield f"- excluded: {escape.markdown(said)}: {escape.markdown(why)}"
        if len(all_said) > _MOST_ALIKE:
            more = units.count(len(all_said) - _MOST_ALIKE, "more binding")
            yield f"- excluded: {more} for the same reason: {escape.markdown(why)}"


def _control_words(control: judge.Effect) -> str:
    shown = tables.interval(control.ratio, control.low, control.high)
    said = (
        "the run drifted, and nothing is decided"
        if control.decision == judge.DRIFTED
        else "what differs by less is not distinguishable"
    )
    return f"{shown} over {control.n} blocks: {said}"


def witness(run: Run) -> str:
    """Return, as Markdown, what sysfs and the ``host`` experiment's witnesses say of each thing."""
    records: list[Record] = next(
        (
            drivers.driver(trial.tool.name).parse(store.read_raw(run.folder, trial.raw["stdout"]))
            for trial in run.trials
            if trial.tool.name == "host" and "stdout" in trial.raw
        ),
        [],
    )
    if not records:
        return "Neither numactl nor lscpu was there to bear witness."
    made = [
        {
            "what": what,
            "sysfs": ours,
            "witness": theirs if theirs is not None else "says nothing",
            "agree": "" if theirs is None else "yes" if ours == theirs else "no",
        }
        for node in run.host.topology.nodes
        for what, ours, theirs in _witnessed(node, records)
    ]
    heads = {"": "what", "sysfs": "sysfs", "numactl": "witness", "agree": "agree"}
    return tables.markdown(pl.DataFrame(made), heads)


def _witnessed(node: Node, records: Sequence[Record]) -> list[tuple[str, str, str | None]]:
    """What sysfs says of a node, and what a witness does (None: nothing)."""
    of_node = {one["kind"]: one for one in records if one.get("node") == node.number}
    size, cpus = (of_node.get(kind) for kind in ("node_size", "node_cpus"))
    memory = "unknown" if node.memory_bytes is None else str(node.memory_bytes >> 20)
    return [
        (f"node {node.number}: CPUs", node.cpus, str(cpus["cpus"]) if cpus else None),
        (f"node {node.number}: memory (MiB)", memory, str(size["value"]) if size else None),
        *(
            (
                f"distance {node.number} → {one['to']}",
                str(node.distances.get(one["to"], "not given")),
                str(one["value"]),
            )
            for one in records
            if one["kind"] == "distance" and one["from"] == node.number
        ),
    ]
