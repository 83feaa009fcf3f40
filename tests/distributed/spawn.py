"""Run a function on several ranks: gloo over loopback, one thread each, a hard deadline.

`run_ranks(fn, 2, arg)` starts processes for one call. `RankPool(2)` keeps them for many calls,
which saves the imports. In both, `fn` is a module-level function (ranks import it by name), it
finds the default process group ready, and the results come back in rank order.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

from tests.distributed.rank import STOP, Failure, Success, serve

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 5.0
_SETTLE_S = 0.3  # after a first failure: long enough to see that a rank has died


class RankError(RuntimeError):
    """A rank raised, died or missed the deadline. `rank` is the first one that did."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(f"rank {rank} {message}")
        self.rank = rank


def run_ranks(
    fn: Callable[..., Any], world_size: int, *args: Any, timeout_s: float = 60
) -> list[Any]:
    """Call `fn(*args)` on every rank of a new group and return each rank's result."""
    with RankPool(world_size) as pool:
        return pool.run(fn, *args, timeout_s=timeout_s)


class RankPool:
    """`world_size` processes that wait for calls. Each call gets a process group of its own.

    A call that fails ends all the processes; the next call starts new ones.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._processes: list[BaseProcess] = []
        self._connections: list[Connection] = []
        self._stacks = tempfile.TemporaryDirectory(prefix="ranks-")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, fn: Callable[..., Any], *args: Any, timeout_s: float = 60) -> list[Any]:
        """Call `fn(*args)` on every rank; raise `RankError` for the first rank that fails."""
        call = pickle.dumps((fn, args))
        if not self._processes:
            self._start()
        try:
            for connection in self._connections:
                connection.send_bytes(call)
            return self._collect(timeout_s)
        except BaseException:
            self._kill()
            raise

    def close(self) -> None:
        """End the processes."""
        for connection in self._connections:
            try:
                connection.send_bytes(STOP)
            except OSError:
                continue
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        self._kill()
        self._stacks.cleanup()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve,
                args=(rank, self.world_size, theirs, str(self._stack_file(rank))),
                name=f"rank-{rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)
        try:
            self._share_port()
        except BaseException:
            self._kill()
            raise

    def _share_port(self) -> None:
        """Rank 0 has opened a store on a free port; tell the others which."""
        leader, *others = self._connections
        if not leader.poll(_START_TIMEOUT_S):
            raise RankError(0, f"did not start within {_START_TIMEOUT_S:g} s")
        try:
            port = leader.recv_bytes()
        except EOFError:
            raise RankError(0, "ended while it started") from None
        for connection in others:
            connection.send_bytes(port)
        self._collect(_START_TIMEOUT_S)

    def _collect(self, timeout_s: float) -> list[Any]:
        """Wait for one answer per rank, until the deadline or the first failure."""
        deadline = time.monotonic() + timeout_s
        answers: dict[int, Success | Failure] = {}
        failed = False
        while len(answers) < self.world_size:
            pending = {
                connection: rank
                for rank, connection in enumerate(self._connections)
                if rank not in answers
            }
            ready = wait(list(pending), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                rank = pending[connection]  # type: ignore[index]
                answers[rank] = self._receive(rank)
                if isinstance(answers[rank], Failure) and not failed:
                    failed = True
                    deadline = min(deadline, time.monotonic() + _SETTLE_S)
        self._raise_first(answers, timeout_s)
        return [answers[rank].value for rank in range(self.world_size)]  # type: ignore[union-attr]

    def _receive(self, rank: int) -> Success | Failure:
        try:
            answer: Success | Failure = pickle.loads(self._connections[rank].recv_bytes())
        except (EOFError, ConnectionResetError):
            process = self._processes[rank]
            process.join(_STOP_TIMEOUT_S)
            return Failure(f"died with exit code {process.exitcode}", at=0.0)
        return answer

    def _raise_first(self, answers: dict[int, Success | Failure], timeout_s: float) -> None:
        failures = {rank: a for rank, a in answers.items() if isinstance(a, Failure)}
        if failures:
            rank = min(failures, key=lambda rank: failures[rank].at)
            raise RankError(rank, failures[rank].message)
        late = [rank for rank in range(self.world_size) if rank not in answers]
        if late:
            stacks = "\n".join(f"rank {rank} was at:\n{self._stack(rank)}" for rank in late)
            raise RankError(late[0], f"gave no result within {timeout_s:g} s\n{stacks}")

    def _stack(self, rank: int) -> str:
        """Where a rank that hangs is now."""
        process = self._processes[rank]
        if process.pid is None or not process.is_alive():
            return "(not running)"
        os.kill(process.pid, signal.SIGUSR1)
        time.sleep(_SETTLE_S)
        return self._stack_file(rank).read_text(encoding="utf-8")

    def _stack_file(self, rank: int) -> Path:
        return Path(self._stacks.name) / f"rank-{rank}.txt"

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(_STOP_TIMEOUT_S)
        for connection in self._connections:
            connection.close()
        self._processes.clear()
        self._connections.clear()
