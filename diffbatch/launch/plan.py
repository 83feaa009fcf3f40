"""`diffbatch plan`: what a run would do, without doing it. Streams through any number of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from diffbatch.launch.choose import Choice, choose, refusal
from diffbatch.launch.devices import num_gpus
from diffbatch.launch.memory import MemoryPlanner
from diffbatch.launch.prepare import Prepared
from diffbatch.output.folder import look
from diffbatch.output.layout import is_run_folder
from diffbatch.output.resume import Selection, select
from diffbatch.plan.batches import batch_size_of, micro_batches, num_branches, num_tokens
from diffbatch.plan.memory import describe
from diffbatch.req import Req, SamplingParams

NUM_FIRST = 5  # requests shown in full
_NUM_SHAPES = 10  # distinct shapes shown


def make_plan(
    prepared: Prepared, *, limit: int | None = None, only: Sequence[str] = ()
) -> dict[str, Any]:
    """The plan as JSON-ready data. Raises JobError or PlanError like a run would.

    But for a layout that does not fit the memory: then `memory.refused` says what a run would.
    With `limit` and `only` all numbers are those of what they leave. A micro-batch is the same as
    in a whole run; it counts when some of it is chosen. A layout that does not fit the memory is
    no error here: then `memory.refused` says what a run would.
    """
    selection = Selection(limit=limit, only=only)
    counter = _Counter(selection)
    batches, cost = 0, 0.0
    shapes: Counter[SamplingParams] = Counter()
    reqs = counter.watch(prepared.reqs())
    for batch, batch_cost in micro_batches(reqs, prepared.batch_size, prepared.facts):
        if not counter.settle(batch):
            continue
        batches += 1
        cost += batch_cost
        shapes[batch[0].params] += 1
    selection.check()
    choice = choose(prepared, batches)
    return {
        "job": str(prepared.job.path) if prepared.job.path else None,
        "output": str(prepared.job.output),
        "model": _model(prepared),
        "requests": counter.num,
        "ignored": sorted(prepared.ignored),
        "duplicates": counter.num_duplicates,
        "first": counter.first,
        "batch_size": prepared.batch_size,
        "micro_batches": batches,
        "cost": cost,
        "shapes": _shapes(prepared, shapes),
        "layout": _layout(choice),
        "auto": _auto(prepared, choice),
        "memory": _memory(prepared, choice),
        "resume": _resume(prepared, limit, only),
    }


class _Counter:
    """Looks at a stream of Reqs as it passes, and counts those that are selected."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._open: set[str] = set()  # selected, and in a micro-batch that is not full yet
        self.num = 0
        self.num_duplicates = 0
        self.first: list[dict[str, Any]] = []

    def watch(self, reqs: Iterator[Req]) -> Iterator[Req]:
        for req in reqs:
            if self._selection.takes(req):
                self._open.add(req.id)
                self.num += 1
                self.num_duplicates += "-" in req.id  # an equal request came before it
                if len(self.first) < NUM_FIRST:
                    self.first.append(req.as_dict())
            yield req

    def settle(self, batch: tuple[Req, ...]) -> bool:
        """Whether this micro-batch holds a selected Req; call once for each."""
        found = self._open.intersection(req.id for req in batch)
        self._open -= found
        return bool(found)


def _model(prepared: Prepared) -> dict[str, Any]:
    facts = prepared.facts
    return {
        "name": facts.label,
        "class": facts.class_name,
        "fingerprint": facts.fingerprint,
        "weight_bytes": facts.weight_bytes,
        "components": [
            {
                "name": component.name,
                "class": component.class_name,
                "weight_bytes": component.weight_bytes,
                "num_params": component.num_params,
                "dtypes": list(component.dtypes),
            }
            for component in facts.components
        ],
    }


def _shapes(prepared: Prepared, shapes: Counter[SamplingParams]) -> list[dict[str, Any]]:
    """The most frequent kinds of micro-batch: parameters, branches, tokens, how many."""
    return [
        {
            "params": params.as_dict(),
            "branches": num_branches(params, prepared.facts),
            "tokens": num_tokens(params, prepared.facts),
            "batch_size": batch_size_of(params, prepared.batch_size, prepared.facts),
            "micro_batches": count,
        }
        for params, count in shapes.most_common(_NUM_SHAPES)
    ]


def _layout(choice: Choice) -> dict[str, Any]:
    layout = choice.layout
    kind = "cuda:{}" if num_gpus() else "cpu"
    names = [kind.format(rank) for rank in range(layout.world_size)]
    if choice.devices is not None:
        names = [f"GPU {name}" for name in choice.devices]
    ranks = [
        {
            "rank": rank,
            **layout.coordinates(rank),
            "device": names[rank],
        }
        for rank in range(layout.world_size)
    ]
    return {**asdict(layout), "world_size": layout.world_size, "ranks": ranks}


def _auto(prepared: Prepared, choice: Choice) -> dict[str, Any] | None:
    """What `--parallel auto` passed over on its way to the layout; None without it."""
    if not prepared.job.spec.parallel.auto:
        return None
    rejected = [
        {"layout": asdict(item.layout), "name": describe(item.layout), "why": item.why}
        for item in choice.rejected
    ]
    return {"chosen": describe(choice.layout), "rejected": rejected}


def _memory(prepared: Prepared, choice: Choice) -> dict[str, Any]:
    """The ranks of one replica; all replicas are alike."""
    plan = MemoryPlanner(prepared, choice.devices).plan(choice.layout)
    return {
        "dtype": plan.dtype,
        "budget_bytes": None if plan.budget is None else plan.budget.num_bytes,
        "budget_source": None if plan.budget is None else plan.budget.source,
        "fits": plan.fits,
        "problem": plan.problem,
        "refused": refusal(prepared, choice),
        "ranks": [
            {
                "rank": rank.rank,
                "weights": dict(rank.weights),
                "weight_bytes": rank.weight_bytes,
                "activation_bytes": rank.activation_bytes,
                "total_bytes": rank.total_bytes,
            }
            for rank in plan.ranks
        ],
    }


def _resume(prepared: Prepared, limit: int | None, only: Sequence[str]) -> dict[str, int] | None:
    """What of the job is there already; None for a folder that no run has used."""
    folder = prepared.job.output
    if not is_run_folder(folder):
        return None
    reqs = list(prepared.reqs())
    resume, selected = look(folder, reqs), select(reqs, limit=limit, only=only)
    return {
        "done": len(resume.done & selected),
        "failed": len(resume.failed & selected),
        "pending": len(resume.pending & selected),
    }
