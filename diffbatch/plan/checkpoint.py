"""What a diffusers model folder holds, from the headers of its safetensors files. Pure, no torch.

`plan` adds up bytes from it, a worker reads from it only the tensors that it owns.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffbatch.errors import PlanError

_WEIGHTS = "diffusion_pytorch_model"
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One stored tensor. `dtype` is as safetensors writes it ("F32", "BF16", ...)."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model folder: its config.json and its stored tensors by name."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    @property
    def class_name(self) -> str:
        """The diffusers class that the folder was saved from."""
        name = self.config.get("_class_name")
        if not isinstance(name, str):
            raise PlanError("config.json names no _class_name", place=str(self.folder))
        return name

    @property
    def num_bytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(info.num_bytes for info in self.tensors.values())


def read_checkpoint(folder: Path, variant: str | None = None) -> Checkpoint:
    """Read config.json and the safetensors headers of `folder` (a component, such as transformer/).

    `variant` such as "fp16" chooses files of that name. PlanError for whatever is not there or not
    readable, for weights that are not safetensors, and for quantized checkpoints.
    """
    config = _read_json(folder / "config.json")
    if config.get("quantization_config") is not None:
        raise PlanError(
            "the checkpoint is quantized; pipeline ranks need plain weights", place=str(folder)
        )
    tensors: dict[str, TensorInfo] = {}
    for file in _weight_files(folder, variant):
        tensors.update(read_header(file))
    return Checkpoint(folder=folder, config=config, tensors=tensors)


def read_header(file: Path) -> dict[str, TensorInfo]:
    """The tensors of one safetensors file; reads its header only."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > _MAX_HEADER_BYTES:
                raise ValueError("the header is too long")
            entries = json.loads(stream.read(length))
            num_bytes = file.stat().st_size - 8 - length
    except (OSError, ValueError, struct.error) as error:
        raise PlanError(f"not a readable safetensors file: {error}", place=str(file)) from error
    entries.pop("__metadata__", None)
    found: dict[str, TensorInfo] = {}
    for name, entry in entries.items():
        start, end = entry["data_offsets"]
        if end > num_bytes:
            raise PlanError(
                f"the file is cut short: {name} ends at byte {end} of {num_bytes}", place=str(file)
            )
        found[name] = TensorInfo(file, entry["dtype"], tuple(entry["shape"]), end - start)
    return found


def _weight_files(folder: Path, variant: str | None) -> list[Path]:
    middle = f".{variant}" if variant else ""
    indexes = [
        folder / f"{_WEIGHTS}.safetensors.index{middle}.json",
        folder / f"{_WEIGHTS}{middle}.safetensors.index.json",
    ]
    for index in indexes:
        if index.is_file():
            names = sorted(set(_read_json(index).get("weight_map", {}).values()))
            if any(Path(name).name != name for name in names):
                raise PlanError("it names a file outside of the folder", place=str(index))
            return [folder / name for name in names]
    single = folder / f"{_WEIGHTS}{middle}.safetensors"
    if single.is_file():
        return [single]
    others = sorted(path.name for path in folder.glob(f"{_WEIGHTS}*") if path.is_file())
    there = f"there is {', '.join(others)}" if others else "there are no weights"
    raise PlanError(
        f"no {single.name} and no index of shards; {there} (safetensors only; see `variant`)",
        place=str(folder),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlanError(f"cannot read it: {error}", place=str(path)) from error
    if not isinstance(data, dict):
        raise PlanError("not a JSON object", place=str(path))
    return data
