"""The worker process: `python -m diffbatch.worker.main SPEC`, started by torchrun on every rank."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from diffbatch.errors import DiffbatchError, describe
from diffbatch.log import get_logger, log_to
from diffbatch.worker.lifeline import hold_lifeline
from diffbatch.worker.link import Link, connect
from diffbatch.worker.spec import RankEnv, WorkerSpec

_TERMINATED = 128 + signal.SIGTERM  # the exit code, as shells tell it
_FAREWELL_S = 1.0  # for the Scheduler to forward the cause before torchrun ends every rank
_log = get_logger(__name__)


def serve(text: str) -> None:
    """A launched worker: everything it prints goes to logs/rank-N.log. `text` is a WorkerSpec."""
    spec = WorkerSpec.from_json(text)
    env = RankEnv.read()
    _forget_handlers()
    _show_rank(env.rank)
    hold_lifeline(spec.parent_pid)
    keep_log(spec, env)
    link = connect(spec.link) if env.rank == 0 and spec.link is not None else None
    if work(spec, env, link):
        # A fork that returns would wait until all others have returned, and torchrun for it.
        sys.exit(_TERMINATED)


def keep_log(spec: WorkerSpec, env: RankEnv, *, redirect: bool = True) -> None:
    """Log to logs/rank-N.log, and send what libraries print there too (`redirect`)."""
    path = spec.run_folder / "logs" / f"rank-{env.rank}.log"
    log_to(path)
    if redirect:
        _redirect_output(path)


def work(
    spec: WorkerSpec,
    env: RankEnv,
    link: Link | None,
    *,
    has_work: bool = True,
    begin: Callable[[], None] = lambda: None,
) -> bool:
    """Serve as rank `env.rank` until the work ends. `link` leads to the client, on rank 0 only.

    Returns whether a signal ended it.

    `has_work`: rank 0 knows whether anything is to be made; without it every rank ends at once.
    `begin` is called when the run folder is ready and before anything is loaded.
    An error is posted for the client before it ends the process, so the cause is told once, by
    the rank that had it.
    """
    from torch.distributed.rendezvous import rendezvous

    from diffbatch.parallel.wire import CommError
    from diffbatch.worker.board import Board
    from diffbatch.worker.rank import run_rank
    from diffbatch.worker.scheduler import Scheduler

    store, _, _ = next(rendezvous("env://", env.rank, env.world_size))
    board = Board(store, env.attempt)
    thread: threading.Thread | None = None
    if env.rank == 0:
        board.open(has_work=has_work)
    else:
        has_work = board.wait_until_open()
    if not has_work:
        if env.rank == 0:
            board.wait_until_gone(env.world_size - 1)
        return False
    begin()
    if link is not None:
        thread = Scheduler(link, board.clone(), spec.layout.replicas).start()
    try:
        terminated = run_rank(spec, env, store, board)
    except CommError:
        # A consequence: the peer that is gone was the cause, and torchrun starts all ranks again.
        _log.exception("rank %d has lost a peer", env.rank)
        raise
    except BaseException as error:
        _log.exception("rank %d ends with an error", env.rank)
        user_error = isinstance(error, DiffbatchError)
        cause = str(error) if user_error else describe(error)
        board.post(
            {"event": "fatal", "rank": env.rank, "error": cause, "exit_code": _exit_code(error)}
        )
        time.sleep(_FAREWELL_S)
        raise
    if thread is not None:
        # Terminated by torchrun, other leaders may be gone without a word: do not wait for them.
        thread.join(_FAREWELL_S if terminated else None)
    return terminated


def _exit_code(error: BaseException) -> int:
    return error.exit_code if isinstance(error, DiffbatchError) else DiffbatchError.exit_code


def _redirect_output(path: Path) -> None:
    """Send file descriptors 1 and 2 to `path`, so that what libraries print is kept there too."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


def _forget_handlers() -> None:
    """A fork of the agent has the agent's handlers, which raise wherever the worker may be."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def _show_rank(rank: int) -> None:
    """Let ps and top tell the ranks apart, where the kernel offers that."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(f"diffbatch-r{rank}", encoding="utf-8")


if __name__ == "__main__":
    serve(sys.argv[1])
