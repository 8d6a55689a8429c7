"""The figures of a report: their order, their words, and their files."""

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedmef.report.accuracy_figure import draw_accuracy
from fedmef.report.adjustment_figure import draw_adjustments
from fedmef.report.cost_figure import draw_costs
from fedmef.report.density_figure import draw_densities
from fedmef.report.groups import Group
from fedmef.report.memory_figure import draw_memory
from fedmef.report.traffic_figure import draw_traffic

WIDTH = 7.4  # inches


@dataclass(frozen=True)
class Kind:
    """A figure that a report has, when its runs have something to show in it."""

    name: str
    title: str
    caption: str
    draw: Callable[[Sequence[Group], float], Figure | None]


KINDS = (
    Kind(
        "accuracy",
        "Accuracy over rounds",
        "Test accuracy of the global model after each evaluated round: mean over seeds, with a band of one "
        "sample standard deviation to each side where there are several.",
        draw_accuracy,
    ),
    Kind(
        "memory",
        "Accuracy against memory",
        "Final test accuracy against the memory that a device needs: its whole process, libraries included, "
        "measured at the run's batch size. Up and to the left is better; bars, where there are several "
        "seeds, are one standard deviation.",
        draw_memory,
    ),
    Kind(
        "traffic",
        "Bytes in a round",
        "Length of the messages that were sent in a round, all its devices together, mean over rounds and "
        "seeds.",
        draw_traffic,
    ),
    Kind(
        "adjustments",
        "Drop at each adjustment",
        "Test accuracy just before and just after each adjustment of the masks, mean over seeds; the thin "
        "line is the accuracy over rounds.",
        draw_adjustments,
    ),
    Kind(
        "densities",
        "Density of each layer",
        "Active weights of each layer that a method has made sparse, at the end, mean over seeds. A method "
        "without sparse layers has no column.",
        draw_densities,
    ),
    Kind(
        "costs",
        "Cost: estimated next to measured",
        "Where the memory of a training step on PyTorch goes, without libraries. The black line and its "
        "number are the measured peak of a step: beyond "
        "the first three parts, which a step keeps, it is working space, such as one layer's dense weight. "
        "Gradients come while kept activations go, so the line may lie within the bar. The diamond below, "
        "with its own number, is the paper's estimate.",
        draw_costs,
    ),
)
COSTS = KINDS[-1]


@dataclass(frozen=True)
class Drawing:
    """A figure in every form that a report needs."""

    kind: Kind
    svg: bytes
    png: bytes
    pdf: bytes


def draw_all(groups: Sequence[Group]) -> list[Drawing]:
    """Every kind of figure that these groups have something for."""
    drawings = []
    for kind in KINDS:
        figure = kind.draw(groups, WIDTH)
        if figure is not None:
            svg, png, pdf = (_rendered(figure, form) for form in ("svg", "png", "pdf"))
            drawings.append(Drawing(kind, svg, png, pdf))
    return drawings


def _rendered(figure: Figure, form: str) -> bytes:
    FigureCanvasAgg(figure)
    content = io.BytesIO()
    # No dates and no random identifiers: the same runs give the same files.
    undated: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    with matplotlib.rc_context({"svg.hashsalt": "fedmef"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in letters the font lacks
        figure.savefig(content, format=form, dpi=200, metadata=undated[form])
    return content.getvalue()
