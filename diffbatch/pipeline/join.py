"""Several requests in one state: what a batched forward takes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from diffusers.modular_pipelines.modular_pipeline import PipelineState

from diffbatch.req import Req

Encoded = tuple[Req, PipelineState]


def groups_of_equal_shape(encoded: Sequence[Encoded]) -> list[list[Encoded]]:
    """Split into runs whose encodings have equal shapes: only those can share a forward."""
    groups = itertools.groupby(encoded, key=lambda item: _shape(item[1]))
    return [list(group) for _, group in groups]


def join(states: list[PipelineState]) -> PipelineState:
    """One state for several requests: tensors along dim 0, per-request values as lists."""
    first = states[0]
    if len(states) == 1:
        return first
    joined = PipelineState(kwargs_mapping=first.kwargs_mapping)
    for name, value in first.values.items():
        values = [state.get(name) for state in states]
        if isinstance(value, torch.Tensor):
            joined.values[name] = torch.cat(values)
        elif isinstance(value, list):
            joined.values[name] = [item for items in values for item in items]
        elif name != "generator" and all(other == value for other in values[1:]):
            joined.values[name] = value
        else:
            joined.values[name] = values
    return joined


def _shape(state: PipelineState) -> tuple[Any, ...]:
    return tuple(
        (name, tuple(value.shape[1:]), value.dtype)
        for name, value in sorted(state.values.items())
        if isinstance(value, torch.Tensor)
    )
