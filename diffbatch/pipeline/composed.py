"""ComposedPipeline: the ordered stages of one loaded model, whichever model it is."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.guiders.guider_utils import BaseGuidance
from diffusers.modular_pipelines.modular_pipeline import (
    LoopSequentialPipelineBlocks,
    PipelineState,
)
from PIL import Image

from diffbatch.models.loading import TRANSFORMERS
from diffbatch.parallel.cut import CutModel
from diffbatch.pipeline.decoding import DecodingStage
from diffbatch.pipeline.denoising import DenoisingStage
from diffbatch.pipeline.encoding import (
    EncodeOnce,
    ImageEncodingStage,
    TextEncodingStage,
    encode_once,
)
from diffbatch.pipeline.stage import Components, PipelineStage
from diffbatch.req import Req, SamplingParams

_TEXT_GROUP = "text_encoder"  # the name every modular pipeline gives its text blocks


@dataclass(frozen=True, slots=True)
class Stages:
    """The four stages that one kind of request goes through, in order."""

    text: TextEncodingStage
    image: ImageEncodingStage
    denoise: DenoisingStage
    decode: DecodingStage

    def __iter__(self) -> Any:
        return iter((self.text, self.image, self.denoise, self.decode))


class ComposedPipeline:
    """Turns Reqs into pixels through the stages of a modular pipeline.

    `modular` is a diffusers `ModularPipeline` with its components loaded. Which blocks run depends
    on which inputs a request has (an image, say), so stages are made per set of inputs and kept.
    """

    def __init__(self, modular: Any, cuts: Mapping[str, CutModel] | None = None) -> None:
        self._modular = modular
        self.cuts = cuts or {}  # transformers of which this rank holds a segment, by name
        self._inputs = {i.name: i for i in modular.blocks.inputs if i.name is not None}
        self._stages: dict[frozenset[str], Stages] = {}
        self.encoders = _remember_encodings(modular)

    def stages(self, given: Iterable[str]) -> Stages:
        """The stages for a request that has the inputs named in `given`."""
        key = frozenset(given)
        if key not in self._stages:
            self._stages[key] = _compose(self._modular.blocks, key)
        return self._stages[key]

    def state(self, req: Req) -> PipelineState:
        """A fresh state that holds what `req` asks for, and the blocks' defaults for the rest."""
        given = self.inputs(req)
        state = PipelineState()
        for name, param in self._inputs.items():
            state.set(name, given.get(name, param.default), param.kwargs_type)
        return state

    def inputs(self, req: Req) -> dict[str, Any]:
        """The values of `req` under the names that the blocks know; others have no effect here."""
        values: dict[str, Any] = req.params.as_dict()
        values["prompt"] = req.prompt
        # An empty text is what the plain pipelines encode when guidance runs without one. It is
        # given without guidance too: some text blocks fail without it, and it costs one forward.
        values["negative_prompt"] = req.params.negative_prompt or ""
        values["generator"] = torch.Generator("cpu").manual_seed(req.seed)
        values["output_type"] = "np"
        if req.params.image is not None:
            values["image"] = Image.open(req.params.image).convert("RGB")
        known = {name: value for name, value in values.items() if name in self._inputs}
        return {name: value for name, value in known.items() if value is not None}

    @property
    def transformers(self) -> list[torch.nn.Module]:
        """The transformers as loaded: all their modules, or of a cut one this rank's."""
        found = [getattr(self._modular, name, None) for name in TRANSFORMERS]
        return [model for model in found if model is not None]

    @property
    def encoding_components(self) -> Components:
        """The components for the encoding stages, which keep no state and share the guiders."""
        return self._modular  # type: ignore[no-any-return]

    def components(self, params: SamplingParams, generators: list[torch.Generator]) -> Components:
        """A shallow copy of the components for one micro-batch, with its own scheduler and guiders.

        Both carry state from step to step, so micro-batches in flight must not share them.
        """
        own = copy.copy(self._modular)
        for name, component in self._modular.components.items():
            if isinstance(component, BaseGuidance):
                setattr(own, name, _guider(component, name, params))
        own.scheduler = copy.deepcopy(self._modular.scheduler)
        _seed_scheduler(own.scheduler, generators)
        return own  # type: ignore[no-any-return]


def guidance_on(scale: float | None) -> bool:
    """Whether a request asks for classifier-free guidance: diffusers' pipelines run it above 1."""
    return scale is None or scale > 1.0


def _guider(guider: BaseGuidance, name: str, params: SamplingParams) -> BaseGuidance:
    """`guider` with the scale that `params` gives it; the second guider falls back on the first."""
    scale = params.guidance_scale
    if name.endswith("_2") and params.guidance_scale_2 is not None:
        scale = params.guidance_scale_2
    if scale is None:
        return guider.new()
    return guider.new(guidance_scale=scale, enabled=guidance_on(scale))


def _seed_scheduler(scheduler: Any, generators: list[torch.Generator]) -> None:
    """Let a scheduler that draws noise draw it from the requests' own generators.

    Otherwise it would draw from the process-wide one, and pixels would depend on what ran before.
    """
    if "generator" in inspect.signature(scheduler.step).parameters:
        generator = generators[0] if len(generators) == 1 else generators
        scheduler.step = functools.partial(scheduler.step, generator=generator)


def _compose(blocks: Any, given: frozenset[str]) -> Stages:
    """Sort the blocks that run for `given` inputs into stages by their top-level group."""
    leaves = blocks.get_execution_blocks(**dict.fromkeys(given, True)).sub_blocks
    loops = [name for name, b in leaves.items() if isinstance(b, LoopSequentialPipelineBlocks)]
    if len(loops) != 1:
        raise ValueError(f"expected one denoise loop among {list(leaves)}, found {loops}")
    order = list(leaves)
    denoise_group = _group(loops[0])
    denoise = [name for name in order if _group(name) == denoise_group]
    before = order[: order.index(denoise[0])]
    after = order[order.index(denoise[-1]) + 1 :]
    text = [name for name in before if _group(name) == _TEXT_GROUP]
    image = [name for name in before if _group(name) != _TEXT_GROUP]
    stages = Stages(
        text=TextEncodingStage([leaves[name] for name in text]),
        image=ImageEncodingStage([leaves[name] for name in image]),
        denoise=DenoisingStage([leaves[name] for name in denoise]),
        decode=DecodingStage([leaves[name] for name in after], blocks.output_names[0]),
    )
    _check_order(stages, {name for name in blocks.input_names if name is not None})
    return stages


def _check_order(stages: Iterable[PipelineStage], available: set[str]) -> None:
    """Every stage may read only inputs of the request and what earlier stages wrote."""
    for stage in stages:
        inner = {name for block in stage.blocks for name in block.intermediate_output_names}
        if unknown := stage.reads - available - inner:
            raise ValueError(
                f"{stage.name} reads {sorted(unknown)}, which nothing writes before it"
            )
        available = available | stage.writes


def _group(name: str) -> str:
    return name.split(".", 1)[0]


def _remember_encodings(modular: Any) -> dict[str, EncodeOnce]:
    """Give every text encoder of the model a memory of what it encoded."""
    return {
        name: encode_once(component)
        for name, component in modular.components.items()
        if name.startswith(_TEXT_GROUP) and isinstance(component, torch.nn.Module)
    }
