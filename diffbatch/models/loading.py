"""Model folder -> a diffusers `ModularPipeline` with its weights on this rank's device."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from diffbatch.errors import PlanError
from diffbatch.models.catalog import LINES
from diffbatch.models.segment import LoadFacts, load_segment
from diffbatch.models.weights import SHARED_OUT
from diffbatch.parallel.cut import CutModel
from diffbatch.parallel.groups import Groups
from diffbatch.parallel.sequence import apply_sequence_parallel
from diffbatch.parallel.tensor import apply_tensor_parallel
from diffbatch.plan.split import PipelineShare
from diffbatch.plan.tensor import WHOLE, TensorShare

TRANSFORMERS = SHARED_OUT
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """What to load, as the job asks for it. JSON-ready but for `folder`."""

    folder: Path
    dtype: str = "auto"  # auto: bfloat16 on an accelerator, float32 on the CPU
    variant: str | None = None
    scheduler: dict[str, Any] = field(default_factory=dict)  # {"name": class, other overrides}
    share: PipelineShare = field(default_factory=PipelineShare)  # of the transformers' blocks
    tensor_share: TensorShare = WHOLE  # of the transformers' layers

    @property
    def is_part(self) -> bool:
        """Whether other ranks hold parts of the transformers."""
        return self.share.pp > 1 or self.tensor_share.tp > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """What a rank has loaded. `cuts` are the transformers it holds a segment of, by name."""

    pipeline: Any  # a diffusers ModularPipeline
    cuts: dict[str, CutModel]
    facts: dict[str, LoadFacts]  # of the cut transformers


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """The torch dtype for a job's `dtype` on `device`."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return DTYPES[name]


def load_pipeline(spec: LoadSpec, device: torch.device) -> LoadedModel:
    """The model with every component loaded, in eval mode, on `device`.

    Called once per worker process. Weights come from safetensors files only, and no code of the
    model folder is run. A component that fails to load is a PlanError that names it.
    """
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    diffusers_logging.set_verbosity_error()
    diffusers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    pipeline = _modular_pipeline(spec.folder)
    dtype = pick_dtype(spec.dtype, device)
    loaded: dict[str, Any] = {}
    cuts: dict[str, CutModel] = {}
    facts: dict[str, LoadFacts] = {}
    for name in pipeline.pretrained_component_names:
        component = pipeline.get_component_spec(name)
        if component.pretrained_model_name_or_path is None:
            continue  # optional and not part of this folder
        if name in TRANSFORMERS and spec.is_part:
            cuts[name], facts[name] = load_segment(
                spec.folder / name,
                spec.share,
                tensor_share=spec.tensor_share,
                dtype=dtype,
                device=device,
                variant=spec.variant,
            )
            loaded[name] = cuts[name].model
            continue
        loaded[name] = _load_component(component, dtype, spec.variant)
    if spec.scheduler:
        loaded["scheduler"] = _other_scheduler(loaded["scheduler"], spec.scheduler)
    pipeline.register_components(**loaded)
    for component in loaded.values():
        if isinstance(component, torch.nn.Module):
            component.to(device).eval().requires_grad_(False)
    return LoadedModel(pipeline=pipeline, cuts=cuts, facts=facts)


def spread(model: LoadedModel, groups: Groups, *, uneven: bool) -> None:
    """Let the transformers compute over the tensor and sequence ranks of this rank's groups.

    Every rank calls it once, after loading. `uneven`: see `apply_sequence_parallel`.
    """
    for name in TRANSFORMERS:
        transformer = model.cuts.get(name) or getattr(model.pipeline, name, None)
        if transformer is None:
            continue
        apply_tensor_parallel(transformer, groups.tensor)
        apply_sequence_parallel(
            transformer,
            ring=groups.ring,
            ulysses=groups.ulysses,
            both=groups.sequence,
            device=groups.device,
            uneven=uneven,
        )


def _modular_pipeline(folder: Path) -> Any:
    """The modular pipeline of the folder's class, as diffusers maps it, without its components.

    `ModularPipeline.from_pretrained` finds the same class, but imports every pipeline for it.
    """
    import diffusers
    from diffusers.modular_pipelines.modular_pipeline import MODULAR_PIPELINE_MAPPING

    config = diffusers.DiffusionPipeline.load_config(str(folder))
    name = MODULAR_PIPELINE_MAPPING[LINES[config["_class_name"]].family](config)
    return getattr(diffusers, name)(pretrained_model_name_or_path=str(folder))


def _load_component(component: Any, dtype: torch.dtype, variant: str | None) -> Any:
    is_model = issubclass(component.type_hint, torch.nn.Module)
    kwargs = {"dtype": dtype, "use_safetensors": True, "variant": variant} if is_model else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return component.load(**kwargs)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise PlanError(
            f"the component {component.name} does not load: {error}",
            place=str(component.pretrained_model_name_or_path),
        ) from error


def _other_scheduler(current: Any, choice: dict[str, Any]) -> Any:
    """The scheduler class that the job names, with the folder's configuration and its overrides."""
    import diffusers

    overrides = dict(choice)
    name = overrides.pop("name", None)
    cls = type(current) if name is None else getattr(diffusers, name, None)
    if cls is None or not hasattr(cls, "set_timesteps"):
        raise PlanError(f"diffusers has no scheduler {name}", place="scheduler")
    unknown = sorted(set(overrides) - set(inspect.signature(cls.__init__).parameters))
    if unknown:
        raise PlanError(f"{cls.__name__} takes no {', '.join(unknown)}", place="scheduler")
    return cls.from_config(current.config, **overrides)
