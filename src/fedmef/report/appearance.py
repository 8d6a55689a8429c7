"""How figures look: colour-blind-safe colours and markers by method, line styles, text that stays text."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedmef.report.groups import Group

# Okabe and Ito 2008, without the yellow, which is too pale for a line on white.
BLACK, ORANGE, SKY_BLUE, GREEN = "#000000", "#e69f00", "#56b4e9", "#009e73"
BLUE, VERMILLION, PURPLE = "#0072b2", "#d55e00", "#cc79a7"
GREY = "#6b7280"

Line = str | tuple[int, tuple[int, ...]]
LINES: tuple[Line, ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (3, 1, 1, 1)))
SOLID, DASHED, DOTTED, DASH_DOT, DASH_DOT_DOT, LONG, SHORT = LINES

# Fixed, so that a method looks the same in every report. Dashes keep lines apart that lie on each other.
METHOD_STYLES: dict[str, tuple[str, str, Line]] = {
    "fedavg": (BLACK, "s", DASH_DOT_DOT),
    "fedavg_sap": (GREY, "d", LONG),  # thin: a whole diamond is too much like fedmef's plus
    "fl_pqsu": (PURPLE, "^", DOTTED),
    "feddst": (SKY_BLUE, "v", DASH_DOT),
    "fedtiny": (ORANGE, "o", DASHED),
    "fedmef": (BLUE, "P", SOLID),
    "fedmef_no_bae": (VERMILLION, "X", DASHED),
    "fedmef_no_sap": (GREEN, "<", DASH_DOT),
    "fedmef_restart": (GREY, ">", DOTTED),
    "prunefl": (VERMILLION, "p", SHORT),
    "zerofl": (GREEN, "h", LONG),
}
OTHER_STYLES: tuple[tuple[str, str, Line], ...] = (
    (GREEN, "d", SHORT),
    (VERMILLION, "*", LONG),
    (PURPLE, "d", DASHED),
    (GREY, "*", SHORT),
    (SKY_BLUE, "8", DASHED),
    (ORANGE, "H", LONG),
)

Fill = Literal["full", "none", "left", "top", "right"]
FILLS: tuple[Fill, ...] = ("full", "none", "left", "top", "right")

FONT_SIZE = 9


@dataclass(frozen=True)
class Style:
    """How a group is drawn."""

    colour: str
    marker: str
    line: Line
    fill: Fill


def group_styles(groups: Sequence[Group]) -> list[Style]:
    """A style for each group: the method decides its colour and marker, and its line if it has one row only.

    Where methods have several rows, line and fill tell their sparsities and variants apart.
    """
    others = sorted({group.row.method for group in groups} - METHOD_STYLES.keys())
    methods = METHOD_STYLES | {
        name: OTHER_STYLES[number % len(OTHER_STYLES)] for number, name in enumerate(others)
    }
    ranks = _ranks([(group.row.sparsity, group.row.variant) for group in groups])
    styles = []
    for group, rank in zip(groups, ranks, strict=True):
        colour, marker, own_line = methods[group.row.method]
        line = LINES[rank % len(LINES)] if any(ranks) else own_line
        styles.append(Style(colour, marker, line, FILLS[rank % len(FILLS)]))
    return styles


def _ranks(kinds: Sequence[tuple[float, str]]) -> list[int]:
    """The place of each sparsity and variant among those of sparse methods, or among those of dense ones."""
    sparse = list(dict.fromkeys(kind for kind in kinds if kind[0]))
    dense = list(dict.fromkeys(kind for kind in kinds if not kind[0]))
    return [(sparse if kind[0] else dense).index(kind) for kind in kinds]


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, that fits its parts without overlap."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def tidy(axes: Axes, horizontal: str, vertical: str) -> None:
    """Labels with their units, a quiet grid, no frame."""
    axes.set_xlabel(horizontal, fontsize=FONT_SIZE)
    axes.set_ylabel(vertical, fontsize=FONT_SIZE)
    axes.tick_params(labelsize=FONT_SIZE - 1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e5e7eb", linewidth=0.7)
    axes.set_axisbelow(True)


def round_ticks(axis: Axis, *, integer: bool = False, most: int = 7) -> None:
    """Ticks at 1, 2, 5, 10 and so on, never at 97.5."""
    axis.set_major_locator(MaxNLocator(nbins=most, steps=[1, 2, 5, 10], integer=integer))


def percent_axis(axes: Axes) -> None:
    """The vertical axis shows percents: it ends at 0 and at 100, and a marker there is drawn whole."""
    lowest, highest = axes.get_ylim()
    axes.set_ylim(max(lowest, 0), min(highest, 100))
    round_ticks(axes.yaxis)


def legend_below(figure: Figure, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """A legend outside the axes, in as many columns as fit; the figure grows by its height."""
    longest = max(map(len, labels), default=1)
    columns = min(max(int(figure.get_figwidth() / (0.075 * longest + 0.5)), 1), len(labels))
    figure.set_figheight(figure.get_figheight() + 0.18 * math.ceil(len(labels) / columns))
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        fontsize=FONT_SIZE - 1,
        frameon=False,
    )


def plain(text: str, limit: int = 34) -> str:
    """Text from a file as a label: short, on one line, never read as a formula.

    The end stays: it has a class's name after its package, a layer's number, and the sparsity.
    """
    printable = "".join(letter if letter.isprintable() else "?" for letter in text)
    short = printable if len(printable) <= limit else f"…{printable[1 - limit :]}"
    visible = f" {short}" if short.startswith("_") else short  # a legend leaves out what begins with _
    return visible.replace("$", r"\$")


def plain_names(groups: Iterable[Group]) -> list[str]:
    """The groups' names as labels."""
    return [plain(group.name) for group in groups]
