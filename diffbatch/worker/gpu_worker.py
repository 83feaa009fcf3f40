"""GPUWorker: one per rank. All ranks of a replica take the same turns; its leader decides what."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import nullcontext
from typing import Any, Protocol

from diffbatch.pipeline.executor import ParallelExecutor
from diffbatch.pipeline.flight import Turn
from diffbatch.req import OutputBatch
from diffbatch.worker.account import Account
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


class Profiler(Protocol):
    """What looks on while a rank takes its turns: `worker.profile.TurnProfiler`."""

    def begin_turn(self, steps_left: int | None) -> None:
        """A turn is about to begin; see `ParallelExecutor.steps_left`."""

    def close(self) -> None:
        """No turn follows."""


class GPUWorker:
    """Carries out orders: drop, admit, one turn, until the end. The same code on every rank."""

    def __init__(
        self,
        executor: ParallelExecutor,
        bridge: Bridge,
        sink: Sink,
        waiting_s: Callable[[], float],
        profiler: Profiler | None = None,
    ) -> None:
        self._executor = executor
        self._bridge = bridge
        self._sink = sink
        self._waiting_s = waiting_s
        self._profiler = profiler

    def run(self, orders: Orders) -> dict[str, Any]:
        """Work until an order says to end; returns what the seconds of this rank went to.

        `busy_s` it computed, `active_s` it had something in flight, `waiting_s` of that it waited
        for other ranks of its replica, `wall_s` it was there, and what `Account` adds. When told to
        leave, what is in flight is dropped: it is made again by the next run.
        """
        account = Account(self._executor.ledger, self._waiting_s)
        while (order := self._next(orders, account)) is not None:
            with account.active(), account.busy():
                self._executor.drop(order.drop)
                if order.admit:
                    self._executor.admit(order.admit)
            account.num_requests += sum(len(batch.reqs) for _, batch in order.admit)
            if self._profiler is not None:  # outside of what is counted: it may write its trace
                self._profiler.begin_turn(self._executor.steps_left)
            with account.active():
                with account.busy():
                    turn = self._executor.turn()
                self._hand_on(turn)
        all_done = not self._executor.num_in_flight
        if all_done:
            self._executor.flush()
        self._sink.close()
        if self._profiler is not None:
            self._profiler.close()
        orders.leave()
        return account.close(all_done=all_done)

    def _next(self, orders: Orders, account: Account) -> Order | None:
        """The next order to carry out; None at the end. Waiting with nothing in flight is idle."""
        idle = self._executor.num_in_flight == 0
        with nullcontext() if idle else account.active():
            order = orders.next()
        return None if order is None or order.end else order

    def _hand_on(self, turn: Turn) -> None:
        for failure in turn.failures:
            self._bridge.failed(failure)
        for finished in turn.finished:
            batch = finished.batch
            self._sink.put(finished.output, batch.write, batch.keep_frames)
            self._bridge.decoded(finished.key)
