"""The protocol of a device's process: what comes through the pipe, and what does not stop it."""

import io
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmef.data.digits import read_digits
from fedmef.device.choice import missing_kernels
from fedmef.device.device import Device
from fedmef.device.lost import Lost
from fedmef.device.process import ANSWER, DONE, FAILED, REQUEST, native_device, serve
from fedmef.device.training import Samples
from fedmef.errors import MessageError, UserError
from fedmef.methods import Method
from fedmef.wire.broadcast import encode_broadcast
from fedmef.wire.container import MAXIMUM_BYTES
from fedmef.wire.job import Job
from fedmef.wire.store import Store
from fedmef.wire.update import decode_update
from tests.device.recording import RecordingBackend
from tests.sparsity.networks import normalized_network, random_model

needs_kernels = pytest.mark.skipif(bool(missing_kernels()), reason="the native kernels are not built")
NETWORK = normalized_network()
JOB = Job(method="fedavg", round=3, seed=7, learning_rate=0.1, initial_rate=0.1, batch_size=16)
TOO_LARGE = struct.pack("<QQQ", 0, 0, MAXIMUM_BYTES + 1)


def samples() -> Samples:
    train = read_digits().train
    return Samples(train.images, train.labels, np.arange(48))


def device(**parts: Any) -> Device:
    return replace(Device(0, samples(), RecordingBackend), **parts)


def message(**changes: Any) -> bytes:
    return encode_broadcast(random_model(NETWORK, 0.5), replace(JOB, **changes))


def request(number: int, content: bytes, chosen: range | None = None) -> bytes:
    numbers = b"" if chosen is None else np.array(chosen, dtype=np.int64).tobytes()
    return REQUEST.pack(number, len(numbers), len(content)) + numbers + content


def split(stream: bytes) -> list[tuple[int, bytes]]:
    """Status and content of each answer."""
    found = []
    while stream:
        status, seconds, peak_memory, length = ANSWER.unpack_from(stream)
        assert seconds >= 0
        assert peak_memory >= 0
        found.append((status, stream[ANSWER.size : ANSWER.size + length]))
        stream = stream[ANSWER.size + length :]
    return found


def served(requests: bytes, of: Device | None = None) -> list[tuple[int, bytes]]:
    answers = io.BytesIO()
    assert serve(lambda: of or device(), io.BytesIO(requests), answers) == 0
    return split(answers.getvalue())


def reason(answer: tuple[int, bytes]) -> str:
    status, content = answer
    assert status == FAILED
    return Lost.from_text(content.decode()).reason


def test_it_says_that_it_is_ready_before_any_message_comes() -> None:
    assert served(b"") == [(DONE, b"")]


def test_every_message_gets_its_answer_with_the_number_and_the_samples_of_its_request() -> None:
    requests = request(4, message()) + request(2, message(round=4), range(8, 28)) + request(4, message())
    ready, first, second, third = served(requests)
    assert ready == (DONE, b"")
    assert first == third == (DONE, replace(device(), number=4).train(message()))
    update = decode_update(second[1], NETWORK)
    assert (update.device, update.samples) == (2, 20)
    own = replace(samples(), indices=np.arange(8, 28))
    assert second[1] == device(number=2, samples=own).train(message(round=4))


def test_an_answer_says_how_long_it_took_and_how_much_memory() -> None:
    answers = io.BytesIO()
    serve(device, io.BytesIO(request(0, message())), answers)
    _, seconds, peak_memory, _ = ANSWER.unpack_from(answers.getvalue(), ANSWER.size)
    assert seconds > 0
    assert peak_memory > 10**7


class Fragile(Method):
    """Its device 1 fails."""

    def train(self, local: Any, job: Job) -> Any:
        if local.device == 1:
            raise ZeroDivisionError("on purpose")
        return super().train(local, job)


def test_what_a_device_raises_costs_one_answer() -> None:
    fragile = device(find_method=lambda name: Fragile)
    requests = request(0, message()) + request(1, message()) + request(2, b"garbage") + request(3, message())
    answers = served(requests, fragile)
    assert [status for status, _ in answers] == [DONE, DONE, FAILED, FAILED, DONE]
    assert reason(answers[2]) == "device 1 failed: ZeroDivisionError: on purpose"
    assert "test_process.py" in Lost.from_text(answers[2][1].decode()).traceback
    assert "not a fedmef message" in reason(answers[3])


def test_samples_that_there_are_not_cost_one_answer() -> None:
    count = len(read_digits().train)
    answers = served(
        request(1, message(), range(count, count + 2))
        + request(1, message(), range(-1, 3))
        + request(1, message(), range(4))
    )
    assert [status for status, _ in answers] == [DONE, FAILED, FAILED, DONE]
    assert f"there are only {count} samples" in reason(answers[1])


def test_a_device_that_does_not_hold_what_a_message_builds_on_asks_for_all(tmp_path: Path) -> None:
    short = encode_broadcast(random_model(NETWORK, 0.5), JOB, knows_network=True)
    _, answer = served(request(0, short), device(store=Store(tmp_path)))
    assert answer[0] == FAILED
    assert Lost.from_text(answer[1].decode()).needs_all


class Tight(io.BytesIO):
    """There is no room for more than 100 kB at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= 100_000:
            raise MemoryError
        return super().read(size)


@pytest.mark.parametrize("large", [(range(20_000), b"short"), (range(4), b"long" * 50_000)])
def test_a_message_that_there_is_no_room_for_costs_one_answer(large: tuple[range, bytes]) -> None:
    chosen, content = large
    answers = io.BytesIO()
    requests = request(5, content, chosen) + request(6, message(), range(4))
    assert serve(device, Tight(requests), answers) == 0
    ready, refused, trained = split(answers.getvalue())
    assert ready[0] == trained[0] == DONE
    assert reason(refused) == "device 5 is out of memory"


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (TOO_LARGE, "4,294,967,297 of message"),
        (struct.pack("<QQQ", 0, 2**34, 5), "17,179,869,184 bytes of samples' numbers"),
        (struct.pack("<QQQ", 0, 12, 5) + bytes(17), "12 bytes of samples' numbers"),
    ],
)
def test_a_request_of_a_wrong_size_is_not_read(wrong: bytes, complaint: str) -> None:
    answers = io.BytesIO()
    with pytest.raises(MessageError, match=complaint):
        serve(device, io.BytesIO(request(0, message()) + wrong), answers)
    assert [status for status, _ in split(answers.getvalue())] == [DONE, DONE]


@pytest.mark.parametrize("kept", [5, REQUEST.size + 7, REQUEST.size + 32 + 9])
def test_a_request_that_breaks_off_is_not_trained_on(kept: int) -> None:
    answers = io.BytesIO()
    with pytest.raises(MessageError, match="too early"):
        serve(device, io.BytesIO(request(0, message(), range(4))[:kept]), answers)
    assert split(answers.getvalue()) == [(DONE, b"")]


@pytest.mark.parametrize(("error", "code"), [(UserError("no data"), 2), (OSError("no disk"), 1)])
def test_a_device_that_cannot_start_says_why(error: Exception, code: int) -> None:
    def open_device() -> Device:
        raise error

    answers = io.BytesIO()
    assert serve(open_device, io.BytesIO(request(0, message())), answers) == code
    (answer,) = split(answers.getvalue())
    assert str(error) in reason(answer)
    assert "Traceback" in Lost.from_text(answer[1].decode()).traceback


@needs_kernels
def test_a_method_that_is_not_there_shows_at_the_start() -> None:
    with pytest.raises(UserError, match="there is no module 'nowhere'"):
        native_device(samples(), methods=["nowhere:Method"])
    with pytest.raises(UserError, match="must be a subclass"):
        native_device(samples(), methods=["pathlib:Path"])


NOISY = """
import os, sys
import numpy as np
from fedmef.methods import Method

print("noise while it is imported")

def data():
    print("noise while data are made")
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (48, 1, 8, 8), dtype=np.uint8), np.arange(48) % 10

class Noisy(Method):
    def train(self, local, job):
        print("noise", file=sys.stdout, flush=True)
        os.write(1, b"raw noise")
        assert sys.stdin.read() == ""  # nor does it take a message away
        return super().train(local, job)
"""


def run_process(folder: Path, requests: bytes, *options: str) -> subprocess.CompletedProcess[bytes]:
    path = os.pathsep.join([str(folder), *sys.path])
    return subprocess.run(
        [sys.executable, "-m", "fedmef.device", "--serve", *options],
        input=requests,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder,
        check=False,
    )


@needs_kernels
def test_what_a_users_code_prints_or_reads_does_not_disturb_the_messages(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    content = message(method="noisy:Noisy")
    requests = request(0, content) + request(1, content, range(16))
    ended = run_process(tmp_path, requests, "--data", "noisy:data", "--method", "noisy:Noisy")
    assert ended.returncode == 0
    answers = split(ended.stdout)
    assert [status for status, _ in answers] == [DONE] * 3
    assert decode_update(answers[2][1], NETWORK).samples == 16
    for noise in (b"while it is imported", b"while data are made", b"raw noise"):
        assert noise in ended.stderr


@needs_kernels
def test_a_process_says_on_the_pipe_why_it_cannot_start(tmp_path: Path) -> None:
    ended = run_process(tmp_path, b"", "--data", str(tmp_path / "nowhere"))
    assert ended.returncode == 2
    (answer,) = split(ended.stdout)
    assert "nowhere" in reason(answer)


@needs_kernels
def test_a_process_whose_answers_nobody_reads_ends_in_silence(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    command = [sys.executable, "-m", "fedmef.device", "--serve", "--data", "noisy:data"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(ANSWER.size)
        process.stdout.close()
        process.stdin.write(request(0, message()))
        process.stdin.close()
        said = process.stderr.read()
    assert process.returncode == 1
    assert [line for line in said.splitlines() if not line.startswith(b"noise")] == []


@needs_kernels
def test_a_process_that_is_sent_nonsense_ends_with_an_error(tmp_path: Path) -> None:
    images, labels = samples().images[:8], samples().labels[:8]
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "labels.npy", labels)
    ended = run_process(tmp_path, TOO_LARGE, "--data", str(tmp_path))
    assert ended.returncode == 1
    assert split(ended.stdout) == [(DONE, b"")]
    assert b"fedmef.device: a request with" in ended.stderr
    assert b"Traceback" not in ended.stderr
