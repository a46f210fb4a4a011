"""The pictures and tables of the experiments on where new memory goes."""

import json
from dataclasses import replace

import polars as pl
import pytest

import frames
from cells import cell
from numalab import store
from numalab.agent.contract import Case, Row, to_json
from numalab.agent.errors import Fault
from numalab.show import counters
from numalab.show.charts import placement
from numalab.show.view import Text, View
from test_allocation import ALLOCATION, OUTPUTS

CELLS = {
    "cpus-only:0/empty": "empty", "cpus-only:0/full": "full of page cache",
    "cpus-only:0/dropped": "full, then drop_caches", "local:0/killed": "more than the node holds",
}  # fmt: skip
OUTPUT_OF = {"empty": "file", "full": "full", "dropped": "dropped", "killed": "killed"}


def measured(blocks=3, outputs=OUTPUT_OF, more=()):
    """Measurements of a made-up run, each value read from a real output."""
    rows = []
    for trial, (block, name) in enumerate(
        ((block, name) for block in range(1, blocks + 1) for name in CELLS), 1
    ):
        found = ALLOCATION.metrics(ALLOCATION.parse(OUTPUTS[outputs[name.partition("/")[2]]]))
        found += [
            Row(metric, float(value), "pages", point, source=source)
            for of, metric, point, value, source in more if of == name
        ]  # fmt: skip
        for row in found:
            reason = to_json(row.reason) if row.reason else {"code": None, "fields": None}
            rows.append(
                {
                    **dict.fromkeys(frames.SCHEMA), **to_json(row), "reason": reason["code"],
                    "reason_fields": json.dumps(reason["fields"]), "run": "r", "host": "h",
                    "trial": trial, "block": block, "cell": name, "label": CELLS[name],
                    "binding": name.partition(":")[0], "role": "cell", "cpu_nodes": "0",
                    "grade": "verified", "tool": "allocation",
                }
            )  # fmt: skip
    return pl.DataFrame(rows, schema=frames.SCHEMA)


def samples(cells=CELLS):
    """Two samples of each cell's trial, of two nodes."""
    return pl.DataFrame(
        [
            {"run": "r", "trial": trial, "cell": name, "source": None, "t_s": t, "metric": metric,
             "point": f"node {node}", "value": (1 + node + t) * 2**30, "unit": "B"}
            for trial, name in enumerate(cells, 1) for t in (0.2, 0.4)
            for node in (0, 1) for metric in ("page_cache", "free")
        ],
        schema=store.SAMPLES,
    )  # fmt: skip


def view(rows, sampled=None, emulated=False):
    cells = tuple(
        cell("0-3", id=name, binding=name.partition(":")[0], label=label,
             case=Case(name.partition("/")[2], label))
        for name, label in CELLS.items()
    )  # fmt: skip
    plan = replace(frames.plan([], experiment="page-cache"), cells=cells)
    return View(
        frames.run(
            plan, rows, host=frames.host_record(emulated=emulated),
            samples=samples() if sampled is None else sampled,
        )
    )  # fmt: skip


def gids(figure, prefix):
    return [
        artist.get_gid()
        for axes in figure.figure.axes
        for artist in axes.get_children()
        if str(artist.get_gid()).startswith(prefix)
    ]


def texts(figure):
    return [t.get_text() for axes in figure.figure.axes for t in axes.texts] + [
        t.get_text() for t in figure.figure.texts
    ]


def test_each_node_is_a_piece_and_each_block_a_dot():
    figure = view(measured()).where()
    assert gids(figure, "node-0") == ["node-0"] * 3 and gids(figure, "node-1") == ["node-1"]
    dots = [a for a in figure.figure.axes[0].collections if a.get_gid() == "blocks"]
    assert [len(one.get_offsets()) for one in dots] == [3, 3, 3]
    assert [t.get_text() for t in figure.figure.axes[0].get_yticklabels()] == list(CELLS.values())


def test_who_was_killed_has_no_bar_and_says_why():
    figure = view(measured()).where()
    assert any("killed" in text for text in texts(figure))


def test_errors_are_in_no_bar():
    rows = measured().with_columns(grade=pl.when(pl.col("block") == 2).then(pl.lit("error"))
                                   .otherwise(pl.col("grade")))  # fmt: skip
    dots = [a for a in view(rows).where().figure.axes[0].collections if a.get_gid() == "blocks"]
    assert [len(one.get_offsets()) for one in dots] == [2, 2, 2]


def test_faults_and_huge_pages_share_their_rows():
    figure = view(measured()).faults()
    faults, huge = figure.figure.axes
    assert faults.get_xscale() == "log" and faults.get_ylim() == huge.get_ylim()
    assert len(gids(figure, "median")) == 4 + 3  # of the killed one the huge share is not known


def test_levels_draw_the_cases_asked_for():
    figure = view(measured()).levels("full", "dropped")
    titles = [axes.get_title(loc="left") or axes.get_title() for axes in figure.figure.axes]
    assert titles[:2] == ["full of page cache", "full, then drop_caches"]
    lines = figure.figure.axes[0].lines
    looks = {(line.get_color(), line.get_linestyle()) for line in lines}
    assert len(lines) == len(looks) == 4  # page cache and free memory, own node and the others
    every = view(measured()).levels().figure.axes
    assert len(every) >= 4 and not any("…" in axes.get_title() for axes in every)  # none is cut


def test_without_a_sample_there_is_no_picture():
    said = view(measured(), samples({})).levels()
    assert isinstance(said, Text) and "sample" in said
    with pytest.raises(Fault, match="no row"):
        placement.levels(samples({}), CELLS, dict.fromkeys(CELLS, "0"))


@pytest.mark.parametrize("name", ["where", "faults", "levels"])
def test_an_emulated_host_is_marked(name):
    plain, marked = (getattr(view(measured(), emulated=e), name)() for e in (False, True))
    assert not any("EMULATED" in text for text in texts(plain))
    assert any("EMULATED" in text for text in texts(marked))


def test_a_run_without_placed_memory_has_no_picture():
    rows = measured().filter(pl.col("metric") == "nothing")
    assert isinstance(view(rows).where(), Text) and isinstance(view(rows).faults(), Text)


def test_shares_stand_in_the_order_of_the_plan_and_what_is_missing_says_why():
    text = str(view(measured()).shares("home_share", "page_cache_kept", "out_of_memory_kill"))
    lines = text.splitlines()
    assert [line.split(" | ")[0][2:] for line in lines[2:6]] == list(CELLS.values())
    assert "- full, then drop_caches: no page cache kept: it was dropped before" in lines
    assert any("more than the node holds: no home share: the kernel killed" in x for x in lines)
    assert "No trial" in str(view(measured()).shares("speed"))


def test_blocks_that_differ_show_their_range():
    rows = measured(blocks=2).with_columns(
        value=pl.when((pl.col("metric") == "home_share") & (pl.col("block") == 2))
        .then(0.5).otherwise(pl.col("value"))
    )  # fmt: skip
    assert "0.750 [0.500, 1.00]" in str(view(rows).shares("home_share"))


def test_counters_are_summed_over_the_nodes_and_still_ones_left_out():
    more = [
        ("cpus-only:0/full", "numa_miss", "node 0", 5, "numastat"),
        ("cpus-only:0/full", "numa_miss", "node 1", 12000, "numastat"),
        ("cpus-only:0/full", "pgscan_direct", "", 0, "vmstat"),
        ("cpus-only:0/empty", "numa_miss", "node 1", 0, "numastat"),
    ]
    text = counters.memory_counters(view(measured(more=more)).run)
    assert "| full of page cache | 12,005 |" in text and "| empty | 0 |" in text
    assert "pgscan" not in text
    assert "No counter" in counters.memory_counters(view(measured()).run)
