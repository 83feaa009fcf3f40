"""Which ranks do what: the layout a job asks for, checked against its model."""

from __future__ import annotations

from diffbatch.errors import PlanError, Problem
from diffbatch.launch.devices import auto_replicas
from diffbatch.launch.prepare import Prepared
from diffbatch.models.checkpoint import read_checkpoint
from diffbatch.plan.chain import chain_of, methods_of_name
from diffbatch.plan.layout import Layout
from diffbatch.plan.split import parse_partition, partition_from_env, split_blocks

_TRANSFORMERS = ("transformer", "transformer_2")


def choose_layout(prepared: Prepared, num_batches: int) -> Layout:
    """The job's layout, `replicas: auto` made a number. Raises PlanError when it cannot run."""
    parallel = prepared.job.spec.parallel
    group = Layout(pp=parallel.pp, cfg=parallel.cfg)
    check_pipeline(prepared, group)
    asked = parallel.replicas
    if asked == "auto":
        replicas = auto_replicas(prepared.facts, num_batches, group.group_size)
    else:
        replicas = int(asked)
    return Layout(replicas=replicas, pp=parallel.pp, cfg=parallel.cfg)


def check_pipeline(prepared: Prepared, layout: Layout) -> None:
    """PlanError unless every transformer of the model can be cut over the pipeline ranks."""
    if layout.pp == 1:
        return
    facts, partition = prepared.facts, pp_partition(prepared)
    problems: list[Problem] = []
    for component in facts.components:
        if component.name not in _TRANSFORMERS:
            continue
        checkpoint = read_checkpoint(facts.folder / component.name, prepared.job.spec.variant)
        try:
            methods = methods_of_name(component.class_name)
            chain = chain_of(component.class_name, methods, checkpoint.tensors.keys())
            split_blocks(len(chain.names), layout.pp, partition)
        except PlanError as error:
            problems += [Problem("parallel.pp", problem.message) for problem in error.problems]
    if problems:
        raise PlanError(problems)


def pp_partition(prepared: Prepared) -> tuple[int, ...] | None:
    """Blocks per pipeline rank, from the job or the environment; None is the even split."""
    text = prepared.job.spec.parallel.pp_partition
    return parse_partition(text) if text else partition_from_env()
