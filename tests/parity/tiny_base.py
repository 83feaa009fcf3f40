"""What the tiny configurations are made of: `Tiny`, and helpers for inputs."""

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


def clip_and_text(channels: int = 4, text: int = 16, batch: int = 2) -> dict[str, Any]:
    return {
        "hidden_states": noise(batch, channels, 2, 4, 4),
        "encoder_hidden_states": noise(batch, 6, text),
        "timestep": steps(batch),
    }


def latents_and_text(channels: int = 4, text: int = 16) -> dict[str, Any]:
    return {
        "hidden_states": noise(2, channels, 8, 8),
        "encoder_hidden_states": noise(2, 6, text),
        "timestep": steps(),
    }


def text_mask(valid: int = 4, length: int = 6, batch: int = 2) -> torch.Tensor:
    mask = torch.zeros(batch, length, dtype=torch.long)
    mask[:, :valid] = 1
    return mask
