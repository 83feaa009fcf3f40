"""A Wan checkpoint whose transformer dominates, made on the fly for the benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from diffusers import WanTransformer3DModel

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from tiny_checkpoints import build


def make_checkpoint(folder: Path, *, num_layers: int, num_heads: int) -> Path:
    """The tiny Wan pipeline with a larger transformer: head width 64, feed-forward 4 x width."""
    build("wan", folder)
    torch.manual_seed(0)
    width = 64 * num_heads
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=num_heads,
        attention_head_dim=64,
        in_channels=16,
        out_channels=16,
        text_dim=32,
        freq_dim=256,
        ffn_dim=4 * width,
        num_layers=num_layers,
    )
    transformer.save_pretrained(folder / "transformer")
    return folder
