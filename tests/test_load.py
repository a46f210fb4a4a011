"""numalab-load: its arithmetic, what servers do to it, and what is read of its output."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cross_compiling
from http_server import OK, Frozen, Scripted
from numalab.agent import compiled
from numalab.agent.contract import ToolRecord
from numalab.agent.errors import Fault, ParseError
from numalab.agent.served import load
from numalab.agent.served.instance import RunningServer
from numalab.agent.served.load import client

SOURCE = Path(load.__file__).parent
C_FILES = [str(SOURCE / name) for name in load.PROGRAM.sources if name.endswith(".c")]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return compiled.build(load.PROGRAM, str(tmp_path_factory.mktemp("load")))


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """The program with the sanitizers of addresses and of undefined behaviour."""
    return sanitized(tmp_path_factory.mktemp("checked") / "load", "address,undefined")


def sanitized(target, kinds):
    flags = ["-std=gnu11", "-O1", "-g", f"-fsanitize={kinds}", "-fno-sanitize-recover=all"]
    compiler = compiled.compiler(load.PROGRAM)[0]
    built = subprocess.run(
        [*compiler, *flags, "-pthread", *C_FILES, "-o", target], capture_output=True, text=True
    )
    if built.returncode:
        pytest.skip(f"this compiler has no sanitizers: {built.stderr[:100]}")
    return str(target)


def command(program, to, request="/", **more):
    given = {"connections": 1, "threads": 1, "rate": 0, "lead_s": 0, "time_s": 0.3, **more}
    return client.command_line(program, to, request, **given)


def ask(program, to, request="/", **more):
    """Run the program against a server to its end; return its results and its records."""
    done = subprocess.run(
        command(program, to, request, **more), capture_output=True, text=True
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    records = client.parse(done.stdout)
    return client.results_of(records), records


# --- the program ------------------------------------------------------------------------------


def test_every_source_is_named_for_shipping():
    assert sorted(load.PROGRAM.sources) == sorted(
        p.name for p in SOURCE.iterdir() if p.suffix in (".c", ".h")
    )


def test_it_compiles_without_a_warning_and_checks_itself(program, tmp_path):
    words = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror", "-O1", "-std=gnu11"]
    compiler = compiled.compiler(load.PROGRAM)[0]
    target = tmp_path / "strict"
    subprocess.run([*compiler, *words, "-pthread", *C_FILES, "-o", target], check=True)
    for path in (program, str(target)):
        done = subprocess.run([path, "--self-test"], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "self-test: ok\n"), done.stderr


def test_sanitizers_find_nothing_in_the_arithmetic_and_in_answers(checked):
    done = subprocess.run([checked, "--self-test"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_threads_share_nothing_without_a_lock(tmp_path):
    program = sanitized(tmp_path / "threads", "thread")
    done = subprocess.run([program, "--self-test"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the sanitizer of threads does not run here: {done.stderr[:100]}")
    with Scripted(lambda n, request: [OK]) as server:
        for rate in (0, 50):
            results, _ = ask(
                program, server.to, rate=rate, threads=2, connections=16, lead_s=0.5, time_s=1
            )
            assert results["requests"] > 0


def test_it_compiles_for_aarch64(tmp_path):
    cross_compiling.self_test_for_aarch64(C_FILES, tmp_path / "arm")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--to is missing"),
        (["--to", "127.0.0.1:80"], "--request is missing"),
        (["--bogus", "1"], "unknown option --bogus"),
        (["--to"], "without its value"),
        (["--to", "nowhere"], "neither unix:PATH nor ADDRESS:PORT"),
        (["--to", "localhost:80"], "give an address"),
        (["--to", "[127.0.0.1]:80"], "give an address"),
        (["--to", "127.0.0.1:99999"], "not a whole number from 1 to 65535"),
        (["--to", "unix:"], "1 to 107 bytes"),
        (["--to", "unix:" + "x" * 108], "start the program in its folder"),
        (["--rate", "fast"], "--rate fast: not a number"),
        (["--rate", "-1"], "--rate -1: not a number"),
        (["--rate", "inf"], "--rate inf: not a number"),
        (["--rate", "0.0001"], "less than one request in 1000 s"),
        (["--connections", "0"], "not a whole number from 1 to 100000"),
        (["--threads", "2", "--connections", "1"], "each needs a connection"),
        (["--time-s", "0"], "--time-s 0: not a number"),
        (["--request", "page"], "does not begin with /"),
        (["--request", "/a b"], "a character that an address cannot have"),
        (["--request", "/a\r\nHost: x"], "a character that an address cannot have"),
        (["--request", "/#0#"], "# is not of a #N#"),
        (["--request", "/#12"], "# is not of a #N#"),
        (["--host", "a b"], "not a host's name"),
    ],
)
def test_rubbish_is_refused_with_what_is_wrong(program, words, says):
    usual = {"--to": "127.0.0.1:9", "--request": "/"}
    if words and words != ["--to", "127.0.0.1:80"] and words != ["--to"]:
        words = [*sum(([k, v] for k, v in usual.items() if k not in words), []), *words]
    done = subprocess.run([program, *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("numalab-load: ") and says in done.stderr


def test_a_server_that_is_not_there_is_named(program, tmp_path):
    for to in (f"unix:{tmp_path}/none"[:100], "127.0.0.1:1"):
        done = subprocess.run(command(program, to), capture_output=True, text=True)
        assert done.returncode == 1
        assert f"numalab-load: cannot connect to {to}: " in done.stderr
        assert client.parse(done.stderr)[0]["kind"] == "failure"


# --- what it counts ---------------------------------------------------------------------------


def test_a_server_that_stood_still_is_seen_as_long_as_it_did(program):
    """A quarter of the time. The truth is of the server's own times: with requests at equal

    distances, a share x of them waited longer than its gap without x of the measured time. The gap
    is long beside what a loaded machine adds.
    """
    seconds, rate, freeze_s = 12, 100, 3.0
    with Frozen(3.0, freeze_s) as server:
        results, _ = ask(
            program, server.to, rate=rate, lead_s=0.5, time_s=seconds, connections=8
        )  # fmt: skip
        gap = server.gap()
        alone, _ = ask(program, server.to, rate=rate, time_s=1, connections=8)
    assert gap >= freeze_s
    assert (results["requests"], results["errors"]) == (rate * seconds, 0)
    assert results["latency_p99"] == pytest.approx((gap - 0.01 * seconds) * 1e3, rel=0.05)
    assert results["latency_p90"] == pytest.approx((gap - 0.10 * seconds) * 1e3, rel=0.20)
    assert results["latency_max"] >= (gap - 1 / rate) * 1e3 * 0.99
    # Real send times would hide it: only one request a connection was on its way.
    assert results["schedule_lag_max"] > 0.9 * results["latency_max"]
    assert alone["latency_p50"] < 0.5 * results["latency_p90"]  # the figure is of the freeze


def test_arrivals_wait_for_a_connection_and_all_are_counted(program):
    """100 a second are due for a second; one connection answers 50: the last waits a second."""
    with Scripted(lambda n, request: [0.02, OK]) as server:
        results, _ = ask(program, server.to, rate=100, time_s=1)
        asked = len(server.requests)
    assert (results["requests"], results["errors"], asked) == (100, 0, 100)
    assert results["answered"] <= 50
    assert results["latency_max"] >= 1000  # 100 of 20 ms, the last was due after 990 ms
    assert results["latency_p50"] >= 500
    assert results["schedule_lag_max"] >= 980


def test_what_is_open_long_after_the_end_has_timed_out(program):
    with Scripted(lambda n, request: [OK] if n < 10 else [60]) as server:
        results, _ = ask(program, server.to, rate=50, time_s=1, timeout_s=3)
    assert results["requests"] == 10
    # Each connection that timed out is made anew; what still waits at the end never went out.
    assert results["errors"] == results["errors_timeout"] == 40


def test_the_lead_is_not_counted(program):
    with Scripted(lambda n, request: [0 if n else 2, OK]) as server:
        results, records = ask(program, server.to, lead_s=3, time_s=0.5)
    assert results["latency_max"] < 1900
    assert results["requests"] < len(server.requests)
    order = [one["kind"] for one in records]
    assert order.index("report") < order.index("measured") < order.index("result")


def test_a_constant_rate_is_kept_by_all_threads_together(program):
    with Scripted(lambda n, request: [OK]) as server:
        results, records = ask(
            program, server.to, rate=90, threads=3, connections=25, lead_s=0.5, time_s=2
        )  # fmt: skip
        assert server.connections == 25
    assert (results["requests"], results["errors"]) == (180, 0)
    assert records[0]["threads"] == 3
    assert 0 < results["busiest_thread"] < 1
    assert 0 < results["client_cpu"] < 3


def test_random_numbers_come_of_the_seed(program):
    def asked(seed):
        with Scripted(lambda n, request: [OK]) as server:
            ask(program, server.to, "/doc/#1000#?again=#2#&x=1", rate=40, time_s=1, seed=seed)
            return [one.splitlines()[0] for one in server.requests]

    first = asked(1)
    assert first == asked(1) != asked(2)
    pages = [int(line.split("/doc/")[1].split("?")[0]) for line in first]
    assert all(0 <= page < 1000 for page in pages) and len(set(pages)) > 30
    assert {line.split("again=")[1][:5] for line in first} == {"0&x=1", "1&x=1"}


# --- what servers do --------------------------------------------------------------------------

BODY = b"x" * 200_000
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
GOOD = {  # answers that count, and whether the connection is kept
    "byte by byte": (lambda: [OK[i : i + 1] for i in range(len(OK))], True),
    "a header cut in two": (lambda: [OK[:30], 0.01, OK[30:]], True),
    "chunks": (
        lambda: [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", b"lo\r\n0\r\n",
                 b"\r\n"], True,
    ),
    "a long body": (lambda: [SIZED[:100_001], SIZED[100_001:]], True),
    "100 Continue": (lambda: [b"HTTP/1.1 100 Continue\r\n\r\n" + OK], True),
    "204": (lambda: [b"HTTP/1.1 204 No Content\r\n\r\n"], True),
    "Connection: close": (
        lambda: [OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), None], False,
    ),
    "HTTP/1.0": (lambda: [b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", None], False),
    "up to the end": (lambda: [b"HTTP/1.1 200 OK\r\n\r\n", b"all of it", None], False),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_an_answer_is_read_however_it_comes(checked, name):
    pieces, kept = GOOD[name]
    with Scripted(lambda n, request: pieces()) as server:
        results, _ = ask(checked, server.to, rate=20, time_s=0.5)
        assert all(one.startswith("GET / HTTP/1.1\r\n") for one in server.requests)
    assert (results["requests"], results["errors"]) == (10, 0)
    assert (server.connections == 1) == kept == (results["reconnects"] == 0)
    assert results["latency_min"] > 0 and results["bytes"] >= 10 * len(b"".join(
        piece for piece in pieces() if isinstance(piece, bytes)
    ))  # fmt: skip


BAD = {  # answers that are errors, of which kind, and whether the connection is kept
    "404": ([b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"], "status", True),
    "302": ([b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"], "status", True),
    "503 and close": (
        [b"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", None], "status",
        False,
    ),
    "closed before": ([None], "reset", False),
    "closed within": ([OK[:-1], None], "reset", False),
    "reset": ([OK[:-1], "reset"], "reset", False),
    "no HTTP": ([b"220 mail.example ESMTP\r\n"], "protocol", False),
    "a wrong length": ([b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nok"], "protocol", False),
    "two answers": ([OK + OK], "protocol", False),
    "never": ([OK[:-1]], "timeout", False),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_an_error_is_counted_and_has_no_latency(checked, name):
    """Every second answer is bad: of ten requests five are measured."""
    pieces, kind, kept = BAD[name]
    with Scripted(lambda n, request: pieces if n % 2 else [OK]) as server:
        limit_s = 1 if kind == "timeout" else 10
        results, records = ask(checked, server.to, rate=20, time_s=0.5, timeout_s=limit_s)
    assert results[f"errors_{kind}"] == results["errors"] > 0
    assert results["requests"] + results["errors"] == 10
    if kind != "timeout":  # there the last were not sent at all
        assert results["errors"] == 5
        assert (server.connections == 1) == kept
    assert (
        sum(one["count"] for one in records if one["kind"] == "histogram") == (results["requests"])
    )


def test_a_connection_closed_between_two_answers_is_made_again(checked):
    with Scripted(lambda n, request: [OK, 0.02, None]) as server:
        results, _ = ask(checked, server.to, rate=5, time_s=1)
    assert results["requests"] + results["errors_reset"] == 5
    assert results["requests"] and results["reconnects"]  # on a slow machine some meet its close


def test_a_server_that_dies_is_seen(checked, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def script(number, request):
        if number == 9:
            os.unlink("s")
        return [OK, None] if number == 9 else [OK]

    with Scripted(script, "s"):
        results, _ = ask(checked, "unix:s", rate=50, time_s=1)
    assert (results["requests"], results["errors"]) == (10, 40)
    assert results["errors_connect"] + results["errors_timeout"] == 40
    assert results["errors_connect"] > 0


def test_nothing_is_answered(program):
    with Scripted(lambda n, request: [b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"]) as server:
        results, _ = ask(program, server.to, rate=20, time_s=0.5)
    assert (results["requests"], results["errors_status"]) == (0, 10)
    assert results["requests_per_second"] == 0
    assert not [name for name in results if client.RESULTS[name] == "ms"]  # a latency of none


# --- started and read by a trial --------------------------------------------------------------


class AnyServer(RunningServer):
    def ask(self, timeout_s):
        pass


def test_a_trial_finds_its_checkpoint_and_its_time(program, tmp_path):
    found = client.find(program)
    assert found == ToolRecord("load", "1.0", program, facts=found.facts)
    one = AnyServer("sleep", ["sleep", "60"], str(tmp_path))
    try:
        with Scripted(lambda n, request: [OK]) as server:
            words = command(program, server.to, rate=50, lead_s=1, time_s=1, connections=2)
            started = client.HttpLoad(one, words, 1, 1, 1, sorted(os.sched_getaffinity(0)), None)
            while not started.look():
                time.sleep(0.01)
        started.check()
        run = started.run()
    finally:
        one.kill()
    assert started.measured is not None
    records = client.parse(run["text"])
    assert client.results_of(records)["requests"] == 50
    assert 0 < run["client_cpu_s"] < 10


def test_a_program_that_is_another_is_refused(tmp_path):
    with pytest.raises(Fault, match="is not numalab's load.*unset NUMALAB_LOAD"):
        client.find("/bin/true")


LINES = """\
{"kind":"setup","version":"1.0","mode":"open","rate":2,"connections":1,"threads":1,"lead_s":1,\
"time_s":2,"timeout_s":10,"seed":1,"request":"/"}
{"kind":"report","t_s":1,"requests":2,"errors":0,"latency_p99_ms":1.5}
{"kind":"measured","t_s":1}
{"kind":"report","t_s":2,"requests":0,"errors":1}
"""
VALUES = dict.fromkeys(client.RESULTS, 0.0) | {
    "requests": 3, "answered": 2, "requests_per_second": 1.0, "errors": 1, "errors_status": 1,
    "latency_avg": 2.0, "latency_min": 1.0, "latency_p50": 2.0, "latency_p90": 3.0,
    "latency_p99": 3.0, "latency_p999": 3.0, "latency_max": 3.0, "busiest_thread": 0.95,
}  # fmt: skip


def output(buckets=((1.0, 1), (2.0, 1), (3.0, 1)), lines=LINES, **changed):
    values = {k: v for k, v in {**VALUES, **changed}.items() if v is not None}
    results = [{"kind": "result", "name": k, "value": v} for k, v in values.items()]
    counts = [{"kind": "histogram", "ms": ms, "count": count} for ms, count in buckets]
    return lines + "".join(json.dumps(one) + "\n" for one in (*results, *counts))


def test_records_are_what_was_printed():
    records = client.parse(output())
    assert client.results_of(records) == VALUES
    assert [one["t_s"] for one in records if one["kind"] == "report"] == [1, 2]


def test_threads_have_connections_enough():
    def threads(connections):
        words = command("x", "unix:s", threads=4, connections=connections)
        return int(words[words.index("--threads") + 1])

    assert [threads(n) for n in (1, 8, 16, 31, 64)] == [1, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("hello\n", "not a line of its own"),
        (output().replace('"seed":1,', ""), "seed is missing"),
        (output().replace('"connections":1', '"connections":true'), "connections is missing or"),
        (output().replace('"t_s":2', '"t_s":-2'), "not a finite number from 0 on"),
        (output().replace('"t_s":2', '"t_s":NaN'), "not a finite number from 0 on"),
        (output().replace('"t_s":2', '"t_s":1' + "0" * 400), "not a finite number from 0 on"),
        (output().replace('"seed":1', '"seed":1,"new":2'), "new is not known here"),
        (output(lines=LINES.partition("\n")[2]), "does not begin with its setup"),
        (output(lines=LINES + LINES), "does not begin with its setup, once"),
        (output(lines=LINES.replace('{"kind":"measured","t_s":1}\n', "")), "end of the lead"),
        (output(latency_p99=None), "the result latency_p99 is missing: cut short"),
        (output(bogus=1), "the result bogus is not known"),
        (output(((1.0, 1), (3.0, 1))), "the histogram counts 2 requests, the result 3"),
        (output(latency_p50=1.0), "the histogram gives another latency_p50"),
        (output(errors=2), "the errors are not their sum"),
        (output(answered=4), "answers and time do not give"),
        (output(lines=LINES.replace('"rate":2', '"rate":0')), "in a closed loop"),
        (output() + '{"kind":"result","name":"errors","value":1}\n', "more than once"),
    ],
)  # fmt: skip
def test_what_it_does_not_print_is_refused(text, why):
    with pytest.raises(ParseError, match=why):
        client.parse(text)


@given(st.integers(0, len(output()) - 1), st.sampled_from('0123456789.-{}[]":,eE\n\0x'))
def test_a_damaged_byte_is_refused_or_harmless(place, byte):
    text = output()
    with contextlib.suppress(ParseError):
        client.parse(text[:place] + byte + text[place + 1 :])
    with contextlib.suppress(ParseError):
        client.parse(text[:place])


def test_an_end_before_the_results_is_said():
    assert client.parse(LINES)[-1]["kind"] == "incomplete"
    records = client.parse(LINES + "numalab-load: the output cannot be written\n")
    assert records[-1] == {
        "kind": "failure", "level": "error", "code": None, "text": "the output cannot be written"
    }  # fmt: skip


def test_percentiles_of_several_clients_are_of_all_their_requests():
    one, other = ([{"ms": 1.0, "count": 98}], [{"ms": 5.0, "count": 1}, {"ms": 7.0, "count": 1}])
    assert client.percentile(one + other, 0.98) == 1.0
    assert client.percentile(one + other, 0.99) == 5.0
    assert client.percentile(one + other, 0.999) == 7.0
    assert client.percentile([], 0.5) is None
    for total in (1, 10, 999, 1000, 1001, 10**6):
        buckets = [{"ms": float(i), "count": 1} for i in range(min(total, 2000))]
        for share in (0.5, 0.9, 0.99, 0.999):
            wanted = math.ceil(len(buckets) * int(share * 1000) / 1000) - 1
            assert client.percentile(buckets, share) == wanted
