from dataclasses import replace

from fedmef.costs.tensors import TensorCost
from fedmef.report.groups import (
    Group,
)
from fedmef.report.memory_figure import draw_memory
from tests.report.reading import axis_labels


def test_its_axes_have_units(groups: list[Group]) -> None:
    assert axis_labels(draw_memory(groups, 7)) == {"peak of a step, measured, MB", "final test accuracy, %"}


def test_accuracy_is_drawn_against_the_peak(groups: list[Group]) -> None:
    memory = TensorCost(1_000_000, 1_000_000, 2_000_000, peak=6_000_000)
    figure = draw_memory([replace(groups[1], memory=memory)], 7)
    assert figure is not None
    assert list(figure.axes[0].get_lines()[0].get_xdata()) == [6]  # type: ignore[arg-type]
