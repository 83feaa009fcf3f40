"""One replica over several ranks, run by `rank_pool`: the real executor, leader and followers.

Only the board and the disk are stand-ins: work comes from a list and results are kept as hashes.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler

from diffbatch.models.loading import LoadSpec, load_pipeline, spread
from diffbatch.parallel.cut import CutModel
from diffbatch.parallel.groups import make_groups
from diffbatch.parallel.team import Team
from diffbatch.pipeline.composed import ComposedPipeline
from diffbatch.pipeline.decoding import DecodingStage
from diffbatch.pipeline.encoding import TextEncodingStage
from diffbatch.pipeline.executor import ParallelExecutor
from diffbatch.pipeline.flight import Flight
from diffbatch.plan.layout import Layout
from diffbatch.plan.split import PipelineShare
from diffbatch.plan.tensor import TensorShare
from diffbatch.req import MicroBatch, OutputBatch, Req, SamplingParams
from diffbatch.worker.board import EndOfWork
from diffbatch.worker.bridge import Bridge
from diffbatch.worker.gpu_worker import GPUWorker
from diffbatch.worker.orders import Follower, Leader

BAD = "the one that fails"


@dataclass(frozen=True, kw_only=True)
class Case:
    """What to run on which ranks, and what to break."""

    folder: Path
    layout: dict[str, int]
    prompts: tuple[str, ...]
    params: dict[str, Any]
    in_flight: int = 1
    partition: tuple[int, ...] | None = None
    scheduler: dict[str, Any] = field(default_factory=dict)
    fault: tuple[str, int, int] | None = None  # (where, rank, step)
    timeout_s: float = 90.0  # of any wait for a peer
    count: bool = False  # what goes over the wire


@dataclass(kw_only=True)
class Result:
    """What one rank has to show."""

    outputs: dict[str, str]  # id -> sha256 of the frames, or "error: ..."
    sent: Counter[str]  # calls of torch.distributed, by name
    forwards: dict[str, int]  # of each encoder


def run_replica(case: Case) -> Result:
    """Run all prompts of `case` on this rank's part of the replica."""
    rank, layout = dist.get_rank(), Layout(**case.layout)
    device = torch.device("cpu")
    store = dist.distributed_c10d._get_default_store()
    team = Team(make_groups(layout, rank, device, case.timeout_s), store, case.timeout_s)
    share = PipelineShare(
        pp=layout.pp, rank=layout.coordinates(rank)["pp"], partition=case.partition
    )
    spec = LoadSpec(
        folder=case.folder,
        dtype="float32",
        share=share,
        tensor_share=TensorShare(tp=layout.tp, rank=layout.coordinates(rank)["tp"]),
        scheduler=case.scheduler,
    )
    model = load_pipeline(spec, device)
    spread(model, team.groups, uneven=False)
    pipeline = ComposedPipeline(model.pipeline, model.cuts)
    executor = ParallelExecutor(pipeline, device, team)
    sink, bridge = _Sink(), Bridge(team)
    orders: Leader | Follower = Follower(executor, bridge)
    if team.place == 0:
        board: Any = _Board(_batches(case))
        orders = Leader(executor, board, bridge, sink, replica=0, in_flight=case.in_flight)
        orders.num_others = team.size - 1
    with ExitStack() as stack:
        sent = stack.enter_context(_counted(case.count))
        if case.fault is not None and case.fault[1] == rank:
            stack.enter_context(_broken(case.fault[0], case.fault[2]))
        GPUWorker(executor, bridge, sink, lambda: 0.0).run(orders)
    forwards = {name: memory.num_forwards for name, memory in pipeline.encoders.items()}
    return Result(outputs=sink.outputs, sent=sent, forwards=forwards)


def communicators(layout: dict[str, int]) -> dict[str, str | None]:
    """The names of this rank's process groups, by what they are for."""
    groups = make_groups(Layout(**layout), dist.get_rank(), torch.device("cpu"), 20.0)
    kinds = ("forward_in", "forward_out", "feedback", "guidance", "replica", "finals")
    found = {kind: getattr(groups, kind) for kind in kinds}
    return {kind: None if group is None else group.group_name for kind, group in found.items()}


def _batches(case: Case) -> list[MicroBatch]:
    params = SamplingParams(**case.params)
    reqs = [
        Req(index=k, id=f"{k}", prompt=prompt, seed=k, file=f"{k}.npy", params=params)
        for k, prompt in enumerate(case.prompts)
    ]
    return [MicroBatch(reqs=(req,), write=frozenset({req.id})) for req in reqs]


class _Board:
    """The leader's side of the work queue."""

    stopped = False

    def __init__(self, batches: list[MicroBatch]) -> None:
        self._batches = batches

    def claim(self) -> dict[str, Any] | EndOfWork:
        return self._batches.pop(0).as_dict() if self._batches else EndOfWork()

    def post(self, event: dict[str, Any]) -> None:
        assert event["event"] in {"started", "step"}


class _Sink:
    def __init__(self) -> None:
        self.outputs: dict[str, str] = {}

    def put(self, batch: OutputBatch, write: Collection[str], keep_frames: bool) -> None:
        for req, frames, error in zip(batch.reqs, batch.frames, batch.errors, strict=True):
            assert req.id in write
            assert req.id not in self.outputs, "an output was made twice"
            found = hashlib.sha256(frames.tobytes()).hexdigest() if frames is not None else ""
            self.outputs[req.id] = found or f"error: {error}"

    def close(self) -> None:
        pass


@contextmanager
def _counted(on: bool) -> Iterator[Counter[str]]:
    """Count the calls of torch.distributed, and allow no pickling ones."""
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        for name in ("isend", "irecv", "recv", "all_gather", "broadcast", "all_reduce"):
            real = getattr(dist, name)
            if on:
                stack.enter_context(mock.patch.object(dist, name, _counting(counts, name, real)))
        for name in ("broadcast_object_list", "all_gather_object", "send_object_list"):
            stack.enter_context(mock.patch.object(dist, name, _forbidden(name)))
        yield counts


def _counting(counts: Counter[str], name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        counts[name] += 1
        return real(*args, **kwargs)

    return call


def _forbidden(name: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise AssertionError(f"{name} pickles")

    return call


@contextmanager
def _broken(where: str, step: int) -> Iterator[None]:
    """Raise for the request whose prompt is BAD, at one place of this rank."""
    with ExitStack() as stack:
        patch = stack.enter_context
        if where == "encode":
            patch(_raising(TextEncodingStage, "__call__", lambda _s, _c, state: _bad_state(state)))
        elif where == "decode":
            patch(_raising(DecodingStage, "__call__", lambda _s, _c, state: _bad_state(state)))
        elif where == "hang":
            patch(mock.patch.object(CutModel, "run", side_effect=_hang))
        elif where == "before":  # the step has exchanged nothing yet
            patch(_raising(Flight, "step", lambda flight: _bad_step(flight, step)))
        elif where == "inside":  # in a block of this rank's segment
            patch(_remember_flight())
            patch(_raising(CutModel, "run", lambda *_a, **_k: _bad_step(_CURRENT[0], step)))
        elif where == "after":  # in the scheduler
            patch(_remember_flight())
            for scheduler in (UniPCMultistepScheduler, FlowMatchEulerDiscreteScheduler):
                patch(_raising(scheduler, "step", lambda *_a, **_k: _bad_step(_CURRENT[0], step)))
        else:
            raise ValueError(where)
        yield


def _hang(*_args: Any, **_kwargs: Any) -> None:
    time.sleep(3600)


_CURRENT: list[Flight | None] = [None]


def _remember_flight() -> Any:
    real = Flight.step

    def step(flight: Flight) -> None:
        _CURRENT[0] = flight
        real(flight)

    return mock.patch.object(Flight, "step", step)


def _raising(cls: type, name: str, when: Callable[..., bool]) -> Any:
    real = getattr(cls, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if when(*args, **kwargs):
            raise ArithmeticError("injected")
        return real(*args, **kwargs)

    return mock.patch.object(cls, name, call)


def _bad_state(state: Any) -> bool:
    return bool(state.get("prompt") == BAD)


def _bad_step(flight: Flight | None, step: int) -> bool:
    return flight is not None and flight.reqs[0].prompt == BAD and flight.loop.done == step
