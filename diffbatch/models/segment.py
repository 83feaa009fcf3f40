"""Load the part of a transformer that one rank owns: a segment, or slices of it.

The model is built with its parameters on the meta device and its buffers real, then the tensors
that this rank owns are read from safetensors, and of tensors that tensor parallelism cuts only the
slice. Blocks of other ranks never take memory. The owned part is bit-identical to what
`from_pretrained` loads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import diffusers
import torch
from accelerate import init_empty_weights
from diffusers.models.modeling_utils import no_init_weights
from safetensors import safe_open
from torch import nn

from diffbatch.errors import PlanError
from diffbatch.models.checkpoint import Checkpoint, read_checkpoint
from diffbatch.parallel.chain import find_chain
from diffbatch.parallel.cut import CutModel
from diffbatch.parallel.tensor import tensor_slices
from diffbatch.plan.split import PipelineShare
from diffbatch.plan.tensor import WHOLE, Slice, TensorShare

NO_SLICES: Mapping[str, Slice] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFacts:
    """What loading cost one rank."""

    bytes_read: int  # of stored tensors, or of the slices of them
    bytes_held: int  # of tensors in memory, after the change of dtype
    num_tensors: int


def load_segment(
    folder: Path,
    share: PipelineShare,
    *,
    tensor_share: TensorShare = WHOLE,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    variant: str | None = None,
) -> tuple[CutModel, LoadFacts]:
    """The segment of one pipeline rank, ready to run, in eval mode.

    With a `tensor_share` its tensors are cut; `apply_tensor_parallel` then makes it ready. Every
    rank of the replica calls it; no rank waits for another. PlanError when the class cannot be cut,
    a split does not fit, or the checkpoint is not what the class expects.
    """
    checkpoint = read_checkpoint(folder, variant)
    model = empty_model(checkpoint, dtype)
    chain = find_chain(model)
    own = share.own(len(chain.names))
    facts = load_weights(
        model,
        checkpoint,
        lambda key: chain.owns(own, key),
        slices=tensor_slices(model, tensor_share),
        dtype=dtype,
        device=device,
    )
    return CutModel(model, chain, own), facts


def empty_model(checkpoint: Checkpoint, dtype: torch.dtype | None = None) -> nn.Module:
    """The model of the folder, in eval mode: parameters on the meta device, buffers real."""
    model_class = getattr(diffusers, checkpoint.class_name, None)
    if model_class is None:
        raise PlanError(
            f"diffusers has no class {checkpoint.class_name}", place=str(checkpoint.folder)
        )
    with _default_dtype(dtype), no_init_weights(), init_empty_weights(include_buffers=False):
        model = model_class.from_config(dict(checkpoint.config))
    assert isinstance(model, nn.Module)
    return model.eval()


def load_weights(
    model: nn.Module,
    checkpoint: Checkpoint,
    owns: Callable[[str], bool],
    *,
    slices: Mapping[str, Slice] = NO_SLICES,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> LoadFacts:
    """Fill the tensors of `model` whose name `owns` accepts; the others stay on meta.

    Of tensors in `slices` only that part is read and held (`tensor_slices` says which).
    `dtype` is that of floating-point tensors (None: the model's own), but for modules that the
    class keeps in fp32. PlanError naming the keys that are missing, unknown or misshapen.
    """
    state = model.state_dict()
    _check_keys(model, state, checkpoint, owns)
    wanted = [name for name in state if owns(name)]
    bytes_read = bytes_held = 0
    for name, tensor in _read(checkpoint, wanted, slices):
        target = _dtype_of(model, name, tensor, state[name], dtype)
        placed = tensor.to(device=device, dtype=target).contiguous()
        _place(model, name, placed)
        bytes_read += tensor.numel() * tensor.element_size()
        bytes_held += placed.numel() * placed.element_size()
    _move_buffers(model, owns, device)
    left = [name for name, item in model.named_parameters() if owns(name) and item.is_meta]
    assert not left, f"not loaded: {left}"
    return LoadFacts(bytes_read=bytes_read, bytes_held=bytes_held, num_tensors=len(wanted))


def _read(
    checkpoint: Checkpoint, names: Iterable[str], slices: Mapping[str, Slice]
) -> Iterator[tuple[str, torch.Tensor]]:
    def file_of(name: str) -> Path:
        return checkpoint.tensors[name].file

    for file, group in groupby(sorted(names, key=lambda name: (str(file_of(name)), name)), file_of):
        with safe_open(file, framework="pt", device="cpu") as stored:
            for name in group:
                part = slices.get(name)
                yield name, stored.get_tensor(name) if part is None else _part(stored, name, part)


def _part(stored: Any, name: str, part: Slice) -> torch.Tensor:
    """The slice of stored tensor `name`, read without the rest of it."""
    whole = stored.get_slice(name)
    before = (slice(None),) * part.dim
    pieces = [whole[(*before, slice(run.start, run.stop))] for run in part.ranges]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, part.dim)


def _dtype_of(
    model: nn.Module,
    name: str,
    stored: torch.Tensor,
    built: torch.Tensor,
    dtype: torch.dtype | None,
) -> torch.dtype:
    """The dtype that `from_pretrained` gives tensor `name`."""
    if dtype is None:
        return built.dtype
    if not stored.is_floating_point():
        return stored.dtype
    kept = getattr(model, "_keep_in_fp32_modules", None) or ()
    kept = (kept,) if isinstance(kept, str) else kept
    return torch.float32 if set(name.split(".")) & set(kept) else dtype


def _place(model: nn.Module, name: str, tensor: torch.Tensor) -> None:
    parent, _, leaf = name.rpartition(".")
    module = model.get_submodule(parent)
    if leaf in module._parameters:
        module._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
    else:
        module._buffers[leaf] = tensor


def _move_buffers(
    model: nn.Module, owns: Callable[[str], bool], device: torch.device | str
) -> None:
    for name, buffer in list(model.named_buffers()):
        if owns(name):
            _place(model, name, buffer.to(device))


def _check_keys(
    model: nn.Module, state: dict[str, Any], checkpoint: Checkpoint, owns: Callable[[str], bool]
) -> None:
    stored = checkpoint.tensors
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    missing = [name for name in state if name not in stored and owns(name)]
    unknown = [name for name in stored if name not in state and not _matches(name, ignored)]
    reshaped = [
        f"{name} (stored {tuple(stored[name].entry.shape)}, expected {tuple(state[name].shape)})"
        for name in state
        if name in stored and tuple(stored[name].entry.shape) != tuple(state[name].shape)
    ]
    found = {"lacks": missing, "has unknown": unknown, "has misshapen": reshaped}
    faults = [f"{verb} {_listed(names)}" for verb, names in found.items() if names]
    if faults:
        raise PlanError(
            f"the weights do not fit {type(model).__name__}: the checkpoint {'; '.join(faults)}",
            place=str(checkpoint.folder),
        )


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


@contextmanager
def _default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """Build under the wanted dtype, as `from_pretrained` does: it decides the dtype of buffers."""
    before = torch.get_default_dtype()
    if dtype is not None:
        torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
