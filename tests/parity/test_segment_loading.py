"""Per-rank loading against `from_pretrained`: the owned part is the same to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import diffusers
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from diffbatch.errors import PlanError
from diffbatch.models.checkpoint import read_checkpoint
from diffbatch.models.segment import empty_model, load_segment, load_weights
from diffbatch.plan.split import PipelineShare
from tests.parity.cutting import build, run_segments, run_whole, same
from tests.parity.tiny_transformers import TINY

pytestmark = pytest.mark.parity

CLASSES = [
    "WanTransformer3DModel",  # keeps modules in fp32, real RoPE buffers
    "SD3Transformer2DModel",  # a positional table as a persistent buffer
    "FluxTransformer2DModel",  # two lists
    "QwenImageTransformer2DModel",  # RoPE tables as plain attributes
    "DiTTransformer2DModel",  # a module of block 0 is called from outside
    "LTX2VideoTransformer3DModel",  # two streams
]
SINGLE, SHARDED, FP16 = "single", "sharded", "fp16"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Every class saved as one file, in shards, and in shards of a variant."""
    base = tmp_path_factory.mktemp("checkpoints")
    found = {}
    for name in CLASSES:
        model = build(name, TINY[name])
        for kind in (SINGLE, SHARDED, FP16):
            folder = base / kind / name
            size = "10GB" if kind == SINGLE else "20KB"
            variant = "fp16" if kind == FP16 else None
            saved = model.half() if kind == FP16 else model
            saved.save_pretrained(folder, max_shard_size=size, variant=variant)
            found[name, kind] = folder
    return found


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and all buffers, persistent or not, by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["as built", "bf16"])
@pytest.mark.parametrize("kind", [SINGLE, SHARDED, FP16])
@pytest.mark.parametrize("name", CLASSES)
def test_owned_part_is_what_from_pretrained_loads(
    folders: dict[tuple[str, str], Path], name: str, kind: str, dtype: torch.dtype | None
) -> None:
    folder, variant = folders[name, kind], "fp16" if kind == FP16 else None
    whole = getattr(diffusers, name).from_pretrained(folder, torch_dtype=dtype, variant=variant)
    expected = state_of(whole)
    covered: set[str] = set()
    for rank in range(2):
        cut, facts = load_segment(
            folder, PipelineShare(pp=2, rank=rank), dtype=dtype, variant=variant
        )
        state = state_of(cut.model)
        covered |= state.keys()
        for key, tensor in state.items():
            assert tensor.dtype == expected[key].dtype, key
            assert torch.equal(tensor, expected[key]), key
        assert facts.bytes_held >= sum(p.numel() * p.element_size() for p in cut.model.parameters())
        assert not cut.model.training
    assert covered == expected.keys()


@pytest.mark.parametrize("kind", [SINGLE, SHARDED])
@pytest.mark.parametrize("name", CLASSES)
def test_loaded_segments_give_the_output_of_the_whole_model(
    folders: dict[tuple[str, str], Path], name: str, kind: str
) -> None:
    folder = folders[name, kind]
    whole = getattr(diffusers, name).from_pretrained(folder)
    parts = [load_segment(folder, PipelineShare(pp=3, rank=rank))[0] for rank in range(3)]
    assert same(run_segments(parts, TINY[name]), run_whole(whole, TINY[name]))


def test_ranks_read_only_what_they_own(folders: dict[tuple[str, str], Path]) -> None:
    folder = folders["WanTransformer3DModel", SHARDED]
    checkpoint = read_checkpoint(folder)
    in_blocks = sum(i.num_bytes for k, i in checkpoint.tensors.items() if k.startswith("blocks."))
    rest = checkpoint.num_bytes - in_blocks
    for rank in range(2):
        _, facts = load_segment(folder, PipelineShare(pp=2, rank=rank))
        assert facts.bytes_read == in_blocks // 2 + rest
        assert facts.bytes_held == facts.bytes_read


def test_blocks_of_other_ranks_never_take_memory(folders: dict[tuple[str, str], Path]) -> None:
    name = "WanTransformer3DModel"
    cut, _ = load_segment(folders[name, SINGLE], PipelineShare(pp=2, rank=1))
    assert [p for p in cut.model.parameters() if p.is_meta] == []
    assert list(cut.model.get_submodule("blocks.0").parameters()) == []
    assert not any(key.startswith("blocks.0.") for key in cut.model.state_dict())
    cut.model.to(torch.float64)  # nothing on the meta device is in the way


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("lack", "lacks blocks.0.norm2.weight"),
        ("unknown", "has unknown extra.weight"),
        ("shape", "has misshapen proj_out.bias .stored .1,., expected .16,.."),
    ],
)
def test_weights_that_do_not_fit_are_named(tmp_path: Path, change: str, message: str) -> None:
    name = "WanTransformer3DModel"
    build(name, TINY[name]).save_pretrained(tmp_path)
    file = tmp_path / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    if change == "lack":
        del tensors["blocks.0.norm2.weight"]
    elif change == "unknown":
        tensors["extra.weight"] = torch.zeros(1)
    else:
        tensors["proj_out.bias"] = torch.zeros(1)
    save_file(tensors, file)
    with pytest.raises(PlanError, match=message):
        load_segment(tmp_path, PipelineShare(pp=2, rank=0))


def test_a_missing_tensor_of_another_rank_is_not_this_ranks_error(tmp_path: Path) -> None:
    name = "WanTransformer3DModel"
    build(name, TINY[name]).save_pretrained(tmp_path)
    file = tmp_path / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    del tensors["blocks.3.norm2.weight"]
    save_file(tensors, file)
    load_segment(tmp_path, PipelineShare(pp=2, rank=0))
    with pytest.raises(PlanError, match=r"lacks blocks\.3\.norm2\.weight"):
        load_segment(tmp_path, PipelineShare(pp=2, rank=1))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"_class_name": "NoSuchModel"}, "no class NoSuchModel"),
        ({}, "no _class_name"),
        ({"quantization_config": {"quant_method": "x"}}, "quantized"),
    ],
)
def test_folders_that_cannot_be_loaded(tmp_path: Path, config: dict, message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"a": torch.zeros(1)}, tmp_path / "diffusion_pytorch_model.safetensors")
    with pytest.raises(PlanError, match=message):
        load_segment(tmp_path, PipelineShare(pp=2, rank=0))


def test_the_whole_model_can_be_loaded_the_same_way(
    folders: dict[tuple[str, str], Path],
) -> None:
    name = "LTX2VideoTransformer3DModel"
    checkpoint = read_checkpoint(folders[name, SHARDED])
    model = empty_model(checkpoint)
    facts = load_weights(model, checkpoint, lambda key: True)
    whole = diffusers.LTX2VideoTransformer3DModel.from_pretrained(folders[name, SHARDED])
    assert facts.bytes_read == checkpoint.num_bytes
    assert same(run_whole(model, TINY[name]), run_whole(whole, TINY[name]))
