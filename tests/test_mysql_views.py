"""What a MySQL run shows: each curve, panel and row is the data's, and hosts are told apart."""

from dataclasses import replace

import polars as pl
import pytest
from matplotlib.text import Text

import mysql_frames
from frames import Cell, measurements
from numalab.agent.contract import Instance, reason
from numalab.agent.errors import Fault
from numalab.show import article
from numalab.show import view as notebook
from numalab.show.charts import curves, instances, server, style
from test_charts import assert_no_overlap, assert_publishable, offsets, texts

QPS = "queries_per_second"


def swept(cells, option, values, shape):
    """The cells again for each value of an option, as a sweep names them."""
    copies = [
        Cell(**{**vars(cell), "id": f"{cell.id}/{option}={value}", "role": "cell",
                "value": cell.value * shape(value)})
        for cell in cells
        if cell.role != "control"
        for value in values
    ]  # fmt: skip
    run = mysql_frames.run([*cells, *copies])
    return with_cells(
        run,
        lambda cell: replace(
            cell, options={**cell.options, option: cell.sweep.value if cell.sweep else 150}
        ),
    )


def with_cells(run, change):
    """A run with every cell of its plan changed."""
    cells = tuple(map(change, run.plan.cells))
    run.manifest.__dict__["plan"] = replace(run.plan, cells=cells)
    return run


def legend(figure):
    return [text.get_text() for text in figure.figure.axes[0].get_legend().get_texts()]


def test_a_load_is_the_swept_value_or_the_case_of_a_cell():
    names = ("local:0", "local:0/control", "local:0/threads=2", "local:0/read-write/control")
    run = mysql_frames.run([Cell(name, 1.0) for name in names])
    assert [run.load_of(cell) for cell in run.plan.cells] == ["", "", "threads=2", "read-write"]


def test_every_binding_has_a_curve_over_the_client_threads_best_on_top():
    run = swept(mysql_frames.published_cells()[:5], "clients", (1, 16, 64), lambda n: n / (n + 20))
    figure = notebook.View(run).against(QPS, "clients")
    assert legend(figure) == ["local 0", "interleave 0", "remote 0-1", "unbound"]
    axes = figure.figure.axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "16", "64", "150"]
    assert axes.get_xscale() == "log" and axes.get_ylim()[0] == 0
    # every trial is there: 4 bindings, 4 numbers of clients, 6 blocks
    assert len(offsets(figure, "trials")) == 4 * 4 * 6
    assert_publishable(figure)
    assert_no_overlap(figure)
    assert "Too little for a curve" in notebook.View(run).against(QPS, "tables")


def test_curves_of_one_family_have_colours_of_their_own():
    looks = curves.looks_of({"one": "cores", "siblings": "cores", "local": "local"})
    assert looks["local"]["color"] == style.PALETTE["local"]
    assert len({look["color"] for look in looks.values()}) == 3


def test_the_core_curves_show_where_one_node_is_full():
    cells = [
        Cell(f"cores:{n}-{within}", 1e4 * n, "cores:4-node" if n > 4 else None, cpus=f"0-{n - 1}")
        for n in (4, 8, 16, 24)
        for within in ("node" if n <= 16 else "packed", "spread")
    ]  # fmt: skip
    run = mysql_frames.run(cells)
    figure = notebook.View(run).cores(QPS)
    assert set(legend(figure)) == {"one node first, then the next", "spread from the start"}
    dashed = [line for line in figure.figure.axes[0].lines if line.get_linestyle() == "--"]
    assert [line.get_xdata()[0] for line in dashed] == [16]
    assert "one node is full" in texts(figure)
    assert_publishable(figure)
    small = mysql_frames.run(cells[:2])
    assert "Too little for a curve" in notebook.View(small).cores(QPS)


def seconds(run, shape):
    rows = [
        ("r", trial, cell.id, "tool", float(t), QPS, "", shape(t), "1/s")
        for trial, cell in enumerate(run.plan.cells, 1)
        for t in range(1, 11)
    ]
    names = ["run", "trial", "cell", "source", "t_s", "metric", "point", "value", "unit"]
    return pl.DataFrame(rows, schema=names, orient="row")


def test_second_by_second_each_binding_has_a_panel_on_one_scale():
    run = mysql_frames.run(mysql_frames.published_cells())
    run.__dict__["samples"] = seconds(run, lambda t: 5e3 if t == 5 else 1e4)
    figure = notebook.View(run).seconds(QPS)
    titles = [axes.get_title(loc="left") for axes in figure.figure.axes]
    assert titles == [cell.label for cell in run.plan.cells if cell.role != "control"]
    middle = next(line for line in figure.figure.axes[0].lines if line.get_gid() == "median")
    assert list(middle.get_ydata()).count(5e3) == 1  # the dip is there
    assert len({axes.get_ylim() for axes in figure.figure.axes if axes.axison}) == 1
    assert_publishable(figure)
    empty = notebook.View(run).seconds("latency_p99")
    assert "second by second" in empty


def instance_rows(values, unit="µs", metric="cpu_per_query", **options):
    cell = Cell("unbound", 1.0, cpus=None)
    return pl.concat(
        measurements([Cell(**{**vars(cell), "value": value})], metric=metric, unit=unit,
                     point=f"instance {n}", seed=n, **options)
        for n, value in enumerate(values, 1)
    )  # fmt: skip


def test_instances_stand_side_by_side_from_zero():
    rows = pl.concat([
        instance_rows((1000.0, 800.0, 200.0)),
        instance_rows((0.05, 0.04, 0.14), "1", "ipc", source="perf"),
    ])  # fmt: skip
    figure = instances.instances(rows, ["cpu_per_query", "ipc", "absent"], {"unbound": "ranges"})
    assert len(figure.figure.axes) == 2
    assert all(axes.get_xlim()[0] == 0 for axes in figure.figure.axes)
    assert {"CPU per query", "IPC", "ranges", "instance 3"} <= set(texts(figure))
    assert len(offsets(figure, "trials")) == 2 * 3 * 6
    assert_publishable(figure)
    assert_no_overlap(figure)
    with pytest.raises(Fault, match="no instance has a value"):
        instances.instances(rows, ["latency_p95"], {"unbound": "ranges"})


def test_an_instance_is_named_with_its_cpus():
    run = mysql_frames.run([Cell("instances:ranges", 1.0, cpus="0-63")])
    whole = run.plan.cells[0]
    of_bound = {"cpu_nodes": "0-1", "memory": whole.memory, "expects": whole.expects}
    instances_of = tuple(
        Instance(cpus=cpus, name=f"instance {n}", **of_bound)
        for n, cpus in ((1, "0-31"), (2, None))
    )
    run = mysql_frames.changed(run, lambda cell: replace(cell, instances=instances_of))
    rows = instance_rows((1.0, 2.0)).with_columns(cell=pl.lit("instances:ranges"))
    run.__dict__["measurements"] = rows
    said = texts(notebook.View(run).instances("cpu_per_query"))
    assert "instance 1: CPUs 0-31" in said and "instance 2: CPUs all" in said
    table = notebook.View(run).overview("cpu_per_query")
    assert "| instances ranges | instance 1 |" in table


def test_a_server_stands_beside_the_published_study_with_its_own_ratios():
    run = mysql_frames.run(mysql_frames.published_cells(0.1), noise=0.0)
    rows = run.measurements.filter(pl.col("metric").is_in([QPS, "ipc"]))
    figure = server.server_beside_published(rows, article.published())
    ratios = [text.get_text() for text in figure.figure.findobj(Text) if text.get_gid() == "ratio"]
    assert ratios[:3] == ["1.00", "0.99", "0.83"]  # ours: local, CPUs only, interleave
    assert ratios[8:12] == ["1.00", "0.63", "0.63", "0.44"]  # theirs: node 0, its halves, spread
    said = texts(figure)
    assert "cpus 0-31: 32 over 2 nodes" in said and "unbound: all CPUs" in said
    assert any("sysbench 0.5" in text for text in said)
    assert "upper bound, threads not stated" in said
    assert "0.42" in said and "0.29" in said
    assert_publishable(figure)
    assert_no_overlap(figure)


def test_a_host_of_one_node_has_its_ratio_to_what_it_has():
    rows = measurements([Cell("unbound", 1e4, cpus=None, cpu_nodes="0")], metric=QPS, unit="1/s")
    figure = server.server_beside_published(rows, article.published().clear())
    ratios = [text.get_text() for text in figure.figure.findobj(Text) if text.get_gid() == "ratio"]
    assert ratios == ["–"]
    with pytest.raises(Fault, match="neither"):
        server.server_beside_published(rows.clear(), article.published().clear())


def test_the_overview_is_one_table_best_first_with_what_is_missing():
    run = mysql_frames.run(mysql_frames.published_cells())
    text = notebook.View(run).overview(QPS, "cpu_per_query", "ipc", "errors")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[0].startswith("| binding | queries per second (1/s) | CPU per query (µs) | IPC |")
    assert rows[2].startswith("| local 0 ") and "- not measured: errors" in text


def test_a_load_has_its_own_chart_and_table_with_the_runs_control():
    cells = mysql_frames.published_cells()
    run = swept(cells, "clients", (16,), lambda n: 0.5)
    view = notebook.View(run)
    table = view.table(QPS, load="clients=16")
    assert "local 0/clients=16" in table and "local 0 |" not in table
    assert not isinstance(view.chart(QPS, load="clients=16"), str)
    assert "measured" in view.chart(QPS, load="clients=99")


@pytest.mark.parametrize("method", ["against", "cores", "seconds", "instances"])
def test_emulated_hosts_are_marked_in_every_picture(method):
    cells = [Cell(f"cores:{n}-node", 1e3 * n, cpus=f"0-{n - 1}") for n in (1, 2, 4)]
    run = mysql_frames.run(cells, emulated=True)
    clients = dict(zip(run.cells, (1, 4, 16), strict=True))
    run = mysql_frames.changed(
        run, lambda cell: replace(cell, options={**cell.options, "clients": clients[cell.id]})
    )
    run.__dict__["samples"] = seconds(run, lambda t: 1e3)
    view = notebook.View(run)
    if method == "instances":
        run.__dict__["measurements"] = instance_rows((1.0, 2.0)).with_columns(
            cell=pl.lit("cores:1-node")
        )
        figure = view.instances("cpu_per_query")
    else:
        figure = getattr(view, method)(*((QPS, "clients") if method == "against" else (QPS,)))
    assert "EMULATED HOST" in texts(figure)


def test_numbers_of_thousands_are_written_so():
    written = [style.thousands()(value) for value in (270000.0, 999.0, 0.5)]
    assert written == ["270,000", "999", "0.5"]


# ---------------------------------------------------------------- in the article


def test_the_article_recommends_per_host_and_stands_beside_the_study():
    run = mysql_frames.run(mysql_frames.published_cells())
    made = article.Article([run])
    said = made.recommendations()
    assert said.startswith("**mysql-binding, a.** **Bind it: local 0, +")
    assert "NUMAPolicy=bind" in said
    figure = made.server_beside_published()
    assert "a (this study)" in texts(figure)
    table = made.published_table("mysql-point-select")
    assert "| cpus 0-15,32-47 | ≈ 270,000 | ≈ 3,200 | ≈ 0.580 | 0.420 |" in str(table)
    assert "0.0400" in made.published_table("mysql-instances")
    assert made.quoted("mysql-point-select", "qps", "cpus 0-15,32-47", "cpus 0-31") == "2.25"
    with pytest.raises(Fault, match="no published figure is mysql-point-select qps cpus 0-99"):
        made.quoted("mysql-point-select", "qps", "cpus 0-99")


def test_an_emulated_hosts_throughput_stands_beside_nothing():
    run = mysql_frames.run(mysql_frames.published_cells(), emulated=True)
    made = article.Article([run])
    assert "a (this study)" not in texts(made.server_beside_published())
    assert "Emulated host" in made.recommendations()


def test_every_claim_of_the_experiment_has_its_verdict_on_the_published_figures():
    """The study's own figures bear its claims out, where they were measured at all."""
    cells = [
        *mysql_frames.published_cells(),
        Cell("cores:16-node", 170e3, "unbound", cpus="0-15", cpu_nodes="0"),
        Cell("cores:16-spread", 80e3, "unbound", cpus="0-7,16-23", cpu_nodes="0-1"),
    ]
    run = mysql_frames.run(cells)
    said = {verdict.claim: verdict.verdict for verdict in notebook.View(run).verdicts()}
    for claim in ("one-node-twice-spread", "siblings-equal-first", "one-node-beats-all",
                  "ipc-follows-throughput", "interleave-between"):  # fmt: skip
        assert said.pop(claim) == "supported", claim
    assert set(said.values()) == {"not testable here"}


def test_no_claim_is_judged_by_data_that_lie_in_the_caches():
    small = reason("data-below-caches", tables=10**9, caches=10**9)
    made = mysql_frames.run(mysql_frames.published_cells())
    run = mysql_frames.changed(made, lambda cell: replace(cell, notes=(small,)))
    judged = [one for one in notebook.View(run).verdicts() if one.claim == "one-node-beats-all"]
    assert [one.verdict for one in judged] == ["not testable here"]
    assert judged[0].reason == small and "last-level caches" in judged[0].because
