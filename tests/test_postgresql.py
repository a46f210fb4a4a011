"""PostgreSQL as a service: pgbench's output and log, and trials of a real server."""

from __future__ import annotations

import gzip
import json
import os

import pytest

import service_runs
import topologies
from corpus import fixture
from numalab import services
from numalab.agent import drivers
from numalab.agent.contract import ERROR, VERIFIED
from numalab.agent.errors import ParseError
from numalab.agent.served.load import pgbench

WHY = service_runs.why_not("postgresql")
needs_postgresql = pytest.mark.skipif(bool(WHY), reason=WHY or "it is here")
SMALL = {"tables": "16MiB"}
SETUP = json.dumps({"kind": "setup", "lead_s": 2, "time_s": 3})


def output(name: str, *more: str) -> str:
    return "\n".join([SETUP, fixture(f"pgbench-{name}.txt").rstrip("\n"), *more]) + "\n"


def results(text: str) -> dict:
    return {one["name"]: one["value"] for one in pgbench.parse(text) if one["kind"] == "result"}


def logged(tmp_path, text: str, name: str = "pgbench_log.1"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_only_what_came_after_the_lead_is_counted():
    found = results(output("closed"))
    # The third to the fifth second: 15277.9 * 1.000 + 18168.9 * 1.006 + 15000.9 * 0.996 and a few
    assert found["requests"] == 48507
    assert found["elapsed"] == pytest.approx(3.0028, abs=1e-4)
    assert found["requests_per_second"] == pytest.approx(48507 / 3.00285, abs=1)
    assert found["latency_avg"] == pytest.approx(0.2404, abs=1e-4)
    assert found["errors"] == found["schedule_lag_avg"] == 0
    assert "latency_p99" not in found  # it has no log


def test_a_fixed_rate_has_lag_and_percentiles(tmp_path):
    text = fixture("pgbench-open.txt")
    since = pgbench.measured_from(text, 2)
    assert since == 1795350607.266
    buckets = pgbench.histogram([logged(tmp_path, fixture("pgbench-log.txt"))], since)
    lines = [
        json.dumps({"kind": "histogram", "ms": ms, "count": count})
        for ms, count in sorted(buckets.items())
    ]
    found = results(output("open", *lines))
    assert found["elapsed"] == pytest.approx(2.985, abs=1e-3)
    assert found["schedule_lag_avg"] == pytest.approx(64.89, abs=0.01)
    assert found["latency_avg"] == pytest.approx(73.34, abs=0.01)
    # One in six of its lines; of all of them p50 is 39.4, p90 212 and p99 329.
    assert found["latency_p50"] == pytest.approx(39.4, rel=0.1)
    assert found["latency_p90"] == pytest.approx(212, rel=0.1)
    assert found["latency_p99"] == pytest.approx(329, rel=0.1)


def test_the_log_of_the_lead_and_what_failed_are_left_out(tmp_path):
    log = logged(
        tmp_path,
        "0 1 1000 0 100 0 5\n"  # ends at 100 s: the lead
        "0 2 1234 0 100 1 5\n"
        "1 1 failed 0 101 0 5\n"
        "1 2 56789 0 101 0 5\n",
    )
    assert pgbench.histogram([log], 100.0) == {1.24: 1, 56.8: 1}


@pytest.mark.parametrize("line", ["0 1 12 0 100", "0 1 fast 0 100 0", "a line"])
def test_a_line_that_is_not_of_the_log_is_refused(tmp_path, line):
    with pytest.raises(ParseError, match="no transaction of its log"):
        pgbench.histogram([logged(tmp_path, f"0 1 5 0 100 0\n{line}\n")], 1.0)


def test_the_lead_has_not_ended_before_its_last_report():
    lines = fixture("pgbench-closed.txt").splitlines()
    assert pgbench.measured_from("\n".join(lines[:3]), 2) is None  # one report
    assert pgbench.measured_from("\n".join(lines[:4]), 2) == 1795350602.066
    assert pgbench.measured_from("", 2) is None


@pytest.mark.parametrize("name", ["failed", "refused"])
def test_a_run_that_failed_has_no_results(name):
    records = pgbench.parse(output(name))
    said = [one["text"] for one in records if one["kind"] == "failure"]
    assert not [one for one in records if one["kind"] == "result"]
    wanted = {"failed": "perhaps the backend died", "refused": "Is the server running locally"}
    assert wanted[name] in said[0]


def test_an_output_that_was_cut_has_no_results():
    cut = output("closed").partition("latency average")[0]
    assert [one["kind"] for one in pgbench.parse(cut)][-1] == "incomplete"
    assert not results(cut)


def test_a_run_that_ended_in_its_lead_has_no_results():
    short = output("closed").replace('"lead_s": 2', '"lead_s": 5')
    assert [one["kind"] for one in pgbench.parse(short)][-1] == "incomplete"


def test_older_versions_are_read():
    newer = output("closed")
    lines = newer.replace(", 0 failed", "").partition("latency stddev")[0].splitlines()
    lines = [line for line in lines if "failed" not in line and "tries" not in line]
    whole_s = 63873 / 12891.546957 + 0.048211
    lines += [
        "latency stddev = 1.254 ms",
        f"tps = {63873 / whole_s:.6f} (including connections establishing)",
        "tps = 12891.546957 (excluding connections establishing)",
    ]
    assert results("\n".join(lines)) == pytest.approx(results(newer), rel=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("number of threads: 1", "number of threads", "not a line of its own"),
        ("15277.9 tps", "15277,9 tps", "not a line of its own"),
        ("1795350604.072 s", "1795350602.072 s", "go back in time"),
        ("processed: 63873", "processed: 40000", "reports of 6"),
        ('"kind": "setup"', '"kind": "set"', "not a line of its own"),
        (SETUP, "", "how long its lead was"),
    ],
)
def test_what_pgbench_does_not_print_is_refused(old, new, why):
    text = output("closed")
    assert old in text
    with pytest.raises(ParseError, match=why):
        pgbench.parse(text.replace(old, new))


def test_only_a_fixed_rate_writes_a_log_of_ten_thousand_lines_a_second():
    given = {"connections": 8, "threads": 16, "lead_s": 2, "time_s": 10, "seed": 3}
    closed = pgbench.command_line("/p", ["-h", "/s"], rate=0, **given)
    assert closed[-2:] == ["-h", "/s"]
    assert {"--client=8", "--jobs=8", "--time=12", "--random-seed=3", "--progress-timestamp",
            "--no-vacuum"} <= set(closed)  # fmt: skip
    assert not any(word.startswith(("--rate", "--log", "--sampling")) for word in closed)
    slow = pgbench.command_line("/p", [], rate=500.0, **given)
    assert {"--rate=500", "--log"} <= set(slow)
    assert not any("sampling" in word for word in slow)
    fast = pgbench.command_line("/p", [], rate=40_000.0, **given)
    assert "--sampling-rate=0.250000" in fast


# The service


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache of the module's own, deeper than a socket's path may be."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache") / ("deep-" * 20)
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


def resolved(host, **options) -> dict:
    asked = {"service": services.load("postgresql"), "rate": 10, **options}
    return drivers.driver("service").prepare(asked, host, "0", "0").options


def test_the_tables_are_four_times_the_caches_and_divided():
    host = topologies.topology(nodes=2, cores=4, cache_mib=256)
    one, two = resolved(host), resolved(host, instances=2)
    assert one["tables"] == 2 * two["tables"] == 4 * 2 * 256 << 20
    assert one["data"]["name"] != two["data"]["name"]


def test_only_reading_leaves_the_data_as_they_are():
    host = topologies.topology(nodes=1, cores=4)
    assert not resolved(host)["writes"]
    assert resolved(host, workload="tpcb-like")["writes"]


@needs_postgresql
def test_shared_buffers_are_proven_and_used_again(cache, tmp_path):
    told = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        (trial,) = service_runs.measure(folder, "postgresql", **SMALL)
        assert trial.grade == VERIFIED, trial.reason
        text = gzip.decompress((folder / trial.raw["stdout"]).read_bytes()).decode()
        told.append(json.loads(text.splitlines()[0]))
        rows = drivers.driver("service").metrics(drivers.driver("service").parse(text))
        value = {row.metric: row.value for row in rows}
        assert value["requests_per_second"] == pytest.approx(50, rel=0.5)
        assert value["saturation_requests_per_second"] > 0
        assert value["saturation_cpu_per_request"] > 0
        assert value["latency_p99"] >= value["latency_p50"] > 0
        looks = json.loads(gzip.decompress((folder / trial.raw["proof"]).read_bytes()))["proofs"]
        # Scale 2: 30 MiB of tables, in shared memory, all of it in every look.
        assert min(one["memory"]["anonymous_bytes"] for one in looks) > 30 << 20
    assert [one["data"] for one in told] in (["copied", "reused"], ["cloned", "reused"])
    assert "huge_pages=off" in told[0]["config"]
    assert not service_runs.own("/postgres -D")


@needs_postgresql
@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
def test_root_is_called_nobody_and_the_files_stay_its_own(cache, tmp_path):
    seen = []

    def look(pid: int) -> None:
        with open(f"/proc/{pid}/uid_map", encoding="ascii") as file:
            seen.append(file.read().split())

    with service_runs.killing("/postgres -D", once="/pgbench --no-vacuum", first=look):
        (trial,) = service_runs.measure(tmp_path / "run", "postgresql", **SMALL)
    assert seen == [["65534", "0", "1"]]
    assert {path.stat().st_uid for path in cache.rglob("PG_VERSION")} == {0}
    assert trial.grade == ERROR and "postgresql" in str(trial.reason), trial.reason
    assert "killed by SIGKILL" in str(trial.reason)
    assert not service_runs.own("/postgres -D")
