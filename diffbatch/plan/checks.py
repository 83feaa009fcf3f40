"""What a model cannot make, said before anything is launched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diffbatch.plan.batches import num_branches
from diffbatch.plan.facts import ModelFacts
from diffbatch.req import SamplingParams


def param_problems(params: SamplingParams, facts: ModelFacts) -> list[str]:
    """Every reason why `facts` cannot run `params`: the value, the rule and the way out."""
    problems = [*_size_problems(params, facts), *_frame_problems(params, facts)]
    if params.image is not None and "image" not in facts.params:
        problems.append(f"{facts.class_name} takes no image; leave image out")
    return problems


def cfg_problems(params: SamplingParams, facts: ModelFacts, cfg: int) -> list[str]:
    """Why the guidance branches of `params` cannot be shared out over `cfg` ranks."""
    branches = num_branches(params, facts)
    if cfg <= branches:
        return []
    if not facts.guided:
        return [f"cfg {cfg}: {facts.class_name} has no guidance branches; use --cfg 1"]
    if branches == 1:
        scale = params.guidance_scale
        return [f"cfg {cfg}: guidance is off at guidance_scale {scale}; use --cfg 1"]
    return [f"cfg {cfg}: there are {branches} guidance branches; use --cfg {branches} or less"]


def without_effect(params: SamplingParams, facts: ModelFacts) -> list[str]:
    """Names that are set in `params` but change nothing in what this model makes."""
    ignored = {name for name in params.as_dict() if name not in facts.params}
    if facts.modality == "image" or params.num_frames == 1:
        ignored.add("fps")
    if num_branches(params, facts) == 1:  # a negative prompt is the second branch's text
        ignored |= {"negative_prompt", "guidance_scale_2"}
    if params.num_frames == 1 and facts.modality == "image":
        ignored.discard("num_frames")  # true of every picture, so nothing is ignored
    return sorted(name for name in ignored if getattr(params, name) is not None)


def effective(params: SamplingParams, facts: ModelFacts) -> SamplingParams:
    """`params` without what has no effect, so that it changes no id and costs no new picture."""
    same: dict[str, None] = dict.fromkeys(without_effect(params, facts))
    if facts.modality == "image":
        same["num_frames"] = None
    if not params.negative_prompt:
        same["negative_prompt"] = None
    return replace(params, **same)


def _size_problems(params: SamplingParams, facts: ModelFacts) -> Iterator[str]:
    multiple = facts.spatial_multiple
    for name in ("height", "width"):
        value = getattr(params, name)
        if value is not None and value % multiple:
            yield (
                f"{name} {value} is not a multiple of {multiple}, which {facts.class_name} needs; "
                f"nearest: {nearest(value, multiple)}"
            )


def _frame_problems(params: SamplingParams, facts: ModelFacts) -> Iterator[str]:
    frames, multiple = params.num_frames, facts.temporal_multiple
    if frames is None or frames == 1:
        return
    if facts.modality == "image":
        yield f"num_frames {frames}: {facts.class_name} makes pictures; leave num_frames out"
    elif (frames - 1) % multiple:
        yield (
            f"num_frames {frames} is not {multiple}n+1, which {facts.class_name} needs; "
            f"nearest: {nearest(frames - 1, multiple, plus=1, least=0)}"
        )


def nearest(value: int, multiple: int, *, plus: int = 0, least: int | None = None) -> str:
    """The legal neighbours of `value`: "448 or 512". `least` is the smallest legal base."""
    below = value // multiple * multiple
    least = multiple if least is None else least
    legal = [base + plus for base in (below, below + multiple) if base >= least]
    return " or ".join(str(value) for value in legal)
