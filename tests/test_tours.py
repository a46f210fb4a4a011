"""Tours: all pairs of nodes in one trial a block, each with its own proof, grade and figures."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import time

import polars as pl
import pytest

import topologies
from fake_tool import Fake, agent, fake_root, mark, tour, with_cells
from numalab import check, experiments, runs, store
from numalab.agent import kernel
from numalab.agent.contract import (
    CpuProof,
    MemoryProof,
    Plan,
    Proof,
    Tour,
    from_json,
    reason,
    to_json,
)
from numalab.agent.drivers import driver
from numalab.agent.host import topology
from numalab.agent.plan import make, show, tours
from numalab.agent.trial import journal, proof, run, trial

SIXTEEN = topologies.topology(16, cores=8, sockets=2, memory_gib=64, cache_mib=32)


def planned(host=SIXTEEN, profile="quick", **more):
    return make.make(experiments.load("latency").request(profile, "here", seed=3, **more), host)


def test_a_matrix_is_one_trial_a_block():
    made = planned()
    latency, bandwidth = sorted(made.tours, key=lambda one: one.id, reverse=True)
    assert [one.id for one in (latency, bandwidth)] == ["tour:latency", "tour:bandwidth"]
    assert len(latency.visits) == 16 * 16 + 1 and len(bandwidth.visits) == 16 * 16
    assert {"local:3", "remote:3-7", "local:0/control"} <= set(latency.visits)
    assert made.cell["remote:3-7"].baseline == "local:3"
    block = [one.cell for one in made.order if one.block == 1]
    assert {"tour:latency", "tour:bandwidth"} < set(block)
    rest = [made.cell[id] for id in block if not id.startswith("tour:")]
    assert {cell.options["mode"] for cell in rest} == {"loaded"}
    assert sorted({cell.distance for cell in rest}) == [10, 12, 20]
    assert sorted(id for one in block for id in made.visited(one)) == sorted(made.cell)
    assert from_json(Plan, json.loads(json.dumps(to_json(made)))) == made


@pytest.mark.parametrize("nodes, cores, sockets", [(1, 64, 1), (2, 112, 2), (8, 32, 2), (16, 8, 2)])
def test_the_price_of_a_matrix_is_that_of_its_tours(nodes, cores, sockets):
    host = topologies.topology(nodes, cores, sockets=sockets, memory_gib=64, cache_mib=32)
    made = planned(host)
    assert made.request.blocks == 6 and made.estimate.total_s <= 12 * 60
    each = {one.id: one.timing.total_s for one in (*made.tours, *made.cells)}
    trials_s = sum(each[one.cell] for one in made.order)
    assert trials_s <= made.estimate.total_s <= trials_s + 60  # with what is done once
    assert len(made.tours) == (1 if nodes == 1 else 2)


def test_the_plan_says_in_a_line_what_a_tour_is_and_costs():
    text = " ".join(show.text(planned(), 200).split())
    assert "tour of latency, 257 cells: one trial in each block visits them" in text
    assert f"{len(planned().order)} trials" in text
    assert "and 127 cells more like it, on other nodes" in text  # at the longest distance
    assert len(show.text(planned()).splitlines()) < 100


def test_without_its_option_every_cell_is_a_trial():
    request = experiments.load("latency").request("smoke", "here", seed=3)
    plain = {name: value for name, value in request.tool.options.items() if name != "tour_s"}
    request = from_json(type(request), {**to_json(request), "tool": {
        **to_json(request.tool), "options": plain}})  # fmt: skip
    made = make.make(request, topologies.topology(2, memory_gib=64))
    assert not made.tours and len(made.order) == 2 * len(made.cells)


def test_every_block_has_its_own_order():
    visits = tuple(f"remote:{a}-{b}" for a in range(4) for b in range(4))
    orders = [tuple(tours.order(visits, 7, block)) for block in range(1, 7)]
    assert len(set(orders)) == 6 and {tuple(sorted(one)) for one in orders} == {
        tuple(sorted(visits))
    }
    assert orders[0] == tuple(tours.order(visits, 7, 1)) != tuple(tours.order(visits, 8, 1))
    assert tours.order(["a", "b", "c", "d"], 1, 1) == ["d", "b", "c", "a"]


# --- a trial ------------------------------------------------------------------------------------


@pytest.fixture
def measure(tmp_path):
    (tmp_path / "raw").mkdir()
    kernel.adopt_orphans()

    def make_trial(made):
        bench = trial.Bench(
            made, topology.read(), tmp_path, Fake("handshake"), Fake("handshake").find({}), 2,
            lambda: False,
        )  # fmt: skip
        record, rows = trial.measure(bench, made.order[0], 1)
        return record, rows, tmp_path

    yield make_trial
    kernel.adopt_orphans(False)


def test_each_visit_has_its_own_proof_and_grade(measure, monkeypatch):
    looked = []

    def prove(pids, cell, host, buffers, alone):
        looked.append(cell.id)
        ok = None if cell.id == "cell:2" else cell.id != "cell:1"
        why = None if ok else reason("process-ended", pid=1)
        return Proof(ok, MemoryProof(ok, why), CpuProof(True), why)

    monkeypatch.setattr(proof, "prove", prove)
    record, rows, folder = measure(tour(4, mark()))
    order = tours.order([f"cell:{n}" for n in range(4)], 1, 1)
    assert [one.cell for one in record.visits] == order
    assert looked == [id for id in order for _ in ("before", "after")]
    grades = {one.cell: one.grade for one in record.visits}
    assert grades == {
        "cell:0": "verified", "cell:1": "error", "cell:2": "unverified", "cell:3": "verified"
    }  # fmt: skip
    assert (record.cell, record.grade, record.reason.code) == (
        "tour:fake", "unverified", "tour-in-part"
    )  # fmt: skip
    assert sorted(row.cell for row in rows) == sorted(order)
    kept = json.loads(gzip.decompress((folder / record.raw["proof"]).read_bytes()))["proofs"]
    assert [one["cell"] for one in kept] == looked
    assert record.times.measure_s > 0 and record.exit_status == 0


def test_a_tool_that_ends_on_a_tour_fails_the_whole_trial(measure):
    record, rows, _ = measure(tour(3, mark(), crash="cell:1"))
    assert record.grade == "error" and {one.grade for one in record.visits} == {"error"}
    assert len(record.visits) == 3 and record.reason.code == "tool-exited"


def test_a_node_without_room_costs_only_its_own_visits(measure, monkeypatch):
    real = trial._Trial._check_room

    def check_room(self, cell):
        if cell.id == "cell:1":
            raise trial._Failed(reason("no-room", need=2, free=1, nodes="1", freeable=1))
        real(self, cell)

    monkeypatch.setattr(trial._Trial, "_check_room", check_room)
    made = tour(3, mark())
    nodes = [type(cell.memory)("default", str(n)) for n, cell in enumerate(made.cells)]
    record, rows, _ = measure(with_cells(made, *({"memory": one} for one in nodes)))
    reasons = {one.cell: one.reason and one.reason.code for one in record.visits}
    assert reasons["cell:1"] == "no-room" and record.grade == "unverified"
    assert sorted(row.cell for row in rows) == ["cell:0", "cell:2"]


def test_killed_on_a_tour_it_repeats_that_trial(tmp_path):
    made = tour(30, mark(), blocks=3)
    out, root = tmp_path / "run", fake_root(tmp_path / "root")
    given = made, out, root, tmp_path / "record", f"tour-{os.getpid()}"
    for wait in (0.6, 1.2, 1.0, 0.8):
        killed = agent(*given)
        time.sleep(wait)
        killed.kill()
        killed.wait()
        time.sleep(0.3)
    ended = agent(*given)
    assert ended.wait() == 0
    records = journal.read(out / "journal.ndjson")
    assert sorted(one.trial for one in records) == [1, 2, 3]
    assert all(len(one.visits) == 30 for one in records)


# --- a run on this machine ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A run of the real probe on this machine."""
    if {"mbind", "move_pages"} & set(kernel.forbidden_calls()):
        pytest.skip("memory cannot be bound here")
    out = tmp_path_factory.mktemp("run") / "20260101T000000Z-latency"
    request = experiments.load("latency").request(
        "smoke", "here", seed=3, blocks=2, collectors=False,
        options={"bytes": "1MiB", "seconds": 0.05, "tour_s": 0.2, "pages": "base"},
        bindings=["local"],
    )  # fmt: skip
    made = make.make(request, topology.read())
    run.run(made, out, busy=True, emit=lambda event: None,
            lock_name=f"numalab-tour-{os.getpid()}")  # fmt: skip
    store.write(runs.load(out))
    return runs.load(out)


def test_rows_and_samples_carry_the_visited_cell(measured):
    tour = measured.plan.started["tour:latency"]
    assert isinstance(tour, Tour) and "local:0/control" in tour.visits
    rows = measured.tool_rows("idle_latency")
    assert set(rows["cell"]) == set(tour.visits) and rows.height == 2 * len(tour.visits)
    assert (rows["value"] > 0).all() and set(rows["grade"]) == {"verified"}
    assert set(measured.tool_rows("tlb_local_latency")["cell"]) == set(tour.visits)
    samples = measured.samples.filter(pl.col("metric") == "idle_latency")
    assert set(samples["cell"]) == set(tour.visits) and samples.height >= 3 * rows.height


def test_the_checker_judges_every_visit(measured, tmp_path):
    assert check.check(measured.folder).faults == []


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda line: line["visits"].reverse(), "visits 1.cell is"),
        (lambda line: line["visits"].pop(), "not of its tour's cells"),
        (lambda line: line["visits"][0].update(grade="error", reason=None), "visits 1.grade"),
        (lambda line: line["visits"][0].update(
            grade="error", reason={"code": "no-proof", "fields": {}}), "visits 1.grade"),
    ],
)  # fmt: skip
def test_a_changed_visit_is_found(measured, tmp_path, change, says):
    folder = tmp_path / measured.folder.name
    shutil.copytree(measured.folder, folder)
    path, previous, lines = folder / "journal.ndjson", "", []
    for text in path.read_text().splitlines():
        record = json.loads(text)
        if record["visits"]:
            change(record)
        lines.append(json.dumps({**record, "previous": previous}, ensure_ascii=False))
        previous = hashlib.sha256(lines[-1].encode()).hexdigest()
    path.write_text("".join(f"{line}\n" for line in lines))
    assert any(says in one for one in check.check(folder).faults)


def test_the_probe_refuses_what_is_no_visit():
    program = driver("probe").find({}).path
    for line in ("visit", "visit a 0 1 0", "visit a x 1 0 1MiB", "go"):
        done = subprocess.run(
            [program, "latency", "--tour"], input=line + "\n", capture_output=True, text=True
        )
        assert done.returncode == 2 and "expected" in done.stderr or "list of CPUs" in done.stderr
