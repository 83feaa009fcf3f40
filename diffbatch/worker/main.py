"""The worker process: `python -m diffbatch.worker.main SPEC`, started by torchrun on every rank."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from diffbatch.errors import DiffbatchError, describe
from diffbatch.log import get_logger, log_to
from diffbatch.terminal import counted
from diffbatch.worker.lifeline import hold_lifeline
from diffbatch.worker.link import Link, connect
from diffbatch.worker.spec import WorkerSpec

if TYPE_CHECKING:
    import torch

    from diffbatch.models.loading import LoadedModel
    from diffbatch.parallel.team import Team
    from diffbatch.worker.board import Board

_FAREWELL_S = 1.0  # for the Scheduler to forward the cause before torchrun ends every rank
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RankEnv:
    """What torchrun says of this process."""

    rank: int
    local_rank: int
    world_size: int
    attempt: int  # 0, then 1, 2, ... after restarts

    @classmethod
    def read(cls) -> RankEnv:
        """From the environment that torchrun sets."""
        return cls(
            rank=int(os.environ["RANK"]),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            world_size=int(os.environ["WORLD_SIZE"]),
            attempt=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )


def serve(text: str) -> None:
    """A launched worker: everything it prints goes to logs/rank-N.log. `text` is a WorkerSpec."""
    spec = WorkerSpec.from_json(text)
    env = RankEnv.read()
    _forget_handlers()
    _show_rank(env.rank)
    hold_lifeline(spec.parent_pid)
    keep_log(spec, env)
    link = connect(spec.link) if env.rank == 0 and spec.link is not None else None
    work(spec, env, link)


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
) -> None:
    """Serve as rank `env.rank` until the work ends. `link` leads to the client, on rank 0 only.

    `has_work`: rank 0 knows whether anything is to be made; without it every rank ends at once.
    `begin` is called when the run folder is ready and before anything is loaded.
    An error is posted for the client before it ends the process, so the cause is told once, by
    the rank that had it.
    """
    from torch.distributed.rendezvous import rendezvous

    from diffbatch.parallel.wire import CommError
    from diffbatch.worker.board import Board
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
        return
    begin()
    if link is not None:
        thread = Scheduler(link, board.clone(), spec.layout.replicas).start()
    try:
        terminated = _serve(spec, env, store, board)
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


def _exit_code(error: BaseException) -> int:
    return error.exit_code if isinstance(error, DiffbatchError) else DiffbatchError.exit_code


def _serve(spec: WorkerSpec, env: RankEnv, store: Any, board: Board) -> bool:
    """Load this rank's part of the model and work; returns whether a signal ended it."""
    from diffbatch.models.loading import LoadSpec, load_pipeline, spread
    from diffbatch.output.writer import OutputWriter, WriterConfig
    from diffbatch.pipeline.clock import peak_memory_bytes
    from diffbatch.pipeline.composed import ComposedPipeline
    from diffbatch.pipeline.executor import ParallelExecutor
    from diffbatch.plan.split import PipelineShare
    from diffbatch.plan.tensor import TensorShare
    from diffbatch.worker.bridge import Bridge
    from diffbatch.worker.gpu_worker import GPUWorker
    from diffbatch.worker.orders import Follower, Leader
    from diffbatch.worker.profile import profiler_of

    device = _place(env, spec)
    layout = spec.layout
    place = layout.coordinates(env.rank)
    replica = layout.replica_of(env.rank)
    load = LoadSpec(
        folder=spec.model_folder,
        dtype=spec.dtype,
        variant=spec.variant,
        scheduler=spec.scheduler,
        share=PipelineShare(pp=layout.pp, rank=place["pp"], partition=spec.partition),
        tensor_share=TensorShare(tp=layout.tp, rank=place["tp"]),
    )
    begin_s = time.perf_counter()
    model = load_pipeline(load, device)
    load_s = round(time.perf_counter() - begin_s, 3)
    team = _team(spec, env, store, device)
    spread(model, team.groups, uneven=spec.uneven)
    config = WriterConfig(
        root=spec.run_folder,
        name=f"rank-{env.rank}",
        model=spec.model_label,
        replica=replica,
        ranks=team.ranks,
        attempt=env.attempt,
    )
    profiler, mark = profiler_of(spec, env.rank, device, model.pipeline)
    sink = OutputWriter(config, on_record=_record_poster(board.clone(), replica), mark=mark)
    pipeline = ComposedPipeline(model.pipeline, model.cuts)
    executor = ParallelExecutor(pipeline, device, team, mark)
    bridge = Bridge(team)
    waiting = team.traffic.waiting
    waiting.seconds = 0.0
    worker = GPUWorker(executor, bridge, sink, lambda: waiting.seconds, profiler)
    leads = team.place == 0
    orders: Leader | Follower
    if leads:
        flights = spec.flights
        orders = Leader(executor, board, bridge, sink, replica=replica, in_flight=flights)
        orders.num_others = team.size - 1
    else:
        orders = Follower(executor, bridge)
    _on_sigterm(orders.terminate)
    me = {"rank": env.rank, "replica": replica}
    loaded = {"load": _load_facts(model), "load_s": load_s}
    board.post({"event": "ready", **me, "device": _describe(device), **loaded})
    times = worker.run(orders)
    times["stage_s"] |= sink.stage_s
    board.post({"event": "rank", **me, **times, "peak_memory_bytes": peak_memory_bytes(device)})
    if leads:
        board.post({"event": "left", **me})
    return orders.terminated


def _team(spec: WorkerSpec, env: RankEnv, store: Any, device: torch.device) -> Team:
    """This rank's replica; process groups are started only where there is somebody to talk to."""
    from torch.distributed.distributed_c10d import PrefixStore

    from diffbatch.parallel.groups import make_groups, start_process_group
    from diffbatch.parallel.team import Team

    store = PrefixStore(f"team/{env.attempt}", store)
    if spec.layout.group_size > 1:
        groups_store = PrefixStore("groups", store)
        start_process_group(groups_store, env.rank, env.world_size, device, spec.timeout_s)
    groups = make_groups(spec.layout, env.rank, device, spec.timeout_s)
    return Team(groups, store, spec.timeout_s)


def _load_facts(model: LoadedModel) -> dict[str, dict[str, int]]:
    return {
        name: {"bytes_read": facts.bytes_read, "bytes_held": facts.bytes_held}
        for name, facts in model.facts.items()
    }


def _record_poster(board: Board, replica: int) -> Any:
    """What the writer's thread calls for each record; it has a board of its own."""

    def post(record: Any) -> None:
        board.post({"event": "record", "replica": replica, "record": record.as_dict()})

    return post


def _place(env: RankEnv, spec: WorkerSpec) -> torch.device:
    """This rank's device: the GPU of its LOCAL_RANK, or the CPU with its share of threads."""
    import torch

    if torch.cuda.is_available():
        device = torch.device("cuda", env.local_rank)
        torch.cuda.set_device(device)
        return device
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    return torch.device("cpu")


def _describe(device: torch.device) -> str:
    import torch

    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)}"
    return f"cpu, {counted(torch.get_num_threads(), 'thread')}"


def _on_sigterm(stop: Any) -> None:
    """SIGTERM (from torchrun) means: drop what is in flight and end. SIGINT is the client's."""
    if threading.current_thread() is not threading.main_thread():
        return

    def handle(_signal: int, _frame: FrameType | None) -> None:
        stop()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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
