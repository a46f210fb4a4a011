"""The article over several hosts: what it puts side by side, what it marks, what it leaves out."""

import re
import xml.etree.ElementTree as ET

import polars as pl
import pytest

import frames
import sysfs_tree
from numalab import runs
from numalab.agent.host import state, topology
from numalab.analysis import statistics
from numalab.show import article
from numalab.show.charts import hosts, style
from numalab.show.view import Text

MACHINES = {
    "real": (sysfs_tree.ONE_NODE, False),
    "two": (sysfs_tree.INTEL_2N, True),
    "sixteen": (sysfs_tree.ARM_16N, True),
}


def record(name):
    machine, emulated = MACHINES[name]
    root = sysfs_tree.shared(machine)
    return {
        "schema": 1, "host": name, "emulated": emulated,
        "emulated_why": "QEMU TCG" if emulated else None, "topology": topology.read(root),
        "before": state.read(root), "after": None,
    }  # fmt: skip


def run_of(tmp_path, host, experiment, rows, cells, tool="stream", measure=None):
    plan = frames.plan(cells)
    plan["request"] = {**plan.get("request", {}), "measure": measure or {}, "blocks": 6}
    plan.setdefault("tool", {"name": tool, "version": "1"})
    plan["tool"]["name"] = tool
    plan.setdefault("order", [])
    plan.setdefault("skipped", [])
    manifest = {
        "plan": plan, "host": host, "experiment": experiment, "seed": 1, "profile": "quick",
        "status": "complete",
    }  # fmt: skip
    folder = tmp_path / host / f"20260101T000000Z-{experiment}"
    folder.mkdir(parents=True)
    (folder / "journal.ndjson").write_text("")
    run = runs.Run(folder, manifest, record(host))
    run.__dict__["measurements"] = rows.with_columns(pl.lit(host).alias("host"))
    return run


def stream(tmp_path, host):
    cells = frames.two_nodes()
    rows = frames.measurements(cells, metric="triad", blocks=6)
    unit = {"triad": {"unit": "GB/s", "better": "higher"}}
    return run_of(tmp_path, host, "stream", rows, cells, measure=unit)


def page_cache(tmp_path, host, shares):
    cells = [
        frames.Cell(f"cpus-only:0/{name}", value, None if not place else "cpus-only:0/empty",
                    role="cell" if place else "baseline")
        for place, (name, value) in enumerate(shares.items())
    ]  # fmt: skip
    rows = frames.measurements(cells, metric="home_share", blocks=6).with_columns(
        pl.lit("share").alias("unit")
    )
    run = run_of(
        tmp_path, host, "page-cache", rows, cells, tool="allocation",
        measure={"home_share": {"unit": "share", "better": "higher"}},
    )  # fmt: skip
    for cell in run.plan["cells"]:
        name = cell["id"].partition("/")[2]
        cell["case"] = {"name": name, "says": f"the {name} case"}
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
    assert three.hosts() == ["real", "two", "sixteen"]
    rows = str(three.machines()).splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == [
        "real", "two (emulated)", "sixteen (emulated)",
    ]  # fmt: skip
    assert "10, 20, 40" in rows[2]
    assert "two and sixteen are hosts emulated in software" in three.summary()


def test_settings_and_nodes_stand_side_by_side(three):
    assert columns(three.settings()) == ["setting", "real", "two (emulated)", "sixteen (emulated)"]
    assert "- kernel command line of two: `root=/dev/vda1 quiet`" in three.settings()
    assert "host" in columns(three.nodes()) and len(str(three.nodes()).splitlines()) == 2 + 19


def test_claims_are_pivoted_by_host_with_the_figures_elsewhere(three, monkeypatch):
    from numalab.analysis import claims

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
    assert columns(table) == ["claim", "real", "two (emulated)", "sixteen (emulated)"]
    assert len(str(table).splitlines()) == 3
    assert "not testable here | **supported** | **supported**" in table
    details = three.claim_details()
    assert "- two and sixteen: supported: 3 %" in details and "one node" not in details
    assert "claim spills on real: one node" in three.not_tested()
    assert "1 claim, judged on 3 hosts" in three.summary()


def test_times_of_emulated_hosts_are_left_out_where_a_machine_was_measured(three):
    table = three.show("stream", "table", "triad")
    assert columns(table)[0] == "host"
    assert "| real |" in table and "| two" not in table
    assert "Left out: two and sixteen (emulated: times mean nothing)." in table
    sheet = three.show("stream", "chart", "triad")
    assert isinstance(sheet, hosts.Sheet)


def test_where_there_is_no_machine_emulated_hosts_are_shown_and_marked(tmp_path):
    only = article.Article([stream(tmp_path, "two"), stream(tmp_path, "sixteen")])
    table = only.show("stream", "table", "triad")
    assert "| two (emulated) |" in table and "| sixteen (emulated) |" in table
    assert "Left out" not in table


def test_one_host_looks_as_it_did(tmp_path):
    alone = article.Article([stream(tmp_path, "real")])
    assert columns(alone.show("stream", "table", "triad"))[0] == "binding"
    assert isinstance(alone.show("stream", "chart", "triad"), style.Picture)
    assert isinstance(alone.show("stream", "matrix", "triad"), style.Picture)
    assert columns(alone.nodes())[0] == "node"
    assert columns(alone.settings()) == ["setting", "value"]
    assert isinstance(alone.distances(), Text)


def test_matrices_are_small_multiples_with_the_emulated_ones_marked(three, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        hosts, "matrices", lambda panels, *words: drawn.update(panels=panels, words=words)
    )
    three.show("stream", "matrix", "triad")
    assert [panel.host for panel in drawn["panels"]] == ["real", "two", "sixteen"]
    assert [bool(panel.remark) for panel in drawn["panels"]] == [False, True, True]
    assert drawn["words"][:2] == ("Triad", "GB/s")


def test_shares_are_compared_case_by_case(three, monkeypatch):
    drawn = {}
    real = hosts.cases
    monkeypatch.setattr(hosts, "cases", lambda *args: drawn.update(args=args) or real(*args))
    assert isinstance(three.shares("page-cache", "home_share"), style.Picture)
    frame, _, names, emulated = drawn["args"]
    assert names == ["two", "sixteen"] == emulated
    assert frame["case"].unique(maintain_order=True).to_list() == [
        "the empty case", "the full case", "the dropped case",
    ]  # fmt: skip
    full = frame.filter((pl.col("case") == "the full case") & (pl.col("host") == "two"))
    assert full["value"][0] == pytest.approx(0.03, rel=0.2)
    table = three.by_case("page-cache", "home_share")
    assert columns(table) == ["case", "two (emulated)", "sixteen (emulated)"]
    assert re.search(r"the full case \| 3.0% \| – \|", str(table))


def test_counts_are_told_as_multiples_of_the_first_case(tmp_path):
    run = page_cache(tmp_path, "two", {"empty": 1000.0, "full": 3000.0})
    rows = run.measurements.with_columns(
        pl.lit("minor_faults").alias("metric"), pl.lit("count").alias("unit")
    )
    run.__dict__["measurements"] = rows
    table = article.Article([run]).by_case("page-cache", "minor_faults")
    assert re.search(r"the full case \| .*\(×(2\.9|3\.0)", str(table))
    assert "×" not in str(table).splitlines()[2]


def test_what_was_not_run_is_said(three):
    assert "`numalab run placement`" in three.shares("placement", "home_share")
    assert "`numalab run placement`" in three.by_case("placement", "uneven_share")
    assert "No trial measured nothing of it" in three.shares("page-cache", "nothing_of_it")


def test_counts_of_the_kernel_are_real_on_emulated_hosts():
    real = statistics.real_when_emulated
    assert real("tool", "home_share", "share", "allocation")
    assert not real("tool", "triad", "GB/s", "stream")


# ---------------------------------------------------------------- the pictures


def svg(picture):
    return ET.fromstring(picture.svg().encode())


def test_a_sheet_is_one_svg_whose_ids_are_unique():
    made = [hosts._words(f"host {n}", style.BASE, style.INK, 1.0) for n in range(3)]
    sheet = hosts.Sheet([("a", made[0]), ("b", made[1]), ("c", made[2])], "a remark")
    root = svg(sheet)
    ids = [one.get("id") for one in root.iter() if one.get("id")]
    assert len(ids) == len(set(ids)) > 0
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', sheet.svg()))
    assert used <= set(ids)
    assert sheet.svg() == sheet.svg()


@pytest.mark.parametrize(("count", "height"), [(1, 2.0), (8, 3.0)])
def test_a_sheet_fits_on_a_page(count, height):
    made = [hosts._words("x", style.BASE, style.INK, height) for _ in range(count)]
    root = svg(hosts.Sheet([(str(n), one) for n, one in enumerate(made)]))
    high, wide = (float(root.get(name).removesuffix("pt")) / 72 for name in ("height", "width"))
    assert high <= hosts.PAGE + 0.01 and wide <= style.WIDTH + 0.01
    assert float(root.get("viewBox").split()[2]) / 72 == pytest.approx(style.WIDTH, abs=0.01)


@pytest.mark.parametrize("names", [["two"], ["real", "two"], ["real", "two", "sixteen"]])
def test_matrices_of_any_hosts_fit(names):
    panels = [
        hosts.distance_panel(
            name, record(name)["topology"], "emulated" if MACHINES[name][1] else ""
        )
        for name in names
    ]
    picture = hosts.matrices(panels, "SLIT distances", "", "from node", "to node")
    width, height = picture.get_size_inches()
    assert width == pytest.approx(style.WIDTH) and height <= hosts.PAGE
    texts = [text.get_text() for axes in picture.axes for text in axes.texts]
    for name in names:
        assert name in texts
    assert any("emulated" in text for text in texts)
    for axes in picture.axes:
        box = axes.get_position()
        assert 0 <= box.x0 < box.x1 <= 1 and 0 <= box.y0 < box.y1 <= 1


def test_a_failed_pair_is_crossed_out_and_never_a_number():
    panel = hosts.Panel("h", {(0, 0): 80.0, (0, 1): None, (1, 0): 140.0, (1, 1): 81.0})
    picture = hosts.matrices([panel], "Idle latency", "ns", "CPUs", "memory")
    texts = [text.get_text() for text in picture.axes[0].texts]
    assert texts.count("×") == 1 and "nan" not in " ".join(texts).lower()
    assert any("80.0 to 140 ns" in text for text in texts)
