"""A model folder with the headers of a real transformer, and weights of zeros. No torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from diffbatch.launch import choose, devices
from tests.unit.model_kit import make_model, write_json

WIDTH, HEADS, NUM_BLOCKS = 16, 4, 4
ONE_BLOCK, OUTSIDE, ENCODER_AND_VAE = 4 * 1024, 4 * 100, 2 * 4 * 16
WHOLE = 4 * ONE_BLOCK + OUTSIDE + ENCODER_AND_VAE
HALF = 2 * ONE_BLOCK + OUTSIDE + ENCODER_AND_VAE
SMALL = {"height": 16, "width": 16, "num_frames": 1}
CONFIG = {
    "_class_name": "WanTransformer3DModel",
    "patch_size": [1, 2, 2],
    "num_attention_heads": HEADS,
    "attention_head_dim": WIDTH // HEADS,
}


def make_wan(folder: Path) -> Path:
    """A pretend Wan of 4 blocks: 1024 numbers in each, 100 outside; half as much in fp16."""
    make_model(folder)
    write_json(folder / "transformer" / "config.json", CONFIG)
    tensors = {"proj_out.weight": (100,)}
    for at in range(NUM_BLOCKS):
        tensors[f"blocks.{at}.ffn.net.0.proj.weight"] = (32, WIDTH)
        tensors[f"blocks.{at}.ffn.net.2.weight"] = (WIDTH, 32)
    zeros = {name: np.zeros(shape, np.float16) for name, shape in tensors.items()}
    save_file(zeros, folder / "transformer" / "diffusion_pytorch_model.safetensors")
    return folder


def make_wan_on_cpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`make_wan` on a machine of 8 cores and no GPU, for a model without activations."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "_NVIDIA", folder / "none")
    monkeypatch.setattr(choose, "num_cores", lambda: 8)
    monkeypatch.setattr("diffbatch.launch.memory.activation_bytes", lambda *_: 0)
    return make_wan(folder / "m")
