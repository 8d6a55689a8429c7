"""Measure a device of every published run of the study `frontier`, and draw accuracy against what it needs.

    python scripts/frontier.py SCALE [--measure]

The measurements are kept in results/SCALE/frontier.json, the figure is docs/images/frontier.png.
"""

import argparse
import json
from collections import defaultdict
from statistics import fmean

from fedmef.costs.device_process import measure_process
from fedmef.device.batches import batch_sizes
from fedmef.report.appearance import METHOD_STYLES, legend_below, new_figure, round_ticks, tidy
from fedmef.runs.directory import Run
from fedmef.studies.paper.scales import SCALES, Scale, find_scale
from scripts.results_page import ROOT, accuracies, study_runs

FIGURE = ROOT / "docs" / "images" / "frontier.png"
IMAGES = 500  # of a device: 50,000 among 100


def measure(scale: Scale) -> None:
    """The most memory of a device's process, and the CPU seconds of its training in a round."""
    costs = {}
    for case, runs in study_runs("frontier", scale):
        experiment, summary = runs[0].experiment, runs[0].summary
        channels, height, width = summary.image_shape
        cost = measure_process(experiment, (channels, height, width), summary.classes)
        steps = len(batch_sizes(IMAGES, experiment.batch_size, experiment.left_over))
        seconds = cost.seconds * steps * experiment.local_epochs
        costs[case.name] = {"process": cost.process, "seconds": round(seconds, 4), "backend": cost.backend}
        print(case.name, costs[case.name], flush=True)
    (ROOT / "results" / scale / "frontier.json").write_text(json.dumps(costs, indent=1) + "\n")


def draw(scale: Scale) -> None:
    """Accuracy against memory, and against time; a method's widths are joined."""
    costs = json.loads((ROOT / "results" / scale / "frontier.json").read_text())
    usual = max(case.settings["batch_size"] for case, _ in study_runs("frontier", scale))
    wide: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    small: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for case, runs in study_runs("frontier", scale):
        cost = costs[case.name]
        point = cost["process"] / 1e6, cost["seconds"], mean_accuracy(runs)
        (wide if case.settings["batch_size"] == usual else small)[runs[0].experiment.method].append(point)
    figure = new_figure(8, 3.4)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, column in ((left, 0), (right, 1)):
        for method, points in wide.items():
            colour, marker, line = METHOD_STYLES[method]
            chosen = sorted((point[column], point[2]) for point in points)
            axes.plot(*zip(*chosen, strict=True), color=colour, marker=marker, linestyle=line, label=method)
        for method, points in small.items():
            colour, marker, _ = METHOD_STYLES[method]
            for point in points:
                axes.plot(point[column], point[2], color=colour, marker=marker, fillstyle="none")
        axes.set_xscale("log")
    tidy(left, "a device's process at its peak, MB", "test accuracy, %")
    tidy(right, "CPU seconds of a device in a round", "")
    round_ticks(left.yaxis)
    legend_below(figure, *left.get_legend_handles_labels())
    figure.savefig(FIGURE, dpi=150)


def mean_accuracy(runs: list[Run]) -> float:
    """Over the seeds, in %."""
    return fmean(accuracies(runs))


def main() -> None:
    """Measure if asked, then draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scale", choices=SCALES)
    parser.add_argument("--measure", action="store_true", help="measure again, some seconds for each")
    arguments = parser.parse_args()
    scale = find_scale(arguments.scale)
    if arguments.measure:
        measure(scale)
    draw(scale)


if __name__ == "__main__":
    main()
