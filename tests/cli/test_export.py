"""`fedmef export` and `fedmef predict` as a user meets them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image

import fedmef
from fedmef.data import load_dataset
from fedmef.runs.directory import Run
from tests.cli.invoking import Invoke, check_mistake
from tests.small import small, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fedmef.run(small(rounds=2), tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """Digits of the test data, as files of another size."""
    files = []
    for number, image in enumerate(load_dataset("digits").test.images[:3]):
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(image[0]).resize((16, 16), Image.Resampling.NEAREST).save(files[-1])
    return files


@pytest.mark.parametrize(
    ("kind", "suffix"), [("onnx", "onnx"), ("torchscript", "pt"), ("safetensors", "safetensors")]
)
def test_a_file_is_written_into_the_run_or_where_one_wants(
    run: Run, kind: str, suffix: str, tmp_path: Path, invoke: Invoke
) -> None:
    code, printed, errors = invoke("export", str(run.path), "--format", kind)
    assert (code, errors) == (0, "")
    assert f"export.{suffix}" in printed
    check_mistake(invoke("export", str(run.path), "--format", kind), "--overwrite replaces it")
    elsewhere = tmp_path / "mine"
    code, printed, _ = invoke("export", str(run.path), "--format", kind, "--out", str(elsewhere), "--json")
    assert json.loads(printed)["size"] == elsewhere.stat().st_size
    if kind != "torchscript":
        assert elsewhere.read_bytes() == (run.path / f"export.{suffix}").read_bytes()


def test_predict_and_an_onnx_file_agree(run: Run, images: list[Path], tmp_path: Path, invoke: Invoke) -> None:
    code, printed, errors = invoke("predict", str(run.path), *map(str, images), "--json", "--top", "10")
    assert (code, errors) == (0, "")
    answers = json.loads(printed)
    assert [answer["image"] for answer in answers] == list(map(str, images))
    file = tmp_path / "model.onnx"
    assert invoke("export", str(run.path), "--out", str(file)).code == 0
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    pixels = np.stack([np.asarray(Image.open(image).resize((8, 8))) for image in images])[:, None]
    (logits,) = session.run(None, {"images": pixels})
    for answer, row in zip(answers, logits, strict=True):
        assert answer["classes"] == np.argsort(-row, kind="stable").tolist()
        assert sum(answer["probabilities"]) == pytest.approx(1)


def test_predictions_are_a_line_an_image(run: Run, images: list[Path], invoke: Invoke) -> None:
    _, printed, _ = invoke("predict", str(run.path), *map(str, images))
    lines = printed.splitlines()
    assert [line.split(": class ")[0] for line in lines] == list(map(str, images))
    assert all(line.endswith("%)") for line in lines)


def test_mistakes_are_named(run: Run, images: list[Path], tmp_path: Path, invoke: Invoke) -> None:
    nothing = str(tmp_path / "nothing.png")
    check_mistake(invoke("predict", str(run.path), nothing), "nothing.png")
    (tmp_path / "text.png").write_text("no image")
    check_mistake(invoke("predict", str(run.path), str(tmp_path / "text.png")), "text.png is no image")
    check_mistake(invoke("predict", str(run.path), str(tmp_path)), "is no image")
    check_mistake(invoke("predict", str(tmp_path), str(images[0])), "is not a run directory")
    check_mistake(invoke("export", str(tmp_path)), "is not a run directory")
    check_mistake(invoke("export", str(run.path), "--format", "pdf"), "pdf")
    check_mistake(invoke("export", str(run.path), "--out", str(tmp_path)), "give a file")
    check_mistake(invoke("export", str(run.path), "--out", str(tmp_path / "no" / "file")), "give a file")


def test_a_run_that_is_not_finished_or_has_no_model_is_named(tmp_path: Path, invoke: Invoke) -> None:
    published = write_run(tmp_path / "run", small(), [0.5])
    (published.path / "model.safetensors").unlink()
    check_mistake(invoke("export", str(published.path)), "without its model")


def test_classes_are_called_what_the_data_set_calls_them(
    images: list[Path], tmp_path: Path, invoke: Invoke
) -> None:
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "九\x1b")
    digits = replace(load_dataset("digits"), class_names=names)
    named = fedmef.run(small(rounds=1), tmp_path / "named", dataset=digits)
    assert named.class_names == names
    _, printed, _ = invoke("predict", str(named.path), str(images[0]), "--top", "10")
    assert sorted(part.split(" (")[0] for part in printed.strip().split(": ")[1].split(", ")) == sorted(
        [*names[:9], "九\\x1b"]
    )
    answers = json.loads(invoke("predict", str(named.path), str(images[0]), "--json").printed)
    assert answers[0]["names"] == [names[answers[0]["classes"][0]]]
    for damage in ("[]", '["a"]', "{", "[" * 100_000, json.dumps(["x" * 201] * 10), json.dumps([1] * 10)):
        (named.path / "classes.json").write_text(damage)
        check_mistake(invoke("predict", str(named.path), str(images[0])), "classes.json is damaged")
