"""Private servers, their data sets and the trials on them: with a real server, faults included."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import waiting
from numalab.agent import cpulist, drivers, paths
from numalab.agent.contract import (
    SCHEMA,
    Reason,
    Request,
    ToolRecord,
    TrialRecord,
    dumps,
    from_json,
    to_json,
)
from numalab.agent.errors import Fault
from numalab.agent.host import topology
from numalab.agent.plan import make as planning
from numalab.agent.served import client, dataset, instance
from numalab.agent.served import trial as served
from numalab.agent.served.mysql import instance as mysql
from numalab.agent.served.mysql import server, wire
from numalab.agent.served.mysql.data import SysbenchTables
from numalab.agent.served.mysql.driver import final_results
from numalab.agent.served.mysql.trial import MySQLTrial
from numalab.agent.trial import journal, run

# Whichever server there is, or the one whose program NUMALAB_TEST_SERVER names.
NAMED = {"server": os.environ.get("NUMALAB_TEST_SERVER")}
DRIVER = drivers.driver("mysql_server")
try:
    FOUND = DRIVER.find(NAMED)
    WHY = ""
except Fault as fault:
    FOUND, WHY = ToolRecord("mysql_server"), str(fault)
needs_server = pytest.mark.skipif(bool(WHY), reason=WHY or "there is a server")
SIZE = {"tables": 2, "rows": 500}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache with one small data set, deep enough that a socket's full path would not fit."""
    folder = tmp_path_factory.mktemp("cache") / ("deep-" * 20) / "x"
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    tables().make(lambda event: None)
    yield folder
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


def resolved(**options):
    given = {**NAMED, **SIZE, "clients": 2, "time_s": 1, "warmup_s": 0, **options}
    return DRIVER.prepare(given, topology.read(), "0", "0").options


def tables(options=None):
    return SysbenchTables(FOUND, options or resolved())


def request(**options):
    asked = {
        "schema": SCHEMA, "experiment": "mysql", "profile": "smoke", "host": "here",
        "tool": {"name": "mysql", "prefer": ["mysql_server"],
                 "options": {**NAMED, **SIZE, "clients": 2, "time_s": 1, "warmup_s": 0, **options}},
        "bindings": ["cpus-only"], "baseline": "cpus-only", "control": False, "blocks": 1,
        "seed": 1, "headline": "queries_per_second", "collectors": {"perf": False},
    }  # fmt: skip
    return from_json(Request, asked)


def measure(folder: Path, **options) -> list[TrialRecord]:
    """Run one block of one cell; return its journal."""
    plan = planning.make(request(**options), topology.read())
    run.run(plan, folder, emit=lambda event: None, lock_name=f"numalab-test-{os.getpid()}",
            record=folder.parent / "settings.json")  # fmt: skip
    return list(journal.read(folder / "journal.ndjson"))


def raw_text(folder: Path, record: TrialRecord, kind: str) -> str:
    return gzip.decompress((folder / record.raw[kind]).read_bytes()).decode()


def perform(options=None, instances=None, sysbench=None, at=None, **changes):
    """Perform one trial in this process; ``at`` maps an event to what is done when it is said."""
    events, orders = [], Orders()
    options = {**(options or resolved()), **changes}
    facts = {**FOUND.facts, "sysbench": sysbench or FOUND.facts["sysbench"]}

    def say(event):
        events.append(event)
        (at or {}).get(event["event"], lambda event: None)(event)
        orders.answer(event["event"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served, "say", say)
        status = served.main(
            MySQLTrial,
            ["--tool", dumps(replace(FOUND, facts=facts)),
             "--instances", json.dumps(instances or [{"name": "", "cpus": None}]),
             "--options", json.dumps(options)], orders)  # fmt: skip
    return status, events


class Orders(io.StringIO):
    """What the engine says: go after ready, quit after the result."""

    def __init__(self):
        super().__init__()
        self.next = ""

    def answer(self, event):
        self.next = {"ready": "go\n", "result": "quit\n"}.get(event, self.next)

    def readline(self, *_):
        return self.next


def fault_of(events):
    """The sentence of the fault's reason."""
    said = next(event for event in events if event["event"] == "fault")
    return str(from_json(Reason, said["reason"]))


def parsed_of(events):
    return DRIVER.parse("\n".join(json.dumps(event) for event in events))


@pytest.fixture
def when_measured(monkeypatch):
    """Have something done with a client as soon as it has seen that its measurement began."""

    def do(act):
        begin = client.Client._begin

        def begun(self):
            begin(self)
            act(self)

        monkeypatch.setattr(client.Client, "_begin", begun)

    return do


def servers_alive(folder) -> list:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes()
                state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if f"--datadir={folder}".encode() in words and state not in "ZX":
                found.append(int(name))
    return found


# --- the server -------------------------------------------------------------------------------


def fake_server(path: Path, version: str, names="innodb_buffer_pool_size"):
    table = "\n".join(f"{name.replace('_', '-')}  1" for name in names.split())
    path.write_text(
        "#!/bin/sh\ncase \"$*\" in *--help*) cat <<'E'\nVariables (--variable-name=value)\n"
        f"-------------------------------- ---------\n{table}\nE\n;;\n"
        f"*) echo '{path}  Ver {version}';; esac\n"
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("said", "vendor", "version"),
    [
        ("8.4.3 for Linux on x86_64 (MySQL Community Server - GPL)", "MySQL", "8.4.3"),
        ("9.7.4-2 for Linux on x86_64 ((Debian))", "MySQL", "9.7.4"),
        ("11.4.5-MariaDB-1 for debian-linux-gnu on x86_64 (Debian n/a)", "MariaDB", "11.4.5"),
        ("11.8.6-MariaDB-0+deb13u1 from Debian for debian-linux-gnu on aarch64 (-- Please help)",
         "MariaDB", "11.8.6"),
        ("8.0.36-28 for Linux on x86_64 (Percona Server (GPL), Release 28)", "Percona Server",
         "8.0.36"),
    ],
)  # fmt: skip
def test_a_server_is_named_with_vendor_version_and_build(tmp_path, said, vendor, version):
    found = server.find(fake_server(tmp_path / "mysqld", said))
    assert (found.vendor, found.version) == (vendor, version)
    assert found.build == said.partition(" (--")[0]
    assert found.known == {"innodb_buffer_pool_size": "1"}


def test_the_vendor_that_is_asked_for_is_found_or_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "FOLDERS", ())
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(Fault, match="no MySQL or MariaDB server"):
        server.find()
    fake_server(tmp_path / "mysqld", "9.1.0 for Linux on x86_64 (MySQL Community Server - GPL)")
    assert server.find().vendor == "MySQL"
    with pytest.raises(Fault, match=r"no mariadb server here, only MySQL 9\.1\.0"):
        server.find("mariadb")
    fake_server(tmp_path / "mariadbd", "11.4.5-MariaDB for Linux on x86_64 (x)")
    assert server.find().vendor == "MySQL"
    assert server.find(prefer=["mariadb", "mysql"]).vendor == "MariaDB"
    with pytest.raises(Fault, match="neither a path nor a vendor"):
        server.find("postgres")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("5.5.62 for Linux on x86_64 (x)", r"is MySQL 5\.5\.62"),
        ("10.1.48-MariaDB for Linux on x86_64 (x)", r"is MariaDB 10\.1\.48"),
        ("hello", "does not say that it is"),
    ],
)
def test_a_server_too_old_or_none_is_refused(tmp_path, said, words):
    with pytest.raises(Fault, match=words):
        server.find(fake_server(tmp_path / "mysqld", said))
    with pytest.raises(Fault, match="does not run"):
        server.find(str(tmp_path / "nothing"))


def test_the_configuration_has_what_the_server_knows_and_no_path():
    names = (
        "innodb_buffer_pool_size", "innodb_numa_interleave", "innodb_redo_log_capacity", "log_bin",
        "skip_networking", "performance_schema", "innodb_doublewrite", "mysqlx", "secure_file_priv",
    )  # fmt: skip
    known = dict.fromkeys(names, "")
    mysql = server.Server("/x/mysqld", "MySQL", "9.1.0", "9.1.0 for Linux", known)
    options = {"writes": False, "clients": 100, "pool_bytes": 256 << 20, "pool_parts": 1,
               "redo_bytes": 1 << 30, "tables": 4, "innodb_numa_interleave": "OFF"}  # fmt: skip
    chosen = server.settings(mysql, options, {"innodb-doublewrite": True})
    assert set(chosen) == {name.replace("log_bin", "skip_log_bin") for name in known}
    assert chosen["innodb_numa_interleave"] == "OFF" and chosen["innodb_doublewrite"] == "ON"
    text = server.config_text(mysql, chosen)
    assert "/x" not in text and "\nskip_log_bin\n" in text
    assert "innodb_redo_log_capacity = 1073741824" in server.config_text(
        mysql, server.settings(mysql, {**options, "writes": True})
    )
    with pytest.raises(Fault, match="knows no setting 'innodb_io_capacity'"):
        server.settings(mysql, options, {"innodb_io_capacity": 1})
    with pytest.raises(Fault, match="numalab's to set"):
        server.settings(mysql, options, {"innodb_numa_interleave": "ON"})


def test_the_redo_log_and_the_files_are_set_by_each_servers_own_names():
    options = {"writes": True, "clients": 2048, "pool_bytes": 4 << 30, "pool_parts": 16,
               "redo_bytes": 8 << 30, "tables": 10, "innodb_numa_interleave": "OFF"}  # fmt: skip
    names = ["innodb_log_file_size", "open_files_limit", "innodb_flush_method",
             "innodb_data_file_buffering", "innodb_adaptive_flushing"]  # fmt: skip
    known = {**dict.fromkeys(names, ""), "innodb_log_files_in_group": "2"}
    old = server.settings(server.Server("/m", "MySQL", "5.7.44", "", known), options)
    assert old["innodb_log_file_size"] == str(4 << 30) and old["innodb_flush_method"] == "O_DIRECT"
    assert int(old["open_files_limit"]) > 2048 + 80 + 2 * 10 * (2048 + 80)
    assert old["innodb_adaptive_flushing"] == "OFF"
    known = {**dict.fromkeys(names, ""), "innodb_log_files_in_group": ""}
    maria = server.Server("/m", "MariaDB", "11.4.1", "", known)
    assert server.settings(maria, options)["innodb_log_file_size"] == str(8 << 30)
    assert server.settings(maria, options).get("innodb_data_file_buffering") is None
    reading = server.settings(maria, {**options, "writes": False})
    assert reading["innodb_data_file_buffering"] == "ON"


def test_a_client_that_was_the_limit_makes_its_trial_unverified():
    def said(used, **options):
        runs = [{"kind": "run", "instance": f"instance {n}", "elapsed_s": 10.0,
                 "client_cpu_s": used / 2} for n in (1, 2)]  # fmt: skip
        options = {"client_cpus": "0-3", "client_shares": False, **options}
        return DRIVER.unverified(runs, options)

    assert said(36.1).code == "client-was-the-limit" and "90.3 % of its own CPUs" in str(said(36.1))
    assert said(35.9) is None and said(39.0, client_shares=True) is None


def test_a_trial_that_waited_for_the_disk_or_missed_its_rate_says_so():
    run = {"kind": "run", "instance": "", "elapsed_s": 2.0, "client_cpu_s": 1.0,
           "status": {"Innodb_buffer_pool_reads": 0, "Innodb_log_waits": 2,
                      "log_on_file_space_waits": 3,
                      "Innodb_buffer_pool_pages_flushed": 9}}  # fmt: skip
    done = {"kind": "result", "name": "transactions_per_second", "value": 940.0, "instance": ""}
    said = DRIVER.doubts([run, done], {"rate": 1000})
    assert [one.code for one in said] == ["waited-for-disk", "rate-missed"]
    assert "redo log: 9, waits for the disk: 5" in str(said[0]) and "940 of 1000" in str(said[1])
    assert DRIVER.doubts([{**run, "status": {"Innodb_log_waits": 0}}, done], {"rate": 0}) == []
    full = {**run, "status": {"Innodb_buffer_pool_pages_flushed": 1}}
    assert [one.code for one in DRIVER.doubts([full], {"rate": 0})] == ["waited-for-disk"]


def test_last_words_are_the_errors_without_their_time(tmp_path):
    log = tmp_path / "log"
    log.write_text(
        "2026-11-21 15:19:00 0 [Note] Starting\n"
        "2026-11-21T15:19:04.123456Z 0 [ERROR] [MY-010119] [Server] Aborting\n"
        "2026-11-21T15:19:04.123456Z 1 [ERROR] [MY-012574] [InnoDB] Unable to lock ./ibdata1\n"
    )
    assert server.error_words(log) == "[ERROR] [MY-012574] [InnoDB] Unable to lock ./ibdata1"
    log.write_text("numalab: CPUs 9 are offline\n")
    assert server.error_words(log) == "numalab: CPUs 9 are offline"
    assert server.error_words(tmp_path / "none") == ""
    log.write_text('[ERROR] Error: 28 "No space left on device"\n')
    assert "disk is full" in instance.out_of_space(log)


# --- the data set -----------------------------------------------------------------------------


@needs_server
def test_the_data_set_is_whole_and_its_copies_follow_it(cache):
    made = tables()
    place, record = made.folder, made.record()
    assert (record["tables"], record["rows"]) == (2, 500)
    assert record["server"] == FOUND.facts["server"]
    first = made.take(5)
    assert first.how in ("copied", "cloned") and first.bytes == record["bytes"]
    with pytest.raises(Fault, match="in use by another server"):
        made.take(5)
    os.close(first.lock)
    made.mark_clean(5)
    again = made.take(5)
    assert again.how == "reused" and Path(again.datadir).is_dir()
    os.close(again.lock)
    dirty = made.take(5)  # nobody said that it is clean
    assert dirty.how in ("copied", "cloned")
    os.close(dirty.lock)
    for name, size in record["files"].items():
        copied, original = Path(dirty.datadir, name), place / "pristine" / name
        assert copied.stat().st_size == size and copied.read_bytes() == original.read_bytes()
    shutil.rmtree(dirty.datadir)


@needs_server
def test_a_data_set_that_lost_a_file_is_none(cache, tmp_path):
    made = tables()
    copy = tmp_path / "set"
    shutil.copytree(made.folder / "pristine", copy / "pristine")
    shutil.copy(made.folder / "data.json", copy)
    made.folder = copy
    assert made.record()
    (copy / "pristine" / "ibdata1").unlink()
    assert made.record() is None
    with pytest.raises(Fault, match="no whole data set"):
        made.take()


@needs_server
def test_a_preparation_that_is_killed_leaves_no_data_set(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = tables({**resolved(), "rows": 200_000})
    maker = subprocess.Popen([sys.executable, "-m", made.module, made.arguments()],
                             stdout=subprocess.PIPE, text=True,
                             env={**os.environ, **dataset.environment()})  # fmt: skip
    making = made.folder.parent / f".making-{made.folder.name}"
    while "loading" not in maker.stdout.readline():
        assert maker.poll() is None
    assert servers_alive(making / "pristine")
    maker.kill()
    maker.wait()
    maker.stdout.close()
    waiting.wait_for(lambda: not servers_alive(making / "pristine"), tells=waiting.processes)
    assert making.is_dir() and not made.folder.exists() and made.record() is None

    def fail(datadir, *_):
        assert not list(datadir.iterdir())  # what the killed one left is gone
        raise Fault("enough")

    monkeypatch.setattr(made, "fill", fail)
    with pytest.raises(Fault, match="enough"):
        made.make(lambda event: None)
    assert not making.exists()


@needs_server
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_disk_that_is_too_small_is_named(tmp_path, monkeypatch):
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=170m", "tmpfs", tmp_path])
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        with pytest.raises(Fault, match=r"needs about .* GiB of disk .* are free") as caught:
            resolved(rows=50_000)
        assert caught.value.reason.code == "data-needs-disk"
        monkeypatch.setattr(dataset, "free_bytes", lambda: 1 << 40)
        made = tables(resolved(rows=400_000))
        with pytest.raises(Fault) as caught:
            made.make(lambda event: None)
        assert "the disk is full" in str(caught.value)
        assert not [p for p in made.folder.parent.iterdir() if p.name != ".lock"]
    finally:
        subprocess.run(["umount", tmp_path], check=True)


# --- a trial ----------------------------------------------------------------------------------


@needs_server
def test_a_trial_measures_and_reuses_its_copy(cache, tmp_path):
    records = [measure(tmp_path / name)[0] for name in ("one", "two")]
    for record in records:
        assert record.grade == "verified", record.reason
        assert record.argv[0] == "python3"  # no path of the host's, wherever its Python is
    text = raw_text(tmp_path / "two", record, "stdout")
    parsed = DRIVER.parse(text)
    about = next(r for r in parsed if r["kind"] == "server")
    assert about["data"] == "reused" and about["variables"]["skip_networking"] == "ON"
    assert "innodb_numa_interleave = OFF" in about["config"]
    assert str(cache) not in text and os.path.expanduser("~/") not in text
    rows = {row.metric: row for row in DRIVER.metrics(parsed)}
    assert all(row.point == "" for row in rows.values())
    for name in ("queries_per_second", "latency_p50", "latency_p99", "cpu_per_query"):
        assert rows[name].value > 0, rows[name]
    assert rows["latency_p50"].value <= rows["latency_p99"].value
    assert rows["pool_reads"].value == rows["errors"].value == 0
    # The proof is of the server, not of the client or of the trial's own process.
    for proof in json.loads(raw_text(tmp_path / "two", record, "proof"))["proofs"]:
        assert proof["memory"]["processes"] == 1 and proof["cpus"]["threads"] > 5
    assert not servers_alive(paths.cache_folder())


@needs_server
def test_the_warm_up_is_in_no_figure(cache, when_measured):
    """By the clocks of whoever counts: on a busy machine all take longer than was asked."""
    clients = []
    when_measured(clients.append)
    options = resolved(warmup_s=1, time_s=2)
    status, events = perform(options)
    assert status == 0, events[-1]
    parsed = parsed_of(events)
    asked = next(r for r in parsed if r["kind"] == "run")
    lead_s, (one,) = asked["lead_s"], clients
    assert lead_s >= 2 and one.measured - one.began >= lead_s
    assert asked["elapsed_s"] == round(one.ended - one.measured, 4)
    final = final_results(parsed, asked)
    totals = [r for r in parsed if r.get("name") == "total_time" and "checkpoint_s" in r]
    counted_s = final["total_time"] - totals[0]["value"]
    assert abs(final["queries"] / final["queries_per_second"] - counted_s) < lead_s / 4
    buckets = [r for r in parsed if r["kind"] == "histogram" and "checkpoint_s" not in r]
    # sysbench resets one after the other, while its threads go on; the warm-up would double it.
    assert abs(sum(r["count"] for r in buckets) / final["transactions"] - 1) < 0.3
    warm = [r for r in parsed if r.get("name") == "transactions" and "checkpoint_s" in r]
    assert len(warm) == 1  # what the checkpoint took away
    asked_for = next(e for e in events if e["event"] == "run")["status"]["Com_select"]
    assert 0 < asked_for / final["queries"] < 1.1  # we may see the checkpoint late
    series = [s.t_s for s in DRIVER.samples(parsed) if s.metric == "queries_per_second"]
    assert 0 < min(series) <= max(series) <= final["total_time"] - lead_s + 0.5


@needs_server
def test_a_workload_that_writes_gets_a_fresh_copy(cache):
    options = resolved(workload="oltp_read_write")
    for _ in range(2):
        status, events = perform(options)
        assert status == 0, events[-1]
    assert events[0]["data"] in ("copied", "cloned")
    run_event = next(event for event in events if event["event"] == "run")
    assert "write:" in run_event["text"] and run_event["exit_status"] == 0
    parsed = parsed_of(events)
    assert DRIVER.failure(parsed, options) is None
    values = {row.metric: row.value for row in DRIVER.metrics(parsed)}
    assert values["transactions_per_second"] > 0


@needs_server
def test_a_server_that_refuses_to_start_is_quoted(cache, tmp_path):
    records = measure(tmp_path / "run", server_options={"innodb_page_size": 4096})
    assert records[0].grade == "error" and records[0].reason.code == "server-refused-to-start"
    assert "refused to start" in str(records[0].reason) and "page" in str(records[0].reason)
    assert "exit status 3" not in str(records[0].reason)
    assert measure(tmp_path / "next")[0].grade == "verified"


@needs_server
def test_a_server_that_dies_in_the_middle_is_an_error_and_costs_only_its_copy(cache, when_measured):
    pids = []
    when_measured(lambda _: pids and os.kill(pids.pop(), signal.SIGKILL))
    status, events = perform(at={"ready": lambda e: pids.extend(e["pids"])}, time_s=3600)
    assert status == 3
    assert "died in the measurement (killed by SIGKILL)" in fault_of(events)
    status, events = perform()
    assert status == 0 and events[0]["data"] in ("copied", "cloned")


@needs_server
def test_a_server_that_hangs_at_shutdown_is_killed(cache, monkeypatch):
    monkeypatch.setattr(instance, "STOP_LIMIT_S", 0.5)
    pids = []

    def freeze(event):
        os.kill(pids[0], signal.SIGSTOP)

    status, events = perform(at={"ready": lambda e: pids.extend(e["pids"]), "result": freeze})
    assert status == 3
    assert "did not shut down within 0.5 s and was killed" in fault_of(events)
    assert not os.path.exists(f"/proc/{pids[0]}")


@needs_server
def test_a_server_that_hangs_in_the_middle_ends_with_its_client(cache, monkeypatch, when_measured):
    def freeze(pid, patch):
        """From then on nobody is patient."""
        os.kill(pid, signal.SIGSTOP)
        patch.setattr(client, "GRACE_S", 0.5)
        patch.setattr(mysql, "ASK_LIMIT_S", 0.5)

    pids = []
    with monkeypatch.context() as patch:
        when_measured(lambda _: freeze(pids.pop(), patch))
        status, events = perform(at={"ready": lambda e: pids.extend(e["pids"])})
    assert status == 3
    assert "sysbench did not end within 0 s after its" in fault_of(events)
    with monkeypatch.context() as patch:
        status, events = perform(at={"ready": lambda e: freeze(e["pids"][0], patch)})
    assert status == 3 and "the server did not answer either" in fault_of(events)
    assert not servers_alive(paths.cache_folder())


@needs_server
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'FATAL: mysql_drv_query() returned error 1213'; exit 1",
         "sysbench failed in the warm-up (exit status 1): FATAL: mysql_drv"),
        ("echo '[ 1s ] Checkpoint report:'; until [ -e $0.seen ]; do sleep 0.05; done\n"
         "echo 'FATAL: lost it'; exit 1",
         "sysbench failed in the measurement (exit status 1): FATAL: lost it"),
        ("kill -9 $$", "sysbench failed in the warm-up (exit status -9)"),
    ],
)  # fmt: skip
def test_a_client_that_fails_is_quoted(cache, tmp_path, when_measured, script, words):
    fake = tmp_path / "sysbench"
    when_measured(lambda _: (tmp_path / "sysbench.seen").touch())
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    status, events = perform(sysbench=str(fake))
    assert status == 3 and fault_of(events).startswith(words)


@needs_server
def test_a_client_whose_cpus_are_gone_is_named(cache):
    status, events = perform(client_cpus="4095")
    assert status == 3 and "CPUs 4095: they are offline or outside" in fault_of(events)


@needs_server
def test_a_binding_that_cannot_be_had_is_quoted(cache):
    status, events = perform(instances=[{"name": "", "cpus": "4095"}])
    assert status == 3 and "refused to start" in fault_of(events)
    assert "cannot be bound to CPU 4095" in fault_of(events)


@needs_server
def test_several_instances_run_at_the_same_time(cache):
    instances = [{"name": f"instance {n}", "cpus": None} for n in (1, 2)]
    pids = []
    status, events = perform(instances=instances, at={"ready": lambda e: pids.extend(e["pids"])},
                             **{"rate": 200})  # fmt: skip
    assert status == 0 and len(set(pids)) == 2
    parsed = parsed_of(events)
    rows = [row for row in DRIVER.metrics(parsed) if row.metric == "queries_per_second"]
    assert [row.point for row in rows] == ["instance 1", "instance 2"]
    assert all(0 < row.value < 1000 for row in rows)  # without a rate it is tens of thousands
    assert {one.point for one in DRIVER.samples(parsed)} <= {"instance 1", "instance 2"}


@needs_server
def test_an_agent_that_is_killed_leaves_no_server(cache, tmp_path):
    plan = planning.make(request(time_s=30), topology.read())
    (tmp_path / "plan.json").write_text(json.dumps(to_json(plan)))
    code = (
        "import sys, json, pathlib; from numalab.agent.trial import run; "
        "from numalab.agent.contract import Plan, from_json; "
        "run.run(from_json(Plan, json.load(open(sys.argv[1]))), pathlib.Path(sys.argv[2]), "
        "lock_name=sys.argv[3], emit=lambda e: None, busy=True)"
    )
    agent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "plan.json"), str(tmp_path / "run"),
         f"numalab-test-{os.getpid()}"], env={**os.environ, **dataset.environment()})  # fmt: skip
    waiting.wait_for(lambda: servers_alive(paths.cache_folder()), agent)
    agent.kill()
    agent.wait()
    waiting.wait_for(lambda: not servers_alive(paths.cache_folder()), tells=waiting.processes)


# --- the wire ---------------------------------------------------------------------------------


@needs_server
def test_the_wire_reads_values_of_all_lengths(cache):
    options = resolved()
    copy = tables(options).take(7)
    found = server.find(FOUND.path)
    running = mysql.RunningMySQL(
        found, copy.datadir, server.settings(found, options), options, keep_open=(copy.lock,)
    )
    try:
        running.wait_until_it_answers()
        with running.connect() as session:
            row = session.query("SELECT 1, NULL, '', REPEAT('x', 300), REPEAT('y', 70000)")[0]
            assert row == ("1", None, "", "x" * 300, "y" * 70000)
            with pytest.raises(wire.QueryRefused, match="error 1064") as caught:
                session.query("nonsense")
            assert caught.value.code == 1064
            assert session.pairs("SHOW GLOBAL VARIABLES LIKE 'skip_networking'") == {
                "skip_networking": "ON"
            }
        running.stop()
    finally:
        running.kill()
        os.close(copy.lock)
        shutil.rmtree(copy.datadir)


@needs_server
def test_the_server_does_not_inherit_the_clients_cpus(cache):
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        pytest.skip("there is one CPU: the client has none of its own")
    first, last = str(mine[0]), str(mine[-1])
    seen = []

    def look(event):
        text = Path(f"/proc/{event['pids'][0]}/status").read_text()
        seen.append(text.split("Cpus_allowed_list:")[1].split()[0])

    try:
        for cpus in (None, first):
            instances = [{"name": "", "cpus": cpus}]
            _, events = perform(instances=instances, client_cpus=last, at={"ready": look})
            # What it then measured is no question here; a loaded machine may fail that.
            assert "ready" in [event["event"] for event in events], fault_of(events)
            os.sched_setaffinity(0, mine)
    finally:
        os.sched_setaffinity(0, mine)
    assert seen == [cpulist.format(mine), first]
