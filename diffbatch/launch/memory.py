"""The memory plan of a prepared job: what its ranks hold, and what they may."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diffbatch.errors import JobError, PlanError
from diffbatch.launch.devices import find_budget, num_gpus
from diffbatch.launch.layout import layout_problems, pp_partition
from diffbatch.launch.prepare import Prepared
from diffbatch.models.weights import read_weights
from diffbatch.plan.activations import Widths, Work, activation_bytes, widths_of
from diffbatch.plan.layout import Layout
from diffbatch.plan.memory import (
    GB,
    ITEM_BYTES,
    Budget,
    ComponentWeights,
    MemoryPlan,
    RankMemory,
    bytes_of_layout,
)

MAX_GROUP = 64  # ranks per replica that are tried before giving up


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A layout that `--parallel auto` passed over, and why."""

    layout: Layout
    why: str


class MemoryPlanner:
    """Plans any number of layouts of one job; reads the headers of its weights once.

    Read `prepared.reqs` to its end before: the largest request decides the activations.
    """

    def __init__(self, prepared: Prepared, devices: Sequence[str] | None = None) -> None:
        spec = prepared.job.spec
        self._prepared = prepared
        self._devices = devices
        self._given = given_budget(prepared.machine.memory_gb)
        auto_dtype = "bfloat16" if num_gpus() else "float32"
        self._dtype = auto_dtype if spec.dtype == "auto" else spec.dtype
        self._weights = read_weights(prepared.facts, spec.variant)
        self._widths = _widths(prepared, self._weights)

    def plan(self, layout: Layout) -> MemoryPlan:
        """What the ranks of a replica hold under `layout`. PlanError when it cannot run at all."""
        partition = pp_partition(self._prepared)
        held = {
            weights.name: bytes_of_layout(weights, layout, self._dtype, partition)
            for weights in self._weights
        }
        item_bytes = ITEM_BYTES[self._dtype]
        activations = max(
            (
                activation_bytes(self._widths, work, layout, item_bytes)
                for work in _works(self._prepared, layout)
            ),
            default=0,
        )
        ranks = tuple(
            RankMemory(
                rank=rank,
                weights={name: of_rank[rank] for name, of_rank in held.items()},
                activation_bytes=activations,
            )
            for rank in range(layout.group_size)
        )
        return MemoryPlan(
            layout=layout, dtype=self._dtype, ranks=ranks, budget=self._budget(layout)
        )

    def smallest(
        self, asked: Layout, max_ranks: int = MAX_GROUP
    ) -> tuple[Layout | None, list[Rejected]]:
        """The smallest group that fits, with the other degrees as asked, and what was rejected."""
        rejected: list[Rejected] = []
        for layout in _candidates(asked, max_ranks):
            why = self._why_not(layout)
            if why is None:
                return layout, rejected
            rejected.append(Rejected(layout=layout, why=why))
        return None, rejected

    def _why_not(self, layout: Layout) -> str | None:
        try:
            problems = [problem.message for problem in layout_problems(self._prepared, layout)]
            return "; ".join(problems) if problems else self.plan(layout).problem
        except PlanError as error:
            return "; ".join(problem.message for problem in error.problems)

    def _budget(self, layout: Layout) -> Budget | None:
        return self._given or find_budget(layout.world_size, self._devices)


def given_budget(memory_gb: float | None) -> Budget | None:
    """What `--memory-gb` allows; JobError unless it is above 0."""
    if memory_gb is None:
        return None
    if not 0 < memory_gb < float("inf"):
        raise JobError(f"must be a number above 0, found {memory_gb:g}", place="--memory-gb")
    return Budget(num_bytes=int(memory_gb * GB), source=f"--memory-gb {memory_gb:g}")


def _candidates(asked: Layout, max_ranks: int) -> Iterator[Layout]:
    """Layouts by group size, of one size those with more pipeline ranks first."""
    base = replace(asked, replicas=1, pp=1, tp=1)
    most = max_ranks // base.group_size
    sizes = {size for size in range(1, most + 1) if size & (size - 1) == 0 or most % size == 0}
    for size in sorted(sizes):
        for tp in (degree for degree in range(1, size + 1) if size % degree == 0):
            yield replace(base, pp=size // tp, tp=tp)


def _widths(prepared: Prepared, weights: Sequence[ComponentWeights]) -> Widths:
    folder = prepared.facts.folder
    transformer = next((item for item in weights if item.name == "transformer"), None)
    return widths_of(
        _config(folder / "transformer"),
        transformer,
        _config(folder / "vae"),
        prepared.facts.temporal_multiple,
    )


def _config(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.json"
    found: Any = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def _works(prepared: Prepared, layout: Layout) -> Iterator[Work]:
    """What the kinds of micro-batch bring to this layout; no batch is larger than the job."""
    flights = prepared.job.spec.parallel.in_flight or (layout.pp + 1 if layout.pp > 1 else 1)
    branches = 2 if prepared.facts.guided else 1
    num = prepared.counts["requests"]
    for work in prepared.works:
        size = min(work.batch_size, num) if num else work.batch_size
        yield replace(work, batch_size=size, branches=branches, flights=flights)
