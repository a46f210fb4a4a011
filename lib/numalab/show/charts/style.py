"""The house style: one palette, one type size, one width, and files that never differ by chance.

Colours are those of Okabe and Ito ("Color Universal Design", 2008), which stay apart under the
common kinds of colour blindness; every family of bindings has its own marker as well, so that a
grey print loses nothing. Figures are 16 cm wide, the text width of the PDF, so that a type size
given here is the size on paper; HTML scales the SVG.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import html
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import polars as pl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter

from numalab import tables
from numalab.agent.contract import CELL, CONTROL, COUNTED, ERROR, MEASURED, UNVERIFIED
from numalab.agent.errors import Fault
from numalab.agent.words import units
from numalab.analysis.evidence import BLOCKS_NEEDED

from ..badge import MEANING

WIDTH = 16 / 2.54  # inches: the text width of the article's PDF
TITLE, BASE, SMALL, TINY = 9.0, 8.0, 7.0, 6.0  # points on paper

BLUE, VERMILLION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY, PURPLE, BLACK, WINE = "#56B4E9", "#CC79A7", "#000000", "#882255"
GREY, PALE, INK, FAINT = "#7F7F7F", "#E8E8E8", "#222222", "#555555"
OWN = "#EAF3F8"  # behind what is of this study

_LOOKS = {
    "local": (BLUE, "o"), "remote": (VERMILLION, "s"), "interleave": (GREEN, "D"),
    "unbound": (BLACK, "^"), "preferred": (SKY, "v"), "cpus-only": (ORANGE, "P"),
    "cores": (PURPLE, "h"), "control": (GREY, "p"), "memory-only": (WINE, "X"),
    "interleave:all": (GREEN, "d"), "interleave:weighted": (GREEN, "H"),
}  # fmt: skip
PALETTE = {family: colour for family, (colour, _) in _LOOKS.items()}
MARKERS = {family: marker for family, (_, marker) in _LOOKS.items()}
# Series that are not bindings (nodes, for instance) take these in turn.
CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY)
CYCLE_MARKERS = ("o", "s", "D", "h", "P", "v", "^", "p")

_TICKS = {"labelsize": SMALL, "color": FAINT, "labelcolor": INK, "major.width": 0.6,
          "major.size": 3}  # fmt: skip
RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so every host draws the same
    "font.size": BASE,
    "axes.titlesize": BASE,
    "axes.titlelocation": "left",
    "axes.labelsize": BASE,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#D9D9D9",
    "grid.linewidth": 0.5,
    **{f"{axis}tick.{name}": value for axis in "xy" for name, value in _TICKS.items()},
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "legend.handletextpad": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.5,
    "hatch.linewidth": 0.5,
    "hatch.color": "#A8A8A8",
    "text.color": INK,
    "text.hinting": "no_hinting",  # a text is as wide at any resolution
    "text.parse_math": False,  # a dollar sign in a label is a dollar sign
    "savefig.dpi": 200,
    "svg.hashsalt": "numalab",  # element ids follow the content, not a random number
    "svg.fonttype": "none",  # text that can be selected, searched and read aloud
}
_NO_DATE = {"Date": None, "Creator": None}
# Where DejaVu Sans is not installed, Verdana is as wide; any other font is set as wide.
_TEXT = re.compile(
    r"<text style=\"(?P<style>[^\"]*?(?P<size>[\d.]+)px[^\"]*)\"(?P<rest>[^>]*)>(?P<words>[^<]*)<"
)
_SIZE = re.compile(r'width="([\d.]+)pt" height="([\d.]+)pt" viewBox="0 0 [\d.]+ ([\d.]+)"')
PAGE = 9.0  # inches: what a page of the PDF holds above a caption
_WATERMARK = "EMULATED HOST"

Paint = Callable[[FigureBase], None]


@dataclasses.dataclass(eq=False)
class Picture:
    """A chart: its size in inches, and how it is painted on a figure or a part of one.

    It is painted when it is first shown, under the house style, whatever the caller's rcParams
    are. In a notebook it shows itself as SVG, byte for byte the same for the same data.
    """

    height: float
    paint: Paint = dataclasses.field(repr=False)  # its address would differ each time
    width: float = WIDTH
    badge: str = ""  # of its evidence; "" for what stands in several panels with their own
    freehand: bool = False  # placed in inches by its painter, and not marked across

    @functools.cached_property
    def figure(self) -> Figure:
        """The painted figure."""
        with house_style():
            figure = Figure(figsize=(self.width, self.height))
            if not self.freehand:
                figure.set_layout_engine(
                    "constrained", w_pad=0.07, h_pad=0.05, hspace=0.03, wspace=0.02
                )
            self.paint_on(figure)
            engine = figure.get_layout_engine()
            if engine is not None:  # laid out here for good: each drawing would go on improving it
                for _ in range(2):
                    engine.execute(figure)
                figure.set_layout_engine("none")
        return figure

    def paint_on(self, figure: FigureBase) -> None:
        """Paint it, with its badge, on a figure or a subfigure."""
        self.paint(figure)
        if self.badge:
            _mark(figure, self)

    def svg(self) -> str:
        """Return it as SVG text, without a date or a program's name."""
        out = io.BytesIO()
        with house_style():
            name = self.figure.get_suptitle()
            self.figure.savefig(out, format="svg", metadata={**_NO_DATE, "Title": name})
        text = _TEXT.sub(_as_long, out.getvalue().decode("utf-8"))
        return _SIZE.sub(functools.partial(_as_wide, WIDTH * 72), text, count=1)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"image/svg+xml": self.svg()}


def _as_long(found: re.Match[str]) -> str:
    """A text of an SVG that is as long in any font as in the one that it was laid out with."""
    weight = "bold" if re.search("bold|700", found["style"]) else "normal"
    long = 72 * text_width(html.unescape(found["words"]), float(found["size"]), weight)
    length = f' textLength="{long:.1f}" lengthAdjust="spacingAndGlyphs"' if long else ""
    font = found["style"].replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
    return f'<text style="{font}"{found["rest"]}{length}>{found["words"]}<'


def _as_wide(width: float, found: re.Match[str]) -> str:
    """The size of an SVG, at least as wide as the text: a page scales all pictures alike."""
    wide = max(width, float(found[1]))
    return f'width="{wide:g}pt" height="{found[2]}pt" viewBox="0 0 {wide:g} {found[3]}"'


@contextlib.contextmanager
def house_style() -> Iterator[None]:
    """Draw under the house style, whatever the caller's rcParams are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)  # type: ignore[arg-type]
        yield


def marked(picture: Picture, badge: str) -> Picture:
    """Return a picture with the badge of its evidence."""
    return dataclasses.replace(picture, badge=badge)


def _mark(figure: FigureBase, picture: Picture) -> None:
    """Write a picture's badge in the upper corner, and across it where its host is emulated."""
    badge, width, height = picture.badge, picture.width, picture.height
    plain = badge == MEASURED
    words = badge if plain or picture.freehand else MEANING[badge]
    title = text_width(figure.get_suptitle(), TITLE, "bold")
    if title + text_width(words, SMALL) > width - 0.3:
        words = badge
    place = (1 - 0.06 / width, 1 - 0.06 / height)
    look: dict[str, Any] = {"fontsize": SMALL, "ha": "right", "va": "top"}
    if title + text_width(words, SMALL) <= width - 0.3:
        colour = FAINT if plain else VERMILLION
        figure.text(*place, words, color=colour, gid="badge", **look).set_in_layout(False)
    if badge == COUNTED and not picture.freehand:  # so that a cut-out still carries it
        figure.text(
            0.5, 0.5, _WATERMARK, fontsize=min(34.0, 24 * height, 7.2 * width), alpha=0.12,
            fontweight="bold", ha="center", va="center", rotation=15, color=VERMILLION, zorder=100,
        ).set_in_layout(False)  # fmt: skip


def sheet(parts: Sequence[tuple[str, Picture]], remark: str = "") -> Picture:
    """Return pictures under one another, or side by side where two fit, as one.

    Each is a subfigure whose title begins with its name. What is higher than a page is set closer.
    """
    lines: list[list[tuple[str, Picture]]] = []
    for name, one in parts:
        if not lines or sum(other.width for _, other in lines[-1]) + one.width > WIDTH + 0.01:
            lines.append([])
        lines[-1].append((name, one))
    heights = [max(one.height for _, one in line) + 0.1 for line in lines]

    def paint(figure: FigureBase) -> None:
        rows = figure.add_gridspec(len(lines), 1, height_ratios=heights)
        for place, line in enumerate(lines):
            row = rows[place, 0]
            widths = [one.width for _, one in line]
            free = WIDTH - sum(widths)
            columns = row.subgridspec(
                1, len(line) + (free > 0.1), width_ratios=[*widths, *([free] if free > 0.1 else [])]
            )
            for column, (name, one) in enumerate(line):
                part = figure.add_subfigure(columns[0, column])
                one.paint(part)
                title(part, f"{name}: {part.get_suptitle()}".removesuffix(": "))
                if one.badge:
                    _mark(part, one)
        foot(figure, note=remark)

    height = sum(heights) + (0.25 if remark else 0.0)
    return Picture(min(height, PAGE), paint)


@functools.lru_cache(maxsize=4096)
def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Return the width in inches of a line of text at a size in points."""
    if not text.strip():
        return 0.0
    font = FontProperties(family="DejaVu Sans", weight=weight)
    return TextPath((0, 0), text, size=size, prop=font).get_extents().xmax / 72


def fitted(text: str, size: float, room: float, weight: str = "normal") -> str:
    """Return a text cut to a width in inches at a size in points, with an ellipsis if it was."""
    if text_width(text, size, weight) <= room:
        return text
    while text and text_width(text + "…", size, weight) > room:
        text = text[:-1].rstrip(" ,")
    return text + "…"


def title(figure: FigureBase, text: str) -> None:
    """Set the title of a figure or of a part of one, flush left."""
    figure.suptitle(text, x=0.012, ha="left", fontsize=TITLE, fontweight="bold")


def foot(figure: FigureBase, handles: Sequence[Artist] = (), note: str = "") -> None:
    """Put the key of what is drawn, and a remark, below a figure, flush left."""
    if not handles and not note:
        return
    legend = figure.legend(
        handles=list(handles), loc="outside lower left", ncols=key_columns(handles),
        title=note or None, alignment="left", columnspacing=1.4, handlelength=1.8,
        borderaxespad=0.5, borderpad=0.1,
    )  # fmt: skip
    legend.get_title().set(fontsize=SMALL, color=FAINT, linespacing=1.35)


def key_columns(handles: Sequence[Artist]) -> int:
    """Return how many entries of a key stand side by side."""
    widths = [text_width(str(one.get_label()), SMALL) + 0.45 for one in handles]
    for columns in range(len(widths), 1, -1):  # matplotlib fills them as array_split does
        if sum(max(part) for part in np.array_split(widths, columns)) < WIDTH - 0.2:
            return columns
    return 1


def beside(axes: Axes, handles: Sequence[Artist]) -> None:
    """Put the key right of the axes, where it hides nothing."""
    axes.legend(handles=list(handles), loc="upper left", bbox_to_anchor=(1.01, 1.0),
                borderaxespad=0, handlelength=2.2)  # fmt: skip


def point(label: str, family: str = "", **look: Any) -> Line2D:
    """Return an entry of a key: a marker, that of a family of bindings where one is named."""
    own: dict[str, Any] = {"marker": "o", "color": GREY, "markersize": 4.0, "linestyle": "none"}
    if family:
        own |= {"marker": MARKERS[family], "color": PALETTE[family]}
    return Line2D([], [], label=label, **(own | look))


UNVERIFIED_LOOK: dict[str, Any] = {"markerfacecolor": "white"}
ERROR_LOOK: dict[str, Any] = {"marker": "x", "color": VERMILLION}


def grade_look(grade: str, colour: str, marker: str = "o") -> dict[str, Any]:
    """Return how scattered points of a grade look: filled, open, or a red cross."""
    if grade == ERROR:
        return {"color": VERMILLION, "marker": "x", "linewidths": 1.1}
    if grade == UNVERIFIED:
        return {"facecolors": "white", "edgecolors": colour, "linewidths": 0.7, "marker": marker}
    return {"color": colour, "marker": marker, "linewidths": 0}


def solid_or_open(solid: bool, colour: str) -> dict[str, Any]:
    """Return how a marker looks whose figure is certain, or approximate or unverified."""
    if solid:
        return {"markersize": 5.5, "markeredgecolor": "white", "markeredgewidth": 0.5}
    return {"markersize": 5.5, "markerfacecolor": "white", "markeredgecolor": colour,
            "markeredgewidth": 1.1}  # fmt: skip


def reach(row: Mapping[str, Any], blocks: int) -> list[list[float]] | None:
    """Return the lengths of an interval's arms, or None where too few blocks give any."""
    if blocks < BLOCKS_NEEDED or row["low"] is None:
        return None
    return [[row["mean"] - row["low"]], [row["high"] - row["mean"]]]


def few(blocks: int, what: str = "points are means, bars their 95 % intervals") -> str:
    """Return the remark on what the points and intervals of a chart are."""
    if blocks >= BLOCKS_NEEDED:
        return f"{what} ({units.count(blocks, 'block')})"
    return f"too few blocks to decide: {blocks} of the {BLOCKS_NEEDED} that are needed"


def thousands() -> FuncFormatter:
    """Return a formatter for an axis of large numbers: 120,000, and 0.5 as it is."""
    return FuncFormatter(lambda value, _: f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}")


def halo(text: Any) -> None:
    """Put white behind a text, so that it stays legible over lines and bars."""
    text.set_bbox({"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6})


def family(binding: str, role: str = CELL) -> str:
    """Return the family whose colour and marker a cell takes, by its binding and its role.

    A control is ``control`` whatever it repeats; everything that picks CPUs by count, thread rank
    or list is ``cores``.
    """
    if role == CONTROL:
        return CONTROL
    return binding if binding in PALETTE else "cores"


def words(metric: str) -> str:
    """Return a metric's name as the beginning of a title: ``idle_latency`` is Idle latency."""
    text = tables.plain(metric)
    return text[:1].upper() + text[1:]


def one_quantity(frame: pl.DataFrame, columns: Sequence[str] = ("metric", "point", "unit")) -> str:
    """Return the frame's one metric; Fault when it mixes quantities that one axis cannot hold.

    An empty frame has none: that is a Fault too.
    """
    if frame.is_empty():
        raise Fault("there is no row to draw", "choose a metric that was measured")
    for column in columns:
        if frame[column].n_unique() > 1:
            found = ", ".join(map(str, frame[column].unique().sort().to_list()[:4]))
            raise Fault(
                f"one chart was asked for rows with several values of {column} ({found})",
                f"filter the frame to one {column}",
            )
    return str(frame["metric"][0])


def is_dark(colour: Any) -> bool:
    """Say whether white text reads better than black on a colour (WCAG 2.1 relative luminance)."""
    rgb = matplotlib.colors.to_rgb(colour)
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.179
