"""A comparison: which runs it has, which are reused, and that one that fails takes no other with it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmef.device.training import LocalTraining
from fedmef.errors import FedmefError, Interrupted, UserError
from fedmef.federation import api, preparation
from fedmef.federation.simulated.fleet import partition
from fedmef.methods import Extras, Job, Method, Recipe, Update
from fedmef.methods.base import Rules
from fedmef.runs.callbacks import Callback
from fedmef.runs.directory import Run
from fedmef.runs.lock import locked
from fedmef.runs.records import Round
from fedmef.sparsity.model import Model
from fedmef.studies.many import (
    Comparison,
    Failure,
    RunsFailedError,
    carry_out,
    plan_runs,
    run_comparison,
)
from fedmef.studies.rows import summarize_comparison
from tests.runs.written import NETWORK
from tests.small import small, write_run

TINY = small(batch_size=128)
OWN = Recipe()  # sparse, with BatchNorm


class Diverging(Method):
    recipe = OWN

    def train(self, local: LocalTraining, job: Job) -> Extras:
        if job.seed == 1:
            raise FedmefError("its training diverged")
        return super().train(local, job)


class Stopping(Method):
    recipe = OWN

    def train(self, local: LocalTraining, job: Job) -> Extras:
        if job.round == 1:
            raise KeyboardInterrupt
        return super().train(local, job)


class Broken(Method):
    recipe = OWN

    def aggregate(self, model: Model, updates: Sequence[Update], rules: Rules) -> None:
        raise RuntimeError("shapes do not fit")


class OwnDense(Method):
    recipe = Recipe(weights="dense", norm="nsconv")


class Listening(Callback):
    def __init__(self) -> None:
        self.heard: list[str | int] = []

    def run_begins(self, run: Run) -> None:
        self.heard.append(run.path.name)

    def round_done(self, record: Round, model: object) -> None:
        self.heard.append(record.round)


def comparison(methods: tuple[str, ...] = ("fedmef",), seeds: tuple[int, ...] = (0,)) -> Comparison:
    return Comparison(TINY, methods, seeds, (0.9,))


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
    assert all(np.array_equal(one, two) for one, two in zip(first, second, strict=True))
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


def test_a_dense_method_of_the_users_own_runs_once() -> None:
    own = f"{__name__}:OwnDense"
    names = Comparison(TINY, (own,), (0,), (0.9, 0.95)).named_experiments()
    assert list(names) == [f"{own}-seed0".replace(":", "-")]


def test_a_finished_comparison_is_reused_and_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = comparison(("fedavg", "fedmef"))
    first = run_comparison(two, tmp_path)
    assert [run.path.name for run in first] == ["fedavg-seed0", "fedmef-sparsity0.9-seed0"]
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a finished run needs no data and no training")

    for module, name in ((api, "run"), (api, "resume"), (preparation, "open_dataset")):
        monkeypatch.setattr(module, name, never)
    moved = Comparison(
        TINY.model_copy(update={"engine": "processes"}), two.methods, two.seeds, two.sparsities
    )
    listening = Listening()
    again = run_comparison(moved, tmp_path, callbacks=[listening])
    assert [run.summary for run in again] == [run.summary for run in first]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == written
    assert listening.heard == []


def test_an_interrupted_run_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    whole = run_comparison(comparison(), tmp_path / "whole")[0]

    class Stop(Callback):
        def round_done(self, record: Round, model: object) -> None:
            raise KeyboardInterrupt

    path = tmp_path / "halves" / "fedmef-sparsity0.9-seed0"
    with pytest.raises(Interrupted):
        api.run(comparison().experiments()[0], path, callbacks=[Stop()])
    (planned,) = plan_runs(comparison().named_experiments(), path.parent)
    assert (planned.finished, planned.rounds_before) == (False, 1)
    listening = Listening()
    resumed = run_comparison(comparison(), tmp_path / "halves", callbacks=[listening])[0]
    assert listening.heard == [path.name, 1]
    model = "model.safetensors"
    assert (resumed.path / model).read_bytes() == (whole.path / model).read_bytes()


@pytest.mark.parametrize(
    ("overwrite", "remedy"),
    [(False, "the same command continues"), (True, "command without --overwrite continues")],
)
def test_control_c_says_how_far_it_was_and_how_to_continue(
    tmp_path: Path, overwrite: bool, remedy: str
) -> None:
    stopping = comparison(("fedavg", f"{__name__}:Stopping"))
    with pytest.raises(Interrupted, match=f"Stopping-sparsity0.9-seed0 with 1 of 2 runs finished.*{remedy}"):
        run_comparison(stopping, tmp_path, overwrite=overwrite)


def test_another_experiment_in_the_directory_is_refused_before_anything_runs(tmp_path: Path) -> None:
    name = "fedmef-sparsity0.9-seed0"
    old = TINY.model_copy(update={"rounds": 1, "alpha": 0.25})
    write_run(tmp_path / name, old, [0.5])
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
    run_comparison(comparison(), tmp_path, overwrite=True, callbacks=[listening])
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
        with pytest.raises(UserError, match="file is not a folder; choose another --out"):
            run_comparison(comparison(), out)


def test_another_experiment_without_a_finished_round_is_no_obstacle(tmp_path: Path) -> None:
    Run.create(
        tmp_path / "fedmef-sparsity0.9-seed0", TINY.model_copy(update={"learning_rate": 1e30}), NETWORK
    )
    (run,) = run_comparison(comparison(), tmp_path)
    assert Run.open(run.path).experiment.learning_rate == TINY.learning_rate


def test_a_damaged_result_shows_before_anything_runs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "fedmef-sparsity0.9-seed0", TINY, [0.5, 0.5])
    (run.path / "summary.json").write_text("{}")
    with pytest.raises(UserError, match=r"summary\.json is damaged"):
        plan_runs(comparison(("fedavg", "fedmef")).named_experiments(), tmp_path)


def test_a_damaged_record_shows_before_anything_runs(tmp_path: Path) -> None:
    (run,) = run_comparison(comparison(), tmp_path)
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    (run.path / "metrics.jsonl").write_text(lines[0])
    with pytest.raises(UserError, match=r"metrics\.jsonl is damaged: it lacks some of the 2 rounds"):
        plan_runs(comparison(("fedavg", "fedmef")).named_experiments(), tmp_path)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": "resnet81"}, "resnet18"),
        ({"dataset": "digit"}, "digits"),
        ({"accelerator": "cuda:7"}, "accelerator = 'cuda:7'"),
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


def test_an_unknown_method_is_named_whatever_the_directory_holds(tmp_path: Path) -> None:
    write_run(tmp_path / "fedmef-sparsity0.9-seed0", TINY, [0.5])
    with pytest.raises(UserError, match="unknown method 'fedmeff'"):
        run_comparison(comparison(("fedmef", "fedmeff")), tmp_path)


def test_a_run_that_fails_does_not_lose_the_others(tmp_path: Path) -> None:
    method = f"{__name__}:Diverging"
    with pytest.raises(RunsFailedError, match=r"1 of 4 runs failed, first .*seed1: its training") as raised:
        run_comparison(comparison((method, "fedavg"), seeds=(0, 1)), tmp_path)
    diverging, fedavg = summarize_comparison(raised.value.outcomes)
    assert (diverging.seeds, diverging.failed_seeds) == ((0,), (1,))
    assert fedavg.seeds == (0, 1)


def test_whatever_a_users_method_raises_does_not_stop_the_others(tmp_path: Path) -> None:
    both = comparison((f"{__name__}:Broken", "fedavg"))
    broken, fedavg = carry_out(plan_runs(both.named_experiments(), tmp_path))
    assert isinstance(broken, Failure)
    assert broken.reason == "RuntimeError: shapes do not fit"
    assert isinstance(broken.error, RuntimeError)
    assert isinstance(fedavg, Run)


def test_synthetic_data_follow_the_seed_and_other_data_are_opened_once(tmp_path: Path) -> None:
    small = TINY.model_copy(update={"dataset": "synthetic", "synthetic_train": 40, "synthetic_test": 10})
    plan = plan_runs(Comparison(small, ("fedavg", "fedmef"), (0, 1), (0.9,)).named_experiments(), tmp_path)
    zero, one, zero_again, one_again = [planned.dataset for planned in plan]
    assert zero is zero_again
    assert one is one_again
    assert zero is not one
    digits = plan_runs(comparison(("fedavg", "fedmef"), seeds=(0, 1)).named_experiments(), tmp_path)
    assert len({id(planned.dataset) for planned in digits}) == 1


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


def test_two_comparisons_do_not_share_a_folder(tmp_path: Path) -> None:
    plan = plan_runs({"a": small(rounds=1)}, tmp_path / "out")
    with locked(tmp_path / "out", make=True), pytest.raises(UserError, match="is being written by process"):
        carry_out(plan)
    assert isinstance(carry_out(plan)[0], Run)
    assert not (tmp_path / "out" / "lock").exists()
