"""One rank, put together: its device, its part of the model, its team, and the worker itself."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.distributed.distributed_c10d import PrefixStore

from diffbatch.models.loading import LoadedModel, LoadSpec, load_pipeline, spread
from diffbatch.output.writer import OutputWriter, WriterConfig
from diffbatch.parallel.groups import make_groups, start_process_group
from diffbatch.parallel.team import Team
from diffbatch.pipeline.clock import Mark, peak_memory_bytes
from diffbatch.pipeline.composed import ComposedPipeline
from diffbatch.pipeline.executor import ParallelExecutor
from diffbatch.plan.split import PipelineShare
from diffbatch.plan.tensor import TensorShare
from diffbatch.req import Record
from diffbatch.terminal import counted
from diffbatch.worker.board import Board
from diffbatch.worker.bridge import Bridge
from diffbatch.worker.gpu_worker import GPUWorker
from diffbatch.worker.orders import Follower, Leader
from diffbatch.worker.profile import profiler_of
from diffbatch.worker.spec import RankEnv, WorkerSpec


def run_rank(spec: WorkerSpec, env: RankEnv, store: Any, board: Board) -> bool:
    """Load this rank's part of the model and work; returns whether a signal ended it."""
    device = _place(spec, env)
    begin_s = time.perf_counter()
    model = load_pipeline(_load_spec(spec, env), device)
    load_s = round(time.perf_counter() - begin_s, 3)
    team = _team(spec, env, store, device)
    spread(model, team.groups, uneven=spec.uneven)
    profiler, mark = profiler_of(spec, env.rank, device, model.pipeline)
    sink = _sink(spec, env, team, board, mark)
    pipeline = ComposedPipeline(model.pipeline, model.cuts)
    executor = ParallelExecutor(pipeline, device, team, mark)
    bridge = Bridge(team)
    waiting = team.traffic.waiting
    waiting.seconds = 0.0
    worker = GPUWorker(executor, bridge, sink, lambda: waiting.seconds, profiler)
    me = {"rank": env.rank, "replica": spec.layout.replica_of(env.rank)}
    orders: Leader | Follower
    if team.place == 0:
        replica, in_flight = me["replica"], spec.flights
        orders = Leader(executor, board, bridge, sink, replica=replica, in_flight=in_flight)
        orders.num_others = team.size - 1
    else:
        orders = Follower(executor, bridge)
    _on_sigterm(orders.terminate)
    loaded = {"load": _load_facts(model), "load_s": load_s}
    board.post({"event": "ready", **me, "device": _describe(device), **loaded})
    with board.watching():
        times = worker.run(orders)
    times["stage_s"] |= sink.stage_s
    board.post({"event": "rank", **me, **times, "peak_memory_bytes": peak_memory_bytes(device)})
    if team.place == 0:
        board.post({"event": "left", **me})
    return orders.terminated


def _place(spec: WorkerSpec, env: RankEnv) -> torch.device:
    """This rank's device: the GPU of its LOCAL_RANK, or the CPU with its share of threads."""
    if torch.cuda.is_available():
        device = torch.device("cuda", env.local_rank)
        torch.cuda.set_device(device)
        return device
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    return torch.device("cpu")


def _load_spec(spec: WorkerSpec, env: RankEnv) -> LoadSpec:
    layout = spec.layout
    place = layout.coordinates(env.rank)
    return LoadSpec(
        folder=spec.model_folder,
        dtype=spec.dtype,
        variant=spec.variant,
        scheduler=spec.scheduler,
        share=PipelineShare(pp=layout.pp, rank=place["pp"], partition=spec.partition),
        tensor_share=TensorShare(tp=layout.tp, rank=place["tp"]),
    )


def _team(spec: WorkerSpec, env: RankEnv, store: Any, device: torch.device) -> Team:
    """This rank's replica; process groups are started only where there is somebody to talk to."""
    store = PrefixStore(f"team/{env.attempt}", store)
    if spec.layout.group_size > 1:
        groups_store = PrefixStore("groups", store)
        start_process_group(groups_store, env.rank, env.world_size, device, spec.timeout_s)
    groups = make_groups(spec.layout, env.rank, device, spec.timeout_s)
    return Team(groups, store, spec.timeout_s)


def _sink(spec: WorkerSpec, env: RankEnv, team: Team, board: Board, mark: Mark) -> OutputWriter:
    """What saves the outputs; its thread posts each record on a board of its own."""
    replica = spec.layout.replica_of(env.rank)
    config = WriterConfig(
        root=spec.run_folder,
        name=f"rank-{env.rank}",
        model=spec.model_label,
        replica=replica,
        ranks=team.ranks,
        attempt=env.attempt,
    )
    own_board = board.clone()

    def post(record: Record) -> None:
        own_board.post({"event": "record", "replica": replica, "record": record.as_dict()})

    return OutputWriter(config, on_record=post, mark=mark)


def _load_facts(model: LoadedModel) -> dict[str, dict[str, int]]:
    return {
        name: {"bytes_read": facts.bytes_read, "bytes_held": facts.bytes_held}
        for name, facts in model.facts.items()
    }


def _describe(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)}"
    return f"cpu, {counted(torch.get_num_threads(), 'thread')}"


def _on_sigterm(stop: Callable[[], None]) -> None:
    """SIGTERM (from torchrun) means: drop what is in flight and end. SIGINT is the client's."""
    if threading.current_thread() is not threading.main_thread():
        return

    def handle(_signal: int, _frame: FrameType | None) -> None:
        stop()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
