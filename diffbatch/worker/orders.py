"""Leader and Follower: where the ranks of a replica get their orders from."""

from __future__ import annotations

import itertools
import time
from collections import deque
from typing import Any

from diffbatch.errors import WorkerError
from diffbatch.log import get_logger
from diffbatch.pipeline.executor import ParallelExecutor
from diffbatch.req import MicroBatch, OutputBatch, micro_batch_from_dict
from diffbatch.worker.board import Board, EndOfWork
from diffbatch.worker.bridge import Bridge, Order, Report
from diffbatch.worker.gpu_worker import Sink

_IDLE_S = 0.02  # between two looks at an empty queue; bounds the delay of a new request
_STEP_EVENT_S = 1.0  # at most this often a leader reports its steps
_LEAVE_S = 120.0  # for the other ranks to save what they hold
_log = get_logger(__name__)


class Leader:
    """Pulls work from the board, keeps `in_flight` micro-batches going, and accounts for each.

    A micro-batch stays open until a rank has decoded it or reported it failed; a failed one is
    dropped on every rank and recorded here, or tried again in halves when memory ran out.
    """

    def __init__(
        self,
        executor: ParallelExecutor,
        board: Board,
        bridge: Bridge,
        sink: Sink,
        *,
        replica: int,
        in_flight: int,
    ) -> None:
        self._executor = executor
        self._board = board
        self._bridge = bridge
        self._sink = sink
        self._replica = replica
        self._in_flight = in_flight
        self.num_others = 0  # ranks of the team besides this one
        self._keys = (f"{replica}.{number}" for number in itertools.count())
        self._open: dict[str, MicroBatch] = {}
        self._again: deque[MicroBatch] = deque()  # halves
        self._work_ended = False
        self._last_step_event_s = 0.0
        self.terminated = False

    def terminate(self) -> None:
        """Stop before the next turn. Safe to call from a signal handler."""
        self.terminated = True

    def next(self) -> Order | None:
        """The next order, given to the whole team. Returns when there is something to do."""
        while True:
            if self.terminated or self._board.stopped:
                _log.info("told to stop with %d in flight", len(self._open))
                return self._give(Order(end=True))
            drop = self._read_reports()
            admit = self._claim_free_slots()
            if admit or drop or self._executor.num_stepping:
                self._report_steps()
                return self._give(Order(drop=drop, admit=admit))
            if self._work_ended and not self._open:
                return self._give(Order(end=True))
            time.sleep(_IDLE_S)

    def leave(self) -> None:
        """Wait until every other rank has saved what it holds."""
        waited_s, missing = 0.0, self.num_others
        while missing and not self.terminated:
            missing -= sum(report.kind == "done" for report in self._bridge.reports())
            if waited_s > _LEAVE_S:
                raise WorkerError(f"{missing} ranks of replica {self._replica} do not end")
            time.sleep(_IDLE_S)
            waited_s += _IDLE_S

    def _give(self, order: Order) -> Order:
        self._bridge.give(order)
        return order

    def _read_reports(self) -> list[str]:
        dropped = []
        for report in self._bridge.reports():
            batch = self._open.pop(report.key, None)
            if batch is not None and report.kind == "failed":
                dropped.append(report.key)
                self._give_up(batch, report)
        return dropped

    def _give_up(self, batch: MicroBatch, report: Report) -> None:
        if report.out_of_memory and len(batch.reqs) > 1:
            _log.warning("out of memory with %d requests: trying halves", len(batch.reqs))
            self._again.extend(batch.halves())
            return
        num = len(batch.reqs)
        output = OutputBatch(reqs=batch.reqs, frames=(None,) * num, errors=(report.error,) * num)
        self._sink.put(output, batch.write, False)

    def _claim_free_slots(self) -> list[tuple[str, MicroBatch]]:
        admit: list[tuple[str, MicroBatch]] = []
        # Open, not stepping: another rank may not have decoded yet, but its slot is free.
        free = self._in_flight - self._executor.num_stepping
        while len(admit) < free and (batch := self._claim()) is not None:
            key = next(self._keys)
            self._open[key] = batch
            reqs = batch.reqs
            self._post("started", ids=[r.id for r in reqs], files=[r.file for r in reqs])
            admit.append((key, batch))
        return admit

    def _claim(self) -> MicroBatch | None:
        if self._again:
            return self._again.popleft()
        if self._work_ended:
            return None
        claimed = self._board.claim()
        if isinstance(claimed, EndOfWork):
            self._work_ended = True
            return None
        return None if claimed is None else micro_batch_from_dict(claimed)

    def _report_steps(self) -> None:
        now_s = time.perf_counter()
        done, total = self._executor.steps
        if total and now_s - self._last_step_event_s >= _STEP_EVENT_S:
            self._last_step_event_s = now_s
            self._post("step", steps_done=done, steps_total=total)

    def _post(self, event: str, **values: Any) -> None:
        self._board.post({"event": event, "replica": self._replica, **values})


class Follower:
    """Does what the leader of its replica says."""

    def __init__(self, executor: ParallelExecutor, bridge: Bridge) -> None:
        self._executor = executor
        self._bridge = bridge
        self.terminated = False

    def terminate(self) -> None:
        """Stop waiting. Safe to call from a signal handler."""
        self.terminated = True

    def next(self) -> Order | None:
        """The leader's next order; None when this rank was told to stop while idle."""
        idle = self._executor.num_stepping == 0
        return self._bridge.take(idle=idle, stopped=lambda: self.terminated)

    def leave(self) -> None:
        """Tell the leader that everything is saved."""
        self._bridge.done()
