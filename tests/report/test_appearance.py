from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from fedmef.costs.tensors import TensorCost
from fedmef.methods import METHODS
from fedmef.report import groups as groups_module
from fedmef.report.accuracy_figure import draw_accuracy
from fedmef.report.adjustment_figure import draw_adjustments
from fedmef.report.appearance import METHOD_STYLES, OTHER_STYLES, group_styles, plain
from fedmef.report.groups import (
    Group,
)
from fedmef.report.memory_figure import draw_memory
from fedmef.studies.many import DEFAULT_METHODS
from tests.costs.formula import process
from tests.report.reading import groups_in
from tests.small import small, write_run

Draw = Callable[[Sequence[Group], float], Figure | None]


def test_a_method_looks_the_same_whoever_is_next_to_it(groups: list[Group]) -> None:
    assert group_styles(groups)[1] == group_styles(groups[1:])[0]
    assert group_styles(groups)[0] != group_styles(groups)[1]


def test_every_method_of_ours_has_a_look_of_its_own() -> None:
    assert METHOD_STYLES.keys() == METHODS.keys()
    assert len({style[:2] for style in METHOD_STYLES.values()}) == len(METHODS)
    assert len({(colour, line) for colour, _, line in METHOD_STYLES.values()}) == len(METHODS)
    assert {style[:2] for style in METHOD_STYLES.values()}.isdisjoint(style[:2] for style in OTHER_STYLES)


def test_what_fedmef_is_compared_with_has_no_mark_like_its_plus() -> None:
    assert METHOD_STYLES["fedmef"][1] == "P"
    assert "D" not in {marker for _, marker, _ in METHOD_STYLES.values()}


@pytest.mark.parametrize("draw", [draw_accuracy, draw_adjustments, draw_memory])
def test_accuracy_ends_at_100_percent_with_round_ticks(
    draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups_module, "measure_tensors", lambda *_: TensorCost(1, 1, 1, 1))
    monkeypatch.setattr(groups_module, "measure_process", lambda *_: process(6e6))
    monkeypatch.setattr(groups_module, "measure_torch_dense", lambda *_: process(6e7))
    for seed, last in enumerate((1.0, 0.9625)):
        write_run(tmp_path / str(seed), small("fedmef", seed=seed), [0.975, last], {1: (1.0, 0.9625)})
    figure = draw(groups_in(tmp_path), 7)
    assert figure is not None
    axes = figure.axes[0]
    lowest, highest = axes.get_ylim()
    assert 0 <= lowest < highest <= 100
    shown = [tick for tick in axes.get_yticks() if lowest <= tick <= highest]
    assert len(shown) > 1
    assert {f"{after - before:.0e}"[0] for before, after in pairwise(shown)} <= {"1", "2", "5"}


def test_lines_that_lie_on_each_other_have_different_dashes(tmp_path: Path) -> None:
    for method in DEFAULT_METHODS:
        write_run(tmp_path / method, small(method), [0.5, 0.5])
    lines = [style.line for style in group_styles(groups_in(tmp_path))]
    assert len(set(lines)) == len(DEFAULT_METHODS)


def test_variants_of_a_method_look_different_and_alike_over_methods(tmp_path: Path) -> None:
    for method in ("fedavg", "fedtiny", "fedmef"):
        for alpha in (0.1, 0.5):
            write_run(tmp_path / f"{method}{alpha}", small(method, alpha=alpha), [0.5])
    styles = group_styles(groups_in(tmp_path))
    assert len(set(styles)) == 6
    assert [style.line for style in styles] == ["-", "--"] * 3


def test_a_name_from_a_file_is_a_short_plain_label() -> None:
    assert plain("features.0") == "features.0"
    assert plain("a$b$") == r"a\$b\$"
    assert plain("abcdef", limit=4) == "…def"
    assert plain("_hidden") == " _hidden"
