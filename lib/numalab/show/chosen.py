"""The runs that an article is over, and the names and order of their hosts."""

from __future__ import annotations

from collections.abc import Sequence

from numalab.agent.contract import MEASURED, HostRecord
from numalab.runs import Run
from numalab.show import badge


class Chosen:
    """Runs in the order in which an article tells them: those of machines first."""

    def __init__(self, chosen: Sequence[Run]) -> None:
        self.runs = sorted(chosen, key=lambda run: run.host.emulated)  # stable
        self.records: dict[str, HostRecord] = {run.manifest.host: run.host for run in self.runs}
        self._badges = {run.manifest.host: badge.of(run) for run in self.runs}

    def hosts(self) -> list[str]:
        """Return the names of the hosts: machines first, then by the number of their nodes."""
        return sorted(self.records, key=lambda host: (self.emulated(host), self.size(host)))

    def size(self, host: str) -> int:
        """Return how many nodes a host shows."""
        return len(self.records[host].topology.nodes)

    def emulated(self, host: str) -> bool:
        """Return whether a host is emulated."""
        return self.records[host].emulated

    def badge(self, host: str) -> str:
        """Return the badge of what was found on a host."""
        return self._badges[host]

    def named(self, host: str) -> str:
        """Return a host's name, with the badge of its evidence unless that is measured."""
        kind = self._badges[host]
        return host if kind == MEASURED else f"{host} ({kind})"

    def where(self, run: Run, *, marked: bool = False) -> str:
        """Return a run's host; with its server where the host measured the same with another."""
        host = run.manifest.host
        alike = [other for other in self.runs if other.subject[:2] == run.subject[:2]]
        name = self.named(host) if marked else host
        return f"{name}, {run.server}" if run.server and len(alike) > 1 else name

    def of(self, experiment: str) -> list[Run]:
        """Return the runs of an experiment, one per host and server, in the order of the hosts."""
        order = {host: place for place, host in enumerate(self.hosts())}
        found = [run for run in self.runs if run.manifest.experiment == experiment]
        return sorted(found, key=lambda run: order[run.manifest.host])


def listed(words: Sequence[str]) -> str:
    """Return words as a sentence lists them: a, b and c."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
