"""Every command and snippet of README and docs runs: as printed, but for sizes and what a reader fills in.

The two tutorials, docs/data.md and docs/training.md run unchanged (test_docs.py, test_pages_run.py).
Commands of a real fleet are those of test_deployment.py and `make deploy-demo`.
"""

import re
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import fedmef
from fedmef.models import resnet18
from tests.cli.invoking import Invoke, invoke

__all__ = ["invoke"]
ROOT = Path(__file__).parents[1]
ELSEWHERE = {"data.md", "training.md", "tutorial-edge.md", "tutorial-researcher.md"}
PAGES = [
    page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if page.name not in ELSEWHERE
]
PIECE = re.compile(r"```python\n(.*?)```|(?<=\n\n)((?: {4}[^\n]*\n|\n)+)", re.DOTALL)
IN_A_FLEET = ("fedmef flower gate", "fedmef report runs/flower", "fedmef report runs/fleet")

TINY = "--rounds 1 --devices 4 --devices-per-round 2 --local-epochs 1 --engine inline"
SIZES = {  # what makes a command small; the last of two equal options counts
    "run": TINY,
    "compare": f"{TINY} --out runs/again-{{number}}",
    "cost": "--width 8 --batch-size 4",
    "plan": "--width 8 --batch-size 4",
}
FILLED_IN = {
    "--dataset cifar10": "--dataset synthetic --synthetic-size 8 --synthetic-train 40 --synthetic-test 20",
    "--scale desk": "--scale smoke --only fedmef",
    "--scale smoke": "--scale smoke --only fedmef",
    "my.package:network": "mine:network",
    "…": "--model small_cnn --image-shape 1x8x8 --classes 3 --batch-size 4",
    "[--json]": "--json",
    "--sparsities 0.9,0.95": "--sparsities 0.9",
    "runs/compare-digits-small_cnn": "runs",
    "rounds=40": "rounds=1, devices=4, devices_per_round=2, local_epochs=1, engine='inline'",
    "rounds=10": "rounds=1, devices=4, devices_per_round=2, local_epochs=1, engine='inline'",
    "seed=3)": "rounds=1, devices=4, devices_per_round=2, engine='inline')",
    'experiment, "runs/mine"': 'experiment, "runs/watched"',
    'model="resnet18", batch_size=64': 'model="resnet18", width=8, batch_size=4',
}
MINE = """
class MyMethod(RandomGrowth):
    pass


def network(classes, channels):
    from torch import nn
    layers = [nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, classes))


def images():
    from fedmef.data import SyntheticImages
    return SyntheticImages((3, 8, 8), classes=3, train=40, test=20).make()
"""


def pieces(page: Path) -> list[tuple[str, str]]:
    """("python", a snippet) and ("fedmef", a command), in their order."""
    found = []
    for fenced, indented in PIECE.findall(page.read_text(encoding="utf-8")):
        block = dedent(fenced or indented)
        if re.match(r"\s*(import|from) ", block):
            found.append(("python", block))
        for command in re.findall(r"^(fedmef (?:[^\n]|(?<=\\)\n)*)", block, re.MULTILINE):
            if not command.startswith(IN_A_FLEET):
                found.append(("fedmef", command))
    return found


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages speak of: runs, a network, images, settings."""
    folder = tmp_path_factory.mktemp("desk")
    experiment = fedmef.Experiment(
        dataset="synthetic",
        synthetic_train=40,
        synthetic_test=20,
        rounds=1,
        devices=4,
        devices_per_round=2,
        local_epochs=1,
        engine="inline",
    )
    for seed, name in enumerate(("one", "two", "mine")):
        fedmef.run(experiment, folder / "runs" / name, seed=seed)
    for name in ("image.png", "cat.png", "dog.jpg"):
        Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(folder / name)
    (folder / "my.toml").write_text("rounds = 1\n")
    (folder / "plan.toml").write_text('[[fault]]\nfault = "drop"\nround = 0\ndevice = 0\n')
    (method,) = (text for kind, text in pieces(ROOT / "docs/adding-a-method.md") if kind == "python")
    (folder / "mine.py").write_text(method + MINE)
    return folder


def fill_in(text: str) -> str:
    """The same with little to do."""
    for printed, filled_in in FILLED_IN.items():
        text = text.replace(printed, filled_in)
    return text


def words_of(command: str, number: int) -> list[str]:
    """The command's words after `fedmef`."""
    words = shlex.split(fill_in(command.partition(" #")[0].replace("\\\n", " ")))[1:]
    if "--resume" in words:
        return words
    sizes = SIZES.get(words[0], "").format(number=number)
    if "mine:network" in words:
        sizes = sizes.replace("--width 8", "")
    if "--engine" in words or "--device-memory" in words:  # memory is limited in processes only
        sizes = sizes.replace(" --engine inline", "")
    return words + shlex.split(sizes) + (["--out", f"runs/new-{number}"] if words[0] == "run" else [])


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_shows_runs(
    page: Path, desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    folder = tmp_path / "desk"
    shutil.copytree(desk, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    names: dict[str, Any] = {
        "__name__": "__main__",
        "MyNetwork": partial(resnet18, classes=10, width=8),
        "torch": torch,
        "images": torch.zeros(4, 3, 32, 32),
        "labels": torch.zeros(4, dtype=torch.long),
        "loss_function": nn.CrossEntropyLoss(),
    }
    for number, (kind, text) in enumerate(pieces(page)):
        if kind == "python":
            exec(compile(fill_in(text), page.name, "exec"), names)
        else:
            ended = invoke(*words_of(text, number))
            assert ended.code == 0, f"{text}: {ended.errors}"


SCRIPT = re.compile(r"python ((?:benchmarks|scripts)/\w+\.py)([^\n`]*)")


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", sorted({name for page in PAGES for name, _ in SCRIPT.findall(page.read_text(encoding="utf-8"))})
)
def test_a_script_has_the_options_that_pages_show(script: str) -> None:
    """Benchmarks take minutes: what they measure is checked by whoever publishes it."""
    shown = {
        option
        for page in PAGES
        for name, rest in SCRIPT.findall(page.read_text(encoding="utf-8"))
        if name == script
        for option in re.findall(r"(?<![\w-])--[a-z-]+", rest)
    }
    helped = subprocess.run(
        [sys.executable, ROOT / script, "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert shown <= set(re.findall(r"--[a-z-]+", helped.stdout))


def test_make_has_every_target_that_pages_name() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in (*PAGES, ROOT / "CONTRIBUTING.md"):
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"(?:^    |`)make ([a-z-]+)", text, re.MULTILINE)) <= targets, page.name
