"""What a report's tests look at: groups, pages and the words at a figure's axes."""

from pathlib import Path

from matplotlib.figure import Figure

from fedmef.report.groups import Group, group_runs
from fedmef.report.reading import read_runs
from fedmef.report.writing import write_report


def groups_in(folder: Path) -> list[Group]:
    return group_runs(read_runs([folder]).runs)


def page_of(folder: Path) -> str:
    return write_report(read_runs([folder]), folder / "report").read_text(encoding="utf-8")


def axis_labels(figure: Figure | None) -> set[str]:
    assert figure is not None
    return {text for axes in figure.axes for text in (axes.get_xlabel(), axes.get_ylabel())}
