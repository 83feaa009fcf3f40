"""The memory plan against what loading really holds and reads, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from diffbatch.models.checkpoint import read_checkpoint
from diffbatch.models.folder import read_model
from diffbatch.models.loading import DTYPES, LoadSpec, load_pipeline
from diffbatch.models.segment import LoadFacts, load_segment
from diffbatch.models.weights import read_weights
from diffbatch.plan.chain import chain_of, methods_of_name
from diffbatch.plan.layout import Layout
from diffbatch.plan.memory import bytes_of_layout
from diffbatch.plan.split import PipelineShare
from diffbatch.plan.tensor import TensorShare

pytestmark = pytest.mark.parity

LAYOUTS = [Layout(pp=2), Layout(pp=3), Layout(tp=2), Layout(pp=2, tp=2)]
Tiny = Callable[[str], Path]


def planned(folder: Path, layout: Layout, dtype: str) -> dict[str, tuple[int, ...]]:
    facts = read_model("tiny", folder)
    return {
        weights.name: bytes_of_layout(weights, layout, dtype)
        for weights in read_weights(facts, None)
    }


def loaded(folder: Path, layout: Layout, rank: int, dtype: str = "float32") -> LoadFacts:
    at = layout.coordinates(rank)
    _, facts = load_segment(
        folder,
        PipelineShare(pp=layout.pp, rank=at["pp"]),
        tensor_share=TensorShare(tp=layout.tp, rank=at["tp"]),
        dtype=DTYPES[dtype],
    )
    return facts


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"pp {layout.pp} tp {layout.tp}")
@pytest.mark.parametrize("name", ["wan", "sd3", "flux"])
def test_planned_transformer_bytes_are_those_that_loading_holds(
    tiny: Tiny, name: str, layout: Layout, dtype: str
) -> None:
    held = [
        loaded(tiny(name) / "transformer", layout, rank, dtype).bytes_held
        for rank in range(layout.group_size)
    ]
    assert list(planned(tiny(name), layout, dtype)["transformer"]) == held


def test_both_transformers_of_wan22_are_shared_out(tiny: Tiny) -> None:
    folder, layout = tiny("wan22"), Layout(pp=2)
    plan = planned(folder, layout, "float32")
    for name in ("transformer", "transformer_2"):
        held = [loaded(folder / name, layout, rank).bytes_held for rank in range(2)]
        assert list(plan[name]) == held


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["wan", "sd3", "flux"])
def test_planned_bytes_of_a_whole_model_are_those_of_its_parameters(
    tiny: Tiny, name: str, dtype: str
) -> None:
    spec = LoadSpec(folder=tiny(name), dtype=dtype)
    pipeline = load_pipeline(spec, torch.device("cpu")).pipeline
    plan = {key: held for key, (held,) in planned(tiny(name), Layout(), dtype).items()}
    found = {
        component: sum(
            p.numel() * p.element_size() for p in getattr(pipeline, component).parameters()
        )
        for component in plan
    }
    if name == "sd3":  # its positional table is stored, but a buffer
        table = pipeline.transformer.get_buffer("pos_embed.pos_embed")
        found["transformer"] += table.numel() * table.element_size()
    assert plan == found


@pytest.mark.parametrize("pp", [2, 3, 4])
@pytest.mark.parametrize("name", ["wan", "sd3", "flux"])
def test_a_rank_owns_its_share_of_the_blocks_and_what_is_replicated(
    tiny: Tiny, name: str, pp: int
) -> None:
    folder = tiny(name) / "transformer"
    checkpoint = read_checkpoint(folder)
    keys = checkpoint.tensors.keys()
    chain = chain_of(checkpoint.class_name, methods_of_name(checkpoint.class_name), keys)
    of_block = [
        sum(s.num_bytes for key, s in checkpoint.tensors.items() if key.startswith(block + "."))
        for block in chain.names
    ]
    rest = checkpoint.num_bytes - sum(of_block)
    remainder = len(of_block) % pp > 0  # then some ranks own one block more
    even = len(set(of_block)) == 1  # blocks of two lists differ in size
    for rank in range(pp):
        facts = loaded(folder, Layout(pp=pp), rank)
        own = PipelineShare(pp=pp, rank=rank).own(len(of_block))
        assert facts.bytes_held == sum(of_block[at] for at in own) + rest
        if even and not remainder:
            assert facts.bytes_held <= checkpoint.num_bytes / pp + rest
        assert facts.bytes_held < checkpoint.num_bytes
        assert abs(facts.bytes_read - facts.bytes_held) <= 0.05 * facts.bytes_held
