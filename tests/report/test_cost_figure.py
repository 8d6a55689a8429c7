from dataclasses import replace

import pytest
from matplotlib.text import Annotation

from fedmef.costs.tensors import TensorCost
from fedmef.report.cost_figure import BELOW, draw_costs
from fedmef.report.costs import EstimatedCosts
from fedmef.report.groups import (
    Group,
)
from tests.report.reading import axis_labels


def test_costs_are_stacked_to_the_peak_or_beyond_it(groups: list[Group]) -> None:
    figure = draw_costs(groups, 7)
    assert axis_labels(figure) == {"memory of a step on PyTorch, MB", ""}
    assert figure is not None
    widths = [[bar.get_width() for bar in bars] for bars in figure.axes[0].containers]
    for place, group in enumerate(groups):
        assert isinstance(group.memory, TensorCost)
        stacked = sum(part[place] for part in widths)
        assert stacked == pytest.approx(max(group.memory.peak, group.memory.kept) / 1e6)


def test_the_peak_and_the_estimate_have_their_own_numbers_next_to_them(groups: list[Group]) -> None:
    memory = TensorCost(1_000_000, 1_000_000, 2_000_000, peak=6_860_000)
    costs = EstimatedCosts(memory=14_520_000, exchange=0, step_flops=0)
    figure = draw_costs([replace(groups[1], memory=memory, estimated=costs)], 7)
    assert figure is not None
    assert {text.get_text(): text.xy for text in figure.axes[0].texts if isinstance(text, Annotation)} == {
        "6.9": (6.86, 0),
        "14.5": (14.52, BELOW),
    }


def test_without_a_measurement_there_is_no_figure_of_costs(groups: list[Group]) -> None:
    assert draw_costs([replace(groups[0], memory="gone")], 7) is None
