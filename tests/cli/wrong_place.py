"""A folder of what a user may name by mistake: wrong runs, experiments, data, images and code."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import fedmef
from fedmef.data import Dataset, Split
from fedmef.wire.broadcast import encode_broadcast
from fedmef.wire.job import Job
from tests.small import small
from tests.sparsity.networks import normalized_network, random_model

OWN_CODE = """
import numpy as np
import torch
from torch import nn
from fedmef.data import Dataset, Split
from fedmef.methods import Method

NUMBER = 3
PIXELS = np.zeros((40, 1, 8, 8), np.uint8)


def split(count=40, shape=(1, 8, 8), classes=2):
    labels = np.arange(count) % classes
    return Split(np.zeros((count, *shape), np.uint8), labels)


# Networks.


class Net(nn.Module):
    def __init__(self, classes, channels):
        super().__init__()
        self.stem, self.block = nn.Conv2d(channels, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8, classes)

    def forward(self, x):
        return self.fc(torch.relu(self.block(torch.relu(self.stem(x)))).mean((2, 3)))


class NoArguments(nn.Module):
    def __init__(self):
        super().__init__()


class Raises(nn.Module):
    def __init__(self, classes, channels):
        super().__init__()
        raise RuntimeError("no weights\\nhere")


class ForwardRaises(Net):
    def forward(self, x):
        raise ValueError("wrong\\nforward")


class WrongChannels(Net):
    def __init__(self, classes, channels):
        super().__init__(classes, channels + 2)


class TwoAnswers(Net):
    def forward(self, x):
        return super().forward(x), x


class ThousandClasses(Net):
    def __init__(self, classes, channels):
        super().__init__(1000, channels)


class Double(Net):
    def __init__(self, classes, channels):
        super().__init__(classes, channels)
        self.double()


class Pixels(Net):
    def forward(self, x):
        return self.block(self.stem(x))


class Linear(nn.Module):
    def __init__(self, classes, channels):
        super().__init__()
        self.fc = nn.Linear(channels * 64, classes)

    def forward(self, x):
        return self.fc(x.flatten(1))


class Nothing(nn.Module):
    def __init__(self, classes, channels):
        super().__init__()

    def forward(self, x):
        return x.mean((2, 3))


NET = Net(10, 1)


def gives_none(classes, channels):
    return None


def gives_class(classes, channels):
    return Net


def gives_state(classes, channels):
    return Net(classes, channels).state_dict()


def other_names(num_classes, in_channels):
    return Net(num_classes, in_channels)


def three(classes, channels, width):
    return Net(classes, channels)


# Data.


def no_data():
    return None


def arrays():
    return np.zeros((40, 1, 8, 8), np.uint8), np.zeros(40, np.int64)


def data_with_arguments(folder):
    return Dataset("mine", split(), split(), classes=2)


def data_raises():
    return Dataset("mine", split(), open("nowhere.npy"), classes=2)


def float_images():
    return Dataset("mine", Split(np.zeros((40, 1, 8, 8)), np.zeros(40, np.int64)), split(), classes=2)


def channels_last():
    return Dataset("mine", split(shape=(32, 32, 3)), split(shape=(32, 32, 3)), classes=2)


def int32_labels():
    return Dataset("mine", Split(PIXELS, np.zeros(40, np.int32)), split(), classes=2)


def labels_from_one():
    return Dataset("mine", Split(PIXELS, np.arange(40) % 2 + 1), split(), classes=2)


def too_few_labels():
    return Dataset("mine", Split(PIXELS, np.zeros(39, np.int64)), split(), classes=2)


def tensors():
    return Dataset("mine", Split(torch.zeros(40, 1, 8, 8), torch.zeros(40)), split(), classes=2)


def no_images():
    return Dataset("mine", Split(np.zeros((0, 1, 8, 8), np.uint8), np.zeros(0, np.int64)), split(), classes=2)


def two_shapes():
    return Dataset("mine", split(), split(shape=(1, 9, 9)), classes=2)


def few_users():
    return Dataset("mine", split(), split(), classes=2, users=np.arange(7))


def float_users():
    return Dataset("mine", split(), split(), classes=2, users=np.arange(40) / 4)


def wrong_names():
    return Dataset("mine", split(), split(), classes=2, class_names=("cat", "dog", "bird"))


def tiny():
    return Dataset("mine", split(3), split(3), classes=2)


def one_pixel():
    return Dataset("mine", split(shape=(1, 1, 1)), split(shape=(1, 1, 1)), classes=2)


def three_users():
    return Dataset("mine", split(), split(), classes=2, users=np.arange(40) % 3)


def nothing_in_range():
    from fedmef.data import from_arrays

    images = np.full((40, 8, 8, 1), np.nan)
    labels = np.zeros(40, int)
    return from_arrays("mine", (images, labels), (images, labels), layout="NHWC", value_range=(0, 1))


def no_layout():
    from fedmef.data import from_arrays

    images, labels = np.zeros((40, 8, 8, 1), np.uint8), np.zeros(40, int)
    return from_arrays("mine", (images, labels), (images, labels))


# Methods, and other things.


class NoMethod:
    pass


def function():
    return Method


# What a device gets its data from.


def device_floats():
    return np.zeros((4, 1, 8, 8)), np.zeros(4, np.int64)


def device_one():
    return np.zeros((4, 1, 8, 8), np.uint8)


def device_raises():
    raise OSError("the camera is off")
"""

CONFIGS = {
    "good.toml": "rounds = 1\n",
    "broken.toml": "rounds = = 3\n",
    "no-quotes.toml": "method = fedmef\n",
    "comma.toml": "sparsity = 0,9\n",
    "twice.toml": "rounds = 3\nrounds = 4\n",
    "misspelt.toml": "devcies = 10\n",
    "hyphens.toml": "local-epochs = 2\n",
    "table.toml": "[experiment]\nrounds = 3\n",
    "text.toml": 'rounds = "many"\n',
    "half.toml": "rounds = 2.5\n",
    "list.toml": "sparsity = [0.8, 0.9]\n",
    "boolean.toml": "devices = true\n",
    "out.toml": 'out = "runs/mine"\n',
    "nan.toml": "alpha = nan\n",
    "none.toml": "width = none\n",
    "contrary.toml": "devices = 4\n",
    "json.toml": '{"rounds": 3}\n',
    "yaml.toml": "rounds: 3\n",
    "python.toml": "import fedmef\nfedmef.run(rounds=3)\n",
}

PLANS = {
    "plan-broken.toml": "[[fault]\n",
    "plan-empty.toml": "",
    "plan-lacks.toml": '[[fault]]\nround = 0\nfault = "drop"\n',
    "plan-kind.toml": '[[fault]]\nround = 0\ndevice = 1\nfault = "explode"\n',
    "plan-text.toml": '[[fault]]\nround = "first"\ndevice = 1\nfault = "drop"\n',
}


def make_place(place: Path) -> None:
    """Fill an empty folder."""
    (place / "own.py").write_text(OWN_CODE)
    (place / "syntax.py").write_text("def network(classes, channels)\n    return None\n")
    (place / "raises.py").write_text("raise RuntimeError('at import\\nin two lines')\n")
    (place / "lacks.py").write_text("import no_such_package\n")
    for name, text in (CONFIGS | PLANS).items():
        (place / name).write_text(text)
    (place / "latin.toml").write_bytes("name = 'Zürich'\n".encode("latin-1"))
    (place / "binary.toml").write_bytes(bytes(range(256)))
    (place / "folder.toml").mkdir()
    (place / "empty").mkdir()
    (place / "full").mkdir()
    (place / "full" / "thesis.tex").write_text("years of work\n")
    (place / "file").write_text("a text\n")
    _make_images(place)
    _make_data(place)
    _make_runs(place / "runs")
    _make_device(place / "device")


def _make_images(place: Path) -> None:
    Image.new("L", (8, 8), 100).save(place / "good.png")
    content = (place / "good.png").read_bytes()
    (place / "cut.png").write_bytes(content[: len(content) // 2])
    (place / "empty.png").write_bytes(b"")
    (place / "text.png").write_text("not an image\n")
    (place / "drawing.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (place / "folder.png").mkdir()
    np.save(place / "array.npy", np.zeros((8, 8), np.uint8))
    for part in ("train", "test"):
        for kind in ("cat", "dog"):
            (place / "pets" / part / kind).mkdir(parents=True)
            Image.new("RGB", (9, 9)).save(place / "pets" / part / kind / "1.png")
    (place / "album").mkdir()
    Image.new("RGB", (9, 9)).save(place / "album" / "1.jpg")


def _make_data(place: Path) -> None:
    labels = np.arange(40) % 2
    pixels = np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8), dtype=np.uint8)
    split = Split(pixels, labels)
    good = Dataset("mine", split, split, classes=2, users=np.arange(40) % 3)
    good.write(place / "good.data")

    def spoiled(name: str, spoil: Callable[[Path], Any]) -> None:
        shutil.copytree(place / "good.data", place / name)
        spoil(place / name)

    def described(folder: Path, **changes: Any) -> None:
        file = folder / "description.json"
        table = json.loads(file.read_text()) | changes
        file.write_text(json.dumps({name: value for name, value in table.items() if value is not None}))

    spoiled("no-description.data", lambda folder: (folder / "description.json").unlink())
    spoiled("broken.data", lambda folder: (folder / "description.json").write_text("{"))
    spoiled("list.data", lambda folder: (folder / "description.json").write_text("[]"))
    spoiled("no-classes.data", lambda folder: described(folder, classes=None))
    spoiled("text-classes.data", lambda folder: described(folder, classes="two"))
    spoiled("one-class.data", lambda folder: described(folder, classes=1))
    spoiled("no-deviation.data", lambda folder: described(folder, std=[0.0]))
    spoiled("two-means.data", lambda folder: described(folder, mean=[0.1, 0.2]))
    spoiled("no-test.data", lambda folder: (folder / "test_images.npy").unlink())
    spoiled("cut.data", lambda folder: (folder / "train_images.npy").write_bytes(b"\x93NUMPY\x01\x00"))
    spoiled("text.data", lambda folder: (folder / "train_labels.npy").write_text("0 1 0 1\n"))
    spoiled("floats.data", lambda folder: np.save(folder / "train_images.npy", pixels / 255))
    spoiled("nans.data", lambda folder: np.save(folder / "train_labels.npy", np.full(40, np.nan)))
    spoiled("flat.data", lambda folder: np.save(folder / "train_images.npy", pixels.reshape(40, 64)))
    spoiled("fewer.data", lambda folder: np.save(folder / "train_labels.npy", labels[:39]))
    spoiled("negative.data", lambda folder: np.save(folder / "test_labels.npy", labels - 1))
    spoiled("users.data", lambda folder: np.save(folder / "train_users.npy", np.arange(39)))
    (place / "arrays").mkdir()
    np.save(place / "arrays" / "images.npy", pixels)
    np.save(place / "arrays" / "labels.npy", labels)


def _make_runs(runs: Path) -> None:
    done = fedmef.run(small(rounds=1), runs / "done").path

    def spoiled(name: str, spoil: Callable[[Path], Any], source: Path = done) -> None:
        shutil.copytree(source, runs / name)
        spoil(runs / name)

    def configured(folder: Path, text: str) -> None:
        with (folder / "config.toml").open("a") as file:
            file.write(text)

    def unfinished(folder: Path) -> None:
        for name in ("summary.json", "model.safetensors"):
            (folder / name).unlink()

    spoiled("begun", unfinished)
    spoiled("no-config", lambda folder: (folder / "config.toml").unlink())
    spoiled("broken-config", lambda folder: configured(folder, "rounds = = 3\n"))
    spoiled("strange-config", lambda folder: configured(folder, "colour = 3\n"))
    spoiled("broken-summary", lambda folder: (folder / "summary.json").write_text("{"))
    spoiled("no-model", lambda folder: (folder / "model.safetensors").unlink())
    spoiled("cut-model", lambda folder: (folder / "model.safetensors").write_bytes(b"\x10"))
    spoiled("no-network", lambda folder: (folder / "network.json").unlink())
    spoiled("broken-network", lambda folder: (folder / "network.json").write_text("[]"))
    spoiled("broken-metrics", lambda folder: (folder / "metrics.jsonl").write_text("round one\n"))
    spoiled("fleet", lambda folder: (folder / "fleet").touch())
    unfinished(runs / "fleet")


def _make_device(folder: Path) -> None:
    """What `python -m fedmef.device` is given."""
    folder.mkdir()
    job = Job(method="fedmef", round=0, seed=0, learning_rate=0.1, initial_rate=0.1, batch_size=4)
    (folder / "message").write_bytes(encode_broadcast(random_model(normalized_network(), 0.5), job))
    for name, images, labels in (
        ("floats", np.zeros((4, 1, 8, 8)), np.zeros(4, np.int64)),
        ("fewer", np.zeros((4, 1, 8, 8), np.uint8), np.zeros(3, np.int64)),
        ("flat", np.zeros((4, 64), np.uint8), np.zeros(4, np.int64)),
        ("nans", np.zeros((4, 1, 8, 8), np.uint8), np.full(4, np.nan)),
    ):
        (folder / name).mkdir()
        np.save(folder / name / "images.npy", images)
        np.save(folder / name / "labels.npy", labels)
    os.mkfifo(folder / "pipe")
    (folder / "text").mkdir()
    (folder / "text" / "images.npy").write_text("pixels\n")
    (folder / "text" / "labels.npy").write_text("labels\n")
    (folder / "named" / "cat").mkdir(parents=True)
    Image.new("L", (8, 8)).save(folder / "named" / "cat" / "1.png")
    shutil.copytree(folder / "named", folder / "doubled")
    (folder / "doubled" / "classes.txt").write_text("cat\ncat\n")
