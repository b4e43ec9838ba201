from __future__ import annotations

import signal

import pytest

from trainer.run.stop import Stopped, StopRequest


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_outside_of_training_a_signal_ends_the_run_at_once(number, code):
    with StopRequest().installed(), pytest.raises(Stopped) as caught:
        signal.raise_signal(number)
    assert caught.value.exit_code == code


def test_in_training_a_signal_is_remembered():
    with StopRequest().installed() as stop:
        with stop.deferred():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
        assert stop.signal == signal.SIGTERM


def test_a_second_interrupt_does_not_wait():
    with StopRequest().installed() as stop, stop.deferred():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGINT)


def test_the_handlers_before_are_put_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with StopRequest().installed():
        pass
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
