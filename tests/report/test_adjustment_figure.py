from fedmef.report.adjustment_figure import draw_adjustments
from fedmef.report.groups import (
    Group,
)
from tests.report.reading import axis_labels


def test_its_axes_have_units(groups: list[Group]) -> None:
    assert axis_labels(draw_adjustments(groups, 7)) == {"finished rounds", "test accuracy, %"}


def test_an_adjustment_is_drawn_where_its_round_is_finished(groups: list[Group]) -> None:
    figure = draw_adjustments(groups, 7)
    assert figure is not None
    course, drop, *_ = figure.axes[0].get_lines()
    assert list(course.get_xdata()) == [1, 2, 3]  # type: ignore[arg-type]
    assert list(drop.get_xdata()) == [2, 2]  # type: ignore[arg-type]


def test_only_methods_that_adjust_have_a_panel(groups: list[Group]) -> None:
    figure = draw_adjustments(groups, 7)
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["fedmef 0.9\nmean drop 25.00 points"]


def test_dense_methods_have_nothing_to_show(groups: list[Group]) -> None:
    assert draw_adjustments(groups[:1], 7) is None
