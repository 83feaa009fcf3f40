"""The model lines diffbatch runs: one row per pipeline class, checked against diffusers by a test.

Only what a folder's config files do not say stands here: what comes out, which parameters have an
effect, and the defaults of the pipeline's call. Sizes and multiples come from the configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diffbatch.plan.facts import Modality

_TEXT_TO_IMAGE = frozenset(
    {"height", "width", "num_inference_steps", "guidance_scale", "max_sequence_length"}
)
_TEXT_TO_VIDEO = _TEXT_TO_IMAGE | {"num_frames", "fps"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One family of models that share a pipeline class.

    `defaults` are the values of the pipeline's `__call__`; a height or width that is missing there
    is `sample_size` of the transformer times the VAE's scale. `latent_pack` is the side of the
    square of latent pixels that becomes one token outside the transformer's own patching.
    """

    family: str  # diffusers' name of it, in MODULAR_PIPELINE_MAPPING
    modality: Modality
    params: frozenset[str]
    defaults: Mapping[str, Any]
    guided: bool
    sample_size: int | None = None  # latent pixels, where the transformer's config has none
    latent_pack: int = 1


LINES: dict[str, Line] = {
    "WanPipeline": Line(
        family="wan",
        modality="video",
        params=_TEXT_TO_VIDEO | {"negative_prompt", "guidance_scale_2"},
        defaults={
            "height": 480,
            "width": 832,
            "num_frames": 81,
            "num_inference_steps": 50,
            "guidance_scale": 5.0,
            "max_sequence_length": 512,
            "fps": 16,
        },
        guided=True,
    ),
    "StableDiffusion3Pipeline": Line(
        family="stable-diffusion-3",
        modality="image",
        params=_TEXT_TO_IMAGE | {"negative_prompt"},
        defaults={"num_inference_steps": 28, "guidance_scale": 7.0, "max_sequence_length": 256},
        guided=True,
    ),
    "FluxPipeline": Line(
        family="flux",
        modality="image",
        params=_TEXT_TO_IMAGE,
        defaults={"num_inference_steps": 28, "guidance_scale": 3.5, "max_sequence_length": 512},
        guided=False,
        sample_size=128,
        latent_pack=2,
    ),
}
