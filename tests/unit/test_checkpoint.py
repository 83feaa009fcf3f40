"""Safetensors headers, shards and variants, without torch."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from diffbatch.errors import PlanError
from diffbatch.models.checkpoint import read_checkpoint

NAME = "diffusion_pytorch_model"


def write_tensors(path: Path, names: list[str]) -> None:
    """A safetensors file with one (2, 3) fp32 tensor per name."""
    header = {
        name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [24 * at, 24 * at + 24]}
        for at, name in enumerate(names)
    }
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(24 * len(names)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"_class_name": "WanTransformer3DModel"}')
    return tmp_path


def write_index(path: Path, files: dict[str, str]) -> None:
    path.write_text(json.dumps({"metadata": {}, "weight_map": files}))


def test_a_single_file(folder: Path) -> None:
    write_tensors(folder / f"{NAME}.safetensors", ["a", "b"])
    found = read_checkpoint(folder)
    assert found.class_name == "WanTransformer3DModel"
    assert found.num_bytes == 48
    assert found.tensors["b"].entry.shape == (2, 3)
    assert found.tensors["b"].entry.dtype == "F32"
    assert found.tensors["b"].num_bytes == 24


@pytest.mark.parametrize(
    ("index", "variant"),
    [
        (f"{NAME}.safetensors.index.json", None),
        (f"{NAME}.safetensors.index.fp16.json", "fp16"),
        (f"{NAME}.fp16.safetensors.index.json", "fp16"),
    ],
)
def test_shards(folder: Path, index: str, variant: str | None) -> None:
    write_tensors(folder / "one.safetensors", ["a"])
    write_tensors(folder / "two.safetensors", ["b", "c"])
    write_index(
        folder / index, {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}
    )
    found = read_checkpoint(folder, variant)
    assert found.tensors.keys() == {"a", "b", "c"}
    assert found.tensors["c"].file == folder / "two.safetensors"


def test_a_variant_is_its_own_file(folder: Path) -> None:
    write_tensors(folder / f"{NAME}.safetensors", ["a"])
    write_tensors(folder / f"{NAME}.fp16.safetensors", ["b"])
    assert read_checkpoint(folder).tensors.keys() == {"a"}
    assert read_checkpoint(folder, "fp16").tensors.keys() == {"b"}
    with pytest.raises(PlanError, match=rf"no {NAME}.bf16.safetensors .* there is .*fp16"):
        read_checkpoint(folder, "bf16")


def test_weights_that_are_not_safetensors_are_refused(folder: Path) -> None:
    (folder / f"{NAME}.bin").write_bytes(b"x")
    with pytest.raises(PlanError, match=rf"there is {NAME}\.bin \(safetensors only"):
        read_checkpoint(folder)


def test_what_cannot_be_read_is_named(folder: Path) -> None:
    file = folder / f"{NAME}.safetensors"
    with pytest.raises(PlanError, match="there are no weights"):
        read_checkpoint(folder)
    file.write_bytes(b"\xff" * 100)
    with pytest.raises(PlanError, match=r"model\.safetensors: not a whole safetensors file"):
        read_checkpoint(folder)
    write_tensors(file, ["a", "b"])
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(PlanError, match="it is cut short"):
        read_checkpoint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(PlanError, match=r"config\.json: cannot read it"):
        read_checkpoint(folder)


def test_a_shard_that_is_missing_is_named(folder: Path) -> None:
    write_index(folder / f"{NAME}.safetensors.index.json", {"a": "gone.safetensors"})
    with pytest.raises(PlanError, match=r"gone\.safetensors: this file .* is missing"):
        read_checkpoint(folder)


def test_shard_names_cannot_leave_the_folder(folder: Path) -> None:
    write_index(folder / f"{NAME}.safetensors.index.json", {"a": "../gone.safetensors"})
    with pytest.raises(PlanError, match="names a file outside of the folder"):
        read_checkpoint(folder)
