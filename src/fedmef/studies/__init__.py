"""The studies by name: one file for each table and figure of the paper, and three of ours."""

from collections.abc import Mapping

from fedmef.errors import unknown_name
from fedmef.studies.paper import (
    ablation,
    activation_histogram,
    adjustment_period,
    batch_size_one,
    convergence,
    dense_comparison,
    heterogeneity,
    lambda_,
    local_epochs,
    main_figure,
    marked_magnitude,
    post_pruning_drop,
    same_memory,
    selected_clients,
    table1,
)
from fedmef.studies.paper.base import Study
from fedmef.studies.paper.scales import SCALES, Scale

__all__ = ["SCALES", "STUDIES", "Scale", "Study", "find_scale", "find_study"]

STUDIES: Mapping[str, Study] = {
    "table1": table1.STUDY,
    "main_figure": main_figure.STUDY,
    "adjustment_period": adjustment_period.STUDY,
    "convergence": convergence.STUDY,
    "heterogeneity": heterogeneity.STUDY,
    "batch_size_one": batch_size_one.STUDY,
    "ablation": ablation.STUDY,
    "local_epochs": local_epochs.STUDY,
    "selected_clients": selected_clients.STUDY,
    "lambda": lambda_.STUDY,
    "dense_comparison": dense_comparison.STUDY,
    "activation_histogram": activation_histogram.STUDY,
    "post_pruning_drop": post_pruning_drop.STUDY,
    "marked_magnitude": marked_magnitude.STUDY,
    "same_memory": same_memory.STUDY,
}


def find_study(name: str) -> Study:
    """The study of that name."""
    if name not in STUDIES:
        raise unknown_name("study", name, STUDIES)
    return STUDIES[name]


def find_scale(name: str) -> Scale:
    """The scale of that name."""
    for scale in SCALES:
        if scale == name:
            return scale
    raise unknown_name("scale", name, SCALES)
