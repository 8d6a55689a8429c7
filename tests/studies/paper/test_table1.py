from pathlib import Path

import pytest

from fedmef.runs.directory import Run
from fedmef.studies.paper.base import Case, Result
from fedmef.studies.paper.table1 import tabulate
from tests.runs.written import a_round
from tests.small import small, write_run

BYTES, RATIO = "exchange bytes (ours, measured)", "exchange x (ours, measured)"


def results(**runs: list[Run]) -> list[Result]:
    return [Result(Case(method, {"method": method}, {}), own, 0) for method, own in runs.items()]


def test_the_exchange_is_one_devices_in_the_round_that_sent_most_mean_over_seeds(tmp_path: Path) -> None:
    even = write_run(tmp_path / "a", small(seed=0), [0.5, 0.5])  # 300 + 100 bytes of 2 devices
    uneven = write_run(tmp_path / "b", small(seed=1), [0.5, 0.5])
    lines = [a_round(0), a_round(1, bytes_up=500)]
    metrics = "".join(f"{record.model_dump_json()}\n" for record in lines)
    (uneven.path / "metrics.jsonl").write_text(metrics)
    dense, both, none = tabulate(results(fedavg=[even], fedmef=[even, uneven], fedtiny=[]))
    assert (dense[BYTES], dense[RATIO]) == (200, 1)
    assert (both[BYTES], both[RATIO]) == ((200 + 400) / 2, 1.5)
    assert (none[BYTES], none[RATIO]) == (None, None)


def test_the_parameters_are_a_share_of_the_dense_networks(tmp_path: Path) -> None:
    (row,) = tabulate(results(fedmef=[write_run(tmp_path / "a", small(), [0.5])]))
    assert row["parameters x (ours, measured)"] == pytest.approx(0.1)
    assert row[RATIO] is None  # there is no dense run to compare with
