"""DenoisingStage: noise -> latents, step by step, so that many micro-batches can take turns."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from diffusers.modular_pipelines.modular_pipeline import (
    BlockState,
    LoopSequentialPipelineBlocks,
    PipelineState,
)

from diffbatch.pipeline.stage import Block, Components, ParallelType, PipelineStage, run_blocks


@dataclass(slots=True)
class DenoiseLoop:
    """Where one micro-batch stands in its denoise loop."""

    block_state: BlockState
    steps: list[dict[str, Any]]  # what the loop passes to each step, such as {"i": 0, "t": ...}
    names_before: set[str]  # in the state when the stage began, for the check at its end
    done: int = 0  # steps taken

    @property
    def finished(self) -> bool:
        """Whether every step is taken."""
        return self.done == len(self.steps)


class DenoisingStage(PipelineStage):
    """Timesteps, noise, the loop, and what follows it up to the final latents.

    `begin`, then `step` until the loop is finished, then `end`. All ranks of a replica take the
    same steps of the same micro-batches in the same order.
    """

    name = "denoising"
    parallel = ParallelType.ALL_RANKS

    def __init__(self, blocks: Sequence[Block]) -> None:
        super().__init__(blocks)
        loops = [k for k, b in enumerate(blocks) if isinstance(b, LoopSequentialPipelineBlocks)]
        if len(loops) != 1:
            raise ValueError(f"a denoise stage needs exactly one loop, found {len(loops)}")
        self._before = tuple(blocks[: loops[0]])
        self._loop: Any = blocks[loops[0]]
        self._after = tuple(blocks[loops[0] + 1 :])
        self.loop_inputs = frozenset(self._loop.input_names)

    def begin(self, components: Components, state: PipelineState) -> DenoiseLoop:
        """Draw the noise, set the timesteps, and list the steps that the loop will take."""
        names_before = set(state.values)
        run_blocks(self._before, components, state)
        return _list_steps(self._loop, components, state, names_before)

    def step(self, components: Components, loop: DenoiseLoop) -> None:
        """Take the next step: one forward per guidance branch, then the scheduler."""
        kwargs = loop.steps[loop.done]
        _, loop.block_state = self._loop.loop_step(components, loop.block_state, **kwargs)
        loop.done += 1

    def end(self, components: Components, state: PipelineState, loop: DenoiseLoop) -> None:
        """Write the final latents into `state` and run what follows the loop."""
        self._loop.set_block_state(state, loop.block_state)
        run_blocks(self._after, components, state)
        self.check(loop.names_before, state)

    def __call__(self, components: Components, state: PipelineState) -> None:
        """The whole stage in one go."""
        loop = self.begin(components, state)
        while not loop.finished:
            self.step(components, loop)
        self.end(components, state, loop)


def _list_steps(
    loop: Any, components: Components, state: PipelineState, names_before: set[str]
) -> DenoiseLoop:
    """Run the loop block with its step replaced by one that only takes notes.

    So whatever a loop prepares before its first step is done by its own code, and the steps come
    in its own order with its own arguments, whichever model it belongs to.
    """
    recorder = copy.copy(loop)
    steps: list[dict[str, Any]] = []
    seen: list[BlockState] = []

    def record(
        components: Components, block_state: BlockState, **kwargs: Any
    ) -> tuple[Components, BlockState]:
        steps.append(kwargs)
        seen.append(block_state)
        return components, block_state

    recorder.loop_step = record
    recorder.set_progress_bar_config(disable=True)
    recorder(components, state)
    if not steps:
        raise ValueError("the denoise loop has no steps: num_inference_steps is too small")
    return DenoiseLoop(block_state=seen[0], steps=steps, names_before=names_before)
