"""Bytes per rank from shapes alone, the estimate of activations, and the words about them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diffbatch.errors import PlanError
from diffbatch.plan.activations import Widths, Work, activation_bytes, widths_of
from diffbatch.plan.kept import ignored_patterns, kept_in_fp32
from diffbatch.plan.layout import Layout
from diffbatch.plan.memory import (
    Budget,
    ComponentWeights,
    MemoryPlan,
    RankMemory,
    StoredShape,
    bytes_of_layout,
    describe,
    memory_problem,
    shown_gb,
)

WAN = "WanTransformer3DModel"
ITEMS = {"F32": 4, "BF16": 2, "I64": 8}


def stored(*shape: int, dtype: str = "F32") -> StoredShape:
    num = 1
    for size in shape:
        num *= size
    return StoredShape(dtype, shape, num * ITEMS[dtype])


def wan(num_blocks: int = 4, **more: StoredShape) -> ComponentWeights:
    """Blocks of 96 numbers in a colwise layer, 8 in its bias, 16 kept in fp32; then 12 more."""
    tensors = {"proj_out.weight": stored(3, 4)}
    for at in range(num_blocks):
        tensors[f"blocks.{at}.ffn.net.0.proj.weight"] = stored(8, 12)
        tensors[f"blocks.{at}.ffn.net.0.proj.bias"] = stored(8)
        tensors[f"blocks.{at}.scale_shift_table"] = stored(16)
    return ComponentWeights(
        name="transformer", class_name=WAN, tensors={**tensors, **more}, shared_out=True
    )


@pytest.mark.parametrize(
    ("layout", "numbers"),
    [
        (Layout(), [4 * 120 + 12]),
        (Layout(cfg=2), [4 * 120 + 12] * 2),
        (Layout(ulysses=2), [4 * 120 + 12] * 2),
        (Layout(pp=2), [2 * 120 + 12] * 2),
        (Layout(pp=3), [120 + 12, 2 * 120 + 12, 120 + 12]),
        (Layout(tp=2), [4 * 68 + 12] * 2),
        (Layout(pp=2, cfg=2), [2 * 120 + 12] * 4),
        (Layout(pp=2, tp=2), [2 * 68 + 12] * 4),
    ],
)
def test_ranks_hold_their_blocks_their_slices_and_the_rest(
    layout: Layout, numbers: list[int]
) -> None:
    assert list(bytes_of_layout(wan(), layout, "float32")) == [4 * number for number in numbers]


def test_half_precision_halves_all_but_what_is_kept() -> None:
    assert bytes_of_layout(wan(), Layout(), "bfloat16") == (2 * (4 * 104 + 12) + 4 * (4 * 16),)


def test_stored_bf16_doubles_in_float32_and_whole_numbers_stay() -> None:
    encoder = ComponentWeights(
        name="text_encoder",
        class_name="NoSuchEncoder",
        tensors={"a": stored(5, dtype="BF16"), "ids": stored(3, dtype="I64")},
    )
    assert bytes_of_layout(encoder, Layout(pp=2), "float32") == (5 * 4 + 24,) * 2
    assert bytes_of_layout(encoder, Layout(), "bfloat16") == (5 * 2 + 24,)


def test_tensors_that_loading_passes_over_take_nothing() -> None:
    more = {"blocks.0.attn2.norm_added_q.weight": stored(100)}
    assert bytes_of_layout(wan(**more), Layout(), "float32") == (4 * 492,)


def test_a_partition_decides_who_holds_what() -> None:
    found = bytes_of_layout(wan(), Layout(pp=2), "float32", (1, 3))
    assert found == (4 * (120 + 12), 4 * (360 + 12))
    with pytest.raises(PlanError, match="sums to 3"):
        bytes_of_layout(wan(), Layout(pp=2), "float32", (1, 2))


def test_a_class_without_a_tensor_plan_cannot_be_cut_so() -> None:
    weights = replace(wan(), class_name="DiTTransformer2DModel")
    with pytest.raises(PlanError, match="no plan for tensor parallelism"):
        bytes_of_layout(weights, Layout(tp=2), "float32")


def test_kept_modules_are_those_of_the_class_and_its_library() -> None:
    assert "scale_shift_table" in kept_in_fp32(WAN, "bfloat16")
    assert kept_in_fp32(WAN, "float32") == frozenset()
    assert kept_in_fp32("AutoencoderKL", "float16") == frozenset()
    assert kept_in_fp32("T5EncoderModel", "float16") == {"wo"}  # transformers: float16 alone
    assert kept_in_fp32("T5EncoderModel", "bfloat16") == frozenset()
    assert kept_in_fp32("CLIPTextModel", "float16") == frozenset()
    assert kept_in_fp32("NoSuchClass", "float16") == frozenset()
    assert ignored_patterns(WAN) == {"norm_added_q"}
    assert ignored_patterns("NoSuchClass") == frozenset()


CONFIG = {"num_attention_heads": 2, "attention_head_dim": 8}


def test_widths_come_from_configs_and_the_shapes_of_linear_layers() -> None:
    weights = ComponentWeights(
        name="transformer",
        class_name="X",
        tensors={
            "blocks.0.ff.net.0.proj.weight": stored(64, 16),
            "blocks.0.norm1.linear.weight": stored(96, 16),  # a modulation: once per picture
        },
    )
    found = widths_of(CONFIG, weights, {"block_out_channels": [8, 32]}, 1)
    assert found == Widths(model=16, inner=64, decoder=32, frames_per_latent=1)
    clip = widths_of({}, None, {"base_dim": 8, "dim_mult": [1, 2]}, 4)
    assert clip == Widths(model=0, inner=0, decoder=16, frames_per_latent=4)
    assert widths_of({}, None, {}, 1) == Widths()
    assert (
        widths_of({}, None, {"base_dim": 8, "decoder_base_dim": 5, "dim_mult": [3]}, 1).decoder
        == 15
    )


WIDTHS = Widths(model=16, inner=64)
WORK = Work(batch_size=2, branches=2, picture_tokens=100, text_tokens=20, flights=3)


@pytest.mark.parametrize(
    ("layout", "numbers"),
    [
        (Layout(), 2 * 120 * (160 + 128)),
        (Layout(ulysses=2), 2 * 70 * (160 + 128)),
        (Layout(ring=2, ulysses=2), 2 * 45 * (160 + 128)),
        (Layout(tp=2), 2 * 120 * (160 + 64)),
        (Layout(pp=2), 2 * 120 * (160 + 128 + 2 * 3 * 2 * 16)),
        (Layout(pp=2, cfg=2), 2 * 120 * (160 + 128 + 2 * 3 * 16)),
    ],
)
def test_denoising_takes_what_the_formula_says(layout: Layout, numbers: int) -> None:
    assert activation_bytes(WIDTHS, WORK, layout, 2) == 2 * numbers


@pytest.mark.parametrize(
    ("frames_per_latent", "frames", "factor"), [(1, 1, 3), (4, 1, 10), (4, 9, 28)]
)
def test_decoding_counts_where_it_is_larger(
    frames_per_latent: int, frames: int, factor: int
) -> None:
    work = Work(frame_pixels=64, clip_pixels=64 * frames)
    widths = Widths(decoder=16, frames_per_latent=frames_per_latent)
    found = activation_bytes(widths, work, Layout(), 4)
    assert found == 64 * 16 * factor * 4 + 2 * 64 * frames * 3 * 4


def plan_of(budget: int | None, *totals: int) -> MemoryPlan:
    ranks = tuple(
        RankMemory(rank=at, weights={"transformer": total - 10, "vae": 5}, activation_bytes=5)
        for at, total in enumerate(totals)
    )
    found = None if budget is None else Budget(num_bytes=budget, source="--memory-gb 1")
    layout = Layout(pp=len(totals))
    return MemoryPlan(layout=layout, dtype="float32", ranks=ranks, budget=found)


def test_the_fullest_rank_decides_whether_it_fits() -> None:
    assert plan_of(None, 100).fits is None
    assert plan_of(100, 100, 90).fits is True
    tight = plan_of(99, 90, 100, 100)
    assert (tight.fits, tight.fullest.rank) == (False, 1)
    assert memory_problem(plan_of(100, 100), None) is None


def test_a_refusal_names_the_rank_its_bytes_and_the_way_out() -> None:
    text = memory_problem(plan_of(99, 90, 100), Layout(pp=4, tp=2))
    assert text is not None
    assert "rank 1 of a replica needs 100 bytes" in text
    assert "more than the 99 bytes of --memory-gb 1" in text
    assert text.endswith("the smallest layout that fits: --pp 4 --tp 2")
    assert (memory_problem(plan_of(99, 100), Layout()) or "").endswith("fits: --pp 1")
    hopeless = memory_problem(plan_of(99, 100), None) or ""
    assert "no layout fits" in hopeless


def test_layouts_and_sizes_are_shown_for_people() -> None:
    assert describe(Layout(replicas=3)) == "one rank"
    assert describe(Layout(pp=2, cfg=2, tp=4)) == "pp 2 x cfg 2 x tp 4"
    assert (shown_gb(1_500_000_000), shown_gb(2_500_000)) == ("1.50 GB", "2.50 MB")
