"""Feed: which micro-batches are waiting, submitted, or recorded. The client's bookkeeping."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from diffbatch.req import MicroBatch
from diffbatch.worker.link import Message

WINDOW = 256  # ids handed to the Scheduler and not yet recorded; bounds its memory

Send = Callable[[Message], None]


@dataclass(slots=True)
class _Submitted:
    batch: MicroBatch
    missing: set[str]  # ids whose records are still to come


class Feed:
    """Hands out micro-batches in order and knows which ids have no record yet."""

    def __init__(self, batches: Iterable[MicroBatch]) -> None:
        self._waiting = deque(batches)
        self._open: dict[str, _Submitted] = {}  # id -> its micro-batch

    @property
    def done(self) -> bool:
        """Whether every id has its record."""
        return not (self._waiting or self._open)

    def submit(self, send: Send) -> None:
        """Send as much as the window allows."""
        while self._waiting and len(self._open) < WINDOW:
            batch = self._waiting.popleft()
            entry = _Submitted(batch, set(batch.write))
            self._open.update(dict.fromkeys(batch.write, entry))
            send({"op": "submit", "batch": batch.as_dict()})

    def resubmit(self, send: Send) -> None:
        """Send again what has no record: the workers that had it are gone."""
        entries = {id(entry): entry for entry in self._open.values()}
        for entry in entries.values():
            batch = replace(entry.batch, write=frozenset(entry.missing))
            send({"op": "submit", "batch": batch.as_dict()})

    def recorded(self, req_id: str) -> None:
        """Note that `req_id` has its record."""
        entry = self._open.pop(req_id, None)
        if entry is not None:
            entry.missing.discard(req_id)
