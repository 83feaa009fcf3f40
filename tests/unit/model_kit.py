"""A pretend model folder: real layout and safetensors headers, a few bytes of weights, no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from diffbatch.plan.facts import ModelFacts

_WAN_VAE = {"temperal_downsample": [False, True, True]}
_IMAGE_VAE = {"block_out_channels": [8, 16, 32, 32]}
_COMPONENTS = {
    "WanPipeline": ("UMT5EncoderModel", "WanTransformer3DModel", "AutoencoderKLWan", _WAN_VAE),
    "StableDiffusion3Pipeline": (
        "T5EncoderModel",
        "SD3Transformer2DModel",
        "AutoencoderKL",
        _IMAGE_VAE,
    ),
    "FluxPipeline": ("T5EncoderModel", "FluxTransformer2DModel", "AutoencoderKL", _IMAGE_VAE),
}
_TRANSFORMER_CONFIGS: dict[str, dict[str, Any]] = {
    "WanPipeline": {"patch_size": [1, 2, 2]},
    "StableDiffusion3Pipeline": {"patch_size": 2, "sample_size": 16},
    "FluxPipeline": {"patch_size": 1},
}


def make_model(
    folder: Path, class_name: str = "WanPipeline", *, second_transformer: bool = False
) -> Path:
    """Write a model folder of `class_name` and return it."""
    encoder, transformer, vae, vae_config = _COMPONENTS[class_name]
    index: dict[str, Any] = {
        "_class_name": class_name,
        "_diffusers_version": "0.42.0",
        "scheduler": ["diffusers", "UniPCMultistepScheduler"],
        "text_encoder": ["transformers", encoder],
        "tokenizer": ["transformers", "T5TokenizerFast"],
        "transformer": ["diffusers", transformer],
        "transformer_2": [None, None],
        "vae": ["diffusers", vae],
    }
    if second_transformer:
        index["transformer_2"] = ["diffusers", transformer]
    folder.mkdir(parents=True)
    write_json(folder / "model_index.json", index)
    write_json(folder / "scheduler" / "scheduler_config.json", {"flow_shift": 3.0})
    write_json(folder / "tokenizer" / "tokenizer.json", {"vocab": {"a": 0}})
    write_weights(folder / "text_encoder" / "model.safetensors")
    write_json(folder / "vae" / "config.json", vae_config)
    write_weights(folder / "vae" / "diffusion_pytorch_model.safetensors")
    for name in ("transformer", *(["transformer_2"] if second_transformer else [])):
        write_json(folder / name / "config.json", _TRANSFORMER_CONFIGS[class_name])
        write_weights(folder / name / "diffusion_pytorch_model.safetensors")
    return folder


def write_json(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")


def write_weights(path: Path, **changed: np.ndarray) -> None:
    """Two tensors of 12 and 4 elements, 32 bytes in all, unless `changed` replaces or adds some."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {
        "blocks.0.weight": np.arange(12, dtype=np.float16).reshape(3, 4),
        "blocks.0.bias": np.ones(4, dtype=np.float16),
    }
    save_file({**tensors, **changed}, path)


def wan_facts(**changed: Any) -> ModelFacts:
    """Facts of a pretend Wan: multiples 16 and 4, guided."""
    values: dict[str, Any] = {
        "label": "tiny",
        "folder": Path("/models/tiny"),
        "class_name": "WanPipeline",
        "fingerprint": "f00d",
        "modality": "video",
        "spatial_multiple": 16,
        "temporal_multiple": 4,
        "params": frozenset(
            {"height", "width", "num_frames", "num_inference_steps", "guidance_scale"}
            | {"negative_prompt", "max_sequence_length", "fps"}
        ),
        "defaults": {"height": 64, "width": 64, "num_frames": 1},
        "guided": True,
        "components": (),
    }
    return ModelFacts(**{**values, **changed})


def picture_facts(**changed: Any) -> ModelFacts:
    """Facts of a pretend model of pictures without guidance branches."""
    params = frozenset({"height", "width", "num_inference_steps", "guidance_scale"})
    values: dict[str, Any] = {
        "class_name": "FluxPipeline",
        "modality": "image",
        "temporal_multiple": 1,
        "params": params,
        "guided": False,
    }
    return wan_facts(**{**values, **changed})
