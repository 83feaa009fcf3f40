"""What a stage is: blocks of a modular pipeline with a checked declaration around them."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from diffusers.modular_pipelines.modular_pipeline import PipelineState


class ParallelType(enum.Enum):
    """Who runs a stage inside a replica group."""

    ONE_RANK = "one rank runs it and sends what it writes"
    ALL_RANKS = "every rank runs it, in step"


class Components(Protocol):
    """A diffusers `ModularPipeline`: blocks read the attributes they need off it by name."""

    def __getattr__(self, name: str) -> Any: ...


class Block(Protocol):
    """A leaf of diffusers' `ModularPipelineBlocks`."""

    input_names: list[str]
    intermediate_output_names: list[str]

    def __call__(
        self, components: Components, state: PipelineState
    ) -> tuple[Components, PipelineState]: ...


class StageError(Exception):
    """A stage broke its own declaration. Always a bug, never a user's mistake."""


class PipelineStage:
    """Blocks that run in order on one micro-batch's `PipelineState`.

    `reads` are the names the blocks look up, `writes` those they declare as outputs. Calling the
    stage checks both: nothing undeclared may appear, nothing declared may be missing. Called by
    the `ParallelExecutor` only.
    """

    name: str
    parallel: ParallelType

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = tuple(blocks)
        self.writes = frozenset(_names(block.intermediate_output_names for block in blocks))
        self.reads = frozenset(_names(block.input_names for block in blocks))

    def __call__(self, components: Components, state: PipelineState) -> None:
        """Run every block on `state`, in place. Raises what a block raises, or StageError."""
        before = set(state.values)
        run_blocks(self.blocks, components, state)
        self.check(before, state)

    def check(self, before: set[str], state: PipelineState) -> None:
        """Compare what stands in `state` now and what stood there `before` with the declaration."""
        after = set(state.values)
        if undeclared := after - before - self.writes - self.reads:
            raise StageError(f"{self.name} wrote {sorted(undeclared)} without declaring it")
        if missing := self.writes - after:
            raise StageError(f"{self.name} declares {sorted(missing)} but did not write it")


def run_blocks(blocks: Iterable[Block], components: Components, state: PipelineState) -> None:
    """Run `blocks` in order on `state`, in place."""
    for block in blocks:
        block(components, state)


def _names(groups: Iterable[Iterable[str]]) -> set[str]:
    return {name for group in groups for name in group}
