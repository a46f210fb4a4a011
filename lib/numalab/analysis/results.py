"""A run's results as tables: one frame for the terminal, the notebooks and the article."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from numalab import store
from numalab.agent import cpulist, drivers
from numalab.agent.collectors import perf
from numalab.agent.trial import journal
from numalab.analysis import statistics
from numalab.runs import Run
from numalab.show import tables

_DECISIONS = {
    statistics.EFFECT: "different from {baseline}",
    statistics.NO_EFFECT: "not distinguishable from {baseline}",
    statistics.TOO_FEW: "too few blocks to decide",
    statistics.NO_CONTROL: "no A/A control to decide by",
    statistics.CONTROL: "A/A control: what chance alone does here",
}

_MOST_ALIKE = 4  # warnings of one kind about one metric; more are counted


def points(run: Run, metric: str) -> list[str]:
    """Return the points a metric was measured at, in the order of their x; [""] for a scalar."""
    rows = run.tool_rows(metric).select("point", "x").unique(maintain_order=True).sort("x")
    return rows["point"].unique(maintain_order=True).to_list()


def table(run: Run, metric: str, point: str = "", load: str | None = None) -> pl.DataFrame:
    """Return one row per cell: label, threads, n, mean with interval, ratio with interval, said.

    Columns: cell, label, role, threads, n, mean, low, high, unit, ratio, ratio_low, ratio_high,
    decision (of ``statistics.effect``) and said (the decision in words, with what was excluded).
    Cells stand in the order of the plan. On an emulated host a time or a speed has no ratio. Fewer
    than six values have no interval here: they could decide nothing, and an interval of two points
    would only look like knowledge. ``load`` chooses the cells under one load (``threads=2``);
    without it all but the copies of a sweep are there.
    """
    rows, ratios = compared(run, metric, point, load)
    summary = statistics.summarise(rows)
    ratios = ratios.select(
        "cell",
        "ratio",
        "decision",
        "reason",
        pl.col("low").alias("ratio_low"),
        pl.col("high").alias("ratio_high"),
    )
    order = {cell: place for place, cell in enumerate(run.cells)}
    joined = summary.join(ratios, on="cell", how="left").sort(
        pl.col("cell").replace_strict(order, return_dtype=pl.Int64)
    )
    said = [_said(run, row) for row in joined.iter_rows(named=True)]
    real = pl.Series([_real(run, row) for row in joined.iter_rows(named=True)], dtype=pl.Boolean)
    enough = pl.col("n") >= statistics.BLOCKS_NEEDED
    intervals = ("low", "high", "ratio_low", "ratio_high")
    judged = ("ratio", "ratio_low", "ratio_high", "decision")
    return joined.with_columns(
        pl.Series("said", said, pl.String),
        *(pl.when(enough).then(pl.col(name)).alias(name) for name in intervals),
    ).with_columns(
        pl.when(real).then(pl.col(name)).alias(name) for name in judged
    ).select(
        "cell", "label", "role", "threads", "n", "n_error", "mean", "low", "high", "unit",
        "ratio", "ratio_low", "ratio_high", "decision", "said",
    )  # fmt: skip


def compared(
    run: Run, metric: str, point: str = "", load: str | None = None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return a metric's rows under one load (see ``table``), and their ratios.

    The A/A control belongs to the plain load; the ratios of the others carry its interval too.
    """
    rows = run.binding_rows(metric, point)
    if load is None:
        return rows, statistics.ratios(rows)
    mine = pl.col("cell").is_in(run.load_cells(load))
    every = run.tool_rows(metric, point)
    return every.filter(mine), statistics.ratios(every).filter(mine)


def _real(run: Run, row: dict) -> bool:
    return not run.host["emulated"] or statistics.real_when_emulated(
        row["source"], row["metric"], row["unit"], row["tool"]
    )


def _said(run: Run, row: dict) -> str:
    parts = []
    if not _real(run, row):
        parts.append("emulated: no time means anything")
    elif row["baseline"] is not None:
        baseline = run.cells[row["baseline"]]["label"]
        words = _DECISIONS.get(row["decision"], row["reason"] or "")
        parts.append(words.format(baseline=baseline))
    if row["n_error"]:
        parts.append(f"{row['n_error']} excluded")
    if row["n_unverified"]:
        parts.append(f"{row['n_unverified']} unverified")
    return "; ".join(part for part in parts if part)


def overview(run: Run, metrics: Sequence[str], load: str = "") -> str:
    """Return several metrics' means per binding as one Markdown table; best of the first on top.

    Where the first metric has points (instances of a server), each has a row, in their order. A
    metric of which no trial has a value is named below the table, with the reason.
    """
    rows = run.measurements.filter(
        pl.col("metric").is_in(list(metrics)) & pl.col("cell").is_in(run.load_cells(load))
    )
    means = statistics.summarise(rows).filter(pl.col("mean").is_not_null())
    means = means.sort("source", descending=True).unique(  # the tool's own before a collector's
        ["metric", "cell", "point"], keep="first", maintain_order=True
    )
    lines, columns, frame = [], {}, None
    for name in metrics:
        mine = means.filter(pl.col("metric") == name)
        if mine.is_empty():
            why = statistics.why_missing(run.measurements, name)
            lines.append(f"- not measured: {title(name)}{f' ({why})' if why else ''}")
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
        label=pl.col("cell").replace_strict({name: c["label"] for name, c in run.cells.items()})
    )
    heads = {"binding": "label"}
    if (frame["point"] != "").any():
        order = {name: place for place, name in enumerate(run.cells)}
        frame = frame.sort(pl.col("cell").replace_strict(order), "point")
        heads["instance"] = "point"
    else:
        first = next(iter(columns.values()))
        better = run.measures.get(first, {}).get("better", "higher")
        frame = frame.sort(first, descending=better == "higher", nulls_last=True)
    return "\n".join([tables.markdown(frame, heads | columns), *lines])


def markdown(run: Run, metric: str, point: str = "", load: str | None = None) -> str:
    """Return ``table`` as Markdown, with the unit in the heading."""
    frame = table(run, metric, point, load)
    if frame.is_empty():
        return f"No trial measured {metric}."
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
    own = any("threads" in (cell.get("options") or {}) for cell in run.cells.values())
    return "threads" if own or not any(c.get("options") for c in run.cells.values()) else "CPUs"


def _in(unit: str) -> str:
    """A unit as a heading shows it: " (ms)"; nothing for a bare number."""
    return "" if unit in ("1", "") else f" ({unit})"


def title(metric: str, point: str = "") -> str:
    """Return a metric's name for people: ``idle_latency`` is "idle latency"."""
    return tables.plain(metric) + (f", {point}" if point else "")


def terminal(run: Run) -> str:
    """Return the results as text for the terminal: a table per metric and point that was asked."""
    parts = []
    for metric in run.measures:
        at = points(run, metric)
        if len(at) <= 12:  # the hundreds of pairs of cores are for the picture
            parts += [_terminal_table(run, metric, point) for point in at]
    return "\n\n".join(part for part in parts if part)


def _terminal_table(run: Run, metric: str, point: str) -> str:
    frame = table(run, metric, point)
    if frame.is_empty():
        return ""
    unit = frame["unit"][0]
    name = title(metric, point) + ("" if unit == "1" else f" {unit}")
    lines = [("binding", name, "ratio", "")]
    for row in frame.iter_rows(named=True):
        value = tables.number(row["mean"])
        if row["low"] is not None:
            value += f" ± {tables.number((row['high'] - row['low']) / 2, 2)}"
        ratio = tables.interval(row["ratio"], row["ratio_low"], row["ratio_high"])
        swept = run.cells[row["cell"]].get("sweep")
        shown = "1" if row["role"] == "baseline" and not swept else ratio
        lines.append((row["label"], value, shown, row["said"]))
    widths = [max(len(line[place]) for line in lines) for place in range(3)]
    a, b, c = widths
    return "\n".join(
        f"{line[0]:<{a}}  {line[1]:>{b}}  {line[2]:<{c}}  {line[3]}".rstrip() for line in lines
    )


def counters(run: Run) -> str:
    """Return the counters' medians per binding as Markdown; what is missing is named once."""
    rows = run.measurements.filter(
        pl.col("source").is_in(["perf", "numastat", "vmstat", "resctrl"])
        & (pl.col("grade") != "error")
    )
    if rows.is_empty():
        return "No counters were collected in this run."
    named = rows.with_columns(
        name=pl.concat_str(
            pl.col("metric"),
            pl.when(pl.col("point") != "").then(" " + pl.col("point")).otherwise(pl.lit("")),
        )
    )
    medians = named.group_by("source", "name", "unit", "cell", maintain_order=True).agg(
        pl.col("value").median(), pl.col("reason").drop_nulls().first()
    )
    measured = medians.filter(pl.col("value").is_not_null())
    moving = measured.group_by("name").agg(pl.col("value").abs().max().alias("most"))
    shown = measured.join(moving.filter(pl.col("most") > 0), on="name", how="semi")
    parts = []
    if not shown.is_empty():
        order = [cell for cell in run.cells if cell in set(shown["cell"])]
        wide = shown.pivot(on="cell", index=["source", "name", "unit"], values="value")
        columns = {"source": "source", "counter": "name", "unit": "unit"}
        columns |= {run.cells[cell]["label"]: cell for cell in order}
        parts.append(tables.markdown(wide, columns))
    # A quotient of counters that are missing has no reason of its own to tell.
    absent = medians.filter(
        pl.col("value").is_null() & ~pl.col("reason").str.ends_with(" has no value")
    )
    for reason, group in absent.group_by("reason", maintain_order=True):
        names = ", ".join(group["name"].unique(maintain_order=True).to_list())
        parts.append(f"- not counted here: {names}: {reason[0]}\n")
    parts += calibration(run)
    return "\n".join(parts) or "Every counter stood still."


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
        & (pl.col("grade") != "error")
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
        pl.col("metric").is_in(metrics)
        & (pl.col("source") == "tool")
        & (pl.col("grade") != "error")
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
        return f"No trial of this run measured {', '.join(metrics)}."
    shown = [name for name in metrics if name in set(texts["metric"])]
    sized = set(rows.filter(in_mib)["metric"])
    headings = {name: f"{name} (MiB)" if name in sized else name for name in shown}
    text = _cell_table(
        run, texts.with_columns(pl.col("metric").replace(headings)), list(headings.values())
    )
    absent = rows.filter(pl.col("value").is_null()).group_by("cell", "reason", maintain_order=True)
    for (cell, reason), group in absent:
        names = ", ".join(group["metric"].unique(maintain_order=True).to_list())
        text += f"- {run.cells[cell]['label']}: no {names.replace('_', ' ')}: {reason}\n"
    return text


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
    labels = {cell: run.cells[cell]["label"] for cell in order}
    wide = wide.sort(places).with_columns(pl.col("cell").replace_strict(labels))
    return tables.markdown(
        wide, {"case": "cell", **{name.replace("_", " "): name for name in metrics}}
    )


def calibration(run: Run) -> list[str]:
    """Return whether the remote-memory events can be believed, as Markdown; [] if not in question.

    Cells whose memory was proven local and remote are traffic of known kind: the events must
    count next to nothing of the first and next to all of the second as remote.
    """
    counts = run.measurements.filter(
        pl.col("metric").is_in(["local_dram", "remote_dram"])
        & (pl.col("source") == "perf")
        & (pl.col("grade") == "verified")
    )
    known = {}
    for binding in ("local", "remote"):
        rows = counts.filter(pl.col("binding") == binding)
        if not any(cell["binding"] == binding for cell in run.cells.values()) or rows.is_empty():
            return []
        sums = rows.group_by("metric").agg(
            pl.when(pl.col("value").is_not_null().any()).then(pl.col("value").sum()).first()
        )
        known[binding] = dict(sums.iter_rows())
    found = perf.calibrate(known["local"], known["remote"])
    if found["usable"]:
        return [
            f"- the remote-memory events are calibrated: {found['under_local']:.1%} of known-local "
            f"and {found['under_remote']:.1%} of known-remote traffic counted as remote\n"
        ]
    return [f"- the remote-memory events are unusable on this host: {found['reason']}\n"]


def placement(run: Run) -> str:
    """Return where memory and threads were seen, per cell, as Markdown."""
    rows = []
    for cell, records in _by_cell(run):
        looks: list[dict[str, float]] = []
        seen: set[int] = set()
        for record in records:
            if "placement" not in record["raw"]:
                continue
            recorded = store.read_json(run.folder, record["raw"]["placement"])
            for proof in recorded["proofs"]:
                looks.append((proof.get("memory") or {}).get("shares") or {})
                seen |= set(cpulist.parse((proof.get("cpus") or {}).get("seen") or ""))
        # A look that found memory, but none on a node, found 0 there.
        nodes = sorted({node for look in looks for node in look}, key=int)
        shares = {node: [look.get(node, 0.0) for look in looks if look] for node in nodes}
        graded = [record["grade"] for record in records]
        reasons = dict.fromkeys(record["reason"] for record in records if record["reason"])
        rows.append(
            {
                "label": run.cells[cell]["label"],
                "memory": ", ".join(
                    f"node {node}: {_range(values)}" for node, values in shares.items()
                ),
                "cpus": cpulist.format(seen),
                "grade": ", ".join(f"{graded.count(g)} {g}" for g in dict.fromkeys(graded)),
                "reason": "; ".join(reasons),
            }
        )
    if not rows:
        return "No trial was run."
    heads = {"binding": "label", "memory was on": "memory", "threads seen on CPUs": "cpus"}
    return tables.markdown(pl.DataFrame(rows), heads | {"grade": "grade", "why": "reason"})


def _range(shares: list[float]) -> str:
    low, high = f"{min(shares):.1%}", f"{max(shares):.1%}"
    return low if low == high else f"{low} to {high}"


def _by_cell(run: Run) -> list[tuple[str, list[dict]]]:
    records = journal.read(run.folder / "journal.ndjson")
    return [
        (cell, [record for record in records if record["cell"] == cell])
        for cell in run.cells
        if any(record["cell"] == cell for record in records)
    ]


def confidence(run: Run, only: Sequence[str] | None = None) -> str:
    """Return how sure the figures are, as Markdown: A/A control, warnings, exclusions.

    ``only`` are the metrics to speak of; else all that answer the question.
    """
    parts = []
    metrics = list(run.measures) if only is None else list(only)
    for metric in metrics:
        for point in points(run, metric):
            control = statistics.aa_interval(run.measurements, metric, point)
            if control.n >= statistics.BLOCKS_NEEDED:
                parts.append(
                    f"- A/A control, {title(metric, point)}: "
                    f"{tables.interval(control.ratio, control.low, control.high)} "
                    f"over {control.n} blocks: what differs by less is not distinguishable"
                )
    warnings = statistics.warnings(run.measurements.filter(pl.col("source") == "tool"), metrics)
    for (metric, kind), group in warnings.group_by("metric", "kind", maintain_order=True):
        for row in group.head(_MOST_ALIKE).iter_rows(named=True):
            label = run.cells[row["cell"]]["label"] + ": " if row["cell"] else ""
            parts.append(f"- {label}{title(row['metric'], row['point'])}: {row['text']}")
        if group.height > _MOST_ALIKE:
            more = group.height - _MOST_ALIKE
            parts.append(f"- {title(metric)}: {more} more warnings of this kind ({kind})")
    for cell, records in _by_cell(run):
        for record in records:
            if record["grade"] == "error":
                label = run.cells[cell]["label"]
                parts.append(f"- excluded: block {record['block']}, {label}: {record['reason']}")
    return "\n".join(parts) or "Nothing to warn about."


def witness(run: Run) -> str:
    """Return, as Markdown, what sysfs and the ``host`` experiment's witnesses say of each thing."""
    records = next(
        (
            driver.parse(store.read_raw(run.folder, record["raw"]["stdout"]))
            for record in journal.read(run.folder / "journal.ndjson")
            for driver in [drivers.driver(record["tool"]["name"])]
            if record["tool"]["name"] == "host"
        ),
        [],
    )
    shape = run.host["topology"]
    rows = []
    for node in shape["nodes"]:
        number = node["node"]
        of_node = {r["kind"]: r for r in records if r.get("node") == number}
        size, cpus = of_node.get("node_size"), of_node.get("node_cpus")
        memory = node["memory_bytes"]
        rows += [
            (f"node {number}: CPUs", node["cpus"], cpus and cpus["cpus"]),
            (
                f"node {number}: memory (MiB)",
                "unknown" if memory is None else str(memory >> 20),
                size and str(size["value"]),
            ),
        ]
        rows += [
            (
                f"distance {number} → {r['to']}",
                str(node["distances"].get(str(r["to"]), "not given")),
                str(r["value"]),
            )
            for r in records
            if r["kind"] == "distance" and r["from"] == number
        ]
    if not records:
        return "Neither numactl nor lscpu was there to bear witness."
    made = [
        {
            "what": what,
            "sysfs": ours,
            "witness": theirs if theirs is not None else "says nothing",
            "agree": "" if theirs is None else "yes" if ours == theirs else "no",
        }
        for what, ours, theirs in rows
    ]
    heads = {"": "what", "sysfs": "sysfs", "numactl": "witness", "agree": "agree"}
    return tables.markdown(pl.DataFrame(made), heads)
