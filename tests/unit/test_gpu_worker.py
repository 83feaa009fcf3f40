"""GPUWorker with a pretend executor, board and sink: claims, hands on, stops."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from diffbatch.req import MicroBatch, OutputBatch
from diffbatch.worker.board import EndOfWork
from diffbatch.worker.gpu_worker import GPUWorker
from tests.unit.test_launch_feed import batches_of


class FakeExecutor:
    """Every micro-batch takes `num_steps` turns; one whose cost is negative fails on admission."""

    def __init__(self, num_steps: int = 2) -> None:
        self.num_steps = num_steps
        self.flights: list[tuple[MicroBatch, int]] = []
        self.finished: list[OutputBatch] = []
        self.most_in_flight = 0
        self.dropped = False

    @property
    def num_in_flight(self) -> int:
        return len(self.flights)

    @property
    def steps(self) -> tuple[int, int]:
        return sum(done for _, done in self.flights), self.num_steps * len(self.flights)

    def admit(self, batch: MicroBatch) -> None:
        if batch.cost < 0:
            self.finished.append(_output(batch, "no"))
            return
        self.flights.append((batch, 0))
        self.most_in_flight = max(self.most_in_flight, len(self.flights))

    def step(self) -> list[OutputBatch]:
        if self.flights:
            batch, done = self.flights.pop(0)
            if done + 1 == self.num_steps:
                self.finished.append(_output(batch, None))
            else:
                self.flights.append((batch, done + 1))
        finished, self.finished = self.finished, []
        return finished

    def drop(self) -> None:
        self.flights.clear()
        self.dropped = True


def _output(batch: MicroBatch, error: str | None) -> OutputBatch:
    num = len(batch.reqs)
    return OutputBatch(reqs=batch.reqs, frames=(None,) * num, errors=(error,) * num)


class FakeBoard:
    """Hands out `work` in order, None standing for "nothing at the moment"."""

    def __init__(self, *work: MicroBatch | EndOfWork | None) -> None:
        self.work = list(work)
        self.events: list[dict[str, Any]] = []
        self.stopped = False
        self.stop_when_empty = False

    def claim(self) -> dict[str, Any] | EndOfWork | None:
        if not self.work:
            self.stopped = self.stop_when_empty
            return None
        found = self.work.pop(0)
        return found.as_dict() if isinstance(found, MicroBatch) else found

    def post(self, event: dict[str, Any]) -> None:
        self.events.append(event)


class FakeSink:
    """Keeps what it was given."""

    def __init__(self) -> None:
        self.puts: list[tuple[OutputBatch, frozenset[str], bool]] = []
        self.closed = False

    def put(self, batch: OutputBatch, write: Collection[str], keep_frames: bool) -> None:
        assert not self.closed
        self.puts.append((batch, frozenset(write), keep_frames))

    def close(self) -> None:
        self.closed = True


def run(board: FakeBoard, executor: FakeExecutor, in_flight: int = 1) -> FakeSink:
    sink = FakeSink()
    worker: Any = GPUWorker(executor, board, sink, replica=3, in_flight=in_flight)  # type: ignore[arg-type]
    worker.run()
    assert sink.closed
    assert board.events[-1]["event"] == "left"
    return sink


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_it_keeps_so_many_in_flight_and_hands_everything_on(in_flight: int) -> None:
    batches = batches_of(1, 2, 1, 1)
    executor = FakeExecutor(num_steps=3)
    sink = run(FakeBoard(*batches, EndOfWork()), executor, in_flight)
    assert [put[0].reqs for put in sink.puts] == [batch.reqs for batch in batches]
    assert [put[1] for put in sink.puts] == [batch.write for batch in batches]
    assert executor.most_in_flight == in_flight
    assert not executor.dropped


def test_it_waits_while_the_queue_is_empty_and_goes_on_when_work_comes() -> None:
    [one, other] = batches_of(1, 1)
    sink = run(FakeBoard(None, one, None, None, None, other, EndOfWork()), FakeExecutor())
    assert len(sink.puts) == 2


def test_what_fails_on_admission_is_handed_on_even_as_the_last() -> None:
    [good, bad] = batches_of(1, 1)
    bad = MicroBatch(reqs=bad.reqs, write=bad.write, cost=-1.0)
    sink = run(FakeBoard(good, bad, EndOfWork()), FakeExecutor())
    assert [put[0].errors for put in sink.puts] == [(None,), ("no",)]


def test_the_wish_for_frames_goes_along() -> None:
    [batch] = batches_of(1)
    wish = MicroBatch(reqs=batch.reqs, write=batch.write, keep_frames=True)
    [(_, _, keep_frames)] = run(FakeBoard(wish, EndOfWork()), FakeExecutor()).puts
    assert keep_frames


def test_told_to_stop_it_drops_what_is_in_flight() -> None:
    board = FakeBoard(*batches_of(1, 1))
    board.stop_when_empty = True
    executor = FakeExecutor(num_steps=50)
    sink = run(board, executor, in_flight=3)
    assert executor.dropped
    assert sink.puts == []


def test_terminated_it_leaves_before_the_next_step() -> None:
    board, executor, sink = FakeBoard(*batches_of(1)), FakeExecutor(), FakeSink()
    worker: Any = GPUWorker(executor, board, sink, replica=0, in_flight=1)  # type: ignore[arg-type]
    worker.terminate()
    worker.run()
    assert executor.dropped
    assert sink.closed
    assert len(board.work) == 1, "nothing was claimed"


def test_events_tell_what_begins_and_how_busy_it_was() -> None:
    [batch] = batches_of(2)
    board = FakeBoard(batch, EndOfWork())
    run(board, FakeExecutor())
    started, *_, left = board.events
    assert started == {"event": "started", "replica": 3, "ids": [r.id for r in batch.reqs]}
    assert set(left) == {"event", "replica", "busy_s", "wall_s"}
    assert 0 <= left["busy_s"] <= left["wall_s"]
