"""Table 1: accuracy, and the cost of one device's adjustment round, at three sparsities."""

from collections.abc import Sequence

from fedmef.runs.directory import Run
from fedmef.studies.paper.base import Case, Number, Result, Row, Study, accuracy_cells
from fedmef.studies.paper.scales import Scale, settings
from fedmef.studies.paper.training_memory import memory_cells
from fedmef.studies.rows import mean

SPARSITIES, SPARSE_METHODS = (0.95, 0.9, 0.8), ("fl_pqsu", "feddst", "fedtiny", "fedmef")
# (sparsity, method): accuracy %, FLOPs and data exchange as ratios to FedAvg; FL-PQSU is in figures only
PAPER = {
    (0.0, "fedavg"): (81.2, 1.0, 1.0),
    (0.95, "feddst"): (72.8, 0.057, 0.083),
    (0.95, "fedtiny"): (71.8, 0.057, 0.086),
    (0.95, "fedmef"): (73.6, 0.061, 0.086),
    (0.9, "feddst"): (76.2, 0.113, 0.133),
    (0.9, "fedtiny"): (76.1, 0.113, 0.138),
    (0.9, "fedmef"): (78.1, 0.116, 0.138),
    (0.8, "feddst"): (79.7, 0.218, 0.232),
    (0.8, "fedtiny"): (80.3, 0.218, 0.243),
    (0.8, "fedmef"): (81.7, 0.221, 0.243),
}
# What 1.0 stands for, in one adjustment round of one device.
PAPER_FLOPS, PAPER_EXCHANGE_MEGABYTES = 8.33e12, 89.52


def cases(scale: Scale) -> list[Case]:
    """Every row of the table, and FL-PQSU's."""
    sparse = [_case(scale, method, sparsity) for sparsity in SPARSITIES for method in SPARSE_METHODS]
    return [_case(scale, "fedavg", 0.0), *sparse]


def _case(scale: Scale, method: str, sparsity: float) -> Case:
    accuracy, flops, exchange = PAPER.get((sparsity, method), (None, None, None))
    return Case(
        f"{method}-sparsity{sparsity}",
        {"method": method, "sparsity": sparsity},
        settings(scale, method, sparsity=sparsity),
        {
            "accuracy % (paper)": accuracy,
            "exchange x (paper, estimated)": exchange,
            "FLOPs x (paper, estimated)": flops,
        },
    )


def tabulate(results: Sequence[Result]) -> list[Row]:
    """Accuracy, bytes, memory and parameters, with the paper's estimates next to what was measured."""
    dense = [result.runs for result in results if result.case.labels["method"] == "fedavg"]
    return [_row(result, _exchange(dense[0]) if dense else None) for result in results]


def _row(result: Result, dense: float | None) -> Row:
    exchange = _exchange(result.runs)
    return {
        **result.case.labels,
        **accuracy_cells(result),
        "exchange bytes (ours, measured)": Number.of(exchange, "bytes"),
        "exchange x (ours, measured)": Number(exchange / dense, "z.3f") if exchange and dense else None,
        **memory_cells(result),
        "parameters x (ours, measured)": Number.of(_parameter_share(result.runs), "z.3f"),
        **result.case.paper,
    }


def _exchange(runs: Sequence[Run]) -> float | None:
    """Bytes up and down of one device, in the round that sent most: one that adjusts; mean over seeds."""
    return mean(
        [
            max(record.bytes_down + record.bytes_up for record in run.rounds)
            / run.experiment.devices_per_round
            for run in runs
        ]
    )


def _parameter_share(runs: Sequence[Run]) -> float | None:
    return mean([run.summary.parameters / run.summary.parameters_if_dense for run in runs])


STUDY = Study(
    name="table1",
    source="Table 1",
    title="Accuracy and training cost",
    shows="FedMef is the most accurate at every sparsity, and sends hardly more than the others.",
    cases=cases,
    tabulate=tabulate,
)
