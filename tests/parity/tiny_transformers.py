"""Tiny configurations of diffusers transformer classes, and inputs for their forwards.

Written from the classes' constructors and forward signatures. Values only have to be legal: the tests
compare a model with itself. B = 2 where the class allows it, latents a few pixels wide, 3 blocks or
more per list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

_generator = torch.Generator()


def noise(*shape: int) -> torch.Tensor:
    """Unit-variance noise, fp32."""
    return torch.randn(*shape, generator=_generator)


def ids(high: int, *shape: int) -> torch.Tensor:
    """Whole numbers 0..high-1."""
    return torch.randint(0, high, shape, generator=_generator)


def steps(batch: int = 2, value: float = 500.0) -> torch.Tensor:
    """A timestep per sample."""
    return torch.full((batch,), value)


def grid_ids(length: int, axes: int) -> torch.Tensor:
    """Position ids (length, axes): axis 1 counts, the others are 0."""
    found = torch.zeros(length, axes)
    found[:, 1] = torch.arange(length)
    return found


@dataclass(frozen=True)
class Tiny:
    """One class: constructor arguments, and a function that makes the forward's arguments."""

    config: dict[str, Any]
    inputs: Callable[[], dict[str, Any]]
    seed: int = 0
    tags: tuple[str, ...] = field(default=())

    def make_inputs(self) -> dict[str, Any]:
        """The same arguments every time."""
        _generator.manual_seed(self.seed + 1)
        return self.inputs()


_WAN = {
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "in_channels": 4,
    "out_channels": 4,
    "text_dim": 16,
    "freq_dim": 16,
    "ffn_dim": 32,
    "num_layers": 4,
    "rope_max_seq_len": 32,
}


def _wan() -> dict[str, Any]:
    return {
        "hidden_states": noise(2, 4, 2, 4, 4),
        "timestep": steps(),
        "encoder_hidden_states": noise(2, 6, 16),
    }


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


def _cogvideox() -> dict[str, Any]:
    return {
        "hidden_states": noise(1, 2, 4, 8, 8),
        "encoder_hidden_states": noise(1, 8, 16),
        "timestep": steps(1),
    }


_COGVIDEOX = {
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "in_channels": 4,
    "out_channels": 4,
    "time_embed_dim": 4,
    "text_embed_dim": 16,
    "num_layers": 3,
    "sample_width": 8,
    "sample_height": 8,
    "sample_frames": 5,
    "max_text_seq_length": 8,
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


def _latents_and_text(channels: int = 4, text: int = 16) -> dict[str, Any]:
    return {
        "hidden_states": noise(2, channels, 8, 8),
        "encoder_hidden_states": noise(2, 6, text),
        "timestep": steps(),
    }


def _clip_and_text(channels: int = 4, text: int = 16, batch: int = 2) -> dict[str, Any]:
    return {
        "hidden_states": noise(batch, channels, 2, 4, 4),
        "encoder_hidden_states": noise(batch, 6, text),
        "timestep": steps(batch),
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


def _text_mask(valid: int = 4, length: int = 6, batch: int = 2) -> torch.Tensor:
    mask = torch.zeros(batch, length, dtype=torch.long)
    mask[:, :valid] = 1
    return mask


def _hunyuan() -> dict[str, Any]:
    return {
        **_clip_and_text(),
        "encoder_attention_mask": _text_mask(),
        "pooled_projections": noise(2, 8),
        "guidance": torch.full((2,), 6000.0),
    }


_SANA = {
    "in_channels": 4,
    "out_channels": 4,
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "num_layers": 3,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 12,
    "cross_attention_dim": 24,
    "caption_channels": 16,
    "sample_size": 8,
}

TINY: dict[str, Tiny] = {
    "WanTransformer3DModel": Tiny(_WAN, _wan),
    "WanVACETransformer3DModel": Tiny(
        {**_WAN, "vace_layers": [0, 2], "vace_in_channels": 4},
        lambda: {**_wan(), "control_hidden_states": noise(2, 4, 2, 4, 4)},
    ),
    "ChronoEditTransformer3DModel": Tiny(_WAN, _wan),
    "SkyReelsV2Transformer3DModel": Tiny(_WAN, _wan),
    "AnyFlowTransformer3DModel": Tiny(
        _WAN,
        lambda: {
            **_wan(),
            "hidden_states": noise(2, 2, 4, 4, 4),
            "timestep": torch.full((2, 2), 500.0),
            "r_timestep": torch.full((2, 2), 400.0),
        },
    ),
    "HeliosTransformer3DModel": Tiny(
        {
            **{key: value for key, value in _WAN.items() if key != "rope_max_seq_len"},
            "rope_dim": (4, 4, 4),
            "guidance_cross_attn": False,
            "zero_history_timestep": False,
            "has_multi_term_memory_patch": False,
        },
        _wan,
    ),
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
    "HunyuanVideoTransformer3DModel": Tiny(_HUNYUAN, _hunyuan),
    "HunyuanVideoFramepackTransformer3DModel": Tiny(
        {
            **_HUNYUAN,
            "patch_size": 2,
            "has_image_proj": True,
            "image_proj_dim": 8,
            "has_clean_x_embedder": True,
        },
        lambda: {
            **_hunyuan(),
            "image_embeds": noise(2, 3, 8),
            "hidden_states": noise(2, 4, 2, 8, 8),
            "indices_latents": torch.arange(2),
            "latents_clean": noise(2, 4, 1, 8, 8),
            "indices_latents_clean": torch.arange(1),
            "latents_history_2x": noise(2, 4, 2, 8, 8),
            "indices_latents_history_2x": torch.arange(2),
            "latents_history_4x": noise(2, 4, 4, 8, 8),
            "indices_latents_history_4x": torch.arange(4),
        },
    ),
    "HunyuanVideo15Transformer3DModel": Tiny(
        {
            "in_channels": 9,
            "out_channels": 4,
            "num_attention_heads": 2,
            "attention_head_dim": 10,
            "num_layers": 3,
            "num_refiner_layers": 1,
            "text_embed_dim": 16,
            "text_embed_2_dim": 8,
            "image_embed_dim": 12,
            "rope_axes_dim": (2, 4, 4),
            "target_size": 16,
            "task_type": "t2v",
        },
        lambda: {
            **_clip_and_text(9),
            "encoder_attention_mask": _text_mask(),
            "encoder_hidden_states_2": noise(2, 4, 8),
            "encoder_attention_mask_2": _text_mask(3, 4),
            "image_embeds": torch.zeros(2, 3, 12),
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
            "encoder_attention_mask": _text_mask(),
            "guidance": torch.full((2,), 3500.0),
        },
    ),
    "LTXVideoTransformer3DModel": Tiny(
        {
            "in_channels": 4,
            "out_channels": 4,
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "cross_attention_dim": 16,
            "num_layers": 3,
            "caption_channels": 16,
        },
        lambda: {
            "hidden_states": noise(2, 8, 4),
            "encoder_hidden_states": noise(2, 6, 16),
            "timestep": steps(),
            "encoder_attention_mask": _text_mask(),
            "num_frames": 2,
            "height": 2,
            "width": 2,
        },
    ),
    "LTX2VideoTransformer3DModel": Tiny(
        {
            "in_channels": 4,
            "out_channels": 4,
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "cross_attention_dim": 16,
            "audio_in_channels": 4,
            "audio_out_channels": 4,
            "audio_num_attention_heads": 2,
            "audio_attention_head_dim": 4,
            "audio_cross_attention_dim": 8,
            "num_layers": 3,
            "caption_channels": 16,
            "rope_double_precision": False,
        },
        lambda: {
            "hidden_states": noise(2, 8, 4),
            "audio_hidden_states": noise(2, 5, 4),
            "encoder_hidden_states": noise(2, 6, 16),
            "audio_encoder_hidden_states": noise(2, 6, 16),
            "timestep": steps()[:, None].expand(2, 8),
            "audio_timestep": steps()[:, None].expand(2, 5),
            "num_frames": 2,
            "height": 2,
            "width": 2,
            "audio_num_frames": 5,
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
            **_latents_and_text(),
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
            **_latents_and_text(),
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
    "CogVideoXTransformer3DModel": Tiny(_COGVIDEOX, _cogvideox),
    "ConsisIDTransformer3DModel": Tiny(
        {
            **_COGVIDEOX,
            "num_layers": 4,
            "is_train_face": True,
            "cross_attn_interval": 2,
            "cross_attn_dim_head": 8,
            "cross_attn_num_heads": 2,
            "LFE_id_dim": 8,
            "LFE_vit_dim": 16,
            "LFE_depth": 5,
            "LFE_dim_head": 8,
            "LFE_num_heads": 2,
            "LFE_num_id_token": 1,
            "LFE_num_querie": 2,
            "LFE_output_dim": 10,
            "LFE_ff_mult": 1,
        },
        lambda: {
            **_cogvideox(),
            "id_cond": noise(1, 8),
            "id_vit_hidden": [noise(1, 3, 16) for _ in range(5)],
        },
    ),
    "CogView3PlusTransformer2DModel": Tiny(_COGVIEW, lambda: {**_latents_and_text(), **_sizes()}),
    "CogView4Transformer2DModel": Tiny(
        {**_COGVIEW, "rope_axes_dim": (8, 8)}, lambda: {**_latents_and_text(), **_sizes()}
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
            **_latents_and_text(),
            "prior_token_id": ids(12, 2, 16),
            "prior_token_drop": torch.zeros(2, 16, dtype=torch.bool),
            "target_size": torch.tensor([[32.0, 32.0]] * 2),
            "crop_coords": torch.tensor([[0.0, 0.0]] * 2),
        },
    ),
    "MochiTransformer3DModel": Tiny(
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "num_layers": 3,
            "pooled_projection_dim": 8,
            "in_channels": 4,
            "text_embed_dim": 16,
            "time_embed_dim": 4,
            "max_sequence_length": 6,
        },
        lambda: {**_clip_and_text(), "encoder_attention_mask": _text_mask().bool()},
    ),
    "PixArtTransformer2DModel": Tiny(
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 4,
            "num_layers": 3,
            "cross_attention_dim": 16,
            "sample_size": 8,
            "caption_channels": 16,
            "use_additional_conditions": False,
        },
        lambda: {
            **_latents_and_text(),
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        },
    ),
    "SanaTransformer2DModel": Tiny(_SANA, _latents_and_text),
    "SanaVideoTransformer3DModel": Tiny({**_SANA, "rope_max_seq_len": 16}, _clip_and_text),
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
        _latents_and_text,
    ),
    "DiTTransformer2DModel": Tiny(
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 4,
            "num_layers": 3,
            "sample_size": 8,
            "num_embeds_ada_norm": 10,
        },
        lambda: {
            "hidden_states": noise(2, 4, 8, 8),
            "timestep": torch.tensor([500, 500]),
            "class_labels": torch.tensor([1, 2]),
        },
    ),
    "Transformer2DModel": Tiny(
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 4,
            "num_layers": 3,
            "norm_num_groups": 2,
            "cross_attention_dim": 16,
        },
        lambda: {"hidden_states": noise(2, 4, 8, 8), "encoder_hidden_states": noise(2, 6, 16)},
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
    "LatteTransformer3DModel": Tiny(
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 3,
            "cross_attention_dim": 16,
            "sample_size": 8,
            "patch_size": 2,
            "norm_type": "ada_norm_single",
            "norm_elementwise_affine": False,
            "caption_channels": 16,
            "video_length": 2,
        },
        lambda: {
            "hidden_states": noise(2, 4, 2, 8, 8),
            "encoder_hidden_states": noise(2, 6, 16),
            "timestep": steps(),
        },
    ),
    "AllegroTransformer3DModel": Tiny(
        {
            "num_attention_heads": 2,
            "attention_head_dim": 12,
            "num_layers": 3,
            "cross_attention_dim": 24,
            "sample_height": 8,
            "sample_width": 8,
            "sample_frames": 2,
            "caption_channels": 16,
        },
        lambda: {
            "hidden_states": noise(1, 4, 2, 8, 8),
            "encoder_hidden_states": noise(1, 6, 16),
            "timestep": steps(1),
            "attention_mask": torch.ones(1, 2, 8, 8),
            "encoder_attention_mask": torch.ones(1, 6),
            "image_rotary_emb": _allegro_rope(),
        },
    ),
}


def _allegro_rope() -> tuple[Any, Any]:
    from diffusers.models.embeddings import get_3d_rotary_pos_embed_allegro

    t, h, w, grid_t, grid_h, grid_w = get_3d_rotary_pos_embed_allegro(
        embed_dim=12, crops_coords=((0, 0), (4, 4)), grid_size=(4, 4), temporal_size=2
    )
    grids = torch.cartesian_prod(grid_t.long(), grid_h.long(), grid_w.long())
    return (t, h, w), tuple(grids.transpose(0, 1)[:, None])
