"""Appendix figure: FedMef's λ; ResNet34 at paper scale."""

from collections.abc import Sequence

from fedmef.studies.paper.base import Case, Number, Result, Row, Study, accuracy_cells
from fedmef.studies.paper.marked_magnitude import dropped_magnitude
from fedmef.studies.paper.scales import Scale, settings

# The paper's values cannot be read off its text: none, good ones, and an absurd one.
LAMBDAS = (0.0, 0.1, 0.5, 1.0, 10.0)


def cases(scale: Scale) -> list[Case]:
    """FedMef alone; at desk and bench scale with ResNet18, whose runs other studies have already."""
    return [
        Case(
            f"fedmef-lambda{value}",
            {"lambda": value},
            settings(
                scale, "fedmef", model=None if scale in ("desk", "bench") else "resnet34", extrusion=value
            ),
        )
        for value in LAMBDAS
    ]


def tabulate(results: Sequence[Result]) -> list[Row]:
    """Accuracy, and how well the marked weights were emptied."""
    return [
        {
            **result.case.labels,
            **accuracy_cells(result),
            "magnitude of pruned weights (ours)": Number.of(dropped_magnitude(result.runs), ".3g"),
        }
        for result in results
    ]


STUDY = Study(
    name="lambda",
    source="appendix, figure of λ",
    title="The weight of the extrusion penalty",
    shows="In the paper the accuracy first grows with λ and then collapses; it draws that without numbers.",
    cases=cases,
    remark="The values of λ are ours; the paper has ResNet34.",
    tabulate=tabulate,
)
