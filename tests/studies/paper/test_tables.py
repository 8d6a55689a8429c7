"""What studies read out of runs, on runs whose numbers can be checked in the head."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from fedmef.data import to_input
from fedmef.federation import api as federation
from fedmef.federation.preparation import open_dataset
from fedmef.nn import BatchNorm2d
from fedmef.studies.paper.activation_histogram import IMAGES, output_statistics
from fedmef.studies.paper.base import Case, Result
from fedmef.studies.paper.convergence import _accuracy_at, _largest_fall
from fedmef.studies.paper.table1 import _exchange
from fedmef.studies.paper.training_memory import KEPT, PEAK, memory_cells
from tests.report.finished_runs import experiment, write_run


def test_the_accuracy_at_a_share_is_that_of_the_first_evaluation_from_then_on(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", experiment(), [0.2, None, 0.6, 0.5])
    run.experiment = run.experiment.model_copy(update={"rounds": 4})
    assert _accuracy_at(run, 0.25) == pytest.approx(20)
    assert _accuracy_at(run, 0.5) == pytest.approx(60)  # round 2 of 4 was not evaluated
    assert _accuracy_at(run, 1.0) == pytest.approx(50)


def test_the_largest_fall_is_from_one_evaluation_to_the_next(tmp_path: Path) -> None:
    falling = write_run(tmp_path / "a", experiment(), [0.5, 0.4, None, 0.6, 0.35])
    rising = write_run(tmp_path / "b", experiment(), [0.1, 0.2])
    assert _largest_fall(falling) == pytest.approx(25)
    assert _largest_fall(rising) == 0


def test_the_exchange_is_one_devices_in_the_round_that_sent_most_mean_over_seeds(tmp_path: Path) -> None:
    even = write_run(tmp_path / "a", experiment(seed=0), [0.5, 0.5])  # 300 + 100 bytes of 2 devices
    uneven = write_run(tmp_path / "b", experiment(seed=1), [0.5, 0.5])
    first, second = uneven.metrics
    second["bytes_up"] = 500
    (uneven.path / "metrics.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    assert _exchange([even]) == 200
    assert _exchange([even, uneven]) == (200 + 400) / 2
    assert _exchange([]) is None


def test_memory_grows_with_the_batch_and_only_its_activations_do(tmp_path: Path) -> None:
    small, middle, large = [
        memory_cells(
            Result(Case("", {}, {}), [write_run(tmp_path / str(size), experiment(batch_size=size), [0.5])], 0)
        )[KEPT]
        or 0.0
        for size in (8, 16, 24)
    ]
    assert large - middle == pytest.approx(middle - small, rel=0.01)
    assert 2 * small > middle > small
    assert memory_cells(Result(Case("", {}, {}), [], 1)) == {KEPT: None, PEAK: None}


def test_a_convolutions_outputs_are_what_batchnorm_makes_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convolution, norm = nn.Conv2d(1, 1, 1, bias=False), BatchNorm2d(1, eps=0.0)
    nn.init.constant_(convolution.weight, 2.0)
    norm.running_mean, norm.running_var = torch.tensor([1.0]), torch.tensor([4.0])
    model = nn.Sequential(convolution, norm, nn.Conv2d(1, 1, 1, bias=False)).eval()
    nn.init.constant_(model[2].weight, 3.0)  # type: ignore[arg-type]
    monkeypatch.setattr(federation, "load", lambda path: model)
    run = write_run(tmp_path / "run", experiment(), [0.5])
    dataset = open_dataset(run.experiment)
    images = to_input(dataset.test.images[:IMAGES], *dataset.statistics())
    first, last = output_statistics(run).values()
    assert first == pytest.approx(((2 * images.mean().item() - 1) / 2, images.std().item()), rel=1e-4)
    assert last == pytest.approx((3 * first[0], 3 * first[1]), rel=1e-4)
