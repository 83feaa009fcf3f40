"""Signals that ask for a stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from diffbatch.launch.signals import STOP_SIGNALS, StopFlag, stop_on_signals


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Signals as a shell gives them: tests may run where `&` or nohup has some ignored."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        own = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, own)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_the_first_signal_asks_for_a_stop_and_is_named(number: signal.Signals) -> None:
    calls: list[None] = []
    with stop_on_signals(lambda: calls.append(None)) as flag:
        assert not flag
        os.kill(os.getpid(), number)
        assert flag
        assert flag.name == number.name
    assert len(calls) == 1


def test_a_second_interrupt_ends_at_once_and_a_second_sigterm_does_not() -> None:
    with stop_on_signals(lambda: None):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals(lambda: None) as flag:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not flag
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_handlers_of_before_come_back() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with stop_on_signals(lambda: None):
        assert [signal.getsignal(number) for number in STOP_SIGNALS] != before
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_outside_the_main_thread_the_flag_stays_down() -> None:
    flags: list[StopFlag] = []

    def enter() -> None:
        with stop_on_signals(lambda: None) as flag:
            flags.append(flag)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert [flag.name for flag in flags] == [None]
