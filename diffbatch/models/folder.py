"""Model folder -> `ModelFacts`, without torch: from model_index.json, configs, headers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from diffbatch.errors import PlanError
from diffbatch.models.catalog import LINES, Line
from diffbatch.models.safetensors_header import read_header, sample_digest
from diffbatch.plan.facts import ComponentFacts, ModelFacts

DEFAULTS_FILE = "diffbatch.yaml"  # optional, in the model folder: {defaults: {height: 64, ...}}
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def read_model(label: str, folder: Path, *, variant: str | None = None) -> ModelFacts:
    """Everything `plan` needs to know of the model in `folder`.

    Raises PlanError when the folder is no diffusers model, is of a class that diffbatch does not
    run, or has weights only as pickle.
    """
    index = _read_index(label, folder)
    class_name = str(index["_class_name"])
    line = LINES.get(class_name)
    if line is None:
        raise PlanError(
            f"{class_name} is not a pipeline that diffbatch runs; it runs {', '.join(LINES)}",
            place=f"model {label}",
        )
    names = [name for name, value in index.items() if _is_component(value)]
    components = tuple(_read_component(folder, name, index[name][1], variant) for name in names)
    configs = {name: _read_json(folder / name / "config.json") for name in names}
    spatial, temporal, vae_scale = _multiples(line, configs)
    return ModelFacts(
        label=label,
        folder=folder,
        class_name=class_name,
        fingerprint=_fingerprint(folder, names, variant),
        modality=line.modality,
        spatial_multiple=spatial,
        temporal_multiple=temporal,
        params=line.params - ({"guidance_scale_2"} if "transformer_2" not in names else set()),
        defaults=_defaults(line, folder, configs.get("transformer", {}), vae_scale),
        guided=line.guided,
        components=components,
    )


def weight_files(component: Path, variant: str | None) -> list[Path]:
    """The safetensors files of one component folder that `variant` selects, in name order.

    As in diffusers, a variant's files are used where they exist and the plain ones elsewhere.
    """
    files = sorted(component.glob("*.safetensors"))
    if variant is not None:
        chosen = [file for file in files if f".{variant}." in file.name]
        if chosen:
            return chosen
    # "name.safetensors" and "name-00001-of-00002.safetensors"; a dot more is a variant.
    return [file for file in files if "." not in file.name.removesuffix(".safetensors")]


def _read_index(label: str, folder: Path) -> dict[str, Any]:
    path = folder / "model_index.json"
    if not folder.is_dir():
        raise PlanError(f"there is no folder {folder}", place=f"model {label}")
    if not path.is_file():
        raise PlanError(
            f"{folder} has no model_index.json, so it is not a diffusers pipeline folder; "
            "give the folder that `save_pretrained` or a hub download wrote",
            place=f"model {label}",
        )
    index = _read_json(path)
    if not isinstance(index.get("_class_name"), str):
        raise PlanError("it names no _class_name", place=str(path))
    return index


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PlanError(f"not valid JSON: {error}", place=str(path)) from error
    if not isinstance(data, dict):
        raise PlanError("a JSON object is due here", place=str(path))
    return data


def _is_component(value: object) -> bool:
    """In model_index.json a component is [library, class]; [null, null] is one left out."""
    return isinstance(value, list) and len(value) == 2 and all(isinstance(v, str) for v in value)


def _read_component(
    folder: Path, name: str, class_name: str, variant: str | None
) -> ComponentFacts:
    path = folder / name
    if not path.is_dir():
        raise PlanError(
            f"model_index.json names the component {name}, but {path} is missing", place=str(folder)
        )
    files = weight_files(path, variant)
    if not files and (pickles := [f.name for f in path.iterdir() if f.suffix in _PICKLES]):
        raise PlanError(
            f"weights only as pickle ({', '.join(sorted(pickles))}), which can run any code when "
            "read; load the model once and save it with safe_serialization=True",
            place=str(path),
        )
    if not files and (others := sorted(f.name for f in path.glob("*.safetensors"))):
        raise PlanError(
            f"it has only {', '.join(others)}; choose one with `variant`", place=str(path)
        )
    entries = [entry for file in files for entry in read_header(file)]
    return ComponentFacts(
        name=name,
        class_name=class_name,
        weight_bytes=sum(entry.end - entry.begin for entry in entries),
        num_params=sum(entry.num_params for entry in entries),
        dtypes=tuple(sorted({entry.dtype for entry in entries})),
    )


def _multiples(line: Line, configs: Mapping[str, Mapping[str, Any]]) -> tuple[int, int, int]:
    """(pixels per token side, frames per latent frame, pixels per latent pixel)."""
    vae = configs.get("vae", {})
    if "temperal_downsample" in vae:  # diffusers' spelling; causal video VAEs
        downsample = vae["temperal_downsample"]
        scale = int(vae.get("scale_factor_spatial") or 2 ** len(downsample))
        temporal = int(vae.get("scale_factor_temporal") or 2 ** sum(downsample))
    else:
        scale = 2 ** (len(vae.get("block_out_channels", (0,))) - 1)
        temporal = 1
    patch = configs.get("transformer", {}).get("patch_size", 1)
    patch_side = int(patch[-1]) if isinstance(patch, list) else int(patch or 1)
    return scale * patch_side * line.latent_pack, temporal, scale


def _defaults(
    line: Line, folder: Path, transformer: Mapping[str, Any], vae_scale: int
) -> dict[str, Any]:
    defaults = dict(line.defaults)
    if "height" not in defaults:
        side = int(line.sample_size or transformer.get("sample_size", 128)) * vae_scale
        defaults |= {"height": side, "width": side}
    own = folder / DEFAULTS_FILE
    if own.is_file():
        try:
            data = yaml.safe_load(own.read_text(encoding="utf-8")) or {}
        except (ValueError, yaml.YAMLError) as error:
            raise PlanError(f"not valid YAML: {error}", place=str(own)) from error
        wanted = data.get("defaults", {}) if isinstance(data, dict) else {}
        unknown = sorted(set(wanted) - line.params) if isinstance(wanted, dict) else ["defaults"]
        if unknown:
            raise PlanError(f"the model takes no {', '.join(unknown)}", place=str(own))
        defaults |= wanted
    return defaults


def _fingerprint(folder: Path, names: list[str], variant: str | None) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for path in _fingerprinted(folder, names):
        digest.update(path.relative_to(folder).as_posix().encode())
        digest.update(path.read_bytes())
    for name in names:
        for file in weight_files(folder / name, variant):
            digest.update(f"{name}/{file.name}:{sample_digest(file)}".encode())
    return digest.hexdigest()


def _fingerprinted(folder: Path, names: list[str]) -> Iterator[Path]:
    """The small files that decide what the model does, in a fixed order."""
    yield folder / "model_index.json"
    for name in sorted(names):
        files = sorted((folder / name).iterdir())
        yield from (f for f in files if f.suffix in {".json", ".txt", ".model", ".jinja"})
