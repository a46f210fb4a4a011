"""Plain lists for the terminal: experiments, runs, parsed records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from numalab import experiments, home
from numalab.agent.errors import Fault


def experiment_rows() -> list[dict[str, Any]]:
    """Return one row per experiment: name, question, profiles."""
    rows = []
    for name in experiments.names():
        loaded = experiments.load(name)
        rows.append(
            {
                "experiment": name,
                "profiles": " ".join(loaded.profiles),
                "question": loaded.question,
            }
        )
    return rows


def run_rows() -> list[dict[str, Any]]:
    """Return one row per run directory: host, run, profile, status, path."""
    from numalab.agent.trial import journal

    rows = []
    for folder in home.find_runs():
        row = {"host": folder.parent.name, "run": folder.name, "profile": "", "status": ""}
        try:
            manifest = journal.read_json(folder / "manifest.json")
            row |= {"profile": manifest["profile"], "status": manifest["status"]}
        except (Fault, KeyError) as error:
            row["status"] = f"damaged: {error}"
        rows.append({**row, "path": str(folder)})
    return rows


def records(rows: Sequence[dict[str, Any]], width: int) -> str:
    """Return parsed records as text: one table per kind of record."""
    parts = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        of_kind = [
            {key: value for key, value in row.items() if key != "kind"}
            for row in rows
            if row["kind"] == kind
        ]
        parts.append(f"{kind}\n{text(of_kind, width)}")
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
        return "\n".join(_block(columns, line) for line in cells)
    numeric = [
        all(isinstance(row.get(column), (int, float, type(None))) for row in rows)
        for column in columns
    ]
    return "\n".join(_line(line, widths, numeric) for line in [columns, *cells])


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:g}" if abs(value) < 1e5 else f"{value:.1f}"
    if isinstance(value, (list, tuple)):
        return " ".join(_shown(item) for item in value)
    return str(value)


def _line(cells: Iterable[str], widths: list[int], numeric: list[bool]) -> str:
    aligned = (
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, numeric, strict=True)
    )
    return "  ".join(aligned).rstrip()


def _block(columns: list[str], cells: list[str]) -> str:
    shown = [f"{c}: {v}" for c, v in zip(columns, cells, strict=True) if v not in ("–", "")]
    return "  ".join(shown)
