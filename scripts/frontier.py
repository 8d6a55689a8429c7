"""Measure a device of every published run of the study `frontier`, and draw accuracy against what it needs.

    python scripts/frontier.py SCALE [--measure]

A measurement is kept next to its run, in results/; the figure is docs/images/frontier.png.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[1]))

from matplotlib.axes import Axes

from fedmef.report.appearance import METHOD_STYLES, legend_below, new_figure, round_ticks, tidy
from fedmef.studies.paper.frontier import DEVICE, DeviceCost
from fedmef.studies.paper.scales import SCALES, Scale, find_scale, settings
from scripts.results_page import ROOT, accuracies, frontier_runs

FIGURE = ROOT / "docs" / "images" / "frontier.png"


def measure(scale: Scale) -> None:
    """What a device of each case needs, into the directory of its first run."""
    for case, runs in frontier_runs(scale):
        cost = DeviceCost.measure(runs[0])
        (runs[0].path / DEVICE).write_text(f"{json.dumps(asdict(cost))}\n")
        print(case.name, cost, flush=True)


def draw(scale: Scale) -> None:
    """Accuracy against memory, and time; lines join a method's widths, smaller batches are open marks."""
    usual = settings(scale, "fedmef")["batch_size"]
    wide: dict[str, list[tuple[DeviceCost, float]]] = {}
    small: dict[str, list[tuple[DeviceCost, float]]] = {}
    for case, runs in frontier_runs(scale):
        points = wide if case.settings["batch_size"] == usual else small
        point = DeviceCost.of(runs[0]), fmean(accuracies(runs))
        points.setdefault(runs[0].experiment.method, []).append(point)
    figure = new_figure(8, 3.4)
    memory, time = figure.subplots(1, 2, sharey=True)
    for method in wide | small:
        for axes, cost_of in ((memory, megabytes), (time, milliseconds)):
            at = [(cost_of(cost), accuracy) for cost, accuracy in wide.get(method, [])]
            draw_line(axes, method, sorted(at))
            draw_marks(axes, method, [(cost_of(cost), accuracy) for cost, accuracy in small.get(method, [])])
    tidy(memory, "a device's process at its peak, MB", "test accuracy, %")
    tidy(time, "CPU time of a device, ms per image", "")
    round_ticks(memory.yaxis)
    legend_below(figure, *memory.get_legend_handles_labels())
    figure.savefig(FIGURE, dpi=150)


def megabytes(cost: DeviceCost) -> float:
    """Of the whole process."""
    return cost.process / 1e6


def milliseconds(cost: DeviceCost) -> float:
    """Of the CPU, for an image of a step."""
    return cost.milliseconds


def draw_line(axes: Axes, method: str, points: list[tuple[float, float]]) -> None:
    """A method's widths."""
    colour, marker, line = METHOD_STYLES[method]
    if points:
        axes.plot(*zip(*points, strict=True), color=colour, marker=marker, linestyle=line, label=method)


def draw_marks(axes: Axes, method: str, points: list[tuple[float, float]]) -> None:
    """Its smaller batches."""
    colour, marker, _ = METHOD_STYLES[method]
    for across, accuracy in points:
        axes.plot(across, accuracy, color=colour, marker=marker, fillstyle="none")


def main() -> None:
    """Measure if asked, then draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scale", choices=SCALES)
    parser.add_argument("--measure", action="store_true", help="measure again, a few seconds each")
    arguments = parser.parse_args()
    scale = find_scale(arguments.scale)
    if arguments.measure:
        measure(scale)
    draw(scale)


if __name__ == "__main__":
    main()
