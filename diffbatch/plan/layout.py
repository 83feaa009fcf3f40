"""How the ranks of a run are arranged: replicas side by side, each with its own axes. Pure.

Axis order is replicas, pp, cfg, ring, ulysses, tp; tp is fastest. So a replica is a contiguous
block of ranks, and ranks that talk most are neighbours. (diffusers wants ring before ulysses.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise, product
from math import prod
from typing import Literal

from diffbatch.errors import PlanError

Axis = Literal["replicas", "pp", "cfg", "ring", "ulysses", "tp"]
AXES: tuple[Axis, ...] = ("replicas", "pp", "cfg", "ring", "ulysses", "tp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The degree of every axis; all are at least 1."""

    replicas: int = 1
    pp: int = 1
    cfg: int = 1
    ring: int = 1
    ulysses: int = 1
    tp: int = 1

    def __post_init__(self) -> None:
        for item in fields(self):
            degree = getattr(self, item.name)
            if degree < 1:
                raise PlanError(f"{item.name} is {degree}; it must be at least 1")

    @property
    def degrees(self) -> tuple[int, ...]:
        """Degrees in axis order: the shape of a device mesh over all ranks."""
        return tuple(getattr(self, axis) for axis in AXES)

    @property
    def group_size(self) -> int:
        """Ranks in one replica."""
        return prod(self.degrees[1:])

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.replicas * self.group_size

    def describe(self) -> str:
        """Every factor, as error messages print them."""
        factors = " x ".join(f"{axis} {getattr(self, axis)}" for axis in AXES)
        return f"{factors} = {self.world_size}"

    def coordinates(self, rank: int) -> dict[Axis, int]:
        """The place of global rank `rank` on every axis."""
        self._check_rank(rank)
        found: dict[Axis, int] = {}
        for axis in reversed(AXES):
            rank, found[axis] = divmod(rank, getattr(self, axis))
        return {axis: found[axis] for axis in AXES}

    def rank(self, coordinates: dict[Axis, int]) -> int:
        """The global rank at `coordinates`; axes that are left out are 0."""
        found = 0
        for axis in AXES:
            at, degree = coordinates.get(axis, 0), getattr(self, axis)
            if not 0 <= at < degree:
                raise PlanError(f"{axis} has no place {at}; it has {degree}")
            found = found * degree + at
        return found

    def replica_of(self, rank: int) -> int:
        """The replica that global rank `rank` belongs to."""
        self._check_rank(rank)
        return rank // self.group_size

    def replica_ranks(self, replica: int) -> tuple[int, ...]:
        """The global ranks of a replica, a contiguous block; the first is its leader."""
        return tuple(range(replica * self.group_size, (replica + 1) * self.group_size))

    def groups(self, *axes: Axis) -> tuple[tuple[int, ...], ...]:
        """All groups of ranks that differ on `axes` alone, each in ascending order.

        Every rank is in exactly one of them. Process groups are made from this list, in this order,
        on every rank, also for groups that a rank is not in.
        """
        others = [axis for axis in AXES if axis not in axes]
        return tuple(
            tuple(
                self.rank(
                    {**dict(zip(others, fixed, strict=True)), **dict(zip(axes, free, strict=True))}
                )
                for free in product(
                    *(range(getattr(self, axis)) for axis in sorted(axes, key=AXES.index))
                )
            )
            for fixed in product(*(range(getattr(self, axis)) for axis in others))
        )

    def links(self) -> tuple[tuple[int, int], ...]:
        """(from, to) of every hand-over between neighbours on the pp axis, in a fixed order."""
        return tuple(pair for chain in self.groups("pp") for pair in pairwise(chain))

    def returns(self) -> tuple[tuple[int, int], ...]:
        """(last, first) of every chain of pipeline ranks, in a fixed order."""
        return tuple((chain[-1], chain[0]) for chain in self.groups("pp") if len(chain) > 1)

    def group_of(self, rank: int, *axes: Axis) -> tuple[int, ...]:
        """The group of `groups(*axes)` that `rank` is in."""
        self._check_rank(rank)
        return next(group for group in self.groups(*axes) if rank in group)

    def check_world_size(self, world_size: int) -> None:
        """PlanError, with every factor, unless so many ranks are what the layout needs."""
        if world_size == self.world_size:
            return
        near = [count for count in (world_size // self.group_size,) if count >= 1]
        way_out = f"start {self.world_size} processes"
        if near:
            ranks = near[0] * self.group_size
            way_out += f", or use --replicas {near[0]} with {ranks} processes"
        raise PlanError(f"{world_size} processes do not fit {self.describe()}; {way_out}")

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            raise PlanError(f"there is no rank {rank} in {self.describe()}")


def parse_devices(
    text: str, layout: Layout, *, place: str = "--devices"
) -> tuple[tuple[str, ...], ...]:
    """`"0,1,2,3"` as contiguous blocks of device names, one block per replica.

    PlanError unless it names every device once and exactly as many as the layout has ranks.
    """
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise PlanError(
            f"{text!r} has an empty entry; write device numbers such as 0,1,2,3", place=place
        )
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise PlanError(f"device {', '.join(doubled)} is named twice", place=place)
    if len(names) != layout.world_size:
        raise PlanError(
            f"{len(names)} devices do not fit {layout.describe()}; {_nearest(len(names), layout)}",
            place=place,
        )
    return split_devices(names, layout)


def split_devices(names: Sequence[str], layout: Layout) -> tuple[tuple[str, ...], ...]:
    """`names`, as many as ranks, in blocks of one replica each."""
    size = layout.group_size
    return tuple(tuple(names[at : at + size]) for at in range(0, len(names), size))


def _nearest(num_devices: int, layout: Layout) -> str:
    whole = num_devices // layout.group_size
    if whole == 0:
        return f"a replica alone needs {layout.group_size} devices; lower a degree"
    used = whole * layout.group_size
    return f"name {layout.world_size} devices, or use --replicas {whole} and name {used}"
