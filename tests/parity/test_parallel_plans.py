"""The plans that are read from source, against the classes of the installed diffusers."""

from __future__ import annotations

import re
from typing import Any

import diffusers
import pytest
import torch
from diffusers.hooks.tensor_parallel import resolve_tp_shard_specs
from torch import nn

from diffbatch.errors import PlanError
from diffbatch.parallel.tensor import tensor_slices
from diffbatch.plan.sequence import sequence_plan_of
from diffbatch.plan.tensor import TensorShare, tensor_plan_of
from diffbatch.plan.tensor_plans import HEADS, STYLES
from tests.parity.tiny_transformers import TINY

pytestmark = pytest.mark.parity


def _classes(attribute: str) -> list[str]:
    return sorted(name for name in TINY if getattr(getattr(diffusers, name), attribute, None))


def _empty(name: str) -> Any:
    with torch.device("meta"):
        return getattr(diffusers, name)(**TINY[name].config)


def test_every_class_is_read_as_diffusers_defines_it() -> None:
    assert {name for name in TINY if sequence_plan_of(name)} == set(_classes("_cp_plan"))
    with_plan = {name for name in TINY if tensor_plan_of(name)}
    assert with_plan == {*_classes("_tp_plan"), *STYLES}
    assert not set(_classes("_tp_plan")) & set(STYLES), "diffusers has one now; drop ours"
    assert HEADS.keys() <= STYLES.keys()


@pytest.mark.parametrize("name", _classes("_cp_plan"))
def test_names_of_split_inputs_are_those_of_the_class(name: str) -> None:
    plan = sequence_plan_of(name)
    assert plan is not None
    entries = getattr(diffusers, name)._cp_plan.values()
    inputs = {key for entry in entries if isinstance(entry, dict) for key in entry}
    assert plan.inputs == {key for key in inputs if isinstance(key, str)}


@pytest.mark.parametrize("name", _classes("_tp_plan"))
def test_slices_are_those_of_diffusers(name: str) -> None:
    model = _empty(name)
    slices = tensor_slices(model, TensorShare(tp=2, rank=1))
    specs = resolve_tp_shard_specs(model, model._tp_plan, 2)
    expected = {key: spec for key, spec in specs.items() if spec.dim is not None}
    assert slices.keys() == expected.keys()
    for key, spec in expected.items():
        assert slices[key].dim == spec.dim
        assert [len(run) * 2 for run in slices[key].ranges] == spec.block_sizes


@pytest.mark.parametrize("name", sorted(STYLES))
def test_our_plans_cut_every_attention_and_feed_forward(name: str) -> None:
    model = _empty(name)
    slices = tensor_slices(model, TensorShare(tp=2, rank=0))
    matrices = {key for key, tensor in model.named_parameters() if tensor.ndim == 2}
    assert slices.keys() >= {key for key in matrices if re.search(r"\.(attn\d?|ffn?)\.", key)}


def test_sizes_and_modules_that_do_not_fit_are_refused() -> None:
    name = "WanTransformer3DModel"
    with pytest.raises(PlanError, match=r"blocks\.0\.ffn\.net\.0\.proj: its size 32 is not div"):
        tensor_slices(_empty(name), TensorShare(tp=3, rank=0))
    changed = _empty(name)
    changed.blocks[0].attn1.to_q = nn.Bilinear(1, 1, 1)
    with pytest.raises(PlanError, match=r"blocks\.0\.attn1\.to_q is a Bilinear, .* a Linear"):
        tensor_slices(changed, TensorShare(tp=2, rank=0))
    with pytest.raises(PlanError, match="DiTTransformer2DModel has no plan for tensor par"):
        tensor_slices(_empty("DiTTransformer2DModel"), TensorShare(tp=2, rank=0))
