"""How many blocks each pipeline rank owns. Pure: `plan` and every worker call it alike."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from diffbatch.errors import PlanError

PARTITION_ENV = "DIFFBATCH_PP_PARTITION"


def parse_partition(text: str, *, place: str = "--pp-partition") -> tuple[int, ...]:
    """`"8,12,12,8"` as (8, 12, 12, 8). Anything but whole numbers above 0 is a PlanError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise PlanError(
            f"{text!r} is not a partition; give one block count above 0 per pipeline rank, "
            "separated by commas, such as 8,12,12,8",
            place=place,
        )
    return tuple(int(part) for part in parts)


def partition_from_env(environ: Mapping[str, str] = os.environ) -> tuple[int, ...] | None:
    """The partition that DIFFBATCH_PP_PARTITION asks for, or None where it is unset or empty."""
    text = environ.get(PARTITION_ENV, "").strip()
    return parse_partition(text, place=PARTITION_ENV) if text else None


def split_blocks(
    num_blocks: int, pp: int, partition: Sequence[int] | None = None
) -> tuple[range, ...]:
    """The blocks of each of `pp` ranks, as ranges over call order that cover 0..num_blocks-1.

    Even; a remainder goes to the middle ranks first, because the first and the last rank also run
    the embeddings and the output head. `partition` overrides: one count per rank. PlanError when
    there are fewer blocks than ranks, or when the partition does not fit.
    """
    if pp < 1:
        raise PlanError(f"pp is {pp}; it must be at least 1")
    if num_blocks < pp:
        raise PlanError(
            f"pp {pp} needs at least {pp} blocks, the model has {num_blocks}; "
            f"use --pp {max(num_blocks, 1)} or less"
        )
    counts = _even(num_blocks, pp) if partition is None else _checked(partition, num_blocks, pp)
    bounds = [sum(counts[:rank]) for rank in range(pp + 1)]
    return tuple(range(start, end) for start, end in pairwise(bounds))


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShare:
    """The place of one rank in the pipeline of its replica."""

    pp: int = 1
    rank: int = 0  # on the pp axis
    partition: tuple[int, ...] | None = None

    def own(self, num_blocks: int) -> range:
        """The blocks, in call order, that this rank owns of `num_blocks`."""
        return split_blocks(num_blocks, self.pp, self.partition)[self.rank]


def _even(num_blocks: int, pp: int) -> list[int]:
    share, remainder = divmod(num_blocks, pp)
    counts = [share] * pp
    middle = (pp - 1) / 2
    for rank in sorted(range(pp), key=lambda rank: (abs(rank - middle), rank))[:remainder]:
        counts[rank] += 1
    return counts


def _checked(partition: Sequence[int], num_blocks: int, pp: int) -> list[int]:
    counts = list(partition)
    shown = ",".join(str(count) for count in counts)
    example = ",".join(str(count) for count in _even(num_blocks, pp))
    if len(counts) != pp:
        raise PlanError(
            f"partition {shown} has {len(counts)} counts for pp {pp}; "
            f"give {pp} counts, such as {example}"
        )
    if min(counts) < 1:
        raise PlanError(f"partition {shown} leaves a rank without blocks; try {example}")
    if sum(counts) != num_blocks:
        raise PlanError(
            f"partition {shown} sums to {sum(counts)}, the model has {num_blocks} blocks; "
            f"counts must add up to {num_blocks}, such as {example}"
        )
    return counts
