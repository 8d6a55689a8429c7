"""`python -m fedmef.device`: a round with two files, and what it says when it cannot."""

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("fedmef.native._kernels")

import numpy as np

from fedmef.device import __main__ as program
from fedmef.device.device import Device
from fedmef.device.lost import NEEDS_ALL
from fedmef.device.native_backend import NativeBackend
from fedmef.device.training import Samples
from fedmef.wire.broadcast import encode_broadcast
from fedmef.wire.container import checksum_of
from fedmef.wire.job import Job
from fedmef.wire.update import decode_update, encode_update
from tests.sparsity.networks import normalized_network, random_model

NETWORK = normalized_network()
MODEL = random_model(NETWORK, 0.5)
JOB = Job(method="fedmef", round=3, seed=7, learning_rate=0.1, initial_rate=0.1, batch_size=16, extrusion=0.5)
PIXELS = np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8), dtype=np.uint8)
LABELS = np.arange(40) % 10

OWN_CODE = """
import hashlib, hmac, ssl
import numpy as np
from fedmef.methods.fedmef import FedMef

def give():
    hashlib.scrypt(b"", salt=b"", n=2, r=1, p=1)
    assert "OpenSSL" in ssl.OPENSSL_VERSION
    key = hmac.new(b"key", b"", hashlib.sha256).hexdigest()
    assert hashlib.new("sha256", b"").digest_size == len(key) // 2 == 32
    return np.load("images.npy"), np.load("labels.npy")

class Own(FedMef):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Data, and a message."""
    np.save(tmp_path / "images.npy", PIXELS)
    np.save(tmp_path / "labels.npy", LABELS)
    (tmp_path / "message").write_bytes(encode_broadcast(MODEL, JOB))
    (tmp_path / "own_code.py").write_text(OWN_CODE)
    return tmp_path


def started(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedmef.device", *arguments]
    return subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
    )


def expected(number: int = 0, job: Job = JOB) -> bytes:
    device = Device(number, Samples(PIXELS, LABELS, np.arange(40)), NativeBackend)
    return device.train(encode_broadcast(MODEL, job))


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir() if file.name != "__pycache__"}


# A round.


def test_a_round_is_that_of_a_device_with_the_same_data(folder: Path) -> None:
    before = names(folder)
    ended = started(folder, "message", "answer", "--data", ".", "--number", "4")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr.endswith("MB resident\n")
    assert (folder / "answer").read_bytes() == expected(4)
    assert names(folder) == before | {"answer"}  # and no part of one


def test_an_adjusting_round_brings_growth_scores(folder: Path) -> None:
    job = replace(JOB, adjustment_rate=0.25)
    (folder / "message").write_bytes(encode_broadcast(MODEL, job))
    assert started(folder, "message", "answer", "--data", ".").returncode == 0
    answer = (folder / "answer").read_bytes()
    assert answer == expected(job=job)
    assert decode_update(answer, NETWORK).extras.growth.keys() == {"second", "third"}


def test_what_a_device_holds_need_not_be_sent_again(folder: Path) -> None:
    later = encode_broadcast(MODEL, JOB, known=MODEL.masks(), knows_network=True)
    (folder / "later").write_bytes(later)
    lacking = started(folder, "later", "answer", "--data", ".", "--store", "store")
    assert lacking.returncode == NEEDS_ALL
    assert lacking.stderr.count("\n") == 1
    assert started(folder, "message", "answer", "--data", ".", "--store", "store").returncode == 0
    (folder / "answer").unlink()
    assert started(folder, "later", "answer", "--data", ".", "--store", "store").returncode == 0
    same = replace(decode_update(expected(), NETWORK), answers=checksum_of(later))
    assert (folder / "answer").read_bytes() == encode_update(same, NETWORK)


def test_own_code_has_all_of_hashlib(folder: Path) -> None:
    """The program leaves OpenSSL out where it can, which must not be seen from outside."""
    (folder / "message").write_bytes(encode_broadcast(MODEL, replace(JOB, method="own_code:Own")))
    arguments = ["message", "answer", "--data", "own_code:give"]
    refused = started(folder, *arguments)
    assert refused.returncode == 1
    assert "own_code:Own" in refused.stderr
    ended = started(folder, *arguments, "--method", "own_code:Own")
    assert ended.returncode == 0, ended.stderr
    assert (folder / "answer").exists()


# What it cannot do: one line, and nothing is written.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "MESSAGE and ANSWER"),
        (["message"], "MESSAGE and ANSWER"),
        (["message", "answer", "more", "--data", "."], "MESSAGE and ANSWER"),
        (["message", "answer", "--serve", "--data", "."], "MESSAGE and ANSWER"),
        (["message", "answer"], "--data is missing"),
        (["message", "answer", "--data"], "--data requires argument; --help"),
        (["message", "answer", "--data", ".", "--colour"], "--colour not recognized; --help"),
        (["message", "answer", "--data", ".", "-x"], "-x not recognized; --help"),
        (["message", "answer", "--data", "nowhere"], "data = 'nowhere': there is no such folder"),
        (["message", "answer", "--data", "no.module:function"], "there is no module 'no'"),
        (["message", "answer", "--data", ".", "--number", "-1"], "--number -1: must be"),
        (["message", "answer", "--data", ".", "--number", "1.5"], "--number 1.5: must be"),
        (["message", "answer", "--data", ".", "--number", "9" * 5000], "must be a number from 0 on"),
        (["message", "answer", "--data", ".", "--memory", "much"], "memory = 'much'"),
        (["message", "answer", "--data", ".", "--memory", "0"], "memory = '0'"),
        (["nothing", "answer", "--data", "."], "MESSAGE = 'nothing': there is no such file"),
        ([".", "answer", "--data", "."], "MESSAGE = '.': there is no such file"),
        (["message", "no/answer", "--data", "."], "ANSWER = 'no/answer': must be a file"),
        (["message", "", "--data", "."], "ANSWER = '.': must be a file"),
    ],
)
def test_wrong_arguments_are_named_in_one_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(program, "give_back_freed_memory", lambda: None)  # not of the tests' process
    before = names(folder)
    assert program.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("fedmef.device: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert names(folder) == before


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_lists_the_options(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([option]) == 0
    printed = capsys.readouterr().out
    assert all(f"--{name.rstrip('=')}" in printed for name in program.OPTIONS if name != "help")


def test_too_little_memory_is_said_before_training(folder: Path) -> None:
    ended = started(folder, "message", "answer", "--data", ".", "--memory", "1MB")
    assert ended.returncode == 2
    assert "memory = 1,000,000 bytes: the process alone has" in ended.stderr
    assert not (folder / "answer").exists()


def test_a_limit_that_training_exceeds_ends_it_in_one_line(folder: Path) -> None:
    """Images for which a step needs some 100 MB more than there are."""
    shape = (1, 512, 512)
    network = replace(NETWORK, input=replace(NETWORK.input, shape=shape))
    model = random_model(network, 0.5)
    (folder / "message").write_bytes(encode_broadcast(model, JOB))
    np.save(folder / "images.npy", np.zeros((40, *shape), np.uint8))
    ended = started(folder, "message", "answer", "--data", ".", "--memory", "100MB")
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "memory" in ended.stderr
    assert not (folder / "answer").exists()


@pytest.mark.parametrize("content", [b"", b"no message", bytes(100)])
def test_a_message_that_is_none_is_refused(folder: Path, content: bytes) -> None:
    (folder / "message").write_bytes(content)
    (folder / "answer").write_bytes(b"of the round before")
    ended = started(folder, "message", "answer", "--data", ".")
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert (folder / "answer").read_bytes() == b"of the round before"


def test_an_answer_that_cannot_be_written_leaves_the_one_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (folder / "answer").write_bytes(b"of the round before")
    before = names(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(program, "give_back_freed_memory", lambda: None)  # not of the tests' process
    monkeypatch.setattr(os, "fsync", full)
    assert program.main(["message", "answer", "--data", "."]) == 1
    assert capsys.readouterr().err == "fedmef.device: [Errno 28] No space left on device\n"
    assert (folder / "answer").read_bytes() == b"of the round before"
    assert names(folder) == before


def test_without_kernels_it_says_how_to_get_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(program, "missing_kernels", lambda: "the native kernels are not built: do so")
    assert program.main(["message", "answer", "--data", "."]) == 1
    assert capsys.readouterr().err == "fedmef.device: the native kernels are not built: do so\n"


# Hashes.

HASHES = """
import sys
from fedmef.device.hashes import bring_back_openssl, leave_out_openssl
leave_out_openssl()
import hashlib
assert hashlib.sha256(b"a").hexdigest().startswith("ca978112"), "Python's own"
print("_hashlib" in sys.modules and sys.modules["_hashlib"] is None)
bring_back_openssl()
bring_back_openssl()
import _hashlib
print(hashlib.sha256 is _hashlib.openssl_sha256, hasattr(hashlib, "scrypt"))
"""


def test_openssl_is_left_out_and_comes_back() -> None:
    ended = subprocess.run([sys.executable, "-c", HASHES], capture_output=True, text=True, check=True)
    assert ended.stdout == "True\nTrue True\n"


def test_where_python_has_no_hashes_of_its_own_openssl_stays() -> None:
    """As on Fedora, whose Python is built with BLAKE2 alone."""
    without = "import sys\nsys.modules['_md5'] = None\n"
    changed = HASHES.replace("from fedmef", f"{without}from fedmef", 1).partition("bring_back_openssl()\n")[0]
    ended = subprocess.run([sys.executable, "-c", changed], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "False\n"), ended.stderr
