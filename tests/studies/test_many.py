import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from fedmef.cli.tables import comparison_table, table_notes
from fedmef.device.training import LocalTraining
from fedmef.errors import FedmefError, Interrupted, UserError
from fedmef.experiment.settings import Experiment
from fedmef.federation import api as federation
from fedmef.federation import preparation
from fedmef.federation.simulated.fleet import partition
from fedmef.methods import Extras, Method, Plan, Update
from fedmef.runs.directory import SUMMARY_FIELDS, Record, Run
from fedmef.studies.many import (
    Comparison,
    Failure,
    RunsFailedError,
    carry_out,
    plan_runs,
    run_comparison,
)
from fedmef.studies.rows import Row, summarize_comparison, unnamed_differences

TINY = Experiment(
    width=4, devices=4, devices_per_round=2, rounds=2, local_epochs=1, batch_size=128, engine="inline"
)
STATE = {"values": torch.zeros(1)}


class Diverging(Method):
    def train(self, local: LocalTraining, plan: Plan) -> Extras:
        if local.experiment.seed == 1:
            raise FedmefError("its training diverged")
        return super().train(local, plan)


class Stopping(Method):
    def train(self, local: LocalTraining, plan: Plan) -> Extras:
        if plan.round == 1:
            raise KeyboardInterrupt
        return super().train(local, plan)


class Listening:
    def __init__(self) -> None:
        self.heard: list[str | int] = []

    def run_begins(self, name: str) -> None:
        self.heard.append(name)

    def round_done(self, record: Record) -> None:
        self.heard.append(record["round"])


def comparison(methods: tuple[str, ...] = ("fedmef",), seeds: tuple[int, ...] = (0,)) -> Comparison:
    return Comparison(TINY, methods, seeds, (0.9,))


def write_run(path: Path, experiment: Experiment, accuracy: float, *drops: tuple[float, float]) -> Run:
    """A finished run that was never trained, with these accuracies before and after its adjustments."""
    run = Run.create(path, experiment)
    for number, (before, after) in enumerate(drops):
        run.log(
            {
                "round": number,
                "adjusted": True,
                "accuracy_before_adjustment": before,
                "accuracy_after_adjustment": after,
            }
        )
    summary = {
        **dict.fromkeys(SUMMARY_FIELDS, 0),
        "classes": 100,
        "test_accuracy": accuracy,
        "best_test_accuracy": accuracy + 0.1,
        "rounds": 4,
        "bytes_down": 300,
        "bytes_up": 100,
        "seconds": 10 * accuracy,
        "parameters": 7,
        "parameters_if_dense": 70,
    }
    run.finish(STATE, summary)
    return run


def test_every_method_runs_at_every_sparsity_with_every_seed_but_dense_ones_run_once() -> None:
    names = Comparison(TINY, ("fedavg", "fedmef"), (0, 1), (0.9, 0.95)).named_experiments()
    assert list(names) == [
        "fedavg-seed0",
        "fedavg-seed1",
        "fedmef-sparsity0.9-seed0",
        "fedmef-sparsity0.9-seed1",
        "fedmef-sparsity0.95-seed0",
        "fedmef-sparsity0.95-seed1",
    ]
    assert names["fedavg-seed1"] == TINY.model_copy(update={"method": "fedavg", "seed": 1, "sparsity": 0.0})
    assert names["fedmef-sparsity0.95-seed0"] == TINY.model_copy(update={"sparsity": 0.95})


def test_methods_with_the_same_seed_share_the_partition() -> None:
    first, second, other = [
        partition(experiment, preparation.open_dataset(experiment))
        for experiment in (
            *comparison(("fedavg", "fedmef")).experiments(),
            *comparison(seeds=(1,)).experiments(),
        )
    ]
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))
    assert [len(share) for share in first] != [len(share) for share in other]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"methods": ()}, "methods: name at least one"),
        ({"seeds": (3, 3)}, "seeds: 3 is there twice"),
        ({"sparsities": (0.5, 0.9, 0.5)}, "sparsities: 0.5 is there twice"),
    ],
)
def test_nothing_and_the_same_twice_are_mistakes(changes: dict[str, Any], complaint: str) -> None:
    fields: dict[str, Any] = {"methods": ("fedmef",), "seeds": (0,), "sparsities": (0.9,)}
    with pytest.raises(UserError, match=complaint):
        Comparison(TINY, **{**fields, **changes})


def test_a_row_is_the_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "a", Experiment(seed=0), 0.5, (0.5, 0.3), (0.6, 0.5)),
        write_run(tmp_path / "b", Experiment(seed=1), 0.7, (0.5, 0.5), (0.7, 0.6)),
        write_run(tmp_path / "c", Experiment(seed=4, engine="inline"), 0.9),
    ]
    (row,) = summarize_comparison(runs)
    assert (row.method, row.sparsity, row.seeds, row.failed_seeds) == ("fedmef", 0.9, (0, 1, 4), ())
    assert row.accuracy == pytest.approx(0.7)
    assert row.accuracy_std == pytest.approx(0.2)  # √((0.04 + 0 + 0.04) / 2)
    assert row.best_accuracy == pytest.approx(0.8)
    assert row.adjustment_drop == pytest.approx(0.1)  # of 0.2, 0.1, 0 and 0.1
    assert row.bytes_per_round == 100
    assert row.seconds == pytest.approx(7)
    assert (row.parameters, row.parameters_if_dense) == (7, 70)


def test_one_seed_has_no_deviation_and_no_adjustment_has_no_drop(tmp_path: Path) -> None:
    (row,) = summarize_comparison([write_run(tmp_path / "a", Experiment(), 0.5)])
    assert (row.accuracy, row.accuracy_std, row.adjustment_drop) == (0.5, None, None)


def test_rows_are_methods_and_sparsities_in_their_order(tmp_path: Path) -> None:
    wanted = [("fedtiny", 0.9), ("fedmef", 0.95), ("fedmef", 0.9), ("fedavg", 0.0)]
    runs = [
        write_run(tmp_path / f"{number}-{seed}", Experiment(method=method, sparsity=sparsity, seed=seed), 0.5)
        for seed in (0, 1)
        for number, (method, sparsity) in enumerate(wanted)
    ]
    rows = summarize_comparison(runs)
    assert [(row.method, row.sparsity) for row in rows] == wanted
    assert all(row.seeds == (0, 1) for row in rows)


def test_sparsity_means_nothing_to_a_dense_method(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a", Experiment(method="fedavg", seed=0, sparsity=0.5), 0.5)
    two = write_run(tmp_path / "b", Experiment(method="fedavg", seed=1, sparsity=0.9), 0.6)
    (row,) = summarize_comparison([one, two])
    assert (row.sparsity, row.seeds) == (0.0, (0, 1))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"method": "fedtiny", "dataset": "cifar10"}, "dataset = digits in the one, cifar10 in the other"),
        ({"method": "fedtiny", "model": "resnet18"}, "model = small_cnn in the one, resnet18"),
        ({"method": "fedtiny", "rounds": 3}, "rounds = 40 in the one, 3"),
        ({}, "are the same experiment"),
    ],
)
def test_runs_that_do_not_belong_together_are_not_compared(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    runs = [
        write_run(tmp_path / "a", Experiment(), 0.5),
        write_run(tmp_path / "b", Experiment(**changes), 0.5),
    ]
    with pytest.raises(UserError, match=complaint):
        summarize_comparison(runs)


def test_an_unfinished_and_a_damaged_run_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not finished"):
        summarize_comparison([Run.create(tmp_path / "a", Experiment())])
    damaged = write_run(tmp_path / "b", Experiment(), 0.5)
    (damaged.path / "metrics.jsonl").write_text('{"adjusted": true}')
    with pytest.raises(UserError, match=r"b is damaged: .*accuracy_before_adjustment"):
        summarize_comparison([damaged])


def test_failures_stand_in_the_table_where_their_run_would(tmp_path: Path) -> None:
    failed = [
        Failure(tmp_path / str(seed), Experiment(method="fedtiny", seed=seed), "died") for seed in (0, 1)
    ]
    half: list[Run | Failure] = [
        write_run(tmp_path / "a", Experiment(), 0.5),
        Failure(tmp_path / "b", Experiment(seed=1), "died"),
    ]
    tiny, mef = summarize_comparison([*failed, *half])
    assert (tiny.method, tiny.seeds, tiny.failed_seeds, tiny.accuracy) == ("fedtiny", (), (0, 1), None)
    assert (mef.seeds, mef.failed_seeds, mef.accuracy, mef.accuracy_std) == ((0,), (1,), 0.5, None)
    lines = printed([tiny, mef], width=80)
    assert lines[1].split()[:3] == ["fedtiny", "0.9", "failed"]
    assert lines[2].endswith("1/2")


def test_the_widest_row_of_ours_fits_80_columns_and_a_long_name_folds(tmp_path: Path) -> None:
    experiments = [
        Experiment(method=name, seed=seed, sparsity=0.975)
        for name in ("fedmef_restart", "my.own.package:MethodWithALongName")
        for seed in (0, 1)
    ]
    runs = [
        write_run(tmp_path / str(number), experiment, 0.1 + 0.89 * experiment.seed, (0.9, 0.1))
        for number, experiment in enumerate(experiments)
    ]
    for run in runs:
        run.finish(
            STATE,
            {**run.summary, "bytes_up": 3_999_600_000, "seconds": 123456.7, "parameters": 25_557_032},
        )
    head, restart, *folded = printed(summarize_comparison(runs), width=80)
    assert head.split()[-1] == "seeds"
    assert restart.split() == [
        *("fedmef_restart", "0.975", "54.50", "±", "62.93", "64.50", "80.00"),
        *("999.9", "MB", "34.3", "h", "25.56", "M", "2"),
    ]
    assert "".join(line.split()[0] for line in folded) == "my.own.package:MethodWithALongName"


def test_a_narrow_table_gives_up_columns_before_names(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / f"{name}{seed}", Experiment(method=name, seed=seed), 0.5, (0.5, 0.6))
        for name in ("fedavg_sap", "fedmef_restart")
        for seed in (0, 1)
    ]
    rows = summarize_comparison(runs)
    for width in (60, 66, 70, 80):
        lines = printed(rows, width)
        assert [line.split()[0] for line in lines] == ["method", "fedavg_sap", "fedmef_restart"]
    heading = printed(rows, 60)[0].split()
    assert "best" not in heading
    assert heading[-1] == "seeds"
    assert "params" in printed(rows, 80)[0]
    assert table_notes(rows) == ["a drop below zero is a gain"]


def test_a_column_has_one_unit(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "a", Experiment(method="fedavg"), 0.5),
        write_run(tmp_path / "b", Experiment(), 0.5),
    ]
    runs[0].finish(STATE, {**runs[0].summary, "bytes_up": 20_000_000})
    lines = printed(summarize_comparison(runs), 80)
    assert lines[1].split()[5:7] == ["5.0", "MB"]
    assert lines[2].split()[5:7] == ["0.0001", "MB"]


def test_a_gain_too_small_to_print_is_no_minus_zero(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", Experiment(), 0.5, (0.5, 0.50001))
    (row,) = summarize_comparison([run])
    assert (row.adjustment_drop or 0) < 0
    assert printed([row], width=80)[1].split()[4] == "0.00"


def printed(rows: list[Row], width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(comparison_table(rows, width))
    lines = captured.get().splitlines()
    assert all(len(line) <= width for line in lines)
    return [line.rstrip() for line in lines]


def test_a_finished_comparison_is_reused_and_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = comparison(("fedavg", "fedmef"))
    first = run_comparison(two, tmp_path)
    assert [run.path.name for run in first] == ["fedavg-seed0", "fedmef-sparsity0.9-seed0"]
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a finished run needs no data and no training")

    for module, name in ((federation, "run"), (federation, "resume"), (preparation, "open_dataset")):
        monkeypatch.setattr(module, name, never)
    moved = Comparison(
        TINY.model_copy(update={"engine": "processes"}), two.methods, two.seeds, two.sparsities
    )
    listening = Listening()
    again = run_comparison(moved, tmp_path, watch=listening)
    assert [run.summary for run in again] == [run.summary for run in first]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == written
    assert listening.heard == []


def test_an_interrupted_run_is_resumed_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_comparison(comparison(), tmp_path / "whole")[0]

    def stop(record: Record) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "halves" / "fedmef-sparsity0.9-seed0"
    with pytest.raises(Interrupted):
        federation.run(comparison().experiments()[0], path, watch=stop)
    (planned,) = plan_runs(comparison().named_experiments(), path.parent)
    assert (planned.finished, planned.rounds_before) == (False, 1)
    listening = Listening()
    resumed = run_comparison(comparison(), tmp_path / "halves", watch=listening)[0]
    assert listening.heard == [path.name, 1]
    model = "model.safetensors"
    assert (resumed.path / model).read_bytes() == (whole.path / model).read_bytes()


@pytest.mark.parametrize(
    ("overwrite", "remedy"), [(False, "the same command goes"), (True, "command without --overwrite goes")]
)
def test_control_c_says_how_far_it_was_and_how_to_go_on(tmp_path: Path, overwrite: bool, remedy: str) -> None:
    stopping = comparison(("fedavg", f"{__name__}:Stopping"))
    with pytest.raises(Interrupted, match=f"Stopping-sparsity0.9-seed0 with 1 of 2 runs finished.*{remedy}"):
        run_comparison(stopping, tmp_path, overwrite=overwrite)


def test_another_experiment_in_the_directory_is_refused_before_anything_runs(tmp_path: Path) -> None:
    name = "fedmef-sparsity0.9-seed0"
    old = TINY.model_copy(update={"rounds": 1, "alpha": 0.25})
    write_run(tmp_path / name, old, 0.5)
    both = comparison(("fedavg", "fedmef"))
    with pytest.raises(
        UserError, match=r"rounds = 1 there, 2 here; alpha = 0\.25 there, .*--out.*--overwrite"
    ):
        run_comparison(both, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert Run.open(tmp_path / name).experiment == old

    run_comparison(both, tmp_path, overwrite=True)
    assert Run.open(tmp_path / name).experiment.rounds == 2


def test_overwriting_repeats_finished_runs(tmp_path: Path) -> None:
    run_comparison(comparison(), tmp_path)
    listening = Listening()
    run_comparison(comparison(), tmp_path, overwrite=True, watch=listening)
    assert listening.heard == ["fedmef-sparsity0.9-seed0", 0, 1]


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        ("config.toml", "is a run itself"),
        ("fedmef-sparsity0.9-seed0/thesis.tex", "exists and is not a run"),
        ("fedmef-sparsity0.9-seed0", "exists and is not a run"),
        ("fedmef-sparsity0.9-seed0/summary.json", "is not a run"),
    ],
)
def test_what_is_no_comparison_is_left_alone(tmp_path: Path, file: str, complaint: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("precious")
    with pytest.raises(UserError, match=complaint):
        run_comparison(comparison(("fedavg", "fedmef")), tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / file]


def test_a_file_in_the_way_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for out in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(UserError, match="file is not a folder to write in; choose another --out"):
            run_comparison(comparison(), out)


def test_another_experiment_without_a_finished_round_is_no_obstacle(tmp_path: Path) -> None:
    Run.create(tmp_path / "fedmef-sparsity0.9-seed0", TINY.model_copy(update={"learning_rate": 1e30}))
    (run,) = run_comparison(comparison(), tmp_path)
    assert Run.open(run.path).experiment.learning_rate == TINY.learning_rate


def test_a_damaged_result_shows_before_anything_runs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "fedmef-sparsity0.9-seed0", TINY, 0.5)
    (run.path / "summary.json").write_text("{}")
    with pytest.raises(UserError, match=r"summary\.json is damaged"):
        plan_runs(comparison(("fedavg", "fedmef")).named_experiments(), tmp_path)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": "resnet81"}, "resnet18"),
        ({"dataset": "digit"}, "digits"),
        ({"device": "cuda:7"}, "device = 'cuda:7'"),
        ({"devices": 100_000}, "devices = 100000"),
    ],
)
def test_everything_is_checked_before_the_first_run(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    wrong = Comparison(TINY.model_copy(update=changes), ("fedavg", "fedmef"), (0,), (0.9,))
    with pytest.raises(UserError, match=complaint):
        run_comparison(wrong, tmp_path / "out")
    with pytest.raises(UserError, match="did you mean 'fedmef'"):
        run_comparison(comparison(("fedavg", "fedmeff")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_that_fails_does_not_lose_the_others(tmp_path: Path) -> None:
    method = f"{__name__}:Diverging"
    with pytest.raises(RunsFailedError, match=r"1 of 4 runs failed, first .*seed1: its training") as raised:
        run_comparison(comparison((method, "fedavg"), seeds=(0, 1)), tmp_path)
    diverging, fedavg = summarize_comparison(raised.value.outcomes)
    assert (diverging.seeds, diverging.failed_seeds) == ((0,), (1,))
    assert fedavg.seeds == (0, 1)


def test_synthetic_data_follow_the_seed_and_other_data_are_opened_once(tmp_path: Path) -> None:
    small = TINY.model_copy(update={"dataset": "synthetic", "synthetic_train": 40, "synthetic_test": 10})
    plan = plan_runs(Comparison(small, ("fedavg", "fedmef"), (0, 1), (0.9,)).named_experiments(), tmp_path)
    zero, one, zero_again, one_again = [planned.dataset for planned in plan]
    assert zero is zero_again
    assert one is one_again
    assert zero is not one
    digits = plan_runs(comparison(("fedavg", "fedmef"), seeds=(0, 1)).named_experiments(), tmp_path)
    assert len({id(planned.dataset) for planned in digits}) == 1


def test_settings_that_tell_rows_of_a_method_apart_are_in_their_names(tmp_path: Path) -> None:
    experiments = [
        Experiment(method="fedavg", learning_rate=0.3),
        Experiment(alpha=0.1, local_epochs=2),
        Experiment(alpha=0.5, local_epochs=2),
        Experiment(alpha=0.5, local_epochs=2, seed=1, engine="inline"),
    ]
    runs = [write_run(tmp_path / str(place), asked, 0.5) for place, asked in enumerate(experiments)]
    rows = summarize_comparison(runs)
    assert [row.name for row in rows] == ["fedavg", "fedmef 0.9, alpha 0.1", "fedmef 0.9, alpha 0.5"]
    assert [row.seeds for row in rows] == [(0,), (0,), (0, 1)]
    # fedavg's alpha is not in its name, and between the methods these differ as well
    assert unnamed_differences(experiments) == ["alpha", "local_epochs", "learning_rate"]


class OwnDense(Method):
    dense = True


class Broken(Method):
    def aggregate(self, model: nn.Module, updates: Sequence[Update]) -> None:
        raise RuntimeError("shapes do not fit")


def test_a_dense_method_of_the_users_own_runs_once() -> None:
    own = f"{__name__}:OwnDense"
    names = Comparison(TINY, (own,), (0,), (0.9, 0.95)).named_experiments()
    assert list(names) == [f"{own}-seed0".replace(":", "-")]


def test_whatever_a_users_method_raises_does_not_stop_the_others(tmp_path: Path) -> None:
    both = comparison((f"{__name__}:Broken", "fedavg"))
    broken, fedavg = carry_out(plan_runs(both.named_experiments(), tmp_path))
    assert isinstance(broken, Failure)
    assert broken.reason == "RuntimeError: shapes do not fit"
    assert isinstance(broken.error, RuntimeError)
    assert isinstance(fedavg, Run)


def test_a_damaged_record_shows_before_anything_runs(tmp_path: Path) -> None:
    (run,) = run_comparison(comparison(), tmp_path)
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    (run.path / "metrics.jsonl").write_text(lines[0])
    with pytest.raises(UserError, match=r"metrics\.jsonl is damaged: it lacks some of the 2 rounds"):
        plan_runs(comparison(("fedavg", "fedmef")).named_experiments(), tmp_path)


def test_an_unknown_method_is_named_whatever_the_directory_holds(tmp_path: Path) -> None:
    old = TINY.model_copy(update={"rounds": 1})
    write_run(tmp_path / "fedmef-sparsity0.9-seed0", old, 0.5)
    with pytest.raises(UserError, match="unknown method 'fedmeff'"):
        run_comparison(comparison(("fedmef", "fedmeff")), tmp_path)


def test_a_hopeless_training_is_remarked(tmp_path: Path) -> None:
    guessing = write_run(tmp_path / "a", Experiment(), 0.11)
    guessing.finish(STATE, {**guessing.summary, "classes": 10})
    lost = write_run(tmp_path / "b", Experiment(method="fedtiny"), 0.9)
    lost.log({"round": 0, "adjusted": False, "train_loss": None})
    rows = summarize_comparison([guessing, lost, write_run(tmp_path / "c", Experiment(method="feddst"), 0.9)])
    assert [row.warning for row in rows] == [
        "at chance level, as if it guessed one of 10 classes",
        "its training loss was not finite",
        "",
    ]
    assert table_notes(rows)[1] == "fedtiny 0.9: its training loss was not finite"


def test_runs_share_a_data_set_only_when_it_is_the_same(tmp_path: Path) -> None:
    small = {"dataset": "synthetic", "synthetic_size": 8, "synthetic_train": 40, "synthetic_test": 10}
    experiments = {
        "digits": TINY,
        "digits again": TINY.model_copy(update={"seed": 1}),
        "synthetic": TINY.model_copy(update=small),
        "larger": TINY.model_copy(update={**small, "synthetic_size": 12}),
    }
    digits, again, synthetic, larger = (run.dataset for run in plan_runs(experiments, tmp_path))
    assert digits is again
    assert digits is not None
    assert synthetic is not None
    assert larger is not None
    assert [digits.name, synthetic.shape, larger.shape] == ["digits", (3, 8, 8), (3, 12, 12)]
