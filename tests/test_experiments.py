"""Experiment files: every committed one is sound; a wrong one gets a message, not a guess."""

import json
import os
import re
import shutil
from pathlib import Path

import nbformat
import pytest

import topologies
from numalab import asking, experiments, session
from numalab.agent.contract import CaseRequest, Request, ToolRequest, from_json, to_json
from numalab.agent.errors import Fault, NotHere
from numalab.agent.plan import make
from numalab.analysis import claims

REPOSITORY = Path(__file__).resolve().parent.parent
NAMES = sorted(path.stem for path in (REPOSITORY / "experiments").glob("*.yml"))

GOOD = """
question: What?
notebook: stream.ipynb
tool: {name: stream}
bindings: [local]
baseline: local
measure: {triad: {unit: GB/s, better: higher}}
profiles:
  smoke: {blocks: 2, array: 16MiB}
"""


def _write(tmp_path, text):
    path = tmp_path / "mine.yml"
    path.write_text(text)
    return path


def test_a_notebook_is_named_or_the_general_one_shows_the_run(tmp_path):
    text = (REPOSITORY / "experiments" / "command.yml").read_text()
    own = _write(tmp_path, text.replace("notebook: command.ipynb\n", ""))
    loaded, _ = asking.load(own)
    assert loaded.notebook is None and asking.Asked(None, loaded).notebook is None
    own.write_text(text.replace("command.ipynb", "nobody-wrote-it.ipynb"))
    with pytest.raises(Fault, match="no notebook .*nobody-wrote-it.ipynb, which mine names"):
        asking.load(own)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no JSON", "is no Jupyter notebook .JSONDecodeError"),
        ('{"metadata": {"kernelspec": {"name": "p"}}, "cells": 5}', "notebook .TypeError"),
        ('{"metadata": {}, "cells": []}', "is no Jupyter notebook .KeyError: 'kernelspec'"),
        ("\x80", "is no Jupyter notebook .UnicodeDecodeError"),
        (
            '{"metadata": {"kernelspec": {"name": "p"}}, "cells": []}',
            "has no cell tagged `parameters` with `source`",
        ),
        (
            '{"metadata": {"kernelspec": {"name": "p"}}, "cells": '
            '[{"metadata": {"tags": ["parameters"]}, "source": ["host = 1"]}]}',
            "has no cell tagged `parameters` with `source`",
        ),
    ],
)
def test_a_notebook_that_could_show_no_run_is_told_before_anything_is_measured(
    checkout, text, words
):
    (checkout[0].parent / "notebooks" / "stream.ipynb").write_bytes(text.encode("latin-1"))
    with pytest.raises(Fault, match=words):
        asking.load("good")
    with pytest.raises(Fault, match=words):
        _run_all("smoke")
    assert checkout[1] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_committed_experiment_is_sound(name):
    loaded = experiments.load(name)
    assert loaded.question.endswith("?")
    assert (REPOSITORY / "notebooks" / loaded.notebook).is_file()
    assert set(loaded.profiles) - {"paper"} == {"smoke", "quick", "full"}
    assert len(claims.load(loaded.claims)) == len(loaded.claims)
    if len(loaded.bindings) > 1 and loaded.control:
        # Fewer than 6 blocks decide nothing: only smoke may have them.
        assert loaded.profiles["quick"].blocks >= 6 and loaded.profiles["full"].blocks >= 6


def test_profile_keys_that_are_not_ours_are_options_of_the_tool(tmp_path):
    request = experiments.load(_write(tmp_path, GOOD)).request("smoke", "here", seed=3)
    assert request.tool == ToolRequest("stream", ("stream",), {"array": "16MiB"})
    assert (request.blocks, request.seed, request.headline) == (2, 3, "triad")
    assert from_json(Request, json.loads(json.dumps(to_json(request)))) == request


def test_the_command_line_overrides_the_file(tmp_path):
    loaded = experiments.load(_write(tmp_path, GOOD))
    request = loaded.request(
        "smoke", "here", bindings=["unbound"], blocks=9, tool="probe", options={"array": 5}
    )
    assert request.bindings == ("unbound",) and request.blocks == 9
    assert request.tool.prefer == ("probe",) and request.tool.options["array"] == 5
    assert request.collectors is not None
    assert loaded.request("smoke", "here", collectors=False).collectors is None


def test_pairs_stand_for_their_class_but_where_bindings_are_named(tmp_path):
    sweep = "sweep: [{option: mode, values: [loaded], bindings: [local], pairs: class}]\n"
    loaded = experiments.load(_write(tmp_path, GOOD + sweep))
    assert loaded.request("smoke", "here").pairs == "class"
    assert loaded.request("smoke", "here", bindings=["local"]).pairs == "every"
    every = loaded.request("smoke", "here", pairs="every")
    assert every.pairs == "every" and every.sweep[0].pairs is None
    assert loaded.request("smoke", "here", pairs="").pairs == ""  # which a plan refuses
    loaded = experiments.load(_write(tmp_path, GOOD + sweep + "pairs: every\n"))
    asked = loaded.request("smoke", "here")
    assert asked.pairs == "every" and asked.sweep[0].pairs == "class"


def test_collectors_of_a_file_are_kept_or_switched_off(tmp_path):
    path = _write(tmp_path, GOOD + "collectors: {perf: false}\n")
    loaded = experiments.load(path)
    assert loaded.request("smoke", "here").collectors.perf is False
    assert loaded.request("smoke", "here", collectors=True).collectors.perf is True
    assert loaded.request("smoke", "here", collectors=False).collectors is None


CLAIMS = """
claims:
  - id: a
    says: one thing
    source: here
    holds_if:
      - {metric: triad, cell: remote, against: local/threads=2, ratio_at_most: 1}
      - metric: triad
        cell: "cores:node-node"
        against: "cores:node-spread"
        relative_to: {cell: "cores:2-node", against: local}
        ratio_at_most: 1
  - id: b
    says: another
    source: here
    holds_if: {metric: ipc, among: "instances:nodes", same_within: 0.1}
  - id: c
    says: a third
    source: here
    holds_if: {metric: ipc, follows: triad, cells: [local/threads=1, interleave]}
"""


def test_the_request_names_the_bindings_that_claims_name(tmp_path):
    request = experiments.load(_write(tmp_path, GOOD + CLAIMS)).request("smoke", "here")
    assert request.names == (
        "remote", "local", "cores:node-node", "cores:node-spread", "cores:2-node",
        "instances:nodes", "interleave",
    )  # fmt: skip


@pytest.mark.parametrize("form", claims.FORMS)
def test_a_key_of_a_claim_that_names_cells_is_one_whose_bindings_are_resolved(form):
    named = {"cell", "cells", "against", "among"} & set(form.model_fields)
    predicate = {name: ["local/full"] if name == "cells" else "local/full" for name in named}
    found = list(experiments._named([{"id": "one", "holds_if": [predicate]}]))
    assert found == ["local"] * len(named)


CASES = """
cases:
  - {name: empty, says: the node is empty}
  - {name: full, says: the node is full, options: {array: 1MiB}, changes: {vm.swappiness: "0"}}
"""


def test_cases_go_into_the_request_all_or_those_chosen(tmp_path):
    path = _write(tmp_path, GOOD + "  quick: {blocks: 6, cases: [full]}" + CASES)
    loaded = experiments.load(path)
    empty, full = loaded.request("smoke", "here").cases
    assert empty == CaseRequest("empty", "the node is empty")
    assert full.changes == {"vm.swappiness": "0"} and full.options == {"array": "1MiB"}
    assert loaded.request("quick", "here").cases == (full,)
    assert "cases" not in loaded.request("quick", "here").tool.options
    assert loaded.request("quick", "here", cases=["empty"]).cases == (empty,)
    assert loaded.request("smoke", "here", cases=["full", "empty"]).cases == (empty, full)
    with pytest.raises(Fault, match="no case 'ful'. did you mean full"):
        loaded.request("smoke", "here", cases=["ful"])


def test_a_seed_is_drawn_when_none_is_given(tmp_path):
    loaded = experiments.load(_write(tmp_path, GOOD))
    seeds = {loaded.request("smoke", "here").seed for _ in range(5)}
    assert len(seeds) == 5 and 0 not in seeds


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("question: What?", "question: [unclosed"), r"mine\.yml, line \d+: "),
        (("question: What?", "question: What?\nquestion: Again?"), "'question' stands twice"),
        (("bindings: [local]", "bindngs: [local]"), "unknown key, did you mean bindings"),
        (("blocks: 2", "blocks: 0"), "profiles.smoke.blocks: input should be greater"),
        (("blocks: 2", "blocks: many"), "profiles.smoke.blocks: input should be a valid integer"),
        (("better: higher", "better: bigger"), "measure.triad.better is 'bigger'"),
        (
            ("blocks: 2", "blocks: 2, cases: [ful]"),
            "profile smoke: experiment mine has no case 'ful'",
        ),
        (
            (
                "profiles:",
                "cases: [{name: a}]\nsweep: [{option: threads, values: [1], bindings: [local]}]"
                "\nprofiles:",
            ),
            "cases and a sweep",
        ),
        (
            ("profiles:", "cases: [{name: Full}]\nprofiles:"),
            "profile smoke: 'Full' cannot name a case",
        ),
        (("profiles:", "cases: [{name: a, changes: {a.b: 0}}]\nprofiles:"), "cases.0.changes.a.b"),
        (("notebook: stream.ipynb", "notebook: ../stream.ipynb"), "notebook: string should match"),
        (("bindings: [local]", "bindings: [lokal]"), "no binding 'lokal'. did you mean local"),
        (("bindings: [local]", "bindings: []"), "profile smoke: the request names no bindings"),
        (("profiles:", "cases: [{name: a, option: {}}]\nprofiles:"), "cases.0.option: unknown key"),
        (("blocks: 2", "blocks: 2, time_s: .nan"), "profile smoke: a value is neither text nor a"),
        (("blocks: 2", "blocks: 2, time_s: 2020-01-01"), "profile smoke: a value is neither text"),
        (
            (
                "profiles:",
                "claims:\n- {id: a, says: A, holds_if: {metric: x, cell: remote, against: local, "
                "ratio_at_mots: 1}}\nprofiles:",
            ),
            r"mine\.yml: claim a: holds_if: unknown key 'ratio_at_mots'. did you mean ratio_at",
        ),
        (("tool: {name: stream}", "name: mine\ntool: {name: stream}"), "may not set 'name'"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(tmp_path, change, words):
    with pytest.raises(Fault, match=words):
        experiments.load(_write(tmp_path, GOOD.replace(*change)))


@pytest.mark.parametrize("content", ["", "just text", "- a\n- list", "\x00\xff"])
def test_what_is_no_mapping_is_refused(tmp_path, content):
    path = tmp_path / "mine.yml"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(Fault):
        experiments.load(path)


def test_a_file_of_one_s_own_has_a_name_of_its_own(tmp_path):
    copied = tmp_path / "stream.yml"
    copied.write_text((REPOSITORY / "experiments" / "stream.yml").read_text())
    with pytest.raises(Fault, match="the name of an experiment of this checkout.*my-stream.yml"):
        asking.load(copied)
    mine = copied.rename(tmp_path / "my-stream.yml")
    assert asking.load(mine)[0].name == "my-stream"
    assert asking.load("stream")[1] is None
    assert asking.load(REPOSITORY / "experiments" / "stream.yml")[1] is None


def test_an_unknown_experiment_names_the_nearest():
    with pytest.raises(Fault, match="did you mean stream"):
        experiments.load("steam")
    with pytest.raises(Fault, match="there is no experiment '../experiments/stream'"):
        experiments.load("../experiments/stream")


def test_what_would_fill_the_memory_or_wait_for_ever_is_refused(tmp_path):
    lines = ["a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8]"]
    lines += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 8) + "]" for n in range(1, 12)]
    with pytest.raises(Fault, match="aliases written out"):
        experiments.load(_write(tmp_path, "\n".join(lines)))
    os.mkfifo(tmp_path / "pipe.yml")
    with pytest.raises(Fault, match="no regular file"):
        experiments.load(tmp_path / "pipe.yml")


def test_a_file_named_without_its_ending_is_named_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yml").write_text("question: what?\n")
    with pytest.raises(Fault, match="there is no experiment 'mine'.*ending .yml: mine.yml"):
        experiments.load("mine")
    (tmp_path / "bare").write_text("question: what?\n")
    with pytest.raises(Fault, match="there is no experiment 'bare'.*ending .yml: bare.yml"):
        experiments.load("bare")
    (tmp_path / "notes.md").write_text("notes")
    with pytest.raises(Fault) as refused:
        experiments.load("notes.md")
    assert "notes.md is a file, but its name does not end in .yml" in str(refused.value)
    with pytest.raises(Fault, match="there is no file gone.yml. numalab's own: command, .*stream"):
        experiments.load("./gone.yml")


def test_an_unknown_profile_names_those_there_are():
    with pytest.raises(Fault, match="smoke, quick, full"):
        experiments.load("stream").request("slow", "here")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with one sound experiment; what would be measured is noted, not measured."""
    (tmp_path / "notebooks").mkdir()
    shutil.copy(REPOSITORY / "notebooks" / "stream.ipynb", tmp_path / "notebooks")
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments/good.yml").write_text(GOOD)
    monkeypatch.setenv("NUMALAB_HOME", str(tmp_path))
    measured = []
    monkeypatch.setattr(session, "run", lambda one, _: measured.append(one.experiment.name))
    monkeypatch.setattr(session, "_among_published", lambda folders: [])
    return tmp_path / "experiments", measured


def _run_all(profile):
    settings = asking.Settings()
    session.run_all(asking.ask_all(profile, "here", 1, settings, True), settings)


def test_all_leaves_out_what_lacks_the_profile_and_says_so(checkout, capsys):
    folder, measured = checkout
    (folder / "a.yml").write_text(GOOD.replace("smoke", "slow"))
    _run_all("smoke")
    assert measured == ["good"]
    assert "a has no profile 'smoke'" in capsys.readouterr().out
    with pytest.raises(Fault, match="no experiment has a profile 'sloow'"):
        _run_all("sloow")


def test_all_measures_nothing_while_one_file_has_a_mistake(checkout):
    folder, measured = checkout
    (folder / "z.yml").write_text("question: [unclosed")
    with pytest.raises(Fault, match=r"z\.yml, line \d+"):
        _run_all("smoke")
    assert measured == []


@pytest.mark.parametrize("name", sorted(p.name for p in (REPOSITORY / "notebooks").glob("*.ipynb")))
def test_notebooks_are_thin(name):
    book = nbformat.read(REPOSITORY / "notebooks" / name, as_version=4)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    asks_nothing = name == "survey.ipynb"  # it has a picture and a text for each of ten questions
    assert len(book.cells) <= (26 if asks_nothing else 14)
    assert sum("parameters" in cell.metadata.get("tags", []) for cell in code) == 1
    for cell in code:
        assert not re.search(r"^\s*(for|while|def|class|try|with)\b", cell.source, re.MULTILINE)
        assert not re.search(r"subprocess|open\(|polars|import re\b", cell.source), cell.source
        assert len(cell.source.splitlines()) <= 6, "logic belongs in the library"


def test_all_leaves_out_what_this_host_cannot_offer(checkout, capsys, monkeypatch):
    folder, measured = checkout
    (folder / "b.yml").write_text(GOOD)

    def run(one, settings):
        if one.experiment.name == "b":
            raise asking.LeftOut("there is nothing to measure on this host", "it has one node")
        measured.append(one.experiment.name)

    monkeypatch.setattr(session, "run", run)
    _run_all("smoke")
    assert measured == ["good"]
    assert "b left out: there is nothing to measure on this host. it has one node" in (
        capsys.readouterr().out
    )


ONE_NODE = topologies.topology(1)
SWAPPINESS = "changes: {vm.swappiness: '0'}\n"


@pytest.mark.parametrize(
    ("more", "bindings", "allow", "words"),
    [
        (
            "",
            ["remote", "smt-siblings"],
            True,
            "second usable thread.*this host has one",
        ),
        (SWAPPINESS, None, False, "needs permission to set vm.swappiness = 0"),
        (SWAPPINESS, None, True, None),
        ("", None, False, None),
    ],
)
def test_what_cannot_or_may_not_be_measured_is_said_before_it_starts(
    tmp_path, monkeypatch, more, bindings, allow, words
):
    class Started(Exception):
        pass

    def start(*given, **named):
        raise Started

    path = _write(tmp_path, GOOD.replace("{name: stream}", "{name: probe}") + more)
    asked = asking.ask(path, "smoke", "here", bindings=bindings)
    monkeypatch.setattr(session.launch, "make_plan", lambda one: make.make(one, ONE_NODE))
    monkeypatch.setattr(session.launch, "new_run_directory", start)
    refused = (asking.LeftOut, NotHere) if words else Started
    with pytest.raises(refused, match=words):
        session.run(asked, asking.Settings(allow))


def test_no_two_experiments_claim_in_the_same_words():
    """The article's table of claims is keyed by what they say."""
    said = [claim["says"] for name in NAMES for claim in experiments.load(name).claims]
    assert len(said) == len(set(said))
