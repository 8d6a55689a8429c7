"""Test accuracy over rounds: a line for the mean over seeds, a band of one standard deviation each way."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from fedmef.report.appearance import (
    group_styles,
    legend_below,
    new_figure,
    percent_axis,
    plain_names,
    round_ticks,
    tidy,
)
from fedmef.report.groups import Group, accuracy_over_rounds


def draw_accuracy(groups: Sequence[Group], width: float) -> Figure:
    """Only evaluated rounds."""
    figure = new_figure(width, max(0.5 * width, 3))
    axes = figure.add_subplot()
    lines = []
    for group, style in zip(groups, group_styles(groups), strict=True):
        spreads = accuracy_over_rounds(group)
        rounds = [spread.round for spread in spreads]
        means = [100 * spread.mean for spread in spreads]
        deviations = [100 * (spread.deviation or 0) for spread in spreads]
        if any(deviations):
            low = [max(mean - deviation, 0) for mean, deviation in zip(means, deviations, strict=True)]
            high = [min(mean + deviation, 100) for mean, deviation in zip(means, deviations, strict=True)]
            axes.fill_between(rounds, low, high, color=style.colour, alpha=0.15, linewidth=0)
        lines += axes.plot(
            rounds,
            means,
            color=style.colour,
            linestyle=style.line,
            marker=style.marker,
            fillstyle=style.fill,
            markersize=5,
            markevery=max(len(rounds) // 12, 1),
            linewidth=1.6,
            clip_on=False,
        )
    tidy(axes, "finished rounds", "test accuracy, %")
    round_ticks(axes.xaxis, integer=True)
    percent_axis(axes)
    legend_below(figure, lines, plain_names(groups))
    return figure
