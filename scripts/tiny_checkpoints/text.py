"""Text encoders: CLIP, T5 and UMT5, two layers each."""

from __future__ import annotations

from typing import Any

from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    PreTrainedModel,
    T5Config,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)

from tiny_checkpoints.tokenizer import CLIP_BOS, CLIP_EOS, CLIP_MAX_TOKENS, clip_tokenizer
from tiny_checkpoints.tokenizer import t5_tokenizer as _t5_tokenizer
from tiny_checkpoints.weights import randomize

CLIP_WIDTH = 32


def clip_encoder(component: str, *, with_projection: bool) -> PreTrainedModel:
    """A CLIP text tower, 32 wide."""
    tokenizer = clip_tokenizer()
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=CLIP_WIDTH,
        intermediate_size=64,
        projection_dim=CLIP_WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=CLIP_MAX_TOKENS,
        hidden_act="quick_gelu",
        bos_token_id=tokenizer.convert_tokens_to_ids(CLIP_BOS),
        eos_token_id=tokenizer.convert_tokens_to_ids(CLIP_EOS),
        pad_token_id=tokenizer.convert_tokens_to_ids(CLIP_EOS),
    )
    model = (CLIPTextModelWithProjection if with_projection else CLIPTextModel)(config)
    randomize(model, component)
    return model


def t5_encoder(component: str, *, width: int) -> T5EncoderModel:
    """A T5 1.1 encoder (gated GELU)."""
    model = T5EncoderModel(T5Config(**_t5_sizes(width)))
    randomize(model, component)
    return model


def umt5_encoder(component: str, *, width: int) -> UMT5EncoderModel:
    """A UMT5 encoder: T5 with position buckets in every layer."""
    model = UMT5EncoderModel(UMT5Config(**_t5_sizes(width)))
    randomize(model, component)
    return model


def _t5_sizes(width: int) -> dict[str, Any]:
    return {
        "vocab_size": len(_t5_tokenizer()),
        "d_model": width,
        "d_kv": width // 4,
        "d_ff": 2 * width,
        "num_layers": 2,
        "num_heads": 4,
        "feed_forward_proj": "gated-gelu",
        "dropout_rate": 0.0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }
