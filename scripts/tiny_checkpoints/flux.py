"""FLUX.1 without guidance embedding: four double blocks, then four single ones."""

from __future__ import annotations

from pathlib import Path

from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

from tiny_checkpoints.image_vae import LATENT_CHANNELS, image_vae
from tiny_checkpoints.text import CLIP_WIDTH, clip_encoder, t5_encoder
from tiny_checkpoints.tokenizer import clip_tokenizer, t5_tokenizer
from tiny_checkpoints.weights import randomize

_T5_WIDTH = 64


def build(folder: Path) -> None:
    """Write the whole pipeline."""
    pipeline = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
        vae=image_vae(scaling_factor=0.3611, shift_factor=0.1159),
        text_encoder=clip_encoder("text_encoder", with_projection=False),
        tokenizer=clip_tokenizer(),
        text_encoder_2=t5_encoder("text_encoder_2", width=_T5_WIDTH),
        tokenizer_2=t5_tokenizer(),
        transformer=_transformer(),
    )
    pipeline.save_pretrained(folder)


def _transformer() -> FluxTransformer2DModel:
    model = FluxTransformer2DModel(
        patch_size=1,
        in_channels=4 * LATENT_CHANNELS,
        num_layers=4,
        num_single_layers=4,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=_T5_WIDTH,
        pooled_projection_dim=CLIP_WIDTH,
        guidance_embeds=False,
        axes_dims_rope=(4, 6, 6),
    )
    randomize(model, "transformer")
    return model
