"""What a run of a service shows: its curves, its instances, its tables, its recommendation."""

import ast
import gzip
import json

import nbformat
import polars as pl
import pytest
from matplotlib.text import Text

import frames
import mysql_frames
import service_frames
from numalab import home
from numalab.agent.contract import CpuProof, MemoryProof, Proof, to_json
from numalab.agent.errors import Fault
from numalab.pages import report
from numalab.show import article, proofs
from numalab.show import view as notebook
from numalab.show.charts import curves, style
from test_charts import assert_no_overlap, assert_publishable, offsets, texts

SATURATED = service_frames.SATURATED
PER_INSTANCE = ("instance_requests", "instance_cpu_time", "gc_time")


def key(figure):
    return [text.get_text() for text in figure.figure.axes[0].get_legend().get_texts()]


def lines(figure):
    """The curves by the names of the key: label, then their points."""
    axes = figure.figure.axes[0]
    return {
        name: box.lines[0].get_xydata().tolist()
        for name, box in zip(key(figure), axes.containers, strict=True)
    }


def test_a_run_says_which_service_it_measured():
    assert "2 NUMA nodes; portal 1.2\n" in notebook.View(service_frames.run()).about()


# ---------------------------------------------------------------- throughput against latency


def test_each_binding_is_a_curve_from_the_constant_rate_to_saturation():
    run = service_frames.run(noise=0.0)
    figure = notebook.View(run).throughput_latency()
    found = lines(figure)
    assert list(found) == [
        "unbound", "interleave unbound", "2 instances, one per node", "2 instances, unbound",
        "2 instances, each over all nodes", "unbound, use_numa=on", "unbound, balancer=none",
    ]  # fmt: skip
    assert found["2 instances, one per node"] == [
        pytest.approx([2000, 5e3 / 8000]), pytest.approx([8000, 64e3 / 8000]),
    ]  # fmt: skip
    axes = figure.figure.axes[0]
    assert axes.get_yscale() == "log" and axes.get_xlim()[0] == 0
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert len(hollow) == len(found) and all(line.get_xdata()[0] == 2000 for line in hollow)
    assert any("open: at the constant rate" in text for text in texts(figure))
    assert_publishable(figure)
    assert_no_overlap(figure)


def test_a_binding_has_the_same_look_in_every_picture():
    run = service_frames.run()
    looks = []
    for figure in (notebook.View(run).throughput_latency(), notebook.View(run).tail()):
        handles = figure.figure.axes[0].get_legend().legend_handles
        looks.append([(one.get_color(), one.get_marker()) for one in handles])
    assert looks[0] == looks[1]


def test_a_load_that_keeps_no_rate_has_the_curves_of_saturation():
    """As of valkey-benchmark: it gives p50 and p99 of as much as it can send."""
    run = service_frames.run()
    rows = run.measurements.filter(
        pl.col("metric").is_in([SATURATED, "saturation_latency_avg", "latency_p50", "latency_p99"])
    )
    late = pl.col("metric").str.replace("^latency", "saturation_latency")
    run.__dict__["measurements"] = rows.with_columns(metric=late)
    figure = notebook.View(run).tail()
    assert all(len(curve) == 2 for curve in lines(figure).values())
    assert any(text.startswith("saturated") for text in texts(figure))
    figure = notebook.View(run).throughput_latency()
    assert all(len(curve) == 1 for curve in lines(figure).values())
    hollow = [line for line in figure.figure.axes[0].lines if len(line.get_xdata())
              and line.get_markerfacecolor() == "white"]  # fmt: skip
    assert hollow == []


def test_a_run_without_latency_says_so():
    run = service_frames.run()
    run.__dict__["measurements"] = run.measurements.clear()
    view = notebook.View(run)
    assert "No trial of this run measured latency avg" in view.throughput_latency()
    assert "No trial of this run measured" in view.tail()
    with pytest.raises(Fault, match="no usable percentile"):
        curves.tail(run.measurements)


# ---------------------------------------------------------------- the tail


def test_the_tail_gives_each_further_nine_as_much_room():
    figure = notebook.View(service_frames.run(noise=0.0)).tail()
    axes = figure.figure.axes[0]
    shown = [tick.get_text() for tick in axes.get_xticklabels()]
    assert shown == ["50 %", "90 %", "99 %", "99.9 %"]
    places = axes.transData.transform([(tick, 1.0) for tick in (0.1, 0.01, 0.001)])[:, 0]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1])
    assert places[0] < places[2]  # the slowest on the right
    values = [y for _, y in lines(figure)["2 instances, one per node"]]
    assert values == pytest.approx([0.5, 1.0, 3.0, 10.0])
    assert_publishable(figure)
    assert_no_overlap(figure)


def test_a_percentile_that_is_missing_leaves_the_others():
    run = service_frames.run()
    run.__dict__["measurements"] = run.measurements.filter(pl.col("metric") != "latency_p999")
    assert all(len(curve) == 3 for curve in lines(notebook.View(run).tail()).values())


# ---------------------------------------------------------------- many instances


@pytest.mark.parametrize("nodes", [2, 4, 8, 16])
def test_any_number_of_instances_fits_a_page(nodes):
    figure = notebook.View(service_frames.run(nodes=nodes)).instances(*PER_INSTANCE)
    assert_publishable(figure)
    assert_no_overlap(figure)
    assert "GC time" in texts(figure)
    if nodes == 16:  # a row a layout: 3 layouts, 3 metrics, 16 instances
        assert len(offsets(figure, "means")) == 3 * 3 * 16
        assert "16 instances, one per node" in texts(figure) and "16" in texts(figure)
        assert not any(text.startswith("instance 1") for text in texts(figure))


def test_instances_stand_in_their_order():
    run = service_frames.run(nodes=10, planned=service_frames.cells()[:3])
    figure = notebook.View(run).instances(*PER_INSTANCE)
    names = [tick.get_text() for tick in figure.figure.axes[0].get_yticklabels()]
    assert [name.partition(":")[0] for name in names[1:]] == [
        f"instance {n}" for n in range(1, 11)
    ]  # fmt: skip


def test_instances_of_a_load_without_a_rate_are_those_of_saturation():
    run = service_frames.run()
    renamed = {name: f"saturation_{name}" for name in PER_INSTANCE}
    rows = run.measurements.with_columns(pl.col("metric").replace(renamed))
    run.__dict__["measurements"] = rows
    figure = notebook.View(run).instances(*PER_INSTANCE)
    assert "GC time when saturated" in texts(figure)


@pytest.mark.parametrize("method", ["throughput_latency", "tail"])
def test_an_emulated_hosts_curves_are_marked(method):
    figure = getattr(notebook.View(service_frames.run(emulated=True)), method)()
    assert "EMULATED HOST" in texts(figure)


def test_few_blocks_show_points_without_intervals():
    figure = notebook.View(service_frames.run(blocks=2)).tail()
    assert any("too few blocks" in text for text in texts(figure))
    assert not figure.figure.axes[0].collections


# ---------------------------------------------------------------- beside the published case


def test_a_service_stands_beside_the_published_case_with_its_own_ratios():
    made = article.Article([service_frames.run(noise=0.0)])
    figure = made.service_beside_published()
    found = {gid: [t.get_text() for t in figure.figure.findobj(Text) if t.get_gid() == gid]
             for gid in ("ratio", "beside")}  # fmt: skip
    assert found["ratio"][0] == "2.00" and found["beside"][0] == "8.00 ms"
    assert found["ratio"][-2:] == ["2.07", "1.00"] and found["beside"][-2:] == ["1.3 s", "3 s"]
    said = texts(figure)
    assert "a (this study)" in said and "3B2000 (loongson-3b2000-2s)" in said
    assert any(text.startswith("measured: portal") for text in said)
    assert "published: LoadRunner on an office system" in said
    assert_publishable(figure)
    assert_no_overlap(figure)


def test_without_a_measured_service_nothing_stands_there():
    emulated = article.Article([service_frames.run(emulated=True)])
    assert (
        emulated.service_beside_published() == ""
        and article.Article([]).service_beside_published() == ""
    )


# ---------------------------------------------------------------- in the articles


def shown(path, made, prefixes):
    """What the cells of an article's page with these ids show, over a made-up article."""
    names = {"article": made}
    found = {}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code" and cell.id.startswith(prefixes):
            *body, last = ast.parse(cell.source).body
            exec(compile(ast.Module(body, []), "cell", "exec"), names)
            found[cell.id] = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return found


OWN, USERS = home.root() / "report" / "index.ipynb", report.ARTICLE


def test_the_users_article_shows_one_server_and_several():
    made = article.Article([service_frames.run()])
    found = shown(USERS, made, ("p0", "q0", "r0"))
    assert found["p000"].startswith("### One server, or one on each node")
    pictures = [one for id_, one in found.items() if id_.startswith("p0") and "p000" < id_ < "p010"]
    assert len(pictures) == 5 and all(isinstance(one, style.Picture) for one in pictures)
    assert "8,0" in found["p010"] and found["p010"].startswith("<details>")
    rest = [one for id_, one in found.items() if id_.startswith(("q0", "r0"))]
    assert rest and all(one == "" for one in rest)  # no such run: nothing is told


def test_the_own_article_has_a_verdict_on_the_published_case():
    found = shown(
        OWN, article.Article([service_frames.run()]), ("c046s", "c046n", "c046f", "c046t")
    )
    said = found["c046s"]
    assert "We asked it of Tomcat, on a " in said
    assert "nearly twice as many requests: **supported** on a" in said
    assert "less than half of the CPU time: **refuted** on a" in said
    assert all(isinstance(found[id_], style.Picture) for id_ in ("c046f", "c046t"))


@pytest.mark.parametrize("path", [OWN, USERS], ids=["own", "users"])
def test_an_article_without_such_a_run_tells_nothing_of_it(path):
    made = article.Article([mysql_frames.run(mysql_frames.published_cells())])
    found = shown(path, made, ("p0", "q0", "r0", "c046s", "c046n", "c046f", "c046t"))
    assert found and all(one == "" for one in found.values())


def test_an_emulated_hosts_service_bears_no_verdict_and_no_words_about_one():
    found = shown(OWN, article.Article([service_frames.run(emulated=True)]), ("c046",))
    assert found["c046s"] == "" and found["c046f"] == ""


# ---------------------------------------------------------------- tables of many instances


def test_the_plan_of_many_instances_names_the_first_and_the_last():
    said = notebook.View(service_frames.run(nodes=16)).plan()
    (line,) = [line for line in said.splitlines() if "16 instances, one per node" in line]
    assert "instance 1: `numactl --physcpubind=0-15 --membind=0`" in line
    assert "instance 16: `numactl" in line and "…" in line and "instance 9" not in line
    (line,) = [line for line in said.splitlines() if "16 instances, unbound" in line]
    assert "| none |" in line
    two = notebook.View(service_frames.run()).plan()
    assert "instance 2: `numactl --physcpubind=8-15 --membind=1`" in two and "…" not in two


@pytest.mark.parametrize(
    ("layout", "said"),
    [("nodes", "each on its own node: 98.0% to 100.0%"),
     ("unbound", "node 0: 2.0% to 100.0%, node 1: 0.0% to 98.0%")],
)  # fmt: skip
def test_an_instances_memory_is_told_by_its_own_node(tmp_path, layout, said):
    (tmp_path / "raw").mkdir()
    made = service_frames.run(folder=tmp_path, blocks=1)
    shares = {"instance 1": {0: 1.0}, "instance 2": {0: 0.02, 1: 0.98}}
    looks = [
        Proof(True, MemoryProof(True, shares=of), CpuProof(True, seen="0"), instance=name)
        for name, of in shares.items()
    ]
    text = json.dumps({"proofs": [to_json(one) for one in looks]})
    (tmp_path / "raw" / "1.json.gz").write_bytes(gzip.compress(text.encode()))
    item = next(one for one in made.plan.order if one.cell == f"instances:{layout}")
    trial = frames.trial(item, raw={"proof": "raw/1.json.gz"})
    assert said in proofs.placement(frames.run(made.plan, folder=tmp_path, trials=[trial]))
