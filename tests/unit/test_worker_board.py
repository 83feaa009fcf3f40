"""The board: how a stop reaches a leader, beside its steps."""

from __future__ import annotations

import threading
import time

import pytest
from torch.distributed import TCPStore

from diffbatch.worker.board import Board

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def board() -> Board:
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    return Board(store, attempt=0)


def _watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "stop"]


def test_a_stop_is_seen_while_the_board_is_watched(board: Board) -> None:
    with board.watching():
        assert not board.stopped
        board.clone().stop()
        end_s = time.monotonic() + 10
        while not board.stopped and time.monotonic() < end_s:
            time.sleep(0.02)
        assert board.stopped
    assert board.stopped, "and stays"
    assert _watchers() == []


def test_without_a_stop_the_watcher_leaves_with_the_block(board: Board) -> None:
    with board.watching():
        assert len(_watchers()) == 1
    assert not board.stopped
    assert _watchers() == []


def test_an_error_in_the_block_ends_the_watcher_too(board: Board) -> None:
    with pytest.raises(RuntimeError, match="mine"), board.watching():
        raise RuntimeError("mine")
    assert _watchers() == []


def test_a_stop_of_an_earlier_attempt_is_not_seen() -> None:
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    Board(store, attempt=0).stop()
    again = Board(store, attempt=1)
    with again.watching():
        time.sleep(0.5)
        assert not again.stopped
