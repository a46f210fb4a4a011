"""Plain lists for the terminal: experiments, runs, parsed records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numalab import escape, experiments, home
from numalab.agent.errors import Fault


def experiment_rows() -> list[dict[str, Any]]:
    """Return one row per experiment: name, question, profiles."""
    found = [experiments.load(name) for name in experiments.names()]
    return [
        {"experiment": one.name, "profiles": " ".join(one.profiles), "question": one.question}
        for one in found
    ]


def run_rows() -> list[dict[str, Any]]:
    """Return one row per run directory: host, run, profile, status, path."""
    from numalab import runs

    rows = []
    for folder in home.find_runs():
        row = {"host": folder.parent.name, "run": folder.name, "profile": "", "status": ""}
        try:
            manifest = runs.read_manifest(folder)
            row |= {"profile": manifest.profile, "status": manifest.status}
        except Fault as fault:
            row["status"] = f"damaged: {fault}"
        rows.append({**row, "path": str(folder)})
    return rows


def records(rows: Sequence[dict[str, Any]], width: int) -> str:
    """Return parsed records as text: one table per kind of record."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        rest = {key: value for key, value in row.items() if key != "kind"}
        kinds.setdefault(row.get("kind", "record"), []).append(rest)
    parts = [f"{kind}\n{text(of_kind, width)}" for kind, of_kind in kinds.items()]
    return "\n\n".join(parts) or "no records"


def text(rows: Sequence[dict[str, Any]], width: int) -> str:
    """Return rows as an aligned table; the last column wraps nowhere and may run long.

    A table too wide for the terminal becomes one ``key: value`` block per row.
    """
    if not rows:
        return "none"
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_shown(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in [columns, *cells]) for i in range(len(columns))]
    if sum(widths[:-1]) + 2 * len(widths) > width and len(columns) > 3:
        return "\n".join(
            "  ".join(f"{c}: {v}" for c, v in zip(columns, line, strict=True) if v not in ("–", ""))
            for line in cells
        )
    right = [
        all(isinstance(row.get(column), (int, float, type(None))) for row in rows)
        for column in columns
    ]
    lines = [
        [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, right, strict=True)
        ]
        for line in [columns, *cells]
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:g}" if abs(value) < 1e5 else f"{value:.1f}"
    if isinstance(value, (list, tuple)):
        return " ".join(_shown(item) for item in value)
    return escape.line(value)
