"""The wire between the client and the Scheduler, and the Scheduler itself, without torch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import pytest

from diffbatch.plan.layout import Layout
from diffbatch.worker.link import (
    KEY_VARIABLE,
    LinkClosedError,
    Message,
    SocketLink,
    connect,
    queue_link_pair,
)
from diffbatch.worker.scheduler import Scheduler
from diffbatch.worker.spec import WorkerSpec

KEY = b"secret"


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SocketLink, SocketLink]]:
    """The client's end and the Scheduler's."""
    monkeypatch.setenv(KEY_VARIABLE, KEY.hex())
    with Listener(authkey=KEY) as listener:
        accepted: list[Any] = []
        thread = threading.Thread(target=lambda: accepted.append(listener.accept()))
        thread.start()
        far = connect(str(listener.address))
        thread.join()
        yield SocketLink(accepted[0]), far


def test_messages_arrive_in_order_both_ways(ends: tuple[SocketLink, SocketLink]) -> None:
    near, far = ends
    messages = [{"op": "submit", "batch": {"prompt": "\u732b \ud800"}}, {"op": "close"}]
    for message in messages:
        near.send(message)
    far.send({"event": "ready"})
    assert [far.receive(1.0), far.receive(1.0)] == messages
    assert near.receive(1.0) == {"event": "ready"}


def test_receive_gives_none_when_nothing_came(ends: tuple[SocketLink, SocketLink]) -> None:
    assert ends[0].receive(0.01) is None


def test_an_end_that_is_gone_is_noticed(ends: tuple[SocketLink, SocketLink]) -> None:
    near, far = ends
    far._connection.close()
    with pytest.raises(LinkClosedError):
        near.receive(1.0)
    with pytest.raises(LinkClosedError):
        near.send({"op": "close"})


def test_who_does_not_know_the_key_is_refused() -> None:
    refusals: list[BaseException] = []

    def accept() -> None:
        try:
            listener.accept()
        except AuthenticationError as error:
            refusals.append(error)

    with Listener(authkey=KEY) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        with pytest.raises(AuthenticationError):
            Client(str(listener.address), authkey=b"guess")
        thread.join()
    assert len(refusals) == 1


def test_a_queue_link_has_two_connected_ends() -> None:
    near, far = queue_link_pair()
    near.send({"op": "close"})
    far.send({"event": "ready"})
    assert far.receive(0.1) == {"op": "close"}
    assert near.receive(0.1) == {"event": "ready"}
    assert near.receive(0.01) is None


class FakeBoard:
    """Keeps what the Scheduler puts on it; `events` are waiting to be forwarded."""

    def __init__(self, *events: Message) -> None:
        self.events = list(events)
        self.offers: list[Any] = []
        self.num_ends = 0
        self.stopped = False

    def offer(self, batch: Any) -> None:
        self.offers.append(batch)

    def end_work(self, num_leaders: int) -> None:
        self.num_ends += num_leaders

    def stop(self) -> None:
        self.stopped = True

    def next_event(self) -> Message | None:
        return self.events.pop(0) if self.events else None


def run_scheduler(link: Any, board: FakeBoard, num_leaders: int) -> None:
    Scheduler(link, board, num_leaders).run()  # type: ignore[arg-type]


def test_scheduler_obeys_the_client_and_ends_when_all_leaders_have_left() -> None:
    near, far = queue_link_pair()
    board = FakeBoard()
    for message in [{"op": "submit", "batch": 1}, {"op": "submit", "batch": 2}, {"op": "close"}]:
        near.send(message)
    thread = threading.Thread(target=run_scheduler, args=(far, board, 2))
    thread.start()
    board.events += [{"event": "left", "replica": 1}, {"event": "ready"}]
    thread.join(0.3)
    assert thread.is_alive(), "one leader is still there"
    board.events.append({"event": "left", "replica": 0})
    thread.join(10)
    assert not thread.is_alive()
    assert (board.offers, board.num_ends, board.stopped) == ([1, 2], 2, False)
    forwarded = [near.receive(0.1) for _ in range(3)]
    assert [event["event"] for event in forwarded if event] == ["left", "ready", "left"]


def test_scheduler_passes_a_stop_on() -> None:
    near, far = queue_link_pair()
    near.send({"op": "stop"})
    board = FakeBoard({"event": "left", "replica": 0})
    run_scheduler(far, board, 1)
    assert board.stopped


def test_scheduler_stops_the_leaders_when_the_client_is_gone(
    ends: tuple[SocketLink, SocketLink],
) -> None:
    near, far = ends
    near._connection.close()
    board = FakeBoard()
    run_scheduler(far, board, 1)
    assert board.stopped


def test_a_worker_spec_survives_the_command_line() -> None:
    spec = WorkerSpec(
        model_folder=Path("/m/\u732b"),
        model_label="m",
        run_folder=Path("/out put"),
        layout=Layout(replicas=2, pp=2),
        partition=(3, 5),
        scheduler={"name": "X", "shift": 3.0},
        threads=1,
        parent_pid=7,
    )
    assert WorkerSpec.from_json(spec.to_json()) == spec
    assert "\n" not in spec.to_json()
