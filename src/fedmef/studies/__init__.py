"""Many runs and what they say: comparisons, and the paper's tables and figures by name."""

from importlib import import_module
from typing import TYPE_CHECKING

from fedmef.errors import unknown_name

if TYPE_CHECKING:
    from fedmef.studies.paper.base import Study

__all__ = ["STUDIES", "find_study"]

# The module of each in `fedmef.studies.paper`, which is imported when it is asked for.
STUDIES = {
    "table1": "table1",
    "main_figure": "main_figure",
    "adjustment_period": "adjustment_period",
    "convergence": "convergence",
    "heterogeneity": "heterogeneity",
    "batch_size_one": "batch_size_one",
    "ablation": "ablation",
    "local_epochs": "local_epochs",
    "selected_clients": "selected_clients",
    "lambda": "lambda_",
    "dense_comparison": "dense_comparison",
    "activation_histogram": "activation_histogram",
    "post_pruning_drop": "post_pruning_drop",
    "marked_magnitude": "marked_magnitude",
    "same_memory": "same_memory",
    "cifar100": "cifar100",
    "mobilenet": "mobilenet",
    "frontier": "frontier",
}


def find_study(name: str) -> "Study":
    """The study of that name."""
    if name not in STUDIES:
        raise unknown_name("study", name, STUDIES)
    study: Study = import_module(f"fedmef.studies.paper.{STUDIES[name]}").STUDY
    return study
