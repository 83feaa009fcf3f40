"""Tensors and notes between the ranks of a replica. Every wait is bounded and is counted.

A `Wire` moves tensors in one direction between two ranks; an `Inbox` is its receiving end, which
posts receives ahead in the order in which the peer sends. `Notes` are small JSON texts in
torchrun's store: what cannot be known ahead (a structure, a failure), once per micro-batch.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from diffbatch.parallel.structure import TensorSpec

_POLL_S = 0.002


class CommError(Exception):
    """A peer is gone or too late. Ends the worker; never the failure of one request."""


class PeerFailedError(Exception):
    """Another rank could not go on with this micro-batch, and said so."""


@dataclass(slots=True)
class Waiting:
    """Seconds that this rank has waited for its peers."""

    seconds: float = 0.0

    @contextmanager
    def count(self, what: str) -> Iterator[None]:
        """Count the time of the `with` block, and turn errors of torch into a CommError."""
        begin_s = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            raise CommError(f"while waiting for {what}: {error}") from error
        finally:
            self.seconds += time.perf_counter() - begin_s


class Notes:
    """Short JSON texts under keys of one replica. A key is written once."""

    def __init__(self, store: Any, prefix: str, waiting: Waiting, timeout_s: float) -> None:
        self._store = dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]
        self._waiting = waiting
        self._timeout = timedelta(seconds=timeout_s)

    def write(self, key: str, value: Any) -> None:
        """Leave `value` (JSON-ready) under `key`."""
        self._store.set(key, json.dumps(value))

    def read(self, key: str, *, erase: bool = False) -> Any:
        """Wait for the note under `key`. Its only reader erases it."""
        with self._waiting.count(f"note {key}"):
            self._store.wait([key], self._timeout)
            value = json.loads(self._store.get(key))
        if erase:
            self.erase(key)
        return value

    def read_first(self, keys: Sequence[str]) -> tuple[str, Any]:
        """Wait until one of several notes is there; returns its key and value."""
        with self._waiting.count(f"one of the notes {', '.join(keys)}"):
            end_s = time.monotonic() + self._timeout.total_seconds()
            while time.monotonic() < end_s:
                for key in keys:
                    if self.ready(key):
                        return key, json.loads(self._store.get(key))
                time.sleep(_POLL_S)
            raise CommError(f"no note {' or '.join(keys)} within {self._timeout}")

    def ready(self, key: str) -> bool:
        """Whether the note under `key` is there."""
        return bool(self._store.check([key]))

    def push(self, queue: str, value: Any) -> None:
        """Put `value` at the end of a queue."""
        self._store.queue_push(queue, json.dumps(value))

    def pop(self, queue: str) -> Any:
        """Take the oldest value of a queue that one rank reads; None when it is empty."""
        if not self._store.queue_len(queue):
            return None
        return json.loads(self._store.queue_pop(queue, False))

    def erase(self, key: str) -> None:
        """Forget the note under `key`."""
        self._store.delete_key(key)


class Outbox:
    """The sending end of a wire."""

    def __init__(self, group: Any, peer: int, waiting: Waiting) -> None:
        self._group = group
        self._peer = peer
        self._waiting = waiting
        self._sent: deque[tuple[Any, torch.Tensor]] = deque()  # keeps buffers until they are out

    def send(self, tensors: Sequence[torch.Tensor], what: str) -> None:
        """Send without waiting. The tensors must not change from now on."""
        while self._sent and self._sent[0][0].is_completed():
            self._sent.popleft()
        with self._waiting.count(what):
            for tensor in tensors:
                self._sent.append((dist.isend(tensor, dst=self._peer, group=self._group), tensor))

    def flush(self) -> None:
        """Wait until everything is sent."""
        while self._sent:
            work, _ = self._sent.popleft()
            with self._waiting.count("a send to end"):
                work.wait()


@dataclass(slots=True)
class _Parcel:
    key: str
    buffers: list[torch.Tensor]
    works: list[Any] = field(default_factory=list)


class Inbox:
    """The receiving end of a wire. `expect` in the order in which the peer sends, then `take`."""

    def __init__(self, group: Any, peer: int, device: torch.device, waiting: Waiting) -> None:
        self._group = group
        self._peer = peer
        self._device = device
        self._waiting = waiting
        self._posted: dict[str, _Parcel] = {}
        self._spare: dict[str, list[torch.Tensor]] = {}  # by slot: buffers to use again

    def expect(self, key: str, specs: Sequence[TensorSpec], slot: str) -> None:
        """Post the receives of parcel `key`. `slot` names who uses the buffers one after another.

        The buffers of a slot are overwritten by its next parcel.
        """
        buffers = self._spare.get(slot)
        if buffers is None or not _fit(buffers, specs):
            buffers = [spec.empty(self._device) for spec in specs]
            self._spare[slot] = buffers
        parcel = _Parcel(key, buffers)
        with self._waiting.count(f"{key} to be posted"):
            for buffer in buffers:
                parcel.works.append(dist.irecv(buffer, src=self._peer, group=self._group))
        self._posted[key] = parcel

    def expects(self, key: str) -> bool:
        """Whether the receives of parcel `key` are posted."""
        return key in self._posted

    def take(self, key: str) -> tuple[torch.Tensor, ...]:
        """The tensors of parcel `key`, when they are there."""
        parcel = self._posted.pop(key)
        with self._waiting.count(key):
            for work in parcel.works:
                work.wait()
        return tuple(parcel.buffers)

    def forget(self, slot: str) -> None:
        """Give back the buffers of a slot that is not used any more."""
        self._spare.pop(slot, None)


def _fit(buffers: Sequence[torch.Tensor], specs: Sequence[TensorSpec]) -> bool:
    return [(tuple(b.shape), b.dtype) for b in buffers] == [
        (spec.wire_shape, spec.torch_dtype) for spec in specs
    ]
