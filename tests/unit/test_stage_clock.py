"""Seconds per stage: of a micro-batch, of a rank, and on a device that is never waited for."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from diffbatch.parallel.wire import Waiting
from diffbatch.pipeline import clock as module
from diffbatch.pipeline.clock import StageClock, StageLedger
from diffbatch.worker.account import Account

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Time:
    """A clock that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 10.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now_s)

    def passes(self, seconds: float, waiting: Waiting | None = None) -> None:
        self.now_s += seconds
        if waiting is not None:
            waiting.seconds += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def test_a_rank_counts_what_its_micro_batches_count(time: Time) -> None:
    ledger = StageLedger(CPU, Waiting())
    encoding = StageClock(ledger)
    with encoding.measure("text_encoding"):
        time.passes(3)
    clocks = [encoding.share(0.25), encoding.share(0.75)]
    for clock in clocks:
        with clock.measure("denoising"):
            time.passes(2)
    assert [clock.seconds() for clock in clocks] == [
        {"text_encoding": 0.75, "denoising": 2.0},
        {"text_encoding": 2.25, "denoising": 2.0},
    ]
    assert ledger.seconds == {"text_encoding": 3.0, "denoising": 4.0}


def test_waits_for_other_ranks_are_no_work_of_this_one(time: Time) -> None:
    waiting = Waiting()
    ledger = StageLedger(CPU, waiting)
    clock = StageClock(ledger)
    with clock.measure("denoising"):
        time.passes(2)
        time.passes(5, waiting)
    assert clock.seconds() == {"denoising": 7.0}, "the micro-batch took so long"
    assert ledger.seconds == {"denoising": 2.0}


def test_a_stage_that_fails_counts_for_nothing(time: Time) -> None:
    ledger = StageLedger(CPU, Waiting())
    with pytest.raises(ArithmeticError), StageClock(ledger).measure("denoising"):
        raise ArithmeticError
    assert ledger.seconds == {}


def test_stages_are_named_in_a_trace() -> None:
    names: list[str] = []

    def mark(name: str) -> AbstractContextManager[object]:
        names.append(name)
        return nullcontext()

    with StageClock(StageLedger(CPU, Waiting(), mark)).measure("decoding"):
        pass
    assert names == ["decoding"]


class FakeDevice:
    """Events of a device that lags behind until it is told to catch up."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.done = 0  # events
        self.num_syncs = 0

    def event(self) -> Any:
        device = self

        class Event:
            def record(self) -> None:
                device.events.append(self)

            def query(self) -> bool:
                return device.events.index(self) < device.done

            def synchronize(self) -> None:
                device.num_syncs += not self.query()
                device.done = max(device.done, device.events.index(self) + 1)

            def elapsed_time(self, other: Any) -> float:
                return 1000.0 * (device.events.index(other) - device.events.index(self))

        return Event()


def test_on_a_device_nothing_is_waited_for_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    monkeypatch.setattr(module, "_event", device.event)
    ledger = StageLedger(CUDA, Waiting())
    clock = StageClock(ledger)
    for _ in range(3):
        with clock.measure("denoising"):
            pass
    assert ledger.seconds == {}
    device.done = 4
    with clock.measure("denoising"):
        pass
    assert ledger.seconds == {"denoising": 2.0}, "what the device has passed by then"
    ledger.close(wait=False)
    assert (ledger.seconds, device.num_syncs) == ({"denoising": 2.0}, 0)
    ledger.close(wait=True)
    assert ledger.seconds == clock.seconds() == {"denoising": 4.0}


def test_overhead_is_active_time_without_stages_and_waits(time: Time) -> None:
    waiting = Waiting()
    ledger = StageLedger(CPU, waiting)
    account = Account(ledger, lambda: waiting.seconds)
    time.passes(100)  # idle
    with account.active():
        with account.busy(), StageClock(ledger).measure("denoising"):
            time.passes(4)
            time.passes(2, waiting)
        time.passes(1, waiting)
        time.passes(0.5)
    account.num_requests = 2
    assert account.close(all_done=True) == {
        "busy_s": 4.0,
        "waiting_s": 3.0,
        "active_s": 7.5,
        "wall_s": 107.5,
        "stage_s": {"denoising": 4.0},
        "overhead_s": 0.5,
        "num_requests": 2,
    }


def test_a_wait_that_a_device_spent_in_a_stage_is_subtracted_once(
    time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_event", FakeDevice().event)  # every stage takes 1 s
    waiting = Waiting()
    ledger = StageLedger(CUDA, waiting)
    account = Account(ledger, lambda: waiting.seconds)
    with account.active():
        with StageClock(ledger).measure("denoising"):
            time.passes(0.75, waiting)
        time.passes(0.5)
    assert account.close(all_done=True)["overhead_s"] == 0.25
