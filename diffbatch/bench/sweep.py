"""`--sweep axis=1,2,4`: parsing, and the product of all sweeps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from diffbatch.errors import JobError
from diffbatch.job.problems import suggestion
from diffbatch.job.spec import DEGREES
from diffbatch.plan.layout import AXES

# What can be swept, and which key of the job file it is.
JOB_KEYS: dict[str, str] = {axis: f"parallel.{axis}" for axis in (*AXES, "in_flight")}
JOB_KEYS["batch_size"] = "batch_size"
MAX_POINTS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The values of one axis, in the order in which they were typed."""

    axis: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One combination: what differs from the job, and nothing else."""

    number: int  # from 0, in the order of the product
    settings: dict[str, int]  # axis -> value

    @property
    def label(self) -> str:
        """For people: "replicas 2, pp 1"."""
        return ", ".join(f"{axis} {value}" for axis, value in self.settings.items()) or "as it is"

    @property
    def name(self) -> str:
        """For a folder: "01-replicas-2-pp-1"."""
        parts = (f"{axis}-{value}" for axis, value in self.settings.items())
        return "-".join([f"{self.number:02d}", *parts])

    def job_keys(self) -> dict[str, int]:
        """The job file's keys that this point sets, by dotted path."""
        keys = {JOB_KEYS[axis]: value for axis, value in self.settings.items()}
        if any(axis in DEGREES for axis in self.settings):
            keys["parallel.auto"] = False  # which would choose the degrees itself
        return keys


def parse_sweeps(texts: Iterable[str]) -> tuple[Sweep, ...]:
    """Each text is `axis=1,2,4`. Raises JobError."""
    sweeps = [_parse(text) for text in texts]
    axes = [sweep.axis for sweep in sweeps]
    for text, axis in zip(texts, axes, strict=True):
        if axes.count(axis) > 1:
            raise JobError(
                f"{axis} is swept twice; give all its values at once", place=f"--sweep {text}"
            )
    num = prod(len(sweep.values) for sweep in sweeps)
    if num > MAX_POINTS:
        raise JobError(
            f"the sweeps make {num} points, and {MAX_POINTS} is the most; sweep fewer values",
            place="--sweep",
        )
    return tuple(sweeps)


def points_of(sweeps: Sequence[Sweep]) -> list[Point]:
    """The product of the sweeps, the last one fastest. Without sweeps: the job as it is."""
    axes = [sweep.axis for sweep in sweeps]
    return [
        Point(number=number, settings=dict(zip(axes, values, strict=True)))
        for number, values in enumerate(product(*(sweep.values for sweep in sweeps)))
    ]


def _parse(text: str) -> Sweep:
    place = f"--sweep {text}"
    axis, equals, typed = (part.strip() for part in text.partition("="))
    axis = axis.replace("-", "_")
    if not equals:
        raise JobError("write axis=1,2,4, such as replicas=1,2", place=place)
    if axis not in JOB_KEYS:
        raise JobError(
            f"unknown axis {axis!r}; {suggestion(axis, list(JOB_KEYS), what='axes')}", place=place
        )
    items = [item.strip() for item in typed.split(",")]
    wrong = [item for item in items if not (item.isascii() and item.isdecimal() and int(item))]
    if wrong:
        raise JobError(f"{wrong[0]!r} is not a whole number from 1 on", place=place)
    values = tuple(int(item) for item in items)
    if len(set(values)) < len(values):
        raise JobError("a value is there twice; --repeat N measures each again", place=place)
    return Sweep(axis=axis, values=values)
