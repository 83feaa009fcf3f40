"""The board on which ranks leave messages for each other: queues in torchrun's own store.

No collective is needed between replicas after start-up: the Scheduler pushes work, leaders pop it,
and leaders push events that the Scheduler forwards. Each thread needs a board of its own, because
a store client serves one caller at a time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_WORK, _EVENTS, _STOP, _OPEN, _GONE = "work", "events", "stop", "open", "gone"
_END = b"end"
_OPEN_S = 600.0
_GONE_S = 60.0
_STOP_POLL_S = 0.2


class EndOfWork:
    """What `Board.claim` returns when no more work will come."""


class Board:
    """One thread's view of the board. `attempt` keeps a restarted group apart from the last one."""

    def __init__(self, store: Store, attempt: int) -> None:
        from torch.distributed.distributed_c10d import PrefixStore

        self._store: Any = PrefixStore(f"diffbatch/{attempt}", store)
        self._stop_seen = threading.Event()

    def clone(self) -> Board:
        """A board on a connection of its own, for another thread."""
        board = Board.__new__(Board)
        board._store = self._store.clone()
        board._stop_seen = self._stop_seen
        return board

    def open(self, *, has_work: bool = True) -> None:
        """Let the other ranks begin. Rank 0, when the run folder is ready for writers.

        Without work they end instead.
        """
        self._store.set(_OPEN, "work" if has_work else "nothing")

    def wait_until_open(self) -> bool:
        """Wait for rank 0's `open`; whether there is work. Raises the store's error in the end."""
        self._store.wait([_OPEN], timedelta(seconds=_OPEN_S))
        has_work = bool(self._store.get(_OPEN) == b"work")
        if not has_work:
            self._store.add(_GONE, 1)
        return has_work

    def wait_until_gone(self, num_others: int) -> None:
        """After `open` without work: the store may live in rank 0, which must be the last to go."""
        end_s = time.monotonic() + _GONE_S
        while self._store.add(_GONE, 0) < num_others and time.monotonic() < end_s:
            time.sleep(0.05)

    def offer(self, batch: dict[str, Any]) -> None:
        """Put a micro-batch at the end of the queue. Scheduler only."""
        self._store.queue_push(_WORK, json.dumps(batch))

    def end_work(self, num_leaders: int) -> None:
        """Tell each leader that nothing follows. Scheduler only."""
        for _ in range(num_leaders):
            self._store.queue_push(_WORK, _END.decode())

    def claim(self) -> dict[str, Any] | EndOfWork | None:
        """The next micro-batch, `EndOfWork`, or None when there is none at the moment."""
        data = self._pop(_WORK)
        if data is None:
            return None
        if data == _END:
            return EndOfWork()
        batch: dict[str, Any] = json.loads(data)
        return batch

    def post(self, event: dict[str, Any]) -> None:
        """Leave `event` for the client, with the time (of this host's clock) at which it came."""
        event = {**event, "time_s": round(time.time(), 4)}
        self._store.queue_push(_EVENTS, json.dumps(event))

    def next_event(self) -> dict[str, Any] | None:
        """The oldest event that was not yet forwarded. Scheduler only."""
        data = self._pop(_EVENTS)
        if data is None:
            return None
        event: dict[str, Any] = json.loads(data)
        return event

    def stop(self) -> None:
        """Tell every leader to claim nothing more and to drop what is in flight."""
        self._store.set(_STOP, "1")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within the block a thread keeps `stopped` true to what happens, at no cost to a step."""
        over = threading.Event()
        thread = threading.Thread(target=self.clone()._watch, args=(over,), name="stop")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called by anyone; only within `watching`."""
        return self._stop_seen.is_set()

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(_STOP_POLL_S):
            if self._store.check([_STOP]):
                self._stop_seen.set()
                return

    def _pop(self, queue: str) -> bytes | None:
        from torch.distributed import QueueEmptyError

        if not self._store.queue_len(queue):
            return None
        try:
            return bytes(self._store.queue_pop(queue, False))
        except QueueEmptyError:  # another leader was faster
            return None
