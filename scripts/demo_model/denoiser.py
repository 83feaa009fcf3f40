"""The transformer: a stock `WanTransformer3DModel` trained by flow matching on picture latents.

x_t = (1 - t) x0 + t noise, the target is noise - x0, the time embedding sees 1000 t (Lipman et
al., "Flow Matching for Generative Modeling", 2022, with straight paths).
"""

from __future__ import annotations

import math
import random
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import WanTransformer3DModel
from torch import Tensor, nn

from demo_model.draw import Scene, caption, difficulty
from demo_model.loop import Progress
from demo_model.text import MAX_WORDS, TEXT_WIDTH, Reader
from demo_model.vae import LATENT_CHANNELS

PICTURES_PER_RANK = 32
PIPELINE_WORDS = 512
"""Length to which the pipeline pads every prompt by default."""
_POSITION_WEIGHT, _READING_WEIGHT = 0.2, 0.1
_HOOKED_BLOCK = 3


def build() -> WanTransformer3DModel:
    """The stock transformer: 8 blocks, 4 heads of 32, one token per latent pixel, 2.3 M weights."""
    transformer = WanTransformer3DModel(
        patch_size=(1, 1, 1),
        num_attention_heads=4,
        attention_head_dim=32,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        text_dim=TEXT_WIDTH,
        freq_dim=128,
        ffn_dim=512,
        num_layers=8,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=128,
    )
    transformer.proj_out.weight.no_muon = True
    with torch.no_grad():
        transformer.proj_out.weight.zero_()
        for block in transformer.blocks:
            # Sharper attention from the start: a caption's few words compete with 500 pads.
            block.attn2.norm_k.weight.fill_(1.5)
    return transformer


class TrainingAttention:
    """Attention for training, equal to the stock processor on a prompt padded with zero vectors.

    All pads share one key and one value, so a single pad whose logit is raised by the log of
    their number stands for all of them. Plain matmul and softmax: on CPU the backward pass of
    `scaled_dot_product_attention` is several times slower.
    """

    def __init__(self) -> None:
        self.text_bias: Tensor | None = None  # (B, 1, 1, MAX_WORDS + 1), set before each forward

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query = attn.norm_q(attn.to_q(hidden_states).float()).unflatten(2, (attn.heads, -1))
        key = attn.norm_k(attn.to_k(source).float()).unflatten(2, (attn.heads, -1))
        value = attn.to_v(source).unflatten(2, (attn.heads, -1)).transpose(1, 2)
        if rotary_emb is not None:
            turn = torch.complex(rotary_emb[0][..., 0::2], rotary_emb[1][..., 1::2])
            query, key = _rotate(query, turn), _rotate(key, turn)
        query = query.transpose(1, 2) * query.shape[-1] ** -0.5
        logits = query @ key.permute(0, 2, 3, 1)
        if encoder_hidden_states is not None:
            assert self.text_bias is not None
            logits = logits + self.text_bias
        mixed = (logits.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        out: Tensor = attn.to_out[0](mixed)
        return out


class Artist(nn.Module):
    """Transformer and text encoder, trained together, with the training-only position head.

    The head regresses each token's place from the output of a middle block: Wan knows positions
    only relative to one another, and the head makes it find the picture's borders.
    """

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.reader = reader
        self.transformer = build()
        self.attention = TrainingAttention()
        self.transformer.set_attn_processor(self.attention)
        self.position_head = nn.Linear(TEXT_WIDTH, 6)
        self.position_head.weight.no_muon = True
        self._middle: Tensor | None = None
        self.transformer.blocks[_HOOKED_BLOCK].register_forward_hook(self._keep)
        # Under autocast this keeps the residual stream, which follows the embedding's dtype, fp32.
        self.transformer.patch_embedding.register_forward_hook(lambda _m, _a, out: out.float())

    def forward(
        self, noisy_BCFHW: Tensor, time_B: Tensor, states: Tensor, mask: Tensor, num_pads: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The predicted flow, shaped as the latents, and the position head's error."""
        pad = states.new_zeros(len(states), 1, states.shape[2])
        words = torch.where(mask.bool(), 0.0, -math.inf)
        bias = torch.cat([words, num_pads.float().log()[:, None]], dim=1)
        self.attention.text_bias = bias[:, None, None]
        states = torch.cat([states * mask[..., None], pad], dim=1)
        flow = self.transformer(noisy_BCFHW, 1000 * time_B, states, return_dict=False)[0]
        assert self._middle is not None
        places = self.position_head(self._middle)
        return flow.float(), F.mse_loss(
            places.float(), _places(*noisy_BCFHW.shape[3:]).expand_as(places)
        )

    def _keep(self, _module: nn.Module, _args: Any, output: Tensor) -> None:
        self._middle = output


class FlowLoss:
    """The loss of an `Artist` on stored latents whose captions are drawn anew each time."""

    def __init__(self, latents: Tensor, scenes: list[Scene]) -> None:
        self.latents, self.scenes = latents, scenes  # (num, C, 1, H, W), unit variance
        self.weights = torch.tensor([difficulty(scene) for scene in scenes])

    def __call__(self, artist: nn.Module, progress: Progress) -> Tensor:
        assert isinstance(artist, Artist)
        rng = progress.rng
        picks = torch.multinomial(self.weights, PICTURES_PER_RANK, replacement=True, generator=rng)
        dice = random.Random(int(torch.randint(2**62, (1,), generator=rng)))
        states, mask, reading = artist.reader([caption(self.scenes[k], dice) for k in picks])
        clean = self.latents[picks]
        noise = torch.randn(clean.shape, generator=rng)
        time = _draw_times(len(picks), rng)
        t = time[:, None, None, None, None]
        num_pads = _draw_lengths(progress, rng) - mask.sum(dim=1)
        flow, misplaced = artist((1 - t) * clean + t * noise, time, states, mask, num_pads)
        matched = F.mse_loss(flow, noise - clean)
        return matched + _POSITION_WEIGHT * misplaced + _READING_WEIGHT * reading


def _draw_times(num: int, rng: torch.Generator) -> Tensor:
    # Logit-normal times around the noisy half, where the text matters; 15 % anywhere.
    normal = torch.sigmoid(0.5 + 1.2 * torch.randn(num, generator=rng))
    anywhere = torch.rand(num, generator=rng)
    return torch.where(torch.rand(num, generator=rng) < 0.15, anywhere, normal)


def _draw_lengths(progress: Progress, rng: torch.Generator) -> Tensor:
    # The padded length grows to the pipeline's default: words found among few pads first.
    longest = PIPELINE_WORDS ** min(1.0, 0.6 + 0.4 * progress.share / 0.15)
    shortest = MAX_WORDS + 2
    spread = torch.rand(PICTURES_PER_RANK, generator=rng) * math.log(longest / shortest)
    full = torch.rand(PICTURES_PER_RANK, generator=rng) < 0.7
    return torch.where(full, torch.tensor(longest), shortest * spread.exp()).round()


def _rotate(x: Tensor, turn: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn).flatten(-2)


def _places(height: int, width: int) -> Tensor:
    """Per token x, y and its closeness to the four borders, (height * width, 6), within [-1, 1]."""
    y, x = torch.meshgrid(
        torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij"
    )
    borders = [torch.exp(-2 * (1 + side * axis)) for axis in (x, y) for side in (1, -1)]
    return torch.stack([x, y, *borders], dim=-1).flatten(0, 1)
