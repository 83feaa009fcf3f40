"""Segments of a model whose sequence is split over ranks: cut and context parallel together.

Each rank runs the segments one after the other, so only the sequence is distributed here. The
reference is the uncut model with its sequence split: joint attention sums in another order then.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from diffbatch.parallel.chain import find_chain
from diffbatch.parallel.cut import CutModel
from diffbatch.plan.layout import Layout
from tests.distributed.model_kit import parallelize, tiny_of
from tests.distributed.spawn import RankPool
from tests.parity.cutting import build, run_segments, run_whole, same, segments

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("hooks_first", [False, True], ids=["cut, then hooks", "hooks, then cut"])
@pytest.mark.parametrize("name", ["WanTransformer3DModel", "FluxTransformer2DModel"])
def test_cut_and_ulysses_together_are_bit_identical(
    rank_pool: Callable[[int], RankPool], name: str, hooks_first: bool
) -> None:
    assert rank_pool(2).run(_output_is_the_same, name, hooks_first) == [True, True]


def _output_is_the_same(name: str, hooks_first: bool) -> bool:
    tiny, layout = tiny_of(name), Layout(ulysses=2)
    model = build(name, tiny)
    chain = find_chain(model)
    uncut = build(name, tiny)
    parallelize(uncut, layout)
    expected = run_whole(uncut, tiny)
    split = [range(at, at + 1) for at in range(len(chain.names))]
    if hooks_first:
        parts = []
        for own in split:
            copy = build(name, tiny)
            parallelize(copy, layout)
            parts.append(CutModel(copy, chain, own))
    else:
        parts = segments(model, chain, split)
        for part in parts:
            parallelize(part, layout)
    return same(run_segments(parts, tiny), expected)
