"""Tomcat as a service: what it divides, what it refuses, and trials of a real JVM."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import service_runs
import topologies
from cells import cell
from numalab import asking, experiments, services
from numalab.agent import drivers
from numalab.agent.contract import ERROR, VERIFIED
from numalab.agent.errors import Fault
from numalab.agent.host import topology
from numalab.agent.plan import make as planning
from numalab.agent.served.service import description
from service_runs import measure, plan

WHY = service_runs.why_not("tomcat")
needs_tomcat = pytest.mark.skipif(bool(WHY), reason=WHY or "it is here")
SMALL = {"heap": "64MiB", "live": "4MiB", "compiler": "c1", "balancer": "none"}
SOURCE = Path(services.home.root(), "services", "tomcat")


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    """A cache of the module's own: the portal is compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def prepared(host, **options):
    asked = {"service": services.load("tomcat"), "rate": 10, **options}
    return drivers.driver("service").prepare(asked, host, "0", "0")


def test_heap_documents_and_threads_are_the_same_in_total():
    host = topologies.topology(nodes=2, cores=4)
    one, two = prepared(host).options, prepared(host, instances=2).options
    for name in ("heap", "live", "workers", "gc_threads"):
        assert one[name] == 2 * two[name], name
    assert one["collector"] == two["collector"] == "parallel"


def test_the_collector_is_fixed_and_the_heap_is_touched():
    service = description.read(services.load("tomcat"))
    options = prepared(topologies.topology(nodes=1, cores=1)).options
    words = description.words(
        service.start, {**options, "java": "java", "socket": "s"},
        description.texts_of(service, options),
    )  # fmt: skip
    assert {"-XX:+UseParallelGC", "-XX:ParallelGCThreads=1", "-XX:+AlwaysPreTouch",
            "-Xms1024m", "-Xmx1024m"} <= set(words)  # fmt: skip
    assert "" not in words and "-XX:+UseNUMA" not in words


def test_use_numa_is_not_asked_for_where_one_node_has_memory():
    with pytest.raises(Fault, match="use_numa on places memory on nodes"):
        prepared(topologies.topology(nodes=1, cores=4), use_numa="on")
    assert (
        prepared(topologies.topology(nodes=2, cores=4), use_numa="on").options["use_numa"] == "on"
    )


def test_what_use_numa_interleaves_must_be_even_over_the_nodes():
    driver, host = drivers.driver("service"), topologies.topology(nodes=2, cores=4)
    for use, wanted in (("on", ("required", "shares", "0-1", "interleave")), ("off", None)):
        given = prepared(host, use_numa=use).options
        found = driver.expects(given, cell("0-7"), host)
        got = found and (found.proof, found.rule, found.nodes, found.policy)
        assert got == wanted


def test_a_compiler_that_is_busy_while_it_is_measured_is_a_doubt():
    warm = {"kind": "warm", "held": True, "counter": "jit_time", "below": 0.05, "seconds": 9.0}
    run = {"kind": "run", "phase": "saturation", "instance": "", "elapsed_s": 2.0, "clients": 1,
           "client_cpu_s": 0.1, "figures": {}, "metrics": {}, "load": "http"}  # fmt: skip
    told = {"jit_time:instance 1": 0.09, "jit_time:instance 2": 0.5, "gc_time:instance 1": 1.0}
    found = drivers.driver("service").doubts([warm, {**run, "status": told}], {"rate": 0})
    said = "instance 2: jit_time grew by 0.25 a second while it was measured, not by less than 0.05"
    assert [str(one) for one in found] == [said]


def test_a_slow_start_may_be_waited_for_and_is_not_in_the_price():
    service = services.load("tomcat")
    host = topologies.topology(nodes=2, cores=4)
    timing = prepared(host).timing
    longest = service["ready"]["within_s"] + service["warm"]["until"]["at_most_s"]
    assert timing.patience_s == longest == 420
    assert timing.setup_s + timing.warmup_s + timing.measure_s < 60


@pytest.mark.parametrize("nodes, cells", [(1, 3), (2, 5), (8, 5)])
def test_the_quick_profile_fits_its_quarter_of_an_hour(tmp_path, nodes, cells):
    request = asking.with_service(experiments.load("service-per-node").request("quick", "here"))
    host = replace(topologies.topology(nodes=nodes, cores=4), root=str(tmp_path))
    made = planning.make(request, host)
    assert (len(made.cells), made.request.blocks) == (cells, 6)
    assert made.estimate.total_s <= request.budget_s == 900
    calibrated = planning.make(planning.with_options(made, {"rate": 100}).request, host)
    assert made.estimate.total_s - calibrated.estimate.total_s > 20  # the calibration's own time


@needs_tomcat
def test_a_heap_larger_than_the_node_is_skipped_and_said():
    host = topologies.topology(nodes=1, cores=4)
    small = replace(host.nodes[0], memory_bytes=1 << 30, free_bytes=1 << 30, page_cache_bytes=0)
    given = plan("tomcat", host=replace(host, nodes=(small,)), heap="2GiB")
    assert not given.cells
    assert [skip.reason.code for skip in given.skipped] == ["node-too-small"]


@pytest.mark.skipif(not shutil.which("sh"), reason="there is no sh")
def test_missing_jars_are_named_with_their_package():
    done = subprocess.run(
        ["sh", str(SOURCE / "compile.sh"), "java", "/nowhere/tomcat10-catalina.jar"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "tomcat10-catalina.jar is missing: apt install libtomcat10-java" in done.stdout


@needs_tomcat
def test_a_trial_tells_its_collections_and_its_compiler(tmp_path):
    (trial,) = measure(tmp_path / "run", "tomcat", **SMALL)
    assert trial.grade == VERIFIED, trial.reason
    text = gzip.decompress((tmp_path / "run" / trial.raw["stdout"]).read_bytes()).decode()
    events = [json.loads(line) for line in text.splitlines()]
    warm = next(event for event in events if event["event"] == "warm")
    assert warm["counter"] == "jit_time"
    rows = drivers.driver("service").metrics(drivers.driver("service").parse(text))
    value = {row.metric: row.value for row in rows}
    assert value["requests_per_second"] == pytest.approx(50, rel=0.5)
    assert value["saturation_requests_per_second"] > 0 and value["errors"] == 0
    assert {"gc_time", "gc_count", "jit_time"} <= set(value)
    proof = json.loads(gzip.decompress((tmp_path / "run" / trial.raw["proof"]).read_bytes()))
    assert "-Xmx64m" in json.dumps(events) and proof
    assert not service_runs.own(".jar Portal socket=")


@needs_tomcat
def test_a_jvm_that_dies_under_load_is_an_error(tmp_path):
    with service_runs.killing(".jar Portal socket=", once=" --to unix:") as killed:
        (trial,) = measure(tmp_path / "run", "tomcat", **SMALL)
    assert killed and trial.grade == ERROR
    assert "killed by SIGKILL" in str(trial.reason)
    assert not service_runs.own(".jar Portal socket=")


@needs_tomcat
@pytest.mark.skipif(len(topology.read().memory_nodes) > 1, reason="UseNUMA is kept here")
def test_a_jvm_that_dropped_use_numa_says_so(tmp_path):
    given = plan("tomcat", **SMALL)
    (cell,) = given.cells
    cell = replace(cell, options={**cell.options, "use_numa": "on"})
    (trial,) = service_runs.run_plan(tmp_path / "run", replace(given, cells=(cell,)))
    assert trial.grade == ERROR
    assert "the JVM dropped -XX:+UseNUMA" in str(trial.reason)


@needs_tomcat
def test_a_socket_that_is_taken_and_a_heap_that_is_too_small_are_told(tmp_path):
    service = description.read(services.load("tomcat"))
    found = drivers.driver("service").find({"service": services.load("tomcat")})
    for name, text in service.files.items():
        (tmp_path / name).write_text(text)
    values = {**prepared(topology.read(), **SMALL).options, **found.facts["programs"],
              "socket": "taken"}  # fmt: skip
    texts = description.texts_of(service, values)
    assert service.prepare
    for line in service.prepare.commands:
        subprocess.run(description.words(line, values, texts), cwd=tmp_path, check=True)
    (tmp_path / "taken").touch()

    def last_words(**options) -> str:
        done = subprocess.run(
            description.words(service.start, {**values, **options}, texts),
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode
        return (done.stdout + done.stderr).strip().splitlines()[-1]

    said = last_words()
    assert "Tomcat did not start" in said and "already in use" in said
    # As many documents as the heap has room for, and more.
    assert "OutOfMemoryError" in last_words(live=256 << 20, socket="another")
