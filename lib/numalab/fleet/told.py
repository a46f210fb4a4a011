"""What a person, or a script, is told while a fleet measures."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numalab.agent.trial import journal
from numalab.fleet.record import Record

if TYPE_CHECKING:
    from numalab import session

_TOOLS = {
    "cc": "a C compiler",
    "headers": "the C library's headers",
    "server": "a MySQL or MariaDB server",
}


class Show:
    """Tells of each host what it does: a bar each at a terminal, lines in a log, at last JSON.

    As a context it shows the bars.
    """

    def __init__(self, hosts: list[str], settings: session.Settings) -> None:
        self.hosts = hosts
        self.as_json = settings.as_json
        self.width = max(map(len, hosts))
        self.said: dict[str, set[Any]] = {host: set() for host in hosts}
        self.bars: Any = None
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> Show:
        if not self.as_json and sys.stdout.isatty():
            from rich.progress import BarColumn, Progress, TextColumn

            said = TextColumn("{task.fields[said]}")
            self.bars = Progress("{task.description}", BarColumn(20), said, transient=True)
            for host in self.hosts:
                self.tasks[host] = self.bars.add_task(host, total=None, said="", visible=False)
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bars:
            self.bars.stop()
            self.bars = None

    def begin(self, record: Record) -> None:
        """Say what is measured where, and what was done before."""
        requests = list(record.data["requests"].values())
        names = ", ".join(request["experiment"] for request in requests)
        self._line(f"{names} ({requests[0]['profile']}) on {', '.join(self.hosts)}")
        if record.begun_before:
            there = sum(len(record.runs(host)) for host in self.hosts)
            self._line(
                f"  going on with what this command began {record.data['began']}: {there} of "
                f"{len(self.hosts) * len(requests)} runs are here (to measure all anew, remove "
                f"{record.folder})"
            )

    def phase(self, host: str, task: str) -> None:
        """Say what Ansible does on a host."""
        said = task.rpartition(": ")[2]
        if self.bars:
            self.bars.update(self.tasks[host], said=said, visible=True)
        elif said.startswith("installing"):
            self._once(host, said)  # that may take a while

    def missing(self, host: str, tools: list[str]) -> None:
        """Say what a host lacks."""
        if tools:
            names = ", ".join(_TOOLS.get(tool, tool) for tool in tools)
            self._once(host, f"⚠ it lacks {names}: what needs them is left out and says so")

    def status(self, host: str, status: dict[str, Any]) -> None:
        """Say how far a host's queue is."""
        from numalab import session

        for number, job in enumerate(status["jobs"], 1):
            name = job["experiment"]
            if job["summary"]:
                self._once(host, f"{name}: {job['summary']}")
            for line in job["skipped"]:
                self._once(host, f"– {name}: {line}")
            for line in job["warnings"]:
                self._once(host, f"⚠ {name}: {line}")
            for line in job["errors"]:
                self._once(host, f"✗ {name}: {line}")
            last = job["last"]
            if job["state"] == "measuring" and last:
                many = f"{number}/{len(status['jobs'])} " if len(status["jobs"]) > 1 else ""
                said = f"{many}{name} {last['trial']}/{last['of']}  {session.said(last)}"
                if self.bars:
                    task = self.tasks[host]
                    self.bars.update(task, total=last["of"], completed=last["trial"], said=said)
                elif (name, last["block"]) not in self.said[host]:
                    self.said[host].add((name, last["block"]))
                    self._line(f"{host:<{self.width}}  {said}")

    def failed(self, host: str, reason: str) -> None:
        """Say that a host is out."""
        self._once(host, f"✗ {reason}")
        if self.bars:
            self.bars.update(self.tasks[host], visible=False)

    def concluding(self, host: str, folder: Path) -> None:
        """Say that a run's tables and notebook are being made."""
        self._once(host, f"{folder.name} has arrived")

    def interrupted(self) -> None:
        """Say what goes on on the hosts, and how to fetch or end it."""
        self.__exit__()
        how = ""
        if sys.argv[1:2] == ["run"]:
            how = f"; to stop them: {shlex.join(['numalab', *sys.argv[1:]])} --stop"
        print(
            f"the hosts go on measuring. The same command fetches their results{how}",
            file=sys.stderr,
        )

    def end(self, record: Record, failures: dict[str, list[str]]) -> None:
        """Say what came of each host."""
        results = {host: self._result(record, host, failures.get(host, [])) for host in self.hosts}
        if self.as_json:
            print(json.dumps({"schema": 1, "hosts": results}, indent=2, ensure_ascii=False))
            return
        from numalab import runs, session
        from numalab.analysis import results as tables

        for host, result in results.items():
            print(f"\n{host}: {result['state']}")
            for run in result["runs"]:
                print(f"  {run['experiment']}: {session.grades(run)}   {run['folder']}")
            for line in result["left_out"]:
                print(f"  – {line}")
            for reason in result["reasons"]:
                print(f"  ✗ {reason}")
            if len(result["runs"]) == 1:
                table = tables.terminal(runs.load(result["runs"][0]["folder"]))
                if table:
                    print(f"\n{table}")
        if any(result["runs"] for result in results.values()):
            print("\n→   numalab report")

    def _result(self, record: Record, host: str, reasons: list[str]) -> dict[str, Any]:
        found = []
        for key, folder in record.runs(host).items():
            grades = [one["grade"] for one in journal.read(folder / "journal.ndjson")]
            found.append(
                {
                    "experiment": record.data["requests"][key]["experiment"],
                    "folder": str(folder),
                    "notebook": record.notebooks(host).get(key),
                    **{name: grades.count(name) for name in ("verified", "unverified", "error")},
                }
            )
        left_out = [
            f"{record.data['requests'][key]['experiment']}: nothing to measure here: {reason}"
            for key, reason in record.left_out(host).items()
        ]
        state = "complete" if not reasons else "failed"
        return {"state": state, "reasons": reasons, "left_out": left_out, "runs": found}

    def _once(self, host: str, text: str) -> None:
        if text not in self.said[host]:
            self.said[host].add(text)
            self._line(f"{host:<{self.width}}  {text}")

    def _line(self, text: str) -> None:
        if self.as_json:
            return
        if self.bars:
            self.bars.console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)
