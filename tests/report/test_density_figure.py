from pathlib import Path

from fedmef.report.density_figure import draw_densities
from fedmef.report.groups import (
    Group,
)
from tests.report.reading import groups_in
from tests.small import small, write_run


def test_dense_methods_have_nothing_to_show(groups: list[Group]) -> None:
    assert draw_densities(groups[:1], 7) is None


def test_a_layer_that_a_method_leaves_dense_shows_100(tmp_path: Path) -> None:
    write_run(tmp_path / "a", small("fedtiny"), [0.5], layers={"second": (1, 4)})
    write_run(tmp_path / "b", small("fedmef"), [0.5], layers={"first": (4, 4), "second": (1, 4)})
    figure = draw_densities(groups_in(tmp_path), 7)
    assert figure is not None
    assert [text.get_text() for text in figure.axes[0].texts] == ["100", "100", "25", "25"]
