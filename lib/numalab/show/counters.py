"""What was counted in each cell, as Markdown: medians over the blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from numalab import escape, tables
from numalab.agent.collectors import memory_model, perf
from numalab.agent.contract import ERROR, VERIFIED, Cell
from numalab.analysis import evidence
from numalab.runs import Run


def markdown(run: Run) -> str:
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


def node_traffic(run: Run) -> str:
    """Return what went between nodes in each cell, as Markdown: medians over the blocks.

    "" where nothing was counted. Rates of the whole host, but those of perf are of the measured
    processes alone.
    """
    return _median_table(
        run, _medians(run.measurements.filter(_BETWEEN_NODES & (pl.col("grade") != ERROR)))
    )


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
