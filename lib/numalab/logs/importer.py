"""Runs made of logs that somebody measured by hand elsewhere: graded unverified, never more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from numalab import experiments, home, launch, store
from numalab.agent import SCHEMA, VERSION, cpulist, drivers
from numalab.agent.errors import Fault
from numalab.agent.trial import journal

REASON = "measured by hand elsewhere: the placement was not recorded"
_SHAPES = ("lscpu", "numactl")  # describe the host; everything else is a measurement


def import_logs(
    files: Sequence[Path], host: str, experiment: str, labels: Sequence[str], note: str
) -> Path:
    """Make a run directory of captured outputs; return it.

    Each output of a measuring tool becomes one trial, graded unverified, in a cell of its own
    named by ``labels`` (in order; else by its file). Outputs of lscpu and ``numactl --hardware``
    describe the host. Raises Fault for a file that no parser recognises or can read.
    """
    loaded = experiments.load(experiment)
    texts = [(path, _read(path)) for path in files]
    found = [(path, text, _tool(path, text)) for path, text in texts]
    shapes = {name: text for _, text, name in found if name in _SHAPES}
    measured = [item for item in found if item[2] not in _SHAPES]
    if not measured:
        raise Fault(
            "none of these files holds a measurement",
            "give at least one output of mlc, stream or sysbench",
        )
    names = sorted({name for _, _, name in measured})
    if len(names) > 1:
        raise Fault(
            f"these files come from several tools: {', '.join(names)}",
            "results of different tools never stand in one run; import each tool's by itself",
        )
    if labels and len(labels) != len(measured):
        raise Fault(
            f"{len(labels)} cells are named for {len(measured)} measurements",
            "give --cell once per measurement, in the order of the files, or not at all",
        )
    parsed = [drivers.driver(name).parse(text) for _, text, name in measured]
    host_record = _host(host, shapes, note)
    folder = launch.new_run_directory(home.runs(), host, experiment)
    (folder / "raw").mkdir(parents=True)
    cells = [
        _cell(place, labels[place - 1] if labels else path.stem)
        for place, (path, _, _) in enumerate(measured, 1)
    ]
    version = next((r["text"] for r in parsed[0] if r["kind"] == "version"), "not stated")
    plan = _plan(loaded, host, names[0], version, cells)
    for place, (path, text, name) in enumerate(measured, 1):
        _write_trial(folder, place, cells[place - 1], name, version, path, text)
    journal.write_json(folder / "host.json", host_record)
    _write_manifest(folder, plan, host, note)
    store.write(folder)
    return folder


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise Fault(f"{path} cannot be read: {error.strerror}") from None


def _tool(path: Path, text: str) -> str:
    name = drivers.detect(text)
    if name is None:
        raise Fault(
            f"{path}: no parser recognises this output",
            f"numalab imports what these print: {', '.join((*drivers.MEASURING, *_SHAPES))}",
        )
    if name not in (*_SHAPES, *drivers.MEASURING):
        raise Fault(f"{path} is an output of {name}, which is no measurement to import")
    return name


def _cell(place: int, label: str) -> dict[str, Any]:
    return {
        "id": f"imported:{place}",
        "binding": "imported",
        "label": label,
        "role": "cell",
        "baseline": None,
        "cpus": None,
        "cpu_nodes": "",
        "threads": None,
        "memory": {"policy": "not recorded", "nodes": None},
        "distance": None,
        "rank": [],
        "options": {},
        "numactl": [],
        "expects": {"memory": {"proof": "none"}, "cpus": {"proof": "none"}},
        "need_bytes": 0,
        "notes": [],
    }


def _plan(
    loaded: experiments.Experiment,
    host: str,
    tool: str,
    version: str,
    cells: list[dict[str, Any]],
) -> dict[str, Any]:
    request = loaded.request(next(iter(loaded.profiles)), host, seed=0, blocks=1)
    order = [
        {"trial": place, "block": 1, "position": place, "cell": cell["id"]}
        for place, cell in enumerate(cells, 1)
    ]
    return {
        "schema": SCHEMA,
        "request": {**request, "profile": "imported", "control": False, "bindings": []},
        "tool": {"name": tool, "version": version, "path": None, "why": None},
        "cells": cells,
        "skipped": [],
        "order": order,
        "warnings": [REASON],
        "estimate": {"warmup_s": 0.0, "measure_s": 0.0, "total_s": 0.0},
    }


def _write_trial(
    folder: Path, place: int, cell: dict[str, Any], tool: str, version: str, path: Path, text: str
) -> None:
    name = f"raw/{place:04d}-imported.stdout.gz"
    digest = journal.write_gzip(folder / name, text.encode("utf-8"))
    when = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc).isoformat()
    record = {
        "schema": SCHEMA,
        "trial": place,
        "block": 1,
        "position": place,
        "cell": cell["id"],
        "attempt": 1,
        "started": when,
        "ended": when,
        "grade": "unverified",
        "reason": REASON,
        "argv": [],
        "exit_status": None,
        "signal": None,
        "times": {},
        "tool": {"name": tool, "version": version},
        "raw": {"stdout": name},
        "sha256": {name: digest},
        "warnings": [],
    }
    journal.append(folder / "journal.ndjson", record)


def _write_manifest(folder: Path, plan: dict[str, Any], host: str, note: str) -> None:
    now = datetime.now(timezone.utc).isoformat()
    names = ["host.json", "journal.ndjson"]
    names += sorted(f"raw/{path.name}" for path in (folder / "raw").iterdir())
    manifest = {
        "schema": SCHEMA,
        "run": folder.name,
        "host": host,
        "experiment": plan["request"]["experiment"],
        "profile": "imported",
        "seed": 0,
        "started": now,
        "ended": now,
        "status": "complete",
        "agent_version": VERSION,
        "source_commit": None,
        "imported": note or "no provenance was given",
        "tools": {plan["tool"]["name"]: plan["tool"]["version"]},
        "plan": plan,
        "changes": [],
        "times": {},
        "sha256": {name: journal.sha256(folder / name) for name in names},
    }
    journal.write_json(folder / "manifest.json", manifest)


def _host(host: str, shapes: dict[str, str], note: str) -> dict[str, Any]:
    """A host record of what captured lscpu and numactl outputs say; the rest is null."""
    fields = {}
    if "lscpu" in shapes:
        records = drivers.parser("lscpu")(shapes["lscpu"])
        fields = {r["name"]: r["value"] for r in records if r["kind"] == "field"}
    nodes: dict[int, dict[str, Any]] = {}
    for record in drivers.parser("numactl")(shapes["numactl"]) if "numactl" in shapes else []:
        if record["kind"] == "node_cpus":
            _node(nodes, record["node"])["cpus"] = record["cpus"]
        elif record["kind"] == "node_size" and record["value"] is not None:
            _node(nodes, record["node"])["memory_bytes"] = record["value"] << 20
        elif record["kind"] == "node_free" and record["value"] is not None:
            _node(nodes, record["node"])["free_bytes"] = record["value"] << 20
        elif record["kind"] == "distance":
            _node(nodes, record["from"])["distances"][str(record["to"])] = record["value"]
    cpus = [cpu for node in nodes.values() for cpu in cpulist.parse(node["cpus"])]
    topology = {
        "schema": SCHEMA,
        "root": None,
        "arch": fields.get("architecture"),
        "model": fields.get("model_name"),
        "vendor": fields.get("vendor"),
        "packages": fields.get("sockets"),
        "dies": None,
        "clusters": None,
        "cores": None,
        "threads": fields.get("cpus") or len(cpus) or None,
        "threads_per_core": fields.get("threads_per_core"),
        "cpus": [],
        "nodes": [nodes[number] for number in sorted(nodes)],
        "caches": [],
        "pci": [],
        "allowed": {"cpus": cpulist.format(cpus), "nodes": cpulist.format(nodes)},
        "offline": "",
        "available_bytes": None,
        "problems": [f"imported, not read from the host{': ' + note if note else ''}"],
    }
    return {
        "schema": SCHEMA,
        "host": host,
        "emulated": False,
        "emulated_why": None,
        "topology": topology,
        "before": {},
        "after": None,
    }


def _node(nodes: dict[int, dict[str, Any]], number: int) -> dict[str, Any]:
    blank = {
        "node": number,
        "cpus": "",
        "memory_bytes": None,
        "free_bytes": None,
        "page_cache_bytes": None,
        "distances": {},
        "hugepages": [],
        "allowed_memory": True,
    }
    return nodes.setdefault(number, blank)
