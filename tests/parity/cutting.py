"""Build tiny models and run their segments one after the other in this process."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import diffusers
import torch
from torch import nn

from diffbatch.parallel.cut import CutModel
from diffbatch.parallel.structure import Handoff, Header
from diffbatch.plan.chain import BlockChain
from tests.parity.tiny_base import Tiny


def build(class_name: str, tiny: Tiny) -> nn.Module:
    """The model with random weights everywhere, also where its class starts from zeros or ones.

    Zero-initialised gates and heads would hide a wrong value.
    """
    torch.manual_seed(tiny.seed)
    model = getattr(diffusers, class_name)(**tiny.config).eval()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            nn.init.normal_(parameter, mean=0.1, std=0.2)
    return model


def leaves(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | tuple | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)


def same(one: Any, other: Any) -> bool:
    """Whether two outputs are bit-identical."""
    first, second = list(leaves(one)), list(leaves(other))
    return len(first) == len(second) and all(map(torch.equal, first, second))


def segments(model: nn.Module, chain: BlockChain, split: Sequence[range]) -> list[CutModel]:
    """One copy of `model` for each range of blocks, cut to it."""
    return [CutModel(copy.deepcopy(model), chain, own) for own in split]


def wire(handoff: Handoff) -> Handoff:
    """What arrives on the next rank: a parsed header, and tensors received into its buffers."""
    header = Header.from_json(handoff.header.to_json())
    assert header == handoff.header
    buffers = [spec.empty("cpu") for spec in header.tensors]
    for buffer, tensor in zip(buffers, handoff.tensors, strict=True):
        assert tensor.is_contiguous()
        assert (buffer.shape, buffer.dtype) == (tensor.shape, tensor.dtype)
        buffer.copy_(tensor)
    return Handoff(header, tuple(buffers))


@torch.no_grad()
def run_segments(parts: Sequence[CutModel], tiny: Tiny) -> Any:
    """The output of the last segment; every segment gets its own copy of the arguments."""
    value: Any = None
    for part in parts:
        incoming = wire(value) if isinstance(value, Handoff) else None
        value = part.run(**tiny.make_inputs(), return_dict=False, incoming=incoming)
    return value


@torch.no_grad()
def run_whole(model: nn.Module, tiny: Tiny) -> Any:
    """The output of the uncut model."""
    return model(**tiny.make_inputs(), return_dict=False)
