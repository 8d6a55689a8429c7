"""`fedmef cost` as a user meets it."""

import csv
import io
import json

import pytest
from rich.console import Console

from fedmef.cli.cost import cost_table
from fedmef.costs.device_process import ProcessCost
from fedmef.costs.estimate import Estimate
from fedmef.costs.exchange import MeasuredExchange
from fedmef.costs.table import CostRow
from fedmef.device.choice import missing_kernels
from fedmef.methods import METHODS
from fedmef.studies.many import DEFAULT_METHODS
from tests.cli.invoking import Invoke, check_mistake

QUICK = ["cost", "--width", "8", "--batch-size", "4"]


def test_every_method_has_a_row_at_every_sparsity_and_dense_ones_a_single_row(invoke: Invoke) -> None:
    code, printed, _ = invoke(*QUICK, "--no-measure", "--methods", "all", "--sparsities", "0.8,0.9", "--json")
    assert code == 0
    facts = json.loads(printed)
    assert (facts["image_shape"], facts["classes"], facts["batch_size"]) == ([1, 8, 8], 10, 4)
    rows = [(row["method"], row["sparsity"]) for row in facts["rows"]]
    dense = [("fedavg", 0.0), ("fedavg_sap", 0.0)]
    others = [(name, sparsity) for name in list(METHODS)[2:] for sparsity in (0.8, 0.9)]
    assert rows == dense + others
    assert all(
        row["estimated_memory_bitmap"] > 0 and row["measured_process"] is None for row in facts["rows"]
    )


def test_estimates_stand_next_to_measurements(invoke: Invoke) -> None:
    code, printed, progress = invoke(*QUICK, "--method", "fedmef", "--csv", "--tensors")
    assert code == 0
    assert all(line.startswith("fedmef: measuring row 1 of 1: ") for line in progress.splitlines())
    (row,) = csv.DictReader(io.StringIO(printed))
    assert (row["method"], row["sparsity"]) == ("fedmef", "0.9")
    dense = float(row["measured_torch_dense_process"])
    assert dense > float(row["measured_process"]) > float(row["measured_tensors_peak"])
    assert row["measured_backend"] == ("torch" if missing_kernels() else "native")
    assert float(row["measured_tensors_peak"]) > float(row["measured_tensors_parameters"]) > 0
    assert float(row["measured_seconds"]) > 0
    assert float(row["measured_exchange_up_adjusting"]) > float(row["measured_exchange_up"]) > 0
    assert float(row["estimated_exchange_adjusting_bitmap"]) > float(row["estimated_exchange_bitmap"]) > 0


def test_the_text_says_what_is_estimated_and_of_what(invoke: Invoke) -> None:
    arguments = [*QUICK, "--no-measure", "--image-shape", "3x16x16", "--classes", "4", "--samples", "7"]
    code, printed, _ = invoke(*arguments, "--model", "resnet18")
    assert code == 0
    assert "estim." in printed
    assert "meas." not in printed
    assert "images 3x16x16, 4 classes" in printed
    assert "over 7 images. MB" in printed
    assert [line.split()[0] for line in printed.splitlines()[3:8]] == list(DEFAULT_METHODS)


def test_images_that_nobody_gave_are_called_assumed(invoke: Invoke) -> None:
    arguments = [*QUICK, "--no-measure", "--method", "fedmef"]
    assert "over 500 images (assumed; --samples" in invoke(*arguments, "--image-shape", "3x16x16").printed
    assert "assumed" not in invoke(*arguments).printed


def test_one_of_each_is_not_called_many(invoke: Invoke) -> None:
    arguments = ["--image-shape", "3x16x16", "--classes", "1", "--samples", "1", "--local-epochs", "1"]
    printed = invoke(*QUICK, "--no-measure", "--method", "fedmef", *arguments).printed
    assert "1 class, batch 4, 1 epoch over 1 image." in printed


def test_the_notes_are_as_wide_as_columns_says(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    printed = invoke(*QUICK, "--no-measure", "--method", "fedmef").printed
    assert max(map(len, printed.splitlines())) <= 50


def test_the_help_does_not_show_the_argument_that_is_refused(invoke: Invoke) -> None:
    assert invoke("cost", "--help").printed.splitlines()[0] == "Usage: fedmef cost [OPTIONS]"


@pytest.mark.parametrize("columns", [80, 60])
def test_a_narrow_terminal_loses_no_digit(columns: int) -> None:
    estimated = Estimate(123_456_789, 1.23e15, 123_456_789, 123_456_789)
    exchange = MeasuredExchange(123_456_789, 0, None, None)
    process = ProcessCost("native", 123_456_789, 12.3456, exchange)
    console = Console(width=columns, file=io.StringIO(), record=True)
    console.print(
        cost_table([CostRow("fedmef_restart", 0.9875, estimated, estimated, process, process, exchange)])
    )
    printed = console.export_text()
    assert "…" not in printed
    assert printed.count("123.5") == 4
    assert all(cell in printed for cell in ("0.9875", "1.23e15", "12.346"))
    assert max(map(len, printed.splitlines())) <= columns


def test_data_that_is_not_here_need_not_be_fetched(invoke: Invoke) -> None:
    arguments = [*QUICK, "--no-measure", "--dataset", "tiny_imagenet", "--devices", "100", "--json"]
    code, printed, _ = invoke(*arguments)
    assert code == 0
    facts = json.loads(printed)
    assert (facts["image_shape"], facts["classes"], facts["samples"]) == ([3, 64, 64], 200, 1000)


def test_a_shape_has_ten_classes_unless_said(invoke: Invoke) -> None:
    arguments = [*QUICK, "--no-measure", "--method", "fedmef", "--image-shape", "3x32x32", "--json"]
    code, printed, _ = invoke(*arguments)
    assert (code, json.loads(printed)["classes"]) == (0, 10)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", "fedavg,fedmeff"], ["fedmeff", "did you mean 'fedmef'"]),
        (["--methods", "fedavg,"], ["--methods", "an item is missing"]),
        (["--methods", "fedavg,fedavg"], ["fedavg is there twice"]),
        (["--sparsities", "1.5"], ["sparsity", "1.5"]),
        (["--sparsities", "0.9", "--sparsity", "0.8"], ["--sparsity"]),
        (["--image-shape", "32x32", "--classes", "10"], ["--image-shape 32x32", "3x32x32"]),
        (["--image-shape", "3x0x32", "--classes", "10"], ["--image-shape 3x0x32"]),
        (["--image-shape", "axbxc", "--classes", "10"], ["--image-shape axbxc"]),
        (["--image-shape", "3x32x32", "--classes", "0"], ["--classes 0"]),
        (["--classes", "10"], ["--classes 10", "--image-shape"]),
        (["--samples", "0"], ["--samples 0"]),
        (
            ["--image-shape", "3x1x1", "--classes", "10"],
            ["small_cnn", "cannot take images of shape [3, 1, 1]"],
        ),
        (["--json", "--csv"], ["--json and --csv"]),
        (["--tensors", "--json"], ["--tensors", "--no-measure"]),
        (["--tensors", "--measure"], ["--tensors", "--json and --csv"]),
        (["--csv", "out.csv"], ["out.csv", "fedmef cost --csv > out.csv"]),
        (["--model", "resnet19"], ["resnet19", "resnet18"]),
        (["--batch-size", "0"], ["batch_size", "0"]),
        (["--dataset", "cifar11"], ["cifar11", "cifar10"]),
    ],
)
def test_a_mistake_is_named_with_its_remedy(invoke: Invoke, arguments: list[str], words: list[str]) -> None:
    ended = invoke("cost", "--no-measure", *arguments)
    for word in words:
        check_mistake(ended, word)
