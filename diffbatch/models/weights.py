"""The stored tensors of every component of a model folder, for the memory plan. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from diffbatch.errors import PlanError
from diffbatch.models.checkpoint import read_checkpoint
from diffbatch.models.folder import weight_files
from diffbatch.models.safetensors_header import TensorEntry, read_header
from diffbatch.plan.facts import ModelFacts
from diffbatch.plan.memory import ComponentWeights, StoredShape

SHARED_OUT = ("transformer", "transformer_2")  # components that ranks may hold parts of


def read_weights(facts: ModelFacts, variant: str | None) -> tuple[ComponentWeights, ...]:
    """Every component that has weights, from the headers of its safetensors files."""
    found = []
    for component in facts.components:
        folder, shared_out = facts.folder / component.name, component.name in SHARED_OUT
        tensors = _shapes(_entries(folder, variant, shared_out=shared_out))
        if tensors:
            found.append(
                ComponentWeights(
                    name=component.name,
                    class_name=component.class_name,
                    tensors=tensors,
                    shared_out=shared_out,
                )
            )
    return tuple(found)


def _entries(folder: Path, variant: str | None, *, shared_out: bool) -> Iterable[TensorEntry]:
    if shared_out:
        try:
            checkpoint = read_checkpoint(folder, variant)
        except PlanError:
            pass  # it cannot be cut, which only a layout that cuts it forbids
        else:
            return [stored.entry for stored in checkpoint.tensors.values()]
    return [entry for file in weight_files(folder, variant) for entry in read_header(file)]


def _shapes(entries: Iterable[TensorEntry]) -> dict[str, StoredShape]:
    return {
        entry.name: StoredShape(entry.dtype, entry.shape, entry.end - entry.begin)
        for entry in entries
    }
