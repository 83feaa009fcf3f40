"""What a block returned, as plain data: its structure travels once, its tensors at every step.

`flatten` takes the value apart, a `Header` carries the structures of all blocks up to a boundary as
JSON, `unflatten` puts the value together again on the next rank. No pickle anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from diffbatch.errors import PlanError

Value = Any  # a tensor, None, a plain number or text, or tuples, lists and dicts of these

_PLAIN = (bool, int, float, str)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: shape, dtype name ("bfloat16"), dims from slowest to fastest in memory."""

    shape: tuple[int, ...]
    dtype: str
    order: tuple[int, ...]

    @property
    def wire_shape(self) -> tuple[int, ...]:
        """The shape of the contiguous tensor that travels."""
        return tuple(self.shape[dim] for dim in self.order)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of the tensor, on the wire too."""
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    def empty(self, device: torch.device | str) -> torch.Tensor:
        """A buffer to receive the tensor in: contiguous, of `wire_shape`."""
        return torch.empty(self.wire_shape, dtype=self.torch_dtype, device=device)

    def blank(self, device: torch.device | str, fill: float) -> torch.Tensor:
        """A stand-in of this shape that takes no memory: `fill`, or zero for whole-number types."""
        dtype = self.torch_dtype
        if not (dtype.is_floating_point or dtype.is_complex):
            fill = 0
        return torch.full((1,), fill, dtype=dtype, device=device).expand(self.shape)


@dataclass(frozen=True, slots=True)
class Node:
    """A container or a plain value: `kind` is "tuple", "list", "dict" or "plain"."""

    kind: str
    items: tuple[Spec, ...] = ()
    keys: tuple[str, ...] = ()  # of a dict
    plain: bool | int | float | str | None = None


Spec = TensorSpec | Node


@dataclass(frozen=True, slots=True)
class Header:
    """The structures that blocks 0..j-1 returned, in call order; the last one is what travels.

    Goes ahead of a micro-batch's first step, as JSON; the same for all of its steps.
    """

    blocks: tuple[Spec, ...]

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors that travel over this boundary, in order."""
        return tuple(tensors_of(self.blocks[-1]))

    def to_json(self) -> str:
        """Text for the wire; equal neighbours are written once with their count."""
        runs = [[plain_spec(spec), len(list(run))] for spec, run in groupby(self.blocks)]
        return json.dumps(runs, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Header:
        """The inverse of `to_json`."""
        blocks: list[Spec] = []
        for plain, count in json.loads(text):
            blocks += [spec_from_plain(plain)] * count
        return cls(tuple(blocks))


@dataclass(frozen=True, slots=True)
class Handoff:
    """What one rank hands to the next: the header and the tensors, contiguous, in its order."""

    header: Header
    tensors: tuple[torch.Tensor, ...]

    def value(self) -> Value:
        """What the last block before the boundary returned."""
        return unflatten(self.header.blocks[-1], self.tensors)


def spec_of(value: Value) -> Spec:
    """The structure of a block's return value. A type that cannot travel is a PlanError."""
    if isinstance(value, torch.Tensor):
        return TensorSpec(
            tuple(value.shape), str(value.dtype).removeprefix("torch."), _order(value)
        )
    if value is None or isinstance(value, _PLAIN):
        return Node("plain", plain=value)
    if type(value) in (tuple, list):
        return Node(type(value).__name__, tuple(spec_of(item) for item in value))
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return Node("dict", tuple(spec_of(item) for item in value.values()), tuple(value))
    raise PlanError(
        f"a block returned a {type(value).__name__}; only tensors, numbers, text, None, and "
        "tuples, lists and dicts of these can go to the next pipeline rank; use --pp 1"
    )


def flatten(value: Value) -> tuple[Spec, tuple[torch.Tensor, ...]]:
    """Take `value` apart: its structure, and its tensors contiguous in the order of the wire."""
    spec = spec_of(value)
    tensors = zip(tensors_of(spec), _leaves(value), strict=True)
    return spec, tuple(leaf.permute(part.order).contiguous() for part, leaf in tensors)


def unflatten(spec: Spec, tensors: Sequence[torch.Tensor]) -> Value:
    """Put a value of structure `spec` together; strides are those of the original, too."""
    wire = iter(tensors)
    return _build(spec, (_unpacked(part, next(wire)) for part in tensors_of(spec)))


def blank(spec: Spec, device: torch.device | str, fill: float) -> Value:
    """A value of structure `spec` made of `TensorSpec.blank` tensors."""
    return _build(spec, (part.blank(device, fill) for part in tensors_of(spec)))


def _order(tensor: torch.Tensor) -> tuple[int, ...]:
    strides = tensor.stride()
    return tuple(sorted(range(tensor.ndim), key=lambda dim: (-strides[dim], dim)))


def _unpacked(spec: TensorSpec, wire: torch.Tensor) -> torch.Tensor:
    inverse = sorted(range(len(spec.order)), key=lambda at: spec.order[at])
    return wire.permute(inverse)


def tensors_of(spec: Spec) -> Iterator[TensorSpec]:
    """The tensors of a structure, in the order of the wire."""
    if isinstance(spec, TensorSpec):
        yield spec
    else:
        for item in spec.items:
            yield from tensors_of(item)


def _leaves(value: Value) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)


def _build(spec: Spec, tensors: Iterator[torch.Tensor]) -> Value:
    if isinstance(spec, TensorSpec):
        return next(tensors)
    if spec.kind == "plain":
        return spec.plain
    items = [_build(item, tensors) for item in spec.items]
    if spec.kind == "dict":
        return dict(zip(spec.keys, items, strict=True))
    return tuple(items) if spec.kind == "tuple" else items


def plain_spec(spec: Spec) -> list[Any]:
    """A structure as JSON-ready data; `spec_from_plain` reads it back."""
    if isinstance(spec, TensorSpec):
        return ["tensor", spec.shape, spec.dtype, spec.order]
    return [spec.kind, [plain_spec(item) for item in spec.items], spec.keys, spec.plain]


def spec_from_plain(plain: list[Any]) -> Spec:
    """The inverse of `plain_spec`."""
    kind, first, second, third = plain
    if kind == "tensor":
        return TensorSpec(tuple(first), second, tuple(third))
    return Node(kind, tuple(spec_from_plain(item) for item in first), tuple(second), third)
