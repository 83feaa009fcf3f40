"""An estimate of the memory that a rank needs besides its weights. Pure.

Denoising: with T tokens on this rank (batch x (picture / sequence ranks + text)), width D of the
transformer and width F of its feed-forward (F / tp on a rank), a block has at most about
`10 D + 2 F` numbers per token alive at once, in the dtype of the job: the residual stream, its
normed copy, queries, keys, values and their rotated copies, or the feed-forward before and after
its activation. Attention is taken to be a fused kernel, which never holds its matrix of scores.
Pipeline ranks hold besides two buffers of T x D for each branch of each micro-batch in flight.
Cross attention keeps keys and values of the text from step to step, up to `KEPT_TEXT_BYTES` for
each micro-batch in flight.

Decoding: the last stage of the VAE dominates. At full resolution, with C channels (the second level
of its widths), a picture VAE has 3 C numbers per pixel alive, a causal video VAE, which decodes one
latent frame at a time and keeps the features of the frames before, `(4 + 6 f) C` with f frames per
latent frame (1 for a picture); and twice the clip itself, in fp32.

The two come one after the other, so the larger counts. The factors were measured, on random weights
of Wan, SD3, FLUX.1, AutoencoderKL and AutoencoderKLWan; docs/memory.md says how far off they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diffbatch.plan.layout import Layout
from diffbatch.plan.memory import ComponentWeights

KEPT_TEXT_BYTES = 256 * 1024**2
"""What one micro-batch may keep of what its text alone leads to, see `pipeline/reuse.py`."""
_PER_WIDTH, _PER_INNER = 10, 2
_PICTURE_VAE = 3
_CLIP_VAE, _CLIP_VAE_PER_FRAME = 4, 6
_COLORS, _FP32_BYTES = 3, 4
_CROSS_KEY = ".attn2.to_k.weight"
_KEPT_PER_LAYER = 3  # keys, normed keys, values
_MODULATIONS = ("norm", "mod", "ada", "embed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The largest of everything that the micro-batches of a job bring."""

    batch_size: int = 1
    branches: int = 1
    picture_tokens: int = 0
    text_tokens: int = 0
    frame_pixels: int = 0  # height x width
    clip_pixels: int = 0  # height x width x frames
    flights: int = 1  # micro-batches in flight per replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Sizes of a model that decide its activations; 0 where its configs do not say."""

    model: int = 0
    inner: int = 0
    decoder: int = 0  # channels of the VAE next to full resolution
    frames_per_latent: int = 1
    cross_layers: int = 0  # blocks that attend to a text which no block changes


def widths_of(
    transformer: Mapping[str, Any],
    weights: ComponentWeights | None,
    vae: Mapping[str, Any],
    temporal_multiple: int,
) -> Widths:
    """From the configs of the transformer and the VAE, and the names of stored tensors."""
    model = _product(transformer.get("num_attention_heads"), transformer.get("attention_head_dim"))
    model = model or _product(transformer.get("inner_dim"))
    inner = max((_linear_outputs(weights, model) if weights else 0), model)
    return Widths(
        model=model,
        inner=inner,
        decoder=_decoder_width(vae),
        frames_per_latent=temporal_multiple,
        cross_layers=sum(key.endswith(_CROSS_KEY) for key in weights.tensors) if weights else 0,
    )


def activation_bytes(widths: Widths, work: Work, layout: Layout, item_bytes: int) -> int:
    """Bytes at the peak of denoising or decoding, on any rank of a replica."""
    return max(
        _denoising_bytes(widths, work, layout, item_bytes),
        _decoding_bytes(widths, work, item_bytes),
    )


def _denoising_bytes(widths: Widths, work: Work, layout: Layout, item_bytes: int) -> int:
    sequence = layout.ulysses * layout.ring
    tokens = work.batch_size * (-(-work.picture_tokens // sequence) + work.text_tokens)
    inner = widths.inner // layout.tp
    alive = tokens * (_PER_WIDTH * widths.model + _PER_INNER * inner)
    branches = -(-work.branches // layout.cfg)
    if layout.pp > 1:
        alive += 2 * work.flights * branches * tokens * widths.model
    return alive * item_bytes + work.flights * _kept_bytes(widths, work, branches, item_bytes)


def _kept_bytes(widths: Widths, work: Work, branches: int, item_bytes: int) -> int:
    """What a micro-batch keeps of its text between steps, at most."""
    text = work.batch_size * work.text_tokens * widths.model
    kept = text * (_KEPT_PER_LAYER * widths.cross_layers + 1) * branches * item_bytes
    return min(kept, KEPT_TEXT_BYTES) if widths.cross_layers else 0


def _decoding_bytes(widths: Widths, work: Work, item_bytes: int) -> int:
    if widths.decoder == 0:
        return 0
    factor = _PICTURE_VAE
    if widths.frames_per_latent > 1:
        frames = 1 if work.clip_pixels == work.frame_pixels else widths.frames_per_latent
        factor = _CLIP_VAE + _CLIP_VAE_PER_FRAME * frames
    features = work.batch_size * work.frame_pixels * widths.decoder * factor * item_bytes
    clip = 2 * work.batch_size * work.clip_pixels * _COLORS * _FP32_BYTES
    return features + clip


def _product(*values: Any) -> int:
    found = 1
    for value in values:
        if not isinstance(value, int):
            return 0
        found *= value
    return found


def _linear_outputs(weights: ComponentWeights, model: int) -> int:
    """The widest output of a linear layer that sees every token: the feed-forward's."""
    found = [
        stored.shape[0]
        for key, stored in weights.tensors.items()
        if len(stored.shape) == 2
        and stored.shape[1] == model
        and not any(part in key for part in _MODULATIONS)
    ]
    return max(found, default=0)


def _decoder_width(vae: Mapping[str, Any]) -> int:
    channels = vae.get("block_out_channels")
    if isinstance(channels, list) and channels:
        return int(channels[min(1, len(channels) - 1)])
    base, multiples = vae.get("decoder_base_dim") or vae.get("base_dim"), vae.get("dim_mult")
    if isinstance(base, int) and isinstance(multiples, list) and multiples:
        return int(base * multiples[min(1, len(multiples) - 1)])
    return 0
