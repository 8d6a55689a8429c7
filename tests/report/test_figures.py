from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from fedmef.costs.memory import DeviceMemory
from fedmef.methods import METHODS
from fedmef.report import figures
from fedmef.report.accuracy_figure import draw_accuracy
from fedmef.report.adjustment_figure import draw_adjustments
from fedmef.report.appearance import METHOD_STYLES, OTHER_STYLES, group_styles, plain
from fedmef.report.cost_figure import BELOW, draw_costs
from fedmef.report.costs import EstimatedCosts
from fedmef.report.density_figure import draw_densities
from fedmef.report.figures import draw_all
from fedmef.report.groups import Group, group_runs
from fedmef.report.memory_figure import draw_memory
from fedmef.report.reading import read_runs
from fedmef.report.traffic_figure import draw_traffic
from fedmef.studies.many import DEFAULT_METHODS
from tests.report.finished_runs import experiment, write_run


@pytest.fixture
def groups(tmp_path: Path) -> list[Group]:
    write_run(tmp_path / "a", experiment("fedavg"), [0.5, None, 0.75])
    layers = {"conv": (1, 4)}
    write_run(tmp_path / "b", experiment("fedmef"), [0.25, 0.5, 0.5], {1: (0.5, 0.25)}, layers)
    return group_runs(read_runs([tmp_path]).runs)


def labels(figure: Figure | None) -> set[str]:
    assert figure is not None
    return {text for axes in figure.axes for text in (axes.get_xlabel(), axes.get_ylabel())}


def test_axes_have_units(groups: list[Group]) -> None:
    assert labels(draw_accuracy(groups, 7)) == {"finished rounds", "test accuracy, %"}
    assert labels(draw_memory(groups, 7)) == {"peak of a step, measured, MB", "final test accuracy, %"}
    assert labels(draw_traffic(groups, 7)) == {"sent in a round, B", ""}
    assert labels(draw_adjustments(groups, 7)) == {"finished rounds", "test accuracy, %"}


def test_only_evaluated_rounds_are_drawn_where_they_are_finished(groups: list[Group]) -> None:
    lines = draw_accuracy(groups, 7).axes[0].get_lines()
    assert [list(line.get_xdata()) for line in lines] == [[1, 3], [1, 2, 3]]  # type: ignore[arg-type]
    assert list(lines[0].get_ydata()) == [50, 75]  # type: ignore[arg-type]


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


def test_dense_methods_have_nothing_to_show_of_adjustments_and_layers(groups: list[Group]) -> None:
    assert draw_adjustments(groups[:1], 7) is None
    assert draw_densities(groups[:1], 7) is None


def test_a_method_looks_the_same_whoever_is_beside_it(groups: list[Group]) -> None:
    assert group_styles(groups)[1] == group_styles(groups[1:])[0]
    assert group_styles(groups)[0] != group_styles(groups)[1]


def test_every_method_of_ours_has_a_look_of_its_own() -> None:
    assert METHOD_STYLES.keys() == METHODS.keys()
    assert len({style[:2] for style in METHOD_STYLES.values()}) == len(METHODS)
    assert len({(colour, line) for colour, _, line in METHOD_STYLES.values()}) == len(METHODS)
    assert {style[:2] for style in METHOD_STYLES.values()}.isdisjoint(style[:2] for style in OTHER_STYLES)


def test_lines_that_lie_on_each_other_have_different_dashes(tmp_path: Path) -> None:
    for method in DEFAULT_METHODS:
        write_run(tmp_path / method, experiment(method), [0.5, 0.5])
    lines = [style.line for style in group_styles(group_runs(read_runs([tmp_path]).runs))]
    assert len(set(lines)) == len(DEFAULT_METHODS)


def test_variants_of_a_method_look_different_and_alike_over_methods(tmp_path: Path) -> None:
    for method in ("fedavg", "fedtiny", "fedmef"):
        for alpha in (0.1, 0.5):
            write_run(tmp_path / f"{method}{alpha}", experiment(method, alpha=alpha), [0.5])
    styles = group_styles(group_runs(read_runs([tmp_path]).runs))
    assert len(set(styles)) == 6
    assert [style.line for style in styles] == ["-", "--"] * 3


def test_a_band_stays_between_0_and_100_percent(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((1.0, 0.7, 1.0)):
        write_run(tmp_path / str(seed), experiment(seed=seed), [accuracy, accuracy])
    figure = draw_accuracy(group_runs(read_runs([tmp_path]).runs), 7)
    (band,) = figure.axes[0].collections
    assert np.asarray(band.get_paths()[0].vertices)[:, 1].max() == 100


def test_a_layer_that_a_method_leaves_dense_shows_100(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment("fedtiny"), [0.5], layers={"second": (1, 4)})
    write_run(tmp_path / "b", experiment("fedmef"), [0.5], layers={"first": (4, 4), "second": (1, 4)})
    figure = draw_densities(group_runs(read_runs([tmp_path]).runs), 7)
    assert figure is not None
    assert [text.get_text() for text in figure.axes[0].texts] == ["100", "100", "25", "25"]


def test_the_same_runs_give_the_same_files(groups: list[Group], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "KINDS", figures.KINDS[-1:])
    assert draw_all(groups) == draw_all(groups)


def test_any_name_can_be_drawn(tmp_path: Path) -> None:
    names = ["$\\frac{", "_hidden", "層", "a\nb", "x" * 200, "<script>"]
    for number, name in enumerate(names):
        accuracies, adjustments, layers = [0.5, 0.5], {1: (0.5, 0.25)}, {name: (1, 4)}
        write_run(tmp_path / str(number), experiment(name), accuracies, adjustments, layers)
    drawings = draw_all(group_runs(read_runs([tmp_path]).runs))
    assert [drawing.kind.name for drawing in drawings] == ["accuracy", "traffic", "adjustments", "densities"]


def test_a_name_from_a_file_is_a_short_plain_label() -> None:
    assert plain("features.0") == "features.0"
    assert plain("a$b$") == r"a\$b\$"
    assert plain("abcdef", limit=4) == "…def"
    assert plain("_hidden") == " _hidden"


def test_costs_are_stacked_to_the_peak_or_beyond_it(groups: list[Group]) -> None:
    figure = draw_costs(groups, 7)
    assert labels(figure) == {"memory of a device, MB", ""}
    assert figure is not None
    widths = [[bar.get_width() for bar in bars] for bars in figure.axes[0].containers]
    for place, group in enumerate(groups):
        assert isinstance(group.memory, DeviceMemory)
        stacked = sum(part[place] for part in widths)
        assert stacked == pytest.approx(max(group.memory.peak, group.memory.kept) / 1e6)


def test_the_peak_and_the_estimate_have_their_own_numbers_beside_them(groups: list[Group]) -> None:
    memory = DeviceMemory(1_000_000, 1_000_000, 2_000_000, peak=6_860_000)
    costs = EstimatedCosts(memory=14_520_000, exchange=0, step_flops=0)
    figure = draw_costs([replace(groups[1], memory=memory, estimated=costs)], 7)
    assert figure is not None
    assert {text.get_text(): text.xy for text in figure.axes[0].texts if isinstance(text, Annotation)} == {
        "6.9": (6.86, 0),
        "14.5": (14.52, BELOW),
    }


def test_accuracy_is_drawn_against_the_peak(groups: list[Group]) -> None:
    memory = DeviceMemory(1_000_000, 1_000_000, 2_000_000, peak=6_000_000)
    figure = draw_memory([replace(groups[1], memory=memory)], 7)
    assert figure is not None
    assert list(figure.axes[0].get_lines()[0].get_xdata()) == [6]  # type: ignore[arg-type]


def test_without_a_measurement_there_is_no_figure_of_costs(groups: list[Group]) -> None:
    assert draw_costs([replace(groups[0], memory="gone")], 7) is None
