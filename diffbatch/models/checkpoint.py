"""What a component folder holds, from the headers of its safetensors files. No torch.

The plan adds up bytes from it, a worker reads from it only the tensors that it owns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffbatch.errors import PlanError
from diffbatch.models.safetensors_header import TensorEntry, read_header

_WEIGHTS = "diffusion_pytorch_model"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a checkpoint, and the file that holds it."""

    file: Path
    entry: TensorEntry

    @property
    def num_bytes(self) -> int:
        """Bytes on disk."""
        return self.entry.end - self.entry.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model folder: its config.json and its stored tensors by name."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

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
    tensors: dict[str, StoredTensor] = {}
    for file in _weight_files(folder, variant):
        if not file.is_file():
            raise PlanError("this file of the checkpoint is missing", place=str(file))
        tensors.update({entry.name: StoredTensor(file, entry) for entry in read_header(file)})
    return Checkpoint(folder=folder, config=config, tensors=tensors)


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
