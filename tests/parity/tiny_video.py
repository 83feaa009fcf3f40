"""Tiny configurations of video transformers."""

from __future__ import annotations

from typing import Any

import torch

from tests.parity.tiny_base import Tiny, clip_and_text, ids, noise, steps, text_mask

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


def _hunyuan() -> dict[str, Any]:
    return {
        **clip_and_text(),
        "encoder_attention_mask": text_mask(),
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


def _allegro_rope() -> tuple[Any, Any]:
    from diffusers.models.embeddings import get_3d_rotary_pos_embed_allegro

    t, h, w, grid_t, grid_h, grid_w = get_3d_rotary_pos_embed_allegro(
        embed_dim=12, crops_coords=((0, 0), (4, 4)), grid_size=(4, 4), temporal_size=2
    )
    grids = torch.cartesian_prod(grid_t.long(), grid_h.long(), grid_w.long())
    return (t, h, w), tuple(grids.transpose(0, 1)[:, None])


def _wan_animate() -> dict[str, Any]:
    return {
        "hidden_states": noise(1, 12, 3, 4, 4),
        "timestep": steps(1),
        "encoder_hidden_states": noise(1, 6, 16),
        "encoder_hidden_states_image": noise(1, 3, 8),
        "pose_hidden_states": noise(1, 4, 2, 4, 4),
        "face_pixel_values": noise(1, 3, 5, 16, 16),
    }


VIDEO: dict[str, Tiny] = {
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
            **clip_and_text(9),
            "encoder_attention_mask": text_mask(),
            "encoder_hidden_states_2": noise(2, 4, 8),
            "encoder_attention_mask_2": text_mask(3, 4),
            "image_embeds": torch.zeros(2, 3, 12),
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
            "encoder_attention_mask": text_mask(),
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
        lambda: {**clip_and_text(), "encoder_attention_mask": text_mask().bool()},
    ),
    "SanaVideoTransformer3DModel": Tiny({**_SANA, "rope_max_seq_len": 16}, clip_and_text),
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
    "EasyAnimateTransformer3DModel": Tiny(
        {
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "in_channels": 4,
            "out_channels": 4,
            "patch_size": 2,
            "sample_width": 8,
            "sample_height": 8,
            "num_layers": 3,
            "mmdit_layers": 2,
            "time_embed_dim": 8,
            "text_embed_dim": 16,
        },
        clip_and_text,
    ),
    "JoyImageEditTransformer3DModel": Tiny(
        {
            "in_channels": 4,
            "hidden_size": 32,
            "num_attention_heads": 2,
            "text_dim": 16,
            "num_layers": 3,
            "rope_dim_list": [4, 6, 6],
        },
        clip_and_text,
    ),
    "JoyImageEditPlusTransformer3DModel": Tiny(
        {
            "in_channels": 4,
            "hidden_size": 32,
            "num_attention_heads": 2,
            "text_dim": 16,
            "num_layers": 3,
            "rope_dim_list": [4, 6, 6],
        },
        lambda: {
            "hidden_states": noise(2, 8, 4, 1, 2, 2),
            "timestep": steps(),
            "encoder_hidden_states": noise(2, 6, 16),
            "encoder_hidden_states_mask": text_mask().float(),
            "shape_list": [[(1, 2, 2), (1, 2, 2)], [(1, 2, 2), (1, 1, 2)]],
        },
    ),
    "MiniMaxH3Transformer3DModel": Tiny(
        {
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "hidden_size": 32,
            "num_layers": 3,
            "num_refiner_layers": 1,
            "ffn_dim": 32,
            "in_channels": 2,
            "audio_in_channels": 4,
            "text_dim": 16,
            "freq_dim": 16,
            "time_embed_hidden_dim": 32,
            "time_embed_dim": 16,
            "rope_freq_dim": 2,
        },
        lambda: {
            "hidden_states": noise(1, 4, 8),
            "audio_hidden_states": noise(1, 3, 4),
            "encoder_hidden_states": noise(1, 5, 16),
            "timestep": torch.tensor([500.0, 400.0]),
            "timestep_indices": torch.tensor([0] * 9 + [1] * 3),
            "token_tags": torch.tensor([1] * 5 + [0] * 4 + [2] * 3),
            "position_ids": torch.arange(36).view(12, 3),
            "video_indices": torch.arange(5, 9),
            "audio_indices": torch.arange(9, 12),
            "text_indices": torch.arange(0, 5),
        },
    ),
    "MotifVideoTransformer3DModel": Tiny(
        {
            "in_channels": 4,
            "out_channels": 4,
            "num_attention_heads": 2,
            "attention_head_dim": 10,
            "num_layers": 2,
            "num_single_layers": 4,
            "num_decoder_layers": 2,
            "text_embed_dim": 16,
            "rope_axes_dim": (2, 4, 4),
            "patch_size": 1,
        },
        lambda: {**clip_and_text(), "encoder_attention_mask": text_mask()},
    ),
    "Kandinsky5Transformer3DModel": Tiny(
        {
            "in_visual_dim": 4,
            "out_visual_dim": 4,
            "in_text_dim": 16,
            "in_text_dim2": 8,
            "time_dim": 8,
            "model_dim": 24,
            "ff_dim": 32,
            "num_text_blocks": 2,
            "num_visual_blocks": 3,
            "axes_dims": (4, 4, 4),
        },
        lambda: {
            "hidden_states": noise(1, 2, 4, 4, 4),
            "encoder_hidden_states": noise(1, 6, 16),
            "timestep": steps(1),
            "pooled_projections": noise(1, 8),
            "visual_rope_pos": (torch.arange(2), torch.arange(2), torch.arange(2)),
            "text_rope_pos": torch.arange(6),
        },
    ),
    "CosmosTransformer3DModel": Tiny(
        {
            "in_channels": 4,
            "out_channels": 4,
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "num_layers": 3,
            "mlp_ratio": 2.0,
            "text_embed_dim": 16,
            "adaln_lora_dim": 4,
            "max_size": (4, 8, 8),
            "concat_padding_mask": False,
        },
        lambda: {**clip_and_text(), "fps": 16},
    ),
    "TransformerTemporalModel": Tiny(
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 4,
            "num_layers": 3,
            "norm_num_groups": 2,
        },
        lambda: {"hidden_states": noise(4, 4, 4, 4), "num_frames": 2},
    ),
    "WanAnimateTransformer3DModel": Tiny(
        {
            **_WAN,
            "in_channels": 12,
            "latent_channels": 4,
            "image_dim": 8,
            "added_kv_proj_dim": 24,
            "motion_encoder_channel_sizes": {"4": 8, "8": 8, "16": 8},
            "motion_encoder_size": 16,
            "motion_style_dim": 8,
            "motion_dim": 4,
            "motion_encoder_dim": 8,
            "face_encoder_hidden_dim": 8,
            "face_encoder_num_heads": 2,
            "inject_face_latents_blocks": 2,
        },
        _wan_animate,
    ),
    "AnyFlowFARTransformer3DModel": Tiny(
        {**_WAN, "chunk_partition": (1, 1), "full_chunk_limit": 3},
        lambda: {
            **_wan(),
            "hidden_states": noise(2, 2, 4, 8, 8),
            "timestep": torch.full((2, 2), 500.0),
            "r_timestep": torch.full((2, 2), 400.0),
            "chunk_partition": [1, 1],
        },
    ),
    "Cosmos3OmniTransformer": Tiny(
        {
            "head_dim": 16,
            "hidden_size": 32,
            "intermediate_size": 32,
            "latent_channel": 4,
            "num_attention_heads": 2,
            "num_hidden_layers": 3,
            "num_key_value_heads": 1,
            "patch_latent_dim": 16,
            "vocab_size": 40,
            "rope_scaling": {"mrope_section": [4, 2, 2]},
        },
        lambda: {
            "input_ids": ids(40, 6),
            "text_indexes": torch.arange(6),
            "position_ids": torch.arange(14)[None].expand(3, -1),
            "und_len": 6,
            "sequence_length": 14,
            "vision_tokens": [noise(1, 4, 2, 4, 4)],
            "vision_token_shapes": [(2, 2, 2)],
            "vision_sequence_indexes": torch.arange(6, 14),
            "vision_mse_loss_indexes": torch.arange(6, 14),
            "vision_timesteps": torch.full((8,), 500.0),
            "vision_noisy_frame_indexes": [torch.arange(2)],
        },
    ),
}
