"""Service files: what they may say, and how they are told what is wrong with them."""

import json
import time
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import service_frames
import topologies
from numalab import asking, services, yaml_file
from numalab.agent import drivers
from numalab.agent.contract import to_json
from numalab.agent.errors import Fault, NotHere
from numalab.agent.served.load import client as http
from numalab.agent.served.service import description, loads, options
from numalab.show import results

DRIVER = drivers.driver("service")
TEXT = """\
says: a service
needs: {server: sh, bench: [no-such-program, sleep]}
options:
  memory: {total: 256MiB}
  workers: {total: 4x-cpus}
  depth: 3
  words: some text
  numa: {value: off, texts: {on: "--numa --fast", off: ""}, places_memory: true}
memory: [memory, 64MiB]
start: "{server} -c 'exec sleep {depth}' {numa} -m {memory:MiB} {words} {socket}"
ready: {says: here I am}
load:
  kind: command
  command: "{bench} {time_s} {connections}"
  figures: {requests_per_second: "Requests/sec: #", latency_avg: "mean #"}
stop: SIGINT
"""


def parse(text: str = TEXT, where: str = "/x/mine.yml"):
    return services.parse(text, Path(where))


def prepared(text: str = TEXT, nodes: int = 2, **given):
    host = topologies.topology(nodes=nodes, cores=8, threads=1, memory_gib=4)
    return DRIVER.prepare({"service": parse(text), **given}, host, "0-7", "0")


# --- reading -------------------------------------------------------------------------------------


def test_a_file_is_what_the_agent_reads():
    service = description.read(json.loads(json.dumps(parse())))
    assert service.name == "mine" and service.here == "/x"
    assert service.needs == {"server": ("sh",), "bench": ("no-such-program", "sleep")}
    assert service.options["memory"] == description.Option("256MiB", total=True)
    assert service.options["numa"].texts == {"on": "--numa --fast", "off": ""}
    assert service.stop.signal == "INT" and service.balancer == "none"
    assert service.on_socket and not service.keeps_a_rate


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("says: a service\n", "", "line 1, says: this key is missing"),
        ("ready:", "raedy:", "line 11, raedy: unknown key, did you mean ready"),
        ("{says: here", "{sais: here", "line 11, ready.sais: unknown key"),
        (
            "{requests_per_second: ",
            "{latency_p99: {find: 'p #', unit: MiB}, requests_per_second: ",
            "line 15, load.figures.latency_p99: latency_p99 is in ms, and 'MiB' cannot become that",
        ),
        ("kind: command", "kind: wrk", "line 13, load.kind: 'wrk' is not known"),
        ("{depth}", "{dept}", "line 10, start: nothing is called {dept}.*depth"),
        ("{connections}", "{conections}", "line 14, load.command: nothing is called"),
        ("exec sleep {depth}'", "exec", "line 10, start: this is no command line"),
        ("Requests/sec: #", "Requests/sec:", "line 15, load.figures.requests_per_second: .*one #"),
        ("mean #", "mean **#", r"line 15, load.figures.latency_avg: .* \* is one whole word"),
        ("mean #", "mean 1#", "line 15, load.figures.latency_avg: .* part of its number"),
        ("requests_per_second:", "rps:", "line 15, load.figures: requests_per_second is missing"),
        ("SIGINT", "SIGSTOP", "line 16, stop.signal: 'STOP' is not known"),
        ("[memory, ", "[heap, ", "line 9, memory: there is no option 'heap'"),
        ("value: off", "value: maybe", "line 8, options.numa: 'maybe' is not among its texts"),
        ("  depth: 3", "  port: 3", "line 6, options.port: the name port has a meaning"),
        ("  depth: 3", "  rate: 3", "line 6, options.rate: the name rate has a meaning"),
        ("  depth: 3", "  depth: [3]", "line 6, options.depth: .* neither a number nor a text"),
        ("stop: SIGINT", "balancer: haproxy", "line 16, balancer: only a load of kind http"),
        ("stop: SIGINT", "stop: {within_s: soon}", "line 16, stop.within_s: input should be"),
        ("stop: SIGINT", "warm: {until: {counter: jit, below: 1}}", "line 16, .* not among"),
        ("stop: SIGINT", "counters: {command: uptime}", "line 16, counters: without `metrics`"),
        ("stop: SIGINT", "files: {../x: text}", "line 16, files.../x: it is no name of a file"),
        ("stop: SIGINT", "files: {x: {file: /etc/passwd}}", "line 16, files.x: "),
        ("{memory:MiB}", "{memory:MB}", "line 10, start: '{memory:MB} ' begins a word that is not"),
        ("{socket}", "{socket", r"line 10, start: .*not complete. write \{socket\}, or"),
        ("[memory, 64MiB]", "[memory, 64MB]", "line 9, memory: '64MB' is no size"),
        ("[memory, 64MiB]", "[memory, {a: 1}]", "line 9, memory: .* is no size"),
        ("ready: {says: here I am}", "ready: {within_s: 0}", "line 11, ready.within_s: it must be"),
        ("ready: {says: here I am}", "ready: {http: x}", "line 11, ready.http: 'x' does not begin"),
        ("stop: SIGINT", "stop: {within_s: -1}", "line 16, stop.within_s: it must be more than 0"),
        ("says: a service", "says: one\nsays: two", "line 2: the key 'says' stands twice"),
        ("says: a service", "name: x", "it may not set 'name'"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_key(before, after, said):
    assert before in TEXT
    with pytest.raises(Fault, match=said):
        parse(TEXT.replace(before, after, 1))


def test_a_service_must_listen_where_it_is_asked():
    nowhere = TEXT.replace(" {socket}", "")
    assert not parse(nowhere)["ready"]["http"]  # its own commands know where it is
    for before, after in (("{says: here I am}", "{within_s: 9}"), ("{says: here", "{http: /here")):
        with pytest.raises(Fault, match="line 10, start: it has neither {port} nor {socket}"):
            parse(nowhere.replace(before, after))
        told = nowhere.replace(before, after) + "environment: {LISTEN: 'unix:{socket}'}\n"
        assert description.read(parse(told)).on_socket


def test_bundled_services_are_read_and_unknown_ones_named():
    assert {"valkey", "memcached"} <= set(services.names())
    for name in services.names():
        description.read(services.load(name))
    with pytest.raises(Fault, match="no service 'valky'.*valkey"):
        services.load("valky")


def test_a_file_of_ones_own_needs_its_ending(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yml").write_text(TEXT)
    assert services.load("mine.yml")["name"] == "mine"
    with pytest.raises(Fault, match="there is no file other.yml. .*valkey"):
        services.load("other.yml")
    with pytest.raises(Fault, match="with its ending .yml: mine.yml"):
        services.load("mine")
    (tmp_path / "notes.md").write_text("notes")
    with pytest.raises(Fault, match=r"notes.md is a file, but its name does not end in .yml\Z"):
        services.load("notes.md")
    without = TEXT.replace("stop: SIGINT", "files: {x: {file: no.where}}")
    with pytest.raises(Fault, match="line 16, files.x: .*no.where is missing. services/README"):
        parse(without, str(tmp_path / "mine.yml"))
    with pytest.raises(Fault, match="my own.yml: a service is called as its file"):
        parse(where="/x/my own.yml")
    (tmp_path / "mine.yml").write_bytes(b"says: \xff")
    with pytest.raises(Fault, match="not UTF-8"):
        services.load("mine.yml")


def test_a_service_is_read_where_a_user_asks_and_nowhere_else(tmp_path):
    path = tmp_path / "mine.yml"
    path.write_text(TEXT)
    asked = asking.ask("service", "smoke", "here", options={"service": str(path)})
    assert asked.request.tool.options["service"]["says"] == "a service"
    for given in ({}, {"service": 7}):
        with pytest.raises(Fault, match="no service is named.*memcached.*valkey.*mine.yml"):
            asking.ask("service", "smoke", "here", options=given)
    with pytest.raises(Fault, match="no service is named"):
        drivers.driver("service").find({})


def test_lines_of_keys_are_found():
    lines = yaml_file.lines("a: 1\nb:\n  c: [1,\n   2]\n")
    assert lines == {("a",): 1, ("b",): 2, ("b", "c"): 3, ("b", "c", "0"): 3, ("b", "c", "1"): 4}
    assert yaml_file.line_of(lines, ("b", "c", "d", "e")) == 3
    assert yaml_file.line_of(lines, ()) == 1


# --- command lines -------------------------------------------------------------------------------


def test_words_are_replaced_and_nothing_else():
    values = {"memory": 256 << 20, "socket": "/run/a b/s", "half": 0.5}
    assert description.words("x {memory:MiB} {memory} '{socket}' {half}", values, {}) == [
        "x", "256", str(256 << 20), "/run/a b/s", "0.5"]  # fmt: skip
    assert description.filled("http { server {socket}; {unknown} }", values) == (
        "http { server /run/a b/s; {unknown} }"
    )


@pytest.mark.parametrize(("text", "words"), [("--a --b", ["--a", "--b"]), ("", [])])
def test_a_text_of_an_option_is_words_where_it_stands_alone(text, words):
    assert description.words("x {numa} y", {"numa": "on"}, {"numa": text}) == ["x", *words, "y"]
    assert description.words("x=_{numa}_", {"numa": "on"}, {"numa": text}) == [f"x=_{text}_"]


# --- numbers in outputs --------------------------------------------------------------------------

WRK = """\
Running 10s test @ http://localhost/
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   635.91us    0.89ms  12.92ms   93.69%
    Req/Sec    56.20k     8.07k   62.00k    86.54%
  22464657 requests in 30.00s, 17.76GB read
Requests/sec: 748868.53
"""
CSV = '"test","rps","avg_latency_ms"\n"GET","20056.16","0.261"\n'


@pytest.mark.parametrize(
    ("pattern", "text", "unit", "number"),
    [
        ("Requests/sec: #", WRK, "1/s", 748868.53),
        ("Latency #", WRK, "ms", 0.63591),
        ("Latency * * #", WRK, "ms", 12.92),
        ("Latency #", WRK, "us", 635.91),
        ("Req/Sec #", WRK, "1/s", 56200.0),
        ("# requests in", WRK, "count", 22464657.0),
        ('"GET","*","#"', CSV, "ms", 0.261),
        ("total: #", "total: 1,234,567 things", "", 1234567.0),
        ("x #", "x 1\nx 2\ny 3", "", 2.0),
        ("lat #", "lat 3 seconds", "ms", 3.0),
        ("lat #", "lat 2 s", "ms", 2000.0),
        ("lat #", "lat 1.5e-3", "", 0.0015),
        ("lat #", "late 7", "", None),
        ("(a|b) #", "a 7", "", None),
        ("# requests", "1,234 requests", "", 1234.0),
        ("# requests", "v1 requests", "", None),
        ("* #", "one two 3", "", 3.0),
        ("v #", "v 1.2.3", "", None),
    ],
)
def test_a_pattern_finds_its_number(pattern, text, unit, number):
    assert description.find_number(pattern, text, unit) == pytest.approx(number)


@pytest.mark.parametrize(
    ("name", "unit", "value"),
    [("latency_avg", "s", 9.1), ("latency_avg", "", 0.0091), ("age", "s", 0.0091)],
)
def test_latency_is_in_milliseconds_whatever_the_program_prints(name, unit, value):
    """As dnsperf: its unit stands before the number, where no pattern can take it."""
    one = description.Figure("Average Latency (s): #", unit)
    assert description.numbers({name: one}, "Average Latency (s):  0.009100") == {
        name: pytest.approx(value)
    }
    assert description.unit_of(name, one) == ("ms" if name == "latency_avg" else "s")


def test_a_pattern_of_a_strangers_run_ends_soon():
    lines = ["a " * 999, "1" * 1999, "a" * 1999, ",111" * 499, "1 " * 999, '","' * 600, " " * 1999]
    text = "\n".join(f"{line}!" for line in lines * 20)
    for pattern in ("* * * * * * * * #!", 'a,*," #x', '#,* * "', "a #!", ",#x", "# # #"):
        if not description.wrong_pattern(pattern):
            began = time.process_time()
            description.find_number(pattern, text)
            assert time.process_time() - began < 20
    with pytest.raises(Fault):
        loads.parse("command", {"x": {"find": "#*#", "unit": ""}}, "x")


# --- options -------------------------------------------------------------------------------------


def test_totals_are_divided_and_words_count_the_instances_cpus():
    one, two = prepared().options, prepared(instances=2).options
    cpus = one["cpus"]
    assert (one["memory"], two["memory"]) == (256 << 20, 128 << 20)
    assert (one["workers"], two["workers"]) == (4 * cpus, 2 * cpus)
    assert (one["depth"], two["depth"]) == (3, 3) and two["cpus"] == cpus // 2
    assert one["words"] == "some text" and one["numa"] == "off"
    assert prepared().need_bytes == 2 * prepared(instances=2).need_bytes - (64 << 20)


def test_options_are_set_and_wrong_ones_refused():
    assert prepared(memory="1GiB", numa=True, words="other").options["numa"] == "on"
    assert prepared(memory="1GiB").options["memory"] == 1 << 30
    for given, said in (
        ({"memroy": 1}, "service has no option 'memroy'"),
        ({"numa": "maybe"}, "numa 'maybe' is not known"),
        ({"memory": "lots"}, "memory 'lots' is not a size"),
        ({"rate": 100}, "the load of mine keeps no rate"),
        ({"balancer": "haproxy"}, "only a load of kind http"),
        ({"balancer": "nginx"}, "balancer 'nginx' is not known"),
        ({"time_s": 0}, "time_s 0"),
        ({"saturation_s": 0}, "nothing would be measured"),
        ({"instances": 2, "connections": 1}, "1 connections for 2 instances"),
        ({"depth": float("nan")}, "depth nan is not a number"),
    ):
        with pytest.raises(Fault, match=said):
            prepared(**given)


def test_a_load_without_a_rate_is_only_saturated():
    assert prepared().options["rate"] == 0
    at_rate = TEXT.replace("  figures:", '  at_rate: "{bench} {rate}"\n  figures:')
    assert prepared(at_rate).options["rate"] == "half"
    assert prepared(at_rate, rate=700).options["rate"] == 700
    assert prepared(at_rate, rate="none").options["rate"] == 0


def test_the_balancer_has_a_cpu_of_the_clients_for_itself_in_every_cell():
    web = TEXT.replace("kind: command", "kind: http\n  request: /").replace("stop: SIGINT", "")
    web = "\n".join(line for line in web.split("\n") if "figures" not in line)
    web = web.replace('  command: "{bench} {time_s} {connections}"\n', "") + "balancer: haproxy\n"
    host = topologies.topology(nodes=2, cores=8, threads=1, memory_gib=4)
    given = {"service": parse(web)}
    client = DRIVER.set_aside(given, ["unbound"], host)
    host = replace(host, client=client)
    through = DRIVER.prepare(given, host, "0-7", "0").options
    direct = DRIVER.prepare({**given, "balancer": False}, host, "0-7", "0").options
    assert through["balancer"] == "haproxy" and direct["balancer"] == "none"
    assert through["client_cpus"] == direct["client_cpus"]
    assert through["balancer_cpus"] not in through["client_cpus"].split(",")
    assert "balancer" in DRIVER.binding_options(given)


def test_an_option_that_places_memory_is_compared_as_a_binding():
    assert DRIVER.binding_options({"service": parse()}) == ("balancer", "numa")
    assert DRIVER.resolve("numa", True, None) == "on"


def test_the_first_program_that_is_there_is_taken(tmp_path):
    service = parse(TEXT.replace("[no-such-program, sleep]", "[no-such-program, no-other]"))
    with pytest.raises(NotHere, match="mine needs bench.*none of: no-such-program, no-other"):
        DRIVER.find({"service": service})
    found = DRIVER.find({"service": parse()})
    assert found.facts["programs"]["bench"].endswith("/sleep")
    for name in ("lib-9", "lib-10"):
        (tmp_path / name).write_text("")
    text = TEXT.replace("[no-such-program, sleep]", '"{here}/lib-*"')
    found = DRIVER.find({"service": parse(text, str(tmp_path / "mine.yml"))})
    assert found.facts["programs"]["bench"].endswith("lib-10")


# --- the figures of several clients --------------------------------------------------------------


def run_of(instance, phase="saturation", **more):
    figures = to_json(
        {"requests_per_second": description.Figure("x #"),
         "latency_avg": description.Figure("x #"), "latency_p99": description.Figure("x #")}
    )  # fmt: skip
    return {"kind": "run", "instance": instance, "phase": phase, "load": "command",
            "figures": figures, "metrics": {}, "elapsed_s": 2.0, "client_cpu_s": 0.5,
            "exit_status": 0, "server": {"cpu_s": 1.0}, **more}  # fmt: skip


def told(instance, **results):
    return [{"kind": "result", "name": name, "value": value, "instance": instance,
             "phase": "saturation"} for name, value in results.items()]  # fmt: skip


def test_files_beside_the_service_must_be_on_the_host_that_starts_it(tmp_path):
    """`files` are carried to another host, its folder is not."""
    text = TEXT.replace("start: ", "start: sh {here}/x.sh ", 1)
    (tmp_path / "x.sh").write_text("")
    here = {"service": services.parse(text, tmp_path / "mine.yml")}
    assert DRIVER.find(here).name == "service"
    elsewhere = {"service": services.parse(text, Path("/no/such/folder/mine.yml"))}
    with pytest.raises(NotHere, match=r"mine names files of its own folder \(\{here\}: /no/such"):
        DRIVER.find(elsewhere)


def test_figures_of_instances_become_the_cells():
    records = [
        run_of("instance 1"), *told("instance 1", requests_per_second=300.0, latency_avg=1.0,
                                    latency_p99=3.0, requests=600.0),
        run_of("instance 2"), *told("instance 2", requests_per_second=100.0, latency_avg=5.0,
                                    latency_p99=9.0, requests=200.0),
    ]  # fmt: skip
    rows = {(row.metric, row.point): row for row in DRIVER.metrics(records)}
    value = {key: row.value for key, row in rows.items()}
    assert value["saturation_requests_per_second", ""] == 400
    assert value["saturation_latency_avg", ""] == pytest.approx(2.0)
    assert value["saturation_latency_p99", ""] == 9.0
    assert value["saturation_cpu_per_request", ""] == pytest.approx(2.0 / 800 * 1e6)
    assert value["saturation_instance_requests", "instance 2"] == 200
    assert value["saturation_instance_cpu_time", "instance 1"] == 1.0
    assert value["latency_p99", ""] is None and rows["latency_p99", ""].reason.code == "no-rate"


def test_without_a_count_of_requests_none_is_made_up():
    records = [run_of(""), *told("", requests_per_second=300.0, latency_avg=1.0, latency_p99=3.0)]
    rows = {row.metric: row for row in DRIVER.metrics(records)}
    assert rows["saturation_cpu_per_request"].value is None
    assert rows["saturation_cpu_per_request"].reason.code == "requests-not-counted"


def test_a_load_that_says_too_little_or_too_bad_is_a_failure():
    good = {"requests_per_second": 300.0, "latency_avg": 1.0, "latency_p99": 3.0}
    assert DRIVER.failure([run_of(""), *told("", **good)], {}) is None
    for said, code in (
        ({**good, "errors": 20.0, "requests": 600.0}, "client-met-errors"),
        ({"requests_per_second": 300.0, "latency_avg": 1.0}, "figure-missing"),
        ({**good, "requests_per_second": 0.0}, "client-did-nothing"),
    ):
        assert DRIVER.failure([run_of(""), *told("", **said)], {}).code == code


def test_a_saturated_client_or_balancer_makes_a_cell_unverified():
    given = {"client_cpus": "4-5", "client_shares": False}
    good = told("", requests_per_second=300.0)
    for run, code in (
        (run_of("", client_cpu_s=3.7), "client-was-the-limit"),
        (run_of("", balancer={"cpu_s": 1.9}), "balancer-was-the-limit"),
        (run_of("", client_cpu_s=3.5), None),
    ):
        why = DRIVER.unverified([run, *good], given)
        assert (why.code if why else None) == code
    busy = [*good, *told("", busiest_thread=0.95)]
    assert DRIVER.unverified([run_of(""), *busy], given).code == "client-was-the-limit"


def test_a_rate_that_was_missed_and_a_server_that_is_not_warm_are_said():
    run = run_of("", phase="rate")
    record = {"kind": "result", "name": "requests_per_second", "value": 90.0, "instance": "",
              "phase": "rate"}  # fmt: skip
    warm = {"kind": "warm", "held": False, "counter": "jit", "below": 1.0, "seconds": 9.0}
    codes = [why.code for why in DRIVER.doubts([run, record, warm], {"rate": 100})]
    assert codes == ["service-not-warm", "rate-missed"]
    assert not DRIVER.doubts([run, {**record, "value": 99.0}, {**warm, "held": True}],
                             {"rate": 100})  # fmt: skip


def test_rubbish_in_the_place_of_a_load_is_unreadable():
    for load, figures in (("command", {"x": {"fnd": "#"}}), ("nothing", {}), ("command", 7)):
        with pytest.raises(Fault):
            DRIVER.parse_client("text", {"load": load, "figures": figures})
    assert http.results_of(loads.parse("command", {"x": {"find": "x #", "unit": ""}}, "x 7")) == {
        "x": 7.0
    }


# --- runs from elsewhere -------------------------------------------------------------------------


def plan_of(service, **cell):
    from types import SimpleNamespace as Made

    tool = Made(options={"service": service, "rate": "half", "connections": "4x-cpus"})
    cells = (Made(options={"connections": 8, "client_cpus": "0-1", **cell}),)
    return Made(request=Made(tool=tool), cells=cells)


def test_a_strangers_plan_starts_only_what_a_file_of_ours_says(tmp_path):
    ours = services.load("valkey")
    services.check_trusted(plan_of({**ours, "here": "/elsewhere"}), None)
    evil = {**ours, "start": "sh -c 'touch /tmp/evil'"}
    with pytest.raises(Fault, match="would start the commands of a service 'valkey'.*--set"):
        services.check_trusted(plan_of(evil), None)
    path = tmp_path / "mine.yml"
    path.write_text(TEXT)
    mine = services.load(str(path))
    with pytest.raises(Fault, match="a service 'mine' that is not of this checkout"):
        services.check_trusted(plan_of(mine), None)
    services.check_trusted(plan_of(mine), str(path))
    for cell in (
        {"words": "$(touch /tmp/evil)"}, {"connections": "; touch /tmp/evil"}, {"depth": ["x"]},
    ):  # fmt: skip
        with pytest.raises(Fault, match="which no file of ours does"):
            services.check_trusted(plan_of(mine, **cell), str(path))
    services.check_trusted(plan_of(mine, words="some text", numa="on"), str(path))
    at_home = TEXT.replace("{words}", "{here}/program")
    path.write_text(at_home)
    moved = {**services.load(str(path)), "here": "/tmp/evil"}
    with pytest.raises(Fault, match="would start"):
        services.check_trusted(plan_of(moved), str(path))


def test_what_an_option_is_worth_to_the_plan():
    host = topologies.topology(nodes=1, cores=4, threads=1, memory_gib=4)
    service = description.read(parse())
    assert options.need_bytes(service, {"memory": 5 << 20}) == (5 << 20) + (64 << 20)
    assert options.amount("x", "2x-cpus", host) == 8


def test_what_no_trial_measured_has_a_line_and_no_table(tmp_path):
    run = service_frames.run(folder=tmp_path / "20261122T130000Z-service-per-node")
    rows = run.measurements.with_columns(
        *(pl.when(pl.col("metric") == "latency_p99").then(pl.lit(value)).otherwise(name).alias(name)
          for name, value in (("value", None), ("reason", "no-rate"), ("reason_fields", "{}")))
    )  # fmt: skip
    object.__setattr__(run, "measurements", rows)
    assert "not measured: latency p99 (no constant rate was asked for" in results.terminal(run)
