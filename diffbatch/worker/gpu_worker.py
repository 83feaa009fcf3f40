"""GPUWorker: one per rank. The leader of a replica pulls work and hands on results."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any, Protocol

from diffbatch.log import get_logger
from diffbatch.pipeline.executor import ParallelExecutor
from diffbatch.req import MicroBatch, OutputBatch, micro_batch_from_dict
from diffbatch.worker.board import Board, EndOfWork

_IDLE_S = 0.02  # between two looks at an empty queue; bounds the delay of a new request
_STEP_EVENT_S = 0.5  # at most this often a leader reports its steps
_log = get_logger(__name__)


class Sink(Protocol):
    """Where a leader's results go: `output.writer.OutputWriter`."""

    def put(self, batch: OutputBatch, write: Collection[str], keep_frames: bool) -> None:
        """Take the results whose ids are in `write`; may wait when too many are queued."""

    def close(self) -> None:
        """Wait until everything is on disk; raise the first error that could not be recorded."""


class GPUWorker:
    """Keeps `in_flight` micro-batches in the executor until the work ends or a stop is asked."""

    def __init__(
        self, executor: ParallelExecutor, board: Board, sink: Sink, *, replica: int, in_flight: int
    ) -> None:
        self._executor = executor
        self._board = board
        self._sink = sink
        self._replica = replica
        self._in_flight = in_flight
        self._admitted: dict[str, MicroBatch] = {}  # id of a request -> its micro-batch
        self._work_ended = False
        self._busy_s = 0.0
        self._last_step_event_s = 0.0
        self.terminated = False

    def terminate(self) -> None:
        """Stop before the next step. Safe to call from a signal handler."""
        self.terminated = True

    def run(self) -> None:
        """Work until the queue ends; then close the sink and say goodbye on the board.

        When told to stop, what is in flight is dropped: it is made again by the next run.
        """
        begin_s = time.perf_counter()
        while not (self.terminated or self._board.stopped):
            self._fill()
            if self._work_ended and not self._executor.num_in_flight:
                self._step()  # hands on what failed while it was admitted
                break
            if not self._step():
                time.sleep(_IDLE_S)
        else:
            _log.info("told to stop with %d in flight", self._executor.num_in_flight)
            self._executor.drop()
        self._sink.close()
        wall_s = time.perf_counter() - begin_s
        self._post("left", busy_s=round(self._busy_s, 3), wall_s=round(wall_s, 3))

    def _fill(self) -> None:
        while not self._work_ended and self._executor.num_in_flight < self._in_flight:
            claimed = self._board.claim()
            if claimed is None:
                return
            if isinstance(claimed, EndOfWork):
                self._work_ended = True
                return
            self._admit(micro_batch_from_dict(claimed))

    def _admit(self, batch: MicroBatch) -> None:
        self._post("started", ids=[req.id for req in batch.reqs])
        self._admitted.update((req.id, batch) for req in batch.reqs)
        self._timed(lambda: self._executor.admit(batch))

    def _step(self) -> bool:
        """One turn of the executor; returns whether there was anything to do."""
        had_work = self._executor.num_in_flight > 0
        outputs = self._timed(self._executor.step)
        for output in outputs:
            batches = [self._admitted.pop(req.id) for req in output.reqs]
            self._sink.put(output, batches[0].write, batches[0].keep_frames)
        if had_work:
            self._report_steps()
        return had_work or bool(outputs)

    def _timed(self, work: Callable[[], Any]) -> Any:
        begin_s = time.perf_counter()
        result = work()
        self._busy_s += time.perf_counter() - begin_s
        return result

    def _report_steps(self) -> None:
        now_s = time.perf_counter()
        if now_s - self._last_step_event_s < _STEP_EVENT_S:
            return
        self._last_step_event_s = now_s
        done, total = self._executor.steps
        if total:
            self._post("step", steps_done=done, steps_total=total)

    def _post(self, event: str, **values: Any) -> None:
        self._board.post({"event": event, "replica": self._replica, **values})
