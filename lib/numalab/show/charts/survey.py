"""Published machines: what farther memory costs, by microarchitecture, year, class and binding.

Every point is one machine as one tool saw it. A host of the user's own is a star, in the charts
where it can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.ticker import FuncFormatter

from numalab.agent.contract import PUBLISHED
from numalab.agent.errors import Fault

from . import rows as rows_of
from . import style
from .frames import to_pandas

Here = Mapping[str, float]  # the value of each host of one's own, by name
HOW = {  # a tool and its way, by what comes after the tool's name
    "random": style.BLUE, "sequential": style.GREEN, "partly cached": style.ORANGE,
    "the whole node": style.BLUE, "some threads": style.GREEN, "one thread": style.ORANGE,
    "": style.SKY, "threads not stated": style.SKY,
}  # fmt: skip
LEVELS = {"SMT sibling": style.SKY, "same socket": style.BLUE, "other socket": style.VERMILLION}
_NO_TOOL = "Rows without a named tool are in no ratio."


def strips(
    frame: pl.DataFrame,
    value: str,
    heading: str,
    axis: str,
    *,
    by: str = "tool",
    colours: Mapping[str, str] | None = None,
    here: Here | None = None,
    marks: Mapping[str, float] | None = None,
    log: bool = False,
    note: str = _NO_TOOL,
) -> style.Picture:
    """Draw a value of every machine, a row for each microarchitecture, the oldest on top.

    ``frame`` has ``microarchitecture``, ``year``, ``machine``, ``by`` (what the colours are) and
    ``value``; ``here`` are hosts of one's own, ``marks`` values with a name. Raises Fault when
    there is nothing to draw.
    """
    if frame.is_empty():
        raise Fault("no published machine was measured so, by a tool that its source names")
    frame = frame.with_columns(row=_label()).sort("year", "microarchitecture", nulls_last=True)
    here = here or {}
    order = [*here, *frame["row"].unique(maintain_order=True)]
    levels = list(colours or frame[by].unique(maintain_order=True).sort())
    palette = dict(colours or {level: _colour(level) for level in levels})

    def paint(figure: FigureBase) -> None:
        (axes,) = rows_of.panels(figure, order)
        if log:
            axes.set_xscale("log")
            _plain(axes)
        seaborn.stripplot(
            to_pandas(frame), x=value, y="row", order=order, hue=by, hue_order=levels,
            palette=palette, jitter=False, alpha=0.75, size=5, legend=False, ax=axes,
        )  # fmt: skip
        axes.set_ylim(len(order) - 0.5, -0.5)
        axes.set(xlabel=axis, ylabel="")
        _own(axes, here)
        for name, at in (marks or {}).items():
            _mark(axes, name, at)
        style.title(figure, heading)
        key = [style.point(str(level), color=palette[level]) for level in levels]
        style.foot(figure, key, note)

    height = rows_of.height(len(order), 1 + -(-len(levels) // 3)) + 0.15
    return style.Picture(height, paint, badge=PUBLISHED)


def _label() -> pl.Expr:
    """A microarchitecture with its year and how many machines of it are drawn."""
    year = pl.when(pl.col("year").is_null()).then(pl.lit("")).otherwise(
        pl.concat_str(pl.lit(", "), pl.col("year").cast(pl.String))
    )  # fmt: skip
    many = pl.col("machine").n_unique().over("microarchitecture").cast(pl.String)
    return pl.concat_str("microarchitecture", year, pl.lit(" ("), many, pl.lit(")"))


def _colour(how: str) -> str:
    tool, _, way = how.partition(", ")
    return {"author's program": style.PURPLE, "STREAM": style.WINE}.get(tool) or HOW[way]


def _plain(axes: Axes) -> None:
    """Write the numbers of a logarithmic axis as they are said."""
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda x, _: ""))


def _own(axes: Axes, here: Here) -> None:
    for place, (name, at) in enumerate(here.items()):
        axes.axhspan(place - 0.5, place + 0.5, color=style.OWN, zorder=0, lw=0)
        axes.axvline(at, color=style.BLACK, linewidth=0.6, zorder=1)
        axes.plot([at], [place], marker="*", markersize=9, color=style.BLACK, gid=f"own-{name}")
        style.halo(axes.annotate(f"your host: {at:.3g}", (at, place), xytext=(7, 0),
                                 textcoords="offset points", fontsize=style.TINY,
                                 va="center_baseline"))  # fmt: skip


def _mark(axes: Axes, name: str, at: float) -> None:
    axes.axvline(at, color=style.FAINT, linewidth=0.7, linestyle=(0, (4, 3)), zorder=1)
    axes.text(at, -0.55, name, fontsize=style.TINY, color=style.FAINT, ha="center", va="bottom")


def over_years(
    panels: Sequence[tuple[pl.DataFrame, str, str, Sequence[float]]],
) -> style.Picture:
    """Draw figures by the year of the microarchitecture, panels side by side.

    A panel is a frame (``year``, ``how``), the column to draw, its label, and the values of hosts
    of one's own, which are drawn as lines: their year is not known here.
    """
    dated = pl.concat([frame.select("how", "year") for frame, *_ in panels]).drop_nulls("year")
    levels = dated["how"].unique().sort().to_list()
    palette = {level: _colour(level) for level in levels}

    def paint(figure: FigureBase) -> None:
        for axes, (frame, value, label, here) in zip(
            figure.subplots(1, len(panels)), panels, strict=True
        ):
            seaborn.scatterplot(
                to_pandas(frame.drop_nulls("year").sort("how", "year")), x="year", y=value,
                hue="how", palette=palette, legend=False, ax=axes, s=22, alpha=0.8,
            )  # fmt: skip
            axes.set(xlabel="", ylabel=label, ylim=(0, None))
            axes.set_xticks(range(2014, max(dated["year"]) + 1, 5))
            axes.grid(axis="y")
            for at in here:
                axes.axhline(at, color=style.BLACK, linewidth=0.8)
                axes.text(dated["year"].min(), at, "your host", fontsize=style.TINY, va="bottom")
        style.title(figure, "The other socket, by the year of the microarchitecture")
        style.foot(figure, [style.point(name, color=palette[name]) for name in levels], _NO_TOOL)

    return style.Picture(3.2, paint, badge=PUBLISHED)


def loaded(frame: pl.DataFrame) -> style.Picture:
    """Draw latency against the share of each machine's largest bandwidth, all curves together."""
    kinds = frame.sort("year", "microarchitecture", nulls_last=True)["microarchitecture"]
    kinds = kinds.unique(maintain_order=True)
    palette = dict(zip(kinds, seaborn.color_palette("viridis", len(kinds)), strict=True))
    curves = frame.filter(pl.len().over("machine_id") > 2).sort("machine_id", "delay")

    def paint(figure: FigureBase) -> None:
        axes = figure.subplots()
        seaborn.lineplot(
            to_pandas(curves), x="share", y="latency", hue="microarchitecture", palette=palette,
            units="machine_id", estimator=None, sort=False, marker="o", markersize=3, ax=axes,
            legend=False, linewidth=1,
        )  # fmt: skip
        axes.set(xlabel="bandwidth, of the largest of this machine and mode", ylabel="latency (ns)")
        axes.set_ylim(0, None)
        rows_of.percent(axes)
        axes.grid(axis="y")
        drawn = curves["microarchitecture"].unique().to_list()
        key = [style.point(name, color=palette[name]) for name in kinds if name in drawn]
        style.title(figure, "Latency under load, Intel MLC")
        style.foot(figure, key, "All cores read their own node's memory.")

    return style.Picture(3.9, paint, badge=PUBLISHED)


def servers(frame: pl.DataFrame) -> style.Picture:
    """Draw what bindings did to servers and other workloads, each against its own baseline."""
    settings = pl.concat_str(pl.lit(", "), pl.col("setting")).fill_null("")
    named = pl.concat_str(
        pl.col("workload").str.replace(" nearest-neighbour search| NOPM", ""), pl.lit(", "),
        pl.coalesce("processor", "machine"), settings,
    )  # fmt: skip
    frame = frame.with_columns(row=named).sort("workload", "row", maintain_order=True)
    order = frame["row"].unique(maintain_order=True).to_list()
    kinds = frame["binding"].unique(maintain_order=True).sort().to_list()
    palette = dict(zip(kinds, [*style.CYCLE, style.WINE, style.INK], strict=False))

    def paint(figure: FigureBase) -> None:
        axes, beside = rows_of.panels(figure, order, (3.0, 0.8))
        axes.set_xscale("log")
        _plain(axes)
        axes.set_xticks([0.2, 0.5, 1, 2])
        seaborn.stripplot(to_pandas(frame), x="ratio", y="row", order=order, hue="binding",
                          hue_order=kinds, palette=palette, jitter=False, size=5, alpha=0.8,
                          legend=False, ax=axes)  # fmt: skip
        axes.axvline(1, color=style.FAINT, linewidth=0.8, zorder=1)
        axes.set_ylim(len(order) - 0.5, -0.5)
        axes.set(xlabel="rate, against the same workload's baseline", ylabel="")
        rows_of.texts(beside, {"baseline": 0.0})
        for place, row in enumerate(order):
            words = frame.filter(pl.col("row") == row)["against"][0]
            rows_of.text(beside, 0.0, place, words)
        style.title(figure, "What bindings did to workloads that others measured")
        style.foot(figure, [style.point(name, color=palette[name]) for name in kinds])

    return style.Picture(rows_of.height(len(order), 4), paint, badge=PUBLISHED)


def distances(frame: pl.DataFrame, here: Mapping[str, pl.DataFrame]) -> style.Picture:
    """Draw measured ratios against what the firmware's distances promise, pair by pair.

    ``frame`` has ``processor``, ``said`` and ``ratio``; ``here`` the same of one's own hosts.
    """
    parts = [frame.with_columns(name=pl.coalesce("processor", "machine_id"))]
    parts += [own.with_columns(name=pl.lit(f"your host: {name}")) for name, own in here.items()]
    points = pl.concat(parts, how="diagonal")
    names = points["name"].unique(maintain_order=True).to_list()
    palette: dict[str, Any] = dict(zip(names, style.CYCLE, strict=False))

    def paint(figure: FigureBase) -> None:
        axes = figure.subplots()
        axes.axline((1, 1), (2, 2), color=style.GREY, linewidth=0.8, zorder=1)
        seaborn.scatterplot(to_pandas(points), x="said", y="ratio", hue="name", style="name",
                            palette=palette, legend=False, ax=axes, s=28, alpha=0.8)  # fmt: skip
        for scale in ("x", "y"):
            getattr(axes, f"set_{scale}scale")("log", base=2)
            getattr(axes, f"{scale}axis").set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.set(xlabel="distance in the firmware's table / 10", ylabel="measured latency / local")
        axes.grid()
        style.title(figure, "What the firmware promises, and what was measured")
        markers = dict(zip(names, ("o", "X", "s", "P", "D", "^", "v", "*"), strict=False))
        key = [style.point(n, color=palette[n], marker=markers[n]) for n in names]
        style.foot(figure, key, "On the line the table tells the truth.")

    return style.Picture(3.6, paint, badge=PUBLISHED)
