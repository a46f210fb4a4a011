"""Time: a plan fits itself into it, and says what it leaves out; on hosts of any size."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import sysfs_tree
import topologies
from numalab import asking, cli, experiments, pricing, session
from numalab.agent import drivers
from numalab.agent.contract import CONTROL, SweepRequest
from numalab.agent.errors import Fault
from numalab.agent.host import topology
from numalab.agent.plan import budget, make, show
from numalab.agent.trial import run

ANY = asking.Settings(allow_host_changes=True)
MOST_S = {"quick": 45 * 60, "full": 10 * 3600}
INSTALL_S = 150  # of `make run` on an ordinary machine; a database's data are in the plans


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """No tool is on this machine: that of a copied tree is taken to have it."""

    def find(self, options):
        raise Fault("not here")

    for name in drivers.MEASURING:
        monkeypatch.setattr(type(drivers.driver(name)), "find", find)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("profile", MOST_S)
@pytest.mark.parametrize("machine", sysfs_tree.LARGE, ids=lambda machine: machine.name)
def test_all_fits_into_its_time_on_every_host(machine, profile, bare):
    root = sysfs_tree.shared(machine)
    asked = asking.ask_all(profile, "there", 1, ANY, True)
    priced = pricing.price(asked, ANY, root=root)
    assert priced.seconds <= MOST_S[profile] - INSTALL_S
    host = topology.read(str(root))
    for one in priced.each:
        if one.plan is None:
            assert "takes at least" in str(one.why) or "higher priority" in str(one.why), one.name
            continue
        if one.name != "host":
            assert one.plan.request.blocks >= 6
        whole = make.make(replace(one.asked.request, budget_s=None), host)
        known = {cell.id for cell in one.plan.cells} | {skip.cell for skip in one.plan.skipped}
        assert {cell.id for cell in whole.cells} <= known
        if len(one.plan.cells) < len(whole.cells):
            for what, why in show.skipped(one.plan):
                assert what in priced.text(5000) and why in priced.text(5000)


@pytest.mark.parametrize(
    "looks", [(2,), (6,), (6, 7), (6, 10), (6, 9, 15), (6, 9, 14, 21, 32, 48)], ids=str
)
def test_a_run_looks_ever_more_rarely(looks):
    assert budget.looks(looks[-1]) == looks


def test_a_run_until_it_has_decided_takes_the_blocks_that_there_is_time_for():
    whole = _made()
    block_s = (whole.estimate.total_s - make.RUN_OVERHEAD_S) / whole.request.blocks
    made = _made(make.RUN_OVERHEAD_S + 20.5 * block_s, blocks=budget.MOST_BLOCKS, until=0.03)
    assert made.request.blocks == 20 and made.request.looks == budget.looks(20)
    assert [cell.id for cell in made.cells] == [cell.id for cell in whole.cells]
    ended = make.ended_after(made, 6)
    again = _made(blocks=6, until=0.03, looks=made.request.looks)
    assert (ended.order, ended.estimate) == (again.order, again.estimate)
    assert ended.request.looks == again.request.looks == made.request.looks
    assert not _made().request.looks


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--until", "3"], "no share"),
        (["--until", "3%", "--hosts", "all"], "--until"),
        (["--until", "3%", "--all"], "--all cannot be used with"),
    ],
)
def test_what_until_does_not_go_with_is_said(words, said):
    name = [] if "--all" in words else ["stream"]
    refused = CliRunner().invoke(cli.app, ["run", *name, *words])
    assert isinstance(refused.exception, Fault) and said in str(refused.exception)


def _made(budget_s=None, **changes):
    request = replace(
        experiments.load("stream").request("full", "h", seed=1, pairs="every"),
        budget_s=budget_s, **changes,
    )  # fmt: skip
    return make.make(request, topologies.topology(4, cores=4, sockets=2))


def test_what_goes_first_is_stated():
    whole = _made()
    spared = []  # reasons in the order in which a smaller and smaller budget brings them
    for part in range(98, 0, -3):
        made = _made(whole.estimate.total_s * part / 100)
        assert made.estimate.total_s <= whole.estimate.total_s * part / 100
        codes = {skip.reason.code for skip in made.skipped if skip.reason.code.startswith("budget")}
        codes |= {warning.code for warning in made.warnings if warning.code == "fewer-blocks"}
        spared += [code for code in sorted(codes) if code not in spared]
        if made.cells:
            roles = [cell.role for cell in made.cells]
            assert CONTROL in roles and made.request.blocks >= budget.FEWEST_BLOCKS
            ids = {cell.id for cell in made.cells}
            assert all(cell.baseline in ids for cell in made.cells if cell.baseline)
            assert "unbound" in ids
        assert len(made.cells) + len(made.skipped) >= len(whole.cells)
    expected = ["budget-sweep", "budget-class", "fewer-blocks", "budget-cell", "budget-too-small"]
    assert spared == expected


def test_a_case_alone_answers_nothing():
    request = experiments.load("page-cache").request("quick", "h", seed=1)
    host = topologies.topology(2, cores=4, memory_gib=64)
    whole = make.make(replace(request, budget_s=None), host)
    kept = []
    for part in range(98, 0, -7):
        made = make.make(replace(request, budget_s=whole.estimate.total_s * part / 100), host)
        kept.append(list(dict.fromkeys(cell.variant for cell in made.cells)))
    every = kept[0] + [cell.variant for cell in whole.cells if cell.variant not in kept[0]]
    assert all(cases == every[: len(cases)] for cases in kept)
    assert ["empty", "full"] in kept and [] in kept and ["empty"] not in kept


def test_without_a_budget_nothing_is_left_out_for_its_time():
    made = _made()
    assert not [skip for skip in made.skipped if skip.reason.code.startswith("budget")]
    assert 0 < made.least_s < made.estimate.total_s
    assert _made(made.least_s).cells and not _made(0.99 * made.least_s).cells


def test_a_trial_longer_than_its_limit_is_not_planned():
    made = _made(time_limit_s=0.5)
    assert not made.cells
    assert "longer-than-limit" in {skip.reason.code for skip in made.skipped}
    assert "its limit is 0 s" in show.text(made)


def test_the_budget_of_a_profile_is_for_what_the_profile_asks():
    stream = experiments.load("stream")
    assert stream.request("quick", "h").budget_s == stream.profile("quick").budget
    assert stream.request("quick", "h", blocks=20).budget_s is None
    assert stream.request("quick", "h", blocks=20, budget_s=60).budget_s == 60


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400)])
def test_a_length_of_time(text, seconds):
    assert experiments.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "-5m", "0s", "1d", None, 30])
def test_what_is_no_length_of_time_is_refused(text):
    with pytest.raises(Fault, match="no length of time"):
        experiments.duration(text)


def test_bindings_of_ones_own_keep_the_sweep_that_is_about_them():
    made = experiments.load("stream").request("quick", "h", bindings=["local:0", "unbound"])
    assert [one.option for one in made.sweep] == ["threads"]
    assert experiments.load("stream").request("quick", "h", bindings=["unbound"]).sweep == ()
    assert isinstance(made.sweep[0], SweepRequest)


def test_what_matters_least_goes_as_a_whole(bare):
    root = sysfs_tree.shared(sysfs_tree.INTEL_2N)
    asked = asking.ask_all("quick", "there", 1, ANY, True)
    whole = pricing.price(asked, ANY, root=root)
    priced = pricing.price(asked, ANY, whole.seconds / 8, root)
    assert 0 < priced.seconds <= whole.seconds / 8
    gone = {one.name for one in priced.each if not one.seconds}
    kept = sorted(one.asked.experiment.priority for one in priced.each if one.seconds)
    lost = [one.asked.experiment.priority for one in priced.each
            if one.name in gone and "higher priority" in str(one.why)]  # fmt: skip
    assert lost and max(lost) < kept[1]  # a short one may fit into what is left
    assert "higher priority" in priced.text(200)
    assert f"of {show.units.seconds(whole.seconds / 8)}" in priced.text(200)


def test_in_the_profiles_time_what_matters_least_is_left_out_and_the_rest_stays(bare, monkeypatch):
    root = sysfs_tree.shared(sysfs_tree.LARGE[0])
    asked = asking.ask_all("quick", "there", 1, ANY, True)
    names = {"latency", "stream", "mysql-cores", "sysbench-cpu", "command"}
    asked = [one for one in asked if one.experiment.name in names]
    own = {one.name: one for one in pricing.price(asked, ANY, root=root).each}
    but = sum(one.seconds for one in own.values()) - own["command"].seconds / 2
    monkeypatch.setitem(pricing.PROFILE_S, "quick", but)
    for one in pricing.price(asked, ANY, root=root).each:
        if one.name == "command":
            assert not one.seconds and "higher priority" in one.left_out[0][1]
        else:
            assert one.plan.order == own[one.name].plan.order


def test_hosts_that_are_not_seen_from_here_get_their_parts():
    asked = asking.ask_all("quick", "there", 1, ANY, True)
    parts = [one.request.budget_s for one in pricing.shared(asked, 600)]
    assert sum(parts) == pytest.approx(600)
    assert max(parts) / min(parts) > 10


def _ask(*words):
    return CliRunner().invoke(cli.app, ["plan", *words, "--seed", "1"])


def test_the_command_prints_every_experiment_and_the_total(bare):
    root = str(sysfs_tree.shared(sysfs_tree.INTEL_2N))
    done = _ask("--all", "--root", root, "--budget", "20m")
    *rows, last = done.output.splitlines()
    assert last == "only with --allow-host-changes, else left out: page-cache, placement"
    heads = [line.split()[0] for line in rows if line[:1].strip()]
    assert done.exit_code == 0
    assert sorted(heads[:-1]) == experiments.names() and heads[-1] == "all"
    assert rows[-1].endswith("of 20 min")
    told = json.loads(_ask("--all", "--root", root, "--budget", "20m", "--json").output)
    assert told["seconds"] <= told["budget_s"] == 1200
    assert all(one["trials"] or one["why"] for one in told["experiments"])


def test_all_is_not_narrowed():
    for words, said in (
        (["--all", "-b", "local"], "cannot be used with -b"),
        (["--all", "stream"], "name one experiment, or --all"),
        ([], "name one experiment, or --all"),
        (["--all", "--request"], "--request is of one"),
        (["--all", "--budget", "soon"], "no length of time"),
    ):
        assert said in str(_ask(*words).exception)


def test_all_is_priced_before_it_starts(monkeypatch, capsys):
    def run(one, settings):
        print("started", one.experiment.name)

    monkeypatch.setattr(session, "run", run)
    monkeypatch.setattr(session, "_among_published", lambda folders: [])  # nothing was measured
    session.run_all(asking.ask_all("smoke", "here", 1, ANY, True), ANY, 3600)
    said = capsys.readouterr().out
    assert said.index("\nall ") < said.index("started")
    assert "of 60 min" in said


def _page_cache(bare, budget_s=None):
    """Return the price of page-cache alone where filling a node of 512 GiB takes long."""
    root = sysfs_tree.shared(sysfs_tree.LARGE[0])
    asked = asking.ask_all("quick", "there", 1, ANY, True)
    alone = [one for one in asked if one.experiment.name == "page-cache"]
    return alone[0], root, pricing.price(alone, ANY, budget_s, root)


@pytest.mark.parametrize("name", [one for one in experiments.names() if one != "service"])
def test_quick_measures_something_on_an_ordinary_server(bare, name):
    """Two nodes of 128 GiB: an experiment whose budget is too small for these is of no use."""
    root = sysfs_tree.shared(sysfs_tree.INTEL_2N)
    request = asking.ask(name, "quick", "there", seed=1).request
    made = make.make(request, topology.read(str(root)))
    assert made.order, [str(one.reason) for one in made.skipped]


def test_what_has_no_time_is_not_said_to_be_impossible_on_the_host(bare):
    asked, root, priced = _page_cache(bare, 120)
    text = priced.text(80)
    assert "left out" in text and "it takes at least" in text
    assert priced.as_dict()["experiments"][0]["skipped"]
    made = make.make(asked.request, topology.read(str(root)))
    said = [str(run.nothing_here(made)), text, show.text(made)]
    assert "there is not enough time" in said[0] and "it takes at least" in said[0]
    assert not [one for one in said if "on this host" in one]
    assert [why.code for why in made.warnings][0] == "nothing-to-measure"
    assert "baseline-not-in-first-case" not in {why.code for why in made.warnings}


def test_time_that_nobody_uses_goes_to_those_that_lack_it(bare):
    asked, root, _ = _page_cache(bare)
    assert not make.make(asked.request, topology.read(str(root))).cells  # not in its own share
    priced = pricing.price(asking.ask_all("quick", "there", 1, ANY, True), ANY, root=root)
    each = {one.name: one for one in priced.each}
    assert each["page-cache"].seconds > asked.request.budget_s
    services = {"service-per-node", "postgresql-binding"}  # that matter less
    assert {one.name for one in priced.each if not one.seconds} <= services
    assert priced.seconds <= pricing.PROFILE_S["quick"]
    more = pricing.price([one.asked for one in priced.each], ANY, 2 * priced.seconds, root)
    assert len(more.each[5].plan.cells) > len(each["page-cache"].plan.cells)


def test_shares_that_add_up_to_more_than_the_profiles_time_are_cut(bare, monkeypatch):
    monkeypatch.setitem(pricing.PROFILE_S, "quick", 600.0)
    root = sysfs_tree.shared(sysfs_tree.LARGE[0])
    asked = asking.ask_all("quick", "there", 1, ANY, True)
    assert 0 < pricing.price(asked, ANY, root=root).seconds <= 600
    parts = [one.request.budget_s for one in pricing.shared(asked)]
    assert sum(parts) == pytest.approx(600)


def test_only_what_is_new_is_said_of_an_experiment_left_out(bare):
    root = sysfs_tree.shared(sysfs_tree.INTEL_2N)
    asked = asking.ask_all("quick", "there", 1, ANY, True)
    text = pricing.price(asked, ANY, 1, root).text(80)
    assert re.search("left out\n +– same reason as above", text)
    assert text.count("higher priority") == 1


def test_what_is_alike_on_many_nodes_is_said_once(bare):
    root = sysfs_tree.shared(sysfs_tree.LARGE[-1])
    asked = asking.ask_all("quick", "there", 1, ANY, True)
    priced = pricing.price(asked, ANY, root=root)
    assert priced.text(1000).count("nodes 8-15 have no CPUs") == 1
    latency = next(one.plan for one in priced.each if one.name == "latency")
    assert [line for line in show.skipped_lines(latency) if "have no CPUs" in line] == [
        "local:8, local:9, local:10, local:11, local:12, local:13, local:14, local:15: nodes 8-15 "
        "have no CPUs"
    ]


@pytest.mark.parametrize("width", [80, 60])
def test_a_long_list_of_cpus_is_broken_at_a_comma(width, bare):
    host = topology.read(str(sysfs_tree.shared(sysfs_tree.LARGE[1])))
    request = asking.ask("mysql-binding", "quick", "there", seed=1).request
    lines = show.text(make.make(request, host), width).splitlines()
    assert [line for line in lines if len(line) > width and "--physcpubind=" not in line] == []


def test_a_command_line_of_an_instance_can_be_pasted(bare):
    host = topology.read(str(sysfs_tree.shared(sysfs_tree.LARGE[0])))
    made = make.make(asking.ask("mysql-instances", "quick", "there", seed=1).request, host)
    text = show.text(made, 100)
    for cell in made.cells:
        for word in (word for one in cell.instances for word in one.numactl):
            assert word in text
