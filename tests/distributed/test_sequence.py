"""Tokens split over ranks, against one process. Every function below runs on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import distributed

from diffbatch.errors import PlanError
from diffbatch.parallel.chain import find_chain
from diffbatch.parallel.cut import CutModel
from diffbatch.plan.layout import Layout
from diffbatch.plan.split import PipelineShare
from tests.distributed.model_kit import difference, parallelize, run_share, tiny_of
from tests.distributed.spawn import RankPool
from tests.parity.cutting import build, run_whole
from tests.parity.tiny_base import grid_ids, noise

pytestmark = pytest.mark.distributed

WAN, FLUX = "WanTransformer3DModel", "FluxTransformer2DModel"

# fp32, relative to the largest output, measured up to 1.5e-6. The cause: in joint attention every
# rank holds a part of the text and a part of the image, so that keys come in another order; and a
# ring sums attention over parts of the keys. Sums in another order round differently.
BOUND = 5e-6


def _wan_inputs(kind: str) -> dict[str, Any]:
    if kind == "a timestep per token":  # 2 x 2 x 2 tokens
        return {"timestep": torch.linspace(100, 900, 16).view(2, 8)}
    if kind == "9 tokens":
        return {"hidden_states": noise(2, 4, 3, 2, 6)}
    return {}


def _flux_inputs(kind: str) -> dict[str, Any]:
    if kind == "9 tokens":
        return {"hidden_states": noise(2, 9, 4), "img_ids": grid_ids(9, 3)}
    return {}


@pytest.mark.parametrize("kind", ["8 tokens", "a timestep per token", "9 tokens"])
def test_ulysses_is_bit_identical_where_the_order_of_keys_stays(
    rank_pool: Callable[[int], RankPool], kind: str
) -> None:
    assert rank_pool(2).run(_difference, WAN, Layout(ulysses=2), kind) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "layout", "kind"),
    [
        (FLUX, Layout(ulysses=2), "8 tokens"),
        (FLUX, Layout(ulysses=2), "9 tokens"),
        (WAN, Layout(ring=2), "8 tokens"),
        (WAN, Layout(ring=2), "9 tokens"),
        (FLUX, Layout(ring=2), "8 tokens"),
        (FLUX, Layout(ring=2), "9 tokens"),
    ],
    ids=lambda value: value.describe() if isinstance(value, Layout) else value,
)
def test_ring_and_joint_attention_stay_within_a_bound(
    rank_pool: Callable[[int], RankPool], name: str, layout: Layout, kind: str
) -> None:
    found = rank_pool(2).run(_difference, name, layout, kind)
    assert found[0] == found[1] <= BOUND


@pytest.mark.parametrize(
    ("name", "layout", "bound"),
    [
        (WAN, Layout(pp=2, ulysses=2), 0.0),
        (FLUX, Layout(pp=2, ulysses=2), BOUND),
        (WAN, Layout(pp=2, ring=2), BOUND),
        (WAN, Layout(ring=2, ulysses=2), BOUND),
        (WAN, Layout(replicas=2, ulysses=2), 0.0),
    ],
    ids=lambda value: value.describe() if isinstance(value, Layout) else str(value),
)
def test_split_tokens_combine_with_other_axes(
    rank_pool: Callable[[int], RankPool], name: str, layout: Layout, bound: float
) -> None:
    found = rank_pool(4).run(_difference, name, layout, "8 tokens")
    if layout.pp == 2:
        assert found[:2] == [None, None]
        found = found[2:]
    assert max(found) <= bound


def test_what_cannot_split_its_tokens_is_refused_by_name(
    rank_pool: Callable[[int], RankPool],
) -> None:
    for found in rank_pool(2).run(_refusals):
        assert "SD3Transformer2DModel has no plan for sequence parallelism" in found[0]
        assert "blocks.0.attn1 computes attention with NoParallel" in found[1]
        assert "ring cannot split attention that has a mask" in found[2]


def test_ranks_agree_before_they_run_a_segment_again(rank_pool: Callable[[int], RankPool]) -> None:
    assert rank_pool(2).run(_agreements) == [[True, False, False]] * 2


def _agreements() -> list[bool]:
    model = build(WAN, tiny_of(WAN))
    chain = find_chain(model)
    cut = CutModel(model, chain, range(1, len(chain.names)))
    assert cut.agree(True)
    parallelize(cut, Layout(ulysses=2))
    return [cut.agree(answer) for answer in (True, distributed.get_rank() == 0, False)]


def _difference(name: str, layout: Layout, kind: str) -> float | None:
    torch.manual_seed(1)
    tiny = tiny_of(name, **(_wan_inputs(kind) if name == WAN else _flux_inputs(kind)))
    model: Any = build(name, tiny)
    expected = run_whole(model, tiny)
    if layout.pp > 1:
        at = layout.coordinates(distributed.get_rank())["pp"]
        chain = find_chain(model)
        model = CutModel(model, chain, PipelineShare(pp=2, rank=at).own(len(chain.names)))
    parallelize(model, layout, uneven=kind == "9 tokens")
    output = run_share(model, tiny, layout)
    return None if output is None else difference(output, expected)


def _refusals() -> list[str]:
    wan, layout = tiny_of(WAN), Layout(ulysses=2)
    own = build(WAN, wan)
    own.blocks[0].attn1.processor = type("NoParallel", (), {})()
    name = "QwenImageTransformer2DModel"  # its text has a mask
    qwen = tiny_of(name)
    masked = build(name, qwen)
    parallelize(masked, Layout(ring=2), uneven=True)
    attempts = [
        lambda: parallelize(
            build("SD3Transformer2DModel", tiny_of("SD3Transformer2DModel")), layout
        ),
        lambda: parallelize(own, layout),
        lambda: run_share(masked, qwen, Layout(ring=2)),
    ]
    return [_refusal(attempt) for attempt in attempts]


def _refusal(attempt: Callable[[], object]) -> str:
    with pytest.raises(PlanError) as caught:
        attempt()
    return str(caught.value)
