"""What tests of tp and sp run on every rank: groups, forwards, comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import distributed, nn

from diffbatch.parallel.cut import CutModel
from diffbatch.parallel.sequence import apply_sequence_parallel
from diffbatch.parallel.structure import Handoff, Header
from diffbatch.parallel.tensor import apply_tensor_parallel
from diffbatch.plan.layout import Axis, Layout
from tests.parity.cutting import leaves
from tests.parity.tiny_base import Tiny
from tests.parity.tiny_transformers import TINY

_TEXT_DIMS = {"encoder_hidden_states": 1, "encoder_hidden_states_mask": 1, "txt_ids": 0}


def group(layout: Layout, *axes: Axis) -> Any:
    """This rank's process group on `axes`; None for one rank. Every rank must call it."""
    mine = None
    for members in layout.groups(*axes):
        if len(members) > 1:
            made = distributed.new_group(list(members))
            mine = made if distributed.get_rank() in members else mine
    return mine


def parallelize(model: nn.Module | CutModel, layout: Layout, *, uneven: bool = False) -> None:
    """Both ways to share out a model's work, as the layout says. Every rank must call it."""
    apply_tensor_parallel(model, group(layout, "tp"))
    apply_sequence_parallel(
        model,
        ring=group(layout, "ring"),
        ulysses=group(layout, "ulysses"),
        both=group(layout, "ring", "ulysses"),
        device=torch.device("cpu"),
        uneven=uneven,
    )


def tiny_of(name: str, changes: Mapping[str, Any] | None = None, **inputs: Any) -> Tiny:
    """The tiny configuration of a class with 4 heads and 4 text tokens, which ranks can share.

    `changes` override the configuration, `inputs` arguments of the forward.
    """
    tiny = TINY[name]
    heads = {"num_attention_heads": 4, "caption_projection_dim": 4 * 8}
    config = {**tiny.config, **{key: heads[key] for key in heads.keys() & tiny.config.keys()}}

    def make() -> dict[str, Any]:
        found = {**tiny.inputs(), **inputs}
        for key, dim in _TEXT_DIMS.items():
            if key in found and key not in inputs:
                found[key] = found[key].narrow(dim, 0, 4)
        return found

    return replace(tiny, config={**config, **(changes or {})}, inputs=make)


@torch.inference_mode()
def run_share(model: nn.Module | CutModel, tiny: Tiny, layout: Layout) -> Any:
    """The output of the model that this rank has a share of; None but on the last pipeline rank.

    Under inference mode, as in a run.
    """
    if not isinstance(model, CutModel):
        return model(**tiny.make_inputs(), return_dict=False)
    step = layout.group_size // layout.pp  # between pipeline ranks
    rank = distributed.get_rank()
    incoming = None if model.is_first else _receive(rank - step)
    value = model.run(**tiny.make_inputs(), return_dict=False, incoming=incoming)
    if isinstance(value, Handoff):
        _send(value, rank + step)
        return None
    return value


def difference(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest expected value."""
    pairs = list(zip(leaves(found), leaves(expected), strict=True))
    assert pairs
    return max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)


def _send(handoff: Handoff, rank: int) -> None:
    text = torch.frombuffer(bytearray(handoff.header.to_json().encode()), dtype=torch.uint8)
    distributed.send(torch.tensor([len(text)]), rank)
    distributed.send(text, rank)
    for tensor in handoff.tensors:
        distributed.send(tensor, rank)


def _receive(rank: int) -> Handoff:
    length = torch.zeros(1, dtype=torch.long)
    distributed.recv(length, rank)
    text = torch.zeros(int(length), dtype=torch.uint8)
    distributed.recv(text, rank)
    header = Header.from_json(bytes(text.tolist()).decode())
    buffers = tuple(spec.empty("cpu") for spec in header.tensors)
    for buffer in buffers:
        distributed.recv(buffer, rank)
    return Handoff(header, buffers)
