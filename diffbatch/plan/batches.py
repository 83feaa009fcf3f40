"""Reqs -> micro-batches and their cost. The job alone decides both, so a resume repeats them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import replace

from diffbatch.plan.facts import AUTO_REQS, AUTO_TOKENS, BatchSize, ModelFacts
from diffbatch.req import MicroBatch, Req, SamplingParams


def forward_key(params: SamplingParams) -> SamplingParams:
    """What must be equal for two Reqs to share a forward: all but texts, images and playback."""
    return replace(params, negative_prompt=None, image=None, image_sha256=None, fps=None)


def batch_size_of(params: SamplingParams, batch_size: BatchSize, facts: ModelFacts) -> int:
    """How many Reqs of this kind go through one forward, at most.

    "auto" fills a forward up to AUTO_TOKENS picture tokens: beyond, a batch wins nothing and holds
    more memory. It knows neither machine nor layout, so that pixels do not depend on them.
    """
    if batch_size != "auto":
        return batch_size
    return max(1, min(AUTO_REQS, AUTO_TOKENS // num_tokens(params, facts)))


def micro_batches(
    reqs: Iterable[Req], batch_size: BatchSize, facts: ModelFacts
) -> Iterator[tuple[tuple[Req, ...], float]]:
    """Yield (Reqs, cost) for each micro-batch, in the order in which they fill up.

    Reqs keep their order inside a bucket of equal `forward_key`, so equal prompts stay together.
    Holds no more than one Req less than a micro-batch per bucket.
    """
    open_buckets: dict[SamplingParams, list[Req]] = {}
    keys: dict[SamplingParams, SamplingParams] = {}
    sizes: dict[SamplingParams, int] = {}
    for req in reqs:
        key = keys.get(req.params)
        if key is None:
            key = keys[req.params] = forward_key(req.params)
            sizes[key] = batch_size_of(key, batch_size, facts)
        bucket = open_buckets.setdefault(key, [])
        bucket.append(req)
        if len(bucket) == sizes[key]:
            yield tuple(bucket), len(bucket) * cost(key, facts)
            bucket.clear()
    for key, bucket in open_buckets.items():
        if bucket:
            yield tuple(bucket), len(bucket) * cost(key, facts)


def work_queue(
    reqs: Iterable[Req], todo: Set[str], *, batch_size: BatchSize, facts: ModelFacts
) -> list[MicroBatch]:
    """The micro-batches that hold at least one id of `todo`, dearest first.

    Python's sort is stable: among equal costs the job's order stays, and with it the
    neighbourhood of equal prompts.
    """
    queue: list[MicroBatch] = []
    if not todo:
        return queue
    for batch, batch_cost in micro_batches(reqs, batch_size, facts):
        write = frozenset(req.id for req in batch if req.id in todo)
        if write:
            queue.append(MicroBatch(reqs=batch, write=write, cost=batch_cost))
    queue.sort(key=lambda batch: -batch.cost)
    return queue


def num_branches(params: SamplingParams, facts: ModelFacts) -> int:
    """Forwards per step: 2 when classifier-free guidance runs, else 1.

    Guidance at or below 1 is off, as in diffusers' pipelines.
    """
    scale = params.guidance_scale
    return 2 if facts.guided and scale is not None and scale > 1.0 else 1


def num_tokens(params: SamplingParams, facts: ModelFacts) -> int:
    """Length of the transformer's picture sequence for one Req."""
    side = facts.spatial_multiple
    frames = ((params.num_frames or 1) - 1) // facts.temporal_multiple + 1
    return frames * ((params.height or side) // side) * ((params.width or side) // side)


def cost(params: SamplingParams, facts: ModelFacts) -> float:
    """Relative work of one Req: branches x steps x tokens."""
    steps = params.num_inference_steps or 1
    return float(num_branches(params, facts) * steps * num_tokens(params, facts))
