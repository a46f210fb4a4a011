"""HAProxy in front of instances: its configuration, its counters, its end."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
from collections import Counter

import pytest

from http_server import OK, Scripted
from numalab.agent import cpulist, kernel
from numalab.agent.errors import Fault, NotHere
from numalab.agent.served import balancer


@pytest.fixture
def found():
    try:
        return balancer.find()
    except NotHere as missing:
        pytest.skip(str(missing))


@contextlib.contextmanager
def running(found, folder, backends, cpus=None):
    folder.mkdir(exist_ok=True)
    cpus = cpus or cpulist.format(os.sched_getaffinity(0))
    one = balancer.Balancer(found, str(folder), backends, cpus, connections=8)
    try:
        one.wait_until_it_answers()
        yield one
    finally:
        one.kill()


def page(one, times=1):
    """Ask for a page so many times over one connection; return the statuses."""
    path = one.address[len("unix:") :]
    session = http.client.HTTPConnection("localhost")
    session.sock = socket.socket(socket.AF_UNIX)
    with session.sock:
        session.sock.connect(path)
        statuses = []
        for _ in range(times):
            session.request("GET", "/")
            answer = session.getresponse()
            answer.read()
            statuses.append(answer.status)
        return statuses


def test_the_configuration_is_a_function_of_the_instances():
    text = balancer.config_text({"instance 1": "unix:/run/a/s", "x": "1.2.3.4:80"}, 64)
    lines = [line.strip() for line in text.splitlines()]
    assert {"nbthread 1", "no numa-cpu-mapping", "balance leastconn", "maxconn 74"} <= set(lines)
    assert [line for line in lines if line.startswith("server ")] == [
        "server i0 unix@/run/a/s", "server i1 1.2.3.4:80"
    ]  # fmt: skip
    with pytest.raises(Fault, match="use a plain path"):
        balancer.config_text({"x": "unix:/run/a\n    server y"}, 1)


def test_instances_share_the_requests_and_each_is_counted(found, tmp_path):
    asked: Counter = Counter()

    def answer(name):
        def script(number, request):
            asked[name] += 1
            return [OK]

        return script

    first, second = (Scripted(answer(name), f"{tmp_path}/{name}.sock") for name in "ab")
    with first, second, running(
        found, tmp_path / "b", {"instance 1": first.to, "instance 2": second.to}
    ) as one:  # fmt: skip
        before = one.counters()
        assert set(before) == {
            f"{metric}:instance {n}"
            for metric in ("instance_requests", "instance_errors")
            for n in (1, 2)
        }
        assert not any(before.values())
        assert page(one, 20) == [200] * 20
        told = one.counters()
        assert told["instance_requests:instance 1"] == asked["a"] > 0
        assert told["instance_requests:instance 2"] == asked["b"] > 0
        assert asked["a"] + asked["b"] == 20
        assert told["instance_errors:instance 1"] == told["instance_errors:instance 2"] == 0
        assert one.usage()["cpu_s"] > 0
        one.stop()
    assert one.about()["title"].startswith("HAProxy ") and "leastconn" in one.about()["config"]


def test_an_instance_that_does_not_answer_is_counted_as_errors(found, tmp_path):
    with (
        Scripted(lambda n, request: [OK], f"{tmp_path}/s") as server,
        running(found, tmp_path / "b", {"well": server.to, "gone": f"unix:{tmp_path}/none"}) as one,
    ):
        statuses = page(one, 10)
        told = one.counters()
    assert set(statuses) == {200, 503}
    assert told["instance_errors:gone"] == statuses.count(503)
    assert told["instance_requests:well"] == statuses.count(200)
    assert told["instance_requests:gone"] == told["instance_errors:well"] == 0


def test_it_answers_over_tcp_instances_too(found, tmp_path):
    with (
        Scripted(lambda n, request: [OK]) as server,
        running(found, tmp_path, {"": server.to}) as one,
    ):
        assert page(one, 3) == [200] * 3
        assert one.counters()["instance_requests:"] == 3


def test_one_thread_on_the_cpus_that_it_was_given(found, tmp_path):
    cpu = max(os.sched_getaffinity(0))
    with running(found, tmp_path, {"": "127.0.0.1:1"}, str(cpu)) as one:
        assert len(list(kernel.threads(one.pid))) == 1
        assert os.sched_getaffinity(one.pid) == {cpu}


def test_its_death_is_found_and_said(found, tmp_path):
    with running(found, tmp_path, {"": "127.0.0.1:1"}) as one:
        one.check_alive("in the measurement")
        os.kill(one.pid, signal.SIGSEGV)
        with pytest.raises(Fault) as raised:
            one.check_alive("in the measurement", 10)
        assert "(HAProxy " in str(raised.value)
        assert "died in the measurement (killed by SIGSEGV)" in str(raised.value)
        with pytest.raises(Fault, match="HAProxy .* died while it was asked for its counters"):
            one.counters()


def test_one_that_refuses_to_start_says_why(found, tmp_path, monkeypatch):
    plain = balancer.config_text
    monkeypatch.setattr(balancer, "config_text", lambda *given: plain(*given) + "    bogus\n")
    with pytest.raises(Fault) as raised, running(found, tmp_path, {"": "127.0.0.1:1"}):
        pass
    assert "refused to start" in str(raised.value) and "bogus" in str(raised.value)


def test_one_that_stands_still_is_not_waited_for(found, tmp_path, monkeypatch):
    with running(found, tmp_path, {"": "127.0.0.1:1"}) as one:
        monkeypatch.setattr(balancer, "_ASK_LIMIT_S", 0.2)
        os.kill(one.pid, signal.SIGSTOP)
        with pytest.raises(Fault, match="does not answer when it is asked for its counters"):
            one.counters()


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("HA-Proxy version 2.2.9-2+deb11u5 2023/04/10", "HAProxy 2.2.9-2.deb11u5 is too old"),
        ("nginx version: nginx/1.22", "does not say that it is HAProxy"),
    ],
)
def test_a_program_that_cannot_be_used_is_refused(tmp_path, says, why):
    fake = tmp_path / "haproxy"
    fake.write_text(f"#!/bin/sh\necho '{says}'\n")
    fake.chmod(0o755)
    with pytest.raises(Fault, match=why):
        balancer.find(str(fake))


def test_one_that_a_signal_kills_is_not_called_another_program(tmp_path):
    """As HAProxy is by SIGILL, where the processor lacks what it was compiled for."""
    fake = tmp_path / "haproxy"
    fake.write_text("#!/bin/sh\nkill -ILL $$\n")
    fake.chmod(0o755)
    with pytest.raises(Fault, match=r"haproxy -v was killed by SIGILL"):
        balancer.find(str(fake))


@pytest.mark.parametrize("version", ["2.6.12-1+deb12u4", "3.0.11-1+deb13u1", "3.3.0"])
def test_versions_from_2_4_on_are_used(tmp_path, version):
    fake = tmp_path / "haproxy"
    fake.write_text(
        f"#!/bin/sh\necho 'HAProxy version {version} 2025/06/02 - https://haproxy.org/'"
    )
    fake.chmod(0o755)
    assert balancer.find(str(fake)).version == version


def test_where_there_is_none_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(balancer, "_PLACES", str(tmp_path))
    with pytest.raises(NotHere, match="apt install haproxy.*balancer=none"):
        balancer.find()
