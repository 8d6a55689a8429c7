from pathlib import Path

import numpy as np

from fedmef.report.accuracy_figure import draw_accuracy
from fedmef.report.groups import (
    Group,
)
from tests.report.reading import axis_labels, groups_in
from tests.small import small, write_run


def test_its_axes_have_units(groups: list[Group]) -> None:
    assert axis_labels(draw_accuracy(groups, 7)) == {"finished rounds", "test accuracy, %"}


def test_only_evaluated_rounds_are_drawn_where_they_are_finished(groups: list[Group]) -> None:
    lines = draw_accuracy(groups, 7).axes[0].get_lines()
    assert [list(line.get_xdata()) for line in lines] == [[1, 3], [1, 2, 3]]  # type: ignore[arg-type]
    assert list(lines[0].get_ydata()) == [50, 75]  # type: ignore[arg-type]


def test_a_band_stays_between_0_and_100_percent(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((1.0, 0.7, 1.0)):
        write_run(tmp_path / str(seed), small(seed=seed), [accuracy, accuracy])
    figure = draw_accuracy(groups_in(tmp_path), 7)
    (band,) = figure.axes[0].collections
    assert np.asarray(band.get_paths()[0].vertices)[:, 1].max() == 100
