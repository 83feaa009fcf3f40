"""The training set: every picture drawn from its own number, kept as latents of the autoencoder."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from demo_model import vae
from demo_model.draw import Scene, render, sample_scene

_CHUNK = 128


def scenes(num: int) -> list[Scene]:
    """The scenes of the training set, in order."""
    return [sample_scene(random.Random(k)) for k in range(num)]


def write_latents(folder: Path, num: int, rank: int, num_ranks: int) -> None:
    """Encode this rank's share, a strided slice of the training set, into its own file."""
    path = _path(folder, num, rank)
    if path.exists():
        return
    autoencoder = vae.load_average(folder)
    numbers = range(rank, num, num_ranks)
    parts = []
    for start in range(0, len(numbers), _CHUNK):
        pictures = vae.to_tensor(np.stack([_picture(k) for k in numbers[start : start + _CHUNK]]))
        with torch.no_grad():
            parts.append(vae.encode(autoencoder, pictures))
        if rank == 0 and start % (20 * _CHUNK) == 0:
            print(f"latents {start} of {len(numbers)}", flush=True)
    partial = path.with_suffix(".part")
    torch.save(torch.cat(parts), partial)
    os.replace(partial, path)


def read_latents(folder: Path, num: int, num_ranks: int) -> tuple[Tensor, Tensor, Tensor]:
    """All latents, (num, C, 1, H, W), whitened per channel, and the mean and std of each, (C,)."""
    shares = [torch.load(_path(folder, num, rank), weights_only=True) for rank in range(num_ranks)]
    latents = torch.empty(num, *shares[0].shape[1:])
    for rank, share in enumerate(shares):
        latents[rank::num_ranks] = share
    mean, std = latents.mean(dim=(0, 2, 3, 4)), latents.std(dim=(0, 2, 3, 4))
    return (latents - _wide(mean)) / _wide(std), mean, std


def _wide(channels: Tensor) -> Tensor:
    return channels[None, :, None, None, None]


def _picture(number: int) -> np.ndarray:
    rng = random.Random(number)
    return render(sample_scene(rng), rng)


def _path(folder: Path, num: int, rank: int) -> Path:
    return folder / f"latents-{num}-{rank}.pt"
