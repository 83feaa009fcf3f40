"""Seconds per stage and peak memory, measured without holding up the device."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024  # getrusage: bytes on macOS, else KiB


class StageClock:
    """Adds up the seconds that one micro-batch spends in each stage.

    On an accelerator the marks are events in the stream, read when the micro-batch is decoded, so
    that no stage waits for the device because it is being timed.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_device = device.type == "cuda"
        self._seconds: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Count the time of the `with` block to `stage`."""
        if self._on_device:
            begin, end = _event(), _event()
            begin.record()
            yield
            end.record()
            self._events.append((stage, begin, end))
        else:
            begin_s = time.perf_counter()
            yield
            self._add(stage, time.perf_counter() - begin_s)

    def share(self, part: float) -> StageClock:
        """A new clock that starts with `part` of the seconds of this one."""
        clock = StageClock.__new__(StageClock)
        clock._on_device, clock._events = self._on_device, []
        clock._seconds = {stage: s * part for stage, s in self.seconds().items()}
        return clock

    def seconds(self) -> dict[str, float]:
        """Seconds per stage so far. Waits for the device to reach the last mark."""
        for stage, begin, end in self._events:
            end.synchronize()
            self._add(stage, begin.elapsed_time(end) / 1000)
        self._events.clear()
        return dict(self._seconds)

    def _add(self, stage: str, seconds: float) -> None:
        self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory this process has held: of the device, or resident on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT_BYTES
