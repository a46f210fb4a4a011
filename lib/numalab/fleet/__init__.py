"""Measuring on a fleet: hosts of an Ansible inventory, each at its own pace.

Ansible does the distributing (``fleet/run.yml``); the agent measures on each host, detached from
the connection (``agent/trial/job.py``). Here: what was asked and how far each host is (``record``),
the playbook and its events (``ansible``), the arrival of results (``receive``), and how all that
is told (``told``).
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
from numalab.agent import SCHEMA
from numalab.agent.errors import Fault
from numalab.fleet import ansible, told
from numalab.fleet.record import Record

if TYPE_CHECKING:  # they are slow to import, and each host's arrival imports this package
    from numalab import experiments, session

Request = dict[str, Any]
Requests = Sequence[tuple[Request, "experiments.Experiment"]]
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
    known = [root / "fleet" / "inventory.yml", root / "build" / "lab" / "inventory.yml"]
    return [path for path in known if path.is_file()]


def run(
    requests: Requests,
    group: str,
    inventories: Sequence[Path],
    settings: session.Settings,
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
    record = Record(_asked(requests, group, inventories, settings, seed))
    with record.opened([request for request, _ in requests], there):
        hosts = record.hosts()
        show = told.Show(hosts, settings)
        show.begin(record)
        failures = _measure(record, there, inventories, settings, show)
        for host in set(hosts) - set(there):
            if record.missing(host):
                failures[host] = ["the inventory no longer names it"]
        _conclude(record, hosts, failures, settings, show)
        runs = {host: list(record.runs(host).values()) for host in hosts}
        show.end(record, failures)
        if failures:
            raise Failed(len(hosts), runs, failures)
        record.close()
    return runs


def stop(
    requests: Requests,
    group: str,
    inventories: Sequence[Path],
    settings: session.Settings,
    *,
    seed: int | None = None,
) -> dict[str, str]:
    """Stop in order what the same call of ``run`` left running; return what came of it by host.

    What was measured stays on the hosts: the same call of ``run`` completes it.
    """
    record = Record(_asked(requests, group, inventories, settings, seed))
    hosts = ansible.hosts(group, inventories)
    said = dict.fromkeys(hosts, "no answer")

    def note(event: ansible.Event) -> None:
        if event["kind"] == "ok":
            said[event["host"]] = (event["stdout"] or "").strip()
        elif event["kind"] in ("failed", "unreachable"):
            said[event["host"]] = _reason(event)

    variables = {"numalab_hosts": ",".join(hosts), "numalab_session": record.session()}
    ansible.play("stop.yml", inventories, variables, note, record.folder, len(hosts))
    return said


def _asked(
    requests: Requests,
    group: str,
    inventories: Sequence[Path],
    settings: session.Settings,
    seed: int | None,
) -> dict[str, Any]:
    """What makes two commands the same."""
    drawn = {"host"} if seed is not None else {"host", "seed"}
    return {
        "group": group,
        "inventories": [str(Path(path).resolve()) for path in inventories],
        "allow_host_changes": settings.allow_host_changes,
        "requests": [
            {key: value for key, value in request.items() if key not in drawn}
            for request, _ in requests
        ],
    }


def _measure(
    record: Record,
    hosts: list[str],
    inventories: Sequence[Path],
    settings: session.Settings,
    show: told.Show,
) -> Reasons:
    """Play the fleet's playbook on the hosts that miss something; return why any failed."""
    orders = {host: _order(record, host, settings) for host in hosts if record.missing(host)}
    if not orders:
        return {}
    agent = agent_archive.build(record.folder / "agent.pyz").read_bytes()
    receive = [sys.executable, "-m", "numalab.fleet.receive"]
    variables = {
        "numalab_hosts": ",".join(orders),
        "numalab_session": record.session(),
        "numalab_orders": orders,
        "numalab_server": any(
            _needs_server(request) for host in orders for request in record.missing(host).values()
        ),
        "numalab_agent": {
            "file": str(record.folder / "agent.pyz"),
            "name": f"numalab-{hashlib.sha256(agent).hexdigest()[:16]}.pyz",
            "sha1": hashlib.sha1(agent).hexdigest(),
        },
        "numalab_incoming": str(record.folder / "incoming"),
        "numalab_receive": [*receive, str(record.folder), str(home.runs().resolve())],
    }
    failed: dict[str, str] = {}
    ended: dict[str, dict[str, Any]] = {}
    lacking: dict[str, list[str]] = {}  # as the last look found, after any installation

    def note(event: ansible.Event) -> None:
        host = event["host"]
        status = _status(event)
        if event["kind"] == "start":
            show.phase(host, event["task"])
            if event["task"].endswith("choosing its Python"):
                show.missing(host, lacking[host])
        elif event["kind"] in ("failed", "unreachable"):
            failed.setdefault(host, _reason(event))
            show.failed(host, failed[host])
        elif status is not None:
            show.status(host, status)
            if status["state"] == "ended":
                ended[host] = status
                for job in status["jobs"]:
                    if job["state"] == "left out":
                        record.leave_out(host, job["key"], job["reason"])
        elif event["task"].endswith("looking at the host"):
            lacking[host] = _value(event, "missing").split()

    with show:
        try:
            ansible.play("run.yml", inventories, variables, note, record.folder, len(orders))
        except KeyboardInterrupt:
            show.interrupted()
            raise
    failures: Reasons = {}
    for host in orders:
        reasons = [
            f"{job['experiment']}: {job['reason'] or job['state']}"
            for job in ended.get(host, {}).get("jobs", [])
            if job["state"] not in ("complete", "left out")
        ]
        if host in failed:
            reasons.append(failed[host])
        if not reasons and record.missing(host):
            reasons.append(f"nothing arrived: {record.folder / ansible.LOG} says what Ansible did")
        if reasons:
            failures[host] = reasons
    return failures


def _needs_server(request: Request) -> bool:
    """Whether a host's own MySQL or MariaDB is measured, which is installed for nothing else."""
    tool = request["tool"]
    return "mysql_server" in tool["prefer"] and not (tool.get("options") or {}).get("server")


def _order(record: Record, host: str, settings: session.Settings) -> str:
    order = {
        "schema": SCHEMA,
        "session": record.session(),
        "allow_host_changes": settings.allow_host_changes,
        "source_commit": launch.source_commit() or None,
        "requests": [
            {"key": key, "request": {**request, "host": host}}
            for key, request in record.missing(host).items()
        ],
    }
    packed = base64.b64encode(json.dumps(order).encode()).decode()
    if len(packed) > _ORDER_LIMIT:
        raise Fault(
            f"the experiments make an order of {len(packed)} bytes, {_ORDER_LIMIT} are the most",
            "measure them with several commands",
        )
    return packed


def _status(event: ansible.Event) -> dict[str, Any] | None:
    """The status that the task "measuring" brought along, or None."""
    lines = (event["stdout"] or "").strip().splitlines()
    if not event["task"].endswith("measuring") or not lines:
        return None
    try:
        status = json.loads(lines[-1])
    except ValueError:
        return None
    return status if isinstance(status, dict) and "jobs" in status else None


def _value(event: ansible.Event, key: str) -> str:
    for line in (event["stdout"] or "").splitlines():
        if line.strip().startswith(f"{key}="):
            return line.strip().partition("=")[2]
    return ""


def _reason(event: ansible.Event) -> str:
    """Why a task failed, in a sentence."""
    task = event["task"].rpartition(": ")[2]
    errors = [line.strip() for line in (event["stderr"] or "").splitlines() if line.strip()]
    said = errors[-1] if errors else str(event["msg"] or "").strip()
    said = said.removeprefix("numalab: ").removesuffix(".")
    if event["kind"] == "unreachable":
        words = str(event["msg"] or said).strip().splitlines()
        why = words[-1].strip() if words else "no answer"
        for introduction in ("Task failed: ", "Failed to connect to the host via ssh: "):
            why = why.removeprefix(introduction)
        if task == "measuring":
            return f"the connection broke while it measured, and it may still measure: {why}"
        return f"it cannot be reached: {why}"
    if task == "measuring" and "numalab=gone" in (event["stdout"] or ""):
        more = f" ({said})" if errors else ""
        return f"what measured there is gone: it was killed, or the host started anew{more}"
    if task in ("starting", "looking for Python"):
        return said
    return f"{task}: {said}"


def _conclude(
    record: Record,
    hosts: list[str],
    failures: Reasons,
    settings: session.Settings,
    show: told.Show,
) -> None:
    """Build the tables and execute the notebook of every run that has arrived."""
    from numalab import session, store
    from numalab.show import view

    for host in hosts:
        for key, folder in record.runs(host).items():
            if record.concluded(host, key):
                continue
            show.concluding(host, folder)
            try:
                store.write(folder)
                executed = view.execute(folder) if settings.notebook else None
                session.refuse_without_baseline(folder)
            except session.NoBaseline as fault:
                record.forget(host, key)
                failures.setdefault(host, []).append(f"{folder.name}: {fault}")
            except Fault as fault:
                failures.setdefault(host, []).append(f"{folder.name}: {fault}")
            else:
                record.conclude(host, key, executed)
