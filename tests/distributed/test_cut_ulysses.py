"""Segments of a model whose sequence is split over ranks: cut and context parallel together.

Each rank runs the segments one after the other, so only the sequence is distributed here. The
reference is the uncut model with its sequence split: joint attention sums in another order then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import ContextParallelConfig
from diffusers.hooks.context_parallel import apply_context_parallel
from diffusers.models._modeling_parallel import ParallelConfig
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh

from diffbatch.parallel.chain import find_chain
from diffbatch.parallel.cut import CutModel
from tests.distributed.spawn import RankPool
from tests.parity.cutting import build, run_segments, run_whole, same, segments
from tests.parity.tiny_transformers import TINY

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("hooks_first", [False, True], ids=["cut, then hooks", "hooks, then cut"])
@pytest.mark.parametrize("name", ["WanTransformer3DModel", "FluxTransformer2DModel"])
def test_cut_and_ulysses_together_are_bit_identical(
    rank_pool: Callable[[int], RankPool], name: str, hooks_first: bool
) -> None:
    assert rank_pool(2).run(_output_is_the_same, name, hooks_first) == [True, True]


def _output_is_the_same(name: str, hooks_first: bool) -> bool:
    tiny = TINY[name]
    model = build(name, tiny)
    chain = find_chain(model)
    tiny = _even_text(tiny)
    config = _ulysses(distributed.get_world_size())
    uncut = build(name, tiny)
    _apply(uncut, config)
    expected = run_whole(uncut, tiny)
    split = [range(at, at + 1) for at in range(len(chain.names))]
    if hooks_first:
        parts = []
        for own in split:
            copy = build(name, tiny)
            _apply(copy, config)
            parts.append(CutModel(copy, chain, own))
    else:
        parts = segments(model, chain, split)
        for part in parts:
            _apply(part.model, config)
    return same(run_segments(parts, tiny), expected)


def _even_text(tiny: Any) -> Any:
    """The text cut to 4 tokens, which two ranks can share."""
    inner = tiny.inputs

    def inputs() -> dict[str, Any]:
        found = inner()
        found["encoder_hidden_states"] = found["encoder_hidden_states"][:, :4]
        if "txt_ids" in found:
            found["txt_ids"] = found["txt_ids"][:4]
        return found

    return type(tiny)(tiny.config, inputs)


def _ulysses(degree: int) -> ParallelConfig:
    mesh = init_device_mesh("cpu", (1, degree), mesh_dim_names=("ring", "ulysses"))
    config = ParallelConfig(context_parallel_config=ContextParallelConfig(ulysses_degree=degree))
    config.setup(distributed.get_rank(), degree, torch.device("cpu"), mesh=mesh)
    return config


def _apply(model: nn.Module, config: ParallelConfig) -> None:
    """What `enable_parallelism` does, which asks for an accelerator."""
    for module in model.modules():
        processor = getattr(module, "processor", None)
        if hasattr(processor, "_parallel_config"):
            processor._parallel_config = config
    apply_context_parallel(model, config.context_parallel_config, model._cp_plan)
