"""A client on another host: with an ssh of our own that stays on this one."""

from __future__ import annotations

import os
import socket

import pytest

from numalab.agent.contract import ClientCpus
from numalab.agent.errors import Fault
from numalab.agent.host import topology
from numalab.agent.plan import make as planning
from numalab.agent.plan import show
from numalab.agent.served import remote
from numalab.agent.served.mysql import server, wire
from test_mysql_server import (
    DRIVER,
    cache,
    fault_of,
    measure,
    needs_server,
    perform,
    raw_text,
    request,
    resolved,
    tables,
)

__all__ = ["cache"]  # the fixture
SSH = """#!/bin/sh
while :; do case $1 in -o) shift 2 ;; -T) shift ;; *) break ;; esac; done
host=$1; shift
case $host in
    gone) echo "ssh: connect to host gone port 22: No route to host" >&2; exit 255 ;;
    bare) PATH=/nowhere ;;
    behind) ours=192.0.2.1 ;;
esac
export SSH_CONNECTION="${ours:-127.0.0.1} 50000 127.0.0.1 22"
exec /bin/sh -c "$*"
"""


@pytest.fixture(autouse=True)
def ssh(tmp_path, monkeypatch):
    """An ssh whose hosts are this one: ``gone`` is away, ``bare`` has no sysbench."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@needs_server
def test_a_trial_is_asked_from_another_host_and_its_copy_is_used_again(cache, tmp_path):
    for name in ("one", "two"):
        (record,) = measure(tmp_path / name, client_host="load1")
        assert record.grade == "verified", record.reason
    parsed = DRIVER.parse(raw_text(tmp_path / "two", record, "stdout"))
    about = next(r for r in parsed if r["kind"] == "server")
    assert about["data"] == "reused" and about["variables"]["skip_networking"] == "OFF"
    assert "127.0.0.1" not in about["config"]  # a record that may be published holds no address
    asked = next(r for r in parsed if r["kind"] == "run")
    assert asked["client_cpus"] == os.cpu_count() and asked["client_cpu_s"] > 0
    rows = {row.metric: row.value for row in DRIVER.metrics(parsed)}
    assert rows["queries_per_second"] > 0 and rows["client_cpu_time"] == asked["client_cpu_s"]
    plan = planning.make(request(client_host="load1"), topology.read())
    assert "client: on load1" in show.text(plan)
    assert plan.client == ClientCpus(None, host="load1")
    assert "on load1" in plan.tool.version
    notes = plan.cells[0].notes
    assert [note.fields["host"] for note in notes if note.code == "client-elsewhere"] == ["load1"]
    assert "client-shares-cpus" not in [note.code for note in notes]


@needs_server
def test_nobody_else_may_come_in_and_nothing_is_left_of_the_account(cache):
    seen = []

    def look(event):
        with _session(tables(options).folder / "work-0") as session:
            seen.extend(session.query("SELECT user, host FROM mysql.user WHERE user = 'numalab'"))
            seen.extend(session.query("SELECT @@bind_address"))

    options = resolved(client_host="load1")
    status, events = perform(options, at={"ready": look})
    assert status == 0, events[-1]
    assert seen == [("numalab", "127.0.0.1"), ("127.0.0.1",)]
    left = []
    status, events = perform(
        resolved(), at={"ready": lambda event: left.extend(_accounts(options))}
    )
    assert status == 0 and left == []


def _session(folder):
    here = os.open(folder, os.O_RDONLY)
    try:
        return wire.Connection(f"/proc/self/fd/{here}/{server.SOCKET}")
    finally:
        os.close(here)


def _accounts(options):
    with _session(tables(options).folder / "work-0") as session:
        return session.query("SELECT user FROM mysql.user WHERE user = 'numalab'")


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("gone", "cannot be used: ssh: connect to host gone port 22: No route to host"),
        ("bare", "has no sysbench"),
        ("-oProxyCommand=x", "is not the name of a host"),
        ("root@load1", "is not the name of a host"),
        (7, "is not the name of a host"),
    ],
)
def test_a_host_that_cannot_be_the_client_is_named(host, words):
    with pytest.raises(Fault, match=words):
        remote.look(host, "sysbench")


def test_without_ssh_the_message_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Fault, match="needs ssh"):
        remote.look("load1", "sysbench")


def test_an_address_that_is_not_ours_is_named():
    with pytest.raises(Fault, match="sees this one as 192.0.2.1, where no server can listen"):
        remote.free_port(remote.look("behind", "sysbench").ours)


@needs_server
def test_a_client_that_cannot_be_started_there_is_an_error_with_its_words(cache, ssh):
    options = resolved(client_host="load1")
    (ssh / "sysbench").write_text("#!/bin/sh\n[ $1 = --version ] && echo 1.0.20 && exit\nexit 7\n")
    (ssh / "sysbench").chmod(0o755)
    status, events = perform(options, warmup_s=1)
    assert status != 0 and "sysbench failed in the warm-up (exit status 7)" in fault_of(events)


@needs_server
def test_cpus_here_and_a_client_elsewhere_contradict_each_other():
    asked = request(client_host="load1", client_cpus="0")
    with pytest.raises(Fault, match="client_cpus are this host's"):
        planning.make(asked, topology.read())


def test_the_time_of_a_client_is_taken_off_its_output():
    said = "Threads fairness:\n    x\n\n0m0.004s 0m0.001s\n1m2.500s 0m0.250s\n"
    assert remote.cpu_time(said) == ("Threads fairness:\n    x\n\n", 62.75)
    assert remote.cpu_time("FATAL: no\n") == ("FATAL: no\n", 0.0)


def test_the_port_is_free():
    port = remote.free_port("127.0.0.1")
    with socket.socket() as one:
        one.bind(("127.0.0.1", port))
