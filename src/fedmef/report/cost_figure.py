"""Where the tensors of a step on PyTorch go, part by part, with the paper's estimate below them."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedmef.costs.tensors import TensorCost
from fedmef.costs.units import in_unit
from fedmef.report.appearance import (
    BLACK,
    BLUE,
    FONT_SIZE,
    GREEN,
    ORANGE,
    VERMILLION,
    legend_below,
    new_figure,
    plain,
    round_ticks,
    tidy,
)
from fedmef.report.groups import Group

PARTS = (
    ("parameters and masks", BLUE, ""),
    ("gradients", ORANGE, "///"),
    ("kept activations", GREEN, "..."),
    ("working space", "#d1d5db", ""),
)
BAR = 0.5
BELOW = 0.42  # the estimate's own lane: its number and the peak's never meet
ESTIMATE: Mapping[str, Any] = {
    "marker": "D",
    "markersize": 7,
    "markerfacecolor": "white",
    "markeredgecolor": VERMILLION,
    "markeredgewidth": 1.8,
    "linestyle": "",
}


def draw_costs(groups: Sequence[Group], width: float) -> Figure | None:
    """A stacked bar for each group that could be measured, its peak, and its estimate in the lane below."""
    shown = [(group, group.memory) for group in groups if isinstance(group.memory, TensorCost)]
    if not shown:
        return None
    figure = new_figure(width, 1.0 + 0.5 * len(shown))
    axes = figure.add_subplot()
    places = range(len(shown))
    starts = [0.0] * len(shown)
    handles: list[Artist] = []
    for number, (_, colour, hatch) in enumerate(PARTS):
        sizes = [_parts(memory)[number] / 1e6 for _, memory in shown]
        bars = axes.barh(
            places, sizes, left=starts, height=BAR, color=colour, hatch=hatch, edgecolor="white", linewidth=0
        )
        starts = [start + size for start, size in zip(starts, sizes, strict=True)]
        handles.append(bars.patches[0])
    for place, (group, memory) in enumerate(shown):
        peak = memory.peak / 1e6
        axes.plot([peak, peak], [place - BAR / 2 - 0.06, place + BAR / 2 + 0.06], color=BLACK, linewidth=1.8)
        if group.estimated is not None:
            estimated = group.estimated.memory / 1e6
            axes.plot(estimated, place + BELOW, **ESTIMATE)
            _write(axes, group.estimated.memory, estimated, place + BELOW)
        _write(axes, memory.peak, max(starts[place], peak), place)
    handles += [Line2D([], [], color=BLACK, linewidth=1.8), Line2D([], [], **ESTIMATE)]
    axes.set_yticks(places, [plain(group.name) for group, _ in shown])
    axes.set_ylim(len(shown) - 0.3, -0.45)
    tidy(axes, "memory of a step on PyTorch, MB", "")
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    round_ticks(axes.xaxis)
    labels = [name for name, _, _ in PARTS]
    legend_below(figure, handles, [*labels, "peak of a step, measured", "the paper's formula, estimated"])
    return figure


def _write(axes: Axes, count: float, right_of: float, place: float) -> None:
    axes.annotate(
        in_unit(count, 1e6),
        (right_of, place),
        xytext=(7, 0),
        textcoords="offset points",
        va="center",
        fontsize=FONT_SIZE - 1,
    )


def _parts(memory: TensorCost) -> tuple[int, int, int, int]:
    # Gradients come while caches go: the three need not be alive at once, and then nothing is left over.
    working_space = max(memory.peak - memory.kept, 0)
    return memory.parameters, memory.gradients, memory.cache, working_space
