"""WorkerGroup: the parent's handle on a group of workers. Used by `run` and by DiffGenerator."""

from __future__ import annotations

import os
import queue
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Listener
from types import TracebackType

from diffbatch.errors import DiffbatchError, PlanError, WorkerError
from diffbatch.launch.feed import Feed
from diffbatch.launch.torchrun import Torchrun
from diffbatch.req import MicroBatch
from diffbatch.worker.link import KEY_VARIABLE, LinkClosedError, Message, SocketLink
from diffbatch.worker.spec import WorkerSpec

_TURN_S = 0.2
_CLOSE_S = 60.0  # for the workers to save what they hold and leave
_STOP_S = 20.0  # for one denoise step to end after a stop; torchrun's own limit is 30 s


class WorkerGroup:
    """Starts the workers once and feeds them micro-batches, as often as `make` is called.

    When a worker dies and torchrun restarts the group, what has no record yet is submitted again.
    `devices` are the GPUs of the ranks, in order; None: as CUDA counts them. Leaving the `with`
    block ends every process.
    """

    def __init__(
        self, spec: WorkerSpec, *, max_restarts: int = 0, devices: Sequence[str] | None = None
    ) -> None:
        key = secrets.token_hex(16)
        self._listener = Listener(authkey=bytes.fromhex(key))
        self._events: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._link: SocketLink | None = None
        self._feed = Feed(())
        self._stopping = self._stop_said = False
        self._num_ranks = spec.layout.world_size
        self._num_ready = 0
        self._log_folder = spec.run_folder / "logs"
        self._log_folder.mkdir(parents=True, exist_ok=True)
        address = str(self._listener.address)
        spec = replace(spec, link=address, parent_pid=os.getpid())
        threading.Thread(target=self._accept, name="link", daemon=True).start()
        self._torchrun = Torchrun(
            [spec.to_json()],
            num_ranks=spec.layout.world_size,
            max_restarts=max_restarts,
            environment=_environment(key, spec.threads, devices),
            log_path=self._log_folder / "torchrun.log",
        )

    def __enter__(self) -> WorkerGroup:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end() if exc_type is None else self.abort()

    def make(self, batches: Iterable[MicroBatch]) -> Iterator[Message]:
        """Submit `batches` and yield every event until all their records are in.

        After `stop` the last event is {"event": "stopped"}; `end` then returns the rest.
        Raises WorkerError when the workers are gone, and PlanError when the job cannot run.
        """
        self._feed = Feed(batches)
        yield from self._listen(lambda: self._feed.done)

    def until_ready(self) -> Iterator[Message]:
        """Yield every event until all ranks have loaded the model. Raises what `make` raises."""
        yield from self._listen(lambda: self._num_ready == self._num_ranks)

    def _listen(self, done: Callable[[], bool]) -> Iterator[Message]:
        while not done():
            if self._link is not None and not self._stopping:
                self._feed.submit(self._say)
            event = self._next_event()
            if event is None:
                continue
            if event["event"] == "stopped":
                yield event
                return
            self._note(event)
            yield event

    def stop(self) -> None:
        """Ask the workers to drop what they do and leave. Safe to call from a signal handler."""
        self._stopping = True

    def end(self) -> list[Message]:
        """Let the workers leave; kill those that do not. Returns the events that came meanwhile."""
        if self._link is not None and not self._torchrun.ended:
            self._say({"op": "stop" if self._stopping else "close"})
            self._torchrun.wait(_STOP_S if self._stopping else _CLOSE_S)
        self.abort()
        events: list[Message] = []
        while not self._events.empty():
            events.append(self._events.get_nowait())
        return events

    def abort(self) -> None:
        """End every process now."""
        self._torchrun.kill()
        self._listener.close()

    def _next_event(self) -> Message | None:
        if self._stopping and not self._stop_said:  # at once, however many events still come
            self._stop_said = True
            self._say({"op": "stop"})
        try:
            return self._events.get(timeout=_TURN_S)
        except queue.Empty:
            pass
        if self._stopping:
            return {"event": "stopped"}
        if self._torchrun.ended:
            raise self._death()
        return None

    def _note(self, event: Message) -> None:
        match event["event"]:
            case "connected":
                self._link = event.pop("link")
                self._num_ready = 0  # after a restart they load again
                self._feed.resubmit(self._say)
            case "ready":
                self._num_ready += 1
            case "disconnected":
                self._link = None
            case "record":
                self._feed.recorded(event["record"]["id"])
            case "fatal":
                self.abort()
                error = PlanError if event["exit_code"] == PlanError.exit_code else WorkerError
                raise error(event["error"])

    def _say(self, message: Message) -> None:
        if self._link is None:
            return
        try:
            self._link.send(message)
        except LinkClosedError:
            self._link = None  # _accept notices, and a restart or torchrun's end follows

    def _accept(self) -> None:
        """Take the Scheduler's connection, and the next one after a restart. Own thread."""
        while True:
            try:
                link = SocketLink(self._listener.accept())
            except (AuthenticationError, EOFError, ConnectionError):
                continue  # a stranger, or a worker that was killed while it connected
            except OSError:  # the listener was closed
                return
            self._events.put({"event": "connected", "link": link})
            try:
                while True:
                    message = link.receive(timeout_s=3600.0)
                    if message is not None:
                        self._events.put(message)
            except LinkClosedError:
                self._events.put({"event": "disconnected"})

    def _death(self) -> DiffbatchError:
        cause = self._torchrun.cause() or "torchrun ended"
        return WorkerError(
            f"the workers are gone: {cause}; what is finished is kept, and the same command goes "
            f"on from there. Logs: {self._log_folder}"
        )


def _environment(key: str, threads: int | None, devices: Sequence[str] | None) -> dict[str, str]:
    environment = {
        KEY_VARIABLE: key,
        "PYTHONSAFEPATH": "1",  # a file of the user's folder must not shadow a module
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    if devices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    return environment
