"""A replica of one rank without torchrun, for tests that run the real executor in this process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from diffbatch.parallel.groups import make_groups
from diffbatch.parallel.team import Team
from diffbatch.pipeline.composed import ComposedPipeline
from diffbatch.pipeline.executor import ParallelExecutor
from diffbatch.plan.layout import Layout
from diffbatch.req import MicroBatch, OutputBatch, Req
from diffbatch.worker.board import EndOfWork
from diffbatch.worker.bridge import Bridge
from diffbatch.worker.gpu_worker import GPUWorker
from diffbatch.worker.orders import Leader

CPU = torch.device("cpu")


class ListBoard:
    """Hands out `work` in order; None stands for "nothing at the moment"."""

    def __init__(self, work: Sequence[MicroBatch | None]) -> None:
        self.work = list(work)
        self.events: list[dict[str, Any]] = []
        self.stopped = False

    def claim(self) -> dict[str, Any] | EndOfWork | None:
        if not self.work:
            return EndOfWork()
        batch = self.work.pop(0)
        return None if batch is None else batch.as_dict()

    def post(self, event: dict[str, Any]) -> None:
        self.events.append(event)


class ListSink:
    """Keeps what it was given."""

    def __init__(self) -> None:
        self.puts: list[tuple[OutputBatch, frozenset[str], bool]] = []
        self.closed = False

    def put(self, batch: OutputBatch, write: Collection[str], keep_frames: bool) -> None:
        assert not self.closed
        self.puts.append((batch, frozenset(write), keep_frames))

    def close(self) -> None:
        self.closed = True


def solo_team() -> Team:
    """A team of one on the CPU, with a store of its own."""
    return Team(make_groups(Layout(), 0, CPU, 10.0), dist.HashStore(), 10.0)


def execute(
    pipeline: ComposedPipeline, batches: Sequence[Sequence[Req]], in_flight: int = 1
) -> list[OutputBatch]:
    """Every output, in the order of its first request, with `in_flight` micro-batches in turn."""
    team = solo_team()
    executor, bridge, sink = ParallelExecutor(pipeline, CPU, team), Bridge(team), ListSink()
    work = [
        MicroBatch(reqs=tuple(reqs), write=frozenset(req.id for req in reqs)) for reqs in batches
    ]
    board: Any = ListBoard(work)
    leader = Leader(executor, board, bridge, sink, replica=0, in_flight=in_flight)
    GPUWorker(executor, bridge, sink, lambda: 0.0).run(leader)
    return sorted((put[0] for put in sink.puts), key=lambda output: output.reqs[0].index)


def our_pixels(pipeline: ComposedPipeline, req: Req) -> np.ndarray:
    """Float pixels 0..1, (F, H, W, 3), of our stages run one after the other."""
    with torch.inference_mode():
        state = pipeline.state(req)
        stages = pipeline.stages(pipeline.inputs(req))
        stages.text(pipeline.encoding_components, state)
        stages.image(pipeline.encoding_components, state)
        components = pipeline.components(req.params, [state.get("generator")])
        stages.denoise(components, state)
        stages.decode(components, state)
    pixels = np.asarray(state.get(stages.decode.output_name))
    return pixels[0] if pixels.ndim == 5 else pixels
