"""The wire between a client (the parent, or rank 0 itself) and the Scheduler: JSON messages.

Client to Scheduler:  {"op": "submit", "batch": ...}  {"op": "stop"}  {"op": "close"}
Scheduler to client:  {"event": "ready" | "started" | "step" | "record" | "left" | "fatal", ...}

Importable without torch: the parent uses it too.
"""

from __future__ import annotations

import json
import os
import queue
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from typing import Any, Protocol

Message = dict[str, Any]
KEY_VARIABLE = "DIFFBATCH_LINK_KEY"


class LinkClosedError(Exception):
    """The other end is gone."""


class Link(Protocol):
    """One end of the wire."""

    def send(self, message: Message) -> None:
        """Hand over `message`. Raises LinkClosedError."""

    def receive(self, timeout_s: float) -> Message | None:
        """The next message, or None when none came in time. Raises LinkClosedError."""


class SocketLink:
    """A link over a local socket. Messages are JSON, never pickle."""

    def __init__(self, connection: Connection[bytes, bytes]) -> None:
        self._connection = connection

    def send(self, message: Message) -> None:
        """See `Link.send`."""
        try:
            self._connection.send_bytes(json.dumps(message).encode())
        except OSError as error:
            raise LinkClosedError(str(error)) from error

    def receive(self, timeout_s: float) -> Message | None:
        """See `Link.receive`."""
        try:
            if not self._connection.poll(timeout_s):
                return None
            message: Message = json.loads(self._connection.recv_bytes())
        except (OSError, EOFError) as error:
            raise LinkClosedError(str(error)) from error
        return message


def connect(address: str) -> SocketLink:
    """The Scheduler's end of the socket that the client listens on."""
    return SocketLink(Client(address, authkey=bytes.fromhex(os.environ[KEY_VARIABLE])))


@dataclass(frozen=True, slots=True)
class QueueLink:
    """One end of a link between two threads of a process."""

    outbox: queue.SimpleQueue[Message]
    inbox: queue.SimpleQueue[Message]

    def send(self, message: Message) -> None:
        """See `Link.send`."""
        self.outbox.put(message)

    def receive(self, timeout_s: float) -> Message | None:
        """See `Link.receive`."""
        try:
            return self.inbox.get(timeout=timeout_s)
        except queue.Empty:
            return None


def queue_link_pair() -> tuple[QueueLink, QueueLink]:
    """Two connected ends."""
    a: queue.SimpleQueue[Message] = queue.SimpleQueue()
    b: queue.SimpleQueue[Message] = queue.SimpleQueue()
    return QueueLink(a, b), QueueLink(b, a)
