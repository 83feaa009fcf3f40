"""Whether the model of a job can run under a layout, and what else the layout decides."""

from __future__ import annotations

from collections.abc import Iterator

from diffbatch.errors import PlanError, Problem
from diffbatch.launch.devices import num_gpus
from diffbatch.launch.prepare import Prepared
from diffbatch.models.checkpoint import Checkpoint, read_checkpoint
from diffbatch.models.weights import SHARED_OUT
from diffbatch.plan.chain import chain_of, methods_of_name
from diffbatch.plan.layout import Layout
from diffbatch.plan.sequence import is_uneven, sequence_plan_of, sequence_problem
from diffbatch.plan.split import parse_partition, partition_from_env, split_blocks
from diffbatch.plan.tensor import heads_of, tensor_problem


def layout_problems(prepared: Prepared, layout: Layout) -> list[Problem]:
    """Everything for which the model cannot run so, whatever the memory. Empty: it can.

    Read `prepared.reqs` to its end before: the lengths of its sequences are checked too.
    """
    if layout.group_size == layout.cfg:  # the transformers stay whole
        return []
    problems = [
        Problem("parallel", problem)
        for component in prepared.facts.components
        if component.name in SHARED_OUT
        for problem in _problems(prepared, layout, component.name, component.class_name)
    ]
    return list(dict.fromkeys(problems))


def pp_partition(prepared: Prepared) -> tuple[int, ...] | None:
    """Blocks per pipeline rank, from the job or the environment; None is the even split."""
    text = prepared.job.spec.parallel.pp_partition
    return parse_partition(text) if text else partition_from_env()


def splits_unevenly(prepared: Prepared, layout: Layout) -> bool:
    """Whether some sequence of the job does not divide by the layout's sequence ranks."""
    classes = [c.class_name for c in prepared.facts.components if c.name in SHARED_OUT]
    return layout.ulysses * layout.ring > 1 and any(
        is_uneven(layout, _tokens(prepared, class_name)) for class_name in classes
    )


def _problems(prepared: Prepared, layout: Layout, component: str, class_name: str) -> Iterator[str]:
    checkpoint = read_checkpoint(prepared.facts.folder / component, prepared.job.spec.variant)
    try:
        yield from _found(prepared, layout, class_name, checkpoint)
    except PlanError as error:
        yield from (problem.message for problem in error.problems)


def _found(
    prepared: Prepared, layout: Layout, class_name: str, checkpoint: Checkpoint
) -> Iterator[str]:
    if layout.pp > 1 or layout.tp > 1:
        keys = checkpoint.tensors.keys()
        chain = chain_of(class_name, methods_of_name(class_name), keys)
        split_blocks(len(chain.names), layout.pp, pp_partition(prepared))
    heads = heads_of(checkpoint.config) if layout.group_size > layout.pp * layout.cfg else 1
    shapes = {name: stored.entry.shape for name, stored in checkpoint.tensors.items()}
    problems = (
        tensor_problem(class_name, layout, heads=heads, shapes=shapes),
        sequence_problem(
            class_name,
            layout,
            heads=heads,
            tokens=_tokens(prepared, class_name),
            on_cpu=num_gpus() == 0,
            dtype=prepared.job.spec.dtype,
        ),
    )
    yield from (problem for problem in problems if problem is not None)


def _tokens(prepared: Prepared, class_name: str) -> list[int]:
    """Lengths of the sequences of the job that sequence parallelism splits."""
    plan = sequence_plan_of(class_name)
    texts = prepared.text_lengths if plan is not None and plan.splits_text else set()
    return sorted(prepared.picture_lengths | texts)
