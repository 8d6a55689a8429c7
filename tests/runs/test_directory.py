import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedmef.errors import FedmefError, UserError
from fedmef.experiment.settings import Experiment
from fedmef.runs.directory import Run, read_finished
from fedmef.sparsity.model import State
from fedmef.sparsity.network import Input, Network
from fedmef.sparsity.operations import Flatten, Linear
from fedmef.wire.container import encode
from tests.runs.written import NETWORK, a_round, a_state, a_summary


def new_run(path: Path, rounds: int = 1) -> Run:
    return Run.create(path, Experiment(rounds=rounds), NETWORK)


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_a_run_reads_back_what_was_written(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", rounds=2)
    run.log(a_round(0))
    run.write_checkpoint(a_state(), 1)
    assert not run.finished
    run.log(a_round(1))
    run.finish(a_state(), a_summary(rounds=2))

    again = Run.open(tmp_path / "run")
    assert again.experiment == Experiment(rounds=2)
    assert again.network == NETWORK
    assert again.rounds == [a_round(0), a_round(1)]
    assert again.summary == a_summary(rounds=2)
    assert same(again.model().state, a_state())
    assert sorted(path.name for path in again.path.iterdir()) == [
        "config.toml",
        "metrics.jsonl",
        "model.safetensors",
        "network.json",
        "summary.json",
    ]


def test_a_run_says_what_it_is(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    assert repr(run) == f"Run('{tmp_path / 'run'}', fedmef on digits: not finished)"
    run.finish(a_state(), a_summary())
    assert "fedmef on digits: 50.00%" in repr(run)
    assert run.sparsity == 0.9
    assert Run(tmp_path, Experiment(method="fedavg")).sparsity == 0


def test_a_checkpoint_brings_the_model_the_round_and_the_ledger(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    run.log(a_round(0))
    ledger = {"up_to_date": np.array([0, 3]), "before/out": np.array([7], dtype=np.uint8)}
    moments = {"first/out.weight": np.ones(2, dtype=np.float32)}
    run.write_checkpoint(a_state(0.25), 1, ledger, moments)
    found = Run.open(run.path).read_checkpoint()
    assert found is not None
    model, next_round, held, kept = found
    assert same(kept, moments)
    assert model.network == NETWORK
    assert same(model.state, a_state(0.25))
    assert next_round == 1
    assert same(held, ledger)


def test_rounds_after_the_checkpoint_are_forgotten(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    run.log(a_round(0))
    run.write_checkpoint(a_state(), 1)
    run.log(a_round(1))
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "tr')  # the power went out here
    checkpoint = run.read_checkpoint()
    assert checkpoint is not None
    assert checkpoint[1] == 1
    assert run.rounds == [a_round(0)]


def test_a_run_without_a_checkpoint_starts_again(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    run.log(a_round(0))
    assert run.read_checkpoint() is None
    assert run.rounds == []


def test_an_old_run_is_replaced_only_when_asked(tmp_path: Path) -> None:
    new_run(tmp_path / "run").finish(a_state(), a_summary())
    with pytest.raises(UserError, match="holds a run already"):
        new_run(tmp_path / "run")
    replaced = Run.create(tmp_path / "run", Experiment(), NETWORK, overwrite=True)
    assert not replaced.finished
    assert sorted(path.name for path in replaced.path.iterdir()) == ["config.toml", "network.json"]


def test_a_run_that_was_killed_while_it_was_replaced_is_still_a_run(tmp_path: Path) -> None:
    """Its files go one by one, and come one by one."""
    for kept in ("config.toml", "network.json"):
        path = tmp_path / kept
        new_run(path)
        for file in path.iterdir():
            if file.name != kept:
                file.unlink()
        assert new_run(path).network == NETWORK


def test_a_directory_that_is_no_run_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="is not a run"):
        Run.create(tmp_path, Experiment(), NETWORK, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_a_file_in_the_way_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot make the directory"):
        new_run(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    "name", ["config.toml", "network.json", "metrics.jsonl", "summary.json", "model.safetensors"]
)
@pytest.mark.parametrize("damage", [b'{"half": ', b"\xff\xfe\x00"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, damage: bytes) -> None:
    run = new_run(tmp_path / "run")
    run.log(a_round())
    run.finish(a_state(), a_summary())
    (run.path / name).write_bytes(damage)
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        read_everything(run.path)


def test_a_summary_that_lacks_something_is_damaged(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    run.finish(a_state(), a_summary())
    (run.path / "summary.json").write_text('{"test_accuracy": 0.5}')
    with pytest.raises(UserError, match=r"summary\.json is damaged: best_test_accuracy: Field required"):
        _ = Run.open(run.path).summary


def other_network() -> Network:
    wider = Linear(name="out", inputs=("flat",), module="out", shape=(3, 4), sparse=True, bias=True)
    return Network(Input((1, 1, 4), (0.5,), (0.25,)), (Flatten(name="flat", inputs=("input",)), wider))


@pytest.mark.parametrize("finished", [True, False])
def test_arrays_that_do_not_fit_the_network_are_damage(tmp_path: Path, finished: bool) -> None:
    run = Run.create(tmp_path / "run", Experiment(), other_network())
    run.log(a_round())
    if finished:
        run.finish(a_state(), a_summary())
    else:
        run.write_checkpoint(a_state(), 1)
    with pytest.raises(UserError, match=r"its arrays do not fit its network \(out\."):
        _ = run.model() if finished else run.read_checkpoint()


@pytest.mark.parametrize(
    "damage",
    [
        b"{}\n",
        b"\xff\xfe",
        a_round(0).model_dump_json().encode() + b"\nnonsense\n" + a_round(2).model_dump_json().encode(),
        b"",
        b"[]\n",
    ],
)
def test_metrics_that_lack_finished_rounds_are_damaged(tmp_path: Path, damage: bytes) -> None:
    run = new_run(tmp_path / "run")
    run.write_checkpoint(a_state(), 3)
    (run.path / "metrics.jsonl").write_bytes(damage)
    with pytest.raises(UserError, match=r"metrics\.jsonl is damaged: it lacks rounds before 3"):
        run.read_checkpoint()


def test_a_run_that_never_finished_a_round_may_be_replaced(tmp_path: Path) -> None:
    new_run(tmp_path / "run")
    assert new_run(tmp_path / "run", rounds=2).experiment.rounds == 2


def test_others_may_read_a_run_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        run = new_run(tmp_path / "run")
    finally:
        os.umask(before)
    for name in ("config.toml", "network.json"):
        assert (run.path / name).stat().st_mode & 0o777 == 0o644


def read_everything(path: Path) -> None:
    run = Run.open(path)
    _ = run.network, run.rounds, run.summary, run.model()


def test_a_run_without_its_model_or_network_is_unfinished_or_was_copied_without_it(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    with pytest.raises(UserError, match="the run is not finished, or damaged"):
        run.model()
    run.finish(a_state(), a_summary())
    copied = "the run is finished, but was published or copied without its model"
    for name in ("model.safetensors", "network.json"):
        (run.path / name).unlink()
        with pytest.raises(UserError, match=rf"has no {name}: {copied}"):
            Run.open(run.path).network if name == "network.json" else run.model()


def test_an_unfinished_run_says_how_to_resume_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--resume"):
        _ = new_run(tmp_path / "run").summary


def finished_run(path: Path, rounds: int) -> Run:
    run = new_run(path, rounds)
    for number in range(rounds):
        run.log(a_round(number))
    run.finish(a_state(), a_summary(rounds=rounds))
    return run


def test_more_rounds_may_follow_a_finished_run(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run", rounds=2)
    run.unfinish()
    assert not run.finished
    with pytest.raises(UserError, match="--resume"):
        _ = run.summary
    found = run.read_checkpoint()
    assert found is not None
    assert same(found[0].state, a_state())
    assert found[1:] == (2, {}, {})


def test_a_finished_run_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run", rounds=2)
    assert read_finished(run.path).summary.rounds == 2
    metrics = run.path / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text(whole.splitlines(keepends=True)[0])
    with pytest.raises(UserError, match="it lacks some of the 2 rounds"):
        read_finished(run.path)
    half = a_round(1, adjusted=True, accuracy_before_adjustment=0.5)
    metrics.write_text(whole.splitlines(keepends=True)[0] + half.model_dump_json() + "\n")
    with pytest.raises(UserError, match="round 1 lacks an accuracy"):
        read_finished(run.path)
    with pytest.raises(UserError, match="--resume"):
        read_finished(new_run(tmp_path / "unfinished").path)


def test_a_run_from_elsewhere_makes_no_folders_here(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", Experiment(data_dir=tmp_path / "theirs"), NETWORK)
    assert Run.open(tmp_path / "run").experiment.data_dir is None
    (tmp_path / "theirs").mkdir()
    assert Run.open(tmp_path / "run").experiment.data_dir == tmp_path / "theirs"


def test_a_link_in_a_run_from_elsewhere_cannot_lead_out_of_it(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    run.log(a_round())
    run.write_checkpoint(a_state(), 1)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("metrics.jsonl", "tensorboard", "held", "checkpoint-before.safetensors"):
        (run.path / name).unlink(missing_ok=True)
        (run.path / name).symlink_to(victim)
        with pytest.raises(UserError, match="symbolic link"):
            run.read_checkpoint()
        with pytest.raises(UserError, match="symbolic link"):
            Run.create(run.path, Experiment(), NETWORK, overwrite=True)
        (run.path / name).unlink()
    assert victim.read_text() == "precious"


def test_what_a_killed_process_left_is_no_obstacle_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / ".config.toml.4711").write_text("rou")
    run = new_run(path)
    (path / ".checkpoint.safetensors.4711").write_text("half")
    assert run.read_checkpoint() is None
    assert sorted(file.name for file in path.iterdir()) == ["config.toml", "metrics.jsonl", "network.json"]


@pytest.mark.parametrize("name", ["config.toml", "network.json"])
def test_a_file_that_is_far_too_large_is_not_read_into_memory(tmp_path: Path, name: str) -> None:
    run = new_run(tmp_path / "run")
    with (run.path / name).open("r+b") as file:
        file.truncate(2**30)
    with pytest.raises(UserError, match="larger than"):
        _ = Run.open(run.path).network


def test_a_model_file_with_arrays_that_nobody_knows_is_damage(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    run.finish(a_state(), a_summary())
    more = {**a_state(), "extra": np.zeros(1)}
    (run.path / "model.safetensors").write_bytes(encode(more, {}))
    with pytest.raises(UserError, match="no extra"):
        run.model()


def test_a_full_disk_is_a_failure_that_leaves_the_last_checkpoint_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path / "run")
    run.log(a_round(0))
    run.write_checkpoint(a_state(), 1)
    run.log(a_round(1))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        writes: tuple[Callable[[], None], ...] = (
            lambda: run.write_checkpoint(a_state(9.0), 2),
            lambda: run.log(a_round(2)),
            lambda: run.finish(a_state(), a_summary()),
        )
        for write in writes:
            with pytest.raises(FedmefError, match=r"No space left on device.*--resume") as failure:
                write()
            assert failure.value.exit_code == 1
    checkpoint = run.read_checkpoint()
    assert checkpoint is not None
    assert checkpoint[1] == 1
    assert same(checkpoint[0].state, a_state())
    assert not run.finished


def refuse_writes(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_overwriting_removes_nothing_before_what_is_new_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path / "run")
    run.log(a_round())
    run.finish(a_state(), a_summary())
    before = {file.name: file.read_bytes() for file in run.path.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse_writes)
        with pytest.raises(FedmefError, match="No space left on device; nothing of it was changed"):
            Run.create(run.path, Experiment(rounds=7), NETWORK, overwrite=True)
    assert {file.name: file.read_bytes() for file in run.path.iterdir()} == before
    again = Run.create(run.path, Experiment(rounds=7), NETWORK, overwrite=True)
    assert sorted(file.name for file in run.path.iterdir()) == ["config.toml", "network.json"]
    assert Run.open(run.path).experiment == again.experiment == Experiment(rounds=7)


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "held", "tensorboard", "fleet"])
def test_what_is_in_the_way_is_named_and_nothing_is_removed(tmp_path: Path, name: str) -> None:
    run = new_run(tmp_path / "run")
    run.log(a_round())
    run.finish(a_state(), a_summary())
    (run.path / name).unlink(missing_ok=True)
    if name in ("held", "tensorboard"):
        (run.path / name).touch()
    else:
        (run.path / name).mkdir()
    before = sorted(run.path.iterdir())
    with pytest.raises(UserError, match=f"{name} is in the way: it is no ordinary"):
        Run.create(run.path, Experiment(), NETWORK, overwrite=True)
    assert sorted(run.path.iterdir()) == before


def test_a_run_that_is_killed_while_it_is_created_leaves_nothing_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, moments = tmp_path / "run", []
    flush, replace = os.fsync, Path.replace

    def look() -> None:
        moments.append(sorted(file.name for file in path.iterdir()))
        Run.check_free(path)  # whoever comes after a kill at this moment may begin

    def flushed(descriptor: int) -> None:
        look()
        flush(descriptor)

    def replaced(file: Path, target: Path) -> Path:
        look()
        return replace(file, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "replace", replaced)
    new_run(path)
    assert len(moments) == 4


def test_an_unfinished_run_without_its_network_says_so(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Experiment(model="mine:network"), NETWORK)
    run.log(a_round(0))
    run.write_checkpoint(a_state(), 1)
    assert run.how_to_resume == f"'fedmef run --resume {run.path}' continues it"
    (run.path / "network.json").unlink()
    with pytest.raises(UserError, match=r"has no network.json: the run is not finished.*--allow-code"):
        _ = Run.open(run.path).network
