"""Two forgers change a run in every way that something else in it contradicts: each is found.

The plain one changes a file. The other one then makes every hash, the journal's chain, the tables
and the sums fit. ``data/README.md`` says what a forger can do who is not found.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Tuple, Union

import polars as pl
import pytest

import frames
from numalab import check, contradictions, rederived, runs, store
from numalab.agent.contract import Graded, reason
from numalab.agent.errors import Fault
from numalab.agent.trial import journal

MANIFEST, HOST, JOURNAL = "manifest.json", "host.json", "journal.ndjson"


@pytest.fixture(scope="module")
def honest(tmp_path_factory) -> Path:
    """A run of two nodes that passes the check: every binding, two blocks."""
    folder = tmp_path_factory.mktemp("runs") / "here" / "20261120T220511Z-sysbench-cpu"
    frames.sysbench_run(folder, nodes=2, blocks=2)
    (folder / store.NOTEBOOK).write_text("{}")
    store.seal(folder)
    assert check.check(folder).faults == []
    return folder


class Forged:
    """A copy of a run, its files as they are changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = json.loads((folder / MANIFEST).read_text())
        self.host = json.loads((folder / HOST).read_text())
        self.lines = [json.loads(line) for line in (folder / JOURNAL).read_text().splitlines()]
        self.before = [json.dumps(one) for one in (self.manifest, self.host, self.lines)]

    def line(self, cell: str = "remote:0-1", block: int = 1) -> Dict[str, Any]:
        """The record of a cell's trial in a block."""
        return next(x for x in self.lines if (x["cell"], x["block"]) == (cell, block))

    def raw(self, kind: str, change: Callable[[str], str], cell: str = "remote:0-1") -> None:
        """Change the text of a raw file of a cell's first trial."""
        path = self.folder / self.line(cell)["raw"][kind]
        text = gzip.decompress(path.read_bytes()).decode()
        changed = change(text)
        assert changed != text, "nothing was forged"
        path.write_bytes(gzip.compress(changed.encode(), mtime=0))

    def write(self, rehash: bool) -> None:
        """Write what was changed; with ``rehash`` make everything fit that follows from bytes."""
        manifest, host, lines = (json.loads(text) for text in self.before)
        if self.host != host:
            journal.write_json(self.folder / HOST, self.host)
        if self.lines != lines or rehash:
            self._write_journal(rehash)
        if rehash:
            gone = [n for n in self.manifest["sha256"] if not (self.folder / n).exists()]
            for name in gone:
                del self.manifest["sha256"][name]
            for name in (HOST, JOURNAL, *(f"raw/{p.name}" for p in self.folder.glob("raw/*"))):
                self.manifest["sha256"][name] = journal.sha256(self.folder / name)
        if self.manifest != manifest:
            journal.write_json(self.folder / MANIFEST, self.manifest)
        if rehash:
            try:
                store.write(runs.load(self.folder))
            except Fault:
                store.seal(self.folder)

    def _write_journal(self, rehash: bool) -> None:
        previous, written = "", []
        for line in self.lines:
            if rehash:
                names = [n for n in line["raw"].values() if (self.folder / n).is_file()]
                sums = {name: journal.sha256(self.folder / name) for name in names}
                line = {**line, "sha256": sums, "previous": previous}
            text = json.dumps(line, ensure_ascii=False)
            previous = hashlib.sha256(text.encode()).hexdigest()
            written.append(text + "\n")
        (self.folder / JOURNAL).write_text("".join(written))


Step = Union[str, int]


def _set(data: Any, steps: Tuple[Step, ...], value: Any) -> None:
    """Set a value deep in lists and mappings; a text names an element of a list by its id."""
    for step in steps[:-1]:
        if isinstance(data, list) and isinstance(step, str):
            data = next(one for one in data if one.get("id") == step)
        else:
            data = data[step]
    if value is GONE:
        del data[steps[-1]]
    else:
        assert data[steps[-1]] != value, "nothing was forged"
        data[steps[-1]] = value


GONE = object()
REMOTE = ("plan", "cells", "remote:0-1")
ASKED = ("plan", "request")
SHAPE = ("topology",)
Forgery = Callable[[Forged], None]
FORGERIES: List[Any] = []  # (forgery, file to be named, whether the rehashing one is found too)


def forgery(name: str, file: str, change: Forgery, rehashed: bool = True) -> None:
    FORGERIES.append(pytest.param(change, file, rehashed, id=name))


def _of_manifest(*steps: Step, to: Any, name: str = "") -> None:
    label = name or ".".join(map(str, steps))
    forgery(f"manifest {label}", MANIFEST, lambda run: _set(run.manifest, steps, to))


def _of_host(*steps: Step, to: Any) -> None:
    label = ".".join(map(str, steps))
    forgery(f"host {label}", HOST, lambda run: _set(run.host, steps, to))


def _of_trial(*steps: Step, to: Any, name: str = "") -> None:
    label = name or ".".join(map(str, steps))
    forgery(f"journal {label}", JOURNAL, lambda run: _set(run.line(), steps, to))


def _of_raw(kind: str, name: str, old: str, new: str, file: str, rehashed: bool = True) -> None:
    def change(run: Forged) -> None:
        run.raw(kind, lambda text: text.replace(old, new, 1))

    forgery(f"raw {kind} {name}", file, change, rehashed)


# --- manifest.json --------------------------------------------------------------------------------

_of_manifest("schema", to=2)
_of_manifest("host", to="elsewhere")
_of_manifest("experiment", to="stream")
_of_manifest("profile", to="full")
_of_manifest("seed", to=2)
_of_manifest("evidence", to="counted", name="evidence counted")
_of_manifest("evidence", to="configured", name="evidence configured")
_of_manifest("evidence", to="published", name="evidence published")
_of_manifest("status", to="stopped", name="status stopped")
_of_manifest("status", to="running", name="status running")
_of_manifest("status", to="imported", name="status imported")
_of_manifest("started", to="2026-11-20T22:09:00.000Z")
_of_manifest("ended", to="2026-11-20T22:06:10.000Z", name="ended early")
_of_manifest("ended", to=None, name="ended never")
_of_manifest("times", "trials_s", to=1.0)
_of_manifest("settings", to={"kernel.numa_balancing": "0"})
_of_manifest(*ASKED, "blocks", to=3)
_of_manifest(*ASKED, "seed", to=2)
_of_manifest(*ASKED, "measure", "events_per_second", "better", to="lower")
_of_manifest(*ASKED, "measure", "events_per_second", "unit", to="1/min")
_of_manifest(*ASKED, "measure", "latency_p95", to=GONE)
_of_manifest(*ASKED, "headline", to="latency_p95")
_of_manifest(*ASKED, "question", to="How fast is remote memory?")
_of_manifest(*ASKED, "control", to=False)
_of_manifest(*ASKED, "baseline", to="unbound")
_of_manifest(*ASKED, "bindings", to=["local", "unbound"])
_of_manifest(*ASKED, "names", to=[])
_of_manifest(*ASKED, "changes", to={"vm.zone_reclaim_mode": "1"})
_of_manifest(*ASKED, "collectors", to=None)
_of_manifest(*ASKED, "pairs", to="every")
_of_manifest(*ASKED, "tool", "options", "cpu_max_prime", to=10)
_of_manifest("plan", "tool", "name", to="probe")
_of_manifest("plan", "tool", "version", to="1.0.21")
_of_manifest("plan", "tool", "path", to="/opt/sysbench")
_of_manifest(*REMOTE, "cpus", to="0")
_of_manifest(*REMOTE, "cpu_nodes", to="1")
_of_manifest(*REMOTE, "memory", "nodes", to="0")
_of_manifest(*REMOTE, "memory", "policy", to="preferred")
_of_manifest(*REMOTE, "expects", "memory", "proof", to="outcome")
_of_manifest(*REMOTE, "expects", "memory", "nodes", to="0-1")
_of_manifest(*REMOTE, "expects", "memory", "rule", to="shares")
_of_manifest(*REMOTE, "expects", "cpus", "proof", to="outcome")
_of_manifest("plan", "cells", "interleave:0", "expects", "memory", "weights", to={"0": 9, "1": 1})
_of_manifest(*REMOTE, "binding", to="local")
_of_manifest(*REMOTE, "label", to="near")
_of_manifest(*REMOTE, "role", to="baseline")
_of_manifest(*REMOTE, "baseline", to="unbound")
_of_manifest(*REMOTE, "threads", to=8)
_of_manifest(*REMOTE, "distance", to=10)
_of_manifest(*REMOTE, "rank", to=[])
_of_manifest(*REMOTE, "layout", to="packed")
_of_manifest(*REMOTE, "options", "cpu_max_prime", to=10)
_of_manifest(*REMOTE, "changes", to={"vm.zone_reclaim_mode": "1"})
_of_manifest(*REMOTE, "need_bytes", to=1 << 40)
_of_manifest("plan", "cells", "unbound", "notes", to=[])
_of_manifest("plan", "resolved", 0, "cells", to=["unbound"])
_of_manifest("plan", "client", to={"cpus": "3", "why": None, "host": None})
_of_manifest("plan", "settings", "kernel.numa_balancing", to="0")


def _another_order(run: Forged) -> None:
    """Measure the remote cell first in every block, in the plan and in the journal."""
    of = {}
    for block in (1, 2):
        items = [item for item in run.manifest["plan"]["order"] if item["block"] == block]
        cells = sorted((item["cell"] for item in items), key=lambda cell: cell != "remote:0-1")
        of.update({item["trial"]: cell for item, cell in zip(items, cells)})
    for item in (*run.manifest["plan"]["order"], *run.lines):
        item["cell"] = of[item["trial"]]


def _without_a_cell(run: Forged) -> None:
    """Take a cell out of the plan, and its trials out of everything."""
    plan = run.manifest["plan"]
    plan["cells"] = [one for one in plan["cells"] if one["id"] != "unbound"]
    plan["order"] = [one for one in plan["order"] if one["cell"] != "unbound"]
    for one in run.lines:
        if one["cell"] == "unbound":
            for name in one["raw"].values():
                (run.folder / name).unlink()
    run.lines = [one for one in run.lines if one["cell"] != "unbound"]


def _skipped(run: Forged, code: str = "one-node") -> None:
    _without_a_cell(run)
    why = {"code": code, "fields": {}}
    skip = {"binding": "unbound", "cell": "unbound", "reason": why, "variant": ""}
    run.manifest["plan"]["skipped"].append(skip)


def _without_the_last_block(run: Forged) -> None:
    """Drop the trials of a block that did not please, and call the run complete."""
    plan = run.manifest["plan"]
    plan["order"] = [one for one in plan["order"] if one["block"] == 1]
    for one in [one for one in run.lines if one["block"] == 2]:
        run.lines.remove(one)
        for name in one["raw"].values():
            (run.folder / name).unlink()


forgery("manifest order", MANIFEST, _another_order)
forgery("manifest cell dropped", MANIFEST, _without_a_cell)
forgery("manifest cell skipped", MANIFEST, _skipped)
forgery("manifest block dropped", MANIFEST, _without_the_last_block)
forgery("manifest hash dropped", MANIFEST, lambda run: run.manifest["sha256"].pop(HOST), False)

# --- host.json ------------------------------------------------------------------------------------

_of_host("host", to="elsewhere")
_of_host("emulated", to=True)
_of_host("emulated_why", to={"code": "lab-guest", "fields": {"says": "x"}})
_of_host("timing", to={"latency_ns": "85:136+136:85"})
_of_host(*SHAPE, "threads", to=64)
_of_host(*SHAPE, "cores", to=64)
_of_host(*SHAPE, "packages", to=1)
_of_host(*SHAPE, "threads_per_core", to=2)
_of_host(*SHAPE, "offline", to="9")
_of_host(*SHAPE, "nodes", 0, "cpus", to="0-3")
_of_host(*SHAPE, "cpus", 0, "thread", to=1)
forgery(
    "host distance", MANIFEST,
    lambda run: _set(run.host, (*SHAPE, "nodes", 0, "distances", "1"), 40),
)  # fmt: skip
forgery("host cpu moved", HOST, lambda run: _set(run.host, (*SHAPE, "cpus", 0, "node"), 1))
forgery(
    "host before", MANIFEST,
    lambda run: _set(run.host, ("before", "kernel.numa_balancing", "value"), "0"),
)  # fmt: skip

# --- journal.ndjson -------------------------------------------------------------------------------

WHY = {"code": "time-limit", "fields": {"what": "end", "limit_s": 1.0}}
_of_trial("grade", to="error", name="verified called an error without a reason")
_of_trial("grade", to="unverified")
_of_trial("reason", to=WHY)
_of_trial("argv", 0, to="/usr/bin/other")
_of_trial("argv", to=[], name="argv emptied")
_of_trial("exit_status", to=1)
_of_trial("signal", to=9)
_of_trial("attempt", to=0)
_of_trial("times", "measure_s", to=9.0)
_of_trial("times", "total_s", to=60.0)
_of_trial("times", "start_s", to=-1.0)
_of_trial("started", to="2026-11-20T21:00:00.000Z")
_of_trial("ended", to="2026-11-20T23:00:00.000Z")
_of_trial("tool", "version", to="1.0.21")
_of_trial("settings", "kernel.numa_balancing", to="0")
_of_trial("bound", "nodes", to="0")
_of_trial("bound", "cpus", to="0-3")
_of_trial("bound", to={}, name="bound emptied")
_of_trial("block", to=2)
_of_trial("cell", to="unbound", name="relabelled")
_of_trial("trial", to=2)


def _an_error(run: Forged) -> None:
    run.line().update(grade="error", reason=WHY)


def _swapped(run: Forged) -> None:
    """Let a remote trial have the raw files of a local one, and the other way round."""
    one, two = run.line(), run.line("local:0")
    one["raw"], two["raw"] = two["raw"], one["raw"]


def _renamed(run: Forged) -> None:
    """The same with the files renamed, so that every name is as it should be."""
    one, two = run.line()["raw"], run.line("local:0")["raw"]
    for kind in one:
        first, second = run.folder / one[kind], run.folder / two[kind]
        held = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(held)


forgery("journal a verified trial called an error", JOURNAL, _an_error)
forgery("journal raw files swapped", JOURNAL, _swapped)
forgery("journal raw kinds swapped", JOURNAL, lambda run: run.line()["raw"].update(
    stdout=run.line()["raw"]["stderr"], stderr=run.line()["raw"]["stdout"]))  # fmt: skip
forgery("journal raw kind dropped", JOURNAL, lambda run: run.line()["raw"].pop("rusage"))
forgery("journal line dropped", JOURNAL, lambda run: run.lines.pop())
forgery("journal lines swapped", JOURNAL, lambda run: run.lines.reverse())
forgery("journal line twice", JOURNAL, lambda run: run.lines.append(run.lines[0]))
forgery("journal chain", JOURNAL, lambda run: _set(run.lines, (1, "previous"), "0" * 64), False)
forgery("raw files renamed", "proof.json.gz", _renamed)

# --- raw/ -----------------------------------------------------------------------------------------

PROOF = "remote-0-1.proof.json.gz"
_of_raw("stdout", "a number", "3836.24", "9836.24", "remote-0-1.stdout.gz", rehashed=False)
_of_raw("stdout", "another version", "sysbench 1.0.20", "sysbench 1.0.19", "")
_of_raw("stdout", "other primes", "limit: 20000", "limit: 10000", "remote-0-1.stdout.gz")
_of_raw("stdout", "cut", "General statistics", "", JOURNAL)
_of_raw("proof", "pages elsewhere", '"pages_bytes": {"1"', '"pages_bytes": {"0"', PROOF)
_of_raw("proof", "shares", '"shares": {"1": 1.0}', '"shares": {"1": 0.5}', PROOF)
_of_raw("proof", "verdict", '"ok": true', '"ok": false', PROOF)
_of_raw("proof", "seen elsewhere", '"seen": "0-1"', '"seen": "0-3"', PROOF)
_of_raw("proof", "outside", '"outside": ""', '"outside": "3"', PROOF)
_of_raw("proof", "not early", '"early": true', '"early": false', PROOF)
_of_raw("proof", "absent", '"absent": false', '"absent": true', PROOF)
_of_raw("proof", "cell", '"cell": "remote:0-1"', '"cell": "local:0"', PROOF)
_of_raw("proof", "moment", '"t_s": 0.1', '"t_s": 9.1', PROOF)
_of_raw("proof", "none", '"proofs": [', '"proofs": [], "more": [', JOURNAL)
_of_raw("rusage", "status", '"exit_status": 0', '"exit_status": 1', JOURNAL)
_of_raw("rusage", "signal", '"signal": null', '"signal": 9', JOURNAL)
_of_raw("rusage", "seconds", '"wall_s": 3.25', '"wall_s": 9.25', JOURNAL)
_of_raw("rusage", "peak", '"max_rss_bytes": 20971520', '"max_rss_bytes": 209715200', PROOF)
_of_raw("collect", "others at work", '"disturbance": null',
        '"disturbance": {"other_share": 0.9, "other_s": 9.0, "busiest": []}', JOURNAL)  # fmt: skip
_of_raw("collect", "model", '"reasons"', '"memory model": {"x": 1}, "reasons"',
        "collect.json.gz")  # fmt: skip
_of_raw("collect", "seconds", '"collected_s": 3.1', '"collected_s": 31.0', "collect.json.gz")
_of_raw("collect", "damaged", '"reasons": {}', '"reasons": []', "")

# --- the rest -------------------------------------------------------------------------------------


def _table(name: str) -> Forgery:
    def change(run: Forged) -> None:
        table = pl.read_parquet(run.folder / name)
        table.with_columns(value=pl.col("value") * 2).write_parquet(run.folder / name)

    return change


for _name in store.FILES:
    forgery(f"table {_name}", _name, _table(_name), rehashed=False)  # it would be derived again
forgery("notebook", store.NOTEBOOK,
        lambda run: (run.folder / store.NOTEBOOK).write_text("{ }"), rehashed=False)  # fmt: skip
forgery("a file more", "more.txt", lambda run: (run.folder / "more.txt").write_text("x"))
forgery("a folder more", "more", lambda run: (run.folder / "more").mkdir())
forgery("a raw file missing", "remote-0-1.stderr.gz",
        lambda run: (run.folder / run.line()["raw"]["stderr"]).unlink())  # fmt: skip
forgery("the sums missing", store.SUMS, lambda run: (run.folder / store.SUMS).unlink(), False)


# --- what is recorded, twice or by counters -------------------------------------------------------

COLLECT = "collect.json.gz"


def _copied(run: Forged) -> None:
    """Let the first trial of a cell be its second one, too."""
    one, two = run.line(), run.line(block=2)
    for kind, name in one["raw"].items():
        shutil.copy(run.folder / name, run.folder / two["raw"][kind])


def _swapped_collections(run: Forged) -> None:
    one, two = (run.folder / run.lines[place]["raw"]["collect"] for place in (0, 5))
    held = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(held)


def _in_record(run: Forged, line: Dict[str, Any], kind: str, change: Callable[[Any], Any]) -> None:
    """Change a raw file that is JSON."""
    path = run.folder / line["raw"][kind]
    data = json.loads(gzip.decompress(path.read_bytes()))
    before = json.dumps(data)
    change(data)
    assert json.dumps(data) != before, "nothing was forged"
    path.write_bytes(gzip.compress(json.dumps(data).encode(), mtime=0))


def _of_record(kind: str, name: str, change: Callable[[Any], Any]) -> None:
    end = {"rusage": "rusage.json.gz", "collect": COLLECT}[kind]
    forgery(f"raw {kind} {name}", end, lambda run: _in_record(run, run.line(), kind, change))


PERF = {"events": [{"event": "cycles", "value": 1.0, "name": "cycles", "unit": "count",
                    "running_percent": None, "user_only": False, "why": None}],
        "raw": "", "argv": []}  # fmt: skip
forgery("raw files copied", "rusage.json.gz", _copied)
forgery("raw collections swapped", COLLECT, _swapped_collections)
_of_record("rusage", "more than its CPUs can", lambda usage: usage.update(user_s=99.0))
_of_record("rusage", "below nothing", lambda usage: usage.update(system_s=-1.0))
_of_record("collect", "counter falls", lambda d: d["numastat"]["0"].update(numa_hit=[9, 1]))
_of_record("collect", "perf's events", lambda found: found.update(perf=PERF))
_of_trial("warnings", to=[{"code": "disturbed", "fields": {"share": 0.9, "names": []}}])
_of_manifest("times", "total_s", to=1.0)
_of_manifest("changes", to=[{"name": "vm.swappiness", "before": "60", "restored": True,
                             "reason": None}])  # fmt: skip


@pytest.mark.parametrize(("change", "file", "rehashed"), FORGERIES)
def test_a_forgery_is_found_and_its_file_named(honest, tmp_path, change, file, rehashed):
    for rehash in (False, True) if rehashed else (False,):
        forged = Forged(shutil.copytree(honest, tmp_path / f"run-{rehash}"))
        change(forged)
        forged.write(rehash)
        faults = check.check(forged.folder).faults
        assert any(file in fault for fault in faults), (rehash, faults)


@pytest.mark.parametrize("commit", ["0" * 40, "HEAD; true"])
def test_no_forger_escapes_by_naming_another_commit(honest, tmp_path, commit):
    for place, one in enumerate(FORGERIES[:: len(FORGERIES) // 6]):
        change, file, rehashed = one.values
        forged = Forged(shutil.copytree(honest, tmp_path / f"run-{place}"))
        change(forged)
        forged.manifest["source_commit"] = commit
        forged.write(rehash=rehashed)
        found = check.check(forged.folder)
        assert any(file in fault for fault in found.faults), (file, found.faults)
        assert not found.as_dict()["publishable"] and "must not be published" in found.text()


FORMULA, TWICE = "1 instructions / cycles", "1 2 * instructions / cycles"


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_a_formula_is_held_against_the_files_of_the_run_s_commit(honest, tmp_path, monkeypatch):
    def git(*words: str) -> str:
        own = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(own, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    file = tmp_path / rederived._EVENTS / "any.txt"
    file.parent.mkdir(parents=True)
    file.write_text(f"METRICS\nipc {FORMULA}\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "events")
    commit = git("rev-parse", "HEAD").strip()
    file.write_text("METRICS\n")  # edited since
    monkeypatch.setattr(rederived, "home", SimpleNamespace(root=lambda: tmp_path))

    def faults(formula: str, commit: str) -> List[str]:
        forged = Forged(shutil.copytree(honest, tmp_path / "run", dirs_exist_ok=True))
        forged.manifest.update(source_commit=commit, formulas={"ipc": formula})
        forged.write(rehash=True)
        return [one for one in check.check(forged.folder).faults if "formulas" in one]

    assert faults(FORMULA, commit) == []
    assert faults(TWICE, commit)
    for unknown in ("0" * 40, f"{commit}-dirty"):  # data/README.md says so
        assert faults(TWICE, unknown) == []


def test_there_are_a_hundred_kinds_that_both_forgers_are_found_by():
    assert sum(one.values[2] for one in FORGERIES) >= 100


# --- committed runs: a host with configured timing, services --------------------------------------

RUNS = Path(__file__).parent.parent / "data" / "runs"


def _events(change: Callable[[Dict[str, Any]], Any]) -> Callable[[Forged, Dict[str, Any]], None]:
    """Change what a trial's own process printed, event by event."""

    def changed(run: Forged, line: Dict[str, Any]) -> None:
        path = run.folder / line["raw"]["stdout"]
        text = gzip.decompress(path.read_bytes()).decode()
        events = [json.loads(row) for row in text.splitlines()]
        for event in events:
            change(event)
        assert events != [json.loads(row) for row in text.splitlines()], "nothing was forged"
        new = "".join(f"{json.dumps(one)}\n" for one in events)
        path.write_bytes(gzip.compress(new.encode(), mtime=0))

    return changed


def _of_model(change: Callable[[Any], Any]) -> Callable[[Forged, Dict[str, Any]], None]:
    return lambda run, line: _in_record(run, line, "collect", lambda d: change(d["memory model"]))


def _elsewhere(event: Dict[str, Any]) -> None:
    event["threads"] = [{**one, "pinned": 63, "began_on": 63} for one in event["threads"]]


def _lost(run: Forged, line: Dict[str, Any]) -> None:
    line.update(grade="error", reason={"code": "emulator-lost-time", "fields": {}})


def _another_visit(event: Dict[str, Any]) -> None:
    other = {"local:0": "local:0/control", "local:0/control": "local:0"}
    event["visit"] = other.get(event["visit"], event["visit"])


def _gave_up(model: Dict[str, Any]) -> None:
    counters = model["counters"]
    counters["gave_up"] = [counters["gave_up"][0], counters["gave_up"][1] + 1]


def _clock(model: Dict[str, Any]) -> None:
    model["counters"]["clock_ps"][1] += 10**15


Change = Callable[[Forged, Dict[str, Any]], None]
TIMED: List[Tuple[str, str, Change]] = [  # each is made in another trial that was verified
    ("loaded", COLLECT, _of_model(lambda m: m["counters"]["cpu 0"]["loads"].reverse())),
    ("loaded", JOURNAL, _of_model(_gave_up)),
    ("loaded", COLLECT, _of_model(lambda m: m.update(cpus="0"))),
    ("loaded", COLLECT, _of_model(lambda m: m.update(instruction_ns=0.1))),
    ("loaded", COLLECT, _of_model(lambda m: m["counters"].pop("cpu 7"))),
    ("loaded", COLLECT, _of_model(_clock)),
    ("loaded", JOURNAL, _lost),
    ("loaded", "stdout.gz", _events(_elsewhere)),
    ("loaded", "stdout.gz", _events(lambda e: "bytes" in e and e.update(bytes=64))),
    ("loaded", "stdout.gz", _events(lambda e: "measure_s" in e and e.update(measure_s=9e9))),
    ("loaded", "stdout.gz", _events(lambda e: "points" in e and e["points"].pop())),
    ("tour:latency", "stdout.gz", _events(_another_visit)),
    ("tour:", JOURNAL, _of_model(_gave_up)),
]  # fmt: skip


def _of_client(old: str, new: str) -> Change:
    def change(event: Dict[str, Any]) -> None:
        event["text"] = event.get("text", "").replace(old, new)

    return _events(change)


def _titled(event: Dict[str, Any]) -> None:
    if event["event"] == "server":
        event["title"] = "tomcat 9.9"


def _started(event: Dict[str, Any]) -> None:
    if event["event"] == "server":
        event["config"] = event["config"].replace("-XX:+AlwaysPreTouch ", "")


def _of_event(name: str, **fields: Any) -> Change:
    return _events(lambda event: event.update(fields) if event["event"] == name else None)


def _without(name: str) -> Change:
    """Leave out what the trial's process printed of one kind."""

    def change(run: Forged, line: Dict[str, Any]) -> None:
        path = run.folder / line["raw"]["stdout"]
        rows = gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)
        kept = [row for row in rows if json.loads(row)["event"] != name]
        assert len(kept) < len(rows), "nothing was forged"
        path.write_bytes(gzip.compress("".join(kept).encode(), mtime=0))

    return change


def _of_looks(change: Callable[[List[Any]], Any]) -> Change:
    return lambda run, line: _in_record(run, line, "proof", lambda d: change(d["proofs"]))


def _as_one(looks: List[Any]) -> None:
    for look in looks:
        look["instance"] = "instance 1"


SERVICES: List[Tuple[str, Change]] = [
    ("proof.json.gz", _of_looks(lambda looks: looks.pop(1))),  # of the second instance
    ("proof.json.gz", _of_looks(lambda looks: looks.__delitem__(slice(2, None)))),  # after
    ("proof.json.gz", _of_looks(_as_one)),
    ("stdout.gz", _without("balancer")),
    ("stdout.gz", _without("warm")),
    ("stdout.gz", _without("server")),
    ("stdout.gz", _of_event("run", exit_status=1)),
    ("stdout.gz", _of_event("run", instance="instance 7")),
    ("stdout.gz", _of_event("run", phase="rate")),
    ("stdout.gz", _of_event("run", figures={"latency_p99": {"find": "#", "unit": ""}})),
    ("stdout.gz", _of_event("run", elapsed_s=60.0)),
    ("stdout.gz", _of_event("run", client_cpu_s=99.0)),
    ("stdout.gz", _of_event("run", server={"cpu_s": 99.0})),
    ("stdout.gz", _of_event("ready", start_s=50.0)),
    ("stdout.gz", _of_client("/portal", "/counters")),
    ("stdout.gz", _events(_titled)),
    ("stdout.gz", _events(_started)),
    ("stdout.gz", _events(lambda e: e["event"] == "warm" and e.update(below=0.5))),
    ("stdout.gz", _of_client('"seed":1', '"seed":2')),
    ("stdout.gz", _of_client('"connections":', '"connections":9')),
    ("stdout.gz", _of_client('"mode":"open"', '"mode":"closed"')),
    (JOURNAL, _of_client('_per_second","value":', '_per_second","value":9')),
    (JOURNAL, _of_client('"count":1}', '"count":2}')),
]  # fmt: skip


def _newest(host: str, experiment: str) -> Path:
    return sorted((RUNS / host).glob(f"*Z-{experiment}"))[-1]


def _faults_of(forged: Forged, line: Dict[str, Any]) -> List[str]:
    faults = check.check(forged.folder).faults
    return [one for one in faults if f"trial {line['trial']} (" in one]


def test_forgeries_of_a_run_with_configured_timing_are_found(tmp_path):
    forged = Forged(shutil.copytree(_newest("intel-2n-timed", "latency"), tmp_path / "run"))
    good = [line for line in forged.lines if line["grade"] == "verified"]
    made = []
    for cell, file, change in TIMED:
        line = next(line for line in good if cell in line["cell"])
        good.remove(line)
        change(forged, line)
        made.append((f"trial {line['trial']} (", file))
    forged.host["timing"]["vcpus"] = "16"
    made.append(("timing.vcpus", HOST))
    forged.write(rehash=True)
    faults = check.check(forged.folder).faults
    for where, file in made:
        assert any(where in one and file in one.split(": ")[0] for one in faults), (where, file)


def _as_if_measured(host: Dict[str, Any]) -> None:
    """Take away all that says that a host is emulated, but what its firmware and shape say."""
    host.update(timing={}, emulated=False, emulated_why=None)
    for when in ("before", "after"):
        for name, value in (("lab.guest", None), ("virt.hypervisor", "kvm")):
            why = None if value else {"code": "no-file", "fields": {"path": "/x"}}
            host[when][name] = {"value": value, "reason": why}


def _of_kvm(host: Dict[str, Any], *_: Any) -> None:
    for when in ("before", "after"):
        host[when]["virt.evidence"]["value"] = [{"code": "kvm-clock", "fields": {}}]


def _clocked(host: Dict[str, Any], *_: Any) -> None:
    _of_kvm(host)
    host["topology"]["timed"] = False


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda host, recorded: None, "host.json: before: virt.hypervisor"),
        (_of_kvm, "host.json: topology.timed"),
        (_clocked, "manifest.json"),  # its plan was made for a host with a timing
        (lambda host, recorded: host.update(before=recorded["before"]), "host.json: emulated"),
        (lambda host, recorded: host.update(after=recorded["after"]), "host.json: emulated"),
    ],
)
def test_a_host_with_configured_timing_does_not_become_a_measured_one(tmp_path, change, where):
    forged = Forged(shutil.copytree(_newest("intel-2n-timed", "latency"), tmp_path / "run"))
    recorded = json.loads(json.dumps(forged.host))
    _as_if_measured(forged.host)
    change(forged.host, recorded)
    forged.manifest["evidence"] = "measured"
    for line in forged.lines:
        if "collect" in line["raw"]:
            _in_record(forged, line, "collect", lambda d: d.pop("memory model", None))
    forged.write(rehash=True)
    faults = check.check(forged.folder).faults
    assert any(one.startswith(where) for one in faults), faults


def test_an_experiment_of_one_s_own_does_not_pass_for_the_repository_s(tmp_path):
    """Which way is better could be turned round, and the worst binding recommended."""
    forged = Forged(shutil.copytree(_newest("debian-vm", "stream"), tmp_path / "run"))
    measure = forged.manifest["plan"]["request"]["measure"]
    text = (RUNS.parent.parent / "experiments" / "stream.yml").read_text()
    for one in measure.values():
        one["better"] = {"higher": "lower", "lower": "higher"}[one["better"]]
    (forged.folder / store.EXPERIMENT).write_text(text.replace("higher", "lower"))
    for commit in (forged.manifest["source_commit"], "0" * 40):
        forged.manifest["source_commit"] = commit
        forged.write(rehash=True)
        faults = check.check(forged.folder).faults
        assert any(one.startswith(store.EXPERIMENT) for one in faults), faults


def test_nodes_that_the_kernel_was_told_not_to_see_are_no_fault():
    run = runs.load(_newest("slow-2n-hidden-timed", "hidden"))
    assert len(run.host.topology.nodes) == 1 and run.host.timing["nodes"] == "2"
    assert not check.check(run.folder).faults


@pytest.mark.parametrize(("file", "change"), SERVICES)
def test_a_forgery_of_a_service_s_run_is_found(tmp_path, file, change):
    forged = Forged(shutil.copytree(_newest("debian-vm", "service-per-node"), tmp_path / "run"))
    line = forged.line("instances:unbound")
    change(forged, line)
    forged.write(rehash=True)
    assert any(file in one.split(": ")[0] for one in _faults_of(forged, line))


# --- what an honest run may look like -------------------------------------------------------------


def _a_little_less(run: Forged) -> None:
    """Linux 5.10 reads a counter of a node while a CPU moves its part to it."""
    run.host["before"]["kernel.release"] = {"value": "5.10.0-28-amd64", "reason": None}
    _in_record(run, run.line(), "collect", lambda d: d["numastat"]["0"].update(numa_miss=[7, 5]))


def _came_round(run: Forged) -> None:
    _in_record(
        run, run.lines[-1], "collect",
        lambda d: d["numastat"]["0"].update(numa_foreign=[(1 << 32) - 9, 3]),
    )  # fmt: skip


def _ended_unseen(run: Forged) -> None:
    """The agent was held up between a look at its program's end and one at its pages."""
    _in_record(run, run.line(), "proof", lambda d: d["proofs"][-1].update(t_s=4.4))


def _mounted(run: Forged) -> None:
    change = {"name": "resctrl.mounted", "before": "0", "restored": True, "reason": None}
    run.manifest["changes"] = [change]


def _counted(run: Forged, **usage: float) -> None:
    _in_record(run, run.line(), "rusage", lambda d: d.update(usage))


def _held_up(run: Forged) -> None:
    """The agent was held up before it saw the program's end."""
    _in_record(run, run.line(), "collect", lambda d: d.update(collected_s=4.4))


ODD: List[Any] = [
    pytest.param(_held_up, id="the end was seen late"),
    pytest.param(_ended_unseen, id="it ended before a look"),
    pytest.param(lambda run: _counted(run, user_s=17.9), id="the gate used CPU time"),
    pytest.param(_a_little_less, id="numastat of Linux 5.10"),
    pytest.param(_came_round, id="a counter of 32 bits"),
    pytest.param(_mounted, id="resctrl was mounted"),
]


@pytest.mark.parametrize("change", ODD)
def test_an_honest_run_of_an_odd_machine_passes(honest, tmp_path, change):
    run = Forged(shutil.copytree(honest, tmp_path / "run"))
    change(run)
    run.write(rehash=True)
    assert check.check(run.folder).faults == []


def test_trials_that_failed_alike_may_say_the_same(honest):
    run = runs.load(honest)
    journal = contradictions.Journal(run)
    one = rederived.Trial(run, run.trials[0])
    for number in (1, 2):
        one.record = replace(run.trials[0], trial=number, grade="error")
        one.collected = None
        assert list(journal.of_trial(one)) == []
    for number, copied in ((1, False), (2, True)):
        one.record = replace(run.trials[0], trial=number)
        assert any("byte by byte" in why for _, why in journal.of_trial(one)) is copied


def test_a_program_may_end_by_itself_when_it_is_given_up(honest):
    run = runs.load(honest)
    first = run.trials[0]
    limit_s = rederived.Trial(run, first)._limit_s
    why = reason("time-limit", what="end", limit_s=limit_s)
    for seconds, believed in ((limit_s - 1, False), (limit_s + 0.5, True)):
        times = replace(first.times, total_s=seconds)
        one = rederived.Trial(run, replace(first, grade="error", reason=why, times=times))
        assert (one.due().grade == "error") is believed


def test_only_a_verified_cell_s_threads_are_held_to_its_cpus(honest):
    run = runs.load(honest)
    said = next(one for one in run.trials if one.cell == "remote:0-1")
    trial = rederived.Trial(run, said)
    thread = {"kind": "thread", "pinned": None, "began_on": 0, "ended_on": 63}  # it lost its CPU
    assert list(contradictions._of_record(trial, trial.cell, thread))
    for grade in ("unverified", "error"):
        trial.record = replace(said, grade=grade, reason=reason("one-node"))
        assert trial.record.graded == (Graded("remote:0-1", grade, reason("one-node")),)
        assert not list(contradictions._of_record(trial, trial.cell, thread))


def test_a_server_may_be_looked_at_late(tmp_path):
    forged = Forged(shutil.copytree(_newest("debian-vm", "service-per-node"), tmp_path / "run"))
    assert _faults_of(forged, forged.lines[0]) == []

    def late(event: Dict[str, Any]) -> None:
        if event["event"] == "run":
            event["server"]["cpu_s"] = 2 * (event["elapsed_s"] + 1) + 3

    _events(late)(forged, forged.lines[0])
    forged.write(rehash=True)
    assert _faults_of(forged, forged.lines[0]) == []
