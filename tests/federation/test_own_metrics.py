"""Metrics of the user's own: measured at every evaluation, written down, and their mistakes named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmef
from fedmef.device.choice import missing_kernels
from fedmef.errors import FedmefWarning, UserError
from fedmef.experiment.files import parse_experiment
from fedmef.experiment.settings import Experiment, make_experiment
from fedmef.federation.api import evaluate_run
from fedmef.federation.own_metrics import measured
from fedmef.runs.directory import Run
from fedmef.runs.metrics import check_length
from tests.cli.invoking import Invoke, check_mistake, invoke
from tests.federation import own_parts
from tests.federation.small import TINY, digest, interrupted_after, steady

__all__ = ["invoke"]

HERE = "tests.federation.own_parts"
METRICS: dict[str, Any] = {"top5": own_parts.top5, "same": f"{HERE}:accuracy"}
SETTINGS: dict[str, Any] = {**TINY, "rounds": 3, "adjust_every": 3, "evaluate_every": 2}
BACKENDS = ["torch", pytest.param("native", marks=pytest.mark.skipif(bool(missing_kernels()), reason="none"))]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fedmef.run(out=tmp_path_factory.mktemp("runs") / "run", metrics=METRICS, **SETTINGS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_they_are_written_down_at_every_evaluation(backend: str, tmp_path: Path) -> None:
    run = fedmef.run(out=tmp_path / "run", metrics=METRICS, backend=backend, **SETTINGS)
    assert run.experiment.metrics == (f"top5={HERE}:top5", f"same={HERE}:accuracy")
    assert [sorted(record.metrics) for record in run.rounds] == [[], ["same", "top5"], ["same", "top5"]]
    for record in run.rounds[1:]:
        assert record.metrics["same"] == record.test_accuracy
        assert (record.metrics["top5"] or 0) >= (record.test_accuracy or 0)
        assert record.scalars()["metrics/top5"] == record.metrics["top5"]
    assert run.summary.metrics == run.rounds[-1].metrics
    assert json.loads((run.path / "metrics.jsonl").read_text().splitlines()[1])["metrics"]["top5"] <= 1


def test_they_change_nothing_else(finished: Run, tmp_path: Path) -> None:
    plain = fedmef.run(out=tmp_path / "plain", **SETTINGS)
    assert digest(plain.path) == digest(finished.path)
    assert plain.summary.metrics == {}
    assert plain.experiment.metrics == ()


def test_a_stranger_s_are_run_by_consent_only(finished: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"metrics = 'top5={HERE}:top5,same={HERE}:accuracy'; .*allow"):
        evaluate_run(Run.open(finished.path))
    score = evaluate_run(Run.open(finished.path), allow_code=True)
    assert score.metrics == finished.summary.metrics
    with pytest.raises(KeyboardInterrupt, match="--allow-code"):
        fedmef.run(out=tmp_path / "cut", metrics=METRICS, callbacks=[interrupted_after(1)], **SETTINGS)
    with pytest.raises(UserError, match="names code that this would run: metrics"):
        fedmef.resume(tmp_path / "cut")
    resumed = fedmef.resume(tmp_path / "cut", allow_code=True)
    assert steady(resumed) == steady(finished)
    assert digest(resumed.path) == digest(finished.path)


def test_the_command_line_shows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> None:
    monkeypatch.chdir(tmp_path)
    settings = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    given = ["--metric", f"top5={HERE}:top5", "--metric", f"same={HERE}:accuracy"]
    ended = invoke("run", *settings, *given, "--out", "run")
    assert ended.code == 0, ended.errors
    assert "metric top5" in ended.printed
    run = Run.open(Path("run"))
    assert sorted(run.summary.metrics) == ["same", "top5"]
    top5 = f"top5 {run.summary.metrics['top5']:.4g}"
    check_mistake(invoke("evaluate", "run"), "--allow-code")
    assert top5 in invoke("evaluate", "run", "--allow-code").printed
    scores = json.loads(invoke("evaluate", "run", "--allow-code", "--json").printed)
    assert scores["metrics"] == run.summary.metrics
    assert invoke("run", "run/config.toml", "--out", "again").code == 0
    assert digest(Path("again")) == digest(Path("run"))
    check_mistake(invoke("run", *settings, "--metric", "top5"), "must be name=module:function")
    check_mistake(invoke("run", *settings, "--metric", f"top5={HERE}:nothing"), "metric top5 = ")


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"mine": own_parts.nan_metric}, "metric 'mine' gave nan: it must give one finite number"),
        ({"mine": own_parts.many_metrics}, "metric 'mine' raised ValueError"),
        ({"mine": own_parts.no_metric}, "metric 'mine' gave None"),
        ({"mine": own_parts.text_metric}, "metric 'mine' gave '0.5'"),
        ({"mine": own_parts.raising_metric}, r"metric 'mine' raised KeyError for logits of shape \[40, 10\]"),
        ({"mine": own_parts.changing_metric}, "metric 'mine' raised ValueError.* read-only"),
        ({"mine": f"{HERE}:no_function"}, "metric mine = .*no_function' is int; name a function"),
        ({"mine": f"{HERE}:missing"}, "has no 'missing'"),
        ({"mine": "nowhere:metric"}, "metric mine = 'nowhere:metric': there is no module 'nowhere'"),
        ({"mine": "accuracy"}, "must be name=module:function"),
        ({"": own_parts.top5}, "must be name=module:function"),
        ({"top 5": own_parts.top5}, "must be name=module:function"),
        ({"x" * 41: own_parts.top5}, "must be name=module:function"),
        ({f"m{number}": own_parts.top5 for number in range(21)}, "at most 20"),
        ({"mine": lambda logits, labels: 0.5}, "metric mine = .* top level of a module"),
        ({"mine": 3}, "metric mine = 3: give a name"),
        ([own_parts.top5], "metrics = .* give a table, such as"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(metrics: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        fedmef.run(out=tmp_path / "run", metrics=metrics, **TINY)
    assert not (tmp_path / "run").exists()


def test_a_name_is_there_once() -> None:
    with pytest.raises(UserError, match="a name is there twice"):
        make_experiment({"metrics": ["mine=a:b", "mine=a:c"]})


def test_a_table_a_list_and_a_text_mean_the_same() -> None:
    table = parse_experiment(b'[metrics]\none = "a:b"\ntwo = "a:c"\n', Path("file"))
    assert table.metrics == ("one=a:b", "two=a:c")
    for given in ({"one": "a:b", "two": "a:c"}, ["one=a:b", "two=a:c"], "one=a:b,two=a:c"):
        assert make_experiment({"metrics": given}).metrics == ("one=a:b", "two=a:c")


def test_what_diverged_has_none() -> None:
    logits, labels = np.full((4, 3), np.nan, dtype=np.float32), np.zeros(4, dtype=np.int64)
    assert measured({"mine": own_parts.top5}, logits, labels) == {"mine": None}


def test_a_round_without_a_value_does_not_end_the_run() -> None:
    logits, labels = np.zeros((4, 3), dtype=np.float32), np.zeros(4, dtype=np.int64)
    metrics = {"mine": own_parts.nan_metric, "top5": own_parts.top5, "raises": own_parts.raising_metric}
    with pytest.warns(FedmefWarning, match="'(mine|raises)' .*it is recorded as missing"):
        assert measured(metrics, logits, labels) == {"mine": None, "top5": 1.0, "raises": None}


def test_they_count_for_how_long_a_run_may_be() -> None:
    many = tuple(f"m{number}=a:b" for number in range(20))
    check_length(Experiment(rounds=15_000))
    with pytest.raises(UserError, match=r"rounds = 15000"):
        check_length(Experiment(rounds=15_000, metrics=many))
