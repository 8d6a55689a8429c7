from pathlib import Path

import pytest

from fedmef.report import figures
from fedmef.report.figures import draw_all
from fedmef.report.groups import (
    Group,
)
from tests.report.reading import groups_in
from tests.small import small, write_run


def test_the_same_runs_give_the_same_files(groups: list[Group], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "KINDS", figures.KINDS[-1:])
    assert draw_all(groups) == draw_all(groups)


def test_any_name_can_be_drawn(tmp_path: Path) -> None:
    names = ["$\\frac{", "_hidden", "層", "a\nb", "x" * 200, "<script>"]
    for number, name in enumerate(names):
        accuracies, adjustments, layers = [0.5, 0.5], {1: (0.5, 0.25)}, {name: (1, 4)}
        write_run(tmp_path / str(number), small(name), accuracies, adjustments, layers)
    drawings = draw_all(groups_in(tmp_path))
    assert [drawing.kind.name for drawing in drawings] == ["accuracy", "traffic", "adjustments", "densities"]
