"""What `make demo` promises."""

from pathlib import Path

import pytest

import fedmef
from fedmef.experiment.files import read_experiment

DEMO = Path(__file__).parent.parent / "configs" / "demo.toml"


@pytest.mark.slow
def test_the_demo_trains_a_sparse_network_well(tmp_path: Path) -> None:
    experiment = read_experiment(DEMO)
    assert (experiment.method, experiment.dataset, experiment.devices) == ("fedmef", "digits", 20)
    assert experiment.sparsity == experiment.activation_sparsity == 0.9
    summary = fedmef.run(experiment, tmp_path / "run").summary
    assert summary.test_accuracy >= 0.93
    assert summary.adjustments >= 1
