"""The layout of a run: what the job asks for or `auto` finds, replicas and devices filled in."""

from __future__ import annotations

from dataclasses import dataclass, replace

from diffbatch.errors import PlanError
from diffbatch.launch.devices import auto_replicas, check_devices, num_cores, num_gpus
from diffbatch.launch.layout import layout_problems
from diffbatch.launch.memory import MemoryPlanner, Rejected
from diffbatch.launch.prepare import Prepared
from diffbatch.plan.layout import Layout, parse_devices
from diffbatch.plan.memory import describe, memory_problem

_MAX_RANKS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The layout of a run. `devices` are the GPUs of its ranks, in order, where the user named
    them; `rejected` is what `--parallel auto` passed over."""

    layout: Layout
    devices: tuple[str, ...] | None = None
    rejected: tuple[Rejected, ...] = ()


def choose_layout(prepared: Prepared, num_batches: int) -> Layout:
    """The layout that the job runs with here. Raises PlanError when it cannot run.

    Read `prepared.reqs` to its end before: the lengths of its sequences are checked too.
    """
    return choose_fitting(prepared, num_batches).layout


def choose_fitting(prepared: Prepared, num_batches: int) -> Choice:
    """As `choose_layout`, with the devices."""
    choice = choose(prepared, num_batches)
    if (problem := refusal(prepared, choice)) is not None:
        raise PlanError(problem, place="memory")
    return choice


def choose(prepared: Prepared, num_batches: int) -> Choice:
    """As `choose_fitting`, without regard to what `refusal` says."""
    text = prepared.machine.devices
    named = None if text is None else check_devices(text)
    num_devices = len(named) if named is not None else num_gpus() or num_cores()
    group, rejected = group_layout(prepared, num_devices, named)
    layout = _with_replicas(prepared, group, num_batches, named)
    devices = None
    if text is not None:
        devices = tuple(name for block in parse_devices(text, layout) for name in block)
    return Choice(layout=layout, devices=devices, rejected=rejected)


def group_layout(
    prepared: Prepared, num_devices: int, named: tuple[str, ...] | None = None
) -> tuple[Layout, tuple[Rejected, ...]]:
    """The layout of one replica. Raises PlanError, with everything that is wrong with it."""
    asked = prepared.job.spec.parallel
    layout = Layout(pp=asked.pp, cfg=asked.cfg, tp=asked.tp, ulysses=asked.ulysses, ring=asked.ring)
    if asked.auto:
        replicas = 1 if asked.replicas == "auto" else int(asked.replicas)
        return _auto_group(prepared, max(num_devices // replicas, 1), named)
    if asked.pp_partition and layout.pp == 1:
        raise PlanError(
            f"{asked.pp_partition} shares blocks out over pipeline ranks, and pp is 1; add --pp or "
            "leave it out",
            place="parallel.pp_partition",
        )
    if problems := layout_problems(prepared, layout):
        raise PlanError(problems)
    return layout, ()


def refusal(prepared: Prepared, choice: Choice) -> str | None:
    """Why the choice does not fit into `--memory-gb`, and the smallest layout that does."""
    if prepared.machine.memory_gb is None:
        return None
    planner = MemoryPlanner(prepared, choice.devices)
    plan = planner.plan(choice.layout)
    if plan.problem is None:
        return None
    smallest, _ = planner.smallest(choice.layout)
    return memory_problem(plan, smallest)


def _auto_group(
    prepared: Prepared, max_ranks: int, named: tuple[str, ...] | None
) -> tuple[Layout, tuple[Rejected, ...]]:
    planner = MemoryPlanner(prepared, named)
    if planner.plan(Layout()).fits is None:
        raise PlanError(
            "auto cannot tell how much memory a device has here; say it with --memory-gb",
            place="--parallel",
        )
    found, rejected = planner.smallest(Layout(), max_ranks)
    if found is None:
        why = "; ".join(f"{describe(item.layout)}: {item.why}" for item in rejected)
        raise PlanError(
            f"auto finds no layout of up to {max_ranks} ranks per replica that fits ({why})",
            place="--parallel",
        )
    return found, tuple(rejected)


def _with_replicas(
    prepared: Prepared, group: Layout, num_batches: int, named: tuple[str, ...] | None
) -> Layout:
    asked = prepared.job.spec.parallel.replicas
    if asked == "auto" and named is not None:
        return replace(group, replicas=max(len(named) // group.group_size, 1))
    if asked == "auto":
        return replace(group, replicas=auto_replicas(prepared.facts, num_batches, group.group_size))
    layout = replace(group, replicas=int(asked))
    if layout.world_size > _MAX_RANKS:
        raise PlanError(
            f"{layout.describe()} ranks are more than {_MAX_RANKS}; lower --replicas",
            place="parallel.replicas",
        )
    if named is None and 0 < num_gpus() < layout.world_size:
        raise PlanError(
            f"{layout.describe()} ranks need as many GPUs, and there are {num_gpus()}; lower a "
            f"degree, or use --replicas {max(num_gpus() // group.group_size, 1)}",
            place="parallel",
        )
    return layout
