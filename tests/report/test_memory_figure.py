from dataclasses import replace

from fedmef.report.groups import (
    Group,
)
from fedmef.report.memory_figure import draw_memory
from tests.costs.formula import process
from tests.report.reading import axis_labels


def test_its_axes_have_units(groups: list[Group]) -> None:
    assert axis_labels(draw_memory(groups, 7)) == {
        "a device's whole process, measured, MB",
        "final test accuracy, %",
    }


def test_accuracy_is_drawn_against_the_whole_process(groups: list[Group]) -> None:
    figure = draw_memory([replace(groups[1], process=process(6e6))], 7)
    assert figure is not None
    assert list(figure.axes[0].get_lines()[0].get_xdata()) == [6]  # type: ignore[arg-type]
