"""One training loop for all parts: budgeted in minutes, resumable, data-parallel.

Ranks are processes with one thread each; their gradients are averaged over gloo. The budget is
wall-clock time because the machine may be shared; the time spent is kept in the checkpoint.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How one part is trained; rates are at the peak of the schedule."""

    name: str
    minutes: float
    muon_rate: float
    adam_rate: float
    average_decay: float
    weight_decay: float = 0.02
    warmup_steps: int = 50
    bf16: bool = False  # matmuls in bf16, weights and residuals in fp32
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reporting:
    """Where checkpoints go and how often they are written and the loss is logged."""

    folder: Path
    save_every_s: float = 60.0
    log_every_s: float = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where a step stands: its number and the share of the time budget that is spent, 0..1."""

    step: int
    share: float
    rng: torch.Generator


Loss = Callable[[nn.Module, Progress], Tensor]


class Trainer:
    """Trains `module` until the recipe's minutes are spent and keeps an average of its weights."""

    def __init__(self, module: nn.Module, loss: Loss, recipe: Recipe, reporting: Reporting) -> None:
        self.module, self.loss, self.recipe, self.reporting = module, loss, recipe, reporting
        self.path = reporting.folder / f"{recipe.name}.ckpt"
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.average = [p.detach().clone() for p in self.parameters]
        self.step, self.spent_s = 0, 0.0
        matrices = [p for p in self.parameters if p.ndim == 2 and min(p.shape) >= 16]
        matrices = [p for p in matrices if not getattr(p, "no_muon", False)]
        chosen = {id(p) for p in matrices}
        rest = [p for p in self.parameters if id(p) not in chosen]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                matrices,
                lr=recipe.muon_rate,
                weight_decay=recipe.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            ),
            torch.optim.AdamW(rest, lr=recipe.adam_rate, weight_decay=0.0, betas=(0.9, 0.98)),
        ]
        if self.path.exists():
            self._load()

    def run(self) -> None:
        """Train up to the budget; every rank must call it."""
        budget_s = 60 * self.recipe.minutes
        started, base_s = time.monotonic(), self.spent_s
        saved = logged = started
        smooth = None
        while True:
            share = _agree(self.spent_s / budget_s if budget_s else 1.0)
            if share >= 1:
                break
            value = self._train_step(share)
            smooth = value if smooth is None else 0.98 * smooth + 0.02 * value
            now = time.monotonic()
            self.spent_s = base_s + now - started
            if now - logged > self.reporting.log_every_s and is_leader():
                logged = now
                left_s = max(0.0, budget_s - self.spent_s)
                print(
                    f"{self.recipe.name} step {self.step} loss {smooth:.4f} "
                    f"spent {self.spent_s:.0f} s ETA {left_s:.0f} s",
                    flush=True,
                )
            if now - saved > self.reporting.save_every_s:
                saved = now
                self.save()
        self.save()

    def use_average(self) -> None:
        """Put the averaged weights into the module."""
        with torch.no_grad():
            for parameter, mean in zip(self.parameters, self.average, strict=True):
                parameter.copy_(mean)

    def save(self) -> None:
        """Write the checkpoint of the leader, whole or not at all."""
        if not is_leader():
            return
        state = {
            "step": self.step,
            "spent_s": self.spent_s,
            "module": self.module.state_dict(),
            "average": self.average,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        partial = self.path.with_suffix(".part")
        torch.save(state, partial)
        os.replace(partial, self.path)

    def _load(self) -> None:
        state = torch.load(self.path, weights_only=True)
        self.module.load_state_dict(state["module"])
        self.average = state["average"]
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.spent_s = state["step"], state["spent_s"]
        if is_leader():
            print(f"{self.recipe.name} resumed at step {self.step}", flush=True)

    def _train_step(self, share: float) -> float:
        recipe = self.recipe
        rng = torch.Generator().manual_seed(recipe.seed + 1_000_003 * self.step + 7 * _rank())
        factor = _rate_factor(share, self.step, recipe.warmup_steps)
        for optimizer, rate in zip(
            self.optimizers, (recipe.muon_rate, recipe.adam_rate), strict=True
        ):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bf16):
            loss = self.loss(self.module, Progress(step=self.step, share=share, rng=rng))
        loss.backward()
        _average_gradients(self.parameters)
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self.step += 1
        decay = min(recipe.average_decay, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.parameters, 1 - decay)
        return float(loss.detach())


def is_leader() -> bool:
    """Whether this process writes files and logs."""
    return _rank() == 0


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _agree(share: float) -> float:
    # Clocks differ between ranks; all follow rank 0, or their rates would drift apart.
    if not dist.is_initialized():
        return share
    box = torch.tensor([share])
    dist.broadcast(box, src=0)
    return float(box)


def _average_gradients(parameters: list[nn.Parameter]) -> None:
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    flat = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad.copy_(flat[offset : offset + parameter.numel()].view_as(parameter))
        offset += parameter.numel()


def _rate_factor(share: float, step: int, warmup_steps: int) -> float:
    cosine = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
    return cosine * min(1.0, (step + 1) / warmup_steps)
