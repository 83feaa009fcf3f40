"""What every rank of a replica holds in memory under a layout, before anything is loaded. Pure.

Weights are exact: added up from safetensors headers with the split code that loading uses. The
activations are an estimate, see `activations.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from diffbatch.errors import PlanError
from diffbatch.plan.chain import BlockChain, chain_of, methods_of_name
from diffbatch.plan.kept import ignored_patterns, kept_in_fp32
from diffbatch.plan.layout import Layout
from diffbatch.plan.split import PipelineShare
from diffbatch.plan.tensor import TensorPlan, TensorShare, slice_of, tensor_plan_of

GB = 10**9
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class StoredShape:
    """One stored tensor, as the header of its file says."""

    dtype: str  # safetensors' name, such as "BF16"
    shape: tuple[int, ...]
    num_bytes: int

    @property
    def is_floating(self) -> bool:
        """Whether loading converts it to the dtype of the job."""
        return self.dtype.startswith(("F", "BF"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentWeights:
    """The stored tensors of one component. `shared_out`: ranks may hold parts of it."""

    name: str  # "transformer"
    class_name: str
    tensors: Mapping[str, StoredShape]
    shared_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """What one rank of a replica holds. All replicas are alike."""

    rank: int  # in its replica
    weights: Mapping[str, int]  # bytes by component
    activation_bytes: int  # estimated, at the peak

    @property
    def weight_bytes(self) -> int:
        """Bytes of all its weights."""
        return sum(self.weights.values())

    @property
    def total_bytes(self) -> int:
        """Weights and activations."""
        return self.weight_bytes + self.activation_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Memory that one rank may fill with weights and activations."""

    num_bytes: int
    source: str  # how it is known, for people: "--memory-gb 24"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The ranks of one replica under `layout`, and what they may hold, if that is known."""

    layout: Layout
    dtype: str
    ranks: tuple[RankMemory, ...]
    budget: Budget | None = None

    @property
    def fullest(self) -> RankMemory:
        """The rank that holds most; the first of several."""
        return max(self.ranks, key=lambda rank: (rank.total_bytes, -rank.rank))

    @property
    def fits(self) -> bool | None:
        """Whether every rank stays within the budget; None without one."""
        return None if self.budget is None else self.fullest.total_bytes <= self.budget.num_bytes

    @property
    def problem(self) -> str | None:
        """Why it does not fit: the rank, its bytes, and the budget."""
        if self.budget is None or self.fits:
            return None
        most = self.fullest
        return (
            f"rank {most.rank} of a replica needs {most.total_bytes} bytes "
            f"({shown_gb(most.weight_bytes)} of weights, about {shown_gb(most.activation_bytes)} "
            f"of activations), more than the {self.budget.num_bytes} bytes of {self.budget.source}"
        )


def bytes_of_layout(
    weights: ComponentWeights,
    layout: Layout,
    dtype: str,
    partition: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Bytes of `weights` that each rank of a replica holds after loading in `dtype`.

    A component that is not shared out is whole on every rank. `partition`: see `split_blocks`.
    PlanError when it cannot be cut.
    """
    wanted = _wanted(weights)
    kept = kept_in_fp32(weights.class_name, dtype)
    if not weights.shared_out or layout.pp * layout.tp == 1:
        total = sum(_held_bytes(key, stored, dtype, kept) for key, stored in wanted.items())
        return (total,) * layout.group_size
    name = weights.class_name
    plan = tensor_plan_of(name) if layout.tp > 1 else None
    if layout.tp > 1 and plan is None:
        raise PlanError(f"{name} has no plan for tensor parallelism; use --tp 1")
    chain = chain_of(name, methods_of_name(name), weights.tensors.keys())
    held = {
        key: _held_bytes(key, _part(key, stored, plan, layout.tp), dtype, kept)
        for key, stored in wanted.items()
    }
    counts = tuple(partition) if partition is not None else None
    of_stage = [
        _owned(held, chain, PipelineShare(pp=layout.pp, rank=at, partition=counts))
        for at in range(layout.pp)
    ]
    return tuple(of_stage[layout.coordinates(rank)["pp"]] for rank in range(layout.group_size))


def memory_problem(plan: MemoryPlan, smallest: Layout | None) -> str | None:
    """Why `plan` does not fit, and the way out; None when it does."""
    if plan.problem is None:
        return None
    if smallest is not None:
        degrees = " ".join(f"--{axis} {getattr(smallest, axis)}" for axis in _shown_axes(smallest))
        return f"{plan.problem}; the smallest layout that fits: {degrees}"
    alone = min(sum(_whole(rank).values()) for rank in plan.ranks)
    return (
        f"{plan.problem}; no layout fits: text encoders and VAE are whole on every rank and take "
        f"{shown_gb(alone)}"
    )


def describe(layout: Layout) -> str:
    """The degrees of a group that are not 1: "pp 2 x tp 2"; "one rank"."""
    axes = [axis for axis in _AXES if getattr(layout, axis) > 1]
    return " x ".join(f"{axis} {getattr(layout, axis)}" for axis in axes) or "one rank"


def shown_gb(num_bytes: int) -> str:
    """Bytes for people: "13.52 GB", and in MB below one of them."""
    return f"{num_bytes / GB:.2f} GB" if num_bytes >= GB else f"{num_bytes / 1e6:.2f} MB"


_AXES = ("pp", "cfg", "ring", "ulysses", "tp")


def _shown_axes(layout: Layout) -> list[str]:
    return [axis for axis in _AXES if getattr(layout, axis) > 1] or ["pp"]


def _whole(rank: RankMemory) -> dict[str, int]:
    return {k: held for k, held in rank.weights.items() if not k.startswith("transformer")}


def _wanted(weights: ComponentWeights) -> Mapping[str, StoredShape]:
    """The stored tensors without those that loading passes over."""
    if not weights.shared_out:
        return weights.tensors
    ignored = ignored_patterns(weights.class_name)
    return {
        key: stored
        for key, stored in weights.tensors.items()
        if not any(re.search(pattern, key) for pattern in ignored)
    }


def _owned(held: Mapping[str, int], chain: BlockChain, share: PipelineShare) -> int:
    own = share.own(len(chain.names))
    return sum(size for key, size in held.items() if chain.owns(own, key))


def _part(key: str, stored: StoredShape, plan: TensorPlan | None, tp: int) -> StoredShape:
    """The part of a tensor that one tp rank holds: all ranks have parts of one size."""
    dim = None if plan is None else plan.dim_of(key)
    if dim is None:
        return stored
    length = slice_of(dim, (stored.shape[dim],), TensorShare(tp=tp)).length
    shape = (*stored.shape[:dim], length, *stored.shape[dim + 1 :])
    num_bytes = stored.num_bytes * length // stored.shape[dim]
    return StoredShape(stored.dtype, shape, num_bytes)


def _held_bytes(key: str, stored: StoredShape, dtype: str, kept: Collection[str]) -> int:
    """Bytes in memory: floating-point tensors take the job's dtype, save modules kept in fp32."""
    if not stored.is_floating:
        return stored.num_bytes
    item_bytes = 4 if set(key.split(".")) & set(kept) else ITEM_BYTES[dtype]
    return math.prod(stored.shape) * item_bytes
