"""What the plan must know of a model, as `models/folder.py` reads it, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Modality = Literal["image", "video"]
BatchSize = int | Literal["auto"]

AUTO_TOKENS, AUTO_REQS = 4096, 16
"""What `batch_size: auto` puts into one forward at most: picture tokens, and Reqs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentFacts:
    """One component folder of a model: its class and weights, as the safetensors headers say."""

    name: str  # "transformer"
    class_name: str  # "WanTransformer3DModel"
    weight_bytes: int  # 0 for tokenizers and schedulers
    num_params: int
    dtypes: tuple[str, ...]  # of the stored tensors, such as ("BF16",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model folder as `plan` sees it."""

    label: str  # what the user typed
    folder: Path
    class_name: str  # of the pipeline, from model_index.json
    fingerprint: str  # changes when a weight, a config or the pipeline class changes
    modality: Modality
    spatial_multiple: int  # height and width must be multiples of this, pixels
    temporal_multiple: int  # (num_frames - 1) must be a multiple of this
    params: frozenset[str]  # SamplingParams names that change what this model makes
    defaults: Mapping[str, Any]  # the model's own values for the names in `params`
    guided: bool  # a guidance scale above 1 adds a second branch
    components: tuple[ComponentFacts, ...]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights on disk."""
        return sum(component.weight_bytes for component in self.components)


def model_key(facts: ModelFacts, *, dtype: str, scheduler: str, batch_size: BatchSize) -> str:
    """The model's part of a Req id: the weights and how they are run.

    `scheduler` is canonical JSON of the job's choice ("" keeps the folder's own). The batch size
    counts because a batched forward rounds differently.
    """
    size = f"auto-{AUTO_TOKENS}-{AUTO_REQS}" if batch_size == "auto" else str(batch_size)
    return "|".join((facts.fingerprint, dtype, scheduler, size))
