"""Feed: at most a window of ids at the workers, and nothing without a record is forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from diffbatch.launch import feed as feed_module
from diffbatch.launch.feed import Feed
from diffbatch.req import MicroBatch
from tests.unit.output_helpers import make_req


class Wire:
    """Keeps what was sent: the ids to write of each micro-batch."""

    def __init__(self) -> None:
        self.sent: list[list[str]] = []

    def __call__(self, message: dict[str, Any]) -> None:
        assert message["op"] == "submit"
        self.sent.append(message["batch"]["write"])


def batches_of(*sizes: int) -> list[MicroBatch]:
    """Micro-batches of these sizes; their ids are r0, r1, ..."""
    found, start = [], 0
    for size in sizes:
        reqs = tuple(make_req(i, f"p{i}") for i in range(start, start + size))
        found.append(MicroBatch(reqs=reqs, write=frozenset(r.id for r in reqs)))
        start += size
    return found


def ids_of(batch: MicroBatch) -> list[str]:
    return sorted(batch.write)


@pytest.fixture
def wire() -> Wire:
    return Wire()


def test_a_feed_without_work_is_done(wire: Wire) -> None:
    feed = Feed(())
    feed.submit(wire)
    assert feed.done
    assert wire.sent == []


def test_work_goes_out_in_order_and_once(wire: Wire) -> None:
    batches = batches_of(1, 2, 1)
    feed = Feed(batches)
    feed.submit(wire)
    feed.submit(wire)
    assert wire.sent == [ids_of(batch) for batch in batches]


def test_no_more_than_a_window_is_open(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "WINDOW", 3)
    batches = batches_of(1, 1, 1, 1, 1)
    feed = Feed(batches)
    feed.submit(wire)
    assert len(wire.sent) == 3
    feed.recorded(batches[1].reqs[0].id)
    feed.submit(wire)
    assert len(wire.sent) == 4
    for batch in batches:
        feed.recorded(batch.reqs[0].id)
        feed.submit(wire)
    assert len(wire.sent) == 5
    assert feed.done


def test_it_is_done_when_every_id_has_its_record(wire: Wire) -> None:
    [batch] = batches_of(2)
    feed = Feed([batch])
    assert not feed.done, "nothing is sent yet"
    feed.submit(wire)
    feed.recorded(batch.reqs[0].id)
    assert not feed.done
    feed.recorded(batch.reqs[1].id)
    assert feed.done


def test_after_a_restart_only_what_has_no_record_is_sent_again(wire: Wire) -> None:
    first, second, third = batches_of(2, 2, 1)
    feed = Feed([first, second, third])
    feed.submit(wire)
    wire.sent.clear()
    feed.recorded(first.reqs[0].id)
    feed.recorded(third.reqs[0].id)
    feed.resubmit(wire)
    assert wire.sent == [[first.reqs[1].id], ids_of(second)]
    assert not feed.done


def test_a_resubmitted_micro_batch_keeps_its_composition() -> None:
    [batch] = batches_of(3)
    messages: list[dict[str, Any]] = []
    feed = Feed([batch])
    feed.submit(messages.append)
    feed.recorded(batch.reqs[0].id)
    feed.resubmit(messages.append)
    sent, again = (message["batch"] for message in messages)
    assert again["reqs"] == sent["reqs"]
    assert len(again["write"]) == 2


def test_a_record_of_another_call_or_a_second_one_changes_nothing(wire: Wire) -> None:
    [batch] = batches_of(1)
    feed = Feed([batch])
    feed.submit(wire)
    feed.recorded("of-another-call")
    assert not feed.done
    feed.recorded(batch.reqs[0].id)
    feed.recorded(batch.reqs[0].id)
    assert feed.done
