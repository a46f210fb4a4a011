"""What sysfs and the witnesses of the ``host`` experiment say of each node."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from numalab import store, tables
from numalab.agent import drivers
from numalab.agent.contract import Node, Record
from numalab.runs import Run


def markdown(run: Run) -> str:
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
