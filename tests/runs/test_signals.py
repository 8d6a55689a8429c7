import os
import signal
import threading
from collections.abc import Iterator

import pytest

from fedmef.errors import Interrupted
from fedmef.runs.signals import stop_on_signals


@pytest.fixture(autouse=True)
def nothing_is_ignored() -> Iterator[None]:
    """A shell's background job ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_one_that_comes_while_stopping_is_ignored(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    with stop_on_signals() as stop:
        stop.check("nobody asked")
        os.kill(os.getpid(), number)
        assert "once more stops at once" in capfd.readouterr().err
        with pytest.raises(Interrupted, match="after the round") as asked:
            stop.check("after the round")
        assert asked.value.signal_number == number
        os.kill(os.getpid(), number)  # the run is stopping already
    assert signal.getsignal(number) is before


def test_the_second_signal_stops_at_once_and_a_third_changes_nothing() -> None:
    with stop_on_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted, match="stopped") as stopped:
            os.kill(os.getpid(), signal.SIGTERM)
        assert stopped.value.signal_number == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_is_heard_though_nobody_reads_what_it_says() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    errors = os.dup(2)
    try:
        os.dup2(writing, 2)
        with stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.signal_number == signal.SIGTERM
    finally:
        os.dup2(errors, 2)
        os.close(errors)
        os.close(writing)


def test_a_block_inside_another_shares_its_request() -> None:
    with stop_on_signals() as outer:
        with stop_on_signals() as inner:
            assert inner is outer
        os.kill(os.getpid(), signal.SIGTERM)
        assert inner.signal_number == signal.SIGTERM


def test_in_another_thread_nobody_can_ask() -> None:
    seen = []

    def work() -> None:
        with stop_on_signals() as stop:
            seen.append(stop.signal_number)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [None]


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stop_on_signals() as stop, stop_on_signals() as inner:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal_number is None
        assert inner is stop
