"""The survey of published machines: its tables, its ratios, its counts, and a host among them."""

import json
import re
import shutil
import types
from pathlib import Path

import polars as pl
import pytest
from frictionless import Package
from typer.testing import CliRunner

from numalab import cli, experiments, home, runs, session
from numalab.agent.contract import CONFIGURED, COUNTED, MEASURED, UNVERIFIED
from numalab.agent.errors import Fault
from numalab.analysis import survey
from numalab.pages import execute
from numalab.pages import survey as pages
from numalab.show.article import Article
from numalab.show.survey import Survey
from test_charts import assert_publishable, texts

DATA = Path(__file__).resolve().parent.parent / "data"
TABLES = ("machines", "published", "hearsay", "microarchitectures")
README = "data/reference/README.md, Add a machine, says what belongs there"
# ---------------------------------------------------------------- the tables


def faults(data: Path, names: tuple[str, ...] = TABLES) -> list[str]:
    """What a stranger did wrong: file, row, column, and what to do."""
    found = []
    for resource in Package(str(data / "datapackage.json")).resources:
        if resource.name in names:
            for row, column, note in resource.validate().flatten(
                ["rowNumber", "fieldName", "note"]
            ):
                where = f"{resource.name}.csv, row {row or 1}, column {column or '?'}"
                found.append(f"{where}: {note}; {README}")
    return found


def test_every_row_fits_the_schema_of_the_data_package():
    assert not faults(DATA), "\n".join(faults(DATA))


@pytest.mark.parametrize(
    ("column", "wrong"),
    [
        ("value", "fast"),
        ("unit", "nanoseconds"),
        ("class", "near"),
        ("source_locator", ""),
        ("microarchitecture", "Zen 9"),
        ("nodes", "0"),
    ],
)
def test_a_strangers_mistake_is_named_by_row_and_column(tmp_path, column, wrong):
    shutil.copytree(DATA / "reference", tmp_path / "reference")
    shutil.copyfile(DATA / "datapackage.json", tmp_path / "datapackage.json")
    file = tmp_path / "reference" / "machines.csv"
    rows = pl.read_csv(file, infer_schema=False).head(3)
    rows = rows.with_columns(
        pl.when(pl.int_range(pl.len()) == 1).then(pl.lit(wrong)).otherwise(column).alias(column)
    )
    rows.write_csv(file)
    (said,) = faults(tmp_path, ("machines",))
    assert said.startswith("machines.csv, row 3,") and README in said
    assert column in said


def test_a_table_that_does_not_fit_is_a_message_and_no_traceback(monkeypatch, tmp_path):
    shutil.copytree(DATA / "reference", tmp_path / "data" / "reference")
    file = tmp_path / "data" / "reference" / "machines.csv"
    file.write_text(file.read_text().replace(",61.7,", ",fast,", 1))
    monkeypatch.setattr(home, "root", lambda: tmp_path)
    with pytest.raises(Fault, match="cannot be read: .*fast.*names the row and the column"):
        survey.load.__wrapped__()


def _table(name):
    return pl.read_csv(DATA / "reference" / f"{name}.csv", infer_schema=False).with_row_index(
        "row", offset=2
    )


def _rows(frame):
    return f"rows {', '.join(map(str, frame['row'].head(5).to_list()))}"


def test_what_nobody_can_follow_is_hearsay_and_in_no_other_file():
    unknown = pl.col("source_locator").str.contains("(?i)not identified")
    for name in ("machines", "published"):
        lost = _table(name).filter(unknown)
        assert lost.is_empty(), f"{name}.csv, {_rows(lost)}: move them to hearsay.csv, or find it"
    found = _table("hearsay").filter(~unknown)
    assert found.is_empty(), f"hearsay.csv, {_rows(found)}: their source is known: to machines.csv"
    heard = set(_table("hearsay")["machine"])
    assert heard.isdisjoint(survey.load()["machine"])


def test_no_figure_stands_twice():
    both = pl.concat([_table("machines"), _table("published")])
    twice = both.filter(both.drop("row").is_duplicated())
    assert twice.is_empty(), f"{_rows(twice)} stand twice"


@pytest.mark.parametrize("column", ["machine", "vendor", "processor", "microarchitecture", "nodes"])
def test_one_machine_is_described_in_one_way(column):
    rows = pl.concat([_table("machines"), _table("published")])
    odd = rows.filter(pl.col(column).n_unique().over("machine_id") > 1)
    assert odd.is_empty(), f"{column} differs within {odd['machine_id'].unique().to_list()}"


def test_nothing_published_is_graded_above_unverified():
    rows = survey.load()
    assert set(rows["grade"]) == {UNVERIFIED}
    assert rows.height == _table("machines").height + _table("published").height


# ---------------------------------------------------------------- ratios and counts


def _figures(*rows):
    """Idle latencies: machine, mode, tool, version, access, class, value."""
    names = ("machine", "machine_id", "tool", "tool_version", "access", "class", "value")
    frame = pl.DataFrame([dict(zip(names, row, strict=True)) for row in rows])
    other = dict.fromkeys(("vendor", "processor", "node_mode"), None)
    fixed = {"microarchitecture": "M", "experiment": "idle-latency", "metric": "idle latency",
             "unit": "ns", "threads": "1", "year": 2020}  # fmt: skip
    return frame.with_columns(**{name: pl.lit(value) for name, value in {**other, **fixed}.items()})


def test_figures_of_two_tools_two_versions_or_two_ways_share_no_ratio():
    rows = _figures(
        ("a", "a", "MLC", "3.9", "random", "local", 100.0),
        ("a", "a", "MLC", "3.9", "random", "remote-socket", 150.0),
        ("a", "a", "MLC", "3.10", "random", "remote-socket", 300.0),
        ("a", "a", "MLC", "3.9", "sequential", "remote-socket", 400.0),
        ("a", "a", "other", "3.9", "random", "remote-socket", 500.0),
        ("a", "a", None, None, "random", "local", 1.0),
        ("a", "a", None, None, "random", "remote-socket", 9.0),
    )
    found = survey.ratios(rows, survey.LATENCY)
    assert found.select("ratio", "price").rows() == [(1.5, 50.0)]


def test_a_claim_counts_machines_once_whatever_they_have_of_modes_and_rows():
    rows = _figures(
        *[("a", "a", "MLC", "3", "random", kind, v) for kind, v in
          (("local", 100.0), ("remote-socket", 160.0), ("remote-socket", 160.0))],
        *[("a", "a-snc", "MLC", "3", "random", kind, v) for kind, v in
          (("local", 100.0), ("remote-socket", 220.0))],
        *[("b", "b", "MLC", "3", None, kind, v) for kind, v in
          (("local", 50.0), ("remote-socket", 100.0))],
        *[("c", "c", "lat_mem_rd", None, "partly cached", kind, v) for kind, v in
          (("local", 50.0), ("remote-socket", 500.0))],
    )  # fmt: skip
    twice = next(one for one in survey.counts(rows) if one.claim == "remote-latency-nearly-double")
    assert (twice.holds, twice.of, twice.median) == (2, 2, pytest.approx(1.95))
    assert twice.interval is None  # two machines bound no median


def test_a_machine_counts_as_its_firmware_sets_it_by_default_where_that_was_measured():
    rows = _figures(
        *[("a", machine, "MLC", "3", None, kind, v) for machine, ratio in
          (("a", 1.9), ("a-snc2", 1.1), ("a-snc3", 1.2))
          for kind, v in (("local", 100.0), ("remote-socket", 100.0 * ratio))],
    ).with_columns(
        node_mode=pl.col("machine_id").replace({"a": "default", "a-snc2": "SNC2", "a-snc3": "SNC3"})
    )  # fmt: skip
    others = rows.filter(pl.col("node_mode") != "default")
    for kept, ratio in ((rows, 1.9), (others, 1.15)):
        found = survey.ratios(kept, survey.LATENCY)
        assert survey.counted(found)["ratio"].to_list() == [pytest.approx(ratio)]
        assert survey.machines(found)["ratio"].to_list() == [pytest.approx(ratio)]


def test_the_interval_of_a_share_is_wilsons():
    holds, of, share, middle, interval = survey.tally(
        [1.0] * 14 + [2.0] * 8, [False] * 14 + [True] * 8
    )
    assert (holds, of, middle) == (8, 22, 1.0)
    assert share == (pytest.approx(0.1973, abs=1e-4), pytest.approx(0.5704, abs=1e-4))
    assert interval == (1.0, 2.0)


def test_a_claim_has_one_threshold_in_experiments_and_survey():
    said = {
        claim["id"]: claim["holds_if"]
        for name in ("latency", "stream")
        for claim in experiments.load(name).claims
    }
    counts = survey.counts()
    for one in counts:
        predicate = said[one.claim]
        assert one.bound in (predicate.get("ratio_at_least"), predicate.get("ratio_at_most"))
    assert next(one for one in counts if one.claim == "remote-latency-nearly-double").bound == 1.8


@pytest.mark.parametrize(
    ("holds", "of", "verdict"),
    [(19, 20, "true of most"), (1, 20, "true of few"), (8, 22, "undecided"),
     (0, 0, "nothing published")],
)  # fmt: skip
def test_a_count_is_decided_by_its_interval(holds, of, verdict):
    counted = survey.tally([1.0] * of, [True] * holds + [False] * (of - holds))
    one = survey.Count("id", "It is so", "source", survey.LATENCY, 1, "at least 1", *counted)
    assert one.verdict == verdict
    assert ("no machine" in str(one)) == (of == 0)


def test_the_firmwares_distances_stand_beside_what_was_measured_there():
    found = survey.distances(survey.load())
    hygon = found.filter(pl.col("machine_id") == "hygon-5280-2s").sort("said")
    assert hygon["said"].to_list() == pytest.approx([1.6, 2.2, 2.8])
    assert hygon["ratio"].to_list() == pytest.approx([1.57, 2.25, 2.80], abs=0.01)


# ---------------------------------------------------------------- a host among them


def _run(pairs, *, evidence=MEASURED, emulated=False, tool="probe", experiment="latency"):
    """A run on a host of two sockets with two nodes each."""
    rows = pl.DataFrame(
        [
            {"tool": tool, "grade": "verified", "cpu_nodes": cpu, "memory_nodes": memory,
             "value": value, "distance": 10 if cpu == memory else 20,
             "binding": "local" if cpu == memory else "remote"}
            for cpu, memory, value in pairs
        ]
    )  # fmt: skip
    cpus = [types.SimpleNamespace(node=node, package=node // 2) for node in range(4)]
    return types.SimpleNamespace(
        host=types.SimpleNamespace(emulated=emulated, topology=types.SimpleNamespace(cpus=cpus)),
        evidence=evidence,
        manifest=types.SimpleNamespace(host="db1", experiment=experiment),
        node_pairs=lambda metric: rows,
    )


FAR = [("0", "0", 100.0), ("0", "2", 180.0), ("0", "1", 120.0)]


def test_a_host_is_placed_among_random_chases_of_named_tools():
    said = survey.position(_run(FAR))
    assert "your host: the other socket's memory costs 1.80 × local, between" in said
    assert "published machines (random chase, Intel MLC; not verified here)" in said
    assert survey.position(_run([("0", "0", 100.0), ("0", "2", 900.0)])).count(", the highest") == 1
    assert survey.position(_run([("0", "0", 100.0), ("0", "2", 101.0)])).count(", the lowest") == 1


def test_a_host_of_one_socket_is_placed_by_its_other_nodes():
    assert "another node's memory costs 1.20 × local" in survey.position(
        _run([("0", "0", 100.0), ("0", "1", 120.0)])
    )


@pytest.mark.parametrize(
    "run",
    [
        _run(FAR, emulated=True),
        _run(FAR, evidence=COUNTED),
        _run(FAR, evidence=CONFIGURED),
        _run(FAR, tool="mlc"),
        _run(FAR[:1]),
        _run(FAR[1:]),
    ],
    ids=["emulated", "counted", "configured", "another tool", "one node", "no local memory"],
)
def test_where_nothing_compares_no_position_is_given(run):
    assert survey.position(run) is None


def test_measuring_everything_ends_with_the_hosts_place(monkeypatch):
    monkeypatch.setattr(runs, "load", lambda folder: folder)
    some = [_run(FAR, experiment="stream"), _run(FAR), _run(FAR, emulated=True)]
    assert list(session._among_published(some)) == [survey.position(_run(FAR))]


# ---------------------------------------------------------------- what is shown

CHARTS = ("latency", "price", "bandwidth", "years", "same_socket", "same_socket_bandwidth",
          "distances", "core_to_core", "loaded", "servers")  # fmt: skip


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_of_the_survey_can_be_published_with_a_host_in_it(name):
    shown = Survey()
    shown.runs = [_run(FAR)]
    shown.own = [survey.own(one) for one in shown.runs]
    figure = getattr(shown, name)()
    assert figure.badge == "published"
    assert_publishable(figure)
    drawn = any("your host" in text for text in texts(figure))
    comparable = ("latency", "price", "years", "same_socket", "distances")
    assert drawn == (name in comparable)


@pytest.mark.parametrize(
    "pairs, title",
    [(FAR, "the other socket's memory"), ([FAR[0], FAR[2]], "another node of the same socket")],
)
def test_a_users_article_draws_the_host_where_it_can_be_compared(monkeypatch, pairs, title):
    monkeypatch.setattr(runs, "load", lambda run: run)
    told = Article([])
    told.runs = [_run(pairs, experiment="stream"), _run(pairs)]
    figure = told.among_published()
    assert title in figure.figure.get_suptitle()
    assert any("your host" in text for text in texts(figure))
    told.runs = [_run(pairs, emulated=True)]
    assert told.among_published() == ""


def test_a_run_of_another_experiment_places_no_host():
    run = next((DATA / "runs").glob("*/*-stream"))
    with pytest.raises(Fault, match="is a run of stream. a host's place is by its latencies"):
        Survey([run])


def test_the_page_is_of_its_notebook_and_loads_nothing_from_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setattr(
        execute, "run_notebook", lambda source, target, _: shutil.copy(source, target)
    )
    page = pages.make([], tmp_path).read_text(encoding="utf-8")
    assert "<h1>The survey: machines that others published</h1>" in page
    assert page.count("<img") == len(CHARTS) and "Table 1" in page
    assert not re.search(r"<(script|link)[^>]+(src|href)=.https?:", page)


def test_the_command_prints_the_same_numbers_for_a_person_and_a_script(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMALAB_RUNS", str(tmp_path))
    done = CliRunner().invoke(cli.app, ["survey", "--json"])
    given = json.loads(done.output)
    assert given["machines"] == survey.load()["machine"].n_unique() and given["own"] == []
    said = CliRunner().invoke(cli.app, ["survey", "--no-notebook"], env={"COLUMNS": "120"}).output
    for row in given["microarchitectures"]:
        assert row["microarchitecture"] in said and f"{row['ratio']:.2f} ×" in said
    assert "published by others" in said


def test_the_command_says_what_it_leaves_out_and_fits_a_narrow_terminal(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMALAB_RUNS", str(tmp_path))
    command = ["survey", "--no-notebook", "--host", "db7"]
    said = CliRunner().invoke(cli.app, command, env={"COLUMNS": "120"}).output
    assert "db7: no complete run of latency" in said
    assert "Latencies of AMD, HiSilicon," in said and "not in these rows" in said
    narrow = CliRunner().invoke(cli.app, command, env={"COLUMNS": "40"}).output
    assert "- Ivy Bridge-EP (2013, 2 machines):" in narrow and "…" not in narrow
