from fedmef.report.groups import (
    Group,
)
from fedmef.report.traffic_figure import draw_traffic
from tests.report.reading import axis_labels


def test_its_axes_have_units(groups: list[Group]) -> None:
    assert axis_labels(draw_traffic(groups, 7)) == {"sent in a round, all its devices together, B", ""}


def test_a_bar_is_the_mean_over_rounds_and_seeds(groups: list[Group]) -> None:
    down, up = draw_traffic(groups, 7).axes[0].containers
    assert [bar.get_width() for bar in down] == [300, 300]
    assert [bar.get_width() for bar in up] == [100, 100]
