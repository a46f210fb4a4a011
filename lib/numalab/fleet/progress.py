"""What a person, or a script, sees of a fleet while it measures."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from numalab import asking, escape, progress
from numalab.agent.contract import GRADES, SCHEMA
from numalab.agent.trial.job import Job, Status
from numalab.fleet.record import Record

_TOOLS = {
    "cc": "a C compiler",
    "headers": "the C library's headers",
    "server": "a MySQL or MariaDB server",
}


class Progress:
    """Shows what each host does: a bar each at a terminal, lines in a log, at last JSON.

    As a context it shows the bars.
    """

    def __init__(self, hosts: list[str], settings: asking.Settings) -> None:
        self.hosts = hosts
        self.as_json = settings.as_json
        self.width = max(map(len, hosts))
        self.shown: dict[str, set[Any]] = {host: set() for host in hosts}
        self.bars: Any = None
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> Progress:
        if not self.as_json and sys.stdout.isatty():
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bars

            doing = TextColumn("{task.fields[doing]}", markup=False)
            self.bars = Bars("{task.description}", BarColumn(20), doing, transient=True)
            for host in self.hosts:
                self.tasks[host] = self.bars.add_task(host, total=None, doing="", visible=False)
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bars:
            self.bars.stop()
            self.bars = None

    def begin(self, record: Record) -> None:
        """Say what is measured where, and what was done before."""
        requests = list(record.session.requests.values())
        names = ", ".join(request.experiment for request in requests)
        self._line(f"{names} ({requests[0].profile}) on {', '.join(self.hosts)}")
        if record.begun_before:
            there = sum(len(record.runs(host)) for host in self.hosts)
            self._line(
                f"  going on with what this command began {record.session.began}: {there} of "
                f"{len(self.hosts) * len(requests)} runs are here (to measure all anew, remove "
                f"{record.folder})"
            )

    def phase(self, host: str, step: str | None, task: str) -> None:
        """Say what Ansible does on a host; ``task`` is the step's name for a reader."""
        doing = task.rpartition(": ")[2]
        if self.bars:
            self.bars.update(self.tasks[host], doing=escape.line(doing), visible=True)
        elif step == "install":
            self._once(host, doing)  # that may take a while

    def missing(self, host: str, tools: list[str]) -> None:
        """Say what a host lacks."""
        if tools:
            names = ", ".join(_TOOLS.get(tool, tool) for tool in tools)
            self._once(host, f"⚠ it lacks {names}: what needs them is skipped")

    def status(self, host: str, status: Status) -> None:
        """Say how far a host's queue is."""
        for number, job in enumerate(status.jobs, 1):
            name = job.experiment
            if job.summary:
                self._once(host, f"{name}: {job.summary}")
            for skipped in job.skipped:
                self._once(host, f"– {name}: {skipped}")
            for mark, noted in (("⚠", job.warnings), ("✗", job.errors)):
                for one in noted:
                    of = f"{one.label}: " if one.label else ""
                    self._once(host, f"{mark} {name}: {of}{one.reason}")
            if job.state == "measuring" and job.last:
                many = f"{number}/{len(status.jobs)} " if len(status.jobs) > 1 else ""
                self._trial(host, job, job.last, many)

    def _trial(self, host: str, job: Job, last: dict[str, Any], many: str) -> None:
        line = f"{many}{job.experiment} {last['trial']}/{last['of']}  {progress.trial_line(last)}"
        if self.bars:
            task = self.tasks[host]
            doing = escape.line(line)
            self.bars.update(task, total=last["of"], completed=last["trial"], doing=doing)
        elif (job.key, last["block"]) not in self.shown[host]:
            self.shown[host].add((job.key, last["block"]))
            self._line(f"{host:<{self.width}}  {line}")

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
            text = json.dumps({"schema": SCHEMA, "hosts": results}, indent=2, ensure_ascii=False)
            print(escape.terminal(text))
            return
        from numalab import runs
        from numalab.show import results as tables

        for host, result in results.items():
            self._line(f"\n{host}: {result['state']}")
            for run in result["runs"]:
                self._line(f"  {run['experiment']}: {progress.grades(run)}   {run['folder']}")
            for line in result["left_out"]:
                self._line(f"  – {line}")
            for reason in result["reasons"]:
                self._line(f"  ✗ {reason}")
            if len(result["runs"]) == 1:
                table = tables.terminal(runs.load(result["runs"][0]["folder"]))
                if table:
                    self._line(f"\n{table}")
        if any(result["runs"] for result in results.values()):
            self._line("\n→   numalab report")

    def _result(self, record: Record, host: str, reasons: list[str]) -> dict[str, Any]:
        from numalab import runs

        requests = record.session.requests
        found = []
        for key, folder in record.runs(host).items():
            grades = [trial.grade for trial in runs.load(folder).trials]
            found.append(
                {
                    "experiment": requests[key].experiment,
                    "folder": str(folder),
                    "notebook": record.host(host).notebooks.get(key),
                    **{name: grades.count(name) for name in GRADES},
                }
            )
        left_out = [
            f"{requests[key].experiment}: nothing to measure here: {reason}"
            for key, reason in record.host(host).left_out.items()
        ]
        state = "complete" if not reasons else "failed"
        return {"state": state, "reasons": reasons, "left_out": left_out, "runs": found}

    def _once(self, host: str, text: str) -> None:
        if text not in self.shown[host]:
            self.shown[host].add(text)
            self._line(f"{host:<{self.width}}  {text}")

    def _line(self, text: str) -> None:
        if self.as_json:
            return
        if self.bars:
            self.bars.console.print(escape.terminal(text), markup=False, highlight=False)
        else:
            print(escape.terminal(text), flush=True)
