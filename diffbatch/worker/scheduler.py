"""Scheduler: the thread on rank 0 that takes work from the client and hands it to the leaders."""

from __future__ import annotations

import threading
from typing import Any

from diffbatch.log import get_logger
from diffbatch.worker.board import Board
from diffbatch.worker.link import Link, LinkClosedError

_TURN_S = 0.02  # how long one look at the link may take; bounds the delay of an event
_log = get_logger(__name__)


class Scheduler:
    """An event loop between the client's link and the board.

    It serves one client for as long as the workers live: micro-batches may arrive at any time.
    `run` returns when every leader has left.
    """

    def __init__(self, link: Link, board: Board, num_leaders: int) -> None:
        self._link = link
        self._board = board
        self._num_leaders = num_leaders
        self._leaders_left = 0

    def start(self) -> threading.Thread:
        """Run in a thread of its own; join it before the process ends."""
        thread = threading.Thread(target=self.run, name="scheduler", daemon=True)
        thread.start()
        return thread

    def run(self) -> None:
        """Serve until every leader has left, or until the client is gone."""
        try:
            while self._leaders_left < self._num_leaders:
                self._listen()
                self._forward()
        except LinkClosedError:
            _log.warning("the client is gone: stopping")
            self._board.stop()

    def _listen(self) -> None:
        message = self._link.receive(_TURN_S)
        while message is not None:
            self._obey(message)
            message = self._link.receive(0)

    def _obey(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "submit":
                self._board.offer(message["batch"])
            case "close":
                self._board.end_work(self._num_leaders)
            case "stop":
                self._board.stop()
            case other:
                raise ValueError(f"unknown message {other!r} from the client")

    def _forward(self) -> None:
        while (event := self._board.next_event()) is not None:
            self._leaders_left += event["event"] == "left"
            self._link.send(event)
