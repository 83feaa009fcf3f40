"""Flight: one micro-batch between its admission and its pixels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from diffusers.modular_pipelines.modular_pipeline import PipelineState

from diffbatch.parallel.lane import Lane
from diffbatch.pipeline.clock import StageClock
from diffbatch.pipeline.composed import Stages
from diffbatch.pipeline.denoising import DenoiseLoop
from diffbatch.pipeline.reuse import Memo
from diffbatch.pipeline.stage import Components
from diffbatch.req import MicroBatch, OutputBatch, Req


@dataclass(slots=True, kw_only=True)
class Flight:
    """State of a micro-batch in flight; the same on every rank of the replica but for latents."""

    key: str
    batch: MicroBatch
    reqs: tuple[Req, ...]  # all of the batch, or those of equal shape
    stages: Stages
    components: Components
    state: PipelineState
    loop: DenoiseLoop
    clock: StageClock
    decode_place: int  # which rank of the team decodes it
    before: dict[str, Any]  # the state's values when denoising began
    memo: Memo = field(default_factory=Memo)
    lane: Lane | None = None  # None where nothing is exchanged per step
    latents: tuple[str, ...] = ()  # names in the loop's state that a step replaces
    failed: bool = False  # on this rank

    def begin_step(self) -> None:
        """Before `step` or `skip_step`; cannot fail for this micro-batch alone."""
        if self.lane is not None:
            self.lane.begin_step(final=self.loop.done + 1 == len(self.loop.steps))

    def step(self) -> None:
        """Take the next denoise step."""
        if self.lane is None:
            self.stages.denoise.step(self.components, self.loop)
            return
        returned = self.lane.feedback()
        for name, tensor in zip(self.latents, returned or (), strict=returned is not None):
            setattr(self.loop.block_state, name, tensor)
        inputs = self._loop_inputs()
        self.stages.denoise.step(self.components, self.loop)
        if not self.latents:
            after = self._loop_inputs()
            self.latents = tuple(name for name in inputs if after.get(name) is not inputs[name])
        state = self.loop.block_state
        self.lane.end_step([getattr(state, name) for name in self.latents])

    def skip_step(self) -> None:
        """A failed flight's share of a round: keep its peers from waiting."""
        if self.lane is not None:
            self.lane.complete_step()
        self.loop.done += 1

    def finals(self) -> list[str]:
        """Names of the tensors that denoising made and decoding reads, the same on every rank."""
        return sorted(
            name
            for name in self.stages.decode.reads
            if isinstance(value := self.state.get(name), torch.Tensor)
            and value is not self.before.get(name)
        )

    def _loop_inputs(self) -> dict[str, torch.Tensor]:
        """Tensors that the loop takes from outside: among them is what one step hands the next."""
        state = self.loop.block_state
        values = {name: getattr(state, name, None) for name in self.stages.denoise.loop_inputs}
        return {n: v for n, v in sorted(values.items()) if isinstance(v, torch.Tensor)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A micro-batch that cannot be made, and why; `out_of_memory` asks for smaller ones."""

    key: str
    error: str
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A micro-batch, or a part of one, that this rank has decoded."""

    key: str
    batch: MicroBatch
    output: OutputBatch


@dataclass(slots=True)
class Turn:
    """What one round of the executor brought on this rank."""

    finished: list[Finished] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
