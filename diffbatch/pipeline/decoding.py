"""DecodingStage: latents -> uint8 frames, the last stage that knows of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from diffusers.modular_pipelines.modular_pipeline import PipelineState

from diffbatch.pipeline.stage import Block, Components, ParallelType, PipelineStage

if TYPE_CHECKING:
    import numpy.typing as npt

    from diffbatch.req import Frames

NON_FINITE = (
    "non-finite pixels (NaN or infinity) came out of the model; "
    "try dtype float32, another seed or a lower guidance_scale"
)


class DecodingStage(PipelineStage):
    """Latents -> float pixels 0..1 under `output_name` in the state ("images" or "videos")."""

    name = "decoding"
    parallel = ParallelType.ONE_RANK

    def __init__(self, blocks: Sequence[Block], output_name: str) -> None:
        super().__init__(blocks)
        self.output_name = output_name

    def frames(
        self, components: Components, state: PipelineState
    ) -> tuple[list[Frames | None], list[str | None]]:
        """Decode `state`: for each request of the micro-batch its frames, or why there are none.

        Frames are uint8 (F, H, W, 3), rounded as PIL conversion in diffusers rounds.
        """
        finite = _finite_latents(state)
        self(components, state)
        pixels = np.asarray(state.get(self.output_name))
        pixels_BFHWC = pixels[:, None] if pixels.ndim == 4 else pixels
        frames: list[Frames | None] = []
        errors: list[str | None] = []
        for k, pixels_FHWC in enumerate(pixels_BFHWC):
            good = finite[k if len(finite) > 1 else 0] and bool(np.isfinite(pixels_FHWC).all())
            frames.append(_to_uint8(pixels_FHWC) if good else None)
            errors.append(None if good else NON_FINITE)
        return frames, errors


def _finite_latents(state: PipelineState) -> list[bool]:
    """Per request, whether its latents are finite; decoders clamp infinities out of sight."""
    latents = state.get("latents")
    if not isinstance(latents, torch.Tensor):
        return [True]
    finite: list[bool] = torch.isfinite(latents).flatten(1).all(dim=1).tolist()
    return finite


def _to_uint8(pixels: npt.NDArray[np.float32]) -> Frames:
    return (pixels * 255).round().astype(np.uint8)
