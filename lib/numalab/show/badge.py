"""The badge that travels with a figure: what kind of evidence it is."""

from __future__ import annotations

from collections.abc import Iterable

from numalab import escape
from numalab.agent.contract import CONFIGURED, COUNTED, MEASURED, PUBLISHED
from numalab.runs import Run

MEANING = {
    MEASURED: "measured",
    COUNTED: "counted on an emulated host: its times mean nothing",
    CONFIGURED: "configured: its times are those of the memory model",
    PUBLISHED: "published by others, not verified here",
}


def of(run: Run) -> str:
    """Return a run's badge; whatever it says of itself, nothing on an emulated host is measured."""
    if run.host.emulated and run.evidence == MEASURED:
        return COUNTED
    return run.evidence


def mark(kind: str) -> str:
    """Return a badge for within a sentence, as a span that a page colours."""
    return f'<span class="evidence {kind}">{kind}</span>'


def line(runs: Iterable[Run]) -> str:
    """Return, as a line of Markdown for below a table, what kind of evidence each run is."""
    hosts: dict[str, list[str]] = {}
    for run in runs:
        found = hosts.setdefault(of(run), [])
        if run.manifest.host not in found:
            found.append(run.manifest.host)
    if len(hosts) == 1:
        return f"*{MEANING[next(iter(hosts))].capitalize()}.*"
    said = [f"{', '.join(map(escape.markdown, on))}: {MEANING[kind]}" for kind, on in hosts.items()]
    return f"*{'; '.join(said)}.*"
