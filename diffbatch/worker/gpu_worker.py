"""GPUWorker: one per rank. All ranks of a replica take the same turns; its leader decides what."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Protocol

from diffbatch.pipeline.executor import ParallelExecutor
from diffbatch.pipeline.flight import Turn
from diffbatch.req import OutputBatch
from diffbatch.worker.bridge import Bridge, Order


class Sink(Protocol):
    """Where results go: `output.writer.OutputWriter`."""

    def put(self, batch: OutputBatch, write: Collection[str], keep_frames: bool) -> None:
        """Take the results whose ids are in `write`; may wait when too many are queued."""

    def close(self) -> None:
        """Wait until everything is on disk; raise the first error that could not be recorded."""


class Orders(Protocol):
    """Where a rank's orders come from: its `Leader`, or the `Follower` of another rank's."""

    def next(self) -> Order | None:
        """The next order; None to leave at once."""

    def leave(self) -> None:
        """This rank has nothing left to do or to save."""


class GPUWorker:
    """Carries out orders: drop, admit, one turn, until the end. The same code on every rank."""

    def __init__(
        self, executor: ParallelExecutor, bridge: Bridge, sink: Sink, waiting_s: Callable[[], float]
    ) -> None:
        self._executor = executor
        self._bridge = bridge
        self._sink = sink
        self._waiting_s = waiting_s
        self._work_s = 0.0
        self._active_s = 0.0

    def run(self, orders: Orders) -> dict[str, float]:
        """Work until an order says to end; returns what the seconds of this rank went to.

        `busy_s` it computed, `waiting_s` it waited for other ranks of its replica, `active_s` it
        had something in flight, `wall_s` it was there. When told to leave, what is in flight is
        dropped: it is made again by the next run.
        """
        begin_s = time.perf_counter()
        while (order := self._next(orders)) is not None:
            active_s = time.perf_counter()
            work_s = time.perf_counter()
            self._executor.drop(order.drop)
            if order.admit:
                self._executor.admit(order.admit)
            turn = self._executor.turn()
            self._work_s += time.perf_counter() - work_s
            self._hand_on(turn)
            self._active_s += time.perf_counter() - active_s
        if not self._executor.num_in_flight:
            self._executor.flush()
        self._sink.close()
        orders.leave()
        waiting_s = self._waiting_s()
        seconds = {
            "busy_s": self._work_s - waiting_s,
            "waiting_s": waiting_s,
            "active_s": self._active_s,
            "wall_s": time.perf_counter() - begin_s,
        }
        return {name: round(value, 3) for name, value in seconds.items()}

    def _next(self, orders: Orders) -> Order | None:
        """The next order to carry out; None at the end. Waiting with nothing in flight is idle."""
        idle = self._executor.num_in_flight == 0
        begin_s = time.perf_counter()
        order = orders.next()
        if not idle:
            self._active_s += time.perf_counter() - begin_s
        return None if order is None or order.end else order

    def _hand_on(self, turn: Turn) -> None:
        for failure in turn.failures:
            self._bridge.failed(failure)
        for finished in turn.finished:
            batch = finished.batch
            self._sink.put(finished.output, batch.write, batch.keep_frames)
            self._bridge.decoded(finished.key)
