"""Final test accuracy against a device's whole process, measured: up and to the left is better."""

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from fedmef.costs.device_process import ProcessCost
from fedmef.report.appearance import (
    group_styles,
    legend_below,
    new_figure,
    percent_axis,
    plain_names,
    round_ticks,
    tidy,
)
from fedmef.report.groups import Group


def draw_memory(groups: Sequence[Group], width: float) -> Figure | None:
    """A point for each group whose memory could be measured, with one standard deviation over seeds."""
    figure = new_figure(width, max(0.45 * width, 3))
    axes = figure.add_subplot()
    shown: list[Group] = []
    points: list[Artist] = []
    for group, style in zip(groups, group_styles(groups), strict=True):
        if not isinstance(group.process, ProcessCost) or group.row.accuracy is None:
            continue
        accuracy, deviation = 100 * group.row.accuracy, 100 * (group.row.accuracy_std or 0)
        point = axes.errorbar(
            group.process.process / 1e6,
            accuracy,
            yerr=[[min(deviation, accuracy)], [min(deviation, 100 - accuracy)]] if deviation else None,
            clip_on=False,
            color=style.colour,
            marker=style.marker,
            markersize=8,
            fillstyle=style.fill,
            linestyle="",
            linewidth=1.2,
            capsize=3 + 2 * (len(shown) % 3),  # bars of equal memory lie on each other
        )
        points.append(point.lines[0])
        shown.append(group)
    if not shown:
        return None
    tidy(axes, "a device's whole process, measured, MB", "final test accuracy, %")
    axes.margins(x=0.08, y=0.12)
    percent_axis(axes)
    axes.set_xlim(left=0)
    round_ticks(axes.xaxis)
    legend_below(figure, points, plain_names(shown))
    return figure
