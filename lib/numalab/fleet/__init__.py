"""Measuring on a fleet: hosts of an Ansible inventory, each at its own pace.

Ansible does the distributing (``fleet/run.yml``); the agent measures on each host, detached from
the connection (``agent/trial/job.py``). Here: what was asked and how far each host is (``record``),
the playbook and its events (``ansible``), the arrival of results (``receive``), and what is shown
meanwhile (``progress``).
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numalab import agent_archive, home, launch
from numalab.agent.contract import SCHEMA, Request, dumps, from_json, to_json
from numalab.agent.errors import Fault
from numalab.agent.trial.job import Order, OrderedRequest, Status
from numalab.fleet import ansible
from numalab.fleet.progress import Progress
from numalab.fleet.record import Record, key_of

if TYPE_CHECKING:
    from numalab import asking

Reasons = dict[str, list[str]]
_ORDER_LIMIT = 128 * 1024 - 4096  # one argument of a command (execve(2)), less what else is in it


class Failed(Fault):
    """Some hosts failed: ``failures`` holds their reasons, ``runs`` what was measured all the same.

    ``runs`` is as ``run`` returns it.
    """

    def __init__(self, hosts: int, runs: dict[str, list[Path]], failures: Reasons) -> None:
        super().__init__(
            f"{len(failures)} of {hosts} hosts failed: {', '.join(failures)}",
            "The same command again completes what is missing",
        )
        self.runs = runs
        self.failures = failures


def inventories() -> list[Path]:
    """Return the inventories used where none is named: the user's own, and the lab's guests'."""
    root = home.root()
    known = [root / "fleet" / "inventory.yml", home.build() / "lab" / "inventory.yml"]
    return [path for path in known if path.is_file()]


def run(
    asked: Sequence[asking.Asked],
    group: str,
    inventories: Sequence[Path],
    settings: asking.Settings,
    *,
    seed: int | None = None,
) -> dict[str, list[Path]]:
    """Measure requests on every host of a group; return the run directories of each host.

    ``group`` is any Ansible host pattern, ``inventories`` the inventories (none: those of the
    user's Ansible configuration). A host's name in the results is its name in the inventory. The
    same call again completes what failed or was interrupted, with the seeds of the first; a
    ``seed`` that was asked for is part of what makes a call the same. Tables are built and
    notebooks executed here. Raises Failed when all is done but some hosts failed, Fault when
    nothing could be begun.
    """
    there = ansible.hosts(group, inventories)
    record = Record(_command(asked, group, inventories, settings, seed))
    with record.opened([one.request for one in asked], there):
        hosts = list(record.session.hosts)
        progress = Progress(hosts, settings)
        progress.begin(record)
        failures = _measure(record, there, inventories, settings, progress)
        for host in set(hosts) - set(there):
            if record.missing(host):
                failures[host] = ["the inventory no longer names it"]
        _conclude(record, asked, failures, settings, progress)
        runs = {host: list(record.runs(host).values()) for host in hosts}
        progress.end(record, failures)
        if failures:
            raise Failed(len(hosts), runs, failures)
        record.close()
    return runs


def stop(
    asked: Sequence[asking.Asked],
    group: str,
    inventories: Sequence[Path],
    settings: asking.Settings,
    *,
    seed: int | None = None,
) -> dict[str, str]:
    """Stop in order what the same call of ``run`` left running; return what came of it by host.

    What was measured stays on the hosts: the same call of ``run`` completes it.
    """
    record = Record(_command(asked, group, inventories, settings, seed))
    hosts = ansible.hosts(group, inventories)
    outcome = dict.fromkeys(hosts, "no answer")

    def note(event: ansible.Event) -> None:
        if event["kind"] == "ok":
            outcome[event["host"]] = (event["stdout"] or "").strip()
        elif event["kind"] in ansible.FAILED:
            outcome[event["host"]] = _reason(event)

    variables = {"numalab_hosts": ",".join(hosts), "numalab_session": record.session.session}
    ansible.play("stop.yml", inventories, variables, note, record.folder, len(hosts))
    return outcome


def _command(
    asked: Sequence[asking.Asked],
    group: str,
    inventories: Sequence[Path],
    settings: asking.Settings,
    seed: int | None,
) -> dict[str, Any]:
    """What makes two commands the same."""
    drawn = {"host"} if seed is not None else {"host", "seed"}
    return {
        "group": group,
        "inventories": [str(Path(path).resolve()) for path in inventories],
        "allow_host_changes": settings.allow_host_changes,
        "busy": settings.busy,
        "requests": [
            {key: value for key, value in to_json(one.request).items() if key not in drawn}
            for one in asked
        ],
    }


def _measure(
    record: Record,
    hosts: list[str],
    inventories: Sequence[Path],
    settings: asking.Settings,
    progress: Progress,
) -> Reasons:
    """Play the fleet's playbook on the hosts that miss something; return why any failed."""
    orders = {host: _order(record, host, settings) for host in hosts if record.missing(host)}
    if not orders:
        return {}
    events = _Events(record, progress)
    with progress:
        try:
            ansible.play(
                "run.yml", inventories, _variables(record, orders), events, record.folder,
                len(orders),
            )  # fmt: skip
        except KeyboardInterrupt:
            progress.interrupted()
            raise
    failures = {host: events.failures(host) for host in orders}
    return {host: reasons for host, reasons in failures.items() if reasons}


def _variables(record: Record, orders: dict[str, str]) -> dict[str, Any]:
    """What the playbook needs to know; run.yml says what each is."""
    agent = agent_archive.build(record.folder / "agent.pyz").read_bytes()
    receive = [sys.executable, "-m", "numalab.fleet.receive"]
    return {
        "numalab_hosts": ",".join(orders),
        "numalab_session": record.session.session,
        "numalab_orders": orders,
        "numalab_server": any(
            _needs_server(request) for host in orders for request in record.missing(host).values()
        ),
        "numalab_agent": {
            "file": str(record.folder / "agent.pyz"),
            "name": f"numalab-{hashlib.sha256(agent).hexdigest()[:16]}.pyz",
            "sha1": hashlib.sha1(agent).hexdigest(),
            "probes": " ".join(agent_archive.carried(record.folder / "agent.pyz")),
        },
        "numalab_incoming": str(record.folder / "incoming"),
        "numalab_receive": [*receive, str(record.folder), str(home.runs().resolve())],
    }


class _Events:
    """Follows the playbook's events: what each host does, how it ended, why it failed."""

    def __init__(self, record: Record, progress: Progress) -> None:
        self.record = record
        self.progress = progress
        self.failed: dict[str, str] = {}
        self.ended: dict[str, Status] = {}
        self.lacking: dict[str, list[str]] = {}  # as the last look found, after any installation

    def __call__(self, event: ansible.Event) -> None:
        host, kind, step = event["host"], event["kind"], event["step"]
        if kind == "start":
            self.progress.phase(host, step, event["task"])
            if step == "choose-python":
                self.progress.missing(host, self.lacking[host])
        elif kind in ansible.FAILED:
            self.failed.setdefault(host, _reason(event))
            self.progress.failed(host, self.failed[host])
        elif step == "measure":
            self._status(host, event)
        elif step == "look":
            self.lacking[host] = _value(event, "missing").split()

    def _status(self, host: str, event: ansible.Event) -> None:
        status = _read_status(event)
        if status is None:
            return
        self.progress.status(host, status)
        if status.state == "ended":
            self.ended[host] = status
            for job in status.jobs:
                if job.state == "left out":
                    self.record.leave_out(host, job.key, str(job.reason))

    def failures(self, host: str) -> list[str]:
        """Return why a host has not measured all that was asked; [] when it has."""
        jobs = self.ended[host].jobs if host in self.ended else []
        reasons = [
            f"{job.experiment}: {job.reason or job.state}"
            for job in jobs
            if job.state not in ("complete", "left out")
        ]
        if host in self.failed:
            reasons.append(self.failed[host])
        if not reasons and self.record.missing(host):
            log = self.record.folder / ansible.LOG
            reasons.append(f"nothing arrived: {log} says what Ansible did")
        return reasons


def _needs_server(request: Request) -> bool:
    """Whether a host's own MySQL or MariaDB is measured, which is installed for nothing else."""
    return "mysql_server" in request.tool.prefer and not request.tool.options.get("server")


def _order(record: Record, host: str, settings: asking.Settings) -> str:
    order = Order(
        SCHEMA,
        record.session.session,
        tuple(OrderedRequest(key, request) for key, request in record.missing(host).items()),
        allow_host_changes=settings.allow_host_changes,
        busy=settings.busy,
        source_commit=launch.source_commit() or None,
    )
    packed = base64.b64encode(dumps(order).encode()).decode()
    if len(packed) > _ORDER_LIMIT:
        raise Fault(
            f"the experiments make an order of {len(packed)} bytes, {_ORDER_LIMIT} are the most",
            "measure them with several commands",
        )
    return packed


def _read_status(event: ansible.Event) -> Status | None:
    """The status that the step "measure" brought along, or None."""
    lines = (event["stdout"] or "").strip().splitlines()
    try:
        return from_json(Status, json.loads(lines[-1]))
    except (IndexError, ValueError, RecursionError, Fault):
        return None


def _value(event: ansible.Event, key: str) -> str:
    for line in (event["stdout"] or "").splitlines():
        if line.strip().startswith(f"{key}="):
            return line.strip().partition("=")[2]
    return ""


def _reason(event: ansible.Event) -> str:
    """Why a step failed, in a sentence."""
    step, task = event["step"], event["task"].rpartition(": ")[2]
    errors = [line.strip() for line in (event["stderr"] or "").splitlines() if line.strip()]
    words = str(event["msg"] or "").strip().splitlines()
    said = errors[-1] if errors else words[-1].strip() if words else "no answer"
    said = said.removeprefix("numalab: ").removesuffix(".")
    if event["kind"] == "unreachable":
        if step == "measure":
            return f"the connection broke while it measured, and it may still measure: {said}"
        return f"it cannot be reached: {said}"
    if step == "measure" and _value(event, "numalab") == "gone":
        more = f" ({said})" if errors else ""
        return f"what measured there is gone: it was killed, or the host was restarted{more}"
    return said if step in ("start", "need-python") else f"{task}: {said}"


def _conclude(
    record: Record,
    asked: Sequence[asking.Asked],
    failures: Reasons,
    settings: asking.Settings,
    progress: Progress,
) -> None:
    """Build the tables and execute the notebook of every run that has arrived."""
    from numalab import runs, session

    by_key = {key_of(number, one.request): one for number, one in enumerate(asked, 1)}
    for host in record.session.hosts:
        for key, folder in record.runs(host).items():
            if record.concluded(host, key):
                continue
            progress.concluding(host, folder)
            try:
                by_key[key].keep(folder)
                executed = session.conclude(folder, by_key[key].notebook, settings.notebook)
                session.refuse_without_baseline(runs.load(folder))
            except session.NoBaseline as fault:
                record.forget(host, key)
                failures.setdefault(host, []).append(f"{folder.name}: {fault}")
            except Fault as fault:
                failures.setdefault(host, []).append(f"{folder.name}: {fault}")
            else:
                record.conclude(host, key, executed)
