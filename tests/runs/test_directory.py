import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedmef.errors import FedmefError, UserError
from fedmef.experiment.settings import Experiment
from fedmef.runs.directory import SUMMARY_FIELDS, Run
from fedmef.wire.files import write_atomically

STATE = {"values": torch.tensor([1.0, 2.0])}
RESULT = dict.fromkeys(SUMMARY_FIELDS, 1)


def test_a_run_reads_back_what_was_written(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Experiment(rounds=2))
    run.log({"round": 0})
    run.write_checkpoint(STATE, 1)
    assert not run.finished
    run.log({"round": 1})
    run.finish(STATE, RESULT)

    again = Run.open(tmp_path / "run")
    assert again.experiment == Experiment(rounds=2)
    assert again.metrics == [{"round": 0}, {"round": 1}]
    assert again.summary == RESULT
    assert torch.equal(again.model_state()["values"], STATE["values"])
    assert sorted(path.name for path in again.path.iterdir()) == [
        "config.toml",
        "metrics.jsonl",
        "model.safetensors",
        "summary.json",
    ]


def test_rounds_after_the_checkpoint_are_forgotten(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Experiment())
    run.log({"round": 0})
    run.write_checkpoint(STATE, 1)
    run.log({"round": 1})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "tr')  # the power went out here
    checkpoint = run.read_checkpoint()
    assert checkpoint is not None
    assert checkpoint[1] == 1
    assert run.metrics == [{"round": 0}]


def test_a_run_without_a_checkpoint_starts_anew(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Experiment())
    run.log({"round": 0})
    assert run.read_checkpoint() is None
    assert run.metrics == []


def test_an_old_run_is_replaced_only_when_asked(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", Experiment()).finish(STATE, {})
    with pytest.raises(UserError, match="holds a run already"):
        Run.create(tmp_path / "run", Experiment())
    assert not Run.create(tmp_path / "run", Experiment(), overwrite=True).finished


def test_a_directory_that_is_no_run_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="is not a run"):
        Run.create(tmp_path, Experiment(), overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_a_file_in_the_way_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot make the directory"):
        Run.create(tmp_path / "file" / "run", Experiment())


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "summary.json", "model.safetensors"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    run = Run.create(tmp_path / "run", Experiment())
    run.log({"round": 0})
    run.finish(STATE, RESULT)
    (run.path / name).write_bytes(b'{"half": ')
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        read_everything(run.path)


def test_a_summary_that_lacks_something_is_damaged(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Experiment())
    run.finish(STATE, {"test_accuracy": 0.5})
    with pytest.raises(UserError, match=r"summary\.json is damaged"):
        _ = run.summary


@pytest.mark.parametrize(
    "damage", [b"{}\n", b"\xff\xfe", b'{"round": 0}\nnonsense\n{"round": 2}\n', b"", b"[]\n"]
)
def test_metrics_that_lack_finished_rounds_are_damaged(tmp_path: Path, damage: bytes) -> None:
    run = Run.create(tmp_path / "run", Experiment())
    run.write_checkpoint(STATE, 3)
    (run.path / "metrics.jsonl").write_bytes(damage)
    with pytest.raises(UserError, match=r"metrics\.jsonl is damaged: it lacks rounds before 3"):
        run.read_checkpoint()


def test_a_run_that_never_finished_a_round_may_be_replaced(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", Experiment())
    assert Run.create(tmp_path / "run", Experiment(rounds=2)).experiment.rounds == 2


def test_others_may_read_a_run_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        run = Run.create(tmp_path / "run", Experiment())
    finally:
        os.umask(before)
    assert (run.path / "config.toml").stat().st_mode & 0o777 == 0o644


def read_everything(path: Path) -> None:
    run = Run.open(path)
    _ = run.metrics, run.summary, run.model_state()


def test_a_run_without_its_model_is_unfinished_or_was_copied_without_it(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Experiment())
    with pytest.raises(UserError, match="the run is not finished, or damaged"):
        run.model_state()
    run.finish(STATE, RESULT)
    (run.path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="the run is finished, but was published or copied without its model"):
        run.model_state()


def test_an_unfinished_run_says_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--resume"):
        _ = Run.create(tmp_path / "run", Experiment()).summary


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_atomically(file, b"old")
    with pytest.raises(TypeError):
        write_atomically(file, "not bytes")  # type: ignore[arg-type]
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_in_a_run_from_elsewhere_cannot_lead_out_of_it(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Experiment())
    run.log({"round": 0})
    run.write_checkpoint(STATE, 1)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("metrics.jsonl", "tensorboard", "checkpoint-before.safetensors"):
        (run.path / name).unlink(missing_ok=True)
        (run.path / name).symlink_to(victim)
        with pytest.raises(UserError, match="symbolic link"):
            run.read_checkpoint()
        with pytest.raises(UserError, match="symbolic link"):
            Run.create(run.path, Experiment(), overwrite=True)
        (run.path / name).unlink()
    assert victim.read_text() == "precious"


def test_a_link_under_the_temporary_name_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".file.{os.getpid()}").symlink_to(victim)
    write_atomically(tmp_path / "file", b"new")
    assert victim.read_text() == "precious"
    assert (tmp_path / "file").read_bytes() == b"new"


def test_what_a_killed_process_left_is_no_obstacle_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / ".config.toml.4711").write_text("rou")
    run = Run.create(path, Experiment())
    (path / ".checkpoint.safetensors.4711").write_text("half")
    assert run.read_checkpoint() is None
    assert sorted(file.name for file in path.iterdir()) == ["config.toml", "metrics.jsonl"]


def test_a_file_that_is_far_too_large_is_not_read_into_memory(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Experiment())
    with (run.path / "config.toml").open("r+b") as file:
        file.truncate(2**30)
    with pytest.raises(UserError, match="larger than"):
        Run.open(run.path)


def test_a_full_disk_is_a_failure_that_leaves_the_last_checkpoint_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path / "run", Experiment())
    run.log({"round": 0})
    run.write_checkpoint(STATE, 1)
    run.log({"round": 1})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        writes: tuple[Callable[[], None], ...] = (
            lambda: run.write_checkpoint({"values": torch.zeros(2)}, 2),
            lambda: run.log({"round": 2}),
            lambda: run.finish(STATE, RESULT),
        )
        for write in writes:
            with pytest.raises(FedmefError, match=r"No space left on device.*--resume") as failure:
                write()
            assert failure.value.exit_code == 1
    checkpoint = run.read_checkpoint()
    assert checkpoint is not None
    assert checkpoint[1] == 1
    assert torch.equal(checkpoint[0]["values"], STATE["values"])
    assert not run.finished
