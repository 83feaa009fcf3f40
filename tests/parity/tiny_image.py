"""Tiny configurations of image transformers with two streams or two lists."""

from __future__ import annotations

from typing import Any

import torch

from tests.parity.tiny_base import Tiny, grid_ids, ids, latents_and_text, noise, steps, text_mask

_FLUX = {
    "in_channels": 4,
    "num_layers": 2,
    "num_single_layers": 3,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 16,
    "axes_dims_rope": (4, 6, 6),
}


def _flux(axes: int = 3, pooled: int = 8) -> dict[str, Any]:
    return {
        "hidden_states": noise(2, 8, 4),
        "encoder_hidden_states": noise(2, 5, 16),
        "pooled_projections": noise(2, pooled),
        "timestep": steps(value=0.5),
        "img_ids": grid_ids(8, axes),
        "txt_ids": grid_ids(5, axes),
    }


def _flux_plain(axes: int = 3) -> dict[str, Any]:
    found = _flux(axes)
    del found["pooled_projections"]
    return found


def _sd3() -> dict[str, Any]:
    return {
        "hidden_states": noise(2, 4, 8, 8),
        "encoder_hidden_states": noise(2, 5, 16),
        "pooled_projections": noise(2, 8),
        "timestep": steps(),
    }


def _sizes() -> dict[str, Any]:
    return {
        "original_size": torch.tensor([[32.0, 32.0]] * 2),
        "target_size": torch.tensor([[32.0, 32.0]] * 2),
        "crop_coords": torch.tensor([[0.0, 0.0]] * 2),
    }


_COGVIEW = {
    "patch_size": 2,
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 3,
    "attention_head_dim": 8,
    "num_attention_heads": 2,
    "text_embed_dim": 16,
    "time_embed_dim": 8,
    "condition_dim": 4,
    "pos_embed_max_size": 8,
    "sample_size": 8,
}


_HUNYUAN = {
    "in_channels": 4,
    "out_channels": 4,
    "num_attention_heads": 2,
    "attention_head_dim": 10,
    "num_layers": 2,
    "num_single_layers": 3,
    "num_refiner_layers": 1,
    "patch_size": 1,
    "patch_size_t": 1,
    "guidance_embeds": True,
    "text_embed_dim": 16,
    "pooled_projection_dim": 8,
    "rope_axes_dim": (2, 4, 4),
}


IMAGE: dict[str, Tiny] = {
    "SD3Transformer2DModel": Tiny(
        {
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 4,
            "attention_head_dim": 8,
            "num_attention_heads": 2,
            "joint_attention_dim": 16,
            "caption_projection_dim": 16,
            "pooled_projection_dim": 8,
            "pos_embed_max_size": 8,
            "dual_attention_layers": (0, 1),
            "qk_norm": "rms_norm",
        },
        _sd3,
    ),
    "FluxTransformer2DModel": Tiny(
        {**_FLUX, "pooled_projection_dim": 8, "guidance_embeds": True},
        lambda: {**_flux(), "guidance": torch.full((2,), 3.5)},
    ),
    "Flux2Transformer2DModel": Tiny(
        {
            **_FLUX,
            "axes_dims_rope": (4, 4, 4, 4),
            "timestep_guidance_channels": 16,
        },
        lambda: {**_flux_plain(4), "guidance": torch.full((2,), 3.5)},
    ),
    "Flux3Transformer2DModel": Tiny(
        {
            **_FLUX,
            "axes_dims_rope": (4, 4, 4, 4),
            "timestep_channels": 16,
            "cond_in_channels": 4,
        },
        lambda: _flux_plain(4),
    ),
    "ChromaTransformer2DModel": Tiny(
        {
            **_FLUX,
            "approximator_num_channels": 8,
            "approximator_hidden_dim": 16,
            "approximator_layers": 1,
        },
        _flux_plain,
    ),
    "BriaTransformer2DModel": Tiny({**_FLUX, "pooled_projection_dim": None}, _flux_plain),
    "BriaFiboTransformer2DModel": Tiny(
        {**_FLUX, "text_encoder_dim": 8},
        lambda: {**_flux_plain(), "text_encoder_layers": [noise(2, 5, 8) for _ in range(5)]},
    ),
    "LongCatImageTransformer2DModel": Tiny({**_FLUX, "pooled_projection_dim": 8}, _flux_plain),
    "OvisImageTransformer2DModel": Tiny({**_FLUX, "out_channels": 4}, _flux_plain),
    "QwenImageTransformer2DModel": Tiny(
        {
            "patch_size": 2,
            "in_channels": 16,
            "out_channels": 4,
            "num_layers": 3,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 16,
            "axes_dims_rope": (4, 6, 6),
        },
        lambda: {
            "hidden_states": noise(2, 16, 16),
            "encoder_hidden_states": noise(2, 5, 16),
            "encoder_hidden_states_mask": torch.ones(2, 5, dtype=torch.long),
            "timestep": steps(value=0.5),
            "img_shapes": [[(1, 4, 4)]] * 2,
        },
    ),
    "HunyuanImageTransformer2DModel": Tiny(
        {
            **{
                k: v
                for k, v in _HUNYUAN.items()
                if k not in ("patch_size_t", "pooled_projection_dim")
            },
            "patch_size": (1, 1),
            "attention_head_dim": 8,
            "rope_axes_dim": (4, 4),
        },
        lambda: {
            "hidden_states": noise(2, 4, 4, 4),
            "encoder_hidden_states": noise(2, 6, 16),
            "timestep": steps(),
            "encoder_attention_mask": text_mask(),
            "guidance": torch.full((2,), 3500.0),
        },
    ),
    "Lumina2Transformer2DModel": Tiny(
        {
            "sample_size": 8,
            "in_channels": 4,
            "hidden_size": 24,
            "num_layers": 3,
            "num_refiner_layers": 2,
            "num_attention_heads": 2,
            "num_kv_heads": 1,
            "multiple_of": 8,
            "axes_dim_rope": (4, 4, 4),
            "axes_lens": (16, 16, 16),
            "cap_feat_dim": 16,
        },
        lambda: {
            **latents_and_text(),
            "encoder_attention_mask": torch.tensor([[1] * 6, [1] * 4 + [0] * 2], dtype=torch.bool),
        },
    ),
    "LuminaNextDiT2DModel": Tiny(
        {
            "sample_size": 8,
            "in_channels": 4,
            "hidden_size": 24,
            "num_layers": 3,
            "num_attention_heads": 2,
            "num_kv_heads": 2,
            "multiple_of": 8,
            "cross_attention_dim": 16,
        },
        lambda: {
            **latents_and_text(),
            "encoder_mask": torch.ones(2, 6),
            "image_rotary_emb": torch.polar(torch.ones(8, 8, 6), noise(8, 8, 6)),
            "cross_attention_kwargs": {},
        },
    ),
    "ZImageTransformer2DModel": Tiny(
        {
            "in_channels": 4,
            "dim": 24,
            "n_layers": 3,
            "n_refiner_layers": 2,
            "n_heads": 2,
            "n_kv_heads": 2,
            "cap_feat_dim": 16,
            "axes_dims": [4, 4, 4],
            "axes_lens": [64, 16, 16],
        },
        lambda: {
            "x": [noise(4, 1, 8, 8), noise(4, 1, 8, 8)],
            "t": torch.full((2,), 0.5),
            "cap_feats": [noise(6, 16), noise(9, 16)],
        },
    ),
    "CogView3PlusTransformer2DModel": Tiny(_COGVIEW, lambda: {**latents_and_text(), **_sizes()}),
    "CogView4Transformer2DModel": Tiny(
        {**_COGVIEW, "rope_axes_dim": (8, 8)}, lambda: {**latents_and_text(), **_sizes()}
    ),
    "GlmImageTransformer2DModel": Tiny(
        {
            "patch_size": 2,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 3,
            "attention_head_dim": 8,
            "num_attention_heads": 2,
            "text_embed_dim": 16,
            "time_embed_dim": 8,
            "condition_dim": 4,
            "prior_vq_quantizer_codebook_size": 12,
        },
        lambda: {
            **latents_and_text(),
            "prior_token_id": ids(12, 2, 16),
            "prior_token_drop": torch.zeros(2, 16, dtype=torch.bool),
            "target_size": torch.tensor([[32.0, 32.0]] * 2),
            "crop_coords": torch.tensor([[0.0, 0.0]] * 2),
        },
    ),
    "AuraFlowTransformer2DModel": Tiny(
        {
            "sample_size": 8,
            "in_channels": 4,
            "num_mmdit_layers": 2,
            "num_single_dit_layers": 3,
            "attention_head_dim": 8,
            "num_attention_heads": 2,
            "joint_attention_dim": 16,
            "caption_projection_dim": 16,
            "pos_embed_max_size": 64,
        },
        latents_and_text,
    ),
    "HunyuanDiT2DModel": Tiny(
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 4,
            "patch_size": 2,
            "sample_size": 8,
            "hidden_size": 16,
            "num_layers": 4,
            "cross_attention_dim": 16,
            "cross_attention_dim_t5": 16,
            "pooled_projection_dim": 8,
            "text_len": 4,
            "text_len_t5": 4,
        },
        dict,
    ),
    "HiDreamImageTransformer2DModel": Tiny(
        {
            "patch_size": 2,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 2,
            "num_single_layers": 3,
            "attention_head_dim": 8,
            "num_attention_heads": 4,
            "caption_channels": [16, 8],
            "text_emb_dim": 8,
            "num_routed_experts": 4,
            "num_activated_experts": 2,
            "axes_dims_rope": (4, 2, 2),
            "max_resolution": (8, 8),
            "llama_layers": [0, 1, 0, 1, 0],
            "force_inference_output": True,
        },
        lambda: {
            "hidden_states": noise(2, 4, 8, 8),
            "timesteps": steps(),
            "encoder_hidden_states_t5": noise(2, 5, 16),
            "encoder_hidden_states_llama3": noise(2, 2, 5, 8),
            "pooled_embeds": noise(2, 8),
        },
    ),
    "BriaFibo2Transformer2DModel": Tiny(
        {
            "in_channels": 4,
            "dim": 32,
            "n_layers": 3,
            "n_refiner_layers": 2,
            "n_heads": 2,
            "cap_feat_dim": 16,
            "injection_layer_ids": (1,),
            "perceiver_num_layers": 1,
            "min_num_gist_tokens": 2,
            "max_num_gist_tokens": 4,
            "gist_step": 1,
            "gist_min_text_len": 2,
            "gist_max_text_len": 8,
            "axes_dims": (4, 6, 6),
            "axes_lens": (64, 16, 16),
        },
        lambda: {
            "hidden_states": noise(2, 4, 8, 8),
            "timestep": steps(value=0.5),
            "encoder_hidden_states": noise(2, 2, 6, 16),
            "encoder_attention_mask": torch.tensor([[1] * 6, [1] * 3 + [0] * 3]).bool(),
        },
    ),
    "QwenImage21Transformer2DModel": Tiny(
        {
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 3,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "context_in_dim": 16,
            "axes_dims_rope": (4, 6, 6),
        },
        lambda: {
            "hidden_states": noise(1, 16, 4),
            "encoder_hidden_states": noise(1, 6, 16),
            "timestep": steps(1, 0.5),
            "img_shapes": [[(1, 4, 4)]],
            "img_mask": torch.tensor([[False] * 6 + [True] * 4]),
        },
    ),
}
