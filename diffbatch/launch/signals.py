"""Signals that mean "stop, you will be started again"."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# SIGUSR1 is what Slurm is told to send ahead of a time limit; SIGHUP comes with a lost terminal.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


class StopFlag:
    """Whether a stop was asked for."""

    def __init__(self) -> None:
        self.name: str | None = None  # of the signal

    def __bool__(self) -> bool:
        return self.name is not None


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[StopFlag]:
    """Call `stop` at the first stop signal; a second SIGINT ends the process as usual.

    A signal that the caller of this process chose to ignore (nohup, a shell's `&`) stays ignored.
    Outside the main thread Python allows no handlers, and the flag simply stays down.
    """
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    found = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    before = {number: how for number, how in found.items() if how is not signal.SIG_IGN}

    def handle(number: int, _frame: FrameType | None) -> None:
        if flag and number == signal.SIGINT:
            raise KeyboardInterrupt
        flag.name = signal.Signals(number).name
        stop()

    for number in before:
        signal.signal(number, handle)
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
