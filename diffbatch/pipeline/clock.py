"""Seconds per stage and peak memory, measured without holding up the device."""

from __future__ import annotations

import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

from diffbatch.parallel.wire import Waiting

_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024  # getrusage: bytes on macOS, else KiB

Mark = Callable[[str], AbstractContextManager[object]]  # names a `with` block in a trace


@dataclass(slots=True, kw_only=True)
class _Span:
    """One stretch of one stage. With `end`, its length is known when the device got there."""

    stage: str
    host_s: float
    waited_s: float  # of `host_s`: for other ranks
    begin: torch.cuda.Event | None = None
    end: torch.cuda.Event | None = None

    @property
    def is_over(self) -> bool:
        return self.end is None or bool(self.end.query())  # type: ignore[no-untyped-call]

    def seconds(self) -> float:
        """On an accelerator this waits for the device to reach the end of the span."""
        if self.begin is None or self.end is None:
            return self.host_s
        self.end.synchronize()
        milliseconds: float = self.begin.elapsed_time(self.end)
        return milliseconds / 1000


class StageLedger:
    """Adds up the seconds that this rank spends in each stage, over all micro-batches.

    On the CPU they are without the waits for other ranks. On an accelerator they are the stream's
    time, read from marks that it has passed, so nothing waits; where the stream itself waits for
    another rank, that is part of them. `mark` names stages in a trace, where one is taken.
    """

    def __init__(self, device: torch.device, waiting: Waiting, mark: Mark = nullcontext) -> None:
        self._on_device = device.type == "cuda"
        self._waiting = waiting
        self._mark = mark
        self._seconds: dict[str, float] = {}
        self._unread: deque[_Span] = deque()
        self._waited_s = 0.0

    @contextmanager
    def measure(self, stage: str) -> Iterator[_Span]:
        """Count the time of the `with` block to `stage`; the span is filled in at its end."""
        span = _Span(stage=stage, host_s=0.0, waited_s=0.0)
        begin_s, waited_s = time.perf_counter(), self._waiting.seconds
        with self._mark(stage):
            if self._on_device:
                span.begin, span.end = _event(), _event()
                span.begin.record()
                yield span
                span.end.record()
            else:
                yield span
        span.host_s = time.perf_counter() - begin_s
        span.waited_s = self._waiting.seconds - waited_s
        self._unread.append(span)
        while self._unread and self._unread[0].is_over:
            self._take(self._unread.popleft())

    def close(self, *, wait: bool) -> None:
        """At the end: take in what the device has done, after it has done all of it if `wait`."""
        while self._unread and (wait or self._unread[0].is_over):
            self._take(self._unread.popleft())

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds per stage, as far as they are known."""
        return dict(self._seconds)

    @property
    def covered_waiting_s(self) -> float:
        """Seconds in which the host waited for other ranks and that `seconds` contains."""
        return self._waited_s if self._on_device else 0.0

    def _take(self, span: _Span) -> None:
        self._waited_s += span.waited_s
        seconds = span.seconds() - (0.0 if self._on_device else span.waited_s)
        self._seconds[span.stage] = self._seconds.get(span.stage, 0.0) + seconds


class StageClock:
    """Adds up the seconds that one micro-batch spends in each stage.

    On an accelerator the marks are events in the stream, read when the micro-batch is decoded, so
    that no stage waits for the device because it is being timed.
    """

    def __init__(self, ledger: StageLedger) -> None:
        self._ledger = ledger
        self._seconds: dict[str, float] = {}
        self._spans: list[_Span] = []

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Count the time of the `with` block to `stage`."""
        with self._ledger.measure(stage) as span:
            yield
        self._spans.append(span)

    def share(self, part: float) -> StageClock:
        """A new clock that starts with `part` of the seconds of this one."""
        clock = StageClock(self._ledger)
        clock._seconds = {stage: s * part for stage, s in self.seconds().items()}
        return clock

    def seconds(self) -> dict[str, float]:
        """Seconds per stage so far. Waits for the device to reach the last mark."""
        for span in self._spans:
            self._seconds[span.stage] = self._seconds.get(span.stage, 0.0) + span.seconds()
        self._spans.clear()
        return dict(self._seconds)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory this process has held: of the device, or resident on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT_BYTES
