"""A study of one setting: several methods at several of its values, one for each of the paper's."""

from collections.abc import Callable, Mapping
from typing import Any

from fedmef.studies.paper.base import Case
from fedmef.studies.paper.scales import Scale, settings

Accuracy = float | tuple[float, float]  # and its standard deviation, where the paper has one


def sweep(
    setting: str,
    heading: str,
    values: Mapping[Scale, tuple[int, ...]],
    paper: Mapping[str, tuple[Accuracy | None, ...]],
    **own: Any,
) -> Callable[[Scale], list[Case]]:
    """The cases of a study.

    Args:
        setting: what changes; `heading` is its column, whose first word begins the names of runs.
        values: its values at each scale; each stands for the paper's at the same place.
        paper: the paper's accuracies of each method at these values; None where it has none.
        own: settings of the whole study.
    """

    def cases(scale: Scale) -> list[Case]:
        return [
            Case(
                f"{method}-{heading.split(maxsplit=1)[0]}{value}",
                {"method": method, heading: value},
                settings(scale, method, **{**own, setting: value}),
                {f"{heading} (paper)": theirs, **_accuracy(paper[method][place])},
            )
            for place, (value, theirs) in enumerate(zip(values[scale], values["paper"], strict=True))
            for method in paper
        ]

    return cases


def _accuracy(published: Accuracy | None) -> dict[str, str | int | float | None]:
    if published is None:
        return {}
    mean, *deviation = published if isinstance(published, tuple) else (published,)
    return {"accuracy % (paper)": mean, **({"± (paper)": deviation[0]} if deviation else {})}
