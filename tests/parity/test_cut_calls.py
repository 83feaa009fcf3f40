"""Calls with more than the plain arguments: residuals from control nets, images, other shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from diffbatch.errors import PlanError
from diffbatch.parallel.chain import find_chain
from diffbatch.plan.split import split_blocks
from tests.parity.cutting import build, run_segments, run_whole, same, segments
from tests.parity.tiny_base import Tiny, noise
from tests.parity.tiny_transformers import TINY

pytestmark = pytest.mark.parity

Inputs = Callable[[], dict[str, Any]]


def variant(name: str, more: Inputs, **config: Any) -> Tiny:
    """The tiny configuration of a class, with other arguments for its forward."""
    plain = TINY[name]
    return replace(
        plain,
        config={**plain.config, **config},
        inputs=lambda: {**plain.inputs(), **more()},
    )


CALLS: dict[str, tuple[str, Tiny]] = {
    "control net residuals on both lists": (
        "FluxTransformer2DModel",
        variant(
            "FluxTransformer2DModel",
            lambda: {
                "controlnet_block_samples": [noise(2, 8, 32)],
                "controlnet_single_block_samples": [noise(2, 8, 32) for _ in range(3)],
            },
        ),
    ),
    "control net residuals": (
        "SD3Transformer2DModel",
        variant(
            "SD3Transformer2DModel",
            lambda: {"block_controlnet_hidden_states": [noise(2, 16, 16) for _ in range(2)]},
        ),
    ),
    "control net residuals per block": (
        "QwenImageTransformer2DModel",
        variant(
            "QwenImageTransformer2DModel",
            lambda: {"controlnet_block_samples": [noise(2, 16, 32) for _ in range(3)]},
        ),
    ),
    "an image beside the text": (
        "WanTransformer3DModel",
        variant(
            "WanTransformer3DModel",
            lambda: {"encoder_hidden_states_image": noise(2, 3, 8)},
            image_dim=8,
            added_kv_proj_dim=24,
        ),
    ),
    "a timestep per token": (
        "WanTransformer3DModel",
        variant("WanTransformer3DModel", lambda: {"timestep": torch.full((2, 8), 300.0)}),
    ),
    "one guidance branch of two": (
        "LTXVideoTransformer3DModel",
        variant("LTXVideoTransformer3DModel", lambda: {"attention_kwargs": {}}),
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_with_more_arguments_are_bit_identical(call: str) -> None:
    name, tiny = CALLS[call]
    model = build(name, tiny)
    chain = find_chain(model)
    count = len(chain.names)
    parts = segments(model, chain, [range(at, at + 1) for at in range(count)])
    expected = run_whole(model, tiny)
    assert same(run_segments(parts, tiny), expected)
    assert not same(expected, run_whole(model, TINY[name])) or call.startswith("one")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("SD3Transformer2DModel", {"skip_layers": [1]}),
        ("LatteTransformer3DModel", {"enable_temporal_attentions": False}),
    ],
)
def test_calls_that_skip_blocks_are_refused(name: str, more: dict[str, Any]) -> None:
    tiny = variant(name, lambda: more)
    model = build(name, tiny)
    chain = find_chain(model)
    parts = segments(model, chain, split_blocks(len(chain.names), 2))
    with pytest.raises(PlanError, match="cannot be split over pipeline ranks"):
        run_segments(parts, tiny)


@pytest.mark.parametrize("name", ["WanTransformer3DModel", "HunyuanVideoTransformer3DModel"])
def test_micro_batches_of_other_shapes_share_the_segments(name: str) -> None:
    model = build(name, TINY[name])
    chain = find_chain(model)
    parts = segments(model, chain, split_blocks(len(chain.names), 2))
    wide = variant(name, lambda: {"hidden_states": noise(2, 4, 2, 4, 8)})
    one = variant(name, lambda: {"hidden_states": noise(2, 4, 1, 4, 4)})
    for tiny in (TINY[name], wide, TINY[name], one, wide):
        assert same(run_segments(parts, tiny), run_whole(model, tiny))


@pytest.mark.parametrize("name", ["WanTransformer3DModel", "FluxTransformer2DModel"])
def test_half_precision_is_bit_identical(name: str) -> None:
    plain = TINY[name]

    def inputs() -> dict[str, Any]:
        return {
            key: value.bfloat16() if key.endswith(("states", "projections")) else value
            for key, value in plain.inputs().items()
        }

    tiny = replace(plain, inputs=inputs)
    model = build(name, tiny).to(torch.bfloat16)
    chain = find_chain(model)
    parts = segments(model, chain, split_blocks(len(chain.names), 2))
    assert same(run_segments(parts, tiny), run_whole(model, tiny))
