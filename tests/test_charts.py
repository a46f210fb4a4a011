"""Charts say what the data say: texts, counts, marks and colours of the figures themselves."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from unittest import mock

import numpy as np
import polars as pl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from frames import Cell, core_latency_frame, measurements, plan, two_nodes
from numalab import tables
from numalab.agent.contract import Host
from numalab.agent.errors import Fault
from numalab.agent.host import topology
from numalab.analysis import evidence, judge
from numalab.show import badge
from numalab.show.charts import curves, matrix, placement, style
from numalab.show.charts.bindings import bindings_figure
from numalab.show.charts.frames import to_pandas
from numalab.show.charts.topology import topology_figure
from numalab.show.view import worded
from sysfs_tree import (
    AMD_8N,
    ARM_16N,
    BIG_16N,
    CXL_3N,
    INTEL_2N,
    INTEL_2N_LIMITED,
    INTEL_2N_OFFLINE,
    STARVED_2N,
    Machine,
    grid,
    offline,
    write,
)

TWO_CPUS = grid(
    "two-cpus", packages=1, nodes_per_package=1, cores_per_node=2, cores_per_l3=2, memory=8
)
HOSTS = (TWO_CPUS, INTEL_2N, AMD_8N, ARM_16N)
HOST = pytest.mark.parametrize("machine", HOSTS, ids=[machine.name for machine in HOSTS])


# ---------------------------------------------------------------- what is asked of every figure


@functools.lru_cache(maxsize=1)  # drawing is what takes the time, and a test asks several times
def written(figure: style.Picture) -> list[Text]:
    """Every text that is really drawn (not, for instance, labels of ticks outside the view)."""
    drawn: list[Text] = []
    draw = Text.draw

    def record(text, renderer):
        if text.get_visible() and text.get_text().strip():
            drawn.append(text)
        draw(text, renderer)

    with mock.patch.object(Text, "draw", record):
        FigureCanvasAgg(figure.figure).draw()
    return drawn


@functools.lru_cache(maxsize=1)
def extents(figure: style.Picture) -> list[tuple[Text, Bbox]]:
    return [(text, text.get_window_extent()) for text in written(figure)]


def texts(figure: style.Picture) -> list[str]:
    return [text.get_text() for text in written(figure)]


def assert_publishable(figure: style.Picture) -> None:
    """16 cm wide at most, one A4 page high at most, and no text beyond the border or tiny."""
    width, height = figure.figure.get_size_inches()
    assert width <= style.WIDTH + 1e-6
    assert height <= 9.7
    for text, box in extents(figure):
        assert text.get_fontsize() >= 5.5, text.get_text()
        assert box.x0 >= -1 and box.y0 >= -1, text.get_text()
        assert box.x1 <= figure.figure.bbox.width + 1, text.get_text()
        assert box.y1 <= figure.figure.bbox.height + 1, text.get_text()


def assert_no_overlap(figure: style.Picture) -> None:
    """No text lies on another."""
    boxes = [(text.get_text(), box) for text, box in extents(figure)]
    for place, (one, box) in enumerate(boxes):
        for other, beside in boxes[place + 1 :]:
            across = min(box.x1, beside.x1) - max(box.x0, beside.x0)
            down = min(box.y1, beside.y1) - max(box.y0, beside.y0)
            # An extent reaches below its baseline for letters that may not be there.
            assert min(across, down) <= 3, (one, other)


def node_cells(machine: Machine) -> list[Cell]:
    """Every pair of nodes, slower by distance."""
    numbers = [node.number for node in machine.nodes]
    return [
        Cell(
            f"local:{a.number}" if a is b else f"remote:{a.number}-{b.number}",
            80 * (1 + (a.distances[numbers.index(b.number)] - 10) * 0.03),
            None if a is b else f"local:{a.number}",
            role="baseline" if a is b else "cell",
            cpu_nodes=str(a.number),
            memory={"policy": "bind", "nodes": str(b.number)},
        )
        for a in machine.nodes
        for b in machine.nodes
    ]


def binding_cells(machine: Machine) -> list[Cell]:
    """Local everywhere, one remote per node, the A/A control: 40 cells at most."""
    nodes = [node.number for node in machine.nodes]
    cells = [Cell(f"local:{node}", 80.0, role="baseline") for node in nodes]
    if len(nodes) > 1:
        cells += [
            Cell(f"remote:{node}-{nodes[place - 1]}", 52.0, f"local:{node}")
            for place, node in enumerate(nodes)
        ]
    cells += [Cell("interleave:0", 61.0, "local:0"), Cell("unbound", 79.0, "local:0", noise=0.05)]
    return [*cells, Cell("local:0/control", 80.0, "local:0", role="control")]


def ratios_of(trials: pl.DataFrame, cells: list[Cell]) -> pl.DataFrame:
    return judge.ratios(trials, plan(cells))


def draw_bindings(trials: pl.DataFrame, cells: list[Cell] | None = None) -> style.Picture:
    """The chart of these trials, better when higher."""
    ratios = ratios_of(trials, cells or two_nodes())
    return bindings_figure(evidence.summarise(trials), ratios, trials, "higher")


def offsets(figure: style.Picture, gid: str) -> np.ndarray:
    """The places of all scattered points that carry this gid."""
    found = [
        np.asarray(artist.get_offsets())
        for axes in figure.figure.axes
        for artist in axes.collections
        if artist.get_gid() == gid
    ]
    return np.concatenate(found) if found else np.empty((0, 2))


# ---------------------------------------------------------------- the house style


def test_a_binding_takes_its_familys_colour_whatever_its_nodes():
    assert style.family("remote") == "remote"
    assert style.family("local", role="control") == "control"
    assert style.family("one-thread-per-core") == style.family("cpus") == "cores"
    assert style.family("memory-only") == "memory-only"
    assert set(style.PALETTE) == set(style.MARKERS)
    assert len(set(style.MARKERS.values())) == len(style.MARKERS)
    plain = {one: colour for one, colour in style.PALETTE.items() if ":" not in one}
    assert len(set(plain.values())) == len(plain)
    assert style.PALETTE["interleave:all"] == style.PALETTE["interleave"]  # one family


@pytest.mark.parametrize("caller", [{}, {"font.size": 20.0, "svg.hashsalt": None}])
def test_the_same_data_give_the_same_svg_whatever_the_caller_has_set(caller):
    import matplotlib

    trials = measurements(two_nodes(), blocks=6)
    plain = draw_bindings(trials).svg()
    with matplotlib.rc_context(caller):
        assert draw_bindings(trials).svg() == plain
    assert "dc:date" not in plain
    assert plain != draw_bindings(measurements(two_nodes(), blocks=6, seed=1)).svg()


def test_a_picture_shows_itself_in_a_notebook_as_svg():
    bundle = style.Picture(1.0, lambda figure: None)._repr_mimebundle_()
    assert list(bundle) == ["image/svg+xml"]
    assert bundle["image/svg+xml"].lstrip().startswith("<?xml")


def test_text_is_text_as_long_in_any_font_and_the_picture_has_a_title_and_the_pages_width():
    narrow = style.Picture(1.0, lambda figure: style.title(figure, "A <title> & more"), 3.0)
    svg = narrow.svg()
    assert "<title>A &lt;title&gt; &amp; more</title>" in svg
    words = re.search(r"<text [^>]*>A &lt;title&gt; &amp; more<", svg)[0]
    assert "Verdana" in words and float(re.search(r'textLength="([\d.]+)"', words)[1]) > 50
    width = re.search(r'width="([\d.]+)pt" height="[\d.]+pt" viewBox="0 0 ([\d.]+) ', svg)
    assert width[1] == width[2] == f"{style.WIDTH * 72:g}"


def test_an_even_share_is_marked():
    frame = pl.DataFrame(
        [
            {"case": "spread", "host": "h", "value": 0.6, "low": 0.6, "high": 0.6, "even": 0.25},
            {"case": "here", "host": "h", "value": 1.0, "low": 1.0, "high": 1.0, "even": None},
        ]
    )
    figure = placement.cases(frame, "Shares", {"h": "measured"})
    marks = [line for line in figure.figure.findobj(Line2D) if line.get_gid() == "even"]
    assert [list(line.get_xdata()) for line in marks] == [[0.25, 0.25]]
    assert "an even share, 1/4" in [
        text.get_text() for legend in figure.figure.legends for text in legend.get_texts()
    ]


def test_an_emulated_host_is_marked_across_the_picture():
    figure = style.marked(draw_bindings(measurements(two_nodes(), blocks=6)), "counted")
    assert "EMULATED HOST" in texts(figure)
    assert badge.MEANING["counted"] in texts(figure)
    assert_publishable(figure)


@pytest.mark.parametrize("kind", ["measured", "configured", "published"])
def test_every_picture_carries_the_badge_of_its_evidence(kind):
    figure = style.marked(draw_bindings(measurements(two_nodes(), blocks=6)), kind)
    assert any(text.startswith(kind) for text in texts(figure))
    assert "EMULATED HOST" not in texts(figure)
    assert_publishable(figure)
    assert_no_overlap(figure)


def test_a_dollar_sign_or_a_tag_in_a_label_is_only_text():
    cells = [replace(cell) for cell in two_nodes()]
    trials = measurements(cells, blocks=6).with_columns(label=pl.lit("$x^<b>${"))
    svg = draw_bindings(trials, cells).svg()
    assert "<b>" not in svg


@pytest.mark.parametrize("title", ["idle latency (ns)", "bandwidth, reads (GB/s)", "x" * 40])
def test_the_mark_of_an_emulated_host_stays_off_a_small_pictures_title(title):
    figure = style.Picture(3.0, lambda on: style.title(on, title), 3.4, badge="counted")
    figure.figure.draw_without_rendering()
    marks = [text for text in figure.figure.texts if text.get_gid() == "badge"]
    for text in marks:
        assert not text.get_window_extent().overlaps(figure.figure._suptitle.get_window_extent())
    assert marks or len(title) == 40


def test_polars_frames_cross_to_pandas_with_nulls_as_nan():
    frame = pl.DataFrame({"a": [1.5, None], "b": ["x", None], "c": [1, 2]})
    crossed = to_pandas(frame)
    assert list(crossed.columns) == ["a", "b", "c"]
    assert crossed["a"].tolist()[0] == 1.5 and crossed["a"].isna().tolist() == [False, True]
    assert crossed["b"].isna().tolist() == [False, True]
    assert crossed["c"].tolist() == [1, 2]
    with pytest.raises(TypeError, match="LazyFrame"):
        to_pandas(frame.lazy())


# ---------------------------------------------------------------- topology


@pytest.fixture(scope="session")
def read(tmp_path_factory):
    """Reads a machine's topology from its tree, once per machine."""
    known = {}

    def topology_of(machine: Machine) -> Host:
        if machine.name not in known:
            known[machine.name] = topology.read(
                str(write(tmp_path_factory.mktemp(machine.name), machine))
            )
        return known[machine.name]

    return topology_of


@pytest.mark.parametrize("machine", [*HOSTS, BIG_16N, CXL_3N], ids=lambda machine: machine.name)
def test_every_node_of_a_host_is_drawn_on_one_page(machine, read):
    figure = topology_figure(read(machine))
    said = texts(figure)
    assert_publishable(figure)
    assert_no_overlap(figure)
    for node in machine.nodes:
        assert f"node {node.number}" in said
    assert {f"package {cpu.package}" for cpu in machine.cpus} <= set(said)


def test_a_small_host_shows_every_hardware_thread_and_a_large_one_counts(read):
    small = texts(topology_figure(read(INTEL_2N)))
    assert {str(cpu.number) for cpu in INTEL_2N.cpus} <= set(small)
    assert small.count("L3 24 MiB") == 2
    assert "net: eth0" in small and "disk: nvme0" in small
    large = texts(topology_figure(read(BIG_16N)))
    assert "16 cores, 32 threads" in large
    assert "CPUs 0-15, 256-271" in large
    assert "2 × L3 32 MiB of 8 cores" in large


def test_the_distances_beside_a_host_are_its_own(read):
    said = texts(topology_figure(read(CXL_3N)))
    for distance in ("21", "24"):
        # Once each way; a CPU has that number too.
        assert said.count(distance) == 3
    assert "one node: no distance to another" in texts(topology_figure(read(TWO_CPUS)))


def test_memory_without_cpus_and_a_full_node_stand_out(read):
    said = texts(topology_figure(read(CXL_3N)))
    assert "memory without CPUs" in said and "no CPUs" in said
    tiers = {"sys/devices/virtual/memory_tiering/memory_tier22/nodelist": "2"}
    said = texts(topology_figure(read(replace(CXL_3N, name="cxl-tiers", files=tiers))))
    assert "no CPUs, memory tier 22" in said
    of_node_1 = [cpu.number for cpu in INTEL_2N.cpus if cpu.node == 1]
    links = {f"sys/devices/system/node/node1/cpu{n}/online": "0" for n in of_node_1}
    off = replace(offline(INTEL_2N, of_node_1), name="node-1-offline", files=links)
    said = texts(topology_figure(read(off)))
    assert "package unknown" in said and "memory without CPUs" not in said
    assert str(of_node_1[0]) in said
    figure = topology_figure(read(STARVED_2N))
    drawn = figure.figure.findobj(Text)
    (low,) = [text for text in drawn if text.get_text() == "free 2.4, page cache 116 GiB"]
    assert to_hex(low.get_color(), keep_alpha=False) == style.VERMILLION.lower()
    calm = [t for t in figure.figure.findobj(Text) if t.get_text() == "free 120, page cache 4 GiB"]
    assert to_hex(calm[0].get_color()) != style.VERMILLION.lower()


def test_offline_and_forbidden_cpus_are_hatched(read):
    def hatched(machine: Machine) -> int:
        figure = topology_figure(read(machine))
        return sum(1 for patch in figure.figure.findobj(Patch) if patch.get_hatch())

    assert hatched(INTEL_2N) == 0
    assert "offline: CPUs 5,37,48-49" in texts(topology_figure(read(INTEL_2N_OFFLINE)))
    # 48 of 64 threads and node 1's memory are outside the cpuset; one patch is the key.
    assert hatched(INTEL_2N_LIMITED) == 48 + 1 + 1


# ---------------------------------------------------------------- node and core matrices


@HOST
def test_a_node_matrix_prints_every_pairs_median(machine):
    trials = measurements(node_cells(machine), metric="idle_latency", unit="ns", blocks=3)
    figure = matrix.node_matrix(worded(trials), "Idle latency", "lower")
    said = texts(figure)
    assert_publishable(figure)
    assert_no_overlap(figure)
    assert "Idle latency (ns)" in said
    assert {"memory on node", "CPUs on node"} <= set(said)
    medians = trials.group_by("cell").agg(pl.col("value").median())["value"].to_list()
    digits = 4 if len(machine.nodes) <= 4 else 3
    shown = [text for text in said if re.fullmatch(r"[\d.]+", text)]
    for value in medians:
        assert tables.number(value, digits) in shown


def test_a_pair_that_failed_is_marked_with_its_reason_and_never_painted_as_a_value():
    grades = {("remote:0-1", block): "error" for block in (1, 2, 3)}
    grades |= {("remote:1-0", block): "unverified" for block in (1, 2, 3)}
    grades |= {("remote:2-0", 1): "error"}
    trials = measurements(node_cells(AMD_8N), metric="idle_latency", unit="ns", blocks=3,
                          grade=grades)  # fmt: skip
    trials = trials.filter(pl.col("cell") != "remote:3-4")
    figure = matrix.node_matrix(worded(trials), "Idle latency", "lower")
    said = texts(figure)
    assert said.count("×") == 1 and said.count("–") == 1
    assert said.count("a") == 1 and said.count("b") == 1
    note = "\n".join(said)
    assert "a  error: graded by the test" in note
    assert "b  unverified: graded by the test" in note
    mesh = figure.figure.axes[0].collections[0]
    values = mesh.get_array().reshape(8, 8)
    assert np.ma.getmaskarray(values)[0, 1] and np.ma.getmaskarray(values)[3, 4]
    assert not np.ma.getmaskarray(values)[2, 0], "one failed trial of three does not lose the pair"
    assert_publishable(figure)


@pytest.mark.parametrize(("unit", "metric"), [("ns", "idle_latency"), ("GB/s", "bandwidth")])
def test_darker_is_worse_whichever_direction_is_better(unit, metric):
    trials = measurements(node_cells(INTEL_2N), metric=metric, unit=unit, blocks=2, noise=0.0)
    better = "lower" if unit == "ns" else "higher"
    mesh = matrix.node_matrix(trials, "x", better).figure.axes[0].collections[0]
    low, high = (sum(mesh.cmap(mesh.norm(value))[:3]) for value in mesh.get_clim())
    assert bool(high < low) == (unit == "ns")


def test_noise_is_not_painted_as_structure():
    flat = [replace(cell, value=80.0) for cell in node_cells(AMD_8N)]
    trials = measurements(flat, metric="idle_latency", unit="ns", blocks=3, noise=0.001)
    mesh = matrix.node_matrix(trials, "x", "lower").figure.axes[0].collections[0]
    low, high = mesh.get_clim()
    assert high - low == pytest.approx(8.0, rel=0.01)


def test_a_matrix_refuses_what_one_colour_scale_cannot_hold():
    one = measurements(node_cells(INTEL_2N), metric="idle_latency", unit="ns", blocks=2)
    two = measurements(node_cells(INTEL_2N), metric="bandwidth", unit="GB/s", blocks=2)
    with pytest.raises(Fault, match="several values of metric"):
        matrix.node_matrix(pl.concat([one, two]), "x", "lower")
    spread = one.with_columns(memory_nodes=pl.lit("0-1"))
    with pytest.raises(Fault, match="one CPU node and one memory node"):
        matrix.node_matrix(spread, "x", "lower")
    with pytest.raises(Fault, match="no row"):
        matrix.node_matrix(one.clear(), "x", "lower")


def latencies(host: Host) -> tuple[np.ndarray, list[int]]:
    cpus = host.cpus
    values = [
        [20.0 if a.siblings == b.siblings else 50.0 if a.node == b.node else 150.0 for b in cpus]
        for a in cpus
    ]
    return np.array(values), [cpu.number for cpu in cpus]


@HOST
def test_a_core_matrix_holds_both_directions_in_topology_order(machine, read):
    values, cpus = latencies(read(machine))
    trials = core_latency_frame(values, cpus, blocks=1, noise=0.0)
    figure = matrix.core_matrix(trials, read(machine), groups=[[0, 1]])
    assert_publishable(figure)
    drawn = figure.figure.axes[0].collections[0].get_array()
    grid_drawn = np.ma.filled(drawn.reshape(len(cpus), len(cpus)), np.nan)
    assert grid_drawn.shape == (len(cpus), len(cpus))
    assert np.isnan(np.diag(grid_drawn)).all()
    assert np.isfinite(grid_drawn).sum() == len(cpus) * (len(cpus) - 1)
    assert np.array_equal(grid_drawn, grid_drawn.T, equal_nan=True)
    if machine is INTEL_2N:  # siblings 0 and 32 stand side by side, and so does the whole node
        assert grid_drawn[0, 1] == 20.0 and grid_drawn[0, 31] == 50.0 and grid_drawn[0, 32] == 150.0
    if len(cpus) <= matrix.ANNOTATED_CPUS:
        inside = [text.get_text() for text in figure.figure.axes[0].texts]
        assert inside == ["50"] * len(cpus) * (len(cpus) - 1)
    else:
        assert not figure.figure.axes[0].texts
        assert_no_overlap(figure)
    assert len(figure.svg()) < 400_000


def test_scattered_cpus_of_a_node_are_counted_not_cut(read):
    """Of many CPUs a sample is measured: their list is longer than its place."""
    values, cpus = latencies(read(INTEL_2N))
    odd = [place for place, cpu in enumerate(cpus) if cpu % 2]
    trials = core_latency_frame(values[np.ix_(odd, odd)], [cpus[place] for place in odd], blocks=1)
    said = texts(matrix.core_matrix(trials, read(INTEL_2N)))
    assert {"0: 16 CPUs", "1: 16 CPUs"} <= set(said)


def test_pairs_without_a_valid_trial_are_counted(read):
    values, cpus = latencies(read(TWO_CPUS))
    trials = core_latency_frame(values, cpus, blocks=1)
    figure = matrix.core_matrix(trials.with_columns(grade=pl.lit("error")), read(TWO_CPUS))
    assert "grey off the diagonal: 1 pairs without a valid trial" in texts(figure)


# ---------------------------------------------------------------- bindings


@HOST
def test_every_trial_of_every_binding_is_drawn(machine):
    cells = binding_cells(machine)
    trials = measurements(cells, blocks=6)
    figure = draw_bindings(trials, cells)
    assert_publishable(figure)
    assert_no_overlap(figure)
    points = offsets(figure, "trials-verified")
    assert sorted(points[:, 0]) == pytest.approx(sorted(trials["value"]))
    assert "triad (GB/s), higher is better" in texts(figure)
    low, high = figure.figure.axes[0].get_xlim()
    assert low < trials["value"].min() and high > trials["value"].max()


def test_the_order_and_the_ratios_are_the_datas():
    trials = measurements(two_nodes(), blocks=6)
    figure = draw_bindings(trials)
    summary = evidence.summarise(trials).sort("mean", descending=True)
    drawn = [label.get_text() for label in figure.figure.axes[0].get_yticklabels()]
    assert [label.removesuffix(" (baseline)") for label in drawn] == summary["label"].to_list()
    ratios = {row["cell"]: row for row in ratios_of(trials, two_nodes()).iter_rows(named=True)}
    said = [text.get_text() for text in figure.figure.findobj(Text) if text.get_gid() == "ratio"]
    for cell, text in zip(summary["cell"], said):
        if cell in ratios:
            row = ratios[cell]
            numbers = [float(number) for number in re.findall(r"\d\.\d+", text)]
            assert numbers == pytest.approx([row["ratio"], row["low"], row["high"]], abs=0.006)
        else:
            assert text == "1"


def test_effects_beyond_the_control_are_bold_and_the_band_is_the_controls():
    trials = measurements(two_nodes(), blocks=6)
    figure = draw_bindings(trials)
    ratios = ratios_of(trials, two_nodes())
    bold = [
        text for text in figure.figure.findobj(Text)
        if text.get_gid() == "ratio" and text.get_fontweight() == "bold"
    ]  # fmt: skip
    assert len(bold) == ratios.filter(pl.col("decision") == judge.DIFFERENT).height > 0
    bands = [patch for patch in figure.figure.axes[0].patches if patch.get_gid() == "aa"]
    means = dict(evidence.summarise(trials).select("cell", "mean").iter_rows())
    row = ratios.filter(pl.col("cell") == "remote:0-1").row(0, named=True)
    base = means["local:0"]
    widths = [band.get_width() for band in bands]
    assert any(w == pytest.approx(base * (row["aa_high"] - row["aa_low"])) for w in widths)


def test_error_and_unverified_trials_are_marked_and_counted():
    grades = {("interleave:0", 2): "error", ("remote:0-1", 3): "unverified"}
    trials = measurements(two_nodes(), blocks=6, grade=grades)
    figure = draw_bindings(trials)
    (failed,) = trials.filter(pl.col("grade") == "error")["value"]
    assert offsets(figure, "trials-error")[:, 0] == pytest.approx([failed])
    assert len(offsets(figure, "trials-unverified")) == 1
    counts = [text.get_text() for text in figure.figure.findobj(Text) if text.get_gid() == "count"]
    assert "5, 1 ×" in counts and "6, 1 ○" in counts
    assert {"error: left out", "unverified trial"} <= set(texts(figure))


def test_too_few_blocks_show_points_and_decide_nothing():
    figure = draw_bindings(measurements(two_nodes(), blocks=2))
    assert any("too few blocks to decide: 2 of the 6" in text for text in texts(figure))
    assert not figure.figure.axes[0].containers, "no mean with an interval"
    assert not [patch for patch in figure.figure.axes[0].patches if patch.get_gid() == "aa"]
    said = [text.get_text() for text in figure.figure.findobj(Text) if text.get_gid() == "ratio"]
    assert not any("[" in text for text in said)
    assert_publishable(figure)


def test_markers_and_colours_are_the_palettes():
    figure = draw_bindings(measurements(two_nodes(), blocks=6))
    drawn = {
        (to_hex(line.get_color()).upper(), line.get_marker())
        for container in figure.figure.axes[0].containers
        for line in container.lines[:1]
    }
    wanted = {
        (style.PALETTE[name].upper(), style.MARKERS[name])
        for name in ("local", "remote", "interleave", "unbound", "control")
    }
    assert drawn == wanted


def test_a_narrow_result_is_not_blown_up_to_the_whole_width():
    cells = [Cell("local:0", 80.0, role="baseline"), Cell("interleave:0", 80.0, "local:0")]
    trials = measurements(cells, blocks=6, noise=1e-4)
    low, high = draw_bindings(trials, cells).figure.axes[0].get_xlim()
    assert (high - low) / 80 >= 0.1


# ---------------------------------------------------------------- curves


def loaded_rows(cells: dict[str, tuple[float, float]], blocks: int = 6) -> pl.DataFrame:
    """Loaded latency: per cell its peak bandwidth and idle latency, at four delays."""
    parts = []
    for delay in (0, 100, 500, 5000):
        moved = {name: peak / (1 + delay / 150) for name, (peak, _) in cells.items()}
        waits = {name: idle * (1 + moved[name] / peak) for name, (peak, idle) in cells.items()}
        for metric, unit, values in (
            ("loaded_bandwidth", "GB/s", moved), ("loaded_latency", "ns", waits)
        ):  # fmt: skip
            parts.append(
                measurements([Cell(name, value) for name, value in values.items()], metric=metric,
                             unit=unit, point=f"delay={delay}", x=float(delay), blocks=blocks)
            )  # fmt: skip
    return pl.concat(parts)


def test_a_loaded_latency_curve_runs_from_the_longest_delay_to_none():
    rows = loaded_rows({"local:0": (78.0, 85.0), "remote:0-1": (40.0, 136.0)})
    figure = curves.loaded_latency(rows)
    axes = figure.figure.axes[0]
    assert axes.get_xlabel() == "bandwidth moved meanwhile (GB/s)"
    assert axes.get_ylabel() == "latency under load (ns)"
    assert axes.get_xlim()[0] == axes.get_ylim()[0] == 0
    lines = [container.lines[0] for container in axes.containers]
    assert [len(line.get_xdata()) for line in lines] == [4, 4]
    for line in lines:
        assert list(line.get_xdata()) == sorted(line.get_xdata())
    means = evidence.summarise(rows).filter(
        (pl.col("cell") == "local:0") & (pl.col("metric") == "loaded_latency")
    )
    assert sorted(lines[0].get_ydata()) == pytest.approx(sorted(means["mean"]))
    assert_publishable(figure)
    assert_no_overlap(figure)
    with pytest.raises(Fault, match="loaded latency"):
        curves.loaded_latency(measurements(two_nodes(), blocks=2))


def test_traffic_of_several_mixes_has_a_curve_for_each():
    rows = loaded_rows({"local:0": (78.0, 85.0), "remote:0-1": (40.0, 136.0)})
    mixed = [rows.with_columns(point=mix + " " + pl.col("point")) for mix in ("reads", "2:1")]
    assert len(curves.loaded_latency(mixed[0]).figure.axes[0].containers) == 2
    figure = curves.loaded_latency(pl.concat(mixed))
    assert len(figure.figure.axes[0].containers) == 4
    assert {"local 0, reads", "local 0, 2:1"} <= set(texts(figure)), texts(figure)
    assert_publishable(figure)


def test_many_curves_share_one_entry_per_family():
    cells = {f"local:{node}": (30.0 + node, 90.0) for node in range(16)}
    cells |= {f"remote:{node}-15": (18.0, 190.0) for node in range(15)}
    figure = curves.loaded_latency(loaded_rows(cells))
    assert {"local: 16 series", "remote: 15 series"} <= set(texts(figure))
    assert len(figure.figure.axes[0].containers) == 31
    assert_publishable(figure)


@pytest.mark.parametrize(("nodes", "counts"), [(1, (1, 2)), (2, (1, 2, 16)), (16, (1, 4, 8))])
def test_a_curve_per_node_and_the_ideal_line(nodes, counts):
    cells = [
        Cell(f"local:{node}" + ("" if count == counts[-1] else f"/threads={count}"),
             10.0 * count**0.8, threads=count)
        for node in range(nodes) for count in counts
    ]  # fmt: skip
    rows = measurements(cells, blocks=6, noise=0.0).with_columns(
        series=pl.col("label").str.split("/").list.first(), at=pl.col("threads").cast(pl.Float64)
    )
    figure = curves.against(rows, xlabel="number of threads", ideal=True)
    axes = figure.figure.axes[0]
    assert axes.get_xlabel() == "number of threads" and axes.get_ylabel() == "triad (GB/s)"
    assert len(axes.containers) == nodes
    (ideal,) = [line for line in axes.lines if line.get_gid() == "ideal"]
    assert ideal.get_ydata()[-1] == pytest.approx(10.0 * counts[-1])
    assert axes.get_ylim()[0] == 0
    assert_publishable(figure)
    assert_no_overlap(figure)
    with pytest.raises(Fault, match="no usable value"):
        curves.against(rows.with_columns(grade=pl.lit("error")), xlabel="threads")


def test_the_running_order_shows_drift_against_each_cells_own_median():
    trials = measurements(two_nodes(), blocks=6, drift=-0.2, noise=0.001,
                          grade={("unbound", 2): "error"})  # fmt: skip
    figure = curves.run_order(trials)
    points = offsets(figure, "trials-verified")
    assert len(points) == len(trials) - 1 and len(offsets(figure, "trials-error")) == 1
    assert np.corrcoef(points[:, 0], points[:, 1])[0, 1] < -0.95
    assert "block, trials in running order" in texts(figure)
    assert_publishable(figure)
    assert_no_overlap(figure)


# ---------------------------------------------------------------- numbers and tables


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (80.46, 3, "80.5"), (9.996, 3, "10.0"), (0.65, 3, "0.650"), (123456.7, 3, "123,457"),
        (0, 3, "0"), (None, 3, "–"), (float("nan"), 3, "–"), (-1234.5, 3, "-1,234"),
        (0.00001234, 3, "1.23e-05"), (99.97, 3, "100"), (144.74, 4, "144.7"),
    ],
)  # fmt: skip
def test_numbers_keep_their_significant_figures(value, digits, text):
    assert tables.number(value, digits) == text


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (0.649, 0.633, 0.661, "0.65 [0.63, 0.66]"),
        (1.0004, 0.9981, 1.0012, "1.000 [0.998, 1.001]"),
        (80.46, 79.1, 81.3, "80 [79, 81]"),
        (80.46, 80.1, 80.9, "80.5 [80.1, 80.9]"),
        (120_345.0, 119_131.0, 122_136.0, "120,345 [119,131, 122,136]"),
        (0.65, None, None, "0.650"),
        (None, 0.1, 0.2, "–"),
        (80.0, 80.0, 80.0, "80.0 [80.0, 80.0]"),
    ],
)  # fmt: skip
def test_an_interval_is_printed_no_finer_than_it_is_known(value, low, high, text):
    assert tables.interval(value, low, high) == text


def test_a_markdown_table_aligns_numbers_and_escapes_pipes():
    frame = pl.DataFrame(
        {"label": ["remote 0|1", None], "value": [80.46, None], "n": [6, 5],
         "ratio": [0.649, None], "low": [0.633, None], "high": [0.661, None],
         "proved": [True, False]}
    )  # fmt: skip
    table = tables.markdown(
        frame,
        {"binding": "label", "triad (GB/s)": "value", "n": "n", "ratio": ("ratio", "low", "high"),
         "proved": "proved"},
    )  # fmt: skip
    assert table.splitlines() == [
        "| binding | triad (GB/s) | n | ratio | proved |",
        "| :-- | --: | --: | --: | :-- |",
        "| remote 0\\|1 | 80.5 | 6 | 0.65 [0.63, 0.66] | yes |",
        "| – | – | 5 | – | no |",
    ]
    with pytest.raises(Fault, match="does not have: nowhere"):
        tables.markdown(frame, {"x": "nowhere"})
