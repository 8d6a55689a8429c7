"""Bytes that were really sent in a round: down to the devices and up from them."""

from collections.abc import Sequence
from statistics import fmean

from matplotlib.figure import Figure

from fedmef.costs.units import byte_unit
from fedmef.report.appearance import (
    BLUE,
    FONT_SIZE,
    ORANGE,
    legend_below,
    new_figure,
    plain_names,
    round_ticks,
    tidy,
)
from fedmef.report.groups import Group

BAR = 0.38


def draw_traffic(groups: Sequence[Group], width: float) -> Figure:
    """Two bars for each group, mean over rounds and seeds, all devices of a round together."""
    figure = new_figure(width, 1.0 + 0.45 * len(groups))
    axes = figure.add_subplot()
    down = [fmean(run.summary.bytes_down / run.summary.rounds for run in group.runs) for group in groups]
    up = [fmean(run.summary.bytes_up / run.summary.rounds for run in group.runs) for group in groups]
    scale, unit = byte_unit(max(*down, *up))
    bars = []
    for values, offset, colour, hatch in ((down, -BAR / 2, BLUE, ""), (up, BAR / 2, ORANGE, "///")):
        drawn = axes.barh(
            [place + offset for place in range(len(groups))],
            [value / scale for value in values],
            height=BAR,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0,
        )
        axes.bar_label(drawn, fmt="%.3g", padding=3, fontsize=FONT_SIZE - 1)
        bars.append(drawn.patches[0])
    axes.set_yticks(range(len(groups)), plain_names(groups))
    axes.set_ylim(len(groups) - 0.45, -0.55)
    tidy(axes, f"sent in a round, all its devices together, {unit}", "")
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.12)
    round_ticks(axes.xaxis)
    legend_below(figure, bars, ["down, to the devices", "up, from the devices"])
    return figure
