"""What every point makes: the same requests, and warm-up requests that nobody counts. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diffbatch.bench.sweep import JOB_KEYS, Point
from diffbatch.errors import JobError
from diffbatch.job.overrides import CommandLine
from diffbatch.launch.choose import Choice, choose_fitting
from diffbatch.launch.prepare import NO_WORD, Machine, Prepared, prepare
from diffbatch.output.formats import suffix_of
from diffbatch.plan.batches import work_queue
from diffbatch.plan.layout import Layout
from diffbatch.req import MicroBatch, Req

RANDOM = "random"
WARMUP = "bench-warmup"  # folder of the outputs that are not counted

_SIZES = ("small", "large")
_COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "pink", "cyan")
_SHAPES = ("circle", "square", "triangle", "star", "ring", "heart", "diamond", "cross")
_BACKGROUNDS = ("white", "black", "gray", "yellow", "blue", "pink", "green")
_STRIDE = 523  # shares no factor with the number of texts: visits each, neighbours are unlike
_ALONE = dict.fromkeys(JOB_KEYS.values(), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Where the requests come from: a job file, or a model and prompts."""

    job: Path | None
    prompts: str  # `random` or a prompt file; not used with a job
    num: int  # at most so many requests, the first ones
    command_line: CommandLine
    machine: Machine = NO_WORD

    def describe(self) -> str:
        """For the report."""
        return str(self.job) if self.job else f"prompts {self.prompts}"

    def prepare(self, keys: Mapping[str, Any]) -> Prepared:
        """The job with these keys on top. Raises JobError and PlanError."""
        line = self.command_line
        texts: Sequence[str] = ()
        mine: dict[str, Any] = {**line.keys}
        if self.job is None:
            mine = {"model": "demo", **mine}
            if self.prompts == RANDOM:
                texts = random_prompts(self.num)
            else:
                file = str(Path(self.prompts).expanduser().absolute())
                texts, mine["prompts"] = ("-",), [{"file": file, "limit": self.num}]
        return prepare(self.job, texts, replace(line, keys={**mine, **keys}), self.machine)

    def check(self, points: Sequence[Point]) -> Prepared:
        """The job alone, without layout: what is wrong with it is wrong at every point."""
        for text in self.command_line.sets:
            key = text.partition("=")[0]
            if any(key in point.job_keys() for point in points):
                raise JobError("this key is swept; leave it out", place=f"--set {text}")
        prepared = self.prepare(_ALONE)
        if not list(itertools.islice(prepared.reqs(), self.num)):
            raise JobError("there is no prompt to make")
        return prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A point that can run."""

    point: Point
    prepared: Prepared
    choice: Choice
    reqs: tuple[Req, ...]
    batches: tuple[MicroBatch, ...]

    @property
    def layout(self) -> Layout:
        """How the ranks are laid out."""
        return self.choice.layout

    @property
    def in_flight(self) -> int | None:
        """As the job says; None is the workers' own choice."""
        return self.prepared.job.spec.parallel.in_flight

    @property
    def settings(self) -> dict[str, int | str]:
        """Every degree, swept or not, and the batch size."""
        degrees = {name: getattr(self.layout, name) for name in Layout.__dataclass_fields__}
        return {**degrees, "batch_size": self.prepared.batch_size}


def make_task(workload: Workload, point: Point) -> Task:
    """Raises JobError or PlanError when the point cannot run."""
    prepared = workload.prepare(point.job_keys())
    # To its end, also beyond the requests that count: reading it is what checks the job.
    reqs = tuple(req for req in prepared.reqs() if req.index < workload.num)
    queue = work_queue(
        reqs, {req.id for req in reqs}, batch_size=prepared.batch_size, facts=prepared.facts
    )
    choice = choose_fitting(prepared, len(queue))
    return Task(point=point, prepared=prepared, choice=choice, reqs=reqs, batches=tuple(queue))


def warmup_batches(batches: Sequence[MicroBatch], num: int, first: int = 0) -> list[MicroBatch]:
    """`num` micro-batches like the first ones of the queue, with texts of their own.

    Other texts, so that no encoding of a counted request is remembered from here.
    """
    return [
        _warmup_batch(batches[number % len(batches)], number)
        for number in range(first, first + num)
    ]


def random_prompts(num: int) -> list[str]:
    """`num` texts, always the same ones: sizes, colours, shapes and backgrounds."""
    product = itertools.product(_SIZES, _COLOURS, _SHAPES, _BACKGROUNDS)
    words = [chosen for chosen in product if chosen[1] != chosen[3]]
    texts = []
    for number in range(num):
        size, colour, shape, background = words[number * _STRIDE % len(words)]
        again = number // len(words)
        more = f", version {again + 1}" if again else ""
        texts.append(f"a {size} {colour} {shape} on a {background} background{more}")
    return texts


def _warmup_batch(batch: MicroBatch, number: int) -> MicroBatch:
    reqs = tuple(
        replace(
            req,
            id=f"warmup-{number}-{place}",
            prompt=f"{number}-{place} {req.prompt}",
            file=f"{WARMUP}/{number:04d}-{place}.{suffix_of(req.file)}",
        )
        for place, req in enumerate(batch.reqs)
    )
    return replace(batch, reqs=reqs, write=frozenset(req.id for req in reqs))
