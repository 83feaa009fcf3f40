"""What of a request is split over ulysses and ring ranks, and what the plan refuses."""

from __future__ import annotations

import re

import pytest

from diffbatch.plan.layout import Layout
from diffbatch.plan.sequence import is_uneven, sequence_plan_of, sequence_problem

WAN, FLUX, SD3 = "WanTransformer3DModel", "FluxTransformer2DModel", "SD3Transformer2DModel"


def test_joint_attention_splits_the_text_too() -> None:
    wan, flux = sequence_plan_of(WAN), sequence_plan_of(FLUX)
    assert wan is not None
    assert flux is not None
    assert not wan.splits_text
    assert flux.splits_text
    assert sequence_plan_of(SD3) is None


@pytest.mark.parametrize(
    ("class_name", "layout", "tokens", "message"),
    [
        (SD3, Layout(), [7], None),
        (WAN, Layout(ulysses=4), [7], None),  # uneven parts
        (WAN, Layout(ring=2, ulysses=2), [32760], None),
        (WAN, Layout(ring=5), [32760], None),  # a ring shares out no heads
        (SD3, Layout(ulysses=2), [], r"SD3\w+ has no plan for sequence parallelism \(_cp_plan\)"),
        (SD3, Layout(ring=2), [], "SD3.* has no plan"),
        ("QwenImageTransformer2DModel", Layout(ring=2), [], "masks its attention"),
        ("QwenImageTransformer2DModel", Layout(ulysses=2), [17], None),
        (WAN, Layout(ulysses=5), [], "ulysses 5 does not divide the 12 heads .* nearest: 4 or 6"),
        (WAN, Layout(ulysses=3, tp=2), [], None),
        (WAN, Layout(ulysses=4, tp=2), [], "tp 2 x ulysses 4 = 8 does not divide .* 6 or 12"),
        (WAN, Layout(ulysses=4), [3], "cannot split 3 tokens over 4 ranks"),
        (WAN, Layout(ring=2, ulysses=2), [30], "does not divide .* 30 tokens.*nearest: 28 or 32"),
    ],
)
def test_what_the_plan_says(
    class_name: str, layout: Layout, tokens: list[int], message: str | None
) -> None:
    problem = sequence_problem(class_name, layout, heads=12, tokens=tokens)
    if message is None:
        assert problem is None
    else:
        assert re.search(message, problem or ""), problem


def test_a_ring_in_float32_runs_on_the_cpu_only() -> None:
    layout = Layout(ring=2)
    assert sequence_problem(WAN, layout, heads=2, on_cpu=True) is None
    assert sequence_problem(WAN, layout, heads=2, on_cpu=False, dtype="bfloat16") is None
    assert "log-sum-exp" in (sequence_problem(WAN, layout, heads=2, on_cpu=False) or "")


def test_uneven_lengths_are_found() -> None:
    assert not is_uneven(Layout(ring=2, ulysses=2), [8, 512])
    assert is_uneven(Layout(ring=2, ulysses=2), [8, 510])
    assert not is_uneven(Layout(tp=2), [7])
