"""Which tensors are cut, into which slices, and what the plan refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from diffbatch.errors import PlanError
from diffbatch.plan.layout import Layout
from diffbatch.plan.tensor import (
    Style,
    TensorPlan,
    TensorShare,
    heads_of,
    nearest_degrees,
    slice_of,
    tensor_plan_of,
    tensor_problem,
)

WAN = "WanTransformer3DModel"


def test_a_star_stands_for_a_number_only() -> None:
    plan = TensorPlan(styles={"blocks.*.to_q": Style("colwise"), "a.*.b": Style("rowwise")})
    assert plan.style_of("blocks.12.to_q") == Style("colwise")
    for path in ("blocks.x.to_q", "blocks.1.2.to_q", "blocks.1.to_qq", "blocksx1.to_q", "to_q"):
        assert plan.style_of(path) is None
    dims = {"a.0.b.weight": 1, "a.0.b.bias": None, "a.0.b.other": None, "a.0.weight": None}
    dims |= {"blocks.0.to_q.weight": 0, "blocks.0.to_q.bias": 0}
    assert {key: plan.dim_of(key) for key in dims} == dims


@pytest.mark.parametrize("sizes", [(12,), (4, 8), (2, 2, 8)])
@pytest.mark.parametrize("tp", [1, 2])
def test_slices_of_all_ranks_cover_every_index_once(sizes: tuple[int, ...], tp: int) -> None:
    parts = [slice_of(0, sizes, TensorShare(tp=tp, rank=rank)) for rank in range(tp)]
    assert sorted(at for part in parts for run in part.ranges for at in run) == list(range(12))
    assert [part.length for part in parts] == [12 // tp] * tp


def test_packed_layers_are_cut_one_by_one() -> None:
    part = slice_of(1, (4, 8), TensorShare(tp=2, rank=1))
    assert part.ranges == (range(2, 4), range(8, 12))


def test_plans_come_from_diffusers_first_then_from_the_table() -> None:
    flux, wan = tensor_plan_of("FluxTransformer2DModel"), tensor_plan_of(WAN)
    assert flux is not None
    assert wan is not None
    assert flux.style_of("single_transformer_blocks.3.proj_out") == Style("rowwise", packed=True)
    assert not flux.counts_heads("transformer_blocks.0.attn")
    assert wan.dim_of("blocks.3.attn1.norm_q.weight") == 0
    assert wan.dim_of("blocks.3.norm2.weight") is None
    assert wan.counts_heads("blocks.3.attn2")
    assert tensor_plan_of("CogVideoXTransformer3DModel") is None
    with pytest.raises(PlanError, match="no model class Nothing"):
        tensor_plan_of("Nothing")


@pytest.mark.parametrize(
    ("class_name", "layout", "heads", "message"),
    [
        (WAN, Layout(), 3, None),
        (WAN, Layout(tp=4), 12, None),
        (WAN, Layout(tp=2, ulysses=2), 12, None),
        (WAN, Layout(tp=8), 12, "tp 8 does not divide the 12 heads of WanT.*; nearest: 6 or 12"),
        (WAN, Layout(tp=2, ulysses=4), 12, "tp 2 x ulysses 4 = 8 does not divide .* 6 or 12"),
        ("CogVideoXTransformer3DModel", Layout(tp=2), 2, "CogV.* has no plan .* use --tp 1"),
    ],
)
def test_what_the_plan_says_of_heads_and_classes(
    class_name: str, layout: Layout, heads: int, message: str | None
) -> None:
    problem = tensor_problem(class_name, layout, heads=heads)
    if message is None:
        assert problem is None
    else:
        with pytest.raises(PlanError, match=message):
            raise PlanError(problem or "")


def test_sizes_that_do_not_divide_are_named() -> None:
    shapes = {"blocks.0.norm2.weight": (7,), "blocks.0.ffn.net.2.weight": (8, 7)}
    problem = tensor_problem(WAN, Layout(tp=2), heads=2, shapes=shapes)
    assert problem == (
        "tp 2 does not divide blocks.0.ffn.net.2.weight of WanTransformer3DModel, which has 7 in "
        "dim 1; nearest: 1 or 7"
    )


def test_nearest_degrees_are_divisors_on_both_sides() -> None:
    assert [nearest_degrees(12, degree) for degree in (1, 5, 12, 40)] == [
        "1 or 2",
        "4 or 6",
        "12",
        "12",
    ]


def test_heads_are_read_from_the_config() -> None:
    assert heads_of({"num_attention_heads": 12, "num_layers": 5}) == 12
    assert heads_of({"num_attention_heads": 12, "audio_num_attention_heads": 8}) == 4
    with pytest.raises(PlanError, match="names no num_attention_heads"):
        heads_of({"num_layers": 5})


def test_plans_need_no_torch() -> None:
    code = (
        "import sys; from diffbatch.plan import sequence, tensor;"
        f"tensor.tensor_plan_of({WAN!r}); sequence.sequence_plan_of({WAN!r});"
        "assert not {'torch', 'diffusers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
