"""The drop at each adjustment of the masks: test accuracy just before, and just after."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedmef.report.appearance import (
    FONT_SIZE,
    GREY,
    Style,
    group_styles,
    legend_below,
    new_figure,
    percent_axis,
    plain,
    round_ticks,
    tidy,
)
from fedmef.report.groups import (
    Group,
    accuracy_after_adjustments,
    accuracy_before_adjustments,
    accuracy_over_rounds,
)
from fedmef.report.numbers import signless_zero

PANEL_WIDTH = 2.1


def draw_adjustments(groups: Sequence[Group], width: float) -> Figure | None:
    """A panel for each group that adjusts, means over seeds; None when none of them does."""
    adjusting = [
        (group, style)
        for group, style in zip(groups, group_styles(groups), strict=True)
        if accuracy_before_adjustments(group)
    ]
    if not adjusting:
        return None
    columns = min(max(int(width / PANEL_WIDTH), 1), len(adjusting))
    rows = math.ceil(len(adjusting) / columns)
    figure = new_figure(width, 0.4 + 2.2 * rows)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for panel in panels.flat:
        panel.set_visible(False)
    for place, (group, style) in enumerate(adjusting):
        panel = panels.flat[place]
        panel.set_visible(True)
        _draw_group(panel, group, style)
        lowest, leftmost = place + columns >= len(adjusting), place % columns == 0
        tidy(panel, "finished rounds" if lowest else "", "test accuracy, %" if leftmost else "")
        panel.tick_params(labelbottom=lowest, labelleft=leftmost)
        round_ticks(panel.xaxis, integer=True, most=5)
        name = plain(group.name).replace(", ", ",\n", 1)  # a panel is narrow
        panel.set_title(f"{name}\n{_mean_drop(group)}", fontsize=FONT_SIZE)
    percent_axis(panels.flat[0])  # which all share
    markers = [
        Line2D([], [], linestyle="", marker="o", color=GREY, markerfacecolor="white"),
        Line2D([], [], linestyle="", marker="o", color=GREY),
    ]
    legend_below(figure, markers, ["before the adjustment", "after it"])
    return figure


def _draw_group(panel: Axes, group: Group, style: Style) -> None:
    course = accuracy_over_rounds(group)
    panel.plot([at.round for at in course], [100 * at.mean for at in course], color="#c7cbd1", linewidth=1)
    pairs = zip(accuracy_before_adjustments(group), accuracy_after_adjustments(group), strict=True)
    for before, after in pairs:
        heights = [100 * before.mean, 100 * after.mean]
        panel.plot([before.round] * 2, heights, color=style.colour, linewidth=1.8)
        panel.plot(
            before.round,
            heights[0],
            "o",
            color=style.colour,
            markerfacecolor="white",
            markersize=6,
            clip_on=False,
        )
        panel.plot(after.round, heights[1], "o", color=style.colour, markersize=6, clip_on=False)


def _mean_drop(group: Group) -> str:
    drop = group.row.adjustment_drop
    return "" if drop is None else f"mean drop {signless_zero(100 * drop)} points"
