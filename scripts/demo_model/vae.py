"""The picture autoencoder: a stock `AutoencoderKLWan`, trained as a flat picture network.

A Wan VAE is causal in time, so on a single frame its 3x3x3 kernels act through their newest time
slice alone. Training swaps every convolution for a flat twin of that slice, which is exact for
pictures and much cheaper; `write_back` puts the slices where they belong.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d
from torch import Tensor, nn

from demo_model.draw import difficulty, render, sample_scene
from demo_model.loop import Progress

LATENT_CHANNELS = 8
PICTURES_PER_RANK = 16
LATENT_NOISE = 0.2
"""Noise added to latents while training, in units of each channel's spread: makes them smooth."""
_LOG_VARIANCE = -5.0
_SCALE_PENALTY = 1e-4
_OUTLINE_WEIGHT = 3.0
_USUAL_CONTRAST = 2.0  # RGB distance, channels within -1..1


class FlatConv(nn.Module):
    """The newest time slice of a convolution, stored as a matrix (out, in * k * k) for Muon."""

    def __init__(self, source: nn.Conv2d | nn.Conv3d) -> None:
        super().__init__()
        weight = source.weight[:, :, -1] if source.weight.ndim == 5 else source.weight
        self.kernel = weight.shape
        fan_in = weight[0].numel()
        self.matrix = nn.Parameter(torch.randn(weight.shape[0], fan_in) * fan_in**-0.5)
        self.bias = nn.Parameter(torch.zeros(weight.shape[0]))
        self.stride = source.stride[-1]
        causal = isinstance(source, WanCausalConv3d)
        self.padding = int(source._padding[0]) if causal else int(source.padding[-1])

    @property
    def weight(self) -> Tensor:
        return self.matrix.view(self.kernel)

    def forward(self, x: Tensor, _cache: None = None) -> Tensor:
        flat = x[:, :, 0] if x.ndim == 5 else x
        flat = F.conv2d(flat, self.weight, self.bias, self.stride, self.padding)
        return flat.unsqueeze(2) if x.ndim == 5 else flat


def build() -> AutoencoderKLWan:
    """The stock autoencoder with its default initialisation."""
    return AutoencoderKLWan(
        base_dim=8,
        decoder_base_dim=12,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 2, 4, 4],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * LATENT_CHANNELS,
        latents_std=[1.0] * LATENT_CHANNELS,
    )


def flatten(vae: AutoencoderKLWan) -> AutoencoderKLWan:
    """Swap the convolutions that a picture passes for flat twins, in place, newly initialised."""
    for name, module in list(vae.named_modules()):
        if isinstance(module, (nn.Conv2d, nn.Conv3d)) and not name.endswith("time_conv"):
            parent = vae.get_submodule(name.rpartition(".")[0])
            twin = FlatConv(module)
            if isinstance(parent, nn.Sequential | nn.ModuleList):
                parent[int(name.rpartition(".")[2])] = twin
            else:
                setattr(parent, name.rpartition(".")[2], twin)
        elif name.endswith("time_conv"):
            module.requires_grad_(False)
    with torch.no_grad():
        # The posterior's spread is a constant: training adds its own noise (see LATENT_NOISE).
        vae.quant_conv.matrix[LATENT_CHANNELS:] = 0
        vae.quant_conv.bias[LATENT_CHANNELS:] = _LOG_VARIANCE
    return vae


def write_back(flat: AutoencoderKLWan, mean: Tensor, std: Tensor) -> AutoencoderKLWan:
    """A stock autoencoder that does to pictures what the flat one does.

    Older time slices are zero and time convolutions copy, so a clip is coded frame by frame.
    `mean` and `std` are those of the latents, (LATENT_CHANNELS,).
    """
    vae = build()
    vae.register_to_config(latents_mean=mean.tolist(), latents_std=std.tolist())
    with torch.no_grad():
        for name, parameter in vae.named_parameters():
            owner = flat.get_submodule(name.rpartition(".")[0])
            if name.endswith("time_conv.weight"):
                parameter.zero_()
                copies = parameter.shape[0] // parameter.shape[1]
                parameter[:, :, -1, 0, 0] = torch.eye(parameter.shape[1]).repeat(copies, 1)
            elif name.endswith("time_conv.bias"):
                parameter.zero_()
            elif isinstance(owner, FlatConv) and parameter.ndim == 5:
                parameter.zero_()
                parameter[:, :, -1] = owner.weight
            else:
                parameter.copy_(getattr(owner, name.rpartition(".")[2]))
    return vae


def loss(vae: nn.Module, progress: Progress) -> Tensor:
    """Reconstruction through noisy latents: L1, squares and the L1 of neighbour differences.

    Errors count more along outlines, and relative to the contrast of the picture: what is lost of
    a small or faint shape weighs as much as what is lost of a large, bright one.
    """
    assert isinstance(vae, AutoencoderKLWan)
    rng = random.Random(int(torch.randint(2**62, (1,), generator=progress.rng)))
    pictures = draw_batch(rng, PICTURES_PER_RANK)
    latents = encode(vae, pictures)
    spread = latents.detach().std(dim=(0, 2, 3, 4), keepdim=True)
    noise = torch.randn(latents.shape, generator=progress.rng)
    drawn = decode(vae, latents + LATENT_NOISE * spread * noise)
    error = (drawn - pictures) / _contrast(pictures)
    return (
        (_outline_weight(pictures) * error.abs()).mean()
        + 0.5 * error.square().mean()
        + 0.5 * (error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean())
        + _SCALE_PENALTY * latents.square().mean()
    )


def _contrast(pictures: Tensor) -> Tensor:
    """How far the picture's colours lie apart, (B, 1, 1, 1, 1), 1 where the average one stands."""
    corner = pictures[..., :1, :1]
    apart = (pictures - corner).square().sum(dim=1, keepdim=True).sqrt().amax(dim=(-1, -2, -3, -4))
    return (apart / _USUAL_CONTRAST).clamp(0.4, 2.0).view(-1, 1, 1, 1, 1)


def _outline_weight(pictures: Tensor) -> Tensor:
    """1 on plain areas, up to 1 + _OUTLINE_WEIGHT around outlines, (B, 1, 1, H, W)."""
    spread = F.max_pool2d(pictures[:, :, 0], 5, 1, 2) + F.max_pool2d(-pictures[:, :, 0], 5, 1, 2)
    spread = spread.amax(dim=1, keepdim=True)
    return (1 + _OUTLINE_WEIGHT * spread / spread.amax(dim=(-1, -2), keepdim=True)).unsqueeze(2)


def encode(vae: AutoencoderKLWan, pictures: Tensor) -> Tensor:
    """(B, 3, 1, H, W), -1..1 -> the posterior's mean (B, LATENT_CHANNELS, 1, H/8, W/8)."""
    moments = vae.quant_conv(vae.encoder(pictures))
    return moments[:, :LATENT_CHANNELS]


def decode(vae: AutoencoderKLWan, latents: Tensor) -> Tensor:
    """The inverse of `encode`, without the stock final clamp, which stops gradients."""
    return vae.decoder(vae.post_quant_conv(latents))


def draw_batch(rng: random.Random, num: int) -> Tensor:
    """Freshly drawn pictures, (num, 3, 1, SIDE_PX, SIDE_PX), fp32, -1..1."""
    candidates = [sample_scene(rng) for _ in range(3 * num)]
    scenes = rng.choices(candidates, [difficulty(scene) for scene in candidates], k=num)
    return to_tensor(np.stack([render(scene, rng) for scene in scenes]))


def to_tensor(pictures: np.ndarray) -> Tensor:
    """(B, H, W, 3) uint8 -> (B, 3, 1, H, W), fp32, -1..1."""
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).unsqueeze(2).float() / 127.5 - 1.0


def load_average(folder: Path) -> AutoencoderKLWan:
    """The flat autoencoder with the averaged weights of its checkpoint."""
    vae = flatten(build())
    state = torch.load(folder / "vae.ckpt", weights_only=True)
    with torch.no_grad():
        trained = [p for p in vae.parameters() if p.requires_grad]
        for parameter, mean in zip(trained, state["average"], strict=True):
            parameter.copy_(mean)
    return vae.eval()
