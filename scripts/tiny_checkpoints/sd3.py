"""Stable Diffusion 3.5: two CLIP towers, T5, and a transformer with q/k norm."""

from __future__ import annotations

from pathlib import Path

from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)

from tiny_checkpoints.image_vae import LATENT_CHANNELS, image_vae
from tiny_checkpoints.text import CLIP_WIDTH, clip_encoder, t5_encoder
from tiny_checkpoints.tokenizer import clip_tokenizer, t5_tokenizer
from tiny_checkpoints.weights import randomize

_T5_WIDTH = 2 * CLIP_WIDTH


def build(folder: Path) -> None:
    """Write the whole pipeline."""
    pipeline = StableDiffusion3Pipeline(
        transformer=_transformer(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=image_vae(scaling_factor=1.5305, shift_factor=0.0609),
        text_encoder=clip_encoder("text_encoder", with_projection=True),
        tokenizer=clip_tokenizer(),
        text_encoder_2=clip_encoder("text_encoder_2", with_projection=True),
        tokenizer_2=clip_tokenizer(),
        text_encoder_3=t5_encoder("text_encoder_3", width=_T5_WIDTH),
        tokenizer_3=t5_tokenizer(),
    )
    pipeline.save_pretrained(folder)


def _transformer() -> SD3Transformer2DModel:
    model = SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=8,
        num_attention_heads=4,
        attention_head_dim=16,
        joint_attention_dim=_T5_WIDTH,
        caption_projection_dim=64,
        pooled_projection_dim=2 * CLIP_WIDTH,
        pos_embed_max_size=32,
        qk_norm="rms_norm",
    )
    randomize(model, "transformer")
    return model
