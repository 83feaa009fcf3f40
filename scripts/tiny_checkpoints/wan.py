"""Wan text-to-video: one transformer (2.1), or a high-noise and a low-noise one (2.2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diffusers import (
    AutoencoderKLWan,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)

from tiny_checkpoints.text import umt5_encoder
from tiny_checkpoints.tokenizer import t5_tokenizer
from tiny_checkpoints.weights import randomize

_TEXT_WIDTH = 32
_LATENT_CHANNELS = 16


def build(folder: Path) -> None:
    """Wan 2.1."""
    pipeline = WanPipeline(
        **_shared_components(flow_shift=3.0), transformer=_transformer("transformer")
    )
    pipeline.save_pretrained(folder)


def build_two_transformers(folder: Path) -> None:
    """Wan 2.2: `transformer` above the boundary, `transformer_2` below."""
    pipeline = WanPipeline(
        **_shared_components(flow_shift=5.0),
        transformer=_transformer("transformer"),
        transformer_2=_transformer("transformer_2"),
        boundary_ratio=0.875,
    )
    pipeline.save_pretrained(folder)


def _shared_components(*, flow_shift: float) -> dict[str, Any]:
    return {
        "tokenizer": t5_tokenizer(),
        "text_encoder": umt5_encoder("text_encoder", width=_TEXT_WIDTH),
        "vae": _vae(),
        "scheduler": UniPCMultistepScheduler(
            prediction_type="flow_prediction",
            use_flow_sigmas=True,
            num_train_timesteps=1000,
            flow_shift=flow_shift,
        ),
    }


def _transformer(component: str) -> WanTransformer3DModel:
    model = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=4,
        attention_head_dim=16,
        in_channels=_LATENT_CHANNELS,
        out_channels=_LATENT_CHANNELS,
        text_dim=_TEXT_WIDTH,
        freq_dim=32,
        ffn_dim=128,
        num_layers=8,
    )
    randomize(model, component)
    return model


def _vae() -> AutoencoderKLWan:
    model = AutoencoderKLWan(base_dim=8, z_dim=_LATENT_CHANNELS, num_res_blocks=1)
    randomize(model, "vae")
    return model
