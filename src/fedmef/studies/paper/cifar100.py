"""Table 1's sparse methods at 90 % on CIFAR-100, which the paper does not have."""

from fedmef.studies.paper.base import Case, Study
from fedmef.studies.paper.scales import Scale, settings
from fedmef.studies.paper.table1 import SPARSE_METHODS


def cases(scale: Scale) -> list[Case]:
    """A smoke test keeps its small data."""
    data = {} if scale == "smoke" else {"dataset": "cifar100"}
    return [Case(method, {"method": method}, settings(scale, method, **data)) for method in SPARSE_METHODS]


STUDY = Study(
    name="cifar100",
    source="ours",
    title="Table 1 at 90 % on CIFAR-100",
    shows="A lead that was found on ten classes should hold with a hundred.",
    cases=cases,
    remark="Settings are those of Table 1.",
)
