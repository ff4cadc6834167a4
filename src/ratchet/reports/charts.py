"""Charts as inline SVG, drawn by matplotlib. Their colours are variables of report.css, so they follow the theme."""

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from ratchet.evaluation.calibration import Bin
from ratchet.evaluation.intervals import Interval
from ratchet.reports.number_text import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "Chart",
    "Line",
    "bar_chart",
    "heat_map",
    "line_chart",
    "number_text",
    "reliability_chart",
    "scatter_chart",
]

COLOURS = ("--series-1", "--series-2", "--series-3", "--series-4", "--series-5")
"""CSS variables for the lines of one chart."""

Points = Sequence[tuple[float, float]]

_VARIABLES = ("", *COLOURS, "--soft", "--line", "--good", "--bad", "--card")
_COLOUR = MappingProxyType({name: f"#{number:06x}" for number, name in enumerate(_VARIABLES)})  # that matplotlib writes
_STYLE = Path(__file__).parent / "templates" / "charts.mplstyle"
_DASHED: Any = MappingProxyType(
    {"color": _COLOUR["--soft"], "linestyle": (0, (4, 4)), "linewidth": 1, "clip_on": False}
)
_STEPS = (1, 2, 5, 10)  # of ticks
_SHADES = 8
_NUMBERED = 20  # with more classes the confusion matrix has no numbers
_DRAWN = 1500  # points of a scatter plot, evenly spaced among all


@dataclass(frozen=True)
class Line:
    """One line of a chart, or of its legend."""

    name: str
    colour: str  # a CSS variable
    points: Points = ()


@dataclass(frozen=True)
class Chart:
    """A drawing with its title, and the lines that its legend names."""

    title: str
    drawing: Markup
    lines: Sequence[Line] = ()


@dataclass
class Canvas:
    """A figure to draw on. `svg` is complete when the block of `canvas` ends."""

    figure: "Figure"
    axes: "Axes"
    svg: Markup = field(default_factory=Markup)


def line_chart(lines: Sequence[Line], *, name: str, x_label: str, share: bool = False) -> Markup:
    """Draw lines in one frame, with a dot at their ends. Return "" where there is no point.

    `share`: the y axis is in per cent.
    """
    lines = [line for line in lines if line.points]
    if not lines:
        return Markup()
    with canvas(name, 360, 236, shares="y" if share else "", whole=True) as drawn:
        for line in lines:
            strokes(drawn.axes, [line.points], line.colour)
            dots(drawn.axes, line.points[-1:], line.colour, 6.4)
        drawn.axes.set_xlabel(x_label)
    return drawn.svg


def reliability_chart(bins: Sequence[Bin]) -> Markup:
    """Draw the accuracy of each confidence bin against the diagonal of perfect calibration, and the samples below."""
    most = max((bin.count for bin in bins), default=0) or 1
    filled = [bin for bin in bins if bin.count]
    middles, width, ticks = (
        [(bin.low + bin.high) / 2 for bin in filled],
        0.9 / max(1, len(bins)),
        (0, 0.25, 0.5, 0.75, 1),
    )
    with canvas("Accuracy by confidence", 360, 336, right=64, bottom=36, shares="xy") as drawn:
        axes = drawn.axes
        axes.bar(middles, [bin.accuracy or 0 for bin in filled], width, color=_COLOUR["--series-1"], alpha=0.4)
        dots(axes, [(bin.confidence or 0, bin.accuracy or 0) for bin in filled], "--series-1", 7)
        heights = [max(0.006, 0.15 * bin.count / most) for bin in filled]
        axes.bar(middles, heights, width, -0.18, color=_COLOUR["--soft"], alpha=0.5)
        axes.axline((0, 0), slope=1, **_DASHED)
        axes.text(1.03, -0.17, "samples")
        axes.set(xlim=(0, 1), ylim=(-0.18, 1), xticks=ticks, yticks=ticks, xlabel="confidence")
    return drawn.svg


def heat_map(confusion: Sequence[Sequence[int]], names: Sequence[str]) -> Markup:
    """Draw a confusion matrix of any size: one row per true class, one column per predicted class.

    The shade is the share of the true class. Up to 20 classes have their names, and cells their numbers. Cells of one
    shade are one path: a page with a thousand classes stays small and opens quickly.
    """
    size, cell = len(confusion), 30 if len(names) <= _NUMBERED else 2
    labels = [shortened(name, 12) for name in names] if cell > 2 else []
    margin = 8 * max(map(len, labels), default=-1) + 8
    shades: dict[tuple[str, int], list[Points]] = {}
    with canvas(
        "Confusion matrix", margin + size * cell, margin + size * cell, left=margin, right=0, top=margin, bottom=0
    ) as drawn:
        axes = drawn.axes
        for actual, row in enumerate(confusion):
            for predicted, count in enumerate(row):
                if count:
                    key = "--good" if actual == predicted else "--bad", math.ceil(_SHADES * count / sum(row))
                    shades.setdefault(key, []).append([(predicted, actual + 0.5), (predicted + 1, actual + 0.5)])
                    if labels:
                        place: Any = {"horizontalalignment": "center", "verticalalignment": "center"}
                        axes.text(predicted + 0.5, actual + 0.5, f"{count:,}", **place)
        axes.bar(0, size, size, color=_COLOUR["--card"], align="edge")
        for (colour, shade), cells in sorted(shades.items()):
            strokes(axes, cells, colour, width=cell, alpha=0.2 + 0.1 * shade, cap="butt")
        strokes(axes, [[(0, 0), (size, 0), (size, size), (0, size), (0, 0)]], "--line", width=size * cell / 300)
        axes.set(xlim=(0, size), ylim=(size, 0))
        axes.grid(visible=False)
        ticks = [number + 0.5 for number in range(len(labels))]
        axes.set_xticks(ticks, labels, rotation=0 if margin < 40 else 90)
        axes.set_yticks(ticks, labels)
        axes.xaxis.tick_top()
        axes.tick_params(top=False)
    return drawn.svg


def scatter_chart(points: Points, *, name: str, x_label: str, y_label: str, diagonal: bool = False) -> Markup:
    """Draw points, and the line on which they should be: the diagonal or y = 0. Return "" where there is no point."""
    if not points:
        return Markup()
    with canvas(name, 360, 290, left=60, right=24, top=24) as drawn:
        dots(drawn.axes, points[:: -(-len(points) // _DRAWN)], "--series-1", 2.6, alpha=0.5)
        if diagonal:
            drawn.axes.update_datalim([(value, value) for point in points for value in point])
            drawn.axes.axline((points[0][0], points[0][0]), slope=1, **_DASHED)
        else:
            drawn.axes.axhline(0, **_DASHED)
        drawn.axes.set(xlabel=x_label, title=y_label)
    return drawn.svg


def bar_chart(bars: Sequence[tuple[str, Interval]], *, name: str, x_label: str) -> Markup:
    """Draw a horizontal bar with its interval for each name. Return "" where there is none."""
    if not bars:
        return Markup()
    with canvas(name, 460, 22 * len(bars) + 42, left=150, right=14, top=4) as drawn:
        axes = drawn.axes
        values = [each.value for _, each in bars]
        axes.barh(range(len(bars)), values, 0.55, color=_COLOUR["--series-1"], alpha=0.5)
        intervals = [[(each.low, y), (each.high, y)] for y, (_, each) in enumerate(bars)]
        strokes(axes, intervals, "--series-1", cap="butt")
        axes.set(xlabel=x_label, ylim=(len(bars) - 0.5, -0.5))
        axes.set_yticks(range(len(bars)), [shortened(label) for label, _ in bars])
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
    return drawn.svg


@contextmanager
def canvas(
    name: str,
    width: float,
    height: float,
    *,
    left: float = 54,
    right: float = 12,
    top: float = 10,
    bottom: float = 38,
    shares: str = "",
    whole: bool = False,
) -> Iterator[Canvas]:
    """Open a figure, and turn it into SVG at the end. The same drawing gives the same bytes.

    Args:
        name: for screen readers.
        width: of the figure, in its own units, which become pixels; `height` likewise.
        left: margin of the axes; the other sides likewise.
        shares: axes with values in per cent: "x", "y" or "xy".
        whole: ticks of the x axis are whole numbers.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")  # only measures text, which the browser draws
        matplotlib.rcdefaults()  # not the settings of the user's matplotlibrc
        matplotlib.rcParams.update(matplotlib.rc_params_from_file(_STYLE, use_default_template=False))
        matplotlib.rcParams["grid.color"] = _COLOUR["--line"]
        figure = Figure(figsize=(width / 72, height / 72), frameon=False)
        place = left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height
        drawn = Canvas(figure, figure.add_axes(place, frameon=False))
        for side, axis in (("x", drawn.axes.xaxis), ("y", drawn.axes.yaxis)):
            axis.set_major_locator(MaxNLocator(6, steps=_STEPS, integer=whole and side == "x"))
            axis.set_major_formatter(share_text if side in shares else number_text)
        yield drawn
        drawn.svg = _svg(drawn, name, width, height)


def _svg(drawn: Canvas, name: str, width: float, height: float) -> Markup:
    file = io.StringIO()
    drawn.figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    content = re.sub(r"\s*<[^>]*>\s*", _tag, file.getvalue().split("</defs>")[1].partition("<defs>")[0])
    # The text of a drawing grows with it, so drawings with text grow by at most a third
    style = f"max-width:{width * 4 / 3:.0f}px" if "<text" in content else ""
    title = f"<title>{escape(name)}</title><desc>{escape(_description(drawn.axes))}</desc>"
    return Markup(f'<svg viewBox="0 0 {width:g} {height:g}" style="{style}" role="img">{title}{content}</svg>')


def strokes(
    axes: "Axes", lines: Sequence[Points], colour: str, *, width: float = 2, alpha: float = 1, cap: Any = "round"
) -> None:
    """Draw lines, or bars with the cap "butt", as one path: many of them stay small. A single point is a dot."""
    gap = (math.nan, math.nan)
    points = [point for line in lines for point in (*line, *(line if len(line) == 1 else ()), gap)]
    drawn: Any = {"color": _COLOUR[colour], "linewidth": width, "alpha": alpha, "solid_capstyle": cap, "clip_on": False}
    axes.plot([x for x, _ in points], [y for _, y in points], **drawn)


def dots(axes: "Axes", points: Points, colour: str, size: float, *, alpha: float = 1) -> None:
    """Draw points as one path of lines without length, whose round ends are the dots."""
    strokes(axes, [[point] for point in points], colour, width=size, alpha=alpha)


def number_text(value: float, _: object = None) -> str:
    """Return a number in few characters: 1.5M, 20k, 0.01, 1e-5."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.6g}{letter}"
    if 0 < abs(value) < 1e-3:
        mantissa, exponent = f"{value:e}".split("e")
        return f"{float(mantissa):.4g}e{int(exponent)}"
    return f"{value:.6g}"


def share_text(value: float, _: object = None) -> str:
    """Return a share in per cent with as many digits as it needs."""
    return f"{100 * value:.6g} %"


def shortened(text: str, longest: int = 22) -> str:
    """Return a text in one line, cut if it is too long for a chart."""
    line = " ".join(shown(text).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _description(axes: "Axes") -> str:
    """Return the ends of both axes, for screen readers."""
    sides = []
    for axis, label in ((axes.xaxis, axes.get_xlabel() or "x axis"), (axes.yaxis, axes.get_title("left") or "y axis")):
        texts = [tick.get_text() for tick in axis.get_ticklabels() if tick.get_text()] if axes.axison else []
        sides += [f"{label}: {texts[0]} to {texts[-1]}"] if texts else []
    return "; ".join(sides)


def _tag(match: re.Match[str]) -> str:
    """Return a tag of matplotlib's SVG without fonts and groups, with CSS variables as colours and one decimal."""
    tag = " ".join(match[0].split())
    if tag.startswith(("<g ", "<g>", "</g>", "</svg>")):
        return ""
    tag = re.sub(
        r"""(font-size|font-family): [^;"]*(; )?| clip-path="[^"]*"| transform="rotate\(-?0 [^"]*"| L(?= )""", "", tag
    )
    tag = re.sub(r"#(\w{6})", lambda code: f"var({_VARIABLES[int(code[1], 16)]})", tag)
    return re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), tag)
