"""The article over several hosts: what it puts side by side, what it marks, what it leaves out."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import polars as pl
import pytest

import frames
import sysfs_tree
from numalab import tables
from numalab.agent.contract import CONFIGURED, Case, Measure, ToolRecord, reason
from numalab.agent.host import state, topology
from numalab.analysis import claims, judge
from numalab.show import article
from numalab.show.charts import matrix, placement, style
from test_charts import assert_publishable

MACHINES = {
    "real": (sysfs_tree.ONE_NODE, False),
    "two": (sysfs_tree.INTEL_2N, True),
    "sixteen": (sysfs_tree.ARM_16N, True),
}


def record(name):
    machine, emulated = MACHINES[name]
    root = str(sysfs_tree.shared(machine))
    made = frames.host_record(topology.read(root), host=name, emulated=emulated)
    return replace(made, before=state.read(root))


def run_of(tmp_path, host, experiment, rows, cells, tool="stream", measure=None):
    plan = frames.plan(
        cells, experiment=experiment, host=host, measure=measure, tool=ToolRecord(tool, "1")
    )
    folder = tmp_path / host / f"20260101T000000Z-{experiment}"
    rows = rows.with_columns(host=pl.lit(host), experiment=pl.lit(experiment), tool=pl.lit(tool))
    return frames.run(plan, rows, folder, host=record(host))


def stream(tmp_path, host):
    cells = frames.two_nodes()
    rows = frames.measurements(cells, metric="triad", blocks=6)
    return run_of(
        tmp_path, host, "stream", rows, cells, measure={"triad": Measure("GB/s", "higher")}
    )


def page_cache(tmp_path, host, shares, metric="home_share", unit="share"):
    cells = [
        frames.Cell(f"cpus-only:0/{name}", value, "cpus-only:0/empty" if place else None,
                    role="cell" if place else "baseline")
        for place, (name, value) in enumerate(shares.items())
    ]  # fmt: skip
    rows = frames.measurements(cells, metric=metric, unit=unit, blocks=6)
    run = run_of(
        tmp_path, host, "page-cache", rows, cells, tool="allocation",
        measure={metric: Measure(unit, "higher")},
    )  # fmt: skip
    told = [
        replace(cell, case=Case(cell.case.name, f"the {cell.case.name} case"))
        for cell in run.plan.cells
    ]
    run.manifest.__dict__["plan"] = replace(run.plan, cells=tuple(told))
    return run


@pytest.fixture
def three(tmp_path):
    chosen = [stream(tmp_path, host) for host in ("sixteen", "two", "real")]
    chosen += [
        page_cache(tmp_path, "two", {"empty": 0.99, "full": 0.03}),
        page_cache(tmp_path, "sixteen", {"empty": 0.98, "dropped": 0.97}),
    ]
    return article.Article(chosen)


def columns(table):
    return [cell.strip() for cell in str(table).splitlines()[0].strip("|").split("|")]


def test_machines_come_first_and_emulated_hosts_are_marked(three):
    assert three.chosen.hosts() == ["real", "two", "sixteen"]
    rows = str(three.machines()).splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == [
        "real", "two (counted)", "sixteen (counted)",
    ]  # fmt: skip
    assert "10, 20, 40" in rows[2]


def test_settings_stand_side_by_side(three):
    assert columns(three.settings()) == ["setting", "real", "two (counted)", "sixteen (counted)"]
    assert "- kernel command line of two: `root=/dev/vda1 quiet`" in three.settings()


def test_claims_are_pivoted_by_host_with_the_figures_elsewhere(three, monkeypatch):
    def verdict(host, word, because):
        return claims.Verdict("spills", "It | spills", "somebody", host, word, because, [])

    monkeypatch.setattr(
        article.Article,
        "_verdicts",
        lambda self: [
            verdict("two", claims.SUPPORTED, "3 %"),
            verdict("sixteen", claims.SUPPORTED, "3 %"),
            verdict("real", claims.NOT_TESTABLE, "one node"),
        ],
    )
    table = three.claims()
    # a host that decided nothing has no column
    assert columns(table) == ["claim", "two (counted)", "sixteen (counted)", "source"]
    assert len([line for line in str(table).splitlines() if line.startswith("|")]) == 3
    assert "| ● supported | ● supported |" in table and "real" not in table
    details = three.claim_details()
    assert "- two (counted) and sixteen (counted): supported: 3 %" in details
    assert "one node" not in details
    assert "It" not in three.untested()
    assert three.verdict("spills") == "**supported** on two (counted) and sixteen (counted)"
    assert three.verdict("nothing-of-it") is None
    assert three.counts()["decided"] == 1 and three.counts()["hosts"] == 3
    monkeypatch.setattr(
        article.Article, "_verdicts", lambda self: [verdict("real", claims.NOT_TESTABLE, "no")]
    )
    assert three.claims() == "" and three.verdict("spills") is None
    assert "It \\| spills (real: no)" in three.untested()


def test_times_of_emulated_hosts_are_left_out(three, tmp_path):
    table = three.stream.table("triad")
    assert columns(table)[0] == "host"
    assert "| real |" in table and "| two" not in table
    assert isinstance(three.stream.chart("triad"), style.Picture)
    only = article.Article([stream(tmp_path / "more", "two")])
    assert only.stream.table("triad") == "" and only.stream.chart("triad") == ""
    assert only.stream.headed("## Bandwidth", only.stream.chart("triad")) == ""
    assert only.findings() == ""


def test_one_host_looks_as_it_did(tmp_path):
    alone = article.Article([stream(tmp_path, "real")])
    assert columns(alone.stream.table("triad"))[0] == "binding"
    assert isinstance(alone.stream.chart("triad"), style.Picture)
    assert isinstance(alone.stream.matrix("triad"), style.Picture)
    assert columns(alone.settings()) == ["setting", "value"]


def test_matrices_are_small_multiples_with_the_emulated_ones_marked(three, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        matrix, "matrices", lambda panels, *words: drawn.update(panels=panels, words=words)
    )
    three.stream.matrix("triad")
    assert [panel.host for panel in drawn["panels"]] == ["real"]
    assert [panel.badge for panel in drawn["panels"]] == ["measured"]
    assert drawn["words"][:2] == ("Triad", "GB/s")


def test_there_is_no_figure_of_one_bar_or_of_one_pair_of_nodes(tmp_path):
    cell = frames.Cell("local:0", 80.0, role="baseline")
    rows = frames.measurements([cell], metric="triad", blocks=6)
    measure = {"triad": Measure("GB/s", "higher")}
    told = article.Article(
        [run_of(tmp_path, "real", "stream", rows, [cell], measure=measure)]
    ).stream
    assert told.chart("triad") == told.matrix("triad") == ""
    assert told.headed("## Bandwidth", told.chart("triad"), told.matrix("triad")) == ""


def test_shares_are_compared_case_by_case(three, monkeypatch):
    drawn = {}
    real = placement.cases
    monkeypatch.setattr(placement, "cases", lambda *args: drawn.update(args=args) or real(*args))
    assert isinstance(three.page_cache.shares("home_share"), style.Picture)
    frame, _, names = drawn["args"]
    assert names == {"two": "counted", "sixteen": "counted"}
    assert frame["case"].unique(maintain_order=True).to_list() == [
        "the empty case", "the full case", "the dropped case",
    ]  # fmt: skip
    full = frame.filter((pl.col("case") == "the full case") & (pl.col("host") == "two"))
    assert full["value"][0] == pytest.approx(0.03, rel=0.2)
    table = three.page_cache.by_case("home_share")
    assert columns(table) == ["case", "two (counted)", "sixteen (counted)"]
    assert re.search(r"the full case \| 3.0% \| – \|", str(table))


def test_a_host_with_configured_timing_is_not_drawn_beside_one_that_counts_alike(three):
    section = three.page_cache
    section.views[0].run.manifest.__dict__["evidence"] = CONFIGURED
    hosts = section.by_case("home_share")
    assert columns(hosts) == ["case", "sixteen (counted)"]


def test_where_memory_was_is_told_of_each_host_of_many_nodes_by_the_least_and_the_most(
    three, monkeypatch
):
    shares = {"two": [0.51, 0.49], "sixteen": [0.05, *[0.0625] * 14, 0.075]}

    def proven(run):
        here = enumerate(shares[run.manifest.host])
        cell = run.plan.cells[0].id
        return pl.DataFrame(
            [{"cell": cell, "point": f"node {node}", "value": value} for node, value in here]
        )

    monkeypatch.setattr(article.proofs, "proven", proven)
    said = three.split("page-cache", "cpus-only/empty")
    assert said == "51 : 49 (two), 5–8 (sixteen)"
    shares["sixteen"] = [1.0]  # of one node there is nothing to tell
    assert three.split("page-cache", "cpus-only/empty") == "51 : 49"


def test_a_count_is_compared_with_the_case_that_answers_the_question(tmp_path):
    """Huge pages lost: as many faults as ever, and hundreds of times those of huge pages."""
    faults = {"empty": 126_000.0, "huge": 250.0, "full-huge": 124_000.0}
    run = page_cache(tmp_path, "two", faults, "minor_faults", "count")
    table = article.Article([run]).page_cache.by_case("minor_faults", {"full-huge": "huge"})
    rows = str(table).splitlines()
    assert re.search(r"the full-huge case \|.*\(×(49\d|50\d) of: the huge case\)", rows[4])
    assert "×" not in rows[2] and "×" not in rows[3]


def test_what_was_not_run_takes_no_place(three):
    assert three.placement.shares("home_share") == "" == three.placement.by_case("uneven_share")
    assert three.page_cache.shares("nothing_of_it") == ""
    assert three.placement.headed("## Policies", three.placement.shares("home_share")) == ""


# ---------------------------------------------------------------- what is said


def instances(tmp_path, second, control=0.0):
    """Two servers under two layouts; ``second`` is the ratio of the second, ``control`` of A/A."""
    rows, cells = [], []
    for point, ratio in (("instance 1", 1.3), ("instance 2", second)):
        cells = [
            frames.Cell("unbound", 100.0, role="baseline"),
            frames.Cell("unbound/control", 100.0 * (1 + control), "unbound", role="control"),
            frames.Cell("local:0", 100.0 * ratio, "unbound"),
        ]
        rows.append(
            frames.measurements(
                cells, metric="cpu_per_query", unit="us", point=point, seed=len(rows)
            )
        )
    return run_of(
        tmp_path, "real", "mysql-instances", pl.concat(rows), cells, tool="mysql",
        measure={"cpu_per_query": Measure("us", "lower")},
    )  # fmt: skip


def test_a_finding_of_several_points_tells_each_that_differs(tmp_path):
    said = article.Article([instances(tmp_path, 1.0)]).findings().splitlines()
    assert len(said) == 2
    assert "instance 1" in said[0] and "+30 %" in said[0]
    assert "instance 2" in said[1] and "No binding differs" in said[1]


def test_what_is_nought_is_not_dropped_from_what_differs_most(tmp_path):
    run = page_cache(tmp_path, "two", {"empty": 0.97, "dropped": 0.4, "full": 0.0})
    (said,) = article.Article([run]).findings().splitlines()
    assert "0% (" in said and "(counted)" in said and "97% (" in said


def test_a_run_that_drifted_says_so_where_its_figures_stand_and_decides_nothing(tmp_path):
    run = instances(tmp_path, 1.3, control=0.06)
    told = article.Article([run])
    assert "the run drifted" in told.findings() and "differs most" not in told.findings()
    note = told.mysql_instances.reservations()
    assert "differs from itself" in note and "no verdict and no recommendation" in note
    table = told.mysql_instances.table("cpu_per_query", "instance 1")
    heading = told.mysql_instances.headed("## Servers", table)
    assert heading.startswith("## Servers") and "the run drifted" in heading


def test_a_host_with_configured_timing_decides_no_claim_beside_another(three, tmp_path):
    run = stream(tmp_path / "model", "two")
    run.host.__dict__["timing"] = {"local": "85 ns"}
    run.manifest.__dict__.update(host="model", evidence=CONFIGURED)
    run.host.__dict__["host"] = "model"
    both = article.Article([*three.runs, run])
    assert {one.host for one in both._verdicts()} == {"real", "two", "sixteen"}
    assert both.claims() == "" or "model" not in both.claims()
    assert "model" not in both.on("stream") and "model" in article.Article([run]).on("stream")
    assert {one.host for one in article.Article([run])._verdicts()} == {"model"}


def test_the_smallest_effect_that_a_run_could_see_is_told_of_the_metric_that_decides(three):
    (row,) = str(three.sights()).splitlines()[2:]  # of emulated hosts no time, and no count
    (sight,) = judge.sights(three.chosen.of("stream")[0])
    assert row.startswith("| stream | real | triad | ")
    assert f"{100 * sight.smallest:.2g} %" in row and f"{100 * sight.noise:.2g} %" in row
    assert article.Article([page_cache(three.runs[0].folder, "two", {"empty": 0.9})]).sights() == ""


def test_that_nothing_differs_is_told_with_what_would_have_been_seen(tmp_path):
    run = instances(tmp_path, 1.0)
    (_, said) = article.Article([run]).findings().splitlines()
    least = judge.sights(run)[0].smallest
    assert f"(effects of {tables.number(100 * least, 2)} % or more)" in said


def test_what_shows_no_difference_takes_one_line_together(tmp_path):
    names = ("one", "other")
    chosen = [instances(tmp_path / name, 1.0) for name in names]
    for name, run in zip(names, chosen, strict=True):
        run.manifest.__dict__["experiment"] = name
    said = article.Article(chosen).findings().splitlines()
    alike = [line for line in said if "No binding differs" in line]
    assert len(alike) == 1 and all(f"{name}, CPU per query" in alike[0] for name in names)


@pytest.mark.parametrize("unit, warns", [("us", True), ("share", False), ("count", False)])
def test_warnings_of_timing_are_said_of_times_alone(tmp_path, unit, warns):
    cells = [
        frames.Cell("unbound", 100.0, role="baseline"),
        frames.Cell("local:0", 130.0, "unbound"),
    ]
    rows = frames.measurements(cells, metric="found", unit=unit, blocks=6)
    cold = pl.when(pl.col("block") == pl.col("block").min()).then(1.5).otherwise(1.0)
    rows = rows.with_columns(value=pl.col("value") * cold)
    run = run_of(
        tmp_path, "real", "command", rows, cells, measure={"found": Measure(unit, "lower")}
    )
    told = article.Article([run]).confidence()
    assert ("not warm" in told) is warns and ("quieter host" in told) is warns


def test_a_number_in_prose_is_the_median_that_its_table_shows(tmp_path):
    run = page_cache(tmp_path, "two", {"empty": 100.0, "full": 300.0}, "minor_faults", "count")
    told = article.Article([run])
    said = told.value("page-cache", "minor_faults", "cpus-only/full")
    assert f"| {said} [" in told.page_cache.by_case("minor_faults")


def test_what_spoils_a_section_stands_in_it(tmp_path):
    run = instances(tmp_path, 1.3)
    note = reason("client-shares-cpus")
    cells = tuple(replace(cell, notes=(note,)) for cell in run.plan.cells)
    run.manifest.__dict__["plan"] = replace(run.plan, cells=cells)
    said = article.Article([run]).mysql_instances.reservations()
    assert said.count(str(note)) == 1 and said.startswith(">")


def test_prose_that_lacks_a_number_is_left_out(three):
    text = """
    ## A heading

    It was $much.

    ## Another

    It was $absent, @fig-a.
    """
    assert three.say(text, much="3 %", absent=None) == "## A heading\n\nIt was 3 %."
    assert three.say(text, much=None, absent=None) == ""
    assert three.say("## Only a heading") == "## Only a heading"
    below = "## One\n\n### Two\n\n$a\n\n### Three\n\n$b\n\n## Four\n\n$b"
    assert three.say(below, a="yes", b=None) == "## One\n\n### Two\n\nyes"


def test_numbers_for_prose_span_the_hosts_of_one_kind_of_evidence(three):
    assert three.value("page-cache", "home_share", "cpus-only/full") == "3%"
    assert three.value("page-cache", "home_share", "cpus-only/empty") in (
        "98% to 99%",
        "99%",
        "99% to 100%",
    )
    assert three.value("page-cache", "home_share", "cpus-only/nothing") is None
    assert three.value("stream", "triad", "remote", "local").startswith("0.6")
    assert three.value("placement", "home_share", "local/local") is None
    assert "counted</span>" in three.on("page-cache") and three.on("placement") is None


def test_an_attribute_is_an_experiment_or_an_error(three):
    assert three.mysql_binding.experiment == "mysql-binding"
    with pytest.raises(AttributeError, match="no experiment of-nobody"):
        three.of_nobody  # noqa: B018


def test_every_table_of_figures_says_what_evidence_it_is(three, tmp_path):
    assert "*Measured.*" in three.stream.table("triad")
    assert "*Counted on an emulated host" in three.page_cache.by_case("home_share")
    assert "real: measured; sixteen, two: counted" in article.badge.line(three.runs)


def test_a_label_from_a_stranger_is_shown_as_text(tmp_path):
    run = stream(tmp_path, "real")
    evil = "<script>alert(1)</script>\x1b[2J|`*"
    cells = tuple(replace(cell, label=evil) for cell in run.plan.cells)
    run.manifest.__dict__["plan"] = replace(run.plan, cells=cells)
    run.__dict__["measurements"] = run.measurements.with_columns(label=pl.lit(evil))
    told = article.Article([run])
    pages = [told.findings(), told.untested(), told.stream.table("triad"), told.confidence(),
             told.views[0].plan(), told.stream.chart("triad").svg()]  # fmt: skip
    for page in pages:
        assert "<script>" not in page and "\x1b" not in page


# ---------------------------------------------------------------- the pictures


def svg(picture):
    return ET.fromstring(picture.svg().encode())


def words(height):
    return style.Picture(height, lambda figure: style.title(figure, "words"))


def test_a_sheet_is_one_figure_that_names_each_part_and_never_differs(three):
    parts = [("a", words(1.0)), ("b", words(1.0)), ("c", three.stream.matrix("triad"))]
    sheet = style.sheet(parts, "a remark")
    titles = [part.get_suptitle() for part in sheet.figure.subfigs]
    assert titles[:2] == ["a: words", "b: words"] and titles[2].startswith("c: Triad")
    assert svg(sheet).tag.endswith("svg")
    assert sheet.svg() == style.sheet(parts, "a remark").svg()


def test_narrow_pictures_stand_side_by_side():
    narrow = style.Picture(2.0, lambda figure: None, 3.0)
    assert style.sheet([("a", narrow), ("b", narrow)]).height < 2.5


@pytest.mark.parametrize(("count", "height"), [(1, 2.0), (8, 3.0)])
def test_a_sheet_fits_on_a_page(count, height):
    sheet = style.sheet([(str(n), words(height)) for n in range(count)])
    wide, high = (float(svg(sheet).get(name).removesuffix("pt")) / 72
                  for name in ("width", "height"))  # fmt: skip
    assert high <= style.PAGE + 0.01 and wide <= style.WIDTH + 0.01


@pytest.mark.parametrize("names", [["two"], ["real", "two"], ["real", "two", "sixteen"]])
def test_matrices_of_any_hosts_fit(names):
    panels = []
    for name in names:
        nodes = record(name).topology.nodes
        entries = {(node.number, to): matrix.Entry(float(far), "verified")
                   for node in nodes for to, far in node.distances.items()}  # fmt: skip
        panels.append(matrix.Panel(name, entries, ("measured", "counted")[MACHINES[name][1]]))
    picture = matrix.matrices(panels, "Distances", "", "lower", "from node", "to node")
    assert picture.height <= style.PAGE and picture.width <= style.WIDTH + 1e-6
    titles = [one.get_title(loc="left") for one in picture.figure.axes]
    assert [title for title in titles if title] == names
    said = [text.get_text() for one in picture.figure.axes for text in one.texts]
    assert any("counted" in text for text in said)
    assert_publishable(picture)


def test_a_failed_pair_is_crossed_out_and_never_a_number():
    values = {(0, 0): 80.0, (0, 1): None, (1, 0): 140.0, (1, 1): 81.0}
    entries = {
        pair: matrix.Entry(value, "verified" if value else "error", "" if value else "it failed")
        for pair, value in values.items()
    }
    panel = matrix.Panel("h", entries)
    picture = matrix.matrices([panel], "Idle latency", "ns", "lower", "CPUs", "memory")
    assert_publishable(picture)
    texts = [text.get_text() for text in picture.figure.axes[0].texts]
    assert texts.count("×") == 1 and "nan" not in " ".join(texts).lower()
    assert any("80.0 to 140 ns" in text for text in texts)
