"""Where the memory and the threads of each cell were seen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import polars as pl

from numalab import runs, store, tables
from numalab.agent import cpulist
from numalab.agent.contract import Cell, Proof, TrialRecord
from numalab.runs import Run
from numalab.show.results import rows_of


def placement(run: Run) -> str:
    """Return where memory and threads were seen, per cell, as Markdown."""
    rows = []
    proofs: dict[str, list[Proof]] = {}
    for trial in run.trials:
        for proof in _proofs(run, trial):
            proofs.setdefault(proof.cell or trial.cell, []).append(proof)
    by_cell = run.graded
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
