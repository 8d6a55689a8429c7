import torch

from fedmef.device.measured import measured


def test_a_report_counts_bytes_and_the_memory_that_training_took() -> None:
    def train(device: int, message: bytes) -> bytes:
        torch.ones(60_000_000, dtype=torch.uint8)
        return message * device

    answer, report = measured(train, 3, [b"abc"])
    _, small = measured(lambda _, message: message, 0, [b"abc"])
    assert answer == b"abcabcabc"
    assert (report.device, report.bytes_down, report.bytes_up) == (3, 3, 9)
    assert report.seconds > 0
    assert report.peak_memory > small.peak_memory + 50_000_000 > 50_000_000
