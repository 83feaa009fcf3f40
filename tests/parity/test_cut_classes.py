"""Every transformer class of the installed diffusers: cut at every position, or refused by name."""

from __future__ import annotations

from pathlib import Path

import diffusers
import pytest
import torch

from diffbatch.errors import PlanError
from diffbatch.parallel.chain import find_chain
from diffbatch.plan.chain import chain_of, methods_of_name
from diffbatch.plan.split import split_blocks
from tests.parity.cut_table import table
from tests.parity.cutting import build, leaves, run_segments, run_whole, same, segments, wire
from tests.parity.tiny_transformers import REFUSED, TINY, UNTRIED

pytestmark = pytest.mark.parity

CUT = sorted(TINY.keys() - REFUSED.keys())


@pytest.mark.parametrize("name", CUT)
def test_every_cut_is_bit_identical(name: str) -> None:
    tiny = TINY[name]
    model = build(name, tiny)
    chain = find_chain(model)
    expected = run_whole(model, tiny)
    assert all(bool(leaf.isfinite().all()) for leaf in leaves(expected))

    count = len(chain.names)
    assert count >= 2
    one_each = segments(model, chain, [range(at, at + 1) for at in range(count)])
    assert same(run_segments(one_each, tiny), expected)
    for at in range(1, count):
        halves = segments(model, chain, [range(at), range(at, count)])
        assert same(run_segments(halves, tiny), expected), f"cut before {chain.names[at]}"


@pytest.mark.parametrize("name", CUT)
def test_output_depends_on_what_was_handed_over(name: str) -> None:
    tiny = TINY[name]
    model = build(name, tiny)
    chain = find_chain(model)
    count = len(chain.names)
    first, last = segments(model, chain, [range(count - 1), range(count - 1, count)])
    with torch.no_grad():
        handoff = wire(first.run(**tiny.make_inputs(), return_dict=False))
        for tensor in handoff.tensors:
            tensor.mul_(1.5)
        output = last.run(**tiny.make_inputs(), return_dict=False, incoming=handoff)
    assert not same(output, run_whole(model, tiny))


@pytest.mark.parametrize("name", CUT)
def test_chain_from_source_alone_is_the_chain_of_the_model(name: str) -> None:
    with torch.device("meta"):
        model = getattr(diffusers, name)(**TINY[name].config)
    keys = [key for key, _ in model.named_parameters(remove_duplicate=False)]
    assert chain_of(name, methods_of_name(name), keys) == find_chain(model)


@pytest.mark.parametrize(("name", "reason"), REFUSED.items())
def test_classes_that_cannot_be_cut_are_refused_by_name(name: str, reason: str) -> None:
    lists = ["blocks", "transformer_blocks", "transformer_layers", "down_blocks"]
    keys = [f"{block_list}.{at}.weight" for block_list in lists for at in range(2)]
    with pytest.raises(PlanError, match=f"{name} cannot be cut.*{reason}.*--pp 1"):
        chain_of(name, methods_of_name(name), keys)


def test_every_transformer_of_diffusers_is_accounted_for() -> None:
    names = {
        name
        for name in diffusers._import_structure["models"]
        if "Transformer" in name or "DiT" in name
    }
    assert names - TINY.keys() - UNTRIED.keys() - REFUSED.keys() == set()
    assert len(CUT) >= 40


@pytest.mark.parametrize(
    "name",
    [
        "FluxTransformer2DModel",  # two lists, the hidden states are concatenated between them
        "SD3Transformer2DModel",  # the last block returns another structure
        "Lumina2Transformer2DModel",  # a side list in front stays whole
        "LatteTransformer3DModel",  # two lists in turn
        "HiDreamImageTransformer2DModel",
        "WanTransformer3DModel",
    ],
)
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_split_over_pp_ranks_is_bit_identical(name: str, pp: int) -> None:
    tiny = TINY[name]
    model = build(name, tiny)
    chain = find_chain(model)
    parts = segments(model, chain, split_blocks(len(chain.names), pp))
    expected = run_whole(model, tiny)
    assert same(run_segments(parts, tiny), expected)
    assert same(run_segments(parts, tiny), expected)  # a second step through the same segments


def test_the_table_in_the_documentation_is_current() -> None:
    file = Path(__file__).parents[2] / "docs" / "cut-classes.md"
    assert file.read_text(encoding="utf-8") == table()
