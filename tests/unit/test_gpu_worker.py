"""GPUWorker, Leader and Follower with a pretend executor: what is claimed, told and handed on."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diffbatch.parallel.wire import Waiting
from diffbatch.pipeline.clock import StageLedger
from diffbatch.pipeline.flight import Failure, Finished, Turn
from diffbatch.req import MicroBatch, OutputBatch
from diffbatch.worker.bridge import Bridge, Order, order_from_dict
from diffbatch.worker.gpu_worker import GPUWorker
from diffbatch.worker.orders import Follower, Leader
from tests.solo import ListBoard, ListSink
from tests.unit.test_launch_feed import batches_of


class FakeExecutor:
    """Every micro-batch takes `num_steps` turns; one whose cost is negative fails on admission."""

    def __init__(self, num_steps: int = 2, memory: int = 99) -> None:
        self.num_steps = num_steps
        self.memory = memory  # requests that fit
        self.flights: dict[str, tuple[MicroBatch, int]] = {}
        self.turn_now = Turn()
        self.most_in_flight = 0
        self.num_admitted = 0  # requests
        self.flushed = False
        self.ledger = StageLedger(torch.device("cpu"), Waiting())

    @property
    def num_in_flight(self) -> int:
        return len(self.flights)

    num_stepping = num_in_flight

    @property
    def steps_left(self) -> int | None:
        return min((self.num_steps - done for _, done in self.flights.values()), default=None)

    @property
    def steps(self) -> tuple[int, int]:
        return sum(done for _, done in self.flights.values()), self.num_steps * len(self.flights)

    def admit(self, batches: Sequence[tuple[str, MicroBatch]]) -> None:
        for key, batch in batches:
            self.num_admitted += len(batch.reqs)
            if batch.cost < 0 or len(batch.reqs) > self.memory:
                full = batch.cost >= 0
                self.turn_now.failures.append(Failure(key=key, error="no", out_of_memory=full))
            else:
                self.flights[key] = (batch, 0)
        self.most_in_flight = max(self.most_in_flight, len(self.flights))

    def turn(self) -> Turn:
        for key, (batch, done) in list(self.flights.items()):
            self.flights[key] = (batch, done + 1)
            if done + 1 == self.num_steps:
                del self.flights[key]
                num = len(batch.reqs)
                output = OutputBatch(reqs=batch.reqs, frames=(None,) * num, errors=(None,) * num)
                self.turn_now.finished.append(Finished(key=key, batch=batch, output=output))
        turn, self.turn_now = self.turn_now, Turn()
        return turn

    def drop(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.flights.pop(key, None)

    def flush(self) -> None:
        self.flushed = True


def run(
    board: ListBoard, executor: FakeExecutor, in_flight: int = 1, terminate: bool = False
) -> ListSink:
    sink = ListSink()
    bridge = Bridge(SimpleNamespace(size=1, notes=None))  # type: ignore[arg-type]
    leader: Any = Leader(executor, board, bridge, sink, replica=3, in_flight=in_flight)  # type: ignore[arg-type]
    if terminate:
        leader.terminate()
    times = GPUWorker(executor, bridge, sink, lambda: 0.0).run(leader)  # type: ignore[arg-type]
    assert times["wall_s"] >= times["active_s"] >= times["busy_s"] >= 0
    assert 0 <= times["overhead_s"] <= times["active_s"] + 0.001
    assert times["num_requests"] == executor.num_admitted
    assert sink.closed
    return sink


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_it_keeps_so_many_in_flight_and_hands_everything_on(in_flight: int) -> None:
    batches = batches_of(1, 2, 1, 1)
    executor = FakeExecutor(num_steps=3)
    sink = run(ListBoard(batches), executor, in_flight)
    assert [put[0].reqs for put in sink.puts] == [batch.reqs for batch in batches]
    assert [put[1] for put in sink.puts] == [batch.write for batch in batches]
    assert executor.most_in_flight == in_flight
    assert executor.flushed


def test_it_waits_while_the_queue_is_empty_and_goes_on_when_work_comes() -> None:
    [one, other] = batches_of(1, 1)
    sink = run(ListBoard([None, one, None, None, None, other]), FakeExecutor())
    assert len(sink.puts) == 2


def test_what_fails_is_recorded_once_even_as_the_last() -> None:
    [good, bad] = batches_of(1, 2)
    bad = MicroBatch(reqs=bad.reqs, write=bad.write, cost=-1.0)
    sink = run(ListBoard([good, bad]), FakeExecutor())
    assert [put[0].errors for put in sink.puts] == [(None,), ("no", "no")]
    assert sink.puts[1][1] == bad.write


def test_out_of_memory_tries_halves() -> None:
    [batch] = batches_of(5)
    sink = run(ListBoard([batch]), FakeExecutor(memory=2))
    assert [len(put[0].reqs) for put in sink.puts] == [2, 1, 2]
    assert sorted(r.id for put in sink.puts for r in put[0].reqs) == sorted(batch.write)


def test_the_wish_for_frames_goes_along() -> None:
    [batch] = batches_of(1)
    wish = MicroBatch(reqs=batch.reqs, write=batch.write, keep_frames=True)
    [(_, _, keep_frames)] = run(ListBoard([wish]), FakeExecutor()).puts
    assert keep_frames


def test_told_to_stop_it_leaves_what_is_in_flight() -> None:
    board = ListBoard(batches_of(1, 1))
    board.stopped = True
    executor = FakeExecutor(num_steps=50)
    assert run(board, executor, in_flight=3).puts == []
    assert board.work


def test_terminated_it_leaves_before_the_next_turn() -> None:
    executor = FakeExecutor()
    assert run(ListBoard(batches_of(1)), executor, terminate=True).puts == []
    assert executor.most_in_flight == 0


def test_an_order_survives_the_wire() -> None:
    order = Order(drop=["a"], admit=[("b", batches_of(2)[0])])
    assert order_from_dict(order.as_dict()) == order


class FakeNotes:
    """Notes in a dict."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.queue: list[Any] = []

    def write(self, key: str, value: Any) -> None:
        self.values[key] = value

    def read(self, key: str) -> Any:
        return self.values[key]

    def ready(self, key: str) -> bool:
        return key in self.values

    def erase(self, key: str) -> None:
        del self.values[key]

    def push(self, _queue: str, value: Any) -> None:
        self.queue.append(value)

    def pop(self, _queue: str) -> Any:
        return self.queue.pop(0) if self.queue else None


def test_followers_get_every_order_and_leaders_every_report() -> None:
    team: Any = SimpleNamespace(size=2, notes=FakeNotes())
    leader, follower = Bridge(team), Bridge(team)
    for number in range(12):
        leader.give(Order(drop=[str(number)]))
        found = follower.take(idle=False, stopped=lambda: False)
        assert found is not None
        assert found.drop == [str(number)]
    assert len(team.notes.values) <= 9, "old orders are erased"
    follower.failed(Failure(key="k", error="no"))
    follower.decoded("m")
    follower.done()
    told = [(report.kind, report.key, report.error) for report in leader.reports()]
    assert told == [("failed", "k", "no"), ("decoded", "m", ""), ("done", "", "")]
    assert list(leader.reports()) == []


class Onlooker:
    """A profiler that notes what it was told."""

    def __init__(self) -> None:
        self.seen: list[int | None] = []
        self.closed = False

    def begin_turn(self, steps_left: int | None) -> None:
        assert not self.closed
        self.seen.append(steps_left)

    def close(self) -> None:
        self.closed = True


def test_a_profiler_sees_every_turn_after_what_it_admits() -> None:
    sink, profiler = ListSink(), Onlooker()
    executor: Any = FakeExecutor(num_steps=2)
    board: Any = ListBoard(batches_of(1, 1))
    bridge = Bridge(SimpleNamespace(size=1, notes=None))  # type: ignore[arg-type]
    leader = Leader(executor, board, bridge, sink, replica=0, in_flight=1)
    GPUWorker(executor, bridge, sink, lambda: 0.0, profiler).run(leader)
    assert profiler.seen == [2, 1, 2, 1]
    assert profiler.closed


def test_an_idle_follower_can_be_stopped() -> None:
    team: Any = SimpleNamespace(size=2, notes=FakeNotes())
    executor: Any = FakeExecutor()
    follower = Follower(executor, Bridge(team))
    follower.terminate()
    assert follower.next() is None
