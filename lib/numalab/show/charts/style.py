"""The house style: one palette, one type size, one width, and files that never differ by chance.

Colours are those of Okabe and Ito ("Color Universal Design", 2008), which stay apart under the
common kinds of colour blindness; every family of bindings has its own marker as well, so that a
grey print loses nothing. Figures are 16 cm wide, the text width of the PDF, so that a type size
given here is the size on paper; HTML scales the SVG.
"""

from __future__ import annotations

import functools
import io
from typing import Any, Callable, Dict, Optional, Sequence

import matplotlib
import polars as pl
from matplotlib import patheffects
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter

from numalab.agent.errors import Fault

from .. import tables

WIDTH = 16 / 2.54  # inches: the text width of the article's PDF
TITLE, BASE, SMALL, TINY = 9.0, 8.0, 7.0, 6.0  # points on paper

BLUE, VERMILLION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY, PURPLE, BLACK = "#56B4E9", "#CC79A7", "#000000"
GREY, PALE, INK, FAINT = "#7F7F7F", "#E8E8E8", "#222222", "#555555"

PALETTE: Dict[str, str] = {
    "local": BLUE,
    "remote": VERMILLION,
    "interleave": GREEN,
    "unbound": BLACK,
    "preferred": SKY,
    "cpus-only": ORANGE,
    "cores": PURPLE,
    "control": GREY,
}
MARKERS: Dict[str, str] = {
    "local": "o",
    "remote": "s",
    "interleave": "D",
    "unbound": "^",
    "preferred": "v",
    "cpus-only": "P",
    "cores": "h",
    "control": "p",
}
LOWER_IS_BETTER = frozenset({"ns", "µs", "us", "ms", "s"})  # units of times
# Series that are not bindings (nodes, for instance) take these in turn.
CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY)
CYCLE_MARKERS = ("o", "s", "D", "h", "P", "v", "^", "p")

RC: Dict[str, Any] = {
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
    "axes.grid": False,
    "grid.color": "#D9D9D9",
    "grid.linewidth": 0.5,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "legend.handletextpad": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.5,
    "hatch.linewidth": 0.5,
    "hatch.color": "#A8A8A8",
    "text.color": INK,
    "figure.dpi": 144,
    "figure.facecolor": "white",
    "savefig.dpi": 200,
    "savefig.facecolor": "white",
    "svg.hashsalt": "numalab",  # element ids follow the content, not a random number
    "svg.fonttype": "path",  # the reader needs no font
    "pdf.fonttype": 42,
}
_NO_DATE = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}


class Picture(Figure):
    """A figure that is saved in the house style, byte for byte the same for the same data.

    In a notebook it shows itself as SVG, whatever matplotlib backend is set.
    """

    def savefig(self, fname: Any, **options: Any) -> None:
        """Save as matplotlib does; without dates or program names in the file."""
        kind = options.get("format") or str(fname).rsplit(".", 1)[-1].lower()
        options["metadata"] = {**_NO_DATE.get(kind, {}), **(options.get("metadata") or {})}
        with matplotlib.rc_context(RC):
            super().savefig(fname, **options)

    def svg(self) -> str:
        """Return the figure as SVG text."""
        out = io.BytesIO()
        self.savefig(out, format="svg")
        return out.getvalue().decode("utf-8")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Dict[str, str]:
        return {"image/svg+xml": self.svg()}


def styled(draw: Callable[..., Picture]) -> Callable[..., Picture]:
    """Run a chart function under the house style, whatever the caller's rcParams are."""

    @functools.wraps(draw)
    def inside(*arguments: Any, **named: Any) -> Picture:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(RC)
            return draw(*arguments, **named)

    return inside


@functools.lru_cache(maxsize=4096)
def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Return the width in inches of a line of text at a size in points."""
    if not text.strip():
        return 0.0
    font = FontProperties(family="DejaVu Sans", weight=weight)
    return TextPath((0, 0), text, size=size, prop=font).get_extents().xmax / 72


def fitted(text: str, size: float, room: float) -> str:
    """Return a text cut to a width in inches at a size in points, with an ellipsis if it was."""
    if text_width(text, size) <= room:
        return text
    while text and text_width(text + "…", size) > room:
        text = text[:-1].rstrip(" ,")
    return text + "…"


def picture(height: float, width: float = WIDTH) -> Picture:
    """Return an empty figure of this size in inches whose layout makes room for its labels."""
    figure = Picture(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06, hspace=0.04, wspace=0.04)
    return figure


def title(figure: Picture, text: str) -> None:
    """Set the figure's title, flush left."""
    figure.suptitle(text, x=0.012, ha="left", fontsize=TITLE, fontweight="bold")


def note(figure: Picture, text: str) -> None:
    """Put a remark below the figure, flush left; "" puts none."""
    if text:
        figure.supxlabel(text, x=0.012, ha="left", fontsize=SMALL, color=FAINT, linespacing=1.35)


def emulated(figure: Picture, why: Optional[str] = None) -> Picture:
    """Mark a figure as made on an emulated host, where no time means anything; return it.

    The words lie across the picture, faint, so that a cut-out still carries them; ``why`` (from
    the host record: "QEMU TCG") is named at the upper right where there is room for it.
    """
    width, height = figure.get_size_inches()
    label = "emulated host: times mean nothing"
    if why and text_width(f"{label} ({why})", SMALL) < width * 0.55:
        label += f" ({why})"
    title = text_width(figure.get_suptitle(), TITLE, "bold")
    if title + text_width(label, SMALL) > width - 0.3:  # both stand in the topmost line
        label = "emulated host"
        if title + text_width(label, SMALL) > width - 0.3:
            label = ""
    size = min(34.0, 72 * height / 3, 72 * width / 10)
    for text, where, look in (
        ("EMULATED HOST", (0.5, 0.5), {"fontsize": size, "fontweight": "bold", "alpha": 0.25,
                                       "ha": "center", "va": "center", "rotation": 15}),
        (label, (1 - 0.08 / width, 1 - 0.08 / height),
         {"fontsize": SMALL, "ha": "right", "va": "top"}),
    ):  # fmt: skip
        figure.text(*where, text, color=VERMILLION, zorder=100, **look).set_in_layout(False)
    return figure


def marked(figure: Picture, badge: str, why: Optional[str] = None) -> Picture:
    return emulated(figure, why) if badge == "counted" else figure


def thousands() -> FuncFormatter:
    """Return a formatter for an axis of large numbers: 120,000, and 0.5 as it is."""
    return FuncFormatter(lambda value, _: f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}")


def halo(text: Any) -> None:
    """Give a text a white outline, so that it stays legible over lines and bars."""
    text.set_path_effects([patheffects.withStroke(linewidth=2, foreground="white")])


def family(binding: str, role: str = "cell") -> str:
    """Return the family whose colour and marker a binding or cell id takes.

    ``remote:0-1`` and ``remote`` are ``remote``; a control is ``control`` whatever it repeats;
    everything that picks CPUs by count, thread rank or list is ``cores``.
    """
    if role == "control" or binding.endswith("/control"):
        return "control"
    name = binding.replace("/", ":").split(":", 1)[0].strip()
    return name if name in PALETTE else "cores"


def words(metric: str) -> str:
    """Return a metric's name as the beginning of a title: ``idle_latency`` is Idle latency."""
    text = tables.plain(metric)
    return text[:1].upper() + text[1:]


def one_quantity(
    frame: pl.DataFrame, columns: Sequence[str] = ("metric", "point", "unit")
) -> str:
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
