"""Tensors cut over ranks, against one process. Every function below runs on every rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from diffbatch.models.checkpoint import read_checkpoint
from diffbatch.models.segment import LoadFacts, load_segment
from diffbatch.parallel.chain import find_chain
from diffbatch.parallel.cut import CutModel
from diffbatch.plan.layout import Layout
from diffbatch.plan.split import PipelineShare
from diffbatch.plan.tensor import TensorShare, tensor_plan_of
from tests.distributed.model_kit import difference, parallelize, run_share, tiny_of
from tests.distributed.spawn import RankPool
from tests.parity.cutting import build, run_whole, same

pytestmark = pytest.mark.distributed

WAN, SD3, FLUX = "WanTransformer3DModel", "SD3Transformer2DModel", "FluxTransformer2DModel"

# fp32, relative to the largest output, measured up to 1.3e-6. The cause: a layer that is cut by its
# inputs, and a norm over all heads, sum over ranks, in another order than one process does.
BOUND = 5e-6


@pytest.mark.parametrize(
    "name",
    [
        WAN,
        SD3,
        FLUX,
        "WanVACETransformer3DModel",
        "QwenImageTransformer2DModel",
        "Flux2Transformer2DModel",
    ],
)
def test_tp_2_stays_within_a_bound(rank_pool: Callable[[int], RankPool], name: str) -> None:
    found = rank_pool(2).run(_difference, name, Layout(tp=2))
    assert found[0] == found[1] <= BOUND


def test_image_conditioned_attention_is_cut_too(rank_pool: Callable[[int], RankPool]) -> None:
    changes = {"image_dim": 8, "added_kv_proj_dim": 48}
    inputs = {
        "encoder_hidden_states": torch.linspace(-1, 1, 2 * 512 * 16).view(2, 512, 16),
        "encoder_hidden_states_image": torch.linspace(-1, 1, 2 * 5 * 8).view(2, 5, 8),
    }
    found = rank_pool(2).run(_difference, WAN, Layout(tp=2), changes, inputs)
    assert found[0] == found[1] <= BOUND


@pytest.mark.parametrize("name", [WAN, SD3, FLUX])
def test_pp_2_x_tp_2_from_disk_reads_a_quarter_of_what_is_cut(
    rank_pool: Callable[[int], RankPool], name: str, tmp_path: Path
) -> None:
    model = build(name, tiny_of(name))
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    layout = Layout(pp=2, tp=2)
    answers = rank_pool(4).run(_load_and_run, name, layout, str(tmp_path))
    differences, facts, loaded_as_cut = zip(*answers, strict=True)
    assert differences[:2] == (None, None)
    assert differences[2] == differences[3] <= BOUND
    assert loaded_as_cut == (True,) * 4
    for rank, fact in enumerate(facts):
        assert fact.bytes_read == fact.bytes_held == _owned_bytes(model, tmp_path, layout, rank)


def test_tensors_and_tokens_are_cut_together(rank_pool: Callable[[int], RankPool]) -> None:
    found = rank_pool(4).run(_difference, WAN, Layout(ulysses=2, tp=2))
    assert max(found) <= BOUND


def test_half_precision_norms_and_sums_stay_near_one_process(
    rank_pool: Callable[[int], RankPool],
) -> None:
    """bf16 has 8 bits: every sum over ranks is rounded once more, in each of 4 blocks."""
    found = rank_pool(2).run(_difference, WAN, Layout(tp=2), {}, {}, torch.bfloat16)
    assert found[0] == found[1] <= 0.02


def _difference(
    name: str,
    layout: Layout,
    changes: dict[str, Any] | None = None,
    inputs: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
) -> float:
    tiny = tiny_of(name, changes, **(inputs or {}))
    model = build(name, tiny).to(dtype)
    if dtype is not torch.float32:
        tiny = _cast(tiny, dtype)
    expected = run_whole(model, tiny)
    parallelize(model, layout)
    (output,) = run_share(model, tiny, layout)
    of_all = [torch.empty_like(output) for _ in range(layout.world_size)]
    distributed.all_gather(of_all, output.contiguous())
    assert all(torch.equal(other, output) for other in of_all)
    return difference(output, expected)


def _cast(tiny: Any, dtype: torch.dtype) -> Any:
    inputs = tiny.make_inputs()
    cast = {key: value.to(dtype) for key, value in inputs.items()}
    return type(tiny)(tiny.config, lambda: dict(cast))


def _load_and_run(name: str, layout: Layout, folder: str) -> tuple[float | None, LoadFacts, bool]:
    """The difference to one process, what loading cost, and whether the slices are as cut here."""
    tiny = tiny_of(name)
    whole: Any = build(name, tiny)
    expected = run_whole(whole, tiny)
    at = layout.coordinates(distributed.get_rank())
    pipeline, tensor = PipelineShare(pp=2, rank=at["pp"]), TensorShare(tp=2, rank=at["tp"])
    loaded, facts = load_segment(Path(folder), pipeline, tensor_share=tensor)
    parallelize(loaded, layout)
    chain = find_chain(whole)
    parallelize(whole, layout)  # here before the cut, above after it
    cut = CutModel(whole, chain, pipeline.own(len(chain.names)))
    output = run_share(loaded, tiny, layout)
    again = run_share(cut, tiny, layout)
    equal = same(dict(loaded.model.named_parameters()), dict(cut.model.named_parameters()))
    if output is None:
        return None, facts, equal
    return difference(output, expected), facts, equal and same(output, again)


def _owned_bytes(model: Any, folder: Path, layout: Layout, rank: int) -> int:
    """Bytes of what this rank should read, by names and plans alone."""
    plan, chain = tensor_plan_of(type(model).__name__), find_chain(model)
    assert plan is not None
    own = PipelineShare(pp=layout.pp, rank=layout.coordinates(rank)["pp"]).own(len(chain.names))
    return sum(
        stored.num_bytes // (1 if plan.dim_of(key) is None else layout.tp)
        for key, stored in read_checkpoint(folder).tensors.items()
        if chain.owns(own, key)
    )
